// Attention by tiles of 32 queries and 32 keys (after Dao, "FlashAttention-2", 2023), with plain float32 arithmetic:
// any head size up to 256, all storage types, grouped queries and, where SPECIAL is true, all variants of
// models/attention.h (otherwise only causal attention over sequences of one length). The softmax is kept as a running
// maximum and sum; tiles that no query sees are skipped; backward computes the probabilities again from the log-sum-exp
// of each row. Each output element belongs to one thread, so nothing depends on timing: backward has a pass in which
// blocks own queries and one in which they own keys.
//
// A block has 256 threads: thread (row, slot) with row = thread / 8 computes the scores of its row with columns slot,
// slot + 8, ... and owns elements 4 slot + 32 j .. + 3 of the row's result, for j < CHUNKS.
#include "models/attention.h"
#include "real/cuda/kernels/common.cuh"

namespace {

enum { TILE = 32, SLOTS = 8, SCORES = TILE / SLOTS, SCORE_ROW = TILE + 1, MOST_HEAD = 256 };
enum { DIAGONALS = 2 * TILE };  // number of diagonals (distances between query and key) of a tile, rounded up

struct Shape {
  int64_t seq, kv_seq;
  int heads, kv_heads, head, group;
  float scale;
  // set if SPECIAL
  tws_attention_form form;
  const int32_t *lengths;    // [sequence] number of tokens, or null
  const int32_t *documents;  // documents of packed sequences, or null
  const float *hyper;        // hyperparameters, used by dropout
  const void *biases;        // [buckets][heads], or null
};

// Element c of head h of token t is at q[t q_row + h head + c]; keys and values are indexed in the same way.
template <typename T>
struct Heads {
  T *q, *k, *v;
  int64_t q_row, k_row, v_row;
};

// ---- masks, biases and dropout ----

struct Span {
  int64_t begin, end;
};

template <bool SPECIAL>
__device__ tws_attention_form form_of(const Shape &s) {
  tws_attention_form f = s.form;
  if (SPECIAL && s.hyper) f.step_bits = bits_of<uint32_t>(s.hyper[TWS_HYPER_STEP]);
  return f;
}
__device__ int64_t length_of(const Shape &s, int64_t batch) {
  const int64_t length = s.lengths ? s.lengths[batch] : s.kv_seq;
  return length < 0 ? 0 : length < s.kv_seq ? length : s.kv_seq;
}

// The visible range of one sequence: the first `length` keys, and of these the ones in the query's document.
struct Sequence {
  int64_t length;
  const int32_t *documents;  // or null
};
template <bool SPECIAL>
__device__ Sequence sequence_of(const Shape &s, int64_t batch) {
  if (!SPECIAL) return {s.kv_seq, nullptr};
  return {length_of(s, batch), s.documents ? s.documents + 2 * batch * s.seq : nullptr};
}

// Returns the keys that a query sees; none if it is outside the sequence, which plain causal attention never tests.
template <bool SPECIAL>
__device__ Span keys_of(const tws_attention_form &f, int64_t query, const Sequence &of) {
  Span span = {0, query + 1};
  if (SPECIAL) {
    if (query >= f.seq) return {0, 0};
    tws_attention_keys(&f, query, of.length, &span.begin, &span.end);
    tws_attention_within(of.documents, query, &span.begin, &span.end);
  }
  return span;
}

// Returns the keys that at least one query of a tile sees, rounded down to a whole tile.
template <bool SPECIAL>
__device__ Span keys_of_tile(const Shape &s, const tws_attention_form &f, int64_t first, const Sequence &of) {
  Span span = {0, first + 1};
  if (SPECIAL) {
    const int64_t last = (first + TILE < s.seq ? first + TILE : s.seq) - 1;
    span = {keys_of<true>(f, first, of).begin / TILE * TILE, keys_of<true>(f, last, of).end};
  }
  return span;
}

// Returns the index of a tile's diagonal that contains a key and a query, given by their positions in the tile.
__device__ int diagonal_of(int query, int key) {
  return key - query + TILE - 1;
}

// Loads the relative biases of a tile's diagonals; the tile's first query and key are `query` and `key`. The caller
// passes a barrier before the biases are read.
template <typename T>
__device__ void load_diagonals(const Shape &s, const tws_attention_form &f, int h, int64_t query, int64_t key,
                               float *near) {
  const int i = (int)threadIdx.x;
  if (!s.biases || i >= DIAGONALS - 1) return;
  const int64_t row = tws_attention_bucket(&f, key - query - f.offset + i - (TILE - 1));
  near[i] = to_float(static_cast<const T *>(s.biases)[row * s.heads + h]);
}

// Converts a scaled product to a score: caps it, and adds its linear bias.
template <bool SPECIAL>
__device__ float biased(const tws_attention_form &f, float slope, float score, int64_t query, int64_t key) {
  if (SPECIAL && f.cap != 0.0F) score = f.cap * tanhf(score / f.cap);
  return SPECIAL && f.alibi ? score - slope * fabsf((float)(query + f.offset - key)) : score;
}

// Returns the derivative of a score with respect to its scaled product.
template <bool SPECIAL>
__device__ float steepness(const tws_attention_form &f, float score) {
  if (!SPECIAL || f.cap == 0.0F) return 1.0F;
  const float t = tanhf(score / f.cap);
  return 1.0F - t * t;
}

// Returns 0 if a probability is dropped, else 1 / (1 - p).
template <bool SPECIAL>
__device__ float dropout_factor(const tws_attention_form &f, int64_t batch, int h, int64_t query, int64_t key) {
  if (!SPECIAL || f.dropped_below == 0) return 1.0F;
  uint32_t word[4];
  const uint64_t block = tws_attention_block(&f, batch, h, query) + (uint64_t)key / TWS_DROPOUT_GROUP;
  tws_philox_block(f.seed, tws_dropout_stream(f.step_bits), block, word);
  return word[key % TWS_DROPOUT_GROUP] < f.dropped_below ? 0.0F : f.kept;
}

// Number of floats of a row in shared memory: whole chunks of 32, and 4 more, so that rows start in different banks.
template <int CHUNKS>
__host__ __device__ constexpr int stride() {
  return CHUNKS * 32 + 4;
}

// Loads rows first .. first + 31 of a head into shared memory; elements outside the sequence or the head become 0.
template <typename T, int CHUNKS>
__device__ void load_tile(const T *from, int64_t first, int64_t seq, int64_t row, int head, float *to) {
  for (int i = (int)threadIdx.x; i < TILE * CHUNKS * 32; i += BLOCK) {
    const int r = i / (CHUNKS * 32), c = i % (CHUNKS * 32);
    to[r * stride<CHUNKS>() + c] = first + r < seq && c < head ? to_float(from[(first + r) * row + c]) : 0.0F;
  }
}

// Computes dot products of one row with the rows slot, slot + 8, ... of a tile.
template <int CHUNKS>
__device__ void dot_row(const float *row, const float *tile, int slot, float (&s)[SCORES]) {
#pragma unroll
  for (int j = 0; j < SCORES; ++j) s[j] = 0.0F;
#pragma unroll 4
  for (int d = 0; d < CHUNKS * 32; d += 4) {
    const float4 a = *reinterpret_cast<const float4 *>(row + d);
#pragma unroll
    for (int j = 0; j < SCORES; ++j) {
      const float4 b = *reinterpret_cast<const float4 *>(tile + (slot + SLOTS * j) * stride<CHUNKS>() + d);
      s[j] += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
    }
  }
}

// Adds weights[0..31] x rows of the tile to sum, for the elements that this thread owns.
template <int CHUNKS>
__device__ void add_rows(const float *weights, const float *tile, int slot, float (&sum)[CHUNKS][4]) {
#pragma unroll 4
  for (int k = 0; k < TILE; ++k) {
    const float w = weights[k];
#pragma unroll
    for (int j = 0; j < CHUNKS; ++j) {
      const float4 b = *reinterpret_cast<const float4 *>(tile + k * stride<CHUNKS>() + 32 * j + 4 * slot);
      sum[j][0] += w * b.x;
      sum[j][1] += w * b.y;
      sum[j][2] += w * b.z;
      sum[j][3] += w * b.w;
    }
  }
}

template <typename T, int CHUNKS>
__device__ void store_row(T *to, int head, int slot, const float (&x)[CHUNKS][4], float factor) {
#pragma unroll
  for (int j = 0; j < CHUNKS; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int c = 32 * j + 4 * slot + i;
      if (c < head) to[c] = from_float<T>(x[j][i] * factor);
    }
}

__device__ float slots_sum(float x) {  // returns the sum over the 8 adjacent lanes that share a row
#pragma unroll
  for (int d = SLOTS / 2; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffffU, x, d);
  return x;
}
__device__ float slots_max(float x) {
#pragma unroll
  for (int d = SLOTS / 2; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, d));
  return x;
}

