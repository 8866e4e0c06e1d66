/* Published runs: the file that comes with the program, the papers' formulas, what software costs beside
 * our kernels. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "validation/evidence.h"
#include "validation/published.h"

#define RUNS TWS_SOURCE_DIR "/scenarios/published/runs.json"

static tws_published *load(const char *path) {
  tws_published *published = NULL;
  tws_error err = {0};
  ck_assert_msg(tws_published_load(path, &published, &err) == TWS_OK, "%s", err.message);
  return published;
}

static int find(const tws_published *published, const char *id) {
  for (int i = 0; i < published->count; i++)
    if (strcmp(published->runs[i].id, id) == 0) return i;
  ck_abort_msg("no run %s", id);
  return -1;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* What verbs say of the run is what comes out of it. */
static void hold_evidence(const tws_published_run *run, const tws_job *job, double error) {
  int count;
  const tws_evidence_run *known = tws_evidence_runs(&count), *end = known + count;
  while (known < end && strcmp(known->id, run->id) != 0) known++;
  ck_assert_msg(known < end, "%s is missing in validation/evidence.def", run->id);
  ck_assert_msg(fabs(known->error - error) < 0.02, "%s: evidence.def has %.1f %%, it is %.1f %%", run->id,
                100 * known->error, 100 * error);
  ck_assert_int_eq(known->gpus, run->gpus);
  ck_assert_double_eq_tol(known->parameters / (double)tws_network_params(job->network, 0), 1, 1e-3);
  ck_assert_int_eq(known->stage, tws_job_ranks_along(job, TWS_AXIS_DATA) > 1 ? job->config->zero.stage : 0);
  ck_assert_ptr_nonnull(strstr(tws_profile_name(job->profile), known->gpu));
  const tws_evidence own = tws_evidence_of_job(job);
  ck_assert_int_eq(own.kind, fabs(own.nearest->error) > 0.15 ? TWS_EVIDENCE_WRONG : TWS_EVIDENCE_NEAR);
}

/* Every run is a prediction or a reason; predictions are of the right size, for time and for memory. */
START_TEST(each_run_is_predicted_or_says_why_not) {
  tws_published *published = load(RUNS);
  double errors[256];
  int count = 0;
  ck_assert_int_ge(published->count, 60);
  for (int i = 0; i < published->count; i++) {
    const tws_published_run *run = &published->runs[i];
    tws_job *job;
    tws_prediction prediction;
    tws_error err = {0};
    tws_code code = tws_published_job(published, i, &job, &err);
    if (run->reason) {
      ck_assert_int_eq(code, TWS_UNSUPPORTED);
      ck_assert_str_eq(err.message, run->reason);
      continue;
    }
    ck_assert_msg(code == TWS_OK, "%s: %s", run->id, err.message);
    ck_assert_int_eq(tws_topology_world(&job->topology), run->gpus);
    ck_assert_ptr_nonnull(strstr(run->url, "https://"));
    if (job->config->pipeline_stages <= 8) { /* the others take their time */
      ck_assert_msg(tws_published_predict(job, &prediction, &err) == TWS_OK, "%s: %s", run->id, err.message);
      double step = tws_published_step(run, job, NULL);
      if (step > 0) errors[count++] = fabs(prediction.step_s / step - 1);
      if (step > 0) hold_evidence(run, job, prediction.step_s / step - 1);
      if (run->state_gib > 0) ck_assert_double_lt(fabs(prediction.state_gib / run->state_gib - 1), 0.1);
      if (run->activation_gib > 0) ck_assert_double_lt(fabs(prediction.activation_gib / run->activation_gib - 1), 0.2);
      if (run->fits >= 0) ck_assert_int_eq(prediction.fits, run->fits);
      if (step > 0) ck_assert_msg(prediction.fits, "%s ran, but needs %.1f GiB", run->id, prediction.memory_gib);
    }
    tws_job_destroy(job);
  }
  qsort(errors, (size_t)count, sizeof *errors, ascending);
  ck_assert_int_ge(count, 20);
  ck_assert_double_lt(errors[count / 2], 0.1);
  tws_published_destroy(published);
}
END_TEST

/* The papers' closed formula is what the network's products sum up to: layers run forward twice with recomputation and
 * their backward pass is twice forward, logits are not made again. */
