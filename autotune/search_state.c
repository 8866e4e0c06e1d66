#include "autotune/search_state.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "autotune/worker_pool.h"
#include "base/checksum.h"
#include "base/fingerprint.h"
#include "base/output_file.h"

static const char magic[16] = "twinspeed-swp-2";

struct tws_state_head {
  char magic[16];
  uint64_t fingerprint, bytes;
  atomic_int count[2]; /* numbers of bounds and of plans */
  atomic_int ended;
  uint64_t end_checksum;
  tws_state_end end;
};
struct tws_state_bound {
  uint64_t checksum; /* checksum of all following members */
  int64_t number;
  double step_s, needed_bytes, available_bytes, model_flops;
  uint64_t print;
  int32_t verdict, implied;
  char reason[160];
};
struct tws_state_plan {
  uint64_t checksum;
  int64_t number;
  tws_tune_candidate candidate;
};
struct tws_state_index {
  int64_t number;
  int slot;
};
enum { BOUNDS, PLANS };

/* ---- fingerprint ---- */

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
                            c->host_copies.to_device,
                            c->host_copies.to_host,
                            c->host_copies.both_ways,
                            c->node_copies.to_device,
                            c->node_copies.to_host,
                            c->node_copies.both_ways,
                            c->disk_read,
                            c->disk_write,
                            c->disk_bytes,
                            c->numa_nodes};
  for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) hash = tws_fingerprint_number(hash, figures[i]);
  hash = tws_fingerprint_text(hash, tws_profile_name(job->profile));
  return tws_fingerprint_text(hash, tws_profile_provenance(job->profile));
}

