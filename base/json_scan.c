#include "base/json_scan.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/number.h"

typedef enum state { VALUE, VALUE_OR_END, KEY_OR_END, COLON, COMMA_OR_END, DONE } state;

typedef struct scanner {
  char *text;
  size_t length, at;
  int line, column;
  const char *name;
  tws_json_marks *marks;
  tws_error *err;
  int depth;
  struct {
    char closer;
    int line, column;
  } open[TWS_JSON_DEPTH];
  size_t comma; /* offset of the last comma, which is replaced by a blank when a closing bracket follows */
  size_t key;   /* offset in the text of the last key */
} scanner;

/* Fails with the position of a line and column; `...` is a format with its arguments. */
#define REFUSE_AT(s, line_, column_, hint, format, ...) \
  tws_fail((s)->err, TWS_INVALID, hint, "%s:%d:%d: " format, (s)->name, line_, column_ __VA_OPT__(, ) __VA_ARGS__)
#define REFUSE(s, hint, ...) REFUSE_AT(s, (s)->line, (s)->column, hint, __VA_ARGS__)

/* Returns the next byte. The text ends with a zero byte, so reading one byte ahead is always allowed. */
static char peek(const scanner *s) {
  return s->text[s->at];
}

static void advance_one(scanner *s) {
  unsigned char c = (unsigned char)s->text[s->at++];
  if (c == '\n') {
    s->line++;
    s->column = 1;
  } else if ((s->at >= s->length) || ((unsigned char)s->text[s->at] & 0xc0u) != 0x80u) {
    s->column++; /* columns count characters, not bytes */
  }
}

static void blank(scanner *s) {
  if (s->text[s->at] != '\n') s->text[s->at] = ' ';
}

/* Returns the length of the well-formed UTF-8 sequence at p (Unicode 15, table 3-7), or 0. */
static size_t utf8_length(const unsigned char *p, size_t left) {
  static const struct {
    unsigned char first_low, first_high, second_low, second_high;
    size_t length;
  } rows[] = {{0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3},
              {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4},
              {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4}};
  if (*p < 0x80) return 1;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    if (*p < rows[i].first_low || *p > rows[i].first_high) continue;
    if (rows[i].length > left) return 0;
    if (p[1] < rows[i].second_low || p[1] > rows[i].second_high) return 0;
    for (size_t k = 2; k < rows[i].length; k++)
      if ((p[k] & 0xc0u) != 0x80u) return 0;
    return rows[i].length;
  }
  return 0;
}

int tws_json_is_utf8(const char *text) {
  size_t left = strlen(text);
  while (left > 0) {
    size_t n = utf8_length((const unsigned char *)text, left);
    if (!n) return 0;
    text += n;
    left -= n;
  }
  return 1;
}

static tws_code check_bytes(scanner *s) {
  while (s->at < s->length) {
    if (!peek(s)) return REFUSE(s, "save the file as plain UTF-8 text", "a NUL byte; this is not a text file");
    size_t n = utf8_length((unsigned char *)s->text + s->at, s->length - s->at);
    if (!n) return REFUSE(s, "save the file as UTF-8", "byte 0x%02x is not valid UTF-8", (unsigned char)peek(s));
    for (; n > 0; n--) advance_one(s);
  }
  s->at = 0;
  s->line = s->column = 1;
  return TWS_OK;
}

static tws_code skip_space(scanner *s) {
  for (;;) {
    char c = peek(s), next = c ? s->text[s->at + 1] : 0;
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      advance_one(s);
    } else if (c == '#' || (c == '/' && next == '/')) {
      while (peek(s) && peek(s) != '\n') {
        blank(s);
        advance_one(s);
      }
    } else if (c == '/' && next == '*') {
      int line = s->line, column = s->column;
      int open = 2; /* 2 characters, so that the first star is not taken for the one that closes the comment */
      while (open > 0 || !(s->text[s->at] == '*' && s->text[s->at + 1] == '/')) {
        if (!peek(s)) return REFUSE_AT(s, line, column, "close it with */", "the comment opened here never ends");
        if (open > 0) open--;
        blank(s);
        advance_one(s);
      }
      for (int i = 0; i < 2; i++) {
        blank(s);
        advance_one(s);
      }
    } else {
      return TWS_OK;
    }
  }
}

