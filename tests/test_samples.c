/* convert samples: questions and labelled texts become the tokens, segments, offsets and spans that the tokenizers
 * library has for them (tests/golden/samples.json); a model that is trained on them answers in texts; faults. */
/* ctest: mpi */
#include "tests/answers.h"
#include "tests/members.h"
#include "tests/scored.h"
#include "tests/train.h"

static const char *const kinds[] = {"wordpiece", "bytes"};
static tws_json *golden;

static void open_golden(void) {
  golden = golden_file("samples.json");
  for (int k = 0; k < 2; k++) {
    char name[40];
    snprintf(name, sizeof name, "%s.json", kinds[k]);
    write_text(in_folder(name), member(member(golden->root, kinds[k]), "tokenizer")->valuestring);
  }
}

static void write_json(const char *path, const cJSON *json) {
  char *text = cJSON_PrintUnformatted(json);
  write_text(path, text);
  cJSON_free(text);
}

/* Returns a question in the form of SQuAD's file or of lines. */
static cJSON *question_of(const cJSON *one, int i, int line) {
  const cJSON *answer = cJSON_GetObjectItem(one, "answer");
  cJSON *question = cJSON_CreateObject();
  char id[16];
  snprintf(id, sizeof id, "q%d", i);
  cJSON_AddStringToObject(question, "id", id);
  cJSON_AddStringToObject(question, "question", member(one, "question")->valuestring);
  if (line) cJSON_AddStringToObject(question, "context", member(one, "context")->valuestring);
  cJSON *answers = line ? cJSON_AddObjectToObject(question, "answers") : cJSON_AddArrayToObject(question, "answers");
  cJSON *texts = line ? cJSON_AddArrayToObject(answers, "text") : NULL,
        *starts = line ? cJSON_AddArrayToObject(answers, "answer_start") : NULL;
  if (!cJSON_IsString(answer)) return question;
  if (line) {
    cJSON_AddItemToArray(texts, cJSON_CreateString(answer->valuestring));
    cJSON_AddItemToArray(starts, cJSON_CreateNumber(number(one, "start")));
  } else {
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "text", answer->valuestring);
    cJSON_AddNumberToObject(item, "answer_start", number(one, "start"));
    cJSON_AddItemToArray(answers, item);
  }
  return question;
}

/* Writes the golden file's questions: questions.json as SQuAD publishes them, and questions.jsonl. */
static void write_questions(const char *kind) {
  const cJSON *one;
  cJSON *root = cJSON_CreateObject(), *article = cJSON_CreateObject(), *paragraphs, *data;
  FILE *lines = fopen(in_folder("questions.jsonl"), "w");
  int i = 0;
  data = cJSON_AddArrayToObject(root, "data");
  cJSON_AddItemToArray(data, article);
  paragraphs = cJSON_AddArrayToObject(article, "paragraphs");
  cJSON_ArrayForEach(one, member(member(golden->root, kind), "samples")) {
    cJSON *paragraph = cJSON_CreateObject(), *line = question_of(one, i, 1);
    cJSON_AddStringToObject(paragraph, "context", member(one, "context")->valuestring);
    cJSON_AddItemToArray(cJSON_AddArrayToObject(paragraph, "qas"), question_of(one, i++, 0));
    cJSON_AddItemToArray(paragraphs, paragraph);
    char *text = cJSON_PrintUnformatted(line);
    fprintf(lines, "%s\n", text);
    cJSON_free(text);
    cJSON_Delete(line);
  }
  fclose(lines);
  write_json(in_folder("questions.json"), root);
  cJSON_Delete(root);
}

static int same_numbers(const cJSON *a, const cJSON *b) {
  return cJSON_IsArray(a) && cJSON_IsArray(b) && cJSON_Compare(a, b, 1);
}

