#include "estimators/checkpoint_interval.h"

#include <math.h>

double tws_interval_young(double save_s, double between_failures_s) {
  return sqrt(2 * save_s * between_failures_s);
}

double tws_interval_daly(double save_s, double between_failures_s) {
  const double ratio = save_s / (2 * between_failures_s);
  if (!(ratio < 1)) return between_failures_s;
  return tws_interval_young(save_s, between_failures_s) * (1 + sqrt(ratio) / 3 + ratio / 9) - save_s;
}

double tws_interval_goodput(double interval_s, double save_s, double restart_s, double between_failures_s) {
  if (isinf(between_failures_s)) return interval_s / (interval_s + save_s);
  const double m = between_failures_s;
  return interval_s / (m * exp(restart_s / m) * expm1((interval_s + save_s) / m));
}
