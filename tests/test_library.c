/* The public header of the shared library: its calls return the figures of the program's own functions, and report
 * faults with a status, a message and a hint. */
/* ctest: library */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/memory.h"
#include "job/fit.h"
#include "job/job.h"
#include "library/twinspeed.h"
#include "tests/folder.h"
#include "tests/suite.h"

static const struct {
  const char *model, *cluster, *runtime, *dtype;
  int64_t stage, ranks, micro_batch, accumulation, pipeline, tensor;
} jobs[] = {{"gpt2", "dgx-a100", NULL, NULL, 2, 8, 4, 1, 0, 0},
            {"llama-3-8b", "dgx-h100:2", NULL, "bf16", 3, 16, 1, 2, 0, 0},
            {"llama-3-8b", "dgx-h100", "megatron", "bf16", 1, 8, 1, 8, 4, 2},
            {"llama-3-70b", "dgx-a100", NULL, "bf16", 0, 8, 1, 1, 0, 0}};
enum { JOBS = sizeof jobs / sizeof *jobs };

static twinspeed_options options_of(int i) {
  twinspeed_options o;
  twinspeed_options_init(&o);
  o.model = jobs[i].model;
  o.cluster = jobs[i].cluster;
  o.runtime = jobs[i].runtime;
  o.dtype = jobs[i].dtype;
  o.stage = jobs[i].stage;
  o.ranks = jobs[i].ranks;
  o.micro_batch = jobs[i].micro_batch;
  o.accumulation = jobs[i].accumulation;
  o.pipeline_ranks = jobs[i].pipeline;
  o.tensor_ranks = jobs[i].tensor;
  return o;
}

static tws_job *core_job(int i) {
  tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
  tws_error err = {0};
  tws_job *job;
  spec.model = jobs[i].model;
  spec.cluster = jobs[i].cluster;
  spec.runtime = jobs[i].runtime;
  spec.dtype = jobs[i].dtype;
  spec.stage = jobs[i].stage;
  spec.ranks = jobs[i].ranks;
  spec.micro_batch = jobs[i].micro_batch;
  spec.accumulation = jobs[i].accumulation;
  spec.pipeline_stages = jobs[i].pipeline;
  spec.tensor_ranks = jobs[i].tensor;
  ck_assert_msg(tws_job_load(&spec, &job, &err) == TWS_OK, "%s", err.message);
  return job;
}

static twinspeed_job *open_job(int i) {
  const twinspeed_options o = options_of(i);
  twinspeed_error error;
  twinspeed_job *job;
  ck_assert_msg(twinspeed_open(&o, &job, &error) == TWINSPEED_OK, "%s: %s", error.message, error.hint);
  return job;
}

START_TEST(estimates_are_those_of_the_program) {
  twinspeed_job *open[JOBS];
  for (int i = 0; i < JOBS; i++) open[i] = open_job(i); /* all at once */
  for (int i = 0; i < JOBS; i++) {
    twinspeed_estimate answer;
    twinspeed_job_facts facts;
    twinspeed_error error;
    tws_error err = {0};
    tws_estimate e;
    tws_job *job = core_job(i);
    ck_assert(tws_job_estimate(job, &e, NULL, &err) == TWS_OK);
    const tws_fit fit = tws_job_fit(job, &e.ledger);
    ck_assert_msg(twinspeed_estimate_job(open[i], &answer, &error) == TWINSPEED_OK, "%s", error.message);
    ck_assert_double_eq(answer.step_s, e.step_s);
    ck_assert_double_eq(answer.device_need, fit.device_need);
    ck_assert_double_eq(answer.device_have, fit.capacity.device);
    ck_assert_int_eq(answer.verdict == TWINSPEED_DOES_NOT_FIT, !fit.fits);
    double bytes = 0;
    for (int c = 0; twinspeed_category_name(c); c++) bytes += answer.bytes[0][c];
    ck_assert_double_eq(bytes, (double)e.ledger.tier[0].live_bytes);
    ck_assert_str_eq(answer.bottleneck, e.path.text);
    twinspeed_job_describe(open[i], &facts);
    ck_assert_int_eq(facts.ranks, job->ranks);
    ck_assert_int_eq(facts.zero_stage, (int)jobs[i].stage);
    ck_assert_int_eq(facts.stages * facts.tensor_ranks * facts.replicas, facts.ranks);
    ck_assert_double_eq(facts.parameters, (double)tws_network_params(job->network, 0));
    ck_assert_ptr_nonnull(strstr(twinspeed_job_notes(open[i]), "assumed: "));
    tws_job_destroy(job);
  }
  twinspeed_estimate last;
  ck_assert(twinspeed_estimate_job(open[JOBS - 1], &last, NULL) == TWINSPEED_OK);
  ck_assert_int_eq(last.verdict, TWINSPEED_DOES_NOT_FIT); /* "does not fit" is an answer, and not an error */
  for (int i = 0; i < JOBS; i++) twinspeed_close(open[i]);
  twinspeed_close(NULL);
}
END_TEST

