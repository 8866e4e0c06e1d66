/* Lowering: state shared by the passes. Internal to plan/.
 *
 *   shard.c      the part of the network that this rank runs, with the exchanges that placements need: rules of
 *                tensor_parallel.c and sequence_parallel.c (its sizes: sequence_rules.c), changes of placement.c
 *   visits.c     a micro-batch as a list of module visits (forward, recomputation, backward), some in tiles of tokens
 *   values.c     where values and their gradients are; frozen.c: which gradients nobody needs
 *   modules.c    one visit -> kernels: forward; backward.c: backward; exchange.c: values that change hands
 *   module_work.c  rows, sizes and flags of a visit's kernels; module_kernel.c: one kernel by its row of the table
 *   ring_attention.c  attention over tokens of several ranks
 *   moe.c        routers; expert_sizes.c: the slots of experts
 *   weight_tiles.c  large weights of stage 3 as tiles, each gathered and reduced for itself
 *   quantized.c  frozen weights in few bits
 *   float8.c     products in 8 bits
 *   zero.c       where parameters and gradients live and move, by ZeRO stage; zero3_gathers.c: whole parameters of
 *                stage 3; zero_secondary.c: what neighbours keep of them; zero_codes.c: those that travel in few bits;
 *                zero_hops.c: gradients that do; zero_communication.c: gradients that travel in another type;
 *                zero_groups.c: ranks in groups that each have all of it
 *   dropout.c    where random bits of dropout come from
 *   running.c    running statistics of modules
 *   offload.c    what lives on the host and is done there; fetch.c: parameters that do; delayed.c: an update that is
 *                one step late; zenflow.c: one in two parts
 *   checkpoints.c  where what enters a recomputed layer waits for backward
 *   optimizer.c  the step: norm, clipping, the update, gathering of updated parameters; the end of an evaluation
 *   pipeline.c   which modules a stage runs, micro-batches in what order, messages between stages
 *   lower.c      scratch memory and communicators, for all of them
 *   build.c      puts them together */
#ifndef TWS_PLAN_LOWER_H
#define TWS_PLAN_LOWER_H

#include "models/network/module.h"
#include "plan/builder.h"
#include "plan/pipeline_partition.h"
#include "plan/pipeline_schedule.h"
#include "plan/shard.h"
#include "plan/zero3_schedule.h"

/* Whether a value survives the forward pass; checkpoints are what enters a layer. */
enum tws_kept { TWS_NOT_KEPT, TWS_KEPT, TWS_KEPT_CHECKPOINT };

typedef struct tws_visit {
  uint32_t module; /* of the local network; TWS_NONE: the root, which has no work but lets ZeRO-3 prefetch */
  uint8_t phase;
  uint8_t fused_away;   /* its work is part of a neighbour's kernel */
  uint16_t tile, tiles; /* part of the micro-batch's tokens: 0 of 1 for all */
  uint16_t weight_tile; /* of the module's weight, where that is tiled */
  uint32_t fused_with;  /* the neighbour's module whose work is part of this one's kernel, or TWS_NONE */
  uint32_t sums_for;    /* the linear layer that goes backward next with what this one's kernel writes, or TWS_NONE */
} tws_visit;

typedef struct tws_visit_list {
  tws_visit *items;
  uint32_t count;
  size_t capacity;
} tws_visit_list;

/* One communication bucket of a micro-batch's backward pass: gradients that are reduced together. */
typedef struct tws_bucket {
  uint32_t first, count; /* slice of tws_zero.bucket_params, in ascending order of parameters */
  uint32_t zero_class;   /* of them all */
  uint64_t elements;     /* stage 3: padded */
  uint32_t pending;      /* gradients of this micro-batch that are not complete yet */
  uint32_t buffer;       /* instance of this micro-batch, TWS_NONE before its first gradient */
} tws_bucket;

/* Parameters of which the same ranks hold copies: these add up their gradients and share them out. A class has a range
 * of its own in the flat buffers. Dense parameters are one class, over all ranks that see different samples or tokens;
 * experts are another, over those that hold the same. */
enum { TWS_ZERO_CLASSES = 8 }; /* the most */
typedef enum tws_frozen { TWS_TRAINED, TWS_FROZEN, TWS_FROZEN_QUANTIZED } tws_frozen;
typedef struct tws_zero_class {
  tws_axes axes;
  uint32_t group;
  int ranks, index;
  int frozen;                         /* tws_frozen; nothing of it is updated: it only has a range of what is stored */
  uint32_t first, end;                /* its parameters, in tws_zero.order */
  uint64_t stored;                    /* where its range begins in buffers of all that a rank stores */
  uint64_t kept;                      /* likewise of what a rank updates */
  uint64_t total, aligned, partition; /* elements stored, with padding, and updated by one rank */
} tws_zero_class;

