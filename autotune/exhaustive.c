#include "autotune/exhaustive.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "autotune/crew.h"
#include "autotune/space_axes.h"
#include "estimators/composer.h"

enum { MICROS = 64, KEPT_BOUNDS = 1 << 15, DEFAULT_FINALISTS = 12 };

/* ---- the product of the lists ---- */

enum { TENSOR, TOKENS, MICRO, RECOMPUTE, ACCUMULATION, PIPELINE, SCHEDULE, STAGE, OVERLAP, OFFLOAD, BUCKET, DIGITS };
enum { CLASS_DIGITS = PIPELINE }; /* what layers are like: a class is one worker's */

typedef struct space {
  const tws_tune_request *request;
  tws_axes_space axes;
  int64_t micro[MICROS];
  int stages[4], recompute[3], ranks;
  int count[DIGITS];
  int64_t points;
} space;

typedef struct point {
  int64_t number;
  int digit[DIGITS];
} point;

static int one_at_least(int count) {
  return count > 0 ? count : 1;
}

static tws_code fill_micro(space *s, tws_error *err) {
  const tws_tune_space *given = &s->request->space;
  const int64_t batch = given->global_batch;
  const int64_t limit = given->max_micro > 0 ? given->max_micro : batch > 0 ? batch : 64;
  int n = 0;
  for (int i = 0; i < given->micro_count; i++)
    if (given->micro[i] <= limit) s->micro[n++] = given->micro[i];
  for (int64_t m = 1; !given->micro_count && m <= limit && n<MICROS; m = batch> 0 ? m + 1 : 2 * m)
    if (m >= given->min_micro && (batch == 0 || batch % m == 0)) s->micro[n++] = m;
  s->count[MICRO] = n;
  return n ? TWS_OK : tws_fail(err, TWS_INVALID, NULL, "the search space is empty: no micro batch is left");
}

static tws_code fill_space(const tws_tune_request *request, space *s, tws_error *err) {
  const tws_tune_space *given = &request->space;
  const tws_cluster *cluster = &request->job->cluster;
  memset(s, 0, sizeof *s);
  s->request = request;
  tws_axes_fill(request, &s->axes);
  if (request->goal != TWS_GOAL_THROUGHPUT)
    return tws_fail(err, TWS_UNSUPPORTED, "leave out --objective", "an exhaustive search is for throughput");
  if (given->ranks_count > 1 || given->threads_count > 1)
    return tws_fail(err, TWS_UNSUPPORTED, "name one number of ranks", "an exhaustive search has one number of ranks");
  s->ranks = given->ranks_count ? given->ranks[0] : cluster->devices_per_node * cluster->nodes;
  if (tws_profile_backend(request->job->profile) == TWS_BACKEND_HOST)
    return tws_fail(err, TWS_UNSUPPORTED, "leave out --exhaustive", "an exhaustive search is for devices, not hosts");
  s->count[STAGE] = given->stage_count ? given->stage_count : 4;
  for (int i = 0; i < s->count[STAGE]; i++) s->stages[i] = given->stage_count ? given->stages[i] : i;
  s->count[RECOMPUTE] = given->recompute_count ? given->recompute_count : 3;
  for (int i = 0; i < s->count[RECOMPUTE]; i++) s->recompute[i] = given->recompute_count ? (int)given->recompute[i] : i;
  TWS_TRY(fill_micro(s, err));
  s->count[TENSOR] = s->axes.tensor_count;
  s->count[TOKENS] = s->axes.sequence_parallel_count;
  s->count[PIPELINE] = s->axes.pipeline_count;
  s->count[SCHEDULE] = s->axes.schedule_count;
  s->count[ACCUMULATION] = given->global_batch > 0 ? 1 : one_at_least(given->accumulation_count);
  s->count[OVERLAP] = one_at_least(given->overlap_count);
  s->count[OFFLOAD] = one_at_least(given->offload_count);
  s->count[BUCKET] = one_at_least(given->reduce_bucket_count);
  s->points = 1;
  for (int i = 0; i < DIGITS; i++) s->points *= s->count[i];
  return TWS_OK;
}

