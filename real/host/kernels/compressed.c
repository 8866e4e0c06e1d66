/* Signs of tensors with error feedback, and updates that use them: models/operators_compressed.def. */
#include "models/operator.h"
#include "plan/plan.h"
#include "real/host/kernels/kernels.h"

enum { SIGNS = 8, GRAIN = 1024 };

/* Returns 1 if the step is skipped, so that kernels change nothing. metrics: index of the operand. */
static int is_skipped(const tws_host_call *call, int metrics) {
  return ((const double *)call->operand[metrics])[TWS_METRIC_CLIP] == 0;
}

/* ---- signs ---- */

/* The compression of one tensor, or of one part of it: error[count] already has x added; the signs are written to
 * codes[count / 8]. */
typedef struct signs_job {
  const tws_host_call *call;
  float *error, scale;
  uint8_t *codes;
  int64_t count;
  double sum[MAX_THREADS][8]; /* [thread][0]: sum of squares; a cache line for each thread */
} signs_job;

static double squares_of(const float *x, host_range r) {
  double sum = 0;
  for (int64_t i = r.begin; i < r.end; i += GRAIN) {
    const int64_t end = r.end - i < GRAIN ? r.end : i + GRAIN;
    double part[4] = {0, 0, 0, 0};
    int64_t k = i;
    for (; k + 4 <= end; k += 4)
      for (int j = 0; j < 4; ++j) part[j] += (double)x[k + j] * (double)x[k + j];
    for (; k < end; ++k) part[0] += (double)x[k] * (double)x[k];
    sum += part[0] + part[1] + (part[2] + part[3]);
  }
  return sum;
}

static void add_task(void *arg, int thread, int threads) {
  signs_job *job = arg;
  const float *x = job->call->operand[0];
  const host_range r = share(job->count, GRAIN, thread, threads);
  const int64_t given = job->call->work->d[0], end = r.end < given ? r.end : given;
  for (int64_t i = r.begin; i < end; ++i) job->error[i] += x[i];
  job->sum[thread][0] = squares_of(job->error, r);
}

static void signs_task(void *arg, int thread, int threads) {
  const signs_job *job = arg;
  const host_range r = share(job->count, GRAIN, thread, threads);
  for (int64_t i = r.begin; i < r.end; i += SIGNS) {
    unsigned byte = 0;
    for (int64_t k = i; k < i + SIGNS; ++k) {
      const int sign = job->error[k] >= 0;
      byte = byte << 1 | (unsigned)sign;
      job->error[k] -= sign ? job->scale : -job->scale;
    }
    job->codes[i / SIGNS] = (uint8_t)byte;
  }
}

/* Runs both passes of a 1-bit compression: `add` adds the values to the error of the last compression and sums the
 * squares of the result; the second pass writes signs and the new error. */
static float compress(signs_job *job, tws_host_task add) {
  double sum = 0;
  run_parallel(job->call, 8.0 * (double)job->count, add, job);
  for (int i = 0; i < job->call->backend->threads; ++i) sum += job->sum[i][0];
  job->scale = (float)sqrt(sum / (double)job->count);
  run_parallel(job->call, 8.0 * (double)job->count, signs_task, job);
  return job->scale;
}

HOST_KERNEL(sign_pack) {
  (void)err;
  const int64_t *d = call->work->d;
  float *scale = call->operand[4];
  signs_job job = {.call = call, .error = call->operand[1], .codes = call->operand[3], .count = d[1] * d[2]};
  *scale = 0;
  if (is_skipped(call, 2))
    memset(job.codes, 0, (size_t)(job.count / SIGNS));
  else
    *scale = compress(&job, add_task);
  return TWS_OK;
}

static int sign_at(const uint8_t *codes, int64_t i) {
  return codes[i / SIGNS] >> (SIGNS - 1 - i % SIGNS) & 1;
}

