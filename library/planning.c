/* The planning functions of the library: they open jobs, and estimate, verify and simulate them through the other
 * folders. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autotune/autotune.h"
#include "compat/deepspeed_memory.h"
#include "job/assumed.h"
#include "job/fit.h"
#include "job/modules.h"
#include "job/notes.h"
#include "job/simulate.h"
#include "library/job_handle.h"
#include "library/status.h"

_Static_assert((int)TWINSPEED_TIERS == TWS_TIER_COUNT && (int)TWINSPEED_CATEGORIES >= TWS_CATEGORY_COUNT &&
                   (int)TWINSPEED_PHASES >= TWS_PHASE_COUNT,
               "twinspeed.h has room for all tiers, categories and phases");

/* ---- options ---- */

void twinspeed_options_init(twinspeed_options *options) {
  *options = (twinspeed_options){.size = sizeof *options, .stage = -1, .seed = -1};
}

/* Copies as many bytes as the structure has in the version for which the caller was compiled; members that the caller's
 * version does not have get their defaults. */
static twinspeed_status read_options(const twinspeed_options *given, twinspeed_options *out, tws_error *why) {
  twinspeed_options_init(out);
  if (given->size == 0 || given->size > sizeof *out)
    return twinspeed_failed_(tws_fail(why, TWS_USAGE,
                                      "call twinspeed_options_init() first, with the twinspeed.h of this library",
                                      "options: a size of %zu bytes is not one that this library knows", given->size));
  memcpy(out, given, given->size);
  out->size = sizeof *out;
  return TWINSPEED_OK;
}

static twinspeed_status read_spec(const twinspeed_options *given, tws_job_spec *spec, tws_error *why) {
  twinspeed_options o;
  const twinspeed_status status = read_options(given, &o, why);
  if (status != TWINSPEED_OK) return status;
  *spec = (tws_job_spec){.planned = 1,
                         .model = o.model,
                         .config = o.config,
                         .cluster = o.cluster,
                         .profile = o.profile,
                         .runtime = o.runtime,
                         .dtype = o.dtype,
                         .recompute = o.recompute,
                         .schedule = o.schedule,
                         .ranks = o.ranks,
                         .sequence = o.sequence_length,
                         .micro_batch = o.micro_batch,
                         .accumulation = o.accumulation,
                         .pipeline_stages = o.pipeline_ranks,
                         .tensor_ranks = o.tensor_ranks,
                         .sequence_ranks = o.sequence_ranks,
                         .expert_ranks = o.expert_ranks,
                         .stage = o.stage,
                         .seed = o.seed};
  if (o.set_count > TWS_MAX_STRINGS)
    return twinspeed_failed_(tws_fail(why, TWS_USAGE, "write them into a configuration file",
                                      "options: %zu settings, and at most %d are read", o.set_count, TWS_MAX_STRINGS));
  for (size_t i = 0; i < o.set_count; i++) spec->set.item[spec->set.count++] = o.set[i];
  const struct {
    const char *name;
    int64_t value, low, high;
  } ranges[] = {{"ranks", o.ranks, 0, INT32_MAX},
                {"sequence_length", o.sequence_length, 0, INT32_MAX},
                {"micro_batch", o.micro_batch, 0, INT32_MAX},
                {"accumulation", o.accumulation, 0, INT32_MAX},
                {"pipeline_ranks", o.pipeline_ranks, 0, INT32_MAX},
                {"tensor_ranks", o.tensor_ranks, 0, INT32_MAX},
                {"sequence_ranks", o.sequence_ranks, 0, INT32_MAX},
                {"expert_ranks", o.expert_ranks, 0, INT32_MAX},
                {"stage", o.stage, -1, 3}};
  for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
    if (ranges[i].value < ranges[i].low || ranges[i].value > ranges[i].high)
      return twinspeed_failed_(tws_fail(why, TWS_USAGE, NULL, "options: %s must be %lld to %lld, not %lld",
                                        ranges[i].name, (long long)ranges[i].low, (long long)ranges[i].high,
                                        (long long)ranges[i].value));
  return TWINSPEED_OK;
}

/* ---- jobs ---- */

