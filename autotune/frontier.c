#include "autotune/frontier.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autotune/worker_pool.h"
#include "base/random.h"

enum { BATCH = 32, BATCH_OF_PLANS = 8 };

/* ---- the priority queue ---- */

typedef enum level {
  DIVISION, /* a division whose score is bounded by its passes on the first stage */
  PIPELINE, /* a division whose score is bounded by the layers of all stages, with warm-up and drain */
  POINT,
  BOUNDED
} level;
typedef struct entry {
  double score;   /* upper bound of the score */
  int64_t number; /* number of the point; for a division, of its first point that may fit */
  uint64_t print; /* fingerprint of a BOUNDED entry: points of a division with equal fingerprints have the same plan */
  level level;
} entry;

/* A plan that has been built. */
typedef struct made {
  int64_t division;
  uint64_t print;
} made;

typedef struct frontier {
  tws_search *s;
  entry *heap; /* binary heap, the highest bound first */
  size_t count, capacity;
  entry batch[BATCH];
  made *made; /* a hash table of `slots` slots */
  size_t made_count, slots;
} frontier;

static int comes_before(const entry *a, const entry *b) {
  if (a->score != b->score) return a->score > b->score;
  if (a->number != b->number) return a->number < b->number;
  return a->level < b->level;
}

static tws_code push(frontier *f, entry e, tws_error *err) {
  if (tws_reserve(&f->heap, &f->capacity, f->count + 1, sizeof *f->heap))
    return tws_fail(err, TWS_MEMORY, "name fewer values in the lists", "no memory for the search");
  size_t at = f->count++;
  for (; at > 0 && comes_before(&e, &f->heap[(at - 1) / 2]); at = (at - 1) / 2) f->heap[at] = f->heap[(at - 1) / 2];
  f->heap[at] = e;
  return TWS_OK;
}

static entry pop(frontier *f) {
  const entry best = f->heap[0], last = f->heap[--f->count];
  size_t at = 0;
  for (size_t child; (child = 2 * at + 1) < f->count; at = child) {
    if (child + 1 < f->count && comes_before(&f->heap[child + 1], &f->heap[child])) child++;
    if (!comes_before(&f->heap[child], &last)) break;
    f->heap[at] = f->heap[child];
  }
  f->heap[at] = last;
  return best;
}

/* ---- results ---- */

static int by_score(const tws_search *s, const tws_tune_candidate *a, const tws_tune_candidate *b) {
  const double x = tws_tune_score(s->request, a), y = tws_tune_score(s->request, b);
  if (x != y) return x > y ? -1 : 1;
  if (a->needed_bytes != b->needed_bytes) return a->needed_bytes < b->needed_bytes ? -1 : 1;
  return strcmp(a->name, b->name);
}

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "no memory for the candidates");
}

static tws_code add_fit(tws_search *s, const tws_tune_candidate *c, tws_error *err) {
  int at;
  if (tws_reserve(&s->fits, &s->fit_capacity, (size_t)s->fit_count + 1, sizeof *s->fits)) return no_memory(err);
  for (at = s->fit_count++; at > 0 && by_score(s, c, &s->fits[at - 1]) < 0; at--) s->fits[at] = s->fits[at - 1];
  s->fits[at] = *c;
  return TWS_OK;
}

static double excess_of(const tws_tune_candidate *c) {
  return c->available_bytes > 0 ? c->needed_bytes / c->available_bytes : 1e300;
}

/* Adds a candidate that does not fit to the list of rejects, which has all of them if every point is planned, else the
 * TWS_CLOSEST that are closest to fitting. */
static tws_code add_reject(tws_search *s, const tws_tune_candidate *c, tws_error *err) {
  const int refused = c->verdict == TWS_TUNE_NOT_SUPPORTED;
  *(refused ? &s->tally->refused : &s->tally->too_large) += 1;
  tws_tally_reason(s->tally, c->reason, 1);
  if (!s->every && refused) return TWS_OK;
  if (!s->every && s->reject_count == TWS_CLOSEST) {
    int farthest = 0;
    for (int i = 1; i < s->reject_count; i++)
      if (excess_of(&s->rejects[i]) > excess_of(&s->rejects[farthest])) farthest = i;
    if (excess_of(c) < excess_of(&s->rejects[farthest])) s->rejects[farthest] = *c;
    return TWS_OK;
  }
  if (tws_reserve(&s->rejects, &s->reject_capacity, (size_t)s->reject_count + 1, sizeof *s->rejects))
    return no_memory(err);
  s->rejects[s->reject_count++] = *c;
  return TWS_OK;
}

