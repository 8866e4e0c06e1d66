/* Loads, clones, changes and destroys configurations. */
#include "config/ds_config.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "config/check.h"
#include "config/foreign.h"
#include "config/formats.h"
#include "config/store.h"

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "configuration: out of memory");
}

/* ---- source documents that clones share ---- */

/* Creates a source that owns the document from then on. If it fails, it returns NULL and deletes the document. */
static tws_source *source_create(tws_json *json, int command_line) {
  tws_source *source = tws_calloc(1, sizeof *source);
  if (!source) {
    tws_json_destroy(json);
    return NULL;
  }
  *source = (tws_source){.users = 1, .command_line = command_line, .json = json};
  return source;
}

static tws_source *source_share(tws_source *source) {
  __atomic_add_fetch(&source->users, 1, __ATOMIC_RELAXED);
  return source;
}

static void source_drop(tws_source *source) {
  if (!source || __atomic_sub_fetch(&source->users, 1, __ATOMIC_ACQ_REL) > 0) return;
  tws_json_destroy(source->json);
  tws_free(source);
}

static void store_destroy(struct tws_config_store *store) {
  if (!store) return;
  for (size_t i = 0; i < store->count; i++) {
    source_drop(store->overrides[i].source);
    tws_free(store->overrides[i].path);
  }
  tws_free(store->overrides);
  tws_free(store->unread);
  source_drop(store->origin);
  tws_free(store);
}

void tws_config_destroy(tws_config *config) {
  if (!config) return;
  store_destroy(config->store);
  tws_free(config);
}

static char *copy_text(const char *text) {
  size_t length = strlen(text) + 1;
  char *copy = tws_calloc(length, 1);
  return copy ? memcpy(copy, text, length) : NULL;
}

/* ---- loading ---- */

/* Fails if a deprecated key and the one that replaced it are both given. */
static tws_code check_moved(const struct tws_config_store *store, tws_error *err) {
  for (size_t i = 0; i < tws_key_count; i++) {
    const tws_key *key = &tws_keys[i];
    if (!key->moved_to) continue;
    tws_given given = tws_store_get(store, key);
    if (given.item && tws_store_has(store, key->moved_to))
      return tws_store_fail(store, given, TWS_INVALID, err, "keep the new key",
                            "\"%s\" is the old form of \"%s\", and both are given", key->path, key->moved_to);
  }
  return TWS_OK;
}

/* Creates a configuration from a document, which the configuration then owns. */
static tws_code create_from_json(tws_json *json, tws_config **out, tws_error *err) {
  *out = NULL;
  const tws_code split = tws_config_split_params(json, cJSON_GetObjectItemCaseSensitive(json->root, "optimizer"), err);
  if (split != TWS_OK) {
    tws_json_destroy(json);
    return split;
  }
  tws_source *origin = source_create(json, 0);
  tws_config *config = tws_calloc(1, sizeof *config);
  struct tws_config_store *store = tws_calloc(1, sizeof *store);
  if (!origin || !config || !store) {
    source_drop(origin);
    tws_free(config);
    tws_free(store);
    return no_memory(err);
  }
  store->origin = origin;
  store->overlap_derived = -1;
  config->store = store;
  tws_refusals refusals = {0};
  tws_error unheard;
  if (!err) err = &unheard;
  tws_walk walk = {.store = store, .source = origin, .err = err, .visit = tws_key_check, .refusals = &refusals};
  tws_code code = tws_store_walk(&walk, json->root);
  const tws_code kept = tws_refusals_join(&refusals, code == TWS_OK ? err : NULL);
  if (code == TWS_OK) code = kept;
  if (code == TWS_OK && !cJSON_IsObject(json->root)) /* the document is null instead of an object */
    code = tws_json_fail(json, json->root, err, "an empty configuration is {}", "a configuration is one object");
  if (code == TWS_OK) code = check_moved(store, err);
  if (code != TWS_OK) {
    tws_config_destroy(config);
    return code;
  }
  tws_config_apply(config, NULL);
  *out = config;
  return TWS_OK;
}

/* Reads a file of another program into a configuration with the same settings, and sets *read to 1; *read stays 0 if
 * the text is not such a file. */
static tws_code load_foreign(const char *text, size_t length, const char *name, int *read, tws_config **out,
                             tws_error *err) {
  tws_config_format format;
  tws_settings *settings = tws_calloc(1, sizeof *settings);
  tws_text unread = {0}, same = {0};
  tws_json *json = NULL;
  if (!settings) return no_memory(err);
  tws_code code = tws_format_read(text, length, name, &format, settings, &unread, err);
  *read = code != TWS_OK || format != TWS_FORMAT_NONE;
  if (code == TWS_OK && *read) code = tws_settings_config(settings, &same, err);
  tws_text as = {0};
  tws_text_add(&as, "%s, as a ds_config.json", name);
  if (code == TWS_OK && *read)
    code = as.failed ? no_memory(err) : tws_json_parse(same.data, same.length, as.data, &json, err);
  tws_text_free(&as);
  if (code == TWS_OK && *read) code = create_from_json(json, out, err);
  if (code == TWS_OK && *read) {
    (*out)->format = format;
    (*out)->store->unread = unread.data ? copy_text(unread.data) : NULL;
    if (unread.data && !(*out)->store->unread) code = no_memory(err);
  }
  tws_text_free(&same);
  tws_text_free(&unread);
  tws_free(settings);
  return code;
}

