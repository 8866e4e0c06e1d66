/* Private to config/: what is wrong with a file, all of it, so that nobody has to find out one run at a time. */
#ifndef TWS_CONFIG_REFUSALS_H
#define TWS_CONFIG_REFUSALS_H

#include "base/memory.h"
#include "base/status.h"

typedef struct tws_refusals {
  int count;
  tws_error first;
  tws_text lines; /* "message (hint)", one a line */
} tws_refusals;

/* Takes note of an error and gives TWS_OK to go on, or the code when it is none that others may stand beside (memory).
 */
tws_code tws_refusals_keep(tws_refusals *refusals, tws_code code, const tws_error *err);
/* One error of all: the first as it was when it is alone, else a line for each, without a hint. Frees the notes. */
tws_code tws_refusals_join(tws_refusals *refusals, tws_error *err);

#endif
