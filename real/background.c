#include "real/background.h"
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "base/memory.h"
#include "base/system.h"
#include "real/split_masters.h"

/* ---- a task ---- */

static void *run_task(void *user) {
  tws_task *task = user;
  task->code = task->body(task->user, &task->err);
  atomic_store_explicit(&task->ended, 1, memory_order_release);
  return NULL;
}

tws_code tws_task_start(tws_task *task, tws_task_body body, void *user, tws_error *err) {
  sigset_t before;
  *task = (tws_task){.body = body, .user = user};
  tws_hold_signals(&before);
  const int failed = pthread_create(&task->thread, NULL, run_task, task);
  tws_release_signals(&before);
  if (failed) return tws_fail(err, TWS_ENVIRONMENT, NULL, "cannot start a thread: %s", strerror(failed));
  task->started = 1;
  return TWS_OK;
}

int tws_task_ended(const tws_task *task) {
  return !task->started || atomic_load_explicit(&task->ended, memory_order_acquire);
}

tws_code tws_task_wait(tws_task *task, tws_error *err) {
  if (!task->started) return TWS_OK;
  pthread_join(task->thread, NULL);
  task->started = 0;
  if (task->code != TWS_OK && err) *err = task->err;
  return task->code;
}

void tws_task_yield(void) {
  setpriority(PRIO_PROCESS, (id_t)gettid(), 10); /* on Linux this affects the calling thread only */
}

/* ---- a snapshot ---- */

static uint64_t bytes_of(const tws_snapshot *s, const tws_piece *piece) {
  return piece->count * tws_dtype_bytes(tws_whole_dtype(&s->plan->state->entries[piece->entry]));
}

static int changes_state(const tws_plan *plan, const tws_op *op) {
  for (uint32_t i = 0; i < op->operand_count; i++) {
    const tws_operand *operand = &plan->operands[op->operand_first + i];
    const tws_buffer *buffer = &plan->buffers[operand->buffer];
    if (buffer->lifetime != TWS_LIFETIME_STATE || !(operand->access & TWS_WRITE)) continue;
    if (plan->state->entries[tws_state_find(plan->state, buffer->name)].checkpointed) return 1;
  }
  return 0;
}

static void find_gate(tws_snapshot *s) {
  s->overlaps = 1;
  for (uint32_t i = 0; i < s->plan->state->count; i++) {
    const int tier = s->plan->state->entries[i].tier;
    if (tier == TWS_TIER_DISK) s->overlaps = 0;
  }
  if (s->plan->backend != TWS_BACKEND_HOST) s->overlaps = 0;
  for (s->gate = 0; s->gate < s->plan->op_count; s->gate++)
    if (changes_state(s->plan, &s->plan->ops[s->gate])) return;
}

tws_code tws_snapshot_open(tws_snapshot *s, uint64_t limit, tws_error *err) {
  s->size = 0;
  s->place = tws_calloc((size_t)s->count + 1, sizeof *s->place);
  if (!s->place) return tws_fail(err, TWS_MEMORY, NULL, "no memory for checkpoints");
  for (uint32_t i = 0; i < s->count; i++) {
    s->place[i] = s->size;
    s->size += (bytes_of(s, &s->pieces[i]) + 63) / 64 * 64;
  }
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->changed, NULL);
  s->taken = 1;
  find_gate(s);
  if (s->size > limit) return TWS_OK;
  s->bytes = tws_calloc(s->size + 1, 1);
  if (s->bytes) memset(s->bytes, 1, s->size + 1); /* touches all pages now, so that no step waits for page faults */
  return TWS_OK;
}

void tws_snapshot_close(tws_snapshot *s) {
  if (!s->place) return;
  pthread_cond_destroy(&s->changed);
  pthread_mutex_destroy(&s->lock);
  tws_free(s->bytes);
  tws_free(s->place);
}

static void set_taken(tws_snapshot *s, int taken) {
  pthread_mutex_lock(&s->lock);
  s->taken = taken;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->lock);
}

void tws_snapshot_begin(tws_snapshot *s) {
  set_taken(s, 0);
}

tws_code tws_snapshot_take(tws_snapshot *s, tws_error *err) {
  tws_code code = TWS_OK;
  for (uint32_t i = 0; i < s->count && code == TWS_OK; i++) {
    const tws_piece *piece = &s->pieces[i];
    const void *at;
    if (!s->overlaps || s->plan->state->entries[piece->held].dtype == TWS_LOW16) {
      code = tws_whole_get(s->executor, s->plan, s->buffer[piece->held], piece->at, piece->count,
                           s->bytes + s->place[i], err);
      continue;
    }
    code = tws_executor_find(s->executor, TWS_PROGRAM_TRAIN, s->buffer[piece->held], piece->at, piece->count, &at, err);
    if (code == TWS_OK) memcpy(s->bytes + s->place[i], at, bytes_of(s, piece));
  }
  set_taken(s, 1);
  return code;
}

void tws_snapshot_wait(tws_snapshot *s) {
  pthread_mutex_lock(&s->lock);
  while (!s->taken) pthread_cond_wait(&s->changed, &s->lock);
  pthread_mutex_unlock(&s->lock);
}

tws_code tws_snapshot_get(void *snapshot, const tws_piece *piece, uint64_t first, uint64_t count, void *to,
                          tws_error *err) {
  const tws_snapshot *s = snapshot;
  const size_t size = tws_dtype_bytes(tws_whole_dtype(&s->plan->state->entries[piece->entry]));
  (void)err;
  memcpy(to, s->bytes + s->place[piece - s->pieces] + first * size, count * size);
  return TWS_OK;
}
