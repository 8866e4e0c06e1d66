/* Compares optimizers over a range of network bandwidths: the time of a whole training with all phases of the
 * optimizer, and the bytes that a rank sends. The result shows up to which bandwidth compressed communication pays. */
#ifndef TWS_AUTOTUNE_OPTIMIZERS_H
#define TWS_AUTOTUNE_OPTIMIZERS_H

#include "autotune/knee.h"
#include "estimators/run.h"

enum { TWS_COMPARED_OPTIMIZERS = 8 }; /* largest number of optimizers that are compared */

typedef struct tws_compared_optimizer {
  const char *name;                      /* word for optimizer.type */
  tws_run_estimate run[TWS_KNEE_POINTS]; /* per value of the swept figure */
  double speedup[TWS_KNEE_POINTS];       /* per value: seconds with the first optimizer / seconds with this one */
  /* value up to which a training with this optimizer is at least one twentieth faster than with the first one,
   * interpolated between points; 0: at no value, infinity: at all of them */
  double pays_up_to;
} tws_compared_optimizer;

typedef struct tws_optimizer_comparison {
  tws_compared_optimizer optimizer[TWS_COMPARED_OPTIMIZERS];
  double value[TWS_KNEE_POINTS]; /* values of the swept figure */
  int count;      /* of values */
  int optimizers; /* number of optimizers */
  int64_t steps, frozen_from; /* steps of the training; last step with uncompressed gradients */
} tws_optimizer_comparison;

/* Compares AdamW and all optimizers with phases (OneBitAdam, ...) in trainings of `steps` steps at stage 0. If the
 * configuration names such an optimizer, its freeze steps are used; otherwise the first fifth of the steps is
 * uncompressed. The job's cluster is restored afterwards. Fails with TWS_INVALID if the job has a single replica or a
 * ZeRO stage. */
tws_code tws_compare_optimizers(tws_job *job, const tws_knee_sweep *sweep, int64_t steps, tws_optimizer_comparison *out,
                                tws_error *err);

#endif
