/* Speed of planning: estimates of one configuration (plans, ledger, longest path), plans of all stages of a pipeline,
 * and the longest path through these; CPU milliseconds, medians of repeated runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "estimators/estimators.h"
#include "plan/pipeline_grid.h"
#include "bench/support.h"

enum { REPEATS = 21, MOST_STAGES = 16 };

typedef struct job {
  const char *model, *cluster, *stage, *accumulation, *recompute, *pipeline, *tensor;
  int ranks;
} job;

/* Builds the plans of all stages and computes the longest path through them; returns the number of their operations. */
static uint64_t build(tws_plan_request request, const tws_machine *machine, int stages, double *plan_s,
                      double *path_s) {
  tws_error err = {0};
  tws_plan *plans[MOST_STAGES];
  uint64_t operations = 0;
  double step_s, start = cpu_s();
  for (int s = 0; s < stages; s++) {
    request.rank = tws_pipeline_grid_stage(&request.topology, 0, s); /* plans of the tensor ranks of one stage differ in
                                                                      * constants only */
    need(tws_plan_build(&request, &plans[s], &err), &err);
    operations += plans[s]->op_count;
  }
  *plan_s = cpu_s() - start;
  start = cpu_s();
  need(tws_job_path((const tws_plan *const *)plans, stages, machine, NULL, &step_s, &err), &err);
  *path_s = cpu_s() - start;
  for (int s = 0; s < stages; s++) tws_plan_destroy(plans[s]);
  return operations;
}

static void run(const job *j) {
  tws_error err = {0};
  tws_network *network;
  tws_config *config;
  tws_cluster cluster;
  tws_profile *profile;
  tws_estimate estimate;
  double estimates[REPEATS], plans[REPEATS], paths[REPEATS];
  need(tws_network_load(j->model, j->tensor ? argument_int(j->tensor) : 1, &network, &err), &err);
  need(tws_cluster_load(j->cluster, &cluster, &err), &err);
  need(tws_profile_load(cluster.profile, &profile, &err), &err);
  need(tws_config_default(&config, &err), &err);
  need(tws_config_set(config, "zero_optimization.stage", j->stage, &err), &err);
  need(tws_config_set(config, "bf16.enabled", "true", &err), &err);
  need(tws_config_set(config, "train_micro_batch_size_per_gpu", "1", &err), &err);
  need(tws_config_set(config, "gradient_accumulation_steps", j->accumulation, &err), &err);
  need(tws_config_set(config, "twinspeed.recompute", j->recompute, &err), &err);
  need(tws_config_set(config, "pipeline.stages", j->pipeline, &err), &err);
  if (j->tensor) need(tws_config_set(config, "tensor_parallel.autotp_size", j->tensor, &err), &err);
  if (!config->sequence_length) config->sequence_length = network->positions < 2048 ? network->positions : 2048;
  need(tws_config_resolve(config, j->ranks, &(tws_auto_context){network->hidden}, &err), &err);
  tws_plan_request request = {.network = network, .config = config, .backend = TWS_BACKEND_CUDA, .threads = 1};
  need(tws_plan_topology(config, j->ranks, &request.topology, &err), &err);
  const tws_machine machine = {&cluster, profile};
  int stages = tws_config_division(config).pipeline;
  uint64_t operations = 0;
  for (int i = 0; i < REPEATS; i++) {
    const double start = cpu_s();
    need(tws_estimate_step(&request, &machine, &estimate, &err), &err);
    estimates[i] = cpu_s() - start;
    operations = build(request, &machine, stages, &plans[i], &paths[i]);
  }
  double estimate_s = median(estimates, REPEATS), plan_s = median(plans, REPEATS);
  printf(
      "%-12s ZeRO-%s, %s recompute, %3s stages, %s tensor, %3s micro-batches, %4d ranks %9.3f ms %8.0f /s %11.2f ms "
      "%9llu ops %9.2f ms\n",
      j->model, j->stage, j->recompute, j->pipeline, j->tensor ? j->tensor : "1", j->accumulation, j->ranks,
      1e3 * estimate_s, 1 / estimate_s, 1e3 * plan_s, (unsigned long long)operations, 1e3 * median(paths, REPEATS));
  tws_config_destroy(config);
  tws_profile_destroy(profile);
  tws_network_destroy(network);
}

int main(void) {
  tws_keep_freed_memory(); /* as the program does */
  static const job jobs[] = {
      {"gpt2", "dgx-a100", "2", "4", "none", "1", NULL, 8},
      {"gpt2-xl", "dgx-a100:8", "3", "1", "none", "1", NULL, 64},
      {"llama-2-7b", "dgx-a100:8", "3", "1", "full", "1", NULL, 64},
      {"llama-3-70b", "dgx-h100:8", "3", "4", "full", "1", NULL, 64},
      {"gpt2-xl", "dgx-a100:8", "1", "16", "none", "4", NULL, 64},
      {"llama-3-70b", "dgx-h100:16", "1", "64", "full", "16", NULL, 128},
      {"gpt-3-175b", "dgx-a100:16", "1", "64", "full", "16", "8", 128},
  };
  printf("%-90s %12s %11s %14s %26s\n", "job", "estimate", "rate", "plans built", "path");
  for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) run(&jobs[i]);
  return 0;
}
