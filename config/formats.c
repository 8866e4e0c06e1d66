#include "config/formats.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "config/format_rows.h"
#include "config/keys.h"

/* Returns the table of a format; NULL for TWS_FORMAT_NONE and for DeepSpeed's own format, which needs no table. */
static const tws_format_table *table_of(tws_config_format format) {
  static const tws_format_table *const tables[TWS_FORMAT_COUNT] = {
      [TWS_FORMAT_DEEPSPEED] = &tws_format_deepspeed,
      [TWS_FORMAT_MEGATRON] = &tws_format_megatron,
      [TWS_FORMAT_MEGATRON_DEEPSPEED] = &tws_format_megatron_deepspeed,
      [TWS_FORMAT_BRIDGE] = &tws_format_bridge,
      [TWS_FORMAT_TORCHTITAN] = &tws_format_torchtitan,
      [TWS_FORMAT_ACCELERATE] = &tws_format_accelerate,
      [TWS_FORMAT_ACCELERATE_FSDP] = &tws_format_accelerate_fsdp,
      [TWS_FORMAT_TRAINER] = &tws_format_trainer,
      [TWS_FORMAT_AXOLOTL] = &tws_format_axolotl,
      [TWS_FORMAT_LLAMA_FACTORY] = &tws_format_llama_factory};
  return tables[format];
}

/* ---- words ---- */

/* Translates `value` by a list of words "ours=theirs|..." and returns the equivalent, or NULL if there is none. theirs:
 * 1: from the format's word to this program's; 0: from this program's to the format's. If words is NULL, returns the
 * value itself. */
static const char *translate(const char *words, const char *value, int theirs, char *text, size_t size) {
  if (!words) return value;
  for (const char *at = words; *at; at += strcspn(at, "|"), at += *at == '|') {
    const size_t whole = strcspn(at, "|"), ours = strcspn(at, "=");
    const char *from = theirs ? at + ours + 1 : at, *to = theirs ? at : at + ours + 1;
    const size_t from_length = theirs ? whole - ours - 1 : ours, to_length = theirs ? ours : whole - ours - 1;
    if (strlen(value) != from_length || strncmp(value, from, from_length) != 0) continue;
    snprintf(text, size, "%.*s", (int)to_length, to);
    return text;
  }
  return NULL;
}

int tws_format_holds(tws_config_format format, const tws_settings *settings, tws_setting setting) {
  const tws_format_table *table = table_of(format);
  char text[64];
  if (!settings->text[setting][0] || !table || !table->write) return 0;
  const int ruled = table->holds ? table->holds(settings, setting) : -1;
  if (ruled >= 0) return ruled;
  for (size_t i = 0; i < table->count; i++)
    if (table->rows[i].setting == setting)
      return translate(table->rows[i].words, settings->text[setting], 0, text, sizeof text) != NULL;
  return 0;
}

/* ---- writing ---- */

/* Writes a tree of keys as arguments: "--key value", or "--flag" for 1; flags that are off are omitted. */
static void write_arguments(const cJSON *root, tws_text *out) {
  const cJSON *item;
  cJSON_ArrayForEach(item, root) {
    char flag[96], value[TWS_SETTING_TEXT];
    snprintf(flag, sizeof flag, "%s", item->string);
    for (char *c = flag; *c; c++) *c = *c == '_' ? '-' : *c;
    if (!tws_tree_text(root, item->string, value, sizeof value) || strcmp(value, "false") == 0) continue;
    tws_text_add(out, strcmp(value, "true") == 0 ? "--%s\n" : "--%s %s\n", flag, value);
  }
}

