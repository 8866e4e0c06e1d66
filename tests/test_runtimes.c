/* The time and memory that other runtimes need in addition to those of this program's kernels and plans. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "job/fit.h"
#include "job/software_memory.h"
#include "job/software_narrow.h"
#include "models/hardware/runtime.h"
#include "tests/published.h"
#include "tests/sanitized.h"
#include "tests/suite.h"

static double step_of(const char *dtype, const char *runtime, const char *micro_batch, int fp8,
                      double *software_bytes) {
  tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
  tws_job *job;
  tws_estimate estimate;
  tws_stage_estimate stage;
  tws_profile *profile;
  tws_error err = {0};
  spec.model = "gpt2";
  spec.cluster = "h100";
  spec.dtype = dtype;
  spec.micro_batch = atoi(micro_batch);
  ck_assert_msg(tws_job_load(&spec, &job, &err) == TWS_OK, "%s", err.message);
  ck_assert_int_eq(tws_profile_load("h100-sxm", &profile, &err), TWS_OK);
  ck_assert_int_eq(tws_profile_set_runtime(profile, tws_runtime_find(runtime), &err), TWS_OK);
  job->config->matmul_dtype = fp8 ? TWS_MATMUL_FP8 : TWS_MATMUL_AUTO;
  tws_job_set_profile(job, profile);
  ck_assert_int_eq(tws_job_estimate(job, &estimate, &stage, &err), TWS_OK);
  if (software_bytes) *software_bytes = tws_software_bytes(job, &stage);
  tws_job_destroy(job);
  return estimate.step_s;
}

static double step_under(const char *runtime, const char *micro_batch, int fp8, double *software_bytes) {
  return step_of("bf16", runtime, micro_batch, fp8, software_bytes);
}

/* The input of a product in 8 bits is kept in 8 bits for the weight's gradient, and the 16-bit tensor is freed if
 * nothing else reads it: in a GPT-2 layer the outputs of two norms, attention and GELU. Runtimes that cast again keep
 * 16 bits. */
START_TEST(inputs_of_narrow_products) {
  for (int i = 0; i < 3; i++) {
    const int wide = i == 1;
    tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
    tws_job *job;
    tws_plan *plan;
    tws_error err = {0};
    spec.model = "gpt2";
    spec.cluster = "h100";
    spec.dtype = "bf16";
    spec.micro_batch = 1;
    spec.runtime = wide ? "fsdp" : "nemo";
    ck_assert_msg(tws_job_load(&spec, &job, &err) == TWS_OK, "%s", err.message);
    ck_assert_int_eq(job->config->matmul_keeps_wide, wide);
    job->config->matmul_dtype = i == 2 ? TWS_MATMUL_NVFP4 : TWS_MATMUL_FP8;
    ck_assert_msg(tws_job_plan(job, 0, &plan, &err) == TWS_OK, "%s", err.message);
    uint64_t narrow = 0, gradients = 0;
    for (uint32_t b = 0; b < plan->buffer_count; b++)
      if (plan->buffers[b].dtype == TWS_U8 && plan->buffers[b].category == TWS_CATEGORY_ACTIVATION)
        narrow += plan->buffers[b].elements;
    ck_assert_uint_eq(narrow, wide ? 0 : 1024 * (12 * (3 * 768 + 3072) + 768));
    for (uint32_t o = 0; o < plan->op_count; o++) {
      const tws_work *work = &plan->works[plan->ops[o].work];
      if (work->kind != TWS_OP_COMPUTE || work->code != TWS_KERNEL_LINEAR_GRAD_WEIGHT) continue;
      ck_assert_int_eq((work->flags & TWS_NARROW) != 0, !wide);
      gradients++;
    }
    ck_assert_uint_eq(gradients, 12 * 4 + 1);
    tws_plan_destroy(plan);
    tws_job_destroy(job);
  }
}
END_TEST

/* Transformer Engine keeps a rank's own tokens of a quantized input in 8 bits, the norms' outputs of a Llama's layer,
 * where a plan keeps 16; NVFP4 keeps both layouts of them, and half a byte and a scale of other inputs, for which a
 * plan has a byte. Weights with fp8_param_gather have one byte on Blackwell and two on Hopper. */
