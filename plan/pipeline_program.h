/* A stage's program: its order of actions with the messages in between, for an engine whose messages are rendezvous (a
 * send ends when its receive is there) and run one after another on one stream.
 *
 * Issuing each send right after its action and each receive right before would deadlock there: in the steady state of
 * 1F1B a stage would offer activations to a neighbour that offers it gradients. Here every stage issues its messages
 * sorted by one global key, the time at which an ideal pipeline produces them, so some message can always proceed. */
#ifndef TWS_PLAN_PIPELINE_PROGRAM_H
#define TWS_PLAN_PIPELINE_PROGRAM_H

#include "base/memory.h"
#include "plan/pipeline_schedule.h"

typedef enum tws_pipeline_event_kind { TWS_EVENT_ACTION, TWS_EVENT_SEND, TWS_EVENT_RECV } tws_pipeline_event_kind;

typedef struct tws_pipeline_event {
  tws_pipeline_action action; /* RECV: this stage's action that uses the message; SEND: the one that made it. A FORWARD
                               * action's messages are activations, the others' are gradients of them. */
  uint8_t kind;
  int peer; /* stage at the other end of a message, else -1 */
} tws_pipeline_event;

typedef struct tws_pipeline_program {
  tws_pipeline_event *events; /* a receive comes before the action that uses it, a send after the one that made it */
  uint32_t count;
} tws_pipeline_program;

/* For a shape that passes tws_pipeline_check(). Neither end of a message is this stage itself: blocks of one stage hand
 * over directly. Time and scratch memory: all actions of all stages. events live in `arena`. */
tws_code tws_pipeline_program_make(const tws_pipeline_shape *shape, int stage, tws_arena *arena,
                                   tws_pipeline_program *program, tws_error *err);

#endif
