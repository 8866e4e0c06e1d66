/* Traces read back and figures drawn from them. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/memory.h"
#include "plan/plan.h"
#include "tests/command.h"
#include "tests/folder.h"
#include "tests/suite.h"
#include "traces/plot.h"

static tws_error err;
static const char *const streams[] = {"compute", "gather", "reduce"}, *const phases[] = {"forward", "backward", "step"};

static tws_timeline *example(const char *source, int ranks) {
  tws_timeline *timeline = tws_timeline_create(source);
  timeline->stream_names = streams;
  timeline->stream_count = 3;
  timeline->phase_names = phases;
  timeline->phase_count = 3;
  for (int rank = 0; rank < ranks; rank++)
    for (int i = 0; i < 30; i++) {
      char name[64];
      snprintf(name, sizeof name, "%s h.%d linear", phases[i / 10], i % 3);
      tws_event event = {.name = tws_timeline_name(timeline, name),
                         .rank = (uint16_t)rank,
                         .stream = (uint8_t)(i % 3),
                         .phase = (uint8_t)(i / 10),
                         .op = (uint32_t)i,
                         .step = 4,
                         .micro_batch = (uint32_t)(i % 2),
                         .start_s = 1e-3 * i,
                         .end_s = 1e-3 * i + 1e-4 * (rank + 1)};
      ck_assert_int_eq(tws_timeline_add(timeline, &event), 0);
    }
  return timeline;
}

START_TEST(chrome_traces_are_read_back) {
  tws_timeline *both[] = {example("simulated", 1), example("measured", 3)}, *back;
  char path[128];
  snprintf(path, sizeof path, "%s/trace.json", folder);
  ck_assert_msg(tws_timeline_write_chrome((const tws_timeline *const *)both, 2, path, &err) == TWS_OK, "%s",
                err.message);
  ck_assert_msg(tws_timeline_read_chrome(path, "measured", streams, 3, phases, 3, &back, &err) == TWS_OK, "%s",
                err.message);
  ck_assert_uint_eq(back->event_count, 90);
  for (size_t i = 0; i < 90; i++) {
    const tws_event *a = &both[1]->events[i], *b = &back->events[i];
    ck_assert_str_eq(both[1]->names[a->name], back->names[b->name]);
    ck_assert_int_eq(a->rank, b->rank);
    ck_assert_int_eq(a->stream, b->stream);
    ck_assert_int_eq(a->phase, b->phase);
    ck_assert_uint_eq(a->op, b->op);
    ck_assert_uint_eq(a->step, b->step);
    ck_assert_uint_eq(a->micro_batch, b->micro_batch);
    ck_assert_double_eq_tol(a->start_s, b->start_s, 2e-9);
    ck_assert_double_eq_tol(a->end_s, b->end_s, 3e-9);
  }
  tws_timeline_destroy(back);
  ck_assert_int_eq(tws_timeline_read_chrome(path, "dreamt", streams, 3, phases, 3, &back, &err), TWS_INVALID);
  ck_assert_int_eq(tws_timeline_read_chrome(path, "measured", streams, 2, phases, 3, &back, &err), TWS_INVALID);
  ck_assert_int_eq(tws_timeline_read_chrome(path, "measured", streams, 3, phases, 1, &back, &err), TWS_INVALID);
  for (int i = 0; i < 2; i++) tws_timeline_destroy(both[i]);
}
END_TEST

static void check_picture(const char *path, const char *magic) {
  FILE *file = fopen(path, "r");
  char head[64] = "";
  ck_assert_msg(file != NULL, "%s", path);
  ck_assert_uint_gt(fread(head, 1, sizeof head - 1, file), 30);
  fclose(file);
  ck_assert_msg(strstr(head, magic) != NULL, "%s starts with %.20s", path, head);
}

/* Asserts that a figure's legend contains the text `there` and not the text `not_there`. */
static void check_legend(const char *name, const char *there, const char *not_there) {
  const int file = open(in_folder(name), O_RDONLY);
  ck_assert_msg(file >= 0, "%s", name);
  char *text = command_slurp(file);
  ck_assert_msg(strstr(text, there) != NULL, "%s: no %s", name, there);
  ck_assert_msg(strstr(text, not_there) == NULL, "%s: there is no %s", name, not_there);
  free(text);
}

