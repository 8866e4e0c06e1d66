#include "autotune/space_changes.h"

#include <stdio.h>
#include <string.h>

static const tws_change changes[] = {
    {.groups = 2},
    {.groups = 4},
    {.groups = 8},
    {.groups = -1},
    {.recompute = "selective"},
    {.recompute = "full"},
    {.stage = 1},
    {.stage = 2},
    {.stage = 3},
    {.micro_one = 1},
    {.recompute = "full", .micro_one = 1},
    {.recompute = "full", .stage = 2},
    {.recompute = "full", .stage = 3},
    {.recompute = "full", .stage = 3, .micro_one = 1},
    {.stage = 1, .offload = 1},
    {.stage = 2, .offload = 1},
    {.recompute = "full", .stage = 2, .offload = 1},
    {.recompute = "full", .stage = 3, .offload = 1},
    {.recompute = "full", .stage = 3, .micro_one = 1, .offload = 1},
    {.stage = 3, .offload = 2},
    {.recompute = "full", .stage = 3, .offload = 2},
    {.recompute = "full", .stage = 3, .micro_one = 1, .offload = 2},
    {.tensor = 1},
    {.recompute = "full", .micro_one = 1, .tensor = 1},
    {.recompute = "full", .stage = 3, .micro_one = 1, .tensor = 1},
    {.recompute = "full", .stage = 3, .micro_one = 1, .tiles = 8},
    {.recompute = "full", .stage = 3, .micro_one = 1, .offload = 2, .tiles = 8},
    {.recompute = "full", .stage = 3, .micro_one = 1, .shorten = 2},
    {.recompute = "full", .stage = 3, .micro_one = 1, .shorten = 4},
    {.recompute = "full", .stage = 3, .micro_one = 1, .shorten = 8},
    {.recompute = "full", .stage = 3, .micro_one = 1, .shorten = 16},
};

const tws_change *tws_change_at(size_t index) {
  return index < sizeof changes / sizeof *changes ? &changes[index] : NULL;
}

/* Returns the largest number of tensor ranks that the number of replicas, a node's devices and the model allow; 1: no
 * tensor parallelism. */
static int64_t tensor_choice(const tws_job *job) {
  const tws_network *n = job->network;
  int replicas = tws_job_ranks_along(job, TWS_AXIS_DATA), best = 1;
  if (job->backend == TWS_BACKEND_HOST || job->config->tensor_ranks > 1 || job->config->sequence_ranks > 1) return 1;
  for (int t = 2; t <= job->cluster.devices_per_node && t <= replicas; t++) {
    int divides = job->cluster.devices_per_node % t == 0 && replicas % t == 0;
    if (divides && n->heads % t == 0 && n->kv_heads % t == 0 && n->intermediate % t == 0) best = t;
  }
  return best;
}

static int64_t largest_layer(const tws_network *n) {
  int64_t largest = 0;
  for (uint32_t m = 0; m < n->module_count; m++) {
    if (n->modules[m].type != TWS_MODULE_LINEAR) continue;
    const int64_t elements = tws_param_numel(&n->params[n->modules[m].param[0]]);
    if (elements > largest) largest = elements;
  }
  return largest;
}

/* Sets the tile size. Returns 0 if tiles are set already or no layer can be tiled. */
static int set_tiles(const tws_change *c, const tws_job *job, tws_changed *to) {
  const int64_t most = largest_layer(job->network) / c->tiles;
  if (job->config->linear_tile_size || job->config->zero.by_block || most < 1 || to->spec.set.count == TWS_MAX_STRINGS)
    return 0;
  snprintf(to->tile_size, sizeof to->tile_size, "twinspeed.linear_tile_size=%lld", (long long)most);
  to->spec.set.item[to->spec.set.count++] = to->tile_size;
  return 1;
}

/* Sets larger groups of ranks that each have all partitions (mics_shard_size), or no groups, which offloading requires.
 * Returns 0 if the job has no groups. */
static int set_groups(const tws_change *c, const tws_job *job, tws_changed *to) {
  const int64_t ranks = tws_config_shard_ranks(job->config);
  if (ranks == 0 || to->spec.set.count == TWS_MAX_STRINGS) return 0;
  snprintf(to->group_size, sizeof to->group_size, "zero_optimization.mics_shard_size=%lld",
           c->groups > 0 ? (long long)(c->groups * ranks) : -1);
  to->spec.set.item[to->spec.set.count++] = to->group_size;
  return 1;
}

int tws_change_apply(const tws_job_spec *given, const tws_change *c, const tws_job *job, int64_t to_micro,
                     tws_changed *to) {
  tws_job_spec *spec = &to->spec;
  char *flags = to->flags;
  const size_t size = sizeof to->flags;
  *spec = *given;
  flags[0] = '\0';
  int64_t micro = job->config->micro_batch_size, accumulation = job->config->accumulation_steps;
  size_t used = 0;
  if (c->stage > job->config->zero.stage) {
    spec->stage = c->stage;
    used += (size_t)snprintf(flags + used, size - used, " --stage %d", c->stage);
  }
  static const char *const keys[] = {"zero_optimization.offload_optimizer.device=cpu",
                                     "zero_optimization.offload_param.device=cpu"};
  /* evaluation has neither an optimizer nor recomputation */
  const int evaluates = job->program == TWS_PROGRAM_EVALUATE;
  if (evaluates && c->offload == 1) return 0;
  for (int i = evaluates; i < c->offload && i < (int)(sizeof keys / sizeof *keys); i++) {
    const int already = i == 0 ? job->config->zero.offload_optimizer : job->config->zero.offload_param;
    if (job->backend == TWS_BACKEND_HOST || (already && i + 1 == c->offload) || spec->set.count == TWS_MAX_STRINGS)
      return 0;
    if (already) continue;
    spec->set.item[spec->set.count++] = keys[i];
    used += (size_t)snprintf(flags + used, size - used, " --set %s", keys[i]);
  }
  if (c->groups && !set_groups(c, job, to)) return 0;
  if (c->groups || (c->offload && set_groups(c, job, to)))
    used += (size_t)snprintf(flags + used, size - used, " --set %s", to->group_size);
  if (c->tiles && !set_tiles(c, job, to)) return 0;
  if (c->tiles) used += (size_t)snprintf(flags + used, size - used, " --set %s", to->tile_size);
  if (c->recompute && !evaluates && strcmp(c->recompute, tws_recompute_name(job->config->recompute)) != 0) {
    spec->recompute = c->recompute;
    used += (size_t)snprintf(flags + used, size - used, " --recompute %s", c->recompute);
  }
  int64_t tensor = c->tensor ? tensor_choice(job) : 1, steps = accumulation * tensor;
  if (c->tensor && tensor == 1) return 0;
  if (tensor > 1) {
    spec->tensor_ranks = tensor;
    used += (size_t)snprintf(flags + used, size - used, " --tp %lld", (long long)tensor);
  }
  if (c->micro_one && micro > to_micro) {
    spec->micro_batch = to_micro;
    steps *= micro / to_micro;
    used += (size_t)snprintf(flags + used, size - used, " --micro-batch %lld", (long long)to_micro);
  }
  if (steps != accumulation) {
    spec->accumulation = steps;
    used += (size_t)snprintf(flags + used, size - used, " --accumulation %lld", (long long)steps);
  }
  if (c->shorten && job->config->sequence_length >= 2 * c->shorten) {
    spec->sequence = job->config->sequence_length / c->shorten;
    used += (size_t)snprintf(flags + used, size - used, " --seq %lld", (long long)spec->sequence);
  }
  return used > 0;
}
