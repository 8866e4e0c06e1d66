/* Trees of keys and values, which JSON, TOML and YAML files are read into. */
#ifndef TWS_CONFIG_TREE_H
#define TWS_CONFIG_TREE_H

#include "base/json.h"
#include "base/memory.h"
#include "base/status.h"

/* The value at a dotted path, or NULL. */
const cJSON *tws_tree_at(const cJSON *root, const char *path);
/* Writes the value at a path as a text: words, numbers as they print, "true" and "false". Returns 0 if there is no
 * value, or it is null, a list or an object, or does not fit; then the text is empty. */
int tws_tree_text(const cJSON *root, const char *path, char *text, size_t size);
/* Puts a value at a path, whose objects are made: a number, true, false, a list of JSON, or a word. Returns non-zero
 * without memory. */
int tws_tree_put_text(cJSON *root, const char *path, const char *text);

/* YAML (libyaml) and TOML (toml++). TWS_INVALID with the line of an error; anchors, tags and documents after the first
 * are refused. TWS_UNSUPPORTED: the build has no library for it. */
tws_code tws_tree_read_yaml(const char *text, size_t length, const char *name, cJSON **out, tws_error *err);
tws_code tws_tree_read_toml(const char *text, size_t length, const char *name, cJSON **out, tws_error *err);
/* Trees of objects and scalars. */
void tws_tree_write_yaml(const cJSON *root, int indent, tws_text *out);
void tws_tree_write_toml(const cJSON *root, const char *section, tws_text *out);

#endif
