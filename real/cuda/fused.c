/* Graphs of attention for cuDNN. The library recognises the chain of operations below and runs it as one kernel that
 * keeps scores on chip (after Dao, "FlashAttention-2", 2023). Layouts are those of models/kernel.h: queries, keys and
 * values are views of one tensor, and so are their gradients; statistics are the natural logarithm of a row's sum. */
#include "real/cuda/fused.h"
#include "real/cuda/fused_library.h"
#include "real/cuda/module.h"

#ifdef TWS_HAVE_CUDNN
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/memory.h"

/* Tensors, by number. The first ones have data, the others live only in the graph. */
enum {
  NONE,
  Q,
  K, /* the transposed keys are the same data under another tensor number */
  K_TRANSPOSED,
  V,
  V_TRANSPOSED,
  O,
  STATS,
  D_O,
  D_Q,
  D_K,
  D_V,
  DELTA,
  D_Q_SUM,
  SCALE,
  MINUS_INFINITY,
  ONE,
  WINDOW,
  DOCUMENT_BEGIN, /* for each query, the index of its document's first key */
  DOCUMENT_END,   /* and the index after its last one */
  DATA_COUNT
};

enum { MOST_WAYS = 3 };

typedef struct plan {
  tws_work work;
  size_t stream_bytes;
  int deterministic;
  int plans; /* number of plans; 0: the library has none. If there are more than 1, they have not been timed yet */
  tws_cudnn_plan way[MOST_WAYS];
} plan;

struct tws_cuda_fused {
  tws_cudnn *lib;
  cudnnHandle_t handle; /* NULL: the graphs are for a described device */
  cudnnBackendDescriptor_t device;
  plan *plans;
  size_t count, capacity;
};

typedef struct shape {
  int64_t batch, seq, heads, kv_heads, head, row; /* row: number of elements from one token of qkv to the next */
} shape;

static shape shape_of(const tws_work *work) {
  const int64_t *d = work->d;
  return (shape){d[0], d[1], d[2], d[3], d[4], (d[2] + 2 * d[3]) * d[4]};
}

/* ---- tensors ---- */

typedef struct graph {
  const tws_cudnn *lib;
  const tws_work *work;
  shape s;
  cudnnDataType_t stored;
  cudnnBackendDescriptor_t tensor[64], op[40];
  int tensors, ops;
  tws_cudnn_status status; /* status of the first call that failed */
} graph;

typedef struct tensor_form {
  int64_t dim[4], stride[4];
} tensor_form;

static int add_tensor(graph *g, cudnnDataType_t type, const tensor_form *form, int is_virtual, int by_value) {
  const int number = g->tensors++;
  g->tensor[number] = tws_cudnn_tensor(g->lib, &g->status, number, type, form->dim, form->stride, is_virtual, by_value);
  return number;
}

/* Describes `heads` adjacent heads of the tensor qkv or of its gradient; the address that is bound to the tensor
 * selects the first head. */
static tensor_form packed(const shape *s, int64_t heads, int transposed) {
  const tensor_form f = {{s->batch, heads, s->seq, s->head}, {s->seq * s->row, s->head, s->row, 1}};
  const tensor_form t = {{s->batch, heads, s->head, s->seq}, {s->seq * s->row, s->head, 1, s->row}};
  return transposed ? t : f;
}
/* Describes a tensor [batch, seq, heads, head]. */
static tensor_form output(const shape *s) {
  return (tensor_form){{s->batch, s->heads, s->seq, s->head},
                       {s->seq * s->heads * s->head, s->head, s->heads * s->head, 1}};
}
/* Describes a tensor [batch, heads, rows, columns]. */
static tensor_form plain(const shape *s, int64_t rows, int64_t columns) {
  return (tensor_form){{s->batch, s->heads, rows, columns}, {s->heads * rows * columns, rows * columns, columns, 1}};
}
/* Describes one of the two numbers of each query in a tensor [batch, seq, 2], for all heads and keys. */
static tensor_form of_queries(const shape *s) {
  return (tensor_form){{s->batch, 1, s->seq, 1}, {2 * s->seq, 1, 2, 1}};
}
static tensor_form turned(const shape *s) {
  return (tensor_form){{s->batch, s->heads, s->seq, s->seq}, {s->heads * s->seq * s->seq, s->seq * s->seq, 1, s->seq}};
}

