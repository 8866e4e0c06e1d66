/* Estimates. A step of many micro-batches repeats itself: plan/fold.h finds how few say all. Sweeps do with fewer, and
 * without proof: from the second micro-batch on each adds the same time, and the peak is reached. (The first does not
 * accumulate, and streams of neighbouring micro-batches overlap, so one micro-batch and the difference a second makes
 * would not do.) */
#include <string.h>

#include "estimators/estimators.h"
#include "plan/fold.h"
#include "plan/pipeline_grid.h"
#include "plan/pipeline_schedule.h"

static uint64_t rounded(uint64_t bytes) {
  return (bytes + TWS_ALIGNMENT - 1) / TWS_ALIGNMENT * TWS_ALIGNMENT;
}

/* The network's inputs are the one thing that grows with the number of micro-batches. */
static uint64_t grown_bytes(const tws_buffer *input, int64_t planned, int64_t wanted) {
  return input->bytes / (uint64_t)planned * (uint64_t)wanted;
}

static void grow_input(tws_ledger_tier *tier, const tws_buffer *input, int64_t planned, int64_t wanted) {
  const uint64_t before = input->bytes, after = grown_bytes(input, planned, wanted);
  tier->live_bytes += after - before;
  tier->category[TWS_CATEGORY_INPUT] += after - before;
  tier->arena_bytes += rounded(after) - rounded(before);
  tier->gaps = tier->arena_bytes - tier->live_bytes;
}

uint64_t tws_arena_growth(const tws_plan *plan, int64_t wanted) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < TWS_NETWORK_INPUTS && wanted > plan->accumulation_steps; i++) {
    if (plan->input[i] == TWS_NONE) continue;
    const tws_buffer *input = &plan->buffers[plan->input[i]];
    bytes += rounded(grown_bytes(input, plan->accumulation_steps, wanted)) - rounded(input->bytes);
  }
  return bytes;
}

/* to += more x (a - b) */
static void add_difference(tws_path_result *to, const tws_path_result *a, const tws_path_result *b, double more) {
  to->step_s += more * (a->step_s - b->step_s);
  to->exposed_s += more * (a->exposed_s - b->exposed_s);
  to->bubble_s += more * (a->bubble_s - b->bubble_s);
  to->host_exposed_s += more * (a->host_exposed_s - b->host_exposed_s);
  to->copies_exposed_s += more * (a->copies_exposed_s - b->copies_exposed_s);
  to->disk_exposed_s += more * (a->disk_exposed_s - b->disk_exposed_s);
  to->flops += more * (a->flops - b->flops);
  for (int i = 0; i < TWS_REPORT_COUNT; i++) {
    to->axis_exposed_s[i] += more * (a->axis_exposed_s[i] - b->axis_exposed_s[i]);
    to->axis_busy_s[i] += more * (a->axis_busy_s[i] - b->axis_busy_s[i]);
  }
  for (int i = 0; i < TWS_STREAM_COUNT; i++) to->stream_busy_s[i] += more * (a->stream_busy_s[i] - b->stream_busy_s[i]);
  for (int i = 0; i < TWS_PHASE_COUNT; i++) to->phase_s[i] += more * (a->phase_s[i] - b->phase_s[i]);
  for (int i = 0; i < TWS_KERNEL_COUNT; i++) to->kernel_s[i] += more * (a->kernel_s[i] - b->kernel_s[i]);
  for (int i = 0; i < TWS_COLLECTIVE_COUNT; i++)
    to->collective_s[i] += more * (a->collective_s[i] - b->collective_s[i]);
  tws_path_judge(to); /* what takes most of a few micro-batches may not take most of all */
}

void tws_path_extrapolate(tws_path_result *path, const tws_path_result *fewer, double more) {
  add_difference(path, path, fewer, more);
}

void tws_path_add(tws_path_result *path, const tws_path_result *other, double share) {
  static const tws_path_result nothing;
  add_difference(path, other, &nothing, share);
}

