/* The JSON reader: accepted and refused texts, lines and columns of items and errors, and exhausted memory. */
#include <check.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/random.h"
#include "tests/failing_allocator.h"
#include "tests/suite.h"

static tws_error err;

static tws_code parse(const char *text, tws_json **out) {
  err = (tws_error){0};
  return tws_json_parse(text, strlen(text), "f", out, &err);
}

START_TEST(lenient_where_files_in_use_need_it) {
  tws_json *json;
  ck_assert_msg(
      parse("\xef\xbb\xbf// first\n{ # second\n \"a\": [1, 2,], /* \"b\": 3, */\n \"c\": {\"d\": \"//no,]\",},\n}\n",
            &json) == TWS_OK,
      "%s", err.message);
  const cJSON *a = cJSON_GetObjectItem(json->root, "a"), *c = cJSON_GetObjectItem(json->root, "c");
  ck_assert_int_eq(cJSON_GetArraySize(json->root), 2);
  ck_assert_int_eq(cJSON_GetArraySize(a), 2);
  ck_assert_str_eq(cJSON_GetObjectItem(c, "d")->valuestring, "//no,]");
  int line, column;
  tws_json_place(json, a, &line, &column);
  ck_assert(line == 3 && column == 2);
  tws_json_place(json, cJSON_GetArrayItem(a, 1), &line, &column);
  ck_assert(line == 3 && column == 11);
  tws_json_place(json, cJSON_GetObjectItem(c, "d"), &line, &column);
  ck_assert(line == 4 && column == 8);
  ck_assert_int_eq(tws_json_fail(json, c, &err, NULL, "wrong %d", 5), TWS_INVALID);
  ck_assert_str_eq(err.message, "f:4:2: wrong 5");
  tws_json *copy;
  ck_assert_int_eq(tws_json_clone(json, &copy, &err), TWS_OK);
  tws_json_destroy(json);
  tws_json_place(copy, cJSON_GetObjectItem(cJSON_GetObjectItem(copy->root, "c"), "d"), &line, &column);
  ck_assert(line == 4 && column == 8);
  tws_json_destroy(copy);
}
END_TEST

static tws_code parse_hjson(const char *text, tws_json **out) {
  err = (tws_error){0};
  return tws_json_parse_hjson(text, strlen(text), "f", out, &err);
}

