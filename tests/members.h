/* Helpers for golden files, for required members of JSON objects, and for lists. */
#ifndef TESTS_MEMBERS_H
#define TESTS_MEMBERS_H

#include <check.h>
#include <stdio.h>

#include "base/json.h"

/* Loads tests/golden/<name>; destroy the result with tws_json_destroy(). */
static inline tws_json *golden_file(const char *name) {
  char path[512];
  tws_error why = {0};
  tws_json *json = NULL;
  snprintf(path, sizeof path, "%s/golden/%s", TWS_TEST_DIR, name);
  ck_assert_msg(tws_json_read(path, &json, &why) == TWS_OK, "%s", why.message);
  return json;
}

static inline const cJSON *member(const cJSON *object, const char *key) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
  ck_assert_msg(item != NULL, "no member %s", key);
  return item;
}

static inline double number(const cJSON *object, const char *key) {
  const cJSON *item = member(object, key);
  ck_assert_msg(cJSON_IsNumber(item), "%s is no number", key);
  return item->valuedouble;
}

static inline int integer(const cJSON *object, const char *key) {
  return (int)number(object, key);
}

/* false where there is none */
static inline int is_true(const cJSON *object, const char *key) {
  return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(object, key));
}

/* A list of integers. */
static inline void same_list(const cJSON *expected, const int *actual, int count, const char *what) {
  ck_assert_msg(cJSON_GetArraySize(expected) == count, "%s: %d, not %d", what, count, cJSON_GetArraySize(expected));
  int i = 0;
  const cJSON *item;
  cJSON_ArrayForEach(item, expected) {
    ck_assert_msg((int)item->valuedouble == actual[i], "%s[%d] is %d, not %g", what, i, actual[i], item->valuedouble);
    i++;
  }
}

#endif
