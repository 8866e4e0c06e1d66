/* Samples: parts of a training step as the passes lower them, most without layout and dependencies. Estimates put
 * steps together from them (estimators/compose.h).
 *
 * A body is a chunk of consecutive pipeline layers of two micro-batches, the first of which begins gradients that the
 * second adds to. What enters and leaves it are messages, as if it were a block of a pipeline. A tail is the end of a
 * stage's step: reductions of gradients that wait for it, and the optimizer. What ZeRO moves between the ranks that
 * share parameters is sampled without the layers: gathers, and reductions for one size of buckets after the other. */
#ifndef TWS_PLAN_SAMPLE_H
#define TWS_PLAN_SAMPLE_H

#include "plan/pipeline_program.h"
#include "plan/plan.h"

/* What samples of equal networks share: the parts of them that ranks run. For one thread at a time; NULL without
 * memory. It outlives the samples. */
typedef struct tws_sample_memory tws_sample_memory;
tws_sample_memory *tws_sample_memory_create(void);
void tws_sample_memory_destroy(tws_sample_memory *memory); /* NULL is allowed */

typedef struct tws_sample_request {
  const tws_plan_request *plan; /* of a training step; max_accumulation and state are not looked at */
  int tail;                     /* of request->plan->rank; else a body: */
  int first_layer, end_layer;   /* pipeline layers (as pipeline.partition counts them) */
  int goes_on;       /* the chunk goes on behind: gradients of parameters that it uses too have begun there */
  int split;         /* weight gradients are put off, as in zero-bubble schedules */
  int once;          /* a body: of the first of its micro-batches alone */
  int reduced;       /* a tail: without reductions that wait for it, which tws_moves_of_buckets() makes */
  int moves;         /* a tail: of which tws_moves is made */
  int ordered;       /* a tail: with the places of buffers and the dependencies that follow from what it has alone, and
                      * with what stage 1 reduces beside the last backward pass */
  const int *bounds; /* a tail: of all blocks, where they are known (tws_plan_sample.bounds); else NULL */
  int alike_known;   /* which layers are alike is not asked for */
  tws_sample_memory *memory; /* NULL: nothing is kept */
} tws_sample_request;

/* Operations [first_op, end_op) belong to one event of a context. */
typedef struct tws_sample_part {
  uint8_t event, action; /* tws_pipeline_event_kind, tws_pipeline_action_kind */
  uint8_t micro_batch;   /* 0: the first, 1: a later one */
  uint32_t first_op, end_op;
} tws_sample_part;
enum { TWS_SAMPLE_PARTS = 16 };

/* A parameter's gradient in the buffer of those of all micro-batches. */
typedef struct tws_gradient_place {
  uint64_t first, elements;
  int layer;      /* the first pipeline layer that has the parameter, */
  uint32_t which; /* and its number there: the same in layers that are alike */
} tws_gradient_place;
typedef struct tws_gradient_list { /* in the order of their memory */
  tws_gradient_place *items;
  uint32_t count;
} tws_gradient_list;

/* Where a body's operations find a parameter, or leave its gradient until that is reduced. */
typedef struct tws_moved_place {
  uint32_t buffer;
  uint64_t first, elements; /* there; places in one buffer follow one another */
  int layer;                /* see tws_gradient_place */
  uint32_t which;
} tws_moved_place;

/* Before this operation a module is visited (layer -1: none, but the whole pass), or all is issued that one module
 * adds to a parameter's gradient. */
typedef struct tws_sample_event {
  uint32_t op;
  int layer;      /* of the module; of the parameter (tws_gradient_place) */
  uint32_t which; /* of the parameter; TWS_NONE: a visit */
} tws_sample_event;

typedef struct tws_sample_chunk {
  int first_layer, end_layer;
} tws_sample_chunk;

