/* One visit of a module -> kernels. The same code serves every model: it knows module types, not architectures. */
#include <string.h>

#include "plan/lower.h"

/* ---- values ---- */

static uint32_t new_value(tws_lower *l, uint32_t value) {
  const tws_value *v = &l->network->values[value];
  tws_dtype dtype = v->kind == TWS_VALUE_STATISTIC ? TWS_F32 : l->config->dtype;
  int checkpoint = l->config->recompute == TWS_RECOMPUTE_FULL && l->kept[value];
  uint32_t buffer = tws_builder_buffer(&l->b, v->name, checkpoint ? TWS_CATEGORY_CHECKPOINT : TWS_CATEGORY_ACTIVATION,
                                       dtype, (uint64_t)v->per_token * (uint64_t)l->tokens, 0);
  l->value_buffer[value] = buffer;
  return buffer;
}

static tws_operand get(tws_lower *l, uint32_t value) {
  if (l->value_buffer[value] == TWS_NONE) {
    tws_builder_fail(&l->b, TWS_INTERNAL, l->network->values[value].name);
    return (tws_operand){0};
  }
  return tws_all(&l->b, l->value_buffer[value], TWS_READ);
}

static tws_operand make(tws_lower *l, uint32_t value) {
  return tws_all(&l->b, new_value(l, value), TWS_WRITE);
}

/* the output takes the buffer of an input that nobody reads again */
static tws_operand make_in_place(tws_lower *l, uint32_t input, uint32_t output, uint32_t access) {
  tws_operand operand = get(l, input);
  operand.access = access;
  l->value_buffer[output] = operand.buffer;
  l->value_buffer[input] = TWS_NONE;
  return operand;
}

static tws_operand gradient(tws_lower *l, uint32_t value) {
  if (l->value_gradient[value] == TWS_NONE) {
    tws_builder_fail(&l->b, TWS_INTERNAL, "a gradient is read before it is there");
    return (tws_operand){0};
  }
  return tws_all(&l->b, l->value_gradient[value], TWS_READ);
}

/* Where the gradient of an input is written, or added to when another consumer of the value has been there. */
static tws_operand gradient_out(tws_lower *l, uint32_t value, int *accumulate) {
  *accumulate = l->value_gradient[value] != TWS_NONE;
  if (!*accumulate) {
    const tws_value *v = &l->network->values[value];
    l->value_gradient[value] = tws_builder_buffer(&l->b, v->name, TWS_CATEGORY_ACTIVATION_GRADIENT, l->config->dtype,
                                                  (uint64_t)v->per_token * (uint64_t)l->tokens, 0);
  }
  return tws_all(&l->b, l->value_gradient[value], *accumulate ? TWS_READ_WRITE : TWS_WRITE);
}

static tws_operand workspace(tws_lower *l, const tws_work *work) {
  size_t bytes = tws_work_workspace(work, l->request->backend, l->request->threads);
  uint32_t buffer = tws_builder_buffer(&l->b, "workspace", TWS_CATEGORY_WORKSPACE, TWS_U8, bytes ? bytes : 1, 0);
  return tws_all(&l->b, buffer, TWS_WRITE); /* scratch: nothing in it is read before the kernel wrote it */
}

static void compute(tws_lower *l, const tws_work *work, const tws_operand *operands, int count) {
  tws_builder_compute(&l->b, TWS_STREAM_COMPUTE, work, operands, count);
}

/* ---- kernels with attributes of a module ---- */

