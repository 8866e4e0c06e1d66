/* Losses of a run over time. */
#ifndef TWS_TRACES_LOSS_CURVE_H
#define TWS_TRACES_LOSS_CURVE_H

#include <stdint.h>
#include "base/status.h"

/* Losses, and the times at which they were known, in seconds; a NaN loss interrupts the drawn line. A zeroed curve is
 * empty. */
typedef struct tws_loss_curve {
  double *at_s, *loss;
  int count, capacity;
} tws_loss_curve;
/* adds one loss; without memory it is dropped */
void tws_loss_curve_add(tws_loss_curve *curve, double at_s, double loss);
void tws_loss_curve_free(tws_loss_curve *curve);
/* Returns the perplexity of tokens whose natural log probabilities have this sum: the exponential of the mean loss. */
double tws_perplexity(double log_probabilities, int64_t tokens);
/* Appends the steps of a file that `twinspeed emulate --csv` wrote. Fails with TWS_IO if it cannot be read, and with
 * TWS_INVALID if it is another kind of file. */
tws_code tws_loss_curve_read(const char *path, tws_loss_curve *curve, tws_error *err);

#endif
