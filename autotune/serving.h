/* Tunes inference: finds the division of a cluster's devices among tensor ranks, pipeline stages and replicas, and the
 * number of texts that are processed at the same time, with the highest rate of generated tokens within limits of
 * latency. */
#ifndef TWS_AUTOTUNE_SERVING_H
#define TWS_AUTOTUNE_SERVING_H

#include "job/serving.h"

typedef struct tws_serve_limits {
  double first_token_s, token_s; /* limits in seconds: time until the first token, between two tokens; 0: no limit */
} tws_serve_limits;

typedef struct tws_serve_point {
  int tensor, stages, replicas;
  int64_t micro;           /* texts of a micro-batch: each stage of a pipeline has one */
  tws_serve_answer answer; /* texts 0: no number of texts fits within the limits */
  const char *refused;     /* reason why the division is impossible; "": it is possible */
} tws_serve_point;
enum { TWS_SERVE_POINTS = 64 };

/* Predicts every division of the ranks of `spec` (the cluster's devices if it states none) by powers of two, each with
 * the best number of texts, a power of two, within the limits. Writes the points, the best one first, and returns their
 * number in *count. Reasons are allocated in `arena`. Fails as tws_job_load() if no division can be loaded. */
tws_code tws_serve_tune(const tws_job_spec *spec, const tws_serve_request *request, tws_serve_limits limits,
                        tws_arena *arena, tws_serve_point points[TWS_SERVE_POINTS], int *count, tws_error *err);

#endif
