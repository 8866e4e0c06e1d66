/* What goes on beside training: a thread with one task, and a copy of state that it makes and reads. */
#ifndef TWS_REAL_BACKGROUND_H
#define TWS_REAL_BACKGROUND_H

#include <pthread.h>
#include <stdatomic.h>
#include "checkpoint/slice.h"
#include "real/executor.h"

typedef tws_code (*tws_task_body)(void *user, tws_error *err);
/* Zeroed: nothing was started. */
typedef struct tws_task {
  pthread_t thread;
  int started;
  atomic_int ended;
  tws_task_body body;
  void *user;
  tws_code code;
  tws_error err;
} tws_task;

/* TWS_ENVIRONMENT: no thread can be had. The thread gets no signals. */
tws_code tws_task_start(tws_task *task, tws_task_body body, void *user, tws_error *err);
/* Whether its body has returned; 1 where nothing was started. */
int tws_task_ended(const tws_task *task);
/* Waits for the body and hands on what it returned; TWS_OK where nothing was started. */
tws_code tws_task_wait(tws_task *task, tws_error *err);
/* From inside a task: what is left of it may wait for whoever computes. */
void tws_task_yield(void);

/* A copy of pieces of the state. Between two steps, and until the step's first operation that changes any of them, it
 * can be taken by a thread of its own where `beside` says so; that operation waits for it. */
typedef struct tws_snapshot {
  const tws_plan *plan;
  tws_executor *executor;
  const uint32_t *buffer; /* of the plan, by entry */
  const tws_piece *pieces;
  uint32_t count;
  int beside;            /* 0: the device's or the disk's memory, which the thread that trains alone may read */
  uint32_t gate;         /* the operation that waits; the number of operations where none does */
  unsigned char *bytes;  /* NULL: there is no room for one */
  uint64_t size, *place; /* of each piece, in bytes */
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int taken;
} tws_snapshot;

/* The caller sets the first five members. Its memory is taken and touched here, and only where `limit` bytes are
 * enough: otherwise `bytes` stays NULL. */
tws_code tws_snapshot_open(tws_snapshot *snapshot, uint64_t limit, tws_error *err);
void tws_snapshot_close(tws_snapshot *snapshot);
void tws_snapshot_begin(tws_snapshot *snapshot); /* the next one is not taken yet */
tws_code tws_snapshot_take(tws_snapshot *snapshot, tws_error *err);
void tws_snapshot_wait(tws_snapshot *snapshot); /* until it is taken, or has failed */
/* A tws_piece_source of what was taken. */
tws_code tws_snapshot_get(void *snapshot, const tws_piece *piece, uint64_t first, uint64_t count, void *to,
                          tws_error *err);

#endif
