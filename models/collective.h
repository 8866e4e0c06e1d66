/* The table of collectives (models/collectives.def) as a program sees it. */
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
  const char *pattern_text, *sends, *receives, *steps; /* as they are written */
  tws_collective_pattern pattern;
  tws_root root;
  int sends_parts, receives_parts; /* n of them, for or from each member */
  int reduces, uneven, calibrated, to_next;
} tws_collective_row;

const tws_collective_row *tws_collective_of(tws_collective collective);

/* Returns the number of successive steps among `size` ranks. */
int tws_collective_steps(tws_collective collective, int size);
/* Elements that member `index` sends and receives of a segment, as multiples of its count; 0: it has no
 * such operand. */
typedef struct tws_collective_parts {
  uint64_t send, receive;
} tws_collective_parts;
tws_collective_parts tws_collective_parts_of(tws_collective collective, int size, int index, int root);
/* Returns 1 if a collective of `size` ranks that does not reduce sends data from one member to another (or itself). */
static inline int tws_collective_moves(const tws_collective_row *row, int size, int from, int to, int root) {
  if (row->to_next) return to == (from + 1) % size;
  return row->root == TWS_ROOT_NONE || (row->root == TWS_ROOT_SENDS ? from : to) == root;
}

/* Bytes that go between two members, where something does, of a collective of pairs whose larger side has `bytes`. */
static inline double tws_collective_pair_bytes(const tws_collective_row *row, int size, double bytes) {
  return row->sends_parts || row->receives_parts ? bytes / size : bytes;
}

#endif
