// LayerNorm (Ba et al., 2016) and RMSNorm (Zhang and Sennrich, 2019). Rows stay in registers between the passes over
// them; gradients of weight and bias are column sums in two stages, through scratch, in an order that only the shape
// and the device decide.
#include "real/cuda/kernels/codes.cuh"

namespace {

enum { ROWS = BLOCK / WARP };                   // rows of a block in which each warp processes one row
enum { PER_THREAD = 4, LARGEST_BLOCK = 1024 };  // PER_THREAD: packs of a row that a thread keeps in registers

// Iterates over the packs of a row that this lane owns.
#define EACH_PACK(column, width, V) \
  for (int64_t column = (int64_t)(threadIdx.x % WARP) * V; column < width; column += WARP * V)

// r NULL: nothing is added to x. weight NULL: weights are 1. bias NULL: there is no bias.
template <typename T>
struct Norm {
  const T *x, *r, *weight, *bias;
  T *sum, *y;
  float *stats;
  int64_t tokens, width;
  float epsilon, offset;  // offset: added to the weights
  bool rms;
  float *largest;  // gets, or is raised to, the largest |y|; NULL: none is asked for
  uint8_t *codes;  // CODES: gets the 8-bit codes of y, which is not written
  const float *amax;
  float *scale;
};

template <typename T>
__device__ void keep_stats(const Norm<T> &n, int64_t row, float mean, float inverse) {
  if (n.rms) {
    n.stats[row] = inverse;
  } else {
    n.stats[2 * row] = mean;
    n.stats[2 * row + 1] = inverse;
  }
}

// Replaces pack a by a + b, rounded to the type.
template <typename T, int V>
__device__ void add_pack(Pack<T, V> *a, const Pack<T, V> &b) {
  float sum[V];
#pragma unroll
  for (int j = 0; j < V; ++j) sum[j] = at(*a, j) + at(b, j);
  *a = packed<T>(sum);
}

// Writes the codes of a pack of the output. Returns the bits of the larger of `most` and the largest magnitude.
template <typename T, int V>
__device__ uint32_t cast_pack(const Norm<T> &n, int64_t row, int64_t column, const Pack<T, V> &pack, uint32_t most) {
  const float multiplier = tws_float8_multiplier(*n.amax, TWS_E4M3);
  uint8_t *to = n.codes + row * n.width + column;
  if constexpr (V % 4 == 0) {
#pragma unroll
    for (int i = 0; i < V; i += 4) {
      uint32_t codes = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) codes |= code_of<false>(only_finite(at(pack, i + j), &most) * multiplier) << (8 * j);
      *reinterpret_cast<uint32_t *>(to + i) = codes;
    }
  } else {
    for (int i = 0; i < V; ++i) to[i] = (uint8_t)code_of<false>(only_finite(at(pack, i), &most) * multiplier);
  }
  if (row == 0 && column == 0) *n.scale = 1.0F / multiplier;
  return most;
}

// Returns the bits of the larger of `most` and, where it is asked for, the largest magnitude that is written.
template <typename T, int V, bool CODES>
__device__ uint32_t normalise_pack(const Norm<T> &n, int64_t row, int64_t column, const Pack<T, V> &pack, float mean,
                                   float inverse, uint32_t most) {
  float v[V], w[V] = {}, b[V] = {};
  if (n.weight) load<V>(n.weight + column, w);
  if (n.bias) load<V>(n.bias + column, b);
#pragma unroll
  for (int j = 0; j < V; ++j) v[j] = (at(pack, j) - mean) * inverse * (n.weight ? w[j] + n.offset : 1.0F) + b[j];
  const Pack<T, V> written = packed<T>(v);
  if constexpr (CODES) return cast_pack<T, V>(n, row, column, written, most);
  *reinterpret_cast<Pack<T, V> *>(n.y + row * n.width + column) = written;
  return n.largest ? largest_of(written, most) : most;
}

