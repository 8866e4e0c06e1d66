/* Adafactor's kernels: sums of squares of rows and columns, second moments, the change and its norm, and the update.
 * Sums are in double precision and in one order, whatever the number of threads. */
#include <math.h>

#include "models/operator.h"
#include "plan/plan.h"
#include "real/host/kernels/kernels.h"

/* The range of a matrix that one operation processes: elements [first, first + count) of a matrix of rows x columns. */
typedef struct matrix_part {
  int64_t rows, columns, first, count;
} matrix_part;

static matrix_part part_of(const tws_host_call *call) {
  const int64_t *d = call->work->d;
  return (matrix_part){d[0], d[1], (int64_t)call->argument[0], d[2]};
}

/* Returns the elements of a row that the part has, as indices in the part. */
static host_range row_range(const matrix_part *m, int64_t row) {
  const int64_t begin = row * m->columns - m->first, end = begin + m->columns;
  host_range r = {begin > 0 ? begin : 0, end < m->count ? end : m->count};
  if (r.end < r.begin) r.end = r.begin;
  return r;
}

typedef struct sums_job {
  const tws_host_call *call;
  matrix_part part;
  float clip;
} sums_job;

static void row_sums_task(void *arg, int thread, int threads) {
  const sums_job *job = arg;
  const host_range rows = share(job->part.rows, 1, thread, threads);
  const void *grad = job->call->operand[0];
  double *sums = job->call->operand[2];
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    const host_range r = row_range(&job->part, i);
    double sum = 0;
    FOR_TYPE(job->call->dtype[0], G, EACH_VECTOR(k, n, r.begin, r.end, {
               const vf g = v_get(G, grad, k, n) * job->clip;
               for (int j = 0; j < n; ++j) sum += (double)g[j] * (double)g[j];
             }));
    sums[i] = sum;
  }
}

static void column_sums_task(void *arg, int thread, int threads) {
  const sums_job *job = arg;
  const matrix_part *m = &job->part;
  const host_range own = share(m->columns, 16, thread, threads);
  const void *grad = job->call->operand[0];
  double *sums = (double *)job->call->operand[2] + m->rows;
  for (int64_t j = own.begin; j < own.end; ++j) sums[j] = 0;
  if (m->count == 0) return;
  for (int64_t i = m->first / m->columns; i <= (m->first + m->count - 1) / m->columns; ++i) {
    const int64_t at = i * m->columns - m->first;
    const int64_t begin = own.begin > -at ? own.begin : -at;
    const int64_t end = own.end < m->count - at ? own.end : m->count - at;
    FOR_TYPE(job->call->dtype[0], G, EACH_VECTOR(k, n, begin, end, {
               const vf g = v_get(G, grad, at + k, n) * job->clip;
               for (int j = 0; j < n; ++j) sums[k + j] += (double)g[j] * (double)g[j];
             }));
  }
}

HOST_KERNEL(factor_sums) {
  (void)err;
  const double *metrics = call->operand[1];
  sums_job job = {call, part_of(call), (float)metrics[TWS_METRIC_CLIP]};
  if (job.part.rows > 0) run_parallel(call, tws_work_bytes(call->work), row_sums_task, &job);
  run_parallel(call, tws_work_bytes(call->work), column_sums_task, &job);
  return TWS_OK;
}

HOST_KERNEL(factor_moments) {
  (void)err;
  const int64_t rows = call->work->d[0], columns = call->work->d[1];
  float *moments = call->operand[0];
  const double *sums = call->operand[1], *metrics = call->operand[3];
  const float step = ((const float *)call->operand[2])[TWS_HYPER_STEP];
  if (metrics[TWS_METRIC_CLIP] == 0) return TWS_OK;
  const float part = (float)pow((double)step, call->work->f[0]);
  for (int64_t i = 0; i < rows + columns; ++i) {
    const int64_t terms = rows == 0 ? 1 : i < rows ? columns : rows;
    moments[i] += part * ((float)(sums[i] / (double)terms) - moments[i]);
  }
  return TWS_OK;
}

typedef struct change_job {
  const tws_host_call *call;
  matrix_part part;
  float clip, least, mean; /* least: lower limit of a second moment; mean: mean of the row moments, at least epsilon */
} change_job;

