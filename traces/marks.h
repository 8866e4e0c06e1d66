/* Events that happened during a timeline and are no operations: a fault, an interval of slowness. */
#ifndef TWS_TRACES_MARKS_H
#define TWS_TRACES_MARKS_H

#include "traces/timeline.h"

typedef struct tws_mark {
  char name[48];
  double from_s, until_s; /* equal: an instant */
} tws_mark;

/* Writes as tws_timeline_write_chrome() does, with marks across all ranks. Their times are seconds from the
 * beginning of the timelines. */
tws_code tws_timeline_write_marked(const tws_timeline *const *timelines, int count, const tws_mark *marks,
                                   int mark_count, const char *path, tws_error *err);

#endif
