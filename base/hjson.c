#include "base/hjson.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

typedef struct reader {
  const char *at, *line_start;
  int line, depth;
  const char *name;
  tws_text *out;
  tws_json_marks *marks;
  tws_error *err;
} reader;

static int column(const reader *r) {
  int characters = 1;
  for (const char *c = r->line_start; c < r->at; c++) characters += ((unsigned char)*c & 0xc0u) != 0x80u;
  return characters;
}

static tws_code refuse_here(const reader *r, const char *hint, const char *what) {
  return tws_fail(r->err, TWS_INVALID, hint, "%s:%d:%d: %s", r->name, r->line, column(r), what);
}

static void advance_one(reader *r) {
  if (*r->at++ != '\n') return;
  r->line++;
  r->line_start = r->at;
}

static int comment_starts(const char *at) {
  return *at == '#' || (at[0] == '/' && (at[1] == '/' || at[1] == '*'));
}

static void skip_space(reader *r) {
  for (;;) {
    if (isspace((unsigned char)*r->at)) {
      advance_one(r);
    } else if (r->at[0] == '/' && r->at[1] == '*') {
      for (int open = 2; *r->at && (open > 0 || !(r->at[0] == '*' && r->at[1] == '/')); open--) advance_one(r);
      for (int i = 0; i < 2 && *r->at; i++) advance_one(r);
    } else if (comment_starts(r->at)) {
      while (*r->at && *r->at != '\n') advance_one(r);
    } else {
      return;
    }
  }
}

static tws_code mark_value(reader *r) {
  tws_json_marks *m = r->marks;
  if (tws_reserve(&m->items, &m->capacity, m->count + 1, sizeof *m->items))
    return tws_fail(r->err, TWS_MEMORY, NULL, "%s: out of memory while reading", r->name);
  m->items[m->count++] = (tws_json_mark){.line = r->line, .column = column(r)};
  return TWS_OK;
}

/* Appends one byte of a text to a JSON string. Quotes, backslashes and control characters are escaped. */
static void put_byte(reader *r, char c) {
  if (c == '"' || c == '\\')
    tws_text_add(r->out, "\\%c", c);
  else if ((unsigned char)c < 0x20)
    tws_text_add(r->out, "\\u%04x", (unsigned char)c);
  else
    tws_text_add_bytes(r->out, &c, 1);
}

static tws_code quoted(reader *r) {
  const char quote = *r->at;
  tws_text_add_bytes(r->out, "\"", 1);
  for (advance_one(r); *r->at != quote; advance_one(r)) {
    if (!*r->at || *r->at == '\n') return refuse_here(r, "close it on the same line", "a string that never ends");
    if (*r->at == '\\' && r->at[1] == '\'') {
      advance_one(r);
      put_byte(r, '\'');
    } else if (*r->at == '\\') {
      tws_text_add_bytes(r->out, r->at, 1);
      advance_one(r);
      if (!*r->at || *r->at == '\n') return refuse_here(r, NULL, "a string that never ends");
      tws_text_add_bytes(r->out, r->at, 1); /* the strict JSON scan checks later if the escape is valid */
    } else {
      put_byte(r, *r->at);
    }
  }
  advance_one(r);
  tws_text_add_bytes(r->out, "\"", 1);
  return TWS_OK;
}

/* Reads a text of several lines between ''' and '''. The text is copied unchanged, except that indentation up to the
 * column of the opening quotes and the line ends next to the quotes are removed. */
static tws_code several_lines(reader *r) {
  const int indent = column(r) - 1;
  for (int i = 0; i < 3; i++) advance_one(r);
  while (*r->at == ' ' || *r->at == '\t' || *r->at == '\r') advance_one(r);
  if (*r->at == '\n') advance_one(r);
  tws_text_add_bytes(r->out, "\"", 1);
  while (strncmp(r->at, "'''", 3) != 0) {
    if (!*r->at) return refuse_here(r, "close it with '''", "a text of several lines that never ends");
    if (r->at == r->line_start)
      for (int i = 0; i < indent && (*r->at == ' ' || *r->at == '\t'); i++) advance_one(r);
    if (!*r->at || strncmp(r->at, "'''", 3) == 0) continue;
    if (*r->at != '\r' && !(*r->at == '\n' && strncmp(r->at + 1 + strspn(r->at + 1, " \t"), "'''", 3) == 0))
      put_byte(r, *r->at);
    advance_one(r);
  }
  for (int i = 0; i < 3; i++) advance_one(r);
  tws_text_add_bytes(r->out, "\"", 1);
  return TWS_OK;
}

