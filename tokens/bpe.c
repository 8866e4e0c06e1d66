/* Byte-pair encoding: repeatedly merges the adjacent pair of a word's symbols that has the lowest rank (of equal ranks
 * the leftmost), until no pair has a rank. */
#include <string.h>

#include "tokens/internal.h"

enum { MOST_DECORATION = 64 }; /* bytes added to every character of a word */

/* ---- reading ---- */

static tws_code read_vocabulary(const tws_json *json, const cJSON *list, tws_token_model *m, tws_error *err) {
  const cJSON *one;
  if (!cJSON_IsObject(list)) return tws_json_fail(json, list, err, NULL, "\"vocab\" must be an object");
  cJSON_ArrayForEach(one, list) {
    int64_t id = -1;
    if (!tws_json_integer(json, one, &id, NULL) || id < 0 || id >= TWS_MOST_TOKENS)
      return tws_json_fail(json, one, err, NULL, "a token's number must be below %d", TWS_MOST_TOKENS);
    TWS_TRY(tws_vocabulary_add(&m->vocabulary, one->string, strlen(one->string), (int32_t)id, err));
  }
  return TWS_OK;
}

static tws_code add_merge(const tws_json *json, const cJSON *item, tws_token_model *m, const char *a, size_t a_length,
                          const char *b, size_t b_length, int32_t rank, tws_error *err) {
  const size_t skip = m->prefix ? strlen(m->prefix) : 0;
  m->word.length = 0;
  tws_text_add_bytes(&m->word, a, a_length);
  tws_text_add_bytes(&m->word, b + (skip < b_length ? skip : b_length), skip < b_length ? b_length - skip : 0);
  if (m->word.failed) return tws_no_token_memory(err);
  const int32_t left = tws_vocabulary_find(&m->vocabulary, a, a_length);
  const int32_t right = tws_vocabulary_find(&m->vocabulary, b, b_length);
  const int32_t both = tws_vocabulary_find(&m->vocabulary, m->word.data, m->word.length);
  if (left < 0 || right < 0 || both < 0)
    return tws_json_fail(json, item, err, "the file is damaged", "merge %d has a part that is no token", rank + 1);
  return tws_pair_add(&m->merges, (uint32_t)left, (uint32_t)right, rank, both, err);
}

/* Reads the list of merges; each is "a b" or ["a", "b"]. */
static tws_code read_merges(const tws_json *json, const cJSON *list, tws_token_model *m, tws_error *err) {
  const cJSON *one;
  int32_t rank = 0;
  if (!cJSON_IsArray(list)) return tws_json_fail(json, list, err, NULL, "\"merges\" must be a list");
  cJSON_ArrayForEach(one, list) {
    const cJSON *a = cJSON_IsArray(one) ? one->child : NULL, *b = a ? a->next : NULL;
    const char *space = cJSON_IsString(one) ? strchr(one->valuestring, ' ') : NULL;
    if (space && !strchr(space + 1, ' '))
      TWS_TRY(add_merge(json, one, m, one->valuestring, (size_t)(space - one->valuestring), space + 1,
                        strlen(space + 1), rank++, err));
    else if (b && !b->next && cJSON_IsString(a) && cJSON_IsString(b))
      TWS_TRY(add_merge(json, one, m, a->valuestring, strlen(a->valuestring), b->valuestring, strlen(b->valuestring),
                        rank++, err));
    else
      return tws_json_fail(json, one, err, NULL, "a merge must be \"a b\" or [\"a\", \"b\"]");
  }
  return TWS_OK;
}

