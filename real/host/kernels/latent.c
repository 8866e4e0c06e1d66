/* Kernels on the rows of multi-head latent attention (models/latent.h). */
#include "models/latent.h"

#include "real/host/kernels/kernels.h"

enum { MOST_PAIRS = 512 };

typedef struct latent {
  int64_t heads, nope, rope, value, rank, head;
  float gain, cosine[MOST_PAIRS], sine[MOST_PAIRS];
} latent;

static latent latent_of(const tws_host_call *call) {
  const int64_t *d = call->work->d;
  return (latent){.heads = d[1],
                  .nope = d[2],
                  .rope = d[3],
                  .value = d[4],
                  .rank = d[5],
                  .head = d[2] + d[3],
                  .gain = (float)call->work->f[4]};
}

static void turn_to(latent *l, const double *frequency, int64_t position, int backward) {
  for (int64_t i = 0; i < l->rope / 2; ++i) {
    double s, c;
    sincos((double)position * frequency[i], &s, &c);
    l->cosine[i] = (float)c;
    l->sine[i] = (float)(backward ? -s : s);
  }
}

VECTOR_INLINE void copy_columns(tws_dtype T, const void *from, int64_t at, void *to, int64_t there, int64_t count,
                                float factor) {
  EACH_VECTOR(i, n, 0, count, v_put(T, to, there + i, v_get(T, from, at + i, n) * factor, n));
}

/* Rotates pairs of adjacent elements. */
VECTOR_INLINE void turn(tws_dtype T, const latent *l, const void *from, int64_t at, void *to, int64_t there,
                        float factor) {
  for (int64_t i = 0; i < l->rope / 2; ++i) {
    const float a = v_get(T, from, at + 2 * i, 1)[0] * factor, b = v_get(T, from, at + 2 * i + 1, 1)[0] * factor;
    v_put(T, to, there + 2 * i, v_set(a * l->cosine[i] - b * l->sine[i]), 1);
    v_put(T, to, there + 2 * i + 1, v_set(b * l->cosine[i] + a * l->sine[i]), 1);
  }
}

VECTOR_INLINE void make_token(tws_dtype T, const latent *l, void *const *o, int64_t t) {
  const int64_t all = l->heads * l->head, each = l->nope + l->value;
  for (int64_t h = 0; h < l->heads; ++h) {
    const int64_t q = (t * l->heads + h) * l->head, kv = (t * l->heads + h) * each, to = t * 3 * all + h * l->head;
    copy_columns(T, o[0], q, o[3], to, l->nope, l->gain);
    turn(T, l, o[0], q + l->nope, o[3], to + l->nope, l->gain);
    copy_columns(T, o[2], kv, o[3], to + all, l->nope, 1);
    turn(T, l, o[1], t * (l->rank + l->rope) + l->rank, o[3], to + all + l->nope, 1);
    copy_columns(T, o[2], kv + l->nope, o[3], to + 2 * all, l->value, 1);
    EACH_VECTOR(i, n, l->value, l->head, v_put(T, o[3], to + 2 * all + i, v_zero(), n));
  }
}

VECTOR_INLINE void make_gradients(tws_dtype T, const latent *l, void *const *o, int64_t t) {
  const int64_t all = l->heads * l->head, each = l->nope + l->value, row = t * (l->rank + l->rope);
  float sum[2 * MOST_PAIRS] = {0};
  EACH_VECTOR(i, n, 0, l->rank, v_put(T, o[2], row + i, v_zero(), n));
  for (int64_t h = 0; h < l->heads; ++h) {
    const int64_t q = (t * l->heads + h) * l->head, kv = (t * l->heads + h) * each, from = t * 3 * all + h * l->head;
    copy_columns(T, o[0], from, o[1], q, l->nope, l->gain);
    turn(T, l, o[0], from + l->nope, o[1], q + l->nope, l->gain);
    copy_columns(T, o[0], from + all, o[3], kv, l->nope, 1);
    copy_columns(T, o[0], from + 2 * all, o[3], kv + l->nope, l->value, 1);
    for (int64_t i = 0; i < l->rope; ++i) sum[i] += v_get(T, o[0], from + all + l->nope + i, 1)[0];
  }
  for (int64_t i = 0; i < l->rope / 2; ++i) {
    const float a = sum[2 * i], b = sum[2 * i + 1];
    v_put(T, o[2], row + l->rank + 2 * i, v_set(a * l->cosine[i] - b * l->sine[i]), 1);
    v_put(T, o[2], row + l->rank + 2 * i + 1, v_set(b * l->cosine[i] + a * l->sine[i]), 1);
  }
}

