/* Model states have 18 bytes per parameter: 16-bit weight 2, gradient 4, float32 weight 4, optimizer moments 8. The
 * order of floating-point operations is DeepSpeed's, so that the last digit agrees. */
#include "compat/deepspeed_memory.h"

#include <math.h>

tws_zero_memory tws_zero2_memory(double total_params, int gpus_per_node, int nodes, int cpu_offload, double factor) {
  double gpus = (double)gpus_per_node * nodes;
  tws_zero_memory memory = {0};
  memory.gpu_bytes = 2 * total_params;
  if (cpu_offload) {
    memory.cpu_bytes = trunc(total_params * fmax(4 * gpus, 16) * factor);
  } else {
    memory.gpu_bytes += trunc(18 * total_params / gpus);
    memory.cpu_bytes = trunc(total_params * 4 * gpus_per_node * factor);
  }
  memory.gpu_bytes = trunc(memory.gpu_bytes);
  return memory;
}

tws_zero_memory tws_zero2_memory_03(double total_params, int gpus_per_node, int nodes, int cpu_offload, double factor) {
  tws_zero_memory memory = tws_zero2_memory(total_params, gpus_per_node, nodes, cpu_offload, factor);
  if (!cpu_offload) memory.gpu_bytes = 4 * total_params + trunc(16 * total_params / ((double)gpus_per_node * nodes));
  return memory;
}

tws_zero_memory tws_zero3_memory(double total_params, double largest_layer_params, int gpus_per_node, int nodes,
                                 int cpu_offload, int cpu_offload_params, int zero_init, double factor) {
  double gpus = (double)gpus_per_node * nodes, per_node = 1 / (double)nodes;
  tws_zero_memory memory = {.largest_layer_bytes = 4 * largest_layer_params};
  memory.gpu_bytes = memory.largest_layer_bytes;
  if (cpu_offload) {
    double bytes = cpu_offload_params ? 18 : 16; /* bytes per parameter on the host */
    if (!cpu_offload_params) memory.gpu_bytes += trunc(2 * total_params / gpus);
    memory.cpu_bytes = zero_init ? total_params * bytes * per_node * factor
                                 : total_params * fmax(4.0 * gpus_per_node, bytes * per_node) * factor;
  } else {
    memory.gpu_bytes += trunc(18 * total_params / gpus);
    memory.cpu_bytes = (zero_init ? largest_layer_params : total_params) * 4 * gpus_per_node * factor;
  }
  memory.cpu_bytes = trunc(memory.cpu_bytes);
  memory.gpu_bytes = trunc(memory.gpu_bytes);
  memory.largest_layer_bytes = trunc(memory.largest_layer_bytes);
  return memory;
}

static void print_head(int gpus_per_node, int nodes, double total_params, tws_text *out) {
  tws_text_add(out, "Estimated memory needed for params, optim states and gradients for a:\n");
  tws_text_add(out, "HW: Setup with %d %s, %d %s per node.\n", nodes, nodes > 1 ? "nodes" : "node", gpus_per_node,
               gpus_per_node > 1 ? "GPUs" : "GPU");
  tws_text_add(out, "SW: Model with %.0fM total params", trunc(total_params / 1e6));
}

static void print_row(const tws_zero_memory *memory, tws_text *out) {
  tws_text_add(out, " %7.2fGB | %6.2fGB | ", memory->cpu_bytes / 1073741824.0, memory->gpu_bytes / 1073741824.0);
}

static const char *device(int offload) {
  return offload ? "cpu " : "none";
}

void tws_zero2_print(double total_params, int gpus_per_node, int nodes, double factor, int as_03, tws_text *out) {
  print_head(gpus_per_node, nodes, total_params, out);
  tws_text_add(out, ".\n  per CPU  |  per GPU |   Options\n");
  for (int offload = 1; offload >= 0; offload--) {
    tws_zero_memory memory =
        (as_03 ? tws_zero2_memory_03 : tws_zero2_memory)(total_params, gpus_per_node, nodes, offload, factor);
    print_row(&memory, out);
    tws_text_add(out, "offload_optimizer=%s\n", device(offload));
  }
}

void tws_zero3_print(double total_params, double largest_layer_params, int gpus_per_node, int nodes, double factor,
                     tws_text *out) {
  static const int offloads[3][2] = {{1, 1}, {1, 0}, {0, 0}}; /* {optimizer, parameters}; 1: offloaded to the host */
  print_head(gpus_per_node, nodes, total_params, out);
  tws_text_add(out, ", %.0fM largest layer params.\n  per CPU  |  per GPU |   Options\n",
               trunc(largest_layer_params / 1e6));
  for (int row = 0; row < 6; row++) {
    int optimizer = offloads[row / 2][0], params = offloads[row / 2][1], zero_init = row % 2 == 0;
    tws_zero_memory memory = tws_zero3_memory(total_params, largest_layer_params, gpus_per_node, nodes, optimizer,
                                              params, zero_init, factor);
    print_row(&memory, out);
    tws_text_add(out, "offload_param=%s, offload_optimizer=%s, zero_init=%d\n", device(params), device(optimizer),
                 zero_init);
  }
}