static void average_task(void *arg, int thread, int threads) {
  signs_job *job = arg;
  const int64_t *d = job->call->work->d, ranks = d[1];
  const uint8_t *codes = job->call->operand[0];
  const float *scales = (const float *)job->call->operand[1] + (int64_t)job->call->argument[0];
  const host_range r = share(job->count, GRAIN, thread, threads);
  for (int64_t first = r.begin; first < r.end; first += GRAIN) {
    const int64_t end = r.end - first < GRAIN ? r.end : first + GRAIN;
    float mean[GRAIN] = {0};
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const uint8_t *own = codes + rank * (job->count / SIGNS);
      const float part = scales[rank * d[2]] / (float)ranks;
      for (int64_t i = first; i < end; ++i) mean[i - first] += sign_at(own, i) ? part : -part;
    }
    for (int64_t i = first; i < end; ++i) job->error[i] += mean[i - first];
  }
  job->sum[thread][0] = squares_of(job->error, r);
}

HOST_KERNEL(sign_average) {
  (void)err;
  float *scale = call->operand[5];
  signs_job job = {.call = call, .error = call->operand[2], .codes = call->operand[4], .count = call->work->d[0]};
  *scale = 0;
  if (is_skipped(call, 3))
    memset(job.codes, 0, (size_t)(job.count / SIGNS));
  else
    *scale = compress(&job, average_task);
  return TWS_OK;
}

static void unpack_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const int64_t *d = call->work->d, part = d[1];
  const uint8_t *codes = call->operand[0];
  const float *scales = (const float *)call->operand[1] + (int64_t)call->argument[0];
  float *x = call->operand[3];
  const host_range r = share(d[0], GRAIN, thread, threads);
  for (int64_t i = r.begin; i < r.end;) {
    const int64_t rank = i / part, end = (rank + 1) * part < r.end ? (rank + 1) * part : r.end;
    const float scale = scales[rank * d[3]];
    for (; i < end; ++i) x[i] = sign_at(codes, i) ? scale : -scale;
  }
}

HOST_KERNEL(sign_unpack) {
  (void)err;
  if (!is_skipped(call, 2))
    run_parallel(call, tws_work_bytes(call->work), unpack_task, (void *)(uintptr_t)call);
  else if (!(call->work->flags & TWS_ACCUMULATE))
    memset(call->operand[3], 0, (size_t)call->work->d[0] * sizeof(float));
  return TWS_OK;
}

/* ---- momentum ---- */

static void momentum_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const float *hyper = call->operand[1];
  const double clip = call->argument[1] > 0 ? ((const double *)call->operand[2])[TWS_METRIC_CLIP] : 1;
  const int adds = (call->work->flags & TWS_ACCUMULATE) != 0;
  const vf factor = v_set((float)(call->argument[0] * clip));
  const vf beta = v_set(hyper[TWS_HYPER_BETA1]), rest = v_set(hyper[TWS_HYPER_REST1]);
  float *m = call->operand[3];
  const host_range r = share(call->work->d[0], 64, thread, threads);
  FOR_TYPE(call->dtype[0], T, EACH_VECTOR(i, n, r.begin, r.end, {
             const vf g = v_get(T, call->operand[0], i, n) * factor;
             v_put(TWS_F32, m, i, adds ? beta * v_get(TWS_F32, m, i, n) + rest * g : g, n);
           }));
}

HOST_KERNEL(momentum) {
  (void)err;
  const int adds = (call->work->flags & TWS_ACCUMULATE) != 0;
  if (!is_skipped(call, 2))
    run_parallel(call, tws_work_bytes(call->work), momentum_task, (void *)(uintptr_t)call);
  else if (!adds)
    memset(call->operand[3], 0, (size_t)call->work->d[0] * sizeof(float));
  return TWS_OK;
}

/* ---- updates ---- */

/* Constants of an update. */
typedef struct update_job {
  const tws_host_call *call;
  float lr, epsilon, decay, summed_lr;
} update_job;

