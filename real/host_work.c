#include "real/host_work.h"

#include <pthread.h>

#include "base/memory.h"
#include "real/host/host.h"

struct tws_host_work {
  tws_backend *backend; /* a backend of the table tws_host_backend() */
  pthread_t thread;
  int started;
  pthread_mutex_t turn; /* held by the caller whose function the thread runs: callers follow one another */
  pthread_mutex_t lock; /* guards the members below */
  pthread_cond_t changed;
  void (*function)(void *user); /* function that the thread runs; NULL: it waits for the next one */
  void *user;
  int ending;
  tws_disk *on_disk; /* the disk that was used last; only tasks of the plan's disk stream use it */
  tws_error failure; /* code TWS_OK: no task has failed */
};

/* ---- the thread ---- */

static void *serve(void *arg) {
  tws_host_work *h = arg;
  pthread_mutex_lock(&h->lock);
  for (;;) {
    while (!h->function && !h->ending) pthread_cond_wait(&h->changed, &h->lock);
    if (!h->function) break;
    pthread_mutex_unlock(&h->lock);
    h->function(h->user);
    pthread_mutex_lock(&h->lock);
    h->function = NULL;
    pthread_cond_broadcast(&h->changed);
  }
  pthread_mutex_unlock(&h->lock);
  return NULL;
}

/* Calls a function on the worker thread, and returns when the function has returned. */
static void run_there(tws_host_work *h, void (*function)(void *user), void *user) {
  pthread_mutex_lock(&h->turn);
  pthread_mutex_lock(&h->lock);
  h->user = user;
  h->function = function;
  pthread_cond_broadcast(&h->changed);
  while (h->function) pthread_cond_wait(&h->changed, &h->lock);
  pthread_mutex_unlock(&h->lock);
  pthread_mutex_unlock(&h->turn);
}

tws_code tws_host_work_create(int threads, tws_host_work **out, tws_error *err) {
  *out = NULL;
  tws_host_work *h = tws_calloc(1, sizeof *h);
  if (!h) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  pthread_mutex_init(&h->turn, NULL);
  pthread_mutex_init(&h->lock, NULL);
  pthread_cond_init(&h->changed, NULL);
  tws_code code = tws_host_backend()->create(0, threads, &h->backend, err);
  if (code == TWS_OK && pthread_create(&h->thread, NULL, serve, h) != 0)
    code = tws_fail(err, TWS_ENVIRONMENT, NULL, "cannot start a thread for offloaded work");
  h->started = code == TWS_OK;
  if (code == TWS_OK)
    *out = h;
  else
    tws_host_work_destroy(h);
  return code;
}

void tws_host_work_destroy(tws_host_work *h) {
  if (!h) return;
  pthread_mutex_lock(&h->lock);
  h->ending = 1;
  pthread_cond_broadcast(&h->changed);
  pthread_mutex_unlock(&h->lock);
  if (h->started) pthread_join(h->thread, NULL);
  if (h->backend) tws_host_backend()->destroy(h->backend);
  pthread_cond_destroy(&h->changed);
  pthread_mutex_destroy(&h->lock);
  pthread_mutex_destroy(&h->turn);
  tws_free(h);
}

typedef struct bind_call {
  tws_host_work *host;
  const tws_cpus *allowed;
  int index, count, bound, near;
  tws_code code;
  tws_error *err;
} bind_call;

static void bind_there(void *user) {
  bind_call *c = user;
  c->code = tws_host_bind(c->host->backend, c->allowed, c->index, c->count, &c->bound, &c->near, c->err);
}

tws_code tws_host_work_bind(tws_host_work *h, const tws_cpus *allowed, int index, int count, int *bound, int *near,
                            tws_error *err) {
  bind_call call = {.host = h, .allowed = allowed, .index = index, .count = count, .err = err};
  run_there(h, bind_there, &call); /* runs on the thread that calls the pool, since that is the pool's first thread */
  *bound = call.bound;
  *near = call.near;
  return call.code;
}

int tws_host_work_supports(const tws_work *work) {
  return tws_host_backend()->supports(work);
}

/* ---- tasks ---- */

static void keep_failure(tws_host_work *h, const tws_error *err) {
  pthread_mutex_lock(&h->lock);
  if (h->failure.code == TWS_OK) h->failure = *err;
  pthread_mutex_unlock(&h->lock);
}

tws_code tws_host_work_failed(tws_host_work *h, tws_error *err) {
  pthread_mutex_lock(&h->lock);
  const tws_code code = h->failure.code;
  if (code != TWS_OK && err) *err = h->failure;
  pthread_mutex_unlock(&h->lock);
  return code;
}

static void keep(const tws_host_task *t, tws_code code, tws_error *err) {
  if (code == TWS_OK) return;
  (void)tws_fail_in(err, code, "operation %s", t->label);
  keep_failure(t->host, err);
}

static void compute(void *user) {
  const tws_host_task *t = user;
  const tws_backend_ops *ops = tws_host_backend();
  tws_error err = {0};
  const tws_code code =
      t->kind == TWS_HOST_COPY
          ? ops->copy(t->host->backend, t->address[1], t->address[0], t->bytes, TWS_STREAM_HOST, &err)
          : ops->run(t->host->backend, t->work, t->arguments, t->address, t->dtype, t->count, TWS_STREAM_HOST, &err);
  keep(t, code, &err);
}

/* Starts the transfer. The transfers of one disk form a queue; before a transfer of another disk starts, this queue
 * must be empty. */
static tws_code start_transfer(tws_host_task *t, tws_error *err) {
  tws_host_work *h = t->host;
  if (h->on_disk && h->on_disk != t->disk) TWS_TRY(tws_disk_wait(h->on_disk, tws_disk_started(h->on_disk), err));
  h->on_disk = t->disk;
  t->transfer.times = t->times;
  return tws_disk_start(t->disk, &t->transfer, t->ticket, err);
}

void tws_host_work_run(void *task) {
  tws_host_task *t = task;
  tws_error err = {0};
  if (tws_host_work_failed(t->host, NULL) != TWS_OK) return;
  tws_code code = t->awaited ? tws_disk_wait(t->awaited, *t->awaited_ticket, &err) : TWS_OK;
  if (code == TWS_OK && t->kind == TWS_HOST_TRANSFER) code = start_transfer(t, &err);
  keep(t, code, &err);
  if (code == TWS_OK && (t->kind == TWS_HOST_KERNEL || t->kind == TWS_HOST_COPY)) run_there(t->host, compute, t);
}
