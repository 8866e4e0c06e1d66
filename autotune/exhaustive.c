#include "autotune/exhaustive.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "autotune/crew.h"
#include "autotune/search_state.h"
#include "base/random.h"
#include "estimators/composer.h"

enum { DEFAULT_FINALISTS = 12 };

tws_swept_way tws_tune_swept_way(const tws_tune_swept *s, int way) {
  const tws_swept_way all[TWS_SWEPT_WAYS] = {
      {s->illegal, "illegal: no such division, batch or combination"},
      {s->equal, "equal to another: a knob has no effect there"},
      {s->too_large, "too large for the device, its host or disk"},
      {s->too_slow, "slower than the best at least, by what each stage has to do"},
      {s->composed, "composed exactly"},
      {s->bounded, "composed as lower bounds"},
      {s->left, "not looked at within the budget"}};
  return all[way];
}

/* ---- a worker ---- */

typedef struct template {
  int known;
  tws_code code;
  tws_config config;
  tws_topology topology;
  const tws_network *network;
}
template;

typedef struct worker {
  const tws_product *s;
  int index, count;        /* of the workers of all parts */
  int own;                 /* of this part's */
  tws_search_state *sweep; /* NULL: nothing is kept */
  tws_search_state_tally tally;
  double until_s; /* look no further then; 0: no limit */
  tws_best exact, bounds;
  tws_composer *composer;
  int64_t lowered;     /* by those before it */
  template *templates; /* by what the rest of a configuration depends on */
  tws_capacity capacity;
  int unpruned; /* what is too large or too slow is composed all the same */
  int patient;  /* no bound is enough where more can be known (tws_compose_limits.hasty) */
} worker;

static size_t template_count(const tws_product *s) {
  size_t n = 1;
  static const int digits[] = {TWS_DIGIT_TENSOR, TWS_DIGIT_TOKENS,  TWS_DIGIT_PIPELINE,
                               TWS_DIGIT_STAGE,  TWS_DIGIT_OVERLAP, TWS_DIGIT_OFFLOAD};
  for (size_t i = 0; i < sizeof digits / sizeof *digits; i++) n *= (size_t)s->count[digits[i]];
  return n;
}

static template *template_of(worker *w, const tws_product_point *p) {
  static const int digits[] = {TWS_DIGIT_TENSOR, TWS_DIGIT_TOKENS,  TWS_DIGIT_PIPELINE,
                               TWS_DIGIT_STAGE,  TWS_DIGIT_OVERLAP, TWS_DIGIT_OFFLOAD};
  size_t at = 0;
  for (size_t i = 0; i < sizeof digits / sizeof *digits; i++)
    at = at * (size_t)w->s->count[digits[i]] + (size_t)p->digit[digits[i]];
  return &w->templates[at];
}

/* The resolved configuration of a point. What a variant changes but the rest of the configuration does not depend on is
 * set in a copy; finalists are planned from configurations of their own, so a difference would show. */
static tws_code request_of(worker *w, const tws_product_point *p, const tws_variant *v, tws_config *config,
                           tws_plan_request *out, tws_error *err) {
  template *t = template_of(w, p);
  if (!t->known) {
    tws_job *job = NULL;
    tws_variant all = *v; /* what nothing else depends on is set below */
    memset(all.zero3, 0, sizeof all.zero3);
    all.reduce_bucket = 0;
    t->known = 1;
    t->code = tws_job_derive(w->s->request->job, &all, &job, err);
    if (t->code == TWS_OK) {
      t->config = *job->config;
      t->config.store = NULL;
      t->config.pipeline_partition = w->s->request->job->config->pipeline_partition;
      t->topology = job->topology;
      t->network = job->network;
    }
    tws_job_destroy(job);
  }
  if (t->code != TWS_OK) return t->code;
  *config = t->config;
  config->micro_batch_size = v->micro;
  config->accumulation_steps = v->accumulation;
  config->train_batch_size = v->micro * v->accumulation * tws_variant_replicas(v);
  config->recompute = v->recompute;
  if (v->reduce_bucket) config->zero.reduce_bucket_size = v->reduce_bucket;
  tws_variant_set_limits(v, config);
  if (config->zero.allgather_sequential) config->zero.prefetch_bucket_size = t->config.zero.prefetch_bucket_size;
  if (v->pipeline > 1) {
    config->pipeline_schedule = (int)v->schedule.kind;
    config->virtual_stages = v->schedule.virtual_stages;
  }
  *out = (tws_plan_request){.network = t->network,
                            .config = config,
                            .topology = t->topology,
                            .backend = w->s->request->job->backend,
                            .threads = 1,
                            .program = w->s->request->job->program};
  return TWS_OK;
}

