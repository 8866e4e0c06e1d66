/* Declarations that the files of the tokenizer share. Encoding applies added tokens, normalizers, pre-tokenizers and
 * the model to a text; decoding applies decoders to tokens. */
#ifndef TWS_TOKENS_INTERNAL_H
#define TWS_TOKENS_INTERNAL_H

#include "base/json.h"
#include "base/memory.h"
#include "tokens/tokenizer.h"

enum { TWS_MOST_TOKENS = 1 << 22 }; /* the largest known vocabularies have 250,000 tokens */

/* ---- vocabulary: a map from strings to numbers (tokens/vocabulary.c) ---- */
typedef struct tws_vocabulary {
  struct tws_vocabulary_slot {
    const char *text; /* not owned */
    uint32_t length;
    int32_t id;
  } *slots;
  size_t room, count; /* room: number of slots, a power of two */
} tws_vocabulary;
tws_code tws_vocabulary_add(tws_vocabulary *v, const char *text, size_t length, int32_t id, tws_error *err);
int32_t tws_vocabulary_find(const tws_vocabulary *v, const char *text, size_t length); /* -1 if absent */
/* A map from pairs of numbers to a number. */
typedef struct tws_pair_table {
  struct tws_pair_slot {
    uint64_t key; /* 0: the slot is free */
    int32_t rank, id;
  } *slots;
  size_t room, count;
} tws_pair_table;
tws_code tws_pair_add(tws_pair_table *t, uint32_t a, uint32_t b, int32_t rank, int32_t id, tws_error *err);
const struct tws_pair_slot *tws_pair_find(const tws_pair_table *t, uint32_t a, uint32_t b); /* NULL if absent */

/* ---- UTF-8 (tokens/utf8.c) ---- */
int tws_utf8_length(const char *at); /* bytes of the character at `at`, in valid text */
/* Returns the bytes of the valid character at `at` and sets *value, or returns 0 and sets *bad to the number of bytes
 * that belong to the invalid sequence. */
int tws_utf8_read(const char *at, size_t left, int32_t *value, int *bad);
size_t tws_utf8_write(int32_t value, char to[4]);
/* Returns SIZE_MAX if the text is valid, else the offset of the first invalid byte. */
size_t tws_utf8_check(const char *text, size_t length);
void tws_utf8_repair(const char *text, size_t length, tws_text *out); /* replaces invalid sequences by U+FFFD */
int tws_is_space(int32_t c);                                          /* has Unicode's property White_Space */
int tws_is_punctuation(int32_t c);
int tws_is_numeric(int32_t c);
int tws_is_mark(int32_t c); /* combining mark: Mn, Mc, Me */
/* tws_bert_differs() returns 1 if BERT's steps classify the character differently from the functions above
 * (tokens/bert_classes.c). */
typedef enum tws_bert_class { TWS_BERT_CONTROL, TWS_BERT_ACCENT, TWS_BERT_PUNCTUATION } tws_bert_class;
int tws_bert_differs(tws_bert_class of, int32_t c);
/* Returns the printable character by which GPT-2 represents a byte. */
const char *tws_byte_character(unsigned char byte, size_t *length);
int tws_character_byte(int32_t c); /* the byte that the character represents; -1: none */

/* ---- patterns (tokens/pattern.c) ---- */
typedef struct tws_pattern tws_pattern;
/* Reads {"String": ...} or {"Regex": ...} as a pattern. Expressions are in Oniguruma's syntax; those that PCRE2 does
 * not support are refused. */
tws_code tws_pattern_read(const tws_json *json, const cJSON *item, tws_pattern **out, tws_error *err);
tws_code tws_pattern_of(const char *expression, tws_pattern **out, tws_error *err);
void tws_pattern_free(tws_pattern *pattern);
/* Finds the first non-empty match at or after `from`; *begin == length if there is none. */
tws_code tws_pattern_next(const tws_pattern *pattern, const char *text, size_t length, size_t from, size_t *begin,
                          size_t *end, tws_error *err);

