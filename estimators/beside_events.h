/* What overlapped stages 2 and 3 do beside the layers, as events of a micro-batch (estimators/beside.h). An outline
 * says in which order a body's layers come to what is moved, whatever that is; bodies that differ in times alone share
 * it, as those of most sizes of micro-batches do. The moves of one size of buckets and of prefetching make events of
 * it, and a trace says when they are. Internal to estimators/. */
#ifndef TWS_ESTIMATORS_BESIDE_EVENTS_H
#define TWS_ESTIMATORS_BESIDE_EVENTS_H

#include "estimators/beside.h"

/* A pass begins; a module is visited; a parameter is read, for the first time in a visit; a gradient is first written,
 * or complete; an exchange may begin; something waits for one; ranks that differ meet in a collective. */
typedef enum tws_trace_kind {
  TWS_TRACE_PASS,
  TWS_TRACE_VISIT,
  TWS_TRACE_READS,
  TWS_TRACE_BEGINS,
  TWS_TRACE_COMPLETE,
  TWS_TRACE_EXCHANGES,
  TWS_TRACE_WAITS,
  TWS_TRACE_JOINS
} tws_trace_kind;
typedef struct tws_outline_entry {
  int layer; /* of the module; of the parameter (tws_gradient_place) */
  uint32_t which;
  uint32_t number;       /* of a gradient: so many are complete before it; WAITS: see tws_mark */
  uint32_t passed, mark; /* layers of the micro-batch before its own; its mark there, TWS_NONE: where the pass begins */
  uint8_t kind, backward;
  uint8_t stream; /* EXCHANGES, WAITS: see tws_mark */
} tws_outline_entry;
typedef struct tws_beside_outline { /* of the first micro-batch, and of a later one */
  uint32_t *made_of;                /* all that it depends on */
  size_t made_count, made_capacity;
  tws_outline_entry *items[2];
  size_t count[2], capacity[2];
} tws_beside_outline;
typedef struct tws_outline_asked {
  int passes;  /* else where they begin is left out */
  int gathers; /* else visits and reads are */
  int joins;   /* else where ranks that differ meet is */
} tws_outline_asked;
/* What it would be made of, into one that is zeros or was made before; 0: no memory. */
int tws_beside_outline_begin(const tws_composed_chunk *chunk, tws_outline_asked asked, tws_beside_outline *to);
/* The rest of it. 0: it is known, 1: the chunk does not tell, 2: no memory. */
int tws_beside_outline_make(const tws_composed_chunk *chunk, tws_outline_asked asked, tws_beside_outline *to);
void tws_beside_outline_free(tws_beside_outline *outline);

typedef struct tws_trace_moment { /* of an outline's entry */
  tws_piece_time at;              /* since the micro-batch began, of the layers alone */
  const tws_beside_op *op;        /* EXCHANGES, JOINS */
} tws_trace_moment;
typedef struct tws_beside_trace {
  tws_trace_moment *items[2];
  size_t capacity[2];
  tws_piece_time whole[2];
} tws_beside_trace;
/* Of a chunk with this outline, into one that is zeros or was made before; 0: no memory. */
int tws_beside_trace_make(const tws_composed_chunk *chunk, const tws_beside_outline *outline, tws_beside_trace *to);
void tws_beside_trace_free(tws_beside_trace *trace);

typedef struct tws_beside_event {
  uint32_t entry;                  /* of the outline */
  uint32_t number : 31, waits : 1; /* of an operation, in the order of events: it begins, or is waited for */
} tws_beside_event;
typedef struct tws_beside_events { /* of each kind of micro-batch */
  int kinds, in_line;              /* see tws_beside_moves */
  tws_beside_event *items[TWS_BESIDE_KINDS];
  size_t count[TWS_BESIDE_KINDS], capacity[TWS_BESIDE_KINDS];
  const tws_beside_op **op[TWS_BESIDE_KINDS]; /* by number; NULL: the exchange of its event */
  tws_line_takes *takes[TWS_BESIDE_KINDS];    /* likewise */
  size_t takes_capacity[TWS_BESIDE_KINDS];
  uint32_t ops[TWS_BESIDE_KINDS];
  size_t op_capacity[TWS_BESIDE_KINDS];
} tws_beside_events;
/* Of which an outline has to say where: joins are asked for by others. */
tws_outline_asked tws_beside_asks(const tws_beside_moves *moves);
/* As tws_beside_outline_make(). */
int tws_beside_events_make(const tws_beside_moves *moves, const tws_beside_outline *outline, tws_beside_events *to);
void tws_beside_events_free(tws_beside_events *events);

#endif
