/* Which elements of a model's parameters a run of state holds, and who writes what of a checkpoint.
 *
 * A piece is a run of elements of one entry of the state (plan/state.h): elements [first, first + count) of the part
 * that `slice` cuts out of a parameter. Ranks say what they hold; replicas hold the same, and it is written once. */
#ifndef TWS_CHECKPOINT_SLICE_H
#define TWS_CHECKPOINT_SLICE_H

#include "plan/plan.h"

typedef struct tws_piece {
  uint32_t entry, param; /* entry: of the state, the first of those that continue one another; param TWS_NONE: of no
                            parameter, and `copy` is then the rank that it is of, or 0 of what all ranks have the same
                            of: running statistics, but for those of a pipeline's stages */
  int32_t copy;          /* which of the parameters that ranks have one of their own of (experts); 0 of most */
  int32_t rank;          /* that holds it */
  tws_param_slice slice; /* as tws_slice_of() makes it; all 0 without a parameter */
  uint64_t first, count;
  uint64_t at;   /* element of the rank's entry, */
  uint32_t held; /* which is this */
} tws_piece;

/* One way to write down a part: vectors are one column, blocks that touch are one. slice NULL: the whole. */
tws_param_slice tws_slice_of(const tws_param *param, const tws_param_slice *slice);
/* Elements that the part has. */
uint64_t tws_slice_count(const tws_param_slice *slice);
/* Where element `whole` of the parameter is in the part, and *run: how many follow it there without a gap. Otherwise
 * UINT64_MAX, and *run: how many more are not in the part, at least. */
uint64_t tws_slice_local(const tws_param_slice *slice, uint64_t whole, uint64_t *run);

/* Lists the slices that a rank holds of all entries of a checkpoint: *pieces is in the arena. TWS_MEMORY. */
tws_code tws_pieces_of(const tws_plan *plan, tws_arena *arena, tws_piece **pieces, uint32_t *count, tws_error *err);
/* Every element of what all ranks hold is given to one that holds it, large pieces to who has least so far, and to
 * ranks that are `far` (by rank; NULL: none is) only what no other holds; sizes: bytes of an element, by entry. Sorts
 * `held`. *chosen is in the arena, by entry, parameter, copy, slice and first element. */
tws_code tws_pieces_share(tws_piece *held, uint32_t count, const uint8_t *sizes, const uint8_t *far, int world,
                          tws_arena *arena, tws_piece **chosen, uint32_t *chosen_count, tws_error *err);

/* "transformer.wte.weight exp_avg rows 0:128 columns 0:64 elements 0:1024": what is whole is not said. */
const char *tws_piece_name(const tws_piece *piece, const char *param, const char *entry, int64_t whole_rows,
                           int64_t whole_columns, char *buffer, size_t size);

#endif
