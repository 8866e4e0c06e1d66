/* Checks the estimates of time: a simulation of the same ranks has to agree with the longest path. */
#ifndef TESTS_JOB_SECONDS_H
#define TESTS_JOB_SECONDS_H

#include <check.h>
#include <math.h>

#include "estimators/estimators.h"
#include "tests/sim_module.h"

/* Returns a machine with a disk, which exists as long as the suite runs. */
static inline const tws_machine *job_machine(void) {
  static tws_profile *profile;
  static tws_cluster cluster;
  static tws_machine machine;
  tws_error why = {0};
  if (!profile) {
    ck_assert_msg(tws_cluster_load("dgx-a100", &cluster, &why) == TWS_OK, "%s", why.message);
    ck_assert_msg(tws_profile_load(cluster.profile, &profile, &why) == TWS_OK, "%s", why.message);
    cluster.disk_read = 25e9;
    cluster.disk_write = 15e9;
    machine = (tws_machine){&cluster, profile};
  }
  return &machine;
}

static inline double job_seconds(const tws_plan *const *plans, int count) {
  static const tws_sim_api *sim;
  tws_error why = {0};
  double step_s = 0;
  ck_assert_msg(tws_job_path(plans, count, job_machine(), NULL, &step_s, &why) == TWS_OK, "%s", why.message);
  ck_assert(step_s > 0 && isfinite(step_s));
  if (!sim) sim = load_simulator();
  if (sim) {
    const tws_sim_request request = {.plans = plans, .plan_count = count, .machine = *job_machine()};
    tws_sim_result result;
    ck_assert_msg(sim->simulate(&request, &result, &why) == TWS_OK, "%s", why.message);
    ck_assert_double_eq_tol(result.step_s, step_s, 1e-12 * step_s);
  }
  return step_s;
}

#endif
