#include "tokens/samples.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/output_file.h"

/* The tokens of one text and where they are in it: token i has the bytes [range[2 i], range[2 i + 1]). */
typedef struct located {
  tws_token_list ids;
  size_t *range;
  size_t room;
} located;

typedef struct converter {
  const tws_samples_request *request;
  tws_samples_result *result;
  tws_text out;
} converter;

static const char line_hint[] =
    "a line has \"question\", \"context\" and \"answers\", or \"label\" and one of \"sentence\", \"text\", "
    "\"sentence1\" "
    "and \"sentence2\", \"premise\" and \"hypothesis\"";

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the samples");
}

/* ---- places of tokens ---- */

static tws_code locate_tokens(located *l, size_t from, size_t begin, size_t end, tws_error *err) {
  if (tws_reserve(&l->range, &l->room, 2 * l->ids.count + 2, sizeof *l->range)) return no_memory(err);
  for (size_t i = from; i < l->ids.count; i++) l->range[2 * i] = begin, l->range[2 * i + 1] = end;
  return TWS_OK;
}

/* Sets the places of a word's tokens, if the first one, two, ... of them decode to texts that end where the tokens do:
 * if the word is as long as all of them. A letter that is written otherwise in the vocabulary, without its accent, has
 * another length, and then every token keeps the whole word. */
static tws_code locate_parts(tws_tokenizer *t, located *l, size_t from, size_t begin, size_t end, tws_error *err) {
  size_t last = begin;
  for (int sets = 0; sets < 2 && l->ids.count - from > 1; sets++, last = begin)
    for (size_t i = from; i < l->ids.count; i++) {
      char *decoded;
      size_t bytes;
      TWS_TRY(tws_tokenizer_decode(t, l->ids.id + from, i + 1 - from, 0, &decoded, &bytes, err));
      tws_free(decoded);
      if (begin + bytes <= last || (i + 1 == l->ids.count && begin + bytes != end)) return TWS_OK;
      if (sets) l->range[2 * i] = last, l->range[2 * i + 1] = begin + bytes;
      last = begin + bytes;
    }
  return TWS_OK;
}

/* Encodes the words of a text and its punctuation one by one. */
static tws_code encode_words(tws_tokenizer *t, const char *text, size_t length, located *l, tws_error *err) {
  for (size_t at = 0; at < length;) {
    size_t end = at + 1;
    const unsigned char first = (unsigned char)text[at];
    if (isspace(first)) {
      at++;
      continue;
    }
    while (!ispunct(first) && end < length && !isspace((unsigned char)text[end]) && !ispunct((unsigned char)text[end]))
      end++;
    const size_t before = l->ids.count;
    TWS_TRY(tws_tokenizer_encode(t, text + at, end - at, 0, &l->ids, err));
    TWS_TRY(locate_tokens(l, before, at, end, err));
    TWS_TRY(locate_parts(t, l, before, at, end, err));
    at = end;
  }
  return TWS_OK;
}

/* Sets the places of tokens from the texts that the first one, two, ... of them decode to; *found is 0 if the whole
 * text is another one. Tokens that end within a character get the bytes up to its end. */
static tws_code decode_prefixes(tws_tokenizer *t, const char *text, size_t length, located *l, int *found,
                                tws_error *err) {
  size_t begin = 0, first = 0;
  TWS_TRY(locate_tokens(l, 0, 0, 0, err));
  for (size_t i = 0; i < l->ids.count; i++) {
    char *decoded;
    size_t bytes;
    TWS_TRY(tws_tokenizer_decode(t, l->ids.id, i + 1, 0, &decoded, &bytes, err));
    const size_t blank = bytes > 0 && decoded[0] == ' ' && text[0] != ' '; /* some tokenizers begin with a blank */
    const int equal = bytes - blank <= length && memcmp(decoded + blank, text, bytes - blank) == 0;
    tws_free(decoded);
    if (!equal) continue;
    for (size_t end = bytes - blank; first <= i; first++) {
      size_t own = begin;
      while (own < end && isspace((unsigned char)text[own])) own++;
      l->range[2 * first] = own, l->range[2 * first + 1] = end;
    }
    begin = bytes - blank;
  }
  *found = begin == length;
  return TWS_OK;
}

static int same_tokens(const tws_token_list *a, const tws_token_list *b) {
  return a->count == b->count && (a->count == 0 || memcmp(a->id, b->id, a->count * sizeof *a->id) == 0);
}

