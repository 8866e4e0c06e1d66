/* Runs one table of operation cases, and random shapes, in several modes: results against the float64 oracle, gradients
 * against its finite differences, bits that repeat, NaN that stays visible; always with guard zones around every
 * operand and checks that read-only operands are unchanged. */
#include <check.h>
#include <stdio.h>

#include "tests/kernel_run.h"
#include "tests/sanitized.h"

/* 1 with TWINSPEED_TEST_DEVICE=1: the test runs with a GPU's own libraries and instructions, which round in other
 * places than the emulated ones. */
static int on_device;

static double root_mean_square(const double *v, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += v[i] * v[i];
  return count ? sqrt(sum / (double)count) : 0;
}

static int is_product(const tws_work *w) {
  return (w->code >= TWS_KERNEL_LINEAR && w->code <= TWS_KERNEL_LINEAR_GRAD_WEIGHT) ||
         (w->code >= TWS_KERNEL_CONVOLUTION && w->code <= TWS_KERNEL_CONVOLUTION_GRAD_WEIGHT);
}

/* Returns the allowed error relative to the element and to the size of the operand: float32 sums of up to a thousand
 * terms; half a unit in the last place of bfloat16, or of half precision. The backward pass of attention reads rounded
 * o and lse. */
static double tolerance(const tws_work *w, tws_dtype out) {
  /* A device may round the probabilities to the storage type before it multiplies. */
  if (w->code == TWS_KERNEL_ATTENTION && w->dtype != TWS_F32 && backend_kind == TWS_BACKEND_CUDA)
    return out == TWS_BF16 ? 1.2e-2 : out == TWS_F16 ? 1.5e-3 : 2e-5;
  if (w->code == TWS_KERNEL_ATTENTION_GRAD || w->code == TWS_KERNEL_DISENTANGLED_GRAD)
    return w->dtype == TWS_BF16 ? 3e-2 : w->dtype == TWS_F16 ? 4e-3 : 2e-5;
  if (w->flags & TWS_STOCHASTIC && out == TWS_BF16) return 8e-3; /* a whole unit */
  /* The output that a kernel casts may be rounded the other way, and then have the adjacent code. */
  if (w->flags & TWS_FP8 && out == TWS_E4M3) return 0x1p-3;
  if (w->flags & TWS_FP8 && out == TWS_E5M2) return 0x1p-2;
  if (w->code == TWS_KERNEL_ATTENTION && w->flags & TWS_ALIBI && out == TWS_F32)
    return 1e-5; /* scores like distances */
  /* A product may be rounded before it is multiplied by the slope or before its activation is computed, which shows
   * with products in 8 bits. A device's library may round a product before it adds a bias or the accumulated values,
   * and Hopper keeps about 14 bits of the sums of products in 8 bits. The library's epilogue writes the gradient of a
   * bias, rounded, before the backend adds it to what is there, so that such sums are rounded twice, on the emulated
   * device too. Sums over sources may be rounded after each of them. */
  const uint32_t added = w->flags & (TWS_BIAS | TWS_ACCUMULATE);
  const int adds = on_device ? added != 0 : backend_kind == TWS_BACKEND_CUDA && added == (TWS_BIAS | TWS_ACCUMULATE);
  const int twice = (w->flags & TWS_GELU && (w->code == TWS_KERNEL_LINEAR_GRAD_INPUT || w->flags & TWS_FP8)) ||
                    (is_product(w) && adds && out != TWS_F32);
  const int sources = w->code == TWS_KERNEL_EXPERT_LINEAR_GRAD_WEIGHT && out != TWS_F32 ? (int)w->d[0] : 1;
  const double sums = on_device && w->flags & TWS_FP8 ? 0x1p-12 : 0;
  return (twice ? 2 : sources) * (out == TWS_BF16 ? 4e-3 : out == TWS_F16 ? 5e-4 : 5e-6) + sums;
}
/* Returns the allowed error of sums whose terms are rounded before or after they are added: the errors of terms are
 * independent. The root mean square of a term's error is at most half its tolerance, and the largest of some thousand
 * sums is off by five times as much. */
static double rounded_terms(const tws_work *w, const values *want, int operand) {
  const int from =
      w->code == TWS_KERNEL_LINEAR_GRAD_INPUT || w->code == TWS_KERNEL_NORM_GRAD ? operand_named(want, "dx") : -1;
  if (from < 0 || !(w->flags & TWS_SUMS) || operand != operand_named(want, "sums")) return 0;
  return 2.5 * tolerance(w, want->info[from].dtype) * sqrt((double)w->d[0]) *
         root_mean_square(want->v[from], want->info[from].count);
}
/* Returns the allowed error where a device rounds the gradients of keys and values for each query head that shares them
 * before it adds them up: half a unit in the last place of the largest gradient per head. */
static double rounded_heads(const tws_work *w, const double *want, int64_t count) {
  double largest = 0;
  if (w->code != TWS_KERNEL_ATTENTION_GRAD || w->dtype == TWS_F32 || !on_device) return 0;
  const int64_t heads = w->d[2] / w->d[3];
  for (int64_t i = 0; i < count && heads > 1; ++i) largest = fmax(largest, fabs(want[i]));
  return sqrt((double)heads) * largest * (w->dtype == TWS_BF16 ? 0x1p-9 : 0x1p-12);
}
/* Returns the absolute error that is always allowed: half a unit in the last place of denormal numbers. In a
 * cross-entropy over one choice the probability is 1 except for rounding. */
static double least_error(const tws_work *w, tws_dtype out) {
  if (tws_is_whole_loss((tws_kernel)w->code) && on_device) return 0x1p-22;
  if (w->code == TWS_KERNEL_ADAMW8 && out == TWS_U8) return 0.5; /* codes are whole, and half a code is either */
  return out == TWS_F16 ? 0x1p-25 : 0;
}

