/* The list of kernels and shapes that calibration measures: standard shapes, and those of a model. */
#ifndef TWS_CALIBRATION_CASES_H
#define TWS_CALIBRATION_CASES_H

#include "base/status.h"
#include "models/kernel.h"

typedef struct tws_case_list {
  tws_work *items;
  size_t count, capacity;
} tws_case_list;

/* Lists the standard shapes for one storage type: sizes as in models that a CPU or a GPU trains (BF16: with float32
 * accumulation and master weights). quick: 1 for a coarse grid. The caller frees list->items with tws_free(). */
tws_code tws_case_standard(tws_dtype dtype, tws_backend_kind backend, int quick, tws_case_list *list, tws_error *err);
/* Adds a kernel invocation unless the list already has an equal one. */
tws_code tws_case_add(tws_case_list *list, const tws_work *work, tws_error *err);

/* Orders the list from item `first` on by importance: shapes of different kernels alternate, and kernels that dominate
 * training have more of them, so that each prefix of the list has some shapes of each kernel; 16-bit types precede
 * float32. */
tws_code tws_case_order(tws_case_list *list, size_t first, tws_error *err);

#endif