/* Encodes a text and finds the place of each token. */
static tws_code locate(tws_tokenizer *t, const char *text, located *l, const char *where, tws_error *err) {
  const size_t length = strlen(text);
  tws_token_list whole = {0};
  int found = 0;
  tws_code code = tws_tokenizer_encode(t, text, length, 0, &whole, err);
  if (code == TWS_OK) code = encode_words(t, text, length, l, err);
  found = code == TWS_OK && same_tokens(&whole, &l->ids);
  if (code == TWS_OK && !found) {
    tws_token_free(&l->ids);
    l->ids = whole;
    whole = (tws_token_list){0};
    code = decode_prefixes(t, text, length, l, &found, err);
  }
  tws_token_free(&whole);
  if (code != TWS_OK || found) return code;
  return tws_fail(err, TWS_UNSUPPORTED, "convert the questions with the model's own library, to lists of ids",
                  "%s: the tokenizer's tokens have no places in this text", where);
}

/* ---- samples ---- */

typedef struct sample {
  cJSON *line, *input, *types, *offsets; /* offsets: NULL for labelled texts */
} sample;

static tws_code add_number(cJSON *list, double number, tws_error *err) {
  cJSON *item = cJSON_CreateNumber(number);
  if (item && cJSON_AddItemToArray(list, item)) return TWS_OK;
  cJSON_Delete(item);
  return no_memory(err);
}

static tws_code add_token(sample *s, double id, double type, const size_t range[2], tws_error *err) {
  TWS_TRY(add_number(s->input, id, err));
  TWS_TRY(add_number(s->types, type, err));
  if (!s->offsets) return TWS_OK;
  cJSON *pair = cJSON_CreateArray();
  if (!pair || !cJSON_AddItemToArray(s->offsets, pair)) {
    cJSON_Delete(pair);
    return no_memory(err);
  }
  const int some = range && range[1] > range[0]; /* a token of blanks alone has no bytes of the text */
  TWS_TRY(add_number(pair, some ? (double)range[0] : 0, err));
  return add_number(pair, some ? (double)range[1] : 0, err);
}

static tws_code add_special(sample *s, const int32_t *id, int count, int type, tws_error *err) {
  for (int i = 0; i < count; i++) TWS_TRY(add_token(s, id[i], type, NULL, err));
  return TWS_OK;
}

/* Adds the tokens of one text or, with b, of two, as the tokenizer joins them; *first: index of the first token of b,
 * *kept: number of its tokens that the limit leaves. */
static tws_code join(converter *c, const located *a, const located *b, sample *s, size_t *first, size_t *kept,
                     tws_error *err) {
  const tws_token_frame *f = tws_tokenizer_frame(c->request->tokenizer);
  const size_t special = (size_t)(f->before_count + f->behind_count + (b ? f->between_count : 0)),
               longest = c->request->longest > 0 ? (size_t)c->request->longest : SIZE_MAX;
  const located *last = b ? b : a;
  const size_t others = special + (b ? a->ids.count : 0);
  if (others >= longest)
    return tws_fail(err, TWS_INVALID, "allow more tokens", "a text has %zu tokens before the one that is truncated",
                    others);
  *kept = last->ids.count < longest - others ? last->ids.count : longest - others;
  c->result->cut += *kept < last->ids.count;
  TWS_TRY(add_special(s, f->before, f->before_count, 0, err));
  for (size_t i = 0; b && i < a->ids.count; i++) TWS_TRY(add_token(s, a->ids.id[i], 0, NULL, err));
  if (b) TWS_TRY(add_special(s, f->between, f->between_count, 0, err));
  *first = (size_t)cJSON_GetArraySize(s->input);
  const int type = b ? f->second_type : 0;
  for (size_t i = 0; i < *kept; i++) TWS_TRY(add_token(s, last->ids.id[i], type, last->range + 2 * i, err));
  return add_special(s, f->behind, f->behind_count, type, err);
}

static tws_code begin_sample(sample *s, int located_tokens, tws_error *err) {
  s->line = cJSON_CreateObject();
  s->input = cJSON_AddArrayToObject(s->line, "input");
  s->types = cJSON_AddArrayToObject(s->line, "types");
  if (located_tokens) s->offsets = cJSON_AddArrayToObject(s->line, "offsets");
  return s->input && s->types && (!located_tokens || s->offsets) ? TWS_OK : no_memory(err);
}

static tws_code end_sample(converter *c, sample *s, tws_error *err) {
  char *text = cJSON_PrintUnformatted(s->line);
  if (!text) return no_memory(err);
  tws_text_add(&c->out, "%s\n", text);
  cJSON_free(text);
  c->result->samples++;
  return c->out.failed ? no_memory(err) : TWS_OK;
}

/* ---- questions ---- */

