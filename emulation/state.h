/* Internal declarations that the files of emulation/ share.
 *
 * emulate.c: one attempt: steps and evaluations under the simulator's clock
 * breaks.c: failures within an attempt, and their detection
 * saves.c: checkpoints, on disks of the virtual cluster
 * comm.c: the communication log
 * recover.c: attempts one after another, and the report */
#ifndef TWS_EMULATION_STATE_H
#define TWS_EMULATION_STATE_H

#include "emulation/emulate.h"
#include "emulation/faults.h"
#include "estimators/phase_clock.h"
#include "traces/monitor.h"

typedef struct tws_emulated_save {
  int under_way;
  double begin_s, end_s; /* begin and end of writing the checkpoint, virtual seconds */
} tws_emulated_save;

typedef struct tws_emulator {
  const tws_emulation_request *request;
  tws_emulation *out;
  tws_arena *arena;
  tws_faults faults;
  int share;
  double *down_until; /* [node] virtual time until which the node is unavailable; [place] if the cluster has one node */
  int nodes, slots, by_node;
  double *step_s; /* [step] virtual seconds of the step when it was last computed; 0: not computed */
  double now_s;
  tws_monitor *monitor;
  double began_s;       /* real time at which virtual time was 0, seconds since 1970 */
  double save_waited_s; /* value of out->save_s at the last report */
  int64_t save_every, saves_begun;
  /* members of the current attempt */
  const tws_job *job;
  tws_virtual *ranks;
  const tws_virtual_api *api;
  const tws_plan *const *plans[TWS_PROGRAM_COUNT];
  int count;
  tws_rank_slot *place;               /* [rank] place of the rank in the initial cluster */
  tws_rank_slot *together;            /* scratch memory: as many places as `place` has */
  uint32_t *doing;               /* [rank] index of the operation that the rank began last */
  tws_phase_clock *phases;       /* phases of rank 0's step; NULL: not wanted */
  double *times;                 /* for `phases`: [op_count][2], virtual seconds since the step began */
  tws_comm_recorder **recorders; /* [rank] latencies of its communication; NULL: no log is kept */
  double **times_of_rank;        /* for `recorders`: [rank][op_count][2], virtual seconds since the step began */
  tws_program program;           /* program that is running */
  int64_t first_step; /* steps before the run, those of a checkpoint that it continues from */
  int64_t step;
  double last_s; /* virtual time of the last operation's start or end */
  int64_t saved_step;
  tws_emulated_save save;
  double break_s, flip_s; /* virtual times at which the next death and the next bit flip are due; INFINITY: never */
  tws_occurrence *broken; /* the death that ended the attempt */
  /* how the attempt ended */
  double failed_s; /* virtual time of the failure, not of its detection */
  double known_s;
  int failed_rank; /* rank that failed; -1: none */
} tws_emulator;

/* ---- emulate.c ---- */
tws_code tws_emulator_attempt(tws_emulator *e, const tws_train_options *options, tws_error *err);
void tws_emulator_span(tws_emulator *e, tws_span_kind kind, double from_s, double to_s);
/* Advances the clock to until_s and accounts the time to `kind`; fails if a death occurs before. */
tws_code tws_emulator_wait(tws_emulator *e, double until_s, tws_span_kind kind, tws_error *err);

/* ---- breaks.c ---- */
/* Sets break_s and flip_s, the times of the next death and bit flip; called after the clock or the places changed. */
void tws_emulator_schedule_faults(tws_emulator *e);
/* Processes all deaths up to at_s, of any node: marks their places as unavailable. */
void tws_emulator_process_deaths(tws_emulator *e, double at_s);
/* Advances the clock to at_s, when an operation of `members` ends. Fails if one of its ranks has died before, or if no
 * operation has ended for longer than the deadline. */
tws_code tws_emulator_advance(tws_emulator *e, double at_s, const tws_run_member *members, uint32_t count,
                              tws_error *err);
/* Flips the bits that are due at this time: in data that has just been received, and in the newest checkpoint. */
void tws_emulator_flip_received(tws_emulator *e, double at_s, const tws_run_member *members, uint32_t count);
tws_code tws_emulator_flip_saved(tws_emulator *e, tws_error *err);
/* Records a failure that is not caused by a machine, and is therefore detected at once. */
void tws_emulator_record_failure(tws_emulator *e, int rank);
int tws_emulator_places_alive(const tws_emulator *e, int *nodes);

/* ---- comm.c: the communication log ---- */
/* Opens the log of an attempt, if the configuration or the request enables it. */
tws_code tws_emulator_log_open(tws_emulator *e, tws_error *err);
tws_code tws_emulator_log_step(tws_emulator *e, tws_error *err);
/* Completes the log, in e->out->communication. */
tws_code tws_emulator_log_end(tws_emulator *e, tws_error *err);
void tws_emulator_log_close(tws_emulator *e);

/* ---- saves.c ---- */
int tws_emulator_save_is_due(tws_emulator *e);
tws_code tws_emulator_save(tws_emulator *e, tws_error *err);
tws_code tws_emulator_poll_save(tws_emulator *e, tws_error *err);
void tws_emulator_drop_save(tws_emulator *e);
/* advances the clock by the time that reading a checkpoint takes */
tws_code tws_emulator_load(tws_emulator *e, tws_error *err);

#endif
