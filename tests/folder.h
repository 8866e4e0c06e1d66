/* A temporary folder: a fixture of a Check case, or made and removed by a test itself. */
#ifndef TESTS_FOLDER_H
#define TESTS_FOLDER_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Returns the path of a name in the test's folder; the text is overwritten by the eighth call after this one. */
static inline const char *in_folder(const char *name) {
  static char paths[8][320];
  static int next;
  char *path = paths[next++ % 8];
  snprintf(path, sizeof paths[0], "%s/%s", folder, name);
  return path;
}

/* Makes the folder with a file "text" of 4095 letters. */
static inline void make_folder_with_text(void) {
  make_folder();
  FILE *file = fopen(in_folder("text"), "w");
  for (int i = 0; file && i < 4095; i++) fputc('a', file);
  if (file && fclose(file) == 0) return;
  perror(folder);
  exit(1);
}

/* Returns the number of entries of a folder whose names begin with `start`; 0 where there is no such folder. */
static inline int count_named(const char *path, const char *start) {
  DIR *directory = opendir(path);
  int count = 0;
  struct dirent *entry;
  while (directory && (entry = readdir(directory))) count += strncmp(entry->d_name, start, strlen(start)) == 0;
  if (directory) closedir(directory);
  return count;
}

#endif