static void add_data(graph *g) {
  const shape *s = &g->s;
  const tensor_form one = {{1, 1, 1, 1}, {1, 1, 1, 1}};
  const tensor_form forms[DATA_COUNT] = {
      [NONE] = one,
      [Q] = packed(s, s->heads, 0),
      [K] = packed(s, s->kv_heads, 0),
      [K_TRANSPOSED] = packed(s, s->kv_heads, 1),
      [V] = packed(s, s->kv_heads, 0),
      [V_TRANSPOSED] = packed(s, s->kv_heads, 1),
      [O] = output(s),
      [STATS] = plain(s, s->seq, 1),
      [D_O] = output(s),
      [D_Q] = packed(s, s->heads, 0),
      [D_K] = packed(s, s->kv_heads, 0),
      [D_V] = packed(s, s->kv_heads, 0),
      [DELTA] = plain(s, s->seq, 1),
      [D_Q_SUM] = plain(s, s->seq, s->head),
      [SCALE] = one,
      [MINUS_INFINITY] = one,
      [ONE] = one,
      [WINDOW] = one,
      [DOCUMENT_BEGIN] = of_queries(s),
      [DOCUMENT_END] = of_queries(s),
  };
  for (int i = 0; i < DATA_COUNT; i++) {
    const int value = i == SCALE || i == MINUS_INFINITY || i == ONE || i == WINDOW;
    const int index = i == WINDOW || i == DOCUMENT_BEGIN || i == DOCUMENT_END;
    const int whole = value || i == STATS || i == DELTA || i == D_Q_SUM || i == NONE;
    add_tensor(g, index ? CUDNN_DATA_INT32 : whole ? CUDNN_DATA_FLOAT : g->stored, &forms[i], 0, value);
  }
}

/* ---- operations; each returns the number of its result, `to` or a new virtual tensor of the graph ---- */

static int made(graph *g, int to, cudnnDataType_t type, tensor_form form) {
  return to != NONE ? to : add_tensor(g, type, &form, 1, 0);
}
static tensor_form scores(const graph *g) {
  return plain(&g->s, g->s.seq, g->s.seq);
}

static int multiply(graph *g, int a, int b, int to, cudnnDataType_t type, tensor_form form) {
  const int c = made(g, to, type, form);
  g->op[g->ops++] = tws_cudnn_matmul(g->lib, &g->status, g->tensor[a], g->tensor[b], g->tensor[c]);
  return c;
}

static int map_to(graph *g, cudnnPointwiseMode_t mode, int x, int b, int to, tensor_form form) {
  const int y = made(g, to, CUDNN_DATA_FLOAT, form);
  g->op[g->ops++] = tws_cudnn_pointwise(g->lib, &g->status, mode, CUDNN_DATA_FLOAT, -1, g->tensor[x],
                                        b ? g->tensor[b] : NULL, NULL, g->tensor[y]);
  return y;
}

static int reduce(graph *g, cudnnReduceTensorOp_t operation, int x, int to, tensor_form form) {
  const int y = made(g, to, CUDNN_DATA_FLOAT, form);
  g->op[g->ops++] = tws_cudnn_reduction(g->lib, &g->status, operation, g->tensor[x], g->tensor[y]);
  return y;
}

static int reshape(graph *g, int x, int to, cudnnDataType_t type, tensor_form form) {
  const int y = made(g, to, type, form);
  g->op[g->ops++] = tws_cudnn_reshape(g->lib, &g->status, g->tensor[x], g->tensor[y]);
  return y;
}

/* Adds an operation on indices, and returns its result: integers or, of a comparison, truth values. */
static int on_indices(graph *g, cudnnPointwiseMode_t mode, int64_t axis, int x, int b, cudnnDataType_t type) {
  const tensor_form form = scores(g);
  const int y = add_tensor(g, type, &form, 1, 0);
  g->op[g->ops++] = tws_cudnn_pointwise(g->lib, &g->status, mode, type, axis, g->tensor[x],
                                        b != NONE ? g->tensor[b] : NULL, NULL, g->tensor[y]);
  return y;
}

