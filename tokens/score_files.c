/* Files of questions and of classes, and their scores (tokens/answer_score.h). */
#include <math.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "tokens/answer_score.h"

/* ---- lines ---- */

/* A file that is read line by line; reading overwrites the line ends in its text. */
typedef struct line_file {
  const char *path;
  char *text, *at;
  int64_t line; /* number of the line that next_line() returned last, from 1 */
} line_file;

static tws_code open_lines(const char *path, line_file *f, tws_error *err) {
  size_t length;
  *f = (line_file){.path = path};
  TWS_TRY(tws_read_file(path, 0, &f->text, &length, err));
  f->at = f->text;
  if (strlen(f->text) == length) return TWS_OK;
  tws_free(f->text);
  return tws_fail(err, TWS_INVALID, NULL, "%s: it has bytes with the value 0", path);
}

/* Returns the next line that is not empty, without its end; NULL: there is none. */
static char *next_line(line_file *f) {
  while (*f->at) {
    char *line = f->at;
    const size_t length = strcspn(line, "\n");
    f->at += length + (line[length] == '\n');
    line[length] = 0;
    f->line++;
    if (length > 0 && line[length - 1] == '\r') line[length - 1] = 0;
    if (line[strspn(line, " \t")]) return line;
  }
  return NULL;
}

static int ends_with(const char *path, const char *end) {
  const size_t length = strlen(path), tail = strlen(end);
  return length > tail && strcmp(path + length - tail, end) == 0;
}

static tws_code parse_line(const line_file *f, const char *line, tws_json **json, tws_error *err) {
  char name[512];
  snprintf(name, sizeof name, "%.400s, line %lld", f->path, (long long)f->line);
  return tws_json_parse(line, strlen(line), name, json, err);
}

/* ---- questions ---- */

/* The questions' file and the predictions, and the sums of the scores. Whether the arithmetic is that of version 1 or 2
 * is known after the last question; so each question is scored by both, and the file is read once. */
typedef struct squad {
  const cJSON *predictions;
  const tws_json *predicted;  /* the file of the predictions, for messages */
  tws_squad_scores scores[2]; /* by the arithmetic of versions 1 and 2 */
  int64_t questions, found;   /* all questions, and those that have a prediction */
  int open;                   /* 1: some question has no answer, so that the version is 2 */
  tws_arena *arena;
  char **ids; /* ids of the questions that were read so far, in the arena */
  size_t id_capacity;
} squad;

static const char question_hint[] =
    "a question is {\"id\": ..., \"answers\": [{\"text\": ...}]}, or in lines {\"id\": ..., \"answers\": {\"text\": "
    "[...]}}";

static void add_score(tws_answer_score *sum, const tws_answer_score *score) {
  sum->exact += score->exact;
  sum->f1 += score->f1;
}

/* Returns the gold answers of a question as a list of items of which each is a text or has the member "text". */
static const cJSON *gold_list(const cJSON *question) {
  const cJSON *answers = cJSON_GetObjectItemCaseSensitive(question, "answers");
  return cJSON_IsObject(answers) ? cJSON_GetObjectItemCaseSensitive(answers, "text") : answers;
}

static const char *gold_text(const cJSON *item) {
  return cJSON_GetStringValue(cJSON_IsObject(item) ? cJSON_GetObjectItemCaseSensitive(item, "text") : item);
}

static tws_code add_id(squad *s, const char *id, tws_error *err) {
  const size_t count = (size_t)s->questions;
  if (tws_reserve(&s->ids, &s->id_capacity, count + 1, sizeof *s->ids))
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the questions");
  s->ids[count] = tws_arena_strdup(s->arena, id);
  if (!s->ids[count]) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the questions");
  s->questions++;
  return TWS_OK;
}

/* Adds the score of a prediction (NULL: there is none, the score is 0) by the arithmetic of one version. */
static tws_code add_version(tws_squad_scores *scores, int version, const char *prediction, const char *const *gold,
                            size_t count, tws_error *err) {
  tws_answer_score score = {0};
  if (prediction) TWS_TRY(tws_answer_score_of(prediction, gold, count, version, &score, err));
  scores->version = version;
  scores->questions++;
  scores->not_predicted += prediction == NULL;
  scores->answerable += count > 0;
  add_score(&scores->all, &score);
  add_score(count > 0 ? &scores->with_answer : &scores->without_answer, &score);
  return TWS_OK;
}

