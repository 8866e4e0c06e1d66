/* Stages 2 and 3 with overlap_comm: gathers and reductions run beside the layers of every micro-batch, and so may the
 * exchanges of tensor ranks; or without, where these do, and what ZeRO moves is between the layers. Nothing waits
 * for memory (tws_plan.in_step), so who waits for whom is known. A gather begins when the layers come to the visit that
 * it is issued at, a reduction when its bucket is complete, both behind what is before them on their stream and
 * channel. The layers wait for what they read, and before they fill a third bucket for the first. A micro-batch begins
 * when all of the one before is reduced. So each kind is gone through once, event by event. Internal to estimators/. */
#ifndef TWS_ESTIMATORS_BESIDE_H
#define TWS_ESTIMATORS_BESIDE_H

#include "estimators/chunks.h"
#include "estimators/composer.h"

/* Operations of a plan from `first` on, of which most are like others. */
typedef struct tws_beside_ops {
  const tws_beside_op *kinds;
  uint32_t *kind_of, first;
} tws_beside_ops;
static inline const tws_beside_op *tws_beside_op_at(const tws_beside_ops *ops, uint32_t op) {
  return &ops->kinds[ops->kind_of[op - ops->first]];
}
typedef struct tws_beside_reductions {
  tws_moved_gradients gradients;
  tws_beside_ops ops;
} tws_beside_reductions;
typedef struct tws_beside_gathers {
  tws_moved_params params;
  tws_beside_ops ops;
} tws_beside_gathers;
/* Micro-batches that differ: the first and later ones, and of each kind that which is the last of its step. */
enum { TWS_BESIDE_FIRST, TWS_BESIDE_LATER, TWS_BESIDE_ONLY, TWS_BESIDE_LAST, TWS_BESIDE_KINDS };
typedef struct tws_beside_moves {
  int kinds;                            /* the last two only where groups add up then; else 2 */
  int in_line;                          /* all of this is on the stream that computes: exchanges alone run beside */
  const tws_beside_gathers *begin;      /* before the first */
  const tws_beside_gathers *gathers[2]; /* of the first, of a later one */
  const tws_beside_reductions *reductions[TWS_BESIDE_KINDS];
} tws_beside_moves;

/* Of a body whose chunk is the whole network, and kept with it; its trace and events are not. */
typedef struct tws_body_beside {
  const tws_beside_moves *of;
  int known;      /* the body's pieces tell; else nothing below is set */
  int timed;      /* of 2 kinds. 1: first_s is known, 2: later_s, if nothing was left over before or behind */
  double stretch; /* that these are of */
  double first_s, later_s;
  struct tws_body_beside *next;
} tws_body_beside;

/* Where ZeRO moves nothing, and exchanges of tensor ranks run beside the layers. */
const tws_beside_moves *tws_beside_nothing(void);

/* Traces and events (estimators/beside_events.h) of those that were asked for last. */
typedef struct tws_beside_memory tws_beside_memory;
tws_beside_memory *tws_beside_memory_create(void);         /* NULL: no memory */
void tws_beside_memory_destroy(tws_beside_memory *memory); /* NULL is allowed */

typedef struct tws_beside_source {
  tws_beside_memory *memory;
  const tws_beside_moves *moves;
  const tws_composed_chunk *chunk;
  tws_body *body;
  tws_arena *arena;
  int joins; /* of one of several lines, which says where it meets others */
} tws_beside_source;
tws_code tws_beside_find(const tws_beside_source *from, tws_body_beside **out, tws_error *err);

/* Seconds of so many micro-batches; less than 0: no memory. account: what is exposed by axis goes there, or NULL;
 * *behind_s: for how long something then still goes on that nobody waits for. */
double tws_beside_seconds(const tws_beside_source *from, tws_body_beside *beside, int64_t micro_batches, double stretch,
                          tws_composed_account *account, double *behind_s);

/* So many before it are those, on two other streams, that wrote what an operation takes, or emptied the place that it
 * comes to; 0: what computes did. */
typedef struct tws_line_takes {
  uint32_t one, other;
} tws_line_takes;

/* What a micro-batch of one of several lines of ranks comes to, behind so many seconds of what its layers compute: it
 * begins an operation, or waits for one (NULL) that it has begun. */
typedef struct tws_line_event {
  double computed_s;
  const tws_beside_op *op;
  uint32_t number; /* of the operation, in the order in which they begin */
  tws_line_takes takes;
} tws_line_event;
typedef struct tws_line_events { /* of a kind of micro-batch */
  tws_line_event *items;
  size_t count;
  uint32_t ops;
  double computed_s; /* in all of it */
} tws_line_events;
/* Into `arena`; 0: there is no memory, or it is not known. */
int tws_beside_list_events(const tws_beside_source *from, int kind, double stretch, tws_arena *arena,
                           tws_line_events *out);

/* Where a micro-batch waits: behind so many seconds of what is computed, and for how long until then. */
typedef struct tws_beside_wait {
  double computed_s, waited_s;
} tws_beside_wait;
typedef struct tws_beside_waits {
  const tws_beside_wait *items;
  size_t count;
  double computed_s, waited_s; /* of all of it */
} tws_beside_waits;
/* Of one that finds nothing under way (later: not of the first), until the next is asked for; 0: no memory. */
int tws_beside_waits_of(const tws_beside_source *from, int later, double stretch, tws_beside_waits *out);

#endif
