/* A scenario: a job on a virtual cluster, what happens to it, and what is expected of it. JSON with "schema":
 * "twinspeed-scenario-1"; docs/emulation.md lists the keys.
 *
 * Events have a time, or are drawn again and again from a distribution: how long until the next. Everything that is
 * drawn depends on the scenario's seed, the event and the number of the draw alone. */
#ifndef TWS_EMULATION_SCENARIO_H
#define TWS_EMULATION_SCENARIO_H

#include "base/json.h"
#include "job/spec.h"

/* Kinds of events: name, and the keys that each takes in addition to its target and times. */
#define TWS_HAPPENINGS(X)                                                                       \
  X(SLOW, "slow")                 /* factor: by which kernels of the ranks take longer */ \
  X(JITTER, "jitter")             /* sigma: of the logarithm of what each kernel takes */       \
  X(LINK, "link")                 /* factor: remaining share of the bandwidth, 0: none */    \
  X(FLAP, "flap")                 /* period_s, down_s: a link that comes and goes */            \
  X(DEATH, "death")               /* repair_s: until the node is there again */                 \
  X(STOP_IN_SAVE, "stop_in_save") /* save: which, from 1 on; part: of it that is written */     \
  X(BIT, "bit")                   /* in: "buffer", "message" or "checkpoint" */                 \
  X(DISK, "disk")                 /* factor: share of the bandwidth that is left; or full */
typedef enum tws_happening_kind {
#define X(name, text) TWS_HAPPENS_##name,
  TWS_HAPPENINGS(X)
#undef X
      TWS_HAPPENINGS_COUNT
} tws_happening_kind;
const char *tws_happening_name(tws_happening_kind kind);

typedef enum tws_target { TWS_TARGET_ALL, TWS_TARGET_RANK, TWS_TARGET_NODE } tws_target;
typedef enum tws_bit_place { TWS_BIT_BUFFER, TWS_BIT_MESSAGE, TWS_BIT_CHECKPOINT } tws_bit_place;
typedef enum tws_distribution { TWS_DRAWN_NOT, TWS_DRAWN_EXPONENTIAL, TWS_DRAWN_WEIBULL } tws_distribution;

typedef struct tws_happening {
  tws_happening_kind kind;
  tws_target target;
  int first, last;        /* ranks or nodes ("switch": all nodes connected to it); -1: drawn each time */
  double at_s, until_s;   /* until INFINITY: for good */
  tws_distribution drawn; /* instead of at_s */
  double scale_s, shape;  /* exponential: its mean */
  double for_s;           /* how long it lasts each time */
  int64_t times;          /* at most so often */
  double factor, sigma, period_s, down_s, repair_s, part;
  int64_t save;
  tws_bit_place place;
  const char *entry; /* of the state, for a bit in a buffer */
  int64_t element;
  int bit, full;
} tws_happening;

typedef struct tws_expectations {
  const char *status; /* "ok", or the name of a code: "rank", "hang", "io"...; NULL: ok */
  double loss, loss_tolerance;
  double step_min_s, step_max_s; /* median of the virtual steps */
  double goodput_min, goodput_max;
  int64_t restarts, steps, skipped; /* -1: whatever */
  int has_loss;
  const char *const *names;       /* what the error, or the last failure that was gone on from, says; NULL-terminated */
  const char *const *checkpoints; /* all that are there at the end */
  int has_checkpoints, leftovers; /* leftovers: unfinished saves; -1: whatever */
} tws_expectations;

/* Options of a job's run, from the scenario, or from the command line without one. */
typedef struct tws_emulated_run {
  const char *data, *eval_data, *fidelity; /* files of a scenario are relative to its folder */
  int64_t steps, eval_every, eval_steps;
  int64_t save_every; /* 0: it saves not, or only at the end; -1: the optimum for its failures */
  int64_t keep, restarts;
  int synchronous;
  double deadline_s, start_s; /* start_s: time to start ranks anew, in addition to what they read */
} tws_emulated_run;

typedef struct tws_scenario {
  tws_arena *arena;
  tws_job_spec job;
  const char *description;
  tws_emulated_run run;
  uint64_t seed;
  tws_happening *events;
  int event_count;
  tws_expectations expect;
} tws_scenario;

/* `name`: of the file, for messages and for the folder that its files are relative to. TWS_INVALID with the place. */
tws_code tws_scenario_from_json(const tws_json *json, tws_scenario **out, tws_error *err);
tws_code tws_scenario_load(const char *path, tws_scenario **out, tws_error *err);
void tws_scenario_destroy(tws_scenario *scenario); /* NULL is allowed */

#endif
