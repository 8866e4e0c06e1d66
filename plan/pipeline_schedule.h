/* Computes pipeline schedules: the sequence of forward and backward passes of each stage. The functions need no plan
 * and allocate nothing. Lowering reads the order of passes; sends and receives follow from it
 * (plan/pipeline_program.h). docs/pipeline.md draws the schedules; DeepSpeed's own form is in
 * tests/deepspeed_instructions.h. */
#ifndef TWS_PLAN_PIPELINE_SCHEDULE_H
#define TWS_PLAN_PIPELINE_SCHEDULE_H

#include <stdint.h>
#include "base/status.h"
#include "config/ds_config.h"

/* name, text in configurations
 *   GPIPE        all forward passes, then all backward passes (Huang et al., 2019)
 *   1F1B         one forward, one backward (PipeDream-flush); the order of DeepSpeed's training schedule
 *   INTERLEAVED  1F1B over several chunks of layers per stage (Narayanan et al., SC 2021)
 *   ZB_H1        1F1B with the backward pass split into gradients of inputs and of weights, the latter delayed into the
 *                bubble; no stage keeps more activations than stage 0 of 1F1B (Qi et al., 2023) */
#define TWS_PIPELINE_KINDS(X) X(GPIPE, "gpipe") X(1F1B, "1f1b") X(INTERLEAVED, "interleaved") X(ZB_H1, "zb-h1")
typedef enum tws_pipeline_kind {
#define X(name, text) TWS_PIPELINE_##name,
  TWS_PIPELINE_KINDS(X)
#undef X
      TWS_PIPELINE_KIND_COUNT
} tws_pipeline_kind;

const char *tws_pipeline_kind_name(tws_pipeline_kind kind);
tws_code tws_pipeline_kind_parse(const char *name, tws_pipeline_kind *kind, tws_error *err);

typedef enum tws_pipeline_action_kind {
  TWS_ACTION_FORWARD,
  /* gradients of inputs and weights in one pass; schedules with the next two actions do not have it */
  TWS_ACTION_BACKWARD,
  TWS_ACTION_BACKWARD_INPUT,  /* ZB_H1: gradients of inputs, which the previous stage waits for */
  TWS_ACTION_BACKWARD_WEIGHT, /* ZB_H1: gradients of weights; releases the activations */
  TWS_ACTION_KIND_COUNT
} tws_pipeline_action_kind;

typedef struct tws_pipeline_action {
  uint8_t kind;
  uint8_t pad_;
  uint16_t chunk; /* chunk of layers of this stage, 0 .. virtual_stages - 1 */
  uint32_t micro_batch;
} tws_pipeline_action;

typedef struct tws_pipeline_shape {
  tws_pipeline_kind kind;
  int stages, virtual_stages; /* virtual_stages: chunks of layers per stage, 1 unless INTERLEAVED */
  int micro_batches;
  int forward_only; /* 1: an evaluation, which has no backward passes */
  /* 1: the optimizer phase depends on the number of micro-batches: a delayed update overlaps with micro-batches, and
   * sparse gradients have the rows of the tokens of all micro-batches */
  int irregular;
} tws_pipeline_shape;
/* Returns the shape of a configuration's pipeline over `stages` stages; with one stage it is 1F1B whatever the
 * configuration says. */
tws_pipeline_shape tws_pipeline_shape_of(const tws_config *config, int stages, int64_t micro_batches);

/* Returns the index of a block. The model is divided into stages x virtual_stages blocks of layers, which are assigned
 * round-robin: chunk c of stage s is block c x stages + s. Within a micro-batch, the forward pass of block b depends on
 * the forward pass of block b - 1, and its backward pass on the backward pass of block b + 1 (for the last block, on
 * its own forward pass). */
static inline int tws_pipeline_block(const tws_pipeline_shape *shape, int stage, int chunk) {
  return chunk * shape->stages + stage;
}
static inline int tws_pipeline_block_stage(const tws_pipeline_shape *shape, int block) {
  return block % shape->stages;
}
static inline int tws_pipeline_block_chunk(const tws_pipeline_shape *shape, int block) {
  return block / shape->stages;
}

/* Fails with TWS_INVALID or TWS_UNSUPPORTED if a shape is not legal; the message names the rule and the nearest legal
 * value. The functions below need a legal shape. An INTERLEAVED shape with one virtual stage is legal and equal to
 * 1F1B. */
tws_code tws_pipeline_check(const tws_pipeline_shape *shape, tws_error *err);
/* Returns the number of actions of a stage in one step, which is equal for all stages. */
uint32_t tws_pipeline_order_length(const tws_pipeline_shape *shape);
/* Writes the tws_pipeline_order_length() actions of a stage in order. Micro-batches of a chunk finish in ascending
 * order on every stage and in every kind of schedule, so that gradients are summed in one order whatever the schedule.
 * Messages from one stage to another, activations and gradients together, are produced and read in the same order. */
void tws_pipeline_order(const tws_pipeline_shape *shape, int stage, tws_pipeline_action *actions);
/* Returns the largest number of (chunk, micro-batch) pairs whose activations a stage holds at the same time. A stage
 * holds them from the start of the forward pass to the end of the backward pass (ZB_H1: to the end of the gradients of
 * weights). */
uint32_t tws_pipeline_in_flight(const tws_pipeline_shape *shape, int stage);

#endif
