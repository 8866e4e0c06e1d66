#include "config/elasticity.h"
#include <stdio.h>
#include <string.h>
#include "base/memory.h"
#include "base/units.h"

/* Highly composite numbers: each has more divisors than any smaller one. */
static const int64_t composites[] = {1,      2,      4,      6,      12,     24,     36,     48,    60,    120,
                                     180,    240,    360,    720,    840,    1260,   1680,   2520,  5040,  7560,
                                     10080,  15120,  20160,  25200,  27720,  45360,  50400,  55440, 83160, 110880,
                                     166320, 221760, 277200, 332640, 498960, 554400, 665280, 720720};
enum { COMPOSITES = sizeof composites / sizeof *composites, MOST_GPUS = 1 << 22 };

static tws_code check(const tws_elastic *e, tws_error *err) {
  if (e->max_batch < 1) return tws_fail(err, TWS_INVALID, NULL, "elasticity needs max_train_batch_size");
  if (e->micro_count < 1)
    return tws_fail(err, TWS_INVALID, "for example [2, 4, 6]", "elasticity needs micro_batch_sizes");
  for (int i = 0; i < e->micro_count; i++) {
    if (e->micro[i] < 1)
      return tws_fail(err, TWS_INVALID, NULL, "elasticity.micro_batch_sizes has %lld", (long long)e->micro[i]);
    if (e->micro[i] > e->max_batch)
      return tws_fail(err, TWS_INVALID, "raise elasticity.max_train_batch_size",
                      "a micro batch of %lld is more than the %lld samples of a step", (long long)e->micro[i],
                      (long long)e->max_batch);
  }
  if (e->min_gpus < 1 || e->max_gpus < e->min_gpus || e->max_gpus > MOST_GPUS)
    return tws_fail(err, TWS_INVALID, NULL, "elasticity: %lld to %lld GPUs", (long long)e->min_gpus,
                    (long long)e->max_gpus);
  if (e->version > 0.2) return tws_fail(err, TWS_INVALID, "use 0.2", "elasticity.version %g is not known", e->version);
  if (e->version < 0.2 && e->model_parallel > 1)
    return tws_fail(err, TWS_INVALID, "use version 0.2", "elasticity %g knows no model parallelism", e->version);
  if (e->version < 0.2) return TWS_OK;
  if (e->gpus_per_node < 1 || e->model_parallel < 1 || e->gpus_per_node % e->model_parallel != 0)
    return tws_fail(err, TWS_INVALID, NULL,
                    "elasticity: %lld model-parallel ranks do not divide the %lld GPUs of a node",
                    (long long)e->model_parallel, (long long)e->gpus_per_node);
  return TWS_OK;
}

/* Returns the largest batch up to `cap` that is `base` times a highly composite number. */
static int64_t grow(int64_t base, int64_t cap) {
  int i = COMPOSITES - 1;
  if (base >= cap) return base;
  while (i > 0 && composites[i] > cap / base) i--;
  return composites[i] * base;
}

/* Counts the numbers of GPUs, low to high, that can train the batch with one of the micro batches, and sets can[gpus]
 * to 1 for each of them. */
static int count_gpus(const tws_elastic *e, int64_t batch, int64_t low, int64_t high, unsigned char *can) {
  int count = 0;
  memset(can, 0, (size_t)high + 1);
  for (int m = 0; m < e->micro_count; m++) {
    if (batch % e->micro[m] != 0) continue;
    const int64_t parts = batch / e->micro[m];
    for (int64_t gpus = low; gpus <= high && gpus <= parts; gpus++)
      if (parts % gpus == 0 && !can[gpus]) {
        can[gpus] = 1;
        count++;
      }
  }
  return count;
}

/* Returns, for version 0.1, the batch that can be trained on the largest variety of numbers of GPUs, and sets can[gpus]
 * to 1 for each of these numbers. */
