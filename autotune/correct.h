/* Corrects a profile by trials: the correction is, for each kind of operation, the ratio of its measured to its
 * simulated seconds. */
#ifndef TWS_AUTOTUNE_CORRECT_H
#define TWS_AUTOTUNE_CORRECT_H

#include "autotune/experiment.h"
#include "sim/sim.h"

/* Simulates one step and returns its seconds by kind of operation, as tws_experiment.kind_s measures them. */
tws_code tws_simulated_kinds(const tws_job *job, const tws_sim_api *sim, tws_fidelity fidelity,
                             double kinds[TWS_EXPERIMENT_KINDS], double *step_s, tws_error *err);

/* Seconds by kind of operation, summed over trials. */
typedef struct tws_kind_sums {
  double simulated[TWS_EXPERIMENT_KINDS], measured[TWS_EXPERIMENT_KINDS];
} tws_kind_sums;
/* Sets *out to the ratio measured / simulated of each kind of operation that took at least a thousandth of the total,
 * clamped to 1/8 .. 8. Returns the number of kinds that were set. */
int tws_correction_of(const tws_kind_sums *sums, tws_profile_correction *out);

#endif
