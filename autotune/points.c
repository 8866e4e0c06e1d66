#include "autotune/points.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autotune/deepspeed_space.h"
#include "base/fingerprint.h"
#include "models/hardware/runtime.h"

/* ---- lists ---- */

static int one_at_least(int count) {
  return count > 0 ? count : 1;
}

static int is_host(const tws_points *p) {
  return tws_profile_backend(p->request->job->profile) == TWS_BACKEND_HOST;
}

/* Returns the number of cores of one node, for jobs on hosts without devices. */
static int cores_of(const tws_points *p) {
  const tws_cluster *cluster = &p->request->job->cluster;
  const int cores = cluster->cores_per_node > 0 ? cluster->cores_per_node : tws_profile_cores(p->request->job->profile);
  return cores > 1 ? cores : 1;
}

static int add_ranks(tws_points *p, int ranks) {
  int *count = &p->count[TWS_DIGIT_RANKS];
  for (int i = 0; i < *count; i++)
    if (p->ranks[i] == ranks) return 0;
  if (*count == TWS_TUNE_LIST) return -1;
  p->ranks[(*count)++] = ranks;
  return 0;
}

/* Lists the numbers of ranks that fill whole nodes, or divide one node. */
static void default_ranks(tws_points *p) {
  const tws_cluster *cluster = &p->request->job->cluster;
  const int devices = cluster->devices_per_node, world = devices * cluster->nodes;
  if (p->request->space.axes) {
    add_ranks(p, world);
    return;
  }
  for (int ranks = 1; ranks <= world; ranks++) {
    const int fills = ranks <= devices ? devices % ranks == 0 : ranks % devices == 0;
    if (fills && world % ranks == 0 && add_ranks(p, ranks)) return;
  }
  if (!is_host(p) || !p->request->space.oversubscribe) return;
  for (int ranks = 1; ranks <= 2 * cores_of(p) * cluster->nodes; ranks *= 2)
    if (ranks > world && add_ranks(p, ranks)) return;
}

static tws_code fill_ranks(tws_points *p, tws_error *err) {
  const tws_tune_space *given = &p->request->space;
  const tws_cluster *cluster = &p->request->job->cluster;
  if (given->ranks_count == 0) default_ranks(p);
  for (int i = 0; i < given->ranks_count; i++) {
    const int devices = cluster->devices_per_node * cluster->nodes;
    if (given->ranks[i] < 1 || (!is_host(p) && given->ranks[i] > devices))
      return tws_fail(err, TWS_INVALID, "give more nodes or fewer ranks", "cluster %s: %d ranks asked of %d devices",
                      cluster->name, given->ranks[i], devices);
    if (add_ranks(p, given->ranks[i])) break;
  }
  return TWS_OK;
}

/* Returns the number of cores that one rank can use alone. */
static int own_cores(const tws_points *p, int ranks) {
  const tws_node_mapping mapping = tws_node_mapping_of(&p->request->job->cluster, 1, ranks);
  const int own = cores_of(p) / tws_mapping_most_on_node(&mapping);
  return own > 1 ? own : 1;
}

static void add_threads(tws_points *p, int threads) {
  int *count = &p->count[TWS_DIGIT_THREADS];
  for (int i = 0; i < *count; i++)
    if (p->threads[i] == threads) return;
  if (*count < TWS_POINTS_THREADS) p->threads[(*count)++] = threads;
}

/* Lists the numbers of threads of a host rank: powers of two, and the number of cores that one rank can use alone. On
 * devices the list is 0 alone. */
static void fill_threads(tws_points *p) {
  const tws_tune_space *given = &p->request->space;
  if (!is_host(p)) {
    add_threads(p, 0);
    return;
  }
  for (int i = 0; i < given->threads_count; i++) add_threads(p, given->threads[i]);
  for (int i = 0; i < p->count[TWS_DIGIT_RANKS] && !given->threads_count; i++) {
    const int own = own_cores(p, p->ranks[i]);
    for (int t = 1; t < own; t *= 2) add_threads(p, t);
    add_threads(p, own);
  }
}

