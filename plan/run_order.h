/* The run order: determines when an operation of a plan may start, alone or together with operations of other ranks.
 * The longest path, the simulator and the verifier all use the run order; each of these computes the times or the data
 * of operations itself.
 *
 * An operation is ready when the previous one on its stream and its dependencies have ended. A rendezvous (a collective
 * of several ranks, or a message; plan.h states which operations match) starts when all its members are ready. In
 * serial mode each rank has one queue in issue order. This is the order in which the host threads of both engines issue
 * operations, and in which hosts without streams run them. Plans that complete in serial mode also complete on streams,
 * since issue order satisfies all dependencies, which point to earlier operations.
 *
 *   tws_run_create(&request, &run, err);
 *   while (tws_run_next(run, &start)) ... when a member ends: tws_run_end(run, rank, op, end_s)
 *   tws_run_check(run, err);
 *
 * The caller determines durations; the run only records times. If durations do not depend on concurrent operations,
 * tws_run_all() is the loop above. */
#ifndef TWS_PLAN_RUN_ORDER_H
#define TWS_PLAN_RUN_ORDER_H

#include "plan/plan.h"

/* Times of an operation in seconds. ready_s: the last of its predecessors on the rank ended; met_s: the last member of
 * its rendezvous was ready; end_s: the operation ended. */
typedef struct tws_op_times {
  double ready_s, met_s, end_s;
} tws_op_times;

typedef enum tws_run_mode { TWS_RUN_STREAMS, TWS_RUN_SERIAL } tws_run_mode;

/* The treatment of members of a group, or partners of a message, that have no plan in the run. */
typedef enum tws_absent {
  TWS_ABSENT_NONE, /* a partner without a plan is an error */
  /* absent members of collectives are ready when the others are; both partners of a message need a plan */
  TWS_ABSENT_COLLECTIVE,
  TWS_ABSENT_ANY /* absent partners of messages are also ready when the other partner is */
} tws_absent;

typedef struct tws_run_request {
  const tws_plan *const *plans; /* plans of different ranks of one job; they have to outlive the run */
  int count;
  tws_run_mode mode;
  tws_absent absent;
  /* 1: an operation whose other members have no plan is a rendezvous of one member; 0: it runs alone */
  int every_rendezvous;
} tws_run_request;

typedef struct tws_run_member {
  uint32_t rank, op; /* rank: index of the plan in the request; op: index of the operation in this plan */
} tws_run_member;

/* Ranks that communicate: a collective group, or a sender and a receiver. */
typedef struct tws_communicator {
  const int *ranks; /* global numbers of the ranks */
  int size;
  int message;   /* 1: a message, which ranks[0] sends to ranks[1]; 0: a collective */
  int present;   /* number of members that have a plan */
  tws_axes axes; /* the axes along which the members differ; 0: the communicator is that of a message */
  /* [size] number of operations that each member has entered so far; used only while rendezvous are matched */
  uint32_t *entered;
  uint32_t *rendezvous;
  size_t rendezvous_count, rendezvous_capacity;
  uint32_t next; /* index of the next communicator in the hash chain */
} tws_communicator;

typedef struct tws_rendezvous {
  uint32_t communicator, member_first, needed, entered, arrived;
  double met_s;   /* time in seconds at which the last member was ready */
  uint64_t bytes; /* bytes of the whole collective, or of the message */
} tws_rendezvous;

typedef struct tws_run_rank {
  const tws_plan *plan;
  tws_op_times *times; /* [operation of the plan] */
  uint8_t *state;      /* per operation: tws_run_state: waiting, ready or ended */
  uint32_t *next;      /* per operation: the next operation on its queue, or TWS_NONE */
  /* per operation: index of its rendezvous, TWS_NONE: it runs alone; NULL: all operations run alone */
  uint32_t *rendezvous;
  uint32_t head[TWS_STREAM_COUNT]; /* per queue: the first operation that has not ended, or TWS_NONE */
  double free_at[TWS_STREAM_COUNT];
  uint32_t left; /* number of operations that have not ended */
} tws_run_rank;
typedef enum tws_run_state { TWS_RUN_WAITS, TWS_RUN_READY, TWS_RUN_ENDED } tws_run_state;

typedef struct tws_run_start {
  uint32_t rendezvous; /* index of the rendezvous that starts; TWS_NONE: one operation starts alone */
  uint32_t rank, op;   /* the operation that starts, or the last member of the rendezvous that became ready */
} tws_run_start;

typedef struct tws_run {
  tws_run_mode mode;
  tws_absent absent;
  int every_rendezvous;
  tws_arena *arena;
  tws_run_rank *ranks;
  int rank_count, world;
  int *rank_of; /* [global rank] index in `ranks`, or -1 if the rank has no plan */
  tws_communicator *communicators;
  size_t communicator_count, communicator_capacity;
  tws_rendezvous *rendezvous;
  size_t rendezvous_count, rendezvous_capacity;
  tws_run_member *members;
  size_t member_count, member_capacity;
  tws_run_start *queue; /* operations and rendezvous that are ready: a FIFO ring buffer */
  uint32_t queue_head, queue_count, queue_size;
} tws_run;

/* Creates a run and matches the operations of all plans. Fails with TWS_INVALID if the plans are those of different
 * jobs, or a partner has no plan, and with TWS_INTERNAL if operations do not match; the message names both
 * operations. */
tws_code tws_run_create(const tws_run_request *request, tws_run **out, tws_error *err);
void tws_run_destroy(tws_run *run);
/* Sets all operations to not started, and the mode of the run to `mode`. */
void tws_run_reset(tws_run *run, tws_run_mode mode);
/* Returns 1 and writes the next ready operation or rendezvous to *start, in the order in which they became ready;
 * returns 0 if none is ready. */
int tws_run_next(tws_run *run, tws_run_start *start);
/* Reports that an operation has ended. Members of a rendezvous are reported one by one and may end at different
 * times. */
void tws_run_end(tws_run *run, uint32_t rank, uint32_t op, double end_s);
/* The durations with which tws_run_all() runs all remaining operations; a rendezvous takes the longest duration of
 * its members. */
typedef struct tws_run_durations {
  const double *const *seconds; /* [plan][work] seconds; NULL: all durations are 0 */
  double (*message)(void *user, uint32_t rank,
                    /* returns the seconds of send or receive `op` of plan `rank`; NULL: messages take the seconds of
                     * their work */
                    uint32_t op);
  void *user;
} tws_run_durations;
void tws_run_all(tws_run *run, const tws_run_durations *durations);
/* Fails with TWS_INTERNAL if operations have not ended (deadlock); the message names the first of them and the
 * operation or rank that it waits for. */
tws_code tws_run_check(const tws_run *run, tws_error *err);
/* Returns a description that it writes to `buffer`, such as "rank 3, operation 17 (forward h.0 linear)". */
const char *tws_run_describe(const tws_run *run, uint32_t rank, uint32_t op, char *buffer, int size);

#endif
