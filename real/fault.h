/* Fault injection for tests. The environment variable TWINSPEED_FAULT is a list "rank=1,step=3,kind=kill": halfway
 * through that step (1-based), before a collective if one remains, that rank
 *   kill       ends by SIGKILL
 *   hang       sleeps for ever
 *   slow       sleeps for a tenth of a second before each operation
 *   nan        sets its first parameter to NaN at the start of the step
 *   hold       does not write the checkpoint that is saved after that step until two more steps are done
 *   allocate   cannot allocate its arena (step is ignored)
 * With step=0 `hang` happens before the first step. Without the variable there is no cost. */
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
  tws_fault_kind kind; /* TWS_FAULT_NONE on all ranks that the fault does not concern */
  int64_t step;
} tws_fault;

/* Parses the list of faults in the environment variable TWINSPEED_FAULT, and sets *fault to that of `rank`, if there is
 * one; text may be NULL. Fails with TWS_USAGE if the text is no such list. */
tws_code tws_fault_parse(const char *text, int rank, tws_fault *fault, tws_error *err);
/* Executes the fault. Does not return for TWS_FAULT_KILL and TWS_FAULT_HANG. */
void tws_fault_strike(tws_fault_kind kind);

#endif