// Normalizes rows: a block (WHOLE) or a warp processes a row and reads it once. Where V is 1 the compiler would rather
// spill than use more than 32 registers, unless __launch_bounds__ says that one block suffices.
template <typename T, int V, bool RESIDUAL, bool WHOLE, bool CODES>
__global__ void __launch_bounds__(LARGEST_BLOCK, V == 1 ? 1 : 0) norm(Norm<T> n) {
  __shared__ float scratch[LARGEST_BLOCK / WARP];
  const int64_t row = WHOLE ? blockIdx.x : (int64_t)blockIdx.x * ROWS + threadIdx.x / WARP;
  const int packs = (int)(n.width / V), stride = WHOLE ? (int)blockDim.x : (int)WARP;
  const int first = WHOLE ? (int)threadIdx.x : (int)threadIdx.x % WARP;
  if (row >= n.tokens) return;
  Pack<T, V> v[PER_THREAD], r[PER_THREAD];
  float mean = 0.0F, squares = 0.0F;
#pragma unroll
  for (int k = 0; k < PER_THREAD; ++k) {
    const int i = first + k * stride;
    if (i < packs) v[k] = reinterpret_cast<const Pack<T, V> *>(n.x + row * n.width)[i];
    if (i < packs && RESIDUAL) r[k] = reinterpret_cast<const Pack<T, V> *>(n.r + row * n.width)[i];
  }
#pragma unroll
  for (int k = 0; k < PER_THREAD; ++k) {
    const int i = first + k * stride;
    if (i >= packs) break;
    if (RESIDUAL) {
      add_pack(&v[k], r[k]);
      reinterpret_cast<Pack<T, V> *>(n.sum + row * n.width)[i] = v[k];
    }
#pragma unroll
    for (int j = 0; j < V; ++j) mean += at(v[k], j);
  }
  mean = n.rms ? 0.0F : (WHOLE ? block_sum(mean, scratch) : warp_sum(mean)) / (float)n.width;
#pragma unroll
  for (int k = 0; k < PER_THREAD; ++k) {
    if (first + k * stride >= packs) break;
#pragma unroll
    for (int j = 0; j < V; ++j) squares += (at(v[k], j) - mean) * (at(v[k], j) - mean);
  }
  squares = WHOLE ? block_sum(squares, scratch) : warp_sum(squares);
  const float inverse = 1.0F / sqrtf(squares / (float)n.width + n.epsilon);
  uint32_t most = 0;
#pragma unroll
  for (int k = 0; k < PER_THREAD; ++k) {
    const int i = first + k * stride;
    if (i >= packs) break;
    most = normalise_pack<T, V, CODES>(n, row, (int64_t)i * V, v[k], mean, inverse, most);
  }
  if (n.largest) raise_largest(n.largest, most);
  if (first == 0) keep_stats(n, row, mean, inverse);
}

// Normalizes rows that do not fit in the registers of a block: a warp processes a row and reads it again from the
// cache.
template <typename T, int V, bool CODES>
__global__ void __launch_bounds__(BLOCK) norm_wide(Norm<T> n) {
  const int64_t row = (int64_t)blockIdx.x * ROWS + threadIdx.x / WARP;
  if (row >= n.tokens) return;
  const T *from = (n.r ? n.sum : n.x) + row * n.width;
  float mean = 0.0F, squares = 0.0F;
  EACH_PACK(c, n.width, V) {
    Pack<T, V> v = *reinterpret_cast<const Pack<T, V> *>(n.x + row * n.width + c);
    if (n.r) {
      add_pack(&v, *reinterpret_cast<const Pack<T, V> *>(n.r + row * n.width + c));
      *reinterpret_cast<Pack<T, V> *>(n.sum + row * n.width + c) = v;
    }
#pragma unroll
    for (int j = 0; j < V; ++j) mean += at(v, j);
  }
  mean = n.rms ? 0.0F : warp_sum(mean) / (float)n.width;
  EACH_PACK(c, n.width, V) {
    float v[V];
    load<V>(from + c, v);
#pragma unroll
    for (int j = 0; j < V; ++j) squares += (v[j] - mean) * (v[j] - mean);
  }
  const float inverse = 1.0F / sqrtf(warp_sum(squares) / (float)n.width + n.epsilon);
  uint32_t most = 0;
  EACH_PACK(c, n.width, V) {
    const Pack<T, V> v = *reinterpret_cast<const Pack<T, V> *>(from + c);
    most = normalise_pack<T, V, CODES>(n, row, c, v, mean, inverse, most);
  }
  if (n.largest) raise_largest(n.largest, most);
  if (threadIdx.x % WARP == 0) keep_stats(n, row, mean, inverse);
}

// ---- gradient in one pass: threads own columns ----

enum { GRAD_PACKS = 2 };  // packs of each operand that a thread has in flight
// Number of threads whose registers fit on a multiprocessor if each thread keeps PER packs of a row.
template <int PER>
constexpr int grad_threads = PER == 1 ? 768 : 640;

