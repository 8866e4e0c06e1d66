/* Lists of options, whose combinations are rows; the CSV of a search; built-in profiles and clusters as files. */
#include <check.h>
#include <math.h>

#include "tests/answers.h"
#include "tests/folder.h"
#include "tests/members.h"
#include "tests/suite.h"

static const char HEAD[] =
    "ranks,pp,tp,sp,ep,stage,seq,micro_batch,accumulation,train_batch,status,step_s,tokens_per_s,mfu,exposed_s,"
    "longest_path_s,device_bytes,device_limit_bytes,node_bytes,reason\n";

static char *text_of(const char *path) {
  const int fd = open(path, O_RDONLY);
  ck_assert_msg(fd >= 0, "%s", path);
  return command_slurp(fd);
}

static int lines_of(const char *text) {
  int count = 0;
  for (; (text = strchr(text, '\n')) != NULL; text++) count++;
  return count;
}

/* Each combination of the lists is one row, with the last list varying fastest, in an order that does not depend on the
 * threads; a combination that does not fit or is refused has a row with the reason. */
START_TEST(rows_in_their_order) {
  static const char options[] =
      "-m gpt2-xl --dtype bf16 --cluster dgx-a100 --pp 1,7 --stage 2,3 --seq 512,1024 "
      "--micro-batch 1,2,512";
  command_result r = twinspeed("estimate %s --csv %s", options, in_folder("points.csv"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  ck_assert_ptr_nonnull(strstr(r.out, "Assumed  runtime twinspeed"));
  ck_assert_ptr_nonnull(strstr(r.out, "refused: command line: ZeRO stage 2 does not go with pipeline parallelism"));
  char *csv = text_of(in_folder("points.csv")), *at = csv;
  ck_assert_int_eq(strncmp(csv, HEAD, sizeof HEAD - 1), 0);
  ck_assert_int_eq(lines_of(csv), 1 + 2 * 2 * 2 * 3);
  static const int pp[] = {1, 7}, stage[] = {2, 3}, seq[] = {512, 1024}, micro[] = {1, 2, 512};
  for (int i = 0; i < 24; i++) {
    char start[96];
    at = strchr(at, '\n') + 1;
    if (pp[i / 12] == 1)
      snprintf(start, sizeof start, "8,1,1,1,1,%d,%d,%d,1,%d,%s,", stage[i / 6 % 2], seq[i / 3 % 2], micro[i % 3],
               8 * micro[i % 3], micro[i % 3] == 512 ? "does not fit" : "fits");
    else
      snprintf(start, sizeof start, ",7,,,,%d,%d,%d,,,refused,,,,,,,,,", stage[i / 6 % 2], seq[i / 3 % 2],
               micro[i % 3]);
    ck_assert_msg(strncmp(at, start, strlen(start)) == 0, "row %d: %.120s, not %s", i, at, start);
    if (pp[i / 12] == 7) ck_assert_ptr_nonnull(strstr(at, "does not go with pipeline parallelism\n"));
  }
  command_free(&r);
  r = twinspeed("estimate %s --csv -", options);
  ck_assert_msg(r.status == 0 && strcmp(r.out, csv) == 0, "%s%s", r.out, r.err);
  command_free(&r);
  r = twinspeed("estimate %s --csv %s", options, in_folder("points.csv"));
  ck_assert_msg(r.status == 2 && strstr(r.err, "--csv") && strstr(r.err, "--force"), "%s", r.err);
  command_free(&r);
  free(csv);
}
END_TEST

/* Asserts that each row has the numbers that its job has alone, also in JSON. */
static void same_as_alone(const char *verb, const char *step) {
  command_result all =
      twinspeed("%s -m gpt2 --dtype bf16 --cluster dgx-a100 --seq 256,512 --micro-batch 2,4 --json", verb);
  cJSON *rows = cJSON_Parse(all.out);
  ck_assert_msg(all.status == 0 && cJSON_IsArray(rows), "%s%s", all.out, all.err);
  ck_assert_int_eq(cJSON_GetArraySize(rows), 4);
  const cJSON *row = cJSON_GetArrayItem(rows, 2);
  ck_assert_str_eq(member(row, "schema")->valuestring, "twinspeed-sweep-1");
  ck_assert(number(row, "seq") == 512 && number(row, "micro_batch") == 2);
  ck_assert_str_eq(member(row, "status")->valuestring, "fits");
  command_result one = twinspeed("%s -m gpt2 --dtype bf16 --cluster dgx-a100 --seq 512 --micro-batch 2 --json", verb);
  cJSON *alone = cJSON_Parse(one.out);
  const cJSON *time = *step ? member(alone, step) : alone;
  ck_assert_double_eq(number(row, "step_s"), number(time, "step_s"));
  ck_assert_double_eq(number(row, "tokens_per_s"), number(time, "tokens_per_s"));
  ck_assert_double_eq(number(row, "mfu"), number(time, "mfu"));
  ck_assert_double_eq(number(row, "exposed_s"), number(time, "exposed_s"));
  cJSON_Delete(alone);
  cJSON_Delete(rows);
  command_free(&one);
  command_free(&all);
}

START_TEST(a_row_is_its_job) {
  same_as_alone("estimate", "time");
  same_as_alone("simulate", "");
}
END_TEST

START_TEST(refusals_of_lists) {
  static const struct {
    const char *words;
    int status;
    const char *message, *hint;
  } cases[] = {
      {"estimate -m gpt2 --stage 2,5", 2, "--stage: 5 is outside 0 .. 3", ""},
      {"estimate -m gpt2 --seq 64,", 2, "--seq: \"\" is not a number", ""},
      {"estimate --seq 64,128", 2, "no model was given", "give -m MODEL"},
      {"estimate -m gpt2 --seq 64,128 --fit", 2, "lists and --csv ask for a row for each job", "leave out --fit"},
      {"estimate -m gpt2 --seq 64,128 --cluster dgx-b100", 3, "unknown cluster \"dgx-b100\"", "dgx-b200"},
      {"estimate -m gpt2 --csv - --json", 2, "--json and --csv - both go to standard output", ""},
      {"estimate -m gpt2-xl --cluster a100 --micro-batch 4096,8192 --seq 1024", 1, "none of the 2 points fits", ""},
      {"simulate -m gpt2 --seq 64,128 --trace step.json", 2, "lists ask for a row for each job", "--trace"},
      {"train -m gpt2 --seq 64,128", 2, "--seq: \"64,128\" is not a number", ""},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    command_result r = twinspeed("%s", cases[i].words);
    ck_assert_msg(r.status == cases[i].status, "%s: exit %d: %s", cases[i].words, r.status, r.err);
    ck_assert_msg(strstr(r.err, cases[i].message) && strstr(r.err, cases[i].hint), "%s: %s", cases[i].words, r.err);
    command_free(&r);
  }
  command_result r = twinspeed("estimate -m gpt2 --seq 64,128 --seq 256 --cluster a100 --json");
  cJSON *json = assert_json(&r, "twinspeed-estimate-1"); /* the last one counts */
  cJSON_Delete(json);
  command_free(&r);
}
END_TEST

/* The CSV of a search has all its points, not only the rows that are printed. */
START_TEST(csv_of_a_search) {
  command_result r = twinspeed(
      "tune -m gpt2-xl --seq 1024 --dtype bf16 --cluster dgx-a100 --stages 1,2,3 --micro-batches 1,2 --recomputes none "
      "--axes off --no-simulation -n 8 --memory 11.5GiB --rows 1 -o %s --csv %s",
      in_folder("tuned"), in_folder("tuned.csv"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  char *csv = text_of(in_folder("tuned.csv"));
  ck_assert_int_eq(strncmp(csv, "stage,micro_batch,accumulation,recompute,parallel,", 50), 0);
  ck_assert_ptr_nonnull(
      strstr(csv, ",status,simulated,step_s,tokens_per_s,measured_s,needed_bytes,available_bytes,reason\n"));
  ck_assert_msg(lines_of(csv) == 1 + 6, "%s", csv);
  for (int stage = 1; stage <= 3; stage++)
    for (int micro = 1; micro <= 2; micro++) {
      char start[64];
      const int fits = stage == 3 || micro == 1;
      snprintf(start, sizeof start, "%d,%d,1,none,,,,,8,,%s,no,%s", stage, micro, fits ? "fits" : "does not fit",
               fits ? "0." : ",,,");
      ck_assert_msg(count_lines_with(csv, start) == 1, "%s: %s", start, csv);
    }
  ck_assert_ptr_nonnull(strstr(csv, ",device memory: mostly activations\n"));
  free(csv);
  command_free(&r);
}
END_TEST

/* ---- built-in profiles and clusters as files ---- */

START_TEST(profile_as_a_file) {
  command_result r = twinspeed("convert profile l40s %s", in_folder("l40s.json"));
  ck_assert_msg(r.status == 0 && !*r.out, "%s%s", r.out, r.err);
  command_free(&r);
  char *file = text_of(in_folder("l40s.json"));
  r = twinspeed("convert profile l40s -");
  ck_assert_msg(r.status == 0 && strcmp(r.out, file) == 0, "%s", r.err);
  cJSON *json = cJSON_Parse(file);
  ck_assert_double_eq(number(member(member(json, "figures"), "peak.bf16"), "value"), 362.05);
  ck_assert_str_eq(member(member(member(json, "figures"), "tdp_w"), "confidence")->valuestring, "sourced");
  cJSON_Delete(json);
  command_free(&r);
  command_result own = twinspeed("estimate -m gpt2 --profile l40s -n 2 --json"),
                 again = twinspeed("estimate -m gpt2 --profile %s -n 2 --json", in_folder("l40s.json"));
  cJSON *first = assert_json(&own, "twinspeed-estimate-1"), *second = assert_json(&again, "twinspeed-estimate-1");
  ck_assert_double_eq(number(member(first, "time"), "step_s"), number(member(second, "time"), "step_s"));
  cJSON_Delete(first);
  cJSON_Delete(second);
  command_free(&own);
  command_free(&again);
  free(file);
  r = twinspeed("convert profile l40s %s", in_folder("l40s.json"));
  ck_assert_msg(r.status == 2 && strstr(r.err, "--force"), "%s", r.err);
  command_free(&r);
  r = twinspeed("convert profile l04s -");
  ck_assert_msg(r.status == 3 && strstr(r.err, "\"l04s\" is no built-in hardware profile") &&
                    strstr(r.err, "built in: l40s, l4, l40, "),
                "%s", r.err);
  command_free(&r);
}
END_TEST

/* The lists that hints refer to contain every cluster, and every device as a node with one of it. */
START_TEST(lists_of_names) {
  command_result r = twinspeed("convert list clusters");
  ck_assert_msg(r.status == 0 && strstr(r.out, "dgx-a100\n") && strstr(r.out, "\nrtx-4090\n"), "%s%s", r.out, r.err);
  command_free(&r);
  r = twinspeed("convert list models --json");
  cJSON *json = cJSON_Parse(r.out);
  ck_assert_int_gt(cJSON_GetArraySize(cJSON_GetObjectItem(json, "models")), 5);
  cJSON_Delete(json);
  command_free(&r);
  r = twinspeed("convert list boxes");
  ck_assert_msg(r.status == 2 && strstr(r.err, "\"boxes\" is no kind of name"), "%s", r.err);
  command_free(&r);
}
END_TEST

/* Training adapters of Llama 3 8B takes 18.0 GB with frozen weights in 16 bits (16.06 GB) and 8.2 GB with those in 4
 * bits. A card has the memory that CUDA reports or, where that is not published, 0.99 of what nvidia-smi prints. */
START_TEST(cards_by_their_memory) {
  static const struct {
    const char *card, *base;
    double have_bytes;
    int fits;
  } cases[] = {{"rtx-4080", "none", 16049 * 1048576.0, 0},
               {"rtx-4080", "nf4", 16049 * 1048576.0, 1},
               {"rtx-3060", "none", 11938 * 1048576.0, 0},
               {"rtx-4000-ada", "none", 20475 * 1048576.0 * 0.99, 1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    command_result r = twinspeed(
        "estimate -m llama-3-8b --cluster %s --dtype fp16 --micro-batch 1 --seq 1024 --recompute full --json --quiet "
        "--set twinspeed.lora.r=8 --set twinspeed.lora.target_modules=all-linear "
        "--set twinspeed.frozen_quantization.type=%s",
        cases[i].card, cases[i].base);
    ck_assert_msg(r.status == !cases[i].fits, "%s: exit %d: %s", cases[i].card, r.status, r.err);
    cJSON *json = cJSON_Parse(r.out);
    const cJSON *verdict = member(json, "verdict");
    ck_assert_int_eq(cJSON_IsTrue(member(verdict, "fits")), cases[i].fits);
    ck_assert_double_eq(number(verdict, "device_have_bytes"), floor(cases[i].have_bytes));
    cJSON_Delete(json);
    command_free(&r);
  }
}
END_TEST

START_TEST(cluster_as_a_file) {
  command_result r = twinspeed("convert cluster azure-standard-nd96isr-mi300x-v5:4 %s", in_folder("cluster.json"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  command_result own = twinspeed(
                     "estimate -m gpt2-xl --dtype bf16 --stage 3 --cluster azure-standard-nd96isr-mi300x-v5:4 "
                     "--json"),
                 again = twinspeed("estimate -m gpt2-xl --dtype bf16 --stage 3 --cluster %s --json",
                                   in_folder("cluster.json"));
  cJSON *first = assert_json(&own, "twinspeed-estimate-1"), *second = assert_json(&again, "twinspeed-estimate-1");
  ck_assert_double_eq(number(member(first, "time"), "step_s"), number(member(second, "time"), "step_s"));
  cJSON_Delete(first);
  cJSON_Delete(second);
  command_free(&own);
  command_free(&again);
  r = twinspeed("convert cluster %s -", in_folder("cluster.json"));
  ck_assert_msg(r.status == 2 && strstr(r.err, "is a file already"), "%s", r.err);
  command_free(&r);
  r = twinspeed("convert cluster dgx-h100");
  ck_assert_msg(r.status == 2 && strstr(r.err, "convert cluster: a name and a file"), "%s", r.err);
  command_free(&r);
}
END_TEST

START_TEST(schemas_are_printed) {
  static const char *const flags[] = {"--print-schema", "--print-profile-schema", "--print-cluster-schema"};
  for (int i = 0; i < 3; i++) {
    command_result r = twinspeed("check %s", flags[i]);
    cJSON *json = cJSON_Parse(r.out);
    ck_assert_msg(r.status == 0 && json != NULL, "%s: %s", flags[i], r.err);
    ck_assert_str_eq(member(json, "$schema")->valuestring, "https://json-schema.org/draft/2020-12/schema");
    cJSON_Delete(json);
    command_free(&r);
  }
}
END_TEST

/* ---- hardware that no engine runs on ---- */

START_TEST(others_are_planned_alone) {
  write_text(in_folder("text.txt"), "some text to train on, some text to train on");
  static const char *const refused[] = {"train -m gpt2 --seq 8 --steps 1 --cluster intel-hls-gaudi2 --data %s",
                                        "tune -m gpt2 --seq 8 -b 8 --cluster intel-hls-gaudi2 --validate 1 --data %s",
                                        "validate -m gpt2 --seq 8 --profile gaudi2 --data %s"};
  for (int i = 0; i < 3; i++) {
    char words[512];
    snprintf(words, sizeof words, "%.200s -o %s", refused[i], in_folder("refused"));
    char *end = strstr(words, " -o ");
    if (i != 1) *end = '\0';
    char line[1024];
    snprintf(line, sizeof line, words, in_folder("text.txt"));
    command_result r = twinspeed("%s", line);
    ck_assert_msg(r.status == 3 && strstr(r.err, "no engine of this program runs on gaudi2 (backend \"other\")"),
                  "%s: %d %s", line, r.status, r.err);
    command_free(&r);
  }
  command_result r = twinspeed("calibrate --device other -o %s", in_folder("other.json"));
  ck_assert_msg(r.status == 3 && strstr(r.err, "no engine of this program runs on hardware of backend \"other\""), "%s",
                r.err);
  command_free(&r);
  r = twinspeed("simulate -m gpt2 --cluster intel-hls-gaudi2 --stage 2 --dtype bf16");
  ck_assert_msg(r.status == 0 && strstr(r.out, "product rate 0.87 of the peak, by published\n"), "%s%s", r.out, r.err);
  command_free(&r);
  r = twinspeed("estimate -m gpt2 --cluster atlas-800-a3-cloudmatrix384-node --dtype bf16 --json");
  cJSON *json = assert_json(&r, "twinspeed-estimate-1"), *one;
  const char *reason = "";
  cJSON_ArrayForEach(one, member(json, "assumptions")) {
    if (strcmp(member(one, "what")->valuestring, "product rate") == 0) reason = member(one, "reason")->valuestring;
  }
  ck_assert_str_eq(reason, "by data sheet, not measured on ascend-910c");
  cJSON_Delete(json);
  command_free(&r);
}
END_TEST

int main(void) {
  Suite *s = suite_create("cli_lists");
  TCase *c = tcase_create("cli_lists");
  tcase_add_checked_fixture(c, make_folder, remove_folder);
  tcase_add_test(c, rows_in_their_order);
  tcase_add_test(c, a_row_is_its_job);
  tcase_add_test(c, refusals_of_lists);
  tcase_add_test(c, csv_of_a_search);
  tcase_add_test(c, profile_as_a_file);
  tcase_add_test(c, cluster_as_a_file);
  tcase_add_test(c, lists_of_names);
  tcase_add_test(c, cards_by_their_memory);
  tcase_add_test(c, schemas_are_printed);
  tcase_add_test(c, others_are_planned_alone);
  suite_add_tcase(s, c);
  return run_suite(s);
}
