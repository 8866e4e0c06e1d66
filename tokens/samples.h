/* Converts questions and labelled texts to samples of a model's tokens, which training and prediction read
 * (real/pairs.h). */
#ifndef TWS_TOKENS_SAMPLES_H
#define TWS_TOKENS_SAMPLES_H

#include "tokens/tokenizer.h"

typedef struct tws_samples_request {
  const char *from; /* SQuAD's JSON file, or lines (.jsonl) of questions or of labelled texts */
  const char *to;   /* a file of lines that is written */
  tws_tokenizer *tokenizer;
  int64_t longest; /* most tokens of a sample, special ones included; 0: no limit */
} tws_samples_request;
typedef struct tws_samples_result {
  int64_t samples, cut, lost; /* samples; those that were truncated; answers that the truncated texts do not have */
} tws_samples_result;

/* Writes a line for each question or text of the file, in its order: {"input": [ids], "types": [segments]} as the
 * tokenizer joins two texts, with "label", or for a question with "span", "id", "context", "answers" and "offsets": for
 * each token the first byte of the context and the byte after the last one, 0 and 0 for tokens of the question and
 * special ones. An answer's span is of the tokens that have some of its bytes; without an answer, or if the truncated
 * text does not have it, the first token. A text is truncated at its end, of two texts the second one.
 *
 * Offsets are found in one of two ways: the tokens of a text's words, one after another, are those of the whole text
 * (tokens of a word that is longer or shorter in the vocabulary, without its accents, all have the whole word); or the
 * first tokens of a text decode to its first bytes, for each number of tokens. Fails with TWS_UNSUPPORTED if neither
 * holds, with TWS_INVALID and the place for a line of another form, with TWS_IO for a file that cannot be read or
 * written. */
tws_code tws_samples_convert(const tws_samples_request *request, tws_samples_result *result, tws_error *err);

#endif