static int hex4(const char *p, unsigned *value) {
  *value = 0;
  for (int i = 0; i < 4; i++) {
    if (!isxdigit((unsigned char)p[i])) return 0;
    int digit = isdigit((unsigned char)p[i]) ? p[i] - '0' : tolower((unsigned char)p[i]) - 'a' + 10;
    *value = *value * 16 + (unsigned)digit;
  }
  return 1;
}

static tws_code scan_escape(scanner *s) {
  const char *p = s->text + s->at + 1;
  unsigned unit, low;
  size_t n = 2;
  if (*p == 'u') {
    if (!hex4(p + 1, &unit)) return REFUSE(s, "write \\u and four hexadecimal digits", "malformed \\u escape");
    if (!unit) return REFUSE(s, NULL, "\\u0000 is not allowed in a string");
    n = 6;
    if (unit >= 0xd800 && unit < 0xe000) {
      if (unit >= 0xdc00 || p[5] != '\\' || p[6] != 'u' || !hex4(p + 7, &low) || low < 0xdc00 || low >= 0xe000)
        return REFUSE(s, NULL, "\\u%04x is half of a surrogate pair, and the other half is missing", unit);
      n = 12;
    }
  } else if (!*p || !strchr("\"\\/bfnrt", *p)) {
    return REFUSE(s, "write a backslash as \\\\", "unknown escape \\%c in a string",
                  isprint((unsigned char)*p) ? *p : '?');
  }
  for (; n > 0; n--) advance_one(s);
  return TWS_OK;
}

static tws_code scan_string(scanner *s) {
  int line = s->line, column = s->column;
  advance_one(s);
  while (peek(s) != '"') {
    unsigned char c = (unsigned char)peek(s);
    if (!c || c == '\n')
      return REFUSE_AT(s, line, column, "close it with a double quote on the same line",
                       "the string opened here never ends");
    if (c < 0x20) return REFUSE(s, "write it as an escape such as \\t", "control character 0x%02x in a string", c);
    if (c == '\\')
      TWS_TRY(scan_escape(s));
    else
      advance_one(s);
  }
  advance_one(s);
  return TWS_OK;
}

static size_t count_digits(const char *p) {
  size_t n = 0;
  while (isdigit((unsigned char)p[n])) n++;
  return n;
}

/* Returns the length of the JSON number at p, or 0 if there is none. */
static size_t number_length(const char *p, int *integral) {
  size_t n = *p == '-', more = count_digits(p + n);
  if (!more || (p[n] == '0' && more > 1)) return 0;
  n += more;
  *integral = 1;
  if (p[n] == '.') {
    *integral = 0;
    more = count_digits(p + n + 1);
    if (!more) return 0;
    n += more + 1;
  }
  if (p[n] == 'e' || p[n] == 'E') {
    *integral = 0;
    size_t sign = p[n + 1] == '+' || p[n + 1] == '-';
    more = count_digits(p + n + 1 + sign);
    if (!more) return 0;
    n += more + 1 + sign;
  }
  return n;
}

/* Returns the length of the word or number at p as it is written, for messages. */
static int token_length(const char *p) {
  int n = 0;
  while (n < 60 && (isalnum((unsigned char)p[n]) || (p[n] && strchr("_+-.", p[n])))) n++;
  return n;
}

static tws_code scan_number(scanner *s, tws_json_mark *mark) {
  const char *p = s->text + s->at;
  int integral = 0;
  size_t n = number_length(p, &integral);
  if (!n || token_length(p + n) > 0)
    return REFUSE(s, "write numbers like 8, -1, 0.5 or 5e8", "\"%.*s\" is not a number of JSON", token_length(p), p);
  if (n > TWS_JSON_NUMBER_LENGTH)
    return REFUSE(s, "17 significant digits are all that a number can hold", "a number of %zu characters", n);
  const char *end;
  double number;
  if (!tws_text_number(p, &end, -HUGE_VAL, HUGE_VAL, &number))
    return REFUSE(s, "numbers reach to about 1.8e308", "the number %.*s overflows", (int)n, p);
  if (integral) {
    mark->is_integer = tws_text_integer(p, &end, INT64_MIN, INT64_MAX, &mark->integer);
  }
  for (; n > 0; n--) advance_one(s);
  return TWS_OK;
}

