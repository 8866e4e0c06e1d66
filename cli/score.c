/* twinspeed score: scores predicted answers and classes. */
#include "base/failure.h"
#include "cli/cli.h"
#include "tokens/answer_score.h"

typedef struct options {
  const char *squad, *classes, *predictions;
} options;

static void add_pair(cJSON *root, const char *name, const tws_answer_score *score, int64_t count) {
  cJSON *item = cJSON_AddObjectToObject(root, name);
  cJSON_AddNumberToObject(item, "questions", (double)count);
  cJSON_AddNumberToObject(item, "exact_match", score->exact);
  cJSON_AddNumberToObject(item, "f1", score->f1);
}

static tws_code print_squad_json(const tws_squad_scores *s, tws_error *err) {
  cJSON *root = cJSON_CreateObject();
  cJSON_AddStringToObject(root, "schema", "twinspeed-score-1");
  cJSON_AddNumberToObject(root, "squad_version", s->version);
  cJSON_AddNumberToObject(root, "questions", (double)s->questions);
  cJSON_AddNumberToObject(root, "not_predicted", (double)s->not_predicted);
  cJSON_AddNumberToObject(root, "exact_match", s->all.exact);
  cJSON_AddNumberToObject(root, "f1", s->all.f1);
  if (s->version == 2) {
    add_pair(root, "with_answer", &s->with_answer, s->answerable);
    add_pair(root, "without_answer", &s->without_answer, s->questions - s->answerable);
  }
  return tws_out_json(root, err);
}

static tws_code score_squad(const tws_cli *cli, const options *o, tws_error *err) {
  tws_squad_scores s;
  TWS_TRY(tws_squad_score_files(o->squad, o->predictions, &s, err));
  if (s.not_predicted > 0)
    tws_warn(cli, "%lld of %lld questions have no prediction and score 0", (long long)s.not_predicted,
             (long long)s.questions);
  if (cli->json) return print_squad_json(&s, err);
  tws_out("exact match  %.3f %%\nF1           %.3f %%\n", s.all.exact, s.all.f1);
  tws_out("of %lld questions, by the arithmetic of SQuAD %s\n", (long long)s.questions, s.version == 2 ? "2.0" : "1.1");
  if (s.version == 2)
    tws_out(
        "with an answer:    %lld questions, exact match %.3f %%, F1 %.3f %%\nwithout an answer: %lld questions, "
        "exact match %.3f %%\n",
        (long long)s.answerable, s.with_answer.exact, s.with_answer.f1, (long long)(s.questions - s.answerable),
        s.without_answer.exact);
  return TWS_OK;
}

static tws_code score_classes(const tws_cli *cli, const options *o, tws_error *err) {
  tws_class_scores s;
  TWS_TRY(tws_class_score_files(o->classes, o->predictions, &s, err));
  if (cli->json) {
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "schema", "twinspeed-score-1");
    cJSON_AddNumberToObject(root, "samples", (double)s.count);
    cJSON_AddNumberToObject(root, "accuracy", s.accuracy);
    if (s.two_classes) cJSON_AddNumberToObject(root, "f1", s.f1);
    if (s.two_classes) cJSON_AddNumberToObject(root, "matthews_correlation", s.matthews);
    return tws_out_json(root, err);
  }
  tws_out("accuracy  %.3f %%\n", s.accuracy);
  if (s.two_classes) tws_out("F1        %.3f %% of class 1\nMatthews' correlation  %.3f %%\n", s.f1, s.matthews);
  tws_out("of %lld samples\n", (long long)s.count);
  return TWS_OK;
}

static tws_code run_score(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  const options *o = raw;
  (void)argc, (void)argv;
  if ((o->squad != NULL) + (o->classes != NULL) != 1)
    return tws_fail(err, TWS_USAGE, "twinspeed score --squad dev-v1.1.json --predictions predictions.json",
                    "score: give either --squad or --classes");
  if (!o->predictions)
    return tws_fail(err, TWS_USAGE, "\"twinspeed predict\" writes such a file",
                    "score: --predictions FILE was not given");
  return o->squad ? score_squad(cli, o, err) : score_classes(cli, o, err);
}

static const tws_option table[] = {
    TWS_STRING("squad", 0, "FILE", options, squad, "questions with gold answers: SQuAD's JSON file, or lines (.jsonl)"),
    TWS_STRING("classes", 0, "FILE", options, classes,
               "classes: lines {\"label\": class} (.jsonl), or columns with a header (.tsv)"),
    TWS_STRING("predictions", 0, "FILE", options, predictions,
               "predictions: an object of answers by id, or classes line by line"),
    TWS_OPTIONS_END};

const tws_verb tws_verb_score = {
    .name = "score",
    .summary = "exact match and F1 of predicted answers, accuracy and F1 of predicted classes",
    .usage = "--squad FILE | --classes FILE --predictions FILE",
    .examples =
        "  twinspeed score --squad dev-v1.1.json --predictions predictions.json\n"
        "  twinspeed score --classes dev.jsonl --predictions predictions.jsonl --json\n",
    .notes =
        "Answers are scored by the arithmetic of SQuAD's evaluation scripts, 1.1 or, if a question of the file\n"
        "has no answer, 2.0. A question without a prediction scores 0 in both. F1 and Matthews' correlation of\n"
        "classes are those of class 1, if all classes are 0 and 1, as GLUE has them for CoLA, MRPC and QQP.\n",
    .options = table,
    .options_bytes = sizeof(options),
    .run = run_score,
};
