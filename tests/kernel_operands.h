/* Operands of every kernel, from the table of operators: sizes, types, access and what to put into them. Shared by the
 * kernel tests and benchmarks. */
#ifndef TWS_TESTS_KERNEL_OPERANDS_H
#define TWS_TESTS_KERNEL_OPERANDS_H

#include "base/dtype.h"
#include "models/operator.h"

#ifndef KERNEL_BACKEND /* an expression: the backend whose workspaces are meant */
#define KERNEL_BACKEND TWS_BACKEND_HOST
#endif

enum { KERNEL_MAX_OPERANDS = TWS_OPERATOR_OPERANDS };

typedef struct operand_info {
  int64_t count;
  tws_dtype dtype;
  tws_operand_access access;
  tws_operand_content content;
  double first, below; /* of ids */
  const char *name, *in_place;
} operand_info;

static inline int kernel_operands(const tws_work *w, const tws_arguments *a, int threads, operand_info *info) {
  tws_kernel_operand operands[TWS_OPERATOR_OPERANDS];
  const int count = tws_work_operands(w, a, operands);
  for (int i = 0; i < count; ++i) {
    const tws_kernel_operand *o = &operands[i];
    info[i] =
        (operand_info){(int64_t)o->elements, o->dtype, o->access, o->content, o->first, o->below, o->name, o->in_place};
    if (o->content != TWS_HOLDS_SCRATCH) continue;
    info[i].count = (int64_t)(tws_work_workspace(w, KERNEL_BACKEND, threads) / sizeof(float));
    info[i].dtype = TWS_F32;
  }
  return count;
}

#endif