// A thread's packs of the weights: in registers if PER is 1; otherwise they are read from the cache at each use,
// because the row needs the registers.
template <typename T, int V, int PER>
struct Weights {
  const Pack<T, V> *from;
  int packs;
  Pack<T, V> kept;
  __device__ Weights(const T *weight, int count) : from(reinterpret_cast<const Pack<T, V> *>(weight)), packs(count) {
    kept = Pack<T, V>{};
    if (PER == 1 && (int)threadIdx.x < packs) kept = from[threadIdx.x];
  }
  __device__ Pack<T, V> pack(int k) const {
    const int i = (int)(threadIdx.x + k * blockDim.x);
    if (PER == 1) return kept;
    return i < packs ? from[i] : Pack<T, V>{};
  }
};

template <int V, int PER, bool RMS>
__device__ void keep_parts(const float (&normed)[PER][V], const float (&plain)[PER][V], float *to, int packs) {
#pragma unroll
  for (int k = 0; k < PER; ++k) {
    const int i = (int)(threadIdx.x + k * blockDim.x);
    if (i >= packs) break;
    store<V>(to + (int64_t)i * V, normed[k]);
    if (!RMS) store<V>(to + (int64_t)(packs + i) * V, plain[k]);
  }
}

// A thread's sums over the columns of dx. They are in shared memory, because there are too few registers, with the sums
// of adjacent threads adjacent.
template <int V, int PER>
struct Written {
  static constexpr int QUADS = V / 4;
  Pack<float, 4> *mine;
  __device__ Pack<float, 4> &quad(int k, int q) const { return mine[(k * QUADS + q) * (int)blockDim.x]; }
  __device__ void clear() const {
    for (int i = 0; i < PER * QUADS; ++i) mine[i * (int)blockDim.x] = Pack<float, 4>{};
  }
  __device__ void add(int k, const float (&o)[V]) const {
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
      const Pack<float, 4> old = quad(k, q);
      float sum[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[j] = at(old, j) + o[q * 4 + j];
      quad(k, q) = packed<float>(sum);
    }
  }
  __device__ void keep(float *to, int packs) const {
    for (int k = 0; k < PER; ++k) {
      const int i = (int)(threadIdx.x + k * blockDim.x);
      for (int q = 0; q < QUADS && i < packs; ++q)
        reinterpret_cast<Pack<float, 4> *>(to + (int64_t)i * V)[q] = quad(k, q);
    }
  }
};

// Computes dx, and partial sums of the weight's and the bias's gradient. A block processes GRAD_PACKS / PER rows at a
// time, and a thread PER packs of each row; sums over columns stay in registers until the end. sums:
// [blocks][2][width], the sums of dy z and of dy; with SUMS [blocks][3][width], whose third row has the sums of dx.
template <typename T, int V, int PER, bool RMS, bool SUMS>
__global__ void __launch_bounds__(grad_threads<PER>)
    norm_grad(const T *dy, const T *x, const T *weight, const float *stats, T *dx, float *sums, int64_t tokens,
              int packs, float offset, bool accumulate) {
  constexpr int R = GRAD_PACKS / PER;
  typedef Pack<T, V> P;
  __shared__ float scratch[2][grad_threads<PER> / WARP][2 * R];  // two turns' sums of warps
  BLOCK_MEMORY(memory);
  const Written<V, PER> written = {reinterpret_cast<Pack<float, 4> *>(memory) + threadIdx.x};
  if (SUMS) written.clear();
  const int me = (int)threadIdx.x, threads = (int)blockDim.x, warps = threads / WARP;
  const float share = 1.0F / (float)(packs * V);
  float plain[PER][V] = {}, normed[PER][V] = {};
  Weights<T, V, PER> w(weight, packs);
  int turn = 0;
  for (int64_t row0 = (int64_t)blockIdx.x * R; row0 < tokens; row0 += (int64_t)gridDim.x * R, turn ^= 1) {
    P d[R][PER], v[R][PER], old[R][PER];
    float mean[R], inverse[R], sum[2 * R] = {};
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int64_t row = row0 + r;
#pragma unroll
      for (int k = 0; k < PER; ++k) {
        const int i = me + k * threads;
        const bool there = row < tokens && i < packs;
        d[r][k] = v[r][k] = P{};
        if (there) d[r][k] = reinterpret_cast<const P *>(dy)[row * packs + i];
        if (there) v[r][k] = reinterpret_cast<const P *>(x)[row * packs + i];
        if (there && accumulate) old[r][k] = reinterpret_cast<const P *>(dx)[row * packs + i];
      }
      mean[r] = RMS || row >= tokens ? 0.0F : stats[2 * row];
      inverse[r] = row >= tokens ? 0.0F : RMS ? stats[row] : stats[2 * row + 1];
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int k = 0; k < PER; ++k) {
        const P wk = w.pack(k);
#pragma unroll
        for (int j = 0; j < V; ++j) {
          const float g = at(d[r][k], j), z = (at(v[r][k], j) - mean[r]) * inverse[r];
          const float gw = g * (at(wk, j) + offset);
          normed[k][j] += g * z;
          if (!RMS) plain[k][j] += g;
          if (!RMS) sum[2 * r] += gw;
          sum[2 * r + 1] += gw * z;
        }
      }
      if (!RMS) sum[2 * r] = warp_sum(sum[2 * r]);
      sum[2 * r + 1] = warp_sum(sum[2 * r + 1]);
    }
    if (me % WARP == 0) {
#pragma unroll
      for (int r = 0; r < 2 * R; ++r) scratch[turn][me / WARP][r] = sum[r];
    }
    __syncthreads();  // a thread that reaches the next iteration's barrier has read these sums: two buffers suffice