static tws_code score_question(squad *s, const tws_json *json, const cJSON *question, const char *id, tws_error *err) {
  const cJSON *list = gold_list(question), *item;
  const int count = cJSON_GetArraySize(list);
  if (!cJSON_IsArray(list)) return tws_json_fail(json, question, err, question_hint, "a question without \"answers\"");
  const char **gold = tws_calloc((size_t)count + 1, sizeof *gold);
  if (!gold) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the answers");
  size_t n = 0;
  tws_code code = add_id(s, id, err);
  cJSON_ArrayForEach(item, list) {
    gold[n] = gold_text(item);
    if (!gold[n++] && code == TWS_OK)
      code = tws_json_fail(json, item, err, question_hint, "an answer that is no text and has no \"text\"");
  }
  const cJSON *prediction = cJSON_GetObjectItemCaseSensitive(s->predictions, id);
  if (code == TWS_OK && prediction && !cJSON_IsString(prediction))
    code = tws_json_fail(s->predicted, prediction, err, "a prediction is a text",
                         "the prediction of \"%.60s\" is no text", id);
  for (int version = 1; version <= 2 && code == TWS_OK; version++)
    code = add_version(&s->scores[version - 1], version, cJSON_GetStringValue(prediction), gold, n, err);
  s->found += prediction != NULL;
  s->open |= count == 0;
  tws_free(gold);
  return code;
}

static tws_code score_articles(squad *s, const tws_json *json, tws_error *err) {
  const cJSON *data = cJSON_GetObjectItemCaseSensitive(json->root, "data"), *article, *paragraph, *question;
  if (!cJSON_IsArray(data))
    return tws_json_fail(json, json->root, err, "{\"data\": [{\"paragraphs\": [{\"qas\": [...]}]}]}, or lines (.jsonl)",
                         "there is no list \"data\"");
  cJSON_ArrayForEach(article, data) {
    cJSON_ArrayForEach(paragraph, cJSON_GetObjectItemCaseSensitive(article, "paragraphs")) {
      cJSON_ArrayForEach(question, cJSON_GetObjectItemCaseSensitive(paragraph, "qas")) {
        const char *id = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(question, "id"));
        if (!id) return tws_json_fail(json, question, err, question_hint, "a question without the text \"id\"");
        TWS_TRY(score_question(s, json, question, id, err));
      }
    }
  }
  return TWS_OK;
}

static tws_code score_published(squad *s, const char *path, tws_error *err) {
  tws_json *json;
  TWS_TRY(tws_json_read(path, &json, err));
  const tws_code code = score_articles(s, json, err);
  tws_json_destroy(json);
  return code;
}

static tws_code score_line(squad *s, const tws_json *json, int64_t number, tws_error *err) {
  const cJSON *id = cJSON_GetObjectItemCaseSensitive(json->root, "id");
  char own[24];
  snprintf(own, sizeof own, "%lld", (long long)number);
  return score_question(s, json, json->root, cJSON_IsString(id) ? id->valuestring : own, err);
}

static tws_code score_lines(squad *s, const char *path, tws_error *err) {
  line_file f;
  TWS_TRY(open_lines(path, &f, err));
  tws_code code = TWS_OK;
  int64_t number = 0;
  for (const char *line; code == TWS_OK && (line = next_line(&f));) {
    tws_json *json;
    code = parse_line(&f, line, &json, err);
    if (code != TWS_OK) break;
    code = score_line(s, json, ++number, err);
    tws_json_destroy(json);
  }
  tws_free(f.text);
  return code;
}