/* ---- steps ---- */
#define TWS_NORMALIZERS(X) \
  X(NFC)                   \
  X(NFD) X(NFKC) X(NFKD) X(Lowercase) X(Strip) X(StripAccents) X(Replace) X(Prepend) X(Precompiled) X(BertNormalizer)
#define TWS_PRETOKENIZERS(X) \
  X(ByteLevel) X(Split) X(Metaspace) X(Whitespace) X(WhitespaceSplit) X(Digits) X(Punctuation) X(BertPreTokenizer)
#define TWS_DECODERS(X) X(ByteLevel) X(Metaspace) X(Replace) X(ByteFallback) X(Fuse) X(Strip) X(WordPiece)

typedef enum tws_behavior { /* the treatment of separators */
                            TWS_REMOVED,
                            TWS_ISOLATED,
                            TWS_MERGED_WITH_PREVIOUS,
                            TWS_MERGED_WITH_NEXT,
                            TWS_CONTIGUOUS
} tws_behavior;

/* Limits the growth of a text by the steps: published tokenizers lengthen a text by less than 16 times (NFKC of U+FDFA:
 * 11 times), whereas a malicious file could turn one line into gigabytes. */
enum { TWS_GROWTH = 32, TWS_GROWTH_BYTES = 4096, TWS_TOKEN_BYTES = 1024 /* average bytes per token */ };
typedef struct tws_growth {
  size_t from, most, made; /* bytes of the text, allowed bytes, and bytes made until now */
} tws_growth;
tws_growth tws_growth_of(size_t length);

typedef struct tws_token_step {
  int kind;             /* index in the list of kinds */
  const tws_json *json; /* the file that contains `item`, for messages */
  const cJSON *item;
  tws_pattern *pattern;
  const char *content; /* text of Replace and Prepend, replacement of Metaspace, character of Strip */
  tws_behavior behavior;
  int cleans, pads, strips_accents, lowers; /* BertNormalizer: options; WordPiece: cleans: blanks before punctuation are
                                             * removed */
  int invert, left, right;                  /* Strip: sides; ByteLevel: left = add a leading blank */
  int split, prepend; /* Metaspace: prepend 0 never, 1 first, 2 always; ByteLevel: split by GPT-2's pattern */
  uint32_t *units;    /* Precompiled: a double-array trie, and the strings that it maps to */
  size_t unit_count, strings_length;
  const char *strings;
  char *blob;    /* memory that contains both */
  tws_text room; /* buffer for the text that this step makes */
} tws_token_step;

enum { TWS_TOKEN_STEPS = 16 };
typedef struct tws_token_steps {
  tws_token_step step[TWS_TOKEN_STEPS];
  int count;
} tws_token_steps;
/* Reads an object, or the list `member` of a Sequence, as steps of the kinds in `names`; null means no steps. */
typedef tws_code (*tws_step_reader)(const tws_json *json, const cJSON *item, tws_token_step *step, tws_error *err);
tws_code tws_steps_read(const tws_json *json, const cJSON *item, const char *member, const char *const *names,
                        tws_step_reader reader, tws_token_steps *steps, tws_error *err);
void tws_steps_free(tws_token_steps *steps);

/* Fails with TWS_INVALID and the step's position in the file. */
tws_code tws_growth_exceeded(const tws_token_step *step, const tws_growth *growth, tws_error *err);

/* Reads a boolean member of an object, or its default. */
tws_code tws_step_flag(const tws_json *json, const cJSON *item, const char *key, int fallback, int *value,
                       tws_error *err);

/* ---- normalizers (tokens/normalize.c) ---- */
tws_code tws_normalizers_read(const tws_json *json, const cJSON *item, tws_token_steps *steps, tws_error *err);
/* Normalizes a text into `out`, which is cleared first, and adds the bytes made to `growth`. Fails with TWS_INVALID if
 * they exceed the limit. */
