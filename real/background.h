/* Work that overlaps with training: a thread with one task, and a snapshot of state that the thread copies and
 * reads. */
#ifndef TWS_REAL_BACKGROUND_H
#define TWS_REAL_BACKGROUND_H

#include <pthread.h>
#include <stdatomic.h>
#include "checkpoint/slice.h"
#include "real/executor.h"

typedef tws_code (*tws_task_body)(void *user, tws_error *err);
/* Zero-initialized: no task was started. */
typedef struct tws_task {
  pthread_t thread;
  int started;
  atomic_int ended;
  tws_task_body body;
  void *user;
  tws_code code;
  tws_error err;
} tws_task;

/* TWS_ENVIRONMENT: no thread can be created. The thread blocks all signals. */
tws_code tws_task_start(tws_task *task, tws_task_body body, void *user, tws_error *err);
/* Returns 1 if the body has returned, or no task was started. */
int tws_task_ended(const tws_task *task);
/* Joins the thread and returns the body's result; TWS_OK if no task was started. */
tws_code tws_task_wait(tws_task *task, tws_error *err);
/* Called inside a task: lowers the thread's scheduling priority, so that its remaining work yields to threads that
 * compute. */
void tws_task_yield(void);

/* snapshot of the state; see above */
typedef struct tws_snapshot {
  const tws_plan *plan;
  tws_executor *executor;
  const uint32_t *buffer; /* plan buffers, by entry */
  const tws_piece *pieces;
  uint32_t count;
  int overlaps;          /* 1: a thread may copy; 0: the state is in memory of the device or the disk, which the
                            training thread alone may read */
  uint32_t gate;         /* the operation that waits for the copy; the number of operations where none does */
  unsigned char *bytes;  /* NULL: there is no memory for a copy */
  uint64_t size, *place; /* offset of each segment, in bytes */
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int taken;
} tws_snapshot;

/* The caller sets the first five members. The memory is allocated and touched here if it needs at most `limit`
 * bytes; otherwise `bytes` stays NULL. */
tws_code tws_snapshot_open(tws_snapshot *snapshot, uint64_t limit, tws_error *err);
void tws_snapshot_close(tws_snapshot *snapshot);
void tws_snapshot_begin(tws_snapshot *snapshot); /* marks the next copy as not taken yet */
tws_code tws_snapshot_take(tws_snapshot *snapshot, tws_error *err);
void tws_snapshot_wait(tws_snapshot *snapshot); /* until the copy is taken, or has failed */
/* A tws_piece_source that reads the copy. */
tws_code tws_snapshot_get(void *snapshot, const tws_piece *piece, uint64_t first, uint64_t count, void *to,
                          tws_error *err);

#endif
