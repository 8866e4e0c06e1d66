/* State of a search in a memory-mapped file: bounds of divisions and points, and plans. A killed search that is resumed
 * does not compute them again, and several machines that share a folder can search together. A resumed search repeats
 * the same steps and reads results from this file where it would compute them. Internal to autotune/. */
#ifndef TWS_AUTOTUNE_SEARCH_STATE_H
#define TWS_AUTOTUNE_SEARCH_STATE_H

#include "autotune/divisions.h"

/* numbers of bounds and plans that a file has room for; further ones are not stored, and a resumed search computes them
 * again */
enum { TWS_STATE_BOUNDS = 1 << 17, TWS_STATE_PLANS = 1 << 13 };

typedef struct tws_search_state {
  int file; /* descriptor of the file; -1: none */
  size_t bytes;
  struct tws_state_head *head;
  tws_division_bound *divisions;
  struct tws_state_bound *bounds;
  struct tws_state_plan *plans;
  struct tws_state_index *index[2]; /* index of the bounds and plans that the file had when it was opened */
  size_t index_count[2];
} tws_search_state;

/* Opens the state. path NULL: no file; only the bounds of divisions are stored, in memory that forked processes share.
 * resume 1: the search continues from the file if it exists. Fails with TWS_INVALID if the file belongs to another
 * search or is damaged, and with TWS_IO if it cannot be opened or written. */
tws_code tws_search_state_open(const tws_points *points, const char *path, int resume, tws_search_state *state,
                               tws_error *err);
void tws_search_state_close(tws_search_state *state);

/* Returns 1 and fills *candidate if an earlier search has evaluated the point: by its plan if `planned`, else by a
 * bound. */
int tws_search_state_find(const tws_search_state *state, int64_t number, int planned, tws_tune_candidate *candidate);
void tws_search_state_keep(tws_search_state *state, int64_t number, const tws_tune_candidate *candidate);

/* The record of a process that has searched its part of the space: its best plans, in order, and counts of the other
 * points. */
typedef struct tws_state_end {
  tws_tally tally;
  tws_tune_swept swept;
  int count;
  int64_t best[TWS_STATE_PLANS]; /* numbers of points; the plans of all of them are stored */
} tws_state_end;
void tws_search_state_end(tws_search_state *state, const tws_state_end *end);
/* Opens the state file of a process that searches another part of the space. If that process has finished, *ready
 * becomes 1, *end its final record, and tws_search_state_find() on *state reads its plans; else *ready becomes 0. */
tws_code tws_search_state_open_part(const tws_points *points, const char *path, tws_search_state *state,
                                    tws_state_end *end, int *ready, tws_error *err);

#endif