#pragma unroll
    for (int r = 0; r < 2 * R; ++r) sum[r] = 0.0F;
    for (int i = 0; i < warps; ++i) {
#pragma unroll
      for (int r = 0; r < 2 * R; ++r) sum[r] += scratch[turn][i][r];
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const float mean_g = sum[2 * r] * share, mean_gz = sum[2 * r + 1] * share;
#pragma unroll
      for (int k = 0; k < PER; ++k) {
        const int i = me + k * threads;
        float o[V];
        if (row0 + r >= tokens || i >= packs) continue;
        const P wk = w.pack(k);
#pragma unroll
        for (int j = 0; j < V; ++j) {
          const float z = (at(v[r][k], j) - mean[r]) * inverse[r];
          o[j] = (at(d[r][k], j) * (at(wk, j) + offset) - mean_g - z * mean_gz) * inverse[r];
          if (accumulate) o[j] += at(old[r][k], j);
        }
        store<V>(dx + ((row0 + r) * packs + i) * V, o);
        if (SUMS) written.add(k, o);
      }
    }
  }
  float *to = sums + (int64_t)blockIdx.x * (SUMS ? 3 : 2) * packs * V;
  keep_parts<V, PER, RMS>(normed, plain, to, packs);
  if (SUMS) written.keep(to + (int64_t)2 * packs * V, packs);
}

// ---- gradient in two passes: any width and alignment ----

template <typename T, int V, bool RMS>
__global__ void norm_grad_input(const T *dy, const T *x, const T *weight, const float *stats, T *dx, int64_t tokens,
                                int64_t width, float offset, bool accumulate) {
  const int64_t row = (int64_t)blockIdx.x * ROWS + threadIdx.x / WARP;
  if (row >= tokens) return;
  const float mean = RMS ? 0.0F : stats[2 * row], inverse = RMS ? stats[row] : stats[2 * row + 1];
  const T *d = dy + row * width, *from = x + row * width;
  float sum_g = 0.0F, sum_gz = 0.0F;
  EACH_PACK(c, width, V) {
    float g[V], v[V], w[V] = {};
    load<V>(d + c, g);
    load<V>(from + c, v);
    if (weight) load<V>(weight + c, w);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const float gw = g[j] * (weight ? w[j] + offset : 1.0F);
      sum_g += gw;
      sum_gz += gw * ((v[j] - mean) * inverse);
    }
  }
  const float mean_g = RMS ? 0.0F : warp_sum(sum_g) / (float)width, mean_gz = warp_sum(sum_gz) / (float)width;
  EACH_PACK(c, width, V) {
    float g[V], v[V], w[V] = {}, old[V];
    load<V>(d + c, g);
    load<V>(from + c, v);
    if (weight) load<V>(weight + c, w);
    if (accumulate) load<V>(dx + row * width + c, old);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const float z = (v[j] - mean) * inverse;
      g[j] = (g[j] * (weight ? w[j] + offset : 1.0F) - mean_g - z * mean_gz) * inverse + (accumulate ? old[j] : 0.0F);
    }
    store<V>(dx + row * width + c, g);
  }
}

enum { COLUMN_BLOCK = 64, DEEP = 8, PARTS_DEEP = 4 };  // rows of sums over columns that a thread has in flight