static void digits_of(const space *s, point *p) {
  int64_t rest = p->number;
  for (int i = DIGITS; i-- > 0;) {
    p->digit[i] = (int)(rest % s->count[i]);
    rest /= s->count[i];
  }
}

static tws_variant variant_of(const space *s, const point *p) {
  const tws_tune_space *given = &s->request->space;
  const int *d = p->digit;
  tws_variant v = {.stage = s->stages[d[STAGE]],
                   .recompute = (tws_recompute)s->recompute[d[RECOMPUTE]],
                   .ranks = s->ranks,
                   .micro = s->micro[d[MICRO]],
                   .pipeline = s->axes.pipeline[d[PIPELINE]],
                   .tensor = s->axes.tensor[d[TENSOR]],
                   .sequence = s->axes.sequence[0],
                   .schedule = s->axes.schedules[d[SCHEDULE]],
                   .sequence_parallel = s->axes.sequence_parallel[d[TOKENS]],
                   .overlap = given->overlap_count ? given->overlap[d[OVERLAP]] : 0,
                   .offload = given->offload_count ? given->offload[d[OFFLOAD]] : 0,
                   .reduce_bucket = given->reduce_bucket_count ? given->reduce_bucket[d[BUCKET]] : 0};
  if (v.pipeline == 1) v.schedule = (tws_variant_schedule){TWS_PIPELINE_1F1B, 1};
  if (v.tensor == 1) v.sequence_parallel = 0;
  if (given->global_batch > 0) {
    const int64_t own = (int64_t)tws_variant_replicas(&v) * v.micro;
    v.accumulation = own > 0 && given->global_batch % own == 0 ? given->global_batch / own : 0;
  } else {
    v.accumulation = given->accumulation_count ? given->accumulation[d[ACCUMULATION]]
                     : v.pipeline > 1          ? 4 * (int64_t)v.pipeline
                                               : 1;
  }
  return v;
}

typedef enum standing { ILLEGAL, EQUAL, OWN } standing;

/* Of the division and the batch: what all combinations of the other knobs share. */
static standing stand_of_division(const space *s, const point *p, const tws_variant *v) {
  const int model = v->pipeline * v->tensor * v->sequence;
  if (v->ranks % model || !tws_axes_tensor_legal(&s->axes, v) || v->accumulation < 1) return ILLEGAL;
  const int64_t tokens = v->micro * s->axes.sequence_length / v->sequence;
  if (v->tensor > 1 && v->sequence_parallel && tokens % v->tensor) return ILLEGAL;
  if (v->pipeline > 1 && v->schedule.kind == TWS_PIPELINE_INTERLEAVED && v->accumulation % v->pipeline) return ILLEGAL;
  if (v->pipeline == 1 && p->digit[SCHEDULE] > 0) return EQUAL;
  if (v->tensor == 1 && p->digit[TOKENS] > 0) return EQUAL;
  return OWN;
}

/* Of the knobs of ZeRO: the first of a list stands for all where there is nothing that they change. */
static standing stand_of_knobs(const space *s, const point *p, const tws_variant *v) {
  const int sharers = tws_variant_replicas(v) * (v->sequence > 1 ? v->sequence : 1);
  const int *d = p->digit;
  if (v->pipeline > 1 && v->stage > 1) return ILLEGAL;
  if (v->stage == 0 && d[OFFLOAD] > 0) return EQUAL; /* what the host updates are parts */
  const tws_zero_config *z = &s->request->job->config->zero;
  const int offloads = v->offload ? tws_variant_offloads(v, 0) : z->offload_optimizer != 0;
  const int parameters = v->offload ? tws_variant_offloads(v, 1) : z->offload_param != 0;
  if (v->offload && parameters && v->stage != 3) return ILLEGAL; /* they would stay on the device */
  if (sharers == 1) {                                            /* nothing is divided, and nothing reduced */
    int first = 0;
    while (first < s->count[STAGE] && offloads && s->stages[first] == 0) first++;
    if (v->stage > 0 && d[STAGE] > first && !(parameters && v->stage == 3) &&
        !(offloads && v->stage >= 1 && d[STAGE] == first))
      return EQUAL;
    return d[OVERLAP] > 0 || d[BUCKET] > 0 ? EQUAL : OWN;
  }
  if (v->stage == 0 && (d[OVERLAP] > 0 || d[BUCKET] > 0)) return EQUAL;
  return v->pipeline > 1 && d[OVERLAP] > 0 ? EQUAL : OWN;
}

