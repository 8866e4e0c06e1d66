/* Finds the buffers of the values of a micro-batch and of their gradients. */
#include <string.h>

#include "plan/attention_parts.h"

static uint64_t count_of(const tws_lower *l, const tws_dim *dim, int dims, int64_t sequence) {
  tws_dim resolved[TWS_DIMS];
  for (int i = 0; i < dims; i++) resolved[i] = tws_lower_dim(l, dim[i]);
  return (uint64_t)tws_dims_count(resolved, dims, l->config->micro_batch_size, sequence);
}

static int64_t sequence_of(const tws_lower *l, const tws_value *v) {
  for (int i = 0; i < v->row_dims; i++)
    if (v->row[i].kind == TWS_DIM_SEQUENCE || v->row[i].kind == TWS_DIM_TARGET) {
      const int64_t size = tws_lower_dim(l, v->row[i]).size;
      if (size > 0) return size;
    }
  return l->config->sequence_length;
}

/* Returns the number of rows of a value on a rank. Rows of tokens are divided among token_parts ranks; rows of slots
 * are counted for the tokens of one rank, and multiplied by slot_parts, the number of ranks whose slots the value
 * has. */
static uint64_t rows_of(const tws_lower *l, const tws_value *v, int token_parts, int slot_parts) {
  int samples = 0, slots = 0;
  for (int i = 0; i < v->row_dims; i++) {
    samples |= v->row[i].kind == TWS_DIM_SAMPLES;
    slots |= v->row[i].kind == TWS_DIM_CAPACITY;
  }
  if (slots) return (uint64_t)slot_parts * count_of(l, v->row, v->row_dims, l->config->sequence_length / token_parts);
  const uint64_t all = count_of(l, v->row, v->row_dims, l->config->sequence_length);
  return samples ? all / (uint64_t)token_parts : (uint64_t)slot_parts * all;
}

static tws_code make_room(tws_lower *l) {
  const uint32_t values = l->network->value_count;
  l->values.adds = tws_lower_memory(l, values, 1);
  l->values.whole_sequence = tws_lower_memory(l, values, sizeof *l->values.whole_sequence);
  l->values.rows = tws_lower_memory(l, values, sizeof *l->values.rows);
  return l->b.failed;
}

void tws_values_enter(tws_lower *l, const tws_context *context) {
  l->values.buffer = context->value_buffer;
  l->values.gradient = context->value_gradient;
  l->values.narrow = context->value_narrow;
}

void tws_value_place(tws_lower *l, uint32_t value, uint32_t buffer) {
  l->values.buffer[value] = buffer;
}

void tws_value_place_gradient(tws_lower *l, uint32_t value, uint32_t buffer) {
  l->values.gradient[value] = buffer;
}

void tws_value_place_narrow(tws_lower *l, uint32_t value, uint32_t buffer) {
  l->values.narrow[value] = buffer;
}

tws_code tws_values_begin(tws_lower *l) {
  const tws_value *before = NULL; /* the previous value, since most values have as many rows as the previous one */
  TWS_TRY(make_room(l));
  for (uint32_t v = 0; v < l->network->value_count; v++) {
    const tws_value *value = &l->network->values[v];
    const int parts = l->local.values[v].token_parts, slot_parts = l->local.values[v].slot_parts;
    const size_t bytes = value->row_dims * sizeof *value->row;
    const int same = before && parts == l->local.values[v - 1].token_parts &&
                     slot_parts == l->local.values[v - 1].slot_parts && before->row_dims == value->row_dims &&
                     memcmp(before->row, value->row, bytes) == 0;
    l->values.whole_sequence[v] = same ? l->values.whole_sequence[v - 1] : sequence_of(l, value);
    l->values.rows[v] = same ? l->values.rows[v - 1] : rows_of(l, value, parts, slot_parts);
    before = value;
  }
  return TWS_OK;
}

uint64_t tws_value_elements(const tws_lower *l, uint32_t value) {
  return l->network->values[value].per_row * tws_value_rows(l, value);
}

/* ---- inputs of the network ---- */

/* Returns the size of an input for the tokens that this rank has outside attention, or for all tokens of a sequence if
 * only attention reads it. */
static uint64_t input_count(const tws_lower *l, const tws_network_input *in, int dims) {
  const int parts = in->content == TWS_INPUT_DOCUMENTS ? 1 : l->sharding.position.ranks[TWS_AXIS_SEQUENCE];
  return count_of(l, in->dim, dims, l->config->sequence_length / parts);
}

