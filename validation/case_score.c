/* Compares measured runs with their predictions, and reports errors by group. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "job/software_memory.h"
#include "models/hardware/runtime.h"
#include "traces/measurements.h"
#include "validation/case_fields.h"

/* ---- one run ---- */

/* Returns the peak in the kind that the row states (tws_case_memory): allocated, reserved, or all of the device's
 * memory. PyTorch's allocator frees its cached blocks before it fails, so reserved bytes do not exceed the device's
 * memory. */
static double counted_bytes(const tws_case *one, const tws_job *job, double allocated, double reserved, double memory) {
  const double overhead = tws_job_context_bytes(job);
  const double held = fmax(fmin(reserved, memory - overhead), allocated);
  if (one->counts == TWS_CASE_ALLOCATED) return allocated;
  return one->counts == TWS_CASE_RESERVED ? held : held + overhead;
}

tws_code tws_case_predict(const tws_case *one, const tws_job *job, const tws_sim_api *sim,
                          tws_case_prediction *prediction, tws_error *err) {
  tws_estimate estimate;
  memset(prediction, 0, sizeof *prediction);
  tws_stage_estimate *stages = tws_calloc((size_t)tws_job_stages(job), sizeof *stages);
  if (!stages) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for a measured run");
  tws_code code = tws_job_estimate(job, &estimate, stages, err);
  double reserved = 0, counted = 0, needed = 0;
  if (code == TWS_OK) {
    counted = tws_software_peak(job, stages, &reserved);
    needed = tws_software_needed(job, stages) + tws_job_context_bytes(job);
    const tws_stage_estimate *watched = &stages[one->of_last_stage ? tws_job_stages(job) - 1 : 0];
    if (one->of_last_stage || one->of_first_stage) {
      counted = tws_software_stage_peak(job, watched);
      reserved = tws_software_stage_reserved(job, watched);
    }
  }
  tws_free(stages);
  TWS_TRY(code);
  const tws_ledger_tier *device = &estimate.ledger.tier[TWS_TIER_DEVICE];
  for (int c = 0; c < TWS_CATEGORY_COUNT; c++) {
    const double bytes = (double)device->category[c];
    if (c == TWS_CATEGORY_PARAMETER || c == TWS_CATEGORY_GRADIENT || c == TWS_CATEGORY_MASTER ||
        c == TWS_CATEGORY_MOMENT)
      prediction->state_bytes += bytes;
    if (c == TWS_CATEGORY_ACTIVATION || c == TWS_CATEGORY_CHECKPOINT) prediction->activation_bytes += bytes;
  }
  prediction->step_s = estimate.step_s;
  const double memory =
      job->cluster.device_memory_bytes > 0 ? job->cluster.device_memory_bytes : tws_profile_memory_bytes(job->profile);
  prediction->bytes = counted_bytes(one, job, counted, reserved, memory);
  /* the allocator returns blocks that it only reserves before an allocation fails */
  prediction->fits = needed <= memory;
  prediction->seen = tws_runtime_memory_interval(tws_profile_runtime(job->profile));
  prediction->tight = prediction->fits && needed * prediction->seen->high > memory;
  return sim ? tws_job_simulated_step(job, sim, TWS_FIDELITY_ANALYTIC, &prediction->step_s, err) : TWS_OK;
}

static tws_code predict_result(const tws_cases *cases, int index, const tws_sim_api *sim, tws_case_result *r,
                               tws_error *err) {
  tws_job *job;
  tws_case_prediction prediction;
  TWS_TRY(tws_case_job(cases, index, &job, err));
  tws_code code = tws_case_predict(r->of, job, sim, &prediction, err);
  if (code == TWS_OK) {
    r->measured_s = tws_case_step_s(r->of, job);
    r->measured_bytes = r->of->measured_bytes;
    r->out_of_memory = r->of->out_of_memory;
    r->predicted_s = prediction.step_s;
    r->predicted_bytes = prediction.bytes;
    r->predicted_fits = prediction.fits;
    r->predicted_tight = prediction.tight;
    r->seen = prediction.seen;
    r->runtime = tws_profile_runtime(job->profile)->name;
    const tws_evidence evidence = tws_evidence_of_job(job, r->predicted_s);
    r->key = tws_evidence_describe(job, r->predicted_s);
    r->low_s = evidence.low * r->predicted_s;
    r->high_s = evidence.high * r->predicted_s;
  }
  tws_job_destroy(job);
  return code;
}

/* ---- a group ---- */

static int times(const tws_case_result *r) {
  return !r->skipped_because && r->measured_s > 0 && !r->doubts_time;
}

