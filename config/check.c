#include "config/check.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/json_scan.h"
#include "base/number.h"

typedef struct text {
  char data[160];
  size_t used;
} text;

static void add_range(text *t, const tws_key *key, const cJSON *item) {
  char piece[96] = "";
  /* 1: the value exceeds the upper limit; the limit is then shown even if it is huge */
  int beyond = cJSON_IsNumber(item) && item->valuedouble > key->high;
  if (key->bounded && key->high >= 1e12 && !beyond)
    snprintf(piece, sizeof piece, " of at least %g", key->low);
  else if (key->bounded)
    snprintf(piece, sizeof piece, " from %g to %g", key->low, key->high);
  t->used += (size_t)snprintf(t->data + t->used, sizeof t->data - t->used, "%s", piece);
}

/* Describes in words the values that the key accepts. */
static const char *describe_wanted(const tws_key *key, const cJSON *item, text *t) {
  static const char *const words[] = {[TWS_KEY_ANY] = "anything",
                                      [TWS_KEY_BOOL] = "true or false",
                                      [TWS_KEY_INT] = "an integer",
                                      [TWS_KEY_NUMBER] = "a number",
                                      [TWS_KEY_STRING] = "a string",
                                      [TWS_KEY_INT_OR_STRING] = "an integer or a string",
                                      [TWS_KEY_NUMBER_OR_LIST] = "a number",
                                      [TWS_KEY_NUMBER_OR_PAIR] = "a number, or two as [null, 0.001] for Adafactor,",
                                      [TWS_KEY_PAIR] = "two numbers from 0 to 1, as [0.9, 0.999]",
                                      [TWS_KEY_LIST] = "an array",
                                      [TWS_KEY_STRING_LIST] = "an array of strings",
                                      [TWS_KEY_INT_LIST] = "an array of integers",
                                      [TWS_KEY_OBJECT] = "an object",
                                      [TWS_KEY_BOOL_OR_OBJECT] = "an object",
                                      [TWS_KEY_AXES] = TWS_AXIS_ORDER_DEFAULT " in some order, parted by commas"};
  t->used = 0;
  if (key->values) {
    t->used += (size_t)snprintf(t->data, sizeof t->data, "one of ");
    for (const char *p = key->values; *p && t->used + 3 < sizeof t->data; p++) {
      t->data[t->used++] = *p == '|' ? ',' : *p;
      if (*p == '|') t->data[t->used++] = ' ';
    }
    t->data[t->used] = 0;
    return t->data;
  }
  t->used += (size_t)snprintf(t->data, sizeof t->data, "%s", words[key->type]);
  if (key->type == TWS_KEY_INT && key->strict) /* the refused value may be 10.0, where only 10 is accepted */
    t->used += (size_t)snprintf(t->data + t->used, sizeof t->data - t->used, " written without a point");
  add_range(t, key, item);
  return t->data;
}

static int in_range(const tws_key *key, double value) {
  return !key->bounded || (value >= key->low && value <= key->high);
}

static int is_number(const tws_key *key, const cJSON *item) {
  return cJSON_IsNumber(item) && in_range(key, item->valuedouble);
}

static int is_integer(const tws_walk *walk, const tws_key *key, const cJSON *item) {
  int64_t value;
  int literal;
  if (!tws_json_integer(walk->source->json, item, &value, &literal) &&
      !tws_given_integer(key, (tws_given){item, walk->source}, &value))
    return 0;
  return in_range(key, (double)value) && (literal || !key->strict);
}

/* Returns 1 if the item is a list of numbers, one for each parameter group; tws_config_check_param_groups() checks how
 * many. */
static int is_number_list(const tws_key *key, const cJSON *item) {
  if (!cJSON_IsArray(item) || !item->child) return 0;
  for (const cJSON *element = item->child; element; element = element->next)
    if (!is_number(key, element)) return 0;
  return 1;
}

