/* The plan: the complete, static list of what one rank does in one training step (one train_batch), or in another
 * program over the same state (plan/state.h), such as an evaluation.
 *
 * A network, a configuration and a rank's place in the topology are lowered to operations on named buffers. Passes emit
 * operations in issue order, each on a stream, with the ranges of the buffers they read and write. tws_plan_build()
 * then derives what follows from that: lifetimes, offsets in one arena per memory tier, and the dependencies between
 * streams (true, anti- and output dependencies, and reuse of memory). Operations of one stream run in issue order.
 * estimators/ reads bytes and the longest path from a plan, sim/ simulates it with SimGrid, and real/ runs its kernels
 * and communication. */
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
      TWS_STREAM_COUNT /* number of streams, at most 16 */
} tws_stream;

/* The resources on which an operation runs: kernels and copy engines of the device, the host's cores, the disk. */
#define TWS_PLACES(X) X(DEVICE, "device") X(HOST, "host") X(DISK, "disk")
typedef enum tws_place {
#define X(name, text) TWS_PLACE_##name,
  TWS_PLACES(X)
#undef X
      TWS_PLACE_COUNT
} tws_place;

/* Channels: operations of one channel run one after another in issue order, whatever their streams.
 *
 * The kernel of a collective occupies multiprocessors until the other ranks have started their kernels. Two collectives
 * that ranks start in different orders can therefore deadlock, so communicators share channels; different channels run
 * concurrently. "data" and "tied" groups are on REPLICAS, "model" and "sequence" (between the matrix products of a
 * layer, always on the critical path) on LAYERS, "pipe" and messages (which wait for another stage) on STAGES. Copies
 * between tiers are on the copy engine of their direction, and disk transfers in the disk's queue. tws_plan_build()
 * turns the order of a channel into dependencies. */
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
  X(CACHE, "cached keys and values")             \
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

/* Flags of a collective's work: TWS_UNEVEN: the slots have unequal sizes; TWS_MIXED: the segments have several types,
 * and `dtype` is the type of the first segment. */
enum { TWS_UNEVEN = 1, TWS_MIXED = 2 };
enum { TWS_READ = 1, TWS_WRITE = 2, TWS_READ_WRITE = 3 };
/* Alignments in bytes: of every buffer in an arena; of transfers on the disk and in host memory. */
enum { TWS_ALIGNMENT = 256, TWS_DISK_ALIGNMENT = 4096 };

/* The lifetime of a buffer, which determines its arena within its tier. */
typedef enum tws_lifetime {
  TWS_LIFETIME_OPS, /* the memory is reserved from the buffer's first operation to its last */
  /* the whole program: the host writes the buffer before the program or reads it after the program */
  TWS_LIFETIME_PROGRAM,
  TWS_LIFETIME_STATE /* an entry of the state, in the state's arena */
} tws_lifetime;

typedef struct tws_buffer {
  const char *name;
  uint8_t tier, dtype, category;
  uint8_t lifetime; /* tws_lifetime */
  /* the first and the last operation that use it, in issue order; TWS_NONE: no operation uses it */
  uint32_t first_op, last_op;
  uint16_t streams;         /* bit mask of the streams whose operations use it */
  uint64_t elements, bytes; /* number of elements; bytes = elements x size of the type, without padding */
  uint64_t offset;          /* bytes from the start of its arena; a multiple of TWS_ALIGNMENT */
} tws_buffer;
/* The number of arenas of a rank: for each tier one of the programs, then for each tier one of the state. */
enum { TWS_ARENA_COUNT = 2 * TWS_TIER_COUNT };
static inline int tws_buffer_arena(const tws_buffer *buffer) {
  return buffer->tier + (buffer->lifetime == TWS_LIFETIME_STATE ? TWS_TIER_COUNT : 0);
}

typedef struct tws_operand {
  uint32_t buffer;
  uint32_t access;        /* TWS_READ, TWS_WRITE or both */
  uint64_t offset, count; /* range of elements of the buffer: first one, and their number */
} tws_operand;

