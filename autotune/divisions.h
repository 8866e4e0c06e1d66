/* The first look at a large space: which divisions of ranks and batch may fit, and what their passes take at least.
 *
 * One plan is lowered for a division (tws_bound_passes), and one for each class of states (tws_bound_state). A point
 * needs at least the sum of both, and takes at least the passes. Of divisions that differ in their micro batch alone a
 * larger one needs no less, so those after the first that is too large are not looked at. Internal to autotune/. */
#ifndef TWS_AUTOTUNE_DIVISIONS_H
#define TWS_AUTOTUNE_DIVISIONS_H

#include "autotune/evaluate.h"
#include "autotune/points.h"

/* Bytes by tier, and which category has most of each. */
typedef struct tws_need {
  uint64_t bytes[TWS_TIER_COUNT];
  uint8_t category[TWS_TIER_COUNT];
} tws_need;

typedef enum tws_division_known { TWS_DIVISION_NEW, TWS_DIVISION_BOUNDED } tws_division_known;
typedef struct tws_division_bound {
  int32_t known; /* tws_division_known */
  double step_s; /* of its passes: seconds at least */
  tws_need active;
} tws_division_bound;

typedef struct tws_tally {
  int64_t illegal, equal, too_large, refused, considered;
  tws_tune_rejection reasons[TWS_TUNE_REASONS];
  int reason_count; /* what does not go in is counted under the last */
} tws_tally;
void tws_tally_reason(tws_tally *tally, const char *reason, int64_t count);
void tws_tally_add(tws_tally *to, const tws_tally *from);

/* In memory that processes share; records may be those of an earlier search. */
typedef struct tws_divisions {
  const tws_points *points;
  int64_t count;
  tws_division_bound *records;   /* [count] */
  struct tws_found_list *found;  /* numbers of divisions with points that may fit */
  struct tws_state_table *table; /* needs of states by class */
  size_t found_bytes, table_bytes;
} tws_divisions;

tws_code tws_divisions_open(const tws_points *points, tws_division_bound *records, tws_divisions *out, tws_error *err);
void tws_divisions_close(tws_divisions *divisions);

/* Looks at those of this part, by so many processes, until that time (0: no limit); tallies what cannot be, and does
 * not fit. */
tws_code tws_divisions_look(tws_divisions *divisions, int workers, double until_s, tws_tally *tally, double *cpu_s,
                            tws_error *err);
/* The divisions that were found, in order. */
const int64_t *tws_divisions_found(tws_divisions *divisions, int64_t *count);
/* Whether a point of a division that was found may fit; its variant. What does not is in the tally already. */
tws_code tws_divisions_may_fit(tws_divisions *divisions, int64_t number, tws_variant *variant, int *may_fit,
                               tws_error *err);
/* Points that were judged by what their states and passes need at least and came closest to fitting. */
enum { TWS_CLOSEST = 16 };
int tws_divisions_closest(const tws_divisions *divisions, int64_t *numbers);

#endif
