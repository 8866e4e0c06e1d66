/* Measures every kernel at the shapes of one training step of GPT-2 124M and, in the same run, the rate of 2048-cubed
 * float32 products: of the backend and, where the library is installed, of OpenBLAS. Medians, since machines are
 * shared.
 *
 *   bench-kernels [--json] [--threads N] [--batch B] [--seq S] [--dtype fp32|bf16|fp16] [--only KERNEL] */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "real/real.h"
#include "tests/kernel_operands.h"
#include "bench/support.h"

enum { WIDTH = 768, LAYERS = 12, VOCABULARY = 50257, PADDED = 50304, REPEATS = 7, PEAK_SIZE = 2048, MAX_CASES = 48 };
static const int64_t PARAMETERS = 124475904; /* with the padded vocabulary */

typedef struct bench_case {
  const char *name;
  tws_work work;
  int calls; /* in one step */
  double seconds;
} bench_case;

typedef struct bench_options {
  int json, threads, attention;
  int64_t batch, seq;
  tws_dtype dtype;
  const char *only;
} bench_options;

static void fill(const operand_info *info, void *data) {
  uint32_t state = 12345;
  for (int64_t i = 0; i < info->count; ++i) {
    state = state * 1664525U + 1013904223U;
    const float x = (float)(state >> 8) / 16777216.0F - 0.5F;
    if (info->dtype == TWS_F32) ((float *)data)[i] = info->content == TWS_HOLDS_POSITIVE ? x * x : x;
    if (info->dtype == TWS_BF16) ((uint16_t *)data)[i] = tws_to_bf16(x);
    if (info->dtype == TWS_F16) ((uint16_t *)data)[i] = tws_to_f16(x);
    if (info->dtype == TWS_I32)
      ((int32_t *)data)[i] = (int32_t)info->first + (int32_t)(state >> 8) % (int32_t)info->below;
    if (info->content == TWS_HOLDS_DOCUMENTS) ((int32_t *)data)[i] = i % 2 ? (int32_t)info->below : 0; /* one each */
    if (info->dtype == TWS_F64) ((double *)data)[i] = 1;
    if (info->dtype == TWS_U8) ((uint8_t *)data)[i] = (uint8_t)(state >> 24);
  }
}

/* Returns the CPU time if one thread does all the work, because it depends less on other work of the machine; else the
 * clock's time. */
static double clock_s(int threads) {
  return threads == 1 ? cpu_s() : tws_clock_s();
}

static double measure(const tws_backend_ops *host, tws_backend *backend, const tws_work *work, int threads) {
  operand_info info[KERNEL_MAX_OPERANDS];
  void *data[KERNEL_MAX_OPERANDS];
  tws_dtype types[KERNEL_MAX_OPERANDS];
  tws_error err = {0};
  const int count = kernel_operands(work, NULL, threads, info);
  for (int k = 0; k < count; ++k) {
    types[k] = info[k].dtype;
    need(host->allocate(backend, TWS_TIER_DEVICE, (uint64_t)info[k].count * tws_dtype_bytes(types[k]), &data[k], &err),
         &err);
    fill(&info[k], data[k]);
  }
  double seconds[REPEATS];
  for (int i = -1; i < REPEATS; ++i) {
    int turns = 0; /* the loop is repeated until it takes long enough for the clock */
    const double start = clock_s(threads);
    double elapsed;
    do {
      need(host->run(backend, work, NULL, data, types, count, TWS_STREAM_COMPUTE, &err), &err);
      ++turns;
      elapsed = clock_s(threads) - start;
    } while (elapsed < 2e-3);
    if (i >= 0) seconds[i] = elapsed / turns;
  }
  for (int k = 0; k < count; ++k) host->release(backend, TWS_TIER_DEVICE, data[k]);
  qsort(seconds, REPEATS, sizeof *seconds, ascending);
  return seconds[REPEATS / 2];
}