START_TEST(plans_are_verified_and_simulated) {
  twinspeed_job *job = open_job(0);
  twinspeed_check check;
  twinspeed_simulation simulation, flow;
  twinspeed_error error;
  ck_assert_msg(twinspeed_check_job(job, 0, &check, &error) == TWINSPEED_OK, "%s", error.message);
  ck_assert_int_eq(check.ranks_verified, 8);
  ck_assert_double_gt(check.operations, 100);
  const twinspeed_status status = twinspeed_simulate_job(job, NULL, &simulation, &error);
  if (status == TWINSPEED_ENVIRONMENT) { /* built without SimGrid */
    ck_assert_ptr_nonnull(strstr(error.message, "twinspeed_sim.so"));
    twinspeed_close(job);
    return;
  }
  ck_assert_msg(status == TWINSPEED_OK, "%s", error.message);
  ck_assert_msg(twinspeed_simulate_job(job, "flow", &flow, &error) == TWINSPEED_OK, "%s", error.message);
  twinspeed_estimate estimate;
  ck_assert(twinspeed_estimate_job(job, &estimate, NULL) == TWINSPEED_OK);
  ck_assert_double_eq_tol(simulation.step_s, estimate.step_s, 0.1 * estimate.step_s);
  ck_assert_double_eq_tol(flow.step_s, simulation.step_s, 0.1 * simulation.step_s);
  ck_assert_double_eq_tol(simulation.tokens_per_s, 8 * 4 * 1024 / simulation.step_s, 1e-6 * simulation.tokens_per_s);
  ck_assert_int_eq(twinspeed_simulate_job(job, "exact", &flow, &error), TWINSPEED_USAGE);
  twinspeed_close(job);
}
END_TEST

START_TEST(the_best_candidate_is_as_fast_as_it_says) {
  twinspeed_options o = options_of(0), best;
  twinspeed_tune_options how;
  twinspeed_candidate *found;
  twinspeed_error error;
  int count;
  o.micro_batch = o.accumulation = o.ranks = 0;
  twinspeed_tune_options_init(&how);
  how.global_batch = 32;
  how.best = 3;
  ck_assert_msg(twinspeed_tune(&o, &how, &found, &count, &error) == TWINSPEED_OK, "%s", error.message);
  ck_assert_int_eq(count, 3);
  for (int i = 0; i < count; i++) {
    ck_assert(found[i].micro_batch * found[i].accumulation * found[i].ranks == 32);
    ck_assert(i == 0 || found[i].tokens_per_s <= found[i - 1].tokens_per_s);
  }
  best = o;
  best.ranks = found[0].ranks;
  best.micro_batch = found[0].micro_batch;
  best.accumulation = found[0].accumulation;
  best.stage = found[0].zero_stage;
  best.recompute = found[0].recompute;
  twinspeed_job *job;
  twinspeed_simulation simulation;
  twinspeed_estimate estimate;
  ck_assert_msg(twinspeed_open(&best, &job, &error) == TWINSPEED_OK, "%s", error.message);
  double step_s = twinspeed_simulate_job(job, NULL, &simulation, &error) == TWINSPEED_OK ? simulation.step_s : 0;
  ck_assert(twinspeed_estimate_job(job, &estimate, &error) == TWINSPEED_OK);
  if (!(step_s > 0)) step_s = estimate.step_s;
  ck_assert_double_eq_tol(found[0].step_s, step_s, 1e-9 * step_s);
  ck_assert_int_eq(estimate.verdict, TWINSPEED_FITS);
  twinspeed_close(job);
  twinspeed_free(found);
}
END_TEST

