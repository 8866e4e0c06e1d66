/* Pieces of a step: what consecutive operations of one rank take and hold, so that they can be put together again.
 *
 * Along the stream that computes, times add up; between streams there are points, at which an operation waits for a
 * message, or for the memory that one leaves. Bytes are sums: what a piece leaves alive, and the most that is alive in
 * it beyond what was alive before. All is exact where a plan has no other streams than those that compute and send
 * messages. Internal to estimators/. */
#ifndef TWS_ESTIMATORS_PIECES_H
#define TWS_ESTIMATORS_PIECES_H

#include "estimators/estimators.h"
#include "plan/sample.h"

/* Where seconds come from. */
typedef struct tws_costs {
  double (*work)(void *user, const tws_plan *plan, uint32_t work); /* of a device that is kept busy */
  double (*message)(void *user, const tws_topology *topology, int rank, int peer, uint64_t bytes);
  double (*launches)(void *user, const tws_work *work); /* of host_op_s; NULL: 1 */
  double host_op_s;                                     /* see tws_plan_host_stretch() */
  int in_turns;                                         /* tws_host_stretch() */
  int serial;                                           /* one queue for all streams */
  void *user;
} tws_costs;

/* Whether the host launches it as a kernel of the device. */
static inline int tws_is_launched(const tws_work *work) {
  return work->kind == TWS_OP_COMPUTE && work->place == TWS_PLACE_DEVICE;
}

/* Kernels of the device are stretched where their host is slower, so they are counted apart. */
typedef struct tws_piece_time {
  double kernel, other;
} tws_piece_time;
static inline tws_piece_time tws_sum_of_times(tws_piece_time a, tws_piece_time b) {
  return (tws_piece_time){a.kernel + b.kernel, a.other + b.other};
}
static inline tws_piece_time tws_time_of_work(const tws_work *work, double seconds) {
  return tws_is_launched(work) ? (tws_piece_time){seconds, 0} : (tws_piece_time){0, seconds};
}
/* Where the host makes kernels so many times longer. */
static inline double tws_stretched_seconds(tws_piece_time time, double stretch) {
  return stretch * time.kernel + time.other;
}
static inline int tws_same_times(tws_piece_time a, tws_piece_time b) {
  return a.kernel == b.kernel && a.other == b.other;
}
static inline int64_t tws_larger_bytes(int64_t a, int64_t b) {
  return a > b ? a : b;
}

typedef enum tws_point_kind {
  TWS_POINT_TAKE,       /* the buffer begins: waits until what lay in its place is done */
  TWS_POINT_TAKE_ASIDE, /* it begins on another stream than that which computes: nothing there waits */
  TWS_POINT_TAKE_AHEAD, /* likewise on that of exchanges, which waits (tws_mark) */
  TWS_POINT_WAIT,       /* waits for the last message in the buffer */
  TWS_POINT_WRITTEN,    /* what is sent next is there */
  TWS_POINT_USED,       /* the last kernel that uses the buffer has ended */
  TWS_POINT_GIVE        /* the buffer ends */
} tws_point_kind;
typedef struct tws_point {
  tws_piece_time at;
  uint8_t kind, buffer; /* of messages, in this context */
} tws_point;
enum { TWS_PIECE_POINTS = 12, TWS_MESSAGE_BUFFERS = 4 };

/* Axes that reports have (tws_report_has()), in their order. */
enum { TWS_PIECE_AXES = 6 };
int tws_piece_axis(int reported);

typedef struct tws_piece {
  tws_piece_time time;
  double launches;
  double axis_s[TWS_PIECE_AXES]; /* of its time: what is communicated */
  int64_t delta;                 /* bytes alive behind it, beyond those before */
  int64_t before, after; /* the most alive in it before gradients begin, and from then on; after: least without */
  int begins;            /* gradients begin in it, where they have not before */
  int point_count;
  tws_point points[TWS_PIECE_POINTS];
} tws_piece;
#define TWS_PIECE_LEAST (INT64_MIN / 4)

tws_piece tws_piece_empty(void);
/* `piece` becomes itself and what follows; 0: too many points. */
int tws_piece_append(tws_piece *piece, const tws_piece *next);
/* Seconds by axis, so many times those of another. */
void tws_add_axes(double *axis_s, double times, const double *more_s);
/* Whether two are alike and have no points. */
int tws_same_pieces(const tws_piece *a, const tws_piece *b);
/* The same `times` times; it has no points. */
tws_piece tws_piece_repeat(const tws_piece *piece, int times);

