/* The executor's state, shared by its parts. Internal to sim/.
 *
 *   executor.c     ready counters: an operation starts when its predecessor on the stream and its dependencies are done
 *   meetings.c     which operations of different ranks belong together (collectives, sends with receives)
 *   collectives.c  what happens when all of them are there, by fidelity
 *   platform.c     links and cores
 *
 * Times are exact where nothing is shared: an operation starts at the latest end of what it waits for, and a timer
 * ends at start + cost whatever the engine's clock says. Only flows and shared cores take the engine's time. So the
 * result of an analytic simulation does not depend on the order of simultaneous events, nor on earlier experiments. */
#ifndef TWS_SIM_EXECUTOR_H
#define TWS_SIM_EXECUTOR_H

#include "base/memory.h"
#include "sim/platform.h"
#include "sim/sim.h"

typedef struct tws_sim_op {
  double ready_s;   /* latest end of what it waited for */
  double end_s;     /* of a timer, known when it starts; of all, when done */
  uint32_t missing; /* predecessors not done; TWS_SIM_DONE when this operation is */
  uint32_t next;    /* on its stream, or TWS_NONE */
  uint32_t child_first;
  uint32_t meeting; /* TWS_NONE: of this rank alone */
} tws_sim_op;
#define TWS_SIM_DONE UINT32_MAX

typedef struct tws_sim_rank {
  const tws_plan *plan;
  tws_sim_op *ops; /* [op_count + 1]; child_first of the last closes the list */
  uint32_t *children;
  double *cost; /* of each work; NaN: not asked for yet */
  uint32_t left;
  double compute_s, other_s;
} tws_sim_rank;

typedef struct tws_sim_member {
  uint32_t rank, op; /* index of the simulated rank, its operation */
} tws_sim_member;

/* Ranks that communicate: a collective group, or a sender and a receiver. */
typedef struct tws_sim_party {
  const int *ranks; /* global */
  int size, message;
  int simulated;     /* members that have a plan */
  uint32_t *entered; /* [size] operations so far, while meetings are made */
  uint32_t *meetings;
  size_t meeting_count, meeting_capacity;
  uint32_t next; /* in the hash chain */
  const char *axis;
  const int *lines; /* line_count x size: parties whose flows this one's stand for; NULL until the first flow */
  int line_count;
  tws_edge **edges; /* of the rings of each line */
  int *edge_counts;
} tws_sim_party;

typedef struct tws_sim_meeting {
  uint32_t party, member_first, needed, filled, arrived;
  uint8_t kind;     /* TWS_OP_COLLECTIVE or TWS_OP_SEND */
  uint32_t pending; /* flows or messages under way */
  double start_s;   /* when the last member came */
  double end_s;     /* of its timer: the end, or of the latency before the flows */
  uint64_t bytes;
  struct tws_sim_messages *messages;
} tws_sim_meeting;

typedef struct tws_sim {
  const tws_sim_request *request;
  tws_platform platform;
  tws_arena *arena;
  tws_sim_rank *ranks;
  int rank_count, world;
  int *rank_of;     /* global rank -> index in ranks, or -1 */
  unsigned classes; /* folded: axes on which the simulated ranks differ, a bit each */
  int serial;       /* one queue per rank */
  int share_cores;  /* ranks want more cores than there are: executions instead of timers */
  int stretch;      /* the same, but one rank stands for all: costs are stretched instead */
  int cores;
  tws_sim_party *parties;
  size_t party_count, party_capacity;
  tws_sim_meeting *meetings;
  size_t meeting_count, meeting_capacity;
  tws_sim_member *members;
  size_t member_count, member_capacity;
  uint64_t *queue; /* operations that may start, first in first out */
  size_t queue_head, queue_count, queue_capacity;
  uint64_t events;
  double end_s;
  tws_timeline *timeline;
  tws_code failed;
  tws_error *err;
} tws_sim;

/* What the engine's tags mean. */
typedef enum tws_sim_event {
  TWS_EVENT_TIMER,     /* an operation's timer: rank, op */
  TWS_EVENT_EXECUTION, /* an operation on shared cores: rank, op */
  TWS_EVENT_MEETING,   /* a meeting's timer: meeting */
  TWS_EVENT_FLOW,      /* a flow of a meeting: meeting */
  TWS_EVENT_SENT,      /* a message of a ring left its sender: meeting, edge */
  TWS_EVENT_ARRIVED    /* and reached its receiver: meeting, edge */
} tws_sim_event;
static inline uint64_t tws_sim_tag(tws_sim_event event, uint32_t a, uint32_t b) {
  return (uint64_t)event << 60 | (uint64_t)a << 32 | b; /* a < 2^28 */
}

/* Record the first failure; the simulation then runs dry. */
void tws_sim_fail(tws_sim *sim, tws_code code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* "rank 3, operation 17 (forward h.0 linear)" */
const char *tws_sim_describe(const tws_sim *sim, uint32_t rank, uint32_t op, char *buffer, int size);
/* Cached cost of a work; fails the simulation and returns 0 when it is not a time. */
double tws_sim_cost(tws_sim *sim, uint32_t rank, uint32_t work);
void tws_sim_timer(tws_sim *sim, double date_s, uint64_t tag);
/* An operation ended. */
void tws_sim_finish(tws_sim *sim, uint32_t rank, uint32_t op, double end_s);

/* Axes on which two of these ranks differ, a bit each. */
unsigned tws_sim_axes(const tws_topology *topology, const int *ranks, int count);
/* meetings.c: find all meetings, and check that the ranks agree on them. */
tws_code tws_sim_meetings(tws_sim *sim, tws_error *err);
/* collectives.c */
void tws_sim_arrive(tws_sim *sim, uint32_t rank, uint32_t op);
void tws_sim_meeting_event(tws_sim *sim, tws_sim_event event, uint32_t meeting, uint32_t edge);

tws_code tws_sim_run(const tws_sim_request *request, tws_sim_result *result, tws_error *err);

#endif
