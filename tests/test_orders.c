/* The order of operations that a plan leaves open does not change the result, and a missing order is detected: if a
 * dependency is removed from a plan, or one rank enters two collectives in reverse order, the result has other bits or
 * the step fails. Only those dependencies are removed without which the plan has a race: no other chain of
 * dependencies, on this rank or over others, leads from the one operation to the other.
 *
 * With TWINSPEED_MUTANTS=N the test removes N dependencies of each job instead of a few. `bench-faults orders`
 * compares orders of the unchanged plans of many random jobs. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "emulation/interleave.h"
#include "emulation/shrink.h"
#include "job/job.h"
#include "job/modules.h"
#include "suite.h"

static const tws_virtual_api *api;
static tws_job *job;
static tws_train_options options;

static int try_open(const tws_job_spec *spec, tws_error *err) {
  const tws_real_api *real;
  if (tws_job_load(spec, &job, err) != TWS_OK) return 0;
  ck_assert_msg(tws_real_load(&real, err) == TWS_OK, "%s", err->message);
  api = real->virtual_ranks;
  options = (tws_train_options){
      .plan = tws_job_request(job, 0), .data = TWS_SOURCE_DIR "/scenarios/faults/text.txt", .steps = 1};
  options.plan.backend = TWS_BACKEND_HOST;
  return 1;
}

static tws_job_spec small_job(void) {
  tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
  spec.model = TWS_SOURCE_DIR "/scenarios/faults/model.json";
  spec.cluster = "dgx-a100";
  return spec;
}

#define OVERLAP "zero_optimization.overlap_comm=true"
static const struct {
  int stage, pipeline, tensor, sequence, accumulation;
  const char *schedule, *set[2];
} jobs[] = {{.stage = 2, .accumulation = 2, .set = {OVERLAP, "zero_optimization.reduce_bucket_size=3000"}},
            {.stage = 3, .accumulation = 2, .set = {OVERLAP}},
            {.stage = 1, .pipeline = 2, .accumulation = 4},
            {.stage = 1, .pipeline = 2, .accumulation = 4, .schedule = "zb-h1", .set = {OVERLAP}},
            {.stage = 3, .sequence = 2, .accumulation = 1},
            {.stage = 3, .accumulation = 2, .set = {"zero_optimization.offload_param.device=cpu"}},
            {.stage = 2, .accumulation = 1, .set = {OVERLAP, "zero_optimization.offload_optimizer.device=cpu"}},
            {.stage = 1, .tensor = 2, .accumulation = 2, .set = {"tensor_parallel.tp_overlap_comm=true"}}};
enum { JOBS = sizeof jobs / sizeof *jobs };

static void open_job(int number) {
  tws_job_spec spec = small_job();
  spec.ranks = 4;
  spec.stage = jobs[number].stage;
  spec.pipeline_stages = jobs[number].pipeline;
  spec.tensor_ranks = jobs[number].tensor;
  spec.sequence_ranks = jobs[number].sequence;
  spec.accumulation = jobs[number].accumulation;
  spec.schedule = jobs[number].schedule;
  for (int i = 0; i < 2 && jobs[number].set[i]; i++) spec.set.item[spec.set.count++] = jobs[number].set[i];
  tws_error err = {0};
  ck_assert_msg(try_open(&spec, &err), "job %d: %s", number, err.message);
}

/* ---- plans with a mistake: see the top of this file ---- */

enum { MOST_RANKS = 8 };
typedef struct mistake {
  int rank;
  uint32_t op, dep;       /* dependency number `dep` of operation `op` is removed; or */
  uint32_t first, second; /* these two change places */
  int swaps;
} mistake;
static mistake made;

static uint32_t meant(uint32_t rank, uint32_t op) {
  if (!made.swaps || (int)rank != made.rank) return op;
  return op == made.first ? made.second : op == made.second ? made.first : op;
}

static tws_code run(tws_virtual *ranks, tws_program program, uint32_t rank, uint32_t op, tws_error *err) {
  return api->run(ranks, program, rank, meant(rank, op), err);
}