static int threads_suit(const tws_points *p, const tws_variant *v) {
  if (!is_host(p)) return 1;
  const int own = own_cores(p, v->ranks);
  if (p->request->space.threads_count) return v->threads <= own || p->request->space.oversubscribe;
  return v->threads == own || (v->threads < own && (v->threads & (v->threads - 1)) == 0);
}

static int by_size(const void *left, const void *right) {
  const int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
  return a < b ? -1 : a > b;
}

/* ---- batches that elasticity chooses ---- */

/* Lists the batch for each number of ranks and each number of replicas that divides it. */
static tws_code fill_elastic(tws_points *p, tws_error *err) {
  size_t capacity = 0;
  tws_error first = {0};
  if (!tws_config_is_elastic(p->request->job->config)) return TWS_OK;
  for (int i = 0; i < p->count[TWS_DIGIT_RANKS]; i++)
    for (int replicas = 1; replicas <= p->ranks[i]; replicas++) {
      tws_elastic_point one = {.ranks = p->ranks[i], .replicas = replicas};
      tws_error why = {0};
      if (p->ranks[i] % replicas) continue;
      const tws_code code =
          tws_config_elastic_batch(p->request->job->config, one.ranks, replicas, &one.micro, &one.accumulation, &why);
      if (code == TWS_MEMORY || tws_reserve(&p->elastic, &capacity, (size_t)p->elastic_count + 1, sizeof *p->elastic))
        return tws_fail(err, TWS_MEMORY, NULL, "no memory for the search space");
      if (code == TWS_OK) p->elastic[p->elastic_count++] = one;
      /* the error of the division in which all ranks are replicas is reported in preference to others */
      if (code != TWS_OK && (!*first.message || replicas == p->ranks[i])) first = why;
    }
  if (p->elastic_count) return TWS_OK;
  return tws_fail(err, TWS_INVALID, first.hint[0] ? first.hint : NULL, "the search space is empty: %s", first.message);
}

static const tws_elastic_point *elastic_of(const tws_points *p, const tws_variant *v) {
  for (int i = 0; i < p->elastic_count; i++)
    if (p->elastic[i].ranks == v->ranks && p->elastic[i].replicas == tws_variant_replicas(v)) return &p->elastic[i];
  return NULL;
}

/* Sets the micro batches that elasticity chooses, restricted to those that the user listed. */
static tws_code fill_elastic_micro(tws_points *p, tws_error *err) {
  const tws_tune_space *given = &p->request->space;
  int n = 0;
  for (int i = 0; i < p->elastic_count && n < TWS_POINTS_MICROS; i++) {
    const int64_t micro = p->elastic[i].micro;
    int wanted = !given->micro_count && (!given->max_micro || micro <= given->max_micro), known = 0;
    for (int k = 0; k < given->micro_count; k++) wanted |= given->micro[k] == micro;
    for (int k = 0; k < n; k++) known |= p->micro[k] == micro;
    if (wanted && !known) p->micro[n++] = micro;
  }
  qsort(p->micro, (size_t)n, sizeof *p->micro, by_size);
  p->count[TWS_DIGIT_MICRO] = n;
  if (n) return TWS_OK;
  return tws_fail(err, TWS_INVALID, "leave micro batches to it",
                  "the search space is empty: elasticity chooses none of these micro batches (%lld for %d rank%s)",
                  (long long)p->elastic[0].micro, p->elastic[0].ranks, p->elastic[0].ranks == 1 ? "" : "s");
}

static tws_code fill_micro(tws_points *p, tws_error *err) {
  if (p->elastic) return fill_elastic_micro(p, err);
  const tws_tune_space *given = &p->request->space;
  const int64_t batch = given->global_batch;
  const int64_t limit = given->max_micro > 0 ? given->max_micro : batch > 0 ? batch : 64;
  int n = 0;
  for (int i = 0; i < given->micro_count; i++) {
    int known = given->micro[i] < 1 || given->micro[i] > limit;
    for (int k = 0; k < n && !known; k++) known = p->micro[k] == given->micro[i];
    if (!known) p->micro[n++] = given->micro[i];
  }
  for (int64_t m = 1; !given->micro_count && batch == 0 && m <= limit && n < TWS_POINTS_MICROS; m *= 2)
    if (m >= given->min_micro) p->micro[n++] = m;
  for (int64_t m = 1; !given->micro_count && batch > 0 && m * m <= batch; m++)
    for (int which = 0; batch % m == 0 && which < (m * m == batch ? 1 : 2); which++) { /* a divisor and its cofactor */
      const int64_t divisor = which ? batch / m : m;
      if (divisor >= given->min_micro && divisor <= limit && n < TWS_POINTS_MICROS) p->micro[n++] = divisor;
    }
  qsort(p->micro, (size_t)n, sizeof *p->micro, by_size);
  p->count[TWS_DIGIT_MICRO] = n;
  return n ? TWS_OK : tws_fail(err, TWS_INVALID, NULL, "the search space is empty: no micro batch is left");
}

