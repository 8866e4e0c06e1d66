/* Owners: each member of the lowering's state is changed only by the passes that own it, and the command line computes
 * no figure that another verb could need. The rules are checked in the sources. */
#include <check.h>
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/source_text.h"
#include "tests/suite.h"

static const char *const root = TWS_SOURCE_DIR "/";

static int is_name(char c) {
  return c == '_' || isalnum((unsigned char)c);
}

/* ---- tws_lower ---- */

enum { MAX_PARTS = 64 };
typedef struct part {
  char name[40];
  char owners[320]; /* names of the owners' files, such as " zero.c zero3_gathers.c "; "": any file */
} part;

/* Reads the members of tws_lower, with the files that the comment after each member names. */
static int read_parts(part parts[MAX_PARTS]) {
  char *text = read_source("plan/lower.h", 1);
  char *at = strstr(text, "typedef struct tws_lower {");
  ck_assert_ptr_nonnull(at);
  char *end = strstr(at, "} tws_lower;");
  ck_assert_ptr_nonnull(end);
  int count = 0;
  for (at = strchr(at, '{') + 1; (at = strchr(at, ';')) && at < end; at++) {
    const char *comment = strstr(at, "/*"), *closed = strstr(at, "*/");
    ck_assert_int_lt(count, MAX_PARTS);
    part *p = &parts[count++];
    const char *last = at;
    if (last[-1] == ']')
      while (*last != '[') last--;
    const char *first = last;
    while (is_name(first[-1])) first--;
    snprintf(p->name, sizeof p->name, "%.*s", (int)(last - first), first);
    snprintf(p->owners, sizeof p->owners, " ");
    for (const char *word = comment; word < closed; word++) {
      size_t length = 0;
      while (is_name(word[length])) length++;
      if (length && strncmp(word + length, ".c", 2) == 0 && !is_name(word[length + 2]))
        snprintf(p->owners + strlen(p->owners), sizeof p->owners - strlen(p->owners), "%.*s.c ", (int)length, word);
      word += length;
    }
    at = strstr(at, "*/");
  }
  free(text);
  return count;
}

/* Returns the text after a chain of members and elements (.x, [i]); NULL: the chain leads out of the member. */
static const char *behind_chain(const char *at) {
  for (;;) {
    if (*at == '.') {
      for (at++; is_name(*at);) at++;
    } else if (*at == '[') {
      int depth = 0;
      do {
        depth += *at == '[';
        depth -= *at == ']';
        at++;
      } while (depth > 0 && *at);
    } else {
      break;
    }
  }
  return at[0] == '-' && at[1] == '>' ? NULL : at;
}

/* Returns 1 if the code changes the member, or passes it to a pointer that may change it. `at` is the text after
 * "l->part", `begin` its l. */
static int is_changed(const char *text, const char *begin, const char *at) {
  const char *behind = behind_chain(at);
  if (!behind) return 0;
  while (*behind == ' ' || *behind == '\n') behind++;
  if (behind[0] == '=' && behind[1] != '=') return 1;
  if (strchr("+-|&*/", behind[0]) && behind[1] == '=') return 1;
  if ((behind[0] == '+' || behind[0] == '-') && behind[1] == behind[0]) return 1;
  if (begin - text > 2 && (strncmp(begin - 2, "++", 2) == 0 || strncmp(begin - 2, "--", 2) == 0)) return 1;
  if (begin - text < 8 || begin[-1] != '&' || strncmp(begin - 4, " = &", 4) != 0) return 0;
  const char *line = begin;
  while (line > text && line[-1] != '\n' && line[-1] != ';') line--;
  return memmem(line, (size_t)(begin - line), " *", 2) && !memmem(line, (size_t)(begin - line), "const", 5);
}

/* Returns the member that a file changes although others own it; NULL: none. */
static const part *changed_part(const char *file, const char *text, const part *parts, int count) {
  char word[160];
  snprintf(word, sizeof word, " %.150s ", file);
  for (const char *at = strstr(text, "l->"); at; at = strstr(at + 3, "l->")) {
    if (at > text && is_name(at[-1])) continue;
    for (int i = 0; i < count; i++) {
      const size_t length = strlen(parts[i].name);
      if (strncmp(at + 3, parts[i].name, length) != 0 || is_name(at[3 + length])) continue;
      if (!parts[i].owners[1] || strstr(parts[i].owners, word)) continue;
      if (is_changed(text, at, at + 3 + length)) return &parts[i];
    }
  }
  return NULL;
}

