/* The simulator on hand-made plans: what an operation waits for, collectives at three fidelities, shared links and
 * cores, deadlocks, folding, repeatability; and random plans against a longest path computed here. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "models/hardware/runtime.h"
#include "sim/sim.h"
#include "tests/hand_plan.h"
#include "tests/sim_module.h"

static const tws_sim_api *api;

/* ---- machines ---- */

typedef struct machine {
  tws_cluster cluster;
  tws_profile *profile;
  tws_machine machine;
} machine;

static const double port_bandwidth = 100e9, nic_bandwidth = 10e9;

/* A kernel that fills n floats takes n nanoseconds. */
static void make_machine(machine *m, const char *backend, int nodes, int devices, int nics, int cores) {
  char text[512];
  tws_error err = {0};
  tws_json *json = NULL;
  const int length = snprintf(text, sizeof text,
                              "{\"schema\": \"twinspeed-profile-1\", \"name\": \"test\", \"provenance\": \"made up\", "
                              "\"backend\": \"%s\", \"cores\": %d, \"memory_bytes\": 1e12, \"bandwidth\": 4e9, "
                              "\"peak_flops\": {\"fp32\": 1e12}, \"matmul\": {\"efficiency\": 1}, "
                              "\"attention\": {\"efficiency\": 1}}",
                              backend, cores);
  ck_assert_msg(tws_json_parse(text, (size_t)length, "profile", &json, &err) == TWS_OK, "%s", err.message);
  ck_assert_msg(tws_profile_from_json(json, &m->profile, &err) == TWS_OK, "%s", err.message);
  tws_json_destroy(json);
  m->cluster = (tws_cluster){.name = "test",
                             .nodes = nodes,
                             .devices_per_node = devices,
                             .cores_per_node = cores,
                             .host_memory_bytes = 1e12,
                             .intra = {port_bandwidth, 2e-6},
                             .inter = {nic_bandwidth, 5e-6},
                             .nics_per_node = nics,
                             .host_link = {10e9, 1e-6}};
  m->machine = (tws_machine){&m->cluster, m->profile};
}

static void make_gpus(machine *m, int nodes, int devices, int nics) {
  make_machine(m, "cuda", nodes, devices, nics, 0);
}
static void make_host(machine *m, int cores) {
  make_machine(m, "host", 1, cores, 1, cores);
}
static void drop_machine(machine *m) {
  tws_profile_destroy(m->profile);
}

/* ---- plans ---- */

enum { MAX_OPS = 64, MAX_RANKS = 64 };

typedef struct maker {
  tws_plan plan;
  tws_op ops[MAX_OPS];
  uint32_t deps[MAX_OPS * 4];
  tws_work works[MAX_OPS];
  tws_group groups[8];
  int group_ranks[8][MAX_RANKS];
} maker;

static void begin(maker *m, int rank, int world) {
  const tws_axis axis = TWS_AXIS_DATA;
  memset(m, 0, sizeof *m);
  m->plan = (tws_plan){.rank = rank,
                       .world = world,
                       .ops = m->ops,
                       .deps = m->deps,
                       .works = m->works,
                       .groups = m->groups,
                       .threads = 1};
  ck_assert_int_eq(tws_topology_make(&m->plan.topology, 1, &axis, &world, NULL), TWS_OK);
}

static uint32_t emit(maker *m, tws_op_kind kind, tws_stream stream, tws_work work, uint32_t peer) {
  ck_assert_uint_lt(m->plan.op_count, MAX_OPS);
  work.kind = (uint8_t)kind;
  m->works[m->plan.work_count] = work;
  m->ops[m->plan.op_count] = (tws_op){.kind = (uint8_t)kind,
                                      .stream = (uint8_t)stream,
                                      .phase = TWS_PHASE_FORWARD,
                                      .work = m->plan.work_count++,
                                      .module = TWS_NONE,
                                      .dep_first = m->plan.dep_count,
                                      .peer = peer};
  m->plan.op_count++;
  number_last_op(&m->plan);
  return m->plan.op_count - 1;
}

static uint32_t compute(maker *m, tws_stream stream, double seconds) {
  return emit(m, TWS_OP_COMPUTE, stream,
              (tws_work){.code = TWS_KERNEL_FILL, .dtype = TWS_F32, .dtype2 = TWS_F32, .d = {llround(seconds * 1e9)}},
              0);
}