// Returns the tile of this block; the tiles of the longest rows come first, so that no long block starts last.
__device__ int64_t longest_first() {
  return (int64_t)(gridDim.x - 1 - blockIdx.x) * TILE;
}

// ---- forward: blocks own queries ----

template <typename T, int CHUNKS, bool SPECIAL>
__global__ void __launch_bounds__(BLOCK) attention(Heads<const T> x_of, T *o, float *lse, Shape s) {
  BLOCK_MEMORY(shared);
  float *q = reinterpret_cast<float *>(shared), *k = q + TILE * stride<CHUNKS>(), *v = k + TILE * stride<CHUNKS>();
  float *p = v + TILE * stride<CHUNKS>(), *near = p + TILE * SCORE_ROW;
  const int row = (int)threadIdx.x / SLOTS, slot = (int)threadIdx.x % SLOTS, h = (int)blockIdx.y;
  const int64_t batch = blockIdx.z, first = longest_first(), query = first + row;
  const T *queries = x_of.q + batch * s.seq * x_of.q_row + (int64_t)h * s.head;
  const T *keys = x_of.k + batch * s.kv_seq * x_of.k_row + (int64_t)(h / s.group) * s.head;
  const T *values = x_of.v + batch * s.kv_seq * x_of.v_row + (int64_t)(h / s.group) * s.head;
  const tws_attention_form f = form_of<SPECIAL>(s);
  const Sequence of = sequence_of<SPECIAL>(s, batch);
  const Span all = keys_of_tile<SPECIAL>(s, f, first, of), seen = keys_of<SPECIAL>(f, query, of);
  const float slope = SPECIAL ? tws_attention_slope(&f, h) : 0.0F;
  load_tile<T, CHUNKS>(queries, first, s.seq, x_of.q_row, s.head, q);
  float sum[CHUNKS][4] = {}, largest = -CUDART_INF_F, total = 0.0F, x[SCORES];
  for (int64_t key = all.begin; key < all.end; key += TILE) {
    __syncthreads();
    load_tile<T, CHUNKS>(keys, key, s.kv_seq, x_of.k_row, s.head, k);
    load_tile<T, CHUNKS>(values, key, s.kv_seq, x_of.v_row, s.head, v);
    if (SPECIAL) load_diagonals<T>(s, f, h, first, key, near);
    __syncthreads();
    dot_row<CHUNKS>(q + row * stride<CHUNKS>(), k, slot, x);
    float top = largest;
#pragma unroll
    for (int j = 0; j < SCORES; ++j) {
      const int64_t at = key + slot + SLOTS * j;
      x[j] = biased<SPECIAL>(f, slope, x[j] * s.scale, query, at);
      if (SPECIAL && s.biases) x[j] += near[diagonal_of(row, slot + SLOTS * j)];
      if (at >= seen.begin && at < seen.end) top = fmaxf(top, x[j]);
    }
    top = slots_max(top);
    const float shrink = top == largest ? 1.0F : expf(largest - top);
    float part = 0.0F;
#pragma unroll
    for (int j = 0; j < SCORES; ++j) {
      const int64_t at = key + slot + SLOTS * j;
      const float e = at >= seen.begin && at < seen.end ? expf(x[j] - top) : 0.0F;
      part += e;
      p[row * SCORE_ROW + slot + SLOTS * j] = SPECIAL ? e * dropout_factor<SPECIAL>(f, batch, h, query, at) : e;
    }
    largest = top;
    total = total * shrink + slots_sum(part);
#pragma unroll
    for (int j = 0; j < CHUNKS; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[j][i] *= shrink;
    __syncwarp();  // a row's probabilities come from its own warp
    add_rows<CHUNKS>(p + row * SCORE_ROW, v, slot, sum);
  }
  if (query >= s.seq) return;
  const bool none = SPECIAL && total == 0.0F;  // the query sees no key
  store_row<T, CHUNKS>(o + ((batch * s.seq + query) * s.heads + h) * s.head, s.head, slot, sum,
                       none ? 0.0F : 1.0F / total);
  if (slot == 0) lse[(batch * s.heads + h) * s.seq + query] = none ? 0.0F : largest + logf(total);
}

// ---- backward ----

// Computes delta[batch, head, token] = dO . O; one warp computes one element.
template <typename T>
__global__ void row_products(const T *d_o, const T *o, float *delta, int64_t rows, Shape s) {
  const int64_t i = (int64_t)blockIdx.x * (BLOCK / WARP) + threadIdx.x / WARP;  // (batch, token, head)
  if (i >= rows) return;
  float sum = 0.0F;
  for (int c = (int)threadIdx.x % WARP; c < s.head; c += WARP)
    sum += to_float(d_o[i * s.head + c]) * to_float(o[i * s.head + c]);
  sum = warp_sum(sum);
  const int64_t h = i % s.heads, token = i / s.heads % s.seq, batch = i / s.heads / s.seq;
  if (threadIdx.x % WARP == 0) delta[(batch * s.heads + h) * s.seq + token] = sum;
}

// Adds to part[bucket] the sums of the score gradients `steps` of a tile: first a thread sums each diagonal, then a
// thread sums the diagonals of each bucket. All rows must have written `steps` before the call.
__device__ void add_diagonals(const tws_attention_form &f, int64_t query, int64_t key, const float *steps, float *sums,
                              float *part) {
  const int i = (int)threadIdx.x;
  __syncthreads();
  if (i < DIAGONALS - 1) {
    float sum = 0.0F;
    for (int row = 0; row < TILE; ++row) {
      const int column = i - (TILE - 1) + row;
      if (column >= 0 && column < TILE) sum += steps[row * SCORE_ROW + column];
    }
    sums[i] = sum;
  }
  __syncthreads();
  for (int64_t bucket = i; bucket < f.buckets; bucket += BLOCK) {
    float sum = part[bucket];
    for (int j = 0; j < DIAGONALS - 1; ++j)
      if (tws_attention_bucket(&f, key - query - f.offset + j - (TILE - 1)) == bucket) sum += sums[j];
    part[bucket] = sum;
  }
}

// Computes the gradient of the bias table: adds the partial sums of all tiles of queries in their order; a thread
// computes one element of the table.
template <typename G>
__global__ void add_bias_parts(const float *parts, int64_t batch, int64_t tiles, int heads, int64_t buckets, bool adds,
                               G *to) {
  const int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x, bucket = i / heads, h = i % heads;
  if (i >= buckets * heads) return;
  float sum = adds ? to_float(to[i]) : 0.0F;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t tile = 0; tile < tiles; ++tile) sum += parts[((b * heads + h) * tiles + tile) * buckets + bucket];
  to[i] = from_float<G>(sum);
}

