/* Configurations on the command line: files of other programs, elasticity without batches, what "auto" is. */
#include <check.h>

#include "base/memory.h"
#include "tests/answers.h"
#include "tests/folder.h"
#include "tests/suite.h"

/* ---- files of other programs ---- */

static const char accelerate[] =
    "compute_environment: LOCAL_MACHINE\n"
    "deepspeed_config:\n"
    "  gradient_accumulation_steps: 4\n"
    "  offload_optimizer_device: cpu\n"
    "  offload_param_device: none\n"
    "  zero_stage: 3\n"
    "distributed_type: DEEPSPEED\n"
    "mixed_precision: bf16\n"
    "num_processes: 16\n";

/* DeepSpeed leaves unknown top-level keys alone, so that such files would be configurations without ZeRO. */
START_TEST(files_of_other_programs) {
  static const struct {
    const char *text, *says, *hint;
  } cases[] = {
      {accelerate, "ds.json:1:1: \"compute_environment\": this is a configuration of Hugging Face's accelerate",
       "-n 16 --stage 3 --accumulation 4 --set zero_optimization.offload_optimizer.device=cpu --dtype bf16"},
      {"{\n  \"compute_environment\": \"LOCAL_MACHINE\",\n  \"deepspeed_config\": {\n    \"deepspeed_config_file\": "
       "\"conf/zero3.json\",\n    \"zero3_init_flag\": true\n  }\n}\n",
       "ds.json:2:3: \"compute_environment\": this is", "names: -c conf/zero3.json"},
      {"debug: false\ndistributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\nnum_processes: 4\n",
       "ds.json:2:1: \"distributed_type\": this is", "-n 4 --stage 3"},
      {"compute_environment: LOCAL_MACHINE\nmain_training_function: main\nnames:\n  - one\n  - two\n", /* no Hjson */
       "ds.json:1:1: \"compute_environment\": this is", "as a ds_config.json or as flags"},
      {"{\"per_device_train_batch_size\": 2, \"bf16\": true, \"deepspeed\": \"zero2.json\"}",
       "arguments of Hugging Face's Trainer", "names: -c zero2.json"},
      {"base_model: some/model\ndatasets:\n  - path: data\ndeepspeed: zero1.json\n",
       "ds.json:1:1: \"base_model\": this is a configuration of axolotl", "-c zero1.json"},
      {"{\"model_type\": \"llama\", \"hidden_size\": 64}", "the description of a model", "give it with -m"},
      {"{\"type\": \"ds_model\", \"checkpoints\": [\"a.pt\"]}", "DeepSpeed's inference engine", "twinspeed generate"},
      {"{\"kernel_inject\": true, \"tensor_parallel\": {\"tp_size\": 2}}", "DeepSpeed's inference engine", "--tp"}};
  static const char *const verbs[] = {"check", "estimate -m gpt2", "simulate -m gpt2", "profile -m gpt2"};
  const char *path = in_folder("ds.json");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    write_text(path, cases[i].text);
    for (size_t k = 0; k < (i ? 1 : 4); k++) {
      command_result r = twinspeed("%s -c %s", verbs[k], path);
      assert_one_error(&r, 3, cases[i].says);
      ck_assert_msg(strstr(r.err, cases[i].says) && strstr(strstr(r.err, "hint: "), cases[i].hint), "%s: %s",
                    cases[i].text, r.err);
      command_free(&r);
    }
  }
}
END_TEST

/* The flags of the hint are taken, and plan what the file says. */
START_TEST(the_hint_is_a_command) {
  write_text(in_folder("ds.json"), accelerate);
  command_result r = twinspeed("estimate -m gpt2 -c %s", in_folder("ds.json"));
  const char *flags = strstr(r.err, "flags: ");
  ck_assert_msg(flags != NULL, "%s", r.err);
  flags += strlen("flags: ");
  command_result done = twinspeed("check -m gpt2 --cluster dgx-a100:2 --json %.*s", (int)strcspn(flags, "\n"), flags);
  ck_assert_msg(done.status == 0, "%s", done.err);
  cJSON *json = assert_json(&done, "twinspeed-check-1");
  const cJSON *config = cJSON_GetObjectItem(json, "config");
  const cJSON *zero = cJSON_GetObjectItem(config, "zero_optimization");
  ck_assert_int_eq(cJSON_GetObjectItem(zero, "stage")->valueint, 3);
  ck_assert_str_eq(cJSON_GetObjectItem(cJSON_GetObjectItem(zero, "offload_optimizer"), "device")->valuestring, "cpu");
  ck_assert(cJSON_IsTrue(cJSON_GetObjectItem(cJSON_GetObjectItem(config, "bf16"), "enabled")));
  ck_assert_int_eq(cJSON_GetObjectItem(config, "gradient_accumulation_steps")->valueint, 4);
  ck_assert_int_eq(cJSON_GetObjectItem(json, "ranks")->valueint, 16);
  cJSON_Delete(json);
  command_free(&done);
  command_free(&r);
}
END_TEST