static tws_code fill_product(tws_points *p, tws_error *err) {
  const tws_tune_space *given = &p->request->space;
  tws_axes_fill(p->request, &p->axes);
  TWS_TRY(tws_axes_check_experts(p->request, err));
  TWS_TRY(fill_ranks(p, err));
  fill_threads(p);
  TWS_TRY(fill_elastic(p, err));
  TWS_TRY(fill_micro(p, err));
  p->count[TWS_DIGIT_STAGE] = given->stage_count ? given->stage_count : 4;
  for (int i = 0; i < p->count[TWS_DIGIT_STAGE]; i++) p->stages[i] = given->stage_count ? given->stages[i] : i;
  p->count[TWS_DIGIT_RECOMPUTE] = given->recompute_count ? given->recompute_count : 3;
  for (int i = 0; i < p->count[TWS_DIGIT_RECOMPUTE]; i++)
    p->recompute[i] = given->recompute_count ? (int)given->recompute[i] : i;
  p->count[TWS_DIGIT_TENSOR] = p->axes.tensor_count;
  p->count[TWS_DIGIT_TOKENS] = p->axes.sequence_parallel_count;
  p->count[TWS_DIGIT_SEQUENCE] = p->axes.sequence_count;
  p->count[TWS_DIGIT_EXPERT] = p->axes.expert_count;
  p->count[TWS_DIGIT_CAPACITY] = p->axes.capacity_count;
  for (int i = 0; i < TWS_EXCHANGE_COUNT; i++) p->count[TWS_DIGIT_EXCHANGE + i] = p->axes.exchange_count[i];
  p->count[TWS_DIGIT_PIPELINE] = p->axes.pipeline_count;
  p->count[TWS_DIGIT_SCHEDULE] = p->axes.schedule_count;
  p->count[TWS_DIGIT_ACCUMULATION] =
      given->global_batch > 0 || p->elastic ? 1 : one_at_least(given->accumulation_count);
  p->count[TWS_DIGIT_OVERLAP] = one_at_least(given->overlap_count);
  p->count[TWS_DIGIT_OFFLOAD] = one_at_least(given->offload_count);
  p->count[TWS_DIGIT_BUCKET] = one_at_least(given->reduce_bucket_count);
  for (int i = 0; i < TWS_ZERO3_LIMIT_COUNT; i++) p->count[TWS_DIGIT_ZERO3 + i] = one_at_least(given->zero3_count[i]);
  for (int i = 0; i < TWS_DIGITS; i++) {
    if (__builtin_mul_overflow(p->points, (int64_t)p->count[i], &p->points) || p->points > TWS_TUNE_MAX_POINTS)
      return tws_fail(err, TWS_INVALID, "name fewer stages, micro batches, axes or rank counts",
                      "the search space has more than %lld points", (long long)TWS_TUNE_MAX_POINTS);
    if (i >= TWS_DIGIT_STAGE) p->knobs *= p->count[i];
  }
  return TWS_OK;
}

tws_code tws_points_fill(const tws_tune_request *request, tws_points *p, tws_error *err) {
  const tws_job *job = request->job;
  const tws_runtime *runtime = tws_profile_runtime(job->profile);
  *p = (tws_points){.request = request, .points = 1, .knobs = 1, .features = ~UINT64_C(0)};
  p->has_experts = tws_network_has_experts(job->network);
  /* for Twinspeed's own engine all features may be used: they are planned, and the result lists those that the backend
   * lacks */
  if (strcmp(runtime->name, "twinspeed") != 0 && !request->space.every_feature)
    p->features = tws_runtime_features(runtime, job->backend);
  if (!tws_tune_has_deepspeed_points(request)) return fill_product(p, err);
  int count;
  TWS_TRY(tws_tune_deepspeed_points(request, &p->listed, &count, err));
  for (int i = 0; i < TWS_DIGITS; i++) p->count[i] = 1;
  p->points = count;
  return TWS_OK;
}

