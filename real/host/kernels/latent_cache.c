/* The small cache of multi-head latent attention (models/latent.h): of each token the compressed row and the rotated
 * part of the key that all heads share. A query is multiplied by the part of the weight that would expand compressed
 * rows to keys, so that it attends to the rows themselves; the weighted sum of rows is multiplied by the part that
 * would expand them to values (DeepSeek-V2, 2024, section 2.1.2). Keys and values are never computed. */
#include "base/float8.h"
#include "models/latent.h"
#include "real/host/kernels/kernels.h"

enum { MOST_RANK = 4096, MOST_ROPE = 1024, KEYS_AT_ONCE = 64 };

typedef struct latent_cache {
  int64_t batch, seq, heads, nope, rope, value, rank, rows;
  const int32_t *starts, *lengths;
  double frequency[MOST_ROPE / 2];
  float gain;
} latent_cache;

/* Returns the number of new tokens of a sequence. */
static int64_t tokens_of(const latent_cache *s, int64_t b) {
  return s->lengths[b] < 0 ? 0 : s->lengths[b] < s->seq ? s->lengths[b] : s->seq;
}

static tws_code check(int64_t rank, int64_t rope, tws_error *err) {
  if (rank <= MOST_RANK && rope <= MOST_ROPE && rope % 2 == 0) return TWS_OK;
  return tws_fail(err, TWS_UNSUPPORTED, "generate with --no-cache",
                  "latent attention with rows of %lld + %lld elements: at most %d + %d, and an even number of rotated "
                  "ones",
                  (long long)rank, (long long)rope, MOST_RANK, MOST_ROPE);
}

/* Rotates pairs of adjacent elements of x to a position. */
static void turn(const latent_cache *s, float *x, int64_t position) {
  for (int64_t i = 0; i < s->rope / 2; ++i) {
    double sine, cosine;
    sincos((double)position * s->frequency[i], &sine, &cosine);
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = a * (float)cosine - b * (float)sine;
    x[2 * i + 1] = b * (float)cosine + a * (float)sine;
  }
}

VECTOR_INLINE void read_numbers(tws_dtype T, const void *from, int64_t first, int64_t count, float *to) {
  EACH_VECTOR(c, n, 0, count, v_store_part(to + c, v_get(T, from, first + c, n), n));
}

/* Writes a row of numbers to a cache of type `type`, or of e4m3. */
static void write_row(tws_dtype type, void *cache, int64_t first, const float *from, int64_t count) {
  if (type == TWS_E4M3) {
    for (int64_t c = 0; c < count; ++c) ((uint8_t *)cache)[first + c] = tws_to_e4m3(from[c]);
    return;
  }
  FOR_TYPE(type, T, EACH_VECTOR(c, n, 0, count, v_put(T, cache, first + c, v_load_part(from + c, n), n)));
}

/* ---- writing ---- */

typedef struct cache_job {
  const tws_host_call *call;
  latent_cache shape;
} cache_job;

static void write_task(void *arg, int thread, int threads) {
  const cache_job *job = arg;
  const tws_host_call *call = job->call;
  const latent_cache *s = &job->shape;
  const int64_t width = s->rank + s->rope;
  const host_range r = share(s->batch * s->seq, 1, thread, threads);
  float row[MOST_RANK + MOST_ROPE];
  for (int64_t i = r.begin; i < r.end; ++i) {
    const int64_t b = i / s->seq, t = i % s->seq, position = s->starts[b] + t;
    if (t >= tokens_of(s, b)) continue;
    FOR_TYPE(call->dtype[0], T, read_numbers(T, call->operand[0], i * s->rank, s->rank, row));
    FOR_TYPE(call->dtype[1], T, read_numbers(T, call->operand[1], i * width + s->rank, s->rope, row + s->rank));
    turn(s, row + s->rank, position);
    write_row(call->dtype[4], call->operand[4], (b * s->rows + position % s->rows) * width, row, width);
  }
}

