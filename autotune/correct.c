#include "autotune/correct.h"

#include <math.h>

#include "job/simulate.h"

tws_code tws_simulated_kinds(const tws_job *job, const tws_sim_api *sim, tws_fidelity fidelity,
                             double kinds[TWS_EXPERIMENT_KINDS], double *step_s, tws_error *err) {
  const tws_simulation_request request = {
      .sim = sim, .fidelity = fidelity, .every_up_to = tws_job_simulates_every(job)};
  tws_simulation simulation = {0};
  const tws_code code = tws_job_simulate(job, &request, &simulation, err);
  for (int i = 0; i < TWS_EXPERIMENT_KINDS; i++) kinds[i] = 0;
  for (int p = 0; code == TWS_OK && p < simulation.plan_count; p++) {
    const tws_path_result *path = &simulation.paths[p];
    for (int i = 0; i < TWS_KERNEL_COUNT; i++) kinds[i] += path->kernel_s[i] / simulation.plan_count;
    for (int i = 0; i < TWS_COLLECTIVE_COUNT; i++) {
      double *kept = &kinds[TWS_KERNEL_COUNT + i];
      *kept = p == 0 ? path->collective_s[i] : fmin(*kept, path->collective_s[i]);
    }
  }
  *step_s = code == TWS_OK ? simulation.result.step_s : 0;
  tws_simulation_free(&simulation);
  return code;
}

static double within(double factor) {
  return fmin(fmax(factor, 0.125), 8);
}

int tws_correction_of(const tws_kind_sums *sums, tws_profile_correction *out) {
  double whole = 0;
  int corrected = 0;
  *out = (tws_profile_correction){0};
  for (int i = 0; i < TWS_EXPERIMENT_KINDS; i++) whole += sums->measured[i];
  for (int i = 0; i < TWS_EXPERIMENT_KINDS; i++) {
    double *factor = i < TWS_KERNEL_COUNT ? &out->kernel[i] : &out->collective[i - TWS_KERNEL_COUNT];
    if (!(sums->simulated[i] > 0) || !(sums->measured[i] > 1e-3 * whole)) continue;
    *factor = within(sums->measured[i] / sums->simulated[i]);
    corrected++;
  }
  return corrected;
}
