/* The virtual cluster: a job computes a real training, but its times are those of the simulator's clock.
 *
 * The simulator decides when each operation of each rank starts and ends; when an operation ends, the host's kernels
 * execute it on the memory of that rank. So losses and memory are those of a real training, times are those of a
 * simulation of the cluster, and two runs are equal bit for bit. All ranks live in this process.
 *
 * A scenario's events slow the cluster down or break it. Failures are then detected as in `train`: by the watchdog's
 * deadline, by missing messages at the launcher, and by checks of losses and checksums. The job restarts from the last
 * checkpoint on the remaining nodes. */
#ifndef TWS_EMULATION_EMULATE_H
#define TWS_EMULATION_EMULATE_H

#include "base/log.h"
#include "emulation/scenario.h"
#include "job/job.h"
#include "real/real.h"
#include "sim/sim.h"
#include "traces/marks.h"

/* Kinds of activities; every interval of virtual time belongs to one of them. */
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
  tws_span_kind kind; /* LOST: part of a step that a failure ended, or of a step that was repeated later */
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
  const char *save, *resume, *tag, *init_from; /* initial state and folders, as in tws_train_options */
  int64_t save_every, keep;                    /* save_every: interval of saves in steps, -1: the optimum for the
                                                * scenario's failures; keep: number of checkpoints kept */
  int synchronous;                             /* 1: training waits until a save is complete */
  int64_t restarts;
  double deadline_s, start_s;
  const tws_scenario *scenario; /* events of the scenario, whose other keys are not read; NULL: no events */
  int64_t order_seed;           /* >= 0: seed that draws which operation runs next among those that may start; -1: the
                                 * simulated times determine the order */
  int ignore_memory;            /* 1: neither the virtual devices' memory nor this machine's is checked */
  tws_sharing sharing;
  tws_watching watching;  /* watching.peak_flops: of the virtual cluster, FLOP/s */
  int logs_communication; /* 1: the communication log is kept, also without comms_logger in the configuration */
  /* called after each step with the record of rank 0 if comms_logger.verbose is set; its last step is the newest */
  void (*on_calls)(void *user, const tws_comm_record *record);
  /* receives the last step of all ranks, or the steps of trace_schedule, counted from the first one of the run; NULL:
   * not wanted */
  tws_timeline *timeline;
  tws_trace_schedule trace_schedule;
  /* Called after each step. The report's seconds are virtual; now_s: virtual seconds since the beginning. */
  void (*on_step)(void *user, const tws_step_report *report, double now_s);
  /* called when the job has failed and continues with `ranks` ranks */
  void (*on_failure)(void *user, double at_s, const tws_error *err, int ranks);
  void *user;
  const tws_log *log;
} tws_emulation_request;

typedef struct tws_emulation {
  int64_t steps, skipped;
  double first_loss, last_loss, last_eval_loss; /* the first and last losses that are finite; NAN: none is */
  double virtual_s;                             /* virtual seconds from the beginning to the end of the run */
  double median_step_s;                         /* median virtual seconds of the steps that were not repeated */
  double wall_s, effects_s;                     /* wall_s: real seconds of the emulation; effects_s: real seconds of it
                                                 * spent in kernels and copies */
  uint64_t events;
  uint64_t predicted_bytes, allocated_bytes; /* bytes of the arenas of all ranks, summed over tiers */
  uint64_t shared_bytes;                     /* maximum, at the end of a step, of the allocated bytes that share storage
                                              * of another rank */
  uint64_t digest;                           /* hash of all bits of the final state */
  int ranks;                                 /* number of ranks at the end */
  /* Virtual seconds. useful_s: steps that were not repeated; save_s: training waited for saves; lost_s: work that was
   * repeated; detect_s: from failures until their detection; restart_s: from detection until training continued. */
  double useful_s, save_s, lost_s, detect_s, restart_s, evaluate_s;
  int64_t restarts, saves;
  int64_t save_every;        /* interval of saves that was used, in steps */
  double one_save_s;         /* mean virtual seconds for which training waited for one save */
  double between_failures_s; /* mean virtual seconds between failures: of the scenario's distributions, or else as
                              * observed; INFINITY: there were none */
  tws_error last_failure;    /* the last failure after which the job was restarted */
  tws_mark *marks;           /* the events that affected the cluster, ordered by time */
  int mark_count;
  double traced_s;             /* virtual time at which the first step in the timeline began */
  tws_comm_log *communication; /* since the last restart; NULL: it was not kept */
  tws_span *spans;             /* ordered by time */
  int span_count, span_capacity;
} tws_emulation;

/* Runs the job on its virtual cluster. Errors: TWS_NO: a rank's arenas exceed the memory of its virtual device, or all
 * arenas together exceed the memory of this machine; TWS_UNSUPPORTED: a job that the host cannot compute; TWS_RANK,
 * TWS_HANG: the training itself failed, at the virtual time that the message gives. Free *out in any case. */
tws_code tws_emulate(const tws_job *job, const tws_emulation_request *request, tws_emulation *out, tws_error *err);
void tws_emulation_free(tws_emulation *emulation);

/* tws_emulation_goodput() returns the useful share of virtual_s. tws_emulation_expected() computes the expected values
 * for the job's save interval, save time and failure rate, and those for the optimal interval
 * (estimators/checkpoint_interval.h); NAN: the job does not save, or has no failures. */
double tws_emulation_goodput(const tws_emulation *emulation);
typedef struct tws_emulation_theory {
  double interval_s, goodput;           /* interval that was used, in virtual seconds, and its expected goodput */
  double young_s, daly_s, daly_goodput; /* optimal intervals by Young and by Daly, and the goodput of Daly's */
} tws_emulation_theory;
tws_emulation_theory tws_emulation_expected(const tws_emulation *emulation);

/* Judges the code of tws_emulate() by the scenario's expectations: an expected failure is a success, an unexpected one
 * is returned as it is, and TWS_NO means that an expectation is not met. `err`: the failure on entry, the verdict on
 * return; not NULL. Codes that do not concern the training, such as TWS_MEMORY, are returned unchanged. */
tws_code tws_expectations_judge(const tws_expectations *expect, const tws_emulation *emulation, tws_code code,
                                const char *folder, tws_error *err);

/* Writes the timeline and the events of the last step as a Chrome trace; times are relative to the step's beginning. */
tws_code tws_emulation_write_trace(const tws_emulation *emulation, const tws_timeline *timeline, const char *path,
                                   tws_error *err);

#endif
