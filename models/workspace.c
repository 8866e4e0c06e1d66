/* Computes the scratch memory of attention on the host. It contains, for each thread, float32 copies of one key and
 * value head in the layout of the tiles, and the tiles. Its size is linear in the sequence length, and
 * real/host/kernels/attention.c uses exactly this size. The last functions do the same for disentangled attention,
 * whose products a library computes. */
#include "models/disentangled.h"
#include "models/kernel.h"

static int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/* Returns the number of distances between queries and keys, with lengths rounded up to whole tiles. */
size_t tws_host_attention_distances(const tws_work *work) {
  const int64_t keys = round_up(work->d[5] > 0 ? work->d[5] : work->d[1], TWS_HOST_ATTENTION_TILE);
  return work->flags & TWS_RELATIVE ? (size_t)round_up(work->d[1] + keys + 2 * TWS_HOST_ATTENTION_LEAD, 16) : 0;
}

/* Returns the floats of the partial gradients of the bias table: a table for each sequence and head, and on a device
 * for each tile of queries. */
size_t tws_attention_bias_parts(const tws_work *work, tws_backend_kind backend) {
  const int64_t tiles = backend == TWS_BACKEND_CUDA ? (work->d[1] + 31) / 32 : 1;
  if (work->code != TWS_KERNEL_ATTENTION_GRAD || !(work->flags & TWS_RELATIVE)) return 0;
  return (size_t)round_up(work->d[0] * work->d[2] * tiles * work->d[7], 64);
}

size_t tws_host_attention_thread_floats(const tws_work *work) {
  const int64_t tile = TWS_HOST_ATTENTION_TILE;
  const int64_t seq = round_up(work->d[5] > 0 ? work->d[5] : work->d[1], tile), width = round_up(work->d[4], 16);
  int64_t floats;
  if (work->code == TWS_KERNEL_ATTENTION)
    floats = 2 * seq * width + 2 * tile * width + tile * tile + 2 * tile; /* K^T, V; Q, O; P; maxima, sums */
  else
    /* terms: K, K^T, V^T, dK, dV; Q, dO, dQ; P, dP; log-sum-exps, row products */
    floats = 5 * seq * width + 3 * tile * width + 2 * tile * tile + 2 * tile;
  floats += (work->code == TWS_KERNEL_ATTENTION ? 1 : 2) * (int64_t)tws_host_attention_distances(work);
  return (size_t)round_up(floats, 64);
}

size_t tws_host_attention_workspace(const tws_work *work, int threads) {
  const int64_t items = work->d[0] * work->d[3]; /* a thread processes complete key-value heads */
  const int64_t used = items < threads ? items : threads;
  return ((size_t)(used > 0 ? used : 1) * tws_host_attention_thread_floats(work) +
          tws_attention_bias_parts(work, TWS_BACKEND_HOST)) *
         sizeof(float);
}

/* Returns the floats of one thread: Q, K, V, O; the parts of the position table that are read; products of a tile of
 * queries with these rows, and of these rows with all keys; scores of a tile; a row for each distance. The backward
 * pass needs twice as many, and a sum for each query. */
size_t tws_host_disentangled_thread_floats(const tws_work *work) {
  const tws_disentangled s = tws_disentangled_of(work);
  int64_t first;
  const int64_t tile = TWS_HOST_ATTENTION_TILE, reach = tws_disentangled_reach(&s, &first);
  const int64_t floats = 4 * s.seq * s.head + 2 * reach * s.head + (tile + s.seq) * reach + tile * s.seq + 2 * s.seq;
  return (size_t)round_up(work->code == TWS_KERNEL_DISENTANGLED ? floats : 2 * floats, 64);
}

size_t tws_disentangled_workspace(const tws_work *work, tws_backend_kind backend, int threads) {
  const int64_t *d = work->d, items = work->code == TWS_KERNEL_DISENTANGLED ? d[0] * d[2] : d[2];
  const int64_t used = items < threads ? items : threads;
  if (backend == TWS_BACKEND_HOST)
    return (size_t)(used > 0 ? used : 1) * tws_host_disentangled_thread_floats(work) * sizeof(float);
  return work->code == TWS_KERNEL_DISENTANGLED ? 0 : (size_t)(d[0] * d[1] * d[2]) * sizeof(float);
}
