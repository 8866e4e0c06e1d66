/* Access to whole parameters, gradients and optimizer states, whichever ranks and tiers hold them: each rank lists the
 * ranges that it holds as a checkpoint does (checkpoint/slice.h), rank 0 assembles the whole, and every rank receives
 * it. */
#include <string.h>

#include "base/dynamic_map.h"
#include "base/memory.h"
#include "checkpoint/read.h"
#include "real/engine_internal.h"
#include "real/split_masters.h"

static const char parameter[] = "parameter", gradient[] = "gradient";
enum { CHUNK = 1 << 18 };

/* ---- the ranges that this rank holds ---- */

static int is_optimizer_state(const tws_state_entry *entry) {
  return entry->role == TWS_ELEMENTS_OWNED && entry->initial == TWS_INITIAL_ZERO && entry->checkpointed &&
         !entry->continues;
}

/* Returns the name under which programs get the entry of a state: moments of 8 bits and the float32 moments of the
 * other parameters have one name. */
static const char *offered_name(const char *entry) {
  static const char *const names[][2] = {{"8-bit first moments", "first moments"},
                                         {"first moments of small tensors", "first moments"},
                                         {"8-bit second moments", "second moments"},
                                         {"second moments of small tensors", "second moments"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strcmp(names[i][0], entry) == 0) return names[i][1];
  return entry;
}

/* Returns 1 if an earlier entry has a state's name already. */
static int is_second(const tws_state_entry *entry) {
  return entry->scales == 0 && offered_name(entry->name) != entry->name;
}

const char *tws_engine_state_name(const tws_engine *e, int index) {
  const tws_state *state = e->t.plan->state;
  if (index == 0) return parameter;
  if (index == 1) return gradient;
  for (uint32_t i = 0, n = 2; i < state->count; i++)
    if (is_optimizer_state(&state->entries[i]) && !is_second(&state->entries[i]) && (int)n++ == index)
      return offered_name(state->entries[i].name);
  return NULL;
}

uint64_t tws_engine_elements(const tws_engine *e, uint32_t param) {
  const tws_param *p = &e->t.plan->network->params[param];
  const int copies = p->own_along ? tws_topology_size(&e->t.plan->topology, p->own_along) : 1;
  return (uint64_t)tws_param_numel(p) * (uint64_t)copies;
}

/* Adds the ranges of the gradients that one update operation reads. */
static void add_gradients(tws_engine *e, const tws_plan_update *u) {
  const tws_plan *plan = e->t.plan;
  const tws_operand *from = &plan->operands[plan->ops[u->op].operand_first + u->gradient];
  for (uint32_t i = 0; i < plan->state->shard_count; i++) {
    const tws_shard *s = &plan->state->shards[i];
    const tws_param *param = &plan->network->params[s->param];
    if (s->owned_offset == TWS_NO_OFFSET) continue;
    const uint64_t begin = s->owned_offset > u->first ? s->owned_offset : u->first;
    const uint64_t end =
        s->owned_offset + s->count < u->first + u->count ? s->owned_offset + s->count : u->first + u->count;
    if (begin >= end) continue;
    e->parts[e->part_count++] = (tws_engine_part){
        .piece = {.entry = TWS_NONE,
                  .param = s->param,
                  .copy = param->own_along ? tws_topology_index(&plan->topology, plan->rank, param->own_along) : 0,
                  .rank = plan->rank,
                  .slice = tws_slice_of(param, plan->slices ? &plan->slices[s->param] : NULL),
                  .first = s->param_first + begin - s->owned_offset,
                  .count = end - begin,
                  .at = from->offset + begin - u->first},
        .buffer = from->buffer};
  }
}

static tws_code list_parts(tws_engine *e, tws_error *err) {
  const tws_plan *plan = e->t.plan;
  tws_piece *pieces;
  uint32_t count;
  if (e->parts) return TWS_OK;
  TWS_TRY(tws_pieces_of(plan, e->arena, &pieces, &count, err));
  const size_t most = count + (size_t)plan->state->shard_count + plan->update_count;
  tws_engine_part *parts = tws_arena_alloc(e->arena, most + 1, sizeof *parts);
  if (!parts) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the list of parameters");
  e->parts = parts;
  e->part_count = 0;
  for (uint32_t i = 0; i < count; i++)
    if (pieces[i].param != TWS_NONE)
      e->parts[e->part_count++] = (tws_engine_part){
          .piece = pieces[i], .buffer = tws_training_buffer(plan, plan->state->entries[pieces[i].held].name)};
  for (uint32_t i = 0; i < plan->update_count; i++) add_gradients(e, &plan->updates[i]);
  return TWS_OK;
}

/* Returns 1 if `asked` is the name of an optimizer state, or PyTorch's name for it. entry: name of the state's
 * entry. */
static int is_named(const char *entry, const char *asked) {
  const char *state = offered_name(entry);
  static const char *const names[][2] = {{"exp_avg", "first moments"},
                                         {"exp_avg", "momentum"},
                                         {"exp_avg_sq", "second moments"},
                                         {"sum", "sums of squares"}};
  if (strcmp(state, asked) == 0) return 1;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strcmp(names[i][0], asked) == 0 && strcmp(names[i][1], state) == 0) return 1;
  return 0;
}

