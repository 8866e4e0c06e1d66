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
 * Times of operations that share no resource are exact: an operation starts when the last of its dependencies ends, and
 * ends at start + cost. These times are computed without the engine's clock, which has rounding errors. Only shared
 * cores use the engine's clock. The result of an analytic simulation thus depends neither on the order of simultaneous
 * events nor on earlier experiments. */
#ifndef TWS_SIM_EXECUTOR_H
#define TWS_SIM_EXECUTOR_H

#include "base/memory.h"
#include "models/collective.h"
#include "sim/platform.h"
#include "sim/sim.h"

typedef struct tws_sim_rank {
  const tws_plan *plan;
  double *cost;    /* [work of the plan] seconds of the kernel or collective; NaN: not computed yet */
  tws_launches launches; /* the slowdown of this plan's kernels by launches on the host */
  double compute_s, other_s;
} tws_sim_rank;

/* One flow in a communicator, or in a communicator that the simulated one represents. */
typedef struct tws_flow {
  /* from, to: ranks; from_index, to_index: their indices in the communicator, set only for edges of pairwise exchanges
   * (all-to-all) */
  int from, to, replica, from_index, to_index;
  int links[TWS_PATH_MAX];
  double share; /* fraction of the bytes that a whole ring, or a pairwise exchange, sends along each edge */
} tws_flow;

typedef struct tws_flows {
  tws_flow *of; /* array of flows; NULL: not built yet */
  size_t count;
} tws_flows;

/* The flows of a communicator, which are built when they are first needed. */
typedef struct tws_sim_pattern {
  /* [replica_count][size] ranks of the communicators that this one represents; NULL: not built yet */
  const int *replicas;
  int replica_count;
  tws_flows flows[2]; /* flows of rings; flows of pairwise exchanges and messages */
  int alone;          /* message fidelity, 1: no other operation uses its links during its collectives */
  struct tws_sim_known *known;
  /* flow fidelity: list of the waits before the flows of rings, one for each number of bytes */
  struct tws_sim_ring_wait *waits;
} tws_sim_pattern;

/* A rendezvous that has started. */
typedef struct tws_sim_transfer {
  uint32_t pending; /* number of its flows or messages that have not ended */
  /* date in seconds at which its timer ends: the end of the rendezvous, or of the latency before its flows */
  double end_s;
  struct tws_sim_messages *messages;
} tws_sim_transfer;

typedef struct tws_sim {
  const tws_sim_request *request;
  tws_platform platform;
  tws_arena *arena;
  tws_sim_rank *ranks;
  int rank_count, world;
  tws_run *run;     /* the run order's state; its indices of ranks, communicators and rendezvous are used here too */
  unsigned classes; /* if representative ranks are simulated: bit mask of the axes along which they differ */
  int serial;       /* 1: each rank has one queue for all streams */
  /* 1: the ranks of a node need more cores than it has, so operations are executions on shared cores instead of
   * timers */
  int share_cores;
  /* 1: the ranks of a node need more cores than it has, but only one representative rank is simulated, so its compute
   * costs are multiplied by the ratio */
  int slowdown;
  int cores;
  /* 1: GPUs are simulated with all ranks, so the host's links and memory and the disks are links that flows share */
  int host_flows;
  tws_sim_pattern *patterns;   /* per communicator: its flows */
  tws_sim_transfer *transfers; /* per rendezvous: its state since it started */
  /* message fidelity, per link: 1 + the communicator, where one alone uses it; NULL: not built yet */
  uint32_t *link_users;
  double now_s;         /* time of the current event */
  double armed_s;       /* simulated time for which the engine's alarm for network events is set */
  uint64_t events, finished, operations; /* numbers of events, of finished operations, and of operations of all ranks */
  double end_s;
  tws_timeline *timeline;
  tws_code failed;
  tws_error *err;
} tws_sim;

/* The kinds of events. The tag of an event consists of its kind and two numbers (tws_sim_tag()); the comments say what
 * the numbers of each kind are. */
typedef enum tws_sim_event {
  TWS_EVENT_TIMER,      /* the timer of an operation ended; numbers: rank, operation */
  TWS_EVENT_EXECUTION,  /* an operation on shared cores ended; numbers: rank, operation */
  TWS_EVENT_RENDEZVOUS, /* the timer of a rendezvous ended; number: rendezvous */
  TWS_EVENT_FLOW,       /* a flow of a rendezvous ended; number: rendezvous */
  TWS_EVENT_SENT,       /* a message of a ring left its sender; numbers: rendezvous, edge */
  TWS_EVENT_ARRIVED,    /* a message reached its receiver; numbers: rendezvous, edge */
  TWS_EVENT_POSTED,     /* a sender posts a message to another node; numbers: rendezvous, edge */
  TWS_EVENT_NETWORK,    /* the network's next event is due */
  TWS_EVENT_LINKS,      /* links change their bandwidth */
  /* one of the up to three segments of an operation on shared resources ended; numbers: rank, operation */
  TWS_EVENT_SHARED
} tws_sim_event;
static inline uint64_t tws_sim_tag(tws_sim_event event, uint32_t a, uint32_t b) {
  return (uint64_t)event << 60 | (uint64_t)a << 32 | b; /* a is below 2^28 */
}

