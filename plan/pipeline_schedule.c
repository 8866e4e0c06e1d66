#include "plan/pipeline_schedule.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"

static const char *const kind_names[TWS_PIPELINE_KIND_COUNT] = {
#define X(name, text) text,
    TWS_PIPELINE_KINDS(X)
#undef X
};

const char *tws_pipeline_kind_name(tws_pipeline_kind kind) {
  return (unsigned)kind < TWS_PIPELINE_KIND_COUNT ? kind_names[kind] : "unknown";
}

tws_code tws_pipeline_kind_parse(const char *name, tws_pipeline_kind *kind, tws_error *err) {
  for (int i = 0; i < TWS_PIPELINE_KIND_COUNT; i++) {
    if (strcmp(name, kind_names[i]) == 0) {
      *kind = (tws_pipeline_kind)i;
      return TWS_OK;
    }
  }
  const char *close = tws_closest(name, kind_names, TWS_PIPELINE_KIND_COUNT);
  return tws_fail(err, TWS_INVALID, "schedules are gpipe, 1f1b, interleaved and zb-h1",
                  close ? "unknown pipeline schedule \"%s\": did you mean \"%s\"?" : "unknown pipeline schedule \"%s\"",
                  name, close);
}

tws_pipeline_shape tws_pipeline_shape_of(const tws_config *config, int stages, int64_t micro_batches) {
  return (tws_pipeline_shape){.kind = stages > 1 ? (tws_pipeline_kind)config->pipeline_schedule : TWS_PIPELINE_1F1B,
                              .stages = stages,
                              .virtual_stages = tws_config_division(config).virtual_stages,
                              .irregular = config->delayed_update || config->sparse_gradients,
                              .micro_batches = micro_batches < INT_MAX ? (int)micro_batches : INT_MAX};
}

enum { MOST_STAGES = 1 << 16, MOST_CHUNKS = 1 << 10, MOST_PASSES = 1 << 28 };

static tws_code check_counts(int stages, int virtual_stages, int micro_batches, tws_error *err) {
  if (stages < 1 || stages > MOST_STAGES) {
    return tws_fail(err, TWS_INVALID, "use 1 to 65536 stages", "a pipeline of %d stages", stages);
  }
  if (virtual_stages < 1 || virtual_stages > MOST_CHUNKS) {
    return tws_fail(err, TWS_INVALID, "use 1 to 1024 virtual stages", "%d virtual stages", virtual_stages);
  }
  if (micro_batches < 1 || (int64_t)micro_batches * virtual_stages > MOST_PASSES) {
    return tws_fail(err, TWS_INVALID, "micro-batches x virtual stages has to lie between 1 and 2^28",
                    "a pipeline with %d micro-batches and %d virtual stages", micro_batches, virtual_stages);
  }
  return TWS_OK;
}

tws_code tws_pipeline_check(const tws_pipeline_shape *shape, tws_error *err) {
  int p = shape->stages, v = shape->virtual_stages, m = shape->micro_batches;
  if ((unsigned)shape->kind >= TWS_PIPELINE_KIND_COUNT) {
    return tws_fail(err, TWS_INVALID, NULL, "unknown pipeline schedule %d", (int)shape->kind);
  }
  TWS_TRY(check_counts(p, v, m, err));
  if (v == 1) return TWS_OK;
  if (shape->kind != TWS_PIPELINE_INTERLEAVED) {
    return tws_fail(err, TWS_UNSUPPORTED, "use the interleaved schedule, or one virtual stage",
                    "the %s schedule has one chunk of layers per stage, not %d virtual stages", kind_names[shape->kind],
                    v);
  }
  if (p < 2) {
    return tws_fail(err, TWS_UNSUPPORTED, "use one virtual stage, or more stages",
                    "a pipeline of one stage has no bubble that %d virtual stages could divide", v);
  }
  if (m % p != 0) {
    char hint[96];
    int above = m + p - m % p;
    if (m < p) {
      snprintf(hint, sizeof hint, "use %d micro-batches, or one virtual stage", above);
    } else {
      snprintf(hint, sizeof hint, "use %d or %d micro-batches, or one virtual stage", m - m % p, above);
    }
    return tws_fail(err, TWS_INVALID, hint,
                    "the interleaved schedule needs micro-batches in multiples of the %d stages, not %d", p, m);
  }
  return TWS_OK;
}

