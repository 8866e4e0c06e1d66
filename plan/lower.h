/* State and functions that the passes of the lowering share. Internal to plan/. The passes, and what each of them
 * lowers or computes:
 *
 *   shard.c      the local network of this rank, with the exchanges that changes of placement need: rules of
 *                tensor_parallel.c and sequence_parallel.c (sizes: sequence_rules.c), collectives of placement.c
 *   visits.c     a micro-batch as a list of module visits (forward, recomputation, backward), some in tiles of tokens
 *   values.c     buffers of values and their gradients; frozen.c: gradients that no trained parameter needs
 *   modules.c    one visit -> kernels: forward; backward.c: backward; exchange.c: collectives between modules
 *   module_work.c  rows, sizes and flags of a visit's kernels; module_kernel.c: one kernel by its row in modules.def
 *   ring_attention.c  attention over tokens of several ranks (ring, context parallelism)
 *   chunked_attention.c  attention in chunks whose keys and values are on the host (FPDT)
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
 *   cache.c      cache of keys and values of a prefill and of decoding; scores of the last tokens
 *   running.c    running statistics of batch normalization
 *   offload.c    optimizer states and updates on the host; fetch.c: parameters on the host; delayed.c: an update that
 *                is one step late; zenflow.c: an update in two parts (ZenFlow)
 *   checkpoints.c  offloaded and partitioned activation checkpoints
 *   adafactor.c   updates with second moments of rows and columns
 *   eight_bit.c   states of 8 bits in blocks
 *   compressed.c  averages over replicas by signs, and updates of optimizers that use them
 *   onebit_lamb.c  OneBitLamb: its lists of trust ratios, factors and scales, and its compressed updates
 *   optimizer.c  the optimizer phase: norm, clipping, update, gathering of updated parameters; the end of an evaluation
 *   pipeline.c   modules of a pipeline stage or of a turn, order of micro-batches, messages between stages
 *   turns.c      what a network that is trained alternately does not go with
 *   lower.c      scratch memory and communicators for all passes
 *   build.c      runs the passes */
#ifndef TWS_PLAN_LOWER_H
#define TWS_PLAN_LOWER_H

#include "models/network/module.h"
#include "plan/builder.h"
#include "plan/lower_optimizer.h"
#include "plan/pipeline_partition.h"
#include "plan/pipeline_schedule.h"
#include "plan/shard.h"
#include "plan/zero3_schedule.h"

/* Duration for which a value is retained: not until backward; until backward; until then as an activation checkpoint,
 * which is the input of a recomputed layer. */
enum tws_kept { TWS_NOT_KEPT, TWS_KEPT, TWS_KEPT_CHECKPOINT };

/* A visit: one execution of a module in one pass (forward, recomputation or backward) of a micro-batch, for one tile of
 * its tokens or of its weight. "The current visit" below is the one that is being lowered (tws_lower.at). */
typedef struct tws_visit {
  /* module index in the local network; TWS_NONE: the root module, which has no work but lets ZeRO-3 prefetch */
  uint32_t module;
  uint8_t phase;
  uint8_t fused_away;   /* 1: the visit emits no kernel, since the kernel of an adjacent module does its work */
  uint16_t tile, tiles; /* index of the tile of the micro-batch's tokens, and number of tiles; 0 of 1: all tokens */
  uint16_t weight_tile; /* index of the tile of the module's weight; 0 if the weight is not tiled */
  uint32_t fused_with;  /* index of the adjacent module whose work this visit's kernel does too, or TWS_NONE */
  uint32_t sums_for;    /* index of the linear layer whose backward pass reads this kernel's output next, or TWS_NONE */
  uint8_t chunk_role;   /* tws_chunk_role (plan/attention_parts.h) */
} tws_visit;

typedef struct tws_visit_list {
  tws_visit *items;
  uint32_t count;
  size_t capacity;
} tws_visit_list;

/* One communication bucket of a micro-batch's backward pass: the gradients that one collective reduces. */
typedef struct tws_bucket {
  uint32_t first, count; /* [first, first + count) of tws_zero.bucket_params: its parameters in ascending order */
  uint32_t zero_class;   /* index in tws_zero.classes of the ZeRO class of all its parameters */
  uint64_t elements;     /* size of the bucket in elements; stage 3: with padding */
  uint32_t pending;      /* number of its gradients that are not complete yet in this micro-batch */
  /* plan buffer that holds its gradients in this micro-batch; TWS_NONE before the first gradient is written */
  uint32_t buffer;
} tws_bucket;

/* A ZeRO class: parameters that are replicated on the same ranks, which reduce their gradients and partition them. Each
 * class has its own range in the flat buffers. Dense parameters are one class, over all ranks with different samples or
 * tokens; experts are another, over the ranks that hold the same experts. Each parameter group has classes of its own.
 * */
enum { TWS_ZERO_CLASSES = 8 + 2 * TWS_PARAM_GROUPS }; /* largest number of ZeRO classes */
typedef enum tws_frozen { TWS_TRAINED, TWS_FROZEN, TWS_FROZEN_QUANTIZED } tws_frozen;
typedef struct tws_zero_class {
  tws_axes axes;
  uint32_t group;
  int ranks, index;
  int param_group;     /* the parameter group of all its parameters; a frozen class has 0 */
  int frozen;          /* tws_frozen: the parameters of a frozen class are stored but not updated */
  int eight_bits;      /* 1: states of its parameters are 8-bit codes; its sizes are multiples of a block of states */
  int turn;            /* the turn of a step that updates all its parameters; a frozen class has 0 */
  uint32_t first, end; /* [first, end) of tws_zero.order: the parameters of the class */
  uint64_t stored;     /* offset in elements of the class's range in buffers of all elements that a rank stores */
  uint64_t kept;       /* offset in elements of the class's range in buffers of the elements that a rank updates */
  uint64_t total, aligned, partition; /* elements of the class: stored; stored with padding; updated by one rank */
} tws_zero_class;

/* A weight in tiles of rows (outputs of its layer), each of which ZeRO treats as a separate parameter. In the local
 * network tiles follow all other parameters; no module refers to them, and the weight itself is not stored. */
typedef struct tws_weight_tiles {
  uint32_t first, count; /* parameters [first, first + count) are its tiles; count 0: the weight is not tiled */
  int64_t rows;          /* rows of each tile except the last, which may have fewer */
} tws_weight_tiles;

