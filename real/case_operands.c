#include "real/case_operands.h"

#include "models/operator.h"

int tws_case_operands(const tws_work *work, tws_backend_kind backend, int threads, tws_case_operand *out) {
  tws_kernel_operand operands[TWS_OPERATOR_OPERANDS];
  const int count = tws_work_operands(work, NULL, operands);
  for (int i = 0; i < count; i++) {
    const tws_kernel_operand *o = &operands[i];
    out[i] = (tws_case_operand){.elements = (uint64_t)o->elements, .dtype = o->dtype, .far = o->far};
    out[i].written = (o->access & TWS_OPERAND_WRITE) != 0;
    if (o->content == TWS_HOLDS_SCRATCH) out[i].elements = tws_work_workspace(work, backend, threads);
    if (o->dtype != TWS_I32 || o->access != TWS_OPERAND_READ) continue;
    out[i].below = o->below > 0 ? (int64_t)o->below : 1;
    out[i].greatest = o->content == TWS_HOLDS_COUNTS || o->content == TWS_HOLDS_LENGTHS;
  }
  return count;
}