// Blocks own queries: dQ = sum over keys of dS K, with dS = scale P (dO V - delta).
template <typename T, int CHUNKS, bool SPECIAL>
__global__ void __launch_bounds__(BLOCK)
    attention_grad_queries(const T *d_o, Heads<const T> x_of, const float *lse, const float *delta, Heads<T> d_of,
                           float *parts, Shape s) {
  BLOCK_MEMORY(shared);
  constexpr int TILE_FLOATS = TILE * stride<CHUNKS>();
  float *q = reinterpret_cast<float *>(shared), *g = q + TILE_FLOATS, *k = g + TILE_FLOATS, *v = k + TILE_FLOATS;
  float *ds = v + TILE_FLOATS, *near = ds + TILE * SCORE_ROW, *steps = near + DIAGONALS,
        *sums = steps + TILE * SCORE_ROW;
  const int row = (int)threadIdx.x / SLOTS, slot = (int)threadIdx.x % SLOTS, h = (int)blockIdx.y;
  const int64_t batch = blockIdx.z, first = longest_first(), query = first + row;
  const T *queries = x_of.q + batch * s.seq * x_of.q_row + (int64_t)h * s.head;
  const T *keys = x_of.k + batch * s.kv_seq * x_of.k_row + (int64_t)(h / s.group) * s.head;
  const T *values = x_of.v + batch * s.kv_seq * x_of.v_row + (int64_t)(h / s.group) * s.head;
  const tws_attention_form f = form_of<SPECIAL>(s);
  const int64_t out_row = (int64_t)s.heads * s.head;
  const Sequence of = sequence_of<SPECIAL>(s, batch);
  const Span all = keys_of_tile<SPECIAL>(s, f, first, of), seen = keys_of<SPECIAL>(f, query, of);
  const float slope = SPECIAL ? tws_attention_slope(&f, h) : 0.0F;
  load_tile<T, CHUNKS>(queries, first, s.seq, x_of.q_row, s.head, q);
  load_tile<T, CHUNKS>(d_o + batch * s.seq * out_row + (int64_t)h * s.head, first, s.seq, out_row, s.head, g);
  const bool inside = query < s.seq;
  const int64_t at = (batch * s.heads + h) * s.seq + query;
  const float log_sum = inside ? lse[at] : 0.0F, dot = inside ? delta[at] : 0.0F;
  float sum[CHUNKS][4] = {}, x[SCORES], d[SCORES];
  float *part = parts + ((batch * s.heads + h) * gridDim.x + first / TILE) * f.buckets;
  for (int64_t i = threadIdx.x; SPECIAL && s.biases && i < f.buckets; i += BLOCK) part[i] = 0.0F;
  for (int64_t key = all.begin; key < all.end; key += TILE) {
    __syncthreads();
    load_tile<T, CHUNKS>(keys, key, s.kv_seq, x_of.k_row, s.head, k);
    load_tile<T, CHUNKS>(values, key, s.kv_seq, x_of.v_row, s.head, v);
    if (SPECIAL) load_diagonals<T>(s, f, h, first, key, near);
    __syncthreads();
    dot_row<CHUNKS>(q + row * stride<CHUNKS>(), k, slot, x);
    dot_row<CHUNKS>(g + row * stride<CHUNKS>(), v, slot, d);
#pragma unroll
    for (int j = 0; j < SCORES; ++j) {
      const int64_t at = key + slot + SLOTS * j;
      float score = biased<SPECIAL>(f, slope, x[j] * s.scale, query, at);
      if (SPECIAL && s.biases) score += near[diagonal_of(row, slot + SLOTS * j)];
      const float dp = SPECIAL ? d[j] * dropout_factor<SPECIAL>(f, batch, h, query, at) : d[j];
      const bool counts = inside && at >= seen.begin && at < seen.end;
      const float step = counts ? expf(score - log_sum) * (dp - dot) : 0.0F;
      ds[row * SCORE_ROW + slot + SLOTS * j] = step * s.scale * steepness<SPECIAL>(f, x[j] * s.scale);
      if (SPECIAL && s.biases) steps[row * SCORE_ROW + slot + SLOTS * j] = step;
    }
    if (SPECIAL && s.biases) add_diagonals(f, first, key, steps, sums, part);
    __syncwarp();
    add_rows<CHUNKS>(ds + row * SCORE_ROW, k, slot, sum);
  }
  if (inside)
    store_row<T, CHUNKS>(d_of.q + (batch * s.seq + query) * d_of.q_row + (int64_t)h * s.head, s.head, slot, sum, 1.0F);
}