uint32_t tws_pipeline_order_length(const tws_pipeline_shape *shape) {
  uint32_t passes = (uint32_t)shape->micro_batches * (uint32_t)shape->virtual_stages;
  if (shape->forward_only) return passes;
  return passes * (shape->kind == TWS_PIPELINE_ZB_H1 ? 3 : 2);
}

/* Returns the k-th pass of a stage in one direction. Interleaved schedules run p micro-batches through one chunk, then
 * the same micro-batches through the next chunk; backward passes begin with the last chunk. */
static tws_pipeline_action nth_pass(const tws_pipeline_shape *shape, tws_pipeline_action_kind kind, uint32_t k) {
  uint32_t p = (uint32_t)shape->stages, v = (uint32_t)shape->virtual_stages;
  tws_pipeline_action action = {.kind = (uint8_t)kind, .micro_batch = k};
  if (v > 1) {
    uint32_t chunk = k / p % v;
    action.chunk = (uint16_t)(kind == TWS_ACTION_FORWARD ? chunk : v - 1 - chunk);
    action.micro_batch = k / (p * v) * p + k % p;
  }
  return action;
}

/* Returns the number of forward passes before the first backward pass, minus 1: the steady state pairs the last of
 * these forward passes with the first backward pass. */
static uint32_t warm_up(const tws_pipeline_shape *shape, int stage) {
  uint32_t passes = (uint32_t)shape->micro_batches * (uint32_t)shape->virtual_stages;
  uint32_t after = (uint32_t)(shape->stages - 1 - stage), count = after;
  if (shape->virtual_stages > 1) count = 2 * after + (uint32_t)((shape->virtual_stages - 1) * shape->stages);
  if (shape->kind == TWS_PIPELINE_GPIPE) count = passes;
  return count < passes ? count : passes;
}

void tws_pipeline_order(const tws_pipeline_shape *shape, int stage, tws_pipeline_action *actions) {
  uint32_t passes = (uint32_t)shape->micro_batches * (uint32_t)shape->virtual_stages;
  uint32_t forward = 0, backward = 0, weight = 0, n = 0;
  int split = shape->kind == TWS_PIPELINE_ZB_H1;
  while (shape->forward_only && forward < passes) actions[n++] = nth_pass(shape, TWS_ACTION_FORWARD, forward++);
  if (shape->forward_only) return;
  while (forward < warm_up(shape, stage)) actions[n++] = nth_pass(shape, TWS_ACTION_FORWARD, forward++);
  while (backward < passes) {
    if (forward < passes) actions[n++] = nth_pass(shape, TWS_ACTION_FORWARD, forward++);
    actions[n++] = nth_pass(shape, split ? TWS_ACTION_BACKWARD_INPUT : TWS_ACTION_BACKWARD, backward++);
    /* Stage s has p - s micro-batches between forward and backward passes; s more may be delayed in their weight
     * gradients, after which the stage holds as many activations as stage 0. Weight gradients that still wait at the
     * end fill the bubble. */
    if (split && backward - weight > (uint32_t)stage) {
      actions[n++] = nth_pass(shape, TWS_ACTION_BACKWARD_WEIGHT, weight++);
    }
  }
  while (split && weight < passes) actions[n++] = nth_pass(shape, TWS_ACTION_BACKWARD_WEIGHT, weight++);
}

uint32_t tws_pipeline_in_flight(const tws_pipeline_shape *shape, int stage) {
  uint32_t passes = (uint32_t)shape->micro_batches * (uint32_t)shape->virtual_stages;
  uint32_t most = warm_up(shape, stage) + 1;
  if (shape->kind == TWS_PIPELINE_ZB_H1) most = (uint32_t)shape->stages;
  return most < passes ? most : passes;
}
