/* The virtual cluster: a job trains for real, under the simulator's clock.
 *
 * The simulator decides when each operation of each rank starts and ends; when an operation ends, the host's kernels
 * execute it on the memory of that rank. So losses and bytes are those of a training, times are those of a simulation
 * of the cluster, and two runs are equal to the last bit. All ranks live in this process.
 *
 * A scenario's events slow the cluster down or break it. The job then does what `train` does: the watchdog's deadline,
 * the launcher's silence, the checks of numbers and checksums, and a restart from the last checkpoint with the
 * remaining nodes. */
#ifndef TWS_EMULATION_EMULATE_H
#define TWS_EMULATION_EMULATE_H

#include "base/log.h"
#include "emulation/scenario.h"
#include "job/job.h"
#include "real/real.h"
#include "sim/sim.h"
#include "traces/marks.h"

/* Activities that virtual time is accounted to. */
#define TWS_SPANS(X) \
  X(STEP, "step") X(SAVE, "save") X(EVALUATE, "evaluate") X(LOST, "lost") X(DETECT, "detect") X(RESTART, "restart")
typedef enum tws_span_kind {
#define X(name, text) TWS_SPAN_##name,
  TWS_SPANS(X)
#undef X
      TWS_SPAN_COUNT
} tws_span_kind;
const char *tws_span_name(tws_span_kind kind);

typedef struct tws_span {
  tws_span_kind kind; /* LOST: of a step that a failure ended, or that was done again */
  double from_s, to_s;
  int64_t step;
} tws_span;

/* Selects whether ranks that hold equal bits share storage (real/shared_pages.h). This affects only memory and the time
 * that emulation takes. AUTO: share if separate storage would need more than half of the free memory. */
typedef enum tws_sharing { TWS_SHARE_AUTO, TWS_SHARE_ON, TWS_SHARE_OFF } tws_sharing;
tws_code tws_sharing_parse(const char *name, tws_sharing *sharing, tws_error *err); /* "auto" (NULL), "on", "off" */

typedef struct tws_emulation_request {
  const tws_real_api *real;
  const tws_sim_api *sim;
  tws_fidelity fidelity;
  const tws_job_spec *spec; /* the specification that the job was loaded from: needed to continue with fewer ranks */
  const char *data, *eval_data;
  int64_t steps, eval_every, eval_steps;
  const char *save, *resume, *tag, *init_from; /* as in tws_train_options */
  int64_t save_every, keep;                    /* save_every -1: the optimum for the scenario's failures */
  int synchronous;                             /* training waits for saves */
  int64_t restarts;
  double deadline_s, start_s;
  const tws_scenario *scenario; /* its events alone; NULL: nothing happens */
  int64_t order_seed;           /* >= 0: which of the operations that may start is next is drawn; -1: the clock says */
  int ignore_memory;            /* of the virtual devices, and of this machine */
  tws_sharing sharing;
  tws_watching watching;  /* peak_flops: of the virtual cluster */
  tws_timeline *timeline; /* of the last step of all ranks; NULL: none */
  /* Its seconds are virtual; now_s: since the beginning. */
  void (*on_step)(void *user, const tws_step_report *report, double now_s);
  void (*on_failure)(void *user, double at_s, const tws_error *err, int ranks); /* that it goes on with */
  void *user;
  const tws_log *log;
} tws_emulation_request;

typedef struct tws_emulation {
  int64_t steps, skipped;
  double first_loss, last_loss, last_eval_loss; /* finite ones; NAN: none */
  double virtual_s;                             /* from the beginning to the end */
  double median_step_s;                         /* virtual, of the steps that stayed */
  double wall_s, effects_s;                     /* what it took here, and of that kernels and copies */
  uint64_t events;
  uint64_t predicted_bytes, allocated_bytes; /* arenas of all ranks, all tiers */
  uint64_t shared_bytes;                     /* of these, at a step's end, that were another rank's storage: the most */
  uint64_t digest;                           /* of the state's every bit */
  int ranks;                                 /* at the end */
  /* virtual seconds: of steps that were kept; for which training waited for saves; of work that was repeated; from
   * failures until they were detected; until work continued */
  double useful_s, save_s, lost_s, detect_s, restart_s, evaluate_s;
  int64_t restarts, saves;
  int64_t save_every;        /* as it was run */
  double one_save_s;         /* that training waits for one, on average */
  double between_failures_s; /* as drawn, or as seen; INFINITY: there were none */
  tws_error last_failure;    /* that it went on from */
  tws_mark *marks;           /* what happened to the cluster, in order of time */
  int mark_count;
  double traced_s; /* when the step of the timeline began */
  tws_span *spans; /* in order of time */
  int span_count, span_capacity;
} tws_emulation;

/* TWS_NO: a rank's arenas do not fit its virtual device, or all of them this machine; TWS_UNSUPPORTED: a job that the
 * host cannot compute; TWS_RANK, TWS_HANG: the training itself failed, at the virtual time that the message gives. Free
 * *out in any case. */
tws_code tws_emulate(const tws_job *job, const tws_emulation_request *request, tws_emulation *out, tws_error *err);
void tws_emulation_free(tws_emulation *emulation);

/* Useful seconds of all; and what the formula says of the job's interval, saves and failures, or of the best interval
 * for them (estimators/checkpoint_interval.h). NAN: it does not save, or nothing fails. */
double tws_emulation_goodput(const tws_emulation *emulation);
typedef struct tws_emulation_theory {
  double interval_s, goodput;           /* as it was run */
  double young_s, daly_s, daly_goodput; /* as it could have been */
} tws_emulation_theory;
tws_emulation_theory tws_emulation_expected(const tws_emulation *emulation);

/* Judges the code of tws_emulate() by the scenario's expectations: an expected failure is a success, an unexpected one
 * is returned as it is, and TWS_NO means that an expectation is not met. `err`: the failure on entry, the verdict on
 * return; not NULL. Codes that do not concern the training, such as TWS_MEMORY, are returned unchanged. */
tws_code tws_expectations_judge(const tws_expectations *expect, const tws_emulation *emulation, tws_code code,
                                const char *folder, tws_error *err);

/* The timeline of the last step with what happened in it, as a Chrome trace; times are from the step's beginning. */
tws_code tws_emulation_write_trace(const tws_emulation *emulation, const tws_timeline *timeline, const char *path,
                                   tws_error *err);

#endif
