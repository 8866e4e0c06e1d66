#include "real/calibrate_passes.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "real/case_operands.h"
#include "real/sample.h"

/* ---- starting operations ---- */

/* Kernels of a decode, with operands so small that the first-level cache holds them all. */
static const tws_work token_kernels[] = {
    {.code = TWS_KERNEL_EMBEDDING, .d = {1, 64, 64, 1, 1}},
    {.code = TWS_KERNEL_NORM, .flags = TWS_RMS, .d = {1, 64}, .f = {1e-5}},
    {.code = TWS_KERNEL_LINEAR, .d = {1, 64, 32}},
    {.code = TWS_KERNEL_ROPE, .d = {1, 2, 2, 32, 1}, .f = {10000}},
    {.code = TWS_KERNEL_CACHE_WRITE, .d = {1, 1, 2, 2, 32, 8}},
    {.code = TWS_KERNEL_CACHED_ATTENTION, .d = {1, 1, 2, 2, 32, 8}},
    {.code = TWS_KERNEL_NORM, .flags = TWS_RMS | TWS_RESIDUAL, .d = {1, 64}, .f = {1e-5}},
    {.code = TWS_KERNEL_SWIGLU, .d = {1, 64}},
};
enum { KERNELS = sizeof token_kernels / sizeof *token_kernels, MOST_REPEATS = 25, FILL_BYTE = 0x3f };

typedef struct started_case {
  tws_work work;
  void *operand[TWS_CASE_OPERANDS];
  tws_dtype dtype[TWS_CASE_OPERANDS];
  int operand_count;
} started_case;

typedef struct starts {
  tws_stopwatch *watch;
  started_case cases[KERNELS];
  int first, end; /* the kernels that one execution runs one after another */
  unsigned char *memory;
} starts;

static uint64_t operand_bytes(const tws_case_operand *o) {
  return (o->elements * tws_dtype_bytes(o->dtype) + TWS_ALIGNMENT - 1) / TWS_ALIGNMENT * TWS_ALIGNMENT;
}

/* Fills the cases; returns the bytes of their operands, which begin at s->memory if it is not NULL. */
static uint64_t place_operands(starts *s) {
  uint64_t at = 0;
  for (int i = 0; i < KERNELS; i++) {
    started_case *c = &s->cases[i];
    tws_case_operand operand[TWS_CASE_OPERANDS];
    c->work = token_kernels[i];
    c->work.dtype = c->work.dtype2 = TWS_F32;
    c->operand_count = tws_case_operands(&c->work, TWS_BACKEND_HOST, 1, operand);
    for (int j = 0; j < c->operand_count; j++) {
      const tws_case_operand *o = &operand[j];
      int32_t *ids = s->memory ? (int32_t *)(void *)(s->memory + at) : NULL;
      for (uint64_t k = 0; ids && o->below > 0 && k < o->elements; k++)
        ids[k] = o->greatest ? (int32_t)(o->below - 1) : 0;
      c->operand[j] = ids;
      c->dtype[j] = o->dtype;
      at += operand_bytes(o);
    }
  }
  return at;
}

static tws_code run_kernels(void *user, tws_error *err) {
  const starts *s = user;
  for (int i = s->first; i < s->end; i++) {
    const started_case *c = &s->cases[i];
    TWS_TRY(s->watch->ops->run(s->watch->backend, &c->work, NULL, c->operand, c->dtype, c->operand_count,
                               TWS_STREAM_COMPUTE, err));
  }
  return TWS_OK;
}

/* Measures the seconds by which a kernel takes longer after others than after itself: those of all kernels one after
 * another, less those of each repeated alone, over their number. Both are measured in turn, so that a change of the
 * processor's clock between them cancels. */
static tws_code measure_starts(starts *s, int repeats, double *start_s, tws_error *err) {
  enum { TIMES = 100 };
  double more[MOST_REPEATS];
  for (int r = -1; r < repeats; r++) { /* the first repetition is not counted */
    double together, alone = 0, one;
    s->first = 0, s->end = KERNELS;
    TWS_TRY(tws_stopwatch_measure(s->watch, run_kernels, NULL, s, TIMES, &together, err));
    for (int i = 0; i < KERNELS; i++) {
      s->first = i, s->end = i + 1;
      TWS_TRY(tws_stopwatch_measure(s->watch, run_kernels, NULL, s, TIMES, &one, err));
      alone += one;
    }
    if (r >= 0) more[r] = fmax(together - alone, 0) / KERNELS;
  }
  *start_s = tws_sample_median(more, (size_t)repeats);
  return TWS_OK;
}

