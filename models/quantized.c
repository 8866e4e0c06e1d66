#include "models/quantized.h"

#include <math.h>
#include <string.h>

static const struct {
  const char *name;
  int type;
} types[] = {{"int8", TWS_CODES_INT8},
             {"int4", TWS_CODES_INT4},
             {"nf4", TWS_CODES_NF4},
             {"int8-asymmetric", TWS_CODES_INT8_ASYMMETRIC},
             {"int4-asymmetric", TWS_CODES_INT4_ASYMMETRIC}};
enum { TYPES = sizeof types / sizeof *types };

int tws_code_type_named(const char *name) {
  for (int i = 0; i < TYPES; i++)
    if (strcmp(types[i].name, name) == 0) return types[i].type;
  return TWS_CODES_NONE;
}

const char *tws_code_type_name(int type) {
  for (int i = 0; i < TYPES; i++)
    if (types[i].type == type) return types[i].name;
  return "?";
}

static uint8_t nearest_level(float value) {
  static const float level[16] = TWS_NF4_LEVELS;
  int i = 0;
  while (i < 15 && value > 0.5f * (level[i] + level[i + 1])) i++;
  return (uint8_t)i;
}

/* Returns the element of largest magnitude. */
static float largest(const float *values, int64_t count) {
  float most = 0;
  for (int64_t i = 0; i < count; i++)
    if (fabsf(values[i]) > fabsf(most)) most = values[i];
  return most;
}

/* Writes the scale of a block to scale[0] and, if the type has one, the minimum to scale[1]. Returns the factor that
 * maps the elements (after subtraction of the minimum) to the type's grid. */
static float scale_block(const float *values, int64_t block, int type, float *scale) {
  const float extreme = largest(values, block), most = fabsf(extreme);
  const float steps = tws_code_bits(type) == 8 ? 255 : 15;
  float low = values[0], high = values[0];
  switch (type) {
    case TWS_CODES_INT8:
      *scale = most / 127;
      return most > 0 ? 1 / most : 0;
    case TWS_CODES_INT4:
      *scale = -extreme;
      return most > 0 ? -8 / extreme : 0;
    case TWS_CODES_NF4:
      *scale = most;
      return most > 0 ? 1 / most : 0;
    default:
      for (int64_t i = 1; i < block; i++) low = fminf(low, values[i]), high = fmaxf(high, values[i]);
      scale[0] = (high - low) / steps;
      scale[1] = low;
      return high > low ? steps / (high - low) : 0;
  }
}

static uint8_t code_of(float value, float factor, int type, const float *scale) {
  switch (type) {
    case TWS_CODES_INT8:
      return (uint8_t)(int8_t)lrintf(value * factor * 127);
    case TWS_CODES_INT4: {
      const long code = lrintf(value * factor) + 8;
      return (uint8_t)(code > 15 ? 15 : code);
    }
    case TWS_CODES_NF4:
      return nearest_level(value * factor);
    default:
      return (uint8_t)lrintf((value - scale[1]) * factor);
  }
}

void tws_quantize(const float *values, uint64_t count, int64_t block, int type, uint8_t *codes, float *scales) {
  for (uint64_t b = 0; b < count / (uint64_t)block; b++, values += block, scales += tws_code_scales(type)) {
    const float factor = scale_block(values, block, type, scales);
    for (int64_t i = 0; i < block && tws_code_bits(type) == 8; i++) *codes++ = code_of(values[i], factor, type, scales);
    for (int64_t i = 0; i < block && tws_code_bits(type) == 4; i += 2)
      *codes++ =
          (uint8_t)(code_of(values[i], factor, type, scales) << 4 | code_of(values[i + 1], factor, type, scales));
  }
}

void tws_dequantize(const uint8_t *codes, const float *scales, uint64_t count, int64_t block, int type, float *values) {
  static const float nf4[16] = TWS_NF4_LEVELS, int4[16] = TWS_INT4_LEVELS, plain[16] = TWS_UNSIGNED_LEVELS;
  const float *level = type == TWS_CODES_NF4 ? nf4 : type == TWS_CODES_INT4 ? int4 : plain;
  const int each = tws_code_scales(type);
  for (uint64_t i = 0; i < count; i++) {
    const float *scale = scales + i / (uint64_t)block * (uint64_t)each;
    float code;
    if (tws_code_bits(type) == 8)
      code = each == 2 ? (float)codes[i] : (float)(int8_t)codes[i];
    else
      code = level[i % 2 ? codes[i / 2] & 15 : codes[i / 2] >> 4];
    values[i] = code * scale[0] + (each == 2 ? scale[1] : 0);
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
