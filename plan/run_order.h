/* The run order: when an operation of a plan may start, alone or together with operations of other ranks. The one place
 * that knows; the longest path, the simulator and the verifier drive it and add what time or data they have.
 *
 * An operation is ready when the one before it on its stream and its dependencies have ended. One that meets operations
 * of other ranks starts when all of them are ready (a rendezvous: a collective's members, or both ends of a message;
 * plan.h says which match). In serial mode each rank has one queue, in issue order: how the host's threads of both
 * engines issue operations, and how hosts that have no streams run them. Whatever can run in serial mode can run on
 * streams: its order satisfies all dependencies, which point backwards.
 *
 *   tws_run_create(&request, &run, err);
 *   while (tws_run_next(run, &start)) ... each member ends some time: tws_run_end(run, rank, op, when)
 *   tws_run_check(run, err);
 *
 * Nothing here decides how long something takes: times are kept as they are told. Where durations do not depend on what
 * else runs, tws_run_through() is the loop above. */
#ifndef TWS_PLAN_RUN_ORDER_H
#define TWS_PLAN_RUN_ORDER_H

#include "plan/plan.h"

/* When an operation ran: it and its predecessors of the rank were ready, the last other member was there, it ended. */
typedef struct tws_op_times {
  double ready_s, met_s, end_s;
} tws_op_times;

typedef enum tws_run_mode { TWS_RUN_STREAMS, TWS_RUN_SERIAL } tws_run_mode;

/* Ranks of a group, or a receiver's partners, that have no plan here. */
typedef enum tws_absent {
  TWS_ABSENT_NONE,       /* is an error */
  TWS_ABSENT_COLLECTIVE, /* are ready when the others are; both ends of a message have to be there */
  TWS_ABSENT_ANY         /* likewise, of messages too */
} tws_absent;

typedef struct tws_run_request {
  const tws_plan *const *plans; /* of different ranks of one job; outlive the run */
  int count;
  tws_run_mode mode;
  tws_absent absent;
  int every_rendezvous; /* make one also where a single member has a plan; else that operation is alone */
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
  uint32_t *entered; /* [size] operations so far, while rendezvous are made */
  uint32_t *rendezvous;
  size_t rendezvous_count, rendezvous_capacity;
  uint32_t next; /* in the hash chain */
} tws_communicator;

typedef struct tws_rendezvous {
  uint32_t communicator, member_first, needed, entered, arrived;
  double met_s;   /* when the last member was ready */
  uint64_t bytes; /* of the whole collective, or the message */
} tws_rendezvous;

typedef struct tws_run_rank {
  const tws_plan *plan;
  tws_op_times *times;             /* per operation */
  uint8_t *state;                  /* likewise: tws_run_state */
  uint32_t *next;                  /* likewise: the one after it on its queue, or TWS_NONE */
  uint32_t *rendezvous;            /* likewise, TWS_NONE: alone; NULL: all are */
  uint32_t head[TWS_STREAM_COUNT]; /* first operation of the queue that has not ended, or TWS_NONE */
  double free_at[TWS_STREAM_COUNT];
  uint32_t left; /* operations that have not ended */
} tws_run_rank;
typedef enum tws_run_state { TWS_RUN_WAITS, TWS_RUN_READY, TWS_RUN_ENDED } tws_run_state;

typedef struct tws_run_start {
  uint32_t rendezvous; /* TWS_NONE: the operation alone */
  uint32_t rank, op;   /* of a rendezvous: its last member */
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
  tws_run_start *queue; /* what may start, first in first out: a ring */
  uint32_t queue_head, queue_count, queue_size;
} tws_run;

/* TWS_INVALID: plans of different jobs, or a partner without a plan. TWS_INTERNAL: plans that do not fit together: the
 * message names both operations. */
tws_code tws_run_create(const tws_run_request *request, tws_run **out, tws_error *err);
void tws_run_destroy(tws_run *run);
/* Back to the beginning, in this mode. */
void tws_run_reset(tws_run *run, tws_run_mode mode);
/* The next that may start, in the order in which they became ready; 0: nothing for now. */
int tws_run_next(tws_run *run, tws_run_start *start);
/* An operation ended. Of a rendezvous each member ends, at its own time if need be. */
void tws_run_end(tws_run *run, uint32_t rank, uint32_t op, double end_s);
/* The rest of the run where durations are known before: all members of a rendezvous take the longest of theirs. */
typedef struct tws_run_durations {
  const double *const *seconds;                              /* per plan and work; NULL: nothing takes time */
  double (*message)(void *user, uint32_t rank, uint32_t op); /* sends and receives cost this; NULL: as their work */
  void *user;
} tws_run_durations;
void tws_run_through(tws_run *run, const tws_run_durations *durations);
/* TWS_INTERNAL when operations are left: names the first that waits, and for whom. */
tws_code tws_run_check(const tws_run *run, tws_error *err);
/* "rank 3, operation 17 (forward h.0 linear)" */
const char *tws_run_describe(const tws_run *run, uint32_t rank, uint32_t op, char *buffer, int size);

#endif
