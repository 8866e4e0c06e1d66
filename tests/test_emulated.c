/* ctest: mpi slow */
/* Training on the emulated device (tests/emulator): the unchanged CUDA backend, its graphs and the NCCL communicator,
 * in the whole engine, compared with the host's backend. Kernels of a graph run in a random order among those that its
 * dependencies allow; messages and collectives are rendezvous. */
#include <check.h>
#include <dlfcn.h>
#include <math.h>

#include "emulated.h"
#include "members.h"
#include "network_files.h"
#include "real/cuda/cuda.h"

/* Steps recorded as graphs give the same bits as steps that are started operation by operation, and both give the
 * host's losses within a tolerance. */
START_TEST(recorded) {
  static const char *const models[] = {"gpt", "llama"}, *const types[] = {"fp32", "bf16", "fp16"};
  static const double limits[] = {2e-6, 1e-4, 1e-4};
  char flags[256];
  double host[MOST_STEPS], eager[MOST_STEPS], whole[MOST_STEPS];
  /* evaluations between steps: the inputs of training and evaluation are uploaded a step ahead into the same buffers */
  snprintf(flags, sizeof flags,
           "-m %s/%s.json --dtype %s --micro-batch 2 --accumulation 2 --steps 4 --eval-data %s/text --eval-every 2 "
           "--eval-steps 2",
           folder, models[_i % 2], types[_i], folder);
  const int count = train(0, 1, flags, host);
  ck_assert_int_eq(train(1, 1, flags, whole), count);
  setenv("TWINSPEED_CUDA_EAGER", "1", 1);
  ck_assert_int_eq(train(1, 1, flags, eager), count);
  unsetenv("TWINSPEED_CUDA_EAGER");
  compare(flags, count, eager, whole, 0);
  compare(flags, count, host, whole, limits[_i]);
}
END_TEST

/* Where no graph can be made, steps run operation by operation, and one warning says so. Another warning says that
 * attention runs without tensor cores, as this build's own kernels do. */
