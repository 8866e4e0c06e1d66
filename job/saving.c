#include "job/saving.h"

#include "estimators/checkpoint_interval.h"

/* Returns the bytes of a checkpoint per parameter: the sum of the element sizes of all entries that have one element
 * per parameter. */
static double bytes_per_parameter(const tws_plan *plan) {
  double bytes = 0;
  for (uint32_t i = 0; i < plan->state->count; i++) {
    const tws_state_entry *e = &plan->state->entries[i];
    if (e->checkpointed && e->role != TWS_ELEMENTS_NONE && !e->continues)
      bytes += (double)tws_dtype_bytes((tws_dtype)e->dtype);
  }
  return bytes;
}

/* Predicts the time to save: all nodes write equal shares, with `disk.write` of the cluster or the bandwidth of a
 * common disk. */
static tws_code job_saving(const tws_job *job, tws_saving *out, tws_error *err) {
  const tws_cluster *c = &job->cluster;
  tws_plan *plan;
  TWS_TRY(tws_job_part_plan(job, 0, 1, &plan, err));
  out->bytes = bytes_per_parameter(plan) * (double)tws_network_params(job->network, 0);
  tws_plan_destroy(plan);
  const double write = c->disk_write > 0 ? c->disk_write : TWS_USUAL_DISK_WRITE;
  out->write_s = out->bytes / job->mapping.nodes / write;
  const int devices = job->backend != TWS_BACKEND_HOST && c->host_link.bandwidth > 0;
  out->hold_s = devices ? out->bytes / job->ranks / c->host_link.bandwidth : 0;
  return TWS_OK;
}

tws_code tws_job_saving_advise(const tws_job *job, double step_s, double between_failures_s, double restart_s,
                               tws_saving_advice *out, tws_error *err) {
  TWS_TRY(job_saving(job, &out->saving, err));
  const double hold_s = out->saving.hold_s;
  out->between_failures_s = between_failures_s;
  out->young_s = tws_interval_young(hold_s, between_failures_s);
  out->daly_s = tws_interval_daly(hold_s, between_failures_s);
  /* the interval is at least the time of a save, because saves do not overlap */
  const double least_s = out->daly_s > out->saving.write_s ? out->daly_s : out->saving.write_s;
  out->every = least_s > step_s ? (int64_t)(least_s / step_s + 0.5) : 1;
  out->goodput = tws_interval_goodput((double)out->every * step_s, hold_s, restart_s + out->saving.write_s / 2,
                                      between_failures_s);
  return TWS_OK;
}
