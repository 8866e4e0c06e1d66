// Token and position embeddings. The gradient of the table adds the tokens of each row in their order: lists of the
// tokens of each row are made first, with integer counters only, then every row is summed by one block. Few distinct
// tokens make long lists: those are made by segments of the tokens and summed in parts.
#include "real/cuda/kernels/common.cuh"

extern "C" {
#include "models/zigzag.h"
}

namespace {

// x[token] = wte[id - first] (+ wpe of its position). The table may be a rank's shard of the vocabulary: an id outside
// of it adds nothing. keep: the result is added to x.
template <typename T, int V>
__global__ void embedding(const int32_t *ids, const T *wte, const T *wpe, T *x, int64_t tokens, int64_t width,
                          int64_t vocabulary, int64_t seq, int64_t first, int64_t gap, bool keep) {
  const int64_t packs = width / V, all = tokens * packs, step = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += step) {
    const int64_t token = i / packs, column = i % packs * V, id = ids[token] - first;
    float v[V], p[V];
    if (id >= 0 && id < vocabulary) {
      load<V>(wte + id * width + column, v);
    } else {
#pragma unroll
      for (int j = 0; j < V; ++j) v[j] = 0.0F;
    }
    if (wpe) {
      load<V>(wpe + tws_zigzag_position(seq, gap, token % seq) * width + column, p);
#pragma unroll
      for (int j = 0; j < V; ++j) v[j] += p[j];
    }
    if (keep) {
      load<V>(x + token * width + column, p);
#pragma unroll
      for (int j = 0; j < V; ++j) v[j] += p[j];
    }
    store<V>(x + token * width + column, v);
  }
}

template <typename T>
tws_code run_embedding(const tws_cuda_call *call, tws_error *err) {
  constexpr int N = Width<T>::value;
  const int64_t *d = call->work->d, first = (int64_t)call->argument[0], gap = (int64_t)call->argument[1];
  const bool positions = d[3] != 0, keep = (call->work->flags & TWS_ACCUMULATE) != 0;
  const T *wte = in<T>(call, 1), *wpe = positions ? in<T>(call, 2) : nullptr;
  T *x = out<T>(call, positions ? 3 : 2);
  if (d[0] == 0 || d[1] == 0) return TWS_OK;
  const bool aligned = packable<N>(wte, d[1]) && packable<N>(wpe, d[1]) && packable<N>(x, d[1]);
  const unsigned grid = grid_for(call, d[0] * d[1] / (aligned ? N : 1), BLOCK);
  if (aligned)
    LAUNCH((embedding<T, N>), grid, BLOCK, 0, call, in<int32_t>(call, 0), wte, wpe, x, d[0], d[1], d[2], d[4], first,
           gap, keep);
  else
    LAUNCH((embedding<T, 1>), grid, BLOCK, 0, call, in<int32_t>(call, 0), wte, wpe, x, d[0], d[1], d[2], d[4], first,
           gap, keep);
  return launched(err);
}

// ---- lists of the tokens of each row ----

enum { GROUP = BLOCK / 2, PENDING = 1024 };      // GROUP: rows of a block; PENDING: matches that are buffered before
                                                 // they are distributed to the lists
enum { SEGMENT = 1024, MOST_COUNTS = 1 << 19 };  // SEGMENT: minimum number of tokens in a segment; MOST_COUNTS: maximum
                                                 // of segments x rows
enum { SHORTEST = 256 };                         // minimum number of tokens in a part of a long list; each part is
                                                 // summed separately
enum { CURSORS = 4, PACKED = 8 };                // CURSORS: words of scratch before the lists; PACKED: alignment of the
                                                 // sums in words

// Scratch memory: list[tokens]; per row: the beginning of its list, its length, the first of its parts; per segment of
// the tokens and row: the number of its tokens, later the position where they are written; per part: its row; sums of
// parts. The positions of a group's lists and parts depend on timing; their contents do not.
struct RowLists {
  int32_t *cursor, *first, *count, *part, *counts, *list, *part_row;  // cursor: of the list, of parts
  float *sums;                                                        // [most_parts][width]
  int64_t tokens, vocabulary, segment;                                // segment: number of tokens of a segment
  int segments, part_tokens, most_parts;
};

