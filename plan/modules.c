/* Lowers one visit of a module to kernels. The same code serves every model: it depends on module types, not on
 * architectures. */
#include <string.h>

#include "models/network/module.h"
#include "models/operator.h"
#include "models/quantized.h"
#include "models/zigzag.h"
#include "plan/cache.h"
#include "plan/attention_parts.h"
#include "plan/lower.h"
#include "plan/zero.h"

/* Emits the kernel that adds the rows of a table that a network input selects to the module's output. The first row of
 * the table is the row of id `first_id`. */
static void add_rows(tws_lower *l, const tws_module *m, uint32_t input, uint32_t param, int64_t first_id) {
  tws_work work = tws_kernel_work(TWS_KERNEL_EMBEDDING, l->config->dtype, TWS_ACCUMULATE);
  tws_operand x = tws_value_read(l, m->out[0]);
  x.access = TWS_READ_WRITE;
  const tws_operand operands[3] = {tws_input_read(l, input), tws_zero_param(l, param), x};
  work.d[0] = tws_module_rows(l, m);
  work.d[1] = m->out_features;
  work.d[2] = l->network->params[param].rows;
  tws_lower_compute_with(l, &work, &(tws_arguments){{(double)first_id}}, operands, 3);
}

/* Emits the embedding kernels for ids and positions, one for each part of the rank's tokens that has successive
 * positions. */
static void embed_parts(tws_lower *l, const tws_module *m, tws_work *work, const tws_arguments *arguments,
                        const tws_operand whole[4]) {
  const tws_operand positions = tws_zero_param(l, m->param[1]);
  const int parts = tws_token_parts(l);
  tws_operand operands[4] = {whole[0], whole[1], whole[2], whole[3]};
  work->d[0] /= parts;
  work->d[3] = work->d[4] = work->d[0];
  for (int i = 0; i < parts; i++) {
    operands[0] = tws_part_of_tokens(l, whole[0], i);
    operands[2] = tws_positions_of_part(l, m, positions, i);
    operands[3] = tws_part_of_tokens(l, whole[3], i);
    tws_lower_compute_with(l, work, arguments, operands, 4);
  }
}

static void forward_embedding(tws_lower *l, const tws_module *m) {
  tws_work work = tws_kernel_work(TWS_KERNEL_EMBEDDING, l->config->dtype, 0);
  const tws_local_module *local = tws_local_of(l, m);
  tws_operand operands[4] = {tws_input_read(l, m->input[0]), tws_zero_param(l, m->param[0])};
  int n = 2;
  work.d[0] = tws_module_rows(l, m);
  work.d[1] = m->out_features;
  work.d[2] = l->network->params[m->param[0]].rows;
  work.d[4] = l->values.whole_sequence[m->out[0]] / l->sharding.position.ranks[TWS_AXIS_SEQUENCE];
  /* number of rows before the row of position 0, if the table contains only positions; otherwise 0 */
  const int64_t skipped = m->param[1] == TWS_NONE ? m->first_position : 0;
  const tws_arguments arguments = {{(double)(local->first_row - skipped), (double)tws_token_gap(l)}};
  /* 1: documents are packed into a sample, and each token's position in its document is an input of the network */
  const int of_documents = m->input[2] != TWS_NONE;
  if (m->param[1] != TWS_NONE && !local->skips_vector && !of_documents) {
    int64_t first, width = m->out_features;
    tws_operand positions = tws_zero_param(l, m->param[1]);
    tws_position_rows(l, m, &first, &work.d[3]);
    operands[n++] =
        tws_read(positions.buffer, positions.offset + (uint64_t)(first * width), (uint64_t)(work.d[3] * width));
  }
  operands[n++] = tws_value_write(l, m->out[0]);
  if (n == 4 && tws_has_token_parts(l))
    embed_parts(l, m, &work, &arguments, operands);
  else
    tws_lower_compute_with(l, &work, &arguments, operands, n);
  if (local->skips_vector) return;
  if (of_documents) add_rows(l, m, m->input[2], m->param[1], -m->first_position);
  if (m->param[2] != TWS_NONE) add_rows(l, m, m->input[1], m->param[2], 0);
}

