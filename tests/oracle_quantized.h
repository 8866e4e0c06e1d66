/* Weights in few bits as the papers say it, without a table. */
#ifndef TESTS_ORACLE_QUANTIZED_H
#define TESTS_ORACLE_QUANTIZED_H

#include <math.h>
#include <stdlib.h>

/* Returns where the normal distribution has the share p of its probability below, found by bisection. */
static inline double oracle_quantile(double p) {
  double low = -10, high = 10;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    if (erfc(-middle / sqrt(2)) / 2 < p)
      low = middle;
    else
      high = middle;
  }
  return (low + high) / 2;
}

/* Returns a level of 4-bit NormalFloat: eight equally likely values from 0.5 to 0.9677 and seven on the negative side,
 * and 0; the greatest level is 1 (QLoRA, section 3). */
static inline double oracle_level(int code) {
  const double most = 0.9677083, half = 0.5;
  const double share = code < 7 ? most + code * (half - most) / 7 : most + (15 - code) * (half - most) / 8;
  return (code < 7 ? -1 : code == 7 ? 0 : 1) * oracle_quantile(share) / oracle_quantile(most);
}

static inline int oracle_signed(int byte) {
  return byte > 127 ? byte - 256 : byte;
}

/* Returns element i of the codes in units of the scale. Types: 4 nf4, 8 int8, 20 int4, 36 and 40 with a minimum. */
static inline double oracle_code(const double *codes, int64_t i, int64_t type) {
  static double level[16];
  const int byte = (int)codes[type % 16 == 8 ? i : i / 2], half = i % 2 ? byte % 16 : byte / 16;
  for (int k = 0; k < 16 && level[15] == 0; ++k) level[k] = oracle_level(k);
  switch (type) {
    case 8:
      return oracle_signed(byte);
    case 40:
      return byte;
    case 20:
      return (half - 8) / 8.0;
    case 36:
      return half;
    default:
      return level[half];
  }
}

static inline void oracle_dequantize(const tws_work *w, double **o) {
  const int twice = w->code == TWS_KERNEL_DEQUANTIZE_TWICE;
  for (int64_t i = 0; i < w->d[0]; ++i) {
    const double code = oracle_code(o[0], i, w->d[2]);
    if (w->d[2] >= 32) {
      o[2][i] = code * o[1][i / w->d[1] * 2] + o[1][i / w->d[1] * 2 + 1];
      continue;
    }
    const double kept = o[1][i / w->d[1]], *means = twice ? o[2] + i / (w->d[1] * w->d[3]) * 2 : NULL;
    o[2 + twice][i] = code * (twice ? means[0] + means[1] * oracle_signed((int)kept) : kept);
  }
}

/* ---- parts, with blocks of their own (models/operators_parts.def) ---- */

/* Quantizes a block to codes from -most to most, computed in float32, and returns the scale. */
static inline double oracle_block(const double *x, int64_t count, int bits, double *codes) {
  const float most = bits == 8 ? 127 : 7;
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    codes[i] = 0;
    if (!(fabs(x[i]) <= largest)) largest = (float)fabs(x[i]); /* NaN stays */
    if (isnan(x[i])) break;
  }
  if (!isfinite(largest)) return NAN;
  if (largest < 1e-30f) return 0;
  const float factor = most / largest;
  for (int64_t i = 0; i < count; ++i) codes[i] = nearbyint((float)x[i] * factor);
  return (double)(largest / most);
}

/* Packs the codes of a part into bytes: 8-bit codes one per byte, 4-bit codes two per byte. */
static inline void oracle_bytes(const double *codes, int64_t count, int bits, double *bytes) {
  for (int64_t i = 0; i < count; ++i) {
    const int code = (int)codes[i] & (bits == 8 ? 255 : 15);
    if (bits == 8)
      bytes[i] = code;
    else
      bytes[i / 2] = i % 2 ? bytes[i / 2] + code : 16 * code;
  }
}

static inline void oracle_quantize_parts(const tws_work *w, double **o) {
  const int64_t part = w->d[0], nodes = w->d[1], node_ranks = w->d[2], block = w->d[3];
  const int bits = (int)w->d[4];
  const int64_t blocks = (part + block - 1) / block, bytes = (part * bits + 7) / 8;
  double *codes = calloc((size_t)part + 1, sizeof *codes);
  for (int64_t node = 0; node < nodes; ++node)
    for (int64_t j = 0; j < node_ranks; ++j) {
      const double *x = o[0] + (node * node_ranks + j) * part;
      const int64_t to = j * nodes + node;
      for (int64_t b = 0; b < blocks; ++b)
        o[2][to * blocks + b] =
            oracle_block(x + b * block, b + 1 < blocks ? block : part - b * block, bits, codes + b * block);
      oracle_bytes(codes, part, bits, o[1] + to * bytes);
    }
  free(codes);
}

static inline void oracle_coded_linear(const tws_work *w, double **o) {
  const int64_t out = w->d[1], in = w->d[2], biased = (w->flags & TWS_BIAS) != 0;
  const int has_minimum = w->d[4] >= 32;
  for (int64_t t = 0; t < w->d[0]; ++t)
    for (int64_t row = 0; row < out; ++row) {
      double sum = biased ? o[3][row] : 0;
      for (int64_t c = 0; c < in; ++c) {
        const int64_t i = row * in + c, block = i / w->d[3];
        const double *scale = o[2] + block * (1 + has_minimum);
        sum += (oracle_code(o[1], i, w->d[4]) * scale[0] + (has_minimum ? scale[1] : 0)) * o[0][t * in + c];
      }
      o[3 + biased][t * out + row] = sum;
    }
}

static inline void oracle_dequantize_parts(const tws_work *w, double **o) {
  const int64_t part = w->d[0], parts = w->d[1], block = w->d[3];
  const int bits = (int)w->d[4];
  const int64_t blocks = (part + block - 1) / block, bytes = (part * bits + 7) / 8;
  for (int64_t p = 0; p < parts; ++p)
    for (int64_t i = 0; i < part; ++i) {
      double sum = 0;
      for (int64_t s = 0; s < w->d[2]; ++s) {
        const int byte = (int)o[0][(s * parts + p) * bytes + (bits == 8 ? i : i / 2)];
        const int code = bits == 8 ? byte : i % 2 ? byte % 16 : byte / 16, half = bits == 8 ? 128 : 8;
        sum += (code < half ? code : code - 2 * half) * o[1][(s * parts + p) * blocks + i / block];
      }
      o[2][p * part + i] = sum;
    }
}

#endif