// A block's work: GROUP rows, the first of which is id `low`, and one segment of the tokens.
struct Share {
  int64_t base, low, high, begin, end;
  int rows;
};
__device__ Share share_of(const RowLists &l, int64_t first_id) {
  const int64_t base = (int64_t)blockIdx.x * GROUP, left = l.vocabulary - base;
  const int rows = left < (int64_t)GROUP ? (int)left : (int)GROUP;
  const int64_t begin = blockIdx.y * l.segment, end = begin + l.segment < l.tokens ? begin + l.segment : l.tokens;
  return {base, first_id + base, first_id + base + rows, begin, end, rows};
}

__global__ void __launch_bounds__(BLOCK) count_rows(const int32_t *ids, int64_t first_id, RowLists l) {
  __shared__ int32_t counts[GROUP];
  const Share s = share_of(l, first_id);
  const int row = (int)threadIdx.x;
  if (row < GROUP) counts[row] = 0;
  __syncthreads();
  for (int64_t t = s.begin + row; t < s.end; t += BLOCK)
    if (ids[t] >= s.low && ids[t] < s.high) atomicAdd(&counts[ids[t] - s.low], 1);
  __syncthreads();
  if (row < s.rows) l.counts[blockIdx.y * l.vocabulary + s.base + row] = counts[row];
}

// Lays out the lists of tokens: one thread per row reserves room for its list and its parts, and turns its counts into
// positions.
__global__ void __launch_bounds__(GROUP) place_rows(RowLists l) {
  __shared__ int32_t next[GROUP];
  const int64_t row = (int64_t)blockIdx.x * GROUP + threadIdx.x;
  int total = 0;
  for (int i = 0; i < l.segments && row < l.vocabulary; ++i) total += l.counts[i * l.vocabulary + row];
  next[threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.x == 0) {
    int all = 0;
    for (int i = 0; i < GROUP; ++i) {
      const int mine = next[i];
      next[i] = all;
      all += mine;
    }
    const int begin = all ? atomicAdd(l.cursor, all) : 0;
    for (int i = 0; i < GROUP; ++i) next[i] += begin;
  }
  __syncthreads();
  if (row >= l.vocabulary) return;
  int at = l.first[row] = next[threadIdx.x];
  l.count[row] = total;
  for (int i = 0; i < l.segments; ++i) {
    const int mine = l.counts[i * l.vocabulary + row];
    l.counts[i * l.vocabulary + row] = at;
    at += mine;
  }
  if (total <= l.part_tokens) return;
  const int parts = (total + l.part_tokens - 1) / l.part_tokens, part = atomicAdd(l.cursor + 1, parts);
  l.part[row] = part;
  for (int i = 0; i < parts; ++i) l.part_row[part + i] = (int32_t)row;
}

// Matches of a block's rows among BLOCK consecutive tokens, appended to `pending` in order; all threads call it.
__device__ int append_matches(const int32_t *ids, int64_t token, const Share &s, int32_t *pending, int32_t *rows,
                              int held, int *warp_counts) {
  const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
  const bool match = token < s.end && ids[token] >= s.low && ids[token] < s.high;
  const unsigned votes = __ballot_sync(0xffffffffU, match);
  if (lane == 0) warp_counts[warp] = __popc(votes);
  __syncthreads();
  int at = held, total = 0;
  for (int w = 0; w < BLOCK / WARP; ++w) {
    if (w < warp) at += warp_counts[w];
    total += warp_counts[w];
  }
  if (match) {
    at += __popc(votes & ((1U << lane) - 1U));
    pending[at] = (int32_t)token;
    rows[at] = (int32_t)(ids[token] - s.low);
  }
  __syncthreads();
  return held + total;
}

