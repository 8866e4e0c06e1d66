/* What a search has found out, in a file beside its results, so that a search that was killed does not look at the same
 * divisions, bounds and plans again, and several machines that share a folder search together. A later search replays:
 * it goes the same way and takes what it finds here for what it would compute. Internal to autotune/. */
#ifndef TWS_AUTOTUNE_SEARCH_STATE_H
#define TWS_AUTOTUNE_SEARCH_STATE_H

#include "autotune/divisions.h"

enum { TWS_STATE_BOUNDS = 1 << 17, TWS_STATE_PLANS = 1 << 13 }; /* what there is no room for is computed again */

typedef struct tws_search_state {
  int file; /* -1: none */
  size_t bytes;
  struct tws_state_head *head;
  tws_division_bound *divisions;
  struct tws_state_bound *bounds;
  struct tws_state_plan *plans;
  struct tws_state_index *index[2]; /* of bounds and plans that were there when it was opened */
  size_t index_count[2];
} tws_search_state;

/* path NULL: divisions alone, in memory that forked processes share. `resume`: goes on from the file if it is there.
 * TWS_INVALID: it is of another search, or damaged; TWS_IO. */
tws_code tws_search_state_open(const tws_points *points, const char *path, int resume, tws_search_state *state,
                               tws_error *err);
void tws_search_state_close(tws_search_state *state);

/* 1: what an earlier search found out of the point; a plan where `planned`, else a bound. */
int tws_search_state_find(const tws_search_state *state, int64_t number, int planned, tws_tune_candidate *candidate);
void tws_search_state_keep(tws_search_state *state, int64_t number, const tws_tune_candidate *candidate);

/* This part has ended: its best plans, in this order, and what became of the rest. */
typedef struct tws_state_end {
  tws_tally tally;
  tws_tune_swept swept;
  int count;
  int64_t best[TWS_STATE_PLANS]; /* numbers of points, all of which are kept */
} tws_state_end;
void tws_search_state_end(tws_search_state *state, const tws_state_end *end);
/* Another part's, once it has ended; *ready 0: not yet. Its plans are found in *state. */
tws_code tws_search_state_open_part(const tws_points *points, const char *path, tws_search_state *state,
                                    tws_state_end *end, int *ready, tws_error *err);

#endif