/* The secondary partition (hpZ): a second shard of each parameter within a group of nearby ranks, stored until the step
 * ends (plan/zero_secondary.c). */
typedef struct tws_secondary {
  uint32_t buffer; /* plan buffer of the secondary shards; TWS_NONE: no secondary partition */
  uint32_t group;  /* index of the plan's group of the nearby ranks */
  int ranks, index;
  uint64_t *offset; /* per parameter: offset of this rank's secondary shard, or TWS_NO_OFFSET */
  uint8_t *has;     /* per parameter: 1 once this step has stored the secondary shard */
} tws_secondary;

/* Communicators of quantized gradient reductions (qgZ): intra-node, then inter-node (plan/zero_quantized_reduce.c). */
typedef struct tws_quantized_levels {
  int intra; /* number of ranks of the intra-node level; 0: a single level */
  uint32_t intra_group, inter_group;
} tws_quantized_levels;

/* Groups of ranks that each have all partitions (MiCS, plan/zero_groups.c). */
typedef struct tws_zero_groups {
  int copies;            /* number of replicas of each partition; 1: all ranks are one group */
  uint32_t copies_group; /* index of the plan's group of the ranks that have equal partitions */
  int nodes;             /* number of nodes of a group; the inter-node level gathers first; 1: a single level */
  int intra;             /* number of ranks of a group on one node */
  uint32_t inter_group, intra_group;
} tws_zero_groups;

/* Reuse of a few bucket buffers by all buckets of gradients (plan/zero_bucket_slots.c). A bucket that begins takes the
 * slot that became free first, but never the slot of the previous bucket, so that one slot is copied out while another
 * is filled. If no such slot is free, it takes a new slot. All micro-batches have the same buckets, so the first of a
 * step determines the order of buckets in each slot. */
typedef struct tws_bucket_slots {
  uint32_t *place, *next; /* per bucket: its slot; the next bucket that takes this slot, or TWS_NONE */
  uint32_t *first, *last; /* per slot: the first and the latest bucket that took it */
  /* per slot: 1 + number of buckets that ended before its latest bucket did; 0: its latest bucket has not ended */
  uint32_t *freed;
  uint32_t places, ended;
  uint32_t begun_last; /* index of the bucket that began last */
} tws_bucket_slots;

/* scratch arrays to reduce a bucket; both operand arrays have room for two operands per parameter */
typedef struct tws_bucket_room {
  tws_operand *operands, *others;
  uint64_t *flat;
  int64_t *part;
} tws_bucket_room;

typedef struct tws_zero {
  int stage;
  int ranks;      /* number of ranks with different samples or tokens (data-parallel) */
  uint32_t group; /* index of the plan's group of these ranks */
  tws_zero_groups groups;
  tws_zero_class *classes;
  /* numbers of all ZeRO classes and of trained ones, which come first; quantized ones come last */
  uint32_t class_count, trained_count;
  uint8_t *class_of;    /* per parameter: index of its ZeRO class */
  int flat_gradients;   /* 1: all gradients are in one buffer (stages 0 and 1, or a single rank) */
  tws_dtype grad_dtype; /* type in which backward kernels write gradients */
  /* per parameter: offset in elements in the flat buffer (stages 0-2), or of its shard (stage 3) */
  uint64_t *flat_offset;
  int64_t *part;       /* stage 3, per parameter: elements of one rank's shard */
  int *order;          /* parameter indices in the order in which they are flattened */
  uint8_t *persistent; /* stage 3, per parameter: 1 if it stays gathered all the time (persistent) */
  uint32_t *unit;      /* per parameter: index of the first parameter of its FSDP unit; NULL: there are no units */
  /* stage 3, per parameter: buffer of the gathered parameter (or its quantized payload), or TWS_NONE */
  uint32_t *gathered;
  /* stage 3, per quantized parameter: buffers of its gathered codes, scales and means, or TWS_NONE */
  uint32_t (*gathered_parts)[TWS_QUANTIZED_PARTS];
  /* per parameter: 1 if its gradient has a contribution already (from this step; for gradients in buckets, from this
   * micro-batch) */
  uint8_t *written;
  uint32_t *uses; /* per parameter: number of contributions to its gradient in one backward pass */
  uint32_t *left; /* per parameter: number of gradient contributions still to come in this micro-batch */
  tws_bucket *buckets;
  uint32_t bucket_count;
  uint32_t *bucket_params; /* parameter indices, those of one bucket after those of another */
  uint32_t *bucket_of;     /* per parameter: index of its bucket */
  uint64_t *slot;          /* per parameter: offset of its gradient in the bucket, in elements */
  tws_bucket_room room;    /* scratch arrays with room for all parameters, allocated at the first reduction */
  /* 1 + the last operation of the last but one and of the last bucket of a micro-batch; 0: no such bucket */
  uint32_t flushed[2];
  uint32_t emptied[2]; /* plan buffers of these two buckets, which their reductions have emptied */
  /* zero_bucket_slots.c: which bucket uses slot_buffers[slot]; its arrays are NULL until a bucket begins */
  tws_bucket_slots bucket_slots;
  uint32_t *slot_buffers;
  uint8_t *brought; /* per bucket: 1 if the copy of its accumulated sums back to the device has been issued */
  tws_zero3_schedule *schedules; /* per turn of a step (tws_lower_pipeline.turn) */
  tws_secondary secondary;
  tws_quantized_levels quantized_levels;
  /* per parameter: buffers of the codes and the scales of a quantized gather, or TWS_NONE */
  uint32_t *codes, *code_scales;
} tws_zero;

/* Returns the elements of a buffer of hyperparameters, which has TWS_HYPER_COUNT for each parameter group. */
static inline uint64_t tws_hyper_count(const tws_config *config) {
  return (uint64_t)tws_config_param_groups(config) * TWS_HYPER_COUNT;
}

/* Returns the operand of a parameter group's scalars in a buffer of hyperparameters. */
static inline tws_operand tws_hyper_of(uint32_t hyper, int param_group) {
  return tws_read(hyper, (uint64_t)param_group * TWS_HYPER_COUNT, TWS_HYPER_COUNT);
}

static inline const tws_zero_class *tws_zero_class_of(const tws_zero *z, uint32_t param) {
  return &z->classes[z->class_of[param]];
}
/* Returns the offset, among stored elements, of the first element of a ZeRO class that this rank updates. */
static inline uint64_t tws_zero_kept_first(const tws_zero *z, const tws_zero_class *c) {
  return c->stored + (z->stage == 1 || z->stage == 2 ? c->partition * (uint64_t)c->index : 0);
}

