#include "estimators/memory_track.h"

#include <stdio.h>
#include <stdlib.h>
#include "base/memory.h"

typedef struct step_of_memory {
  double at_s;
  int64_t bytes; /* added, or freed if negative */
  uint8_t tier;
} step_of_memory;

/* Compares two changes for qsort(): by tier, then by time; at equal times memory is freed before it is allocated. */
static int order(const void *a, const void *b) {
  const step_of_memory *x = a, *y = b;
  if (x->tier != y->tier) return x->tier - y->tier;
  if (x->at_s != y->at_s) return x->at_s < y->at_s ? -1 : 1;
  return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static double first_start(const tws_plan *plan, const double *times) {
  double start = plan->op_count ? times[0] : 0;
  for (uint32_t i = 1; i < plan->op_count; i++)
    if (times[2 * (size_t)i] < start) start = times[2 * (size_t)i];
  return start;
}

tws_code tws_memory_track(const tws_plan *plan, const double *times, tws_memory_change **changes, size_t *count,
                          tws_error *err) {
  step_of_memory *steps = tws_calloc(2 * (size_t)plan->buffer_count + 1, sizeof *steps);
  tws_memory_change *out = *changes = tws_calloc(2 * (size_t)plan->buffer_count + TWS_TIER_COUNT, sizeof *out);
  const double start = first_start(plan, times);
  size_t used = 0;
  *count = 0;
  if (!steps || !out) {
    tws_free(steps);
    tws_free(out);
    *changes = NULL;
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the memory in a trace");
  }
  for (uint32_t i = 0; i < plan->buffer_count; i++) {
    const tws_buffer *b = &plan->buffers[i];
    const int always = b->lifetime != TWS_LIFETIME_OPS;
    if (!always && b->first_op == TWS_NONE) continue;
    const double from = always ? start : times[2 * (size_t)b->first_op];
    steps[used++] = (step_of_memory){from, (int64_t)b->bytes, b->tier};
    if (!always) steps[used++] = (step_of_memory){times[2 * (size_t)b->last_op + 1], -(int64_t)b->bytes, b->tier};
  }
  if (used) qsort(steps, used, sizeof *steps, order);
  int64_t bytes = 0;
  for (size_t i = 0; i < used; i++) {
    const int same_tier = i > 0 && steps[i - 1].tier == steps[i].tier;
    bytes = (same_tier ? bytes : 0) + steps[i].bytes;
    if (!same_tier || steps[i - 1].at_s != steps[i].at_s) (*count)++;
    out[*count - 1] = (tws_memory_change){.at_s = steps[i].at_s, .bytes = (uint64_t)bytes, .tier = steps[i].tier};
  }
  tws_free(steps);
  return TWS_OK;
}

int tws_memory_track_add(tws_timeline *timeline, int rank, const tws_memory_change *changes, size_t count,
                         double origin_s) {
  char name[64];
  for (size_t i = 0; i < count; i++) {
    snprintf(name, sizeof name, "memory, %s", tws_tier_name((tws_tier)changes[i].tier));
    if (tws_timeline_count_rank(timeline, rank, name, "bytes", changes[i].at_s - origin_s, (double)changes[i].bytes) !=
        0)
      return -1;
  }
  return 0;
}
