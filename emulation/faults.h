/* The events of a scenario, with virtual times: random draws have been made.
 *
 * Ranks and nodes are identified by their place in the initial cluster: a job that continues without some nodes has
 * other rank numbers at the same places. */
#ifndef TWS_EMULATION_FAULTS_H
#define TWS_EMULATION_FAULTS_H

#include "emulation/scenario.h"
#include "traces/marks.h"

typedef struct tws_occurrence {
  const tws_fault_event *event;
  int first,
      last; /* the slots of ranks that the event hits (node x slots + index on the node), or the nodes, both included */
  double from_s, until_s;
  uint64_t draw; /* random number from which further properties of the occurrence are drawn */
  int done;      /* 1: an event that happens once has happened */
} tws_occurrence;

typedef struct tws_faults {
  const tws_scenario *scenario;
  int nodes, slots;       /* slots: ranks that a node has room for */
  tws_occurrence *all;    /* occurrences, sorted by from_s */
  int count, over;        /* count: number of occurrences; the first `over` of them have ended */
  int jitters, slows;     /* 1: there are jitter events; 1: there are events that reduce a speed */
  double downtime_mean_s; /* mean virtual seconds between deaths of any node; INFINITY: there are no deaths */
} tws_faults;

/* The place of a rank: its node and its slot. */
typedef struct tws_rank_slot {
  int slot, node;
} tws_rank_slot;

tws_code tws_faults_open(const tws_scenario *scenario, int nodes, int slots, tws_arena *arena, tws_faults *out,
                         tws_error *err);
/* Lists the events that have begun by now_s, and returns their number (0 without memory). The caller frees *out. */
int tws_faults_marks(const tws_faults *faults, double now_s, tws_mark **out);
/* Advances the time to now_s: occurrences that have ended before are not examined any more. */
void tws_faults_pass(tws_faults *faults, double now_s);

/* Return the duration of work of `seconds` that begins at `start_s` at these places, in seconds: of kernels; of a
 * transfer among all places; of writing to a node's disk. At most TWS_NEVER_S. */
#define TWS_NEVER_S 1e8
double tws_faults_compute(const tws_faults *faults, tws_rank_slot place, uint64_t number, double start_s,
                          double seconds);
double tws_faults_transfer(const tws_faults *faults, const tws_rank_slot *places, int count, double start_s,
                           double seconds);
/* Returns the remaining share of a place's link bandwidth at a time, and sets *until_s to the time at which the share
 * changes. With `network` it includes links to other nodes. */
double tws_faults_share(const tws_faults *faults, tws_rank_slot place, int network, double at_s, double *until_s);
/* Returns the index in `places` of the first one whose link transfers nothing at this time, or -1. */
int tws_faults_cut_off(const tws_faults *faults, const tws_rank_slot *places, int count, double at_s);
double tws_faults_disk(const tws_faults *faults, int node, double start_s, double seconds);
int tws_faults_disk_is_full(const tws_faults *faults, int node, double now_s);

#endif
