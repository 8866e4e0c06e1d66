/* The part of cuDNN's backend interface that fused.c uses: the library is loaded at run time, and there is one call
 * for each kind of descriptor. After a failed call the following ones do nothing, so that a graph is described
 * without checks in between. */
#ifndef TWS_REAL_CUDA_FUSED_LIBRARY_H
#define TWS_REAL_CUDA_FUSED_LIBRARY_H

#ifdef TWS_HAVE_CUDNN
#include <cudnn_graph.h>
#include "base/status.h"

typedef struct tws_cudnn tws_cudnn;
typedef struct tws_cudnn_status {
  int failed;
  char text[200]; /* the library's error message */
} tws_cudnn_status;

/* Loads the cuDNN library; fails with TWS_UNSUPPORTED if it is not installed, or is older than 9.10. */
tws_code tws_cudnn_load(tws_cudnn **out, tws_error *err);
void tws_cudnn_unload(tws_cudnn *lib, cudnnHandle_t handle); /* both may be NULL */
size_t tws_cudnn_version(const tws_cudnn *lib);
tws_code tws_cudnn_handle(const tws_cudnn *lib, cudnnHandle_t *out, tws_error *err);
/* Creates the descriptor of a device that need not be present, from its description in JSON. */
tws_code tws_cudnn_device(const tws_cudnn *lib, const char *described, cudnnBackendDescriptor_t *out, tws_error *err);
void tws_cudnn_release(const tws_cudnn *lib, cudnnBackendDescriptor_t descriptor);

/* Creates a tensor descriptor; its data must be aligned to 16 bytes, or to 4 if they are integers. by_value: the tensor
 * has one element, whose host address is passed when the graph runs. */
cudnnBackendDescriptor_t tws_cudnn_tensor(const tws_cudnn *lib, tws_cudnn_status *status, int64_t number,
                                          cudnnDataType_t type, const int64_t dim[4], const int64_t stride[4],
                                          int is_virtual, int by_value);
cudnnBackendDescriptor_t tws_cudnn_matmul(const tws_cudnn *lib, tws_cudnn_status *status, cudnnBackendDescriptor_t a,
                                          cudnnBackendDescriptor_t b, cudnnBackendDescriptor_t c);
/* Creates a pointwise operation y = f(x), f(x, b) or f(x, b, t); axis -1: the operation has no axis. */
cudnnBackendDescriptor_t tws_cudnn_pointwise(const tws_cudnn *lib, tws_cudnn_status *status, cudnnPointwiseMode_t mode,
                                             cudnnDataType_t arithmetic, int64_t axis, cudnnBackendDescriptor_t x,
                                             cudnnBackendDescriptor_t b, cudnnBackendDescriptor_t t,
                                             cudnnBackendDescriptor_t y);
cudnnBackendDescriptor_t tws_cudnn_reduction(const tws_cudnn *lib, tws_cudnn_status *status,
                                             cudnnReduceTensorOp_t operation, cudnnBackendDescriptor_t x,
                                             cudnnBackendDescriptor_t y);
cudnnBackendDescriptor_t tws_cudnn_reshape(const tws_cudnn *lib, tws_cudnn_status *status, cudnnBackendDescriptor_t x,
                                           cudnnBackendDescriptor_t y);

/* A request for cuDNN execution plans of an operation graph. cuDNN's heuristics propose them, best first, one heuristic
 * after another. Plans that need more than `limit` bytes of workspace are left out; with `deterministic` also those
 * that are marked nondeterministic. */
typedef struct tws_cudnn_request {
  cudnnHandle_t handle; /* NULL: plans are requested for `device` */
  cudnnBackendDescriptor_t device;
  size_t limit;
  int deterministic;
} tws_cudnn_request;
typedef struct tws_cudnn_plan {
  cudnnBackendDescriptor_t plan;
  size_t workspace; /* bytes of workspace that the plan needs */
} tws_cudnn_plan;
/* Writes at most `most` plans for the graph of `count` operations to `plans`, and returns their number; 0: `status` has
 * the reason. For the device of the request's handle the plans are built, which takes seconds the first time. For a
 * described device nothing is built: one entry with plan NULL then means that there are plans. */
int tws_cudnn_plans(const tws_cudnn *lib, tws_cudnn_status *status, cudnnBackendDescriptor_t *ops, int count,
                    const tws_cudnn_request *request, tws_cudnn_plan *plans, int most);
tws_code tws_cudnn_execute(const tws_cudnn *lib, cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                           const int64_t *number, void *const *data, int count, void *workspace, cudaStream_t stream,
                           tws_error *err);
#endif
#endif
