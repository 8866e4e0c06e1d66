/* ctest: mpi */
/* Monitors of runs: which files a training, its continuation, an emulation and runs that fail or are interrupted
 * leave, and what these contain. */
#include <check.h>
#include <math.h>
#include <signal.h>

#include "base/json.h"
#include "command.h"
#include "tests/monitor_files.h"
#include "tests/suite.h"
#include "traces/plot.h"

static char text_path[64], config_path[64];

static void write_inputs(void) {
  begin_in_folder();
  snprintf(text_path, sizeof text_path, "%s/text", folder);
  snprintf(config_path, sizeof config_path, "%s/ds.json", folder);
  FILE *file = fopen(text_path, "w");
  for (int i = 0; i < 4000; i++) fputs(i * i % 7 ? "sea " : "ship ", file);
  fclose(file);
}

static void file_of(const char *name) {
  FILE *file = fopen(in_folder(name), "w");
  ck_assert(file && fclose(file) == 0);
}

/* Writes a configuration with the monitors of DeepSpeed's documentation, in the test's folders, and the members
 * `more`. */
static void write_config(const char *more) {
  FILE *file = fopen(config_path, "w");
  fprintf(
      file,
      "{\"train_batch_size\": 8, \"twinspeed\": {\"sequence_length\": 32},\n"
      " \"tensorboard\": {\"enabled\": true, \"output_path\": \"%s/out/ds_logs/\", \"job_name\": \"train_bert\"},\n"
      " \"csv_monitor\": {\"enabled\": true, \"output_path\": \"%s/out/ds_logs/\", \"job_name\": \"train_bert\"}%s}\n",
      folder, folder, more);
  fclose(file);
}

static int count_lines(const char *path, const char *with) {
  char *text = slurp(path, NULL);
  int count = 0;
  for (char *at = text; (at = strstr(at, with)); at += strlen(with)) count++;
  tws_free(text);
  return count;
}

/* Returns the number of this name in a line of a file of JSON lines. */
static double number_of_line(const char *path, int line, const char *name) {
  char *text = slurp(path, NULL), *at = text;
  tws_json *json;
  while (line-- > 0) at = strchr(at, '\n') + 1;
  ck_assert_msg(tws_json_parse(at, strcspn(at, "\n"), path, &json, &err) == TWS_OK, "%s", err.message);
  const cJSON *item = cJSON_GetObjectItem(json->root, name);
  const double number = cJSON_IsNumber(item) ? item->valuedouble : NAN;
  tws_json_destroy(json);
  tws_free(text);
  return number;
}

static const char *with_images(void) {
  return tws_plot_available() ? " --set twinspeed.tensorboard_images=true" : "";
}

/* Asserts that the events contain the figures of memory and losses of a run with_images(). */
static void assert_images(const char *path) {
  if (!tws_plot_available()) return;
  ck_assert_int_eq(count_bytes(path, PNG, 8), 2);
  ck_assert_int_eq(count_bytes(path, "memory of rank 0, device", 24), 1);
  ck_assert_int_eq(count_bytes(path, "\x0a\4loss\x22", 7), 1);
}

#define RUN "train -m tiny-gpt2 -c %s --data %s -n 2 --threads 1 --quiet"

/* Only rank 0 writes; a resumed run appends to the files of JSON lines and Prometheus, and begins a new file of
 * events. */