static uint64_t add_space(uint64_t hash, const tws_points *p) {
  const tws_tune_space *given = &p->request->space;
  hash = tws_fingerprint_integer(hash, given->global_batch);
  for (int i = 0; i < p->elastic_count; i++) hash = tws_fingerprint_integer(hash, p->elastic[i].accumulation);
  hash = tws_fingerprint_bytes(hash, p->count, sizeof p->count);
  hash = add_list(hash, p->ranks, p->count[TWS_DIGIT_RANKS]);
  hash = add_list(hash, p->threads, p->count[TWS_DIGIT_THREADS]);
  hash = add_list(hash, p->axes.tensor, p->axes.tensor_count);
  hash = add_list(hash, p->axes.sequence_parallel, p->axes.sequence_parallel_count);
  hash = add_list(hash, p->axes.sequence, p->axes.sequence_count);
  hash = add_list(hash, p->axes.expert, p->axes.expert_count);
  hash = add_list(hash, p->axes.pipeline, p->axes.pipeline_count);
  for (int i = 0; i < p->axes.capacity_count; i++) hash = tws_fingerprint_number(hash, p->axes.capacity[i]);
  for (int i = 0; i < TWS_EXCHANGE_COUNT; i++) hash = add_list(hash, p->axes.exchange[i], p->axes.exchange_count[i]);
  for (int i = 0; i < p->axes.schedule_count; i++) {
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

/* Returns the fingerprint of the request, so that a search is not continued from the state of a different search. */
static uint64_t fingerprint_of(const tws_points *p) {
  const tws_tune_request *request = p->request;
  uint64_t configuration = 0, hash = tws_fingerprint_integer(TWS_FINGERPRINT_START, sizeof(tws_tune_candidate));
  if (tws_config_fingerprint(request->job->config, &configuration, NULL) != TWS_OK) configuration = 0;
  hash = tws_fingerprint_integer(hash, request->parts);
  hash = tws_fingerprint_integer(hash, request->goal);
  hash = tws_fingerprint_number(hash, request->memory_bytes);
  hash = tws_fingerprint_integer(hash, (int64_t)configuration);
  hash = tws_fingerprint_integer(hash, (int64_t)tws_network_fingerprint(request->job->network));
  return add_space(add_machine(hash, request->job), p);
}

/* ---- memory ---- */

static size_t round_up(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

/* Returns the size of the mapping; if `base` is not NULL, sets the pointers to its sections. */
static size_t lay_out(tws_search_state *s, const tws_points *p, char *base) {
  const size_t divisions = round_up(sizeof *s->head);
  const size_t bounds = divisions + round_up((size_t)(p->points / p->knobs) * sizeof *s->divisions);
  const size_t plans = bounds + round_up(TWS_STATE_BOUNDS * sizeof *s->bounds);
  if (base) {
    s->head = (struct tws_state_head *)(void *)base;
    s->divisions = (tws_division_bound *)(void *)(base + divisions);
    s->bounds = (struct tws_state_bound *)(void *)(base + bounds);
    s->plans = (struct tws_state_plan *)(void *)(base + plans);
  }
  return plans + TWS_STATE_PLANS * sizeof *s->plans;
}

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "no memory for the search");
}

static uint64_t checksum_of(const void *record, size_t bytes) {
  return tws_checksum(0, (const char *)record + sizeof(uint64_t), bytes - sizeof(uint64_t));
}

static int by_number(const void *left, const void *right) {
  const struct tws_state_index *a = left, *b = right;
  if (a->number != b->number) return a->number < b->number ? -1 : 1;
  return a->slot - b->slot;
}

/* Validates a mapped file. A damaged file may contain anything: each record must have the checksum with which it was
 * written. */
static int is_sound(const tws_search_state *s, const tws_points *p) {
  const int bounds = atomic_load(&s->head->count[BOUNDS]), plans = atomic_load(&s->head->count[PLANS]);
  if (bounds < 0 || bounds > TWS_STATE_BOUNDS || plans < 0 || plans > TWS_STATE_PLANS) return 0;
  for (int i = 0; i < bounds; i++) {
    const struct tws_state_bound *b = &s->bounds[i];
    if (b->checksum != checksum_of(b, sizeof *b) || b->number < 0 || b->number >= p->points) return 0;
  }
  for (int i = 0; i < plans; i++) {
    const struct tws_state_plan *plan = &s->plans[i];
    if (plan->checksum != checksum_of(plan, sizeof *plan) || plan->number < 0 || plan->number >= p->points) return 0;
  }
  for (int64_t i = 0; i < p->points / p->knobs; i++) {
    const tws_division_bound *d = &s->divisions[i];
    if (d->known != TWS_DIVISION_NEW && (d->known != TWS_DIVISION_BOUNDED || !(d->step_s >= 0))) return 0;
    for (int t = 0; t < TWS_TIER_COUNT; t++)
      if (d->active.category[t] >= TWS_CATEGORY_COUNT) return 0;
  }
  return !atomic_load(&s->head->ended) ||
         (s->head->end_checksum == tws_checksum(0, &s->head->end, sizeof s->head->end) && s->head->end.count >= 0 &&
          s->head->end.count <= TWS_STATE_PLANS);
}

static tws_code make_index(tws_search_state *s, tws_error *err) {
  for (int kind = BOUNDS; kind <= PLANS; kind++) {
    const size_t count = s->index_count[kind] = (size_t)atomic_load(&s->head->count[kind]);
    s->index[kind] = tws_calloc(count + 1, sizeof *s->index[kind]);
    if (!s->index[kind]) return no_memory(err);
    for (size_t i = 0; i < count; i++)
      s->index[kind][i] = (struct tws_state_index){kind == PLANS ? s->plans[i].number : s->bounds[i].number, (int)i};
    qsort(s->index[kind], count, sizeof *s->index[kind], by_number);
  }
  return TWS_OK;
}

/* Returns 1 if the file has the size of this state; its mapping is then set in *s. */
static int map_file(tws_search_state *s, const tws_points *p, int file) {
  struct stat about;
  if (fstat(file, &about) || about.st_size != (off_t)s->bytes) return 0;
  char *base = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (base == MAP_FAILED) return 0;
  lay_out(s, p, base);
  return 1;
}

static tws_code cannot_keep(const char *path, tws_error *err) {
  return tws_fail(err, TWS_IO, "give a folder for --results that can be written",
                  "%s: the state of the search cannot be written: %s", path, strerror(errno));
}

/* Opens and locks the file. The lock lasts until the last process of the search has exited, so that no two searches use
 * the file at the same time. After a search was killed, waiting for the lock may take up to two seconds. */
static tws_code lock_file(tws_search_state *s, const char *path, int create, tws_error *err) {
  enum { TRIES = 100, PAUSE_US = 20000 };
  TWS_TRY(tws_changed_file(path, create, &s->file, err));
  if (s->file < 0) return TWS_OK;
  for (int i = 0; flock(s->file, LOCK_EX | LOCK_NB) != 0; i++, usleep(PAUSE_US))
    if (errno != EWOULDBLOCK || i == TRIES) {
      close(s->file);
      s->file = -1;
      return tws_fail(err, TWS_IO, "wait for it, or give another folder for --results",
                      "%s: another search is running in this folder", path);
    }
  return TWS_OK;
}

static tws_code make_file(tws_search_state *s, const tws_points *p, const char *path, tws_error *err) {
  if (ftruncate(s->file, 0) || ftruncate(s->file, (off_t)s->bytes) || !map_file(s, p, s->file))
    return cannot_keep(path, err);
  s->head->fingerprint = fingerprint_of(p);
  s->head->bytes = s->bytes;
  atomic_thread_fence(memory_order_seq_cst);
  memcpy(s->head->magic, magic, sizeof magic); /* written last: without it the file counts as empty */
  return TWS_OK;
}

/* Returns 1 for the file of a search that was killed before it wrote the file's header. */
static int is_blank(int file) {
  char first[sizeof magic] = "";
  static const char nothing[sizeof magic];
  return pread(file, first, sizeof first, 0) == 0 || memcmp(first, nothing, sizeof first) == 0;
}

static int is_of(const tws_search_state *s, const tws_points *p) {
  return memcmp(s->head->magic, magic, sizeof magic) == 0 && s->head->fingerprint == fingerprint_of(p) &&
         s->head->bytes == s->bytes;
}

tws_code tws_search_state_open(const tws_points *points, const char *path, int resume, tws_search_state *s,
                               tws_error *err) {
  *s = (tws_search_state){.file = -1};
  s->bytes = lay_out(s, points, NULL);
  if (!path) {
    char *base = tws_worker_pool_memory(s->bytes);
    if (base) lay_out(s, points, base);
    return base ? TWS_OK : no_memory(err);
  }
  if (resume) TWS_TRY(lock_file(s, path, 0, err));
  if (s->file < 0 || is_blank(s->file)) { /* no usable state to continue from */
    if (s->file < 0) TWS_TRY(lock_file(s, path, 1, err));
    const tws_code code = make_file(s, points, path, err);
    if (code != TWS_OK) tws_search_state_close(s);
    return code;
  }
  if (map_file(s, points, s->file) && is_of(s, points) && is_sound(s, points)) {
    atomic_store(&s->head->ended, 0);
    return make_index(s, err);
  }
  tws_search_state_close(s);
  return tws_fail(err, TWS_INVALID, "leave out --resume, or give the same model, cluster and lists",
                  "%s: the file is the state of another search", path);
}

void tws_search_state_close(tws_search_state *s) {
  if (s->head) munmap(s->head, s->bytes);
  if (s->file >= 0) close(s->file);
  for (int kind = BOUNDS; kind <= PLANS; kind++) {
    tws_free(s->index[kind]);
    s->index[kind] = NULL;
  }
  s->head = NULL;
  s->file = -1;
}

/* ---- records ---- */

static int slot_of(const tws_search_state *s, int kind, int64_t number) {
  size_t low = 0, high = s->index_count[kind];
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (s->index[kind][middle].number < number)
      low = middle + 1;
    else
      high = middle;
  }
  return low < s->index_count[kind] && s->index[kind][low].number == number ? s->index[kind][low].slot : -1;
}

