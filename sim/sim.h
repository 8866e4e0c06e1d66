/* The simulator executes plans with SimGrid's engine. It is a shared library (twinspeed_sim.so) that exports one table
 * of functions, and is loaded when a verb of the program needs it, so that planning needs no SimGrid. SimGrid has one
 * engine per process, so experiments run one after another at increasing times of its clock. */
#ifndef TWS_SIM_H
#define TWS_SIM_H

#include "base/log.h"
#include "estimators/estimators.h"
#include "traces/timeline.h"

typedef enum tws_fidelity {
  TWS_FIDELITY_ANALYTIC, /* a collective is one timer with the closed formula or measured table */
  TWS_FIDELITY_FLOW,     /* a collective is one flow per ring edge, links are shared */
  TWS_FIDELITY_MESSAGE,  /* every step of the ring is a flow; this validates the analytic and the flow fidelity */
  TWS_FIDELITY_SIMGRID   /* the flows of TWS_FIDELITY_FLOW in SimGrid's network model */
} tws_fidelity;
#define TWS_FIDELITIES "analytic", "flow", "message", "simgrid" /* names in this order */
static inline int tws_fidelity_has_flows(tws_fidelity fidelity) {
  return fidelity == TWS_FIDELITY_FLOW || fidelity == TWS_FIDELITY_SIMGRID;
}

/* Callbacks of an emulator. `ran` and `met` (either may be NULL) are called when an operation ends, before operations
 * that depend on it start. `rank` is the index of the plan. Effects are not allowed with `fold`, since each rank has
 * its own effects. A callback that fails ends the simulation. */
typedef struct tws_sim_effects {
  /* called when a kernel or copy has ended */
  tws_code (*ran)(void *user, uint32_t rank, uint32_t op, double end_s, tws_error *err);
  tws_code (*met)(void *user, const tws_run_member *members, uint32_t count, double end_s,
                  tws_error *err); /* called when a collective or message has ended, with all its members */
  /* Called when an operation begins that would take `seconds` (for a transfer, after its latency; not called for
   * flows). Returns the seconds that it takes on devices and links that are slower than their profile. NULL: it takes
   * `seconds`. */
  double (*takes)(void *user, const tws_run_member *members, uint32_t count, double start_s, double seconds);
  /* For flows and messages: returns the available fraction (0 to 1) of the bandwidth of a rank's link at time at_s, and
   * writes until which time it applies. network 1: the link is the NIC that the rank uses; 0: its port inside the node.
   * NULL: the whole bandwidth is always available. */
  double (*share)(void *user, int rank, int network, double at_s, double *until_s);
  void *user;
} tws_sim_effects;

/* If `fold` is 1, the plans are those of representative ranks. Each rank represents the ranks that differ from it only
 * along axes of the topology on which no two of the plans differ. The usual set is one rank of each pipeline stage, at
 * coordinate 0 of the other axes; a single plan represents all ranks. The cost of a collective follows from the nodes
 * of the simulated rank's group; the flows of all ranks are simulated. */
typedef struct tws_sim_request {
  const tws_plan *const *plans; /* plans, one for each simulated rank */
  int plan_count;
  int fold; /* 1: the plans are those of representative ranks, so there may be fewer plans than ranks */
  tws_machine machine;
  tws_fidelity fidelity;
  tws_timeline *timeline;         /* filled with the simulated operations; NULL: no timeline */
  const tws_sim_effects *effects; /* NULL: none */
  tws_path_result *paths;         /* [plan_count] time account of each simulated rank; NULL: not wanted */
  double *const *times;           /* [plan_count]: [op_count][2] seconds at which each operation was ready, and at which
                                   * it ended; NULL: not wanted */
  tws_progress *progress;         /* counts the operations that have ended; NULL: no progress is reported */
} tws_sim_request;

typedef struct tws_sim_result {
  double step_s;
  /* busy seconds of the compute stream of plans[0], and of its other streams */
  double rank_compute_s, rank_communication_s;
  double exposed_s;
  double bubble; /* share of the step (0 to 1) in which the average simulated rank waits for others */
  uint64_t events;
  tws_path_result path; /* time account of plans[0], as the estimator's longest path has it, with flops */
} tws_sim_result;

typedef struct tws_sim_api {
  int version; /* TWS_INTERFACE of build_interface.h */
  /* Simulates a step. Fails with TWS_INTERNAL if the simulation deadlocks; the message names the first operation that
   * cannot start. */
  tws_code (*simulate)(const tws_sim_request *request, tws_sim_result *result, tws_error *err);
  const char *(*description)(void); /* returns the name and version of the engine, such as "SimGrid 3.32" */
} tws_sim_api;

/* The module exports: const tws_sim_api *tws_sim_module(void); */
#define TWS_SIM_MODULE_SYMBOL "tws_sim_module"

#endif