typedef struct latent_job {
  const tws_host_call *call;
  int backward;
  double frequency[MOST_PAIRS];
} latent_job;

static void latent_task(void *arg, int thread, int threads) {
  const latent_job *job = arg;
  const tws_host_call *call = job->call;
  const int64_t seq = call->work->d[6];
  const int32_t *documents = call->work->flags & TWS_DOCUMENTS ? call->operand[4] : NULL;
  const host_range r = share(call->work->d[0], 1, thread, threads);
  latent l = latent_of(call);
  for (int64_t t = r.begin; t < r.end; ++t) {
    turn_to(&l, job->frequency, t % seq - (documents ? documents[2 * t] : 0), job->backward);
    if (job->backward)
      FOR_TYPE(call->dtype[0], T, make_gradients(T, &l, call->operand, t));
    else
      FOR_TYPE(call->dtype[0], T, make_token(T, &l, call->operand, t));
  }
}

static tws_code latent_either(const tws_host_call *call, int backward, tws_error *err) {
  const int64_t *d = call->work->d;
  latent_job job = {.call = call, .backward = backward};
  if (d[3] % 2 || d[3] > 2 * MOST_PAIRS || d[4] > d[2] + d[3])
    return tws_fail(
        err, TWS_UNSUPPORTED, NULL,
        "latent attention of heads of %lld + %lld elements, values of %lld: %d turned ones at most, an even "
        "number, and values no wider than keys",
        (long long)d[2], (long long)d[3], (long long)d[4], 2 * MOST_PAIRS);
  for (int64_t i = 0; i < d[3] / 2; ++i) job.frequency[i] = tws_latent_frequency(call->work->f, d[3], i);
  run_parallel(call, 12.0 * (double)(d[0] * d[1] * (d[2] + d[3])), latent_task, &job);
  return TWS_OK;
}
HOST_KERNEL(latent) {
  return latent_either(call, 0, err);
}
HOST_KERNEL(latent_grad) {
  return latent_either(call, 1, err);
}

/* ---- copies of some adjacent columns of each block ---- */

static void part_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const int64_t width = call->work->d[2], kept = call->work->d[3], first = (int64_t)call->argument[0];
  const host_range r = share(call->work->d[0] * call->work->d[1], 1, thread, threads);
  for (int64_t b = r.begin; b < r.end; ++b)
    FOR_TYPE(call->dtype[0], T,
             copy_columns(T, call->operand[0], b * width + first, call->operand[1], b * kept, kept, 1));
}
HOST_KERNEL(part) {
  (void)err;
  run_parallel(call, tws_work_bytes(call->work), part_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

static void part_grad_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const int64_t width = call->work->d[2], kept = call->work->d[3], first = (int64_t)call->argument[0];
  const int adds = (call->work->flags & TWS_ACCUMULATE) != 0;
  const void *dy = call->operand[0];
  void *dx = call->operand[1];
  const host_range r = share(call->work->d[0] * call->work->d[1], 1, thread, threads);
  for (int64_t b = r.begin; b < r.end; ++b)
    FOR_TYPE(call->dtype[0], T, {
      EACH_VECTOR(i, n, 0, kept, {
        const vf before = adds ? v_get(T, dx, b * width + first + i, n) : v_zero();
        v_put(T, dx, b * width + first + i, before + v_get(T, dy, b * kept + i, n), n);
      });
      if (!adds) EACH_VECTOR(i, n, 0, first, v_put(T, dx, b * width + i, v_zero(), n));
      if (!adds) EACH_VECTOR(i, n, first + kept, width, v_put(T, dx, b * width + i, v_zero(), n));
    });
}
HOST_KERNEL(part_grad) {
  (void)err;
  run_parallel(call, tws_work_bytes(call->work), part_grad_task, (void *)(uintptr_t)call);
  return TWS_OK;
}
