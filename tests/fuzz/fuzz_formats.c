/* Configurations of other programs: any bytes give one error, or settings that make a configuration or one error. The
 * first byte chooses the name, which decides the format where the text alone does not. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "config/formats.h"
#include "config/tree.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition) {
  if (!condition) abort();
}

static void check_settings(const tws_settings *settings, const char *name) {
  tws_text text = {0};
  tws_json *json = NULL;
  tws_config *config = NULL;
  tws_error err = {0};
  require(tws_settings_config(settings, &text, &err) == TWS_OK);
  require(tws_json_parse(text.data, text.length, name, &json, &err) == TWS_OK);
  const tws_code code = tws_config_from_json(json, &config, &err);
  require(code == TWS_OK || (code == TWS_INVALID && err.message[0]));
  if (code == TWS_OK) {
    const tws_code resolved = tws_config_resolve(config, 8, &(tws_auto_context){.hidden_size = 64}, &err);
    require(resolved == TWS_OK || err.message[0]);
  }
  tws_config_destroy(config);
  tws_json_destroy(json);
  tws_text_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char *const names[] = {"a.toml", "a.yaml", "a.txt", "a.json"};
  static tws_settings settings;
  tws_config_format format;
  tws_text unread = {0};
  tws_error err = {0};
  if (size == 0) return 0;
  const char *name = names[data[0] % 4];
  char *text = calloc(size, 1);
  memcpy(text, data + 1, size - 1);
  const tws_code code = tws_format_read(text, size - 1, name, &format, &settings, &unread, &err);
  require(code == TWS_OK || ((code == TWS_INVALID || code == TWS_UNSUPPORTED) && err.message[0]));
  require(code == TWS_OK || format == TWS_FORMAT_NONE);
  if (format != TWS_FORMAT_NONE) check_settings(&settings, name);
  tws_text_free(&unread);
  free(text);
  return 0;
}
