/* ctest: sampled */
/* Answers list the values that they assumed, and the same values given explicitly give the same answer. */
#include <check.h>
#include <math.h>

#include "tests/answers.h"
#include "tests/folder.h"
#include "tests/members.h"
#include "tests/sample.h"
#include "tests/sanitized.h"
#include "tests/suite.h"

static const char dense[] =
    "{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": 256, "
    "\"intermediate_size\": 512, \"num_attention_heads\": 4, \"vocab_size\": 1024, "
    "\"max_position_embeddings\": 2048, \"torch_dtype\": \"bfloat16\"}";
static const char sparse[] =
    "{\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": 2, \"hidden_size\": 256, "
    "\"intermediate_size\": 512, \"num_attention_heads\": 4, \"num_key_value_heads\": 4, "
    "\"head_dim\": 64, \"vocab_size\": 1024, \"max_position_embeddings\": 2048, "
    "\"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 128, "
    "\"decoder_sparse_step\": 1, \"norm_topk_prob\": true, \"tie_word_embeddings\": false}";

static const cJSON *assumption(const cJSON *json, const char *what) {
  const cJSON *one;
  cJSON_ArrayForEach(one, member(json, "assumptions")) {
    if (strcmp(member(one, "what")->valuestring, what) == 0) return one;
  }
  return NULL;
}

static int count_text(const char *text, const char *what) {
  int count = 0;
  for (const char *at = text; (at = strstr(at, what)) != NULL; at += strlen(what)) count++;
  return count;
}

static void assert_assumed(const cJSON *json, const char *what, const char *value, const char *words) {
  const cJSON *one = assumption(json, what);
  ck_assert_msg(!value == !one, "%s: %s", words, what);
  if (one) ck_assert_str_eq(member(one, "value")->valuestring, value);
}

/* Answers list the assumed values and not the given ones: in JSON, and once in the text. */
START_TEST(assumed_or_given) {
  static const struct {
    const char *model, *words, *value[6];
  } cases[] = {{"dense.json",
                "--cluster dgx-a100:2",
                {"twinspeed", "bf16", "2,048 tokens", NULL, "none", "8 of 25 GB/s a node"}},
               {"dense.json",
                "--cluster dgx-a100 --runtime megatron --dtype fp16 --seq 512",
                {NULL, NULL, NULL, NULL, "none", NULL}},
               {"sparse.json", "--cluster dgx-a100 --seq 512", {"twinspeed", "fp32", NULL, "1.25", "none", NULL}},
               {"sparse.json",
                "--cluster dgx-a100 --set twinspeed.expert_capacity_factor=1.25 --dtype bf16",
                {"twinspeed", NULL, "2,048 tokens", NULL, "none", NULL}},
               {"sparse.json",
                "--cluster dgx-a100 --set twinspeed.expert_dropless=true --dtype bf16",
                {"twinspeed", NULL, "2,048 tokens", NULL, "none", NULL}},
               {"dense.json",
                "--cluster @ --dtype bf16 --seq 64 --runtime fsdp",
                {NULL, NULL, NULL, NULL, NULL, "1 of 12.5 GB/s a node"}},
               {"dense.json", "--dtype bf16 --seq 64", {NULL, NULL, NULL, NULL, NULL, NULL}}};
  static const char *const names[] = {"runtime",       "type", "sequence length", "expert capacity factor",
                                      "memory margin", "NICs"};
  write_text(in_folder("dense.json"), dense);
  write_text(in_folder("sparse.json"), sparse);
  write_text(in_folder("cluster.json"),
             "{\"schema\": \"twinspeed-cluster-1\", \"profile\": \"a100-80gb\", \"nodes\": 2, \"devices_per_node\": 4, "
             "\"device_memory\": \"70GiB\", \"intra\": {\"bandwidth\": \"300 GB/s\", \"latency_s\": 2e-6}, "
             "\"inter\": {\"bandwidth\": \"12.5 GB/s\", \"latency_s\": 5e-6}}");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char words[512];
    const char *at = strchr(cases[i].words, '@');
    snprintf(words, sizeof words, "-m %s %.*s%s%s", in_folder(cases[i].model),
             at ? (int)(at - cases[i].words) : (int)strlen(cases[i].words), cases[i].words,
             at ? in_folder("cluster.json") : "", at ? at + 1 : "");
    command_result r = twinspeed("estimate %s --json", words), text = twinspeed("estimate %s", words);
    ck_assert_msg(r.status == 0, "%s: %s", words, r.err);
    cJSON *json = assert_json(&r, "twinspeed-estimate-1");
    int expected = 0;
    for (int k = 0; k < 6; k++) {
      assert_assumed(json, names[k], cases[i].value[k], words);
      expected += cases[i].value[k] != NULL;
    }
    ck_assert_int_eq(cJSON_GetArraySize(member(json, "assumptions")), expected);
    ck_assert_int_eq(count_text(text.out, "\nAssumed  "), expected > 0);
    ck_assert_msg(!strstr(text.err, "as the model's file has it"), "%s", text.err); /* once */
    cJSON_Delete(json);
    command_free(&r);
    command_free(&text);
  }
}
END_TEST

