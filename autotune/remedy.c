#include "autotune/remedy.h"

#include <stdio.h>
#include <string.h>

#include "base/units.h"

/* Would the job fit with this change? Anything that stands in the way of the answer counts as no. */
static int fits_with(const tws_job_spec *spec, double *need, double *step_s) {
  tws_job *job;
  tws_estimate estimate = {.step_s = 0};
  if (tws_job_load(spec, &job, NULL) != TWS_OK) return 0;
  tws_ledger live;
  tws_fit fit = {0};
  if (tws_job_live(job, &live, NULL) == TWS_OK) fit = tws_job_fit(job, &live);
  if (fit.fits && tws_job_estimate(job, &estimate, NULL, NULL) == TWS_OK) fit = tws_job_fit(job, &estimate.ledger);
  tws_job_destroy(job);
  *need = fit.capacity.host ? fit.node_need : fit.device_need;
  *step_s = estimate.step_s;
  return fit.fits;
}

/* Changes from the least intrusive to the most; 0 and NULL keep what is there. */
typedef struct change {
  const char *recompute;
  int stage, micro_one, shorten; /* micro_one: a smaller micro batch, 1 at last; shorten: divide the sequence by this */
  int tensor;                    /* divide replicas among tensor ranks of a node */
  int offload;                   /* to the host: 1 the optimizer, 2 parameters too */
  int tiles;                     /* in which the largest linear layer is gathered */
  int groups;                    /* so many of mics_shard_size are one; -1: all are */
} change;
static const change changes[] = {
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

/* The options with a change, and the flags that say it. */
typedef struct changed {
  tws_job_spec spec;
  char flags[512], tile_size[64], group_size[64];
} changed;

/* As many tensor ranks as the replicas, a node's devices and the model allow; 1: none. */
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

/* 0: it has tiles already, or there is nothing to be tiled. */
static int set_tiles(const change *c, const tws_job *job, changed *to) {
  const int64_t most = largest_layer(job->network) / c->tiles;
  if (job->config->linear_tile_size || job->config->zero.by_block || most < 1 || to->spec.set.count == TWS_MAX_STRINGS)
    return 0;
  snprintf(to->tile_size, sizeof to->tile_size, "twinspeed.linear_tile_size=%lld", (long long)most);
  to->spec.set.item[to->spec.set.count++] = to->tile_size;
  return 1;
}

/* Larger groups that each have all partitions, or none: what is offloaded goes without. 0: there are no groups. */
static int set_groups(const change *c, const tws_job *job, changed *to) {
  const int64_t ranks = tws_config_shard_ranks(job->config);
  if (ranks == 0 || to->spec.set.count == TWS_MAX_STRINGS) return 0;
  snprintf(to->group_size, sizeof to->group_size, "zero_optimization.mics_shard_size=%lld",
           c->groups > 0 ? (long long)(c->groups * ranks) : -1);
  to->spec.set.item[to->spec.set.count++] = to->group_size;
  return 1;
}

/* 0 when it changes nothing. The global batch stays. to_micro: what a smaller micro batch is. */
static int apply_change(const tws_job_spec *given, const change *c, const tws_job *job, int64_t to_micro, changed *to) {
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
  for (int i = 0; i < c->offload && i < (int)(sizeof keys / sizeof *keys); i++) {
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
  if (c->recompute && strcmp(c->recompute, tws_recompute_name(job->config->recompute)) != 0) {
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

/* A micro batch of 1 fits: so may a larger one. Of the divisors, which keep the global batch, the largest that does;
 * more need more, so the interval is halved. Gives what it needs, and its flags. */
static double largest_micro(const tws_job_spec *given, const change *c, const tws_job *job, double need, char *flags,
                            size_t size) {
  enum { MOST = 512 };
  int64_t micro = job->config->micro_batch_size, divisors[MOST];
  int count = 0, low = 0;
  for (int64_t d = 1; d < micro && d <= 1 << 20 && count < MOST; d++)
    if (micro % d == 0) divisors[count++] = d;
  for (int high = count; high - low > 1;) {
    const int middle = (low + high) / 2;
    changed other;
    double takes = 0, step_s;
    if (apply_change(given, c, job, divisors[middle], &other) && fits_with(&other.spec, &takes, &step_s)) {
      low = middle;
      need = takes;
      snprintf(flags, size, "%s", other.flags);
    } else {
      high = middle;
    }
  }
  return need;
}

/* bf16 in place of a float32 that nobody asked for. */
static int fits_in_bf16(const tws_job_spec *given, const tws_job *job, char *text, size_t size) {
  tws_job_spec spec = *given;
  char bytes[32];
  double need = 0, step_s;
  if (!job->assumed_dtype || job->config->dtype != TWS_F32) return 0;
  spec.dtype = "bf16";
  if (!fits_with(&spec, &need, &step_s)) return 0;
  snprintf(text, size, "it fits with --dtype bf16: %s", tws_format_bytes(need, bytes, sizeof bytes));
  return 1;
}

/* Than the same without offloading would be if it did fit. */
static void compare_offloaded(const tws_job_spec *given, const change *c, const tws_job *job, double step_s, char *text,
                              size_t size) {
  static const char *const what[] = {"", "the optimizer's states", "the optimizer's states and the parameters"};
  change same = *c;
  changed without;
  double need, alone_s = 0;
  same.offload = 0;
  apply_change(given, &same, job, 1, &without);
  fits_with(&without.spec, &need, &alone_s);
  text[0] = '\0';
  if (alone_s > 0 && step_s > 0)
    snprintf(text, size, ", with %s on the host, %.0f %% slower", what[c->offload], 100 * (step_s / alone_s - 1));
}

int tws_remedy_find(const tws_job_spec *given, char *text, size_t size) {
  tws_job *job;
  int found = 0;
  if (tws_job_load(given, &job, NULL) == TWS_OK) {
    found = fits_in_bf16(given, job, text, size);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0] && !found; i++) {
      changed with;
      char bytes[32], slower[128] = "";
      double need = 0, step_s = 0;
      found = apply_change(given, &changes[i], job, 1, &with) && fits_with(&with.spec, &need, &step_s);
      if (found && changes[i].offload) compare_offloaded(given, &changes[i], job, step_s, slower, sizeof slower);
      if (found && changes[i].micro_one)
        need = largest_micro(given, &changes[i], job, need, with.flags, sizeof with.flags);
      if (found)
        snprintf(text, size, "it fits with%s: %s%s", with.flags, tws_format_bytes(need, bytes, sizeof bytes), slower);
    }
    tws_job_destroy(job);
  }
  if (!found)
    snprintf(text, size,
             "no stage, recomputation, micro batch, tensor ranks or shorter sequence fits: use more or larger devices");
  return found;
}
