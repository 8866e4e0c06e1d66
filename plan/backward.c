/* Lowers one backward visit of a module to kernels. */
#include <string.h>

#include "plan/attention_parts.h"
#include "plan/turns.h"

/* Counts a contribution to the gradients of a module's parameters. Tiles of tokens add to one gradient, which is
 * complete after the last tile; a tiled weight has one gradient for each tile. */
static void contributed(tws_lower *l, const tws_module *m) {
  if (!tws_is_last_tile(l)) return;
  for (int i = 0; i < TWS_MODULE_PARAMS; i++) {
    if (m->param[i] == TWS_NONE || !tws_trains(l, m, m->param[i])) continue;
    const uint32_t param = tws_visit_param(l, m->param[i], l->at.weight_tile);
    if (tws_is_weight_tile(l, param) || tws_is_last_weight_tile(l, m)) tws_zero_contributed(l, param);
  }
}

static int is_trained(const tws_lower *l, const tws_module *m, uint32_t param) {
  return param != TWS_NONE && tws_trains(l, m, param);
}

/* Clears rows of the gradient of a table that no token of this rank can select. */
static void clear_rows(tws_lower *l, tws_operand table, uint64_t first, uint64_t count) {
  if (!count) return;
  tws_lower_clear(l, tws_write(table.buffer, table.offset + first, count), l->zero.grad_dtype);
}

/* Emits the gradient kernels of a position table, one for each part of the rank's tokens that has successive
 * positions. */
static void position_parts(tws_lower *l, const tws_module *m, tws_work *work, tws_operand whole, int accumulate) {
  const int parts = tws_token_parts(l);
  if (!accumulate) tws_lower_clear(l, whole, l->zero.grad_dtype);
  work->d[0] /= parts;
  work->d[2] = work->d[3] = work->d[0];
  work->flags = TWS_ACCUMULATE;
  for (int i = 0; i < parts; i++) {
    const tws_operand operands[2] = {tws_part_of_tokens(l, tws_value_gradient(l, m->out[0]), i),
                                     tws_with_access(tws_positions_of_part(l, m, whole, i), TWS_READ_WRITE)};
    tws_lower_compute_with(l, work, &(tws_arguments){{0}}, operands, 2);
  }
  tws_zero_contributed(l, m->param[1]);
}

static void backward_positions(tws_lower *l, const tws_module *m) {
  int accumulate;
  int64_t first, rows, width = m->out_features;
  tws_work work = tws_kernel_work(TWS_KERNEL_POSITION_GRAD, l->config->dtype, 0);
  tws_operand whole = tws_zero_gradient(l, m->param[1], &accumulate);
  tws_position_rows(l, m, &first, &rows);
  work.dtype2 = (uint8_t)l->zero.grad_dtype;
  work.d[0] = tws_module_rows(l, m);
  work.d[1] = width;
  work.d[2] = rows;
  work.d[3] = l->values.whole_sequence[m->out[0]] / l->sharding.position.ranks[TWS_AXIS_SEQUENCE];
  work.flags = accumulate ? TWS_ACCUMULATE : 0;
  if (tws_has_token_parts(l)) {
    position_parts(l, m, &work, whole, accumulate);
    return;
  }
  uint64_t begin = (uint64_t)(first * width), count = (uint64_t)(rows * width);
  if (!accumulate) {
    clear_rows(l, whole, 0, begin);
    clear_rows(l, whole, begin + count, whole.count - begin - count);
  }
  whole.offset += begin;
  whole.count = count;
  tws_operand operands[2] = {tws_value_gradient(l, m->out[0]), whole};
  tws_lower_compute_with(l, &work, &(tws_arguments){{(double)tws_token_gap(l)}}, operands, 2);
  tws_zero_contributed(l, m->param[1]);
}

