/* JSON with source positions. Text is parsed into a cJSON tree; the line and column of every item are kept, so that
 * an error can point at it. Accepted in addition to JSON, because ds_config.json files in use need it: // and #
 * comments, C comments, trailing commas. Refused with one clear error: duplicate keys, invalid UTF-8, NUL bytes,
 * nesting beyond 128 levels, documents over 64 MiB, numbers that overflow, text after the document. */
#ifndef TWS_BASE_JSON_H
#define TWS_BASE_JSON_H

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>
#include "base/output_file.h" /* and how files are written */
#include "base/status.h"

typedef struct tws_json {
  cJSON *root;
  char *name; /* file name for messages */
  struct tws_json_places *places;
} tws_json;

tws_code tws_json_parse(const char *text, size_t length, const char *name, tws_json **out, tws_error *err);
tws_code tws_json_read(const char *path, tws_json **out, tws_error *err); /* as tws_read_file() */
/* Reads a file of a folder, which must be a regular one, as tws_read_regular() does. */
tws_code tws_json_read_regular(const char *path, tws_json **out, tws_error *err);
/* The same two functions, which also accept Hjson where the text is no JSON: keys and texts without quotes or in
 * single ones, line ends in place of commas, no braces around the document. If both readings fail, the error is that
 * of the one that got further. */
tws_code tws_json_parse_hjson(const char *text, size_t length, const char *name, tws_json **out, tws_error *err);
tws_code tws_json_read_hjson(const char *path, tws_json **out, tws_error *err);
void tws_json_destroy(tws_json *json);

/* 1-based line and column of an item's key (its value, for the root and array elements). */
void tws_json_place(const tws_json *json, const cJSON *item, int *line, int *column);
/* A deep copy, source positions included. */
tws_code tws_json_clone(const tws_json *json, tws_json **out, tws_error *err);
/* Returns 1 and sets *value if the item is an integral number of 64 bits (5e8 and 3.0 are; 2^63 counts as the
 * largest). *literal (may be NULL) is 1 if it is written as an integer, without point or exponent. json may be NULL. */
int tws_json_integer(const tws_json *json, const cJSON *item, int64_t *value, int *literal);
/* Formats the value for messages: 1.5, true, the string "abc", an object. Returns buffer. */
const char *tws_json_describe(const cJSON *item, char *buffer, size_t size);
/* Fail with "name:line:column: message". */
tws_code tws_json_fail(const tws_json *json, const cJSON *item, tws_error *err, const char *hint, const char *format,
                       ...) __attribute__((format(printf, 5, 6)));

/* Typed members of an object, with range. A missing or null member gives `fallback` unless required (NULL fallback is
 * not used: required != 0 makes absence an error). Integers accept integral floats such as 5e8. */
tws_code tws_json_int(const tws_json *json, const cJSON *object, const char *key, int required, int64_t low,
                      int64_t high, int64_t fallback, int64_t *value, tws_error *err);
tws_code tws_json_number(const tws_json *json, const cJSON *object, const char *key, int required, double low,
                         double high, double fallback, double *value, tws_error *err);
tws_code tws_json_bool(const tws_json *json, const cJSON *object, const char *key, int required, int fallback,
                       int *value, tws_error *err);
/* *value points into the tree, or is `fallback` */
tws_code tws_json_string(const tws_json *json, const cJSON *object, const char *key, int required, const char *fallback,
                         const char **value, tws_error *err);

/* Fail on the first member of `object` that is not in the NULL-terminated list, with a did-you-mean. */
tws_code tws_json_only(const tws_json *json, const cJSON *object, const char *const *known, tws_error *err);

/* Closest of n words to `word` by edit distance, or NULL when none is close. Shared by every did-you-mean. */
const char *tws_closest(const char *word, const char *const *words, size_t n);
/* Writes "did you mean a? INTRO a, b, c" into hint: all n words, closest to `word` first, and no question where none
 * is close. A hint of tws_error has room for all built-in names. */
void tws_names_hint(const char *word, const char *const *words, size_t n, const char *intro, char *hint, size_t size);
/* Returns 1 if one word may be a typing error of the other: at most a third of the letters differ. */
int tws_near(const char *a, const char *b);

/* Reads a whole file into a zero-terminated buffer that the caller frees (tws_free). limit 0: 64 MiB. It is for
 * paths of a command line, which may name a pipe; files of a folder are read with tws_read_regular(). "-" is
 * standard input, whose text is kept: a second call returns the same text, in a child process too. */
tws_code tws_read_file(const char *path, size_t limit, char **text, size_t *length, tws_error *err);
/* Opens a file or pipe for sequential reading. TWS_INVALID: a pipe that no process opens for writing within five
 * seconds. */
tws_code tws_open_stream(const char *path, int *fd, tws_error *err);
/* Read, or open for reading, a regular file: TWS_INVALID where it is a pipe or a device. They never block on a pipe. */
tws_code tws_read_regular(const char *path, size_t limit, char **text, size_t *length, tws_error *err);
tws_code tws_open_regular(const char *path, int *fd, tws_error *err);
/* Reads `name` in an open directory, where a symbolic link is refused; `path` is for messages. */
tws_code tws_read_regular_in(int folder, const char *name, const char *path, size_t limit, char **text, size_t *length,
                             tws_error *err);

#endif
