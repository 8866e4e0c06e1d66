/* Composed steps are the plan's: random models, every kind of parallelism, schedule and recomputation, and random costs
 * for every work, so that what is left out, doubled or moved cannot cancel. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "plan/pipeline_grid.h"
#include "tests/drawn_job.h"
#include "tests/sanitized.h"
#include "tests/suite.h"

enum { JOBS = TWS_SANITIZED ? 60 : 500, MUTATED_JOBS = TWS_SANITIZED ? 12 : 60 };

/* How many: TWINSPEED_COMPOSE_JOBS says another number. */
static uint64_t job_count(void) {
  const char *given = getenv("TWINSPEED_COMPOSE_JOBS");
  return given && atoi(given) > 0 ? (uint64_t)atoi(given) : JOBS;
}

/* ---- random costs ---- */

/* A microsecond to a millisecond, in units whose sums are exact: so steps have to be the same to the last digit. */
static double random_seconds(uint64_t a, uint64_t b, uint64_t c) {
  uint32_t out[4];
  tws_philox(a * 0x9e3779b97f4a7c15u + b, 5, c, out);
  return ldexp(1000 + out[0] % 1000000, -30);
}

/* Of all that a work says, but that groups count by their axes and not by their numbers. */
static double random_work(void *user, const tws_plan *plan, uint32_t index) {
  tws_work work = plan->works[index];
  uint64_t hash = *(const uint64_t *)user;
  if (work.kind == TWS_OP_COLLECTIVE) hash ^= plan->groups[work.group].axes * 77u;
  work.group = 0;
  const unsigned char *bytes = (const unsigned char *)&work;
  for (size_t i = 0; i < sizeof work; i++) hash = (hash ^ bytes[i]) * 0x100000001b3u;
  return random_seconds(hash, hash >> 32, 1);
}

/* Costs of one kind of operation that is left out (0), done twice (2), or whose time another's kind takes too. */
typedef struct mutant {
  uint64_t seed;
  double victim, takes_over; /* seconds that tell the kinds; none is like another's */
  double times;
} mutant;

static double mutated_work(void *user, const tws_plan *plan, uint32_t index) {
  const mutant *m = user;
  uint64_t seed = m->seed;
  const double seconds = random_work(&seed, plan, index);
  return seconds == m->victim ? m->times * seconds : seconds == m->takes_over ? seconds + m->victim : seconds;
}

static double random_message(void *user, const tws_topology *topology, int rank, int peer, uint64_t bytes) {
  const uint64_t seed = *(const uint64_t *)user;
  const int from = tws_topology_index(topology, rank, TWS_AXES_PIPE);
  const int to = tws_topology_index(topology, peer, TWS_AXES_PIPE);
  return 30 * random_seconds(seed + bytes, (uint64_t)from * 1000 + (uint64_t)to, 2); /* often in the way */
}

static double message_of_run(void *user, uint32_t rank, uint32_t op) {
  void **both = user;
  const tws_run *run = both[0];
  const tws_plan *plan = run->ranks[rank].plan;
  const tws_op *o = &plan->ops[op];
  return random_message(both[1], &plan->topology, plan->rank, (int)o->peer, (uint64_t)plan->works[o->work].d[0]);
}

/* ---- what plans say ---- */

typedef struct planned {
  double step_s;
  uint64_t live_bytes;
  int ranks;                         /* that were planned */
  int rank[MOST_RANKS];              /* these, */
  tws_path_result paths[MOST_RANKS]; /* and what they do */
} planned;

