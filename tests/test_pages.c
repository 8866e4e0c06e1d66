/* ctest: slow */
/* The commands of README.md and docs/ do what the pages say. A block of commands is preceded by a line that says how it
 * is tested:
 *
 *   <!-- run: exact -->             the printed lines are equal
 *   <!-- run: shape -->             they are equal but for numbers and the blanks of tables
 *   <!-- run: status -->            nothing printed is compared
 *   <!-- run: ..., exit 2 -->       the last command ends with that status, not 0
 *   <!-- run: ..., in FOLDER -->    with the files of that folder of the repository too
 *   <!-- not run: REASON -->
 *
 * Commands are the lines that begin with "$ ", or all lines where none does. A printed line "..." stands for any number
 * of lines, and one that ends with "..." for a line that begins as it does. They run in a folder of their own, which has the demonstration's config.json and ds_config.json, the pages as
 * text.txt and book.txt, the tokenizer of scenarios/text, and scenarios. */
#include <check.h>
#include <ctype.h>
#include <glob.h>

#include "tests/command.h"
#include "tests/folder.h"
#include "tests/suite.h"

enum { LONGEST = 1 << 16, LINES = 400 };
static int exact, shape, status_alone, left;

static char *read_whole(const char *path) {
  const int file = open(path, O_RDONLY);
  ck_assert_msg(file >= 0, "%s", path);
  return command_slurp(file);
}

/* Replaces each number by one sign (where numbers is not 0) and each run of blanks by one blank. */
static void simplify(const char *line, int numbers, char *out, size_t size) {
  size_t n = 0;
  for (const char *c = line; *c && n + 2 < size; c++) {
    if (numbers && isdigit((unsigned char)*c) && (c == line || !isalpha((unsigned char)c[-1]))) {
      while (isdigit((unsigned char)c[1]) || ((c[1] == '.' || c[1] == ',') && isdigit((unsigned char)c[2]))) c++;
      out[n++] = '#';
    } else if (!numbers || *c != ' ' || (n > 0 && out[n - 1] != ' ')) {
      out[n++] = *c;
    }
  }
  while (n > 0 && out[n - 1] == ' ') n--;
  out[n] = 0;
}

typedef struct block {
  const char *page;
  int line; /* number of the block's first line in the page */
  char mark[256];
  char *lines[LINES];
  int count;
} block;

/* Compares printed lines with the lines of a page's block, from line `first` of the block on. */
static void compare(const block *b, int first, char *printed, int numbers) {
  char want[1024], got[1024];
  int any = 0;
  char *rest = printed, *line = NULL;
  for (int i = first; i < b->count; i++) {
    if (strncmp(b->lines[i], "$ ", 2) == 0) break;
    if (strcmp(b->lines[i], "...") == 0) {
      any = 1;
      continue;
    }
    simplify(b->lines[i], numbers, want, sizeof want);
    const size_t length = strlen(want), begins = length > 3 && strcmp(want + length - 3, "...") == 0 ? length - 3 : 0;
    int same = 0;
    while (!same && (line = strsep(&rest, "\n"))) {
      simplify(line, numbers, got, sizeof got);
      same = begins ? strncmp(want, got, begins) == 0 : strcmp(want, got) == 0;
      if (!same && !any) break;
    }
    ck_assert_msg(same, "%s:%d: the page says\n%s\nand the program %s%s", b->page, b->line + i, b->lines[i],
                  line ? "\n" : "does not print it after the line before", line ? line : "");
    any = 0;
  }
}

static void prepare(const char *with) {
  char command[1024];
  make_folder();
  snprintf(
      command, sizeof command,
      "cd '%s' && cp scenarios/demo/config.json scenarios/demo/ds_config.json scenarios/text/tokenizer.json '%s' && "
      "cat README.md docs/t*.md >'%s/text.txt' && cp '%s/text.txt' '%s/book.txt' && cp -r scenarios '%s' && "
      "{ [ -z '%s' ] || cp '%s'/* '%s'; }",
      TWS_SOURCE_DIR, folder, folder, folder, folder, folder, with, with, folder);
  ck_assert_int_eq(system(command), 0);
}

