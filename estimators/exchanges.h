/* Actions of chunks whose ranks exchange beside what computes, or copy checkpoints: what happens on all their streams,
 * in order. Between two
 * moments at which no exchange is under way, and without messages, nothing but their own times decides how long that
 * takes, so most of it is a number. Of ranks that differ all are steps, as the ones wait for the others. Internal to
 * estimators/. */
#ifndef TWS_ESTIMATORS_EXCHANGES_H
#define TWS_ESTIMATORS_EXCHANGES_H

#include "estimators/chunks.h"

typedef enum tws_action_step_kind {
  TWS_STEP_POINT,    /* of a message: of what computes, or of the next or last exchange on a stream (aside) */
  TWS_STEP_EXCHANGE, /* begins, when the one before on its stream has ended and what is computed has come here */
  TWS_STEP_LATE,     /* likewise, when the context's time number `which` was; TWS_NONE: there is none */
  TWS_STEP_LEAVE,    /* is the context's time number `which` */
  TWS_STEP_WAIT,     /* what computes waits for the exchange before the last `which` ones on its stream; aside: so does
                      * what the stage computes next */
  TWS_STEP_ENDED,    /* the next may not begin before: when the last of tensor ranks' that are no steps ends */
  TWS_STEP_JOIN      /* ranks that differ begin a collective together, on the stream that computes */
} tws_action_step_kind;
typedef struct tws_action_step {
  double at;      /* since the action began, of what computes alone and of what it waits that is no step */
  double seconds; /* of the exchange */
  uint32_t which; /* POINT: its buffer */
  tws_axes meets; /* JOIN, and exchanges that ranks that differ begin together: the axes of their group; else 0 */
  uint8_t kind, point, aside, axis; /* aside: 1 + the stream's number; axis: tws_piece_axis(), or TWS_PIECE_AXES */
  uint8_t stream;                   /* TWS_OWN_EXCHANGES etc. */
} tws_action_step;
typedef struct tws_action_steps {
  tws_action_step *items;
  uint32_t count;
  double waited_s;    /* for exchanges that are not among the steps: */
  double exchanged_s; /* of it, for tensor ranks'; */
  double behind_s;    /* for copies, behind all that the action computes */
} tws_action_steps;
/* Of a chunk whose exchanges are known, at a stretch; 0: no memory. apart: for ranks that differ. */
int tws_action_steps_make(const tws_composed_chunk *chunk, int later, int event, double stretch, int apart,
                          tws_arena *arena, tws_action_steps *out);

#endif
