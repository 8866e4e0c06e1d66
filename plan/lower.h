/* Lowering: state shared by the passes. Internal to plan/.
 *
 *   visits.c     a micro-batch as a list of module visits (forward, recomputation, backward)
 *   modules.c    one visit -> kernels on values and their gradients
 *   zero.c       where parameters and gradients live and move, by ZeRO stage
 *   optimizer.c  the step: norm, clipping, AdamW, gathering of updated parameters
 *   pipeline.c   which modules a stage runs, micro-batches in what order, messages between stages
 *   build.c      puts them together */
#ifndef TWS_PLAN_LOWER_H
#define TWS_PLAN_LOWER_H

#include "plan/builder.h"
#include "plan/pipeline_schedule.h"
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

/* Consecutive modules that one stage runs together: the whole network without a pipeline. */
typedef struct tws_chunk {
  uint32_t first, end;          /* modules */
  uint32_t in_value, out_value; /* what it receives and hands on, TWS_NONE at the ends of the network */
  tws_visit_list visits;        /* of a micro-batch: forward visits first */
  uint32_t forward_visits;
} tws_chunk;

/* A weight gradient that waits for its turn (zero-bubble schedules). */
typedef struct tws_deferred {
  tws_work work;
  tws_operand operands[4];
  int count;
  uint32_t module;
} tws_deferred;

/* One micro-batch inside one chunk, from its first operation to its last. */
typedef struct tws_context {
  uint32_t *value_buffer;   /* current instance of each value, TWS_NONE when not there */
  uint32_t *value_gradient; /* likewise of its gradient */
  tws_deferred *deferred;
  size_t deferred_capacity;
  uint32_t deferred_count;
  uint32_t events;          /* that still refer to it */
  struct tws_context *next; /* in the list of free ones */
} tws_context;

typedef struct tws_lower {
  const tws_plan_request *request;
  const tws_config *config;
  const tws_network *network;
  tws_arena *scratch;
  tws_builder b;
  tws_zero zero;
  tws_chunk *chunks; /* of this stage */
  int chunk_count;
  tws_pipeline_shape shape;
  int stage;            /* of the pipeline */
  tws_chunk *chunk;     /* being lowered */
  tws_context *context; /* likewise */
  tws_context *free_contexts;
  uint32_t *value_buffer; /* of the context */
  uint32_t *value_gradient;
  int split;            /* weight gradients are deferred */
  uint8_t *kept;        /* values that survive the forward pass */
  int64_t tokens;       /* of one micro-batch */
  int64_t accumulation; /* micro-batches lowered */
  int overlap;          /* overlap_comm, off in a pipeline */
  tws_stream gather_stream, reduce_stream;
  uint32_t pipe_group, tied_group; /* TWS_NONE where there is none */
  uint8_t *param_stages;           /* per parameter: 1 an earlier stage has it too, 2 a later one */
} tws_lower;

/* visits.c */
tws_code tws_lower_visits(tws_lower *l, tws_chunk *chunk);
/* pipeline.c */
tws_code tws_pipeline_begin(tws_lower *l);
void tws_pipeline_run(tws_lower *l); /* all micro-batches of this stage, and gradients that stages share */
void tws_pipeline_share_metrics(tws_lower *l);
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
