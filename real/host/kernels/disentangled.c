/* Disentangled attention: models/disentangled.h. A thread has a head; products are the library's, over whole sequences
 * of keys and tiles of 64 queries. What a query finds at each row of positions, and what a row finds at each key, are
 * products of their own, from which the scores of a tile take what its distances name; backward puts back there. */
#include "models/disentangled.h"

#include "real/host/internal.h"
#include "real/host/kernels/kernels.h"
#include "real/host/kernels/philox.h"

enum { TILE = TWS_HOST_ATTENTION_TILE };

typedef struct job {
  const tws_host_call *call;
  tws_disentangled s;
  tws_attention_form form;
  int64_t first, reach; /* rows of positions that are read */
  int gradient;
  const int32_t *lengths; /* NULL: whole sequences */
  float *workspace;
  size_t thread_floats;
} job;

/* One head of one sequence, in float32; p: of the rows that are read; at: scores of a tile by row, of rows by key. */
typedef struct scratch {
  float *q, *k, *v, *pq, *pk, *by_query, *by_key, *scores, *o, *d_o, *dq, *dk, *dv, *dpq, *dpk, *d_by_query, *d_by_key,
      *d_scores, *dot;
  int32_t *row; /* by distance, from 1 - seq on, less `first` */
} scratch;

static scratch scratch_of(const job *j, int thread) {
  const int64_t seq = j->s.seq, all = seq * j->s.head, rows = j->reach * j->s.head;
  float *at = j->workspace + (size_t)thread * j->thread_floats;
  scratch w = {.q = at};
  w.k = w.q + all;
  w.v = w.k + all;
  w.o = w.v + all;
  w.pq = w.o + all;
  w.pk = w.pq + rows;
  w.by_query = w.pk + rows;
  w.by_key = w.by_query + TILE * j->reach;
  w.scores = w.by_key + seq * j->reach;
  w.row = (int32_t *)(w.scores + TILE * seq);
  if (!j->gradient) return w;
  w.d_o = w.scores + TILE * seq + 2 * seq;
  w.dq = w.d_o + all;
  w.dk = w.dq + all;
  w.dv = w.dk + all;
  w.dpq = w.dv + all;
  w.dpk = w.dpq + rows;
  w.d_by_query = w.dpk + rows;
  w.d_by_key = w.d_by_query + TILE * j->reach;
  w.d_scores = w.d_by_key + seq * j->reach;
  w.dot = w.d_scores + TILE * seq;
  return w;
}

/* rows x head elements, `stride` apart. */
static void load(tws_dtype type, const void *from, int64_t first, int64_t stride, int64_t rows, int64_t head,
                 float *to) {
  FOR_TYPE(type, T,
           for (int64_t i = 0; i < rows; ++i) EACH_VECTOR(
               c, n, 0, head, v_store_part(to + i * head + c, v_get(T, from, first + i * stride + c, n), n)));
}
static void store(tws_dtype type, void *to, int64_t first, int64_t stride, int64_t rows, int64_t head,
                  const float *from) {
  FOR_TYPE(type, T,
           for (int64_t i = 0; i < rows; ++i) EACH_VECTOR(
               c, n, 0, head, v_put(T, to, first + i * stride + c, v_load_part(from + i * head + c, n), n)));
}

/* Index of the first element of part `part` of head h in a row of positions. */
static int64_t position_at(const job *j, int64_t row, int64_t part, int64_t h) {
  return ((row * j->s.parts + part) * j->s.heads + h) * j->s.head;
}

static void load_positions(const job *j, const scratch *w, int operand, int64_t h) {
  const tws_disentangled *s = &j->s;
  const int64_t stride = s->parts * s->heads * s->head;
  const tws_dtype type = j->call->dtype[operand];
  const void *p = j->call->operand[operand];
  if (s->query_part >= 0) load(type, p, position_at(j, j->first, s->query_part, h), stride, j->reach, s->head, w->pq);
  if (s->key_part >= 0) load(type, p, position_at(j, j->first, s->key_part, h), stride, j->reach, s->head, w->pk);
  for (int64_t d = 1 - s->seq; d < s->seq; ++d)
    w->row[d + s->seq - 1] = (int32_t)(tws_disentangled_row(s->positions, s->max_distance, d) - j->first);
}