tws_code tws_config_load(const char *path, tws_config **out, tws_error *err) {
  const char *name = strcmp(path, "-") == 0 ? "standard input" : path;
  tws_json *json = NULL;
  tws_error foreign = {0};
  char *text;
  size_t length;
  *out = NULL;
  TWS_TRY(tws_read_file(path, 0, &text, &length, err));
  int read = 0;
  tws_code code = load_foreign(text, length, name, &read, out, err);
  if (read) {
    tws_free(text);
    return code;
  }
  code = tws_json_parse_hjson(text, length, name, &json, err);
  if ((code == TWS_OK || code == TWS_INVALID) && tws_config_refuse_foreign(text, name, json, &foreign) != TWS_OK) {
    code = TWS_INVALID;
    if (err) *err = foreign;
    tws_json_destroy(json);
    json = NULL;
  }
  tws_free(text);
  if (code == TWS_OK) code = create_from_json(json, out, err);
  if (code == TWS_OK) (*out)->format = TWS_FORMAT_DEEPSPEED;
  return code;
}

/* Returns 1 if the key is in a section in which DeepSpeed itself gives "auto" a meaning, or in Twinspeed's section. */
static int has_own_auto(const char *path) {
  static const char *const sections[] = {"zero_optimization.zenflow.", "autotuning.", "expert_parallel.", "twinspeed."};
  for (size_t i = 0; i < sizeof sections / sizeof *sections; i++)
    if (strncmp(path, sections[i], strlen(sections[i])) == 0) return 1;
  return 0;
}

tws_config_format tws_config_format_of(const tws_config *config) {
  if (config->format != TWS_FORMAT_DEEPSPEED) return config->format;
  for (size_t i = 0; i < tws_key_count; i++)
    if (!has_own_auto(tws_keys[i].path) && tws_given_auto(tws_store_get(config->store, &tws_keys[i])))
      return TWS_FORMAT_HUGGING_FACE;
  return TWS_FORMAT_DEEPSPEED;
}

tws_code tws_config_from_json(const tws_json *json, tws_config **out, tws_error *err) {
  tws_json *copy;
  *out = NULL;
  TWS_TRY(tws_json_clone(json, &copy, err));
  return create_from_json(copy, out, err);
}

tws_code tws_config_default(tws_config **out, tws_error *err) {
  tws_json *json;
  *out = NULL;
  TWS_TRY(tws_json_parse("{}", 2, "configuration", &json, err));
  return create_from_json(json, out, err);
}

tws_code tws_config_clone(const tws_config *config, tws_config **out, tws_error *err) {
  const struct tws_config_store *from = config->store;
  *out = NULL;
  tws_config *copy = tws_calloc(1, sizeof *copy);
  struct tws_config_store *store = tws_calloc(1, sizeof *store);
  tws_override *overrides = from->count ? tws_calloc(from->count, sizeof *overrides) : NULL;
  if (!copy || !store || (from->count && !overrides)) {
    tws_free(copy);
    tws_free(store);
    tws_free(overrides);
    return no_memory(err);
  }
  *copy = *config;
  *store = *from;
  copy->store = store;
  store->origin = source_share(from->origin);
  store->overrides = overrides;
  store->unread = from->unread ? copy_text(from->unread) : NULL;
  store->capacity = from->count;
  for (store->count = 0; store->count < from->count; store->count++) {
    tws_override *o = &overrides[store->count];
    *o = from->overrides[store->count];
    o->path = copy_text(o->path);
    if (!o->path) {
      tws_config_destroy(copy); /* releases the sources that the copy already shares */
      return no_memory(err);
    }
    source_share(o->source);
  }
  *out = copy;
  return TWS_OK;
}

/* ---- overrides ---- */

typedef struct setting {
  tws_config *config;
  tws_source *source;
} setting;

static tws_code add_override(tws_walk *walk, const tws_key *key, const cJSON *item) {
  setting *set = walk->user;
  struct tws_config_store *store = set->config->store;
  char path[512];
  tws_key_join(walk->segments, walk->n, path, sizeof path);
  for (size_t i = 0; i < store->count; i++) {
    if (strcmp(store->overrides[i].path, path) != 0) continue;
    source_share(set->source);
    source_drop(store->overrides[i].source);
    store->overrides[i].source = set->source;
    store->overrides[i].item = item;
    return TWS_OK;
  }
  char *copy = copy_text(path);
  if (!copy || tws_reserve(&store->overrides, &store->capacity, store->count + 1, sizeof *store->overrides)) {
    tws_free(copy);
    return no_memory(walk->err);
  }
  store->overrides[store->count++] = (tws_override){key, copy, source_share(set->source), item};
  return TWS_OK;
}

