/* Computes the fingerprints of model, configuration and plan, 16 hexadecimal digits each, by which results and traces
 * are matched to a job. */
#include "base/fingerprint.h"
#include <inttypes.h>
#include <stdio.h>
#include "estimators/estimators.h"
#include "models/quantized.h"

/* Returns a hash of the model as its file describes it, without the rows that pad the vocabulary. */
uint64_t tws_network_fingerprint(const tws_network *n) {
  const int64_t sizes[] = {n->layers, n->hidden,       n->heads,      n->kv_heads, n->head_size,
                           n->tied,   n->intermediate, n->vocabulary, n->positions};
  uint64_t hash = tws_fingerprint_text(TWS_FINGERPRINT_START, n->architecture);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) hash = tws_fingerprint_integer(hash, sizes[i]);
  for (uint32_t i = 0; i < n->module_count; i++) {
    const tws_module *m = &n->modules[i];
    hash = tws_fingerprint_integer(hash, m->type);
    hash = tws_fingerprint_text(hash, m->name);
    hash = tws_fingerprint_integer(hash, m->rms);
    hash = tws_fingerprint_number(hash, m->epsilon);
    for (int k = 0; k < 5; k++) hash = tws_fingerprint_number(hash, m->rope[k]);
    const double rest[] = {
        m->offset, m->scale, m->cap, m->rope[5], m->rotary, m->dynamic_rope, (double)m->first_position};
    for (size_t k = 0; k < sizeof rest / sizeof *rest; k++) /* zeros are not hashed, since most modules have many */
      if (rest[k] != 0) hash = tws_fingerprint_number(tws_fingerprint_integer(hash, (int64_t)k), rest[k]);
  }
  for (uint32_t i = 0; i < n->param_count; i++) {
    const tws_param *p = &n->params[i];
    hash = tws_fingerprint_text(hash, p->name);
    hash = tws_fingerprint_integer(hash, p->rows == n->padded_vocabulary ? n->vocabulary : p->rows);
    hash = tws_fingerprint_integer(hash, p->columns);
    if (p->frozen) hash = tws_fingerprint_text(hash, p->code_type ? tws_code_type_name(p->code_type) : "frozen");
  }
  return hash;
}

/* Returns a hash of a plan. arguments_too 1: the hash includes the constants of single operations, such as first rows
 * and seeds, which do not change costs. */
static uint64_t of_plan(const tws_plan *plan, int arguments_too) {
  uint64_t hash = TWS_FINGERPRINT_START;
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const tws_op *op = &plan->ops[i];
    const int64_t fields[] = {op->kind, op->stream, op->phase, op->micro_batch, op->module, op->work};
    for (size_t k = 0; k < sizeof fields / sizeof *fields; k++) hash = tws_fingerprint_integer(hash, fields[k]);
    const tws_arguments *arguments = arguments_too ? tws_op_arguments(plan, op) : NULL;
    for (int k = 0; arguments && k < TWS_ARGUMENTS; k++) hash = tws_fingerprint_number(hash, arguments->a[k]);
  }
  for (uint32_t i = 0; i < plan->work_count; i++) {
    const tws_work *work = &plan->works[i];
    const int64_t fields[] = {work->kind, work->code, work->dtype, work->dtype2, work->segments};
    for (size_t k = 0; k < sizeof fields / sizeof *fields; k++) hash = tws_fingerprint_integer(hash, fields[k]);
    for (int k = 0; k < TWS_WORK_DIMS; k++) hash = tws_fingerprint_integer(hash, work->d[k]);
  }
  for (uint32_t i = 0; i < plan->buffer_count; i++) {
    hash = tws_fingerprint_integer(hash, plan->buffers[i].category);
    hash = tws_fingerprint_integer(hash, (int64_t)plan->buffers[i].bytes);
  }
  return hash;
}

tws_code tws_fingerprint_read(const tws_plan_request *request, tws_fingerprint *out, tws_error *err) {
  tws_plan_request first = *request;
  tws_plan *plan;
  uint64_t configuration;
  first.rank = 0;
  first.max_accumulation = 2; /* later micro-batches equal the second; their number is hashed below */
  TWS_TRY(tws_config_fingerprint(request->config, &configuration, err));
  TWS_TRY(tws_plan_build(&first, &plan, err));
  uint64_t hash = tws_fingerprint_integer(of_plan(plan, 1), request->config->accumulation_steps);
  hash = tws_fingerprint_integer(hash, plan->world);
  tws_plan_destroy(plan);
  snprintf(out->model, sizeof out->model, "%016" PRIx64, tws_network_fingerprint(request->network));
  snprintf(out->configuration, sizeof out->configuration, "%016" PRIx64, configuration);
  snprintf(out->plan, sizeof out->plan, "%016" PRIx64, hash);
  return TWS_OK;
}

tws_code tws_fingerprint_shape(const tws_plan_request *request, uint64_t *out, tws_error *err) {
  tws_plan_request few = *request;
  tws_plan *plan;
  few.max_accumulation = 2;
  TWS_TRY(tws_plan_build(&few, &plan, err));
  uint64_t hash = of_plan(plan, 0);
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const tws_op *op = &plan->ops[i];
    hash = tws_fingerprint_integer(hash, op->channel);
    for (int k = 0; k < op->operand_count; k++) {
      const tws_operand *operand = &plan->operands[op->operand_first + (uint32_t)k];
      hash = tws_fingerprint_integer(hash, ((int64_t)operand->buffer << 8) + (int64_t)operand->access);
    }
  }
  for (uint32_t i = 0; i < plan->buffer_count; i++)
    hash = tws_fingerprint_integer(hash, (int64_t)plan->buffers[i].offset);
  for (int tier = 0; tier < TWS_TIER_COUNT; tier++)
    hash = tws_fingerprint_integer(hash, (int64_t)tws_plan_bytes(plan, (tws_tier)tier));
  tws_plan_destroy(plan);
  *out = hash;
  return TWS_OK;
}

void tws_fingerprint_json(const tws_fingerprint *fingerprint, cJSON *object) {
  cJSON *json = cJSON_AddObjectToObject(object, "fingerprint");
  if (*fingerprint->model) cJSON_AddStringToObject(json, "model", fingerprint->model);
  if (*fingerprint->configuration) cJSON_AddStringToObject(json, "configuration", fingerprint->configuration);
  if (*fingerprint->plan) cJSON_AddStringToObject(json, "plan", fingerprint->plan);
}