typedef struct tws_plan_sample {
  tws_plan *plan; /* operations, operands, buffers with their lifetimes, works, state; offsets and dependencies of a
                   * tail that was to be ordered alone.
                   * A body's inputs are those of TWS_SAMPLE_STEPS micro-batches, a tail's those of one */
  tws_sample_part parts[TWS_SAMPLE_PARTS];
  int part_count;
  int ordered, reduced;        /* tail: it has offsets and dependencies of its own; it lacks reductions */
  int depends;                 /* body: it has dependencies, as exchanges run beside what computes */
  uint32_t reduced_at;         /* tail: the operation that reductions stand before, where it lacks them */
  uint32_t begun;              /* tail: operations before this one gather what stays whole for the step, */
  uint32_t updated;            /* and those then before this one update with what the step before left */
  int late;                    /* tail: nobody waits for what the host does when gradients have been clipped */
  int *layer_of;               /* per module of the network; lives in the plan's arena */
  tws_gradient_list gradients; /* body: where they are whole until the step ends; likewise */
  tws_moved_place *moved;      /* body: where gradients are not whole until the step ends */
  uint32_t moved_count;
  tws_sample_event *events; /* likewise, in their order */
  uint32_t event_count;
  size_t moved_capacity, event_capacity;
  int layer_count;            /* of the network */
  int alike_first, alike_end; /* its longest range of layers that are alike but for their place */
  tws_sample_chunk *chunks;   /* tail: of the stage; likewise */
  int chunk_count;
  int *bounds; /* tail: where the blocks of all stages begin and end, in layers: block_count + 1; likewise */
  int block_count;
} tws_plan_sample;
enum { TWS_SAMPLE_STEPS = 3 }; /* none of a body's two micro-batches is the last of the step */

/* Errors as tws_plan_build(), and TWS_UNSUPPORTED for bodies that more than one value enters or leaves. */
tws_code tws_plan_sample_make(const tws_sample_request *request, tws_plan_sample *out, tws_error *err);
void tws_plan_sample_free(tws_plan_sample *sample);

/* How ranks of a stage that are looked at one by one (tws_representatives()) have plans that differ in more than
 * arguments. Ranks of a sequence alone: in their passes, where they look up other rows of a table of positions, or
 * attend to other parts of a ring; behind them, where they update other parts. Others: a rank adds biases for the
 * others, has fewer words of the vocabulary, or rounds other runs of elements. like_before: of each tensor-parallel
 * rank, 0 on entry; set to 1 where stage 3 asks and its plan is that of the rank before it. */
enum { TWS_RANKS_PASS_APART = 1, TWS_RANKS_END_APART = 2, TWS_RANKS_APART = 4 };
/* Whether tensor-parallel ranks have equal passes, at any stage; like_before: as below. */
tws_code tws_plan_tensor_ranks_alike(const tws_plan_request *request, tws_sample_memory *memory, uint8_t *like_before,
                                     int *alike, tws_error *err);
tws_code tws_plan_ranks_differ(const tws_plan_request *request, tws_sample_memory *memory, unsigned *how,
                               uint8_t *like_before, tws_error *err);

/* Operations [first, end) of a plan. */
typedef struct tws_op_range {
  uint32_t first, end;
} tws_op_range;

/* What ZeRO moves in the step of a stage, lowered but for its buckets. */
typedef struct tws_moves tws_moves;
/* Of the stage of request->rank; bounds, alike_known: see tws_sample_request. What the request points to outlives the
 * moves, but for the configuration. */
tws_code tws_moves_create(const tws_plan_request *request, const int *bounds, int alike_known,
                          tws_sample_memory *memory, tws_moves **out, tws_error *err);
void tws_moves_destroy(tws_moves *moves); /* NULL is allowed */
/* Of which the ranges below are: each follows those before it, but for those of buckets, which are there until others
 * are asked for. */
