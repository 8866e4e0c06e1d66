/* The simulator on plans made by hand: waits of operations, shared cores, deadlocks, folding, repeatability; and random
 * plans against a longest path computed here. */
#include "base/random.h"
#include "tests/sim_plans.h"

/* ---- order ---- */

START_TEST(streams_overlap_on_gpus_and_queue_on_hosts) {
  machine gpu, host;
  maker m;
  tws_sim_result result;
  make_gpus(&gpu, 1, 1, 1);
  make_host(&host, 1);
  begin(&m, 0, 1);
  compute(&m, TWS_STREAM_COMPUTE, 10e-6);
  const uint32_t other = compute(&m, TWS_STREAM_GATHER, 25e-6);
  compute(&m, TWS_STREAM_COMPUTE, 3e-6);
  compute(&m, TWS_STREAM_COMPUTE, 7e-6);
  after(&m, other);
  same(step(&gpu, &m, 1, TWS_FIDELITY_ANALYTIC), 32e-6, 1e-12);
  ck_assert_int_eq(simulate(&gpu, &m, 1, TWS_FIDELITY_ANALYTIC, NULL, &result, NULL), TWS_OK);
  same(result.rank_compute_s, 20e-6, 1e-12);
  same(result.rank_communication_s, 25e-6, 1e-12);
  same(result.exposed_s, 12e-6, 1e-12);
  same(step(&host, &m, 1, TWS_FIDELITY_ANALYTIC), 45e-6, 1e-12);
  drop_machine(&gpu);
  drop_machine(&host);
}
END_TEST

START_TEST(collectives_wait_for_the_last) {
  machine gpu;
  maker m[3];
  tws_timeline *timeline = tws_timeline_create("simulated");
  tws_sim_result result;
  make_gpus(&gpu, 1, 4, 1);
  for (int rank = 0; rank < 3; rank++) {
    begin(&m[rank], rank, 3);
    const uint32_t all = group(&m[rank], 3, 0, 1);
    const uint32_t before = compute(&m[rank], TWS_STREAM_COMPUTE, (1 + rank) * 1e-4);
    collective(&m[rank], TWS_STREAM_REDUCE, TWS_COLLECTIVE_ALL_REDUCE, all, 3e6);
    after(&m[rank], before);
  }
  const double ring = tws_collective_seconds(&gpu.cluster, gpu.profile, TWS_COLLECTIVE_ALL_REDUCE, 3, 3, 3e6, 1);
  same(ring, 4.0 / 3 * 3e6 / port_bandwidth + 4 * 2e-6, 1e-9);
  ck_assert_int_eq(simulate(&gpu, m, 3, TWS_FIDELITY_ANALYTIC, timeline, &result, NULL), TWS_OK);
  same(result.step_s, 3e-4 + ring, 1e-12);
  ck_assert_uint_eq(timeline->event_count, 6);
  for (size_t i = 0; i < timeline->event_count; i++) {
    const tws_event *event = &timeline->events[i];
    if (event->op != 1) continue; /* a rank's event lasts from its arrival to the end of the collective */
    same(event->start_s, (1 + event->rank) * 1e-4, 1e-12);
    same(event->end_s, result.step_s, 1e-12);
    ck_assert_str_eq(timeline->names[event->name], "forward all_reduce");
    ck_assert_str_eq(timeline->stream_names[event->stream], "reduce");
  }
  ck_assert_int_eq(tws_timeline_check(timeline, NULL), TWS_OK);
  tws_timeline_destroy(timeline);
  drop_machine(&gpu);
}
END_TEST

START_TEST(messages_hand_on) {
  machine gpu;
  maker m[4];
  make_gpus(&gpu, 2, 2, 2); /* ranks 1 and 2 are on different nodes */
  for (int rank = 0; rank < 4; rank++) {
    begin(&m[rank], rank, 4);
    uint32_t last = TWS_NONE;
    if (rank > 0) last = message(&m[rank], TWS_OP_RECV, rank - 1, 1e6);
    compute(&m[rank], TWS_STREAM_COMPUTE, 1e-4);
    if (last != TWS_NONE) after(&m[rank], last);
    last = m[rank].plan.op_count - 1;
    if (rank < 3) {
      message(&m[rank], TWS_OP_SEND, rank + 1, 1e6);
      after(&m[rank], last);
    }
  }
  const double expected = 4e-4 + 2 * (2e-6 + 1e6 / port_bandwidth) + 5e-6 + 1e6 / nic_bandwidth;
  for (int fidelity = TWS_FIDELITY_ANALYTIC; fidelity <= TWS_FIDELITY_MESSAGE; fidelity++)
    same(step(&gpu, m, 4, (tws_fidelity)fidelity), expected, 1e-9);
  drop_machine(&gpu);
}
END_TEST