/* Records the first failure; the simulation then starts no further operations. */
void tws_sim_fail(tws_sim *sim, tws_code code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Returns the cost of a work in seconds, which it caches. If the cost is negative or not finite, it fails the
 * simulation and returns 0. */
double tws_sim_cost(tws_sim *sim, uint32_t rank, uint32_t work);
/* Returns the seconds that the request's effects return for an operation of these members that would take `seconds`;
 * without such an effect, `seconds`. */
double tws_sim_perturbed_s(const tws_sim *sim, const tws_run_member *members, uint32_t count, double start_s,
                           double seconds);
void tws_sim_timer(tws_sim *sim, double date_s, uint64_t tag);
/* Sets a timer in the flow solver, which is faster than the engine if there are many short timers. */
void tws_sim_date(tws_sim *sim, double date_s, uint64_t tag);
/* shared.c: tws_sim_is_shared() returns 1 if an operation runs as flows over shared resources, in up to three segments;
 * tws_sim_begin_shared() begins segment number `segment`, or ends the operation if there is no such segment. */
int tws_sim_is_shared(const tws_sim *sim, uint32_t rank, uint32_t op);
void tws_sim_begin_shared(tws_sim *sim, uint32_t rank, uint32_t op, int segment);
/* Ends an operation, and starts the operations that waited for it. */
void tws_sim_finish(tws_sim *sim, uint32_t rank, uint32_t op, double end_s);

/* Returns a bit mask of the axes along which two of these ranks differ. */
unsigned tws_sim_axes(const tws_topology *topology, const int *ranks, int count);
/* patterns.c: tws_sim_flows() returns the flows of a communicator's collective (row NULL: of its point-to-point
 * messages), tws_sim_pattern_of() the pattern of the communicator. tws_sim_fold_flows() removes flows that other flows
 * represent, before the simulation runs. */
const tws_flows *tws_sim_flows(tws_sim *sim, uint32_t communicator, const tws_collective_row *row);
tws_sim_pattern *tws_sim_pattern_of(tws_sim *sim, uint32_t communicator);
void tws_sim_fold_flows(tws_sim *sim);
/* collectives.c. tws_sim_start_rendezvous() is called when all members of a rendezvous have arrived,
 * tws_sim_transfer_event() when an event of a rendezvous occurred; tws_sim_end_transfer() ends a rendezvous;
 * tws_sim_start_flow() starts one of its flows. */
void tws_sim_start_rendezvous(tws_sim *sim, uint32_t rendezvous);
void tws_sim_transfer_event(tws_sim *sim, tws_sim_event event, uint32_t rendezvous, uint32_t edge);
void tws_sim_end_transfer(tws_sim *sim, uint32_t rendezvous, double end_s);
void tws_sim_start_flow(tws_sim *sim, const int *links, double bytes, int message, uint64_t tag);
/* Returns the seconds of latency of a rendezvous: the time until the first of `bytes` bytes is sent, and the time
 * between the steps. */
double tws_sim_latency(const tws_sim *sim, const tws_rendezvous *met, double bytes);
/* tws_sim_traffic() returns the factors by which a collective's bytes load ports and NICs; tws_sim_same_node() returns
 * 1 if two ranks are on one node. */
tws_traffic tws_sim_traffic(const tws_sim *sim, const tws_rendezvous *met);
int tws_sim_same_node(const tws_sim *sim, int rank, int other);
/* messages.c. tws_sim_messages_start() returns the seconds before the first message; tws_sim_begin_messages() begins
 * the messages; the last three handle the events that a message was posted, has left its sender, has reached its
 * receiver. */
double tws_sim_messages_start(const tws_sim *sim, const tws_rendezvous *met);
void tws_sim_begin_messages(tws_sim *sim, uint32_t rendezvous);
void tws_sim_message_posted(tws_sim *sim, uint32_t rendezvous, uint32_t edge);
void tws_sim_message_sent(tws_sim *sim, uint32_t rendezvous, uint32_t edge);
void tws_sim_message_arrived(tws_sim *sim, uint32_t rendezvous, uint32_t edge);

tws_code tws_sim_run(const tws_sim_request *request, tws_sim_result *result, tws_error *err);

#endif