/* In the node's memory and on its disks. */
static int has_room_beside(const worker *w, const tws_composed *c) {
  return (!(w->capacity.rank_node > 0) || (double)c->host_bytes <= w->capacity.rank_node) &&
         (double)c->disk_bytes <= w->capacity.rank_disk;
}

/* Whether a bound is worth an exact answer. */
static int may_be_best(const worker *w, const tws_composed *c, double samples) {
  if (w->unpruned || c->too_large || c->too_slow || !has_room_beside(w, c)) return 0;
  return w->exact.count < w->exact.most || samples / c->step_s > w->exact.items[0].samples_per_s;
}

static tws_code look_at(worker *w, const tws_product_point *p, const tws_variant *v, tws_error *err) {
  tws_tune_swept *swept = &w->tally.swept;
  const double samples = (double)(v->micro * v->accumulation * tws_variant_replicas(v));
  tws_config config;
  tws_plan_request request;
  tws_composed composed;
  tws_compose_limits limits = {.bytes = w->unpruned ? 0 : w->capacity.rank_device, .hasty = !w->patient};
  if (w->exact.count == w->exact.most && !w->unpruned) limits.seconds = samples / w->exact.items[0].samples_per_s;
  tws_code code = request_of(w, p, v, &config, &request, err);
  if (code == TWS_OK) code = tws_compose(w->composer, &request, &limits, &composed, err);
  limits.hasty = 0;
  if (code == TWS_OK && composed.hasty && may_be_best(w, &composed, samples))
    code = tws_compose(w->composer, &request, &limits, &composed, err);
  if (code == TWS_UNSUPPORTED || code == TWS_INVALID) {
    swept->illegal++;
    return TWS_OK;
  }
  TWS_TRY(code);
  if (composed.too_large || (!w->unpruned && !has_room_beside(w, &composed))) {
    swept->too_large++;
    return TWS_OK;
  }
  if (composed.too_slow) {
    swept->too_slow++;
    return TWS_OK;
  }
  const tws_finalist f = {p->number, samples / composed.step_s, composed.step_s, composed.exact};
  *(composed.exact ? &swept->composed : &swept->bounded) += 1;
  if (composed.exact)
    tws_finalists_offer(&w->exact, &f);
  else if (w->exact.count < w->exact.most || f.samples_per_s > w->exact.items[0].samples_per_s)
    tws_finalists_offer(&w->bounds, &f);
  return TWS_OK;
}

/* All combinations of ZeRO's knobs for one division and batch. */
static tws_code look_at_knobs(worker *w, int64_t first, int64_t knobs, tws_error *err) {
  tws_tune_swept *swept = &w->tally.swept;
  tws_product_point p = {.number = first};
  tws_product_digits(w->s, &p);
  tws_variant v = tws_product_variant(w->s, &p);
  const tws_standing all = tws_product_division(w->s, &p, &v);
  swept->considered += knobs;
  if (all != TWS_POINT_OWN) {
    *(all == TWS_POINT_ILLEGAL ? &swept->illegal : &swept->equal) += knobs;
    return TWS_OK;
  }
  for (int64_t i = 0; i < knobs; i++) {
    p.number = first + i;
    tws_product_digits(w->s, &p);
    v = tws_product_variant(w->s, &p);
    const tws_standing own = tws_product_knobs(w->s, &p, &v);
    swept->illegal += own == TWS_POINT_ILLEGAL;
    swept->equal += own == TWS_POINT_EQUAL;
    if (own == TWS_POINT_OWN) TWS_TRY(look_at(w, &p, &v, err));
  }
  return TWS_OK;
}

/* Which class comes as number `i`: with a budget in an order that is drawn, so that what is looked at is spread over
 * the space. */
static int64_t class_at(const tws_product *s, int64_t classes, int64_t i) {
  const tws_tune_request *request = s->request;
  return request->budget_s > 0 ? (int64_t)tws_random_permute(request->seed, (uint64_t)classes, (uint64_t)i) : i;
}

/* 0: there was no time for all of it. */
static tws_code search_class(worker *w, int64_t c, int64_t in_class, int *whole, tws_error *err) {
  int64_t knobs = 1;
  for (int i = TWS_DIGIT_STAGE; i < TWS_DIGITS; i++) knobs *= w->s->count[i];
  *whole = 1;
  for (int64_t at = c * in_class; at < (c + 1) * in_class && *whole; at += knobs) {
    TWS_TRY(look_at_knobs(w, at, knobs, err));
    if (w->sweep) w->sweep->worker[w->own].considered = w->tally.swept.considered;
    *whole = !(w->until_s > 0) || tws_clock_s() < w->until_s;
  }
  return TWS_OK;
}

