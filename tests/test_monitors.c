/* Monitors: TensorBoard's events, csv_monitor, JSON lines, Prometheus, Weights & Biases and Comet, each alone; those of
 * runs are in test_monitored_runs.c.
 * golden/events.tfevents was written by TensorBoard's own writer (tensorboard 2.21.0 and protobuf 7.36.2 on Python:
 * summary.writer's RecordWriter and event_pb2.Event), with what golden_events() has here. */
#include <math.h>

#include "estimators/phase_clock.h"
#include "failing_allocator.h"
#include "members.h"
#include "tests/monitor_files.h"
#include "tests/suite.h"
#include "traces/monitor.h"
#include "traces/plot.h"
#include "traces/wandb_record.h"

static const tws_step_report whole_report = {
    .step = 38,
    .samples = 308,
    .at_s = 1700000002.125,
    .loss = 5.25,
    .lr = 0.001,
    .gradient_norm = NAN,
    .seconds = 0.004,
    .tokens_per_s = 64000,
    .samples_per_s = 2000,
    .model_flops_per_s = 1e9,
    .mfu = 0.5,
    .loss_scale = 65536,
    .has_scale = 1,
    .skipped = 1,
    .evaluated = 1,
    .eval_loss = INFINITY,
    .eval_seconds = 0.008,
    .data_wait_s = 0.000125,
    .is_timed = 1,
    .phase = {0.001, 0.0025, 0.002, 0.0005, 0.00025},
    .memory_bytes = {[TWS_TIER_DEVICE] = 1 << 20, [TWS_TIER_HOST] = 3000000000}};

/* ---- event files ---- */

static void golden_events(tws_text *out) {
  tws_text text = {0};
  for (int i = 0; i < 100; i++) tws_text_add(&text, "x\xc3\xa9 ");
  tws_text_add(&text, "\n");
  tws_event_version(out, 1700000000.25);
  tws_event_start(out, 1700000000.25, 301);
  tws_event_text(out, "configuration", text.data, 1700000000.25, 300);
  tws_event_scalar(out, "zero", 0.0f, 1700000001.5, 0);
  tws_event_scalar(out, "a/b", -1.5e-3f, 1700000001.5, INT64_C(1) << 40);
  tws_event_step(out, &whole_report);
  text.length = 0;
  tws_text_add_bytes(&text, "\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\2\0\0\1\x2c\x08\2\0\0\0\x66\x05\xf5\x81", 33);
  tws_event_image(out, "loss", &text, 1700000003.5, 308);
  tws_text_free(&text);
}

/* Requires that the text has the bytes of the file at `path`, and frees it. */
static void assert_golden(tws_text *out, const char *path) {
  size_t length;
  char *golden = slurp(path, &length);
  ck_assert(!out->failed);
  for (size_t i = 0; i < length && i < out->length; i++)
    ck_assert_msg(out->data[i] == golden[i], "byte %zu of %zu is %02x, not %02x", i, length, out->data[i] & 255,
                  golden[i] & 255);
  ck_assert_uint_eq(out->length, length);
  tws_text_free(out);
  tws_free(golden);
}

START_TEST(events_are_those_of_tensorboard) {
  tws_text out = {0};
  ck_assert_uint_eq(tws_crc32c("123456789", 9), 0xe3069283);
  golden_events(&out);
  assert_golden(&out, TWS_TEST_DIR "/golden/events.tfevents");
}
END_TEST

/* ---- Weights and Biases ---- */

static void golden_run(tws_text *out) {
  cJSON *configuration = cJSON_Parse("{\"a\": 1, \"b\": {\"c\": \"x\", \"d\": [1, 2.5]}}");
  const tws_wandb_run run = {.id = "abcd1234",
                             .team = "team",
                             .project = "deepspeed",
                             .group = "g",
                             .host = "here",
                             .configuration = configuration,
                             .start_s = 1700000000.25};
  tws_wandb_log log = {.run = &run};
  tws_wandb_begin(&log, out);
  tws_wandb_step(&log, &whole_report, out);
  tws_wandb_exit(&log, 5, 1700000009.5, out);
  tws_text_free(&log.record);
  cJSON_Delete(configuration);
}

START_TEST(records_are_those_of_wandb) {
  tws_text out = {0};
  golden_run(&out);
  assert_golden(&out, TWS_TEST_DIR "/golden/run.wandb");
}
END_TEST

