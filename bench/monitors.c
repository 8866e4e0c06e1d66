/* bench: engine */
/* Measures the cost of monitors: the demo's model trains on one rank of one thread, and one step of each pair is passed
 * to all of them - TensorBoard, csv_monitor, wandb, comet, JSON lines, Prometheus - with the times of its passes
 * (wall_clock_breakdown), and recorded by the communication log; within a pair the order is drawn. Prints the mean
 * difference of the pairs with its 95 % interval, in seconds of the clock and of the processor, as shares of a step
 * without monitors.
 *
 * bench-monitors [PAIRS]   default 400. Files go into a folder of TMPDIR that is removed. */
#include <ftw.h>
#include <inttypes.h>
#include <math.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/output_file.h"
#include "base/random.h"
#include "bench/support.h"
#include "job/job.h"
#include "real/train_internal.h"
#include "traces/monitor.h"

enum { WARM_UP = 10, MOST_PAIRS = 100000 };
static char folder[256];

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *where) {
  (void)status, (void)type, (void)where;
  return remove(path);
}

static const char *in_folder(const char *name, char path[320]) {
  snprintf(path, 320, "%s/%s", folder, name);
  return path;
}

static void write_text(const char *path) {
  tws_text text = {0};
  tws_error err = {0};
  for (uint64_t i = 0; text.length < 200000; i++) /* the content of the text does not affect the time */
    tws_text_add(&text, "%c", (char)('a' + (int)(26 * tws_random_uniform(1, 2, i))));
  need(tws_write_file(path, text.data, text.length, &err), &err);
  tws_text_free(&text);
}

static void prepare(tws_training *t, tws_error *err) {
  need(tws_training_plan(t, err), err);
  need(tws_training_open_data(t, err), err);
  need(t->ops->create(0, 1, &t->backend, err), err);
  const tws_executor_setup setup = {
      .programs = t->programs, .program_count = TWS_PROGRAM_COUNT, .ops = t->ops, .backend = t->backend};
  need(tws_executor_create(&setup, &t->executor, err), err);
  need(tws_inputs_open(t, err), err);
  need(tws_training_weights(t, err), err);
  need(tws_step_report_open(t, err), err);
  need(tws_comm_report_open(t, err), err);
}

typedef struct cost {
  double wall_s, cpu_s, calls_s; /* calls_s: seconds of the calls of monitors and communication log, without those of
                                  * recording times of operations */
} cost;

/* Runs one step as real/train.c does; told: 1 with monitors and communication log. */
static cost step(tws_training *t, int64_t number, int told) {
  tws_error err = {0};
  tws_step_report report;
  double metrics[TWS_METRIC_COUNT];
  const double wall_s = tws_clock_s(), processor_s = cpu_s();
  double *times = told ? t->phase_times : NULL;
  need(tws_training_begin_step(t, number, &report, &err), &err);
  need(tws_executor_step(t->executor, TWS_PROGRAM_TRAIN, number, times, NULL, NULL, &err), &err);
  need(tws_training_read_metrics(t, metrics, &err), &err);
  need(tws_training_end_step(t, metrics, tws_clock_s() - wall_s, &report, &err), &err);
  const double computed_s = tws_clock_s();
  if (told) {
    if (tws_comm_recorder_is_full(t->calls)) tws_comm_recorder_clear(t->calls); /* other ranks would receive it */
    tws_comm_recorder_add(t->calls, times);
    tws_step_report_finish(t, times, &report);
    need(tws_monitor_step(t->monitor, &report, &err), &err);
  }
  const double end_s = tws_clock_s();
  return (cost){end_s - wall_s, cpu_s() - processor_s, end_s - computed_s};
}

/* Prints mean and median of differences, each with its 95 % interval, divided by the mean of the values without
 * monitors. The median's interval follows from the order of the differences, so that disturbed steps do not count more
 * than others. */
