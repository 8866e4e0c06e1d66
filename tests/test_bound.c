/* Bounds never exceed the exact value: for random legal jobs of all kinds, with random costs and with a machine's
 * costs. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "estimators/bound.h"
#include "tests/drawn_job.h"
#include "tests/sanitized.h"
#include "tests/suite.h"

enum { JOBS = TWS_SANITIZED ? 3 : 40 }; /* jobs of each kind; TWINSPEED_BOUND_JOBS overrides the number */

static const uint64_t kinds[] = {0, BESIDE, CODED, OFFLOADED, RANKED, IN_STEP, EXCHANGED, RINGED, HOSTED, CHECKPOINTED};
enum { KINDS = sizeof kinds / sizeof *kinds };

static uint64_t job_count(void) {
  const char *given = getenv("TWINSPEED_BOUND_JOBS");
  return given && atoi(given) > 0 ? (uint64_t)atoi(given) : JOBS;
}

/* ---- random costs ---- */

static double random_seconds(uint64_t a, uint64_t b, uint64_t c) {
  uint32_t out[4];
  tws_philox(a * 0x9e3779b97f4a7c15u + b, 5, c, out);
  return ldexp(1000 + out[0] % 1000000, -30);
}

/* Returns random seconds for a work: a hash of all its members, with the axes of its group in place of the group's
 * number. */
static double random_work(void *user, const tws_plan *plan, uint32_t index) {
  tws_work work = plan->works[index];
  uint64_t hash = *(const uint64_t *)user;
  if (work.kind == TWS_OP_COLLECTIVE) hash ^= plan->groups[work.group].axes * 77u;
  work.group = 0;
  const unsigned char *bytes = (const unsigned char *)&work;
  for (size_t i = 0; i < sizeof work; i++) hash = (hash ^ bytes[i]) * 0x100000001b3u;
  return random_seconds(hash, hash >> 32, 1);
}

static double random_message(void *user, const tws_plan *plan, uint32_t peer, uint32_t work) {
  const uint64_t seed = *(const uint64_t *)user + (uint64_t)plan->works[work].d[0];
  const int from = tws_topology_index(&plan->topology, plan->rank, TWS_AXES_PIPE);
  const int to = tws_topology_index(&plan->topology, (int)peer, TWS_AXES_PIPE);
  return 30 * random_seconds(seed, (uint64_t)(from < to ? from : to) * 1000 + (uint64_t)(from + to), 2);
}

typedef struct run_costs {
  const tws_bound_costs *costs;
  const tws_run *run;
} run_costs;

static double message_of_run(void *user, uint32_t rank, uint32_t op) {
  const run_costs *c = user;
  const tws_plan *plan = c->run->ranks[rank].plan;
  return c->costs->message(c->costs->user, plan, plan->ops[op].peer, plan->ops[op].work);
}

/* ---- what plans say ---- */

typedef struct planned {
  double step_s;
  uint32_t operations; /* most operations of a rank */
  tws_ledger ledger;   /* ledger of the rank with the most live bytes on its device */
} planned;

static double random_step(const tws_plan *const *plans, int count, const tws_bound_costs *costs) {
  const tws_run_request request = {.plans = plans,
                                   .count = count,
                                   .mode = costs->serial ? TWS_RUN_SERIAL : TWS_RUN_STREAMS,
                                   .absent = TWS_ABSENT_ANY};
  const double **seconds = calloc((size_t)count, sizeof *seconds);
  tws_error err = {0};
  double step_s = 0;
  tws_run *run;
  for (int i = 0; i < count; i++) {
    double *own = calloc(plans[i]->work_count + 1u, sizeof *own);
    for (uint32_t w = 0; w < plans[i]->work_count; w++) own[w] = costs->work(costs->user, plans[i], w);
    seconds[i] = own;
  }
  ck_assert_msg(tws_run_create(&request, &run, &err) == TWS_OK, "%s", err.message);
  run_costs of_run = {costs, run};
  tws_run_all(run, &(tws_run_durations){seconds, message_of_run, &of_run});
  ck_assert_msg(tws_run_check(run, &err) == TWS_OK, "%s", err.message);
  for (int i = 0; i < count; i++)
    for (int q = 0; q < TWS_STREAM_COUNT; q++) step_s = fmax(step_s, run->ranks[i].free_at[q]);
  tws_run_destroy(run);
  for (int i = 0; i < count; i++) free((void *)(uintptr_t)seconds[i]);
  free(seconds);
  return step_s;
}

/* Builds the whole plans of all representative ranks, and returns the seconds of a step and the largest ledger. costs
 * NULL: the machine's costs. */
static planned plan_whole(const drawn_job *j, const tws_bound_costs *costs, uint64_t seed) {
  tws_error err = {0};
  tws_rank_set set;
  planned out = {0};
  ck_assert(tws_estimate_ranks(&j->request, &j->machine, &set, &err) == TWS_OK);
  tws_plan **plans = calloc((size_t)set.count, sizeof *plans);
  for (int i = 0; i < set.count; i++) {
    tws_plan_request request = j->request;
    tws_ledger ledger;
    request.rank = set.ranks[i];
    ck_assert_msg(tws_plan_build(&request, &plans[i], &err) == TWS_OK, "seed %d: %s", (int)seed, err.message);
    ck_assert(tws_ledger_read(plans[i], &ledger, &err) == TWS_OK);
    if (plans[i]->op_count > out.operations) out.operations = plans[i]->op_count;
    if (i == 0 || ledger.tier[TWS_TIER_DEVICE].live_bytes > out.ledger.tier[TWS_TIER_DEVICE].live_bytes)
      out.ledger = ledger;
  }
  const tws_plan *const *all = (const tws_plan *const *)plans;
  if (costs)
    out.step_s = random_step(all, set.count, costs);
  else
    ck_assert(tws_job_path(all, set.count, &j->machine, NULL, &out.step_s, &err) == TWS_OK);
  for (int i = 0; i < set.count; i++) tws_plan_destroy(plans[i]);
  free(plans);
  tws_rank_set_free(&set);
  return out;
}

