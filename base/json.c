#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hjson.h"
#include "base/json_scan.h"
#include "base/memory.h"
#include "base/number.h"

/* Hash table that maps the address of a cJSON item to the item's mark, which has the position in the source text. It is
 * needed because cJSON items have no member for a position. */
struct tws_json_places {
  tws_json_marks marks;
  size_t mask; /* slots - 1 */
  struct slot {
    const cJSON *item;
    size_t mark;
  } * slots;
};

static size_t hash_item(const cJSON *item, size_t mask) {
  return (size_t)(((uint64_t)(uintptr_t)item * UINT64_C(0x9E3779B97F4A7C15)) >> 20) & mask;
}

static const tws_json_mark *find_mark(const tws_json *json, const cJSON *item) {
  const struct tws_json_places *places = json ? json->places : NULL;
  if (!places || !places->slots || !item) return NULL;
  for (size_t i = hash_item(item, places->mask); places->slots[i].item; i = (i + 1) & places->mask)
    if (places->slots[i].item == item) return &places->marks.items[places->slots[i].mark];
  return NULL;
}

void tws_json_place(const tws_json *json, const cJSON *item, int *line, int *column) {
  const tws_json_mark *mark = find_mark(json, item);
  *line = mark ? mark->line : 1;
  *column = mark ? mark->column : 1;
}

tws_code tws_json_fail(const tws_json *json, const cJSON *item, tws_error *err, const char *hint, const char *format,
                       ...) {
  char message[sizeof err->message];
  va_list arguments;
  va_start(arguments, format);
  if (vsnprintf(message, sizeof message, format, arguments) < 0) message[0] = 0;
  va_end(arguments);
  int line, column;
  if (json && !json->places) return tws_fail(err, TWS_INVALID, hint, "%s: %s", json->name, message);
  tws_json_place(json, item, &line, &column);
  return tws_fail(err, TWS_INVALID, hint, "%s:%d:%d: %s", json ? json->name : "json", line, column, message);
}

/* ---- building the tree ---- */

typedef struct walk {
  tws_json *json;
  size_t next; /* index of the next mark */
  const cJSON **scratch;
  size_t capacity;
  tws_error *err;
} walk;

static int compare_keys(const void *a, const void *b) {
  return strcmp((*(const cJSON *const *)a)->string, (*(const cJSON *const *)b)->string);
}

static int place_before(const tws_json *json, const cJSON *a, const cJSON *b) {
  const tws_json_mark *x = find_mark(json, a), *y = find_mark(json, b);
  return x->line != y->line ? x->line < y->line : x->column < y->column;
}

static tws_code check_duplicates(walk *w, const cJSON *object) {
  size_t n = 0;
  for (const cJSON *child = object->child; child; child = child->next) n++;
  if (n < 2) return TWS_OK;
  if (tws_reserve(&w->scratch, &w->capacity, n, sizeof *w->scratch))
    return tws_fail(w->err, TWS_MEMORY, NULL, "%s: out of memory", w->json->name);
  n = 0;
  for (const cJSON *child = object->child; child; child = child->next) w->scratch[n++] = child;
  qsort(w->scratch, n, sizeof *w->scratch, compare_keys);
  for (size_t i = 1; i < n; i++) {
    const cJSON *a = w->scratch[i - 1], *b = w->scratch[i];
    if (strcmp(a->string, b->string) != 0) continue;
    int second_is_a = place_before(w->json, b, a), line, column;
    tws_json_place(w->json, second_is_a ? b : a, &line, &column);
    return tws_json_fail(w->json, second_is_a ? a : b, w->err, "keep one of the two",
                         "duplicate key \"%.100s\", first given at line %d, column %d", a->string, line, column);
  }
  return TWS_OK;
}

/* Assigns the next mark to an item and then visits the item's children. The scan has bounded the depth of the
 * recursion. */
static tws_code visit_item(walk *w, const cJSON *item) {
  struct tws_json_places *places = w->json->places;
  if (w->next >= places->marks.count)
    return tws_fail(w->err, TWS_INTERNAL, NULL, "%s: more values than recorded positions", w->json->name);
  size_t i = hash_item(item, places->mask);
  while (places->slots[i].item) i = (i + 1) & places->mask;
  places->slots[i] = (struct slot){item, w->next++};
  for (const cJSON *child = item->child; child; child = child->next) TWS_TRY(visit_item(w, child));
  return cJSON_IsObject(item) ? check_duplicates(w, item) : TWS_OK;
}

/* Builds the cJSON tree. elsewhere: positions of the values in the original, if the text was rewritten from it; or
 * NULL. */
