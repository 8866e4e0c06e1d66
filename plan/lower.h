/* Lowering: state shared by the passes. Internal to plan/.
 *
 *   shard.c      the local network of this rank, with the exchanges that changes of placement need: rules of
 *                tensor_parallel.c and sequence_parallel.c (sizes: sequence_rules.c), collectives of placement.c
 *   visits.c     a micro-batch as a list of module visits (forward, recomputation, backward), some in tiles of tokens
 *   values.c     buffers of values and their gradients; frozen.c: gradients that no trained parameter needs
 *   modules.c    one visit -> kernels: forward; backward.c: backward; exchange.c: collectives between modules
 *   module_work.c  rows, sizes and flags of a visit's kernels; module_kernel.c: one kernel by its row in modules.def
 *   ring_attention.c  attention over tokens of several ranks (ring, context parallelism)
 *   moe.c        routers; expert_sizes.c: slots per expert
 *   weight_tiles.c  large weights of stage 3 in tiles, each gathered and reduced separately
 *   quantized.c  quantized frozen weights (QLoRA)
 *   float8.c     matrix products in 8-bit floating point
 *   zero.c       storage and collectives of parameters and gradients, by ZeRO stage; zero3_gathers.c: gathers of stage
 *                3; zero_secondary.c: secondary partition (hpZ); zero_quantized_gather.c: quantized gathers (qwZ);
 *                zero_quantized_reduce.c: quantized reductions (qgZ); zero_communication.c: reductions in another type;
 *                zero_groups.c: groups of ranks that each have all partitions (MiCS); zero_bucket_slots.c: reuse of
 *                bucket buffers
 *   dropout.c    random number counters of dropout
 *   running.c    running statistics of batch normalization
 *   offload.c    optimizer states and updates on the host; fetch.c: parameters on the host; delayed.c: an update that
 *                is one step late; zenflow.c: an update in two parts (ZenFlow)
 *   checkpoints.c  offloaded and partitioned activation checkpoints
 *   optimizer.c  the optimizer phase: norm, clipping, update, gathering of updated parameters; the end of an evaluation
 *   pipeline.c   modules of a pipeline stage, order of micro-batches, messages between stages
 *   lower.c      scratch memory and communicators for all passes
 *   build.c      runs the passes */
#ifndef TWS_PLAN_LOWER_H
#define TWS_PLAN_LOWER_H

#include "models/network/module.h"
#include "plan/builder.h"
#include "plan/pipeline_partition.h"
#include "plan/pipeline_schedule.h"
#include "plan/shard.h"
#include "plan/zero3_schedule.h"

/* Retention of a value until the backward pass; a checkpoint is the input of a recomputed layer. */
enum tws_kept { TWS_NOT_KEPT, TWS_KEPT, TWS_KEPT_CHECKPOINT };

/* One execution of a module in a micro-batch. */
typedef struct tws_visit {
  uint32_t module; /* of the local network; TWS_NONE: the root, which has no work but lets ZeRO-3 prefetch */
  uint8_t phase;
  uint8_t fused_away;   /* the kernel of an adjacent module does its work */
  uint16_t tile, tiles; /* tile of the micro-batch's tokens; 0 of 1: all tokens */
  uint16_t weight_tile; /* tile of the module's weight, if it is tiled */
  uint32_t fused_with;  /* the adjacent module whose work this kernel does too, or TWS_NONE */
  uint32_t sums_for;    /* the linear layer whose backward reads this kernel's output next, or TWS_NONE */
} tws_visit;

typedef struct tws_visit_list {
  tws_visit *items;
  uint32_t count;
  size_t capacity;
} tws_visit_list;

/* One communication bucket of a micro-batch's backward pass: gradients that are reduced together. */
typedef struct tws_bucket {
  uint32_t first, count; /* slice of tws_zero.bucket_params, in ascending order of parameters */
  uint32_t zero_class;   /* class of all its parameters */
  uint64_t elements;     /* stage 3: padded */
  uint32_t pending;      /* incomplete gradients of this micro-batch */
  uint32_t buffer;       /* its buffer in this micro-batch; TWS_NONE before its first gradient */
} tws_bucket;

/* A class: parameters that are replicated on the same ranks, which reduce their gradients and partition them. Each
 * class has its own range in the flat buffers. Dense parameters are one class, over all ranks with different samples or
 * tokens; experts are another, over the ranks that hold the same experts. */
enum { TWS_ZERO_CLASSES = 8 }; /* the most */
typedef enum tws_frozen { TWS_TRAINED, TWS_FROZEN, TWS_FROZEN_QUANTIZED } tws_frozen;
typedef struct tws_zero_class {
  tws_axes axes;
  uint32_t group;
  int ranks, index;
  int frozen;                         /* tws_frozen; a frozen class is stored and not updated */
  uint32_t first, end;                /* its parameters, in tws_zero.order */
  uint64_t stored;                    /* offset of its range in buffers of all elements that a rank stores */
  uint64_t kept;                      /* the same among the elements that a rank updates */
  uint64_t total, aligned, partition; /* elements stored, with padding, and updated by one rank */
} tws_zero_class;