static uint32_t group(maker *m, int count, int first, int stride) {
  tws_group *g = &m->groups[m->plan.group_count];
  int *ranks = m->group_ranks[m->plan.group_count];
  *g = (tws_group){.axes = TWS_AXES_DATA, .size = count, .index = -1, .ranks = ranks};
  for (int i = 0; i < count; i++) {
    ranks[i] = first + i * stride;
    if (ranks[i] == m->plan.rank) g->index = i;
  }
  return m->plan.group_count++;
}

static uint32_t collective(maker *m, tws_stream stream, tws_collective code, uint32_t to, double bytes) {
  return emit(m, TWS_OP_COLLECTIVE, stream,
              (tws_work){.code = (uint8_t)code, .group = (uint16_t)to, .segments = 1, .d = {(int64_t)bytes}}, 0);
}

static uint32_t message(maker *m, tws_op_kind kind, int peer, double bytes) {
  return emit(m, kind, TWS_STREAM_P2P, (tws_work){.d = {(int64_t)bytes}}, (uint32_t)peer);
}

/* The latest operation also waits for `op`. */
static void after(maker *m, uint32_t op) {
  last_op_waits(&m->plan, op);
}

static tws_code simulate(const machine *m, const maker *makers, int count, tws_fidelity fidelity,
                         tws_timeline *timeline, tws_sim_result *result, tws_error *err) {
  const tws_plan *plans[MAX_RANKS];
  for (int i = 0; i < count; i++) plans[i] = &makers[i].plan;
  const tws_sim_request request = {.plans = plans,
                                   .plan_count = count,
                                   .fold = count < makers[0].plan.world,
                                   .machine = m->machine,
                                   .fidelity = fidelity,
                                   .timeline = timeline};
  return api->simulate(&request, result, err);
}

static double step(const machine *m, const maker *makers, int count, tws_fidelity fidelity) {
  tws_sim_result result;
  tws_error err = {0};
  ck_assert_msg(simulate(m, makers, count, fidelity, NULL, &result, &err) == TWS_OK, "%s", err.message);
  return result.step_s;
}

static void same(double value, double expected, double tolerance) {
  ck_assert_msg(fabs(value - expected) <= tolerance * fabs(expected), "%.12g is not %.12g", value, expected);
}

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
    if (event->op != 1) continue; /* a rank is in a collective from when it comes to when all have it */
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

/* ---- fidelities ---- */

static void make_ring(maker *m, int ranks, tws_collective code, double bytes, int folded) {
  for (int rank = 0; rank < (folded ? 1 : ranks); rank++) {
    begin(&m[rank], rank, ranks);
    collective(&m[rank], TWS_STREAM_REDUCE, code, group(&m[rank], ranks, 0, 1), bytes);
  }
}

START_TEST(fidelities_agree_without_contention) {
  static const tws_collective rings[] = {TWS_COLLECTIVE_ALL_REDUCE, TWS_COLLECTIVE_ALL_GATHER,
                                         TWS_COLLECTIVE_REDUCE_SCATTER};
  static maker m[16];
  machine one_node, one_each;
  make_gpus(&one_node, 1, 8, 8);
  make_gpus(&one_each, 8, 1, 1);
  for (int i = 0; i < 3; i++) {
    for (int ranks = 2; ranks <= 8; ranks++) {
      for (double bytes = 840 * 64; bytes < 1e10; bytes *= 4096) { /* a multiple of all ring sizes */
        make_ring(m, ranks, rings[i], bytes, 0);
        const machine *machines[] = {&one_node, &one_each};
        for (int k = 0; k < 2; k++) {
          const double analytic = step(machines[k], m, ranks, TWS_FIDELITY_ANALYTIC);
          same(step(machines[k], m, ranks, TWS_FIDELITY_FLOW), analytic, 1e-6);
          same(step(machines[k], m, ranks, TWS_FIDELITY_MESSAGE), analytic, 1e-6);
        }
      }
    }
  }
  for (int i = 0; i < 2; i++) { /* chains: the messages' pipeline has a start that the formula leaves out */
    const tws_collective chain = i ? TWS_COLLECTIVE_REDUCE : TWS_COLLECTIVE_BROADCAST;
    make_ring(m, 4, chain, 64e6, 0);
    const double analytic = step(&one_node, m, 4, TWS_FIDELITY_ANALYTIC);
    same(step(&one_node, m, 4, TWS_FIDELITY_FLOW), analytic, 1e-6);
    same(step(&one_node, m, 4, TWS_FIDELITY_MESSAGE), analytic, 0.04);
    for (int rank = 0; rank < 4; rank++) m[rank].ops[0].peer = 2; /* the same from another root */
    same(step(&one_node, m, 4, TWS_FIDELITY_FLOW), analytic, 1e-6);
    same(step(&one_node, m, 4, TWS_FIDELITY_MESSAGE), analytic, 0.04);
  }
  drop_machine(&one_node);
  drop_machine(&one_each);
}
END_TEST