static int belongs(const tws_engine *e, const tws_engine_part *part, uint32_t param, const char *state) {
  if (part->piece.param != param) return 0;
  if (part->piece.entry == TWS_NONE) return strcmp(state, gradient) == 0;
  const tws_state_entry *entry = &e->t.plan->state->entries[part->piece.entry];
  return strcmp(state, parameter) == 0 ? entry->initial == TWS_INITIAL_PARAMETER
                                       : is_optimizer_state(entry) && is_named(entry->name, state);
}

static tws_dtype type_of(const tws_engine *e, const tws_engine_part *part) {
  return (tws_dtype)e->t.plan->buffers[part->buffer].dtype;
}

/* Returns the bytes of an element in the type in which a part is offered: master weights in two halves are float32. */
static size_t bytes_of(const tws_engine *e, const tws_engine_part *part) {
  const tws_dtype dtype = type_of(e, part);
  return tws_dtype_bytes(dtype == TWS_LOW16 ? TWS_F32 : dtype);
}

/* Returns the bytes of an element of the widest copy of a parameter's state that this rank has; 0: it has none. */
static size_t widest(const tws_engine *e, uint32_t param, const char *state) {
  size_t bytes = 0;
  for (uint32_t i = 0; i < e->part_count; i++) {
    const size_t these = bytes_of(e, &e->parts[i]);
    if (belongs(e, &e->parts[i], param, state) && these > bytes) bytes = these;
  }
  return bytes;
}

/* Returns the factor of a gradient in the buffer: the loss scale of the step. */
static float scale_of(const tws_engine *e, const tws_engine_part *part) {
  return part->piece.entry == TWS_NONE ? (float)e->t.counters->loss_scale.scale : 1;
}

/* ---- states of 8 bits: parts and chunks of them are whole blocks ---- */

/* Returns the state's entry of a part with codes of 8 bits, or NULL. */
static const tws_state_entry *codes_of(const tws_engine *e, const tws_engine_part *part) {
  const tws_state_entry *entry = part->piece.entry == TWS_NONE ? NULL : &e->t.plan->state->entries[part->piece.entry];
  return entry && entry->scales > 0 ? entry : NULL;
}

/* Second moments are never negative, and have the map without negative values. */
static int is_signed(const tws_state_entry *codes) {
  return is_named(codes->name, "exp_avg");
}

/* Reads or writes the scales of `count` elements from element `at` of the entry on. */
static tws_code move_scales(tws_engine *e, const tws_state_entry *codes, uint64_t at, uint64_t count, float *scales,
                            int puts, tws_error *err) {
  const tws_plan *plan = e->t.plan;
  const uint32_t buffer = tws_training_buffer(plan, plan->state->entries[codes->scales - 1].name);
  const uint64_t first = at / TWS_DYNAMIC_BLOCK, blocks = (count + TWS_DYNAMIC_BLOCK - 1) / TWS_DYNAMIC_BLOCK;
  return puts ? tws_executor_put(e->t.executor, TWS_PROGRAM_TRAIN, buffer, first, scales, blocks, err)
              : tws_executor_get(e->t.executor, TWS_PROGRAM_TRAIN, buffer, first, scales, blocks, err);
}

