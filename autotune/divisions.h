/* The first filter of a large search space. A division is a choice of parallel axes and batch. For each division the
 * filter decides whether it can fit, and computes a lower bound of the time of its forward and backward passes.
 *
 * One plan is lowered for each division (tws_bound_passes), and one for each class of model states (tws_bound_state).
 * The sum of both is a lower bound of a point's memory, and the plan of the passes alone gives a lower bound of its
 * time. Memory does not decrease with the micro batch: once a division is too large, divisions that differ from it only
 * by a larger micro batch are not examined. Internal to autotune/. */
#ifndef TWS_AUTOTUNE_DIVISIONS_H
#define TWS_AUTOTUNE_DIVISIONS_H

#include "autotune/evaluate.h"
#include "autotune/points.h"

/* Needed bytes by memory tier, and the category with the most bytes in each tier. */
typedef struct tws_needed_memory {
  uint64_t bytes[TWS_TIER_COUNT];
  uint8_t category[TWS_TIER_COUNT];
} tws_needed_memory;

typedef enum tws_division_known { TWS_DIVISION_NEW, TWS_DIVISION_BOUNDED } tws_division_known;
typedef struct tws_division_bound {
  int32_t known; /* tws_division_known */
  double step_s; /* lower bound of the seconds of forward and backward passes */
  tws_needed_memory active;
} tws_division_bound;

typedef struct tws_tally {
  int64_t illegal, equal, too_large, refused, considered;
  tws_tune_rejection reasons[TWS_TUNE_REASONS];
  int reason_count; /* further reasons are counted under the last one */
} tws_tally;
void tws_tally_reason(tws_tally *tally, const char *reason, int64_t count);
void tws_tally_add(tws_tally *to, const tws_tally *from);

/* Shared memory of the workers; records may come from an earlier search. */
typedef struct tws_divisions {
  const tws_points *points;
  int64_t count;
  tws_division_bound *records;   /* [count] */
  struct tws_found_list *found;  /* numbers of the divisions that have points that may fit */
  struct tws_state_table *table; /* bytes of the model states, by tws_points_state_class() */
  size_t found_bytes, table_bytes;
} tws_divisions;

tws_code tws_divisions_open(const tws_points *points, tws_division_bound *records, tws_divisions *out, tws_error *err);
void tws_divisions_close(tws_divisions *divisions);

/* Examines the divisions of ranks in this process's part of the search with `workers` processes until the time
 * `until_s` (0: no limit), and counts points that are illegal or do not fit in `tally`. */
tws_code tws_divisions_look(tws_divisions *divisions, int workers, double until_s, tws_tally *tally, double *cpu_s,
                            tws_error *err);
/* Returns the indices, ascending, of the divisions in which some point may fit, and writes their number to *count. */
const int64_t *tws_divisions_found(tws_divisions *divisions, int64_t *count);
/* Writes the variant of point number `number`, which belongs to one of these divisions, and sets *may_fit to 1 if it
 * may fit. Points that do not fit have been counted in the tally before. */
tws_code tws_divisions_may_fit(tws_divisions *divisions, int64_t number, tws_variant *variant, int *may_fit,
                               tws_error *err);
/* Lists the numbers of the points that were rejected by the lower bound of their states and passes, closest to fitting
 * first. Returns how many there are, at most TWS_CLOSEST. */
enum { TWS_CLOSEST = 16 };
int tws_divisions_closest(const tws_divisions *divisions, int64_t *numbers);

#endif
