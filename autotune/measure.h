/* The winners of a search, trained for some steps. */
#ifndef TWS_AUTOTUNE_MEASURE_H
#define TWS_AUTOTUNE_MEASURE_H

#include "autotune/autotune.h"

typedef struct tws_tune_measuring {
  const tws_job_spec *spec; /* that the search's job was opened with: what the ranks are started with */
  const char *data;
  int64_t steps;
  int count;          /* of the best; at most 32 */
  const tws_log *log; /* may be NULL */
} tws_tune_measuring;
/* Records what was measured with tws_tune_record(). */
tws_code tws_tune_measure(tws_tune_result *result, const tws_tune_measuring *how, const char *folder, tws_error *err);

#endif
