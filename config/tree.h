/* Reads JSON, TOML and YAML files into trees of keys and values, and accesses these. */
#ifndef TWS_CONFIG_TREE_H
#define TWS_CONFIG_TREE_H

#include "base/json.h"
#include "base/memory.h"
#include "base/status.h"

/* Returns the value at a dotted path, or NULL if there is none. */
const cJSON *tws_tree_at(const cJSON *root, const char *path);
/* Writes the value at a path as a text: a word, a number in decimal form, "true" or "false". Returns 1; returns 0 and
 * writes an empty text if there is no value, or it is null, a list or an object, or does not fit. */
int tws_tree_text(const cJSON *root, const char *path, char *text, size_t size);
/* Sets the value at a path from its text (a number, true, false, a JSON list, or a word), and creates the objects of
 * the path. Returns 0, or another number if memory is exhausted. */
int tws_tree_put_text(cJSON *root, const char *path, const char *text);

/* Read YAML (by libyaml) and TOML (by toml++). Fail with TWS_INVALID and the line of an error (YAML anchors, tags and
 * documents after the first are errors too), and with TWS_UNSUPPORTED if the build has no library for the format. */
tws_code tws_tree_read_yaml(const char *text, size_t length, const char *name, cJSON **out, tws_error *err);
tws_code tws_tree_read_toml(const char *text, size_t length, const char *name, cJSON **out, tws_error *err);
/* Write a tree of objects and scalars as YAML or TOML; they append the text to `out`. */
void tws_tree_write_yaml(const cJSON *root, int indent, tws_text *out);
void tws_tree_write_toml(const cJSON *root, const char *section, tws_text *out);

#endif
