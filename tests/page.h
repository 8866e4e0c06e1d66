/* Compares pages of docs/ with texts that a suite makes from the data that they describe. */
#ifndef TESTS_PAGE_H
#define TESTS_PAGE_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Asserts that the page at `path` is `expected`; with TWINSPEED_UPDATE in the environment the page is written first.
 * `remedy` is the message where they differ. */
static inline void assert_page(const char *path, const char *expected, const char *remedy) {
  if (getenv("TWINSPEED_UPDATE")) {
    FILE *out = fopen(path, "w");
    ck_assert_ptr_nonnull(out);
    fputs(expected, out);
    fclose(out);
  }
  FILE *in = fopen(path, "r");
  ck_assert_msg(in != NULL, "%s is missing", path);
  const size_t length = strlen(expected);
  char *found = calloc(length + 2, 1);
  const size_t got = fread(found, 1, length + 1, in);
  fclose(in);
  ck_assert_msg(got == length && memcmp(found, expected, length) == 0, "%s", remedy);
  free(found);
}

#endif
