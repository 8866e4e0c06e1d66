/* Timelines: interning, the Chrome writer (parsed back), CSV, and the comparison of simulated with measured. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "tests/csv.h"
#include "tests/suite.h"
#include "traces/compare.h"
#include "traces/timeline.h"
#include "tests/members.h"

static const char *const streams[] = {"compute", "gather", "reduce"};
static const char *const phases[] = {"forward", "backward"};

static tws_timeline *make(const char *source) {
  tws_timeline *timeline = tws_timeline_create(source);
  ck_assert_ptr_nonnull(timeline);
  timeline->stream_names = streams;
  timeline->phase_names = phases;
  timeline->stream_count = 3;
  timeline->phase_count = 2;
  return timeline;
}

static void put(tws_timeline *timeline, const char *name, int rank, int stream, int phase, uint32_t op, uint32_t step,
                double start_s, double end_s) {
  const tws_event event = {.name = tws_timeline_name(timeline, name),
                           .rank = (uint16_t)rank,
                           .stream = (uint8_t)stream,
                           .phase = (uint8_t)phase,
                           .op = op,
                           .step = step,
                           .micro_batch = 1,
                           .start_s = start_s,
                           .end_s = end_s};
  ck_assert_uint_ne(event.name, UINT32_MAX);
  ck_assert_int_eq(tws_timeline_add(timeline, &event), 0);
}

static void temporary(char *path, size_t size, const char *name) {
  snprintf(path, size, "%s/timeline-%ld-%s", TWS_BUILD_DIR, (long)getpid(), name);
}

START_TEST(names_are_interned) {
  tws_timeline *timeline = make("simulated");
  char name[32];
  for (int round = 0; round < 2; round++) {
    for (uint32_t i = 0; i < 5000; i++) {
      snprintf(name, sizeof name, "forward h.%u linear", i);
      ck_assert_uint_eq(tws_timeline_name(timeline, name), i);
    }
  }
  ck_assert_uint_eq(timeline->name_count, 5000);
  tws_timeline_destroy(timeline);
  int length = -1;
  ck_assert_str_eq(tws_label_kind("forward h.3.attn.c_attn linear"), "linear");
  ck_assert_int_eq(strncmp(tws_label_module("forward h.3.attn.c_attn linear", &length), "h.3.attn.c_attn", 15), 0);
  ck_assert_int_eq(length, 15);
  tws_label_module("step adamw", &length);
  ck_assert_int_eq(length, 0);
  tws_label_module("adamw", &length);
  ck_assert_int_eq(length, 0);
  ck_assert_str_eq(tws_label_kind("adamw"), "adamw");
}
END_TEST

static const cJSON *find_event(const cJSON *events, const char *name, int pid) {
  const cJSON *event;
  cJSON_ArrayForEach(event, events) {
    const cJSON *item = cJSON_GetObjectItem(event, "name"), *process = cJSON_GetObjectItem(event, "pid");
    if (strcmp(item->valuestring, name) == 0 && process->valueint == pid) return event;
  }
  ck_abort_msg("no event %s in process %d", name, pid);
  return NULL;
}

START_TEST(chrome_trace_reads_back) {
  char path[512];
  tws_error err = {0};
  tws_json *json = NULL;
  tws_timeline *both[2] = {make("simulated"), make("measured")};
  put(both[0], "forward h.0 linear", 0, 0, 0, 7, 0, 0, 1.2345678e-3);
  put(both[0], "odd \"name\" \\ \t x", 1, 2, 1, 8, 0, 1e-3, 1e-3);
  put(both[1], "forward h.0 linear", 0, 0, 0, 7, 3, 100.5, 100.502); /* an offset: shifted to 0 */
  temporary(path, sizeof path, "trace.json");
  ck_assert_int_eq(tws_timeline_write_chrome((const tws_timeline *const *)both, 2, path, &err), TWS_OK);
  ck_assert_msg(tws_json_read(path, &json, &err) == TWS_OK, "%s", err.message);
  const cJSON *events = cJSON_GetObjectItem(json->root, "traceEvents");
  /* number of events: the leading entry, 3 processes x 2, 3 threads x 2, 3 operations */
  ck_assert_int_eq(cJSON_GetArraySize(events), 1 + 6 + 6 + 3);

  const cJSON *event = find_event(events, "forward h.0 linear", 1);
  ck_assert_str_eq(cJSON_GetObjectItem(event, "ph")->valuestring, "X");
  ck_assert_double_eq(number(event, "ts"), 0);
  ck_assert_double_eq_tol(number(event, "dur"), 1234.568, 1e-9);
  const cJSON *args = cJSON_GetObjectItem(event, "args");
  ck_assert_str_eq(cJSON_GetObjectItem(args, "phase")->valuestring, "forward");
  ck_assert_str_eq(cJSON_GetObjectItem(args, "module")->valuestring, "h.0");
  ck_assert_double_eq(number(args, "op"), 7);
  ck_assert_double_eq(number(args, "micro_batch"), 1);
  event = find_event(events, "odd \"name\" \\ \t x", 2);
  ck_assert_double_eq(number(event, "ts"), 1000);
  ck_assert_double_eq(number(event, "dur"), 0);
  event = find_event(events, "forward h.0 linear", 65537);
  ck_assert_double_eq(number(event, "ts"), 0);
  ck_assert_double_eq_tol(number(event, "dur"), 2000, 1e-6);
  event = find_event(events, "process_name", 65537);
  ck_assert_str_eq(cJSON_GetObjectItem(cJSON_GetObjectItem(event, "args"), "name")->valuestring, "measured rank 0");
  event = find_event(events, "thread_name", 2);
  ck_assert_str_eq(cJSON_GetObjectItem(cJSON_GetObjectItem(event, "args"), "name")->valuestring, "reduce");

  tws_json_destroy(json);
  unlink(path);
  put(both[0], "backwards in time", 0, 0, 0, 9, 0, 2, 1);
  ck_assert_int_eq(tws_timeline_write_chrome((const tws_timeline *const *)both, 2, path, &err), TWS_INTERNAL);
  ck_assert_ptr_nonnull(strstr(err.message, "backwards in time"));
  ck_assert_int_ne(access(path, F_OK), 0); /* nothing is left behind */
  both[0]->event_count--;
  ck_assert_int_eq(tws_timeline_write_chrome((const tws_timeline *const *)both, 2, "/no/such/folder/x.json", &err),
                   TWS_IO);
  tws_timeline_destroy(both[0]);
  tws_timeline_destroy(both[1]);
}
END_TEST

