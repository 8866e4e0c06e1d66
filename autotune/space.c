/* The points of a search space and the configurations they stand for. */
#include <stdio.h>
#include "autotune/autotune.h"
#include "autotune/deepspeed_space.h"
#include "autotune/space_axes.h"

/* Dimensions with their defaults filled in. */
typedef struct dimensions {
  const tws_tune_space *space;
  tws_axes_space axes;
  int stages[4], stage_count;
  tws_recompute recompute[3];
  int recompute_count;
  int ranks[TWS_TUNE_LIST], ranks_count;
  int host, cores; /* cores of a node */
} dimensions;

typedef struct point_list {
  tws_variant *items;
  size_t count, capacity;
} point_list;

static int add_rank(dimensions *d, int ranks) {
  for (int i = 0; i < d->ranks_count; i++)
    if (d->ranks[i] == ranks) return 0;
  if (d->ranks_count == TWS_TUNE_LIST) return -1;
  d->ranks[d->ranks_count++] = ranks;
  return 0;
}

/* Whole nodes, or parts of one node that divide it. */
static void default_ranks(dimensions *d, const tws_cluster *cluster) {
  int devices = cluster->devices_per_node, world = devices * cluster->nodes;
  if (d->space->axes) {
    add_rank(d, world);
    return;
  }
  for (int ranks = 1; ranks <= world; ranks++) {
    int fills = ranks <= devices ? devices % ranks == 0 : ranks % devices == 0;
    if (fills && world % ranks == 0 && add_rank(d, ranks)) return;
  }
  if (!d->host || !d->space->oversubscribe) return;
  for (int ranks = 1; ranks <= 2 * d->cores * cluster->nodes; ranks *= 2)
    if (ranks > world && add_rank(d, ranks)) return;
}

static tws_code fill_dimensions(const tws_tune_request *request, dimensions *d, tws_error *err) {
  const tws_tune_space *space = &request->space;
  const tws_cluster *cluster = &request->job->cluster;
  *d = (dimensions){.space = space};
  d->host = tws_profile_backend(request->job->profile) == TWS_BACKEND_HOST;
  d->cores = cluster->cores_per_node > 0 ? cluster->cores_per_node : tws_profile_cores(request->job->profile);
  if (d->cores < 1) d->cores = 1;
  d->stage_count = space->stage_count ? space->stage_count : 4;
  for (int i = 0; i < d->stage_count; i++) d->stages[i] = space->stage_count ? space->stages[i] : i;
  d->recompute_count = space->recompute_count ? space->recompute_count : 3;
  for (int i = 0; i < d->recompute_count; i++)
    d->recompute[i] = space->recompute_count ? space->recompute[i] : (tws_recompute)i;
  if (space->ranks_count == 0) default_ranks(d, cluster);
  for (int i = 0; i < space->ranks_count; i++) {
    int devices = cluster->devices_per_node * cluster->nodes;
    if (space->ranks[i] < 1 || (!d->host && space->ranks[i] > devices))
      return tws_fail(err, TWS_INVALID, "give more nodes or fewer ranks", "cluster %s: %d ranks asked of %d devices",
                      cluster->name, space->ranks[i], devices);
    if (add_rank(d, space->ranks[i])) break;
  }
  tws_axes_fill(request, &d->axes);
  return TWS_OK;
}

/* Threads of one rank: all that a rank can have to itself, and powers of two below. */
static int thread_choices(const dimensions *d, const tws_cluster *cluster, int ranks, int *threads) {
  if (!d->host) {
    threads[0] = 0;
    return 1;
  }
  const tws_node_mapping mapping = tws_node_mapping_of(cluster, 1, ranks);
  int own = d->cores / tws_mapping_most_on_node(&mapping), count = 0;
  if (own < 1) own = 1;
  if (d->space->threads_count) {
    for (int i = 0; i < d->space->threads_count; i++)
      if (d->space->threads[i] <= own || d->space->oversubscribe) threads[count++] = d->space->threads[i];
    return count;
  }
  for (int t = 1; t < own && count < TWS_TUNE_LIST - 1; t *= 2) threads[count++] = t;
  threads[count++] = own;
  return count;
}

static int64_t largest_micro(const tws_tune_space *space) {
  if (space->max_micro > 0) return space->max_micro;
  return space->global_batch > 0 ? space->global_batch : 64;
}

/* One point, unless its batch does not suit its axes. */
static tws_code push_point(const dimensions *d, point_list *list, const tws_variant *point, tws_error *err) {
  if (!d->space->micro_count && point->micro < d->space->min_micro) return TWS_OK;
  if (!tws_axes_suit(&d->axes, point)) return TWS_OK;
  if (list->count >= TWS_TUNE_MAX_POINTS)
    return tws_fail(err, TWS_INVALID, "name fewer stages, micro batches, axes or rank counts",
                    "the search space has more than %d points", TWS_TUNE_MAX_POINTS);
  if (tws_reserve(&list->items, &list->capacity, list->count + 1, sizeof *list->items))
    return tws_fail(err, TWS_MEMORY, 0, "no memory for the search space");
  list->items[list->count++] = *point;
  return TWS_OK;
}