START_TEST(what_is_wrong_is_told) {
  const struct {
    const char *model, *set;
    int64_t stage, ranks;
    size_t size;
    twinspeed_status status;
    const char *message, *hint;
  } wrong[] = {
      {"nosuch", NULL, 2, 0, sizeof(twinspeed_options), TWINSPEED_INVALID, "\"nosuch\" is neither", "built in: gpt2"},
      {NULL, NULL, 2, 0, sizeof(twinspeed_options), TWINSPEED_USAGE, "model", ""},
      {"gpt2", "zero_optimisation.stage=2", 2, 0, sizeof(twinspeed_options), TWINSPEED_INVALID, "zero_optimisation",
       "zero_optimization"},
      {"gpt2", NULL, 4, 0, sizeof(twinspeed_options), TWINSPEED_USAGE, "stage must be -1 to 3, not 4", ""},
      {"gpt2", NULL, 2, -1, sizeof(twinspeed_options), TWINSPEED_USAGE, "ranks must be 0 to", ""},
      {"gpt2", NULL, 2, 9, sizeof(twinspeed_options), TWINSPEED_INVALID, "9", ""},
      {"gpt2", NULL, 2, 0, 0, TWINSPEED_USAGE, "size of 0", "twinspeed_options_init"},
      {"gpt2", NULL, 2, 0, sizeof(twinspeed_options) + 8, TWINSPEED_USAGE, "is not one", "twinspeed_options_init"}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    twinspeed_options o = options_of(0);
    twinspeed_error error;
    twinspeed_job *job;
    o.model = wrong[i].model;
    o.stage = wrong[i].stage;
    o.ranks = wrong[i].ranks;
    o.size = wrong[i].size;
    o.set = &wrong[i].set;
    o.set_count = wrong[i].set != NULL;
    ck_assert_msg(twinspeed_open(&o, &job, &error) == wrong[i].status, "%d: %s: %s", (int)i,
                  twinspeed_status_name(error.status), error.message);
    ck_assert_ptr_null(job);
    ck_assert_int_eq(error.status, wrong[i].status);
    ck_assert_msg(strstr(error.message, wrong[i].message) != NULL, "%d: %s", (int)i, error.message);
    ck_assert_msg(strstr(error.hint, wrong[i].hint) != NULL, "%d: %s", (int)i, error.hint);
    ck_assert(twinspeed_open(&o, &job, NULL) == wrong[i].status);
  }
}
END_TEST

START_TEST(older_callers_have_shorter_options) {
  twinspeed_options o = options_of(0);
  twinspeed_error error;
  twinspeed_job *job;
  o.size = offsetof(twinspeed_options, stage); /* a caller with an older header, whose options lack the last members:
                                                * these keep their defaults */
  o.stage = 77;
  ck_assert_msg(twinspeed_open(&o, &job, &error) == TWINSPEED_OK, "%s", error.message);
  twinspeed_job_facts facts;
  twinspeed_job_describe(job, &facts);
  ck_assert_int_eq(facts.zero_stage, 0);
  twinspeed_close(job);
}
END_TEST

/* ---- custom metrics ---- */

static char *text_of(const char *path) {
  char *text = NULL;
  size_t length;
  tws_error err = {0};
  ck_assert_msg(tws_read_file(path, 0, &text, &length, &err) == TWS_OK, "%s", err.message);
  return text;
}