/* ---- Comet ---- */

static void check_messages(const char *text) {
  static const char *const parts[] = {
      "{\"payload\":{\"key\":\"Name\",\"message_id\":2,\"value\":\"one\"},\"type\":\"log_other\"}\n",
      "\"paramName\":\"a|b\",\"paramValue\":\"[1,2]\"",
      "\"paramName\":\"a|c\",\"paramValue\":true",
      "{\"payload\":{\"local_timestamp\":1700000002125,\"message_id\":5,\"metric\":{\"epoch\":null,",
      "\"metricName\":\"Train/Samples/train_loss\",\"metricValue\":5.25,\"step\":308}},\"type\":\"metric_msg\"}\n",
      "\"metricValue\":NaN,"};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    ck_assert_msg(strstr(text, parts[i]) != NULL, "no %s in %s", parts[i], text);
}

static void check_experiment(const char *path, const char *key) {
  char *text = entry_of(path, "experiment.json");
  tws_json *json;
  ck_assert_msg(tws_json_parse(text, strlen(text), "experiment", &json, &err) == TWS_OK, "%s: %s", err.message, text);
  ck_assert_str_eq(member(json->root, "offline_id")->valuestring, key);
  ck_assert_str_eq(member(json->root, "project_name")->valuestring, "my \"project\"");
  ck_assert_str_eq(member(json->root, "resume_strategy")->valuestring, "get_or_create");
  ck_assert(cJSON_IsNull(member(json->root, "workspace")));
  ck_assert_double_eq(number(json->root, "start_time"), 1700000000250.0);
  ck_assert_double_eq(number(json->root, "stop_time"), 1700000002125.0);
  tws_json_destroy(json);
  tws_free(text);
}

/* Comet's archives are complete after every step, without being closed; numbers are written at the interval of samples;
 * an existing file of the same name stays. */
START_TEST(archives_of_comet) {
  static const char key[] = "abcdefabcdefabcdefabcdefabcdef12";
  static const char path[] = ".cometml-runs/abcdefabcdefabcdefabcdefabcdef12.zip";
  const tws_comet_section comet = {.samples_log_interval = 16,
                                   .project = "my \"project\"",
                                   .experiment_name = "one",
                                   .experiment_key = key,
                                   .mode = "get_or_create"};
  const tws_monitor_setup setup = {
      .comet = &comet, .configuration = "{\"a\": {\"b\": [1, 2], \"c\": true}}", .now_s = 1700000000.25};
  tws_sink *sink, *second;
  tws_step_report report = whole_report;
  char *text;
  ck_assert_int_eq(chdir(folder), 0);
  ck_assert_msg(tws_comet_sink_open(&setup, &sink, &err) == TWS_OK, "%s", err.message);
  for (int i = 0; i < 5; i++, report.samples += 8) {
    ck_assert_int_eq(sink->write(sink, &report, &err), TWS_OK);
    text = entry_of(path, "messages.json");
    ck_assert_int_eq(count_in(text, "\"metricName\":\"Train/Samples/train_loss\""), i / 2 + 1);
    if (i == 4) check_messages(text);
    tws_free(text);
  }
  check_experiment(path, key);
  ck_assert_int_eq(tws_comet_sink_open(&setup, &second, &err), TWS_OK);
  ck_assert_int_eq(second->close(second, TWS_OK, &err), TWS_OK);
  ck_assert_int_eq(access(".cometml-runs/abcdefabcdefabcdefabcdefabcdef12-2.zip", R_OK), 0);
  ck_assert_int_eq(sink->close(sink, TWS_OK, &err), TWS_OK);
  const tws_comet_section wrong = {.experiment_key = "../../escaped"};
  const tws_monitor_setup outside = {.comet = &wrong, .now_s = 1};
  ck_assert_int_eq(tws_comet_sink_open(&outside, &sink, &err), TWS_INVALID);
}
END_TEST

/* ---- sinks ---- */

static void assert_text(const char *path, const char *wanted) {
  char *text = slurp(path, NULL);
  ck_assert_msg(strcmp(text, wanted) == 0, "%s: %s", path, text);
  tws_free(text);
}

