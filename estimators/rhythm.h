/* The rhythm of a pipeline: when the events of all stages happen, from what their chunks take, and the most bytes that
 * each stage has alive. The same rules as tws_job_path() and the layout's for slots of messages, event by event instead
 * of operation by operation. Internal to estimators/. */
#ifndef TWS_ESTIMATORS_RHYTHM_H
#define TWS_ESTIMATORS_RHYTHM_H

#include "estimators/exchanges.h"

/* A chunk whose host's stretch is known. */
typedef struct tws_event_point {
  double at;
  uint8_t kind, buffer;
} tws_event_point;
typedef struct tws_chunk_event {
  double seconds;
  int64_t delta, before, after;
  int begins, point_count;
  tws_event_point points[TWS_PIECE_POINTS];
  tws_action_steps steps; /* of tws_chunk_times.exchanges, or apart: with these points, but for the order of slots */
} tws_chunk_event;
typedef struct tws_chunk_times {
  tws_chunk_event event[2][TWS_CONTEXT_EVENTS];
  const tws_chunk_pieces *pieces;
  int exchanges; /* some run beside what computes */
} tws_chunk_times;
/* 0: no memory. apart: of ranks that differ, so that all actions have steps. */
int tws_chunk_times_of(const tws_composed_chunk *chunk, double stretch, int apart, tws_arena *arena,
                       tws_chunk_times *out);

enum { TWS_RHYTHM_MESSAGE = TWS_PIECE_AXES + 1 };
typedef struct tws_rhythm_op { /* a message, or an exchange; times as tws_op_times */
  double ready_s, met_s, end_s;
  uint32_t cause; /* 1 + number of the one that it waited for last; 0: what computes */
  int axis;       /* tws_piece_axis(), TWS_PIECE_AXES of what communicates with nobody, or TWS_RHYTHM_MESSAGE */
} tws_rhythm_op;

typedef struct tws_rhythm_stage {
  const tws_chunk_times *const *chunks; /* of the stage */
  double message_s[TWS_CONTEXT_EVENTS]; /* of its sends, by the longer of both ends; chunks at the ends of a stage's
                                         * list send to other peers at the same price */
  int64_t gradient_bytes;
  /* answers: when the stage's streams are done (apart, as both are read behind writing one, which processors do not
   * forward to a read of both at once), and bytes beyond what is always there; held: gradients where they have begun */
  double compute_s;
  int64_t peak;
  double messages_s;
  int64_t held;
  tws_rhythm_op *ops;              /* in the order in which they begin, where an account is asked for */
  uint32_t op_count, last_message; /* last_message: 1 + its number */
  double behind_s; /* for so long until now it waits for copies of checkpoints: so does what it computes next */
  double exposed_s, bubble_s; /* likewise: what computes waits for messages, and for the stages that these wait for */
  double exchanged_s[TWS_PIECE_AXES]; /* likewise, for what runs beside, and for joins that take longer elsewhere */
  int exchanging;                     /* answer: one of tensor ranks is under way when its passes end */
} tws_rhythm_stage;

typedef struct tws_rhythm_orders tws_rhythm_orders;

/* Lines of ranks, one of each stage: of what is along these axes, which others a line meets. */
enum { TWS_MOST_LINES = 24, TWS_LINE_AXES = 8 };
typedef struct tws_line_groups {
  struct {
    tws_axes axes;
    uint8_t of[TWS_MOST_LINES]; /* per line: the first of those it meets */
  } along[TWS_LINE_AXES];
  int count;
} tws_line_groups;
/* Per line: the first of those it meets along these axes; NULL: it is not known. */
const uint8_t *tws_lines_along(const tws_line_groups *groups, tws_axes axes);

typedef struct tws_rhythm {
  const tws_pipeline_shape *shape;
  const tws_pipeline_program *programs; /* per stage */
  tws_rhythm_stage *stages;             /* [line][stage] */
  int lines;                            /* of ranks that differ, and meet; 0: one */
  const tws_line_groups *groups;        /* of these */
  int serial;
  double (*message)(void *user, int line, int stage, int peer, uint64_t bytes);
  void *user;
  /* After how many micro-batches the rhythm may repeat itself, in ascending order; 0: nobody asks. The first of them
   * after which it does, or 0, and the seconds that so many micro-batches take then. */
  int may_repeat[2];
  tws_rhythm_orders *orders; /* that are known */
  tws_arena *account;        /* where stages' messages are kept; NULL: nobody asks */
  int repeats;
  double repeats_s;
} tws_rhythm;

/* Bytes first, so that what does not fit costs no more: tws_rhythm_bytes() fills peak and held of the first line,
 * tws_rhythm_run() the times. TWS_MEMORY; TWS_INTERNAL when stages, or lines, wait for each other. */
tws_code tws_rhythm_bytes(tws_rhythm *rhythm, tws_error *err);
tws_code tws_rhythm_run(tws_rhythm *rhythm, tws_error *err);
/* Adds to exposed_s and bubble_s why a stage did not compute from then until then, when a message ended: as
 * tws_path_read() attributes it, along the messages before. */
void tws_rhythm_gap(tws_rhythm_stage *stage, double from_s, double to_s);

/* ---- rhythm_order.c ----
 * The order in which stages meet, and what lay in slots before: neither depends on times, so that pipelines whose
 * chunks have points and messages at the same places share it. */
typedef struct tws_rhythm_end { /* of a message, or an action; of every line the same */
  uint16_t stage, chunk;
  uint8_t event, is_later, sends;
  uint32_t state; /* of its first buffer, or that of the message; of all stages */
} tws_rhythm_end;
typedef struct tws_rhythm_move {
  tws_rhythm_end here, there; /* there: of a message */
  uint32_t before;            /* first of what lay in its slots */
  int is_message;             /* else an action */
} tws_rhythm_move;
typedef struct tws_rhythm_order {
  tws_rhythm_move *moves;
  int32_t *before; /* states, or -1: nothing that would be waited for */
  size_t count, capacity, before_count, before_capacity;
} tws_rhythm_order;
/* NULL without memory. */
tws_rhythm_orders *tws_rhythm_orders_create(void);
void tws_rhythm_orders_destroy(tws_rhythm_orders *orders); /* NULL is allowed */
/* Of the first line. Until the next is asked for. */
tws_code tws_rhythm_order_find(tws_rhythm_orders *orders, const tws_rhythm *rhythm, const tws_rhythm_order **out,
                               tws_error *err);

#endif