void tws_points_free(tws_points *p) {
  tws_free(p->listed);
  tws_free(p->elastic);
  p->listed = NULL;
  p->elastic = NULL;
}

/* ---- points ---- */

static tws_features features_of(const tws_points *p, const tws_variant *v) {
  const tws_job *job = p->request->job;
  return tws_variant_features(job->config, p->has_experts, v);
}

static void find_digits(const tws_points *p, int64_t number, int *digit) {
  for (int i = TWS_DIGITS; i-- > 0;) {
    digit[i] = (int)(number % p->count[i]);
    number /= p->count[i];
  }
}

static int64_t accumulation_of(const tws_points *p, const tws_variant *v, int digit) {
  const tws_tune_space *given = &p->request->space;
  if (p->elastic) {
    const tws_elastic_point *chosen = elastic_of(p, v);
    return chosen && chosen->micro == v->micro ? chosen->accumulation : 0;
  }
  if (given->global_batch > 0) {
    const int64_t own = (int64_t)tws_variant_replicas(v) * v->micro;
    return own > 0 && given->global_batch % own == 0 ? given->global_batch / own : 0;
  }
  return given->accumulation_count ? given->accumulation[digit] : v->pipeline > 1 ? 4 * (int64_t)v->pipeline : 1;
}

static tws_variant variant_of(const tws_points *p, const int *d) {
  const tws_tune_space *given = &p->request->space;
  tws_variant v = {.stage = p->stages[d[TWS_DIGIT_STAGE]],
                   .recompute = (tws_recompute)p->recompute[d[TWS_DIGIT_RECOMPUTE]],
                   .ranks = p->ranks[d[TWS_DIGIT_RANKS]],
                   .threads = p->threads[d[TWS_DIGIT_THREADS]],
                   .micro = p->micro[d[TWS_DIGIT_MICRO]],
                   .elastic = p->elastic != NULL,
                   .pipeline = p->axes.pipeline[d[TWS_DIGIT_PIPELINE]],
                   .tensor = p->axes.tensor[d[TWS_DIGIT_TENSOR]],
                   .sequence = p->axes.sequence[d[TWS_DIGIT_SEQUENCE]],
                   .expert = p->axes.expert[d[TWS_DIGIT_EXPERT]],
                   .capacity = p->axes.capacity[d[TWS_DIGIT_CAPACITY]],
                   .schedule = p->axes.schedules[d[TWS_DIGIT_SCHEDULE]],
                   .sequence_parallel = p->axes.sequence_parallel[d[TWS_DIGIT_TOKENS]],
                   .overlap = given->overlap_count ? given->overlap[d[TWS_DIGIT_OVERLAP]] : 0,
                   .offload = given->offload_count ? given->offload[d[TWS_DIGIT_OFFLOAD]] : 0,
                   .reduce_bucket = given->reduce_bucket_count ? given->reduce_bucket[d[TWS_DIGIT_BUCKET]] : 0};
  for (int i = 0; i < TWS_ZERO3_LIMIT_COUNT && v.stage == 3; i++)
    if (given->zero3_count[i]) v.zero3[i] = given->zero3[i][d[TWS_DIGIT_ZERO3 + i]];
  for (int i = 0; i < TWS_EXCHANGE_COUNT; i++) {
    const int applies = i == TWS_EXCHANGE_EXPERT_NODES ? v.expert > 1 : v.stage == 3;
    if (applies) v.exchange[i] = p->axes.exchange[i][d[TWS_DIGIT_EXCHANGE + i]];
  }
  if (v.pipeline == 1) v.schedule = (tws_variant_schedule){TWS_PIPELINE_1F1B, 1};
  if (v.tensor == 1) v.sequence_parallel = 0;
  v.accumulation = accumulation_of(p, &v, d[TWS_DIGIT_ACCUMULATION]);
  return v;
}

