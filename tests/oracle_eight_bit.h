/* AdamW with moments of 8 bits in float64, with the dynamic maps as the paper describes them; included by
 * tests/oracle.h. */
#ifndef TESTS_ORACLE_EIGHT_BIT_H
#define TESTS_ORACLE_EIGHT_BIT_H

#include <math.h>
#include <stdlib.h>

#include "models/kernel.h"

static inline int oracle_ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The values of the codes: centres of equal intervals of each decade, 0 and 1, sorted. */
static inline const double *oracle_dynamic_map(int is_signed) {
  static double maps[2][256];
  double *map = maps[is_signed];
  int count = 0;
  if (map[255] == 1) return map;
  for (int decade = 0; decade < 7; ++decade) {
    const int intervals = 1 << (decade + !is_signed);
    for (int i = 0; i < intervals; ++i) {
      const double value = pow(10, decade - 6) * (0.1 + 0.9 * (i + 0.5) / intervals);
      map[count++] = value;
      if (is_signed) map[count++] = -value;
    }
  }
  map[count++] = 0, map[count++] = 1;
  qsort(map, 256, sizeof *map, oracle_ascending);
  return map;
}

/* The code of a number from -1 to 1; half a code more where float32 may round the number to either side of the border
 * between two codes. */
static inline double oracle_dynamic_code(double x, int is_signed) {
  const double *map = oracle_dynamic_map(is_signed);
  const double near = 2e-6 * fabs(x) + (is_signed ? 2e-7 : 0);
  int code = 0;
  while (code < 255 && x > (map[code] + map[code + 1]) / 2 + near) ++code;
  if (x < 0 && is_signed && map[code] == 0) return code - 1; /* a negative number never becomes 0 */
  return code < 255 && x > (map[code] + map[code + 1]) / 2 - near ? code + 0.5 : code;
}

static inline void oracle_adamw8(const tws_work *w, double **o, int count) {
  const double *hyper = o[6], clip = o[7][TWS_METRIC_CLIP], lr = hyper[TWS_HYPER_LR];
  const double *maps[2] = {oracle_dynamic_map(1), oracle_dynamic_map(0)};
  for (int64_t first = 0; first < w->d[0] && clip != 0; first += 256) {
    const int64_t n = w->d[0] - first < 256 ? w->d[0] - first : 256;
    double state[2][256], most[2] = {0, 0};
    for (int64_t i = 0; i < n; ++i) {
      const double g = o[5][first + i] * clip, added[2] = {hyper[TWS_HYPER_REST1] * g, hyper[TWS_HYPER_REST2] * g * g};
      for (int k = 0; k < 2; ++k) {
        const double old = maps[k][(int)o[1 + k][first + i]] * o[3 + k][first / 256];
        state[k][i] = hyper[k ? TWS_HYPER_BETA2 : TWS_HYPER_BETA1] * old + added[k];
        most[k] = fmax(most[k], fabs(state[k][i]));
      }
      const double change =
          state[0][i] / hyper[TWS_HYPER_BIAS1] / (sqrt(state[1][i] / hyper[TWS_HYPER_BIAS2]) + w->f[0]);
      o[0][first + i] = (o[0][first + i] - lr * change) * (1 - lr * w->f[1]);
      if (count > 8) o[8][first + i] = o[0][first + i];
    }
    for (int k = 0; k < 2; ++k) {
      for (int64_t i = 0; i < n; ++i)
        o[1 + k][first + i] = oracle_dynamic_code(most[k] > 0 ? state[k][i] / most[k] : 0, k == 0);
      o[3 + k][first / 256] = most[k];
    }
  }
}

#endif