/* On few nodes and many, with few bytes and many: most where a piece takes about as long as a hop. */
START_TEST(rings_of_64_ranks_agree_at_every_fidelity) {
  static const tws_collective rings[] = {TWS_COLLECTIVE_ALL_REDUCE, TWS_COLLECTIVE_ALL_GATHER,
                                         TWS_COLLECTIVE_REDUCE_SCATTER};
  static maker m[64];
  for (int ranks = 4; ranks <= 64; ranks *= 2)
    for (int nodes = 1; nodes <= ranks; nodes *= 2)
      for (int nics = 1; nics <= ranks / nodes && nics <= 8; nics *= 8) {
        machine gpu;
        make_gpus(&gpu, nodes, ranks / nodes, nics);
        for (double bytes = 1 << 12; bytes < 1e9; bytes *= 8)
          for (int i = 0; i < (bytes < 1e6 ? 3 : 1); i++) {
            make_ring(m, ranks, rings[i], bytes, 0);
            const double analytic = step(&gpu, m, ranks, TWS_FIDELITY_ANALYTIC);
            same(step(&gpu, m, ranks, TWS_FIDELITY_FLOW), analytic, 0.001);
            /* of rings that share the ports of many devices the formula knows only the load */
            same(step(&gpu, m, ranks, TWS_FIDELITY_MESSAGE), analytic, ranks / nodes <= 8 || nics == 1 ? 0.03 : 0.09);
          }
        drop_machine(&gpu);
      }
}
END_TEST

START_TEST(two_level_rings_are_bound_by_the_nics) {
  static maker m[16];
  for (int nics = 1; nics <= 8; nics *= 2) {
    machine gpu;
    make_gpus(&gpu, 2, 8, nics);
    make_ring(m, 16, TWS_COLLECTIVE_ALL_GATHER, 1.6e9, 0);
    const double expected = 15.0 / 16 * 1.6e9 / (nics * nic_bandwidth) + 5e-6; /* pieces queue before the NICs */
    same(step(&gpu, m, 16, TWS_FIDELITY_ANALYTIC), expected, 1e-6);
    same(step(&gpu, m, 16, TWS_FIDELITY_FLOW), expected, 1e-6);
    same(step(&gpu, m, 16, TWS_FIDELITY_MESSAGE), expected, 2e-3); /* steps that wait for each other */
    /* one rank stands for all */
    make_ring(m, 16, TWS_COLLECTIVE_ALL_GATHER, 1.6e9, 1);
    same(step(&gpu, m, 1, TWS_FIDELITY_ANALYTIC), expected, 1e-6);
    same(step(&gpu, m, 1, TWS_FIDELITY_FLOW), expected, 1e-6);
    drop_machine(&gpu);
  }
  machine twice; /* a device with two NICs */
  make_gpus(&twice, 2, 1, 2);
  make_ring(m, 2, TWS_COLLECTIVE_ALL_GATHER, 1.6e9, 0);
  for (int fidelity = TWS_FIDELITY_ANALYTIC; fidelity <= TWS_FIDELITY_MESSAGE; fidelity++)
    same(step(&twice, m, 2, (tws_fidelity)fidelity), 0.5 * 1.6e9 / (2 * nic_bandwidth) + 5e-6, 1e-6);
  drop_machine(&twice);
  machine wide; /* more network than NVLink: the ports bind */
  make_gpus(&wide, 2, 2, 2);
  wide.cluster.inter.bandwidth = 1e12;
  make_ring(m, 4, TWS_COLLECTIVE_ALL_REDUCE, 4e8, 0);
  const double bound = 1.5 * 4e8 / port_bandwidth + 6 * (5e-6 + wide.cluster.intra.latency_s) / 2;
  same(step(&wide, m, 4, TWS_FIDELITY_ANALYTIC), bound, 1e-6);
  ck_assert_double_lt(step(&wide, m, 4, TWS_FIDELITY_FLOW), bound * (1 + 1e-6));
  ck_assert_double_gt(step(&wide, m, 4, TWS_FIDELITY_FLOW), bound / 2);
  drop_machine(&wide);
}
END_TEST

