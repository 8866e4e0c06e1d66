/* Scores of predicted answers to questions, by the arithmetic of SQuAD's evaluation scripts (Rajpurkar et al., 2016 and
 * 2018), and of predicted classes, as GLUE counts them (Wang et al., 2018).  Two answers are compared after
 * normalization: letters become lower case, ASCII punctuation is removed, the articles "a", "an" and "the" become
 * blanks, and runs of white space one blank. The exact match of two answers is 1 if their normalized texts are equal.
 * Let c be the number of words that both have, each counted as often as in the one that has it less often, p and g the
 * numbers of words of the prediction and of the gold answer: F1 = 2 c / (p + g), 0 if c is 0. Of several gold answers,
 * each score is that of the best one.  Files of version 2 have questions without an answer, for which the right
 * prediction is an empty text. There, gold answers that are empty after normalization are left out, a question without
 * any has the gold answer "", and F1 is 1 if both are empty and 0 if one is. */
#ifndef TWS_TOKENS_ANSWER_SCORE_H
#define TWS_TOKENS_ANSWER_SCORE_H

#include <stddef.h>
#include <stdint.h>

#include "base/memory.h"
#include "base/status.h"

/* The scores of one answer, each between 0 and 1. */
typedef struct tws_answer_score {
  double exact, f1;
} tws_answer_score;

/* Scores a prediction against `count` gold answers; all are valid UTF-8. version: 1 or 2. Fails with TWS_MEMORY. */
tws_code tws_answer_score_of(const char *prediction, const char *const *gold, size_t count, int version,
                             tws_answer_score *out, tws_error *err);

/* The scores of a file, in percent. */
typedef struct tws_squad_scores {
  int version;                                       /* 2: some question of the file has no answer */
  int64_t questions;                                 /* all questions */
  int64_t answerable;                                /* those with an answer */
  int64_t not_predicted;                             /* number of questions without a prediction, which score 0 */
  tws_answer_score all, with_answer, without_answer; /* means; 0 where there is no such question */
} tws_squad_scores;

/* Reads questions and predictions, and scores them. `questions`: a file as SQuAD publishes it, or lines (.jsonl), each
 * {"id": ..., "answers": {"text": [...]}}; a line without an id has its number, counted from 1. `predictions`: an
 * object with a text for each id. Fails with TWS_IO if a file cannot be read and with TWS_INVALID, with the place, if
 * it has another form, two questions have the same id, or no id is in both files. Predictions of other ids are ignored,
 * as the published scripts do. */
tws_code tws_squad_score_files(const char *questions, const char *predictions, tws_squad_scores *out, tws_error *err);

/* ---- predictions ---- */

/* Returns the softmax of the scores at index `of`. */
double tws_class_probability(const float *scores, int64_t count, int64_t of);

/* The tokens [first, last] of an answer, and the sum of the scores of its ends. */
typedef struct tws_token_span {
  int64_t first, last;
  double score;
} tws_token_span;
/* Finds the span in [from, tokens) of at most `longest` tokens with the largest sum of first[] and last[]; of equal
 * ones the earliest. Returns 0 if there is none (from >= tokens). */
int tws_best_span(const float *first, const float *last, int64_t from, int64_t tokens, int64_t longest,
                  tws_token_span *best);

/* A question of a file of lines. Its tokens are the bytes of the question and then those of the context or, with
 * offsets, have the bytes [offsets[2 i], offsets[2 i + 1]) of the context. */
typedef struct tws_question {
  char *id, *context;
  int64_t first;    /* index of the context's first token */
  int64_t *offsets; /* NULL: tokens are bytes */
  int64_t tokens;   /* number of tokens that have offsets */
} tws_question;
typedef struct tws_question_list {
  tws_question *items;
  size_t count, capacity;
  int unanswerable; /* 1: some question has no answer */
  struct tws_arena *arena;
} tws_question_list;
/* Reads the questions of a file of lines; the list is empty if the first line has no "context". A line without an "id"
 * has its number, counted from 1. Fails as tws_squad_score_files() does. The caller frees the list, after errors too.
 * */
tws_code tws_questions_read(const char *path, tws_question_list *out, tws_error *err);
void tws_questions_free(tws_question_list *list);
/* Appends the text of the tokens [first, last], which are of the context, extended to whole characters. */
void tws_question_answer(const tws_question *question, int64_t first, int64_t last, tws_text *out);
/* Returns the number of the question's first tokens, of a sample's `tokens`, up to the end of the context. */
int64_t tws_question_end(const tws_question *question, int64_t tokens);

/* The scores of classes. f1 and matthews (Matthews' correlation coefficient, 0 if a class is never there or never
 * predicted) are those of the class "1" and are set if all classes are "0" or "1" (two_classes). */
typedef struct tws_class_scores {
  int64_t count;
  int two_classes;
  double accuracy, f1, matthews; /* percent; matthews from -100 to 100 */
} tws_class_scores;

/* Reads the classes of two files and scores them, line by line. A file has lines {"label": class} (.jsonl), where the
 * class is a number or a text, or columns that tabs separate (.tsv), of which the header names one "label" or
 * "prediction". Fails with TWS_IO or with TWS_INVALID and the line; also if the files have different numbers of
 * lines. */
tws_code tws_class_score_files(const char *labels, const char *predictions, tws_class_scores *out, tws_error *err);

#endif
