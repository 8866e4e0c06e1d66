/* Work that overlaps with training: a thread that executes one task, and a snapshot of the state, which the thread
 * copies and reads. */
#ifndef TWS_REAL_BACKGROUND_H
#define TWS_REAL_BACKGROUND_H

#include <pthread.h>
#include <stdatomic.h>
#include "checkpoint/slice.h"
#include "real/executor.h"

typedef tws_code (*tws_task_body)(void *user, tws_error *err);
/* Zero-initialized, it is a task that was not started. */
typedef struct tws_task {
  pthread_t thread;
  int started;
  atomic_int ended;
  tws_task_body body;
  void *user;
  tws_code code;
  tws_error err;
} tws_task;

/* Starts a thread that executes the task's body; the thread blocks all signals. Fails with TWS_ENVIRONMENT if no thread
 * can be created. */
tws_code tws_task_start(tws_task *task, tws_task_body body, void *user, tws_error *err);
/* Returns 1 if the body has returned, or no task was started. */
int tws_task_ended(const tws_task *task);
/* Joins the thread and returns the body's result; TWS_OK if no task was started. */
tws_code tws_task_wait(tws_task *task, tws_error *err);
/* Lowers the scheduling priority of the calling task's thread, so that its remaining work yields to threads that
 * compute. */
void tws_task_yield(void);

/* A copy of segments of the state, which is taken while training continues. */
typedef struct tws_snapshot {
  const tws_plan *plan;
  tws_executor *executor;
  const uint32_t *buffer; /* [state entry] index of its buffer in the plan */
  const tws_piece *pieces;
  uint32_t count;
  int overlaps;          /* 1: a thread may copy the state; 0: the state is in memory of the device or on the disk,
                          * which only the training thread may read */
  uint32_t gate;         /* index of the operation that waits for the copy; the number of operations if none waits */
  unsigned char *bytes;  /* memory of the copy; NULL: there is no memory for one */
  uint64_t size, *place; /* size: bytes of the copy; place: [segment] its offset in the copy, bytes */
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int taken;
} tws_snapshot;

/* Prepares a snapshot, whose first five members the caller has set. Allocates and touches its memory if it needs at
 * most `limit` bytes; otherwise `bytes` stays NULL. */
tws_code tws_snapshot_open(tws_snapshot *snapshot, uint64_t limit, tws_error *err);
void tws_snapshot_close(tws_snapshot *snapshot);
/* Marks the copy as not taken; called before the copy is taken again. */
void tws_snapshot_begin(tws_snapshot *snapshot);
tws_code tws_snapshot_take(tws_snapshot *snapshot, tws_error *err);
void tws_snapshot_wait(tws_snapshot *snapshot); /* waits until the copy has been taken, or has failed */
/* Reads elements from the copy; a tws_piece_source (checkpoint/shard.h). */
tws_code tws_snapshot_get(void *snapshot, const tws_piece *piece, uint64_t first, uint64_t count, void *to,
                          tws_error *err);

#endif
