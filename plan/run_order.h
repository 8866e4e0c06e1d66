/* The run order: determines when an operation of a plan may start, alone or together with operations of other ranks.
 * The longest path, the simulator and the verifier all use it, and add times or data.
 *
 * An operation is ready when the previous one on its stream and its dependencies have ended. A rendezvous (a collective
 * of several ranks, or a message; plan.h states which operations match) starts when all its members are ready. In
 * serial mode each rank has one queue, in issue order, as the host threads of both engines issue operations, and as
 * hosts without streams run them. Plans that complete in serial mode also complete on streams, since issue order
 * satisfies all dependencies, which point to earlier operations.
 *
 *   tws_run_create(&request, &run, err);
 *   while (tws_run_next(run, &start)) ... when a member ends: tws_run_end(run, rank, op, end_s)
 *   tws_run_check(run, err);
 *
 * The caller determines durations; the run only records times. If durations do not depend on concurrent operations,
 * tws_run_through() is the loop above. */
#ifndef TWS_PLAN_RUN_ORDER_H
#define TWS_PLAN_RUN_ORDER_H

#include "plan/plan.h"

/* Times of an operation: ready_s: its predecessors on the rank had ended; met_s: the last member of its rendezvous was
 * ready; end_s: it ended. */
typedef struct tws_op_times {
  double ready_s, met_s, end_s;
} tws_op_times;

typedef enum tws_run_mode { TWS_RUN_STREAMS, TWS_RUN_SERIAL } tws_run_mode;

/* The treatment of members of a group, or partners of a message, that have no plan in the run. */
typedef enum tws_absent {
  TWS_ABSENT_NONE,       /* an error */
  TWS_ABSENT_COLLECTIVE, /* members of collectives are ready when the others are; messages need both plans */
  TWS_ABSENT_ANY         /* partners of messages are ready when the other is, too */
} tws_absent;

typedef struct tws_run_request {
  const tws_plan *const *plans; /* of different ranks of one job; outlive the run */
  int count;
  tws_run_mode mode;
  tws_absent absent;
  int every_rendezvous; /* 1: a rendezvous also if only one member has a plan; 0: that operation runs alone */
} tws_run_request;

typedef struct tws_run_member {
  uint32_t rank, op; /* index of the plan, its operation */
} tws_run_member;

/* Ranks that communicate: a collective group, or a sender and a receiver. */
typedef struct tws_communicator {
  const int *ranks; /* global */
  int size;
  int message;       /* ranks[0] sends to ranks[1] */
  int present;       /* members that have a plan */
  tws_axes axes;     /* 0: messages */
  uint32_t *entered; /* [size] operations so far, while rendezvous are matched */
  uint32_t *rendezvous;
  size_t rendezvous_count, rendezvous_capacity;
  uint32_t next; /* in the hash chain */
} tws_communicator;

typedef struct tws_rendezvous {
  uint32_t communicator, member_first, needed, entered, arrived;
  double met_s;   /* when the last member was ready */
  uint64_t bytes; /* of the whole collective, or of the message */
} tws_rendezvous;

typedef struct tws_run_rank {
  const tws_plan *plan;
  tws_op_times *times;             /* per operation */
  uint8_t *state;                  /* per operation: tws_run_state */
  uint32_t *next;                  /* per operation: the next on its queue, or TWS_NONE */
  uint32_t *rendezvous;            /* per operation; TWS_NONE: runs alone; NULL: all run alone */
  uint32_t head[TWS_STREAM_COUNT]; /* first operation of the queue that has not ended, or TWS_NONE */
  double free_at[TWS_STREAM_COUNT];
  uint32_t left; /* operations that have not ended */
} tws_run_rank;
typedef enum tws_run_state { TWS_RUN_WAITS, TWS_RUN_READY, TWS_RUN_ENDED } tws_run_state;

typedef struct tws_run_start {
  uint32_t rendezvous; /* TWS_NONE: the operation alone */
  uint32_t rank, op;   /* the operation, or the last member of the rendezvous */
} tws_run_start;

typedef struct tws_run {
  tws_run_mode mode;
  tws_absent absent;
  int every_rendezvous;
  tws_arena *arena;
  tws_run_rank *ranks;
  int rank_count, world;
  int *rank_of; /* global rank -> index in ranks, or -1 */
  tws_communicator *communicators;
  size_t communicator_count, communicator_capacity;
  tws_rendezvous *rendezvous;
  size_t rendezvous_count, rendezvous_capacity;
  tws_run_member *members;
  size_t member_count, member_capacity;
  tws_run_start *queue; /* ready operations: a FIFO ring buffer */
  uint32_t queue_head, queue_count, queue_size;
} tws_run;

/* Matches the operations of all plans. TWS_INVALID: plans of different jobs, or a partner without a plan. TWS_INTERNAL:
 * operations do not match; the message names both. */
tws_code tws_run_create(const tws_run_request *request, tws_run **out, tws_error *err);
void tws_run_destroy(tws_run *run);
/* Restarts the run in this mode. */
void tws_run_reset(tws_run *run, tws_run_mode mode);
/* Returns 1 and the next ready operation or rendezvous, in the order in which they became ready; 0: none is ready. */
int tws_run_next(tws_run *run, tws_run_start *start);
/* Reports that an operation has ended. Members of a rendezvous are reported one by one and may end at different
 * times. */
void tws_run_end(tws_run *run, uint32_t rank, uint32_t op, double end_s);
/* Runs all remaining operations with known durations: a rendezvous takes the longest duration of its members. */
typedef struct tws_run_durations {
  const double *const *seconds; /* [plan][work]; NULL: all durations are 0 */
  double (*message)(void *user, uint32_t rank,
                    uint32_t op); /* duration of sends and receives; NULL: that of their work */
  void *user;
} tws_run_durations;
void tws_run_through(tws_run *run, const tws_run_durations *durations);
/* TWS_INTERNAL if operations have not ended (deadlock): the message names the first one and what it waits for. */
tws_code tws_run_check(const tws_run *run, tws_error *err);
/* "rank 3, operation 17 (forward h.0 linear)" */
const char *tws_run_describe(const tws_run *run, uint32_t rank, uint32_t op, char *buffer, int size);

#endif
