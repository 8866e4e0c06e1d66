#include "real/cuda/fused_library.h"

#ifdef TWS_HAVE_CUDNN
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include "base/memory.h"

enum { OLDEST = 91000 /* 9.10: can describe devices and mask with infinity */, MOST_PROPOSALS = 16 };

/* The functions of the library that are used, by name. */
#define FUNCTIONS(X)                                                                           \
  X(cudnnGetVersion)                                                                           \
  X(cudnnGetErrorString)                                                                       \
  X(cudnnGetLastErrorString)                                                                   \
  X(cudnnCreate)                                                                               \
  X(cudnnDestroy)                                                                              \
  X(cudnnSetStream)                                                                            \
  X(cudnnBackendCreateDescriptor) X(cudnnBackendDestroyDescriptor) X(cudnnBackendSetAttribute) \
      X(cudnnBackendGetAttribute) X(cudnnBackendFinalize) X(cudnnBackendExecute)

struct tws_cudnn {
  void *module;
#define X(name) __typeof__(name) *name;
  FUNCTIONS(X)
#undef X
};

typedef cudnnBackendDescriptor_t descriptor;

/* ---- the library ---- */

static tws_code find_functions(tws_cudnn *lib, tws_error *err) {
#define X(function)                                                                              \
  {                                                                                              \
    void *symbol = dlsym(lib->module, #function);                                                \
    if (!symbol) return tws_fail(err, TWS_UNSUPPORTED, NULL, "this cuDNN has no %s", #function); \
    memcpy(&lib->function, &symbol, sizeof symbol);                                              \
  }
  FUNCTIONS(X)
#undef X
  if (lib->cudnnGetVersion() >= OLDEST) return TWS_OK;
  return tws_fail(err, TWS_UNSUPPORTED, "install cuDNN 9.10 or later", "cuDNN %zu is too old", lib->cudnnGetVersion());
}

tws_code tws_cudnn_load(tws_cudnn **out, tws_error *err) {
  static const char *const names[] = {"libcudnn.so.9", TWS_CUDNN_LIBRARY};
  *out = NULL;
  tws_cudnn *lib = tws_calloc(1, sizeof *lib);
  if (!lib) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (int i = 0; i < 2 && !lib->module; i++) lib->module = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
  const tws_code code =
      lib->module ? find_functions(lib, err) : tws_fail(err, TWS_UNSUPPORTED, "install cuDNN 9", "cuDNN is not there");
  if (code != TWS_OK) {
    tws_cudnn_unload(lib, NULL);
    return code;
  }
  *out = lib;
  return TWS_OK;
}

/* Destroys the handle. The library itself stays loaded, as other code may use it. */
void tws_cudnn_unload(tws_cudnn *lib, cudnnHandle_t handle) {
  if (lib && handle) lib->cudnnDestroy(handle);
  tws_free(lib);
}

size_t tws_cudnn_version(const tws_cudnn *lib) {
  return lib->cudnnGetVersion();
}

tws_code tws_cudnn_handle(const tws_cudnn *lib, cudnnHandle_t *out, tws_error *err) {
  const cudnnStatus_t status = lib->cudnnCreate(out);
  if (status == CUDNN_STATUS_SUCCESS) return TWS_OK;
  char text[300] = "";
  lib->cudnnGetLastErrorString(text, sizeof text);
  const tws_code code = status == CUDNN_STATUS_ALLOC_FAILED ? TWS_MEMORY : TWS_UNSUPPORTED;
  return tws_fail(err, code, NULL, "cuDNN: no handle: %s: %s", lib->cudnnGetErrorString(status), text);
}

/* ---- descriptors ---- */

void tws_cudnn_release(const tws_cudnn *lib, descriptor d) {
  if (lib && d) lib->cudnnBackendDestroyDescriptor(d);
}

static void note(const tws_cudnn *lib, tws_cudnn_status *status, cudnnStatus_t result) {
  if (status->failed || result == CUDNN_STATUS_SUCCESS) return;
  char text[sizeof status->text] = "";
  status->failed = 1;
  lib->cudnnGetLastErrorString(text, sizeof text);
  snprintf(status->text, sizeof status->text, "%.160s (%s)", text, lib->cudnnGetErrorString(result));
}

static descriptor start(const tws_cudnn *lib, tws_cudnn_status *status, cudnnBackendDescriptorType_t type) {
  descriptor d = NULL;
  if (!status->failed) note(lib, status, lib->cudnnBackendCreateDescriptor(type, &d));
  return status->failed ? NULL : d;
}

static void set(const tws_cudnn *lib, tws_cudnn_status *status, descriptor d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t count, const void *values) {
  if (!status->failed) note(lib, status, lib->cudnnBackendSetAttribute(d, name, type, count, values));
}
static void set_part(const tws_cudnn *lib, tws_cudnn_status *status, descriptor d, cudnnBackendAttributeName_t name,
                     descriptor part) {
  set(lib, status, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &part);
}

/* Finalizes a descriptor and returns it, or returns NULL after an error. */
static descriptor finish(const tws_cudnn *lib, tws_cudnn_status *status, descriptor d) {
  if (!status->failed) note(lib, status, lib->cudnnBackendFinalize(d));
  if (!status->failed) return d;
  tws_cudnn_release(lib, d);
  return NULL;
}

tws_code tws_cudnn_device(const tws_cudnn *lib, const char *described, descriptor *out, tws_error *err) {
  tws_cudnn_status status = {0};
  descriptor d = start(lib, &status, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  set(lib, &status, d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)strlen(described),
      described);
  *out = finish(lib, &status, d);
  return *out ? TWS_OK : tws_fail(err, TWS_UNSUPPORTED, NULL, "cuDNN does not take the device: %s", status.text);
}

descriptor tws_cudnn_tensor(const tws_cudnn *lib, tws_cudnn_status *status, int64_t number, cudnnDataType_t type,
                            const int64_t dim[4], const int64_t stride[4], int is_virtual, int by_value) {
  const int64_t alignment = type == CUDNN_DATA_INT32 ? 4 : 16; /* of every second number, for instance */
  const _Bool v = is_virtual != 0, b = by_value != 0;
  descriptor d = start(lib, status, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  set(lib, status, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &number);
  set(lib, status, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  set(lib, status, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dim);
  set(lib, status, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride);
  set(lib, status, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
  set(lib, status, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &v);
  set(lib, status, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &b);
  return finish(lib, status, d);
}

descriptor tws_cudnn_matmul(const tws_cudnn *lib, tws_cudnn_status *status, descriptor a, descriptor b, descriptor c) {
  const cudnnDataType_t arithmetic = CUDNN_DATA_FLOAT;
  descriptor m = start(lib, status, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  set(lib, status, m, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &arithmetic);
  m = finish(lib, status, m);
  descriptor d = start(lib, status, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  set_part(lib, status, d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
  set_part(lib, status, d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
  set_part(lib, status, d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
  set_part(lib, status, d, CUDNN_ATTR_OPERATION_MATMUL_DESC, m);
  d = finish(lib, status, d);
  tws_cudnn_release(lib, m);
  return d;
}

descriptor tws_cudnn_pointwise(const tws_cudnn *lib, tws_cudnn_status *status, cudnnPointwiseMode_t mode,
                               cudnnDataType_t arithmetic, int64_t axis, descriptor x, descriptor b, descriptor t,
                               descriptor y) {
  descriptor m = start(lib, status, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  set(lib, status, m, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  set(lib, status, m, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &arithmetic);
  if (axis >= 0) set(lib, status, m, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
  m = finish(lib, status, m);
  descriptor d = start(lib, status, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  set_part(lib, status, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, m);
  set_part(lib, status, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  if (b) set_part(lib, status, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
  if (t) set_part(lib, status, d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
  set_part(lib, status, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  d = finish(lib, status, d);
  tws_cudnn_release(lib, m);
  return d;
}

descriptor tws_cudnn_reduction(const tws_cudnn *lib, tws_cudnn_status *status, cudnnReduceTensorOp_t operation,
                               descriptor x, descriptor y) {
  const cudnnDataType_t arithmetic = CUDNN_DATA_FLOAT;
  descriptor m = start(lib, status, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  set(lib, status, m, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &operation);
  set(lib, status, m, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &arithmetic);
  m = finish(lib, status, m);
  descriptor d = start(lib, status, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  set_part(lib, status, d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
  set_part(lib, status, d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
  set_part(lib, status, d, CUDNN_ATTR_OPERATION_REDUCTION_DESC, m);
  d = finish(lib, status, d);
  tws_cudnn_release(lib, m);
  return d;
}

descriptor tws_cudnn_reshape(const tws_cudnn *lib, tws_cudnn_status *status, descriptor x, descriptor y) {
  descriptor d = start(lib, status, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  set_part(lib, status, d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
  set_part(lib, status, d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
  return finish(lib, status, d);
}

/* ---- plans ---- */

static int is_deterministic(const tws_cudnn *lib, descriptor proposal) {
  tws_cudnn_status status = {0};
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  int64_t count = 0;
  descriptor engine = start(lib, &status, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  if (!status.failed)
    note(lib, &status,
         lib->cudnnBackendGetAttribute(proposal, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                                       &engine));
  count = 0;
  if (!status.failed)
    note(lib, &status,
         lib->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                       CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes));
  tws_cudnn_release(lib, engine);
  for (int64_t i = 0; i < count && !status.failed; i++)
    if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) return 0;
  return !status.failed;
}

static descriptor plan_of(const tws_cudnn *lib, tws_cudnn_status *status, cudnnHandle_t handle, descriptor proposal) {
  descriptor d = start(lib, status, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  set_part(lib, status, d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, proposal);
  set(lib, status, d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  return finish(lib, status, d);
}

/* Returns 1 if the workspace that a proposal or a plan needs is available. */
static int fits(const tws_cudnn *lib, tws_cudnn_status *status, descriptor d, cudnnBackendAttributeName_t name,
                size_t limit, size_t *workspace) {
  int64_t bytes = 0, count = 0;
  if (!status->failed) note(lib, status, lib->cudnnBackendGetAttribute(d, name, CUDNN_TYPE_INT64, 1, &count, &bytes));
  if (status->failed) return 0;
  *workspace = (size_t)bytes;
  if (bytes >= 0 && (uint64_t)bytes <= limit) return 1;
  snprintf(status->text, sizeof status->text, "it needs %lld bytes, there are %zu", (long long)bytes, limit);
  return 0;
}

/* Lists the proposals of a heuristic, best first, and returns their number. The caller releases each of them. */
static int proposals_for(const tws_cudnn *lib, tws_cudnn_status *status, const tws_cudnn_request *request,
                         descriptor graph, cudnnBackendHeurMode_t mode, descriptor *out) {
  int64_t count = 0;
  descriptor h = start(lib, status, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  set_part(lib, status, h, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  set(lib, status, h, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  if (!request->handle) set_part(lib, status, h, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, request->device);
  h = finish(lib, status, h);
  for (int i = 0; i < MOST_PROPOSALS; i++) out[i] = start(lib, status, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  if (!status->failed)
    note(lib, status,
         lib->cudnnBackendGetAttribute(h, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, MOST_PROPOSALS,
                                       &count, out));
  tws_cudnn_release(lib, h);
  return status->failed ? 0 : (int)count;
}

/* Returns 1 if cuDNN's proposal is acceptable; if there is a handle of the library, the proposal's execution plan is
 * built. */
static int accept(const tws_cudnn *lib, tws_cudnn_status *status, descriptor proposal, const tws_cudnn_request *request,
                  tws_cudnn_plan *way) {
  *way = (tws_cudnn_plan){NULL, 0};
  if (request->deterministic && !is_deterministic(lib, proposal)) {
    snprintf(status->text, sizeof status->text, "nothing deterministic");
    return 0;
  }
  if (!fits(lib, status, proposal, CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, request->limit, &way->workspace)) return 0;
  if (!request->handle) return 1;
  way->plan = plan_of(lib, status, request->handle, proposal);
  if (fits(lib, status, way->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, request->limit, &way->workspace)) return 1;
  tws_cudnn_release(lib, way->plan);
  return 0;
}

/* Appends the plans of one heuristic to those of the others. */
static int plans_by(const tws_cudnn *lib, tws_cudnn_status *status, const tws_cudnn_request *request, descriptor graph,
                    cudnnBackendHeurMode_t mode, tws_cudnn_plan *plans, int found, int most) {
  descriptor proposal[MOST_PROPOSALS] = {NULL};
  tws_cudnn_status now = {0};
  const int proposals = proposals_for(lib, &now, request, graph, mode, proposal);
  if (!now.failed && proposals == 0) snprintf(now.text, sizeof now.text, "it proposes nothing");
  for (int i = 0; i < proposals && found < most; i++) {
    now = (tws_cudnn_status){0};
    found += accept(lib, &now, proposal[i], request, &plans[found]);
  }
  for (int i = 0; i < MOST_PROPOSALS; i++) tws_cudnn_release(lib, proposal[i]);
  if (!status->text[0]) *status = now; /* the first heuristic's reason is the most specific */
  return found;
}

int tws_cudnn_plans(const tws_cudnn *lib, tws_cudnn_status *status, descriptor *ops, int count,
                    const tws_cudnn_request *request, tws_cudnn_plan *plans, int most) {
  static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_FALLBACK};
  int found = 0;
  descriptor graph = start(lib, status, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  set(lib, status, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, ops);
  if (request->handle)
    set(lib, status, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &request->handle);
  graph = finish(lib, status, graph);
  for (int i = 0; i < 3 && graph && found < (request->handle ? most : 1); i++)
    found = plans_by(lib, status, request, graph, modes[i], plans, found, request->handle ? most : 1);
  tws_cudnn_release(lib, graph);
  return found;
}

tws_code tws_cudnn_execute(const tws_cudnn *lib, cudnnHandle_t handle, descriptor plan, const int64_t *number,
                           void *const *data, int count, void *workspace, cudaStream_t stream, tws_error *err) {
  tws_cudnn_status status = {0};
  descriptor pack = start(lib, &status, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  set(lib, &status, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, number);
  set(lib, &status, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, data);
  set(lib, &status, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  pack = finish(lib, &status, pack);
  if (!status.failed) note(lib, &status, lib->cudnnSetStream(handle, stream));
  if (!status.failed) note(lib, &status, lib->cudnnBackendExecute(handle, plan, pack));
  tws_cudnn_release(lib, pack);
  return status.failed ? tws_fail(err, TWS_RANK, NULL, "cuDNN: attention: %s", status.text) : TWS_OK;
}
#endif
