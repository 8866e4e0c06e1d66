/* Events of a cluster by virtual time: those of a scenario, with their random draws made.
 *
 * Ranks and nodes are identified by their place in the cluster: a job that continues without some nodes has different
 * ranks at the same places. */
#ifndef TWS_EMULATION_FAULTS_H
#define TWS_EMULATION_FAULTS_H

#include "emulation/scenario.h"
#include "traces/marks.h"

typedef struct tws_occurrence {
  const tws_happening *event;
  int first, last; /* places of ranks, or nodes */
  double from_s, until_s;
  uint64_t draw; /* for what else is drawn of it */
  int done;      /* of what happens once */
} tws_occurrence;

typedef struct tws_faults {
  const tws_scenario *scenario;
  int nodes, slots;       /* slots: places of a node */
  tws_occurrence *all;    /* by from_s */
  int count, over;        /* those before `over` are */
  int jitters, slows;     /* whether anything of the kind is among them */
  double downtime_mean_s; /* between deaths, of all events together; INFINITY: there are none */
} tws_faults;

/* Where an operation's rank is. */
typedef struct tws_seat {
  int slot, node;
} tws_seat;

tws_code tws_faults_open(const tws_scenario *scenario, int nodes, int slots, tws_arena *arena, tws_faults *out,
                         tws_error *err);
/* Those that have begun by this date; returns how many. The caller frees *out; without memory there are none. */
int tws_faults_marks(const tws_faults *faults, double now_s, tws_mark **out);
/* It is so late: what has ended need not be looked at any more. */
void tws_faults_pass(tws_faults *faults, double now_s);

/* Return the duration of work of `seconds` that begins at `start_s` at these places, in seconds: of kernels; of a
 * transfer among all places; of writing to a node's disk. At most TWS_NEVER_S. */
#define TWS_NEVER_S 1e8
double tws_faults_compute(const tws_faults *faults, tws_seat place, uint64_t number, double start_s, double seconds);
double tws_faults_transfer(const tws_faults *faults, const tws_seat *places, int count, double start_s, double seconds);
/* The share of a place's link that is left at a time, and until when: of its own, and with `network` of what leads to
 * other nodes. */
double tws_faults_share(const tws_faults *faults, tws_seat place, int network, double at_s, double *until_s);
/* The first of these places that nothing of a transfer among them reaches at a time, or -1. */
int tws_faults_cut_off(const tws_faults *faults, const tws_seat *places, int count, double at_s);
double tws_faults_disk(const tws_faults *faults, int node, double start_s, double seconds);
int tws_faults_disk_is_full(const tws_faults *faults, int node, double now_s);

#endif
