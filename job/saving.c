#include "job/saving.h"

#include "estimators/checkpoint_interval.h"

/* Returns the number of elements of an entry that belong to parameters. */
static double elements_of(const tws_state *state, uint32_t entry) {
  double elements = 0;
  tws_state_part part;
  for (uint32_t shard = 0; tws_state_next_part(state, entry, &shard, &part);) elements += (double)part.count;
  return elements;
}

/* Returns the bytes of a checkpoint per parameter: the sum over all entries that have elements for parameters. An entry
 * of the optimizer may have them for a part of the elements that the rank updates (states of 8 bits), or on another
 * tier than the rest. */
static double bytes_per_parameter(const tws_plan *plan) {
  const tws_state *state = plan->state;
  double bytes = 0, owned = 0;
  for (uint32_t i = 0; i < state->shard_count; i++)
    if (state->shards[i].owned_offset != TWS_NO_OFFSET) owned += (double)state->shards[i].count;
  for (uint32_t i = 0; i < state->count; i++) {
    const tws_state_entry *e = &state->entries[i];
    const double size = (double)tws_dtype_bytes((tws_dtype)e->dtype);
    if (!e->checkpointed || e->role == TWS_ELEMENTS_NONE) continue;
    if (e->role != TWS_ELEMENTS_STORED && owned > 0)
      bytes += size * (elements_of(state, i) / owned);
    else if (!e->continues)
      bytes += size;
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
  const double rate = tws_cluster_copy_rate(c, 1);
  out->hold_s = job->backend != TWS_BACKEND_HOST && rate > 0 ? out->bytes / job->ranks / rate : 0;
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