// Computes partial column sums: part p of `parts` adds rows p, p + parts, ...; a thread owns V columns.
//
// sums: [parts][2][width], the sums of dy z and of dy.
template <typename T, int V, bool RMS>
__global__ void __launch_bounds__(COLUMN_BLOCK)
    column_parts(const T *dy, const T *x, const float *stats, float *sums, int64_t tokens, int64_t width) {
  struct Row {
    Pack<T, V> d, v;
    float mean, inverse;
  };
  const int64_t c = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * V, step = gridDim.y;
  if (c >= width) return;
  float plain[V] = {}, normed[V] = {};
  for (int64_t first = blockIdx.y; first < tokens; first += PARTS_DEEP * step)
    at_once<PARTS_DEEP>(
        first, tokens, step,
        [=](int64_t row) {
          return Row{*reinterpret_cast<const Pack<T, V> *>(dy + row * width + c),
                     *reinterpret_cast<const Pack<T, V> *>(x + row * width + c), RMS ? 0.0F : stats[2 * row],
                     RMS ? stats[row] : stats[2 * row + 1]};
        },
        [&](int64_t, const Row &r) {
          add_to<T, V>(plain, r.d);
#pragma unroll
          for (int j = 0; j < V; ++j) normed[j] += at(r.d, j) * ((at(r.v, j) - r.mean) * r.inverse);
        });
  float *to = sums + (int64_t)blockIdx.y * width * 2 + c;
#pragma unroll
  for (int j = 0; j < V; ++j) to[j] = normed[j];
#pragma unroll
  for (int j = 0; j < V; ++j) to[width + j] = plain[j];
}

// Computes partial column sums of one matrix x: sums[parts][width].
template <typename T, int V>
__global__ void __launch_bounds__(COLUMN_BLOCK) sum_parts(const T *x, float *sums, int64_t rows, int64_t width) {
  const int64_t c = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * V, step = gridDim.y;
  if (c >= width) return;
  float sum[V] = {};
  for (int64_t first = blockIdx.y; first < rows; first += DEEP * step)
    at_once<DEEP>(
        first, rows, step, [=](int64_t row) { return *reinterpret_cast<const Pack<T, V> *>(x + row * width + c); },
        [&](int64_t, const Pack<T, V> &v) { add_to<T, V>(sum, v); });
  float *to = sums + (int64_t)blockIdx.y * width + c;
#pragma unroll
  for (int j = 0; j < V; ++j) to[j] = sum[j];
}

enum { FINISH_BLOCK = 1024, FINISH_GROUPS = FINISH_BLOCK / WARP };

// Computes to[n][c] (+)= sum over parts of sums[part stride + n width + c]. A block computes 32 columns; each of its
// warps adds every FINISH_GROUPS-th part.
template <typename T>
struct Sums {
  T *to[3];
};
template <typename T>
__global__ void __launch_bounds__(FINISH_BLOCK)
    column_finish(const float *sums, int parts, int64_t stride, int64_t width, Sums<T> all, bool accumulate) {
  __shared__ float scratch[FINISH_GROUPS][WARP];
  const int lane = (int)threadIdx.x % WARP, group = (int)threadIdx.x / WARP;
  const int64_t c = (int64_t)blockIdx.x * WARP + lane;
  T *to = blockIdx.y == 0 ? all.to[0] : blockIdx.y == 1 ? all.to[1] : all.to[2];
  sums += blockIdx.y * width + c;
  float sum = 0.0F;
  if (c < width) {
    for (int p = group; p < parts; p += DEEP * FINISH_GROUPS) {
      float v[DEEP];  // a loop instead of at_once(), which would need more registers than each thread of 1024 has
#pragma unroll
      for (int k = 0; k < DEEP; ++k)
        v[k] = p + k * FINISH_GROUPS < parts ? sums[(p + k * FINISH_GROUPS) * stride] : 0.0F;
#pragma unroll
      for (int k = 0; k < DEEP; ++k) sum += v[k];
    }
  }
  scratch[group][lane] = sum;
  __syncthreads();
  if (group != 0 || c >= width) return;
  sum = accumulate ? to_float(to[c]) : 0.0F;
  for (int i = 0; i < FINISH_GROUPS; ++i) sum += scratch[i][lane];
  to[c] = from_float<T>(sum);
}

// Returns the number of partial sums: enough to fill the device, and few enough for the scratch memory; 0: not even one
// fits.
int parts_for(const tws_cuda_call *call, int64_t tokens, int64_t width, int64_t floats_per_column, int pack) {
  const int64_t chunks = ceil_div(width, (int64_t)COLUMN_BLOCK * pack);
  int64_t parts = ceil_div((int64_t)call->multiprocessors * 8, chunks);
  const int64_t most = (int64_t)(call->scratch_bytes / sizeof(float)) / (width * floats_per_column);
  if (parts > tokens) parts = tokens;
  if (parts > most) parts = most;
  if (parts < 1 && most > 0) parts = 1;  // no tokens: one part of zeros
  return (int)(parts < 512 ? parts : 512);
}

