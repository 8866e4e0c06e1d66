// Products of experts in 16-bit types on tensor cores, all experts of a layer in one launch. Only the device knows how
// many slots each expert fills, so the grid has as many tiles as any distribution of the slots needs: for a pack of
// experts that share slots, one for each DOWN slots, and one more for each expert, whose last tile is partly filled.
// A block finds its expert and its rows by walking through the pack's counts; the tiles after the experts' clear the
// slots that no expert fills, and what is left of the grid returns at once.
#include "real/cuda/kernels/experts.cuh"
#include "real/cuda/kernels/tensor_cores.cuh"

namespace {

enum {
  MOST_SHARED = 4096,      // experts of a pack, whose counts are kept in the memory of a block
  MOST_COLUMNS = 1 << 30,  // columns of a matrix, which are counted in 32 bits
};

inline __host__ __device__ int64_t pack_of(const Experts &e) {
  return e.shared > 1 ? e.shared : 1;
}

// Rows of a tile: the first slot, the number of slots that an expert fills, and the number of slots to clear; one of
// the last two is 0.
struct Rows {
  int64_t first, expert;
  int filled, cleared;
};

__device__ inline int at_most_down(int64_t rows) {
  return rows < 0 ? 0 : rows < DOWN ? (int)rows : (int)DOWN;
}

// Finds the rows of a tile of a pack; packs of all sources are numbered. All threads of a block call this; `counts` has
// room for the counts of a pack.
__device__ inline Rows rows_of(const Experts &e, int64_t pack, int64_t tile, int32_t *counts) {
  const int experts = (int)pack_of(e);
  const int64_t size = experts * e.capacity;
  for (int i = (int)threadIdx.x; i < experts; i += BLOCK)
    counts[i] = e.counts[(pack * experts + i) * TWS_EXPERT_COUNTS + TWS_COUNT_FILLED];
  __syncthreads();
  Rows rows = {0, 0, 0, 0};
  int64_t before = 0;
  int i = 0;
  for (; i < experts; ++i) {
    const int64_t left = size - before, count = counts[i];
    const int64_t filled = count < 0 ? 0 : count < left ? count : left, tiles = (filled + DOWN - 1) / DOWN;
    if (tile < tiles) {
      rows.filled = at_most_down(filled - tile * DOWN);
      rows.expert = (pack * experts + i) % e.experts;
      break;
    }
    tile -= tiles;
    before += filled;
  }
  if (i == experts) rows.cleared = at_most_down(size - before - tile * DOWN);
  rows.first = pack * size + before + tile * DOWN;
  __syncthreads();
  return rows;
}

// Computes y[slot, n] = sum over k of x[slot, k] weight(n, k) (+ bias[n]); weight(n, k) is at index n inner + k of
// the expert's matrix if `adjacent` (EXPERT_LINEAR), else at k columns + n (EXPERT_LINEAR_GRAD_INPUT). Unfilled slots
// become 0, or stay when adding.
template <typename T, int N8, bool adjacent>
__global__ void __launch_bounds__(BLOCK, N8 == 8 ? 1 : 2)
    slots_tile(Experts e, const T *x, const T *weight, const T *bias, T *y, int columns, int inner, int adds) {
  BLOCK_MEMORY(memory);
  const Rows rows = rows_of(e, blockIdx.z, blockIdx.y, reinterpret_cast<int32_t *>(memory));
  if (rows.filled == 0 && (rows.cleared == 0 || adds)) return;
  const int column0 = (int)blockIdx.x * Across<N8>::value, left = columns - column0;
  T *c = y + rows.first * columns + column0;
  Sums<N8> sums = {};
  if (rows.filled > 0) {
    const Factor<T> a = {x + rows.first * inner, inner, rows.filled};
    const T *matrix = weight + rows.expert * e.out * e.in;
    const Factor<T> b = {adjacent ? matrix + (int64_t)column0 * inner : matrix + column0, adjacent ? inner : columns,
                         left};
    multiply_tile<N8, true, adjacent>(sums, a, b, inner, memory);
  }
  const int written = rows.filled > 0 ? rows.filled : rows.cleared;
  each_pair(sums, [&](int row, int column, float(&values)[2]) {
    if (row >= written || column >= left) return;
    T *to = c + (int64_t)row * columns + column;
    if (bias && rows.filled > 0) {
      float more[2];
      load(bias + rows.expert * columns + column0 + column, more);
      values[0] += more[0], values[1] += more[1];
    }
    if (adds) {
      float more[2];
      load(to, more);
      values[0] += more[0], values[1] += more[1];
    }
    store(to, values);
  });
}

// Computes dweight[expert, n, k] (+)= sum over the expert's slots of all sources of dy[slot, n] x[slot, k].
template <typename T, typename G, int N8>
__global__ void __launch_bounds__(BLOCK, N8 == 8 ? 1 : 2)
    weight_tile(Experts e, const T *dy, const T *x, G *dweight, int adds) {
  BLOCK_MEMORY(memory);
  const int64_t expert = blockIdx.z;
  const int out = (int)e.out, in = (int)e.in;
  const int row0 = (int)blockIdx.y * DOWN, column0 = (int)blockIdx.x * Across<N8>::value;
  Sums<N8> sums = {};
  for (int64_t block = expert; block < e.sources * e.experts; block += e.experts) {
    const int64_t first = first_of(e, block);
    const Factor<T> a = {dy + first * out + row0, out, out - row0}, b = {x + first * in + column0, in, in - column0};
    multiply_tile<N8, false, false>(sums, a, b, (int)filled_of(e, block), memory);
  }
  G *c = dweight + (expert * out + row0) * in + column0;
  each_pair(sums, [&](int row, int column, float(&values)[2]) {
    if (row >= out - row0 || column >= in - column0) return;
    G *to = c + (int64_t)row * in + column;
    if (adds) {
      float more[2];
      load(to, more);
      values[0] += more[0], values[1] += more[1];
    }
    store(to, values);
  });
}

// Returns true if a product of `columns` columns takes the wide tiles: 256 columns reread less of both factors, which
// is worth it where there are enough tiles for every multiprocessor.
bool is_wide(const tws_cuda_call *call, int64_t columns, int64_t rows) {
  return columns % 256 == 0 && columns / 256 * ceil_div(rows, DOWN) >= call->multiprocessors;
}

template <typename T, int N8, bool adjacent>
tws_code start_slots(const tws_cuda_call *call, const Experts &e, const T *bias, T *y, int columns, int inner,
                     dim3 grid, tws_error *err) {
  grid.x = (unsigned)ceil_div(columns, Across<N8>::value);
  TWS_TRY(allow_shared(slots_tile<T, N8, adjacent>, Across<N8>::bytes, err));
  LAUNCH((slots_tile<T, N8, adjacent>), grid, BLOCK, Across<N8>::bytes, call, e, in<T>(call, 0), in<T>(call, 1), bias,
         y, columns, inner, (call->work->flags & TWS_ACCUMULATE) != 0);
  return launched(err);
}

template <typename T>
tws_code run_slots(const tws_cuda_call *call, int *done, tws_error *err) {
  const bool forward = call->work->code == TWS_KERNEL_EXPERT_LINEAR;
  const bool biased = forward && (call->work->flags & TWS_BIAS);
  const Experts e = experts_of(call, biased ? 3 : 2);
  const int64_t columns = forward ? e.out : e.in, inner = forward ? e.in : e.out, pack = pack_of(e);
  const int64_t tiles = ceil_div(pack * e.capacity, DOWN) + pack, packs = e.sources * e.experts / pack;
  const T *bias = biased ? in<T>(call, 2) : NULL;
  T *y = out<T>(call, biased ? 4 : 3);
  if (e.out > MOST_COLUMNS || e.in > MOST_COLUMNS || pack > MOST_SHARED || e.experts % pack || tiles > 65535 ||
      packs > 65535 || packs * tiles == 0 || !packable<CHUNK>(in<T>(call, 0), inner) ||
      !packable<CHUNK>(in<T>(call, 1), columns) || !packable<CHUNK>(bias, columns) || !packable<CHUNK>(y, columns))
    return TWS_OK;
  *done = 1;
  const int n = (int)columns, k = (int)inner;
  const bool wide = is_wide(call, columns, packs * pack * e.capacity);
  const dim3 grid(1, (unsigned)tiles, (unsigned)packs);
  if (forward && wide) return start_slots<T, 8, true>(call, e, bias, y, n, k, grid, err);
  if (forward) return start_slots<T, 4, true>(call, e, bias, y, n, k, grid, err);
  if (wide) return start_slots<T, 8, false>(call, e, bias, y, n, k, grid, err);
  return start_slots<T, 4, false>(call, e, bias, y, n, k, grid, err);
}

template <typename T, typename G, int N8>
tws_code start_weight(const tws_cuda_call *call, const Experts &e, dim3 grid, tws_error *err) {
  grid.x = (unsigned)ceil_div(e.in, Across<N8>::value);
  TWS_TRY(allow_shared(weight_tile<T, G, N8>, Across<N8>::bytes, err));
  LAUNCH((weight_tile<T, G, N8>), grid, BLOCK, Across<N8>::bytes, call, e, in<T>(call, 0), in<T>(call, 1),
         out<G>(call, 3), (call->work->flags & TWS_ACCUMULATE) != 0);
  return launched(err);
}

template <typename T, typename G>
tws_code run_weight(const tws_cuda_call *call, int *done, tws_error *err) {
  const Experts e = experts_of(call, 2);
  const int64_t down = ceil_div(e.out, DOWN), rows = pack_of(e) * e.capacity;
  if (e.out > MOST_COLUMNS || e.in > MOST_COLUMNS || rows > INT32_MAX || down > 65535 || e.experts > 65535 ||
      !packable<CHUNK>(in<T>(call, 0), e.out) || !packable<CHUNK>(in<T>(call, 1), e.in) ||
      !packable<CHUNK>(out<G>(call, 3), e.in))
    return TWS_OK;
  *done = 1;
  const dim3 grid(1, (unsigned)down, (unsigned)e.experts);
  if (is_wide(call, e.in, e.experts * e.out)) return start_weight<T, G, 8>(call, e, grid, err);
  return start_weight<T, G, 4>(call, e, grid, err);
}

template <typename T>
tws_code run_tiles(const tws_cuda_call *call, int *done, tws_error *err) {
  if (call->work->code != TWS_KERNEL_EXPERT_LINEAR_GRAD_WEIGHT) return run_slots<T>(call, done, err);
  if (call->dtype[3] == TWS_F32) return run_weight<T, float>(call, done, err);
  if (call->dtype[3] != call->dtype[0]) return TWS_OK;
  return run_weight<T, T>(call, done, err);
}

}  // namespace

tws_code tws_cuda_expert_tiles(const tws_cuda_call *call, int *done, tws_error *err) {
  *done = 0;
  if (call->capability < 80 || tws_cuda_env_is_set("TWINSPEED_CUDA_PLAIN_EXPERTS")) return TWS_OK;
  if (call->dtype[0] == TWS_BF16) return run_tiles<bf16>(call, done, err);
  if (call->dtype[0] == TWS_F16) return run_tiles<f16>(call, done, err);
  return TWS_OK;
}