/* A range of the elements that a rank updates, staged from the disk for its update: buffers of master weights, then of
 * optimizer states. */
typedef struct tws_staged {
  uint64_t first, count; /* range of elements: index of the first one, and their number */
  uint32_t buffer[1 + TWS_OPTIMIZER_STATES];
  uint32_t weights; /* buffer of 16-bit weights that are written to the disk after the update, or TWS_NONE */
} tws_staged;

/* A range of elements of a rank's parameters that one read from the disk fetches, in whole disk blocks. */
typedef struct tws_fetch_block {
  uint64_t first, count;
} tws_fetch_block;
typedef enum tws_fetch_time { TWS_FETCH_STEP, TWS_FETCH_MICRO_BATCH, TWS_FETCH_TIMES } tws_fetch_time;
typedef struct tws_fetch_list {
  tws_fetch_block *blocks; /* reads in the order in which their elements are used */
  uint32_t count;
} tws_fetch_list;

/* Prefetching of parameters from the disk: blocks are read before their use into a ring of staging buffers. */
typedef struct tws_fetches {
  /* lists: per tws_fetch_time; list: the one in use */
  tws_fetch_list lists[TWS_FETCH_TIMES], *list;
  uint32_t used, read; /* used: index of the block of `list` in use; read: number of blocks read so far */
  uint32_t *slots;     /* plan buffers of the staging buffers */
  uint32_t slot_count;
  uint64_t slot_elements;
} tws_fetches;

/* Updated weights whose copy to their buffer is deferred to the end of the optimizer phase. */
typedef struct tws_deferred_copy {
  tws_operand from, to;
  struct tws_deferred_copy *next;
} tws_deferred_copy;

/* The state of a delayed update, which reads the gradients and scalars that the previous step left for it. */
typedef struct tws_delayed {
  int on;
  uint32_t gradients, hyper, metrics; /* plan buffers that are entries of the state */
  tws_deferred_copy *first;
} tws_delayed;

/* The part of a matrix that this rank updates, and the matrix's columns that the device updates (plan/zenflow.c). A
 * vector is a matrix of one column, which is always selected. */
typedef struct tws_columns_segment {
  uint32_t param;
  uint32_t zero_class;
  int64_t columns, chosen; /* numbers of columns of the whole matrix: all columns, and the selected ones */
  /* columns of the whole matrix that this rank stores (tensor parallelism may split them): their number, and how many
   * columns come before them */
  int64_t local, before;
  int apart; /* 1: tensor-parallel ranks have different elements of the matrix; 0: each has a copy */
  /* number of rows that the part touches; column of its first element, among the local ones; number of its elements,
   * 0: none */
  int64_t rows, first, count;
  uint64_t at, kept; /* index of its first element: in the flat order, and among the elements that the rank updates */
  /* offset of the segment, in elements, in the lists of columns, norms, the device's compact states, and the sizes */
  uint64_t list, norms, compact, sizes;
} tws_columns_segment;

/* All columns that the device updates. */
typedef struct tws_columns {
  int on;
  tws_columns_segment *segments; /* one for each trained parameter that has selected columns, ordered by ZeRO class */
  uint32_t count;
  uint64_t listed, normed, compact_elements, sized; /* numbers of elements of the lists, norms, states and sizes */
  uint32_t chosen, held; /* buffers in the state: lists of selected columns, of columns with states on the device */
  uint32_t accumulated;  /* buffer of the gradients that are accumulated for the host's next update */
  uint32_t staged, staged_metrics; /* buffers of the last step's gradients, not accumulated yet, and its metrics */
  /* buffers of the master weights and the states of the device's columns; TWS_NONE: this rank has none */
  uint32_t compact[1 + TWS_OPTIMIZER_STATES];
  uint32_t late_norms, sizes; /* buffers: norms of the previous interval, on the host; sizes; TWS_NONE: not needed */
} tws_columns;

/* A tensor that ranks average by its signs: a parameter's momentum, gradient or changes (plan/compressed.c), or the
 * momenta of several parameters (plan/onebit_lamb.c). */
typedef struct tws_compressed_tensor {
  uint32_t param;           /* TWS_NONE: several parameters */
  const tws_zero_class *of; /* the ZeRO class of the parameter */
  /* index of its first element in the flat order, or among the momenta of several parameters; number of its elements */
  uint64_t at, count;
  uint64_t part;            /* elements of the part that one rank averages, with padding: a multiple of 8 */
  uint64_t worker, server;  /* offsets of its errors in the buffers of errors, in elements */
} tws_compressed_tensor;

/* All tensors that ranks average by signs, and the state of the compression. */
typedef struct tws_compressed {
  tws_compressed_tensor *tensors;
  uint32_t count;
  uint64_t worker_elements, server_elements; /* sizes of the buffers of errors */
  /* buffers in the state: errors of this rank's tensors, of the parts that it averages, and the changes of its weights
   * that are not averaged yet (local steps); TWS_NONE: there are none */
  uint32_t worker, server, changes;
} tws_compressed;

/* The state of offloading: tiers of the entries of the state, and buffers that the optimizer phase uses. */
typedef struct tws_offload {
  int optimizer;       /* 1: the host runs the optimizer */
  int early;           /* 1: gradients are copied to the host during backward */
  tws_tier tier;       /* tier of offloaded buffers, except those of state_tier */
  tws_tier state_tier; /* tier of offloaded master weights and optimizer states */
  /* number of the elements updated by the rank that stay on the device (ratio): those below index `cut` */
  uint64_t cut;
  /* if `cut` is above 0: buffers of the master weights and the states of the elements from `cut` on; else TWS_NONE */
  uint32_t above_cut[1 + TWS_OPTIMIZER_STATES];
  uint32_t gradients, hyper, metrics; /* buffers that the optimizer phase reads: gradients, hyperparameters, metrics */
  /* host buffers that receive gradients alternately; number of copies so far */
  uint32_t arrived[2], arrivals;
  tws_operand from, to;     /* source and destination of updated weights that are not copied yet; to.count 0: none */
  const tws_staged *staged; /* range that was staged from the disk and is being updated */
  tws_tier param_tier;      /* tier of parameters between their uses; TWS_TIER_DEVICE: they are not offloaded */
  tws_tier param_host;      /* tier of parameters in host memory, and of staging buffers */
  /* a rank's elements below this index are in host memory, others on the disk */
  uint64_t param_cut;
  uint32_t param_disk; /* buffer of the elements on the disk, or TWS_NONE */
  tws_fetches fetches;
  tws_delayed delayed;
} tws_offload;

