/* Kernels of the backend under test on operands between guard zones. */
#ifndef TESTS_KERNEL_RUN_H
#define TESTS_KERNEL_RUN_H

#include <check.h>
#include <stdio.h>

#include "base/float8.h"
#include "base/random.h"
#include "tests/kernel_backend.h"
#include "tests/kernel_cases.h"
#include "tests/kernel_operands.h"
#include "tests/oracle.h"

static const char *label(const tws_work *w, int threads, int device, int operand) {
  static char text[200];
  snprintf(text, sizeof text,
           "%s [%lld %lld %lld %lld %lld %lld %lld %lld] %s/%s flags %u, %d threads, device %d, operand %d",
           tws_kernel_name((tws_kernel)w->code), (long long)w->d[0], (long long)w->d[1], (long long)w->d[2],
           (long long)w->d[3], (long long)w->d[4], (long long)w->d[5], (long long)w->d[6], (long long)w->d[7],
           tws_dtype_name((tws_dtype)w->dtype), tws_dtype_name((tws_dtype)w->dtype2), w->flags, threads, device,
           operand);
  return text;
}

/* ---- values: doubles that are exactly what the storage type holds ---- */
typedef struct values {
  operand_info info[KERNEL_MAX_OPERANDS];
  double *v[KERNEL_MAX_OPERANDS];
  int count;
} values;

/* Draws an id within a rank's part of a vocabulary, or with `around` also up to a part's length outside it. */
static double id_near(uint64_t stream, int64_t i, double first, int64_t count, int around) {
  const int64_t begin = (int64_t)first, low = around && count <= begin ? begin - count : around ? 0 : begin;
  return (double)draw(stream, (uint64_t)i, low, begin + count * (around ? 2 : 1) - (count > 0));
}

/* Returns number i of the operand's own stream. The numbers are cached, because every mode and every number of threads
 * asks for the same ones again. */
static double normal_number(int operand, int64_t i) {
  static double *kept[KERNEL_MAX_OPERANDS];
  static int64_t counts[KERNEL_MAX_OPERANDS];
  if (i >= counts[operand]) {
    const int64_t count = 2 * i + 1024;
    kept[operand] = realloc(kept[operand], (size_t)count * sizeof(double));
    for (int64_t k = counts[operand]; k < count; ++k)
      kept[operand][k] = tws_random_normal(1, 50 + (uint64_t)operand, (uint64_t)k);
    counts[operand] = count;
  }
  return kept[operand][i];
}

static double fill_value(const tws_work *w, const tws_arguments *a, const operand_info *info, int operand, int64_t i) {
  const double normal = normal_number(operand, i);
  switch (info->content) {
    case TWS_HOLDS_NUMBERS: /* of a loss's metrics the second may be a share that is ignored */
      return (tws_is_whole_loss((tws_kernel)w->code) || w->code == TWS_KERNEL_VOCABULARY_LOSS) &&
                     info->dtype == TWS_F64 && i == 1 && (w->flags & TWS_COUNTED)
                 ? 0.75
                 : normal;
    case TWS_HOLDS_NEAR_ONE:
      return 1 + normal / 10;
    case TWS_HOLDS_POSITIVE:
      return normal * normal / 10;
    case TWS_HOLDS_IDS: /* the first token's id is in this part of the table */
      return id_near(50, i, info->first, (int64_t)info->below, i > 0 && info->first >= 1);
    case TWS_HOLDS_TARGETS:
      if (i % 4 == 2) return -1;
      return id_near(51, i, info->first, (int64_t)info->below, !tws_is_whole_loss((tws_kernel)w->code));
    case TWS_HOLDS_LENGTHS: /* some sequences are empty, the first is not */
      return i % 3 == 1 ? 0 : (double)draw(52, (uint64_t)i, 1, (int64_t)info->below - 1);
    case TWS_HOLDS_DOCUMENTS: { /* each token has its document's first and last position; every other sequence is a
                                 * single document */
      const int64_t seq = (int64_t)info->below, token = i / 2 % seq, sequence = i / 2 / seq;
      const int64_t length = sequence % 2 ? seq : draw(56, (uint64_t)sequence, 1, seq), begin = token / length * length;
      return (double)(i % 2 == 0 ? begin : begin + length < seq ? begin + length : seq);
    }
    case TWS_HOLDS_ROUTES: /* by make_routes() */
    case TWS_HOLDS_COUNTS:
      return 0;
    case TWS_HOLDS_COLUMNS: /* here and there none */
      return i % 7 == 5 ? 0 : info->first + (double)((int64_t)info->below * i / info->count);
    case TWS_HOLDS_STATS: /* one rank has only padding for some tokens */
      if (i / (3 * w->d[0]) == 1 && i / 3 % 3 == 1) return i % 3 == 0 ? -INFINITY : 0;
      return i % 3 == 1 ? 1 + normal * normal : normal;
    case TWS_HOLDS_CODES:
      return (double)draw(55, (uint64_t)i, 0, 255);
    case TWS_HOLDS_HYPER:
      return (double[TWS_HYPER_COUNT]){0.01, 0.19, 0.0975, 512, 17, 0.9, 0.95, 0.1, 0.05, 0.04}[i];
    case TWS_HOLDS_METRICS:
      if (w->code == TWS_KERNEL_CLIP && i == TWS_METRIC_IGNORED) return a->a[0];
      if (w->code == TWS_KERNEL_CLIP && w->f[1] > 0 && i >= TWS_METRIC_HEADS &&
          i < TWS_METRIC_HEADS + 2 * TWS_LOSS_HEADS) /* for each head the loss and the ignored share */
        return (double[2 * TWS_LOSS_HEADS]){2.5, a->a[0], 3.5, 0.125, 1.25, 0.75, 0.5, 0.25}[i - TWS_METRIC_HEADS];
      return (double[TWS_METRIC_COUNT]){1.5, 0, 6.25, 0, 0.75}[i];
    default:
      return NAN;
  }
}

