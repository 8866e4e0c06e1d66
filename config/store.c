#include "config/store.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* ---- lookup ---- */

static const cJSON *unless_null(const cJSON *item) {
  return item && !cJSON_IsNull(item) ? item : NULL;
}

/* Returns the other name of a section that has two, or NULL. */
static const char *other_section_name(const char *segment, size_t length) {
  if (length == 4 && strncmp(segment, "bf16", 4) == 0) return "bfloat16";
  return length == 15 && strncmp(segment, "tensor_parallel", 15) == 0 ? "tp" : NULL;
}

static const cJSON *find_member(const cJSON *object, const char *name, size_t length) {
  for (const cJSON *child = cJSON_IsObject(object) ? object->child : NULL; child; child = child->next)
    if (strncmp(child->string, name, length) == 0 && !child->string[length]) return child;
  return NULL;
}

static const cJSON *find_path(const cJSON *root, const char *path, const char *alias) {
  const cJSON *at = root->child ? root : NULL;
  while (at && *path) {
    size_t length = strcspn(path, ".");
    const cJSON *next = find_member(at, path, length);
    const char *other = path[length] ? other_section_name(path, length) : alias;
    if (!next && other) next = find_member(at, other, strlen(other));
    at = next;
    path += length;
    if (*path) path++;
  }
  return unless_null(at);
}

tws_given tws_store_get(const struct tws_config_store *store, const tws_key *key) {
  for (size_t i = store->count; i > 0; i--)
    if (store->overrides[i - 1].key == key)
      return (tws_given){unless_null(store->overrides[i - 1].item), store->overrides[i - 1].source};
  return (tws_given){find_path(store->origin->json->root, key->path, key->alias), store->origin};
}

/* Returns the alias of a key, or NULL. The loop is skipped for empty documents, which many jobs have. */
static const char *alias_of(const cJSON *root, const char *path) {
  for (size_t i = 0; i < tws_key_count && root->child; i++)
    if (tws_keys[i].alias && strcmp(tws_keys[i].path, path) == 0) return tws_keys[i].alias;
  return NULL;
}

tws_given tws_store_at(const struct tws_config_store *store, const char *path) {
  for (size_t i = store->count; i > 0; i--)
    if (strcmp(store->overrides[i - 1].path, path) == 0)
      return (tws_given){unless_null(store->overrides[i - 1].item), store->overrides[i - 1].source};
  const cJSON *root = store->origin->json->root;
  return (tws_given){find_path(root, path, alias_of(root, path)), store->origin};
}

int tws_store_has(const struct tws_config_store *store, const char *path) {
  size_t length = strlen(path);
  for (size_t i = 0; i < store->count; i++) {
    const char *given = store->overrides[i].path;
    if (strncmp(given, path, length) == 0 && (!given[length] || given[length] == '.') &&
        unless_null(store->overrides[i].item))
      return 1;
  }
  const cJSON *root = store->origin->json->root;
  return find_path(root, path, alias_of(root, path)) != NULL;
}

int tws_given_auto(tws_given given) {
  return cJSON_IsString(given.item) && strcmp(given.item->valuestring, "auto") == 0;
}
int tws_given_true(tws_given given) {
  return cJSON_IsTrue(given.item);
}
const char *tws_given_text(tws_given given) {
  return cJSON_IsString(given.item) ? given.item->valuestring : NULL;
}

int tws_given_integer(const tws_key *key, tws_given given, int64_t *value) {
  const tws_json *json = given.source ? given.source->json : NULL;
  if (tws_json_integer(json, given.item, value, NULL)) return 1;
  if (!key || !key->rounded || !cJSON_IsNumber(given.item)) return 0;
  const double whole = floor(given.item->valuedouble);
  if (!(whole >= -0x1p53 && whole <= 0x1p53)) return 0;
  *value = (int64_t)whole;
  return 1;
}

int tws_given_fraction(const tws_key *key, tws_given given) {
  int64_t value;
  return tws_given_integer(key, given, &value) && !tws_json_integer(NULL, given.item, &value, NULL);
}

tws_code tws_store_fail(const struct tws_config_store *store, tws_given given, tws_code code, tws_error *err,
                        const char *hint, const char *format, ...) {
  char message[sizeof err->message];
  va_list arguments;
  va_start(arguments, format);
  if (vsnprintf(message, sizeof message, format, arguments) < 0) message[0] = 0;
  va_end(arguments);
  const tws_source *source = given.source ? given.source : store->origin;
  if (source->command_line) return tws_fail(err, code, hint, "command line: %s", message);
  if (!given.item) return tws_fail(err, code, hint, "%s: %s", source->json->name, message);
  int line, column;
  tws_json_place(source->json, given.item, &line, &column);
  return tws_fail(err, code, hint, "%s:%d:%d: %s", source->json->name, line, column, message);
}

