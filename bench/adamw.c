/* The host's optimizer compared with the bandwidth of a copy, a plain loop and, with --python, PyTorch: all in one run,
 * alternating in rounds, since machines are shared. Rates count the bytes that an update has to read and write.
 *
 * bench-adamw [--threads N] [--elements N] [--rounds N] [--python PATH] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "bench/support.h"
#include "plan/hyper.h"
#include "real/real.h"

enum { MAX_ROUNDS = 99, OPERANDS = 7 };

typedef struct bench {
  const tws_backend_ops *host;
  tws_backend *backend;
  int threads, rounds;
  int64_t elements;
  const char *python;
  void *data[OPERANDS]; /* of the kernel, in its order */
  tws_dtype dtype[OPERANDS];
} bench;

typedef struct subject {
  const char *name;
  double (*seconds)(bench *b); /* of one update, or of one copy */
  double bytes;                /* that it moves for an element */
  double spent[MAX_ROUNDS];
} subject;

/* ---- what is timed ---- */

static double copy_seconds(bench *b) {
  tws_error err = {0};
  const double start = tws_clock_s();
  need(b->host->copy(b->backend, b->data[1], b->data[0], (uint64_t)b->elements * 4, TWS_STREAM_HOST, &err), &err);
  return tws_clock_s() - start;
}

static double update_seconds(bench *b, tws_dtype weights) {
  tws_error err = {0};
  tws_work work = {.kind = TWS_OP_COMPUTE, .code = TWS_KERNEL_ADAMW, .place = TWS_PLACE_HOST, .d = {b->elements}};
  work.dtype = TWS_F32;
  work.dtype2 = (uint8_t)weights;
  work.f[0] = 1e-8;
  work.f[1] = 0.01;
  b->dtype[6] = weights;
  const int count = weights == TWS_F32 ? OPERANDS - 1 : OPERANDS;
  const double start = tws_clock_s();
  need(b->host->run(b->backend, &work, NULL, b->data, b->dtype, count, TWS_STREAM_HOST, &err), &err);
  return tws_clock_s() - start;
}

static double float_seconds(bench *b) {
  return update_seconds(b, TWS_F32);
}
static double bf16_seconds(bench *b) {
  return update_seconds(b, TWS_BF16);
}
static double f16_seconds(bench *b) {
  return update_seconds(b, TWS_F16);
}

/* The straightforward loop, compiled as this file is: -O2, one thread. */
static __attribute__((noinline)) void plain_update(int64_t n, float *p, float *m, float *v, const float *g, float lr,
                                                   float beta1, float beta2, float epsilon, float decay, float bias1,
                                                   float bias2) {
  for (int64_t i = 0; i < n; i++) {
    m[i] = beta1 * m[i] + (1 - beta1) * g[i];
    v[i] = beta2 * v[i] + (1 - beta2) * g[i] * g[i];
    p[i] -= lr * (m[i] / bias1 / (sqrtf(v[i] / bias2) + epsilon) + decay * p[i]);
  }
}

static double plain_seconds(bench *b) {
  const double start = tws_clock_s();
  plain_update(b->elements, b->data[0], b->data[1], b->data[2], b->data[3], 1e-3F, 0.9F, 0.999F, 1e-8F, 0.01F, 0.1F,
               0.001F);
  return tws_clock_s() - start;
}

/* Returns the seconds of PyTorch's update, which a new process measures without its start; NaN if it fails. */
static double peer_seconds(bench *b) {
  char script[1024], elements[32], threads[16], line[64];
  double seconds = NAN;
  snprintf(script, sizeof script, "%s/bench/peer/pytorch_adamw.py", TWS_SOURCE_DIR);
  snprintf(elements, sizeof elements, "%lld", (long long)b->elements);
  snprintf(threads, sizeof threads, "%d", b->threads);
  const char *const arguments[] = {b->python, script, elements, threads, NULL};
  const tws_process process = {.arguments = arguments, .limit_s = 3600};
  if (tws_process_line(&process, line, sizeof line)) tws_text_number(line, NULL, 0, 1e9, &seconds);
  return seconds;
}

/* ---- the run ---- */