/* Returns the two metrics of one of the network's losses: the loss, and the share of ignored targets. If there are
 * several losses, these shares are computed before the first loss, since gradients depend on them. */
static tws_operand loss_slots(tws_lower *l, const tws_module *m, tws_work *work) {
  if (tws_network_losses(l->b.plan->network) < 2) return tws_update(l->b.plan->metrics, TWS_METRIC_LOSS, 2);
  work->flags |= TWS_COUNTED;
  return tws_update(l->b.plan->metrics, tws_loss_slot(l->network, m), 2);
}

/* Returns the factor of a loss of one row in the step's loss: that of its mean, times its weight among several
 * losses. */
static double loss_factor(const tws_lower *l, const tws_module *m) {
  return tws_loss_weight(l, m) * (m->scale > 0 ? m->scale : 1);
}

/* Lowers a loss for which each rank has some columns of the logits: the statistics of each rank's columns that the
 * softmax needs are gathered first. */
static void forward_split_loss(tws_lower *l, const tws_module *m) {
  const tws_local_module *local = tws_local_of(l, m);
  tws_work work = tws_kernel_work(TWS_KERNEL_VOCABULARY_STATS, l->config->dtype, 0);
  int64_t tokens = tws_module_rows(l, m);
  work.d[0] = tokens;
  work.d[1] = local->rows;
  work.d[2] = m->out_features;
  const tws_arguments columns = {{(double)local->first_row}};
  tws_operand targets = tws_input_read(l, m->input[0]);
  tws_operand stats = tws_lower_scratch(l, "loss statistics", TWS_F32, 3 * (uint64_t)tokens);
  tws_operand first[3] = {tws_value_read(l, m->in[0]), targets, stats};
  tws_lower_compute_with(l, &work, &columns, first, 3);
  tws_operand all = tws_exchange_gather(l, stats, "loss statistics of all ranks");
  work.code = TWS_KERNEL_VOCABULARY_LOSS;
  work.d[3] = l->sharding.position.ranks[TWS_AXIS_MODEL];
  const double weight = loss_factor(l, m);
  const tws_arguments arguments = {
      {weight * tws_gradient_weight(l), weight / l->sharding.position.ranks[TWS_AXIS_MODEL], (double)local->first_row}};
  tws_operand second[5] = {tws_value_reuse(l, m->in[0], m->out[0], TWS_READ_WRITE), targets, all,
                           loss_slots(l, m, &work)};
  const int count = tws_lower_scaled(l, &work, second, 4);
  tws_lower_compute_with(l, &work, &arguments, second, count);
}

static void forward_loss(tws_lower *l, const tws_module *m) {
  if (tws_local_of(l, m)->split != TWS_SPLIT_NONE) {
    forward_split_loss(l, m);
    return;
  }
  static const tws_kernel kernels[] = {[TWS_LOSS_SOFTMAX] = TWS_KERNEL_CROSS_ENTROPY,
                                       [TWS_LOSS_SIGMOIDS] = TWS_KERNEL_BINARY_CROSS_ENTROPY,
                                       [TWS_LOSS_SQUARES] = TWS_KERNEL_MEAN_SQUARED_ERROR};
  tws_work work = tws_kernel_work(kernels[m->loss], l->config->dtype, 0);
  const int64_t rows = tws_module_rows(l, m), tokens_of_one = l->values.whole_sequence[m->in[0]];
  /* in_features 0: the classes are the tokens of the sample */
  work.d[0] = m->in_features > 0 ? rows : rows / tokens_of_one;
  work.d[1] = m->in_features > 0 ? m->in_features : tokens_of_one;
  work.d[2] = m->in_features > 0 ? m->out_features : tokens_of_one;
  /* each tensor-parallel rank adds the loss divided by their number to the metrics */
  const double weight = loss_factor(l, m);
  tws_operand operands[4];
  operands[0] = tws_value_reuse(l, m->in[0], m->out[0], TWS_READ_WRITE);
  operands[1] = tws_input_read(l, m->input[0]);
  operands[2] = loss_slots(l, m, &work);
  const int count = tws_lower_scaled(l, &work, operands, 3);
  const tws_arguments arguments = {
      {weight * tws_gradient_weight(l), weight / l->sharding.position.ranks[TWS_AXIS_MODEL]}};
  tws_lower_compute_with(l, &work, &arguments, operands, count);
}