/* Returns the number of operands that hold queries, keys and values: 1, 2 or 3. */
static int attention_tensors(const tws_work *w) {
  return w->flags & TWS_Q_K_V ? 3 : w->flags & TWS_Q_KV ? 2 : 1;
}

/* Collects the operands of the forward kernel from those of its gradient; returns how many there are. */
static int attention_forward_operands(const tws_work *w, double *const *v, double **out) {
  const int tensors = attention_tensors(w);
  int n = 0, k = 3 + 2 * tensors;
  for (int i = 0; i < tensors + 2; ++i) out[n++] = v[1 + i];
  if (w->flags & TWS_LENGTHS) out[n++] = v[k++];
  if (w->flags & TWS_DOCUMENTS) out[n++] = v[k++];
  if (w->flags & TWS_RELATIVE) out[n++] = v[k], k += 2; /* and its gradient */
  if (w->flags & TWS_DROPOUT) out[n++] = v[k++];
  out[n++] = NULL;
  return n;
}

static void free_values(values *x) {
  for (int k = 0; k < x->count; ++k) free(x->v[k]);
}

static int operand_named(const values *x, const char *name) {
  for (int k = 0; k < x->count; ++k)
    if (strcmp(x->info[k].name, name) == 0) return k;
  return -1;
}

/* Makes routes by a router with random logits; the counts of EXPERT_LINEAR and its gradients are random. */
static void make_routes(const tws_work *w, const tws_arguments *a, values *x) {
  const int routes = operand_named(x, "routes"), counts = operand_named(x, "counts"),
            probabilities = operand_named(x, "probabilities");
  for (int64_t i = 0; counts >= 0 && routes < 0 && i < x->info[counts].count; ++i)
    x->v[counts][i] = i == 0 ? w->d[2] : i % 3 ? 0 : (double)draw(53, (uint64_t)i, 0, w->d[2]);
  if (routes < 0 || w->code == TWS_KERNEL_ROUTER) return;
  tws_work router = {.code = TWS_KERNEL_ROUTER, .d = {w->d[0], w->d[2], w->d[3], w->d[4], 0, 0, w->d[5]}};
  if (w->code == TWS_KERNEL_ROUTER_GRAD) memcpy(router.d, w->d, sizeof router.d), memcpy(router.f, w->f, sizeof w->f);
  router.f[0] = router.f[3] = 0; /* without random numbers */
  if (w->code == TWS_KERNEL_ROUTER_GRAD) router.flags = w->flags & (TWS_SIGMOID | TWS_Z_LOSS);
  values of = {.count = kernel_operands(&router, a, 1, of.info)};
  for (int k = 0; k < of.count; ++k) of.v[k] = calloc((size_t)of.info[k].count + 1, sizeof(double));
  for (int64_t i = 0; i < of.info[0].count; ++i) of.v[0][i] = tws_random_normal(1, 54, (uint64_t)i);
  oracle_run(&router, a, of.v, of.count);
  const int from[] = {1, 2, 4, 7}, to[] = {probabilities, routes, counts, operand_named(x, "sums")};
  for (int k = 0; k < 4; ++k)
    if (to[k] >= 0) memcpy(x->v[to[k]], of.v[from[k]], sizeof(double) * (size_t)x->info[to[k]].count);
  free_values(&of);
}

