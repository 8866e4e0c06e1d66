#include "real/pairs.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/memory.h"

/* Tokens and types of all lines, concatenated: the source of line i begins at first[3 i], followed by its target and
 * its types. */
enum { PARTS = 3 };
struct tws_pairs {
  const char *path;
  tws_pairs_form form;
  int32_t *tokens;
  uint64_t *first;
  size_t token_count, token_capacity, first_count, first_capacity;
};

static const char *const line_hint[] = {
    [TWS_PAIRS_TARGETS] = "a line is {\"input\": ..., \"target\": ...}, texts or lists of tokens",
    [TWS_PAIRS_CLASSES] = "a line is {\"input\": ..., \"label\": 1}, the input a text or a list of tokens",
    [TWS_PAIRS_TAGS] = "a line is {\"input\": ..., \"labels\": [0, 1, ...]}, the input a text or a list of tokens",
    [TWS_PAIRS_SPANS] =
        ("a line is {\"input\": [...], \"span\": [first, last]}, or {\"question\": ..., \"context\": ..., "
         "\"answers\": {\"text\": [...], \"answer_start\": [...]}}")};

int tws_pairs_is_file(const char *path) {
  const size_t length = strlen(path);
  return length > 6 && strcmp(path + length - 6, ".jsonl") == 0;
}

static tws_code no_memory(const tws_pairs *p, tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "%s: no memory for its pairs", p->path);
}

static tws_code add_number(tws_pairs *p, double number, tws_error *err) {
  if (tws_reserve(&p->tokens, &p->token_capacity, p->token_count + 1, sizeof *p->tokens)) return no_memory(p, err);
  p->tokens[p->token_count++] = (int32_t)number;
  return TWS_OK;
}

/* Records where the next array of a line begins. */
static tws_code begin_part(tws_pairs *p, tws_error *err) {
  if (tws_reserve(&p->first, &p->first_capacity, p->first_count + 1, sizeof *p->first)) return no_memory(p, err);
  p->first[p->first_count++] = p->token_count;
  return TWS_OK;
}

static size_t part_size(const tws_pairs *p) {
  return p->token_count - p->first[p->first_count - 1];
}

static int is_below(double number, double least, int64_t limit) {
  return number >= least && number < (double)limit && number == (double)(int32_t)number;
}

static tws_code add_token(tws_pairs *p, double token, uint64_t line, tws_error *err) {
  if (!is_below(token, 0, p->form.vocabulary))
    return tws_fail(err, TWS_INVALID, "texts are read as bytes: lists of a tokenizer's ids say more",
                    "%s, line %llu: %g is none of the model's %lld tokens", p->path, (unsigned long long)line, token,
                    (long long)p->form.vocabulary);
  return add_number(p, token, err);
}

static tws_code add_text(tws_pairs *p, const cJSON *object, const char *key, uint64_t line, tws_error *err) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key), *token;
  TWS_TRY(begin_part(p, err));
  if (cJSON_IsString(item)) {
    for (const char *at = item->valuestring; *at; at++) TWS_TRY(add_token(p, (unsigned char)*at, line, err));
    return TWS_OK;
  }
  if (!cJSON_IsArray(item))
    return tws_fail(err, TWS_INVALID, line_hint[p->form.kind], "%s, line %llu: there is no \"%s\"", p->path,
                    (unsigned long long)line, key);
  cJSON_ArrayForEach(token, item) {
    TWS_TRY(add_token(p, cJSON_IsNumber(token) ? token->valuedouble : -1, line, err));
  }
  return TWS_OK;
}

/* A number for each of `tokens`, below `limit`; where `ignores`, -1 and what other libraries write for it. */
static tws_code add_numbers(tws_pairs *p, const cJSON *list, const char *key, size_t tokens, int64_t limit, int ignores,
                            uint64_t line, tws_error *err) {
  const cJSON *item;
  TWS_TRY(begin_part(p, err));
  cJSON_ArrayForEach(item, list) {
    const double number = !cJSON_IsNumber(item) ? NAN : ignores && item->valuedouble == -100.0 ? -1 : item->valuedouble;
    if (!is_below(number, ignores ? -1 : 0, limit))
      return tws_fail(err, TWS_INVALID, "the model's file says how many there are",
                      "%s, line %llu: %g in \"%s\" is "
                      "none of the model's %lld",
                      p->path, (unsigned long long)line, number, key, (long long)limit);
    TWS_TRY(add_number(p, number, err));
  }
  if (part_size(p) == tokens) return TWS_OK;
  return tws_fail(err, TWS_INVALID, line_hint[p->form.kind], "%s, line %llu: %zu numbers in \"%s\" for %zu tokens",
                  p->path, (unsigned long long)line, part_size(p), key, tokens);
}

