/* The plan: the complete, static list of what one rank does in one training step (one train_batch), or in another
 * program over the same state (plan/state.h), such as an evaluation.
 *
 * A network, a configuration and a rank's place in the topology are lowered to operations on named buffers. Passes emit
 * operations in issue order, each on a stream, with the ranges of the buffers they read and write. tws_plan_build()
 * then derives what follows from that: lifetimes, offsets in one arena per memory tier, and the dependencies between
 * streams (true, anti- and output dependencies, and reuse of memory). Within a stream, order is the dependency.
 * Readers: estimators/ (bytes, longest path), sim/ (SimGrid), real/ (kernels, communication). */
#ifndef TWS_PLAN_PLAN_H
#define TWS_PLAN_PLAN_H

#include <stdint.h>
#include "base/memory.h"
#include "base/status.h"
#include "config/ds_config.h"
#include "models/kernel.h"
#include "models/network/network.h"
#include "plan/state.h"
#include "plan/topology.h"

#define TWS_OP_KINDS(X) \
  X(COMPUTE, "compute") X(COLLECTIVE, "collective") X(SEND, "send") X(RECV, "recv") X(COPY, "copy") X(HOST, "host")
typedef enum tws_op_kind {
#define X(name, text) TWS_OP_##name,
  TWS_OP_KINDS(X)
#undef X
      TWS_OP_KIND_COUNT
} tws_op_kind;

#define TWS_STREAMS(X)  \
  X(COMPUTE, "compute") \
  X(GATHER, "gather")   \
  X(REDUCE, "reduce")   \
  X(EXCHANGE, "exchange") X(P2P, "p2p") X(COPY_IN, "copy-in") X(COPY_OUT, "copy-out") X(DISK, "disk") X(HOST, "host")
typedef enum tws_stream {
#define X(name, text) TWS_STREAM_##name,
  TWS_STREAMS(X)
#undef X
      TWS_STREAM_COUNT /* at most 16 */
} tws_stream;

/* Where an operation runs: kernels and copy engines of the device, the host's cores, the disk. */
#define TWS_PLACES(X) X(DEVICE, "device") X(HOST, "host") X(DISK, "disk")
typedef enum tws_place {
#define X(name, text) TWS_PLACE_##name,
  TWS_PLACES(X)
#undef X
      TWS_PLACE_COUNT
} tws_place;

/* What serialises operations besides their stream: those of one channel run one after another in issue order.
 *
 * A collective's kernel waits on its multiprocessors for the other ranks. Two of them that ranks start in different
 * orders can wait for each other, so communicators share channels, and channels run side by side: "data" and "tied"
 * groups are on REPLICAS, "model" and "sequence" (between the products of a layer, in the way of everything) on LAYERS,
 * "pipe" and messages (which wait for another stage) on STAGES. Copies between tiers are on the engine of their
 * direction, what touches a disk is in its queue. tws_plan_build() turns the order of a channel into dependencies. */
#define TWS_CHANNELS(X)   \
  X(NONE, "none")         \
  X(REPLICAS, "replicas") \
  X(LAYERS, "layers") X(STAGES, "stages") X(COPY_IN, "copy-in") X(COPY_OUT, "copy-out") X(DISK, "disk")
typedef enum tws_channel {
#define X(name, text) TWS_CHANNEL_##name,
  TWS_CHANNELS(X)
#undef X
      TWS_CHANNEL_COUNT
} tws_channel;

#define TWS_PHASES(X) X(FORWARD, "forward") X(BACKWARD, "backward") X(RECOMPUTE, "recompute") X(STEP, "step")
typedef enum tws_phase {
#define X(name, text) TWS_PHASE_##name,
  TWS_PHASES(X)
#undef X
      TWS_PHASE_COUNT
} tws_phase;

#define TWS_CATEGORIES(X)                        \
  X(PARAMETER, "parameters")                     \
  X(GATHERED, "gathered parameters")             \
  X(GRADIENT, "gradients")                       \
  X(MASTER, "master weights")                    \
  X(MOMENT, "optimizer moments")                 \
  X(ACTIVATION, "activations")                   \
  X(CHECKPOINT, "activation checkpoints")        \
  X(ACTIVATION_GRADIENT, "activation gradients") \
  X(BUCKET, "communication buckets") X(WORKSPACE, "workspace") X(INPUT, "inputs and scalars")
