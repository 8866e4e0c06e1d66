/* What trials say of a profile: how much longer each kind of operation took in training than it was predicted to. */
#ifndef TWS_AUTOTUNE_CORRECT_H
#define TWS_AUTOTUNE_CORRECT_H

#include "autotune/experiment.h"
#include "sim/sim.h"

/* Seconds of one step by kind, simulated: what tws_experiment.kind_s measures. */
tws_code tws_simulated_kinds(const tws_job *job, const tws_sim_api *sim, tws_fidelity fidelity,
                             double kinds[TWS_EXPERIMENT_KINDS], double *step_s, tws_error *err);

/* Sums over trials. */
typedef struct tws_kind_sums {
  double simulated[TWS_EXPERIMENT_KINDS], measured[TWS_EXPERIMENT_KINDS];
} tws_kind_sums;
/* measured / simulated of each kind that took a thousandth of the whole, within 1/8 .. 8. Returns how many. */
int tws_correction_of(const tws_kind_sums *sums, tws_profile_correction *out);

#endif