/* A weight in tiles: rows of it, so outputs of its layer, that are parameters of their own to ZeRO. The local network
 * has them behind all others; no module names them, and nothing is stored of the weight itself. */
typedef struct tws_weight_tiles {
  uint32_t first, count; /* its tiles; count 0: it is whole */
  int64_t rows;          /* of each but the last */
} tws_weight_tiles;

/* Parts of whole parameters that neighbours keep between them for a step (plan/zero_secondary.c). */
typedef struct tws_secondary {
  uint32_t buffer; /* TWS_NONE: nothing is kept */
  uint32_t group;  /* of the neighbours */
  int ranks, index;
  uint64_t *offset; /* per parameter: of this rank's part, or TWS_NO_OFFSET */
  uint8_t *has;     /* whether this step has put it there */
} tws_secondary;

/* How gradients in few bits reach their ranks (plan/zero_hops.c). */
typedef struct tws_hops {
  int near; /* ranks of a node, which exchange first; 0: all ranks at once */
  uint32_t near_group, across_group;
} tws_hops;

/* Groups of ranks that each have all partitions (MiCS, plan/zero_groups.c). */
typedef struct tws_zero_groups {
  int copies;            /* of a partition; 1: all ranks are one group */
  uint32_t copies_group; /* ranks that have the same one */
  int nodes;             /* of a group, which gather between them first; 1: all gather at once */
  int near;              /* ranks of one of them */
  uint32_t far_group, near_group;
} tws_zero_groups;

/* Buffers that buckets of gradients take turns in. A bucket that begins takes the place that came free first, but for
 * that of the bucket which began before it, so that one is emptied while another is filled; or a new one. Micro-batches
 * are alike, so the first of a step says which bucket comes after which. (plan/zero_turns.c) */
typedef struct tws_bucket_turns {
  uint32_t *place, *next; /* per bucket: its place; the bucket that has it then, or TWS_NONE */
  uint32_t *first, *last; /* per place: the first bucket that has it, and the one that had it last */
  uint32_t *freed;        /* likewise: 1 + how many buckets ended before that one; 0: it has not ended */
  uint32_t places, ended;
  uint32_t begun_last; /* bucket */
} tws_bucket_turns;

typedef struct tws_bucket_room { /* to reduce a bucket in: two operands of each parameter, twice */
  tws_operand *operands, *others;
  uint64_t *flat;
  int64_t *part;
} tws_bucket_room;

typedef struct tws_zero {
  int stage;
  int ranks;      /* that see different samples or tokens, */
  uint32_t group; /* and their communicator */
  tws_zero_groups groups;
  tws_zero_class *classes;
  uint32_t class_count, trained_count; /* those of frozen parameters come last, quantized ones behind others */
  uint8_t *class_of;                   /* per parameter */
  int flat_gradients;                  /* all gradients in one buffer (stages 0 and 1, or a single rank) */
  tws_dtype grad_dtype;                /* of what the backward kernels write */
  uint64_t *flat_offset;               /* per parameter: stages 0-2 in the flat buffer; stage 3: of its shard */
  int64_t *part;                       /* stage 3: elements of a shard */
  int *order;                          /* flattening order */
  uint8_t *persistent;                 /* stage 3 */
  uint32_t *unit;                      /* that a parameter belongs to, its first one's number; NULL: each for itself */
  uint32_t *gathered;                  /* stage 3: buffer of the gathered parameter (or its codes), or TWS_NONE */
  uint32_t (*gathered_parts)[TWS_QUANTIZED_PARTS]; /* likewise of all that a quantized one is kept as */
  uint8_t *written; /* gradient has a contribution (of this step, or this micro-batch for buckets) */
  uint32_t *uses;   /* contributions to a parameter's gradient in one backward pass */
  uint32_t *left;   /* of them, still to come in this micro-batch */
  tws_bucket *buckets;
  uint32_t bucket_count;
  uint32_t *bucket_params; /* grouped by bucket */
  uint32_t *bucket_of;     /* per parameter */
  uint64_t *slot;          /* per parameter: offset in its bucket */
  tws_bucket_room room;    /* of all parameters, once a bucket is reduced */
  uint32_t flushed[2];     /* 1 + the last operations of the last but one and the last bucket of a micro-batch; or 0 */
  uint32_t emptied[2];     /* their buffers */
  tws_bucket_turns turns;  /* zero_turns.c: of buckets in these buffers, by place; NULL: none has begun */
  uint32_t *turn_buffers;
  uint8_t *brought; /* per bucket: its sums are there, or on their way */
  tws_zero3_schedule schedule;
  tws_secondary secondary;
  tws_hops hops;
  uint32_t *codes, *code_scales; /* per parameter that is being gathered in few bits: of all ranks, or TWS_NONE */
} tws_zero;

