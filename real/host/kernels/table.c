/* The table that maps kernels to functions, for one instruction set. */
#include "real/host/kernels/kernels.h"

#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)

const tws_host_kernels TWS_HOST(kernels) = {
    .name = TEXT(TWS_HOST_ISA),
    .function =
        {
#define OPERATOR(id, name, ...) [TWS_KERNEL_##id] = TWS_HOST(name),
#include "models/operators.def"
        },
};