HOST_KERNEL(latent_write) {
  const int64_t *d = call->work->d;
  cache_job job = {.call = call,
                   .shape = {.batch = d[0],
                             .seq = d[1],
                             .rank = d[2],
                             .rope = d[3],
                             .rows = d[4],
                             .starts = call->operand[2],
                             .lengths = call->operand[3]}};
  TWS_TRY(check(d[2], d[3], err));
  for (int64_t i = 0; i < d[3] / 2; ++i) job.shape.frequency[i] = tws_latent_frequency(call->work->f, d[3], i);
  run_parallel(call, 12.0 * (double)(d[0] * d[1] * (d[2] + d[3])), write_task, &job);
  return TWS_OK;
}

/* ---- attention ---- */

/* A query of one head, absorbed into the space of cached rows, and the running softmax over these. */
typedef struct latent_query {
  float query[MOST_RANK + MOST_ROPE], row[MOST_RANK + MOST_ROPE], sum[MOST_RANK + LANES];
  float score[KEYS_AT_ONCE], largest, total;
  float meaning[256]; /* of a cache in e4m3: the number of each code */
} latent_query;

VECTOR_INLINE float dot(const float *a, const float *b, int64_t count) {
  vf sum = v_zero();
  EACH_VECTOR(c, n, 0, count, sum += v_load_part(a + c, n) * v_load_part(b + c, n));
  return v_sum(sum);
}

/* Adds x times `count` numbers. */
VECTOR_INLINE void add_row(float *sum, const float *row, float x, int64_t count) {
  EACH_VECTOR(c, n, 0, count, v_store_part(sum + c, v_load_part(sum + c, n) + v_load_part(row + c, n) * x, n));
}

static void read_row(const tws_host_call *call, latent_query *q, int64_t first, int64_t count) {
  if (call->dtype[2] == TWS_E4M3)
    for (int64_t c = 0; c < count; ++c) q->row[c] = q->meaning[((const uint8_t *)call->operand[2])[first + c]];
  else
    FOR_TYPE(call->dtype[2], T, read_numbers(T, call->operand[2], first, count, q->row));
}

/* Makes the absorbed query of head h: gain times the query's first elements times the weight's rows for keys, and its
 * rotated elements. */
static void absorb(const tws_host_call *call, const latent_cache *s, int64_t token, int64_t h, int64_t position,
                   latent_query *q) {
  const int64_t head = s->nope + s->rope, at = (token * s->heads + h) * head, each = s->nope + s->value;
  memset(q->query, 0, (size_t)s->rank * sizeof *q->query);
  for (int64_t i = 0; i < s->nope; ++i) {
    float x = 0;
    FOR_TYPE(call->dtype[0], T, x = v_get(T, call->operand[0], at + i, 1)[0] * s->gain);
    FOR_TYPE(call->dtype[1], T, EACH_VECTOR(c, n, 0, s->rank, {
               const vf w = v_get(T, call->operand[1], (h * each + i) * s->rank + c, n);
               v_store_part(q->query + c, v_load_part(q->query + c, n) + w * x, n);
             }));
  }
  FOR_TYPE(call->dtype[0], T, read_numbers(T, call->operand[0], at + s->nope, s->rope, q->query + s->rank));
  turn(s, q->query + s->rank, position);
  for (int64_t i = 0; i < s->rope; ++i) q->query[s->rank + i] *= s->gain;
}

