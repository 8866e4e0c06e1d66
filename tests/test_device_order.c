/* ctest: engine */
/* On the emulated device a stream waits for exactly the operations that the plan names; and with the costs of the
 * plan's operations on the device's clock a step takes as long as the longest path. The job has one rank; its
 * collectives and messages complete at once. */
#include <check.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "estimators/estimators.h"
#include "real/cuda/cuda.h"
#include "real/executor.h"
#include "tests/emulator/trace.h"
#include "tests/suite.h"

static const tws_backend_ops *ops;
static emulated_trace_function trace;
static emulated_traced_function traced;
static emulated_work_function work;
static emulated_node_function node;
static tws_error err;

/* ---- a communicator whose work is a small copy ---- */

static tws_code start(tws_backend *backend, void *to, const void *from, tws_stream stream) {
  return ops->copy(backend, to, from, 4, stream, &err);
}

static tws_code start_collective(tws_comm *comm, int group, tws_collective collective, int root,
                                 const tws_comm_segment *segments, int count, tws_stream stream, tws_error *e) {
  (void)group, (void)collective, (void)root, (void)count, (void)e;
  return start((tws_backend *)comm, segments[0].receive, segments[0].send, stream);
}

static tws_code start_message(tws_comm *comm, int peer, int receives, void *data, uint64_t bytes, tws_stream stream,
                              tws_error *e) {
  (void)peer, (void)receives, (void)bytes, (void)e;
  return start((tws_backend *)comm, data, data, stream);
}

static const tws_comm_ops comm_ops = {
    .name = "copies", .start_collective = start_collective, .start_message = start_message};

/* ---- jobs ---- */

typedef struct job {
  const char *what;
  int ranks, rank;
  const char *set[18]; /* keys and values */
} job;

static const job jobs[] = {
    {"ZeRO-3 with prefetch",
     4,
     1,
     {"zero_optimization.stage", "3", "zero_optimization.overlap_comm", "true", "gradient_accumulation_steps", "2",
      "zero_optimization.stage3_prefetch_bucket_size", "4000", "zero_optimization.reduce_bucket_size", "6000",
      "zero_optimization.stage3_param_persistence_threshold", "100"}},
    {"ZeRO-2 with overlap",
     2,
     0,
     {"zero_optimization.stage", "2", "zero_optimization.overlap_comm", "true", "gradient_accumulation_steps", "2",
      "zero_optimization.reduce_bucket_size", "6000"}},
    {"overlapped tensor parallelism",
     2,
     1,
     {"tensor_parallel.autotp_size", "2", "tensor_parallel.tp_overlap_comm", "true", "twinspeed.tensor_overlap_chunks",
      "2", "twinspeed.tensor_sequence_parallel", "true"}},
    {"tensor parallelism with ZeRO-1",
     4,
     2,
     {"tensor_parallel.autotp_size", "2", "tensor_parallel.tp_overlap_comm", "true", "twinspeed.tensor_overlap_chunks",
      "2", "zero_optimization.stage", "1", "zero_optimization.overlap_comm", "true"}},
    {"1F1B", 4, 1, {"pipeline.stages", "4", "gradient_accumulation_steps", "8"}},
    {"interleaved stages",
     2,
     1,
     {"pipeline.stages", "2", "gradient_accumulation_steps", "4", "twinspeed.pipeline_schedule", "interleaved",
      "twinspeed.virtual_stages", "2"}},
    {"the optimizer on the host",
     2,
     1,
     {"zero_optimization.stage", "2", "zero_optimization.overlap_comm", "true", "gradient_accumulation_steps", "2",
      "zero_optimization.reduce_bucket_size", "6000", "zero_optimization.sub_group_size", "5000",
      "zero_optimization.offload_optimizer.device", "cpu"}},
    {"parameters and optimizer on a disk",
     2,
     0,
     {"zero_optimization.stage", "3", "zero_optimization.sub_group_size", "5000",
      "zero_optimization.offload_optimizer.device", "nvme", "zero_optimization.offload_optimizer.pipeline_read", "true",
      "zero_optimization.offload_param.device", "nvme", "zero_optimization.offload_param.buffer_size", "5000"}},
};