/* Extensions that Hjson allows: each text reads as the JSON next to it. */
START_TEST(hjson) {
  static const char *const cases[][2] = {
      {"{\"a\": 1\n \"b\": 2}", "{\"a\": 1, \"b\": 2}"},
      {"{'a': 'x\\'\"y', \"b\": \"it's\"}", "{\"a\": \"x'\\\"y\", \"b\": \"it's\"}"},
      {"{a: 1, b_c: 5e8, d: true, e: null}", "{\"a\": 1, \"b_c\": 5e8, \"d\": true, \"e\": null}"},
      {"a: 1\nb: {\n c: text to the end, of the line \n d: [1\n2, 3]\n}\n",
       "{\"a\": 1, \"b\": {\"c\": \"text to the end, of the line\", \"d\": [1, 2, 3]}}"},
      {"# first\na: 1 // one\nb: false # two\n/* three */ c: -0.5e-3", "{\"a\": 1, \"b\": false, \"c\": -0.5e-3}"},
      {"a: 1.\nb: 01\nc: 1 2\nd: 1e\ne: C:\\d",
       "{\"a\": \"1.\", \"b\": \"01\", \"c\": \"1 2\", \"d\": \"1e\", \"e\": \"C:\\\\d\"}"},
      {"{\n  a: \'\'\'\n     one\n      two\n     \'\'\'\n}", "{\"a\": \"one\\n two\"}"},
      {"a: [\n  x\n  y\n]", "{\"a\": [\"x\", \"y\"]}"},
      {"{\"a\": 9007199254740993,}", "{\"a\": 9007199254740993}"},
      {"{}", "{}"},
      {"a: {}, b: []", "{\"a\": {}, \"b\": []}"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tws_json *read, *expected;
    ck_assert_msg(parse_hjson(cases[i][0], &read) == TWS_OK, "%s: %s", cases[i][0], err.message);
    ck_assert_int_eq(parse(cases[i][1], &expected), TWS_OK);
    char *text = cJSON_Print(read->root);
    ck_assert_msg(cJSON_Compare(read->root, expected->root, 1), "%s: %s", cases[i][0], text);
    cJSON_free(text);
    tws_json_destroy(read);
    tws_json_destroy(expected);
  }
  tws_json *json;
  int line, column;
  ck_assert_int_eq(parse_hjson("# note\na: 1\n  b: {c: 2, d: 3}", &json), TWS_OK);
  tws_json_place(json, cJSON_GetObjectItem(cJSON_GetObjectItem(json->root, "b"), "d"), &line, &column);
  ck_assert_msg(line == 3 && column == 13, "%d:%d", line, column);
  tws_json_destroy(json);
  static const char *const refused[][2] = {
      {"{\"a\": 1 \"b\": 2}", "f:1:9: expected a comma"},
      {"{a: 1 \"b\": 2}", "f:1:14: an object that never ends"},
      {"{a: 1,\n a: 2}", "f:2:2: duplicate key \"a\", first given at line 1, column 2"},
      {"{\"a\": nan}", "f:1:7: unknown word \"nan\""},
      {"{a: }", "f:1:5: a value is missing here"},
      {"{a 1}", "f:1:4: a colon is missing here"},
      {"{'a: 1}", "f:1:8: a string that never ends"},
      {"{\n  a: '''b\n  ", "f:3:3: a text of several lines that never ends"},
      {"{\"a\": \"\\q\"}", "f:1:8: unknown escape"},
      {"hello", "f:1:1: unknown word \"hello\""},
      {"", "f:1:1: the text ends"},
      {"{} {}", "f:1:4: text after the end"},
      {"a: \'\'\'x", "f:1:1: unknown word \"a\""}};
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    ck_assert_int_eq(parse_hjson(refused[i][0], &json), TWS_INVALID);
    ck_assert_msg(strncmp(err.message, refused[i][1], strlen(refused[i][1])) == 0, "%s: %s", refused[i][0],
                  err.message);
  }
  const char open_ended[] = {'{', 'a', ':', '1', '}'}; /* a text without a zero byte at its end */
  char *exact = malloc(sizeof open_ended);
  memcpy(exact, open_ended, sizeof open_ended);
  ck_assert_int_eq(tws_json_parse_hjson(exact, sizeof open_ended, "f", &json, &err), TWS_OK);
  tws_json_destroy(json);
  ck_assert_int_eq(tws_json_parse_hjson(exact, 4, "f", &json, &err), TWS_INVALID);
  free(exact);
  char deep[4096] = "a:";
  for (int i = 0; i < 1000; i++) strcat(deep, "[");
  ck_assert_int_eq(parse_hjson(deep, &json), TWS_INVALID);
}
END_TEST

