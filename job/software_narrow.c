/* Transformer Engine's tensors of 8 and 4 bits, by its sources (pytorch/module/layernorm_linear.py and linear.py of
 * 2.x):
 *
 *   - A product's input is kept for backward as it was quantized, and of its two layouts (by rows and by columns) the
 *     one that backward reads. Under Megatron's sequence parallelism a rank keeps its own tokens of an input that all
 *     tensor ranks need, and gathers them again in backward: quantized, too, as the norm before writes 8 bits. NVFP4
 *     keeps both layouts of such an input. A plan keeps a byte an element where it keeps the whole input, and 16 bits
 *     where it gathers it again.
 *   - Weights with fp8_param_gather, which Megatron-Bridge's precisions for FP8 and MXFP8 set (mixed_precision.py), are
 *     in 8 bits alone: both layouts, for FP8 on Blackwell one, whose matrix units multiply either layout. Weights of
 *     NVFP4 are in 16 bits, and both layouts in 4 bits are kept with them until the step ends. A plan has 16 bits.
 *
 * A block of 32 elements of MXFP8 has a scale of a byte, one of 16 elements of NVFP4 too. */
#include "job/software_narrow.h"

#include "job/software_kept.h"
#include "models/hardware/runtime.h"

/* Bytes of an element: of an input of which a rank keeps all tokens, of one of which it keeps its own tokens, and of a
 * weight, the latter on Blackwell and on other GPUs. */
typedef struct narrow_bytes {
  double whole, own, weight[2];
} narrow_bytes;
static const narrow_bytes formats[TWS_MATMUL_COUNT] = {
    [TWS_MATMUL_FP8] = {1, 1, {1, 2}},
    [TWS_MATMUL_MXFP8] = {1 + 1.0 / 32, 1 + 1.0 / 32, {2 + 2.0 / 32, 2 + 2.0 / 32}},
    [TWS_MATMUL_NVFP4] = {0.5 + 1.0 / 16, 1 + 2.0 / 16, {3 + 2.0 / 16, 3 + 2.0 / 16}}};
static const double PLANNED_INPUT = 1, PLANNED = 2; /* bytes of an element in a plan: whole inputs, and all others */

int tws_software_keeps_narrow(const tws_config *config) {
  return formats[config->matmul_dtype].whole > 0 && !config->matmul_keeps_wide && config->dtype != TWS_F32;
}

static int recomputes(const tws_config *c, int operation) {
  if (c->recompute != TWS_RECOMPUTE_OPERATIONS || !c->recompute_operations) return 0;
  return (tws_recompute_list(c->recompute_operations) >> operation) & 1;
}

int tws_software_recomputes_activations(const tws_config *config) {
  return config->recompute == TWS_RECOMPUTE_SELECTIVE || recomputes(config, TWS_RECOMPUTED_ACTIVATION);
}

/* Returns 1 if a product of a layer keeps its input, which a module makes, for backward, and no product before it reads
 * the same input. */
static int keeps_input(const tws_job *job, const tws_module *m, const tws_module *first) {
  const tws_config *c = job->config;
  if (m->type != TWS_MODULE_LINEAR || job->network->params[m->param[0]].frozen) return 0;
  const tws_module *before = &job->network->modules[job->network->values[m->in[0]].producer];
  for (const tws_module *other = first; other < m; other++)
    if (other->type == TWS_MODULE_LINEAR && other->in[0] == m->in[0]) return 0;
  if (before->type == TWS_MODULE_NORM) return !recomputes(c, TWS_RECOMPUTED_NORM);
  if (before->type == TWS_MODULE_ATTENTION) return !recomputes(c, TWS_RECOMPUTED_ATTENTION);
  return !tws_software_recomputes_activations(c) && !recomputes(c, TWS_RECOMPUTED_MLP);
}

/* Returns 1 if an operation other than a matrix product reads the value, which then exists in 16 bits, too. */
static int is_read_wide(const tws_network *network, uint32_t value, const tws_module *first, const tws_module *end) {
  for (const tws_module *m = first; m < end; m++)
    for (int i = 0; i < TWS_MODULE_INS; i++)
      if (m->in[i] == value && m->type != TWS_MODULE_LINEAR) return 1;
  return network->values[value].producer == TWS_NONE;
}

double tws_software_narrow_inputs(const tws_job *job, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  const tws_network *network = job->network;
  const narrow_bytes *format = &formats[c->matmul_dtype];
  const tws_module *first = &network->modules[network->layer_first], *end = first + network->layer_stride;
  const int divides = c->tensor_sequence_parallel && tws_job_ranks_along(job, TWS_AXIS_MODEL) > 1;
  double layer = 0;
  if (!tws_profile_runtime(job->profile)->narrow_inputs || !tws_software_keeps_narrow(c)) return 0;
  if (tws_config_recomputes_blocks(c)) return 0;
  for (const tws_module *m = first; m < end; m++) {
    if (is_read_wide(network, m->in[0], first, end) || !keeps_input(job, m, first)) continue;
    const tws_module *before = &network->modules[network->values[m->in[0]].producer];
    const int gathers = divides && before->type == TWS_MODULE_NORM;
    layer += (gathers ? format->own - PLANNED : format->whole - PLANNED_INPUT) * (double)m->in_features;
  }
  return layer * stage->layers * tws_software_in_flight(job, stage->stage) * tws_software_tokens(job) /
         tws_job_ranks_along(job, TWS_AXIS_MODEL);
}

double tws_software_narrow_weights(const tws_job *job, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  const tws_network *network = job->network;
  const int other = tws_profile_generation(job->profile) != TWS_GENERATION_BLACKWELL;
  double weights = 0;
  if (!tws_profile_runtime(job->profile)->narrow_weights || !tws_software_keeps_narrow(c) || c->zero.stage > 2)
    return 0;
  for (uint32_t p = 0; p < network->param_count; p++) {
    const tws_param *param = &network->params[p];
    const tws_module *m = &network->modules[param->module];
    const int multiplies = m->type == TWS_MODULE_LINEAR || m->type == TWS_MODULE_EXPERT_LINEAR;
    if (multiplies && m->layer >= 0 && m->param[0] == p && !param->frozen) weights += (double)tws_param_numel(param);
  }
  /* a stage has the same share of the weights as of all parameters */
  return (formats[c->matmul_dtype].weight[other] - PLANNED) * stage->parameters * weights /
         (double)tws_network_params(network, 0);
}
