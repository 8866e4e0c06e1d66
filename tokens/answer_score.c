#include "tokens/answer_score.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/memory.h"
#include "tokens/internal.h"

/* A normalized answer: the text, in which single blanks separate the words, and the words. */
typedef struct answer {
  tws_text text;
  char **words; /* each ends with a 0 */
  size_t count, capacity;
} answer;

static void free_answer(answer *a) {
  tws_text_free(&a->text);
  tws_free(a->words);
}

/* Returns 1 for characters at which Python's str.split() splits, which the published scripts use: white space, and the
 * separators of ASCII. */
static int separates(int32_t c) {
  return tws_is_space(c) || (c >= 0x1c && c <= 0x1f);
}

/* Returns 1 for the characters of words in Python's regular expressions, except "_", which is removed before. */
static int is_word(int32_t c) {
  const utf8proc_category_t k = utf8proc_category(c);
  return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) || tws_is_numeric(c);
}

/* Appends the text in lower case without ASCII punctuation. */
static void add_plain(const char *from, tws_text *out) {
  const size_t length = strlen(from);
  int32_t c;
  int bad;
  char to[4];
  for (size_t i = 0, n; i < length; i += n) {
    n = (size_t)tws_utf8_read(from + i, length - i, &c, &bad);
    if (n == 0) { /* an invalid byte is kept as it is */
      n = (size_t)bad;
      tws_text_add_bytes(out, from + i, n);
    } else if (c == 0x130) { /* a capital I with a dot: Unicode's lower case is two characters */
      tws_text_add_bytes(out, "i\xcc\x87", 3);
    } else if (c >= 128 || !tws_is_punctuation(c)) {
      tws_text_add_bytes(out, to, tws_utf8_write(utf8proc_tolower(c), to));
    }
  }
}

static int is_article(const char *run, size_t bytes) {
  static const char *const articles[] = {"a", "an", "the"};
  for (size_t i = 0; i < sizeof articles / sizeof *articles; i++)
    if (strlen(articles[i]) == bytes && strncmp(run, articles[i], bytes) == 0) return 1;
  return 0;
}

/* Returns the end of the run of word characters that begins at `begin`; `begin` if there is none. */
static size_t word_end(const char *text, size_t length, size_t begin) {
  size_t end = begin;
  while (end < length) {
    int32_t c;
    int bad;
    const int n = tws_utf8_read(text + end, length - end, &c, &bad);
    if (n == 0 || !is_word(c)) break;
    end += (size_t)n;
  }
  return end;
}

/* Replaces articles and separators by blanks. A run of word characters that is an article counts as one also where
 * other characters that are no separators, such as a dash of Unicode, precede or follow it. */
static void blank_articles(char *text, size_t length) {
  for (size_t i = 0; i < length;) {
    const size_t end = word_end(text, length, i);
    if (end > i) {
      if (is_article(text + i, end - i)) memset(text + i, ' ', end - i);
      i = end;
      continue;
    }
    int32_t c;
    int bad;
    const int n = tws_utf8_read(text + i, length - i, &c, &bad);
    if (n > 0 && separates(c)) memset(text + i, ' ', (size_t)n);
    i += (size_t)(n > 0 ? n : bad);
  }
}

/* Splits the text into words at blanks, and ends each with a 0. */
static int split(answer *a) {
  char *at = a->text.data;
  while (at && *(at += strspn(at, " "))) {
    if (tws_reserve(&a->words, &a->capacity, a->count + 1, sizeof *a->words)) return -1;
    a->words[a->count++] = at;
    at += strcspn(at, " ");
    if (*at) *at++ = 0;
  }
  return 0;
}

