/* One backward visit of a module -> kernels. */
#include <string.h>

#include "plan/lower.h"

static tws_operand parameter_gradient(tws_lower *l, uint32_t param, int *accumulate) {
  tws_operand operand = tws_zero_gradient(l, param, accumulate);
  operand.access = *accumulate ? TWS_READ_WRITE : TWS_WRITE;
  return operand;
}

/* Tiles add to one gradient; it is complete with the last of them. */
static void contributed(tws_lower *l, const tws_module *m) {
  if (l->tile + 1 < l->tiles) return;
  tws_zero_contributed(l, m->param[0]);
  if (m->param[1] != TWS_NONE) tws_zero_contributed(l, m->param[1]);
}

/* Rows of the gradient of a table that no token of this rank can touch. */
static void clear_rows(tws_lower *l, tws_operand table, uint64_t first, uint64_t count) {
  if (!count) return;
  tws_work work = tws_kernel_work(TWS_KERNEL_FILL, l->zero.grad_dtype, 0);
  work.d[0] = (int64_t)count;
  tws_operand operand = tws_write(table.buffer, table.offset + first, count);
  tws_lower_compute(l, &work, &operand, 1);
}

static void backward_positions(tws_lower *l, const tws_module *m) {
  int accumulate;
  int64_t first, rows, width = m->out_features;
  tws_work work = tws_kernel_work(TWS_KERNEL_POSITION_GRAD, l->config->dtype, 0);
  tws_operand whole = parameter_gradient(l, m->param[1], &accumulate);
  tws_position_rows(l, m->param[1], &first, &rows);
  work.dtype2 = (uint8_t)l->zero.grad_dtype;
  work.d[0] = l->tokens;
  work.d[1] = width;
  work.d[2] = rows;
  work.d[3] = l->config->sequence_length / l->axes.sequence;
  work.flags = accumulate ? TWS_ACCUMULATE : 0;
  uint64_t begin = (uint64_t)(first * width), count = (uint64_t)(rows * width);
  if (!accumulate) {
    clear_rows(l, whole, 0, begin);
    clear_rows(l, whole, begin + count, whole.count - begin - count);
  }
  whole.offset += begin;
  whole.count = count;
  tws_operand operands[2] = {tws_value_gradient(l, m->out[0]), whole};
  tws_lower_compute(l, &work, operands, 2);
  tws_zero_contributed(l, m->param[1]);
}

static void backward_embedding(tws_lower *l, const tws_module *m) {
  int accumulate;
  if (m->param[1] != TWS_NONE) backward_positions(l, m);
  tws_work work = tws_kernel_work(TWS_KERNEL_EMBEDDING_GRAD, l->config->dtype, 0);
  work.dtype2 = (uint8_t)l->zero.grad_dtype;
  work.d[0] = l->tokens;
  work.d[1] = m->out_features;
  work.d[2] = l->network->params[m->param[0]].rows;
  const tws_arguments arguments = {{(double)tws_local_of(l, m)->first_row}};
  tws_operand operands[3] = {tws_token_slice(l, l->b.plan->input_ids), tws_value_gradient(l, m->out[0]),
                             parameter_gradient(l, m->param[0], &accumulate)};
  work.flags = accumulate ? TWS_ACCUMULATE : 0;
  tws_lower_compute_with(l, &work, &arguments, operands, 3);
  tws_zero_contributed(l, m->param[0]);
}

/* A split backward pass runs weight gradients later; what they read stays alive until then. */
static void defer(tws_lower *l, const tws_work *work, const tws_operand *operands, int count) {
  tws_context *c = l->context;
  if (tws_reserve(&c->deferred, &c->deferred_capacity, c->deferred_count + 1u, sizeof *c->deferred)) {
    tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
    return;
  }
  tws_deferred *d = &c->deferred[c->deferred_count++];
  *d = (tws_deferred){.work = *work, .count = count, .module = l->b.module};
  memcpy(d->operands, operands, (size_t)count * sizeof *operands);
}

