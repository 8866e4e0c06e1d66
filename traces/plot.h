/* Figures by gnuplot, as PNG or SVG by the ending of the file's name. The scripts are in scenarios/plots; the data
 * of a figure stays next to it as <name>.dat, so that it can be drawn again. */
#ifndef TWS_TRACES_PLOT_H
#define TWS_TRACES_PLOT_H

#include "base/memory.h"
#include "base/status.h"
#include "traces/marks.h"
#include "traces/timeline.h"

int tws_plot_available(void); /* returns 1 if a program named gnuplot is on the path */

/* In all functions below, `scripts` is the folder of the .gp files, and `out` the path of the picture. They fail with
 * TWS_ENVIRONMENT if gnuplot is not installed or fails (the message has its last output). */

/* Draws one step of each timeline (its last one) as a Gantt chart on one time axis, with at most `ranks` ranks of
 * each. */
tws_code tws_plot_timelines(const char *scripts, const tws_timeline *const *timelines, int count, int ranks,
                            const char *title, const char *out, tws_error *err);
/* Draws memory over the operations of a step. csv: text in the format of tws_ledger_csv():
 * op,phase,micro_batch,name,<categories>,total */
tws_code tws_plot_memory(const char *scripts, const char *csv, const char *title, const char *out, tws_error *err);

/* Draws the figure of tws_plot_memory() as a PNG into *picture, which the caller frees, also after an error. */
tws_code tws_plot_memory_png(const char *scripts, const char *csv, const char *title, tws_text *picture,
                             tws_error *err);

typedef struct tws_plot_point {
  const char *name;
  double measured_s, low_s, high_s; /* measured median and quartiles, seconds */
  double predicted_s;
} tws_plot_point;
tws_code tws_plot_accuracy(const char *scripts, const tws_plot_point *points, int count, const char *title,
                           const char *out, tws_error *err);

/* Values over time: one line of a figure. */
typedef struct tws_plot_series {
  const char *name;
  const double *at_s, *value;
  int count;
} tws_plot_series;
/* Draws losses over the samples trained, which at_s has in place of seconds, as a PNG into *picture, which the caller
 * frees, also after an error. At most two series. */
tws_code tws_plot_losses_png(const char *scripts, const tws_plot_series *series, int count, const char *title,
                             tws_text *picture, tws_error *err);
/* An interval of time of one kind: `kind` is an index into the names that tws_plot_run() receives. */
typedef struct tws_plot_band {
  int kind;
  double from_s, to_s;
} tws_plot_band;
enum { TWS_PLOT_KINDS = 8 };
/* Draws the losses of several runs over time, and below them a bar that shows the activities of the first run over
 * time. marks: events of that run. A NaN interrupts a line. */
tws_code tws_plot_run(const char *scripts, const tws_plot_series *series, int count, const tws_plot_band *bands,
                      int band_count, const tws_mark *marks, int mark_count, const char *const *kinds, int kind_count,
                      const char *title, const char *out, tws_error *err);
/* One point of a figure of goodput (share of the time whose work is not lost) over failures per hour, measured and by
 * formula. */
typedef struct tws_plot_goodput {
  double failures_per_h, measured, formula;
} tws_plot_goodput;
tws_code tws_plot_goodputs(const char *scripts, const tws_plot_goodput *points, int count, const char *title,
                           const char *out, tws_error *err);

enum { TWS_PLOT_OPTIMIZERS = 8 }; /* most optimizers of a figure */
/* One point of a figure of optimizers over the network's bandwidth: how many times as fast as AdamW each is. */
typedef struct tws_plot_speedup {
  double bits_per_s, speedup[TWS_PLOT_OPTIMIZERS];
} tws_plot_speedup;
/* Draws the speedups over the bandwidth. names: of `optimizers` optimizers, each one word. */
tws_code tws_plot_speedups(const char *scripts, const tws_plot_speedup *points, int count, const char *const *names,
                           int optimizers, const char *title, const char *out, tws_error *err);

#endif