static int by_text(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

static int normalize(const char *text, answer *a) {
  add_plain(text, &a->text);
  if (a->text.failed) return -1;
  if (a->text.data) blank_articles(a->text.data, a->text.length);
  return split(a);
}

static int same_words(const answer *a, const answer *b) {
  if (a->count != b->count) return 0;
  for (size_t i = 0; i < a->count; i++)
    if (strcmp(a->words[i], b->words[i]) != 0) return 0;
  return 1;
}

/* Returns the number of words that two answers have in common, each counted as often as in the answer that has it less
 * often; sorts the words of both answers. */
static size_t common_words(answer *a, answer *b) {
  size_t common = 0, i = 0, j = 0;
  if (a->count) qsort(a->words, a->count, sizeof *a->words, by_text);
  if (b->count) qsort(b->words, b->count, sizeof *b->words, by_text);
  while (i < a->count && j < b->count) {
    const int order = strcmp(a->words[i], b->words[j]);
    common += order == 0;
    i += order <= 0;
    j += order >= 0;
  }
  return common;
}

static double f1_of(answer *prediction, answer *gold, int version) {
  if (version == 2 && (prediction->count == 0 || gold->count == 0)) return prediction->count == gold->count;
  const size_t common = common_words(prediction, gold);
  return common ? 2.0 * (double)common / (double)(prediction->count + gold->count) : 0;
}

/* Improves the scores by those of one gold answer. *counts is set if version 2 counts this gold answer. */
static tws_code compare(const char *prediction, const char *gold, int version, int *counts, tws_answer_score *best,
                        tws_error *err) {
  answer p = {.count = 0}, g = {.count = 0};
  const int failed = normalize(prediction, &p) || normalize(gold, &g);
  if (!failed && (version == 1 || g.count > 0 || !*gold)) {
    const double exact = same_words(&p, &g), f1 = f1_of(&p, &g, version);
    if (exact > best->exact) best->exact = exact;
    if (f1 > best->f1) best->f1 = f1;
    *counts = 1;
  }
  free_answer(&p);
  free_answer(&g);
  return failed ? tws_fail(err, TWS_MEMORY, NULL, "out of memory for an answer") : TWS_OK;
}

tws_code tws_answer_score_of(const char *prediction, const char *const *gold, size_t count, int version,
                             tws_answer_score *out, tws_error *err) {
  int counts = 0;
  *out = (tws_answer_score){0};
  for (size_t i = 0; i < count; i++)
    if (version == 1 || *gold[i]) TWS_TRY(compare(prediction, gold[i], version, &counts, out, err));
  return counts || version == 1 ? TWS_OK : compare(prediction, "", version, &counts, out, err);
}

/* ---- predictions ---- */

double tws_class_probability(const float *scores, int64_t count, int64_t of) {
  double sum = 0;
  for (int64_t i = 0; i < count; i++) sum += exp((double)scores[i] - (double)scores[of]);
  return 1 / sum;
}

int tws_best_span(const float *first, const float *last, int64_t from, int64_t tokens, int64_t longest,
                  tws_token_span *best) {
  int found = 0;
  for (int64_t i = from; i < tokens; i++)
    for (int64_t j = i; j < tokens && j - i < longest; j++) {
      const double score = (double)first[i] + (double)last[j];
      if (found && !(score > best->score)) continue;
      *best = (tws_token_span){i, j, score};
      found = 1;
    }
  return found;
}

/* Returns 1 if the byte is not the first of its character. */
static int continues(char byte) {
  return ((unsigned char)byte & 0xc0) == 0x80;
}

void tws_question_answer(const tws_question *question, int64_t first, int64_t last, tws_text *out) {
  if (question->offsets && (first < 0 || last < first || last >= question->tokens)) return;
  first = question->offsets ? question->offsets[2 * first] : first - question->first;
  last = question->offsets ? question->offsets[2 * last + 1] - 1 : last - question->first;
  const int64_t length = (int64_t)strlen(question->context);
  if (first < 0 || last < first || first >= length) return;
  while (first > 0 && continues(question->context[first])) first--;
  if (last >= length) last = length - 1;
  while (last + 1 < length && continues(question->context[last + 1])) last++;
  tws_utf8_repair(question->context + first, (size_t)(last - first + 1), out);
}

int64_t tws_question_end(const tws_question *question, int64_t tokens) {
  if (!question->offsets) return tokens;
  int64_t end = tokens < question->tokens ? tokens : question->tokens;
  while (end > 0 && question->offsets[2 * end - 1] <= question->offsets[2 * end - 2]) end--;
  return end;
}