int tws_case_is_excluded(const tws_case_result *r) {
  if (!r->doubt || r->skipped_because) return 0;
  return (r->doubts_time && r->measured_s > 0) || (r->doubts_memory && r->measured_bytes > 0);
}

static void score_apart(const tws_case_comparison *c, tws_case_group *g) {
  double sum = 0;
  for (int i = 0; i < c->count; i++) {
    const tws_case_result *r = &c->results[i];
    if (strcmp(r->of->group, g->name) != 0 || r->skipped_because || !(r->measured_s > 0) || times(r)) continue;
    sum += 100 * fabs(r->predicted_s / r->measured_s - 1);
    g->apart_n++;
  }
  g->apart_mape = g->apart_n ? sum / g->apart_n : NAN;
}

static void score_pairs(const tws_case_comparison *c, tws_case_group *g) {
  double right = 0, pairs = 0;
  for (int i = 0; i < c->count; i++) {
    const tws_case_result *a = &c->results[i];
    if (strcmp(a->of->group, g->name) != 0 || !times(a)) continue;
    for (int j = i + 1; j < c->count; j++) {
      const tws_case_result *b = &c->results[j];
      if (strcmp(b->of->group, g->name) != 0 || !times(b)) continue;
      const double measured = a->measured_s - b->measured_s, predicted = a->predicted_s - b->predicted_s;
      if (measured == 0) continue;
      pairs++;
      right += predicted == 0 ? 0.5 : (measured > 0) == (predicted > 0);
    }
  }
  g->concordance = pairs > 0 ? right / pairs : NAN;
}

static void score_group(const tws_case_comparison *c, double *errors, tws_case_group *g) {
  double time = 0, bias = 0, memory = 0, within = 0;
  for (int i = 0; i < c->count; i++) {
    const tws_case_result *r = &c->results[i];
    if (strcmp(r->of->group, g->name) != 0) continue;
    g->n += !r->skipped_because;
    g->skipped += r->skipped_because != NULL;
    if (r->skipped_because) continue;
    if (times(r)) {
      const double error = 100 * (r->predicted_s / r->measured_s - 1);
      time += errors[g->time_n++] = fabs(error);
      bias += error;
      within += fabs(error) <= 10;
    }
    if (r->measured_bytes > 0 && !r->doubts_memory) {
      memory += 100 * fabs(r->predicted_bytes / r->measured_bytes - 1);
      g->mem_n++;
    }
    if (r->out_of_memory < 0) continue;
    if (r->predicted_fits != r->out_of_memory)
      g->oom_right++;
    else
      g->oom_wrong++;
  }
  g->time_mape = g->time_n ? time / g->time_n : NAN;
  g->time_bias = g->time_n ? bias / g->time_n : NAN;
  g->within_10 = g->time_n ? 100 * within / g->time_n : NAN;
  g->time_median_ape = g->time_n ? tws_sample_median(errors, (size_t)g->time_n) : NAN;
  g->mem_mape = g->mem_n ? memory / g->mem_n : NAN;
  score_pairs(c, g);
  score_apart(c, g);
}

static tws_code score_groups(tws_case_comparison *c, tws_error *err) {
  double *errors = tws_arena_alloc(c->arena, (size_t)c->count + 1, sizeof *errors);
  c->groups = tws_arena_alloc(c->arena, (size_t)c->count + 1, sizeof *c->groups);
  if (!errors || !c->groups) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for measured runs");
  for (int i = 0; i < c->count; i++) {
    int g = 0;
    while (g < c->group_count && strcmp(c->groups[g].name, c->results[i].of->group) != 0) g++;
    if (g < c->group_count) continue;
    c->groups[c->group_count].name = c->results[i].of->group;
    score_group(c, errors, &c->groups[c->group_count++]);
  }
  return TWS_OK;
}

/* ---- reasons ---- */

static int more_frequent(const void *a, const void *b) {
  const tws_case_reason *x = a, *y = b;
  return x->count != y->count ? y->count - x->count : strcmp(x->text, y->text);
}

static tws_code count_reasons(tws_case_comparison *c, tws_error *err) {
  c->reasons = tws_arena_alloc(c->arena, (size_t)c->count + 1, sizeof *c->reasons);
  if (!c->reasons) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for measured runs");
  for (int i = 0; i < c->count; i++) {
    const char *text = c->results[i].skipped_because;
    int at = 0;
    if (!text) continue;
    while (at < c->reason_count && strcmp(c->reasons[at].text, text) != 0) at++;
    if (at == c->reason_count) c->reasons[c->reason_count++].text = text;
    c->reasons[at].count++;
  }
  qsort(c->reasons, (size_t)c->reason_count, sizeof *c->reasons, more_frequent);
  return TWS_OK;
}