const char *tws_json_of_python(const char *text, size_t length) {
  static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
  for (int i = 0; i < 3; i++)
    if (strlen(words[i][0]) == length && strncmp(text, words[i][0], length) == 0) return words[i][1];
  return NULL;
}

size_t tws_json_ellipsis(const char *text) {
  return strncmp(text, "...", 3) == 0 || strncmp(text, "\xe2\x80\xa6", 3) == 0 ? 3 : 0;
}

static tws_code scan_word(scanner *s) {
  static const struct {
    const char *word, *hint;
  } wrong[] = {{"NaN", "JSON has no NaN"},           {"nan", "JSON has no NaN"},
               {"Infinity", "JSON has no infinity"}, {"inf", "JSON has no infinity"},
               {"yes", "JSON spells it true"},       {"no", "JSON spells it false"},
               {"auto", "write \"auto\" in quotes"}};
  const char *p = s->text + s->at;
  int n = token_length(p);
  static const char *const words[] = {"true", "false", "null"};
  for (int i = 0; i < 3; i++) {
    if ((size_t)n != strlen(words[i]) || strncmp(p, words[i], (size_t)n) != 0) continue;
    for (; n > 0; n--) advance_one(s);
    return TWS_OK;
  }
  const char *hint = "text goes in double quotes", *json = tws_json_of_python(p, (size_t)n);
  if (json) {
    char spelled[32];
    snprintf(spelled, sizeof spelled, "JSON spells it %s", json);
    return REFUSE(s, spelled, "unknown word \"%.*s\"" TWS_JSON_PYTHON, n, p);
  }
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
    if ((size_t)n == strlen(wrong[i].word) && strncmp(p, wrong[i].word, (size_t)n) == 0) hint = wrong[i].hint;
  return REFUSE(s, hint, "unknown word \"%.*s\"", n, p);
}

static tws_code add_mark(scanner *s, int line, int column) {
  tws_json_marks *m = s->marks;
  if (tws_reserve(&m->items, &m->capacity, m->count + 1, sizeof *m->items))
    return tws_fail(s->err, TWS_MEMORY, NULL, "%s: out of memory while reading", s->name);
  m->items[m->count++] = (tws_json_mark){.line = line, .column = column};
  return TWS_OK;
}

static tws_code unexpected(scanner *s, const char *wanted) {
  char c = peek(s);
  if (tws_json_ellipsis(s->text + s->at)) return REFUSE(s, TWS_JSON_ELLIPSIS_HINT, TWS_JSON_ELLIPSIS);
  if (!c) {
    if (s->depth > 0)
      return REFUSE(s, NULL, "the text ends, but the %s opened at %d:%d is still open",
                    s->open[s->depth - 1].closer == '}' ? "object" : "array", s->open[s->depth - 1].line,
                    s->open[s->depth - 1].column);
    return REFUSE(s, "is the file empty? an object without keys is {}", "the text ends where %s should be", wanted);
  }
  const char *hint = c == '\''  ? "strings take double quotes"
                     : c == '=' ? "keys and values are parted by a colon"
                                : NULL;
  size_t n = utf8_length((unsigned char *)s->text + s->at, s->length - s->at);
  return REFUSE(s, hint, "expected %s, found '%.*s'", wanted, (int)n, s->text + s->at);
}

static tws_code open_container(scanner *s) {
  if (s->depth == TWS_JSON_DEPTH) return REFUSE(s, NULL, "nested deeper than %d levels", TWS_JSON_DEPTH);
  s->open[s->depth].closer = peek(s) == '{' ? '}' : ']';
  s->open[s->depth].line = s->line;
  s->open[s->depth].column = s->column;
  s->depth++;
  s->comma = SIZE_MAX;
  advance_one(s);
  return TWS_OK;
}