typedef enum tws_category {
#define X(name, text) TWS_CATEGORY_##name,
  TWS_CATEGORIES(X)
#undef X
      TWS_CATEGORY_COUNT
} tws_category;

const char *tws_op_kind_name(tws_op_kind kind);
const char *tws_stream_name(tws_stream stream);
const char *tws_place_name(tws_place place);
const char *tws_channel_name(tws_channel channel);
const char *tws_phase_name(tws_phase phase);
const char *tws_category_name(tws_category category);

/* Flags of a collective's work: parts of unequal size; segments of several types, of which `dtype` is the first's. */
enum { TWS_UNEVEN = 1, TWS_MIXED = 2 };
enum { TWS_READ = 1, TWS_WRITE = 2, TWS_READ_WRITE = 3 };
/* Bytes: of every buffer in an arena; on the disk, and in the host's memory of what comes from there and goes there. */
enum { TWS_ALIGNMENT = 256, TWS_DISK_ALIGNMENT = 4096 };

/* How long a buffer lives, and so in which arena of its tier it lies. */
typedef enum tws_lifetime {
  TWS_LIFETIME_OPS,     /* from its first operation to its last */
  TWS_LIFETIME_PROGRAM, /* the whole program: what the host writes before it and reads after it */
  TWS_LIFETIME_STATE    /* an entry of the state, in the state's arena */
} tws_lifetime;

typedef struct tws_buffer {
  const char *name;
  uint8_t tier, dtype, category;
  uint8_t lifetime;           /* tws_lifetime */
  uint32_t first_op, last_op; /* in issue order; TWS_NONE: never used */
  uint16_t streams;           /* whose operations use it: a bit each */
  uint64_t elements, bytes;   /* bytes = elements x size, not padded */
  uint64_t offset;            /* in its arena, a multiple of TWS_ALIGNMENT */
} tws_buffer;
/* Arenas of a rank: for each tier the programs', then for each tier the state's. */
enum { TWS_ARENA_COUNT = 2 * TWS_TIER_COUNT };
static inline int tws_buffer_arena(const tws_buffer *buffer) {
  return buffer->tier + (buffer->lifetime == TWS_LIFETIME_STATE ? TWS_TIER_COUNT : 0);
}

typedef struct tws_operand {
  uint32_t buffer;
  uint32_t access;        /* TWS_READ, TWS_WRITE or both */
  uint64_t offset, count; /* elements */
} tws_operand;

typedef struct tws_op {
  uint8_t kind, stream, phase;
  uint8_t place, channel;
  uint8_t awaited; /* an operation of another stream depends on it */
  uint16_t pad_;
  uint32_t work;   /* index into works: kernel or collective, shape, types */
  uint32_t module; /* network module, or TWS_NONE */
  uint32_t micro_batch; /* of the pass that it is part of or follows; accumulation_steps: of none, once a step */
  uint32_t operand_first, dep_first;
  uint16_t operand_count, dep_count;
  uint32_t peer;      /* SEND, RECV: rank; REDUCE, BROADCAST: root's index in its group */
  uint32_t arguments; /* COMPUTE: 1 + index into the plan's arguments, 0: none */
  uint32_t match; /* COLLECTIVE: number among those of its group; SEND, RECV: among the messages from that rank to the
                     other. Operations of different ranks with equal group (or pair) and number meet. Else 0 */
} tws_op;
/* Collective operands: for each coalesced segment the sent range, then the received range. They are one READ_WRITE
 * operand per segment when in place (all-reduce, reduce, broadcast). all_gather may gather in place: the sent range is
 * then the rank's own part of the received range. reduce_scatter receives into a range of its own. An all_to_all with
 * the flag TWS_UNEVEN has a third operand, int32 [2][size]: how many elements of its slot are sent to each member and
 * received from each. They are known only when it runs: the ranges are what there can be at most, d[0] what is
 * expected. reduction is a sum. COPY operands: source (R), destination (W). */

typedef struct tws_group {
  tws_axes axes;    /* along which its ranks differ */
  int size, index;  /* this rank's index in ranks */
  const int *ranks; /* global ranks, in order */
} tws_group;
/* The channel of the communicators along these axes: that of the first. */
tws_channel tws_channel_of_axes(tws_axes axes);