static tws_work module_work(const tws_lower *l, const tws_module *m, tws_kernel kernel, uint32_t flags) {
  tws_work work = tws_kernel_work(kernel, l->config->dtype, flags);
  work.d[0] = l->tokens;
  switch (m->type) {
    case TWS_MODULE_LINEAR:
      work.d[1] = m->out_features;
      work.d[2] = m->in_features;
      break;
    case TWS_MODULE_ATTENTION:
      work.d[0] = l->tokens / l->request->config->sequence_length;
      work.d[1] = l->request->config->sequence_length;
      work.d[2] = m->heads;
      work.d[3] = m->kv_heads;
      work.d[4] = m->head_size;
      break;
    case TWS_MODULE_ROPE:
      work.d[1] = m->heads;
      work.d[2] = m->kv_heads;
      work.d[3] = m->head_size;
      work.d[4] = l->request->config->sequence_length;
      memcpy(work.f, m->rope, sizeof work.f);
      break;
    case TWS_MODULE_NORM:
      work.d[1] = m->out_features;
      work.f[0] = m->epsilon;
      if (m->rms) work.flags |= TWS_RMS;
      break;
    case TWS_MODULE_GELU:
    case TWS_MODULE_ADD:
      work.d[0] = l->tokens * m->out_features;
      break;
    case TWS_MODULE_SWIGLU:
      work.d[1] = m->out_features;
      break;
    default:
      break;
  }
  if ((m->type == TWS_MODULE_LINEAR || m->type == TWS_MODULE_NORM) && m->param[1] != TWS_NONE) work.flags |= TWS_BIAS;
  return work;
}

static tws_operand token_slice(tws_lower *l, uint32_t buffer) {
  return tws_read(buffer, (uint64_t)l->b.micro_batch * (uint64_t)l->tokens, (uint64_t)l->tokens);
}

static void forward_embedding(tws_lower *l, const tws_module *m) {
  tws_work work = tws_kernel_work(TWS_KERNEL_EMBEDDING, l->config->dtype, 0);
  const tws_param *wte = &l->network->params[m->param[0]];
  tws_operand operands[4] = {token_slice(l, l->b.plan->input_ids), tws_zero_param(l, m->param[0])};
  int n = 2;
  work.d[0] = l->tokens;
  work.d[1] = m->out_features;
  work.d[2] = wte->rows;
  work.d[4] = l->config->sequence_length;
  if (m->param[1] != TWS_NONE) {
    work.d[3] = l->network->params[m->param[1]].rows;
    operands[n++] = tws_zero_param(l, m->param[1]);
  }
  operands[n++] = make(l, m->out[0]);
  compute(l, &work, operands, n);
}

static void forward_loss(tws_lower *l, const tws_module *m) {
  tws_work work = tws_kernel_work(TWS_KERNEL_CROSS_ENTROPY, l->config->dtype, 0);
  const tws_network *network = l->network;
  double samples = (double)l->tokens * (double)l->config->accumulation_steps * l->zero.ranks;
  work.d[0] = l->tokens;
  work.d[1] = network->vocabulary;
  work.d[2] = network->padded_vocabulary;
  work.f[0] = work.f[1] = 1.0 / samples; /* the mean over the global batch: ranks and micro-batches only add */
  tws_operand operands[3];
  operands[0] = make_in_place(l, m->in[0], m->out[0], TWS_READ_WRITE);
  operands[1] = token_slice(l, l->b.plan->targets);
  operands[2] = tws_update(l->b.plan->metrics, TWS_METRIC_LOSS, 1);
  compute(l, &work, operands, 3);
}

static void forward(tws_lower *l, const tws_module *m) {
  tws_operand operands[5];
  tws_work work;
  int n = 0;
  switch (m->type) {
    case TWS_MODULE_EMBEDDING:
      forward_embedding(l, m);
      return;
    case TWS_MODULE_LOSS:
      forward_loss(l, m);
      return;
    case TWS_MODULE_NORM:
    case TWS_MODULE_LINEAR:
      work = module_work(l, m, m->type == TWS_MODULE_NORM ? TWS_KERNEL_NORM : TWS_KERNEL_LINEAR, 0);
      operands[n++] = get(l, m->in[0]);
      operands[n++] = tws_zero_param(l, m->param[0]);
      if (m->param[1] != TWS_NONE) operands[n++] = tws_zero_param(l, m->param[1]);
      operands[n++] = make(l, m->out[0]);
      if (m->type == TWS_MODULE_NORM) operands[n++] = make(l, m->out[1]);
      break;
    case TWS_MODULE_ROPE:
      work = module_work(l, m, TWS_KERNEL_ROPE, 0);
      operands[n++] = make_in_place(l, m->in[0], m->out[0], TWS_READ_WRITE);
      break;
    case TWS_MODULE_ATTENTION:
      work = module_work(l, m, TWS_KERNEL_ATTENTION, 0);
      operands[n++] = get(l, m->in[0]);
      operands[n++] = make(l, m->out[0]);
      operands[n++] = make(l, m->out[1]);
      operands[n++] = workspace(l, &work);
      break;
    case TWS_MODULE_GELU:
    case TWS_MODULE_SWIGLU:
      work = module_work(l, m, m->type == TWS_MODULE_GELU ? TWS_KERNEL_GELU : TWS_KERNEL_SWIGLU, 0);
      operands[n++] = get(l, m->in[0]);
      operands[n++] = make(l, m->out[0]);
      break;
    case TWS_MODULE_ADD:
      work = module_work(l, m, TWS_KERNEL_ADD, 0);
      operands[n++] = get(l, m->in[0]);
      operands[n++] = get(l, m->in[1]);
      operands[n++] = make_in_place(l, m->in[1], m->out[0], TWS_WRITE);
      break;
    default:
      tws_builder_fail(&l->b, TWS_INTERNAL, "a module type has no forward");
      return;
  }
  compute(l, &work, operands, n);
}