START_TEST(a_run_and_its_continuation) {
  write_config(", \"wall_clock_breakdown\": true");
  const char *lines = in_folder("run.jsonl"), *prometheus = in_folder("run.prom"), *saved = in_folder("saved");
  command_result r = twinspeed(RUN " --steps 4 --save %s --json-lines %s --prometheus %s", config_path, text_path,
                               saved, lines, prometheus);
  ck_assert_msg(r.status == 0, "%s", r.err);
  ck_assert_msg(!*r.err, "no key is without effect: %s", r.err);
  ck_assert_ptr_nonnull(strstr(r.out, "time (ms) | fwd: "));
  command_free(&r);
  char logs[300];
  snprintf(logs, sizeof logs, "%s/out/ds_logs/train_bert", folder);
  ck_assert_int_eq(check_records(event_file(logs, 0)), 2 + 4);
  ck_assert_ptr_null(event_file(logs, 1));
  for (int i = 0; i < 4; i++) {
    const double step = number_of_line(lines, i, "step_ms"), forward = number_of_line(lines, i, "forward_ms");
    const double backward = number_of_line(lines, i, "backward_ms"),
                 inner = number_of_line(lines, i, "backward_inner_ms");
    const double reduction = number_of_line(lines, i, "reduction_ms"), end = number_of_line(lines, i, "optimizer_ms");
    ck_assert(forward > 0 && inner > 0 && reduction > 0 && end > 0);
    ck_assert(backward >= inner && backward >= reduction && backward <= inner + reduction + 1e-6);
    ck_assert(forward + backward + end <= step);
    ck_assert_double_eq(number_of_line(lines, i, "samples"), 8 * (i + 1));
    ck_assert_double_eq_tol(number_of_line(lines, i, "tokens_per_second"), 8 * 32 / step * 1e3,
                            1e-3 * 8 * 32 / step * 1e3);
    ck_assert(number_of_line(lines, i, "memory_device_bytes") > 1e6 && number_of_line(lines, i, "mfu") > 0);
    ck_assert(isnan(number_of_line(lines, i, "loss_scale")));
  }
  char saved_path[300], lines_path[300], prometheus_path[300];
  snprintf(saved_path, sizeof saved_path, "%s", saved);
  snprintf(lines_path, sizeof lines_path, "%s", lines);
  snprintf(prometheus_path, sizeof prometheus_path, "%s", prometheus);
  r = twinspeed(RUN " --steps 6 --json-lines %s", config_path, text_path, lines_path);
  ck_assert_msg(r.status == 2 && strstr(r.err, "--json-lines") && strstr(r.err, "exists"), "%d: %s", r.status, r.err);
  command_free(&r);
  r = twinspeed(RUN " --steps 6 --resume %s --json-lines %s --prometheus %s", config_path, text_path, saved_path,
                lines_path, prometheus_path);
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  ck_assert_int_eq(count_lines(lines_path, "\n"), 6);
  ck_assert_double_eq(number_of_line(lines_path, 5, "step"), 6);
  ck_assert_int_eq(count_lines(prometheus_path, "twinspeed_step{run=\"run\"} 6\n"), 1);
  char loss[400];
  snprintf(loss, sizeof loss, "%s/Train_Samples_train_loss.csv", logs);
  ck_assert_int_eq(count_lines(loss, "step,train_loss\r\n"), 1);
  ck_assert_int_eq(count_lines(loss, "\r\n"), 7);
  ck_assert_int_eq(count_lines(loss, "\r\n48,"), 1);
  ck_assert_int_eq(check_records(event_file(logs, 1)), 3 + 2); /* one says at which step it continues */
}
END_TEST

/* Monitors write the loss scales of fp16, skipped steps and losses of evaluations. */
START_TEST(numbers_of_fp16_and_evaluations) {
  write_config(", \"fp16\": {\"enabled\": true, \"initial_scale_power\": 40}");
  char logs[300], path[400];
  command_result r = twinspeed(
      "train -m tiny-gpt2 -c %s --data %s --eval-data %s --eval-every 2 --eval-steps 1 --quiet "
      "--threads 1 --steps 3 --prometheus %s%s",
      config_path, text_path, text_path, in_folder("half.prom"), with_images());
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  snprintf(logs, sizeof logs, "%s/out/ds_logs/train_bert", folder);
  snprintf(path, sizeof path, "%s/Train_Samples_loss_scale.csv", logs);
  ck_assert_int_eq(count_lines(path, "8,1099511627776\r\n"), 1);
  snprintf(path, sizeof path, "%s/Train_Samples_skipped.csv", logs);
  ck_assert_int_eq(count_lines(path, "8,1\r\n"), 1);
  snprintf(path, sizeof path, "%s/Train_Samples_eval_loss.csv", logs);
  ck_assert_int_eq(count_lines(path, "\r\n"), 3);
  ck_assert_int_eq(count_lines(path, "\r\n16,"), 1);
  assert_images(event_file(logs, 0));
}
END_TEST

