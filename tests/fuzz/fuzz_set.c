/* --set KEY=VALUE: any key and any value change a configuration or give one error; the configuration then resolves to
 * numbers or to one error, prints, and reads back. A line of the input is one setting. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "config/ds_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LONGEST = 2048, SETTINGS = 8 };

static void require(int condition) {
  if (!condition) abort();
}

static void set_one(tws_config *config, const char *line, size_t length) {
  char text[LONGEST];
  tws_error err = {0};
  if (length >= sizeof text || memchr(line, '\0', length)) return;
  memcpy(text, line, length);
  text[length] = '\0';
  char *equals = strchr(text, '=');
  if (!equals) return;
  *equals = '\0';
  tws_code code = tws_config_set(config, text, equals + 1, &err);
  require(code == TWS_OK || ((code == TWS_INVALID || code == TWS_UNSUPPORTED) && err.message[0]));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  tws_config *config = NULL, *again = NULL;
  tws_json *json = NULL;
  tws_error err = {0};
  tws_text text = {0};
  const char *at = (const char *)data, *end = at + size;
  int count;
  require(tws_config_default(&config, NULL) == TWS_OK);
  for (int i = 0; i < SETTINGS && at < end; i++) {
    const char *next = memchr(at, '\n', (size_t)(end - at));
    if (!next) next = end;
    set_one(config, at, (size_t)(next - at));
    at = next + (next < end);
  }
  require(tws_config_no_effect(config, &text, &count, NULL) == TWS_OK);
  tws_text_free(&text);
  require(tws_config_print_given(config, 0, &text, NULL) == TWS_OK);
  require(tws_json_parse(text.data, text.length, "given", &json, NULL) == TWS_OK);
  tws_text_free(&text);
  tws_code code = tws_config_from_json(json, &again, &err);
  require(code == TWS_OK || (code == TWS_INVALID && err.message[0])); /* TWS_INVALID where an old key and the new one
                                                                       * that replaces it are both set */
  tws_config_destroy(again);
  tws_json_destroy(json);
  code = tws_config_resolve(config, 8, &(tws_auto_context){.hidden_size = 64}, &err);
  require(code == TWS_OK || ((code == TWS_INVALID || code == TWS_UNSUPPORTED) && err.message[0]));
  tws_config_destroy(config);
  return 0;
}