static tws_code build_from_text(tws_json *json, char *text, size_t length, const tws_json_marks *elsewhere,
                                tws_error *err) {
  struct tws_json_places *places = json->places;
  TWS_TRY(tws_json_scan(text, length, json->name, &places->marks, err));
  for (size_t i = 0; elsewhere && i < places->marks.count && i < elsewhere->count; i++) {
    places->marks.items[i].line = elsewhere->items[i].line;
    places->marks.items[i].column = elsewhere->items[i].column;
  }
  size_t slots = 16;
  while (slots < 2 * places->marks.count) slots *= 2;
  places->slots = tws_calloc(slots, sizeof *places->slots);
  places->mask = slots - 1;
  /* The scan has accepted the text, so the only possible failure is that memory is exhausted. */
  json->root = places->slots ? cJSON_ParseWithLengthOpts(text, length + 1, NULL, 1) : NULL;
  if (!json->root) return tws_fail(err, TWS_MEMORY, NULL, "%s: out of memory", json->name);
  walk w = {.json = json, .err = err};
  tws_code code = visit_item(&w, json->root);
  tws_free(w.scratch);
  return code;
}

static tws_json *create_named(const char *name) {
  tws_json *json = tws_calloc(1, sizeof *json);
  if (!json) return NULL;
  size_t length = strlen(name) + 1;
  json->name = tws_calloc(length, 1);
  json->places = tws_calloc(1, sizeof *json->places);
  if (!json->name || !json->places) {
    tws_json_destroy(json);
    return NULL;
  }
  memcpy(json->name, name, length);
  return json;
}

static tws_code parse_text(const char *text, size_t length, const char *name, const tws_json_marks *elsewhere,
                           tws_json **out, tws_error *err) {
  *out = NULL;
  if (length > TWS_JSON_SIZE)
    return tws_fail(err, TWS_INVALID, NULL, "%s: %zu bytes, and the limit is 64 MiB", name, length);
  tws_json *json = create_named(name);
  char *copy = tws_calloc(length + 1, 1);
  tws_code code;
  if (!json || !copy) {
    code = tws_fail(err, TWS_MEMORY, NULL, "%s: out of memory", name);
  } else {
    if (length) memcpy(copy, text, length);
    code = build_from_text(json, copy, length, elsewhere, err);
  }
  tws_free(copy);
  if (code == TWS_OK)
    *out = json;
  else
    tws_json_destroy(json);
  return code;
}

tws_code tws_json_parse(const char *text, size_t length, const char *name, tws_json **out, tws_error *err) {
  return parse_text(text, length, name, NULL, out, err);
}

/* Parses the beginning "name:LINE:COLUMN:" of an error's message: the position where a parser found the error. */
static void place_of(const tws_error *err, const char *name, int *line, int *column) {
  *line = *column = 0;
  size_t length = strlen(name);
  const char *at = err->message + length;
  if (strncmp(err->message, name, length) == 0 && *at == ':' && tws_text_int(at + 1, &at, 0, INT32_MAX, line) &&
      *at == ':')
    tws_text_int(at + 1, &at, 0, INT32_MAX, column);
}

/* Returns 1 if the error is about an ellipsis or a literal of Python, which neither JSON nor Hjson allows. */
static int is_foreign(const tws_error *err) {
  return strstr(err->message, TWS_JSON_ELLIPSIS) || strstr(err->message, TWS_JSON_PYTHON);
}

/* Returns 1 if the position of the Hjson parser's error is later in the text than that of the strict JSON parser's
 * error. */
static int lenient_is_nearer(const tws_error *strict, const tws_error *lenient, const char *name) {
  int strict_line, strict_column, line, column;
  if (is_foreign(strict)) return 0;
  if (!is_foreign(lenient) && !strstr(strict->message, "expected a key in double quotes") &&
      !strstr(strict->message, "expected a comma") && !strstr(strict->message, "found '\''"))
    return 0;
  if (strstr(strict->message, "expected a comma") && strstr(lenient->message, "never ends")) return 0;
  place_of(strict, name, &strict_line, &strict_column);
  place_of(lenient, name, &line, &column);
  return line > strict_line || (line == strict_line && column > strict_column);
}

tws_code tws_json_parse_hjson(const char *text, size_t length, const char *name, tws_json **out, tws_error *err) {
  tws_error strict = {0}, lenient = {0};
  tws_code code = tws_json_parse(text, length, name, out, &strict);
  if (code != TWS_INVALID || strstr(strict.message, "duplicate key") || length > TWS_JSON_SIZE ||
      memchr(text, '\0', length)) {
    if (err && code != TWS_OK) *err = strict;
    return code;
  }
  tws_text rewritten = {0}, ended = {0};
  tws_json_marks marks = {0};
  tws_text_add_bytes(&ended, text, length);
  tws_code read = ended.failed || !ended.data ? tws_fail(&lenient, TWS_MEMORY, NULL, "%s: out of memory", name)
                                              : tws_hjson_rewrite(ended.data, name, &rewritten, &marks, &lenient);
  tws_text_free(&ended);
  if (read == TWS_OK) {
    read = parse_text(rewritten.data, rewritten.length, name, &marks, out, &lenient);
    if (read == TWS_INVALID && !strstr(lenient.message, "duplicate key"))
      /* the lenient parser names positions in the rewritten text, so the error of the strict parser is reported */
      lenient = strict;
  } else if (read == TWS_INVALID && !lenient_is_nearer(&strict, &lenient, name)) {
    lenient = strict;
  }
  tws_text_free(&rewritten);
  tws_free(marks.items);
  if (err && read != TWS_OK) *err = lenient;
  return read;
}

