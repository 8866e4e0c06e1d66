/* Training through the library: one call for each step, over the engine of real/engine.h. */
#include <string.h>

#include "job/fit.h"
#include "job/modules.h"
#include "library/engine_handle.h"
#include "library/job_handle.h"
#include "library/status.h"

_Static_assert((int)TWINSPEED_TAG_SIZE == TWS_TAG_SIZE, "twinspeed.h has room for a tag");

/* ---- ranks ---- */

twinspeed_status twinspeed_ranks_start(int *rank, int *ranks, twinspeed_error *error) {
  const tws_real_api *api;
  tws_error why = {0};
  char name[] = "twinspeed", *arguments[] = {name, NULL}, **argv = arguments;
  int argc = 1;
  *rank = 0;
  *ranks = 1;
  tws_code code = tws_real_load(&api, &why);
  if (code == TWS_OK) code = api->start(&argc, &argv, rank, ranks, &why);
  return twinspeed_tell_(twinspeed_failed_(code), &why, error);
}

void twinspeed_ranks_stop(void) {
  const tws_real_api *api;
  if (tws_real_load(&api, NULL) == TWS_OK) api->stop();
}

/* ---- opening ---- */

void twinspeed_engine_options_init(twinspeed_engine_options *options) {
  *options = (twinspeed_engine_options){.size = sizeof *options, .evaluation = 1};
}

static tws_code read_options(const twinspeed_engine_options *given, twinspeed_engine_options *out, tws_error *why) {
  twinspeed_engine_options_init(out);
  if (!given) return TWS_OK;
  if (given->size == 0 || given->size > sizeof *out)
    return tws_fail(why, TWS_USAGE, "call twinspeed_engine_options_init() first, with the twinspeed.h of this library",
                    "engine options: a size of %zu bytes is not one that this library knows", given->size);
  memcpy(out, given, given->size);
  out->size = sizeof *out;
  if (out->eval_batches < 0)
    return tws_fail(why, TWS_USAGE, NULL, "engine options: eval_batches is %lld", (long long)out->eval_batches);
  return TWS_OK;
}

static void write_line(void *user, tws_log_level level, const char *line) {
  const twinspeed_engine *engine = user;
  engine->write(engine->user, (int)level, line);
}

static tws_code check_memory(const tws_job *job, const twinspeed_engine_options *o, tws_error *why) {
  tws_local_fit fit;
  const int nodes = job->cluster.nodes > 1 ? job->cluster.nodes : 1;
  if (o->ignore_memory) return TWS_OK;
  TWS_TRY(tws_job_fit_here(job, (job->ranks + nodes - 1) / nodes, o->evaluation, &fit, why));
  if (fit.need == 0.0 || fit.fits) return TWS_OK;
  return tws_fail(why, TWS_NO,
                  "a smaller micro batch, recomputation or a higher ZeRO stage needs less; ignore_memory opens the "
                  "engine anyway",
                  "the engine needs %.0f bytes of memory on this machine, and %.0f are left", fit.need, fit.have);
}

static tws_code open_engine(const twinspeed_job *handle, const twinspeed_engine_options *o, twinspeed_engine *engine,
                            tws_error *why) {
  const tws_job *job = handle->job;
  tws_fingerprint fingerprint;
  TWS_TRY(tws_job_check_engine(job, handle->by_cluster, handle->by_profile, why));
  TWS_TRY(check_memory(job, o, why));
  TWS_TRY(tws_real_load(&engine->real, why));
  TWS_TRY(tws_job_fingerprint(job, &fingerprint, why));
  engine->calls = engine->real->engine;
  engine->write = o->log;
  engine->user = o->user;
  engine->log = (tws_log){.write = write_line, .user = engine, .level = TWS_LOG_INFO};
  engine->network = job->network;
  const tws_engine_options options = {.plan = tws_job_request(job, 0),
                                      .ranks = o->communicator,
                                      .data = o->data,
                                      .eval_data = o->eval_data,
                                      .init_from = o->init_from,
                                      .evaluates = o->evaluation != 0,
                                      .eval_steps = o->eval_batches,
                                      .device_limit = (uint64_t)(o->device_limit > 0 ? o->device_limit : 0),
                                      .fingerprint = &fingerprint,
                                      .log = o->log ? &engine->log : NULL};
  engine->peak_flops = tws_peak_flops(&options.plan, &job->machine);
  return engine->calls->open(&options, &engine->engine, why);
}

