/* NCCL's predicted choices compared with measured ones, and equal at two fidelities. */
#include <math.h>

#include "models/hardware/nccl.h"
#include "tests/sim_plans.h"

static tws_nccl_choice choose(const char *spec, int generation, tws_collective collective, int ranks, int per_node,
                              double bytes) {
  tws_cluster cluster;
  tws_nccl_choice choice = {0};
  tws_error err = {0};
  ck_assert_msg(tws_cluster_load(spec, &cluster, &err) == TWS_OK, "%s", err.message);
  ck_assert(tws_nccl_choose(&cluster, generation, collective, ranks, per_node, bytes, &choice));
  return choice;
}

/* The predicted time of large all-reduces is near measured bus bandwidths in GB/s: nccl-tests and torch's
 * all_reduce_bench, stas00/ml-engineering, network/README.md. The last three rows use five, six and seven of eight
 * devices. No figure is fitted. */
START_TEST(large_sums_take_what_was_measured) {
  static const struct {
    const char *cluster;
    int generation, ranks, algorithm;
    double measured;
  } rows[] = {{"dgx-a100", TWS_GENERATION_AMPERE, 8, TWS_NCCL_RING, 234.89},
              {"dgx-h200", TWS_GENERATION_HOPPER, 8, TWS_NCCL_NVLS, 482.26},
              {"dgx-b200", TWS_GENERATION_BLACKWELL, 8, TWS_NCCL_NVLS, 845.67},
              {"dgx-b200:4", TWS_GENERATION_BLACKWELL, 32, TWS_NCCL_NVLS_TREE, 381.8},
              {"dgx-h200", TWS_GENERATION_HOPPER, 5, TWS_NCCL_NVLS, 414.2},
              {"dgx-h200", TWS_GENERATION_HOPPER, 6, TWS_NCCL_NVLS, 435.6},
              {"dgx-h200", TWS_GENERATION_HOPPER, 7, TWS_NCCL_NVLS, 460.0}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const double bytes = 17179869184;
    const int n = rows[i].ranks;
    const tws_nccl_choice c =
        choose(rows[i].cluster, rows[i].generation, TWS_COLLECTIVE_ALL_REDUCE, n, n < 8 ? n : 8, bytes);
    const double bus = bytes / c.seconds / 1e9 * 2 * (n - 1) / n;
    ck_assert_int_eq(c.algorithm, rows[i].algorithm);
    ck_assert_msg(fabs(bus / rows[i].measured - 1) < 0.05, "row %zu: %g GB/s", i, bus);
  }
}
END_TEST

/* The choice of algorithm and protocol, computed by hand from the figures of NCCL's src/graph/tuning.cc. */
START_TEST(protocols_change_with_the_bytes) {
  tws_nccl_choice c = choose("dgx-a100", TWS_GENERATION_AMPERE, TWS_COLLECTIVE_ALL_REDUCE, 8, 8, 1 << 16);
  ck_assert(c.algorithm == TWS_NCCL_RING && c.protocol == TWS_NCCL_LL);
  ck_assert_double_eq_tol(c.latency_s, 6.6e-6 + 14 * 0.6e-6, 1e-12);
  ck_assert_double_eq_tol(c.bandwidth, 87.7e9 * 8 / 14, 1);
  c = choose("dgx-a100", TWS_GENERATION_AMPERE, TWS_COLLECTIVE_ALL_REDUCE, 8, 8, 8 << 20);
  ck_assert(c.algorithm == TWS_NCCL_RING && c.protocol == TWS_NCCL_LL128);
  ck_assert_double_eq_tol(c.bandwidth, 0.92 * 240e9 * 8 / 14, 1);
  c = choose("dgx-a100", TWS_GENERATION_AMPERE, TWS_COLLECTIVE_ALL_REDUCE, 8, 8, 1e9);
  ck_assert(c.protocol == TWS_NCCL_SIMPLE);
  ck_assert_double_eq_tol(c.seconds, 8.4e-6 + 14 * 3.4e-6 + 1e9 / (240e9 * 8 / 14), 1e-9);
  /* many nodes: all-reduces use trees, whose latency grows with the logarithm; gathers have no tree, and use PAT with
   * one rank per node */
  c = choose("dgx-a100:64", TWS_GENERATION_AMPERE, TWS_COLLECTIVE_ALL_REDUCE, 512, 8, 1 << 20);
  ck_assert_int_eq(c.algorithm, TWS_NCCL_TREE);
  c = choose("dgx-a100:64", TWS_GENERATION_AMPERE, TWS_COLLECTIVE_ALL_GATHER, 512, 8, 1 << 20);
  ck_assert_int_eq(c.algorithm, TWS_NCCL_RING);
  c = choose("dgx-a100:64", TWS_GENERATION_AMPERE, TWS_COLLECTIVE_ALL_GATHER, 64, 1, 4 << 20);
  ck_assert_int_eq(c.algorithm, TWS_NCCL_PAT);
  tws_cluster host;
  tws_error err = {0};
  ck_assert_int_eq(tws_cluster_load("host", &host, &err), TWS_OK);
  ck_assert(!tws_nccl_choose(&host, TWS_GENERATION_NONE, TWS_COLLECTIVE_ALL_REDUCE, 4, 4, 1e6, &c));
}
END_TEST

START_TEST(flows_take_as_long) {
  static maker m[16];
  static const tws_collective all[] = {TWS_COLLECTIVE_ALL_REDUCE, TWS_COLLECTIVE_ALL_GATHER,
                                       TWS_COLLECTIVE_REDUCE_SCATTER};
  static const struct {
    const char *spec, *profile;
  } machines[] = {{"dgx-h100:2", "h100-sxm"}, {"dgx-a100:2", "a100-80gb"}, {"dgx-b200:16x1", "b200"}};
  tws_error err = {0};
  for (size_t k = 0; k < sizeof machines / sizeof *machines; k++) {
    machine gpu = {0};
    ck_assert_int_eq(tws_cluster_load(machines[k].spec, &gpu.cluster, &err), TWS_OK);
    ck_assert_int_eq(tws_profile_load(machines[k].profile, &gpu.profile, &err), TWS_OK);
    gpu.cluster.nccl = 1;
    gpu.machine = (tws_machine){&gpu.cluster, gpu.profile};
    for (int i = 0; i < 3; i++)
      for (double bytes = 840 * 64; bytes < 1e10; bytes *= 64) {
        make_ring(m, 16, all[i], bytes, 0);
        const double analytic = step(&gpu, m, 16, TWS_FIDELITY_ANALYTIC);
        same(step(&gpu, m, 16, TWS_FIDELITY_FLOW), analytic, 1e-6);
        gpu.cluster.nccl = 0;
        ck_assert_double_ne(step(&gpu, m, 16, TWS_FIDELITY_ANALYTIC), analytic);
        gpu.cluster.nccl = 1;
      }
    drop_machine(&gpu);
  }
}
END_TEST

int main(void) {
  const TTest *const tests[] = {large_sums_take_what_was_measured, protocols_change_with_the_bytes, flows_take_as_long};
  return run_sim_suite("nccl", tests, sizeof tests / sizeof *tests);
}