/* The part of a network's parameter that a rank works with when tensor parallelism splits it: up to three blocks of
 * rows (query, key and value of a fused projection), one below the other, and of these a range of columns. Vectors are
 * one column of rows here. A parameter of the rank is such a part, counted from 0. Experts lie one below the other: the
 * same blocks of each of them are `repeats` times those of the first, each `step` rows of the whole further. */
typedef struct tws_param_slice {
  int64_t first_row[3], rows[3]; /* rows 0: no more blocks */
  int64_t first_column, columns, whole_columns;
  int64_t repeats, step; /* repeats 0 or 1: once; else blocks lie between the same two multiples of step */
} tws_param_slice;
static inline int64_t tws_param_slice_rows(const tws_param_slice *slice) {
  return (slice->rows[0] + slice->rows[1] + slice->rows[2]) * (slice->repeats > 1 ? slice->repeats : 1);
}
/* Where element `index` of the part lies in the whole parameter; *run: how many follow it there without a gap. */
uint64_t tws_param_slice_whole(const tws_param_slice *slice, uint64_t index, uint64_t *run);

/* What a plan does with the state of a rank. */
#define TWS_PROGRAMS(X) X(TRAIN, "train") X(EVALUATE, "evaluate") X(APPLY, "apply") X(SELECT, "select") X(SYNC, "sync")
typedef enum tws_program {
#define X(name, text) TWS_PROGRAM_##name,
  TWS_PROGRAMS(X)
#undef X
      TWS_PROGRAM_COUNT
} tws_program;
const char *tws_program_name(tws_program program);
/* APPLY does what training steps leave to the host: to the next step (plan/delayed.c), or to every few steps
 * (plan/zenflow.c). SELECT is the same and chooses columns anew; SYNC brings the host's states up to what the device
 * has updated, and the device's to what is chosen. */
static inline int tws_plan_has_program(const tws_config *config, tws_program program) {
  if (program == TWS_PROGRAM_TRAIN || program == TWS_PROGRAM_EVALUATE) return 1;
  return config->zenflow.on || (config->delayed_update && program == TWS_PROGRAM_APPLY);
}
/* Whether a training runs a program between its steps, however rarely. */
static inline int tws_program_runs_between(const tws_config *config, tws_program program) {
  return config->zenflow.on && program > TWS_PROGRAM_EVALUATE;
}
/* How often a program runs for each training step, on average over a long training: 0 of EVALUATE and SYNC. */
double tws_program_share(const tws_config *config, tws_program program);

/* Parameters of which the state has codes and scales (models/quantized.h): those stored from element `first` on. */
enum { TWS_QUANTIZED_PARTS = 3 };
typedef struct tws_quantized {
  uint64_t first;         /* in terms of tws_shard.storage_offset; TWS_NO_OFFSET: there are none */
  uint32_t codes, scales; /* buffers: of element first + i the code and the scale of its block */
  uint32_t means;         /* of a group of blocks the mean of their scales, and the scale of what scales differ by;
                             TWS_NONE: scales are float32 */
  int bits;               /* of a code, 4 or 8; 0: there are none */
  int64_t block;          /* elements that share a scale */
  int64_t group;          /* blocks of a group; 0: scales are float32 */
} tws_quantized;
/* What `count` elements that are stored from `offset` on are kept as: codes, scales and means, as reads; how many. */
int tws_quantized_stored(const tws_quantized *q, uint64_t offset, uint64_t count, tws_operand out[TWS_QUANTIZED_PARTS]);
/* All offsets and counts of elements are multiples of it. */
static inline int64_t tws_quantized_unit(const tws_quantized *q) {
  return q->block * (q->group > 0 ? q->group : 1);
}