// Blocks own keys: dV = sum over queries of P dO, dK = sum of dS Q, over all query heads that share the key head.
template <typename T, int CHUNKS, bool SPECIAL>
__global__ void __launch_bounds__(BLOCK) attention_grad_keys(const T *d_o, Heads<const T> x_of, const float *lse,
                                                             const float *delta, Heads<T> d_of, Shape s) {
  BLOCK_MEMORY(shared);
  constexpr int TILE_FLOATS = TILE * stride<CHUNKS>();
  float *k = reinterpret_cast<float *>(shared), *v = k + TILE_FLOATS, *q = v + TILE_FLOATS, *g = q + TILE_FLOATS;
  float *p = g + TILE_FLOATS, *ds = p + TILE * SCORE_ROW, *log_sum = ds + TILE * SCORE_ROW, *dot = log_sum + TILE;
  Span *spans = reinterpret_cast<Span *>(dot + TILE);  // [query of the tile] keys that it sees
  float *near = reinterpret_cast<float *>(spans + TILE);
  const int row = (int)threadIdx.x / SLOTS, slot = (int)threadIdx.x % SLOTS, kv = (int)blockIdx.y;
  const int64_t batch = blockIdx.z, first = (int64_t)blockIdx.x * TILE, key = first + row;
  const int64_t key_at = batch * s.kv_seq * x_of.k_row + (int64_t)kv * s.head;
  const int64_t value_at = batch * s.kv_seq * x_of.v_row + (int64_t)kv * s.head;
  const tws_attention_form f = form_of<SPECIAL>(s);
  const int64_t out_row = (int64_t)s.heads * s.head;
  const Sequence of = sequence_of<SPECIAL>(s, batch);
  load_tile<T, CHUNKS>(x_of.k + key_at, first, s.kv_seq, x_of.k_row, s.head, k);
  load_tile<T, CHUNKS>(x_of.v + value_at, first, s.kv_seq, x_of.v_row, s.head, v);
  float dk[CHUNKS][4] = {}, dv[CHUNKS][4] = {}, x[SCORES], d[SCORES];
  for (int h = kv * s.group; h < (kv + 1) * s.group; ++h) {
    const T *queries = x_of.q + batch * s.seq * x_of.q_row + (int64_t)h * s.head;
    const float slope = SPECIAL ? tws_attention_slope(&f, h) : 0.0F;
    for (int64_t query = SPECIAL ? 0 : first; query < s.seq; query += TILE) {
      if (SPECIAL) {
        const Span all = keys_of_tile<SPECIAL>(s, f, query, of);
        if (all.end <= first || all.begin >= first + TILE) continue;
      }
      __syncthreads();
      load_tile<T, CHUNKS>(queries, query, s.seq, x_of.q_row, s.head, q);
      load_tile<T, CHUNKS>(d_o + batch * s.seq * out_row + (int64_t)h * s.head, query, s.seq, out_row, s.head, g);
      if (threadIdx.x < TILE) {
        const int64_t i = query + threadIdx.x, at = (batch * s.heads + h) * s.seq + i;
        log_sum[threadIdx.x] = i < s.seq ? lse[at] : 0.0F;
        dot[threadIdx.x] = i < s.seq ? delta[at] : 0.0F;
        if (SPECIAL) spans[threadIdx.x] = keys_of<SPECIAL>(f, i, of);
      }
      if (SPECIAL) load_diagonals<T>(s, f, h, query, first, near);
      __syncthreads();
      dot_row<CHUNKS>(k + row * stride<CHUNKS>(), q, slot, x);
      dot_row<CHUNKS>(v + row * stride<CHUNKS>(), g, slot, d);
#pragma unroll
      for (int j = 0; j < SCORES; ++j) {
        const int c = slot + SLOTS * j;
        const bool seen = SPECIAL ? key >= spans[c].begin && key < spans[c].end : query + c < s.seq && key <= query + c;
        float score = biased<SPECIAL>(f, slope, x[j] * s.scale, query + c, key);
        if (SPECIAL && s.biases) score += near[diagonal_of(c, row)];
        const float factor = SPECIAL ? dropout_factor<SPECIAL>(f, batch, h, query + c, key) : 1.0F;
        const float e = seen ? expf(score - log_sum[c]) : 0.0F;
        p[row * SCORE_ROW + c] = SPECIAL ? e * factor : e;
        ds[row * SCORE_ROW + c] =
            seen ? s.scale * e * ((SPECIAL ? d[j] * factor : d[j]) - dot[c]) * steepness<SPECIAL>(f, x[j] * s.scale)
                 : 0.0F;
      }
      __syncwarp();
      add_rows<CHUNKS>(p + row * SCORE_ROW, g, slot, dv);
      add_rows<CHUNKS>(ds + row * SCORE_ROW, q, slot, dk);
    }
  }
  if (key >= s.kv_seq) return;
  store_row<T, CHUNKS>(d_of.k + key_at + key * d_of.k_row, s.head, slot, dk, 1.0F);
  store_row<T, CHUNKS>(d_of.v + value_at + key * d_of.v_row, s.head, slot, dv, 1.0F);
}