/* ---- walking ---- */

static tws_code refuse_item(const tws_walk *walk, const cJSON *item, const char *hint, const char *what) {
  char path[400];
  tws_key_join(walk->segments, walk->n, path, sizeof path);
  return tws_store_fail(walk->store, (tws_given){item, walk->source}, TWS_INVALID, walk->err, hint, "%s \"%s\"", what,
                        path);
}

/* Returns 1 for arguments of optimizers and schedules that only PyTorch has. They are not checked, since
 * tws_config_resolve() refuses such types by name. */
static int foreign_arguments(const tws_walk *walk) {
  static const char schedules[] = "LRRangeTest|OneCycle|WarmupLR|WarmupDecayLR|WarmupCosineLR";
  if (walk->n < 3 || strcmp(walk->segments[1], "params") != 0) return 0;
  int optimizer = strcmp(walk->segments[0], "optimizer") == 0;
  if (!optimizer && strcmp(walk->segments[0], "scheduler") != 0) return 0;
  const char *type = tws_given_text(tws_store_at(walk->store, optimizer ? "optimizer.type" : "scheduler.type"));
  return type && (optimizer ? !tws_optimizer_find(type) : tws_key_word(schedules, type, 0) < 0);
}

/* Returns 1 if DeepSpeed ignores unknown keys at this position. It does not ignore unknown arguments of optimizers and
 * schedules, because it passes them to a constructor. */
static int left_alone(const tws_walk *walk) {
  const char *section = walk->segments[0];
  if (walk->source->command_line) return 0; /* an override on the command line is meant for Twinspeed */
  if (walk->n == 1) return 1;
  if (strcmp(section, "twinspeed") == 0 || tws_key_checked_section(section)) return 0;
  return strcmp(walk->segments[1], "params") != 0;
}

/* Suggests the arguments that the chosen optimizer takes, not those of all optimizers, for an unknown argument. */
static void suggest_arguments(const tws_walk *walk, char *hint, size_t size) {
  const char *type = tws_given_text(tws_store_at(walk->store, "optimizer.type"));
  const tws_optimizer_row *row = type ? tws_optimizer_find(type) : NULL;
  if (walk->n < 3 || strcmp(walk->segments[0], "optimizer") != 0 || !row || strncmp(hint, "known here:", 11) != 0)
    return;
  int used = snprintf(hint, size, "%s takes lr, weight_decay", row->type);
  for (const char *word = row->takes; *word && used > 0 && (size_t)used < size;) {
    const int length = (int)strcspn(word, "|");
    used += snprintf(hint + used, size - (size_t)used, ", %.*s", length, word);
    word += length + (word[length] == '|');
  }
}

/* Reports an unknown key. Comparing it with all known keys takes 0.1 to 0.2 ms, so with thousands of unknown keys only
 * the first are compared, and the other reports say so. */
static tws_code unknown_key(tws_walk *walk, const cJSON *item) {
  enum { COMPARED = 256 };
  char hint[sizeof walk->err->hint];
  if (foreign_arguments(walk)) return TWS_OK;
  if (walk->unknown++ >= COMPARED) {
    snprintf(hint, sizeof hint, "not compared with known keys, because %d unknown keys precede it", COMPARED);
    if (!left_alone(walk)) return refuse_item(walk, item, hint, "unknown key");
    return walk->ignored ? walk->ignored(walk, item, hint) : TWS_OK;
  }
  if (strcmp(walk->segments[walk->n - 1], "max_grad_norm") == 0)
    snprintf(hint, sizeof hint, "clipping is set by the top-level key \"gradient_clipping\"");
  else if (tws_key_suggest(walk->segments, walk->n, hint, sizeof hint) != TWS_GUESS_SLIP && left_alone(walk))
    return walk->ignored ? walk->ignored(walk, item, strncmp(hint, "known here", 10) != 0 ? hint : "") : TWS_OK;
  suggest_arguments(walk, hint, sizeof hint);
  return refuse_item(walk, item, hint, "unknown key");
}

/* Continues the walk after a refusal, so that errors of further members are reported too. */
static tws_code go_on(tws_walk *walk, tws_code code, int depth) {
  walk->n = depth;
  return code == TWS_OK || !walk->refusals ? code : tws_refusals_keep(walk->refusals, code, walk->err);
}

