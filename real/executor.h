/* The plan executor runs one rank's programs over a table of kernels and a communicator, as often as asked. Memory:
 * each tier has one allocation with exactly the bytes of the state, and one with those of the largest program, which
 * all programs share: only state survives from one program to the next. Every operand's address and every collective's
 * segments are resolved once, so a step is a loop over calls. Operations start in issue order. A backend with wait()
 * runs the plan's streams concurrently: an operation that another stream waits for signals an event when it has ended,
 * and each operation first waits for exactly the events of its dependencies. A backend without wait() runs each
 * operation to its end at once, and issue order suffices. Copies from and to a disk overlap with either, in the order
 * of their stream (real/disk.h); operations that depend on one wait for it. On a backend with streams, operations on
 * the host's cores and on a disk are functions that the streams call in their order (real/host_work.h). A backend that
 * can record a step (CUDA graph) runs the first step of one program (`recorded`) operation by operation, records the
 * second, and launches it and all later ones as a whole. Other programs, steps that are timed or probed, and all steps
 * after a failed recording run operation by operation. Running in issue order cannot deadlock if tws_plans_verify()
 * finds no fault: the verifier tries that order. */
#ifndef TWS_REAL_EXECUTOR_H
#define TWS_REAL_EXECUTOR_H

#include <stdatomic.h>
#include "real/disk.h"
#include "real/host_work.h"
#include "real/real.h"

typedef struct tws_executor tws_executor;

typedef struct tws_executor_setup {
  const tws_plan *const *programs; /* programs of one rank, with equal groups; the array and the plans must outlive the
                                    * executor */
  int program_count;
  int recorded; /* index of the program whose steps a backend that can record them launches as a whole */
  const tws_backend_ops *ops;
  tws_backend *backend;
  tws_host_work
      *host; /* for a backend with streams: runs operations on the host's cores and disks, and must outlive the
                        * executor; NULL: plans with such operations are refused */
  const tws_comm_ops *comm_ops;
  tws_comm *comm;
  char *activity; /* see tws_train_options, or NULL */
  size_t activity_bytes;
  uint64_t device_limit; /* bytes that the device tier's arenas may use; 0: all available memory */
  tws_disk_setup disk;   /* folder and parameters for arenas on a disk */
} tws_executor_setup;

/* Creates an executor. If the communicator allocates memory, all ranks of the world have to call it. Fails with
 * TWS_MEMORY if the arena of a tier cannot be allocated, with TWS_UNSUPPORTED if the backend lacks a kernel, and with
 * TWS_INTERNAL if a plan exceeds its own buffers. */
tws_code tws_executor_create(const tws_executor_setup *setup, tws_executor **out, tws_error *err);
void tws_executor_destroy(tws_executor *executor);

/* Returns the bytes of all arenas of this tier. */
uint64_t tws_executor_allocated(const tws_executor *executor, tws_tier tier);

/* Returns the bytes that all disk arenas have transferred since their creation. */
tws_disk_count tws_executor_disk_transferred(const tws_executor *executor);

/* Copy data into or out of a buffer of a program, from element `offset` on; to be called between steps. */
tws_code tws_executor_put(tws_executor *executor, int program, uint32_t buffer, uint64_t offset, const void *from,
                          uint64_t count, tws_error *err);
/* Sets all elements of a buffer of float64 numbers to 0. */
tws_code tws_executor_zero(tws_executor *executor, int program, uint32_t buffer, tws_error *err);
tws_code tws_executor_get(tws_executor *executor, int program, uint32_t buffer, uint64_t offset, void *to,
                          uint64_t count, tws_error *err);

/* Sets *at to the address of a range of a buffer, in memory of the buffer's tier. */
tws_code tws_executor_find(const tws_executor *executor, int program, uint32_t buffer, uint64_t offset, uint64_t count,
                           const void **at, tws_error *err);

/* Called before each operation: it may wait for a snapshot of the state, or inject a fault. */
typedef tws_code (*tws_executor_probe)(void *user, uint32_t op, tws_error *err);

/* Runs one step of a program. If `times` is not NULL, it receives the start and end of every operation: double
 * [op_count][2], seconds of tws_clock_s(). An error names the operation that failed. `step` is shown in the activity
 * line. */
tws_code tws_executor_step(tws_executor *executor, int program, int64_t step, double *times, tws_executor_probe probe,
                           void *user, tws_error *err);
/* Run one step in two calls. After tws_executor_start() a backend with streams may still be computing, and other
 * streams can be given work that overlaps with it; tws_executor_finish() waits until the step has ended. A backend
 * without streams has completed the step when tws_executor_start() returns. */
tws_code tws_executor_start(tws_executor *executor, int program, int64_t step, double *times, tws_executor_probe probe,
                            void *user, tws_error *err);
tws_code tws_executor_finish(tws_executor *executor, int program, double *times, tws_error *err);
/* Runs operations [first, end) of a program and waits until they have ended. The parts of a step are run in order, the
 * first from 0 on and the last up to the program's end; between them tws_executor_put() and tws_executor_get() may be
 * called. Parts are not recorded. */
tws_code tws_executor_part(tws_executor *executor, int program, uint32_t first, uint32_t end, int64_t step,
                           tws_error *err);
/* Returns the reason why steps are not launched as a recording; NULL: they are, or recording was not requested. */
const char *tws_executor_not_recorded(const tws_executor *executor);

/* ---- for an emulator, which decides when operations of several ranks run ---- */
/* Runs an operation that needs no other rank, and returns when it has ended. */
tws_code tws_executor_run(tws_executor *executor, int program, uint32_t op, tws_error *err);
/* Returns the segments of a collective in this rank's memory; *count is their number. */
const tws_comm_segment *tws_executor_segments(const tws_executor *executor, int program, uint32_t op, int *count);
/* Returns the address of a message's data (the data to send, or the memory to receive into); *bytes: their number of
 * bytes. */
void *tws_executor_message(const tws_executor *executor, int program, uint32_t op, uint64_t *bytes);

/* Returns a value that changes with the operation that is running; may be called from any thread. */
const void *tws_executor_at(const tws_executor *executor);
/* Describes the operation that is running by its tws_op_label() and the ranks that it waits for ("forward
 * h.0.mlp.c_proj all_reduce (model group of ranks 0 1)", "backward recv (rank 3)"). May be called from any thread;
 * returns `buffer`. */
const char *tws_executor_activity(const tws_executor *executor, char *buffer, int size);
const char *tws_executor_label(const tws_executor *executor, int program, uint32_t op);

#endif
