#include "config/settings.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/number.h"
#include "config/tree.h"

static const struct {
  const char *key, *words;
} rows[TWS_SETTING_COUNT] = {
#define X(name, key, words) {key, words},
#include "config/settings.def"
#undef X
};

const char *tws_setting_key(tws_setting setting) {
  return rows[setting].key;
}

const char *tws_setting_words(tws_setting setting) {
  return rows[setting].words;
}

int64_t tws_setting_integer(const tws_settings *settings, tws_setting setting, int64_t otherwise) {
  double value;
  if (!tws_text_number(settings->text[setting], NULL, -9e15, 9e15, &value)) return otherwise;
  return (int64_t)value;
}

int tws_setting_pair(const tws_settings *settings, tws_setting setting, double pair[2]) {
  const char *at = settings->text[setting];
  if (*at != '[' || !tws_text_number(at + 1, &at, -1e9, 1e9, &pair[0]) || *at != ',') return 0;
  return tws_text_number(at + 1, &at, -1e9, 1e9, &pair[1]) && *at == ']';
}

int tws_setting_is(const tws_settings *settings, tws_setting setting, const char *word) {
  return strcmp(settings->text[setting], word) == 0;
}

void tws_setting_put(tws_settings *settings, tws_setting setting, const char *format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(settings->text[setting], TWS_SETTING_TEXT, format, values);
  va_end(values);
}

/* ---- to a configuration ---- */

tws_code tws_settings_config(const tws_settings *s, tws_text *out, tws_error *err) {
  cJSON *root = cJSON_CreateObject();
  int failed = !root;
  for (int i = 0; i < TWS_SETTING_COUNT && !failed; i++)
    if (*rows[i].key && s->text[i][0]) failed = tws_tree_put_text(root, rows[i].key, s->text[i]);
  const char *type = s->text[TWS_SETTING_TYPE];
  if (!failed && *type) failed = tws_tree_put_text(root, "bf16.enabled", strcmp(type, "bf16") == 0 ? "true" : "false");
  if (!failed && *type) failed = tws_tree_put_text(root, "fp16.enabled", strcmp(type, "fp16") == 0 ? "true" : "false");
  char *text = failed ? NULL : cJSON_Print(root);
  cJSON_Delete(root);
  if (text) tws_text_add(out, "%s\n", text);
  cJSON_free(text);
  return !text || out->failed ? tws_fail(err, TWS_MEMORY, NULL, "no memory for a configuration") : TWS_OK;
}