START_TEST(parts_have_owners) {
  part parts[MAX_PARTS];
  const int count = read_parts(parts);
  int owned = 0, files = 0;
  for (int i = 0; i < count; i++) owned += parts[i].owners[1] != '\0';
  ck_assert_int_ge(owned, 20);
  ck_assert_int_eq(owned, count - 1); /* all but the builder */
  ck_assert_msg(count <= 30, "tws_lower has %d members: parts belong together", count);
  char folder[640];
  snprintf(folder, sizeof folder, "%splan", root);
  DIR *list = opendir(folder);
  ck_assert_ptr_nonnull(list);
  for (const struct dirent *d = readdir(list); d; d = readdir(list)) {
    char path[300];
    const size_t length = strlen(d->d_name);
    if (length < 3 || strcmp(d->d_name + length - 2, ".c") != 0) continue;
    snprintf(path, sizeof path, "plan/%s", d->d_name);
    char *text = read_source(path, 0);
    if (strstr(text, "tws_lower")) {
      const part *changed = changed_part(d->d_name, text, parts, count);
      ck_assert_msg(!changed, "%s changes l->%s, which belongs to%s", path, changed ? changed->name : "",
                    changed ? changed->owners : "");
      files++;
    }
    free(text);
  }
  closedir(list);
  ck_assert_int_gt(files, 25);
}
END_TEST

/* The check notices one more line in a pass where it changes a member of another owner, and only there. */
START_TEST(changes_of_others_are_noticed) {
  static const struct {
    const char *file, *text, *part;
  } mutants[] = {{"moe.c", "  l->at.tiles = 2;\n", "at"},
                 {"moe.c", "  l->values.buffer[m->in[0]] = 3;\n", "values"},
                 {"optimizer.c", "  l->extent.tokens += 1;\n", "extent"},
                 {"visits.c", "  l->pipeline.stage++;\n", "pipeline"},
                 {"visits.c", "  --l->pipeline.stage;\n", "pipeline"},
                 {"modules.c", "  tws_zero *z = &l->zero;\n", "zero"},
                 {"dropout.c", "  l->needed[0] |= 1;\n", "needed"},
                 {"moe.c", "  if (l->at.tiles == 2 && l->at.tile <= 1) return l->at.tiles;\n", NULL},
                 {"moe.c", "  const tws_zero *z = &l->zero;\n", NULL},
                 {"checkpoints.c", "  l->pipeline.context->away[value] = 1;\n", NULL},
                 {"moe.c", "  x = l->values.rows[v] - l->extent.tokens;\n", NULL},
                 {"moe.c", "  l->b.phase = TWS_PHASE_STEP;\n", NULL},
                 {"modules.c", "  l->at.tiles = 2;\n", NULL}};
  part parts[MAX_PARTS];
  const int count = read_parts(parts);
  for (size_t i = 0; i < sizeof mutants / sizeof *mutants; i++) {
    const part *changed = changed_part(mutants[i].file, mutants[i].text, parts, count);
    if (mutants[i].part)
      ck_assert_msg(changed && strcmp(changed->name, mutants[i].part) == 0, "%s: %s", mutants[i].file, mutants[i].text);
    else
      ck_assert_msg(!changed, "%s: %s", mutants[i].file, mutants[i].text);
  }
}
END_TEST

/* ---- the command line ---- */

/* Returns 1 for a line that defines a function with the result double, which computes a figure: such functions belong
 * to lower folders, where other verbs and the library can use them. */
static int computes(const char *line) {
  if (strncmp(line, "static ", 7) == 0) line += 7;
  return strncmp(line, "double ", 7) == 0 && strchr(line, '(') && !strchr(line, ';') && !strchr(line, '=');
}

START_TEST(the_command_line_computes_nothing) {
  char folder[640];
  int files = 0;
  snprintf(folder, sizeof folder, "%scli", root);
  DIR *list = opendir(folder);
  ck_assert_ptr_nonnull(list);
  for (const struct dirent *d = readdir(list); d; d = readdir(list)) {
    char path[300];
    if (d->d_name[0] == '.') continue;
    snprintf(path, sizeof path, "cli/%s", d->d_name);
    char *text = read_source(path, 0);
    for (char *rest = text, *line; (line = strsep(&rest, "\n"));)
      ck_assert_msg(!computes(line), "%s: %s: a number that another verb could want", path, line);
    free(text);
    files++;
  }
  closedir(list);
  ck_assert_int_gt(files, 40);
  ck_assert(computes("static double error_of(const report *r) {"));
  ck_assert(computes("double tws_flops_samples_per_s(const tws_flops_view *r) {"));
  ck_assert(!computes("static void print(double value) {"));
  ck_assert(!computes("static double most = pow(2, 3);"));
}
END_TEST

int main(void) {
  Suite *suite = suite_create("owners");
  TCase *tests = tcase_create("owners");
  tcase_add_test(tests, parts_have_owners);
  tcase_add_test(tests, changes_of_others_are_noticed);
  tcase_add_test(tests, the_command_line_computes_nothing);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
