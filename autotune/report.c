/* Writes the complete report of a search, as HTML and as Markdown. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "autotune/document.h"
#include "autotune/results.h"
#include "base/units.h"
#include "validation/evidence.h"
#include "validation/results.h"

enum { ROWS = 20, CELL = 64 };

typedef struct figures {
  tws_text pareto, knobs, trials;
} figures;

static const char *label_of(const tws_variant *variant, char *label) {
  tws_variant_label(variant, label, TWS_VARIANT_NAME);
  return label;
}

static const char *number_text(char *text, const char *format, double value) __attribute__((format(printf, 2, 0)));
static const char *number_text(char *text, const char *format, double value) {
  snprintf(text, CELL, format, value);
  return text;
}

/* Formats a number, rounded to an integer, in `text`, which has at least CELL bytes. Returns `text`. */
static const char *whole_text(char *text, double value) {
  return tws_format_integer(llround(value), text, CELL);
}

static double tokens(const tws_tune_report *r, double samples_per_s) {
  return samples_per_s * (double)tws_job_sequence(r->request->job);
}

static int has_price(const tws_tune_report *r) {
  return r->request->job->cluster.price_per_device_hour > 0;
}

/* ---- figures ---- */

typedef struct mark_text {
  char label[TWS_VARIANT_NAME], tip[TWS_VARIANT_NAME + 3 * CELL];
} mark_text;

static tws_mark mark_of(const tws_tune_report *r, const tws_tune_candidate *c, int front, mark_text *text) {
  const double gib = c->needed_bytes / 0x1p30, rate = tokens(r, tws_tune_throughput(c));
  char count[CELL];
  label_of(&c->variant, text->label);
  snprintf(text->tip, sizeof text->tip, "%s on %d rank%s: %.4g GiB, %s tokens/s", text->label, c->variant.ranks,
           c->variant.ranks > 1 ? "s" : "", gib, whole_text(count, rate));
  return (tws_mark){gib, rate, front, front ? text->label : NULL, text->tip, 0};
}

static tws_code draw_pareto(const tws_tune_report *r, tws_text *svg, tws_error *err) {
  const tws_tune_result *result = r->result;
  const tws_tune_analysis *a = r->analysis;
  tws_mark *marks = tws_calloc((size_t)result->fits + 1, sizeof *marks);
  mark_text *texts = tws_calloc((size_t)result->fits + 1, sizeof *texts);
  tws_code code = marks && texts ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  int count = 0;
  for (int i = 0; code == TWS_OK && i < result->fits; i++) {
    int front = 0;
    for (int p = 0; p < a->pareto_count; p++) front |= a->pareto[p] == i;
    if (!front) marks[count] = mark_of(r, &result->candidates[i], 0, &texts[count]);
    count += !front;
  }
  for (int p = 0; code == TWS_OK && p < a->pareto_count; p++, count++)
    marks[count] = mark_of(r, &result->candidates[a->pareto[p]], 1, &texts[count]);
  if (code == TWS_OK) tws_figure_points(marks, count, "memory of a rank, GiB", "tokens/s", svg);
  tws_free(marks);
  tws_free(texts);
  return code;
}

static void draw_knobs(const tws_tune_analysis *a, tws_text *svg) {
  tws_mark marks[TWS_TUNE_KNOBS];
  char labels[TWS_TUNE_KNOBS][128], texts[TWS_TUNE_KNOBS][CELL];
  const char *values[TWS_TUNE_KNOBS];
  int count = 0;
  for (int i = 0; i < a->knob_count; i++) {
    const tws_tune_knob *k = &a->knobs[i];
    if (!(k->point.step_s > 0)) continue;
    const double change = 100 * (k->point.throughput / a->winner.throughput - 1);
    snprintf(labels[count], sizeof labels[count], "%s: %s -> %s", k->name, k->winner, k->value);
    snprintf(texts[count], sizeof texts[count], "%+.1f %%%s", change, k->point.fits ? "" : ", does not fit");
    values[count] = texts[count];
    marks[count] = (tws_mark){0, change, k->point.fits, labels[count], NULL, 0};
    count++;
  }
  tws_figure_bars(marks, values, count, "change of the throughput, longest path", svg);
}