/* A weight in tiles of rows (outputs of its layer), each of which ZeRO treats as a separate parameter. In the local
 * network tiles follow all other parameters; no module refers to them, and the weight itself is not stored. */
typedef struct tws_weight_tiles {
  uint32_t first, count; /* its tiles; count 0: not tiled */
  int64_t rows;          /* of each but the last */
} tws_weight_tiles;

/* The secondary partition (hpZ): a second shard of each parameter within a group of nearby ranks, kept for one step
 * (plan/zero_secondary.c). */
typedef struct tws_secondary {
  uint32_t buffer; /* TWS_NONE: no secondary partition */
  uint32_t group;  /* communicator of the nearby ranks */
  int ranks, index;
  uint64_t *offset; /* per parameter: offset of this rank's secondary shard, or TWS_NO_OFFSET */
  uint8_t *has;     /* per parameter: 1 once this step has stored it */
} tws_secondary;

/* Communicators of quantized gradient reductions (qgZ): intra-node, then inter-node (plan/zero_quantized_reduce.c). */
typedef struct tws_quantized_levels {
  int intra; /* ranks of the intra-node level; 0: a single level */
  uint32_t intra_group, inter_group;
} tws_quantized_levels;

/* Groups of ranks that each have all partitions (MiCS, plan/zero_groups.c). */
typedef struct tws_zero_groups {
  int copies;            /* replicas of a partition; 1: all ranks are one group */
  uint32_t copies_group; /* communicator of the ranks that have the same partition */
  int nodes;             /* nodes of a group: the inter-node level gathers first; 1: a single level */
  int intra;             /* ranks of a group on one node */
  uint32_t inter_group, intra_group;
} tws_zero_groups;

/* Reuse of a few bucket buffers by all buckets of gradients (plan/zero_bucket_slots.c). A bucket that begins takes the
 * slot that became free first, except for that of the bucket before it, so that one slot is copied out while another is
 * filled; or else a new slot. All micro-batches are alike, so the first of a step determines the order of buckets in
 * each slot. */
typedef struct tws_bucket_slots {
  uint32_t *place, *next; /* per bucket: its slot; the next bucket in that slot, or TWS_NONE */
  uint32_t *first, *last; /* per slot: the first and the latest bucket in it */
  uint32_t *freed;        /* per slot: 1 + number of buckets that ended before its latest one; 0: that has not ended */
  uint32_t places, ended;
  uint32_t begun_last; /* the bucket that began last */
} tws_bucket_slots;

typedef struct tws_bucket_room { /* scratch arrays to reduce a bucket: two operands per parameter, twice */
  tws_operand *operands, *others;
  uint64_t *flat;
  int64_t *part;
} tws_bucket_room;

typedef struct tws_zero {
  int stage;
  int ranks;      /* ranks with different samples or tokens (data-parallel) */
  uint32_t group; /* their communicator */
  tws_zero_groups groups;
  tws_zero_class *classes;
  uint32_t class_count, trained_count; /* frozen classes come last, quantized ones after the others */
  uint8_t *class_of;                   /* per parameter */
  int flat_gradients;                  /* all gradients in one buffer (stages 0 and 1, or a single rank) */
  tws_dtype grad_dtype;                /* type that backward kernels write */
  uint64_t *flat_offset; /* per parameter: offset in the flat buffer (stages 0-2), or of its shard (stage 3) */
  int64_t *part;         /* stage 3, per parameter: elements of a shard */
  int *order;            /* order in which parameters are flattened */
  uint8_t *persistent;   /* stage 3 */
  uint32_t *unit;        /* per parameter: first parameter of its FSDP unit; NULL: no units */
  uint32_t *gathered;    /* stage 3: buffer of the gathered parameter (or its quantized payload), or TWS_NONE */
  uint32_t (*gathered_parts)[TWS_QUANTIZED_PARTS]; /* the same of codes, scales and means of a quantized parameter */
  /* per parameter: its gradient has a contribution (of this step, or for buckets of this micro-batch) */
  uint8_t *written;
  uint32_t *uses; /* contributions to a parameter's gradient in one backward pass */
  uint32_t *left; /* contributions that remain in this micro-batch */
  tws_bucket *buckets;
  uint32_t bucket_count;
  uint32_t *bucket_params; /* grouped by bucket */
  uint32_t *bucket_of;     /* per parameter */
  uint64_t *slot;          /* per parameter: offset in its bucket */
  tws_bucket_room room;    /* with room for all parameters, allocated at the first reduction */
  uint32_t flushed[2];     /* 1 + last operation of the last but one and of the last bucket of a micro-batch; 0: none */
  uint32_t emptied[2];     /* buffers of these buckets */
  tws_bucket_slots bucket_slots; /* zero_bucket_slots.c: reuse of slot_buffers[slot]; NULL: no bucket has begun */
  uint32_t *slot_buffers;
  uint8_t *brought; /* per bucket: its accumulated sums have been copied back, or are being copied */
  tws_zero3_schedule schedule;
  tws_secondary secondary;
  tws_quantized_levels quantized_levels;
  uint32_t *codes, *code_scales; /* per parameter: buffers of a quantized gather's payload and scales, or TWS_NONE */
} tws_zero;

