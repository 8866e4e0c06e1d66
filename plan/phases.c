#include "plan/phases.h"

#include <string.h>

/* An interval that grows during a training. An update counts if the interval divides its number; after a number of
 * counted updates, which is a key of the configuration, the interval doubles. */
typedef struct series {
  int64_t interval, from; /* the interval holds for updates from `from` on */
} series;

/* Returns the number of the last update with uncompressed or compressed gradients; from the next update on, steps are
 * local or have fixed second moments. */
static int64_t first_phase(const tws_config *config) {
  switch (tws_optimizer_of(config->optimizer)->phases) {
    case TWS_PHASES_FROZEN:
    case TWS_PHASES_SCALED:
      return config->freeze_step > 2 ? config->freeze_step : 2;
    case TWS_PHASES_INTERVALS:
      return config->var_freeze_step > 1 ? config->var_freeze_step + 1 : 2;
    case TWS_PHASES_ONE:
      break;
  }
  return INT64_MAX;
}

/* Returns the interval at which second moments change, as it is at `update`. From update 2 on, an update counts if the
 * interval divides its number. */
static series variance_interval(const tws_config *config, int64_t update) {
  series s = {1, 2};
  for (;;) {
    const int64_t first = (s.from + s.interval - 1) / s.interval; /* number of the first counted update / interval */
    const int64_t last = first + config->var_update_scaler - 1;
    if (s.interval > INT64_MAX / 4 || last >= INT64_MAX / 4 / s.interval || last * s.interval >= update) return s;
    s.from = last * s.interval + 1;
    s.interval *= 2;
  }
}

/* Returns the interval at which ranks average their local changes, as it is at `update`, which is after first_phase().
 * Every update after first_phase() counts. */
static series local_interval(const tws_config *config, int64_t update) {
  series s = {1, first_phase(config) + 1};
  while (s.interval < config->local_step_clipper && update - s.from >= config->local_step_scaler) {
    s.from += config->local_step_scaler;
    s.interval *= 2;
    if (s.interval > config->local_step_clipper) s.interval = config->local_step_clipper;
  }
  return s;
}

static int merges(const tws_config *config, int64_t update) {
  return update % local_interval(config, update).interval == 0;
}

/* Returns the number of the first update after the last one at which ranks averaged their changes. */
static int64_t changes_since(const tws_config *config, int64_t update) {
  int64_t at = update;
  while (at - 1 > first_phase(config) && !merges(config, at - 1)) at--;
  return at;
}

tws_step_kind tws_step_kind_of(const tws_config *config, int64_t update, int last) {
  const tws_optimizer_phases phases = tws_optimizer_of(config->optimizer)->phases;
  const int64_t end = first_phase(config);
  tws_step_kind kind = {.program = TWS_PROGRAM_TRAIN};
  if (phases != TWS_PHASES_ONE && update > end) kind.program = TWS_PROGRAM_COMPRESSED;
  kind.begins_phase = tws_plan_has_program(config, TWS_PROGRAM_FREEZE) && update == end;
  if (phases != TWS_PHASES_INTERVALS) return kind;
  if (update > end) {
    kind.program = last || merges(config, update) ? TWS_PROGRAM_MERGE : TWS_PROGRAM_LOCAL;
    kind.since = changes_since(config, update);
  } else if (update > 1 && update % variance_interval(config, update).interval != 0) {
    kind.program = TWS_PROGRAM_COMPRESSED;
  }
  return kind;
}

int tws_step_agrees(const tws_config *config, int64_t update) {
  return update < 1 || tws_step_kind_of(config, update, 0).program != TWS_PROGRAM_LOCAL;
}

/* Returns the number of multiples of `interval` in [from, to]. */
static int64_t multiples(int64_t interval, int64_t from, int64_t to) {
  return to < from ? 0 : to / interval - (from - 1) / interval;
}

/* Adds to count[] how often each program of ZeroOneAdam runs in the first `steps` steps, interval by interval. */
static void count_intervals(const tws_config *config, int64_t steps, int64_t count[TWS_PROGRAM_COUNT]) {
  const int64_t end = first_phase(config), before = steps < end ? steps : end;
  int64_t with_variance = before < 1 ? 0 : 1, merged = 0;
  for (int64_t to = before; to >= 2;) {
    const series s = variance_interval(config, to);
    with_variance += multiples(s.interval, s.from, to);
    to = s.from - 1;
  }
  for (int64_t to = steps; to > end;) {
    const series s = local_interval(config, to);
    merged += multiples(s.interval, s.from, to);
    to = s.from - 1;
  }
  if (steps > end && !merges(config, steps)) merged++; /* the last step */
  count[TWS_PROGRAM_TRAIN] = with_variance;
  count[TWS_PROGRAM_COMPRESSED] = before - with_variance;
  count[TWS_PROGRAM_MERGE] = merged;
  count[TWS_PROGRAM_LOCAL] = (steps > end ? steps - end : 0) - merged;
  count[TWS_PROGRAM_FREEZE] = steps >= end;
}

void tws_run_programs(const tws_config *config, int64_t steps, int64_t count[TWS_PROGRAM_COUNT]) {
  const tws_optimizer_phases phases = tws_optimizer_of(config->optimizer)->phases;
  const int64_t end = first_phase(config);
  memset(count, 0, TWS_PROGRAM_COUNT * sizeof *count);
  if (phases == TWS_PHASES_INTERVALS) {
    count_intervals(config, steps, count);
    return;
  }
  count[TWS_PROGRAM_TRAIN] = steps < end ? steps : end;
  count[TWS_PROGRAM_COMPRESSED] = steps - count[TWS_PROGRAM_TRAIN];
  count[TWS_PROGRAM_FREEZE] = tws_plan_has_program(config, TWS_PROGRAM_FREEZE) && steps >= end;
  for (int p = TWS_PROGRAM_APPLY; p <= TWS_PROGRAM_SYNC; p++)
    count[p] = (int64_t)((double)steps * tws_program_share(config, (tws_program)p));
}