/* Returns 1 if a kernel's cases are to run. On a device one bad access corrupts all later work of its process, so
 * kernels can be tested separately: TWINSPEED_TEST_KERNEL lists their names, with commas between ("list": prints the
 * names). A line before each case names it, in case a process hangs or is killed. */
static int is_chosen(const tws_work *w) {
  const char *names = getenv("TWINSPEED_TEST_KERNEL"), *name = tws_kernel_name((tws_kernel)w->code);
  if (!names) return 1;
  const size_t length = strlen(name);
  while (strncmp(names, name, length) != 0 || (names[length] && names[length] != ',')) {
    names = strchr(names, ',');
    if (!names++) return 0;
  }
  printf("%s\n", label(w, 0, 0, 0));
  fflush(stdout);
  return 1;
}

static int list_kernels(void) {
  char seen[TWS_KERNEL_COUNT] = {0};
  for (int i = 0; i < ALL_CASES; ++i) {
    const tws_work w = work_of(i);
    if (!seen[w.code]++) puts(tws_kernel_name((tws_kernel)w.code));
  }
  return 0;
}

/* Returns 1 if the case is chosen and the backend supports it; the host has to support all. */
static int is_there(const tws_work *w) {
  if (!is_chosen(w)) return 0;
  const int there = host->supports(w);
  if (backend_kind == TWS_BACKEND_HOST) REQUIRE(there, "%s", label(w, 0, 0, 0));
  return there;
}

/* ---- mode: oracle ---- */
/* Computes the oracle's results of the operands: the same for every backend and number of threads. */
static values expected_values(const tws_work *w, const tws_arguments *a) {
  values want = make_values(w, a, 1);
  for (int k = 0; k < want.count; ++k) /* (+) outputs that are overwritten may start from any value */
    for (int64_t i = 0; i < want.info[k].count && want.info[k].access == TWS_OPERAND_WRITE; ++i) want.v[k][i] = 0;
  oracle_run(w, a, want.v, want.count);
  return want;
}

static void compare_with_oracle(const tws_work *w, const tws_arguments *a, const values *want, int device, int threads,
                                int shift) {
  values x = make_values(w, a, threads);
  storage s;
  if (run_case(w, a, &x, device, threads, shift, &s)) {
    for (int k = 0; k < x.count; ++k) {
      if (!(x.info[k].access & TWS_OPERAND_WRITE) || x.info[k].content == TWS_HOLDS_SCRATCH) continue;
      const double scale = root_mean_square(want->v[k], want->info[k].count), tol = tolerance(w, x.info[k].dtype);
      const double terms = rounded_terms(w, want, k) + rounded_heads(w, want->v[k], want->info[k].count);
      for (int64_t i = 0; i < want->info[k].count; ++i) {
        const double got = get(x.info[k].dtype, s.data[k], i), expected = want->v[k][i];
        const double allowed = tol * (fabs(expected) + scale) + terms + least_error(w, x.info[k].dtype);
        REQUIRE(got == expected || (isfinite(scale) && fabs(got - expected) <= allowed),
                "%s element %lld: %.9g instead of %.9g", label(w, threads, device, k), (long long)i, got, expected);
      }
    }
    free_storage(&s);
  }
  free_values(&x);
}

START_TEST(oracle) {
  const tws_work w = work_of(_i);
  const tws_arguments a = arguments_of(_i);
  if (!takes_case(_i) || !is_there(&w)) return;
  values want = expected_values(&w, &a);
  for (int threads = 1; threads <= most_threads; ++threads) compare_with_oracle(&w, &a, &want, 0, threads, 0);
  compare_with_oracle(&w, &a, &want, 0, 2, 1);
  for (int device = 1; device <= 3; ++device) compare_with_oracle(&w, &a, &want, device, 2, 0);
  free_values(&want);
}
END_TEST

/* ---- mode: gradient ---- */
typedef struct forward_view {
  tws_work work;
  tws_arguments arguments;
  double *o[KERNEL_MAX_OPERANDS]; /* operands of the forward kernel */
  int count, out;                 /* out: its output */
  const double *dy;               /* gradient of the output; NULL: the loss is o[out] itself */
  double *metrics;                /* ROUTER: metrics[0] is part of the loss */
  const double *active;           /* where not NULL: o[0] is the GELU of these values */
  int pair[4][2];                 /* gradient operand, forward operand; -1: none */
} forward_view;

/* Describes the forward kernel that a gradient belongs to, on the same operands. zero: memory for operands that do not
 * matter. Returns 0 where there is none to compare with. */