START_TEST(narrow_inputs_and_weights_of_transformer_engine) {
  static const struct {
    const char *cluster, *runtime;
    tws_matmul_dtype dtype;
    int divides;                /* 1: tensor ranks divide the tokens of norms */
    double norm, other, weight; /* bytes an element in addition to a plan's */
  } cases[] = {{"dgx-h100", "nemo", TWS_MATMUL_FP8, 1, -1, 0, 0},
               {"dgx-h100", "nemo", TWS_MATMUL_FP8, 0, 0, 0, 0},
               {"dgx-h100", "nemo", TWS_MATMUL_AUTO, 1, 0, 0, 0},
               {"dgx-h100", "fsdp", TWS_MATMUL_FP8, 1, 0, 0, 0},
               {"dgx-b200", "nemo", TWS_MATMUL_FP8, 1, -1, 0, -1},
               {"dgx-b200", "megatron", TWS_MATMUL_FP8, 1, -1, 0, 0},
               {"dgx-b200", "nemo", TWS_MATMUL_MXFP8, 1, -31 / 32.0, 1 / 32.0, 1 / 16.0},
               {"dgx-b200", "nemo", TWS_MATMUL_NVFP4, 1, -7 / 8.0, -7 / 16.0, 9 / 8.0}};
  const double tokens = 4096, layers = 32, hidden = 4096, inner = 11008, ranks = 4;
  const double weights = layers * (4 * hidden * hidden + 3 * hidden * inner);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
    tws_job *job;
    tws_error err = {0};
    spec.model = "llama-2-7b";
    spec.cluster = cases[i].cluster;
    spec.dtype = "bf16";
    spec.runtime = cases[i].runtime;
    spec.tensor_ranks = (int64_t)ranks;
    spec.micro_batch = 1;
    spec.sequence = (int64_t)tokens;
    ck_assert_msg(tws_job_load(&spec, &job, &err) == TWS_OK, "%s", err.message);
    job->config->tensor_sequence_parallel = cases[i].divides;
    job->config->matmul_dtype = cases[i].dtype;
    const double parameters = (double)tws_network_params(job->network, 0);
    const tws_stage_estimate stage = {.layers = (int)layers, .parameters = parameters / ranks};
    ck_assert_double_eq_tol(tws_software_narrow_inputs(job, &stage),
                            tokens * layers * (2 * cases[i].norm * hidden + cases[i].other * (hidden + inner)) / ranks,
                            1);
    ck_assert_double_eq_tol(tws_software_narrow_weights(job, &stage), cases[i].weight * weights / ranks, 1);
    job->config->recompute = TWS_RECOMPUTE_FULL; /* a layer's input is kept, which no product reads */
    ck_assert_double_eq(tws_software_narrow_inputs(job, &stage), 0);
    tws_job_destroy(job);
  }
}
END_TEST

/* Megatron-Core keeps no output of experts, because it applies weights before the last product, and with products in 8
 * bits it keeps half of the inputs of both products: in Mixtral 8x7B, two experts of 14,336 per token in each of 32
 * layers. DeepSpeed's plan keeps both. */
START_TEST(experts_keep_what_their_software_keeps) {
  const double tokens = 2048, layers = 32, hidden = 4096, inner = 14336, logits = 4 * 2048 * 32000.0;
  for (int narrow = 0; narrow < 2; narrow++) {
    for (int recompute = TWS_RECOMPUTE_NONE; recompute <= TWS_RECOMPUTE_FULL; recompute++) {
      tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
      tws_job *job;
      tws_error err = {0};
      spec.model = "mixtral-8x7b";
      spec.cluster = "dgx-h100";
      spec.dtype = "bf16";
      spec.runtime = "nemo";
      spec.micro_batch = 1;
      spec.sequence = 2048;
      ck_assert_msg(tws_job_load(&spec, &job, &err) == TWS_OK, "%s", err.message);
      job->config->recompute = (tws_recompute)recompute;
      job->config->matmul_dtype = narrow ? TWS_MATMUL_FP8 : TWS_MATMUL_AUTO;
      const double library = tws_profile_library_bytes(job->profile);
      const double products = narrow ? hidden + (recompute == TWS_RECOMPUTE_NONE ? inner : 0) : 0;
      const double spared = recompute == TWS_RECOMPUTE_FULL ? 0 : tokens * layers * 2 * (2 * hidden + products);
      ck_assert_double_eq_tol(tws_job_software_bytes(job), logits + library - spared, 1);
      tws_job_destroy(job);
    }
  }
}
END_TEST

/* The gaps between a plan's buffers count only for this program's own engine; for other runtimes, a caching allocator
 * loses up to 4 %. */
START_TEST(gaps_of_a_layout_are_bounded) {
  static const char *const names[] = {"twinspeed", "nemo", "deepspeed-flash", "fsdp-compiled"};
  tws_ledger ledger = {0};
  ledger.tier[TWS_TIER_DEVICE].arena_bytes = 50000000000;
  ledger.tier[TWS_TIER_DEVICE].live_bytes = 40000000000;
  for (int i = 0; i < 4; i++) {
    tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
    tws_job *job;
    tws_estimate estimate;
    tws_stage_estimate stage;
    tws_error err = {0};
    spec.model = "gpt2";
    spec.cluster = "h100";
    spec.dtype = "bf16";
    spec.runtime = names[i];
    ck_assert_msg(tws_job_load(&spec, &job, &err) == TWS_OK, "%s", err.message);
    ck_assert_double_eq_tol(tws_job_planned_bytes(job, &ledger), i ? 41.6e9 : 50e9, 1);
    const tws_fit fit = tws_job_fit(job, &ledger);
    ck_assert_double_eq_tol(fit.device_need,
                            (i ? 41.6e9 : 50e9) + tws_job_software_bytes(job) + tws_job_context_bytes(job), 1);
    ck_assert_int_eq(tws_job_estimate(job, &estimate, &stage, &err), TWS_OK);
    ck_assert_uint_eq(stage.live_bytes, estimate.ledger.tier[TWS_TIER_DEVICE].live_bytes);
    ck_assert_uint_gt(stage.arena_bytes[TWS_TIER_DEVICE], stage.live_bytes);
    tws_job_destroy(job);
  }
}
END_TEST

/* Eager runtimes' kernels wait for a collective: it takes longer than under a runtime that hands over between streams
 * while kernels run. */
START_TEST(collectives_hand_over) {
  static const char *const names[] = {"twinspeed", "megatron-2021"};
  double seconds[2];
  tws_cluster cluster;
  ck_assert(tws_cluster_load("dgx-a100", &cluster, NULL) == TWS_OK);
  for (int i = 0; i < 2; i++) {
    tws_profile *profile;
    ck_assert(tws_profile_load("a100-80gb", &profile, NULL) == TWS_OK);
    ck_assert(tws_profile_set_runtime(profile, tws_runtime_find(names[i]), NULL) == TWS_OK);
    seconds[i] = tws_collective_seconds(&cluster, profile, TWS_COLLECTIVE_ALL_REDUCE, 8, 8, 1e6, 1);
    tws_profile_destroy(profile);
  }
  ck_assert_double_eq_tol(seconds[1] - seconds[0], 60e-6, 1e-9);
}
END_TEST

