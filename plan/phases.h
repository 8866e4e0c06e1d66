/* Phases of an optimizer: which program each training step runs, over one state.
 *
 * OneBitAdam (Tang et al. 2021): TRAIN up to update freeze_step, then COMPRESSED: second moments are fixed, each rank
 * updates the momentum with its own gradients, and ranks average the momenta by their signs.
 *
 * ZeroOneAdam (Lu et al. 2022): up to update var_freeze_step + 1 second moments change only at updates that an interval
 * divides (TRAIN); in between the gradients are averaged by their signs (COMPRESSED). The interval begins at 1 and
 * doubles after var_update_scaler such updates. From then on each rank updates its weights with its own gradients
 * (LOCAL), and at updates that a second interval divides the ranks average their changes by signs (MERGE). This
 * interval begins at 1 and doubles after local_step_scaler updates, up to local_step_clipper. Between these two phases,
 * FREEZE sets the compression errors to 0.
 *
 * OneBitLamb (Li et al. 2021): as OneBitAdam, with FREEZE after update freeze_step (plan/onebit_lamb.c).
 *
 * As in DeepSpeed, the first update changes no weights: only the counter of updates increases. Its program is TRAIN,
 * with learning rate 0 (plan/hyper.c). */
#ifndef TWS_PLAN_PHASES_H
#define TWS_PLAN_PHASES_H

#include "plan/plan.h"

/* A training step: its program, and what else depends on the step's number. */
typedef struct tws_step_kind {
  tws_program program; /* TRAIN, COMPRESSED, LOCAL or MERGE */
  int begins_phase;    /* 1: the program FREEZE runs after the step */
  int64_t since;       /* LOCAL, MERGE: number of the first update whose changes are not averaged yet */
} tws_step_kind;

/* Returns the kind of update number `update`, counted from 1. last: 1 if the update is the last one of the training,
 * after which the ranks' weights have to be equal. */
tws_step_kind tws_step_kind_of(const tws_config *config, int64_t update, int last);
/* Returns 1 if the weights of all ranks are equal after an update, so that they can be saved. */
int tws_step_agrees(const tws_config *config, int64_t update);
/* Adds to count[] the number of runs of each program, FREEZE included and EVALUATE excluded, in a training of `steps`
 * steps. */
void tws_run_programs(const tws_config *config, int64_t steps, int64_t count[TWS_PROGRAM_COUNT]);

#endif