static inline const tws_zero_class *tws_zero_class_of(const tws_zero *z, uint32_t param) {
  return &z->classes[z->class_of[param]];
}
/* Returns the offset, among stored elements, of the first element of a class that this rank updates. */
static inline uint64_t tws_zero_kept_first(const tws_zero *z, const tws_zero_class *c) {
  return c->stored + (z->stage == 1 || z->stage == 2 ? c->partition * (uint64_t)c->index : 0);
}

/* A range of the elements that a rank updates, staged from the disk for its update: buffers of master weights, then of
 * optimizer states. */
typedef struct tws_staged {
  uint64_t first, count; /* elements */
  uint32_t buffer[1 + TWS_OPTIMIZER_STATES];
  uint32_t weights; /* 16-bit weights that are written to the disk after the update, or TWS_NONE */
} tws_staged;

/* Elements of a rank's parameters that one read from the disk fetches, in whole disk blocks. */
typedef struct tws_fetch_block {
  uint64_t first, count;
} tws_fetch_block;
typedef enum tws_fetch_time { TWS_FETCH_STEP, TWS_FETCH_MICRO_BATCH, TWS_FETCH_TIMES } tws_fetch_time;
typedef struct tws_fetch_list {
  tws_fetch_block *blocks; /* in the order in which they are used */
  uint32_t count;
} tws_fetch_list;

/* Prefetching of parameters from the disk: blocks are read before their use into a ring of staging buffers. */
typedef struct tws_fetches {
  tws_fetch_list lists[TWS_FETCH_TIMES], *list; /* list: the current one */
  uint32_t used, read; /* of the current list: index of the block in use; number of blocks read */
  uint32_t *slots;     /* staging buffers */
  uint32_t slot_count;
  uint64_t slot_elements;
} tws_fetches;

/* Updated weights that are copied to their buffer last in the optimizer phase. */
typedef struct tws_held {
  tws_operand from, to;
  struct tws_held *next;
} tws_held;

/* A delayed update: the gradients and scalars that the previous step left for it. */
typedef struct tws_delayed {
  int on;
  uint32_t gradients, hyper, metrics; /* buffers that are entries of the state */
  tws_held *first, **last;
} tws_delayed;

/* The part of a matrix that this rank updates, and the columns of it that the device updates (plan/zenflow.c). A vector
 * is a matrix of one column, which is always selected. */
typedef struct tws_columns_piece {
  uint32_t param;
  uint32_t zero_class;
  int64_t columns, chosen; /* of the whole matrix: all, and the selected ones */
  int64_t rows, first,
      count;         /* rows that the part touches; column of its first element; elements (0: none on this rank) */
  uint64_t at, kept; /* its first element: in the flat order, and among those that the rank updates */
  uint64_t list, norms, compact; /* its offset in lists of columns, in norms, in the device's compact states */
} tws_columns_piece;

/* All columns that the device updates. */
typedef struct tws_columns {
  int on;
  tws_columns_piece *pieces; /* one for each trained parameter that has chosen columns, class by class */
  uint32_t count;
  uint64_t listed, normed, compact_elements;
  uint32_t chosen, held; /* lists in the state: columns that are selected, and those whose states the device has */
  uint32_t accumulated;  /* gradients that are accumulated for the host's next update */
  /* master weights and states of the device's columns; TWS_NONE: none on this rank */
  uint32_t compact[1 + TWS_OPTIMIZER_STATES];
} tws_columns;

/* Offloading: tiers of the state, and buffers that the optimizer phase uses. */
typedef struct tws_offload {
  int optimizer;       /* the host runs the optimizer */
  int early;           /* gradients are copied to the host during backward */
  tws_tier tier;       /* of offloaded buffers, except */
  tws_tier state_tier; /* master weights and optimizer states */
  uint64_t cut;        /* of the elements that the rank updates, those below `cut` stay on the device (ratio) */
  /* buffers of master weights and states from `cut` on; TWS_NONE: cut is 0 */
  uint32_t behind[1 + TWS_OPTIMIZER_STATES];
  uint32_t gradients, hyper, metrics; /* buffers that the optimizer phase reads */
  uint32_t arrived[2], arrivals;      /* double-buffered host buffers that receive gradients; number of copies so far */
  tws_operand from, to;               /* updated weights that are not copied yet; to.count 0: none */
  const tws_staged *staged;           /* range from the disk that is being updated */
  tws_tier param_tier;                /* of parameters between uses; TWS_TIER_DEVICE: not offloaded */
  tws_tier param_host;                /* of parameters in host memory, and of staging buffers */
  uint64_t param_cut;                 /* a rank's elements below it are in host memory, the others on the disk */
  uint32_t param_disk;                /* buffer of those on the disk, or TWS_NONE */
  tws_fetches fetches;
  tws_delayed delayed;
} tws_offload;