static tws_code add_list(tws_walk *walk, const cJSON *item) {
  return add_override(walk, NULL, item);
}

/* Parses the text of an override. Text that is not valid JSON is a string: --set optimizer.type=Adam needs no
 * quotes. */
static tws_code parse_value(const char *path, const char *text, tws_json **out, tws_error *err) {
  tws_error why = {0};
  tws_code code = tws_json_parse(text, strlen(text), "command line", out, &why);
  if (code == TWS_OK || code == TWS_MEMORY) {
    if (err && code != TWS_OK) *err = why;
    return code;
  }
  size_t length = strlen(text);
  int word = length > 0 && length < 256 && (isalpha((unsigned char)text[0]) || text[0] == '/' || text[0] == '.');
  for (size_t i = 0; i < length && word; i++) word = isprint((unsigned char)text[i]) && !strchr("\"\\{}[]", text[i]);
  if (!word)
    return tws_fail(err, TWS_INVALID, *text ? why.hint : "give a value: --set KEY=VALUE; an empty text is '\"\"'",
                    "command line: %.100s: \"%.100s\" is not a value of JSON", path, text);
  char quoted[264];
  int n = snprintf(quoted, sizeof quoted, "\"%s\"", text);
  return tws_json_parse(quoted, (size_t)n, "command line", out, err);
}

static tws_code set_value(tws_config *config, const char *path, tws_source *source, tws_error *err) {
  setting set = {config, source};
  tws_walk walk = {.store = config->store, .source = source, .err = err, .visit = tws_key_check, .user = &set};
  char copy[512];
  snprintf(copy, sizeof copy, "%s", path);
  if (!tws_json_is_utf8(path))
    return tws_fail(err, TWS_INVALID, "a key is UTF-8 text, such as zero_optimization.stage",
                    "command line: the key \"%.100s\" is not valid UTF-8", path);
  walk.n = strlen(path) < sizeof copy ? tws_key_split(copy, walk.segments, TWS_KEY_DEPTH) : -1;
  if (walk.n < 1)
    return tws_fail(err, TWS_INVALID, "a key looks like zero_optimization.stage", "command line: \"%.100s\" is no key",
                    path);
  for (int i = 0; i < walk.n; i++) walk.segments[i] = tws_key_canonical(walk.segments, i + 1);
  const cJSON *value = source->json->root;
  int n = walk.n, below = 0;
  if (n > 1 || !cJSON_IsNull(value)) TWS_TRY(tws_store_walk(&walk, value)); /* checks all members before any is set */
  walk.n = n;
  walk.visit = add_override;
  walk.list = add_list;
  const tws_key *key = tws_key_find(walk.segments, n, &below);
  if (cJSON_IsNull(value)) { /* null restores the default */
    if (!key || below)
      return tws_fail(err, TWS_INVALID, NULL, "command line: \"%.100s\" is a section, not a key", path);
    TWS_TRY(add_override(&walk, key, value));
  } else {
    TWS_TRY(tws_store_walk(&walk, value));
  }
  char section[128];
  snprintf(section, sizeof section, "%s", walk.segments[0]);
  tws_config_apply(config, section);
  return TWS_OK;
}

/* Converts a value of the key optimizer or optimizer.params in which optimizer.params is a list of groups, as in
 * PyTorch, to one without such a list (tws_config_split_params()). If the value itself is the list, *path becomes
 * "optimizer". */
static tws_code split_params(const char **path, tws_json *json, tws_error *err) {
  if (strcmp(*path, "optimizer.params") == 0 && cJSON_IsArray(json->root)) {
    cJSON *section = cJSON_CreateObject();
    if (!cJSON_AddItemToObject(section, "params", json->root)) {
      cJSON_Delete(section);
      return no_memory(err);
    }
    json->root = section;
    *path = "optimizer";
  }
  return strcmp(*path, "optimizer") == 0 ? tws_config_split_params(json, json->root, err) : TWS_OK;
}

tws_code tws_config_set(tws_config *config, const char *path, const char *json_value, tws_error *err) {
  tws_json *json;
  TWS_TRY(parse_value(path, json_value, &json, err));
  const tws_code split = split_params(&path, json, err);
  if (split != TWS_OK) {
    tws_json_destroy(json);
    return split;
  }
  tws_source *source = source_create(json, 1);
  if (!source) return no_memory(err);
  tws_code code = set_value(config, path, source, err);
  source_drop(source);
  return code;
}
