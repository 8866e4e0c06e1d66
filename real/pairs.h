/* Texts and what is to be said of each: a file whose lines are JSON objects with the member "input", a text, a token a
 * byte, or a list of tokens. Lines that are empty are passed over. What else a line has is its form:
 *
 *   PAIRS   "target", which is like the input
 *   CLASSES "label", a number from 0
 *   TAGS    "labels", a number for each token; -1 and -100: that token does not count
 *   SPANS   "span", the first and the last token of an answer, counted from 0
 *
 * and of the last three where the model has segments "types", a number for each token; without it all are 0. In the
 * place of the input a line with a span may have texts, as SQuAD has them (Rajpurkar et al., 2016): "question",
 * "context" and "answers", {"text": [...], "answer_start": [...]}, of which the first is taken; where it starts is a
 * character of the context. The question's bytes come first, the context's are of segment 1 where there is one. Without
 * answers the first token is the span. */
#ifndef TWS_REAL_PAIRS_H
#define TWS_REAL_PAIRS_H

#include <stdint.h>

#include "base/status.h"

typedef struct tws_pairs tws_pairs;

/* Whether a file's name says that it has pairs: ".jsonl". */
int tws_pairs_is_file(const char *path);
typedef enum tws_pairs_kind { TWS_PAIRS_TARGETS, TWS_PAIRS_CLASSES, TWS_PAIRS_TAGS, TWS_PAIRS_SPANS } tws_pairs_kind;
typedef struct tws_pairs_form {
  tws_pairs_kind kind;
  int64_t vocabulary, classes, types; /* what tokens, labels and types are below */
} tws_pairs_form;
/* TWS_IO: no such file, unreadable; TWS_INVALID with the line: what is no such object, an empty target or a text to be
 * classified that is, a number that is not below its limit, an answer that is not where it says. Close it with
 * tws_pairs_close(). */
tws_code tws_pairs_open(const char *path, const tws_pairs_form *form, tws_pairs **out, tws_error *err);
void tws_pairs_close(tws_pairs *pairs); /* NULL is allowed */
uint64_t tws_pairs_count(const tws_pairs *pairs);
uint64_t tws_pairs_tokens(const tws_pairs *pairs); /* of all sources and targets */

typedef struct tws_pair {
  const int32_t *source, *target, *types; /* valid until the pairs are closed */
  int64_t sources, targets;               /* types: as many as sources, or NULL */
} tws_pair;
tws_pair tws_pairs_at(const tws_pairs *pairs, uint64_t index);

#endif