/* Adds a mask: scores x become minus infinity unless the comparison of the indices a and b holds. */
static int mask_unless(graph *g, int x, cudnnPointwiseMode_t comparison, int a, int b) {
  const tensor_form form = scores(g);
  const int seen = on_indices(g, comparison, -1, a, b, CUDNN_DATA_BOOLEAN);
  const int y = add_tensor(g, CUDNN_DATA_FLOAT, &form, 1, 0);
  g->op[g->ops++] = tws_cudnn_pointwise(g->lib, &g->status, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1,
                                        g->tensor[x], g->tensor[MINUS_INFINITY], g->tensor[seen], g->tensor[y]);
  return y;
}

/* Adds the masks of a work (models/attention.h says which keys a query sees): keys after the query unless attention is
 * bidirectional, keys whose distance is the window or more, and keys of other documents. Every query sees itself, so
 * no sum of exponentials is 0. */
static int mask(graph *g, int x) {
  const int causal = !(g->work->flags & TWS_BIDIRECTIONAL), documents = (g->work->flags & TWS_DOCUMENTS) != 0;
  const int window = g->work->d[6] > 0;
  if (!causal && !documents && !window) return x;
  const int query = on_indices(g, CUDNN_POINTWISE_GEN_INDEX, 2, x, NONE, CUDNN_DATA_INT32);
  const int key = on_indices(g, CUDNN_POINTWISE_GEN_INDEX, 3, x, NONE, CUDNN_DATA_INT32);
  if (causal) x = mask_unless(g, x, CUDNN_POINTWISE_CMP_GE, query, key);
  if (window) {
    const int end = on_indices(g, CUDNN_POINTWISE_ADD, -1, key, WINDOW, CUDNN_DATA_INT32);
    x = mask_unless(g, x, CUDNN_POINTWISE_CMP_GT, end, query);
  }
  if (window && !causal) {
    const int end = on_indices(g, CUDNN_POINTWISE_ADD, -1, query, WINDOW, CUDNN_DATA_INT32);
    x = mask_unless(g, x, CUDNN_POINTWISE_CMP_GT, end, key);
  }
  if (documents) x = mask_unless(g, x, CUDNN_POINTWISE_CMP_GE, key, DOCUMENT_BEGIN);
  if (documents && !causal) x = mask_unless(g, x, CUDNN_POINTWISE_CMP_LT, key, DOCUMENT_END);
  return x;
}

/* Adds the product of queries and keys, scaled. */
static int products(graph *g) {
  const int x = multiply(g, Q, K_TRANSPOSED, NONE, CUDNN_DATA_FLOAT, scores(g));
  return map_to(g, CUDNN_POINTWISE_MUL, x, SCALE, NONE, scores(g));
}

static void forward(graph *g) {
  const tensor_form row = plain(&g->s, g->s.seq, 1);
  const int x = mask(g, products(g));
  const int largest = reduce(g, CUDNN_REDUCE_TENSOR_MAX, x, NONE, row);
  const int e = map_to(g, CUDNN_POINTWISE_EXP, map_to(g, CUDNN_POINTWISE_SUB, x, largest, NONE, scores(g)), NONE, NONE,
                       scores(g));
  const int sum = reduce(g, CUDNN_REDUCE_TENSOR_ADD, e, NONE, row);
  map_to(g, CUDNN_POINTWISE_ADD, largest, map_to(g, CUDNN_POINTWISE_LOG, sum, NONE, NONE, row), STATS, row);
  const tensor_form form = scores(g);
  const int p = add_tensor(g, g->stored, &form, 1, 0);
  map_to(g, CUDNN_POINTWISE_DIV, e, sum, p, form);
  multiply(g, p, V, O, g->stored, output(&g->s));
}

/* Adds the gradients of keys or values: those of all query heads, summed over the query heads that share a key head. */
static void keys_gradient(graph *g, int weights, int rows, int to) {
  const shape *s = &g->s;
  const int turned_weights = reshape(g, weights, NONE, g->stored, turned(s));
  if (s->heads == s->kv_heads) {
    multiply(g, turned_weights, rows, to, g->stored, packed(s, s->heads, 0));
    return;
  }
  const int all = multiply(g, turned_weights, rows, NONE, g->stored, plain(s, s->seq, s->head));
  reduce(g, CUDNN_REDUCE_TENSOR_ADD, all, to, packed(s, s->kv_heads, 0));
}

