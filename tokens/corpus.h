/* Texts to files of tokens that training reads: plain text, or JSON lines with a document in each, with a tokenizer or
 * a byte a token; written as llm.c's token files (dev/data/data_common.py there) or Megatron's indexed data sets
 * (megatron/core/datasets/indexed_dataset.py). */
#ifndef TWS_TOKENS_CORPUS_H
#define TWS_TOKENS_CORPUS_H

#include "tokens/tokenizer.h"

typedef struct tws_corpus_request {
  const char *from;         /* a name that ends with .jsonl: a JSON object in each line */
  const char *to;           /* llm.c's format: the file; Megatron's: NAME.bin, and NAME.idx is written to the same
                               folder */
  const char *eval_to;      /* gets eval_share of the documents, or of one text's tokens the last; NULL: none */
  double eval_share;        /* 0 to 1 */
  const char *field;        /* of a line that has its text; NULL: "text" */
  tws_tokenizer *tokenizer; /* NULL: a byte is a token */
  int megatron;
} tws_corpus_request;

typedef struct tws_corpus_result {
  int64_t documents, tokens, eval_tokens, vocabulary;
  int64_t end; /* the token that ends each document of JSON lines; -1: the tokenizer has none */
} tws_corpus_result;

/* Files appear when they are whole. TWS_INVALID names file, line and what is wrong. */
tws_code tws_corpus_convert(const tws_corpus_request *request, tws_corpus_result *result, tws_error *err);

#endif
