// Products of tiles on tensor cores, for 16-bit types with float32 sums. A block of BLOCK threads (eight warps, two
// down and four across) computes DOWN rows of a product's result and Across<N8>::value columns, DEEP elements of the
// inner index at a time. Both factors' parts are copied from device memory to shared memory asynchronously, STAGES - 1
// parts ahead of the arithmetic. A warp loads its share of them as fragments (ldmatrix) and multiplies 16 x 8 x 16
// elements at once (mma.sync, from compute capability 8.0 on). The order of a sum depends on the number of inner
// elements alone, so equal work gives equal bits.
#ifndef TWS_REAL_CUDA_KERNELS_TENSOR_CORES_CUH
#define TWS_REAL_CUDA_KERNELS_TENSOR_CORES_CUH

#include "real/cuda/kernels/common.cuh"

// The instructions; tests/emulator defines the same functions for the host.
#ifdef __CUDACC__
// Loads four matrices of 8 x 8 elements of 16 bits from shared memory: the lanes 8 i .. 8 i + 7 pass the addresses of
// the rows of matrix i. Lane l gets the elements 2 (l % 4) and the next one of row l / 4 of each matrix. `turned`:
// rows and columns are exchanged on the way.
template <bool turned>
__device__ inline void load_matrices(uint32_t (&to)[4], const void *row) {
  const uint32_t address = (uint32_t)__cvta_generic_to_shared(row);
  if constexpr (turned)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}
