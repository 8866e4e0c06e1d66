#include "autotune/exhaustive.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "autotune/crew.h"
#include "autotune/finalists.h"
#include "estimators/composer.h"

enum { KEPT_BOUNDS = 1 << 15, DEFAULT_FINALISTS = 12 };

tws_swept_way tws_tune_swept_way(const tws_tune_swept *s, int way) {
  const tws_swept_way all[TWS_SWEPT_WAYS] = {
      {s->illegal, "illegal: no such division, batch or combination"},
      {s->equal, "equal to another: a knob has no effect there"},
      {s->too_large, "too large for the device, its host or disk"},
      {s->too_slow, "slower than the best at least, by what each stage has to do"},
      {s->composed, "composed exactly"},
      {s->bounded, "composed as lower bounds"}};
  return all[way];
}

/* ---- a worker ---- */

typedef struct tally { /* shared with the others */
  tws_tune_swept swept;
  volatile int64_t done;
  tws_code code;
  tws_error err;
  int exact, bounds;
  int64_t dropped;
  double best_dropped;
} tally;

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
  int index, count;
  tally *tally;
  tws_best exact, bounds;
  tws_composer *composer;
  template *templates; /* by what configurations differ in beside numbers of micro-batches, recomputation, schedule */
  tws_capacity capacity;
  int unpruned; /* what is too large or too slow is composed all the same */
} worker;

static size_t template_count(const tws_product *s) {
  size_t n = 1;
  static const int digits[] = {TWS_DIGIT_TENSOR,  TWS_DIGIT_TOKENS,  TWS_DIGIT_PIPELINE, TWS_DIGIT_STAGE,
                               TWS_DIGIT_OVERLAP, TWS_DIGIT_OFFLOAD, TWS_DIGIT_BUCKET};
  for (size_t i = 0; i < sizeof digits / sizeof *digits; i++) n *= (size_t)s->count[digits[i]];
  return n;
}