static tws_code walk_members(tws_walk *walk, const cJSON *object) {
  const int depth = walk->n;
  if (walk->n == TWS_KEY_DEPTH) return refuse_item(walk, object, NULL, "too deep a section");
  for (const cJSON *child = object->child; child; child = child->next) {
    walk->segments[walk->n++] = child->string;
    const char *name = tws_key_canonical(walk->segments, walk->n);
    if (name != child->string && strcmp(name, child->string) != 0) {
      if (find_member(object, name, strlen(name))) {
        char hint[128];
        snprintf(hint, sizeof hint, "it is another name of \"%.60s\", which is given as well", name);
        TWS_TRY(go_on(walk, refuse_item(walk, child, hint, "given twice:"), depth));
        continue;
      }
      walk->segments[walk->n - 1] = name;
    }
    TWS_TRY(go_on(walk, tws_store_walk(walk, child), depth));
  }
  return TWS_OK;
}

tws_code tws_store_walk(tws_walk *walk, const cJSON *item) {
  int below = 0;
  const tws_key *key = walk->n ? tws_key_find(walk->segments, walk->n, &below) : NULL;
  if (!walk->n) below = 1;
  if (!key && !below) return unknown_key(walk, item);
  if (cJSON_IsNull(item) && walk->n == 1 && below && tws_key_word("bf16|aio|monitor_config", walk->segments[0], 0) < 0)
    return refuse_item(walk, item, "leave it out: DeepSpeed refuses null here", "an object is expected for");
  if (cJSON_IsNull(item)) return TWS_OK;
  if (below && cJSON_IsObject(item)) return walk_members(walk, item);
  if (below == 2 && cJSON_IsArray(item)) {
    if (walk->list) return walk->list(walk, item);
    for (const cJSON *element = item->child; element; element = element->next) {
      if (!cJSON_IsObject(element)) return refuse_item(walk, element, NULL, "objects are expected in");
      TWS_TRY(walk_members(walk, element));
    }
    return TWS_OK;
  }
  if (!walk->n)
    return tws_store_fail(walk->store, (tws_given){item, walk->source}, TWS_INVALID, walk->err,
                          "an empty configuration is {}", "a configuration is one object");
  if (!key) return refuse_item(walk, item, NULL, "an object is expected for");
  return walk->visit(walk, key, item);
}

typedef struct all {
  tws_walk *walk;
  tws_code (*visit)(tws_walk *walk, const tws_key *key, const cJSON *item);
} all;

static int is_overridden(const struct tws_config_store *store, const tws_walk *walk) {
  char path[512];
  if (!store->count) return 0;
  tws_key_join(walk->segments, walk->n, path, sizeof path);
  for (size_t i = 0; i < store->count; i++) {
    const char *other = store->overrides[i].path;
    const size_t length = strlen(other);
    const int in_list = !store->overrides[i].key && strncmp(other, path, length) == 0 && path[length] == '.';
    if (in_list || strcmp(other, path) == 0) return 1;
  }
  return 0;
}

static tws_code visit_original(tws_walk *walk, const tws_key *key, const cJSON *item) {
  const all *a = walk->user;
  if (is_overridden(walk->store, walk)) return TWS_OK;
  a->walk->n = walk->n;
  a->walk->source = walk->source;
  memcpy(a->walk->segments, walk->segments, sizeof *walk->segments * (size_t)walk->n);
  return a->visit(a->walk, key, item);
}

static tws_code ignored_original(tws_walk *walk, const cJSON *item, const char *hint) {
  const all *a = walk->user;
  a->walk->n = walk->n;
  a->walk->source = walk->source;
  memcpy(a->walk->segments, walk->segments, sizeof *walk->segments * (size_t)walk->n);
  return a->walk->ignored(a->walk, item, hint);
}

tws_code tws_store_walk_all(tws_walk *walk) {
  const struct tws_config_store *store = walk->store;
  all a = {walk, walk->visit};
  tws_walk inner = {.store = store,
                    .source = store->origin,
                    .err = walk->err,
                    .visit = visit_original,
                    .ignored = walk->ignored ? ignored_original : NULL,
                    .user = &a};
  TWS_TRY(tws_store_walk(&inner, store->origin->json->root));
  for (size_t i = 0; i < store->count; i++) {
    const tws_override *o = &store->overrides[i];
    char path[512];
    snprintf(path, sizeof path, "%s", o->path);
    walk->n = tws_key_split(path, walk->segments, TWS_KEY_DEPTH);
    walk->source = o->source;
    if (walk->n > 0 && !cJSON_IsNull(o->item))
      TWS_TRY(o->key ? walk->visit(walk, o->key, o->item) : tws_store_walk(walk, o->item));
  }
  return TWS_OK;
}