static tws_code draw_trials(const tws_tune_report *r, tws_text *svg, tws_error *err) {
  const tws_tune_trials *trials = r->trials;
  tws_mark *marks = tws_calloc((size_t)trials->count + 2, sizeof *marks);
  mark_text *texts = tws_calloc((size_t)trials->count + 1, sizeof *texts);
  tws_code code = marks && texts ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  int count = 0;
  double end = 0;
  for (int i = 0; code == TWS_OK && i < trials->count; i++) {
    const tws_tune_trial *t = &trials->all[i];
    const double predicted = t->corrected_s > 0 ? t->corrected_s : t->predicted_s;
    if (!(t->step_s > 0 && predicted > 0)) continue;
    mark_text *text = &texts[count];
    label_of(&t->variant, text->label);
    snprintf(text->tip, sizeof text->tip, "%s: predicted %.4g ms, measured %.4g ms", text->label, 1e3 * predicted,
             1e3 * t->step_s);
    marks[count++] = (tws_mark){1e3 * predicted, 1e3 * t->step_s, 0, text->label, text->tip, 0};
    end = fmax(end, 1e3 * fmax(predicted, t->step_s));
  }
  if (code == TWS_OK) {
    marks[count++] = (tws_mark){0, 0, 1, NULL, NULL, 1};
    marks[count++] = (tws_mark){end, end, 1, NULL, NULL, 1}; /* end of the diagonal: prediction equals measurement */
    tws_figure_points(marks, count, "predicted step, ms", "measured step, ms", svg);
  }
  tws_free(marks);
  tws_free(texts);
  return code;
}

/* ---- sections ---- */

/* Adds to the report the interval of the predicted step time, and the published run that is most similar. */
static void tell_interval(const tws_tune_report *r, const tws_tune_candidate *c, tws_document *d) {
  const double step_s = tws_tune_predicted(c);
  const tws_evidence evidence = tws_evidence_of_variant(r->request->job, &c->variant, step_s);
  char low[32], high[32], text[512];
  if (!(evidence.high > 0)) return;
  tws_evidence_text(&evidence, text, sizeof text);
  tws_document_paragraph(d, "Nine of ten such runs took %s to %s a step. Evidence: %s.",
                         tws_format_seconds(evidence.low * step_s, low, sizeof low),
                         tws_format_seconds(evidence.high * step_s, high, sizeof high), text);
}

static void tell_winner(const tws_tune_report *r, tws_document *d) {
  const tws_tune_analysis *a = r->analysis;
  const tws_job *job = r->request->job;
  char label[TWS_VARIANT_NAME], step[32], bytes[32], count[3][CELL];
  const tws_tune_trial *trial = r->trials && r->trials->best >= 0 ? &r->trials->all[r->trials->best] : NULL;
  label_of(&a->winner.variant, label);
  tws_format_bytes(a->winner.bytes, bytes, sizeof bytes);
  /* the best candidate, whose predicted step is shown if no trial was run */
  const tws_tune_candidate *c = &r->result->candidates[0];
  tws_format_seconds(trial                       ? trial->step_s
                     : tws_tune_predicted(c) > 0 ? tws_tune_predicted(c)
                                                 : a->winner.step_s,
                     step, sizeof step);
  tws_document_paragraph(
      d, "The best: %s on %d rank%s: %s a step, %s, %s tokens/s; a rank needs %s.", label, a->winner.variant.ranks,
      a->winner.variant.ranks > 1 ? "s" : "", step, trial ? "measured" : "predicted",
      whole_text(count[0], tokens(r, trial ? tws_tune_trial_throughput(trial) : tws_tune_throughput(c))), bytes);
  if (!trial) tell_interval(r, c, d);
  if (has_price(r)) tws_document_paragraph(d, "A million tokens cost %.4g.", a->winner.cost);
  const tws_tune_swept *swept = &r->result->swept;
  tws_document_paragraph(d, "%s configurations: %s planned, %s rejected, %d simulated%s.",
                         whole_text(count[0], (double)tws_tune_points(r->result)),
                         whole_text(count[1], (double)swept->planned),
                         whole_text(count[2], (double)(swept->too_large + swept->refused)), r->result->simulated,
                         r->trials ? ", some trained" : "");
  tws_document_paragraph(d, "Runtime %s, %s, sequences of %s tokens.", tws_profile_runtime(job->profile)->name,
                         tws_dtype_name(job->config->dtype), whole_text(count[0], (double)tws_job_sequence(job)));
  tws_assumption list[TWS_ASSUMPTIONS];
  tws_text assumed = {0};
  tws_assumptions_text(list, tws_tune_assumed(r->request, list), &assumed);
  if (assumed.length) tws_document_paragraph(d, "Assumed: %s.", assumed.data);
  tws_text_free(&assumed);
  tws_document_paragraph(d, "Costs: %s (%s).", tws_profile_name(job->profile), tws_profile_provenance(job->profile));
}

