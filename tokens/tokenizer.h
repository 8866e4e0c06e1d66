/* Tokenizers, which convert text to tokens and back as Hugging Face's `tokenizers` library does, from its
 * tokenizer.json (https://huggingface.co/docs/tokenizers/components).
 *
 * Models: byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909), with byte fallback, WordPiece, and unigram
 * language models (Kudo 2018, arXiv:1804.10959). tokens/internal.h lists the supported normalizers, pre-tokenizers,
 * post-processors and decoders. A file that needs another one is refused. */
#ifndef TWS_TOKENS_TOKENIZER_H
#define TWS_TOKENS_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>
#include "base/status.h"

typedef struct tws_tokenizer tws_tokenizer;

/* Reads a tokenizer.json. Fails with TWS_INVALID and the position, or with TWS_UNSUPPORTED and the unsupported
 * feature. */
tws_code tws_tokenizer_open(const char *path, tws_tokenizer **out, tws_error *err);
tws_code tws_tokenizer_parse(const char *text, size_t length, const char *name, tws_tokenizer **out, tws_error *err);
void tws_tokenizer_close(tws_tokenizer *tokenizer); /* NULL is allowed */

int64_t tws_tokenizer_vocabulary(const tws_tokenizer *tokenizer); /* 1 + the largest token id */
/* Returns the id of a token, which may be an added one such as "<|endoftext|>", or -1 if there is none. */
int64_t tws_tokenizer_find(const tws_tokenizer *tokenizer, const char *token);
/* Returns the id of the token that ends a document: the first existing one of "<|endoftext|>", "<|end_of_text|>",
 * "</s>", "<eos>" and "[SEP]"; -1: none. */
int64_t tws_tokenizer_end(const tws_tokenizer *tokenizer);

typedef struct tws_token_list {
  int32_t *id;
  size_t count, capacity;
} tws_token_list;
tws_code tws_token_add(tws_token_list *list, int64_t id, tws_error *err);
void tws_token_free(tws_token_list *list);

/* The tokens that the file's post-processor adds around one text, and between two; second_type: the segment of the
 * second text and of the tokens after it. */
enum { TWS_MOST_AROUND = 16 };
typedef struct tws_token_frame {
  int32_t before[TWS_MOST_AROUND], between[TWS_MOST_AROUND], behind[TWS_MOST_AROUND];
  int before_count, between_count, behind_count, second_type;
} tws_token_frame;
const tws_token_frame *tws_tokenizer_frame(const tws_tokenizer *tokenizer);

/* Appends the tokens of a text to the list. `special`: 1: also those that the file's post-processor adds around a text.
 * Fails with TWS_INVALID, naming the position, if the text is not UTF-8. Only one thread at a time may use a
 * tokenizer. */
tws_code tws_tokenizer_encode(tws_tokenizer *tokenizer, const char *text, size_t length, int special,
                              tws_token_list *list, tws_error *err);
/* Decodes tokens to a zero-terminated text, which the caller frees (tws_free). skip_special: 1 leaves special tokens
 * out. Invalid UTF-8 becomes U+FFFD. */
tws_code tws_tokenizer_decode(tws_tokenizer *tokenizer, const int32_t *id, size_t count, int skip_special, char **text,
                              size_t *length, tws_error *err);

#endif
