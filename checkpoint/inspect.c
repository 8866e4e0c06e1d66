#include "checkpoint/inspect.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 1 << 16 };

/* ---- tensors ---- */

tws_code tws_saved_tensors(const tws_saved_index *x, tws_arena *arena, tws_saved_tensor **tensors, uint32_t *count,
                           tws_error *err) {
  const size_t cells = (size_t)x->param_count * x->entry_count;
  int *copies = tws_arena_alloc(arena, cells + 1, sizeof *copies);
  *count = 0;
  *tensors = copies ? tws_arena_alloc(arena, cells + 1, sizeof **tensors) : NULL;
  if (!*tensors) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the list of tensors");
  memset(copies, 0, cells * sizeof *copies);
  for (uint32_t i = 0; i < x->piece_count; i++) {
    const tws_piece *p = &x->pieces[i].piece;
    if (p->param == TWS_NONE) continue;
    int *seen = &copies[(size_t)p->param * x->entry_count + p->entry];
    if (p->copy >= *seen) *seen = p->copy + 1;
  }
  for (uint32_t param = 0; param < x->param_count; param++)
    for (uint32_t entry = 0; entry < x->entry_count; entry++) {
      const int held = copies[(size_t)param * x->entry_count + entry];
      if (held == 0) continue;
      const uint64_t each = (uint64_t)(x->params[param].rows * x->params[param].columns);
      (*tensors)[(*count)++] =
          (tws_saved_tensor){.entry = entry, .param = param, .copies = held, .elements = each * (uint64_t)held};
    }
  return TWS_OK;
}

tws_code tws_saved_tensor_read(tws_saved_reader *reader, const tws_saved_tensor *tensor, uint64_t first, uint64_t count,
                               float *out, tws_error *err) {
  const tws_param *param = &reader->index->params[tensor->param];
  const tws_param_slice whole = tws_slice_of(param, NULL);
  const uint64_t each = tensor->elements / (uint64_t)tensor->copies;
  memset(out, 0, count * sizeof *out);
  while (count > 0) {
    const uint64_t at = first % each, n = count < each - at ? count : each - at;
    TWS_TRY(
        tws_saved_read(reader, tensor->entry, tensor->param, (int)(first / each), &whole, at, n, TWS_F32, out, err));
    first += n;
    count -= n;
    out += n;
  }
  return TWS_OK;
}

/* ---- passes over a tensor ---- */

typedef void (*visitor)(void *user, const float *values, uint64_t count);

static tws_code visit(tws_saved_reader *reader, const tws_saved_tensor *tensor, visitor see, void *user,
                      tws_error *err) {
  float *values = tws_calloc(CHUNK, sizeof *values);
  tws_code code = values ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "no memory to read a tensor with");
  for (uint64_t at = 0; at < tensor->elements && code == TWS_OK; at += CHUNK) {
    const uint64_t n = tensor->elements - at < CHUNK ? tensor->elements - at : CHUNK;
    code = tws_saved_tensor_read(reader, tensor, at, n, values, err);
    if (code == TWS_OK) see(user, values, n);
  }
  tws_free(values);
  return code;
}

/* Adds elements to the statistics. Until all elements have been added, `deviation` is the sum of squared differences
 * from the mean (Welford 1962), and `norm` the sum of squares. */
static void add_statistics(void *user, const float *values, uint64_t count) {
  tws_saved_statistics *s = user;
  for (uint64_t i = 0; i < count; i++) {
    const double value = (double)values[i];
    s->elements++;
    s->nans += isnan(value) != 0;
    s->infinities += isinf(value) != 0;
    s->zeros += value == 0;
    if (!isfinite(value)) continue;
    const double finite = (double)(s->elements - s->nans - s->infinities), before = value - s->mean;
    if (finite <= 1 || value < s->least) s->least = value;
    if (finite <= 1 || value > s->largest) s->largest = value;
    s->mean += before / finite;
    s->deviation += before * (value - s->mean);
    s->norm += value * value;
  }
}

tws_code tws_saved_statistics_of(tws_saved_reader *reader, const tws_saved_tensor *tensor, tws_saved_statistics *out,
                                 tws_error *err) {
  *out = (tws_saved_statistics){0};
  TWS_TRY(visit(reader, tensor, add_statistics, out, err));
  const uint64_t finite = out->elements - out->nans - out->infinities;
  out->deviation = finite > 0 ? sqrt(out->deviation / (double)finite) : 0;
  out->norm = sqrt(out->norm);
  return TWS_OK;
}

typedef struct histogram {
  double least, largest;
  int bins;
  uint64_t *counts;
} histogram;

static void add_to_histogram(void *user, const float *values, uint64_t count) {
  const histogram *h = user;
  const double width = h->largest - h->least;
  for (uint64_t i = 0; i < count; i++) {
    const double value = (double)values[i];
    if (!isfinite(value) || value < h->least || value > h->largest) continue;
    const double at = width > 0 ? (value - h->least) / width * h->bins : 0;
    h->counts[at < h->bins ? (int)at : h->bins - 1]++;
  }
}

tws_code tws_saved_histogram(tws_saved_reader *reader, const tws_saved_tensor *tensor, double least, double largest,
                             int bins, uint64_t counts[TWS_SAVED_BINS], tws_error *err) {
  histogram h = {.least = least, .largest = largest, .bins = bins, .counts = counts};
  memset(counts, 0, TWS_SAVED_BINS * sizeof *counts);
  if (bins < 1 || bins > TWS_SAVED_BINS)
    return tws_fail(err, TWS_USAGE, NULL, "a histogram has 1 to %d ranges, not %d", TWS_SAVED_BINS, bins);
  return visit(reader, tensor, add_to_histogram, &h, err);
}

/* ---- differences ---- */

static void add_difference(tws_saved_difference *d, double *norm, double a, double b) {
  d->elements++;
  if (isfinite(a)) *norm += a * a;
  if (a == b || (isnan(a) && isnan(b))) return;
  d->different++;
  const double difference = isfinite(a) && isfinite(b) ? fabs(a - b) : INFINITY;
  d->largest = fmax(d->largest, difference);
  d->norm += difference * difference;
}

tws_code tws_saved_compare(tws_saved_reader *a, const tws_saved_tensor *x, tws_saved_reader *b,
                           const tws_saved_tensor *y, tws_saved_difference *out, tws_error *err) {
  float *values = tws_calloc(2 * CHUNK, sizeof *values);
  double norm = 0;
  *out = (tws_saved_difference){0};
  if (!values) return tws_fail(err, TWS_MEMORY, NULL, "no memory to read a tensor with");
  tws_code code = TWS_OK;
  for (uint64_t at = 0; at < x->elements && code == TWS_OK; at += CHUNK) {
    const uint64_t n = x->elements - at < CHUNK ? x->elements - at : CHUNK;
    code = tws_saved_tensor_read(a, x, at, n, values, err);
    if (code == TWS_OK) code = tws_saved_tensor_read(b, y, at, n, values + CHUNK, err);
    for (uint64_t i = 0; code == TWS_OK && i < n; i++)
      add_difference(out, &norm, (double)values[i], (double)values[CHUNK + i]);
  }
  out->norm = sqrt(out->norm);
  out->relative = out->norm > 0 ? out->norm / sqrt(norm) : 0;
  tws_free(values);
  return code;
}
