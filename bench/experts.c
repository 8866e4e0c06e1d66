/* A layer of experts, forward and backward: cost of routing and exchanging tokens, compared with the products of the
 * experts. Medians of alternating rounds; on the host CPU seconds, since machines are shared.
 *
 *   bench-experts [--backend host|cuda] [--tokens T] [--hidden H] [--inner I] [--experts E] [--choices K] [--threads N]
 *                 [--dropless 1] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/support.h"
#include "real/real.h"
#include "tests/kernel_operands.h"

enum { ROUNDS = 5, MOST = 12 };

typedef struct timed {
  const char *name;
  tws_work work;
  int is_product;
  void *data[KERNEL_MAX_OPERANDS];
  tws_dtype types[KERNEL_MAX_OPERANDS];
  const char *names[KERNEL_MAX_OPERANDS];
  int count;
  double seconds[ROUNDS];
} timed;

typedef struct sizes {
  int64_t tokens, hidden, inner, experts, choices, threads, dropless;
} sizes;

static double now_s(int is_host) {
  struct timespec now;
  clock_gettime(is_host ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void allocate(const tws_backend_ops *ops, tws_backend *backend, timed *t, int threads) {
  operand_info info[KERNEL_MAX_OPERANDS];
  tws_error err = {0};
  uint32_t state = 12345;
  t->count = kernel_operands(&t->work, NULL, threads, info);
  for (int k = 0; k < t->count; ++k) {
    t->types[k] = info[k].dtype;
    t->names[k] = info[k].name;
    const uint64_t bytes = (uint64_t)info[k].count * tws_dtype_bytes(info[k].dtype);
    float *numbers = calloc(1, bytes);
    need(numbers ? ops->allocate(backend, TWS_TIER_DEVICE, bytes, &t->data[k], &err) : TWS_MEMORY, &err);
    for (int64_t i = 0; i < info[k].count && info[k].dtype == TWS_F32; ++i) {
      state = state * 1664525U + 1013904223U;
      numbers[i] = (float)(state >> 8) / 16777216.0F - 0.5F;
    }
    need(ops->copy(backend, t->data[k], numbers, bytes, TWS_STREAM_COMPUTE, &err), &err);
    need(ops->synchronize(backend, &err), &err);
    free(numbers);
  }
}

static void run(const tws_backend_ops *ops, tws_backend *backend, timed *t) {
  const tws_arguments arguments = {{0, 0, 0.01, 1}};
  tws_error err = {0};
  need(ops->run(backend, &t->work, &arguments, t->data, t->types, t->count, TWS_STREAM_COMPUTE, &err), &err);
  need(ops->synchronize(backend, &err), &err);
}

/* Takes those operands of a kernel that the router has written: routes, weights, counts and probabilities. */
static void take(timed *t, const timed *router) {
  for (int k = 0; k < t->count; ++k)
    for (int from = 1; from < 5; ++from)
      if (strcmp(t->names[k], router->names[from]) == 0) t->data[k] = router->data[from];
}

