#include "models/dropout.h"

#include <math.h>

uint32_t tws_dropout_threshold(double probability) {
  const double words = floor(probability * 0x1p32 + 0.5);
  return words <= 0 ? 0 : words >= 0x1p32 ? UINT32_MAX : (uint32_t)words;
}