START_TEST(csv_reads_back) {
  char path[512];
  tws_error err = {0};
  csv_table *csv = NULL;
  tws_timeline *timeline = make("simulated");
  put(timeline, "forward \"a\", b linear", 3, 1, 0, 5, 2, 0.1, 1.0 / 3);
  temporary(path, sizeof path, "timeline.csv");
  ck_assert_int_eq(tws_timeline_write_csv((const tws_timeline *const *)&timeline, 1, path, &err), TWS_OK);
  ck_assert_msg(csv_read(path, &csv, &err) == TWS_OK, "%s", err.message);
  unlink(path);
  ck_assert_int_eq(csv->rows, 1);
  ck_assert_int_eq(csv->columns, 10);
  ck_assert_str_eq(csv->cells[csv_column(csv, "name")], "forward \"a\", b linear");
  ck_assert_double_eq(csv->numbers[csv_column(csv, "end_s")], 1.0 / 3); /* to the last bit */
  ck_assert_double_eq(csv->numbers[csv_column(csv, "rank")], 3);
  ck_assert(isnan(csv->numbers[csv_column(csv, "stream")]));
  ck_assert_int_eq(csv_column(csv, "none"), -1);
  csv_destroy(csv);
  tws_timeline_destroy(timeline);

  static const struct {
    const char *text, *says;
  } bad[] = {
      {"", "empty"}, {"a,b\n1\n", "bad.csv:2: 1 cells"}, {"a\n\"1\n", "no end"}, {"a\n\"1\"x\n", "after a quoted"}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    ck_assert_int_eq(csv_parse(bad[i].text, strlen(bad[i].text), "bad.csv", &csv, &err), TWS_INVALID);
    ck_assert_msg(strstr(err.message, bad[i].says) != NULL, "%s", err.message);
    ck_assert_ptr_null(csv);
  }
  ck_assert_int_eq(csv_parse("x,y\r\n1,\n", 8, "crlf", &csv, &err), TWS_OK);
  ck_assert_int_eq(csv->rows, 1);
  ck_assert_str_eq(csv->heading[1], "y");
  ck_assert_double_eq(csv->numbers[0], 1);
  csv_destroy(csv);
}
END_TEST

