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
  tws_code (*close)(tws_sink *sink, tws_code ended, tws_error *err); /* also frees it; ended: result of the run */
};

typedef struct tws_monitor_setup {
  const char *csv_folder;         /* a file for each number (DeepSpeed's csv_monitor); NULL: none */
  const char *event_folder;       /* of TensorBoard; NULL: none */
  const tws_comet_section *comet; /* NULL: none */
  const tws_wandb_section *wandb; /* NULL: none */
  const char *lines_path;         /* JSON lines; NULL: none */
  const char *prometheus_path;    /* NULL: none */
  const char *configuration;      /* JSON, for TensorBoard's page of texts and for Weights and Biases; NULL: none */
  int continues;                  /* a resumed run: JSON lines are appended */
  int64_t samples;                /* samples of the checkpoint */
  double now_s;                   /* seconds since 1970 */
} tws_monitor_setup;

/* ---- single sinks ---- */
/* Missing folders are created. TWS_IO: it cannot be written. */
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
  const char *lines_path, *prometheus_path; /* as above */
  int continues;
  int64_t samples;
} tws_monitor_run;
/* Opens the sinks of the configuration's sections (tensorboard, csv_monitor, wandb, comet) and of the run. *out is
 * NULL, and the result TWS_OK, where no sink is configured. */
tws_code tws_monitor_open(const tws_config *config, const tws_monitor_run *run, tws_monitor **out, tws_error *err);
/* Opens the sinks of one setup. */
tws_code tws_monitor_open_sinks(const tws_monitor_setup *setup, tws_monitor **out, tws_error *err);
tws_code tws_monitor_step(tws_monitor *monitor, const tws_step_report *report, tws_error *err); /* NULL: nothing */
/* Closes all sinks, even if one fails, and returns the first error. ended: result of the run. NULL is allowed. */
tws_code tws_monitor_close(tws_monitor *monitor, tws_code ended, tws_error *err);

#endif