/* Keys of other programs beside DeepSpeed's own are left alone, as DeepSpeed leaves them. */
START_TEST(keys_beside_deepspeeds_own) {
  static const char *const taken[] = {
      "{\"train_batch_size\": 8, \"model_type\": \"gpt2\"}",
      "{\"zero_optimization\": {\"stage\": 1}, \"per_device_train_batch_size\": 2, \"base_model\": \"m\"}",
      "{\"datasets\": {\"a\": 1}}", "{\"_comment\": \"compute_environment: none\", \"steps_per_print\": 3}"};
  for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
    write_text(in_folder("ds.json"), taken[i]);
    command_result r = twinspeed("check -c %s", in_folder("ds.json"));
    ck_assert_msg(r.status == 0, "%s: %s", taken[i], r.err);
    command_free(&r);
  }
}
END_TEST

/* ---- elasticity ---- */

static double number(const cJSON *json, const char *key) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
  ck_assert_msg(cJSON_IsNumber(item), "no number %s", key);
  return item->valuedouble;
}

#define ELASTIC "\"max_train_batch_size\": 16, \"micro_batch_sizes\": [1, 2, 4]"
#define SET_ELASTIC \
  "--set elasticity.enabled=true --set elasticity.max_train_batch_size=16 --set elasticity.micro_batch_sizes=[1,2,4]"

/* Without a file nothing puts a batch in that elasticity has to choose: of up to 16 samples 12 is what most numbers of
 * ranks divide, and 2 the largest micro batch of two ranks. */
START_TEST(elasticity_without_a_file) {
  static const char *const verbs[] = {"check", "estimate", "simulate"};
  for (int i = 0; i < 3; i++) {
    command_result r = twinspeed("%s -m tiny-gpt2 -n 2 " SET_ELASTIC " --json", verbs[i]);
    ck_assert_msg(r.status == 0, "%s: %s", verbs[i], r.err);
    cJSON *json = cJSON_Parse(r.out);
    ck_assert_double_eq(number(json, "micro_batch"), 2);
    ck_assert_double_eq(number(json, "accumulation_steps"), 3);
    ck_assert_double_eq(number(json, "train_batch"), 12);
    cJSON_Delete(json);
    command_free(&r);
  }
  assert_says("check -m tiny-gpt2 -n 2 --micro-batch 1 " SET_ELASTIC, 3, "is given, and elasticity chooses it");
  assert_says("check -m tiny-gpt2 -n 2 --set elasticity.enabled=false --json", 0, "\"micro_batch\":\t1");
}
END_TEST

/* Points have the batches that elasticity chooses for their ranks, and files that leave the choice to it. */
START_TEST(tune_leaves_batches_to_elasticity) {
  static const struct { int ranks, micro, accumulation; } chosen[] = {{1, 4, 3}, {2, 2, 3}, {4, 1, 3}, {8, 0, 0}};
  write_text(in_folder("ds.json"), "{\"elasticity\": {\"enabled\": true, " ELASTIC ", \"version\": 0.1}}");
  const char *results = in_folder("results");
  command_result r = twinspeed("tune -m gpt2 -c %s --cluster dgx-a100 --dtype bf16 -o %s --no-simulation --json",
                               in_folder("ds.json"), results);
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-tune-1"), *one;
  int seen[4] = {0};
  cJSON_ArrayForEach(one, cJSON_GetObjectItem(json, "candidates")) {
    int k = 0;
    while (k < 3 && number(one, "ranks") != chosen[k].ranks) k++;
    ck_assert_double_eq(number(one, "micro_batch"), chosen[k].micro);
    ck_assert_double_eq(number(one, "accumulation"), chosen[k].accumulation);
    seen[k]++;
  }
  ck_assert(seen[0] && seen[1] && seen[2] && !seen[3]);
  ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(json, "rejections")), 0);
  cJSON_Delete(json);
  command_free(&r);
  char path[160];
  snprintf(path, sizeof path, "%s/ds_config_optimal.json", results);
  r = twinspeed("check -m gpt2 --cluster dgx-a100 -c %s --json", path); /* accepted, and of the same batch */
  ck_assert_msg(r.status == 0, "%s", r.err);
  json = assert_json(&r, "twinspeed-check-1");
  ck_assert_double_eq(number(json, "train_batch"), 12);
  cJSON_Delete(json);
  command_free(&r);
  const char *with = in_folder("ds.json");
  char line[400];
  static const struct {
    const char *flags;
    int status;
    const char *says;
  } refused[] = {{"-b 64", 2, "--global-batch is given, and elasticity chooses the batch"},
                 {"--accumulations 2", 2, "--accumulations is given, and elasticity chooses the batch"},
                 {"--micro-batches 8", 3, "elasticity chooses none of these micro batches"},
                 {"-n 7", 3, "7 GPUs are none of the numbers that divide its batch of 12"}};
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    snprintf(line, sizeof line, "tune -m gpt2 -c %s --cluster dgx-a100 -o %s --force %s", with, results,
             refused[i].flags);
    assert_says(line, refused[i].status, refused[i].says);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("cli_config");
  TCase *tests = tcase_create("cli_config");
  tcase_add_checked_fixture(tests, make_folder, remove_folder);
  tcase_add_test(tests, files_of_other_programs);
  tcase_add_test(tests, the_hint_is_a_command);
  tcase_add_test(tests, keys_beside_deepspeeds_own);
  tcase_add_test(tests, elasticity_without_a_file);
  tcase_add_test(tests, tune_leaves_batches_to_elasticity);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