/* Micro batch m and its accumulation under a fixed global batch: only exact divisions. */
static tws_code add_fixed(const dimensions *d, point_list *list, tws_variant point, tws_error *err) {
  const tws_tune_space *space = d->space;
  int replicas = tws_variant_replicas(&point);
  if (space->global_batch % replicas != 0) return TWS_OK;
  int64_t own = space->global_batch / replicas, limit = largest_micro(space);
  if (space->micro_count) {
    for (int i = 0; i < space->micro_count; i++) {
      if (space->micro[i] < 1 || space->micro[i] > limit || own % space->micro[i]) continue;
      point.micro = space->micro[i];
      point.accumulation = own / point.micro;
      TWS_TRY(push_point(d, list, &point, err));
    }
    return TWS_OK;
  }
  /* divisors in increasing order: the small ones, then the cofactors of the small ones */
  for (int64_t m = 1; m <= limit && m * m <= own; m++)
    if (own % m == 0) {
      point.micro = m;
      point.accumulation = own / m;
      TWS_TRY(push_point(d, list, &point, err));
    }
  int64_t root = 1;
  while ((root + 1) * (root + 1) <= own) root++;
  for (int64_t a = root; a >= 1; a--) {
    if (own % a || own / a > limit || own / a <= root) continue;
    point.micro = own / a;
    point.accumulation = a;
    TWS_TRY(push_point(d, list, &point, err));
  }
  return TWS_OK;
}

static tws_code add_free(const dimensions *d, point_list *list, tws_variant point, tws_error *err) {
  const tws_tune_space *space = d->space;
  int64_t limit = largest_micro(space), listed = space->micro_count;
  for (int64_t i = 0, power = 1; listed ? i < listed : power <= limit; i++, power *= 2) {
    point.micro = listed ? space->micro[i] : power;
    if (point.micro < 1 || (space->max_micro && point.micro > space->max_micro)) continue;
    for (int j = 0; j < (space->accumulation_count ? space->accumulation_count : 1); j++) {
      point.accumulation = space->accumulation_count ? space->accumulation[j]
                           : point.pipeline > 1      ? 4 * (int64_t)point.pipeline
                                                     : 1;
      TWS_TRY(push_point(d, list, &point, err));
    }
  }
  return TWS_OK;
}

static tws_code add_batches(const dimensions *d, point_list *list, const tws_variant *point, tws_error *err) {
  return d->space->global_batch > 0 ? add_fixed(d, list, *point, err) : add_free(d, list, *point, err);
}

/* All ways to divide the point's ranks among axes, then threads, then batches. */
static tws_code add_axes(const dimensions *d, const tws_cluster *cluster, point_list *list, tws_variant point,
                         tws_error *err) {
  int threads[TWS_TUNE_LIST], choices = thread_choices(d, cluster, point.ranks, threads);
  for (int64_t next = 0; tws_axes_next(&d->axes, &next, &point);) {
    for (int t = 0; t < choices; t++) {
      point.threads = threads[t];
      TWS_TRY(add_batches(d, list, &point, err));
    }
  }
  return TWS_OK;
}

static tws_code enumerate_points(const dimensions *d, const tws_cluster *cluster, point_list *list, tws_error *err) {
  for (int s = 0; s < d->stage_count; s++)
    for (int r = 0; r < d->recompute_count; r++)
      for (int n = 0; n < d->ranks_count; n++) {
        tws_variant point = {.stage = d->stages[s], .recompute = d->recompute[r], .ranks = d->ranks[n]};
        TWS_TRY(add_axes(d, cluster, list, point, err));
      }
  return TWS_OK;
}

/* Global batches that one sequence a rank divides, for the smallest number of replicas. */
static void nearest_batches(const dimensions *d, char *hint, size_t size) {
  int64_t least = 0, batch = d->space->global_batch;
  for (int i = 0; i < d->ranks_count; i++) {
    tws_variant point = {.ranks = d->ranks[i]};
    for (int64_t next = 0; tws_axes_next(&d->axes, &next, &point);)
      if (!least || tws_variant_replicas(&point) < least) least = tws_variant_replicas(&point);
  }
  snprintf(hint, size, "choose a global batch that the ranks and micro batches divide");
  if (least > 1 && batch > least && batch % least)
    snprintf(hint, size, "%lld replicas divide a global batch of %lld or %lld", (long long)least,
             (long long)(batch - batch % least), (long long)(batch - batch % least + least));
  else if (least > 1 && batch % least)
    snprintf(hint, size, "%lld replicas divide a global batch of %lld and its multiples", (long long)least,
             (long long)least);
}

tws_code tws_tune_enumerate(const tws_tune_request *request, tws_variant **points, int *count, tws_error *err) {
  dimensions d;
  if (tws_tune_is_deepspeeds(request)) return tws_tune_deepspeeds(request, points, count, err);
  TWS_TRY(fill_dimensions(request, &d, err));
  TWS_TRY(tws_axes_check_experts(request, err));
  point_list list = {0};
  tws_code code = enumerate_points(&d, &request->job->cluster, &list, err);
  char why[160], hint[128];
  nearest_batches(&d, hint, sizeof hint);
  if (code == TWS_OK && list.count == 0 && tws_axes_explain(&d.axes, d.ranks, d.ranks_count, why, sizeof why))
    code = tws_fail(err, TWS_INVALID, "name other --tp, --pp, --sp or -n", "the search space is empty: %s", why);
  else if (code == TWS_OK && list.count == 0)
    code = tws_fail(err, TWS_INVALID, hint,
                    "the search space is empty: no micro batch x accumulation x replicas makes a global batch of %lld",
                    (long long)request->space.global_batch);
  if (code != TWS_OK) {
    tws_free(list.items);
    return code;
  }
  *points = list.items;
  *count = (int)list.count;
  return TWS_OK;
}