/* At these costs of works; NULL: the machine's. */
static planned plan_all(const tws_plan_request *job, const tws_machine *machine, const tws_costs *random) {
  tws_error err = {0};
  tws_rank_set set;
  planned out = {0};
  ck_assert(tws_estimate_ranks(job, machine, &set, &err) == TWS_OK);
  out.ranks = set.count;
  tws_plan **plans = calloc((size_t)set.count, sizeof *plans);
  const double **seconds = calloc((size_t)set.count, sizeof *seconds);
  for (int i = 0; i < set.count; i++) {
    tws_plan_request request = *job;
    tws_ledger ledger;
    request.rank = set.ranks[i];
    if (i < MOST_RANKS) out.rank[i] = request.rank;
    ck_assert_msg(tws_plan_build(&request, &plans[i], &err) == TWS_OK, "%s", err.message);
    ck_assert(tws_ledger_read(plans[i], &ledger, &err) == TWS_OK);
    if (ledger.tier[0].live_bytes > out.live_bytes) out.live_bytes = ledger.tier[0].live_bytes;
    double *costs = calloc(plans[i]->work_count + 1u, sizeof *costs);
    for (uint32_t w = 0; w < plans[i]->work_count && random; w++) costs[w] = random->work(random->user, plans[i], w);
    seconds[i] = costs;
  }
  if (random) {
    const tws_run_request request = {.plans = (const tws_plan *const *)plans,
                                     .count = set.count,
                                     .mode = random->serial ? TWS_RUN_SERIAL : TWS_RUN_STREAMS,
                                     .absent = TWS_ABSENT_ANY};
    tws_run *run;
    ck_assert_msg(tws_run_create(&request, &run, &err) == TWS_OK, "%s", err.message);
    void *both[2] = {run, random->user};
    tws_run_through(run, &(tws_run_durations){seconds, message_of_run, both});
    ck_assert_msg(tws_run_check(run, &err) == TWS_OK, "%s", err.message);
    for (int i = 0; i < set.count; i++)
      for (int q = 0; q < TWS_STREAM_COUNT; q++) out.step_s = fmax(out.step_s, run->ranks[i].free_at[q]);
    for (int i = 0; i < set.count && i < MOST_RANKS; i++) {
      const tws_op_times *times = run->ranks[i].times;
      ck_assert(tws_path_read(plans[i], times, random->serial, out.step_s, &out.paths[i], &err) == TWS_OK);
    }
    tws_run_destroy(run);
  } else {
    ck_assert(tws_job_path((const tws_plan *const *)plans, set.count, machine, out.paths, &out.step_s, &err) == TWS_OK);
  }
  if (job->config->zenflow.on) { /* a machine's, whatever the others are */
    tws_plan_request one = *job;
    tws_estimate between;
    one.max_accumulation = 1;
    ck_assert(tws_estimate_between(&one, machine, &between, &err) == TWS_OK);
    out.step_s += between.step_s;
  }
  for (int i = 0; i < set.count; i++) {
    tws_plan_destroy(plans[i]);
    free((void *)(uintptr_t)seconds[i]);
  }
  free(plans);
  free(seconds);
  tws_rank_set_free(&set);
  return out;
}

typedef struct tally {
  int exact[2];  /* exact: without, with a pipeline */
  int accounts;  /* exact, and so is what is exposed by axis */
  int beside;    /* exact: reductions of stage 1 ran beside the last backward pass */
  int sharded;   /* exact: of stage 3 */
  int offloaded; /* exact: with the optimizer or parameters on the host */
  int fetched;   /* exact: with parameters there */
} tally;

/* Steps that differ from a job in one knob, or in many: pieces that they leave behind have to be the job's own where
 * they are taken for it. What is no legal step leaves none. */