/* ---- finalists ---- */

typedef struct finalist {
  int64_t number;
  double samples_per_s, step_s; /* composed: exact, or no slower than that */
  int exact;
} finalist;

static int is_better(const finalist *a, const finalist *b) {
  if (a->samples_per_s != b->samples_per_s) return a->samples_per_s > b->samples_per_s;
  return a->number < b->number;
}

/* A heap whose root is the worst of the best. */
typedef struct best {
  finalist *items;
  int count, most;
  int64_t dropped;
  double best_dropped;
} best;

static void sift_down(best *b, int at) {
  for (;;) {
    int worst = at;
    for (int child = 2 * at + 1; child <= 2 * at + 2 && child < b->count; child++)
      if (is_better(&b->items[worst], &b->items[child])) worst = child;
    if (worst == at) return;
    const finalist f = b->items[at];
    b->items[at] = b->items[worst];
    b->items[worst] = f;
    at = worst;
  }
}

static void offer(best *b, const finalist *f) {
  if (b->count < b->most) {
    int at = b->count++;
    for (; at > 0 && is_better(&b->items[(at - 1) / 2], f); at = (at - 1) / 2) b->items[at] = b->items[(at - 1) / 2];
    b->items[at] = *f;
    return;
  }
  const finalist *out = is_better(f, &b->items[0]) ? &b->items[0] : f;
  b->dropped++;
  if (out->samples_per_s > b->best_dropped) b->best_dropped = out->samples_per_s;
  if (out == f) return;
  b->items[0] = *f;
  sift_down(b, 0);
}

static int by_worth(const void *left, const void *right) {
  return is_better(left, right) ? -1 : is_better(right, left);
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
  const space *s;
  int index, count;
  tally *tally;
  best exact, bounds;
  tws_composer *composer;
  template *templates; /* by what configurations differ in beside numbers of micro-batches, recomputation, schedule */
  double rank_device, rank_node;
  int unpruned; /* what is too large or too slow is composed all the same */
} worker;

static size_t template_count(const space *s) {
  size_t n = 1;
  static const int digits[] = {TENSOR, TOKENS, PIPELINE, STAGE, OVERLAP, OFFLOAD, BUCKET};
  for (size_t i = 0; i < sizeof digits / sizeof *digits; i++) n *= (size_t)s->count[digits[i]];
  return n;
}

static template *template_of(worker *w, const point *p) {
  static const int digits[] = {TENSOR, TOKENS, PIPELINE, STAGE, OVERLAP, OFFLOAD, BUCKET};
  size_t at = 0;
  for (size_t i = 0; i < sizeof digits / sizeof *digits; i++)
    at = at * (size_t)w->s->count[digits[i]] + (size_t)p->digit[digits[i]];
  return &w->templates[at];
}

/* The resolved configuration of a point. What a variant changes but the rest of the configuration does not depend on is
 * set in a copy; finalists are planned from configurations of their own, so a difference would show. */
