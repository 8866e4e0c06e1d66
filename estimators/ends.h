/* The ends of steps: reductions that wait for it, norm, update, gathering, lowered once for each kind of stage. Stages
 * with equal layers end alike, whatever the schedule. Internal to estimators/. */
#ifndef TWS_ESTIMATORS_ENDS_H
#define TWS_ESTIMATORS_ENDS_H

#include "estimators/composer.h"
#include "estimators/end_run.h"
#include "estimators/moves.h"
#include "estimators/rank_kinds.h"
#include "estimators/rhythm.h"

typedef struct tws_step_ends {
  tws_code code; /* refused: why */
  tws_error refusal;
  tws_tail_pieces *stage;
  int stages;
  int most_met; /* of a stage: how many times it meets others, and 1 */
  int runs;     /* streams run beside, and ranks differ or reduce beside passes: all of them have to be run together */
  tws_end_run *run; /* that; NULL: it has not been asked for (tws_ends_run()). It is gone with the ends */
} tws_step_ends;

typedef struct tws_ends { /* zeros but for costs, arena and memory at first (also of moves); these outlive it */
  const tws_costs *costs;
  tws_arena *arena;
  tws_sample_memory *memory;
  tws_kept_moves moves;
  tws_piece_table steps, stages, partitions;
  tws_end_run *runs; /* all of them */
  size_t run_bytes;  /* which they have */
  int64_t lowered;
} tws_ends;
/* Errors: those of the plan. */
tws_code tws_ends_find(tws_ends *ends, const tws_plan_request *request, const tws_rank_kind *of,
                       const tws_step_ends **out, tws_error *err);
/* Makes the run of ends that have been found and have none, with what is beside their passes then. */
tws_code tws_ends_run(tws_ends *ends, const tws_plan_request *request, const tws_rank_kind *of, tws_error *err);
void tws_ends_free(tws_ends *ends);

/* All stages at once, from when their streams are done (end_s: those that compute, and send messages). */
typedef struct tws_tails_run {
  tws_rhythm_stage *stages; /* their clocks are set */
  const double *stretch, *end_s[2];
  int *at, *met;                 /* per stage, to work with */
  double *met_s;                 /* [stages][most_met], likewise: when meetings ended; of the first, when it began */
  tws_composed_account *account; /* per stage, added to; NULL: nobody asks */
} tws_tails_run;
/* When the last is done; -1: they wait for each other. */
double tws_tails_go(const tws_step_ends *ends, const tws_tails_run *run);
void tws_expose(tws_composed_account *account, double times, const double *axis_s);

#endif