typedef struct tws_op {
  uint8_t kind, stream, phase;
  uint8_t place, channel;
  uint8_t awaited; /* 1: an operation of another stream depends on it */
  uint16_t pad_;
  uint32_t work;   /* index into tws_plan.works, whose items state the kernel or collective, the shape and the types */
  uint32_t module; /* index of a module of the network, or TWS_NONE */
  uint32_t micro_batch; /* index of the micro-batch; accumulation_steps: an operation that runs once a step */
  uint32_t operand_first, dep_first;
  uint16_t operand_count, dep_count;
  uint32_t peer;      /* SEND, RECV: rank of the partner; REDUCE, BROADCAST: the root's index in its group */
  uint32_t arguments; /* COMPUTE: 1 + index into tws_plan.arguments; 0: the kernel has no arguments */
  /* COLLECTIVE: its number among the collectives of its group; SEND, RECV: its number among the messages from the
   * sender to the receiver; other kinds: 0. Operations of different ranks with equal group (or pair of ranks) and equal
   * number meet. */
  uint32_t match;
} tws_op;
/* The operands of a collective are, for each coalesced segment, the sent range, then the received range. A collective
 * in place has one READ_WRITE operand per segment (all-reduce, reduce, broadcast). all_gather may gather in place: the
 * sent range is then the rank's own part of the received range. reduce_scatter receives into a separate range. An
 * all_to_all with the flag TWS_UNEVEN has a third operand, int32 [2][size]: the numbers of elements that are sent to
 * each member and received from each. These numbers are known only when the collective runs: the ranges have the
 * largest possible size, and d[0] is the expected size. Reductions are sums. The operands of a COPY are the source (R)
 * and the destination (W). */

typedef struct tws_group {
  tws_axes axes;    /* the axes along which the group's ranks differ */
  int size, index;  /* number of ranks; this rank's index in `ranks` */
  const int *ranks; /* global ranks, in the order of the group */
} tws_group;
/* Returns the channel of communicators along these axes, which is the channel of the first axis. */
tws_channel tws_channel_of_axes(tws_axes axes);

/* The slice of a parameter that a rank holds under tensor parallelism: up to three blocks of rows (query, key and value
 * of a fused projection), one above another, and a range of their columns. Vectors are matrices of one column. The
 * rank's own parameter is the slice, with elements counted from 0. Experts are stacked: the blocks recur `repeats`
 * times, once for each expert, at a distance of `step` rows of the whole parameter. */
typedef struct tws_param_slice {
  /* per block: first row of the whole parameter, and number of rows; rows 0: there are no more blocks */
  int64_t first_row[3], rows[3];
  int64_t first_column, columns, whole_columns;
  /* repeats 0 or 1: the blocks occur once; else each repetition is between two adjacent multiples of step */
  int64_t repeats, step;
} tws_param_slice;
static inline int64_t tws_param_slice_rows(const tws_param_slice *slice) {
  return (slice->rows[0] + slice->rows[1] + slice->rows[2]) * (slice->repeats > 1 ? slice->repeats : 1);
}
/* Returns the index in the whole parameter of element `index` of the slice; *run: number of elements from `index` on
 * that are contiguous in both. */
uint64_t tws_param_slice_whole(const tws_param_slice *slice, uint64_t index, uint64_t *run);

/* Programs: a program is one list of operations over the state of a rank, such as a training step. */
#define TWS_PROGRAMS(X)                                                                             \
  X(TRAIN, "train")                                                                                 \
  X(EVALUATE, "evaluate") X(APPLY, "apply") X(SELECT, "select") X(SYNC, "sync")                     \
  X(COMPRESSED, "compressed") X(LOCAL, "local") X(MERGE, "merge") X(FREEZE, "freeze")               \
  X(PREFILL, "prefill") X(DECODE, "decode") X(OVERLAP, "overlap") X(OVERLAP_SELECT, "overlap-select")
typedef enum tws_program {
#define X(name, text) TWS_PROGRAM_##name,
  TWS_PROGRAMS(X)
#undef X
      TWS_PROGRAM_COUNT
} tws_program;
const char *tws_program_name(tws_program program);
/* Returns 1 for the programs of inference (plan/serving.h): PREFILL processes prompts and fills the cache of keys and
 * values, DECODE processes one more token of each sequence. Their state has no master weights and optimizer states. */
