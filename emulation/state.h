/* Internal declarations that the files of emulation/ share.
 *
 * emulate.c: one attempt: steps and evaluations under the simulator's clock
 * breaks.c: failures within an attempt, and their detection
 * saves.c: checkpoints, on disks of the virtual cluster
 * recover.c: attempts one after another, and the report */
#ifndef TWS_EMULATION_STATE_H
#define TWS_EMULATION_STATE_H

#include "emulation/emulate.h"
#include "emulation/faults.h"
#include "estimators/phase_clock.h"
#include "traces/monitor.h"

typedef struct tws_emulated_save {
  int under_way;
  double begin_s, end_s; /* of writing */
} tws_emulated_save;

typedef struct tws_emulator {
  const tws_emulation_request *request;
  tws_emulation *out;
  tws_arena *arena;
  tws_faults faults;
  int share;
  double *down_until; /* by node, or by place where the cluster has one node */
  int nodes, slots, by_node;
  double *step_s; /* virtual, of each step as it was done last; 0: not done */
  double now_s;
  tws_monitor *monitor;
  double began_s;       /* seconds since 1970, when virtual time was 0 */
  double save_waited_s; /* out->save_s at the last report */
  int64_t save_every, saves_begun;
  /* the attempt */
  const tws_job *job;
  tws_virtual *ranks;
  const tws_virtual_api *api;
  const tws_plan *const *plans[TWS_PROGRAM_COUNT];
  int count;
  tws_seat *place;         /* of each rank */
  tws_seat *together;      /* room for as many */
  uint32_t *doing;         /* the operation that each rank began last */
  tws_phase_clock *phases; /* of rank 0's step; NULL: they are not asked for */
  double *times;           /* likewise: [op_count][2], virtual, since the step began */
  tws_program program;     /* that runs */
  int64_t step;
  double last_s; /* when something happened last */
  int64_t saved_step;
  tws_emulated_save save;
  double break_s, flip_s; /* when the next death, and the next bit, are due; INFINITY: never */
  tws_occurrence *broken; /* the death */
  /* how it ended */
  double failed_s; /* when it failed, not when that was known */
  double known_s;
  int failed_rank; /* -1: none */
} tws_emulator;

/* ---- emulate.c ---- */
tws_code tws_emulator_attempt(tws_emulator *e, const tws_train_options *options, tws_error *err);
void tws_emulator_span(tws_emulator *e, tws_span_kind kind, double from_s, double to_s);
/* Until a date nothing else happens; fails where a death comes before. */
tws_code tws_emulator_wait(tws_emulator *e, double until_s, tws_span_kind kind, tws_error *err);

/* ---- breaks.c ---- */
/* When the next of them are due: after a change of either. */
void tws_emulator_look_ahead(tws_emulator *e);
/* Deaths up to this date, of whoever it is: their places are gone. */
void tws_emulator_bury(tws_emulator *e, double at_s);
/* Something ends at this date: unless a rank has died before, or nothing has happened for too long. */
tws_code tws_emulator_reach(tws_emulator *e, double at_s, const tws_run_member *members, uint32_t count,
                            tws_error *err);
/* Flip the bits that are due by this time: of data that was received just now, and of the newest checkpoint. */
void tws_emulator_flip_received(tws_emulator *e, double at_s, const tws_run_member *members, uint32_t count);
tws_code tws_emulator_flip_saved(tws_emulator *e, tws_error *err);
/* A failure that is none of a machine: known at once. */
void tws_emulator_note(tws_emulator *e, int rank);
int tws_emulator_places_left(const tws_emulator *e, int *nodes);

/* ---- saves.c ---- */
int tws_emulator_save_is_due(tws_emulator *e);
tws_code tws_emulator_save(tws_emulator *e, tws_error *err);
tws_code tws_emulator_poll_save(tws_emulator *e, tws_error *err);
void tws_emulator_drop_save(tws_emulator *e);
tws_code tws_emulator_load(tws_emulator *e, tws_error *err); /* the time that reading a checkpoint takes */

#endif