/* Activation checkpoints, offloaded or partitioned until backward. Arrays have an element per value of the network. */
typedef struct tws_checkpoints {
  /* on: 1 if checkpoints are offloaded or partitioned; parts: number of tensor-parallel ranks among which a checkpoint
   * is partitioned */
  int on, parts;
  tws_tier tier; /* tier in which checkpoints are kept until backward */
  /* index of the visit that uses the value last in forward, and first in backward; TWS_NONE: no visit */
  uint32_t *last, *first;
  const struct tws_chunk *of; /* the model chunk whose visits of modules `last` and `first` number */
} tws_checkpoints;

/* A model chunk: consecutive modules that one pipeline stage runs; without a pipeline the whole network, or the modules
 * whose forward passes run in one turn of a step. */
typedef struct tws_chunk {
  uint32_t first, end;          /* modules [first, end) of the local network */
  uint32_t in_value, out_value; /* values that the chunk receives and sends; TWS_NONE at the ends of the network */
  tws_visit_list visits;        /* visits of one micro-batch, forward visits first */
  uint32_t forward_visits;
} tws_chunk;

/* A deferred weight gradient (zero-bubble schedules). */
typedef struct tws_deferred {
  tws_work work;
  tws_operand operands[5];
  int count;
  uint32_t module;
} tws_deferred;

/* Buffers with an activation or weight quantized to 8-bit floating point: its largest absolute value, its scale, and
 * the quantized elements in row-major and in transposed order. TWS_NONE: the buffer was not built. */
typedef struct tws_codes {
  uint32_t amax, scale, rows, columns;
  int recomputed; /* 1: backward recomputes the value and quantizes it again: its 8-bit copies are not kept */
} tws_codes;

/* The location of an activation checkpoint: whole on the device; STORED on the host or partitioned among ranks;
 * RETURNING: the copy back to the device has been issued, and a partitioned checkpoint is not gathered yet. */
typedef enum tws_checkpoint_location {
  TWS_CHECKPOINT_ON_DEVICE,
  TWS_CHECKPOINT_STORED,
  TWS_CHECKPOINT_RETURNING
} tws_checkpoint_location;

/* The state of one micro-batch inside one chunk, from its first operation to its last. */
typedef struct tws_context {
  uint32_t *value_buffer;   /* per value: its current buffer, or TWS_NONE */
  uint32_t *value_gradient; /* per value: the buffer of its gradient, or TWS_NONE */
  uint32_t *value_narrow;   /* per value: the buffer of its 8-bit copy, which backward reads instead of the value */
  tws_codes *codes;  /* per value: the buffers with its elements in 8-bit floating point; NULL: no 8-bit products */
  uint8_t *location; /* per value that is a checkpoint: tws_checkpoint_location */
  tws_deferred *deferred;
  size_t deferred_capacity;
  uint32_t deferred_count;
  /* plan buffer of the received shard of the input (0: value, 1: gradient) that is not gathered yet, or TWS_NONE */
  uint32_t part[2];
  uint32_t events;          /* number of pipeline events that refer to this context and are not lowered yet */
  struct tws_context *next; /* next context in the list of unused contexts */
} tws_context;

/* ---- sections of the lowering state ---- Each has an owner, the pass that is named with it in tws_lower below: only
 * files of that pass write it, and all others only read it (checked by the suite `owners`). */

/* Sizes and kind of the program that is lowered. */
typedef struct tws_lower_extent {
  int evaluates;        /* 1: the program runs only forward passes (an evaluation) */
  int parameters_only;  /* 1: the state has no master weights and optimizer states */
  int64_t tokens;       /* number of tokens of one micro-batch on this rank */
  int64_t accumulation; /* number of micro-batches that are lowered */
} tws_lower_extent;

/* The streams on which communication is issued, and the number of slices that overlap with each other. */
typedef struct tws_lower_streams {
  int overlap; /* 1: overlap_comm is on; always 0 in a pipeline */
  tws_stream gather, reduce, exchange;
  int exchanges_overlap; /* 1: exchanges of tensor ranks or of a sequence ring overlap with compute */
  /* number of slices in which split layers and exchanges are issued so that they overlap */
  int slices;
} tws_lower_streams;

/* Weights that are divided into tiles (twinspeed.linear_tile_size). */
typedef struct tws_tiling {
  tws_weight_tiles *weights; /* per parameter of the whole network: its tiles; NULL: no weight is tiled */
  uint32_t *weight_of;       /* per tile: index of the weight that it is a tile of */
} tws_tiling;

/* Properties of the visit that is being lowered; members as in tws_visit. */
typedef struct tws_visit_place {
  int tile, tiles, chunk_role;
  uint32_t weight_tile;
  const tws_module *fused_with; /* the module whose work the visit's kernel does too, or NULL */
  const tws_module *sums_for;   /* the layer whose bias gradient the visit's kernel may compute too, or NULL */
} tws_visit_place;

/* The sizes and buffers of all values in a micro-batch on this rank. */
typedef struct tws_values {
  uint64_t *rows;          /* per value: number of rows in a micro-batch, before the value is divided among ranks */
  int64_t *whole_sequence; /* per value: length in tokens of the whole sequences in it */
  uint8_t *adds;           /* per value: 1 if tiles add to a gradient that existed before the first tile */
  /* per value, arrays of the current context: as value_buffer, value_gradient and value_narrow of tws_context */
  uint32_t *buffer, *gradient, *narrow;
} tws_values;

/* Matrix products of layers in 8-bit floating point. */
typedef struct tws_lower_float8 {
  int on, delayed; /* delayed: 1: scales come from the values of earlier steps (twinspeed.fp8_recipe) */
  uint8_t *again;  /* per module: 1 if it is recomputed in backward */
  uint8_t *known;  /* per parameter: 1 if an operation has computed its largest absolute value in this program */
  uint8_t *read;   /* per value: 1 if a product in 8 bits reads it */
  /* buffer of largest absolute values: one per parameter, TWS_NONE before the first; delayed: this step's, by slot */
  uint32_t largest;
  /* delayed: 1 + slot of a tensor, for each value, then each parameter, then the gradient of each module's output */
  uint32_t *slot, slots, amax, history; /* amax, history: buffers in the state */
} tws_lower_float8;

