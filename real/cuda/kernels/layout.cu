// Kernels that permute elements: bits are copied in units of up to 16 bytes, whatever the type. Threads iterate over
// the output, so that writes are coalesced and in order; reads are contiguous within a row or a head.
#include "real/cuda/kernels/common.cuh"

namespace {

// ---- units: the largest size, at most 16 bytes, that divides rows and addresses ----

template <int BYTES>
struct alignas(BYTES) Unit {
  unsigned char b[BYTES];
};

int unit_for(const void *from, const void *to, int64_t row_bytes) {
  const uintptr_t bits = reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to) | (uintptr_t)row_bytes;
  int unit = 16;
  while (bits % (uintptr_t)unit) unit /= 2;
  return unit;
}

// Run the statement with U standing for the unit's type. No storage type is smaller than 2 bytes.
#define FOR_UNIT(bytes, U, ...) \
  switch (bytes) {              \
    case 16: {                  \
      typedef Unit<16> U;       \
      __VA_ARGS__;              \
    } break;                    \
    case 8: {                   \
      typedef Unit<8> U;        \
      __VA_ARGS__;              \
    } break;                    \
    case 4: {                   \
      typedef Unit<4> U;        \
      __VA_ARGS__;              \
    } break;                    \
    default: {                  \
      typedef Unit<2> U;        \
      __VA_ARGS__;              \
    } break;                    \
  }

template <typename U>
const U *units(const void *address) {
  return static_cast<const U *>(address);
}
template <typename U>
U *units(void *address) {
  return static_cast<U *>(address);
}

int64_t bytes_of(tws_dtype type) {
  return type == TWS_F32 || type == TWS_I32 ? 4 : 2;
}

// ---- x[a,b,width] -> y[b,a,width] ----

template <typename U>
__global__ void transpose(const U *x, U *y, int64_t a, int64_t b, int64_t width) {
  const int64_t all = a * b * width, step = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += step) {
    const int64_t row = i / width;
    y[i] = x[(row % a * b + row / a) * width + i % width];
  }
}

// Rows of one unit: tiles of 32 by 32 are transposed in shared memory, so that reads and writes are both coalesced.
enum { TILE = 32, TILE_ROWS = BLOCK / TILE };

template <typename U>
__global__ void transpose_tiles(const U *x, U *y, int64_t a, int64_t b, int64_t tiles) {
  __shared__ U tile[TILE][TILE + 1];
  const int64_t across = (b + TILE - 1) / TILE;
  const int column = (int)threadIdx.x % TILE, first = (int)threadIdx.x / TILE;
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t i0 = t / across * TILE, j0 = t % across * TILE;
    for (int r = first; r < TILE; r += TILE_ROWS)
      if (i0 + r < a && j0 + column < b) tile[r][column] = x[(i0 + r) * b + j0 + column];
    __syncthreads();
    for (int r = first; r < TILE; r += TILE_ROWS)
      if (j0 + r < b && i0 + column < a) y[(j0 + r) * a + i0 + column] = tile[column][r];
    __syncthreads();
  }
}

template <typename U>
tws_code run_transpose(const tws_cuda_call *call, int64_t width, tws_error *err) {
  const int64_t a = call->work->d[0], b = call->work->d[1];
  const U *x = units<U>(call->operand[0]);
  U *y = units<U>(call->operand[1]);
  if (width == 1) {
    const int64_t tiles = ceil_div(a, TILE) * ceil_div(b, TILE);
    LAUNCH(transpose_tiles, grid_for(call, tiles, 1), BLOCK, 0, call, x, y, a, b, tiles);
  } else {
    LAUNCH(transpose, grid_for(call, a * b * width, BLOCK), BLOCK, 0, call, x, y, a, b, width);
  }
  return launched(err);
}

// ---- heads to ranks and back ----

// Widths are counted in units, each of one or more elements or bytes. A rank has `query` units of queries, then `share`
// of keys, then `share` of values.
struct Heads {
  int64_t tokens, ranks, row, query, share, out;
  int64_t first_key, keys;  // first_key: first column of the keys in a row of x; keys: number of their columns
  int64_t head, kv;         // head: units of a head; kv: number of key heads
};