static void compose_neighbours(tws_composer *composer, const drawn_job *j, uint64_t seed) {
  enum { KNOBS = 10, NEIGHBOURS = 12 };
  for (uint64_t i = 0; i < NEIGHBOURS; i++) {
    const uint64_t turned = i < KNOBS ? 1u << i : 1 + draw(seed, 500 + i, (1u << KNOBS) - 1);
    tws_config config = j->config;
    tws_zero_config *z = &config.zero;
    tws_plan_request request = j->request;
    tws_composed composed;
    tws_error err = {0};
    request.config = &config;
    if (turned & 1) z->reduce_bucket_size = 1 + z->reduce_bucket_size / 3;
    if (turned & 2) z->prefetch_bucket_size = 1 + z->prefetch_bucket_size / 5;
    if (turned & 4) z->overlap_comm = !z->overlap_comm;
    if (turned & 8) z->offload_optimizer = !z->offload_optimizer;
    if (turned & 16) config.recompute = (tws_recompute)((config.recompute + 1) % (TWS_RECOMPUTE_FULL + 1));
    if (turned & 32) z->stage = (z->stage + 1) % (config.pipeline_stages > 1 ? 2 : 4);
    if (turned & 64) z->param_persistence_threshold = 1 + z->param_persistence_threshold / 2;
    if (turned & 128) config.micro_batch_size *= 2;
    if (turned & 256 && config.pipeline_stages > 1) { /* the same layers of a stage, or others, in two chunks or one */
      config.virtual_stages = 3 - config.virtual_stages;
      config.pipeline_schedule = config.virtual_stages > 1 ? TWS_PIPELINE_INTERLEAVED : TWS_PIPELINE_1F1B;
    }
    if (turned & 512) config.cpu_checkpointing = !config.cpu_checkpointing;
    const tws_code code = tws_compose(composer, &request, NULL, &composed, &err);
    ck_assert_msg(code == TWS_OK || code == TWS_UNSUPPORTED || code == TWS_INVALID, "seed %d: %s", (int)seed,
                  err.message);
  }
}

/* What a search asks for: no bound that is looked at first refuses a step within its limits, and one beyond them is
 * refused. at_most_s: what the plan takes, or 0. */
static void check_limits(tws_composer *composer, const tws_plan_request *job, const tws_composed *whole,
                         double at_most_s, uint64_t seed) {
  tws_error err = {0};
  for (int beyond = 0; beyond < 2; beyond++) {
    const tws_compose_limits limits = {(double)whole->live_bytes - beyond, at_most_s * (1 + 1e-12), 0};
    tws_composed composed;
    ck_assert(tws_compose(composer, job, &limits, &composed, &err) == TWS_OK);
    ck_assert_msg(composed.too_large == beyond && !composed.too_slow, "seed %d: too large %d of %d, too slow %d",
                  (int)seed, composed.too_large, beyond, composed.too_slow);
    ck_assert(beyond || (composed.step_s == whole->step_s && composed.live_bytes == whole->live_bytes));
  }
}

/* What is exposed, by axis, and what the ranks wait for each other. */
static int check_account(tws_composer *composer, const tws_plan_request *job, const planned *whole, uint64_t seed) {
  tws_composed_account own[MOST_RANKS];
  tws_composed composed;
  tws_error err = {0};
  ck_assert(tws_compose(composer, job, NULL, &composed, &err) == TWS_OK);
  const tws_code code = tws_compose_account(composer, own, &err);
  ck_assert_msg(code == (composed.exact ? TWS_OK : TWS_UNSUPPORTED), "seed %d: %s", (int)seed, err.message);
  const double most = 1e-12 * whole->step_s;
  const int stages = tws_topology_size(&job->topology, TWS_AXES_PIPE);
  for (int i = 0; i < stages && code == TWS_OK; i++) {
    int at = 0;
    while (whole->rank[at] != tws_pipeline_grid_stage(&job->topology, composed.rank, i)) at++;
    const tws_path_result *path = &whole->paths[at];
    ck_assert_msg(fabs(own[i].bubble_s - path->bubble_s) <= most, "seed %d, stage %d: %.15g s waited, %.15g s planned",
                  (int)seed, i, own[i].bubble_s, path->bubble_s);
    for (int axis = 0; axis < TWS_REPORT_COUNT; axis++)
      ck_assert_msg(fabs(own[i].axis_exposed_s[axis] - path->axis_exposed_s[axis]) <= most,
                    "seed %d, stage %d, %s: %.15g s exposed, %.15g s planned", (int)seed, i, tws_report_name(axis),
                    own[i].axis_exposed_s[axis], path->axis_exposed_s[axis]);
  }
  return code == TWS_OK;
}

