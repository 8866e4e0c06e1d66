/* Memory that DeepSpeed needs in the optimizer phase: figures counted in its releases with two ranks, and reports of
 * jobs that ran out of memory there. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command.h"
#include "job/job.h"
#include "job/software_memory.h"
#include "job/software_step.h"
#include "models/network/adapt.h"
#include "tests/folder.h"
#include "tests/suite.h"

#define GIB 1073741824.0

/* peak: bytes of the optimizer phase on one of eight ranks, after activations are freed; parameters: those of the
 * model; trained: those that are not frozen */
typedef struct step_case {
  double peak, parameters, trained, largest;
} step_case;
static step_case step_of(const char *model, const char *runtime, int stage, const char *set[], int count) {
  tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
  tws_job *job;
  tws_error err = {0};
  spec.model = model;
  spec.cluster = "dgx-a100";
  spec.runtime = runtime;
  spec.dtype = "bf16";
  spec.stage = stage;
  spec.ranks = 8;
  spec.micro_batch = 1;
  for (int i = 0; i < count; i++) spec.set.item[spec.set.count++] = set[i];
  ck_assert_msg(tws_job_load(&spec, &job, &err) == TWS_OK, "%s", err.message);
  const double parameters = (double)tws_network_params(job->network, 0);
  const tws_stage_estimate none = {.parameters = parameters};
  const step_case found = {tws_software_stage_peak(job, &none), parameters, (double)tws_network_trained(job->network),
                           tws_software_largest_parameter(job)};
  tws_job_destroy(job);
  return found;
}

/* Counted in DeepSpeed: with PyTorch's foreach, on two groups, 22 bytes per element of a shard and 2 per parameter;
 * DeepSpeed's own fused Adam has no temporaries, so that flat copies determine the peak: 20 bytes. */
START_TEST(a_step_of_stage_2_takes_22_bytes) {
  const char *adam[] = {"optimizer.type=AdamW"}, *twice[] = {"gradient_accumulation_steps=2"};
  for (int stage = 1; stage < 3; stage++) {
    const double gradients = stage == 1 ? 2 * 7 / 8.0 : 0; /* at stage 1 a rank has all gradients until this phase */
    const step_case foreach = step_of("llama-3-8b", "deepspeed-flash", stage, NULL, 0);
    ck_assert_double_eq_tol(foreach.peak / foreach.parameters, 2 + 22 / 8.0 + gradients, 1e-9);
    const step_case fused = step_of("llama-3-8b", "deepspeed-flash", stage, adam, 1);
    ck_assert_double_eq_tol(fused.peak / fused.parameters, 2 + 20 / 8.0 + gradients, 1e-9);
  }
  /* gradient accumulation needs a second buffer in the passes, and not in the optimizer phase */
  const step_case more = step_of("llama-3-8b", "deepspeed-flash", 2, twice, 1);
  ck_assert_double_eq_tol(more.peak / more.parameters, 2 + 22 / 8.0, 1e-9);
}
END_TEST

/* Frozen weights have neither gradients nor states; adapters take the bytes of trained parameters. */
START_TEST(a_step_of_adapters_updates_adapters) {
  const char *adapters[] = {"twinspeed.lora.r=64", "twinspeed.lora.target_modules=\"all-linear\""};
  const step_case found = step_of("llama-3-8b", "deepspeed-flash", 2, adapters, 2);
  ck_assert_double_lt(found.trained, 0.03 * found.parameters);
  ck_assert_double_eq_tol(found.peak, 2 * found.parameters + 22 / 8.0 * found.trained, 16);
}
END_TEST

/* Without DeepSpeed, PyTorch's foreach allocates a float32 tensor for all elements: 4 bytes in addition to 16 of
 * float32 weights, gradients and moments and to 4 of DDP's buckets. */