static void print_share(const char *what, const double *more, const double *without, int pairs) {
  double sum = 0, squares = 0, base = 0;
  for (int i = 0; i < pairs; i++) {
    sum += more[i];
    base += without[i];
  }
  const double mean = sum / pairs, of = base / pairs;
  for (int i = 0; i < pairs; i++) squares += (more[i] - mean) * (more[i] - mean);
  const double half = 1.96 * sqrt(squares / (pairs - 1) / pairs);
  double *sorted = tws_calloc((size_t)pairs, sizeof *sorted);
  if (!sorted) return;
  for (int i = 0; i < pairs; i++) sorted[i] = more[i];
  const double middle = median(sorted, pairs);
  const int reach = (int)ceil(0.98 * sqrt(pairs)), low = pairs / 2 > reach ? pairs / 2 - reach : 0;
  const int high = pairs / 2 + reach < pairs ? pairs / 2 + reach : pairs - 1;
  printf("%-18s step %7.2f ms; more: mean %+.3f %% (%+.3f to %+.3f), median %+.3f %% (%+.3f to %+.3f), %+.3f ms\n",
         what, 1e3 * of, 100 * mean / of, 100 * (mean - half) / of, 100 * (mean + half) / of, 100 * middle / of,
         100 * sorted[low] / of, 100 * sorted[high] / of, 1e3 * middle);
  tws_free(sorted);
}

static void measure(tws_training *t, int pairs) {
  double *wall = tws_calloc((size_t)pairs * 5, sizeof *wall), *wall_base = wall + pairs, *cpu = wall_base + pairs,
         *cpu_base = cpu + pairs, *calls = cpu_base + pairs;
  int64_t number = 0;
  for (; number < WARM_UP; number++) step(t, number + 1, number % 2 == 0);
  for (int i = 0; i < pairs; i++) {
    const int first = tws_random_uniform(3, 4, (uint64_t)i) < 0.5;
    cost of[2];
    of[first] = step(t, ++number, first);
    of[!first] = step(t, ++number, !first);
    wall[i] = of[1].wall_s - of[0].wall_s;
    wall_base[i] = of[0].wall_s;
    cpu[i] = of[1].cpu_s - of[0].cpu_s;
    cpu_base[i] = of[0].cpu_s;
    calls[i] = of[1].calls_s;
  }
  print_share("seconds of a clock", wall, wall_base, pairs);
  print_share("of the processor", cpu, cpu_base, pairs);
  print_share("the calls alone", calls, wall_base, pairs);
  tws_free(wall);
}

int main(int argc, char **argv) {
  static const char set[][48] = {"wall_clock_breakdown=true", "tensorboard.enabled=true", "csv_monitor.enabled=true",
                                 "wandb.enabled=true", "comet.enabled=true"};
  const int pairs = argc > 1 ? argument_int(argv[1]) : 400;
  char text[320], lines[320], prometheus[320], name[2][340];
  tws_error err = {0};
  tws_job *job;
  if (pairs < 2 || pairs > MOST_PAIRS) {
    fprintf(stderr, "usage: bench-monitors [pairs of steps, 2 to %d]\n", MOST_PAIRS);
    return 2;
  }
  need(tws_temporary_folder(folder, sizeof folder, "bench", &err), &err);
  write_text(in_folder("text", text));
  if (chdir(folder) != 0) return 1; /* where wandb's folder goes */
  tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
  spec.model = TWS_SOURCE_DIR "/scenarios/demo/config.json";
  spec.config = TWS_SOURCE_DIR "/scenarios/demo/ds_config.json";
  spec.ranks = spec.threads = 1;
  for (int i = 0; i < 5; i++) spec.set.item[spec.set.count++] = set[i];
  snprintf(name[0], sizeof name[0], "tensorboard.output_path=%s", folder);
  snprintf(name[1], sizeof name[1], "csv_monitor.output_path=%s", folder);
  for (int i = 0; i < 2; i++) spec.set.item[spec.set.count++] = name[i];
  need(tws_job_load(&spec, &job, &err), &err);
  const tws_plan_request plan = tws_job_request(job, 0);
  const tws_train_options options = {.plan = plan,
                                     .data = text,
                                     .steps = WARM_UP + 2 * (int64_t)pairs,
                                     .logs_communication = 1,
                                     .watching = {.lines_path = in_folder("lines.jsonl", lines),
                                                  .prometheus_path = in_folder("run.prom", prometheus),
                                                  .peak_flops = tws_peak_flops(&plan, &job->machine)}};
  tws_training t = {
      .options = &options, .config = job->config, .world = 1, .threads = 1, .ops = tws_real_backend("host")};
  prepare(&t, &err);
  printf("%u operations, %d numbers of a step at most, %d pairs of steps\n", t.plan->op_count,
         (int)TWS_STEP_VALUE_COUNT, pairs);
  measure(&t, pairs);
  tws_training_release(&t);
  tws_job_destroy(job);
  nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
  return 0;
}