/* Returns 1 if offsets are the library's; those of words that are not ASCII may be the whole word. */
static int same_places(const cJSON *got, const cJSON *want, const char *context) {
  int same = cJSON_GetArraySize(got) == cJSON_GetArraySize(want);
  for (int i = 0; i < cJSON_GetArraySize(got) && same; i++) {
    const cJSON *a = cJSON_GetArrayItem(got, i), *b = cJSON_GetArrayItem(want, i);
    const int begin = cJSON_GetArrayItem(a, 0)->valueint, end = cJSON_GetArrayItem(a, 1)->valueint;
    int ascii = 1;
    for (int c = begin; c < end; c++) ascii &= (unsigned char)context[c] < 128;
    same = ascii ? same_numbers(a, b)
                 : begin <= cJSON_GetArrayItem(b, 0)->valueint && end >= cJSON_GetArrayItem(b, 1)->valueint;
  }
  return same;
}

static void convert(const char *kind, const char *from, const char *to, const char *more) {
  command_result r = twinspeed("convert samples %s/%s %s/%s --tokenizer %s/%s.json -f %s", folder, from, folder, to,
                               folder, kind, more);
  ck_assert_msg(r.status == 0, "%s: %s", from, r.err);
  command_free(&r);
}

START_TEST(tokens_are_the_librarys) {
  const char *kind = kinds[_i % 2];
  const cJSON *samples = member(member(golden->root, kind), "samples");
  write_questions(kind);
  convert(kind, _i / 2 ? "questions.json" : "questions.jsonl", "samples.jsonl", "");
  FILE *file = fopen(in_folder("samples.jsonl"), "r");
  char *line = NULL;
  size_t room = 0;
  for (int i = 0; i < cJSON_GetArraySize(samples); i++) {
    const cJSON *want = cJSON_GetArrayItem(samples, i);
    ck_assert(getline(&line, &room, file) > 0);
    cJSON *got = cJSON_Parse(line);
    ck_assert_msg(same_numbers(member(got, "input"), member(want, "ids")), "%s %d: %s", kind, i, line);
    ck_assert_msg(same_numbers(member(got, "types"), member(want, "types")), "%s %d: %s", kind, i, line);
    ck_assert_msg(same_places(member(got, "offsets"), member(want, "offsets"), member(want, "context")->valuestring),
                  "%s %d: %s", kind, i, line);
    ck_assert_msg(same_numbers(member(got, "span"), member(want, "span")), "%s %d: %s", kind, i, line);
    cJSON_Delete(got);
  }
  ck_assert(getline(&line, &room, file) < 0);
  free(line);
  fclose(file);
}
END_TEST

/* Two texts with a label are joined as a question and its context are. */
START_TEST(labelled_texts_are_joined) {
  const cJSON *samples = member(member(golden->root, kinds[_i]), "samples"), *one;
  FILE *file = fopen(in_folder("pairs.jsonl"), "w");
  cJSON_ArrayForEach(one, samples) {
    cJSON *line = cJSON_CreateObject();
    cJSON_AddStringToObject(line, "sentence1", member(one, "question")->valuestring);
    cJSON_AddStringToObject(line, "sentence2", member(one, "context")->valuestring);
    cJSON_AddNumberToObject(line, "label", 1);
    char *text = cJSON_PrintUnformatted(line);
    fprintf(file, "%s\n", text);
    cJSON_free(text);
    cJSON_Delete(line);
  }
  fclose(file);
  convert(kinds[_i], "pairs.jsonl", "samples.jsonl", "");
  file = fopen(in_folder("samples.jsonl"), "r");
  char *line = NULL;
  size_t room = 0;
  cJSON_ArrayForEach(one, samples) {
    ck_assert(getline(&line, &room, file) > 0);
    cJSON *got = cJSON_Parse(line);
    ck_assert(same_numbers(member(got, "input"), member(one, "ids")) && number(got, "label") == 1);
    ck_assert(same_numbers(member(got, "types"), member(one, "types")) && !cJSON_HasObjectItem(got, "offsets"));
    cJSON_Delete(got);
  }
  free(line);
  fclose(file);
}
END_TEST

