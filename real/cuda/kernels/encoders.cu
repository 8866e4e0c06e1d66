// Small kernels of encoders: biases for queries and values, windows of adjacent tokens, scores of spans.
#include "real/cuda/kernels/common.cuh"

namespace {

// COLUMNS: columns that a block sums; ROWS: rows that it adds at the same time.
enum { COLUMNS = 32, ROWS = 32 };

template <typename T>
__global__ void part_bias(const T *bias, T *x, int64_t tokens, int64_t parts, int64_t width) {
  const int64_t biased = (parts + 1) / 2 * width;
  EACH_ITEM(i, tokens * biased) {
    const int64_t token = i / biased, column = i % biased, part = column / width * 2;
    T *to = x + (token * parts + part) * width + column % width;
    *to = from_float<T>(to_float(*to) + to_float(bias[column]));
  }
}

// Computes the gradient of the biases: a block sums some columns of one biased part of the rows; rows are added in an
// order that does not depend on timing.
template <typename T, typename G>
__global__ void part_bias_grad(const T *dx, G *dbias, int64_t tokens, int64_t parts, int64_t width, bool accumulate) {
  __shared__ float sums[ROWS][COLUMNS + 1];
  const int lane = (int)threadIdx.x % COLUMNS, line = (int)threadIdx.x / COLUMNS;
  const int64_t column = (int64_t)blockIdx.x * COLUMNS + lane, part = 2 * (int64_t)blockIdx.y;
  float sum = 0.0F;
  for (int64_t t = line; t < tokens && column < width; t += ROWS)
    sum += to_float(dx[(t * parts + part) * width + column]);
  sums[line][lane] = sum;
  __syncthreads();
  if (line > 0 || column >= width) return;
  G *to = dbias + blockIdx.y * width + column;
  sum = accumulate ? to_float(*to) : 0.0F;
  for (int r = 0; r < ROWS; ++r) sum += sums[r][lane];
  *to = from_float<G>(sum);
}

struct Tokens {
  int64_t batch, seq, width, side;
  const int32_t *lengths;
};

__device__ bool counts(const Tokens &s, int64_t sample, int64_t token) {
  return token >= 0 && token < (s.lengths ? s.lengths[sample] : s.seq);
}

template <typename T>
__global__ void token_unfold(Tokens s, const T *x, T *y) {
  EACH_ITEM(i, s.batch * s.seq * s.width * s.side) {
    const int64_t j = i % s.side, column = i / s.side % s.width, row = i / s.side / s.width, sample = row / s.seq;
    const int64_t move = j - s.side / 2;
    y[i] = counts(s, sample, row % s.seq + move) ? x[(row + move) * s.width + column] : from_float<T>(0.0F);
  }
}

template <typename T>
__global__ void token_unfold_grad(Tokens s, const T *dy, T *dx, bool adds) {
  EACH_ITEM(i, s.batch * s.seq * s.width) {
    const int64_t column = i % s.width, row = i / s.width, token = row % s.seq;
    float sum = adds ? to_float(dx[i]) : 0.0F;
    for (int64_t j = 0; j < s.side && counts(s, row / s.seq, token); ++j) {
      const int64_t move = s.side / 2 - j;
      if (token + move >= 0 && token + move < s.seq)
        sum += to_float(dy[((row + move) * s.width + column) * s.side + j]);
    }
    dx[i] = from_float<T>(sum);
  }
}

template <typename T>
__global__ void spans(Tokens s, const T *from, T *to, bool backward) {
  EACH_ITEM(i, s.batch * s.seq * s.width) {
    const int64_t end = i % s.width, row = i / s.width, sample = row / s.seq, token = row % s.seq;
    const int64_t of_end = (sample * s.width + end) * s.seq + token;
    const bool there = counts(s, sample, token);
    if (backward)
      to[i] = there ? from[of_end] : from_float<T>(0.0F);
    else
      to[of_end] = there ? from[i] : from_float<T>(-65504.0F);
  }
}

Tokens tokens_of(const tws_cuda_call *call) {
  const int64_t *d = call->work->d;
  return {d[0], d[1], d[2], d[3], call->work->flags & TWS_LENGTHS ? in<int32_t>(call, 1) : nullptr};
}

int last_of(const tws_cuda_call *call) {
  return call->work->flags & TWS_LENGTHS ? 2 : 1;
}

tws_code run_spans(const tws_cuda_call *call, bool backward, tws_error *err) {
  const Tokens s = tokens_of(call);
  FOR_TYPE(call->dtype[0], T,
           LAUNCH(spans<T>, grid_for(call, s.batch * s.seq * s.width, BLOCK), BLOCK, 0, call, s, in<T>(call, 0),
                  out<T>(call, last_of(call)), backward));
  return launched(err);
}

}  // namespace

tws_code tws_cuda_part_bias(const tws_cuda_call *call, tws_error *err) {
  const int64_t *d = call->work->d;
  FOR_TYPE(call->dtype[1], T,
           LAUNCH(part_bias<T>, grid_for(call, d[0] * ((d[1] + 1) / 2) * d[2], BLOCK), BLOCK, 0, call, in<T>(call, 0),
                  out<T>(call, 1), d[0], d[1], d[2]));
  return launched(err);
}

tws_code tws_cuda_part_bias_grad(const tws_cuda_call *call, tws_error *err) {
  const int64_t *d = call->work->d;
  const dim3 grid((unsigned)ceil_div(d[2], COLUMNS), (unsigned)((d[1] + 1) / 2));
  const bool adds = (call->work->flags & TWS_ACCUMULATE) != 0;
  if (d[1] == 1)  // one part is the whole row
    return tws_cuda_column_sums(call, call->operand[0], call->dtype[0], d[0], d[2], call->operand[1], call->dtype[1],
                                adds, err);
  FOR_TYPE(call->dtype[0], T,
           FOR_TYPE(call->dtype[1], G,
                    LAUNCH((part_bias_grad<T, G>), grid, COLUMNS * ROWS, 0, call, in<T>(call, 0), out<G>(call, 1), d[0],
                           d[1], d[2], adds)));
  return launched(err);
}

tws_code tws_cuda_token_unfold(const tws_cuda_call *call, tws_error *err) {
  const Tokens s = tokens_of(call);
  FOR_TYPE(call->dtype[0], T,
           LAUNCH(token_unfold<T>, grid_for(call, s.batch * s.seq * s.width * s.side, BLOCK), BLOCK, 0, call, s,
                  in<T>(call, 0), out<T>(call, last_of(call))));
  return launched(err);
}

tws_code tws_cuda_token_unfold_grad(const tws_cuda_call *call, tws_error *err) {
  const Tokens s = tokens_of(call);
  const bool adds = (call->work->flags & TWS_ACCUMULATE) != 0;
  FOR_TYPE(call->dtype[0], T,
           LAUNCH(token_unfold_grad<T>, grid_for(call, s.batch * s.seq * s.width, BLOCK), BLOCK, 0, call, s,
                  in<T>(call, 0), out<T>(call, last_of(call)), adds));
  return launched(err);
}

tws_code tws_cuda_spans(const tws_cuda_call *call, tws_error *err) {
  return run_spans(call, false, err);
}

tws_code tws_cuda_spans_grad(const tws_cuda_call *call, tws_error *err) {
  return run_spans(call, true, err);
}
