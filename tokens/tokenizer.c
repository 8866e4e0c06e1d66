#include <stdio.h>
#include <string.h>

#include "tokens/internal.h"

/* A token whose text is matched literally, before the model splits the rest of the text. */
typedef struct added_token {
  const char *content;
  char *owned; /* the normalized content; NULL: it is not normalized */
  size_t length;
  int32_t id;
  int special, normalized, single_word, strip_left, strip_right;
} added_token;

struct tws_tokenizer {
  tws_json *json; /* owns the strings of the vocabulary */
  tws_token_model model;
  tws_token_steps normalizers, splits, decoders;
  int no_decoder;
  added_token *added;
  size_t added_count, added_room;
  unsigned char starts[256]; /* 1 for each byte with which an added token begins */
  const char **text;         /* [id] text of the token; NULL: none */
  unsigned char *special;
  int64_t vocabulary;
  tws_token_frame frame;
  tws_text normalized;
};

/* ---- reading ---- */

static const cJSON *member(const tws_tokenizer *t, const char *key) {
  return cJSON_GetObjectItemCaseSensitive(t->json->root, key);
}

static tws_code read_model(tws_tokenizer *t, tws_error *err) {
  const cJSON *item = member(t, "model"), *type = cJSON_GetObjectItemCaseSensitive(item, "type");
  if (!cJSON_IsObject(item))
    return tws_json_fail(t->json, t->json->root, err, "give a tokenizer.json of Hugging Face's tokenizers",
                         "there is no \"model\" object");
  /* The oldest files do not name the type of the model. */
  const char *name = cJSON_IsString(type)                               ? type->valuestring
                     : cJSON_GetObjectItemCaseSensitive(item, "merges") ? "BPE"
                                                                        : "Unigram";
  t->model.unknown = -1;
  if (strcmp(name, "BPE") == 0) return tws_bpe_read(t->json, item, &t->model, err);
  if (strcmp(name, "WordPiece") == 0) return tws_wordpiece_read(t->json, item, &t->model, err);
  if (strcmp(name, "Unigram") == 0) return tws_unigram_read(t->json, item, &t->model, err);
  tws_json_fail(t->json, item, err, "use a tokenizer with one of these",
                "a model \"%.40s\": known are BPE, Unigram and WordPiece", name);
  if (err) err->code = TWS_UNSUPPORTED;
  return TWS_UNSUPPORTED;
}

static tws_code read_added(tws_tokenizer *t, tws_error *err) {
  const cJSON *list = member(t, "added_tokens"), *one;
  cJSON_ArrayForEach(one, list) {
    int64_t id = 0;
    added_token a = {0};
    TWS_TRY(tws_json_string(t->json, one, "content", 1, NULL, &a.content, err));
    TWS_TRY(tws_json_int(t->json, one, "id", 1, 0, TWS_MOST_TOKENS - 1, 0, &id, err));
    TWS_TRY(tws_step_flag(t->json, one, "special", 0, &a.special, err));
    TWS_TRY(tws_step_flag(t->json, one, "normalized", 1, &a.normalized, err));
    TWS_TRY(tws_step_flag(t->json, one, "single_word", 0, &a.single_word, err));
    TWS_TRY(tws_step_flag(t->json, one, "lstrip", 0, &a.strip_left, err));
    TWS_TRY(tws_step_flag(t->json, one, "rstrip", 0, &a.strip_right, err));
    a.id = (int32_t)id;
    a.length = strlen(a.content);
    if (a.length == 0) continue;
    if (tws_reserve(&t->added, &t->added_room, t->added_count + 1, sizeof *t->added)) return tws_no_token_memory(err);
    t->added[t->added_count++] = a;
  }
  return TWS_OK;
}

/* Normalizes the added tokens that are searched in normalized text. */
static tws_code normalize_added(tws_tokenizer *t, tws_error *err) {
  for (size_t i = 0; i < t->added_count; i++) {
    added_token *a = &t->added[i];
    if (a->normalized && t->normalizers.count > 0) {
      tws_growth growth = tws_growth_of(a->length);
      TWS_TRY(tws_normalize(&t->normalizers, a->content, a->length, &growth, &t->normalized, err));
      char *copy = tws_calloc(t->normalized.length + 1, 1);
      if (!copy) return tws_no_token_memory(err);
      memcpy(copy, t->normalized.data, t->normalized.length);
      a->content = a->owned = copy;
      a->length = t->normalized.length;
    }
    if (a->length > 0) t->starts[(unsigned char)a->content[0]] = 1;
  }
  return TWS_OK;
}