static int by_id(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

static tws_code check_ids(squad *s, const char *questions, const char *predictions, tws_error *err) {
  const size_t count = (size_t)s->questions;
  if (count == 0) return tws_fail(err, TWS_INVALID, question_hint, "%s: it has no questions", questions);
  qsort(s->ids, count, sizeof *s->ids, by_id);
  for (size_t i = 1; i < count; i++)
    if (strcmp(s->ids[i - 1], s->ids[i]) == 0)
      return tws_fail(err, TWS_INVALID, "every question has an id of its own",
                      "%s: two questions have the id \"%.60s\"", questions, s->ids[i]);
  if (s->found > 0) return TWS_OK;
  return tws_fail(err, TWS_INVALID, "are they of the same data?", "%s has no prediction of any question of %s",
                  predictions, questions);
}

static void make_percent(tws_answer_score *score, int64_t count) {
  score->exact = count ? 100 * score->exact / (double)count : 0;
  score->f1 = count ? 100 * score->f1 / (double)count : 0;
}

static tws_code score_questions(squad *s, const char *questions, const char *predictions, tws_error *err) {
  if (!cJSON_IsObject(s->predictions))
    return tws_json_fail(s->predicted, s->predictions, err, "{\"id of a question\": \"its answer\", ...}",
                         "the predictions are no object");
  TWS_TRY((ends_with(questions, ".jsonl") ? score_lines : score_published)(s, questions, err));
  return check_ids(s, questions, predictions, err);
}

tws_code tws_squad_score_files(const char *questions, const char *predictions, tws_squad_scores *out, tws_error *err) {
  tws_json *predicted;
  *out = (tws_squad_scores){.version = 1};
  TWS_TRY(tws_json_read(predictions, &predicted, err));
  squad s = {.predictions = predicted->root, .predicted = predicted, .arena = tws_arena_create()};
  const tws_code code = s.arena ? score_questions(&s, questions, predictions, err)
                                : tws_fail(err, TWS_MEMORY, NULL, "out of memory for the questions");
  tws_free(s.ids);
  tws_arena_destroy(s.arena);
  tws_json_destroy(predicted);
  *out = s.scores[s.open];
  make_percent(&out->all, out->questions);
  make_percent(&out->with_answer, out->answerable);
  make_percent(&out->without_answer, out->questions - out->answerable);
  return code;
}

/* ---- questions whose answers are to be predicted ---- */

/* Reads the places of the tokens in the context, which `convert samples` writes. */
static tws_code read_offsets(tws_question_list *list, const tws_json *json, const cJSON *offsets, tws_question *q,
                             tws_error *err) {
  const cJSON *pair;
  const double bytes = (double)strlen(q->context);
  q->offsets = tws_arena_alloc(list->arena, 2 * (size_t)cJSON_GetArraySize(offsets) + 2, sizeof *q->offsets);
  if (!q->offsets) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the questions");
  q->first = -1;
  cJSON_ArrayForEach(pair, offsets) {
    const cJSON *begin = cJSON_GetArrayItem(pair, 0), *end = cJSON_GetArrayItem(pair, 1);
    if (!cJSON_IsNumber(begin) || !cJSON_IsNumber(end) || !(begin->valuedouble >= 0) || !(end->valuedouble <= bytes) ||
        !(begin->valuedouble <= end->valuedouble))
      return tws_json_fail(json, pair, err, "\"offsets\" are those that twinspeed convert samples writes",
                           "a pair of \"offsets\" is no range of the context's bytes");
    if (q->first < 0 && end->valuedouble > begin->valuedouble) q->first = q->tokens;
    q->offsets[2 * q->tokens] = (int64_t)begin->valuedouble;
    q->offsets[2 * q->tokens + 1] = (int64_t)end->valuedouble;
    q->tokens++;
  }
  if (q->first < 0) q->first = q->tokens;
  return TWS_OK;
}

static tws_code add_question(tws_question_list *list, const tws_json *json, tws_error *err) {
  const char *question = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json->root, "question")),
             *context = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json->root, "context")),
             *id = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json->root, "id"));
  const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(json->root, "offsets");
  char number[24];
  if (!context || (!question && !offsets))
    return tws_json_fail(json, json->root, err, "all lines of a file of questions have both",
                         "a line without the texts \"question\" and \"context\"");
  if (tws_reserve(&list->items, &list->capacity, list->count + 1, sizeof *list->items))
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the questions");
  snprintf(number, sizeof number, "%zu", list->count + 1);
  tws_question one = {.id = tws_arena_strdup(list->arena, id ? id : number),
                      .context = tws_arena_strdup(list->arena, context),
                      .first = question ? (int64_t)strlen(question) : 0};
  if (!one.id || !one.context) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the questions");
  if (offsets) TWS_TRY(read_offsets(list, json, offsets, &one, err));
  list->unanswerable |= cJSON_GetArraySize(gold_list(json->root)) == 0;
  list->items[list->count++] = one;
  return TWS_OK;
}

tws_code tws_questions_read(const char *path, tws_question_list *out, tws_error *err) {
  line_file f;
  int are_questions = 1;
  *out = (tws_question_list){.arena = tws_arena_create()};
  if (!out->arena) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the questions");
  TWS_TRY(open_lines(path, &f, err));
  tws_code code = TWS_OK;
  for (const char *line; code == TWS_OK && are_questions && (line = next_line(&f));) {
    tws_json *json;
    code = parse_line(&f, line, &json, err);
    if (code != TWS_OK) break;
    if (out->count == 0) are_questions = cJSON_HasObjectItem(json->root, "context");
    if (are_questions) code = add_question(out, json, err);
    tws_json_destroy(json);
  }
  tws_free(f.text);
  return code;
}

void tws_questions_free(tws_question_list *list) {
  tws_free(list->items);
  tws_arena_destroy(list->arena);
}

/* ---- classes ---- */

/* A file with a class in each line. */
typedef struct class_file {
  line_file lines;
  int column; /* of a file with columns: index of the one that has the class; -1: lines are objects */
  char class[256];
} class_file;

static tws_code bad_line(const class_file *f, const char *what, tws_error *err) {
  return tws_fail(err, TWS_INVALID,
                  "a line is {\"label\": class}; a .tsv file has a header with the column label or prediction",
                  "%s, line %lld: %s", f->lines.path, (long long)f->lines.line, what);
}