static void check_job(uint64_t seed, uint64_t cost_seed, int64_t more_layers, int64_t longer, tally *seen) {
  tws_error err = {0};
  drawn_job j;
  draw_job(seed, more_layers, longer, &j);
  const tws_config *config = &j.config;
  const tws_costs random = {
      .work = random_work, .message = random_message, .serial = in_one_queue(seed), .user = &cost_seed};
  tws_composer *composer;
  tws_composed composed;
  ck_assert(tws_composer_create(&j.machine, cost_seed ? &random : NULL, &composer, &err) == TWS_OK);
  if (longer == 1 && seed % 2) compose_neighbours(composer, &j, seed);
  for (int before = longer > 1 ? 3 : 0; before > 0; before--) { /* what is kept of other steps is as good */
    const int64_t own = j.config.accumulation_steps, samples = j.config.train_batch_size / own;
    j.config.accumulation_steps += before * j.config.pipeline_stages;
    j.config.train_batch_size = samples * j.config.accumulation_steps;
    ck_assert(tws_compose(composer, &j.request, NULL, &composed, &err) == TWS_OK);
    j.config.accumulation_steps = own;
    j.config.train_batch_size = samples * own;
  }
  ck_assert_msg(tws_compose(composer, &j.request, NULL, &composed, &err) == TWS_OK, "seed %d: %s", (int)seed,
                err.message);
  const planned whole = plan_all(&j.request, &j.machine, cost_seed ? &random : NULL);
  const double apart = fabs(composed.step_s - whole.step_s) / whole.step_s;
  const int pipeline = config->pipeline_stages > 1;
  ck_assert_msg(composed.exact, "seed %d: a bound", (int)seed);
  /* a plan adds up the passes of a ring tens of thousands of times */
  const double rounded = tws_config_is_ring(config) ? 5e-12 : 1e-12;
  if (composed.exact)
    ck_assert_msg(apart <= (cost_seed ? 0 : rounded),
                  "seed %d: %.15g s composed, %.15g s planned (stages %d, schedule %d, tensor %d)", (int)seed,
                  composed.step_s, whole.step_s, (int)config->pipeline_stages, config->pipeline_schedule,
                  (int)config->tensor_ranks);
  else
    ck_assert_msg(composed.step_s <= whole.step_s * (1 + 1e-12), "seed %d: %.15g s composed, %.15g s planned",
                  (int)seed, composed.step_s, whole.step_s);
  ck_assert_msg(
      composed.bytes_exact ? composed.live_bytes == whole.live_bytes : composed.live_bytes <= whole.live_bytes,
      "seed %d: %lld bytes composed (%d), %lld planned, stages %d, schedule %d, ZeRO %d", (int)seed,
      (long long)composed.live_bytes, composed.bytes_exact, (long long)whole.live_bytes, (int)config->pipeline_stages,
      config->pipeline_schedule, config->zero.stage);
  tws_ledger live;
  ck_assert(tws_estimate_live(&j.request, &j.machine, &live, &err) == TWS_OK);
  const uint64_t live_bytes = live.tier[TWS_TIER_DEVICE].live_bytes;
  ck_assert_msg(live_bytes == whole.live_bytes, "seed %d: %lld bytes alive of few micro-batches, %lld of all",
                (int)seed, (long long)live_bytes, (long long)whole.live_bytes);
  check_limits(composer, &j.request, &composed, whole.step_s, seed);
  seen->accounts += check_account(composer, &j.request, &whole, seed);
  seen->exact[pipeline] += composed.exact;
  seen->beside += composed.exact && config->zero.stage == 1 && config->zero.overlap_comm;
  seen->sharded += composed.exact && config->zero.stage == 3;
  seen->offloaded += composed.exact && tws_config_offloads(config);
  seen->fetched += composed.exact && tws_config_fetches(config);
  tws_composer_destroy(composer);
  drop_job(&j);
}