/* ---- jobs ---- */

/* Asserts that a bound is not above the plan's value. The plan's seconds are a sum with one rounded addition for each
 * operation, and equal addends are rounded in one direction, while the bound multiplies: so `additions` times half a
 * unit in the last place are allowed. */
static void no_more(double bound, double whole, uint32_t additions, const char *what, uint64_t seed) {
  ck_assert_msg(bound <= whole * (1 + 1e-12 + additions * 0x1p-53),
                "seed %llu: %s at least %.15g, and %.15g of the plan", (unsigned long long)seed, what, bound, whole);
}

static void check_memory(const drawn_job *j, const tws_bound *bound, const planned *whole, uint64_t seed) {
  tws_error err = {0};
  tws_bound passes;
  tws_bound_bytes state;
  ck_assert_msg(tws_bound_passes(&j->request, &j->machine, &passes, &err) == TWS_OK, "%s", err.message);
  ck_assert_msg(tws_bound_state(&j->request, &state, &err) == TWS_OK, "%s", err.message);
  const double device = (double)whole->ledger.tier[TWS_TIER_DEVICE].live_bytes;
  no_more((double)bound->ledger.tier[TWS_TIER_DEVICE].live_bytes, device, 0, "device bytes", seed);
  no_more(
      (double)passes.ledger.tier[TWS_TIER_DEVICE].live_bytes + (double)state.always.tier[TWS_TIER_DEVICE].live_bytes,
      device, 0, "device bytes of passes and state", seed);
  no_more((double)state.end.tier[TWS_TIER_DEVICE].live_bytes, device, 0, "device bytes after the step", seed);
}

static double check_job(uint64_t seed, int random, int64_t longer) {
  uint64_t cost_seed = seed * 31 + 7;
  const tws_bound_costs costs = {random_work, random_message, in_one_queue(seed), &cost_seed};
  tws_error err = {0};
  tws_bound bound, passes;
  drawn_job j;
  draw_job(seed, 12 * (int64_t)(seed % 3), longer, &j);
  const planned whole = plan_whole(&j, random ? &costs : NULL, seed);
  const tws_code code = random ? tws_bound_step_at(&j.request, &costs, &bound, &err)
                               : tws_bound_step(&j.request, &j.machine, &bound, &err);
  ck_assert_msg(code == TWS_OK, "seed %llu: %s", (unsigned long long)seed, err.message);
  no_more(bound.step_s, whole.step_s, whole.operations, "seconds", seed);
  check_memory(&j, &bound, &whole, seed);
  if (!random) {
    ck_assert(tws_bound_passes(&j.request, &j.machine, &passes, &err) == TWS_OK);
    no_more(passes.step_s, whole.step_s, whole.operations, "seconds of kernels", seed);
    ck_assert(tws_bound_layers(&j.request, &j.machine, &passes, &err) == TWS_OK);
    no_more(passes.step_s, bound.step_s, whole.operations, "seconds of layers", seed);
  }
  drop_job(&j);
  return bound.step_s / whole.step_s;
}

static int upwards(const void *left, const void *right) {
  const double a = *(const double *)left, b = *(const double *)right;
  return a < b ? -1 : a > b;
}

static void check_jobs(int random) {
  const uint64_t jobs = job_count();
  double *ratios = calloc((size_t)jobs * KINDS, sizeof *ratios);
  size_t count = 0, low = 0;
  for (int k = 0; k < KINDS; k++)
    for (uint64_t seed = 1; seed <= jobs; seed++) {
      ratios[count] = check_job(kinds[k] + seed, random, seed % 4 == 0 ? 5 : 1);
      low += ratios[count++] < 0.4;
    }
  qsort(ratios, count, sizeof *ratios, upwards);
  printf("%s costs, bound / plan of %zu jobs: least %.3f, 5 %% below %.3f, median %.3f, most %.6f\n",
         random ? "random" : "a machine's", count, ratios[0], ratios[count / 20], ratios[count / 2], ratios[count - 1]);
  if (!random) {
    ck_assert_msg(ratios[count / 2] >= 0.7, "the median is %.3f", ratios[count / 2]);
    ck_assert_msg(20 * low <= count, "%zu of %zu are below 0.4", low, count);
  }
  free(ratios);
}

START_TEST(bounds_hold_at_random_costs) {
  check_jobs(1);
}
END_TEST

START_TEST(bounds_hold_and_are_near_at_a_machines_costs) {
  check_jobs(0);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("bound");
  TCase *c = tcase_create("bound");
  tcase_set_timeout(c, 300);
  tcase_add_test(c, bounds_hold_at_random_costs);
  tcase_add_test(c, bounds_hold_and_are_near_at_a_machines_costs);
  suite_add_tcase(suite, c);
  return run_suite(suite);
}