/* Adds the ids of a special token of a template to one of the frame's lists. */
static tws_code read_special(tws_tokenizer *t, const cJSON *known, const cJSON *one, int32_t *to, int *count,
                             tws_error *err) {
  const cJSON *id,
      *name = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(one, "SpecialToken"), "id");
  const cJSON *ids = cJSON_GetObjectItemCaseSensitive(
      cJSON_IsString(name) ? cJSON_GetObjectItemCaseSensitive(known, name->valuestring) : NULL, "ids");
  if (!cJSON_IsArray(ids)) return tws_json_fail(t->json, one, err, NULL, "a special token without \"ids\"");
  cJSON_ArrayForEach(id, ids) {
    int64_t number;
    if (!tws_json_integer(t->json, id, &number, NULL) || number < 0 || number >= TWS_MOST_TOKENS ||
        *count == TWS_MOST_AROUND)
      return tws_json_fail(t->json, id, err, NULL, "expected at most %d tokens", TWS_MOST_AROUND);
    to[(*count)++] = (int32_t)number;
  }
  return TWS_OK;
}

/* Reads the tokens before and after one text from the template "single", and those between two from "pair". */
static tws_code read_template(tws_tokenizer *t, const cJSON *item, tws_error *err) {
  const cJSON *known = cJSON_GetObjectItemCaseSensitive(item, "special_tokens"), *one;
  tws_token_frame *f = &t->frame;
  int texts = 0;
  cJSON_ArrayForEach(one, cJSON_GetObjectItemCaseSensitive(item, "single")) {
    if (!cJSON_GetObjectItemCaseSensitive(one, "SpecialToken"))
      texts = 1;
    else
      TWS_TRY(
          read_special(t, known, one, texts ? f->behind : f->before, texts ? &f->behind_count : &f->before_count, err));
  }
  texts = 0;
  cJSON_ArrayForEach(one, cJSON_GetObjectItemCaseSensitive(item, "pair")) {
    const cJSON *text = cJSON_GetObjectItemCaseSensitive(one, "Sequence"),
                *type = cJSON_GetObjectItemCaseSensitive(text, "type_id");
    if (text && texts++ == 1) f->second_type = cJSON_IsNumber(type) && type->valuedouble == 1.0;
    if (!text && texts == 1) TWS_TRY(read_special(t, known, one, f->between, &f->between_count, err));
  }
  return TWS_OK;
}

static tws_code read_around(tws_tokenizer *t, const cJSON *item, const char *key, int32_t *to, int *count,
                            tws_error *err) {
  const cJSON *pair = cJSON_GetObjectItemCaseSensitive(item, key), *id = pair && pair->child ? pair->child->next : NULL;
  int64_t number;
  if (!tws_json_integer(t->json, id, &number, NULL) || number < 0 || number >= TWS_MOST_TOKENS ||
      *count == TWS_MOST_AROUND)
    return tws_json_fail(t->json, item, err, NULL, "\"%s\" must be [token, number]", key);
  to[(*count)++] = (int32_t)number;
  return TWS_OK;
}

static tws_code read_processor(tws_tokenizer *t, const cJSON *item, tws_error *err) {
  const char *type = NULL;
  const cJSON *one;
  if (!item || cJSON_IsNull(item)) return TWS_OK;
  TWS_TRY(tws_json_string(t->json, item, "type", 1, NULL, &type, err));
  if (strcmp(type, "ByteLevel") == 0) return TWS_OK;
  if (strcmp(type, "TemplateProcessing") == 0) return read_template(t, item, err);
  if (strcmp(type, "Sequence") == 0) {
    cJSON_ArrayForEach(one, cJSON_GetObjectItemCaseSensitive(item, "processors")) TWS_TRY(read_processor(t, one, err));
    return TWS_OK;
  }
  if (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0) {
    tws_token_frame *f = &t->frame;
    const int doubled = type[0] == 'R'; /* RoBERTa has two separators between texts, and one segment */
    TWS_TRY(read_around(t, item, "cls", f->before, &f->before_count, err));
    TWS_TRY(read_around(t, item, "sep", f->behind, &f->behind_count, err));
    for (int i = 0; i <= doubled; i++) TWS_TRY(read_around(t, item, "sep", f->between, &f->between_count, err));
    f->second_type = !doubled;
    return TWS_OK;
  }
  return tws_json_fail(t->json, item, err, NULL, "a post-processor \"%.40s\" is not known", type);
}