tws_code tws_format_write(tws_config_format format, const tws_settings *settings, const tws_format_shape *shape,
                          tws_text *out, tws_error *err) {
  const tws_format_table *table = table_of(format);
  if (!table || !table->write) return tws_fail(err, TWS_UNSUPPORTED, NULL, "files of this format are only read");
  cJSON *root = cJSON_CreateObject();
  int failed = !root;
  for (size_t i = 0; i < table->count && !failed; i++) {
    const tws_format_row *row = &table->rows[i];
    char text[64];
    const char *value = settings->text[row->setting];
    if (!*value || !tws_format_holds(format, settings, row->setting) || !*row->path) continue;
    value = translate(row->words, value, 0, text, sizeof text);
    failed = value && tws_tree_put_text(root, row->path, value);
  }
  if (!failed) table->write(settings, shape, root);
  if (!failed && format == TWS_FORMAT_MEGATRON) {
    write_arguments(root, out);
  } else if (!failed && format == TWS_FORMAT_TORCHTITAN) {
    tws_tree_write_toml(root, "", out);
  } else if (!failed && format == TWS_FORMAT_DEEPSPEED) {
    char *text = cJSON_Print(root);
    tws_text_add(out, "%s\n", text ? text : "");
    cJSON_free(text);
  } else if (!failed) {
    tws_tree_write_yaml(root, 0, out);
  }
  cJSON_Delete(root);
  return failed || out->failed ? tws_fail(err, TWS_MEMORY, NULL, "no memory for a configuration") : TWS_OK;
}

/* ---- reading ---- */

static int is_read(const tws_format_table *table, const cJSON *root, const char *path) {
  for (size_t i = 0; i < table->count; i++)
    if (strcmp(table->rows[i].path, path) == 0) return 1;
  for (const char *const *known = table->known; known && *known; known++)
    if (strcmp(*known, path) == 0) return 1;
  if (table->reads && table->reads(root, path)) return 1;
  return strncmp(path, "deepspeed.zero_optimization.", 28) == 0;
}

static void name_unread(const tws_format_table *table, const cJSON *root, const cJSON *node, const char *before,
                        int depth, tws_text *out) {
  const cJSON *item;
  cJSON_ArrayForEach(item, node) {
    char path[1024];
    snprintf(path, sizeof path, "%.900s%s%.80s", before, *before ? "." : "", item->string ? item->string : "");
    if (cJSON_IsObject(item) && depth < 8)
      name_unread(table, root, item, path, depth + 1, out);
    else if (!cJSON_IsNull(item) && !is_read(table, root, path))
      tws_text_add(out, "%s%s", out->length ? ", " : "", path);
  }
}

/* Fails with TWS_INVALID unless all texts of the settings are words, numbers or lists of these, in printable
 * characters. */
static tws_code check_texts(const tws_settings *settings, const char *name, tws_error *err) {
  for (int i = 0; i < TWS_SETTING_COUNT; i++) {
    const char *text = settings->text[i];
    int bad = text[0] != '[' && strpbrk(text, "\"\\[]{}") != NULL;
    for (const char *c = text; *c; c++) bad |= *c < ' ' || *c > '~' || *c == '\\';
    if (bad)
      return tws_fail(err, TWS_INVALID, "give a number or a word", "%s: the %s is \"%.60s\"", name,
                      tws_setting_words((tws_setting)i), text);
  }
  return TWS_OK;
}

static tws_code read_tree(tws_config_format format, const cJSON *root, const char *name, tws_settings *settings,
                          tws_text *unread, tws_error *err) {
  const tws_format_table *table = table_of(format);
  *settings = (tws_settings){0};
  for (size_t i = 0; i < table->count; i++) {
    const tws_format_row *row = &table->rows[i];
    char value[TWS_SETTING_TEXT], text[64];
    if (!tws_tree_text(root, row->path, value, sizeof value) || strcmp(value, "auto") == 0) continue;
    const char *ours = translate(row->words, value, 1, text, sizeof text);
    if (!ours)
      return tws_fail(err, TWS_INVALID, "leave it out, and give what it means by a flag or --set",
                      "%s: %s is \"%.60s\", which no setting of this program means", name, row->path, value);
    tws_setting_put(settings, row->setting, "%s", ours);
  }
  table->read(root, settings);
  TWS_TRY(check_texts(settings, name, err));
  tws_text keys = {0}, taken = {0};
  name_unread(table, root, root, "", 0, &keys);
  if (table->explain) table->explain(root, &taken);
  if (keys.length || taken.length)
    tws_text_add(unread, "%s: %s%s%s%s", name, keys.length ? "these keys are not read: " : "",
                 keys.length ? keys.data : "", keys.length && taken.length ? "; " : "", taken.length ? taken.data : "");
  const int failed = keys.failed || taken.failed || unread->failed;
  tws_text_free(&keys);
  tws_text_free(&taken);
  return failed ? tws_fail(err, TWS_MEMORY, NULL, "no memory for %s", name) : TWS_OK;
}