tws_code too_wide(int64_t width, tws_error *err) {
  return tws_fail(err, TWS_UNSUPPORTED, NULL, "column sums of %lld columns do not fit the scratch memory",
                  (long long)width);
}

// Adds the partial sums of all parts; row i of the `count` rows of sums is written to to[i].
tws_code finish(const tws_cuda_call *call, const float *sums, int parts, int64_t stride, int64_t width, void *const *to,
                int count, tws_dtype type, bool accumulate, tws_error *err) {
  const dim3 grid((unsigned)ceil_div(width, WARP), (unsigned)count);
  FOR_TYPE(type, G, {
    Sums<G> all = {};
    for (int i = 0; i < count; ++i) all.to[i] = static_cast<G *>(to[i]);
    LAUNCH(column_finish<G>, grid, FINISH_BLOCK, 0, call, sums, parts, stride, width, all, accumulate);
  });
  return launched(err);
}

template <typename T, int V, bool RESIDUAL, bool CODES>
tws_code start_norm(const tws_cuda_call *call, const Norm<T> &n, tws_error *err) {
  const int64_t threads = ceil_div(n.width / V, PER_THREAD * WARP) * WARP, groups = ceil_div(n.tokens, ROWS);
  if (threads == WARP)
    LAUNCH((norm<T, V, RESIDUAL, false, CODES>), (unsigned)groups, BLOCK, 0, call, n);
  else if (threads <= LARGEST_BLOCK)
    LAUNCH((norm<T, V, RESIDUAL, true, CODES>), (unsigned)n.tokens, (unsigned)threads, 0, call, n);
  else
    LAUNCH((norm_wide<T, V, CODES>), (unsigned)groups, BLOCK, 0, call, n);
  return launched(err);
}

template <typename T, bool CODES>
tws_code choose_norm(const tws_cuda_call *call, const Norm<T> &n, bool aligned, tws_error *err) {
  constexpr int N = Width<T>::value;
  if (aligned)
    return n.r ? start_norm<T, N, true, CODES>(call, n, err) : start_norm<T, N, false, CODES>(call, n, err);
  return n.r ? start_norm<T, 1, true, CODES>(call, n, err) : start_norm<T, 1, false, CODES>(call, n, err);
}

template <typename T>
tws_code run_norm(const tws_cuda_call *call, tws_error *err) {
  constexpr int N = Width<T>::value;
  const uint32_t flags = call->work->flags;
  const int64_t tokens = call->work->d[0], width = call->work->d[1];
  const bool rms = flags & TWS_RMS, biased = (flags & TWS_BIAS) && !rms, residual = flags & TWS_RESIDUAL;
  const bool plain = flags & TWS_PLAIN;
  const int y = plain ? 1 : biased ? 3 : 2;
  if (tokens == 0 || width == 0) return TWS_OK;
  const bool casts = flags & TWS_FP8;
  const Norm<T> n = {in<T>(call, 0),
                     residual ? in<T>(call, y + 2) : nullptr,
                     plain ? nullptr : in<T>(call, 1),
                     biased ? in<T>(call, 2) : nullptr,
                     residual ? out<T>(call, y + 3) : nullptr,
                     casts ? nullptr : out<T>(call, y),
                     out<float>(call, y + 1),
                     tokens,
                     width,
                     (float)call->work->f[0],
                     (float)call->work->f[1],
                     rms,
                     casts || flags & TWS_LARGEST ? out<float>(call, call->count - 1) : nullptr,
                     casts ? out<uint8_t>(call, y) : nullptr,
                     casts ? in<float>(call, call->count - 3) : nullptr,
                     casts ? out<float>(call, call->count - 2) : nullptr};
  if (n.largest && !casts) TWS_TRY(clear_largest(call, n.largest, err));
  const bool aligned = packable<N>(n.x, width) && packable<N>(n.r, width) && packable<N>(n.weight, width) &&
                       packable<N>(n.bias, width) && packable<N>(n.sum, width) && packable<N>(n.y, width) &&
                       packable<N>(n.codes, width);
  if (casts) return choose_norm<T, true>(call, n, aligned, err);
  return choose_norm<T, false>(call, n, aligned, err);
}