static void tell_own(const tws_tune_report *r, tws_document *d) {
  const tws_tune_analysis *a = r->analysis;
  char line[2][CELL];
  if (!a->has_own) return;
  tws_document_heading(d, "Comparison with your configuration");
  if (!(a->own.step_s > 0) || !a->own.fits) {
    tws_document_paragraph(d, "Your configuration %s.", a->own.step_s > 0 ? "does not fit" : a->own.reason);
  } else {
    whole_text(line[0], tokens(r, a->own.throughput));
    whole_text(line[1], tokens(r, a->winner.throughput));
    tws_document_paragraph(d, "Both predicted by the longest path: yours %s tokens/s, the best %s: %.3g times as fast.",
                           line[0], line[1], a->winner.throughput / a->own.throughput);
  }
  tws_text difference = {0};
  tws_variant_difference(&a->own.variant, &a->winner.variant, &difference);
  if (!difference.length) tws_document_paragraph(d, "Both configurations are equal.");
  static const char *const heads[] = {"key", "yours", "best"};
  if (difference.length) tws_document_table(d, heads, 3);
  char *rest = NULL;
  for (char *at = difference.length ? strtok_r(difference.data, "\n", &rest) : NULL; at;
       at = strtok_r(NULL, "\n", &rest)) {
    char *colon = strstr(at, ": "), *arrow = colon ? strstr(colon, " -> ") : NULL;
    if (!arrow) continue;
    *colon = *arrow = '\0';
    tws_document_row(d, (const char *[]){at, colon + 2, arrow + 4});
  }
  if (difference.length) tws_document_table_end(d);
  tws_text_free(&difference);
}

static void add_candidate(const tws_tune_report *r, const tws_tune_candidate *c, tws_document *d) {
  char label[TWS_VARIANT_NAME], cells[5][CELL] = {"", "", "-", "", ""};
  snprintf(cells[0], CELL, "%d", c->variant.ranks);
  tws_format_seconds(tws_tune_predicted(c), cells[1], CELL);
  if (c->measured_s > 0) tws_format_seconds(c->measured_s, cells[2], CELL);
  whole_text(cells[3], tokens(r, tws_tune_throughput(c)));
  tws_format_bytes(c->needed_bytes, cells[4], CELL);
  char cost[CELL] = "";
  if (has_price(r)) number_text(cost, "%.4g", tws_tune_cost(r->request, &c->variant, tws_tune_throughput(c)));
  tws_document_row(
      d, (const char *[]){label_of(&c->variant, label), cells[0], cells[1],
                          c->simulated_s > 0 ? "simulated" : "longest path", cells[2], cells[3], cells[4], cost});
}

static void tell_candidates(const tws_tune_report *r, tws_document *d, const int *indices, int count) {
  static const char *const heads[] = {"configuration", "ranks",    "step",        "from",
                                      "measured",      "tokens/s", "memory/rank", "cost of a million tokens"};
  tws_document_table(d, heads, has_price(r) ? 8 : 7);
  for (int i = 0; i < count && i < ROWS; i++) add_candidate(r, &r->result->candidates[indices ? indices[i] : i], d);
  tws_document_table_end(d);
  if (count > ROWS) tws_document_paragraph(d, "... and %d more.", count - ROWS);
}