const tws_plan *tws_moves_plan(const tws_moves *moves);
/* The tail without reductions, where nothing is offloaded; before all others. The moves keep it. */
tws_code tws_moves_of_tail(tws_moves *moves, tws_plan_sample *out, tws_error *err);
/* What it gathers and reduces (stages 2 and 3) at least, each in one collective that has no operands. */
tws_code tws_moves_at_least(tws_moves *moves, tws_op_range *out, tws_error *err);
/* How many gradients there are in each bucket of so many elements, until others are asked for: if that is the same, so
 * are the buckets. */
typedef struct tws_bucket_counts {
  const uint32_t *items;
  uint32_t count;
} tws_bucket_counts;
tws_code tws_moves_bucket_counts(tws_moves *moves, int64_t elements, tws_bucket_counts *out, tws_error *err);
/* With buckets of so many elements, at stages 0 and 1: what the last micro-batch reduces when it has ended. */
tws_code tws_moves_of_buckets(tws_moves *moves, int64_t elements, tws_op_range *out, tws_error *err);
/* Stages 2 and 3, with buckets of so many elements: what becomes of each gradient when it is complete, in that order.
 * Operations `padded` fill what is behind it, `reduced` reduce the bucket that it completes. */
typedef struct tws_moved_gradient {
  int layer; /* see tws_gradient_place */
  uint32_t which, bucket;
  tws_op_range padded, reduced;
} tws_moved_gradient;
/* Whether buckets take turns in buffers of their own (plan/bucket_turns.h), and when sums come back into the first of
 * them. */
typedef enum tws_gradient_turns {
  TWS_TURNS_NONE,
  TWS_TURNS_WITH_MICRO_BATCH, /* when it begins */
  TWS_TURNS_WITH_BACKWARD     /* when its backward pass does */
} tws_gradient_turns;
typedef struct tws_moved_gradients {
  tws_moved_gradient *items;
  uint32_t count, buckets;
  tws_op_range range; /* of all of them */
  uint32_t *takes;    /* per operation of the range: so many before it is the one that wrote last what it copies to the
                       * host; 0: none did. NULL: nothing is copied */
  tws_gradient_turns turns;
  tws_op_range *brought; /* likewise, per bucket: its sums come back. NULL: there are none yet */
} tws_moved_gradients;
typedef struct tws_moved_kind { /* of a micro-batch: not the first of its step; the last */
  unsigned later : 1, last : 1;
} tws_moved_kind;
/* Into `arena`. */
tws_code tws_moves_of_gradients(tws_moves *moves, int64_t elements, tws_moved_kind kind, tws_arena *arena,
                                tws_moved_gradients *out, tws_error *err);
/* Stage 3: a parameter that is there when operation `op` has ended. */
typedef struct tws_moved_param {
  int layer; /* see tws_gradient_place */
  uint32_t which, op;
} tws_moved_param;
typedef struct tws_moved_visit { /* what is gathered before a module is visited */
  int layer;                     /* -1: of none */
  int backward;
  tws_op_range gathered;
  uint32_t first, end; /* of tws_moved_params.items */
} tws_moved_visit;
typedef struct tws_moved_params {
  tws_moved_visit *visits;
  tws_moved_param *items;
  uint32_t visit_count, count;
  tws_op_range range; /* of all of them */
  uint32_t *takes; /* per operation of the range: so many before it, or in what was gathered for the whole step, is the
                       * one on another stream that it waits for; 0: none. NULL: nothing comes from the host */
} tws_moved_params;
/* What a micro-batch gathers; the first that is asked for gathers what neighbours keep for those behind it. */
tws_code tws_moves_of_params(tws_moves *moves, tws_arena *arena, tws_moved_params *out, tws_error *err);
/* What stays whole for the step is gathered when it begins, as if before a visit. */
tws_code tws_moves_of_begin(tws_moves *moves, tws_arena *arena, tws_moved_params *out, tws_error *err);
/* Stage 1: the gradients that it reduces, once buckets have been made; into `arena`. */
tws_code tws_moves_gradients(tws_moves *moves, tws_arena *arena, tws_gradient_list *out, tws_error *err);

#endif
