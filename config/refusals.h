/* Private to config/: collects all errors of a file, so that the user sees them in one run. */
#ifndef TWS_CONFIG_REFUSALS_H
#define TWS_CONFIG_REFUSALS_H

#include "base/memory.h"
#include "base/status.h"

typedef struct tws_refusals {
  int count;
  tws_error first;
  tws_text lines; /* texts of the form "message (hint)", one per line */
} tws_refusals;

/* Records an error and returns TWS_OK so that checking continues, or returns the code of an error that ends the check
 * (out of memory). */
tws_code tws_refusals_keep(tws_refusals *refusals, tws_code code, const tws_error *err);
/* Fails with all recorded errors: with a single error's own message and hint, or with one line for each of several
 * errors and no hint. Returns TWS_OK if there are none. Frees the records. */
tws_code tws_refusals_join(tws_refusals *refusals, tws_error *err);

#endif
