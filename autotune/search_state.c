#include "autotune/search_state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "autotune/crew.h"
#include "base/fingerprint.h"
#include "estimators/estimators.h"

static const char magic[16] = "twinspeed-swp-1";

struct tws_search_state_head {
  char magic[16];
  uint64_t fingerprint, bytes;
  atomic_int plans;
};

/* ---- what it is of ---- */

static uint64_t add_list(uint64_t hash, const int *values, int count) {
  hash = tws_fingerprint_integer(hash, count);
  for (int i = 0; i < count; i++) hash = tws_fingerprint_integer(hash, values[i]);
  return hash;
}

static uint64_t add_long_list(uint64_t hash, const int64_t *values, int count) {
  hash = tws_fingerprint_integer(hash, count);
  for (int i = 0; i < count; i++) hash = tws_fingerprint_integer(hash, values[i]);
  return hash;
}

static uint64_t add_machine(uint64_t hash, const tws_job *job) {
  const tws_cluster *c = &job->cluster;
  const double figures[] = {c->nodes,
                            c->devices_per_node,
                            c->nics_per_node,
                            c->devices_per_host_link,
                            c->host_memory_bytes,
                            c->host_bandwidth,
                            c->device_memory_bytes,
                            c->intra.bandwidth,
                            c->paired,
                            c->intra.latency_s,
                            c->inter.bandwidth,
                            c->inter.latency_s,
                            c->message_bandwidth,
                            c->message_s,
                            c->host_link.bandwidth,
                            c->host_link.latency_s,
                            c->disk_read,
                            c->disk_write,
                            c->disk_bytes,
                            c->numa_nodes};
  for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) hash = tws_fingerprint_number(hash, figures[i]);
  hash = tws_fingerprint_text(hash, tws_profile_name(job->profile));
  return tws_fingerprint_text(hash, tws_profile_provenance(job->profile));
}

uint64_t tws_search_state_fingerprint(const tws_product *p, int workers, int exact_most) {
  const tws_tune_request *request = p->request;
  const tws_tune_space *given = &request->space;
  uint64_t configuration = 0, hash = tws_fingerprint_integer(TWS_FINGERPRINT_START, workers);
  if (tws_config_fingerprint(request->job->config, &configuration, NULL) != TWS_OK) configuration = 0;
  hash = tws_fingerprint_integer(hash, exact_most);
  hash = tws_fingerprint_integer(hash, request->parts);
  hash = tws_fingerprint_integer(hash, p->ranks);
  hash = tws_fingerprint_integer(hash, given->global_batch);
  hash = tws_fingerprint_number(hash, request->memory_bytes);
  hash = tws_fingerprint_integer(hash, request->budget_s > 0 ? (int64_t)request->seed + 1 : 0); /* their order */
  hash = tws_fingerprint_integer(hash, (int64_t)configuration);
  hash = tws_fingerprint_integer(hash, (int64_t)tws_network_fingerprint(request->job->network));
  hash = add_machine(hash, request->job);
  hash = add_list(hash, p->axes.tensor, p->count[TWS_DIGIT_TENSOR]);
  hash = add_list(hash, p->axes.sequence_parallel, p->count[TWS_DIGIT_TOKENS]);
  hash = add_list(hash, p->axes.pipeline, p->count[TWS_DIGIT_PIPELINE]);
  hash = tws_fingerprint_integer(hash, p->axes.expert[0]);
  hash = tws_fingerprint_number(hash, p->axes.capacity[0]);
  for (int i = 0; i < p->count[TWS_DIGIT_SCHEDULE]; i++) {
    hash = tws_fingerprint_integer(hash, p->axes.schedules[i].kind);
    hash = tws_fingerprint_integer(hash, p->axes.schedules[i].virtual_stages);
  }
  hash = add_long_list(hash, p->micro, p->count[TWS_DIGIT_MICRO]);
  hash = add_list(hash, p->recompute, p->count[TWS_DIGIT_RECOMPUTE]);
  hash = add_list(hash, p->stages, p->count[TWS_DIGIT_STAGE]);
  hash = add_long_list(hash, given->accumulation, given->accumulation_count);
  hash = add_list(hash, given->overlap, given->overlap_count);
  hash = add_list(hash, given->offload, given->offload_count);
  for (int i = 0; i < TWS_ZERO3_LIMIT_COUNT; i++) hash = add_long_list(hash, given->zero3[i], given->zero3_count[i]);
  return add_long_list(hash, given->reduce_bucket, given->reduce_bucket_count);
}

/* ---- memory ---- */

