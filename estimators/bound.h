/* Lower bounds for searches: what a step takes and needs at least, from plans of few micro-batches.
 *
 * No step is shorter than the busy time of any resource that works serially: a stream, or a channel (a communicator, a
 * copy engine, the disk), of any pipeline stage. A resource starts when its first operation may start at the earliest
 * and, after its last operation, the step still takes the longest path from there to its end: the fill and the drain of
 * a pipeline, the reductions and the update after the last backward pass. All three are read off plans of three
 * micro-batches or a few more; each further micro-batch adds the least that a middle one adds to the resource. Nothing
 * here knows a technique: what a new one does is on some stream of the plan.
 *
 * Without a pipeline a micro-batch repeats the one before it, so a tighter path is known: the longest one of the few
 * micro-batches through an operation of a middle one, and what the resource does for the micro-batches that are left
 * out inserted there. */
#ifndef TWS_ESTIMATORS_BOUND_H
#define TWS_ESTIMATORS_BOUND_H

#include "estimators/estimators.h"

typedef struct tws_bound {
  double step_s;     /* seconds: no step is shorter */
  tws_ledger ledger; /* live bytes at least, of the rank with most of them on its device; arenas are equal to them */
  int whole;         /* all micro-batches were looked at, so that step_s lacks waits for memory alone */
  uint64_t print;    /* of jobs that differ in keys of ZeRO alone: equal ones have equal plans */
} tws_bound;

/* Other costs than a machine's: seconds of a plan's work, and of its message to or from `peer`. */
typedef struct tws_bound_costs {
  double (*work)(void *user, const tws_plan *plan, uint32_t work);
  double (*message)(void *user, const tws_plan *plan, uint32_t peer, uint32_t work);
  int serial; /* one queue for all streams of a rank */
  void *user;
} tws_bound_costs;

/* Of a training step; request->rank and ->max_accumulation are not looked at. Errors: those of tws_plan_build(). */
tws_code tws_bound_step(const tws_plan_request *request, const tws_machine *machine, tws_bound *out, tws_error *err);
/* The same at other costs (for tests). */
tws_code tws_bound_step_at(const tws_plan_request *request, const tws_bound_costs *costs, tws_bound *out,
                           tws_error *err);

/* The same of what layers do alone: kernels of the passes, what tensor and sequence ranks exchange, and messages
 * between stages; all else takes no time. It does not depend on how parameters, gradients and the optimizer's states
 * are partitioned, reduced and offloaded. */
tws_code tws_bound_layers(const tws_plan_request *request, const tws_machine *machine, tws_bound *out, tws_error *err);

/* What the forward and backward passes of the first stage take on the stream that computes, kernels and what tensor and
 * sequence ranks exchange there, and what activations, checkpoints, their gradients, workspaces and inputs need: the
 * part of a step that does not depend on how parameters, gradients and the optimizer's states are partitioned, reduced
 * and offloaded. One plan is lowered. */
tws_code tws_bound_passes(const tws_plan_request *request, const tws_machine *machine, tws_bound *out, tws_error *err);

/* Bytes of the first stage without activations and what goes with them. */
typedef struct tws_bound_bytes {
  tws_ledger always; /* what lives as long as the program or longer; with the ledger of tws_bound_passes() it is at most
                      * that of the whole */
  tws_ledger end;    /* when the passes have ended and the optimizer begins, with all gradients that wait for it */
} tws_bound_bytes;
tws_code tws_bound_state(const tws_plan_request *request, tws_bound_bytes *out, tws_error *err);

#endif