typedef tws_code reader(const char *path, size_t limit, char **text, size_t *length, tws_error *err);
typedef tws_code parser(const char *text, size_t length, const char *name, tws_json **out, tws_error *err);

static tws_code read_as(reader *read, parser *parse, const char *path, tws_json **out, tws_error *err) {
  char *text;
  size_t length;
  *out = NULL;
  TWS_TRY(read(path, TWS_JSON_SIZE, &text, &length, err));
  tws_code code = parse(text, length, strcmp(path, "-") == 0 ? "standard input" : path, out, err);
  tws_free(text);
  return code;
}

tws_code tws_json_read(const char *path, tws_json **out, tws_error *err) {
  return read_as(tws_read_file, tws_json_parse, path, out, err);
}

tws_code tws_json_read_regular(const char *path, tws_json **out, tws_error *err) {
  return read_as(tws_read_regular, tws_json_parse, path, out, err);
}

tws_code tws_json_read_hjson(const char *path, tws_json **out, tws_error *err) {
  return read_as(tws_read_file, tws_json_parse_hjson, path, out, err);
}

static tws_code clone_into(const tws_json *json, tws_json *copy, tws_error *err) {
  const tws_json_marks *from = &json->places->marks;
  struct tws_json_places *places = copy->places;
  places->mask = json->places->mask;
  places->slots = tws_calloc(places->mask + 1, sizeof *places->slots);
  places->marks.items = tws_calloc(from->count, sizeof *from->items);
  copy->root = cJSON_Duplicate(json->root, 1);
  if (!places->slots || !places->marks.items || !copy->root)
    return tws_fail(err, TWS_MEMORY, NULL, "%s: out of memory", json->name);
  memcpy(places->marks.items, from->items, from->count * sizeof *from->items);
  places->marks.count = places->marks.capacity = from->count;
  walk w = {.json = copy, .err = err};
  tws_code code = visit_item(&w, copy->root);
  tws_free(w.scratch);
  return code;
}

tws_code tws_json_clone(const tws_json *json, tws_json **out, tws_error *err) {
  *out = NULL;
  tws_json *copy = create_named(json->name);
  tws_code code = copy ? clone_into(json, copy, err) : tws_fail(err, TWS_MEMORY, NULL, "%s: out of memory", json->name);
  if (code == TWS_OK)
    *out = copy;
  else
    tws_json_destroy(copy);
  return code;
}

void tws_json_destroy(tws_json *json) {
  if (!json) return;
  cJSON_Delete(json->root);
  if (json->places) {
    tws_free(json->places->marks.items);
    tws_free(json->places->slots);
  }
  tws_free(json->places);
  tws_free(json->name);
  tws_free(json);
}

/* ---- typed members ---- */

const char *tws_json_describe(const cJSON *item, char *buffer, size_t size) {
  if (cJSON_IsString(item))
    snprintf(buffer, size, "the string \"%.60s\"", item->valuestring);
  else if (cJSON_IsNumber(item))
    snprintf(buffer, size, "%.12g", item->valuedouble);
  else
    snprintf(buffer, size, "%s",
             cJSON_IsBool(item)     ? (cJSON_IsTrue(item) ? "true" : "false")
             : cJSON_IsObject(item) ? "an object"
             : cJSON_IsArray(item)  ? "an array"
                                    : "null");
  return buffer;
}

static tws_code refuse_type(const tws_json *json, const cJSON *item, const char *key, const char *wanted,
                            const char *hint, tws_error *err) {
  char got[96];
  return tws_json_fail(json, item, err, hint, "\"%.100s\" must be %s, not %s", key, wanted,
                       tws_json_describe(item, got, sizeof got));
}

/* Finds a member of an object and sets *item to it, or to NULL if the caller's fallback applies; fails if a required
 * one is missing. */
static tws_code find_member(const tws_json *json, const cJSON *object, const char *key, int required,
                            const cJSON **item, tws_error *err) {
  *item = cJSON_GetObjectItemCaseSensitive(object, key);
  if (*item && !cJSON_IsNull(*item)) return TWS_OK;
  char hint[128];
  snprintf(hint, sizeof hint, "give \"%.80s\" a value there", key);
  if (required)
    return tws_json_fail(json, *item ? *item : object, err, hint, "key \"%s\" is %s, and it is required", key,
                         *item ? "null" : "missing");
  *item = NULL;
  return TWS_OK;
}

