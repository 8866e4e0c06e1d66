/* Scores of answers and classes against those of public packages (tests/golden/answer_scores.json): 200 made answers
 * with articles, punctuation, other alphabets, empty answers and several gold ones; whole files; faults. */
#include <math.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/scored.h"
#include "tests/folder.h"
#include "tests/members.h"
#include "tests/suite.h"
#include "tokens/answer_score.h"

static tws_json *golden_json;
static const cJSON *golden;

static void read_golden(void) {
  golden_json = golden_file("answer_scores.json");
  golden = golden_json->root;
}

static void free_golden(void) {
  tws_json_destroy(golden_json);
}

static const cJSON *at(const cJSON *list, int i) {
  return cJSON_GetArrayItem(list, i);
}

static void write_file(const char *path, const char *text) {
  FILE *file = fopen(path, "w");
  ck_assert(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void write_json(const char *path, const cJSON *json) {
  char *text = cJSON_PrintUnformatted(json);
  write_file(path, text);
  cJSON_free(text);
}

/* Writes the questions as SQuAD publishes them, or as lines, and the predictions. */
static void write_questions(const cJSON *list, int lines) {
  cJSON *predictions = cJSON_CreateObject(), *data = cJSON_CreateArray(), *questions = cJSON_CreateArray();
  const cJSON *row, *text;
  FILE *file = fopen(in_folder("questions.jsonl"), "w");
  cJSON_ArrayForEach(row, list) {
    cJSON *question = cJSON_CreateObject(), *answers = cJSON_CreateArray(), *texts = cJSON_CreateObject();
    cJSON_ArrayForEach(text, at(row, 1)) {
      cJSON *answer = cJSON_CreateObject();
      cJSON_AddStringToObject(answer, "text", text->valuestring);
      cJSON_AddNumberToObject(answer, "answer_start", 0);
      cJSON_AddItemToArray(answers, answer);
    }
    cJSON_AddStringToObject(question, "id", at(row, 0)->valuestring);
    if (lines) cJSON_AddItemToObject(texts, "text", cJSON_Duplicate(at(row, 1), 1));
    if (lines) cJSON_AddItemToObject(question, "answers", texts);
    if (!lines) cJSON_AddItemToObject(question, "answers", answers);
    if (lines) cJSON_Delete(answers);
    if (!lines) cJSON_Delete(texts);
    cJSON_AddStringToObject(predictions, at(row, 0)->valuestring, at(row, 2)->valuestring);
    char *line = cJSON_PrintUnformatted(question);
    fprintf(file, "%s\n", line);
    cJSON_free(line);
    cJSON_AddItemToArray(questions, question);
  }
  ck_assert(fclose(file) == 0);
  write_json(in_folder("predictions.json"), predictions);
  cJSON *root = cJSON_CreateObject(), *article = cJSON_CreateObject(), *paragraph = cJSON_CreateObject(),
        *paragraphs = cJSON_CreateArray();
  cJSON_AddItemToObject(paragraph, "qas", questions);
  cJSON_AddItemToArray(paragraphs, paragraph);
  cJSON_AddItemToObject(article, "paragraphs", paragraphs);
  cJSON_AddItemToArray(data, article);
  cJSON_AddItemToObject(root, "data", data);
  write_json(in_folder("questions.json"), root);
  cJSON_Delete(root);
  cJSON_Delete(predictions);
}

START_TEST(answers_score_as_published) {
  const int version = _i;
  const cJSON *row, *text;
  cJSON_ArrayForEach(row, cJSON_GetObjectItem(golden, version == 2 ? "v2" : "v1")) {
    const char *gold[8];
    size_t count = 0;
    tws_answer_score score;
    tws_error err = {0};
    cJSON_ArrayForEach(text, at(row, 1)) gold[count++] = text->valuestring;
    ck_assert(tws_answer_score_of(at(row, 2)->valuestring, gold, count, version, &score, &err) == TWS_OK);
    ck_assert_msg(score.exact == at(row, 3)->valuedouble && fabs(score.f1 - at(row, 4)->valuedouble) < 1e-6,
                  "%s: \"%s\": %g %g instead of %g %g", at(row, 0)->valuestring, at(row, 2)->valuestring, score.exact,
                  score.f1, at(row, 3)->valuedouble, at(row, 4)->valuedouble);
  }
}
END_TEST

START_TEST(files_score_as_published) {
  static const char *const names[2][3] = {{"v1", "exact_match", "f1"}, {"v2", "exact", "f1"}};
  char line[700], scores[16];
  snprintf(scores, sizeof scores, "%s_scores", names[_i / 2][0]);
  const cJSON *want = cJSON_GetObjectItem(golden, scores);
  write_questions(cJSON_GetObjectItem(golden, names[_i / 2][0]), _i % 2);
  snprintf(line, sizeof line, "--squad %s --predictions %s", in_folder(_i % 2 ? "questions.jsonl" : "questions.json"),
           in_folder("predictions.json"));
  ck_assert_double_eq_tol(scored(line, "exact_match"), cJSON_GetObjectItem(want, names[_i / 2][1])->valuedouble, 1e-4);
  ck_assert_double_eq_tol(scored(line, "f1"), cJSON_GetObjectItem(want, "f1")->valuedouble, 1e-4);
  ck_assert(scored(line, "squad_version") == 1 + _i / 2);
}
END_TEST

/* The version of the arithmetic depends on all questions, and yet the file is read once: it may be a named pipe. */
START_TEST(questions_come_through_a_pipe) {
  static const char *const forms[] = {"lines.jsonl", "article.json"};
  static const char line[] = "{\"id\":\"1\",\"answers\":{\"text\":[\"two words\"]}}\n{\"id\":\"2\",\"answers\":[]}\n",
                    article[] =
                        "{\"data\":[{\"paragraphs\":[{\"qas\":[{\"id\":\"1\",\"answers\":[{\"text\":\"two words\"}]},"
                        "{\"id\":\"2\",\"answers\":[]}]}]}]}";
  char options[700];
  write_file(in_folder("guesses.json"), "{\"1\":\"two\",\"2\":\"\"}");
  for (int i = 0; i < 2; i++) {
    ck_assert(mkfifo(in_folder(forms[i]), 0600) == 0);
    const pid_t writer = fork();
    if (writer == 0) {
      FILE *file = fopen(in_folder(forms[i]), "w");
      _exit(!file || fputs(i ? article : line, file) < 0 || fclose(file) != 0);
    }
    snprintf(options, sizeof options, "--squad %s --predictions %s", in_folder(forms[i]), in_folder("guesses.json"));
    ck_assert_double_eq_tol(scored(options, "exact_match"), 50, 1e-9);
    ck_assert(waitpid(writer, NULL, 0) == writer);
  }
}
END_TEST

START_TEST(classes_score_as_published) {
  const cJSON *pair, *want = cJSON_GetObjectItem(golden, "class_scores");
  char line[700];
  for (int tabs = 0; tabs < 2; tabs++) {
    FILE *labels = fopen(in_folder(tabs ? "labels.tsv" : "labels.jsonl"), "w"),
         *predictions = fopen(in_folder(tabs ? "predictions.tsv" : "predictions.jsonl"), "w");
    if (tabs) fputs("sentence\tlabel\n", labels), fputs("index\tprediction\n", predictions);
    int n = 0;
    cJSON_ArrayForEach(pair, cJSON_GetObjectItem(golden, "classes")) {
      fprintf(labels, tabs ? "a text\t%d\n" : "{\"input\":[1],\"label\":%d}\n", at(pair, 0)->valueint);
      if (tabs) fprintf(predictions, "%d\t", n++);
      fprintf(predictions, tabs ? "%d\n" : "{\"label\":%d}\n", at(pair, 1)->valueint);
    }
    fclose(labels);
    fclose(predictions);
    snprintf(line, sizeof line, "--classes %s --predictions %s", in_folder(tabs ? "labels.tsv" : "labels.jsonl"),
             in_folder(tabs ? "predictions.tsv" : "predictions.jsonl"));
    ck_assert_double_eq_tol(scored(line, "accuracy"), cJSON_GetObjectItem(want, "accuracy")->valuedouble, 1e-9);
    ck_assert_double_eq_tol(scored(line, "f1"), cJSON_GetObjectItem(want, "f1")->valuedouble, 1e-9);
    ck_assert_double_eq_tol(scored(line, "matthews_correlation"), cJSON_GetObjectItem(want, "matthews")->valuedouble,
                            1e-9);
  }
}
END_TEST

START_TEST(faults_are_told) {
  static const struct {
    const char *questions, *predictions, *says;
  } wrong[] = {
      {"{\"data\":[]}", "{}", "it has no questions"},
      {"{\"data\":[{\"paragraphs\":[{\"qas\":[{\"answers\":[]}]}]}]}", "{}", "a question without the text \"id\""},
      {"{\"data\":[{\"paragraphs\":[{\"qas\":[{\"id\":\"1\"}]}]}]}", "{}", "a question without \"answers\""},
      {"{\"data\":[{\"paragraphs\":[{\"qas\":[{\"id\":\"1\",\"answers\":[3]}]}]}]}", "{}", "an answer that is no text"},
      {"{\"data\":[{\"paragraphs\":[{\"qas\":[{\"id\":\"1\",\"answers\":[]},{\"id\":\"1\",\"answers\":[]}]}]}]}",
       "{\"1\":\"\"}", "two questions have the id \"1\""},
      {"{\"data\":[{\"paragraphs\":[{\"qas\":[{\"id\":\"1\",\"answers\":[]}]}]}]}", "{\"2\":\"\"}",
       "has no prediction of any"},
      {"{\"data\":[{\"paragraphs\":[{\"qas\":[{\"id\":\"1\",\"answers\":[]}]}]}]}", "{\"1\":7}", "is no text"},
      {"[]", "{}", "there is no list \"data\""},
      {"{\"data\":[]}", "[]", "the predictions are no object"}};
  char line[700];
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    write_file(in_folder("wrong.json"), wrong[i].questions);
    write_file(in_folder("guess.json"), wrong[i].predictions);
    snprintf(line, sizeof line, "score --squad %s --predictions %s", in_folder("wrong.json"), in_folder("guess.json"));
    assert_says(line, 3, wrong[i].says);
  }
  write_file(in_folder("a.jsonl"), "{\"label\":1}\n\n{\"label\":\"x\"}\n");
  write_file(in_folder("b.jsonl"), "{\"label\":1}\n");
  write_file(in_folder("c.tsv"), "text\tclass\n");
  write_file(in_folder("d.tsv"), "text\tlabel\nonly\n");
  static const char *const classes[][3] = {{"a.jsonl", "b.jsonl", "has fewer lines than"},
                                           {"a.jsonl", "c.tsv", "line 1: its header has no column"},
                                           {"b.jsonl", "d.tsv", "line 2: it has fewer columns"}};
  for (int i = 0; i < 3; i++) {
    snprintf(line, sizeof line, "score --classes %s --predictions %s", in_folder(classes[i][0]),
             in_folder(classes[i][1]));
    assert_says(line, 3, classes[i][2]);
  }
  assert_says("score --predictions x", 2, "give either --squad or --classes");
}
END_TEST

int main(void) {
  Suite *suite = suite_create("answer_score");
  TCase *tests = tcase_create("answer_score");
  tcase_add_unchecked_fixture(tests, read_golden, free_golden);
  tcase_add_unchecked_fixture(tests, make_folder, remove_folder);
  tcase_add_loop_test(tests, answers_score_as_published, 1, 3);
  tcase_add_loop_test(tests, files_score_as_published, 0, 4);
  tcase_add_test(tests, questions_come_through_a_pipe);
  tcase_add_test(tests, classes_score_as_published);
  tcase_add_test(tests, faults_are_told);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
