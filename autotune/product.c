#include "autotune/product.h"

#include <string.h>

static int one_at_least(int count) {
  return count > 0 ? count : 1;
}

static tws_code fill_micro(tws_product *s, tws_error *err) {
  const tws_tune_space *given = &s->request->space;
  const int64_t batch = given->global_batch;
  const int64_t limit = given->max_micro > 0 ? given->max_micro : batch > 0 ? batch : 64;
  int n = 0;
  for (int i = 0; i < given->micro_count; i++)
    if (given->micro[i] <= limit) s->micro[n++] = given->micro[i];
  for (int64_t m = 1; !given->micro_count && m <= limit && n<TWS_PRODUCT_MICROS; m = batch> 0 ? m + 1 : 2 * m)
    if (m >= given->min_micro && (batch == 0 || batch % m == 0)) s->micro[n++] = m;
  s->count[TWS_DIGIT_MICRO] = n;
  return n ? TWS_OK : tws_fail(err, TWS_INVALID, NULL, "the search space is empty: no micro batch is left");
}

tws_code tws_product_fill(const tws_tune_request *request, tws_product *s, tws_error *err) {
  const tws_tune_space *given = &request->space;
  const tws_cluster *cluster = &request->job->cluster;
  memset(s, 0, sizeof *s);
  s->request = request;
  tws_axes_fill(request, &s->axes);
  TWS_TRY(tws_axes_check_experts(request, err));
  if (request->goal != TWS_GOAL_THROUGHPUT)
    return tws_fail(err, TWS_UNSUPPORTED, "leave out --objective", "an exhaustive search is for throughput");
  if (given->ranks_count > 1 || given->threads_count > 1)
    return tws_fail(err, TWS_UNSUPPORTED, "name one number of ranks", "an exhaustive search has one number of ranks");
  s->ranks = given->ranks_count ? given->ranks[0] : cluster->devices_per_node * cluster->nodes;
  if (tws_profile_backend(request->job->profile) == TWS_BACKEND_HOST)
    return tws_fail(err, TWS_UNSUPPORTED, "leave out --exhaustive", "an exhaustive search is for devices, not hosts");
  s->count[TWS_DIGIT_STAGE] = given->stage_count ? given->stage_count : 4;
  for (int i = 0; i < s->count[TWS_DIGIT_STAGE]; i++) s->stages[i] = given->stage_count ? given->stages[i] : i;
  s->count[TWS_DIGIT_RECOMPUTE] = given->recompute_count ? given->recompute_count : 3;
  for (int i = 0; i < s->count[TWS_DIGIT_RECOMPUTE]; i++)
    s->recompute[i] = given->recompute_count ? (int)given->recompute[i] : i;
  TWS_TRY(fill_micro(s, err));
  s->count[TWS_DIGIT_TENSOR] = s->axes.tensor_count;
  s->count[TWS_DIGIT_TOKENS] = s->axes.sequence_parallel_count;
  s->count[TWS_DIGIT_PIPELINE] = s->axes.pipeline_count;
  s->count[TWS_DIGIT_SCHEDULE] = s->axes.schedule_count;
  s->count[TWS_DIGIT_ACCUMULATION] = given->global_batch > 0 ? 1 : one_at_least(given->accumulation_count);
  s->count[TWS_DIGIT_OVERLAP] = one_at_least(given->overlap_count);
  s->count[TWS_DIGIT_OFFLOAD] = one_at_least(given->offload_count);
  s->count[TWS_DIGIT_BUCKET] = one_at_least(given->reduce_bucket_count);
  for (int i = 0; i < TWS_ZERO3_LIMIT_COUNT; i++) s->count[TWS_DIGIT_ZERO3 + i] = one_at_least(given->zero3_count[i]);
  s->points = 1;
  for (int i = 0; i < TWS_DIGITS; i++) s->points *= s->count[i];
  return TWS_OK;
}

void tws_product_digits(const tws_product *s, tws_product_point *p) {
  int64_t rest = p->number;
  for (int i = TWS_DIGITS; i-- > 0;) {
    p->digit[i] = (int)(rest % s->count[i]);
    rest /= s->count[i];
  }
}

