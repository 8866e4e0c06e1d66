/* Figures by gnuplot, as PNG or SVG by the ending of the file's name. The scripts are in scenarios/plots; the data
 * of a figure stays next to it as <name>.dat, so that it can be drawn again. */
#ifndef TWS_TRACES_PLOT_H
#define TWS_TRACES_PLOT_H

#include "base/status.h"
#include "traces/marks.h"
#include "traces/timeline.h"

int tws_plot_available(void); /* 1: a program named gnuplot is on the path */

/* All functions: `scripts` is the folder of the .gp files, `out` the picture to write. TWS_ENVIRONMENT: gnuplot is
 * not installed or failed (the message has its last output). */

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

/* Values over time. */
typedef struct tws_plot_series {
  const char *name;
  const double *at_s, *value;
  int count;
} tws_plot_series;
/* An interval of time of one kind: `kind` is an index into the names that tws_plot_run() receives. */
typedef struct tws_plot_band {
  int kind;
  double from_s, to_s;
} tws_plot_band;
enum { TWS_PLOT_KINDS = 8 };
/* Losses of several runs over time, with a bar below that shows how the first of them spent its time; marks: events
 * of that run. A NaN interrupts a line. */
tws_code tws_plot_run(const char *scripts, const tws_plot_series *series, int count, const tws_plot_band *bands,
                      int band_count, const tws_mark *marks, int mark_count, const char *const *kinds, int kind_count,
                      const char *title, const char *out, tws_error *err);
/* Goodput (share of the time whose work is not lost) over failures per hour, measured and by formula. */
typedef struct tws_plot_goodput {
  double failures_per_h, measured, formula;
} tws_plot_goodput;
tws_code tws_plot_goodputs(const char *scripts, const tws_plot_goodput *points, int count, const char *title,
                           const char *out, tws_error *err);

#endif
