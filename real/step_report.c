/* Fills reports of steps, and passes them to the monitors. */
#include "base/memory.h"
#include "estimators/monitored.h"
#include "real/train_internal.h"

tws_code tws_training_keep_times(tws_training *t, tws_error *err) {
  if (!t->phase_times) t->phase_times = tws_calloc((size_t)tws_training_most_ops(t) + 1, 2 * sizeof *t->phase_times);
  return t->phase_times ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory for the times of operations");
}

tws_code tws_step_report_prepare(tws_training *t, tws_error *err) {
  tws_plan_request request = t->options->plan;
  if (t->rank != 0 && !t->is_library) return TWS_OK;
  request.program = TWS_PROGRAM_TRAIN;
  t->model_flops = tws_model_flops(&request);
  if (!t->config->wall_clock_breakdown) return TWS_OK;
  TWS_TRY(tws_training_keep_times(t, err));
  for (int p = 0; p < TWS_PROGRAM_COUNT; p++)
    if (t->programs[p] && tws_program_is_step((tws_program)p) && !tws_program_overlaps((tws_program)p))
      TWS_TRY(tws_phase_clock_create(t->programs[p], &t->phases[p], err));
  return TWS_OK;
}

void tws_step_report_complete(const tws_training *t, tws_step_report *r) {
  const tws_network *network = t->options->plan.network;
  const double peak = t->options->watching.peak_flops;
  const uint32_t losses = tws_network_losses(network);
  r->samples = r->step * t->config->train_batch_size;
  r->losses = losses > 1 ? (int)losses : 0;
  r->has_experts = tws_network_has_experts(network);
  r->has_scale = t->config->dtype == TWS_F16;
  r->samples_per_s = r->seconds > 0 ? (double)t->config->train_batch_size / r->seconds : 0;
  r->model_flops_per_s = r->seconds > 0 ? t->model_flops / r->seconds : 0;
  r->mfu = peak > 0 ? r->model_flops_per_s / peak : 0;
  for (int tier = 0; tier < TWS_TIER_COUNT; tier++)
    r->memory_bytes[tier] = tws_executor_allocated(t->executor, (tws_tier)tier);
}

void tws_step_report_finish(tws_training *t, const double *times, tws_step_report *r) {
  const double waited_s = tws_checkpoint_times(t).waited_s;
  tws_step_report_complete(t, r);
  r->at_s = tws_wall_s();
  r->data_wait_s = t->data_wait_s;
  r->save_wait_s = waited_s - t->saves_waited_s;
  t->saves_waited_s = waited_s;
  tws_phase_clock *clock = t->phases[t->kind.program];
  r->is_timed = clock && times;
  if (r->is_timed) r->phase = tws_phase_clock_read(clock, times);
}

tws_code tws_step_report_open(tws_training *t, tws_error *err) {
  if (t->rank != 0) return TWS_OK;
  const tws_monitor_run run = {.lines_path = t->options->watching.lines_path,
                               .prometheus_path = t->options->watching.prometheus_path,
                               .continues = t->resumed != NULL,
                               .samples = t->first_step * t->config->train_batch_size};
  return tws_monitored_open(t->config, &run, t->plan, t->options->watching.plots, &t->monitor, err);
}