/* The events of a context, in their order. */
typedef enum tws_context_event {
  TWS_CONTEXT_RECV,
  TWS_CONTEXT_FORWARD,
  TWS_CONTEXT_SEND,
  TWS_CONTEXT_RECV_GRADIENT,
  TWS_CONTEXT_BACKWARD,
  TWS_CONTEXT_SEND_GRADIENT,
  TWS_CONTEXT_WEIGHT,
  TWS_CONTEXT_EVENTS
} tws_context_event;
tws_context_event tws_context_event_of(int event, int action);
static inline int tws_context_acts(int event) {
  return event == TWS_CONTEXT_FORWARD || event == TWS_CONTEXT_BACKWARD || event == TWS_CONTEXT_WEIGHT;
}

/* A chunk: both kinds of context (0: the first micro-batch). */
typedef struct tws_chunk_pieces {
  tws_piece event[2][TWS_CONTEXT_EVENTS];
  uint8_t has[TWS_CONTEXT_EVENTS];
  uint64_t message_bytes[TWS_CONTEXT_EVENTS];
  uint8_t message_buffer[TWS_CONTEXT_EVENTS];
  uint64_t slot_bytes[TWS_MESSAGE_BUFFERS];
  int buffers;
} tws_chunk_pieces;

/* A gradient that is complete behind one of a layer's operations: what the layer does in the same pass from there on.
 */
typedef struct tws_completion {
  tws_piece_time behind;
  int behind_by;  /* so many layers before this one is the parameter's own */
  uint32_t which; /* tws_gradient_place */
} tws_completion;
typedef struct tws_completions { /* of a layer */
  tws_completion *items;
  uint32_t count;
} tws_completions;

/* What runs beside the layers: gathers and reductions of ZeRO, and the layers' own: exchanges of tensor ranks and of
 * rings, and copies of activation checkpoints. What is said of exchanges below is said of these copies, too. */
typedef enum tws_beside_stream {
  TWS_BESIDE_REDUCES,
  TWS_BESIDE_GATHERS,
  TWS_BESIDE_EXCHANGES,
  TWS_BESIDE_COPIES, /* to the host: of gradients, and of activation checkpoints, */
  TWS_BESIDE_HOSTS,  /* which adds up what has come */
  TWS_BESIDE_BRINGS, /* copies from the host: of parameters and sums, and of checkpoints */
  TWS_BESIDE_READS,  /* of the disk */
  TWS_BESIDE_STREAMS,
  TWS_BESIDE_COMPUTES = TWS_BESIDE_STREAMS, /* it runs on the stream that computes */
  TWS_BESIDE_JOINS                          /* likewise, as part of what the layers compute */
} tws_beside_stream;
/* Streams of which the layers' own are, by number. */
enum { TWS_OWN_EXCHANGES, TWS_OWN_COPIES, TWS_OWN_BRINGS, TWS_OWN_STREAMS };
typedef struct tws_beside_op {
  tws_piece_time time;
  uint8_t axis, channel;  /* tws_piece_axis(), or TWS_PIECE_AXES of what communicates with nobody; tws_channel */
  uint8_t stream, is_own; /* is_own: the layers' */
  tws_axes meets;         /* of its group, where ranks that differ meet in it; else 0 */
} tws_beside_op;

/* Where a layer's pass meets that: before a visit of a module, before it reads a parameter or writes a gradient, behind
 * a module that adds to it. And where an exchange may begin, before something waits for one, and at a point of the
 * piece, or of an exchange (TWS_MARK_POINT: `which` is the buffer, `point` its kind; `aside`, if it is the exchange's).
 *
 * MEETS: a collective on the stream that computes has ended, after which alone the next exchange may begin, as they
 * share a communicator. JOIN: ranks that differ begin one there together.
 *
 * Copies of checkpoints begin where they are issued, and all of an action's have been waited for when it ends
 * (plan/finish.c). An exchange of one action may wait for what an earlier one of the micro-batch computed alone.
 * Without a pipeline it begins there (EARLY); in a pipeline others come between (LATE): `which` is the number of the
 * time that the earlier action left, or TWS_NONE: it waits for messages alone. */