static void write_with(tws_code (*open)(const char *path, tws_sink **out, tws_error *err), const char *path,
                       const tws_step_report *report) {
  tws_sink *sink;
  ck_assert_msg(open(path, &sink, &err) == TWS_OK, "%s", err.message);
  ck_assert_msg(sink->write(sink, report, &err) == TWS_OK, "%s", err.message);
  ck_assert_int_eq(sink->close(sink, TWS_OK, &err), TWS_OK);
}

START_TEST(csv_files_have_one_heading) {
  char path[300];
  snprintf(path, sizeof path, "%s", in_folder("a/b/job"));
  write_with(tws_csv_sink_open, path, &whole_report);
  tws_step_report next = whole_report;
  next.samples = 316;
  next.loss = 1.0 / 3;
  next.evaluated = next.is_timed = 0;
  write_with(tws_csv_sink_open, path, &next);
  assert_text(in_folder("a/b/job/Train_Samples_train_loss.csv"), "step,train_loss\r\n308,5.25\r\n316,0.333333333\r\n");
  assert_text(in_folder("a/b/job/Train_Samples_gradient_norm.csv"), "step,gradient_norm\r\n308,nan\r\n316,nan\r\n");
  assert_text(in_folder("a/b/job/Train_Samples_eval_loss.csv"), "step,eval_loss\r\n308,inf\r\n");
  assert_text(in_folder("a/b/job/Train_Samples_elapsed_time_ms_backward_allreduce.csv"),
              "step,elapsed_time_ms_backward_allreduce\r\n308,0.5\r\n");
  assert_text(in_folder("a/b/job/Train_Memory_host_bytes.csv"),
              "step,host_bytes\r\n308,3000000000\r\n316,3000000000\r\n");
  tws_sink *sink;
  remove(in_folder("a/b/job/Train_Samples_lr.csv"));
  ck_assert_int_eq(symlink(in_folder("elsewhere"), in_folder("a/b/job/Train_Samples_lr.csv")), 0);
  ck_assert_int_eq(tws_csv_sink_open(path, &sink, &err), TWS_OK);
  ck_assert_int_eq(sink->write(sink, &next, &err), TWS_IO);
  ck_assert_msg(strstr(err.message, "Train_Samples_lr.csv") && strstr(err.message, "link"), "%s", err.message);
  ck_assert_int_eq(sink->close(sink, TWS_OK, NULL), TWS_OK);
  ck_assert_int_ne(access(in_folder("elsewhere"), F_OK), 0);
}
END_TEST

static tws_code open_lines(const char *path, tws_sink **out, tws_error *e) {
  return tws_lines_sink_open(path, 0, out, e);
}
static tws_code append_lines(const char *path, tws_sink **out, tws_error *e) {
  return tws_lines_sink_open(path, 1, out, e);
}

START_TEST(lines_and_prometheus) {
  char path[300];
  snprintf(path, sizeof path, "%s", in_folder("lines"));
  write_with(open_lines, path, &whole_report);
  char *once = slurp(path, NULL), *twice;
  tws_json *json;
  ck_assert_msg(tws_json_parse(once, strlen(once), "line", &json, &err) == TWS_OK, "%s: %s", err.message, once);
  ck_assert_double_eq(number(json->root, "loss"), 5.25);
  ck_assert_double_eq(number(json->root, "memory_host_bytes"), 3e9);
  ck_assert(cJSON_IsNull(cJSON_GetObjectItem(json->root, "gradient_norm")));
  ck_assert(cJSON_IsNull(cJSON_GetObjectItem(json->root, "eval_loss")));
  tws_json_destroy(json);
  write_with(append_lines, path, &whole_report);
  twice = slurp(path, NULL);
  ck_assert(strlen(twice) == 2 * strlen(once) && strcmp(twice + strlen(once), once) == 0);
  tws_free(twice);
  tws_free(once);
  write_with(tws_prometheus_sink_open, in_folder("a \"run\".prom"), &whole_report);
  char *text = slurp(in_folder("a \"run\".prom"), NULL);
  ck_assert_ptr_nonnull(strstr(text,
                               "# HELP twinspeed_loss Loss of the step.\n# TYPE twinspeed_loss gauge\n"
                               "twinspeed_loss{run=\"a \\\"run\\\"\"} 5.25\n"));
  ck_assert_ptr_nonnull(strstr(text, "twinspeed_step_end_seconds{run=\"a \\\"run\\\"\"} 1700000002.125\n"));
  ck_assert_ptr_nonnull(strstr(text, "} NaN\n"));
  ck_assert_ptr_nonnull(strstr(text, "} +Inf\n"));
  tws_free(text);
}
END_TEST

