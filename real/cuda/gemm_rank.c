/* Choosing among the candidates to do a product by doing them, on the device's clock. */
#include <math.h>
#include "real/cuda/gemm_library.h"

/* A device that has rested takes its time until its clocks are up: so long it does products first. */
static const double warm_ms = 100;
/* Runs that are timed together, and repetitions for candidates near the fastest. */
enum { TOGETHER = 4, TRIES = 3, WARM_RUNS = 1000 };

double tws_gemm_budget_ms(double flops, tws_dtype in) {
  const double least = 20, runs = 40, flops_per_ms = in == TWS_F32 ? 25e9 : 200e9;
  return least + runs * flops / flops_per_ms;
}

static tws_code prepare(tws_gemm_clock *clock, tws_error *err) {
  cudaError_t status = cudaSuccess;
  if (!clock->start) status = cudaEventCreate(&clock->start);
  if (status == cudaSuccess && !clock->stop) status = cudaEventCreate(&clock->stop);
  return status == cudaSuccess ? TWS_OK : tws_cuda_fail(err, status, "an event");
}

void tws_gemm_clock_destroy(tws_gemm_clock *clock) {
  if (clock->start) cudaEventDestroy(clock->start);
  if (clock->stop) cudaEventDestroy(clock->stop);
}

typedef struct ranking {
  const tws_gemm_clock *clock;
  cudaStream_t stream;
  tws_gemm_start start;
  void *user;
  double budget_ms, spent_ms;
} ranking;

/* Milliseconds of one of `times` runs. */
static tws_code time_runs(ranking *r, const tws_gemm_candidate *candidate, int times, double *milliseconds,
                          int *declined, tws_error *err) {
  float elapsed = 0;
  cudaError_t status = cudaEventRecord(r->clock->start, r->stream);
  *declined = 0;
  for (int i = 0; i < times && status == cudaSuccess && !*declined; i++)
    TWS_TRY(r->start(r->user, candidate, declined, err));
  if (status == cudaSuccess) status = cudaEventRecord(r->clock->stop, r->stream);
  if (status == cudaSuccess) status = cudaEventSynchronize(r->clock->stop);
  if (status == cudaSuccess) status = cudaEventElapsedTime(&elapsed, r->clock->start, r->clock->stop);
  if (status != cudaSuccess) return tws_cuda_fail(err, status, "timing a product");
  r->spent_ms += (double)elapsed;
  *milliseconds = (double)elapsed / times;
  return TWS_OK;
}

void tws_gemm_drop(tws_gemm_choice *c, int candidate) {
  for (int i = candidate + 1; i < c->candidates; i++) c->candidate[i - 1] = c->candidate[i];
  c->candidates--;
}

/* Products of any candidate, once for a device. */
static tws_code warm_up(ranking *r, tws_gemm_clock *clock, tws_gemm_choice *c, tws_error *err) {
  int declined = 0;
  double unused;
  if (clock->warm) return TWS_OK;
  for (int runs = 0; c->candidates > 0 && r->spent_ms < warm_ms && runs < WARM_RUNS; runs++) {
    if (runs % TOGETHER == 0) TWS_TRY(r->start(r->user, &c->candidate[0], &declined, err)); /* may load its kernel */
    if (!declined) TWS_TRY(time_runs(r, &c->candidate[0], TOGETHER, &unused, &declined, err));
    if (declined) tws_gemm_drop(c, 0);
  }
  clock->warm = 1;
  r->spent_ms = 0;
  return TWS_OK;
}

/* Times one run of each candidate, after an untimed one that loads its kernels, within half the budget. */
static tws_code time_once(ranking *r, tws_gemm_choice *c, double *milliseconds, tws_error *err) {
  int declined = 0;
  for (int i = 0; i < c->candidates;) {
    milliseconds[i] = INFINITY;
    if (r->spent_ms > r->budget_ms / 2) {
      i++;
      continue;
    }
    TWS_TRY(r->start(r->user, &c->candidate[i], &declined, err));
    if (!declined) TWS_TRY(time_runs(r, &c->candidate[i], 1, &milliseconds[i], &declined, err));
    if (declined)
      tws_gemm_drop(c, i);
    else
      i++;
  }
  return TWS_OK;
}

/* Times the candidates near the fastest again, several runs together; the minimum of some repetitions counts. */
static tws_code time_again(ranking *r, const tws_gemm_choice *c, double *milliseconds, tws_error *err) {
  const double far = 1.25;
  double least = INFINITY;
  int declined;
  for (int i = 0; i < c->candidates; i++) least = fmin(least, milliseconds[i]);
  for (int i = 0; i < c->candidates; i++) {
    if (milliseconds[i] > far * least || r->spent_ms > r->budget_ms) continue;
    milliseconds[i] = INFINITY;
    for (int try = 0; try < TRIES; try++) {
      double now = 0;
      TWS_TRY(time_runs(r, &c->candidate[i], TOGETHER, &now, &declined, err));
      milliseconds[i] = fmin(milliseconds[i], now);
    }
  }
  return TWS_OK;
}

tws_code tws_gemm_rank(tws_gemm_clock *clock, cudaStream_t stream, tws_gemm_choice *c, double budget_ms,
                       tws_gemm_start start, void *user, tws_error *err) {
  const double clearly = 0.98; /* a later proposal must be clearly faster: fewer choices that chance makes */
  double milliseconds[TWS_GEMM_CANDIDATES];
  ranking r = {.clock = clock, .stream = stream, .start = start, .user = user, .budget_ms = budget_ms};
  int best = 0;
  TWS_TRY(prepare(clock, err));
  TWS_TRY(warm_up(&r, clock, c, err));
  TWS_TRY(time_once(&r, c, milliseconds, err));
  TWS_TRY(time_again(&r, c, milliseconds, err));
  for (int i = 1; i < c->candidates; i++)
    if (milliseconds[i] < clearly * milliseconds[best]) best = i;
  if (best == 0) return TWS_OK;
  const tws_gemm_candidate fastest = c->candidate[best];
  tws_gemm_drop(c, best);
  for (int i = c->candidates++; i > 0; i--) c->candidate[i] = c->candidate[i - 1];
  c->candidate[0] = fastest;
  return TWS_OK;
}
