/* Vectors as long as a register of the instruction set: compilers split longer ones through memory, which made a
 * product of a matrix and a vector in AVX2 2.5 times as long as reading the matrix. Sums are therefore added in another
 * order on another instruction set. Loads and stores convert from and to the storage type; if it is a compile-time
 * constant the selection is free. */
#ifndef TWS_REAL_HOST_KERNELS_VECTOR_H
#define TWS_REAL_HOST_KERNELS_VECTOR_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#include "real/host/internal.h"

#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#endif

/* V_EACH_LANE(f, d) is the list f(0, d), f(1, d), ... with an entry for each lane: indices of a shuffle. */
#if defined(__AVX512F__)
enum { LANES = 16 };
#define V_EACH_LANE(f, d) V_EIGHT(f, 0, d), V_EIGHT(f, 8, d)
#elif defined(__AVX2__)
enum { LANES = 8 };
#define V_EACH_LANE(f, d) V_EIGHT(f, 0, d)
#else
enum { LANES = 4 };
#define V_EACH_LANE(f, d) V_FOUR(f, 0, d)
#endif
#define V_FOUR(f, i, d) f(i, d), f((i) + 1, d), f((i) + 2, d), f((i) + 3, d)
#define V_EIGHT(f, i, d) V_FOUR(f, i, d), V_FOUR(f, (i) + 4, d)
#define V_NUMBER(lane, d) (lane)
#define V_LANE_NUMBERS \
  { V_EACH_LANE(V_NUMBER, 0) }
typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef uint16_t vh __attribute__((vector_size(2 * LANES)));
typedef double vd __attribute__((vector_size(4 * LANES))); /* half as many doubles */
typedef float vf_half __attribute__((vector_size(2 * LANES)));
typedef vf vf_unaligned __attribute__((aligned(4), may_alias));
typedef vi vi_unaligned __attribute__((aligned(4), may_alias));
typedef vh vh_unaligned __attribute__((aligned(2), may_alias));

#define VECTOR_INLINE static inline __attribute__((always_inline, unused))

VECTOR_INLINE vf v_set(float x) {
  return x - (vf){0};
}
VECTOR_INLINE vf v_zero(void) {
  return (vf){0};
}
VECTOR_INLINE vf v_load(const float *p) {
  return *(const vf_unaligned *)p;
}
VECTOR_INLINE void v_store(float *p, vf x) {
  *(vf_unaligned *)p = x;
}

/* Returns `yes` in the lanes of the mask that are all ones, and `no` in those that are all zeros; comparisons give such
 * masks. */
VECTOR_INLINE vf v_select(vi mask, vf yes, vf no) {
  return (vf)(((vi)yes & mask) | ((vi)no & ~mask));
}

/* Returns x with lanes n and higher set to 0. */
VECTOR_INLINE vf v_keep(vf x, int n) {
  const vi lane = V_LANE_NUMBERS;
  return n == LANES ? x : (vf)((vi)x & (lane < n));
}

#ifdef __AVX512F__
VECTOR_INLINE vf v_max(vf a, vf b) {
  return (vf)_mm512_max_ps((__m512)a, (__m512)b);
}
VECTOR_INLINE vf v_min(vf a, vf b) {
  return (vf)_mm512_min_ps((__m512)a, (__m512)b);
}
VECTOR_INLINE vf v_sqrt(vf x) {
  return (vf)_mm512_sqrt_ps((__m512)x);
}
#else
/* v_max and v_min return b unless the comparison holds, as the instructions do: so a NaN in b is never hidden. */
VECTOR_INLINE vf v_max(vf a, vf b) {
  return v_select(a > b, a, b);
}
VECTOR_INLINE vf v_min(vf a, vf b) {
  return v_select(a < b, a, b);
}
VECTOR_INLINE vf v_sqrt(vf x) {
  for (int i = 0; i < LANES; ++i) x[i] = sqrtf(x[i]);
  return x;
}
#endif

