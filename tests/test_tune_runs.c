/* Searches that run configurations: a failed run is a row with a reason, and a killed search continues where it was. */
/* ctest: mpi sampled */
#include <check.h>
#include <dirent.h>
#include <signal.h>
#include <time.h>

#include "base/memory.h"
#include "models/hardware/profile_internal.h"
#include "tests/answers.h"
#include "tests/members.h"
#include "tests/train.h"

#define SPACE "-m tiny-gpt2 -b 8 --seq 32 --stages 0 --recomputes none --threads 1 --quiet "

static cJSON *tune(const char *words, const char *results, int status) {
  command_result r = twinspeed("tune " SPACE "%s --data %s --json -o %s", words, text_path, in_folder(results));
  ck_assert_msg(r.status == status, "%s: exit %d: %s", words, r.status, r.err);
  cJSON *json = assert_json(&r, "twinspeed-tune-1");
  command_free(&r);
  return json;
}

static const char *text_of(const cJSON *object, const char *key) {
  const cJSON *item = member(object, key);
  ck_assert_msg(cJSON_IsString(item), "%s is no text", key);
  return item->valuestring;
}

/* Two configurations run, on one rank and on two; rank 1 of the second one has a fault, which becomes a row. */
START_TEST(failures_are_rows) {
  static const struct {
    const char *fault, *outcome, *reason;
  } cases[] = {{"rank=1,step=2,kind=kill", "failed", "signal 9"},
               {"rank=1,step=2,kind=hang", "hung", "rank 1"},
               {"rank=1,step=1,kind=allocate", "out_of_memory", "cannot allocate"}};
  char name[16];
  snprintf(name, sizeof name, "fault%d", _i);
  setenv("TWINSPEED_FAULT", cases[_i].fault, 1);
  cJSON *json = tune("-n 1,2 --micro-batches 4 --validate 2 --rounds 1 --limit 6", name, 0);
  unsetenv("TWINSPEED_FAULT");
  const cJSON *trials = member(json, "trials"), *one;
  int failed = 0, measured = 0;
  ck_assert_int_eq(cJSON_GetArraySize(trials), 2);
  cJSON_ArrayForEach(one, trials) {
    if (strcmp(text_of(one, "outcome"), "measured") == 0) {
      ck_assert_double_gt(number(one, "measured_step_s"), 0);
      ck_assert_ptr_null(cJSON_GetObjectItem(one, "reason"));
      measured++;
      continue;
    }
    ck_assert_str_eq(text_of(one, "outcome"), cases[_i].outcome);
    ck_assert_msg(strstr(text_of(one, "reason"), cases[_i].reason) != NULL, "%s", text_of(one, "reason"));
    ck_assert_ptr_null(strchr(text_of(one, "reason"), '\n'));
    ck_assert_ptr_null(cJSON_GetObjectItem(one, "measured_step_s"));
    failed++;
  }
  ck_assert_int_eq(failed, 1);
  ck_assert_int_eq(measured, 1);
  ck_assert_double_eq(number(member(json, "best"), "ranks"), 1);
  cJSON_Delete(json);
}
END_TEST

/* Each trial writes its monitors' files into a folder of its own, so that the curves of trials stay apart. */
START_TEST(trials_have_folders_of_monitors) {
  char words[512], path[700], text[400];
  int trials = 0;
  snprintf(text, sizeof text,
           "{\"csv_monitor\": {\"enabled\": true, \"output_path\": \"%s\", \"job_name\": \"watched\"}}", folder);
  write_text(in_folder("watched.json"), text);
  snprintf(words, sizeof words, "-c %s -n 1,2 --micro-batches 4 --validate 2 --rounds 1", in_folder("watched.json"));
  cJSON_Delete(tune(words, "watching", 0));
  DIR *directory = opendir(in_folder("watched"));
  ck_assert_ptr_nonnull(directory);
  for (struct dirent *entry; (entry = readdir(directory));) {
    if (entry->d_name[0] == '.') continue;
    snprintf(path, sizeof path, "%s/%.250s/Train_Samples_train_loss.csv", in_folder("watched"), entry->d_name);
    ck_assert_msg(access(path, R_OK) == 0, "%s is not there", path);
    trials++;
  }
  closedir(directory);
  ck_assert_int_eq(trials, 2);
}
END_TEST

/* ---- the corrected profile ---- */

static cJSON *read_in_folder(const char *path) {
  char *text = command_slurp(open(in_folder(path), O_RDONLY));
  cJSON *json = cJSON_Parse(text);
  ck_assert_msg(json != NULL, "%s: %s", path, text);
  free(text);
  return json;
}

static int count_texts(const char *text, const char *what) {
  int count = 0;
  for (; (text = strstr(text, what)) != NULL; text++) count++;
  return count;
}

/* Factor by which products of the wrong profile are too slow: larger than that of any machine and any build, also of
 * one with sanitizers on busy cores, whose products are tens of times slower than those of the built-in profile. */
