/* Reads configurations from texts for suites, and keeps the last error. */
#ifndef TESTS_CONFIGS_H
#define TESTS_CONFIGS_H

#include <check.h>
#include <string.h>

#include "config/ds_config.h"

static tws_error err;

static inline tws_code from_text(const char *text, tws_config **out) {
  tws_json *json;
  err = (tws_error){0};
  *out = NULL;
  TWS_TRY(tws_json_parse(text, strlen(text), "ds.json", &json, &err));
  tws_code code = tws_config_from_json(json, out, &err);
  tws_json_destroy(json);
  return code;
}

static inline tws_code resolve(const char *text, int64_t ranks, int64_t hidden, tws_config **out) {
  TWS_TRY(from_text(text, out));
  tws_auto_context context = {.hidden_size = hidden};
  tws_code code = tws_config_resolve(*out, ranks, &context, &err);
  if (code != TWS_OK) {
    tws_config_destroy(*out);
    *out = NULL;
  }
  return code;
}

static inline tws_config *config_of(const char *text) {
  tws_config *config;
  ck_assert_msg(from_text(text, &config) == TWS_OK, "%s: %s", text, err.message);
  return config;
}

#endif
