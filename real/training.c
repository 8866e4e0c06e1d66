/* Functions that the steps, the checkpoints and the initial weights of a training share. */
#include <string.h>

#include "base/memory.h"
#include "models/quantized.h"
#include "real/train_internal.h"

void tws_training_at(const tws_training *t, int64_t step, const char *what, tws_phase_kind kind) {
  tws_watchdog_phase(t->watchdog, step, what, t->world > 1 || kind == TWS_PHASE_WRITES ? kind : TWS_PHASE_ALONE);
}

int tws_training_has_frozen(const tws_training *t) {
  const tws_network *network = t->plan->network;
  uint32_t p = 0;
  while (p < network->param_count && !network->params[p].frozen) p++;
  return p < network->param_count;
}

uint32_t tws_training_buffer(const tws_plan *plan, const char *entry) {
  for (uint32_t i = 0; i < plan->buffer_count; i++)
    if (plan->buffers[i].lifetime == TWS_LIFETIME_STATE && strcmp(plan->buffers[i].name, entry) == 0) return i;
  return TWS_NONE;
}

uint32_t tws_training_most_ops(const tws_training *t) {
  uint32_t most = t->plan->op_count;
  for (int p = 0; p < TWS_PROGRAM_COUNT; p++)
    if (t->programs[p] && tws_program_is_step((tws_program)p) && t->programs[p]->op_count > most)
      most = t->programs[p]->op_count;
  return most;
}

void tws_training_use_set_lr(const tws_training *t, double *lr, float *hyper) {
  if (!t->has_set_lr) return;
  *lr = t->set_lr;
  for (int group = 0; group < tws_config_param_groups(t->config); group++)
    hyper[group * TWS_HYPER_COUNT + TWS_HYPER_LR] = (float)t->set_lr;
}

tws_code tws_training_sync(tws_training *t, tws_error *err) {
  if (!t->programs[TWS_PROGRAM_SYNC]) return TWS_OK;
  return tws_executor_step(t->executor, TWS_PROGRAM_SYNC, t->counters->steps, NULL, NULL, NULL, err);
}

/* Writes the scales of blocks into the operands from `parts` on: as float32 or, if scales are themselves quantized, as
 * codes, scales and means. */
static tws_code put_scales(tws_training *t, const float *scales, const tws_operand *parts, tws_error *err) {
  const tws_quantized *q = &t->plan->quantized;
  const uint64_t count = parts[1].count;
  if (q->group == 0)
    return tws_executor_put(t->executor, TWS_PROGRAM_TRAIN, q->scales, parts[1].offset, scales, count, err);
  float(*means)[2] = tws_calloc(count / (uint64_t)q->group + 1, sizeof *means);
  uint8_t *codes = tws_calloc(count + 1, 1);
  tws_code code = means && codes ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "no memory to quantize scales with");
  if (code == TWS_OK) {
    tws_quantize_scales(scales, count, q->group, codes, means);
    code = tws_executor_put(t->executor, TWS_PROGRAM_TRAIN, q->scales, parts[1].offset, codes, count, err);
  }
  if (code == TWS_OK)
    code = tws_executor_put(t->executor, TWS_PROGRAM_TRAIN, q->means, parts[2].offset, means, parts[2].count, err);
  tws_free(means);
  tws_free(codes);
  return code;
}

/* Writes codes and scales of a parameter's elements, the first of which is stored at element `offset`. */
tws_code tws_training_put_quantized(tws_training *t, uint64_t offset, const float *values, uint64_t count,
                                    tws_error *err) {
  const tws_quantized *q = &t->plan->quantized;
  tws_operand parts[TWS_QUANTIZED_PARTS];
  tws_quantized_stored(q, offset, count, parts);
  float *scales = tws_calloc(parts[1].count + 1, sizeof *scales);
  uint8_t *codes = tws_calloc(parts[0].count + 1, 1);
  tws_code code = scales && codes ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "no memory to quantize weights with");
  if (code == TWS_OK) {
    tws_quantize(values, count, q->block, q->type, codes, scales);
    code = tws_executor_put(t->executor, TWS_PROGRAM_TRAIN, q->codes, parts[0].offset, codes, parts[0].count, err);
  }
  if (code == TWS_OK) code = put_scales(t, scales, parts, err);
  tws_free(scales);
  tws_free(codes);
  return code;
}