static int64_t choose_batch(const tws_elastic *e, int64_t cap, int64_t low, int64_t high, unsigned char *can) {
  int64_t best = e->micro[0], together = 1;
  int most = 0;
  for (int m = 0; m < e->micro_count; m++) {
    if (e->micro[m] < best) best = e->micro[m];
    const int64_t factor = e->micro[m] / tws_common_divisor(together, e->micro[m]);
    if (together <= cap && __builtin_mul_overflow(together, factor, &together)) together = INT64_MAX;
  }
  for (int m = 0; m <= e->micro_count; m++) {
    const int64_t base = m < e->micro_count ? e->micro[m] : together;
    if (base > cap) continue;
    const int64_t batch = grow(base, cap);
    const int count = count_gpus(e, batch, low, high, can);
    const int better = e->prefer_smaller ? batch < best : batch > best;
    if (count < most || (count == most && !better)) continue;
    most = count;
    best = batch;
  }
  count_gpus(e, best, low, high, can);
  return best;
}

static int64_t choose_micro(const tws_elastic *e, int64_t batch, int64_t gpus) {
  int64_t best = 0;
  for (int m = 0; m < e->micro_count && gpus > 0; m++)
    if (batch / gpus % e->micro[m] == 0 && (!best || (e->prefer_smaller ? 0 : e->micro[m] > best))) best = e->micro[m];
  return best;
}

/* Returns the largest batch that a number of GPUs can train. Version 0.2 uses it for numbers that cannot train the
 * chosen batch. */
static int64_t choose_for_world(const tws_elastic *e, int64_t gpus) {
  int64_t best = 0;
  for (int m = 0; m < e->micro_count; m++) {
    const int64_t unit = e->micro[m] * gpus, batch = unit > 0 ? e->max_batch / unit * unit : 0;
    if (!best || (e->prefer_smaller ? batch < best : batch > best)) best = batch;
  }
  return best;
}

static tws_code list_gpus(const unsigned char *can, int64_t high, int64_t times, tws_elastic_choice *out,
                          tws_error *err) {
  int count = 0;
  for (int64_t i = 1; i <= high; i++) count += can[i];
  tws_free(out->gpus);
  out->gpu_count = 0;
  out->gpus = tws_calloc((size_t)count + 1, sizeof *out->gpus);
  if (!out->gpus) return tws_fail(err, TWS_MEMORY, NULL, "no memory for elasticity");
  for (int64_t i = 1; i <= high; i++)
    if (can[i]) out->gpus[out->gpu_count++] = i * times;
  return TWS_OK;
}

static int is_listed(const tws_elastic_choice *choice, int64_t gpus) {
  for (int i = 0; i < choice->gpu_count; i++)
    if (choice->gpus[i] == gpus) return 1;
  return 0;
}

static tws_code refuse_world(const tws_elastic_choice *choice, int64_t world, tws_error *err) {
  char text[256] = "";
  int n = 0;
  int64_t below = 0, above = 0;
  for (int i = 0; i < choice->gpu_count; i++) {
    if (choice->gpus[i] < world) below = choice->gpus[i];
    if (choice->gpus[i] > world && !above) above = choice->gpus[i];
  }
  for (int i = 0; i < choice->gpu_count && n < 160; i++)
    n += snprintf(text + n, sizeof text - (size_t)n, "%s%lld", i ? " " : "", (long long)choice->gpus[i]);
  char hint[96] = "";
  if (below) n = snprintf(hint, sizeof hint, "use %lld", (long long)below);
  if (below && above) snprintf(hint + n, sizeof hint - (size_t)n, " or %lld", (long long)above);
  if (!below && above) snprintf(hint, sizeof hint, "use %lld", (long long)above);
  return tws_fail(err, TWS_INVALID, hint[0] ? hint : NULL,
                  "elasticity: %lld GPUs are none of the numbers that divide its batch of %lld: %s", (long long)world,
                  (long long)choice->batch, text);
}

static tws_code choose(const tws_elastic *e, int64_t world, unsigned char *can, tws_elastic_choice *out,
                       tws_error *err) {
  const int nodes = e->version >= 0.2;
  const int64_t replicas = nodes ? e->gpus_per_node / e->model_parallel : 1; /* data-parallel replicas of one node */
  int64_t low = nodes ? e->min_gpus / e->gpus_per_node : e->min_gpus;
  const int64_t high = nodes ? e->max_gpus / e->gpus_per_node : e->max_gpus;
  if (low < 1) low = 1;
  const int64_t cap = e->max_batch / replicas;
  memset(can, 0, (size_t)high + 2);
  out->batch = high >= low ? choose_batch(e, cap, low, high, can) * replicas : 0;
  TWS_TRY(list_gpus(can, high, replicas, out, err));
  const int64_t gpus = nodes ? world / e->model_parallel : world;
  if (nodes && world > 0 && !is_listed(out, gpus)) {
    const int64_t alone = world * replicas / e->gpus_per_node;
    out->batch = choose_for_world(e, alone);
    out->gpu_count = 1;
    out->gpus[0] = alone;
  }
  if (world > 0 && !is_listed(out, world)) return refuse_world(out, world, err);
  if (world > 0) out->micro = choose_micro(e, out->batch, world);
  return TWS_OK;
}