START_TEST(refused_with_a_place) {
  static const struct {
    const char *text, *message;
  } cases[] = {
      {"", "f:1:1: the text ends"},
      {" \n ", "f:2:2: the text ends"},
      {"{\"a\": 1 \"b\": 2}", "f:1:9: expected a comma"},
      {"{\"a\": 1,\n \"b\": 2,\n \"\\u0061\": 3}", "f:3:2: duplicate key \"a\", first given at line 1, column 2"},
      {"{'a': 1}", "f:1:2: expected a key in double quotes, found '''"},
      {"{a: 1}", "f:1:2: expected a key"},
      {"{\"a\" 1}", "f:1:6: expected a colon"},
      {"{\"a\": nan}", "f:1:7: unknown word \"nan\""},
      {"{\"a\": True}", "f:1:7: unknown word \"True\""},
      {"{\"a\": -Infinity}", "f:1:7: \"-Infinity\" is not a number"},
      {"[1e999]", "f:1:2: the number 1e999 overflows"},
      {"[01]", "f:1:2: \"01\" is not a number"},
      {"[1.]", "\"1.\" is not a number"},
      {"[.5]", "\".5\" is not a number"},
      {"[+1]", "\"+1\" is not a number"},
      {"[1e]", "is not a number"},
      {"[0x10]", "is not a number"},
      {"[1 2]", "f:1:4: expected a comma or ]"},
      {"[,]", "f:1:2: expected a value"},
      {"[1,,2]", "f:1:4: expected a value"},
      {"{,}", "f:1:2: expected a key"},
      {"{\"a\": 1]", "f:1:8: expected a comma or }"},
      {"[1, {\"b\": ", "f:1:11: the text ends, but the object opened at 1:5 is still open"},
      {"\"abc", "f:1:1: the string opened here never ends"},
      {"\"a\nb\"", "f:1:1: the string opened here never ends"},
      {"\"a\tb\"", "f:1:3: control character 0x09"},
      {"\"\\x\"", "f:1:2: unknown escape \\x"},
      {"\"\\u12\"", "malformed \\u escape"},
      {"\"\\u0000\"", "\\u0000 is not allowed"},
      {"\"\\ud800\"", "half of a surrogate pair"},
      {"\"\\udc00\"", "half of a surrogate pair"},
      {"\"\\ud800\\u0041\"", "half of a surrogate pair"},
      {"/* abc", "f:1:1: the comment opened here never ends"},
      {"/*/", "f:1:1: the comment opened here never ends"},
      {"{} x", "f:1:4: text after the end"},
      {"{}\n{}", "f:2:1: text after the end"},
      {"\"\xc3\xa9\", \xff", "f:1:6: byte 0xff is not valid UTF-8"}, /* columns count letters */
      {"\"\xc0\x80\"", "byte 0xc0 is not valid UTF-8"},              /* overlong */
      {"\"\xed\xa0\x80\"", "byte 0xed is not valid UTF-8"},          /* surrogate */
      {"\"\xf4\x90\x80\x80\"", "byte 0xf4 is not valid UTF-8"},      /* beyond U+10FFFF */
      {"\"\xe2\x82", "byte 0xe2 is not valid UTF-8"},                /* cut */
      {"[1111111111111111111111111111111111111111111111111111111111111111111111]", "a number of 70 characters"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tws_json *json = (tws_json *)&err;
    tws_code code = parse(cases[i].text, &json);
    ck_assert_msg(code == TWS_INVALID && !json, "%s was not refused", cases[i].text);
    ck_assert_msg(strstr(err.message, cases[i].message) != NULL, "%s: %s", cases[i].text, err.message);
  }
  tws_json *json;
  ck_assert_int_eq(tws_json_parse("{\0}", 3, "f", &json, &err), TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.message, "f:1:2: a NUL byte"));
}
END_TEST

START_TEST(limits) {
  tws_json *json;
  char text[600];
  for (int depth = 127; depth <= 129; depth++) {
    memset(text, '[', (size_t)depth);
    memset(text + depth, ']', (size_t)depth);
    text[2 * depth] = 0;
    tws_code code = parse(text, &json);
    ck_assert_msg((code == TWS_OK) == (depth <= 128), "depth %d: %s", depth, err.message);
    tws_json_destroy(json);
  }
  memset(text, '[', 500); /* deep and never closed */
  text[500] = 0;
  ck_assert_int_eq(parse(text, &json), TWS_INVALID);
  size_t size = ((size_t)64 << 20) + 1;
  char *huge = calloc(size, 1);
  ck_assert_int_eq(tws_json_parse(huge, size, "f", &json, &err), TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.message, "64 MiB"));
  free(huge);
}
END_TEST

START_TEST(many_members_stay_quick) { /* with a quadratic check for duplicates this would take minutes */
  enum { N = 100000 };
  tws_text text = {0};
  tws_json *json;
  for (int i = 0; i < N; i++) tws_text_add(&text, "%s\"key%d\":%d", i ? "," : "{", (int)tws_random_permute(1, N, i), i);
  size_t good = text.length;
  tws_text_add(&text, "}");
  ck_assert_int_eq(tws_json_parse(text.data, text.length, "f", &json, &err), TWS_OK);
  tws_json_destroy(json);
  text.length = good;
  tws_text_add(&text, ",\"key77\":0}");
  ck_assert_int_eq(tws_json_parse(text.data, text.length, "f", &json, &err), TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.message, "duplicate key \"key77\""));
  tws_text_free(&text);
}
END_TEST

