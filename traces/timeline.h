/* Timelines: start and end of each operation of a plan, simulated or measured. Names and streams come from the plan,
 * so they are the same in both by construction. */
#ifndef TWS_TRACES_TIMELINE_H
#define TWS_TRACES_TIMELINE_H

#include <stddef.h>
#include <stdint.h>
#include "base/status.h"

/* One execution of an operation. The folders that traces/ may include do not define plans, so a timeline contains its
 * own texts. */
typedef struct tws_event {
  uint32_t name; /* index into names, of a label made by tws_op_label(): "phase module kind" */
  uint16_t rank;
  uint8_t stream; /* number of the stream of the rank that the operation ran on */
  uint8_t phase;
  uint32_t op;   /* index of the operation in the rank's plan */
  uint32_t step; /* training step; 0 for a simulation */
  uint32_t micro_batch;
  uint32_t detail; /* 1 + index into names of further arguments, as members of a JSON object; 0: none */
  uint64_t meets;  /* equal for events of different ranks that meet in one step; 0: it meets no other */
  double start_s, end_s;
} tws_event;

/* A counter's value over time, independent of operations: one point of one series of it. */
typedef struct tws_count {
  uint32_t name, series; /* indices into names */
  double at_s, value;    /* value: the value from at_s on */
} tws_count;

typedef struct tws_timeline {
  const char *source; /* "simulated" or "measured" */
  char **names;
  uint32_t name_count;
  tws_event *events;
  tws_count *counts;
  size_t event_count, event_capacity, name_capacity, count_count, count_capacity;
  const char *const *stream_names, *const *phase_names; /* names of streams and phases: static tables of the plan */
  int stream_count, phase_count;
  char model[24], plan[24]; /* fingerprints of model and plan; "": not known */
  uint32_t *slots;          /* hash table over names: 1 + index of a name; 0: the slot is free */
  size_t slot_count;
} tws_timeline;

/* Creates an empty timeline; returns NULL without memory. `source` must outlive it. The caller sets the tables of
 * streams and phases. */
tws_timeline *tws_timeline_create(const char *source);
/* Sets the fingerprints of model and plan (estimators' tws_fingerprint_read()), which identify the run. */
void tws_timeline_identify(tws_timeline *timeline, const char *model, const char *plan);
void tws_timeline_destroy(tws_timeline *timeline);
/* returns the index of the name, which is added if it is new; UINT32_MAX without memory */
uint32_t tws_timeline_name(tws_timeline *timeline, const char *name);
int tws_timeline_add(tws_timeline *timeline, const tws_event *event); /* returns 0, or -1 without memory */
/* Adds a counter's value. Series of one counter at one time must be added one after another. Returns 0, or -1 without
 * memory. */
int tws_timeline_count(tws_timeline *timeline, const char *name, const char *series, double at_s, double value);
/* Return parts of a label: tws_label_kind() its last word, the kind of operation ("linear", "all_gather");
 * tws_label_module() the text between the phase and the kind, which may be empty. Both point into the label. */
const char *tws_label_kind(const char *label);
const char *tws_label_module(const char *label, int *length);
/* Checks a timeline: fails with TWS_INTERNAL unless every event's name, stream and phase are in the tables, its times
 * are finite and ordered, and counts are finite. */
tws_code tws_timeline_check(const tws_timeline *timeline, tws_error *err);

/* Writes a Chrome/Perfetto trace ("Trace Event Format", complete events, microseconds): one process per source and
 * rank, one thread per stream; each timeline is shifted to begin at 0. Counts are counter events of a process of
 * their own. Events that meet are connected by flow events: from a send to its receive, and along the ranks of a
 * collective. One file has several timelines, and appears at once when it is complete; a name that ends with ".gz" asks
 * for a compressed one. */
tws_code tws_timeline_write_chrome(const tws_timeline *const *timelines, int count, const char *path, tws_error *err);
/* Reads the events of one source ("measured") from a file that tws_timeline_write_chrome() wrote, compressed or not.
 * `source` and the name tables must outlive the timeline, which the caller destroys. TWS_INVALID names the position. */
tws_code tws_timeline_read_chrome(const char *path, const char *source, const char *const *stream_names,
                                  int stream_count, const char *const *phase_names, int phase_count, tws_timeline **out,
                                  tws_error *err);
/* Writes a table with the columns source,rank,step,stream,phase,micro_batch,op,name,start_s,end_s, for gnuplot and
 * spreadsheets. */
tws_code tws_timeline_write_csv(const tws_timeline *const *timelines, int count, const char *path, tws_error *err);

#endif
