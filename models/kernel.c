#include "models/kernel.h"

const char *tws_kernel_name(tws_kernel kernel) {
  static const char *const names[] = {
#define X(name, text) text,
      TWS_KERNELS(X)
#undef X
  };
  return (unsigned)kernel < TWS_KERNEL_COUNT ? names[kernel] : "unknown kernel";
}

const char *tws_kernel_flag_word(int bit) {
  static const char *const words[TWS_KERNEL_FLAGS] = {
      "accumulate", "accumulate_param", "bias",         "rms",          "l2",        NULL,
      "gelu",       "residual",         "half_weights", "half_moments", "stochastic"};
  return bit >= 0 && bit < TWS_KERNEL_FLAGS ? words[bit] : NULL;
}

const char *tws_collective_name(tws_collective collective) {
  static const char *const names[] = {
#define X(name, text) text,
      TWS_COLLECTIVES(X)
#undef X
  };
  return (unsigned)collective < TWS_COLLECTIVE_COUNT ? names[collective] : "unknown collective";
}

/* Attention is causal: query i meets i + 1 keys, so a head has seq (seq + 1) / 2 pairs. Forward is two products
 * (scores, output), backward five (scores again, dv, dp, dq, dk). */
static double attention_pair_flops(const tws_work *work) {
  const int64_t *d = work->d;
  double pairs = (double)d[0] * (double)d[2] * (double)d[1] * ((double)d[1] + 1) / 2;
  return 2 * pairs * (double)d[4];
}

/* of one element */
enum { GELU_FLOPS = 9, GELU_GRAD_FLOPS = 16 };

static double linear_flops(const tws_work *work) {
  double m = (double)work->d[0], n = (double)work->d[1], k = (double)work->d[2];
  double gelu = !(work->flags & TWS_GELU)         ? 0
                : work->code == TWS_KERNEL_LINEAR ? GELU_FLOPS * m * n
                                                  : GELU_GRAD_FLOPS * m * k;
  return 2 * m * n * k + (work->flags & TWS_BIAS ? m * n : 0) + gelu;
}

/* HEADS_PACK: key heads of all ranks together, copies counted. */
static int64_t packed_key_heads(const tws_work *work) {
  return work->d[3] > 0 && work->d[3] < work->d[1] ? work->d[1] : work->d[3];
}

/* Element-wise kernels: arithmetic instructions of a straightforward formula, transcendentals counted as one. They are
 * bound by memory everywhere; the counts are for reports. */
double tws_work_flops(const tws_work *work) {
  if (work->kind != 0) return 0; /* not a compute operation */
  const int64_t *d = work->d;
  double first = (double)d[0], plane = (double)d[0] * (double)d[1];
  switch ((tws_kernel)work->code) {
    case TWS_KERNEL_EMBEDDING:
      return d[3] > 0 ? plane : 0;
    case TWS_KERNEL_EMBEDDING_GRAD:
    case TWS_KERNEL_POSITION_GRAD:
      return plane;
    case TWS_KERNEL_NORM:
      return plane * ((work->flags & TWS_RMS ? 4 : 7) + (work->flags & TWS_RESIDUAL ? 1 : 0));
    case TWS_KERNEL_NORM_GRAD:
      return plane * (work->flags & TWS_RMS ? 9 : 12);
    case TWS_KERNEL_LINEAR:
    case TWS_KERNEL_LINEAR_GRAD_INPUT:
    case TWS_KERNEL_LINEAR_GRAD_WEIGHT:
      return linear_flops(work);
    case TWS_KERNEL_ROPE:
    case TWS_KERNEL_ROPE_GRAD:
      return 3 * first * (double)(d[1] + d[2]) * (double)d[3];
    case TWS_KERNEL_ATTENTION:
      return 2 * attention_pair_flops(work);
    case TWS_KERNEL_ATTENTION_GRAD:
      return 5 * attention_pair_flops(work);
    case TWS_KERNEL_GELU:
      return GELU_FLOPS * first;
    case TWS_KERNEL_GELU_GRAD:
      return GELU_GRAD_FLOPS * first;
    case TWS_KERNEL_SWIGLU:
      return 5 * plane;
    case TWS_KERNEL_SWIGLU_GRAD:
      return 11 * plane;
    case TWS_KERNEL_ADD:
    case TWS_KERNEL_ACCUMULATE:
      return first;
    case TWS_KERNEL_CROSS_ENTROPY:
      return 6 * plane;
    case TWS_KERNEL_VOCABULARY_STATS: /* the maximum, and the sum of exponentials */
      return 4 * plane;
    case TWS_KERNEL_VOCABULARY_LOSS:
      return 3 * plane;
    case TWS_KERNEL_ADAMW:
      return 16 * first;
    case TWS_KERNEL_SQUARED_NORM:
      return 2 * first;
    case TWS_KERNEL_CLIP:
    case TWS_KERNEL_FILL:
    case TWS_KERNEL_CAST:
    case TWS_KERNEL_TRANSPOSE:
    case TWS_KERNEL_HEADS_PACK:
      return 0;
    case TWS_KERNEL_HEADS_UNPACK: /* the copies of keys and values beyond the first */
      return first * 2 * (double)(packed_key_heads(work) - d[3]) * (double)d[4];
    case TWS_KERNEL_COUNT:
      return 0;
  }
  return 0;
}