static inline const tws_zero_class *tws_zero_class_of(const tws_zero *z, uint32_t param) {
  return &z->classes[z->class_of[param]];
}
/* Where in the stored range of a class begins what this rank updates. */
static inline uint64_t tws_zero_kept_first(const tws_zero *z, const tws_zero_class *c) {
  return c->stored + (z->stage == 1 || z->stage == 2 ? c->partition * (uint64_t)c->index : 0);
}

/* A range of what a rank updates that is brought from the disk for its update, by kind: masters, then states. */
typedef struct tws_staged {
  uint64_t first, count; /* elements */
  uint32_t buffer[1 + TWS_OPTIMIZER_STATES];
  uint32_t weights; /* that go to the disk when they are updated, or TWS_NONE */
} tws_staged;

/* What is fetched from the disk at once: elements of a rank's parameters, in whole blocks. */
typedef struct tws_fetch_block {
  uint64_t first, count;
} tws_fetch_block;
typedef enum tws_fetch_time { TWS_FETCH_STEP, TWS_FETCH_MICRO_BATCH, TWS_FETCH_TIMES } tws_fetch_time;
typedef struct tws_fetch_list {
  tws_fetch_block *blocks; /* in the order in which they are used */
  uint32_t count;
} tws_fetch_list;

/* Parameters on their way from the disk: blocks are read ahead of their use, into buffers that take turns. */
typedef struct tws_fetches {
  tws_fetch_list lists[TWS_FETCH_TIMES], *list; /* list: that is being gone through */
  uint32_t used, read;                          /* blocks of it: the one at hand, and how many have been read */
  uint32_t *slots;                              /* buffers */
  uint32_t slot_count;
  uint64_t slot_elements;
} tws_fetches;

/* Updated weights that wait for the end of the step. */
typedef struct tws_held {
  tws_operand from, to;
  struct tws_held *next;
} tws_held;

/* An update that is one step late: what the step before left for it. */
typedef struct tws_delayed {
  int on;
  uint32_t gradients, hyper, metrics; /* buffers of the state */
  tws_held *first, **last;
} tws_delayed;

/* A piece of a matrix that this rank updates, and columns of it that the device does (plan/zenflow.c). A vector is a
 * matrix of one column, which is always chosen. */
typedef struct tws_columns_piece {
  uint32_t param;
  uint32_t zero_class;
  int64_t columns, chosen;       /* of the whole matrix: all, and those that are chosen */
  int64_t rows, first, count;    /* rows that it is in; column of its first element; elements: 0 none here */
  uint64_t at, kept;             /* the first: in the flat order, and among what the rank updates */
  uint64_t list, norms, compact; /* its part of lists of columns, of norms, of what the device keeps */
} tws_columns_piece;

/* Columns that the device updates. */
typedef struct tws_columns {
  int on;
  tws_columns_piece *pieces; /* one for each trained parameter that has chosen columns, class by class */
  uint32_t count;
  uint64_t listed, normed, compact_elements;
  uint32_t chosen, held;                      /* lists of the state: what is chosen, and what the device has now */
  uint32_t accumulated;                       /* gradients that wait for the host */
  uint32_t compact[1 + TWS_OPTIMIZER_STATES]; /* masters and states of what the device has; TWS_NONE: nothing here */
} tws_columns;

/* What the step works with, and where. */
typedef struct tws_offload {
  int optimizer;                             /* the host does the step */
  int early;                                 /* gradients leave the device while backward runs */
  tws_tier tier;                             /* of what is offloaded, */
  tws_tier state_tier;                       /* but masters and the optimizer's states */
  uint64_t cut;                              /* elements that the rank updates before it stay on the device (ratio) */
  uint32_t behind[1 + TWS_OPTIMIZER_STATES]; /* buffers of masters and states from there on; TWS_NONE: cut is 0 */
  uint32_t gradients, hyper, metrics;        /* that the step reads */
  uint32_t arrived[2], arrivals;             /* buffers of the host that gradients come to in turn; how many did */
  tws_operand from, to;                      /* updated weights that wait to be copied; to.count 0: none */
  const tws_staged *staged;                  /* of the disk, what the update at hand works on */
  tws_tier param_tier;                       /* of parameters between uses; the device's: they are not offloaded */
  tws_tier param_host;                       /* of what of them is in the host's memory, and on its way */
  uint64_t param_cut;  /* elements of a rank before it are in the host's memory, behind it on the disk */
  uint32_t param_disk; /* buffer of these, or TWS_NONE */
  tws_fetches fetches;
  tws_delayed delayed;
} tws_offload;

