/* Reductions of stage 1 that run beside the last backward pass: each begins when the one before it on its stream has
 * ended and its gradients are complete, and the end of the step waits for them where it first needs them. They take no
 * memory of their own, so that nothing else decides when they run. Internal to estimators/. */
#ifndef TWS_ESTIMATORS_OVERLAP_H
#define TWS_ESTIMATORS_OVERLAP_H

#include "estimators/chunks.h"

/* Of one stage, with one size of buckets, in the order of their stream. */
typedef struct tws_overlapped {
  const tws_gradient_list *gradients;
  const uint32_t *by_layer, *layer_first; /* gradients by layer; per layer: where they begin there */
  int layers;
  const double *seconds; /* per reduction */
  const uint32_t *first; /* likewise, count + 1: where those of its gradients begin in `of` */
  const uint32_t *of;
  uint32_t count;
  const uint32_t *needed; /* per wait of the tail: so many of the reductions have to have ended */
} tws_overlapped;

/* What the passes of a micro-batch (later: not of the first) still do when each gradient is complete, into `behind`. 0:
 * the chunk does not tell. */
int tws_overlap_behind(const tws_overlapped *overlapped, const tws_composed_chunk *chunk, int later,
                       tws_piece_time *behind);
/* By how many seconds a step is longer than one that does nothing but compute, with the end of it one after another.
 * `behind` NULL: by how many at least. `ended`: room for a number of each reduction. */
double tws_overlap_exposed(const tws_tail_pieces *tail, const tws_piece_time *behind, double stretch, double *ended);

#endif
