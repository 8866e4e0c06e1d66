/* The loss scale of fp16 training (specification 03 section 4): gradients are computed of the loss times a scale, which
 * is halved when they overflow and doubled after a while without overflow. Steps that overflow change no weights.
 *
 * Differences from DeepSpeed, all where it would continue for ever or stop making sense:
 *   one machine for all stages (upstream, stage 0 has a copy without hysteresis that stays at the minimum for ever);
 *   the scale does not grow beyond 2^126, where float32 holds it and its inverse;
 *   a fixed scale that overflows TWS_LOSS_SCALE_PATIENCE times in a row is an error. */
#ifndef TWS_CONFIG_LOSS_SCALE_H
#define TWS_CONFIG_LOSS_SCALE_H

#include "config/ds_config.h"

enum { TWS_LOSS_SCALE_PATIENCE = 100 };

typedef struct tws_loss_scale {
  double scale;       /* 1 without fp16 */
  int64_t hysteresis; /* overflows that are left before the scale is halved; 1: the next one does it */
  int64_t stable;     /* steps since the last overflow, or the start */
  int64_t overflows;  /* in a row, up to now */
} tws_loss_scale;

tws_loss_scale tws_loss_scale_start(const tws_config *config);
/* After a step. Returns -1, changing nothing, when the scale can go no lower. */
int tws_loss_scale_update(tws_loss_scale *state, const tws_config *config, int overflow);

#endif