static tws_code meet(tws_virtual *ranks, tws_program program, const tws_run_member *members, uint32_t count,
                     tws_error *err) {
  tws_run_member true_members[MOST_RANKS];
  for (uint32_t i = 0; i < count; i++)
    true_members[i] = (tws_run_member){.rank = members[i].rank, .op = meant(members[i].rank, members[i].op)};
  return api->meet(ranks, program, true_members, count, err);
}

/* Makes a copy of a plan with the mistake; the copy shares all unchanged parts with the plan. */
static void make(const mistake *m, const tws_plan *plan, tws_plan *copy) {
  *copy = *plan;
  copy->ops = malloc(plan->op_count * sizeof *copy->ops);
  copy->deps = malloc((plan->dep_count + 1) * sizeof *copy->deps);
  memcpy(copy->ops, plan->ops, plan->op_count * sizeof *copy->ops);
  if (plan->dep_count) memcpy(copy->deps, plan->deps, plan->dep_count * sizeof *copy->deps);
  if (m->swaps) return;
  tws_op *op = &copy->ops[m->op];
  copy->deps[op->dep_first + m->dep] = copy->deps[op->dep_first + op->dep_count - 1u];
  op->dep_count--;
}

static void unmake(tws_plan *copy) {
  free(copy->ops);
  free(copy->deps);
}

/* Runs one step in the order of this seed; returns a digest of the state, or 0 for an error. m NULL: the plans without
 * a mistake. */
static uint64_t step(const mistake *m, uint64_t seed) {
  tws_virtual *ranks;
  tws_error err = {0};
  tws_virtual_api spoilt = *api;
  const tws_plan *plans[MOST_RANKS];
  tws_plan copy;
  uint64_t digest = 0;
  int count;
  ck_assert_msg(api->open(&options, &ranks, &err) == TWS_OK, "%s", err.message);
  const tws_plan *const *all = api->plans(ranks, TWS_PROGRAM_TRAIN, &count);
  ck_assert_int_le(count, MOST_RANKS);
  memcpy(plans, all, (size_t)count * sizeof *plans);
  made = m ? *m : (mistake){.rank = -1};
  if (m) {
    make(m, plans[m->rank], &copy);
    plans[m->rank] = &copy;
    spoilt.run = run;
    spoilt.meet = meet;
  }
  const tws_interleaving order = {
      .plans = plans, .count = count, .api = &spoilt, .ranks = ranks, .program = TWS_PROGRAM_TRAIN, .seed = seed};
  tws_step_report report;
  if (api->begin(ranks, 1, &err) == TWS_OK && tws_interleave(&order, &err) == TWS_OK &&
      api->end(ranks, 1, &report, &err) == TWS_OK)
    digest = api->digest(ranks);
  if (m) unmake(&copy);
  api->close(ranks);
  return digest;
}

/* The plans of all ranks, in one of which a mistake is made. */
static tws_plan *plans_of[MOST_RANKS];

static void build_plans(void) {
  for (int rank = 0; rank < job->ranks; rank++) {
    tws_plan_request request = tws_job_request(job, rank);
    tws_error err = {0};
    request.backend = TWS_BACKEND_HOST;
    ck_assert_msg(tws_plan_build(&request, &plans_of[rank], &err) == TWS_OK, "%s", err.message);
  }
}

static void close_job(void) {
  for (int rank = 0; rank < job->ranks; rank++) tws_plan_destroy(plans_of[rank]);
  memset(plans_of, 0, sizeof plans_of);
  tws_job_destroy(job);
}

/* Returns 1 if an operation still comes after the one on which its dependency was removed: that one is never started,
 * and when everything has run that can run without it, the operation has not. */