static inline int tws_program_serves(tws_program program) {
  return program == TWS_PROGRAM_PREFILL || program == TWS_PROGRAM_DECODE;
}
/* Returns 1 if a configuration has a program. APPLY runs the host's update that training steps defer, either to the
 * next step (plan/delayed.c) or to every few steps (plan/zenflow.c). SELECT is an APPLY that also selects columns anew;
 * SYNC copies the states of the device's columns to the host, and those of newly selected columns to the device.
 * COMPRESSED, LOCAL and MERGE are training steps of later phases of an optimizer, and FREEZE begins such a phase
 * (plan/phases.h). OVERLAP is a training step in which the host also computes the APPLY of the interval before it,
 * while the passes run, and OVERLAP_SELECT one with a SELECT. */
int tws_plan_has_program(const tws_config *config, tws_program program);
static inline int tws_program_overlaps(tws_program program) {
  return program == TWS_PROGRAM_OVERLAP || program == TWS_PROGRAM_OVERLAP_SELECT;
}
/* Returns 1 if a program is a complete training step, with forward and backward passes. */
static inline int tws_program_is_step(tws_program program) {
  return program == TWS_PROGRAM_TRAIN || tws_program_overlaps(program) ||
         (program >= TWS_PROGRAM_COMPRESSED && program <= TWS_PROGRAM_MERGE);
}
/* Returns 1 if a training job runs a program between its steps, even if only rarely, or runs the program instead of
 * TRAIN in some steps. */
static inline int tws_program_runs_between(const tws_config *config, tws_program program) {
  return program > TWS_PROGRAM_EVALUATE && !tws_program_serves(program) && tws_plan_has_program(config, program) &&
         !(config->delayed_update && program == TWS_PROGRAM_APPLY);
}
/* Returns the average number of runs of a program per training step of a long training; 0 for EVALUATE and SYNC. TRAIN
 * has 1, unless some steps run OVERLAP instead. */
double tws_program_share(const tws_config *config, tws_program program);

/* Quantized parameters: the parameters whose elements are stored from element `first` on. The state has their codes and
 * scales (models/quantized.h). */
enum { TWS_QUANTIZED_PARTS = 3 };
typedef struct tws_quantized {
  uint64_t first; /* the tws_shard.storage_offset of the first quantized parameter; TWS_NO_OFFSET: there is none */
  /* buffers: the code of stored element first + i is at index i; the scale of each block of elements */
  uint32_t codes, scales;
  /* buffer: per group of blocks the mean of their scales, and the scale of the quantized deviations from this mean;
   * TWS_NONE: scales are float32 */
  uint32_t means;
  int type;      /* type of the codes (tws_code_type); 0: there are no quantized parameters */
  int64_t block; /* number of elements that share a scale */
  int64_t group; /* number of blocks in a group; 0: scales are float32 */
} tws_quantized;
/* Writes read operands for the codes, the scales and the means of `count` elements that are stored from `offset` on,
 * and returns the number of operands. */
int tws_quantized_stored(const tws_quantized *q, uint64_t offset, uint64_t count, tws_operand out[TWS_QUANTIZED_PARTS]);
/* Returns the unit in elements of quantized ranges: their offsets and counts have to be multiples of this number. */
static inline int64_t tws_quantized_unit(const tws_quantized *q) {
  return q->block * (q->group > 0 ? q->group : 1);
}

/* An operation that updates elements of parameters, or computes their change, from their gradients. */
typedef struct tws_plan_update {
  uint32_t op, gradient; /* gradient: index of the operand that has the gradients, among those of the operation */
  uint64_t first, count; /* the updated elements, numbered as in entries of the state with TWS_ELEMENTS_OWNED */
} tws_plan_update;