twinspeed_status twinspeed_open(const twinspeed_options *options, twinspeed_job **out, twinspeed_error *error) {
  tws_error why = {0};
  tws_job_spec spec;
  *out = NULL;
  twinspeed_status status = read_spec(options, &spec, &why);
  twinspeed_job *job = tws_calloc(1, sizeof *job);
  if (status == TWINSPEED_OK && !job)
    status = twinspeed_failed_(tws_fail(&why, TWS_MEMORY, NULL, "no memory for the job"));
  if (status == TWINSPEED_OK) {
    job->by_cluster = spec.cluster != NULL;
    job->by_profile = spec.profile != NULL;
    status = twinspeed_failed_(tws_job_load(&spec, &job->job, &why));
  }
  if (status == TWINSPEED_OK)
    *out = job;
  else
    tws_free(job);
  return twinspeed_tell_(status, &why, error);
}

void twinspeed_close(twinspeed_job *job) {
  if (!job) return;
  tws_job_destroy(job->job);
  tws_free(job->notes);
  tws_free(job);
}

void twinspeed_job_describe(const twinspeed_job *handle, twinspeed_job_facts *facts) {
  const tws_job *job = handle->job;
  const tws_config *c = job->config;
  *facts = (twinspeed_job_facts){.ranks = job->ranks,
                                 .stages = tws_job_stages(job),
                                 .replicas = tws_topology_size(&job->topology, TWS_AXES_DATA),
                                 .tensor_ranks = tws_job_ranks_along(job, TWS_AXIS_MODEL),
                                 .sequence_ranks = tws_job_ranks_along(job, TWS_AXIS_SEQUENCE),
                                 .expert_ranks = tws_job_ranks_along(job, TWS_AXIS_EXPERT),
                                 .zero_stage = c->zero.stage,
                                 .micro_batch = c->micro_batch_size,
                                 .accumulation = c->accumulation_steps,
                                 .sequence_length = tws_job_sequence(job),
                                 .parameters = (double)tws_network_params(job->network, 0)};
  for (uint32_t i = 0; i < job->network->param_count; i++)
    if (!job->network->params[i].frozen) facts->trained_parameters += (double)tws_param_numel(&job->network->params[i]);
  snprintf(facts->model, sizeof facts->model, "%s", job->network->name);
  snprintf(facts->runtime, sizeof facts->runtime, "%s", tws_profile_runtime(job->profile)->name);
  snprintf(facts->dtype, sizeof facts->dtype, "%s", tws_dtype_name(c->dtype));
  snprintf(facts->cluster, sizeof facts->cluster, "%s", job->cluster.name);
}

const char *twinspeed_job_notes(twinspeed_job *handle) {
  tws_assumption assumed[TWS_ASSUMPTIONS];
  tws_text text = {0}, assumptions = {0};
  int count = 0;
  tws_assumptions_text(assumed, tws_job_assumed(handle->job, assumed), &assumptions);
  if (assumptions.length) tws_text_add(&text, "assumed: %s\n", assumptions.data);
  tws_text_free(&assumptions);
  tws_code code = tws_config_no_effect(handle->job->config, &text, &count, NULL);
  if (code == TWS_OK) code = tws_config_notes(handle->job->config, &text, &count, NULL);
  if (code == TWS_OK) code = tws_job_notes(handle->job, &text, NULL);
  tws_free(handle->notes);
  handle->notes = code == TWS_OK && !text.failed ? tws_calloc(text.length + 1, 1) : NULL;
  if (handle->notes && text.length) memcpy(handle->notes, text.data, text.length);
  tws_text_free(&text);
  return handle->notes;
}

/* ---- estimates ---- */

const char *twinspeed_tier_name(int tier) {
  return tier >= 0 && tier < TWS_TIER_COUNT ? tws_tier_name((tws_tier)tier) : NULL;
}

const char *twinspeed_category_name(int category) {
  return category >= 0 && category < TWS_CATEGORY_COUNT ? tws_category_name((tws_category)category) : NULL;
}

const char *twinspeed_phase_name(int phase) {
  return phase >= 0 && phase < TWS_PHASE_COUNT ? tws_phase_name((tws_phase)phase) : NULL;
}

static void tell_memory(const tws_job *job, const tws_ledger *ledger, twinspeed_estimate *out) {
  const tws_fit fit = tws_job_fit(job, ledger);
  out->verdict = !fit.fits ? TWINSPEED_DOES_NOT_FIT : fit.tight ? TWINSPEED_TIGHT : TWINSPEED_FITS;
  out->device_need = fit.device_need;
  out->device_have = fit.capacity.host ? fit.capacity.rank_device : fit.capacity.device;
  out->node_need = fit.node_need;
  out->node_have = fit.capacity.node;
  out->disk_need = fit.disk_need;
  out->disk_have = fit.capacity.disk;
  for (int t = 0; t < TWS_TIER_COUNT; t++)
    for (int c = 0; c < TWS_CATEGORY_COUNT; c++) out->bytes[t][c] = (double)ledger->tier[t].category[c];
}