VECTOR_INLINE float v_sum(vf x) {
  union {
    vf v;
    float f[LANES];
  } u = {.v = x};
  for (int width = LANES / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) u.f[i] += u.f[i + width];
  return u.f[0];
}
VECTOR_INLINE float v_largest(vf x) {
  union {
    vf v;
    float f[LANES];
  } u = {.v = x};
  for (int width = LANES / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) u.f[i] = u.f[i] > u.f[i + width] ? u.f[i] : u.f[i + width];
  return u.f[0];
}

/* Return e^x, computed by range reduction to [-ln2/2, ln2/2] and a degree 7 polynomial; relative error below 1.2e-7 for
 * results that are normal numbers. Below -87.3 the result is 0 (v_exp) or e^-87.3 (v_exp_finite), above 88.3 it is inf
 * or e^88.3. NaN stays NaN: v_max and v_min return their second operand then. */
VECTOR_INLINE vf v_exp_finite(vf x) {
  x = v_min(v_set(88.3F), v_max(v_set(-87.3F), x));
  const vf magic = v_set(12582912.0F); /* 1.5 x 2^23: adding it rounds to an integer */
  vf shifted = x * 1.44269504F + magic;
  vf n = shifted - magic;
  vf r = x - n * 0.693359375F; /* ln 2 in two parts, the first exact in few bits */
  r = r - n * -2.12194440e-4F;
  vf y = v_set(1.9841270e-4F);
  y = y * r + 1.3888889e-3F;
  y = y * r + 8.3333333e-3F;
  y = y * r + 4.1666667e-2F;
  y = y * r + 1.6666667e-1F;
  y = y * r + 0.5F;
  y = y * (r * r) + (r + 1.0F);
  vi exponent = (vi)shifted - (vi)magic;
  return y * (vf)((exponent + 127) << 23);
}
VECTOR_INLINE vf v_exp(vf x) {
  vf y = v_exp_finite(x);
  y = (vf)((vi)y & ~(x < -87.3F));
  return v_select(x > 88.3F, v_set(INFINITY), y);
}

/* ---- storage types ---- */
/* Returns tanh(x). Near 0, where 1 - 2 / (e^2x + 1) loses digits, an odd polynomial fitted to a relative error of 4e-8
 * is used. */
VECTOR_INLINE vf v_tanh(vf x) {
  const vf size = v_max(x, -x), z = x * x;
  vf fitted = v_set(-0.00599296126F);
  fitted = fitted * z + 0.0209241482F;
  fitted = fitted * z - 0.0538351413F;
  fitted = fitted * z + 0.133326635F;
  fitted = fitted * z - 0.333333279F;
  const vf near = x + x * (z * fitted), far = 1.0F - 2.0F / (v_exp_finite(v_min(2.0F * size, v_set(40.0F))) + 1.0F);
  const vf sign = v_select(x < 0.0F, -far, far);
  return v_select(size < 0.625F, near, v_select(x == x, sign, x));
}
/* Returns the derivative of tanh, 1 - tanh^2 = 4 / (e^x + e^-x)^2. */
VECTOR_INLINE vf v_tanh_slope(vf x) {
  const vf size = v_max(x, -x), e = v_exp_finite(v_max(-2.0F * size, v_set(-80.0F))), whole = 1.0F + e;
  return v_select(x == x, 4.0F * e / (whole * whole), x);
}
VECTOR_INLINE vf v_from_bf16(vh h) {
  return (vf)(__builtin_convertvector(h, vu) << 16);
}
/* Returns the upper halves of x's elements, after `more` (less than 2^16, a unit of the upper half) was added to their
 * bits. */
VECTOR_INLINE vh v_cut_bf16(vf x, vu more) {
  vu bits = (vu)x;
  vu rounded = (bits + more) >> 16;
  vu quiet = (bits >> 16) | 0x40u;
  vu nan = (vu)((bits & 0x7fffffffu) > 0x7f800000u);
  return __builtin_convertvector((quiet & nan) | (rounded & ~nan), vh);
}
VECTOR_INLINE vh v_to_bf16(vf x) {
  return v_cut_bf16(x, 0x7fffu + (((vu)x >> 16) & 1u));
}