START_TEST(not_recorded) {
  char flags[256];
  double eager[MOST_STEPS], whole[MOST_STEPS];
  snprintf(flags, sizeof flags, "-m %s/gpt.json --dtype bf16 --micro-batch 2 --steps 4 --result %s/result", folder,
           folder);
  setenv("TWINSPEED_CUDA_EAGER", "1", 1);
  const int count = train(1, 1, flags, eager);
  unsetenv("TWINSPEED_CUDA_EAGER");
  char *result = file_text("result");
  ck_assert_ptr_null(strstr(result, "\"not_recorded\":"));
  ck_assert_ptr_nonnull(strstr(result, "\"slower\":"));
  free(result);
  unlink(in_folder("result"));
  setenv("EMULATED_NO_GRAPHS", "1", 1);
  command_result r = twinspeed("train --data %s/text --seq 32 -n 1 --cluster dgx-h200 %s", folder, flags);
  ck_assert_int_eq(train(1, 1, flags, whole), count);
  unsetenv("EMULATED_NO_GRAPHS");
  compare(flags, count, eager, whole, 0);
  result = file_text("result");
  ck_assert_ptr_nonnull(strstr(result, "\"not_recorded\":"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  for (int i = 0; i < 2; i++) {
    const char *said = strstr(r.err, i ? "not recorded" : "without tensor cores");
    ck_assert_msg(said && !strstr(said + 1, i ? "not recorded" : "without tensor cores"), "%s", r.err);
  }
  command_free(&r);
  free(result);
}
END_TEST

static const struct {
  int ranks;
  const char *model, *flags, *variable; /* set to 1; NULL: none */
} jobs[] = {
    {2, "llama", /* steps are skipped */
     "--dtype fp16 --stage 2 --micro-batch 2 --accumulation 2 --set zero_optimization.overlap_comm=true "
     "--set fp16.initial_scale_power=30",
     NULL},
    {3, "gpt",
     "--dtype bf16 --stage 3 --micro-batch 1 --set bf16.bf16_master_weights_and_grads=true "
     "--set bf16.bf16_optimizer_states=true --set zero_optimization.overlap_comm=true",
     "TWINSPEED_NCCL_REGISTER"},
    {4, "gpt",
     "--pp 2 --tp 2 --sequence-parallel --micro-batch 1 --accumulation 4 --set tensor_parallel.tp_overlap_comm=true "
     "--set twinspeed.tensor_overlap_chunks=2",
     NULL},
    {4, "gpt", "--pp 2 --stage 1 --micro-batch 1 --accumulation 4 --schedule interleaved --virtual-stages 2",
     "TWINSPEED_NCCL_BLOCKING"},
    {4, "llama", "--tp 2 --sp 2 --micro-batch 2", "TWINSPEED_NCCL_COPY_ENGINES"},
    {2, "gpt", "--stage 3 --micro-batch 2 --set optimizer.type=AdamW8bit --set optimizer.params.lr=0.003",
     "TWINSPEED_NCCL_SYMMETRIC"},
};

/* Float32 masters in two halves give the bits of whole ones on the device too, in recorded steps. */
START_TEST(halves) {
  static const char flags[] = "--dtype bf16 --stage 2 --micro-batch 2 --accumulation 2 --steps 6";
  char more[256];
  double whole[MOST_STEPS], split[MOST_STEPS];
  snprintf(more, sizeof more, "-m %s/llama.json %s", folder, flags);
  const int count = train(1, 2, more, whole);
  snprintf(more, sizeof more, "-m %s/llama.json %s --set twinspeed.split_master_weights=true", folder, flags);
  ck_assert_int_eq(train(1, 2, more, split), count);
  compare(more, count, whole, split, 0);
}
END_TEST

/* Products in 8 bits have the host's losses, except for codes that a difference in the last digit rounds otherwise, with
 * current and with delayed scaling, whose history recorded steps keep as those that are not recorded do, and with
 * layers that have biases, whose gradients casts compute. */
START_TEST(eight_bits) {
  char flags[400];
  double host[MOST_STEPS], replayed[MOST_STEPS], eager[MOST_STEPS];
  snprintf(flags, sizeof flags,
           "-m %s/%s.json --dtype bf16 --stage 1 --micro-batch 2 --accumulation 2 --steps 6 --set "
           "twinspeed.matmul_dtype=fp8 --set twinspeed.fp8_recipe=%s --set twinspeed.fp8_amax_history_len=3",
           folder, _i == 2 ? "gpt" : "llama", _i ? "delayed" : "tensorwise");
  const int count = train(0, 2, flags, host);
  ck_assert_int_eq(train(1, 2, flags, replayed), count);
  setenv("TWINSPEED_CUDA_EAGER", "1", 1);
  ck_assert_int_eq(train(1, 2, flags, eager), count);
  unsetenv("TWINSPEED_CUDA_EAGER");
  compare(flags, count, host, replayed, 1e-3);
  compare(flags, count, eager, replayed, 0);
}
END_TEST

/* Trainings with groups of every axis, messages between stages and tied parameters have the losses of the host's
 * communicator. */
START_TEST(ranks) {
  char flags[256];
  double host[MOST_STEPS], device[MOST_STEPS];
  const int half = strstr(jobs[_i].flags, "--dtype") != NULL;
  snprintf(flags, sizeof flags, "-m %s/%s.json %s%s", folder, jobs[_i].model,
           half ? "--steps 4 " : "--steps 3 --dtype fp32 ", jobs[_i].flags);
  const int count = train(0, jobs[_i].ranks, flags, host);
  if (jobs[_i].variable) setenv(jobs[_i].variable, "1", 1);
  ck_assert_int_eq(train(1, jobs[_i].ranks, flags, device), count);
  if (jobs[_i].variable) unsetenv(jobs[_i].variable);
  compare(flags, count, host, device, half ? 1e-4 : 5e-6);
}
END_TEST

/* Products of experts by tiles on tensor cores give the losses of plain kernels and of the host, with slots of each
 * expert's own and with slots that all experts share. */
START_TEST(products_of_experts) {
  char flags[400];
  double host[MOST_STEPS], plain[MOST_STEPS], tiles[MOST_STEPS];
  write_text(in_folder("mixtral.json"),
             "{\"model_type\":\"mixtral\",\"vocab_size\":256,\"hidden_size\":32,\"num_hidden_layers\":2,"
             "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"max_position_embeddings\":64,"
             "\"intermediate_size\":40,\"num_local_experts\":4,\"num_experts_per_tok\":2}");
  snprintf(flags, sizeof flags, "-m %s/mixtral.json --dtype bf16 --micro-batch 4 --steps 4 %s", folder,
           _i ? "--set twinspeed.expert_dropless=true" : "");
  const int count = train(0, 1, flags, host);
  ck_assert_int_eq(train(1, 1, flags, tiles), count);
  setenv("TWINSPEED_CUDA_PLAIN_EXPERTS", "1", 1);
  ck_assert_int_eq(train(1, 1, flags, plain), count);
  unsetenv("TWINSPEED_CUDA_PLAIN_EXPERTS");
  compare(flags, count, plain, tiles, 1e-4);
  compare(flags, count, host, tiles, 1e-4);
  ck_assert_msg(memcmp(plain, tiles, (size_t)count * sizeof *plain) != 0, "both are the same kernels");
}
END_TEST

/* Symmetric memory needs equal plans, which the stages of a pipeline do not have. */
START_TEST(symmetric_memory_is_refused) {
  setenv("TWINSPEED_NCCL_COPY_ENGINES", "1", 1);
  command_result r = twinspeed(
      "train --quiet --data %s/text --seq 32 -m %s/gpt.json -n 2 --pp 2 --micro-batch 1 "
      "--accumulation 2 --steps 1 --cluster dgx-h200",
      folder, folder);
  unsetenv("TWINSPEED_NCCL_COPY_ENGINES");
  ck_assert_int_ne(r.status, 0);
  ck_assert_msg(strstr(r.err, "TWINSPEED_NCCL_COPY_ENGINES needs equal plans") != NULL, "%s", r.err);
  command_free(&r);
}
END_TEST

static int is_run(const cJSON *run, const char *model, const char *type, int world, int every) {
  return strcmp(member(run, "model")->valuestring, model) == 0 &&
         strcmp(member(run, "accumulation")->valuestring, model) == 0 &&
         strcmp(member(run, "communication")->valuestring, type) == 0 && integer(run, "ranks") == world &&
         is_true(run, "every_micro_batch") == every;
}

/* Gradients are reduced in the type that communication_data_type gives: losses are those of a loop in PyTorch that
 * reduces in the same type (tests/test_train_communication.c compares the host with it, in all types). */
START_TEST(communication_types) {
  static const struct {
    int ranks, first, last; /* stages */
    const char *model, *type;
    double limit;
  } cases[] = {{2, 0, 3, "fp32", "fp32", 1e-6}, {2, 0, 3, "fp32", "bf16", 4e-6}, {2, 0, 3, "fp32", "fp16", 1e-6},
               {4, 3, 3, "fp32", "bf16", 4e-6}, {4, 1, 1, "fp32", "fp16", 1e-6}, {2, 2, 2, "bf16", "fp32", 3e-4},
               {4, 0, 0, "fp16", "fp32", 1e-4}};
  tws_json *golden = golden_file("communication.json");
  char model[96], text[96], flags[512];
  char *config = cJSON_PrintUnformatted(member(golden->root, "config"));
  snprintf(model, sizeof model, "%s/communication.json", folder), write_text(model, config);
  snprintf(text, sizeof text, "%s/communication", folder);
  write_text(text, member(golden->root, "text")->valuestring);
  cJSON_free(config);
  for (int stage = cases[_i].first; stage <= cases[_i].last; stage++) {
    double want[MOST_STEPS], got[MOST_STEPS];
    double rate = 0;
    int steps = 0;
    const cJSON *run, *loss;
    cJSON_ArrayForEach(run, member(golden->root, "runs")) {
      if (!is_run(run, cases[_i].model, cases[_i].type, cases[_i].ranks, stage > 1)) continue;
      cJSON_ArrayForEach(loss, member(run, "losses")) want[steps++] = loss->valuedouble;
      rate = number(run, "learning_rate");
    }
    ck_assert_int_eq(steps, 8);
    snprintf(flags, sizeof flags,
             "-m %s --data %s --seq 16 --steps %d --seed %d --dtype %s --stage %d --micro-batch %d --accumulation 2 "
             "--set optimizer.params.lr=%g --set optimizer.params.weight_decay=0 --set gradient_clipping=0 "
             "--set fp16.loss_scale=1024 --set zero_optimization.reduce_bucket_size=2000 "
             "--set communication_data_type=%s",
             model, text, steps, integer(golden->root, "seed"), cases[_i].model, stage, 4 / cases[_i].ranks, rate,
             cases[_i].type);
    ck_assert_int_eq(train(1, cases[_i].ranks, flags, got), steps);
    compare(flags, steps, want, got, cases[_i].limit);
  }
  tws_json_destroy(golden);
}
END_TEST

/* A step that is traced is timed on the device; the summary states how much of the device's memory the plan takes. */
START_TEST(traced) {
  char flags[256];
  double loss[MOST_STEPS];
  snprintf(flags, sizeof flags,
           "-m %s/gpt.json --dtype fp32 --steps 3 --micro-batch 1 --trace %s/trace --result %s/result", folder, folder,
           folder);
  train(1, 1, flags, loss);
  char *trace = file_text("trace"), *result = file_text("result");
  ck_assert_ptr_nonnull(strstr(trace, "h.0.attn"));
  const double arena = number_after(result, "\"arena_bytes\":"),
               predicted = number_after(result, "\"predicted_bytes\":");
  ck_assert(arena > 0 && arena == predicted);
  ck_assert(number_after(result, "\"workspace_bytes\":") == 72 << 20);
  free(trace);
  free(result);
}
END_TEST

typedef struct product {
  const tws_backend_ops *ops;
  tws_backend *backend;
  tws_work work;
  void *operand[3];
} product;

static void start(const product *p) {
  static const tws_dtype dtype[] = {TWS_BF16, TWS_BF16, TWS_BF16};
  tws_error err = {0};
  ck_assert_msg(p->ops->run(p->backend, &p->work, NULL, p->operand, dtype, 3, TWS_STREAM_COMPUTE, &err) == TWS_OK, "%s",
                err.message);
}
static double product_ms(const product *p, int again) {
  double seconds[2];
  ck_assert_int_eq(p->ops->mark(p->backend, TWS_STREAM_COMPUTE, 0, NULL), TWS_OK);
  if (again)
    ck_assert_int_eq(p->ops->replay(p->backend, NULL), TWS_OK);
  else
    start(p);
  ck_assert_int_eq(p->ops->mark(p->backend, TWS_STREAM_COMPUTE, 1, NULL), TWS_OK);
  ck_assert_int_eq(p->ops->marked(p->backend, 2, seconds, NULL), TWS_OK);
  return seconds[1] * 1e3;
}
static void record(const product *p) {
  ck_assert_int_eq(p->ops->record(p->backend, 1, NULL), TWS_OK);
  start(p);
  ck_assert_int_eq(p->ops->record(p->backend, 0, NULL), TWS_OK);
}

/* The first algorithm that the emulated library proposes for a product takes 4 ms, and the fastest 1 ms, once the
 * device is warm and the kernels are loaded; loading takes longer than all the time for choosing. The choice for a work
 * stays, also in recordings. Nothing is timed while recording, nor where bits have to repeat. */
START_TEST(chosen) {
  enum { BYTES = 64 * 64 * 2 };
  const double fastest = _i ? 4 : 1; /* that may be found */
  product p = {.work = {.code = TWS_KERNEL_LINEAR, .dtype = TWS_BF16, .dtype2 = TWS_BF16, .d = {64, 64, 64}}};
  void *memory = NULL, *module = dlopen(TWS_BUILD_DIR "/emulated/twinspeed_cuda.so", RTLD_NOW | RTLD_LOCAL);
  ck_assert_msg(module != NULL, "%s", dlerror());
  const tws_cuda_api *(*entry)(void) = (const tws_cuda_api *(*)(void))dlsym(module, TWS_CUDA_MODULE_SYMBOL);
  p.ops = entry()->backend;
  if (_i) setenv("TWINSPEED_CUDA_DETERMINISTIC", "1", 1);
  ck_assert_int_eq(p.ops->create(0, 1, &p.backend, NULL), TWS_OK);
  unsetenv("TWINSPEED_CUDA_DETERMINISTIC");
  ck_assert_int_eq(p.ops->allocate(p.backend, TWS_TIER_DEVICE, 3 * BYTES, &memory, NULL), TWS_OK);
  for (int i = 0; i < 3; i++) p.operand[i] = (char *)memory + i * BYTES;
  for (int i = 0; i < (_i ? 30 : 1); i++) start(&p); /* choosing warms the device up */
  ck_assert_double_eq_tol(product_ms(&p, 0), fastest, 1e-6);
  record(&p);
  ck_assert_double_eq_tol(product_ms(&p, 1), fastest, 1e-6);
  p.work.d[0] = 32; /* met in a recording */
  record(&p);
  ck_assert_double_eq_tol(product_ms(&p, 1), 4, 1e-6);
  ck_assert_double_eq_tol(product_ms(&p, 0), 4, 1e-6);
  p.ops->release(p.backend, TWS_TIER_DEVICE, memory);
  p.ops->destroy(p.backend);
}
END_TEST

/* A forbidden call while a step is recorded corrupts the recording; an abandoned recording leaves the device usable. */
START_TEST(abandoned) {
  enum { COUNT = 1024 };
  tws_error err = {0};
  tws_backend *backend = NULL;
  void *memory = NULL, *more = NULL,
       *module = dlopen(TWS_BUILD_DIR "/emulated/twinspeed_cuda.so", RTLD_NOW | RTLD_LOCAL);
  ck_assert_msg(module != NULL, "%s", dlerror());
  const tws_cuda_api *(*entry)(void) = (const tws_cuda_api *(*)(void))dlsym(module, TWS_CUDA_MODULE_SYMBOL);
  const tws_backend_ops *ops = entry()->backend;
  const tws_work fill = {.code = TWS_KERNEL_FILL, .dtype = TWS_F32, .dtype2 = TWS_F32, .d = {COUNT}};
  const tws_arguments half = {{0.5}};
  const tws_dtype dtype = TWS_F32;
  float values[COUNT] = {0};
  ck_assert_int_eq(ops->create(0, 1, &backend, &err), TWS_OK);
  ck_assert_int_eq(ops->allocate(backend, TWS_TIER_DEVICE, sizeof values, &memory, &err), TWS_OK);
  ck_assert_int_eq(ops->run(backend, &fill, &half, &memory, &dtype, 1, TWS_STREAM_COMPUTE, &err), TWS_OK);
  ck_assert_int_eq(ops->record(backend, 1, &err), TWS_OK);
  ck_assert_int_ne(ops->allocate(backend, TWS_TIER_DEVICE, 1, &more, &err), TWS_OK);
  ck_assert_int_ne(ops->record(backend, 0, &err), TWS_OK);
  ck_assert_int_eq(ops->record(backend, 1, &err), TWS_OK);
  ck_assert_int_ne(ops->run(backend, &fill, &half, &memory, &dtype, 1, TWS_STREAM_HOST, &err), TWS_OK);
  ck_assert_int_eq(ops->record(backend, -1, &err), TWS_OK);
  ck_assert_int_eq(ops->record(backend, 1, &err), TWS_OK);
  ck_assert_int_eq(ops->run(backend, &fill, &half, &memory, &dtype, 1, TWS_STREAM_COMPUTE, &err), TWS_OK);
  ck_assert_int_eq(ops->record(backend, 0, &err), TWS_OK);
  ck_assert_int_eq(ops->replay(backend, &err), TWS_OK);
  ck_assert_int_eq(ops->copy(backend, values, memory, sizeof values, TWS_STREAM_COMPUTE, &err), TWS_OK);
  for (int i = 0; i < COUNT; i++) ck_assert_msg(values[i] == 0.5F, "%d: %g", i, (double)values[i]);
  ck_assert_int_eq(ops->record(backend, 1, &err), TWS_OK);
  ops->release(backend, TWS_TIER_DEVICE, memory);
  ck_assert_int_eq(ops->synchronize(backend, &err), TWS_OK);
  ops->destroy(backend);
}
END_TEST

/* Networks of network files: what the host computes, whether steps are recorded or not, on one rank and on several. */
START_TEST(described) {
  static const struct {
    const char *name, *text; /* NULL: the file in scenarios/networks */
    int ranks;
    const char *flags;
    double limit;
  } cases[] = {{"cifar10", NULL, 1, "--micro-batch 16 --steps 4", 5e-6},
               {"cifar10", NULL, 1, "--dtype bf16 --micro-batch 8 --accumulation 2 --steps 3", 2e-3},
               {"small_alexnet", SMALL_ALEXNET, 1, "--micro-batch 8 --accumulation 2 --steps 4", 5e-6},
               {"small_alexnet", SMALL_ALEXNET, 2, "--pp 2 --micro-batch 4 --accumulation 4 --steps 3", 5e-6},
               {"small_alexnet", SMALL_ALEXNET, 2, "--stage 3 --micro-batch 8 --steps 3", 5e-6},
               {"binary", DECODER("binary_cross_entropy"), 1, "--micro-batch 8 --accumulation 2 --steps 4", 5e-6},
               {"squares", DECODER("mean_squared_error"), 2, "--stage 1 --micro-batch 8 --steps 3", 5e-6},
               {"experts", EXPERTS("\"top_k\":2,\"inner\":24"), 2, "--ep 2 --micro-batch 8 --steps 3", 5e-6},
               {"tied", TIED_LAYERS, 3, "--pp 3 --micro-batch 4 --accumulation 4 --steps 3", 5e-6},
               {"dcgan_small", DCGAN("batch_norm"), 1, "--micro-batch 16 --steps 4", 5e-6},
               {"dcgan_norms", DCGAN("layer_norm"), 2, "--stage 3 --micro-batch 8 --steps 3", 5e-6}};
  char path[600], flags[1000];
  double host[MOST_STEPS], eager[MOST_STEPS], whole[MOST_STEPS];
  write_pictures(in_folder("pictures"));
  snprintf(path, sizeof path, "%s/../scenarios/networks/%s.json", TWS_TEST_DIR, cases[_i].name);
  if (cases[_i].text) {
    snprintf(path, sizeof path, "%s/%s.json", folder, cases[_i].name);
    write_text(path, cases[_i].text);
  }
  snprintf(flags, sizeof flags, "-m %s --data %s/pictures %s", path, folder, cases[_i].flags);
  const int count = train(0, cases[_i].ranks, flags, host);
  ck_assert_int_eq(train(1, cases[_i].ranks, flags, whole), count);
  setenv("TWINSPEED_CUDA_EAGER", "1", 1);
  ck_assert_int_eq(train(1, cases[_i].ranks, flags, eager), count);
  unsetenv("TWINSPEED_CUDA_EAGER");
  compare(flags, count, eager, whole, 0);
  compare(flags, count, host, whole, cases[_i].limit);
}
END_TEST

/* ---- generating ---- */

/* Generates greedy tokens after two prompts of different lengths, on the device or on the host. */
static cJSON *generated(int on_device, const char *model, const char *how) {
  char weights[160];
  snprintf(weights, sizeof weights, strstr(how, "--weights") ? "--init-from %s/%s.safetensors" : "--resume %s/run-%s",
           folder, model);
  setenv("TWINSPEED_MODULES", on_device ? modules : TWS_BUILD_DIR, 1);
  command_result r = twinspeed(
      "generate --quiet --json --temperature 0 -m %s/%s.json --prompts %s/prompts --seq 32 %s "
      "%s %s",
      folder, model, folder, on_device ? "--cluster dgx-h200" : "", weights, how);
  ck_assert_msg(r.status == 0, "%s: %s", how, r.err);
  cJSON *json = cJSON_Parse(r.out);
  ck_assert_ptr_nonnull(json);
  command_free(&r);
  return json;
}

/* Trains a model and leaves its weights as a checkpoint and as a file. */
static void learn(const char *model) {
  double loss[MOST_STEPS];
  char flags[512];
  snprintf(flags, sizeof flags, "-m %s/%s.json --micro-batch 2 --steps 8 --save %s/run-%s", folder, model, folder,
           model);
  train(0, 1, flags, loss);
  command_result r = twinspeed("convert checkpoint --quiet %s/run-%s %s/%s.safetensors", folder, model, folder, model);
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
}

static void same_texts(const cJSON *a, const cJSON *b, double limit, const char *how) {
  for (int t = 0; t < 2; t++) {
    const cJSON *one = cJSON_GetArrayItem(member(a, "texts"), t), *other = cJSON_GetArrayItem(member(b, "texts"), t);
    const int count = cJSON_GetArraySize(member(one, "tokens"));
    ck_assert_int_eq(cJSON_GetArraySize(member(other, "tokens")), count);
    for (int i = 0; i < count; i++) {
      ck_assert_msg(cJSON_GetArrayItem(member(one, "tokens"), i)->valueint ==
                        cJSON_GetArrayItem(member(other, "tokens"), i)->valueint,
                    "%s: token %d of text %d", how, i, t);
      const double x = cJSON_GetArrayItem(member(one, "log_probabilities"), i)->valuedouble;
      const double y = cJSON_GetArrayItem(member(other, "log_probabilities"), i)->valuedouble;
      ck_assert_msg(fabs(x - y) <= limit, "%s: token %d of text %d: %.9g, not %.9g", how, i, t, x, y);
    }
  }
}

/* The device generates the host's greedy tokens, its decode recorded as a graph or started kernel by kernel, with the
 * cache in its arena, which has the predicted bytes. */
START_TEST(generates) {
  static const struct {
    const char *model, *how;
    double limit;
  } cases[] = {{"gpt", "--tokens 12", 1e-4},
               {"llama", "--tokens 12", 1e-4},
               {"llama", "--tokens 8 --tp 2", 1e-4},
               {"gpt", "--tokens 6 --pp 2 --batch 1", 1e-4},
               {"llama", "--tokens 6 -n 2 --stage 3", 1e-4},
               {"llama", "--tokens 8 --dtype bf16", 2e-2},
               {"wide", "--tokens 8 --weights int4", 1e-4},
               {"llama", "--tokens 8 --cache fp8", 1e-3},
               {"gpt", "--tokens 8 --cache-block 4", 1e-4},
               {"t5", "--tokens 6 --cache-block 4", 1e-4},
               {"t5", "--tokens 6", 1e-4},
               {"deepseek", "--tokens 6", 1e-4},
               {"deepseek", "--tokens 4 --cache fp8", 1e-3},
               {"gpt", "--tokens 3 --no-cache", 1e-4}};
  static const char *const models[] = {"gpt", "llama", "wide", "t5", "deepseek"};
  char path[96];
  snprintf(path, sizeof path, "%s/prompts", folder);
  write_text(path, "\"sea ship\"\n\"over the white night\"\n");
  /* codes of weights share a scale by 64 of a row */
  write_text(in_folder("wide.json"),
             "{\"model_type\":\"gpt2\",\"vocab_size\":259,\"n_positions\":64,\"n_embd\":64,"
             "\"n_layer\":1,\"n_head\":4}");
  write_text(in_folder("t5.json"),
             "{\"model_type\":\"t5\",\"vocab_size\":259,\"num_layers\":2,\"d_model\":32,\"d_kv\":12,"
             "\"d_ff\":48,\"num_heads\":4,\"feed_forward_proj\":\"gated-gelu\"}");
  write_text(in_folder("deepseek.json"),
             "{\"model_type\":\"deepseek_v2\",\"vocab_size\":259,\"hidden_size\":32,\"intermediate_size\":48,"
             "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"kv_lora_rank\":16,\"q_lora_rank\":null,"
             "\"qk_nope_head_dim\":8,\"qk_rope_head_dim\":8,\"v_head_dim\":8,\"n_routed_experts\":4,"
             "\"num_experts_per_tok\":2,\"n_shared_experts\":1,\"moe_intermediate_size\":16,"
             "\"first_k_dense_replace\":1,\"max_position_embeddings\":64}");
  for (size_t i = 0; i < sizeof models / sizeof *models; i++) learn(models[i]);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    cJSON *host = generated(0, cases[i].model, cases[i].how), *device = generated(1, cases[i].model, cases[i].how);
    same_texts(host, device, cases[i].limit, cases[i].how);
    ck_assert_double_eq(number(device, "cache_bytes"), number(host, "cache_bytes"));
    ck_assert_double_eq(number(device, "predicted_bytes"), number(device, "allocated_bytes"));
    ck_assert_double_eq(number(device, "forward_tokens"), number(host, "forward_tokens"));
    if (i < 3) {
      setenv("TWINSPEED_CUDA_EAGER", "1", 1);
      cJSON *eager = generated(1, cases[i].model, cases[i].how);
      unsetenv("TWINSPEED_CUDA_EAGER");
      same_texts(eager, device, 0, cases[i].how);
      cJSON_Delete(eager);
    }
    cJSON_Delete(host), cJSON_Delete(device);
  }
}
END_TEST

int main(void) {
  if (access(TWS_BUILD_DIR "/emulated/twinspeed_cuda.so", R_OK) != 0) {
    fprintf(stderr, "the emulated device was not built: nothing to test\n");
    return 0;
  }
  make_folder();
  write_files();
  Suite *suite = suite_create("emulated");
  TCase *tests = tcase_create("training");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, abandoned);
  tcase_add_loop_test(tests, chosen, 0, 2);
  tcase_add_loop_test(tests, recorded, 0, 3);
  tcase_add_test(tests, not_recorded);
  tcase_add_test(tests, symmetric_memory_is_refused);
  tcase_add_loop_test(tests, products_of_experts, 0, 2);
  tcase_add_loop_test(tests, ranks, 0, (int)(sizeof jobs / sizeof *jobs));
  tcase_add_test(tests, halves);
  tcase_add_loop_test(tests, eight_bits, 0, 3);
  tcase_add_loop_test(tests, communication_types, 0, 7);
  tcase_add_test(tests, traced);
  tcase_add_loop_test(tests, described, 0, 11);
  TCase *texts = tcase_create("generating");
  tcase_set_timeout(texts, 300);
  tcase_add_test(texts, generates);
  suite_add_tcase(suite, tests);
  suite_add_tcase(suite, texts);
  SRunner *runner = srunner_create(suite);
  srunner_set_fork_status(runner, CK_NOFORK);
  srunner_run_all(runner, CK_NORMAL);
  const int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  remove_folder();
  return failed != 0;
}
