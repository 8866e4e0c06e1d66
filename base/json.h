/* JSON with source positions. Text is parsed into a cJSON tree, and the line and column of every item are stored, so
 * that an error can name its position. Because existing ds_config.json files have them, these are accepted in addition
 * to JSON: // and # comments, C comments, trailing commas. Refused with one clear error: duplicate keys, invalid UTF-8,
 * NUL bytes, nesting beyond 128 levels, documents over 64 MiB, numbers that overflow, text after the document. */
#ifndef TWS_BASE_JSON_H
#define TWS_BASE_JSON_H

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>
#include "base/output_file.h" /* declares functions that write files */
#include "base/status.h"

typedef struct tws_json {
  cJSON *root;
  char *name; /* file name for messages */
  struct tws_json_places *places; /* NULL: the tree is not of a text, and errors name no line */
} tws_json;

tws_code tws_json_parse(const char *text, size_t length, const char *name, tws_json **out, tws_error *err);
tws_code tws_json_read(const char *path, tws_json **out, tws_error *err); /* reads as tws_read_file() does */
/* Reads and parses a file, which must be a regular one, as tws_read_regular() does. */
tws_code tws_json_read_regular(const char *path, tws_json **out, tws_error *err);
/* Parse a JSON text or file, and accept Hjson if the text is not valid JSON: keys and texts without quotes or in single
 * ones, line ends in place of commas, no braces around the document. If both parsers fail, the error is that of the
 * parser whose error is later in the text. */
tws_code tws_json_parse_hjson(const char *text, size_t length, const char *name, tws_json **out, tws_error *err);
tws_code tws_json_read_hjson(const char *path, tws_json **out, tws_error *err);
/* Returns 1 if the text, which ends with a zero byte, is well-formed UTF-8, as all keys and strings of JSON must be. */
int tws_json_is_utf8(const char *text);
void tws_json_destroy(tws_json *json);

/* Sets the 1-based line and column of an item's key, or of its value for the root and array elements. */
void tws_json_place(const tws_json *json, const cJSON *item, int *line, int *column);
/* Makes a deep copy of a document with its source positions. */
tws_code tws_json_clone(const tws_json *json, tws_json **out, tws_error *err);
/* Returns 1 and sets *value if the item is an integral number of 64 bits (5e8 and 3.0 are; 2^63 counts as the
 * largest). *literal (may be NULL) is 1 if it is written as an integer, without point or exponent. json may be NULL. */
int tws_json_integer(const tws_json *json, const cJSON *item, int64_t *value, int *literal);
/* Formats the value for messages: 1.5, true, the string "abc", an object. Returns buffer. */
const char *tws_json_describe(const cJSON *item, char *buffer, size_t size);
/* Fails with TWS_INVALID and the message "name:line:column: message", with the item's position. */
tws_code tws_json_fail(const tws_json *json, const cJSON *item, tws_error *err, const char *hint, const char *format,
                       ...) __attribute__((format(printf, 5, 6)));

/* Read members of an object that have a type and a range. If the member is missing or null, *value becomes `fallback`,
 * unless required is 1, in which case a missing member is an error. Integers may be written as integral floats such as
 * 5e8. */
tws_code tws_json_int(const tws_json *json, const cJSON *object, const char *key, int required, int64_t low,
                      int64_t high, int64_t fallback, int64_t *value, tws_error *err);
tws_code tws_json_number(const tws_json *json, const cJSON *object, const char *key, int required, double low,
                         double high, double fallback, double *value, tws_error *err);
tws_code tws_json_bool(const tws_json *json, const cJSON *object, const char *key, int required, int fallback,
                       int *value, tws_error *err);
/* Reads a string member: *value points into the cJSON tree, or is `fallback`. */
tws_code tws_json_string(const tws_json *json, const cJSON *object, const char *key, int required, const char *fallback,
                         const char **value, tws_error *err);

/* Fails on the first member of `object` that is not in the NULL-terminated list, and suggests the closest known
 * name. */
tws_code tws_json_only(const tws_json *json, const cJSON *object, const char *const *known, tws_error *err);

/* Returns the closest of n words to `word` by edit distance, or NULL if none is close. All suggestions of names use
 * this function. */
const char *tws_closest(const char *word, const char *const *words, size_t n);
/* Writes "did you mean a? INTRO a, b, c" into hint, sorted with the words closest to `word` first; the question is
 * omitted if no word is close. If `all` is not NULL, it is a command that prints all n words: a long list is cut after
 * the ten closest words, and the command is named. If `all` is NULL, all words are listed. */
void tws_names_hint(const char *word, const char *const *words, size_t n, const char *intro, const char *all,
                    char *hint, size_t size);
/* Returns 1 if one word may be a misspelling of the other: at most a third of the letters differ. */
int tws_is_similar_word(const char *a, const char *b);

/* Reads a complete file into a zero-terminated buffer that the caller frees (tws_free). limit: most bytes, 0: 64 MiB.
 * Use it for paths given on the command line, which may name a pipe, and tws_read_regular() for files found in a
 * folder. "-" is standard input; its text is stored, so that a second call, also in a child process, returns it
 * again. */
tws_code tws_read_file(const char *path, size_t limit, char **text, size_t *length, tws_error *err);
/* Opens a file or pipe for sequential reading; fails with TWS_INVALID if it is a pipe that no process opens for writing
 * within five seconds. */
tws_code tws_open_stream(const char *path, int *fd, tws_error *err);
/* Read, or open for reading, a regular file; fail with TWS_INVALID if it is a pipe or a device, without blocking on a
 * pipe. */
tws_code tws_read_regular(const char *path, size_t limit, char **text, size_t *length, tws_error *err);
tws_code tws_open_regular(const char *path, int *fd, tws_error *err);
/* Reads the file `name` of the open directory `folder`; fails if it is a symbolic link. `path` is used in messages. */
tws_code tws_read_regular_in(int folder, const char *name, const char *path, size_t limit, char **text, size_t *length,
                             tws_error *err);

#endif