static int is_implied(const mistake *m, uint32_t missed, const tws_plan *copy) {
  const tws_plan *plans[MOST_RANKS];
  tws_run *order;
  tws_run_start start;
  tws_error err = {0};
  for (int rank = 0; rank < job->ranks; rank++) plans[rank] = rank == m->rank ? copy : plans_of[rank];
  const tws_run_request request = {.plans = plans, .count = job->ranks, .mode = TWS_RUN_STREAMS, .every_rendezvous = 1};
  ck_assert_msg(tws_run_create(&request, &order, &err) == TWS_OK, "%s", err.message);
  while (tws_run_next(order, &start)) {
    const uint32_t id = start.rendezvous;
    if (id == TWS_NONE) {
      if ((int)start.rank != m->rank || start.op != missed) tws_run_end(order, start.rank, start.op, 0);
      continue;
    }
    if (order->ranks[m->rank].rendezvous[missed] == id) continue;
    const tws_rendezvous met = order->rendezvous[id];
    for (uint32_t i = 0; i < met.needed; i++)
      tws_run_end(order, order->members[met.member_first + i].rank, order->members[met.member_first + i].op, 0);
  }
  const int comes = order->ranks[m->rank].state[m->op] == TWS_RUN_WAITS;
  tws_run_destroy(order);
  return comes;
}

/* Returns 1 if the plan is wrong without the dependency: it then has a race, or leaves the order of a channel open,
 * that no other dependency keeps. */
static int counts(const mistake *m) {
  const tws_plan *plan = plans_of[m->rank];
  const uint32_t missed = plan->deps[plan->ops[m->op].dep_first + m->dep];
  tws_plan copy;
  tws_error err = {0};
  make(m, plan, &copy);
  const int wrong = tws_plan_verify(&copy, &err) != TWS_OK && !is_implied(m, missed, &copy);
  unmake(&copy);
  return wrong;
}

/* Returns the seed of an order that reveals the mistake, or 0. */
static uint64_t caught_by(const mistake *m, uint64_t right) {
  const tws_plan *plans[MOST_RANKS];
  for (int rank = 0; rank < job->ranks; rank++) plans[rank] = plans_of[rank];
  const uint64_t last = tws_interleave_seeds(plans, job->ranks);
  for (uint64_t seed = 1; seed <= last; seed++)
    if (step(m, seed) != right) return seed;
  return 0;
}

enum { ORDERS = 12 };

START_TEST(every_order_gives_the_same_bits) {
  open_job(_i);
  const uint64_t first = step(NULL, 0);
  ck_assert(first != 0);
  for (uint64_t seed = 1; seed <= ORDERS; seed++) ck_assert(step(NULL, seed) == first);
  tws_job_destroy(job);
}
END_TEST

static void say_missed(const mistake *m) {
  char to[160], from[160];
  const tws_plan *plan = plans_of[m->rank];
  printf("missed: rank %d, operation %u (%s) does not wait for %u (%s)\n", m->rank, m->op,
         tws_op_label(plan, m->op, to, sizeof to), plan->deps[plan->ops[m->op].dep_first + m->dep],
         tws_op_label(plan, plan->deps[plan->ops[m->op].dep_first + m->dep], from, sizeof from));
}

START_TEST(a_dependency_that_is_left_out_is_seen) {
  const char *asked = getenv("TWINSPEED_MUTANTS");
  const int wanted = asked ? atoi(asked) : 4;
  open_job(_i);
  build_plans();
  const uint64_t right = step(NULL, 0);
  const tws_plan *plan = plans_of[1];
  int tried = 0, caught = 0, redundant = 0;
  for (uint32_t n = 0; tried < wanted && n < plan->op_count; n++) {
    const uint32_t op = (uint32_t)tws_random_permute(7, plan->op_count, n);
    for (uint32_t dep = 0; dep < plan->ops[op].dep_count && tried < wanted; dep++) {
      const mistake m = {.rank = 1, .op = op, .dep = dep};
      if (!counts(&m)) {
        redundant++;
        continue;
      }
      const int seen = caught_by(&m, right) != 0;
      if (!seen) say_missed(&m);
      caught += seen;
      tried++;
    }
  }
  if (asked)
    printf("job %d: %d of %d are seen; %d that other chains imply were left alone\n", _i, caught, tried, redundant);
  ck_assert_int_ge(tried, wanted < 4 ? wanted : 4);
  ck_assert_msg(caught == tried, "%d of %d are seen", caught, tried);
  close_job();
}
END_TEST