/* So many jobs behind number `first`, of one kind; every eighth has a machine's costs, the others random ones. */
static tally check_jobs(uint64_t first, uint64_t first_costs, uint64_t jobs) {
  tally seen = {.accounts = 0};
  for (uint64_t seed = 1; seed <= jobs; seed++)
    check_job(first + seed, seed % 8 ? first_costs + seed : 0, 12 * (int64_t)(seed % 3), 1, &seen);
  return seen;
}

START_TEST(composed_steps_are_the_plans) {
  tally seen = {.accounts = 0};
  const uint64_t jobs = job_count();
  for (uint64_t seed = 1; seed <= jobs; seed++) check_job(seed, 1000 + seed, 12 * (int64_t)(seed % 3), 1, &seen);

  ck_assert(seen.exact[0] > (int)jobs / 20 && seen.exact[1] > (int)jobs / 20);
  ck_assert_int_eq(seen.accounts, (int)jobs);
}
END_TEST

/* At a machine's costs, which differ less. */
START_TEST(composed_steps_of_machines_are_the_plans) {
  tally seen = {.accounts = 0};
  const uint64_t jobs = job_count() < 500 ? job_count() : 500;
  for (uint64_t seed = 1; seed <= jobs; seed++) check_job(seed, 0, 12 * (int64_t)(seed % 3), 1, &seen);
  ck_assert_int_eq(seen.accounts, (int)jobs);
}
END_TEST

START_TEST(overlapped_reductions_compose) {
  const uint64_t jobs = job_count() / 4;
  const tally seen = check_jobs(BESIDE, 5000, jobs);
  ck_assert_int_gt(seen.beside, (int)jobs * 3 / 4);
}
END_TEST

START_TEST(moves_beside_layers_compose) {
  const uint64_t jobs = job_count() / 2;
  const tally seen = check_jobs(IN_STEP, 7000, jobs);
  ck_assert_int_gt(seen.exact[0], (int)jobs * 3 / 4);
  ck_assert_int_gt(seen.sharded, (int)jobs * 3 / 8);
}
END_TEST

/* With pipelines and without. */
static void check_both(uint64_t first, uint64_t first_costs) {
  const uint64_t jobs = job_count() / 2;
  const tally seen = check_jobs(first, first_costs, jobs);
  ck_assert_int_gt(seen.exact[0], (int)jobs * 3 / 8);
  ck_assert_int_gt(seen.exact[1], (int)jobs * 3 / 8);
}

START_TEST(exchanges_beside_layers_compose) {
  check_both(EXCHANGED, 3000);
}
END_TEST

START_TEST(rings_compose) {
  check_both(RINGED, 4000);
}
END_TEST

START_TEST(coded_moves_compose) {
  const uint64_t jobs = job_count() / 4;
  const tally seen = check_jobs(CODED, 6000, jobs);
  ck_assert_int_gt(seen.sharded, (int)jobs / 2);
}
END_TEST

START_TEST(ranks_that_are_alike_compose) {
  const uint64_t jobs = job_count() / 4;
  const tally seen = check_jobs(RANKED, 8000, jobs);
  ck_assert_int_gt(seen.sharded, (int)jobs / 4);
}
END_TEST

START_TEST(offloaded_updates_compose) {
  const uint64_t jobs = job_count() / 2;
  const tally seen = check_jobs(OFFLOADED, 7000, jobs);
  ck_assert_int_eq(seen.offloaded, (int)jobs);
}
END_TEST

