/* Kernels that permute elements. */
#include "real/host/kernels/kernels.h"

VECTOR_INLINE size_t bytes_of(tws_dtype type, int64_t count) {
  return (size_t)count * (type == TWS_F32 || type == TWS_I32 ? 4U : 2U);
}

/* ---- x[a,b,width] -> y[b,a,width] ---- */

enum { TILE = 32, WIDE_ROW = 64 /* from this number of elements on, a row is copied by itself */ };

/* Transposes the plane a x b tile by tile, so that cache lines that are written in parts stay in the cache until they
 * are full. i: rows of x, j: rows of y. */
#define MOVE_TILES(E, from, to)                                    \
  for (int64_t i0 = rows.begin; i0 < rows.end; i0 += TILE)         \
    for (int64_t j0 = columns.begin; j0 < columns.end; j0 += TILE) \
      for (int64_t j = j0; j < j0 + TILE && j < columns.end; ++j)  \
        for (int64_t i = i0; i < i0 + TILE && i < rows.end; ++i)   \
          for (int64_t c = 0; c < width; ++c)                      \
  ((E *)(to))[(j * a + i) * width + c] = ((const E *)(from))[(i * b + j) * width + c]

static void transpose_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const int64_t a = call->work->d[0], b = call->work->d[1], width = call->work->d[2];
  const tws_dtype type = call->dtype[0];
  const void *x = call->operand[0];
  void *y = call->operand[1];
  if (width >= WIDE_ROW) {
    host_range r = share(a * b, 1, thread, threads);
    for (int64_t row = r.begin; row < r.end; ++row) {
      const int64_t j = row / a, i = row % a;
      memcpy(at_mutable(type, y, row * width), at(type, x, (i * b + j) * width), bytes_of(type, width));
    }
    return;
  }
  /* threads divide the longer dimension */
  const host_range rows = a > b ? share(a, TILE, thread, threads) : (host_range){0, a};
  const host_range columns = a > b ? (host_range){0, b} : share(b, TILE, thread, threads);
  if (type == TWS_F32 || type == TWS_I32)
    MOVE_TILES(uint32_t, x, y);
  else
    MOVE_TILES(uint16_t, x, y);
}
HOST_KERNEL(transpose) {
  (void)err;
  const int64_t *d = call->work->d;
  run_parallel(call, 8.0 * (double)(d[0] * d[1] * d[2]), transpose_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

/* ---- heads to ranks and back ---- */

/* The ranges of consecutive columns of queries, keys and values that a rank receives. */
typedef struct heads_layout {
  int64_t ranks, head, row;  /* row: elements per token before the exchange */
  int64_t query, share, out; /* elements per token on one rank: of queries; of keys; in total */
  int64_t q, kv;             /* numbers of query heads and key heads */
} heads_layout;

static heads_layout layout_of(const tws_work *work) {
  const int64_t *d = work->d;
  heads_layout l = {.ranks = d[1], .q = d[2], .kv = d[3], .head = d[4]};
  l.row = (l.q + 2 * l.kv) * l.head;
  l.query = l.q / l.ranks * l.head;
  l.share = (l.kv == 0 ? 0 : l.kv < l.ranks ? 1 : l.kv / l.ranks) * l.head;
  l.out = l.query + 2 * l.share;
  return l;
}

/* Returns the first column of a rank's keys; its values begin kv heads later. */
VECTOR_INLINE int64_t key_column(const heads_layout *l, int64_t rank) {
  return (l->q + rank * l->kv / l->ranks) * l->head;
}

static tws_code check_heads(const tws_work *work, tws_error *err) {
  const int64_t *d = work->d;
  if (d[1] >= 1 && d[2] % d[1] == 0 && (d[3] % d[1] == 0 || (d[3] > 0 && d[1] % d[3] == 0))) return TWS_OK;
  return tws_fail(err, TWS_INVALID, "query heads must be a multiple of the ranks, key heads a multiple or a divisor",
                  "%lld query heads and %lld key heads for %lld ranks", (long long)d[2], (long long)d[3],
                  (long long)d[1]);
}

static void pack_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const heads_layout l = layout_of(call->work);
  const tws_dtype type = call->dtype[0];
  const int64_t tokens = call->work->d[0];
  host_range r = share(tokens * l.ranks, 1, thread, threads);
  for (int64_t row = r.begin; row < r.end; ++row) { /* a row of y */
    const int64_t rank = row / tokens, token = row % tokens, key = key_column(&l, rank);
    const void *x = at(type, call->operand[0], token * l.row);
    void *y = at_mutable(type, call->operand[1], row * l.out);
    memcpy(y, at(type, x, rank * l.query), bytes_of(type, l.query));
    memcpy(at_mutable(type, y, l.query), at(type, x, key), bytes_of(type, l.share));
    memcpy(at_mutable(type, y, l.query + l.share), at(type, x, key + l.kv * l.head), bytes_of(type, l.share));
  }
}
HOST_KERNEL(heads_pack) {
  TWS_TRY(check_heads(call->work, err));
  run_parallel(call, tws_work_bytes(call->work), pack_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

/* Sums one range of keys or values of a token over the `copies` ranks that have copies of it, in the order of ranks. */
VECTOR_INLINE void join_copies(tws_dtype T, void *x, const void *y, int64_t count, int64_t copies, int64_t stride) {
  EACH_VECTOR(i, n, 0, count, {
    vf sum = v_get(T, y, i, n);
    for (int64_t r = 1; r < copies; ++r) sum += v_get(T, y, r * stride + i, n);
    v_put(T, x, i, sum, n);
  });
}

static void unpack_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const heads_layout l = layout_of(call->work);
  const tws_dtype type = call->dtype[0];
  /* elements from one rank's data to the next rank's */
  const int64_t tokens = call->work->d[0], stride = tokens * l.out;
  const int64_t copies = l.kv > 0 && l.kv < l.ranks ? l.ranks / l.kv : 1;
  host_range r = share(tokens, 1, thread, threads);
  for (int64_t token = r.begin; token < r.end; ++token) {
    void *x = at_mutable(type, call->operand[1], token * l.row);
    for (int64_t rank = 0; rank < l.ranks; ++rank) {
      const void *y = at(type, call->operand[0], rank * stride + token * l.out);
      memcpy(at_mutable(type, x, rank * l.query), y, bytes_of(type, l.query));
      if (rank % copies != 0) continue; /* included in the sum of an earlier rank */
      const int64_t key = key_column(&l, rank);
      FOR_TYPE(type, T, {
        join_copies(T, at_mutable(T, x, key), at(T, y, l.query), l.share, copies, stride);
        join_copies(T, at_mutable(T, x, key + l.kv * l.head), at(T, y, l.query + l.share), l.share, copies, stride);
      });
    }
  }
}
HOST_KERNEL(heads_unpack) {
  TWS_TRY(check_heads(call->work, err));
  run_parallel(call, tws_work_bytes(call->work), unpack_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

/* ---- queries in one tensor, keys and values in another ---- */

/* Elements per token of queries, of keys and values, and in total. */
typedef struct split_layout {
  int64_t q, kv, row;
} split_layout;

static split_layout split_of(const tws_work *work) {
  const int64_t *d = work->d;
  return (split_layout){.q = d[1] * d[3], .kv = 2 * d[2] * d[3], .row = (d[1] + 2 * d[2]) * d[3]};
}

static void split_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const split_layout l = split_of(call->work);
  const tws_dtype type = call->dtype[0];
  host_range r = share(call->work->d[0], 1, thread, threads);
  for (int64_t t = r.begin; t < r.end; ++t) {
    const void *x = at(type, call->operand[0], t * l.row);
    memcpy(at_mutable(type, call->operand[1], t * l.q), x, bytes_of(type, l.q));
    memcpy(at_mutable(type, call->operand[2], t * l.kv), at(type, x, l.q), bytes_of(type, l.kv));
  }
}
HOST_KERNEL(heads_split) {
  (void)err;
  run_parallel(call, tws_work_bytes(call->work), split_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

VECTOR_INLINE void add_to(tws_dtype T, void *x, const void *y, int64_t count) {
  EACH_VECTOR(i, n, 0, count, v_put(T, x, i, v_get(T, x, i, n) + v_get(T, y, i, n), n));
}

static void join_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const split_layout l = split_of(call->work);
  const tws_dtype type = call->dtype[0];
  host_range r = share(call->work->d[0], 1, thread, threads);
  for (int64_t t = r.begin; t < r.end; ++t) {
    void *x = at_mutable(type, call->operand[2], t * l.row);
    FOR_TYPE(type, T, {
      add_to(T, x, at(T, call->operand[0], t * l.q), l.q);
      add_to(T, at_mutable(T, x, l.q), at(T, call->operand[1], t * l.kv), l.kv);
    });
  }
}
HOST_KERNEL(heads_join) {
  (void)err;
  run_parallel(call, tws_work_bytes(call->work), join_task, (void *)(uintptr_t)call);
  return TWS_OK;
}