static int view_forward(const tws_work *w, const tws_arguments *a, const values *x, double *zero, double *out,
                        double *out2, forward_view *f) {
  double *const *v = x->v;
  const int bias = (w->flags & TWS_BIAS) && !(w->flags & TWS_RMS && w->code == TWS_KERNEL_NORM_GRAD);
  *f = (forward_view){.work = *w, .arguments = *a, .pair = {{-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}}};
#define FORWARD(kernel, dy_, out_, ...)                   \
  do {                                                    \
    f->work.code = TWS_KERNEL_##kernel;                   \
    f->dy = (dy_);                                        \
    f->out = (out_);                                      \
    double *operands[] = {__VA_ARGS__};                   \
    f->count = (int)(sizeof operands / sizeof *operands); \
    memcpy(f->o, operands, sizeof operands);              \
  } while (0)
#define PAIR(n, gradient, forward) (f->pair[n][0] = (gradient), f->pair[n][1] = (forward))
  if (w->flags & TWS_FP8) return 0; /* the oracle computes these from the codes' values, like products in more bits */
  switch ((tws_kernel)w->code) {
    case TWS_KERNEL_EMBEDDING_GRAD:
      FORWARD(EMBEDDING, v[1], 2, v[0], zero, out);
      f->work.d[3] = 0;
      PAIR(0, 2, 1);
      return 1;
    case TWS_KERNEL_POSITION_GRAD:
      FORWARD(EMBEDDING, v[0], 3, zero, zero + 1, zero + 1 + w->d[1], out);
      memcpy(f->work.d, (int64_t[]){w->d[0], w->d[1], 1, w->d[2], w->d[3]}, 5 * sizeof *w->d);
      f->arguments = (tws_arguments){{0, a->a[0]}};
      PAIR(0, 1, 2);
      return 1;
    case TWS_KERNEL_NORM_GRAD:
      if (w->flags & TWS_PLAIN) {
        FORWARD(NORM, v[0], 1, v[1], out, out2);
        PAIR(0, 3, 0);
        return 1;
      }
      FORWARD(NORM, v[0], bias ? 3 : 2, v[1], v[2], zero, out, out2);
      if (!bias) f->o[2] = out, f->o[3] = out2, f->count = 4;
      PAIR(0, 4, 0), PAIR(1, 5, 1);
      if (bias) PAIR(2, 6, 2);
      return 1;
    case TWS_KERNEL_HEADS_NORM_GRAD:
      FORWARD(HEADS_NORM, v[0], 3, v[1], v[2], v[3], out, out2);
      PAIR(0, 5, 0), PAIR(1, 6, 1), PAIR(2, 7, 2);
      return 1;
    case TWS_KERNEL_LINEAR_GRAD_INPUT:
      FORWARD(LINEAR, v[0], 2, zero, v[1], out);
      f->work.flags = 0;
      PAIR(0, 2, 0);
      if (!(w->flags & TWS_GELU)) return 1;
      f->active = f->o[f->count] = v[3];
      PAIR(0, 2, f->count);
      return 1;
    case TWS_KERNEL_LINEAR_GRAD_WEIGHT:
      FORWARD(LINEAR, v[0], bias ? 3 : 2, v[1], zero, zero + w->d[1] * w->d[2], out);
      if (!bias) f->o[2] = out, f->count = 3;
      PAIR(0, 2, 1);
      if (bias) PAIR(1, 3, 2);
      return 1;
    case TWS_KERNEL_BATCH_NORM_GRAD:
      FORWARD(BATCH_NORM, v[0], 3, v[1], v[2], zero, out, out2);
      PAIR(0, 4, 0), PAIR(1, 5, 1), PAIR(2, 6, 2);
      return 1;
    case TWS_KERNEL_CONVOLUTION_GRAD_INPUT:
      FORWARD(CONVOLUTION, v[0], 2, zero, v[1], out, NULL);
      f->work.flags = 0;
      PAIR(0, 2, 0);
      return 1;
    case TWS_KERNEL_CONVOLUTION_GRAD_WEIGHT:
      FORWARD(CONVOLUTION, v[0], bias ? 3 : 2, v[1], zero, zero + x->info[2].count, out, NULL);
      if (!bias) f->o[2] = out, f->o[3] = NULL, f->count = 4;
      PAIR(0, 2, 1);
      if (bias) PAIR(1, 3, 2);
      return 1;
    case TWS_KERNEL_MAX_POOL_GRAD:
      FORWARD(MAX_POOL, v[0], 1, v[1], out);
      PAIR(0, 2, 0);
      return 1;
    case TWS_KERNEL_AVERAGE_POOL_GRAD:
      FORWARD(AVERAGE_POOL, v[0], 1, zero, out);
      PAIR(0, 1, 0);
      return 1;
    case TWS_KERNEL_ATTENTION_GRAD:
      f->work.code = TWS_KERNEL_ATTENTION;
      f->dy = v[0];
      f->out = attention_tensors(w);
      f->count = attention_forward_operands(w, v, f->o);
      f->o[f->out] = out, f->o[f->out + 1] = out2;
      for (int k = 0; k < f->out; ++k) PAIR(k, 3 + f->out + k, k);
      if (w->flags & TWS_RELATIVE) {
        const int behind = (w->flags & TWS_LENGTHS ? 1 : 0) + (w->flags & TWS_DOCUMENTS ? 1 : 0);
        PAIR(f->out, 4 + 2 * f->out + behind, 2 + f->out + behind);
      }
      return 1;
    case TWS_KERNEL_DISENTANGLED_GRAD:
      f->work.code = TWS_KERNEL_DISENTANGLED;
      f->dy = v[0];
      f->out = 2;
      f->o[0] = v[1], f->o[1] = v[2], f->o[2] = out, f->o[3] = out2;
      for (f->count = 4; f->count + 3 < x->count; ++f->count) f->o[f->count] = v[f->count + 3];
      PAIR(0, 5, 0), PAIR(1, 6, 1);
      return 1;
    case TWS_KERNEL_GELU_GRAD:
    case TWS_KERNEL_GELU_EXACT_GRAD:
    case TWS_KERNEL_SIGMOID_GRAD:
    case TWS_KERNEL_SILU_GRAD:
    case TWS_KERNEL_LEAKY_RELU_GRAD:
    case TWS_KERNEL_CLAMP_GRAD:
    case TWS_KERNEL_SOFTCAP_GRAD:
    case TWS_KERNEL_RELU_GRAD:
    case TWS_KERNEL_SQUARED_RELU_GRAD:
    case TWS_KERNEL_SWIGLU_GRAD:
    case TWS_KERNEL_GEGLU_GRAD:
      FORWARD(GELU, v[0], 1, v[1], out);
      f->work.code = w->code - 1; /* these kernels immediately precede their gradients in the table of operators */
      PAIR(0, 2, 0);
      return 1;
    case TWS_KERNEL_HEADS_UNPACK:
      FORWARD(HEADS_PACK, v[0], 1, zero, out);
      PAIR(0, 1, 0);
      return 1;
    case TWS_KERNEL_ROPE_GRAD: /* in place */
      FORWARD(ROPE, v[0], 0, out, v[1], v[2]);
      f->count = x->count;
      PAIR(0, 0, 0);
      return 1;
    case TWS_KERNEL_ROUTER_GRAD: {
      const int64_t logits = w->d[0] * w->d[1];
      const int scaled = (w->flags & TWS_SCALED) != 0;
      const double scale = scaled ? v[5][TWS_HYPER_SCALE] : 1, *sums = w->flags & TWS_Z_LOSS ? v[5 + scaled] : NULL;
      for (int64_t i = 0; i < logits; ++i) /* they have these probabilities */
        zero[i] = log(v[1][i]) - (w->flags & TWS_SIGMOID ? log(1 - v[1][i]) : 0) + (sums ? sums[i / w->d[1]] : 0);
      double *counted = out2 + w->d[1] * TWS_EXPERT_COUNTS;
      FORWARD(ROUTER, v[0], 3, zero, zero + logits, zero + 2 * logits, out, out2, counted, counted + 2,
              counted + 2 + w->d[1]);
      f->metrics = f->o[5];
      f->work.flags &= TWS_SIGMOID | TWS_Z_LOSS;
      f->work.f[0] = f->work.f[3] = 0; /* as the routes were made */
      f->arguments = (tws_arguments){{0, 0, a->a[0] * scale, 0, 0, a->a[1] * scale}};
      PAIR(0, 4, 0);
      return 1;
    }
    case TWS_KERNEL_LATENT_GRAD:
      FORWARD(LATENT, v[0], 3, zero, zero + x->info[1].count, zero + x->info[1].count + x->info[2].count, out, v[4]);
      f->count = x->count;
      PAIR(0, 1, 0), PAIR(1, 2, 1), PAIR(2, 3, 2);
      return 1;
    case TWS_KERNEL_PART_BIAS_GRAD:
      FORWARD(PART_BIAS, v[0], 1, zero, out);
      f->work.flags = 0;
      PAIR(0, 1, 0);
      return 1;
    case TWS_KERNEL_TOKEN_UNFOLD_GRAD:
    case TWS_KERNEL_SPANS_GRAD:
      FORWARD(SPANS, v[0], w->flags & TWS_LENGTHS ? 2 : 1, zero, v[1], out);
      if (!(w->flags & TWS_LENGTHS)) f->o[1] = out, f->count = 2;
      f->work.code = w->code - 1; /* as those above */
      f->work.flags = w->flags & TWS_LENGTHS;
      PAIR(0, f->out, 0);
      return 1;
    case TWS_KERNEL_PART_GRAD:
      FORWARD(PART, v[0], 1, zero, out);
      f->work.flags = 0;
      PAIR(0, 1, 0);
      return 1;
    case TWS_KERNEL_LOW_RANK_GRAD_INPUT:
      FORWARD(LOW_RANK, v[0], 2, zero, v[1], out);
      PAIR(0, 2, 0);
      return 1;
    case TWS_KERNEL_LOW_RANK_GRAD_WEIGHT:
      FORWARD(LOW_RANK, v[0], 2, v[1], zero, out);
      f->work.flags = 0;
      PAIR(0, 2, 1);
      return 1;
    case TWS_KERNEL_GATE_GRAD:
      FORWARD(GATE, v[0], 2, v[1], v[2], out);
      PAIR(0, 3, 0), PAIR(1, 4, 1);
      return 1;
    case TWS_KERNEL_DISPATCH_GRAD:
      FORWARD(DISPATCH, v[0], 3, zero, v[1], NULL, out);
      PAIR(0, 2, 0);
      return 1;
    case TWS_KERNEL_COMBINE_GRAD:
      FORWARD(COMBINE, v[0], 3, v[1], v[2], v[3], out);
      f->work.flags = 0;
      PAIR(0, 5, 0), PAIR(1, 6, 2);
      return 1;
    case TWS_KERNEL_EXPERT_LINEAR_GRAD_INPUT:
      FORWARD(EXPERT_LINEAR, v[0], 3, zero, v[1], v[2], out);
      f->work.flags = 0;
      PAIR(0, 3, 0);
      return 1;
    case TWS_KERNEL_EXPERT_LINEAR_GRAD_WEIGHT:
      FORWARD(EXPERT_LINEAR, v[0], bias ? 4 : 3, v[1], zero, zero + w->d[1] * w->d[3] * w->d[4], v[2], out);
      if (!bias) f->o[2] = v[2], f->o[3] = out, f->count = 4;
      PAIR(0, 3, 1);
      if (bias) PAIR(1, 4, 2);
      return 1;
    case TWS_KERNEL_BINARY_CROSS_ENTROPY:
    case TWS_KERNEL_MEAN_SQUARED_ERROR:
    case TWS_KERNEL_CROSS_ENTROPY:
      FORWARD(CROSS_ENTROPY, NULL, 2, out, v[1], out2);
      f->work.code = w->code;
      f->arguments.a[1] = oracle_counted(w, a->a[0] * (w->flags & TWS_SCALED ? v[3][TWS_HYPER_SCALE] : 1), v[2]);
      f->work.flags = 0;
      PAIR(0, 0, 0);
      return 1;
    default:
      return 0;
  }
#undef FORWARD
#undef PAIR
}