START_TEST(hosted_optimizers_compose) {
  const uint64_t jobs = job_count() / 2;
  const tally seen = check_jobs(HOSTED, 7500, jobs);
  ck_assert_int_eq(seen.offloaded, (int)jobs);
  ck_assert_int_eq(seen.accounts, (int)jobs);
  ck_assert_int_gt(seen.sharded, (int)jobs / 20);
  ck_assert_int_gt(seen.fetched, (int)jobs / 20);
}
END_TEST

START_TEST(checkpoints_on_hosts_compose) {
  const uint64_t jobs = job_count() / 2;
  const tally seen = check_jobs(CHECKPOINTED, 8500, jobs);
  ck_assert_int_eq(seen.accounts, (int)jobs);
  ck_assert(seen.exact[0] > (int)jobs / 4 && seen.exact[1] > (int)jobs / 8);
  ck_assert_int_gt(seen.sharded, (int)jobs / 20);
  ck_assert_int_gt(seen.offloaded, (int)jobs / 20);
}
END_TEST

/* Many micro-batches, of which few are gone through. */
START_TEST(long_steps_compose) {
  tally seen = {.accounts = 0};
  const uint64_t jobs = job_count() / 6;
  for (uint64_t seed = 1; seed <= jobs; seed++)
    check_job(30000 + seed, 9000 + seed, 6 * (int64_t)(seed % 2), 5 + 3 * (int64_t)(seed % 9), &seen);
  ck_assert(seen.exact[1] > (int)jobs / 20);
}
END_TEST

START_TEST(long_rings_compose) {
  tally seen = {.accounts = 0};
  const uint64_t jobs = job_count() / 12;
  for (uint64_t seed = 1; seed <= jobs; seed++)
    check_job(RINGED + 1000 + seed, 9500 + seed, 6 * (int64_t)(seed % 2), 3 + 4 * (int64_t)(seed % 5), &seen);
  ck_assert(seen.exact[0] > (int)jobs * 3 / 8 && seen.exact[1] > (int)jobs * 3 / 8);
}
END_TEST

/* ---- mutants ---- */

typedef struct killed {
  int made[3], noticed[3];      /* dropped, doubled, moved */
  int exposed[3], accounted[3]; /* likewise, of what is communicated: in the account of the step */
} killed;

/* Less than 0: it is not exact. account: of each stage. */
static double compose_mutant(const tws_plan_request *request, const tws_machine *machine, mutant *m,
                             tws_composed_account *account) {
  tws_error err = {0};
  tws_composer *composer;
  tws_composed composed;
  const tws_costs costs = {.work = mutated_work, .message = random_message, .user = m};
  ck_assert(tws_composer_create(machine, &costs, &composer, &err) == TWS_OK);
  ck_assert_msg(tws_compose(composer, request, NULL, &composed, &err) == TWS_OK, "%s", err.message);
  if (composed.exact) ck_assert(tws_compose_account(composer, account, &err) == TWS_OK);
  tws_composer_destroy(composer);
  return composed.exact ? composed.step_s : -1;
}

/* Whether the account has the communication of a plan that does one thing after another. */
static int is_accounted(const tws_plan *plan, mutant *m, const tws_composed_account *account, double most) {
  double exposed[TWS_REPORT_COUNT] = {0};
  for (uint32_t op = 0; op < plan->op_count; op++)
    if (!tws_op_computes(&plan->ops[op]))
      exposed[tws_report_of_op(plan, &plan->ops[op])] += mutated_work(m, plan, plan->ops[op].work);
  int same = 1;
  for (int axis = 0; axis < TWS_REPORT_COUNT; axis++)
    same &= fabs(exposed[axis] - account->axis_exposed_s[axis]) <= most;
  return same;
}

/* Every few kinds of operations of a job without a pipeline or anything beside, where nothing has time to spare: a
 * step that lacks one, has one twice, or does one where and as often as another is done, is another step. */