static void tell_knobs(const tws_tune_analysis *a, const figures *f, tws_document *d) {
  static const char *const heads[] = {"knob", "best", "changed to", "throughput", "memory/rank", ""};
  tws_document_heading(d, "Effect of each knob");
  tws_document_paragraph(
      d, "The best configuration with one knob changed and the same global batch, by the longest path.");
  tws_document_figure(d, f->knobs.data, "sensitivity.svg", "Throughput when one knob is changed");
  tws_document_table(d, heads, 6);
  for (int i = 0; i < a->knob_count; i++) {
    const tws_tune_knob *k = &a->knobs[i];
    char change[CELL] = "-", bytes[CELL] = "-";
    if (k->point.step_s > 0) {
      number_text(change, "%+.1f %%", 100 * (k->point.throughput / a->winner.throughput - 1));
      tws_format_bytes(k->point.bytes, bytes, sizeof bytes);
    }
    tws_document_row(d, (const char *[]){k->name, k->winner, k->value, change, bytes, k->point.reason});
  }
  tws_document_table_end(d);
}

static void add_trial(const tws_tune_trial *t, tws_document *d) {
  char label[TWS_VARIANT_NAME], cells[5][CELL] = {"", "-", "-", "-", "-"};
  const tws_experiment *e = &t->experiment;
  const double predicted = t->corrected_s > 0 ? t->corrected_s : t->predicted_s;
  snprintf(cells[0], CELL, "%d", t->variant.ranks);
  if (t->predicted_s > 0) tws_format_seconds(t->predicted_s, cells[1], CELL);
  if (t->corrected_s > 0) tws_format_seconds(t->corrected_s, cells[2], CELL);
  if (t->step_s > 0) tws_format_seconds(t->step_s, cells[3], CELL);
  if (t->step_s > 0 && predicted > 0) number_text(cells[4], "%+.1f %%", 100 * (predicted / t->step_s - 1));
  tws_document_row(d, (const char *[]){label_of(&t->variant, label), cells[0], cells[1], cells[2], cells[3], cells[4],
                                       tws_outcome_name(e->outcome), e->reason});
}

static void tell_trials(const tws_tune_report *r, const figures *f, tws_document *d) {
  static const char *const heads[] = {"configuration", "ranks", "predicted", "corrected",
                                      "measured",      "error", "outcome",   "reason"};
  const tws_tune_trials *trials = r->trials;
  if (!trials || trials->count == 0) return;
  tws_document_heading(d, "Trained configurations");
  tws_document_paragraph(d, "Median error of the prediction: %.1f %%.", 100 * trials->error_before);
  if (trials->corrected > 0)
    tws_document_paragraph(d, "With the profile corrected by these runs: %.1f %%.", 100 * trials->error_after);
  tws_document_figure(d, f->trials.data, "trials.svg", "Predicted and measured steps; on the line they are equal");
  tws_document_table(d, heads, 8);
  for (int i = 0; i < trials->count; i++) add_trial(&trials->all[i], d);
  tws_document_table_end(d);
  if (trials->corrected == 0) return;
  static const char *const factors[] = {"operation", "measured / predicted"};
  tws_document_table(d, factors, 2);
  char text[CELL];
  for (int i = 0; i < TWS_KERNEL_COUNT + TWS_COLLECTIVE_COUNT; i++) {
    const int kernel = i < TWS_KERNEL_COUNT;
    const double factor = kernel ? trials->correction.kernel[i] : trials->correction.collective[i - TWS_KERNEL_COUNT];
    const char *name =
        kernel ? tws_kernel_name((tws_kernel)i) : tws_collective_name((tws_collective)(i - TWS_KERNEL_COUNT));
    if (factor > 0) tws_document_row(d, (const char *[]){name, number_text(text, "%.3g", factor)});
  }
  tws_document_table_end(d);
}