/* Returns the sum of dy y with one element of a forward operand changed by `change`. */
static double moved_loss(const forward_view *f, const values *x, int operand, int64_t index, double change) {
  operand_info info[KERNEL_MAX_OPERANDS];
  kernel_operands(&f->work, &f->arguments, 1, info);
  if (tws_is_whole_loss((tws_kernel)f->work.code)) {
    memcpy(f->o[0], x->v[0], (size_t)info[0].count * sizeof(double));
    f->o[2][0] = f->o[2][1] = 0;
  } else if (f->work.code == TWS_KERNEL_ROPE) {
    for (int64_t i = 0; i < info[0].count; ++i) f->o[0][i] = sin((double)i);
  }
  if (f->work.code == TWS_KERNEL_LOW_RANK || f->work.code == TWS_KERNEL_PART_BIAS)
    memset(f->o[f->out], 0, (size_t)info[f->out].count * sizeof(double));
  if (f->metrics) f->metrics[0] = 0;
  const double was = f->o[operand][index];
  f->o[operand][index] += change;
  for (int64_t i = 0; i < info[0].count && f->active; ++i) f->o[0][i] = oracle_gelu(f->active[i]);
  oracle_run(&f->work, &f->arguments, (double **)f->o, f->count);
  double sum = f->metrics ? f->metrics[0] : 0;
  for (int64_t i = 0; i < info[f->out].count; ++i) sum += f->o[f->out][i] * (f->dy ? f->dy[i] : 1);
  if (f->o[operand] != f->o[f->out] && !tws_is_whole_loss((tws_kernel)f->work.code)) f->o[operand][index] = was;
  return sum;
}