typedef enum tws_mark_kind {
  TWS_MARK_VISIT,
  TWS_MARK_READS,
  TWS_MARK_WRITES,
  TWS_MARK_WRITTEN,
  TWS_MARK_EXCHANGES,
  TWS_MARK_EARLY,
  TWS_MARK_LATE,
  TWS_MARK_WAITS,
  TWS_MARK_MEETS,
  TWS_MARK_JOIN,
  TWS_MARK_POINT
} tws_mark_kind;
enum {
  TWS_EXCHANGES_BACK = 64, /* no farther back is one that something waits for */
  TWS_TIMES_LEFT = 16      /* by actions of a micro-batch to its later ones */
};
typedef struct tws_mark {
  tws_piece_time at;       /* since the layer's piece began */
  int layer;               /* of the sample: the parameter's own */
  uint32_t which;          /* tws_gradient_place; WAITS: so many on its stream have begun since that one */
  const tws_beside_op *op; /* EXCHANGES, EARLY, LATE, JOIN */
  uint8_t kind;
  uint8_t point;  /* WAITS: so many of these are later actions', begun early */
  uint8_t aside;  /* 1 + its stream's number; WAITS: behind all that the pass computes */
  uint8_t stream; /* EXCHANGES, EARLY, LATE, WAITS: its number */
} tws_mark;
typedef struct tws_marks { /* of a layer, in the order of its operations */
  tws_mark *items;
  uint32_t count;
} tws_marks;

/* The first gradient of a list that reaches behind an element of their buffer; the count: none does. */
uint32_t tws_gradient_at(const tws_gradient_list *list, uint64_t element);

/* Where a layer's pass begins a collective of ranks that differ, or has a point: its piece has taken so long then. */
typedef struct tws_cut {
  tws_piece_time at;
  int layer; /* of the sample, from 0 on */
} tws_cut;
typedef struct tws_cuts {
  tws_cut *items;
  uint32_t count;
} tws_cuts;

/* A sampled body: for every event its pieces by layer. */
typedef struct tws_sample_pieces {
  tws_chunk_pieces whole; /* of the sampled layers */
  int first_layer, layers;
  tws_piece *layer[2][TWS_CONTEXT_EVENTS]; /* [layer - first_layer]; NULL: not known by layer */
  /* Likewise: gradients that are whole in memory, where a forward or backward pass writes them last. */
  tws_completions *completions[2][TWS_CONTEXT_EVENTS];
  tws_marks *marks[2][TWS_CONTEXT_EVENTS]; /* likewise: where gradients are in buckets, with exchanges, and joins */
  tws_cuts cuts[2][TWS_CONTEXT_EVENTS];    /* in the order of operations, where ranks differ */
  int joins;                               /* marks tell where ranks that differ meet */
  int exchanges;   /* of tensor ranks or a ring, or copies of checkpoints, beside what computes: no part of a piece's
                  * time; marks tell of them */
  int among_ranks; /* some of these are of tensor ranks or a ring: */
  int pending;     /* some of those are under way at the end of a micro-batch */
  int far;         /* an action waits for those of an earlier one */
  int in_order;    /* all other streams than those that compute and send are those of exchanges, and of ZeRO's moves */
  int exact;       /* likewise, without these */
  int closed;      /* buffers of a context are its own alone: bytes are exact */
  double input_bytes; /* of one micro-batch */
} tws_sample_pieces;

/* Of a sampled body; of one micro-batch: the later one is as that. `activations`: count bytes of activations alone.
 * apart: ranks differ along these axes. Nothing is freed but with the arena. */
tws_code tws_pieces_of_body(const tws_plan_sample *sample, const tws_sample_request *request, const tws_costs *costs,
                            int activations, tws_axes apart, tws_arena *arena, tws_sample_pieces *out, tws_error *err);

/* Whether a later micro-batch does what the first does, in every way that pieces tell; no message may be in it. */
int tws_pieces_repeat(const tws_sample_pieces *pieces);

/* The end of a stage's step. */
typedef enum tws_tail_sync { TWS_TAIL_ALONE, TWS_TAIL_TIED, TWS_TAIL_STAGES } tws_tail_sync;
/* Streams beside the one that computes: not before so long after the stage's meeting number `after` of its tail has
 * ended, or 0, when the tail began (estimators/tail_order.h). */
