/* Networks that are described in C: a twinspeed_network becomes the text of a network file (docs/networks.md), which
 * the same reader reads as a file, so that both mean the same and faults have the same messages. */
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/number.h"
#include "library/status.h"

enum { MOST_ITEMS = 4096, MOST_KEY = 64, MOST_VALUE = 256, MOST_DEPTH = 8 };
static const char keys_hint[] = "keys are \"out=6, side=5, bias=false\"";

static tws_code no_memory(tws_error *why) {
  return tws_fail(why, TWS_MEMORY, NULL, "no memory for the text of the network");
}

/* Adds `item` to an object, or with key NULL to a list; the item is freed if it cannot be added. */
static tws_code put(cJSON *to, const char *key, cJSON *item, tws_error *why) {
  if (item && (key ? cJSON_AddItemToObject(to, key, item) : cJSON_AddItemToArray(to, item))) return TWS_OK;
  cJSON_Delete(item);
  return no_memory(why);
}

static tws_code put_text(cJSON *to, const char *key, const char *text, tws_error *why) {
  return text ? put(to, key, cJSON_CreateString(text), why) : TWS_OK;
}

static tws_code put_number(cJSON *to, const char *key, double number, tws_error *why) {
  return put(to, key, cJSON_CreateNumber(number), why);
}

/* Adds a new list or object and sets *out to it. */
static tws_code put_new(cJSON *to, const char *key, int list, cJSON **out, tws_error *why) {
  *out = list ? cJSON_CreateArray() : cJSON_CreateObject();
  return put(to, key, *out, why);
}

/* Fails with TWS_USAGE unless an array of the caller has this number of items. */
static tws_code check_count(const void *items, int count, const char *what, tws_error *why) {
  if (count >= 0 && count <= MOST_ITEMS && (count == 0 || items)) return TWS_OK;
  return tws_fail(why, TWS_USAGE, "give an array and the number of its items, or NULL and 0",
                  "network: %d %s, and there are 0 to %d, in an array", count, what, MOST_ITEMS);
}

/* ---- keys ---- */

/* Copies [begin, end) without blanks at both ends; returns 0 if nothing remains, or it is too long. */
static int copy_word(const char *begin, const char *end, char *to, size_t size) {
  while (begin < end && (*begin == ' ' || *begin == '\n')) begin++;
  while (end > begin && (end[-1] == ' ' || end[-1] == '\n')) end--;
  if (begin == end || (size_t)(end - begin) >= size) return 0;
  memcpy(to, begin, (size_t)(end - begin));
  to[end - begin] = '\0';
  return 1;
}

static cJSON *value_of(const char *word) {
  double number;
  if (strcmp(word, "true") == 0 || strcmp(word, "false") == 0) return cJSON_CreateBool(word[0] == 't');
  if (tws_text_number(word, NULL, -1e300, 1e300, &number)) return cJSON_CreateNumber(number);
  return cJSON_CreateString(word);
}

/* Adds "KEY=VALUE, KEY=VALUE" to an object. A value is a number, true or false, or else a text. */
static tws_code put_keys(cJSON *to, const char *keys, const char *what, tws_error *why) {
  char key[MOST_KEY], value[MOST_VALUE];
  for (const char *at = keys; at && *at;) {
    const char *equals = strchr(at, '='), *end = at + strcspn(at, ",");
    if (!equals || equals > end || !copy_word(at, equals, key, sizeof key) ||
        !copy_word(equals + 1, end, value, sizeof value))
      return tws_fail(why, TWS_INVALID, keys_hint, "network: \"%.*s\" in the keys of %.80s is no KEY=VALUE",
                      (int)(end - at < 80 ? end - at : 80), at, what);
    if (cJSON_HasObjectItem(to, key))
      return tws_fail(why, TWS_INVALID, "give each key once", "network: %.80s has the key \"%s\" twice", what, key);
    TWS_TRY(put(to, key, value_of(value), why));
    at = *end ? end + 1 : end;
  }
  return TWS_OK;
}

/* ---- modules ---- */

static tws_code put_modules(cJSON *to, const twinspeed_module *modules, int count, int depth, tws_error *why);