__global__ void __launch_bounds__(BLOCK) list_rows(const int32_t *ids, int64_t first_id, RowLists l) {
  __shared__ int32_t pending[PENDING + BLOCK], rows[PENDING + BLOCK];
  __shared__ int warp_counts[BLOCK / WARP];
  const Share s = share_of(l, first_id);
  const int row = (int)threadIdx.x;
  int at = row < s.rows ? l.counts[blockIdx.y * l.vocabulary + s.base + row] : 0, held = 0;
  for (int64_t t = s.begin; t < s.end; t += BLOCK) {
    held = append_matches(ids, t + row, s, pending, rows, held, warp_counts);
    if (held < PENDING && t + BLOCK < s.end) continue;  // the same for all threads
    for (int i = 0; i < held && row < s.rows; ++i)      // each row copies its matches in their order
      if (rows[i] == row) l.list[at++] = pending[i];
    held = 0;
    __syncthreads();
  }
}

// ---- sums ----

// Rows, and sums of parts, that a thread has in flight.
enum { DEEP = 4, PARTS_DEEP = 2, WARPS = BLOCK / WARP };

// The sum of count vectors at from + number(i) width, of the columns of this block's lanes: warp w takes w, w + 8, ...;
// scratch gets the warps' sums.
template <int AT_ONCE, typename T, int V, typename Number>
__device__ void sum_vectors(const T *from, int64_t width, int64_t column, int count, Number number,
                            float (&scratch)[WARPS][WARP * V]) {
  const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
  float sum[V] = {};
  if (column < width) {
    for (int i = warp; i < count; i += AT_ONCE * WARPS)
      at_once<AT_ONCE>(
          i, count, (int)WARPS,
          [=](int k) { return *reinterpret_cast<const Pack<T, V> *>(from + (int64_t)number(k) * width + column); },
          [&](int, const Pack<T, V> &v) { add_to<T, V>(sum, v); });
  }
#pragma unroll
  for (int j = 0; j < V; ++j) scratch[warp][lane * V + j] = sum[j];
  __syncthreads();
}

// Sums one part of a long list. A block has a part and 32 V columns.
template <typename T, int V>
__global__ void __launch_bounds__(BLOCK) sum_list_parts(const T *dx, RowLists l, int64_t width) {
  __shared__ float scratch[WARPS][WARP * V];
  const int part = (int)blockIdx.x;
  if (part >= l.cursor[1]) return;
  const int row = l.part_row[part], begin = (part - l.part[row]) * l.part_tokens;
  const int left = l.count[row] - begin, count = left < l.part_tokens ? left : l.part_tokens;
  const int32_t *list = l.list + l.first[row] + begin;
  const int64_t first = (int64_t)blockIdx.y * WARP * V;
  sum_vectors<DEEP, T, V>(
      dx, width, first + threadIdx.x % WARP * V, count, [=](int k) { return list[k]; }, scratch);
  for (int i = (int)threadIdx.x; i < WARP * V && first + i < width; i += BLOCK) {
    float all = 0.0F;
    for (int w = 0; w < WARPS; ++w) all += scratch[w][i];
    l.sums[part * width + first + i] = all;
  }
}

// dwte[row] (+)= sum of dx over the row's tokens, or of the sums of their parts; the warps' sums are added in their
// order. A block has a row and 32 V columns.
template <typename T, typename G, int V>
__global__ void __launch_bounds__(BLOCK) sum_rows(const T *dx, G *dwte, RowLists l, int64_t width, bool accumulate) {
  __shared__ float scratch[WARPS][WARP * V];
  const int64_t row = blockIdx.x, first = (int64_t)blockIdx.y * WARP * V;
  const int64_t column = first + threadIdx.x % WARP * V;
  const int count = l.count[row];
  if (count == 0 && accumulate) return;
  if (count > l.part_tokens) {
    const int parts = (count + l.part_tokens - 1) / l.part_tokens;
    const float *sums = l.sums + l.part[row] * width;
    sum_vectors<PARTS_DEEP, float, V>(
        sums, width, column, parts, [](int k) { return k; }, scratch);
  } else {
    const int32_t *list = l.list + l.first[row];
    sum_vectors<DEEP, T, V>(
        dx, width, column, count, [=](int k) { return list[k]; }, scratch);
  }
  for (int i = (int)threadIdx.x; i < WARP * V && first + i < width; i += BLOCK) {
    G *to = dwte + row * width + first + i;
    float all = accumulate ? to_float(*to) : 0.0F;
    for (int w = 0; w < WARPS; ++w) all += scratch[w][i];
    *to = from_float<G>(all);
  }
}