START_TEST(a_step_with_foreach_takes_4_bytes_more) {
  const char *adam[] = {"optimizer.type=AdamW"}, *narrow[] = {"optimizer.type=AdamW8bit"};
  const step_case found = step_of("llama-3-8b", "transformers-4-ddp", 0, NULL, 0);
  ck_assert_double_eq_tol(found.peak / found.parameters, 16 + 4 + 4, 1e-9);
  ck_assert_double_eq(step_of("llama-3-8b", "transformers-4-ddp", 0, adam, 1).peak, found.peak);
  ck_assert_double_lt(step_of("llama-3-8b", "transformers-4-ddp", 0, narrow, 1).peak, found.peak);
  ck_assert_double_lt(step_of("llama-3-8b", "transformers-ddp", 0, NULL, 0).peak, found.peak); /* the fused optimizer */
}
END_TEST

/* States of 8 bits: two bytes, and a float32 scale of each in 256 elements, without temporaries. Paged ones are outside
 * of PyTorch's allocator, and this program's own engine does not page. */
START_TEST(states_of_8_bits) {
  const char *eight[] = {"optimizer.type=AdamW8bit"}, *paged[] = {"optimizer.type=PagedAdamW8bit"};
  const char *wide[] = {"optimizer.type=AdamW8bit",
                        "optimizer.param_groups=[{\"params\":\"embeddings\",\"optim_bits\":32}]"};
  const double states = 2 + 8 / 256.0, others = 2 + 4 + 6; /* gradients, masters, flat copies */
  const step_case narrow = step_of("llama-3-8b", "deepspeed-flash", 2, eight, 1);
  ck_assert_double_eq_tol(narrow.peak / narrow.parameters, 2 + (others + states) / 8, 1e-9);
  const step_case away = step_of("llama-3-8b", "deepspeed-flash", 2, paged, 1);
  const double small = 65 * 4096 * states; /* norms have less than 100,000 elements, and stay */
  ck_assert_double_eq_tol(away.peak, away.parameters * (2 + others / 8) + small / 8, 16);
  const step_case tables = step_of("llama-3-8b", "deepspeed-flash", 2, wide, 2);
  ck_assert_double_eq_tol(tables.peak - narrow.peak, tables.largest * (8 - states) / 8, 16);
}
END_TEST

/* Stage 3: 16 bytes, the bucket that stays, and of a sub-group 8 with foreach and 6 with DeepSpeed's Adam. */
START_TEST(a_step_of_stage_3_is_of_a_sub_group) {
  const char *whole[] = {"zero_optimization.sub_group_size=2000000000"};
  const char *adam[] = {"zero_optimization.sub_group_size=2000000000", "optimizer.type=AdamW"};
  const char *small[] = {"zero_optimization.sub_group_size=100000000"};
  const step_case all = step_of("llama-3-8b", "deepspeed-flash", 3, whole, 1);
  ck_assert_double_eq_tol(all.peak, all.parameters * (16 + 8) / 8 + 2 * 5e8, 16);
  const step_case fused = step_of("llama-3-8b", "deepspeed-flash", 3, adam, 2);
  ck_assert_double_eq_tol(fused.peak, fused.parameters * (16 + 6) / 8 + 2 * 5e8, 16);
  const step_case part = step_of("llama-3-8b", "deepspeed-flash", 3, small, 1);
  const double sub_group = (part.peak - part.parameters * 16 / 8 - 2 * 5e8) / 8;
  ck_assert(sub_group >= 1e8 && sub_group < 1e8 + part.largest / 8);
}
END_TEST

/* With the optimizer on the host the most is when the largest gradient has been reduced: parameters, a bucket, the
 * buffer for it, itself and its norm in float64, 12 bytes of it. */
START_TEST(an_offloaded_step_of_stage_2_is_of_the_largest_parameter) {
  const char *offload[] = {"zero_optimization.offload_optimizer.device=cpu"};
  const step_case found = step_of("llama-3-8b", "deepspeed-flash", 2, offload, 1);
  ck_assert_double_eq(found.largest, 4096.0 * 128256);
  ck_assert_double_ge(found.peak, 2 * found.parameters + 2 * 5e8 + 12 * found.largest);
  ck_assert_double_le(found.peak, 2 * found.parameters + 4 * 5e8 + 12 * found.largest + 32 * 2 * 4096.0 * 8192 + 16);
}
END_TEST