/* Activation checkpoints that wait elsewhere for backward, by value. */
typedef struct tws_checkpoints {
  int on, parts;              /* parts: tensor-parallel ranks that share one out */
  tws_tier tier;              /* where they wait */
  uint32_t *last, *first;     /* visit of a chunk that uses the value last forward, first backward; TWS_NONE: none */
  const struct tws_chunk *of; /* that these are of */
} tws_checkpoints;

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
  tws_operand operands[5];
  int count;
  uint32_t module;
} tws_deferred;

/* A value in 8 bits, as it lies and transposed: buffers, TWS_NONE where there is none. */
typedef struct tws_codes {
  uint32_t amax, scale, rows, columns;
  int recomputed; /* made in the backward pass: what enters its products again */
} tws_codes;

/* Of a checkpoint. COMING: what waited on the host is on its way back, and of what was shared out the rest is to come.
 */
typedef enum tws_away { TWS_NOT_AWAY, TWS_AWAY, TWS_COMING } tws_away;

/* One micro-batch inside one chunk, from its first operation to its last. */
typedef struct tws_context {
  uint32_t *value_buffer;   /* current instance of each value, TWS_NONE when not there */
  uint32_t *value_gradient; /* likewise of its gradient */
  uint32_t *value_narrow;   /* likewise of its copy in 8 bits, which backward reads in its place */
  tws_codes *codes;         /* per value; NULL: no products in 8 bits */
  uint8_t *away;            /* tws_away of the instance */
  tws_deferred *deferred;
  size_t deferred_capacity;
  uint32_t deferred_count;
  uint32_t part[2]; /* received part of what enters (0: value, 1: gradient) and is not gathered yet, or TWS_NONE */
  uint32_t events;  /* that still refer to it */
  struct tws_context *next; /* in the list of free ones */
} tws_context;

/* ---- the parts of the lowering ----
 * Each belongs to the pass that is named with it in tws_lower below: only that pass's files change it, and all others
 * read it (the suite `owners` looks for changes by others). */

/* What of the job is lowered. */
typedef struct tws_lower_extent {
  int evaluates;        /* forward passes alone */
  int parameters_only;  /* over a state that no training uses */
  int64_t tokens;       /* of one micro-batch on this rank */
  int64_t accumulation; /* micro-batches lowered */
} tws_lower_extent;

/* Which streams operations go to, and in how many parts. */
typedef struct tws_lower_streams {
  int overlap; /* overlap_comm, off in a pipeline */
  tws_stream gather, reduce, exchange;
  int exchanges_overlap; /* of tensor ranks, or round a ring of sequence ranks: what computes continues meanwhile */
  int slices;            /* in which split layers and their exchanges are issued, to overlap */
} tws_lower_streams;

/* Large weights in tiles. */
typedef struct tws_tiling {
  tws_weight_tiles *weights; /* per parameter of the whole network; NULL: all weights are whole */
  uint32_t *weight_of;       /* per tile: its weight */
} tws_tiling;

/* The visit that is lowered. */
typedef struct tws_visit_place {
  int tile, tiles;
  uint32_t weight_tile;
  const tws_module *fused_with; /* the module whose work its kernel does too, or NULL */
  const tws_module *sums_for;   /* the layer whose bias' gradient its kernel may sum up, or NULL */
} tws_visit_place;

/* Values of a micro-batch on this rank, per value. */
typedef struct tws_values {
  uint64_t *rows;                       /* before its placement */
  int64_t *whole_sequence;              /* length of the whole sequences that it is made of */
  uint8_t *adds;                        /* whether tiles add to the gradient that was there before the first of them */
  uint32_t *buffer, *gradient, *narrow; /* those of the context that is lowered (tws_context) */
} tws_values;

/* Products of layers in 8 bits. */
typedef struct tws_lower_float8 {
  int on;
  uint8_t *again; /* then, per module: whether backward runs it again */
} tws_lower_float8;

/* Values whose gradient may be another value's too. */
typedef struct tws_shared_gradients {
  uint32_t *values; /* as many as there are */
  uint32_t count;
  uint8_t *adds; /* per module: of ADD, whether its inputs' gradients can be one */
} tws_shared_gradients;

/* The stage of the pipeline, and where in it the lowering is. */
typedef struct tws_lower_pipeline {
  tws_pipeline_shape shape;
  int stage;
  tws_chunk *chunks; /* of this stage */
  int chunk_count;
  tws_chunk *chunk;     /* being lowered */
  tws_context *context; /* likewise */
  tws_context *free_contexts;
  int split;             /* weight gradients are deferred */
  uint8_t *param_stages; /* per parameter: 1 an earlier stage has it too, 2 a later one */
} tws_lower_pipeline;

