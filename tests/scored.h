/* Numbers of the verb score. */
#ifndef TESTS_SCORED_H
#define TESTS_SCORED_H

#include "tests/answers.h"

/* Runs `score --json` with these arguments and returns the number of this name in its answer. */
static inline double scored(const char *arguments, const char *member) {
  command_result r = twinspeed("score --json %s", arguments);
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-score-1");
  const double value = cJSON_GetObjectItem(json, member)->valuedouble;
  cJSON_Delete(json);
  command_free(&r);
  return value;
}

#endif