/* Everything of a plan but its path. The ledger and the stage's arena are those of all `wanted` micro-batches. */
static tws_code read_memory(const tws_plan *plan, int64_t wanted, tws_ledger *ledger, tws_stage_estimate *stage,
                            tws_error *err) {
  TWS_TRY(tws_ledger_read(plan, ledger, err));
  TWS_TRY(tws_stage_read(plan, stage, err));
  stage->loss_bytes = ledger->loss_bytes;
  if (wanted <= plan->accumulation_steps) return TWS_OK;
  for (uint32_t i = 0; i < TWS_NETWORK_INPUTS; i++)
    if (plan->input[i] != TWS_NONE)
      grow_input(&ledger->tier[TWS_TIER_DEVICE], &plan->buffers[plan->input[i]], plan->accumulation_steps, wanted);
  if (ledger->loss_bytes > 0)
    ledger->loss_bytes += ledger->tier[TWS_TIER_DEVICE].arena_bytes - stage->arena_bytes[TWS_TIER_DEVICE];
  stage->loss_bytes = ledger->loss_bytes;
  stage->arena_bytes[TWS_TIER_DEVICE] = ledger->tier[TWS_TIER_DEVICE].arena_bytes;
  return TWS_OK;
}

/* ---- ranks that differ ---- */

enum { MOST_PLANS = 1 << 14 };

typedef struct several {
  const tws_plan_request *request;
  const tws_machine *machine;
  int stages;
  const int *ranks; /* whose plans are built */
  int count;
  double *shares; /* per rank: of the ranks that stand for others, how many it stands for */
  tws_plan **plans;
  tws_stage_estimate *each; /* per rank */
  tws_ledger *ledgers;
  tws_path_result *paths;          /* [slot][rank]: TWS_FOLD_SAMPLES of them */
  double step_s[TWS_FOLD_SAMPLES]; /* per slot */
  uint32_t settled;                /* the largest of the plans that were built last */
} several;

/* Plans of `micro_batches` and their path; memory is read when `ledgers` is set. */
static tws_code run_ranks(several *p, int64_t micro_batches, tws_ledger *ledgers, double *step_s,
                          tws_path_result *paths, tws_error *err) {
  tws_code code = TWS_OK;
  uint64_t operations = 0;
  p->settled = 0;
  for (int i = 0; i < p->count && code == TWS_OK; i++) {
    tws_plan_request r = *p->request;
    r.rank = p->ranks[i];
    r.max_accumulation = micro_batches;
    code = tws_plan_build(&r, &p->plans[i], err);
    if (code == TWS_OK && ledgers)
      code = read_memory(p->plans[i], p->request->config->accumulation_steps, &ledgers[i], &p->each[i], err);
    if (code == TWS_OK && p->plans[i]->settled > p->settled) p->settled = p->plans[i]->settled;
    if (code == TWS_OK) code = tws_plans_check_length(operations += p->plans[i]->op_count, err);
  }
  if (code == TWS_OK) code = tws_job_path((const tws_plan *const *)p->plans, p->count, p->machine, paths, step_s, err);
  for (int i = 0; i < p->count; i++) {
    tws_plan_destroy(p->plans[i]);
    p->plans[i] = NULL;
  }
  return code;
}

/* How many micro-batches do for a sweep. Of a pipeline: from twice the stages on memory and rhythm of a schedule hardly
 * change, except that GPipe holds all micro-batches; whole rounds of stages, as INTERLEAVED wants them. */
static int64_t micro_batches_to_build(const tws_plan_request *request, int stages) {
  int64_t wanted = request->config->accumulation_steps, most = request->max_accumulation;
  if (request->config->delayed_update) return wanted; /* they hide the host's work, the more of them the more */
  if (stages == 1) return wanted < 3 ? wanted : 3;
  if (request->config->pipeline_schedule == TWS_PIPELINE_GPIPE) return wanted;
  if (most < 3 * stages) most = 3 * stages;
  most -= most % stages;
  return wanted > most ? most : wanted;
}

