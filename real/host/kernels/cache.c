/* The cache of keys and values: rows of new tokens are copied to it, and queries of new tokens attend to all of it.
 * Attention of a few queries is bound by reading the cache, so that each key and each value is read once for all query
 * heads that share it. */
#include "base/float8.h"
#include "models/attention.h"
#include "real/host/kernels/kernels.h"

typedef struct cache_shape {
  int64_t batch, seq, heads, kv_heads, head, rows, window;
  int64_t row, first;    /* heads of a row of qkv, and the number of the first one that is read */
  int64_t block;         /* rows of a block of a cache in blocks; others: all rows of a sequence */
  const int32_t *blocks; /* [sequence][block of its rows] which block of the cache it is; NULL: one for each sequence */
  const int32_t *starts, *lengths;
} cache_shape;

static cache_shape cache_shape_of(const tws_host_call *call, int starts) {
  const int64_t *d = call->work->d;
  const int reads = call->work->code == TWS_KERNEL_CACHED_ATTENTION, alone = (call->work->flags & TWS_Q_KV) != 0;
  const int paged = (call->work->flags & TWS_PAGED) != 0;
  return (cache_shape){.batch = d[0],
                       .seq = d[1],
                       .heads = d[2],
                       .kv_heads = d[3],
                       .head = d[4],
                       .rows = d[5],
                       .window = reads && !paged ? d[7] : 0,
                       .block = !paged ? d[5] : reads ? (int64_t)call->work->f[5] : d[6],
                       .blocks = paged ? call->operand[call->count - 1] : NULL,
                       .row = (reads || !alone ? d[2] : 0) + (reads && alone ? 0 : 2 * d[3]),
                       .first = reads || alone ? 0 : d[2],
                       .starts = call->operand[starts],
                       .lengths = call->operand[starts + 1]};
}

/* Returns the number of the row of a position of a sequence, among rows of all heads of the cache; head: a key head, or
 * kv_heads plus a value head. */
static int64_t row_of(const cache_shape *s, int64_t b, int64_t head, int64_t position) {
  const int64_t row = position % s->rows, each = (s->rows + s->block - 1) / s->block;
  const int64_t block = s->blocks ? s->blocks[b * each + row / s->block] : b;
  return (block * 2 * s->kv_heads + head) * s->block + row % s->block;
}

/* Returns the number of new tokens of a sequence. */
static int64_t tokens_of(const cache_shape *s, int64_t b) {
  return s->lengths[b] < 0 ? 0 : s->lengths[b] < s->seq ? s->lengths[b] : s->seq;
}

/* Writes a row of numbers to a cache in e4m3. */
static void write_codes(tws_dtype type, const void *from, int64_t first, int64_t count, uint8_t *to) {
  float values[LANES];
  FOR_TYPE(type, T, EACH_VECTOR(c, n, 0, count, {
             v_store(values, v_get(T, from, first + c, n));
             for (int64_t i = 0; i < n; ++i) to[c + i] = tws_to_e4m3(values[i]);
           }));
}

static void cache_write_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const cache_shape s = cache_shape_of(call, 1);
  const int64_t head_bytes = s.head * (call->dtype[0] == TWS_F32 ? 4 : 2), kv = 2 * s.kv_heads;
  const host_range r = share(s.batch * kv, 1, thread, threads);
  for (int64_t i = r.begin; i < r.end; ++i) {
    const int64_t b = i / kv, h = i % kv, count = tokens_of(&s, b), first = count > s.rows ? count - s.rows : 0;
    for (int64_t t = first; t < count; ++t) {
      const int64_t from = (b * s.seq + t) * s.row + s.first + h;
      const int64_t to = row_of(&s, b, h, s.starts[b] + t);
      if (call->dtype[3] == TWS_E4M3)
        write_codes(call->dtype[0], call->operand[0], from * s.head, s.head, (uint8_t *)call->operand[3] + to * s.head);
      else
        memcpy((char *)call->operand[3] + to * head_bytes, (const char *)call->operand[0] + from * head_bytes,
               (size_t)head_bytes);
    }
  }
}