/* Monitors open their files in the first step, and later steps allocate no memory. */
START_TEST(steps_take_no_memory) {
  char csv[300], events[300], lines[300], prometheus[300];
  snprintf(csv, sizeof csv, "%s", in_folder("csv"));
  snprintf(events, sizeof events, "%s", in_folder("events"));
  snprintf(lines, sizeof lines, "%s", in_folder("no.jsonl"));
  snprintf(prometheus, sizeof prometheus, "%s", in_folder("no.prom"));
  const tws_wandb_section wandb = {.enabled = 1, .project = "p"};
  const tws_comet_section comet = {.samples_log_interval = 0};
  const tws_monitor_setup setup = {.csv_folder = csv,
                                   .event_folder = events,
                                   .wandb = &wandb,
                                   .comet = &comet,
                                   .lines_path = lines,
                                   .prometheus_path = prometheus};
  ck_assert_int_eq(chdir(folder), 0);
  tws_monitor *monitor;
  tws_step_report report = whole_report;
  failing_allocator counter = {.countdown = -1};
  tws_set_allocator(&(tws_allocator){failing_resize, &counter});
  ck_assert_msg(tws_monitor_open_sinks(&setup, &monitor, &err) == TWS_OK, "%s", err.message);
  const long before = counter.calls;
  for (; report.step < 1038; report.step++, report.samples += 8)
    ck_assert_int_eq(tws_monitor_step(monitor, &report, &err), TWS_OK);
  ck_assert_int_eq(counter.calls, before);
  ck_assert_int_eq(tws_monitor_close(monitor, TWS_OK, &err), TWS_OK);
  ck_assert_int_eq(counter.held, 0);
  tws_set_allocator(NULL);
  ck_assert_int_eq(check_records(event_file(events, 0)), 1001);
  ck_assert_int_eq(check_chunks(found_file("wandb/offline-run-*/run-*.wandb")), 2 + 2 * 1000 + 1); /* many blocks */
  char *messages = entry_of(found_file(".cometml-runs/*.zip"), "messages.json");
  ck_assert_int_eq(count_in(messages, "\"Train/Samples/lr\""), 1000);
  tws_free(messages);
  char *text = slurp(prometheus, NULL); /* Prometheus has the last step, whatever the interval */
  ck_assert_ptr_nonnull(strstr(text, "twinspeed_step{run=\"no\"} 1037\n"));
  tws_free(text);
}
END_TEST

static tws_code open_all(void *setup) {
  tws_monitor *monitor;
  TWS_TRY(tws_monitor_open_sinks(setup, &monitor, NULL));
  return tws_monitor_close(monitor, TWS_OK, NULL);
}

START_TEST(every_allocation_may_fail) {
  long bad;
  const tws_wandb_section wandb = {.enabled = 1};
  const tws_comet_section comet = {.experiment_name = "one"};
  tws_monitor_setup setup = {.csv_folder = folder,
                             .event_folder = folder,
                             .wandb = &wandb,
                             .comet = &comet,
                             .configuration = "{\"a\": {\"b\": [1]}}"};
  ck_assert_int_eq(chdir(folder), 0);
  ck_assert_int_gt(fail_every_allocation(open_all, &setup, &bad), 3);
  ck_assert_int_eq(bad, 0);
}
END_TEST

/* ---- figures ---- */

/* Figures of more steps than a figure has points are drawn without memory after the first step, and a run that failed
 * draws none. */
