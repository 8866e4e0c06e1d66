#include "launch/env_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"

static const char blanks[] = " \t\r";

static int find(const tws_env_file *file, const char *name, size_t length) {
  for (int i = 0; i < file->count; i++)
    if (strncmp(file->set[i], name, length) == 0 && file->set[i][length] == '=') return i;
  return -1;
}

const char *tws_env_file_find(const tws_env_file *file, const char *name, size_t length) {
  const int i = find(file, name, length);
  return i < 0 ? NULL : file->set[i] + length + 1;
}

/* Adds a line of `length` characters. */
static tws_code add_line(tws_env_file *out, tws_arena *arena, const char *line, size_t length, const char *path,
                         int number, tws_error *err) {
  while (length > 0 && strchr(blanks, line[length - 1])) length--;
  while (length > 0 && strchr(blanks, *line)) line++, length--;
  if (length == 0 || *line == '#') return TWS_OK;
  const char *equals = memchr(line, '=', length);
  size_t name = equals ? (size_t)(equals - line) : 0, value = name + 1;
  while (name > 0 && strchr(blanks, line[name - 1])) name--;
  while (value < length && strchr(blanks, line[value])) value++;
  for (size_t i = 0; i < name; i++)
    if (strchr(blanks, line[i])) name = 0;
  if (name == 0 || memchr(line, '\0', length))
    return tws_fail(err, TWS_INVALID, "a line is NAME=VALUE", "%s:%d: it sets no variable", path, number);
  const char *text = tws_arena_printf(arena, "%.*s=%.*s", (int)name, line, (int)(length - value), line + value);
  const int known = find(out, line, name);
  if (known < 0) {
    const char **set = tws_arena_alloc(arena, (size_t)out->count + 1, sizeof *set);
    if (!set || !text) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
    if (out->count > 0) memcpy(set, out->set, (size_t)out->count * sizeof *set);
    out->set = set;
  }
  if (!text) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  out->set[known < 0 ? out->count++ : known] = text;
  return TWS_OK;
}

static tws_code read_file(tws_env_file *out, tws_arena *arena, const char *path, tws_error *err) {
  char *text = NULL;
  size_t length = 0, line = 0;
  if (access(path, F_OK) != 0) return TWS_OK;
  TWS_TRY(tws_read_regular(path, 1 << 20, &text, &length, err));
  tws_code code = TWS_OK;
  for (int number = 1; line < length && code == TWS_OK; number++) {
    const char *end = memchr(text + line, '\n', length - line);
    const size_t count = end ? (size_t)(end - text) - line : length - line;
    code = add_line(out, arena, text + line, count, path, number, err);
    line += count + 1;
  }
  tws_free(text);
  return code;
}

tws_code tws_env_file_read(tws_arena *arena, tws_env_file *out, tws_error *err) {
  const char *home = getenv("HOME"), *given = getenv("DS_ENV_FILE"), *name = given && *given ? given : ".deepspeed_env";
  char path[4096];
  *out = (tws_env_file){0};
  snprintf(path, sizeof path, "%s/%s", home ? home : "", name);
  if (home && *home && *name != '/') TWS_TRY(read_file(out, arena, path, err));
  return read_file(out, arena, name, err);
}
