/* Suggests corrections ("did you mean ..."): finds the known words that are closest to a misspelled word. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"

enum { LONGEST = 96 };

static int same_letter(char a, char b) {
  return tolower((unsigned char)a) == tolower((unsigned char)b);
}

static int least(int a, int b) {
  return a < b ? a : b;
}

/* Returns the optimal string alignment distance (edits and swaps of adjacent letters) of two words of n and m letters,
 * ignoring case. Both words have at most LONGEST letters. */
static int distance(const char *a, size_t n, const char *b, size_t m) {
  int rows[3][LONGEST + 1];
  int *before = rows[0], *previous = rows[1], *now = rows[2];
  for (size_t j = 0; j <= m; j++) previous[j] = (int)j;
  memset(rows[0], 0, sizeof rows[0]);
  for (size_t i = 1; i <= n; i++) {
    now[0] = (int)i;
    for (size_t j = 1; j <= m; j++) {
      int best = least(previous[j - 1] + !same_letter(a[i - 1], b[j - 1]), least(previous[j], now[j - 1]) + 1);
      if (i > 1 && j > 1 && same_letter(a[i - 1], b[j - 2]) && same_letter(a[i - 2], b[j - 1]))
        best = least(best, before[j - 2] + 1);
      now[j] = best;
    }
    int *spare = before;
    before = previous;
    previous = now;
    now = spare;
  }
  return previous[m];
}

int tws_is_similar_word(const char *a, const char *b) {
  size_t n = strlen(a), m = strlen(b);
  return n && m && n <= LONGEST && m <= LONGEST && distance(a, n, b, m) <= (int)(n > m ? n : m) / 3;
}

/* Returns 1 if the two words differ only in their digits and therefore name different things, such as the devices h20
 * and h200. Returns 0 for the same digits in another order, as in fp61 for fp16, which is a typing error. */
static int differ_in_digits(const char *a, const char *b) {
  int count[10] = {0}, same = 1;
  if (strcasecmp(a, b) == 0) return 0;
  for (;; a++, b++) {
    for (; isdigit((unsigned char)*a); a++) count[*a - '0']++;
    for (; isdigit((unsigned char)*b); b++) count[*b - '0']--;
    if (!*a || !*b || !same_letter(*a, *b)) break;
  }
  for (int i = 0; i < 10; i++) same &= count[i] == 0;
  return !*a && !*b && !same;
}

const char *tws_closest(const char *word, const char *const *words, size_t n) {
  size_t length = strlen(word);
  const char *best = NULL;
  int best_distance = 0;
  if (!length || length > LONGEST) return NULL;
  for (size_t i = 0; i < n; i++) {
    size_t other = words[i] ? strlen(words[i]) : 0;
    if (!other || other > LONGEST || differ_in_digits(word, words[i])) continue;
    int d = distance(word, length, words[i], other);
    /* A known word that continues the given one after a hyphen counts as one edit away, as rtx-4060-ti-16gb does for
     * rtx-4060-ti. */
    if (length >= 4 && strncasecmp(words[i], word, length) == 0 && words[i][length] == '-') d = least(d, 1);
    /* Words are close if at most a third of the letters differ, or if one of them contains the other. */
    int contained = length >= 4 && other >= 4 && (strstr(word, words[i]) || strstr(words[i], word));
    if (d > (int)(length > other ? length : other) / 3 && !contained) continue;
    if (best && d >= best_distance) continue;
    best = words[i];
    best_distance = d;
  }
  return best;
}

typedef struct ranked {
  const char *word;
  int distance, index;
} ranked;

static int by_distance(const void *left, const void *right) {
  const ranked *a = left, *b = right;
  return a->distance != b->distance ? (a->distance < b->distance ? -1 : 1) : a->index < b->index ? -1 : 1;
}

void tws_names_hint(const char *word, const char *const *words, size_t n, const char *intro, const char *all,
                    char *hint, size_t size) {
  enum { MOST = 1024, NEAREST = 10 };
  ranked list[MOST];
  const char *close = tws_closest(word, words, n);
  const size_t length = strlen(word);
  if (n > MOST) n = MOST;
  for (size_t i = 0; i < n; i++) {
    const size_t other = strlen(words[i]);
    list[i] = (ranked){words[i], LONGEST, (int)i};
    if (words[i] == close)
      list[i].distance = -1;
    else if (length <= LONGEST && other <= LONGEST)
      list[i].distance = distance(word, length, words[i], other);
  }
  qsort(list, n, sizeof *list, by_distance);
  size_t used = (size_t)snprintf(hint, size, close ? "did you mean %s? %s" : "%s%s", close ? close : "", intro);
  const size_t shown = all && n > NEAREST + 2 ? NEAREST : n;
  for (size_t i = 0; i < shown && used < size; i++)
    used += (size_t)snprintf(hint + used, size - used, "%s %s", i ? "," : "", list[i].word);
  if (shown < n && used < size) snprintf(hint + used, size - used, "; \"%s\" prints all %zu", all, n);
}
