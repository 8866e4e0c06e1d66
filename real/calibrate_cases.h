/* What calibration measures: kernels with shapes, and the operands each of them needs. */
#ifndef TWS_REAL_CALIBRATE_CASES_H
#define TWS_REAL_CALIBRATE_CASES_H

#include "base/status.h"
#include "models/kernel.h"

enum { TWS_CASE_OPERANDS = 8 };

/* One operand of a kernel, as models/kernel.h lists them. */
typedef struct tws_case_operand {
  uint64_t elements;
  tws_dtype dtype;
  int written;   /* W or RW */
  int far;       /* weights, gradients, optimizer states: not touched for a whole micro-batch or step */
  int64_t below; /* > 0: integers in [0, below) such as token ids */
} tws_case_operand;

/* Operands of a compute operation in order; returns how many (0: a collective). threads: of the rank. */
int tws_case_operands(const tws_work *work, tws_backend_kind backend, int threads, tws_case_operand *out);

typedef struct tws_case_list {
  tws_work *items;
  size_t count, capacity;
} tws_case_list;

/* The standard shapes for one storage type (BF16: float32 accumulation and masters), of models that a host or a GPU
 * trains; `quick` keeps a coarse grid. Free items with tws_free. */
tws_code tws_case_standard(tws_dtype dtype, tws_backend_kind backend, int quick, tws_case_list *list, tws_error *err);
/* Add a work unless an equal one is there already. */
tws_code tws_case_add(tws_case_list *list, const tws_work *work, tws_error *err);

#endif