static tws_code decode_chunk(tws_engine *e, const tws_state_entry *entry, uint64_t at, const uint8_t *codes,
                             uint64_t count, float *values, tws_error *err) {
  float scales[CHUNK / TWS_DYNAMIC_BLOCK];
  TWS_TRY(move_scales(e, entry, at, count, scales, 0, err));
  for (uint64_t i = 0; i < count; i += TWS_DYNAMIC_BLOCK)
    tws_dynamic_decode(codes + i, (int)(count - i < TWS_DYNAMIC_BLOCK ? count - i : TWS_DYNAMIC_BLOCK),
                       is_signed(entry), scales[i / TWS_DYNAMIC_BLOCK], values + i);
  return TWS_OK;
}

static tws_code encode_chunk(tws_engine *e, const tws_state_entry *entry, uint64_t at, const float *values,
                             uint64_t count, uint8_t *codes, tws_error *err) {
  float scales[CHUNK / TWS_DYNAMIC_BLOCK];
  for (uint64_t i = 0; i < count; i += TWS_DYNAMIC_BLOCK)
    tws_dynamic_encode(values + i, (int)(count - i < TWS_DYNAMIC_BLOCK ? count - i : TWS_DYNAMIC_BLOCK),
                       is_signed(entry), codes + i, &scales[i / TWS_DYNAMIC_BLOCK]);
  return move_scales(e, entry, at, count, scales, 1, err);
}

/* ---- single parts ---- */

static tws_code read_part(tws_engine *e, const tws_engine_part *part, float *values, tws_error *err) {
  const tws_state_entry *codes = codes_of(e, part);
  const tws_dtype dtype = type_of(e, part);
  const float scale = scale_of(e, part);
  if (dtype == TWS_LOW16)
    return tws_whole_get(e->t.executor, e->t.plan, part->buffer, part->piece.at, part->piece.count, values, err);
  void *chunk = tws_calloc(CHUNK, sizeof(double));
  tws_code code = chunk ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (uint64_t done = 0; done < part->piece.count && code == TWS_OK; done += CHUNK) {
    const uint64_t n = part->piece.count - done < CHUNK ? part->piece.count - done : CHUNK;
    code = tws_executor_get(e->t.executor, TWS_PROGRAM_TRAIN, part->buffer, part->piece.at + done, chunk, n, err);
    if (code == TWS_OK && codes)
      code = decode_chunk(e, codes, part->piece.at + done, chunk, n, values + done, err);
    else if (code == TWS_OK)
      tws_convert_elements(dtype, chunk, TWS_F32, values + done, n);
  }
  for (uint64_t i = 0; i < part->piece.count && scale != 1 && code == TWS_OK; i++) values[i] /= scale;
  tws_free(chunk);
  return code;
}

/* Returns the index in a whole parameter of element `index` of the part, with the number of elements from it on that
 * are consecutive in both. */
static uint64_t whole_index(const tws_engine *e, const tws_piece *piece, uint64_t index, uint64_t *run) {
  const uint64_t elements = (uint64_t)tws_param_numel(&e->t.plan->network->params[piece->param]);
  const uint64_t whole = tws_param_slice_whole(&piece->slice, piece->first + index, run);
  if (*run > piece->count - index) *run = piece->count - index;
  return (uint64_t)piece->copy * elements + whole;
}

static tws_code write_part(tws_engine *e, const tws_engine_part *part, const float *whole, tws_error *err) {
  const tws_state_entry *codes = codes_of(e, part);
  const tws_dtype dtype = type_of(e, part);
  const float scale = scale_of(e, part);
  float *values = tws_calloc(CHUNK, sizeof *values);
  void *chunk = tws_calloc(CHUNK, sizeof(double));
  tws_code code = values && chunk ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (uint64_t done = 0, n = 0; done < part->piece.count && code == TWS_OK; done += n) {
    const uint64_t at = whole_index(e, &part->piece, done, &n);
    if (n > CHUNK) n = CHUNK;
    for (uint64_t i = 0; i < n; i++) values[i] = whole[at + i] * scale;
    if (codes)
      code = encode_chunk(e, codes, part->piece.at + done, values, n, chunk, err);
    else
      tws_convert_elements(TWS_F32, values, dtype, chunk, n);
    if (code != TWS_OK) break;
    code = tws_executor_put(e->t.executor, TWS_PROGRAM_TRAIN, part->buffer, part->piece.at + done, chunk, n, err);
  }
  tws_free(values);
  tws_free(chunk);
  return code;
}

