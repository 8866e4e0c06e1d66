/* Access to parameters, gradients and optimizer states through the library, and steps in parts. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "library/engine_handle.h"
#include "library/job_handle.h"
#include "library/status.h"

/* ---- steps in parts ---- */

twinspeed_status twinspeed_forward(twinspeed_engine *engine, const twinspeed_batch *batch, double *loss,
                                   twinspeed_error *error) {
  tws_error why = {0};
  tws_engine_batch from;
  double unused;
  const tws_code code = engine->calls->forward(engine->engine, twinspeed_engine_batch_(batch, &from),
                                               loss ? loss : &unused, &why);
  return twinspeed_tell_(twinspeed_failed_(code), &why, error);
}

twinspeed_status twinspeed_backward(twinspeed_engine *engine, twinspeed_error *error) {
  tws_error why = {0};
  return twinspeed_tell_(twinspeed_failed_(engine->calls->backward(engine->engine, &why)), &why, error);
}

int twinspeed_is_gradient_accumulation_boundary(const twinspeed_engine *engine) {
  return engine->calls->is_boundary(engine->engine);
}

twinspeed_status twinspeed_step_micro_batch(twinspeed_engine *engine, twinspeed_step *step, twinspeed_error *error) {
  tws_error why = {0};
  tws_step_report report = {0};
  const tws_code code = engine->calls->step(engine->engine, &report, &why);
  if (step) twinspeed_engine_report_(engine, &report, step);
  return twinspeed_tell_(twinspeed_failed_(code), &why, error);
}

/* ---- parameters ---- */

int twinspeed_parameter_describe(const twinspeed_engine *engine, int index, twinspeed_parameter *out) {
  const tws_network *network = engine->network;
  if (index < 0 || (uint32_t)index >= network->param_count) return 0;
  const tws_param *p = &network->params[index];
  *out = (twinspeed_parameter){.rows = p->rows,
                               .columns = p->columns,
                               .elements = engine->calls->elements(engine->engine, (uint32_t)index),
                               .frozen = p->frozen};
  snprintf(out->name, sizeof out->name, "%s", p->name);
  return 1;
}

const char *twinspeed_state_name(const twinspeed_engine *engine, int index) {
  return index < 0 ? NULL : engine->calls->state_name(engine->engine, index);
}

static tws_code find(const twinspeed_engine *engine, const char *name, uint32_t *param, tws_error *why) {
  const tws_network *network = engine->network;
  for (*param = 0; *param < network->param_count; ++*param)
    if (strcmp(network->params[*param].name, name) == 0) return TWS_OK;
  const char **names = tws_calloc(network->param_count + (size_t)1, sizeof *names);
  for (uint32_t i = 0; names && i < network->param_count; i++) names[i] = network->params[i].name;
  const char *closest = names ? tws_closest(name, names, network->param_count) : NULL;
  char hint[400] = "twinspeed_parameter_describe() lists the names";
  if (closest) snprintf(hint, sizeof hint, "did you mean \"%.300s\"?", closest);
  tws_free(names);
  return tws_fail(why, TWS_USAGE, hint, "%s has no parameter \"%.200s\"", network->name, name);
}

twinspeed_status twinspeed_get_full(twinspeed_engine *engine, const char *name, const char *state, float *values,
                                    twinspeed_error *error) {
  tws_error why = {0};
  uint32_t param;
  tws_code code = find(engine, name, &param, &why);
  if (code == TWS_OK) code = engine->calls->get(engine->engine, param, state, values, &why);
  return twinspeed_tell_(twinspeed_failed_(code), &why, error);
}

twinspeed_status twinspeed_set_full(twinspeed_engine *engine, const char *name, const char *state, int rank,
                                    const float *values, twinspeed_error *error) {
  tws_error why = {0};
  uint32_t param;
  tws_code code = find(engine, name, &param, &why);
  if (code == TWS_OK) code = engine->calls->set(engine->engine, param, state, rank, values, &why);
  return twinspeed_tell_(twinspeed_failed_(code), &why, error);
}

