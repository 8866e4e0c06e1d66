/* kernel -> function, for one instruction set. */
#include "real/host/kernels/kernels.h"

#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)

const tws_host_kernels TWS_HOST(kernels) = {
    .name = TEXT(TWS_HOST_ISA),
    .function =
        {
            [TWS_KERNEL_EMBEDDING] = TWS_HOST(embedding),
            [TWS_KERNEL_EMBEDDING_GRAD] = TWS_HOST(embedding_grad),
            [TWS_KERNEL_POSITION_GRAD] = TWS_HOST(position_grad),
            [TWS_KERNEL_NORM] = TWS_HOST(norm),
            [TWS_KERNEL_NORM_GRAD] = TWS_HOST(norm_grad),
            [TWS_KERNEL_LINEAR] = TWS_HOST(linear),
            [TWS_KERNEL_LINEAR_GRAD_INPUT] = TWS_HOST(linear_grad_input),
            [TWS_KERNEL_LINEAR_GRAD_WEIGHT] = TWS_HOST(linear_grad_weight),
            [TWS_KERNEL_ROPE] = TWS_HOST(rope),
            [TWS_KERNEL_ROPE_GRAD] = TWS_HOST(rope_grad),
            [TWS_KERNEL_ATTENTION] = TWS_HOST(attention),
            [TWS_KERNEL_ATTENTION_GRAD] = TWS_HOST(attention_grad),
            [TWS_KERNEL_GELU] = TWS_HOST(gelu),
            [TWS_KERNEL_GELU_GRAD] = TWS_HOST(gelu_grad),
            [TWS_KERNEL_SWIGLU] = TWS_HOST(swiglu),
            [TWS_KERNEL_SWIGLU_GRAD] = TWS_HOST(swiglu_grad),
            [TWS_KERNEL_ADD] = TWS_HOST(add),
            [TWS_KERNEL_CROSS_ENTROPY] = TWS_HOST(cross_entropy),
            [TWS_KERNEL_VOCABULARY_STATS] = TWS_HOST(vocabulary_stats),
            [TWS_KERNEL_VOCABULARY_LOSS] = TWS_HOST(vocabulary_loss),
            [TWS_KERNEL_ADAMW] = TWS_HOST(adamw),
            [TWS_KERNEL_SQUARED_NORM] = TWS_HOST(squared_norm),
            [TWS_KERNEL_CLIP] = TWS_HOST(clip),
            [TWS_KERNEL_FILL] = TWS_HOST(fill),
            [TWS_KERNEL_ACCUMULATE] = TWS_HOST(accumulate),
            [TWS_KERNEL_CAST] = TWS_HOST(cast),
            [TWS_KERNEL_TRANSPOSE] = TWS_HOST(transpose),
            [TWS_KERNEL_HEADS_PACK] = TWS_HOST(heads_pack),
            [TWS_KERNEL_HEADS_UNPACK] = TWS_HOST(heads_unpack),
        },
};