/* ---- the whole ---- */

static tws_code check_access(tws_engine *e, const char *state, int writes, tws_error *err) {
  char known[256] = "";
  if (strcmp(state, gradient) == 0) return tws_engine_has_gradients(e, err);
  if (writes || e->failed) TWS_TRY(tws_engine_ready(e, err));
  for (int i = 0; tws_engine_state_name(e, i); i++) {
    const char *name = tws_engine_state_name(e, i);
    if (is_named(name, state)) return TWS_OK;
    snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", name);
  }
  return tws_fail(err, TWS_USAGE, known, "\"%.60s\" is no state of a parameter", state);
}

/* Appends this rank's parts of a parameter's state to a message; each part consists of its tws_piece, which identifies
 * the elements, and of their values. local: NULL, or values to send in place of those in the buffers, one part after
 * another; if this rank keeps the state in two types, only parts of the wider type are sent. */
static tws_code add_parts(tws_engine *e, uint32_t param, const char *state, const float *local, tws_text *message,
                          tws_error *err) {
  const size_t bytes = widest(e, param, state);
  for (uint32_t i = 0; i < e->part_count; i++) {
    const tws_engine_part *part = &e->parts[i];
    if (!belongs(e, part, param, state) || (local && bytes_of(e, part) != bytes)) continue;
    float *values = tws_calloc(part->piece.count, sizeof *values);
    tws_code code = values ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
    if (code == TWS_OK && !local) code = read_part(e, part, values, err);
    if (code == TWS_OK) {
      tws_text_add_bytes(message, (const char *)&part->piece, sizeof part->piece);
      tws_text_add_bytes(message, (const char *)(local ? local : values), part->piece.count * sizeof *values);
      if (local) local += part->piece.count;
    }
    tws_free(values);
    TWS_TRY(code);
  }
  return message->failed ? tws_fail(err, TWS_MEMORY, NULL, "out of memory") : TWS_OK;
}

/* Copies the ranges of a message whose elements have the size `element` into a whole parameter. Returns the number of
 * elements that were copied. */
static uint64_t assemble(const tws_engine *e, const unsigned char *at, const unsigned char *end, size_t element,
                         float *whole) {
  uint64_t written = 0;
  while (at < end) {
    tws_piece piece;
    memcpy(&piece, at, sizeof piece);
    at += sizeof piece;
    const tws_state_entry *entry = piece.entry == TWS_NONE ? NULL : &e->t.plan->state->entries[piece.entry];
    const int is_type = !entry || tws_dtype_bytes(tws_whole_dtype(entry)) == element;
    for (uint64_t done = 0, run; is_type && done < piece.count; done += run) {
      const uint64_t to = whole_index(e, &piece, done, &run);
      memcpy(whole + to, at + done * sizeof *whole, run * sizeof *whole);
      written += run;
    }
    at += piece.count * sizeof *whole;
  }
  return written;
}

typedef struct whole_head {
  uint64_t found; /* number of elements that were found */
} whole_head;

/* On rank 0: assembles the parts of all ranks, those of wider types last. */
static tws_code assemble_all(const tws_engine *e, const unsigned char *all, uint64_t bytes, uint64_t elements,
                             void **data, uint64_t *size, tws_error *err) {
  *size = sizeof(whole_head) + elements * sizeof(float);
  whole_head *head = tws_calloc(*size, 1);
  *data = head;
  if (!head) return tws_fail(err, TWS_MEMORY, NULL, "no memory for a whole parameter");
  for (size_t element = 1; element <= 4; element *= 2)
    head->found += assemble(e, all, all + bytes, element, (float *)(void *)(head + 1));
  return TWS_OK;
}

