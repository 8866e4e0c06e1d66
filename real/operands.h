/* Checks of operands that all backends share, from the table of operators: number, types and sizes. */
#ifndef TWS_REAL_OPERANDS_H
#define TWS_REAL_OPERANDS_H

#include "base/status.h"
#include "models/kernel.h"

enum { TWS_MAX_OPERANDS = 19 };

/* TWS_INTERNAL: a wrong number of operands or one without an address; TWS_UNSUPPORTED: a type that is not the
 * work's, or one that backends computing on float32, bfloat16 and half precision lack; TWS_INVALID: a negative size.
 * The hint begins with `device`: "the host". */
tws_code tws_check_operands(const tws_work *work, void *const *operand, const tws_dtype *dtype, int count,
                            const char *device, tws_error *err);
/* TWS_INTERNAL: operand `index` has too few elements for its shape. Scratch memory is not checked. */
tws_code tws_check_operand_size(const tws_work *work, int index, uint64_t elements, tws_error *err);
/* Returns 1 if such backends have this kernel for the work's types. */
int tws_operands_supported(const tws_work *work);

#endif
