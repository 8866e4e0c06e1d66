/* Pairs of texts, a source and what is to be said of it: a file whose lines are JSON objects with the members "input"
 * and "target". Both are a text, a token a byte, or a list of tokens. Lines that are empty are passed over. */
#ifndef TWS_REAL_PAIRS_H
#define TWS_REAL_PAIRS_H

#include <stdint.h>

#include "base/status.h"

typedef struct tws_pairs tws_pairs;

/* Whether a file's name says that it has pairs: ".jsonl". */
int tws_pairs_is_file(const char *path);
/* TWS_IO: no such file, unreadable; TWS_INVALID with the line: what is no such object, an empty target, a token that is
 * not below `vocabulary`. Close it with tws_pairs_close(). */
tws_code tws_pairs_open(const char *path, int64_t vocabulary, tws_pairs **out, tws_error *err);
void tws_pairs_close(tws_pairs *pairs); /* NULL is allowed */
uint64_t tws_pairs_count(const tws_pairs *pairs);
uint64_t tws_pairs_tokens(const tws_pairs *pairs); /* of all sources and targets */

typedef struct tws_pair {
  const int32_t *source, *target; /* valid until the pairs are closed */
  int64_t sources, targets;
} tws_pair;
tws_pair tws_pairs_at(const tws_pairs *pairs, uint64_t index);

#endif