/* A stage is as full as its fullest rank, and as slow as the rank of these that waits least. */
static void read_stages(const several *p, const tws_path_result *paths, tws_stage_estimate *stages, tws_estimate *out) {
  int fullest = 0, busiest = 0;
  double bubble = 0; /* mean over all of them */
  for (int i = 0; i < p->count; i++) {
    if (out->step_s > 0) bubble += p->shares[i] * paths[i].bubble_s / out->step_s;
    tws_stage_estimate *stage = &stages[p->each[i].stage];
    const uint64_t bytes = p->each[i].arena_bytes[TWS_TIER_DEVICE];
    p->each[i].path = paths[i];
    const int first = i == 0 || p->each[i].stage != p->each[i - 1].stage;
    if (first || bytes > stage->arena_bytes[TWS_TIER_DEVICE]) *stage = p->each[i];
    if (bytes > p->each[fullest].arena_bytes[TWS_TIER_DEVICE]) fullest = i;
    if (paths[i].bubble_s < paths[busiest].bubble_s) busiest = i;
  }
  for (int s = 0; s < p->stages; s++) stages[s].path.bottleneck = stages[s].path.text;
  out->balance = tws_stage_compare(stages, p->stages);
  out->balance.bubble = bubble;
  out->stage = out->balance.largest;
  out->ledger = p->ledgers[fullest];
  out->path = paths[busiest];
  if (p->stages == 1) out->balance = (tws_stage_balance){.compute_imbalance = 1, .memory_imbalance = 1};
}

static tws_code measure_ranks(void *user, int64_t micro_batches, int slot, tws_fold_sample *sample, tws_error *err) {
  several *p = user;
  TWS_TRY(run_ranks(p, micro_batches, p->ledgers, &p->step_s[slot], p->paths + (size_t)slot * (size_t)p->count, err));
  *sample = (tws_fold_sample){.step_s = p->step_s[slot], .settled = p->settled};
  for (int i = 0; i < p->count; i++)
    for (int t = 0; t < TWS_TIER_COUNT; t++)
      sample->bytes += p->ledgers[i].tier[t].arena_bytes + p->ledgers[i].tier[t].live_bytes;
  return TWS_OK;
}

/* For a sweep: the difference that a round of stages makes. */
static tws_code measure_few(several *p, int64_t wanted, tws_folded *folded, tws_error *err) {
  const int64_t built = micro_batches_to_build(p->request, p->stages);
  *folded = (tws_folded){.slot = 0, .before = 1, .built = built, .more = (double)(wanted - built) / p->stages};
  TWS_TRY(run_ranks(p, built, p->ledgers, &p->step_s[0], p->paths, err));
  return built < wanted ? run_ranks(p, built - p->stages, NULL, &p->step_s[1], p->paths + p->count, err) : TWS_OK;
}

static tws_code estimate_several(several *p, tws_stage_estimate *stages, tws_estimate *out, tws_error *err) {
  const tws_config *c = p->request->config;
  const int64_t wanted = c->accumulation_steps;
  tws_pipeline_shape shape = tws_pipeline_shape_of(c, p->stages, wanted);
  tws_folded folded;
  TWS_TRY(tws_pipeline_check(&shape, err)); /* what is built may be legal where the whole is not */
  TWS_TRY(p->request->max_accumulation > 0 ? measure_few(p, wanted, &folded, err)
                                           : tws_fold_find(&shape, wanted, measure_ranks, p, &folded, err));
  tws_path_result *paths = p->paths + (size_t)folded.slot * (size_t)p->count;
  out->step_s = p->step_s[folded.slot];
  out->built = folded.built;
  if (folded.more > 0) {
    for (int i = 0; i < p->count; i++)
      tws_path_extrapolate(&paths[i], &p->paths[(size_t)folded.before * (size_t)p->count + (size_t)i], folded.more);
    out->step_s += folded.more * (p->step_s[folded.slot] - p->step_s[folded.before]);
  }
  read_stages(p, paths, stages, out);
  return TWS_OK;
}

static tws_code estimate_ranks(several *p, tws_estimate *out, tws_stage_estimate *each, tws_error *err) {
  size_t n = (size_t)p->count;
  tws_stage_estimate *own = each ? NULL : tws_calloc((size_t)p->stages, sizeof *own);
  p->plans = tws_calloc(n, sizeof *p->plans);
  p->ledgers = tws_calloc(n, sizeof *p->ledgers);
  p->paths = tws_calloc(TWS_FOLD_SAMPLES * n, sizeof *p->paths);
  p->each = tws_calloc(n, sizeof *p->each);
  tws_code code = p->plans && p->ledgers && p->paths && p->each && (each || own)
                      ? estimate_several(p, each ? each : own, out, err)
                      : tws_fail(err, TWS_MEMORY, NULL, "no memory for the estimate");
  tws_free(p->plans);
  tws_free(p->ledgers);
  tws_free(p->paths);
  tws_free(p->each);
  tws_free(own);
  return code;
}

