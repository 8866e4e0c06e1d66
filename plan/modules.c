/* One visit of a module -> kernels. The same code serves every model: it knows module types, not architectures. */
#include <string.h>

#include "plan/lower.h"

const tws_local_module *tws_local_of(const tws_lower *l, const tws_module *m) {
  return &l->local.modules[m - l->network->modules];
}

int tws_lower_sliced(const tws_lower *l, const tws_module *m) {
  return l->slices > 1 && l->tiles == 1 && tws_local_of(l, m)->split != TWS_SPLIT_NONE;
}

/* Tokens of a visit. */
static int64_t tokens_of(const tws_lower *l, const tws_module *m) {
  uint64_t tokens = m->in[0] != TWS_NONE ? tws_value_tokens(l, m->in[0]) : (uint64_t)l->tokens;
  return (int64_t)tokens / l->tiles;
}

tws_work tws_module_work(const tws_lower *l, const tws_module *m, tws_kernel kernel, uint32_t flags) {
  tws_work work = tws_kernel_work(kernel, l->config->dtype, flags);
  int64_t tokens = tokens_of(l, m), sequence = l->config->sequence_length; /* attention sees whole sequences */
  work.d[0] = tokens;
  switch (m->type) {
    case TWS_MODULE_LINEAR:
      work.d[1] = m->out_features;
      work.d[2] = m->in_features;
      break;
    case TWS_MODULE_ATTENTION:
      work.d[0] = tokens / sequence;
      work.d[1] = sequence;
      work.d[2] = m->heads;
      work.d[3] = m->kv_heads;
      work.d[4] = m->head_size;
      break;
    case TWS_MODULE_ROPE:
      work.d[1] = m->heads;
      work.d[2] = m->kv_heads;
      work.d[3] = m->head_size;
      work.d[4] = sequence;
      memcpy(work.f, m->rope, sizeof work.f);
      break;
    case TWS_MODULE_NORM:
      work.d[1] = m->out_features;
      work.f[0] = m->epsilon;
      if (m->rms) work.flags |= TWS_RMS;
      break;
    case TWS_MODULE_GELU:
    case TWS_MODULE_ADD:
      work.d[0] = tokens * m->out_features;
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
  uint64_t tokens = (uint64_t)l->tokens, part = tokens / (uint64_t)l->tiles;
  return tws_read(buffer, (uint64_t)l->b.micro_batch * tokens + part * (uint64_t)l->tile, part);
}

void tws_position_rows(const tws_lower *l, uint32_t param, int64_t *first, int64_t *rows) {
  *first = 0;
  *rows = l->network->params[param].rows;
  if (l->axes.sequence == 1) return;
  *rows = l->config->sequence_length / l->axes.sequence;
  *first = *rows * l->axes.sequence_index;
}

static void forward_embedding(tws_lower *l, const tws_module *m) {
  tws_work work = tws_kernel_work(TWS_KERNEL_EMBEDDING, l->config->dtype, 0);
  const tws_local_module *local = tws_local_of(l, m);
  tws_operand operands[4] = {tws_token_slice(l, l->b.plan->input_ids), tws_zero_param(l, m->param[0])};
  int n = 2;
  work.d[0] = l->tokens;
  work.d[1] = m->out_features;
  work.d[2] = l->network->params[m->param[0]].rows;
  work.d[4] = l->config->sequence_length / l->axes.sequence;
  const tws_arguments arguments = {{(double)local->first_row}};
  if (m->param[1] != TWS_NONE && !local->skips_vector) {
    int64_t first, width = m->out_features;
    tws_operand positions = tws_zero_param(l, m->param[1]);
    tws_position_rows(l, m->param[1], &first, &work.d[3]);
    operands[n++] =
        tws_read(positions.buffer, positions.offset + (uint64_t)(first * width), (uint64_t)(work.d[3] * width));
  }
  operands[n++] = tws_value_make(l, m->out[0]);
  tws_lower_compute_with(l, &work, &arguments, operands, n);
}

/* The mean over the global batch, of which micro-batches and ranks add their parts. */
static double loss_weight(const tws_lower *l) {
  return 1.0 / ((double)l->tokens * (double)l->config->accumulation_steps * l->zero.ranks);
}

int tws_lower_scaled(tws_lower *l, tws_work *work, tws_operand *operands, int count) {
  if (l->config->dtype != TWS_F16 || l->evaluates) return count;
  work->flags |= TWS_SCALED;
  operands[count] = tws_all(&l->b, l->b.plan->hyper, TWS_READ);
  return count + 1;
}

/* Each rank has some columns of the logits: what the softmax needs of them is gathered first. */
static void forward_split_loss(tws_lower *l, const tws_module *m) {
  const tws_local_module *local = tws_local_of(l, m);
  tws_work work = tws_kernel_work(TWS_KERNEL_VOCABULARY_STATS, l->config->dtype, 0);
  int64_t tokens = tokens_of(l, m);
  work.d[0] = tokens;
  work.d[1] = local->rows;
  work.d[2] = m->out_features;
  const tws_arguments columns = {{(double)local->first_row}};
  tws_operand targets = tws_token_slice(l, l->b.plan->targets);
  tws_operand stats = tws_lower_scratch(l, "loss statistics", TWS_F32, 3 * (uint64_t)tokens);
  tws_operand first[3] = {tws_value_read(l, m->in[0]), targets, stats};
  tws_lower_compute_with(l, &work, &columns, first, 3);
  tws_operand all = tws_exchange_gather(l, stats, "loss statistics of all ranks");
  work.code = TWS_KERNEL_VOCABULARY_LOSS;
  work.d[3] = l->axes.tensor;
  const double weight = loss_weight(l);
  const tws_arguments arguments = {{weight, weight / l->axes.tensor, (double)local->first_row}};
  tws_operand second[5] = {tws_value_take(l, m->in[0], m->out[0], TWS_READ_WRITE), targets, all,
                           tws_update(l->b.plan->metrics, TWS_METRIC_LOSS, 2)};
  const int count = tws_lower_scaled(l, &work, second, 4);
  tws_lower_compute_with(l, &work, &arguments, second, count);
}

static void forward_loss(tws_lower *l, const tws_module *m) {
  if (tws_local_of(l, m)->split != TWS_SPLIT_NONE) {
    forward_split_loss(l, m);
    return;
  }
  tws_work work = tws_kernel_work(TWS_KERNEL_CROSS_ENTROPY, l->config->dtype, 0);
  work.d[0] = tokens_of(l, m);
  work.d[1] = l->network->vocabulary;
  work.d[2] = l->network->padded_vocabulary;
  const double weight = loss_weight(l);
  tws_operand operands[4];
  operands[0] = tws_value_take(l, m->in[0], m->out[0], TWS_READ_WRITE);
  operands[1] = tws_token_slice(l, l->b.plan->targets);
  operands[2] = tws_update(l->b.plan->metrics, TWS_METRIC_LOSS, 2);
  const int count = tws_lower_scaled(l, &work, operands, 3);
  tws_lower_compute_with(l, &work, &(tws_arguments){{weight, weight}}, operands, count);
}

/* A product cut into slices of tokens, so that what follows one slice overlaps with the next. */
static void forward_linear(tws_lower *l, const tws_module *m) {
  tws_work work = tws_module_work(l, m, TWS_KERNEL_LINEAR, 0);
  tws_operand operands[5] = {tws_value_read(l, m->in[0]), tws_zero_param(l, m->param[0])};
  int first_out, n = 2;
  if (tws_local_of(l, m)->skips_vector) work.flags &= ~(uint32_t)TWS_BIAS;
  if (work.flags & TWS_BIAS) operands[n++] = tws_zero_param(l, m->param[1]);
  first_out = n;
  if (l->fused_with) {
    work.flags |= TWS_GELU;
    operands[n++] = tws_value_make(l, l->fused_with->out[0]);
  }
  operands[n++] = tws_value_make(l, m->out[0]);
  if (!tws_lower_sliced(l, m)) {
    tws_lower_compute(l, &work, operands, n);
    return;
  }
  tws_operand whole[5];
  memcpy(whole, operands, sizeof whole);
  for (int k = first_out; k < n; k++) tws_lower_slice(l, whole[k].buffer);
  work.d[0] /= l->slices;
  for (int i = 0; i < l->slices; i++) {
    operands[0] = tws_operand_slice(l, whole[0], i);
    for (int k = first_out; k < n; k++) operands[k] = tws_operand_slice(l, whole[k], i);
    tws_lower_compute(l, &work, operands, n);
  }
}

static void forward_norm(tws_lower *l, const tws_module *m) {
  tws_work work = tws_module_work(l, m, TWS_KERNEL_NORM, 0);
  tws_operand operands[7] = {tws_value_read(l, l->fused_with ? l->fused_with->in[0] : m->in[0]),
                             tws_zero_param(l, m->param[0])};
  int n = 2;
  if (m->param[1] != TWS_NONE) operands[n++] = tws_zero_param(l, m->param[1]);
  operands[n++] = tws_value_make(l, m->out[0]);
  operands[n++] = tws_value_make(l, m->out[1]);
  if (l->fused_with) {
    work.flags |= TWS_RESIDUAL;
    operands[n++] = tws_value_read(l, l->fused_with->in[1]);
    operands[n++] = tws_value_take(l, l->fused_with->in[1], l->fused_with->out[0], TWS_WRITE);
  }
  tws_lower_compute(l, &work, operands, n);
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
    case TWS_MODULE_LINEAR:
      forward_linear(l, m);
      return;
    case TWS_MODULE_EXCHANGE:
      tws_exchange_forward(l, m);
      return;
    case TWS_MODULE_NORM:
      forward_norm(l, m);
      return;
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
  if (visit->module == TWS_NONE || visit->fused_away || l->b.failed != TWS_OK) return;
  const tws_module *m = &l->network->modules[visit->module];
  l->b.phase = (tws_phase)visit->phase;
  l->b.module = l->local.modules[visit->module].origin;
  l->tile = visit->tile;
  l->tiles = visit->tiles;
  l->fused_with = visit->fused_with == TWS_NONE ? NULL : &l->network->modules[visit->fused_with];
  if (visit->phase == TWS_PHASE_BACKWARD) {
    tws_lower_backward(l, m);
  } else {
    forward(l, m);
  }
  l->tile = 0;
  l->tiles = 1;
  l->fused_with = NULL;
}