/* Behind each part its owner, or owners. */
typedef struct tws_lower {
  const tws_plan_request *request;                 /* build.c */
  const tws_config *config;                        /* build.c */
  const tws_network *network;                      /* build.c, weight_tiles.c: the local one */
  tws_sharding sharding;                           /* build.c */
  tws_local local;                                 /* build.c, weight_tiles.c */
  tws_lower_extent extent;                         /* build.c */
  tws_lower_streams streams;                       /* build.c */
  tws_module_memory memory[TWS_MODULE_TYPE_COUNT]; /* build.c: of each type, what its rows say */
  uint32_t
      group[TWS_AXIS_COUNT];   /* build.c, pipeline.c: the communicator along an axis, TWS_NONE where there is none */
  tws_tiling tiling;           /* weight_tiles.c */
  tws_values values;           /* values.c */
  uint8_t *needed;             /* frozen.c: per value, whether its gradient is, for a parameter that is trained */
  uint8_t *kept;               /* recompute.c: per value, tws_kept */
  uint8_t *tiled;              /* visits.c: values that exist one tile at a time */
  tws_visit_place at;          /* modules.c */
  uint32_t summed;             /* module_kernel.c, backward.c: the bias whose gradient a kernel before the one at hand
                                   * has summed up, or TWS_NONE */
  tws_shared_gradients shared; /* backward.c */
  tws_lower_float8 float8;     /* float8.c */
  tws_lower_pipeline pipeline; /* pipeline.c */
  tws_checkpoints checkpoints; /* checkpoints.c */
  tws_zero zero;               /* zero.c, zero3_gathers.c, zero_buckets.c, zero_classes.c, zero_codes.c, zero_groups.c,
                                   * zero_hops.c, zero_secondary.c, zero_turns.c */
  tws_offload offload;         /* offload.c, fetch.c, delayed.c */
  tws_columns columns;         /* zenflow.c */
  tws_arena *scratch;          /* build.c: memory that lives as long as the lowering, for all */
  tws_builder b;               /* all passes emit through it, and say phase, module and micro-batch of what they do */
} tws_lower;

/* recompute.c: l->kept, of values that exist whole */
tws_code tws_recompute_begin(tws_lower *l);
void tws_recompute_decide(tws_lower *l);
/* The first module of what is made again as one, a layer or an MLP, and ends in `last`; TWS_NONE: nothing does. */
uint32_t tws_recompute_block(const tws_lower *l, uint32_t last);
/* visits.c */
tws_code tws_lower_visits(tws_lower *l, tws_chunk *chunk);
/* weight_tiles.c: twinspeed.linear_tile_size, of the local network. */
tws_code tws_weight_tiles_begin(tws_lower *l);
/* Of a parameter of which nothing but its tiles is there how many these are; else 0. */
static inline uint32_t tws_weight_tile_count(const tws_lower *l, uint32_t param) {
  return l->tiling.weights && param < l->b.plan->network->param_count ? l->tiling.weights[param].count : 0;
}
static inline int tws_is_weight_tile(const tws_lower *l, uint32_t param) {
  return param >= l->b.plan->network->param_count;
}
/* In how many visits a module is done: one for each tile of its weight. */
static inline uint32_t tws_module_weight_tiles(const tws_lower *l, uint32_t module) {
  const uint32_t weight = module == TWS_NONE ? TWS_NONE : l->network->modules[module].param[0];
  const uint32_t count = weight == TWS_NONE ? 0 : tws_weight_tile_count(l, weight);
  return count > 0 ? count : 1;
}
/* The parameter of the whole network that one is, or is a tile of, and its first element there. */
uint32_t tws_weight_tile_origin(const tws_lower *l, uint32_t param, uint64_t *first);
/* The parameter that a visit works on of those that its module names: a tile of it, or itself. */
uint32_t tws_visit_param(const tws_lower *l, uint32_t param, uint32_t weight_tile);
/* Outputs of a linear layer that the visit at hand computes; whether it is the first, or the last, of its layer. */
typedef struct tws_outputs {
  int64_t first, count;
} tws_outputs;
tws_outputs tws_visit_outputs(const tws_lower *l, const tws_module *m);
/* Theirs of a vector that has an element for each. */
static inline tws_operand tws_outputs_of(tws_operand vector, tws_outputs outputs) {
  vector.offset += (uint64_t)outputs.first;
  vector.count = (uint64_t)outputs.count;
  return vector;
}
int tws_is_first_weight_tile(const tws_lower *l, const tws_module *m);
int tws_is_last_weight_tile(const tws_lower *l, const tws_module *m);
/* What of the layer's outputs the visit makes, and puts in its place among all; what of their gradient it reads. */
tws_operand tws_outputs_make(tws_lower *l, const tws_module *m);
void tws_outputs_put(tws_lower *l, const tws_module *m, tws_operand outputs);
tws_operand tws_outputs_gradient(tws_lower *l, const tws_module *m);
/* frozen.c: which gradients of values somebody needs, and whether a module goes backward. */
tws_code tws_frozen_begin(tws_lower *l);
int tws_module_goes_backward(const tws_lower *l, const tws_module *m);
static inline int tws_is_frozen(const tws_lower *l, uint32_t param) {
  return l->network->params[param].frozen != 0;
}
/* quantized.c: parameters of few bits. TWS_INVALID: blocks that are no part of a row, or groups of them that a rank has
 * a part of, with the nearest that are not. */