START_TEST(gradient) {
  enum { PROBES = TWS_SANITIZED ? 2 : 8 };
  tws_work w = work_of(_i);
  const tws_arguments a = arguments_of(_i);
  if (!takes_again("gradient", _i) || !is_there(&w)) return;
  w.flags &= ~(uint32_t)(TWS_ACCUMULATE | TWS_ACCUMULATE_PARAM);
  values x = make_values(&w, &a, 2), got = copy_values(&x);
  int64_t most = 1;
  for (int k = 0; k < x.count; ++k) most += x.info[k].count;
  double *room = calloc((size_t)most * 3 + 3, sizeof *room);
  forward_view f;
  storage s;
  if (view_forward(&w, &a, &got, room, room + most, room + 2 * most, &f)) {
    ck_assert(run_case(&w, &a, &x, 0, 2, 0, &s));
    for (int p = 0; p < 4 && f.pair[p][0] >= 0; ++p) {
      const int k = f.pair[p][0];
      const operand_info *info = &x.info[k];
      double square = 0;
      for (int64_t i = 0; i < info->count; ++i) square += pow(get(info->dtype, s.data[k], i), 2);
      const double scale = sqrt(square / (double)info->count);
      const double tol = w.dtype == TWS_BF16 ? 2e-2 : w.dtype == TWS_F16 ? 3e-3 : 2e-5;
      for (int probe = 0; probe < PROBES; ++probe) {
        const int64_t i = draw(99, (uint64_t)(probe + 100 * p), 0, info->count - 1);
        const double h = 1e-4;
        const double slope =
            (moved_loss(&f, &x, f.pair[p][1], i, h) - moved_loss(&f, &x, f.pair[p][1], i, -h)) / (2 * h);
        const double found = get(info->dtype, s.data[k], i);
        REQUIRE(fabs(found - slope) <= tol * (fabs(slope) + scale) + least_error(&w, info->dtype),
                "%s element %lld: %.9g, but the slope is %.9g", label(&w, 2, 0, k), (long long)i, found, slope);
      }
    }
    free_storage(&s);
  }
  free(room);
  free_values(&x);
  free_values(&got);
}
END_TEST

/* ---- mode: same bits ---- */
/* Returns 1 if an operand's bits depend on the number of threads: products are divided among threads, and these sums
 * have one part per thread. */
static int depends_on_threads(const tws_work *w, int operand) {
  switch ((tws_kernel)w->code) {
    case TWS_KERNEL_LINEAR:
    case TWS_KERNEL_LINEAR_GRAD_INPUT:
    case TWS_KERNEL_LINEAR_GRAD_WEIGHT:
    case TWS_KERNEL_EXPERT_LINEAR:
    case TWS_KERNEL_EXPERT_LINEAR_GRAD_INPUT:
    case TWS_KERNEL_EXPERT_LINEAR_GRAD_WEIGHT:
    case TWS_KERNEL_LOW_RANK:
    case TWS_KERNEL_LOW_RANK_GRAD_INPUT:
    case TWS_KERNEL_LOW_RANK_GRAD_WEIGHT:
    case TWS_KERNEL_CONVOLUTION:
    case TWS_KERNEL_CONVOLUTION_GRAD_INPUT:
    case TWS_KERNEL_CONVOLUTION_GRAD_WEIGHT:
      return 1;
    case TWS_KERNEL_BINARY_CROSS_ENTROPY:
    case TWS_KERNEL_MEAN_SQUARED_ERROR:
    case TWS_KERNEL_CROSS_ENTROPY:
      return operand == 2;
    case TWS_KERNEL_VOCABULARY_LOSS:
      return operand == 3;
    case TWS_KERNEL_COUNT_IGNORED:
    case TWS_KERNEL_SQUARED_NORM:
      return operand == 1;
    case TWS_KERNEL_MEAN_SQUARE:
      return operand == 1;
    case TWS_KERNEL_FRESH_MOMENTS:
      return operand == 8;
    case TWS_KERNEL_FACTOR_NORMS:
      return operand == 2;
    case TWS_KERNEL_LAMB_NORMS:
      return operand == 6;
    default:
      return 0;
  }
}