/* Pieces for other nodes leave through the sender's NIC, those for its own node through its port, at the same time. */
START_TEST(all_to_all_uses_ports_and_nics) {
  static maker m[8];
  machine gpu;
  for (int nodes = 1; nodes <= 8; nodes *= 2) {
    make_gpus(&gpu, nodes, 8 / nodes, 8 / nodes);
    make_ring(m, 8, TWS_COLLECTIVE_ALL_TO_ALL, 8e7, 0);
    const int near = 8 / nodes;
    const double bytes = fmax((near - 1) * 1e7 / port_bandwidth, (8 - near) * 1e7 / nic_bandwidth);
    const double analytic = step(&gpu, m, 8, TWS_FIDELITY_ANALYTIC);
    same(analytic, bytes + (nodes > 1 ? 5e-6 : 2e-6), 1e-9);
    same(step(&gpu, m, 8, TWS_FIDELITY_FLOW), analytic, 1e-9);
    drop_machine(&gpu);
  }
}
END_TEST

/* Of 64 devices on 8 nodes, message by message: all are under way at once. */
START_TEST(all_to_all_is_as_long_as_its_messages) {
  static maker m[64];
  machine gpu;
  make_gpus(&gpu, 8, 8, 8);
  for (double bytes = 6.4e4; bytes < 1e9; bytes *= 100) {
    make_ring(m, 64, TWS_COLLECTIVE_ALL_TO_ALL, bytes, 0);
    const double by_messages = step(&gpu, m, 64, TWS_FIDELITY_MESSAGE);
    same(step(&gpu, m, 64, TWS_FIDELITY_ANALYTIC), by_messages, 0.05);
    same(step(&gpu, m, 64, TWS_FIDELITY_FLOW), by_messages, 0.05);
  }
  drop_machine(&gpu);
}
END_TEST

/* The same with messages that are posted one after another: few bytes wait for posts. In two steps, inside nodes and
 * then among equal ranks of all nodes, a rank posts 7 messages and not 56, of eight times the bytes: faster where these
 * are few, slower where they are many and go twice. */
START_TEST(all_to_all_in_two_steps_posts_fewer_messages) {
  static maker flat[64], steps[64];
  machine gpu;
  make_gpus(&gpu, 8, 8, 8);
  gpu.cluster.message_s = 2e-6;
  for (double bytes = 6.4e4; bytes < 1e9; bytes *= 100) {
    double took[2][3];
    make_ring(flat, 64, TWS_COLLECTIVE_ALL_TO_ALL, bytes, 0);
    for (int rank = 0; rank < 64; rank++) {
      begin(&steps[rank], rank, 64);
      const uint32_t node = group(&steps[rank], 8, rank / 8 * 8, 1), like = group(&steps[rank], 8, rank % 8, 8);
      collective(&steps[rank], TWS_STREAM_COMPUTE, TWS_COLLECTIVE_ALL_TO_ALL, node, bytes);
      collective(&steps[rank], TWS_STREAM_COMPUTE, TWS_COLLECTIVE_ALL_TO_ALL, like, bytes);
    }
    for (int two = 0; two < 2; two++) {
      for (int f = 0; f < 3; f++) took[two][f] = step(&gpu, two ? steps : flat, 64, (tws_fidelity)f);
      same(took[two][TWS_FIDELITY_ANALYTIC], took[two][TWS_FIDELITY_MESSAGE], 0.05);
      same(took[two][TWS_FIDELITY_FLOW], took[two][TWS_FIDELITY_ANALYTIC], 1e-9);
    }
    if (bytes < 1e5) {
      same(took[0][TWS_FIDELITY_ANALYTIC], 55 * 2e-6 + bytes / 64 / nic_bandwidth + 5e-6, 1e-9);
      same(took[1][TWS_FIDELITY_ANALYTIC],
           7 * bytes / 8 / port_bandwidth + 2e-6 + 6 * 2e-6 + bytes / 8 / nic_bandwidth + 5e-6, 1e-9);
    } else {
      ck_assert_double_gt(took[1][TWS_FIDELITY_ANALYTIC], took[0][TWS_FIDELITY_ANALYTIC]);
    }
  }
  drop_machine(&gpu);
}
END_TEST