static tws_code add_label(tws_pairs *p, const cJSON *object, uint64_t line, tws_error *err) {
  const cJSON *label = cJSON_GetObjectItemCaseSensitive(object, "label");
  TWS_TRY(begin_part(p, err));
  if (!cJSON_IsNumber(label))
    return tws_fail(err, TWS_INVALID, line_hint[p->form.kind], "%s, line %llu: there is no number \"label\"", p->path,
                    (unsigned long long)line);
  if (!is_below(label->valuedouble, 0, p->form.classes))
    return tws_fail(err, TWS_INVALID, "num_labels or id2label in the model's file say how many it has",
                    "%s, line %llu: the label is %g, and the model has %lld classes", p->path, (unsigned long long)line,
                    label->valuedouble, (long long)p->form.classes);
  return add_number(p, label->valuedouble, err);
}

static tws_code wrong_span(const tws_pairs *p, const char *what, uint64_t line, tws_error *err) {
  return tws_fail(err, TWS_INVALID, line_hint[TWS_PAIRS_SPANS], "%s, line %llu: %s", p->path, (unsigned long long)line,
                  what);
}

/* The first and the last token of an answer. */
static tws_code add_span(tws_pairs *p, const cJSON *object, size_t tokens, uint64_t line, tws_error *err) {
  const cJSON *span = cJSON_GetObjectItemCaseSensitive(object, "span"), *first = cJSON_GetArrayItem(span, 0),
              *last = cJSON_GetArrayItem(span, 1);
  TWS_TRY(begin_part(p, err));
  if (!cJSON_IsArray(span) || cJSON_GetArraySize(span) != 2 || !cJSON_IsNumber(first) || !cJSON_IsNumber(last))
    return wrong_span(p, "there are no two numbers \"span\"", line, err);
  if (!is_below(first->valuedouble, 0, (int64_t)tokens) ||
      !is_below(last->valuedouble, first->valuedouble, (int64_t)tokens))
    return wrong_span(p, "its span is not one of its tokens, from the first to the last", line, err);
  TWS_TRY(add_number(p, first->valuedouble, err));
  return add_number(p, last->valuedouble, err);
}

/* The first answer's text and where it begins, a byte of the context; "" and 0 where there is none. */
static tws_code find_answer(const tws_pairs *p, const cJSON *object, const char *context, const char **text,
                            size_t *start, uint64_t line, tws_error *err) {
  const cJSON *answers = cJSON_GetObjectItemCaseSensitive(object, "answers"),
              *texts = cJSON_GetObjectItemCaseSensitive(answers, "text"),
              *starts = cJSON_GetObjectItemCaseSensitive(answers, "answer_start");
  *text = "";
  *start = 0;
  if (!cJSON_IsArray(texts) || !cJSON_IsArray(starts) || cJSON_GetArraySize(texts) != cJSON_GetArraySize(starts))
    return wrong_span(p, "its \"answers\" have no lists \"text\" and \"answer_start\" of one length", line, err);
  if (cJSON_GetArraySize(texts) == 0) return TWS_OK;
  const cJSON *answer = cJSON_GetArrayItem(texts, 0), *at = cJSON_GetArrayItem(starts, 0);
  if (!cJSON_IsString(answer) || !*answer->valuestring || !cJSON_IsNumber(at) || !(at->valuedouble >= 0))
    return wrong_span(p, "its first answer is no text with the character where it starts", line, err);
  size_t byte = 0; /* a character's first byte does not begin with 10 */
  for (double skipped = at->valuedouble; skipped > 0 && context[byte]; skipped--) do
      byte++;
    while ((context[byte] & 0xc0) == 0x80);
  if (strncmp(context + byte, answer->valuestring, strlen(answer->valuestring)) != 0)
    return wrong_span(p, "the context does not have its answer where that starts", line, err);
  *text = answer->valuestring;
  *start = byte;
  return TWS_OK;
}

/* A question, its context and the answer in it. */
static tws_code add_question(tws_pairs *p, const cJSON *object, uint64_t line, tws_error *err) {
  const cJSON *parts[2] = {cJSON_GetObjectItemCaseSensitive(object, "question"),
                           cJSON_GetObjectItemCaseSensitive(object, "context")};
  const char *answer;
  size_t start, length[2];
  if (!cJSON_IsString(parts[0]) || !cJSON_IsString(parts[1]) || !*parts[1]->valuestring)
    return wrong_span(p, "it has neither an \"input\" nor texts as \"question\" and \"context\"", line, err);
  TWS_TRY(find_answer(p, object, parts[1]->valuestring, &answer, &start, line, err));
  TWS_TRY(begin_part(p, err));
  for (int i = 0; i < 2; i++) {
    length[i] = strlen(parts[i]->valuestring);
    for (const char *at = parts[i]->valuestring; *at; at++) TWS_TRY(add_token(p, (unsigned char)*at, line, err));
  }
  const size_t first = *answer ? length[0] + start : 0;
  TWS_TRY(begin_part(p, err));
  TWS_TRY(add_number(p, (double)first, err));
  TWS_TRY(add_number(p, (double)(first + (*answer ? strlen(answer) - 1 : 0)), err));
  TWS_TRY(begin_part(p, err));
  for (size_t i = 0; i < length[0] + length[1] && p->form.types > 1; i++) TWS_TRY(add_number(p, i >= length[0], err));
  return TWS_OK;
}