/* Values whose gradient may share its buffer with another value's. */
typedef struct tws_shared_gradients {
  uint32_t *values; /* [count] indices of the values whose gradients share a buffer now */
  uint32_t count;
  uint8_t *adds; /* per module: 1 for an ADD whose two inputs' gradients can share a buffer */
} tws_shared_gradients;

/* The cache of keys and values of inference (plan/cache.c). */
typedef struct tws_lower_cache {
  uint32_t buffer;  /* plan buffer of the cache of all layers of this rank; TWS_NONE: there is none */
  uint64_t *first;  /* per module: offset of its cache in the buffer, in elements; NULL without a cache */
  uint64_t *counts; /* per module: elements of its cache for one micro-batch */
} tws_lower_cache;

/* The pipeline stage, and the current position of the lowering in it. */
typedef struct tws_lower_pipeline {
  tws_pipeline_shape shape;
  int stage;
  tws_chunk *chunks; /* chunks of layers that this stage runs */
  int chunk_count;
  int turn;             /* the turn that is being lowered; with several turns in a step, the index of its chunk */
  tws_chunk *chunk;     /* chunk that is being lowered */
  tws_context *context; /* the context of the micro-batch that is being lowered */
  tws_context *free_contexts;
  int split; /* 1: weight gradients are deferred (the schedule splits the backward pass) */
  uint16_t *param_stages; /* per parameter: number of stages that have it if it is tied across stages, else 0 */
  uint8_t *tied_stages;   /* per stage: 1: it has the tied parameters of this stage */
} tws_lower_pipeline;

/* The state of the lowering. The comment of each member names the files that write the member; other files only read
 * it. */
typedef struct tws_lower {
  const tws_plan_request *request; /* the request for the plan; written by build.c */
  const tws_config *config;        /* the resolved configuration; written by build.c */
  const tws_network *network;      /* the local network of this rank; written by build.c and weight_tiles.c */
  tws_sharding sharding;           /* the settings by which the network is sharded; written by build.c */
  tws_local local; /* the local network with its placements and exchanges; written by build.c and weight_tiles.c */
  tws_lower_extent extent;   /* sizes and kind of the program that is lowered; written by build.c */
  tws_lower_streams streams; /* the streams on which communication is issued; written by build.c */
  tws_module_memory memory[TWS_MODULE_TYPE_COUNT]; /* values that a type saves for backward; written by build.c */
  uint32_t group[TWS_AXIS_COUNT]; /* per axis: index of its group, or TWS_NONE; written by build.c and pipeline.c */
  tws_tiling tiling;              /* weights that are divided into tiles; written by weight_tiles.c */
  tws_values values;              /* sizes and buffers of values; written by values.c */
  uint8_t *needed;                /* per value: 1 if a trained parameter needs its gradient; written by frozen.c */
  uint8_t *kept;                  /* per value: until when it is retained, a tws_kept; written by recompute.c */
  uint8_t *tiled;                 /* per value: 1 if only one tile of it exists at a time; written by visits.c */
  tws_visit_place at;             /* properties of the visit that is being lowered; written by modules.c */
  uint32_t summed; /* bias whose gradient is computed already, or TWS_NONE; written by module_kernel.c, backward.c */
  tws_shared_gradients shared; /* values whose gradients may share a buffer; written by backward.c */
  struct tws_chunked *chunked; /* attention in chunks; NULL: there is none; written by chunked_attention.c */
  tws_lower_float8 float8;     /* matrix products in 8-bit floating point; written by float8.c */
  tws_lower_pipeline pipeline; /* the pipeline stage, and the current position in it; written by pipeline.c */
  tws_checkpoints checkpoints; /* offloaded and partitioned activation checkpoints; written by checkpoints.c */
  tws_zero zero;               /* ZeRO's storage and collectives; written by zero.c, zero3_gathers.c, zero_buckets.c,
                  * zero_bucket_slots.c, zero_classes.c, zero_groups.c, zero_quantized_gather.c,
                  * zero_quantized_reduce.c and zero_secondary.c */
  tws_offload offload;         /* tiers and buffers of offloading; written by offload.c, fetch.c and delayed.c */
  tws_lower_cache cache;       /* the cache of keys and values of inference; written by cache.c */
  tws_columns columns;         /* the columns of matrices that the device updates; written by zenflow.c */
  tws_compressed compressed;   /* tensors that ranks average by signs; written by compressed.c and onebit_lamb.c */
  tws_onebit_lamb lamb;        /* OneBitLamb's lists; written by onebit_lamb.c */
  tws_other_moments moments;   /* of rows and columns, and of 8 bits; written by adafactor.c and eight_bit.c */
  tws_arena *scratch;          /* memory of all passes that lives as long as the lowering; written by build.c */
  tws_builder b;               /* all passes emit operations through it, and set their phase, module and micro-batch */
} tws_lower;

/* recompute.c: writes l->kept of all values except those that exist one tile at a time. */
tws_code tws_recompute_begin(tws_lower *l);
void tws_recompute_decide(tws_lower *l);
/* Returns the first module of the recomputed segment (a layer or an MLP) whose last module is `last`; TWS_NONE: there
 * is no such segment. */
uint32_t tws_recompute_block(const tws_lower *l, uint32_t last);
/* visits.c: writes the list of visits of a micro-batch in a chunk. */
tws_code tws_lower_visits(tws_lower *l, tws_chunk *chunk);
/* weight_tiles.c: replaces weights of the local network by tiles as twinspeed.linear_tile_size says. */
tws_code tws_weight_tiles_begin(tws_lower *l);
/* Returns the number of tiles of a tiled parameter; 0: it is not tiled. */
static inline uint32_t tws_weight_tile_count(const tws_lower *l, uint32_t param) {
  return l->tiling.weights && param < l->b.plan->network->param_count ? l->tiling.weights[param].count : 0;
}
static inline int tws_is_weight_tile(const tws_lower *l, uint32_t param) {
  return param >= l->b.plan->network->param_count;
}
/* Returns the number of visits of a module in one pass: one for each tile of its weight. */
static inline uint32_t tws_module_weight_tiles(const tws_lower *l, uint32_t module) {
  const uint32_t weight = module == TWS_NONE ? TWS_NONE : l->network->modules[module].param[0];
  const uint32_t count = weight == TWS_NONE ? 0 : tws_weight_tile_count(l, weight);
  return count > 0 ? count : 1;
}
/* Returns the parameter of the whole network to which a parameter of the local network corresponds (or belongs, as a
 * tile), and sets *first to the index of its first element in that. */