uint64_t tws_input_rows(const tws_lower *l, uint32_t input) {
  const tws_network_input *in = &l->network->input[input];
  int dims = 0;
  while (dims < in->dims && in->dim[dims].kind != TWS_DIM_FIXED) dims++;
  return input_count(l, in, dims);
}

uint64_t tws_input_elements(const tws_lower *l, uint32_t input) {
  return input_count(l, &l->network->input[input], l->network->input[input].dims);
}

tws_dtype tws_input_dtype(const tws_lower *l, uint32_t input) {
  const tws_input_content content = l->network->input[input].content;
  return content == TWS_INPUT_NUMBERS || content == TWS_INPUT_NOISE ? l->config->dtype : TWS_I32;
}

tws_operand tws_input_read(tws_lower *l, uint32_t input) {
  const uint64_t all = tws_input_elements(l, input), part = all / (uint64_t)l->at.tiles;
  return tws_read(l->b.plan->input[input], (uint64_t)l->b.micro_batch * all + part * (uint64_t)l->at.tile, part);
}

/* ---- values ---- */

static uint64_t buffer_elements(const tws_lower *l, uint32_t value) {
  uint64_t elements = tws_value_elements(l, value);
  return l->tiled[value] ? elements / (uint64_t)l->at.tiles : elements;
}

static tws_category category_of(const tws_lower *l, uint32_t value) {
  int checkpoint = l->config->recompute == TWS_RECOMPUTE_FULL && l->kept[value] == TWS_KEPT_CHECKPOINT;
  return checkpoint ? TWS_CATEGORY_CHECKPOINT : TWS_CATEGORY_ACTIVATION;
}

tws_dtype tws_value_dtype(const tws_lower *l, uint32_t value) {
  const tws_value_kind kind = l->network->values[value].kind;
  return kind == TWS_VALUE_ACTIVATION ? l->config->dtype : kind == TWS_VALUE_INDEX ? TWS_I32 : TWS_F32;
}

/* Sets the buffers of a recomputed value's 8-bit copies to TWS_NONE. */
static void forget_codes(tws_lower *l, uint32_t value) {
  if (l->float8.on) l->pipeline.context->codes[value] = (tws_codes){TWS_NONE, TWS_NONE, TWS_NONE, TWS_NONE, 0};
}

static uint32_t value_new(tws_lower *l, uint32_t value) {
  const tws_value *v = &l->network->values[value];
  uint32_t buffer = tws_builder_buffer(&l->b, v->name, category_of(l, value), tws_value_dtype(l, value),
                                       buffer_elements(l, value), 0);
  l->values.buffer[value] = buffer;
  forget_codes(l, value);
  return buffer;
}

/* Returns the operand of a whole buffer, or of the visit's tile of a buffer that has all tokens. */
static inline tws_operand range(tws_lower *l, uint32_t value, uint32_t buffer, uint32_t access) {
  tws_operand operand = tws_all(&l->b, buffer, access);
  if (l->at.tiles > 1 && !l->tiled[value]) {
    operand.count /= (uint64_t)l->at.tiles;
    operand.offset = operand.count * (uint64_t)l->at.tile;
  }
  return operand;
}

static tws_operand missing(tws_lower *l, const char *what) {
  tws_builder_fail(&l->b, TWS_INTERNAL, what);
  return (tws_operand){0};
}

tws_operand tws_value_read(tws_lower *l, uint32_t value) {
  if (l->values.buffer[value] == TWS_NONE) return missing(l, l->network->values[value].name);
  return range(l, value, l->values.buffer[value], TWS_READ);
}

tws_operand tws_value_write(tws_lower *l, uint32_t value) {
  if (tws_is_first_tile(l) || l->tiled[value]) value_new(l, value);
  return range(l, value, l->values.buffer[value], TWS_WRITE);
}

tws_operand tws_value_reuse(tws_lower *l, uint32_t input, uint32_t output, uint32_t access) {
  tws_operand operand = tws_value_read(l, input);
  operand.access = access;
  if (l->b.failed == TWS_OK) l->b.plan->buffers[operand.buffer].category = (uint8_t)category_of(l, output);
  l->values.buffer[output] = operand.buffer;
  forget_codes(l, output);
  l->values.buffer[input] = TWS_NONE;
  return operand;
}

tws_operand tws_value_gradient(tws_lower *l, uint32_t value) {
  if (l->values.gradient[value] == TWS_NONE) return missing(l, "a gradient is read before it is there");
  return range(l, value, l->values.gradient[value], TWS_READ);
}