tws_code tws_bpe_read(const tws_json *json, const cJSON *item, tws_token_model *m, tws_error *err) {
  const char *unknown = NULL;
  double dropout = 0;
  TWS_TRY(read_vocabulary(json, cJSON_GetObjectItemCaseSensitive(item, "vocab"), m, err));
  TWS_TRY(tws_json_string(json, item, "unk_token", 0, NULL, &unknown, err));
  TWS_TRY(tws_json_string(json, item, "continuing_subword_prefix", 0, NULL, &m->prefix, err));
  TWS_TRY(tws_json_string(json, item, "end_of_word_suffix", 0, NULL, &m->suffix, err));
  TWS_TRY(tws_json_number(json, item, "dropout", 0, 0, 1, 0, &dropout, err));
  TWS_TRY(tws_step_flag(json, item, "fuse_unk", 0, &m->fuse_unknown, err));
  TWS_TRY(tws_step_flag(json, item, "byte_fallback", 0, &m->byte_fallback, err));
  TWS_TRY(tws_step_flag(json, item, "ignore_merges", 0, &m->ignore_merges, err));
  if (dropout > 0)
    return tws_json_fail(json, item, err, "set it to null", "\"dropout\": tokens would be others every time");
  if (m->prefix && !*m->prefix) m->prefix = NULL;
  if (m->suffix && !*m->suffix) m->suffix = NULL;
  if ((m->prefix && strlen(m->prefix) > MOST_DECORATION) || (m->suffix && strlen(m->suffix) > MOST_DECORATION))
    return tws_json_fail(json, item, err, "published ones have \"##\" and \"</w>\"",
                         "what is written before or after a part of a word has at most %d bytes", MOST_DECORATION);
  m->unknown = unknown ? tws_vocabulary_find(&m->vocabulary, unknown, strlen(unknown)) : -1;
  return read_merges(json, cJSON_GetObjectItemCaseSensitive(item, "merges"), m, err);
}

/* ---- encoding ---- */