/* Reads the labels of the `tokens` tokens of the line's input, and their types. */
static tws_code add_labels(tws_pairs *p, const cJSON *object, size_t tokens, uint64_t line, tws_error *err) {
  const cJSON *labels = cJSON_GetObjectItemCaseSensitive(object, "labels"),
              *types = cJSON_GetObjectItemCaseSensitive(object, "types");
  if (tokens == 0)
    return tws_fail(err, TWS_INVALID, "leave the line out", "%s, line %llu: its input is empty", p->path,
                    (unsigned long long)line);
  if (p->form.kind == TWS_PAIRS_CLASSES)
    TWS_TRY(add_label(p, object, line, err));
  else if (p->form.kind == TWS_PAIRS_SPANS)
    TWS_TRY(add_span(p, object, tokens, line, err));
  else
    TWS_TRY(add_numbers(p, labels, "labels", tokens, p->form.classes, 1, line, err));
  if (types) return add_numbers(p, types, "types", tokens, p->form.types, 0, line, err);
  return begin_part(p, err);
}

static tws_code add_target(tws_pairs *p, const cJSON *object, uint64_t line, tws_error *err) {
  TWS_TRY(add_text(p, object, "target", line, err));
  if (part_size(p) == 0)
    return tws_fail(err, TWS_INVALID, "leave the line out", "%s, line %llu: its target is empty", p->path,
                    (unsigned long long)line);
  return begin_part(p, err); /* without types */
}

static tws_code add_line(tws_pairs *p, const char *text, size_t length, uint64_t line, tws_error *err) {
  cJSON *object = cJSON_ParseWithLength(text, length);
  tws_code code = TWS_OK;
  if (!cJSON_IsObject(object))
    code = tws_fail(err, TWS_INVALID, line_hint[p->form.kind], "%s, line %llu: it is no JSON object", p->path,
                    (unsigned long long)line);
  const int texts = p->form.kind == TWS_PAIRS_SPANS && !cJSON_HasObjectItem(object, "input");
  if (code == TWS_OK) code = texts ? add_question(p, object, line, err) : add_text(p, object, "input", line, err);
  if (code == TWS_OK && !texts)
    code = p->form.kind == TWS_PAIRS_TARGETS ? add_target(p, object, line, err)
                                             : add_labels(p, object, part_size(p), line, err);
  cJSON_Delete(object);
  return code;
}

static tws_code read_lines(tws_pairs *p, FILE *file, tws_error *err) {
  char *text = NULL;
  size_t room = 0;
  ssize_t length;
  tws_code code = TWS_OK;
  for (uint64_t line = 1; code == TWS_OK && (length = getline(&text, &room, file)) >= 0; line++)
    if (strspn(text, " \t\r\n") < (size_t)length) code = add_line(p, text, (size_t)length, line, err);
  if (code == TWS_OK && ferror(file)) code = tws_fail(err, TWS_IO, NULL, "%s: %s", p->path, strerror(errno));
  free(text);
  if (code == TWS_OK && tws_reserve(&p->first, &p->first_capacity, p->first_count + 1, sizeof *p->first))
    code = no_memory(p, err);
  if (code == TWS_OK) p->first[p->first_count] = p->token_count;
  return code;
}

tws_code tws_pairs_open(const char *path, const tws_pairs_form *form, tws_pairs **out, tws_error *err) {
  tws_pairs *p = tws_calloc(1, sizeof *p);
  *out = NULL;
  if (!p) return tws_fail(err, TWS_MEMORY, NULL, "%s: no memory for its pairs", path);
  p->path = path;
  p->form = *form;
  int fd;
  tws_code code = tws_open_regular(path, &fd, err);
  FILE *file = code == TWS_OK ? fdopen(fd, "r") : NULL;
  if (code == TWS_OK)
    code = file ? read_lines(p, file, err) : tws_fail(err, TWS_MEMORY, NULL, "%s: out of memory", path);
  if (file)
    fclose(file);
  else if (fd >= 0)
    close(fd);
  if (code != TWS_OK)
    tws_pairs_close(p);
  else
    *out = p;
  return code;
}

void tws_pairs_close(tws_pairs *pairs) {
  if (!pairs) return;
  tws_free(pairs->tokens);
  tws_free(pairs->first);
  tws_free(pairs);
}

uint64_t tws_pairs_count(const tws_pairs *pairs) {
  return pairs->first_count / PARTS;
}

uint64_t tws_pairs_tokens(const tws_pairs *pairs) {
  return pairs->token_count;
}

tws_pair tws_pairs_at(const tws_pairs *pairs, uint64_t index) {
  const uint64_t *first = pairs->first + PARTS * index;
  return (tws_pair){.source = pairs->tokens + first[0],
                    .target = pairs->tokens + first[1],
                    .types = first[3] > first[2] ? pairs->tokens + first[2] : NULL,
                    .sources = (int64_t)(first[1] - first[0]),
                    .targets = (int64_t)(first[2] - first[1])};
}