/* Converts half precision, with the same results as base/dtype.h. */
#if defined(__AVX512F__)
VECTOR_INLINE vf v_from_f16(vh h) {
  return (vf)_mm512_cvtph_ps((__m256i)h);
}
VECTOR_INLINE vh v_to_f16(vf x) {
  return (vh)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT);
}
#elif defined(__F16C__)
VECTOR_INLINE vf v_from_f16(vh h) {
  return (vf)_mm256_cvtph_ps((__m128i)h);
}
VECTOR_INLINE vh v_to_f16(vf x) {
  return (vh)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT);
}
#else
VECTOR_INLINE vf v_from_f16(vh h) {
  const vu bits = __builtin_convertvector(h, vu), magnitude = bits & 0x7fffu, shifted = magnitude << 13;
  const vi small = (vi)(magnitude < 0x400u), special = (vi)(magnitude > 0x7bffu);
  const vf denormal = __builtin_convertvector((vi)magnitude, vf) * 0x1p-24F;
  const vf normal = (vf)(shifted + (112u << 23) + ((vu)special & (112u << 23)));
  return (vf)((vu)v_select(small, denormal, normal) | (bits & 0x8000u) << 16);
}
VECTOR_INLINE vh v_to_f16(vf x) {
  const vu bits = (vu)x, magnitude = bits & 0x7fffffffu;
  const vu normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const vu denormal = (vu)((vf)magnitude + 0.5F) - 0x3f000000u;
  const vu nan = (vu)(magnitude > 0x7f800000u) & (0x200u | ((magnitude >> 13) & 0x1ffu));
  const vi small = (vi)(magnitude < 0x38800000u), large = (vi)(magnitude >= 0x47800000u);
  const vf finite = v_select(small, (vf)denormal, (vf)normal);
  const vu half = (vu)v_select(large, (vf)(0x7c00u | nan), finite) | ((bits >> 16) & 0x8000u);
  return __builtin_convertvector(half, vh);
}
#endif

VECTOR_INLINE vf v_widen(tws_dtype type, vh h) {
  return type == TWS_F16 ? v_from_f16(h) : v_from_bf16(h);
}
VECTOR_INLINE vh v_narrow(tws_dtype type, vf x) {
  return type == TWS_F16 ? v_to_f16(x) : v_to_bf16(x);
}

/* Access the first n lanes; the other lanes load as 0 and are not stored. */
VECTOR_INLINE vf v_load_part(const float *p, int n) {
#ifdef __AVX512F__
  return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), p);
#else
  union {
    vf v;
    float f[LANES];
  } u = {.v = {0}};
  for (int i = 0; i < n; ++i) u.f[i] = p[i];
  return u.v;
#endif
}
VECTOR_INLINE void v_store_part(float *p, vf x, int n) {
#ifdef __AVX512F__
  _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), (__m512)x);
#else
  union {
    vf v;
    float f[LANES];
  } u = {.v = x};
  for (int i = 0; i < n; ++i) p[i] = u.f[i];
#endif
}

/* Returns numbers as a type stores them. */
VECTOR_INLINE vf v_stored(tws_dtype type, vf x) {
  return type == TWS_F32 ? x : v_widen(type, v_narrow(type, x));
}

/* Returns the larger of `most` and the magnitudes of x, lane by lane. Magnitudes are bits, which compare as integers;
 * NaN is larger than all other numbers. */