static int before(const tws_bpe_merge *a, const tws_bpe_merge *b) {
  return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static tws_code push(tws_token_model *m, tws_bpe_merge merge, tws_error *err) {
  if (tws_reserve(&m->heap, &m->heap_room, m->heap_count + 1, sizeof *m->heap)) return tws_no_token_memory(err);
  size_t i = m->heap_count++;
  for (; i > 0 && before(&merge, &m->heap[(i - 1) / 2]); i = (i - 1) / 2) m->heap[i] = m->heap[(i - 1) / 2];
  m->heap[i] = merge;
  return TWS_OK;
}

static tws_bpe_merge pop(tws_token_model *m) {
  const tws_bpe_merge top = m->heap[0], last = m->heap[--m->heap_count];
  size_t i = 0;
  for (size_t child; (child = 2 * i + 1) < m->heap_count; i = child) {
    if (child + 1 < m->heap_count && before(&m->heap[child + 1], &m->heap[child])) child++;
    if (!before(&m->heap[child], &last)) break;
    m->heap[i] = m->heap[child];
  }
  m->heap[i] = last;
  return top;
}

/* Adds the pair that begins at a symbol to the heap if the pair has a rank. */
static tws_code push_pair(tws_token_model *m, int32_t at, tws_error *err) {
  const int32_t next = at >= 0 ? m->symbols[at].next : -1;
  if (next < 0) return TWS_OK;
  const struct tws_pair_slot *found =
      tws_pair_find(&m->merges, (uint32_t)m->symbols[at].id, (uint32_t)m->symbols[next].id);
  return found ? push(m, (tws_bpe_merge){found->rank, at, found->id}, err) : TWS_OK;
}

static tws_code merge_all(tws_token_model *m, size_t count, tws_error *err) {
  tws_bpe_symbol *s = m->symbols;
  m->heap_count = 0;
  for (size_t i = 0; i < count; i++) {
    s[i].previous = (int32_t)i - 1;
    s[i].next = i + 1 < count ? (int32_t)i + 1 : -1;
  }
  for (size_t i = 0; i + 1 < count; i++) TWS_TRY(push_pair(m, (int32_t)i, err));
  while (m->heap_count > 0) {
    const tws_bpe_merge top = pop(m);
    const int32_t next = s[top.at].id >= 0 ? s[top.at].next : -1;
    if (next < 0) continue;
    const struct tws_pair_slot *now = tws_pair_find(&m->merges, (uint32_t)s[top.at].id, (uint32_t)s[next].id);
    if (!now || now->id != top.id) continue;
    s[top.at].id = top.id;
    s[top.at].next = s[next].next;
    s[next].id = -1;
    if (s[top.at].next >= 0) s[s[top.at].next].previous = top.at;
    TWS_TRY(push_pair(m, s[top.at].previous, err));
    TWS_TRY(push_pair(m, top.at, err));
  }
  return TWS_OK;
}

typedef struct symbols {
  tws_token_model *model;
  size_t count;
  int pending; /* 1: unknown characters are not added yet */
} symbols;

static tws_code add_symbol(symbols *list, int32_t id, tws_error *err) {
  tws_token_model *m = list->model;
  if (tws_reserve(&m->symbols, &m->symbol_room, list->count + 1, sizeof *m->symbols)) return tws_no_token_memory(err);
  m->symbols[list->count++].id = id;
  return TWS_OK;
}

/* Writes a character to m->word with the prefix or suffix that it has in the vocabulary and returns 1; returns 0 if it
 * has neither. */
static int decorate(tws_token_model *m, const char *at, size_t length, int is_first, int is_last) {
  const int prefix = m->prefix && !is_first, suffix = m->suffix && is_last;
  if (!prefix && !suffix) return 0;
  m->word.length = 0;
  if (prefix) tws_text_add_bytes(&m->word, m->prefix, strlen(m->prefix));
  tws_text_add_bytes(&m->word, at, length);
  if (suffix) tws_text_add_bytes(&m->word, m->suffix, strlen(m->suffix));
  return 1;
}

/* Adds a character that is not in the vocabulary: as its bytes, as the unknown token, or not at all. */
static tws_code add_unknown(symbols *list, const char *text, size_t length, tws_error *err) {
  tws_token_model *m = list->model;
  int known = m->byte_fallback;
  for (size_t i = 0; i < length && known; i++) known = m->bytes[(unsigned char)text[i]] >= 0;
  for (size_t i = 0; i < length && known; i++) TWS_TRY(add_symbol(list, m->bytes[(unsigned char)text[i]], err));
  if (known || m->unknown < 0) return TWS_OK;
  if (list->pending && !m->fuse_unknown) TWS_TRY(add_symbol(list, m->unknown, err));
  list->pending = 1;
  return TWS_OK;
}

tws_code tws_bpe_encode(tws_token_model *m, const char *word, size_t length, tws_token_list *list, tws_error *err) {
  symbols made = {.model = m};
  if (length > INT32_MAX / 2) return tws_fail(err, TWS_INVALID, "cut the text into documents", "a word is too long");
  if (m->ignore_merges) {
    const int32_t whole = tws_vocabulary_find(&m->vocabulary, word, length);
    if (whole >= 0) return tws_token_add(list, whole, err);
  }
  for (size_t i = 0; i < length;) {
    const size_t n = (size_t)tws_utf8_length(word + i);
    const int longer = decorate(m, word + i, n, i == 0, i + n >= length);
    if (m->word.failed) return tws_no_token_memory(err);
    const char *text = longer ? m->word.data : word + i;
    const size_t size = longer ? m->word.length : n;
    const int32_t id = tws_vocabulary_find(&m->vocabulary, text, size);
    i += n;
    if (id < 0) {
      TWS_TRY(add_unknown(&made, text, size, err));
      continue;
    }
    if (made.pending) TWS_TRY(add_symbol(&made, m->unknown, err));
    made.pending = 0;
    TWS_TRY(add_symbol(&made, id, err));
  }
  if (made.pending) TWS_TRY(add_symbol(&made, m->unknown, err));
  TWS_TRY(merge_all(m, made.count, err));
  for (int32_t i = made.count ? 0 : -1; i >= 0; i = m->symbols[i].next)
    TWS_TRY(tws_token_add(list, m->symbols[i].id, err));
  return TWS_OK;
}