/* ---- shared cores ---- */

static double on_cores(int cores, int ranks, int threads, const double *seconds) {
  machine host;
  maker m[8];
  make_host(&host, cores);
  for (int rank = 0; rank < ranks; rank++) {
    begin(&m[rank], rank, ranks);
    m[rank].plan.threads = threads;
    compute(&m[rank], TWS_STREAM_COMPUTE, seconds[rank]);
  }
  /* seconds of one rank's work, without sharing cores */
  const double one = tws_plan_work_seconds(&m[0].plan, 0, &host.machine, 0);
  const double took = step(&host, m, ranks, TWS_FIDELITY_ANALYTIC);
  drop_machine(&host);
  return took / one;
}

START_TEST(ranks_share_cores) {
  const double equal[] = {1e-3, 1e-3, 1e-3, 1e-3}, uneven[] = {1e-3, 1e-3, 1e-3, 3e-3};
  same(on_cores(2, 2, 1, equal), 1, 1e-9);
  same(on_cores(2, 4, 1, equal), 2, 1e-9);
  same(on_cores(2, 3, 1, equal), 1.5, 1e-9);
  same(on_cores(4, 4, 1, equal), 1, 1e-9);
  same(on_cores(2, 2, 2, equal), 2, 1e-9);
  same(on_cores(4, 2, 3, equal), 1.5, 1e-9);
  same(on_cores(2, 1, 4, equal), 2, 1e-9);
  same(on_cores(2, 4, 1, uneven), 4, 1e-9); /* both ranks share the core for two units, then one has it alone for two */
}
END_TEST

START_TEST(waiting_ranks_leave_their_core) {
  machine host;
  maker m[2];
  make_host(&host, 1);
  for (int rank = 0; rank < 2; rank++) {
    begin(&m[rank], rank, 2);
    const uint32_t both = group(&m[rank], 2, 0, 1);
    if (rank == 1) compute(&m[rank], TWS_STREAM_COMPUTE, 1e-3);
    collective(&m[rank], TWS_STREAM_COMPUTE, TWS_COLLECTIVE_BARRIER, both, 0);
    compute(&m[rank], TWS_STREAM_COMPUTE, 1e-3);
  }
  const double barrier = tws_plan_work_seconds(&m[0].plan, 0, &host.machine, 0);
  same(step(&host, m, 2, TWS_FIDELITY_ANALYTIC), 3e-3 + barrier, 1e-9);
  drop_machine(&host);
}
END_TEST

/* ---- plans that do not fit ---- */

static void refused(const machine *m, const maker *makers, int count, tws_code code, const char *says) {
  tws_sim_result result;
  tws_error err = {0};
  const tws_code got = simulate(m, makers, count, TWS_FIDELITY_ANALYTIC, NULL, &result, &err);
  ck_assert_msg(got == code, "%s: %s", tws_code_name(got), err.message);
  ck_assert_msg(strstr(err.message, says) != NULL, "\"%s\" does not say \"%s\"", err.message, says);
}