int tws_json_integer(const tws_json *json, const cJSON *item, int64_t *value, int *literal) {
  if (literal) *literal = 0;
  if (!cJSON_IsNumber(item)) return 0;
  const tws_json_mark *mark = find_mark(json, item);
  double number = item->valuedouble;
  if (mark && mark->is_integer) {
    *value = mark->integer;
    if (literal) *literal = 1;
    return 1;
  }
  if (number != floor(number) || number < -0x1p63 || number > 0x1p63) return 0;
  /* 2^63 itself is INT64_MAX rounded to a double */
  *value = number == 0x1p63 ? INT64_MAX : (int64_t)number;
  return 1;
}

tws_code tws_json_int(const tws_json *json, const cJSON *object, const char *key, int required, int64_t low,
                      int64_t high, int64_t fallback, int64_t *value, tws_error *err) {
  const cJSON *item;
  *value = fallback;
  TWS_TRY(find_member(json, object, key, required, &item, err));
  if (!item) return TWS_OK;
  char wanted[96] = "an integer";
  if (high != INT64_MAX)
    snprintf(wanted, sizeof wanted, "an integer from %lld to %lld", (long long)low, (long long)high);
  else if (low != INT64_MIN)
    snprintf(wanted, sizeof wanted, "an integer of at least %lld", (long long)low);
  int64_t integer;
  if (!tws_json_integer(json, item, &integer, NULL))
    return refuse_type(json, item, key, wanted, cJSON_IsString(item) ? "leave out the quotes" : NULL, err);
  if (integer < low || integer > high) return refuse_type(json, item, key, wanted, NULL, err);
  *value = integer;
  return TWS_OK;
}

tws_code tws_json_number(const tws_json *json, const cJSON *object, const char *key, int required, double low,
                         double high, double fallback, double *value, tws_error *err) {
  const cJSON *item;
  *value = fallback;
  TWS_TRY(find_member(json, object, key, required, &item, err));
  if (!item) return TWS_OK;
  char wanted[96] = "a number";
  if (isfinite(low) && isfinite(high))
    snprintf(wanted, sizeof wanted, "a number from %g to %g", low, high);
  else if (isfinite(low))
    snprintf(wanted, sizeof wanted, "a number of at least %g", low);
  else if (isfinite(high))
    snprintf(wanted, sizeof wanted, "a number of at most %g", high);
  if (!cJSON_IsNumber(item) || !(item->valuedouble >= low && item->valuedouble <= high))
    return refuse_type(json, item, key, wanted, cJSON_IsString(item) ? "leave out the quotes" : NULL, err);
  *value = item->valuedouble;
  return TWS_OK;
}

tws_code tws_json_bool(const tws_json *json, const cJSON *object, const char *key, int required, int fallback,
                       int *value, tws_error *err) {
  const cJSON *item;
  *value = fallback;
  TWS_TRY(find_member(json, object, key, required, &item, err));
  if (!item) return TWS_OK;
  if (!cJSON_IsBool(item)) return refuse_type(json, item, key, "true or false", NULL, err);
  *value = cJSON_IsTrue(item);
  return TWS_OK;
}

tws_code tws_json_string(const tws_json *json, const cJSON *object, const char *key, int required, const char *fallback,
                         const char **value, tws_error *err) {
  const cJSON *item;
  *value = fallback;
  TWS_TRY(find_member(json, object, key, required, &item, err));
  if (!item) return TWS_OK;
  if (!cJSON_IsString(item)) return refuse_type(json, item, key, "a string", "put it in double quotes", err);
  *value = item->valuestring;
  return TWS_OK;
}

tws_code tws_json_only(const tws_json *json, const cJSON *object, const char *const *known, tws_error *err) {
  size_t n = 0;
  while (known[n]) n++;
  for (const cJSON *child = object->child; child; child = child->next) {
    size_t i = 0;
    while (i < n && strcmp(known[i], child->string) != 0) i++;
    if (i < n) continue;
    char hint[sizeof err->hint];
    const char *close = tws_closest(child->string, known, n);
    size_t used =
        (size_t)snprintf(hint, sizeof hint, close ? "did you mean \"%s\"?" : "known keys:%s", close ? close : "");
    for (i = 0; !close && i < n && used < sizeof hint; i++)
      used += (size_t)snprintf(hint + used, sizeof hint - used, "%s %s", i ? "," : "", known[i]);
    return tws_json_fail(json, child, err, hint, "unknown key \"%.100s\"", child->string);
  }
  return TWS_OK;
}