// ---- launching ----

tws_code shape_of(const tws_cuda_call *call, Shape *s, tws_error *err) {
  const int64_t *d = call->work->d;
  if (d[3] < 1 || d[2] < 1 || d[2] % d[3])
    return tws_fail(err, TWS_INVALID, NULL, "attention: %lld query heads do not divide over %lld key-value heads",
                    (long long)d[2], (long long)d[3]);
  if (d[4] < 1 || d[4] > MOST_HEAD)
    return tws_fail(err, TWS_UNSUPPORTED, "head sizes up to 256 are possible", "attention with a head size of %lld",
                    (long long)d[4]);
  if (d[0] > 65535 || d[2] > 65535)
    return tws_fail(err, TWS_UNSUPPORTED, "use a smaller micro batch", "attention of %lld sequences with %lld heads",
                    (long long)d[0], (long long)d[2]);
  if (!(call->work->flags & (TWS_Q_KV | TWS_Q_K_V)) && d[5] > 0 && d[5] != d[1])
    return tws_fail(err, TWS_INVALID, NULL, "attention: %lld queries and %lld keys cannot be one operand",
                    (long long)d[1], (long long)d[5]);
  const tws_attention_form form = tws_attention_form_of(call->work, call->argument);
  *s = {d[1],       form.kv_seq, (int)d[2], (int)d[3], (int)d[4], (int)(d[2] / d[3]),
        form.scale, form,        nullptr,   nullptr,   nullptr,   nullptr};
  return TWS_OK;
}

