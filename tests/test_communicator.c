/* ctest: engine mpi sampled */
/* The communicator on its own, for two to eight ranks (tests/ranks_engine.c). */
#include "train.h"

START_TEST(communicator) {
  if (_i > 5 && _i < 8) return;
  command_result r = twinspeed("launch --quiet -n %d -- %s/tests/ranks_engine comm", _i, TWS_BUILD_DIR);
  ck_assert_msg(r.status == 0, "%s%s", r.out, r.err);
  command_free(&r);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("communicator");
  TCase *tests = tcase_create("communicator");
  tcase_add_loop_test(tests, communicator, 2, 9);
  tcase_set_timeout(tests, 300);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
