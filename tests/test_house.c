/* Rules for the sources: a folder uses only the folders below it, no header includes itself through others, files,
 * functions and lines have a maximal size, no shell is started, and texts become numbers in one place. */
#include <check.h>
#include <ctype.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "tests/source_text.h"
#include "tests/suite.h"

enum { MAX_FILES = 2048, MAX_INCLUDES = 64, FILE_LINES = 800, FUNCTION_LINES = 80, COLUMNS = 120 };

/* The folders with their levels, lowest first; folders of one level do not include each other. */
static const struct {
  const char *folder;
  int level;
} house[] = {{"base", 0},         {"tokens", 1},      {"config", 1},    {"models", 2},     {"traces", 3},
             {"plan", 4},         {"checkpoint", 5},  {"compat", 5},    {"estimators", 6}, {"communication", 6},
             {"sim", 7},          {"real", 7},        {"job", 8},       {"emulation", 9},  {"launch", 9},
             {"calibration", 10}, {"validation", 11}, {"autotune", 12}, {"library", 13},   {"cli", 13}};
enum { ROOMS = sizeof house / sizeof *house };

typedef struct source {
  char path[128]; /* from the root */
  int includes[MAX_INCLUDES], include_count, lines;
  int state; /* of the search for cycles */
} source;
static source sources[MAX_FILES];
static int count;
static const char *const root = TWS_SOURCE_DIR "/";

static int level_of(const char *path) {
  for (int i = 0; i < ROOMS; i++) {
    const size_t length = strlen(house[i].folder);
    if (strncmp(path, house[i].folder, length) == 0 && path[length] == '/') return house[i].level;
  }
  return -1;
}

static int ends_with(const char *text, const char *end) {
  const size_t a = strlen(text), b = strlen(end);
  return a >= b && strcmp(text + a - b, end) == 0;
}

static int add_file(const char *path, const struct stat *status, int type, struct FTW *where) {
  static const char *const kinds[] = {".c", ".h", ".cu", ".cuh", ".cpp", ".inc", ".def"};
  (void)status, (void)where;
  int wanted = 0;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) wanted |= ends_with(path, kinds[i]);
  if (type != FTW_F || !wanted) return 0;
  ck_assert_int_lt(count, MAX_FILES);
  snprintf(sources[count++].path, sizeof sources->path, "%s", path + strlen(root));
  return 0;
}

static int find(const char *path) {
  for (int i = 0; i < count; i++)
    if (strcmp(sources[i].path, path) == 0) return i;
  return -1;
}

/* Records an include. A name without a folder is in the file's own folder. */
static void read_include(source *s, const char *name) {
  char path[192];
  const char *slash = strrchr(s->path, '/');
  snprintf(path, sizeof path, "%s", name);
  if (!strchr(name, '/')) snprintf(path, sizeof path, "%.*s/%s", (int)(slash - s->path), s->path, name);
  const int to = find(path);
  if (to < 0) return;
  ck_assert_int_lt(s->include_count, MAX_INCLUDES);
  s->includes[s->include_count++] = to;
}

/* Returns the number of characters (UTF-8) in a line, without its line feed. */
static int columns_of(const char *line) {
  int columns = 0;
  for (; *line && *line != '\n'; line++) columns += (*line & 0xc0) != 0x80;
  return columns;
}

/* Measures a source. The length of lines is not limited in tables (.inc, .def). Functions begin at the margin with
 * their opening brace at the end of the line, and end with a brace at the margin. */
static void measure_source(source *s) {
  char path[640], line[1024], include[160];
  int begin = 0;
  snprintf(path, sizeof path, "%s%.127s", root, s->path);
  FILE *file = fopen(path, "r");
  ck_assert_msg(file != NULL, "%s", path);
  const int table = ends_with(path, ".inc") || ends_with(path, ".def");
  while (fgets(line, sizeof line, file)) {
    s->lines++;
    if (!table && columns_of(line) > COLUMNS)
      ck_abort_msg("%s:%d: a line of %d columns, more than %d", s->path, s->lines, columns_of(line), COLUMNS);
    if (sscanf(line, "#include \"%159[^\"]\"", include) == 1) read_include(s, include);
    if (line[0] == '}' && begin) {
      ck_assert_msg(s->lines - begin <= FUNCTION_LINES, "%s:%d: a function of %d lines, more than %d", s->path, begin,
                    s->lines - begin, FUNCTION_LINES);
      begin = 0;
    }
    if (line[0] != ' ' && line[0] != '}' && ends_with(line, ") {\n")) begin = s->lines;
  }
  fclose(file);
}