static tws_code put_module(cJSON *to, const twinspeed_module *m, int depth, tws_error *why) {
  const int inputs = m->input[0] == NULL ? 0 : m->input[1] == NULL ? 1 : 2;
  const char *what = m->name ? m->name : m->type ? m->type : "a module";
  cJSON *item, *list;
  if (inputs == 0 && m->input[1])
    return tws_fail(why, TWS_INVALID, "name the first input, too", "network: %.80s has a second input alone", what);
  TWS_TRY(put_new(to, NULL, 0, &item, why));
  TWS_TRY(put_text(item, "type", m->type, why));
  TWS_TRY(put_text(item, "name", m->name, why));
  if (m->repeat != 0) TWS_TRY(put_number(item, "repeat", m->repeat, why));
  if (inputs == 1) TWS_TRY(put_text(item, "input", m->input[0], why));
  if (inputs == 2) {
    TWS_TRY(put_new(item, "input", 1, &list, why));
    for (int i = 0; i < 2; i++) TWS_TRY(put_text(list, NULL, m->input[i], why));
  }
  TWS_TRY(put_keys(item, m->keys, what, why));
  if (m->modules || m->module_count != 0 || m->repeat != 0)
    TWS_TRY(put_modules(item, m->modules, m->module_count, depth + 1, why));
  return TWS_OK;
}

static tws_code put_modules(cJSON *to, const twinspeed_module *modules, int count, int depth, tws_error *why) {
  cJSON *list;
  TWS_TRY(check_count(modules, count, "modules", why));
  if (depth > MOST_DEPTH)
    return tws_fail(why, TWS_INVALID, "write the inner block out", "network: blocks are nested more than %d times",
                    MOST_DEPTH);
  TWS_TRY(put_new(to, "modules", 1, &list, why));
  for (int i = 0; i < count; i++) TWS_TRY(put_module(list, &modules[i], depth, why));
  return TWS_OK;
}

/* ---- losses, turns, inputs ---- */

static tws_code put_words(cJSON *to, const char *key, const char *const *words, int count, tws_error *why) {
  cJSON *list;
  TWS_TRY(check_count(words, count, key, why));
  if (count == 0) return TWS_OK;
  TWS_TRY(put_new(to, key, 1, &list, why));
  for (int i = 0; i < count; i++) TWS_TRY(put_text(list, NULL, words[i] ? words[i] : "", why));
  return TWS_OK;
}

static tws_code put_losses(cJSON *to, const twinspeed_loss *losses, int count, tws_error *why) {
  cJSON *list, *item;
  TWS_TRY(check_count(losses, count, "losses", why));
  if (count == 0) return TWS_OK;
  TWS_TRY(put_new(to, "losses", 1, &list, why));
  for (int i = 0; i < count; i++) {
    TWS_TRY(put_new(list, NULL, 0, &item, why));
    TWS_TRY(put_text(item, "name", losses[i].name, why));
    TWS_TRY(put_text(item, "of", losses[i].of, why));
    TWS_TRY(put_words(item, "run", losses[i].run, losses[i].run_count, why));
    TWS_TRY(put_keys(item, losses[i].keys, losses[i].name ? losses[i].name : "a loss", why));
  }
  return TWS_OK;
}

static tws_code put_picture(cJSON *to, const char *key, const twinspeed_picture *picture, int named, tws_error *why) {
  cJSON *item;
  TWS_TRY(put_new(to, key, 0, &item, why));
  if (named) TWS_TRY(put_text(item, "name", picture->name, why));
  TWS_TRY(put_number(item, "side", (double)picture->side, why));
  return put_number(item, "channels", (double)picture->channels, why);
}