static void backward(graph *g, int deterministic) {
  const shape *s = &g->s;
  const tensor_form row = plain(s, s->seq, 1);
  const int both = map_to(g, CUDNN_POINTWISE_MUL, D_O, O, NONE, plain(s, s->seq, s->head));
  map_to(g, CUDNN_POINTWISE_MUL, reduce(g, CUDNN_REDUCE_TENSOR_ADD, both, NONE, row), ONE, DELTA, row);
  const int x = mask(g, map_to(g, CUDNN_POINTWISE_SUB, products(g), STATS, NONE, scores(g)));
  const int p = map_to(g, CUDNN_POINTWISE_EXP, x, NONE, NONE, scores(g));
  keys_gradient(g, p, D_O, D_V);
  int ds = multiply(g, D_O, V_TRANSPOSED, NONE, CUDNN_DATA_FLOAT, scores(g));
  ds = map_to(g, CUDNN_POINTWISE_SUB, ds, DELTA, NONE, scores(g));
  ds = map_to(g, CUDNN_POINTWISE_MUL, ds, p, NONE, scores(g));
  ds = map_to(g, CUDNN_POINTWISE_MUL, ds, SCALE, NONE, scores(g));
  keys_gradient(g, ds, Q, D_K);
  const int k = reshape(g, K_TRANSPOSED, NONE, g->stored, packed(s, s->kv_heads, 0));
  if (deterministic) {
    multiply(g, ds, k, D_Q, g->stored, packed(s, s->heads, 0));
    return;
  }
  multiply(g, ds, k, D_Q_SUM, CUDNN_DATA_FLOAT, plain(s, s->seq, s->head));
  map_to(g, CUDNN_POINTWISE_IDENTITY, D_Q_SUM, NONE, D_Q, packed(s, s->heads, 0));
}

/* ---- plans ---- */

/* Returns the size of the buffer in which the gradient of queries is summed (the library clears it). It is the first
 * part of the operand "workspace"; the library's own workspace follows. */
