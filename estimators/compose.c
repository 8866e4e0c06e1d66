/* Estimates the time and memory of a step. Its micro-batches repeat, and plan/fold.h determines the number of
 * micro-batches that have to be planned for the exact time of the whole step, and the number for its memory. */
#include <stddef.h>
#include <string.h>

#include "estimators/program.h"
#include "models/hardware/runtime.h"
#include "plan/fold.h"

static uint64_t rounded(uint64_t bytes) {
  return (bytes + TWS_ALIGNMENT - 1) / TWS_ALIGNMENT * TWS_ALIGNMENT;
}

/* Returns the bytes of an input for `wanted` micro-batches. Only inputs grow with the number of micro-batches. */
static uint64_t grown_bytes(const tws_buffer *input, int64_t planned, int64_t wanted) {
  return input->bytes / (uint64_t)planned * (uint64_t)wanted;
}

static void grow_input(tws_ledger_tier *tier, const tws_buffer *input, int64_t planned, int64_t wanted) {
  const uint64_t before = input->bytes, after = grown_bytes(input, planned, wanted);
  tier->live_bytes += after - before;
  tier->category[TWS_CATEGORY_INPUT] += after - before;
  tier->arena_bytes += rounded(after) - rounded(before);
  tier->gaps = tier->arena_bytes - tier->live_bytes;
  tws_allocator_bytes *allocator = &tier->allocator;
  uint64_t *const counted[] = {&allocator->needed, &allocator->held, &allocator->reserved};
  for (int i = 0; i < 3; i++)
    if (*counted[i] > 0) *counted[i] += after - before;
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

/* Adds `more` times (a - b) to `to`, member by member. */
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
  tws_path_judge(to); /* the bottleneck is determined anew: a short step may have another one than the whole step */
}

void tws_path_extrapolate(tws_path_result *path, const tws_path_result *fewer, double more) {
  add_difference(path, path, fewer, more);
}

void tws_path_add(tws_path_result *path, const tws_path_result *other, double share) {
  static const tws_path_result nothing;
  add_difference(path, other, &nothing, share);
}

static void copy_device(const tws_ledger *ledger, tws_stage_estimate *stage) {
  const tws_ledger_tier *device = &ledger->tier[TWS_TIER_DEVICE];
  stage->loss_bytes = ledger->loss_bytes;
  stage->live_bytes = device->live_bytes;
  stage->allocator = device->allocator;
}

/* ---- ranks whose plans differ ---- */

enum { MOST_PLANS = 1 << 14 };

typedef struct several {
  const tws_estimated_job *job;
  const int *ranks; /* the ranks whose plans are built */
  int count;
  double *shares; /* per planned rank: the fraction of all ranks that it represents */
  tws_plan **plans;
  tws_stage_estimate *each; /* per planned rank: the estimate of its stage */
  tws_ledger *ledgers;
  /* per planned rank: number of micro-batches of the plan from which its memory was read; 0: not read yet */
  int64_t *read;
  tws_path_result *paths;          /* [slot][planned rank], with TWS_FOLD_SAMPLES slots */
  double step_s[TWS_FOLD_SAMPLES]; /* per slot: seconds of the step */
} several;

/* Computes the ledger and the memory of a stage from a plan, extrapolated to all `wanted` micro-batches. */
static tws_code read_memory(const tws_plan *plan, int64_t wanted, const several *p, tws_ledger *ledger,
                            tws_stage_estimate *stage, tws_error *err) {
  const tws_profile *profile = p->job->machine->profile;
  const tws_replayed software = {tws_profile_allocator(profile), tws_profile_runtime(profile)->keeps_gradients};
  TWS_TRY(tws_ledger_read(plan, ledger, err));
  TWS_TRY(tws_ledger_replay(plan, &software, p->job->replays, &ledger->tier[TWS_TIER_DEVICE].allocator, err));
  TWS_TRY(tws_stage_read(plan, stage, err));
  copy_device(ledger, stage);
  if (wanted <= plan->accumulation_steps) return TWS_OK;
  for (uint32_t i = 0; i < TWS_NETWORK_INPUTS; i++)
    if (plan->input[i] != TWS_NONE)
      grow_input(&ledger->tier[TWS_TIER_DEVICE], &plan->buffers[plan->input[i]], plan->accumulation_steps, wanted);
  if (ledger->loss_bytes > 0)
    ledger->loss_bytes += ledger->tier[TWS_TIER_DEVICE].arena_bytes - stage->arena_bytes[TWS_TIER_DEVICE];
  stage->arena_bytes[TWS_TIER_DEVICE] = ledger->tier[TWS_TIER_DEVICE].arena_bytes;
  copy_device(ledger, stage);
  return TWS_OK;
}