/* Lowers the gradient of a table whose rows an input selects; its first row is that of id `first_id`. */
static void backward_table(tws_lower *l, const tws_module *m, uint32_t input, uint32_t param, int64_t first_id) {
  int accumulate;
  tws_work work = tws_kernel_work(TWS_KERNEL_EMBEDDING_GRAD, l->config->dtype, 0);
  work.dtype2 = (uint8_t)l->zero.grad_dtype;
  work.d[0] = tws_module_rows(l, m);
  work.d[1] = m->out_features;
  work.d[2] = l->network->params[param].rows;
  const tws_arguments arguments = {{(double)first_id}};
  tws_operand operands[3] = {tws_input_read(l, input), tws_value_gradient(l, m->out[0]),
                             tws_zero_gradient(l, param, &accumulate)};
  work.flags = accumulate ? TWS_ACCUMULATE : 0;
  tws_lower_compute_with(l, &work, &arguments, operands, 3);
  tws_zero_contributed(l, param);
}

static void backward_embedding(tws_lower *l, const tws_module *m) {
  if (is_trained(l, m, m->param[2])) backward_table(l, m, m->input[1], m->param[2], 0);
  if (is_trained(l, m, m->param[1])) {
    if (m->input[2] != TWS_NONE)
      backward_table(l, m, m->input[2], m->param[1], -m->first_position);
    else
      backward_positions(l, m);
  }
  /* number of rows before the row of position 0, if the table contains only positions; otherwise 0 */
  const int64_t skipped = m->param[1] == TWS_NONE ? m->first_position : 0;
  if (is_trained(l, m, m->param[0]))
    backward_table(l, m, m->input[0], m->param[0], tws_local_of(l, m)->first_row - skipped);
}

/* Defers the kernel of a weight gradient, which a split backward pass runs later; the buffers that it reads stay alive
 * until then. */
static void defer(tws_lower *l, const tws_work *work, const tws_operand *operands, int count) {
  tws_context *c = l->pipeline.context;
  /* the array is in the scratch arena, which is freed with the lowering */
  if (c->deferred_count == c->deferred_capacity) {
    const size_t room = c->deferred_capacity ? 2 * c->deferred_capacity : 16;
    tws_deferred *list = tws_arena_alloc_unset(l->scratch, room, sizeof *list);
    if (!list) {
      tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
      return;
    }
    if (c->deferred_count > 0) memcpy(list, c->deferred, c->deferred_count * sizeof *list);
    c->deferred = list;
    c->deferred_capacity = room;
  }
  tws_deferred *d = &c->deferred[c->deferred_count++];
  *d = (tws_deferred){.work = *work, .count = count, .module = l->b.module};
  memcpy(d->operands, operands, (size_t)count * sizeof *operands);
}

/* Computes the gradient of a bias from the output gradient, if the kernel of the weight's gradient does not, since it
 * adds to the gradient of a weight that several modules use. */
static void bias_gradient(tws_lower *l, const tws_module *m, tws_operand dy) {
  int accumulate;
  if (!is_trained(l, m, m->param[1])) return;
  tws_work work = tws_kernel_work(TWS_KERNEL_PART_BIAS_GRAD, l->config->dtype, 0);
  work.dtype2 = (uint8_t)l->zero.grad_dtype;
  work.d[0] = tws_module_rows(l, m);
  work.d[1] = 1;
  work.d[2] = m->out_features;
  const tws_operand operands[2] = {dy, tws_zero_gradient(l, m->param[1], &accumulate)};
  if (accumulate) work.flags |= TWS_ACCUMULATE;
  tws_lower_compute(l, &work, operands, 2);
}

