/* Computes lower bounds of the time and memory of a step for searches, from plans of few micro-batches.
 *
 * No step is shorter than the busy time of any resource that works serially: a stream, or a channel (a communicator, a
 * copy engine, the disk), of any pipeline stage. To this are added the earliest start of the resource's first operation
 * and the longest path from the end of its last operation until the step is complete: warm-up and drain of a pipeline,
 * gradient reductions, and the update after the last backward pass. All three are read from plans of three
 * micro-batches or a few more; each further micro-batch adds the smallest busy time that a middle micro-batch adds to
 * the resource. The bound needs no special cases for techniques such as offloading, since all their operations are on
 * streams of the plan.
 *
 * Without a pipeline all micro-batches are equal, so a tighter bound is valid: the longest path through an operation of
 * a middle micro-batch, lengthened by the resource's busy time for the micro-batches that were not planned. */
#ifndef TWS_ESTIMATORS_BOUND_H
#define TWS_ESTIMATORS_BOUND_H

#include "estimators/estimators.h"

typedef struct tws_bound {
  double step_s; /* seconds; the step takes at least as long */
  /* lower bounds of live bytes, of the rank with the most on its device; arena_bytes are set equal to live_bytes */
  tws_ledger ledger;
  int whole;      /* 1: all micro-batches were planned, so that step_s ignores nothing but waits for memory */
  uint64_t print; /* hash of the plans: jobs that differ only in keys of ZeRO and have equal plans have equal hashes */
} tws_bound;

/* Costs that replace those of a machine: functions that return the seconds of a plan's work, and of its message to or
 * from `peer`. */
typedef struct tws_bound_costs {
  double (*work)(void *user, const tws_plan *plan, uint32_t work);
  double (*message)(void *user, const tws_plan *plan, uint32_t peer, uint32_t work);
  int serial; /* 1: a rank has one queue for all streams */
  void *user;
} tws_bound_costs;

/* Computes lower bounds of the time and memory of a training step, for all ranks and micro-batches: request->rank and
 * ->max_accumulation are ignored. Fails as tws_plan_build() does. */
tws_code tws_bound_step(const tws_plan_request *request, const tws_machine *machine, tws_bound *out, tws_error *err);
/* Computes the bounds of tws_bound_step() with the given costs instead of a machine's; used by tests. */
tws_code tws_bound_step_at(const tws_plan_request *request, const tws_bound_costs *costs, tws_bound *out,
                           tws_error *err);

/* Computes a lower bound of a training step in which only kernels of forward and backward passes, collectives of
 * tensor- and sequence-parallel ranks and messages between stages take time. The bound does not depend on how
 * parameters, gradients and optimizer states are partitioned, reduced and offloaded. */
tws_code tws_bound_layers(const tws_plan_request *request, const tws_machine *machine, tws_bound *out, tws_error *err);

/* Computes lower bounds of the parts of the first stage's step that do not depend on how parameters, gradients and
 * optimizer states are partitioned, reduced and offloaded: the time of forward and backward passes on the compute
 * stream (kernels and collectives of tensor- and sequence-parallel ranks), and the bytes of activations, checkpoints,
 * their gradients, workspaces and inputs. It lowers one plan. */
tws_code tws_bound_passes(const tws_plan_request *request, const tws_machine *machine, tws_bound *out, tws_error *err);

/* Lower bounds of the bytes of the first stage without activations and their gradients, checkpoints, workspaces and
 * inputs. */
typedef struct tws_bound_bytes {
  /* bytes of buffers that live for the whole program or longer; with those of tws_bound_passes() they are at most the
   * bytes of the whole stage */
  tws_ledger always;
  tws_ledger end; /* bytes alive when the optimizer phase begins, with all gradients that wait for it */
} tws_bound_bytes;
tws_code tws_bound_state(const tws_plan_request *request, tws_bound_bytes *out, tws_error *err);

#endif