/* DeepSpeed's buckets have their full size even for a model of 124 M parameters; this program's own engine has no such
 * buckets. */
START_TEST(buckets_are_of_their_full_size) {
  const char *bucket[] = {"zero_optimization.reduce_bucket_size=500000000"};
  const char *offload[] = {"zero_optimization.offload_optimizer.device=cpu"};
  tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
  tws_job *job;
  tws_error err = {0};
  spec = (tws_job_spec){.model = "gpt2",
                        .cluster = "dgx-a100",
                        .runtime = "deepspeed-flash",
                        .dtype = "bf16",
                        .stage = 3,
                        .seed = -1,
                        .ranks = 8,
                        .micro_batch = 1};
  spec.set.item[spec.set.count++] = bucket[0];
  ck_assert_msg(tws_job_load(&spec, &job, &err) == TWS_OK, "%s", err.message);
  ck_assert_double_eq(tws_job_software_bytes(job), 2 * 5e8);
  tws_job_destroy(job);
  ck_assert_double_eq(step_of("gpt2", "twinspeed", 3, bucket, 1).peak, 0);
  ck_assert_double_eq(step_of("gpt2", "twinspeed", 2, offload, 1).peak, 0);
}
END_TEST

/* Returns tws_job_software_bytes() of GPT-2 with `micro_batches` micro-batches a step, and counts the logits of one. */
static double bytes_with_pipe(const char *micro_batches, int stage, double *logits) {
  tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
  tws_job *job;
  tws_error err = {0};
  char set[64];
  snprintf(set, sizeof set, "gradient_accumulation_steps=%s", micro_batches);
  spec = (tws_job_spec){.model = "gpt2",
                        .cluster = "dgx1-v100",
                        .runtime = "megatron-2021",
                        .dtype = "fp16",
                        .stage = stage,
                        .seed = -1,
                        .ranks = 8,
                        .micro_batch = 1};
  spec.set.item[spec.set.count++] = set;
  ck_assert_msg(tws_job_load(&spec, &job, &err) == TWS_OK, "%s", err.message);
  const double bytes = tws_job_software_bytes(job);
  *logits = (double)job->config->sequence_length * (double)job->network->padded_vocabulary;
  tws_job_destroy(job);
  return bytes;
}

/* DeepSpeed's pipeline engine has two buffers for float32 outputs: while the loss of the third micro-batch is
 * computed, 14 bytes a logit exist, 12 of them in addition to a plan's, instead of 10. Engines of stages 2 and 3 have
 * no pipelines. */
START_TEST(pipelines_keep_the_outputs_of_two_micro_batches) {
  double logits;
  const double before = bytes_with_pipe("2", 1, &logits);
  ck_assert_double_eq_tol((bytes_with_pipe("3", 1, &logits) - before) / logits, 2, 1e-9);
  ck_assert_double_eq(bytes_with_pipe("2", 3, &logits), bytes_with_pipe("3", 3, &logits));
}
END_TEST

/* ---- Hugging Face's modules ---- */

/* Returns the bytes that a device needs for a Llama of `layers` layers and 7168 tokens, without what the allocator
 * loses between them, and counts its parameters. */