int tws_is_quantized(const tws_lower *l, uint32_t param);
tws_code tws_quantized_begin(tws_lower *l);
/* The state's entries, for `elements` of them that are stored from `first` on; nothing where there are none. */
void tws_quantized_state(tws_lower *l, uint64_t first, uint64_t elements);
/* The whole parameter in the configuration's type, made for what comes next. */
tws_operand tws_dequantized(tws_lower *l, uint32_t param);
/* float8.c: products of layers in 8 bits. TWS_INVALID where none can be. */
int tws_float8_is_planned(const tws_config *config); /* else casts are assumed beside products, or there are none */
tws_code tws_float8_begin(tws_lower *l);
void tws_float8_visits(tws_lower *l, const tws_visit_list *visits); /* of a chunk */
int tws_is_float8(const tws_lower *l, const tws_module *m);
/* Casts for the visit at hand: what there is of both layouts, and the scale. */
typedef struct tws_float8 {
  tws_operand rows, columns, scale;
} tws_float8;
tws_float8 tws_float8_input(tws_lower *l, const tws_module *m);
tws_float8 tws_float8_weight(tws_lower *l, const tws_module *m);
tws_float8 tws_float8_gradient(tws_lower *l, const tws_module *m, tws_operand dy);
/* Where a kernel writes a gradient that is nobody's. */
tws_operand tws_unwanted_gradient(tws_lower *l, uint32_t param);
/* pipeline.c */
tws_code tws_pipeline_begin(tws_lower *l);
void tws_pipeline_run(tws_lower *l); /* all micro-batches of this stage, and gradients that stages share */
/* lower.c */
/* Scratch memory, zero, with one element to spare; NULL: the builder failed. */
void *tws_lower_memory(tws_lower *l, size_t count, size_t bytes);
/* The communicator of the ranks along a set of axes; or of some of these ranks. */
uint32_t tws_lower_group(tws_lower *l, tws_axes axes);
uint32_t tws_lower_add_group(tws_lower *l, tws_axes axes, const int *members, int count);

/* values.c: whole values, or the visit's tile of them */
tws_code tws_values_begin(tws_lower *l);
/* Values are those of that context from here on. */
void tws_values_enter(tws_lower *l, const tws_context *context);
/* The buffer that a value, its gradient or its copy in 8 bits is in from here on; TWS_NONE: it is not there. */
void tws_value_place(tws_lower *l, uint32_t value, uint32_t buffer);
void tws_value_place_gradient(tws_lower *l, uint32_t value, uint32_t buffer);
void tws_value_place_narrow(tws_lower *l, uint32_t value, uint32_t buffer);
static inline uint64_t tws_value_rows(const tws_lower *l, uint32_t value) {
  return l->values.rows[value];
}
uint64_t tws_value_elements(const tws_lower *l, uint32_t value);
/* Of an input of the network: a micro-batch of it on this rank. */
uint64_t tws_input_rows(const tws_lower *l, uint32_t input);
uint64_t tws_input_elements(const tws_lower *l, uint32_t input);
tws_dtype tws_input_dtype(const tws_lower *l, uint32_t input);
tws_dtype tws_value_dtype(const tws_lower *l, uint32_t value);
tws_operand tws_input_read(tws_lower *l, uint32_t input);
tws_operand tws_value_read(tws_lower *l, uint32_t value);
tws_operand tws_value_make(tws_lower *l, uint32_t value);
/* the output takes the buffer of an input that nobody reads again */
tws_operand tws_value_take(tws_lower *l, uint32_t input, uint32_t output, uint32_t access);
tws_operand tws_value_gradient(tws_lower *l, uint32_t value);
/* Where the gradient of an input is written, or added to when another consumer of the value has been there. */
tws_operand tws_value_gradient_out(tws_lower *l, uint32_t value, int *accumulate);
/* Whether the gradient in `value` is also that of a value whose producer comes before module `before`: it is still to
 * be read as that. */
