/* Updates on the host that training steps leave for later: after which steps they are due, whether between steps or
 * overlapped with the next one, and their scalars. */
#include <inttypes.h>
#include "plan/hyper.h"
#include "real/train_internal.h"

/* ---- ZenFlow's intervals ----
 *
 * An interval between updates on the host has a given number of steps or, with update_interval "auto", a measured one.
 * Let u and s be the sums of |gradient|, clipped, over the unselected and the selected columns of a matrix in one step,
 * and k the topk_ratio. The interval ends with the step in which, for at least auto_ratio of the matrices,
 *
 *     (sum of u since the host's last update) / (1 - k)  >=  (mean of s since the selection of the columns) / k
 *
 * that is, in which an average unselected column waits with as much gradient as an average selected one has in a step.
 * It also ends after TWS_ZENFLOW_LONGEST steps, and with the step after which columns are selected anew. All ranks
 * decide alike, since u and s are sums over all ranks, which the step's plan computes. What is kept about an interval
 * is an entry of the state, so that a resumed training decides as an uninterrupted one. */

/* The values that the state's entry has about the measured interval. After them there are for each matrix the sum of u
 * and the sum of s. */
enum {
  STEPS,            /* steps since the host's last update */
  UPDATES,          /* updates of the host since the start of the training */
  SELECTED_STEPS,   /* steps since columns were selected */
  SELECTED_UPDATES, /* updates of the host since then */
  MEASURED,         /* steps since then whose sums were added: neither skipped nor of the warm-up */
  SELECTS           /* 1: columns are selected anew after the last interval */
};
_Static_assert(SELECTS + 1 == TWS_INTERVAL_VALUES, "the entry of the state has one element for each value");

/* Returns the interval of given length that ends with `step`. */
static tws_interval given_interval(const tws_config *config, int64_t step) {
  const int64_t warm_up = tws_zenflow_warm_up(config), length = tws_zenflow_update_interval(config);
  const int64_t behind = step - warm_up;
  if (behind <= 0) return (tws_interval){.steps = 1, .update = step, .selects = behind == 0};
  return (tws_interval){.steps = behind % length == 0 ? length : 0,
                        .update = warm_up + behind / length,
                        .selects = behind % tws_zenflow_select_interval(config) == 0};
}

/* The sizes of one step's gradients (TWS_ZENFLOW_SIZES): for each matrix a sum over all columns and one over the
 * selected ones, each in `parts` parts. count: number of these sums. */
typedef struct sizes_read {
  float *values;
  uint64_t count, parts;
} sizes_read;

static double size_of(const sizes_read *sizes, uint64_t i) {
  double sum = 0;
  for (uint64_t k = 0; k < sizes->parts; k++) sum += (double)sizes->values[i * sizes->parts + k];
  return sum;
}

/* Adds the sizes of one step's gradients, multiplied by the clipping coefficient, to the sums of the interval. */
static void add_sizes(double *kept, const sizes_read *sizes, double clip) {
  for (uint64_t i = 0; i < sizes->count; i += 2) {
    const double all = size_of(sizes, i), selected = size_of(sizes, i + 1);
    kept[TWS_INTERVAL_VALUES + i] += clip * (all - selected);
    kept[TWS_INTERVAL_VALUES + i + 1] += clip * selected;
  }
  kept[MEASURED]++;
}

/* Returns 1 if the gradients of enough matrices end the interval. */
static int gradients_end(const tws_config *config, const double *kept, uint64_t count) {
  const double k = config->zenflow.topk_ratio;
  const double *sums = kept + TWS_INTERVAL_VALUES;
  uint64_t large = 0;
  for (uint64_t i = 0; i < count; i += 2) large += sums[i] / (1 - k) >= sums[i + 1] / kept[MEASURED] / k;
  return (double)large >= config->zenflow.auto_ratio * (double)(count / 2);
}