static void change_task(void *arg, int thread, int threads) {
  const change_job *job = arg;
  const matrix_part *m = &job->part;
  const host_range own = share(m->count, 64, thread, threads);
  const float *of_row = job->call->operand[0], *of_column = of_row + m->rows;
  const void *grad = job->call->operand[1];
  float *change = job->call->operand[3];
  const float clip = job->clip, least = job->least;
  for (int64_t begin = own.begin, end; begin < own.end; begin = end) {
    const int64_t row = (m->first + begin) / m->columns, at = row * m->columns - m->first;
    end = at + m->columns < own.end ? at + m->columns : own.end;
    const float factor = m->rows > 0 ? of_row[row] : 1, mean = m->rows > 0 ? job->mean : 1;
    FOR_TYPE(job->call->dtype[1], G, EACH_VECTOR(k, n, begin, end, {
               const vf v = factor * v_get(TWS_F32, of_column, k - at, n) / mean;
               const vf root = v_sqrt(v_select(v < least, v_set(least), v)); /* NaN is kept */
               v_put(TWS_F32, change, k, v_get(G, grad, k, n) * clip / root, n);
             }));
  }
}

HOST_KERNEL(factor_change) {
  (void)err;
  const double *metrics = call->operand[2], epsilon = call->work->f[0];
  const float *moments = call->operand[0];
  change_job job = {.call = call,
                    .part = part_of(call),
                    .clip = (float)metrics[TWS_METRIC_CLIP],
                    .least = (float)(epsilon * epsilon)};
  double sum = 0;
  for (int64_t i = 0; i < job.part.rows; ++i) sum += moments[i];
  job.mean = (float)(sum / (double)job.part.rows);
  if (job.mean < (float)epsilon) job.mean = (float)epsilon; /* NaN is kept */
  run_parallel(call, tws_work_bytes(call->work), change_task, &job);
  return TWS_OK;
}

typedef struct norms_job {
  const tws_host_call *call;
  double sum[MAX_THREADS][8]; /* [thread] sums of squares of the parameter and of its change */
} norms_job;

static void norms_task(void *arg, int thread, int threads) {
  norms_job *job = arg;
  const host_range r = share(job->call->work->d[0], 64, thread, threads);
  for (int k = 0; k < 2; ++k) {
    const float *x = job->call->operand[k];
    double sum = 0;
    for (int64_t i = r.begin; i < r.end; ++i) sum += (double)x[i] * (double)x[i];
    job->sum[thread][k] = sum;
  }
}

HOST_KERNEL(factor_norms) {
  (void)err;
  norms_job job = {.call = call};
  double *norms = call->operand[2];
  norms[0] = norms[1] = 0;
  if (call->work->d[0] == 0) return TWS_OK;
  run_parallel(call, tws_work_bytes(call->work), norms_task, &job);
  for (int i = 0; i < call->backend->threads; ++i)
    for (int k = 0; k < 2; ++k) norms[k] += call->argument[0] * job.sum[i][k];
  return TWS_OK;
}

typedef struct update_job {
  const tws_host_call *call;
  float decay, scale;
} update_job;

static void update_task(void *arg, int thread, int threads) {
  const update_job *job = arg;
  const tws_host_call *call = job->call;
  const host_range r = share(call->work->d[0], 64, thread, threads);
  const float *change = call->operand[1], decay = job->decay, scale = job->scale;
  float *p = call->operand[0];
  void *copy = call->count > 5 ? call->operand[5] : NULL;
  EACH_VECTOR(i, n, r.begin, r.end, {
    const vf old = v_get(TWS_F32, p, i, n);
    v_put(TWS_F32, p, i, old - decay * old - scale * v_get(TWS_F32, change, i, n), n);
  });
  if (!copy) return;
  FOR_TYPE(call->dtype[5], P, EACH_VECTOR(i, n, r.begin, r.end, { v_put(P, copy, i, v_get(TWS_F32, p, i, n), n); }));
}

HOST_KERNEL(adafactor) {
  (void)err;
  const float *hyper = call->operand[2];
  const double *metrics = call->operand[3], *norms = call->operand[4], *f = call->work->f;
  if (metrics[TWS_METRIC_CLIP] == 0) return TWS_OK;
  const double lr = (double)hyper[TWS_HYPER_LR], rate = fmin(lr, 1 / sqrt((double)hyper[TWS_HYPER_STEP]));
  update_job job = {.call = call,
                    .decay = (float)(lr * f[0]),
                    .scale = (float)(fmax(f[1], sqrt(norms[0])) * rate / fmax(1, sqrt(norms[1]) / f[2]))};
  run_parallel(call, tws_work_bytes(call->work), update_task, &job);
  return TWS_OK;
}