tws_variant tws_points_variant(const tws_points *p, int64_t number) {
  int digit[TWS_DIGITS];
  if (p->listed) return p->listed[number];
  find_digits(p, number, digit);
  return variant_of(p, digit);
}

/* Checks all settings that do not depend on the batch. If a list has no effect, only its first item is kept. */
static tws_point_kind family_standing(const tws_points *p, const int *d, const tws_variant *v) {
  if (v->ranks % (v->pipeline * v->tensor * v->sequence) || !threads_suit(p, v)) return TWS_POINT_ILLEGAL;
  if (v->pipeline == 1 && d[TWS_DIGIT_SCHEDULE] > 0) return TWS_POINT_EQUAL;
  if (v->tensor == 1 && d[TWS_DIGIT_TOKENS] > 0) return TWS_POINT_EQUAL;
  if (v->expert < 2 && d[TWS_DIGIT_EXCHANGE + TWS_EXCHANGE_EXPERT_NODES] > 0) return TWS_POINT_EQUAL;
  return TWS_POINT_DISTINCT;
}

tws_point_kind tws_points_family(const tws_points *p, int64_t family, tws_variant *v) {
  const int64_t first = family * p->count[TWS_DIGIT_MICRO] * p->knobs;
  int d[TWS_DIGITS];
  *v = tws_points_variant(p, first);
  if (p->listed) return TWS_POINT_DISTINCT;
  find_digits(p, first, d);
  return family_standing(p, d, v);
}

tws_point_kind tws_points_division(const tws_points *p, int64_t division, tws_variant *v) {
  int d[TWS_DIGITS];
  *v = tws_points_variant(p, division * p->knobs);
  if (p->listed) return TWS_POINT_DISTINCT;
  find_digits(p, division * p->knobs, d);
  const tws_point_kind family = family_standing(p, d, v);
  if (family != TWS_POINT_DISTINCT) return family;
  return v->accumulation > 0 && tws_axes_division_legal(&p->axes, v) ? TWS_POINT_DISTINCT : TWS_POINT_ILLEGAL;
}

/* Normalizes the stage on one rank, where ZeRO partitions and reduces nothing and the stage only determines what is
 * offloaded to the host. 1: optimizer states; 2: also gradients, bucket by bucket, on a single rank; 3: also
 * parameters. */
static int stage_of_one(const tws_variant *v, int stage, int offloads, int parameters) {
  if (stage == 3 && parameters) return 3;
  if (stage == 0 || !offloads) return 0;
  return stage > 1 && v->ranks == 1 ? 2 : 1;
}

static tws_point_kind knobs_of_one(const tws_points *p, const tws_variant *v, const int *d, int offloads,
                                   int parameters) {
  const int own = stage_of_one(v, v->stage, offloads, parameters), in_buckets = own > 1 && offloads && v->ranks == 1;
  for (int i = 0; i < d[TWS_DIGIT_STAGE]; i++)
    if (stage_of_one(v, p->stages[i], offloads, parameters) == own) return TWS_POINT_EQUAL;
  return d[TWS_DIGIT_OVERLAP] > 0 || (d[TWS_DIGIT_BUCKET] > 0 && !in_buckets) ? TWS_POINT_EQUAL : TWS_POINT_DISTINCT;
}

/* Returns 1 if the point differs from another point only in values of exchange lists (TWS_EXCHANGE_KEYS) that have no
 * effect at its ZeRO stage: not at stage 3, and not the first item of a list. Such points are dropped. */
static int has_idle_exchange(const tws_variant *v, const int *d) {
  for (int i = 0; i < TWS_EXCHANGE_COUNT; i++)
    if (i != TWS_EXCHANGE_EXPERT_NODES && v->stage != 3 && d[TWS_DIGIT_EXCHANGE + i] > 0) return 1;
  return 0;
}

