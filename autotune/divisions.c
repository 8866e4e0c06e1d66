#include "autotune/divisions.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autotune/worker_pool.h"
#include "base/random.h"

/* ---- shared memory ---- */

typedef struct closest { /* a point that does not fit, by number; its needed bytes divided by the available bytes */
  int64_t number;
  double excess;
} closest;

struct tws_found_list {
  atomic_llong count, next; /* next: index of the next family of divisions to examine */
  atomic_llong considered;  /* number of points examined, for the progress display */
  closest closest[TWS_WORKER_POOL_MOST][TWS_CLOSEST];
  int closest_count[TWS_WORKER_POOL_MOST];
  int64_t numbers[];
};

enum { STATE_SLOTS = 1 << 16, STATE_PROBES = 64 };
typedef struct state_slot {
  atomic_ullong class;
  atomic_int ready;
  tws_needed_memory always, end; /* lower bounds of the states' bytes, as tws_bound_bytes() computes them */
  char refusal[160];             /* reason why these states have no plan; empty: they have one */
} state_slot;
struct tws_state_table {
  state_slot slots[STATE_SLOTS];
};

tws_code tws_divisions_open(const tws_points *points, tws_division_bound *records, tws_divisions *out, tws_error *err) {
  *out = (tws_divisions){.points = points, .count = points->points / points->knobs, .records = records};
  out->found_bytes = sizeof *out->found + (size_t)out->count * sizeof *out->found->numbers;
  out->table_bytes = sizeof *out->table;
  out->found = tws_worker_pool_memory(out->found_bytes);
  out->table = tws_worker_pool_memory(out->table_bytes);
  if (out->found && out->table) return TWS_OK;
  tws_divisions_close(out);
  return tws_fail(err, TWS_MEMORY, NULL, "no memory for the search");
}

void tws_divisions_close(tws_divisions *d) {
  tws_worker_pool_memory_free(d->found, d->found_bytes);
  tws_worker_pool_memory_free(d->table, d->table_bytes);
  d->found = NULL;
  d->table = NULL;
}

void tws_tally_reason(tws_tally *tally, const char *reason, int64_t count) {
  int at = 0;
  while (at < tally->reason_count && strcmp(tally->reasons[at].reason, reason) != 0) at++;
  if (at == TWS_TUNE_REASONS) at--;
  if (at == tally->reason_count) {
    tally->reasons[at] = (tws_tune_rejection){.count = 0};
    snprintf(tally->reasons[at].reason, sizeof tally->reasons[at].reason, "%s",
             at + 1 < TWS_TUNE_REASONS ? reason : "refused for other reasons");
    tally->reason_count++;
  }
  tally->reasons[at].count += count;
}

void tws_tally_add(tws_tally *to, const tws_tally *from) {
  to->illegal += from->illegal;
  to->equal += from->equal;
  to->too_large += from->too_large;
  to->refused += from->refused;
  to->considered += from->considered;
  for (int i = 0; i < from->reason_count; i++) tws_tally_reason(to, from->reasons[i].reason, from->reasons[i].count);
}

static tws_needed_memory need_of(const tws_ledger *ledger) {
  tws_needed_memory need = {{0}, {0}};
  for (int t = 0; t < TWS_TIER_COUNT; t++) {
    const tws_ledger_tier *tier = &ledger->tier[t];
    need.bytes[t] = tier->live_bytes;
    for (int c = 1; c < TWS_CATEGORY_COUNT; c++)
      if (tier->category[c] > tier->category[need.category[t]]) need.category[t] = (uint8_t)c;
  }
  return need;
}

static void add_need(const tws_needed_memory *need, tws_ledger *ledger) {
  for (int t = 0; t < TWS_TIER_COUNT; t++) {
    ledger->tier[t].arena_bytes += need->bytes[t];
    ledger->tier[t].live_bytes += need->bytes[t];
    ledger->tier[t].category[need->category[t]] += need->bytes[t];
  }
}

static tws_code lower_state(const tws_tune_request *request, tws_tune_candidate *c, tws_needed_memory *always,
                            tws_needed_memory *end, tws_error *err) {
  tws_bound_bytes state = {.always = {.loss_bytes = 0}};
  tws_error why = {0};
  tws_job *job;
  int refused;
  TWS_TRY(tws_tune_derive(request, c, &job, &refused, err));
  if (refused) return TWS_OK;
  const tws_plan_request plan = tws_job_request(job, 0);
  const tws_code code = tws_bound_state(&plan, &state, &why);
  tws_job_destroy(job);
  *always = need_of(&state.always);
  *end = need_of(&state.end);
  return tws_tune_refusal(c, code, &why, &refused, err);
}

/* Returns the slot of a class of model states (tws_points_state_class()) in the table; if the class has none, an empty
 * slot becomes its slot; NULL: the slots for its hash are taken. */
