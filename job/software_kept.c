#include "job/software_kept.h"

#include "models/hardware/runtime.h"
#include "plan/pipeline_schedule.h"

double tws_software_tokens(const tws_job *job) {
  const tws_config *c = job->config;
  return (double)c->micro_batch_size * (double)c->sequence_length / tws_job_ranks_along(job, TWS_AXIS_SEQUENCE);
}

double tws_software_in_flight(const tws_job *job, int stage) {
  const int stages = tws_job_stages(job);
  if (stages < 2) return 1;
  const tws_pipeline_shape shape = tws_pipeline_shape_of(job->config, stages, job->config->accumulation_steps);
  return tws_pipeline_in_flight(&shape, stage) / (double)shape.virtual_stages;
}

int tws_software_casts(const tws_job *job) {
  const tws_config *c = job->config;
  return tws_profile_runtime(job->profile)->casts_weights && c->dtype != TWS_F32 && !tws_config_half_masters(c) &&
         c->lora.r == 0;
}

/* The properties of a job on which the bytes that a module keeps depend. */
typedef struct keeper {
  const tws_network *network;
  const tws_runtime_keeps *keeps;
  double number; /* bytes of a number of the plan's type */
} keeper;

static const tws_module *producer_of(const tws_network *network, uint32_t value) {
  return &network->modules[network->values[value].producer];
}

/* Returns 1 if the module's input is kept for backward anyway: attention keeps its output, and linear modules with the
 * same quantized input keep it once. */
static int is_kept_anyway(const tws_network *network, const tws_module *m) {
  if (producer_of(network, m->in[0])->type == TWS_MODULE_ATTENTION) return 1;
  for (const tws_module *other = m; other-- > network->modules && other->layer == m->layer;)
    if (other->type == TWS_MODULE_LINEAR && other->in[0] == m->in[0] && network->params[other->param[0]].code_type > 0)
      return 1;
  return 0;
}

/* Returns the number of the model's own tensors that a plan's parameter joins. */
static int parts_of(const tws_param *param) {
  const int parts = (param->fused[0] > 0) + (param->fused[1] > 0) + (param->fused[2] > 0);
  return parts > 1 && param->groups == 0 ? parts : 1;
}

/* Returns 1 if an earlier linear layer of the same layer reads the same input. */
static int is_read_before(const tws_network *network, const tws_module *m, int adapters) {
  for (const tws_module *other = m; other-- > network->modules && other->layer == m->layer;)
    if (other->type == TWS_MODULE_LINEAR && other->in[0] == m->in[0] &&
        (!adapters || !network->params[other->param[0]].frozen))
      return 1;
  return 0;
}

/* Returns the bytes for a projection of a norm's output if each projection casts it: its own copies, of which a plan
 * has one for all projections. */
static double cast_bytes(const keeper *k, const tws_module *m) {
  const tws_param *weight = &k->network->params[m->param[0]];
  if (!(k->keeps->cast_input > 0) || weight->frozen || producer_of(k->network, m->in[0])->type != TWS_MODULE_NORM)
    return 0;
  const double shared = is_read_before(k->network, m, 0) ? 0 : k->number;
  return (k->keeps->cast_input * parts_of(weight) - shared) * (double)m->in_features;
}

/* Returns the bytes for the first product of an adapter, lora_A, whose input a plan keeps once for all adapters that
 * read it: each one's own copy of it, or the mask and the output of its dropout layer. */
static double adapter_bytes(const keeper *k, const tws_module *m) {
  const tws_runtime_keeps *keeps = k->keeps;
  const tws_module *before = producer_of(k->network, m->in[0]);
  const double features = (double)m->in_features, parts = parts_of(&k->network->params[m->param[0]]);
  if (!keeps->adapters_apart) return 0;
  if (before->type == TWS_MODULE_DROPPED) {
    const double copy = keeps->adapter_input > 0 ? keeps->adapter_input : k->number;
    return ((keeps->dropout_mask + copy) * parts - keeps->dropout_mask - k->number) * features;
  }
  if (!(keeps->adapter_input > 0)) return 0;
  const int kept = before->type == TWS_MODULE_ATTENTION || is_read_before(k->network, m, 1);
  return (keeps->adapter_input * parts - (kept ? 0 : k->number)) * features;
}

/* Returns 1 for the first product of an adapter: a trained linear layer whose base is frozen. */
static int is_adapter(const tws_network *network, const tws_module *m) {
  const tws_module *next = m + 1, *end = network->modules + network->module_count;
  while (next < end && next->type == TWS_MODULE_MULTIPLY) next++;
  return next < end && next->type == TWS_MODULE_LOW_RANK && !network->params[m->param[0]].frozen;
}

static double linear_bytes(const keeper *k, const tws_module *m) {
  if (is_adapter(k->network, m)) return adapter_bytes(k, m);
  if (k->network->params[m->param[0]].code_type == 0) return cast_bytes(k, m);
  return is_kept_anyway(k->network, m) ? 0 : k->keeps->quantized_input * (double)m->in_features;
}

static double norm_bytes(const keeper *k, const tws_module *m) {
  const int trained = m->param[0] != TWS_NONE && !k->network->params[m->param[0]].frozen;
  return m->rms ? (k->keeps->norm_input + (trained ? k->keeps->normalized : 0)) * (double)m->out_features : 0;
}

/* Returns the bytes per token that a module of a layer keeps for backward. */
static double kept_bytes(const keeper *k, const tws_module *m) {
  const tws_runtime_keeps *keeps = k->keeps;
  switch (m->type) {
    case TWS_MODULE_NORM:
      return norm_bytes(k, m);
    case TWS_MODULE_ROPE:
      return keeps->rotated * (double)(m->heads + m->kv_heads) * m->head_size;
    case TWS_MODULE_ATTENTION: /* keys and values of all heads in place of those that are shared */
      return keeps->repeated_keys * 2 * (double)(m->heads - m->kv_heads) * m->head_size;
    case TWS_MODULE_SWIGLU:
    case TWS_MODULE_GEGLU:
      return keeps->gate_output * (double)m->out_features;
    case TWS_MODULE_GELU:
      return keeps->gelu_tensors[0] * k->number * (double)m->out_features;
    case TWS_MODULE_GELU_EXACT:
      return keeps->gelu_tensors[1] * k->number * (double)m->out_features;
    case TWS_MODULE_LINEAR:
      return linear_bytes(k, m);
    case TWS_MODULE_LOW_RANK:
      return keeps->adapter_output * (double)k->network->params[m->param[0]].rows;
    case TWS_MODULE_DROPPED:
    case TWS_MODULE_DROPOUT:
      return keeps->dropout_mask * (double)m->out_features;
    default:
      return 0;
  }
}

double tws_software_kept(const tws_job *job, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  const tws_network *network = job->network;
  const tws_runtime *runtime = tws_profile_runtime(job->profile);
  const keeper k = {.network = network,
                    .keeps = tws_software_casts(job) ? &runtime->keeps_cast : &runtime->keeps,
                    .number = (double)tws_dtype_bytes(c->dtype)};
  double layer = 0;
  for (uint32_t i = 0; i < network->layer_stride; i++)
    layer += kept_bytes(&k, &network->modules[network->layer_first + i]);
  layer *= tws_software_tokens(job) / tws_job_ranks_along(job, TWS_AXIS_MODEL);
  if (c->recompute == TWS_RECOMPUTE_FULL) return layer;
  return stage->layers * tws_software_in_flight(job, stage->stage) * layer;
}