typedef struct tws_plan {
  tws_arena *arena;
  const tws_network *network; /* not owned: must outlive the plan */
  tws_topology topology;
  tws_program program;
  tws_state *state; /* not owned when it was given to tws_plan_build(): must outlive the plan */
  int owns_state;
  int rank, world;
  tws_position position; /* of the rank; sequence_length is that of whole sequences */
  int stage, stages;     /* of the pipeline: 0 of 1 without one */
  tws_zero_config zero;
  tws_dtype dtype;
  tws_matmul_dtype matmul_dtype; /* what costs assume of products that say nothing; engines have none but AUTO */
  int64_t micro_batch_size, sequence_length, accumulation_steps;
  int in_step;   /* ZeRO 2 and 3, overlapped or offloaded: in a micro-batch what gathers and reduces, or comes from the
                  host, waits for the computation that was issued before it; the next micro-batch and the step's end
                  begin when all is reduced, and on several ranks copied to the host; and no operation waits for memory,
                  so that times do not depend on the layout */
  uint32_t late; /* operations of the step's end before this one are those of the step before; 0: there are none */
  /* of a step that repeats (plan/fold.h): so many micro-batches show that its layout does, and after how many; 0: it
   * does not */
  uint32_t settled, period;
  tws_op *ops;
  tws_operand *operands;
  uint32_t *deps; /* op indices, always on other streams and earlier in issue order */
  tws_buffer *buffers;
  tws_work *works;
  tws_arguments *arguments; /* of operations, each once; kernels without any have none */
  tws_group *groups;
  const tws_param_slice *slices; /* per parameter of the network; NULL: this rank's parameters are whole */
  uint32_t op_count, operand_count, dep_count, buffer_count, work_count, argument_count, group_count;
  uint64_t arena_bytes[TWS_TIER_COUNT]; /* without the state: tws_plan_bytes() */
  /* well-known buffers; TWS_NONE where a plan has none */
  uint32_t parameters, master, gradients;
  uint32_t optimizer_state[TWS_OPTIMIZER_STATES]; /* by config/optimizers.def */
  int optimizer_states;
  uint32_t
      input[TWS_NETWORK_INPUTS]; /* as the network lists them: [accumulation][rows of a micro-batch on this rank] */
  tws_quantized quantized;
  uint32_t hyper, metrics;
  uint32_t running;              /* of the modules that this rank has, one after another; TWS_NONE without any */
  const uint64_t *running_first; /* per running statistics of the network: element there, or TWS_NO_OFFSET */
  tws_backend_kind backend;
  int threads;
} tws_plan;

/* Who reads a plan: what it leaves out for them. */
typedef enum tws_plan_use {
  TWS_PLAN_FOR_ALL,
  TWS_PLAN_FOR_TIMES, /* offsets and arena_bytes, where memory makes no stream wait */
  TWS_PLAN_FOR_MEMORY /* dependencies */
} tws_plan_use;

typedef struct tws_plan_request {
  const tws_network *network;
  const tws_config *config; /* resolved */
  tws_topology topology;
  int rank;
  tws_backend_kind backend; /* decides workspaces */
  int threads;              /* host */
  int64_t max_accumulation; /* build at most this many micro-batches (0: all) */
  tws_program program;
  tws_state *state;    /* of the rank, as another program's plan laid it out; NULL: the plan makes its own */
  int parameters_only; /* of an evaluation with a state of its own: no master weights and optimizer states in it */
  tws_plan_use use;
} tws_plan_request;

/* Operations that a plan may have, before kernels are joined or divided, and that all plans of a job may have which are
 * looked at together: more are refused before memory goes (2^23 operations take about 2.5 GiB). */
enum { TWS_PLAN_MOST_VISITS = 1 << 23 };
tws_code tws_plans_check_length(uint64_t operations, tws_error *err);

/* TWS_UNSUPPORTED / TWS_INVALID with the rule, the reason and the nearest legal configuration. */
/* The topology that a resolved configuration asks for on `ranks` ranks: axes in the order of config->axis_order, the
 * last varies fastest; all but "data" only where they have more than one rank.
 * TWS_INVALID when they do not divide the ranks. */
tws_code tws_plan_topology(const tws_config *config, int ranks, tws_topology *topology, tws_error *err);

tws_code tws_plan_build(const tws_plan_request *request, tws_plan **out, tws_error *err);
/* Its operations and buffers with their lifetimes, without offsets and dependencies: what is alive when, quicker. */
tws_code tws_plan_lower(const tws_plan_request *request, tws_plan **out, tws_error *err);
/* The same with the dependencies of operands, channels and barriers, but without offsets: no operation waits for memory
 * that another one still uses, so no step of it is longer than that of the whole plan. */
