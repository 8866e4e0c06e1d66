#include "config/foreign.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "config/keys.h"

enum { VALUE = 96 };

/* ---- finding settings in JSON or YAML text without parsing it ---- */

/* Finds a key at the beginning of a line, after at most blanks, braces, commas and quotes. Copies the key's value, if
 * it is a word, to `value`, sets *at to the key's position in the text, and returns 1; returns 0 if there is no such
 * key. */
static int find_setting(const char *text, const char *key, const char **at, char value[VALUE]) {
  const size_t length = strlen(key);
  for (const char *p = text; (p = strstr(p, key)); p += length) {
    const char *before = p, *end = p + length;
    while (before > text && strchr(" \t{\"'", before[-1])) before--;
    if (before > text && before[-1] != '\n' && before[-1] != ',') continue;
    end += *end == '"' || *end == '\'';
    end += strspn(end, " \t");
    if (*end != ':') continue;
    end += 1 + strspn(end + 1, " \t\"'");
    size_t n = 0;
    while (end[n] && n + 1 < VALUE && (isalnum((unsigned char)end[n]) || strchr("._-/", end[n]))) n++;
    snprintf(value, VALUE, "%.*s", (int)n, end);
    *at = p;
    return 1;
  }
  return 0;
}

static int has_value(const char *text, const char *key, char value[VALUE]) {
  const char *at;
  return find_setting(text, key, &at, value) && *value && tws_key_word("null|none|no|None", value, 0) < 0;
}

/* ---- accelerate ---- */

static void accelerate_hint(const char *text, char *hint, size_t size) {
  char file[VALUE];
  if (has_value(text, "deepspeed_config_file", file))
    snprintf(hint, size, "give the file that its deepspeed_config_file names: -c %s", file);
  else
    snprintf(hint, size, "leave it out, and write its settings as a ds_config.json or as flags (--stage, --dtype)");
}

/* ---- recognized files of other programs ---- */

static void trainer_hint(const char *text, char *hint, size_t size) {
  char file[VALUE];
  if (has_value(text, "deepspeed", file) && strchr(file, '.'))
    snprintf(hint, size, "give the file that its key deepspeed names: -c %s", file);
  else
    snprintf(hint, size,
             "give the file for DeepSpeed that it goes with; batches and types are flags (--micro-batch, "
             "--accumulation, --dtype)");
}

static const struct {
  const char *keys; /* keys, separated by |, any one of which identifies the program */
  int certain; /* 1: the keys alone identify the program; 0: only if the text has no key of a DeepSpeed configuration */
  const char *what;
  void (*advise)(const char *text, char *hint, size_t size);
  const char *hint; /* the hint if `advise` is NULL */
} programs[] = {
    {"compute_environment|distributed_type", 1, "a configuration of Hugging Face's accelerate", accelerate_hint, NULL},
    {"per_device_train_batch_size|per_device_eval_batch_size", 0, "arguments of Hugging Face's Trainer", trainer_hint,
     NULL},
    {"base_model", 0, "a configuration of axolotl", trainer_hint, NULL},
    {"model_type|architectures", 0, "the description of a model (Hugging Face's config.json)", NULL, "give it with -m"},
    {"checkpoints", 0, "a list of checkpoints for DeepSpeed's inference engine (init_inference)", NULL,
     "twinspeed generate makes text from a checkpoint (--resume) or a file of weights (--init-from)"},
    /* tensor_parallel.tp_size stands below a section that both kinds of files have; a training's is autotp_size */
    {"kernel_inject|replace_with_kernel_inject|enable_cuda_graph|replace_method|injection_policy|mp_size|"
     "max_out_tokens|min_out_tokens|set_empty_params|save_mp_checkpoint_path|tensor_parallel.tp_size",
     0, "a configuration of DeepSpeed's inference engine (init_inference)", NULL,
     "estimate --serve, tune --serve and generate take it; of a training, --tp says how many ranks share weights"},
};
enum { PROGRAMS = sizeof programs / sizeof *programs };

/* Returns 1 if the object has a section or a batch key that occurs only in DeepSpeed configurations. */
static int is_deepspeeds(const cJSON *root) {
  static const char *const objects[] = {"zero_optimization", "optimizer", "scheduler", "fp16", "bf16", "twinspeed"};
  for (size_t i = 0; i < sizeof objects / sizeof *objects; i++)
    if (cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(root, objects[i]))) return 1;
  return cJSON_GetObjectItemCaseSensitive(root, "train_batch_size") ||
         cJSON_GetObjectItemCaseSensitive(root, "train_micro_batch_size_per_gpu");
}

/* Returns the item of a key, or of "section.key"; NULL: there is none. */
static const cJSON *find_item(const cJSON *root, const char *key) {
  const char *dot = strchr(key, '.');
  char section[64];
  if (!dot) return cJSON_GetObjectItemCaseSensitive(root, key);
  snprintf(section, sizeof section, "%.*s", (int)(dot - key), key);
  return cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(root, section), dot + 1);
}

static void hint_of(int program, const char *text, char *hint, size_t size) {
  if (programs[program].advise)
    programs[program].advise(text, hint, size);
  else
    snprintf(hint, size, "%s", programs[program].hint);
}

static tws_code refuse_in_json(int program, const char *text, const tws_json *json, const cJSON *item, tws_error *err) {
  char hint[sizeof err->hint];
  hint_of(program, text, hint, sizeof hint);
  return tws_json_fail(json, item, err, hint, "\"%s\": this is %s, not a ds_config.json", item->string,
                       programs[program].what);
}

static tws_code refuse_in_text(int program, const char *text, const char *name, const char *at, const char *key,
                               tws_error *err) {
  char hint[sizeof err->hint];
  int line = 1, column = 1;
  for (const char *p = text; p < at; p++) {
    column = *p == '\n' ? 1 : column + 1;
    line += *p == '\n';
  }
  hint_of(program, text, hint, sizeof hint);
  return tws_fail(err, TWS_INVALID, hint, "%s:%d:%d: \"%s\": this is %s, not a ds_config.json", name, line, column, key,
                  programs[program].what);
}

tws_code tws_config_refuse_foreign(const char *text, const char *name, const tws_json *json, tws_error *err) {
  const cJSON *root = json ? json->root : NULL;
  const int deepspeeds = root && is_deepspeeds(root);
  for (int i = 0; i < PROGRAMS; i++) {
    if (!programs[i].certain && deepspeeds) continue;
    for (const char *word = programs[i].keys; *word; word += strspn(word, "|")) {
      char key[64], value[VALUE];
      const char *at;
      const size_t length = strcspn(word, "|");
      snprintf(key, sizeof key, "%.*s", (int)length, word);
      word += length;
      const cJSON *item = root ? find_item(root, key) : NULL;
      if (item) return refuse_in_json(i, text, json, item, err);
      if (!json && i < 3 && find_setting(text, key, &at, value)) return refuse_in_text(i, text, name, at, key, err);
    }
  }
  return TWS_OK;
}
