/* Where an exhaustive search stands, in memory that its processes share: what each worker has done and found, class by
 * class, and what planning said. With a path that memory is a file, so that a search that is killed goes on from the
 * last whole class and plans nothing twice, and so that several machines that share a folder search together.
 * Internal to autotune/. */
#ifndef TWS_AUTOTUNE_SEARCH_STATE_H
#define TWS_AUTOTUNE_SEARCH_STATE_H

#include <stdatomic.h>

#include "autotune/finalists.h"

enum { TWS_KEPT_BOUNDS = 1 << 15, TWS_SEARCH_PLANS = 4096 };

typedef struct tws_search_state_tally {
  tws_tune_swept swept;
  int64_t classes; /* that are done, of the worker's own */
  int32_t exact, bounds;
  int64_t dropped; /* bounds that there was no room for, and the best of them */
  double best_dropped;
} tws_search_state_tally;

typedef struct tws_search_state_worker {
  atomic_int current; /* which copy is whole */
  int32_t ended;
  volatile int64_t considered; /* for those who watch */
  tws_search_state_tally copy[2];
} tws_search_state_worker;

typedef struct tws_search_state_plan { /* what planning said of a finalist */
  int64_t number;
  double step_s, needed_bytes, available_bytes;
  int32_t verdict;
  char reason[160];
} tws_search_state_plan;

typedef struct tws_search_state {
  int workers, exact_most, file; /* -1: none */
  size_t bytes;
  struct tws_search_state_head *head;
  tws_search_state_worker *worker;
  tws_finalist *finalists; /* [worker][copy]: exact ones, then bounds */
  tws_search_state_plan *plans;
} tws_search_state;

/* What a state is of, so that none is gone on with that is of another search. */
uint64_t tws_search_state_fingerprint(const tws_product *product, int workers, int exact_most);
/* path NULL: of no file. `resume`: goes on from the file if it is there. TWS_INVALID: it is of another search, or
 * damaged; TWS_IO. */
tws_code tws_search_state_open(tws_search_state *sweep, const char *path, int resume, const tws_product *product,
                               int workers, int exact_most, tws_error *err);
/* Another part's, to be read once all its workers have ended; *ready 0: not yet. */
tws_code tws_search_state_open_part(tws_search_state *sweep, const char *path, const tws_product *product, int workers,
                                    int exact_most, int *ready, tws_error *err);
void tws_search_state_close(tws_search_state *sweep);

/* Of the whole copy. */
const tws_search_state_tally *tws_search_state_tally_of(const tws_search_state *sweep, int worker);
const tws_finalist *tws_search_state_finalists_of(const tws_search_state *sweep, int worker);
/* A worker's tally and heaps become the whole copy, whenever the process ends. */
void tws_search_state_commit(tws_search_state *sweep, int worker, const tws_search_state_tally *tally,
                             const tws_best *exact, const tws_best *bounds);
/* NULL: not planned yet. */
const tws_search_state_plan *tws_search_state_plan_of(const tws_search_state *sweep, int64_t number);
void tws_search_state_keep_plan(tws_search_state *sweep, int64_t number, const tws_tune_candidate *candidate);

#endif
