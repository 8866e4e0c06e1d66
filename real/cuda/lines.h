/* Which collectives may run side by side on a device. Internal to real/cuda.
 *
 * A kernel of NCCL waits on its multiprocessors for the other ranks. Two of them that ranks start in different orders
 * can wait for each other, so each communicator belongs to a line, and what belongs to one line runs one after another
 * in the order of the plan. Lines run side by side: at most 3 such kernels of at most 32 blocks, which fit an A100's
 * 108 multiprocessors beside each other, so that none waits for another's place.
 *
 * Nothing can deadlock: the whole plan could run one operation after another in its order (the host's engine does), and
 * lines and streams only leave out some of the waiting. */
#ifndef TWS_REAL_CUDA_LINES_H
#define TWS_REAL_CUDA_LINES_H

#include <string.h>

typedef enum tws_cuda_line {
  TWS_CUDA_LINE_REPLICAS, /* the world, "data", "tied" and what is not named here */
  TWS_CUDA_LINE_LAYERS,   /* "model" and "sequence": between the products of a layer, in the way of everything */
  TWS_CUDA_LINE_STAGES,   /* "pipe": messages, which wait for another stage */
  TWS_CUDA_LINE_COUNT
} tws_cuda_line;

static inline tws_cuda_line tws_cuda_line_of(const char *axis) {
  if (!axis) return TWS_CUDA_LINE_REPLICAS;
  if (strcmp(axis, "model") == 0 || strcmp(axis, "sequence") == 0) return TWS_CUDA_LINE_LAYERS;
  return strcmp(axis, "pipe") == 0 ? TWS_CUDA_LINE_STAGES : TWS_CUDA_LINE_REPLICAS;
}

#endif
