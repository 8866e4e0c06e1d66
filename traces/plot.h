/* Figures by gnuplot, as PNG or SVG by the ending of the file's name. The scripts are in scenarios/plots; the data that
 * a figure was drawn from stays beside it as <name>.dat, so that it can be drawn again. */
#ifndef TWS_TRACES_PLOT_H
#define TWS_TRACES_PLOT_H

#include "base/status.h"
#include "traces/timeline.h"

int tws_plot_available(void); /* 1: a program named gnuplot is on the path */

/* All functions: `scripts` is the folder of the .gp files, `out` the picture to write. TWS_ENVIRONMENT: gnuplot is not
 * there or failed (the message has its last words). */

/* One step of each timeline (the last it has) as a Gantt chart on one time axis; at most `ranks` ranks of each. */
tws_code tws_plot_timelines(const char *scripts, const tws_timeline *const *timelines, int count, int ranks,
                            const char *title, const char *out, tws_error *err);
/* csv: text as of tws_ledger_csv(): op,phase,micro_batch,name,<categories>,total */
tws_code tws_plot_memory(const char *scripts, const char *csv, const char *title, const char *out, tws_error *err);

typedef struct tws_plot_point {
  const char *name;
  double measured_s, low_s, high_s; /* median and quartiles */
  double predicted_s;
} tws_plot_point;
tws_code tws_plot_accuracy(const char *scripts, const tws_plot_point *points, int count, const char *title,
                           const char *out, tws_error *err);

#endif
