#include "real/init.h"
#include <math.h>
#include <pthread.h>
#include <string.h>
#include "base/random.h"

/* Maps a random word to the open interval (0, 1): 24 bits plus a half, exact in float32. */
static float open_unit(uint32_t word) {
  return ((float)(word >> 8) + 0.5f) * 0x1p-24f;
}

static void normals(uint64_t seed, uint64_t stream, uint64_t block, float out[4]) {
  uint32_t word[4];
  tws_philox(seed, stream, block, word);
  for (int i = 0; i < 4; i += 2) {
    float radius = sqrtf(-2.0f * logf(open_unit(word[i])));
    float sine, cosine, angle = 6.2831853f * open_unit(word[i + 1]);
    sincosf(angle, &sine, &cosine);
    out[i] = radius * cosine;
    out[i + 1] = radius * sine;
  }
}

void tws_init_values(const tws_param *param, uint32_t index, uint64_t seed, uint64_t first, uint64_t count,
                     float *out) {
  const float std = param->init_std, value = param->init_value;
  if (param->given) {
    memcpy(out, param->given + first, count * sizeof *out);
    return;
  }
  const uint64_t queries = param->first_std > 0 ? (uint64_t)(param->fused[0] * param->columns) : 0;
  if (std == 0.0f) {
    for (uint64_t i = 0; i < count; i++) out[i] = value;
    return;
  }
  for (uint64_t i = 0; i < count;) {
    float block[4];
    normals(seed, index, (first + i) / 4, block);
    for (uint64_t k = (first + i) % 4; k < 4 && i < count; k++, i++)
      out[i] = value + (first + i < queries ? param->first_std : std) * block[k];
  }
}

void tws_init_part(const tws_param *param, uint32_t index, uint64_t seed, const tws_param_slice *slice, uint64_t first,
                   uint64_t count, float *out) {
  if (!slice || (param->init_std == 0.0f && !param->given)) { /* equal elements: positions do not matter */
    tws_init_values(param, index, seed, first, count, out);
    return;
  }
  for (uint64_t done = 0; done < count;) {
    uint64_t run = 0, whole = tws_param_slice_whole(slice, first + done, &run);
    if (run > count - done) run = count - done;
    tws_init_values(param, index, seed, whole, run, out + done);
    done += run;
  }
}

void tws_init_running(const tws_plan *plan, float *out) {
  for (uint32_t r = 0; r < plan->network->running_count; r++) {
    const tws_running *running = &plan->network->running[r];
    if (plan->running_first[r] == TWS_NO_OFFSET) continue;
    for (int64_t i = 0; i < running->rows * running->columns; i++)
      out[plan->running_first[r] + (uint64_t)i] = running->fixed   ? running->fixed[i]
                                                  : running->given ? running->given[i]
                                                                   : running->init_value[i / running->columns];
  }
}

/* ---- by several threads ---- */

enum { MOST_THREADS = 64, LEAST_COUNT = 1 << 14 }; /* fewer elements per thread are not worth starting one */

typedef struct share {
  const tws_param *param;
  const tws_param_slice *slice;
  uint64_t seed, first, count;
  float *out;
  uint32_t index;
  pthread_t thread;
} share;

static void *compute_share(void *raw) {
  const share *s = raw;
  tws_init_part(s->param, s->index, s->seed, s->slice, s->first, s->count, s->out);
  return NULL;
}

void tws_init_part_with(int threads, const tws_param *param, uint32_t index, uint64_t seed,
                        const tws_param_slice *slice, uint64_t first, uint64_t count, float *out) {
  share shares[MOST_THREADS];
  int n = 0, started[MOST_THREADS];
  if (threads > MOST_THREADS) threads = MOST_THREADS;
  if (threads < 1 || param->init_std == 0.0f) threads = 1;
  const uint64_t even = (count / (uint64_t)threads + 4) / 4 * 4, part = even < LEAST_COUNT ? LEAST_COUNT : even;
  for (uint64_t done = 0; done < count; done += part, n++) {
    shares[n] = (share){.param = param,
                        .slice = slice,
                        .seed = seed,
                        .first = first + done,
                        .count = count - done < part ? count - done : part,
                        .out = out + done,
                        .index = index};
    /* the last share is computed by this thread, and so are shares for which no thread can be created */
    started[n] = done + part < count && pthread_create(&shares[n].thread, NULL, compute_share, &shares[n]) == 0;
    if (!started[n]) compute_share(&shares[n]);
  }
  for (int i = 0; i < n; i++)
    if (started[i]) pthread_join(shares[i].thread, NULL);
}