tws_variant tws_product_variant(const tws_product *s, const tws_product_point *p) {
  const tws_tune_space *given = &s->request->space;
  const int *d = p->digit;
  tws_variant v = {.stage = s->stages[d[TWS_DIGIT_STAGE]],
                   .recompute = (tws_recompute)s->recompute[d[TWS_DIGIT_RECOMPUTE]],
                   .ranks = s->ranks,
                   .micro = s->micro[d[TWS_DIGIT_MICRO]],
                   .pipeline = s->axes.pipeline[d[TWS_DIGIT_PIPELINE]],
                   .tensor = s->axes.tensor[d[TWS_DIGIT_TENSOR]],
                   .sequence = s->axes.sequence[0],
                   .expert = s->axes.expert[0],
                   .capacity = s->axes.capacity[0],
                   .schedule = s->axes.schedules[d[TWS_DIGIT_SCHEDULE]],
                   .sequence_parallel = s->axes.sequence_parallel[d[TWS_DIGIT_TOKENS]],
                   .overlap = given->overlap_count ? given->overlap[d[TWS_DIGIT_OVERLAP]] : 0,
                   .offload = given->offload_count ? given->offload[d[TWS_DIGIT_OFFLOAD]] : 0,
                   .reduce_bucket = given->reduce_bucket_count ? given->reduce_bucket[d[TWS_DIGIT_BUCKET]] : 0};
  for (int i = 0; i < TWS_ZERO3_LIMIT_COUNT && v.stage == 3; i++)
    if (given->zero3_count[i]) v.zero3[i] = given->zero3[i][d[TWS_DIGIT_ZERO3 + i]];
  if (v.pipeline == 1) v.schedule = (tws_variant_schedule){TWS_PIPELINE_1F1B, 1};
  if (v.tensor == 1) v.sequence_parallel = 0;
  if (given->global_batch > 0) {
    const int64_t own = (int64_t)tws_variant_replicas(&v) * v.micro;
    v.accumulation = own > 0 && given->global_batch % own == 0 ? given->global_batch / own : 0;
  } else {
    v.accumulation = given->accumulation_count ? given->accumulation[d[TWS_DIGIT_ACCUMULATION]]
                     : v.pipeline > 1          ? 4 * (int64_t)v.pipeline
                                               : 1;
  }
  return v;
}

/* Of the division and the batch: what all combinations of the other knobs share. */
tws_standing tws_product_division(const tws_product *s, const tws_product_point *p, const tws_variant *v) {
  const int model = v->pipeline * v->tensor * v->sequence;
  if (v->ranks % model || !tws_axes_tensor_legal(&s->axes, v) || v->accumulation < 1) return TWS_POINT_ILLEGAL;
  if (!tws_axes_experts_legal(&s->axes, v)) return TWS_POINT_ILLEGAL;
  const int64_t tokens = v->micro * s->axes.sequence_length / v->sequence;
  if (v->tensor > 1 && v->sequence_parallel && tokens % v->tensor) return TWS_POINT_ILLEGAL;
  if (v->pipeline > 1 && v->schedule.kind == TWS_PIPELINE_INTERLEAVED && v->accumulation % v->pipeline)
    return TWS_POINT_ILLEGAL;
  if (v->pipeline == 1 && p->digit[TWS_DIGIT_SCHEDULE] > 0) return TWS_POINT_EQUAL;
  if (v->tensor == 1 && p->digit[TWS_DIGIT_TOKENS] > 0) return TWS_POINT_EQUAL;
  return TWS_POINT_OWN;
}

/* Where nothing is divided, and nothing reduced, a stage is what goes to the host then, and comes from there: 1: what
 * is updated; 2: gradients of one rank alone, bucket by bucket; 3: parameters, too. */
static int stage_of_one(const tws_variant *v, int stage, int offloads, int parameters) {
  if (stage == 3 && parameters) return 3;
  if (stage == 0 || !offloads) return 0;
  return stage > 1 && v->ranks == 1 ? 2 : 1;
}

/* Of the knobs of ZeRO: the first of a list stands for all where there is nothing that they change. */
tws_standing tws_product_knobs(const tws_product *s, const tws_product_point *p, const tws_variant *v) {
  const int sharers = tws_variant_replicas(v) * (v->sequence > 1 ? v->sequence : 1);
  const int *d = p->digit;
  const tws_zero_config *z = &s->request->job->config->zero;
  const int offloads = v->offload ? tws_variant_offloads(v, 0) : z->offload_optimizer != 0;
  const int parameters = v->offload ? tws_variant_offloads(v, 1) : z->offload_param != 0;
  if (v->pipeline > 1 && v->stage > 1) return TWS_POINT_ILLEGAL;
  for (int i = 0; i < TWS_ZERO3_LIMIT_COUNT; i++) /* of what is gathered, or fetched */
    if (d[TWS_DIGIT_ZERO3 + i] > 0 && (v->stage != 3 || (sharers == 1 && !parameters))) return TWS_POINT_EQUAL;
  if (v->stage == 0 && d[TWS_DIGIT_OFFLOAD] > 0) return TWS_POINT_EQUAL;   /* what the host updates are parts */
  if (v->offload && parameters && v->stage != 3) return TWS_POINT_ILLEGAL; /* they would stay on the device */
  if (sharers == 1) {
    const int own = stage_of_one(v, v->stage, offloads, parameters), in_buckets = own > 1 && offloads && v->ranks == 1;
    for (int i = 0; i < d[TWS_DIGIT_STAGE]; i++)
      if (stage_of_one(v, s->stages[i], offloads, parameters) == own) return TWS_POINT_EQUAL;
    return d[TWS_DIGIT_OVERLAP] > 0 || (d[TWS_DIGIT_BUCKET] > 0 && !in_buckets) ? TWS_POINT_EQUAL : TWS_POINT_OWN;
  }
  if (v->stage == 0 && (d[TWS_DIGIT_OVERLAP] > 0 || d[TWS_DIGIT_BUCKET] > 0)) return TWS_POINT_EQUAL;
  return v->pipeline > 1 && d[TWS_DIGIT_OVERLAP] > 0 ? TWS_POINT_EQUAL : TWS_POINT_OWN;
}
