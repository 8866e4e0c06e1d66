/* Rotary position embedding in place (Su et al., "RoFormer", 2021), rotate-half convention, with the frequency scaling
 * of Llama 3.1. Positions restart with every sequence. */
#include "real/host/kernels/kernels.h"

enum { CHUNK = 64 };

typedef struct rope_job {
  const tws_host_call *call;
  int backward;
} rope_job;

/* Llama 3.1 divides low frequencies by a factor, keeps high ones and blends between. */
static double rope_frequency(const double *f, int64_t head, int64_t i) {
  double frequency = pow(f[0], -2.0 * (double)i / (double)head);
  if (f[1] == 0) return frequency;
  const double wavelength = 2 * M_PI / frequency, factor = f[1], low = f[2], high = f[3], original = f[4];
  if (wavelength < original / high) return frequency;
  if (wavelength > original / low) return frequency / factor;
  const double smooth = (original / wavelength - low) / (high - low);
  return (1 - smooth) * frequency / factor + smooth * frequency;
}

VECTOR_INLINE void rotate(tws_dtype T, void *qkv, int64_t first, int64_t half, int64_t columns, const float *cosine,
                          const float *sine) {
  EACH_VECTOR(i, n, 0, columns, {
    vf a = v_get(T, qkv, first + i, n), b = v_get(T, qkv, first + half + i, n);
    vf c = v_get(TWS_F32, cosine, i, n), s = v_get(TWS_F32, sine, i, n);
    v_put(T, qkv, first + i, a * c - b * s, n);
    v_put(T, qkv, first + half + i, b * c + a * s, n);
  });
}

static void rope_task(void *arg, int thread, int threads) {
  const rope_job *job = arg;
  const tws_host_call *call = job->call;
  const int64_t *d = call->work->d;
  const int64_t tokens = d[0], rotated = d[1] + d[2], head = d[3], seq = d[4], half = head / 2;
  const int64_t row = (d[1] + 2 * d[2]) * head;
  void *qkv = call->operand[0];
  host_range r = share(seq, 1, thread, threads);
  for (int64_t begin = 0; begin < half; begin += CHUNK) {
    const int64_t columns = half - begin < CHUNK ? half - begin : CHUNK;
    double frequency[CHUNK];
    for (int64_t i = 0; i < columns; ++i) frequency[i] = rope_frequency(call->work->f, head, begin + i);
    for (int64_t position = r.begin; position < r.end; ++position) {
      float cosine[CHUNK], sine[CHUNK];
      for (int64_t i = 0; i < columns; ++i) {
        double s, c;
        sincos((double)position * frequency[i], &s, &c);
        cosine[i] = (float)c;
        sine[i] = (float)(job->backward ? -s : s);
      }
      for (int64_t t = position; t < tokens; t += seq)
        for (int64_t h = 0; h < rotated; ++h) {
          const int64_t first = t * row + h * head + begin;
          FOR_TYPE(call->dtype[0], T, rotate(T, qkv, first, half, columns, cosine, sine));
        }
    }
  }
}

static tws_code rope_either(const tws_host_call *call, int backward, tws_error *err) {
  const int64_t *d = call->work->d;
  if (d[3] % 2)
    return tws_fail(err, TWS_UNSUPPORTED, NULL, "rotary embedding of an odd head size, %lld", (long long)d[3]);
  rope_job job = {call, backward};
  run_parallel(call, 8.0 * (double)(d[0] * (d[1] + d[2]) * d[3]), rope_task, &job);
  return TWS_OK;
}
HOST_KERNEL(rope) {
  return rope_either(call, 0, err);
}
HOST_KERNEL(rope_grad) {
  return rope_either(call, 1, err);
}