/* A composer keeps all pieces that it has lowered, which classes far apart rarely share: a search of any size needs so
 * much memory and no more. */
static tws_code forget_pieces(worker *w, tws_error *err) {
  const size_t most = (size_t)48 << 20;
  if (tws_composer_bytes(w->composer) <= most) return TWS_OK;
  const tws_composer_counts counts = tws_composer_count(w->composer);
  w->lowered += counts.bodies + counts.tails;
  tws_composer_destroy(w->composer);
  return tws_composer_create(&w->s->request->job->machine, NULL, &w->composer, err);
}

static tws_code search_part(worker *w, tws_error *err) {
  const clock_t started = clock();
  const double before_s = w->tally.swept.search_cpu_s;
  int64_t in_class = 1;
  w->lowered = w->tally.swept.lowered;
  for (int i = TWS_CLASS_DIGITS; i < TWS_DIGITS; i++) in_class *= w->s->count[i];
  const int64_t classes = w->s->points / in_class;
  int whole = 1;
  for (int64_t i = w->index + w->tally.classes * w->count; i < classes && whole; i += w->count) {
    TWS_TRY(search_class(w, class_at(w->s, classes, i), in_class, &whole, err));
    const tws_composer_counts counts = tws_composer_count(w->composer);
    w->tally.classes++;
    w->tally.swept.lowered = w->lowered + counts.bodies + counts.tails;
    w->tally.swept.search_cpu_s = before_s + (double)(clock() - started) / CLOCKS_PER_SEC;
    if (whole && w->sweep) tws_search_state_commit(w->sweep, w->own, &w->tally, &w->exact, &w->bounds);
    TWS_TRY(forget_pieces(w, err));
  }
  return TWS_OK;
}

static tws_code run_worker(worker *w, tws_error *err) {
  const tws_tune_request *request = w->s->request;
  w->capacity = tws_capacity_of(&request->job->machine, w->s->ranks, request->memory_bytes);
  w->templates = tws_calloc(template_count(w->s), sizeof *w->templates);
  if (!w->templates) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the search");
  tws_code code = tws_composer_create(&request->job->machine, NULL, &w->composer, err);
  if (code == TWS_OK) code = search_part(w, err);
  tws_composer_destroy(w->composer);
  tws_free(w->templates);
  return code;
}

/* ---- all workers ---- */

typedef struct failure {
  tws_code code;
  tws_error err;
} failure;

typedef struct common {
  const tws_product *s;
  tws_search_state sweep;
  failure *failures; /* shared, per worker */
  double until_s;
} common;

/* With what it had found when the search ended before. */
static tws_code take_up(worker *w) {
  const tws_search_state *s = w->sweep;
  const tws_search_state_tally *t = tws_search_state_tally_of(s, w->own);
  const tws_finalist *own = tws_search_state_finalists_of(s, w->own);
  tws_finalist *items = tws_calloc((size_t)s->exact_most + TWS_KEPT_BOUNDS, sizeof *items);
  if (!items) return TWS_MEMORY;
  memcpy(items, own, (size_t)t->exact * sizeof *items);
  memcpy(items + s->exact_most, own + s->exact_most, (size_t)t->bounds * sizeof *items);
  w->tally = *t;
  w->exact = (tws_best){.items = items, .most = s->exact_most, .count = t->exact};
  w->bounds = (tws_best){.items = items + s->exact_most,
                         .most = TWS_KEPT_BOUNDS,
                         .count = t->bounds,
                         .dropped = t->dropped,
                         .best_dropped = t->best_dropped};
  return TWS_OK;
}

static void work(void *user, int index) {
  common *shared = user;
  const tws_tune_request *request = shared->s->request;
  const int parts = request->parts > 1 ? request->parts : 1;
  failure *f = &shared->failures[index];
  worker w = {.s = shared->s,
              .index = index * parts + request->part,
              .own = index,
              .count = shared->sweep.workers * parts,
              .sweep = &shared->sweep,
              .until_s = shared->until_s};
  f->code = take_up(&w);
  if (f->code == TWS_OK) f->code = run_worker(&w, &f->err);
  if (f->code == TWS_OK) shared->sweep.worker[index].ended = 1;
  tws_free(w.exact.items);
}