static tws_code put_inputs(cJSON *root, const twinspeed_network *n, tws_error *why) {
  cJSON *input, *item;
  TWS_TRY(check_count(n->pictures, n->picture_count, "pictures", why));
  TWS_TRY(check_count(n->labels, n->label_count, "labels", why));
  TWS_TRY(put_new(root, "input", 0, &input, why));
  if (n->vocabulary != 0 || n->positions != 0) {
    TWS_TRY(put_new(input, "tokens", 0, &item, why));
    TWS_TRY(put_number(item, "vocabulary", (double)n->vocabulary, why));
    TWS_TRY(put_number(item, "positions", (double)n->positions, why));
  }
  const int named = n->picture_count > 1 || (n->picture_count == 1 && n->pictures[0].name);
  if (n->picture_count > 0 && !named) TWS_TRY(put_picture(input, "pictures", n->pictures, 0, why));
  if (named) {
    TWS_TRY(put_new(input, "pictures", 1, &item, why));
    for (int i = 0; i < n->picture_count; i++) TWS_TRY(put_picture(item, NULL, &n->pictures[i], 1, why));
  }
  if (n->noise.side != 0) TWS_TRY(put_picture(input, "noise", &n->noise, 0, why));
  if (n->label_count == 0) return n->classes != 0 ? put_number(root, "classes", (double)n->classes, why) : TWS_OK;
  TWS_TRY(put_new(root, "classes", 0, &item, why));
  for (int i = 0; i < n->label_count; i++)
    TWS_TRY(put_number(item, n->labels[i].name ? n->labels[i].name : "", (double)n->labels[i].classes, why));
  return TWS_OK;
}

static tws_code put_turns(cJSON *root, const twinspeed_network *n, tws_error *why) {
  cJSON *list, *item;
  TWS_TRY(check_count(n->networks, n->network_count, "networks", why));
  TWS_TRY(check_count(n->turns, n->turn_count, "turns", why));
  if (n->network_count == 0 && n->turn_count == 0) return TWS_OK;
  TWS_TRY(put_new(root, "networks", 1, &list, why));
  for (int i = 0; i < n->network_count; i++) {
    TWS_TRY(put_new(list, NULL, 0, &item, why));
    TWS_TRY(put_text(item, "name", n->networks[i].name, why));
    TWS_TRY(put_modules(item, n->networks[i].modules, n->networks[i].module_count, 0, why));
  }
  TWS_TRY(put_new(root, "turns", 1, &list, why));
  for (int i = 0; i < n->turn_count; i++) {
    TWS_TRY(put_new(list, NULL, 0, &item, why));
    TWS_TRY(put_words(item, "train", n->turns[i].train, n->turns[i].train_count, why));
    TWS_TRY(put_losses(item, n->turns[i].losses, n->turns[i].loss_count, why));
  }
  return TWS_OK;
}

/* ---- the text ---- */

static tws_code put_network(cJSON *root, const twinspeed_network *n, tws_error *why) {
  TWS_TRY(put_text(root, "model_type", "network", why));
  TWS_TRY(put_inputs(root, n, why));
  TWS_TRY(put_keys(root, n->keys, "the network", why));
  if (n->module_count != 0) TWS_TRY(put_modules(root, n->modules, n->module_count, 0, why));
  TWS_TRY(put_losses(root, n->losses, n->loss_count, why));
  return put_turns(root, n, why);
}

void twinspeed_network_init(twinspeed_network *network) {
  *network = (twinspeed_network){.size = sizeof *network};
}

static tws_code write_text(const twinspeed_network *given, char **text, tws_error *why) {
  twinspeed_network network;
  twinspeed_network_init(&network);
  if (given->size == 0 || given->size > sizeof network)
    return tws_fail(why, TWS_USAGE, "call twinspeed_network_init() first, with the twinspeed.h of this library",
                    "network: a size of %zu bytes is not one that this library knows", given->size);
  memcpy(&network, given, given->size);
  cJSON *root = cJSON_CreateObject();
  tws_code code = root ? put_network(root, &network, why) : no_memory(why);
  char *printed = code == TWS_OK ? cJSON_Print(root) : NULL;
  if (code == TWS_OK) {
    *text = printed ? tws_calloc(strlen(printed) + 1, 1) : NULL;
    if (*text)
      memcpy(*text, printed, strlen(printed));
    else
      code = no_memory(why);
  }
  cJSON_free(printed);
  cJSON_Delete(root);
  return code;
}

twinspeed_status twinspeed_network_text(const twinspeed_network *network, char **text, twinspeed_error *error) {
  tws_error why = {0};
  *text = NULL;
  return twinspeed_tell_(twinspeed_failed_(write_text(network, text, &why)), &why, error);
}
