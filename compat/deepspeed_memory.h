/* The memory estimators that DeepSpeed documents (estimate_zero2_model_states_mem_needs and
 * estimate_zero3_model_states_mem_needs), for users who compare Twinspeed with them. */
#ifndef TWS_COMPAT_DEEPSPEED_MEMORY_H
#define TWS_COMPAT_DEEPSPEED_MEMORY_H

#include "base/memory.h"

typedef struct tws_zero_memory {
  double cpu_bytes, gpu_bytes, largest_layer_bytes;
} tws_zero_memory;
tws_zero_memory tws_zero2_memory(double total_params, int gpus_per_node, int nodes, int cpu_offload, double factor);
/* Returns the bytes by the formula of DeepSpeed 0.3, which its manual still quotes. Without offload, model states have,
 * per parameter, 4 bytes on each GPU and 16 bytes divided by the number of GPUs; later versions have 2 and 18. */
tws_zero_memory tws_zero2_memory_03(double total_params, int gpus_per_node, int nodes, int cpu_offload, double factor);
tws_zero_memory tws_zero3_memory(double total_params, double largest_layer_params, int gpus_per_node, int nodes,
                                 int cpu_offload, int cpu_offload_params, int zero_init, double factor);
/* Append tables that are identical to those that DeepSpeed prints, character by character. */
void tws_zero2_print(double total_params, int gpus_per_node, int nodes, double factor, int as_03, tws_text *out);
void tws_zero3_print(double total_params, double largest_layer_params, int gpus_per_node, int nodes, double factor,
                     tws_text *out);

#endif
