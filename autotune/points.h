/* Represents the points of a search space by numbers. The space is the product of its lists, and a point is a
 * mixed-radix number whose digits select one item of each list, so that points need not be stored.
 *
 * The digits before TWS_DIGIT_STAGE are the point's division: parallel axes, batch and recomputation; the computation
 * of layers depends on these alone. The digits from TWS_DIGIT_STAGE on are ZeRO knobs. Divisions that differ only in
 * the micro batch have consecutive numbers, the smallest micro batch first. If DeepSpeed's own search is followed, the
 * points are the list of its experiments, each a division of its own. Internal to autotune/. */
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
  /* batches of the elasticity section, which replace all other batches; NULL: the configuration is not elastic */
  tws_elastic_point *elastic;
  int elastic_count;
  tws_variant *listed;   /* the list of DeepSpeed's experiments; NULL: the points are the product of the lists */
  tws_features features; /* features that the job's runtime has: points that use another are illegal */
  int has_experts;       /* 1: the job's network has experts */
  int64_t points;        /* number of points of the product, or of the list */
  int64_t knobs;         /* number of combinations of ZeRO knobs per division */
} tws_points;

/* Fills the lists. Fails with TWS_INVALID if the space is empty, or has more points than TWS_TUNE_MAX_POINTS. The
 * request must outlive `points`. */
tws_code tws_points_fill(const tws_tune_request *request, tws_points *points, tws_error *err);
void tws_points_free(tws_points *points);
/* Fails with TWS_INVALID and the reason why no point of the space is a legal configuration. */
tws_code tws_points_explain_none(const tws_points *points, tws_error *err);

tws_variant tws_points_variant(const tws_points *points, int64_t number);
/* Returns the sequences per step of the whole job. */
static inline double tws_variant_samples(const tws_variant *v) {
  return (double)(v->micro * v->accumulation * tws_variant_replicas(v));
}

/* The kind of a point of the search space. ILLEGAL: its division, batch or combination of settings is not legal, or the
 * defaults exclude it. EQUAL: it is legal, but another point has the same plan. DISTINCT: it is legal, and no earlier
 * point has the same plan. */
typedef enum tws_point_kind { TWS_POINT_ILLEGAL, TWS_POINT_EQUAL, TWS_POINT_DISTINCT } tws_point_kind;
/* Returns the kind of a family: the divisions that differ only in their micro batch. ILLEGAL, EQUAL: no member can be
 * DISTINCT, by the properties that all members share. Writes the first member to *variant. */
tws_point_kind tws_points_family(const tws_points *points, int64_t family, tws_variant *variant);
/* Returns the kind of a division, by the properties that all its points share, whatever their ZeRO settings are. */
tws_point_kind tws_points_division(const tws_points *points, int64_t division, tws_variant *variant);
/* Returns the kind of a point, whose division must be DISTINCT, by its ZeRO settings. */
tws_point_kind tws_points_knobs(const tws_points *points, int64_t number, tws_variant *variant);

/* Calls `visit` with every DISTINCT point of the space in order, until `visit` returns 0. */
void tws_points_each(const tws_points *points, int (*visit)(void *user, int64_t number, const tws_variant *variant),
                     void *user);
/* Returns the number of DISTINCT points of the space. It stops counting at `most`, and then returns `most`. */
int64_t tws_points_count_distinct(const tws_points *points, int64_t most);
/* Returns a hash of the settings that determine the model states: points with equal values have parameters, gradients
 * and optimizer states of equal size on the first stage. */
uint64_t tws_points_state_class(const tws_variant *variant);

#endif
