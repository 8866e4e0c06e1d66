/* Simulated steps a second: GPT-2-xl, ZeRO-3, 64 devices (dgx-a100:8), by fidelity, one rank for all and every rank.
 * Medians of repeated runs; plans are built once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "bench/support.h"
#include "sim/sim.h"

enum { RANKS = 64, REPEATS = 9 };

static const tws_sim_api *load(void) {
  const tws_sim_api *(*get)(void);
  void *symbol = module_symbol(TWS_BUILD_DIR "/twinspeed_sim.so", TWS_SIM_MODULE_SYMBOL);
  memcpy(&get, &symbol, sizeof get);
  return get();
}

static void bench(const tws_sim_api *api, const char *name, const tws_sim_request *request, int repeats) {
  double seconds[REPEATS];
  tws_sim_result result;
  tws_error err = {0};
  for (int i = 0; i < repeats; i++) {
    const double start = tws_clock_s();
    need(api->simulate(request, &result, &err), &err);
    seconds[i] = tws_clock_s() - start;
  }
  const double took = median(seconds, repeats);
  printf("%-34s %10.2f ms %10.1f steps/s %10llu events %8.2f M events/s   step %.3f ms\n", name, 1e3 * took, 1 / took,
         (unsigned long long)result.events, 1e-6 * (double)result.events / took, 1e3 * result.step_s);
}

int main(void) {
  tws_error err = {0};
  tws_network *network;
  tws_config *config;
  tws_cluster cluster;
  tws_profile *profile;
  tws_plan *plans[RANKS];
  const tws_axis axis = TWS_AXIS_DATA;
  const int world = RANKS;
  const tws_sim_api *api = load();
  need(tws_network_load("gpt2-xl", 1, &network, &err), &err);
  need(tws_config_default(&config, &err), &err);
  need(tws_config_set(config, "zero_optimization.stage", "3", &err), &err);
  need(tws_config_set(config, "train_micro_batch_size_per_gpu", "4", &err), &err);
  need(tws_config_set(config, "bf16.enabled", "true", &err), &err);
  need(tws_config_set(config, "twinspeed.sequence_length", "1024", &err), &err);
  need(tws_config_resolve(config, world, &(tws_auto_context){network->hidden}, &err), &err);
  need(tws_cluster_load("dgx-a100:8", &cluster, &err), &err);
  need(tws_profile_load(cluster.profile, &profile, &err), &err);
  tws_plan_request request = {.network = network, .config = config, .backend = TWS_BACKEND_CUDA, .threads = 1};
  need(tws_topology_make(&request.topology, 1, &axis, &world, &err), &err);
  const double start = tws_clock_s();
  for (int rank = 0; rank < RANKS; rank++) {
    request.rank = rank;
    need(tws_plan_build(&request, &plans[rank], &err), &err);
  }
  printf("%s: gpt2-xl, ZeRO-3, %d devices, %u operations a rank; a plan is built in %.2f ms\n", api->description(),
         RANKS, plans[0]->op_count, 1e3 * (tws_clock_s() - start) / RANKS);

  tws_sim_request sim = {
      .plans = (const tws_plan *const *)plans, .plan_count = 1, .fold = 1, .machine = {&cluster, profile}};
  bench(api, "one rank for all, analytic", &sim, REPEATS);
  sim.fidelity = TWS_FIDELITY_FLOW;
  bench(api, "one rank for all, flow", &sim, REPEATS);
  sim.plan_count = RANKS;
  sim.fold = 0;
  bench(api, "all ranks, flow", &sim, REPEATS);
  sim.fidelity = TWS_FIDELITY_ANALYTIC;
  bench(api, "all ranks, analytic", &sim, REPEATS);

  for (int rank = 0; rank < RANKS; rank++) tws_plan_destroy(plans[rank]);
  tws_profile_destroy(profile);
  tws_config_destroy(config);
  tws_network_destroy(network);
  return 0;
}
