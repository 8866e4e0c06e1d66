/* Pre-tokenizers, which split a text into words. */
#include <string.h>

#include "tokens/internal.h"

enum kind {
#define X(name) SPLIT_##name,
  TWS_PRETOKENIZERS(X)
#undef X
};
static const char *const names[] = {
#define X(name) #name,
    TWS_PRETOKENIZERS(X)
#undef X
        NULL};

/* The pattern of GPT-2 (https://github.com/openai/gpt-2, encoder.py). */
static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
/* The pattern \w+|[^\w\s]+, where \w means alphabetic characters, marks, digits and connectors. */
#define WORD                                                                                       \
  "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}" \
  "\\x{1f170}-\\x{1f189}\\x{200c}\\x{200d}"
static const char words[] = "[" WORD "]+|[^" WORD "\\s]+";

/* ---- reading ---- */

static tws_code read_behavior(const tws_json *json, const cJSON *item, tws_behavior fallback, tws_behavior *behavior,
                              tws_error *err) {
  static const char *const kinds[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
  const char *word = NULL;
  TWS_TRY(tws_json_string(json, item, "behavior", 0, NULL, &word, err));
  *behavior = fallback;
  if (!word) return TWS_OK;
  for (int i = 0; i < 5; i++)
    if (strcmp(word, kinds[i]) == 0) {
      *behavior = (tws_behavior)i;
      return TWS_OK;
    }
  return tws_json_fail(json, item, err, NULL, "unknown behavior \"%.40s\"", word);
}

/* Reads Metaspace; older files have "add_prefix_space" instead of "prepend_scheme". */
static tws_code read_metaspace(const tws_json *json, const cJSON *item, tws_token_step *s, tws_error *err) {
  const char *scheme = NULL;
  int adds = 1;
  TWS_TRY(tws_json_string(json, item, "replacement", 1, NULL, &s->content, err));
  TWS_TRY(tws_json_string(json, item, "prepend_scheme", 0, NULL, &scheme, err));
  TWS_TRY(tws_step_flag(json, item, "add_prefix_space", 1, &adds, err));
  TWS_TRY(tws_step_flag(json, item, "split", 1, &s->split, err));
  s->prepend = !scheme ? (adds ? 2 : 0) : strcmp(scheme, "always") == 0 ? 2 : strcmp(scheme, "first") == 0 ? 1 : 0;
  if (!s->content[0] || (size_t)tws_utf8_length(s->content) != strlen(s->content))
    return tws_json_fail(json, item, err, NULL, "\"replacement\" must be one character");
  if (scheme && s->prepend == 0 && strcmp(scheme, "never") != 0)
    return tws_json_fail(json, item, err, NULL, "unknown prepend_scheme \"%.40s\"", scheme);
  return TWS_OK;
}

static tws_code read_split(const tws_json *json, const cJSON *item, tws_token_step *s, tws_error *err) {
  switch ((enum kind)s->kind) {
    case SPLIT_ByteLevel:
      TWS_TRY(tws_step_flag(json, item, "add_prefix_space", 1, &s->left, err));
      TWS_TRY(tws_step_flag(json, item, "use_regex", 1, &s->split, err));
      s->behavior = TWS_ISOLATED;
      return s->split ? tws_pattern_of(gpt2, &s->pattern, err) : TWS_OK;
    case SPLIT_Split:
      TWS_TRY(tws_step_flag(json, item, "invert", 0, &s->invert, err));
      TWS_TRY(read_behavior(json, item, TWS_REMOVED, &s->behavior, err));
      return tws_pattern_read(json, cJSON_GetObjectItemCaseSensitive(item, "pattern"), &s->pattern, err);
    case SPLIT_Metaspace:
      return read_metaspace(json, item, s, err);
    case SPLIT_Whitespace: /* matches are the words */
      s->invert = 1;
      return tws_pattern_of(words, &s->pattern, err);
    case SPLIT_Digits:
      TWS_TRY(tws_step_flag(json, item, "individual_digits", 0, &s->invert, err));
      s->behavior = s->invert ? TWS_ISOLATED : TWS_CONTIGUOUS;
      s->invert = 0;
      return TWS_OK;
    case SPLIT_Punctuation:
      return read_behavior(json, item, TWS_ISOLATED, &s->behavior, err);
    case SPLIT_WhitespaceSplit:
    case SPLIT_BertPreTokenizer:
      break;
  }
  return TWS_OK;
}

/* Reads the pre-tokenizers. Each pre-tokenizer may replace one byte by two, so their number is limited. */
tws_code tws_splits_read(const tws_json *json, const cJSON *item, tws_token_steps *steps, tws_error *err) {
  enum { MOST = 2 };
  int doubling = 0;
  TWS_TRY(tws_steps_read(json, item, "pretokenizers", names, read_split, steps, err));
  for (int i = 0; i < steps->count; i++)
    if (steps->step[i].kind == SPLIT_ByteLevel && ++doubling > MOST)
      return tws_json_fail(json, steps->step[i].item, err, "one is enough", "\"ByteLevel\" more than %d times", MOST);
  return TWS_OK;
}

/* ---- cutting ---- */

typedef struct cutter {
  tws_token_steps *steps;
  int step; /* index of the step that makes these words */
  const char *text;
  size_t length, begin, end; /* begin, end: the pending word, which may still grow; equal: none */
  int first, matched;        /* matched: 1: the previous range was a separator */
  tws_word_user word;
  void *user;
} cutter;

static tws_code flush(cutter *c, tws_error *err) {
  const size_t begin = c->begin, end = c->end;
  c->begin = c->end;
  if (begin == end) return TWS_OK;
  return tws_split(c->steps, c->step + 1, c->text + begin, end - begin, c->first && begin == 0, c->word, c->user, err);
}

/* Adds the range [begin, end) of the text, a separator if `separates` is 1; ranges are added in order. Of several
 * successive separators, only the one adjacent to other text is merged with that text. */
static tws_code add_piece(cutter *c, size_t begin, size_t end, int separates, tws_behavior behavior, tws_error *err) {
  const int before = c->matched, held = c->end > c->begin;
  if (begin == end) return TWS_OK;
  c->matched = separates;
  if (behavior == TWS_REMOVED && separates) {
    TWS_TRY(flush(c, err));
    c->begin = c->end = end;
    return TWS_OK;
  }
  const int grows = held && ((behavior == TWS_MERGED_WITH_PREVIOUS && separates && !before) ||
                             (behavior == TWS_MERGED_WITH_NEXT && !separates && before) ||
                             (behavior == TWS_CONTIGUOUS && separates == before));
  if (!grows) {
    TWS_TRY(flush(c, err));
    c->begin = begin;
  }
  c->end = end;
  return TWS_OK;
}

static tws_code cut_by_pattern(cutter *c, const tws_token_step *s, tws_error *err) {
  size_t begin, end;
  for (size_t done = 0; done < c->length; done = end) {
    TWS_TRY(tws_pattern_next(s->pattern, c->text, c->length, done, &begin, &end, err));
    TWS_TRY(add_piece(c, done, begin, s->invert, s->behavior, err));
    TWS_TRY(add_piece(c, begin, end, !s->invert, s->behavior, err));
  }
  return flush(c, err);
}

/* Splits at blanks, which are removed; punctuation characters are words of their own. */
static tws_code cut_words(cutter *c, tws_error *err) {
  int32_t value;
  int bad;
  size_t done = 0;
  for (size_t i = 0; i < c->length;) {
    const int n = tws_utf8_read(c->text + i, c->length - i, &value, &bad);
    const size_t end = i + (size_t)n;
    const int blank = tws_is_space(value);
    const int mark = tws_is_punctuation(value) != tws_bert_differs(TWS_BERT_PUNCTUATION, value);
    if (blank || mark) {
      TWS_TRY(add_piece(c, done, i, 0, TWS_ISOLATED, err));
      TWS_TRY(add_piece(c, i, end, 1, blank ? TWS_REMOVED : TWS_ISOLATED, err));
      done = end;
    }
    i = end;
  }
  TWS_TRY(add_piece(c, done, c->length, 0, TWS_ISOLATED, err));
  return flush(c, err);
}

static tws_code cut_by_class(cutter *c, int (*is)(int32_t), tws_behavior behavior, tws_error *err) {
  int32_t value;
  int bad;
  size_t done = 0;
  for (size_t i = 0; i < c->length;) {
    const int n = tws_utf8_read(c->text + i, c->length - i, &value, &bad);
    if (is(value)) {
      TWS_TRY(add_piece(c, done, i, 0, behavior, err));
      TWS_TRY(add_piece(c, i, i + (size_t)n, 1, behavior, err));
      done = i + (size_t)n;
    }
    i += (size_t)n;
  }
  TWS_TRY(add_piece(c, done, c->length, 0, behavior, err));
  return flush(c, err);
}

/* ---- pre-tokenizers that change the text ---- */

typedef struct byte_user {
  tws_token_steps *steps;
  int step;
  tws_word_user word;
  void *user;
} byte_user;

static tws_code bytes_to_characters(void *raw, const char *word, size_t length, tws_error *err) {
  const byte_user *b = raw;
  tws_text *room = &b->steps->step[b->step].room;
  room->length = 0;
  for (size_t i = 0; i < length; i++) {
    size_t n;
    const char *text = tws_byte_character((unsigned char)word[i], &n);
    tws_text_add_bytes(room, text, n);
  }
  if (room->failed) return tws_no_token_memory(err);
  return tws_split(b->steps, b->step + 1, room->data, room->length, 0, b->word, b->user, err);
}

static tws_code byte_level(tws_token_steps *steps, int at, const char *text, size_t length, tws_word_user word,
                           void *user, tws_error *err) {
  tws_token_step *s = &steps->step[at];
  byte_user bytes = {steps, at, word, user};
  tws_text spaced = {0};
  if (s->left && text[0] != ' ') {
    tws_text_add(&spaced, " ");
    tws_text_add_bytes(&spaced, text, length);
    text = spaced.data;
    length = spaced.length;
  }
  tws_code code = spaced.failed ? tws_no_token_memory(err) : TWS_OK;
  if (!s->split && code == TWS_OK) code = bytes_to_characters(&bytes, text, length, err);
  for (size_t done = 0, begin, end; s->split && done < length && code == TWS_OK; done = end) {
    code = tws_pattern_next(s->pattern, text, length, done, &begin, &end, err);
    if (code == TWS_OK && begin > done) code = bytes_to_characters(&bytes, text + done, begin - done, err);
    if (code == TWS_OK && end > begin) code = bytes_to_characters(&bytes, text + begin, end - begin, err);
  }
  tws_text_free(&spaced);
  return code;
}

/* Applies Metaspace. Every call builds its own text, because the ranges that it returns point into the text and are the
 * input of the next step. */
static tws_code metaspace(cutter *c, const tws_token_step *s, tws_error *err) {
  const size_t size = strlen(s->content);
  const int begins = c->length >= size && memcmp(c->text, s->content, size) == 0;
  tws_text made = {0};
  if ((s->prepend == 2 || (s->prepend == 1 && c->first)) && !begins && c->text[0] != ' ')
    tws_text_add_bytes(&made, s->content, size);
  for (size_t i = 0; i < c->length; i++) {
    if (c->text[i] == ' ')
      tws_text_add_bytes(&made, s->content, size);
    else
      tws_text_add_bytes(&made, c->text + i, 1);
  }
  tws_code code = made.failed ? tws_no_token_memory(err) : TWS_OK;
  c->text = made.data;
  c->length = made.length;
  if (code == TWS_OK && !s->split) {
    c->end = c->length;
    code = flush(c, err);
  }
  size_t done = 0;
  for (size_t i = 0; s->split && code == TWS_OK && i + size <= c->length;) {
    if (memcmp(c->text + i, s->content, size) != 0) {
      i += (size_t)tws_utf8_length(c->text + i);
      continue;
    }
    code = add_piece(c, done, i, 0, TWS_MERGED_WITH_NEXT, err);
    if (code == TWS_OK) code = add_piece(c, i, i + size, 1, TWS_MERGED_WITH_NEXT, err);
    done = i += size;
  }
  if (s->split && code == TWS_OK) code = add_piece(c, done, c->length, 0, TWS_MERGED_WITH_NEXT, err);
  if (s->split && code == TWS_OK) code = flush(c, err);
  tws_text_free(&made);
  return code;
}

tws_code tws_split(tws_token_steps *steps, int from, const char *text, size_t length, int first, tws_word_user word,
                   void *user, tws_error *err) {
  if (length == 0) return TWS_OK;
  if (from == steps->count) return word(user, text, length, err);
  const tws_token_step *s = &steps->step[from];
  cutter c = {.steps = steps, .step = from, .text = text, .length = length, .first = first, .word = word, .user = user};
  switch ((enum kind)s->kind) {
    case SPLIT_ByteLevel:
      return byte_level(steps, from, text, length, word, user, err);
    case SPLIT_Metaspace:
      return metaspace(&c, s, err);
    case SPLIT_WhitespaceSplit:
      return cut_by_class(&c, tws_is_space, TWS_REMOVED, err);
    case SPLIT_BertPreTokenizer:
      return cut_words(&c, err);
    case SPLIT_Digits:
      return cut_by_class(&c, tws_is_numeric, s->behavior, err);
    case SPLIT_Punctuation:
      return cut_by_class(&c, tws_is_punctuation, s->behavior, err);
    case SPLIT_Split:
    case SPLIT_Whitespace:
      break;
  }
  return cut_by_pattern(&c, s, err);
}