START_TEST(every_verb_says_it) {
  static const char *const verbs[] = {"estimate",
                                      "check",
                                      "simulate",
                                      "profile",
                                      "tune --no-simulation --force -o @",
                                      "estimate --fit",
                                      "tune --no-simulation -b 64 --sweep net.bandwidth=100..800G"};
  write_text(in_folder("dense.json"), dense);
  for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
    char line[512];
    if (TWS_SANITIZED && !strchr(verbs[i], '@') && !takes(i, 3)) continue;
    const char *at = strchr(verbs[i], '@');
    snprintf(line, sizeof line, "%.*s%s -m %s --cluster dgx-a100", at ? (int)(at - verbs[i]) : (int)strlen(verbs[i]),
             verbs[i], at ? in_folder("tuned") : "", in_folder("dense.json"));
    command_result text = twinspeed("%s", line), r = twinspeed("%s --json", line);
    ck_assert_msg(count_text(text.out, "Assumed  ") + count_text(text.err, "note: assumed: ") == 1, "%s: %s%s", line,
                  text.out, text.err);
    cJSON *json = cJSON_Parse(r.out);
    ck_assert_msg(json != NULL, "%s: %s", line, r.out);
    assert_assumed(json, "type", "bf16", line);
    assert_assumed(json, "sequence length", "2,048 tokens", line);
    assert_assumed(json, "runtime", "twinspeed", line);
    cJSON_Delete(json);
    command_free(&text);
    command_free(&r);
  }
  static const char *const reports[] = {"report.html", "report.md", "summary.txt"};
  for (size_t i = 0; i < sizeof reports / sizeof *reports; i++) {
    char path[256];
    snprintf(path, sizeof path, "tuned/%s", reports[i]);
    char *text = command_slurp(open(in_folder(path), O_RDONLY));
    ck_assert_msg(count_text(text, "ssumed: ") == 1 && strstr(text, "2,048 tokens") && strstr(text, "untime twinspeed"),
                  "%s: %s", path, text);
    free(text);
  }
}
END_TEST

/* ---- commands that give the same answer ---- */

/* Runs the command in a search's folder that predicts a configuration again, and returns its seconds. */
static double predicted_again(const char *file, const char *before) {
  char *text = command_slurp(open(in_folder(file), O_RDONLY)), line[2048];
  const char *at = strstr(text, before);
  ck_assert_msg(at != NULL, "no \"%s\" in %s", before, text);
  at += strlen(before);
  snprintf(line, sizeof line, "%.*s --json", (int)strcspn(at, "\n"), at);
  command_result r = twinspeed("%s", line);
  ck_assert_msg(r.status == 0, "%s: %s", line, r.err);
  cJSON *json = cJSON_Parse(r.out);
  const double step = number(json, "step_s");
  cJSON_Delete(json);
  command_free(&r);
  free(text);
  return step;
}

