/* Softmax cross-entropy over a vocabulary, which is whole or split by columns among ranks, and the losses of scores
 * that are not exclusive; the gradient overwrites the logits. */
#include <stdio.h>
#include "real/host/kernels/kernels.h"

typedef struct loss_job {
  const tws_host_call *call;
  float weight;               /* factor of the gradient of a token's loss */
  double sum[MAX_THREADS][8]; /* [thread] sums of losses and of ignored targets; each thread has a cache line of its
                               * own */
} loss_job;

/* Computes the maximum and the sum of e^(x - maximum) in one pass over memory: blocks that fit the first-level cache
 * are read twice. Columns that are all -infinity add 0. */
VECTOR_INLINE void online_softmax(tws_dtype T, const void *row, int64_t columns, float *largest, float *sum) {
  enum { BLOCK = 2048 };
  float m = -INFINITY;
  vf s = v_zero();
  for (int64_t b = 0; b < columns; b += BLOCK) {
    const int64_t end = b + BLOCK < columns ? b + BLOCK : columns, whole = b + (end - b) / LANES * LANES;
    vf top = v_set(-INFINITY);
    for (int64_t i = b; i < whole; i += LANES) top = v_max(v_get(T, row, i, LANES), top);
    float block_top = v_largest(top);
    for (int64_t i = whole; i < end; ++i) {
      float x = v_get(T, row, i, 1)[0];
      if (x > block_top) block_top = x;
    }
    if (block_top > m) {
      if (m > -INFINITY) s *= v_exp(v_set(m - block_top));
      m = block_top;
    }
    const float base = m > -INFINITY ? m : 0;
    for (int64_t i = b; i < whole; i += LANES) s += v_exp(v_get(T, row, i, LANES) - base);
    if (whole < end) {
      const int n = (int)(end - whole);
      const vi lane = V_LANE_NUMBERS;
      s += (vf)((vi)v_exp(v_get(T, row, whole, n) - base) & (lane < n));
    }
  }
  *largest = m;
  *sum = v_sum(s);
}

/* Values from which the gradient of a row is computed: the softmax over the whole vocabulary, whichever ranks hold
 * its columns. */
typedef struct row_softmax {
  float largest, sum, logit; /* logit: that of the target */
  int64_t target;            /* column of the target on this rank, or -1 */
} row_softmax;

VECTOR_INLINE void clear_columns(tws_dtype T, void *row, int64_t begin, int64_t end) {
  memset(at_mutable(T, row, begin), 0, (size_t)(end - begin) * (T == TWS_F32 ? 4U : 2U));
}

VECTOR_INLINE void gradient_row(tws_dtype T, const loss_job *job, void *row, const row_softmax *s) {
  const tws_work *work = job->call->work;
  const int64_t columns = work->d[1];
  const float scale = job->weight, weight = scale / s->sum;
  EACH_VECTOR(i, n, 0, columns, v_put(T, row, i, v_exp(v_get(T, row, i, n) - s->largest) * weight, n));
  if (s->target >= 0) {
    /* computed from the logit, because the stored probability may be rounded */
    const float p = expf(s->logit - s->largest) / s->sum;
    v_put(T, row, s->target, v_set(scale * (p - 1.0F)), 1);
  }
  clear_columns(T, row, columns, work->d[2]);
}

VECTOR_INLINE double loss_of(const row_softmax *s) {
  return log((double)s->sum) + ((double)s->largest - (double)s->logit);
}

VECTOR_INLINE double loss_row(tws_dtype T, const loss_job *job, int64_t t) {
  const tws_host_call *call = job->call;
  const int64_t columns = call->work->d[1], padded = call->work->d[2];
  void *row = at_mutable(T, call->operand[0], t * padded);
  row_softmax s = {.target = ((const int32_t *)call->operand[1])[t]};
  online_softmax(T, row, columns, &s.largest, &s.sum);
  s.logit = v_get(T, row, s.target, 1)[0];
  gradient_row(T, job, row, &s);
  return loss_of(&s);
}

