/* Reductions of stages 0 and 1 that run beside the last backward pass: each begins when the one before it on its stream
 * has ended and its gradients are complete, and the end of the step waits for them where it first needs them. They take
 * no memory of their own, so that nothing else decides when they run. Internal to estimators/. */
#ifndef TWS_ESTIMATORS_OVERLAP_H
#define TWS_ESTIMATORS_OVERLAP_H

#include "estimators/beside.h"

/* Of one stage, with one size of buckets, in the order of their stream. */
typedef struct tws_overlapped {
  int of_all; /* stage 0: each takes all that the passes compute, which `of` then counts as one */
  const tws_gradient_list *gradients;
  const uint32_t *by_layer, *layer_first; /* gradients by layer; per layer: where they begin there */
  int layers;
  const double *seconds; /* per reduction */
  const uint8_t *axis;   /* likewise: tws_piece_axis() */
  const tws_axes *meets; /* likewise: of its group; 0: alone */
  const uint32_t *first; /* likewise, count + 1: where those of its gradients begin in `of` */
  const uint32_t *of;
  uint32_t count;
  const uint32_t *needed; /* per wait of the tail: so many of the reductions have to have ended */
} tws_overlapped;

typedef struct tws_overlap_seen {
  const tws_overlapped *of;
  int later;
  double stretch, seconds;
} tws_overlap_seen;
enum { TWS_OVERLAPS_SEEN = 16 };

/* What the passes of a micro-batch (1: not of the first) still do when each gradient is complete. */
typedef struct tws_body_overlap {
  const tws_gradient_list *of;
  int known; /* the body's pieces tell; else nothing below is set */
  tws_piece_time *behind[2];
  tws_overlap_seen seen[TWS_OVERLAPS_SEEN]; /* what was asked for last */
  int next_seen;
  struct tws_body_overlap *next;
} tws_body_overlap;
/* Of a body, whose chunk is the whole network; kept with it. */
tws_code tws_overlap_find(const tws_overlapped *overlapped, const tws_composed_chunk *chunk, tws_body *body,
                          tws_arena *arena, tws_body_overlap **out, tws_error *err);
/* What a known body's pass still computes when all that one reduction takes is complete. */
double tws_overlap_behind(const tws_overlapped *overlapped, const tws_piece_time *behind, uint32_t reduction,
                          double stretch);
/* For how long a micro-batch still waits when so many seconds are left to compute: not where it came to just then. */
double tws_beside_still_waits(const tws_beside_waits *waits, double behind_s);
/* For how many seconds the end of a step waits for reductions (later: of other micro-batches than the first); known
 * bodies. `ended`: room for a number of each reduction; waits: of such a micro-batch for exchanges, or NULL. */
double tws_overlap_waited(const tws_tail_pieces *tail, tws_body_overlap *body, const tws_beside_waits *waits, int later,
                          double stretch, double *ended);
/* By how many seconds a tail is longer than one that gathers parameters behind all else: no more than 0. */
double tws_overlap_gathered(const tws_tail_pieces *tail, double stretch);
/* By how much more or less is exposed then: added to seconds by axis (TWS_PIECE_AXES). */
void tws_overlap_expose(const tws_tail_pieces *tail, double stretch, double *axis_s);
/* Likewise, what the end of a step waits for reductions; `ended` as above. */
void tws_overlap_expose_waits(const tws_tail_pieces *tail, const tws_body_overlap *body, const tws_beside_waits *waits,
                              int later, double stretch, double *ended, double *axis_s);

#endif
