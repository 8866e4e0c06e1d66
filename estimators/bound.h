/* Lower bounds for searches: the least time and memory of a step, from plans of few micro-batches.
 *
 * No step is shorter than the busy time of any resource that works serially: a stream, or a channel (a communicator, a
 * copy engine, the disk), of any pipeline stage. To this are added the earliest start of the resource's first operation
 * and the longest path from the end of its last operation until the step is complete: warm-up and drain of a pipeline,
 * gradient reductions, and the update after the last backward pass. All three are read from plans of three
 * micro-batches or a few more; each further micro-batch adds the least that a middle one adds to the resource. No
 * technique has a case of its own here: whatever it does is on some stream of the plan.
 *
 * Without a pipeline all micro-batches are equal, so a tighter bound is valid: the longest path through an operation of
 * a middle micro-batch, lengthened by the resource's busy time for the micro-batches that were not planned. */
#ifndef TWS_ESTIMATORS_BOUND_H
#define TWS_ESTIMATORS_BOUND_H

#include "estimators/estimators.h"

typedef struct tws_bound {
  double step_s;     /* seconds; no step is shorter */
  tws_ledger ledger; /* lower bound of live bytes, of the rank with the most on its device; arena_bytes equal them */
  int whole;         /* 1: all micro-batches were planned, so that step_s leaves out only waits for memory */
  uint64_t print;    /* hash of the plans: equal for equal plans among jobs that differ only in keys of ZeRO */
} tws_bound;

/* Costs in place of a machine's: seconds of a plan's work, and of its message to or from `peer`. */
typedef struct tws_bound_costs {
  double (*work)(void *user, const tws_plan *plan, uint32_t work);
  double (*message)(void *user, const tws_plan *plan, uint32_t peer, uint32_t work);
  int serial; /* one queue for all streams of a rank */
  void *user;
} tws_bound_costs;

/* Bounds a training step; ignores request->rank and ->max_accumulation. Errors: those of tws_plan_build(). */
tws_code tws_bound_step(const tws_plan_request *request, const tws_machine *machine, tws_bound *out, tws_error *err);
/* The same at the given costs (for tests). */
tws_code tws_bound_step_at(const tws_plan_request *request, const tws_bound_costs *costs, tws_bound *out,
                           tws_error *err);

/* The same for the layers alone: kernels of the passes, collectives of tensor- and sequence-parallel ranks, and
 * messages between stages; all other operations take no time. The bound does not depend on how parameters, gradients
 * and optimizer states are partitioned, reduced and offloaded. */
tws_code tws_bound_layers(const tws_plan_request *request, const tws_machine *machine, tws_bound *out, tws_error *err);

/* Bounds the part of the first stage's step that does not depend on how parameters, gradients and optimizer states are
 * partitioned, reduced and offloaded: the time of forward and backward passes on the compute stream (kernels, and
 * collectives of tensor- and sequence-parallel ranks there), and the bytes of activations, checkpoints, their
 * gradients, workspaces and inputs. It lowers one plan. */
tws_code tws_bound_passes(const tws_plan_request *request, const tws_machine *machine, tws_bound *out, tws_error *err);

/* Bytes of the first stage without activations and their gradients, checkpoints, workspaces and inputs. */
typedef struct tws_bound_bytes {
  tws_ledger always; /* buffers that live for the whole program or longer; added to the ledger of tws_bound_passes(), at
                        most the whole stage's */
  tws_ledger end;    /* when the optimizer phase begins, with all gradients that wait for it */
} tws_bound_bytes;
tws_code tws_bound_state(const tws_plan_request *request, tws_bound_bytes *out, tws_error *err);

#endif
