/* Measurements of a site, and a profile rescaled by them: --measured of the planning verbs.
 *
 * Each text is one measurement:
 *   step=SECONDS[,OPTION=VALUE]...  one training step of the job, with these options in place of its own (seq,
 *                                   micro-batch, accumulation, ranks, stage, pp, tp, sp, ep, virtual-stages,
 *                                   recompute, dtype, model, config, cluster)
 *   product=RATE                    a product of 8192 x 8192 x 8192 in the job's type, flop/s of one device
 *   memory=RATE                     bytes/s that a large copy reads and writes
 *   all-gather=RATE                 bus bandwidth of a large all-gather within a node, as nccl-tests count
 * Seconds and rates may have units: 410ms, 650TFLOP/s, 380GB/s.
 *
 * Three factors follow, on the seconds of products (with attention), of kernels bound by memory, and of collectives and
 * messages. A rate determines its own. Steps determine the others as the most probable ones (maximum a posteriori):
 * the least squares of the logarithms of the errors, over 0.01, and of the factors, over what they usually differ by
 * (products and memory 0.15, links 0.6, correlated by 0.7), within physical bounds. */
#ifndef TWS_JOB_MEASURED_H
#define TWS_JOB_MEASURED_H

#include "job/job.h"

/* One training step whose time was measured. Jobs own their profiles, which the fit changes. */
typedef struct tws_timed_job {
  tws_job *job;
  double seconds;
} tws_timed_job;
enum { TWS_MEASURED_STEPS = 16 };

/* Fits the three factors to the steps and applies them to the profiles of the jobs. known: factors that are fixed; 0:
 * the factor is fitted. Fails with TWS_INVALID if no physical factors predict the measured times. */
tws_code tws_measured_fit(const tws_timed_job *steps, int count, const double known[TWS_SCALE_COUNT],
                          tws_rescaling *out, tws_error *err);
/* Load a job as tws_job_load() and tws_job_open() do, and rescale its profile by the measurements of the spec, if it
 * has any. */
tws_code tws_measured_load(const tws_job_spec *spec, tws_job **out, tws_error *err);
tws_code tws_measured_open(const tws_job_spec *spec, tws_job **out, tws_error *err);
/* Writes the factors as text: "products take 1.12 times as long as the profile has them, memory 1.05, links 1.31 (at
 * its bound)". */
void tws_rescaling_text(const tws_rescaling *rescaling, tws_text *out);

#endif