static void tell_time(const tws_estimate *e, twinspeed_estimate *out) {
  out->step_s = e->step_s;
  out->tokens_per_s = e->tokens_per_s;
  out->model_flops = e->model_flops;
  out->mfu = e->mfu;
  out->communication_s = tws_path_communicating(&e->path);
  out->bubble_s = e->path.bubble_s;
  out->host_s = e->path.host_exposed_s;
  out->copies_s = e->path.copies_exposed_s;
  out->disk_s = e->path.disk_exposed_s;
  out->loading_s = e->path.loading_s;
  for (int p = 0; p < TWS_PHASE_COUNT; p++) out->phase_s[p] = e->path.phase_s[p];
  snprintf(out->bottleneck, sizeof out->bottleneck, "%s", e->path.text);
}

twinspeed_status twinspeed_estimate_job(const twinspeed_job *job, twinspeed_estimate *answer, twinspeed_error *error) {
  tws_error why = {0};
  tws_estimate e;
  memset(answer, 0, sizeof *answer);
  const tws_code code = tws_job_estimate(job->job, &e, NULL, &why);
  if (code == TWS_OK) {
    tell_memory(job->job, &e.ledger, answer);
    tell_time(&e, answer);
  }
  return twinspeed_tell_(twinspeed_failed_(code), &why, error);
}

twinspeed_status twinspeed_check_job(const twinspeed_job *job, int max_ranks, twinspeed_check *answer,
                                     twinspeed_error *error) {
  tws_error why = {0};
  tws_verification seen = {0};
  tws_progress silent = {0};
  const tws_code code = tws_job_verify(job->job, max_ranks, &silent, &seen, &why);
  *answer = (twinspeed_check){seen.ranks, seen.checked, (double)seen.operations};
  return twinspeed_tell_(twinspeed_failed_(code), &why, error);
}

twinspeed_status twinspeed_simulate_job(const twinspeed_job *handle, const char *fidelity, twinspeed_simulation *answer,
                                        twinspeed_error *error) {
  tws_error why = {0};
  const tws_job *job = handle->job;
  tws_simulation_request request = {.every_up_to = tws_job_simulates_every(job) ? TWS_SIMULATED_HOST_RANKS : 0};
  tws_simulation done = {0};
  memset(answer, 0, sizeof *answer);
  tws_code code = tws_fidelity_parse(fidelity, &request.fidelity, &why);
  if (code == TWS_OK) code = tws_sim_load(&request.sim, &why);
  if (code == TWS_OK) code = tws_job_simulate(job, &request, &done, &why);
  if (code == TWS_OK) {
    const tws_plan_request plan = tws_job_request(job, 0);
    const double peak = tws_peak_flops(&plan, &job->machine), step_s = done.result.step_s;
    *answer = (twinspeed_simulation){.step_s = step_s,
                                     .tokens_per_s = tws_job_tokens_per_s(job, step_s),
                                     .exposed_s = done.result.exposed_s,
                                     .bubble = done.result.bubble,
                                     .events = (double)done.result.events};
    if (peak > 0 && step_s > 0) answer->mfu = tws_model_flops(&plan) / step_s / peak;
  }
  tws_simulation_free(&done);
  return twinspeed_tell_(twinspeed_failed_(code), &why, error);
}

/* ---- search ---- */

void twinspeed_tune_options_init(twinspeed_tune_options *options) {
  *options = (twinspeed_tune_options){.size = sizeof *options, .axes = -1, .best = 10};
}

static twinspeed_candidate candidate_of(const tws_tune_request *request, const tws_tune_candidate *c) {
  const tws_variant *v = &c->variant;
  twinspeed_candidate out = {.zero_stage = v->stage,
                             .ranks = v->ranks,
                             .pipeline_ranks = v->pipeline > 0 ? v->pipeline : 1,
                             .tensor_ranks = v->tensor > 0 ? v->tensor : 1,
                             .sequence_ranks = v->sequence > 0 ? v->sequence : 1,
                             .expert_ranks = v->expert > 0 ? v->expert : 1,
                             .micro_batch = v->micro,
                             .accumulation = v->accumulation,
                             .step_s = c->simulated_s > 0 ? c->simulated_s : c->estimate.step_s,
                             .tokens_per_s = tws_tune_tokens_per_s(request, c),
                             .device_need = c->needed_bytes,
                             .device_have = c->available_bytes};
  snprintf(out.name, sizeof out.name, "%s", c->name);
  snprintf(out.recompute, sizeof out.recompute, "%s", tws_recompute_name(v->recompute));
  return out;
}