/* Returns 1 if an entry with this bound may still be among the best. */
static int may_be_best(const tws_search *s, double score) {
  if (s->every || s->fit_count < s->wanted) return 1;
  return score >= tws_tune_score(s->request, &s->fits[s->wanted - 1]) * (1 - 1e-12);
}

/* ---- plans already built ---- */

static made *made_slot(made *table, size_t slots, const made *m) {
  size_t at = (size_t)(m->print ^ (uint64_t)m->division * UINT64_C(0x9e3779b97f4a7c15)) % slots;
  while (table[at].print && (table[at].print != m->print || table[at].division != m->division)) at = (at + 1) % slots;
  return &table[at];
}

static tws_code grow_made(frontier *f, tws_error *err) {
  const size_t slots = f->slots ? 2 * f->slots : 1024;
  made *table = tws_calloc(slots, sizeof *table);
  if (!table) return no_memory(err);
  for (size_t i = 0; i < f->slots; i++)
    if (f->made[i].print) *made_slot(table, slots, &f->made[i]) = f->made[i];
  tws_free(f->made);
  f->made = table;
  f->slots = slots;
  return TWS_OK;
}

/* Records a plan. Sets *is_new to 0 if a point with the same ranks along each axis and the same plan was recorded
 * before, else to 1. */
static tws_code note_plan(frontier *f, const entry *e, int *is_new, tws_error *err) {
  const made m = {e->number / f->s->points->knobs, e->print ? e->print : 1};
  if (2 * (f->made_count + 1) > f->slots) TWS_TRY(grow_made(f, err));
  made *slot = made_slot(f->made, f->slots, &m);
  *is_new = !slot->print;
  f->made_count += (size_t)*is_new;
  *slot = m;
  return TWS_OK;
}

/* ---- refinement ---- */

static tws_code look_closer(void *user, int item, void *answer, tws_error *err) {
  const frontier *f = user;
  const tws_search *s = f->s;
  const entry *e = &f->batch[item];
  tws_tune_candidate *c = answer;
  const tws_variant v = tws_points_variant(s->points, e->number);
  const int planned = e->level == BOUNDED;
  *c = tws_tune_candidate_of(&v);
  if (e->level == DIVISION) return tws_tune_bound_layers(s->request, c, err);
  if (!tws_search_state_find(s->state, e->number, planned, c))
    TWS_TRY(planned ? tws_tune_estimate(s->request, c, err) : tws_tune_bound(s->request, c, err));
  c->number = e->number;
  return TWS_OK;
}

/* Inserts a refined entry; called in the order in which entries were removed from the queue, which keeps the result
 * independent of the workers. */
static tws_code read_answer(void *user, int item, const void *answer, int *stop, tws_error *err) {
  frontier *f = user;
  tws_search *s = f->s;
  const entry *e = &f->batch[item];
  tws_tune_candidate c;
  (void)stop;
  memcpy(&c, answer, sizeof c); /* a worker process wrote the pointer `bottleneck`, so it is set again: */
  c.estimate.path.bottleneck = c.estimate.path.text;
  /* the bound of a division ignores memory, which each point is checked for later */
  if (e->level == DIVISION) {
    c.needed_bytes = 0;
    const double promised = s->request->goal == TWS_GOAL_MEMORY || c.verdict == TWS_TUNE_NOT_SUPPORTED
                                ? e->score
                                : tws_tune_score(s->request, &c);
    return push(f, (entry){promised > 0 && promised < e->score ? promised : e->score, e->number, 0, PIPELINE}, err);
  }
  tws_search_state_keep(s->state, e->number, &c);
  s->swept->plans += e->level == BOUNDED;
  s->swept->bounds += e->level == POINT;
  if (c.verdict != TWS_TUNE_FITS) return add_reject(s, &c, err);
  if (e->level == BOUNDED) return add_fit(s, &c, err);
  /* if an order of points is requested, a bound must not change an entry's position in the queue */
  const double score = tws_tune_score(s->request, &c);
  const int ordered = s->request->tuner != TWS_TUNER_MODEL_BASED;
  return push(f, (entry){ordered || score > e->score ? e->score : score, e->number, c.print, BOUNDED}, err);
}

/* ---- the search ---- */

/* Adds the points of a division that may fit to the queue, each with the division's bound. If `first` is not NULL,
 * writes the number of the first such point to *first instead. */
