#include "plan/fold.h"

enum { SLOTS_IN_TURN = 4 }; /* of messages, two of them to spare */
enum { LONG_ROUNDS = 32, FIRST_ROUNDS = 8, MOST_ROUNDS = 28, FURTHER_ROUNDS = 5 };

int64_t tws_fold_round(const tws_pipeline_shape *shape) {
  const int stages = shape->stages;
  if (stages == 1) return 2; /* buckets of gradients may hold two micro-batches apart */
  const int64_t round = stages >= SLOTS_IN_TURN ? stages : stages * ((SLOTS_IN_TURN + stages - 1) / stages);
  return shape->virtual_stages > 1 ? 3 * round : round; /* as many as are in flight */
}

int64_t tws_fold_step(const tws_pipeline_shape *shape) {
  return shape->virtual_stages > 1 ? shape->stages : 1;
}

int tws_fold_is_long(const tws_pipeline_shape *shape, int64_t micro_batches) {
  return shape->kind != TWS_PIPELINE_GPIPE && !shape->beside && micro_batches >= LONG_ROUNDS * tws_fold_round(shape);
}

tws_repetition tws_fold_repetition(const tws_pipeline_shape *shape, int64_t micro_batches) {
  if (!tws_fold_is_long(shape, micro_batches)) return (tws_repetition){0, 0};
  return (tws_repetition){.step = (uint32_t)tws_fold_step(shape), .round = (uint32_t)tws_fold_round(shape)};
}

/* Whether the last rounds are like each other: their layouts, and what each adds. */
static int is_steady(const tws_fold_sample *samples, int newest, int64_t built, int64_t round) {
  const tws_fold_sample *last = &samples[newest];
  if (last->settled + 4 * round > built) return 0;
  double added[TWS_FOLD_SAMPLES - 1];
  for (int i = 0; i < TWS_FOLD_SAMPLES - 1; i++) {
    const tws_fold_sample *a = &samples[(newest + TWS_FOLD_SAMPLES - i) % TWS_FOLD_SAMPLES];
    const tws_fold_sample *b = &samples[(newest + TWS_FOLD_SAMPLES - i - 1) % TWS_FOLD_SAMPLES];
    if (a->bytes != b->bytes) return 0;
    added[i] = a->step_s - b->step_s;
    const double apart = added[i] - added[0];
    if (apart > 1e-11 * last->step_s || apart < -1e-11 * last->step_s) return 0;
  }
  return 1;
}

tws_code tws_fold_find(const tws_pipeline_shape *shape, int64_t wanted, tws_fold_measure measure, void *user,
                       tws_folded *out, tws_error *err) {
  const int64_t round = tws_fold_round(shape), most = MOST_ROUNDS * round;
  tws_fold_sample samples[TWS_FOLD_SAMPLES];
  int64_t next = FIRST_ROUNDS * round + wanted % round;
  int taken = 0;
  while (tws_fold_is_long(shape, wanted) && next < most) {
    const int slot = taken % TWS_FOLD_SAMPLES;
    TWS_TRY(measure(user, next, slot, &samples[slot], err));
    taken++;
    if (taken >= TWS_FOLD_SAMPLES && is_steady(samples, slot, next, round)) {
      *out = (tws_folded){slot, (slot + TWS_FOLD_SAMPLES - 1) % TWS_FOLD_SAMPLES, next,
                          (double)(wanted - next) / (double)round};
      return TWS_OK;
    }
    /* neither the layout nor the rhythm was found: look further on */
    if (taken >= TWS_FOLD_SAMPLES && samples[slot].settled + 4 * round > next) {
      next += (FURTHER_ROUNDS - 1) * round;
      taken = 0;
    }
    next += round;
  }
  *out = (tws_folded){0, 0, wanted, 0};
  return measure(user, wanted, 0, &samples[0], err);
}
