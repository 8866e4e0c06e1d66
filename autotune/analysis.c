#include "autotune/analysis.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double tws_tune_cost(const tws_tune_request *request, const tws_variant *variant, double samples_per_s) {
  const double tokens_per_s = samples_per_s * (double)tws_job_sequence(request->job);
  if (!(tokens_per_s > 0)) return 0;
  return request->job->cluster.price_per_device_hour * variant->ranks / 3600 / tokens_per_s * 1e6;
}

/* ---- one variant ---- */

static double samples_of(const tws_variant *v) {
  return (double)(v->micro * v->accumulation * tws_variant_replicas(v));
}

static tws_code evaluate(const tws_tune_request *request, tws_tune_point *p, tws_error *err) {
  tws_job *job = NULL;
  tws_estimate estimate;
  tws_error why = {0};
  tws_code code = tws_job_derive(request->job, &p->variant, &job, &why);
  if (code == TWS_OK) code = tws_job_estimate(job, &estimate, NULL, &why);
  if (code == TWS_OK) {
    const tws_fit fit = tws_job_fit_within(job, &estimate.ledger, request->memory_bytes);
    p->step_s = estimate.step_s;
    p->throughput = samples_of(&p->variant) / estimate.step_s;
    p->bytes = fit.rank_need;
    p->fits = fit.fits;
    p->cost = tws_tune_cost(request, &p->variant, p->throughput);
    if (!fit.fits) snprintf(p->reason, sizeof p->reason, "does not fit");
  }
  tws_job_destroy(job);
  if (code == TWS_OK) return TWS_OK;
  if (code != TWS_INVALID && code != TWS_UNSUPPORTED)
    return tws_fail(err, code, *why.hint ? why.hint : NULL, "%s", why.message);
  snprintf(p->reason, sizeof p->reason, "%.150s", why.message);
  return TWS_OK;
}

/* ---- knobs ---- */

typedef struct turner {
  const tws_tune_request *request;
  tws_tune_analysis *out;
  tws_error *err;
  tws_code code;
} turner;

static int at_least_one(int ranks) {
  return ranks > 1 ? ranks : 1;
}

static int keep_batch(const tws_variant *winner, tws_variant *turned) {
  const int64_t batch = (int64_t)samples_of(winner);
  const int64_t others = turned->micro * tws_variant_replicas(turned);
  if (tws_variant_replicas(turned) < 1 || batch % others != 0) return 0;
  turned->accumulation = batch / others;
  return 1;
}

static void turn(turner *t, const char *name, const char *winner, const char *value, const tws_variant *turned) {
  if (t->code != TWS_OK || t->out->knob_count == TWS_TUNE_KNOBS) return;
  tws_tune_knob *knob = &t->out->knobs[t->out->knob_count++];
  *knob = (tws_tune_knob){.name = name, .point = {.variant = *turned}};
  snprintf(knob->winner, sizeof knob->winner, "%s", winner);
  snprintf(knob->value, sizeof knob->value, "%s", value);
  if (keep_batch(&t->out->winner.variant, &knob->point.variant))
    t->code = evaluate(t->request, &knob->point, t->err);
  else
    snprintf(knob->point.reason, sizeof knob->point.reason, "does not divide the global batch");
}

static void turn_number(turner *t, const char *name, int64_t winner, int64_t value, const tws_variant *turned) {
  char from[24], to[24];
  snprintf(from, sizeof from, "%lld", (long long)winner);
  snprintf(to, sizeof to, "%lld", (long long)value);
  turn(t, name, from, to, turned);
}

/* Evaluates the winner with half and with double the degree of a parallel axis, whose member in tws_variant is at
 * `offset`. */
