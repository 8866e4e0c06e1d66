/* The points of a search space as numbers: the product of its lists, so that points take no memory.
 *
 * The digits of a number say which item of each list a point has. Those before TWS_DIGIT_STAGE are its division: how
 * ranks are divided among axes, the batch, recomputation; what layers compute depends on these alone. Those from there
 * on are knobs of ZeRO. Divisions that differ in the micro batch alone are neighbours, the smallest first. Where
 * DeepSpeed's own search is followed, its experiments are listed instead, each a division of its own.
 * Internal to autotune/. */
#ifndef TWS_AUTOTUNE_POINTS_H
#define TWS_AUTOTUNE_POINTS_H

#include "autotune/autotune.h"
#include "autotune/space_axes.h"
#include "job/features.h"

enum { TWS_POINTS_MICROS = 2048, TWS_POINTS_THREADS = 64 };

enum {
  TWS_DIGIT_RANKS,
  TWS_DIGIT_THREADS,
  TWS_DIGIT_TENSOR,
  TWS_DIGIT_TOKENS,
  TWS_DIGIT_SEQUENCE,
  TWS_DIGIT_EXPERT,
  TWS_DIGIT_CAPACITY,
  TWS_DIGIT_EXCHANGE,
  TWS_DIGIT_PIPELINE = TWS_DIGIT_EXCHANGE + TWS_EXCHANGE_COUNT,
  TWS_DIGIT_SCHEDULE,
  TWS_DIGIT_RECOMPUTE,
  TWS_DIGIT_ACCUMULATION,
  TWS_DIGIT_MICRO,
  TWS_DIGIT_STAGE,
  TWS_DIGIT_OVERLAP,
  TWS_DIGIT_OFFLOAD,
  TWS_DIGIT_BUCKET,
  TWS_DIGIT_ZERO3,
  TWS_DIGITS = TWS_DIGIT_ZERO3 + TWS_ZERO3_LIMIT_COUNT
};

/* The batch that the elasticity section chooses for a number of ranks and replicas. */
typedef struct tws_elastic_point {
  int ranks, replicas;
  int64_t micro, accumulation;
} tws_elastic_point;

typedef struct tws_points {
  const tws_tune_request *request;
  tws_axes_space axes;
  int64_t micro[TWS_POINTS_MICROS];
  int stages[4], recompute[3];
  int ranks[TWS_TUNE_LIST], threads[TWS_POINTS_THREADS];
  int count[TWS_DIGITS];
  tws_elastic_point *elastic; /* in place of all other batches; NULL: the configuration is not elastic */
  int elastic_count;
  tws_variant *listed;   /* DeepSpeed's experiments; NULL: the product */
  tws_features features; /* that the job's runtime has: points that use another are illegal */
  int64_t points;        /* of the product, or listed */
  int64_t knobs;         /* of a division */
} tws_points;

/* TWS_INVALID: the space is empty, or larger than numbers go. The request outlives it. */
tws_code tws_points_fill(const tws_tune_request *request, tws_points *points, tws_error *err);
void tws_points_free(tws_points *points);
/* TWS_INVALID with the reason why no point of the space is a configuration. */
tws_code tws_points_explain_none(const tws_points *points, tws_error *err);

/* Returns the features that values of the lists use and the job's runtime cannot run: their points are left out. */
tws_features tws_points_lack(const tws_points *points);

tws_variant tws_points_variant(const tws_points *points, int64_t number);
/* Sequences of a step of the whole job. */
static inline double tws_variant_samples(const tws_variant *v) {
  return (double)(v->micro * v->accumulation * tws_variant_replicas(v));
}

/* ILLEGAL: no such division, batch or combination, or one that is not worth trying where none was named; EQUAL: another
 * point has the same plan. */
typedef enum tws_standing { TWS_POINT_ILLEGAL, TWS_POINT_EQUAL, TWS_POINT_OWN } tws_standing;
/* Of a family, divisions that differ in their micro batch alone: what they share. */
tws_standing tws_points_family(const tws_points *points, int64_t family, tws_variant *variant);
/* Of a division: what all combinations of its knobs share. */
tws_standing tws_points_division(const tws_points *points, int64_t division, tws_variant *variant);
/* Of a point of a division that stands for itself. */
tws_standing tws_points_knobs(const tws_points *points, int64_t number, tws_variant *variant);

/* Calls `visit` with every point that stands for itself, in order, until it returns 0. */
void tws_points_each(const tws_points *points, int (*visit)(void *user, int64_t number, const tws_variant *variant),
                     void *user);
/* How many there are, counted to `most` at most. */
int64_t tws_points_own(const tws_points *points, int64_t most);
/* Two points with equal numbers here have equal states: what parameters, gradients and optimizer take on the first
 * stage depends on nothing else. */
uint64_t tws_points_state_class(const tws_variant *variant);

#endif
