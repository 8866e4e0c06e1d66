/* The simulator: plans executed by SimGrid. A shared module (twinspeed_sim.so) with one exported table, loaded when a
 * verb needs it, so that planning needs no SimGrid. One engine per process: experiments run one after another at
 * increasing clock offsets. */
#ifndef TWS_SIM_H
#define TWS_SIM_H

#include "base/log.h"
#include "estimators/estimators.h"
#include "traces/timeline.h"

typedef enum tws_fidelity {
  TWS_FIDELITY_ANALYTIC, /* a collective is one timer with the closed formula or measured table */
  TWS_FIDELITY_FLOW,     /* a collective is one flow per ring edge, links are shared */
  TWS_FIDELITY_MESSAGE,  /* every step of the ring is a flow: calibrates the other two */
  TWS_FIDELITY_SIMGRID   /* the flows of TWS_FIDELITY_FLOW, which SimGrid's network model executes */
} tws_fidelity;
#define TWS_FIDELITIES "analytic", "flow", "message", "simgrid" /* their words, in this order */
static inline int tws_fidelity_has_flows(tws_fidelity fidelity) {
  return fidelity == TWS_FIDELITY_FLOW || fidelity == TWS_FIDELITY_SIMGRID;
}

/* What happens beside the passing of time (ran and met, or NULL), when an operation ends and before anything that waits
 * for it starts: an emulator's. `rank` is the index of the plan. Not with `fold`: every rank has effects of its own. An
 * error ends the simulation. */
typedef struct tws_sim_effects {
  tws_code (*ran)(void *user, uint32_t rank, uint32_t op, double end_s, tws_error *err); /* one that meets nobody */
  tws_code (*met)(void *user, const tws_run_member *members, uint32_t count, double end_s,
                  tws_error *err); /* all ends of one */
  /* Asked when an operation begins that would take `seconds` (a transfer behind its latency; flows are not asked for):
   * how long it takes in truth, where devices and links are slower than their profile says. NULL: so long. */
  double (*takes)(void *user, const tws_run_member *members, uint32_t count, double start_s, double seconds);
  /* Of flows and messages: the share of a rank's link that is left at a time, 0 to 1, and until when. network: of its
   * node's network as the rank has it; else of its port inside the node. NULL: all of it, always. */
  double (*share)(void *user, int rank, int network, double at_s, double *until_s);
  void *user;
} tws_sim_effects;

/* With `fold`, the plans are of ranks that stand for the others: each for those that differ from it along the axes of
 * the topology on which no two of the plans differ. One rank of each pipeline stage, at coordinate 0 elsewhere, is the
 * usual set; one plan stands for all ranks. Collectives cost what the placement of the simulated rank's group says;
 * flows are those of all ranks. */
typedef struct tws_sim_request {
  const tws_plan *const *plans; /* one per simulated rank */
  int plan_count;
  int fold; /* 1: plan_count may be less than the world */
  tws_machine machine;
  tws_fidelity fidelity;
  tws_timeline *timeline;         /* filled when not NULL */
  const tws_sim_effects *effects; /* NULL: none */
  tws_path_result *paths;         /* [plan_count] the account of each simulated rank; may be NULL */
  tws_progress *progress;         /* told of operations that ended; NULL: none */
} tws_sim_request;

typedef struct tws_sim_result {
  double step_s;
  double rank_compute_s, rank_communication_s; /* of plans[0]: busy time of the compute stream, of the others */
  double exposed_s;
  double bubble; /* share of the step in which the average simulated rank waits for others */
  uint64_t events;
  tws_path_result path; /* of plans[0], in the words of the longest path; flops included */
} tws_sim_result;

typedef struct tws_sim_api {
  int version; /* TWS_INTERFACE of build_interface.h */
  /* TWS_INTERNAL with the name of the first stuck operation when a simulation cannot end. */
  tws_code (*simulate)(const tws_sim_request *request, tws_sim_result *result, tws_error *err);
  const char *(*description)(void); /* "SimGrid 3.32" */
} tws_sim_api;

/* The module exports: const tws_sim_api *tws_sim_module(void); */
#define TWS_SIM_MODULE_SYMBOL "tws_sim_module"

#endif
