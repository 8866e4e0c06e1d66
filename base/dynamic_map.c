#include "base/dynamic_map.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

static tws_dynamic_map maps[2]; /* [is_signed] */

static void make_map(int is_signed) {
  tws_dynamic_map *map = &maps[is_signed];
  const int most = is_signed ? TWS_DYNAMIC_SIGNED_MOST : TWS_DYNAMIC_UNSIGNED_MOST;
  for (int code = 0; code < TWS_DYNAMIC_CODES; code++) {
    map->value[code] = tws_dynamic_value(code, is_signed);
    map->border[code] = INFINITY;
  }
  for (int k = 0; k < most; k++)
    map->border[k] = (tws_dynamic_magnitude(k, is_signed) + tws_dynamic_magnitude(k + 1, is_signed)) * 0.5F;
  for (uint32_t i = 0, k = 0; i < TWS_DYNAMIC_INTERVALS; i++) {
    const uint32_t bits = (TWS_DYNAMIC_FIRST_BITS + i) << 16;
    float begin;
    memcpy(&begin, &bits, sizeof begin);
    while (begin > map->border[k]) k++;
    map->first[i] = (uint8_t)k;
  }
}

static void make_maps(void) {
  make_map(0);
  make_map(1);
}

const tws_dynamic_map *tws_dynamic_map_of(int is_signed) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, make_maps);
  return &maps[is_signed];
}

void tws_dynamic_encode(const float *numbers, int count, int is_signed, uint8_t *codes, float *scale) {
  const tws_dynamic_map *map = tws_dynamic_map_of(is_signed);
  float most = 0;
  for (int i = 0; i < count; i++) most = fmaxf(most, fabsf(numbers[i]));
  for (int i = 0; i < count; i++) {
    const int k = most > 0 ? tws_dynamic_nearest(map, fabsf(numbers[i]) / most) : 0;
    codes[i] = (uint8_t)(is_signed ? tws_dynamic_signed_code(k, numbers[i] < 0) : k);
  }
  *scale = most;
}

void tws_dynamic_decode(const uint8_t *codes, int count, int is_signed, float scale, float *numbers) {
  const tws_dynamic_map *map = tws_dynamic_map_of(is_signed);
  for (int i = 0; i < count; i++) numbers[i] = map->value[codes[i]] * scale;
}
