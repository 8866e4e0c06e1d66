/* A temporary folder: a fixture of a Check case, or made and removed by a test itself. */
#ifndef TESTS_FOLDER_H
#define TESTS_FOLDER_H

#include <stdio.h>
#include <stdlib.h>

static char folder[32];

static inline void make_folder(void) {
  snprintf(folder, sizeof folder, "/tmp/twinspeed-XXXXXX");
  if (mkdtemp(folder)) return;
  perror(folder);
  exit(1);
}

static inline void remove_folder(void) {
  char command[64];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  if (system(command) != 0) exit(1);
}

/* A path in it; the text is forgotten after eight more. */
static inline const char *in_folder(const char *name) {
  static char paths[8][320];
  static int next;
  char *path = paths[next++ % 8];
  snprintf(path, sizeof paths[0], "%s/%s", folder, name);
  return path;
}

#endif