/* Returns the loss of a token, from the statistics of all ranks, which each rank combines in the same order. */
VECTOR_INLINE double vocabulary_loss_row(tws_dtype T, const loss_job *job, int64_t t) {
  const tws_host_call *call = job->call;
  const int64_t *d = call->work->d;
  const float *stats = (const float *)call->operand[2] + 3 * t;
  const int64_t column = ((const int32_t *)call->operand[1])[t] - (int64_t)call->argument[2];
  row_softmax s = {.largest = -INFINITY, .target = column >= 0 && column < d[1] ? column : -1};
  for (int64_t r = 0; r < d[3]; ++r) {
    const float *part = stats + 3 * d[0] * r;
    if (part[0] > s.largest) s.largest = part[0];
    s.logit += part[2];
  }
  double sum = 0;
  for (int64_t r = 0; r < d[3]; ++r) {
    const float *part = stats + 3 * d[0] * r;
    sum += part[1] == 0 ? 0 : (double)part[1] * exp((double)part[0] - (double)s.largest);
  }
  s.sum = (float)sum;
  gradient_row(T, job, at_mutable(T, call->operand[0], t * d[2]), &s);
  return loss_of(&s);
}

/* Returns the mean over the columns of the binary cross-entropy, or of the squared error. Both are computed in float64:
 * rows are short, and sigmoid(z) - 1 is -sigmoid(-z) without cancellation. */
VECTOR_INLINE double independent_row(tws_dtype T, const loss_job *job, int64_t t) {
  const tws_host_call *call = job->call;
  const int64_t columns = call->work->d[1], padded = call->work->d[2];
  const int squares = call->work->code == TWS_KERNEL_MEAN_SQUARED_ERROR;
  const int32_t target = ((const int32_t *)call->operand[1])[t];
  void *row = at_mutable(T, call->operand[0], t * padded);
  double sum = 0;
  for (int64_t i = 0; i < columns; ++i) {
    const double z = (double)v_get(T, row, i, 1)[0], wanted = columns > 1 ? (double)(i == target) : (double)target;
    double slope = 2 * (z - wanted);
    if (squares) {
      sum += (z - wanted) * (z - wanted);
    } else {
      slope = wanted > 0 ? -1 / (1 + exp(z)) : 1 / (1 + exp(-z));
      sum += (z > 0 ? z : 0) - z * wanted + log1p(exp(-fabs(z)));
    }
    v_put(T, row, i, v_set((float)((double)job->weight * slope / (double)columns)), 1);
  }
  clear_columns(T, row, columns, padded);
  return sum / (double)columns;
}

static void loss_task(void *arg, int thread, int threads) {
  loss_job *job = arg;
  const tws_host_call *call = job->call;
  const int64_t padded = call->work->d[2];
  const int32_t *targets = call->operand[1];
  const int parts = call->work->code == TWS_KERNEL_VOCABULARY_LOSS,
            independent = !parts && call->work->code != TWS_KERNEL_CROSS_ENTROPY;
  host_range r = share(call->work->d[0], 1, thread, threads);
  double sum = 0, ignored = 0;
  FOR_TYPE(
      call->dtype[0], T, for (int64_t t = r.begin; t < r.end; ++t) {
        if (targets[t] < 0) {
          clear_columns(T, at_mutable(T, call->operand[0], t * padded), 0, padded);
          ignored += 1;
        } else {
          sum += parts         ? vocabulary_loss_row(T, job, t)
                 : independent ? independent_row(T, job, t)
                               : loss_row(T, job, t);
        }
      });
  job->sum[thread][0] = sum;
  job->sum[thread][1] = ignored;
}

