/* Speed of simulating steps, in CPU seconds (user and system) of one core.
 *
 * First GPT-2-xl, ZeRO-3, 64 devices, by fidelity, with one representative rank and with every rank: medians of
 * repeated runs, plans built once. Then large jobs, each in a process of its own that builds its plans and simulates
 * once, with its peak memory: 32 layers of data parallelism over 1,024 ranks, an all-reduce over 4,096, GPT-3 175B on
 * 16,384. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "bench/support.h"
#include "plan/pipeline_grid.h"
#include "sim/sim.h"

enum { RANKS = 64, REPEATS = 9, LAYERS = 32, STAGES = 16 };

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
    const double start = cpu_s();
    need(api->simulate(request, &result, &err), &err);
    seconds[i] = cpu_s() - start;
  }
  const double took = median(seconds, repeats);
  printf("%-34s %10.2f ms %10.1f steps/s %10llu events %8.2f M events/s   step %.3f ms\n", name, 1e3 * took, 1 / took,
         (unsigned long long)result.events, 1e-6 * (double)result.events / took, 1e3 * result.step_s);
}

static void by_fidelity(const tws_sim_api *api) {
  tws_error err = {0};
  tws_network *network;
  tws_config *config;
  tws_cluster cluster;
  tws_profile *profile;
  tws_plan *plans[RANKS];
  const tws_axis axis = TWS_AXIS_DATA;
  const int world = RANKS;
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
  const double start = cpu_s();
  for (int rank = 0; rank < RANKS; rank++) {
    request.rank = rank;
    need(tws_plan_build(&request, &plans[rank], &err), &err);
  }
  printf("%s: gpt2-xl, ZeRO-3, %d devices, %u operations a rank; a plan is built in %.2f ms\n", api->description(),
         RANKS, plans[0]->op_count, 1e3 * (cpu_s() - start) / RANKS);

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
  sim.fidelity = TWS_FIDELITY_MESSAGE;
  bench(api, "all ranks, message", &sim, 1);

  for (int rank = 0; rank < RANKS; rank++) tws_plan_destroy(plans[rank]);
  tws_profile_destroy(profile);
  tws_config_destroy(config);
  tws_network_destroy(network);
}

/* ---- data parallelism, whose plans are built here by hand ---- */

static const char made_up[] =
    "{\"schema\": \"twinspeed-profile-1\", \"name\": \"made up\", \"provenance\": \"a kernel that fills n floats takes "
    "n "
    "nanoseconds\", \"backend\": \"cuda\", \"cores\": 0, \"memory_bytes\": 1e12, \"bandwidth\": 4e9, \"peak_flops\": "
    "{\"fp32\": 1e12}, \"matmul\": {\"efficiency\": 1}, \"attention\": {\"efficiency\": 1}}";

enum { MOST_OPS = 3 * LAYERS, MOST_WORKS = 3 };

typedef struct data_parallel {
  tws_op ops[MOST_OPS];
  uint32_t deps[LAYERS];
  tws_work works[MOST_WORKS];
  tws_plan plan;
} data_parallel;

static void add_op(data_parallel *d, tws_op_kind kind, tws_stream stream, uint32_t work, uint32_t match) {
  d->ops[d->plan.op_count++] = (tws_op){.kind = (uint8_t)kind,
                                        .stream = (uint8_t)stream,
                                        .phase = match == TWS_NONE ? TWS_PHASE_FORWARD : TWS_PHASE_BACKWARD,
                                        .work = work,
                                        .module = TWS_NONE,
                                        .dep_first = d->plan.dep_count,
                                        .match = match == TWS_NONE ? 0 : match};
}

/* Builds a plan in which every layer computes 5 ms forward and 10 ms backward, then all-reduces its gradients while the
 * next layer computes; or the all-reduces alone. */