/* ---- all runs ---- */

static int is_chosen(const tws_case *one, const char *const *groups, int count) {
  int chosen = count == 0;
  for (int i = 0; i < count; i++) chosen |= strcmp(groups[i], one->group) == 0;
  return chosen;
}

static tws_code check_groups(const tws_cases *cases, const char *const *groups, int count, tws_error *err) {
  for (int i = 0; i < count; i++) {
    int found = 0;
    for (int j = 0; j < cases->count; j++) found |= strcmp(cases->cases[j].group, groups[i]) == 0;
    if (!found)
      return tws_fail(err, TWS_USAGE, "the names are the \"group\" of the runs",
                      "--group %.80s: no run is of that group", groups[i]);
  }
  return TWS_OK;
}

static tws_code compare_all(const tws_cases *cases, const char *const *groups, int group_count, const tws_sim_api *sim,
                            tws_progress *progress, tws_case_comparison *out, tws_error *err) {
  for (int i = 0; i < cases->count; i++) {
    tws_error why = {0};
    if (!is_chosen(&cases->cases[i], groups, group_count)) continue;
    tws_case_result *r = &out->results[out->count];
    *r = (tws_case_result){.of = &cases->cases[i], .predicted_fits = -1, .out_of_memory = -1, .runtime = ""};
    r->for_fitting = tws_case_is_for_fitting(r->of->id);
    r->doubt = tws_case_fact(r->of, "doubt") ? tws_case_fact_text(r->of, "doubt") : NULL;
    r->doubts_time = tws_case_fact_flag(r->of, "doubts_time");
    r->doubts_memory = tws_case_fact_flag(r->of, "doubts_memory");
    r->part = r->doubts_time && !tws_case_fact_flag(r->of, "makes_intervals") ? TWS_EVIDENCE_APART
              : r->for_fitting                                                ? TWS_EVIDENCE_FITTING
                                                                              : TWS_EVIDENCE_REPORTED;
    tws_code code = predict_result(cases, i, sim, r, &why);
    if (code != TWS_OK && code != TWS_UNSUPPORTED && code != TWS_INVALID) {
      if (err) *err = why;
      return code;
    }
    if (code != TWS_OK) r->skipped_because = tws_arena_strdup(out->arena, why.message);
    if (code != TWS_OK && !r->skipped_because) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
    tws_progress_update(progress, ++out->count);
  }
  return TWS_OK;
}

tws_code tws_cases_compare(const tws_cases *cases, const char *const *groups, int group_count, const tws_sim_api *sim,
                           tws_progress *progress, tws_case_comparison *out, tws_error *err) {
  *out = (tws_case_comparison){.arena = tws_arena_create()};
  TWS_TRY(check_groups(cases, groups, group_count, err));
  out->results = out->arena ? tws_arena_alloc(out->arena, (size_t)cases->count + 1, sizeof *out->results) : NULL;
  if (!out->results) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for measured runs");
  tws_progress_begin(progress, "predicting measured runs", cases->count);
  tws_code code = compare_all(cases, groups, group_count, sim, progress, out, err);
  tws_progress_end(progress);
  if (code == TWS_OK) code = score_groups(out, err);
  return code == TWS_OK ? count_reasons(out, err) : code;
}

void tws_case_comparison_free(tws_case_comparison *comparison) {
  tws_arena_destroy(comparison->arena);
  *comparison = (tws_case_comparison){0};
}

double tws_cases_time_error(const tws_case_comparison *comparison, int *count) {
  double sum = 0;
  *count = 0;
  for (int i = 0; i < comparison->count; i++) {
    const tws_case_result *r = &comparison->results[i];
    if (!times(r)) continue;
    sum += 100 * fabs(r->predicted_s / r->measured_s - 1);
    ++*count;
  }
  return *count ? sum / *count : NAN;
}

double tws_case_time_error(const tws_case_result *r) {
  return times(r) ? r->predicted_s / r->measured_s - 1 : NAN;
}

static int farther_off(const void *a, const void *b) {
  const double x = fabs(tws_case_time_error(*(const tws_case_result *const *)a)),
               y = fabs(tws_case_time_error(*(const tws_case_result *const *)b));
  return (x < y) - (x > y);
}

int tws_cases_by_error(const tws_case_comparison *comparison, const tws_case_result **farthest) {
  int count = 0;
  for (int i = 0; i < comparison->count; i++)
    if (isfinite(tws_case_time_error(&comparison->results[i]))) farthest[count++] = &comparison->results[i];
  qsort(farthest, (size_t)count, sizeof *farthest, farther_off);
  return count;
}
