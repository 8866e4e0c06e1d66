/* Reading pieces of a step off a sample. Internal to estimators/. */
#ifndef TWS_ESTIMATORS_PIECE_READER_H
#define TWS_ESTIMATORS_PIECE_READER_H

#include "estimators/pieces.h"

typedef struct tws_message_buffer {
  uint32_t buffer;
  /* The last operation that uses it, or TWS_NONE: of those that compute, and by 1 + number of the layers' streams. */
  uint32_t last_kernel[1 + TWS_OWN_STREAMS];
  int waits[1 + TWS_OWN_STREAMS]; /* likewise, 1: for what is received; 2: before it is written again */
  uint32_t written;               /* the last operation that wrote it */
} tws_message_buffer;

typedef struct tws_spot { /* a point before or behind an operation */
  uint32_t op;
  uint8_t kind, buffer, behind;
} tws_spot;

typedef struct tws_piece_exchange { /* of tensor ranks or a ring, beside what computes */
  uint32_t op, behind; /* the operation that has to have been computed before it or one before, or TWS_NONE */
  int part;            /* of the sample */
  int early;           /* that is in an earlier part; */
  uint32_t left;       /* or its own is: number of that time; else TWS_NONE */
  tws_beside_op beside;
} tws_piece_exchange;

typedef struct tws_piece_reader {
  const tws_plan_sample *sample;
  const tws_plan *plan;
  const tws_costs *costs;
  int activations;
  int layers_alone;     /* what ZeRO does beside them is left out */
  double *seconds;      /* per work, less than 0: not asked yet */
  int64_t *begin, *end; /* per operation: bytes that begin with it, that end with it */
  uint8_t *begins;      /* per operation: it uses the gradients of all micro-batches */
  uint8_t *sent;        /* per operation: it is the last that writes what is sent then */
  tws_message_buffer message[TWS_MESSAGE_BUFFERS];
  int messages;
  tws_piece_exchange *exchanges; /* in their order; NULL: nothing of the layers runs beside */
  uint32_t *exchange_at;         /* per operation: 1 + the number of an exchange or copy on its stream, or 0 */
  uint32_t exchange_count;
  uint32_t begun[TWS_OWN_STREAMS], awaited[TWS_OWN_STREAMS]; /* so many of those that marks tell of */
  tws_spot *spots; /* where exchanges run beside, in the order of operations */
  size_t spot_count, spot_capacity, next_spot;
  tws_axes apart; /* see tws_pieces_of_body() */
  int joins;      /* marks tell where these meet */
  tws_cuts *cuts; /* of the part at hand; NULL: they are not asked for */
  int cut_layer;
  int far, unknown; /* see tws_sample_pieces; they run in other ways than marks say */
  int follows;      /* an action first meets others of the exchanges' communicator, be they earlier actions' */
  int leaves;       /* an action leaves some under way */
  tws_arena *arena, *scratch; /* of what is kept; of the sample's plan */
} tws_piece_reader;

double tws_piece_seconds_of(tws_piece_reader *r, uint32_t work);
/* The number of the layers' stream beside what computes that an operation is on, or -1. */
int tws_piece_beside(const tws_piece_reader *r, const tws_op *o);
/* Whether an operation is left out, as it is none of the layers' own, but of what ZeRO moves beside them. */
int tws_piece_leaves_out(const tws_piece_reader *r, const tws_op *o);
/* Unless it runs beside; axis_s: NULL where nobody asks. */
void tws_piece_add_time(tws_piece_reader *r, const tws_op *o, tws_piece_time *time, double *launches, double *axis_s);
/* The layer that an operation counts to: its module's, or that of the one before. */
int tws_piece_layer_of(const tws_piece_reader *r, const tws_op *o, int before);
/* The axes of its group, if ranks that differ meet in it; else 0. */
tws_axes tws_piece_meets(const tws_piece_reader *r, const tws_op *o);
/* ---- piece_marks.c ---- */
tws_code tws_piece_find_exchanges(tws_piece_reader *r, tws_error *err);
/* Of a pass that is cut by layer. */
tws_code tws_piece_read_marks(tws_piece_reader *r, const tws_sample_part *part, tws_sample_pieces *out, tws_error *err);

#endif