static tws_code read_rank(several *p, int i, const tws_plan *plan, tws_error *err) {
  p->read[i] = plan->accumulation_steps;
  return read_memory(plan, p->job->request->config->accumulation_steps, p, &p->ledgers[i], &p->each[i], err);
}

/* Builds a rank's plan of few micro-batches, and reads its memory if that plan determines the whole step's. */
static tws_code build_sample(several *p, int i, int64_t micro_batches, tws_error *err) {
  tws_plan_request r = *p->job->request;
  r.rank = p->ranks[i];
  r.max_accumulation = micro_batches;
  r.use = tws_fold_use(&p->job->shape, micro_batches);
  TWS_TRY(tws_plan_build(&r, &p->plans[i], err));
  if (p->read[i] || !tws_fold_determines_memory(p->plans[i], p->job->shape.micro_batches)) return TWS_OK;
  return read_rank(p, i, p->plans[i], err);
}

static tws_code measure_ranks(void *user, int64_t micro_batches, int slot, tws_fold_sample *sample, tws_error *err) {
  several *p = user;
  tws_path_result *paths = p->paths + (size_t)slot * (size_t)p->count;
  tws_code code = TWS_OK;
  uint64_t operations = 0;
  *sample = (tws_fold_sample){.numbers = &paths->step_s,
                              .count = offsetof(tws_path_result, bottleneck) / sizeof(double),
                              .stride = sizeof *paths / sizeof(double),
                              .first_time = offsetof(tws_path_result, passed_s) / sizeof(double),
                              .times = TWS_STREAM_COUNT,
                              .ranks = p->count};
  for (int i = 0; i < p->count && code == TWS_OK; i++) {
    code = build_sample(p, i, micro_batches, err);
    if (code == TWS_OK && p->plans[i]->settled > sample->settled) sample->settled = p->plans[i]->settled;
    if (code == TWS_OK) code = tws_plans_check_length(operations += p->plans[i]->op_count, err);
  }
  const tws_plan *const *plans = (const tws_plan *const *)p->plans;
  if (code == TWS_OK) code = tws_job_path(plans, p->count, p->job->machine, paths, &p->step_s[slot], err);
  sample->step_s = p->step_s[slot];
  for (int i = 0; i < p->count; i++) {
    tws_plan_destroy(p->plans[i]);
    p->plans[i] = NULL;
  }
  return code;
}

static tws_code measure_memory(several *p, tws_error *err) {
  for (int i = 0; i < p->count; i++) {
    tws_plan_request r = *p->job->request;
    tws_plan *plan;
    if (p->read[i]) continue;
    r.rank = p->ranks[i];
    TWS_TRY(tws_fold_plan(&r, &plan, err));
    const tws_code code = read_rank(p, i, plan, err);
    tws_plan_destroy(plan);
    TWS_TRY(code);
  }
  return TWS_OK;
}

/* Writes the estimate of each stage: its memory is that of the rank with the most, its times are those of its rank that
 * waits least. */
static void read_stages(const several *p, const tws_path_result *paths, tws_stage_estimate *stages, tws_estimate *out) {
  /* relative tolerance for rounding of sums; of ranks that are equal within it the first is taken */
  static const double ALIKE = 1e-9;
  int fullest = 0, busiest = 0;
  double bubble = 0; /* mean over all ranks of the share of the step in which a rank waits */
  for (int i = 0; i < p->count; i++) {
    if (out->step_s > 0) bubble += p->shares[i] * paths[i].bubble_s / out->step_s;
    tws_stage_estimate *stage = &stages[p->each[i].stage];
    const uint64_t bytes = p->each[i].arena_bytes[TWS_TIER_DEVICE];
    p->each[i].path = paths[i];
    const int first = i == 0 || p->each[i].stage != p->each[i - 1].stage;
    if (first || bytes > stage->arena_bytes[TWS_TIER_DEVICE]) *stage = p->each[i];
    if (bytes > p->each[fullest].arena_bytes[TWS_TIER_DEVICE]) fullest = i;
    if (paths[i].bubble_s < paths[busiest].bubble_s - ALIKE * out->step_s) busiest = i;
  }
  for (int s = 0; s < p->job->stages; s++) stages[s].path.bottleneck = stages[s].path.text;
  out->balance = tws_stage_compare(stages, p->job->stages);
  out->balance.bubble = bubble;
  out->stage = out->balance.largest;
  out->ledger = p->ledgers[fullest];
  out->built = p->read[fullest];
  out->path = paths[busiest];
  if (p->job->stages == 1) out->balance = (tws_stage_balance){.compute_imbalance = 1, .memory_imbalance = 1};
}