/* Returns 1 if this product has to write the 8-bit copy of its input, and writes the operand of the copy to *operand.
 * The first product that reads a value writes the copy, which later products share. */
static int keep_narrow(tws_lower *l, const tws_module *m, tws_operand *operand) {
  const uint32_t value = m->in[0];
  if (!tws_lower_narrow(l, m) || l->values.narrow[value] != TWS_NONE) return 0;
  tws_value_place_narrow(l, value,
                         tws_builder_buffer(&l->b, l->network->values[value].name, TWS_CATEGORY_ACTIVATION, TWS_U8,
                                            tws_value_elements(l, value), 0));
  *operand = tws_all(&l->b, l->values.narrow[value], TWS_WRITE);
  return 1;
}

/* Lowers a product with a weight that an inference program stores in quantized codes, and returns 1; returns 0 if the
 * weight is not quantized, or if this rank does not have all its codes. */
static int forward_coded(tws_lower *l, const tws_module *m) {
  const tws_quantized *q = &l->b.plan->quantized;
  const uint32_t weight = m->param[0];
  if (!tws_program_serves(l->b.plan->program) || !tws_is_quantized(l, weight) || l->zero.stage == 3 || q->group > 0 ||
      tws_module_weight_tiles(l, (uint32_t)(m - l->network->modules)) > 1)
    return 0;
  tws_work work = tws_module_work(l, m, TWS_KERNEL_CODED_LINEAR, 0);
  tws_operand operands[6] = {tws_value_read(l, m->in[0])};
  tws_quantized_stored(q, l->zero.flat_offset[weight], (uint64_t)tws_param_numel(&l->network->params[weight]),
                       operands + 1);
  int n = 3;
  work.d[3] = q->block;
  work.d[4] = q->type;
  if (tws_local_of(l, m)->skips_vector) work.flags &= ~(uint32_t)TWS_BIAS;
  if (work.flags & TWS_BIAS) operands[n++] = tws_zero_param(l, m->param[1]);
  operands[n++] = tws_value_write(l, m->out[0]);
  tws_lower_compute(l, &work, operands, n);
  if (!l->at.fused_with) return 1;
  tws_work gelu = tws_kernel_work(TWS_KERNEL_GELU, l->config->dtype, 0);
  const tws_operand both[2] = {tws_value_read(l, m->out[0]), tws_value_write(l, l->at.fused_with->out[0])};
  gelu.d[0] = (int64_t)both[0].count;
  tws_lower_compute(l, &gelu, both, 2);
  return 1;
}

static void forward_product(tws_lower *l, const tws_module *m) {
  tws_work work = tws_module_work(l, m, TWS_KERNEL_LINEAR, 0);
  const tws_outputs outputs = tws_visit_outputs(l, m);
  tws_operand operands[8];
  tws_operand scales[2];
  int first_out, n = 2;
  work.d[1] = outputs.count;
  if (tws_is_float8(l, m)) {
    const tws_float8 x = tws_float8_input(l, m), weight = tws_float8_weight(l, m);
    work.flags |= TWS_FP8;
    operands[0] = x.rows, operands[1] = weight.rows;
    scales[0] = x.scale, scales[1] = weight.scale;
  } else {
    operands[0] = tws_value_read(l, m->in[0]);
    operands[1] = tws_zero_param(l, tws_visit_param(l, m->param[0], l->at.weight_tile));
  }
  if (tws_local_of(l, m)->skips_vector) work.flags &= ~(uint32_t)TWS_BIAS;
  if (work.flags & TWS_BIAS) operands[n++] = tws_outputs_of(tws_zero_param(l, m->param[1]), outputs);
  first_out = n;
  if (l->at.fused_with) {
    work.flags |= TWS_GELU;
    operands[n++] = tws_value_write(l, l->at.fused_with->out[0]);
  }
  const int outputs_at = n++;
  operands[outputs_at] = tws_outputs_make(l, m);
  const int narrow = keep_narrow(l, m, &operands[n]), last = n - 1 + narrow;
  if (narrow) work.flags |= TWS_NARROW, n++;
  for (int i = 0; i < 2 && work.flags & TWS_FP8; i++) operands[n++] = scales[i];
  if (!tws_lower_sliced(l, m)) {
    tws_lower_compute(l, &work, operands, n);
    tws_outputs_put(l, m, operands[outputs_at]);
    return;
  }
  tws_operand whole[8];
  memcpy(whole, operands, sizeof whole);
  for (int k = first_out; k <= last; k++) tws_lower_slice(l, whole[k].buffer);
  work.d[0] /= l->streams.slices;
  for (int i = 0; i < l->streams.slices; i++) {
    operands[0] = tws_operand_slice(l, whole[0], i);
    for (int k = first_out; k <= last; k++) operands[k] = tws_operand_slice(l, whole[k], i);
    tws_lower_compute(l, &work, operands, n);
  }
}