// Adds the product of a (16 x 16) and b (16 x 8) to sum (16 x 8). Lane l has of `sum` the columns 2 (l % 4) and the
// next one of row l / 4, then of the row 8 below.
__device__ inline void multiply_add(bf16, float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void multiply_add(f16, float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Starts a copy of 16 bytes from device to shared memory; with `inside` false 16 zero bytes are written and nothing is
// read.
__device__ inline void copy_chunk(float4 *to, const void *from, bool inside) {
  const uint32_t address = (uint32_t)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(inside ? 16 : 0)
               : "memory");
}
// Ends a group of this thread's copies.
__device__ inline void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits for all groups of this thread but the last N.
template <int N>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
#endif

namespace {

enum {
  DOWN = 128,
  DEEP = 32,
  STAGES = 3,
  CHUNK = 8,
  WARPS_ACROSS = 4,
  ROWS16 = 4
};  // CHUNK: elements of 16 bytes;
    // ROWS16: groups of 16 rows a warp

// N8: groups of 8 columns of a warp.
template <int N8>
struct Across {
  static constexpr int value = WARPS_ACROSS * 8 * N8;
  static constexpr size_t stage_chunks = (size_t)(DOWN + value) * DEEP / CHUNK;
  static constexpr size_t bytes = STAGES * stage_chunks * sizeof(float4);  // shared memory of a block
};

// A factor of a product: element (outer, inner) is at[outer stride + inner] where elements of the inner index are
// adjacent, and at[outer + inner stride] elsewhere. Outer elements from `outer` on do not exist and count as 0. `at`
// is aligned to 16 bytes; `stride` is a multiple of CHUNK, and so are the number of inner elements where these are
// adjacent, and `outer` elsewhere.
template <typename T>
struct Factor {
  const T *at;
  int stride, outer;
};

// Returns the place of a chunk in a part of OUTER x DEEP elements in shared memory. adjacent: `row` is an outer index,
// and its chunks follow the inner index; elsewhere the other way round. Chunks of a row are exchanged so that the eight
// rows that a matrix is loaded from lie in different banks.
template <int OUTER, bool adjacent>
__device__ inline int place_of(int row, int chunk) {
  return adjacent ? row * (DEEP / CHUNK) + (chunk ^ (row / 2 % (DEEP / CHUNK)))
                  : row * (OUTER / CHUNK) + (chunk ^ (row % 8));
}

// Starts the copies of OUTER x DEEP elements, from inner element `start` on.
template <int OUTER, bool adjacent, typename T>
__device__ inline void copy_part(float4 *to, const Factor<T> &f, int start, int inner) {
  constexpr int chunks = adjacent ? DEEP / CHUNK : OUTER / CHUNK;
#pragma unroll
  for (int n = 0; n < OUTER * DEEP / CHUNK / BLOCK; ++n) {
    const int i = n * BLOCK + (int)threadIdx.x, row = i / chunks, chunk = i % chunks;
    const int outer = adjacent ? row : chunk * CHUNK;
    const int k = start + (adjacent ? chunk * CHUNK : row);
    const bool inside = outer < f.outer && k < inner;
    const int64_t from = adjacent ? (int64_t)outer * f.stride + k : (int64_t)k * f.stride + outer;
    copy_chunk(to + place_of<OUTER, adjacent>(row, chunk), f.at + (inside ? from : 0), inside);
  }
}

// Loads the fragment of a left factor: 16 outer elements from `outer` on, 16 inner ones from `inner` on.
template <bool adjacent>
__device__ inline void load_left(uint32_t (&to)[4], const float4 *part, int outer, int inner, int lane) {
  if constexpr (adjacent)
    load_matrices<false>(to, part + place_of<DOWN, true>(outer + lane % 16, inner / CHUNK + lane / 16));
  else
    load_matrices<true>(to,
                        part + place_of<DOWN, false>(inner + lane % 8 + lane / 16 * 8, outer / CHUNK + lane / 8 % 2));
}
// Loads the fragments of a right factor for 16 outer elements: words 0 and 1 are those of the first eight.
template <int OUTER, bool adjacent>
__device__ inline void load_right(uint32_t (&to)[4], const float4 *part, int outer, int inner, int lane) {
  if constexpr (adjacent)
    load_matrices<false>(to,
                         part + place_of<OUTER, true>(outer + lane % 8 + lane / 16 * 8, inner / CHUNK + lane / 8 % 2));
  else
    load_matrices<true>(to, part + place_of<OUTER, false>(inner + lane % 16, outer / CHUNK + lane / 16));
}

// The sums of a thread: sum[i][j] is its part of the warp's i-th 16 rows and j-th 8 columns.
template <int N8>
struct Sums {
  float sum[ROWS16][N8][4];
};

// Adds the product of both factors over `inner` elements. All threads of a block call this, with `memory` of
// Across<N8>::bytes, which nothing else may use until this returns.
template <int N8, bool a_adjacent, bool b_adjacent, typename T>
__device__ inline void multiply_tile(Sums<N8> &sums, const Factor<T> &a, const Factor<T> &b, int inner,
                                     float4 *memory) {
  constexpr int across = Across<N8>::value, stage_chunks = (int)Across<N8>::stage_chunks;
  constexpr int left_chunks = DOWN * DEEP / CHUNK;
  const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
  const int row0 = warp / WARPS_ACROSS * ROWS16 * 16, column0 = warp % WARPS_ACROSS * N8 * 8;
  const int steps = (inner + DEEP - 1) / DEEP;
  const auto copy = [&](int step) {
    float4 *to = memory + step % STAGES * stage_chunks;
    if (step < steps) {
      copy_part<DOWN, a_adjacent>(to, a, step * DEEP, inner);
      copy_part<across, b_adjacent>(to + left_chunks, b, step * DEEP, inner);
    }
    commit_copies();
  };
  for (int step = 0; step < STAGES - 1; ++step) copy(step);
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<STAGES - 2>();
    __syncthreads();  // the part has arrived for all threads, and all have read the part that is overwritten now
    copy(step + STAGES - 1);
    const float4 *left = memory + step % STAGES * stage_chunks, *right = left + left_chunks;
#pragma unroll
    for (int k = 0; k < DEEP; k += 16) {
      uint32_t fa[ROWS16][4], fb[N8 / 2][4];
#pragma unroll
      for (int i = 0; i < ROWS16; ++i) load_left<a_adjacent>(fa[i], left, row0 + 16 * i, k, lane);
#pragma unroll
      for (int j = 0; j < N8 / 2; ++j) load_right<across, b_adjacent>(fb[j], right, column0 + 16 * j, k, lane);
#pragma unroll
      for (int i = 0; i < ROWS16; ++i)
#pragma unroll
        for (int j = 0; j < N8; ++j)
          multiply_add(T(), sums.sum[i][j], fa[i], fb[j / 2][j % 2 * 2], fb[j / 2][j % 2 * 2 + 1]);
    }
  }
  wait_for_copies<0>();
  __syncthreads();
}

// Calls use(row, column, values) for each pair of adjacent elements of a thread's sums; row and column count from the
// tile's first, and column is even.
template <int N8, typename Use>
__device__ inline void each_pair(const Sums<N8> &sums, Use use) {
  const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
  const int row0 = warp / WARPS_ACROSS * ROWS16 * 16 + lane / 4, column0 = warp % WARPS_ACROSS * N8 * 8 + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < ROWS16; ++i)
#pragma unroll
    for (int below = 0; below < 2; ++below)
#pragma unroll
      for (int j = 0; j < N8; ++j) {
        float values[2] = {sums.sum[i][j][2 * below], sums.sum[i][j][2 * below + 1]};
        use(row0 + 16 * i + 8 * below, column0 + 8 * j, values);
      }
}

}  // namespace

#endif
