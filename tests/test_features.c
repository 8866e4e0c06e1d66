/* ctest: sampled */
/* The features of runtimes: searches skip points that the runtime cannot run, answers name missing features, and the
 * files that a search writes for DeepSpeed obey its rules of batches and stages. */
#include <check.h>
#include <stdlib.h>
#include <unistd.h>

#include "job/features.h"
#include "tests/answers.h"
#include "tests/folder.h"
#include "tests/members.h"
#include "tests/suite.h"

static const char dense[] =
    "{\"model_type\": \"llama\", \"num_hidden_layers\": 8, \"hidden_size\": 256, "
    "\"intermediate_size\": 512, \"num_attention_heads\": 8, \"vocab_size\": 1024, "
    "\"max_position_embeddings\": 2048, \"torch_dtype\": \"bfloat16\"}";

static int has(const char *runtime, tws_feature feature) {
  const tws_runtime *row = tws_runtime_find(runtime);
  ck_assert_msg(row != NULL, "%s", runtime);
  return tws_features_have(tws_runtime_features(row, TWS_BACKEND_CUDA), feature);
}

START_TEST(families_have_what_their_software_has) {
  static const struct {
    const char *runtime;
    tws_feature feature;
    int has;
  } rows[] = {{"deepspeed-flash", TWS_FEATURE_STAGE_3, 1},
              {"deepspeed-flash", TWS_FEATURE_ZB_H1, 0},
              {"deepspeed-flash", TWS_FEATURE_PIPELINE_STAGE_1, 1},
              {"deepspeed-flash", TWS_FEATURE_PIPELINE_STAGE_2, 0},
              {"deepspeed-flash", TWS_FEATURE_TENSOR_STAGE_3, 0},
              {"deepspeed-flash", TWS_FEATURE_HPZ, 1},
              {"deepspeed-flash", TWS_FEATURE_MICS, 0},
              {"deepspeed-flash", TWS_FEATURE_RING, 0},
              {"transformers", TWS_FEATURE_PIPELINE, 0},
              {"transformers", TWS_FEATURE_DISK, 1},
              {"megatron", TWS_FEATURE_HPZ, 0},
              {"megatron", TWS_FEATURE_INTERLEAVED, 1},
              {"megatron", TWS_FEATURE_GPIPE, 0},
              {"megatron", TWS_FEATURE_RING, 1},
              {"megatron-2021", TWS_FEATURE_STAGE_3, 0},
              {"megatron-deepspeed", TWS_FEATURE_ATTENTION_CHUNKS, 1},
              {"megatron-deepspeed", TWS_FEATURE_MLP_TILES, 1},
              {"nemo-2026", TWS_FEATURE_NARROW, 1},
              {"megatron", TWS_FEATURE_EXPERTS_FP16, 0},
              {"megatron", TWS_FEATURE_EXPERTS_WHOLE_TOKENS, 0},
              {"deepspeed-flash", TWS_FEATURE_DISK, 1},
              {"deepspeed-flash", TWS_FEATURE_DISK_BELOW_3, 0},
              {"nanotron", TWS_FEATURE_TENSOR_OVERLAP, 1},
              {"nanotron", TWS_FEATURE_STAGE_2, 0},
              {"llm.c", TWS_FEATURE_FULL, 0},
              {"llm.c", TWS_FEATURE_FP16, 0},
              {"maxtext", TWS_FEATURE_STAGE_1, 1},
              {"maxtext", TWS_FEATURE_STAGE_2, 0},
              {"maxtext", TWS_FEATURE_ONE_F_ONE_B, 0},
              {"automodel", TWS_FEATURE_STAGE_1, 1},
              {"automodel", TWS_FEATURE_ZB_H1, 0},
              {"fsdp", TWS_FEATURE_STAGE_1, 0},
              {"fsdp", TWS_FEATURE_WHOLE_TOKENS, 0},
              {"fsdp", TWS_FEATURE_MICS, 1},
              {"fsdp-2022", TWS_FEATURE_TENSOR, 0},
              {"pytorch-2020", TWS_FEATURE_STAGE_3, 0},
              {"twinspeed", TWS_FEATURE_ZB_H1, 1},
              {"twinspeed", TWS_FEATURE_OFFLOAD_OPTIMIZER, 1},
              {"twinspeed", TWS_FEATURE_ZENFLOW, 1},
              {"twinspeed", TWS_FEATURE_DISPATCH_FP8, 0}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    ck_assert_msg(has(rows[i].runtime, rows[i].feature) == rows[i].has, "%s: %s", rows[i].runtime,
                  tws_feature_words(rows[i].feature));
  const tws_features host = tws_runtime_features(tws_runtime_find("twinspeed"), TWS_BACKEND_HOST);
  ck_assert(tws_features_have(host, TWS_FEATURE_OFFLOAD_OPTIMIZER) && !tws_features_have(host, TWS_FEATURE_NARROW));
  for (const char *const *name = tws_runtime_names(); *name; name++) /* each runs something */
    ck_assert_msg(has(*name, TWS_FEATURE_STAGE_0) || has(*name, TWS_FEATURE_STAGE_3), "%s", *name);
}
END_TEST

/* A runtime that is not in the table of families belongs to the family that its figures suggest. */
START_TEST(unknown_rows_have_a_family) {
  const tws_runtime engine = {.name = "unheard-of", .copies_buckets = 1},
                    blocks = {.name = "unheard-of", .by_block = 1};
  const tws_runtime plain = {.name = "unheard-of"}, core = {.name = "unheard-of", .float_gradients = 1};
  ck_assert_str_eq(tws_runtime_family(&engine, TWS_BACKEND_CUDA), "DeepSpeed");
  ck_assert_str_eq(tws_runtime_family(&blocks, TWS_BACKEND_CUDA), "PyTorch FSDP");
  ck_assert_str_eq(tws_runtime_family(&core, TWS_BACKEND_CUDA), "Megatron-Core");
  ck_assert_str_eq(tws_runtime_family(&plain, TWS_BACKEND_CUDA), "PyTorch DDP");
}
END_TEST

START_TEST(answers_say_what_is_missing) {
  static const struct {
    const char *runtime, *options, *feature;
  } cases[] = {
      {"megatron", "--stage 3 --set zero_optimization.zero_hpz_partition_size=4", "secondary partitions (hpZ)"},
      {"deepspeed-flash", "--pp 2 --accumulation 4 --schedule zb-h1", "schedule zb-h1"},
      {"transformers", "--pp 2 --accumulation 4", "pipeline stages"},
      {"fsdp", "--stage 1", "ZeRO stage 1 alone"},
      {"twinspeed", "--stage 2 --set zero_optimization.offload_optimizer.device=cpu", NULL},
      {"fsdp", "--stage 3 --set zero_optimization.offload_optimizer.device=cpu",
       "optimizer in host memory without the parameters"},
      {"twinspeed",
       "--stage 3 --set zero_optimization.offload_optimizer.device=nvme --set "
       "zero_optimization.offload_optimizer.nvme_path=/tmp --set aio.use_gds=true",
       "transfers between a disk and the device without host memory (GPUDirect Storage)"},
      {"deepspeed-flash", "--stage 3", NULL}};
  static const char *const verbs[] = {"estimate", "check", "simulate"};
  write_text(in_folder("dense.json"), dense);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (size_t v = 0; v < 3; v++) {
      char line[512];
      snprintf(line, sizeof line, "%s -m %s --cluster dgx-a100 --runtime %s %s", verbs[v], in_folder("dense.json"),
               cases[i].runtime, cases[i].options);
      command_result text = twinspeed("%s", line), r = twinspeed("%s --json", line);
      ck_assert_msg(text.status == 0 && r.status == 0, "%s: %s", line, text.err);
      cJSON *json = cJSON_Parse(r.out);
      const cJSON *missing = cJSON_GetObjectItem(json, "missing");
      ck_assert_msg(!missing == !cases[i].feature && !strstr(text.out, "Missing  ") == !cases[i].feature, "%s: %s",
                    line, text.out);
      if (missing) {
        ck_assert_str_eq(member(cJSON_GetArrayItem(missing, 0), "feature")->valuestring, cases[i].feature);
        ck_assert_ptr_nonnull(strstr(text.out, "(give"));
      }
      cJSON_Delete(json);
      command_free(&text);
      command_free(&r);
    }
}
END_TEST

/* A search names what its runtime lacks and no point of the space changes; what points change is left out of it. */
START_TEST(searches_say_what_is_missing) {
  static const struct {
    const char *options, *feature;
  } cases[] = {{"--runtime megatron --set twinspeed.attention_chunks=2",
                "attention in chunks with keys and values in host memory (FPDT)"},
               {"--runtime transformers --set twinspeed.delayed_update=true --set zero_optimization.stage=2 --set "
                "zero_optimization.offload_optimizer.device=cpu",
                "delayed updates"},
               {"--runtime deepspeed-flash --set twinspeed.attention_chunks=2", NULL},
               {"--runtime fsdp --set zero_optimization.overlap_comm=true", NULL}};
  write_text(in_folder("dense.json"), dense);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char line[512];
    snprintf(line, sizeof line,
             "tune -m %s --cluster dgx-a100 -n 2 --stages 2 --max-micro-batch 1 --sp 1 --tp 1 --pp 1 --no-simulation "
             "--force -q -o %s %s",
             in_folder("dense.json"), in_folder("tuned"), cases[i].options);
    command_result text = twinspeed("%s", line), r = twinspeed("%s --json", line);
    ck_assert_msg(text.status == 0 && r.status == 0, "%s: %s%s", line, text.err, r.err);
    cJSON *json = cJSON_Parse(r.out);
    const cJSON *missing = cJSON_GetObjectItem(json, "missing");
    ck_assert_msg(!missing == !cases[i].feature && !strstr(text.out, "Missing  ") == !cases[i].feature, "%s: %s", line,
                  text.out);
    if (missing) ck_assert_str_eq(member(cJSON_GetArrayItem(missing, 0), "feature")->valuestring, cases[i].feature);
    cJSON_Delete(json);
    command_free(&text);
    command_free(&r);
  }
}
END_TEST