typedef struct tws_plan {
  tws_arena *arena;
  const tws_network *network; /* the network, which the plan does not own and which must outlive the plan */
  tws_topology topology;
  tws_program program;
  /* the rank's state; if it was given to tws_plan_build() the plan does not own it, and it must outlive the plan */
  tws_state *state;
  int owns_state;
  int rank, world;
  tws_position position; /* the rank's position; position.sequence_length counts whole sequences, not the rank's part */
  int stage, stages;     /* the rank's pipeline stage and the number of stages; without a pipeline 0 and 1 */
  tws_zero_config zero;
  tws_dtype dtype;
  /* the type that cost models assume for matrix products whose work states no type; AUTO in engines */
  tws_matmul_dtype matmul_dtype;
  int64_t micro_batch_size, sequence_length, accumulation_steps;
  /* bytes that the kernels of one micro-batch of a program of inference read and write, so that a pass reads each
   * weight again after as many bytes; 0: another program */
  double reread_bytes;
  /* 1: micro-batches are separated by barriers, as in ZeRO 2 and 3 with overlap or offloading. Within a micro-batch,
   * gathers, reductions and copies from the host wait for the computation that was issued before them. The next
   * micro-batch and the optimizer phase begin when all gradients are reduced and, on several ranks, copied to the host.
   * No operation waits for memory, so that times do not depend on the layout. */
  int micro_batch_barriers;
  int optimizer_phases; /* number of optimizer phases; several if networks are trained alternately */
  /* number of operations at the start of the plan among which those of the optimizer phase belong to the previous step
   * (delayed update); 0: there are none */
  uint32_t previous_step_ops;
  /* number of micro-batches after which the memory layout of a periodic step (plan/fold.h) recurs, and the period in
   * micro-batches with which it recurs; 0: the step is not periodic */
  uint32_t settled, period;
  tws_op *ops;
  tws_operand *operands;
  uint32_t *deps; /* indices of operations, always on other streams and earlier in issue order */
  tws_buffer *buffers;
  tws_work *works;
  tws_arguments *arguments; /* the arguments of all kernels, without duplicates */
  tws_group *groups;
  tws_plan_update *updates; /* the optimizer's updates, in issue order */
  /* per parameter of the network: the slice that this rank has; NULL: this rank's parameters are whole */
  const tws_param_slice *slices;
  uint32_t op_count, operand_count, dep_count, buffer_count, work_count, argument_count, group_count, update_count;
  /* bytes of the program's arena in each tier, without the state's arena: tws_plan_bytes() adds it */
  uint64_t arena_bytes[TWS_TIER_COUNT];
  /* indices of buffers that engines use; TWS_NONE: the plan has no such buffer */
  uint32_t parameters, master, gradients;
  /* indices of the buffers of the optimizer states, in the order of config/optimizers.def */
  uint32_t optimizer_state[TWS_OPTIMIZER_STATES];
  int optimizer_states;
  /* per network input: a buffer, [accumulation step][row on this rank] */
  uint32_t input[TWS_NETWORK_INPUTS];
  tws_quantized quantized;
  uint32_t hyper, metrics;
  /* buffer of the scores of the last tokens, float32 [accumulation step][tensor rank][sample][column of that rank],
   * which a program of inference computes on its last stage; TWS_NONE: the plan has none */
  uint32_t scores;
  /* buffer of the running statistics of this rank's modules, concatenated; TWS_NONE: there are none */
  uint32_t running;
  const uint64_t *running_first; /* per running statistics of the network: its offset in `running`, or TWS_NO_OFFSET */
  tws_backend_kind backend;
  int threads;
} tws_plan;

/* The purpose of a plan, which determines what is not computed. */
typedef enum tws_plan_use {
  TWS_PLAN_FOR_ALL,
  TWS_PLAN_FOR_TIMES, /* omits offsets and arena_bytes if no stream waits for memory */
  TWS_PLAN_FOR_MEMORY /* omits dependencies */
} tws_plan_use;