static tws_code request_of(worker *w, const point *p, const tws_variant *v, tws_config *config, tws_plan_request *out,
                           tws_error *err) {
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

static tws_code look_at(worker *w, const point *p, const tws_variant *v, tws_error *err) {
  tws_tune_swept *swept = &w->tally->swept;
  const double samples = (double)(v->micro * v->accumulation * tws_variant_replicas(v));
  tws_config config;
  tws_plan_request request;
  tws_composed composed;
  tws_compose_limits limits = {.bytes = w->unpruned ? 0 : w->rank_device};
  if (w->exact.count == w->exact.most && !w->unpruned) limits.seconds = samples / w->exact.items[0].samples_per_s;
  tws_code code = request_of(w, p, v, &config, &request, err);
  if (code == TWS_OK) code = tws_compose(w->composer, &request, &limits, &composed, err);
  if (code == TWS_UNSUPPORTED || code == TWS_INVALID) {
    swept->illegal++;
    return TWS_OK;
  }
  TWS_TRY(code);
  if (composed.too_large || (!w->unpruned && w->rank_node > 0 && (double)composed.host_bytes > w->rank_node)) {
    swept->too_large++;
    return TWS_OK;
  }
  if (composed.too_slow) {
    swept->too_slow++;
    return TWS_OK;
  }
  const finalist f = {p->number, samples / composed.step_s, composed.step_s, composed.exact};
  *(composed.exact ? &swept->composed : &swept->bounded) += 1;
  if (composed.exact)
    offer(&w->exact, &f);
  else if (w->exact.count < w->exact.most || f.samples_per_s > w->exact.items[0].samples_per_s)
    offer(&w->bounds, &f);
  return TWS_OK;
}

/* All combinations of ZeRO's knobs for one division and batch. */
static tws_code look_at_knobs(worker *w, int64_t first, int64_t knobs, tws_error *err) {
  tws_tune_swept *swept = &w->tally->swept;
  point p = {.number = first};
  digits_of(w->s, &p);
  tws_variant v = variant_of(w->s, &p);
  const standing all = stand_of_division(w->s, &p, &v);
  swept->considered += knobs;
  if (all != OWN) {
    *(all == ILLEGAL ? &swept->illegal : &swept->equal) += knobs;
    return TWS_OK;
  }
  for (int64_t i = 0; i < knobs; i++) {
    p.number = first + i;
    digits_of(w->s, &p);
    v = variant_of(w->s, &p);
    const standing own = stand_of_knobs(w->s, &p, &v);
    swept->illegal += own == ILLEGAL;
    swept->equal += own == EQUAL;
    if (own == OWN) TWS_TRY(look_at(w, &p, &v, err));
  }
  return TWS_OK;
}

static tws_code search_part(worker *w, tws_error *err) {
  const space *s = w->s;
  int64_t knobs = 1, in_class = 1;
  for (int i = STAGE; i < DIGITS; i++) knobs *= s->count[i];
  for (int i = CLASS_DIGITS; i < DIGITS; i++) in_class *= s->count[i];
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
  const tws_capacity capacity = tws_capacity_of(&request->job->machine, w->s->ranks, request->memory_bytes);
  const clock_t started = clock();
  w->rank_device = capacity.rank_device;
  w->rank_node = capacity.rank_node;
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
  const space *s;
  tally *tallies;
  finalist *finalists; /* per worker: exact ones, then bounds */
  int exact_most, workers;
} common;

static void work(void *user, int index) {
  const common *shared = user;
  tally *t = &shared->tallies[index];
  finalist *own = shared->finalists + (size_t)index * (size_t)(shared->exact_most + KEPT_BOUNDS);
  worker w = {.s = shared->s, .index = index, .count = shared->workers, .tally = t};
  w.exact = (best){.items = own, .most = shared->exact_most};
  w.bounds = (best){.items = own + shared->exact_most, .most = KEPT_BOUNDS};
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

/* ---- plans of the best ---- */

static tws_code plan_one(const tws_tune_request *request, const space *s, const finalist *f, tws_tune_candidate *c,
                         tws_error *err) {
  point p = {.number = f->number};
  tws_job *job = NULL;
  digits_of(s, &p);
  memset(c, 0, sizeof *c);
  c->variant = variant_of(s, &p);
  c->samples = (double)(c->variant.micro * c->variant.accumulation * tws_variant_replicas(&c->variant));
  tws_variant_name(&c->variant, c->name, sizeof c->name);
  tws_code code = tws_job_derive(request->job, &c->variant, &job, err);
  if (code == TWS_OK) code = tws_job_estimate(job, &c->estimate, NULL, err);
  tws_job_destroy(job);
  if (code != TWS_OK) return tws_fail_in(err, code, "%s", c->name);
  tws_tune_judge(request, c);
  const double apart = c->estimate.step_s - f->step_s, most = 1e-9 * c->estimate.step_s;
  if (apart >= -most && (!f->exact || apart <= most)) return TWS_OK;
  return tws_fail(err, TWS_INTERNAL, "the search and the plan disagree: please report it",
                  "%s: a step of %.12g s was composed, and %.12g s planned", c->name, f->step_s, c->estimate.step_s);
}

static int by_throughput(const void *left, const void *right) {
  const tws_tune_candidate *a = left, *b = right;
  const double x = a->samples / a->estimate.step_s, y = b->samples / b->estimate.step_s;
  if (x != y) return x > y ? -1 : 1;
  return strcmp(a->name, b->name);
}

typedef struct planning {
  const tws_tune_request *request;
  const space *s;
  const finalist *all;
  int wanted;
  size_t capacity;
  tws_tune_result *result;
} planning;

static tws_code plan_item(void *user, int item, void *answer, tws_error *err) {
  const planning *p = user;
  return plan_one(p->request, p->s, &p->all[item], answer, err);
}

/* Whether nothing from this one on can be among the best. */
static int is_behind(const planning *p, const finalist *f) {
  const tws_tune_result *result = p->result;
  if (result->fits < p->wanted) return 0;
  const tws_tune_candidate *last = &result->candidates[p->wanted - 1];
  return f->samples_per_s < last->samples / last->estimate.step_s * (1 - 1e-12);
}

static tws_code read_plan(void *user, int item, const void *answer, int *stop, tws_error *err) {
  planning *p = user;
  tws_tune_result *result = p->result;
  const finalist *f = &p->all[item];
  if ((*stop = is_behind(p, f))) return TWS_OK;
  if (tws_reserve(&result->candidates, &p->capacity, (size_t)result->fits + 1, sizeof *result->candidates))
    return tws_fail(err, TWS_MEMORY, NULL, "no memory for the finalists");
  tws_tune_candidate *c = &result->candidates[result->fits];
  memcpy(c, answer, sizeof *c);
  result->swept.planned++;
  if (c->verdict != TWS_TUNE_FITS) {
    result->swept.too_large++;
    *(f->exact ? &result->swept.composed : &result->swept.bounded) -= 1;
    return TWS_OK;
  }
  result->fits++;
  qsort(result->candidates, (size_t)result->fits, sizeof *result->candidates, by_throughput);
  if (p->request->progress)
    tws_progress_update(p->request->progress, result->fits < p->wanted ? result->fits : p->wanted);
  return TWS_OK;
}

/* In the order of what they promise, until nothing that is left can be among the best. */
static tws_code plan_best(const tws_tune_request *request, const space *s, const finalist *all, int count, int wanted,
                          tws_tune_result *result, tws_error *err) {
  planning p = {.request = request, .s = s, .all = all, .wanted = wanted, .result = result};
  const tws_crew_list list = {count, sizeof(tws_tune_candidate), plan_item, read_plan, &p};
  if (request->progress) tws_progress_begin(request->progress, "planning the best", wanted);
  TWS_TRY(tws_crew_do(&list, tws_crew_size(request->workers), &result->swept.plan_cpu_s, err));
  if (request->progress) tws_progress_end(request->progress);
  if (result->fits > wanted) result->fits = wanted;
  result->count = result->fits;
  return TWS_OK;
}

static tws_code gather(const tws_tune_request *request, const space *s, const common *shared, int workers, int wanted,
                       tws_tune_result *result, tws_error *err) {
  finalist *all = tws_calloc((size_t)workers * (size_t)(shared->exact_most + KEPT_BOUNDS), sizeof *all);
  tws_code code = all ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "no memory for the finalists");
  double best_dropped = 0;
  int count = 0;
  for (int i = 0; i < workers && code == TWS_OK; i++) {
    const tally *t = &shared->tallies[i];
    const finalist *own = shared->finalists + (size_t)i * (size_t)(shared->exact_most + KEPT_BOUNDS);
    code = t->code;
    if (code != TWS_OK) *err = t->err;
    add_tally(&result->swept, &t->swept);
    memcpy(all + count, own, (size_t)t->exact * sizeof *all);
    memcpy(all + count + t->exact, own + shared->exact_most, (size_t)t->bounds * sizeof *all);
    count += t->exact + t->bounds;
    if (t->dropped && t->best_dropped > best_dropped) best_dropped = t->best_dropped;
  }
  if (code == TWS_OK && count) qsort(all, (size_t)count, sizeof *all, by_worth);
  if (code == TWS_OK) code = plan_best(request, s, all, count, wanted, result, err);
  tws_free(all);
  if (code != TWS_OK || best_dropped <= 0) return code;
  const tws_tune_candidate *last = result->fits >= wanted ? &result->candidates[wanted - 1] : NULL;
  if (last && best_dropped < last->samples / last->estimate.step_s) return TWS_OK;
  return tws_fail(
      err, TWS_UNSUPPORTED, "leave out values of --overlaps, --offloads or --buckets, or ZeRO stages 2 and 3",
      "more than %d configurations may be faster than the best, by what is known without their plans", KEPT_BOUNDS);
}

tws_code tws_tune_compose_all(const tws_tune_request *request, int pruned, tws_tune_swept *swept, tws_error *err) {
  space s;
  TWS_TRY(fill_space(request, &s, err));
  const int most = request->trials > 0 ? request->trials : DEFAULT_FINALISTS;
  tally t = {.done = 0};
  finalist *kept = tws_calloc((size_t)most + KEPT_BOUNDS, sizeof *kept);
  if (!kept) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the search");
  worker w = {.s = &s, .count = 1, .tally = &t, .unpruned = !pruned};
  w.exact = (best){.items = kept, .most = most};
  w.bounds = (best){.items = kept + most, .most = KEPT_BOUNDS};
  const tws_code code = run_worker(&w, err);
  *swept = t.swept;
  tws_free(kept);
  return code;
}

tws_code tws_tune_exhaustive(const tws_tune_request *request, tws_tune_result *result, tws_error *err) {
  space s;
  TWS_TRY(fill_space(request, &s, err));
  const int workers = tws_crew_size(request->workers),
            wanted = request->trials > 0 ? request->trials : DEFAULT_FINALISTS;
  /* what was composed may not fit in whole: some more than are wanted */
  common shared = {.s = &s, .exact_most = 4 * wanted + 64, .workers = workers};
  const size_t tallies = (size_t)workers * sizeof *shared.tallies;
  const size_t bytes = tallies + (size_t)workers * (size_t)(shared.exact_most + KEPT_BOUNDS) * sizeof(finalist);
  const double started = tws_clock_s();
  char *memory = tws_crew_memory(bytes);
  if (!memory) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the search");
  shared.tallies = (tally *)(void *)memory;
  shared.finalists = (finalist *)(void *)(memory + tallies);
  tws_code code = run_workers(&shared, err);
  const double searched = tws_clock_s();
  if (code == TWS_OK) code = gather(request, &s, &shared, workers, wanted, result, err);
  tws_crew_memory_free(memory, bytes);
  result->swept.search_s = searched - started;
  result->swept.plan_s = tws_clock_s() - searched;
  return code;
}