// Returns true if a layer's bias gradient is computed from dx, which is written here.
bool has_sums(const tws_cuda_call *call) {
  return (call->work->flags & TWS_SUMS) != 0;
}

// Final stage of the gradient kernels: adds the column sums of all parts, each of which has `rows` rows of sums.
tws_code finish_params(const tws_cuda_call *call, int parts, int rows, tws_error *err) {
  const int64_t width = call->work->d[1];
  const int count = rows < 3 && has_sums(call) ? call->count - 6 : call->count - 5;
  return finish(call, static_cast<float *>(call->scratch), parts, rows * width, width, call->operand + 5, count,
                call->dtype[5], (call->work->flags & TWS_ACCUMULATE_PARAM) != 0, err);
}

// Computes the column sums of dx in a separate pass, if they are requested.
tws_code sum_written(const tws_cuda_call *call, tws_error *err) {
  const int dx = call->work->flags & TWS_PLAIN ? 3 : 4, sums = call->count - 1;
  if (!has_sums(call)) return TWS_OK;
  return tws_cuda_column_sums(call, call->operand[dx], call->dtype[dx], call->work->d[0], call->work->d[1],
                              call->operand[sums], call->dtype[sums], call->work->flags & TWS_ACCUMULATE_PARAM, err);
}

// Runs the gradient in one pass, with as many blocks as the multiprocessors can run concurrently.
template <typename T, int V, int PER, bool RMS, bool SUMS>
tws_code one_pass(const tws_cuda_call *call, tws_error *err) {
  constexpr int rows = SUMS ? 3 : 2;
  const int64_t tokens = call->work->d[0], width = call->work->d[1], packs = width / V;
  const int64_t threads = ceil_div(packs, PER * WARP) * WARP,
                fill = call->multiprocessors * (grad_threads<PER> / threads);
  const int64_t most = (int64_t)(call->scratch_bytes / sizeof(float)) / (rows * width);
  int64_t blocks = ceil_div(tokens, GRAD_PACKS / PER);
  if (blocks > fill) blocks = fill;
  if (blocks > most) blocks = most;
  if (blocks < 1) blocks = 1;  // no tokens: sums of nothing
  const size_t shared = SUMS ? (size_t)(threads * PER * V) * sizeof(float) : 0;  // 40 KiB at most
  LAUNCH((norm_grad<T, V, PER, RMS, SUMS>), (unsigned)blocks, (unsigned)threads, shared, call, in<T>(call, 0),
         in<T>(call, 1), in<T>(call, 2), in<float>(call, 3), out<T>(call, 4), static_cast<float *>(call->scratch),
         tokens, (int)packs, (float)call->work->f[1], (call->work->flags & TWS_ACCUMULATE) != 0);
  TWS_TRY(launched(err));
  return finish_params(call, (int)blocks, rows, err);
}

// Computes the gradients in one pass and, if requested, the column sums of dx. The one-pass kernel has these sums for
// LayerNorm only: layers after an RMSNorm seldom have biases, so their sums take a separate pass.
template <typename T, int V, int PER, bool RMS>
tws_code run_one_pass(const tws_cuda_call *call, tws_error *err) {
  if constexpr (!RMS)
    if (has_sums(call) && (call->work->flags & TWS_BIAS)) return one_pass<T, V, PER, false, true>(call, err);
  TWS_TRY((one_pass<T, V, PER, RMS, false>(call, err)));
  return sum_written(call, err);
}

template <typename T, int V, bool RMS>
tws_code two_passes(const tws_cuda_call *call, tws_error *err) {
  const int64_t tokens = call->work->d[0], width = call->work->d[1];
  const T *dy = in<T>(call, 0), *x = in<T>(call, 1);
  const float *stats = in<float>(call, 3);
  const int parts = parts_for(call, tokens, width, 2, V);
  if (parts < 1) return too_wide(width, err);
  const dim3 grid((unsigned)ceil_div(width, (int64_t)COLUMN_BLOCK * V), (unsigned)parts);
  LAUNCH((column_parts<T, V, RMS>), grid, COLUMN_BLOCK, 0, call, dy, x, stats, static_cast<float *>(call->scratch),
         tokens, width);
  TWS_TRY(launched(err));
  TWS_TRY(finish_params(call, parts, 2, err));
  if (tokens == 0) return sum_written(call, err);
  LAUNCH((norm_grad_input<T, V, RMS>), (unsigned)ceil_div(tokens, ROWS), BLOCK, 0, call, dy, x, in<T>(call, 2), stats,
         out<T>(call, 4), tokens, width, (float)call->work->f[1], (call->work->flags & TWS_ACCUMULATE) != 0);
  TWS_TRY(launched(err));
  return sum_written(call, err);
}

