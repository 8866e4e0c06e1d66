/* Work on the host's cores for a rank whose backend has streams of its own (a GPU): the kernels of an offloaded
 * optimizer, copies within host memory, and transfers of an arena on a disk.
 *
 * The executor makes a task of each such operation. It passes tws_host_work_run() and the task to the backend's call(),
 * which calls this function on a thread of the driver when everything that the operation waits for has ended, and again
 * with each replay of a recorded step. Kernels and copies run on one thread of this module, the first of the host
 * backend's pool, so that they are bound to the rank's cores and have a stack of the usual size; they are complete when
 * the call returns. A transfer is only started by its task. An operation that depends on it waits for its end in a task
 * of its own, of the kind TWS_HOST_WAIT if the operation is one of the device.
 *
 * A task cannot report an error to the thread that runs the step. The first error is kept, all later tasks do nothing,
 * and tws_host_work_failed() returns the error after the step. */
#ifndef TWS_REAL_HOST_WORK_H
#define TWS_REAL_HOST_WORK_H

#include "real/disk.h"
#include "real/host/bind.h"
#include "real/real.h"

typedef struct tws_host_work tws_host_work;

/* Creates the host backend with this number of threads, and the thread that runs its kernels. */
tws_code tws_host_work_create(int threads, tws_host_work **out, tws_error *err);
void tws_host_work_destroy(tws_host_work *host); /* to be called when no task runs; NULL is allowed */
/* Binds the threads as tws_host_bind() does. */
tws_code tws_host_work_bind(tws_host_work *host, const tws_cpus *allowed, int index, int count, int *bound, int *near,
                            tws_error *err);
int tws_host_work_supports(const tws_work *work); /* returns 1 if the host backend has a kernel for this work */

typedef enum tws_host_task_kind {
  TWS_HOST_WAIT,     /* waits for a disk transfer, and does nothing else */
  TWS_HOST_KERNEL,   /* runs `work` on the operands */
  TWS_HOST_COPY,     /* copies `bytes` bytes from operand 0 to operand 1, both in host memory */
  TWS_HOST_TRANSFER, /* starts `transfer` and sets *ticket */
} tws_host_task_kind;

typedef struct tws_host_task {
  tws_host_work *host;
  tws_host_task_kind kind;
  const char *label; /* label of the operation, for errors */
  const tws_work *work;
  const tws_arguments *arguments;
  void *const *address; /* [count] */
  const tws_dtype *dtype;
  int count;
  uint64_t bytes;
  tws_disk *disk; /* the disk of the transfer */
  tws_disk_transfer transfer;
  double times[2]; /* start and end of the transfer, tws_clock_s(), once it has ended */
  uint64_t *ticket;
  tws_disk *awaited; /* disk of the transfer that the task waits for first; NULL: it waits for none */
  const uint64_t *awaited_ticket;
} tws_host_task;

void tws_host_work_run(void *task); /* runs a tws_host_task; the executor passes this function, with the task, to the
                                     * call() of the backend */

/* Returns the code of the first task that failed since the module was created, and its error; TWS_OK: none has. */
tws_code tws_host_work_failed(tws_host_work *host, tws_error *err);

#endif