static tws_profile *profile_under(const char *name, const char *runtime) {
  tws_profile *profile;
  ck_assert(tws_profile_load(name, &profile, NULL) == TWS_OK);
  ck_assert(tws_profile_set_runtime(profile, tws_runtime_find(runtime), NULL) == TWS_OK);
  return profile;
}

/* DeepSpeed's pipelines add bf16 gradients to float32 ones after each micro-batch, and send whole messages between
 * stages. */
START_TEST(gradients_of_deepspeeds_pipelines) {
  tws_profile *megatron = profile_under("a100-80gb", "megatron-2021"),
              *engine = profile_under("a100-80gb", "megatron-deepspeed-2021");
  tws_work works[] = {
      {.code = TWS_KERNEL_LINEAR_GRAD_WEIGHT, .flags = TWS_ACCUMULATE, .d = {2048, 4096, 1024}},
      {.code = TWS_KERNEL_EMBEDDING_GRAD, .flags = TWS_ACCUMULATE, .d = {2048, 1024, 4096}},
      {.code = TWS_KERNEL_EXPERT_LINEAR_GRAD_WEIGHT, .flags = TWS_ACCUMULATE, .d = {1, 8, 256, 1024, 512}},
      {.code = TWS_KERNEL_LINEAR_GRAD_INPUT, .d = {2048, 4096, 1024}}};
  const double moved[] = {16, 16, 16, 0}; /* of 4096 x 1024 numbers */
  for (int i = 0; i < 4; i++) {
    works[i].dtype = works[i].dtype2 = TWS_BF16;
    const double more = tws_kernel_seconds(engine, &works[i], 1, 1) - tws_kernel_seconds(megatron, &works[i], 1, 1);
    ck_assert_double_eq_tol(more * 0.76 * tws_profile_bandwidth(engine) / (4096 * 1024), moved[i], 1e-6);
    works[i].dtype = works[i].dtype2 = TWS_F16;
    ck_assert_double_eq(tws_kernel_seconds(engine, &works[i], 1, 1), tws_kernel_seconds(megatron, &works[i], 1, 1));
  }
  tws_profile_destroy(megatron);
  tws_profile_destroy(engine);
  tws_cases *cases = load(RUNS);
  int whole = 0, chunks = 0;
  for (int i = 0; i < cases->count; i++) {
    tws_job *job;
    if (strcmp(cases->cases[i].group, "mt-nlg") != 0 && strcmp(cases->cases[i].group, "llama3-405b") != 0) continue;
    ck_assert_int_eq(tws_case_job(cases, i, &job, NULL), TWS_OK);
    const int nlg = strcmp(cases->cases[i].group, "mt-nlg") == 0;
    ck_assert_int_eq(job->config->grad_partitioned, !nlg);
    ck_assert_int_eq(job->config->virtual_stages,
                     nlg ? 1 : 8); /* 126 layers, an embedding and a head divide into 8 chunks per stage on 16 stages */
    whole += nlg;
    chunks += !nlg;
    tws_job_destroy(job);
  }
  ck_assert_int_ge(whole, 2);
  ck_assert_int_ge(chunks, 1);
  tws_cases_destroy(cases);
}
END_TEST

/* A collective on a list of tensors, one per rank, costs host time for each tensor and each segment; DDP under autocast
 * reduces elements of twice the plan's width. */
START_TEST(collectives_of_2021) {
  tws_cluster cluster;
  ck_assert(tws_cluster_load("dgx2-v100", &cluster, NULL) == TWS_OK);
  tws_profile *lists = profile_under("v100-32gb", "transformers-2021"),
              *newer = profile_under("v100-32gb", "deepspeed");
  for (int pieces = 1; pieces <= 3; pieces += 2) {
    const double with = tws_collective_seconds(&cluster, lists, TWS_COLLECTIVE_ALL_GATHER, 16, 16, 1e6, pieces),
                 without = tws_collective_seconds(&cluster, newer, TWS_COLLECTIVE_ALL_GATHER, 16, 16, 1e6, pieces);
    ck_assert_double_eq_tol(with - without, pieces * 16 * 10e-6, 1e-9);
  }
  tws_profile *wide = profile_under("v100-32gb", "transformers-2021-ddp");
  ck_assert_double_eq_tol(tws_collective_seconds(&cluster, wide, TWS_COLLECTIVE_ALL_REDUCE, 16, 16, 1e8, 1),
                          tws_collective_seconds(&cluster, lists, TWS_COLLECTIVE_ALL_REDUCE, 16, 16, 2e8, 1), 1e-12);
  tws_profile_destroy(lists);
  tws_profile_destroy(newer);
  tws_profile_destroy(wide);
}
END_TEST

/* With scales per row and column, a cast moves ten more bytes per element that enters a product; float32 without tensor
 * cores is near its peak; gelu_new as single operations moves 32 more bytes per element. */