/* ---- one plan stands for all ranks ---- */

static tws_code build_one(const tws_plan_request *request, int64_t micro_batches, const tws_machine *machine,
                          tws_path_result *path, tws_ledger *ledger, tws_stage_estimate *stage, tws_error *err) {
  tws_plan_request r = *request;
  tws_plan *plan;
  r.max_accumulation = micro_batches;
  TWS_TRY(tws_plan_build(&r, &plan, err));
  tws_code code = ledger ? read_memory(plan, request->config->accumulation_steps, ledger, stage, err) : TWS_OK;
  if (code == TWS_OK) code = tws_longest_path(plan, machine, path, err);
  tws_plan_destroy(plan);
  return code;
}

static tws_code estimate_alone(const tws_plan_request *request, const tws_machine *machine, tws_estimate *out,
                               tws_stage_estimate *each, tws_error *err) {
  const int64_t wanted = request->config->accumulation_steps, built = micro_batches_to_build(request, 1);
  tws_stage_estimate own;
  if (!each) each = &own;
  out->built = built;
  TWS_TRY(build_one(request, built, machine, &out->path, &out->ledger, each, err));
  if (wanted > built) {
    tws_path_result fewer;
    TWS_TRY(build_one(request, built - 1, machine, &fewer, NULL, NULL, err));
    tws_path_extrapolate(&out->path, &fewer, (double)(wanted - built));
  }
  each->path = out->path;
  each->path.bottleneck = each->path.text;
  out->balance = (tws_stage_balance){.compute_imbalance = 1, .memory_imbalance = 1};
  out->step_s = out->path.step_s;
  return TWS_OK;
}

/* ---- totals ---- */

static void add_totals(const tws_plan_request *request, const tws_machine *machine, tws_estimate *out) {
  const tws_config *c = request->config;
  int world = tws_topology_world(&request->topology);
  double tokens = (double)c->micro_batch_size * (double)c->sequence_length * (double)c->accumulation_steps *
                  (double)tws_topology_size(&request->topology, TWS_AXES_DATA); /* ranks of other axes share samples */
  out->path.bottleneck = out->path.text;
  out->tokens_per_s = out->step_s > 0 ? tokens / out->step_s : 0;
  const double passes = request->program == TWS_PROGRAM_EVALUATE ? 1 : 3; /* a backward pass is two */
  out->model_flops =
      passes * tws_network_flops_per_token(request->network, c->sequence_length, c->target_length, 0) * tokens;
  double units = world, cores = tws_profile_cores(machine->profile); /* a host's peak is that of one core */
  if (cores > 0) {
    double wanted_cores = (double)world * (request->threads > 1 ? request->threads : 1);
    double there = cores * (machine->cluster->nodes > 0 ? machine->cluster->nodes : 1);
    units = wanted_cores < there ? wanted_cores : there;
  }
  double peak = tws_profile_peak_flops(machine->profile, c->dtype) * units;
  out->mfu = out->step_s > 0 && peak > 0 ? out->model_flops / out->step_s / peak : 0;
}

/* In a sweep one stands for all. */
static int every_rank_counts(const tws_plan_request *request) {
  enum { FEW = 16 };
  return !tws_replicas_keep_time(request->config) && request->max_accumulation == 0 &&
         tws_topology_world(&request->topology) <= FEW;
}

/* Most ranks that differ along an axis do so in arguments alone, or in a bias that the first has: of those that are
 * alike the first is planned. Ranks of a pipeline are left as they are, because each has peers of its own. */
static tws_code leave_out_alike(several *p, tws_rank_set *set, tws_error *err) {
  enum { WORTH = 4 }; /* micro-batches: two are planned to know */
  const int several_alike = p->stages == 1 && set->count > 2 && p->request->config->accumulation_steps > WORTH;
  uint64_t *shapes = tws_calloc((size_t)set->count, sizeof *shapes);
  p->shares = tws_calloc((size_t)set->count, sizeof *p->shares);
  tws_code code = shapes && p->shares ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "no memory for the estimate");
  int kept = 0;
  for (int i = 0; i < set->count && code == TWS_OK; i++) {
    tws_plan_request r = *p->request;
    int at = kept;
    r.rank = set->ranks[i];
    if (several_alike) code = tws_fingerprint_shape(&r, &shapes[kept], err);
    for (int k = 0; k < kept && several_alike && at == kept; k++)
      if (shapes[k] == shapes[kept]) at = k;
    p->shares[at] += 1.0 / set->count;
    if (at == kept) set->ranks[kept++] = r.rank;
  }
  if (code == TWS_OK) set->count = kept;
  tws_free(shapes);
  return code;
}