/* Lists the texts of all tokens by id, and the ids of bytes. */
static tws_code list_tokens(tws_tokenizer *t, tws_error *err) {
  const tws_vocabulary *v = &t->model.vocabulary;
  for (size_t i = 0; i < v->room; i++)
    if (v->slots[i].text && v->slots[i].id >= t->vocabulary) t->vocabulary = v->slots[i].id + 1;
  for (size_t i = 0; i < t->added_count; i++)
    if (t->added[i].id >= t->vocabulary) t->vocabulary = t->added[i].id + 1;
  for (int i = 0; i < t->frame.before_count; i++)
    if (t->frame.before[i] >= t->vocabulary) t->vocabulary = t->frame.before[i] + 1;
  for (int i = 0; i < t->frame.behind_count; i++)
    if (t->frame.behind[i] >= t->vocabulary) t->vocabulary = t->frame.behind[i] + 1;
  t->text = tws_calloc((size_t)t->vocabulary + 1, sizeof *t->text);
  t->special = tws_calloc((size_t)t->vocabulary + 1, 1);
  if (!t->text || !t->special) return tws_no_token_memory(err);
  for (size_t i = 0; i < v->room; i++)
    if (v->slots[i].text) t->text[v->slots[i].id] = v->slots[i].text;
  for (size_t i = 0; i < t->added_count; i++) {
    t->text[t->added[i].id] = t->added[i].content;
    t->special[t->added[i].id] = (unsigned char)t->added[i].special;
  }
  for (int b = 0; b < 256; b++) {
    char name[8];
    const int length = snprintf(name, sizeof name, "<0x%02X>", b);
    t->model.bytes[b] = tws_vocabulary_find(v, name, (size_t)length);
  }
  return TWS_OK;
}

static tws_code read_all(tws_tokenizer *t, tws_error *err) {
  const cJSON *decoder = member(t, "decoder");
  TWS_TRY(read_model(t, err));
  TWS_TRY(read_added(t, err));
  TWS_TRY(tws_normalizers_read(t->json, member(t, "normalizer"), &t->normalizers, err));
  TWS_TRY(tws_splits_read(t->json, member(t, "pre_tokenizer"), &t->splits, err));
  TWS_TRY(tws_decoders_read(t->json, decoder, &t->decoders, err));
  TWS_TRY(read_processor(t, member(t, "post_processor"), err));
  t->no_decoder = !decoder || cJSON_IsNull(decoder);
  TWS_TRY(list_tokens(t, err)); /* ids by the names in the file */
  return normalize_added(t, err);
}

static tws_code make(tws_json *json, tws_tokenizer **out, tws_error *err) {
  tws_tokenizer *t = tws_calloc(1, sizeof *t);
  if (!t) {
    tws_json_destroy(json);
    return tws_no_token_memory(err);
  }
  t->json = json;
  const tws_code code = read_all(t, err);
  if (code == TWS_OK)
    *out = t;
  else
    tws_tokenizer_close(t);
  return code;
}

tws_code tws_tokenizer_open(const char *path, tws_tokenizer **out, tws_error *err) {
  tws_json *json = NULL;
  *out = NULL;
  TWS_TRY(tws_json_read(path, &json, err));
  return make(json, out, err);
}

tws_code tws_tokenizer_parse(const char *text, size_t length, const char *name, tws_tokenizer **out, tws_error *err) {
  tws_json *json = NULL;
  *out = NULL;
  TWS_TRY(tws_json_parse(text, length, name, &json, err));
  return make(json, out, err);
}

void tws_tokenizer_close(tws_tokenizer *t) {
  if (!t) return;
  for (size_t i = 0; i < t->added_count; i++) tws_free(t->added[i].owned);
  tws_steps_free(&t->normalizers);
  tws_steps_free(&t->splits);
  tws_steps_free(&t->decoders);
  tws_free(t->model.vocabulary.slots);
  tws_free(t->model.merges.slots);
  tws_free(t->model.trie.slots);
  tws_free(t->model.symbols);
  tws_free(t->model.heap);
  tws_free(t->model.scores);
  tws_free(t->model.best);
  tws_text_free(&t->model.word);
  tws_text_free(&t->normalized);
  tws_free(t->added);
  tws_free(t->text);
  tws_free(t->special);
  tws_json_destroy(t->json);
  tws_free(t);
}