START_TEST(products_and_activations_of_their_software) {
  const tws_work product = {.code = TWS_KERNEL_LINEAR, .dtype = TWS_BF16, .dtype2 = TWS_BF16, .d = {8192, 4096, 4096}};
  const tws_work full = {.code = TWS_KERNEL_LINEAR, .dtype = TWS_F32, .dtype2 = TWS_F32, .d = {8192, 8192, 8192}};
  const tws_work gelu = {.code = TWS_KERNEL_GELU, .dtype = TWS_F16, .dtype2 = TWS_F16, .d = {1 << 24}};
  tws_profile *profile = profile_under("h100-sxm", "fsdp-compiled");
  ck_assert_int_eq(tws_profile_set_matmul(profile, TWS_MATMUL_FP8, NULL), TWS_OK);
  const double whole = tws_kernel_seconds(profile, &product, 1, 1);
  tws_error err = {0};
  ck_assert_int_eq(tws_profile_set_matmul(profile, TWS_MATMUL_NVFP4, &err), TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.hint, "Blackwell"));
  ck_assert_int_eq(tws_profile_set_matmul(profile, TWS_MATMUL_FP8_ROWWISE, NULL), TWS_OK);
  const double more = (tws_kernel_seconds(profile, &product, 1, 1) - whole) * 3350e9 * 0.76;
  ck_assert_double_eq_tol(more / (8192.0 * 4096), 10, 1e-6);
  tws_profile_destroy(profile);
  profile = profile_under("gb300", "nemo");
  double seconds[TWS_MATMUL_COUNT];
  for (int type = 0; type < TWS_MATMUL_COUNT; type++) {
    ck_assert_int_eq(tws_profile_set_matmul(profile, (tws_matmul_dtype)type, NULL), TWS_OK);
    seconds[type] = tws_kernel_seconds(profile, &product, 1, 1);
  }
  ck_assert_double_lt(seconds[TWS_MATMUL_FP8], 0.7 * seconds[TWS_MATMUL_AUTO]);
  ck_assert_double_lt(seconds[TWS_MATMUL_NVFP4], seconds[TWS_MATMUL_FP8]);
  ck_assert_double_eq(seconds[TWS_MATMUL_MXFP8], seconds[TWS_MATMUL_FP8]);
  tws_profile_destroy(profile);
  profile = profile_under("v100-32gb", "deepspeed");
  tws_profile *modules = profile_under("v100-32gb", "transformers-2021");
  const double rate = 2 * 8192.0 * 8192 * 8192 / tws_kernel_seconds(profile, &full, 1, 1);
  ck_assert_msg(rate > 0.88 * 15.7e12 && rate < 0.93 * 15.7e12, "%g", rate);
  const double apart = tws_kernel_seconds(modules, &gelu, 1, 1) - tws_kernel_seconds(profile, &gelu, 1, 1);
  ck_assert_double_eq_tol(apart * 900e9 * 0.83 / (1 << 24), 32, 1e-6);
  tws_profile_destroy(profile);
  tws_profile_destroy(modules);
}
END_TEST

/* Where launches limit the passes, kernels of the optimizer phase keep their own time. */
START_TEST(launches_do_not_lengthen_the_optimizer) {
  tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
  tws_job *job;
  tws_plan *plan;
  tws_error err = {0};
  int steps = 0, passes = 0;
  spec.model = "gpt2";
  spec.cluster = "h100";
  spec.dtype = "bf16";
  spec.micro_batch = 1;
  spec.runtime = "megatron-2021";
  ck_assert_msg(tws_job_load(&spec, &job, &err) == TWS_OK, "%s", err.message);
  ck_assert_msg(tws_job_plan(job, 0, &plan, &err) == TWS_OK, "%s", err.message);
  const tws_machine machine = {.cluster = &job->cluster, .profile = job->profile};
  const tws_launches launches = tws_plan_launches(plan, &machine);
  ck_assert_double_gt(launches.factor, 3);
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const uint32_t w = plan->ops[i].work;
    const tws_work *work = &plan->works[w];
    const int adam = work->kind == TWS_OP_COMPUTE && work->code == TWS_KERNEL_ADAMW;
    const int linear = work->kind == TWS_OP_COMPUTE && work->code == TWS_KERNEL_LINEAR;
    if (!adam && !linear) continue;
    const double factor = tws_plan_launched_seconds(plan, w, &machine, 1, &launches) /
                          tws_plan_work_seconds(plan, w, &machine, 1);
    ck_assert_double_eq_tol(factor, adam ? 1 : launches.factor, 1e-9);
    steps += adam;
    passes += linear;
  }
  ck_assert_int_gt(steps, 0);
  ck_assert_int_gt(passes, 0);
  tws_plan_destroy(plan);
  tws_job_destroy(job);
}
END_TEST

/* Under an eager runtime a step of a small model takes as long as its launches, whatever the batch; under a runtime
 * without such launches it grows with the batch. Large batches take the device's time. */
START_TEST(launches_limit_small_steps) {
  double own = step_under("twinspeed", "2", 0, NULL) / step_under("twinspeed", "1", 0, NULL);
  double eager = step_under("megatron-2021", "2", 0, NULL) / step_under("megatron-2021", "1", 0, NULL);
  ck_assert_double_gt(own, 1.3);
  ck_assert_double_lt(eager, 1.05);
  double large = step_under("megatron-2021", "64", 0, NULL) / step_under("megatron-2021", "32", 0, NULL);
  ck_assert_double_gt(large, 1.7);
  ck_assert_double_gt(step_under("megatron-2021", "1", 0, NULL), 3 * step_under("twinspeed", "1", 0, NULL));
}
END_TEST

/* Launches that run ahead of the device hide in its work, or hide it; launches that alternate with the device's work
 * add to it. */
