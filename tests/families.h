/* Families of decoders as golden files list them (tests/golden/decoders.json): their networks, and weights by a formula
 * that the reference library was given, too. */
#ifndef TESTS_FAMILIES_H
#define TESTS_FAMILIES_H

#include "checkpoint/slice.h"
#include "models/network/huggingface.h"
#include "tests/hand_network.h"
#include "tests/members.h"

/* Returns a hash for an element of a tensor. Tensors of the same shape get different values, so that a test notices a
 * layer, an expert or a projection in another's place. */
static inline uint32_t word_of(uint64_t element, uint64_t tensor) {
  uint32_t x = (uint32_t)(element + tensor * UINT64_C(0x9e3779b9));
  x = (x ^ x >> 16) * 0x85ebca6bU;
  x = (x ^ x >> 13) * 0xc2b2ae35U;
  return (x ^ x >> 16) >> 8;
}

static inline tws_network *padded_network_of(const cJSON *config, int64_t multiple) {
  char *text = cJSON_PrintUnformatted(config);
  tws_json *json = NULL;
  tws_network *network = NULL;
  HAND_OK(tws_json_parse(text, strlen(text), "config.json", &json, &err));
  ck_assert_msg(tws_network_from_json(json, multiple, &network, &err) == TWS_OK, "%s: %s", text, err.message);
  tws_json_destroy(json);
  cJSON_free(text);
  return network;
}

/* ---- a network's parameters as the library's tensors ---- */

typedef struct tensors {
  tws_hf_tensor *list;
  uint32_t count;
} tensors;

static inline tensors tensors_of(const tws_network *network) {
  const tws_hf_request request = {.architecture = network->architecture,
                                  .params = network->params,
                                  .param_count = network->param_count,
                                  .vocabulary = network->vocabulary,
                                  .padded_vocabulary = network->padded_vocabulary};
  tensors t;
  HAND_OK(tws_hf_tensors(&request, network->arena, &t.list, &t.count, &err));
  return t;
}

/* Returns the index of a parameter's element for an element (row, column) of the file's tensor. */
static inline uint64_t element_of(const tws_hf_tensor *t, const int64_t *row_in, int64_t row, int64_t column) {
  return (uint64_t)(t->transposed ? (t->first_row + column) * t->columns + row
                                  : (t->first_row + row_in[row]) * t->columns + column);
}

/* Returns, for each row of the file's tensor, its row of the parameter; the caller frees it. */
static inline int64_t *rows_by_file(const tws_hf_tensor *t) {
  int64_t *row_in = calloc((size_t)t->rows + 1, sizeof *row_in);
  for (int64_t row = 0; row < t->rows; row++) row_in[tws_hf_row(t, row)] = row;
  return row_in;
}

static inline int is_weight(const char *name) {
  const size_t length = strlen(name);
  return length > 6 && strcmp(name + length - 6, "weight") == 0;
}

/* Returns the value of a tensor's element, given the tensor's index in its golden list; weights of norms are around 1,
 * all others around 0. `width`: the difference of the largest and the smallest value. */
static inline float weight_of(const char *name, int dims, uint64_t element, uint64_t index, double width) {
  return (float)((word_of(element, index) / 0x1p24 - 0.5) * width + (dims == 1 && is_weight(name)));
}

/* Fills the weights of a tensor by formula; its position in the golden list of tensors is the formula's index, and its
 * shape there is checked. */
static inline void fill_tensor(hand_job *job, const tws_hf_tensor *t, const cJSON *golden, double width) {
  const cJSON *shape;
  uint64_t index = 0;
  cJSON_ArrayForEach(shape, golden) {
    if (strcmp(shape->string, t->name) == 0) break;
    index++;
  }
  ck_assert_msg(shape != NULL, "the library has no tensor %s", t->name);
  const int dims = cJSON_GetArraySize(shape);
  const int64_t rows = t->transposed ? t->columns : t->rows, columns = t->transposed ? t->rows : t->columns;
  ck_assert_msg(cJSON_GetArrayItem(shape, 0)->valueint == rows &&
                    (dims == 1 || cJSON_GetArrayItem(shape, 1)->valueint == columns),
                "%s is not %d x %d", t->name, (int)rows, (int)columns);
  int64_t *row_in = rows_by_file(t);
  for (int64_t i = 0; i < rows * columns; i++) {
    job->weights[job->first[t->param] + element_of(t, row_in, i / columns, i % columns)] =
        weight_of(t->name, dims, (uint64_t)i, index, width);
  }
  free(row_in);
}

static inline void fill(hand_job *job, const tensors *t, const cJSON *family) {
  for (uint32_t i = 0; i < t->count; i++) fill_tensor(job, &t->list[i], member(family, "tensors"), 0.2);
}

/* ---- the weights of a rank ---- */

static inline uint32_t buffer_named(const tws_plan *plan, const char *name) {
  uint32_t b = 0;
  while (b < plan->buffer_count && strcmp(plan->buffers[b].name, name) != 0) b++;
  return b;
}

/* Writes the segments of the job's weights that the rank of the plan has to its executor, in the precision of its
 * buffers, and the running statistics that a job begins with. */
static inline tws_code put_rank_weights(const hand_job *job, const tws_plan *plan, tws_executor *x, tws_error *why) {
  tws_arena *arena = tws_arena_create();
  tws_piece *held = NULL;
  uint32_t count = 0;
  tws_code code = tws_pieces_of(plan, arena, &held, &count, why);
  for (uint32_t i = 0; i < count && code == TWS_OK; i++) {
    const tws_state_entry *entry = &plan->state->entries[held[i].entry];
    if (held[i].param == TWS_NONE || entry->initial != TWS_INITIAL_PARAMETER) continue;
    float *values = calloc(held[i].count + 1, sizeof *values);
    for (uint64_t k = 0; k < held[i].count; k++) {
      uint64_t run;
      values[k] =
          job->weights[job->first[held[i].param] + tws_param_slice_whole(&held[i].slice, held[i].first + k, &run)];
    }
    code = tws_executor_put(x, 0, buffer_named(plan, entry->name), held[i].at, values, held[i].count, why);
    free(values);
  }
  tws_arena_destroy(arena);
  if (code != TWS_OK || plan->running == TWS_NONE) return code;
  float *tables = calloc(plan->buffers[plan->running].elements, sizeof *tables);
  tws_init_running(plan, tables);
  code = tws_executor_put(x, 0, plan->running, 0, tables, plan->buffers[plan->running].elements, why);
  free(tables);
  return code;
}

#endif
