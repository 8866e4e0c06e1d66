/* The kernels of one instruction set; operands and shapes are described in models/kernel.h. */
#ifndef TWS_REAL_HOST_KERNELS_KERNELS_H
#define TWS_REAL_HOST_KERNELS_KERNELS_H

#include "real/host/kernels/vector.h"

HOST_KERNEL(embedding);
HOST_KERNEL(embedding_grad);
HOST_KERNEL(position_grad);
HOST_KERNEL(norm);
HOST_KERNEL(norm_grad);
HOST_KERNEL(linear);
HOST_KERNEL(linear_grad_input);
HOST_KERNEL(linear_grad_weight);
HOST_KERNEL(rope);
HOST_KERNEL(rope_grad);
HOST_KERNEL(attention);
HOST_KERNEL(attention_grad);
HOST_KERNEL(gelu);
HOST_KERNEL(gelu_grad);
HOST_KERNEL(swiglu);
HOST_KERNEL(swiglu_grad);
HOST_KERNEL(add);
HOST_KERNEL(cross_entropy);
HOST_KERNEL(vocabulary_stats);
HOST_KERNEL(vocabulary_loss);
HOST_KERNEL(adamw);
HOST_KERNEL(squared_norm);
HOST_KERNEL(clip);
HOST_KERNEL(fill);
HOST_KERNEL(accumulate);
HOST_KERNEL(cast);
HOST_KERNEL(transpose);
HOST_KERNEL(heads_pack);
HOST_KERNEL(heads_unpack);

#endif