START_TEST(figures_are_drawn) {
  if (!tws_plot_available()) return; /* without gnuplot the program says so and continues */
  const char *scripts = TWS_SOURCE_DIR "/scenarios/plots", *magic[] = {"PNG", "<svg"};
  tws_timeline *both[] = {example("simulated", 2), example("measured", 2)};
  tws_plot_point points[] = {{"Z0 n1", 0.2, 0.19, 0.22, 0.21}, {"Z3 n2 'quoted'", 0.3, 0.29, 0.31, 0.2}};
  tws_text csv = {0};
  tws_text_add(&csv, "op,phase,micro_batch,name"); /* one column more than a ledger has categories */
  for (int c = 0; c <= TWS_CATEGORY_COUNT; c++) tws_text_add(&csv, ",category %d", c);
  tws_text_add(&csv, ",total\n");
  for (int i = 0; i < 50; i++) {
    tws_text_add(&csv, "%d,%s,0,x linear", i, i < 30 ? "forward" : "step");
    for (int c = 0; c <= TWS_CATEGORY_COUNT; c++) tws_text_add(&csv, ",%d", (1 << 20) + (i << 16));
    tws_text_add(&csv, ",%d\n", (TWS_CATEGORY_COUNT + 1) * ((1 << 20) + (i << 16)));
  }
  for (int i = 0; i < 2; i++) {
    char path[128];
    const char *end = i ? "svg" : "png";
    snprintf(path, sizeof path, "%s/timeline.%s", folder, end);
    ck_assert_msg(
        tws_plot_timelines(scripts, (const tws_timeline *const *)both, 2, 2, "it's one step", path, &err) == TWS_OK,
        "%s", err.message);
    check_picture(path, magic[i]);
    snprintf(path, sizeof path, "%s/memory.%s", folder, end);
    ck_assert_msg(tws_plot_memory(scripts, csv.data, "memory", path, &err) == TWS_OK, "%s", err.message);
    check_picture(path, magic[i]);
    snprintf(path, sizeof path, "%s/accuracy.%s", folder, end);
    ck_assert_msg(tws_plot_accuracy(scripts, points, 2, "accuracy", path, &err) == TWS_OK, "%s", err.message);
    check_picture(path, magic[i]);
  }
  check_legend("timeline.svg", ">communication<", ">recomputation<");
  check_legend("timeline.svg", ">optimizer<", ">copies<");
  check_legend("memory.svg", ">forward<", ">backward<");
  char path[128];
  snprintf(path, sizeof path, "%s/x.png", folder);
  ck_assert_int_eq(tws_plot_memory(in_folder("none"), csv.data, "memory", path, &err), TWS_ENVIRONMENT);
  ck_assert_int_eq(tws_plot_memory(scripts, "op,phase\n", "memory", path, &err), TWS_INVALID);
  tws_text_free(&csv);
  for (int i = 0; i < 2; i++) tws_timeline_destroy(both[i]);
}
END_TEST

START_TEST(without_gnuplot) {
  const char *kept = getenv("PATH");
  char *path = kept ? strdup(kept) : NULL, out[128];
  setenv("PATH", in_folder("none"), 1);
  ck_assert_int_eq(tws_plot_available(), 0);
  tws_plot_point point = {"one", 1, 1, 1, 1};
  snprintf(out, sizeof out, "%s/x.png", folder);
  ck_assert_int_eq(tws_plot_accuracy(TWS_SOURCE_DIR "/scenarios/plots", &point, 1, "t", out, &err), TWS_ENVIRONMENT);
  ck_assert_ptr_nonnull(strstr(err.hint, "gnuplot"));
  if (path) setenv("PATH", path, 1);
  free(path);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("figures");
  TCase *tcase = tcase_create("figures");
  tcase_add_checked_fixture(tcase, make_folder, remove_folder);
  tcase_set_timeout(tcase, 120);
  tcase_add_test(tcase, chrome_traces_are_read_back);
  tcase_add_test(tcase, figures_are_drawn);
  tcase_add_test(tcase, without_gnuplot);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