HOST_KERNEL(cache_write) {
  const int64_t *d = call->work->d;
  (void)err;
  run_parallel(call, 8.0 * (double)(d[0] * d[1] * d[3] * d[4]), cache_write_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

/* ---- attention ---- */

enum { GROUP = 8, KEYS_AT_ONCE = 64, MOST_HEAD = 512 };

/* Up to GROUP query heads of a token that share one key head: their queries, sums of values, and running maxima and
 * sums of their softmax. */
typedef struct cached_queries {
  int64_t count, width; /* number of query heads; elements of a head, rounded up to whole vectors */
  float query[GROUP][MOST_HEAD], sum[GROUP][MOST_HEAD], score[GROUP][KEYS_AT_ONCE];
  float largest[GROUP], total[GROUP], slope[GROUP];
  int64_t first_head; /* number of the first query head */
  float meaning[256]; /* of a cache in e4m3: the number of each code */
} cached_queries;

/* Reads a row of a cache in e4m3 or another type. `out` has room for whole vectors. */
VECTOR_INLINE void read_row(tws_dtype T, const void *cache, int64_t first, int64_t head, const cached_queries *q,
                            float *out) {
  const uint8_t *codes = (const uint8_t *)cache + first;
  if (T == TWS_E4M3) {
    for (int64_t c = 0; c < q->width; ++c) out[c] = c < head ? q->meaning[codes[c]] : 0;
  } else {
    EACH_VECTOR(c, n, 0, head, v_store(out + c, v_get(T, cache, first + c, n)));
  }
}

/* Runs the statement with T as the type of a cache: as FOR_TYPE, but also for e4m3. */
#define FOR_CACHE_TYPE(type, T, ...)  \
  do {                                \
    if ((type) == TWS_E4M3) {         \
      const tws_dtype T = TWS_E4M3;   \
      __VA_ARGS__;                    \
    } else {                          \
      FOR_TYPE(type, T, __VA_ARGS__); \
    }                                 \
  } while (0)

/* Computes scores of one key for all queries. */
VECTOR_INLINE void score_key(tws_dtype T, const void *cache, int64_t first, int64_t head, cached_queries *q,
                             int64_t column) {
  float key[MOST_HEAD];
  read_row(T, cache, first, head, q, key);
  for (int64_t h = 0; h < q->count; ++h) {
    vf sum = v_zero();
    for (int64_t c = 0; c < q->width; c += LANES) sum += v_load(q->query[h] + c) * v_load(key + c);
    q->score[h][column] = v_sum(sum);
  }
}

VECTOR_INLINE void add_value(tws_dtype T, const void *cache, int64_t first, int64_t head, cached_queries *q,
                             int64_t column) {
  float value[MOST_HEAD];
  read_row(T, cache, first, head, q, value);
  for (int64_t h = 0; h < q->count; ++h) {
    const vf p = v_set(q->score[h][column]);
    for (int64_t c = 0; c < q->width; c += LANES) v_store(q->sum[h] + c, v_load(q->sum[h] + c) + p * v_load(value + c));
  }
}

/* Adds biases of a table by distance to the scores of `count` keys, the first of which is `distance` before the query.
 * */
static void add_biases(const tws_host_call *call, const cache_shape *s, const tws_attention_form *f, cached_queries *q,
                       int64_t count, int64_t distance) {
  for (int64_t k = 0; k < count; ++k) {
    const int64_t row = tws_attention_bucket(f, k - distance) * s->heads + q->first_head;
    for (int64_t h = 0; h < q->count; ++h)
      FOR_TYPE(call->dtype[5], T, q->score[h][k] += v_get(T, call->operand[5], row + h, 1)[0]);
  }
}

/* Turns the scores of `count` keys into exponentials relative to the largest score so far. `distance`: of the first of
 * these keys from the query. */
static void exponentials(cached_queries *q, int64_t count, int64_t distance) {
  for (int64_t h = 0; h < q->count; ++h) {
    float *score = q->score[h], largest = q->largest[h];
    for (int64_t k = 0; k < count; ++k) {
      score[k] -= q->slope[h] * (float)(distance - k);
      if (score[k] > largest) largest = score[k];
    }
    const float kept = q->total[h] > 0 ? expf(q->largest[h] - largest) : 0;
    q->total[h] *= kept;
    for (int64_t c = 0; c < q->width; c += LANES) v_store(q->sum[h] + c, v_load(q->sum[h] + c) * kept);
    for (int64_t k = 0; k < count; ++k) q->total[h] += score[k] = expf(score[k] - largest);
    q->largest[h] = largest;
  }
}

/* Attends with some query heads of token t of sequence b. */
static void attend(const tws_host_call *call, const cache_shape *s, const tws_attention_form *f, int64_t b, int64_t t,
                   int64_t kv_head, cached_queries *q) {
  const int64_t position = s->starts[b] + t, value_head = s->kv_heads + kv_head;
  const int64_t most = s->window > 0 && s->window < s->rows ? s->window : s->rows;
  const int64_t first = position + 1 > most ? position + 1 - most : 0;
  for (int64_t begin = first; begin <= position; begin += KEYS_AT_ONCE) {
    const int64_t count = position + 1 - begin < KEYS_AT_ONCE ? position + 1 - begin : KEYS_AT_ONCE;
    FOR_CACHE_TYPE(call->dtype[1], T,
                   for (int64_t k = 0; k < count; ++k)
                       score_key(T, call->operand[1], row_of(s, b, kv_head, begin + k) * s->head, s->head, q, k));
    for (int64_t h = 0; f->cap != 0 && h < q->count; ++h)
      for (int64_t k = 0; k < count; ++k) q->score[h][k] = f->cap * tanhf(q->score[h][k] / f->cap);
    if (f->buckets > 0) add_biases(call, s, f, q, count, position - begin);
    exponentials(q, count, position - begin);
    FOR_CACHE_TYPE(call->dtype[1], T,
                   for (int64_t k = 0; k < count; ++k)
                       add_value(T, call->operand[1], row_of(s, b, value_head, begin + k) * s->head, s->head, q, k));
  }
}

static tws_attention_form form_of(const tws_host_call *call) {
  const double *f = call->work->f;
  return (tws_attention_form){.alibi = (call->work->flags & TWS_ALIBI) != 0,
                              .scale = f[0] != 0 ? (float)f[0] : 1.0F / sqrtf((float)call->work->d[4]),
                              .cap = (float)f[1],
                              .slope = f[2] != 0 ? (float)f[2] : 1,
                              .buckets = call->work->flags & TWS_RELATIVE ? (int64_t)f[3] : 0,
                              .max_distance = (int64_t)f[4],
                              .first_head = (int64_t)call->argument[0],
                              .heads = call->argument[1] > 0 ? (int64_t)call->argument[1] : call->work->d[2]};
}

static void cached_attention_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const cache_shape s = cache_shape_of(call, 2);
  const tws_attention_form form = form_of(call);
  const int64_t group = s.heads / s.kv_heads, row = s.row * s.head;
  const host_range r = share(s.batch * s.kv_heads, 1, thread, threads);
  cached_queries q = {.width = (s.head + LANES - 1) / LANES * LANES};
  for (int code = 0; code < 256 && call->dtype[1] == TWS_E4M3; ++code) q.meaning[code] = tws_from_e4m3((uint8_t)code);
  for (int64_t i = r.begin; i < r.end; ++i)
    for (int64_t t = 0; t < s.seq; ++t)
      for (int64_t g = 0; g < group; g += GROUP) {
        const int64_t b = i / s.kv_heads, h = i % s.kv_heads * group + g;
        const int64_t in = (b * s.seq + t) * row + h * s.head, out = ((b * s.seq + t) * s.heads + h) * s.head;
        q.count = group - g < GROUP ? group - g : GROUP;
        q.first_head = h;
        for (int64_t k = 0; k < q.count; ++k) {
          memset(q.sum[k], 0, sizeof q.sum[k]);
          memset(q.query[k], 0, sizeof q.query[k]);
          q.largest[k] = -INFINITY;
          q.total[k] = 0;
          q.slope[k] = tws_attention_slope(&form, h + k);
          FOR_TYPE(
              call->dtype[0], T,
              EACH_VECTOR(c, n, 0, s.head,
                          v_store(q.query[k] + c, v_get(T, call->operand[0], in + k * s.head + c, n) * form.scale)));
        }
        if (t < tokens_of(&s, b)) attend(call, &s, &form, b, t, i % s.kv_heads, &q);
        for (int64_t k = 0; k < q.count; ++k) {
          const float share_of = q.total[k] > 0 ? 1 / q.total[k] : 0;
          FOR_TYPE(call->dtype[4], T,
                   EACH_VECTOR(c, n, 0, s.head,
                               v_put(T, call->operand[4], out + k * s.head + c, v_load(q.sum[k] + c) * share_of, n)));
        }
      }
}
HOST_KERNEL(cached_attention) {
  const int64_t *d = call->work->d;
  if (d[4] > MOST_HEAD)
    return tws_fail(err, TWS_UNSUPPORTED, "generate with --no-cache",
                    "cached attention: heads of %lld elements; at most %d", (long long)d[4], MOST_HEAD);
  run_parallel(call, 4.0 * tws_work_bytes(call->work), cached_attention_task, (void *)(uintptr_t)call);
  return TWS_OK;
}
