/* The executor's state. Internal to sim/.
 *
 *   executor.c     starts operations that the run order (plan/run_order.h) reports as ready, and reports when they
 *     ended
 *   collectives.c  executes a collective or message (a rendezvous of its ranks), by fidelity
 *   messages.c     executes a collective message by message
 *   solver.c       solves flows that share links: fluid.c, with one alarm of the engine for its next event, or SimGrid
 *   patterns.c     builds the flows of communicators and chooses representatives of equal ones
 *   shared.c       executes copies between tiers and kernels on the host as flows over resources that a node's ranks
 *     share
 *   platform.c     builds links and cores from a cluster
 *
 * Times of operations that share no resource are exact: an operation starts at the latest end of its dependencies and
 * ends at start + cost, computed without the engine's clock, which has rounding errors. Only shared cores use the
 * engine's clock. The result of an analytic simulation thus depends neither on the order of simultaneous events nor on
 * earlier experiments. */
#ifndef TWS_SIM_EXECUTOR_H
#define TWS_SIM_EXECUTOR_H

#include "base/memory.h"
#include "models/collective.h"
#include "sim/platform.h"
#include "sim/sim.h"

typedef struct tws_sim_rank {
  const tws_plan *plan;
  double *cost;    /* seconds of each work (kernel or collective); NaN: not computed yet */
  double launched; /* tws_plan_host_stretch() */
  double compute_s, other_s;
} tws_sim_rank;

/* One flow of a communicator or of one of its replicas. */
typedef struct tws_flow {
  int from, to, replica, from_index, to_index; /* ranks; indices in the communicator: only of pairs */
  int links[TWS_PATH_MAX];
  double share; /* fraction of the bytes that a whole ring sends along each edge; of pairs: of a pair's */
} tws_flow;

typedef struct tws_flows {
  tws_flow *of; /* NULL: not built */
  size_t count;
} tws_flows;

/* The flows of a communicator, built when they are first needed. */
typedef struct tws_sim_pattern {
  const int *replicas; /* [replica_count][size]: ranks of the communicators that this one represents; NULL: not built */
  int replica_count;
  tws_flows flows[2]; /* rings; pairs and messages */
  int alone;          /* message fidelity: nothing else uses its links during its collectives */
  struct tws_sim_known *known;
  struct tws_sim_ring_wait *waits; /* flow fidelity: waits of rings, by bytes */
} tws_sim_pattern;

/* A rendezvous that has started. */
typedef struct tws_sim_transfer {
  uint32_t pending; /* flows or messages that have not ended */
  double end_s;     /* end of its timer: of the rendezvous, or of the latency before the flows */
  struct tws_sim_messages *messages;
} tws_sim_transfer;

typedef struct tws_sim {
  const tws_sim_request *request;
  tws_platform platform;
  tws_arena *arena;
  tws_sim_rank *ranks;
  int rank_count, world;
  tws_run *run;     /* ranks, communicators and rendezvous have its indices */
  unsigned classes; /* with representative ranks: bit mask of axes along which the simulated ranks differ */
  int serial;       /* one queue per rank */
  int share_cores;  /* ranks want more cores than there are: executions instead of timers */
  int slowdown;     /* the same with one representative rank: costs are multiplied instead */
  int cores;
  int host_flows;              /* GPUs, all ranks simulated: host links, host memory and disks are links */
  tws_sim_pattern *patterns;   /* per communicator */
  tws_sim_transfer *transfers; /* per rendezvous */
  uint32_t *link_users;        /* message fidelity, per link: 1 + the only communicator that uses it; NULL: not built */
  double now_s;                /* time of the current event */
  double armed_s;              /* date of the engine's network alarm */
  uint64_t events, finished, operations; /* finished operations, out of those of all ranks */
  double end_s;
  tws_timeline *timeline;
  tws_code failed;
  tws_error *err;
} tws_sim;