static values fresh_values(const tws_work *w, const tws_arguments *a, int threads) {
  values x = {.count = kernel_operands(w, a, threads, x.info)};
  for (int k = 0; k < x.count; ++k) {
    x.v[k] = calloc((size_t)x.info[k].count + 1, sizeof(double));
    const int blank = x.info[k].access == TWS_OPERAND_WRITE || x.info[k].content == TWS_HOLDS_SCRATCH;
    for (int64_t i = 0; i < x.info[k].count; ++i)
      x.v[k][i] = blank ? NAN : stored(x.info[k].dtype, fill_value(w, a, &x.info[k], k, i));
  }
  tws_work forward = *w;
  const int amax = operand_named(&x, "amax");
  if (w->flags & TWS_FP8 && amax >= 0) x.v[amax][0] = 0.75; /* of an earlier step: larger numbers do not fit */
  if (w->code == TWS_KERNEL_NORM_GRAD) {
    forward.code = TWS_KERNEL_NORM;
    forward.flags &= TWS_RMS | TWS_PLAIN;
    double *y = calloc((size_t)(w->d[0] * w->d[1]), sizeof *y);
    if (w->flags & TWS_PLAIN)
      oracle_run(&forward, a, (double *[]){x.v[1], y, x.v[2]}, 3);
    else
      oracle_run(&forward, a, (double *[]){x.v[1], x.v[2], y, x.v[3]}, 4);
    free(y);
  } else if (w->code == TWS_KERNEL_HEADS_NORM_GRAD) {
    forward.code = TWS_KERNEL_HEADS_NORM;
    double *y = calloc((size_t)x.info[1].count, sizeof *y);
    oracle_run(&forward, a, (double *[]){x.v[1], x.v[2], x.v[3], y, x.v[4]}, 5);
    free(y);
  } else if (w->code == TWS_KERNEL_BATCH_NORM_GRAD) {
    forward.code = TWS_KERNEL_BATCH_NORM;
    forward.flags = 0;
    double *y = calloc((size_t)(w->d[0] * w->d[1]), sizeof *y);
    oracle_run(&forward, a, (double *[]){x.v[1], x.v[2], x.v[2], y, x.v[3]}, 5);
    free(y);
  } else if (w->code == TWS_KERNEL_QUANTIZE || w->code == TWS_KERNEL_QUANTIZE_SUM) {
    x.v[1][0] = 0;
    for (int64_t i = 0; i < x.info[0].count; ++i) x.v[1][0] = fmax(x.v[1][0], fabs(x.v[0][i]));
    if (w->flags & TWS_LARGEST) x.v[1][0] /= 3; /* the scale of an earlier step: the largest numbers do not fit */
  } else if (w->code == TWS_KERNEL_ATTENTION_GRAD) {
    double *operands[KERNEL_MAX_OPERANDS];
    forward.code = TWS_KERNEL_ATTENTION;
    oracle_run(&forward, a, operands, attention_forward_operands(w, x.v, operands));
  } else if (w->code == TWS_KERNEL_DISENTANGLED_GRAD) {
    double *operands[KERNEL_MAX_OPERANDS];
    forward.code = TWS_KERNEL_DISENTANGLED;
    for (int k = 0; k < 4; ++k) operands[k] = x.v[1 + k];
    for (int k = 7; k < x.count; ++k) operands[k - 3] = x.v[k];
    oracle_run(&forward, a, operands, x.count - 3);
  }
  make_routes(w, a, &x);
  for (int k = 0; k < x.count; ++k)
    for (int64_t i = 0; i < x.info[k].count && x.info[k].content == TWS_HOLDS_DERIVED; ++i)
      x.v[k][i] = stored(x.info[k].dtype, x.v[k][i]);
  return x;
}

static values copy_values(const values *x) {
  values copy = *x;
  for (int k = 0; k < x->count; ++k) {
    copy.v[k] = calloc((size_t)x->info[k].count + 1, sizeof(double));
    memcpy(copy.v[k], x->v[k], (size_t)x->info[k].count * sizeof(double));
  }
  return copy;
}

/* Returns the operands of a case. The last case's are kept, because several modes ask for the same operands with other
 * numbers of threads, which only change the size of workspaces. */
static values make_values(const tws_work *w, const tws_arguments *a, int threads) {
  static struct {
    tws_work work;
    tws_arguments arguments;
    values x;
  } last;
  if (!last.x.count || memcmp(&last.work, w, sizeof *w) != 0 || memcmp(&last.arguments, a, sizeof *a) != 0) {
    free_values(&last.x);
    last.work = *w, last.arguments = *a, last.x = fresh_values(w, a, 1);
  }
  values x = {.count = kernel_operands(w, a, threads, x.info)};
  for (int k = 0; k < x.count; ++k) {
    x.v[k] = calloc((size_t)x.info[k].count + 1, sizeof(double));
    for (int64_t i = 0; i < x.info[k].count; ++i)
      x.v[k][i] = x.info[k].content == TWS_HOLDS_SCRATCH ? NAN : last.x.v[k][i];
  }
  return x;
}