static const tws_comparison_row *row(const tws_comparison *c, tws_comparison_group group, const char *name) {
  for (int i = 0; i < c->row_count; i++) {
    if (c->rows[i].group == group && strcmp(c->rows[i].name, name) == 0) return &c->rows[i];
  }
  ck_abort_msg("no row %s", name);
  return NULL;
}

START_TEST(comparison_sums) {
  tws_error err = {0};
  tws_comparison *c = NULL;
  tws_text text = {0};
  tws_json *json = NULL;
  tws_timeline *simulated = make("simulated"), *measured = make("measured");
  for (int rank = 0; rank < 2; rank++) {
    put(simulated, "forward a linear", rank, 0, 0, 0, 0, 0, 1);
    put(simulated, "backward all_reduce", rank, 2, 1, 1, 0, 1, 1.5);
    for (int step = 5; step < 8; step++) {
      put(measured, "forward a linear", rank, 0, 0, 0, (uint32_t)step, 10 * step, 10 * step + 2);
      put(measured, "backward all_reduce", rank, 2, 1, 1, (uint32_t)step, 10 * step + 2, 10 * step + 2.4);
    }
  }
  put(simulated, "forward a linear", 2, 0, 0, 0, 0, 0, 100); /* a rank without measurements is ignored */
  ck_assert_msg(tws_timeline_compare(simulated, measured, &c, &err) == TWS_OK, "%s", err.message);
  ck_assert_int_eq(c->ranks, 2);
  ck_assert_int_eq(c->measured_steps, 3);
  ck_assert_double_eq_tol(row(c, TWS_COMPARE_STEP, "step")->simulated_s, 1.5, 1e-12);
  ck_assert_double_eq_tol(row(c, TWS_COMPARE_STEP, "step")->measured_s, 2.4, 1e-12);
  ck_assert_double_eq_tol(row(c, TWS_COMPARE_STEP, "step")->error, -0.375, 1e-12);
  ck_assert_double_eq_tol(row(c, TWS_COMPARE_PHASE, "forward")->measured_s, 2, 1e-12);
  ck_assert_double_eq_tol(row(c, TWS_COMPARE_STREAM, "reduce")->error, 0.25, 1e-9);
  ck_assert_double_eq_tol(row(c, TWS_COMPARE_KIND, "linear")->error, -0.5, 1e-12);
  ck_assert_str_eq(c->rows[c->row_count - 2].name, "forward a linear"); /* rows are sorted by difference, the largest
                                                                         * first */
  ck_assert_int_eq(tws_comparison_print(c, 1, &text, &err), TWS_OK);
  ck_assert_msg(tws_json_parse(text.data, text.length, "comparison", &json, &err) == TWS_OK, "%s", err.message);
  const cJSON *kinds = cJSON_GetObjectItem(json->root, "kind");
  ck_assert_int_eq(cJSON_GetArraySize(kinds), 2);
  ck_assert_double_eq_tol(number(cJSON_GetArrayItem(kinds, 0), "measured_s"), 2, 1e-9);
  tws_json_destroy(json);
  tws_text_free(&text);
  ck_assert_int_eq(tws_comparison_print(c, 0, &text, &err), TWS_OK);
  ck_assert_ptr_nonnull(strstr(text.data, "-37.5 %"));
  tws_text_free(&text);
  tws_comparison_destroy(c);

  put(measured, "forward b linear", 0, 0, 0, 9, 5, 50, 51); /* this operation is not in the simulated plan */
  ck_assert_int_eq(tws_timeline_compare(simulated, measured, &c, &err), TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.message, "different plans"));
  tws_timeline_destroy(measured);
  measured = make("measured");
  put(measured, "forward a linear", 9, 0, 0, 0, 0, 0, 1);
  ck_assert_int_eq(tws_timeline_compare(simulated, measured, &c, &err), TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.message, "no rank in common"));
  tws_timeline_destroy(simulated);
  tws_timeline_destroy(measured);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("timeline");
  TCase *tcase = tcase_create("timeline");
  tcase_add_test(tcase, names_are_interned);
  tcase_add_test(tcase, chrome_trace_reads_back);
  tcase_add_test(tcase, csv_reads_back);
  tcase_add_test(tcase, comparison_sums);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