typedef struct tws_plan_request {
  const tws_network *network;
  const tws_config *config; /* the resolved configuration */
  tws_topology topology;
  int rank;
  tws_backend_kind backend; /* the backend, which determines the sizes of workspaces */
  int threads;              /* number of the host's threads */
  int64_t max_accumulation; /* largest number of micro-batches to build; 0: all of the step */
  tws_program program;
  tws_state *state;    /* the rank's state, from another program's plan; NULL: the plan creates its own */
  int parameters_only; /* 1: the plan is an evaluation whose own state has no master weights and optimizer states */
  tws_plan_use use;
} tws_plan_request;

/* The largest number of operations of a plan, before kernels are fused or sliced, and of all plans of a job that are
 * loaded together. Longer plans are refused before they exhaust memory (2^23 operations take about 2.5 GiB). */
enum { TWS_PLAN_MOST_VISITS = 1 << 23 };
tws_code tws_plans_check_length(uint64_t operations, tws_error *err);

/* The functions below fail with TWS_UNSUPPORTED or TWS_INVALID; the message names the rule, the reason and the nearest
 * legal configuration. */
/* Builds the topology of a resolved configuration on `ranks` ranks. Its axes are in the order of config->axis_order,
 * and the last one varies fastest; axes of one rank are omitted, except "data". Fails with TWS_INVALID if the product
 * of the axes does not divide `ranks`. */
tws_code tws_plan_topology(const tws_config *config, int ranks, tws_topology *topology, tws_error *err);

tws_code tws_plan_build(const tws_plan_request *request, tws_plan **out, tws_error *err);
/* Builds only operations and buffers with their lifetimes, without offsets and dependencies, which is faster and
 * suffices to compute the bytes of live buffers. */
tws_code tws_plan_lower(const tws_plan_request *request, tws_plan **out, tws_error *err);
/* Builds a plan with the dependencies of operands, channels and barriers, but without offsets. None of its operations
 * waits for the reuse of memory, so its step time is a lower bound of the step time of the plan with offsets. */
tws_code tws_plan_depend(const tws_plan_request *request, tws_plan **out, tws_error *err);
void tws_plan_destroy(tws_plan *plan);
static inline int tws_shard_is_quantized(const tws_plan *plan, const tws_shard *shard) {
  return plan->quantized.type > 0 && shard->storage_offset >= plan->quantized.first;
}
/* Returns `most` (at least one unit) rounded down to a multiple of the unit of quantized elements. */
static inline uint64_t tws_quantized_chunk(const tws_plan *plan, uint64_t most) {
  return most - most % (uint64_t)tws_quantized_unit(&plan->quantized);
}
/* Returns the arguments of an operation's kernel, or NULL if it has none. */
static inline const tws_arguments *tws_op_arguments(const tws_plan *plan, const tws_op *op) {
  return op->arguments > 0 ? &plan->arguments[op->arguments - 1] : NULL;
}
/* Returns 1 if an operation belongs to the optimizer phase of this step, not of the previous one. */
static inline int tws_op_in_optimizer_phase(const tws_plan *plan, uint32_t op) {
  return plan->ops[op].phase == TWS_PHASE_STEP && op >= plan->previous_step_ops;
}
/* Returns 1 if, in plans with micro-batch barriers, operations of this stream wait for the computation that was issued
 * before them. */
static inline int tws_stream_waits_for_compute(int stream) {
  return stream == TWS_STREAM_GATHER || stream == TWS_STREAM_REDUCE || stream == TWS_STREAM_COPY_IN;
}
/* Returns 1 if, in plans with micro-batch barriers, a micro-batch and the optimizer phase wait for all operations of
 * the previous micro-batch on this stream. Copies to the host of a job with a single rank need no such barrier, since
 * they have several buffers (plan/zero_bucket_slots.c). */
static inline int tws_stream_ends_micro_batch(const tws_plan *plan, int stream) {
  return stream == TWS_STREAM_REDUCE || (stream == TWS_STREAM_COPY_OUT && plan->world > 1);
}
/* Returns 1 if an operation copies an activation checkpoint to or from the host; such copies overlap with compute
 * (plan/finish.c). */
