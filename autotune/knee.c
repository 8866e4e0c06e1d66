#include "autotune/knee.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"

static const struct {
  const char *name, *unit;
  size_t offset; /* offset of the figure in the cluster */
  double factor; /* conversion factor from the parameter's units to the cluster's */
} parameters[] = {{"net.bandwidth", "bit/s", offsetof(tws_cluster, inter.bandwidth), 0.125},
                  {"net.latency", "s", offsetof(tws_cluster, inter.latency_s), 1},
                  {"link.bandwidth", "B/s", offsetof(tws_cluster, intra.bandwidth), 1},
                  {"link.latency", "s", offsetof(tws_cluster, intra.latency_s), 1},
                  {"device.memory", "B", offsetof(tws_cluster, device_memory_bytes), 1},
                  {"data.rate", "samples/s", offsetof(tws_cluster, samples_per_s), 1}};
enum { PARAMETERS = sizeof parameters / sizeof *parameters, USUAL = 8 };

/* ---- parsing ---- */

static double scale_of(char letter) {
  static const char letters[] = "umkKMGTP";
  static const double scales[] = {1e-6, 1e-3, 1e3, 1e3, 1e6, 1e9, 1e12, 1e15};
  const char *at = letter ? strchr(letters, letter) : NULL;
  return at ? scales[at - letters] : 0;
}

static const char *read_number(const char *text, double *value, char *letter) {
  const char *end;
  *letter = '\0';
  if (!tws_text_number(text, &end, 0, 1e30, value)) return NULL;
  if (scale_of(*end) > 0) *letter = *end++;
  return end;
}

/* Reads a range such as "100..800G": the suffix applies to both numbers if the first has none. Returns 0 if it is
 * malformed. */
static int read_range(const char *text, tws_knee_sweep *out) {
  char first, last;
  const char *dots = strstr(text, ".."), *at;
  char low[32];
  if (!dots || (size_t)(dots - text) >= sizeof low) return 0;
  /* copies the text before "..", since the number parser would read "100." and leave one dot */
  snprintf(low, sizeof low, "%.*s", (int)(dots - text), text);
  at = read_number(low, &out->low, &first);
  if (!at || *at) return 0;
  at = read_number(dots + 2, &out->high, &last);
  if (!at) return 0;
  if (!first) first = last;
  if (first) out->low *= scale_of(first);
  if (last) out->high *= scale_of(last);
  out->count = USUAL;
  if (*at == ':') {
    if (!tws_text_int(at + 1, &at, 3, TWS_KNEE_POINTS, &out->count)) return 0;
  }
  return *at == '\0' && out->low > 0 && out->high > out->low;
}

tws_code tws_knee_parse(const char *text, tws_knee_sweep *out, tws_error *err) {
  const char *sign = strchr(text, '=');
  const size_t length = sign ? (size_t)(sign - text) : strlen(text);
  *out = (tws_knee_sweep){0};
  for (int i = 0; i < PARAMETERS; i++)
    if (strlen(parameters[i].name) == length && strncmp(parameters[i].name, text, length) == 0)
      out->parameter = parameters[i].name;
  if (!out->parameter)
    return tws_fail(err, TWS_USAGE,
                    "known: net.bandwidth, net.latency, link.bandwidth, link.latency, device.memory, data.rate",
                    "--sweep: \"%.*s\" is not a figure of a cluster", length < 60 ? (int)length : 60, text);
  if (!sign || !read_range(sign + 1, out))
    return tws_fail(err, TWS_USAGE, "for example --sweep net.bandwidth=100..800G, or with 12 values: ...=100..800G:12",
                    "--sweep: \"%.60s\" is not a range of 3 to %d values", text, TWS_KNEE_POINTS);
  return TWS_OK;
}

static int row_of(const tws_knee_sweep *sweep) {
  int row = 0;
  while (strcmp(parameters[row].name, sweep->parameter) != 0) row++;
  return row;
}

const char *tws_knee_unit(const tws_knee_sweep *sweep) {
  return parameters[row_of(sweep)].unit;
}

/* Returns the index of the knee of a curve over increasing values, or -1. The knee is the point with the largest
 * distance from the curve's chord, with both axes normalized to 0..1 and values on a logarithmic scale (Satopää and
 * others, "Finding a kneedle in a haystack", 2011); a distance below one twentieth is no knee. */
static int knee_index(const double *values, const double *heights, int count) {
  double low = INFINITY, high = 0, farthest = 0.05;
  int knee = -1;
  for (int i = 0; i < count; i++) {
    low = fmin(low, heights[i]);
    high = fmax(high, heights[i]);
  }
  if (count < 3 || !(high > low * (1 + 1e-9))) return -1;
  const int falls = heights[count - 1] < heights[0];
  for (int i = 1; i + 1 < count; i++) {
    const double x = log(values[i] / values[0]) / log(values[count - 1] / values[0]);
    const double y = (heights[i] - low) / (high - low);
    const double above = y - (falls ? 1 - x : x);
    if (above <= farthest) continue;
    farthest = above;
    knee = i;
  }
  return knee;
}

static tws_code search_at(const tws_tune_request *request, tws_knee_point *point, tws_error *err) {
  tws_tune_result *result;
  TWS_TRY(tws_tune(request, &result, err));
  point->fits = result->fits > 0;
  if (point->fits) {
    const tws_tune_candidate *best = &result->candidates[0];
    memcpy(point->name, best->name, sizeof point->name);
    tws_variant_label(&best->variant, point->label, sizeof point->label);
    point->samples_per_s = tws_tune_throughput(best);
    point->tokens_per_s = tws_tune_tokens_per_s(request, best);
    point->step_s = best->samples / point->samples_per_s;
  }
  tws_tune_result_destroy(result);
  return TWS_OK;
}

double tws_knee_set(tws_cluster *cluster, const tws_knee_sweep *sweep, int index) {
  const int row = row_of(sweep);
  const double value = sweep->low * pow(sweep->high / sweep->low, (double)index / (sweep->count - 1));
  const double figure = value * parameters[row].factor;
  memcpy((char *)cluster + parameters[row].offset, &figure, sizeof figure);
  return value;
}

tws_code tws_knee_find(const tws_tune_request *request, const tws_knee_sweep *sweep, tws_knee *out, tws_error *err) {
  const tws_cluster cluster = request->job->cluster;
  double values[TWS_KNEE_POINTS], heights[TWS_KNEE_POINTS];
  tws_code code = TWS_OK;
  *out = (tws_knee){.count = sweep->count};
  for (int i = 0; i < sweep->count && code == TWS_OK; i++) {
    tws_knee_point *point = &out->points[i];
    point->value = tws_knee_set(&request->job->cluster, sweep, i);
    code = search_at(request, point, err);
    values[i] = point->value;
    heights[i] = point->samples_per_s;
  }
  request->job->cluster = cluster;
  if (code == TWS_OK) out->knee = knee_index(values, heights, out->count);
  return code;
}