int tws_search_state_find(const tws_search_state *s, int64_t number, int planned, tws_tune_candidate *c) {
  const int slot = slot_of(s, planned ? PLANS : BOUNDS, number);
  if (slot < 0) return 0;
  if (planned) {
    *c = s->plans[slot].candidate;
    c->estimate.path.bottleneck = c->estimate.path.text;
    c->simulation = (tws_sim_result){.step_s = 0};
    return 1;
  }
  const struct tws_state_bound *b = &s->bounds[slot];
  c->verdict = (tws_tune_verdict)b->verdict;
  c->implied = b->implied;
  c->rough = 1;
  c->needed_bytes = b->needed_bytes;
  c->available_bytes = b->available_bytes;
  c->estimate.step_s = b->step_s;
  c->estimate.model_flops = b->model_flops;
  c->print = b->print;
  memcpy(c->reason, b->reason, sizeof c->reason);
  return 1;
}

static void keep_plan(tws_search_state *s, int slot, int64_t number, const tws_tune_candidate *c) {
  struct tws_state_plan *plan = &s->plans[slot];
  plan->number = number;
  memcpy(&plan->candidate, c, sizeof *c); /* includes the padding between members, for the checksum */
  plan->candidate.estimate.path.bottleneck = NULL;
  plan->checksum = checksum_of(plan, sizeof *plan);
}

