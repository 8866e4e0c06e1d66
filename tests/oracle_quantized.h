/* Weights in few bits as the papers say it, without a table. */
#ifndef TESTS_ORACLE_QUANTIZED_H
#define TESTS_ORACLE_QUANTIZED_H

#include <math.h>

/* Where the normal distribution has a share p below: by halving. */
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

/* NormalFloat of 4 bits: eight equally likely values from 0.5 to 0.9677 and seven on the other side, and 0; the
 * greatest is 1 (QLoRA, section 3). */
static inline double oracle_level(int code) {
  const double most = 0.9677083, half = 0.5;
  const double share = code < 7 ? most + code * (half - most) / 7 : most + (15 - code) * (half - most) / 8;
  return (code < 7 ? -1 : code == 7 ? 0 : 1) * oracle_quantile(share) / oracle_quantile(most);
}

static inline void oracle_dequantize(const tws_work *w, double **o) {
  double level[16];
  for (int i = 0; i < 16; ++i) level[i] = oracle_level(i);
  for (int64_t i = 0; i < w->d[0]; ++i) {
    const int byte = (int)o[0][w->d[2] == 8 ? i : i / 2];
    const double code = w->d[2] == 8 ? (byte > 127 ? byte - 256 : byte) : level[i % 2 ? byte % 16 : byte / 16];
    o[2][i] = code * o[1][i / w->d[1]];
  }
}

#endif