START_TEST(repeatable) {
  const tws_work w = work_of(_i);
  const tws_arguments a = arguments_of(_i);
  if (!takes_again("repeatable", _i) || !is_there(&w)) return;
  for (int threads = 1; threads <= most_threads; ++threads) {
    values x = make_values(&w, &a, threads);
    storage first, second, single;
    ck_assert(run_case(&w, &a, &x, 0, threads, 0, &first));
    ck_assert(run_case(&w, &a, &x, 0, threads, 0, &second));
    if (threads > 1) ck_assert(run_case(&w, &a, &x, 0, 1, 0, &single));
    for (int k = 0; k < x.count; ++k) {
      if (x.info[k].content == TWS_HOLDS_SCRATCH) continue;
      REQUIRE(memcmp(first.data[k], second.data[k], first.bytes[k]) == 0, "other bits the second time: %s",
              label(&w, threads, 0, k));
      if (threads > 1 && !depends_on_threads(&w, k))
        REQUIRE(memcmp(first.data[k], single.data[k], first.bytes[k]) == 0, "bits depend on threads: %s",
                label(&w, threads, 0, k));
    }
    free_storage(&first);
    free_storage(&second);
    if (threads > 1) free_storage(&single);
    free_values(&x);
  }
}
END_TEST

#include "tests/kernel_adafactor.h"
#include "tests/kernel_eight_bit.h"
#include "tests/kernel_identities.h"
#include "tests/kernel_muon.h"
#include "tests/kernel_optimizers.h"
#include "tests/kernel_rounding.h"
#include "tests/kernel_split.h"
#include "tests/kernel_largest.h"
#include "tests/kernel_casts.h"

/* ---- outputs that may use the memory of an input ---- */

/* Computes an output in memory of its own and in the memory of one input, and compares the bits. */
static void compare_in_place(const tws_work *w, int out, int input) {
  const tws_arguments a = {{0.5}};
  values x = make_values(w, &a, 2);
  storage apart, joined = make_storage(&x, 0);
  ck_assert(run_case(w, &a, &x, 0, 2, 0, &apart));
  tws_backend *backend = use_backend(0, 2);
  void *data[KERNEL_MAX_OPERANDS];
  memcpy(data, joined.data, sizeof data);
  data[out] = data[input];
  ck_assert_int_eq(try_kernel(backend, w, &a, data, &x, NULL), TWS_OK);
  ck_assert_msg(memcmp(data[input], apart.data[out], apart.bytes[out]) == 0, "%s", label(w, 2, 0, out));
  free_storage(&apart);
  free_storage(&joined);
  free_values(&x);
}

/* Compares each output of a work with the same output in the memory of each input that the table allows; returns the
 * number of pairs. */
static int compare_places(const tws_work *w) {
  operand_info info[KERNEL_MAX_OPERANDS];
  const int count = kernel_operands(w, NULL, 2, info);
  int pairs = 0;
  for (int out = 0; out < count; ++out)
    for (const char *name = info[out].in_place; name && *name; name += strcspn(name, ","), name += strspn(name, ", "))
      for (int input = 0; input < count; ++input)
        if (strlen(info[input].name) == strcspn(name, ",") && strncmp(info[input].name, name, strcspn(name, ",")) == 0)
          compare_in_place(w, out, input), ++pairs;
  return pairs;
}

/* Returns 1 for kernels whose fourth size is that of a block, or of a group of blocks, and divides other sizes. */
static int counts_blocks(tws_kernel kernel) {
  return kernel == TWS_KERNEL_QUANTIZE_PARTS || kernel == TWS_KERNEL_DEQUANTIZE_PARTS ||
         kernel == TWS_KERNEL_DEQUANTIZE_TWICE || kernel == TWS_KERNEL_CODED_LINEAR;
}

START_TEST(in_place) {
  static const uint32_t flags[] = {0, TWS_RESIDUAL | TWS_RMS, TWS_RESIDUAL | TWS_BIAS};
  int pairs = 0;
  for (int kernel = 0; kernel < TWS_KERNEL_COUNT; ++kernel) {
    const int is_count = tws_operator_of((tws_kernel)kernel)->dims == 1;
    for (int variant = 0; variant < (is_count ? 1 : 3); ++variant)
      for (int64_t count = 1; count < (is_count ? 40000 : 400); count = count * 3 + 5) {
        tws_work w = {.code = (uint8_t)kernel, .flags = flags[variant], .d = {count, (int64_t[]){8, 37, 264}[variant]}};
        if (counts_blocks((tws_kernel)kernel)) w.d[3] = 8;
        for (int type = 0; type < 2; ++type) {
          w.dtype = w.dtype2 = (uint8_t)(type ? TWS_BF16 : TWS_F32);
          pairs += compare_places(&w);
        }
      }
  }
  ck_assert_int_gt(pairs, 50);
}
END_TEST

