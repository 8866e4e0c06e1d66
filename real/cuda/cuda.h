/* The CUDA backend and the NCCL communicator: a shared module (twinspeed_cuda.so) with one exported table, which the
 * real engine loads when a job's cluster has GPUs. Every build that finds nvcc compiles it; docs/cuda.md says what has
 * run on which device.
 *
 * Storage types are float32, bfloat16 and half precision; arithmetic is float32 (float32 products without TF32; sums
 * of squares and losses float64). No kernel uses floating-point atomics, so equal work gives equal bits within one
 * process. Across processes this needs TWINSPEED_CUDA_DETERMINISTIC=1: without it algorithms of products are chosen
 * by timing, and cuDNN's attention, where it is used, adds gradients of queries in any order. Conditions that only a
 * look at data on the host could detect (targets outside the vocabulary) give NaN instead of an error. */
#ifndef TWS_REAL_CUDA_CUDA_H
#define TWS_REAL_CUDA_CUDA_H

#include "plan/plan.h"
#include "real/real.h"

/* Device memory now, in bytes, as the driver reports it. Memory that other processes on the device allocated or
 * freed since the backend was created counts as libraries. */
typedef struct tws_cuda_memory {
  uint64_t total;     /* memory of the device */
  uint64_t used;      /* memory in use: the sum of the following members */
  uint64_t arenas;    /* arenas of the plan */
  uint64_t workspace; /* for libraries and partial sums, TWS_CUDA_STREAM_BYTES for each stream on which kernels ran */
  uint64_t context;   /* memory in use when the backend was ready: contexts of this and other processes, and other
                       * processes' memory */
  uint64_t libraries; /* memory allocated since then: NCCL's buffers, kernels loaded at their first use, the CUDA graph
                       * of a step */
} tws_cuda_memory;

/* A device and its state. Numbers are 0 and texts empty where the driver's management library (NVML) is not
 * installed. */
typedef struct tws_cuda_device {
  char name[96], driver[48];            /* "580.65.06" */
  char bus[24];                         /* PCI address as Linux writes it, "0000:3b:00.0" */
  int multiprocessors, nccl;            /* nccl: version as NCCL encodes it, 22809 for 2.28.9 */
  int sm_mhz, sm_limit_mhz, memory_mhz; /* clocks in MHz: current and highest clock of the multiprocessors, current
                                         * clock of the memory */
  int power_limit_w;
  uint64_t l2_bytes;
} tws_cuda_device;

typedef struct tws_cuda_comm_setup {
  tws_backend *backend;    /* the backend whose streams execute the collectives */
  const tws_group *groups; /* groups of the plan, which are copied; group i of all ranks together partition the world */
  uint32_t group_count;
  int rank, world;
  double deadline_s; /* time limit for each phase of the setup, seconds; 0: 120 */
  /* Copies `bytes` bytes of rank 0 to every rank of the world. */
  tws_code (*broadcast)(void *user, void *data, size_t bytes, tws_error *err);
  void *user;
} tws_cuda_comm_setup;

typedef struct tws_cuda_api {
  int version;
  const tws_backend_ops *backend;
  /* Counts the devices. Fails with TWS_ENVIRONMENT "no CUDA device" if there is no driver, no device, or the driver is
   * too old. */
  tws_code (*device_count)(int *count, tws_error *err);
  tws_code (*memory)(const tws_backend *backend, tws_cuda_memory *out, tws_error *err);
  /* describes the device of the calling thread's backend in its current state */
  tws_code (*device)(tws_cuda_device *out, tws_error *err);
  /* writes the versions, and the device of `backend`, into `buffer` and returns it; backend may be NULL: versions
   * only */
  const char *(*describe)(const tws_backend *backend, char *buffer, int size);
  /* Creates the communicator; a collective over the world. It must be destroyed before the backend. */
  tws_code (*comm_create)(const tws_cuda_comm_setup *setup, tws_comm **out, tws_error *err);
  void (*comm_destroy)(tws_comm *comm);
  const tws_comm_ops *comm_ops;
  /* Returns TWS_OK if cuDNN's fused attention supports this work on the device that `described` describes in cuDNN's
   * terms (JSON) and that need not be present; NULL: on the current device, for which the graph is also built.
   * TWS_UNSUPPORTED with the reason: the backend's own kernels execute it. */
  tws_code (*attention_for)(const char *described, const tws_work *work, int deterministic, tws_error *err);
} tws_cuda_api;
enum { TWS_CUDA_WORKSPACE_BYTES = 64 << 20, TWS_CUDA_SCRATCH_BYTES = 8 << 20 };
enum { TWS_CUDA_STREAM_BYTES = TWS_CUDA_WORKSPACE_BYTES + TWS_CUDA_SCRATCH_BYTES };
#define TWS_CUDA_MODULE_SYMBOL "tws_cuda_module"

#endif