START_TEST(plans_that_do_not_fit_are_refused) {
  machine gpu;
  maker m[2];
  make_gpus(&gpu, 1, 2, 1);
  for (int rank = 0; rank < 2; rank++) { /* both send first */
    begin(&m[rank], rank, 2);
    message(&m[rank], TWS_OP_SEND, 1 - rank, 100);
    message(&m[rank], TWS_OP_RECV, 1 - rank, 100);
  }
  refused(&gpu, m, 2, TWS_INTERNAL, "deadlock: rank 0, operation 0 (forward send) waits for rank 1, operation 0");
  for (int rank = 0; rank < 2; rank++) { /* the ranks wait for each other: their operations on one stream are in
                                          * opposite order */
    begin(&m[rank], rank, 2);
    const uint32_t both = group(&m[rank], 2, 0, 1);
    if (rank == 0) message(&m[rank], TWS_OP_SEND, 1, 8);
    collective(&m[rank], TWS_STREAM_P2P, TWS_COLLECTIVE_ALL_REDUCE, both, 100);
    if (rank == 1) message(&m[rank], TWS_OP_RECV, 0, 8);
  }
  refused(&gpu, m, 2, TWS_INTERNAL, "deadlock");
  for (int rank = 0; rank < 2; rank++) {
    begin(&m[rank], rank, 2);
    collective(&m[rank], TWS_STREAM_REDUCE, TWS_COLLECTIVE_ALL_REDUCE, group(&m[rank], 2, 0, 1), 100 + 100 * rank);
  }
  refused(
      &gpu, m, 2, TWS_INTERNAL,
      "rank 1, operation 0 (forward all_reduce) of 200 bytes meets rank 0, operation 0 (forward all_reduce) of 100");
  m[1].works[0].d[0] = 100;
  m[1].works[0].segments = 2;
  refused(&gpu, m, 2, TWS_INTERNAL, "rank 1, operation 0 (forward all_reduce)");
  m[1].works[0].code = TWS_COLLECTIVE_ALL_GATHER;
  refused(&gpu, m, 2, TWS_INTERNAL, "rank 1, operation 0 (forward all_gather)");
  m[1].plan.op_count = 0;
  refused(&gpu, m, 2, TWS_INTERNAL, "waits for 2 ranks, but only 1 issue it");
  begin(&m[0], 0, 2);
  message(&m[0], TWS_OP_SEND, 1, 100);
  refused(&gpu, m, 1, TWS_INVALID, "needs rank 1, which has no plan here");
  begin(&m[0], 0, 16);
  refused(&gpu, m, 1, TWS_INVALID, "16 ranks on cluster test, which has 2 devices");
  begin(&m[0], 0, 1);
  compute(&m[0], TWS_STREAM_COMPUTE, 1e-6);
  m[0].ops[0].work = 7;
  refused(&gpu, m, 1, TWS_INTERNAL, "operation 0 is malformed");
  m[0].ops[0].work = 0; /* and the engine still works */
  same(step(&gpu, m, 1, TWS_FIDELITY_ANALYTIC), 1e-6, 1e-12);
  drop_machine(&gpu);
}
END_TEST

/* ---- random plans ---- */

typedef struct draw {
  uint64_t seed, index;
} draw;

static int pick(draw *d, int low, int high) {
  return low + (int)(tws_random_uniform(d->seed, 1, d->index++) * (high - low + 1));
}

/* Makes plans with the same collectives in the same order on every rank, and different computation in between. */
static void random_plans(uint64_t seed, maker *m, int ranks) {
  draw shape = {seed, 0};
  const int blocks = pick(&shape, 2, 12);
  for (int rank = 0; rank < ranks; rank++) {
    draw common = {seed + 1, 0}, own = {seed + 2 + (uint64_t)rank, 0};
    begin(&m[rank], rank, ranks);
    const uint32_t all = group(&m[rank], ranks, 0, 1);
    for (int block = 0; block < blocks; block++) {
      for (int i = pick(&own, 0, 3); i > 0; i--) {
        compute(&m[rank], (tws_stream)pick(&own, 0, 2), pick(&own, 0, 50) * 1e-6);
        if (m[rank].plan.op_count > 1 && pick(&own, 0, 1))
          after(&m[rank], (uint32_t)pick(&own, 0, (int)m[rank].plan.op_count - 2));
      }
      const tws_stream stream = (tws_stream)pick(&common, 0, 2);
      const tws_collective code = (tws_collective)pick(&common, TWS_COLLECTIVE_ALL_REDUCE, TWS_COLLECTIVE_BROADCAST);
      collective(&m[rank], stream, code, all, pick(&common, 0, 1000) * 1e3);
      if (m[rank].plan.op_count > 1 && pick(&own, 0, 1))
        after(&m[rank], (uint32_t)pick(&own, 0, (int)m[rank].plan.op_count - 2));
    }
  }
}

/* Returns the seconds of a step, computed by relaxation: an operation starts at the latest end of its predecessors, and
 * a collective ends for all ranks at the latest start plus its cost. */
static double longest(const machine *gpu, const maker *m, int ranks) {
  static double end[MAX_RANKS][MAX_OPS];
  double step_s = 0;
  memset(end, 0, sizeof end);
  for (int changed = 1; changed;) {
    double meet[MAX_OPS] = {0};
    changed = 0;
    for (int pass = 0; pass < 2; pass++) {
      for (int rank = 0; rank < ranks; rank++) {
        int last[TWS_STREAM_COUNT], order = 0;
        memset(last, -1, sizeof last);
        for (uint32_t op = 0; op < m[rank].plan.op_count; op++) {
          const tws_op *o = &m[rank].ops[op];
          double start = last[o->stream] >= 0 ? end[rank][last[o->stream]] : 0;
          for (uint32_t i = 0; i < o->dep_count; i++) start = fmax(start, end[rank][m[rank].deps[o->dep_first + i]]);
          last[o->stream] = (int)op;
          if (o->kind == TWS_OP_COLLECTIVE) {
            meet[order] = fmax(meet[order], start);
            start = meet[order++];
          }
          const double ends = start + tws_plan_work_seconds(&m[rank].plan, o->work, &gpu->machine, 0);
          if (pass && ends != end[rank][op]) {
            end[rank][op] = ends;
            changed = 1;
          }
          step_s = fmax(step_s, end[rank][op]);
        }
      }
    }
  }
  return step_s;
}

