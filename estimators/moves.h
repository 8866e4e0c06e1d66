/* What ZeRO moves beside the layers, and what it costs: gathers and reductions of a micro-batch, and those that wait
 * for the end of a step. Kept for each size of buckets, which are made anew from one lowering. Internal to
 * estimators/. */
#ifndef TWS_ESTIMATORS_MOVES_H
#define TWS_ESTIMATORS_MOVES_H

#include "estimators/piece_keys.h"
#include "estimators/pieces.h"

/* Which layers a stage has: stages that have equal ones move and update alike. */
typedef struct tws_stage_layers {
  int alike;                  /* how many of those that are */
  int other_count, others[8]; /* where the rest begins and ends, in layers */
} tws_stage_layers;

enum { TWS_LOWERED_MOVES = 8 }; /* that are kept for other buckets: as many kinds of stages as most pipelines have */

typedef struct tws_kept_moves { /* zeros but for costs, arena and memory at first; these outlive it */
  const tws_costs *costs;
  tws_arena *arena;
  tws_sample_memory *memory;
  tws_piece_table gathers, reductions;
  struct tws_lowered_moves *lowered[TWS_LOWERED_MOVES];
  int next;
  int64_t count; /* of what was lowered */
} tws_kept_moves;

/* Stages 2 and 3, of a job without a pipeline: moves_s, moves, move_launches and moves_exact of the tail with that key.
 * Errors: those of the plan. */
tws_code tws_moves_of_micro_batches(tws_kept_moves *kept, const tws_plan_request *request, const tws_piece_key *tail,
                                    tws_tail_pieces *t, tws_error *err);
/* Stage 1, where nothing is offloaded: a tail that lacks it, from the lowering that all sizes of buckets then share,
 * once it is known which layers those were. bounds: of all blocks; NULL: not known. */
tws_code tws_moves_tail(tws_kept_moves *kept, const tws_plan_request *request, const tws_piece_key *tail,
                        const int *bounds, tws_plan_sample *out, tws_error *err);
void tws_moves_are_of(tws_kept_moves *kept, const tws_stage_layers *layers);
/* Stage 1: puts what waits for the end of the step of request->rank into a tail; where all ends are run together
 * (tws_tail_pieces.runs) they have it, and the tail is told of it alone. */
tws_code tws_moves_that_wait(tws_kept_moves *kept, const tws_plan_request *request, const tws_piece_key *tail,
                             const tws_stage_layers *layers, const int *bounds, tws_tail_pieces *t, tws_error *err);
void tws_kept_moves_free(tws_kept_moves *kept);

#endif
