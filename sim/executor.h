/* The executor's state, shared by its parts. Internal to sim/.
 *
 *   executor.c     starts what the run order (plan/run_order.h) says may start, and tells it what ended when
 *   collectives.c  what a rendezvous does, by fidelity
 *   messages.c     a collective step by step
 *   solver.c       flows that share links: in fluid.c, for which a timer of the engine wakes the executor, or SimGrid's
 *   patterns.c     the flows of communicators, and which of them stand for others
 *   shared.c       copies between tiers and the host's computing, as flows over what a node's ranks share
 *   platform.c     links and cores
 *
 * Times are exact where nothing is shared: an operation starts at the latest end of what it waits for, and a timer
 * ends at start + cost whatever the engine's clock says. Only shared cores take the engine's time. So the
 * result of an analytic simulation does not depend on the order of simultaneous events, nor on earlier experiments. */
#ifndef TWS_SIM_EXECUTOR_H
#define TWS_SIM_EXECUTOR_H

#include "base/memory.h"
#include "models/collective.h"
#include "sim/platform.h"
#include "sim/sim.h"

typedef struct tws_sim_rank {
  const tws_plan *plan;
  double *cost;    /* of each work; NaN: not asked for yet */
  double launched; /* tws_plan_host_stretch() */
  double compute_s, other_s;
} tws_sim_rank;

/* One flow of a communicator or one of its replicas. */
typedef struct tws_flow {
  int from, to, replica, from_index, to_index; /* ranks; places in the communicator: of pairs alone */
  int links[TWS_PATH_MAX];
  double share; /* of the bytes that a whole ring moves along each edge; of pairs: of a pair's */
} tws_flow;

typedef struct tws_flows {
  tws_flow *of; /* NULL: not made */
  size_t count;
} tws_flows;

/* What a communicator sends, made when it is first needed. */
typedef struct tws_sim_pattern {
  const int
      *replicas; /* replica_count x size: ranks of the communicators whose flows this one's stand for; NULL: not made */
  int replica_count;
  tws_flows flows[2]; /* rings; pairs and messages */
  int alone;          /* by messages: nothing else uses its links while a collective of it is under way */
  struct tws_sim_known *known;
  struct tws_sim_late *late; /* by flows: what rings take longer than the formula says, by bytes */
} tws_sim_pattern;

/* A rendezvous that has started. */
typedef struct tws_sim_transfer {
  uint32_t pending; /* flows or messages under way */
  double end_s;     /* of its timer: the end, or of the latency before the flows */
  struct tws_sim_messages *messages;
} tws_sim_transfer;

typedef struct tws_sim {
  const tws_sim_request *request;
  tws_platform platform;
  tws_arena *arena;
  tws_sim_rank *ranks;
  int rank_count, world;
  tws_run *run;     /* ranks, communicators and rendezvous by its indices */
  unsigned classes; /* folded: axes on which the simulated ranks differ, a bit each */
  int serial;       /* one queue per rank */
  int share_cores;  /* ranks want more cores than there are: executions instead of timers */
  int stretch;      /* the same, but one rank stands for all: costs are stretched instead */
  int cores;
  int host_flows;              /* what a node's ranks share is links, as they all are here */
  tws_sim_pattern *patterns;   /* per communicator */
  tws_sim_transfer *transfers; /* per rendezvous */
  uint32_t *link_users;        /* by messages, per link: communicator + 1 that alone uses it; NULL: not made */
  double now_s;                /* of the event at hand */
  double armed_s;              /* when the engine wakes the network next */
  uint64_t events, finished, operations; /* finished: of so many operations of all ranks */
  double end_s;
  tws_timeline *timeline;
  tws_code failed;
  tws_error *err;
} tws_sim;