// Returns the addresses and row lengths of queries, keys and values, or of their gradients, from operand `at` on; `at`
// is advanced past these operands.
template <typename T>
Heads<T> heads_at(const tws_cuda_call *call, const Shape &s, int *at) {
  void *const *o = call->operand + *at;
  const int64_t q = (int64_t)s.heads * s.head, kv = (int64_t)s.kv_heads * s.head, all = q + 2 * kv;
  T *const first = static_cast<T *>(o[0]);
  if (call->work->flags & TWS_Q_K_V) {
    *at += 3;
    return {first, static_cast<T *>(o[1]), static_cast<T *>(o[2]), q, kv, kv};
  }
  if (call->work->flags & TWS_Q_KV) {
    *at += 2;
    return {first, static_cast<T *>(o[1]), static_cast<T *>(o[1]) + kv, q, 2 * kv, 2 * kv};
  }
  *at += 1;
  return {first, first + q, first + q + kv, all, all, all};
}

// Reads the optional operands that precede the workspace, from operand `at` on; returns the workspace's index.
// bias_gradients: that operand's index, if there is one.
int extras_at(const tws_cuda_call *call, Shape *s, int at, int *bias_gradients) {
  if (call->work->flags & TWS_LENGTHS) s->lengths = in<int32_t>(call, at++);
  if (call->work->flags & TWS_DOCUMENTS) s->documents = in<int32_t>(call, at++);
  if (call->work->flags & TWS_RELATIVE) {
    s->biases = call->operand[at++];
    if (call->work->code == TWS_KERNEL_ATTENTION_GRAD) *bias_gradients = at++;
  }
  if (call->work->flags & TWS_DROPOUT) s->hyper = in<float>(call, at++);
  return at;
}

