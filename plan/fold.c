#include "plan/fold.h"

#include "plan/plan.h"

/* Limits of the search for a periodic time: numbers of measurements whose micro-batches differ by tws_fold_step(), and
 * then by tws_fold_round(); number of jumps to a longer plan. */
enum { STEP_SAMPLES = 5, ROUND_SAMPLES = 5, MOST_JUMPS = 3 };
/* Limits of the search for a periodic layout: number of plans, and longest period. */
enum { MOST_LAYOUTS = 5, LONGEST_PERIOD = 64, BEYOND_STAGES = 4 };

/* Returns a number of micro-batches that is at least `at_least` and smaller than `wanted` by a multiple of the period:
 * the smallest such number. */
static int64_t align(int64_t at_least, int64_t wanted, int64_t period) {
  const int64_t off = (wanted - at_least) % period;
  return at_least >= wanted ? wanted : at_least + off;
}

/* Returns the number of micro-batches of the first plan to try, which probably suffices to show a periodic layout: the
 * micro-batches in flight are allocated, later ones reuse their memory, and still later ones reuse it again, which
 * proves the period. */
static int64_t first_layout(const tws_pipeline_shape *shape, int stage, int64_t wanted) {
  if (shape->stages == 1) return tws_fold_first(shape) + 1;
  if (shape->virtual_stages > 1) return 2 * tws_fold_round(shape);
  const int64_t in_flight = tws_pipeline_in_flight(shape, stage);
  return align(3 * in_flight + BEYOND_STAGES, wanted, in_flight + 1);
}

/* Returns the number of micro-batches to try after a plan whose layout is not seen to be periodic; `wanted` if it is
 * the whole step. */
static int64_t next_layout(const tws_pipeline_shape *shape, const tws_plan *plan, int64_t wanted) {
  const int64_t built = plan->accumulation_steps, step = tws_fold_step(shape), period = plan->period;
  if (plan->settled <= built && period > 0 && period <= LONGEST_PERIOD) return align(built, wanted, period);
  const int64_t next = plan->settled > built ? plan->settled : built;
  return align(next > built + step ? next : built + step, wanted,
               period > 0 && period <= LONGEST_PERIOD ? period : step);
}

int tws_fold_determines_memory(const tws_plan *plan, int64_t wanted) {
  const int64_t built = plan->accumulation_steps;
  if (built >= wanted) return 1;
  return plan->period > 0 && plan->settled <= built && (wanted - built) % plan->period == 0;
}

tws_code tws_fold_plan(const tws_plan_request *request, tws_plan **out, tws_error *err) {
  const int64_t wanted = request->config->accumulation_steps;
  const int stages = tws_topology_size(&request->topology, TWS_AXES_PIPE);
  const tws_pipeline_shape shape = tws_pipeline_shape_of(request->config, stages, wanted);
  tws_plan_request r = *request;
  r.use = TWS_PLAN_FOR_MEMORY;
  const int stage = tws_topology_position(&r.topology, r.rank).index[TWS_AXIS_PIPE];
  int64_t built = tws_fold_applies(&shape, wanted) ? first_layout(&shape, stage, wanted) : wanted;
  for (int tried = 0;; tried++) {
    if (tried == MOST_LAYOUTS || built > wanted) built = wanted;
    r.max_accumulation = built;
    TWS_TRY(tws_plan_build(&r, out, err));
    const tws_plan *plan = *out;
    if (tws_fold_determines_memory(plan, wanted)) return TWS_OK;
    built = next_layout(&shape, plan, wanted);
    tws_plan_destroy(*out);
    *out = NULL;
  }
}

tws_plan_use tws_fold_use(const tws_pipeline_shape *shape, int64_t micro_batches) {
  if (micro_batches >= shape->micro_batches) return TWS_PLAN_FOR_ALL;
  return shape->stages > 1 || micro_batches < tws_fold_first(shape) + 2 ? TWS_PLAN_FOR_TIMES : TWS_PLAN_FOR_ALL;
}

/* Returns 1 if b - a equals c - b within rounding, relative to c and to `whole`. */
static int adds_alike(double a, double b, double c, double whole) {
  const double least = 1e-11 * whole, size = 1e-11 * (c > 0 ? c : -c), apart = (c - b) - (b - a);
  const double most = size > least ? size : least;
  return apart <= most && apart >= -most;
}

/* Returns 1 if the step is periodic: the last three measurements grow by equal amounts. */
static int is_steady(const tws_fold_sample *samples, int taken) {
  const tws_fold_sample *c = &samples[(taken - 1) % TWS_FOLD_SAMPLES], *b = &samples[(taken - 2) % TWS_FOLD_SAMPLES],
                        *a = &samples[(taken - 3) % TWS_FOLD_SAMPLES];
  if (!adds_alike(a->step_s, b->step_s, c->step_s, c->step_s)) return 0;
  for (int r = 0; r < c->ranks; r++) {
    const size_t at = (size_t)r * c->stride;
    for (size_t i = 0; i < c->count; i++)
      if (!adds_alike(a->numbers[at + i], b->numbers[at + i], c->numbers[at + i], c->step_s)) return 0;
    for (size_t i = at + c->first_time; i < at + c->first_time + c->times; i++) {
      /* growth of a time since the step began; if it exceeds the growth of the step time, the rank becomes slower than
       * the measured step time shows */
      const double later = c->numbers[i] - b->numbers[i];
      if (later > c->step_s - b->step_s + 1e-11 * c->step_s) return 0;
    }
  }
  return 1;
}

tws_code tws_fold_find(const tws_pipeline_shape *shape, int64_t wanted, tws_fold_measure measure, void *user,
                       tws_folded *out, tws_error *err) {
  const int64_t apart[] = {tws_fold_step(shape), tws_fold_round(shape)};
  const int most[] = {STEP_SAMPLES, ROUND_SAMPLES};
  tws_fold_sample samples[TWS_FOLD_SAMPLES] = {{0}};
  int64_t built = tws_fold_first(shape);
  int jumps = 0;
  for (int far = 0; far < 2 && tws_fold_applies(shape, wanted); far++) {
    built = align(built, wanted, apart[far]);
    for (int taken = 0; taken < most[far] && built < wanted; built += apart[far]) {
      const int slot = taken % TWS_FOLD_SAMPLES;
      TWS_TRY(measure(user, built, slot, &samples[slot], err));
      /* number of micro-batches after which the layout, and with it waits for memory, repeats */
      const int64_t settled = samples[slot].settled;
      if (settled > built + 2 * apart[far]) {
        /* the whole step is at most three times as long as the plan that would be needed, so a few-round plan saves
         * little */
        if (3 * settled >= wanted || ++jumps > MOST_JUMPS) break;
        built = align(settled, wanted, apart[far]) - apart[far];
        taken = 0;
        continue;
      }
      if (++taken < TWS_FOLD_SAMPLES || settled > built || !is_steady(samples, taken)) continue;
      *out = (tws_folded){slot, (taken - 2) % TWS_FOLD_SAMPLES, built, (double)(wanted - built) / (double)apart[far]};
      return TWS_OK;
    }
  }
  *out = (tws_folded){0, 0, wanted, 0};
  return measure(user, wanted, 0, &samples[0], err);
}