tws_code tws_normalize(tws_token_steps *steps, const char *text, size_t length, tws_growth *growth, tws_text *out,
                       tws_error *err);

/* ---- pre-tokenizers (tokens/split.c) ---- */
tws_code tws_splits_read(const tws_json *json, const cJSON *item, tws_token_steps *steps, tws_error *err);
typedef tws_code (*tws_word_user)(void *user, const char *word, size_t length, tws_error *err);
/* Splits a text and calls `word` for every word in order. `first`: 1: the text is at the beginning of the whole
 * text. */
tws_code tws_split(tws_token_steps *steps, int from, const char *text, size_t length, int first, tws_word_user word,
                   void *user, tws_error *err);

/* ---- models ---- */
typedef struct tws_bpe_symbol {
  int32_t id, previous, next; /* adjacent symbols, -1: none; id -1: merged into another */
} tws_bpe_symbol;
typedef struct tws_bpe_merge {
  int32_t rank, at, id;
} tws_bpe_merge;

typedef struct tws_token_model {
  enum { TWS_BPE, TWS_UNIGRAM, TWS_WORDPIECE } kind;
  tws_vocabulary vocabulary;
  int32_t unknown; /* id of the unknown token; -1: none */
  int fuse_unknown, byte_fallback, ignore_merges;
  int32_t bytes[256]; /* [byte] id for byte fallback; -1: none */
  /* byte-pair encoding */
  const char *prefix, *suffix; /* added to characters that continue a word, and that end it; or NULL */
  tws_pair_table merges;
  tws_bpe_symbol *symbols;
  size_t symbol_room;
  tws_bpe_merge *heap;
  size_t heap_room, heap_count;
  tws_text word;
  /* WordPiece */
  size_t longest; /* bytes of the longest token */
  int32_t most_characters;
  /* unigram: [id] log probability, and the least of them */
  double *scores, least;
  tws_pair_table trie; /* (node, byte) to node, whose rank is the token that ends there, or -1 */
  int32_t nodes;
  struct tws_unigram_node {
    double score;
    int32_t id;
    uint32_t from; /* offset at which the best last token begins; UINT32_MAX: not reached */
  } *best;
  size_t best_room;
} tws_token_model;

tws_code tws_bpe_read(const tws_json *json, const cJSON *item, tws_token_model *model, tws_error *err);
tws_code tws_bpe_encode(tws_token_model *model, const char *word, size_t length, tws_token_list *list, tws_error *err);
tws_code tws_unigram_read(const tws_json *json, const cJSON *item, tws_token_model *model, tws_error *err);
tws_code tws_unigram_encode(tws_token_model *model, const char *word, size_t length, tws_token_list *list,
                            tws_error *err);
tws_code tws_wordpiece_read(const tws_json *json, const cJSON *item, tws_token_model *model, tws_error *err);
tws_code tws_wordpiece_encode(tws_token_model *model, const char *word, size_t length, tws_token_list *list,
                              tws_error *err);
/* Adds the tokens of each byte of a character or word; *added is 0, and no token is added, if a byte has no token. */
tws_code tws_add_bytes(const tws_token_model *model, const char *text, size_t length, tws_token_list *list, int *added,
                       tws_error *err);

/* ---- decoders (tokens/decode.c) ---- */
tws_code tws_decoders_read(const tws_json *json, const cJSON *item, tws_token_steps *steps, tws_error *err);
typedef struct tws_texts {
  struct tws_text_range {
    const char *at;
    size_t length;
  } *item;
  size_t count, capacity;
} tws_texts;
/* Decodes token texts and appends the result to `out`; temporary texts are in `arena`. */
tws_code tws_decode(const tws_token_steps *steps, int none, tws_texts *texts, tws_arena *arena, tws_text *out,
                    tws_error *err);

tws_code tws_no_token_memory(tws_error *err);

#endif
