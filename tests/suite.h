/* Runs a suite of Check and frees it, as the end of every suite's main(). */
#ifndef TWS_TESTS_SUITE_H
#define TWS_TESTS_SUITE_H

#include <check.h>
#include <stdlib.h>

#include "base/memory.h"

/* Runs the suite as Check's environment variables say, and frees it. Returns the exit status of main(). Like the
 * program, a suite keeps the memory that a plan has freed for the next plan. */
static inline int run_suite(Suite *suite) {
  tws_keep_freed_memory();
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  const int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
