/* Writes the JSON Schema of all keys. */
#include <stdio.h>
#include <string.h>

#include "config/builder.h"

static cJSON *add_type(builder *b, cJSON *schema, const char *type) {
  put_item(b, schema, "type", cJSON_CreateString(type));
  return schema;
}

static void add_values(builder *b, cJSON *schema, const char *values) {
  cJSON *list = cJSON_CreateArray();
  for (const char *p = values; list && *p;) {
    char word[64];
    size_t length = strcspn(p, "|");
    snprintf(word, sizeof word, "%.*s", (int)length, p);
    cJSON *item = cJSON_CreateString(word);
    if (!item || !cJSON_AddItemToArray(list, item)) {
      cJSON_Delete(item);
      b->failed = 1;
      break;
    }
    p += length + (p[length] == '|');
  }
  put_item(b, schema, "enum", list);
}

static void add_axis_orders(builder *b, cJSON *schema) {
  cJSON *list = cJSON_CreateArray();
  tws_axis_order order;
  char text[TWS_AXIS_ORDER_TEXT];
  for (int i = 0; tws_axis_order_nth(i, &order); i++) {
    cJSON *item = cJSON_CreateString(tws_axis_order_text(&order, text));
    if (item && cJSON_AddItemToArray(list, item)) continue;
    cJSON_Delete(item);
    b->failed = 1;
  }
  put_item(b, schema, "enum", list);
}

static void add_array(builder *b, cJSON *schema, const char *of, int exactly) {
  add_type(b, schema, "array");
  if (of) {
    put_item(b, schema, "items", cJSON_CreateObject());
    add_type(b, cJSON_GetObjectItemCaseSensitive(schema, "items"), of);
  }
  if (!exactly) return;
  put_item(b, schema, "minItems", cJSON_CreateNumber(exactly));
  put_item(b, schema, "maxItems", cJSON_CreateNumber(exactly));
}

static void add_number(builder *b, cJSON *schema, const tws_key *key, const char *type) {
  add_type(b, schema, type);
  if (!key->bounded) return;
  put_item(b, schema, "minimum", cJSON_CreateNumber(key->low));
  if (key->high < 9e18) put_item(b, schema, "maximum", cJSON_CreateNumber(key->high));
}

static void add_choice(builder *b, cJSON *schema, cJSON *choice) {
  cJSON *list = cJSON_GetObjectItemCaseSensitive(schema, "anyOf");
  if (!list) {
    put_item(b, schema, "anyOf", cJSON_CreateArray());
    list = cJSON_GetObjectItemCaseSensitive(schema, "anyOf");
  }
  if (!list || !choice || !cJSON_AddItemToArray(list, choice)) {
    cJSON_Delete(choice);
    b->failed = 1;
  }
}

static void describe_type(builder *b, cJSON *schema, const tws_key *key) {
  switch (key->type) {
    case TWS_KEY_BOOL:
      add_type(b, schema, "boolean");
      return;
    case TWS_KEY_INT:
      add_number(b, schema, key, "integer");
      return;
    case TWS_KEY_NUMBER:
      add_number(b, schema, key, "number");
      return;
    case TWS_KEY_STRING:
      add_type(b, schema, "string");
      if (key->values) add_values(b, schema, key->values);
      return;
    case TWS_KEY_PAIR:
      add_array(b, schema, "number", 2);
      return;
    case TWS_KEY_LIST:
      add_array(b, schema, NULL, 0);
      return;
    case TWS_KEY_INT_LIST:
      add_array(b, schema, "integer", 0);
      return;
    case TWS_KEY_OBJECT:
      add_type(b, schema, "object");
      return;
    case TWS_KEY_AXES:
      add_type(b, schema, "string");
      add_axis_orders(b, schema);
      return;
    default:
      return;
  }
}

/* Describes keys whose value may be of either of two types. */
static void describe_choice(builder *b, cJSON *schema, const tws_key *key) {
  cJSON *first = cJSON_CreateObject(), *second = cJSON_CreateObject();
  if (!first || !second) b->failed = 1;
  if (key->type == TWS_KEY_INT_OR_STRING) {
    add_number(b, first, key, "integer");
    add_type(b, second, "string");
  } else if (key->type == TWS_KEY_NUMBER_OR_LIST) {
    add_number(b, first, key, "number");
    add_array(b, second, "number", 1);
  } else if (key->type == TWS_KEY_NUMBER_OR_PAIR) {
    add_number(b, first, key, "number");
    add_array(b, second, NULL, 2);
  } else if (key->type == TWS_KEY_STRING_LIST) {
    add_type(b, first, "string");
    add_array(b, second, "string", 0);
  } else {
    add_type(b, first, "boolean");
    add_type(b, second, "object");
  }
  add_choice(b, schema, first);
  add_choice(b, schema, second);
}

static void add_auto(builder *b, cJSON *schema) {
  cJSON *word = cJSON_CreateObject();
  if (word) put_item(b, word, "const", cJSON_CreateString("auto"));
  add_choice(b, schema, word);
}

