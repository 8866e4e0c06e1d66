/* Reductions of a stage-0 step that run beside what computes its end. Internal to estimators/. */
#ifndef TWS_ESTIMATORS_TAIL_REDUCTIONS_H
#define TWS_ESTIMATORS_TAIL_REDUCTIONS_H

#include "estimators/pieces.h"

/* Of a tail with its dependencies, whose operations take so long: overlaps, overlapped, waits and step_time of `out`,
 * where nothing else runs beside. */
tws_code tws_tail_reductions_find(const tws_plan *plan, const tws_piece_time *times, tws_arena *arena,
                                  tws_tail_pieces *out, tws_error *err);

#endif