/* Returns 1 if the text is a literal (true, false, null) or has the form of a JSON number. The strict scan checks the
 * number later; this function only distinguishes it from an unquoted text. */
static int is_plain(const char *text, size_t length) {
  static const char *const words[] = {"true", "false", "null"};
  for (int i = 0; i < 3; i++)
    if (length == strlen(words[i]) && strncmp(text, words[i], length) == 0) return 1;
  size_t i = length > 0 && text[0] == '-', digits = 0;
  if (text[i] == '0' && i + 1 < length && isdigit((unsigned char)text[i + 1])) return 0; /* JSON has no leading zeros */
  for (; i < length && isdigit((unsigned char)text[i]); i++) digits++;
  if (!digits) return 0;
  if (i < length && text[i] == '.') {
    size_t fraction = 0;
    for (i++; i < length && isdigit((unsigned char)text[i]); i++) fraction++;
    if (!fraction) return 0;
  }
  if (i < length && (text[i] == 'e' || text[i] == 'E')) {
    size_t exponent = 0;
    i++;
    if (i < length && (text[i] == '+' || text[i] == '-')) i++;
    for (; i < length && isdigit((unsigned char)text[i]); i++) exponent++;
    if (!exponent) return 0;
  }
  return i == length;
}

static int closes(const char *at) {
  at += strspn(at, " \t\r");
  return *at && strchr(",]}", *at);
}

/* Returns 1 if `at` begins with Python's None before a comma or bracket. None is read as a text; the code that
 * interprets the key accepts or refuses that text. */
static int is_none(const char *at) {
  return strncmp(at, "None", 4) == 0 && closes(at + 4);
}

/* Refuses an ellipsis, and Python's True or False before a comma or bracket: such text was copied from a shortened
 * listing or from Python's printed dictionaries. Hjson would read it, with the rest of the line, as a text. True or
 * False alone on its line is read as a text, as in DeepSpeed. */
static tws_code refuse_foreign(reader *r) {
  const size_t dots = tws_json_ellipsis(r->at), length = strspn(r->at, "TrueFals");
  const char *json = tws_json_of_python(r->at, length), *rest = r->at + dots + strspn(r->at + dots, " \t\r");
  if (dots && (!*rest || strchr(",]}\n", *rest) || comment_starts(rest)))
    return refuse_here(r, TWS_JSON_ELLIPSIS_HINT, TWS_JSON_ELLIPSIS);
  if (!json || !closes(r->at + length)) return TWS_OK;
  char what[64], hint[32];
  snprintf(what, sizeof what, "unknown word \"%.*s\"" TWS_JSON_PYTHON, (int)length, r->at);
  snprintf(hint, sizeof hint, "JSON spells it %s", json);
  return refuse_here(r, hint, what);
}

/* Reads an unquoted value: true, false, null, a number, or a text that extends to the end of the line. Commas and
 * brackets end a literal or number, but are characters of a text. */
static tws_code unquoted(reader *r) {
  const char *start = r->at, *end;
  TWS_TRY(refuse_foreign(r));
  if (strchr("{}[],:", *start)) return refuse_here(r, "put texts into quotes", "a value is missing here");
  for (end = is_none(start) ? start + 4 : start; *end && *end != '\n'; end++) {
    if (!strchr(",]}", *end) && !comment_starts(end)) continue;
    size_t length = (size_t)(end - start);
    while (length && isspace((unsigned char)start[length - 1])) length--;
    if (is_plain(start, length) || is_none(start)) break;
  }
  size_t length = (size_t)(end - start);
  while (length && isspace((unsigned char)start[length - 1])) length--;
  const int plain = is_plain(start, length);
  if (!plain) tws_text_add_bytes(r->out, "\"", 1);
  for (size_t i = 0; i < length; i++)
    if (plain)
      tws_text_add_bytes(r->out, start + i, 1);
    else
      put_byte(r, start[i]);
  if (!plain) tws_text_add_bytes(r->out, "\"", 1);
  r->at = start + length;
  return TWS_OK;
}