static tws_code expand(frontier *f, const entry *e, int64_t *first, tws_error *err) {
  tws_search *s = f->s;
  const int64_t begin = e->number - e->number % s->points->knobs;
  for (int64_t number = begin; number < begin + s->points->knobs; number++) {
    tws_variant v;
    int may_fit;
    TWS_TRY(tws_divisions_may_fit(s->divisions, number, &v, &may_fit, err));
    if (may_fit && first) {
      *first = number;
      return TWS_OK;
    }
    if (may_fit) TWS_TRY(push(f, (entry){e->score, number, 0, POINT}, err));
  }
  return TWS_OK;
}

static int has_stages(const tws_search *s, int64_t number) {
  return tws_points_variant(s->points, number).pipeline > 1;
}

/* Removes the next batch from the queue: the entries with the highest bounds. */
static tws_code take_batch(frontier *f, int *count, tws_error *err) {
  int plans = 0;
  *count = 0;
  while (*count < BATCH && f->count && may_be_best(f->s, f->heap[0].score)) {
    if (f->heap[0].level == BOUNDED && plans == BATCH_OF_PLANS) return TWS_OK;
    entry e = pop(f);
    const int ordered = f->s->request->tuner != TWS_TUNER_MODEL_BASED;
    if (e.level == DIVISION && has_stages(f->s, e.number) && !ordered)
      TWS_TRY(expand(f, &e, &e.number, err));
    else if (e.level == DIVISION || e.level == PIPELINE) {
      TWS_TRY(expand(f, &e, NULL, err));
      continue;
    }
    int is_new = 1;
    if (e.level == BOUNDED) TWS_TRY(note_plan(f, &e, &is_new, err));
    f->s->tally->equal += !is_new;
    if (!is_new) continue;
    plans += e.level == BOUNDED;
    f->batch[(*count)++] = e;
  }
  return TWS_OK;
}

/* Returns a score that encodes the position of an entry in a requested order (gridsearch or random), instead of a
 * bound. */
static double order_score(const tws_search *s, int64_t place, int64_t points) {
  const tws_tune_request *request = s->request;
  if (request->tuner == TWS_TUNER_RANDOM)
    place = (int64_t)tws_random_permute(request->seed, (uint64_t)points, (uint64_t)place);
  return (double)(points - place);
}

typedef struct listing {
  frontier *f;
  int64_t place;
  tws_code code;
  tws_error *err;
} listing;

static int list_point(void *user, int64_t number, const tws_variant *variant) {
  listing *l = user;
  const tws_search *s = l->f->s;
  const int ordered = s->request->tuner != TWS_TUNER_MODEL_BASED;
  (void)variant;
  const double score = ordered ? order_score(s, l->place, s->points->points) : 1e300;
  l->place++;
  l->code = push(l->f, (entry){score, number, 0, POINT}, l->err);
  return l->code == TWS_OK;
}

/* Returns an upper bound of a division's score from its passes; memory is not considered here, but for each point. */
static double division_score(const tws_search *s, int64_t division) {
  tws_variant v;
  const tws_division_bound *record = &s->divisions->records[division];
  tws_points_division(s->points, division, &v);
  tws_tune_candidate c = {.variant = v};
  c.samples = tws_variant_samples(&v);
  c.estimate.step_s = record->step_s;
  c.needed_bytes = (double)record->active.bytes[TWS_TIER_DEVICE];
  if (s->request->goal == TWS_GOAL_FLOPS) return 1e300; /* no bound of the model FLOPs of a division is known */
  return record->step_s > 0 ? tws_tune_score(s->request, &c) : 1e300;
}

static tws_code fill_frontier(frontier *f, tws_error *err) {
  tws_search *s = f->s;
  const int ordered = s->request->tuner != TWS_TUNER_MODEL_BASED;
  if (!s->divisions) {
    listing l = {.f = f, .err = err};
    tws_points_each(s->points, list_point, &l);
    return l.code;
  }
  int64_t count;
  const int64_t *found = tws_divisions_found(s->divisions, &count);
  for (int64_t i = 0; i < count; i++) {
    const double score = ordered ? order_score(s, i, count) : division_score(s, found[i]);
    TWS_TRY(push(f, (entry){score, found[i] * s->points->knobs, 0, DIVISION}, err));
  }
  return TWS_OK;
}

static int is_out_of_time(const tws_search *s) {
  return s->until_s > 0 && tws_clock_s() >= s->until_s;
}

/* Shows in the progress display the number of best points found, and an upper bound of the possible improvement. */
static void show(const tws_search *s, const frontier *f, tws_progress *progress) {
  char what[96] = "planning the best";
  if (s->fit_count && f->count && f->heap[0].score < 1e299 && s->request->tuner == TWS_TUNER_MODEL_BASED) {
    const double better = f->heap[0].score / tws_tune_score(s->request, &s->fits[0]) - 1;
    if (better > 0)
      snprintf(what, sizeof what, "planning the best: other points are at most %.1f %% better", 100 * better);
    else
      snprintf(what, sizeof what, "planning the best: the best is known");
  }
  progress->what = what;
  tws_progress_update(progress, s->fit_count < s->wanted ? s->fit_count : s->wanted);
  progress->what = "planning the best";
}

