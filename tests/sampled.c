/* Under the sanitizers, suites with the mark "sampled" (tests/CMakeLists.txt) run a sample of their tests: one of each
 * four adjacent ones, which TWS_SEED chooses, as it chooses random cases (tests/sample.h). `make check` runs all tests
 * of these suites in its plain build, and under the sanitizers each commit runs other tests; without TWS_SEED, as in
 * `make check-all`, all run. A test that Check repeats for a range of numbers counts as one test for each number.
 *
 * Check's macros add tests by _tcase_add_test(); the linker's --wrap=_tcase_add_test leads the calls here. */
#include <check.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/sample.h"

void __real__tcase_add_test(TCase *tcase, const TTest *test, int signal, int status, int start, int end);
void __wrap__tcase_add_test(TCase *tcase, const TTest *test, int signal, int status, int start, int end);

enum { OF = 4 };
static uint64_t tests, taken;
static pid_t suite;

__attribute__((constructor)) static void begin(void) {
  suite = getpid();
}

__attribute__((destructor)) static void say(void) {
  if (taken < tests && getpid() == suite)
    printf("sample: %llu of %llu tests ran\n", (unsigned long long)taken, (unsigned long long)tests);
}

void __wrap__tcase_add_test(TCase *tcase, const TTest *test, int signal, int status, int start, int end) {
  for (int i = start; i < end; i++, tests++) {
    if (!takes_of(program_invocation_short_name, tests, OF)) continue;
    taken++;
    __real__tcase_add_test(tcase, test, signal, status, i, i + 1);
  }
}
