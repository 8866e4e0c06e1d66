/* The order that a plan leaves open does not matter; one that it should have laid down does, and is missed at once: a
 * dependency that is left out, or two collectives that one rank enters the other way round, end in other bits or in an
 * error. bench-faults looks at the plans of thousands of random jobs. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "emulation/interleave.h"
#include "job/job.h"
#include "job/modules.h"

static const tws_virtual_api *api;
static tws_job *job;
static tws_train_options options;

static void open_job(int stage, int pipeline) {
  tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
  const tws_real_api *real;
  tws_error err = {0};
  spec.model = TWS_SOURCE_DIR "/scenarios/faults/model.json";
  spec.cluster = "dgx-a100";
  spec.ranks = 4;
  spec.stage = stage;
  spec.pipeline_stages = pipeline;
  spec.accumulation = pipeline > 1 ? 4 : 2;
  ck_assert_msg(tws_job_load(&spec, &job, &err) == TWS_OK, "%s", err.message);
  ck_assert_msg(tws_real_load(&real, &err) == TWS_OK, "%s", err.message);
  api = real->virtual_ranks;
  options = (tws_train_options){
      .plan = tws_job_request(job, 0), .data = TWS_SOURCE_DIR "/scenarios/faults/text.txt", .steps = 1};
  options.plan.backend = TWS_BACKEND_HOST;
}

/* ---- plans with a mistake ---- */

enum { RANKS = 4 };
typedef struct mistake {
  int rank;
  uint32_t op, dep;       /* the dependency number `dep` of an operation is left out; or */
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
  tws_run_member true_members[RANKS];
  for (uint32_t i = 0; i < count; i++)
    true_members[i] = (tws_run_member){.rank = members[i].rank, .op = meant(members[i].rank, members[i].op)};
  return api->meet(ranks, program, true_members, count, err);
}

/* One step in the order of this seed; the digest, or 0 for an error. m NULL: the plans as they are. */
static uint64_t step(const mistake *m, uint64_t seed) {
  tws_virtual *ranks;
  tws_error err = {0};
  tws_virtual_api spoilt = *api;
  const tws_plan *plans[RANKS];
  tws_plan copy;
  uint64_t digest = 0;
  int count;
  ck_assert_msg(api->open(&options, &ranks, &err) == TWS_OK, "%s", err.message);
  const tws_plan *const *all = api->plans(ranks, TWS_PROGRAM_TRAIN, &count);
  ck_assert_int_eq(count, RANKS);
  memcpy(plans, all, sizeof plans);
  tws_op *ops = NULL;
  uint32_t *deps = NULL;
  made = m ? *m : (mistake){.rank = -1};
  if (m) {
    const tws_plan *plan = plans[m->rank];
    copy = *plan;
    ops = malloc(plan->op_count * sizeof *ops);
    deps = malloc((plan->dep_count + 1) * sizeof *deps);
    memcpy(ops, plan->ops, plan->op_count * sizeof *ops);
    if (plan->dep_count) memcpy(deps, plan->deps, plan->dep_count * sizeof *deps);
    copy.ops = ops;
    copy.deps = deps;
    if (!m->swaps) {
      const tws_op *op = &ops[m->op];
      deps[op->dep_first + m->dep] = deps[op->dep_first + op->dep_count - 1u];
      ops[m->op].dep_count--;
    }
    plans[m->rank] = &copy;
    spoilt.run = run;
    spoilt.meet = meet;
  }
  const tws_interleaving order = {
      .plans = plans, .count = RANKS, .api = &spoilt, .ranks = ranks, .program = TWS_PROGRAM_TRAIN, .seed = seed};
  tws_step_report report;
  if (api->begin(ranks, 1, &err) == TWS_OK && tws_interleave(&order, &err) == TWS_OK &&
      api->end(ranks, 1, &report, &err) == TWS_OK)
    digest = api->digest(ranks);
  api->close(ranks);
  free(ops);
  free(deps);
  return digest;
}

