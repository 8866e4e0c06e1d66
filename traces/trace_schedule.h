/* The steps of a run that a trace has, as torch.profiler.schedule() chooses them: after skip_first steps, cycles of
 * `wait` steps that are not observed, `warm_up` steps that are observed and dropped, and `active` steps that are
 * recorded; `repeat` cycles, or cycles until the run ends. */
#ifndef TWS_TRACES_TRACE_SCHEDULE_H
#define TWS_TRACES_TRACE_SCHEDULE_H

#include <stdint.h>
#include "base/status.h"

typedef struct tws_trace_schedule {
  int64_t skip_first, wait, warm_up;
  int64_t active; /* 0: there is no schedule */
  int64_t repeat; /* 0: until the run ends */
} tws_trace_schedule;

typedef enum tws_trace_phase { TWS_TRACE_NONE, TWS_TRACE_WARM_UP, TWS_TRACE_ACTIVE } tws_trace_phase;

/* Parses "wait=1,warmup=1,active=3,repeat=2,skip_first=0"; missing numbers are 0, but active must be given. Fails with
 * TWS_USAGE. */
tws_code tws_trace_schedule_parse(const char *text, tws_trace_schedule *out, tws_error *err);
/* Returns the phase of a step, counted from 0 at the beginning of the run. */
tws_trace_phase tws_trace_schedule_at(const tws_trace_schedule *schedule, int64_t step);
/* Returns the number of the first `steps` steps that are recorded. */
int64_t tws_trace_schedule_recorded(const tws_trace_schedule *schedule, int64_t steps);

#endif