static double min_double(double a, double b) {
  return a < b ? a : b;
}

static double embedding_bytes(const tws_work *work, double e, double e2) {
  const int64_t *d = work->d;
  double tokens = (double)d[0], width = (double)d[1], plane = tokens * width;
  int adds = (work->flags & TWS_ACCUMULATE) != 0;
  switch ((tws_kernel)work->code) {
    case TWS_KERNEL_EMBEDDING: /* a row for each token, the positions once, the output */
      return 4 * tokens + 2 * plane * e + (d[3] > 0 ? min_double(tokens, (double)d[4]) * width * e : 0);
    case TWS_KERNEL_EMBEDDING_GRAD: /* overwriting clears the whole table first */
      return 4 * tokens + plane * e + 2 * min_double(tokens, (double)d[2]) * width * e2 +
             (adds ? 0 : (double)d[2] * width * e2);
    default: /* POSITION_GRAD */
      return plane * e + (adds ? 2 * min_double((double)d[3], (double)d[2]) : (double)d[2]) * width * e2;
  }
}

static double norm_bytes(const tws_work *work, double e, double e2) {
  double tokens = (double)work->d[0], width = (double)work->d[1], plane = tokens * width;
  double stats = 4 * tokens * (work->flags & TWS_RMS ? 1 : 2);
  double vectors = work->flags & TWS_BIAS ? 2 : 1;
  double residual = work->flags & TWS_RESIDUAL ? 2 * plane * e : 0;
  if (work->code == TWS_KERNEL_NORM) return 2 * plane * e + stats + vectors * width * e + residual;
  double dx = work->flags & TWS_ACCUMULATE ? 2 : 1, dweight = work->flags & TWS_ACCUMULATE_PARAM ? 2 : 1;
  return (2 + dx) * plane * e + stats + width * e + dweight * vectors * width * e2;
}

static double linear_bytes(const tws_work *work, double e, double e2) {
  double m = (double)work->d[0], n = (double)work->d[1], k = (double)work->d[2];
  double out = work->flags & TWS_ACCUMULATE ? 2 : 1, bias = work->flags & TWS_BIAS ? n : 0;
  if (work->code == TWS_KERNEL_LINEAR) return (m * k + n * k + (work->flags & TWS_GELU ? 2 : 1) * m * n + bias) * e;
  if (work->code == TWS_KERNEL_LINEAR_GRAD_INPUT)
    return (m * n + n * k + (out + (work->flags & TWS_GELU ? 1 : 0)) * m * k) * e;
  return (m * n + m * k) * e + out * (n * k + bias) * e2;
}

static double attention_bytes(const tws_work *work, double e) {
  const int64_t *d = work->d;
  double tokens = (double)d[0] * (double)d[1], q = (double)d[2] * (double)d[4];
  double qkv = (double)(d[2] + 2 * d[3]) * (double)d[4], lse = 4 * (double)d[2];
  if (work->code == TWS_KERNEL_ATTENTION) return tokens * ((qkv + q) * e + lse);
  return tokens * ((2 * qkv + 2 * q) * e + lse);
}

/* Of one element: weight and moments are read and written, the gradient is read, and a 16-bit copy written. */
static double adamw_bytes(const tws_work *work, double e, double e2) {
  if (!(work->flags & TWS_HALF_WEIGHTS)) return 24 + e + (work->dtype2 == TWS_F32 ? 0 : e2);
  return 2 * e2 + 4 * (work->flags & TWS_HALF_MOMENTS ? e2 : 4) + e;
}