static double needed(int layers, const char *options, double *parameters) {
  char text[512];
  snprintf(text, sizeof text,
           "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_act\":\"silu\","
           "\"hidden_size\":2048,\"intermediate_size\":6144,\"num_attention_heads\":16,\"num_key_value_heads\":8,"
           "\"num_hidden_layers\":%d,\"vocab_size\":32000,\"max_position_embeddings\":8192,\"rms_norm_eps\":1e-5,"
           "\"tie_word_embeddings\":false}",
           layers);
  write_text(in_folder("llama.json"), text);
  command_result r =
      twinspeed("estimate -m %s --dtype bf16 --cluster dgx-h100 -n 1 --stage 0 --micro-batch 1 --seq 7168 --json %s",
                in_folder("llama.json"), options);
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = cJSON_Parse(r.out);
  const cJSON *need = cJSON_GetObjectItem(cJSON_GetObjectItem(json, "verdict"), "device_need_bytes");
  const cJSON *device = cJSON_GetObjectItem(cJSON_GetObjectItem(json, "memory"), "device");
  const double live = cJSON_GetNumberValue(cJSON_GetObjectItem(device, "live_bytes"));
  const double beside = cJSON_GetNumberValue(cJSON_GetObjectItem(json, "runtime_bytes"));
  const double placed = cJSON_GetNumberValue(cJSON_GetObjectItem(device, "allocator_bytes"));
  const double lost = fmax(placed - live, 0.015 * (live + beside));
  /* where layers are recomputed, the most is while the loss is computed, without the gaps of the passes */
  const double bytes = cJSON_GetNumberValue(need) - (strstr(options, "--recompute full") ? 0 : lost);
  *parameters = cJSON_GetNumberValue(cJSON_GetObjectItem(json, "parameters"));
  cJSON_Delete(json);
  command_free(&r);
  return bytes;
}

/* Counted of Transformers 5.24: 12 bytes a logit are there at the peak of the backward pass. */
START_TEST(logits_of_transformers) {
  const double h = 2048, f = 6144, tokens = 7168;
  double count;
  make_folder();
  const double first = needed(4, "--runtime transformers", &count);
  const double fused = needed(4, "--runtime deepspeed-flash", &count);
  const double kept = 4 * (2 * f + 8 * h) * tokens; /* more than a plan keeps */
  ck_assert_double_eq_tol((first - fused - kept) / (10 * 32000 * tokens), 1, 0.001);
  remove_folder();
}
END_TEST

#define ADAPTERS "--set twinspeed.lora.r=8 --set twinspeed.lora.lora_alpha=16 "
#define ALL_LINEAR ADAPTERS "--set 'twinspeed.lora.target_modules=\"all-linear\"' "
#define Q_AND_V ADAPTERS "--set 'twinspeed.lora.target_modules=[\"q_proj\",\"v_proj\"]' "
#define DROPOUT "--set twinspeed.lora.lora_dropout=0.05 "
#define NF4_TWICE \
  "--set twinspeed.frozen_quantization.type=nf4 --set twinspeed.frozen_quantization.scale_block_size=256 "

/* Bytes that a layer keeps per token until its backward pass: `f` times the width of the MLP, `h` times the hidden
 * size, `kv` times the width of keys, `heads` times the query heads, `scores` times query heads and tokens. Counted
 * with a tracer of storages in Transformers 4.38 to 4.57 and 5.24, and measured again by tests/kept_memory.py, which
 * knows a row by `name` and the major version. `parameter`: bytes per parameter that the estimate of another layer
 * adds; gradients of float32 weights are created when activations have been freed.
 *
 * Under autocast with float32 weights, the residual is float32. Adapters that have 16 bits share their inputs, as
 * under DeepSpeed. Dropout keeps its masks and outputs. Weights in NF4 with double quantization take 0.516 bytes a
 * parameter, and bitsandbytes keeps no input of their products. Before 5.0, keys and values are repeated for each head
 * of queries; eager attention keeps 6 bytes a score. */