static state_slot *slot_of(struct tws_state_table *table, uint64_t class) {
  for (uint64_t i = 0; i < STATE_PROBES; i++) {
    state_slot *slot = &table->slots[(class + i) % STATE_SLOTS];
    unsigned long long is = 0;
    if (atomic_compare_exchange_strong(&slot->class, &is, class) || is == class) return slot;
  }
  return NULL;
}

/* Computes the lower bounds of the states' bytes. If the states have no plan, the candidate's verdict and reason are
 * set. */
static tws_code state_need(tws_divisions *d, tws_tune_candidate *c, tws_needed_memory *always, tws_needed_memory *end,
                           tws_error *err) {
  state_slot *slot = slot_of(d->table, tws_points_state_class(&c->variant));
  if (slot && atomic_load(&slot->ready)) {
    *always = slot->always;
    *end = slot->end;
    if (!slot->refusal[0]) return TWS_OK;
    c->verdict = TWS_TUNE_NOT_SUPPORTED;
    memcpy(c->reason, slot->refusal, sizeof c->reason);
    return TWS_OK;
  }
  TWS_TRY(lower_state(d->points->request, c, always, end, err));
  if (!slot) return TWS_OK;
  slot->always = *always; /* concurrent workers write the same values */
  slot->end = *end;
  if (c->verdict == TWS_TUNE_NOT_SUPPORTED) memcpy(slot->refusal, c->reason, sizeof slot->refusal);
  atomic_store(&slot->ready, 1);
  return TWS_OK;
}

static int judge_needs(const tws_capacity *capacity, const tws_needed_memory *a, const tws_needed_memory *b,
                       tws_tune_candidate *c) {
  tws_ledger ledger = {.loss_bytes = 0};
  add_need(a, &ledger);
  if (b) add_need(b, &ledger);
  tws_tune_judge_ledger(capacity, &ledger, c);
  return c->verdict == TWS_TUNE_FITS;
}

/* Sets the verdict of a point by the lower bound of its memory. active: bound of its activations; NULL: only its states
 * are counted. */
static tws_code judge_point(tws_divisions *d, const tws_variant *v, const tws_needed_memory *active,
                            tws_tune_candidate *c, tws_error *err) {
  const tws_tune_request *request = d->points->request;
  tws_needed_memory always = {{0}, {0}}, end = {{0}, {0}};
  *c = (tws_tune_candidate){.variant = *v};
  TWS_TRY(state_need(d, c, &always, &end, err));
  if (c->verdict == TWS_TUNE_NOT_SUPPORTED) return TWS_OK;
  const tws_capacity capacity = tws_capacity_of(&request->job->machine, v->ranks, request->memory_bytes);
  if (judge_needs(&capacity, &end, NULL, c)) judge_needs(&capacity, &always, active, c);
  return TWS_OK;
}

tws_code tws_divisions_may_fit(tws_divisions *d, int64_t number, tws_variant *v, int *may_fit, tws_error *err) {
  const tws_division_bound *record = &d->records[number / d->points->knobs];
  tws_tune_candidate c;
  *may_fit = 0;
  if (tws_points_knobs(d->points, number, v) != TWS_POINT_DISTINCT) return TWS_OK;
  TWS_TRY(judge_point(d, v, &record->active, &c, err));
  *may_fit = c.verdict == TWS_TUNE_FITS;
  return TWS_OK;
}

/* ---- a worker ---- */

typedef struct looker {
  tws_divisions *d;
  int worker;
  tws_tally *tally;
  double until_s;
  int64_t families;
  tws_job *job; /* job of the previous division, if the next division differs from it in the batch alone; else NULL */
  tws_variant of;
} looker;

static void note_closest(looker *w, int64_t number, const tws_tune_candidate *c) {
  struct tws_found_list *f = w->d->found;
  closest *own = f->closest[w->worker];
  int *count = &f->closest_count[w->worker], at;
  const closest one = {number, c->available_bytes > 0 ? c->needed_bytes / c->available_bytes : 1e300};
  for (at = *count; at > 0 && own[at - 1].excess > one.excess; at--)
    if (at < TWS_CLOSEST) own[at] = own[at - 1];
  if (at < TWS_CLOSEST) own[at] = one;
  if (*count < TWS_CLOSEST) (*count)++;
}

/* Returns the job of a division, with its batch set in `config`; divisions that differ in the batch alone share one
 * derived job. */
