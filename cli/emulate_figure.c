#include "cli/emulate_figure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/memory.h"
#include "job/modules.h"
#include "traces/plot.h"

static const char *name_of(const char *path, char name[64]) {
  const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path, *dot = strrchr(base, '.');
  snprintf(name, 64, "%.*s", dot ? (int)(dot - base) : (int)strlen(base), base);
  return name;
}

static tws_code draw(const tws_emulation *r, const tws_plot_series *series, int count, const char *title,
                     const char *out, tws_error *err) {
  static const char *kinds[TWS_SPAN_COUNT];
  char scripts[512];
  for (int i = 0; i < TWS_SPAN_COUNT; i++) kinds[i] = tws_span_name((tws_span_kind)i);
  tws_plot_band *bands = tws_calloc((size_t)r->span_count + 1, sizeof *bands);
  if (!bands) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for a figure");
  for (int i = 0; i < r->span_count; i++)
    bands[i] = (tws_plot_band){(int)r->spans[i].kind, r->spans[i].from_s, r->spans[i].to_s};
  const tws_code code = tws_plot_run(tws_plots_path(scripts, sizeof scripts), series, count, bands, r->span_count,
                                     r->marks, r->mark_count, kinds, TWS_SPAN_COUNT, title, out, err);
  tws_free(bands);
  return code;
}

tws_code tws_emulation_figure(const tws_emulation *r, const tws_loss_curve *curve, const char *name,
                              const tws_strings *compared, const char *title, const char *out, tws_error *err) {
  tws_plot_series series[1 + TWS_MAX_STRINGS] = {{name, curve->at_s, curve->loss, curve->count}};
  tws_loss_curve others[TWS_MAX_STRINGS] = {{0}};
  char names[TWS_MAX_STRINGS][64];
  tws_code code = TWS_OK;
  for (int i = 0; i < compared->count && code == TWS_OK; i++) {
    code = tws_loss_curve_read(compared->item[i], &others[i], err);
    series[1 + i] =
        (tws_plot_series){name_of(compared->item[i], names[i]), others[i].at_s, others[i].loss, others[i].count};
  }
  if (code == TWS_OK) code = draw(r, series, 1 + compared->count, title, out, err);
  for (int i = 0; i < compared->count; i++) tws_loss_curve_free(&others[i]);
  return code;
}