static const struct kept_layer {
  const char *name;
  int major;
  const char *options;
  double f, h, kv, heads, scores, parameter;
} kept_layers[] = {{"sdpa", 5, "--runtime transformers", 8, 20, 4, 4, 0, 16},
                   {"autocast", 5, "--runtime transformers-ddp", 8, 30, 4, 4, 0, 14},
                   {"adapters", 5, "--runtime transformers " ALL_LINEAR, 8, 16, 4, 4, 0, 2},
                   {"adapters-autocast", 5, "--runtime transformers-ddp " ALL_LINEAR, 8, 24, 4, 4, 0, 2},
                   {NULL, 5, "--runtime transformers " ALL_LINEAR DROPOUT, 9, 30, 4, 4, 0, 2},
                   {NULL, 5, "--runtime transformers-ddp " ALL_LINEAR DROPOUT, 9, 30, 4, 4, 0, 2},
                   {"adapters-qv", 5, "--runtime transformers " Q_AND_V, 6, 14, 4, 4, 0, 2},
                   {"adapters-qv-autocast", 5, "--runtime transformers-ddp " Q_AND_V, 6, 16, 4, 4, 0, 2},
                   {NULL, 5, "--runtime transformers-ddp " ALL_LINEAR NF4_TWICE, 8, 24, 4, 4, 0, 0.516},
                   {"sdpa", 4, "--runtime transformers-4", 8, 24, 0, 4, 0, 16},
                   {"autocast", 4, "--runtime transformers-4-ddp", 8, 34, 0, 4, 0, 14},
                   {"eager", 4, "--runtime transformers-4-eager", 8, 24, 0, 0, 6, 16},
                   {NULL, 4, "--runtime transformers-4-ddp-eager", 8, 34, 0, 0, 6, 14}};
#define KEPT_LAYERS (sizeof kept_layers / sizeof *kept_layers)

static double kept_bytes(const struct kept_layer *row, double h, double f, double kv, double heads, double tokens) {
  return row->f * f + row->h * h + row->kv * kv + row->heads * heads + row->scores * heads * tokens;
}

START_TEST(layers_keep_what_was_counted) {
  const double tokens = 7168;
  double few, many;
  make_folder();
  for (size_t i = 0; i < KEPT_LAYERS; i++) {
    const struct kept_layer *row = kept_layers + i;
    const double first = needed(4, row->options, &few), second = needed(8, row->options, &many);
    const double layer = (second - first - row->parameter * (many - few)) / 4 / tokens;
    const double expected = kept_bytes(row, 2048, 6144, 1024, 16, tokens);
    const double gaps = row->parameter < 2 ? 0.04 : 0; /* a caching allocator loses at most this share */
    ck_assert_msg(layer / expected > 0.99 && layer / expected < 1.01 + gaps, "%s: %.0f bytes a token, expected %.0f",
                  row->options, layer, expected);
  }
  /* while the softmax of the one recomputed layer is differentiated, 12 bytes a score exist; without scores the most is
   * while the loss is computed, so that the difference is smaller */
  const double eager = needed(4, "--runtime transformers-4-eager --recompute full", &few);
  const double fused = needed(4, "--runtime transformers-4 --recompute full", &few);
  ck_assert_double_ge(eager - fused, 10 * 16 * tokens * tokens);
  ck_assert_double_le(eager - fused, 12 * 16 * tokens * tokens);
  remove_folder();
}
END_TEST

/* One line of tests/kept_memory.py: the figure of that name is what the tests above expect of the estimates. Returns
 * whether it is known for this version of Transformers. */
static int assert_measured(const char *name, double bytes, int major, double h, double tokens) {
  static const struct {
    const char *name;
    double bytes;
  } figures[] = {{"logit", 12}, {"step-foreach", 4}, {"step-single", 6}, {"step-fused", 0}};
  for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
    if (strcmp(name, figures[i].name) == 0) {
      ck_assert_msg(fabs(bytes - figures[i].bytes) < 0.05, "%s: %.3f bytes, expected %g", name, bytes,
                    figures[i].bytes);
      return 1;
    }
  for (const struct kept_layer *row = kept_layers; row < kept_layers + KEPT_LAYERS; row++)
    if (row->name && row->major == major && strncmp(name, "layer-", 6) == 0 && strcmp(name + 6, row->name) == 0) {
      const double expected = kept_bytes(row, h, 3 * h, h / 2, h / 128, tokens);
      ck_assert_msg(fabs(bytes / expected - 1) < 0.01, "%s: %.0f bytes a token, expected %.0f", name, bytes, expected);
      return 1;
    }
  return 0;
}

/* Where PyTorch and Transformers are installed, each counted figure is measured again with the installed versions. An
 * interpreter other than the system's is named by TWS_PYTHON. */