START_TEST(alternating_launches_add_up) {
  ck_assert_double_eq_tol(tws_launch_slowdown(2, 1, 1), 1.5, 1e-12);
  ck_assert_double_lt(tws_launch_slowdown(2, 1, 0), 1.1);
  double step_s[2];
  for (int turns = 0; turns < 2; turns++) {
    tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
    tws_job *job;
    tws_profile *profile = profile_under("h100-sxm", "nemo");
    tws_estimate estimate;
    tws_error err = {0};
    spec.model = "gpt2";
    spec.cluster = "h100";
    spec.dtype = "bf16";
    spec.micro_batch = 4;
    ck_assert_msg(tws_job_load(&spec, &job, &err) == TWS_OK, "%s", err.message);
    if (turns) tws_profile_issue_in_turns(profile);
    tws_job_set_profile(job, profile);
    ck_assert_int_eq(tws_job_estimate(job, &estimate, NULL, &err), TWS_OK);
    step_s[turns] = estimate.step_s;
    tws_job_destroy(job);
  }
  ck_assert_double_gt(step_s[1], 1.1 * step_s[0]);
  ck_assert_double_lt(step_s[1], 2 * step_s[0]);
}
END_TEST

/* Returns the number of operations that the host issues under a runtime for the kernels of one phase of a plan. */
static double issued(const char *model, const char *runtime, tws_phase phase) {
  tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
  tws_job *job;
  tws_plan *plan;
  tws_error err = {0};
  double operations = 0;
  spec.model = model;
  spec.cluster = "h100";
  spec.dtype = "bf16";
  spec.micro_batch = 1;
  spec.runtime = runtime;
  ck_assert_msg(tws_job_load(&spec, &job, &err) == TWS_OK, "%s", err.message);
  ck_assert_msg(tws_job_plan(job, 0, &plan, &err) == TWS_OK, "%s", err.message);
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const tws_work *work = &plan->works[plan->ops[i].work];
    if (plan->ops[i].phase == phase && tws_work_is_launched(work))
      operations += tws_profile_host_launches(job->profile, work);
  }
  tws_plan_destroy(plan);
  tws_job_destroy(job);
  return operations;
}

/* A layer of GPT-2 is 45 operations forward and 60 backward in Megatron-LM of 2021, without scores in memory 24 fewer,
 * and fewer in layers of Transformer Engine; a compiled layer is a call for each kernel. */
START_TEST(layers_are_issued_operation_by_operation) {
  static const struct {
    const char *runtime;
    double forward, backward;
  } known[] = {{"megatron-2021", 45, 60}, {"megatron-deepspeed", 34, 47}, {"megatron-unfused", 47, 57},
               {"nemo", 36, 44},          {"fsdp-compiled", 7, 11},       {"twinspeed", 7, 11}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    const char *runtime = known[i].runtime;
    ck_assert_double_eq_tol(
        issued("gpt2-medium", runtime, TWS_PHASE_FORWARD) - issued("gpt2", runtime, TWS_PHASE_FORWARD),
        12 * known[i].forward, 1e-9);
    ck_assert_double_eq_tol(
        issued("gpt2-medium", runtime, TWS_PHASE_BACKWARD) - issued("gpt2", runtime, TWS_PHASE_BACKWARD),
        12 * known[i].backward, 1e-9);
  }
}
END_TEST

START_TEST(styles_hold_and_cost_what_their_row_says) {
  double own, eager;
  tws_error err = {0};
  tws_profile *profile;
  const tws_runtime *runtime;
  step_under("twinspeed", "4", 0, &own);
  step_under("megatron-2021", "4", 0, &eager);
  const double tokens = 4 * 1024.0, scores = 5 * 12.0 * 1024 * 1024 * 4;
  const double expected = 12 * (scores + 2 * tokens * 768) + 10 * tokens * 50257 + 4 * 124439808.0;
  ck_assert_double_eq(own, 0);
  /* Hugging Face's gelu_new keeps three more values per element; softmax's output has the type of the weights */
  double modules, wide;
  step_of("bf16", "transformers-2021", "4", 0, &modules);
  step_of("fp32", "transformers-2021", "4", 0, &wide);
  ck_assert_double_eq_tol((modules - 12 * (scores + 2 * tokens * 768) - 10 * tokens * 50257) / (12 * tokens * 3072), 6,
                          1e-9);
  ck_assert_double_eq_tol((wide - modules) / (12 * scores / 5 * 4 + 12 * tokens * 3072 * 6), 1, 1e-9);
  ck_assert_msg(fabs(eager / expected - 1) < 1e-3, "%g bytes, not %g", eager, expected);
  ck_assert_double_lt(step_under("megatron", "64", 1, NULL), 0.9 * step_under("megatron", "64", 0, NULL));
  for (int i = 0; tws_runtime_names()[i]; i++) ck_assert_ptr_nonnull(tws_runtime_find(tws_runtime_names()[i]));
  ck_assert_int_eq(tws_runtime_parse("megatrom", &runtime, &err), TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.hint, "megatron-2021"));
  ck_assert_int_eq(tws_profile_load("host", &profile, &err), TWS_OK);
  ck_assert_int_eq(tws_profile_set_runtime(profile, tws_runtime_find("fsdp"), &err), TWS_INVALID);
  ck_assert_int_eq(tws_profile_set_matmul(profile, TWS_MATMUL_FP8, &err), TWS_OK); /* by float32 of what codes mean */
  ck_assert_int_eq(tws_profile_set_matmul(profile, TWS_MATMUL_MXFP8, &err), TWS_INVALID);
  tws_profile_destroy(profile);
}
END_TEST

