/* Tokenizers: text to tokens and back, as Hugging Face's `tokenizers` library does it, read from its tokenizer.json
 * (https://huggingface.co/docs/tokenizers/components).
 *
 * Models: byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909), with byte fallback, and unigram language models
 * (Kudo 2018, arXiv:1804.10959). Normalizers, pre-tokenizers, post-processors and decoders are those that are listed in
 * tokens/internal.h. What a file asks for that is not among them is refused, never left out. */
#ifndef TWS_TOKENS_TOKENIZER_H
#define TWS_TOKENS_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>
#include "base/status.h"

typedef struct tws_tokenizer tws_tokenizer;

/* TWS_INVALID with file and place, TWS_UNSUPPORTED with what is not known. */
tws_code tws_tokenizer_open(const char *path, tws_tokenizer **out, tws_error *err);
tws_code tws_tokenizer_parse(const char *text, size_t length, const char *name, tws_tokenizer **out, tws_error *err);
void tws_tokenizer_close(tws_tokenizer *tokenizer); /* NULL is allowed */

int64_t tws_tokenizer_vocabulary(const tws_tokenizer *tokenizer); /* one more than the largest token */
/* -1: there is no such token. With added tokens such as "<|endoftext|>". */
int64_t tws_tokenizer_find(const tws_tokenizer *tokenizer, const char *token);
/* The token that ends a document: the first of "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>" and "[SEP]" that
 * there is; -1: none. */
int64_t tws_tokenizer_end(const tws_tokenizer *tokenizer);

typedef struct tws_token_list {
  int32_t *id;
  size_t count, capacity;
} tws_token_list;
tws_code tws_token_add(tws_token_list *list, int64_t id, tws_error *err);
void tws_token_free(tws_token_list *list);

/* Adds the tokens of a text to the list. `special`: with those that the file's post-processor puts around a text.
 * TWS_INVALID: the text is not UTF-8 (the message says where). A tokenizer is used by one thread at a time. */
tws_code tws_tokenizer_encode(tws_tokenizer *tokenizer, const char *text, size_t length, int special,
                              tws_token_list *list, tws_error *err);
/* The text of tokens, zero-terminated, the caller's to free (tws_free). Special tokens are left out where asked. Bytes
 * that are no UTF-8 become U+FFFD. */
tws_code tws_tokenizer_decode(tws_tokenizer *tokenizer, const int32_t *id, size_t count, int skip_special, char **text,
                              size_t *length, tws_error *err);

#endif