static size_t round_up(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

static size_t own_most(const tws_search_state *s) {
  return (size_t)s->exact_most + TWS_KEPT_BOUNDS;
}

/* Where everything is in memory from `base` on, or how much there is of it. */
static size_t lay_out(tws_search_state *s, char *base) {
  const size_t workers = round_up(sizeof *s->head),
               finalists = workers + round_up((size_t)s->workers * sizeof *s->worker),
               plans = finalists + round_up(2 * (size_t)s->workers * own_most(s) * sizeof *s->finalists);
  if (base) {
    s->head = (struct tws_search_state_head *)(void *)base;
    s->worker = (tws_search_state_worker *)(void *)(base + workers);
    s->finalists = (tws_finalist *)(void *)(base + finalists);
    s->plans = (tws_search_state_plan *)(void *)(base + plans);
  }
  return plans + TWS_SEARCH_PLANS * sizeof *s->plans;
}

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "no memory for the search");
}

static int is_sound_tally(const tws_search_state *s, const tws_product *p, int worker, int copy) {
  const tws_search_state_tally *t = &s->worker[worker].copy[copy];
  const tws_finalist *own = s->finalists + (2 * (size_t)worker + (size_t)copy) * own_most(s);
  if (t->classes < 0 || t->classes > p->points || t->exact < 0 || t->exact > s->exact_most || t->bounds < 0 ||
      t->bounds > TWS_KEPT_BOUNDS)
    return 0;
  for (int i = 0; i < t->exact + t->bounds; i++) {
    const tws_finalist *f = &own[i < t->exact ? i : s->exact_most + i - t->exact];
    if (f->number < 0 || f->number >= p->points || !(f->samples_per_s > 0) || !(f->step_s > 0)) return 0;
  }
  return 1;
}

/* Whatever is in the file may be anything. */
static int is_sound(const tws_search_state *s, const tws_product *p) {
  const int plans = atomic_load(&s->head->plans);
  if (plans < 0 || plans > TWS_SEARCH_PLANS) return 0;
  for (int i = 0; i < plans; i++) {
    const tws_search_state_plan *plan = &s->plans[i];
    if (!(plan->step_s > 0) || plan->verdict < 0 || plan->verdict > TWS_TUNE_NOT_SUPPORTED ||
        !memchr(plan->reason, 0, sizeof plan->reason))
      return 0;
  }
  for (int w = 0; w < s->workers; w++) {
    const int current = atomic_load(&s->worker[w].current);
    if (current < 0 || current > 1 || !is_sound_tally(s, p, w, current)) return 0;
  }
  return 1;
}

/* 1: the file is a state of this size; its memory is that of *s. */
static int map_file(tws_search_state *s, int file) {
  struct stat about;
  if (fstat(file, &about) || about.st_size != (off_t)s->bytes) return 0;
  char *base = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (base == MAP_FAILED) return 0;
  lay_out(s, base);
  return 1;
}

static tws_code cannot_keep(const char *path, tws_error *err) {
  return tws_fail(err, TWS_IO, "give a folder for --results that can be written",
                  "%s: the state of the search cannot be kept: %s", path, strerror(errno));
}

/* One search at a time: the file is locked until the last of its processes has ended, which of one that was killed may
 * take a moment. */
static tws_code lock_file(tws_search_state *s, const char *path, int create, tws_error *err) {
  enum { TRIES = 100, PAUSE_US = 20000 };
  TWS_TRY(tws_changed_file(path, create, &s->file, err));
  if (s->file < 0) return TWS_OK;
  for (int i = 0; flock(s->file, LOCK_EX | LOCK_NB) != 0; i++, usleep(PAUSE_US))
    if (errno != EWOULDBLOCK || i == TRIES) {
      close(s->file);
      s->file = -1;
      return tws_fail(err, TWS_IO, "wait for it, or give another folder for --results",
                      "%s: another search is at work in this folder", path);
    }
  return TWS_OK;
}

static tws_code make_file(tws_search_state *s, const char *path, uint64_t fingerprint, tws_error *err) {
  if (ftruncate(s->file, 0) || ftruncate(s->file, (off_t)s->bytes) || !map_file(s, s->file))
    return cannot_keep(path, err);
  s->head->fingerprint = fingerprint;
  s->head->bytes = s->bytes;
  atomic_thread_fence(memory_order_seq_cst);
  memcpy(s->head->magic, magic, sizeof magic); /* the last: without it nothing has begun */
  return TWS_OK;
}

/* A search was killed before it began. */
static int is_blank(int file) {
  char first[sizeof magic] = "";
  static const char nothing[sizeof magic];
  return pread(file, first, sizeof first, 0) == 0 || memcmp(first, nothing, sizeof first) == 0;
}

static int is_of(const tws_search_state *s, uint64_t fingerprint) {
  return memcmp(s->head->magic, magic, sizeof magic) == 0 && s->head->fingerprint == fingerprint &&
         s->head->bytes == s->bytes;
}

