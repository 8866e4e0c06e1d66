/* One training step of GPT-2 124M on this machine: model FLOP/s over the rate of a 2048^3 float32 matrix product
 * measured in the same run, for two batches and one and two threads, float32 and bf16. Rounds are interleaved and
 * medians reported, as machines like this are shared. Model FLOPs: 6 per parameter and token for the matrix products
 * plus attention, causal, without recomputation. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/random.h"
#include "bench/support.h"
#include "real/real.h"

enum { MAX_ROUNDS = 9, STEPS = 4, SIZE = 2048, CASES = 6 };

typedef struct bench_case {
  int64_t batch, seq;
  int threads;
  const char *dtype;
  double step_s[MAX_ROUNDS], peak[MAX_ROUNDS];
} bench_case;

static const tws_real_api *load(void) {
  const tws_real_api *(*get)(void);
  void *symbol = module_symbol(TWS_BUILD_DIR "/twinspeed_real.so", TWS_REAL_MODULE_SYMBOL);
  memcpy(&get, &symbol, sizeof get);
  return get();
}

/* Returns the FLOP/s of the matrix products that the kernels use, at the size at which they are fastest. */
static double product_peak(const tws_real_api *api, int threads) {
  tws_error err = {0};
  const tws_backend_ops *ops = api->backend("host");
  tws_backend *backend;
  size_t count = (size_t)SIZE * SIZE;
  float *data[3];
  for (int i = 0; i < 3; i++) {
    data[i] = aligned_alloc(TWS_ALIGNMENT, count * sizeof *data[i]);
    for (size_t k = 0; k < count; k++) data[i][k] = (float)(k % 17) * 0.125f - 1;
  }
  need(ops->create(0, threads, &backend, &err), &err);
  tws_work work;
  memset(&work, 0, sizeof work);
  work.kind = TWS_OP_COMPUTE;
  work.code = TWS_KERNEL_LINEAR;
  work.d[0] = work.d[1] = work.d[2] = SIZE;
  void *operands[3] = {data[0], data[1], data[2]};
  tws_dtype types[3] = {TWS_F32, TWS_F32, TWS_F32};
  double seconds[5];
  for (int i = 0; i < 6; i++) {
    double start = tws_clock_s();
    need(ops->run(backend, &work, NULL, operands, types, 3, TWS_STREAM_COMPUTE, &err), &err);
    need(ops->synchronize(backend, &err), &err);
    if (i > 0) seconds[i - 1] = tws_clock_s() - start;
  }
  ops->destroy(backend);
  for (int i = 0; i < 3; i++) free(data[i]);
  return 2.0 * SIZE * SIZE * SIZE / median(seconds, 5);
}

static double step_seconds(const tws_real_api *api, const tws_network *network, const bench_case *c, const char *data) {
  tws_error err = {0};
  tws_config *config;
  char number[32];
  need(tws_config_default(&config, &err), &err);
  snprintf(number, sizeof number, "%lld", (long long)c->batch);
  need(tws_config_set(config, "train_micro_batch_size_per_gpu", number, &err), &err);
  snprintf(number, sizeof number, "%lld", (long long)c->seq);
  need(tws_config_set(config, "twinspeed.sequence_length", number, &err), &err);
  snprintf(number, sizeof number, "%d", c->threads);
  need(tws_config_set(config, "twinspeed.threads", number, &err), &err);
  if (strcmp(c->dtype, "bf16") == 0) need(tws_config_set(config, "bf16.enabled", "true", &err), &err);
  need(tws_config_resolve(config, 1, &(tws_auto_context){network->hidden}, &err), &err);
  tws_plan_request plan = {.network = network, .config = config, .backend = TWS_BACKEND_HOST, .threads = c->threads};
  need(tws_plan_topology(config, 1, &plan.topology, &err), &err);
  tws_train_options options = {.plan = plan, .data = data, .steps = STEPS, .quiet = 1};
  tws_train_result result;
  need(api->train(&options, &result, &err), &err);
  tws_config_destroy(config);
  return result.median_step_s;
}

int main(int argc, char **argv) {
  tws_error err = {0};
  tws_network *network;
  int rank, world, rounds = argc > 1 ? argument_int(argv[1]) : 3;
  if (rounds < 1 || rounds > MAX_ROUNDS) {
    fprintf(stderr, "usage: bench-step [rounds, 1 to %d]\n", MAX_ROUNDS);
    return 2;
  }
  bench_case cases[CASES] = {{4, 64, 1, "fp32", {0}, {0}}, {4, 256, 1, "fp32", {0}, {0}},
                             {4, 64, 2, "fp32", {0}, {0}}, {4, 256, 2, "fp32", {0}, {0}},
                             {4, 64, 2, "bf16", {0}, {0}}, {4, 256, 2, "bf16", {0}, {0}}};
  char data[] = "/tmp/twinspeed-bench-XXXXXX";
  const tws_real_api *api = load();
  need(api->start(&argc, &argv, &rank, &world, &err), &err);
  need(tws_network_load("gpt2", 1, &network, &err), &err);
  int file = mkstemp(data);
  for (uint64_t i = 0; i < 65536; i++) { /* the content of the text does not affect the time */
    uint32_t out[4];
    tws_philox(1, 2, i, out);
    unsigned char letter = (unsigned char)('a' + out[0] % 26);
    if (write(file, &letter, 1) != 1) return 1;
  }
  close(file);
  printf("%s\n", api->description());
  for (int round = 0; round < rounds; round++) {
    for (int i = 0; i < CASES; i++) {
      cases[i].peak[round] = product_peak(api, cases[i].threads);
      cases[i].step_s[round] = step_seconds(api, network, &cases[i], data);
    }
  }
  unlink(data);
  printf("%-22s %8s %10s %12s %14s %14s %8s\n", "GPT-2 124M, batch", "threads", "step ms", "tokens/s", "model GFLOP/s",
         "sgemm GFLOP/s", "ratio");
  for (int i = 0; i < CASES; i++) {
    bench_case *c = &cases[i];
    double tokens = (double)(c->batch * c->seq);
    double flops = tokens * tws_network_training_flops_per_token(network, c->seq, 0, 1);
    double step = median(c->step_s, rounds), peak = median(c->peak, rounds);
    printf("%lld x %lld %-13s %8d %10.1f %12.0f %14.1f %14.1f %8.2f\n", (long long)c->batch, (long long)c->seq,
           c->dtype, c->threads, 1e3 * step, tokens / step, 1e-9 * flops / step, 1e-9 * peak, flops / step / peak);
  }
  tws_network_destroy(network);
  api->stop();
  return 0;
}