static tws_code search(frontier *f, tws_error *err) {
  tws_search *s = f->s;
  tws_progress *progress = s->request->progress;
  const tws_worker_pool_list list = {0, sizeof(tws_tune_candidate), look_closer, read_answer, f, 0};
  const int ordered = s->request->tuner != TWS_TUNER_MODEL_BASED;
  while (f->count && !is_out_of_time(s)) {
    tws_worker_pool_list batch = list;
    if (ordered && !s->every && s->fit_count >= s->wanted) break;
    TWS_TRY(take_batch(f, &batch.items, err));
    if (!batch.items) break;
    TWS_TRY(tws_worker_pool_process(&batch, s->workers, &s->swept->plan_cpu_s, err));
    if (progress) show(s, f, progress);
  }
  return TWS_OK;
}

/* Counts the points that were not examined because they cannot be among the best, or because the time limit was
 * reached. */
static tws_code count_rest(frontier *f, tws_error *err) {
  tws_search *s = f->s;
  const int ordered = s->request->tuner != TWS_TUNER_MODEL_BASED;
  if (f->count && (may_be_best(s, f->heap[0].score) || ordered)) s->left_score = f->heap[0].score;
  while (f->count) {
    const entry e = pop(f);
    const int whole = e.level == DIVISION || e.level == PIPELINE;
    int64_t points = !whole;
    for (int64_t i = 0; i < s->points->knobs && whole; i++) {
      const int64_t number = e.number - e.number % s->points->knobs + i;
      tws_variant v;
      int may_fit;
      TWS_TRY(tws_divisions_may_fit(s->divisions, number, &v, &may_fit, err));
      points += may_fit;
    }
    *(ordered || may_be_best(s, e.score) ? &s->swept->left : &s->swept->ruled_out) += points;
  }
  return TWS_OK;
}

tws_code tws_frontier_search(tws_search *s, tws_error *err) {
  tws_progress *progress = s->request->progress;
  frontier *f = tws_calloc(1, sizeof *f);
  if (!f) return no_memory(err);
  f->s = s;
  if (progress) tws_progress_begin(progress, "planning the best", s->wanted);
  tws_code code = fill_frontier(f, err);
  if (code == TWS_OK) code = search(f, err);
  if (code == TWS_OK) code = count_rest(f, err);
  if (progress) tws_progress_end(progress);
  tws_free(f->heap);
  tws_free(f->made);
  tws_free(f);
  return code;
}

/* ---- nothing fits ---- */

static double missing_of(const tws_tune_candidate *c) {
  return c->needed_bytes - c->available_bytes;
}

/* Adds the rejected points that are closest to fitting by their bounds, so that they are planned. */
static tws_code add_closest(tws_search *s, tws_error *err) {
  int64_t numbers[TWS_CLOSEST];
  const int count = s->divisions ? tws_divisions_closest(s->divisions, numbers) : 0;
  for (int i = 0; i < count; i++) {
    const tws_variant v = tws_points_variant(s->points, numbers[i]);
    if (tws_reserve(&s->rejects, &s->reject_capacity, (size_t)s->reject_count + 1, sizeof *s->rejects))
      return no_memory(err);
    tws_tune_candidate *c = &s->rejects[s->reject_count++];
    *c = tws_tune_candidate_of(&v);
    c->number = numbers[i];
    TWS_TRY(tws_tune_bound(s->request, c, err));
  }
  return TWS_OK;
}

tws_code tws_frontier_plan_closest(tws_search *s, tws_error *err) {
  enum { MOST = 64 };
  TWS_TRY(add_closest(s, err));
  for (int planned = 0; planned < MOST; planned++) {
    /* A plan needs at least as many bytes as its bound. So the candidate that misses the fewest bytes is planned, until
     * the candidate that misses the fewest bytes has a plan. */
    tws_tune_candidate *closest = NULL;
    for (int i = 0; i < s->reject_count; i++) {
      tws_tune_candidate *c = &s->rejects[i];
      if (c->verdict != TWS_TUNE_NOT_SUPPORTED && (!closest || missing_of(c) < missing_of(closest))) closest = c;
    }
    if (!closest || !closest->implied) break;
    TWS_TRY(tws_tune_estimate(s->request, closest, err));
  }
  return TWS_OK;
}