static int is_list_of(const tws_walk *walk, const tws_key *key, const cJSON *item) {
  if (!cJSON_IsArray(item)) return 0;
  for (const cJSON *element = item->child; element; element = element->next) {
    int64_t value;
    if (key->type == TWS_KEY_STRING_LIST && !cJSON_IsString(element)) return 0;
    if (key->type == TWS_KEY_INT_LIST && !tws_json_integer(walk->source->json, element, &value, NULL)) return 0;
  }
  return 1;
}

/* Returns 1 if the item is a list of two numbers, either of which may be null. */
static int is_open_pair(const tws_key *key, const cJSON *item) {
  if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 2) return 0;
  for (const cJSON *element = item->child; element; element = element->next)
    if (!cJSON_IsNull(element) && !is_number(key, element)) return 0;
  return 1;
}

static int is_pair(const cJSON *item) {
  if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 2) return 0;
  for (const cJSON *element = item->child; element; element = element->next)
    if (!cJSON_IsNumber(element) || element->valuedouble < 0 || element->valuedouble > 1) return 0;
  return 1;
}

static int fits_key(const tws_walk *walk, const tws_key *key, const cJSON *item) {
  tws_axis_order order;
  switch (key->type) {
    case TWS_KEY_ANY:
      return 1;
    case TWS_KEY_BOOL:
      return cJSON_IsBool(item);
    case TWS_KEY_INT:
      return is_integer(walk, key, item);
    case TWS_KEY_NUMBER:
      return is_number(key, item);
    case TWS_KEY_STRING:
      return cJSON_IsString(item) && (!key->values || tws_key_word(key->values, item->valuestring, key->any_case) >= 0);
    case TWS_KEY_INT_OR_STRING:
      return cJSON_IsString(item) || is_integer(walk, key, item);
    case TWS_KEY_NUMBER_OR_LIST:
      return is_number(key, item) || is_number_list(key, item);
    case TWS_KEY_NUMBER_OR_PAIR:
      return is_number(key, item) || is_open_pair(key, item);
    case TWS_KEY_PAIR:
      return is_pair(item);
    case TWS_KEY_LIST:
      return cJSON_IsArray(item);
    case TWS_KEY_STRING_LIST:
      return cJSON_IsString(item) || is_list_of(walk, key, item);
    case TWS_KEY_INT_LIST:
      return is_list_of(walk, key, item);
    case TWS_KEY_OBJECT:
      return cJSON_IsObject(item);
    case TWS_KEY_BOOL_OR_OBJECT:
      return cJSON_IsBool(item) || cJSON_IsObject(item);
    case TWS_KEY_AXES:
      return cJSON_IsString(item) && tws_axis_order_parse(item->valuestring, &order);
  }
  return 0;
}

static const char *hint_for(const tws_key *key, const cJSON *item, char *hint, size_t size) {
  if (cJSON_IsString(item) && key->values) { /* the word may be misspelled, so the closest allowed word is suggested */
    char copy[256];
    const char *words[32];
    int n = 0;
    snprintf(copy, sizeof copy, "%s", key->values);
    for (char *rest = copy, *word; n < 32 && (word = strsep(&rest, "|"));) words[n++] = word;
    const char *close = tws_closest(item->valuestring, words, (size_t)n);
    if (close) {
      snprintf(hint, size, "did you mean \"%s\"?", close);
      return hint;
    }
  }
  const char *quotes = "", *json = NULL;
  if (cJSON_IsString(item)) json = tws_json_of_python(item->valuestring, strlen(item->valuestring));
  if (json) {
    snprintf(hint, size, "JSON spells it %s, without quotes", json);
    return hint;
  }
  if (cJSON_IsString(item) && (key->type == TWS_KEY_BOOL || key->type == TWS_KEY_INT || key->type == TWS_KEY_NUMBER))
    quotes = strcmp(item->valuestring, "auto") == 0 ? "this key cannot be \"auto\". " : "leave out the quotes. ";
  snprintf(hint, size, "%s%s", quotes, key->doc);
  return hint;
}

/* ---- values that DeepSpeed accepts in another form ---- */