START_TEST(formula_counts_the_networks_products) {
  tws_published *published = load(RUNS);
  for (int i = 0; i < published->count; i++) {
    tws_job *job;
    tws_error err = {0};
    if (published->runs[i].reason) continue;
    ck_assert_int_eq(tws_published_job(published, i, &job, &err), TWS_OK);
    double sequence = (double)job->config->sequence_length, samples = (double)job->config->train_batch_size;
    double logits = 2.0 * (double)job->network->hidden * (double)job->network->padded_vocabulary;
    double layers = tws_network_flops_per_token(job->network, job->config->sequence_length, 0) -
                    2.0 * (double)job->network->hidden * (double)job->network->vocabulary;
    for (int recomputed = 0; recomputed < 2; recomputed++) {
      double expected = samples * sequence * ((recomputed ? 4 : 3) * layers + 3 * logits);
      double formula = tws_published_flops(job->network, samples, sequence, recomputed);
      ck_assert_double_eq_tol(formula / expected, 1, 1e-12);
    }
    tws_job_destroy(job);
  }
  tws_published_destroy(published);
}
END_TEST

/* Iteration times that the sources state beside the rates from which ours are made. */
START_TEST(derived_times_agree_with_stated_ones) {
  static const struct {
    const char *id;
    double seconds, within;
  } stated[] = {
      {"megatron-readme/gpt3-175b-1024", 32, 0.02},                 /* "around 32 seconds" */
      {"korthikanti/530B-dp8", 39.15, 0.005},                       /* its MFU and this time are given together */
      {"sc21-table1/1T", 3072 * 2048.0 * 84 * 86400 / 450e9, 0.05}, /* 450 billion tokens in 84 days */
      {"sc21-table2/PTD-530B-560", 2240 * 2048.0 * 156 * 86400 / 300e9, 0.02}, /* 300 billion in 156 days */
      {"sc21-table2/PTD-530B-2240", 2240 * 2048.0 * 42 * 86400 / 300e9, 0.02},
  };
  tws_published *published = load(RUNS);
  for (size_t i = 0; i < sizeof stated / sizeof *stated; i++) {
    int index = find(published, stated[i].id), derived = 0;
    const tws_published_run *run = &published->runs[index];
    tws_job *job;
    tws_error err = {0};
    ck_assert_int_eq(tws_published_job(published, index, &job, &err), TWS_OK);
    double step = tws_published_step(run, job, &derived);
    ck_assert_int_eq(derived, 1);
    ck_assert_msg(fabs(step / stated[i].seconds - 1) < stated[i].within, "%s: %g s", run->id, step);
    if (run->teraflops > 0) ck_assert_double_eq_tol(tws_published_teraflops(run, job, step), run->teraflops, 1e-9);
    tws_job_destroy(job);
  }
  /* TFLOP/s that tables.tex of 2020 gives beside its iteration times */
  int index = find(published, "megatron2020-a100/8B");
  tws_job *job;
  tws_error err = {0};
  ck_assert_int_eq(tws_published_job(published, index, &job, &err), TWS_OK);
  ck_assert_double_eq_tol(tws_published_teraflops(&published->runs[index], job, 1.343), 109.3, 0.1);
  tws_job_destroy(job);
  tws_published_destroy(published);
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
 * 2048 tokens. Its plain product fixes the efficiency above; the batched ones are then predicted. */
START_TEST(batched_products_cost_what_was_measured) {
  double plain = seconds(UNFUSED, "", TWS_KERNEL_LINEAR, 8192, 12288, 4096, 0, 0);
  ck_assert_double_eq_tol(2.0 * 8192 * 12288 * 4096 / plain / 1e12, 241.6, 2.5);
  double flops = 2.0 * 64 * 2048 * 2048 * 256, measured = flops / 130.182e12 + flops / 218.952e12;
  double forward = seconds(UNFUSED, "", TWS_KERNEL_ATTENTION, 4, 2048, 16, 16, 256);
  ck_assert_msg(fabs(forward / measured - 1) < 0.1, "%g s, measured %g s", forward, measured);
}
END_TEST

/* Software without the two in one runs both; a program with them in one saves what is between. */
START_TEST(unfused_software_runs_two_kernels) {
  static const struct {
    tws_kernel kernel, other;
    uint32_t flag;
    double count, saved; /* elements of the other, and bytes that it moves beyond those of the two in one */
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
  /* making scores again is forward once more */
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

/* ---- refusals ---- */

static void refused(const char *text, const char *why) {
  char path[] = "/tmp/twinspeed-published-XXXXXX";
  tws_published *published = NULL;
  tws_error err = {0};
  int fd = mkstemp(path);
  ck_assert_int_ge(fd, 0);
  ck_assert_int_eq((int)write(fd, text, strlen(text)), (int)strlen(text));
  close(fd);
  tws_code code = tws_published_load(path, &published, &err);
  unlink(path);
  ck_assert_msg(code == TWS_INVALID && strstr(err.message, why), "%s: %s", why, err.message);
  ck_assert_ptr_null(published);
}

#define HEAD "{\"schema\":\"twinspeed-published-1\",\"sources\":{\"s\":{\"title\":\"T\"}},\"runs\":["

START_TEST(bad_files_are_refused_with_the_place) {
  refused("[]", "one object");
  refused("{\"schema\":\"twinspeed-published-2\",\"runs\":[]}", "unknown schema");
  refused("{\"schema\":\"twinspeed-published-1\"}", "\"runs\" must be a list");
  refused(HEAD "{\"id\":\"a\",\"group\":\"g\",\"source\":\"t\",\"published\":{},\"reason\":\"r\"}]}",
          "no object \"t\"");
  refused(HEAD "{\"id\":\"a\",\"group\":\"g\",\"source\":\"s\",\"published\":{\"seconds\":1},\"reason\":\"r\"}]}",
          "seconds");
  refused(HEAD "{\"id\":\"a\",\"group\":\"g\",\"source\":\"s\",\"published\":{}}]}", "system");
  refused(HEAD
          "{\"id\":\"a\",\"group\":\"g\",\"source\":\"s\",\"published\":{},\"reason\":\"r\"},"
          "{\"id\":\"a\",\"group\":\"g\",\"source\":\"s\",\"published\":{},\"reason\":\"r\"}]}",
          "a second run");
}
END_TEST

/* ---- the verb ---- */

START_TEST(the_verb_prints_what_the_library_predicts) {
  tws_published *published = load(RUNS);
  int index = find(published, "sc21-table1/1.7B");
  tws_job *job;
  tws_prediction prediction;
  tws_error err = {0};
  ck_assert_int_eq(tws_published_job(published, index, &job, &err), TWS_OK);
  ck_assert_int_eq(tws_published_predict(job, &prediction, &err), TWS_OK);
  command_result result = twinspeed("validate --published " RUNS " --only sc21-table1/1.7B --json");
  ck_assert_msg(result.status == 0, "%s", result.err);
  cJSON *json = cJSON_Parse(result.out), *runs = cJSON_GetObjectItem(json, "runs"), *run = cJSON_GetArrayItem(runs, 0);
  ck_assert_int_eq(cJSON_GetArraySize(runs), 1);
  double step = cJSON_GetNumberValue(cJSON_GetObjectItem(run, "predicted_step_s"));
  ck_assert_double_eq_tol(step, prediction.step_s, 1e-9);
  double error = cJSON_GetNumberValue(cJSON_GetObjectItem(run, "step_error"));
  ck_assert_double_eq_tol(error, step / tws_published_step(&published->runs[index], job, NULL) - 1, 1e-9);
  const cJSON *median = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "median_absolute_errors"), 0);
  ck_assert_double_eq_tol(cJSON_GetNumberValue(cJSON_GetObjectItem(median, "error")), fabs(error), 1e-9);
  cJSON_Delete(json);
  command_free(&result);
  result = twinspeed("validate --published " RUNS " --only sc21-table1/1.7B --tolerance 0.0001");
  ck_assert_int_eq(result.status, 1);
  ck_assert_ptr_nonnull(strstr(result.out, "sc21-table1/1.7B"));
  command_free(&result);
  result = twinspeed("validate --published " RUNS " --only longseq");
  ck_assert_int_eq(result.status, 0);
  ck_assert_ptr_nonnull(strstr(result.out, "Not predicted:"));
  command_free(&result);
  result = twinspeed("validate --published " RUNS " --only nothing-of-that-name");
  ck_assert_int_eq(result.status, 2);
  command_free(&result);
  tws_job_destroy(job);
  tws_published_destroy(published);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("published");
  TCase *tests = tcase_create("published");
  tcase_set_timeout(tests, 240);
  tcase_add_test(tests, each_run_is_predicted_or_says_why_not);
  tcase_add_test(tests, formula_counts_the_networks_products);
  tcase_add_test(tests, derived_times_agree_with_stated_ones);
  tcase_add_test(tests, batched_products_cost_what_was_measured);
  tcase_add_test(tests, unfused_software_runs_two_kernels);
  tcase_add_test(tests, scores_and_added_bytes_cost_their_traffic);
  tcase_add_test(tests, bad_files_are_refused_with_the_place);
  tcase_add_test(tests, the_verb_prints_what_the_library_predicts);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