template <typename K>
tws_code take_shared(const tws_cuda_call *call, K kernel, size_t bytes, tws_error *err) {
  if (bytes > (size_t)call->shared_bytes)
    return tws_fail(err, TWS_UNSUPPORTED, "use a smaller head size or another device",
                    "attention needs %zu bytes of shared memory a block, this device has %d", bytes,
                    call->shared_bytes);
  return allow_shared(kernel, bytes, err);
}

template <typename T, int CHUNKS, bool SPECIAL>
tws_code forward(const tws_cuda_call *call, Shape s, tws_error *err) {
  int at = 0, none;
  const Heads<const T> x = heads_at<const T>(call, s, &at);
  extras_at(call, &s, at + 2, &none);
  const size_t bytes = (3 * TILE * stride<CHUNKS>() + TILE * SCORE_ROW + DIAGONALS) * sizeof(float);
  TWS_TRY(take_shared(call, attention<T, CHUNKS, SPECIAL>, bytes, err));
  const dim3 grid((unsigned)ceil_div(s.seq, TILE), (unsigned)s.heads, (unsigned)call->work->d[0]);
  LAUNCH((attention<T, CHUNKS, SPECIAL>), grid, BLOCK, bytes, call, x, out<T>(call, at), out<float>(call, at + 1), s);
  return launched(err);
}

template <typename T, int CHUNKS, bool SPECIAL>
tws_code backward(const tws_cuda_call *call, Shape s, tws_error *err) {
  int at = 1;
  const Heads<const T> x = heads_at<const T>(call, s, &at);
  const T *d_o = in<T>(call, 0), *o = in<T>(call, at);
  const float *lse = in<float>(call, at + 1);
  at += 2;
  const Heads<T> dx = heads_at<T>(call, s, &at);
  int bias_gradients = -1;
  // The plan's workspace is large enough for delta and the partial sums of bias gradients: plan sizes exceed both.
  float *delta = out<float>(call, extras_at(call, &s, at, &bias_gradients));
  const int64_t batch = call->work->d[0], rows = batch * s.seq * s.heads;
  float *parts = delta + rows;
  LAUNCH(row_products, (unsigned)ceil_div(rows, BLOCK / WARP), BLOCK, 0, call, d_o, o, delta, rows, s);
  TWS_TRY(launched(err));
  const size_t tiles = 4 * TILE * stride<CHUNKS>();
  const size_t query_bytes = (tiles + (SPECIAL ? 2 : 1) * TILE * SCORE_ROW + 2 * DIAGONALS) * sizeof(float);
  const size_t key_bytes = (tiles + 2 * TILE * SCORE_ROW + 2 * TILE + DIAGONALS) * sizeof(float) + TILE * sizeof(Span);
  TWS_TRY(take_shared(call, attention_grad_queries<T, CHUNKS, SPECIAL>, query_bytes, err));
  TWS_TRY(take_shared(call, attention_grad_keys<T, CHUNKS, SPECIAL>, key_bytes, err));
  const unsigned query_tiles = (unsigned)ceil_div(s.seq, TILE), key_tiles = (unsigned)ceil_div(s.kv_seq, TILE);
  LAUNCH((attention_grad_queries<T, CHUNKS, SPECIAL>), dim3(query_tiles, (unsigned)s.heads, (unsigned)batch), BLOCK,
         query_bytes, call, d_o, x, lse, delta, dx, parts, s);
  TWS_TRY(launched(err));
  if (SPECIAL && s.biases) {
    const int64_t elements = s.form.buckets * s.heads;
    const bool adds = call->work->flags & TWS_ACCUMULATE_PARAM;
    FOR_TYPE(call->dtype[bias_gradients], G,
             LAUNCH(add_bias_parts, (unsigned)ceil_div(elements, BLOCK), BLOCK, 0, call, parts, batch, query_tiles,
                    s.heads, s.form.buckets, adds, out<G>(call, bias_gradients)));
    TWS_TRY(launched(err));
  }
  LAUNCH((attention_grad_keys<T, CHUNKS, SPECIAL>), dim3(key_tiles, (unsigned)s.kv_heads, (unsigned)batch), BLOCK,
         key_bytes, call, d_o, x, lse, delta, dx, s);
  return launched(err);
}

