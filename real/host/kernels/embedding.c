/* Token and position embeddings. */
#include "models/zigzag.h"
#include "real/host/kernels/kernels.h"

/* Returns the table's row for an id; -1 if the table, which may be a rank's shard of the vocabulary, does not contain
 * it. */
VECTOR_INLINE int64_t table_row(const tws_host_call *call, int32_t id) {
  const int64_t row = (int64_t)id - (int64_t)call->argument[0];
  return row >= 0 && row < call->work->d[2] ? row : -1;
}

static void embedding_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const int64_t *d = call->work->d;
  const int64_t width = d[1], positions = d[3], seq = d[4], gap = (int64_t)call->argument[1];
  const int keep = call->work->flags & TWS_ACCUMULATE;
  const int32_t *ids = call->operand[0];
  const void *wte = call->operand[1], *wpe = positions ? call->operand[2] : NULL;
  void *x = call->operand[positions ? 3 : 2];
  host_range r = share(d[0], 1, thread, threads);
  for (int64_t t = r.begin; t < r.end; ++t) {
    const int64_t row = table_row(call, ids[t]), token = row * width;
    const int64_t position = positions ? tws_zigzag_position(seq, gap, t % seq) * width : 0, out = t * width;
    FOR_TYPE(call->dtype[1], T, EACH_VECTOR(i, n, 0, width, {
               vf v = row < 0 ? v_zero() : v_get(T, wte, token + i, n);
               if (wpe) v += v_get(T, wpe, position + i, n);
               if (keep) v += v_get(T, x, out + i, n);
               v_put(T, x, out + i, v, n);
             }));
  }
}
HOST_KERNEL(embedding) {
  const int64_t *d = call->work->d;
  if (d[3] && (d[4] < 1 || d[4] + (int64_t)call->argument[1] > d[3]))
    return tws_fail(err, TWS_INVALID, "use a shorter sequence", "a sequence of %lld needs more than the %lld positions",
                    (long long)d[4], (long long)d[3]);
  run_parallel(call, 12.0 * (double)(d[0] * d[1]), embedding_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

VECTOR_INLINE int64_t next_with_id(const int32_t *ids, int64_t from, int64_t tokens, int32_t id) {
  int64_t t = from;
  for (; t + LANES <= tokens; t += LANES) {
    vi hit = *(const vi_unaligned *)(ids + t) == id;
    int32_t any = 0;
    for (int i = 0; i < LANES; ++i) any |= hit[i];
    if (any) break;
  }
  while (t < tokens && ids[t] != id) ++t;
  return t;
}

/* Computes some columns of the table's gradient. All tokens of one id are summed in float32, in token order, before the
 * row is updated, so neither the storage type nor the number of threads changes the sum. */
static void embedding_grad_task(void *arg, int thread, int threads) {
  enum { CHUNK = 512 };
  const tws_host_call *call = arg;
  const int64_t *d = call->work->d;
  const int64_t tokens = d[0], width = d[1], vocabulary = d[2];
  const int32_t *ids = call->operand[0];
  const void *dx = call->operand[1];
  void *dwte = call->operand[2];
  const int keep = call->work->flags & TWS_ACCUMULATE;
  host_range r = share(width, 64, thread, threads);
  if (r.begin == r.end) return;
  if (!keep)
    for (int64_t row = 0; row < vocabulary; ++row)
      memset(at_mutable(call->dtype[2], dwte, row * width + r.begin), 0,
             (size_t)(r.end - r.begin) * (call->dtype[2] == TWS_F32 ? 4U : 2U));
  for (int64_t first = 0; first < tokens; ++first) {
    const int64_t row = table_row(call, ids[first]);
    /* the gradient of a token id is summed at the first token with this id */
    if (row < 0 || next_with_id(ids, 0, tokens, ids[first]) < first) continue;
    for (int64_t c = r.begin; c < r.end; c += CHUNK) {
      const int64_t columns = r.end - c < CHUNK ? r.end - c : CHUNK, out = row * width + c;
      float sum[CHUNK];
      memset(sum, 0, sizeof sum);
      for (int64_t t = first; t < tokens; t = next_with_id(ids, t + 1, tokens, ids[first])) {
        const int64_t in = t * width + c;
        FOR_TYPE(call->dtype[1], T,
                 EACH_VECTOR(i, n, 0, columns, v_put(TWS_F32, sum, i, v_load(sum + i) + v_get(T, dx, in + i, n), n)));
      }
      FOR_TYPE(call->dtype[2], T, EACH_VECTOR(i, n, 0, columns, {
                 vf v = v_load(sum + i);
                 if (keep) v += v_get(T, dwte, out + i, n);
                 v_put(T, dwte, out + i, v, n);
               }));
    }
  }
}
HOST_KERNEL(embedding_grad) {
  (void)err;
  const int64_t *d = call->work->d;
  double rows = (double)(call->work->flags & TWS_ACCUMULATE ? d[0] : d[0] + d[2]);
  run_parallel(call, 8.0 * rows * (double)d[1], embedding_grad_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

static void position_grad_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const int64_t *d = call->work->d;
  const int64_t tokens = d[0], width = d[1], positions = d[2], seq = d[3], gap = (int64_t)call->argument[0];
  const void *dx = call->operand[0];
  void *dwpe = call->operand[1];
  const int keep = call->work->flags & TWS_ACCUMULATE;
  host_range r = share(positions, 1, thread, threads);
  for (int64_t p = r.begin; p < r.end; ++p) {
    const int64_t first = tws_zigzag_token(seq, gap, p);
    if (first < 0) {
      if (!keep)
        memset(at_mutable(call->dtype[1], dwpe, p * width), 0, (size_t)width * (call->dtype[1] == TWS_F32 ? 4U : 2U));
      continue;
    }
    FOR_TYPE(call->dtype[0], X, FOR_TYPE(call->dtype[1], G, EACH_VECTOR(i, n, 0, width, {
                                           vf sum = v_zero();
                                           for (int64_t t = first; t < tokens; t += seq)
                                             sum += v_get(X, dx, t * width + i, n);
                                           if (keep) sum += v_get(G, dwpe, p * width + i, n);
                                           v_put(G, dwpe, p * width + i, sum, n);
                                         })));
  }
}
HOST_KERNEL(position_grad) {
  const int64_t *d = call->work->d;
  if (d[3] < 1 || d[3] + (int64_t)call->argument[0] > d[2])
    return tws_fail(err, TWS_INVALID, "use a shorter sequence", "a sequence of %lld needs more than the %lld positions",
                    (long long)d[3], (long long)d[2]);
  run_parallel(call, 8.0 * (double)((d[0] + d[2]) * d[1]), position_grad_task, (void *)(uintptr_t)call);
  return TWS_OK;
}