/* The kinds of events; a tag has the kind and two numbers (tws_sim_tag()). */
typedef enum tws_sim_event {
  TWS_EVENT_TIMER,      /* an operation's timer: rank, op */
  TWS_EVENT_EXECUTION,  /* an operation on shared cores: rank, op */
  TWS_EVENT_RENDEZVOUS, /* a rendezvous' timer: rendezvous */
  TWS_EVENT_FLOW,       /* a flow of a rendezvous: rendezvous */
  TWS_EVENT_SENT,       /* a message of a ring left its sender: rendezvous, edge */
  TWS_EVENT_ARRIVED,    /* a message reached its receiver: rendezvous, edge */
  TWS_EVENT_POSTED,     /* a sender posts a message to another node: rendezvous, edge */
  TWS_EVENT_NETWORK,    /* the network's next event is due */
  TWS_EVENT_LINKS,      /* links change their bandwidth */
  TWS_EVENT_SHARED      /* first to third segment of an operation on shared resources ended: rank, op */
} tws_sim_event;
static inline uint64_t tws_sim_tag(tws_sim_event event, uint32_t a, uint32_t b) {
  return (uint64_t)event << 60 | (uint64_t)a << 32 | b; /* a < 2^28 */
}

/* Records the first failure; the simulation then starts no further operations. */
void tws_sim_fail(tws_sim *sim, tws_code code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Returns the cached cost of a work in seconds; fails the simulation and returns 0 if it is negative or not finite. */
double tws_sim_cost(tws_sim *sim, uint32_t rank, uint32_t work);
/* Returns `seconds`, or the time that the request's effects return for them. */
double tws_sim_takes(const tws_sim *sim, const tws_run_member *members, uint32_t count, double start_s, double seconds);
void tws_sim_timer(tws_sim *sim, double date_s, uint64_t tag);
/* Sets a timer in the flow solver, which is faster than the engine for many short ones. */
void tws_sim_date(tws_sim *sim, double date_s, uint64_t tag);
/* shared.c: the first returns 1 if an operation runs as flows over shared resources, in up to three segments; the
 * second begins segment number `segment`, or ends the operation after its last. */
int tws_sim_is_shared(const tws_sim *sim, uint32_t rank, uint32_t op);
void tws_sim_begin_shared(tws_sim *sim, uint32_t rank, uint32_t op, int segment);
/* Ends an operation, and starts those that waited for it. */
void tws_sim_finish(tws_sim *sim, uint32_t rank, uint32_t op, double end_s);

/* Returns a bit mask of the axes along which two of these ranks differ. */
unsigned tws_sim_axes(const tws_topology *topology, const int *ranks, int count);
/* patterns.c: return the flows of a communicator's collective (row NULL: of point-to-point messages), and its replicas.
 * tws_sim_fold_flows() removes flows that others represent, before the simulation runs. */
const tws_flows *tws_sim_flows(tws_sim *sim, uint32_t communicator, const tws_collective_row *row);
tws_sim_pattern *tws_sim_pattern_of(tws_sim *sim, uint32_t communicator);
void tws_sim_fold_flows(tws_sim *sim);
/* collectives.c: all members of a rendezvous have arrived; an event of it occurred; it ends; one of its flows
 * starts. */
void tws_sim_meet(tws_sim *sim, uint32_t rendezvous);
void tws_sim_transfer_event(tws_sim *sim, tws_sim_event event, uint32_t rendezvous, uint32_t edge);
void tws_sim_end_transfer(tws_sim *sim, uint32_t rendezvous, double end_s);
void tws_sim_start_flow(tws_sim *sim, const int *links, double bytes, int message, uint64_t tag);
/* Returns the latency of a rendezvous: until the first of `bytes` bytes is sent, and between the steps. */
double tws_sim_latency(const tws_sim *sim, const tws_rendezvous *met, double bytes);
/* Returns the factors by which a collective's bytes load ports and NICs; the second returns 1 if two ranks are on one
 * node. */
tws_traffic tws_sim_traffic(const tws_sim *sim, const tws_rendezvous *met);
int tws_sim_same_node(const tws_sim *sim, int rank, int other);
/* messages.c: returns the time before the first message; begins the messages; a message was posted, has left its
 * sender, has reached its receiver. */
double tws_sim_messages_start(const tws_sim *sim, const tws_rendezvous *met);
void tws_sim_begin_messages(tws_sim *sim, uint32_t rendezvous);
void tws_sim_message_posted(tws_sim *sim, uint32_t rendezvous, uint32_t edge);
void tws_sim_message_sent(tws_sim *sim, uint32_t rendezvous, uint32_t edge);
void tws_sim_message_arrived(tws_sim *sim, uint32_t rendezvous, uint32_t edge);

tws_code tws_sim_run(const tws_sim_request *request, tws_sim_result *result, tws_error *err);

#endif
