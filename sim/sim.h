/* The simulator executes plans with SimGrid's engine. It is a shared library (twinspeed_sim.so) with one exported
 * table, loaded when a verb needs it, so that planning needs no SimGrid. One engine per process: experiments run one
 * after another at increasing clock offsets. */
#ifndef TWS_SIM_H
#define TWS_SIM_H

#include "base/log.h"
#include "estimators/estimators.h"
#include "traces/timeline.h"

typedef enum tws_fidelity {
  TWS_FIDELITY_ANALYTIC, /* a collective is one timer with the closed formula or measured table */
  TWS_FIDELITY_FLOW,     /* a collective is one flow per ring edge, links are shared */
  TWS_FIDELITY_MESSAGE,  /* every step of the ring is a flow; validates the other two */
  TWS_FIDELITY_SIMGRID   /* the flows of TWS_FIDELITY_FLOW in SimGrid's network model */
} tws_fidelity;
#define TWS_FIDELITIES "analytic", "flow", "message", "simgrid" /* names in this order */
static inline int tws_fidelity_has_flows(tws_fidelity fidelity) {
  return fidelity == TWS_FIDELITY_FLOW || fidelity == TWS_FIDELITY_SIMGRID;
}

/* Callbacks of an emulator. `ran` and `met` (or NULL) are called when an operation ends, before operations that depend
 * on it start. `rank` is the index of the plan. Not allowed with `fold`, since each rank has its own effects. An error
 * ends the simulation. */
typedef struct tws_sim_effects {
  tws_code (*ran)(void *user, uint32_t rank, uint32_t op, double end_s, tws_error *err); /* kernel or copy */
  tws_code (*met)(void *user, const tws_run_member *members, uint32_t count, double end_s,
                  tws_error *err); /* collective or message, with all its members */
  /* Called when an operation begins that would take `seconds` (for a transfer after its latency; not for flows).
   * Returns its duration on devices and links that are slower than their profile. NULL: `seconds`. */
  double (*takes)(void *user, const tws_run_member *members, uint32_t count, double start_s, double seconds);
  /* For flows and messages: returns the available fraction of a rank's link at a time, 0 to 1, and until when it
   * applies. network 1: of the NIC that the rank uses; 0: of its port inside the node. NULL: links are always whole. */
  double (*share)(void *user, int rank, int network, double at_s, double *until_s);
  void *user;
} tws_sim_effects;

/* With `fold` the plans are those of representative ranks. Each represents the ranks that differ from it only along
 * axes of the topology on which no two of the plans differ. The usual set is one rank of each pipeline stage, at
 * coordinate 0 of the other axes; a single plan represents all ranks. The cost of a collective follows from the
 * placement of the simulated rank's group; flows are those of all ranks. */
typedef struct tws_sim_request {
  const tws_plan *const *plans; /* one per simulated rank */
  int plan_count;
  int fold; /* 1: plan_count may be less than the world */
  tws_machine machine;
  tws_fidelity fidelity;
  tws_timeline *timeline;         /* filled when not NULL */
  const tws_sim_effects *effects; /* NULL: none */
  tws_path_result *paths;         /* [plan_count], by simulated rank: how its step time is composed; may be NULL */
  tws_progress *progress;         /* reports the operations that have ended; NULL: none */
} tws_sim_request;

typedef struct tws_sim_result {
  double step_s;
  double rank_compute_s, rank_communication_s; /* of plans[0]: busy time of the compute stream, and of the others */
  double exposed_s;
  double bubble; /* share of the step in which the average simulated rank waits for others */
  uint64_t events;
  tws_path_result path; /* of plans[0], in the form of the estimator's longest path, with flops */
} tws_sim_result;

typedef struct tws_sim_api {
  int version; /* TWS_INTERFACE of build_interface.h */
  /* TWS_INTERNAL with the name of the first operation that cannot start if a simulation deadlocks. */
  tws_code (*simulate)(const tws_sim_request *request, tws_sim_result *result, tws_error *err);
  const char *(*description)(void); /* "SimGrid 3.32" */
} tws_sim_api;

/* The module exports: const tws_sim_api *tws_sim_module(void); */
#define TWS_SIM_MODULE_SYMBOL "tws_sim_module"

#endif