/* Software that sends tokens once: with 128 experts on 64 ranks of 8 nodes a token of 8 choices goes to
 * 8 (1 - C(112, 8) / C(128, 8)) nodes, and to a rank of its node once from where it arrived; with its experts out of 2
 * of 8 groups to no more than 2 nodes. Nothing else crosses links, at every fidelity. */
START_TEST(tokens_go_once_to_a_node) {
  static maker m[64];
  machine gpu;
  make_gpus(&gpu, 8, 8, 8);
  gpu.cluster.message_s = 2e-6;
  ck_assert_int_eq(tws_profile_set_runtime(gpu.profile, tws_runtime_find("megatron-deepep"), NULL), TWS_OK);
  const double tokens = 4096.0 * 7168 * 2, slots = 8 * 1.25 * tokens;
  double missed = 1;
  for (int i = 0; i < 8; i++) missed *= (112.0 - i) / (128.0 - i);
  for (int grouped = 0; grouped < 2; grouped++) {
    make_ring(m, 64, TWS_COLLECTIVE_ALL_TO_ALL, slots, 0);
    for (int rank = 0; rank < 64; rank++) {
      int64_t *d = m[rank].works[0].d;
      d[1] = (int64_t)tokens, d[2] = 128, d[3] = 8, d[4] = grouped ? 8 : 0, d[5] = grouped ? 2 : 0;
    }
    const double nodes = grouped ? 2 : 8 * (1 - missed);
    const double analytic = step(&gpu, m, 64, TWS_FIDELITY_ANALYTIC);
    same(analytic, tokens * nodes * 7 / 8 / nic_bandwidth + 5e-6, 1e-9);
    same(step(&gpu, m, 64, TWS_FIDELITY_FLOW), analytic, 1e-9);
    same(step(&gpu, m, 64, TWS_FIDELITY_MESSAGE), analytic, 0.05);
  }
  drop_machine(&gpu);
}
END_TEST

/* What goes to experts in 8 bits with scales has as many bytes on the way, at every fidelity, whether slots go or
 * tokens once, and casts at both ends read one type and write the other. What comes back goes as it is, and is not
 * taken for the same. */
START_TEST(tokens_go_to_experts_in_8_bits) {
  static maker m[64];
  const double tokens = 4096.0 * 7168 * 2, slots = 8 * 1.25 * tokens, share = (1 + 4.0 / 128) / 2;
  for (int once = 0; once < 2; once++) {
    machine gpu;
    double took[2][3];
    make_gpus(&gpu, 8, 8, 8);
    if (once) ck_assert_int_eq(tws_profile_set_runtime(gpu.profile, tws_runtime_find("megatron-deepep"), NULL), TWS_OK);
    for (int both = 0; both < 2; both++) { /* there in 8 bits, and back */
      for (int rank = 0; rank < 64; rank++) {
        begin(&m[rank], rank, 64);
        const uint32_t all = group(&m[rank], 64, 0, 1);
        for (int back = 0; back <= both; back++) {
          collective(&m[rank], TWS_STREAM_COMPUTE, TWS_COLLECTIVE_ALL_TO_ALL, all, slots);
          int64_t *d = m[rank].works[back].d;
          d[1] = (int64_t)tokens, d[2] = 128, d[3] = 8, d[6] = back ? 0 : (int64_t)(slots * share);
        }
      }
      for (int f = 0; f < 3; f++) took[both][f] = step(&gpu, m, 64, (tws_fidelity)f);
      same(took[both][TWS_FIDELITY_FLOW], took[both][TWS_FIDELITY_ANALYTIC], 1e-9);
      same(took[both][TWS_FIDELITY_MESSAGE], took[both][TWS_FIDELITY_ANALYTIC], 0.05);
    }
    double missed[2] = {1, 1}; /* nodes and ranks that have none of a token's experts */
    for (int i = 0; i < 8; i++) missed[0] *= (112.0 - i) / (128.0 - i), missed[1] *= (126.0 - i) / (128.0 - i);
    const double leaves = once ? tokens * 8 * (1 - missed[0]) * 7 / 8 : slots * 56 / 64,
                 cast = once ? tokens * (1 + 64 * (1 - missed[1])) : 2 * slots;
    same(took[0][TWS_FIDELITY_ANALYTIC], share * leaves / nic_bandwidth + 5e-6 + (1 + share) * cast / 4e9, 1e-9);
    same(took[1][TWS_FIDELITY_ANALYTIC] - took[0][TWS_FIDELITY_ANALYTIC], leaves / nic_bandwidth + 5e-6, 1e-9);
    drop_machine(&gpu);
  }
}
END_TEST

