/* A scenario describes a job on a virtual cluster, the events that affect it, and the expected result. JSON with
 * "schema": "twinspeed-scenario-1"; docs/emulation.md lists the keys.
 *
 * An event has a fixed time, or repeats after intervals that are drawn from a distribution. Every random draw depends
 * only on the scenario's seed, the event and the number of the draw. */
#ifndef TWS_EMULATION_SCENARIO_H
#define TWS_EMULATION_SCENARIO_H

#include "base/json.h"
#include "job/spec.h"

/* Kinds of events: the name of each, and the keys that it accepts in addition to its target and times. */
#define TWS_HAPPENINGS(X)                                                                           \
  X(SLOW, "slow")                 /* factor: kernels of the ranks take this many times as long */   \
  X(JITTER, "jitter")             /* sigma: standard deviation of the logarithm of each duration */ \
  X(LINK, "link")                 /* factor: remaining share of the bandwidth, may be 0 */          \
  X(FLAP, "flap")                 /* down_s: seconds without link in every period_s seconds */      \
  X(DEATH, "death")               /* repair_s: seconds until the node is available again */         \
  X(STOP_IN_SAVE, "stop_in_save") /* save: its number, from 1 on; part: share that is written */    \
  X(BIT, "bit")                   /* in: data to flip: "buffer", "message" or "checkpoint" */       \
  X(DISK, "disk")                 /* factor: remaining share of the bandwidth; or full: the disk is full */
typedef enum tws_fault_event_kind {
#define X(name, text) TWS_HAPPENS_##name,
  TWS_HAPPENINGS(X)
#undef X
      TWS_HAPPENINGS_COUNT
} tws_fault_event_kind;
const char *tws_fault_event_name(tws_fault_event_kind kind);

typedef enum tws_target { TWS_TARGET_ALL, TWS_TARGET_RANK, TWS_TARGET_NODE } tws_target;
typedef enum tws_bit_place { TWS_BIT_BUFFER, TWS_BIT_MESSAGE, TWS_BIT_CHECKPOINT } tws_bit_place;
typedef enum tws_distribution { TWS_DRAWN_NOT, TWS_DRAWN_EXPONENTIAL, TWS_DRAWN_WEIBULL } tws_distribution;

typedef struct tws_fault_event {
  tws_fault_event_kind kind;
  tws_target target;
  int first, last;        /* ranks, or nodes ("switch": all nodes connected to it), first to last; -1: drawn each
                           * time */
  double at_s, until_s;   /* begin and end; until_s INFINITY: it does not end */
  tws_distribution drawn; /* distribution of the interval between occurrences, used instead of at_s */
  double scale_s, shape;  /* parameters of the distribution; of an exponential one, scale_s is the mean */
  double for_s;           /* duration of each occurrence */
  int64_t times;          /* maximum number of occurrences */
  double factor, sigma, period_s, down_s, repair_s, part;
  int64_t save;
  tws_bit_place place;
  const char *entry; /* state entry whose element is flipped, for in: "buffer" */
  int64_t element;
  int bit, full;
} tws_fault_event;

typedef struct tws_expectations {
  const char *status; /* "ok", or the name of a code: "rank", "hang", "io"...; NULL: ok */
  double loss, loss_tolerance;
  double step_min_s, step_max_s; /* limits for the median of the virtual step times */
  double goodput_min, goodput_max;
  int64_t restarts, steps, skipped; /* expected numbers; -1: any */
  int has_loss;
  const char *const *names;       /* texts in the error, or in the last failure that was followed by a restart;
                                   * NULL-terminated */
  const char *const *checkpoints; /* tags of all checkpoints that must exist at the end */
  int has_checkpoints, leftovers; /* 1: `checkpoints` is given; number of unfinished saves, -1: any */
} tws_expectations;

/* Options of a job's run: from the scenario or, without a scenario, from the command line. */
typedef struct tws_emulated_run {
  const char *data, *eval_data, *fidelity; /* files of a scenario are relative to its folder */
  int64_t steps, eval_every, eval_steps;
  int64_t save_every; /* steps between saves; 0: saves at the end only, or not at all; -1: the optimum */
  int64_t keep, restarts;
  int synchronous;
  double deadline_s, start_s; /* start_s: virtual seconds of a restart, in addition to reading files */
} tws_emulated_run;

typedef struct tws_scenario {
  tws_arena *arena;
  const char *name; /* path of the file */
  tws_job_spec job;
  const char *description;
  tws_emulated_run run;
  uint64_t seed;
  tws_fault_event *events;
  int event_count;
  tws_expectations expect;
} tws_scenario;

/* Parses a scenario. `name`: path of the file, used in messages and to resolve relative paths. Fails with TWS_INVALID,
 * naming the position. */
tws_code tws_scenario_from_json(const tws_json *json, tws_scenario **out, tws_error *err);
tws_code tws_scenario_load(const char *path, tws_scenario **out, tws_error *err);
void tws_scenario_destroy(tws_scenario *scenario); /* NULL is allowed */

#endif