/* Under DeepSpeed an optimizer on the host takes five times as long as its bytes need, in a step and as a single
 * kernel. */
START_TEST(hosts_step_as_fast_as_software_lets_them) {
  tws_error err = {0};
  tws_profile *profile;
  const tws_work step = {.code = TWS_KERNEL_ADAMW, .dtype = TWS_F32, .dtype2 = TWS_F32, .d = {1 << 20}};
  ck_assert_int_eq(tws_profile_load("h200", &profile, &err), TWS_OK);
  ck_assert_double_eq_tol(tws_profile_host_bytes(profile, &step), tws_work_bytes(&step), 1);
  ck_assert_int_eq(tws_profile_set_runtime(profile, tws_runtime_find("deepspeed-whole"), &err), TWS_OK);
  ck_assert_double_eq_tol(tws_profile_host_bytes(profile, &step), 5 * tws_work_bytes(&step), 10);
  tws_profile_destroy(profile);
}
END_TEST

/* A grouped product of sixteen experts costs sixteen launches of 7 us, after casts of 90 us, where an operation takes
 * 9 us, and dispatching tokens is thirty operations. Before tokens are sent to experts the device waits 0.5 ms for the
 * host, and the tokens are copied once more, for products in 8 bits twice, except in a step that is one graph.
 * DeepSpeed's dispatch is also a product over all pairs of a token and a slot. */
START_TEST(experts_cost_what_software_makes_of_them) {
  tws_error err = {0};
  tws_profile *own, *other;
  const tws_work dispatch = {
      .code = TWS_KERNEL_DISPATCH, .dtype = TWS_BF16, .dtype2 = TWS_BF16, .d = {8192, 2048, 128, 1, 64}};
  tws_work product = {
      .code = TWS_KERNEL_EXPERT_LINEAR, .dtype = TWS_BF16, .dtype2 = TWS_BF16, .d = {8, 16, 64, 1536, 2048, 64}};
  ck_assert_int_eq(tws_profile_load("h100-sxm", &own, &err), TWS_OK);
  ck_assert_double_eq(tws_profile_host_launches(own, &product), 1);
  const double copied = tws_kernel_seconds(own, &dispatch, 1, 1);
  ck_assert_int_eq(tws_profile_set_runtime(own, tws_runtime_find("nemo"), &err), TWS_OK);
  ck_assert_double_eq_tol(tws_profile_host_launches(own, &product), 16 * 7.0 / 9, 1e-9);
  ck_assert_double_eq(tws_profile_host_launches(own, &dispatch), 30);
  const double sorted = tws_kernel_seconds(own, &dispatch, 1, 1) - copied - 0.5e-3, slots = 128.0 * 64 * 2048;
  ck_assert_double_gt(sorted, 4 * slots / tws_profile_bandwidth(own));
  ck_assert_double_lt(sorted, 6 * slots / tws_profile_bandwidth(own));
  ck_assert_int_eq(tws_profile_set_matmul(own, TWS_MATMUL_FP8, &err), TWS_OK);
  ck_assert_double_eq_tol(tws_kernel_seconds(own, &dispatch, 1, 1) - copied - 0.5e-3, 2 * sorted, 1e-9);
  ck_assert_double_eq_tol(tws_profile_host_launches(own, &product), 16 * 97.0 / 9, 1e-9);
  product.code = TWS_KERNEL_EXPERT_LINEAR_GRAD_WEIGHT;
  ck_assert_double_eq_tol(tws_profile_host_launches(own, &product), 16 * 7.0 / 9, 1e-9);
  product.d[1] = 1;
  ck_assert_double_eq(tws_profile_host_launches(own, &product), 4);
  tws_profile_destroy(own);
  ck_assert_int_eq(tws_profile_load("gb300", &other, &err), TWS_OK);
  const double plain = tws_kernel_seconds(other, &dispatch, 1, 1);
  ck_assert_int_eq(tws_profile_set_runtime(other, tws_runtime_find("nemo-graphs"), &err), TWS_OK);
  ck_assert_double_eq_tol(tws_kernel_seconds(other, &dispatch, 1, 1), plain, 1e-12);
  tws_profile_destroy(other);
  ck_assert_int_eq(tws_profile_load("h100-sxm", &other, &err), TWS_OK);
  ck_assert_int_eq(tws_profile_set_runtime(other, tws_runtime_find("deepspeed"), &err), TWS_OK);
  const double peak = tws_profile_peak_flops(other, TWS_BF16), flops = 2.0 * 8192 * 8192 * 2048;
  const double added = tws_kernel_seconds(other, &dispatch, 1, 1) - copied;
  ck_assert_msg(added > flops / peak && added < 3 * flops / peak, "%g s for %g flops", added, flops);
  tws_profile_destroy(other);
}
END_TEST

/* ---- software in hardware profiles ---- */

static tws_profile *profile_with(const char *attention, const char *more) {
  char text[1024];
  tws_json *json;
  tws_profile *profile = NULL;
  tws_error err = {0};
  int length = snprintf(text, sizeof text,
                        "{\"schema\":\"twinspeed-profile-1\",\"provenance\":\"test\",\"backend\":\"cuda\","
                        "\"memory_bytes\":4e10,\"peak_flops\":{\"fp32\":19.5e12,\"bf16\":312e12},"
                        "\"bandwidth\":1555e9,\"bandwidth_efficiency\":0.71,"
                        "\"matmul\":{\"efficiency\":0.94,\"tile_overhead_s\":1.65e-6,\"multiprocessors\":108},"
                        "\"attention\":%s%s}",
                        attention, more);
  ck_assert_int_eq(tws_json_parse(text, (size_t)length, "test", &json, &err), TWS_OK);
  ck_assert_msg(tws_profile_from_json(json, &profile, &err) == TWS_OK, "%s", err.message);
  tws_json_destroy(json);
  return profile;
}