tws_code tws_search_state_open(tws_search_state *s, const char *path, int resume, const tws_product *product,
                               int workers, int exact_most, tws_error *err) {
  const uint64_t fingerprint = tws_search_state_fingerprint(product, workers, exact_most);
  *s = (tws_search_state){.workers = workers, .exact_most = exact_most, .file = -1};
  s->bytes = lay_out(s, NULL);
  if (!path) {
    char *base = tws_crew_memory(s->bytes);
    if (base) lay_out(s, base);
    return base ? TWS_OK : no_memory(err);
  }
  if (resume) TWS_TRY(lock_file(s, path, 0, err));
  if (s->file < 0 || is_blank(s->file)) { /* nothing to go on from */
    if (s->file < 0) TWS_TRY(lock_file(s, path, 1, err));
    const tws_code code = make_file(s, path, fingerprint, err);
    if (code != TWS_OK) tws_search_state_close(s);
    return code;
  }
  if (map_file(s, s->file) && is_of(s, fingerprint) && is_sound(s, product)) return TWS_OK;
  tws_search_state_close(s);
  return tws_fail(err, TWS_INVALID, "leave out --resume, or give the same model, cluster, lists and --workers",
                  "%s: the state of another search", path);
}

tws_code tws_search_state_open_part(tws_search_state *s, const char *path, const tws_product *product, int workers,
                                    int exact_most, int *ready, tws_error *err) {
  *s = (tws_search_state){.workers = workers, .exact_most = exact_most, .file = -1};
  s->bytes = lay_out(s, NULL);
  *ready = 0;
  int file;
  TWS_TRY(tws_changed_file(path, 0, &file, err));
  if (file < 0) return TWS_OK;
  const int mapped = map_file(s, file);
  close(file);
  if (!mapped) return TWS_OK;
  *ready = is_of(s, tws_search_state_fingerprint(product, workers, exact_most));
  for (int w = 0; w < workers; w++) *ready &= s->worker[w].ended != 0;
  if (*ready && !is_sound(s, product))
    return tws_fail(err, TWS_INVALID, "search again without --resume", "%s: a damaged state", path);
  if (!*ready) tws_search_state_close(s);
  return TWS_OK;
}

void tws_search_state_close(tws_search_state *s) {
  if (s->head) munmap(s->head, s->bytes);
  if (s->file >= 0) close(s->file);
  s->head = NULL;
  s->file = -1;
}

/* ---- what is in it ---- */

const tws_search_state_tally *tws_search_state_tally_of(const tws_search_state *s, int worker) {
  return &s->worker[worker].copy[atomic_load(&s->worker[worker].current)];
}

const tws_finalist *tws_search_state_finalists_of(const tws_search_state *s, int worker) {
  return s->finalists + (2 * (size_t)worker + (size_t)atomic_load(&s->worker[worker].current)) * own_most(s);
}

void tws_search_state_commit(tws_search_state *s, int worker, const tws_search_state_tally *tally,
                             const tws_best *exact, const tws_best *bounds) {
  tws_search_state_worker *w = &s->worker[worker];
  const int next = 1 - atomic_load(&w->current);
  tws_finalist *own = s->finalists + (2 * (size_t)worker + (size_t)next) * own_most(s);
  memcpy(own, exact->items, (size_t)exact->count * sizeof *own);
  memcpy(own + s->exact_most, bounds->items, (size_t)bounds->count * sizeof *own);
  w->copy[next] = *tally;
  w->copy[next].exact = exact->count;
  w->copy[next].bounds = bounds->count;
  w->copy[next].dropped = bounds->dropped;
  w->copy[next].best_dropped = bounds->best_dropped;
  atomic_store(&w->current, next);
}

const tws_search_state_plan *tws_search_state_plan_of(const tws_search_state *s, int64_t number) {
  const int plans = atomic_load(&s->head->plans);
  for (int i = 0; i < plans; i++)
    if (s->plans[i].number == number) return &s->plans[i];
  return NULL;
}

void tws_search_state_keep_plan(tws_search_state *s, int64_t number, const tws_tune_candidate *c) {
  const int plans = atomic_load(&s->head->plans);
  if (plans == TWS_SEARCH_PLANS || tws_search_state_plan_of(s, number)) return;
  tws_search_state_plan *plan = &s->plans[plans];
  *plan = (tws_search_state_plan){.number = number,
                                  .step_s = c->estimate.step_s,
                                  .needed_bytes = c->needed_bytes,
                                  .available_bytes = c->available_bytes,
                                  .verdict = (int32_t)c->verdict};
  snprintf(plan->reason, sizeof plan->reason, "%s", c->reason);
  atomic_store(&s->head->plans, plans + 1);
}