static size_t sum_bytes(const tws_work *work, int deterministic) {
  const shape s = shape_of(work);
  if (work->code == TWS_KERNEL_ATTENTION || deterministic) return 0;
  return (size_t)(s.batch * s.seq * s.heads * s.head) * sizeof(float);
}
static size_t delta_bytes(const tws_work *work) {
  const shape s = shape_of(work);
  return work->code == TWS_KERNEL_ATTENTION ? 0 : (size_t)(s.batch * s.seq * s.heads) * sizeof(float);
}
static size_t aligned(size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

/* Returns the bytes of the workspace operand that remain for the library; delta is in the stream's memory. */
static size_t operand_bytes(const tws_work *work, int deterministic) {
  const size_t all = tws_work_workspace(work, TWS_BACKEND_CUDA, 0), used = aligned(sum_bytes(work, deterministic));
  return all > used ? all - used : 0;
}
static size_t stream_bytes_for(const tws_work *work, size_t stream_bytes) {
  const size_t used = aligned(delta_bytes(work));
  return stream_bytes > used ? stream_bytes - used : 0;
}

/* Returns 1 for attention that cuDNN is given: queries, keys and values in one operand, without biases, dropout, caps
 * and numbers of keys by sequence. Attention that is not plain causal only if the user requests it, since no device has
 * run it. */
static int possible(const tws_work *work) {
  const shape s = shape_of(work);
  const uint32_t masks = TWS_BIDIRECTIONAL | TWS_DOCUMENTS;
  if ((work->flags & ~masks) || work->f[2] != 0 || (work->d[5] > 0 && work->d[5] != work->d[1])) return 0;
  if ((work->flags || work->d[6] > 0) && !tws_cuda_env_is_set("TWINSPEED_CUDA_FUSED_MASKS")) return 0;
  return work->dtype != TWS_F32 && s.batch > 0 && s.seq > 1 && s.kv_heads > 0 && s.heads % s.kv_heads == 0 &&
         s.head % 8 == 0 && s.head >= 8 && s.head <= 256;
}

static tws_code make_plan(tws_cuda_fused *fused, plan *p, tws_error *err) {
  graph g = {.lib = fused->lib,
             .work = &p->work,
             .s = shape_of(&p->work),
             .stored = p->work.dtype == TWS_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF};
  const size_t operand = operand_bytes(&p->work, p->deterministic),
               stream = stream_bytes_for(&p->work, p->stream_bytes);
  add_data(&g);
  if (p->work.code == TWS_KERNEL_ATTENTION)
    forward(&g);
  else
    backward(&g, p->deterministic);
  const tws_cudnn_request request = {.handle = fused->handle,
                                     .device = fused->device,
                                     .limit = operand > stream ? operand : stream,
                                     .deterministic = p->deterministic};
  p->plans = tws_cudnn_plans(fused->lib, &g.status, g.op, g.ops, &request, p->way, p->deterministic ? 1 : MOST_WAYS);
  for (int i = 0; i < g.ops; i++) tws_cudnn_release(fused->lib, g.op[i]);
  for (int i = 0; i < g.tensors; i++) tws_cudnn_release(fused->lib, g.tensor[i]);
  if (p->plans) return TWS_OK;
  return tws_fail(err, TWS_UNSUPPORTED, NULL, "cuDNN has no attention for this work: %s", g.status.text);
}

static tws_code find(tws_cuda_fused *fused, const tws_work *work, size_t stream_bytes, int deterministic, plan **out,
                     tws_error *err) {
  *out = NULL;
  if (!possible(work))
    return tws_fail(err, TWS_UNSUPPORTED, NULL,
                    "cuDNN is given causal attention of 16-bit types, head sizes up to 256 in steps of 8, without "
                    "dropout and biases; with windows or documents, or bidirectional, if "
                    "TWINSPEED_CUDA_FUSED_MASKS=1 requests it");
  if (delta_bytes(work) > stream_bytes)
    return tws_fail(err, TWS_UNSUPPORTED, NULL, "the row products of attention need more than %zu bytes", stream_bytes);
  for (size_t i = 0; i < fused->count; i++) {
    plan *p = &fused->plans[i];
    if (p->stream_bytes != stream_bytes || p->deterministic != deterministic ||
        memcmp(&p->work, work, sizeof *work) != 0)
      continue;
    *out = p;
    return p->plans ? TWS_OK : tws_fail(err, TWS_UNSUPPORTED, NULL, "cuDNN has no attention for this work");
  }
  if (tws_reserve(&fused->plans, &fused->capacity, fused->count + 1, sizeof *fused->plans) != 0)
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  plan *p = *out = &fused->plans[fused->count++];
  *p = (plan){.work = *work, .stream_bytes = stream_bytes, .deterministic = deterministic};
  return make_plan(fused, p, err);
}

tws_code tws_cuda_fused_prepare(tws_cuda_fused *fused, const tws_work *work, size_t stream_bytes, int deterministic,
                                tws_error *err) {
  plan *unused = NULL;
  return find(fused, work, stream_bytes, deterministic, &unused, err);
}

/* ---- running ---- */

typedef struct binding {
  int64_t number[DATA_COUNT];
  void *data[DATA_COUNT];
  int count;
} binding;

static void bind(binding *b, int number, const void *data) {
  b->number[b->count] = number;
  b->data[b->count++] = (void *)(uintptr_t)data;
}

/* Binds queries, keys and values of qkv, or their gradients, to their tensor numbers. */
static void bind_packed(binding *b, const shape *s, void *base, int q, int k, int v) {
  char *at = base;
  const size_t element = 2;
  bind(b, q, at);
  bind(b, k, at + (size_t)(s->heads * s->head) * element);
  bind(b, v, at + (size_t)((s->heads + s->kv_heads) * s->head) * element);
}

static int is_aligned(const tws_cuda_call *call) {
  uintptr_t bits = 0;
  for (int i = 0; i < call->count; i++) bits |= (uintptr_t)call->operand[i];
  return bits % 16 == 0;
}

/* Arguments for running an execution plan. */
typedef struct attempt {
  const tws_cuda_fused *fused;
  const tws_cuda_call *call;
  const binding *binding;
  char *in_stream, *in_operand; /* addresses for the library's workspace: in_stream is used if the stream's memory is
                                 * large enough, otherwise in_operand */
  size_t stream_bytes;
} attempt;

static tws_code run_way(const attempt *t, const tws_cudnn_plan *way, tws_error *err) {
  void *of_library = way->workspace > t->stream_bytes ? t->in_operand : t->in_stream;
  return tws_cudnn_execute(t->fused->lib, t->fused->handle, way->plan, t->binding->number, t->binding->data,
                           t->binding->count, of_library, t->call->stream, err);
}

/* Measures a plan in milliseconds: the minimum of several runs, after one that loads its kernels. */
static tws_code time_way(const attempt *t, const tws_cudnn_plan *way, cudaEvent_t start, cudaEvent_t stop,
                         double *milliseconds, tws_error *err) {
  enum { TRIES = 3 };
  *milliseconds = INFINITY;
  TWS_TRY(run_way(t, way, err));
  for (int i = 0; i < TRIES; i++) {
    float elapsed = 0;
    cudaError_t status = cudaEventRecord(start, t->call->stream);
    if (status == cudaSuccess) TWS_TRY(run_way(t, way, err));
    if (status == cudaSuccess) status = cudaEventRecord(stop, t->call->stream);
    if (status == cudaSuccess) status = cudaEventSynchronize(stop);
    if (status == cudaSuccess) status = cudaEventElapsedTime(&elapsed, start, stop);
    if (status != cudaSuccess) return tws_cuda_fail(err, status, "timing attention");
    *milliseconds = fmin(*milliseconds, (double)elapsed);
  }
  return TWS_OK;
}

/* Keeps the fastest plan, or the first if plans are not timed. Attention only overwrites its outputs, so it can be
 * repeated. */
static tws_code keep_one(const attempt *t, plan *p, int timed, tws_error *err) {
  cudaEvent_t start = NULL, stop = NULL;
  double least = INFINITY;
  int best = 0;
  cudaError_t status = timed ? cudaEventCreate(&start) : cudaSuccess;
  if (timed && status == cudaSuccess) status = cudaEventCreate(&stop);
  tws_code code = status == cudaSuccess ? TWS_OK : tws_cuda_fail(err, status, "an event");
  for (int i = 0; timed && i < p->plans && status == cudaSuccess; i++) {
    double milliseconds = 0;
    code = time_way(t, &p->way[i], start, stop, &milliseconds, err);
    if (code == TWS_OK && milliseconds < least) least = milliseconds, best = i;
  }
  if (isfinite(least)) code = TWS_OK; /* plans that failed although they were proposed are ignored */
  if (start) cudaEventDestroy(start);
  if (stop) cudaEventDestroy(stop);
  if (code != TWS_OK) return code;
  const tws_cudnn_plan kept = p->way[best];
  for (int i = 0; i < p->plans; i++)
    if (i != best) tws_cudnn_release(t->fused->lib, p->way[i].plan);
  p->way[0] = kept;
  p->plans = 1;
  return TWS_OK;
}

tws_code tws_cuda_fused_attention(tws_cuda_fused *fused, const tws_cuda_call *call,
                                  const tws_cuda_fused_workspace *workspace, tws_error *err) {
  const tws_work *work = call->work;
  const shape s = shape_of(work);
  const int gradient = work->code == TWS_KERNEL_ATTENTION_GRAD;
  plan *p = NULL;
  if (!fused || !fused->handle) return tws_fail(err, TWS_UNSUPPORTED, NULL, "there is no cuDNN, or one before 9.10");
  if (!is_aligned(call)) return tws_fail(err, TWS_UNSUPPORTED, NULL, "operands are not aligned to 16 bytes");
  TWS_TRY(find(fused, work, workspace->stream_bytes, workspace->deterministic, &p, err));
  float scale = work->f[0] != 0 ? (float)work->f[0] : 1.0f / sqrtf((float)s.head), minus_infinity = -INFINITY;
  float one = 1.0f;
  int32_t window = (int32_t)work->d[6];
  const int documents = (work->flags & TWS_DOCUMENTS) != 0, first_mask = gradient ? 5 : 3;
  binding b = {.count = 0};
  void *const qkv = call->operand[gradient ? 1 : 0];
  char *operand = call->operand[first_mask + documents], *stream = workspace->data;
  const size_t sums = aligned(sum_bytes(work, workspace->deterministic));
  bind_packed(&b, &s, qkv, Q, K_TRANSPOSED, gradient ? V_TRANSPOSED : V);
  bind(&b, SCALE, &scale);
  if (work->d[6] > 0) bind(&b, WINDOW, &window);
  if (documents) bind(&b, DOCUMENT_BEGIN, call->operand[first_mask]);
  if (documents && (work->flags & TWS_BIDIRECTIONAL))
    bind(&b, DOCUMENT_END, (const int32_t *)call->operand[first_mask] + 1);
  if (work->d[6] > 0 || work->flags != TWS_BIDIRECTIONAL) bind(&b, MINUS_INFINITY, &minus_infinity);
  if (gradient) {
    bind(&b, ONE, &one);
    bind(&b, D_O, call->operand[0]);
    bind(&b, O, call->operand[2]);
    bind(&b, STATS, call->operand[3]);
    bind_packed(&b, &s, call->operand[4], D_Q, D_K, D_V);
    bind(&b, DELTA, stream);
    if (sums) bind(&b, D_Q_SUM, operand);
  } else {
    bind(&b, O, call->operand[1]);
    bind(&b, STATS, call->operand[2]);
  }
  const attempt t = {.fused = fused,
                     .call = call,
                     .binding = &b,
                     .in_stream = stream + aligned(delta_bytes(work)), /* aligned to 256 bytes; an operand need not be
                                                                        * aligned */
                     .in_operand = operand + sums,
                     .stream_bytes = stream_bytes_for(work, workspace->stream_bytes)};
  if (p->plans > 1) TWS_TRY(keep_one(&t, p, workspace->timed, err));
  return run_way(&t, &p->way[0], err);
}

/* ---- creation and destruction ---- */

tws_code tws_cuda_fused_create(const char *described, tws_cuda_fused **out, tws_error *err) {
  *out = NULL;
  tws_cuda_fused *fused = tws_calloc(1, sizeof *fused);
  if (!fused) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tws_code code = tws_cudnn_load(&fused->lib, err);
  if (code == TWS_OK && !described) code = tws_cudnn_handle(fused->lib, &fused->handle, err);
  if (code == TWS_OK && described) code = tws_cudnn_device(fused->lib, described, &fused->device, err);
  if (code != TWS_OK) {
    tws_cuda_fused_destroy(fused);
    return code;
  }
  *out = fused;
  return TWS_OK;
}

void tws_cuda_fused_destroy(tws_cuda_fused *fused) {
  if (!fused) return;
  for (size_t i = 0; i < fused->count; i++)
    for (int k = 0; k < fused->plans[i].plans; k++) tws_cudnn_release(fused->lib, fused->plans[i].way[k].plan);
  tws_cudnn_release(fused->lib, fused->device);
  tws_cudnn_unload(fused->lib, fused->handle);
  tws_free(fused->plans);
  tws_free(fused);
}

size_t tws_cuda_fused_version(const tws_cuda_fused *fused) {
  return fused ? tws_cudnn_version(fused->lib) : 0;
}

tws_code tws_cuda_attention_for(const char *described, const tws_work *work, int deterministic, tws_error *err) {
  tws_cuda_fused *fused = NULL;
  TWS_TRY(tws_cuda_fused_create(described, &fused, err));
  const tws_code code = tws_cuda_fused_prepare(fused, work, TWS_CUDA_STREAM_BYTES, deterministic, err);
  tws_cuda_fused_destroy(fused);
  return code;
}

#else /* the module was built without cuDNN's headers */

tws_code tws_cuda_fused_create(const char *described, tws_cuda_fused **out, tws_error *err) {
  (void)described;
  *out = NULL;
  return tws_fail(err, TWS_UNSUPPORTED, "build where cudnn_graph.h is", "this build knows no cuDNN");
}
void tws_cuda_fused_destroy(tws_cuda_fused *fused) {
  (void)fused;
}
size_t tws_cuda_fused_version(const tws_cuda_fused *fused) {
  (void)fused;
  return 0;
}
tws_code tws_cuda_fused_prepare(tws_cuda_fused *fused, const tws_work *work, size_t stream_bytes, int deterministic,
                                tws_error *err) {
  (void)fused, (void)work, (void)stream_bytes, (void)deterministic;
  return tws_fail(err, TWS_UNSUPPORTED, NULL, "this build knows no cuDNN");
}
tws_code tws_cuda_attention_for(const char *described, const tws_work *work, int deterministic, tws_error *err) {
  (void)described, (void)work, (void)deterministic;
  return tws_fail(err, TWS_UNSUPPORTED, "build where cudnn_graph.h is", "this build knows no cuDNN");
}
tws_code tws_cuda_fused_attention(tws_cuda_fused *fused, const tws_cuda_call *call,
                                  const tws_cuda_fused_workspace *workspace, tws_error *err) {
  (void)fused, (void)call, (void)workspace;
  return tws_fail(err, TWS_UNSUPPORTED, NULL, "this build knows no cuDNN");
}
#endif