tws_point_kind tws_points_knobs(const tws_points *p, int64_t number, tws_variant *v) {
  int d[TWS_DIGITS];
  *v = tws_points_variant(p, number);
  if (p->listed) return TWS_POINT_DISTINCT;
  find_digits(p, number, d);
  const int sharers = tws_variant_replicas(v) * (v->sequence > 1 ? v->sequence : 1);
  const tws_zero_config *z = &p->request->job->config->zero;
  const int offloads = v->offload ? tws_variant_offloads(v, 0) : z->offload_optimizer != 0;
  const int parameters = v->offload ? tws_variant_offloads(v, 1) : z->offload_param != 0;
  if (v->pipeline > 1 && v->stage > 1) return TWS_POINT_ILLEGAL;
  if (features_of(p, v) & ~p->features) return TWS_POINT_ILLEGAL;
  if (has_idle_exchange(v, d)) return TWS_POINT_EQUAL;
  if (!tws_axes_knobs_legal(&p->axes, v)) return TWS_POINT_ILLEGAL;
  for (int i = 0; i < TWS_ZERO3_LIMIT_COUNT; i++) /* the limits apply only to parameters that are gathered or fetched */
    if (d[TWS_DIGIT_ZERO3 + i] > 0 && (v->stage != 3 || (sharers == 1 && !parameters))) return TWS_POINT_EQUAL;
  /* the host updates partitions, which stage 0 does not have */
  if (v->stage == 0 && d[TWS_DIGIT_OFFLOAD] > 0) return TWS_POINT_EQUAL;
  /* at other stages than 3, parameters cannot be offloaded */
  if (v->offload && parameters && v->stage != 3) return TWS_POINT_ILLEGAL;
  if (sharers == 1) return knobs_of_one(p, v, d, offloads, parameters);
  if (v->stage == 0 && (d[TWS_DIGIT_OVERLAP] > 0 || d[TWS_DIGIT_BUCKET] > 0)) return TWS_POINT_EQUAL;
  return v->pipeline > 1 && d[TWS_DIGIT_OVERLAP] > 0 ? TWS_POINT_EQUAL : TWS_POINT_DISTINCT;
}

/* Calls `visit` with the points of a division; returns 0 if visit() has ended the iteration. */
static int each_of_division(const tws_points *p, int64_t division,
                            int (*visit)(void *user, int64_t number, const tws_variant *variant), void *user) {
  tws_variant v;
  if (tws_points_division(p, division, &v) != TWS_POINT_DISTINCT) return 1;
  for (int64_t number = division * p->knobs; number < (division + 1) * p->knobs; number++)
    if (tws_points_knobs(p, number, &v) == TWS_POINT_DISTINCT && !visit(user, number, &v)) return 0;
  return 1;
}

void tws_points_each(const tws_points *p, int (*visit)(void *user, int64_t number, const tws_variant *variant),
                     void *user) {
  const int64_t micros = p->count[TWS_DIGIT_MICRO], families = p->points / p->knobs / micros;
  tws_variant v;
  for (int64_t family = 0; family < families; family++) {
    if (tws_points_family(p, family, &v) != TWS_POINT_DISTINCT) continue;
    for (int64_t m = 0; m < micros; m++)
      if (!each_of_division(p, family * micros + m, visit, user)) return;
  }
}

typedef struct own_count {
  int64_t count, most;
} own_count;

static int count_point(void *user, int64_t number, const tws_variant *variant) {
  own_count *c = user;
  (void)number;
  (void)variant;
  return ++c->count < c->most;
}

int64_t tws_points_count_distinct(const tws_points *p, int64_t most) {
  own_count c = {0, most};
  tws_points_each(p, count_point, &c);
  return c.count;
}

uint64_t tws_points_state_class(const tws_variant *v) {
  uint64_t hash = TWS_FINGERPRINT_START;
  /* only this ZeRO-3 limit, the persistence threshold, changes the bytes of the states */
  const int64_t said[] = {v->stage,
                          v->ranks,
                          v->threads,
                          v->pipeline,
                          v->tensor,
                          v->sequence,
                          v->expert,
                          v->schedule.kind,
                          v->offload,
                          v->schedule.virtual_stages,
                          v->sequence_parallel,
                          v->zero3[1]};
  for (size_t i = 0; i < sizeof said / sizeof *said; i++) hash = tws_fingerprint_integer(hash, said[i]);
  for (int i = 0; i < TWS_EXCHANGE_COUNT; i++) hash = tws_fingerprint_integer(hash, v->exchange[i]);
  return hash ? hash : 1;
}