static tws_network *make_network(void) {
  static const char text[] =
      "{\"model_type\":\"gpt2\",\"vocab_size\":256,\"n_positions\":64,\"n_embd\":32,\"n_layer\":4,\"n_head\":4}";
  tws_json *json;
  tws_network *network;
  ck_assert(tws_json_parse(text, sizeof text - 1, "model", &json, &err) == TWS_OK);
  ck_assert_msg(tws_network_from_json(json, 1, &network, &err) == TWS_OK, "%s", err.message);
  tws_json_destroy(json);
  return network;
}

static tws_plan *make_plan(const job *j, const tws_network *network, tws_config **config) {
  tws_plan *plan;
  ck_assert(tws_config_default(config, &err) == TWS_OK);
  for (int i = 0; j->set[i]; i += 2)
    ck_assert_msg(tws_config_set(*config, j->set[i], j->set[i + 1], &err) == TWS_OK, "%s", err.message);
  ck_assert(tws_config_set(*config, "train_micro_batch_size_per_gpu", "2", &err) == TWS_OK);
  (*config)->sequence_length = 32;
  ck_assert_msg(tws_config_resolve(*config, j->ranks, &(tws_auto_context){network->hidden}, &err) == TWS_OK, "%s",
                err.message);
  tws_plan_request request = {
      .network = network, .config = *config, .rank = j->rank, .backend = TWS_BACKEND_CUDA, .threads = 1};
  ck_assert(tws_plan_topology(*config, j->ranks, &request.topology, &err) == TWS_OK);
  ck_assert_msg(tws_plan_build(&request, &plan, &err) == TWS_OK, "%s: %s", j->what, err.message);
  ck_assert_msg(tws_plan_verify(plan, &err) == TWS_OK, "%s: %s", j->what, err.message);
  return plan;
}

/* ---- a step, watched ---- */

typedef struct watched {
  const tws_plan *plan;
  const tws_machine *machine;
  long *first; /* [op_count + 1]: number of works recorded when an operation began */
} watched;

static tws_code before_op(void *user, uint32_t op, tws_error *e) {
  watched *w = user;
  (void)e;
  const tws_op *o = &w->plan->ops[op];
  const int message = o->kind == TWS_OP_SEND || o->kind == TWS_OP_RECV;
  w->first[op] = traced();
  work(1e3 * (message ? tws_plan_message_seconds(w->plan, o->peer, o->work, w->machine)
                      : tws_plan_work_seconds(w->plan, o->work, w->machine, 1)));
  return TWS_OK;
}

static int contains(const long *list, int count, long value) {
  for (int i = 0; i < count; i++)
    if (list[i] == value) return 1;
  return 0;
}

/* Checks what each work waits for: the first work of an operation for the previous operation on its stream and for the
 * last works of the operations that it depends on; further works of the operation only for the previous one. */
static void check_waits(const job *j, const watched *w, const tws_plan *plan) {
  enum { MOST = 64 };
  long *last = calloc(plan->op_count, sizeof *last), of_stream[TWS_STREAM_COUNT] = {0}, after[MOST];
  int across = 0, known;
  const long begin = node(0, after, MOST, &known); /* number of the first work: earlier ones are of the step before */
  for (uint32_t op = 0; op < plan->op_count; op++) {
    const tws_op *o = &plan->ops[op];
    ck_assert_msg(w->first[op + 1] > w->first[op], "%s: operation %u did nothing", j->what, op);
    for (long i = w->first[op]; i < w->first[op + 1]; i++) {
      long want[MOST];
      int count, wanted = 0;
      const long number = node(i, after, MOST, &count);
      ck_assert_int_le(count, MOST);
      if (of_stream[o->stream]) want[wanted++] = of_stream[o->stream];
      for (uint32_t k = 0; i == w->first[op] && k < o->dep_count; k++)
        want[wanted++] = last[plan->deps[o->dep_first + k]];
      across += i == w->first[op] ? o->dep_count : 0;
      char label[160];
      tws_op_label(plan, op, label, sizeof label);
      for (int k = 0; k < wanted; k++)
        ck_assert_msg(contains(after, count, want[k]), "%s: operation %u (%s) does not wait for work %ld", j->what, op,
                      label, want[k]);
      for (int k = 0; k < count; k++)
        ck_assert_msg(after[k] < begin || contains(want, wanted, after[k]),
                      "%s: operation %u (%s) waits for work %ld, the plan not", j->what, op, label, after[k]);
      of_stream[o->stream] = last[op] = number;
    }
  }
  ck_assert_msg(across > 4, "%s: %d dependencies between streams", j->what, across);
  free(last);
}

