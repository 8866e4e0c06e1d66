/* What overlapped stages 2 and 3 do beside the layers, as events of a micro-batch (estimators/beside.h). A trace says
 * where a body's layers come to what is moved, whatever that is; the moves of one size of buckets and of prefetching
 * make events of it. Internal to estimators/. */
#ifndef TWS_ESTIMATORS_BESIDE_EVENTS_H
#define TWS_ESTIMATORS_BESIDE_EVENTS_H

#include "estimators/beside.h"

/* A pass begins; a module is visited; a parameter is read, for the first time in a visit; a gradient is first written,
 * or complete; a tensor-parallel exchange may begin; something waits for one. */
typedef enum tws_trace_kind {
  TWS_TRACE_PASS,
  TWS_TRACE_VISIT,
  TWS_TRACE_READS,
  TWS_TRACE_BEGINS,
  TWS_TRACE_COMPLETE,
  TWS_TRACE_EXCHANGES,
  TWS_TRACE_WAITS
} tws_trace_kind;
typedef struct tws_trace_entry {
  tws_piece_time at; /* since the micro-batch began, of the layers alone */
  int layer;         /* of the module; of the parameter (tws_gradient_place) */
  uint32_t which;
  uint32_t number;         /* of a gradient: so many are complete before it; WAITS: see tws_mark */
  const tws_beside_op *op; /* EXCHANGES */
  uint8_t kind, backward;
} tws_trace_entry;
typedef struct tws_beside_trace { /* of the first micro-batch, and of a later one */
  int gathers;                    /* else passes, visits and reads are left out */
  tws_trace_entry *items[2];
  size_t count[2], capacity[2];
  tws_piece_time whole[2];
} tws_beside_trace;
/* Into one that is zeros or was made before. 0: it is known, 1: the chunk does not tell, 2: no memory. */
int tws_beside_trace_make(const tws_composed_chunk *chunk, int gathers, tws_beside_trace *to);
void tws_beside_trace_free(tws_beside_trace *trace);

typedef struct tws_beside_event { /* `waits`: for an operation that has begun; else it begins */
  tws_piece_time at;
  const tws_beside_op *op;
  uint32_t number; /* of the operation, in the order of events */
  uint8_t waits;
} tws_beside_event;
typedef struct tws_beside_events { /* of each kind of micro-batch */
  int kinds, in_line;              /* see tws_beside_moves */
  tws_beside_event *items[TWS_BESIDE_KINDS];
  size_t count[TWS_BESIDE_KINDS], capacity[TWS_BESIDE_KINDS];
  uint32_t ops[TWS_BESIDE_KINDS];
  tws_piece_time whole[TWS_BESIDE_KINDS]; /* of the layers alone */
} tws_beside_events;
/* Whether anything is gathered, so that a trace has to say where. */
int tws_beside_gathers_any(const tws_beside_moves *moves);
/* As tws_beside_trace_make(). */
int tws_beside_events_make(const tws_beside_moves *moves, const tws_beside_trace *trace, tws_beside_events *to);
void tws_beside_events_free(tws_beside_events *events);

#endif