/* Activations of very large arguments do not overflow in between and reach their exact limits. */
START_TEST(wide_activations) {
  static const float at[] = {-3e38F, -1e20F, -1e4F, -100, -30, -12,  -1e-6F, 0,
                             1e-30F, 1e-6F,  12,    30,   100, 1e4F, 1e12F,  1e18F};
  enum { COUNT = sizeof at / sizeof *at };
  tws_backend *backend = use_backend(0, 1);
  float x[COUNT], y[COUNT], one[COUNT], slope[COUNT], pair[2 * COUNT], swish[COUNT];
  for (int i = 0; i < COUNT; ++i) x[i] = pair[i] = at[i], one[i] = 1, pair[COUNT + i] = 1;
  const tws_dtype f[] = {TWS_F32, TWS_F32, TWS_F32};
  const tws_work gelu = {.code = TWS_KERNEL_GELU, .d = {COUNT}}, grad = {.code = TWS_KERNEL_GELU_GRAD, .d = {COUNT}};
  const tws_work swiglu = {.code = TWS_KERNEL_SWIGLU, .d = {1, COUNT}};
  const tws_work exact = {.code = TWS_KERNEL_GELU_EXACT, .d = {COUNT}};
  const tws_work exact_grad = {.code = TWS_KERNEL_GELU_EXACT_GRAD, .d = {COUNT}};
  ck_assert_int_eq(run_kernel(backend, &gelu, NULL, (void *[]){x, y}, f, 2, NULL), TWS_OK);
  ck_assert_int_eq(run_kernel(backend, &grad, NULL, (void *[]){one, x, slope}, f, 3, NULL), TWS_OK);
  ck_assert_int_eq(run_kernel(backend, &swiglu, NULL, (void *[]){pair, swish}, f, 2, NULL), TWS_OK);
  for (int i = 0; i < COUNT; ++i) {
    const double v = at[i];
    ck_assert_double_le(fabs(y[i] - (v > 10 ? v : v < -10 ? 0 : oracle_gelu(v))), 3e-7 * fabs(v) * (v > -10) + 1e-25);
    ck_assert_double_le(fabs(slope[i] - (v > 10 ? 1 : v < -10 ? 0 : oracle_gelu_slope(v))), 3e-7);
    ck_assert_double_le(fabs(swish[i] - v / (1 + exp(-v))), 3e-7 * fabs(v / (1 + exp(-v))) + 1e-34 * fabs(v));
  }
  ck_assert_int_eq(run_kernel(backend, &exact, NULL, (void *[]){x, y}, f, 2, NULL), TWS_OK);
  ck_assert_int_eq(run_kernel(backend, &exact_grad, NULL, (void *[]){one, x, slope}, f, 3, NULL), TWS_OK);
  for (int i = 0; i < COUNT; ++i) {
    const double v = at[i], side = v > 10 ? 1 : 0;
    ck_assert_double_le(fabs(y[i] - (fabs(v) > 10 ? side * v : oracle_gelu_exact(v))),
                        3e-7 * fabs(v) * (v > -10) + 1e-22);
    ck_assert_double_le(fabs(slope[i] - (fabs(v) > 10 ? side : oracle_gelu_exact_slope(v))), 3e-7);
  }
}
END_TEST

/* ---- refusals ---- */
static void expect_refusal(const tws_work *w, values *x, tws_code want, const char *word) {
  tws_error err = {0};
  tws_backend *backend = use_backend(0, 1);
  storage s = make_storage(x, 0);
  ck_assert_int_eq(try_kernel(backend, w, NULL, s.data, x, &err), want);
  REQUIRE(strstr(err.message, word) != NULL, "'%s' lacks '%s'", err.message, word);
  free_storage(&s);
  free_values(x);
}

START_TEST(refusals) {
  tws_work w = {.code = TWS_KERNEL_CROSS_ENTROPY, .d = {4, 8, 16}};
  values x = make_values(&w, &tws_no_arguments, 1);
  x.v[1][1] = 8;
  expect_refusal(&w, &x, TWS_INVALID, "target 1 is 8");
  for (int k = TWS_KERNEL_VOCABULARY_STATS; k <= TWS_KERNEL_VOCABULARY_LOSS; ++k) {
    w = (tws_work){.code = (uint8_t)k, .d = {4, 8, 16, 2}};
    x = make_values(&w, &tws_no_arguments, 1);
    x.v[1][3] = -2;
    expect_refusal(&w, &x, TWS_INVALID, "target 3 is -2");
  }
  static const int64_t heads[][2] = {{3, 2}, {4, 3}, {4, 6}}; /* for 4 ranks */
  for (int i = 0; i < 6; ++i) {
    w = (tws_work){.code = (uint8_t)(i < 3 ? TWS_KERNEL_HEADS_PACK : TWS_KERNEL_HEADS_UNPACK), .d = {2, 4, 0, 0, 8}};
    memcpy(w.d + 2, heads[i % 3], sizeof heads[0]);
    x = make_values(&w, &tws_no_arguments, 1);
    expect_refusal(&w, &x, TWS_INVALID, "for 4 ranks");
  }
  w = (tws_work){.code = TWS_KERNEL_ATTENTION, .d = {1, 4, 3, 2, 8}};
  x = make_values(&w, &tws_no_arguments, 1);
  expect_refusal(&w, &x, TWS_INVALID, "3 query heads");
  w = (tws_work){.code = TWS_KERNEL_ROPE, .d = {4, 1, 1, 7, 4}, .f = {10000}};
  x = make_values(&w, &tws_no_arguments, 1);
  expect_refusal(&w, &x, TWS_UNSUPPORTED, "embedding of 7 elements");
  w = (tws_work){.code = TWS_KERNEL_ADD, .d = {4}};
  x = make_values(&w, &tws_no_arguments, 1);
  x.info[1].dtype = TWS_BF16; /* mixed */
  expect_refusal(&w, &x, TWS_UNSUPPORTED, "operand 1");
  x = make_values(&w, &tws_no_arguments, 1);
  free(x.v[--x.count]);
  expect_refusal(&w, &x, TWS_INTERNAL, "2 operands");

  tws_backend *backend = NULL;
  tws_error err = {0};
  ck_assert_int_eq(host->create(0, -1, &backend, &err), TWS_INVALID);
  ck_assert_int_eq(host->create(0, 100000, &backend, &err), TWS_INVALID);
  ck_assert_int_eq(host->create(9, 1, &backend, &err), TWS_UNSUPPORTED);
  ck_assert_ptr_null(backend);
  w = (tws_work){.code = TWS_KERNEL_LINEAR, .dtype = TWS_F64};
  ck_assert(!host->supports(&w));
  w.dtype = TWS_F16;
  ck_assert(host->supports(&w));
}
END_TEST