/* Describes the values of a key as JSON Schema; null is always allowed and means "not given". */
static cJSON *describe_key(builder *b, const tws_key *key) {
  cJSON *schema = cJSON_CreateObject();
  if (!schema) {
    b->failed = 1;
    return NULL;
  }
  char first[128];
  snprintf(first, sizeof first, "%.*s", (int)strcspn(key->path, "."), key->path);
  int choice = key->type == TWS_KEY_INT_OR_STRING || key->type == TWS_KEY_NUMBER_OR_LIST ||
               key->type == TWS_KEY_NUMBER_OR_PAIR || key->type == TWS_KEY_STRING_LIST ||
               key->type == TWS_KEY_BOOL_OR_OBJECT;
  if (choice) {
    describe_choice(b, schema, key);
  } else if (key->type != TWS_KEY_ANY) {
    cJSON *plain = cJSON_CreateObject(), *null = cJSON_CreateObject();
    if (plain) describe_type(b, plain, key);
    if (null) add_type(b, null, "null");
    add_choice(b, schema, plain);
    add_choice(b, schema, null);
  }
  if (key->automatic || tws_key_lax_section(first)) add_auto(b, schema);
  char text[512];
  snprintf(text, sizeof text, "%s%s%s%s", key->doc, key->reason ? " No effect here: " : "",
           key->reason ? key->reason : "", key->reason ? "." : "");
  put_item(b, schema, "description", cJSON_CreateString(text));
  if (key->fallback) put_item(b, schema, "default", cJSON_Parse(key->fallback));
  if (key->moved_to) put_item(b, schema, "deprecated", cJSON_CreateBool(1));
  return schema;
}

/* Returns the schema of an object, which is created when the first key below the object is added. */
static cJSON *open_object(builder *b, cJSON *schema) {
  cJSON *type = cJSON_GetObjectItemCaseSensitive(schema, "properties");
  if (type || b->failed) return type;
  if (schema != b->root && !cJSON_GetObjectItemCaseSensitive(schema, "anyOf")) { /* null: not given */
    static const char *const types[] = {"object", "null"};
    put_item(b, schema, "type", cJSON_CreateStringArray(types, 2));
  } else if (schema == b->root) {
    add_type(b, schema, "object");
  }
  put_item(b, schema, "properties", cJSON_CreateObject());
  put_item(b, schema, "additionalProperties", cJSON_CreateBool(0));
  return cJSON_GetObjectItemCaseSensitive(schema, "properties");
}

static cJSON *open_segment(builder *b, cJSON *schema, const char *segment) {
  char name[128];
  snprintf(name, sizeof name, "%s", segment);
  size_t length = strlen(name);
  if (name[0] == '<') {
    open_object(b, schema);
    cJSON *rest = cJSON_GetObjectItemCaseSensitive(schema, "additionalProperties");
    if (!cJSON_IsObject(rest)) put_item(b, schema, "additionalProperties", cJSON_CreateObject());
    return cJSON_GetObjectItemCaseSensitive(schema, "additionalProperties");
  }
  int array = length > 2 && name[length - 1] == ']';
  if (array) name[length - 2] = 0;
  cJSON *found = open_section(b, open_object(b, schema), name);
  if (!array || !found) return found;
  add_type(b, found, "array");
  return open_section(b, found, "items");
}

static void add_below(builder *b, cJSON *at, const char *const *segments, int n, const tws_key *key) {
  if (!at || b->failed) {
    b->failed = 1;
    return;
  }
  cJSON *properties = open_object(b, at);
  if (n > 1) {
    /* A placeholder is a pattern property, which also matches the named keys of the same object, so the key is added
     * below these too. */
    cJSON *first = segments[0][0] == '<' && properties ? properties->child : NULL;
    for (cJSON *named = first; named && !b->failed; named = named->next) add_below(b, named, segments + 1, n - 1, key);
    add_below(b, open_segment(b, at, segments[0]), segments + 1, n - 1, key);
  } else if (segments[0][0] == '<') {
    put_item(b, at, "additionalProperties", describe_key(b, key));
  } else {
    put_item(b, properties, segments[0], describe_key(b, key));
    if (key->alias && !b->failed) put_item(b, properties, key->alias, describe_key(b, key));
  }
}

static void add_key(builder *b, const tws_key *key) {
  char copy[512];
  const char *segments[TWS_KEY_DEPTH];
  snprintf(copy, sizeof copy, "%s", key->path);
  int n = tws_key_split(copy, segments, TWS_KEY_DEPTH);
  if (n > 0) add_below(b, b->root, segments, n, key);
}

tws_code tws_config_print_schema(tws_text *out, tws_error *err) {
  builder b = {.root = cJSON_CreateObject()};
  if (!b.root) return tws_fail(err, TWS_MEMORY, NULL, "schema: out of memory");
  put_item(&b, b.root, "$schema", cJSON_CreateString("https://json-schema.org/draft/2020-12/schema"));
  put_item(&b, b.root, "title", cJSON_CreateString("ds_config.json as Twinspeed reads it"));
  for (size_t i = 0; i < tws_key_count && !b.failed; i++) add_key(&b, &tws_keys[i]);
  /* Add the aliases of sections. */
  cJSON *properties = cJSON_GetObjectItemCaseSensitive(b.root, "properties");
  cJSON *bf16 = properties ? cJSON_GetObjectItemCaseSensitive(properties, "bf16") : NULL;
  if (bf16) put_item(&b, properties, "bfloat16", cJSON_Duplicate(bf16, 1));
  cJSON *parallel = properties ? cJSON_GetObjectItemCaseSensitive(properties, "tensor_parallel") : NULL;
  parallel = parallel ? cJSON_GetObjectItemCaseSensitive(parallel, "properties") : NULL;
  cJSON *inner = parallel ? cJSON_GetObjectItemCaseSensitive(parallel, "tensor_parallel") : NULL;
  if (inner) put_item(&b, parallel, "tp", cJSON_Duplicate(inner, 1));
  return finish_text(&b, out, err);
}
