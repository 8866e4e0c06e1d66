/* Private to config/: builds documents of JSON key by key, and their text. A failure is recorded in the builder and
 * reported at the end. */
#ifndef TWS_CONFIG_BUILDER_H
#define TWS_CONFIG_BUILDER_H

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "config/keys.h"

typedef struct builder {
  cJSON *root;
  int failed;
} builder;

static inline tws_code finish_text(builder *b, tws_text *out, tws_error *err) {
  char *text = b->failed ? NULL : cJSON_Print(b->root);
  if (text) {
    /* A tab becomes two spaces at the start of a line, and one space after a colon. */
    int indenting = 1;
    for (char *p = text; *p; p++) {
      indenting = *p == '\n' || (indenting && *p == '\t');
      if (*p == '\t')
        tws_text_add_bytes(out, "  ", indenting ? 2 : 1);
      else
        tws_text_add_bytes(out, p, 1);
    }
    tws_text_add_bytes(out, "\n", 1);
    cJSON_free(text);
  }
  cJSON_Delete(b->root);
  return text && !out->failed ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "configuration: out of memory");
}

/* Adds an item to an object, or replaces the object's member of that name; the builder then owns the item. */
static inline void put_item(builder *b, cJSON *object, const char *name, cJSON *item) {
  if (!item || !object) {
    b->failed = 1;
    cJSON_Delete(item);
    return;
  }
  cJSON *old = cJSON_GetObjectItemCaseSensitive(object, name);
  if (old ? !cJSON_ReplaceItemViaPointer(object, old, item) : !cJSON_AddItemToObject(object, name, item)) {
    b->failed = 1;
    cJSON_Delete(item);
    return;
  }
  if (!old || item->string) return;
  item->string = cJSON_malloc(strlen(name) + 1); /* cJSON does not name the item when it replaces a member */
  if (item->string)
    strcpy(item->string, name);
  else
    b->failed = 1;
}

static inline cJSON *open_section(builder *b, cJSON *object, const char *name) {
  cJSON *found = cJSON_GetObjectItemCaseSensitive(object, name);
  if (cJSON_IsObject(found) || b->failed) return found;
  put_item(b, object, name, cJSON_CreateObject());
  return cJSON_GetObjectItemCaseSensitive(object, name);
}

/* Adds an item at a dotted path, and creates the objects on the way; the builder then owns the item. */
static inline void put_at(builder *b, const char *path, cJSON *item) {
  char copy[512];
  const char *segments[TWS_KEY_DEPTH];
  snprintf(copy, sizeof copy, "%s", path);
  int n = tws_key_split(copy, segments, TWS_KEY_DEPTH);
  cJSON *object = b->root;
  for (int i = 0; i + 1 < n && object && !b->failed; i++) object = open_section(b, object, segments[i]);
  if (n < 1) object = NULL;
  put_item(b, object, n < 1 ? "" : segments[n - 1], item);
}

static inline cJSON *find_at(const builder *b, const char *path) {
  char copy[512];
  const char *segments[TWS_KEY_DEPTH];
  snprintf(copy, sizeof copy, "%s", path);
  int n = tws_key_split(copy, segments, TWS_KEY_DEPTH);
  cJSON *at = b->root;
  for (int i = 0; i < n && at; i++) at = cJSON_IsObject(at) ? cJSON_GetObjectItemCaseSensitive(at, segments[i]) : NULL;
  return at;
}

static inline void drop_at(builder *b, const char *path) {
  cJSON *item = find_at(b, path), *parent = b->root;
  char copy[512];
  snprintf(copy, sizeof copy, "%s", path);
  char *dot = strrchr(copy, '.');
  if (!item) return;
  if (dot) {
    *dot = 0;
    parent = find_at(b, copy);
  }
  cJSON_Delete(cJSON_DetachItemViaPointer(parent, item));
}

#endif