double tws_work_bytes(const tws_work *work) {
  if (work->kind != 0) return (double)work->d[0];
  const int64_t *d = work->d;
  double e = (double)tws_dtype_bytes((tws_dtype)work->dtype), e2 = (double)tws_dtype_bytes((tws_dtype)work->dtype2);
  double first = (double)d[0], plane = (double)d[0] * (double)d[1];
  switch ((tws_kernel)work->code) {
    case TWS_KERNEL_EMBEDDING:
    case TWS_KERNEL_EMBEDDING_GRAD:
    case TWS_KERNEL_POSITION_GRAD:
      return embedding_bytes(work, e, e2);
    case TWS_KERNEL_NORM:
    case TWS_KERNEL_NORM_GRAD:
      return norm_bytes(work, e, e2);
    case TWS_KERNEL_LINEAR:
    case TWS_KERNEL_LINEAR_GRAD_INPUT:
    case TWS_KERNEL_LINEAR_GRAD_WEIGHT:
      return linear_bytes(work, e, e2);
    case TWS_KERNEL_ROPE: /* values are not rotated */
    case TWS_KERNEL_ROPE_GRAD:
      return 2 * first * (double)(d[1] + d[2]) * (double)d[3] * e;
    case TWS_KERNEL_ATTENTION:
    case TWS_KERNEL_ATTENTION_GRAD:
      return attention_bytes(work, e);
    case TWS_KERNEL_GELU:
      return 2 * first * e;
    case TWS_KERNEL_GELU_GRAD:
    case TWS_KERNEL_ADD:
      return 3 * first * e;
    case TWS_KERNEL_SWIGLU:
      return 3 * plane * e;
    case TWS_KERNEL_SWIGLU_GRAD:
      return 5 * plane * e;
    case TWS_KERNEL_CROSS_ENTROPY:
      return 2 * first * (double)d[2] * e + 4 * first + 16;
    case TWS_KERNEL_VOCABULARY_STATS: /* padding is not read */
      return plane * e + 16 * first;
    case TWS_KERNEL_VOCABULARY_LOSS: /* but cleared */
      return (plane + first * (double)d[2]) * e + (4 + 12 * (double)d[3]) * first + 16;
    case TWS_KERNEL_ADAMW:
      return first * adamw_bytes(work, e, e2);
    case TWS_KERNEL_SQUARED_NORM:
    case TWS_KERNEL_FILL:
      return first * e;
    case TWS_KERNEL_CLIP: /* three slots read and three written */
      return 48;
    case TWS_KERNEL_ACCUMULATE:
      return first * (e + 2 * e2);
    case TWS_KERNEL_CAST:
      return first * (e + e2);
    case TWS_KERNEL_TRANSPOSE:
      return 2 * plane * (double)d[2] * e;
    case TWS_KERNEL_HEADS_PACK: /* a key or value head is read once and written as often as ranks need it */
    case TWS_KERNEL_HEADS_UNPACK:
      return first * 2 * (double)(d[2] + d[3] + packed_key_heads(work)) * (double)d[4] * e;
    case TWS_KERNEL_COUNT:
      return 0;
  }
  return 0;
}

/* Only attention needs scratch: on the host what workspace.c says; on CUDA only backward, a float32 accumulator of
 * dq [tokens, q heads x head size], and with 16-bit types what cuDNN asks for beside it on any device: as much again,
 * and where heads share keys once more for the gradients of all heads (as cuDNN 9.19 answers; less on newer devices).
 */
size_t tws_work_workspace(const tws_work *work, tws_backend_kind backend, int threads) {
  if (work->kind != 0 || (work->code != TWS_KERNEL_ATTENTION && work->code != TWS_KERNEL_ATTENTION_GRAD)) return 0;
  if (backend == TWS_BACKEND_HOST) return tws_host_attention_workspace(work, threads > 0 ? threads : 1);
  if (work->code == TWS_KERNEL_ATTENTION) return 0;
  const size_t sums = (size_t)work->d[0] * (size_t)work->d[1] * (size_t)work->d[2] * (size_t)work->d[4] * sizeof(float);
  if (work->dtype == TWS_F32) return sums;
  return (work->d[3] < work->d[2] ? 3 : 2) * sums + 1024;
}