/* Activation checkpoints that are offloaded or partitioned until backward, by value. */
typedef struct tws_checkpoints {
  int on, parts;              /* parts: tensor-parallel ranks among which a checkpoint is partitioned */
  tws_tier tier;              /* where they are kept until backward */
  uint32_t *last, *first;     /* per value: the visit that uses it last in forward, first in backward; TWS_NONE: none */
  const struct tws_chunk *of; /* the chunk of these visits */
} tws_checkpoints;

/* A model chunk: consecutive modules that one pipeline stage runs; without a pipeline the whole network. */
typedef struct tws_chunk {
  uint32_t first, end;          /* modules */
  uint32_t in_value, out_value; /* values that it receives and sends; TWS_NONE at the ends of the network */
  tws_visit_list visits;        /* of a micro-batch: forward visits first */
  uint32_t forward_visits;
} tws_chunk;

/* A deferred weight gradient (zero-bubble schedules). */
typedef struct tws_deferred {
  tws_work work;
  tws_operand operands[5];
  int count;
  uint32_t module;
} tws_deferred;

/* Buffers of a value in 8-bit floating point, row-major and transposed; TWS_NONE: not built. */
typedef struct tws_codes {
  uint32_t amax, scale, rows, columns;
  int recomputed; /* cast in the backward pass, by recomputation */
} tws_codes;

/* State of a checkpoint. COMING: it is being copied back from the host, and if it is partitioned, it is not gathered
 * yet. */
typedef enum tws_away { TWS_NOT_AWAY, TWS_AWAY, TWS_COMING } tws_away;

/* One micro-batch inside one chunk, from its first operation to its last. */
typedef struct tws_context {
  uint32_t *value_buffer;   /* per value: its current buffer, or TWS_NONE */
  uint32_t *value_gradient; /* per value: the buffer of its gradient, or TWS_NONE */
  uint32_t *value_narrow;   /* per value: the buffer of its 8-bit copy, which backward reads in its place */
  tws_codes *codes;         /* per value; NULL: no 8-bit matrix products */
  uint8_t *away;            /* per value: tws_away */
  tws_deferred *deferred;
  size_t deferred_capacity;
  uint32_t deferred_count;
  uint32_t part[2]; /* received shard of the input (0: value, 1: gradient) that is not gathered yet, or TWS_NONE */
  uint32_t events;  /* pipeline events that still refer to it */
  struct tws_context *next; /* in the list of unused contexts */
} tws_context;

/* ---- sections of the lowering state ---- Each has an owner, the pass that is named with it in tws_lower below: only
 * files of that pass write it, and all others only read it (checked by the suite `owners`). */

/* The part of the job that is lowered. */
typedef struct tws_lower_extent {
  int evaluates;        /* forward passes alone */
  int parameters_only;  /* the state has no master weights and optimizer states */
  int64_t tokens;       /* of one micro-batch on this rank */
  int64_t accumulation; /* micro-batches lowered */
} tws_lower_extent;

/* Streams of operations, and slices that overlap. */
typedef struct tws_lower_streams {
  int overlap; /* overlap_comm, off in a pipeline */
  tws_stream gather, reduce, exchange;
  int exchanges_overlap; /* exchanges of tensor ranks or of a sequence ring overlap with compute */
  int slices;            /* number of slices in which split layers and their exchanges are issued to overlap */
} tws_lower_streams;

/* Tiled weights. */
typedef struct tws_tiling {
  tws_weight_tiles *weights; /* per parameter of the whole network; NULL: all weights are whole */
  uint32_t *weight_of;       /* per tile: its weight */
} tws_tiling;

/* The visit that is being lowered. */
typedef struct tws_visit_place {
  int tile, tiles;
  uint32_t weight_tile;
  const tws_module *fused_with; /* module whose work its kernel does too, or NULL */
  const tws_module *sums_for;   /* layer whose bias gradient its kernel may compute too, or NULL */
} tws_visit_place;

/* Per value: its size and buffers in a micro-batch on this rank. */
typedef struct tws_values {
  uint64_t *rows;                       /* rows without regard to its placement */
  int64_t *whole_sequence;              /* length of the whole sequences in it */
  uint8_t *adds;                        /* 1: tiles add to a gradient that existed before the first tile */
  uint32_t *buffer, *gradient, *narrow; /* arrays of the current context (tws_context) */
} tws_values;

/* Matrix products of layers in 8-bit floating point. */
typedef struct tws_lower_float8 {
  int on;
  uint8_t *again; /* per module: 1 if it is recomputed in backward */
} tws_lower_float8;

/* Values whose gradient may share its buffer with another value's. */
typedef struct tws_shared_gradients {
  uint32_t *values; /* list of `count` values */
  uint32_t count;
  uint8_t *adds; /* per module: 1 for an ADD whose inputs' gradients can share a buffer */
} tws_shared_gradients;

