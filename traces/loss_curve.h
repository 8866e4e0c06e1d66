/* Losses of a run over time. */
#ifndef TWS_TRACES_LOSS_CURVE_H
#define TWS_TRACES_LOSS_CURVE_H

#include "base/status.h"

/* Losses and the times at which they were known; NaN as a loss interrupts the drawn line. Begin with zeros. */
typedef struct tws_loss_curve {
  double *at_s, *loss;
  int count, capacity;
} tws_loss_curve;
void tws_loss_curve_add(tws_loss_curve *curve, double at_s, double loss); /* without memory the value is dropped */
void tws_loss_curve_free(tws_loss_curve *curve);
/* Appends the steps of a file that `twinspeed emulate --csv` wrote. TWS_IO, or TWS_INVALID: it is another file. */
tws_code tws_loss_curve_read(const char *path, tws_loss_curve *curve, tws_error *err);

#endif