uint32_t tws_weight_tile_origin(const tws_lower *l, uint32_t param, uint64_t *first);
/* Returns the parameter that a visit uses in place of its module's: the tile, or the parameter itself. */
uint32_t tws_visit_param(const tws_lower *l, uint32_t param, uint32_t weight_tile);
/* The output features of a linear layer that the current visit computes: index of the first one, and their number. */
typedef struct tws_outputs {
  int64_t first, count;
} tws_outputs;
tws_outputs tws_visit_outputs(const tws_lower *l, const tws_module *m);
/* Returns the range that the current visit computes or reads of a vector with one element per output. */
static inline tws_operand tws_outputs_of(tws_operand vector, tws_outputs outputs) {
  vector.offset += (uint64_t)outputs.first;
  vector.count = (uint64_t)outputs.count;
  return vector;
}
/* Return 1 if the current visit is the first, or the last, visit of its layer in this pass. */
int tws_is_first_weight_tile(const tws_lower *l, const tws_module *m);
int tws_is_last_weight_tile(const tws_lower *l, const tws_module *m);
/* tws_outputs_make() returns the operand to which the current visit writes its outputs, tws_outputs_put() copies them
 * to their columns of the layer's output, and tws_outputs_gradient() returns the columns of the output's gradient that
 * the visit reads. */
tws_operand tws_outputs_make(tws_lower *l, const tws_module *m);
void tws_outputs_put(tws_lower *l, const tws_module *m, tws_operand outputs);
tws_operand tws_outputs_gradient(tws_lower *l, const tws_module *m);
/* frozen.c: tws_frozen_begin() finds the gradients that trained parameters need; tws_module_goes_backward() returns 1
 * if a module has a backward visit. */
tws_code tws_frozen_begin(tws_lower *l);
int tws_module_goes_backward(const tws_lower *l, const tws_module *m);
static inline int tws_is_frozen(const tws_lower *l, uint32_t param) {
  return l->network->params[param].frozen != 0;
}
/* quantized.c: quantized parameters. tws_quantized_begin() fails with TWS_INVALID if quantization blocks do not divide
 * a row, or if a group of blocks would be divided among ranks; the hint has the nearest legal values. */
int tws_is_quantized(const tws_lower *l, uint32_t param);
tws_code tws_quantized_begin(tws_lower *l);
/* Adds the state's entries for `elements` quantized elements that are stored from `first` on; if there are 0, adds
 * none. */
void tws_quantized_state(tws_lower *l, uint64_t first, uint64_t elements);
/* Dequantizes the whole parameter for the next kernel, and returns it in the configuration's type. */
tws_operand tws_dequantized(tws_lower *l, uint32_t param);
/* float8.c: 8-bit matrix products of layers. tws_float8_begin() fails with TWS_INVALID if no layer can have one. */
int tws_float8_is_planned(
    /* returns 1 if casts are operations of the plan; 0: their cost is part of the products' cost, or there are none */
    const tws_config *config);
tws_code tws_float8_begin(tws_lower *l);
/* Adds the state of delayed scaling for the modules of this pipeline stage, which have to be known. */
tws_code tws_float8_histories(tws_lower *l);
/* Marks the modules that these visits recompute; called for each model chunk. */
void tws_float8_visits(tws_lower *l, const tws_visit_list *visits);
int tws_is_float8(const tws_lower *l, const tws_module *m);
/* The 8-bit codes of an operand of the module that is being lowered: in the row-major layout, in the transposed layout,
 * or in both, with their scale. */
typedef struct tws_float8 {
  tws_operand rows, columns, scale;
} tws_float8;
/* If the kernel that writes a value is to find its largest absolute value, for a cast that follows, sets the kernel's
 * last operand and returns 1; called after the value's buffer was made. */
int tws_float8_largest(tws_lower *l, uint32_t value, tws_operand *operand);
tws_float8 tws_float8_input(tws_lower *l, const tws_module *m);
tws_float8 tws_float8_weight(tws_lower *l, const tws_module *m);
tws_float8 tws_float8_gradient(tws_lower *l, const tws_module *m, tws_operand dy);
void tws_float8_step(tws_lower *l); /* delayed scaling: emits the next step's scales */
/* Returns scratch memory for a gradient that the kernel writes and no operation reads. */
tws_operand tws_discarded_gradient(tws_lower *l, uint32_t param);
/* pipeline.c: the first determines the pipeline stage and its chunks. */
tws_code tws_pipeline_begin(tws_lower *l);
/* Lowers all micro-batches of this stage, and the reductions of tied weights; if networks are trained alternately, the
 * passes of one turn. Turns are lowered one after another, from 0 on. */
void tws_pipeline_run(tws_lower *l, int turn);
/* The functions below are defined in lower.c. */
/* Returns zeroed scratch memory for count + 1 elements of `bytes` bytes; NULL: the builder has failed. */
void *tws_lower_memory(tws_lower *l, size_t count, size_t bytes);
/* tws_lower_group() returns the index of the plan's group of ranks along a set of axes; tws_lower_add_group() adds a
 * group of the given ranks. */
uint32_t tws_lower_group(tws_lower *l, tws_axes axes);
uint32_t tws_lower_add_group(tws_lower *l, tws_axes axes, const int *members, int count);

