/* Times of other software: the runtime that a run used, and the interval in which nine of ten such runs lie. */
#include <math.h>
#include <stdio.h>

#include "command.h"
#include "models/hardware/runtime.h"
#include "tests/published.h"
#include "tests/suite.h"

/* A framework without a rule is refused with the list of runtimes, a runtime's name means that runtime, and other
 * programs are recognized by their usual names. */
START_TEST(unknown_software_is_refused) {
  static const struct {
    const char *framework, *runtime; /* NULL: refused */
  } known[] = {{"Colossal-AI 0.3", NULL},
               {"pytorch", NULL},
               {"megatron-2022", "megatron-2022"},
               {"fsdp", "fsdp"},
               {"MaxText (JAX/XLA)", "maxtext"},
               {"llm.c", "llm.c"},
               {"NeMo AutoModel (PyTorch, TE, DeepEP)", "automodel"},
               {"fms-fsdp", "fms-fsdp"},
               {"nanotron 0.4", "nanotron"},
               {"DeepSpeed 0.14", "deepspeed"}};
  enum { KNOWN = sizeof known / sizeof *known };
  tws_text text = {0};
  tws_text_add(&text, "[" ROW_OF("", "unnamed", "1", "1", "false"));
  for (int i = 0; i < KNOWN; i++)
    tws_text_add(&text, "," ROW_OF(",\"framework\":\"%s\"", "%d", "1", "1", "false"), i, known[i].framework);
  tws_text_add(&text, "]");
  tws_cases *cases = cases_of(text.data, TWS_OK, "");
  for (int i = 0; i <= KNOWN; i++) {
    const char *expected = i ? known[i - 1].runtime : NULL;
    tws_job *job;
    tws_error err = {0};
    const tws_code code = tws_case_job(cases, i, &job, &err);
    if (expected) {
      ck_assert_msg(code == TWS_OK, "%s: %s", known[i - 1].framework, err.message);
      ck_assert_str_eq(tws_profile_runtime(job->profile)->name, expected);
      tws_job_destroy(job);
      continue;
    }
    ck_assert_int_eq(code, TWS_UNSUPPORTED);
    if (i) ck_assert_msg(strstr(err.message, known[i - 1].framework) != NULL, "%s", err.message);
    ck_assert_msg(strstr(err.message, "hardware.framework") != NULL, "%s", err.message);
    for (const char *const *name = tws_runtime_names(); *name; name++)
      ck_assert_msg(strstr(err.message, *name) != NULL, "%s is not in: %s", *name, err.message);
  }
  tws_cases_destroy(cases);
  tws_text_free(&text);
}
END_TEST

static double member(const cJSON *object, const char *name) {
  const cJSON *item = cJSON_GetObjectItem(object, name);
  ck_assert_msg(cJSON_IsNumber(item), "no %s", name);
  return item->valuedouble;
}

static cJSON *answer(const char *command) {
  command_result r = twinspeed("%s --json", command);
  cJSON *json = cJSON_Parse(r.out);
  ck_assert_msg(json != NULL && r.status < 2, "%s: %s", command, r.err);
  command_free(&r);
  return json;
}

/* Nine of ten runs that are reported, and not used to fit the intervals, have step times within their intervals, in all
 * and for each runtime with at least twenty such runs. */
START_TEST(nine_of_ten_lie_inside) {
  int count, runs = 0, inside = 0;
  const tws_evidence_run *known = tws_evidence_runs(&count);
  for (int i = 0; i < count; i++) {
    int of_runtime = 0, inside_of_runtime = 0;
    const char *runtime = known[i].key.runtime;
    int first = 1;
    for (int j = 0; j < i; j++) first &= strcmp(known[j].key.runtime, runtime) != 0;
    for (int j = i; first && j < count; j++) {
      if (known[j].part != TWS_EVIDENCE_REPORTED || strcmp(known[j].key.runtime, runtime) != 0) continue;
      const tws_evidence e = tws_evidence_of(&known[j].key);
      const double factor = known[j].measured_s / known[j].key.predicted_s;
      ck_assert(e.low > 0 && e.low < e.high && e.high < 4);
      inside_of_runtime += factor >= e.low && factor <= e.high;
      of_runtime++;
    }
    if (of_runtime >= 20) {
      printf("%s: %d of %d reported steps lie inside\n", runtime, inside_of_runtime, of_runtime);
      ck_assert_msg(inside_of_runtime >= 0.85 * of_runtime, "%s: %d of %d", runtime, inside_of_runtime, of_runtime);
    }
    runs += of_runtime;
    inside += inside_of_runtime;
  }
  printf("all: %d of %d\n", inside, runs);
  ck_assert_int_gt(runs, 600);
  ck_assert_msg(inside >= 0.85 * runs && inside <= 0.95 * runs, "%d of %d", inside, runs);
}
END_TEST

/* A job that is far from every run has a wider interval than one that equals a run, and the centers of both are close
 * to 1. */