VECTOR_INLINE vi v_larger_magnitude(vi most, vf x) {
  const vi bits = (vi)x & 0x7fffffff, above = bits > most;
  return (bits & above) | (most & ~above);
}
VECTOR_INLINE int32_t v_largest_bits(vi most) {
  int32_t largest = 0;
  for (int i = 0; i < LANES; ++i) largest = most[i] > largest ? most[i] : largest;
  return largest;
}
VECTOR_INLINE vh v_get_half(const uint16_t *p, int n) {
  if (n == LANES) return *(const vh_unaligned *)p;
  union {
    vh v;
    uint16_t h[LANES];
  } u = {.v = {0}};
  for (int i = 0; i < n; ++i) u.h[i] = p[i];
  return u.v;
}
VECTOR_INLINE vf v_get(tws_dtype type, const void *base, int64_t index, int n) {
  if (type == TWS_F32) {
    const float *p = (const float *)base + index;
    return n == LANES ? v_load(p) : v_load_part(p, n);
  }
  return v_widen(type, v_get_half((const uint16_t *)base + index, n));
}
VECTOR_INLINE void v_put_half(uint16_t *p, vh h, int n) {
  if (n == LANES) {
    *(vh_unaligned *)p = h;
    return;
  }
  union {
    vh v;
    uint16_t h[LANES];
  } u = {.v = h};
  for (int i = 0; i < n; ++i) p[i] = u.h[i];
}
VECTOR_INLINE void v_put(tws_dtype type, void *base, int64_t index, vf x, int n) {
  if (type == TWS_F32) {
    float *p = (float *)base + index;
    if (n == LANES)
      v_store(p, x);
    else
      v_store_part(p, x, n);
    return;
  }
  v_put_half((uint16_t *)base + index, v_narrow(type, x), n);
}

/* Runs the statement for i = begin, begin + LANES, ... with n = LANES, and finally for the remaining elements with n =
 * their number. */
#define EACH_VECTOR(i, n, begin, end, ...)       \
  do {                                           \
    int64_t i = (begin);                         \
    const int64_t each_end_ = (end);             \
    for (; i + LANES <= each_end_; i += LANES) { \
      enum { n = LANES };                        \
      __VA_ARGS__;                               \
    }                                            \
    if (i < each_end_) {                         \
      const int n = (int)(each_end_ - i);        \
      __VA_ARGS__;                               \
    }                                            \
  } while (0)

/* Compiles the body once each for float32, bfloat16 and half precision. */
#define FOR_TYPE(type, T, ...)      \
  do {                              \
    if ((type) == TWS_F32) {        \
      const tws_dtype T = TWS_F32;  \
      __VA_ARGS__;                  \
    } else if ((type) == TWS_F16) { \
      const tws_dtype T = TWS_F16;  \
      __VA_ARGS__;                  \
    } else {                        \
      const tws_dtype T = TWS_BF16; \
      __VA_ARGS__;                  \
    }                               \
  } while (0)

/* ---- static division of work: units of `grain` elements, as even as whole units allow ---- */
typedef struct host_range {
  int64_t begin, end;
} host_range;
VECTOR_INLINE host_range share(int64_t total, int64_t grain, int thread, int threads) {
  int64_t units = (total + grain - 1) / grain;
  int64_t begin = units * thread / threads * grain, end = units * (thread + 1) / threads * grain;
  return (host_range){begin < total ? begin : total, end < total ? end : total};
}

/* Runs a task on the threads of the pool or, since waking them takes some microseconds, on the calling thread if the
 * work is small. `bytes` is the kernel's memory traffic. */
VECTOR_INLINE void run_parallel(const tws_host_call *call, double bytes, tws_host_task task, void *arg) {
  enum { SMALL = 64 << 10 };
  if (bytes < SMALL)
    task(arg, 0, 1);
  else
    tws_host_pool_run(call->backend->pool, task, arg);
}

VECTOR_INLINE const void *at(tws_dtype type, const void *base, int64_t index) {
  return (const char *)base + index * (type == TWS_F32 || type == TWS_I32 ? 4 : 2);
}
VECTOR_INLINE void *at_mutable(tws_dtype type, void *base, int64_t index) {
  return (char *)base + index * (type == TWS_F32 || type == TWS_I32 ? 4 : 2);
}

#define HOST_KERNEL(name) tws_code TWS_HOST(name)(const tws_host_call *call, tws_error *err)

#endif