/* Asserts that a batch is legal for DeepSpeed 0.19, runtime/config.py: without a model that divides ranks, all ranks
 * are replicas, except those that share a sequence, and the batch is micro-batch x accumulation x replicas. Two of the
 * three determine the third. */
static void assert_batch(const cJSON *config, int ranks) {
  const cJSON *batch = cJSON_GetObjectItem(config, "train_batch_size");
  const int micro = member(config, "train_micro_batch_size_per_gpu")->valueint;
  const int steps = member(config, "gradient_accumulation_steps")->valueint;
  ck_assert(micro > 0 && steps > 0);
  if (batch) ck_assert_int_eq(batch->valueint, micro * steps * ranks);
}

static void assert_stages(const cJSON *config, const char *words) {
  const cJSON *pipeline = cJSON_GetObjectItem(config, "pipeline"), *own = cJSON_GetObjectItem(config, "twinspeed");
  const cJSON *stages = cJSON_GetObjectItem(pipeline, "stages"), *tp = cJSON_GetObjectItem(config, "tensor_parallel");
  const cJSON *kind = cJSON_GetObjectItem(own, "pipeline_schedule");
  const int stage = member(member(config, "zero_optimization"), "stage")->valueint;
  if (stages && stages->valueint > 1) ck_assert_msg(stage < 2, "%s: stage %d with a pipeline", words, stage);
  if (tp) ck_assert_msg(stage < 3, "%s: stage %d with tensor ranks", words, stage);
  if (kind) ck_assert_str_eq(kind->valuestring, "1f1b");
}

