/* What happened while a timeline was taken, beside its operations: a fault, a stretch of slowness. */
#ifndef TWS_TRACES_MARKS_H
#define TWS_TRACES_MARKS_H

#include "traces/timeline.h"

typedef struct tws_mark {
  char name[48];
  double from_s, until_s; /* equal: a moment */
} tws_mark;

/* As tws_timeline_write_chrome(), with marks across all ranks: their seconds are those of the timelines' beginning. */
tws_code tws_timeline_write_marked(const tws_timeline *const *timelines, int count, const tws_mark *marks,
                                   int mark_count, const char *path, tws_error *err);

#endif
