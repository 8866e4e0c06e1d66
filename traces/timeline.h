/* Timelines: start and end of each operation of a plan, simulated or measured. Names and streams come from the plan,
 * so they are the same in both by construction. */
#ifndef TWS_TRACES_TIMELINE_H
#define TWS_TRACES_TIMELINE_H

#include <stddef.h>
#include <stdint.h>
#include "base/status.h"

/* base, config, models sit below traces; a timeline therefore carries its own strings. */
typedef struct tws_event {
  uint32_t name; /* index into names: a label of tws_op_label(), "phase module kind" */
  uint16_t rank;
  uint8_t stream; /* a stream of the rank */
  uint8_t phase;
  uint32_t op;   /* index in the rank's plan */
  uint32_t step; /* training step, 0 for a simulation */
  uint32_t micro_batch;
  double start_s, end_s;
} tws_event;

/* A counter's value over time, independent of operations: one point of one series. */
typedef struct tws_count {
  uint32_t name, series; /* index into names */
  double at_s, value;    /* the value from then on */
} tws_count;

typedef struct tws_timeline {
  const char *source; /* "simulated" or "measured" */
  char **names;
  uint32_t name_count;
  tws_event *events;
  tws_count *counts;
  size_t event_count, event_capacity, name_capacity, count_count, count_capacity;
  const char *const *stream_names, *const *phase_names; /* static tables of the plan */
  int stream_count, phase_count;
  char model[24], plan[24]; /* fingerprints of model and plan; "": not known */
  uint32_t *slots; /* hash table over names: index + 1, 0 is free */
  size_t slot_count;
} tws_timeline;

/* `source` must outlive the timeline. NULL without memory. The caller sets the tables of streams and phases. */
tws_timeline *tws_timeline_create(const char *source);
/* Sets the fingerprints of model and plan (estimators' tws_fingerprint_read()), which identify the run. */
void tws_timeline_identify(tws_timeline *timeline, const char *model, const char *plan);
void tws_timeline_destroy(tws_timeline *timeline);
uint32_t tws_timeline_name(tws_timeline *timeline, const char *name); /* interned; UINT32_MAX without memory */
int tws_timeline_add(tws_timeline *timeline, const tws_event *event); /* 0, or -1 without memory */
/* Series of one counter at one time must be added one after another. 0, or -1 without memory. */
int tws_timeline_count(tws_timeline *timeline, const char *name, const char *series, double at_s, double value);
/* Parts of a label: the kind of operation, its last word ("linear", "all_gather"), and the module, the text between
 * the phase and the kind (may be empty). Both point into the label. */
const char *tws_label_kind(const char *label);
const char *tws_label_module(const char *label, int *length);
/* TWS_INTERNAL unless every event's name, stream and phase are in the tables, its times are finite and ordered, and
 * counts are finite. */
tws_code tws_timeline_check(const tws_timeline *timeline, tws_error *err);

/* Writes a Chrome/Perfetto trace ("Trace Event Format", complete events, microseconds): one process per source and
 * rank, one thread per stream; each timeline is shifted to begin at 0. Counts are counter events of a process of
 * their own. One file has several timelines, and appears at once when it is complete. */
tws_code tws_timeline_write_chrome(const tws_timeline *const *timelines, int count, const char *path, tws_error *err);
/* Reads the events of one source ("measured") from a file that tws_timeline_write_chrome() wrote. `source` and the
 * name tables must outlive the timeline, which the caller destroys. TWS_INVALID names the position. */
tws_code tws_timeline_read_chrome(const char *path, const char *source, const char *const *stream_names,
                                  int stream_count, const char *const *phase_names, int phase_count,
                                  tws_timeline **out, tws_error *err);
/* Writes source,rank,step,stream,phase,micro_batch,op,name,start_s,end_s: for gnuplot and spreadsheets. */
tws_code tws_timeline_write_csv(const tws_timeline *const *timelines, int count, const char *path, tws_error *err);

#endif