static void run_block(const block *b) {
  char with[128] = "", command[LONGEST], *in = strstr(b->mark, ", in "), *ends = strstr(b->mark, ", exit ");
  const int numbers = strstr(b->mark, "run: shape") != NULL, compared = numbers || strstr(b->mark, "run: exact");
  if (in) sscanf(in, ", in %127[^, ]", with);
  exact += compared && !numbers;
  shape += numbers;
  status_alone += !compared;
  int first = 0;
  for (int i = 0; i < b->count; i++) first |= strncmp(b->lines[i], "$ ", 2) == 0;
  const int marked = first;
  prepare(with);
  size_t n = (size_t)snprintf(command, sizeof command, "cd '%s' || exit 99\nPATH='%s':$PATH\n", folder, TWS_BUILD_DIR);
  for (int i = 0; i < b->count; i++) {
    if (marked && strncmp(b->lines[i], "$ ", 2) != 0) continue;
    n += (size_t)snprintf(command + n, sizeof command - n, "%s\n", b->lines[i] + (marked ? 2 : 0));
    while (marked && b->lines[i][strlen(b->lines[i]) - 1] == '\\' && i + 1 < b->count)
      n += (size_t)snprintf(command + n, sizeof command - n, "%s\n", b->lines[++i]);
    if (marked) first = i + 1;
  }
  char *argv[] = {"/bin/sh", "-c", command, NULL};
  setenv("TWINSPEED_MODULES", TWS_BUILD_DIR, 1);
  setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* for ranks of the commands: MPI never frees some of its memory */
  command_result r = command_execute(argv);
  const int wanted = ends ? atoi(ends + 7) : 0;
  const size_t printed = strlen(r.out);
  ck_assert_msg(r.status == wanted, "%s:%d: exit %d, not %d: %s\n%s", b->page, b->line, r.status, wanted, r.err,
                r.out + (printed > 2000 ? printed - 2000 : 0));
  if (compared) {
    char *all = malloc(strlen(r.out) + strlen(r.err) + 1);
    strcpy(all, r.out);
    strcat(all, r.err);
    compare(b, first, all, numbers);
    free(all);
  }
  command_free(&r);
  remove_folder();
}

static int is_command(const char *line) {
  static const char *const starts[] = {"$ ", "make ", "scenarios/", "bench/", "tests/", "./", "bible "};
  static const char *const verbs[] = {"calibrate", "check",    "convert",  "doctor", "elastic",
                                      "emulate",   "estimate", "generate", "launch", "profile",
                                      "report",    "simulate", "train",    "tune",   "validate"};
  for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
    if (strncmp(line, starts[i], strlen(starts[i])) == 0) return 1;
  for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
    if (strncmp(line, "twinspeed ", 10) == 0 && strncmp(line + 10, verbs[i], strlen(verbs[i])) == 0) return 1;
  return 0;
}

static void end_block(block *b) {
  int commands = 0;
  for (int i = 0; i < b->count; i++) commands |= is_command(b->lines[i]);
  if (strncmp(b->mark, "<!-- run: ", 10) == 0) {
    ck_assert_msg(b->count > 0, "%s:%d: no block follows %s", b->page, b->line, b->mark);
    run_block(b);
  } else {
    ck_assert_msg(!commands || strncmp(b->mark, "<!-- not run: ", 14) == 0,
                  "%s:%d: the block has commands, and no line before it says how they are tested (tests/test_pages.c)",
                  b->page, b->line);
    left += commands;
  }
  b->count = 0;
  b->mark[0] = 0;
}

static void read_page(const char *path) {
  char *text = read_whole(path), *rest = text;
  block b = {.page = path + strlen(TWS_SOURCE_DIR) + 1};
  int number = 0, blank = 1;
  for (char *line; (line = strsep(&rest, "\n"));) {
    number++;
    const int indented = strncmp(line, "    ", 4) == 0;
    if (strncmp(line, "<!-- run: ", 10) == 0 || strncmp(line, "<!-- not run: ", 14) == 0) {
      snprintf(b.mark, sizeof b.mark, "%s", line);
    } else if (indented && (b.count > 0 || blank || b.mark[0])) {
      if (b.count == 0) b.line = number;
      ck_assert_int_lt(b.count, LINES);
      b.lines[b.count++] = line + 4;
    } else if (b.count > 0 && !*line && rest && strncmp(rest, "    ", 4) == 0) {
      b.lines[b.count++] = line; /* a blank line within the block */
    } else if (b.count > 0) {
      end_block(&b);
    }
    blank = !*line;
  }
  if (b.count > 0) end_block(&b);
  free(text);
}

START_TEST(commands_do_what_pages_say) {
  glob_t pages;
  ck_assert_int_eq(glob(TWS_SOURCE_DIR "/docs/*.md", 0, NULL, &pages), 0);
  read_page(TWS_SOURCE_DIR "/README.md");
  read_page(TWS_SOURCE_DIR "/CONTRIBUTING.md");
  for (size_t i = 0; i < pages.gl_pathc; i++) read_page(pages.gl_pathv[i]);
  globfree(&pages);
  printf("blocks of commands: %d with the output compared, %d in shape, %d by their status, %d not run\n", exact, shape,
         status_alone, left);
  ck_assert_int_ge(exact + shape, 7);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("pages");
  TCase *tests = tcase_create("pages");
  tcase_set_timeout(tests, 600);
  tcase_add_test(tests, commands_do_what_pages_say);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