/* The root has as much to do as every rank of an all-to-all, and the others send or receive one part. */
START_TEST(a_root_is_bound_by_its_port_or_nic) {
  static const tws_collective rooted[] = {TWS_COLLECTIVE_GATHER, TWS_COLLECTIVE_SCATTER};
  static maker m[8];
  machine gpu;
  for (int i = 0; i < 6; i++) {
    const int nodes = 1 << i / 2, near = 8 / nodes; /* 1, 2, 4 */
    make_gpus(&gpu, nodes, near, near);
    make_ring(m, 8, rooted[i % 2], 8e7, 0);
    for (int rank = 0; rank < 8; rank++) m[rank].ops[0].peer = 3;
    const double bytes = fmax((near - 1) * 1e7 / port_bandwidth, (8 - near) * 1e7 / nic_bandwidth);
    const double analytic = step(&gpu, m, 8, TWS_FIDELITY_ANALYTIC);
    same(analytic, bytes + (nodes > 1 ? 5e-6 : 2e-6), 1e-9);
    same(step(&gpu, m, 8, TWS_FIDELITY_FLOW), analytic, 1e-9);
    same(step(&gpu, m, 8, TWS_FIDELITY_MESSAGE), analytic, 1e-9);
    drop_machine(&gpu);
  }
}
END_TEST

START_TEST(contention_halves_bandwidth) {
  machine gpu;
  maker m[4];
  make_gpus(&gpu, 1, 4, 1);
  for (int rank = 0; rank < 4; rank++) {
    begin(&m[rank], rank, 4);
    const uint32_t all = group(&m[rank], 4, 0, 1);
    collective(&m[rank], TWS_STREAM_REDUCE, TWS_COLLECTIVE_REDUCE_SCATTER, all, 4e8);
    collective(&m[rank], TWS_STREAM_GATHER, TWS_COLLECTIVE_ALL_GATHER, all, 4e8);
  }
  const double bytes_s = 0.75 * 4e8 / port_bandwidth, latency_s = 3 * 2e-6;
  same(step(&gpu, m, 4, TWS_FIDELITY_ANALYTIC), bytes_s + latency_s, 1e-6);
  same(step(&gpu, m, 4, TWS_FIDELITY_FLOW), 2 * bytes_s + latency_s, 1e-6);
  for (int rank = 0; rank < 2; rank++) { /* a broadcast leaves the way back to its root free */
    begin(&m[rank], rank, 2);
    collective(&m[rank], TWS_STREAM_GATHER, TWS_COLLECTIVE_BROADCAST, group(&m[rank], 2, 0, 1), 4e8);
    message(&m[rank], rank == 1 ? TWS_OP_SEND : TWS_OP_RECV, 1 - rank, 4e8);
  }
  same(step(&gpu, m, 2, TWS_FIDELITY_FLOW), 4e8 / port_bandwidth + 2e-6, 1e-6);
  drop_machine(&gpu);

  make_gpus(&gpu, 2, 2, 1); /* ranks 0 and 1 send to the other node through one NIC */
  for (int rank = 0; rank < 4; rank++) {
    begin(&m[rank], rank, 4);
    message(&m[rank], rank < 2 ? TWS_OP_SEND : TWS_OP_RECV, (rank + 2) % 4, 1e8);
  }
  same(step(&gpu, m, 4, TWS_FIDELITY_ANALYTIC), 1e8 / nic_bandwidth + 5e-6, 1e-6);
  same(step(&gpu, m, 4, TWS_FIDELITY_FLOW), 2e8 / nic_bandwidth + 5e-6, 1e-6);
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
  /* the cost of a rank's own work, whatever it shares cores with */
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
  same(on_cores(2, 4, 1, uneven), 4, 1e-9); /* two seconds together, then two alone on a core */
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
  for (int rank = 0; rank < 2; rank++) { /* two collectives on one stream in opposite order */
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

/* Plans with the same collectives in the same order on every rank, and computation in between that differs. */
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

/* Times by relaxation: start = latest end of predecessors; a collective ends for all at the latest start plus cost. */
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
  for (int fidelity = TWS_FIDELITY_ANALYTIC; fidelity <= TWS_FIDELITY_MESSAGE; fidelity++) {
    random_plans(4000, m, 8);
    const double first = step(&gpu, m, 8, (tws_fidelity)fidelity);
    for (int i = 0; i < 20; i++) {
      random_plans(5000 + 1000 * (uint64_t)i, other, 8);
      step(&gpu, other, 8, (tws_fidelity)fidelity);
      ck_assert_double_eq(step(&gpu, m, 8, (tws_fidelity)fidelity), first);
    }
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
  drop_machine(&gpu);
}
END_TEST

/* ---- lowered plans ---- */

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
      const double flow = step_of(&j, 1, TWS_FIDELITY_FLOW, NULL); /* nothing but contention makes it longer */
      ck_assert_double_gt(flow, analytic * (1 - 1e-6));
      ck_assert_double_lt(flow, analytic * 2);
      drop_job(&j);
    }
  }
}
END_TEST

