/* Uses each run of a group as the one measurement that rescales the profile, and predicts the others with it. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "job/measured.h"
#include "validation/case_fields.h"

/* The timed runs of one group, each with its job. */
typedef struct group_runs {
  tws_timed_job *runs;
  int *index; /* index of each run in the file */
  int count;
} group_runs;

static int is_chosen(const char *name, const char *const *groups, int count) {
  for (int i = 0; i < count; i++)
    if (strcmp(groups[i], name) == 0) return 1;
  return count == 0;
}

static tws_code add_run(const tws_cases *cases, int index, group_runs *g, tws_error *err) {
  const tws_case *one = &cases->cases[index];
  tws_error why = {0};
  tws_job *job;
  const tws_code code = tws_case_job(cases, index, &job, &why);
  if (code == TWS_UNSUPPORTED) return TWS_OK; /* the comparison lists this run with the reason */
  if (code != TWS_OK) {
    if (err) *err = why;
    return code;
  }
  const double seconds = tws_case_step_s(one, job);
  if (!(seconds > 0)) {
    tws_job_destroy(job);
    return TWS_OK;
  }
  g->index[g->count] = index;
  g->runs[g->count++] = (tws_timed_job){job, seconds};
  return TWS_OK;
}

/* Computes the mean absolute error in percent of all runs but `left_out`, NaN if there are none, and *own, the error of
 * `left_out` itself. */
static tws_code mean_error(const group_runs *g, int left_out, double *own, double *mean, tws_error *err) {
  double sum = 0;
  int count = 0;
  for (int i = 0; i < g->count; i++) {
    tws_estimate estimate;
    TWS_TRY(tws_job_estimate(g->runs[i].job, &estimate, NULL, err));
    const double error = 100 * fabs(estimate.step_s / g->runs[i].seconds - 1);
    if (i == left_out) *own = error;
    if (i == left_out) continue;
    sum += error;
    count++;
  }
  *mean = count ? sum / count : NAN;
  return TWS_OK;
}

static tws_code choose_each(const tws_cases *cases, const group_runs *g, tws_progress *progress, tws_case_choices *out,
                            tws_error *err) {
  static const double none[TWS_SCALE_COUNT] = {0};
  tws_case_rescaled *result = &out->groups[out->group_count];
  double own = 0, sum = 0;
  tws_progress_begin(progress, cases->cases[g->index[0]].group, g->count);
  TWS_TRY(mean_error(g, -1, &own, &result->before, err));
  for (int i = 0; i < g->count; i++) {
    tws_case_choice *choice = &out->choices[out->count];
    tws_rescaling rescaling;
    tws_progress_update(progress, i);
    choice->of = &cases->cases[g->index[i]];
    choice->measured_s = g->runs[i].seconds;
    TWS_TRY(tws_measured_fit(&g->runs[i], 1, none, &rescaling, err));
    memcpy(choice->factor, rescaling.factor, sizeof choice->factor);
    for (int j = 0; j < g->count; j++) tws_job_rescale_profile(g->runs[j].job, rescaling.factor);
    TWS_TRY(mean_error(g, i, &choice->own, &choice->others, err));
    for (int j = 0; j < g->count; j++) tws_job_rescale_profile(g->runs[j].job, none);
    sum += choice->others;
    out->count++;
  }
  tws_progress_end(progress);
  result->runs = g->count;
  result->after = sum / g->count;
  result->group = cases->cases[g->index[0]].group;
  out->group_count++;
  return TWS_OK;
}

static tws_code rescale_group(const tws_cases *cases, const char *name, group_runs *g, tws_progress *progress,
                              tws_case_choices *out, tws_error *err) {
  tws_code code = TWS_OK;
  g->count = 0;
  for (int i = 0; i < cases->count && code == TWS_OK; i++)
    if (strcmp(cases->cases[i].group, name) == 0) code = add_run(cases, i, g, err);
  if (code == TWS_OK && g->count > 1) code = choose_each(cases, g, progress, out, err);
  for (int i = 0; i < g->count; i++) tws_job_destroy(g->runs[i].job);
  return code;
}

tws_code tws_cases_rescale(const tws_cases *cases, const char *const *groups, int group_count, tws_progress *progress,
                           tws_case_choices *out, tws_error *err) {
  const size_t most = (size_t)cases->count + 1;
  group_runs g = {tws_calloc(most, sizeof *g.runs), tws_calloc(most, sizeof *g.index), 0};
  *out = (tws_case_choices){tws_calloc(most, sizeof *out->choices), tws_calloc(most, sizeof *out->groups), 0, 0};
  tws_code code = g.runs && g.index && out->choices && out->groups
                      ? TWS_OK
                      : tws_fail(err, TWS_MEMORY, NULL, "out of memory for measured runs");
  for (int i = 0; i < cases->count && code == TWS_OK; i++) {
    const char *name = cases->cases[i].group;
    int first = 0;
    while (strcmp(cases->cases[first].group, name) != 0) first++;
    if (first == i && is_chosen(name, groups, group_count)) code = rescale_group(cases, name, &g, progress, out, err);
  }
  tws_free(g.runs);
  tws_free(g.index);
  if (code == TWS_OK && out->group_count == 0)
    code = tws_fail(err, TWS_INVALID, "leave --group out, or see which runs are skipped without --measured",
                    "no group has two runs that are timed and can be planned");
  return code;
}

void tws_case_choices_free(tws_case_choices *choices) {
  tws_free(choices->choices);
  tws_free(choices->groups);
  *choices = (tws_case_choices){0};
}