static void turn_axis(turner *t, const char *name, size_t offset) {
  const tws_variant *w = &t->out->winner.variant;
  int given;
  memcpy(&given, (const char *)w + offset, sizeof given);
  given = at_least_one(given);
  for (int up = 0; up < 2; up++) {
    tws_variant turned = *w;
    const int value = up ? 2 * given : given / 2;
    const int others = at_least_one(w->pipeline) * at_least_one(w->tensor) * at_least_one(w->sequence) / given;
    if (value < 1 || w->ranks % (others * value) != 0) continue;
    memcpy((char *)&turned + offset, &value, sizeof value);
    if (turned.pipeline < 2) turned.schedule = (tws_variant_schedule){.virtual_stages = 1};
    if (turned.pipeline > 1 && w->pipeline < 2) turned.schedule = (tws_variant_schedule){TWS_PIPELINE_1F1B, 1};
    turn_number(t, name, given, value, &turned);
  }
}

/* Evaluates the winner with half and with double the expert-parallel degree. */
static void turn_experts(turner *t) {
  const tws_variant *w = &t->out->winner.variant;
  const int given = at_least_one(w->expert);
  for (int up = 0; up < 2 && tws_network_has_experts(t->request->job->network); up++) {
    tws_variant turned = *w;
    turned.expert = up ? 2 * given : given / 2;
    if (turned.expert > 0 && tws_variant_replicas(w) % turned.expert == 0)
      turn_number(t, "expert ranks", given, turned.expert, &turned);
  }
}

static void turn_schedule(turner *t) {
  static const tws_variant_schedule schedules[] = {
      {TWS_PIPELINE_GPIPE, 1}, {TWS_PIPELINE_1F1B, 1}, {TWS_PIPELINE_INTERLEAVED, 2}, {TWS_PIPELINE_ZB_H1, 1}};
  const tws_variant *w = &t->out->winner.variant;
  for (size_t i = 0; w->pipeline > 1 && i < sizeof schedules / sizeof *schedules; i++) {
    tws_variant turned = *w;
    turned.schedule = schedules[i];
    if (turned.schedule.kind == w->schedule.kind) continue;
    turn(t, "schedule", tws_pipeline_kind_name(w->schedule.kind), tws_pipeline_kind_name(schedules[i].kind), &turned);
  }
}

static void turn_all(turner *t) {
  const tws_variant *w = &t->out->winner.variant;
  tws_variant turned = *w;
  for (int stage = 0; stage <= 3; stage++) {
    turned.stage = stage;
    if (stage != w->stage) turn_number(t, "ZeRO stage", w->stage, stage, &turned);
  }
  turned = *w;
  for (int i = 0; i < 2; i++) {
    turned.micro = i ? 2 * w->micro : w->micro / 2;
    if (turned.micro > 0) turn_number(t, "micro batch", w->micro, turned.micro, &turned);
  }
  turned = *w;
  for (int i = 0; i < 3; i++) {
    turned.recompute = (tws_recompute)i;
    if (turned.recompute != w->recompute)
      turn(t, "recompute", tws_recompute_name(w->recompute), tws_recompute_name(turned.recompute), &turned);
  }
  if (w->ranks > 1) {
    turn_axis(t, "pipeline stages", offsetof(tws_variant, pipeline));
    turn_axis(t, "tensor ranks", offsetof(tws_variant, tensor));
    turn_axis(t, "sequence ranks", offsetof(tws_variant, sequence));
  }
  turn_experts(t);
  turn_schedule(t);
  turned = *w;
  turned.sequence_parallel = !w->sequence_parallel;
  if (w->tensor > 1)
    turn(t, "sequence parallelism", w->sequence_parallel ? "on" : "off", turned.sequence_parallel ? "on" : "off",
         &turned);
}

/* ---- Pareto front ---- */

static int beats(const tws_tune_request *request, const tws_tune_candidate *a, const tws_tune_candidate *b) {
  const double x = tws_tune_throughput(a), y = tws_tune_throughput(b);
  const double p = tws_tune_cost(request, &a->variant, x), q = tws_tune_cost(request, &b->variant, y);
  if (x < y || a->needed_bytes > b->needed_bytes || p > q) return 0;
  /* if two candidates are equal in all figures, the first one dominates the other */
  return x > y || a->needed_bytes < b->needed_bytes || p < q || a < b;
}