tws_operand tws_value_gradient_out(tws_lower *l, uint32_t value, int *accumulate) {
  *accumulate = l->values.gradient[value] != TWS_NONE && !l->tiled[value];
  if (!l->tiled[value] && !tws_is_first_tile(l)) *accumulate = l->values.adds[value];
  if (!l->tiled[value] && tws_is_first_tile(l)) l->values.adds[value] = (uint8_t)*accumulate;
  if (l->tiled[value] || l->values.gradient[value] == TWS_NONE) {
    l->values.gradient[value] =
        tws_builder_buffer(&l->b, l->network->values[value].name, TWS_CATEGORY_ACTIVATION_GRADIENT,
                           tws_value_dtype(l, value), buffer_elements(l, value), 0);
  }
  return range(l, value, l->values.gradient[value], *accumulate ? TWS_READ_WRITE : TWS_WRITE);
}

int tws_gradient_is_shared(const tws_lower *l, uint32_t value, uint32_t before) {
  for (uint32_t i = 0; i < l->shared.count; i++) {
    const uint32_t other = l->shared.values[i];
    if (other != value && l->values.gradient[other] == l->values.gradient[value] &&
        l->network->values[other].producer < before)
      return 1;
  }
  return 0;
}

void tws_lower_accumulate(tws_lower *l, tws_operand part, tws_operand sum) {
  tws_work work = tws_kernel_work(TWS_KERNEL_ACCUMULATE, l->config->dtype, 0);
  work.d[0] = (int64_t)part.count;
  part.access = TWS_READ;
  sum.access = TWS_READ_WRITE;
  const tws_operand operands[2] = {part, sum};
  tws_lower_compute(l, &work, operands, 2);
}

void tws_lower_clear(tws_lower *l, tws_operand target, tws_dtype dtype) {
  tws_work work = tws_kernel_work(TWS_KERNEL_FILL, dtype, 0);
  work.d[0] = (int64_t)target.count;
  target.access = TWS_WRITE;
  tws_lower_compute(l, &work, &target, 1);
}

void tws_lower_add_gradient(tws_lower *l, uint32_t value, tws_operand part) {
  tws_lower_accumulate(l, part, range(l, value, l->values.gradient[value], TWS_READ_WRITE));
}

tws_operand tws_lower_scratch(tws_lower *l, const char *name, tws_dtype dtype, uint64_t elements) {
  uint32_t buffer = tws_builder_buffer(&l->b, name, TWS_CATEGORY_WORKSPACE, dtype, elements, 0);
  return tws_all(&l->b, buffer, TWS_WRITE);
}

tws_operand tws_lower_workspace(tws_lower *l, const tws_work *work) {
  size_t bytes = tws_work_workspace(work, l->request->backend, l->request->threads);
  /* a write operand, since the kernel reads only contents that it has written itself */
  return tws_lower_scratch(l, "workspace", TWS_U8, bytes ? bytes : 1);
}

void tws_lower_compute(tws_lower *l, const tws_work *work, const tws_operand *operands, int count) {
  tws_builder_compute(&l->b, TWS_STREAM_COMPUTE, work, operands, count);
}

void tws_lower_compute_with(tws_lower *l, const tws_work *work, const tws_arguments *arguments,
                            const tws_operand *operands, int count) {
  tws_builder_compute_with(&l->b, TWS_STREAM_COMPUTE, work, arguments, operands, count);
}

void tws_lower_slice(tws_lower *l, uint32_t buffer) {
  if (l->b.failed != TWS_OK || l->b.segments[buffer].count == (uint32_t)l->streams.slices)
    return; /* there is only one slice, or the buffer has these slices already */
  uint64_t *starts = tws_arena_alloc(l->b.plan->arena, (size_t)l->streams.slices, sizeof *starts);
  uint64_t part = l->b.plan->buffers[buffer].elements / (uint64_t)l->streams.slices;
  if (!starts) {
    tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
    return;
  }
  for (int i = 0; i < l->streams.slices; i++) starts[i] = part * (uint64_t)i;
  tws_builder_segments(&l->b, buffer, starts, (uint32_t)l->streams.slices);
}

tws_operand tws_operand_slice(const tws_lower *l, tws_operand operand, int i) {
  operand.count /= (uint64_t)l->streams.slices;
  operand.offset += operand.count * (uint64_t)i;
  return operand;
}