START_TEST(typed_members) {
  tws_json *json;
  ck_assert_int_eq(
      parse("{\"i\": 5e8, \"big\": 9223372036854775807, \"odd\": 9007199254740993, \"f\": 0.5, \"b\": true,\n"
            " \"s\": \"x\", \"n\": null, \"neg\": -3, \"huge\": 9223372036854775808, \"low\": -9223372036854775808}",
            &json),
      TWS_OK);
  int64_t i;
  double d;
  int b;
  const char *s;
#define INT(key, low, high) tws_json_int(json, json->root, key, 0, low, high, 7, &i, &err)
  ck_assert(INT("i", 0, INT64_MAX) == TWS_OK && i == 500000000);
  ck_assert(INT("big", 0, INT64_MAX) == TWS_OK && i == INT64_MAX);
  ck_assert(INT("huge", 0, INT64_MAX) == TWS_OK && i == INT64_MAX); /* sys.maxsize, as Python may write it */
  ck_assert(INT("low", INT64_MIN, INT64_MAX) == TWS_OK && i == INT64_MIN);
  ck_assert(INT("odd", 0, INT64_MAX) == TWS_OK && i == INT64_C(9007199254740993)); /* beyond a double */
  ck_assert(INT("n", 0, 9) == TWS_OK && i == 7);
  ck_assert(INT("absent", 0, 9) == TWS_OK && i == 7);
  ck_assert(INT("f", 0, 9) == TWS_INVALID &&
            strstr(err.message, "f:1:65: \"f\" must be an integer from 0 to 9, not 0.5"));
  ck_assert(INT("neg", 0, INT64_MAX) == TWS_INVALID && strstr(err.message, "at least 0, not -3"));
  ck_assert(INT("s", 0, 9) == TWS_INVALID && strstr(err.message, "f:2:2:") && strstr(err.message, "the string \"x\""));
  ck_assert(tws_json_int(json, json->root, "absent", 1, 0, 9, 7, &i, &err) == TWS_INVALID);
  ck_assert(strstr(err.message, "\"absent\" is missing") != NULL);
  ck_assert(tws_json_int(json, json->root, "n", 1, 0, 9, 7, &i, &err) == TWS_INVALID && strstr(err.message, "null"));
  ck_assert(tws_json_number(json, json->root, "f", 1, 0, 1, 0, &d, &err) == TWS_OK && d == 0.5);
  ck_assert(tws_json_number(json, json->root, "i", 1, 0, 1, 0, &d, &err) == TWS_INVALID);
  ck_assert(tws_json_number(json, json->root, "b", 1, -DBL_MAX, DBL_MAX, 0, &d, &err) == TWS_INVALID);
  ck_assert(tws_json_bool(json, json->root, "b", 1, 0, &b, &err) == TWS_OK && b == 1);
  ck_assert(tws_json_bool(json, json->root, "i", 1, 0, &b, &err) == TWS_INVALID);
  ck_assert(tws_json_string(json, json->root, "s", 1, NULL, &s, &err) == TWS_OK && strcmp(s, "x") == 0);
  ck_assert(tws_json_string(json, json->root, "i", 1, NULL, &s, &err) == TWS_INVALID);
  static const char *const known[] = {"i", "big", "odd", "f", "b", "s", "n", "neg", "hugo", "low", NULL};
  ck_assert(tws_json_only(json, json->root, known, &err) == TWS_INVALID);
  ck_assert(strstr(err.message, "f:2:34: unknown key \"huge\"") && strstr(err.hint, "\"hugo\""));
  tws_json_destroy(json);
}
END_TEST

/* ---- a random document keeps its values and the places of its members ---- */

typedef struct expected {
  int line, column;
  double number;
} expected;
typedef struct writer {
  tws_text text;
  int line, column, places;
  expected place[4096];
  uint64_t index;
} writer;