static void write_down(data_parallel *d, int layers, double bytes, int computes) {
  memset(d, 0, sizeof *d);
  d->plan = (tws_plan){.ops = d->ops, .deps = d->deps, .works = d->works, .work_count = MOST_WORKS, .threads = 1};
  for (int i = 0; i < 2; i++)
    d->works[i] = (tws_work){.kind = TWS_OP_COMPUTE,
                             .code = TWS_KERNEL_FILL,
                             .dtype = TWS_F32,
                             .dtype2 = TWS_F32,
                             .d = {i ? 10000000 : 5000000}};
  d->works[2] =
      (tws_work){.kind = TWS_OP_COLLECTIVE, .code = TWS_COLLECTIVE_ALL_REDUCE, .segments = 1, .d = {(int64_t)bytes}};
  for (int i = 0; i < layers && computes; i++) add_op(d, TWS_OP_COMPUTE, TWS_STREAM_COMPUTE, 0, TWS_NONE);
  for (int i = 0; i < layers; i++) {
    if (computes) add_op(d, TWS_OP_COMPUTE, TWS_STREAM_COMPUTE, 1, TWS_NONE);
    add_op(d, TWS_OP_COLLECTIVE, TWS_STREAM_REDUCE, 2, (uint32_t)i);
    if (!computes) continue;
    d->deps[d->plan.dep_count++] = d->plan.op_count - 2;
    d->ops[d->plan.op_count - 1].dep_count = 1;
    d->ops[d->plan.op_count - 2].awaited = 1;
  }
}

typedef struct large {
  const char *name;
  int ranks, layers;
  double bytes;
  tws_fidelity fidelity;
  int fold;
} large;

static double data_parallel_step(const tws_sim_api *api, const large *l) {
  static data_parallel d;
  const int plans = l->fold ? 1 : l->ranks;
  const tws_axis axis = TWS_AXIS_DATA;
  tws_cluster cluster = {.name = "made up",
                         .nodes = l->ranks / 8,
                         .devices_per_node = 8,
                         .host_memory_bytes = 1e12,
                         .intra = {300e9, 2e-6},
                         .inter = {25e9, 5e-6},
                         .nics_per_node = 1,
                         .host_link = {10e9, 1e-6}};
  tws_error err = {0};
  tws_json *json;
  tws_profile *profile;
  tws_sim_result result;
  need(tws_json_parse(made_up, sizeof made_up - 1, "profile", &json, &err), &err);
  need(tws_profile_from_json(json, &profile, &err), &err);
  tws_json_destroy(json);
  write_down(&d, l->layers, l->bytes, l->layers > 1);
  need(tws_topology_make(&d.plan.topology, 1, &axis, &l->ranks, &err), &err);
  int *members = calloc((size_t)l->ranks, sizeof *members);
  tws_group *groups = calloc((size_t)l->ranks, sizeof *groups);
  tws_plan *of = calloc((size_t)plans, sizeof *of);
  const tws_plan **list = calloc((size_t)plans, sizeof *list);
  if (!members || !groups || !of || !list) exit(EXIT_FAILURE);
  for (int rank = 0; rank < l->ranks; rank++) members[rank] = rank;
  for (int rank = 0; rank < plans; rank++) {
    groups[rank] = (tws_group){.axes = TWS_AXES_DATA, .size = l->ranks, .index = rank, .ranks = members};
    of[rank] = d.plan;
    of[rank].rank = rank;
    of[rank].world = l->ranks;
    of[rank].groups = &groups[rank];
    of[rank].group_count = 1;
    list[rank] = &of[rank];
  }
  need(api->simulate(&(tws_sim_request){.plans = list,
                                        .plan_count = plans,
                                        .fold = l->fold,
                                        .machine = {&cluster, profile},
                                        .fidelity = l->fidelity},
                     &result, &err),
       &err);
  return result.step_s;
}

/* Predicts the step of a pipeline in seconds: one rank for each stage, tensor parallelism 8, 64 micro-batches,
 * ZeRO-1. */