static void weight_gradient(tws_lower *l, const tws_module *m, tws_operand dy) {
  int accumulate, accumulate_bias = 0, n = 3;
  tws_work work = tws_module_work(l, m, TWS_KERNEL_LINEAR_GRAD_WEIGHT, 0);
  work.dtype2 = (uint8_t)l->zero.grad_dtype;
  tws_operand operands[4] = {dy, tws_value_read(l, m->in[0]), parameter_gradient(l, m->param[0], &accumulate)};
  if (m->param[1] != TWS_NONE) {
    operands[n++] = parameter_gradient(l, m->param[1], &accumulate_bias);
    if (accumulate_bias != accumulate) tws_builder_fail(&l->b, TWS_INTERNAL, "weight and bias gradients differ in age");
  }
  if (accumulate) work.flags |= TWS_ACCUMULATE;
  if (l->split) {
    defer(l, &work, operands, n);
    return;
  }
  tws_lower_compute(l, &work, operands, n);
  contributed(l, m);
}

static void input_gradient(tws_lower *l, const tws_module *m, tws_operand dy) {
  int accumulate;
  tws_work work = tws_module_work(l, m, TWS_KERNEL_LINEAR_GRAD_INPUT, 0);
  work.flags &= ~(uint32_t)TWS_BIAS;
  uint32_t into = l->fused_with ? l->fused_with->in[0] : m->in[0];
  tws_operand operands[4] = {dy, tws_zero_param(l, m->param[0]), tws_value_gradient_out(l, into, &accumulate)};
  int n = 3;
  if (accumulate) work.flags |= TWS_ACCUMULATE;
  if (l->fused_with) {
    if (accumulate) tws_builder_fail(&l->b, TWS_INTERNAL, "an activation's gradient is there already");
    work.flags |= TWS_GELU;
    operands[n++] = tws_value_read(l, into);
  }
  if (!tws_lower_sliced(l, m)) {
    tws_lower_compute(l, &work, operands, n);
    return;
  }
  tws_operand dx = operands[2], z = operands[3];
  if (!accumulate) tws_lower_slice(l, dx.buffer);
  work.d[0] /= l->slices;
  for (int i = 0; i < l->slices; i++) {
    operands[0] = tws_operand_slice(l, dy, i);
    operands[2] = tws_operand_slice(l, dx, i);
    if (l->fused_with) operands[3] = tws_operand_slice(l, z, i);
    tws_lower_compute(l, &work, operands, n);
  }
}

static void backward_linear(tws_lower *l, const tws_module *m) {
  tws_operand dy = tws_value_gradient(l, m->out[0]);
  /* before the weight's gradient, with which its exchange overlaps */
  int early = l->exchange_stream != TWS_STREAM_COMPUTE && tws_local_of(l, m)->split != TWS_SPLIT_NONE;
  if (early) input_gradient(l, m, dy);
  weight_gradient(l, m, dy);
  if (!early) input_gradient(l, m, dy);
}

static void backward_norm(tws_lower *l, const tws_module *m) {
  int accumulate, accumulate_weight, accumulate_bias = 0;
  tws_work work = tws_module_work(l, m, TWS_KERNEL_NORM_GRAD, 0);
  work.dtype2 = (uint8_t)l->zero.grad_dtype;
  tws_operand operands[7];
  int n = 0;
  operands[n++] = tws_value_gradient(l, m->out[0]);
  operands[n++] = tws_value_read(l, m->in[0]);
  operands[n++] = tws_zero_param(l, m->param[0]);
  operands[n++] = tws_value_read(l, m->out[1]);
  operands[n++] = tws_value_gradient_out(l, m->in[0], &accumulate);
  operands[n++] = parameter_gradient(l, m->param[0], &accumulate_weight);
  if (m->param[1] != TWS_NONE) {
    operands[n++] = parameter_gradient(l, m->param[1], &accumulate_bias);
    if (accumulate_bias != accumulate_weight) {
      tws_builder_fail(&l->b, TWS_INTERNAL, "weight and bias gradients differ in age");
    }
  }
  if (accumulate) work.flags |= TWS_ACCUMULATE;
  if (accumulate_weight) work.flags |= TWS_ACCUMULATE_PARAM;
  tws_lower_compute(l, &work, operands, n);
  contributed(l, m);
}