#define TOO_SLOW 1000

/* Writes a profile in which each product takes TOO_SLOW times as long as in the built-in one. */
static void write_wrong_profile(const char *path) {
  const char *text = tws_profile_builtin("host");
  char *wrong = tws_calloc(strlen(text) + 128, 1);
  snprintf(wrong, strlen(text) + 128, "{\"corrections\": {\"kernels\": {\"linear\": %d}},%s", TOO_SLOW,
           strchr(text, '{') + 1);
  write_text(path, wrong);
  tws_free(wrong);
}

/* The factors that training runs give for a profile are written, multiplied by those that it had; predictions with the
 * corrected profile are those at the end of the search, and cmd_optimal.txt names it. */
START_TEST(corrected_profiles_are_kept) {
  char words[512], path[128], line[2048];
  write_wrong_profile(in_folder("wrong.json"));
  snprintf(words, sizeof words, "-n 1 --micro-batches 2,8 --validate 2 --rounds 1 --race 0 --profile %s",
           in_folder("wrong.json"));
  cJSON *json = tune(words, "corrected", 0), *profile = read_in_folder("corrected/profile_corrected.json");
  ck_assert_double_lt(number(json, "median_error_corrected"), number(json, "median_error"));
  const double found = number(member(json, "corrections"), "linear");
  const double written = number(member(member(profile, "corrections"), "kernels"), "linear");
  ck_assert_double_eq_tol(written / (TOO_SLOW * found), 1, 1e-9);
  ck_assert_ptr_nonnull(strstr(text_of(profile, "provenance"), "; corrected by 2 training runs"));
  snprintf(path, sizeof path, "--profile=%s", in_folder("corrected/profile_corrected.json"));
  char *command = command_slurp(open(in_folder("corrected/cmd_optimal.txt"), O_RDONLY));
  const char *predicts = strstr(command, "# predicted by: twinspeed ");
  ck_assert_msg(predicts && strstr(predicts, path), "%s", command);
  snprintf(line, sizeof line, "%.*s --json -q", (int)strcspn(predicts + 26, "\n"), predicts + 26);
  command_result r = twinspeed("%s", line);
  ck_assert_msg(r.status == 0, "%s: %s", line, r.err);
  cJSON *again = assert_json(&r, "twinspeed-simulation-1");
  ck_assert_double_eq_tol(number(again, "step_s") / number(member(json, "best"), "simulated_step_s"), 1, 1e-9);
  /* the figure has one circle with a title for each trial, and none for the ends of its diagonal */
  char *svg = command_slurp(open(in_folder("corrected/trials.svg"), O_RDONLY));
  ck_assert_int_eq(count_texts(svg, "<circle "), 2);
  ck_assert_int_eq(count_texts(svg, "<title>"), 2);
  ck_assert_ptr_nonnull(strstr(svg, " ms, measured "));
  free(svg);
  cJSON_Delete(again);
  cJSON_Delete(profile);
  cJSON_Delete(json);
  command_free(&r);
  free(command);
}
END_TEST

/* If every trial fails, tune ends with status 1 and names the reason: here the only trial runs in a process without a
 * launcher, and is killed. */
START_TEST(nothing_can_be_measured) {
  setenv("TWINSPEED_FAULT", "rank=0,step=1,kind=kill", 1);
  command_result r =
      twinspeed("tune " SPACE "-n 1 --micro-batches 8 --validate 1 --data %s -o %s", text_path, in_folder("none"));
  unsetenv("TWINSPEED_FAULT");
  ck_assert_msg(r.status == 1, "exit %d: %s", r.status, r.err);
  ck_assert_ptr_nonnull(strstr(r.err, "none of the 1 configurations"));
  ck_assert_ptr_nonnull(strstr(r.out, "ended by signal 9"));
  command_free(&r);
}
END_TEST

static int records_in(const char *path) {
  DIR *directory = opendir(path);
  int count = 0;
  for (struct dirent *entry; directory && (entry = readdir(directory));) {
    char file[512];
    snprintf(file, sizeof file, "%s/%.200s/measured.json", path, entry->d_name);
    count += access(file, R_OK) == 0;
  }
  if (directory) closedir(directory);
  return count;
}

#define SEARCH "-n 1 --validate 4 --rounds 1 --tuner gridsearch --end-profile-step 40 "

/* Starts a search and kills it with SIGKILL when two trials have been recorded; returns the number of records. */
static int kill_search(const char *results) {
  char line[1024];
  snprintf(line, sizeof line, "exec %s/twinspeed tune " SPACE SEARCH "--data %s --json -o %s > /dev/null 2>&1",
           TWS_BUILD_DIR, text_path, results);
  const pid_t search = fork();
  if (search == 0) execl("/bin/sh", "sh", "-c", line, (char *)NULL);
  const struct timespec nap = {.tv_nsec = 1000000};
  while (records_in(results) < 2 && waitpid(search, NULL, WNOHANG) == 0) nanosleep(&nap, NULL);
  kill(search, SIGKILL);
  waitpid(search, NULL, 0);
  return records_in(results);
}