static tws_code search(tws_job *job, const twinspeed_tune_options *how, twinspeed_candidate **candidates, int *count,
                       tws_error *why) {
  tws_tune_request request = {
      .job = job, .budget_s = how->budget_s, .workers = how->workers, .space = {.global_batch = how->global_batch}};
  tws_tune_result *result;
  request.space.axes =
      how->axes > 0 || (how->axes < 0 && tws_config_model_ranks(job->config) == 1 && tws_tune_needs_axes(&request));
  if (tws_sim_load(&request.sim, NULL) != TWS_OK) request.sim = NULL; /* candidates are ranked by longest paths */
  TWS_TRY(tws_tune(&request, &result, why));
  const int wanted = result->fits < how->best ? result->fits : how->best;
  *candidates = wanted > 0 ? calloc((size_t)wanted, sizeof **candidates) : NULL;
  const tws_code code =
      wanted > 0 && !*candidates ? tws_fail(why, TWS_MEMORY, NULL, "no memory for candidates") : TWS_OK;
  for (int i = 0; code == TWS_OK && i < wanted; i++) (*candidates)[i] = candidate_of(&request, &result->candidates[i]);
  if (code == TWS_OK) *count = wanted > 0 ? wanted : 0;
  tws_tune_result_destroy(result);
  return code;
}

twinspeed_status twinspeed_tune(const twinspeed_options *options, const twinspeed_tune_options *how,
                                twinspeed_candidate **candidates, int *count, twinspeed_error *error) {
  tws_error why = {0};
  tws_job_spec spec;
  tws_job *job = NULL;
  *candidates = NULL;
  *count = 0;
  if (how->size != sizeof *how)
    return twinspeed_tell_(
        twinspeed_failed_(tws_fail(&why, TWS_USAGE, "call twinspeed_tune_options_init() first",
                                   "tune options: a size of %zu bytes is not one that this library knows", how->size)),
        &why, error);
  twinspeed_status status = read_spec(options, &spec, &why);
  if (status == TWINSPEED_OK) status = twinspeed_failed_(tws_job_open(&spec, &job, &why));
  if (status == TWINSPEED_OK) status = twinspeed_failed_(search(job, how, candidates, count, &why));
  tws_job_destroy(job);
  return twinspeed_tell_(status, &why, error);
}

void twinspeed_free(void *memory) {
  free(memory);
}

/* ---- DeepSpeed's estimators ---- */

twinspeed_zero_memory twinspeed_zero2(const twinspeed_zero_request *r) {
  const tws_zero_memory m = (r->deepspeed_03 ? tws_zero2_memory_03 : tws_zero2_memory)(
      r->parameters, r->gpus_per_node, r->nodes, r->cpu_offload, r->factor);
  return (twinspeed_zero_memory){m.cpu_bytes, m.gpu_bytes, m.largest_layer_bytes};
}

twinspeed_zero_memory twinspeed_zero3(const twinspeed_zero_request *r) {
  const tws_zero_memory m = tws_zero3_memory(r->parameters, r->largest_layer_parameters, r->gpus_per_node, r->nodes,
                                             r->cpu_offload, r->cpu_offload_params, r->zero_init, r->factor);
  return (twinspeed_zero_memory){m.cpu_bytes, m.gpu_bytes, m.largest_layer_bytes};
}

char *twinspeed_zero_table(int stage, const twinspeed_zero_request *r) {
  tws_text text = {0};
  if (stage == 3)
    tws_zero3_print(r->parameters, r->largest_layer_parameters, r->gpus_per_node, r->nodes, r->factor, &text);
  else
    tws_zero2_print(r->parameters, r->gpus_per_node, r->nodes, r->factor, r->deepspeed_03, &text);
  char *copy = text.failed ? NULL : calloc(text.length + 1, 1);
  if (copy && text.length) memcpy(copy, text.data, text.length);
  tws_text_free(&text);
  return copy;
}