static void mutate_job(uint64_t seed, killed *k) {
  tws_error err = {0};
  drawn_job j;
  draw_job(seed, 6, 1, &j);
  j.config.accumulation_steps += j.config.accumulation_steps == 1;
  mutant m = {.seed = 1000 + seed, .victim = -1, .takes_over = -1};
  const tws_config *c = &j.config;
  const int exchanges = (c->tensor_ranks > 1 && c->tensor_overlap) || c->sequence_algorithm == TWS_SEQUENCE_RING;
  const int spares = c->pipeline_stages > 1 || exchanges || (c->zero.stage > 0 && c->zero.overlap_comm);
  tws_composed_account before, account;
  const double whole = spares ? -1 : compose_mutant(&j.request, &j.machine, &m, &before);
  tws_plan *plan = NULL;
  if (whole > 0) ck_assert(tws_plan_build(&j.request, &plan, &err) == TWS_OK);
  for (uint32_t i = (uint32_t)(seed % 5); plan && i < plan->op_count; i += 1 + plan->op_count / 5) {
    uint64_t cost_seed = m.seed;
    while (seed >= CODED && tws_op_computes(&plan->ops[i]) && i + 1 < plan->op_count) i++; /* what ZeRO moves */
    const tws_op *own = &plan->ops[i], *other = &plan->ops[(i + plan->op_count / 2) % plan->op_count];
    const double seconds = random_work(&cost_seed, plan, own->work), taker = random_work(&cost_seed, plan, other->work);
    uint32_t count[2] = {0, 0};
    for (uint32_t op = 0; op < plan->op_count; op++) {
      const double each = random_work(&cost_seed, plan, plan->ops[op].work);
      count[0] += each == seconds;
      count[1] += each == taker;
    }
    for (int kind = 0; kind < 3; kind++) {
      if (kind == 2 && (seconds == taker || count[0] == count[1])) continue; /* as often: the same sum */
      m.victim = seconds;
      m.times = kind == 1 ? 2 : 0;
      m.takes_over = kind == 2 ? taker : -1;
      const double mutated = compose_mutant(&j.request, &j.machine, &m, &account), most = 1e-9 * whole;
      k->made[kind]++;
      k->noticed[kind] += fabs(mutated - whole) > most;
      ck_assert_msg(is_accounted(plan, &m, &account, most), "seed %d, operation %d", (int)seed, (int)i);
      if (tws_op_computes(own)) continue;
      k->exposed[kind]++;
      k->accounted[kind] += !is_accounted(plan, &m, &before, most);
    }
  }
  tws_plan_destroy(plan);
  drop_job(&j);
}

/* Whether an operation runs beside those that compute: what goes to the host, is done there and comes back, and what
 * overlapped steps gather and reduce. */
static int runs_beside(uint64_t seed, const tws_op *o) {
  return o->stream >= TWS_STREAM_COPY_IN || (seed >= IN_STEP && o->stream != TWS_STREAM_COMPUTE);
}

/* The same of what runs beside, where much has time to spare: a step that lacks one is the plan that lacks it, and not
 * the whole one wherever that plan is another. */
static void mutate_beside(uint64_t seed, killed *k) {
  tws_error err = {0};
  drawn_job j;
  draw_job(seed, 6, 1, &j);
  mutant m = {.seed = 1000 + seed, .victim = -1, .takes_over = -1};
  const tws_costs costs = {.work = mutated_work, .message = random_message, .user = &m};
  tws_composed_account account[MOST_RANKS];
  const double whole = compose_mutant(&j.request, &j.machine, &m, account);
  tws_plan *plan;
  ck_assert(tws_plan_build(&j.request, &plan, &err) == TWS_OK);
  uint32_t beside = 0, seen = 0;
  for (uint32_t op = 0; op < plan->op_count; op++) beside += (uint32_t)runs_beside(seed, &plan->ops[op]);
  for (uint32_t op = 0; op < plan->op_count && whole > 0; op++) {
    uint64_t cost_seed = m.seed;
    if (!runs_beside(seed, &plan->ops[op]) || seen++ % (1 + beside / 3)) continue;
    for (int kind = 0; kind < 3; kind++) {
      m.victim = random_work(&cost_seed, plan, plan->ops[op].work);
      m.times = kind == 1 ? 2 : 0;
      m.takes_over = kind == 2 ? random_work(&cost_seed, plan, plan->ops[plan->op_count / 2].work) : -1;
      const double mutated = compose_mutant(&j.request, &j.machine, &m, account);
      const planned other = plan_all(&j.request, &j.machine, &costs);
      ck_assert_msg(fabs(mutated - other.step_s) <= 1e-12 * other.step_s, "seed %d, operation %d: %.15g and %.15g s",
                    (int)seed, (int)op, mutated, other.step_s);
      k->made[kind]++;
      k->noticed[kind] += fabs(other.step_s - whole) > 1e-9 * whole;
    }
  }
  tws_plan_destroy(plan);
  drop_job(&j);
}

