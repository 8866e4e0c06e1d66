/* Checks words: comments, messages and pages of documentation use the terms of the field (CONTRIBUTING.md, Words), not
 * the everyday words of tests/words.def.
 *
 * A file is read once, character by character, and its text is divided into comments, string literals and code, as a
 * compiler does it. A comment is the text between its delimiters; several comments of "//" in successive lines are
 * several. Only comments of 30 characters and more count. In Markdown all text counts but that of code: indented by
 * four spaces, fenced, or between backquotes. */
#include <check.h>
#include <ctype.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/suite.h"

enum { LONG_COMMENT = 30, LONGEST = 1 << 16, FOLDERS = 24 };

static const struct {
  const char *word, *term;
  int first; /* 1: refused only as the first word of a comment */
} words[] = {
#define WORD(word, term) {word, term, 0},
#define BEGINNING(word, term) {word, term, 1},
#include "tests/words.def"
#undef WORD
#undef BEGINNING
};
enum { WORDS = sizeof words / sizeof *words };

/* The number of texts with refused words that each folder may still have, until they are edited: a number may fall, not
 * rise. */
static struct {
  const char *folder;
  int comments, strings; /* the largest allowed numbers of comments and strings with a refused word */
  int seen, found, said; /* found so far: all comments, comments with a word, strings with a word */
} folders[FOLDERS] = {
#include "tests/words_left.def"
};

static int is_letter(char c) {
  return isalnum((unsigned char)c) || c == '_' || c == '\'';
}

/* Returns the index of a refused word that the text contains, or -1. Words are compared letter by letter; white space
 * and the asterisks that begin the lines of a comment count as one space. */
static int refused_word(const char *text, int comment) {
  static char plain[LONGEST];
  size_t n = 0;
  const int sentence = comment && isupper((unsigned char)text[strspn(text, " *-\n")]);
  for (const char *c = text; *c && n + 2 < sizeof plain; c++) {
    const char letter = isspace((unsigned char)*c) || *c == '*' ? ' ' : (char)tolower((unsigned char)*c);
    if (letter != ' ' || (n > 0 && plain[n - 1] != ' ')) plain[n++] = letter;
  }
  plain[n] = 0;
  for (int w = 0; w < WORDS; w++) {
    const size_t length = strlen(words[w].word);
    const char *start = plain + strspn(plain, " -");
    if (words[w].first) {
      if (sentence && strncmp(start, words[w].word, length) == 0 && start[length] == ' ') return w;
      continue;
    }
    for (const char *at = plain; (at = strstr(at, words[w].word)); at++)
      if ((at == plain || !is_letter(at[-1])) && !is_letter(at[length])) return w;
  }
  return -1;
}

typedef struct reader {
  int folder;
  char text[LONGEST];
  size_t length;
} reader;

static reader one;

static void add(char c) {
  if (one.length + 1 < sizeof one.text) one.text[one.length++] = c;
}

static int verbose; /* TWS_WORDS=1 prints every text that has a refused word */

typedef enum kind { STRING, COMMENT, PARAGRAPH } kind;

static void end_text(const char *path, int line, kind what) {
  one.text[one.length] = 0;
  const size_t length = one.length;
  one.length = 0;
  if (what != STRING && length < LONG_COMMENT) return;
  const int w = refused_word(one.text, what == COMMENT);
  folders[one.folder].seen += what != STRING;
  if (w < 0) return;
  *(what != STRING ? &folders[one.folder].found : &folders[one.folder].said) += 1;
  if (verbose) printf("%s:%d: \"%s\", the field says: %s\n", path, line, words[w].word, words[w].term);
}

/* Reads C, C++ or CUDA. */
static void read_source(const char *path, const char *text) {
  int line = 1;
  for (const char *c = text; *c; c++) {
    if (*c == '\n') line++;
    if (c[0] == '/' && c[1] == '*') {
      const int first = line;
      for (c += 2; *c && !(c[0] == '*' && c[1] == '/'); c++) line += *c == '\n', add(*c);
      end_text(path, first, COMMENT);
      if (!*c) return;
      c++;
    } else if (c[0] == '/' && c[1] == '/') {
      for (c += 2; *c && *c != '\n'; c++) add(*c);
      end_text(path, line, COMMENT);
      c--;
    } else if (*c == '"') {
      for (c++; *c && *c != '"' && *c != '\n'; c++) {
        if (*c == '\\' && c[1]) c++; /* an escape sequence separates words */
        add(c[-1] == '\\' ? ' ' : *c);
      }
      end_text(path, line, STRING);
    } else if (*c == '\'' && c[1] && (c[2] == '\'' || (c[1] == '\\' && c[3] == '\''))) {
      c += c[1] == '\\' ? 3 : 2;
    }
  }
}

