/* What the parts of a tokenizer share: a text goes through added tokens, normalizers, pre-tokenizers and the model;
 * tokens through decoders. */
#ifndef TWS_TOKENS_INTERNAL_H
#define TWS_TOKENS_INTERNAL_H

#include "base/json.h"
#include "base/memory.h"
#include "tokens/tokenizer.h"

enum { TWS_MOST_TOKENS = 1 << 22 }; /* the largest vocabularies have a quarter of a million */

/* ---- vocabulary: strings to numbers (tokens/vocabulary.c) ---- */
typedef struct tws_vocabulary {
  struct tws_vocabulary_slot {
    const char *text; /* somebody else's */
    uint32_t length;
    int32_t id;
  } *slots;
  size_t room, count; /* room: a power of two */
} tws_vocabulary;
tws_code tws_vocabulary_add(tws_vocabulary *v, const char *text, size_t length, int32_t id, tws_error *err);
int32_t tws_vocabulary_find(const tws_vocabulary *v, const char *text, size_t length); /* -1: not there */
/* A number for a pair of numbers, in the same kind of table. */
typedef struct tws_pair_table {
  struct tws_pair_slot {
    uint64_t key; /* 0: free */
    int32_t rank, id;
  } *slots;
  size_t room, count;
} tws_pair_table;
tws_code tws_pair_add(tws_pair_table *t, uint32_t a, uint32_t b, int32_t rank, int32_t id, tws_error *err);
const struct tws_pair_slot *tws_pair_find(const tws_pair_table *t, uint32_t a, uint32_t b); /* NULL: not there */

/* ---- UTF-8 (tokens/utf8.c) ---- */
int tws_utf8_length(const char *at); /* of the character there, in valid text */
/* Bytes of the valid character at `at`, and *value; 0: none. *bad: how many bytes belong to what is none. */
int tws_utf8_read(const char *at, size_t left, int32_t *value, int *bad);
size_t tws_utf8_write(int32_t value, char to[4]);
/* SIZE_MAX: all of it is valid; otherwise where it is not. */
size_t tws_utf8_check(const char *text, size_t length);
void tws_utf8_repair(const char *text, size_t length, tws_text *out); /* U+FFFD for what is not valid */
int tws_is_space(int32_t c);                                          /* Unicode's White_Space */
int tws_is_punctuation(int32_t c);
int tws_is_numeric(int32_t c);
int tws_is_mark(int32_t c); /* combining: Mn, Mc, Me */
/* Whether BERT's steps take the character otherwise than the classes here say (tokens/bert_classes.c). */
typedef enum tws_bert_class { TWS_BERT_CONTROL, TWS_BERT_ACCENT, TWS_BERT_PUNCTUATION } tws_bert_class;
int tws_bert_differs(tws_bert_class of, int32_t c);
/* GPT-2's printable characters for bytes. */
const char *tws_byte_character(unsigned char byte, size_t *length);
int tws_character_byte(int32_t c); /* -1: none */

/* ---- patterns (tokens/pattern.c) ---- */
typedef struct tws_pattern tws_pattern;
/* {"String": ...} or {"Regex": ...}, in Oniguruma's syntax as far as PCRE2 has the same. */
tws_code tws_pattern_read(const tws_json *json, const cJSON *item, tws_pattern **out, tws_error *err);
tws_code tws_pattern_of(const char *expression, tws_pattern **out, tws_error *err);
void tws_pattern_free(tws_pattern *pattern);
/* The first match from `from` on that is not empty; *begin == length where there is none. */
tws_code tws_pattern_next(const tws_pattern *pattern, const char *text, size_t length, size_t from, size_t *begin,
                          size_t *end, tws_error *err);

/* ---- steps ---- */
#define TWS_NORMALIZERS(X) \
  X(NFC)                   \
  X(NFD) X(NFKC) X(NFKD) X(Lowercase) X(Strip) X(StripAccents) X(Replace) X(Prepend) X(Precompiled) X(BertNormalizer)
#define TWS_PRETOKENIZERS(X) \
  X(ByteLevel) X(Split) X(Metaspace) X(Whitespace) X(WhitespaceSplit) X(Digits) X(Punctuation) X(BertPreTokenizer)
#define TWS_DECODERS(X) X(ByteLevel) X(Metaspace) X(Replace) X(ByteFallback) X(Fuse) X(Strip) X(WordPiece)

typedef enum tws_behavior { /* of what separates */
                            TWS_REMOVED,
                            TWS_ISOLATED,
                            TWS_MERGED_WITH_PREVIOUS,
                            TWS_MERGED_WITH_NEXT,
                            TWS_CONTIGUOUS
} tws_behavior;

/* What steps may make of a text: the published ones make less than 16 times as much (NFKC of U+FDFA: 11 times), and a
 * file that is not to be trusted could make gigabytes of a line. */
