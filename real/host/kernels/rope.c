/* Rotary position embedding in place (Su et al., "RoFormer", 2021); models/rope.h has the angles. Positions restart
 * with every sequence, and with every document of a packed one. */
#include "models/rope.h"
#include "models/zigzag.h"
#include "real/host/kernels/kernels.h"

enum { CHUNK = 64 };

typedef struct rope_job {
  const tws_host_call *call;
  int backward;
} rope_job;

VECTOR_INLINE void rotate(tws_dtype T, void *qkv, int64_t first, int64_t half, int64_t columns, const float *cosine,
                          const float *sine) {
  EACH_VECTOR(i, n, 0, columns, {
    vf a = v_get(T, qkv, first + i, n), b = v_get(T, qkv, first + half + i, n);
    vf c = v_get(TWS_F32, cosine, i, n), s = v_get(TWS_F32, sine, i, n);
    v_put(T, qkv, first + i, a * c - b * s, n);
    v_put(T, qkv, first + half + i, b * c + a * s, n);
  });
}

#define OTHER_OF_PAIR(lane, d) ((lane) ^ (d))
/* Rotates pairs of adjacent elements: (x, y) becomes (x cos - y sin, y cos + x sin). Vectors hold whole pairs;
 * cosine and sine are each duplicated. */
VECTOR_INLINE void rotate_adjacent(tws_dtype T, void *qkv, int64_t first, int64_t columns, const float *cosine,
                                   const float *sine) {
  EACH_VECTOR(i, n, 0, 2 * columns, {
    const vf x = v_get(T, qkv, first + i, n);
    const vf y = __builtin_shufflevector(x, x, V_EACH_LANE(OTHER_OF_PAIR, 1));
    v_put(T, qkv, first + i, x * v_get(TWS_F32, cosine, i, n) + y * v_get(TWS_F32, sine, i, n), n);
  });
}

/* Computes cosines and sines of some pairs at a position. If pairs are interleaved, each number is stored twice, and
 * the first sine is negated. */
static void turn(const tws_rope_form *f, const double *frequency, int64_t position, int64_t columns, int backward,
                 float *cosine, float *sine) {
  for (int64_t i = 0; i < columns; ++i) {
    double s, c;
    sincos((double)position * frequency[i], &s, &c);
    if (backward) s = -s;
    if (!f->interleaved) {
      cosine[i] = (float)(f->gain * c);
      sine[i] = (float)(f->gain * s);
      continue;
    }
    cosine[2 * i] = cosine[2 * i + 1] = (float)(f->gain * c);
    sine[2 * i] = (float)(f->gain * -s);
    sine[2 * i + 1] = (float)(f->gain * s);
  }
}

/* Rotates the columns from `begin` on, in all heads of a token. */
VECTOR_INLINE void rotate_token(tws_dtype T, const tws_rope_form *f, void *qkv, int64_t first, int64_t heads,
                                int64_t head, int64_t begin, int64_t columns, const float *cosine, const float *sine) {
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t at = first + h * head;
    if (f->interleaved)
      rotate_adjacent(T, qkv, at + 2 * begin, columns, cosine, sine);
    else
      rotate(T, qkv, at + begin, f->rotary / 2, columns, cosine, sine);
  }
}

static void rope_task(void *arg, int thread, int threads) {
  const rope_job *job = arg;
  const tws_host_call *call = job->call;
  const int64_t *d = call->work->d;
  const int has_factors = (call->work->flags & TWS_RUNNING) != 0;
  const tws_rope_form form = tws_rope_form_of(call->work, has_factors ? call->operand[1] : NULL);
  const int64_t tokens = d[0], rotated = d[1] + d[2], head = d[3], seq = d[4], half = form.rotary / 2;
  const int64_t row = (d[1] + 2 * d[2]) * head;
  const int64_t start = (int64_t)call->argument[0], gap = (int64_t)call->argument[1];
  const int32_t *documents = call->work->flags & TWS_DOCUMENTS ? call->operand[1 + has_factors] : NULL;
  void *qkv = call->operand[0];
  host_range r = share(seq, 1, thread, threads);
  for (int64_t begin = 0; begin < half; begin += CHUNK) {
    const int64_t columns = half - begin < CHUNK ? half - begin : CHUNK;
    double frequency[CHUNK];
    for (int64_t i = 0; i < columns; ++i) frequency[i] = tws_rope_frequency(&form, begin + i);
    for (int64_t place = r.begin; place < r.end; ++place) {
      float cosine[2 * CHUNK], sine[2 * CHUNK];
      const int64_t position = start + tws_zigzag_position(seq, gap, place);
      turn(&form, frequency, position, columns, job->backward, cosine, sine);
      for (int64_t t = place; t < tokens; t += seq) {
        if (documents) turn(&form, frequency, position - documents[2 * t], columns, job->backward, cosine, sine);
        FOR_TYPE(call->dtype[0], T, rotate_token(T, &form, qkv, t * row, rotated, head, begin, columns, cosine, sine));
      }
    }
  }
}

static tws_code rope_either(const tws_host_call *call, int backward, tws_error *err) {
  const int64_t *d = call->work->d;
  TWS_TRY(tws_rope_check(call->work, err));
  rope_job job = {call, backward};
  run_parallel(call, 8.0 * (double)(d[0] * (d[1] + d[2]) * d[3]), rope_task, &job);
  return TWS_OK;
}
HOST_KERNEL(rope) {
  return rope_either(call, 0, err);
}
HOST_KERNEL(rope_grad) {
  return rope_either(call, 1, err);
}