tws_code tws_estimate_ranks(const tws_plan_request *request, const tws_machine *machine, tws_rank_set *out,
                            tws_error *err) {
  const int world = tws_topology_world(&request->topology);
  const tws_node_mapping mapping = tws_machine_mapping(machine, world);
  if (every_rank_counts(request)) return tws_every_rank(world, out, err);
  return tws_representatives(&request->topology, &mapping, request->config, out, err);
}

static tws_code estimate_program(const tws_plan_request *request, const tws_machine *machine, tws_estimate *out,
                                 tws_stage_estimate *stages, tws_error *err) {
  several p = {.request = request, .machine = machine, .stages = tws_topology_size(&request->topology, TWS_AXES_PIPE)};
  tws_rank_set set;
  memset(out, 0, sizeof *out);
  tws_code code = tws_estimate_ranks(request, machine, &set, err);
  if (code == TWS_OK && set.count > MOST_PLANS)
    code = tws_fail(err, TWS_UNSUPPORTED, "use fewer ranks, or a division whose groups lie alike on all nodes",
                    "groups lie unevenly on nodes, and %d ranks are more than are looked at one by one (%d)", set.count,
                    MOST_PLANS);
  if (code == TWS_OK) code = leave_out_alike(&p, &set, err);
  p.ranks = set.ranks;
  p.count = set.count;
  if (code == TWS_OK)
    code = p.count > 1 || request->max_accumulation == 0 ? estimate_ranks(&p, out, stages, err)
                                                         : estimate_alone(request, machine, out, stages, err);
  tws_rank_set_free(&set);
  tws_free(p.shares);
  return code;
}

static void keep_larger(tws_ledger *ledger, const tws_ledger *other) {
  for (int tier = 0; tier < TWS_TIER_COUNT; tier++)
    if (other->tier[tier].arena_bytes > ledger->tier[tier].arena_bytes) ledger->tier[tier] = other->tier[tier];
}

tws_code tws_estimate_between(const tws_plan_request *request, const tws_machine *machine, tws_estimate *out,
                              tws_error *err) {
  memset(out, 0, sizeof *out);
  for (int p = 0; p < TWS_PROGRAM_COUNT && request->program == TWS_PROGRAM_TRAIN; p++) {
    if (!tws_program_runs_between(request->config, (tws_program)p)) continue;
    const double share = tws_program_share(request->config, (tws_program)p);
    tws_plan_request r = *request;
    tws_estimate one;
    r.program = (tws_program)p;
    TWS_TRY(estimate_program(&r, machine, &one, NULL, err));
    out->step_s += share * one.step_s;
    tws_path_add(&out->path, &one.path, share);
    keep_larger(&out->ledger, &one.ledger);
  }
  return TWS_OK;
}

static void wait_for_samples(const tws_plan_request *request, const tws_machine *machine, tws_estimate *out,
                             tws_stage_estimate *stages) {
  out->loading_s = tws_loading_s(request, machine);
  const double waits_s = out->loading_s - out->step_s;
  tws_path_load(waits_s, &out->path);
  for (int i = 0; stages && i < tws_topology_size(&request->topology, TWS_AXES_PIPE); i++)
    tws_path_load(waits_s, &stages[i].path);
  if (!(waits_s > 0)) return;
  out->balance.bubble *= out->step_s / out->loading_s;
  out->step_s = out->loading_s;
}

