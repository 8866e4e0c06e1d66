#include "real/pairs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"

/* Tokens of all pairs one after another: of pair i the source begins at first[2 i], its target at first[2 i + 1]. */
struct tws_pairs {
  const char *path;
  int64_t vocabulary;
  int32_t *tokens;
  uint64_t *first;
  size_t token_count, token_capacity, first_count, first_capacity;
};

int tws_pairs_is_file(const char *path) {
  const size_t length = strlen(path);
  return length > 6 && strcmp(path + length - 6, ".jsonl") == 0;
}

static tws_code no_memory(const tws_pairs *p, tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "%s: no memory for its pairs", p->path);
}

static tws_code add_token(tws_pairs *p, double token, uint64_t line, tws_error *err) {
  if (!(token >= 0 && token < (double)p->vocabulary && token == (double)(int32_t)token))
    return tws_fail(err, TWS_INVALID, "texts are read as bytes: lists of a tokenizer's ids say more",
                    "%s, line %llu: %g is none of the model's %lld tokens", p->path, (unsigned long long)line, token,
                    (long long)p->vocabulary);
  if (tws_reserve(&p->tokens, &p->token_capacity, p->token_count + 1, sizeof *p->tokens)) return no_memory(p, err);
  p->tokens[p->token_count++] = (int32_t)token;
  return TWS_OK;
}

static tws_code add_text(tws_pairs *p, const cJSON *object, const char *key, uint64_t line, tws_error *err) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key), *token;
  if (tws_reserve(&p->first, &p->first_capacity, p->first_count + 1, sizeof *p->first)) return no_memory(p, err);
  p->first[p->first_count++] = p->token_count;
  if (cJSON_IsString(item)) {
    for (const char *at = item->valuestring; *at; at++) TWS_TRY(add_token(p, (unsigned char)*at, line, err));
    return TWS_OK;
  }
  if (!cJSON_IsArray(item))
    return tws_fail(err, TWS_INVALID, "a line is {\"input\": ..., \"target\": ...}, texts or lists of tokens",
                    "%s, line %llu: there is no \"%s\"", p->path, (unsigned long long)line, key);
  cJSON_ArrayForEach(token, item) {
    TWS_TRY(add_token(p, cJSON_IsNumber(token) ? token->valuedouble : -1, line, err));
  }
  return TWS_OK;
}

static tws_code add_line(tws_pairs *p, const char *text, size_t length, uint64_t line, tws_error *err) {
  cJSON *object = cJSON_ParseWithLength(text, length);
  tws_code code = TWS_OK;
  if (!cJSON_IsObject(object))
    code = tws_fail(err, TWS_INVALID, "a line is {\"input\": ..., \"target\": ...}",
                    "%s, line %llu: it is no JSON object", p->path, (unsigned long long)line);
  if (code == TWS_OK) code = add_text(p, object, "input", line, err);
  if (code == TWS_OK) code = add_text(p, object, "target", line, err);
  if (code == TWS_OK && p->first[p->first_count - 1] == p->token_count)
    code = tws_fail(err, TWS_INVALID, "leave the line out", "%s, line %llu: its target is empty", p->path,
                    (unsigned long long)line);
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

tws_code tws_pairs_open(const char *path, int64_t vocabulary, tws_pairs **out, tws_error *err) {
  tws_pairs *p = tws_calloc(1, sizeof *p);
  *out = NULL;
  if (!p) return tws_fail(err, TWS_MEMORY, NULL, "%s: no memory for its pairs", path);
  p->path = path;
  p->vocabulary = vocabulary;
  FILE *file = fopen(path, "r");
  tws_code code = file ? read_lines(p, file, err) : tws_fail(err, TWS_IO, NULL, "%s: %s", path, strerror(errno));
  if (file) fclose(file);
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
  return pairs->first_count / 2;
}

uint64_t tws_pairs_tokens(const tws_pairs *pairs) {
  return pairs->token_count;
}

tws_pair tws_pairs_at(const tws_pairs *pairs, uint64_t index) {
  const uint64_t *first = pairs->first + 2 * index;
  return (tws_pair){.source = pairs->tokens + first[0],
                    .target = pairs->tokens + first[1],
                    .sources = (int64_t)(first[1] - first[0]),
                    .targets = (int64_t)(first[2] - first[1])};
}
