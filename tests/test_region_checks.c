/* With the faster check of tests/region_checks.c the address sanitizer still reports every access of a vector that is
 * outside a block of memory by a single byte, or in a block that was freed. */
/* ctest: engine region_checks */
#include <check.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/suite.h"

enum { BLOCK = 72 };

/* The functions that Clang calls before accesses of vectors. */
void __asan_loadN(uintptr_t at, size_t bytes);
void __asan_storeN(uintptr_t at, size_t bytes);

/* Options of the sanitizer: its reports need no names of functions, for which it would start another program. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
  return "symbolize=0";
}

/* Returns 1 if the sanitizer ends a process that makes the access. */
static int is_reported(const char *at, size_t bytes, int stores) {
  int status = 0;
  const pid_t child = fork();
  if (child == 0) {
    dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
    if (stores)
      __asan_storeN((uintptr_t)at, bytes);
    else
      __asan_loadN((uintptr_t)at, bytes);
    _exit(0);
  }
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  return status != 0;
}

START_TEST(accesses_outside_a_block_are_reported) {
  static const int sizes[] = {3, 32, 64, 70};
  const int bytes = sizes[_i / 2], stores = _i % 2, room = BLOCK - bytes;
  const int first[] = {-8, -1, 0, room, room + 1, room + 8};
  char *block = malloc(BLOCK);
  for (size_t i = 0; i < sizeof first / sizeof *first; i++) {
    const int outside = first[i] < 0 || first[i] > room;
    ck_assert_msg(is_reported(block + first[i], (size_t)bytes, stores) == outside, "%s of %d bytes from byte %d on",
                  stores ? "store" : "load", bytes, first[i]);
  }
  free(block);
  ck_assert(is_reported(block, (size_t)bytes, stores)); /* the sanitizer does not give the block away again yet */
}
END_TEST

int main(void) {
  Suite *suite = suite_create("region_checks");
  TCase *tests = tcase_create("region_checks");
  tcase_add_loop_test(tests, accesses_outside_a_block_are_reported, 0, 8);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