/* Runs of Weights & Biases are written to its client's folder in the working directory, and a failed run is marked as
 * failed. No file contains a secret. */
START_TEST(offline_runs_of_wandb) {
  write_config(
      ", \"wandb\": {\"enabled\": true, \"team\": \"my_team\", \"group\": \"my_group\"}, "
      "\"comet\": {\"enabled\": true, \"online\": false, \"api_key\": \"sesame\"}");
  ck_assert_int_eq(chdir(folder), 0);
  command_result r = twinspeed(RUN " --steps 3", config_path, text_path);
  ck_assert_msg(r.status == 0, "%s", r.err);
  ck_assert_int_eq(count_in(r.err, "has no effect"), 1);
  ck_assert_ptr_nonnull(strstr(r.err, "\"comet.api_key\" has no effect: nothing is sent from here"));
  command_free(&r);
  const char *path = found_file("wandb/offline-run-*/run-*.wandb");
  char logs[300], *text;
  size_t length;
  ck_assert_int_eq(check_chunks(path), 2 + 2 * 3 + 1);
  text = slurp(path, &length);
  ck_assert(memmem(text, length, "my_team", 7) && memmem(text, length, "my_group", 8));
  ck_assert(memmem(text, length, "deepspeed", 9) && !memmem(text, length, "sesame", 6));
  tws_free(text);
  snprintf(logs, sizeof logs, "%s/out/ds_logs/train_bert", folder);
  text = slurp(event_file(logs, 0), &length);
  ck_assert(memmem(text, length, "my_team", 7) && !memmem(text, length, "sesame", 6));
  tws_free(text);
  text = entry_of(found_file(".cometml-runs/*.zip"), "messages.json");
  ck_assert(strstr(text, "\"train_batch_size\"") && !strstr(text, "sesame"));
  tws_free(text);
  file_of("wandb.jam");
  ck_assert_int_eq(rename(in_folder("wandb"), in_folder("earlier")), 0);
  ck_assert_int_eq(rename(in_folder("wandb.jam"), in_folder("wandb")), 0);
  r = twinspeed(RUN " --steps 3", config_path, text_path);
  ck_assert_msg(r.status == 4 && strstr(r.err, "wandb/offline-run-"), "%d: %s", r.status, r.err);
  command_free(&r);
}
END_TEST

START_TEST(folders_that_cannot_be_made) {
  write_config("");
  file_of("out");
  command_result r = twinspeed(RUN " --steps 4", config_path, text_path);
  ck_assert_msg(r.status == 4 && strstr(r.err, "out/ds_logs") && strstr(r.err, "folder"), "%d: %s", r.status, r.err);
  ck_assert_ptr_null(strstr(r.out, "\n     1  "));
  command_free(&r);
  r = twinspeed(RUN " --steps 4 --json-lines %s --force", config_path, text_path, text_path);
  ck_assert_msg(r.status == 2 && strstr(r.err, "is read by this command"), "%d: %s", r.status, r.err);
  command_free(&r);
}
END_TEST