/* Gathers the parts of all ranks, and sends the whole parameter to every rank. */
static tws_code gather_whole(tws_engine *e, uint32_t param, const char *state, const float *local, float *whole,
                             tws_error *err) {
  tws_training *t = &e->t;
  const uint64_t elements = tws_engine_elements(e, param);
  tws_text message = {0};
  unsigned char *all = NULL;
  uint64_t *offset = NULL, bytes = 0;
  void *data = NULL;
  tws_code code = add_parts(e, param, state, local, &message, err);
  code = tws_engine_together(e, code, "reading its part of a parameter", err);
  if (code == TWS_OK) code = tws_comm_gather(t->comm, message.data, message.length, &all, &offset, err);
  if (code == TWS_OK && t->rank == 0) code = assemble_all(e, all, offset[t->world], elements, &data, &bytes, err);
  tws_text_free(&message);
  tws_free(all);
  tws_free(offset);
  if (code == TWS_OK) code = tws_mpi_broadcast(t->mpi, &data, &bytes, err);
  if (code == TWS_OK) {
    const whole_head *head = data;
    memcpy(whole, head + 1, elements * sizeof *whole);
    if (head->found == 0)
      code = tws_fail(err, TWS_USAGE, "frozen parameters have no gradients and no optimizer states",
                      "%s has no %s in floating point", t->plan->network->params[param].name, state);
  }
  tws_free(data);
  return code;
}

tws_code tws_engine_get(tws_engine *e, uint32_t param, const char *state, float *values, tws_error *err) {
  TWS_TRY(check_access(e, state, 0, err));
  TWS_TRY(list_parts(e, err));
  if (e->next == 0) TWS_TRY(tws_training_sync(&e->t, err));
  return gather_whole(e, param, state, NULL, values, err);
}

/* Copies from the whole parameter into all parts that this rank holds. */
static tws_code scatter_whole(tws_engine *e, uint32_t param, const char *state, const float *whole, tws_error *err) {
  tws_code code = TWS_OK;
  for (uint32_t i = 0; i < e->part_count && code == TWS_OK; i++)
    if (belongs(e, &e->parts[i], param, state)) code = write_part(e, &e->parts[i], whole, err);
  TWS_TRY(tws_engine_together(e, code, "writing its part of a parameter", err));
  return e->next == 0 ? tws_training_sync(&e->t, err) : TWS_OK;
}

tws_code tws_engine_set(tws_engine *e, uint32_t param, const char *state, int root, const float *values,
                        tws_error *err) {
  tws_training *t = &e->t;
  const uint64_t size = tws_engine_elements(e, param) * sizeof *values;
  unsigned char *all = NULL;
  uint64_t *offset = NULL, bytes = size;
  TWS_TRY(check_access(e, state, 1, err));
  if (root < 0 || root >= t->world)
    return tws_fail(err, TWS_USAGE, NULL, "rank %d gives the values, and the ranks are 0 to %d", root, t->world - 1);
  TWS_TRY(list_parts(e, err));
  if (e->next == 0) TWS_TRY(tws_training_sync(t, err));
  TWS_TRY(tws_comm_gather(t->comm, values, t->rank == root ? size : 0, &all, &offset, err));
  void *data = all;
  tws_code code = tws_mpi_broadcast(t->mpi, &data, &bytes, err);
  if (code == TWS_OK) code = scatter_whole(e, param, state, data, err);
  tws_free(data);
  tws_free(offset);
  return code;
}

/* ---- the elements of this rank ---- */

tws_code tws_engine_local(tws_engine *e, uint32_t param, const char *state, float *values, uint64_t *count,
                          tws_error *err) {
  *count = 0;
  TWS_TRY(check_access(e, state, 0, err));
  TWS_TRY(list_parts(e, err));
  const size_t bytes = widest(e, param, state);
  for (uint32_t i = 0; i < e->part_count; i++) {
    const tws_engine_part *part = &e->parts[i];
    if (!belongs(e, part, param, state) || bytes_of(e, part) != bytes) continue;
    if (values) TWS_TRY(read_part(e, part, values + *count, err));
    *count += part->piece.count;
  }
  return TWS_OK;
}

tws_code tws_engine_set_local(tws_engine *e, uint32_t param, const char *state, const float *values, tws_error *err) {
  const uint64_t elements = tws_engine_elements(e, param);
  TWS_TRY(check_access(e, state, 1, err));
  TWS_TRY(list_parts(e, err));
  if (e->next == 0) TWS_TRY(tws_training_sync(&e->t, err));
  float *whole = tws_calloc(elements, sizeof *whole);
  tws_code code = whole ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "no memory for a whole parameter");
  code = tws_engine_together(e, code, "reading its part of a parameter", err);
  if (code == TWS_OK) code = gather_whole(e, param, state, values, whole, err);
  if (code == TWS_OK) code = scatter_whole(e, param, state, whole, err);
  tws_free(whole);
  return code;
}