/* ---- properties ---- */

int64_t tws_tokenizer_vocabulary(const tws_tokenizer *t) {
  return t->vocabulary;
}

int64_t tws_tokenizer_find(const tws_tokenizer *t, const char *token) {
  for (size_t i = 0; i < t->added_count; i++)
    if (strcmp(t->text[t->added[i].id], token) == 0) return t->added[i].id;
  return tws_vocabulary_find(&t->model.vocabulary, token, strlen(token));
}

int64_t tws_tokenizer_end(const tws_tokenizer *t) {
  static const char *const names[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const int64_t id = tws_tokenizer_find(t, names[i]);
    if (id >= 0) return id;
  }
  return -1;
}

tws_code tws_token_add(tws_token_list *list, int64_t id, tws_error *err) {
  if (tws_reserve(&list->id, &list->capacity, list->count + 1, sizeof *list->id)) return tws_no_token_memory(err);
  list->id[list->count++] = (int32_t)id;
  return TWS_OK;
}

void tws_token_free(tws_token_list *list) {
  tws_free(list->id);
  *list = (tws_token_list){0};
}

tws_code tws_add_bytes(const tws_token_model *m, const char *text, size_t length, tws_token_list *list, int *added,
                       tws_error *err) {
  *added = 0;
  for (size_t i = 0; i < length; i++)
    if (m->bytes[(unsigned char)text[i]] < 0) return TWS_OK;
  for (size_t i = 0; i < length; i++) TWS_TRY(tws_token_add(list, m->bytes[(unsigned char)text[i]], err));
  *added = 1;
  return TWS_OK;
}

/* ---- encoding ---- */

typedef struct encoder {
  tws_tokenizer *t;
  tws_token_list *list;
  tws_growth growth; /* sizes of the complete text */
} encoder;

static tws_code encode_word(void *user, const char *word, size_t length, tws_error *err) {
  const encoder *e = user;
  tws_token_model *m = &e->t->model;
  return m->kind == TWS_WORDPIECE ? tws_wordpiece_encode(m, word, length, e->list, err)
         : m->kind == TWS_UNIGRAM ? tws_unigram_encode(m, word, length, e->list, err)
                                  : tws_bpe_encode(m, word, length, e->list, err);
}

static int is_word(int32_t c) {
  return c == '_' || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
         (c >= 128 && !tws_is_space(c) && !tws_is_punctuation(c));
}

/* Returns the character that ends before `end`; the function below returns the character that begins at `at`. */
static int32_t character_before(const char *text, size_t end) {
  int32_t c = ' ';
  int bad;
  size_t begin = end;
  while (begin > 0 && ((unsigned char)text[--begin] & 0xc0) == 0x80) continue;
  if (begin < end) tws_utf8_read(text + begin, end - begin, &c, &bad);
  return c;
}

static int32_t character_at(const char *text, size_t length, size_t at) {
  int32_t c = ' ';
  int bad;
  if (at < length) tws_utf8_read(text + at, length - at, &c, &bad);
  return c;
}

/* Returns the longest added token of this kind at a position, or NULL. */
static const added_token *added_at(const tws_tokenizer *t, const char *text, size_t length, size_t at, int normalized) {
  const added_token *best = NULL;
  if (!t->starts[(unsigned char)text[at]]) return NULL;
  for (size_t i = 0; i < t->added_count; i++) {
    const added_token *a = &t->added[i];
    if (a->normalized != normalized || a->length > length - at || (best && a->length <= best->length)) continue;
    if (a->length > 0 && memcmp(text + at, a->content, a->length) == 0) best = a;
  }
  return best;
}

static int stands_alone(const added_token *a, const char *text, size_t length, size_t at) {
  if (!a->single_word) return 1;
  return (at == 0 || !is_word(character_before(text, at))) &&
         (at + a->length == length || !is_word(character_at(text, length, at + a->length)));
}

