/* Labelled texts: a file whose lines are JSON objects with the member "input", which is a text with one token per byte,
 * or a list of tokens. Empty lines are skipped. The other members depend on the form:
 *
 *   PAIRS   "target", which is like the input
 *   CLASSES "label", a number from 0
 *   TAGS    "labels", a number for each token; -1 and -100: that token does not count
 *   SPANS   "span", the first and the last token of an answer, counted from 0
 *
 * The last three may also have "types", a segment number for each token, if the model has segments; without it all are
 * 0. Instead of the input a line with a span may have texts in SQuAD's format (Rajpurkar et al., 2016): "question",
 * "context" and "answers", {"text": [...], "answer_start": [...]}, of which the first is used; its start is a character
 * of the context. The question's bytes come first, and the context's have segment 1 if there are segments. Without
 * answers the span is the first token. */
#ifndef TWS_REAL_PAIRS_H
#define TWS_REAL_PAIRS_H

#include <stdint.h>

#include "base/status.h"

typedef struct tws_pairs tws_pairs;

/* Returns 1 if the file's name ends with ".jsonl". */
int tws_pairs_is_file(const char *path);
typedef enum tws_pairs_kind { TWS_PAIRS_TARGETS, TWS_PAIRS_CLASSES, TWS_PAIRS_TAGS, TWS_PAIRS_SPANS } tws_pairs_kind;
typedef struct tws_pairs_form {
  tws_pairs_kind kind;
  int64_t vocabulary, classes, types; /* exclusive upper limits of tokens, labels and types */
} tws_pairs_form;
/* Opens a file. Fails with TWS_IO if the file does not exist or cannot be read, and with TWS_INVALID, naming the line,
 * if a line is no object of this form, or has an empty target, an empty text to classify, a number that is not below
 * its limit, or an answer that is not at its position. The caller closes *out with tws_pairs_close(). */
tws_code tws_pairs_open(const char *path, const tws_pairs_form *form, tws_pairs **out, tws_error *err);
void tws_pairs_close(tws_pairs *pairs); /* NULL is allowed */
uint64_t tws_pairs_count(const tws_pairs *pairs);
uint64_t tws_pairs_tokens(const tws_pairs *pairs); /* returns the number of tokens of all sources and targets */

typedef struct tws_pair {
  const int32_t *source, *target, *types; /* valid until the pairs are closed */
  int64_t sources, targets;               /* number of tokens of source and target; `types` has one number for each
                                           * token of the source, or is NULL */
} tws_pair;
tws_pair tws_pairs_at(const tws_pairs *pairs, uint64_t index);

#endif