static size_t byte_of_character(const char *text, double character) {
  size_t byte = 0; /* in UTF-8 the first byte of a character does not begin with the bits 10 */
  for (; character > 0 && text[byte]; character--) do
      byte++;
    while ((text[byte] & 0xc0) == 0x80);
  return byte;
}

/* Returns the first answer of either form, and the character at which it starts; NULL: there is none. */
static const char *first_answer(const cJSON *answers, double *start) {
  const cJSON *text = cJSON_GetObjectItemCaseSensitive(answers, "text"), *at;
  const cJSON *one = cJSON_IsArray(answers) ? cJSON_GetArrayItem(answers, 0) : NULL;
  if (cJSON_IsArray(answers)) {
    text = cJSON_GetObjectItemCaseSensitive(one, "text");
    at = cJSON_GetObjectItemCaseSensitive(one, "answer_start");
  } else {
    text = cJSON_GetArrayItem(text, 0);
    at = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(answers, "answer_start"), 0);
  }
  *start = cJSON_IsNumber(at) ? at->valuedouble : -1;
  return cJSON_GetStringValue(text);
}

/* Adds the span of an answer of these bytes: of the first and the last token that have some of them. */
static tws_code add_span(converter *c, sample *s, const located *context, size_t first, size_t kept, size_t begin,
                         size_t end, tws_error *err) {
  size_t from = kept, to = 0;
  for (size_t i = 0; i < kept; i++) {
    if (context->range[2 * i] >= end || context->range[2 * i + 1] <= begin) continue;
    if (from == kept) from = i;
    to = i;
  }
  const int whole = begin < end && from < kept && context->range[2 * to + 1] >= end;
  c->result->lost += begin < end && !whole;
  cJSON *span = cJSON_AddArrayToObject(s->line, "span");
  if (!span) return no_memory(err);
  TWS_TRY(add_number(span, whole ? (double)(first + from) : 0, err));
  return add_number(span, whole ? (double)(first + to) : 0, err);
}

static tws_code copy_member(const cJSON *from, const char *key, cJSON *to, tws_error *err) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(from, key);
  if (!item) return TWS_OK;
  cJSON *copy = cJSON_Duplicate(item, 1);
  if (copy && cJSON_AddItemToObject(to, key, copy)) return TWS_OK;
  cJSON_Delete(copy);
  return no_memory(err);
}

static tws_code fill_question(converter *c, const tws_json *json, const cJSON *item, const char *context, sample *s,
                              located texts[2], tws_error *err) {
  const char *question = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "question")), *answer;
  const cJSON *answers = cJSON_GetObjectItemCaseSensitive(item, "answers");
  double start;
  size_t first, kept;
  if (!question || !context || !*context)
    return tws_json_fail(json, item, err, line_hint, "there are no texts \"question\" and \"context\"");
  answer = first_answer(answers, &start);
  const size_t begin = answer && start >= 0 ? byte_of_character(context, start) : 0;
  if (answer && (start < 0 || !*answer || strncmp(context + begin, answer, strlen(answer)) != 0))
    return tws_json_fail(json, item, err, "\"answer_start\" is a character of the context, counted from 0",
                         "the context does not have the answer \"%.60s\" where that starts", answer);
  TWS_TRY(locate(c->request->tokenizer, question, &texts[0], json->name, err));
  TWS_TRY(locate(c->request->tokenizer, context, &texts[1], json->name, err));
  TWS_TRY(begin_sample(s, 1, err));
  TWS_TRY(join(c, &texts[0], &texts[1], s, &first, &kept, err));
  TWS_TRY(add_span(c, s, &texts[1], first, kept, begin, answer ? begin + strlen(answer) : begin, err));
  TWS_TRY(copy_member(item, "id", s->line, err));
  if (!cJSON_AddStringToObject(s->line, "context", context)) return no_memory(err);
  TWS_TRY(copy_member(item, "answers", s->line, err));
  return end_sample(c, s, err);
}

/* ---- labelled texts ---- */

/* Returns the texts of a labelled line: one, or two. */
static int texts_of(const cJSON *item, const char *text[2]) {
  static const char *const names[][2] = {{"sentence1", "sentence2"},
                                         {"premise", "hypothesis"},
                                         {"question1", "question2"},
                                         {"question", "sentence"},
                                         {"text", "text_pair"},
                                         {"sentence", NULL},
                                         {"text", NULL}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    text[0] = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, names[i][0]));
    text[1] = names[i][1] ? cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, names[i][1])) : NULL;
    if (text[0] && (text[1] || !names[i][1])) return names[i][1] ? 2 : 1;
  }
  return 0;
}

