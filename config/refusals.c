#include "config/refusals.h"

#include <stdio.h>
#include <string.h>

tws_code tws_refusals_keep(tws_refusals *refusals, tws_code code, const tws_error *err) {
  if (code != TWS_INVALID && code != TWS_UNSUPPORTED) return code;
  if (!refusals->count++) refusals->first = *err;
  tws_text_add(&refusals->lines, "%s%s", refusals->count > 1 ? "\n" : "", err->message);
  if (err->hint[0]) tws_text_add(&refusals->lines, " (%s)", err->hint);
  return TWS_OK;
}

/* Copies as many complete lines as fit into `out`. */
static void join_lines(const char *lines, int count, char *out, size_t size) {
  size_t length = strlen(lines), room = size - 32;
  if (length >= room)
    while (room > 0 && lines[room] != '\n') room--;
  snprintf(out, size, "%.*s", (int)(length < room ? length : room), lines);
  int shown = 1;
  for (const char *c = out; *c; c++) shown += *c == '\n';
  if (shown < count) snprintf(out + strlen(out), size - strlen(out), "\n... and %d more", count - shown);
}

tws_code tws_refusals_join(tws_refusals *refusals, tws_error *err) {
  const int count = refusals->count;
  tws_code code = count ? refusals->first.code : TWS_OK;
  if (count && err) *err = refusals->first;
  if (count > 1 && err && !refusals->lines.failed) {
    join_lines(refusals->lines.data, count, err->message, sizeof err->message);
    err->hint[0] = '\0';
  }
  tws_text_free(&refusals->lines);
  return code;
}