/* The pipeline stage, and the current position of the lowering in it. */
typedef struct tws_lower_pipeline {
  tws_pipeline_shape shape;
  int stage;
  tws_chunk *chunks; /* of this stage */
  int chunk_count;
  tws_chunk *chunk;     /* chunk that is being lowered */
  tws_context *context; /* its current micro-batch */
  tws_context *free_contexts;
  int split;             /* weight gradients are deferred */
  uint8_t *param_stages; /* per parameter: bit 1: an earlier stage has it too, bit 2: a later one (tied weights) */
} tws_lower_pipeline;

/* The comment after each section names its owners. */
typedef struct tws_lower {
  const tws_plan_request *request;                 /* build.c */
  const tws_config *config;                        /* build.c */
  const tws_network *network;                      /* build.c, weight_tiles.c: the local network */
  tws_sharding sharding;                           /* build.c */
  tws_local local;                                 /* build.c, weight_tiles.c */
  tws_lower_extent extent;                         /* build.c */
  tws_lower_streams streams;                       /* build.c */
  tws_module_memory memory[TWS_MODULE_TYPE_COUNT]; /* build.c: per module type, from modules.def */
  uint32_t group[TWS_AXIS_COUNT];                  /* build.c, pipeline.c: per axis its communicator, or TWS_NONE */
  tws_tiling tiling;                               /* weight_tiles.c */
  tws_values values;                               /* values.c */
  uint8_t *needed;             /* frozen.c: per value, 1 if a trained parameter needs its gradient */
  uint8_t *kept;               /* recompute.c: per value, tws_kept */
  uint8_t *tiled;              /* visits.c: per value, 1 if only one tile of it exists at a time */
  tws_visit_place at;          /* modules.c */
  uint32_t summed;             /* module_kernel.c, backward.c: bias whose gradient is computed already, or TWS_NONE */
  tws_shared_gradients shared; /* backward.c */
  tws_lower_float8 float8;     /* float8.c */
  tws_lower_pipeline pipeline; /* pipeline.c */
  tws_checkpoints checkpoints; /* checkpoints.c */
  tws_zero zero;               /* zero.c, zero3_gathers.c, zero_buckets.c, zero_bucket_slots.c, zero_classes.c,
                                * zero_groups.c, zero_quantized_gather.c, zero_quantized_reduce.c, zero_secondary.c */
  tws_offload offload;         /* offload.c, fetch.c, delayed.c */
  tws_columns columns;         /* zenflow.c */
  tws_arena *scratch;          /* build.c: memory of all passes that lives as long as the lowering */
  tws_builder b;               /* all passes emit operations through it, and set their phase, module and micro-batch */
} tws_lower;

/* recompute.c: decides l->kept of values that are not tiled. */
tws_code tws_recompute_begin(tws_lower *l);
void tws_recompute_decide(tws_lower *l);
/* Returns the first module of the recomputed segment (a layer or an MLP) that ends in `last`; TWS_NONE: none ends
 * there. */
uint32_t tws_recompute_block(const tws_lower *l, uint32_t last);
/* visits.c */
tws_code tws_lower_visits(tws_lower *l, tws_chunk *chunk);
/* weight_tiles.c: tiles the weights of the local network by twinspeed.linear_tile_size. */
tws_code tws_weight_tiles_begin(tws_lower *l);
/* Returns the number of tiles of a tiled parameter; 0: it is not tiled. */
static inline uint32_t tws_weight_tile_count(const tws_lower *l, uint32_t param) {
  return l->tiling.weights && param < l->b.plan->network->param_count ? l->tiling.weights[param].count : 0;
}
static inline int tws_is_weight_tile(const tws_lower *l, uint32_t param) {
  return param >= l->b.plan->network->param_count;
}
/* Returns the number of visits of a module: one for each tile of its weight. */
static inline uint32_t tws_module_weight_tiles(const tws_lower *l, uint32_t module) {
  const uint32_t weight = module == TWS_NONE ? TWS_NONE : l->network->modules[module].param[0];
  const uint32_t count = weight == TWS_NONE ? 0 : tws_weight_tile_count(l, weight);
  return count > 0 ? count : 1;
}
/* Returns the parameter of the whole network that a local one is, or is a tile of, and its first element there. */
uint32_t tws_weight_tile_origin(const tws_lower *l, uint32_t param, uint64_t *first);
/* Returns the parameter that a visit uses in place of its module's: the tile, or the parameter itself. */
uint32_t tws_visit_param(const tws_lower *l, uint32_t param, uint32_t weight_tile);
/* Outputs of a linear layer that the current visit computes. */
typedef struct tws_outputs {
  int64_t first, count;
} tws_outputs;
tws_outputs tws_visit_outputs(const tws_lower *l, const tws_module *m);
/* Returns the range of a vector with one element per output. */
static inline tws_operand tws_outputs_of(tws_operand vector, tws_outputs outputs) {
  vector.offset += (uint64_t)outputs.first;
  vector.count = (uint64_t)outputs.count;
  return vector;
}
/* Return 1 if the current visit is the first, or the last, of its layer. */
int tws_is_first_weight_tile(const tws_lower *l, const tws_module *m);
int tws_is_last_weight_tile(const tws_lower *l, const tws_module *m);
/* Return the buffer of the outputs that the visit writes, copy them to their columns in the layer's output, and return
 * the columns of the output's gradient that the visit reads. */