/* Returns 1 if the step ends an interval, after its values have been added to `kept`. */
static int ends_interval(const tws_training *t, const double *kept, uint64_t count) {
  const int64_t select_steps = tws_zenflow_select_steps(t->config);
  if (kept[STEPS] >= TWS_ZENFLOW_LONGEST) return 1;
  if (select_steps > 0 && kept[SELECTED_STEPS] >= (double)select_steps) return 1;
  return !t->skipped && gradients_end(t->config, kept, count);
}

static int selects_columns(const tws_training *t, const double *kept) {
  const int64_t steps = tws_zenflow_select_steps(t->config);
  return steps > 0 ? kept[SELECTED_STEPS] >= (double)steps : kept[SELECTED_UPDATES] >= TWS_ZENFLOW_SELECT_UPDATES;
}

/* Resets what is kept about the interval that has ended, and about the selected columns if they will be selected
 * anew. */
static void begin_interval(double *kept, uint64_t count) {
  kept[STEPS] = 0;
  for (uint64_t i = 0; i < count; i += 2) kept[TWS_INTERVAL_VALUES + i] = 0;
  if (kept[SELECTS] == 0) return;
  kept[SELECTED_STEPS] = kept[SELECTED_UPDATES] = kept[MEASURED] = 0;
  for (uint64_t i = 0; i < count; i += 2) kept[TWS_INTERVAL_VALUES + i + 1] = 0;
}

/* Adds a step to the kept values and returns the interval that ends with it. */
static tws_interval add_step(const tws_training *t, double *kept, const sizes_read *sizes, double clip) {
  const int64_t step = t->counters->steps;
  const tws_interval given = given_interval(t->config, step);
  const int warms_up = step <= tws_zenflow_warm_up(t->config);
  /* a checkpoint of intervals of given length has no count of updates: assume the usual one */
  if (warms_up || kept[UPDATES] == 0) kept[UPDATES] = (double)(given.update - (given.steps > 0));
  kept[STEPS]++;
  kept[SELECTED_STEPS]++;
  if (!warms_up && !t->skipped) add_sizes(kept, sizes, clip);
  if (!warms_up && !ends_interval(t, kept, sizes->count)) return (tws_interval){0};
  kept[UPDATES]++;
  kept[SELECTED_UPDATES]++;
  kept[SELECTS] = warms_up ? given.selects : selects_columns(t, kept);
  const tws_interval ended = {
      .steps = (int64_t)kept[STEPS], .update = (int64_t)kept[UPDATES], .selects = kept[SELECTS] != 0};
  begin_interval(kept, sizes->count);
  return ended;
}

/* Returns the buffer of what is kept about measured intervals; TWS_NONE: intervals have a given length. */
static uint32_t kept_buffer(const tws_training *t) {
  return tws_state_find(t->plan->state, TWS_ZENFLOW_INTERVAL) == TWS_NONE
             ? TWS_NONE
             : tws_training_buffer(t->plan, TWS_ZENFLOW_INTERVAL);
}

/* Sets t->interval from the sizes of the step's gradients, which each rank reads. */
static tws_code measure_interval(tws_training *t, uint32_t buffer, double clip, tws_error *err) {
  const uint32_t from = tws_training_buffer(t->plan, TWS_ZENFLOW_SIZES);
  const uint64_t values = t->plan->buffers[buffer].elements, read = t->plan->buffers[from].elements;
  double *kept = tws_calloc(values, sizeof *kept);
  sizes_read sizes = {.values = tws_calloc(read, sizeof *sizes.values), .count = values - TWS_INTERVAL_VALUES};
  sizes.parts = read / sizes.count;
  tws_code code =
      kept && sizes.values ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "no memory for the sizes of gradients");
  if (code == TWS_OK) code = tws_executor_get(t->executor, TWS_PROGRAM_TRAIN, buffer, 0, kept, values, err);
  if (code == TWS_OK) code = tws_executor_get(t->executor, TWS_PROGRAM_TRAIN, from, 0, sizes.values, read, err);
  if (code == TWS_OK) {
    t->interval = add_step(t, kept, &sizes, clip);
    code = tws_executor_put(t->executor, TWS_PROGRAM_TRAIN, buffer, 0, kept, values, err);
  }
  tws_free(kept);
  tws_free(sizes.values);
  if (code == TWS_OK && t->interval.steps > 0 && t->rank == 0)
    tws_log_write(t->options->log, TWS_LOG_DEBUG,
                  "step %" PRId64 ": update %" PRId64 " of the host, of %" PRId64 " step%s%s", t->counters->steps,
                  t->interval.update, t->interval.steps, t->interval.steps == 1 ? "" : "s",
                  t->interval.selects ? "; columns are selected" : "");
  return code;
}