/* A run that Ctrl-C ends leaves whole lines and records of the completed steps. */
START_TEST(interrupted_runs_leave_whole_records) {
  char logs[300], line[2048], loss[400];
  write_config("");
  snprintf(logs, sizeof logs, "%s/out/ds_logs/train_bert", folder);
  snprintf(loss, sizeof loss, "%s/Train_Samples_train_loss.csv", logs);
  snprintf(line, sizeof line, "%s", config_path);
  char *argv[] = {(char *)TWS_BUILD_DIR "/twinspeed",
                  (char *)"train",
                  (char *)"-m",
                  (char *)"tiny-gpt2",
                  (char *)"-c",
                  line,
                  (char *)"--data",
                  text_path,
                  (char *)"-n",
                  (char *)"2",
                  (char *)"--steps",
                  (char *)"100000",
                  (char *)"--threads",
                  (char *)"1",
                  (char *)"--quiet",
                  NULL};
  const pid_t child = fork();
  if (child == 0) {
    const int nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, 1);
    dup2(nowhere, 2);
    execv(argv[0], argv);
    _exit(126);
  }
  struct stat info;
  int status, ended = 0;
  while (!ended && (stat(loss, &info) != 0 || info.st_size < 2000)) {
    ended = waitpid(child, &status, WNOHANG) != 0;
    usleep(10000);
  }
  ck_assert(!ended);
  kill(child, SIGINT);
  ck_assert(command_ends(child, 120, &status));
  ck_assert(!WIFEXITED(status) || WEXITSTATUS(status) != 0);
  const int records = check_records(event_file(logs, 0));
  const int lines = count_lines(loss, "\r\n");
  ck_assert_int_ge(records, 3);
  ck_assert(lines - 1 - (records - 2) >= 0 && lines - 1 - (records - 2) <= 1); /* the line comes first */
}
END_TEST

/* Monitors of an emulation have the times of the virtual cluster and the losses of a training. */
START_TEST(emulated_runs) {
  write_config(", \"wall_clock_breakdown\": true");
  char lines[300], again[300], logs[300];
  snprintf(lines, sizeof lines, "%s", in_folder("emulated.jsonl"));
  snprintf(again, sizeof again, "%s", in_folder("trained.jsonl"));
  snprintf(logs, sizeof logs, "%s/out/ds_logs/train_bert", folder);
  command_result r = twinspeed(
      "emulate -m tiny-gpt2 -c %s --cluster dgx-a100:2x2 --dtype fp32 --data %s --steps 3 "
      "--quiet --json-lines %s%s",
      config_path, text_path, lines, with_images());
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  r = twinspeed(
      "train --virtual -m tiny-gpt2 -c %s --cluster dgx-a100:2x2 --dtype fp32 --data %s --steps 3 --quiet "
      "--json-lines %s",
      config_path, text_path, again);
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  for (int i = 0; i < 3; i++) {
    static const char *const same[] = {"loss", "step_ms", "forward_ms", "backward_ms", "reduction_ms", "optimizer_ms"};
    for (size_t k = 0; k < sizeof same / sizeof *same; k++) {
      const double value = number_of_line(lines, i, same[k]);
      ck_assert_msg(value > 0 && value == number_of_line(again, i, same[k]), "%s: %g", same[k], value);
    }
    const double sum = number_of_line(lines, i, "forward_ms") + number_of_line(lines, i, "backward_ms");
    ck_assert(sum < number_of_line(lines, i, "step_ms"));
  }
  const double passed = number_of_line(lines, 2, "time") - number_of_line(lines, 1, "time");
  ck_assert_double_eq_tol(1e3 * passed, number_of_line(lines, 2, "step_ms"), 2e-3);
  ck_assert_int_eq(check_records(event_file(logs, 0)), 2 + 3 + 2 * tws_plot_available());
  assert_images(event_file(logs, 0));
  ck_assert_int_eq(check_records(event_file(logs, 1)), 2 + 3);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("monitored_runs");
  TCase *tests = tcase_create("monitored_runs");
  tcase_add_checked_fixture(tests, write_inputs, tidy_up);
  tcase_add_test(tests, a_run_and_its_continuation);
  tcase_add_test(tests, numbers_of_fp16_and_evaluations);
  tcase_add_test(tests, offline_runs_of_wandb);
  tcase_add_test(tests, folders_that_cannot_be_made);
  tcase_add_test(tests, interrupted_runs_leave_whole_records);
  tcase_add_test(tests, emulated_runs);
  suite_add_tcase(suite, tests);
  setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* for the ranks: LeakSanitizer would report memory that MPI never
                                                * frees */
  return run_suite(suite);
}