/* Sums the cached rows up to a position, weighted by the softmax of their scores. */
static void attend(const tws_host_call *call, const latent_cache *s, int64_t b, int64_t position, latent_query *q) {
  const int64_t width = s->rank + s->rope, first = position + 1 > s->rows ? position + 1 - s->rows : 0;
  memset(q->sum, 0, (size_t)s->rank * sizeof *q->sum);
  q->largest = -INFINITY;
  q->total = 0;
  for (int64_t begin = first; begin <= position; begin += KEYS_AT_ONCE) {
    const int64_t count = position + 1 - begin < KEYS_AT_ONCE ? position + 1 - begin : KEYS_AT_ONCE;
    float largest = q->largest;
    for (int64_t k = 0; k < count; ++k) {
      read_row(call, q, (b * s->rows + (begin + k) % s->rows) * width, width);
      q->score[k] = dot(q->query, q->row, width);
      if (q->score[k] > largest) largest = q->score[k];
    }
    const float kept = q->total > 0 ? expf(q->largest - largest) : 0;
    q->total *= kept;
    for (int64_t c = 0; c < s->rank; ++c) q->sum[c] *= kept;
    for (int64_t k = 0; k < count; ++k) {
      const float p = expf(q->score[k] - largest);
      read_row(call, q, (b * s->rows + (begin + k) % s->rows) * width, s->rank);
      add_row(q->sum, q->row, p, s->rank);
      q->total += p;
    }
    q->largest = largest;
  }
}

/* Writes the values of head h: the weight's rows for values times the sum of cached rows, and zeros after them. */
static void expand(const tws_host_call *call, const latent_cache *s, int64_t token, int64_t h, const latent_query *q) {
  const int64_t head = s->nope + s->rope, to = (token * s->heads + h) * head, each = s->nope + s->value;
  const int some = q->total != 0; /* a NaN is not hidden */
  const float share_of = some ? 1 / q->total : 0;
  for (int64_t j = 0; j < head; ++j) {
    vf sum = v_zero();
    if (j < s->value && some)
      FOR_TYPE(call->dtype[1], T,
               EACH_VECTOR(c, n, 0, s->rank,
                           sum += v_get(T, call->operand[1], (h * each + s->nope + j) * s->rank + c, n) *
                                  v_load_part(q->sum + c, n)));
    const vf y = v_set(v_sum(sum) * share_of);
    FOR_TYPE(call->dtype[5], T, v_put(T, call->operand[5], to + j, y, 1));
  }
}

/* Sequences of one head follow one another, so that they share the head's part of the weight in the caches. */
static void attention_task(void *arg, int thread, int threads) {
  const cache_job *job = arg;
  const tws_host_call *call = job->call;
  const latent_cache *s = &job->shape;
  const host_range r = share(s->heads * s->batch * s->seq, 1, thread, threads);
  latent_query q;
  for (int code = 0; code < 256 && call->dtype[2] == TWS_E4M3; ++code) q.meaning[code] = tws_from_e4m3((uint8_t)code);
  for (int64_t i = r.begin; i < r.end; ++i) {
    const int64_t token = i % (s->batch * s->seq), h = i / (s->batch * s->seq), b = token / s->seq, t = token % s->seq;
    q.total = 0;
    if (t < tokens_of(s, b)) {
      absorb(call, s, token, h, s->starts[b] + t, &q);
      attend(call, s, b, s->starts[b] + t, &q);
    }
    expand(call, s, token, h, &q);
  }
}

HOST_KERNEL(latent_attention) {
  const int64_t *d = call->work->d;
  cache_job job = {.call = call,
                   .shape = {.batch = d[0],
                             .seq = d[1],
                             .heads = d[2],
                             .nope = d[3],
                             .rope = d[4],
                             .value = d[5],
                             .rank = d[6],
                             .rows = d[7],
                             .starts = call->operand[3],
                             .lengths = call->operand[4],
                             .gain = (float)call->work->f[4]}};
  TWS_TRY(check(d[6], d[4], err));
  if (d[5] > d[3] + d[4])
    return tws_fail(err, TWS_UNSUPPORTED, NULL, "latent attention: values of %lld elements are wider than keys",
                    (long long)d[5]);
  for (int64_t i = 0; i < d[4] / 2; ++i) job.shape.frequency[i] = tws_latent_frequency(call->work->f, d[4], i);
  run_parallel(call, tws_work_flops(call->work), attention_task, &job);
  return TWS_OK;
}
