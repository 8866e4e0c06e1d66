/* ctest: mpi */
/* Monitors: TensorBoard's events, csv_monitor, JSON lines and Prometheus, each alone and in runs.
 * golden/events.tfevents was written by TensorBoard's own writer (tensorboard 2.21.0 and protobuf 7.36.2 on Python:
 * summary.writer's RecordWriter and event_pb2.Event), with what golden_events() has here. */
#include <check.h>
#include <lzma.h>
#include <math.h>
#include <signal.h>

#include "base/archive.h"
#include "base/json.h"
#include "command.h"
#include "estimators/phase_clock.h"
#include "failing_allocator.h"
#include "members.h"
#include "tests/folder.h"
#include "tests/suite.h"
#include "traces/event_record.h"
#include "traces/monitor.h"
#include "traces/plot.h"
#include "traces/wandb_record.h"

static tws_error err;

static char *slurp(const char *path, size_t *length) {
  char *text = NULL;
  size_t bytes;
  ck_assert_msg(tws_read_file(path, 0, &text, length ? length : &bytes, &err) == TWS_OK, "%s", err.message);
  return text;
}

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

static uint64_t little(const unsigned char *at, int bytes) {
  uint64_t value = 0;
  for (int i = bytes; i-- > 0;) value = value << 8 | at[i];
  return value;
}

static void check_sum(const unsigned char *bytes, size_t count) {
  const uint32_t crc = tws_crc32c(bytes, count);
  ck_assert_uint_eq(little(bytes + count, 4), (uint32_t)((crc >> 15 | crc << 17) + 0xa282ead8u));
}

/* Checks that a file consists of whole records with right checksums; returns their number. */
static int check_records(const char *path) {
  size_t length, at = 0;
  char *text = slurp(path, &length);
  const unsigned char *bytes = (const unsigned char *)text;
  int count = 0;
  for (; at < length; count++) {
    ck_assert_uint_ge(length - at, 16);
    const uint64_t size = little(bytes + at, 8);
    check_sum(bytes + at, 8);
    ck_assert_uint_ge(length - at - 16, size);
    check_sum(bytes + at + 12, size);
    at += 16 + size;
  }
  tws_free(text);
  return count;
}

/* Returns the path of the folder's event file number `number`, the oldest first; NULL: there are fewer. */
static const char *event_file(const char *path, int number) {
  static char found[512];
  char pattern[400], command[512];
  snprintf(pattern, sizeof pattern, "%s/events.out.tfevents.*", path);
  snprintf(command, sizeof command, "ls -tr %s 2>/dev/null | sed -n %dp", pattern, number + 1);
  FILE *list = popen(command, "r");
  *found = '\0';
  ck_assert_ptr_nonnull(list);
  if (fgets(found, sizeof found, list)) found[strcspn(found, "\n")] = '\0';
  pclose(list);
  return *found ? found : NULL;
}

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

/* Checks that a file consists of whole chunks with right checksums, those of liblzma; returns the number of records. */
static int check_chunks(const char *path) {
  enum { BLOCK = 32768, HEAD = 7, FULL = 1, LAST = 4 };
  size_t length, at = HEAD;
  char *text = slurp(path, &length);
  const unsigned char *bytes = (const unsigned char *)text;
  int count = 0, inside = 0;
  ck_assert(length > HEAD && memcmp(text, ":W&B\xe1\xbe\0", HEAD) == 0);
  while (at < length) {
    const size_t left = BLOCK - at % BLOCK;
    if (left < HEAD) {
      at += left;
      continue;
    }
    const size_t size = little(bytes + at + 4, 2);
    const int type = bytes[at + 6];
    ck_assert(size + HEAD <= left && at + HEAD + size <= length);
    ck_assert_uint_eq(lzma_crc32(bytes + at + HEAD, size, lzma_crc32(bytes + at + 6, 1, 0)), little(bytes + at, 4));
    ck_assert(inside ? type == 3 || type == LAST : type == FULL || type == 2);
    inside = type == 2 || type == 3;
    count += !inside;
    at += HEAD + size;
  }
  ck_assert(!inside);
  tws_free(text);
  return count;
}

/* Returns the only file in the folder whose name matches a shell pattern. */
static const char *found_file(const char *pattern) {
  static char found[512];
  char command[512];
  snprintf(command, sizeof command, "ls %s/%s", folder, pattern);
  FILE *list = popen(command, "r");
  ck_assert(list && fgets(found, sizeof found, list));
  found[strcspn(found, "\n")] = '\0';
  ck_assert(!fgets(command, sizeof command, list));
  pclose(list);
  return found;
}

/* ---- Comet ---- */

/* Returns the text of an entry of an archive, whose checksum is compared. */
static char *entry_of(const char *path, const char *name) {
  tws_archive *archive;
  ck_assert_msg(tws_archive_open(path, &archive, &err) == TWS_OK, "%s", err.message);
  ck_assert_uint_eq(archive->count, 2);
  const tws_archive_entry *entry = tws_archive_find(archive, name);
  ck_assert_ptr_nonnull(entry);
  ck_assert_msg(tws_archive_verify(archive, entry, &err) == TWS_OK, "%s", err.message);
  char *text = tws_calloc(entry->bytes + 1, 1);
  ck_assert_int_eq(tws_archive_read(archive, entry->begin, text, entry->bytes, &err), TWS_OK);
  tws_archive_close(archive);
  return text;
}

static int count_in(const char *text, const char *what) {
  int count = 0;
  for (; (text = strstr(text, what)); text += strlen(what)) count++;
  return count;
}

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

/* Returns how often the bytes are in a file. */
static int count_bytes(const char *path, const char *what, size_t size) {
  size_t length;
  int count = 0;
  char *text = slurp(path, &length);
  for (size_t i = 0; i + size <= length; i++) count += memcmp(text + i, what, size) == 0;
  tws_free(text);
  return count;
}
#define PNG "\x89PNG\r\n\x1a\n"

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

/* ---- runs ---- */

static char text_path[64], config_path[64], start[512];

static void write_inputs(void) {
  ck_assert_ptr_nonnull(getcwd(start, sizeof start));
  make_folder();
  snprintf(text_path, sizeof text_path, "%s/text", folder);
  snprintf(config_path, sizeof config_path, "%s/ds.json", folder);
  FILE *file = fopen(text_path, "w");
  for (int i = 0; i < 4000; i++) fputs(i * i % 7 ? "sea " : "ship ", file);
  fclose(file);
}

static void tidy_up(void) {
  ck_assert_int_eq(chdir(start), 0); /* without forks the next test runs in this process */
  remove_folder();
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
  ck_assert_int_eq(check_records(event_file(logs, 1)), 3 + 2); /* one says where it goes on */
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
  Suite *suite = suite_create("monitors");
  TCase *tests = tcase_create("monitors");
  tcase_add_checked_fixture(tests, write_inputs, tidy_up);
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