tws_code tws_estimate_job(const tws_plan_request *request, const tws_machine *machine, tws_estimate *out,
                          tws_stage_estimate *stages, tws_error *err) {
  tws_estimate between;
  TWS_TRY(estimate_program(request, machine, out, stages, err));
  TWS_TRY(tws_estimate_between(request, machine, &between, err));
  if (between.step_s > 0) { /* such jobs have one stage */
    out->step_s += between.step_s;
    tws_path_add(&out->path, &between.path, 1);
    keep_larger(&out->ledger, &between.ledger);
    for (int tier = 0; stages && tier < TWS_TIER_COUNT; tier++)
      stages->arena_bytes[tier] = out->ledger.tier[tier].arena_bytes;
    if (stages) stages->path = out->path;
    if (stages) stages->path.bottleneck = stages->path.text;
  }
  wait_for_samples(request, machine, out, stages);
  add_totals(request, machine, out);
  return TWS_OK;
}

tws_code tws_estimate_step(const tws_plan_request *request, const tws_machine *machine, tws_estimate *out,
                           tws_error *err) {
  return tws_estimate_job(request, machine, out, NULL, err);
}

/* ---- rough estimates of pipelines ---- */

/* Enough micro-batches that each stage holds as many as it ever will: GPipe holds all. */
static int64_t micro_batches_to_fill(const tws_pipeline_shape *shape) {
  int64_t enough = shape->kind == TWS_PIPELINE_GPIPE         ? shape->micro_batches
                   : shape->kind == TWS_PIPELINE_INTERLEAVED ? 2 * (int64_t)shape->stages
                                                             : (int64_t)shape->stages + 1;
  return enough < shape->micro_batches ? enough : shape->micro_batches;
}

/* A stage, from a plan of few micro-batches. */
typedef struct pace {
  double forward_s, backward_s; /* of one micro-batch */
  double end_s;                 /* of the step's end */
  double bytes;                 /* of its device memory with as many micro-batches as it holds at once */
} pace;

/* Bytes that the forward passes of a plan leave to the backward passes. */
static double kept_bytes(const tws_plan *plan) {
  double bytes = 0;
  for (uint32_t i = 0; i < plan->buffer_count; i++) {
    const tws_buffer *b = &plan->buffers[i];
    if (b->lifetime != TWS_LIFETIME_OPS || b->first_op == TWS_NONE || b->tier != TWS_TIER_DEVICE) continue;
    if (plan->ops[b->first_op].phase == TWS_PHASE_FORWARD && plan->ops[b->last_op].phase != TWS_PHASE_FORWARD)
      bytes += (double)b->bytes;
  }
  return bytes;
}

/* What waits for weight gradients that are put off, in the stage's other micro-batches. */
static double deferred_bytes(const tws_pipeline_shape *shape, int stage, const tws_ledger_tier *tier) {
  int waiting = stage < shape->micro_batches ? stage : shape->micro_batches;
  if (shape->kind != TWS_PIPELINE_ZB_H1 || waiting < 2) return 0;
  return (waiting - 1) * (double)tier->category[TWS_CATEGORY_ACTIVATION_GRADIENT];
}

static pace pace_of(const tws_plan *plan, const tws_path_result *path, const tws_ledger *ledger,
                    const tws_pipeline_shape *shape) {
  tws_pipeline_shape few = *shape;
  few.micro_batches = (int)plan->accumulation_steps;
  const tws_ledger_tier *tier = &ledger->tier[TWS_TIER_DEVICE];
  double forward = path->phase_s[TWS_PHASE_FORWARD], built = few.micro_batches;
  double backward = path->phase_s[TWS_PHASE_BACKWARD] + path->phase_s[TWS_PHASE_RECOMPUTE];
  double sharing = path->axis_exposed_s[TWS_AXIS_MODEL] + path->axis_exposed_s[TWS_AXIS_SEQUENCE] +
                   path->axis_exposed_s[TWS_AXIS_PIPE];
  double part = forward + backward > 0 ? forward / (forward + backward) : 0;
  double more = (double)tws_pipeline_in_flight(shape, plan->stage) - tws_pipeline_in_flight(&few, plan->stage);
  return (pace){(forward + part * sharing) / built, (backward + (1 - part) * sharing) / built,
                path->phase_s[TWS_PHASE_STEP] + path->axis_exposed_s[TWS_AXIS_DATA],
                (double)tier->arena_bytes + more / shape->virtual_stages * kept_bytes(plan) / built +
                    deferred_bytes(shape, plan->stage, tier)};
}

