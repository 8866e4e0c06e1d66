#include "config/figures.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
  const char *key, *text;
} sources[] = {
#define FIGURE_SOURCE(key, text) {key, text},
#include "config/figure_sources.def"
#undef FIGURE_SOURCE
};
enum { SOURCES = sizeof sources / sizeof *sources };

const char *tws_mark_name(int mark) {
  static const char *const names[TWS_MARK_COUNT] = {"sourced", "recalled", "derived"};
  return mark >= 0 && mark < TWS_MARK_COUNT ? names[mark] : "?";
}

double tws_figure_value(const tws_figure *list, const char *key) {
  for (; list->key; list++)
    if (strcmp(list->key, key) == 0) return list->value;
  return NAN;
}

static int source_index(const char *key, size_t length) {
  for (int i = 0; i < SOURCES; i++)
    if (strlen(sources[i].key) == length && memcmp(sources[i].key, key, length) == 0) return i;
  return -1;
}

const char *tws_figure_source(const char *key, size_t length) {
  const int i = source_index(key, length);
  return i < 0 ? NULL : sources[i].text;
}

const char *tws_figure_source_nth(int i, const char **text) {
  if (i < 0 || i >= SOURCES) return NULL;
  *text = sources[i].text;
  return sources[i].key;
}

/* Adds each key of the space-separated list to the array. Returns 0 if memory is exhausted. */
static int add_sources(cJSON *array, const char *words) {
  int good = 1;
  for (const char *at = words; *at; at += strspn(at, " ")) {
    char word[32];
    const size_t length = strcspn(at, " ");
    snprintf(word, sizeof word, "%.*s", (int)length, at);
    cJSON *item = cJSON_CreateString(word);
    good &= item && cJSON_AddItemToArray(array, item);
    at += length;
  }
  return good;
}

cJSON *tws_figures_json(const tws_figure *list) {
  cJSON *root = cJSON_CreateObject();
  int good = root != NULL;
  for (; good && list->key; list++) {
    cJSON *one = cJSON_AddObjectToObject(root, list->key);
    good = one && cJSON_AddNumberToObject(one, "value", list->value) &&
           cJSON_AddStringToObject(one, "confidence", tws_mark_name(list->mark));
    if (!good || !*list->sources) continue;
    cJSON *array = cJSON_AddArrayToObject(one, "sources");
    good = array && add_sources(array, list->sources);
  }
  if (good) return root;
  cJSON_Delete(root);
  return NULL;
}

cJSON *tws_figures_sources_json(const tws_figure *list) {
  int used[SOURCES] = {0}, good = 1;
  for (; list->key; list++)
    for (const char *at = list->sources; *at; at += strspn(at, " ")) {
      const size_t length = strcspn(at, " ");
      const int i = source_index(at, length);
      if (i >= 0) used[i] = 1;
      at += length;
    }
  cJSON *root = cJSON_CreateObject();
  for (int i = 0; i < SOURCES && root; i++)
    if (used[i]) good &= cJSON_AddStringToObject(root, sources[i].key, sources[i].text) != NULL;
  if (good) return root;
  cJSON_Delete(root);
  return NULL;
}