/* ---- Megatron's arguments ---- */

/* Reads the next word of *text as a shell would separate it, and returns 1; returns 0 at the end. Comments extend to
 * the end of a line, and a backslash at the end of a line continues it. */
static int next_word(const char **text, char *word, size_t size) {
  const char *at = *text;
  size_t n = 0;
  for (;; at++) {
    if (*at == '\\' && (at[1] == '\n' || at[1] == '\r')) continue;
    if (*at == '#') at += strcspn(at, "\n");
    if (!*at || !strchr(" \t\r\n()\"'", *at)) break;
  }
  if (!*at) return 0;
  for (; *at && !strchr(" \t\r\n()\"'", *at); at++)
    if (n + 1 < size) word[n++] = *at;
  word[n] = '\0';
  *text = at;
  return 1;
}

static int is_flag(const char *word) {
  return strncmp(word, "--", 2) == 0 && isalpha((unsigned char)word[2]);
}

tws_code tws_format_arguments(const char *text, const char *name, cJSON **out, tws_error *err) {
  enum { MOST = 4096 };
  char word[256], key[256] = "";
  int count = 0, failed = 0;
  cJSON *root = cJSON_CreateObject();
  *out = NULL;
  while (root && !failed && count < MOST && next_word(&text, word, sizeof word)) {
    if (is_flag(word)) {
      char *equals = strchr(word, '=');
      if (equals) *equals = '\0';
      snprintf(key, sizeof key, "%s", word + 2);
      for (char *c = key; *c; c++) *c = *c == '-' ? '_' : *c == '.' ? '_' : *c;
      failed = tws_tree_put_text(root, key, equals && equals[1] ? equals + 1 : "true");
      if (equals) key[0] = '\0';
      count++;
    } else if (*key) { /* the first value of a flag; "?" represents a shell variable, whose value is unknown */
      failed = tws_tree_put_text(root, key, strchr(word, '$') || word[0] == '[' ? "?" : word);
      key[0] = '\0';
    }
  }
  if (root && !failed && count > 0) {
    *out = root;
    return TWS_OK;
  }
  cJSON_Delete(root);
  return failed || !root ? tws_fail(err, TWS_MEMORY, NULL, "no memory for %s", name)
                         : tws_fail(err, TWS_INVALID, NULL, "%s: no argument begins with --", name);
}

/* ---- which format it is ---- */

static int has_line(const char *text, const char *start) {
  const size_t length = strlen(start);
  for (const char *at = text; at && *at; at = strchr(at, '\n'), at = at ? at + 1 : NULL) {
    const char *word = at + strspn(at, " \t");
    if (strncmp(word, start, length) == 0) return 1;
  }
  return 0;
}

static int ends_with(const char *name, const char *end) {
  const size_t a = strlen(name), b = strlen(end);
  return a >= b && strcmp(name + a - b, end) == 0;
}

static int is_megatrons(const char *text) {
  static const char *const flags[] = {"--micro-batch-size", "--tensor-model-parallel-size",
                                      "--pipeline-model-parallel-size", "--global-batch-size"};
  if (text[strspn(text, " \t\r\n")] == '{') return 0;
  for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
    if (strstr(text, flags[i])) return 1;
  return 0;
}

