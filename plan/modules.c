/* One visit of a module -> kernels. The same code serves every model: it knows module types, not architectures. */
#include <string.h>

#include "plan/lower.h"

tws_work tws_module_work(const tws_lower *l, const tws_module *m, tws_kernel kernel, uint32_t flags) {
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

tws_operand tws_token_slice(tws_lower *l, uint32_t buffer) {
  return tws_read(buffer, (uint64_t)l->b.micro_batch * (uint64_t)l->tokens, (uint64_t)l->tokens);
}

static void forward_embedding(tws_lower *l, const tws_module *m) {
  tws_work work = tws_kernel_work(TWS_KERNEL_EMBEDDING, l->config->dtype, 0);
  const tws_param *wte = &l->network->params[m->param[0]];
  tws_operand operands[4] = {tws_token_slice(l, l->b.plan->input_ids), tws_zero_param(l, m->param[0])};
  int n = 2;
  work.d[0] = l->tokens;
  work.d[1] = m->out_features;
  work.d[2] = wte->rows;
  work.d[4] = l->config->sequence_length;
  if (m->param[1] != TWS_NONE) {
    work.d[3] = l->network->params[m->param[1]].rows;
    operands[n++] = tws_zero_param(l, m->param[1]);
  }
  operands[n++] = tws_value_make(l, m->out[0]);
  tws_lower_compute(l, &work, operands, n);
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
  operands[0] = tws_value_take(l, m->in[0], m->out[0], TWS_READ_WRITE);
  operands[1] = tws_token_slice(l, l->b.plan->targets);
  operands[2] = tws_update(l->b.plan->metrics, TWS_METRIC_LOSS, 2);
  tws_lower_compute(l, &work, operands, 3);
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
      work = tws_module_work(l, m, m->type == TWS_MODULE_NORM ? TWS_KERNEL_NORM : TWS_KERNEL_LINEAR, 0);
      operands[n++] = tws_value_read(l, m->in[0]);
      operands[n++] = tws_zero_param(l, m->param[0]);
      if (m->param[1] != TWS_NONE) operands[n++] = tws_zero_param(l, m->param[1]);
      operands[n++] = tws_value_make(l, m->out[0]);
      if (m->type == TWS_MODULE_NORM) operands[n++] = tws_value_make(l, m->out[1]);
      break;
    case TWS_MODULE_ROPE:
      work = tws_module_work(l, m, TWS_KERNEL_ROPE, 0);
      operands[n++] = tws_value_take(l, m->in[0], m->out[0], TWS_READ_WRITE);
      break;
    case TWS_MODULE_ATTENTION:
      work = tws_module_work(l, m, TWS_KERNEL_ATTENTION, 0);
      operands[n++] = tws_value_read(l, m->in[0]);
      operands[n++] = tws_value_make(l, m->out[0]);
      operands[n++] = tws_value_make(l, m->out[1]);
      operands[n++] = tws_lower_workspace(l, &work);
      break;
    case TWS_MODULE_GELU:
    case TWS_MODULE_SWIGLU:
      work = tws_module_work(l, m, m->type == TWS_MODULE_GELU ? TWS_KERNEL_GELU : TWS_KERNEL_SWIGLU, 0);
      operands[n++] = tws_value_read(l, m->in[0]);
      operands[n++] = tws_value_make(l, m->out[0]);
      break;
    case TWS_MODULE_ADD:
      work = tws_module_work(l, m, TWS_KERNEL_ADD, 0);
      operands[n++] = tws_value_read(l, m->in[0]);
      operands[n++] = tws_value_read(l, m->in[1]);
      operands[n++] = tws_value_take(l, m->in[1], m->out[0], TWS_WRITE);
      break;
    default:
      tws_builder_fail(&l->b, TWS_INTERNAL, "a module type has no forward");
      return;
  }
  tws_lower_compute(l, &work, operands, n);
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
