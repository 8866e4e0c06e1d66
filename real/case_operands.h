/* Lists the operands of a kernel that is to be measured. */
#ifndef TWS_REAL_CASE_OPERANDS_H
#define TWS_REAL_CASE_OPERANDS_H

#include "models/kernel.h"

enum { TWS_CASE_OPERANDS = 16 };

/* One operand of a kernel, as models/kernel.h lists them. */
typedef struct tws_case_operand {
  uint64_t elements;
  tws_dtype dtype;
  int written;   /* 1: the kernel writes the operand (W or RW) */
  int far;       /* 1: the operand is not in caches, as weights, gradients and optimizer states, which are not accessed
                  * for a whole micro-batch or step */
  int64_t below; /* > 0: elements are integers in [0, below), such as token ids */
  int greatest; /* 1: every element is `below` - 1, so that all slots of experts and all texts are counted as full */
} tws_case_operand;

/* Lists the operands of a compute operation in order, and returns their number (0 for a collective). threads: number of
 * threads of the rank. */
int tws_case_operands(const tws_work *work, tws_backend_kind backend, int threads, tws_case_operand *out);

#endif