/* The step takes what the slowest stage does for all micro-batches, and the bubble behind the others' pace. */
static void combine_stages(const tws_pipeline_shape *shape, const pace *all, tws_estimate *out) {
  pace slowest = all[0], others = {0, 0, 0, 0};
  double end_s = 0, n = shape->stages - 1;
  for (int s = 0; s < shape->stages; s++) {
    others.forward_s += all[s].forward_s / n;
    others.backward_s += all[s].backward_s / n;
    if (all[s].end_s > end_s) end_s = all[s].end_s;
    if (all[s].forward_s + all[s].backward_s > slowest.forward_s + slowest.backward_s) slowest = all[s];
  }
  others.forward_s -= slowest.forward_s / n;
  others.backward_s -= slowest.backward_s / n;
  double bubble = tws_pipeline_bubble(shape, others.forward_s, others.backward_s / 2, others.backward_s / 2);
  out->step_s = shape->micro_batches * (slowest.forward_s + slowest.backward_s) + bubble + end_s;
  out->balance = (tws_stage_balance){out->step_s > 0 ? bubble / out->step_s : 0, 1, 1, out->stage};
}

static tws_code measure_stages(const tws_plan_request *request, const tws_pipeline_shape *shape,
                               const tws_machine *machine, pace *all, tws_estimate *out, tws_error *err) {
  int built = shape->kind == TWS_PIPELINE_INTERLEAVED ? shape->stages : 1; /* as few as the schedule allows */
  for (int s = 0; s < shape->stages; s++) {
    tws_plan_request r = *request;
    tws_ledger ledger;
    tws_path_result path;
    tws_plan *plan;
    r.rank = tws_pipeline_grid_stage(&r.topology, 0, s);
    r.max_accumulation = built;
    TWS_TRY(tws_plan_build(&r, &plan, err));
    tws_code code = tws_ledger_read(plan, &ledger, err);
    if (code == TWS_OK) code = tws_longest_path(plan, machine, &path, err);
    if (code == TWS_OK) all[s] = pace_of(plan, &path, &ledger, shape);
    tws_plan_destroy(plan);
    TWS_TRY(code);
    if (s == 0 || path.step_s > out->path.step_s) out->path = path;
  }
  return TWS_OK;
}

/* The ledger of the stage that probably needs the most memory, which is then out of the question. */
static tws_code fill_fullest(const tws_plan_request *request, const tws_pipeline_shape *shape,
                             const tws_machine *machine, pace *all, tws_estimate *out, tws_error *err) {
  tws_plan_request r = *request;
  tws_stage_estimate one;
  tws_path_result path;
  tws_ledger ledger;
  int stage = 0;
  for (int s = 1; s < shape->stages; s++)
    if (all[s].bytes > all[stage].bytes) stage = s;
  all[stage].bytes = 0;
  r.rank = tws_pipeline_grid_stage(&r.topology, 0, stage);
  TWS_TRY(build_one(&r, micro_batches_to_fill(shape), machine, &path, &ledger, &one, err));
  if (ledger.tier[TWS_TIER_DEVICE].arena_bytes <= out->ledger.tier[TWS_TIER_DEVICE].arena_bytes) return TWS_OK;
  out->ledger = ledger;
  out->stage = out->balance.largest = stage;
  return TWS_OK;
}

tws_code tws_estimate_rough(const tws_plan_request *request, const tws_machine *machine, tws_estimate *out,
                            tws_error *err) {
  int stages = tws_topology_size(&request->topology, TWS_AXES_PIPE);
  if (stages < 2) return tws_estimate_step(request, machine, out, err);
  tws_pipeline_shape shape = tws_pipeline_shape_of(request->config, stages, request->config->accumulation_steps);
  memset(out, 0, sizeof *out);
  TWS_TRY(tws_pipeline_check(&shape, err));
  pace *all = tws_calloc((size_t)stages, sizeof *all);
  if (!all) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the estimate");
  tws_code code = measure_stages(request, &shape, machine, all, out, err);
  if (code == TWS_OK) combine_stages(&shape, all, out);
  for (int i = 0; i < 2 && code == TWS_OK; i++) code = fill_fullest(request, &shape, machine, all, out, err);
  tws_free(all);
  TWS_TRY(code);
  add_totals(request, machine, out);
  return TWS_OK;
}
