/* The verb predict: answers, classes and tags of small models trained on learnable tasks, and their scores. */
/* ctest: mpi sampled */
#include <cjson/cJSON.h>

#include "tests/scored.h"
#include "tests/draw.h"
#include "tests/train.h"

#define SIZES                                                                                                         \
  "\"vocab_size\":256,\"hidden_size\":32,\"num_hidden_layers\":2,\"num_attention_heads\":2,\"intermediate_size\":64," \
  "\"max_position_embeddings\":64,\"type_vocab_size\":2,\"hidden_dropout_prob\":0,\"attention_probs_dropout_prob\":0"

static void write_file(const char *path, const char *text) {
  FILE *file = fopen(path, "w");
  ck_assert(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void write_model(const char *name, const char *class, const char *more) {
  char text[700];
  snprintf(text, sizeof text, "{\"model_type\":\"bert\",\"architectures\":[\"BertFor%s\"]," SIZES "%s}", class, more);
  write_file(in_folder(name), text);
}

/* Writes five words of letters to text; where number is not NULL, one word is that number, and *start its position. */
static void make_words(uint64_t seed, const char *number, char *text, int *start) {
  const int place = draw(seed, 1, 0, 4);
  size_t used = 0;
  for (int w = 0; w < 5; w++) {
    if (w > 0) text[used++] = ' ';
    if (w == place && number) *start = (int)used;
    if (w == place && number) used += (size_t)sprintf(text + used, "%s", number);
    const int letters = w == place && number ? 0 : draw(seed, 10 + (uint64_t)w, 1, 5);
    for (int i = 0; i < letters; i++) text[used++] = (char)draw(seed, 100 + (uint64_t)(w * 10 + i), 'a', 'h');
  }
  text[used] = 0;
}

/* Writes questions whose answer is the number in the context; every `without`-th question has no answer (0: all have
 * one). */
static void write_questions(const char *name, uint64_t seed, int count, int without) {
  FILE *file = fopen(in_folder(name), "w");
  for (int i = 0; i < count; i++, seed++) {
    char text[80], number[8];
    int start = 0;
    const int has = without == 0 || i % without != 0;
    snprintf(number, sizeof number, "%d", draw(seed, 0, 1, 9999));
    make_words(seed, has ? number : NULL, text, &start);
    fprintf(file, "{\"id\":\"q%d\",\"question\":\"no?\",\"context\":\"\xc3\xa9%s\",\"answers\":", i, text);
    if (has)
      fprintf(file, "{\"text\":[\"%s\"],\"answer_start\":[%d]}}\n", number, start + 1);
    else
      fprintf(file, "{\"text\":[],\"answer_start\":[]}}\n");
  }
  ck_assert(fclose(file) == 0);
}

/* Writes texts of class 1 if they contain a number, else 0; with `tags` the class of each byte is 1 for digits. */
static void write_texts(const char *name, uint64_t seed, int count, int tags) {
  FILE *file = fopen(in_folder(name), "w");
  for (int i = 0; i < count; i++, seed++) {
    char text[80];
    int start;
    const int has = draw(seed, 3, 0, 1);
    make_words(seed, has ? "42" : NULL, text, &start);
    fprintf(file, "{\"input\":\"%s\",", text);
    if (!tags) fprintf(file, "\"label\":%d}\n", has);
    for (const char *c = text; tags && *c; c++)
      fprintf(file, "%s%d", c == text ? "\"labels\":[" : ",", *c >= '0' && *c <= '9');
    if (tags) fprintf(file, "]}\n");
  }
  ck_assert(fclose(file) == 0);
}

static void run(int status, const char *says, const char *line) {
  command_result r = twinspeed("%s", line);
  ck_assert_msg(r.status == status && (strstr(r.out, says) || strstr(r.err, says)), "%s: %d, %s%s", line, r.status,
                r.out, r.err);
  command_free(&r);
}

static void train_on(const char *model, const char *data, const char *to, int ranks, int steps) {
  char line[900];
  snprintf(line, sizeof line,
           "train -m %s --data %s --seq 48 -n %d --stage %d --micro-batch %d --steps %d --threads 1 --set "
           "optimizer.type=AdamW --set optimizer.params.lr=0.003 --save %s --save-every %d --quiet",
           in_folder(model), in_folder(data), ranks, ranks > 1 ? 2 : 0, 16 / ranks, steps, in_folder(to), steps);
  run(0, "loss", line);
}

START_TEST(answers_are_found) {
  char line[900];
  const int without = _i ? 3 : 0;
  write_model("qa.json", "QuestionAnswering", "");
  write_questions("train.jsonl", 1, 512, without);
  write_questions("dev.jsonl", 5000, 60, without);
  train_on("qa.json", "train.jsonl", _i ? "none" : "all", 2, 400);
  snprintf(line, sizeof line, "predict -m %s --resume %s --data %s --seq 48 -o %s", in_folder("qa.json"),
           in_folder(_i ? "none" : "all"), in_folder("dev.jsonl"), in_folder("answers.json"));
  run(0, "60 samples", line);
  run(2, "answers.json exists", line);
  snprintf(line, sizeof line, "--squad %s --predictions %s", in_folder("dev.jsonl"), in_folder("answers.json"));
  ck_assert_double_ge(scored(line, "exact_match"), 85);
  ck_assert(scored(line, "squad_version") == (_i ? 2 : 1));
  remove(in_folder("answers.json"));
}
END_TEST

START_TEST(classes_are_found) {
  char line[900];
  write_model("classes.json", "SequenceClassification", ",\"num_labels\":2");
  write_texts("texts.jsonl", 1, 512, 0);
  write_texts("other.jsonl", 7000, 60, 0);
  train_on("classes.json", "texts.jsonl", "classes", 1, 200);
  snprintf(line, sizeof line, "predict --json -m %s --resume %s --data %s --seq 48 -o %s", in_folder("classes.json"),
           in_folder("classes"), in_folder("other.jsonl"), in_folder("labels.jsonl"));
  command_result r = twinspeed("%s", line);
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-predict-1");
  const double accuracy = cJSON_GetObjectItem(json, "accuracy")->valuedouble;
  ck_assert(cJSON_GetObjectItem(json, "samples")->valuedouble == 60 && accuracy >= 85);
  snprintf(line, sizeof line, "--classes %s --predictions %s", in_folder("other.jsonl"), in_folder("labels.jsonl"));
  ck_assert_double_eq_tol(scored(line, "accuracy"), accuracy, 1e-9); /* the order is that of the file */
  cJSON_Delete(json);
  command_free(&r);
}
END_TEST

START_TEST(tags_are_found) {
  char line[900];
  write_model("tags.json", "TokenClassification", ",\"num_labels\":2");
  write_texts("tags.jsonl", 1, 256, 1);
  train_on("tags.json", "tags.jsonl", "tags", 1, 60);
  snprintf(line, sizeof line, "predict --json -m %s --resume %s --data %s --seq 48", in_folder("tags.json"),
           in_folder("tags"), in_folder("tags.jsonl"));
  command_result r = twinspeed("%s", line);
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-predict-1");
  const cJSON *predictions = cJSON_GetObjectItem(json, "predictions"), *item, *label;
  FILE *file = fopen(in_folder("tags.jsonl"), "r");
  char text[1024];
  int tokens = 0, right = 0;
  cJSON_ArrayForEach(item, predictions) {
    ck_assert_ptr_nonnull(fgets(text, sizeof text, file));
    const char *c = strchr(text, ':') + 2;
    cJSON_ArrayForEach(label, cJSON_GetObjectItem(item, "labels")) {
      right += label->valueint == (*c >= '0' && *c <= '9');
      tokens++, c++;
    }
    ck_assert_msg(*c == '"', "not as many labels as tokens");
  }
  fclose(file);
  ck_assert_msg(right >= 0.98 * tokens, "%d of %d", right, tokens);
  cJSON_Delete(json);
  command_free(&r);
}
END_TEST

START_TEST(faults_are_told) {
  char line[900];
  write_model("qa.json", "QuestionAnswering", "");
  run(2, "no weights were given", "predict -m tiny-gpt2 --data x.jsonl");
  run(2, "no --data was given", "predict -m tiny-gpt2 --resume run");
  run(3, "by one rank", "predict -m tiny-gpt2 --resume run --data x.jsonl -n 2");
  snprintf(line, sizeof line, "predict -m tiny-gpt2 --resume %s --data x.jsonl", folder);
  run(3, "no classes or spans", line);
  write_file(in_folder("half.jsonl"),
             "{\"question\":\"a\",\"context\":\"b\",\"answers\":{\"text\":[],\"answer_start\":[]}}\n{}\n");
  snprintf(line, sizeof line, "predict -m %s --resume %s --data %s", in_folder("qa.json"), folder,
           in_folder("half.jsonl"));
  run(3, "half.jsonl, line 2", line);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("predict");
  TCase *tests = tcase_create("predict");
  tcase_add_loop_test(tests, answers_are_found, 0, 2);
  tcase_add_test(tests, classes_are_found);
  tcase_add_test(tests, tags_are_found);
  tcase_add_test(tests, faults_are_told);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
