/* Stands in for libFuzzer where the compiler has none: DRIVER ITERATIONS CORPUS runs every file of the corpus as it is,
 * then that many inputs mutated from them, always the same ones. A failing input is written to crash.input. */
#include <dirent.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/random.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FILE_COUNT = 256, INPUT_SIZE = 8192 };

typedef struct input {
  uint8_t data[INPUT_SIZE];
  size_t size;
} input;

static input now;
static uint64_t drawn;

static size_t draw(size_t below) {
  return (size_t)(tws_random_uniform(1, 1, drawn++) * (double)below);
}

static void keep_crash(int signal_number) {
  FILE *file = fopen("crash.input", "w");
  if (file) {
    fwrite(now.data, 1, now.size, file);
    fclose(file);
  }
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

static void insert(size_t at, const void *bytes, size_t count) {
  if (count > INPUT_SIZE - now.size) count = INPUT_SIZE - now.size;
  memmove(now.data + at + count, now.data + at, now.size - at);
  memmove(now.data + at, bytes, count);
  now.size += count;
}

static void erase(size_t at, size_t count) {
  memmove(now.data + at, now.data + at + count, now.size - at - count);
  now.size -= count;
}

/* Changes the input at random; gentle: only values change, so that more inputs pass the parser. */
static void mutate(const input *other, int gentle) {
  static const char *const values[] = {"\"auto\"",
                                       "null",
                                       "true",
                                       "false",
                                       "0",
                                       "-1",
                                       "1",
                                       "2",
                                       "3",
                                       "4",
                                       "8",
                                       "16",
                                       "64",
                                       "0.5",
                                       "1e-5",
                                       "5e8",
                                       "1e308",
                                       "10.0",
                                       "1e-320",
                                       "9223372036854775807",
                                       "-9223372036854775808",
                                       "\"\"",
                                       "\"a\"",
                                       "\"none\"",
                                       "\"cpu\"",
                                       "\"linear\"",
                                       "\"fp32\"",
                                       "[]",
                                       "[1e-3]",
                                       "[0.5, 0.5]",
                                       "{}",
                                       "{\"enabled\": true}"};
  static const char *const pieces[] = {
      "{",      "}",        "[",  "]",  ",", ":", "1e999", "\\u0000", "\xff", "\"\xc3\xa9\"",
      "// x\n", "[[[[[[[[", "/*", "\"", "-", "1"};
  size_t at = draw(now.size + 1), length;
  switch (gentle ? 4 : draw(7)) {
    case 0: /* change a byte */
      if (at < now.size) now.data[at] = (uint8_t)draw(256);
      return;
    case 1: /* drop some */
      length = draw(16);
      if (length > now.size - at) length = now.size - at;
      erase(at, length);
      return;
    case 2: /* repeat a part elsewhere */
      length = draw(64);
      if (length > now.size - at) length = now.size - at;
      input copy;
      memcpy(copy.data, now.data + at, length);
      insert(draw(now.size + 1), copy.data, length);
      return;
    case 3: /* a part of another input */
      length = draw(256);
      size_t from = draw(other->size + 1);
      if (length > other->size - from) length = other->size - from;
      insert(at, other->data + from, length);
      return;
    case 4: { /* a word in place of a value */
      const char *word = values[draw(sizeof values / sizeof *values)];
      while (at < now.size && now.data[at] != ':') at++;
      if (at < now.size) at++;
      size_t end = at;
      while (end < now.size && !strchr(",}]\n", now.data[end])) end++;
      erase(at, end - at);
      insert(at, word, strlen(word));
      return;
    }
    default: {
      const char *word = pieces[draw(sizeof pieces / sizeof *pieces)];
      insert(at, word, strlen(word));
    }
  }
}

static int compare_names(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

static int read_corpus(const char *folder, input *files) {
  char *names[FILE_COUNT], path[4096], *text;
  int count = 0, kept = 0;
  size_t length;
  DIR *directory = opendir(folder);
  struct dirent *entry;
  while (directory && (entry = readdir(directory)) && count < FILE_COUNT)
    if (entry->d_name[0] != '.') names[count++] = strdup(entry->d_name);
  if (directory) closedir(directory);
  qsort(names, (size_t)count, sizeof *names, compare_names);
  for (int i = 0; i < count; i++) {
    snprintf(path, sizeof path, "%s/%s", folder, names[i]);
    free(names[i]);
    if (tws_read_file(path, INPUT_SIZE, &text, &length, NULL) != TWS_OK) continue;
    memcpy(files[kept].data, text, length);
    files[kept++].size = length;
    tws_free(text);
  }
  return kept;
}

int main(int argc, char **argv) {
  static input files[FILE_COUNT];
  int count = argc == 3 ? read_corpus(argv[2], files) : 0;
  if (!count) {
    fprintf(stderr, "usage: %s ITERATIONS CORPUS\n", argv[0]);
    return 2;
  }
  signal(SIGABRT, keep_crash);
  signal(SIGSEGV, keep_crash);
  long iterations = atol(argv[1]);
  for (long i = 0; i < count + iterations; i++) {
    now = files[i < count ? (size_t)i : draw((size_t)count)];
    int gentle = draw(2) == 0;
    size_t changes = i < count ? 0 : 1 + draw(gentle ? 2 : 6);
    for (; changes > 0; changes--) mutate(&files[draw((size_t)count)], gentle);
    uint8_t *exact = malloc(now.size ? now.size : 1); /* a buffer of the exact size, so that a sanitizer sees reads past
                                                       * its end */
    if (!exact) return 4;
    memcpy(exact, now.data, now.size);
    LLVMFuzzerTestOneInput(exact, now.size);
    free(exact);
  }
  printf("%d files, %ld mutations\n", count, iterations);
  return 0;
}