/* Splits a text at added tokens; calls `between` with each part that is no added token, and its position. */
static tws_code find_added(encoder *e, const char *text, size_t length, int normalized, int first,
                           tws_code (*between)(encoder *, const char *, size_t, int first, tws_error *),
                           tws_error *err) {
  size_t done = 0;
  for (size_t at = 0; at < length;) {
    const added_token *a = added_at(e->t, text, length, at, normalized);
    if (!a) {
      at += (size_t)tws_utf8_length(text + at);
      continue;
    }
    size_t begin = at, end = at + a->length;
    at = end;
    if (!stands_alone(a, text, length, begin)) continue;
    while (a->strip_left && begin > done && tws_is_space(character_before(text, begin)))
      while (((unsigned char)text[--begin] & 0xc0) == 0x80) continue;
    while (a->strip_right && end < length && tws_is_space(character_at(text, length, end)))
      end += (size_t)tws_utf8_length(text + end);
    if (begin > done) TWS_TRY(between(e, text + done, begin - done, first && done == 0, err));
    TWS_TRY(tws_token_add(e->list, a->id, err));
    done = end;
    if (at < end) at = end;
  }
  return done < length ? between(e, text + done, length - done, first && done == 0, err) : TWS_OK;
}

static tws_code encode_plain(encoder *e, const char *text, size_t length, int first, tws_error *err) {
  return tws_split(&e->t->splits, 0, text, length, first, encode_word, e, err);
}

static tws_code encode_part(encoder *e, const char *text, size_t length, int first, tws_error *err) {
  tws_tokenizer *t = e->t;
  if (t->normalizers.count > 0) {
    TWS_TRY(tws_normalize(&t->normalizers, text, length, &e->growth, &t->normalized, err));
    text = t->normalized.data;
    length = t->normalized.length;
  }
  return find_added(e, text, length, 1, first, encode_plain, err);
}

tws_code tws_tokenizer_encode(tws_tokenizer *t, const char *text, size_t length, int special, tws_token_list *list,
                              tws_error *err) {
  encoder e = {t, list, tws_growth_of(length)};
  const size_t bad = tws_utf8_check(text, length);
  if (bad != SIZE_MAX)
    return tws_fail(err, TWS_INVALID, "convert it to UTF-8, for example with iconv", "byte %zu is not UTF-8", bad);
  for (int i = 0; special && i < t->frame.before_count; i++) TWS_TRY(tws_token_add(list, t->frame.before[i], err));
  TWS_TRY(find_added(&e, text, length, 0, 1, encode_part, err));
  for (int i = 0; special && i < t->frame.behind_count; i++) TWS_TRY(tws_token_add(list, t->frame.behind[i], err));
  return TWS_OK;
}

/* ---- decoding ---- */

static tws_code check_lengths(const tws_texts *texts, tws_error *err) {
  size_t bytes = 0;
  for (size_t i = 0; i < texts->count; i++) bytes += texts->item[i].length;
  if (bytes <= TWS_GROWTH_BYTES + TWS_TOKEN_BYTES * texts->count) return TWS_OK;
  return tws_fail(err, TWS_INVALID, "use a tokenizer of shorter tokens",
                  "%zu tokens are %zu bytes of text, more than %d bytes a token", texts->count, bytes, TWS_TOKEN_BYTES);
}

tws_code tws_tokenizer_decode(tws_tokenizer *t, const int32_t *id, size_t count, int skip_special, char **text,
                              size_t *length, tws_error *err) {
  tws_texts texts = {0};
  tws_text out = {0};
  tws_arena *arena = tws_arena_create();
  tws_code code = arena ? TWS_OK : tws_no_token_memory(err);
  if (code == TWS_OK && tws_reserve(&texts.item, &texts.capacity, count + 1, sizeof *texts.item))
    code = tws_no_token_memory(err);
  for (size_t i = 0; i < count && code == TWS_OK; i++) {
    const char *one = id[i] >= 0 && id[i] < t->vocabulary ? t->text[id[i]] : NULL;
    if (!one || (skip_special && t->special[id[i]])) continue; /* skipped, as in the library */
    texts.item[texts.count++] = (struct tws_text_range){one, strlen(one)};
  }
  if (code == TWS_OK) code = check_lengths(&texts, err);
  if (code == TWS_OK) code = tws_decode(&t->decoders, t->no_decoder, &texts, arena, &out, err);
  tws_free(texts.item);
  tws_arena_destroy(arena);
  if (code != TWS_OK) {
    tws_text_free(&out);
    return code;
  }
  *text = out.data;
  *length = out.length;
  return TWS_OK;
}

const tws_token_frame *tws_tokenizer_frame(const tws_tokenizer *t) {
  return &t->frame;
}