/* values.c: the functions below return operands of whole values, or of the current visit's tile of them. */
tws_code tws_values_begin(tws_lower *l);
/* Makes the functions of values.c read and write the buffers of this context. */
void tws_values_enter(tws_lower *l, const tws_context *context);
/* Set the current buffer of a value, of its gradient, or of its 8-bit copy; TWS_NONE: it has none. */
void tws_value_place(tws_lower *l, uint32_t value, uint32_t buffer);
void tws_value_place_gradient(tws_lower *l, uint32_t value, uint32_t buffer);
void tws_value_place_narrow(tws_lower *l, uint32_t value, uint32_t buffer);
static inline uint64_t tws_value_rows(const tws_lower *l, uint32_t value) {
  return l->values.rows[value];
}
uint64_t tws_value_elements(const tws_lower *l, uint32_t value);
/* Return the number of rows, the number of elements and the type of one micro-batch of a network input on this rank. */
uint64_t tws_input_rows(const tws_lower *l, uint32_t input);
uint64_t tws_input_elements(const tws_lower *l, uint32_t input);
tws_dtype tws_input_dtype(const tws_lower *l, uint32_t input);
tws_dtype tws_value_dtype(const tws_lower *l, uint32_t value);
tws_operand tws_input_read(tws_lower *l, uint32_t input);
tws_operand tws_value_read(tws_lower *l, uint32_t value);
tws_operand tws_value_write(tws_lower *l, uint32_t value);
/* Makes the buffer of an input that no later operation reads the buffer of an output; returns its operand. */
tws_operand tws_value_reuse(tws_lower *l, uint32_t input, uint32_t output, uint32_t access);
tws_operand tws_value_gradient(tws_lower *l, uint32_t value);
/* Returns the operand to which a module writes the gradient of its input `value`. *accumulate: 1 if another reader of
 * the value has already written a gradient there, to which this one has to be added; otherwise 0. */
tws_operand tws_value_gradient_out(tws_lower *l, uint32_t value, int *accumulate);
/* Returns 1 if the gradient of `value` is in one buffer with the gradient of a value whose producer precedes module
 * `before`, so that a later operation reads it. */
int tws_gradient_is_shared(const tws_lower *l, uint32_t value, uint32_t before);
/* Emits the addition of `part` to a value's gradient. */
void tws_lower_add_gradient(tws_lower *l, uint32_t value, tws_operand part);
/* Passes `from` to a value as its gradient: shares its buffer, or adds it to the gradient that the value has. */
void tws_lower_pass_gradient(tws_lower *l, uint32_t value, tws_operand from);
tws_operand tws_lower_scratch(tws_lower *l, const char *name, tws_dtype dtype, uint64_t elements);
tws_operand tws_lower_workspace(tws_lower *l, const tws_work *work);
void tws_lower_compute(tws_lower *l, const tws_work *work, const tws_operand *operands, int count);
/* Emit a kernel that adds one operand to another in the configuration's type, and a fill with zeros. */
void tws_lower_accumulate(tws_lower *l, tws_operand part, tws_operand sum);
void tws_lower_clear(tws_lower *l, tws_operand target, tws_dtype dtype);
void tws_lower_compute_with(tws_lower *l, const tws_work *work, const tws_arguments *arguments,
                            const tws_operand *operands, int count);
/* Makes the builder track hazards of a buffer separately for each slice. */
void tws_lower_slice(tws_lower *l, uint32_t buffer);
/* Returns slice i (of l->streams.slices) of an operand. */
tws_operand tws_operand_slice(const tws_lower *l, tws_operand operand, int i);

/* The functions below are defined in modules.c: they emit the kernels of a visit. */
/* Sets phase and module of the following operations to those of a visit. */
static inline void tws_lower_at_visit(tws_lower *l, const tws_visit *visit) {
  l->b.phase = (tws_phase)visit->phase;
  l->b.module = visit->module == TWS_NONE ? TWS_NONE : l->local.modules[visit->module].origin;
}
void tws_lower_visit(tws_lower *l, const tws_visit *visit);
/* The functions below are defined in module_kernel.c. */
/* Emits one kernel with the operands that the row of the module's type in modules.def lists. */
void tws_lower_kernel(tws_lower *l, const tws_module *m, const tws_module_kernel *kernel);
/* Appends the gradient of a bias as an operand if the visit's kernel can compute it too (l->at.sums_for). Returns the
 * new number of operands. */
int tws_lower_sums(tws_lower *l, tws_work *work, tws_operand *operands, int count);
/* The functions below are defined in module_work.c. */
/* Returns the number of rows that a visit processes: those of its module's input. */
int64_t tws_module_rows(const tws_lower *l, const tws_module *m);
tws_work tws_module_work(const tws_lower *l, const tws_module *m, tws_kernel kernel, uint32_t flags);
/* Returns the position in its sequence of the first token that this rank has. */
int64_t tws_first_token(const tws_lower *l);
/* Returns the number of other ranks' tokens between the two halves that this rank has of a sequence (zigzag); 0: its
 * tokens are contiguous. */
int64_t tws_token_gap(const tws_lower *l);
/* Writes the range of rows of the position table that contains all positions of this rank's tokens: index of the first
 * row, and number of rows. */
void tws_position_rows(const tws_lower *l, const tws_module *m, int64_t *first, int64_t *rows);
/* Appends the loss scale as an operand in float16 training, and returns the new number of operands. */
int tws_lower_scaled(tws_lower *l, tws_work *work, tws_operand *operands, int count);
const tws_local_module *tws_local_of(const tws_lower *l, const tws_module *m);
/* Returns 1 if matrix products of a split layer are issued in slices. */
int tws_lower_sliced(const tws_lower *l, const tws_module *m);
/* Returns 1 if the backward pass reads a layer's input in 8 bits, as its matrix product does (twinspeed.matmul_dtype;
 * 4-bit numbers with their scales are stored in one byte here), and 0 if it reads 16 bits. Only inputs that are kept
 * have 8 bits; recomputed inputs have 16. */
int tws_lower_narrow(const tws_lower *l, const tws_module *m);
/* Returns the factor of one row of a loss, so that the sum over all micro-batches and ranks is the mean over the global
 * batch. */
double tws_loss_weight(const tws_lower *l, const tws_module *m);
/* backward.c: the first is called once, when the network is known. */
tws_code tws_backward_begin(tws_lower *l);
void tws_backward_micro_begin(tws_lower *l); /* begins a micro-batch, in which no gradients share a buffer yet */
void tws_lower_backward(tws_lower *l, const tws_module *m);
/* expert_sizes.c: tws_expert_tokens() returns the number of a rank's tokens that a layer of experts routes,
 * tws_expert_slots() the slots of an expert, tws_expert_expected() how many of these are filled on average. */
tws_dim tws_lower_dim(const tws_lower *l,
                      /* resolves a size that the configuration determines: number of slots or of targets */
                      tws_dim dim);
int64_t tws_expert_sources(const tws_lower *l,
                           const tws_module *m); /* number of ranks whose slots one expert's matrix product processes */
