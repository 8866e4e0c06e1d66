/* Converts texts to the token files that training reads. Input is plain text, or JSON lines with one document each;
 * tokens come from a tokenizer, or each byte is a token. Output has the format of llm.c (dev/data/data_common.py there)
 * or of Megatron's indexed data sets (megatron/core/datasets/indexed_dataset.py). */
#ifndef TWS_TOKENS_CORPUS_H
#define TWS_TOKENS_CORPUS_H

#include "tokens/tokenizer.h"

typedef struct tws_corpus_request {
  const char *from;         /* path of the text; a name that ends with .jsonl means one JSON object per line */
  const char *to;           /* path; Megatron's format: NAME.bin, and NAME.idx is written to the same folder */
  const char *eval_to;      /* receives eval_share of the documents, or the last tokens of a plain text; NULL: none */
  double eval_share;        /* share of the documents or tokens, 0 to 1 */
  const char *field;        /* key of a line's text; NULL: "text" */
  tws_tokenizer *tokenizer; /* NULL: each byte is a token */
  int megatron;
} tws_corpus_request;

typedef struct tws_corpus_result {
  int64_t documents, tokens, eval_tokens, vocabulary;
  int64_t end; /* id of the token after each document of JSON lines; -1: the tokenizer has none */
} tws_corpus_result;

/* Converts a text. The output files appear when they are complete. Fails with TWS_INVALID and names file, line and
 * problem. */
tws_code tws_corpus_convert(const tws_corpus_request *request, tws_corpus_result *result, tws_error *err);

#endif
