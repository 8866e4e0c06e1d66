/* Private to config/: collects all errors of a file, so that the user sees them in one run. */
#ifndef TWS_CONFIG_REFUSALS_H
#define TWS_CONFIG_REFUSALS_H

#include "base/memory.h"
#include "base/status.h"

typedef struct tws_refusals {
  int count;
  tws_error first;
  tws_text lines; /* "message (hint)", one a line */
} tws_refusals;

/* Keeps an error and returns TWS_OK so that checking continues, or returns the code of an error that cannot be reported
 * with others (memory). */
tws_code tws_refusals_keep(tws_refusals *refusals, tws_code code, const tws_error *err);
/* One error of all: the first as it was when it is alone, else a line for each, without a hint. Frees the notes. */
tws_code tws_refusals_join(tws_refusals *refusals, tws_error *err);

#endif
