#include "validation/evidence.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"

#define GPUS_AROUND 2.0
#define PARAMETERS_AROUND 4.0
#define TRUSTED_ERROR 0.15

static const tws_evidence_run runs[] = {
#define RUN(id_, gpu_, parameters_, gpus_, stage_, percent_) \
  {.id = id_, .gpu = gpu_, .parameters = parameters_, .gpus = gpus_, .stage = stage_, .error = (percent_) / 100},
#include "validation/evidence.def"
#undef RUN
};
enum { RUN_COUNT = sizeof runs / sizeof *runs };

const tws_evidence_run *tws_evidence_runs(int *count) {
  *count = RUN_COUNT;
  return runs;
}

/* Returns the distance of two jobs in octaves. Another GPU, or ZeRO-3 in only one of them, weighs more than any factor.
 * ZeRO stages 0 to 2 communicate the same number of bytes. */
static double distance(const tws_evidence_run *run, const tws_evidence *how, int stage) {
  return 100 * how->other_stage + 50 * how->other_gpu + fabs(log2(how->gpus_factor)) +
         fabs(log2(how->parameters_factor)) / 2 + 0.1 * abs(stage - run->stage);
}

static int within_factor(double factor, double most) {
  const double slack = most * 1.001;
  return factor <= slack && factor >= 1 / slack;
}

static tws_evidence_kind judge(const tws_evidence *e) {
  const int near = !e->other_gpu && !e->other_stage && within_factor(e->gpus_factor, GPUS_AROUND) &&
                   within_factor(e->parameters_factor, PARAMETERS_AROUND);
  if (!near) return TWS_EVIDENCE_FAR;
  return fabs(e->nearest->error) > TRUSTED_ERROR ? TWS_EVIDENCE_WRONG : TWS_EVIDENCE_NEAR;
}

/* Returns 1 if the nearest run, on the same GPU and with the same sharding, was mispredicted and the job has more GPUs:
 * its prediction is not trusted more. */
static int beyond_a_wrong_one(const tws_evidence *e) {
  return e->kind == TWS_EVIDENCE_FAR && !e->other_gpu && !e->other_stage && e->gpus_factor >= 1 &&
         fabs(e->nearest->error) > TRUSTED_ERROR;
}

static tws_evidence evidence_of(const tws_network *network, const tws_profile *profile, int ranks, int replicas,
                                int stage) {
  tws_evidence nearest = {.kind = TWS_EVIDENCE_OWN};
  const double parameters = (double)tws_network_params(network, 0);
  const int divided = replicas > 1 ? stage : 0;
  double least = INFINITY;
  if (tws_profile_backend(profile) == TWS_BACKEND_HOST) return nearest;
  for (int i = 0; i < RUN_COUNT; i++) {
    const tws_evidence how = {.nearest = &runs[i],
                              .other_gpu = tws_profile_rates(profile) != TWS_RATES_OWN ||
                                           strcasestr(tws_profile_name(profile), runs[i].gpu) == NULL,
                              .other_stage = (divided == 3) != (runs[i].stage == 3),
                              .gpus_factor = (double)ranks / runs[i].gpus,
                              .parameters_factor = parameters / runs[i].parameters};
    const double far = distance(&runs[i], &how, divided);
    if (far >= least) continue;
    least = far;
    nearest = how;
  }
  nearest.kind = judge(&nearest);
  if (beyond_a_wrong_one(&nearest)) nearest.kind = TWS_EVIDENCE_WRONG;
  return nearest;
}

tws_evidence tws_evidence_of_job(const tws_job *job) {
  const int replicas = tws_job_ranks_along(job, TWS_AXIS_DATA) * tws_job_ranks_along(job, TWS_AXIS_SEQUENCE);
  return evidence_of(job->network, job->profile, job->ranks, replicas, job->config->zero.stage);
}

tws_evidence tws_evidence_of_variant(const tws_job *open, const tws_variant *v) {
  const int replicas = tws_variant_replicas(v) * (v->sequence > 1 ? v->sequence : 1);
  return evidence_of(open->network, open->profile, v->ranks, replicas, v->stage);
}

/* ---- as text ---- */

const char *tws_evidence_word(tws_evidence_kind kind) {
  static const char *const words[] = {"own", "near", "wrong", "far"};
  return words[kind];
}

static void add_factor(tws_text *text, double factor, double around, const char *what) {
  if (within_factor(factor, around)) return;
  if (factor > 1)
    tws_text_add(text, ", %.3g times as many %s", factor, what);
  else
    tws_text_add(text, ", 1/%.3g of its %s", 1 / factor, what);
}

void tws_evidence_text(const tws_evidence *e, char *text, size_t size) {
  const tws_evidence_run *run = e->nearest;
  tws_text out = {0};
  char count[32];
  *text = '\0';
  if (!run) return;
  tws_text_add(&out, "%s",
               e->kind == TWS_EVIDENCE_NEAR    ? "measured nearby"
               : e->kind == TWS_EVIDENCE_WRONG ? "not to be trusted"
                                               : "not measured nearby");
  tws_text_add(&out, ": %s (%s, %d %s, ZeRO-%d) was predicted %.0f %% too %s", run->id,
               tws_format_count(run->parameters, count, sizeof count), run->gpus, run->gpu, run->stage,
               fabs(100 * run->error), run->error < 0 ? "short" : "long");
  if (e->kind != TWS_EVIDENCE_NEAR) {
    tws_text differs = {0};
    if (e->other_gpu) tws_text_add(&differs, ", another GPU");
    if (e->other_stage) tws_text_add(&differs, run->stage == 3 ? ", no ZeRO-3" : ", ZeRO-3");
    add_factor(&differs, e->gpus_factor, GPUS_AROUND, "GPUs");
    add_factor(&differs, e->parameters_factor, PARAMETERS_AROUND, "parameters");
    if (differs.length) tws_text_add(&out, "; here: %s", differs.data + 2);
    tws_text_free(&differs);
  }
  snprintf(text, size, "%s", out.data ? out.data : "");
  tws_text_free(&out);
}

cJSON *tws_evidence_json(const tws_evidence *e) {
  cJSON *json = cJSON_CreateObject();
  char text[320];
  cJSON_AddStringToObject(json, "kind", tws_evidence_word(e->kind));
  if (!e->nearest) return json;
  tws_evidence_text(e, text, sizeof text);
  cJSON_AddStringToObject(json, "nearest", e->nearest->id);
  cJSON_AddNumberToObject(json, "nearest_error", e->nearest->error);
  cJSON_AddNumberToObject(json, "gpus_factor", e->gpus_factor);
  cJSON_AddNumberToObject(json, "parameters_factor", e->parameters_factor);
  cJSON_AddBoolToObject(json, "other_gpu", e->other_gpu);
  cJSON_AddBoolToObject(json, "other_zero", e->other_stage);
  cJSON_AddStringToObject(json, "text", text);
  return json;
}
