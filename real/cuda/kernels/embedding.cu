// Token and position embeddings. The gradient of the table adds the tokens of each row in their order: lists of the
// tokens of each row are made first, with integer counters only, then every row is summed by one block.
#include "real/cuda/kernels/common.cuh"

namespace {

// x[token] = wte[id - first] (+ wpe[token % seq]). The table may be a rank's part of the vocabulary: an id outside it
// adds nothing. keep: x is added to.
template <typename T, int V>
__global__ void embedding(const int32_t *ids, const T *wte, const T *wpe, T *x, int64_t tokens, int64_t width,
                          int64_t vocabulary, int64_t seq, int64_t first, bool keep) {
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
      load<V>(wpe + token % seq * width + column, p);
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
  const int64_t *d = call->work->d, first = (int64_t)call->argument[0];
  const bool positions = d[3] != 0, keep = (call->work->flags & TWS_ACCUMULATE) != 0;
  const T *wte = in<T>(call, 1), *wpe = positions ? in<T>(call, 2) : nullptr;
  T *x = out<T>(call, positions ? 3 : 2);
  if (d[0] == 0 || d[1] == 0) return TWS_OK;
  const bool aligned = packable<N>(wte, d[1]) && packable<N>(wpe, d[1]) && packable<N>(x, d[1]);
  const unsigned grid = grid_for(call, d[0] * d[1] / (aligned ? N : 1), BLOCK);
  if (aligned)
    LAUNCH((embedding<T, N>), grid, BLOCK, 0, call, in<int32_t>(call, 0), wte, wpe, x, d[0], d[1], d[2], d[4], first,
           keep);
  else
    LAUNCH((embedding<T, 1>), grid, BLOCK, 0, call, in<int32_t>(call, 0), wte, wpe, x, d[0], d[1], d[2], d[4], first,
           keep);
  return launched(err);
}

// ---- lists of the tokens of each row ----

enum { GROUP = BLOCK / 2, PENDING = 1024 };  // rows of a block; matches between two distributions

// Scratch: cursor[1], first[vocabulary], count[vocabulary], list[tokens]. Where a group's part of the list lies depends
// on timing; what it says does not.
struct RowLists {
  int32_t *cursor, *first, *count, *list;
};

// Matches of a block's rows among BLOCK consecutive tokens, appended to `pending` in order; all threads call it.
__device__ int append_matches(const int32_t *ids, int64_t token, int64_t tokens, int64_t low, int64_t high,
                              int32_t *pending, int held, int *warp_counts) {
  const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
  const bool match = token < tokens && ids[token] >= low && ids[token] < high;
  const unsigned votes = __ballot_sync(0xffffffffU, match);
  if (lane == 0) warp_counts[warp] = __popc(votes);
  __syncthreads();
  int at = held, total = 0;
  for (int w = 0; w < BLOCK / WARP; ++w) {
    if (w < warp) at += warp_counts[w];
    total += warp_counts[w];
  }
  if (match) pending[at + __popc(votes & ((1U << lane) - 1U))] = (int32_t)token;
  __syncthreads();
  return held + total;
}

// A block has GROUP rows of the table, whose first row is id `first`. low, high: ids.
__global__ void list_rows(const int32_t *ids, int64_t tokens, int64_t vocabulary, int64_t first, RowLists lists) {
  __shared__ int32_t counts[GROUP], next[GROUP], pending[PENDING + BLOCK];
  __shared__ int warp_counts[BLOCK / WARP];
  const int64_t base = (int64_t)blockIdx.x * GROUP, left = vocabulary - base;
  const int64_t rows = left < (int64_t)GROUP ? left : (int64_t)GROUP;
  const int64_t low = first + base, high = low + rows;
  const int row = (int)threadIdx.x;
  if (row < GROUP) counts[row] = 0;
  __syncthreads();
  for (int64_t t = threadIdx.x; t < tokens; t += BLOCK)
    if (ids[t] >= low && ids[t] < high) atomicAdd(&counts[ids[t] - low], 1);
  __syncthreads();
  if (threadIdx.x == 0) {
    int total = 0;
    for (int i = 0; i < GROUP; ++i) {
      next[i] = total;
      total += counts[i];
    }
    const int begin = total ? atomicAdd(lists.cursor, total) : 0;
    for (int i = 0; i < GROUP; ++i) next[i] += begin;
  }
  __syncthreads();
  if (row < rows) {
    lists.first[base + row] = next[row];
    lists.count[base + row] = counts[row];
  }
  int held = 0;
  for (int64_t t = 0; t < tokens; t += BLOCK) {
    held = append_matches(ids, t + threadIdx.x, tokens, low, high, pending, held, warp_counts);
    if (held < PENDING && t + BLOCK < tokens) continue;  // the same for all threads
    if (row < GROUP) {                                   // each row takes its own, in order
      int at = next[row];
      for (int i = 0; i < held; ++i)
        if (ids[pending[i]] - low == row) lists.list[at++] = pending[i];
      next[row] = at;
    }
    held = 0;
    __syncthreads();
  }
}

// ---- sums ----

enum { DEEP = 4 };  // rows that a thread has under way at once

// dwte[row] (+)= sum of dx over the row's tokens. Warp w takes tokens w, w + 8, ... of the list; the warps' sums are
// added in their order. A block has a row and 32 V columns.
template <typename T, typename G, int V>
__global__ void sum_rows(const T *dx, G *dwte, RowLists lists, int64_t width, bool accumulate) {
  constexpr int WARPS = BLOCK / WARP;
  __shared__ float scratch[WARPS][WARP * V];
  const int64_t row = blockIdx.x, column = ((int64_t)blockIdx.y * WARP + threadIdx.x % WARP) * V;
  const int count = lists.count[row], warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
  if (count == 0 && accumulate) return;
  const int32_t *list = lists.list + lists.first[row];
  float sum[V] = {};
  if (column < width) {
    for (int i = warp; i < count; i += DEEP * WARPS) {
      Pack<T, V> v[DEEP];
#pragma unroll
      for (int k = 0; k < DEEP; ++k)
        if (i + k * WARPS < count)
          v[k] = *reinterpret_cast<const Pack<T, V> *>(dx + (int64_t)list[i + k * WARPS] * width + column);
#pragma unroll
      for (int k = 0; k < DEEP; ++k) {
        if (i + k * WARPS >= count) break;
#pragma unroll
        for (int j = 0; j < V; ++j) sum[j] += at(v[k], j);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < V; ++j) scratch[warp][lane * V + j] = sum[j];
  __syncthreads();
  for (int i = (int)threadIdx.x; i < WARP * V; i += BLOCK) {
    const int64_t c = (int64_t)blockIdx.y * WARP * V + i;
    if (c >= width) continue;
    G *to = dwte + row * width + c;
    float all = accumulate ? to_float(*to) : 0.0F;
    for (int w = 0; w < WARPS; ++w) all += scratch[w][i];
    *to = from_float<G>(all);
  }
}

template <typename T, typename G>
tws_code run_embedding_grad(const tws_cuda_call *call, tws_error *err) {
  constexpr int N = Width<T>::value;
  const int64_t tokens = call->work->d[0], width = call->work->d[1], vocabulary = call->work->d[2];
  if (vocabulary == 0 || width == 0) return TWS_OK;
  int32_t *scratch = static_cast<int32_t *>(call->scratch);
  const RowLists lists = {scratch, scratch + 4, scratch + 4 + vocabulary, scratch + 4 + 2 * vocabulary};
  if ((uint64_t)(4 + 2 * vocabulary + tokens) * sizeof(int32_t) > call->scratch_bytes)
    return tws_fail(err, TWS_UNSUPPORTED, "use a smaller micro batch",
                    "the token lists of %lld tokens and %lld rows do not fit the scratch memory", (long long)tokens,
                    (long long)vocabulary);
  const cudaError_t status = cudaMemsetAsync(lists.cursor, 0, sizeof(int32_t), call->stream);
  if (status != cudaSuccess) return tws_cuda_fail(err, status, "clearing a counter");
  LAUNCH(list_rows, (unsigned)ceil_div(vocabulary, GROUP), BLOCK, 0, call, in<int32_t>(call, 0), tokens, vocabulary,
         (int64_t)call->argument[0], lists);
  TWS_TRY(launched(err));
  const T *dx = in<T>(call, 1);
  const bool aligned = packable<N>(dx, width), add = call->work->flags & TWS_ACCUMULATE;
  const dim3 grid((unsigned)vocabulary, (unsigned)ceil_div(width, WARP * (aligned ? N : 1)));
  if (aligned)
    LAUNCH((sum_rows<T, G, N>), grid, BLOCK, 0, call, dx, out<G>(call, 2), lists, width, add);
  else
    LAUNCH((sum_rows<T, G, 1>), grid, BLOCK, 0, call, dx, out<G>(call, 2), lists, width, add);
  return launched(err);
}

// ---- positions ----

// dwpe[position] (+)= sum over the sequences; rows from seq on become 0, or stay when accumulating. A thread has V
// columns.
template <typename T, typename G, int V>
__global__ void __launch_bounds__(BLOCK)
    position_grad(const T *dx, G *dwpe, int64_t tokens, int64_t width, int64_t seq, bool accumulate) {
  const int64_t position = blockIdx.x, c = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * V;
  G *to = dwpe + position * width + c;
  float sum[V] = {};
  if (c >= width || (position >= seq && accumulate)) return;
  if (accumulate) {
#pragma unroll
    for (int j = 0; j < V; ++j) sum[j] = to_float(to[j]);
  }
  if (position < seq) {
    for (int64_t t = position; t < tokens; t += DEEP * seq) {
      Pack<T, V> v[DEEP];
#pragma unroll
      for (int k = 0; k < DEEP; ++k)
        if (t + k * seq < tokens) v[k] = *reinterpret_cast<const Pack<T, V> *>(dx + (t + k * seq) * width + c);
#pragma unroll
      for (int k = 0; k < DEEP; ++k) {
        if (t + k * seq >= tokens) break;
#pragma unroll
        for (int j = 0; j < V; ++j) sum[j] += at(v[k], j);
      }
    }
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
         out<G>(call, 1), d[0], d[1], d[3], (call->work->flags & TWS_ACCUMULATE) != 0);
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