static tws_code job_of(looker *w, tws_tune_candidate *c, tws_config *config, int *refused, tws_error *err) {
  const tws_variant *v = &c->variant;
  tws_variant like = *v;
  like.micro = w->of.micro;
  like.accumulation = w->of.accumulation;
  *refused = 0;
  if (!w->job || memcmp(&like, &w->of, sizeof like) != 0) {
    tws_job_destroy(w->job);
    w->job = NULL;
    TWS_TRY(tws_tune_derive(w->d->points->request, c, &w->job, refused, err));
    w->of = *v;
    if (*refused) return TWS_OK;
  }
  *config = *w->job->config;
  config->micro_batch_size = v->micro;
  config->accumulation_steps = v->accumulation;
  config->train_batch_size = (int64_t)tws_variant_samples(v);
  return TWS_OK;
}

/* Computes the bounds of a division's passes, time and memory, from the first of its points that can be lowered. */
static tws_code bound_division(looker *w, int64_t division, tws_tune_candidate *c, tws_error *err) {
  tws_division_bound *record = &w->d->records[division];
  tws_config config;
  tws_bound passes = {.step_s = 0};
  tws_error why = {0};
  int refused;
  if (record->known == TWS_DIVISION_BOUNDED) return TWS_OK;
  TWS_TRY(job_of(w, c, &config, &refused, err));
  if (refused) return TWS_OK;
  tws_plan_request plan = tws_job_request(w->job, 0);
  plan.config = &config;
  const tws_code code = tws_bound_passes(&plan, &w->job->machine, &passes, &why);
  TWS_TRY(tws_tune_refusal(c, code, &why, &refused, err));
  if (refused) return TWS_OK;
  record->step_s = passes.step_s;
  record->active = need_of(&passes.ledger);
  atomic_thread_fence(memory_order_seq_cst);
  record->known = TWS_DIVISION_BOUNDED; /* written last, so that a killed search leaves no incomplete record */
  return TWS_OK;
}

/* Examines one point. The first point of a division whose states fit is lowered to bound the division's passes. */
static tws_code look_at_point(looker *w, int64_t number, const tws_variant *v, int implied, int *left, tws_error *err) {
  const int64_t division = number / w->d->points->knobs;
  const tws_division_bound *record = &w->d->records[division];
  tws_tune_candidate c;
  TWS_TRY(judge_point(w->d, v, NULL, &c, err));
  if (c.verdict == TWS_TUNE_FITS && implied) { /* a division with a smaller micro batch is already too large */
    c.verdict = TWS_TUNE_NO_DEVICE_MEMORY;
    snprintf(c.reason, sizeof c.reason, "device memory: mostly %s", tws_category_name(TWS_CATEGORY_ACTIVATION));
  } else if (c.verdict == TWS_TUNE_FITS) {
    c = tws_tune_candidate_of(v);
    TWS_TRY(bound_division(w, division, &c, err));
    if (c.verdict != TWS_TUNE_NOT_SUPPORTED) TWS_TRY(judge_point(w->d, v, &record->active, &c, err));
  }
  *left += c.verdict == TWS_TUNE_FITS;
  if (c.verdict == TWS_TUNE_FITS) return TWS_OK;
  *(c.verdict == TWS_TUNE_NOT_SUPPORTED ? &w->tally->refused : &w->tally->too_large) += 1;
  tws_tally_reason(w->tally, c.reason, 1);
  if (c.verdict != TWS_TUNE_NOT_SUPPORTED && !implied) note_closest(w, number, &c);
  return TWS_OK;
}

/* Examines the points of a division. *implied is 1 if no point of a division with a smaller micro batch fits together
 * with its activations, so that larger ones do not fit either. */
static tws_code look_at_division(looker *w, int64_t division, int *implied, tws_error *err) {
  const tws_points *p = w->d->points;
  tws_variant v;
  int left = 0, own = 0;
  const tws_point_kind all = tws_points_division(p, division, &v);
  w->tally->considered += p->knobs;
  if (all != TWS_POINT_DISTINCT) {
    *(all == TWS_POINT_ILLEGAL ? &w->tally->illegal : &w->tally->equal) += p->knobs;
    return TWS_OK;
  }
  const int64_t refused = w->tally->refused;
  for (int64_t i = 0; i < p->knobs; i++) {
    const tws_point_kind standing = tws_points_knobs(p, division * p->knobs + i, &v);
    w->tally->illegal += standing == TWS_POINT_ILLEGAL;
    w->tally->equal += standing == TWS_POINT_EQUAL;
    if (standing != TWS_POINT_DISTINCT) continue;
    own++;
    TWS_TRY(look_at_point(w, division * p->knobs + i, &v, *implied, &left, err));
  }
  if (left) w->d->found->numbers[atomic_fetch_add(&w->d->found->count, 1)] = division;
  if (own && !left && w->tally->refused == refused && w->d->records[division].known == TWS_DIVISION_BOUNDED)
    *implied = 1;
  return TWS_OK;
}

/* Returns the family to examine as number `i`. With a time limit the order is a random permutation, so that the
 * families examined are spread over the space. */