static void become_number(const cJSON *item, int type, double number) {
  cJSON *value = (cJSON *)(uintptr_t)item; /* the configuration owns the item's document */
  if (cJSON_IsString(item)) cJSON_free(value->valuestring);
  value->valuestring = NULL;
  value->type = (value->type & (cJSON_IsReference | cJSON_StringIsConst)) | type;
  cJSON_SetNumberHelper(value, number);
}

/* In sections in which DeepSpeed converts values, converts a number given for a boolean, or a text given for a boolean
 * or a number, to the value that it means. */
static void read_other_words(const tws_walk *walk, const tws_key *key, const cJSON *item) {
  const int checked = tws_key_checked_section(walk->segments[0]), number = cJSON_IsNumber(item);
  const char *words = checked && cJSON_IsString(item) ? item->valuestring : NULL;
  if (strcmp(walk->segments[0], "twinspeed") == 0) return;
  if (strstr(key->path, "communication_data_type") && cJSON_IsString(item) &&
      strcasecmp(item->valuestring, "bfp16") == 0) { /* DeepSpeed's manual misspells bf16 */
    memcpy(item->valuestring, "bf16", sizeof "bf16");
  } else if (key->type == TWS_KEY_BOOL) {
    if (number && (item->valuedouble == 0 || item->valuedouble == 1))
      become_number(item, item->valuedouble == 1 ? cJSON_True : cJSON_False, 0);
    else if (words && tws_key_word("true|t|yes|y|on|1", words, 1) >= 0)
      become_number(item, cJSON_True, 0);
    else if (words && tws_key_word("false|f|no|n|off|0", words, 1) >= 0)
      become_number(item, cJSON_False, 0);
  } else if (key->type == TWS_KEY_INT && checked && cJSON_IsBool(item)) {
    become_number(item, cJSON_Number, cJSON_IsTrue(item));
  } else if (words && (key->type == TWS_KEY_INT || key->type == TWS_KEY_NUMBER)) {
    const char *plain = key->type == TWS_KEY_INT ? "+-0123456789" : "+-0123456789.eE";
    double value;
    if (strspn(words, plain) == strlen(words) && tws_text_number(words, NULL, -HUGE_VAL, HUGE_VAL, &value))
      become_number(item, cJSON_Number, value);
  }
}

/* Returns 1 if a wrong value is ignored: its key has no effect, and DeepSpeed does not check its section. */
static int is_harmless(const tws_walk *walk, const tws_key *key, const cJSON *item) {
  if (!key->reason || tws_key_checked_section(walk->segments[0])) return 0;
  return cJSON_IsNumber(item) || (cJSON_IsString(item) && key->type != TWS_KEY_BOOL && !key->values);
}

/* Returns the given value as messages show it. */
static const char *describe_given(const cJSON *item, char *got, size_t size) {
  const char *word = cJSON_IsString(item) ? item->valuestring : "";
  if (!tws_json_of_python(word, strlen(word))) return tws_json_describe(item, got, size);
  snprintf(got, size, "Python's %s", word);
  return got;
}

/* Returns 1 if a text is "None" (Python), which means that the path or name is not given. */
static int is_none(const tws_key *key, const cJSON *item) {
  return key->parts && cJSON_IsString(item) && strcmp(item->valuestring, "None") == 0;
}

tws_code tws_key_check(tws_walk *walk, const tws_key *key, const cJSON *item) {
  tws_given given = {item, walk->source};
  read_other_words(walk, key, item);
  if (tws_given_auto(given) && (key->automatic || tws_key_lax_section(walk->segments[0]))) return TWS_OK;
  if (!is_none(key, item) && (fits_key(walk, key, item) || is_harmless(walk, key, item))) return TWS_OK;
  char path[400], hint[sizeof walk->err->hint], got[96];
  text want;
  tws_key_join(walk->segments, walk->n, path, sizeof path);
  return tws_store_fail(walk->store, given, TWS_INVALID, walk->err, hint_for(key, item, hint, sizeof hint),
                        "\"%s\" must be %s, not %s", path, describe_wanted(key, item, &want),
                        describe_given(item, got, sizeof got));
}