/* Returns the FLOP/s of cblas_sgemm, or 0 if OpenBLAS is not installed. */
static double openblas_peak(int threads) {
  typedef void (*sgemm_function)(int, int, int, int, int, int, float, const float *, int, const float *, int, float,
                                 float *, int);
  void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
  if (!library) return 0;
  void *sgemm_symbol = dlsym(library, "cblas_sgemm"), *set_symbol = dlsym(library, "openblas_set_num_threads");
  sgemm_function sgemm;
  void (*set_threads)(int);
  if (!sgemm_symbol || !set_symbol) return 0;
  memcpy(&sgemm, &sgemm_symbol, sizeof sgemm);
  memcpy(&set_threads, &set_symbol, sizeof set_threads);
  set_threads(threads);
  const size_t count = (size_t)PEAK_SIZE * PEAK_SIZE;
  float *x = calloc(count, sizeof *x), *y = calloc(count, sizeof *y), *z = calloc(count, sizeof *z);
  double seconds[REPEATS];
  for (size_t i = 0; i < count; ++i) x[i] = y[i] = (float)(i % 17) - 8;
  for (int i = -1; i < REPEATS; ++i) {
    const double start = tws_clock_s();
    sgemm(101, 111, 112, PEAK_SIZE, PEAK_SIZE, PEAK_SIZE, 1, x, PEAK_SIZE, y, PEAK_SIZE, 0, z, PEAK_SIZE);
    if (i >= 0) seconds[i] = tws_clock_s() - start;
  }
  free(x), free(y), free(z);
  qsort(seconds, REPEATS, sizeof *seconds, ascending);
  return 2.0 * PEAK_SIZE * PEAK_SIZE * PEAK_SIZE / seconds[REPEATS / 2];
}

typedef struct case_list {
  bench_case items[MAX_CASES];
  int count;
  bench_options options;
} case_list;

static void add(case_list *list, const char *name, tws_kernel kernel, int calls, uint32_t flags, int64_t d0, int64_t d1,
                int64_t d2, int64_t d3, int64_t d4) {
  bench_case *c = &list->items[list->count];
  *c = (bench_case){.name = name, .calls = calls};
  c->work = (tws_work){.kind = TWS_OP_COMPUTE, .code = (uint8_t)kernel, .flags = flags, .d = {d0, d1, d2, d3, d4}};
  c->work.dtype = (uint8_t)list->options.dtype;
  c->work.dtype2 = TWS_F32;
  c->work.f[0] = 1e-5;
  if (!list->options.only || strcmp(list->options.only, tws_kernel_name(kernel)) == 0) list->count++;
}

static void add_linear(case_list *list, const char *const names[3], int calls, uint32_t bias, uint32_t accumulate,
                       int64_t m, int64_t n, int64_t k) {
  add(list, names[0], TWS_KERNEL_LINEAR, calls, bias, m, n, k, 0, 0);
  add(list, names[1], TWS_KERNEL_LINEAR_GRAD_INPUT, calls, 0, m, n, k, 0, 0);
  add(list, names[2], TWS_KERNEL_LINEAR_GRAD_WEIGHT, calls, bias | accumulate, m, n, k, 0, 0);
}

/* Adds attention with features of models/attention.h. Each case does as much work as plain attention: its window is the
 * whole sequence. */
static void special_attention(case_list *list) {
  static const struct {
    const char *names[2];
    uint32_t flags;
    int window;
    double cap;
  } kinds[] = {{{"attention window", "attention window dx"}, 0, 1, 0},
               {{"attention alibi", "attention alibi dx"}, TWS_ALIBI, 0, 0},
               {{"attention cap", "attention cap dx"}, 0, 0, 50}};
  const bench_options *o = &list->options;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i)
    for (int k = 0; k < 2; ++k) {
      const int before = list->count;
      add(list, kinds[i].names[k], k ? TWS_KERNEL_ATTENTION_GRAD : TWS_KERNEL_ATTENTION, 0, kinds[i].flags, o->batch,
          o->seq, 12, 12, 64);
      if (list->count == before) continue;
      list->items[before].work.d[6] = kinds[i].window ? o->seq : 0;
      list->items[before].work.f[2] = kinds[i].cap;
    }
}

/* ---- kinds of attention compared with the plain one ---- */

enum { KINDS = 6, ROUNDS = 9 };
static const struct {
  const char *name;
  uint32_t flags;
  double dropout, cap;
  int window;
} attention_kinds[KINDS] = {{"plain", 0, 0, 0, 0},
                            {"window", 0, 0, 0, 1}, /* the window is the whole sequence, so the work is equal */
                            {"alibi", TWS_ALIBI, 0, 0, 0},
                            {"cap", 0, 0, 50, 0},
                            {"dropout", TWS_DROPOUT, 0.1, 0, 0},
                            {"documents", TWS_DOCUMENTS, 0, 0, 0}}; /* each sequence is one document, so the work is
                                                                     * equal */

static tws_work attention_work(const bench_options *o, int kind, int backward) {
  tws_work work = {.kind = TWS_OP_COMPUTE,
                   .code = backward ? TWS_KERNEL_ATTENTION_GRAD : TWS_KERNEL_ATTENTION,
                   .dtype = (uint8_t)o->dtype,
                   .dtype2 = TWS_F32,
                   .flags = attention_kinds[kind].flags,
                   .d = {o->batch, o->seq, 12, 12, 64}};
  work.d[6] = attention_kinds[kind].window ? o->seq : 0;
  work.f[1] = attention_kinds[kind].dropout;
  work.f[2] = attention_kinds[kind].cap;
  return work;
}