/* A small BERT that has learnt the questions answers them in words of their contexts. */
START_TEST(answers_are_texts) {
  char line[900];
  write_questions("wordpiece");
  convert("wordpiece", "questions.json", "train.jsonl", "--seq 64");
  write_text(in_folder("qa.json"),
             "{\"model_type\":\"bert\",\"architectures\":[\"BertForQuestionAnswering\"],\"vocab_size\":180,"
             "\"hidden_size\":32,\"num_hidden_layers\":2,\"num_attention_heads\":2,\"intermediate_size\":64,"
             "\"max_position_embeddings\":64,\"type_vocab_size\":2,\"hidden_dropout_prob\":0,"
             "\"attention_probs_dropout_prob\":0}");
  command_result r = twinspeed(
      "train -m %s/qa.json --data %s/train.jsonl --seq 64 --micro-batch 14 --steps 200 --threads 1 --set "
      "optimizer.type=AdamW --set optimizer.params.lr=0.003 --save %s/run --save-every 200 --quiet",
      folder, folder, folder);
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  r = twinspeed("predict -m %s/qa.json --resume %s/run --data %s/train.jsonl --seq 64 -o %s/answers.json", folder,
                folder, folder, folder);
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  snprintf(line, sizeof line, "--squad %s/questions.json --predictions %s/answers.json", folder, folder);
  ck_assert_double_ge(scored(line, "exact_match"), 90);
  ck_assert_double_ge(scored(line, "f1"), 95);
  ck_assert(scored(line, "squad_version") == 2);
}
END_TEST

START_TEST(faults_are_told) {
  static const char *const wrong[][2] = {
      {"{\"text\":\"a\"}", "neither a question nor a labelled text"},
      {"{\"sentence1\":\"a\",\"label\":1}", "neither a question nor a labelled text"},
      {"{\"label\":1}", "neither a question nor a labelled text"},
      {"{\"question\":\"a\",\"context\":\"\"}", "no texts \"question\" and \"context\""},
      {"{\"context\":\"a\"}", "no texts \"question\" and \"context\""},
      {"{\"question\":\"a\",\"context\":\"b c\",\"answers\":{\"text\":[\"c\"],\"answer_start\":[1]}}",
       "does not have the answer \"c\" where that starts"},
      {"{\"question\":\"a\",\"context\":\"b c\",\"answers\":{\"text\":[\"c\"],\"answer_start\":[]}}",
       "does not have the answer \"c\" where that starts"},
      {"[1]", "line 1"},
      {"{\"question\":\"who is it that is there\",\"context\":\"b c\",\"answers\":{\"text\":[],\"answer_start\":[]}}",
       "tokens before the one that is truncated"}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    write_text(in_folder("wrong.jsonl"), wrong[i][0]);
    command_result r = twinspeed("convert samples %s/wrong.jsonl %s/out.jsonl --tokenizer %s/wordpiece.json --seq 8",
                                 folder, folder, folder);
    ck_assert_msg(r.status == 3 && strstr(r.err, wrong[i][1]), "%s: %d, %s", wrong[i][0], r.status, r.err);
    command_free(&r);
  }
  write_text(in_folder("empty.jsonl"), "\n");
  command_result r =
      twinspeed("convert samples %s/empty.jsonl %s/out.jsonl --tokenizer %s/wordpiece.json", folder, folder, folder);
  ck_assert_msg(r.status == 3 && strstr(r.err, "it has no samples"), "%s", r.err);
  command_free(&r);
  r = twinspeed("convert samples %s/empty.jsonl %s/out.jsonl", folder, folder);
  ck_assert_msg(r.status == 2 && strstr(r.err, "no tokenizer was given"), "%s", r.err);
  command_free(&r);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("samples");
  TCase *tests = tcase_create("samples");
  tcase_add_unchecked_fixture(tests, open_golden, NULL);
  tcase_add_loop_test(tests, tokens_are_the_librarys, 0, 4);
  tcase_add_loop_test(tests, labelled_texts_are_joined, 0, 2);
  tcase_add_test(tests, answers_are_texts);
  tcase_add_test(tests, faults_are_told);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