static tws_code find_pareto(const tws_tune_request *request, const tws_tune_result *result, tws_tune_analysis *out,
                            tws_error *err) {
  const tws_tune_candidate *all = result->candidates;
  out->pareto = tws_calloc((size_t)result->fits + 1, sizeof *out->pareto);
  if (!out->pareto) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (int i = 0; i < result->fits; i++) {
    int beaten = 0;
    for (int j = 0; j < result->fits && !beaten; j++) beaten = i != j && beats(request, &all[j], &all[i]);
    if (beaten) continue;
    int at = out->pareto_count++;
    for (; at > 0 && tws_tune_throughput(&all[out->pareto[at - 1]]) < tws_tune_throughput(&all[i]); at--)
      out->pareto[at] = out->pareto[at - 1];
    out->pareto[at] = i;
  }
  return TWS_OK;
}

/* ---- the whole analysis ---- */

tws_code tws_tune_analyse(const tws_tune_request *request, const tws_tune_result *result, const tws_variant *winner,
                          const tws_variant *own, tws_tune_analysis **out, tws_error *err) {
  tws_tune_analysis *a = tws_calloc(1, sizeof *a);
  if (!a) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  turner t = {.request = request, .out = a, .err = err};
  a->winner.variant = *winner;
  t.code = evaluate(request, &a->winner, err);
  if (t.code == TWS_OK && own) {
    a->own.variant = *own;
    a->has_own = 1;
    t.code = evaluate(request, &a->own, err);
  }
  if (t.code == TWS_OK) turn_all(&t);
  if (t.code == TWS_OK) t.code = find_pareto(request, result, a, err);
  if (t.code != TWS_OK) {
    tws_tune_analysis_destroy(a);
    return t.code;
  }
  *out = a;
  return TWS_OK;
}

void tws_tune_analysis_destroy(tws_tune_analysis *analysis) {
  if (!analysis) return;
  tws_free(analysis->pareto);
  tws_free(analysis);
}

static void differ(const char *what, int64_t from, int64_t to, tws_text *out) {
  if (from != to) tws_text_add(out, "%s: %lld -> %lld\n", what, (long long)from, (long long)to);
}

void tws_variant_difference(const tws_variant *from, const tws_variant *to, tws_text *out) {
  differ("ZeRO stage", from->stage, to->stage, out);
  differ("micro batch", from->micro, to->micro, out);
  differ("accumulation", from->accumulation, to->accumulation, out);
  differ("ranks", from->ranks, to->ranks, out);
  differ("threads", from->threads, to->threads, out);
  if (from->recompute != to->recompute)
    tws_text_add(out, "recompute: %s -> %s\n", tws_recompute_name(from->recompute), tws_recompute_name(to->recompute));
  differ("pipeline stages", at_least_one(from->pipeline), at_least_one(to->pipeline), out);
  if (to->pipeline > 1 && (from->pipeline < 2 || from->schedule.kind != to->schedule.kind))
    tws_text_add(out, "schedule: %s -> %s\n", from->pipeline > 1 ? tws_pipeline_kind_name(from->schedule.kind) : "none",
                 tws_pipeline_kind_name(to->schedule.kind));
  differ("tensor ranks", at_least_one(from->tensor), at_least_one(to->tensor), out);
  if (to->tensor > 1) differ("sequence parallelism", from->sequence_parallel, to->sequence_parallel, out);
  differ("sequence ranks", at_least_one(from->sequence), at_least_one(to->sequence), out);
  differ("expert ranks", at_least_one(from->expert), at_least_one(to->expert), out);
  for (int i = 0; i < TWS_EXCHANGE_COUNT; i++)
    differ(tws_exchange_name((tws_exchange_key)i), from->exchange[i] > 0 ? from->exchange[i] - 1 : 0,
           to->exchange[i] > 0 ? to->exchange[i] - 1 : 0, out);
  if (to->capacity > 0 && from->capacity != to->capacity) tws_text_add(out, "expert capacity: %g\n", to->capacity);
}