Heads heads_of(const tws_work *work, int64_t units_of_head) {
  const int64_t *d = work->d, kv = d[3];
  Heads h = {};
  h.tokens = d[0], h.ranks = d[1], h.head = units_of_head, h.kv = kv;
  h.row = (d[2] + 2 * kv) * h.head;
  h.query = d[2] / h.ranks * h.head;
  h.share = (kv == 0 ? 0 : kv < h.ranks ? 1 : kv / h.ranks) * h.head;
  h.out = h.query + 2 * h.share;
  h.first_key = d[2] * h.head;
  h.keys = kv * h.head;
  return h;
}

tws_code check_heads(const tws_work *work, tws_error *err) {
  const int64_t *d = work->d;
  if (d[1] >= 1 && d[2] % d[1] == 0 && (d[3] % d[1] == 0 || (d[3] > 0 && d[1] % d[3] == 0))) return TWS_OK;
  return tws_fail(err, TWS_INVALID, "query heads must be a multiple of the ranks, key heads a multiple or a divisor",
                  "%lld query heads and %lld key heads for %lld ranks", (long long)d[2], (long long)d[3],
                  (long long)d[1]);
}

// Returns the column of x that a rank's column c is a copy of.
__device__ int64_t column_of(const Heads &h, int64_t rank, int64_t c) {
  if (c < h.query) return rank * h.query + c;
  c -= h.query;
  const int64_t key = h.first_key + rank * h.kv / h.ranks * h.head;
  return c < h.share ? key + c : key + h.keys + c - h.share;
}

template <typename U>
__global__ void heads_pack(const U *x, U *y, Heads h) {
  const int64_t all = h.ranks * h.tokens * h.out, step = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += step) {
    const int64_t row = i / h.out, rank = row / h.tokens, token = row % h.tokens;
    y[i] = x[token * h.row + column_of(h, rank, i % h.out)];
  }
}

// Copies queries, keys and values from the ranks' layout to x; copies of keys and values are summed in the order of
// ranks. Columns are counted in packs of V elements.
template <typename T, int V>
__global__ void heads_unpack(const T *y, T *x, Heads h) {
  const int64_t all = h.tokens * h.row, step = (int64_t)gridDim.x * blockDim.x, stride = h.tokens * h.out;
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += step) {
    const int64_t token = i / h.row, c = i % h.row;
    int64_t rank, from, copies = 1;
    if (c < h.first_key) {
      rank = c / h.query;
      from = c % h.query;
    } else {
      const bool value = c - h.first_key >= h.keys;
      const int64_t key = c - h.first_key - (value ? h.keys : 0);
      if (h.kv < h.ranks) copies = h.ranks / h.kv;
      rank = key / h.share * copies;
      from = h.query + (value ? h.share : 0) + key % h.share;
    }
    float sum[V], next[V];
    const T *first = y + (rank * stride + token * h.out + from) * V;
    load<V>(first, sum);
    for (int64_t r = 1; r < copies; ++r) {
      load<V>(first + r * stride * V, next);
#pragma unroll
      for (int j = 0; j < V; ++j) sum[j] += next[j];
    }
    store<V>(x + i * V, sum);
  }
}

template <typename T>
tws_code run_unpack(const tws_cuda_call *call, tws_error *err) {
  constexpr int N = Width<T>::value;
  const T *y = in<T>(call, 0);
  T *x = out<T>(call, 1);
  const int64_t head = call->work->d[4];
  const bool aligned = packable<N>(y, head) && packable<N>(x, head);
  const Heads h = heads_of(call->work, aligned ? head / N : head);
  if (h.tokens * h.row == 0) return TWS_OK;
  const unsigned grid = grid_for(call, h.tokens * h.row, BLOCK);
  if (aligned)
    LAUNCH((heads_unpack<T, N>), grid, BLOCK, 0, call, y, x, h);
  else
    LAUNCH((heads_unpack<T, 1>), grid, BLOCK, 0, call, y, x, h);
  return launched(err);
}

// ---- heads_split and heads_join: queries in one tensor, keys and values in another ----

// Splits x into queries, and keys and values. Columns are counted in units: a row of x has `row` units, the first q of
// which are queries.
template <typename U>
__global__ void heads_split(const U *x, U *to_q, U *to_kv, int64_t tokens, int64_t q, int64_t row) {
  const int64_t all = tokens * row, step = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += step) {
    const int64_t token = i / row, c = i % row;
    U *to = c < q ? to_q + token * q + c : to_kv + token * (row - q) + c - q;
    *to = x[i];
  }
}