int64_t tws_expert_tokens(const tws_lower *l, const tws_module *m);
int64_t tws_expert_slots(const tws_lower *l, const tws_module *m);
int64_t tws_expert_expected(const tws_lower *l, const tws_module *m);
/* Returns the number of experts that share a buffer of slots (all of a rank if dropless); 0: each has its own slots. */
int64_t tws_expert_shared(const tws_lower *l, const tws_module *m);
/* Returns the number of routers among the modules with an index below `before`, and writes the sum of their experts. */
uint32_t tws_routers(const tws_network *network, uint32_t before, uint64_t *experts);
/* Checks twinspeed.expert_load. Fails with TWS_INVALID if it is empty or does not have one number for each expert of a
 * layer. */
tws_code tws_expert_load_check(const tws_network *network, const char *load, tws_error *err);
/* The functions below are defined in moe.c. */
/* tws_router_balance() emits the update of router biases in the optimizer phase (twinspeed.expert_bias_rate);
 * tws_expert_bias_check() fails with TWS_UNSUPPORTED if no router has biases. */
void tws_router_balance(tws_lower *l);
tws_code tws_expert_bias_check(const tws_network *network, tws_error *err);
void tws_router_forward(tws_lower *l, const tws_module *m);
void tws_router_backward(tws_lower *l, const tws_module *m);
/* exchange.c: lower a module EXCHANGE in the forward and in the backward pass. */
void tws_exchange_forward(tws_lower *l, const tws_module *m);
void tws_exchange_backward(tws_lower *l, const tws_module *m);
/* Returns an operand with `operand` of all tensor-parallel ranks, gathered in rank order. */
tws_operand tws_exchange_gather(tws_lower *l, tws_operand operand, const char *name);
void tws_exchange_gather_into(tws_lower *l, tws_stream stream, tws_operand operand, tws_operand all);
/* Reduces the gradients of replicated parameters whose tensor-parallel ranks processed different tokens. */
void tws_exchange_partial_gradients(tws_lower *l);
/* The functions below are defined in zero.c. */
/* Sets the axes along which ranks have different samples or tokens. Called before other groups are made, since the
 * group of these ranks has index 0. */
void tws_zero_choose_ranks(tws_lower *l, tws_axes replicas);
tws_code tws_zero_begin(tws_lower *l);
/* Begins a step, or another turn of it: gathers all persistent parameters, or those that the previous turn updated. */
void tws_zero_step_begin(tws_lower *l, int turn);
void tws_zero_micro_begin(tws_lower *l);
/* Copies sums of gradients back to the buffers of the buckets that a micro-batch's forward pass (backward 0) or
 * backward pass (1) fills first; called after tws_zero_micro_begin(). */
void tws_zero_buckets_pass(tws_lower *l, int backward);
void tws_zero_before(tws_lower *l, uint32_t visit);
void tws_zero_after(tws_lower *l, uint32_t visit);
void tws_zero_micro_end(tws_lower *l);
tws_operand tws_zero_param(tws_lower *l, uint32_t param);
/* Returns the operand to which a contribution to a parameter's gradient is written. *accumulate: 1 if the contribution
 * has to be added to the operand's contents, 0 if it replaces them. Contributions have to be emitted in the order of
 * these calls. */
tws_operand tws_zero_gradient(tws_lower *l, uint32_t param, int *accumulate);
/* Returns 1 if the next contribution is added to the gradient, as tws_zero_gradient() would say; changes nothing. */
int tws_zero_adds(const tws_lower *l, uint32_t param);
void tws_zero_contributed(tws_lower *l, uint32_t param);
/* Calls `run` for each maximal range of parameters that are adjacent in the flat buffers of a tws_zero_class and have
 * the same result of `kind_of`, which `run` receives as `kind`. [first, first + count): the elements of this rank's
 * shard of the range, in the gradient buffer. */
typedef int (*tws_zero_kind)(const tws_lower *l, uint32_t param);
typedef void (*tws_zero_run)(tws_lower *l, int kind, uint64_t first, uint64_t count);
void tws_zero_kept_runs(tws_lower *l, tws_zero_kind kind_of, tws_zero_run run);
/* running.c: running statistics of batch normalization. tws_running_begin() determines those of this rank's modules and
 * adds their state entry; tws_running_operand() returns the operand of a module's statistics. */
tws_code tws_running_begin(tws_lower *l);
tws_operand tws_running_operand(const tws_lower *l, const tws_module *m, uint32_t access);
/* Returns the factor of a micro-batch's update of running statistics: 1 / ranks in the last micro-batch, so that the
 * sum over ranks is the mean; 1 in the others, and for a module after which another one updates the same statistics. */
double tws_running_share(const tws_lower *l, const tws_module *m);
/* Averages running statistics over data-parallel ranks; called in the optimizer phase. */
void tws_running_average(tws_lower *l);
/* dropout.c: the first returns the index in the step's samples of this micro-batch's first sample; the second returns
 * the arguments of a dropout kernel. */
int64_t tws_first_sample(const tws_lower *l);
int tws_dropout_arguments(tws_lower *l, const tws_module *m, tws_kernel kernel, tws_arguments *arguments);
/* optimizer.c: the first lowers the optimizer phase of a training step, or of the turn that is being lowered. */
void tws_lower_step(tws_lower *l);
/* Returns the work of the optimizer's kernel for `count` elements. */
tws_work tws_lower_update_work(const tws_lower *l, tws_dtype gradients, uint64_t count);
void tws_lower_gather_parameters(tws_lower *l); /* stages 1 and 2: emits the all-gather of updated parameters */
/* Emits the optimizer kernels for the elements that this rank updates. The kernels read the gradients and scalars from
 * the buffers in l->offload. */
void tws_lower_update(tws_lower *l);
/* Lowers the program TWS_PROGRAM_APPLY: the update on the host that training steps defer. */
void tws_lower_apply(tws_lower *l);
/* For a network with several losses, emits kernels that count the ignored targets of each loss before the first
 * micro-batch. */
void tws_lower_count_targets(tws_lower *l);
void tws_lower_score(tws_lower *l); /* lowers the end of an evaluation: the reduction of the loss over all ranks */

static inline tws_work tws_kernel_work(tws_kernel kernel, tws_dtype dtype, uint32_t flags) {
  tws_work work = {.kind = TWS_OP_COMPUTE,
                   .code = (uint8_t)kernel,
                   .dtype = (uint8_t)dtype,
                   .dtype2 = (uint8_t)dtype,
                   .flags = flags};
  return work;
}

#endif