/* What the engine's tags mean. */
typedef enum tws_sim_event {
  TWS_EVENT_TIMER,      /* an operation's timer: rank, op */
  TWS_EVENT_EXECUTION,  /* an operation on shared cores: rank, op */
  TWS_EVENT_RENDEZVOUS, /* a rendezvous' timer: rendezvous */
  TWS_EVENT_FLOW,       /* a flow of a rendezvous: rendezvous */
  TWS_EVENT_SENT,       /* a message of a ring left its sender: rendezvous, edge */
  TWS_EVENT_ARRIVED,    /* and reached its receiver: rendezvous, edge */
  TWS_EVENT_POSTED,     /* its sender came to a message to another node: rendezvous, edge */
  TWS_EVENT_NETWORK,    /* something is due there */
  TWS_EVENT_LINKS,      /* links have another bandwidth from now on */
  TWS_EVENT_SHARED      /* a part of an operation on what a node's ranks share ended: rank, op; and the next two */
} tws_sim_event;
static inline uint64_t tws_sim_tag(tws_sim_event event, uint32_t a, uint32_t b) {
  return (uint64_t)event << 60 | (uint64_t)a << 32 | b; /* a < 2^28 */
}

/* Record the first failure; the simulation then runs dry. */
void tws_sim_fail(tws_sim *sim, tws_code code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Cached cost of a work; fails the simulation and returns 0 when it is not a time. */
double tws_sim_cost(tws_sim *sim, uint32_t rank, uint32_t work);
/* `seconds`, or what the request's effects make of them. */
double tws_sim_takes(const tws_sim *sim, const tws_run_member *members, uint32_t count, double start_s, double seconds);
void tws_sim_timer(tws_sim *sim, double date_s, uint64_t tag);
/* The same among the flows, for many short ones. */
void tws_sim_date(tws_sim *sim, double date_s, uint64_t tag);
/* shared.c: whether an operation is flows; begins it; a part of it has ended: `event` from TWS_EVENT_SHARED on. */
int tws_sim_is_shared(const tws_sim *sim, uint32_t rank, uint32_t op);
void tws_sim_begin_shared(tws_sim *sim, uint32_t rank, uint32_t op, int part);
/* An operation ended. */
void tws_sim_finish(tws_sim *sim, uint32_t rank, uint32_t op, double end_s);

/* Axes on which two of these ranks differ, a bit each. */
unsigned tws_sim_axes(const tws_topology *topology, const int *ranks, int count);
/* patterns.c: the flows of a communicator's collective (NULL: messages), and its replicas. tws_sim_fold_flows() leaves
 * out those that others stand for, before anything runs. */
const tws_flows *tws_sim_flows(tws_sim *sim, uint32_t communicator, const tws_collective_row *row);
tws_sim_pattern *tws_sim_pattern_of(tws_sim *sim, uint32_t communicator);
void tws_sim_fold_flows(tws_sim *sim);
/* collectives.c: all members are there; and what becomes of it. */
void tws_sim_meet(tws_sim *sim, uint32_t rendezvous);
void tws_sim_transfer_event(tws_sim *sim, tws_sim_event event, uint32_t rendezvous, uint32_t edge);
void tws_sim_end_transfer(tws_sim *sim, uint32_t rendezvous, double end_s);
void tws_sim_start_flow(tws_sim *sim, const int *links, double bytes, int message, uint64_t tag);
/* What passes before the first of so many bytes and between the steps. */
double tws_sim_latency(const tws_sim *sim, const tws_rendezvous *met, double bytes);
/* What crosses ports and NICs of a collective's pieces; whether two ranks are on one node. */
tws_traffic tws_sim_traffic(const tws_sim *sim, const tws_rendezvous *met);
int tws_sim_beside(const tws_sim *sim, int rank, int other);
/* messages.c: what passes before the first of them; then one is posted, left its sender, and reached its receiver. */
double tws_sim_messages_start(const tws_sim *sim, const tws_rendezvous *met);
void tws_sim_begin_messages(tws_sim *sim, uint32_t rendezvous);
void tws_sim_message_posted(tws_sim *sim, uint32_t rendezvous, uint32_t edge);
void tws_sim_message_sent(tws_sim *sim, uint32_t rendezvous, uint32_t edge);
void tws_sim_message_arrived(tws_sim *sim, uint32_t rendezvous, uint32_t edge);

tws_code tws_sim_run(const tws_sim_request *request, tws_sim_result *result, tws_error *err);

#endif