// Computes the gradient of a norm without weights, which has no sums over columns.
template <typename T, bool RMS>
tws_code run_plain_grad(const tws_cuda_call *call, tws_error *err) {
  constexpr int N = Width<T>::value;
  const int64_t tokens = call->work->d[0], width = call->work->d[1];
  const T *dy = in<T>(call, 0), *x = in<T>(call, 1), *none = nullptr;
  T *dx = out<T>(call, 3);
  const bool adds = (call->work->flags & TWS_ACCUMULATE) != 0;
  if (tokens == 0 || width == 0) return sum_written(call, err);
  if (packable<N>(dy, width) && packable<N>(x, width) && packable<N>(dx, width))
    LAUNCH((norm_grad_input<T, N, RMS>), (unsigned)ceil_div(tokens, ROWS), BLOCK, 0, call, dy, x, none,
           in<float>(call, 2), dx, tokens, width, 0.0F, adds);
  else
    LAUNCH((norm_grad_input<T, 1, RMS>), (unsigned)ceil_div(tokens, ROWS), BLOCK, 0, call, dy, x, none,
           in<float>(call, 2), dx, tokens, width, 0.0F, adds);
  TWS_TRY(launched(err));
  return sum_written(call, err);
}

template <typename T, bool RMS>
tws_code run_norm_grad(const tws_cuda_call *call, tws_error *err) {
  constexpr int N = Width<T>::value;
  const int64_t width = call->work->d[1], packs = width / N;
  if (width == 0) return TWS_OK;
  if (call->work->flags & TWS_PLAIN) return run_plain_grad<T, RMS>(call, err);
  const bool aligned = packable<N>(in<T>(call, 0), width) && packable<N>(in<T>(call, 1), width) &&
                       packable<N>(in<T>(call, 2), width) && packable<N>(in<T>(call, 4), width);
  if (!aligned) return two_passes<T, 1, RMS>(call, err);
  if (packs <= grad_threads<1> / 2) return run_one_pass<T, N, 1, RMS>(call, err);
  if (packs <= grad_threads<2> * 2) return run_one_pass<T, N, 2, RMS>(call, err);
  return two_passes<T, N, RMS>(call, err);
}

template <typename T>
tws_code run_column_sums(const tws_cuda_call *call, const T *x, int64_t rows, int64_t columns, void *to, tws_dtype type,
                         bool accumulate, tws_error *err) {
  constexpr int N = Width<T>::value;
  float *sums = static_cast<float *>(call->scratch);
  const bool aligned = packable<N>(x, columns);
  const int parts = parts_for(call, rows, columns, 1, aligned ? N : 1);
  if (parts < 1) return too_wide(columns, err);
  const dim3 grid((unsigned)ceil_div(columns, (int64_t)COLUMN_BLOCK * (aligned ? N : 1)), (unsigned)parts);
  if (aligned)
    LAUNCH((sum_parts<T, N>), grid, COLUMN_BLOCK, 0, call, x, sums, rows, columns);
  else
    LAUNCH((sum_parts<T, 1>), grid, COLUMN_BLOCK, 0, call, x, sums, rows, columns);
  TWS_TRY(launched(err));
  return finish(call, sums, parts, columns, columns, &to, 1, type, accumulate, err);
}

}  // namespace

tws_code tws_cuda_norm(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return run_norm<T>(call, err));
}
tws_code tws_cuda_norm_grad(const tws_cuda_call *call, tws_error *err) {
  if (call->work->flags & TWS_RMS) FOR_TYPE(call->dtype[0], T, return (run_norm_grad<T, true>(call, err)));
  FOR_TYPE(call->dtype[0], T, return (run_norm_grad<T, false>(call, err)));
}
tws_code tws_cuda_column_sums(const tws_cuda_call *call, const void *x, tws_dtype type, int64_t rows, int64_t columns,
                              void *to, tws_dtype to_type, int accumulate, tws_error *err) {
  if (columns == 0) return TWS_OK;
  FOR_TYPE(type, T,
           return run_column_sums(call, static_cast<const T *>(x), rows, columns, to, to_type, accumulate != 0, err));
}
tws_code tws_cuda_finish_columns(const tws_cuda_call *call, int parts, int64_t columns, void *to, tws_dtype type,
                                 int accumulate, tws_error *err) {
  return finish(call, static_cast<float *>(call->scratch), parts, columns, columns, &to, 1, type, accumulate != 0, err);
}
