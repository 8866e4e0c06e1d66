/* Gradients of embedding tables that are exchanged as rows: models/operators_sparse.def. */
#include "real/host/kernels/kernels.h"

/* Moves rows from the table to the rows to send. Only the first token with an id has a place in the table, so that no
 * two threads move the same row. */
static void embedding_rows_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const int64_t width = call->work->d[1];
  const int32_t *places = call->operand[3];
  void *table = call->operand[1], *rows = call->operand[4];
  const host_range r = share(call->work->d[0], 1, thread, threads);
  for (int64_t t = r.begin; t < r.end; ++t) {
    const int64_t from = (int64_t)(places[t] - 1) * width, to = t * width;
    if (places[t] == 0) {
      FOR_TYPE(call->dtype[4], R, EACH_VECTOR(i, n, 0, width, v_put(R, rows, to + i, v_zero(), n)));
      continue;
    }
    FOR_TYPE(call->dtype[1], T, FOR_TYPE(call->dtype[4], R, EACH_VECTOR(i, n, 0, width, {
                                           v_put(R, rows, to + i, v_get(T, table, from + i, n), n);
                                           v_put(T, table, from + i, v_zero(), n);
                                         })));
  }
}

HOST_KERNEL(embedding_rows) {
  (void)err;
  const int64_t *d = call->work->d;
  const int32_t *ids = call->operand[0];
  int32_t *first = call->operand[2], *places = call->operand[3];
  memset(first, 0, (size_t)d[2] * sizeof *first);
  for (int64_t t = 0; t < d[0]; ++t) {
    const int64_t row = (int64_t)ids[t] - (int64_t)call->argument[0];
    places[t] = 0;
    if (row < 0 || row >= d[2] || first[row] != 0) continue;
    first[row] = (int32_t)(t + 1);
    places[t] = (int32_t)(row + 1);
  }
  run_parallel(call, 12.0 * (double)(d[0] * d[1]), embedding_rows_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

/* Adds some columns of the rows of all ranks to the table, in order. */
static void add_rows_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const int64_t *d = call->work->d, width = d[1];
  const int32_t *places = call->operand[0];
  const void *rows = call->operand[1];
  void *table = call->operand[2];
  const host_range r = share(width, 64, thread, threads);
  for (int64_t i = 0; i < d[3] * d[0]; ++i) {
    const int64_t from = i * width, to = (int64_t)(places[i] - 1) * width;
    if (places[i] < 1 || places[i] > d[2]) continue;
    FOR_TYPE(
        call->dtype[1], R,
        FOR_TYPE(call->dtype[2], T,
                 EACH_VECTOR(c, n, r.begin, r.end,
                             v_put(T, table, to + c, v_get(T, table, to + c, n) + v_get(R, rows, from + c, n), n))));
  }
}

HOST_KERNEL(add_rows) {
  (void)err;
  const int64_t *d = call->work->d;
  run_parallel(call, 12.0 * (double)(d[0] * d[1] * d[3]), add_rows_task, (void *)(uintptr_t)call);
  return TWS_OK;
}
