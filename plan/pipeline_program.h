/* A stage's program: its sequence of actions and messages, for an engine whose messages are rendezvous (a send ends
 * only after its receive has been posted) and run one after another on one stream.
 *
 * A send right after its action and a receive right before its action would deadlock: in the steady state of 1F1B a
 * stage would send activations to the next stage while the next stage sends gradients back. Here every stage issues its
 * messages in the order of one global key, which is the time at which an ideal pipeline produces each message, so that
 * at least one message can always proceed. */
#ifndef TWS_PLAN_PIPELINE_PROGRAM_H
#define TWS_PLAN_PIPELINE_PROGRAM_H

#include "base/memory.h"
#include "plan/pipeline_schedule.h"

typedef enum tws_pipeline_event_kind { TWS_EVENT_ACTION, TWS_EVENT_SEND, TWS_EVENT_RECV } tws_pipeline_event_kind;

typedef struct tws_pipeline_event {
  /* RECV: the action of this stage that reads the message; SEND: the action that produced it. Messages of FORWARD
   * actions are activations; messages of the other actions are gradients. */
  tws_pipeline_action action;
  uint8_t kind;
  int peer; /* SEND, RECV: the stage at the other end of the message; otherwise -1 */
} tws_pipeline_event;

typedef struct tws_pipeline_program {
  /* the stage's events in the order in which it issues them: a receive precedes the action that reads it, and a send
   * follows the action that produced it */
  tws_pipeline_event *events;
  uint32_t count;
} tws_pipeline_program;

/* Builds the program of a stage for a shape that passes tws_pipeline_check(). No stage sends messages to itself: blocks
 * on one stage pass values directly. Time and scratch memory are proportional to the number of all actions of all
 * stages. `events` is allocated in `arena`. */
tws_code tws_pipeline_program_make(const tws_pipeline_shape *shape, int stage, tws_arena *arena,
                                   tws_pipeline_program *program, tws_error *err);

#endif