/* Reads the constants of an update. hyper: index of the operand with the hyperparameters. */
static update_job job_of(const tws_host_call *call, int hyper) {
  const float *values = call->operand[hyper];
  return (update_job){.call = call,
                      .lr = values[TWS_HYPER_LR],
                      .epsilon = (float)tws_work_parameter(call->work, "epsilon"),
                      .decay = (float)tws_work_parameter(call->work, "weight_decay"),
                      .summed_lr = values[TWS_HYPER_SUMMED_LR]};
}

/* Copies the weights to the last operand, whose type has 16 bits. */
static void copy_weights(const tws_host_call *call, host_range r) {
  const int last = call->count - 1;
  FOR_TYPE(call->dtype[last], P, EACH_VECTOR(i, n, r.begin, r.end, {
             v_put(P, call->operand[last], i, v_get(TWS_F32, call->operand[0], i, n), n);
           }));
}

static void frozen_task(void *arg, int thread, int threads) {
  const update_job *job = arg;
  const tws_host_call *call = job->call;
  float *p = call->operand[0];
  const int local = (call->work->flags & TWS_ACCUMULATE) != 0;
  float *u = local ? call->operand[5] : NULL;
  const host_range r = share(call->work->d[0], 64, thread, threads);
  EACH_VECTOR(i, n, r.begin, r.end, {
    const vf weight = v_get(TWS_F32, p, i, n), m = v_get(TWS_F32, call->operand[1], i, n);
    const vf root = v_sqrt(v_get(TWS_F32, call->operand[2], i, n));
    const vf change = job->lr * (m / (root + job->epsilon) + job->decay * weight);
    v_put(TWS_F32, p, i, weight - change, n);
    if (u) v_put(TWS_F32, u, i, v_get(TWS_F32, u, i, n) - change, n);
  });
  if (call->count > 5 + local) copy_weights(call, r);
}

HOST_KERNEL(frozen_adam) {
  (void)err;
  update_job job = job_of(call, 3);
  if (!is_skipped(call, 4)) run_parallel(call, tws_work_bytes(call->work), frozen_task, &job);
  return TWS_OK;
}

static void undo_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const float epsilon = (float)tws_work_parameter(call->work, "epsilon");
  float *p = call->operand[0], *u = call->operand[1];
  const host_range r = share(call->work->d[0], 64, thread, threads);
  EACH_VECTOR(i, n, r.begin, r.end, {
    const vf changes = v_get(TWS_F32, u, i, n);
    v_put(TWS_F32, p, i, v_get(TWS_F32, p, i, n) - changes, n);
    v_put(TWS_F32, u, i, changes * (v_sqrt(v_get(TWS_F32, call->operand[2], i, n)) + epsilon), n);
  });
}

HOST_KERNEL(local_undo) {
  (void)err;
  if (!is_skipped(call, 3)) run_parallel(call, tws_work_bytes(call->work), undo_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

static void merge_task(void *arg, int thread, int threads) {
  const update_job *job = arg;
  const tws_host_call *call = job->call;
  float *p = call->operand[0], *m = call->operand[1], *u = call->operand[2];
  const float by = job->summed_lr > 0 ? -1 / job->summed_lr : 0;
  const host_range r = share(call->work->d[0], 64, thread, threads);
  EACH_VECTOR(i, n, r.begin, r.end, {
    const vf changes = v_get(TWS_F32, u, i, n), root = v_sqrt(v_get(TWS_F32, call->operand[3], i, n));
    v_put(TWS_F32, m, i, by < 0 ? changes * by : v_get(TWS_F32, m, i, n), n);
    v_put(TWS_F32, p, i, v_get(TWS_F32, p, i, n) + changes / (root + job->epsilon), n);
    v_put(TWS_F32, u, i, v_zero(), n);
  });
  if (call->count > 6) copy_weights(call, r);
}

HOST_KERNEL(local_merge) {
  (void)err;
  update_job job = job_of(call, 4);
  if (!is_skipped(call, 5)) run_parallel(call, tws_work_bytes(call->work), merge_task, &job);
  return TWS_OK;
}