static void weight_gradient(tws_lower *l, const tws_module *m, tws_operand dy, const tws_float8 *codes) {
  int accumulate, accumulate_bias = 0, n = 3;
  if (!is_trained(l, m, m->param[0])) return;
  tws_work work = tws_module_work(l, m, TWS_KERNEL_LINEAR_GRAD_WEIGHT, 0);
  const tws_outputs outputs = tws_visit_outputs(l, m);
  const uint32_t weight = tws_visit_param(l, m->param[0], l->at.weight_tile);
  work.dtype2 = (uint8_t)l->zero.grad_dtype;
  work.d[1] = outputs.count;
  const tws_float8 x = codes ? tws_float8_input(l, m) : (tws_float8){{0}, {0}, {0}};
  const int narrow = !codes && tws_lower_narrow(l, m) && l->values.narrow[m->in[0]] != TWS_NONE;
  /* 1: other modules add to the weight's gradient, too, so that it may exist before that of this module's own bias */
  const int apart = !codes && m->param[1] != TWS_NONE && m->param[1] != l->summed && l->network->params[weight].shared;
  /* the bias comes first, since gradients begin in the order of operations; from codes it cannot be computed, and the
   * cast of the output gradient has done so */
  if (apart) bias_gradient(l, m, dy);
  tws_operand operands[5] = {codes ? codes->columns : dy,
                             codes    ? x.columns
                             : narrow ? tws_all(&l->b, l->values.narrow[m->in[0]], TWS_READ)
                                      : tws_value_read(l, m->in[0]),
                             tws_zero_gradient(l, weight, &accumulate)};
  if (codes) {
    work.flags = (work.flags & ~(uint32_t)TWS_BIAS) | TWS_FP8;
    operands[n++] = codes->scale;
    operands[n++] = x.scale;
  } else if (m->param[1] != TWS_NONE && m->param[1] == l->summed) {
    work.flags &= ~(uint32_t)TWS_BIAS;
    l->summed = TWS_NONE;
  } else if (apart) {
    work.flags &= ~(uint32_t)TWS_BIAS;
  } else if (m->param[1] != TWS_NONE) { /* the bias gradient of the first tile begins the buffer for all tiles */
    operands[n] = tws_outputs_of(tws_zero_gradient(l, m->param[1], &accumulate_bias), outputs);
    operands[n++].access = operands[2].access;
    if (accumulate_bias != accumulate && tws_is_first_weight_tile(l, m))
      tws_builder_fail(&l->b, TWS_INTERNAL, "weight and bias gradients differ in age");
  }
  if (accumulate) work.flags |= TWS_ACCUMULATE;
  if (narrow) work.flags |= TWS_NARROW;
  if (l->pipeline.split) {
    defer(l, &work, operands, n);
    return;
  }
  tws_lower_compute(l, &work, operands, n);
  contributed(l, m);
}

static void input_gradient(tws_lower *l, const tws_module *m, tws_operand dy, const tws_float8 *codes) {
  int accumulate;
  if (!l->needed[m->in[0]]) return;
  tws_work work = tws_module_work(l, m, TWS_KERNEL_LINEAR_GRAD_INPUT, 0);
  work.flags &= ~(uint32_t)TWS_BIAS;
  work.d[1] = tws_visit_outputs(l, m).count;
  uint32_t into = l->at.fused_with ? l->at.fused_with->in[0] : m->in[0];
  const tws_float8 weight = codes ? tws_float8_weight(l, m) : (tws_float8){{0}, {0}, {0}};
  if (codes) dy = codes->rows;
  tws_operand operands[7] = {
      dy, codes ? weight.columns : tws_zero_param(l, tws_visit_param(l, m->param[0], l->at.weight_tile))};
  int n = 3;
  if (tws_is_first_weight_tile(l, m)) {
    operands[2] = tws_value_gradient_out(l, into, &accumulate);
  } else {
    operands[2] = tws_value_gradient(l, into);
    operands[2].access = TWS_READ_WRITE;
    accumulate = 1;
  }
  if (accumulate) work.flags |= TWS_ACCUMULATE;
  if (l->at.fused_with) {
    if (accumulate) tws_builder_fail(&l->b, TWS_INTERNAL, "an activation's gradient is there already");
    work.flags |= TWS_GELU;
    operands[n++] = tws_value_read(l, into);
    n = tws_lower_sums(l, &work, operands, n);
  }
  if (codes) {
    work.flags |= TWS_FP8;
    operands[n++] = codes->scale;
    operands[n++] = weight.scale;
  }
  if (!tws_lower_sliced(l, m)) {
    tws_lower_compute(l, &work, operands, n);
    return;
  }
  tws_operand dx = operands[2], z = operands[3];
  if (!accumulate) tws_lower_slice(l, dx.buffer);
  work.d[0] /= l->streams.slices;
  for (int i = 0; i < l->streams.slices; i++) {
    operands[0] = tws_operand_slice(l, dy, i);
    operands[2] = tws_operand_slice(l, dx, i);
    if (l->at.fused_with) operands[3] = tws_operand_slice(l, z, i);
    tws_lower_compute(l, &work, operands, n);
    if (!(work.flags & TWS_SUMS)) continue;
    work.flags |= TWS_ACCUMULATE_PARAM;
    operands[4].access = TWS_READ_WRITE;
  }
}