static void load_tokens(const job *j, const scratch *w, int operand, int64_t b, int64_t h) {
  const tws_disentangled *s = &j->s;
  const int64_t all = s->heads * s->head, first = b * s->seq * 3 * all + h * s->head;
  const tws_dtype type = j->call->dtype[operand];
  const void *qkv = j->call->operand[operand];
  load(type, qkv, first, 3 * all, s->seq, s->head, w->q);
  load(type, qkv, first + all, 3 * all, s->seq, s->head, w->k);
  load(type, qkv, first + 2 * all, 3 * all, s->seq, s->head, w->v);
  if (s->query_part >= 0)
    tws_host_sgemm(0, 1, s->seq, j->reach, s->head, w->k, s->head, w->pq, s->head, 0, w->by_key, j->reach);
}

/* Scores of queries [query, query + rows) with the first `keys` keys. */
static void score(const job *j, const scratch *w, int64_t query, int64_t rows, int64_t keys) {
  const tws_disentangled *s = &j->s;
  const float *q = w->q + query * s->head;
  tws_host_sgemm(0, 1, rows, keys, s->head, q, s->head, w->k, s->head, 0, w->scores, s->seq);
  if (s->key_part >= 0)
    tws_host_sgemm(0, 1, rows, j->reach, s->head, q, s->head, w->pk, s->head, 0, w->by_query, j->reach);
  for (int64_t i = 0; i < rows; ++i) {
    float *to = w->scores + i * s->seq;
    const float *by_query = w->by_query + i * j->reach;
    const int32_t *row = w->row + query + i + s->seq - 1;
    for (int64_t k = 0; k < keys; ++k) {
      float x = to[k];
      if (s->key_part >= 0) x += by_query[row[-k]];
      if (s->query_part >= 0) x += w->by_key[k * j->reach + row[-k]];
      to[k] = x * s->scale;
    }
  }
}

/* Factor of dropout for the probabilities of a query: 0, or 1 / (1 - p). */
static float kept(const job *j, int64_t b, int64_t h, int64_t i, int64_t key, uint32_t words[PHILOX_WORDS]) {
  if (!j->form.dropped_below) return 1;
  if (key % PHILOX_WORDS == 0)
    v_philox(j->form.seed, tws_dropout_stream(j->form.step_bits),
             tws_attention_block(&j->form, b, h, i) + (uint64_t)key / TWS_DROPOUT_GROUP, words);
  return words[key % PHILOX_WORDS] < j->form.dropped_below ? 0 : j->form.kept;
}

static int64_t keys_of(const job *j, int64_t b) {
  const int64_t length = j->lengths ? j->lengths[b] : j->s.seq;
  return length < 0 ? 0 : length < j->s.seq ? length : j->s.seq;
}

/* Softmax in place; returns the logarithm of the sum of exponentials. */
static float soften(const job *j, float *x, int64_t keys, int64_t b, int64_t h, int64_t i) {
  float largest = -INFINITY, sum = 0;
  uint32_t words[PHILOX_WORDS];
  for (int64_t k = 0; k < keys; ++k) largest = x[k] <= largest ? largest : x[k]; /* and NaN */
  for (int64_t k = 0; k < keys; k += LANES) {
    const int n = keys - k < LANES ? (int)(keys - k) : LANES;
    v_store_part(x + k, v_exp(v_load_part(x + k, n) - largest), n);
  }
  for (int64_t k = 0; k < keys; ++k) sum += x[k];
  for (int64_t k = 0; k < keys; ++k) x[k] *= kept(j, b, h, i, k, words) / sum;
  return largest + logf(sum);
}

