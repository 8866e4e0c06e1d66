// Rotary position embedding in place (Su et al., "RoFormer", 2021); models/rope.h has the angles. Positions restart
// with every sequence; a block processes one position, with its token of each sequence. If samples are packed with
// documents a block has one token.
#include "real/cuda/kernels/common.cuh"

extern "C" {
#include "models/rope.h"
#include "models/zigzag.h"
}

namespace {

enum { CHUNK = 128 };  // pairs whose angles are in shared memory at a time; a multiple of any pack

// Rotates V pairs at a time, whose halves are `apart` from each other: adjacent (V = 1) or half of the rotated
// dimension. `first` and `step`: the block's tokens.
template <typename T, int V>
__global__ void __launch_bounds__(BLOCK)
    rope(T *qkv, tws_rope_form form, int64_t tokens, unsigned rotated, int64_t row, int head, int64_t seq,
         float direction, int64_t start, int64_t gap, const int32_t *documents) {
  alignas(16) __shared__ float cosine[CHUNK], sine[CHUNK];
  const int half = (int)form.rotary / 2, step_of_pair = form.interleaved ? 2 : 1, apart = form.interleaved ? 1 : half;
  const int64_t first = blockIdx.x + (int64_t)blockIdx.y * seq, step = documents ? tokens : (int64_t)gridDim.y * seq;
  const int64_t begins = documents ? documents[2 * first] : 0;
  const int64_t position = start + tws_zigzag_position(seq, gap, first % seq) - begins;
  const unsigned mine = first < tokens ? (unsigned)((tokens - first + step - 1) / step) : 0;
  for (int begin = 0; begin < half; begin += CHUNK) {
    const int columns = half - begin < CHUNK ? half - begin : (int)CHUNK;
    const unsigned packs = (unsigned)columns / V, items = rotated * packs;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < columns; i += (int)blockDim.x) {
      double s, c;
      sincos((double)position * tws_rope_frequency(&form, begin + i), &s, &c);
      cosine[i] = (float)(form.gain * c);
      sine[i] = direction * (float)(form.gain * s);
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < mine * items; i += blockDim.x) {
      const unsigned token = i / items, item = i % items, pair = item % packs * V;
      T *a = qkv + (first + token * step) * row + (int64_t)(item / packs) * head + (begin + pair) * step_of_pair;
      float x[V], y[V], to_x[V], to_y[V];
      load<V>(a, x);
      load<V>(a + apart, y);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const float c = cosine[pair + j], s = sine[pair + j];
        to_x[j] = x[j] * c - y[j] * s;
        to_y[j] = y[j] * c + x[j] * s;
      }
      store<V>(a, to_x);
      store<V>(a + apart, to_y);
    }
  }
}

template <typename T>
tws_code run_rope(const tws_cuda_call *call, float direction, tws_error *err) {
  constexpr int N = Width<T>::value;
  const int64_t *d = call->work->d;
  const int64_t tokens = d[0], rotated = d[1] + d[2], head = d[3], seq = d[4], row = (d[1] + 2 * d[2]) * head;
  const int has_factors = (call->work->flags & TWS_RUNNING) != 0;
  const int32_t *documents = call->work->flags & TWS_DOCUMENTS ? in<int32_t>(call, 1 + has_factors) : nullptr;
  const int64_t positions = !documents && seq < tokens ? seq : tokens;
  if (positions == 0 || head == 0) return TWS_OK;
  const tws_rope_form form = tws_rope_form_of(call->work, has_factors ? in<float>(call, 1) : nullptr);
  const int64_t sequences = ceil_div(tokens, positions),
                wanted = ceil_div((int64_t)call->multiprocessors * 16, positions);
  const int64_t rows = wanted < sequences ? wanted : sequences;
  const dim3 grid((unsigned)positions, (unsigned)(rows < 65535 ? rows : 65535));
  if (ceil_div(sequences, grid.y) * rotated * head > UINT32_MAX)
    return tws_fail(err, TWS_UNSUPPORTED, "use a smaller micro batch", "rotary embedding of %lld tokens",
                    (long long)tokens);
  const int64_t start = (int64_t)call->argument[0], gap = (int64_t)call->argument[1];
  T *qkv = out<T>(call, 0);
  if (!form.interleaved && packable<N>(qkv, head) && packable<N>(qkv, form.rotary / 2))
    LAUNCH((rope<T, N>), grid, BLOCK, 0, call, qkv, form, tokens, (unsigned)rotated, row, (int)head, seq, direction,
           start, gap, documents);
  else
    LAUNCH((rope<T, 1>), grid, BLOCK, 0, call, qkv, form, tokens, (unsigned)rotated, row, (int)head, seq, direction,
           start, gap, documents);
  return launched(err);
}

tws_code start_rope(const tws_cuda_call *call, float direction, tws_error *err) {
  TWS_TRY(tws_rope_check(call->work, err));
  FOR_TYPE(call->dtype[0], T, return run_rope<T>(call, direction, err));
}

}  // namespace

tws_code tws_cuda_rope(const tws_cuda_call *call, tws_error *err) {
  return start_rope(call, 1.0F, err);
}
tws_code tws_cuda_rope_grad(const tws_cuda_call *call, tws_error *err) {
  return start_rope(call, -1.0F, err);
}