static tws_code estimate_several(several *p, tws_stage_estimate *stages, tws_estimate *out, tws_error *err) {
  tws_folded folded;
  /* the whole step is checked, since a plan of few micro-batches may be legal if the whole step is not */
  TWS_TRY(tws_pipeline_check(&p->job->shape, err));
  TWS_TRY(tws_fold_find(&p->job->shape, p->job->shape.micro_batches, measure_ranks, p, &folded, err));
  TWS_TRY(measure_memory(p, err));
  tws_path_result *paths = p->paths + (size_t)folded.slot * (size_t)p->count;
  out->step_s = p->step_s[folded.slot];
  out->timed = folded.built;
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
  tws_stage_estimate *own = each ? NULL : tws_calloc((size_t)p->job->stages, sizeof *own);
  p->plans = tws_calloc(n, sizeof *p->plans);
  p->ledgers = tws_calloc(n, sizeof *p->ledgers);
  p->paths = tws_calloc(TWS_FOLD_SAMPLES * n, sizeof *p->paths);
  p->each = tws_calloc(n, sizeof *p->each);
  p->read = tws_calloc(n, sizeof *p->read);
  tws_code code = p->plans && p->ledgers && p->paths && p->each && p->read && (each || own)
                      ? estimate_several(p, each ? each : own, out, err)
                      : tws_fail(err, TWS_MEMORY, NULL, "no memory for the estimate");
  tws_free(p->plans);
  tws_free(p->ledgers);
  tws_free(p->paths);
  tws_free(p->each);
  tws_free(p->read);
  tws_free(own);
  return code;
}

tws_code tws_estimate_job_ranks(const tws_estimated_job *job, tws_rank_set *out, tws_error *err) {
  enum { FEW = 16 };
  if (!tws_replicas_are_synchronous(job->request->config) && job->ranks <= FEW)
    return tws_every_rank(job->ranks, out, err);
  return tws_representatives(&job->request->topology, &job->mapping, job->request->config, out, err);
}

tws_code tws_estimate_ranks(const tws_plan_request *request, const tws_machine *machine, tws_rank_set *out,
                            tws_error *err) {
  const tws_estimated_job job = tws_estimated_job_of(request, machine);
  return tws_estimate_job_ranks(&job, out, err);
}

/* Removes ranks with plans equal to that of an earlier rank from the set. Most ranks along an axis differ only in
 * arguments of operations, or in a bias that the first one holds. No rank of a pipeline is removed, since its peers
 * differ, nor are ranks whose groups are placed unevenly on nodes, since they wait for different ranks. */
static tws_code leave_out_alike(several *p, tws_rank_set *set, tws_error *err) {
  enum { WORTH = 4 }; /* steps of fewer micro-batches are not compared, since that takes plans of two micro-batches */
  const int even = tws_mapping_is_even(&p->job->mapping, &p->job->request->topology);
  const int several_alike = even && p->job->stages == 1 && set->count > 2 && p->job->shape.micro_batches > WORTH;
  uint64_t *shapes = tws_calloc((size_t)set->count, sizeof *shapes);
  p->shares = tws_calloc((size_t)set->count, sizeof *p->shares);
  tws_code code = shapes && p->shares ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "no memory for the estimate");
  int kept = 0;
  for (int i = 0; i < set->count && code == TWS_OK; i++) {
    tws_plan_request r = *p->job->request;
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

tws_code tws_estimate_program(const tws_estimated_job *job, tws_estimate *out, tws_stage_estimate *stages,
                              tws_error *err) {
  several p = {.job = job};
  tws_rank_set set;
  memset(out, 0, sizeof *out);
  tws_code code = tws_estimate_job_ranks(job, &set, err);
  if (code == TWS_OK && set.count > MOST_PLANS)
    code = tws_fail(err, TWS_UNSUPPORTED, "use fewer ranks, or a division whose groups lie alike on all nodes",
                    "groups lie unevenly on nodes, and %d ranks are more than are looked at one by one (%d)", set.count,
                    MOST_PLANS);
  if (code == TWS_OK) code = leave_out_alike(&p, &set, err);
  p.ranks = set.ranks;
  p.count = set.count;
  if (code == TWS_OK) code = estimate_ranks(&p, out, stages, err);
  tws_rank_set_free(&set);
  tws_free(p.shares);
  return code;
}
