#include "job/software_host.h"

#include <math.h>

#include "models/hardware/runtime.h"

/* Returns the size of a block: PyTorch's caching allocator of pinned memory rounds up to powers of two. */
static double block_bytes(double bytes, int pinned) {
  return pinned && bytes > 1 ? exp2(ceil(log2(bytes))) : bytes;
}

static int is_pinned(const tws_zero_config *z, tws_host_pinned pinned) {
  if (pinned == TWS_PINNED_KEPT) return z->offload_param_pinned;
  if (pinned == TWS_PINNED_OPTIMIZER) return z->offload_optimizer_pinned;
  return pinned == TWS_PINNED_ALWAYS;
}

static int is_held(const tws_config *c, tws_host_of of) {
  const tws_zero_config *z = &c->zero;
  const int optimizer = z->stage > 0 && z->offload_optimizer == 1;
  switch (of) {
    case TWS_HOST_PARAMETERS_OF_3:
      return z->stage == 3 && z->offload_param == 1;
    case TWS_HOST_OPTIMIZER:
      return optimizer;
    case TWS_HOST_OPTIMIZER_OF_3:
      return optimizer && z->stage == 3;
    case TWS_HOST_OPTIMIZER_OF_2:
      return optimizer && z->stage < 3;
    default:
      return optimizer && z->stage < 3 && c->accumulation_steps > 1;
  }
}

/* Returns the elements of a rank's shard of `numel` elements of a parameter. */
static double elements_of(const tws_job *job, const tws_param *param, int64_t numel) {
  const double shards = tws_topology_size(&job->topology, tws_topology_partitions(&job->topology)),
               owners = tws_topology_size(&job->topology, param->own_along),
               parts = (double)tws_job_ranks_along(job, TWS_AXIS_MODEL) * tws_job_stages(job);
  return ceil((double)numel / fmax(shards / owners, 1) / parts);
}

/* Returns the bytes of the blocks for one parameter. Parameters that this program fuses (query, key and value; gate and
 * up) are separate tensors in other software. */
static double parameter_blocks(const tws_job *job, const tws_param *param, double bytes, int pinned) {
  double sum = 0;
  if (param->groups > 0 || param->rows < 2 || !param->fused[0])
    return block_bytes(bytes * elements_of(job, param, tws_param_numel(param)), pinned);
  for (int i = 0; i < 3; i++)
    sum += block_bytes(bytes * elements_of(job, param, param->fused[i] * param->columns), pinned);
  return sum;
}

/* Returns the bytes of the blocks for one parameter group: matrices, which have weight decay, or vectors, which have
 * none. A sub-group ends with the parameter that fills it. */
static double group_blocks(const tws_job *job, const tws_host_buffer *b, int vectors, int frozen) {
  const double limit = b->unit == TWS_HOST_SUB_GROUP ? (double)job->config->zero.sub_group_size : INFINITY;
  const int pinned = is_pinned(&job->config->zero, b->pinned);
  double bytes = 0, filled = 0;
  for (uint32_t p = 0; p < job->network->param_count; p++) {
    const tws_param *param = &job->network->params[p];
    if ((param->rows == 1) != vectors || (param->frozen && !frozen)) continue;
    if (b->unit == TWS_HOST_PARAMETER) {
      bytes += parameter_blocks(job, param, b->bytes, pinned);
      continue;
    }
    filled += elements_of(job, param, tws_param_numel(param));
    if (filled < limit) continue;
    bytes += block_bytes(b->bytes * filled, pinned);
    filled = 0;
  }
  return bytes + block_bytes(b->bytes * filled, pinned);
}

/* Returns the allocated bytes of one buffer on a rank; 0: the job does not have the buffer. */
static double buffer_bytes(const tws_job *job, const tws_host_buffer *b) {
  const tws_zero_config *z = &job->config->zero;
  if (!is_held(job->config, b->of) || (b->pinned == TWS_PINNED_KEPT && !z->offload_param_pinned)) return 0;
  const int frozen = b->of == TWS_HOST_PARAMETERS_OF_3;
  const double share = frozen || z->stage < 3 ? 1 : z->offload_optimizer_ratio;
  if (b->unit != TWS_HOST_WHOLE) return share * (group_blocks(job, b, 0, frozen) + group_blocks(job, b, 1, frozen));
  double elements = 0;
  for (uint32_t p = 0; p < job->network->param_count; p++)
    if (frozen || !job->network->params[p].frozen)
      elements += elements_of(job, &job->network->params[p], tws_param_numel(&job->network->params[p]));
  return share * block_bytes(b->bytes * elements, is_pinned(z, b->pinned));
}

/* Returns the plan's bytes in host memory that the runtime's buffers replace. 16-bit weights that are being copied to
 * the device are in the ledger's category of buckets, as are staging buffers of disks. */
static double replaced_bytes(const tws_job *job, const tws_ledger *ledger) {
  const tws_config *c = job->config;
  double bytes = 0;
  for (int tier = TWS_TIER_DEVICE + 1; tier < TWS_TIER_DISK; tier++) {
    const uint64_t *category = ledger->tier[tier].category;
    if (is_held(c, TWS_HOST_PARAMETERS_OF_3)) bytes += (double)category[TWS_CATEGORY_PARAMETER];
    if (is_held(c, TWS_HOST_OPTIMIZER))
      bytes += (double)category[TWS_CATEGORY_GRADIENT] + (double)category[TWS_CATEGORY_MASTER];
    if (is_held(c, TWS_HOST_OPTIMIZER) && c->zero.offload_param != 2) bytes += (double)category[TWS_CATEGORY_BUCKET];
  }
  return bytes;
}

double tws_software_host_bytes(const tws_job *job, const tws_ledger *ledger) {
  const tws_runtime *runtime = tws_profile_runtime(job->profile);
  const tws_config *c = job->config;
  int count, held = 0;
  double bytes = runtime->host_process_bytes - replaced_bytes(job, ledger), planned = 0;
  if (runtime->host == TWS_HOST_AS_PLANNED || c->dtype == TWS_F32 || tws_config_half_masters(c)) return 0;
  const tws_host_buffer *buffers = tws_host_buffers(&count);
  for (int i = 0; i < count; i++) {
    if (buffers[i].software != runtime->host || !is_held(c, buffers[i].of)) continue;
    bytes += buffer_bytes(job, &buffers[i]);
    held = 1;
  }
  if (!held) return 0;
  for (int tier = TWS_TIER_DEVICE + 1; tier < TWS_TIER_DISK; tier++) planned += (double)ledger->tier[tier].arena_bytes;
  if (runtime->loads_whole == 1 && c->zero.stage == 3)
    bytes = fmax(bytes, runtime->host_process_bytes - planned +
                            (double)tws_dtype_bytes(c->dtype) * (double)tws_network_params(job->network, 0));
  return fmax(bytes, 0);
}
