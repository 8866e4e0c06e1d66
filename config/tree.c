#include "config/tree.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "config/toml_text.h"

const cJSON *tws_tree_at(const cJSON *root, const char *path) {
  while (root && *path) {
    char key[96];
    const size_t length = strcspn(path, ".");
    if (length >= sizeof key || !cJSON_IsObject(root)) return NULL;
    snprintf(key, sizeof key, "%.*s", (int)length, path);
    root = cJSON_GetObjectItemCaseSensitive(root, key);
    path += length + (path[length] == '.');
  }
  return root;
}

int tws_tree_text(const cJSON *root, const char *path, char *text, size_t size) {
  const cJSON *item = tws_tree_at(root, path);
  int length = -1;
  text[0] = '\0';
  if (cJSON_IsBool(item)) length = snprintf(text, size, "%s", cJSON_IsTrue(item) ? "true" : "false");
  if (cJSON_IsString(item)) length = snprintf(text, size, "%s", item->valuestring);
  if (cJSON_IsNumber(item)) length = snprintf(text, size, "%.15g", item->valuedouble);
  if (length > 0 && (size_t)length < size) return 1;
  text[0] = '\0';
  return 0;
}

static cJSON *item_of(const char *text) {
  double number;
  if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0) return cJSON_CreateBool(text[0] == 't');
  cJSON *list = text[0] == '[' ? cJSON_Parse(text) : NULL;
  if (list) return list;
  if (tws_text_number(text, NULL, -1e300, 1e300, &number)) return cJSON_CreateNumber(number);
  return cJSON_CreateString(text);
}

int tws_tree_put_text(cJSON *root, const char *path, const char *text) {
  for (const char *dot; (dot = strchr(path, '.')) != NULL; path = dot + 1) {
    char key[96];
    snprintf(key, sizeof key, "%.*s", (int)(dot - path), path);
    cJSON *next = cJSON_GetObjectItemCaseSensitive(root, key);
    root = next ? next : cJSON_AddObjectToObject(root, key);
    if (!root) return 1;
  }
  cJSON *item = item_of(text);
  cJSON_DeleteItemFromObjectCaseSensitive(root, path);
  if (item && cJSON_AddItemToObject(root, path, item)) return 0;
  cJSON_Delete(item);
  return 1;
}

/* ---- TOML ---- */

/* Returns the first byte that is not ASCII outside of strings and comments; NULL: there is none. TOML does not allow
 * such bytes, and with them toml++ 3.3 would run code that it declares unreachable. */
static const char *first_beyond_ascii(const char *text) {
  const char *at = text;
  while (*at) {
    if (*at == '#') at += strcspn(at, "\n");
    if ((unsigned char)*at > 127) return at;
    if (*at != '"' && *at != '\'') {
      at += *at != '\0';
      continue;
    }
    const char quote = *at;
    const int lines = at[1] == quote && at[2] == quote;
    for (at += lines ? 3 : 1; *at; at++) {
      if (*at == '\\' && quote == '"' && at[1])
        at++;
      else if (*at == quote && (!lines || (at[1] == quote && at[2] == quote)))
        break;
      else if (*at == '\n' && !lines)
        break;
    }
    for (int i = 0; i < (lines ? 3 : 1) && *at; i++) at++;
  }
  return NULL;
}

tws_code tws_tree_read_toml(const char *text, size_t length, const char *name, cJSON **out, tws_error *err) {
  tws_toml_text read = {0};
  *out = NULL;
  const char *beyond = first_beyond_ascii(text);
  if (beyond) {
    read.line = read.column = 1;
    for (const char *c = text; c < beyond; c++) {
      read.column = *c == '\n' ? 1 : read.column + 1;
      read.line += *c == '\n';
    }
    snprintf(read.message, sizeof read.message, "a key without quotes has letters of ASCII alone");
  } else {
    tws_toml_to_json(text, length, &read);
  }
  if (read.json) *out = cJSON_Parse(read.json);
  free(read.json);
  if (*out) return TWS_OK;
  if (read.unsupported)
    return tws_fail(err, TWS_UNSUPPORTED, "build with toml++ (libtomlplusplus-dev), or give a ds_config.json",
                    "%s: this build reads no TOML", name);
  return tws_fail(err, TWS_INVALID, "a file of TOML has sections and \"key = value\"", "%s:%d:%d: %s", name, read.line,
                  read.column, *read.message ? read.message : "this is no TOML");
}

/* ---- writing ---- */

static void add_scalar(const cJSON *item, tws_text *out) {
  char *text = cJSON_PrintUnformatted(item);
  tws_text_add(out, "%s\n", text ? text : "null");
  cJSON_free(text);
}

void tws_tree_write_yaml(const cJSON *root, int indent, tws_text *out) {
  const cJSON *item;
  cJSON_ArrayForEach(item, root) {
    tws_text_add(out, "%*s%s:", indent, "", item->string);
    if (cJSON_IsObject(item)) {
      tws_text_add(out, "\n");
      tws_tree_write_yaml(item, indent + 2, out);
    } else {
      tws_text_add(out, " ");
      add_scalar(item, out);
    }
  }
}

void tws_tree_write_toml(const cJSON *root, const char *section, tws_text *out) {
  const cJSON *item;
  if (*section) tws_text_add(out, "%s[%s]\n", out->length ? "\n" : "", section);
  cJSON_ArrayForEach(item, root) {
    if (cJSON_IsObject(item)) continue;
    tws_text_add(out, "%s = ", item->string);
    add_scalar(item, out);
  }
  cJSON_ArrayForEach(item, root) {
    char below[128];
    if (!cJSON_IsObject(item)) continue;
    snprintf(below, sizeof below, "%s%s%s", section, *section ? "." : "", item->string);
    tws_tree_write_toml(item, below, out);
  }
}
