#include "plan/repetition.h"

enum { SLOTS_IN_TURN = 4 }; /* number of message slots that are used alternately, two of them spare */
enum { FIRST_ALONE = 3, BEYOND_STAGES = 4, FIRST_INTERLEAVED = 3 };

int64_t tws_fold_round(const tws_pipeline_shape *shape) {
  const int stages = shape->stages;
  /* a round is two micro-batches, since gradient buckets may use two slots alternately */
  if (stages == 1) return 2;
  const int64_t round = stages >= SLOTS_IN_TURN ? stages : stages * ((SLOTS_IN_TURN + stages - 1) / stages);
  return shape->virtual_stages > 1 ? 3 * round : round; /* interleaved: enough for those in flight in all chunks */
}

int64_t tws_fold_step(const tws_pipeline_shape *shape) {
  return shape->virtual_stages > 1 ? shape->stages : 1;
}

int64_t tws_fold_first(const tws_pipeline_shape *shape) {
  if (shape->stages == 1) return FIRST_ALONE;
  if (shape->virtual_stages > 1) return FIRST_INTERLEAVED * (int64_t)shape->stages;
  return shape->stages + BEYOND_STAGES;
}

int tws_fold_applies(const tws_pipeline_shape *shape, int64_t micro_batches) {
  const int gpipe = shape->stages > 1 && shape->kind == TWS_PIPELINE_GPIPE;
  const int64_t samples = 3 * (tws_fold_first(shape) + tws_fold_step(shape));
  return !gpipe && !shape->irregular && micro_batches > samples;
}

/* Returns the number of last micro-batches during which no forward pass of other micro-batches runs. */
static int64_t ending_of(const tws_pipeline_shape *shape, int stage) {
  if (shape->stages == 1) return 1;
  const int64_t chunks = shape->virtual_stages, passes = tws_pipeline_in_flight(shape, stage);
  return chunks > 1 ? (passes + chunks - 1) / chunks + shape->stages : passes;
}

tws_repetition tws_fold_repetition(const tws_pipeline_shape *shape, int stage, int64_t micro_batches) {
  if (!tws_fold_applies(shape, micro_batches)) return (tws_repetition){0, 0};
  return (tws_repetition){.step = (uint32_t)tws_fold_step(shape), .ending = (uint32_t)ending_of(shape, stage)};
}
