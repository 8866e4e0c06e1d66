/* The simulator on plans of GPT-2: with formulas a step takes the plan's longest path, and timelines keep the plan's
 * order. */
#include "tests/sim_plans.h"

typedef struct job {
  tws_network *network;
  tws_config *config;
  tws_cluster cluster;
  tws_profile *profile;
  tws_plan *plans[8];
  int ranks;
  tws_machine machine;
} job;

static void fine(tws_code code, const tws_error *err) {
  ck_assert_msg(code == TWS_OK, "%s", err->message);
}

static void make_job(job *j, const char *cluster, int ranks, int stage, int overlap, int plans) {
  tws_error err = {0};
  const tws_axis axis = TWS_AXIS_DATA;
  const char *const settings[][2] = {{"train_micro_batch_size_per_gpu", "1"},
                                     {"gradient_accumulation_steps", "2"},
                                     {"zero_optimization.stage", (const char *[]){"0", "1", "2", "3"}[stage]},
                                     {"zero_optimization.overlap_comm", overlap ? "true" : "false"},
                                     {"twinspeed.sequence_length", "64"}};
  memset(j, 0, sizeof *j);
  j->ranks = ranks;
  fine(tws_network_load("gpt2", 1, &j->network, &err), &err);
  fine(tws_config_default(&j->config, &err), &err);
  for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
    fine(tws_config_set(j->config, settings[i][0], settings[i][1], &err), &err);
  fine(tws_config_resolve(j->config, ranks, &(tws_auto_context){j->network->hidden}, &err), &err);
  fine(tws_cluster_load(cluster, &j->cluster, &err), &err);
  fine(tws_profile_load(j->cluster.profile, &j->profile, &err), &err);
  j->machine = (tws_machine){&j->cluster, j->profile};
  for (int rank = 0; rank < plans; rank++) {
    tws_plan_request request = {.network = j->network, .config = j->config, .rank = rank, .threads = 1};
    request.backend = tws_profile_backend(j->profile);
    fine(tws_topology_make(&request.topology, 1, &axis, &ranks, &err), &err);
    fine(tws_plan_build(&request, &j->plans[rank], &err), &err);
  }
}

static void drop_job(job *j) {
  for (int i = 0; i < 8; i++) tws_plan_destroy(j->plans[i]);
  tws_profile_destroy(j->profile);
  tws_config_destroy(j->config);
  tws_network_destroy(j->network);
}

static double step_of(const job *j, int plans, tws_fidelity fidelity, tws_timeline *timeline) {
  tws_sim_result result;
  tws_error err = {0};
  const tws_sim_request request = {.plans = (const tws_plan *const *)j->plans,
                                   .plan_count = plans,
                                   .fold = plans < j->ranks,
                                   .machine = j->machine,
                                   .fidelity = fidelity,
                                   .timeline = timeline};
  fine(api->simulate(&request, &result, &err), &err);
  return result.step_s;
}

START_TEST(lowered_plans_take_their_longest_path) {
  job j;
  tws_path_result path;
  for (int stage = 0; stage <= 3; stage++) {
    for (int overlap = 0; overlap < 2; overlap++) {
      make_job(&j, "dgx-a100:2", 16, stage, overlap, 1);
      ck_assert_int_eq(tws_longest_path(j.plans[0], &j.machine, &path, NULL), TWS_OK);
      const double analytic = step_of(&j, 1, TWS_FIDELITY_ANALYTIC, NULL);
      same(analytic, path.step_s, 1e-12);
      const double flow = step_of(&j, 1, TWS_FIDELITY_FLOW, NULL); /* only contention can make the step longer */
      ck_assert_double_gt(flow, analytic * (1 - 1e-6));
      ck_assert_double_lt(flow, analytic * 2);
      drop_job(&j);
    }
  }
}
END_TEST

/* The rows of a timeline follow the plan: one operation after another on each stream, and each after all operations
 * that it depends on. */
START_TEST(timelines_keep_the_plans_order) {
  job j;
  for (int stage = 0; stage <= 3; stage += 3) {
    double stream_end[8][TWS_STREAM_COUNT] = {{0}};
    make_job(&j, "dgx-a100", 8, stage, 1, 8);
    tws_timeline *timeline = tws_timeline_create("simulated");
    double *end = calloc((size_t)j.plans[0]->op_count * 8 * 2, sizeof *end); /* with space for ranks with more
                                                                              * operations */
    const double step_s = step_of(&j, 8, TWS_FIDELITY_FLOW, timeline);
    size_t operations = 0;
    double last = 0;
    for (int rank = 0; rank < 8; rank++) operations += j.plans[rank]->op_count;
    ck_assert_uint_eq(timeline->event_count, operations);
    ck_assert_int_eq(tws_timeline_check(timeline, NULL), TWS_OK);
    for (size_t i = 0; i < timeline->event_count; i++) { /* events are sorted by their ends */
      const tws_event *event = &timeline->events[i];
      const tws_plan *plan = j.plans[event->rank];
      const tws_op *op = &plan->ops[event->op];
      double *row = end + (size_t)event->rank * j.plans[0]->op_count * 2;
      ck_assert_double_ge(event->start_s, stream_end[event->rank][event->stream]);
      stream_end[event->rank][event->stream] = event->end_s;
      for (uint32_t k = 0; k < op->dep_count; k++)
        ck_assert_double_ge(event->start_s, row[plan->deps[op->dep_first + k]]);
      row[event->op] = event->end_s;
      last = fmax(last, event->end_s);
    }
    ck_assert_double_eq(last, step_s);
    free(end);
    tws_timeline_destroy(timeline);
    drop_job(&j);
  }
}
END_TEST

int main(void) {
  const TTest *const tests[] = {lowered_plans_take_their_longest_path, timelines_keep_the_plans_order};
  return run_sim_suite("sim_lowered", tests, sizeof tests / sizeof *tests);
}