/* ---- empty spaces ---- */

/* Writes a hint with global batches that are divisible by the number of sequences, for the smallest number of
 * replicas. */
static void nearest_batches(const tws_points *p, char *hint, size_t size) {
  int64_t least = 0;
  const int64_t batch = p->request->space.global_batch;
  for (int64_t division = 0; division < p->points / p->knobs; division += p->count[TWS_DIGIT_MICRO]) {
    const tws_variant v = tws_points_variant(p, division * p->knobs);
    if (v.ranks % (v.pipeline * v.tensor * v.sequence) || !tws_axes_division_legal(&p->axes, &v)) continue;
    if (!least || tws_variant_replicas(&v) < least) least = tws_variant_replicas(&v);
  }
  snprintf(hint, size, "choose a global batch that the ranks and micro batches divide");
  if (least > 1 && batch > least && batch % least)
    snprintf(hint, size, "%lld replicas divide a global batch of %lld or %lld", (long long)least,
             (long long)(batch - batch % least), (long long)(batch - batch % least + least));
  else if (least > 1 && batch % least)
    snprintf(hint, size, "%lld replicas divide a global batch of %lld and its multiples", (long long)least,
             (long long)least);
}

/* Fails with TWS_INVALID. The message is that of elasticity for the first number of ranks, where every rank is a
 * replica. */
static tws_code explain_elastic(const tws_points *p, tws_error *err) {
  tws_error why = {0};
  int64_t micro, accumulation;
  const int ranks = p->ranks[0];
  const tws_code code = tws_config_elastic_batch(p->request->job->config, ranks, ranks, &micro, &accumulation, &why);
  return tws_fail(err, TWS_INVALID, why.hint[0] ? why.hint : "name other --tp, --pp, --sp or -n",
                  "the search space is empty: %s",
                  code == TWS_OK ? "elasticity chooses no batch for these divisions of ranks" : why.message);
}

/* Returns the features that some values of the lists need and that the job's runtime does not have. Points that need
 * them are left out of the search. */
static tws_features unsupported_features(const tws_points *p) {
  tws_features used = 0;
  int first[TWS_DIGITS] = {0};
  if (p->listed) return 0;
  const int last[] = {TWS_DIGIT_PIPELINE, TWS_DIGIT_TENSOR, TWS_DIGIT_SEQUENCE, TWS_DIGIT_EXPERT, TWS_DIGIT_STAGE};
  for (size_t i = 0; i < sizeof last / sizeof *last; i++) first[last[i]] = p->count[last[i]] - 1;
  for (int i = 0; i < TWS_DIGITS; i++)
    for (int value = 0; value < p->count[i]; value++) {
      int digit[TWS_DIGITS];
      memcpy(digit, first, sizeof digit);
      digit[i] = value;
      const tws_variant v = variant_of(p, digit);
      if (v.pipeline < 2 || v.stage < 2) used |= features_of(p, &v);
    }
  return used & ~p->features;
}

tws_code tws_points_explain_none(const tws_points *p, tws_error *err) {
  char why[160], hint[128];
  const tws_features lacked = unsupported_features(p);
  if (tws_axes_explain(&p->axes, p->ranks, p->count[TWS_DIGIT_RANKS], why, sizeof why))
    return tws_fail(err, TWS_INVALID, "name other --tp, --pp, --sp or -n", "the search space is empty: %s", why);
  if (lacked) {
    const tws_runtime *runtime = tws_profile_runtime(p->request->job->profile);
    tws_text text = {0};
    tws_features_text(lacked, &text);
    const tws_code code = tws_fail(err, TWS_INVALID, "name what it has, or another --runtime",
                                   "the search space is empty: runtime %s (%s) %s", runtime->name,
                                   tws_runtime_family(runtime, p->request->job->backend), text.data ? text.data : "");
    tws_text_free(&text);
    return code;
  }
  if (p->elastic) return explain_elastic(p, err);
  nearest_batches(p, hint, sizeof hint);
  return tws_fail(err, TWS_INVALID, hint,
                  "the search space is empty: no micro batch x accumulation x replicas makes a global batch of %lld",
                  (long long)p->request->space.global_batch);
}