START_TEST(collectives_that_change_places_are_caught) {
  open_job(_i);
  build_plans();
  const uint64_t right = step(NULL, 0);
  const tws_plan *plan = plans_of[2];
  int tried = 0;
  uint32_t before = TWS_NONE;
  for (uint32_t op = 0; op < plan->op_count && tried < 4; op++) {
    if (plan->ops[op].kind != TWS_OP_COLLECTIVE) continue;
    if (before != TWS_NONE) {
      const mistake m = {.rank = 2, .swaps = 1, .first = before, .second = op};
      ck_assert_msg(caught_by(&m, right) != 0, "operations %u and %u", before, op);
      tried++;
    }
    before = op;
  }
  ck_assert_int_ge(tried, 1);
  close_job();
}
END_TEST

/* ---- a failing job is reduced to a smaller one ---- */

/* Returns 1 if some order reveals the defect of a job, which is that an operation of the last rank does not wait for a
 * collective. */
static int is_defective(void *user, const tws_job_spec *spec) {
  uint64_t *seed = user, found = 0;
  tws_error err = {0};
  if (spec->ranks > MOST_RANKS || !try_open(spec, &err)) return 0;
  build_plans();
  mistake m = {.rank = job->ranks - 1};
  const tws_plan *plan = plans_of[m.rank];
  int there = 0;
  for (uint32_t op = 0; op < plan->op_count && !there; op++)
    for (uint32_t dep = 0; dep < plan->ops[op].dep_count && !there; dep++) {
      m.op = op;
      m.dep = dep;
      there = plan->ops[plan->deps[plan->ops[op].dep_first + dep]].kind == TWS_OP_COLLECTIVE && counts(&m);
    }
  const uint64_t right = step(NULL, 0);
  if (there && right) found = caught_by(&m, right);
  if (found) { /* the seed reveals the defect again */
    const uint64_t wrong = step(&m, found);
    ck_assert(wrong != right && step(&m, found) == wrong && step(NULL, found) == right);
    *seed = found;
  }
  close_job();
  return found != 0;
}

START_TEST(a_job_that_fails_is_made_smaller) {
  tws_job_spec spec = small_job();
  uint64_t seed = 0;
  spec.ranks = 8;
  spec.tensor_ranks = 2;
  spec.stage = 3;
  spec.accumulation = 2;
  spec.micro_batch = 2;
  spec.dtype = "bf16";
  spec.recompute = "full";
  spec.set.item[spec.set.count++] = "gradient_clipping=0.5";
  spec.set.item[spec.set.count++] = OVERLAP;
  ck_assert(is_defective(&seed, &spec));
  ck_assert_int_gt(tws_job_minimize(&spec, is_defective, &seed), 0);
  ck_assert_int_eq(spec.ranks, 2); /* with one rank there would be no collective */
  ck_assert_int_eq(spec.tensor_ranks, 1);
  ck_assert_int_eq(spec.accumulation, 1);
  ck_assert_int_eq(spec.micro_batch, 1);
  ck_assert(!spec.recompute && !spec.dtype);
  ck_assert_int_eq(spec.set.count, 1); /* without overlap_comm collectives are on the stream of the kernels */
  ck_assert_str_eq(spec.set.item[0], OVERLAP);
  ck_assert_int_eq(spec.stage, 1); /* at stage 0 reductions are on the stream of the kernels */
  ck_assert_msg(is_defective(&seed, &spec) && seed > 0, "it does not fail any more");
}
END_TEST

int main(void) {
  Suite *suite = suite_create("orders");
  TCase *tests = tcase_create("orders");
  tcase_set_timeout(tests, 600);
  tcase_add_loop_test(tests, every_order_gives_the_same_bits, 0, JOBS);
  tcase_add_loop_test(tests, a_dependency_that_is_left_out_is_seen, 0, JOBS);
  tcase_add_loop_test(tests, collectives_that_change_places_are_caught, 0, 2);
  tcase_add_test(tests, a_job_that_fails_is_made_smaller);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