static void tell_swept(const tws_tune_swept *swept, tws_document *d) {
  static const char *const heads[] = {"configurations", "outcome"};
  tws_document_heading(d, "The whole space");
  tws_document_table(d, heads, 2);
  for (int i = 0; i < TWS_SWEPT_OUTCOMES; i++) {
    const tws_swept_outcome way = tws_tune_swept_outcome(swept, i);
    char count[CELL];
    whole_text(count, (double)way.count);
    if (way.count > 0) tws_document_row(d, (const char *[]){count, way.what});
  }
  tws_document_table_end(d);
}

static void tell_rejections(const tws_tune_result *result, tws_document *d) {
  static const char *const heads[] = {"configurations", "reason"};
  if (result->rejection_count == 0) return;
  tws_document_heading(d, "Rejected configurations");
  tws_document_table(d, heads, 2);
  for (int i = 0; i < result->rejection_count; i++) {
    char count[CELL];
    whole_text(count, (double)result->rejections[i].count);
    tws_document_row(d, (const char *[]){count, result->rejections[i].reason});
  }
  tws_document_table_end(d);
}

/* ---- the whole report ---- */

static void tell(const tws_tune_report *r, const figures *f, tws_document_format dress, tws_document *d) {
  char title[256], name[64], count[32];
  const tws_network *network = r->request->job->network;
  tws_result_title(network->name, name, sizeof name);
  snprintf(title, sizeof title, "Tuning %s (%s parameters) on %.100s", name,
           tws_format_count((double)tws_network_params(network, 0), count, sizeof count),
           r->request->job->cluster.name);
  tws_document_begin(d, dress, title);
  tell_winner(r, d);
  tell_own(r, d);
  tell_trials(r, f, d);
  tws_document_heading(d, "Fastest configurations");
  tell_candidates(r, d, NULL, r->result->fits);
  tws_document_heading(d, has_price(r) ? "Throughput, memory and cost" : "Throughput and memory");
  tws_document_paragraph(
      d, "The Pareto set: no other configuration is better in one of these respects and as good in the others.");
  tws_document_figure(d, f->pareto.data, "pareto.svg", "Configurations that fit; the line connects the Pareto set");
  tell_candidates(r, d, r->analysis->pareto, r->analysis->pareto_count);
  tell_knobs(r->analysis, f, d);
  if (!r->result->every) tell_swept(&r->result->swept, d);
  tell_rejections(r->result, d);
  tws_document_end(d);
}

static tws_code write_text(const char *folder, const char *name, const tws_text *text, tws_error *err) {
  char path[4096];
  snprintf(path, sizeof path, "%.2048s/%s", folder, name);
  if (text->failed || !text->data) return tws_fail(err, TWS_MEMORY, NULL, "no memory for %s", path);
  return tws_write_file(path, text->data, text->length, err);
}

static tws_code write_all(const tws_tune_report *r, const figures *f, const char *folder, tws_error *err) {
  static const char *const names[] = {"report.html", "report.md"};
  for (int dress = 0; dress < 2; dress++) {
    tws_document d;
    tell(r, f, (tws_document_format)dress, &d);
    const tws_code code = write_text(folder, names[dress], &d.text, err);
    tws_text_free(&d.text);
    TWS_TRY(code);
  }
  TWS_TRY(write_text(folder, "pareto.svg", &f->pareto, err));
  TWS_TRY(write_text(folder, "sensitivity.svg", &f->knobs, err));
  return f->trials.data ? write_text(folder, "trials.svg", &f->trials, err) : TWS_OK;
}

tws_code tws_tune_write_documents(const tws_tune_report *r, const tws_tune_folders *folders, tws_error *err) {
  figures f = {0};
  if (!r->analysis) return TWS_OK;
  draw_knobs(r->analysis, &f.knobs);
  tws_code code = draw_pareto(r, &f.pareto, err);
  if (code == TWS_OK && r->trials && r->trials->count > 0) code = draw_trials(r, &f.trials, err);
  if (code == TWS_OK && (f.knobs.failed || f.pareto.failed || f.trials.failed))
    code = tws_fail(err, TWS_MEMORY, NULL, "no memory for the figures");
  if (code == TWS_OK) code = write_all(r, &f, folders->results, err);
  tws_text_free(&f.knobs);
  tws_text_free(&f.pareto);
  tws_text_free(&f.trials);
  return code;
}