static int ascending_numbers(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Runs each kind of attention and the plain one in every round, and computes the median of their ratio. */
static void compare_attention(const tws_backend_ops *host, tws_backend *backend, const bench_options *o) {
  double share[2][KINDS][ROUNDS], least[2][KINDS];
  for (int round = 0; round < ROUNDS; ++round)
    for (int backward = 0; backward < 2; ++backward)
      for (int kind = 0; kind < KINDS; ++kind) {
        const tws_work plain = attention_work(o, 0, backward), work = attention_work(o, kind, backward);
        const double beside = measure(host, backend, &plain, o->threads),
                     seconds = measure(host, backend, &work, o->threads);
        share[backward][kind][round] = seconds / beside;
        if (round == 0 || seconds < least[backward][kind]) least[backward][kind] = seconds;
      }
  printf("%d threads, batch %lld x %lld, 12 heads of 64; %d rounds: least time, median of times the plain one\n",
         o->threads, (long long)o->batch, (long long)o->seq, ROUNDS);
  for (int kind = 0; kind < KINDS; ++kind) {
    for (int backward = 0; backward < 2; ++backward)
      qsort(share[backward][kind], ROUNDS, sizeof(double), ascending_numbers);
    printf("attention %-9s forward %8.3f ms %5.2f   backward %8.3f ms %5.2f\n", attention_kinds[kind].name,
           least[0][kind] * 1e3, share[0][kind][ROUNDS / 2], least[1][kind] * 1e3, share[1][kind][ROUNDS / 2]);
  }
}

static void gpt2_step(case_list *list) {
  const bench_options *o = &list->options;
  const int64_t t = o->batch * o->seq;
  add(list, "embedding", TWS_KERNEL_EMBEDDING, 1, 0, t, WIDTH, VOCABULARY, 1024, o->seq);
  add(list, "embedding gradient", TWS_KERNEL_EMBEDDING_GRAD, 1, TWS_ACCUMULATE, t, WIDTH, PADDED, 0, 0);
  add(list, "position gradient", TWS_KERNEL_POSITION_GRAD, 1, 0, t, WIDTH, 1024, o->seq, 0);
  add(list, "norm", TWS_KERNEL_NORM, 2 * LAYERS + 1, TWS_BIAS, t, WIDTH, 0, 0, 0);
  add(list, "norm gradient", TWS_KERNEL_NORM_GRAD, 2 * LAYERS + 1, TWS_BIAS | TWS_ACCUMULATE, t, WIDTH, 0, 0, 0);
  add_linear(list, (const char *const[]){"qkv", "qkv dx", "qkv dw"}, LAYERS, TWS_BIAS, 0, t, 3 * WIDTH, WIDTH);
  add_linear(list, (const char *const[]){"proj", "proj dx", "proj dw"}, LAYERS, TWS_BIAS, 0, t, WIDTH, WIDTH);
  add_linear(list, (const char *const[]){"fc", "fc dx", "fc dw"}, LAYERS, TWS_BIAS, 0, t, 4 * WIDTH, WIDTH);
  add_linear(list, (const char *const[]){"fc proj", "fc proj dx", "fc proj dw"}, LAYERS, TWS_BIAS, 0, t, WIDTH,
             4 * WIDTH);
  add_linear(list, (const char *const[]){"logits", "logits dx", "logits dw"}, 1, 0, 0, t, PADDED, WIDTH);
  add(list, "attention", TWS_KERNEL_ATTENTION, LAYERS, 0, o->batch, o->seq, 12, 12, 64);
  add(list, "attention gradient", TWS_KERNEL_ATTENTION_GRAD, LAYERS, 0, o->batch, o->seq, 12, 12, 64);
  add(list, "gelu", TWS_KERNEL_GELU, LAYERS, 0, t * 4 * WIDTH, 0, 0, 0, 0);
  add(list, "gelu gradient", TWS_KERNEL_GELU_GRAD, LAYERS, 0, t * 4 * WIDTH, 0, 0, 0, 0);
  add(list, "add", TWS_KERNEL_ADD, 2 * LAYERS, 0, t * WIDTH, 0, 0, 0, 0);
  add(list, "cross entropy", TWS_KERNEL_CROSS_ENTROPY, 1, 0, t, VOCABULARY, PADDED, 0, 0);
  add(list, "squared norm", TWS_KERNEL_SQUARED_NORM, 1, 0, PARAMETERS, 0, 0, 0, 0);
  list->items[list->count].work.dtype = TWS_F32;
  add(list, "adamw", TWS_KERNEL_ADAMW, 1, 0, PARAMETERS, 0, 0, 0, 0);
  /* not part of a plain step */
  add(list, "adamw bf16", TWS_KERNEL_ADAMW, 0, TWS_HALF_WEIGHTS | TWS_STOCHASTIC, PARAMETERS, 0, 0, 0, 0);
  add(list, "adamw bf16 moments", TWS_KERNEL_ADAMW, 0, TWS_HALF_WEIGHTS | TWS_HALF_MOMENTS | TWS_STOCHASTIC, PARAMETERS,
      0, 0, 0, 0);
  add(list, "rope", TWS_KERNEL_ROPE, 0, 0, t, 12, 12, 64, o->seq);
  add(list, "swiglu", TWS_KERNEL_SWIGLU, 0, 0, t, 2048, 0, 0, 0);
  add(list, "swiglu gradient", TWS_KERNEL_SWIGLU_GRAD, 0, 0, t, 2048, 0, 0, 0);
  special_attention(list);
  add(list, "accumulate", TWS_KERNEL_ACCUMULATE, 0, 0, 1 << 24, 0, 0, 0, 0);
  add(list, "cast", TWS_KERNEL_CAST, 0, 0, 1 << 24, 0, 0, 0, 0);
  add(list, "fill", TWS_KERNEL_FILL, 0, 0, 1 << 24, 0, 0, 0, 0);
  /* shapes of one of two tensor-parallel ranks that share the vocabulary */
  add(list, "vocabulary stats", TWS_KERNEL_VOCABULARY_STATS, 0, 0, t, PADDED / 2, PADDED / 2, 0, 0);
  add(list, "vocabulary loss", TWS_KERNEL_VOCABULARY_LOSS, 0, 0, t, PADDED / 2, PADDED / 2, 2, 0);
  add(list, "transpose", TWS_KERNEL_TRANSPOSE, 0, 0, o->batch, o->seq, WIDTH, 0, 0);
  add(list, "heads pack", TWS_KERNEL_HEADS_PACK, 0, 0, t, 2, 12, 12, 64);
  add(list, "heads unpack", TWS_KERNEL_HEADS_UNPACK, 0, 0, t, 2, 12, 1, 64);
  for (int i = 0; i < list->count; ++i) {
    tws_work *w = &list->items[i].work;
    if (w->code == TWS_KERNEL_ADAMW || w->code == TWS_KERNEL_SQUARED_NORM) w->dtype = TWS_F32;
    if (w->code == TWS_KERNEL_ADAMW) w->dtype2 = (uint8_t)o->dtype;
    if (w->flags & TWS_HALF_WEIGHTS) w->dtype = w->dtype2 = TWS_BF16;
    if (w->code == TWS_KERNEL_ADAMW) w->f[0] = 1e-8, w->f[1] = 0.01;
    if (w->code == TWS_KERNEL_ROPE) w->f[0] = 10000;
    if (w->code == TWS_KERNEL_CAST) w->dtype2 = (uint8_t)(o->dtype == TWS_F32 ? TWS_BF16 : o->dtype);
  }
}

static void print_case(const case_list *list, const bench_case *c, double peak, int first) {
  const double flops = tws_work_flops(&c->work), bytes = tws_work_bytes(&c->work);
  if (list->options.json) {
    printf(
        "%s\n  {\"name\": \"%s\", \"kernel\": \"%s\", \"calls\": %d, \"seconds\": %.6e, \"gflops\": %.2f, "
        "\"gbytes_per_s\": %.2f}",
        first ? "" : ",", c->name, tws_kernel_name((tws_kernel)c->work.code), c->calls, c->seconds,
        flops / c->seconds / 1e9, bytes / c->seconds / 1e9);
    return;
  }
  printf("%-19s %9.3f ms %8.1f GFLOP/s %6.2f of peak %7.1f GB/s %4d calls %8.1f ms a step\n", c->name, c->seconds * 1e3,
         flops / c->seconds / 1e9, flops / c->seconds / peak, bytes / c->seconds / 1e9, c->calls,
         c->calls * c->seconds * 1e3);
}

static void print_total(const case_list *list, double peak) {
  double step = 0, flops = 0;
  for (int i = 0; i < list->count; ++i) {
    const bench_case *c = &list->items[i];
    const tws_kernel kernel = (tws_kernel)c->work.code;
    step += c->calls * c->seconds;
    if (kernel == TWS_KERNEL_LINEAR || kernel == TWS_KERNEL_LINEAR_GRAD_INPUT ||
        kernel == TWS_KERNEL_LINEAR_GRAD_WEIGHT || kernel == TWS_KERNEL_ATTENTION ||
        kernel == TWS_KERNEL_ATTENTION_GRAD)
      flops += c->calls * tws_work_flops(&c->work);
  }
  if (list->options.json)
    printf("\n], \"kernels_of_a_step_s\": %.6f, \"model_gflops\": %.2f, \"of_peak\": %.4f}\n", step, flops / step / 1e9,
           flops / step / peak);
  else
    printf("kernels of a step: %.1f ms, products and attention %.1f GFLOP/s, %.3f of peak\n", step * 1e3,
           flops / step / 1e9, flops / step / peak);
}

static int parse(int argc, char **argv, bench_options *o) {
  *o = (bench_options){.threads = 1, .batch = 4, .seq = 64, .dtype = TWS_F32};
  for (int i = 1; i < argc; ++i) {
    const char *value = i + 1 < argc ? argv[i + 1] : "";
    if (strcmp(argv[i], "--json") == 0 || strcmp(argv[i], "--attention") == 0) {
      *(argv[i][2] == 'j' ? &o->json : &o->attention) = 1;
      continue;
    }
    if (strcmp(argv[i], "--threads") == 0)
      o->threads = argument_int(value);
    else if (strcmp(argv[i], "--batch") == 0)
      o->batch = argument_int(value);
    else if (strcmp(argv[i], "--seq") == 0)
      o->seq = argument_int(value);
    else if (strcmp(argv[i], "--dtype") == 0)
      o->dtype = strcmp(value, "bf16") == 0 ? TWS_BF16 : strcmp(value, "fp16") == 0 ? TWS_F16 : TWS_F32;
    else if (strcmp(argv[i], "--only") == 0)
      o->only = value;
    else
      return -1;
    ++i;
  }
  return o->threads > 0 && o->batch > 0 && o->seq > 0 && o->seq <= 1024 ? 0 : -1;
}

int main(int argc, char **argv) {
  static case_list list;
  if (parse(argc, argv, &list.options) != 0) {
    fprintf(
        stderr,
        "usage: bench-kernels [--json] [--threads N] [--batch B] [--seq S] [--dtype fp32|bf16|fp16] [--only KERNEL] "
        "[--attention]\n");
    return 2;
  }
  const char *path = getenv("TWINSPEED_REAL_MODULE");
  void *module = dlopen(path ? path : TWS_BUILD_DIR "/twinspeed_real.so", RTLD_NOW | RTLD_LOCAL);
  void *symbol = module ? dlsym(module, TWS_REAL_MODULE_SYMBOL) : NULL;
  if (!symbol) {
    fprintf(stderr, "%s\n", dlerror());
    return tws_code_exit(TWS_ENVIRONMENT);
  }
  const tws_real_api *(*entry)(void);
  memcpy(&entry, &symbol, sizeof entry);
  const tws_backend_ops *host = entry()->backend("host");
  tws_backend *backend;
  tws_error err = {0};
  const int threads = list.options.threads;
  need(host->create(0, threads, &backend, &err), &err);
  if (list.options.attention) {
    compare_attention(host, backend, &list.options);
    host->destroy(backend);
    return 0;
  }
  gpt2_step(&list);
  const tws_work cube = {.kind = TWS_OP_COMPUTE, .code = TWS_KERNEL_LINEAR, .d = {PEAK_SIZE, PEAK_SIZE, PEAK_SIZE}};
  const double ours = tws_work_flops(&cube) / measure(host, backend, &cube, threads), blas = openblas_peak(threads);
  const double peak = ours > blas ? ours : blas;
  const char *text = list.options.json
                         ? "{\"threads\": %d, \"batch\": %lld, \"seq\": %lld, \"sgemm_gflops\": %.2f, "
                           "\"openblas_gflops\": %.2f, \"cases\": ["
                         : "%d threads, batch %lld x %lld; float32 2048 cubed: %.1f GFLOP/s, OpenBLAS %.1f GFLOP/s\n";
  printf(text, threads, (long long)list.options.batch, (long long)list.options.seq, ours / 1e9, blas / 1e9);
  for (int i = 0; i < list.count; ++i) {
    list.items[i].seconds = measure(host, backend, &list.items[i].work, threads);
    print_case(&list, &list.items[i], peak, i == 0);
  }
  print_total(&list, peak);
  host->destroy(backend);
  return 0;
}