int tws_gradient_is_shared(const tws_lower *l, uint32_t value, uint32_t before);
/* Adds what was made beside it to the gradient of a value. */
void tws_lower_add_gradient(tws_lower *l, uint32_t value, tws_operand part);
/* What was made for another value is the gradient of this one too, in its own memory. */
void tws_lower_pass_gradient(tws_lower *l, uint32_t value, tws_operand from);
tws_operand tws_lower_scratch(tws_lower *l, const char *name, tws_dtype dtype, uint64_t elements);
tws_operand tws_lower_workspace(tws_lower *l, const tws_work *work);
void tws_lower_compute(tws_lower *l, const tws_work *work, const tws_operand *operands, int count);
/* sum += part, in the configuration's type; and zeros. */
void tws_lower_accumulate(tws_lower *l, tws_operand part, tws_operand sum);
void tws_lower_clear(tws_lower *l, tws_operand target, tws_dtype dtype);
void tws_lower_compute_with(tws_lower *l, const tws_work *work, const tws_arguments *arguments,
                            const tws_operand *operands, int count);
/* hazards inside a buffer are tracked slice by slice */
void tws_lower_slice(tws_lower *l, uint32_t buffer);
/* slice `i` of l->streams.slices of an operand */
tws_operand tws_operand_slice(const tws_lower *l, tws_operand operand, int i);

/* modules.c */
/* Operations from here on are of that visit. */
static inline void tws_lower_at_visit(tws_lower *l, const tws_visit *visit) {
  l->b.phase = (tws_phase)visit->phase;
  l->b.module = visit->module == TWS_NONE ? TWS_NONE : l->local.modules[visit->module].origin;
}
void tws_lower_visit(tws_lower *l, const tws_visit *visit);
/* module_kernel.c */
/* One kernel of a module's row, operand by operand. */
void tws_lower_kernel(tws_lower *l, const tws_module *m, const tws_module_kernel *kernel);
/* Where the visit's kernel, whose operands these are, can sum up the gradient of a bias (l->at.sums_for): that is one
 * more of them. Returns how many there are. */
int tws_lower_sums(tws_lower *l, tws_work *work, tws_operand *operands, int count);
/* module_work.c */
/* Rows of a visit: those of what the module reads. */
int64_t tws_module_rows(const tws_lower *l, const tws_module *m);
tws_work tws_module_work(const tws_lower *l, const tws_module *m, tws_kernel kernel, uint32_t flags);
/* The first of a sequence that this rank has. */
int64_t tws_first_token(const tws_lower *l);
/* Tokens of others between the halves of what this rank has of a sequence; 0: none. */
int64_t tws_token_gap(const tws_lower *l);
/* Rows of the table of positions that this rank's tokens are at, and those between them. */
void tws_position_rows(const tws_lower *l, const tws_module *m, int64_t *first, int64_t *rows);
/* Half precision: the kernel gets the loss scale as one more operand; returns how many there are now. */
int tws_lower_scaled(tws_lower *l, tws_work *work, tws_operand *operands, int count);
const tws_local_module *tws_local_of(const tws_lower *l, const tws_module *m);
/* whether products of a split layer are issued in slices */
int tws_lower_sliced(const tws_lower *l, const tws_module *m);
/* Whether backward reads what enters a layer as its product has it, in 8 bits (twinspeed.matmul_dtype; numbers of 4
 * bits and their scales take a byte here, too), and not as the layer before left it. Of values that are kept whole;
 * what is made again is made again in 16 bits. */
int tws_lower_narrow(const tws_lower *l, const tws_module *m);
/* What a row of a loss counts of the mean over the global batch, of which micro-batches and ranks add their parts. */
double tws_loss_weight(const tws_lower *l, const tws_module *m);
/* backward.c */
tws_code tws_backward_begin(tws_lower *l);
void tws_backward_micro_begin(tws_lower *l); /* of a micro-batch: no gradient is shared yet */
void tws_lower_backward(tws_lower *l, const tws_module *m);
/* ring_attention.c: ATTENTION where l->sharding.ring */
void tws_ring_forward(tws_lower *l, const tws_module *m);
void tws_ring_backward(tws_lower *l, const tws_module *m);
/* expert_sizes.c: tokens of a rank that a layer of experts routes, an expert's slots for them, and those that they fill
 * on average */
