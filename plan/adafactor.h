/* Adafactor (Shazeer and Stern, ICML 2018), as torch.optim.Adafactor has it: the second moments of a matrix are
 * factors, one number for each row and one for each column. Internal to plan/. */
#ifndef TWS_PLAN_ADAFACTOR_H
#define TWS_PLAN_ADAFACTOR_H

#include "plan/lower.h"

/* Adds the second moments to the rank's state, if the optimizer is Adafactor. Every rank stores the second moments of
 * all parameters: they are small, and a rank needs the moments of a whole matrix even if it updates only a part of the
 * matrix. */
void tws_adafactor_begin(tws_lower *l);

/* Emits the updates of all trained parameters. Every rank calls this function, since sums over a matrix are all-reduced
 * among the ranks that have parts of it. */
void tws_adafactor_lower(tws_lower *l);

#endif
