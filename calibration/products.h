/* Attributes the matrix products in a trace to modules of a plan, by the sizes of the products. */
#ifndef TWS_CALIBRATION_PRODUCTS_H
#define TWS_CALIBRATION_PRODUCTS_H

#include "job/job.h"
#include "traces/recording.h"

enum { TWS_PRODUCT_ROWS = 32 };
/* All matrix products with the same three sizes in any order. A linear layer has three such products: in the forward
 * pass, and for the gradients of the input and of the weight. */
typedef struct tws_product_row {
  int64_t size[3]; /* the three sizes in ascending order */
  /* modules of the plan that have this product, such as "h.0.attn.c_attn"; "": the plan has no such product */
  char modules[96];
  double measured_s, predicted_s; /* seconds of one step */
} tws_product_row;

/* Fills rows with the sizes of matrix products in the recording, the longest in time first, and sets *count to their
 * number. The sizes are read from the names of operators ("aten::mm 1024x256x768"); *count is 0 if no name contains
 * sizes. */
tws_code tws_products_by_size(const tws_recording *recording, double steps, const tws_job *job, tws_product_row *rows,
                              int *count, tws_error *err);

#endif