static int is_torchtitans(const char *text, const char *name) {
  return ends_with(name, ".toml") || has_line(text, "[parallelism]") ||
         (has_line(text, "[training]") && strstr(text, "seq_len"));
}

/* Returns the format of a parsed YAML or JSON file, by its keys. */
static tws_config_format tree_format(const cJSON *root) {
  char type[64], path[256];
  /* 1: the file names a DeepSpeed configuration, which the user has to give with -c instead */
  const int file = tws_tree_text(root, "deepspeed", path, sizeof path) && *path;
  if (tws_tree_at(root, "distributed_type") || tws_tree_at(root, "compute_environment")) {
    if (tws_tree_at(root, "deepspeed_config.deepspeed_config_file")) return TWS_FORMAT_NONE;
    const int given = tws_tree_text(root, "distributed_type", type, sizeof type);
    return given && strcmp(type, "DEEPSPEED") == 0 ? TWS_FORMAT_ACCELERATE : TWS_FORMAT_ACCELERATE_FSDP;
  }
  if (file) return TWS_FORMAT_NONE;
  if (tws_tree_at(root, "base_model")) return TWS_FORMAT_AXOLOTL;
  if (tws_tree_at(root, "finetuning_type") || tws_tree_at(root, "cutoff_len")) return TWS_FORMAT_LLAMA_FACTORY;
  if (tws_tree_at(root, "per_device_train_batch_size")) return TWS_FORMAT_TRAINER;
  if (tws_tree_at(root, "model.tensor_model_parallel_size") || tws_tree_at(root, "train.micro_batch_size"))
    return TWS_FORMAT_BRIDGE;
  return TWS_FORMAT_NONE;
}

static int looks_like_yaml(const char *text, const char *name) {
  static const char *const keys[] = {"compute_environment:", "distributed_type:", "base_model:",
                                     "finetuning_type:",     "cutoff_len:",       "per_device_train_batch_size:"};
  if (text[strspn(text, " \t\r\n")] == '{') return 0;
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (has_line(text, keys[i])) return 1;
  return ends_with(name, ".yaml") || ends_with(name, ".yml") ||
         (has_line(text, "model:") && strstr(text, "tensor_model_parallel_size:"));
}

tws_code tws_format_read(const char *text, size_t length, const char *name, tws_config_format *format,
                         tws_settings *settings, tws_text *unread, tws_error *err) {
  cJSON *root = NULL;
  tws_code code = TWS_OK;
  *format = TWS_FORMAT_NONE;
  if (strlen(text) != length) return TWS_OK; /* the text contains a NUL character, which the JSON reader reports */
  if (is_megatrons(text)) {
    code = tws_format_arguments(text, name, &root, err);
    *format = tws_format_is_megatron_deepspeed(root) ? TWS_FORMAT_MEGATRON_DEEPSPEED : TWS_FORMAT_MEGATRON;
  } else if (is_torchtitans(text, name)) {
    *format = TWS_FORMAT_TORCHTITAN;
    code = tws_tree_read_toml(text, length, name, &root, err);
  } else if (looks_like_yaml(text, name)) {
    code = tws_tree_read_yaml(text, length, name, &root, err);
    if (code == TWS_OK) *format = tree_format(root);
  } else if (text[strspn(text, " \t\r\n")] == '{') {
    root = cJSON_ParseWithLength(text, length);
    if (root) *format = tree_format(root);
    const int ours = tws_tree_at(root, "zero_optimization") || tws_tree_at(root, "train_batch_size") ||
                     tws_tree_at(root, "train_micro_batch_size_per_gpu") || tws_tree_at(root, "twinspeed");
    if (ours) *format = TWS_FORMAT_NONE;
  }
  if (code == TWS_OK && *format != TWS_FORMAT_NONE) code = read_tree(*format, root, name, settings, unread, err);
  cJSON_Delete(root);
  if (code != TWS_OK) *format = TWS_FORMAT_NONE;
  return code;
}