static tws_code find_column(class_file *f, tws_error *err) {
  char *line = next_line(&f->lines);
  int column = 0;
  f->column = -1;
  for (char *at = line, *name; at && (name = strsep(&at, "\t")); column++)
    if (strcmp(name, "label") == 0 || strcmp(name, "prediction") == 0) f->column = column;
  return f->column >= 0 ? TWS_OK : bad_line(f, "its header has no column label or prediction", err);
}

static tws_code open_classes(const char *path, class_file *f, tws_error *err) {
  f->column = -1;
  TWS_TRY(open_lines(path, &f->lines, err));
  const tws_code code = ends_with(path, ".tsv") ? find_column(f, err) : TWS_OK;
  if (code != TWS_OK) tws_free(f->lines.text);
  return code;
}

static tws_code take_class(class_file *f, const char *text, tws_error *err) {
  if (strlen(text) >= sizeof f->class) return bad_line(f, "the name of its class has more than 255 bytes", err);
  snprintf(f->class, sizeof f->class, "%s", text);
  return TWS_OK;
}

static tws_code read_object(class_file *f, const char *line, tws_error *err) {
  tws_json *json;
  char number[32];
  TWS_TRY(parse_line(&f->lines, line, &json, err));
  const cJSON *label = cJSON_GetObjectItemCaseSensitive(json->root, "label");
  if (cJSON_IsNumber(label)) snprintf(number, sizeof number, "%.15g", label->valuedouble);
  const tws_code code = cJSON_IsNumber(label)   ? take_class(f, number, err)
                        : cJSON_IsString(label) ? take_class(f, label->valuestring, err)
                                                : bad_line(f, "there is no \"label\" that is a number or a text", err);
  tws_json_destroy(json);
  return code;
}

/* Reads the next class; *more is 0 at the end of the file. */
static tws_code next_class(class_file *f, int *more, tws_error *err) {
  char *line = next_line(&f->lines);
  *more = line != NULL;
  if (!line) return TWS_OK;
  if (f->column < 0) return read_object(f, line, err);
  const char *text = NULL;
  for (int i = 0; i <= f->column; i++) text = strsep(&line, "\t");
  return text ? take_class(f, text, err) : bad_line(f, "it has fewer columns than the header", err);
}

/* Numbers of lines: all, those whose prediction equals the class, and, for the classes 0 and 1, those of each class and
 * prediction. */
typedef struct counts {
  int64_t all, equal, of[2][2]; /* of[class][prediction] */
  int two;
} counts;

static int binary(const char *class) {
  return strcmp(class, "0") == 0 ? 0 : strcmp(class, "1") == 0 ? 1 : -1;
}

static void count_pair(counts *c, const char *class, const char *prediction) {
  const int a = binary(class), b = binary(prediction);
  c->all++;
  c->equal += strcmp(class, prediction) == 0;
  if (a < 0 || b < 0)
    c->two = 0;
  else
    c->of[a][b]++;
}

static tws_class_scores scores_of(const counts *c) {
  tws_class_scores s = {.count = c->all, .two_classes = c->two};
  s.accuracy = 100 * (double)c->equal / (double)c->all;
  if (!c->two) return s;
  const double tp = (double)c->of[1][1], tn = (double)c->of[0][0], fp = (double)c->of[0][1], fn = (double)c->of[1][0];
  const double marginals = sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn));
  s.f1 = tp > 0 ? 100 * 2 * tp / (2 * tp + fp + fn) : 0;
  s.matthews = marginals > 0 ? 100 * (tp * tn - fp * fn) / marginals : 0;
  return s;
}

static tws_code count_classes(class_file *labels, class_file *predictions, counts *c, tws_error *err) {
  for (;;) {
    int more, predicted;
    TWS_TRY(next_class(labels, &more, err));
    TWS_TRY(next_class(predictions, &predicted, err));
    if (more != predicted)
      return tws_fail(err, TWS_INVALID, "the lines of both have to be the same samples in the same order",
                      "%s has %s lines than %s", predictions->lines.path, more ? "fewer" : "more", labels->lines.path);
    if (!more) break;
    count_pair(c, labels->class, predictions->class);
  }
  return c->all > 0 ? TWS_OK : tws_fail(err, TWS_INVALID, NULL, "%s: it has no classes", labels->lines.path);
}

tws_code tws_class_score_files(const char *labels, const char *predictions, tws_class_scores *out, tws_error *err) {
  class_file a, b;
  counts c = {.two = 1};
  *out = (tws_class_scores){0};
  TWS_TRY(open_classes(labels, &a, err));
  tws_code code = open_classes(predictions, &b, err);
  if (code == TWS_OK) {
    code = count_classes(&a, &b, &c, err);
    tws_free(b.lines.text);
  }
  tws_free(a.lines.text);
  if (code == TWS_OK) *out = scores_of(&c);
  return code;
}