static int make_cases(const sizes *s, timed *list) {
  const int64_t t = s->tokens, h = s->hidden, i = s->inner, e = s->experts, k = s->choices;
  const int64_t pack = s->dropless ? e : 0, even = t * k / e;
  const int64_t capacity = s->dropless ? (t * k + e - 1) / e : (t * k * 5 / 4 + e - 1) / e;
#define WORK(id, ...)                                                                  \
  (tws_work) {                                                                         \
    .code = TWS_KERNEL_##id, .dtype = TWS_F32, .dtype2 = TWS_F32, .d = { __VA_ARGS__ } \
  }
  const timed all[] = {
      {"router", WORK(ROUTER, t, e, k, capacity, 0, 0, pack), 0, {0}, {0}, {0}, 0, {0}},
      {"dispatch", WORK(DISPATCH, t, h, e, k, capacity, pack), 0, {0}, {0}, {0}, 0, {0}},
      {"up", WORK(EXPERT_LINEAR, 1, e, capacity, i, h, even, pack), 1, {0}, {0}, {0}, 0, {0}},
      {"down", WORK(EXPERT_LINEAR, 1, e, capacity, h, i, even, pack), 1, {0}, {0}, {0}, 0, {0}},
      {"combine", WORK(COMBINE, t, h, e, k, capacity, pack), 0, {0}, {0}, {0}, 0, {0}},
      {"combine_grad", WORK(COMBINE_GRAD, t, h, e, k, capacity, pack), 0, {0}, {0}, {0}, 0, {0}},
      {"down_grad_weight", WORK(EXPERT_LINEAR_GRAD_WEIGHT, 1, e, capacity, h, i, even, pack), 1, {0}, {0}, {0}, 0, {0}},
      {"down_grad_input", WORK(EXPERT_LINEAR_GRAD_INPUT, 1, e, capacity, h, i, even, pack), 1, {0}, {0}, {0}, 0, {0}},
      {"up_grad_weight", WORK(EXPERT_LINEAR_GRAD_WEIGHT, 1, e, capacity, i, h, even, pack), 1, {0}, {0}, {0}, 0, {0}},
      {"up_grad_input", WORK(EXPERT_LINEAR_GRAD_INPUT, 1, e, capacity, i, h, even, pack), 1, {0}, {0}, {0}, 0, {0}},
      {"dispatch_grad", WORK(DISPATCH_GRAD, t, h, e, k, capacity, pack), 0, {0}, {0}, {0}, 0, {0}},
      {"router_grad", WORK(ROUTER_GRAD, t, e, k, capacity, 0, 0, pack), 0, {0}, {0}, {0}, 0, {0}},
  };
#undef WORK
  memcpy(list, all, sizeof all);
  for (size_t n = 0; n < sizeof all / sizeof *all; ++n)
    if (list[n].work.code == TWS_KERNEL_ROUTER || list[n].work.code == TWS_KERNEL_ROUTER_GRAD)
      list[n].work.f[2] = list[n].work.f[4] = 1;
  return (int)(sizeof all / sizeof *all);
}

static void report(timed *list, int count) {
  double moves = 0, products = 0;
  for (int n = 0; n < count; ++n) {
    qsort(list[n].seconds, ROUNDS, sizeof *list[n].seconds, ascending);
    const double median = list[n].seconds[ROUNDS / 2];
    *(list[n].is_product ? &products : &moves) += median;
    printf("%-18s %9.3f ms\n", list[n].name, median * 1e3);
  }
  printf("routing and moving %.3f ms, products %.3f ms: %.1f %%\n", moves * 1e3, products * 1e3,
         100 * moves / products);
}

int main(int argc, char **argv) {
  sizes s = {4096, 1024, 4096, 8, 2, 2, 0};
  const char *name = "host";
  const struct {
    const char *name;
    int64_t *value;
  } options[] = {{"--tokens", &s.tokens},    {"--hidden", &s.hidden},   {"--inner", &s.inner},
                 {"--experts", &s.experts},  {"--choices", &s.choices}, {"--threads", &s.threads},
                 {"--dropless", &s.dropless}};
  for (int i = 1; i + 1 < argc; i += 2) {
    if (strcmp(argv[i], "--backend") == 0) name = argv[i + 1];
    for (size_t k = 0; k < sizeof options / sizeof *options; ++k)
      if (strcmp(argv[i], options[k].name) == 0) *options[k].value = argument_number(argv[i + 1]);
  }
  tws_error err = {0};
  static timed list[MOST];
  tws_backend *backend = NULL;
  const char *path = getenv("TWINSPEED_REAL_MODULE");
  void *symbol = module_symbol(path ? path : TWS_BUILD_DIR "/twinspeed_real.so", TWS_REAL_MODULE_SYMBOL);
  const tws_real_api *(*entry)(void);
  memcpy(&entry, &symbol, sizeof entry);
  const tws_backend_ops *ops = entry()->backend(name);
  if (!ops) {
    fprintf(stderr, "bench-experts: there is no backend %s\n", name);
    return 4;
  }
  need(ops->create(0, (int)s.threads, &backend, &err), &err);
  const int count = make_cases(&s, list);
  for (int n = 0; n < count; ++n) allocate(ops, backend, &list[n], (int)s.threads);
  run(ops, backend, &list[0]);
  for (int n = 1; n < count; ++n) take(&list[n], &list[0]);
  for (int round = -1; round < ROUNDS; ++round)
    for (int n = 0; n < count; ++n) {
      const double start = now_s(strcmp(name, "host") == 0);
      run(ops, backend, &list[n]);
      if (round >= 0) list[n].seconds[round] = now_s(strcmp(name, "host") == 0) - start;
    }
  report(list, count);
  ops->destroy(backend);
  return 0;
}
