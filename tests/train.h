/* Helpers of the suites that train: a text to train on, jobs of tests/ranks_engine.c and their losses. */
#ifndef TWS_TESTS_TRAIN_H
#define TWS_TESTS_TRAIN_H

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include "base/random.h"
#include "command.h"
#include "folder.h"
#include "sanitized.h"
#include "suite.h"

static char text_path[64];

/* Writes an English-looking text: words of a short list, earlier ones more often. */
static inline void write_story(const char *path, size_t bytes) {
  static const char *const words[] = {"the",     "of",     "and",    "a",     "sea",  "ship",  "wind",
                                      "captain", "night",  "was",    "over",  "came", "under", "white",
                                      "harbour", "light",  "never",  "again", "song", "old",   "stone",
                                      "river",   "winter", "called", "home"};
  FILE *file = fopen(path, "w");
  size_t written = 0;
  for (uint64_t i = 0; written < bytes; i++) {
    double u = tws_random_uniform(5, 1, i);
    int n = fprintf(file, "%s%s", words[(int)(u * u * 25.0)], i % 11 == 10 ? ".\n" : " ");
    written += (size_t)n;
  }
  fclose(file);
}

static inline void set_up(void) {
  make_folder();
  snprintf(text_path, sizeof text_path, "%s/story.txt", folder);
  write_story(text_path, 40000);
  setenv("DATA", text_path, 1);
  setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* for the ranks: LeakSanitizer would report memory that MPI never
                                                * frees */
}

/* Runs a suite in a folder of its own, with a text at `text_path`; returns main()'s status. */
static inline int run_training(Suite *suite) {
  set_up();
  const int status = run_suite(suite);
  remove_folder();
  return status;
}

/* ---- jobs of ranks_engine ---- */

/* Comparisons with another training need fewer steps, and under the sanitizers still fewer, because all steps run the
 * same code. */
enum { STEPS = 20, FEW_STEPS = TWS_SANITIZED ? 6 : 12, MAX_JOBS = 64, WORLDS = 4 };
typedef struct curve {
  char name[64];
  int steps;
  double loss[STEPS], norm[STEPS], eval[STEPS]; /* NaN where there was none */
} curve;
static curve curves[WORLDS][MAX_JOBS]; /* by log2(ranks) */
static int curve_count[WORLDS];

static const char settings[] =
    "\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"lr\":0.003,\"weight_decay\":0.1}},\"gradient_clipping\":1.0,"
    "\"scheduler\":{\"type\":\"WarmupLR\",\"params\":{\"warmup_num_steps\":5,\"warmup_max_lr\":0.003}},"
    "\"train_batch_size\":8";

static inline void read_curves(const char *path, int k) {
  char line[4096], *at;
  FILE *file = fopen(path, "r");
  ck_assert_ptr_nonnull(file);
  while (curve_count[k] < MAX_JOBS && fgets(line, sizeof line, file)) {
    curve c = {.steps = 0};
    int read = 0;
    ck_assert_int_eq(sscanf(line, "%63s%n", c.name, &read), 1);
    for (at = line + read; *at != '\n'; at += read, c.steps++) {
      ck_assert_int_lt(c.steps, STEPS);
      ck_assert_int_eq(sscanf(at, "%lf %lf %lf%n", &c.loss[c.steps], &c.norm[c.steps], &c.eval[c.steps], &read), 3);
    }
    curves[k][curve_count[k]++] = c;
  }
  fclose(file);
}

static inline void run_jobs(int k, const char *jobs) {
  const char *out = in_folder("curves");
  curve_count[k] = 0;
  command_result r = twinspeed("launch --quiet -n %d --threads 1 -- %s/tests/ranks_engine train %s %s", 1 << k,
                               TWS_BUILD_DIR, jobs, out);
  ck_assert_msg(r.status == 0, "%s%s", r.out, r.err);
  command_free(&r);
  read_curves(out, k);
}

static inline const curve *find(int k, const char *name) {
  for (int i = 0; i < curve_count[k]; i++)
    if (strcmp(curves[k][i].name, name) == 0) return &curves[k][i];
  ck_abort_msg("no results for %s", name);
  return NULL;
}

/* ---- jobs of the program ---- */

#define JOB "train -m tiny-gpt2 --seq 32 --micro-batch 2 --stage 2 -n 3 --data "
#define AXES_JOB "train -m tiny-gpt2 --seq 32 --pp 2 --tp 2 --accumulation 4 -n 4 --data "

#endif