static void forward_head(const job *j, const scratch *w, int64_t b, int64_t h) {
  const tws_disentangled *s = &j->s;
  const int64_t keys = keys_of(j, b);
  float *lse = (float *)j->call->operand[3] + (b * s->heads + h) * s->seq;
  load_tokens(j, w, 0, b, h);
  memset(w->o, 0, (size_t)(s->seq * s->head) * sizeof *w->o);
  memset(lse, 0, (size_t)s->seq * sizeof *lse);
  for (int64_t query = 0; query < s->seq && keys > 0; query += TILE) {
    const int64_t rows = s->seq - query < TILE ? s->seq - query : TILE;
    score(j, w, query, rows, keys);
    for (int64_t i = 0; i < rows; ++i) lse[query + i] = soften(j, w->scores + i * s->seq, keys, b, h, query + i);
    tws_host_sgemm(0, 0, rows, s->head, keys, w->scores, s->seq, w->v, s->head, 0, w->o + query * s->head, s->head);
  }
  store(j->call->dtype[2], j->call->operand[2], (b * s->seq * s->heads + h) * s->head, s->heads * s->head, s->seq,
        s->head, w->o);
}

/* Backward of the softmax: d_scores, the gradients of the probabilities, become those of the products; scores become
 * the probabilities after dropout. Gradients are also summed by rows of positions. */
static void harden(const job *j, const scratch *w, int64_t b, int64_t h, int64_t query, int64_t rows, int64_t keys) {
  const tws_disentangled *s = &j->s;
  const float *lse = (const float *)j->call->operand[4] + (b * s->heads + h) * s->seq + query;
  memset(w->d_by_query, 0, (size_t)(rows * j->reach) * sizeof *w->d_by_query);
  for (int64_t i = 0; i < rows; ++i) {
    float *p = w->scores + i * s->seq, *d = w->d_scores + i * s->seq, *by_query = w->d_by_query + i * j->reach;
    const int32_t *row = w->row + query + i + s->seq - 1;
    uint32_t words[PHILOX_WORDS];
    for (int64_t k = 0; k < keys; k += LANES) {
      const int n = keys - k < LANES ? (int)(keys - k) : LANES;
      v_store_part(p + k, v_exp(v_load_part(p + k, n) - lse[i]), n);
    }
    for (int64_t k = 0; k < keys; ++k) {
      const float factor = kept(j, b, h, query + i, k, words);
      d[k] = p[k] * (d[k] * factor - w->dot[query + i]) * s->scale;
      p[k] *= factor;
      by_query[row[-k]] += d[k];
      w->d_by_key[k * j->reach + row[-k]] += d[k];
    }
  }
}

static void backward_tile(const job *j, const scratch *w, int64_t b, int64_t h, int64_t query, int64_t keys) {
  const tws_disentangled *s = &j->s;
  const int64_t rows = s->seq - query < TILE ? s->seq - query : TILE, head = s->head, at = query * head;
  score(j, w, query, rows, keys);
  tws_host_sgemm(0, 1, rows, keys, head, w->d_o + at, head, w->v, head, 0, w->d_scores, s->seq);
  harden(j, w, b, h, query, rows, keys);
  tws_host_sgemm(1, 0, keys, head, rows, w->scores, s->seq, w->d_o + at, head, 1, w->dv, head);
  tws_host_sgemm(1, 0, keys, head, rows, w->d_scores, s->seq, w->q + at, head, 1, w->dk, head);
  tws_host_sgemm(0, 0, rows, head, keys, w->d_scores, s->seq, w->k, head, 0, w->dq + at, head);
  if (s->key_part < 0) return;
  tws_host_sgemm(0, 0, rows, head, j->reach, w->d_by_query, j->reach, w->pk, head, 1, w->dq + at, head);
  tws_host_sgemm(1, 0, j->reach, head, rows, w->d_by_query, j->reach, w->q + at, head, 1, w->dpk, head);
}