tws_code tws_plan_depend(const tws_plan_request *request, tws_plan **out, tws_error *err);
void tws_plan_destroy(tws_plan *plan);
static inline int tws_shard_is_quantized(const tws_plan *plan, const tws_shard *shard) {
  return plan->quantized.bits > 0 && shard->storage_offset >= plan->quantized.first;
}
/* The most elements, whole units of them, not above `most`, which is a unit at least. */
static inline uint64_t tws_quantized_chunk(const tws_plan *plan, uint64_t most) {
  return most - most % (uint64_t)tws_quantized_unit(&plan->quantized);
}
/* NULL: its kernel has none. */
static inline const tws_arguments *tws_op_arguments(const tws_plan *plan, const tws_op *op) {
  return op->arguments > 0 ? &plan->arguments[op->arguments - 1] : NULL;
}
/* Whether an operation is of the end of this step. */
static inline int tws_op_is_of_end(const tws_plan *plan, uint32_t op) {
  return plan->ops[op].phase == TWS_PHASE_STEP && op >= plan->late;
}
/* Whether operations of a stream wait for all computation that was issued before them, where streams keep step. */
static inline int tws_stream_keeps_step(int stream) {
  return stream == TWS_STREAM_GATHER || stream == TWS_STREAM_REDUCE || stream == TWS_STREAM_COPY_IN;
}
/* Whether a micro-batch, and the step's end, then wait for all that the one before it did on the stream. What a single
 * rank copies to the host has buffers of its own (plan/zero_turns.c). */
static inline int tws_stream_ends_micro_batch(const tws_plan *plan, int stream) {
  return stream == TWS_STREAM_REDUCE || (stream == TWS_STREAM_COPY_OUT && plan->world > 1);
}
/* Whether it takes an activation checkpoint to the host or brings it back, beside what computes (plan/finish.c). */
static inline int tws_op_moves_checkpoint(const tws_plan *plan, const tws_op *o) {
  if (o->kind != TWS_OP_COPY || (o->stream != TWS_STREAM_COPY_OUT && o->stream != TWS_STREAM_COPY_IN)) return 0;
  const tws_operand *written = &plan->operands[o->operand_first + 1u];
  return plan->buffers[written->buffer].category == TWS_CATEGORY_CHECKPOINT;
}
/* What keeps step with checkpoints: it comes behind those of a pass that is over. */
static inline int tws_op_follows_checkpoints(const tws_plan *plan, const tws_op *o) {
  return o->stream == TWS_STREAM_COMPUTE || tws_op_moves_checkpoint(plan, o) ||
         (plan->in_step && tws_stream_keeps_step(o->stream));
}
/* The pass that an operation belongs to: forward, backward (weight gradients that are put off, too) or the end of a
 * step. Chunks of a stage never do the same pass of a micro-batch one after the other. */
static inline uint32_t tws_op_pass(const tws_op *o) {
  return 3 * o->micro_batch + (o->phase == TWS_PHASE_FORWARD ? 0 : o->phase == TWS_PHASE_STEP ? 2 : 1);
}
/* The buffer of the network's first input with this content, or TWS_NONE. */
uint32_t tws_plan_input(const tws_plan *plan, tws_input_content content);
/* Memory of a rank that runs this program: its arena and the state's. */
uint64_t tws_plan_bytes(const tws_plan *plan, tws_tier tier);
/* The arena that a buffer lies in: bytes. */
uint64_t tws_plan_arena_of(const tws_plan *plan, const tws_buffer *buffer);

/* The verifier works from the plan alone, with vector clocks over streams: every read sees a complete write; no two
 * conflicting accesses are unordered; no buffer is used while another that shares its memory is alive or still being
 * used by another stream; operations of one channel are ordered; dependencies point backwards. */
tws_code tws_plan_verify(const tws_plan *plan, tws_error *err);
/* Across all ranks of a job: every collective is entered by all members of its group, in one order, with equal
 * kinds, types and sizes; sends match receives; the whole can run to its end without deadlock, in issue order (as the
 * engines start operations) and so on streams too. */
tws_code tws_plans_verify(const tws_plan *const *plans, int count, tws_error *err);
/* The same for some ranks of a job; a member of a group that has no plan here is taken to enter when the others do.
 * Both ends of every message have to be there: whole replicas, or all stages along "pipe". */
tws_code tws_plans_verify_part(const tws_plan *const *plans, int count, tws_error *err);

/* One line per operation. format 0: text, 1: JSON. */
tws_code tws_plan_print(const tws_plan *plan, int json, tws_text *out, tws_error *err);
/* "forward h.3.attn.c_attn linear" - the name that simulated and real timelines share. Fits 160 bytes. */
const char *tws_op_label(const tws_plan *plan, uint32_t op, char *buffer, int size);

#endif