/* The plan of a rank, for choosing what to spoil. */
static tws_plan *plan_of(int rank) {
  tws_plan_request request = tws_job_request(job, rank);
  tws_plan *plan;
  tws_error err = {0};
  request.backend = TWS_BACKEND_HOST;
  ck_assert_msg(tws_plan_build(&request, &plan, &err) == TWS_OK, "%s", err.message);
  return plan;
}

/* Whether an operation reads what this dependency of it writes. */
static int carries_data(const tws_plan *plan, uint32_t op, uint32_t dep) {
  const tws_op *to = &plan->ops[op], *from = &plan->ops[plan->deps[to->dep_first + dep]];
  for (uint32_t i = 0; i < to->operand_count; i++)
    for (uint32_t k = 0; k < from->operand_count; k++) {
      const tws_operand *reads = &plan->operands[to->operand_first + i],
                        *writes = &plan->operands[from->operand_first + k];
      if ((reads->access & TWS_READ) && (writes->access & TWS_WRITE) && reads->buffer == writes->buffer &&
          reads->offset < writes->offset + writes->count && writes->offset < reads->offset + reads->count)
        return 1;
    }
  return 0;
}

static const struct { int stage, pipeline; } jobs[] = {{2, 1}, {3, 1}, {1, 2}};

enum { TRIES = 12 };

static int is_caught(const mistake *m, uint64_t right) {
  for (uint64_t seed = 1; seed <= TRIES; seed++)
    if (step(m, seed) != right) return 1;
  return 0;
}

START_TEST(every_order_gives_the_same_bits) {
  open_job(jobs[_i].stage, jobs[_i].pipeline);
  const uint64_t first = step(NULL, 0);
  ck_assert(first != 0);
  for (uint64_t seed = 1; seed <= TRIES; seed++) ck_assert(step(NULL, seed) == first);
  tws_job_destroy(job);
}
END_TEST

START_TEST(a_dependency_that_is_left_out_is_missed) {
  open_job(jobs[_i].stage, jobs[_i].pipeline);
  const uint64_t right = step(NULL, 0);
  tws_plan *plan = plan_of(1);
  int tried = 0, caught = 0;
  for (uint32_t n = 0; tried < 6 && n < 400; n++) {
    const uint32_t op = (uint32_t)(tws_random_uniform(7, (uint64_t)_i, n) * plan->op_count);
    uint32_t dep = 0;
    while (dep < plan->ops[op].dep_count && !carries_data(plan, op, dep)) dep++;
    if (dep == plan->ops[op].dep_count) continue;
    const mistake m = {.rank = 1, .op = op, .dep = dep};
    tried++;
    caught += is_caught(&m, right);
  }
  ck_assert_int_ge(tried, 3);
  /* What is gathered again is the same as what was there before: to read too early is to read the same. */
  ck_assert_msg(2 * caught >= tried, "%d of %d are caught", caught, tried);
  tws_plan_destroy(plan);
  tws_job_destroy(job);
}
END_TEST

START_TEST(collectives_that_change_places_are_caught) {
  open_job(jobs[_i].stage, 1);
  const uint64_t right = step(NULL, 0);
  tws_plan *plan = plan_of(2);
  int tried = 0;
  uint32_t before = TWS_NONE;
  for (uint32_t op = 0; op < plan->op_count && tried < 4; op++) {
    if (plan->ops[op].kind != TWS_OP_COLLECTIVE) continue;
    if (before != TWS_NONE) {
      const mistake m = {.rank = 2, .swaps = 1, .first = before, .second = op};
      ck_assert_msg(is_caught(&m, right), "operations %u and %u", before, op);
      tried++;
    }
    before = op;
  }
  ck_assert_int_ge(tried, 1);
  tws_plan_destroy(plan);
  tws_job_destroy(job);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("orders");
  TCase *tests = tcase_create("orders");
  tcase_add_loop_test(tests, every_order_gives_the_same_bits, 0, 3);
  tcase_add_loop_test(tests, a_dependency_that_is_left_out_is_missed, 1, 3);
  tcase_add_loop_test(tests, collectives_that_change_places_are_caught, 0, 2);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  const int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
