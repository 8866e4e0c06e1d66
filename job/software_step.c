#include "job/software_step.h"

#include <math.h>

#include "models/hardware/runtime.h"
#include "models/network/adapt.h"

double tws_software_trained(const tws_job *job, const tws_stage_estimate *stage) {
  return stage->parameters * (double)tws_network_trained(job->network) / (double)tws_network_params(job->network, 0);
}

double tws_software_shards(const tws_job *job) {
  return job->config->zero.stage > 0
             ? fmax(tws_topology_size(&job->topology, tws_topology_partitions(&job->topology)), 1)
             : 1;
}

/* Returns the elements of a parameter, or of the largest tensor of a fused one, which other software keeps separate. */
static double own_elements(const tws_param *param) {
  double elements = (double)tws_param_numel(param);
  if (param->experts > 0) elements /= param->experts;
  if (param->rows < 2 || param->groups > 0 || !param->fused[0]) return elements;
  const double rows = fmax((double)param->fused[0], fmax((double)param->fused[1], (double)param->fused[2]));
  const double all = (double)param->fused[0] + (double)param->fused[1] + (double)param->fused[2];
  return elements * rows / all;
}

double tws_software_largest_parameter(const tws_job *job) {
  double most = 0;
  for (uint32_t p = 0; p < job->network->param_count; p++)
    if (!job->network->params[p].frozen) most = fmax(most, own_elements(&job->network->params[p]));
  return most / tws_job_ranks_along(job, TWS_AXIS_MODEL);
}

/* Returns the expected number of elements of the largest sub-group of a shard. A sub-group ends with the parameter that
 * fills it, so it exceeds its limit by less than one parameter's partition, on average by half of one. */
static double largest_sub_group(const tws_job *job, double shard) {
  const double limit = (double)job->config->zero.sub_group_size;
  return fmin(shard, limit + tws_software_largest_parameter(job) / tws_software_shards(job) / 2);
}

static double elements_of(const tws_job *job, const tws_stage_estimate *stage, tws_step_of of) {
  const double shard = tws_software_trained(job, stage) / tws_software_shards(job);
  if (of == TWS_STEP_SHARD) return shard;
  if (of == TWS_STEP_SUB_GROUP) return largest_sub_group(job, shard);
  const double largest = tws_software_largest_parameter(job);
  return of == TWS_STEP_SLICE ? fmin(largest, shard) : largest;
}

/* Returns the bytes of the states of one element of a parameter, where states of 8 bits are an option. */
static double state_bytes_of(const tws_job *job, const tws_param *param) {
  enum { LEAST = 4096, BLOCK = 256 };
  const double elements = own_elements(param);
  tws_config own;
  tws_config_of_param_group(job->config, param->param_group, &own);
  const int narrow = own.optim_bits == 8 && elements >= LEAST && elements >= (double)own.min_8bit_size;
  return narrow ? 2 + 2.0 * 4 / BLOCK : 8;
}

/* Returns the bytes of the states of all trained parameters of at least `least` elements, over the number of all
 * trained parameters. */
static double mean_state_bytes(const tws_job *job, double least) {
  double bytes = 0, elements = 0;
  for (uint32_t p = 0; p < job->network->param_count; p++) {
    const tws_param *param = &job->network->params[p];
    if (param->frozen) continue;
    const double number = (double)tws_param_numel(param);
    elements += number;
    if (own_elements(param) >= least) bytes += number * state_bytes_of(job, param);
  }
  return elements > 0 ? bytes / elements : 0;
}

double tws_software_state_bytes(const tws_job *job) {
  const tws_optimizer_row *row = tws_optimizer_of(job->config->optimizer);
  if (row->eight_bits) return mean_state_bytes(job, 0);
  return row->factored ? 0 : 4.0 * row->states; /* factors of matrices are small */
}

double tws_software_paged_bytes(const tws_job *job, const tws_stage_estimate *stage) {
  const double paged_from = 1e5; /* elements: get_state_buffer() of bitsandbytes */
  if (!tws_optimizer_of(job->config->optimizer)->paged) return 0;
  if (tws_profile_allocator(job->profile) == TWS_ALLOCATOR_AHEAD) return 0; /* this program's own engine */
  return mean_state_bytes(job, paged_from) * tws_software_trained(job, stage) / tws_software_shards(job);
}

static int is_held(const tws_config *c, tws_step_where where) {
  const tws_zero_config *z = &c->zero;
  const int low = z->stage == 1 || z->stage == 2, torch = !tws_config_has_key(c, "optimizer.type");
  const tws_optimizer_row *row = tws_optimizer_of(c->optimizer);
  switch (where) {
    case TWS_STEP_ADAM:
      return !z->offload_optimizer && row->states == 2 && !row->eight_bits;
    case TWS_STEP_STAGES_1_2:
      return low && !z->offload_optimizer;
    case TWS_STEP_STAGES_1_2_TORCH:
      return low && !z->offload_optimizer && torch;
    case TWS_STEP_STAGE_3:
      return z->stage == 3 && !z->offload_optimizer;
    case TWS_STEP_STAGE_3_TORCH:
      return z->stage == 3 && !z->offload_optimizer && torch;
    case TWS_STEP_OFFLOADED_2:
      return low && z->offload_optimizer;
    default:
      return z->stage == 2 && !z->offload_optimizer && c->accumulation_steps > 1;
  }
}

double tws_software_moment(const tws_job *job, const tws_stage_estimate *stage, tws_step_moment moment) {
  const tws_runtime *runtime = tws_profile_runtime(job->profile);
  const tws_config *c = job->config;
  double bytes = 0;
  int count;
  const tws_step_buffer *buffers = tws_step_buffers(&count);
  if (runtime->step == TWS_STEP_AS_PLANNED || c->dtype == TWS_F32 || tws_config_half_masters(c)) return 0;
  if (runtime->step == TWS_STEP_DEEPSPEED && tws_software_shards(job) < 2) return 0;
  for (int i = 0; i < count; i++)
    if (buffers[i].software == runtime->step && buffers[i].moment == moment && is_held(c, buffers[i].where))
      bytes += buffers[i].bytes * elements_of(job, stage, buffers[i].of);
  return bytes;
}

double tws_software_step_most(const tws_job *job, const tws_stage_estimate *stage) {
  double most = 0;
  for (int moment = TWS_MOMENT_NORM; moment < TWS_MOMENT_COUNT; moment++)
    most = fmax(most, tws_software_moment(job, stage, (tws_step_moment)moment));
  return most;
}