enum { TWS_GROWTH = 32, TWS_GROWTH_BYTES = 4096, TWS_TOKEN_BYTES = 1024 /* a token, on average */ };
typedef struct tws_growth {
  size_t from, most, made; /* bytes: of the text, allowed, and so far */
} tws_growth;
tws_growth tws_growth_of(size_t length);

typedef struct tws_token_step {
  int kind;             /* of its list */
  const tws_json *json; /* with the item, for messages */
  const cJSON *item;
  tws_pattern *pattern;
  const char *content; /* Replace, Prepend, Metaspace's replacement, Strip's character */
  tws_behavior behavior;
  int cleans, pads, strips_accents, lowers; /* BertNormalizer: what it does; WordPiece: cleans = blanks before marks */
  int invert, left, right;                  /* Strip: how many; ByteLevel: left = a space in front */
  int split, prepend; /* Metaspace: prepend 0 never, 1 first, 2 always; ByteLevel: split = by GPT-2's pattern */
  uint32_t *units;    /* Precompiled: a double-array trie, and the texts that it leads to */
  size_t unit_count, strings_length;
  const char *strings;
  char *blob;    /* that both lie in */
  tws_text room; /* what this step makes of a text */
} tws_token_step;

enum { TWS_TOKEN_STEPS = 16 };
typedef struct tws_token_steps {
  tws_token_step step[TWS_TOKEN_STEPS];
  int count;
} tws_token_steps;
/* The object, or the list `member` of a Sequence, as steps of the kinds in `names`; nothing for null. */
typedef tws_code (*tws_step_reader)(const tws_json *json, const cJSON *item, tws_token_step *step, tws_error *err);
tws_code tws_steps_read(const tws_json *json, const cJSON *item, const char *member, const char *const *names,
                        tws_step_reader reader, tws_token_steps *steps, tws_error *err);
void tws_steps_free(tws_token_steps *steps);

/* TWS_INVALID with the step's place. */
tws_code tws_growth_exceeded(const tws_token_step *step, const tws_growth *growth, tws_error *err);

/* A flag of an object, or its default. */
tws_code tws_step_flag(const tws_json *json, const cJSON *item, const char *key, int fallback, int *value,
                       tws_error *err);

/* ---- normalizers (tokens/normalize.c) ---- */
tws_code tws_normalizers_read(const tws_json *json, const cJSON *item, tws_token_steps *steps, tws_error *err);
/* out is emptied first. TWS_INVALID where more would be made than the growth allows, to which it is added. */
tws_code tws_normalize(tws_token_steps *steps, const char *text, size_t length, tws_growth *growth, tws_text *out,
                       tws_error *err);

/* ---- pre-tokenizers (tokens/split.c) ---- */
tws_code tws_splits_read(const tws_json *json, const cJSON *item, tws_token_steps *steps, tws_error *err);
typedef tws_code (*tws_word_user)(void *user, const char *word, size_t length, tws_error *err);
/* Calls back with every piece in order. `first`: the piece begins the text. */
tws_code tws_split(tws_token_steps *steps, int from, const char *text, size_t length, int first, tws_word_user word,
                   void *user, tws_error *err);

/* ---- models ---- */
typedef struct tws_bpe_symbol {
  int32_t id, previous, next; /* neighbours, -1: none; id -1: merged away */
} tws_bpe_symbol;
typedef struct tws_bpe_merge {
  int32_t rank, at, id;
} tws_bpe_merge;

typedef struct tws_token_model {
  enum { TWS_BPE, TWS_UNIGRAM, TWS_WORDPIECE } kind;
  tws_vocabulary vocabulary;
  int32_t unknown; /* -1: none */
  int fuse_unknown, byte_fallback, ignore_merges;
  int32_t bytes[256]; /* of byte fallback; -1: none */
  /* byte pairs */
  const char *prefix, *suffix; /* of what continues a word, and of what ends it; or NULL */
  tws_pair_table merges;
  tws_bpe_symbol *symbols;
  size_t symbol_room;
  tws_bpe_merge *heap;
  size_t heap_room, heap_count;
  tws_text word;
  /* WordPiece */
  size_t longest; /* bytes of a token */
  int32_t most_characters;
  /* unigram */
  double *scores, least;
  tws_pair_table trie; /* (node, byte) to node; its rank is the token that ends there, or -1 */
  int32_t nodes;
  struct tws_unigram_node {
    double score;
    int32_t id;
    uint32_t from; /* UINT32_MAX: not reached */
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
/* The bytes of a character or word as tokens of their own; 0 where one of them has none: then nothing was added. */
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
/* What tokens are together; `arena` has what is made on the way. */
tws_code tws_decode(const tws_token_steps *steps, int none, tws_texts *texts, tws_arena *arena, tws_text *out,
                    tws_error *err);

tws_code tws_no_token_memory(tws_error *err);

#endif
