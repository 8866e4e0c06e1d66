/* Computes the loss scale of fp16 training. The loss is multiplied by a scale before the backward pass. The scale is
 * halved when gradients overflow, and doubled after a number of steps without overflow. A step whose gradients overflow
 * does not change the weights. Differences from DeepSpeed, all in cases in which DeepSpeed would loop forever or
 * produce wrong results:
 *   all ZeRO stages use one state machine (DeepSpeed's stage 0 has one without hysteresis, which stays at the minimum);
 *   the scale does not grow beyond 2^126, so that float32 represents the scale and its inverse;
 *   a fixed scale that overflows TWS_LOSS_SCALE_PATIENCE times in succession is an error. */
#ifndef TWS_CONFIG_LOSS_SCALE_H
#define TWS_CONFIG_LOSS_SCALE_H

#include "config/ds_config.h"

enum { TWS_LOSS_SCALE_PATIENCE = 100 };

typedef struct tws_loss_scale {
  double scale;       /* factor of the loss; 1 without fp16 */
  int64_t hysteresis; /* number of overflows until the scale is halved; 1: the next one halves it */
  int64_t stable;     /* steps since the last overflow or since the start */
  int64_t overflows;  /* number of overflows in succession, including the last step */
} tws_loss_scale;

tws_loss_scale tws_loss_scale_start(const tws_config *config);
/* Updates the state after a step; overflow: 1 if the step's gradients were not finite. Returns 0, or -1 and changes
 * nothing if the scale would have to be reduced below its minimum. */
int tws_loss_scale_update(tws_loss_scale *state, const tws_config *config, int overflow);

#endif