START_TEST(random_plans_take_their_longest_path) {
  static maker m[8];
  machine gpu;
  make_gpus(&gpu, 2, 4, 4);
  for (uint64_t seed = 0; seed < 300; seed++) {
    draw d = {seed * 1000, 1000};
    const int ranks = pick(&d, 1, 8);
    random_plans(seed * 1000, m, ranks);
    ck_assert_double_eq(step(&gpu, m, ranks, TWS_FIDELITY_ANALYTIC), longest(&gpu, m, ranks)); /* to the last digit */
  }
  drop_machine(&gpu);
}
END_TEST

START_TEST(runs_repeat_to_the_last_digit) {
  static maker m[8], other[8];
  machine gpu;
  make_gpus(&gpu, 2, 4, 2);
  for (int fidelity = TWS_FIDELITY_ANALYTIC; fidelity <= TWS_FIDELITY_SIMGRID; fidelity++) {
    random_plans(4000, m, 8);
    const double first = step(&gpu, m, 8, (tws_fidelity)fidelity);
    for (int i = 0; i < 20; i++) {
      random_plans(5000 + 1000 * (uint64_t)i, other, 8);
      step(&gpu, other, 8, (tws_fidelity)fidelity);
      ck_assert_double_eq(step(&gpu, m, 8, (tws_fidelity)fidelity), first);
    }
  }
  const double uneven[] = {1e-3, 2e-3, 3e-3, 7e-3}, cores = on_cores(3, 4, 1, uneven); /* SimGrid's clock alone */
  for (int i = 0; i < 20; i++) {
    random_plans(9000 + 1000 * (uint64_t)i, other, 8);
    step(&gpu, other, 8, TWS_FIDELITY_ANALYTIC);
    ck_assert_double_eq(on_cores(3, 4, 1, uneven), cores);
  }
  drop_machine(&gpu);
}
END_TEST

START_TEST(folded_ranks_are_as_good_as_all) {
  static maker m[16];
  machine gpu;
  make_gpus(&gpu, 2, 8, 4);
  for (int rank = 0; rank < 16; rank++) {
    begin(&m[rank], rank, 16);
    const uint32_t all = group(&m[rank], 16, 0, 1);
    for (int i = 0; i < 4; i++) {
      const uint32_t op = collective(&m[rank], TWS_STREAM_GATHER, TWS_COLLECTIVE_ALL_GATHER, all, 1.6e7);
      compute(&m[rank], TWS_STREAM_COMPUTE, 5e-4);
      after(&m[rank], op);
      const uint32_t done = m[rank].plan.op_count - 1;
      collective(&m[rank], TWS_STREAM_REDUCE, TWS_COLLECTIVE_REDUCE_SCATTER, all, 3.2e7);
      after(&m[rank], done);
    }
  }
  for (int fidelity = TWS_FIDELITY_ANALYTIC; fidelity <= TWS_FIDELITY_FLOW; fidelity++)
    same(step(&gpu, m, 1, (tws_fidelity)fidelity), step(&gpu, m, 16, (tws_fidelity)fidelity), 1e-9);
  same(step(&gpu, m, 1, TWS_FIDELITY_SIMGRID), step(&gpu, m, 16, TWS_FIDELITY_SIMGRID), 1e-6);
  drop_machine(&gpu);
}
END_TEST

int main(void) {
  const TTest *const tests[] = {streams_overlap_on_gpus_and_queue_on_hosts,
                                collectives_wait_for_the_last,
                                messages_hand_on,
                                ranks_share_cores,
                                waiting_ranks_leave_their_core,
                                plans_that_do_not_fit_are_refused,
                                random_plans_take_their_longest_path,
                                runs_repeat_to_the_last_digit,
                                folded_ranks_are_as_good_as_all};
  return run_sim_suite("sim", tests, sizeof tests / sizeof *tests);
}
