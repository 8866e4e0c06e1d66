/* Writes notes on values that a configuration leaves open ("auto"), or that Twinspeed changes (fractions of counts). */
#include <stdio.h>
#include <string.h>

#include "config/store.h"

enum { FLAG_RATE, FLAG_WARMUP, FLAG_TYPE, FLAG_SET, FLAGS };

typedef struct notes {
  tws_text *out, automatic; /* automatic: the keys that are "auto", with their resolved values */
  cJSON *effective;
  int count, keys, flags[FLAGS];
} notes;

/* Returns 1 if an "auto" of this key needs no note: batches and the run's length are derived or refused elsewhere, and
 * sizes that are computed from the model are not defaults. */
static int comes_from_elsewhere(const char *path) {
  return tws_key_word(
             "train_batch_size|train_micro_batch_size_per_gpu|gradient_accumulation_steps|"
             "scheduler.params.total_num_steps|zero_optimization.reduce_bucket_size|"
             "zero_optimization.stage3_prefetch_bucket_size|zero_optimization.stage3_param_persistence_threshold",
             path, 0) >= 0;
}

static int flag_of(const char *path) {
  if (tws_key_word("optimizer.params.lr|scheduler.params.warmup_max_lr", path, 0) >= 0) return FLAG_RATE;
  if (strcmp(path, "scheduler.params.warmup_num_steps") == 0) return FLAG_WARMUP;
  return tws_key_word("fp16.enabled|bf16.enabled", path, 0) >= 0 ? FLAG_TYPE : FLAG_SET;
}

static void note_auto(notes *n, const tws_walk *walk, const tws_key *key) {
  const cJSON *at = n->effective;
  for (int i = 0; i < walk->n && at; i++)
    at = cJSON_IsObject(at) ? cJSON_GetObjectItemCaseSensitive(at, walk->segments[i]) : NULL;
  if (!at || comes_from_elsewhere(key->path) || tws_given_auto((tws_given){at, NULL})) return;
  char *value = cJSON_PrintUnformatted(at);
  tws_text_add(&n->automatic, "%s%s %s", n->automatic.length ? ", " : "", key->path, value ? value : "?");
  cJSON_free(value);
  n->keys++;
  if (!key->reason) n->flags[flag_of(key->path)] = 1;
}

static tws_code note_key(tws_walk *walk, const tws_key *key, const cJSON *item) {
  notes *n = walk->user;
  const tws_given given = {item, walk->source};
  if (tws_given_auto(given)) note_auto(n, walk, key);
  const int none = cJSON_IsString(item) && strcmp(item->valuestring, "None") == 0;
  if (!none && !tws_given_fraction(key, given)) return TWS_OK;
  int line, column;
  int64_t whole = 0;
  tws_json_place(walk->source->json, item, &line, &column);
  tws_given_integer(key, given, &whole);
  if (walk->source->command_line)
    tws_text_add(n->out, "command line: ");
  else
    tws_text_add(n->out, "%s:%d:%d: ", walk->source->json->name, line, column);
  if (none)
    tws_text_add(n->out, "\"%s\" is None, which is Python's: JSON spells it null\n", key->path);
  else
    tws_text_add(n->out, "\"%s\" is %.15g, and elements are whole: it is rounded down to %lld\n", key->path,
                 item->valuedouble, (long long)whole);
  n->count++;
  return TWS_OK;
}

static void finish_auto(notes *n) {
  static const char *const flags[FLAGS] = {"--learning-rate", "--warmup-steps", "--dtype", "--set KEY=VALUE"};
  int all = 0, said = 0;
  if (!n->automatic.length) return;
  for (int i = 0; i < FLAGS; i++) all += n->flags[i];
  tws_text_add(n->out, "\"auto\" is taken as: %s%s", n->automatic.data, all ? "; " : "\n");
  for (int i = 0; i < FLAGS; i++) {
    if (!n->flags[i]) continue;
    tws_text_add(n->out, "%s%s", said == 0 ? "" : said + 1 == all ? " and " : ", ", flags[i]);
    said++;
  }
  if (all) tws_text_add(n->out, " %s\n", all > 1 ? "set them" : n->keys > 1 ? "sets them" : "sets it");
  n->count++;
}

tws_code tws_config_notes(const tws_config *config, tws_text *out, int *count, tws_error *err) {
  tws_text printed = {0};
  notes n = {.out = out};
  TWS_TRY(tws_config_print(config, 0, &printed, err));
  n.effective = cJSON_Parse(printed.data);
  tws_text_free(&printed);
  if (!n.effective) return tws_fail(err, TWS_MEMORY, NULL, "configuration: out of memory");
  tws_walk walk = {.store = config->store, .err = err, .visit = note_key, .user = &n};
  tws_code code = tws_store_walk_all(&walk);
  if (code == TWS_OK) finish_auto(&n);
  if (code == TWS_OK && config->store->unread) {
    tws_text_add(out, "%s\n", config->store->unread);
    n.count++;
  }
  cJSON_Delete(n.effective);
  const int failed = out->failed || n.automatic.failed;
  tws_text_free(&n.automatic);
  *count = n.count;
  return code == TWS_OK && failed ? tws_fail(err, TWS_MEMORY, NULL, "configuration: out of memory") : code;
}
