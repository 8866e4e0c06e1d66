/* The CUDA backend and the NCCL communicator: a shared module (twinspeed_cuda.so) with one exported table, loaded by
 * the real engine when a job's cluster has GPUs. It is compiled with every build that finds nvcc; what has run on which
 * device is in docs/cuda.md.
 *
 * Storage types are float32, bfloat16 and half precision; arithmetic is float32 (float32 products without TF32; sums of
 * squares and losses float64). No kernel uses floating-point atomics, so equal work gives equal bits in one process; in
 * others too with TWINSPEED_CUDA_DETERMINISTIC=1, without which ways to do products are chosen by timing them, and
 * cuDNN's attention, where it is used, adds gradients of queries in any order. What would need a look at data on the
 * host (targets outside the vocabulary) gives NaN instead of an error. */
#ifndef TWS_REAL_CUDA_CUDA_H
#define TWS_REAL_CUDA_CUDA_H

#include "plan/plan.h"
#include "real/real.h"

/* Device memory now, in bytes, as the driver sees it. What other processes on the device took or gave back since the
 * backend was ready counts as libraries. */
typedef struct tws_cuda_memory {
  uint64_t total;     /* of the device */
  uint64_t used;      /* of it: the sum of what follows */
  uint64_t arenas;    /* the plan's */
  uint64_t workspace; /* for libraries and partial sums, TWS_CUDA_STREAM_BYTES for each stream on which kernels ran */
  uint64_t context;   /* when the backend was ready: contexts, this process's and others', and what else others held */
  uint64_t libraries; /* since: NCCL's buffers, kernels loaded at their first use, the graph of a step */
} tws_cuda_memory;

/* A device and its state. Figures are 0 and texts empty where the driver's management library (NVML) is not there. */
typedef struct tws_cuda_device {
  char name[96], driver[48];            /* "580.65.06" */
  int multiprocessors, nccl;            /* nccl: 22809 is 2.28.9 */
  int sm_mhz, sm_limit_mhz, memory_mhz; /* clocks: now, highest, now */
  int power_limit_w;
  uint64_t l2_bytes;
} tws_cuda_device;

typedef struct tws_cuda_comm_setup {
  tws_backend *backend;    /* whose streams carry the collectives */
  const tws_group *groups; /* of the plan, copied; group i of all ranks together partition the world */
  uint32_t group_count;
  int rank, world;
  double deadline_s; /* for each step of the set-up; 0: 120 */
  /* `bytes` of rank 0 to every rank of the world. */
  tws_code (*broadcast)(void *user, void *data, size_t bytes, tws_error *err);
  void *user;
} tws_cuda_comm_setup;

typedef struct tws_cuda_api {
  int version;
  const tws_backend_ops *backend;
  /* TWS_ENVIRONMENT "no CUDA device": no driver, no device, or a driver too old. */
  tws_code (*device_count)(int *count, tws_error *err);
  tws_code (*memory)(const tws_backend *backend, tws_cuda_memory *out, tws_error *err);
  tws_code (*device)(tws_cuda_device *out, tws_error *err); /* that of the calling thread's backend, as it is now */
  const char *(*describe)(const tws_backend *backend, char *buffer, int size); /* backend may be NULL: versions only */
  /* Collective over the world. The communicator must go before the backend. */
  tws_code (*comm_create)(const tws_cuda_comm_setup *setup, tws_comm **out, tws_error *err);
  void (*comm_destroy)(tws_comm *comm);
  const tws_comm_ops *comm_ops;
  /* Whether cuDNN's fused attention takes this work on a device that need not be there, described in cuDNN's terms
   * (JSON); NULL: the current device, for which it is built, too. TWS_UNSUPPORTED with the reason: the backend's own
   * kernels do it. */
  tws_code (*attention_for)(const char *described, const tws_work *work, int deterministic, tws_error *err);
} tws_cuda_api;
enum { TWS_CUDA_WORKSPACE_BYTES = 64 << 20, TWS_CUDA_SCRATCH_BYTES = 8 << 20 };
enum { TWS_CUDA_STREAM_BYTES = TWS_CUDA_WORKSPACE_BYTES + TWS_CUDA_SCRATCH_BYTES };
#define TWS_CUDA_MODULE_SYMBOL "tws_cuda_module"

#endif