static double seconds(const char *attention, const char *more, tws_kernel kernel, int64_t d0, int64_t d1, int64_t d2,
                      int64_t d3, int64_t d4) {
  tws_profile *profile = profile_with(attention, more);
  tws_work work = {.code = (uint8_t)kernel, .dtype = TWS_BF16, .dtype2 = TWS_BF16, .d = {d0, d1, d2, d3, d4}};
  double result = tws_kernel_seconds(profile, &work, 1, 1);
  tws_profile_destroy(profile);
  return result;
}

#define UNFUSED "{\"unfused\":{\"forward_bytes\":0,\"backward_bytes\":0}}"

/* EleutherAI's cookbook (benchmarks/sizing/sample_results/transformer.out) on an A100: micro batch 4, 16 heads of 256,
 * 2048 tokens. Its plain product determines the efficiency above, with which the batched ones are predicted. */
START_TEST(batched_products_cost_what_was_measured) {
  double plain = seconds(UNFUSED, "", TWS_KERNEL_LINEAR, 8192, 12288, 4096, 0, 0);
  ck_assert_double_eq_tol(2.0 * 8192 * 12288 * 4096 / plain / 1e12, 241.6, 2.5);
  double flops = 2.0 * 64 * 2048 * 2048 * 256, measured = flops / 130.182e12 + flops / 218.952e12;
  double forward = seconds(UNFUSED, "", TWS_KERNEL_ATTENTION, 4, 2048, 16, 16, 256);
  ck_assert_msg(fabs(forward / measured - 1) < 0.1, "%g s, measured %g s", forward, measured);
}
END_TEST

/* A runtime without a fused kernel runs two kernels; a fused kernel saves the traffic between them. */
START_TEST(unfused_software_runs_two_kernels) {
  static const struct {
    tws_kernel kernel, other;
    uint32_t flag;
    double count, saved; /* elements of the second kernel; bytes per element that it moves beyond those of the fused
                          * kernel */
  } cases[] = {{TWS_KERNEL_LINEAR, TWS_KERNEL_GELU, TWS_GELU, 4096.0 * 2048, 2},
               {TWS_KERNEL_LINEAR_GRAD_INPUT, TWS_KERNEL_GELU_GRAD, TWS_GELU, 4096.0 * 512, 4},
               {TWS_KERNEL_NORM, TWS_KERNEL_ADD, TWS_RESIDUAL, 4096.0 * 2048, 2}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tws_profile *apart = profile_with(UNFUSED, ",\"unfused\":true"), *fused = profile_with(UNFUSED, "");
    tws_work work = {.code = (uint8_t)cases[i].kernel, .dtype = TWS_BF16, .dtype2 = TWS_BF16, .d = {4096, 2048, 512}};
    tws_work other = {.code = (uint8_t)cases[i].other, .dtype = TWS_BF16, .dtype2 = TWS_BF16};
    other.d[0] = (int64_t)cases[i].count;
    double both = tws_kernel_seconds(fused, &work, 1, 1) + tws_kernel_seconds(fused, &other, 1, 1);
    work.flags = cases[i].flag;
    ck_assert_double_eq_tol(tws_kernel_seconds(apart, &work, 1, 1) / both, 1, 1e-9);
    double saved = both - tws_kernel_seconds(fused, &work, 1, 1);
    ck_assert_double_eq_tol(saved, cases[i].count * cases[i].saved / (1555e9 * 0.71), 1e-9);
    tws_profile_destroy(apart);
    tws_profile_destroy(fused);
  }
}
END_TEST

START_TEST(scores_and_added_bytes_cost_their_traffic) {
  double bandwidth = 1555e9 * 0.71, scores = 4.0 * 16 * 2048 * 2048;
  for (int grad = 0; grad < 2; grad++) {
    tws_kernel kernel = grad ? TWS_KERNEL_ATTENTION_GRAD : TWS_KERNEL_ATTENTION;
    double none = seconds(UNFUSED, "", kernel, 4, 2048, 16, 16, 64);
    double some = seconds("{\"unfused\":{\"forward_bytes\":8,\"backward_bytes\":9}}", "", kernel, 4, 2048, 16, 16, 64);
    ck_assert_double_eq_tol((some - none) * bandwidth / scores, grad ? 9 : 8, 1e-6);
  }
  /* recomputing the scores costs another forward kernel */
  double forward = seconds(UNFUSED, "", TWS_KERNEL_ATTENTION, 4, 2048, 16, 16, 64);
  double kept = seconds(UNFUSED, "", TWS_KERNEL_ATTENTION_GRAD, 4, 2048, 16, 16, 64);
  double again = seconds("{\"unfused\":{\"forward_bytes\":0,\"backward_bytes\":0,\"recomputed\":true}}", "",
                         TWS_KERNEL_ATTENTION_GRAD, 4, 2048, 16, 16, 64);
  ck_assert_double_eq_tol(again - kept, forward, 1e-12);
  static const struct {
    tws_kernel kernel;
    const char *name;
    double elements;
  } cases[] = {{TWS_KERNEL_NORM_GRAD, "norm_grad", 4096.0 * 512},
               {TWS_KERNEL_LINEAR_GRAD_WEIGHT, "linear_grad_weight", 4096.0 * 512},
               {TWS_KERNEL_ADAMW, "adamw", 4096},
               {TWS_KERNEL_CROSS_ENTROPY, "cross_entropy", 4096.0 * 256}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char more[64];
    snprintf(more, sizeof more, ",\"added_bytes\":{\"%s\":10}", cases[i].name);
    double plain = seconds(UNFUSED, "", cases[i].kernel, 4096, 512, 256, 1, 1);
    double with = seconds(UNFUSED, more, cases[i].kernel, 4096, 512, 256, 1, 1);
    ck_assert_double_eq_tol((with - plain) * bandwidth / cases[i].elements, 10, 1e-6);
  }
}
END_TEST

