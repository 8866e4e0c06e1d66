/* Measured runs of other software for tests: the file that comes with the program, and rows that tests write
 * themselves. */
#ifndef TWS_TESTS_PUBLISHED_H
#define TWS_TESTS_PUBLISHED_H

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "validation/cases.h"

#define RUNS TWS_SOURCE_DIR "/scenarios/published/measured_runs.json"

static inline tws_cases *load(const char *path) {
  tws_cases *cases = NULL;
  tws_error err = {0};
  ck_assert_msg(tws_cases_load(path, &cases, &err) == TWS_OK, "%s", err.message);
  return cases;
}

static inline int find(const tws_cases *cases, const char *id) {
  for (int i = 0; i < cases->count; i++)
    if (strcmp(cases->cases[i].id, id) == 0) return i;
  ck_abort_msg("no run %s", id);
  return -1;
}

#define ROW_OF(framework, id, step, memory, oom)                                                                   \
  "{\"id\":\"" id                                                                                                  \
  "\",\"group\":\"g\",\"model\":{\"layers\":4,\"hidden\":512,\"heads\":8,\"vocab\":1024,\"seq_len\":512},"         \
  "\"parallel\":{\"dp\":1,\"micro_batch\":8,\"precision\":\"bf16\"},\"hardware\":{\"gpu\":\"A100-SXM4-80GB\",\"n_" \
  "gpus\":1" framework                                                                                             \
  "},"                                                                                                             \
  "\"result\":{\"iter_time_s\":" step ",\"peak_mem_gb\":" memory ",\"mem_kind\":\"GiB allocated\",\"oom\":" oom "}}"
#define ROW(id, step, memory, oom) ROW_OF(",\"framework\":\"deepspeed\"", id, step, memory, oom)

static inline tws_cases *cases_of(const char *text, tws_code expected, const char *why) {
  char path[] = "/tmp/twinspeed-cases-XXXXXX";
  tws_cases *cases = NULL;
  tws_error err = {0};
  int fd = mkstemp(path);
  ck_assert_int_ge(fd, 0);
  ck_assert_int_eq((int)write(fd, text, strlen(text)), (int)strlen(text));
  close(fd);
  tws_code code = tws_cases_load(path, &cases, &err);
  unlink(path);
  ck_assert_msg(code == expected && strstr(err.message, why), "%s: %s", why, err.message);
  return cases;
}

#endif