/* Custom metrics appear in the files of all four monitors; a second monitor appends to them without another heading. */
START_TEST(custom_metrics_reach_all_monitors) {
  char cwd[400];
  twinspeed_error error;
  twinspeed_monitor *monitor;
  ck_assert_ptr_nonnull(getcwd(cwd, sizeof cwd));
  make_folder();
  ck_assert_int_eq(chdir(folder), 0);
  FILE *file = fopen("ds.json", "w");
  fprintf(file,
          "{\"train_batch_size\": 8, \"csv_monitor\": {\"enabled\": true, \"job_name\": \"csv\"}, "
          "\"tensorboard\": {\"enabled\": true, \"job_name\": \"events\"}, \"wandb\": {\"enabled\": true}, "
          "\"comet\": {\"enabled\": true, \"experiment_key\": \"0123456789abcdefghijklmnopqrstuv\"}}");
  fclose(file);
  for (int run = 0; run < 2; run++) {
    ck_assert_msg(twinspeed_monitor_open("ds.json", 8 * run, &monitor, &error) == TWINSPEED_OK, "%s", error.message);
    ck_assert_msg(twinspeed_monitor_write(monitor, "Mine/top 1", 0.25 + run, 8 + 8 * run, &error) == TWINSPEED_OK, "%s",
                  error.message);
    ck_assert_int_eq(twinspeed_monitor_write(monitor, "plain", 1.0 / 0.0, 8 + 8 * run, &error), TWINSPEED_OK);
    static const char *const wrong[] = {"", "a\"b", "a\\b", "a\nb", ".hidden", "ends/", "\xc3\xa9", NULL};
    for (int i = 0; i < 8; i++)
      ck_assert_int_eq(twinspeed_monitor_write(monitor, wrong[i], 1, 1, &error), TWINSPEED_USAGE);
    ck_assert_int_eq(twinspeed_monitor_close(monitor, &error), TWINSPEED_OK);
    if (run == 0) ck_assert_int_eq(system("mv .cometml-runs comet"), 0); /* a key names one archive */
  }
  char *text = text_of("csv/Mine_top_1.csv");
  ck_assert_str_eq(text, "step,top 1\r\n8,0.25\r\n16,1.25\r\n");
  tws_free(text);
  text = text_of("csv/plain.csv");
  ck_assert_str_eq(text, "step,plain\r\n8,inf\r\n16,inf\r\n");
  tws_free(text);
  ck_assert_int_eq(system("grep -q 'Mine/top 1' events/events.out.tfevents.*.0 wandb/offline-run-*/run-*.wandb && "
                          "test $(ls events | wc -l) = 2"),
                   0);
  ck_assert_int_eq(
      system(
          "unzip -p .cometml-runs/*.zip messages.json | grep -q '\"metricName\":\"Mine/top 1\",\"metricValue\":1.25'"),
      0);
  file = fopen("none.json", "w");
  fprintf(file, "{\"train_batch_size\": 8}");
  fclose(file);
  ck_assert_int_eq(twinspeed_monitor_open("none.json", 0, &monitor, &error), TWINSPEED_INVALID);
  ck_assert(strstr(error.message, "no monitor is enabled") && !monitor);
  ck_assert_int_eq(twinspeed_monitor_open("missing.json", 0, &monitor, &error), TWINSPEED_IO);
  ck_assert_int_eq(twinspeed_monitor_close(NULL, NULL), TWINSPEED_OK);
  ck_assert_int_eq(chdir(cwd), 0);
  remove_folder();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("library");
  TCase *tests = tcase_create("library");
  tcase_add_test(tests, estimates_are_those_of_the_program);
  tcase_add_test(tests, plans_are_verified_and_simulated);
  tcase_add_test(tests, the_best_candidate_is_as_fast_as_it_says);
  tcase_add_test(tests, what_is_wrong_is_told);
  tcase_add_test(tests, older_callers_have_shorter_options);
  tcase_add_test(tests, custom_metrics_reach_all_monitors);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