tws_operand tws_outputs_make(tws_lower *l, const tws_module *m);
void tws_outputs_put(tws_lower *l, const tws_module *m, tws_operand outputs);
tws_operand tws_outputs_gradient(tws_lower *l, const tws_module *m);
/* frozen.c: finds the gradients that trained parameters need; returns 1 if a module has a backward visit. */
tws_code tws_frozen_begin(tws_lower *l);
int tws_module_goes_backward(const tws_lower *l, const tws_module *m);
static inline int tws_is_frozen(const tws_lower *l, uint32_t param) {
  return l->network->params[param].frozen != 0;
}
/* quantized.c: quantized parameters. TWS_INVALID: quantization blocks do not divide a row, or a group of blocks is
 * divided among ranks, with the nearest legal values. */
int tws_is_quantized(const tws_lower *l, uint32_t param);
tws_code tws_quantized_begin(tws_lower *l);
/* Adds the state's entries for `elements` quantized elements that are stored from `first` on; 0: adds none. */
void tws_quantized_state(tws_lower *l, uint64_t first, uint64_t elements);
/* Dequantizes the whole parameter for the next kernel, and returns it in the configuration's type. */
tws_operand tws_dequantized(tws_lower *l, uint32_t param);
/* float8.c: 8-bit matrix products of layers. TWS_INVALID: no layer can have one. */
int tws_float8_is_planned(
    const tws_config *config); /* 0: casts are not planned, but costed with the products, or there are none */
tws_code tws_float8_begin(tws_lower *l);
void tws_float8_visits(tws_lower *l, const tws_visit_list *visits); /* visits of a chunk */
int tws_is_float8(const tws_lower *l, const tws_module *m);
/* Casts for the current visit: the row-major and the transposed layout, as far as needed, and the scale. */
typedef struct tws_float8 {
  tws_operand rows, columns, scale;
} tws_float8;
tws_float8 tws_float8_input(tws_lower *l, const tws_module *m);
tws_float8 tws_float8_weight(tws_lower *l, const tws_module *m);
tws_float8 tws_float8_gradient(tws_lower *l, const tws_module *m, tws_operand dy);
/* Returns scratch memory for a gradient that the kernel writes and no operation reads. */
tws_operand tws_discarded_gradient(tws_lower *l, uint32_t param);
/* pipeline.c */
tws_code tws_pipeline_begin(tws_lower *l);
void tws_pipeline_run(tws_lower *l); /* lowers all micro-batches of this stage, and reductions of tied weights */
/* lower.c */
/* Returns zeroed scratch memory for count + 1 elements; NULL: the builder has failed. */
void *tws_lower_memory(tws_lower *l, size_t count, size_t bytes);
/* Return the communicator of the ranks along a set of axes, or of some of these ranks. */
uint32_t tws_lower_group(tws_lower *l, tws_axes axes);
uint32_t tws_lower_add_group(tws_lower *l, tws_axes axes, const int *members, int count);

/* values.c: operands are whole values, or the current visit's tile of them */
tws_code tws_values_begin(tws_lower *l);
/* Makes a context the current one. */
void tws_values_enter(tws_lower *l, const tws_context *context);
/* Set the current buffer of a value, of its gradient, or of its 8-bit copy; TWS_NONE: it has none. */
void tws_value_place(tws_lower *l, uint32_t value, uint32_t buffer);
void tws_value_place_gradient(tws_lower *l, uint32_t value, uint32_t buffer);
void tws_value_place_narrow(tws_lower *l, uint32_t value, uint32_t buffer);
static inline uint64_t tws_value_rows(const tws_lower *l, uint32_t value) {
  return l->values.rows[value];
}
uint64_t tws_value_elements(const tws_lower *l, uint32_t value);
/* Return the size and type of one micro-batch of a network input on this rank. */
uint64_t tws_input_rows(const tws_lower *l, uint32_t input);
uint64_t tws_input_elements(const tws_lower *l, uint32_t input);
tws_dtype tws_input_dtype(const tws_lower *l, uint32_t input);
tws_dtype tws_value_dtype(const tws_lower *l, uint32_t value);
tws_operand tws_input_read(tws_lower *l, uint32_t input);
tws_operand tws_value_read(tws_lower *l, uint32_t value);
tws_operand tws_value_make(tws_lower *l, uint32_t value);
/* The output takes over the buffer of an input that no later operation reads. */
tws_operand tws_value_take(tws_lower *l, uint32_t input, uint32_t output, uint32_t access);
tws_operand tws_value_gradient(tws_lower *l, uint32_t value);
/* Returns where the gradient of an input is written; *accumulate: another consumer of the value has written it already,
 * so it is added. */
tws_operand tws_value_gradient_out(tws_lower *l, uint32_t value, int *accumulate);
/* Returns 1 if the gradient of `value` is also that of a value whose producer precedes module `before`, and thus will
 * be read once more. */