static double best_step(const char *file, const char *runtime) {
  char *text = command_slurp(open(in_folder(file), O_RDONLY));
  cJSON *json = cJSON_Parse(text);
  ck_assert_ptr_nonnull(json);
  ck_assert_str_eq(member(json, "runtime")->valuestring, runtime);
  ck_assert_str_eq(member(json, "dtype")->valuestring, "fp16");
  ck_assert_double_eq(number(json, "sequence_length"), 1024);
  const double step = number(member(json, "best"), "simulated_step_s");
  cJSON_Delete(json);
  free(text);
  return step;
}

/* With another runtime, type and length than the model's file has, the commands that a search writes name them. */
START_TEST(commands_give_the_same_answer) {
  static const struct {
    const char *runtime, *before;
  } cases[] = {{"megatron", "twinspeed "}, {"twinspeed", "# predicted by: twinspeed "}};
  write_text(in_folder("dense.json"), dense);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char results[64], commands[64];
    snprintf(results, sizeof results, "%s/results.json", cases[i].runtime);
    snprintf(commands, sizeof commands, "%s/cmd_optimal.txt", cases[i].runtime);
    command_result r = twinspeed("tune -m %s --cluster dgx-a100 -b 64 --dtype fp16 --seq 1024 --runtime %s -o %s -q",
                                 in_folder("dense.json"), cases[i].runtime, in_folder(cases[i].runtime));
    ck_assert_msg(r.status == 0, "%s", r.err);
    ck_assert_double_eq_tol(predicted_again(commands, cases[i].before) / best_step(results, cases[i].runtime), 1, 1e-9);
    command_free(&r);
  }
}
END_TEST

/* Results of two runtimes are two rows of a report, each of which names its runtime. */
START_TEST(reports_name_runtimes) {
  write_text(in_folder("dense.json"), dense);
  static const char *const runtimes[] = {"twinspeed", "fsdp"};
  for (int i = 0; i < 2; i++) {
    command_result r =
        twinspeed("estimate -m %s --cluster dgx-a100 --runtime %s --json", in_folder("dense.json"), runtimes[i]);
    write_text(in_folder(runtimes[i]), r.out);
    command_free(&r);
  }
  command_result r = twinspeed("report %s %s --json", in_folder("twinspeed"), in_folder("fsdp"));
  cJSON *json = assert_json(&r, "twinspeed-report-1");
  const cJSON *list = member(json, "configurations");
  ck_assert_int_eq(cJSON_GetArraySize(list), 2);
  for (int i = 0; i < 2; i++) {
    const cJSON *one = cJSON_GetArrayItem(list, i);
    ck_assert_str_eq(member(one, "runtime")->valuestring, runtimes[i]);
    ck_assert_str_eq(member(one, "dtype")->valuestring, "bf16");
    ck_assert_double_eq(number(one, "sequence_length"), 2048);
  }
  cJSON_Delete(json);
  command_free(&r);
  r = twinspeed("report %s %s", in_folder("twinspeed"), in_folder("fsdp"));
  ck_assert_msg(strstr(r.out, "runtime") && strstr(r.out, "fsdp"), "%s", r.out);
  command_free(&r);
}
END_TEST

START_TEST(cases_name_their_schema) {
  command_result r = twinspeed(
      "validate --cases %s/scenarios/published/measured_runs.json --group megatron2020-v100 --json", TWS_SOURCE_DIR);
  cJSON *json = assert_json(&r, "twinspeed-cases-1");
  ck_assert_int_gt(cJSON_GetArraySize(member(json, "cases")), 0);
  ck_assert_str_eq(member(json, "times")->valuestring, "estimated");
  cJSON_Delete(json);
  command_free(&r);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("cli_assumed");
  TCase *tcase = tcase_create("cli_assumed");
  tcase_set_timeout(tcase, 300);
  tcase_add_checked_fixture(tcase, make_folder, remove_folder);
  tcase_add_test(tcase, assumed_or_given);
  tcase_add_test(tcase, every_verb_says_it);
  tcase_add_test(tcase, commands_give_the_same_answer);
  tcase_add_test(tcase, reports_name_runtimes);
  tcase_add_test(tcase, cases_name_their_schema);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