/* ---- backward ---- */

static tws_operand parameter_gradient(tws_lower *l, uint32_t param, int *accumulate) {
  tws_operand operand = tws_zero_gradient(l, param, accumulate);
  operand.access = *accumulate ? TWS_READ_WRITE : TWS_WRITE;
  return operand;
}

static void backward_embedding(tws_lower *l, const tws_module *m) {
  int accumulate;
  tws_work work = tws_kernel_work(TWS_KERNEL_EMBEDDING_GRAD, l->config->dtype, 0);
  work.dtype2 = (uint8_t)l->zero.grad_dtype;
  work.d[0] = l->tokens;
  work.d[1] = m->out_features;
  if (m->param[1] != TWS_NONE) {
    tws_work position = work;
    position.code = TWS_KERNEL_POSITION_GRAD;
    position.d[2] = l->network->params[m->param[1]].rows;
    position.d[3] = l->config->sequence_length;
    tws_operand operands[2] = {gradient(l, m->out[0]), parameter_gradient(l, m->param[1], &accumulate)};
    position.flags = accumulate ? TWS_ACCUMULATE : 0;
    compute(l, &position, operands, 2);
    tws_zero_contributed(l, m->param[1]);
  }
  work.d[2] = l->network->params[m->param[0]].rows;
  tws_operand operands[3] = {token_slice(l, l->b.plan->input_ids), gradient(l, m->out[0]),
                             parameter_gradient(l, m->param[0], &accumulate)};
  work.flags = accumulate ? TWS_ACCUMULATE : 0;
  compute(l, &work, operands, 3);
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

static void backward_linear(tws_lower *l, const tws_module *m) {
  int accumulate, accumulate_bias = 0;
  tws_work work = module_work(l, m, TWS_KERNEL_LINEAR_GRAD_WEIGHT, 0);
  work.dtype2 = (uint8_t)l->zero.grad_dtype;
  tws_operand dy = gradient(l, m->out[0]);
  tws_operand operands[4] = {dy, get(l, m->in[0]), parameter_gradient(l, m->param[0], &accumulate)};
  int n = 3;
  if (m->param[1] != TWS_NONE) {
    operands[n++] = parameter_gradient(l, m->param[1], &accumulate_bias);
    if (accumulate_bias != accumulate) tws_builder_fail(&l->b, TWS_INTERNAL, "weight and bias gradients differ in age");
  }
  if (accumulate) work.flags |= TWS_ACCUMULATE;
  if (l->split) {
    defer(l, &work, operands, n);
  } else {
    compute(l, &work, operands, n);
    tws_zero_contributed(l, m->param[0]);
    if (m->param[1] != TWS_NONE) tws_zero_contributed(l, m->param[1]);
  }

  work = module_work(l, m, TWS_KERNEL_LINEAR_GRAD_INPUT, 0);
  work.flags &= ~(uint32_t)TWS_BIAS;
  tws_operand input[3] = {dy, tws_zero_param(l, m->param[0]), gradient_out(l, m->in[0], &accumulate)};
  if (accumulate) work.flags |= TWS_ACCUMULATE;
  compute(l, &work, input, 3);
}

static void backward_norm(tws_lower *l, const tws_module *m) {
  int accumulate, accumulate_weight, accumulate_bias = 0;
  tws_work work = module_work(l, m, TWS_KERNEL_NORM_GRAD, 0);
  work.dtype2 = (uint8_t)l->zero.grad_dtype;
  tws_operand operands[7];
  int n = 0;
  operands[n++] = gradient(l, m->out[0]);
  operands[n++] = get(l, m->in[0]);
  operands[n++] = tws_zero_param(l, m->param[0]);
  operands[n++] = get(l, m->out[1]);
  operands[n++] = gradient_out(l, m->in[0], &accumulate);
  operands[n++] = parameter_gradient(l, m->param[0], &accumulate_weight);
  if (m->param[1] != TWS_NONE) {
    operands[n++] = parameter_gradient(l, m->param[1], &accumulate_bias);
    if (accumulate_bias != accumulate_weight) {
      tws_builder_fail(&l->b, TWS_INTERNAL, "weight and bias gradients differ in age");
    }
  }
  if (accumulate) work.flags |= TWS_ACCUMULATE;
  if (accumulate_weight) work.flags |= TWS_ACCUMULATE_PARAM;
  compute(l, &work, operands, n);
  tws_zero_contributed(l, m->param[0]);
  if (m->param[1] != TWS_NONE) tws_zero_contributed(l, m->param[1]);
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
      tws_operand copy = gradient_out(l, v, &accumulate);
      tws_builder_copy(&l->b, TWS_STREAM_COMPUTE, tws_all(&l->b, dz, TWS_READ), copy);
      continue;
    }
    if (l->value_gradient[v] == TWS_NONE) {
      l->value_gradient[v] = dz;
      continue;
    }
    tws_work work = tws_kernel_work(TWS_KERNEL_ACCUMULATE, l->config->dtype, 0);
    work.d[0] = l->tokens * m->out_features;
    tws_operand operands[2] = {tws_all(&l->b, dz, TWS_READ), tws_all(&l->b, l->value_gradient[v], TWS_READ_WRITE)};
    compute(l, &work, operands, 2);
  }
}

