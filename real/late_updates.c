/* Updates on the host that training steps leave for later: after which steps they are due, whether between steps or
 * overlapped with the next one, and their scalars. */
#include "plan/hyper.h"
#include "real/train_internal.h"

/* Returns the number of steps in ZenFlow's interval that ends with this step, after which the host updates; 0: no
 * interval ends. */
static int64_t zenflow_interval(const tws_config *config, int64_t step) {
  const int64_t behind = step - tws_zenflow_warm_up(config), interval = tws_zenflow_update_interval(config);
  return behind <= 0 ? 1 : behind % interval == 0 ? interval : 0;
}

/* Returns 1 if columns are selected anew after this step, with which an interval ends. */
static int selects(const tws_config *config, int64_t step) {
  const int64_t behind = step - tws_zenflow_warm_up(config);
  return behind >= 0 && behind % tws_zenflow_select_interval(config) == 0;
}

/* Returns 1 if the host's update after this step overlaps with the next one: not during warm-up, nor after the last
 * step. */
static int overlaps_after(const tws_training *t, int64_t step) {
  return t->programs[TWS_PROGRAM_OVERLAP] && !t->is_library && step > tws_zenflow_warm_up(t->config) &&
         step != t->options->steps && zenflow_interval(t->config, step) > 0;
}

int tws_training_applies(const tws_training *t, int64_t step, tws_program *program) {
  *program = t->kind.begins_phase ? TWS_PROGRAM_FREEZE : TWS_PROGRAM_APPLY;
  if (t->kind.begins_phase) return !t->skipped;
  if (!t->config->zenflow.on)
    return t->programs[TWS_PROGRAM_APPLY] && (step <= t->config->delayed_warm_up || step == t->options->steps);
  if (selects(t->config, step)) *program = TWS_PROGRAM_SELECT;
  return zenflow_interval(t->config, step) > 0 && !overlaps_after(t, step);
}

/* Sets the scalars of ZenFlow's update on the host, in two buffers of a program: gradient sums become means, and its
 * updates are counted separately. A skipped step of the warm-up changes nothing. */
static tws_code put_zenflow_scalars(tws_training *t, tws_program program, uint32_t to_hyper, uint32_t to_metrics,
                                    tws_error *err) {
  const int64_t step = t->counters->steps, warm_up = tws_zenflow_warm_up(t->config);
  const int64_t interval = zenflow_interval(t->config, step);
  const int64_t update = step <= warm_up ? step : warm_up + (step - warm_up) / interval;
  const double clip = interval == 1 && t->skipped ? 0 : 1.0 / (double)interval;
  float hyper[TWS_HYPER_COUNT];
  const int64_t done = step - t->counters->skipped;
  double lr;
  tws_hyper_fill_late(t->config, done > 0 ? done : 1, update, hyper);
  tws_training_use_set_lr(t, &lr, hyper);
  TWS_TRY(tws_executor_put(t->executor, (int)program, to_hyper, 0, hyper, TWS_HYPER_COUNT, err));
  return tws_executor_put(t->executor, (int)program, to_metrics, TWS_METRIC_CLIP, &clip, 1, err);
}

tws_code tws_training_begin_apply(tws_training *t, tws_program program, tws_error *err) {
  const tws_plan *plan = t->programs[program];
  TWS_TRY(tws_executor_zero(t->executor, (int)program, plan->metrics, err));
  return t->config->zenflow.on ? put_zenflow_scalars(t, program, plan->hyper, plan->metrics, err) : TWS_OK;
}

/* ---- updates that overlap with the next step ---- */

tws_code tws_training_find_pending(tws_training *t, tws_error *err) {
  double clip = 0;
  t->pending = TWS_PROGRAM_TRAIN;
  if (!t->programs[TWS_PROGRAM_OVERLAP]) return TWS_OK; /* no update is ever pending */
  const uint32_t metrics = tws_training_buffer(t->plan, TWS_OVERLAPPED_METRICS);
  TWS_TRY(tws_executor_get(t->executor, TWS_PROGRAM_TRAIN, metrics, TWS_METRIC_CLIP, &clip, 1, err));
  if (clip != 0 && t->is_library)
    return tws_fail(
        err, TWS_UNSUPPORTED, "continue this checkpoint with `twinspeed train`, at least one step",
        "the checkpoint has an update that overlaps with the next step (zenflow.overlap_step), and steps of "
        "the library update in time");
  if (clip != 0) t->pending = selects(t->config, t->counters->steps) ? TWS_PROGRAM_OVERLAP_SELECT : TWS_PROGRAM_OVERLAP;
  return TWS_OK;
}

tws_code tws_training_defer(tws_training *t, tws_error *err) {
  if (!t->programs[TWS_PROGRAM_OVERLAP]) return TWS_OK;
  const uint32_t hyper = tws_training_buffer(t->plan, TWS_OVERLAPPED_HYPER),
                 metrics = tws_training_buffer(t->plan, TWS_OVERLAPPED_METRICS);
  if (t->kind.program != TWS_PROGRAM_TRAIN) TWS_TRY(tws_executor_zero(t->executor, TWS_PROGRAM_TRAIN, metrics, err));
  t->pending = TWS_PROGRAM_TRAIN;
  const int64_t step = t->counters->steps;
  if (!overlaps_after(t, step)) return TWS_OK;
  t->pending = selects(t->config, step) ? TWS_PROGRAM_OVERLAP_SELECT : TWS_PROGRAM_OVERLAP;
  return put_zenflow_scalars(t, TWS_PROGRAM_TRAIN, hyper, metrics, err);
}