START_TEST(pytorch_allocates_what_was_counted) {
  const char *const named = getenv("TWS_PYTHON");
  char python[512], script[] = TWS_SOURCE_DIR "/tests/kept_memory.py";
  char *argv[] = {python, script, "256", "768", "2", "1", "512", "2048", NULL};
  int major = 0, known = 0;
  snprintf(python, sizeof python, "%s", named ? named : "/usr/bin/python3");
  if (access(python, X_OK) != 0) return;
  command_result r = command_execute(argv);
  ck_assert_msg(r.status == 0 || r.status == 3, "%s: %d %s%s", python, r.status, r.out, r.err);
  if (r.status == 3) printf("software_step: %s has no PyTorch with Transformers\n", python);
  for (char *line = strtok(r.out, "\n"); line; line = strtok(NULL, "\n")) {
    char name[64];
    double value;
    if (sscanf(line, "%63s %lf", name, &value) != 2) continue;
    if (strcmp(name, "transformers") == 0)
      major = (int)value;
    else
      known += assert_measured(name, value, major, 256, 512);
  }
  ck_assert_int_ge(known, r.status == 3 ? 0 : 6);
  command_free(&r);
}
END_TEST

/* PEFT's prepare_model_for_kbit_training() makes embedding, norms and head float32 under 4-bit weights, and with them
 * the residual, which is the kept input of each recomputed layer. */
START_TEST(layers_over_quantized_weights_have_float32_inputs) {
  const double h = 2048, tokens = 7168;
  double few, many;
  make_folder();
  static const struct {
    const char *runtime;
    double number;
  } counted[] = {{"--runtime transformers-ddp ", 4}, {"--runtime transformers ", 2}};
  for (size_t i = 0; i < sizeof counted / sizeof *counted; i++) {
    char options[512];
    snprintf(options, sizeof options, "%s" ALL_LINEAR NF4_TWICE "--recompute full", counted[i].runtime);
    const double first = needed(4, options, &few), second = needed(8, options, &many);
    const double layer = (second - first - 0.516 * (many - few)) / 4 / tokens / h;
    ck_assert_msg(layer > counted[i].number - 0.1 && layer < counted[i].number + 1, "%s: %.2f h bytes a token", options,
                  layer);
  }
  remove_folder();
}
END_TEST

/* Liger's loss has logits of 512 tokens at a time here: 32,000 / 2,048 = 15.6, so 16 parts of 448 tokens, rounded up to
 * a power of two; that many parts that divide the tokens are 8. TRL's has those of 256. */
START_TEST(losses_in_chunks_have_no_logits_of_all_tokens) {
  const double logits = 7168.0 * 32000;
  double count;
  make_folder();
  const double whole = needed(4, "--runtime transformers-ddp", &count);
  const double liger = needed(4, "--runtime transformers-ddp-liger", &count);
  const double trl = needed(4, "--runtime trl", &count);
  ck_assert_double_eq(liger, needed(4, "--runtime transformers-ddp-liger --set twinspeed.loss_tiles=8", &count));
  ck_assert_double_eq(trl, needed(4, "--runtime trl --set twinspeed.loss_tiles=16", &count));
  ck_assert_double_gt(whole - liger, 10 * logits);
  ck_assert_double_gt(whole - trl, 9 * logits);
  remove_folder();
}
END_TEST

/* DDP's buckets are a second copy of all gradients, 4 bytes per parameter with float32 weights: 22 bytes with weights,
 * gradients, Adam's moments and casts, where a single device has 18. With recomputation only one layer's casts exist at
 * a time. */