static void backward(tws_lower *l, const tws_module *m) {
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
      work = module_work(l, m, TWS_KERNEL_ROPE_GRAD, 0);
      l->value_gradient[m->in[0]] = l->value_gradient[m->out[0]];
      operands[n++] = gradient(l, m->in[0]);
      operands[0].access = TWS_READ_WRITE;
      break;
    case TWS_MODULE_ATTENTION:
      work = module_work(l, m, TWS_KERNEL_ATTENTION_GRAD, 0);
      operands[n++] = gradient(l, m->out[0]);
      operands[n++] = get(l, m->in[0]);
      operands[n++] = get(l, m->out[0]);
      operands[n++] = get(l, m->out[1]);
      operands[n++] = gradient_out(l, m->in[0], &accumulate);
      operands[n++] = workspace(l, &work);
      break;
    case TWS_MODULE_GELU: /* in place: dy is not needed again */
      work = module_work(l, m, TWS_KERNEL_GELU_GRAD, 0);
      operands[n++] = gradient(l, m->out[0]);
      operands[n++] = get(l, m->in[0]);
      operands[n] = operands[0];
      operands[n++].access = TWS_WRITE;
      l->value_gradient[m->in[0]] = operands[0].buffer;
      break;
    case TWS_MODULE_SWIGLU:
      work = module_work(l, m, TWS_KERNEL_SWIGLU_GRAD, 0);
      operands[n++] = gradient(l, m->out[0]);
      operands[n++] = get(l, m->in[0]);
      operands[n++] = gradient_out(l, m->in[0], &accumulate);
      break;
    default:
      tws_builder_fail(&l->b, TWS_INTERNAL, "a module type has no backward");
      return;
  }
  compute(l, &work, operands, n);
}

void tws_lower_visit(tws_lower *l, const tws_visit *visit) {
  if (visit->module == TWS_NONE || l->b.failed != TWS_OK) return;
  const tws_module *m = &l->network->modules[visit->module];
  l->b.phase = (tws_phase)visit->phase;
  l->b.module = visit->module;
  if (visit->phase == TWS_PHASE_BACKWARD) {
    backward(l, m);
  } else {
    forward(l, m);
  }
}