twinspeed_status twinspeed_get_local(twinspeed_engine *engine, const char *name, const char *state, float *values,
                                     uint64_t *count, twinspeed_error *error) {
  tws_error why = {0};
  uint32_t param;
  *count = 0;
  tws_code code = find(engine, name, &param, &why);
  if (code == TWS_OK) code = engine->calls->local(engine->engine, param, state, values, count, &why);
  return twinspeed_tell_(twinspeed_failed_(code), &why, error);
}

twinspeed_status twinspeed_set_local(twinspeed_engine *engine, const char *name, const char *state,
                                     const float *values, twinspeed_error *error) {
  tws_error why = {0};
  uint32_t param;
  tws_code code = find(engine, name, &param, &why);
  if (code == TWS_OK) code = engine->calls->set_local(engine->engine, param, state, values, &why);
  return twinspeed_tell_(twinspeed_failed_(code), &why, error);
}

/* ---- gathered parameters ---- */

struct twinspeed_gathered {
  twinspeed_engine *engine;
  int count;
  uint32_t *param;
  float **values;
};

static void free_scope(twinspeed_gathered *scope) {
  for (int i = 0; scope->values && i < scope->count; i++) tws_free(scope->values[i]);
  tws_free(scope->values);
  tws_free(scope->param);
  tws_free(scope);
}

static tws_code gather(twinspeed_gathered *scope, const char *const *names, tws_error *why) {
  const twinspeed_engine *engine = scope->engine;
  scope->param = tws_calloc((size_t)scope->count + 1, sizeof *scope->param);
  scope->values = tws_calloc((size_t)scope->count + 1, sizeof *scope->values);
  int room = scope->param && scope->values;
  for (int i = 0; room && i < scope->count; i++) {
    TWS_TRY(find(engine, names[i], &scope->param[i], why));
    scope->values[i] = tws_calloc(engine->calls->elements(engine->engine, scope->param[i]), sizeof(float));
    room = scope->values[i] != NULL;
  }
  if (!room) return tws_fail(why, TWS_MEMORY, NULL, "no memory for gathered parameters");
  for (int i = 0; i < scope->count; i++)
    TWS_TRY(engine->calls->get(engine->engine, scope->param[i], "parameter", scope->values[i], why));
  return TWS_OK;
}

twinspeed_status twinspeed_gather(twinspeed_engine *engine, const char *const *names, int count,
                                  twinspeed_gathered **out, twinspeed_error *error) {
  tws_error why = {0};
  twinspeed_gathered *scope = tws_calloc(1, sizeof *scope);
  *out = NULL;
  tws_code code = scope ? TWS_OK : tws_fail(&why, TWS_MEMORY, NULL, "no memory for gathered parameters");
  if (scope) {
    scope->engine = engine;
    scope->count = count > 0 ? count : 0;
    code = gather(scope, names, &why);
    if (code == TWS_OK)
      *out = scope;
    else
      free_scope(scope);
  }
  return twinspeed_tell_(twinspeed_failed_(code), &why, error);
}

float *twinspeed_gathered_values(twinspeed_gathered *scope, int index) {
  return index >= 0 && index < scope->count ? scope->values[index] : NULL;
}

twinspeed_status twinspeed_gathered_end(twinspeed_gathered *scope, int modifier_rank, twinspeed_error *error) {
  tws_error why = {0};
  tws_code code = TWS_OK;
  if (!scope) return twinspeed_tell_(TWINSPEED_OK, &why, error);
  const twinspeed_engine *engine = scope->engine;
  for (int i = 0; i < scope->count && modifier_rank >= 0 && code == TWS_OK; i++)
    code = engine->calls->set(engine->engine, scope->param[i], "parameter", modifier_rank, scope->values[i], &why);
  free_scope(scope);
  return twinspeed_tell_(twinspeed_failed_(code), &why, error);
}
