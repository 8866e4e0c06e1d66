/* The kernels of one instruction set: a function for each row of models/operators.def. */
#ifndef TWS_REAL_HOST_KERNELS_KERNELS_H
#define TWS_REAL_HOST_KERNELS_KERNELS_H

#include "real/host/kernels/vector.h"

#define OPERATOR(id, name, ...) HOST_KERNEL(name);
#include "models/operators.def"

#endif