enum {
  TWS_TAIL_AFTER_STEP = -1,   /* the step's beginning */
  TWS_TAIL_AFTER_REDUCED = -2 /* when all gradients are reduced, in a sample that lacks reductions */
};
typedef struct tws_tail_path {
  int after, exchanges; /* exchanges: 1 + tws_piece_axis() along which it communicates; 0: it does not */
  tws_piece_time time;
} tws_tail_path;
typedef struct tws_tail_paths {
  tws_tail_path *items;
  int count;
} tws_tail_paths;
#define TWS_MEETS_ALL ((tws_axes)-1)
typedef struct tws_tail_step {
  tws_piece_time time; /* sync: of the collective; else of operations before the next, on the stream that computes */
  double axis_s[TWS_PIECE_AXES];
  double waits_s;      /* of its time: for ranks that differ (estimators/composer_ranks.c) */
  int sync;            /* tws_tail_sync */
  tws_axes meets;      /* such ranks along these axes begin it together; 0: none do */
  tws_tail_paths ends; /* not sync: what it waits for besides */
} tws_tail_step;
/* An operation of a tail that waits for reductions of gradients, where these run beside the last backward pass. */
typedef struct tws_tail_wait {
  uint64_t first, elements;  /* of gradients; elements 0: for all */
  tws_piece_time to_the_end; /* from its begin on */
} tws_tail_wait;
typedef struct tws_tail_gather {
  tws_piece_time behind; /* what the tail still does when it may begin */
  double seconds;
  int axis;       /* tws_piece_axis() */
  tws_axes meets; /* of its group */
} tws_tail_gather;
typedef struct tws_tail_pieces {
  tws_tail_step *steps;
  int step_count;
  const struct tws_tail_pieces *others; /* of the stage's other ranks that count, line by line (tws_rank_kind) */
  int other_count;
  int meetings;                /* its steps with sync */
  int reduced_step;            /* which reductions belong to where a sample lacks them: none that all stages meet in */
  int reduced_after;           /* behind so many meetings, */
  tws_piece_time reduced_time; /* so long after the last of them */
  double moves_s;              /* of a micro-batch's gathers and reductions, where it has any: at least */
  /* All that ZeRO does beside the layers, on the stream that computes, in the first micro-batch, with what is gathered
   * for the whole step, and in a later one: where moves_exact is set. None of this is a sampled tail's
   * (estimators/moves.h). */
  tws_piece_time moves[2];
  double move_launches[2], move_axis_s[2][TWS_PIECE_AXES];
  int moves_exact;
  /* Where reductions wait for the tail in the sample, and gradients are whole: who would wait for them if they ran
   * beside the last backward pass, and what the tail takes from the step's first operation on. NULL: not known. */
  tws_tail_wait *waits;
  int wait_count;
  tws_tail_gather *gathers; /* of what was updated, which then are beside the update */
  int gather_count;
  tws_piece_time step_time;                /* without these */
  int overlaps;                            /* they do run beside it; */
  int between;                             /* or, in one queue, between its layers */
  int in_step;                             /* stages 2 and 3: so do reductions and gathers of all micro-batches */
  int runs;                                /* what is beside the passes is asked for, as all ends are run together */
  const struct tws_beside_moves *beside;   /* these (estimators/beside.h); NULL: only a bound is known */
  const struct tws_overlapped *overlapped; /* how (estimators/overlap.h); NULL: only a bound is known */
  const double *copied;   /* between: per reduction, what goes to the host then in the same queue; NULL: nothing */
  tws_piece_time late;    /* in one queue, of ranks that differ: the host's update of the step before. Not in steps */
  tws_piece_time counted; /* kernels of the device before the update, which count for the host's stretch */
  double launches;
  int exact;
  uint64_t state_bytes[TWS_TIER_COUNT];
  uint64_t program_bytes;  /* of the device, without inputs */
  uint64_t gradient_bytes; /* of the device: of the buffer that all micro-batches add to */
  int64_t peak;            /* of the device: in the tail, beyond state, program and gradients */
  tws_sample_chunk *chunks;
  int chunk_count, layer_count, alike_first, alike_end;
  const uint32_t
      *layer_modules; /* of the network: where each pipeline layer begins; NULL: they do not follow another */
} tws_tail_pieces;
/* apart: as above; steps begin where such ranks meet. */
tws_code tws_pieces_of_tail(const tws_plan_sample *sample, const tws_costs *costs, tws_axes apart, tws_arena *arena,
                            tws_tail_pieces *out, tws_error *err);

#endif
