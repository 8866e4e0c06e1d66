/* Checks of operands that all backends share, from the table of operators: number, types and sizes. */
#ifndef TWS_REAL_OPERANDS_H
#define TWS_REAL_OPERANDS_H

#include "base/status.h"
#include "models/kernel.h"

enum { TWS_MAX_OPERANDS = 19 };

/* Checks the operands of a work. Fails with TWS_INTERNAL for a wrong number of operands or an operand without an
 * address, with TWS_UNSUPPORTED for an operand whose type is not the work's or is none of float32, bfloat16 and half
 * precision where backends need one of these, and with TWS_INVALID for a negative size. The hint begins with `device`:
 * "the host". */
tws_code tws_check_operands(const tws_work *work, void *const *operand, const tws_dtype *dtype, int count,
                            const char *device, tws_error *err);
/* Fails with TWS_INTERNAL if operand `index` has too few elements for its shape. Scratch memory is not checked. */
tws_code tws_check_operand_size(const tws_work *work, int index, uint64_t elements, tws_error *err);
/* Returns 1 if backends that compute on float32, bfloat16 and half precision have this kernel for the work's types. */
int tws_operands_supported(const tws_work *work);

#endif