static unsigned draw(writer *w, unsigned below) {
  return (unsigned)(tws_random_uniform(99, 1, w->index++) * below);
}
static void put(writer *w, const char *piece) {
  for (const char *p = piece; *p; p++) {
    if (*p == '\n') {
      w->line++;
      w->column = 1;
    } else if (((unsigned char)*p & 0xc0) != 0x80) {
      w->column++;
    }
  }
  tws_text_add(&w->text, "%s", piece);
}
static void space(writer *w) {
  static const char *const spaces[] = {"",      " ",   "\n", "\t ", " // note, \"quoted\"\n", "/* a\n * b */",
                                       "# x\n", "\r\n"};
  put(w, spaces[draw(w, 8)]);
}
static void mark(writer *w, double number) {
  w->place[w->places++] = (expected){w->line, w->column, number};
}
static void write_value(writer *w, int depth, int marked) {
  char buffer[64];
  unsigned kind = draw(w, depth < 5 ? 6 : 3), n = draw(w, 5);
  double number = ldexp(tws_random_uniform(98, 2, w->index++) - 0.5, (int)draw(w, 80) - 20);
  snprintf(buffer, sizeof buffer, "%.17g", number);
  number = kind == 0 ? strtod(buffer, NULL) : NAN;
  if (!marked)
    mark(w, number);
  else
    w->place[w->places - 1].number = number;
  if (kind == 0)
    put(w, buffer);
  else if (kind == 1)
    put(w, "\"\\u00e9\xc3\xa9 \\ud83d\\ude00, ]}\\\"\"");
  else if (kind == 2)
    put(w, draw(w, 2) ? "true" : "null");
  else if (kind == 3) {
    put(w, "[");
    for (unsigned i = 0; i < n; i++) {
      space(w);
      write_value(w, depth + 1, 0);
      space(w);
      if (i + 1 < n || draw(w, 2)) put(w, ",");
    }
    space(w);
    put(w, "]");
  } else {
    put(w, "{");
    for (unsigned i = 0; i < n; i++) {
      space(w);
      mark(w, NAN);
      snprintf(buffer, sizeof buffer, "\"k\xc3\xa9%u\"", i);
      put(w, buffer);
      space(w);
      put(w, ":");
      space(w);
      write_value(w, depth + 1, 1);
      space(w);
      if (i + 1 < n || draw(w, 2)) put(w, ",");
    }
    space(w);
    put(w, "}");
  }
}
static int compare(const tws_json *json, const cJSON *item, const writer *w, int at) {
  int line, column;
  tws_json_place(json, item, &line, &column);
  ck_assert_msg(line == w->place[at].line && column == w->place[at].column, "item %d at %d:%d, expected %d:%d in\n%s",
                at, line, column, w->place[at].line, w->place[at].column, w->text.data);
  if (!isnan(w->place[at].number)) ck_assert_double_eq(item->valuedouble, w->place[at].number);
  at++;
  for (const cJSON *child = item->child; child; child = child->next) at = compare(json, child, w, at);
  return at;
}

START_TEST(random_documents_keep_places) {
  static writer w;
  int items = 0;
  for (int round = 0; round < 300; round++) {
    w.text = (tws_text){0};
    w.line = w.column = 1;
    w.places = 0;
    space(&w);
    write_value(&w, 0, 0);
    space(&w);
    tws_json *json;
    ck_assert_msg(parse(w.text.data, &json) == TWS_OK, "%s\n%s", err.message, w.text.data);
    ck_assert_int_eq(compare(json, json->root, &w, 0), w.places);
    items += w.places;
    tws_json_destroy(json);
    tws_text_free(&w.text);
  }
  ck_assert_int_gt(items, 2000);
}
END_TEST

static tws_code parse_and_clone(void *user) {
  tws_json *json, *copy;
  tws_error why = {0};
  TWS_TRY(tws_json_parse(user, strlen(user), "f", &json, &why));
  tws_code code = tws_json_clone(json, &copy, &why);
  tws_json_destroy(copy);
  tws_json_destroy(json);
  return code;
}

START_TEST(every_allocation_may_fail) {
  long bad,
      tried = fail_every_allocation(
          parse_and_clone,
          "{\"a\": [1, 2, {\"b\": \"text\", \"c\": [true, null]}], \"d\": 5, \"e\": {\"f\": [], \"g\": {}}}", &bad);
  ck_assert_int_eq(bad, 0);
  ck_assert_int_gt(tried, 20);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("json");
  TCase *all = tcase_create("all");
  tcase_set_timeout(all, 60);
  tcase_add_test(all, lenient_where_files_in_use_need_it);
  tcase_add_test(all, refused_with_a_place);
  tcase_add_test(all, hjson);
  tcase_add_test(all, limits);
  tcase_add_test(all, many_members_stay_quick);
  tcase_add_test(all, typed_members);
  tcase_add_test(all, random_documents_keep_places);
  tcase_add_test(all, every_allocation_may_fail);
  suite_add_tcase(suite, all);
  return run_suite(suite);
}
