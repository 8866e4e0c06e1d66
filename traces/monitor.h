/* Monitors: files that a run writes step by step, for TensorBoard, spreadsheets, other programs and Prometheus.
 *
 * A monitor is a sink of tws_step_report; all of a run are one tws_monitor. Files are opened, and folders made, before
 * the first step. What a step writes is on its way to the disk when the call returns, so a run that is ended, by a
 * signal too, leaves whole lines and records. Nothing is allocated after the first step. One process writes: rank 0. */
#ifndef TWS_TRACES_MONITOR_H
#define TWS_TRACES_MONITOR_H

#include "base/status.h"
#include "config/ds_config.h"
#include "traces/step_report.h"

typedef struct tws_sink tws_sink;
struct tws_sink {
  tws_code (*write)(tws_sink *sink, const tws_step_report *report, tws_error *err);
  tws_code (*close)(tws_sink *sink, tws_code ended, tws_error *err); /* and frees it; ended: what came of the run */
};

typedef struct tws_monitor_setup {
  const char *csv_folder;         /* a file for each number (DeepSpeed's csv_monitor); NULL: none */
  const char *event_folder;       /* of TensorBoard; NULL: none */
  const tws_comet_section *comet; /* NULL: none */
  const tws_wandb_section *wandb; /* NULL: none */
  const char *lines_path;         /* JSON lines; NULL: none */
  const char *prometheus_path;    /* NULL: none */
  const char *configuration;      /* JSON, for TensorBoard's page of texts and for Weights and Biases; NULL: none */
  int continues;                  /* a run that goes on from a checkpoint: JSON lines are appended to */
  int64_t samples;                /* of the checkpoint */
  double now_s;                   /* seconds since 1970 */
} tws_monitor_setup;

/* ---- each alone ---- */
/* Folders are made where they are not there. TWS_IO: it cannot be written. */
tws_code tws_csv_sink_open(const char *folder, tws_sink **out, tws_error *err);
tws_code tws_event_sink_open(const tws_monitor_setup *setup, tws_sink **out, tws_error *err);
tws_code tws_wandb_sink_open(const tws_monitor_setup *setup, tws_sink **out, tws_error *err);
tws_code tws_comet_sink_open(const tws_monitor_setup *setup, tws_sink **out, tws_error *err);
tws_code tws_lines_sink_open(const char *path, int appends, tws_sink **out, tws_error *err);
/* The text format of Prometheus 0.0.4, whole at any time, for the textfile collector of its node exporter. It is
 * written after the first step, then at most every TWS_PROMETHEUS_S seconds, as a file that reaches the disk each
 * time costs time, and at the end. */
enum { TWS_PROMETHEUS_S = 10 };
tws_code tws_prometheus_sink_open(const char *path, tws_sink **out, tws_error *err);

/* ---- all of a run ---- */
typedef struct tws_monitor tws_monitor;
typedef struct tws_monitor_run {
  const char *lines_path, *prometheus_path; /* as above */
  int continues;
  int64_t samples;
} tws_monitor_run;
/* Those of the configuration's sections tensorboard and csv_monitor, and of the run. *out is NULL, and the result
 * TWS_OK, where nothing is asked for. */
tws_code tws_monitor_open(const tws_config *config, const tws_monitor_run *run, tws_monitor **out, tws_error *err);
/* The sinks of one setup. */
tws_code tws_monitor_open_sinks(const tws_monitor_setup *setup, tws_monitor **out, tws_error *err);
tws_code tws_monitor_step(tws_monitor *monitor, const tws_step_report *report, tws_error *err); /* NULL: nothing */
/* Ends all of them, whatever goes wrong with one; the first error. ended: what came of the run. NULL is allowed. */
tws_code tws_monitor_close(tws_monitor *monitor, tws_code ended, tws_error *err);

#endif