START_TEST(mutants_beside_are_noticed) {
  static const uint64_t from[] = {OFFLOADED, IN_STEP, EXCHANGED, RINGED, HOSTED, CHECKPOINTED};
  killed k = {{0}, {0}, {0}, {0}};
  for (uint64_t seed = 1; seed <= MUTATED_JOBS; seed++) mutate_beside(from[_i] + seed, &k);
  for (int kind = 0; kind < 3; kind++) {
    ck_assert_int_ge(k.made[kind], MUTATED_JOBS);
    ck_assert_int_ge(k.noticed[kind], k.made[kind] / 3);
  }
}
END_TEST

START_TEST(mutants_are_noticed) {
  killed k = {{0}, {0}, {0}, {0}};
  for (uint64_t seed = 1; seed <= MUTATED_JOBS; seed++) mutate_job(seed, &k);
  for (uint64_t seed = 1; seed <= MUTATED_JOBS / 3; seed++) mutate_job(CODED + seed, &k);
  for (int kind = 0; kind < 3; kind++) {
    ck_assert_int_ge(k.made[kind], MUTATED_JOBS / 5);
    ck_assert_int_eq(k.noticed[kind], k.made[kind]);
    ck_assert_int_ge(k.exposed[kind], MUTATED_JOBS / 10);
    ck_assert_int_eq(k.accounted[kind], k.exposed[kind]);
  }
}
END_TEST

START_TEST(machine_costs_compose) {
  tally seen = {.accounts = 0};
  for (uint64_t seed = 1; seed <= JOBS / 8; seed++) check_job(70000 + seed, 0, 12 * (int64_t)(seed % 3), 1, &seen);
}
END_TEST

int main(void) {
  const struct {
    const char *name;
    const TTest *test;
    int loops;
  } cases[] = {{"plans", composed_steps_are_the_plans, 1},
               {"near", composed_steps_of_machines_are_the_plans, 1},
               {"beside", overlapped_reductions_compose, 1},
               {"coded", coded_moves_compose, 1},
               {"ranks", ranks_that_are_alike_compose, 1},
               {"offloaded", offloaded_updates_compose, 1},
               {"hosted", hosted_optimizers_compose, 1},
               {"checkpoints", checkpoints_on_hosts_compose, 1},
               {"in step", moves_beside_layers_compose, 1},
               {"exchanged", exchanges_beside_layers_compose, 1},
               {"rings", rings_compose, 1},
               {"long", long_steps_compose, 1},
               {"long rings", long_rings_compose, 1},
               {"mutants", mutants_are_noticed, 1},
               {"mutants beside", mutants_beside_are_noticed, 6},
               {"machine", machine_costs_compose, 1}};
  Suite *suite = suite_create("compose");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) { /* CK_RUN_CASE runs one of them */
    TCase *c = tcase_create(cases[i].name);
    tcase_add_loop_test(c, cases[i].test, 0, cases[i].loops);
    tcase_set_timeout(c, 180);
    suite_add_tcase(suite, c);
  }
  return run_suite(suite);
}