/* Lowers a module whose kernel this program omits: the input that the kernel would update in place becomes the
 * output. */
static void pass_on(tws_lower *l, const tws_module *m, const tws_module_kernel *kernel) {
  for (const tws_binding *b = kernel->binding; b->source != TWS_BIND_END; b++)
    if (b->source == TWS_BIND_UPDATE && l->b.failed == TWS_OK) tws_value_reuse(l, m->in[b->index], m->out[0], TWS_READ);
}

/* Lowers the forward kernels of a module's row in modules.def. */
static void forward_kernels(tws_lower *l, const tws_module *m) {
  const int drops_none = m->type == TWS_MODULE_DROPOUT && !l->config->dropout;
  const int program = l->extent.evaluates || drops_none ? TWS_IN_EVALUATION : TWS_IN_TRAINING;
  for (const tws_module_kernel *k = tws_module_row_of(m->type)->forward; k->binding[0].source; k++)
    if (k->programs & program)
      tws_lower_kernel(l, m, k);
    else
      pass_on(l, m, k);
}

/* Lowers a matrix product, in slices of tokens, so that operations that read one slice overlap with the product of the
 * next; or for one tile of the weight. The activation after the product is part of its kernel, unless the activation's
 * own kernel can write 8-bit codes. */
static void forward_linear(tws_lower *l, const tws_module *m) {
  const tws_module *activation = l->at.fused_with;
  if (forward_coded(l, m)) return;
  if (!activation || tws_lower_sliced(l, m) || !tws_float8_can_cast(l, activation->out[0])) {
    forward_product(l, m);
    return;
  }
  const uint32_t module = l->b.module;
  l->at.fused_with = NULL;
  forward_product(l, m);
  l->b.module = l->local.modules[activation - l->network->modules].origin;
  forward_kernels(l, activation);
  l->b.module = module;
}

static void forward_norm(tws_lower *l, const tws_module *m) {
  tws_work work = tws_module_work(l, m, TWS_KERNEL_NORM, 0);
  tws_operand operands[10] = {tws_value_read(l, l->at.fused_with ? l->at.fused_with->in[0] : m->in[0])};
  tws_float8_cast cast;
  const int casts = tws_float8_casts_output(l, m->out[0], 1, &cast);
  int n = 1;
  if (m->param[0] != TWS_NONE) operands[n++] = tws_zero_param(l, m->param[0]);
  if (m->param[1] != TWS_NONE) operands[n++] = tws_zero_param(l, m->param[1]);
  operands[n++] = casts ? cast.codes[0] : tws_value_write(l, m->out[0]);
  operands[n++] = tws_value_write(l, m->out[1]);
  if (l->at.fused_with) {
    work.flags |= TWS_RESIDUAL;
    operands[n++] = tws_value_read(l, l->at.fused_with->in[1]);
    operands[n++] = tws_value_reuse(l, l->at.fused_with->in[1], l->at.fused_with->out[0], TWS_WRITE);
  }
  if (casts) {
    work.flags |= TWS_FP8;
    operands[n++] = cast.amax;
    operands[n++] = cast.scale;
    operands[n++] = cast.largest;
  } else if (tws_float8_largest(l, m->out[0], &operands[n])) {
    work.flags |= TWS_LARGEST, n++;
  }
  tws_lower_compute(l, &work, operands, n);
}