static tws_code fill_labelled(converter *c, const tws_json *json, const cJSON *item, sample *s, located texts[2],
                              tws_error *err) {
  const char *text[2];
  size_t first, kept;
  const int count = texts_of(item, text);
  if (count == 0 || !cJSON_IsNumber(cJSON_GetObjectItemCaseSensitive(item, "label")))
    return tws_json_fail(json, item, err, line_hint, "the line is neither a question nor a labelled text");
  for (int i = 0; i < count; i++) {
    TWS_TRY(tws_tokenizer_encode(c->request->tokenizer, text[i], strlen(text[i]), 0, &texts[i].ids, err));
    TWS_TRY(locate_tokens(&texts[i], 0, 0, 0, err));
  }
  TWS_TRY(begin_sample(s, 0, err));
  TWS_TRY(join(c, &texts[0], count == 2 ? &texts[1] : NULL, s, &first, &kept, err));
  TWS_TRY(copy_member(item, "label", s->line, err));
  return end_sample(c, s, err);
}

/* ---- files ---- */

/* Converts a question of this context, or with context NULL a labelled text. */
static tws_code convert_one(converter *c, const tws_json *json, const cJSON *item, const char *context,
                            tws_error *err) {
  sample s = {.line = NULL};
  located texts[2] = {0};
  tws_code code =
      context ? fill_question(c, json, item, context, &s, texts, err) : fill_labelled(c, json, item, &s, texts, err);
  cJSON_Delete(s.line);
  for (int i = 0; i < 2; i++) {
    tws_token_free(&texts[i].ids);
    tws_free(texts[i].range);
  }
  return code;
}

static tws_code convert_published(converter *c, tws_error *err) {
  tws_json *json;
  const cJSON *article, *paragraph, *question;
  TWS_TRY(tws_json_read(c->request->from, &json, err));
  const cJSON *data = cJSON_GetObjectItemCaseSensitive(json->root, "data");
  tws_code code = cJSON_IsArray(data) ? TWS_OK
                                      : tws_json_fail(json, json->root, err, "SQuAD's file, or lines (.jsonl)",
                                                      "there is no list \"data\"");
  cJSON_ArrayForEach(article, data) {
    cJSON_ArrayForEach(paragraph, cJSON_GetObjectItemCaseSensitive(article, "paragraphs")) {
      const char *context = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(paragraph, "context"));
      cJSON_ArrayForEach(question, cJSON_GetObjectItemCaseSensitive(paragraph, "qas")) {
        if (code == TWS_OK) code = convert_one(c, json, question, context ? context : "", err);
      }
    }
  }
  tws_json_destroy(json);
  return code;
}

static tws_code convert_line(converter *c, const char *text, size_t length, int64_t number, tws_error *err) {
  char name[512];
  tws_json *json;
  snprintf(name, sizeof name, "%.400s, line %lld", c->request->from, (long long)number);
  TWS_TRY(tws_json_parse(text, length, name, &json, err));
  const cJSON *context = cJSON_GetObjectItemCaseSensitive(json->root, "context");
  const char *given = cJSON_GetStringValue(context);
  const tws_code code = convert_one(c, json, json->root, context ? given ? given : "" : NULL, err);
  tws_json_destroy(json);
  return code;
}

static tws_code convert_lines(converter *c, tws_error *err) {
  char *text;
  size_t length;
  int64_t number = 0;
  TWS_TRY(tws_read_file(c->request->from, 0, &text, &length, err));
  tws_code code = TWS_OK;
  for (const char *at = text; code == TWS_OK && at < text + length;) {
    const char *end = memchr(at, '\n', (size_t)(text + length - at));
    const size_t bytes = end ? (size_t)(end - at) : (size_t)(text + length - at);
    number++;
    if (strspn(at, " \t\r") < bytes) code = convert_line(c, at, bytes, number, err);
    at += bytes + (end != NULL);
  }
  tws_free(text);
  return code;
}

tws_code tws_samples_convert(const tws_samples_request *request, tws_samples_result *result, tws_error *err) {
  converter c = {.request = request, .result = result};
  const size_t length = strlen(request->from);
  const int lines = length > 6 && strcmp(request->from + length - 6, ".jsonl") == 0;
  *result = (tws_samples_result){0};
  tws_code code = lines ? convert_lines(&c, err) : convert_published(&c, err);
  if (code == TWS_OK && result->samples == 0)
    code = tws_fail(err, TWS_INVALID, line_hint, "%s: it has no samples", request->from);
  if (code == TWS_OK) code = tws_write_file(request->to, c.out.data, c.out.length, err);
  tws_text_free(&c.out);
  return code;
}