/* Megatron-Core applies biases of experts and clamps of their gate in operations of PyTorch (counted in
 * docs/accuracy.md): they move bytes per element, and each forward pass of the gate waits half a millisecond for the
 * host. */
START_TEST(biased_experts_cost_their_operations) {
  static const struct {
    tws_kernel kernel;
    int64_t d[6];
    double elements, bytes, waits_s;
  } cases[] = {{TWS_KERNEL_SWIGLU, {8192, 2880}, 8192.0 * 2880, 16, 0.5e-3},
               {TWS_KERNEL_SWIGLU_GRAD, {8192, 2880}, 8192.0 * 2880, 20, 0},
               {TWS_KERNEL_COMBINE, {8192, 2880, 128, 1, 64}, 128.0 * 64 * 2880, 28, 0},
               {TWS_KERNEL_COMBINE_GRAD, {8192, 2880, 128, 1, 64}, 128.0 * 64 * 2880, 40, 0},
               {TWS_KERNEL_DISPATCH, {8192, 2880, 128, 1, 64}, 0, 0, 0}};
  tws_error err = {0};
  tws_profile *plain, *biased, *graphs;
  ck_assert_int_eq(tws_profile_load("h100-sxm", &plain, &err), TWS_OK);
  ck_assert_int_eq(tws_profile_load("h100-sxm", &biased, &err), TWS_OK);
  ck_assert_int_eq(tws_profile_load("gb300", &graphs, &err), TWS_OK);
  ck_assert_int_eq(tws_profile_set_runtime(plain, tws_runtime_find("nemo"), &err), TWS_OK);
  ck_assert_int_eq(tws_profile_set_runtime(biased, tws_runtime_find("nemo"), &err), TWS_OK);
  ck_assert_int_eq(tws_profile_set_runtime(graphs, tws_runtime_find("nemo-graphs"), &err), TWS_OK);
  tws_profile_bias_experts(biased);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tws_work work = {.code = (uint8_t)cases[i].kernel, .dtype = TWS_BF16, .dtype2 = TWS_BF16};
    memcpy(work.d, cases[i].d, sizeof cases[i].d);
    const double more = tws_kernel_seconds(biased, &work, 1, 1) - tws_kernel_seconds(plain, &work, 1, 1);
    const double moved = cases[i].bytes * cases[i].elements / (0.76 * tws_profile_bandwidth(biased));
    ck_assert_msg(fabs(more - moved - cases[i].waits_s) < 1e-9, "%s: %g s, not %g and %g",
                  tws_kernel_name(cases[i].kernel), more, moved, cases[i].waits_s);
  }
  /* in a step that is one CUDA graph there is no wait for the host */
  tws_work gate = {.code = TWS_KERNEL_SWIGLU, .dtype = TWS_BF16, .dtype2 = TWS_BF16, .d = {8192, 2880}};
  const double before = tws_kernel_seconds(graphs, &gate, 1, 1);
  tws_profile_bias_experts(graphs);
  ck_assert_double_lt(tws_kernel_seconds(graphs, &gate, 1, 1) - before, 0.2e-3);
  tws_profile_destroy(plain);
  tws_profile_destroy(biased);
  tws_profile_destroy(graphs);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("runtimes");
  TCase *tests = tcase_create("runtimes");
  tcase_set_timeout(tests, 240);
  tcase_add_test(tests, inputs_of_narrow_products);
  tcase_add_test(tests, narrow_inputs_and_weights_of_transformer_engine);
  tcase_add_test(tests, experts_keep_what_their_software_keeps);
  tcase_add_test(tests, gaps_of_a_layout_are_bounded);
  tcase_add_test(tests, collectives_hand_over);
  tcase_add_test(tests, gradients_of_deepspeeds_pipelines);
  tcase_add_test(tests, collectives_of_2021);
  tcase_add_test(tests, products_and_activations_of_their_software);
  tcase_add_test(tests, launches_limit_small_steps);
  tcase_add_test(tests, launches_do_not_lengthen_the_optimizer);
  tcase_add_test(tests, styles_hold_and_cost_what_their_row_says);
  tcase_add_test(tests, alternating_launches_add_up);
  tcase_add_test(tests, layers_are_issued_operation_by_operation);
  tcase_add_test(tests, hosts_step_as_fast_as_software_lets_them);
  tcase_add_test(tests, experts_cost_what_software_makes_of_them);
  tcase_add_test(tests, biased_experts_cost_their_operations);
  tcase_add_test(tests, batched_products_cost_what_was_measured);
  tcase_add_test(tests, unfused_software_runs_two_kernels);
  tcase_add_test(tests, scores_and_added_bytes_cost_their_traffic);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
