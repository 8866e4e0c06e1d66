/* WordPiece (Wu et al. 2016, arXiv:1609.08144, as in BERT): a word is split into the longest possible tokens from its
 * beginning on; a word that cannot be split is the unknown token. */
#include <string.h>

#include "tokens/internal.h"

tws_code tws_wordpiece_read(const tws_json *json, const cJSON *item, tws_token_model *m, tws_error *err) {
  const cJSON *vocabulary = cJSON_GetObjectItemCaseSensitive(item, "vocab"), *one;
  const char *unknown = NULL;
  int64_t most = 0;
  m->kind = TWS_WORDPIECE;
  TWS_TRY(tws_json_string(json, item, "unk_token", 0, "[UNK]", &unknown, err));
  TWS_TRY(tws_json_string(json, item, "continuing_subword_prefix", 0, "##", &m->prefix, err));
  TWS_TRY(tws_json_int(json, item, "max_input_chars_per_word", 0, 0, 1000, 100, &most, err));
  m->most_characters = (int32_t)most;
  if (!cJSON_IsObject(vocabulary)) return tws_json_fail(json, item, err, NULL, "\"vocab\" must be an object");
  cJSON_ArrayForEach(one, vocabulary) {
    int64_t id;
    if (!tws_json_integer(json, one, &id, NULL) || id < 0 || id >= TWS_MOST_TOKENS)
      return tws_json_fail(json, one, err, NULL, "a token's number must be below %d", TWS_MOST_TOKENS);
    const size_t length = strlen(one->string);
    if (length > m->longest) m->longest = length;
    TWS_TRY(tws_vocabulary_add(&m->vocabulary, one->string, length, (int32_t)id, err));
  }
  m->unknown = tws_vocabulary_find(&m->vocabulary, unknown, strlen(unknown));
  if (m->unknown < 0)
    return tws_json_fail(json, item, err, "add it to \"vocab\"", "the unknown token \"%.40s\" is no token of \"vocab\"",
                         unknown);
  return TWS_OK;
}

/* Returns the longest token that begins at `at`, or -1; sets *end to the offset at which it ends. */
static int32_t longest_at(tws_token_model *m, const char *word, size_t length, size_t at, size_t *end) {
  const size_t prefix = at > 0 ? strlen(m->prefix) : 0;
  if (m->longest < prefix) return -1;
  size_t size = length - at < m->longest - prefix ? length - at : m->longest - prefix;
  m->word.length = 0;
  tws_text_add_bytes(&m->word, m->prefix, prefix);
  tws_text_add_bytes(&m->word, word + at, size);
  for (; size > 0 && !m->word.failed; size--) {
    if (at + size < length && ((unsigned char)word[at + size] & 0xc0) == 0x80) continue; /* inside a character */
    const int32_t id = tws_vocabulary_find(&m->vocabulary, m->word.data, prefix + size);
    *end = at + size;
    if (id >= 0) return id;
  }
  return -1;
}

tws_code tws_wordpiece_encode(tws_token_model *m, const char *word, size_t length, tws_token_list *list,
                              tws_error *err) {
  const size_t before = list->count;
  int64_t characters = 0;
  for (size_t i = 0; i < length; i++) characters += ((unsigned char)word[i] & 0xc0) != 0x80;
  if (characters > m->most_characters) return tws_token_add(list, m->unknown, err);
  for (size_t at = 0, end = 0; at < length; at = end) {
    const int32_t id = longest_at(m, word, length, at, &end);
    if (m->word.failed) return tws_no_token_memory(err);
    if (id < 0) {
      list->count = before;
      return tws_token_add(list, m->unknown, err);
    }
    TWS_TRY(tws_token_add(list, id, err));
  }
  return TWS_OK;
}
