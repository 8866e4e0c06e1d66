// Gradients of embedding tables that are exchanged as rows: models/operators_sparse.def.
#include "real/cuda/kernels/common.cuh"

namespace {

// Returns the row of the table that a token's id selects, or -1 if this rank's table does not have it.
__device__ int64_t row_of(const int32_t *ids, int64_t token, int64_t first_id, int64_t vocabulary) {
  const int64_t row = ids[token] - first_id;
  return row >= 0 && row < vocabulary ? row : -1;
}

__global__ void clear_first(int32_t *first, int64_t vocabulary) {
  EACH_ITEM(i, vocabulary) first[i] = 0;
}

// Counts tokens down from INT_MAX, so that the largest is that of the first token and 0 means none.
__global__ void find_first(const int32_t *ids, int32_t *first, int64_t tokens, int64_t vocabulary, int64_t first_id) {
  EACH_ITEM(t, tokens) {
    const int64_t row = row_of(ids, t, first_id, vocabulary);
    if (row >= 0) atomicMax(&first[row], 0x7fffffff - (int32_t)t);
  }
}

__global__ void number_first(int32_t *first, int64_t vocabulary) {
  EACH_ITEM(i, vocabulary) {
    if (first[i] != 0) first[i] = 0x7fffffff - first[i] + 1;
  }
}

template <typename T, typename R>
__global__ void move_rows(const int32_t *ids, T *table, const int32_t *first, int32_t *places, R *rows, int64_t tokens,
                          int64_t width, int64_t vocabulary, int64_t first_id) {
  EACH_ITEM(i, tokens * width) {
    const int64_t token = i / width, column = i % width, row = row_of(ids, token, first_id, vocabulary);
    const bool is_first = row >= 0 && first[row] == token + 1;
    if (column == 0) places[token] = is_first ? (int32_t)(row + 1) : 0;
    rows[i] = from_float<R>(is_first ? to_float(table[row * width + column]) : 0.0F);
    if (is_first) table[row * width + column] = from_float<T>(0.0F);
  }
}

template <typename T, typename R>
tws_code run_rows(const tws_cuda_call *call, tws_error *err) {
  const int64_t *d = call->work->d, first_id = (int64_t)call->argument[0];
  int32_t *first = out<int32_t>(call, 2);
  if (d[0] == 0 || d[1] == 0 || d[2] == 0) return TWS_OK;
  LAUNCH(clear_first, grid_for(call, d[2], BLOCK), BLOCK, 0, call, first, d[2]);
  TWS_TRY(launched(err));
  LAUNCH(find_first, grid_for(call, d[0], BLOCK), BLOCK, 0, call, in<int32_t>(call, 0), first, d[0], d[2], first_id);
  TWS_TRY(launched(err));
  LAUNCH(number_first, grid_for(call, d[2], BLOCK), BLOCK, 0, call, first, d[2]);
  TWS_TRY(launched(err));
  LAUNCH((move_rows<T, R>), grid_for(call, d[0] * d[1], BLOCK), BLOCK, 0, call, in<int32_t>(call, 0), out<T>(call, 1),
         first, out<int32_t>(call, 3), out<R>(call, 4), d[0], d[1], d[2], first_id);
  return launched(err);
}

// Adds the rows of one rank to the table. `places` (row + 1) of one rank are distinct, so no two threads add to the
// same element.
template <typename R, typename T>
__global__ void add_rows(const int32_t *places, const R *rows, T *table, int64_t tokens, int64_t width,
                         int64_t vocabulary) {
  EACH_ITEM(i, tokens * width) {
    const int64_t place = places[i / width], at = (place - 1) * width + i % width;
    if (place > 0 && place <= vocabulary) table[at] = from_float<T>(to_float(table[at]) + to_float(rows[i]));
  }
}

template <typename R, typename T>
tws_code run_add(const tws_cuda_call *call, tws_error *err) {
  const int64_t *d = call->work->d;
  if (d[0] == 0 || d[1] == 0) return TWS_OK;
  for (int64_t rank = 0; rank < d[3]; ++rank) {
    LAUNCH((add_rows<R, T>), grid_for(call, d[0] * d[1], BLOCK), BLOCK, 0, call, in<int32_t>(call, 0) + rank * d[0],
           in<R>(call, 1) + rank * d[0] * d[1], out<T>(call, 2), d[0], d[1], d[2]);
    TWS_TRY(launched(err));
  }
  return TWS_OK;
}

}  // namespace

tws_code tws_cuda_embedding_rows(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[1], T, FOR_TYPE(call->dtype[4], R, return (run_rows<T, R>(call, err))));
}

tws_code tws_cuda_add_rows(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[1], R, FOR_TYPE(call->dtype[2], T, return (run_add<R, T>(call, err))));
}
