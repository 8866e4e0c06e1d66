/* Writes the timeline of an emulated step. */
#include "base/memory.h"
#include "emulation/emulate.h"

tws_code tws_emulation_write_trace(const tws_emulation *r, const tws_timeline *timeline, const char *path,
                                   tws_error *err) {
  tws_mark *marks = r->mark_count ? tws_calloc((size_t)r->mark_count, sizeof *marks) : NULL;
  int count = 0;
  for (int i = 0; marks && i < r->mark_count; i++) {
    const tws_mark *m = &r->marks[i];
    if (m->until_s < r->traced_s) continue;
    marks[count] = *m;
    marks[count].from_s -= r->traced_s;
    marks[count++].until_s -= r->traced_s;
  }
  const tws_code code = tws_timeline_write_marked(&timeline, 1, marks, count, path, err);
  tws_free(marks);
  return code;
}