twinspeed_status twinspeed_engine_open(const twinspeed_job *job, const twinspeed_engine_options *options,
                                       twinspeed_engine **out, twinspeed_error *error) {
  tws_error why = {0};
  twinspeed_engine_options o;
  *out = NULL;
  twinspeed_engine *engine = tws_calloc(1, sizeof *engine);
  tws_code code = engine ? read_options(options, &o, &why) : tws_fail(&why, TWS_MEMORY, NULL, "no memory for an engine");
  if (code == TWS_OK) code = open_engine(job, &o, engine, &why);
  if (code == TWS_OK)
    *out = engine;
  else
    tws_free(engine);
  return twinspeed_tell_(twinspeed_failed_(code), &why, error);
}

void twinspeed_engine_close(twinspeed_engine *engine) {
  if (!engine) return;
  engine->calls->close(engine->engine);
  tws_free(engine);
}

/* ---- steps ---- */

void twinspeed_engine_report_(const twinspeed_engine *engine, const tws_step_report *r, twinspeed_step *out) {
  *out = (twinspeed_step){.step = r->step,
                          .samples = r->samples,
                          .loss = r->loss,
                          .learning_rate = r->lr,
                          .gradient_norm = r->gradient_norm,
                          .auxiliary_loss = r->auxiliary_loss,
                          .loss_scale = r->loss_scale,
                          .skipped = r->skipped,
                          .seconds = r->seconds,
                          .tokens_per_s = r->tokens_per_s,
                          .data_s = r->data_wait_s,
                          .mfu = engine->peak_flops > 0 ? r->model_flops_per_s / engine->peak_flops : 0,
                          .is_timed = r->is_timed,
                          .forward_s = r->phase.forward,
                          .backward_s = r->phase.backward,
                          .reduction_s = r->phase.reduction,
                          .optimizer_s = r->phase.step};
  for (int t = 0; t < TWS_TIER_COUNT; t++) out->memory_bytes[t] = (double)r->memory_bytes[t];
}

const tws_engine_batch *twinspeed_engine_batch_(const twinspeed_batch *batch, tws_engine_batch *out) {
  if (!batch) return NULL;
  *out = (tws_engine_batch){.tokens = batch->tokens, .targets = batch->targets};
  return out;
}

twinspeed_status twinspeed_train_batch(twinspeed_engine *engine, const twinspeed_batch *batch, twinspeed_step *step,
                                       twinspeed_error *error) {
  tws_error why = {0};
  tws_step_report report = {0};
  tws_engine_batch from;
  const tws_code code = engine->calls->train(engine->engine, twinspeed_engine_batch_(batch, &from), &report, &why);
  if (step) twinspeed_engine_report_(engine, &report, step);
  return twinspeed_tell_(twinspeed_failed_(code), &why, error);
}

twinspeed_status twinspeed_eval_batch(twinspeed_engine *engine, const twinspeed_batch *batch, double *loss,
                                      twinspeed_error *error) {
  tws_error why = {0};
  tws_engine_batch from;
  const tws_code code = engine->calls->evaluate(engine->engine, twinspeed_engine_batch_(batch, &from), loss, &why);
  return twinspeed_tell_(twinspeed_failed_(code), &why, error);
}

int twinspeed_engine_rank(const twinspeed_engine *engine) {
  return engine->calls->rank(engine->engine);
}

int64_t twinspeed_engine_steps(const twinspeed_engine *engine) {
  return engine->calls->steps(engine->engine);
}

double twinspeed_learning_rate(const twinspeed_engine *engine) {
  return engine->calls->lr(engine->engine);
}

void twinspeed_set_learning_rate(twinspeed_engine *engine, double learning_rate) {
  engine->calls->set_lr(engine->engine, learning_rate);
}

/* ---- checkpoints ---- */

twinspeed_status twinspeed_save(twinspeed_engine *engine, const char *folder, const char *client_state, int64_t keep,
                                char tag[TWINSPEED_TAG_SIZE], twinspeed_error *error) {
  tws_error why = {0};
  char unused[TWS_TAG_SIZE];
  const tws_code code =
      engine->calls->save(engine->engine, folder, client_state, keep, tag ? tag : unused, &why);
  return twinspeed_tell_(twinspeed_failed_(code), &why, error);
}

twinspeed_status twinspeed_load(twinspeed_engine *engine, const char *folder, const char *tag,
                                const char **client_state, twinspeed_error *error) {
  tws_error why = {0};
  const char *unused;
  const tws_code code =
      engine->calls->load(engine->engine, folder, tag, client_state ? client_state : &unused, &why);
  return twinspeed_tell_(twinspeed_failed_(code), &why, error);
}
