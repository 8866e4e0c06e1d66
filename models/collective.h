/* The table of collectives (models/collectives.def) and functions on its rows. */
#ifndef TWS_MODELS_COLLECTIVE_H
#define TWS_MODELS_COLLECTIVE_H

#include <stdint.h>
#include "models/kernel.h"

typedef enum tws_collective_pattern {
  TWS_PATTERN_RING,
  TWS_PATTERN_CHAIN,
  TWS_PATTERN_PAIRS,
  TWS_PATTERN_SIGNAL
} tws_collective_pattern;

typedef enum tws_root { TWS_ROOT_NONE, TWS_ROOT_SENDS, TWS_ROOT_RECEIVES } tws_root;

typedef struct tws_collective_row {
  const char *identifier, *name, *summary;
  const char *pattern_text, *sends, *receives, *steps; /* the texts of the row, for documentation */
  tws_collective_pattern pattern;
  tws_root root;
  int sends_parts, receives_parts; /* 1: the sent, or the received, operand has one part for each of the n members */
  int reduces, uneven, calibrated, to_next;
} tws_collective_row;

const tws_collective_row *tws_collective_of(tws_collective collective);

/* Returns the number of successive steps of a collective among `size` ranks. */
int tws_collective_steps(tws_collective collective, int size);
/* Returns the bytes that member `index` sends in a collective whose larger operand has `bytes` (tws_work.d[0]). */
double tws_collective_sent_bytes(tws_collective collective, int size, int index, int root, double bytes);
/* Numbers of elements that one member sends and receives in one segment, as multiples of the segment's count; 0: the
 * member has no such operand. */
typedef struct tws_collective_parts {
  uint64_t send, receive;
} tws_collective_parts;
tws_collective_parts tws_collective_parts_of(tws_collective collective, int size, int index, int root);
/* Returns 1 if member `from` of a collective that does not reduce sends data to member `to` (which may be itself). */
static inline int tws_collective_moves(const tws_collective_row *row, int size, int from, int to, int root) {
  if (row->to_next) return to == (from + 1) % size;
  return row->root == TWS_ROOT_NONE || (row->root == TWS_ROOT_SENDS ? from : to) == root;
}

/* Returns the bytes that one member sends to another in a collective of the pattern PAIRS whose larger operand has
 * `bytes`. */
static inline double tws_collective_pair_bytes(const tws_collective_row *row, int size, double bytes) {
  return row->sends_parts || row->receives_parts ? bytes / size : bytes;
}

#endif