/* Reads Markdown, a paragraph at a time: each counts as a comment. */
static void read_page(const char *path, char *text) {
  int line = 0, fenced = 0;
  char *rest = text;
  for (char *row; (row = strsep(&rest, "\n"));) {
    line++;
    if (strncmp(row, "```", 3) == 0) fenced = !fenced;
    const int code = fenced || strncmp(row, "    ", 4) == 0;
    if (!*row || code) end_text(path, line, PARAGRAPH);
    int quoted = 0;
    for (const char *c = row; *c && !code; c++) {
      if (*c == '`') quoted = !quoted;
      if (!quoted) add(*c);
    }
    add(' ');
  }
  end_text(path, line, PARAGRAPH);
}

static int ends_with(const char *text, const char *end) {
  const size_t a = strlen(text), b = strlen(end);
  return a >= b && strcmp(text + a - b, end) == 0;
}

static int read_file(const char *path, const struct stat *status, int type, struct FTW *where) {
  static const char *const kinds[] = {".c", ".h", ".cu", ".cuh", ".cpp", ".inc", ".def"};
  (void)where;
  int source = 0;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) source |= ends_with(path, kinds[i]);
  if (type != FTW_F || !(source || ends_with(path, ".md")) || ends_with(path, "tests/words.def")) return 0;
  char *text = calloc((size_t)status->st_size + 1, 1);
  FILE *file = fopen(path, "rb");
  ck_assert_msg(text && file && fread(text, 1, (size_t)status->st_size, file) == (size_t)status->st_size, "%s", path);
  fclose(file);
  const char *name = path + strlen(TWS_SOURCE_DIR) + 1;
  source ? read_source(name, text) : read_page(name, text);
  free(text);
  return 0;
}

START_TEST(words_are_those_of_the_field) {
  verbose = getenv("TWS_WORDS") != NULL;
  printf("%-12s %9s %10s %7s\n", "folder", "comments", "with words", "strings");
  for (int f = 0; f < FOLDERS && folders[f].folder; f++) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", TWS_SOURCE_DIR, folders[f].folder);
    one.folder = f;
    ck_assert_msg(nftw(path, read_file, 16, FTW_PHYS) == 0, "%s", path);
    printf("%-12s %9d %10d %7d\n", folders[f].folder, folders[f].seen, folders[f].found, folders[f].said);
    ck_assert_msg(folders[f].seen > 5, "%s: %d comments", folders[f].folder, folders[f].seen);
  }
  for (int f = 0; f < FOLDERS && folders[f].folder; f++)
    ck_assert_msg(folders[f].found <= folders[f].comments && folders[f].said <= folders[f].strings,
                  "%s: %d comments and %d strings have words of tests/words.def, more than the %d and %d of "
                  "tests/words_left.def (TWS_WORDS=1 lists them)",
                  folders[f].folder, folders[f].found, folders[f].said, folders[f].comments, folders[f].strings);
}
END_TEST

/* Returns how many comments with a refused word the text of a source adds; *said: how many strings. */
static int found_in(const char *text, int *said) {
  char copy[256];
  const int found = folders[0].found, before = folders[0].said;
  one.folder = 0;
  snprintf(copy, sizeof copy, "%s", text);
  read_source("mutant", copy);
  *said = folders[0].said - before;
  return folders[0].found - found;
}

START_TEST(one_word_more_is_noticed) {
  static const struct {
    const char *text;
    int found, said;
  } mutants[] = {{"int a; /* the gather runs behind the last kernel of the layer */\n", 1, 0},
                 {"int a; // The next layer's gather runs Beside this one's kernels\n", 1, 0},
                 {"/* Writes what it goes\n * on with into the file. */", 1, 0},
                 {"puts(\"the job goes on\"); /* short */", 0, 1},
                 {"puts(\"more values than\\nplaces\");", 0, 1},
                 {"int behind = beside('\"'); /* a comment whose words are those of the field */", 0, 0},
                 {"char c = '\\''; /* a comment that is long enough and tailored, besidesome */", 0, 0},
                 {"/* Whether the buffer is read in a later step. */", 1, 0},
                 {"/* The caller knows whether of two buffers one is read. */", 0, 0},
                 {"/* behind */ int short_comments_do_not_count;", 0, 0}};
  for (size_t i = 0; i < sizeof mutants / sizeof *mutants; i++) {
    int said;
    const int found = found_in(mutants[i].text, &said);
    ck_assert_msg(found == mutants[i].found && said == mutants[i].said, "%s: %d, %d", mutants[i].text, found, said);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("house_words");
  TCase *tests = tcase_create("words");
  tcase_add_test(tests, words_are_those_of_the_field);
  tcase_add_test(tests, one_word_more_is_noticed);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
