/* The product of a search's lists as numbers: points take no memory. Internal to autotune/. */
#ifndef TWS_AUTOTUNE_PRODUCT_H
#define TWS_AUTOTUNE_PRODUCT_H

#include "autotune/autotune.h"
#include "autotune/space_axes.h"

enum { TWS_PRODUCT_MICROS = 64 };

/* A list each; those before TWS_CLASS_DIGITS say what layers are like, those from TWS_DIGIT_STAGE on are ZeRO's. */
enum {
  TWS_DIGIT_TENSOR,
  TWS_DIGIT_TOKENS,
  TWS_DIGIT_MICRO,
  TWS_DIGIT_RECOMPUTE,
  TWS_DIGIT_ACCUMULATION,
  TWS_DIGIT_PIPELINE,
  TWS_DIGIT_SCHEDULE,
  TWS_DIGIT_STAGE,
  TWS_DIGIT_OVERLAP,
  TWS_DIGIT_OFFLOAD,
  TWS_DIGIT_BUCKET,
  TWS_DIGIT_ZERO3,
  TWS_DIGITS = TWS_DIGIT_ZERO3 + TWS_ZERO3_LIMIT_COUNT
};
enum { TWS_CLASS_DIGITS = TWS_DIGIT_PIPELINE };

typedef struct tws_product {
  const tws_tune_request *request;
  tws_axes_space axes;
  int64_t micro[TWS_PRODUCT_MICROS];
  int stages[4], recompute[3], ranks;
  int count[TWS_DIGITS];
  int64_t points;
} tws_product;

typedef struct tws_product_point {
  int64_t number;
  int digit[TWS_DIGITS];
} tws_product_point;

/* TWS_UNSUPPORTED and TWS_INVALID for spaces that have no product. The request outlives it. */
tws_code tws_product_fill(const tws_tune_request *request, tws_product *product, tws_error *err);
void tws_product_digits(const tws_product *product, tws_product_point *point); /* from its number */
tws_variant tws_product_variant(const tws_product *product, const tws_product_point *point);

/* EQUAL: another point has the same plan. */
typedef enum tws_standing { TWS_POINT_ILLEGAL, TWS_POINT_EQUAL, TWS_POINT_OWN } tws_standing;
/* Of the division and the batch: what all combinations of ZeRO's knobs share; and of those. */
tws_standing tws_product_division(const tws_product *product, const tws_product_point *point,
                                  const tws_variant *variant);
tws_standing tws_product_knobs(const tws_product *product, const tws_product_point *point, const tws_variant *variant);

#endif