static void backward_linear(tws_lower *l, const tws_module *m) {
  const int cast_before = tws_float8_has_gradient(l, m);
  tws_operand dy = cast_before ? (tws_operand){0} : tws_outputs_gradient(l, m);
  tws_float8 cast;
  const tws_float8 *codes = NULL;
  if (tws_is_float8(l, m) && (l->needed[m->in[0]] || is_trained(l, m, m->param[0]))) {
    const int sums = is_trained(l, m, m->param[0]) && is_trained(l, m, m->param[1]);
    cast = tws_float8_gradient(l, m, dy, sums ? m->param[1] : TWS_NONE);
    codes = &cast;
  }
  /* 1: the input's gradient is computed before the weight's gradient, which overlaps with the exchange of the input's
   * gradient */
  int early = l->streams.exchange != TWS_STREAM_COMPUTE && tws_local_of(l, m)->split != TWS_SPLIT_NONE;
  if (early) input_gradient(l, m, dy, codes);
  weight_gradient(l, m, dy, codes);
  if (!early) input_gradient(l, m, dy, codes);
}

/* Returns 1 if one buffer can hold the gradient of z = x + y, of x and of y, which are equal: other readers of x may
 * add to it only after the backward visit of y's producer, and vice versa. This holds for a branch that joins the value
 * from which it started. It never holds if weight gradients are deferred, since their kernels read the gradient
 * later. */
static int keeps_apart(const tws_lower *l, const tws_module *add, int one) {
  const tws_module *modules = l->network->modules;
  const uint32_t at = (uint32_t)(add - modules), other = l->network->values[add->in[1 - one]].producer;
  for (uint32_t m = other; m < at; m++)
    for (int i = 0; i < TWS_MODULE_INS && modules[m].in[i] != TWS_NONE; i++)
      if (modules[m].in[i] == add->in[one]) return 0;
  return 1;
}

tws_code tws_backward_begin(tws_lower *l) {
  l->shared.values = tws_lower_memory(l, 2 * (size_t)l->network->value_count + 1, sizeof *l->shared.values);
  l->shared.adds = tws_lower_memory(l, l->network->module_count, 1);
  return l->b.failed;
}

void tws_backward_micro_begin(tws_lower *l) {
  l->shared.count = 0;
}

/* Returns the result of keeps_apart() for both inputs, which is computed once for each module. */
static int inputs_keep_apart(tws_lower *l, const tws_module *add) {
  enum { UNKNOWN, NO, YES };
  uint8_t *known = &l->shared.adds[add - l->network->modules];
  if (*known == UNKNOWN) *known = keeps_apart(l, add, 0) && keeps_apart(l, add, 1) ? YES : NO;
  return *known == YES;
}

/* Updates l->shared at the backward visit of an ADD: removes the values whose producers have been differentiated, and
 * adds the inputs of the ADD. */
static void note_sharing(tws_lower *l, const tws_module *add) {
  const uint32_t at = (uint32_t)(add - l->network->modules);
  uint32_t kept = 0;
  for (uint32_t i = 0; i < l->shared.count; i++)
    if (l->network->values[l->shared.values[i]].producer < at) l->shared.values[kept++] = l->shared.values[i];
  l->shared.values[kept++] = add->in[0];
  l->shared.values[kept++] = add->in[1];
  l->shared.count = kept;
}