static void backward_sequence(const job *j, const scratch *w, int64_t b, int64_t h) {
  const tws_disentangled *s = &j->s;
  const int64_t keys = keys_of(j, b), all = s->heads * s->head, size = s->seq * s->head,
                out = (b * s->seq * s->heads + h) * s->head, first = b * s->seq * 3 * all + h * s->head;
  load_tokens(j, w, 1, b, h);
  load(j->call->dtype[0], j->call->operand[0], out, all, s->seq, s->head, w->d_o);
  load(j->call->dtype[3], j->call->operand[3], out, all, s->seq, s->head, w->o);
  for (int64_t i = 0; i < s->seq; ++i) {
    vf sum = v_zero();
    EACH_VECTOR(c, n, 0, s->head,
                sum += v_load_part(w->o + i * s->head + c, n) * v_load_part(w->d_o + i * s->head + c, n));
    w->dot[i] = v_sum(sum);
  }
  memset(w->dq, 0, (size_t)(3 * size) * sizeof *w->dq); /* and dk, dv */
  memset(w->d_by_key, 0, (size_t)(s->seq * j->reach) * sizeof *w->d_by_key);
  for (int64_t query = 0; query < s->seq && keys > 0; query += TILE) backward_tile(j, w, b, h, query, keys);
  if (s->query_part >= 0 && keys > 0) {
    tws_host_sgemm(0, 0, keys, s->head, j->reach, w->d_by_key, j->reach, w->pq, s->head, 1, w->dk, s->head);
    tws_host_sgemm(1, 0, j->reach, s->head, keys, w->d_by_key, j->reach, w->k, s->head, 1, w->dpq, s->head);
  }
  const float *const from[] = {w->dq, w->dk, w->dv};
  for (int i = 0; i < 3; ++i)
    store(j->call->dtype[5], j->call->operand[5], first + i * all, 3 * all, s->seq, s->head, from[i]);
}

static void backward_head(const job *j, const scratch *w, int64_t h) {
  const tws_disentangled *s = &j->s;
  const int64_t size = j->reach * s->head, stride = s->parts * s->heads * s->head;
  const tws_dtype type = j->call->dtype[6];
  void *dp = j->call->operand[6];
  memset(w->dpq, 0, (size_t)(2 * size) * sizeof *w->dpq); /* and dpk */
  for (int64_t b = 0; b < s->batch; ++b) backward_sequence(j, w, b, h);
  for (int64_t part = 0; part < s->parts; ++part) {
    const float *from = part == s->query_part ? w->dpq : part == s->key_part ? w->dpk : NULL;
    for (int64_t r = 0; r < s->positions; ++r)
      if (!from || r < j->first || r >= j->first + j->reach)
        FOR_TYPE(type, T, EACH_VECTOR(c, n, 0, s->head, v_put(T, dp, position_at(j, r, part, h) + c, v_zero(), n)));
    if (from) store(type, dp, position_at(j, j->first, part, h), stride, j->reach, s->head, from);
  }
}

/* Gradients of positions are sums over sequences, in order: a thread has all of a head's. */
static void task(void *arg, int thread, int threads) {
  const job *j = arg;
  const int64_t items = j->gradient ? j->s.heads : j->s.batch * j->s.heads;
  const int used = items < threads ? (int)items : threads;
  if (thread >= used) return;
  const host_range r = share(items, 1, thread, used);
  const scratch w = scratch_of(j, thread);
  for (int64_t i = r.begin; i < r.end; ++i) {
    const int64_t h = j->gradient ? i : i % j->s.heads;
    load_positions(j, &w, j->gradient ? 2 : 1, h);
    if (j->gradient)
      backward_head(j, &w, h);
    else
      forward_head(j, &w, i / j->s.heads, h);
  }
}

static tws_code attend(const tws_host_call *call, int gradient, tws_error *err) {
  job j = {.call = call, .s = tws_disentangled_of(call->work), .gradient = gradient};
  int at = gradient ? 7 : 4;
  for (int i = 0; i < 5; ++i)
    if (call->work->d[i] < 1)
      return tws_fail(err, TWS_INVALID, NULL, "size %d is %lld", i, (long long)call->work->d[i]);
  j.form = tws_disentangled_form(call->work, call->argument);
  j.reach = tws_disentangled_reach(&j.s, &j.first);
  if (call->work->flags & TWS_LENGTHS) j.lengths = call->operand[at++];
  if (call->work->flags & TWS_DROPOUT) {
    uint32_t bits;
    memcpy(&bits, (const float *)call->operand[at++] + TWS_HYPER_STEP, sizeof bits);
    j.form.step_bits = bits;
  }
  j.workspace = call->operand[at];
  j.thread_floats = tws_host_disentangled_thread_floats(call->work);
  run_parallel(call, tws_work_flops(call->work), task, &j);
  return TWS_OK;
}
HOST_KERNEL(disentangled) {
  return attend(call, 0, err);
}
HOST_KERNEL(disentangled_grad) {
  return attend(call, 1, err);
}