static double pipeline_step(const tws_sim_api *api, const large *l) {
  tws_error err = {0};
  tws_network *network;
  tws_config *config;
  tws_cluster cluster;
  tws_profile *profile;
  tws_plan *plans[STAGES];
  tws_sim_result result;
  need(tws_network_load("gpt-3-175b", 8, &network, &err), &err);
  need(tws_cluster_load("dgx-a100:2048", &cluster, &err), &err);
  need(tws_profile_load(cluster.profile, &profile, &err), &err);
  need(tws_config_default(&config, &err), &err);
  static const char *const settings[][2] = {
      {"zero_optimization.stage", "1"},        {"bf16.enabled", "true"},
      {"train_micro_batch_size_per_gpu", "1"}, {"gradient_accumulation_steps", "64"},
      {"twinspeed.recompute", "full"},         {"pipeline.stages", "16"},
      {"tensor_parallel.autotp_size", "8"},    {"twinspeed.sequence_length", "2048"}};
  for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
    need(tws_config_set(config, settings[i][0], settings[i][1], &err), &err);
  need(tws_config_resolve(config, l->ranks, &(tws_auto_context){network->hidden}, &err), &err);
  tws_plan_request request = {.network = network, .config = config, .backend = TWS_BACKEND_CUDA, .threads = 1};
  need(tws_plan_topology(config, l->ranks, &request.topology, &err), &err);
  for (int stage = 0; stage < STAGES; stage++) {
    request.rank = tws_pipeline_grid_stage(&request.topology, 0, stage);
    need(tws_plan_build(&request, &plans[stage], &err), &err);
  }
  need(api->simulate(&(tws_sim_request){.plans = (const tws_plan *const *)plans,
                                        .plan_count = STAGES,
                                        .fold = 1,
                                        .machine = {&cluster, profile},
                                        .fidelity = l->fidelity},
                     &result, &err),
       &err);
  return result.step_s;
}

typedef struct answer {
  double step_s, cpu_s;
} answer;

/* Simulates a job; a small job before it starts SimGrid, which is thus not part of the measured time. */
static answer run_alone(const large *l) {
  static const large small = {"", 8, 1, 1024, TWS_FIDELITY_FLOW, 1};
  const tws_sim_api *api = load();
  data_parallel_step(api, &small);
  const double start = cpu_s(), step_s = l->layers > 0 ? data_parallel_step(api, l) : pipeline_step(api, l);
  return (answer){step_s, cpu_s() - start};
}

static void run_large(const large *l) {
  enum { TIMES = 5 };
  double seconds[TIMES], whole[TIMES], memory = 0;
  answer got;
  for (int i = 0; i < TIMES; i++) {
    int ends[2], status;
    struct rusage used;
    fflush(stdout);
    if (pipe(ends) != 0) exit(EXIT_FAILURE);
    const pid_t child = fork();
    if (child == 0) {
      got = run_alone(l);
      _exit(write(ends[1], &got, sizeof got) == sizeof got ? EXIT_SUCCESS : EXIT_FAILURE);
    }
    if (child < 0 || read(ends[0], &got, sizeof got) != sizeof got || wait4(child, &status, 0, &used) < 0)
      exit(EXIT_FAILURE);
    close(ends[0]);
    close(ends[1]);
    seconds[i] = got.cpu_s;
    whole[i] = (double)used.ru_utime.tv_sec + (double)used.ru_stime.tv_sec +
               1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
    memory = (double)used.ru_maxrss / 1024;
  }
  printf("%-58s %9.4f s %9.3f s %6.0f MiB   step %.3f ms\n", l->name, median(seconds, TIMES), median(whole, TIMES),
         memory, 1e3 * got.step_s);
}

int main(void) {
  static const large all[] = {
      {"32 layers, data parallel, 1024 ranks, all ranks' flows", 1024, LAYERS, 400.0 * (1 << 20), TWS_FIDELITY_FLOW, 0},
      {"the same, one rank for all", 1024, LAYERS, 400.0 * (1 << 20), TWS_FIDELITY_FLOW, 1},
      {"the same, all ranks, by messages", 1024, LAYERS, 400.0 * (1 << 20), TWS_FIDELITY_MESSAGE, 0},
      {"all-reduce of 64 MiB, 4096 ranks, flows", 4096, 1, 64.0 * (1 << 20), TWS_FIDELITY_FLOW, 0},
      {"the same, by messages", 4096, 1, 64.0 * (1 << 20), TWS_FIDELITY_MESSAGE, 0},
      {"GPT-3 175B, tensor 8, pipeline 16, 16384 devices, folded", 16384, 0, 0, TWS_FIDELITY_ANALYTIC, 1},
      {"the same, flows", 16384, 0, 0, TWS_FIDELITY_FLOW, 1},
  };
  tws_keep_freed_memory(); /* as the program does */
  printf("%-58s %11s %11s %10s\n", "CPU time: plans and one step; with the start of SimGrid", "step", "process",
         "memory");
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) run_large(&all[i]);
  by_fidelity(load());
  return 0;
}