/* dx and dy are dz itself. A kernel further back may add to it, which is right for the one value it is the gradient of
 * and harmless for the other, as the other's producer has been differentiated by then (a branch joins where it left) -
 * unless weight gradients are deferred: then the branch gets a copy. */
static void backward_add(tws_lower *l, const tws_module *m) {
  uint32_t dz = l->value_gradient[m->out[0]];
  if (dz == TWS_NONE) tws_builder_fail(&l->b, TWS_INTERNAL, "a gradient is read before it is there");
  for (int i = 0; i < 2; i++) {
    uint32_t v = m->in[i];
    if (l->value_gradient[v] == TWS_NONE && l->split && i == 1) {
      int accumulate;
      tws_operand copy = tws_value_gradient_out(l, v, &accumulate);
      tws_builder_copy(&l->b, TWS_STREAM_COMPUTE, tws_all(&l->b, dz, TWS_READ), copy);
      continue;
    }
    if (l->value_gradient[v] == TWS_NONE) {
      l->value_gradient[v] = dz;
      continue;
    }
    tws_work work = tws_kernel_work(TWS_KERNEL_ACCUMULATE, l->config->dtype, 0);
    work.d[0] = (int64_t)tws_value_elements(l, v);
    tws_operand operands[2] = {tws_all(&l->b, dz, TWS_READ), tws_all(&l->b, l->value_gradient[v], TWS_READ_WRITE)};
    tws_lower_compute(l, &work, operands, 2);
  }
}

void tws_lower_backward(tws_lower *l, const tws_module *m) {
  tws_operand operands[6];
  tws_work work;
  int n = 0, accumulate;
  switch (m->type) {
    case TWS_MODULE_EMBEDDING:
      backward_embedding(l, m);
      return;
    case TWS_MODULE_LINEAR:
      backward_linear(l, m);
      return;
    case TWS_MODULE_EXCHANGE:
      tws_exchange_backward(l, m);
      return;
    case TWS_MODULE_NORM:
      backward_norm(l, m);
      return;
    case TWS_MODULE_ADD:
      backward_add(l, m);
      return;
    case TWS_MODULE_LOSS: /* the forward kernel left the gradient in place of the logits */
      l->value_gradient[m->in[0]] = l->value_buffer[m->out[0]];
      return;
    case TWS_MODULE_ROPE:
      work = tws_module_work(l, m, TWS_KERNEL_ROPE_GRAD, 0);
      l->value_gradient[m->in[0]] = l->value_gradient[m->out[0]];
      operands[n++] = tws_value_gradient(l, m->in[0]);
      operands[0].access = TWS_READ_WRITE;
      break;
    case TWS_MODULE_ATTENTION:
      work = tws_module_work(l, m, TWS_KERNEL_ATTENTION_GRAD, 0);
      operands[n++] = tws_value_gradient(l, m->out[0]);
      operands[n++] = tws_value_read(l, m->in[0]);
      operands[n++] = tws_value_read(l, m->out[0]);
      operands[n++] = tws_value_read(l, m->out[1]);
      operands[n++] = tws_value_gradient_out(l, m->in[0], &accumulate);
      operands[n++] = tws_lower_workspace(l, &work);
      break;
    case TWS_MODULE_GELU: /* in place: dy is not needed again */
      work = tws_module_work(l, m, TWS_KERNEL_GELU_GRAD, 0);
      operands[n++] = tws_value_gradient(l, m->out[0]);
      operands[n++] = tws_value_read(l, m->in[0]);
      operands[n] = operands[0];
      operands[n++].access = TWS_WRITE;
      l->value_gradient[m->in[0]] = operands[0].buffer;
      break;
    case TWS_MODULE_SWIGLU:
      work = tws_module_work(l, m, TWS_KERNEL_SWIGLU_GRAD, 0);
      operands[n++] = tws_value_gradient(l, m->out[0]);
      operands[n++] = tws_value_read(l, m->in[0]);
      operands[n++] = tws_value_gradient_out(l, m->in[0], &accumulate);
      break;
    default:
      tws_builder_fail(&l->b, TWS_INTERNAL, "a module type has no backward");
      return;
  }
  tws_lower_compute(l, &work, operands, n);
}
