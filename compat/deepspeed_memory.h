/* The memory estimators that DeepSpeed documents (estimate_zero2_model_states_mem_needs and its zero3 sibling), for
 * people who compare with them (specification 02 section 1). */
#ifndef TWS_COMPAT_DEEPSPEED_MEMORY_H
#define TWS_COMPAT_DEEPSPEED_MEMORY_H

#include "base/memory.h"

typedef struct tws_zero_memory {
  double cpu_bytes, gpu_bytes, largest_layer_bytes;
} tws_zero_memory;
tws_zero_memory tws_zero2_memory(double total_params, int gpus_per_node, int nodes, int cpu_offload, double factor);
/* As DeepSpeed 0.3 had it, from which its manual still quotes: without offload 4 bytes a parameter and 16 divided by
 * the GPUs, where later versions have 2 and 18. */
tws_zero_memory tws_zero2_memory_03(double total_params, int gpus_per_node, int nodes, int cpu_offload, double factor);
tws_zero_memory tws_zero3_memory(double total_params, double largest_layer_params, int gpus_per_node, int nodes,
                                 int cpu_offload, int cpu_offload_params, int zero_init, double factor);
/* The printed tables, to the letter. */
void tws_zero2_print(double total_params, int gpus_per_node, int nodes, double factor, int as_03, tws_text *out);
void tws_zero3_print(double total_params, double largest_layer_params, int gpus_per_node, int nodes, double factor,
                     tws_text *out);

#endif