static tws_code calibrate_starts(tws_stopwatch *watch, int repeats, double *start_s, tws_error *err) {
  starts s = {.watch = watch};
  void *memory = NULL;
  const uint64_t bytes = place_operands(&s);
  TWS_TRY(watch->ops->allocate(watch->backend, TWS_TIER_DEVICE, bytes, &memory, err));
  memset(memory, FILL_BYTE, bytes);
  s.memory = memory;
  place_operands(&s);
  const tws_code code = measure_starts(&s, repeats, start_s, err);
  watch->ops->release(watch->backend, TWS_TIER_DEVICE, memory);
  return code;
}

/* ---- around kernels ---- */

/* The scores of one text on one rank, for which the same is done as in real/serve.c: they are read from the program's
 * memory, the columns of the tensor ranks are placed next to each other, and the most probable token is chosen. */
typedef struct choosing {
  float *scores, *read, *joined;
  int32_t count, sum;
} choosing;

static tws_code choose(void *user, tws_error *err) {
  static const tws_sampling greedy = {.top_p = 1};
  choosing *c = user;
  double log_probability;
  (void)err;
  memcpy(c->read, c->scores, (size_t)c->count * sizeof *c->read);
  memcpy(c->joined, c->read, (size_t)c->count * sizeof *c->joined);
  c->sum += tws_sample(c->joined, c->count, &greedy, NULL, 0, NULL, &log_probability);
  return TWS_OK;
}

static tws_code read_clocks(void *user, tws_error *err) {
  double *sum = user;
  (void)err;
  const tws_pass_clocks began = tws_pass_clocks_read(), ended = tws_pass_clocks_read();
  *sum += ended.s - began.s;
  return TWS_OK;
}

static tws_code measure_low(tws_stopwatch *watch, tws_timed work, void *user, int times, int repeats, double *seconds,
                            tws_error *err) {
  double each[MOST_REPEATS];
  for (int r = 0; r < repeats; r++) TWS_TRY(tws_stopwatch_measure(watch, work, NULL, user, times, &each[r], err));
  *seconds = tws_sample_low(each, (size_t)repeats);
  return TWS_OK;
}

static tws_code measure_choices(tws_stopwatch *watch, choosing *c, int repeats, tws_pass_costs *out, tws_error *err) {
  static const int32_t vocabularies[] = {256, 2048, 16384, 131072};
  enum { MANY = 1 << 19 }; /* scores that are read between two readings of the clock */
  for (int i = 0; i < 4; i++) {
    const int32_t count = c->count = vocabularies[i];
    double seconds;
    TWS_TRY(measure_low(watch, choose, c, MANY / count, repeats, &seconds, err));
    out->choice[i].vocabulary = count;
    out->choice[i].seconds = seconds;
    out->choice_count = i + 1;
  }
  return TWS_OK;
}

static tws_code calibrate_choices(tws_stopwatch *watch, int repeats, tws_pass_costs *out, tws_error *err) {
  enum { MOST = 131072 };
  float *memory = tws_calloc(3 * (size_t)MOST, sizeof *memory);
  if (!memory) return tws_fail(err, TWS_MEMORY, NULL, "no memory for scores");
  /* scores between -8 and 8 in an order that a multiplicative hash makes irregular */
  for (uint32_t i = 0; i < MOST; i++) memory[i] = (float)(i * 2654435761u >> 8) / (float)(1 << 20) - 8;
  choosing c = {.scores = memory, .read = memory + MOST, .joined = memory + 2 * (size_t)MOST};
  const tws_code code = measure_choices(watch, &c, repeats, out, err);
  tws_free(memory);
  return code;
}

tws_code tws_calibrate_passes(tws_stopwatch *watch, int quick, tws_measurements *m, tws_error *err) {
  enum { TIMES = 100 };
  const int repeats = quick ? 9 : MOST_REPEATS;
  double sum = 0;
  TWS_TRY(calibrate_starts(watch, repeats, &m->passes.start_s, err));
  TWS_TRY(measure_low(watch, read_clocks, &sum, TIMES, repeats, &m->passes.pass_s, err));
  return calibrate_choices(watch, repeats, &m->passes, err);
}