START_TEST(intervals_widen_with_distance) {
  int count;
  const tws_evidence_run *known = tws_evidence_runs(&count);
  for (int i = 0; i < count; i += 100) {
    tws_evidence_key key = known[i].key;
    const tws_evidence own = tws_evidence_of(&key);
    key.runtime = "another";
    key.gpus *= 64;
    const tws_evidence other = tws_evidence_of(&key);
    ck_assert_int_eq(own.kind, TWS_EVIDENCE_PUBLISHED);
    ck_assert_int_eq(other.kind, TWS_EVIDENCE_FAR);
    ck_assert_double_gt(own.runs, other.runs);
    ck_assert_double_gt(other.high / other.low, 1.3);
    ck_assert(other.low < 1 && other.high > 1);
  }
}
END_TEST

/* Every verb that predicts a step prints an interval around it; the evidence for a host is its own profile. */
START_TEST(verbs_say_the_interval) {
  static const char job[] = "-m gpt2 --seq 256 --dtype bf16 --cluster dgx-a100 -n 8 --stage 1 --runtime megatron-2021";
  char command[256];
  for (int i = 0; i < 2; i++) {
    snprintf(command, sizeof command, "%s %s", i ? "simulate" : "estimate", job);
    cJSON *json = answer(command);
    const cJSON *time = i ? json : cJSON_GetObjectItem(json, "time");
    const double step_s = member(time, "step_s");
    ck_assert(member(time, "predicted_low_s") < step_s * 1.1 && member(time, "predicted_high_s") > step_s * 0.9);
    ck_assert_double_lt(member(time, "predicted_low_s"), member(time, "predicted_high_s"));
    cJSON_Delete(json);
    command_result r = twinspeed("%s", command);
    ck_assert_msg(strstr(r.out, " in nine of ten such runs)") != NULL, "%s", r.out);
    command_free(&r);
  }
  command_result evaluated = twinspeed("simulate %s --program evaluate", job);
  ck_assert_msg(evaluated.status == 0 && !strstr(evaluated.out, "nine of ten"), "%s", evaluated.out);
  command_free(&evaluated);
  cJSON *json = answer("estimate -m gpt2 --seq 64");
  ck_assert_ptr_null(cJSON_GetObjectItem(cJSON_GetObjectItem(json, "time"), "predicted_low_s"));
  cJSON_Delete(json);
  json = answer("validate --cases " RUNS " --group llama3-405b");
  const cJSON *one = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "cases"), 0);
  ck_assert(member(one, "predicted_low_s") < member(one, "measured_s"));
  ck_assert(member(one, "predicted_high_s") > member(one, "measured_s"));
  cJSON_Delete(json);
}
END_TEST

/* Runs that no error counts (for example recalled ones) are counted in a column of their own. */
START_TEST(every_row_counts) {
  tws_cases *cases = cases_of("[" ROW("a", "1", "1", "false") "," ROW("b", "1", "1", "false") "]", TWS_OK, "");
  ck_assert_ptr_nonnull(cJSON_AddStringToObject((cJSON *)cases->cases[1].row, "confidence", "recalled"));
  char *text = cJSON_PrintUnformatted(cases->json->root);
  tws_cases_destroy(cases);
  cases = cases_of(text, TWS_OK, "");
  cJSON_free(text);
  tws_case_comparison compared;
  tws_error err = {0};
  ck_assert_int_eq(tws_cases_compare(cases, NULL, 0, NULL, &(tws_progress){0}, &compared, &err), TWS_OK);
  ck_assert_int_eq(compared.groups[0].time_n, 1);
  ck_assert_int_eq(compared.groups[0].apart_n, 1);
  ck_assert_double_eq_tol(compared.groups[0].apart_mape, compared.groups[0].time_mape, 1e-9);
  ck_assert_int_eq(compared.results[1].part, TWS_EVIDENCE_APART);
  ck_assert_int_eq(tws_case_is_excluded(&compared.results[1]), 1);
  tws_case_comparison_free(&compared);
  tws_cases_destroy(cases);
}
END_TEST

/* Where a row says that samples are packed questions, attention stays within documents of the length that the rule
 * gives. */
START_TEST(packed_samples_keep_attention_inside_documents) {
  tws_cases *cases = cases_of("[" ROW("a", "1", "1", "false") "]", TWS_OK, "");
  for (int packed = 0; packed < 2; packed++) {
    tws_job *job;
    tws_error err = {0};
    if (packed)
      ck_assert_ptr_nonnull(cJSON_AddStringToObject((cJSON *)cases->cases[0].row, "notes", "SQuAD packed to 512"));
    ck_assert_msg(tws_case_job(cases, 0, &job, &err) == TWS_OK, "%s", err.message);
    ck_assert_int_eq(job->config->document_length, packed ? 200 : 0);
    ck_assert_int_eq(job->config->document_end_token >= 0, packed);
    tws_job_destroy(job);
  }
  tws_cases_destroy(cases);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("published_times");
  TCase *tests = tcase_create("published_times");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, unknown_software_is_refused);
  tcase_add_test(tests, nine_of_ten_lie_inside);
  tcase_add_test(tests, intervals_widen_with_distance);
  tcase_add_test(tests, verbs_say_the_interval);
  tcase_add_test(tests, every_row_counts);
  tcase_add_test(tests, packed_samples_keep_attention_inside_documents);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
