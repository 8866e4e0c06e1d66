/* How much of something a job is worth: the search repeated while one figure of the cluster varies, and the point
 * beyond which more of it buys little. */
#ifndef TWS_AUTOTUNE_KNEE_H
#define TWS_AUTOTUNE_KNEE_H

#include "autotune/autotune.h"

enum { TWS_KNEE_POINTS = 64 };
typedef struct tws_knee_sweep {
  const char *parameter; /* a row of the table in knee.c */
  double low, high;      /* in the parameter's own units */
  int count;             /* values, evenly spaced in the logarithm */
} tws_knee_sweep;

typedef struct tws_knee_point {
  double value; /* of the parameter */
  int fits;
  char name[TWS_VARIANT_NAME], label[TWS_VARIANT_NAME]; /* the best there */
  double step_s, samples_per_s, tokens_per_s;
} tws_knee_point;

typedef struct tws_knee {
  tws_knee_point points[TWS_KNEE_POINTS];
  int count;
  int knee; /* index; -1: the throughput does not change, or bends nowhere */
} tws_knee;

/* "net.bandwidth=100..800G", or with a number of values behind a colon (default 8): "net.latency=1u..50u:12".
 * Bandwidths of networks are bits/s, those of links between devices bytes/s. TWS_USAGE. */
tws_code tws_knee_parse(const char *text, tws_knee_sweep *out, tws_error *err);
const char *tws_knee_unit(const tws_knee_sweep *sweep);

/* Searches the request's space for each value; the cluster of request->job is as it was afterwards. */
tws_code tws_knee_find(const tws_tune_request *request, const tws_knee_sweep *sweep, tws_knee *out, tws_error *err);

#endif
