/* Lowering: state shared by the passes. Internal to plan/.
 *
 *   visits.c     a micro-batch as a list of module visits (forward, recomputation, backward)
 *   modules.c    one visit -> kernels on values and their gradients
 *   zero.c       where parameters and gradients live and move, by ZeRO stage
 *   optimizer.c  the step: norm, clipping, AdamW, gathering of updated parameters
 *   build.c      puts them together */
#ifndef TWS_PLAN_LOWER_H
#define TWS_PLAN_LOWER_H

#include "plan/builder.h"
#include "plan/zero3_schedule.h"

typedef struct tws_visit {
  uint32_t module; /* TWS_NONE: the root, which has no work of its own but lets ZeRO-3 prefetch */
  uint8_t phase;
} tws_visit;

typedef struct tws_visit_list {
  tws_visit *items;
  uint32_t count;
  size_t capacity;
} tws_visit_list;

/* One communication bucket of a micro-batch's backward pass: gradients that are reduced together. */
typedef struct tws_bucket {
  uint32_t first, count; /* slice of tws_zero.bucket_params, in ascending order of parameters */
  uint64_t elements;     /* stage 3: padded */
  uint32_t pending;      /* gradients of this micro-batch that are not complete yet */
  uint32_t buffer;       /* instance of this micro-batch, TWS_NONE before its first gradient */
} tws_bucket;

typedef struct tws_zero {
  int stage, ranks, index; /* data-parallel group */
  uint32_t group;
  int flat_gradients;                 /* all gradients in one buffer (stages 0 and 1, or a single rank) */
  tws_dtype grad_dtype;               /* of what the backward kernels write */
  uint64_t *flat_offset;              /* per parameter: stages 0-2 in the flat buffer; stage 3: of its shard */
  int64_t *part;                      /* stage 3: elements of a shard */
  uint64_t total, aligned, partition; /* stages 0-2 */
  int *order;                         /* flattening order */
  uint8_t *persistent;                /* stage 3 */
  uint32_t *gathered;                 /* stage 3: buffer of the gathered parameter, or TWS_NONE */
  uint8_t *written;                   /* gradient has a contribution (of this step, or this micro-batch for buckets) */
  uint32_t *uses;                     /* contributions to a parameter's gradient in one backward pass */
  uint32_t *left;                     /* of them, still to come in this micro-batch */
  tws_bucket *buckets;
  uint32_t bucket_count;
  uint32_t *bucket_params; /* grouped by bucket */
  uint32_t *bucket_of;     /* per parameter */
  uint64_t *slot;          /* per parameter: offset in its bucket */
  tws_zero3_schedule schedule;
} tws_zero;

typedef struct tws_lower {
  const tws_plan_request *request;
  const tws_config *config;
  const tws_network *network;
  tws_arena *scratch;
  tws_builder b;
  tws_zero zero;
  tws_visit_list visits; /* of one micro-batch: forward visits first */
  uint32_t forward_visits;
  uint32_t *value_buffer;   /* current instance of each value, TWS_NONE when not there */
  uint32_t *value_gradient; /* likewise of its gradient */
  uint8_t *kept;            /* values that survive the forward pass */
  int64_t tokens;           /* of one micro-batch */
  int64_t accumulation;     /* micro-batches lowered */
  tws_stream gather_stream, reduce_stream;
} tws_lower;

/* visits.c */
tws_code tws_lower_visits(tws_lower *l);
/* modules.c */
void tws_lower_visit(tws_lower *l, const tws_visit *visit);
/* zero.c */
tws_code tws_zero_begin(tws_lower *l);
void tws_zero_step_begin(tws_lower *l);
void tws_zero_micro_begin(tws_lower *l);
void tws_zero_before(tws_lower *l, uint32_t visit);
void tws_zero_after(tws_lower *l, uint32_t visit);
void tws_zero_micro_end(tws_lower *l);
tws_operand tws_zero_param(tws_lower *l, uint32_t param);
/* Where a gradient contribution is written; *accumulate says whether to add. Calls come in order of contribution. */
tws_operand tws_zero_gradient(tws_lower *l, uint32_t param, int *accumulate);
void tws_zero_contributed(tws_lower *l, uint32_t param);
/* optimizer.c */
void tws_lower_step(tws_lower *l);

static inline tws_work tws_kernel_work(tws_kernel kernel, tws_dtype dtype, uint32_t flags) {
  tws_work work = {.kind = TWS_OP_COMPUTE,
                   .code = (uint8_t)kernel,
                   .dtype = (uint8_t)dtype,
                   .dtype2 = (uint8_t)dtype,
                   .flags = flags};
  return work;
}

#endif
