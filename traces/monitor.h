/* Monitors: files that a run writes step by step, for TensorBoard, spreadsheets, other programs and Prometheus.
 *
 * A monitor is a sink of tws_step_report; all sinks of a run form one tws_monitor. Files are opened, and folders
 * created, before the first step. The data of a step is passed to the kernel when the call returns, so that a run
 * that is ended, by a signal too, leaves whole lines and records. Nothing is allocated after the first step. One
 * process writes: rank 0. */
#ifndef TWS_TRACES_MONITOR_H
#define TWS_TRACES_MONITOR_H

#include "base/status.h"
#include "config/ds_config.h"
#include "traces/step_report.h"

typedef struct tws_sink tws_sink;
struct tws_sink {
  tws_code (*write)(tws_sink *sink, const tws_step_report *report, tws_error *err);
  /* closes and frees the sink; ended: result of the run */
  tws_code (*close)(tws_sink *sink, tws_code ended, tws_error *err);
};

/* Data of the figures in TensorBoard's events. */
typedef struct tws_monitor_images {
  const char *plots; /* folder of gnuplot's scripts (scenarios/plots) */
  /* memory of rank 0 over the operations of a step, as tws_ledger_csv() writes it, by tier; NULL: no figure of it */
  const char *memory[TWS_TIER_COUNT];
} tws_monitor_images;

typedef struct tws_monitor_setup {
  const char *csv_folder;         /* folder for one file per number (DeepSpeed's csv_monitor); NULL: not written */
  const char *event_folder;       /* folder for TensorBoard's event files; NULL: not written */
  const tws_comet_section *comet; /* NULL: not written */
  const tws_wandb_section *wandb; /* NULL: not written */
  const char *lines_path;         /* path of a file of JSON lines; NULL: not written */
  const char *prometheus_path;    /* path of a file in Prometheus's text format; NULL: not written */
  const char *configuration;      /* the configuration as JSON, for TensorBoard's text page and for Weights and Biases;
                                   * NULL: not written */
  int continues;                  /* 1: the run was resumed, and JSON lines are appended to an existing file */
  const tws_monitor_images *images; /* figures in TensorBoard's events; NULL: none */
  int64_t samples;                  /* samples consumed before the resumed checkpoint */
  double now_s;                     /* current time, seconds since 1970 */
} tws_monitor_setup;

/* ---- single sinks ---- */
/* Opens one sink. Missing folders are created. Fails with TWS_IO if a file cannot be written. */
tws_code tws_csv_sink_open(const char *folder, tws_sink **out, tws_error *err);
tws_code tws_event_sink_open(const tws_monitor_setup *setup, tws_sink **out, tws_error *err);
tws_code tws_wandb_sink_open(const tws_monitor_setup *setup, tws_sink **out, tws_error *err);
tws_code tws_comet_sink_open(const tws_monitor_setup *setup, tws_sink **out, tws_error *err);
tws_code tws_lines_sink_open(const char *path, int appends, tws_sink **out, tws_error *err);
/* Prometheus's text format 0.0.4, for the textfile collector of its node exporter; the file is complete at any time.
 * It is written after the first step, then at most every TWS_PROMETHEUS_S seconds, as each flush to the disk costs
 * time, and at the end. */
enum { TWS_PROMETHEUS_S = 10 };
tws_code tws_prometheus_sink_open(const char *path, tws_sink **out, tws_error *err);

/* ---- all sinks of a run ---- */
typedef struct tws_monitor tws_monitor;
typedef struct tws_monitor_run {
  const char *lines_path, *prometheus_path; /* as in tws_monitor_setup */
  int continues;
  int64_t samples;
  const tws_monitor_images *images; /* used if the configuration asks for figures; NULL: there are none */
} tws_monitor_run;
/* Opens the sinks of the configuration's sections (tensorboard, csv_monitor, wandb, comet) and of the run. If no sink
 * is configured, *out is NULL and the result TWS_OK. */
tws_code tws_monitor_open(const tws_config *config, const tws_monitor_run *run, tws_monitor **out, tws_error *err);
/* Opens the sinks of one setup. */
tws_code tws_monitor_open_sinks(const tws_monitor_setup *setup, tws_monitor **out, tws_error *err);
/* passes a report to all sinks; monitor may be NULL */
tws_code tws_monitor_step(tws_monitor *monitor, const tws_step_report *report, tws_error *err);
/* Closes all sinks, even if one fails, and returns the first error. ended: result of the run. NULL is allowed. */
tws_code tws_monitor_close(tws_monitor *monitor, tws_code ended, tws_error *err);

#endif