static template *template_of(worker *w, const tws_product_point *p) {
  static const int digits[] = {TWS_DIGIT_TENSOR,  TWS_DIGIT_TOKENS,  TWS_DIGIT_PIPELINE, TWS_DIGIT_STAGE,
                               TWS_DIGIT_OVERLAP, TWS_DIGIT_OFFLOAD, TWS_DIGIT_BUCKET};
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
    t->known = 1;
    t->code = tws_job_derive(w->s->request->job, v, &job, err);
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

static tws_code look_at(worker *w, const tws_product_point *p, const tws_variant *v, tws_error *err) {
  tws_tune_swept *swept = &w->tally->swept;
  const double samples = (double)(v->micro * v->accumulation * tws_variant_replicas(v));
  tws_config config;
  tws_plan_request request;
  tws_composed composed;
  tws_compose_limits limits = {.bytes = w->unpruned ? 0 : w->capacity.rank_device};
  if (w->exact.count == w->exact.most && !w->unpruned) limits.seconds = samples / w->exact.items[0].samples_per_s;
  tws_code code = request_of(w, p, v, &config, &request, err);
  if (code == TWS_OK) code = tws_compose(w->composer, &request, &limits, &composed, err);
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
  tws_tune_swept *swept = &w->tally->swept;
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

static tws_code search_part(worker *w, tws_error *err) {
  const tws_product *s = w->s;
  int64_t knobs = 1, in_class = 1;
  for (int i = TWS_DIGIT_STAGE; i < TWS_DIGITS; i++) knobs *= s->count[i];
  for (int i = TWS_CLASS_DIGITS; i < TWS_DIGITS; i++) in_class *= s->count[i];
  const int64_t classes = s->points / in_class;
  for (int64_t c = w->index; c < classes; c += w->count)
    for (int64_t at = c * in_class; at < (c + 1) * in_class; at += knobs) {
      TWS_TRY(look_at_knobs(w, at, knobs, err));
      w->tally->done = w->tally->swept.considered;
    }
  return TWS_OK;
}

static tws_code run_worker(worker *w, tws_error *err) {
  const tws_tune_request *request = w->s->request;
  const clock_t started = clock();
  w->capacity = tws_capacity_of(&request->job->machine, w->s->ranks, request->memory_bytes);
  w->templates = tws_calloc(template_count(w->s), sizeof *w->templates);
  if (!w->templates) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the search");
  tws_code code = tws_composer_create(&request->job->machine, NULL, &w->composer, err);
  if (code == TWS_OK) code = search_part(w, err);
  if (code == TWS_OK) {
    const tws_composer_counts counts = tws_composer_count(w->composer);
    w->tally->swept.lowered = counts.bodies + counts.tails;
  }
  w->tally->swept.search_cpu_s = (double)(clock() - started) / CLOCKS_PER_SEC;
  tws_composer_destroy(w->composer);
  tws_free(w->templates);
  return code;
}

/* ---- all workers ---- */

typedef struct common {
  const tws_product *s;
  tally *tallies;
  tws_finalist *finalists; /* per worker: exact ones, then bounds */
  int exact_most, workers;
} common;

static void work(void *user, int index) {
  const common *shared = user;
  tally *t = &shared->tallies[index];
  tws_finalist *own = shared->finalists + (size_t)index * (size_t)(shared->exact_most + KEPT_BOUNDS);
  worker w = {.s = shared->s, .index = index, .count = shared->workers, .tally = t};
  w.exact = (tws_best){.items = own, .most = shared->exact_most};
  w.bounds = (tws_best){.items = own + shared->exact_most, .most = KEPT_BOUNDS};
  t->code = run_worker(&w, &t->err);
  t->exact = w.exact.count;
  t->bounds = w.bounds.count;
  t->dropped = w.bounds.dropped;
  t->best_dropped = w.bounds.best_dropped;
}

static tws_code run_workers(common *shared, tws_error *err) {
  tws_progress *progress = shared->s->request->progress;
  tws_crew crew;
  for (int i = 0; i < shared->workers; i++) shared->tallies[i].code = TWS_INTERNAL;
  TWS_TRY(tws_crew_start(&crew, shared->workers, work, shared, err));
  if (progress) tws_progress_begin(progress, "searching", (double)shared->s->points);
  for (int left = 1; left > 0;) {
    double done = 0;
    left = tws_crew_left(&crew);
    for (int i = 0; i < shared->workers; i++) done += (double)shared->tallies[i].done;
    if (progress) tws_progress_update(progress, done);
    if (left) usleep(5000);
  }
  if (progress) tws_progress_end(progress);
  return tws_crew_end(&crew, 0, NULL, err);
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

/* What a worker left out because it had enough that are better, at most. */
static double best_left_out(const common *shared) {
  double best = 0;
  for (int i = 0; i < shared->workers; i++) {
    const tws_finalist *own = shared->finalists + (size_t)i * (size_t)(shared->exact_most + KEPT_BOUNDS);
    if (shared->tallies[i].exact == shared->exact_most && own->samples_per_s > best) best = own->samples_per_s;
  }
  return best;
}

static double worst_of(const tws_tune_result *result, int wanted) {
  const tws_tune_candidate *last = result->fits >= wanted ? &result->candidates[wanted - 1] : NULL;
  return last ? last->samples / last->estimate.step_s : 0;
}

static tws_code gather(const tws_product *s, const common *shared, int wanted, tws_tune_result *result,
                       tws_error *err) {
  const size_t own_most = (size_t)(shared->exact_most + KEPT_BOUNDS);
  tws_finalist *all = tws_calloc((size_t)shared->workers * own_most, sizeof *all);
  tws_code code = all ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "no memory for the finalists");
  double best_dropped = 0;
  int count = 0;
  for (int i = 0; i < shared->workers && code == TWS_OK; i++) {
    const tally *t = &shared->tallies[i];
    const tws_finalist *own = shared->finalists + (size_t)i * own_most;
    code = t->code;
    if (code != TWS_OK) *err = t->err;
    add_tally(&result->swept, &t->swept);
    memcpy(all + count, own, (size_t)t->exact * sizeof *all);
    memcpy(all + count + t->exact, own + shared->exact_most, (size_t)t->bounds * sizeof *all);
    count += t->exact + t->bounds;
    if (t->dropped && t->best_dropped > best_dropped) best_dropped = t->best_dropped;
  }
  if (code == TWS_OK) code = tws_finalists_plan(s, all, count, wanted, result, err);
  tws_free(all);
  if (code != TWS_OK || best_dropped <= 0 || best_dropped < worst_of(result, wanted)) return code;
  return tws_fail(
      err, TWS_UNSUPPORTED, "leave out values of --overlaps, --offloads or --buckets, or ZeRO stages 2 and 3",
      "more than %d configurations may be faster than the best, by what is known without their plans", KEPT_BOUNDS);
}

tws_code tws_tune_compose_all(const tws_tune_request *request, int pruned, tws_tune_swept *swept, tws_error *err) {
  tws_product s;
  TWS_TRY(tws_product_fill(request, &s, err));
  const int most = request->trials > 0 ? request->trials : DEFAULT_FINALISTS;
  tally t = {.done = 0};
  tws_finalist *kept = tws_calloc((size_t)most + KEPT_BOUNDS, sizeof *kept);
  if (!kept) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the search");
  worker w = {.s = &s, .count = 1, .tally = &t, .unpruned = !pruned};
  w.exact = (tws_best){.items = kept, .most = most};
  w.bounds = (tws_best){.items = kept + most, .most = KEPT_BOUNDS};
  const tws_code code = run_worker(&w, err);
  *swept = t.swept;
  tws_free(kept);
  return code;
}

/* With so many exact points kept for each worker; *enough: none that was left out is among the best. */
static tws_code search_and_plan(const tws_product *s, int exact_most, int wanted, tws_tune_result *result, int *enough,
                                tws_error *err) {
  common shared = {.s = s, .exact_most = exact_most, .workers = tws_crew_size(s->request->workers)};
  const size_t tallies = (size_t)shared.workers * sizeof *shared.tallies;
  const size_t bytes = tallies + (size_t)shared.workers * (size_t)(exact_most + KEPT_BOUNDS) * sizeof(tws_finalist);
  const double started = tws_clock_s();
  char *memory = tws_crew_memory(bytes);
  if (!memory) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the search");
  shared.tallies = (tally *)(void *)memory;
  shared.finalists = (tws_finalist *)(void *)(memory + tallies);
  tws_code code = run_workers(&shared, err);
  const double searched = tws_clock_s();
  if (code == TWS_OK) code = gather(s, &shared, wanted, result, err);
  *enough = worst_of(result, wanted) >= best_left_out(&shared);
  tws_crew_memory_free(memory, bytes);
  result->swept.search_s += searched - started;
  result->swept.plan_s += tws_clock_s() - searched;
  return code;
}

tws_code tws_tune_exhaustive(const tws_tune_request *request, tws_tune_result *result, tws_error *err) {
  tws_product s;
  TWS_TRY(tws_product_fill(request, &s, err));
  const int wanted = request->trials > 0 ? request->trials : DEFAULT_FINALISTS;
  int enough = 0;
  /* what was composed may not fit in whole, or be one plan with others: some more than are wanted, seldom many more */
  for (int most = 4 * wanted + 64; !enough; most *= 4) {
    tws_free(result->candidates);
    result->candidates = NULL;
    result->count = result->fits = 0;
    result->swept = (tws_tune_swept){.plan_s = result->swept.plan_s,
                                     .search_s = result->swept.search_s,
                                     .plan_cpu_s = result->swept.plan_cpu_s,
                                     .search_cpu_s = result->swept.search_cpu_s};
    TWS_TRY(search_and_plan(&s, most, wanted, result, &enough, err));
  }
  return TWS_OK;
}