static void make_data(bench *b) {
  static const tws_dtype dtype[OPERANDS] = {TWS_F32, TWS_F32, TWS_F32, TWS_F32, TWS_F32, TWS_F64, TWS_BF16};
  tws_error err = {0};
  memcpy(b->dtype, dtype, sizeof dtype);
  for (int k = 0; k < OPERANDS; k++) {
    const uint64_t count = k == 4 ? TWS_HYPER_COUNT : k == 5 ? TWS_METRIC_COUNT : (uint64_t)b->elements;
    need(b->host->allocate(b->backend, TWS_TIER_HOST, count * tws_dtype_bytes(dtype[k]), &b->data[k], &err), &err);
  }
  for (int64_t i = 0; i < b->elements; i++) {
    for (int k = 0; k < 4; k++) ((float *)b->data[k])[i] = (float)((i * 2654435761 >> 7) % 1024) * 1e-3F;
    ((uint16_t *)b->data[6])[i] = 0;
  }
  float hyper[TWS_HYPER_COUNT] = {
      [TWS_HYPER_LR] = 1e-3F,   [TWS_HYPER_BIAS1] = 0.1F,   [TWS_HYPER_BIAS2] = 1e-3F, [TWS_HYPER_SCALE] = 1,
      [TWS_HYPER_BETA1] = 0.9F, [TWS_HYPER_BETA2] = 0.999F, [TWS_HYPER_REST1] = 0.1F,  [TWS_HYPER_REST2] = 1e-3F};
  memcpy(b->data[4], hyper, sizeof hyper);
  ((double *)b->data[5])[TWS_METRIC_CLIP] = 1;
}

static int parse(int argc, char **argv, bench *b) {
  *b = (bench){.threads = 2, .rounds = 9, .elements = 32 << 20};
  for (int i = 1; i + 1 < argc; i += 2) {
    if (strcmp(argv[i], "--threads") == 0)
      b->threads = argument_int(argv[i + 1]);
    else if (strcmp(argv[i], "--elements") == 0)
      b->elements = argument_number(argv[i + 1]);
    else if (strcmp(argv[i], "--rounds") == 0)
      b->rounds = argument_int(argv[i + 1]);
    else if (strcmp(argv[i], "--python") == 0)
      b->python = argv[i + 1];
    else
      return -1;
  }
  return argc % 2 == 1 && b->threads > 0 && b->elements > 0 && b->rounds > 0 && b->rounds <= MAX_ROUNDS ? 0 : -1;
}

int main(int argc, char **argv) {
  bench b;
  if (parse(argc, argv, &b) != 0) {
    fprintf(stderr, "usage: bench-adamw [--threads N] [--elements N] [--rounds N] [--python PATH]\n");
    return 2;
  }
  const char *path = getenv("TWINSPEED_REAL_MODULE");
  void *symbol = module_symbol(path ? path : TWS_BUILD_DIR "/twinspeed_real.so", TWS_REAL_MODULE_SYMBOL);
  const tws_real_api *(*entry)(void);
  memcpy(&entry, &symbol, sizeof entry);
  b.host = entry()->backend("host");
  tws_error err = {0};
  need(b.host->create(0, b.threads, &b.backend, &err), &err);
  make_data(&b);
  subject subjects[] = {{.name = "copy", .seconds = copy_seconds, .bytes = 8},
                        {.name = "AdamW", .seconds = float_seconds, .bytes = 28},
                        {.name = "AdamW to bf16", .seconds = bf16_seconds, .bytes = 30},
                        {.name = "AdamW to fp16", .seconds = f16_seconds, .bytes = 30},
                        {.name = "plain loop, -O2", .seconds = plain_seconds, .bytes = 28},
                        {.name = "PyTorch AdamW", .seconds = peer_seconds, .bytes = 28}};
  const int count = (int)(sizeof subjects / sizeof *subjects) - !b.python;
  for (int round = -1; round < b.rounds; round++) /* one to warm up */
    for (int i = 0; i < count; i++) {
      const double seconds = subjects[i].seconds(&b);
      if (round >= 0) subjects[i].spent[round] = seconds;
    }
  printf("%lld elements, %d threads, medians of %d rounds\n", (long long)b.elements, b.threads, b.rounds);
  const double copied = median(subjects[0].spent, b.rounds), updated = median(subjects[1].spent, b.rounds);
  for (int i = 0; i < count; i++) {
    const double seconds = median(subjects[i].spent, b.rounds), bytes = subjects[i].bytes * (double)b.elements;
    printf("%-16s %9.2f ms %7.2f GB/s  %5.2f of the copy's rate  %6.2f x the time of AdamW\n", subjects[i].name,
           1e3 * seconds, bytes / seconds / 1e9, bytes / seconds / (8 * (double)b.elements / copied),
           seconds / updated);
  }
  b.host->destroy(b.backend);
  return 0;
}
