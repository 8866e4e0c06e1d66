/* Sweeps one figure of the cluster: repeats the search for each value of the figure. The knee is the value beyond which
 * larger values increase throughput little. */
#ifndef TWS_AUTOTUNE_KNEE_H
#define TWS_AUTOTUNE_KNEE_H

#include "autotune/autotune.h"

enum { TWS_KNEE_POINTS = 64 };
typedef struct tws_knee_sweep {
  const char *parameter; /* name of the figure, a row of the table in knee.c */
  double low, high;      /* range of values, in the parameter's own units */
  int count;             /* number of values, evenly spaced in the logarithm */
} tws_knee_sweep;

typedef struct tws_knee_point {
  double value; /* value of the parameter */
  int fits;
  char name[TWS_VARIANT_NAME], label[TWS_VARIANT_NAME]; /* the best configuration at this value */
  double step_s, samples_per_s, tokens_per_s;
} tws_knee_point;

typedef struct tws_knee {
  tws_knee_point points[TWS_KNEE_POINTS];
  int count;
  int knee; /* index of the knee in `points`; -1: the throughput is constant, or its curve has no knee */
} tws_knee;

/* Parses "net.bandwidth=100..800G", or with the number of values after a colon (default 8): "net.latency=1u..50u:12".
 * Network bandwidths are in bits/s, bandwidths of links between devices in bytes/s. Fails with TWS_USAGE if the text is
 * malformed. */
tws_code tws_knee_parse(const char *text, tws_knee_sweep *out, tws_error *err);
const char *tws_knee_unit(const tws_knee_sweep *sweep);

/* Sets value number `index` of the sweep in a cluster, and returns it in the parameter's units. */
double tws_knee_set(tws_cluster *cluster, const tws_knee_sweep *sweep, int index);

/* Searches the request's space for each value; the cluster of request->job is restored afterwards. */
tws_code tws_knee_find(const tws_tune_request *request, const tws_knee_sweep *sweep, tws_knee *out, tws_error *err);

#endif