START_TEST(killed_searches_resume) {
  const char *results = in_folder("killed");
  const int records = kill_search(results);
  ck_assert_int_ge(records, 2);
  command_result r = twinspeed("tune " SPACE SEARCH "--data %s -o %s", text_path, results);
  ck_assert_int_eq(r.status, 2); /* not without being told to */
  ck_assert_ptr_nonnull(strstr(r.err, "--resume"));
  command_free(&r);
  cJSON *json = tune(SEARCH "--resume", "killed", 0);
  const cJSON *one;
  int trial = 0, reused = 0;
  cJSON_ArrayForEach(one, member(json, "trials")) {
    if (trial < 4) { /* later trials follow the corrected ranking */
      ck_assert_int_eq(is_true(one, "reused"), trial < records);
      ck_assert_double_eq(number(member(one, "tuned"), "micro_batch"), 1 << trial); /* the order of the space */
    }
    ck_assert_str_eq(text_of(one, "outcome"), "measured");
    ck_assert_double_eq(number(one, "runs"), 1);
    reused += is_true(one, "reused");
    trial++;
  }
  ck_assert_int_ge(trial, 4);
  ck_assert_int_eq(reused, records);
  cJSON_Delete(json);
  json = tune("-n 1 --validate 4 --rounds 1 --tuner gridsearch --end-profile-step 39 --resume", "killed", 0);
  ck_assert_int_eq(is_true(cJSON_GetArrayItem(member(json, "trials"), 0), "reused"), 0); /* other steps, other runs */
  cJSON_Delete(json);
}
END_TEST

/* ---- the profiled step of a training ---- */

static int lines_of(const char *text) {
  int lines = 0;
  for (; *text; text++) lines += *text == '\n';
  return lines;
}

/* Asserts that the measured and the predicted profile have the same labels, modules and parameters in the same order,
 * so that they can be compared side by side; figures may differ. */
static void assert_laid_side_by_side(const char *measured, const char *predicted) {
  ck_assert_int_eq(lines_of(measured), lines_of(predicted));
  int shown = 0;
  while (*measured && *predicted) {
    const size_t a = strcspn(measured, "\n"), b = strcspn(predicted, "\n"), colon = strcspn(predicted, ":{\n");
    const int heading = strncmp(predicted, "Profile Summary", 15) == 0;
    if (!heading && strncmp(predicted, "iter latency", 12) != 0)
      ck_assert_msg(strncmp(measured, predicted, colon) == 0, "%.*s\n%.*s", (int)a, measured, (int)b, predicted);
    shown += strstr(predicted, "GPT2Block") != NULL;
    measured += a + (measured[a] == '\n');
    predicted += b + (predicted[b] == '\n');
  }
  ck_assert_int_gt(shown, 0);
}

START_TEST(training_profiles_a_step) {
  tws_error err;
  char *text;
  size_t length;
  char config[512];
  snprintf(config, sizeof config,
           "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2, \"flops_profiler\": "
           "{\"enabled\": true, \"profile_step\": 2, \"top_modules\": 2, \"output_file\": \"%s\"}}",
           in_folder("profile.txt"));
  write_text(in_folder("profiled.json"), config);
  command_result r = twinspeed("train -m tiny-gpt2 -c %s --seq 32 -n 2 --threads 1 --steps 3 --data %s --trace %s",
                               in_folder("profiled.json"), text_path, in_folder("profiled.trace"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  ck_assert_int_eq(tws_read_file(in_folder("profile.txt"), 0, &text, &length, &err), TWS_OK);
  ck_assert_ptr_nonnull(strstr(text, "Profile Summary at step 2, times measured"));
  ck_assert_ptr_nonnull(strstr(text, "MFU = "));
  const char *job = "-m tiny-gpt2 --seq 32 -n 2 --threads 1 -c";
  r = twinspeed("profile %s %s", job, in_folder("profiled.json"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  assert_laid_side_by_side(text, r.out);
  command_free(&r);
  r = twinspeed("profile %s %s --measured %s", job, in_folder("profiled.json"), in_folder("profiled.trace"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  ck_assert_str_eq(strstr(r.out, "Notations:"), strstr(text, "Notations:")); /* the same step, the same words */
  command_free(&r);
  tws_free(text);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("tune_runs");
  TCase *tcase = tcase_create("tune_runs");
  tcase_set_timeout(tcase, 120);
  tcase_add_loop_test(tcase, failures_are_rows, 0, 3);
  tcase_add_test(tcase, trials_have_folders_of_monitors);
  tcase_add_test(tcase, corrected_profiles_are_kept);
  tcase_add_test(tcase, nothing_can_be_measured);
  tcase_add_test(tcase, killed_searches_resume);
  tcase_add_test(tcase, training_profiles_a_step);
  suite_add_tcase(suite, tcase);
  return run_training(suite);
}