// Divides the scratch memory; part_tokens 0: it is too small. A list of more than part_tokens tokens has a full part,
// so that all lists together have fewer than two parts for each part_tokens tokens.
RowLists lists_for(const tws_cuda_call *call) {
  const int64_t tokens = call->work->d[0], width = call->work->d[1], vocabulary = call->work->d[2];
  const int64_t by_rows = MOST_COUNTS / vocabulary, by_tokens = ceil_div(tokens, SEGMENT);
  RowLists l = {};
  l.tokens = tokens, l.vocabulary = vocabulary;
  l.segments = (int)(by_rows < by_tokens ? by_rows : by_tokens);
  if (l.segments < 1) l.segments = 1;
  l.segment = ceil_div(ceil_div(tokens, l.segments), BLOCK) * BLOCK;
  const int64_t counts = l.segments > 1 ? l.segments * vocabulary : 0, most = 2 * ceil_div(tokens, SHORTEST);
  const int64_t words = ceil_div(CURSORS + 3 * vocabulary + counts + tokens + most, PACKED) * PACKED;
  const int64_t floats = (int64_t)(call->scratch_bytes / sizeof(float)) - words;
  if (floats < 0) return l;
  l.most_parts = (int)(floats / width < most ? floats / width : most);
  l.part_tokens = (int)(l.most_parts ? ceil_div(2 * tokens, l.most_parts) : tokens);
  if (l.part_tokens < SHORTEST) l.part_tokens = SHORTEST;
  int32_t *at = static_cast<int32_t *>(call->scratch);
  l.cursor = at, at += CURSORS;
  l.first = at, at += vocabulary;
  l.count = at, at += vocabulary;
  l.part = at, at += vocabulary;
  l.counts = counts ? at : l.first, at += counts;  // with one segment, its counts are those of the rows
  l.list = at, at += tokens;
  l.part_row = at;
  l.sums = static_cast<float *>(call->scratch) + words;
  return l;
}

tws_code make_lists(const tws_cuda_call *call, const RowLists &l, tws_error *err) {
  const int32_t *ids = in<int32_t>(call, 0);
  const int64_t first = (int64_t)call->argument[0];
  const unsigned groups = (unsigned)ceil_div(l.vocabulary, GROUP);
  const cudaError_t status = cudaMemsetAsync(l.cursor, 0, 2 * sizeof(int32_t), call->stream);
  if (status != cudaSuccess) return tws_cuda_fail(err, status, "clearing a counter");
  LAUNCH(count_rows, dim3(groups, (unsigned)l.segments), BLOCK, 0, call, ids, first, l);
  TWS_TRY(launched(err));
  LAUNCH(place_rows, groups, GROUP, 0, call, l);
  TWS_TRY(launched(err));
  LAUNCH(list_rows, dim3(groups, (unsigned)l.segments), BLOCK, 0, call, ids, first, l);
  return launched(err);
}

template <typename T, typename G, int V>
tws_code sum_lists(const tws_cuda_call *call, const RowLists &l, tws_error *err) {
  const int64_t width = call->work->d[1];
  const unsigned chunks = (unsigned)ceil_div(width, WARP * V);
  if (l.tokens > l.part_tokens) {
    LAUNCH((sum_list_parts<T, V>), dim3((unsigned)l.most_parts, chunks), BLOCK, 0, call, in<T>(call, 1), l, width);
    TWS_TRY(launched(err));
  }
  LAUNCH((sum_rows<T, G, V>), dim3((unsigned)l.vocabulary, chunks), BLOCK, 0, call, in<T>(call, 1), out<G>(call, 2), l,
         width, (call->work->flags & TWS_ACCUMULATE) != 0);
  return launched(err);
}