START_TEST(figures_of_long_runs) {
  char events[300];
  snprintf(events, sizeof events, "%s", in_folder("events"));
  const tws_monitor_images images = {.plots = TWS_SOURCE_DIR "/scenarios/plots",
                                     .memory = {[TWS_TIER_DEVICE] = "op,phase,micro_batch,name,parameters,total\n"
                                                                    "0,forward,0,x,1,1\n1,step,0,y,2,2\n"}};
  const tws_monitor_setup setup = {.event_folder = events, .images = &images, .now_s = 1700000000};
  for (int fails = 0; fails < 2 && tws_plot_available(); fails++) {
    tws_sink *sink;
    tws_step_report report = whole_report;
    failing_allocator counter = {.countdown = -1};
    ck_assert_msg(tws_event_sink_open(&setup, &sink, &err) == TWS_OK, "%s", err.message);
    tws_set_allocator(&(tws_allocator){failing_resize, &counter});
    for (; report.step < 10000 / (1 + 9 * fails); report.step++, report.samples += 8, report.loss *= 0.9999)
      ck_assert_int_eq(sink->write(sink, &report, &err), TWS_OK);
    tws_set_allocator(NULL);
    ck_assert_int_eq(counter.calls, 0);
    ck_assert_msg(sink->close(sink, fails ? TWS_RANK : TWS_OK, &err) == TWS_OK, "%s", err.message);
    ck_assert_int_eq(count_bytes(event_file(events, fails), PNG, 8), fails ? 1 : 2);
  }
  char *path = strdup(getenv("PATH"));
  tws_sink *sink;
  setenv("PATH", folder, 1);
  ck_assert_int_eq(tws_event_sink_open(&setup, &sink, &err), TWS_ENVIRONMENT);
  ck_assert_msg(strstr(err.message, "twinspeed.tensorboard_images") != NULL, "%s", err.message);
  setenv("PATH", path, 1);
  free(path);
}
END_TEST

/* ---- times of passes ---- */

/* The seconds of a pass are the union of its operations' intervals: times that overlap on two streams count once. */
START_TEST(passes_are_unions_of_intervals) {
  tws_op ops[5] = {
      {.kind = TWS_OP_COMPUTE, .phase = TWS_PHASE_FORWARD, .stream = 0},
      {.kind = TWS_OP_COMPUTE, .phase = TWS_PHASE_BACKWARD, .stream = 0},
      {.kind = TWS_OP_COLLECTIVE, .phase = TWS_PHASE_BACKWARD, .stream = 1, .channel = TWS_CHANNEL_REPLICAS},
      {.kind = TWS_OP_COMPUTE, .phase = TWS_PHASE_RECOMPUTE, .stream = 0},
      {.kind = TWS_OP_COMPUTE, .phase = TWS_PHASE_STEP, .stream = 0}};
  tws_work works[1] = {{.kind = TWS_OP_COLLECTIVE, .code = TWS_COLLECTIVE_REDUCE_SCATTER}};
  const tws_plan plan = {.ops = ops, .op_count = 5, .works = works, .work_count = 1};
  const double times[] = {0, 2, 3, 5, 4, 8, 5, 6, 9, 10};
  tws_phase_clock *clock;
  ck_assert_int_eq(tws_phase_clock_create(&plan, &clock, &err), TWS_OK);
  const tws_phase_seconds p = tws_phase_clock_read(clock, times);
  ck_assert_double_eq(p.forward, 2);
  ck_assert_double_eq(p.backward_inner, 3);
  ck_assert_double_eq(p.reduction, 4);
  ck_assert_double_eq(p.backward, 5);
  ck_assert_double_eq(p.step, 1);
  tws_phase_clock_destroy(clock);
}
END_TEST

/* ---- documentation ---- */

START_TEST(numbers_are_documented) {
  char *text = slurp(TWS_SOURCE_DIR "/docs/monitoring.md", NULL), row[400];
  for (int i = 0; i < TWS_STEP_VALUE_COUNT; i++) {
    const tws_step_value_row *v = tws_step_value_of(i);
    snprintf(row, sizeof row, "| `%s` | `%s` | %s |\n", v->tag, v->name, v->help);
    ck_assert_msg(strstr(text, row) != NULL, "docs/monitoring.md lacks %s", row);
  }
  tws_free(text);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("monitors");
  TCase *tests = tcase_create("monitors");
  tcase_add_checked_fixture(tests, begin_in_folder, tidy_up);
  tcase_add_test(tests, events_are_those_of_tensorboard);
  tcase_add_test(tests, figures_of_long_runs);
  tcase_add_test(tests, records_are_those_of_wandb);
  tcase_add_test(tests, archives_of_comet);
  tcase_add_test(tests, csv_files_have_one_heading);
  tcase_add_test(tests, lines_and_prometheus);
  tcase_add_test(tests, steps_take_no_memory);
  tcase_add_test(tests, every_allocation_may_fail);
  tcase_add_test(tests, passes_are_unions_of_intervals);
  tcase_add_test(tests, numbers_are_documented);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
