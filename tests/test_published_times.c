/* Times of other people's software: whose a run is, and the interval in which nine of ten of such runs lie. */
#include <math.h>
#include <stdio.h>

#include "command.h"
#include "models/hardware/runtime.h"
#include "tests/published.h"
#include "tests/suite.h"

/* A framework that no rule knows is refused with the list of runtimes, one that is a runtime's name is that runtime, and
 * the programs that have a row are recognized by what people call them. */
START_TEST(unknown_software_is_refused) {
  static const struct {
    const char *framework, *runtime; /* NULL: refused */
  } known[] = {{"Colossal-AI 0.3", NULL},
               {"pytorch", NULL},
               {"megatron-2022", "megatron-2022"},
               {"fsdp", "fsdp"},
               {"MaxText (JAX/XLA)", "maxtext"},
               {"llm.c", "llm.c"},
               {"NeMo AutoModel (PyTorch, TE, DeepEP)", "automodel"},
               {"fms-fsdp", "fms-fsdp"},
               {"nanotron 0.4", "nanotron"},
               {"DeepSpeed 0.14", "deepspeed"}};
  enum { KNOWN = sizeof known / sizeof *known };
  tws_text text = {0};
  tws_text_add(&text, "[" ROW_OF("", "unnamed", "1", "1", "false"));
  for (int i = 0; i < KNOWN; i++)
    tws_text_add(&text, "," ROW_OF(",\"framework\":\"%s\"", "%d", "1", "1", "false"), i, known[i].framework);
  tws_text_add(&text, "]");
  tws_cases *cases = cases_of(text.data, TWS_OK, "");
  for (int i = 0; i <= KNOWN; i++) {
    const char *expected = i ? known[i - 1].runtime : NULL;
    tws_job *job;
    tws_error err = {0};
    const tws_code code = tws_case_job(cases, i, &job, &err);
    if (expected) {
      ck_assert_msg(code == TWS_OK, "%s: %s", known[i - 1].framework, err.message);
      ck_assert_str_eq(tws_profile_runtime(job->profile)->name, expected);
      tws_job_destroy(job);
      continue;
    }
    ck_assert_int_eq(code, TWS_UNSUPPORTED);
    if (i) ck_assert_msg(strstr(err.message, known[i - 1].framework) != NULL, "%s", err.message);
    ck_assert_msg(strstr(err.message, "hardware.framework") != NULL, "%s", err.message);
    for (const char *const *name = tws_runtime_names(); *name; name++)
      ck_assert_msg(strstr(err.message, *name) != NULL, "%s is not in: %s", *name, err.message);
  }
  tws_cases_destroy(cases);
  tws_text_free(&text);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("published_times");
  TCase *tests = tcase_create("published_times");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, unknown_software_is_refused);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