/* Runs the loss. place: index of operand metrics; an operand with the loss scale may follow it. */
static void run_loss(const tws_host_call *call, int place) {
  const int64_t *d = call->work->d;
  double *metrics = call->operand[place];
  loss_job job = {.call = call, .weight = (float)call->argument[0]};
  if (call->work->flags & TWS_SCALED)
    job.weight = (float)(call->argument[0] * ((const float *)call->operand[place + 1])[TWS_HYPER_SCALE]);
  const int counted = (call->work->flags & TWS_COUNTED) != 0;
  if (counted) job.weight = metrics[1] < 1 - 1e-9 ? (float)((double)job.weight / (1 - metrics[1])) : 0;
  run_parallel(call, 8.0 * (double)(d[0] * d[2]), loss_task, &job);
  double sum = 0, ignored = 0;
  for (int i = 0; i < call->backend->threads; ++i) {
    sum += job.sum[i][0];
    ignored += job.sum[i][1];
  }
  metrics[0] += call->argument[1] * sum;
  if (!counted) metrics[1] += call->argument[1] * ignored;
}

HOST_KERNEL(count_ignored) {
  (void)err;
  const int32_t *targets = call->operand[0];
  int64_t ignored = 0;
  for (int64_t t = 0; t < call->work->d[0]; ++t) ignored += targets[t] < 0;
  *(double *)call->operand[1] += call->argument[0] * (double)ignored;
  return TWS_OK;
}

/* Checks the operands. limit: exclusive upper limit of target ids; < 0: none, since other ranks have other columns. */
static tws_code check_loss(const tws_host_call *call, int64_t fewest, int64_t limit, tws_error *err) {
  const int64_t *d = call->work->d;
  const int32_t *targets = call->operand[1];
  if (d[1] < fewest || d[2] < d[1])
    return tws_fail(err, TWS_INVALID, NULL, "cross entropy over %lld columns in rows of %lld", (long long)d[1],
                    (long long)d[2]);
  for (int64_t t = 0; t < d[0]; ++t) {
    if (targets[t] >= -1 && (limit < 0 || targets[t] < limit)) continue;
    char vocabulary[48] = "";
    if (limit >= 0) snprintf(vocabulary, sizeof vocabulary, ", outside the vocabulary of %lld", (long long)limit);
    return tws_fail(err, TWS_INVALID, "targets must be token ids, or -1 to ignore a position", "target %lld is %d%s",
                    (long long)t, targets[t], vocabulary);
  }
  return TWS_OK;
}

HOST_KERNEL(cross_entropy) {
  TWS_TRY(check_loss(call, 1, call->work->d[1], err));
  run_loss(call, 2);
  return TWS_OK;
}

HOST_KERNEL(binary_cross_entropy) {
  TWS_TRY(check_loss(call, 1, call->work->d[1] > 1 ? call->work->d[1] : 2, err));
  run_loss(call, 2);
  return TWS_OK;
}

HOST_KERNEL(mean_squared_error) {
  TWS_TRY(check_loss(call, 1, call->work->d[1] > 1 ? call->work->d[1] : -1, err));
  run_loss(call, 2);
  return TWS_OK;
}

HOST_KERNEL(vocabulary_loss) {
  TWS_TRY(check_loss(call, 0, -1, err));
  run_loss(call, 3);
  return TWS_OK;
}

static void vocabulary_stats_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const int64_t *d = call->work->d, first = (int64_t)call->argument[0];
  const int32_t *targets = call->operand[1];
  float *stats = call->operand[2];
  host_range r = share(d[0], 1, thread, threads);
  FOR_TYPE(
      call->dtype[0], T, for (int64_t t = r.begin; t < r.end; ++t) {
        const void *row = at(T, call->operand[0], t * d[2]);
        const int64_t column = targets[t] < 0 ? -1 : targets[t] - first;
        online_softmax(T, row, d[1], &stats[3 * t], &stats[3 * t + 1]);
        stats[3 * t + 2] = column >= 0 && column < d[1] ? v_get(T, row, column, 1)[0] : 0;
      });
}
HOST_KERNEL(vocabulary_stats) {
  TWS_TRY(check_loss(call, 0, -1, err));
  run_parallel(call, 8.0 * (double)(call->work->d[0] * call->work->d[1]), vocabulary_stats_task,
               (void *)(uintptr_t)call);
  return TWS_OK;
}
