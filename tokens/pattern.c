/* Converts patterns of tokenizer.json, which are in Oniguruma's syntax, to PCRE2's. Two things differ: \s, which is
 * Unicode's White_Space in Oniguruma and has one more character in PCRE2, and nested classes, which are unions in
 * Oniguruma and unknown in PCRE2. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "tokens/internal.h"

struct tws_pattern {
  pcre2_code *code;
  pcre2_match_data *match;
};

#define SPACES "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

/* Converts one element of an expression; *depth > 0 inside a class. Returns the number of characters read. */
static size_t rewrite_one(const char *at, int *depth, tws_text *out) {
  if (at[0] == '\\' && at[1]) {
    if (at[1] == 's')
      tws_text_add(out, *depth ? SPACES : "[" SPACES "]");
    else if (at[1] == 'S' && !*depth)
      tws_text_add(out, "[^" SPACES "]");
    else
      tws_text_add_bytes(out, at, 2);
    return 2;
  }
  if (at[0] == '[' && *depth && at[1] != ':') { /* a nested class */
    ++*depth;
    return 1;
  }
  if (at[0] == '[' && *depth) { /* a class such as [:alpha:] */
    const char *end = strstr(at, ":]");
    const size_t length = end ? (size_t)(end - at) + 2 : 1;
    tws_text_add_bytes(out, at, length);
    return length;
  }
  if (at[0] == '[') {
    const size_t length = at[1] == '^' ? 2 : 1;
    ++*depth;
    tws_text_add_bytes(out, at, length);
    if (at[length] != ']') return length;
    tws_text_add(out, "\\]");
    return length + 1;
  }
  if (at[0] == ']' && *depth > 1) {
    --*depth;
    return 1;
  }
  if (at[0] == ']' && *depth) --*depth;
  tws_text_add_bytes(out, at, 1);
  return 1;
}

static tws_code rewrite(const char *expression, tws_text *out, tws_error *err) {
  int depth = 0;
  for (const char *at = expression; *at;) {
    const int inside = depth > 0;
    if (inside && ((at[0] == '[' && at[1] == '^') || (at[0] == '&' && at[1] == '&')))
      return tws_fail(err, TWS_UNSUPPORTED, NULL,
                      "pattern \"%.80s\": negated classes inside classes, and intersections", expression);
    at += rewrite_one(at, &depth, out);
  }
  return out->failed ? tws_no_token_memory(err) : TWS_OK;
}

static tws_code compile(const char *text, size_t length, uint32_t options, tws_pattern **out, tws_error *err) {
  int number = 0;
  PCRE2_SIZE place = 0;
  tws_pattern *p = tws_calloc(1, sizeof *p);
  if (!p) return tws_no_token_memory(err);
  p->code = pcre2_compile((PCRE2_SPTR)text, length, options | PCRE2_UTF, &number, &place, NULL);
  if (p->code) p->match = pcre2_match_data_create_from_pattern(p->code, NULL);
  if (p->match) {
    /* a failure is ignored, since without the JIT matching is only slower */
    pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE);
    *out = p;
    return TWS_OK;
  }
  const int known = p->code == NULL && number != PCRE2_ERROR_NOMEMORY;
  tws_pattern_free(p);
  if (!known) return tws_no_token_memory(err);
  char what[160] = "";
  pcre2_get_error_message(number, (PCRE2_UCHAR *)what, sizeof what);
  return tws_fail(err, TWS_INVALID, NULL, "pattern \"%.80s\": %s, at byte %zu", text, what, (size_t)place);
}

tws_code tws_pattern_of(const char *expression, tws_pattern **out, tws_error *err) {
  tws_text text = {0};
  tws_code code = rewrite(expression, &text, err);
  if (code == TWS_OK) code = compile(text.data ? text.data : "", text.length, PCRE2_UCP, out, err);
  tws_text_free(&text);
  return code;
}

tws_code tws_pattern_read(const tws_json *json, const cJSON *item, tws_pattern **out, tws_error *err) {
  const cJSON *text = cJSON_GetObjectItemCaseSensitive(item, "String");
  const cJSON *regex = cJSON_GetObjectItemCaseSensitive(item, "Regex");
  if (cJSON_IsString(text) && text->valuestring[0])
    return compile(text->valuestring, strlen(text->valuestring), PCRE2_LITERAL, out, err);
  if (!cJSON_IsString(regex))
    return tws_json_fail(json, item, err, NULL, "a pattern must be {\"String\": ...} or {\"Regex\": ...}");
  const tws_code code = tws_pattern_of(regex->valuestring, out, err);
  return code == TWS_OK ? code : tws_fail_in(err, code, "%s", json->name);
}

void tws_pattern_free(tws_pattern *p) {
  if (!p) return;
  pcre2_match_data_free(p->match);
  pcre2_code_free(p->code);
  tws_free(p);
}

tws_code tws_pattern_next(const tws_pattern *p, const char *text, size_t length, size_t from, size_t *begin,
                          size_t *end, tws_error *err) {
  *begin = *end = length;
  while (from < length) {
    const int found = pcre2_match(p->code, (PCRE2_SPTR)text, length, from, PCRE2_NO_UTF_CHECK, p->match, NULL);
    if (found == PCRE2_ERROR_NOMATCH) return TWS_OK;
    if (found < 0) {
      char what[160] = "";
      pcre2_get_error_message(found, (PCRE2_UCHAR *)what, sizeof what);
      return tws_fail(err, TWS_INVALID, NULL, "a tokenizer's pattern fails on the text: %s", what);
    }
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(p->match);
    if (range[1] > range[0] && range[0] >= from) {
      *begin = range[0];
      *end = range[1];
      return TWS_OK;
    }
    from = (range[1] > from ? range[1] : from);
    from += (size_t)tws_utf8_length(text + (from < length ? from : length - 1));
  }
  return TWS_OK;
}
