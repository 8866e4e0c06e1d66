/* Disentangled attention (He et al. 2021, "DeBERTa", section 3; logarithmic buckets as in the authors' second version):
 * the sizes of its work, and the row of the table of relative positions for each distance. Hosts and devices compile
 * this file. */
#ifndef TWS_MODELS_DISENTANGLED_H
#define TWS_MODELS_DISENTANGLED_H

#include <math.h>
#include "models/attention.h"

typedef struct tws_disentangled {
  int64_t batch, seq, heads, positions, head; /* head: elements of one head */
  int64_t parts, max_distance;
  int64_t query_part, key_part; /* index of the part in a row of positions; -1: the score does not use it */
  float scale;
} tws_disentangled;

static inline tws_disentangled tws_disentangled_of(const tws_work *work) {
  const int64_t *d = work->d;
  const int kinds = work->f[4] > 0 ? (int)work->f[4] : 3;
  tws_disentangled s = {d[0], d[1], d[2], d[3], d[4], 0, 0, 0, 0, 0};
  s.parts = work->f[3] > 0 ? (int64_t)work->f[3] : 3;
  s.max_distance = (int64_t)work->f[2];
  s.query_part = kinds & 2 ? 0 : -1;
  s.key_part = kinds & 1 ? (s.parts > 1 ? 1 : 0) : -1;
  s.scale = work->f[0] != 0 ? (float)work->f[0] : 1.0F / sqrtf((float)d[4]);
  return s;
}

/* Returns the form of plain bidirectional attention with the sizes of this work, as dropout needs it. arguments: those
 * of dropout and its random bits. */
static inline tws_attention_form tws_disentangled_form(const tws_work *work, const double *arguments) {
  tws_work attention = *work;
  attention.d[5] = attention.d[6] = attention.d[7] = 0;
  attention.f[2] = attention.f[3] = 0;
  attention.flags |= TWS_BIDIRECTIONAL;
  attention.flags &= ~(uint32_t)TWS_RELATIVE;
  return tws_attention_form_of(&attention, arguments);
}

/* Returns the row of the table of positions for a query that is `distance` after its key. Each sign of the distance has
 * `span` rows. With max_distance, distances beyond span / 2 share rows in ranges that grow logarithmically: distance
 * max_distance - 1 has the last row but one, and larger distances have the outermost row. */
TWS_HOST_AND_DEVICE static inline int64_t tws_disentangled_row(int64_t positions, int64_t max_distance,
                                                               int64_t distance) {
  const int64_t span = positions / 2, single = span / 2;
  int64_t away = distance < 0 ? -distance : distance;
  if (max_distance > 0 && away > single) {
    const double share = log((double)away / (double)single) / log((double)(max_distance - 1) / (double)single);
    /* -1e-9: rounding errors do not raise integral results */
    away = single + (int64_t)ceil(share * (double)(single - 1) - 1e-9);
  }
  const int64_t row = distance < 0 ? span - away : span + away;
  return row < 0 ? 0 : row < positions ? row : positions - 1;
}

/* Computes the first row of the table of positions that occurs for distances of one sequence, and the number of such
 * rows. */
TWS_HOST_AND_DEVICE static inline int64_t tws_disentangled_reach(const tws_disentangled *s, int64_t *first) {
  *first = tws_disentangled_row(s->positions, s->max_distance, 1 - s->seq);
  return tws_disentangled_row(s->positions, s->max_distance, s->seq - 1) - *first + 1;
}

#endif
