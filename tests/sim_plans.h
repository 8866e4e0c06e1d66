/* Machines and plans made by hand for suites of the simulator: ports of 100 GB/s, NICs of 10, and operations one by
 * one. */
#ifndef TESTS_SIM_PLANS_H
#define TESTS_SIM_PLANS_H

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/hardware/runtime.h"
#include "sim/sim.h"
#include "tests/hand_plan.h"
#include "tests/sim_module.h"
#include "tests/suite.h"

static const tws_sim_api *api;

/* ---- machines ---- */

typedef struct machine {
  tws_cluster cluster;
  tws_profile *profile;
  tws_machine machine;
} machine;

static const double port_bandwidth = 100e9, nic_bandwidth = 10e9;

/* Makes a cluster and a profile in which a kernel that fills n floats takes n nanoseconds. */
static inline void make_machine(machine *m, const char *backend, int nodes, int devices, int nics, int cores) {
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

static inline void make_gpus(machine *m, int nodes, int devices, int nics) {
  make_machine(m, "cuda", nodes, devices, nics, 0);
}
static inline void make_host(machine *m, int cores) {
  make_machine(m, "host", 1, cores, 1, cores);
}
static inline void drop_machine(machine *m) {
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

static inline void begin(maker *m, int rank, int world) {
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

static inline uint32_t emit(maker *m, tws_op_kind kind, tws_stream stream, tws_work work, uint32_t peer) {
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

static inline uint32_t compute(maker *m, tws_stream stream, double seconds) {
  return emit(m, TWS_OP_COMPUTE, stream,
              (tws_work){.code = TWS_KERNEL_FILL, .dtype = TWS_F32, .dtype2 = TWS_F32, .d = {llround(seconds * 1e9)}},
              0);
}

static inline uint32_t group(maker *m, int count, int first, int stride) {
  tws_group *g = &m->groups[m->plan.group_count];
  int *ranks = m->group_ranks[m->plan.group_count];
  *g = (tws_group){.axes = TWS_AXES_DATA, .size = count, .index = -1, .ranks = ranks};
  for (int i = 0; i < count; i++) {
    ranks[i] = first + i * stride;
    if (ranks[i] == m->plan.rank) g->index = i;
  }
  return m->plan.group_count++;
}

static inline uint32_t collective(maker *m, tws_stream stream, tws_collective code, uint32_t to, double bytes) {
  return emit(m, TWS_OP_COLLECTIVE, stream,
              (tws_work){.code = (uint8_t)code, .group = (uint16_t)to, .segments = 1, .d = {(int64_t)bytes}}, 0);
}

static inline uint32_t message(maker *m, tws_op_kind kind, int peer, double bytes) {
  return emit(m, kind, TWS_STREAM_P2P, (tws_work){.d = {(int64_t)bytes}}, (uint32_t)peer);
}

/* Makes the latest operation of the plan wait for `op`, too. */
static inline void after(maker *m, uint32_t op) {
  last_op_waits(&m->plan, op);
}

static inline tws_code simulate(const machine *m, const maker *makers, int count, tws_fidelity fidelity,
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

static inline double step(const machine *m, const maker *makers, int count, tws_fidelity fidelity) {
  tws_sim_result result;
  tws_error err = {0};
  ck_assert_msg(simulate(m, makers, count, fidelity, NULL, &result, &err) == TWS_OK, "%s", err.message);
  return result.step_s;
}

static inline void same(double value, double expected, double tolerance) {
  ck_assert_msg(fabs(value - expected) <= tolerance * fabs(expected), "%.12g is not %.12g", value, expected);
}

/* Gives all ranks of a group one collective or, where folded is not 0, only rank 0, which represents all. */
static inline void make_ring(maker *m, int ranks, tws_collective code, double bytes, int folded) {
  for (int rank = 0; rank < (folded ? 1 : ranks); rank++) {
    begin(&m[rank], rank, ranks);
    collective(&m[rank], TWS_STREAM_REDUCE, code, group(&m[rank], ranks, 0, 1), bytes);
  }
}

/* Runs the tests, or prints that they are skipped where the simulator was not built. Returns the status of main(). */
static inline int run_sim_suite(const char *name, const TTest *const *tests, size_t count) {
  api = load_simulator();
  if (!api) {
    fprintf(stderr, "skipped: built without the simulator\n");
    return EXIT_SUCCESS;
  }
  Suite *suite = suite_create(name);
  TCase *tcase = tcase_create(name);
  for (size_t i = 0; i < count; i++) tcase_add_test(tcase, tests[i]);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}

#endif
