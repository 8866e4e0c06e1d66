/* Divides measured runs into two halves: constants may be fitted on the first, and the second is only reported. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/sha256.h"
#include "traces/measurements.h"
#include "validation/cases.h"

const char *tws_case_half_name(int fitting) {
  return fitting ? "fitting" : "reported";
}

static double memory_error(const tws_case_result *r) {
  const int counts = !r->skipped_because && r->measured_bytes > 0 && !r->doubts_memory;
  return counts ? 100 * fabs(r->predicted_bytes / r->measured_bytes - 1) : NAN;
}

static void count_verdict(const tws_case_result *r, tws_case_half *half) {
  if (r->skipped_because || r->out_of_memory < 0) return;
  const int right = r->predicted_fits != r->out_of_memory;
  int *const counts[2][2] = {{&half->ran_wrong, &half->ran_right}, {&half->oom_wrong, &half->oom_right}};
  ++*counts[r->out_of_memory][right];
  if (r->out_of_memory)
    half->oom_tight += r->predicted_tight;
  else
    half->ran_tight += r->predicted_tight;
}

static double time_error(const tws_case_result *r) {
  return 100 * fabs(tws_case_time_error(r));
}

/* Returns half of the width of the predicted step's interval, relative to the predicted step; NaN if the run has no
 * measured step. */
static double half_width(const tws_case_result *r) {
  const int counts = !r->skipped_because && r->measured_s > 0 && r->high_s > 0;
  return counts ? (r->high_s - r->low_s) / 2 / r->predicted_s : NAN;
}

/* Returns the mean of a figure over those runs of a group that are in one half; NaN if there are none. */
static double group_mean(const tws_case_comparison *c, const char *group, int fitting,
                         double (*figure)(const tws_case_result *r)) {
  double sum = 0;
  int count = 0;
  for (int i = 0; i < c->count; i++) {
    const tws_case_result *r = &c->results[i];
    if (r->for_fitting != fitting || strcmp(r->of->group, group) != 0 || !isfinite(figure(r))) continue;
    sum += figure(r);
    count++;
  }
  return count ? sum / count : NAN;
}

enum { LARGE_GROUP = 5 }; /* number of timed runs, in both halves together, from which a group's mean counts */

static void score_times(const tws_case_comparison *c, int fitting, double *figures, tws_case_half *half) {
  double sum = 0, worst = NAN;
  int count = 0;
  for (int i = 0; i < c->count; i++) {
    const tws_case_result *r = &c->results[i];
    if (r->for_fitting != fitting) continue;
    half->time_runs += isfinite(time_error(r));
    if (!isfinite(half_width(r))) continue;
    half->time_in_interval++;
    half->time_inside += r->measured_s >= r->low_s && r->measured_s <= r->high_s;
  }
  for (int i = 0; i < c->group_count; i++) {
    const double error = group_mean(c, c->groups[i].name, fitting, time_error);
    if (!isfinite(error) || c->groups[i].time_n < LARGE_GROUP) continue;
    figures[half->time_groups++] = error;
    sum += error;
    worst = fmax(worst, error);
  }
  half->time_worst_group = worst;
  half->time_mean_of_groups = half->time_groups ? sum / half->time_groups : NAN;
  half->time_median_of_groups = half->time_groups ? tws_sample_median(figures, (size_t)half->time_groups) : NAN;
  for (int i = 0; i < c->group_count; i++) {
    const double width = group_mean(c, c->groups[i].name, fitting, half_width);
    if (isfinite(width)) figures[count++] = width;
  }
  half->time_half_width = count ? tws_sample_median(figures, (size_t)count) : NAN;
}

static void score_half(const tws_case_comparison *c, int fitting, double *errors, tws_case_half *half) {
  double sum = 0;
  int count = 0;
  *half = (tws_case_half){.for_fitting = fitting};
  for (int i = 0; i < c->count; i++) {
    const tws_case_result *r = &c->results[i];
    if (r->for_fitting != fitting) continue;
    half->runs += !r->skipped_because;
    count_verdict(r, half);
    if (!isfinite(memory_error(r))) continue;
    errors[half->memory_runs++] = memory_error(r);
    const double factor = r->measured_bytes / r->predicted_bytes;
    half->memory_inside += factor >= r->seen->low && factor <= r->seen->high;
  }
  half->memory_median = half->memory_runs ? tws_sample_median(errors, (size_t)half->memory_runs) : NAN;
  for (int i = 0; i < c->group_count; i++) {
    const double error = group_mean(c, c->groups[i].name, fitting, memory_error);
    if (!isfinite(error)) continue;
    errors[count++] = error;
    sum += error;
  }
  half->memory_groups = count;
  half->memory_median_of_groups = count ? tws_sample_median(errors, (size_t)count) : NAN;
  half->memory_mean_of_groups = count ? sum / count : NAN;
  score_times(c, fitting, errors, half);
}

tws_code tws_cases_halves(const tws_case_comparison *comparison, tws_case_half halves[2], tws_error *err) {
  double *errors = tws_calloc((size_t)comparison->count + 1, sizeof *errors);
  if (!errors) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for measured runs");
  for (int i = 0; i < 2; i++) score_half(comparison, !i, errors, &halves[i]);
  tws_free(errors);
  return TWS_OK;
}
