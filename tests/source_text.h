/* The text of a source, for the suites that read sources. */
#ifndef TWS_TESTS_SOURCE_TEXT_H
#define TWS_TESTS_SOURCE_TEXT_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the whole text of the source at `path` from the root, for the caller to free. With comments 0 each character
 * of a comment except line feeds becomes a space. */
static inline char *read_source(const char *path, int comments) {
  char whole[640];
  snprintf(whole, sizeof whole, "%s/%.127s", TWS_SOURCE_DIR, path);
  FILE *file = fopen(whole, "r");
  ck_assert_msg(file != NULL, "%s", whole);
  char *text = calloc(1 << 20, 1);
  ck_assert_uint_lt(fread(text, 1, (1 << 20) - 1, file), (1 << 20) - 1);
  fclose(file);
  for (char *at = text, *end; !comments && (at = strstr(at, "/*")) && (end = strstr(at, "*/")); at = end)
    for (char *c = at; c < end + 2; c++)
      if (*c != '\n') *c = ' ';
  return text;
}

#endif