static tws_code run_workers(common *shared, tws_error *err) {
  tws_progress *progress = shared->s->request->progress;
  const int workers = shared->sweep.workers;
  tws_crew crew;
  for (int i = 0; i < workers; i++) shared->failures[i].code = TWS_INTERNAL;
  TWS_TRY(tws_crew_start(&crew, workers, work, shared, err));
  if (progress) tws_progress_begin(progress, "searching", (double)shared->s->points);
  for (int left = 1; left > 0;) {
    double done = 0;
    left = tws_crew_left(&crew);
    for (int i = 0; i < workers; i++) done += (double)shared->sweep.worker[i].considered;
    if (progress) tws_progress_update(progress, done);
    if (left) usleep(5000);
  }
  if (progress) tws_progress_end(progress);
  TWS_TRY(tws_crew_end(&crew, 0, NULL, err));
  for (int i = 0; i < workers; i++)
    if (shared->failures[i].code != TWS_OK) {
      if (err) *err = shared->failures[i].err;
      return shared->failures[i].code;
    }
  return TWS_OK;
}

static void add_tally(tws_tune_swept *all, const tws_tune_swept *one) {
  all->considered += one->considered;
  all->illegal += one->illegal;
  all->equal += one->equal;
  all->too_large += one->too_large;
  all->too_slow += one->too_slow;
  all->composed += one->composed;
  all->bounded += one->bounded;
  all->lowered += one->lowered;
  all->search_cpu_s += one->search_cpu_s;
}

static int wanted_of(const tws_tune_request *request) {
  return request->trials > 0 ? request->trials : DEFAULT_FINALISTS;
}

/* Exact points that a worker keeps at first: what was composed may not fit in whole, or be one plan with others, so
 * some more than are wanted. */
static int first_most(const tws_tune_request *request) {
  return 4 * wanted_of(request) + 64;
}

/* What all workers found, of all parts. */
typedef struct found {
  tws_finalist *items;
  size_t capacity;
  int count;
  double left_out, dropped; /* the best that exact ones and bounds left out, at most */
} found;

static tws_code add_found(found *all, const tws_search_state *sweep, tws_tune_swept *swept, tws_error *err) {
  for (int i = 0; i < sweep->workers; i++) {
    const tws_search_state_tally *t = tws_search_state_tally_of(sweep, i);
    const tws_finalist *own = tws_search_state_finalists_of(sweep, i);
    add_tally(swept, &t->swept);
    if (tws_reserve(&all->items, &all->capacity, (size_t)all->count + (size_t)(t->exact + t->bounds) + 1,
                    sizeof *all->items))
      return tws_fail(err, TWS_MEMORY, NULL, "no memory for the finalists");
    memcpy(all->items + all->count, own, (size_t)t->exact * sizeof *own);
    memcpy(all->items + all->count + t->exact, own + sweep->exact_most, (size_t)t->bounds * sizeof *own);
    all->count += t->exact + t->bounds;
    if (t->exact == sweep->exact_most && own->samples_per_s > all->left_out) all->left_out = own->samples_per_s;
    if (t->dropped && t->best_dropped > all->dropped) all->dropped = t->best_dropped;
  }
  return TWS_OK;
}

static double worst_of(const tws_tune_result *result, int wanted) {
  const tws_tune_candidate *last = result->fits >= wanted ? &result->candidates[wanted - 1] : NULL;
  return last ? last->samples / last->estimate.step_s : 0;
}

/* Of a part, and of a search that keeps so many exact points. */
static void state_path(const tws_tune_request *request, int part, int exact_most, char *path, size_t size) {
  char number[32] = "", most[32] = "";
  if (part) snprintf(number, sizeof number, ".%d", part);
  if (exact_most > first_most(request)) snprintf(most, sizeof most, ".%d", exact_most);
  snprintf(path, size, "%.3072s%s%s", request->state, number, most);
}

/* Waits for another part's end. Whoever started the parts ends them all when one of them dies. */
static tws_code add_part(const tws_product *s, int part, const tws_search_state *like, found *all,
                         tws_tune_swept *swept, tws_error *err) {
  char path[4096];
  tws_search_state sweep;
  int ready = 0;
  state_path(s->request, part, like->exact_most, path, sizeof path);
  for (int waits = 0; !ready; waits++) {
    TWS_TRY(tws_search_state_open_part(&sweep, path, s, like->workers, like->exact_most, &ready, err));
    if (!ready) usleep(20000);
  }
  const tws_code code = add_found(all, &sweep, swept, err);
  tws_search_state_close(&sweep);
  return code;
}