/* ---- arenas and copies ---- */
START_TEST(memory) {
  tws_backend *backend;
  tws_error err = {0};
  void *a, *b, *c;
  ck_assert_int_eq(host->create(0, 2, &backend, &err), TWS_OK);
  ck_assert_int_eq(host->allocate(backend, TWS_TIER_DEVICE, 3000001, &a, &err), TWS_OK);
  ck_assert_int_eq(host->allocate(backend, TWS_TIER_HOST, 3000001, &b, &err), TWS_OK);
  ck_assert_int_eq(host->allocate(backend, TWS_TIER_HOST, 0, &c, &err), TWS_OK);
  ck_assert_uint_eq((uintptr_t)a % TWS_ALIGNMENT, 0);
  unsigned char *p = a, *q = b;
  for (size_t i = 0; i < 3000001; ++i) {
    REQUIRE(p[i] == 0, "byte %zu of a fresh arena", i);
    p[i] = (unsigned char)(i * 7 + i / 1000);
  }
  ck_assert_int_eq(host->copy(backend, b, a, 3000001, TWS_STREAM_COPY_IN, &err), TWS_OK);
  ck_assert_mem_eq(p, q, 3000001);
  ck_assert_int_eq(host->copy(backend, q + 5, q, 2000000, TWS_STREAM_COPY_IN, &err), TWS_OK); /* they overlap */
  ck_assert_mem_eq(q + 5, p, 2000000);
  ck_assert_int_eq(host->synchronize(backend, &err), TWS_OK);
  host->release(backend, TWS_TIER_DEVICE, a);
  ck_assert_int_eq(host->allocate(backend, TWS_TIER_HOST, (uint64_t)1 << 60, &a, &err), TWS_MEMORY);
  ck_assert(strstr(err.message, "GiB") && err.hint[0]);
  host->destroy(backend);
}
END_TEST

int main(void) {
  const char *name = getenv("TWINSPEED_TEST_BACKEND"), *kernel = getenv("TWINSPEED_TEST_KERNEL");
  if (kernel && strcmp(kernel, "list") == 0) return list_kernels();
  staged = name && strcmp(name, "host") != 0;
  const int on_host = !staged || strcmp(name, "host-staged") == 0;
  host = load_backend(on_host ? "host" : name);
  if (!host) {
    fprintf(stderr, "backend %s was not built: nothing to test\n", on_host ? "host" : name);
    return on_host ? 0 : 1;
  }
  if (!on_host) backend_kind = TWS_BACKEND_CUDA;
  on_device = !on_host && getenv("TWINSPEED_TEST_DEVICE") != NULL;
  if (staged) most_threads = 1;
  Suite *suite = suite_create("kernels");
  TCase *modes = tcase_create("modes"), *repeats = tcase_create("repeats"), *single = tcase_create("single");
  TCase *identities = tcase_create("identities");
  tcase_set_timeout(modes, 60);
  tcase_set_timeout(identities, 60);
  tcase_set_timeout(repeats, 60);
  tcase_set_timeout(single, 60);
  tcase_add_loop_test(modes, oracle, 0, ALL_CASES);
  if (on_host)
    tcase_add_loop_test(modes, gradient, 0, ALL_CASES); /* other backends are compared with the oracle, which is checked
                                                         * here */
  tcase_add_loop_test(repeats, repeatable, 0, ALL_CASES);
  tcase_add_loop_test(modes, not_finite, 0, ALL_CASES);
  tcase_add_loop_test(identities, vocabulary_in_parts, 0, IDENTITY_ROUNDS);
  tcase_add_loop_test(identities, table_in_parts, 0, IDENTITY_ROUNDS);
  tcase_add_loop_test(identities, heads_there_and_back, 0, IDENTITY_ROUNDS);
  tcase_add_loop_test(identities, transposed_twice, 0, IDENTITY_ROUNDS);
  tcase_add_loop_test(identities, ignored_tokens_leave_the_mean, 0, IDENTITY_ROUNDS);
  tcase_add_loop_test(identities, dropout_keeps_the_mean, 0, 15);
  tcase_add_loop_test(identities, rounding_draws_the_stated_bits, 0, IDENTITY_ROUNDS);
  tcase_add_loop_test(identities, rounding_keeps_the_mean, 0, 15);
  tcase_add_loop_test(identities, rounding_is_to_an_adjacent_number, 0, 6);
  tcase_add_loop_test(identities, split_weights_are_float32_weights, 0, SPLIT_ROUNDS);
  tcase_add_loop_test(identities, largest_beside_the_output, 0, IDENTITY_ROUNDS);
  tcase_add_loop_test(identities, casts_in_the_kernel_that_computes, 0, IDENTITY_ROUNDS);
  tcase_add_loop_test(identities, sums_in_the_cast, 0, IDENTITY_ROUNDS);
  suite_add_tcase(suite, modes);
  suite_add_tcase(suite, identities);
  suite_add_tcase(suite, repeats);
  tcase_add_test(single, in_place);
  tcase_add_test(single, adam_golden);
  tcase_add_test(single, lion_golden);
  tcase_add_test(single, adagrad_golden);
  tcase_add_test(single, muon_golden);
  tcase_add_test(single, muon_updates);
  tcase_add_test(single, adafactor_golden);
  tcase_add_test(single, dynamic_maps_golden);
  tcase_add_test(single, dynamic_codes_golden);
  tcase_add_test(single, eight_bit_golden);
  tcase_add_test(single, sgd_golden);
  tcase_add_test(single, one_cycle_golden);
  tcase_add_test(single, overflow_skips_the_step);
  tcase_add_test(single, rounding_of_values_that_are_not_finite);
  tcase_add_test(single, halves_are_the_number);
  tcase_add_test(single, wide_activations);
  if (!staged) tcase_add_test(single, refusals);
  if (on_host) tcase_add_test(single, memory);
  suite_add_tcase(suite, single);
  return run_kernel_suite(suite);
}
