/* Divides measured runs into two halves: constants may be fitted on the first, and the second is only reported. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/sha256.h"
#include "traces/measurements.h"
#include "validation/cases.h"

int tws_case_is_for_fitting(const char *id) {
  uint8_t digest[32];
  tws_sha256(id, strlen(id), digest);
  return digest[0] % 2 == 0;
}

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

/* Returns the mean error of a group's runs that are in one half; NaN: it has none. */
static double group_error(const tws_case_comparison *c, const char *group, int fitting) {
  double sum = 0;
  int count = 0;
  for (int i = 0; i < c->count; i++) {
    const tws_case_result *r = &c->results[i];
    if (r->for_fitting != fitting || strcmp(r->of->group, group) != 0 || !isfinite(memory_error(r))) continue;
    sum += memory_error(r);
    count++;
  }
  return count ? sum / count : NAN;
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
    const double error = group_error(c, c->groups[i].name, fitting);
    if (!isfinite(error)) continue;
    errors[count++] = error;
    sum += error;
  }
  half->memory_groups = count;
  half->memory_median_of_groups = count ? tws_sample_median(errors, (size_t)count) : NAN;
  half->memory_mean_of_groups = count ? sum / count : NAN;
}

tws_code tws_cases_halves(const tws_case_comparison *comparison, tws_case_half halves[2], tws_error *err) {
  double *errors = tws_calloc((size_t)comparison->count + 1, sizeof *errors);
  if (!errors) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for measured runs");
  for (int i = 0; i < 2; i++) score_half(comparison, !i, errors, &halves[i]);
  tws_free(errors);
  return TWS_OK;
}
