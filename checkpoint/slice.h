/* Determines which elements of a model's parameters a rank's state contains, and which rank writes which elements into
 * a checkpoint.
 *
 * A piece is a contiguous range of elements of one entry of the state (plan/state.h): elements [first, first + count)
 * of the slice `slice` of a parameter. Each rank lists the pieces that it holds. Data-parallel replicas hold equal
 * pieces, and only one rank writes each piece. */
#ifndef TWS_CHECKPOINT_SLICE_H
#define TWS_CHECKPOINT_SLICE_H

#include "plan/plan.h"

typedef struct tws_piece {
  /* entry: index of the state's entry that the piece is saved under; if that entry continues an earlier entry, the
   * index of the first. param: index of the parameter; TWS_NONE: the piece belongs to no parameter, and `copy` is then
   * the rank that holds it, or 0 if all ranks hold equal values (running statistics, except those of pipeline
   * stages) */
  uint32_t entry, param;
  int32_t copy;          /* index of the copy, if ranks have different copies of the parameter (experts); else 0 */
  int32_t rank;          /* the rank that holds the piece */
  tws_param_slice slice; /* in the form of tws_slice_of(); all 0 without a parameter */
  uint64_t first, count;
  uint64_t at;   /* offset of the piece in the rank's entry, elements */
  uint32_t held; /* index of the entry of the rank's state that contains it */
} tws_piece;

/* Returns the canonical form of a slice, so that slices of the same elements compare equal: vectors are treated as one
 * column, and adjacent blocks are joined. slice NULL: the whole parameter. */
tws_param_slice tws_slice_of(const tws_param *param, const tws_param_slice *slice);
/* Returns the number of elements in the slice. */
uint64_t tws_slice_count(const tws_param_slice *slice);
/* Returns the index within the slice of element `whole` of the parameter, and sets *run to the number of elements from
 * there on that are consecutive in the slice. If the slice lacks the element, returns UINT64_MAX, and sets *run so that
 * at least *run elements from there on are not in the slice. */
uint64_t tws_slice_local(const tws_param_slice *slice, uint64_t whole, uint64_t *run);

/* Lists the parts of the checkpointed state that the plan's rank holds, as pieces; *pieces is in the arena. Fails with
 * TWS_MEMORY. */
tws_code tws_pieces_of(const tws_plan *plan, tws_arena *arena, tws_piece **pieces, uint32_t *count, tws_error *err);
/* Assigns every element of all ranks' pieces to one rank that holds it: large pieces are assigned first, each to the
 * rank with the fewest bytes so far. far[rank] 1: the rank is assigned only elements that no other rank holds; far
 * NULL: no rank has that restriction. sizes[entry]: bytes of an element. Sorts `held`. *chosen is in the arena, sorted
 * by entry, parameter, copy, slice and first element. */
tws_code tws_pieces_share(tws_piece *held, uint32_t count, const uint8_t *sizes, const uint8_t *far, int world,
                          tws_arena *arena, tws_piece **chosen, uint32_t *chosen_count, tws_error *err);

/* Writes the name of a piece's tensor, such as "transformer.wte.weight exp_avg rows 0:128 columns 0:64 elements
 * 0:1024". Ranges that are the whole dimension are left out. */
const char *tws_piece_name(const tws_piece *piece, const char *param, const char *entry, int64_t whole_rows,
                           int64_t whole_columns, char *buffer, size_t size);

#endif