static void backward_add(tws_lower *l, const tws_module *m) {
  const uint32_t dz = l->values.gradient[m->out[0]], at = (uint32_t)(m - l->network->modules);
  if (dz == TWS_NONE) tws_builder_fail(&l->b, TWS_INTERNAL, "a gradient is read before it is there");
  if (l->b.failed != TWS_OK) return;
  /* 1: the output's gradient is also the gradient of another value */
  int taken = tws_gradient_is_shared(l, m->out[0], at), shares = 0;
  const int both = !l->pipeline.split && inputs_keep_apart(l, m);
  for (int i = 0; i < 2 && l->b.failed == TWS_OK; i++) {
    const uint32_t v = m->in[i];
    if (!l->needed[v]) continue;
    if (l->values.gradient[v] != TWS_NONE) {
      tws_lower_add_gradient(l, v, tws_all(&l->b, dz, TWS_READ));
    } else if (!taken || (shares && both)) {
      tws_value_place_gradient(l, v, dz);
      taken = shares = 1;
    } else {
      int accumulate;
      tws_operand copy = tws_value_gradient_out(l, v, &accumulate);
      tws_builder_copy(&l->b, TWS_STREAM_COMPUTE, tws_all(&l->b, dz, TWS_READ), copy);
    }
  }
  note_sharing(l, m);
}

/* Makes the loss's output buffer the gradient of the logits: the forward kernel wrote the gradient to it. */
static void backward_loss(tws_lower *l, const tws_module *m) {
  tws_value_place_gradient(l, m->in[0], l->values.buffer[m->out[0]]);
}

/* Lowers the backward pass of a module that adds something to a value: the buffer of the output's gradient becomes,
 * unchanged, that of the value's gradient. */
static void backward_added(tws_lower *l, const tws_module *m) {
  for (const tws_module_kernel *k = tws_module_row_of(m->type)->backward; k->binding[0].source; k++)
    tws_lower_kernel(l, m, k);
  contributed(l, m);
  if (l->needed[m->in[0]] && l->b.failed == TWS_OK)
    tws_value_place_gradient(l, m->in[0], l->values.gradient[m->out[0]]);
}

/* Backward functions of the module types that need more code than their row in modules.def. */
static void (*const own_backward[TWS_MODULE_TYPE_COUNT])(tws_lower *l, const tws_module *m) = {
    [TWS_MODULE_EMBEDDING] = backward_embedding,   [TWS_MODULE_LINEAR] = backward_linear,
    [TWS_MODULE_EXCHANGE] = tws_exchange_backward, [TWS_MODULE_ADD] = backward_add,
    [TWS_MODULE_ROUTER] = tws_router_backward,     [TWS_MODULE_LOSS] = backward_loss,
    [TWS_MODULE_LOW_RANK] = backward_added,        [TWS_MODULE_PART_BIAS] = backward_added};

void tws_lower_backward(tws_lower *l, const tws_module *m) {
  if ((m->type == TWS_MODULE_DROPOUT || m->type == TWS_MODULE_DROPPED) && !l->config->dropout) {
    tws_lower_pass_gradient(l, m->in[0], tws_value_gradient(l, m->out[0]));
    return;
  }
  if (m->type == TWS_MODULE_ATTENTION && l->sharding.ring) {
    tws_ring_backward(l, m);
    return;
  }
  if (m->type == TWS_MODULE_ATTENTION && l->at.chunk_role) {
    tws_chunked_backward(l, m);
    return;
  }
  if (own_backward[m->type]) {
    own_backward[m->type](l, m);
    return;
  }
  for (const tws_module_kernel *k = tws_module_row_of(m->type)->backward; k->binding[0].source; k++)
    tws_lower_kernel(l, m, k);
  contributed(l, m);
}
