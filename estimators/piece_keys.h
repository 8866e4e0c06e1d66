/* What pieces are kept under: everything that they may depend on, and a table of it. Internal to estimators/. */
#ifndef TWS_ESTIMATORS_PIECE_KEYS_H
#define TWS_ESTIMATORS_PIECE_KEYS_H

#include <stddef.h>

#include "plan/plan.h"

/* What a piece does not depend on is set to zero. */
typedef struct tws_piece_key {
  const tws_network *network;
  tws_config config;
  tws_topology topology;
  int spread[TWS_AXIS_COUNT]; /* bodies: members of the axis' group on the node of the first */
  int backend, threads, bounded, split;
  int place; /* of ranks that differ (tws_rank_kind): which one */
} tws_piece_key;

/* What goes to the host stays out of the passes: stage 1's gradients, and others that are whole on the device until the
 * step ends, as no other rank has them and tensor ranks have yet to add some up. */
int tws_offloads_behind(const tws_plan_request *request);
/* Stages 2 and 3 reduce gradients and send them there micro-batch by micro-batch, and nothing else in the passes. */
int tws_offloads_in_step(const tws_plan_request *request);

/* Of a body: `spread` is of the topology's axes. */
void tws_body_key(const tws_plan_request *request, const int *spread, int split, tws_piece_key *key);
void tws_tail_key(const tws_plan_request *request, tws_piece_key *key);
/* Of a tail's key what the end of a stage's step depends on beside its layers, what stages 2 and 3 gather in a
 * micro-batch, and what else they do there: reductions follow the order of gradients, whatever is made again. */
void tws_end_key(const tws_piece_key *tail, tws_piece_key *key);
void tws_gathers_key(const tws_piece_key *tail, tws_piece_key *key);
void tws_reductions_key(const tws_piece_key *tail, tws_piece_key *key);

/* Keys of one table are like its first but for a few words, which are all that their entries have: so an entry is
 * found with little memory to go through. */
typedef struct tws_piece_word {
  uint64_t at, value;
} tws_piece_word;
typedef struct tws_piece_entry {
  uint64_t hash;
  void *value; /* somebody else's */
  size_t count;
  tws_piece_word words[]; /* in their order */
} tws_piece_entry;

typedef struct tws_piece_table { /* zeros at first */
  tws_piece_key *first;
  tws_piece_entry **slots;
  size_t count, size;
} tws_piece_table;
/* The entry of a key, a new one where there was none; NULL without memory. */
tws_piece_entry *tws_piece_look_up(tws_piece_table *table, const tws_piece_key *key, int *is_new);
void tws_piece_table_free(tws_piece_table *table);

#endif