static tws_code find_interval(tws_training *t, double clip, tws_error *err) {
  t->interval = (tws_interval){0};
  if (!t->config->zenflow.on) return TWS_OK;
  const uint32_t kept = kept_buffer(t);
  if (kept != TWS_NONE) return measure_interval(t, kept, clip, err);
  t->interval = given_interval(t->config, t->counters->steps);
  return TWS_OK;
}

/* ---- updates between steps ---- */

/* Returns 1 if the host's update after this step overlaps with the next one: not during warm-up, nor after the last
 * step. */
static int overlaps_after(const tws_training *t, int64_t step) {
  return t->programs[TWS_PROGRAM_OVERLAP] && !t->is_library && step > tws_zenflow_warm_up(t->config) &&
         step != t->options->steps && t->interval.steps > 0;
}

int tws_training_applies(const tws_training *t, int64_t step, tws_program *program) {
  *program = t->kind.begins_phase ? TWS_PROGRAM_FREEZE : TWS_PROGRAM_APPLY;
  if (t->kind.begins_phase) return !t->skipped;
  if (!t->config->zenflow.on)
    return t->programs[TWS_PROGRAM_APPLY] && (step <= t->config->delayed_warm_up || step == t->options->steps);
  if (t->interval.selects) *program = TWS_PROGRAM_SELECT;
  return t->interval.steps > 0 && !overlaps_after(t, step);
}

/* Sets the scalars of ZenFlow's update on the host, in two buffers of a program: gradient sums become means, and its
 * updates are counted separately. A skipped step of the warm-up changes nothing. */
static tws_code put_zenflow_scalars(tws_training *t, tws_program program, uint32_t to_hyper, uint32_t to_metrics,
                                    tws_error *err) {
  const int64_t steps = t->interval.steps;
  const double clip = steps == 1 && t->skipped ? 0 : 1.0 / (double)steps;
  float hyper[TWS_HYPER_COUNT];
  const int64_t done = t->counters->steps - t->counters->skipped;
  double lr;
  tws_hyper_fill_late(t->config, done > 0 ? done : 1, t->interval.update, hyper);
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
  double selects = given_interval(t->config, t->counters->steps).selects;
  const uint32_t kept = kept_buffer(t);
  if (kept != TWS_NONE) TWS_TRY(tws_executor_get(t->executor, TWS_PROGRAM_TRAIN, kept, SELECTS, &selects, 1, err));
  if (clip != 0) t->pending = selects != 0 ? TWS_PROGRAM_OVERLAP_SELECT : TWS_PROGRAM_OVERLAP;
  return TWS_OK;
}

tws_code tws_training_defer(tws_training *t, const double ended[TWS_METRIC_COUNT], tws_error *err) {
  TWS_TRY(find_interval(t, ended[TWS_METRIC_CLIP], err));
  if (!t->programs[TWS_PROGRAM_OVERLAP]) return TWS_OK;
  const uint32_t hyper = tws_training_buffer(t->plan, TWS_OVERLAPPED_HYPER),
                 metrics = tws_training_buffer(t->plan, TWS_OVERLAPPED_METRICS);
  if (t->kind.program != TWS_PROGRAM_TRAIN) TWS_TRY(tws_executor_zero(t->executor, TWS_PROGRAM_TRAIN, metrics, err));
  t->pending = TWS_PROGRAM_TRAIN;
  if (!overlaps_after(t, t->counters->steps)) return TWS_OK;
  t->pending = t->interval.selects ? TWS_PROGRAM_OVERLAP_SELECT : TWS_PROGRAM_OVERLAP;
  return put_zenflow_scalars(t, TWS_PROGRAM_TRAIN, hyper, metrics, err);
}
