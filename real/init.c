#include "real/init.h"
#include <math.h>
#include "base/random.h"

/* 24 bits and a half: inside (0, 1), exact in float32. */
static float open_unit(uint32_t word) {
  return ((float)(word >> 8) + 0.5f) * 0x1p-24f;
}

static void normals(uint64_t seed, uint64_t stream, uint64_t block, float out[4]) {
  uint32_t word[4];
  tws_philox(seed, stream, block, word);
  for (int i = 0; i < 4; i += 2) {
    float radius = sqrtf(-2.0f * logf(open_unit(word[i])));
    float sine, cosine, angle = 6.2831853f * open_unit(word[i + 1]);
    sincosf(angle, &sine, &cosine);
    out[i] = radius * cosine;
    out[i + 1] = radius * sine;
  }
}

void tws_init_values(const tws_param *param, uint32_t index, uint64_t seed, uint64_t first, uint64_t count,
                     float *out) {
  float std = param->init_std, value = param->init_value;
  if (std == 0.0f) {
    for (uint64_t i = 0; i < count; i++) out[i] = value;
    return;
  }
  for (uint64_t i = 0; i < count;) {
    float block[4];
    normals(seed, index, (first + i) / 4, block);
    for (uint64_t k = (first + i) % 4; k < 4 && i < count; k++, i++) out[i] = value + std * block[k];
  }
}

void tws_init_part(const tws_param *param, uint32_t index, uint64_t seed, const tws_param_slice *slice, uint64_t first,
                   uint64_t count, float *out) {
  if (!slice || param->init_std == 0.0f) { /* equal everywhere: the places do not matter */
    tws_init_values(param, index, seed, first, count, out);
    return;
  }
  for (uint64_t done = 0; done < count;) {
    uint64_t run = 0, whole = tws_param_slice_whole(slice, first + done, &run);
    if (run > count - done) run = count - done;
    tws_init_values(param, index, seed, whole, run, out + done);
    done += run;
  }
}