template <typename T, bool SPECIAL>
tws_code choose_size(const tws_cuda_call *call, bool grad, const Shape &s, tws_error *err) {
  if (s.head <= 64) return grad ? backward<T, 2, SPECIAL>(call, s, err) : forward<T, 2, SPECIAL>(call, s, err);
  if (s.head <= 128) return grad ? backward<T, 4, SPECIAL>(call, s, err) : forward<T, 4, SPECIAL>(call, s, err);
  return grad ? backward<T, 8, SPECIAL>(call, s, err) : forward<T, 8, SPECIAL>(call, s, err);
}

template <typename T>
tws_code choose(const tws_cuda_call *call, bool grad, tws_error *err) {
  Shape s;
  TWS_TRY(shape_of(call, &s, err));
  if (call->work->d[0] == 0 || s.seq == 0) return TWS_OK;
  return s.form.plain ? choose_size<T, false>(call, grad, s, err) : choose_size<T, true>(call, grad, s, err);
}

// ---- merging attention results of two ranges of keys ----

// Merges o and lse of a second range of keys into those of the first. A warp processes one query of one head.
template <typename T>
__global__ void attention_merge(const T *o_part, const float *lse_part, T *o, float *lse, int64_t batch, int64_t seq,
                                int64_t heads, int64_t head, int64_t rows) {
  const int64_t item = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP, lane = threadIdx.x % WARP;
  if (item >= batch * rows * heads) return;
  const int64_t h = item % heads, row = item / heads % rows, b = item / heads / rows, token = seq - rows + row;
  float *whole = lse + (b * heads + h) * seq + token;
  const float x = *whole, y = lse_part[(b * heads + h) * rows + row];
  const float sum = fmaxf(x, y) + log1pf(expf(-fabsf(x - y))), kept = expf(x - sum), added = expf(y - sum);
  const T *from = o_part + item * head;
  T *to = o + ((b * seq + token) * heads + h) * head;
  for (int64_t c = lane; c < head; c += WARP) to[c] = from_float<T>(to_float(to[c]) * kept + to_float(from[c]) * added);
  __syncwarp();
  if (lane == 0) *whole = sum;
}

template <typename T>
tws_code run_merge(const tws_cuda_call *call, tws_error *err) {
  const int64_t *d = call->work->d, blocks = ceil_div(d[0] * d[4] * d[2], BLOCK / WARP);
  if (d[4] > d[1])
    return tws_fail(err, TWS_INVALID, NULL, "%lld queries of a sequence of %lld", (long long)d[4], (long long)d[1]);
  if (blocks > INT32_MAX)
    return tws_fail(err, TWS_UNSUPPORTED, "use a smaller micro batch", "%lld queries to merge",
                    (long long)(d[0] * d[4]));
  if (blocks == 0) return TWS_OK;
  LAUNCH((attention_merge<T>), (unsigned)blocks, BLOCK, 0, call, in<T>(call, 0), in<float>(call, 1), out<T>(call, 2),
         out<float>(call, 3), d[0], d[1], d[2], d[3], d[4]);
  return launched(err);
}

}  // namespace

tws_code tws_cuda_attention(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return choose<T>(call, false, err));
}
tws_code tws_cuda_attention_grad(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return choose<T>(call, true, err));
}
tws_code tws_cuda_attention_merge(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return run_merge<T>(call, err));
}
