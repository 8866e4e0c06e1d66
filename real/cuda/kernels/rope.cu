// Rotary position embedding in place (Su et al., "RoFormer", 2021), rotate-half convention, with the frequency scaling
// of Llama 3.1. Positions restart with every sequence; a block has one position and takes its token of each sequence.
#include "real/cuda/kernels/common.cuh"

namespace {

enum { CHUNK = 128 };  // pairs whose angles are in shared memory at a time

struct RopeScaling {
  double theta, factor, low, high, original;
};

// Llama 3.1 divides low frequencies by a factor, keeps high ones and blends between.
__device__ double frequency_of(const RopeScaling &s, int64_t head, int64_t i) {
  const double frequency = pow(s.theta, -2.0 * (double)i / (double)head);
  if (s.factor == 0.0) return frequency;
  const double wavelength = 2.0 * CUDART_PI / frequency;
  if (wavelength < s.original / s.high) return frequency;
  if (wavelength > s.original / s.low) return frequency / s.factor;
  const double smooth = (s.original / wavelength - s.low) / (s.high - s.low);
  return (1.0 - smooth) * frequency / s.factor + smooth * frequency;
}

template <typename T>
__global__ void rope(T *qkv, RopeScaling scaling, int64_t tokens, int64_t rotated, int64_t row, int64_t head,
                     int64_t seq, float direction) {
  __shared__ float cosine[CHUNK], sine[CHUNK];
  const int64_t half = head / 2, position = blockIdx.x;
  for (int64_t begin = 0; begin < half; begin += CHUNK) {
    const int columns = (int)(half - begin < CHUNK ? half - begin : (int64_t)CHUNK);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < columns; i += (int)blockDim.x) {
      double s, c;
      sincos((double)position * frequency_of(scaling, head, begin + i), &s, &c);
      cosine[i] = (float)c;
      sine[i] = direction * (float)s;
    }
    __syncthreads();
    for (int64_t t = position + (int64_t)blockIdx.y * seq; t < tokens; t += (int64_t)gridDim.y * seq)
      for (int64_t i = threadIdx.x; i < rotated * columns; i += blockDim.x) {
        const int pair = (int)(i % columns);
        T *a = qkv + t * row + i / columns * head + begin + pair, *b = a + half;
        const float x = to_float(*a), y = to_float(*b);
        *a = from_float<T>(x * cosine[pair] - y * sine[pair]);
        *b = from_float<T>(y * cosine[pair] + x * sine[pair]);
      }
  }
}

template <typename T>
tws_code run_rope(const tws_cuda_call *call, float direction, tws_error *err) {
  const int64_t *d = call->work->d;
  const double *f = call->work->f;
  const int64_t tokens = d[0], rotated = d[1] + d[2], head = d[3], seq = d[4];
  const int64_t positions = seq < tokens ? seq : tokens;
  if (positions == 0 || head == 0) return TWS_OK;
  const RopeScaling scaling = {f[0], f[1], f[2], f[3], f[4]};
  const int64_t sequences = ceil_div(tokens, seq), wanted = ceil_div((int64_t)call->multiprocessors * 16, positions);
  const int64_t rows = wanted < sequences ? wanted : sequences;
  const dim3 grid((unsigned)positions, (unsigned)(rows < 65535 ? rows : 65535));
  LAUNCH(rope, grid, BLOCK, 0, call, out<T>(call, 0), scaling, tokens, rotated, (d[1] + 2 * d[2]) * head, head, seq,
         direction);
  return launched(err);
}

}  // namespace

tws_code tws_cuda_rope(const tws_cuda_call *call, tws_error *err) {
  const float direction = call->work->code == TWS_KERNEL_ROPE_GRAD ? -1.0F : 1.0F;
  if (call->work->d[3] % 2)
    return tws_fail(err, TWS_UNSUPPORTED, NULL, "rotary embedding of an odd head size, %lld",
                    (long long)call->work->d[3]);
  FOR_TYPE(call->dtype[0], T, return run_rope<T>(call, direction, err));
}