static void keep_bound(tws_search_state *s, int slot, int64_t number, const tws_tune_candidate *c) {
  struct tws_state_bound *b = &s->bounds[slot];
  memset(b, 0, sizeof *b);
  b->number = number;
  b->step_s = c->estimate.step_s;
  b->needed_bytes = c->needed_bytes;
  b->available_bytes = c->available_bytes;
  b->model_flops = c->estimate.model_flops;
  b->print = c->print;
  b->verdict = (int32_t)c->verdict;
  b->implied = c->implied;
  memcpy(b->reason, c->reason, sizeof b->reason);
  b->checksum = checksum_of(b, sizeof *b);
}

void tws_search_state_keep(tws_search_state *s, int64_t number, const tws_tune_candidate *c) {
  const int kind = c->rough ? BOUNDS : PLANS, slot = atomic_load(&s->head->count[kind]);
  if (s->file < 0 || slot == (kind == PLANS ? TWS_STATE_PLANS : TWS_STATE_BOUNDS) || slot_of(s, kind, number) >= 0)
    return;
  if (kind == PLANS)
    keep_plan(s, slot, number, c);
  else
    keep_bound(s, slot, number, c);
  atomic_store(&s->head->count[kind], slot + 1);
}

/* ---- parts ---- */

void tws_search_state_end(tws_search_state *s, const tws_state_end *end) {
  if (s->file < 0) return;
  memcpy(&s->head->end, end, sizeof *end);
  s->head->end_checksum = tws_checksum(0, &s->head->end, sizeof s->head->end);
  atomic_store(&s->head->ended, 1);
}

tws_code tws_search_state_open_part(const tws_points *points, const char *path, tws_search_state *s, tws_state_end *end,
                                    int *ready, tws_error *err) {
  *s = (tws_search_state){.file = -1};
  s->bytes = lay_out(s, points, NULL);
  *ready = 0;
  int file;
  TWS_TRY(tws_changed_file(path, 0, &file, err));
  if (file < 0) return TWS_OK;
  const int mapped = map_file(s, points, file);
  close(file);
  if (!mapped) return TWS_OK;
  *ready = is_of(s, points) && atomic_load(&s->head->ended);
  if (*ready && !is_sound(s, points)) {
    tws_search_state_close(s);
    return tws_fail(err, TWS_INVALID, "search again without --resume", "%s: the state file is damaged", path);
  }
  if (!*ready) {
    tws_search_state_close(s);
    return TWS_OK;
  }
  memcpy(end, &s->head->end, sizeof *end);
  return make_index(s, err);
}
