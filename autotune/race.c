#include "autotune/race.h"

#include <gsl/gsl_cdf.h>
#include <math.h>

#include "base/memory.h"
#include "traces/measurements.h"

static const double confidence = 0.95, alike = 0.01;
/* For normally distributed noise: ratio of the standard deviation to the median absolute deviation, and ratio of the
 * standard error of a quantile to that of the mean. */
static const double by_median = 1.4826, by_mean = 1.3;

typedef struct field {
  const tws_race_entry *racers;
  int count;
  double *typical;  /* per configuration: ln of the lower quartile of its runs, since other load only adds time */
  double deviation; /* standard deviation of the logarithm of one run */
  int freedom;      /* degrees of freedom of the deviation */
} field;

static void read_field(field *f, double *scratch, double *off) {
  size_t offs = 0;
  for (int i = 0; i < f->count; i++) {
    const int n = f->racers[i].runs;
    if (n == 0) continue;
    for (int k = 0; k < n; k++) scratch[k] = log(f->racers[i].run_s[k]);
    f->typical[i] = tws_sample_low(scratch, (size_t)n);
    const double median = tws_sample_median(scratch, (size_t)n);
    /* n / (n - 1) corrects the bias of a small sample, whose runs scatter less around their own median than around the
     * true one */
    for (int k = 0; n > 1 && k < n; k++) off[offs++] = fabs(scratch[k] - median) * sqrt(n / (n - 1.0));
    f->freedom += n - 1;
  }
  if (offs > 0) f->deviation = by_median * tws_sample_median(off, offs);
}

static int choose(const field *f, int most_runs) {
  int leader = -1, next = -1, others = 0;
  for (int i = 0; i < f->count; i++)
    if (f->racers[i].runs > 0 && (leader < 0 || f->typical[i] < f->typical[leader])) leader = i;
  if (leader < 0 || f->freedom == 0) return -1;
  const double t = by_mean * f->deviation * gsl_cdf_tdist_Pinv(confidence, f->freedom);
  for (int i = 0; i < f->count; i++) {
    const int n = f->racers[i].runs;
    if (n == 0) continue;
    const double margin = t * sqrt(1.0 / n + 1.0 / f->racers[leader].runs);
    if (i != leader && f->typical[i] - f->typical[leader] - margin > -alike) continue;
    others += i != leader;
    if (n < most_runs && (next < 0 || n < f->racers[next].runs)) next = i;
  }
  return others > 0 ? next : -1;
}

tws_code tws_race_next(const tws_race_entry *racers, int count, int most_runs, int *next, tws_error *err) {
  size_t runs = 0;
  *next = -1;
  for (int i = 0; i < count; i++) runs += (size_t)racers[i].runs;
  double *room = tws_calloc(2 * runs + (size_t)count + 1, sizeof *room);
  if (!room) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  field f = {.racers = racers, .count = count, .typical = room + 2 * runs};
  read_field(&f, room, room + runs);
  *next = choose(&f, most_runs);
  tws_free(room);
  return TWS_OK;
}
