/* Buffers that buckets of gradients take turns in. A bucket that begins takes the place that came free first, but for
 * that of the bucket which began before it, so that one is emptied while another is filled; or a new one. Micro-batches
 * are alike, so the first of a step says which bucket comes after which. Internal to plan/ and estimators/. */
#ifndef TWS_PLAN_BUCKET_TURNS_H
#define TWS_PLAN_BUCKET_TURNS_H

#include "base/memory.h"
#include "plan/plan.h"

typedef struct tws_bucket_turns {
  uint32_t *place, *next; /* per bucket: its place; the bucket that has it then, or TWS_NONE */
  uint32_t *first, *last; /* per place: the first bucket that has it, and the one that had it last */
  uint32_t *freed;        /* likewise: 1 + how many buckets ended before that one; 0: it has not ended */
  uint32_t places, ended;
  uint32_t begun_last; /* bucket */
} tws_bucket_turns;

/* Of so many buckets, into `arena`; 0: no memory. */
int tws_bucket_turns_make(uint32_t buckets, tws_arena *arena, tws_bucket_turns *out);
void tws_bucket_turns_begin(tws_bucket_turns *t, uint32_t bucket);
void tws_bucket_turns_end(tws_bucket_turns *t, uint32_t bucket);

#endif