static state after_value(const scanner *s) {
  return s->depth ? COMMA_OR_END : DONE;
}

static state close_container(scanner *s) {
  if (s->comma != SIZE_MAX) s->text[s->comma] = ' ';
  s->comma = SIZE_MAX;
  s->depth--;
  advance_one(s);
  return after_value(s);
}

static tws_code scan_value(scanner *s, int has_key, state *next) {
  char c = peek(s);
  if (!has_key) TWS_TRY(add_mark(s, s->line, s->column));
  *next = after_value(s);
  if (c == '{' || c == '[') {
    *next = c == '{' ? KEY_OR_END : VALUE_OR_END;
    return open_container(s);
  }
  s->comma = SIZE_MAX;
  if (c == '"') return scan_string(s);
  if (tws_json_ellipsis(s->text + s->at)) return unexpected(s, "a value");
  if (isdigit((unsigned char)c) || c == '-' || c == '+' || c == '.')
    return scan_number(s, &s->marks->items[s->marks->count - 1]);
  if (isalpha((unsigned char)c) || c == '_') return scan_word(s);
  return unexpected(s, "a value");
}

static int is_ellipsis_in_quotes(const char *key) {
  const size_t length = tws_json_ellipsis(key + 1);
  return length && key[1 + length] == '"';
}

static tws_code scan_step(scanner *s, state *now) {
  char c = peek(s);
  char closer = s->depth ? s->open[s->depth - 1].closer : 0;
  int in_object = closer == '}';
  switch (*now) {
    case KEY_OR_END:
      if (c == '}') {
        *now = close_container(s);
        return TWS_OK;
      }
      if (c != '"') return unexpected(s, "a key in double quotes");
      s->comma = SIZE_MAX;
      TWS_TRY(add_mark(s, s->line, s->column));
      *now = COLON;
      s->key = s->at;
      return scan_string(s);
    case COLON:
      if (c != ':' && is_ellipsis_in_quotes(s->text + s->key)) {
        const tws_json_mark *mark = &s->marks->items[s->marks->count - 1];
        return REFUSE_AT(s, mark->line, mark->column, TWS_JSON_ELLIPSIS_HINT, TWS_JSON_ELLIPSIS);
      }
      if (c != ':') return unexpected(s, "a colon");
      *now = VALUE;
      advance_one(s);
      return TWS_OK;
    case VALUE_OR_END:
      if (c == ']') {
        *now = close_container(s);
        return TWS_OK;
      }
      return scan_value(s, 0, now);
    case VALUE:
      return scan_value(s, in_object, now);
    case COMMA_OR_END:
      if (c && c == closer) {
        *now = close_container(s);
        return TWS_OK;
      }
      if (c != ',') return unexpected(s, in_object ? "a comma or }" : "a comma or ]");
      s->comma = s->at;
      *now = in_object ? KEY_OR_END : VALUE_OR_END;
      advance_one(s);
      return TWS_OK;
    case DONE:
      break;
  }
  return REFUSE(s, "one document a file", "text after the end of the document");
}

tws_code tws_json_scan(char *text, size_t length, const char *name, tws_json_marks *marks, tws_error *err) {
  if (length > TWS_JSON_SIZE)
    return tws_fail(err, TWS_INVALID, NULL, "%s: %zu bytes, and the limit is 64 MiB", name, length);
  scanner s = {.text = text, .length = length, .line = 1, .column = 1, .name = name, .marks = marks, .err = err};
  s.comma = SIZE_MAX;
  if (length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) memset(text, ' ', 3); /* byte order mark */
  TWS_TRY(check_bytes(&s));
  state now = VALUE;
  for (;;) {
    TWS_TRY(skip_space(&s));
    if (now == DONE && s.at == s.length) return TWS_OK;
    TWS_TRY(scan_step(&s, &now));
  }
}
