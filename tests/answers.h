/* Checks that hold for every answer of the program: one error line, or one JSON document that names its schema. */
#ifndef TESTS_ANSWERS_H
#define TESTS_ANSWERS_H

#include <check.h>

#include "base/json.h"
#include "tests/command.h"

/* Asserts that a command failed with exit code `status`, one error line and at most one hint on standard error, and an
 * empty standard output. */
static inline void assert_one_error(const command_result *r, int status, const char *what) {
  ck_assert_msg(r->status == status, "%s: exit %d instead of %d: %s", what, r->status, status, r->err);
  ck_assert_msg(count_lines_with(r->err, "twinspeed: ") == 1, "%s: %s", what, r->err);
  int lines = 0;
  for (const char *c = r->err; *c; c++) lines += *c == '\n';
  ck_assert_msg(lines == 1 + count_lines_with(r->err, "hint: ") && lines <= 2, "%s: %s", what, r->err);
  ck_assert_msg(r->out[0] == '\0', "%s: output %s", what, r->out);
}

static inline cJSON *assert_json(const command_result *r, const char *schema) {
  cJSON *json = cJSON_Parse(r->out);
  ck_assert_msg(json != NULL, "not JSON: %.300s\n%s", r->out, r->err);
  const cJSON *name = cJSON_GetObjectItemCaseSensitive(json, "schema");
  ck_assert_msg(cJSON_IsString(name), "no schema in %.300s", r->out);
  ck_assert_str_eq(name->valuestring, schema);
  return json;
}

/* Runs a line of the program and asserts its exit code and that one of its outputs contains the text `says`. */
static inline void assert_says(const char *line, int status, const char *says) {
  command_result r = twinspeed("%s", line);
  ck_assert_msg(r.status == status && (strstr(r.err, says) || strstr(r.out, says)), "%s: %d, no \"%s\" in %s%s", line,
                r.status, says, r.err, r.out);
  command_free(&r);
}

#endif
