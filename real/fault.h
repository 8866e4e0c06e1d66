/* Faults on request, so that tests can see failures handled. The environment variable TWINSPEED_FAULT is a list
 * "rank=1,step=3,kind=kill": in the middle of that step (1-based), before a collective if one is left, that rank
 *   kill       ends by SIGKILL
 *   hang       sleeps for ever
 *   slow       sleeps for a tenth of a second before each operation
 *   nan        has a first parameter that is not a number, from the start of the step on
 *   hold       does not write the checkpoint that is saved behind that step until two more steps are done
 *   allocate   cannot allocate its arena (step is ignored)
 * In step 0 `hang` is before the first. Without the variable nothing here costs anything. */
#ifndef TWS_REAL_FAULT_H
#define TWS_REAL_FAULT_H

#include <stdint.h>
#include "base/status.h"

typedef enum tws_fault_kind {
  TWS_FAULT_NONE,
  TWS_FAULT_KILL,
  TWS_FAULT_HANG,
  TWS_FAULT_SLOW,
  TWS_FAULT_NAN,
  TWS_FAULT_HOLD,
  TWS_FAULT_ALLOCATE
} tws_fault_kind;
typedef struct tws_fault {
  tws_fault_kind kind; /* NONE on every other rank */
  int64_t step;
} tws_fault;

/* TWS_USAGE for a text that is not such a list. text may be NULL. */
tws_code tws_fault_parse(const char *text, int rank, tws_fault *fault, tws_error *err);
/* kill, hang: does not return. */
void tws_fault_strike(tws_fault_kind kind);

#endif