static void forward_table(tws_lower *l, const tws_module *m) {
  tws_builder_copy(&l->b, TWS_STREAM_COMPUTE, tws_zero_param(l, m->param[0]), tws_value_write(l, m->out[0]));
}

static void forward_detach(tws_lower *l, const tws_module *m) {
  tws_value_place(l, m->out[0], l->values.buffer[m->in[0]]);
}

/* Lowers dropout. In an evaluation the output is the input itself. */
static void forward_dropped(tws_lower *l, const tws_module *m) {
  tws_arguments arguments;
  if (l->extent.evaluates || !l->config->dropout) {
    tws_value_place(l, m->out[0], l->values.buffer[m->in[0]]);
    return;
  }
  const tws_operand x = tws_value_read(l, m->in[0]);
  tws_operand operands[2] = {tws_value_write(l, m->out[0]), tws_hyper_of(l->b.plan->hyper, 0)};
  const tws_work work = tws_module_work(l, m, TWS_KERNEL_DROPOUT, 0);
  tws_builder_copy(&l->b, TWS_STREAM_COMPUTE, x, operands[0]);
  operands[0].access = TWS_READ_WRITE;
  tws_dropout_arguments(l, m, TWS_KERNEL_DROPOUT, &arguments);
  tws_lower_compute_with(l, &work, &arguments, operands, 2);
}

/* Forward functions of the module types that need more code than their row in modules.def: split vocabularies, slices,
 * fusion with adjacent modules. */
static void (*const own_forward[TWS_MODULE_TYPE_COUNT])(tws_lower *l, const tws_module *m) = {
    [TWS_MODULE_EMBEDDING] = forward_embedding, [TWS_MODULE_LOSS] = forward_loss,
    [TWS_MODULE_LINEAR] = forward_linear,       [TWS_MODULE_EXCHANGE] = tws_exchange_forward,
    [TWS_MODULE_ROUTER] = tws_router_forward,   [TWS_MODULE_NORM] = forward_norm,
    [TWS_MODULE_DROPPED] = forward_dropped,     [TWS_MODULE_TABLE] = forward_table,
    [TWS_MODULE_DETACH] = forward_detach};

static void forward(tws_lower *l, const tws_module *m) {
  if (tws_cache_skips(l, m)) return;
  if (tws_cache_has(l, m))
    tws_cache_attention(l, m);
  else if (m->type == TWS_MODULE_LOSS && tws_program_serves(l->b.plan->program))
    tws_cache_scores(l, m);
  else if (m->type == TWS_MODULE_ATTENTION && l->sharding.ring)
    tws_ring_forward(l, m);
  else if (m->type == TWS_MODULE_ATTENTION && l->at.chunk_role)
    tws_chunked_forward(l, m);
  else if (own_forward[m->type])
    own_forward[m->type](l, m);
  else
    forward_kernels(l, m);
}

void tws_lower_visit(tws_lower *l, const tws_visit *visit) {
  if (visit->module == TWS_NONE || visit->fused_away || l->b.failed != TWS_OK) return;
  const tws_module *m = &l->network->modules[visit->module];
  tws_lower_at_visit(l, visit);
  l->at.tile = visit->tile;
  l->at.tiles = visit->tiles;
  l->at.chunk_role = visit->chunk_role;
  l->at.weight_tile = visit->weight_tile;
  l->at.fused_with = visit->fused_with == TWS_NONE ? NULL : &l->network->modules[visit->fused_with];
  l->at.sums_for = visit->sums_for == TWS_NONE ? NULL : &l->network->modules[visit->sums_for];
  if (visit->phase == TWS_PHASE_BACKWARD) {
    tws_lower_backward(l, m);
  } else {
    forward(l, m);
  }
  l->at.tile = 0;
  l->at.tiles = 1;
  l->at.chunk_role = TWS_CHUNK_NONE;
  l->at.weight_tile = 0;
  l->at.fused_with = NULL;
  l->at.sums_for = NULL;
}