/* ---- storage, between guard zones ---- */
enum { GUARD = 256, PATTERN = 0xA5 };
typedef struct storage {
  unsigned char *block[KERNEL_MAX_OPERANDS];
  void *data[KERNEL_MAX_OPERANDS];
  size_t bytes[KERNEL_MAX_OPERANDS];
  int count, shift;
} storage;

static void put(tws_dtype type, void *data, int64_t i, double x) {
  if (type == TWS_F64)
    ((double *)data)[i] = x;
  else if (type == TWS_I32)
    ((int32_t *)data)[i] = isnan(x) ? INT32_MIN : (int32_t)x; /* NaN stands for an element that no operation has written
                                                               * yet */
  else if (type == TWS_U8)
    ((uint8_t *)data)[i] = isnan(x) ? UINT8_MAX : (uint8_t)x;
  else if (type == TWS_E4M3)
    ((uint8_t *)data)[i] = tws_to_e4m3((float)x);
  else if (type == TWS_E5M2)
    ((uint8_t *)data)[i] = tws_to_e5m2((float)x);
  else if (type == TWS_F32) {
    const float f = (float)x;
    memcpy((char *)data + 4 * i, &f, 4);
  } else
    ((uint16_t *)data)[i] = type == TWS_F16 ? tws_to_f16((float)x) : tws_to_bf16((float)x);
}
static double get(tws_dtype type, const void *data, int64_t i) {
  if (type == TWS_F64) return ((const double *)data)[i];
  if (type == TWS_I32) return ((const int32_t *)data)[i];
  if (type == TWS_U8) return ((const uint8_t *)data)[i];
  if (type == TWS_E4M3) return (double)tws_from_e4m3(((const uint8_t *)data)[i]);
  if (type == TWS_E5M2) return (double)tws_from_e5m2(((const uint8_t *)data)[i]);
  if (type == TWS_F16) return (double)tws_from_f16(((const uint16_t *)data)[i]);
  return type == TWS_F32 ? (double)((const float *)data)[i] : (double)tws_from_bf16(((const uint16_t *)data)[i]);
}

static storage make_storage(const values *x, int shift) {
  storage s = {.count = x->count, .shift = shift};
  for (int k = 0; k < x->count; ++k) {
    const size_t element = tws_dtype_bytes(x->info[k].dtype), lead = GUARD + (size_t)shift * element;
    s.bytes[k] = (size_t)x->info[k].count * element;
    const size_t total = (lead + s.bytes[k] + GUARD + 255) / 256 * 256;
    s.block[k] = aligned_alloc(256, total);
    memset(s.block[k], PATTERN, total);
    s.data[k] = s.block[k] + lead;
    for (int64_t i = 0; i < x->info[k].count; ++i) put(x->info[k].dtype, s.data[k], i, x->v[k][i]);
  }
  return s;
}

static void free_storage(storage *s) {
  for (int k = 0; k < s->count; ++k) free(s->block[k]);
}

static void check_surroundings(const tws_work *w, const values *x, const storage *s, int threads, int device) {
  for (int k = 0; k < s->count; ++k) {
    const unsigned char *after = (unsigned char *)s->data[k] + s->bytes[k];
    for (const unsigned char *p = s->block[k]; p < (unsigned char *)s->data[k]; ++p)
      REQUIRE(*p == PATTERN, "write before %s", label(w, threads, device, k));
    for (int i = 0; i < GUARD; ++i) REQUIRE(after[i] == PATTERN, "write after %s", label(w, threads, device, k));
    for (int64_t i = 0; i < x->info[k].count && x->info[k].access == TWS_OPERAND_READ; ++i)
      REQUIRE(get(x->info[k].dtype, s->data[k], i) == x->v[k][i] || isnan(x->v[k][i]), "input changed: %s",
              label(w, threads, device, k));
  }
}

static tws_code try_kernel(tws_backend *backend, const tws_work *w, const tws_arguments *a, void *const *data,
                           const values *x, tws_error *err) {
  tws_dtype types[KERNEL_MAX_OPERANDS];
  for (int k = 0; k < x->count; ++k) types[k] = x->info[k].dtype;
  return run_kernel(backend, w, a, data, types, x->count, err);
}

/* Runs a kernel on the operands between guard zones and checks the zones. Returns 0 where the machine lacks this
 * instruction set. */
static int run_case(const tws_work *w, const tws_arguments *a, const values *x, int device, int threads, int shift,
                    storage *s) {
  tws_error err = {0};
  tws_backend *backend = use_backend(device, threads);
  if (!backend) return 0;
  *s = make_storage(x, shift);
  const tws_code code = try_kernel(backend, w, a, s->data, x, &err);
  REQUIRE(code == TWS_OK, "%s: %s", label(w, threads, device, 0), err.message);
  check_surroundings(w, x, s, threads, device);
  return 1;
}

#endif