static double step_seconds(const tws_plan *plan, const double *times) {
  double begin = times[0], end = 0;
  for (uint32_t op = 0; op < plan->op_count; op++) {
    begin = fmin(begin, times[2 * op]);
    end = fmax(end, times[2 * op + 1]);
  }
  return end - begin;
}

START_TEST(streams_wait_for_dependencies_alone) {
  const job *j = &jobs[_i];
  tws_network *network = make_network();
  tws_config *config;
  tws_plan *plan = make_plan(j, network, &config);
  tws_cluster cluster;
  tws_profile *profile;
  tws_backend *backend;
  tws_executor *executor;
  tws_path_result path;
  ck_assert(tws_cluster_load("dgx-h200", &cluster, &err) == TWS_OK);
  ck_assert(tws_profile_load(cluster.profile, &profile, &err) == TWS_OK);
  const tws_machine machine = {&cluster, profile};
  ck_assert(ops->create(0, 1, &backend, &err) == TWS_OK);
  const tws_plan *programs[] = {plan};
  tws_host_work *host;
  ck_assert_msg(tws_host_work_create(2, &host, &err) == TWS_OK, "%s", err.message);
  const tws_executor_setup setup = {.programs = programs,
                                    .program_count = 1,
                                    .ops = ops,
                                    .backend = backend,
                                    .host = host,
                                    .comm_ops = &comm_ops,
                                    .comm = (tws_comm *)backend};
  ck_assert_msg(tws_executor_create(&setup, &executor, &err) == TWS_OK, "%s", err.message);
  double *times = calloc(plan->op_count, 2 * sizeof *times);
  watched w = {plan, &machine, calloc(plan->op_count + 1u, sizeof *w.first)};
  /* the first step also waits after each operation, because kernels are loaded then */
  ck_assert_msg(tws_executor_step(executor, 0, 1, times, before_op, &w, &err) == TWS_OK, "%s", err.message);
  trace(1);
  ck_assert_msg(tws_executor_step(executor, 0, 2, times, before_op, &w, &err) == TWS_OK, "%s", err.message);
  w.first[plan->op_count] = traced();
  check_waits(j, &w, plan);
  trace(0);
  ck_assert(tws_longest_path(plan, &machine, &path, &err) == TWS_OK);
  if (plan->state->arena_bytes[TWS_TIER_DISK] == 0) /* transfers to a disk take real time */
    ck_assert_msg(fabs(step_seconds(plan, times) - path.step_s) <= 1e-5 * path.step_s, "%s: %.9g s instead of %.9g",
                  j->what, step_seconds(plan, times), path.step_s);
  double serial = 0; /* and hides something */
  for (int i = 0; i < TWS_STREAM_COUNT; i++) serial += path.stream_busy_s[i];
  ck_assert_msg(path.step_s < 0.999 * serial, "%s hides nothing", j->what);
  free(times);
  free(w.first);
  tws_executor_destroy(executor);
  tws_host_work_destroy(host);
  ops->destroy(backend);
  tws_plan_destroy(plan);
  tws_profile_destroy(profile);
  tws_config_destroy(config);
  tws_network_destroy(network);
}
END_TEST

static int load_device(void) {
  void *module = dlopen(TWS_BUILD_DIR "/emulated/twinspeed_cuda.so", RTLD_NOW | RTLD_LOCAL);
  if (!module) return -1;
  const tws_cuda_api *(*entry)(void) = (const tws_cuda_api *(*)(void))dlsym(module, TWS_CUDA_MODULE_SYMBOL);
  trace = (emulated_trace_function)dlsym(module, "emulated_trace");
  traced = (emulated_traced_function)dlsym(module, "emulated_traced");
  work = (emulated_work_function)dlsym(module, "emulated_work");
  node = (emulated_node_function)dlsym(module, "emulated_node");
  ops = entry ? entry()->backend : NULL;
  return ops && trace && traced && work && node ? 0 : -1;
}

int main(void) {
  if (access(TWS_BUILD_DIR "/emulated/twinspeed_cuda.so", R_OK) != 0) {
    fprintf(stderr, "the emulated device was not built: nothing to test\n");
    return 0;
  }
  if (load_device() != 0) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  Suite *suite = suite_create("device_order");
  TCase *tests = tcase_create("order");
  tcase_set_timeout(tests, 60);
  tcase_add_loop_test(tests, streams_wait_for_dependencies_alone, 0, (int)(sizeof jobs / sizeof *jobs));
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