static void read_house(void) {
  count = 0; /* cases may share a process */
  memset(sources, 0, sizeof sources);
  for (int i = 0; i < ROOMS; i++) {
    char path[512];
    snprintf(path, sizeof path, "%s%s", root, house[i].folder);
    ck_assert_msg(nftw(path, add_file, 16, FTW_PHYS) == 0, "%s", path);
  }
  ck_assert_int_gt(count, 200);
  for (int i = 0; i < count; i++) measure_source(&sources[i]);
}

START_TEST(files_have_a_size) {
  read_house();
  for (int i = 0; i < count; i++)
    ck_assert_msg(sources[i].lines <= FILE_LINES, "%s has %d lines, more than %d", sources[i].path, sources[i].lines,
                  FILE_LINES);
}
END_TEST

START_TEST(folders_use_only_lower_folders) {
  int seen = 0;
  read_house();
  for (int i = 0; i < count; i++)
    for (int k = 0; k < sources[i].include_count; k++) {
      const char *from = sources[i].path, *to = sources[sources[i].includes[k]].path;
      const int same = strncmp(from, to, strcspn(from, "/") + 1) == 0;
      ck_assert_msg(same || level_of(to) < level_of(from), "%s includes %s, which is not below it", from, to);
      seen += !same;
    }
  ck_assert_int_gt(seen, 200);
}
END_TEST

static void look_for_cycle(int at) {
  source *s = &sources[at];
  s->state = 1;
  for (int i = 0; i < s->include_count; i++) {
    const int to = s->includes[i];
    ck_assert_msg(sources[to].state != 1, "%s includes %s, which includes it", s->path, sources[to].path);
    if (!sources[to].state) look_for_cycle(to);
  }
  s->state = 2;
}

START_TEST(no_file_includes_itself) {
  read_house();
  for (int i = 0; i < count; i++)
    if (!sources[i].state) look_for_cycle(i);
}
END_TEST

/* ---- one writer of files ---- */

/* Functions that create, change, rename or remove files. Functions with flags or a mode count only where the arguments
 * contain one of the words. */
static const struct {
  const char *name, *when; /* one of these words is among the arguments; NULL: always */
} file_calls[] = {{"fopen", "\"w|\"a|+"},
                  {"freopen", NULL},
                  {"open", "O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_APPEND|flags"},
                  {"openat", "O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_APPEND|flags"},
                  {"creat", NULL},
                  {"rename", NULL},
                  {"renameat", NULL},
                  {"renameat2", NULL},
                  {"unlink", NULL},
                  {"unlinkat", NULL},
                  {"remove", NULL},
                  {"rmdir", NULL},
                  {"truncate", NULL},
                  {"symlink", NULL},
                  {"link", NULL},
                  {"linkat", NULL},
                  {"mkstemp", NULL},
                  {"mkostemp", NULL},
                  {"mkdtemp", NULL},
                  {"mktemp", NULL},
                  {"tmpfile", NULL},
                  {"ofstream", NULL},
                  {"nftw", NULL}};

/* The only files that may call these functions: base/output_file.c writes all files; the others access files in folders
 * of the program's own, relative to the open folder and without following links. */
static const struct {
  const char *path, *calls, *why;
} file_users[] = {{"base/output_file.c", NULL, "the writer"},
                  {"base/file.c", "openat", "its flags say how to read"},
                  {"base/unfinished.c", "unlinkat", "what the writer left, in a signal handler"},
                  {"checkpoint/folder.c", "openat|unlinkat", "the lock"},
                  {"checkpoint/saving.c", "renameat|renameat2|unlinkat", "checkpoints"},
                  {"autotune/folders.c", "unlinkat", "results of an earlier search"},
                  {"launch/mpirun_cleanup.c", "unlinkat", "what mpirun leaves when it is killed"},
                  {"real/swap.c", "openat|unlinkat|rmdir", "swap files, locked and past the page cache"},
                  {"real/shared_comm.c", "open", "another rank's memory, in /proc"}};