static tws_code choose_any(const tws_elastic *e, int64_t world, tws_elastic_choice *out, tws_error *err) {
  *out = (tws_elastic_choice){0};
  TWS_TRY(check(e, err));
  unsigned char *can = tws_calloc((size_t)e->max_gpus + 2, 1);
  tws_code code = can ? choose(e, world, can, out, err) : tws_fail(err, TWS_MEMORY, NULL, "no memory for elasticity");
  tws_free(can);
  if (code == TWS_OK) return TWS_OK;
  tws_free(out->gpus);
  *out = (tws_elastic_choice){0};
  return code;
}

tws_code tws_elastic_choose(const tws_elastic *e, int64_t world, tws_elastic_choice *out, tws_error *err) {
  *out = (tws_elastic_choice){0};
  TWS_TRY(check(e, err));
  if (world < 1 && e->version >= 0.2)
    return tws_fail(err, TWS_INVALID, "say how many: -n N", "elasticity 0.2 needs to know how many GPUs there are");
  return choose_any(e, world, out, err);
}

tws_code tws_elastic_list(const tws_elastic *e, tws_elastic_choice *out, tws_elastic_row **rows, int *count,
                          tws_error *err) {
  *rows = NULL;
  *count = 0;
  TWS_TRY(choose_any(e, 0, out, err));
  *rows = tws_calloc((size_t)out->gpu_count + 1, sizeof **rows);
  if (!*rows) {
    tws_free(out->gpus);
    *out = (tws_elastic_choice){0};
    return tws_fail(err, TWS_MEMORY, NULL, "no memory for elasticity");
  }
  const int64_t model = e->version >= 0.2 ? e->model_parallel : 1;
  for (int i = 0; i < out->gpu_count; i++) {
    tws_elastic_row row = {.gpus = out->gpus[i] * model, .replicas = out->gpus[i]};
    row.micro = choose_micro(e, out->batch, row.gpus);
    /* With model parallelism, DeepSpeed requires that not only the number of replicas but also the number of GPUs is in
     * the list of numbers of replicas. */
    if (!is_listed(out, row.gpus) || row.micro < 1 || out->batch % (row.micro * row.replicas) != 0) continue;
    row.accumulation = out->batch / (row.micro * row.replicas);
    (*rows)[(*count)++] = row;
  }
  return TWS_OK;
}

tws_code tws_elastic_ask(const tws_elastic *e, int64_t gpus, tws_elastic_row *row, int64_t *batch, tws_error *err) {
  tws_elastic_choice choice;
  const int64_t model = e->version >= 0.2 ? e->model_parallel : 1, replicas = gpus / model;
  const tws_code code = tws_elastic_choose(e, gpus, &choice, err);
  if (code == TWS_INVALID && err) err->code = TWS_NO;
  if (code != TWS_OK) return code == TWS_INVALID ? TWS_NO : code;
  tws_free(choice.gpus);
  if (gpus % model != 0)
    return tws_fail(err, TWS_NO, "use a multiple of it",
                    "elasticity: %lld model-parallel ranks do not divide %lld GPUs", (long long)model, (long long)gpus);
  if (choice.micro < 1 || choice.batch % (choice.micro * replicas) != 0)
    return tws_fail(err, TWS_NO, "add micro batches, or use another number of ranks",
                    "elasticity: no micro batch divides its batch of %lld among %lld ranks", (long long)choice.batch,
                    (long long)replicas);
  *row = (tws_elastic_row){gpus, replicas, choice.micro, choice.batch / (choice.micro * replicas)};
  *batch = choice.batch;
  return TWS_OK;
}