int tws_gradient_is_shared(const tws_lower *l, uint32_t value, uint32_t before);
/* Adds `part` to the gradient of a value. */
void tws_lower_add_gradient(tws_lower *l, uint32_t value, tws_operand part);
/* Makes the gradient of another value the gradient of this one too, in the same memory. */
void tws_lower_pass_gradient(tws_lower *l, uint32_t value, tws_operand from);
tws_operand tws_lower_scratch(tws_lower *l, const char *name, tws_dtype dtype, uint64_t elements);
tws_operand tws_lower_workspace(tws_lower *l, const tws_work *work);
void tws_lower_compute(tws_lower *l, const tws_work *work, const tws_operand *operands, int count);
/* Emit sum += part in the configuration's type, and a fill with zeros. */
void tws_lower_accumulate(tws_lower *l, tws_operand part, tws_operand sum);
void tws_lower_clear(tws_lower *l, tws_operand target, tws_dtype dtype);
void tws_lower_compute_with(tws_lower *l, const tws_work *work, const tws_arguments *arguments,
                            const tws_operand *operands, int count);
/* Tracks hazards of a buffer by slice. */
void tws_lower_slice(tws_lower *l, uint32_t buffer);
/* Returns slice i (of l->streams.slices) of an operand. */
tws_operand tws_operand_slice(const tws_lower *l, tws_operand operand, int i);

/* modules.c */
/* Sets phase and module of the following operations to those of a visit. */
static inline void tws_lower_at_visit(tws_lower *l, const tws_visit *visit) {
  l->b.phase = (tws_phase)visit->phase;
  l->b.module = visit->module == TWS_NONE ? TWS_NONE : l->local.modules[visit->module].origin;
}
void tws_lower_visit(tws_lower *l, const tws_visit *visit);
/* module_kernel.c */
/* Emits one kernel of a module's row in modules.def, with its operands. */
void tws_lower_kernel(tws_lower *l, const tws_module *m, const tws_module_kernel *kernel);
/* Adds the gradient of a bias as an operand if the visit's kernel can compute it too (l->at.sums_for). Returns the
 * number of operands. */
int tws_lower_sums(tws_lower *l, tws_work *work, tws_operand *operands, int count);
/* module_work.c */
/* Returns the rows of a visit: those of the module's input. */
int64_t tws_module_rows(const tws_lower *l, const tws_module *m);
tws_work tws_module_work(const tws_lower *l, const tws_module *m, tws_kernel kernel, uint32_t flags);
/* Returns the first token of a sequence on this rank. */
int64_t tws_first_token(const tws_lower *l);
/* Returns the number of other ranks' tokens between the two halves that this rank has of a sequence (zigzag); 0: its
 * tokens are contiguous. */
int64_t tws_token_gap(const tws_lower *l);
/* Returns the range of rows of the position table that contains all of this rank's tokens. */
void tws_position_rows(const tws_lower *l, const tws_module *m, int64_t *first, int64_t *rows);
/* Adds the loss scale as an operand in float16 training; returns the number of operands. */
int tws_lower_scaled(tws_lower *l, tws_work *work, tws_operand *operands, int count);
const tws_local_module *tws_local_of(const tws_lower *l, const tws_module *m);
/* Returns 1 if matrix products of a split layer are issued in slices. */
int tws_lower_sliced(const tws_lower *l, const tws_module *m);
/* Returns 1 if backward reads a layer's input in 8 bits, as its matrix product does (twinspeed.matmul_dtype), and not
 * in 16 bits. Only for inputs that are kept; recomputed inputs have 16 bits. */
int tws_lower_narrow(const tws_lower *l, const tws_module *m);
/* Returns the weight of one row of a loss in the mean over the global batch; micro-batches and ranks add up. */
double tws_loss_weight(const tws_lower *l, const tws_module *m);
/* backward.c */
tws_code tws_backward_begin(tws_lower *l);
void tws_backward_micro_begin(tws_lower *l); /* begins a micro-batch: no gradients share a buffer */
void tws_lower_backward(tws_lower *l, const tws_module *m);
/* ring_attention.c: lowers ATTENTION if l->sharding.ring. */
void tws_ring_forward(tws_lower *l, const tws_module *m);
void tws_ring_backward(tws_lower *l, const tws_module *m);
/* expert_sizes.c: return the tokens of a rank that a layer of experts routes, the slots of an expert, and the slots
 * that are filled on average. */
tws_dim tws_lower_dim(const tws_lower *l,
                      tws_dim dim); /* resolves sizes that the configuration determines: slots, targets */
int64_t tws_expert_sources(const tws_lower *l,
                           const tws_module *m); /* ranks whose slots an expert's matrix product processes */