// Adds the queries and the keys and values to x; columns are counted in packs of V elements.
template <typename T, int V>
__global__ void heads_join(const T *from_q, const T *from_kv, T *x, int64_t tokens, int64_t q, int64_t row) {
  const int64_t all = tokens * row, step = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += step) {
    const int64_t token = i / row, c = i % row;
    float sum[V], part[V];
    load<V>(x + i * V, sum);
    load<V>(c < q ? from_q + (token * q + c) * V : from_kv + (token * (row - q) + c - q) * V, part);
#pragma unroll
    for (int j = 0; j < V; ++j) sum[j] += part[j];
    store<V>(x + i * V, sum);
  }
}

template <typename T>
tws_code run_join(const tws_cuda_call *call, tws_error *err) {
  constexpr int N = Width<T>::value;
  const int64_t *d = call->work->d;
  const T *q = in<T>(call, 0), *kv = in<T>(call, 1);
  T *x = out<T>(call, 2);
  const bool aligned = packable<N>(q, d[3]) && packable<N>(kv, d[3]) && packable<N>(x, d[3]);
  const int64_t head = aligned ? d[3] / N : d[3], row = (d[1] + 2 * d[2]) * head;
  if (d[0] * row == 0) return TWS_OK;
  const unsigned grid = grid_for(call, d[0] * row, BLOCK);
  if (aligned)
    LAUNCH((heads_join<T, N>), grid, BLOCK, 0, call, q, kv, x, d[0], d[1] * head, row);
  else
    LAUNCH((heads_join<T, 1>), grid, BLOCK, 0, call, q, kv, x, d[0], d[1] * head, row);
  return launched(err);
}

}  // namespace

tws_code tws_cuda_transpose(const tws_cuda_call *call, tws_error *err) {
  const int64_t *d = call->work->d, row_bytes = d[2] * bytes_of(call->dtype[0]);
  if (d[0] * d[1] * d[2] == 0) return TWS_OK;
  const int unit = unit_for(call->operand[0], call->operand[1], row_bytes);
  FOR_UNIT(unit, U, return run_transpose<U>(call, row_bytes / unit, err));
  return TWS_OK;
}

tws_code tws_cuda_heads_pack(const tws_cuda_call *call, tws_error *err) {
  TWS_TRY(check_heads(call->work, err));
  const int64_t head_bytes = call->work->d[4] * bytes_of(call->dtype[0]);
  const int unit = unit_for(call->operand[0], call->operand[1], head_bytes);
  const Heads h = heads_of(call->work, head_bytes / unit);
  const int64_t count = h.ranks * h.tokens * h.out;
  if (count == 0) return TWS_OK;
  FOR_UNIT(unit, U,
           LAUNCH(heads_pack, grid_for(call, count, BLOCK), BLOCK, 0, call, units<U>(call->operand[0]),
                  units<U>(call->operand[1]), h));
  return launched(err);
}

tws_code tws_cuda_heads_unpack(const tws_cuda_call *call, tws_error *err) {
  TWS_TRY(check_heads(call->work, err));
  FOR_TYPE(call->dtype[0], T, return run_unpack<T>(call, err));
}

tws_code tws_cuda_heads_split(const tws_cuda_call *call, tws_error *err) {
  const int64_t *d = call->work->d, head_bytes = d[3] * bytes_of(call->dtype[0]);
  const int first = unit_for(call->operand[0], call->operand[1], head_bytes),
            second = unit_for(call->operand[0], call->operand[2], head_bytes), unit = first < second ? first : second;
  const int64_t head = head_bytes / unit, row = (d[1] + 2 * d[2]) * head;
  if (d[0] * row == 0) return TWS_OK;
  FOR_UNIT(unit, U,
           LAUNCH(heads_split, grid_for(call, d[0] * row, BLOCK), BLOCK, 0, call, units<U>(call->operand[0]),
                  units<U>(call->operand[1]), units<U>(call->operand[2]), d[0], d[1] * head, row));
  return launched(err);
}

tws_code tws_cuda_heads_join(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return run_join<T>(call, err));
}