START_TEST(replicas_have_gradients_twice) {
  double bytes[2], parameters = 0;
  for (int i = 0; i < 2; i++) {
    command_result r = twinspeed(
        "estimate -m gpt2-xl --dtype bf16 --cluster dgx-h100 -n %d --stage 0 --micro-batch 1 --seq 128 --runtime "
        "transformers-ddp --json",
        i ? 8 : 1);
    ck_assert_msg(r.status == 0, "%s", r.err);
    cJSON *json = cJSON_Parse(r.out);
    const cJSON *need = cJSON_GetObjectItem(cJSON_GetObjectItem(json, "verdict"), "device_need_bytes");
    bytes[i] = cJSON_GetNumberValue(need);
    parameters = cJSON_GetNumberValue(cJSON_GetObjectItem(json, "parameters"));
    cJSON_Delete(json);
    command_free(&r);
  }
  ck_assert_double_ge(bytes[0], 18 * parameters);
  ck_assert_double_le(bytes[0], 18 * parameters + 2.5 * GIB);
  ck_assert_double_ge(bytes[1], 22 * parameters);
  ck_assert_double_le(bytes[1] - bytes[0], 4 * parameters + 1.5 * GIB); /* for a communicator, and a bucket of the
                                                                         * plan */
}
END_TEST

/* ---- reports ---- */

static const char qwen[] =
    "{\"architectures\":[\"Qwen2ForCausalLM\"],\"model_type\":\"qwen2\",\"hidden_act\":\"silu\",\"hidden_size\":5120,"
    "\"intermediate_size\":%d,\"num_attention_heads\":40,\"num_key_value_heads\":8,\"num_hidden_layers\":%d,"
    "\"vocab_size\":152064,\"max_position_embeddings\":32768,\"rms_norm_eps\":1e-6,\"tie_word_embeddings\":false}";
static const char experts[] =
    "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\",\"attention_bias\":false,"
    "\"decoder_sparse_step\":1,\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_size\":2048,\"intermediate_size\":"
    "6144,"
    "\"max_position_embeddings\":40960,\"mlp_only_layers\":[],\"moe_intermediate_size\":768,\"norm_topk_prob\":true,"
    "\"num_attention_heads\":32,\"num_experts\":128,\"num_experts_per_tok\":8,\"num_hidden_layers\":48,"
    "\"num_key_value_heads\":4,\"rms_norm_eps\":1e-6,\"tie_word_embeddings\":false,\"vocab_size\":151936}";

/* BERT-large: a run with 480 sequences of 128 tokens fitted on 80 GB; one with 512 did not, with 77.2 GiB allocated.
 * Only masked tokens have logits. */
START_TEST(masked_tokens_alone_are_scored) {
  static const struct {
    int sequences, status;
    double least, most;
  } reports[] = {{480, 0, 74, 79}, {512, 1, 79.2, 83}};
  static const char *const runtimes[] = {"bert-2020", "pytorch-2020"}; /* the second runtime uses the row of the
                                                                        * first */
  make_folder();
  write_text(in_folder("bert.json"),
             "{\"architectures\":[\"BertForPreTraining\"],\"model_type\":\"bert\",\"hidden_act\":\"gelu\","
             "\"hidden_dropout_prob\":0.1,\"attention_probs_dropout_prob\":0.1,\"hidden_size\":1024,"
             "\"intermediate_size\":4096,\"num_hidden_layers\":24,\"num_attention_heads\":16,"
             "\"max_position_embeddings\":512,\"type_vocab_size\":2,\"vocab_size\":30522}");
  for (size_t i = 0; i < sizeof reports / sizeof *reports; i++) {
    command_result r = twinspeed(
        "estimate -m %s --cluster dgx-a100 --stage 0 --dtype fp16 --micro-batch %d --seq 128 --runtime %s "
        "--json",
        in_folder("bert.json"), reports[i].sequences, runtimes[i]);
    ck_assert_msg(r.status == reports[i].status, "%d: %d %s", reports[i].sequences, r.status, r.err);
    cJSON *json = cJSON_Parse(r.out);
    const cJSON *need = cJSON_GetObjectItem(cJSON_GetObjectItem(json, "verdict"), "device_need_bytes");
    const double bytes = cJSON_GetNumberValue(need) / GIB;
    ck_assert_msg(bytes > reports[i].least && bytes < reports[i].most, "%.2f GiB", bytes);
    cJSON_Delete(json);
    command_free(&r);
  }
  remove_folder();
}
END_TEST

