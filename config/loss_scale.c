#include "config/loss_scale.h"

#include <math.h>

static const double largest = 0x1p126;

tws_loss_scale tws_loss_scale_start(const tws_config *config) {
  tws_loss_scale state = {.scale = 1, .hysteresis = config->fp16.hysteresis};
  if (config->dtype != TWS_F16) return state;
  state.scale = config->fp16.loss_scale > 0 ? config->fp16.loss_scale : ldexp(1, (int)config->fp16.initial_power);
  return state;
}

static int shrink_scale(tws_loss_scale *state, const tws_config *config) {
  const double least = (double)config->fp16.minimum;
  if (config->fp16.hysteresis > 1 && state->hysteresis > 1) {
    state->hysteresis--;
  } else {
    if (state->scale <= least) return -1;
    state->scale = fmax(state->scale / 2, least);
  }
  return 0;
}

static void grow_scale(tws_loss_scale *state, const tws_config *config) {
  const int due = state->stable > 0 && state->stable % config->fp16.window == 0;
  if (due || config->fp16.consecutive) state->hysteresis = config->fp16.hysteresis;
  if (due && state->scale * 2 <= largest) state->scale *= 2;
}

int tws_loss_scale_update(tws_loss_scale *state, const tws_config *config, int overflow) {
  const int fixed = config->dtype != TWS_F16 || config->fp16.loss_scale > 0;
  if (overflow) {
    if (fixed ? state->overflows + 1 >= TWS_LOSS_SCALE_PATIENCE : shrink_scale(state, config)) return -1;
    state->overflows++;
    state->stable = 0;
    return 0;
  }
  if (!fixed) grow_scale(state, config);
  state->overflows = 0;
  state->stable++;
  return 0;
}