static tws_code gather(const tws_product *s, tws_search_state *sweep, int wanted, tws_tune_result *result, int *enough,
                       tws_error *err) {
  found all = {0};
  tws_tune_swept *swept = &result->swept;
  tws_code code = add_found(&all, sweep, swept, err);
  for (int part = 1; part < s->request->parts && code == TWS_OK; part++)
    code = add_part(s, part, sweep, &all, swept, err);
  swept->left = s->points - swept->considered;
  swept->considered = s->points;
  if (code == TWS_OK) code = tws_finalists_plan(s, sweep, all.items, all.count, wanted, result, err);
  tws_free(all.items);
  *enough = worst_of(result, wanted) >= all.left_out;
  if (code != TWS_OK || all.dropped <= 0 || all.dropped < worst_of(result, wanted)) return code;
  return tws_fail(
      err, TWS_UNSUPPORTED, "leave out values of --overlaps, --offloads or --buckets, or ZeRO stages 2 and 3",
      "more than %d configurations may be faster than the best, by what is known without their plans", TWS_KEPT_BOUNDS);
}

tws_code tws_tune_compose_all(const tws_tune_request *request, tws_compose_how how, tws_tune_swept *swept,
                              tws_error *err) {
  tws_product s;
  TWS_TRY(tws_product_fill(request, &s, err));
  const int most = wanted_of(request);
  tws_finalist *kept = tws_calloc((size_t)most + TWS_KEPT_BOUNDS, sizeof *kept);
  if (!kept) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the search");
  worker w = {.s = &s, .count = 1, .unpruned = how != TWS_COMPOSE_PRUNED, .patient = how == TWS_COMPOSE_EXACTLY};
  w.exact = (tws_best){.items = kept, .most = most};
  w.bounds = (tws_best){.items = kept + most, .most = TWS_KEPT_BOUNDS};
  const tws_code code = run_worker(&w, err);
  *swept = w.tally.swept;
  tws_free(kept);
  return code;
}

/* With so many exact points kept for each worker; *enough: none that was left out is among the best. */
static tws_code search_and_plan(const tws_product *s, int exact_most, int wanted, tws_tune_result *result, int *enough,
                                tws_error *err) {
  const tws_tune_request *request = s->request;
  const int workers = tws_crew_size(request->workers);
  const double started = tws_clock_s();
  common shared = {.s = s, .until_s = request->budget_s > 0 ? started + request->budget_s : 0};
  const size_t bytes = (size_t)workers * sizeof *shared.failures;
  char path[4096];
  if (request->state) state_path(request, request->part, exact_most, path, sizeof path);
  TWS_TRY(
      tws_search_state_open(&shared.sweep, request->state ? path : NULL, request->resume, s, workers, exact_most, err));
  shared.failures = tws_crew_memory(bytes);
  tws_code code =
      shared.failures ? run_workers(&shared, err) : tws_fail(err, TWS_MEMORY, NULL, "no memory for the search");
  const double searched = tws_clock_s();
  *enough = 1;
  if (code == TWS_OK && request->part == 0) code = gather(s, &shared.sweep, wanted, result, enough, err);
  tws_crew_memory_free(shared.failures, bytes);
  tws_search_state_close(&shared.sweep);
  result->swept.search_s += searched - started;
  result->swept.plan_s += tws_clock_s() - searched;
  return code;
}

void tws_tune_forget(const tws_tune_request *request) {
  enum { ROUNDS = 8 };
  char path[4096];
  for (int part = 0; request->state && part < (request->parts > 1 ? request->parts : 1); part++)
    for (int round = 0, most = first_most(request); round < ROUNDS; round++, most *= 4) {
      state_path(request, part, most, path, sizeof path);
      tws_remove_file(path);
    }
}

tws_code tws_tune_exhaustive(const tws_tune_request *request, tws_tune_result *result, tws_error *err) {
  tws_product s;
  TWS_TRY(tws_product_fill(request, &s, err));
  int enough = 0;
  for (int most = first_most(request); !enough; most *= 4) {
    tws_free(result->candidates);
    result->candidates = NULL;
    result->count = result->fits = 0;
    result->swept = (tws_tune_swept){.plan_s = result->swept.plan_s,
                                     .search_s = result->swept.search_s,
                                     .plan_cpu_s = result->swept.plan_cpu_s,
                                     .search_cpu_s = result->swept.search_cpu_s};
    TWS_TRY(search_and_plan(&s, most, wanted_of(request), result, &enough, err));
    if (!enough && request->parts > 1)
      return tws_fail(err, TWS_UNSUPPORTED, "give more --trials, or search in one part",
                      "of what was kept for %d trials too little fits or differs", wanted_of(request));
  }
  return TWS_OK;
}