START_TEST(searches_write_files_for_deepspeed) {
  static const char *const words[] = {"--axes on", "--pp 2,4 --schedules 1f1b,zb-h1,interleaved", "--tp 2", "--sp 2",
                                      "--axes on -b 64"};
  write_text(in_folder("dense.json"), dense);
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    command_result r = twinspeed(
        "tune -m %s --cluster dgx-a100 -n 8 --runtime deepspeed-flash %s --max-micro-batch 4 "
        "--no-simulation --force -q -o %s --json",
        in_folder("dense.json"), words[i], in_folder("tuned"));
    ck_assert_msg(r.status == 0, "%s: %s", words[i], r.err);
    cJSON *json = cJSON_Parse(r.out);
    tws_json *written;
    ck_assert_int_eq(tws_json_read(in_folder("tuned/ds_config_optimal.json"), &written, NULL), TWS_OK);
    const cJSON *config = written->root;
    assert_batch(config, 8);
    assert_stages(config, words[i]);
    const cJSON *one;
    cJSON_ArrayForEach(one, member(json, "candidates")) {
      const cJSON *kind = cJSON_GetObjectItem(one, "pipeline_schedule");
      ck_assert_msg(!kind || strcmp(kind->valuestring, "1f1b") == 0, "%s: %s", words[i], kind->valuestring);
    }
    cJSON_Delete(json);
    tws_json_destroy(written);
    command_free(&r);
  }
}
END_TEST

START_TEST(an_empty_space_says_why) {
  write_text(in_folder("dense.json"), dense);
  command_result r = twinspeed("tune -m %s --cluster dgx-a100 --runtime deepspeed-flash --pp 2 --schedules zb-h1 -o %s",
                               in_folder("dense.json"), in_folder("none"));
  ck_assert_int_eq(r.status, 3);
  ck_assert_msg(strstr(r.err, "deepspeed-flash (DeepSpeed) has no schedule zb-h1 (give --schedule 1f1b)"), "%s", r.err);
  command_free(&r);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("features");
  TCase *tcase = tcase_create("features");
  tcase_set_timeout(tcase, 300);
  tcase_add_checked_fixture(tcase, make_folder, remove_folder);
  tcase_add_test(tcase, families_have_what_their_software_has);
  tcase_add_test(tcase, unknown_rows_have_a_family);
  tcase_add_test(tcase, answers_say_what_is_missing);
  tcase_add_test(tcase, searches_say_what_is_missing);
  tcase_add_test(tcase, searches_write_files_for_deepspeed);
  tcase_add_test(tcase, an_empty_space_says_why);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