tws_dim tws_lower_dim(const tws_lower *l, tws_dim dim); /* slots and targets whose number the configuration says */
int64_t tws_expert_sources(const tws_lower *l, const tws_module *m); /* ranks whose slots a product works on */
int64_t tws_expert_tokens(const tws_lower *l, const tws_module *m);
int64_t tws_expert_slots(const tws_lower *l, const tws_module *m);
int64_t tws_expert_expected(const tws_lower *l, const tws_module *m);
/* Experts that share their slots: all of a rank; 0 where each has its own. */
int64_t tws_expert_shared(const tws_lower *l, const tws_module *m);
/* Routers of a network among the modules below `before`, and their experts together. */
uint32_t tws_routers(const tws_network *network, uint32_t before, uint64_t *experts);
/* twinspeed.expert_load: TWS_INVALID where it says nothing, or not as much as a layer has experts. */
tws_code tws_expert_load_check(const tws_network *network, const char *load, tws_error *err);
/* moe.c */
/* At the end of a step: twinspeed.expert_bias_rate, TWS_UNSUPPORTED where no router has biases. */
void tws_router_balance(tws_lower *l);
tws_code tws_expert_bias_check(const tws_network *network, tws_error *err);
void tws_router_forward(tws_lower *l, const tws_module *m);
void tws_router_backward(tws_lower *l, const tws_module *m);
/* exchange.c */
void tws_exchange_forward(tws_lower *l, const tws_module *m);
void tws_exchange_backward(tws_lower *l, const tws_module *m);
/* gathers `operand` of every tensor-parallel rank, in order */
tws_operand tws_exchange_gather(tws_lower *l, tws_operand operand, const char *name);
void tws_exchange_gather_into(tws_lower *l, tws_stream stream, tws_operand operand, tws_operand all);
/* gradients of copies that saw a part of the tokens only are added up, those of them that this rank keeps */
void tws_exchange_partial_gradients(tws_lower *l);
/* zero.c */
/* The ranks along these axes see different samples or tokens: before all else, as the first communicator is theirs. */
void tws_zero_choose_ranks(tws_lower *l, tws_axes replicas);
tws_code tws_zero_begin(tws_lower *l);
void tws_zero_step_begin(tws_lower *l);
void tws_zero_micro_begin(tws_lower *l);
void tws_zero_turns_pass(tws_lower *l, int backward); /* of a micro-batch; the forward pass: behind that */
void tws_zero_before(tws_lower *l, uint32_t visit);
void tws_zero_after(tws_lower *l, uint32_t visit);
void tws_zero_micro_end(tws_lower *l);
tws_operand tws_zero_param(tws_lower *l, uint32_t param);
/* Where a gradient contribution is written; *accumulate says whether to add. Calls come in order of contribution. */
tws_operand tws_zero_gradient(tws_lower *l, uint32_t param, int *accumulate);
/* Whether it would say so, which changes nothing. */
int tws_zero_adds(const tws_lower *l, uint32_t param);
void tws_zero_contributed(tws_lower *l, uint32_t param);
/* Runs of parameters of a class, in the order in which they lie in the flat buffers, for which `kind_of` is equal:
 * calls `run` with the part of each that this rank keeps: `first`, `count` in the gradient buffer. */
typedef int (*tws_zero_kind)(const tws_lower *l, uint32_t param);
typedef void (*tws_zero_run)(tws_lower *l, int kind, uint64_t first, uint64_t count);
void tws_zero_kept_runs(tws_lower *l, tws_zero_kind kind_of, tws_zero_run run);
/* running.c */
tws_code tws_running_begin(tws_lower *l);
tws_operand tws_running_operand(const tws_lower *l, const tws_module *m, uint32_t access);
double tws_running_share(const tws_lower *l); /* what an update of this micro-batch multiplies them by */
void tws_running_average(tws_lower *l);       /* at the end of a step, over ranks that saw different samples */
/* dropout.c: of the step, the number of this micro-batch's first sample; constants of a kernel that drops numbers */
int64_t tws_first_sample(const tws_lower *l);
int tws_dropout_arguments(tws_lower *l, const tws_module *m, tws_kernel kernel, tws_arguments *arguments);
/* optimizer.c */
void tws_lower_step(tws_lower *l);
/* The kernel that updates so many elements, with its parameters. */
tws_work tws_lower_update_work(const tws_lower *l, tws_dtype gradients, uint64_t count);
void tws_lower_gather_parameters(tws_lower *l); /* stages 1 and 2: what ranks have updated */
/* Of what this rank keeps, by the gradients and scalars that the offload pass names. */
void tws_lower_update(tws_lower *l);
/* All of TWS_PROGRAM_APPLY. */
void tws_lower_apply(tws_lower *l);
/* Before the first micro-batch of a network with several losses: the share of each one's targets that is ignored. */
void tws_lower_count_targets(tws_lower *l);
void tws_lower_score(tws_lower *l); /* the end of an evaluation: the loss of all ranks */

static inline tws_work tws_kernel_work(tws_kernel kernel, tws_dtype dtype, uint32_t flags) {
  tws_work work = {.kind = TWS_OP_COMPUTE,
                   .code = (uint8_t)kernel,
                   .dtype = (uint8_t)dtype,
                   .dtype2 = (uint8_t)dtype,
                   .flags = flags};
  return work;
}

#endif