static int64_t family_at(const looker *w, int64_t i) {
  const tws_tune_request *request = w->d->points->request;
  return request->budget_s > 0 ? (int64_t)tws_random_permute(request->seed, (uint64_t)w->families, (uint64_t)i) : i;
}

static tws_code look_at_families(looker *w, tws_error *err) {
  const tws_points *p = w->d->points;
  const tws_tune_request *request = p->request;
  const int64_t micros = p->count[TWS_DIGIT_MICRO];
  for (int64_t i; (i = atomic_fetch_add(&w->d->found->next, 1)) < w->families;) {
    if (request->parts > 1 && i % request->parts != request->part) continue;
    if (w->until_s > 0 && tws_clock_s() >= w->until_s) return TWS_OK;
    const int64_t family = family_at(w, i);
    tws_variant v;
    int implied = 0;
    const tws_point_kind all = tws_points_family(p, family, &v);
    if (all != TWS_POINT_DISTINCT) {
      w->tally->considered += micros * p->knobs;
      *(all == TWS_POINT_ILLEGAL ? &w->tally->illegal : &w->tally->equal) += micros * p->knobs;
    }
    for (int64_t m = 0; m < micros && all == TWS_POINT_DISTINCT; m++)
      TWS_TRY(look_at_division(w, family * micros + m, &implied, err));
    atomic_fetch_add(&w->d->found->considered, micros * p->knobs);
  }
  return TWS_OK;
}

/* ---- all workers ---- */

typedef struct answer {
  tws_code code;
  tws_error err;
  tws_tally tally;
} answer;

typedef struct lookers {
  looker all;
  answer *answers; /* answers in shared memory, one for each worker */
} lookers;

static void work(void *user, int index) {
  const lookers *l = user;
  answer *own = &l->answers[index];
  looker w = l->all;
  w.worker = index;
  w.tally = &own->tally;
  own->code = look_at_families(&w, &own->err);
  tws_job_destroy(w.job);
}

static tws_code run_workers(lookers *l, int workers, double *cpu_s, tws_error *err) {
  const tws_points *p = l->all.d->points;
  tws_progress *progress = p->request->progress;
  tws_worker_pool crew;
  TWS_TRY(tws_worker_pool_start(&crew, workers, work, l, err));
  if (progress) tws_progress_begin(progress, "examining divisions", (double)p->points);
  while (tws_worker_pool_running(&crew)) {
    if (progress) tws_progress_update(progress, (double)atomic_load(&l->all.d->found->considered));
    usleep(2000);
  }
  if (progress) tws_progress_end(progress);
  return tws_worker_pool_join(&crew, 0, cpu_s, err);
}

tws_code tws_divisions_look(tws_divisions *d, int workers, double until_s, tws_tally *tally, double *cpu_s,
                            tws_error *err) {
  const size_t bytes = (size_t)workers * sizeof(answer);
  lookers l = {.all = {.d = d, .until_s = until_s, .families = d->count / d->points->count[TWS_DIGIT_MICRO]},
               .answers = tws_worker_pool_memory(bytes)};
  if (!l.answers) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the search");
  tws_code code = run_workers(&l, workers, cpu_s, err);
  for (int i = 0; i < workers && code == TWS_OK; i++) {
    code = l.answers[i].code;
    if (code != TWS_OK && err) *err = l.answers[i].err;
    tws_tally_add(tally, &l.answers[i].tally);
  }
  tws_worker_pool_memory_free(l.answers, bytes);
  return code;
}

static int by_number(const void *left, const void *right) {
  const int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
  return a < b ? -1 : a > b;
}

const int64_t *tws_divisions_found(tws_divisions *d, int64_t *count) {
  *count = (int64_t)atomic_load(&d->found->count);
  qsort(d->found->numbers, (size_t)*count, sizeof *d->found->numbers, by_number);
  return d->found->numbers;
}

static int by_excess(const void *left, const void *right) {
  const closest *a = left, *b = right;
  if (a->excess != b->excess) return a->excess < b->excess ? -1 : 1;
  return a->number < b->number ? -1 : a->number > b->number;
}

int tws_divisions_closest(const tws_divisions *d, int64_t *numbers) {
  closest all[TWS_WORKER_POOL_MOST * TWS_CLOSEST];
  int count = 0, wanted;
  for (int w = 0; w < TWS_WORKER_POOL_MOST; w++)
    for (int i = 0; i < d->found->closest_count[w]; i++) all[count++] = d->found->closest[w][i];
  qsort(all, (size_t)count, sizeof *all, by_excess);
  wanted = count < TWS_CLOSEST ? count : TWS_CLOSEST;
  for (int i = 0; i < wanted; i++) numbers[i] = all[i].number;
  return wanted;
}
