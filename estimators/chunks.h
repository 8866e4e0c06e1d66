/* Chunks of layers from samples of few: a first layer, so many between, a last, with what stands before and behind the
 * alike layers of a network. Internal to estimators/. */
#ifndef TWS_ESTIMATORS_CHUNKS_H
#define TWS_ESTIMATORS_CHUNKS_H

#include "estimators/pieces.h"

typedef struct tws_layer_range {
  int first, end; /* pipeline layers */
  int goes_on;    /* see tws_sample_request */
  int in_least;   /* of the network with fewest (tws_fewer_layers) */
} tws_layer_range;

/* Whether later micro-batches do what the first does. What they do otherwise is up to their number alone, so one size
 * of micro-batches tells of others. */
typedef enum tws_repeats { TWS_REPEATS_UNKNOWN, TWS_REPEATS, TWS_REPEATS_NOT } tws_repeats;

/* What has been sampled of layers of one kind; all zero at first. */
typedef struct tws_body {
  tws_repeats *repeats; /* of bodies that differ in the size of micro-batches alone; NULL: nobody asks */
  struct tws_body_sample *samples;
  struct tws_body_overlap *overlaps; /* estimators/overlap.h */
  struct tws_body_beside *besides;   /* estimators/beside.h */
} tws_body;

/* A network without layers [first, end), which are alike as those around them are. */
typedef struct tws_fewer_layers {
  const tws_network *network; /* NULL: none is left out */
  int first, end;
  const tws_network *least; /* with as few of them as a sample of the whole has; NULL: it has not so many */
} tws_fewer_layers;
/* From the ends of a step that its layers have; the networks live in `arena`. */
tws_fewer_layers tws_fewer_layers_of(const tws_network *network, const tws_tail_pieces *layers, tws_arena *arena);

typedef struct tws_chunk_source {
  const tws_plan_request *request;
  const tws_costs *costs;
  tws_arena *arena; /* keeps samples */
  tws_body *body;
  tws_sample_memory *memory;
  const tws_fewer_layers *fewer; /* which say the same */
  const tws_tail_pieces *layers; /* which are alike */
  tws_axes apart;                /* along which ranks differ */
  int zero_stage;                /* lowered as at that; 0: at its own */
  int split, bounded;            /* bounded: what layers compute and exchange, and bytes of activations, alone */
  int64_t *lowered;              /* counts samples */
} tws_chunk_source;

typedef struct tws_composed_chunk {
  tws_layer_range of; /* given */
  int exact, closed, in_order;
  int exchanges;    /* of tensor ranks, which run beside what computes, and are known */
  int pending, far; /* see tws_sample_pieces */
  double input_bytes;
  tws_chunk_pieces pieces;
  /* What it is made of: layers of `head` before `head_end`, `between` times that one, and layers of `tail` (NULL: there
   * are none) from `tail_first` on. */
  const tws_sample_pieces *head, *tail;
  int head_end, between, tail_first;
} tws_composed_chunk;

/* From few layers, where those between are equal to the last digit; else the whole chunk is sampled. */
tws_code tws_chunk_compose(const tws_chunk_source *from, tws_composed_chunk *chunk, tws_error *err);
int tws_chunk_layers(const tws_composed_chunk *chunk);
/* A chunk's layer number `at` in the sample that tells of it. */
const tws_sample_pieces *tws_composed_layer(const tws_composed_chunk *chunk, int at, int *layer);

#endif
