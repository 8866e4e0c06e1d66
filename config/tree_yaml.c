/* Reads YAML into a tree from libyaml's events. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "config/tree.h"

#ifdef TWS_HAVE_YAML
#include <yaml.h>

enum { DEEPEST = 32, MOST_NODES = 100000 };

typedef struct reader {
  yaml_parser_t parser;
  const char *name;
  cJSON *open[DEEPEST]; /* objects and lists that are not closed yet; open[0] contains the document */
  char *key[DEEPEST];   /* per open object: the key of its next value */
  int depth, nodes;
  tws_error *err;
} reader;

static tws_code refuse(reader *r, const yaml_mark_t *mark, const char *what) {
  return tws_fail(r->err, TWS_INVALID, "write the file out in plain keys and values", "%s:%d:%d: %s", r->name,
                  (int)mark->line + 1, (int)mark->column + 1, what);
}

/* Returns the JSON item of a scalar. Words without quotes are interpreted as in YAML 1.1 and PyYAML. */
static cJSON *scalar_of(const yaml_event_t *event) {
  static const char *const yes[] = {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"};
  static const char *const no[] = {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"};
  static const char *const null[] = {"", "~", "null", "Null", "NULL"};
  const char *text = (const char *)event->data.scalar.value;
  double number;
  if (event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE) return cJSON_CreateString(text);
  for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
    if (strcmp(text, yes[i]) == 0 || strcmp(text, no[i]) == 0) return cJSON_CreateBool(strcmp(text, yes[i]) == 0);
  for (size_t i = 0; i < sizeof null / sizeof *null; i++)
    if (strcmp(text, null[i]) == 0) return cJSON_CreateNull();
  if (tws_text_number(text, NULL, -1e300, 1e300, &number)) return cJSON_CreateNumber(number);
  return cJSON_CreateString(text);
}

/* Takes the item. */
static tws_code add(reader *r, cJSON *item, const yaml_mark_t *mark) {
  cJSON *to = r->open[r->depth];
  char **key = &r->key[r->depth];
  int added = 0;
  if (++r->nodes > MOST_NODES) {
    cJSON_Delete(item);
    return refuse(r, mark, "the file has more than 100000 values");
  }
  if (item && cJSON_IsArray(to)) added = cJSON_AddItemToArray(to, item);
  if (item && cJSON_IsObject(to)) {
    cJSON_DeleteItemFromObjectCaseSensitive(to, *key);
    added = cJSON_AddItemToObject(to, *key, item);
  }
  free(*key);
  *key = NULL;
  if (added) return TWS_OK;
  cJSON_Delete(item);
  return tws_fail(r->err, TWS_MEMORY, NULL, "no memory for %s", r->name);
}

static tws_code open_node(reader *r, cJSON *item, const yaml_mark_t *mark) {
  if (cJSON_IsObject(r->open[r->depth]) && !r->key[r->depth]) {
    cJSON_Delete(item);
    return refuse(r, mark, "a key is a word");
  }
  if (r->depth + 1 == DEEPEST) {
    cJSON_Delete(item);
    return refuse(r, mark, "values are nested too deeply");
  }
  TWS_TRY(add(r, item, mark));
  r->open[++r->depth] = item;
  return TWS_OK;
}

static tws_code take_scalar(reader *r, const yaml_event_t *event) {
  if (!cJSON_IsObject(r->open[r->depth]) || r->key[r->depth]) return add(r, scalar_of(event), &event->start_mark);
  if (memchr(event->data.scalar.value, '\0', event->data.scalar.length))
    return refuse(r, &event->start_mark, "a key has a NUL");
  r->key[r->depth] = strdup((const char *)event->data.scalar.value);
  return r->key[r->depth] ? TWS_OK : tws_fail(r->err, TWS_MEMORY, NULL, "no memory for %s", r->name);
}

static tws_code take(reader *r, const yaml_event_t *event, int *done) {
  switch (event->type) {
    case YAML_ALIAS_EVENT:
      return refuse(r, &event->start_mark, "aliases (*name) are not read");
    case YAML_SCALAR_EVENT:
      return take_scalar(r, event);
    case YAML_SEQUENCE_START_EVENT:
      return open_node(r, cJSON_CreateArray(), &event->start_mark);
    case YAML_MAPPING_START_EVENT:
      return open_node(r, cJSON_CreateObject(), &event->start_mark);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
      r->depth--;
      return TWS_OK;
    case YAML_DOCUMENT_END_EVENT:
    case YAML_STREAM_END_EVENT:
      *done = 1;
      return TWS_OK;
    default:
      return TWS_OK;
  }
}

tws_code tws_tree_read_yaml(const char *text, size_t length, const char *name, cJSON **out, tws_error *err) {
  reader r = {.name = name, .err = err};
  tws_code code = TWS_OK;
  *out = NULL;
  r.open[0] = cJSON_CreateArray();
  if (!r.open[0] || !yaml_parser_initialize(&r.parser)) {
    cJSON_Delete(r.open[0]);
    return tws_fail(err, TWS_MEMORY, NULL, "no memory for %s", name);
  }
  yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, length);
  for (int done = 0; code == TWS_OK && !done;) {
    yaml_event_t event;
    if (!yaml_parser_parse(&r.parser, &event)) {
      code = refuse(&r, &r.parser.problem_mark, r.parser.problem ? r.parser.problem : "this is no YAML");
      break;
    }
    code = take(&r, &event, &done);
    yaml_event_delete(&event);
  }
  yaml_parser_delete(&r.parser);
  for (int i = 0; i < DEEPEST; i++) free(r.key[i]);
  cJSON *document = cJSON_DetachItemFromArray(r.open[0], 0);
  cJSON_Delete(r.open[0]);
  if (code == TWS_OK && !cJSON_IsObject(document))
    code = tws_fail(err, TWS_INVALID, "a configuration has \"key: value\"", "%s: a configuration is one object", name);
  if (code == TWS_OK)
    *out = document;
  else
    cJSON_Delete(document);
  return code;
}
#else
tws_code tws_tree_read_yaml(const char *text, size_t length, const char *name, cJSON **out, tws_error *err) {
  (void)text;
  (void)length;
  *out = NULL;
  return tws_fail(err, TWS_UNSUPPORTED, "build with libyaml (libyaml-dev), or give a ds_config.json",
                  "%s: this build reads no YAML", name);
}
#endif