int64_t tws_expert_tokens(const tws_lower *l, const tws_module *m);
int64_t tws_expert_slots(const tws_lower *l, const tws_module *m);
int64_t tws_expert_expected(const tws_lower *l, const tws_module *m);
/* Returns the experts that share one buffer of slots (all of a rank, dropless); 0: each expert has its own slots. */
int64_t tws_expert_shared(const tws_lower *l, const tws_module *m);
/* Returns the number of routers among the modules below `before`, and the sum of their experts. */
uint32_t tws_routers(const tws_network *network, uint32_t before, uint64_t *experts);
/* Checks twinspeed.expert_load. TWS_INVALID: it is empty, or has not one number for each expert of a layer. */
tws_code tws_expert_load_check(const tws_network *network, const char *load, tws_error *err);
/* moe.c */
/* Updates router biases in the optimizer phase (twinspeed.expert_bias_rate). The check returns TWS_UNSUPPORTED if no
 * router has biases. */
void tws_router_balance(tws_lower *l);
tws_code tws_expert_bias_check(const tws_network *network, tws_error *err);
void tws_router_forward(tws_lower *l, const tws_module *m);
void tws_router_backward(tws_lower *l, const tws_module *m);
/* exchange.c */
void tws_exchange_forward(tws_lower *l, const tws_module *m);
void tws_exchange_backward(tws_lower *l, const tws_module *m);
/* Gathers `operand` of all tensor-parallel ranks, in rank order. */
tws_operand tws_exchange_gather(tws_lower *l, tws_operand operand, const char *name);
void tws_exchange_gather_into(tws_lower *l, tws_stream stream, tws_operand operand, tws_operand all);
/* Reduces the gradients of replicated parameters whose ranks processed different tokens. */
void tws_exchange_partial_gradients(tws_lower *l);
/* zero.c */
/* Sets the axes along which ranks have different samples or tokens. Called first, since their communicator is number
 * 0. */
void tws_zero_choose_ranks(tws_lower *l, tws_axes replicas);
tws_code tws_zero_begin(tws_lower *l);
void tws_zero_step_begin(tws_lower *l);
void tws_zero_micro_begin(tws_lower *l);
void tws_zero_buckets_pass(tws_lower *l, int backward); /* begins a pass, after tws_zero_micro_begin() */
void tws_zero_before(tws_lower *l, uint32_t visit);
void tws_zero_after(tws_lower *l, uint32_t visit);
void tws_zero_micro_end(tws_lower *l);
tws_operand tws_zero_param(tws_lower *l, uint32_t param);
/* Returns where a gradient contribution is written; *accumulate: it is added. Calls are in the order of
 * contributions. */
tws_operand tws_zero_gradient(tws_lower *l, uint32_t param, int *accumulate);
/* Returns the *accumulate that tws_zero_gradient() would return, without changing the state. */
int tws_zero_adds(const tws_lower *l, uint32_t param);
void tws_zero_contributed(tws_lower *l, uint32_t param);
/* Calls `run` for each maximal run of parameters, adjacent in the flat buffers of a class, with equal `kind_of`:
 * `first` and `count` are this rank's shard of the run in the gradient buffer. */
typedef int (*tws_zero_kind)(const tws_lower *l, uint32_t param);
typedef void (*tws_zero_run)(tws_lower *l, int kind, uint64_t first, uint64_t count);
void tws_zero_kept_runs(tws_lower *l, tws_zero_kind kind_of, tws_zero_run run);
/* running.c */
tws_code tws_running_begin(tws_lower *l);
tws_operand tws_running_operand(const tws_lower *l, const tws_module *m, uint32_t access);
double tws_running_share(const tws_lower *l); /* factor of this micro-batch: the sum over ranks is their mean */
void tws_running_average(tws_lower *l);       /* in the optimizer phase: averages over data-parallel ranks */
/* dropout.c: return the index in the step of this micro-batch's first sample; the arguments of a dropout kernel. */
int64_t tws_first_sample(const tws_lower *l);
int tws_dropout_arguments(tws_lower *l, const tws_module *m, tws_kernel kernel, tws_arguments *arguments);
/* optimizer.c */
void tws_lower_step(tws_lower *l);
/* Returns the work of the optimizer's kernel for `count` elements. */
tws_work tws_lower_update_work(const tws_lower *l, tws_dtype gradients, uint64_t count);
void tws_lower_gather_parameters(tws_lower *l); /* stages 1 and 2: all-gather of updated parameters */
/* Emits the update of the elements that this rank updates, with the gradients and scalars of the offload pass. */
void tws_lower_update(tws_lower *l);
/* Lowers TWS_PROGRAM_APPLY. */
void tws_lower_apply(tws_lower *l);
/* Counts, before the first micro-batch of a network with several losses, the ignored targets of each loss. */
void tws_lower_count_targets(tws_lower *l);
void tws_lower_score(tws_lower *l); /* the end of an evaluation: reduces the loss over all ranks */

static inline tws_work tws_kernel_work(tws_kernel kernel, tws_dtype dtype, uint32_t flags) {
  tws_work work = {.kind = TWS_OP_COMPUTE,
                   .code = (uint8_t)kernel,
                   .dtype = (uint8_t)dtype,
                   .dtype2 = (uint8_t)dtype,
                   .flags = flags};
  return work;
}

#endif
