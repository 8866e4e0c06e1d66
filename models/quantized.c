#include "models/quantized.h"

#include <math.h>

static uint8_t nearest_level(float value) {
  static const float level[16] = TWS_NF4_LEVELS;
  int i = 0;
  while (i < 15 && value > 0.5f * (level[i] + level[i + 1])) i++;
  return (uint8_t)i;
}

static float largest(const float *values, int64_t count) {
  float most = 0;
  for (int64_t i = 0; i < count; i++) most = fmaxf(most, fabsf(values[i]));
  return most;
}

void tws_quantize(const float *values, uint64_t count, int64_t block, int bits, uint8_t *codes, float *scales) {
  for (uint64_t b = 0; b < count / (uint64_t)block; b++, values += block) {
    const float most = largest(values, block), scale = bits == 8 ? most / 127 : most;
    const float inverse = most > 0 ? 1 / most : 0;
    scales[b] = scale;
    for (int64_t i = 0; i < block && bits == 8; i++) *codes++ = (uint8_t)(int8_t)lrintf(values[i] * inverse * 127);
    for (int64_t i = 0; i < block && bits == 4; i += 2)
      *codes++ = (uint8_t)(nearest_level(values[i] * inverse) << 4 | nearest_level(values[i + 1] * inverse));
  }
}

void tws_dequantize(const uint8_t *codes, const float *scales, uint64_t count, int64_t block, int bits, float *values) {
  static const float level[16] = TWS_NF4_LEVELS;
  for (uint64_t i = 0; i < count; i++) {
    const uint8_t byte = codes[bits == 8 ? i : i / 2];
    values[i] = (bits == 8 ? (float)(int8_t)byte : level[i % 2 ? byte & 15 : byte >> 4]) * scales[i / (uint64_t)block];
  }
}

void tws_quantize_scales(const float *scales, uint64_t count, int64_t group, uint8_t *codes, float (*means)[2]) {
  for (uint64_t g = 0; g < count / (uint64_t)group; g++, scales += group) {
    double sum = 0;
    float most = 0;
    for (int64_t i = 0; i < group; i++) sum += (double)scales[i];
    const float mean = (float)(sum / (double)group);
    for (int64_t i = 0; i < group; i++) most = fmaxf(most, fabsf(scales[i] - mean));
    const float inverse = most > 0 ? 127 / most : 0;
    means[g][0] = mean;
    means[g][1] = most / 127;
    for (int64_t i = 0; i < group; i++) *codes++ = (uint8_t)(int8_t)lrintf((scales[i] - mean) * inverse);
  }
}

void tws_dequantize_scales(const uint8_t *codes, const float (*means)[2], uint64_t count, int64_t group,
                           float *scales) {
  for (uint64_t i = 0; i < count; i++) scales[i] = tws_scale_of(codes[i], means[i / (uint64_t)group]);
}