/* Runs that exhausted memory are predicted not to fit: Qwen2.5 32B at stage 3 on seven devices of 80 GB; Qwen3 30B-A3B
 * at stage 2 on 32, in Adam's step; Qwen2.5 14B with its optimizer on the host on four devices of 40 GB, after the
 * backward pass had begun. */
START_TEST(runs_that_exhausted_memory_do_not_fit) {
  static const struct {
    const char *model, *rest;
    int status;
    double least, most; /* GiB */
  } reports[] = {
      {"32b.json", "--cluster dgx-a100 -n 7 --seq 1024 --stage 3 --accumulation 2", 1, 79.2, 82},
      {"32b.json", "--cluster dgx-a100 -n 8 --seq 1024 --stage 3 --accumulation 2", 0, 70, 79.1},
      {"30b.json",
       "--cluster dgx-h100:4 --seq 8192 --stage 2 --accumulation 4 --set zero_optimization.overlap_comm=true", 1, 79.2,
       83},
      {"14b.json",
       "--cluster dgx-a100-40gb -n 4 --seq 512 --stage 2 --micro-batch 2 --set "
       "zero_optimization.offload_optimizer.device=cpu "
       "--set zero_optimization.offload_optimizer.pin_memory=false --set zero_optimization.overlap_comm=false",
       1, 39.4, 42}};
  char text[1024];
  make_folder();
  snprintf(text, sizeof text, qwen, 27648, 64);
  write_text(in_folder("32b.json"), text);
  snprintf(text, sizeof text, qwen, 13824, 48);
  write_text(in_folder("14b.json"), text);
  write_text(in_folder("30b.json"), experts);
  for (size_t i = 0; i < sizeof reports / sizeof *reports; i++) {
    command_result r = twinspeed("estimate -m %s %s %s --dtype bf16 --recompute full --runtime deepspeed-flash --json",
                                 in_folder(reports[i].model), reports[i].rest,
                                 strstr(reports[i].rest, "--micro-batch") ? "" : "--micro-batch 1");
    ck_assert_msg(r.status == reports[i].status, "%s: %d %s", reports[i].model, r.status, r.err);
    cJSON *json = cJSON_Parse(r.out);
    const cJSON *need = cJSON_GetObjectItem(cJSON_GetObjectItem(json, "verdict"), "device_need_bytes");
    const double bytes = cJSON_GetNumberValue(need) / GIB;
    ck_assert_msg(bytes > reports[i].least && bytes < reports[i].most, "%s: %.2f GiB", reports[i].model, bytes);
    cJSON_Delete(json);
    command_free(&r);
  }
  remove_folder();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("software_step");
  TCase *tests = tcase_create("software_step");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, a_step_of_stage_2_takes_22_bytes);
  tcase_add_test(tests, a_step_of_adapters_updates_adapters);
  tcase_add_test(tests, a_step_with_foreach_takes_4_bytes_more);
  tcase_add_test(tests, states_of_8_bits);
  tcase_add_test(tests, a_step_of_stage_3_is_of_a_sub_group);
  tcase_add_test(tests, an_offloaded_step_of_stage_2_is_of_the_largest_parameter);
  tcase_add_test(tests, buckets_are_of_their_full_size);
  tcase_add_test(tests, pipelines_keep_the_outputs_of_two_micro_batches);
  tcase_add_test(tests, logits_of_transformers);
  tcase_add_test(tests, layers_keep_what_was_counted);
  tcase_add_test(tests, pytorch_allocates_what_was_counted);
  tcase_add_test(tests, layers_over_quantized_weights_have_float32_inputs);
  tcase_add_test(tests, losses_in_chunks_have_no_logits_of_all_tokens);
  tcase_add_test(tests, replicas_have_gradients_twice);
  tcase_add_test(tests, masked_tokens_alone_are_scored);
  tcase_add_test(tests, runs_that_exhausted_memory_do_not_fit);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