/* Rows of a timeline are what the plan says: one operation after another on a stream, after all it depends on. */
START_TEST(timelines_keep_the_plans_order) {
  job j;
  for (int stage = 0; stage <= 3; stage += 3) {
    double stream_end[8][TWS_STREAM_COUNT] = {{0}};
    make_job(&j, "dgx-a100", 8, stage, 1, 8);
    tws_timeline *timeline = tws_timeline_create("simulated");
    double *end = calloc((size_t)j.plans[0]->op_count * 8 * 2, sizeof *end); /* ranks may differ in operations */
    const double step_s = step_of(&j, 8, TWS_FIDELITY_FLOW, timeline);
    size_t operations = 0;
    double last = 0;
    for (int rank = 0; rank < 8; rank++) operations += j.plans[rank]->op_count;
    ck_assert_uint_eq(timeline->event_count, operations);
    ck_assert_int_eq(tws_timeline_check(timeline, NULL), TWS_OK);
    for (size_t i = 0; i < timeline->event_count; i++) { /* events come in the order of their ends */
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
  api = load_simulator();
  if (!api) {
    fprintf(stderr, "skipped: built without the simulator\n");
    return EXIT_SUCCESS;
  }
  Suite *suite = suite_create("sim");
  TCase *tcase = tcase_create("sim");
  tcase_add_test(tcase, streams_overlap_on_gpus_and_queue_on_hosts);
  tcase_add_test(tcase, collectives_wait_for_the_last);
  tcase_add_test(tcase, messages_hand_on);
  tcase_add_test(tcase, fidelities_agree_without_contention);
  tcase_add_test(tcase, rings_of_64_ranks_agree_at_every_fidelity);
  tcase_add_test(tcase, two_level_rings_are_bound_by_the_nics);
  tcase_add_test(tcase, all_to_all_uses_ports_and_nics);
  tcase_add_test(tcase, all_to_all_is_as_long_as_its_messages);
  tcase_add_test(tcase, all_to_all_in_two_steps_posts_fewer_messages);
  tcase_add_test(tcase, tokens_go_once_to_a_node);
  tcase_add_test(tcase, tokens_go_to_experts_in_8_bits);
  tcase_add_test(tcase, a_root_is_bound_by_its_port_or_nic);
  tcase_add_test(tcase, contention_halves_bandwidth);
  tcase_add_test(tcase, ranks_share_cores);
  tcase_add_test(tcase, waiting_ranks_leave_their_core);
  tcase_add_test(tcase, plans_that_do_not_fit_are_refused);
  tcase_add_test(tcase, random_plans_take_their_longest_path);
  tcase_add_test(tcase, runs_repeat_to_the_last_digit);
  tcase_add_test(tcase, folded_ranks_are_as_good_as_all);
  tcase_add_test(tcase, lowered_plans_take_their_longest_path);
  tcase_add_test(tcase, timelines_keep_the_plans_order);
  suite_add_tcase(suite, tcase);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  const int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