static tws_code read_key(reader *r) {
  if (*r->at == '"' || *r->at == '\'') return quoted(r);
  const char *start = r->at;
  while (*r->at && !isspace((unsigned char)*r->at) && !strchr("{}[],:", *r->at)) advance_one(r);
  if (r->at == start) return refuse_here(r, NULL, "a key is missing here");
  tws_text_add_bytes(r->out, "\"", 1);
  for (const char *c = start; c < r->at; c++) put_byte(r, *c);
  tws_text_add_bytes(r->out, "\"", 1);
  return TWS_OK;
}

static tws_code read_value(reader *r);

/* Reads the members of an object up to the character `closer`; '\0': up to the end of the text, for a document without
 * braces. */
static tws_code members(reader *r, char closer) {
  int count = 0;
  for (;;) {
    skip_space(r);
    if (*r->at == closer) break;
    if (!*r->at) return refuse_here(r, NULL, closer == '}' ? "an object that never ends" : "an array that never ends");
    if (count++) tws_text_add_bytes(r->out, ",", 1);
    TWS_TRY(mark_value(r));
    if (closer != ']') {
      const reader key = *r;
      TWS_TRY(read_key(r));
      skip_space(r);
      if (*r->at != ':' && tws_json_ellipsis(key.at + (*key.at == '"' || *key.at == '\'')))
        return refuse_here(&key, TWS_JSON_ELLIPSIS_HINT, TWS_JSON_ELLIPSIS);
      if (*r->at != ':') return refuse_here(r, "keys and values are parted by a colon", "a colon is missing here");
      advance_one(r);
      tws_text_add_bytes(r->out, ":", 1);
      skip_space(r);
    }
    TWS_TRY(read_value(r));
    const int line = r->line;
    skip_space(r);
    if (*r->at == ',')
      advance_one(r);
    else if (*r->at && *r->at != closer && r->line == line)
      return refuse_here(r, "on one line, values are parted by commas", "a comma is missing here");
  }
  if (closer) advance_one(r);
  return TWS_OK;
}

/* Reads one value. The caller has appended the value's mark, with the position of its key, or of the value in an
 * array. */
static tws_code read_value(reader *r) {
  const char c = *r->at;
  if (!c) return refuse_here(r, NULL, "a value is missing here");
  if (strncmp(r->at, "'''", 3) == 0) return several_lines(r);
  if (c == '"' || c == '\'') return quoted(r);
  if (c != '{' && c != '[') return unquoted(r);
  if (r->depth == TWS_JSON_DEPTH) return refuse_here(r, NULL, "nested too deeply");
  r->depth++;
  advance_one(r);
  tws_text_add_bytes(r->out, c == '{' ? "{" : "[", 1);
  TWS_TRY(members(r, c == '{' ? '}' : ']'));
  tws_text_add_bytes(r->out, c == '{' ? "}" : "]", 1);
  r->depth--;
  return TWS_OK;
}

tws_code tws_hjson_rewrite(const char *text, const char *name, tws_text *out, tws_json_marks *marks, tws_error *err) {
  reader r = {.at = text, .line_start = text, .line = 1, .name = name, .out = out, .marks = marks, .err = err};
  if (strncmp(text, "\xef\xbb\xbf", 3) == 0) r.at = r.line_start = text + 3;
  skip_space(&r);
  TWS_TRY(mark_value(&r));
  if (*r.at == '{' || *r.at == '[') {
    TWS_TRY(read_value(&r));
    skip_space(&r);
    if (*r.at) return refuse_here(&r, "one document a file", "text after the end of the document");
  } else {
    tws_text_add_bytes(out, "{", 1);
    if (!*r.at)
      return refuse_here(&r, "is the file empty? an object without keys is {}",
                         "the text ends where a value should be");
    TWS_TRY(members(&r, '\0'));
    tws_text_add_bytes(out, "}", 1);
  }
  return out->failed ? tws_fail(err, TWS_MEMORY, NULL, "%s: out of memory while reading", name) : TWS_OK;
}