static inline int tws_op_moves_checkpoint(const tws_plan *plan, const tws_op *o) {
  if (o->kind != TWS_OP_COPY || (o->stream != TWS_STREAM_COPY_OUT && o->stream != TWS_STREAM_COPY_IN)) return 0;
  const tws_operand *written = &plan->operands[o->operand_first + 1u];
  return plan->buffers[written->buffer].category == TWS_CATEGORY_CHECKPOINT;
}
/* Returns 1 if an operation waits for the checkpoint copies that were issued in earlier passes. */
static inline int tws_op_follows_checkpoints(const tws_plan *plan, const tws_op *o) {
  return o->stream == TWS_STREAM_COMPUTE || tws_op_moves_checkpoint(plan, o) ||
         (plan->micro_batch_barriers && tws_stream_waits_for_compute(o->stream));
}
/* Returns a number that identifies the pass of an operation: the forward pass, the backward pass (including deferred
 * weight gradients) or the optimizer phase of a micro-batch. Two chunks of a stage never run the same pass of a
 * micro-batch in succession, so consecutive passes have different numbers. */
static inline uint32_t tws_op_pass(const tws_op *o) {
  return 3 * o->micro_batch + (o->phase == TWS_PHASE_FORWARD ? 0 : o->phase == TWS_PHASE_STEP ? 2 : 1);
}
/* Returns the buffer of the first network input that has this content, or TWS_NONE. */
uint32_t tws_plan_input(const tws_plan *plan, tws_input_content content);
/* Returns the bytes of a tier that a rank with this program needs: the program's arena and the state's arena. */
uint64_t tws_plan_bytes(const tws_plan *plan, tws_tier tier);
/* Returns the size in bytes of the arena in which a buffer lies. */
uint64_t tws_plan_arena_of(const tws_plan *plan, const tws_buffer *buffer);

/* Verifies a plan from its operations alone, with vector clocks over streams. It fails with TWS_INTERNAL unless every
 * read follows a complete write; conflicting accesses are ordered; no buffer is used while another one in the same
 * memory is alive or in use by another stream; operations of one channel are ordered; and dependencies are earlier
 * operations. */
tws_code tws_plan_verify(const tws_plan *plan, tws_error *err);
/* Verifies the plans of all ranks of a job together: all members of a group enter its collectives in one order, with
 * equal kinds, types and sizes; sends match receives; and the plans complete without deadlock when operations start in
 * issue order, as the engines start them. Plans for which this holds also complete on streams. */
tws_code tws_plans_verify(const tws_plan *const *plans, int count, tws_error *err);
/* Verifies the plans of some ranks of a job; members of a group without a plan are assumed to enter with the others.
 * Both ranks of every message need a plan, so the plans must be those of whole replicas, or of all stages along
 * "pipe". */
tws_code tws_plans_verify_part(const tws_plan *const *plans, int count, tws_error *err);

/* Writes the operations to `out`, as text with one line per operation (json 0) or as JSON (json 1). */
tws_code tws_plan_print(const tws_plan *plan, int json, tws_text *out, tws_error *err);
/* Returns an operation's name in simulated and real timelines, such as "forward h.3.attn.c_attn linear", which it
 * writes to `buffer` (at most 160 bytes). */
const char *tws_op_label(const tws_plan *plan, uint32_t op, char *buffer, int size);
/* Writes to `buffer` what traces say about an operation, as members of a JSON object: bytes (of a kernel: bytes read
 * and written; of a collective: bytes of the larger operand), flops, shape, type, group and algorithm, or peer.
 * algorithm: name of the algorithm of a collective or of the transport; NULL: the pattern in models/collectives.def. */
enum { TWS_OP_DETAIL = 400 };
const char *tws_op_detail(const tws_plan *plan, uint32_t op, const char *algorithm, char *buffer, int size);
/* Returns the bytes that an operation reads and writes, or transfers, as tws_op_detail() says. */
uint64_t tws_op_bytes(const tws_plan *plan, uint32_t op);
/* Returns an identifier of the collective or message of an operation: equal for the matching operations of all its
 * ranks, different for all other operations of the step; 0: the operation is neither a collective nor a message. */
uint64_t tws_op_meeting(const tws_plan *plan, uint32_t op);

#endif