template <typename T, typename G>
tws_code run_embedding_grad(const tws_cuda_call *call, tws_error *err) {
  constexpr int N = Width<T>::value;
  const int64_t tokens = call->work->d[0], width = call->work->d[1], vocabulary = call->work->d[2];
  if (vocabulary == 0 || width == 0) return TWS_OK;
  const RowLists l = lists_for(call);
  if (l.part_tokens == 0)
    return tws_fail(err, TWS_UNSUPPORTED, "use a smaller micro batch",
                    "the token lists of %lld tokens and %lld rows do not fit the scratch memory", (long long)tokens,
                    (long long)vocabulary);
  TWS_TRY(make_lists(call, l, err));
  return packable<N>(in<T>(call, 1), width) ? sum_lists<T, G, N>(call, l, err) : sum_lists<T, G, 1>(call, l, err);
}

// ---- positions ----

// dwpe[position] (+)= sum over the sequences; rows without a token become 0, or stay when accumulating. A thread has V
// columns.
template <typename T, typename G, int V>
__global__ void __launch_bounds__(BLOCK)
    position_grad(const T *dx, G *dwpe, int64_t tokens, int64_t width, int64_t seq, int64_t gap, bool accumulate) {
  const int64_t position = blockIdx.x, c = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * V;
  const int64_t first = tws_zigzag_token(seq, gap, position);
  G *to = dwpe + position * width + c;
  float sum[V] = {};
  if (c >= width || (first < 0 && accumulate)) return;
  if (accumulate) {
#pragma unroll
    for (int j = 0; j < V; ++j) sum[j] = to_float(to[j]);
  }
  if (first >= 0) {
    for (int64_t t = first; t < tokens; t += DEEP * seq)
      at_once<DEEP>(
          t, tokens, seq, [=](int64_t token) { return *reinterpret_cast<const Pack<T, V> *>(dx + token * width + c); },
          [&](int64_t, const Pack<T, V> &v) { add_to<T, V>(sum, v); });
  }
#pragma unroll
  for (int j = 0; j < V; ++j) to[j] = from_float<G>(sum[j]);
}

template <typename T, typename G, int V>
tws_code start_position_grad(const tws_cuda_call *call, tws_error *err) {
  const int64_t *d = call->work->d, packs = d[1] / V, chunks = ceil_div(packs, BLOCK);
  if (chunks > 65535)
    return tws_fail(err, TWS_UNSUPPORTED, NULL, "gradient of positions of width %lld", (long long)d[1]);
  const unsigned threads = (unsigned)ceil_div(packs, chunks * WARP) * WARP;
  LAUNCH((position_grad<T, G, V>), dim3((unsigned)d[2], (unsigned)chunks), threads, 0, call, in<T>(call, 0),
         out<G>(call, 1), d[0], d[1], d[3], (int64_t)call->argument[0], (call->work->flags & TWS_ACCUMULATE) != 0);
  return launched(err);
}

template <typename T, typename G>
tws_code run_position_grad(const tws_cuda_call *call, tws_error *err) {
  constexpr int N = Width<T>::value;
  if (call->work->d[1] == 0 || call->work->d[2] == 0) return TWS_OK;
  if (packable<N>(in<T>(call, 0), call->work->d[1])) return start_position_grad<T, G, N>(call, err);
  return start_position_grad<T, G, 1>(call, err);
}

}  // namespace

tws_code tws_cuda_embedding(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[1], T, return run_embedding<T>(call, err));
}
tws_code tws_cuda_embedding_grad(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[1], T, FOR_TYPE(call->dtype[2], G, return run_embedding_grad<T, G>(call, err)));
}
tws_code tws_cuda_position_grad(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, FOR_TYPE(call->dtype[1], G, return run_position_grad<T, G>(call, err)));
}
