/* Configurations on the command line: files of other programs, elasticity without batches, the values of "auto". */
/* ctest: mpi */
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

/* A file of another program is refused as a configuration: because DeepSpeed ignores unknown top-level keys, such a
 * file would mean a job without ZeRO. */
START_TEST(files_of_other_programs) {
  static const struct {
    const char *text, *says, *hint;
  } cases[] = {
      {"{\n  \"compute_environment\": \"LOCAL_MACHINE\",\n  \"deepspeed_config\": {\n    \"deepspeed_config_file\": "
       "\"conf/zero3.json\",\n    \"zero3_init_flag\": true\n  }\n}\n",
       "ds.json:2:3: \"compute_environment\": this is", "names: -c conf/zero3.json"},
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

/* A configuration of accelerate plans the job that it describes. */
START_TEST(accelerate_is_read) {
  write_text(in_folder("ds.json"), accelerate);
  command_result done =
      twinspeed("check -m gpt2 --cluster dgx-a100:2 --micro-batch 1 --json -c %s", in_folder("ds.json"));
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
  command_result r = twinspeed("check -m gpt2 -c %s", in_folder("ds.json")); /* the launch line has the batch */
  assert_one_error(&r, 3, "train_micro_batch_size_per_gpu is needed");
  command_free(&r);
}
END_TEST

/* Other programs' keys in a DeepSpeed configuration are ignored, as DeepSpeed ignores them. */
START_TEST(keys_of_other_programs) {
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

/* Elasticity chooses the batch although no file gives one: of up to 16 samples 12 is the batch that most numbers of
 * ranks divide, and 2 is the largest micro-batch for two ranks. */
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

/* Points of a search have the batches that elasticity chooses for their ranks, and the files that tune writes leave the
 * choice to elasticity. */
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
  r = twinspeed("check -m gpt2 --cluster dgx-a100 -c %s --json", path); /* check accepts the written file and computes
                                                                         * the same batch */
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

/* ---- "auto" ---- */

#define AUTOMATIC                                                                                              \
  "{\"fp16\": {\"enabled\": \"auto\"}, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\"}}, " \
  "\"scheduler\": {\"type\": \"%s\", \"params\": {\"warmup_min_lr\": 0, \"warmup_max_lr\": \"auto\", "         \
  "\"warmup_num_steps\": "                                                                                     \
  "\"auto\", \"warmup_type\": \"linear\"%s}}, \"train_micro_batch_size_per_gpu\": \"auto\"}"

static void write_automatic(const char *schedule, const char *more) {
  char text[600];
  snprintf(text, sizeof text, AUTOMATIC, schedule, more);
  write_text(in_folder("auto.json"), text);
}

static const cJSON *value_at(const cJSON *json, const char *section, const char *key) {
  const cJSON *at = cJSON_GetObjectItem(cJSON_GetObjectItem(json, "config"), section);
  const cJSON *params = cJSON_GetObjectItem(at, "params");
  return cJSON_GetObjectItem(params ? params : at, key);
}

/* The effective configuration and one note state the values taken for "auto"; the flags that the note names set
 * them. */
START_TEST(resolved_auto_values) {
  static const char note[] =
      "\"auto\" is taken as: fp16.enabled false, optimizer.params.lr 0.001, scheduler.params.warmup_max_lr 0.001, "
      "scheduler.params.warmup_num_steps 1000; --learning-rate, --warmup-steps and --dtype set them";
  static const char *const verbs[] = {"check", "estimate", "simulate", "profile"};
  char line[500];
  write_automatic("WarmupLR", "");
  for (int i = 0; i < 4; i++) {
    snprintf(line, sizeof line, "%s -m tiny-gpt2 -c %s --micro-batch 1", verbs[i], in_folder("auto.json"));
    command_result r = twinspeed("%s", line);
    const char *says = strstr(r.err, note);
    ck_assert_msg(r.status == 0 && says && !strstr(says + 1, "\"auto\" is"), "%s: %s", line, r.err);
    command_free(&r);
  }
  for (int flags = 0; flags < 2; flags++) {
    command_result r = twinspeed("check -m tiny-gpt2 -c %s --micro-batch 1 --json %s", in_folder("auto.json"),
                                 flags ? "--learning-rate 3e-5 --warmup-steps 50 --dtype bf16" : "");
    ck_assert_msg(r.status == 0, "%s", r.err);
    cJSON *json = assert_json(&r, "twinspeed-check-1");
    const cJSON *notes = cJSON_GetObjectItem(json, "notes");
    ck_assert_double_eq(value_at(json, "optimizer", "lr")->valuedouble, flags ? 3e-5 : 1e-3);
    ck_assert_double_eq(value_at(json, "scheduler", "warmup_max_lr")->valuedouble, flags ? 3e-5 : 1e-3);
    ck_assert_int_eq(value_at(json, "scheduler", "warmup_num_steps")->valueint, flags ? 50 : 1000);
    ck_assert_int_eq(cJSON_IsTrue(value_at(json, "bf16", "enabled")), flags);
    if (flags)
      ck_assert(!notes->child || !strstr(notes->child->valuestring, "\"auto\""));
    else
      ck_assert_str_eq(notes->child->valuestring, note);
    cJSON_Delete(json);
    command_free(&r);
  }
}
END_TEST

/* Flags of the learning rate override the file, as all flags do; schedules that do not follow them are refused. */
START_TEST(flags_of_learning) {
  static const struct {
    const char *schedule, *more, *flags;
    int status;
    const char *says;
  } cases[] = {
      {"WarmupDecayLR", ", \"total_num_steps\": \"auto\"", "--learning-rate 2e-4", 0, "\"warmup_max_lr\":\t0.0002"},
      {"WarmupDecayLR", ", \"total_num_steps\": 70", "--warmup-steps 7", 0, "\"warmup_num_steps\":\t7"},
      {"WarmupLR", ", \"last_batch_iteration\": -1", "--learning-rate 0.5 --set optimizer.params.lr=1", 0,
       "\"lr\":\t0.5"}};
  char line[500];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    write_automatic(cases[i].schedule, cases[i].more);
    snprintf(line, sizeof line, "check -c %s --json %s", in_folder("auto.json"), cases[i].flags);
    assert_says(line, cases[i].status, cases[i].says);
  }
  assert_says("check -m tiny-gpt2 --warmup-steps 5", 3, "--warmup-steps: the schedule (none) has no warm-up");
  assert_says("check -m tiny-gpt2 --warmup-steps 5 --set scheduler.type=WarmupLR --json", 0,
              "\"warmup_num_steps\":\t5");
  assert_says("check -m tiny-gpt2 --learning-rate 1 --set scheduler.type=OneCycle", 3,
              "--learning-rate: the schedule OneCycle sets the learning rate itself");
  assert_says("check -m tiny-gpt2 --learning-rate 1 --set scheduler.type=LRRangeTest", 3, "lr_range_test_min_lr");
  assert_says("check -m tiny-gpt2 --learning-rate 0", 2, "--learning-rate: 0 is outside");
}
END_TEST

/* Ranks receive the learning rate of the flags: with 4 linear warm-up steps, step k has (k - 2)/4 of the rate, and the
 * first two have 0. */
START_TEST(ranks_learn_at_the_given_rate) {
  char text[4096 + 1];
  memset(text, 'a', sizeof text - 1);
  text[sizeof text - 1] = '\0';
  write_text(in_folder("text"), text);
  write_automatic("WarmupLR", "");
  command_result r = twinspeed(
      "train -m tiny-gpt2 -c %s --seq 32 --micro-batch 1 -n 2 --threads 1 --steps 4 --data %s --csv %s --quiet "
      "--learning-rate 0.02 --warmup-steps 4",
      in_folder("auto.json"), in_folder("text"), in_folder("steps.csv"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  char *csv;
  size_t length;
  ck_assert_int_eq(tws_read_file(in_folder("steps.csv"), 0, &csv, &length, NULL), TWS_OK);
  static const double rates[] = {0, 0, 0.005, 0.01};
  const char *at = csv;
  for (int i = 0; i < 4; i++) {
    double rate;
    at = strchr(at, '\n') + 1;
    ck_assert_msg(sscanf(at, "%*d,%*f,%lf", &rate) == 1, "%s", csv);
    ck_assert_double_eq_tol(rate, rates[i], 1e-9);
  }
  tws_free(csv);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("cli_config");
  TCase *tests = tcase_create("cli_config");
  tcase_add_checked_fixture(tests, make_folder, remove_folder);
  tcase_add_test(tests, files_of_other_programs);
  tcase_add_test(tests, accelerate_is_read);
  tcase_add_test(tests, keys_of_other_programs);
  tcase_add_test(tests, elasticity_without_a_file);
  tcase_add_test(tests, tune_leaves_batches_to_elasticity);
  tcase_add_test(tests, resolved_auto_values);
  tcase_add_test(tests, flags_of_learning);
  tcase_add_test(tests, ranks_learn_at_the_given_rate);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
