/* Unigram language models: of all ways to split a word into tokens, the one with the largest sum of log probabilities
 * is chosen. */
#include <float.h>
#include <string.h>

#include "tokens/internal.h"

/* ---- reading ---- */

static tws_code add_to_trie(tws_token_model *m, const char *piece, int32_t id, tws_error *err) {
  uint32_t node = 0;
  for (const char *at = piece; *at; at++) {
    const uint32_t byte = (unsigned char)*at;
    const struct tws_pair_slot *found = tws_pair_find(&m->trie, node, byte);
    const int32_t token = at[1] ? (found ? found->rank : -1) : id;
    const int32_t next = found ? found->id : ++m->nodes;
    TWS_TRY(tws_pair_add(&m->trie, node, byte, token, next, err));
    node = (uint32_t)next;
  }
  return TWS_OK;
}

tws_code tws_unigram_read(const tws_json *json, const cJSON *item, tws_token_model *m, tws_error *err) {
  const cJSON *list = cJSON_GetObjectItemCaseSensitive(item, "vocab"), *one;
  int64_t unknown = -1;
  int32_t id = 0;
  if (!cJSON_IsArray(list)) return tws_json_fail(json, item, err, NULL, "\"vocab\" must be a list of [token, score]");
  const int count = cJSON_GetArraySize(list);
  m->kind = TWS_UNIGRAM;
  m->least = DBL_MAX;
  m->scores = tws_calloc((size_t)count + 1, sizeof *m->scores);
  if (!m->scores) return tws_no_token_memory(err);
  TWS_TRY(tws_json_int(json, item, "unk_id", 0, 0, count, -1, &unknown, err));
  TWS_TRY(tws_step_flag(json, item, "byte_fallback", 0, &m->byte_fallback, err));
  if (unknown >= count) return tws_json_fail(json, item, err, NULL, "\"unk_id\" is no token of the vocabulary");
  m->unknown = (int32_t)unknown;
  cJSON_ArrayForEach(one, list) {
    const cJSON *piece = cJSON_IsArray(one) ? one->child : NULL, *score = piece ? piece->next : NULL;
    if (!cJSON_IsString(piece) || !cJSON_IsNumber(score) || score->next)
      return tws_json_fail(json, one, err, NULL, "expected [token, score]");
    m->scores[id] = score->valuedouble;
    if (m->scores[id] < m->least) m->least = m->scores[id];
    TWS_TRY(tws_vocabulary_add(&m->vocabulary, piece->valuestring, strlen(piece->valuestring), id, err));
    TWS_TRY(add_to_trie(m, piece->valuestring, id++, err));
  }
  return TWS_OK;
}

/* ---- encoding ---- */

static void offer(struct tws_unigram_node *to, double score, int32_t id, size_t from) {
  if (to->from != UINT32_MAX && !(score > to->score)) return;
  *to = (struct tws_unigram_node){score, id, (uint32_t)from};
}

/* The score of an unknown character is that of the least probable token minus this penalty. */
static const double PENALTY = 10.0;

static tws_code search(tws_token_model *m, const char *word, size_t length, tws_error *err) {
  if (tws_reserve(&m->best, &m->best_room, length + 1, sizeof *m->best)) return tws_no_token_memory(err);
  for (size_t i = 0; i <= length; i++) m->best[i] = (struct tws_unigram_node){0, -1, UINT32_MAX};
  for (size_t at = 0; at < length;) {
    const size_t character = (size_t)tws_utf8_length(word + at);
    const double here = m->best[at].score;
    uint32_t node = 0;
    int single = 0;
    for (size_t end = at; end < length;) {
      const struct tws_pair_slot *found = tws_pair_find(&m->trie, node, (unsigned char)word[end]);
      if (!found) break;
      node = (uint32_t)found->id;
      end++;
      if (found->rank < 0) continue;
      offer(&m->best[end], m->scores[found->rank] + here, found->rank, at);
      single |= end - at == character;
    }
    if (!single) {
      if (m->unknown < 0)
        return tws_fail(err, TWS_INVALID, NULL,
                        "the tokenizer has no unknown token, and the text has a character that "
                        "is none of its tokens");
      offer(&m->best[at + character], m->least - PENALTY + here, m->unknown, at);
    }
    at += character;
  }
  return TWS_OK;
}

/* Adds a run of unknown characters as one unknown token, or as its bytes. */
static tws_code add_unknown(tws_token_model *m, const char *text, size_t length, tws_token_list *list, tws_error *err) {
  int added = 0;
  const int32_t id = tws_vocabulary_find(&m->vocabulary, text, length);
  if (id >= 0) return tws_token_add(list, id, err);
  if (m->byte_fallback) TWS_TRY(tws_add_bytes(m, text, length, list, &added, err));
  return added ? TWS_OK : tws_token_add(list, m->unknown, err);
}

tws_code tws_unigram_encode(tws_token_model *m, const char *word, size_t length, tws_token_list *list, tws_error *err) {
  if (length >= UINT32_MAX) return tws_fail(err, TWS_INVALID, "cut the text into documents", "a word is too long");
  TWS_TRY(search(m, word, length, err));
  /* Reverse the path in place: `from` of a node becomes the end of the next token. */
  uint32_t next = UINT32_MAX;
  for (uint32_t at = (uint32_t)length; at != UINT32_MAX && at > 0;) {
    const uint32_t from = m->best[at].from;
    m->best[at].from = next;
    next = at;
    at = from;
  }
  size_t begin = 0;
  for (uint32_t end = next; end != UINT32_MAX;) {
    const int32_t id = m->best[end].id;
    uint32_t after = m->best[end].from;
    if (id != m->unknown || m->unknown < 0) {
      const int32_t found = tws_vocabulary_find(&m->vocabulary, word + begin, end - begin);
      TWS_TRY(tws_token_add(list, found >= 0 ? found : id, err));
    } else {
      while (after != UINT32_MAX && m->best[after].id == m->unknown) {
        end = after;
        after = m->best[after].from;
      }
      TWS_TRY(add_unknown(m, word + begin, end - begin, list, err));
    }
    begin = end;
    end = after;
  }
  return TWS_OK;
}