static int is_name(char c) {
  return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/* Returns 1 if one of the words, separated by |, is in the text or, with whole != 0, if it is the whole text. */
static int has_word(const char *words, const char *text, size_t length, int whole) {
  for (const char *at = words; *at;) {
    const size_t n = strcspn(at, "|");
    if (whole ? n == length && strncmp(at, text, n) == 0 : memmem(text, length, at, n) != NULL) return 1;
    at += n + (at[n] == '|');
  }
  return 0;
}

/* Returns the length of a call's arguments, from the opening to the closing parenthesis. */
static size_t arguments_of(const char *at) {
  int depth = 0;
  size_t n = 0;
  do {
    depth += at[n] == '(';
    depth -= at[n] == ')';
    n++;
  } while (depth > 0 && at[n]);
  return n;
}

static int may_call(const char *path, const char *name) {
  for (size_t i = 0; i < sizeof file_users / sizeof *file_users; i++)
    if (strcmp(file_users[i].path, path) == 0)
      return !file_users[i].calls || has_word(file_users[i].calls, name, strlen(name), 1);
  return 0;
}

/* Returns the number of calls of one function in a text; appends the calls that are not allowed to `found`. */
static int look_for_call(const char *path, const char *text, size_t call, char *found, size_t size) {
  const char *name = file_calls[call].name, *when = file_calls[call].when;
  const size_t length = strlen(name);
  int seen = 0;
  for (const char *at = text; (at = strstr(at, name)); at += length) {
    if (at > text && (is_name(at[-1]) || at[-1] == '.' || at[-1] == '>' || at[-1] == '"'))
      continue; /* a member, a text */
    if (at[length] != '(') continue;
    const size_t n = arguments_of(at + length);
    if (when && !has_word(when, at + length, n, 0)) continue;
    if (memmem(at + length, n, "\"/dev/null\"", 11)) continue;
    seen++;
    if (may_call(path, name)) continue;
    const size_t used = strlen(found);
    snprintf(found + used, size - used, "%.127s: %.*s\n", path, (int)(length + (n < 100 ? n : 100)), at);
  }
  return seen;
}

/* Only base/output_file.c writes files: other code may follow planted links, leave partial files, or destroy foreign
 * files. */
START_TEST(one_writer_of_files) {
  char found[4096] = "";
  int seen = 0;
  read_house();
  for (int i = 0; i < count; i++) {
    char *text = read_source(sources[i].path, 0);
    for (size_t call = 0; call < sizeof file_calls / sizeof *file_calls; call++)
      seen += look_for_call(sources[i].path, text, call, found, sizeof found);
    free(text);
  }
  ck_assert_msg(!*found, "files are written through base/output_file.h:\n%s", found);
  ck_assert_int_gt(seen, 30); /* it does find calls */
}
END_TEST

/* Returns the place where `word` begins in a line without a letter before it (popen( is no part of my_popen(), or
 * NULL. */
static const char *find_word(const char *line, const char *word) {
  for (const char *at = strstr(line, word); at; at = strstr(at + 1, word))
    if (at == line || !(isalnum((unsigned char)at[-1]) || at[-1] == '_') || !isalpha((unsigned char)*word)) return at;
  return NULL;
}

/* Words that may occur in no line of the sources, except in one file. */
typedef struct refused {
  const char *why, *except, *words[20];
} refused;

static void look_through(const char *path, const refused *rules, int rule_count) {
  char name[640], line[1024];
  snprintf(name, sizeof name, "%s%.127s", root, path);
  FILE *file = fopen(name, "r");
  ck_assert_msg(file != NULL, "%s", name);
  for (int number = 1; fgets(line, sizeof line, file); number++)
    for (int r = 0; r < rule_count; r++)
      for (int k = 0; rules[r].words[k]; k++)
        ck_assert_msg(strcmp(path, rules[r].except) == 0 || !find_word(line, rules[r].words[k]), "%s:%d: %s %s", path,
                      number, rules[r].words[k], rules[r].why);
  fclose(file);
}

/* Programs are started with argument vectors in one place, and texts become numbers in one place. */
START_TEST(no_shell_and_one_conversion) {
  static const refused rules[] = {
      {"starts a shell: base/process.h starts programs by argument vectors",
       "",
       {"system(", "popen(", "wordexp(", "execl(", "execlp(", "execle(", "sh -c", "/sh\"", "\"sh\"", "\"bash -",
        "/bash\"", "/bin/env"}},
      {"does not refuse what is out of range: base/number.h does",
       "base/number.c",
       {"atoi(", "atol(", "atoll(", "atof(", "strtol(", "strtoul(", "strtoll(", "strtoull(", "strtod(", "strtof(",
        "strtold(", "strtoimax(", "strtoumax(", "sscanf(", "fscanf(", "vsscanf("}}};
  static const refused adapter[] = {
      {"needs what SimGrid's headers do not declare", "", {"dlsym", "dlopen", "_ZN", "asm"}}};
  char path[640];
  read_house();
  look_through("sim/adapter.cpp", adapter, 1);
  snprintf(path, sizeof path, "%sbench", root);
  ck_assert_int_eq(nftw(path, add_file, 16, FTW_PHYS), 0);
  for (int i = 0; i < count; i++) look_through(sources[i].path, rules, sizeof rules / sizeof *rules);
}
END_TEST

/* ---- readers of plans do not ask the configuration for the technique ---- */

/* Members of the configuration that select a technique of training. */
static const char *const techniques[] = {"zero.stage",    "zero->stage", "overlap_comm", "offload_optimizer",
                                         "offload_param", "zenflow",     "hpz",          "secondary_ranks"};
/* The folders whose files may not read `techniques`, and the files that may: the FLOPs profile describes a
 * configuration, and a search's space varies it. */
static const char *const readers[] = {"estimators/", "communication/", "sim/", "models/", "autotune/"};
static const char *const may_ask[] = {"estimators/flops_profile.", "autotune/space", "autotune/points.",
                                      "autotune/deepspeed_space."};

static int begins_with_one(const char *path, const char *const *with, size_t many) {
  for (size_t i = 0; i < many; i++)
    if (strncmp(path, with[i], strlen(with[i])) == 0) return 1;
  return 0;
}

/* Replaces comments and strings by spaces. */
static void keep_code(char *text) {
  while (*text) {
    const char *closed = text[0] == '/' && text[1] == '*' ? strstr(text + 2, "*/") : NULL;
    size_t length = closed ? (size_t)(closed + 2 - text) : 0;
    if (text[0] == '/' && text[1] == '/') length = strcspn(text, "\n");
    if (*text == '"' || *text == '\'') {
      for (length = 1; text[length] && text[length] != *text; length++)
        if (text[length] == '\\' && text[length + 1]) length++;
      length += text[length] != '\0';
    }
    memset(text, ' ', length);
    text += length ? length : 1;
  }
}

/* Returns the technique that a file of one of the readers asks for, or "zero" where it reads the whole section; NULL:
 * none. */
static const char *technique_in(const char *path, char *text) {
  if (!begins_with_one(path, readers, sizeof readers / sizeof *readers)) return NULL;
  if (begins_with_one(path, may_ask, sizeof may_ask / sizeof *may_ask)) return NULL;
  keep_code(text);
  for (size_t i = 0; i < sizeof techniques / sizeof *techniques; i++)
    if (strstr(text, techniques[i])) return techniques[i];
  for (const char *at = strstr(text, "zero"); at; at = strstr(at + 1, "zero"))
    if (at > text && (at[-1] == '.' || at[-1] == '>') && !is_name(at[4])) return "zero";
  return NULL;
}

START_TEST(techniques_are_known_to_plans) {
  int seen = 0;
  read_house();
  for (int i = 0; i < count; i++) {
    char *text = read_source(sources[i].path, 1);
    const char *asked = technique_in(sources[i].path, text);
    ck_assert_msg(!asked,
                  "%s asks the configuration for %s: ask the plan, or a function of plan/ that says what it means",
                  sources[i].path, asked);
    seen += begins_with_one(sources[i].path, readers, sizeof readers / sizeof *readers);
    free(text);
  }
  ck_assert_int_gt(seen, 100);
}
END_TEST

/* The check notices one more line in a reader, but not in a comment, in a string, in an excepted file or in another
 * folder. */
START_TEST(techniques_that_are_asked_for_are_noticed) {
  static const struct {
    const char *path, *text;
    int noticed;
  } mutants[] = {{"estimators/compose.c", "if (request->config->zero.stage == 3) return 0;\n", 1},
                 {"estimators/path.c", "const tws_zero_config *z = &request->config->zero;\n", 1},
                 {"sim/executor.c", "  late = plan->zero.overlap_comm; /* overlapped */\n", 1},
                 {"models/hardware/costs.c", "/* a */ busy += config->zero.offload_param_pinned;\n", 1},
                 {"models/hardware/costs.c", "x = '\"'; y = c->zero.offload_optimizer_ratio;\n", 1},
                 {"autotune/knee.c", "\n\nfor (; job->config->zenflow.on;) {}\n", 1},
                 {"autotune/report.c", "s = tws_config_secondary_ranks(c);", 1},
                 {"estimators/compose.c", "/* zero.stage 3: zenflow */ puts(\"overlap_comm\"); // hpz\n", 0},
                 {"estimators/compose.c", "puts(\"\\\"zenflow\"); x.zeros = p->zeroed;\n", 0},
                 {"estimators/flops_profile.c", "stage = config->zero.stage;\n", 0},
                 {"autotune/space_axes.c", "stage = config->zero.stage;\n", 0},
                 {"plan/zero.c", "stage = config->zero.stage;\n", 0}};
  for (size_t i = 0; i < sizeof mutants / sizeof *mutants; i++) {
    char text[160];
    snprintf(text, sizeof text, "%s", mutants[i].text);
    ck_assert_msg((technique_in(mutants[i].path, text) != NULL) == mutants[i].noticed, "%s: %s", mutants[i].path,
                  mutants[i].text);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("house");
  TCase *tests = tcase_create("house");
  tcase_add_test(tests, files_have_a_size);
  tcase_add_test(tests, folders_use_only_lower_folders);
  tcase_add_test(tests, no_file_includes_itself);
  tcase_add_test(tests, one_writer_of_files);
  tcase_add_test(tests, no_shell_and_one_conversion);
  tcase_add_test(tests, techniques_are_known_to_plans);
  tcase_add_test(tests, techniques_that_are_asked_for_are_noticed);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
