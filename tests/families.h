/* Families of decoders as golden files list them (tests/golden/decoders.json): their networks, and weights by a formula
 * that the reference library had, too. */
#ifndef TESTS_FAMILIES_H
#define TESTS_FAMILIES_H

#include "models/network/huggingface.h"
#include "tests/hand_network.h"
#include "tests/members.h"

/* Weights: tensors of one shape have nothing in common, so that a layer, an expert or a projection in another's place
 * is seen. */
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

/* Element of the parameter for an element of the file's tensor. */
static inline uint64_t element_of(const tws_hf_tensor *t, const int64_t *row_in, int64_t row, int64_t column) {
  return (uint64_t)(t->transposed ? (t->first_row + column) * t->columns + row
                                  : (t->first_row + row_in[row]) * t->columns + column);
}

/* Rows of the parameter by rows of the file. */
static inline int64_t *rows_by_file(const tws_hf_tensor *t) {
  int64_t *row_in = calloc((size_t)t->rows + 1, sizeof *row_in);
  for (int64_t row = 0; row < t->rows; row++) row_in[tws_hf_row(t, row)] = row;
  return row_in;
}

static inline int is_weight(const char *name) {
  const size_t length = strlen(name);
  return length > 6 && strcmp(name + length - 6, "weight") == 0;
}

/* Number `index` of the golden tensors, of this name and shape. */
static inline void fill_tensor(hand_job *job, const tws_hf_tensor *t, const cJSON *golden) {
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
        (float)((word_of((uint64_t)i, index) / 0x1p24 - 0.5) / 5 + (dims == 1 && is_weight(t->name)));
  }
  free(row_in);
}

static inline void fill(hand_job *job, const tensors *t, const cJSON *family) {
  for (uint32_t i = 0; i < t->count; i++) fill_tensor(job, &t->list[i], member(family, "tensors"));
}

#endif
