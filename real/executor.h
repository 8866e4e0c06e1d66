/* The plan executor: walks one rank's programs over a table of kernels and a communicator, as often as asked.
 *
 * Memory is, for each tier, one allocation of exactly the bytes of each state, and one of those of the largest program,
 * which all of them use in turn: nothing but state lives from one to the next. Every operand's address and every
 * collective's segments are resolved once, so a step is a loop over calls. Operations start in issue order. A backend
 * with a wait() runs the plan's streams side by side: an operation that another stream waits for signals an event when
 * it has ended, and each operation first waits for exactly those of its dependencies; one without runs an operation to
 * its end at once, and order is all it needs. Copies from and to a disk run beside either, in the order of their stream
 * (real/disk.h); what depends on one waits for it. A backend that can record a step runs the first of programs[0] one
 * operation after another, records the second and starts it and all that follow as a whole; other programs, a step
 * that is timed or probed, and all steps where the recording fails, are run operation by operation.
 *
 * Running in issue order cannot deadlock where tws_plans_verify() finds no fault: that is what it tries. */
#ifndef TWS_REAL_EXECUTOR_H
#define TWS_REAL_EXECUTOR_H

#include <stdatomic.h>
#include "real/disk.h"
#include "real/real.h"

typedef struct tws_executor tws_executor;

typedef struct tws_executor_setup {
  const tws_plan *const *programs; /* of one rank, with equal groups; both must outlive the executor */
  int program_count;
  const tws_backend_ops *ops;
  tws_backend *backend;
  const tws_comm_ops *comm_ops;
  tws_comm *comm;
  char *activity; /* see tws_train_options, or NULL */
  size_t activity_bytes;
  uint64_t device_limit; /* bytes that the device tier's arenas may take; 0: what there is */
  tws_disk_setup disk;   /* of arenas on a disk */
} tws_executor_setup;

/* TWS_MEMORY: the arena of a tier cannot be had; TWS_UNSUPPORTED: the backend has no such kernel; TWS_INTERNAL: a
 * plan that does not fit its own buffers. Collective over the world when the communicator has memory of its own. */
tws_code tws_executor_create(const tws_executor_setup *setup, tws_executor **out, tws_error *err);
void tws_executor_destroy(tws_executor *executor);

uint64_t tws_executor_allocated(const tws_executor *executor, tws_tier tier); /* bytes, of all arenas */

tws_disk_count tws_executor_disk_moved(const tws_executor *executor); /* by all its files since they were made */

/* Between steps: move bytes into and out of a buffer of a program, from element `offset` on. */
tws_code tws_executor_put(tws_executor *executor, int program, uint32_t buffer, uint64_t offset, const void *from,
                          uint64_t count, tws_error *err);
/* Makes all of a buffer of float64 numbers 0. */
tws_code tws_executor_zero(tws_executor *executor, int program, uint32_t buffer, tws_error *err);
tws_code tws_executor_get(tws_executor *executor, int program, uint32_t buffer, uint64_t offset, void *to,
                          uint64_t count, tws_error *err);

/* Where a range of a buffer is: memory of the tier that it is in. */
tws_code tws_executor_find(const tws_executor *executor, int program, uint32_t buffer, uint64_t offset, uint64_t count,
                           const void **at, tws_error *err);

/* What happens before an operation: waiting for a copy of the state, or a fault. */
typedef tws_code (*tws_executor_probe)(void *user, uint32_t op, tws_error *err);

/* One step of a program. Start and end of every operation are recorded when `times` is not NULL: double [op_count][2],
 * seconds of tws_clock_s(). An error says which operation failed. `step` is for the activity line. */
tws_code tws_executor_step(tws_executor *executor, int program, int64_t step, double *times, tws_executor_probe probe,
                           void *user, tws_error *err);
/* The same in two parts. Behind start() a backend with streams may still be at work: other streams can be given
 * something beside it. One without has done the step. */
tws_code tws_executor_start(tws_executor *executor, int program, int64_t step, double *times, tws_executor_probe probe,
                            void *user, tws_error *err);
tws_code tws_executor_finish(tws_executor *executor, int program, double *times, tws_error *err);
/* Why steps that should be started as a whole are not; NULL: they are, or none was meant to be. */
const char *tws_executor_not_recorded(const tws_executor *executor);

/* ---- by an emulator, which decides when operations of several ranks run ---- */
/* An operation that needs no other rank, to its end. */
tws_code tws_executor_run(tws_executor *executor, int program, uint32_t op, tws_error *err);
/* Of a collective: its segments in this rank's memory, and how many. */
const tws_comm_segment *tws_executor_segments(const tws_executor *executor, int program, uint32_t op, int *count);
/* Of a message: what is sent, or where it is received. */
void *tws_executor_message(const tws_executor *executor, int program, uint32_t op, uint64_t *bytes);

/* Something that changes with the operation being run; from any thread. */
const void *tws_executor_at(const tws_executor *executor);
/* The operation being run, from any thread: its tws_op_label(), and whom it waits for ("forward h.0.mlp.c_proj
 * all_reduce (model group of ranks 0 1)", "backward recv (rank 3)"). Returns buffer. */
const char *tws_executor_doing(const tws_executor *executor, char *buffer, int size);
const char *tws_executor_label(const tws_executor *executor, int program, uint32_t op);

#endif
