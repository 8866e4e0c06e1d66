/* twinspeed predict: classes, tags and answers of a trained model for the samples of a file. */
#include <math.h>
#include <string.h>

#include "base/failure.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/output_file.h"
#include "cli/forward.h"
#include "cli/job_options.h"
#include "cli/outputs.h"
#include "tokens/answer_score.h"

typedef struct options {
  tws_job_spec job;
  tws_weights_options weights;
  const char *data, *out;
  int64_t longest; /* most tokens of an answer */
  int force;
} options;

/* The predictions that are written: one value for each sample, or for questions an object of answers by id. */
typedef struct predictions {
  const options *options;
  tws_objective objective;
  tws_question_list *questions; /* NULL: the data are no questions with texts */
  cJSON *list;                  /* array of predictions, or object of answers */
  int64_t samples, labelled, right;
} predictions;

static int64_t largest(const float *scores, int64_t count) {
  int64_t best = 0;
  for (int64_t i = 1; i < count; i++)
    if (scores[i] > scores[best]) best = i;
  return best;
}

static void add_class(predictions *p, const float *scores, int64_t classes, int64_t label) {
  const int64_t best = largest(scores, classes);
  cJSON *item = cJSON_CreateObject();
  cJSON_AddNumberToObject(item, "label", (double)best);
  cJSON_AddNumberToObject(item, "probability", tws_class_probability(scores, classes, best));
  cJSON_AddItemToArray(p->list, item);
  p->labelled += label >= 0;
  p->right += label == best;
}

static void add_tags(predictions *p, const float *scores, int64_t classes, int64_t tokens) {
  cJSON *item = cJSON_CreateObject(), *labels = cJSON_AddArrayToObject(item, "labels");
  for (int64_t t = 0; t < tokens; t++)
    cJSON_AddItemToArray(labels, cJSON_CreateNumber((double)largest(scores + t * classes, classes)));
  cJSON_AddItemToArray(p->list, item);
}

/* Adds the answer to a question as a text; `first` and `last` are tokens. */
static tws_code add_answer(predictions *p, uint64_t index, int64_t first, int64_t last, tws_error *err) {
  const tws_question *q = &p->questions->items[index];
  tws_text answer = {0};
  tws_question_answer(q, first, last, &answer);
  if (answer.failed || !cJSON_AddStringToObject(p->list, q->id, answer.data ? answer.data : "")) {
    tws_text_free(&answer);
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the answers");
  }
  tws_text_free(&answer);
  return TWS_OK;
}

static tws_code add_span(predictions *p, uint64_t index, const float *scores, int64_t columns, int64_t tokens,
                         tws_error *err) {
  const tws_question *q = p->questions ? &p->questions->items[index] : NULL;
  const int64_t from = q ? q->first : 0;
  if (q) tokens = tws_question_end(q, tokens);
  tws_token_span span = {0};
  const int found = from < tokens && tws_best_span(scores, scores + columns, from, tokens, p->options->longest, &span);
  const double none = (double)scores[0] + (double)scores[columns]; /* the first token is "no answer" */
  if (q && (!found || (p->questions->unanswerable && none > span.score)))
    return cJSON_AddStringToObject(p->list, q->id, "") ? TWS_OK
                                                       : tws_fail(err, TWS_MEMORY, NULL, "out of memory for answers");
  if (q) return add_answer(p, index, span.first, span.last, err);
  cJSON *item = cJSON_CreateObject(), *ends = cJSON_AddArrayToObject(item, "span");
  cJSON_AddItemToArray(ends, cJSON_CreateNumber((double)span.first));
  cJSON_AddItemToArray(ends, cJSON_CreateNumber((double)span.last));
  cJSON_AddItemToArray(p->list, item);
  return TWS_OK;
}

static tws_code on_scores(void *user, uint64_t index, const float *scores, int64_t rows, int64_t columns,
                          int64_t tokens, int64_t label, tws_error *err) {
  predictions *p = user;
  p->samples++;
  for (int64_t i = 0; i < rows * columns; i++)
    if (!isfinite(scores[i]))
      return tws_fail(err, TWS_INVALID, "are these the weights of this model?", "the model's scores are no numbers");
  if (p->objective == TWS_OBJECTIVE_SPANS) return add_span(p, index, scores, columns, tokens, err);
  if (p->objective == TWS_OBJECTIVE_TAGS)
    add_tags(p, scores, columns, tokens);
  else
    add_class(p, scores, columns, label);
  return TWS_OK;
}

/* ---- output ---- */

static tws_code make_text(const predictions *p, tws_text *text, tws_error *err) {
  const cJSON *item;
  char *line = NULL;
  if (cJSON_IsObject(p->list)) {
    line = cJSON_PrintUnformatted(p->list);
    if (line) tws_text_add(text, "%s\n", line);
    cJSON_free(line);
  } else {
    cJSON_ArrayForEach(item, p->list) {
      line = cJSON_PrintUnformatted(item);
      if (line) tws_text_add(text, "%s\n", line);
      cJSON_free(line);
      if (!line) break;
    }
  }
  return text->failed || (!line && p->samples > 0)
             ? tws_fail(err, TWS_MEMORY, NULL, "out of memory for the predictions")
             : TWS_OK;
}

static tws_code write_predictions(const predictions *p, tws_error *err) {
  tws_text text = {0};
  tws_code code = make_text(p, &text, err);
  if (code == TWS_OK && p->options->out)
    code = tws_write_file(p->options->out, text.data ? text.data : "", text.length, err);
  else if (code == TWS_OK)
    tws_out_bytes(text.data ? text.data : "", text.length);
  tws_text_free(&text);
  return code;
}

static tws_code print_json(predictions *p, const tws_predict_result *r, tws_error *err) {
  cJSON *root = cJSON_CreateObject();
  cJSON_AddStringToObject(root, "schema", "twinspeed-predict-1");
  cJSON_AddNumberToObject(root, "samples", (double)r->samples);
  cJSON_AddNumberToObject(root, "seconds", r->seconds);
  if (p->labelled > 0) cJSON_AddNumberToObject(root, "accuracy", 100.0 * (double)p->right / (double)p->labelled);
  if (!p->options->out) cJSON_AddItemToObject(root, cJSON_IsObject(p->list) ? "answers" : "predictions", p->list);
  if (!p->options->out) p->list = NULL;
  return tws_out_json(root, err);
}

static tws_code print_end(const tws_cli *cli, predictions *p, const tws_predict_result *r, tws_error *err) {
  if (!cli->json || p->options->out) TWS_TRY(write_predictions(p, err));
  if (cli->json) return print_json(p, r, err);
  tws_say(cli, "%llu samples in %.3g s\n", (unsigned long long)r->samples, r->seconds);
  if (p->labelled > 0)
    tws_say(cli, "accuracy %.3f %% of the labels of the file\n", 100.0 * (double)p->right / (double)p->labelled);
  return TWS_OK;
}

/* ---- the run ---- */

static tws_code predict_here(const tws_cli *cli, const options *o, const tws_job *job,
                             const tws_predict_options *request, tws_predict_result *result, tws_error *err) {
  const tws_real_api *api;
  int rank = 0;
  TWS_TRY(tws_forward_load(cli, job, &o->job, &api, &rank, err));
  const tws_code code = api->predict(request, result, err);
  api->stop();
  return code;
}

static tws_code predict(const tws_cli *cli, const options *o, const tws_job *job, tws_question_list *questions,
                        tws_error *err) {
  tws_predict_result result;
  predictions p = {.options = o, .objective = job->network->objective};
  if (p.objective == TWS_OBJECTIVE_SPANS) TWS_TRY(tws_questions_read(o->data, questions, err));
  if (questions->count > 0) p.questions = questions;
  p.list = p.questions ? cJSON_CreateObject() : cJSON_CreateArray();
  const tws_predict_options request = {.plan = tws_job_request(job, 0),
                                       .resume = o->weights.resume,
                                       .tag = o->weights.tag,
                                       .init_from = o->weights.init_from,
                                       .data = o->data,
                                       .on_scores = on_scores,
                                       .user = &p,
                                       .log = &cli->log};
  tws_code code = predict_here(cli, o, job, &request, &result, err);
  if (code == TWS_OK) code = print_end(cli, &p, &result, err);
  cJSON_Delete(p.list);
  return code;
}

static tws_code check_options(const options *o, tws_error *err) {
  const tws_job_spec *s = &o->job;
  if (s->ranks > 1 || s->tensor_ranks > 1 || s->pipeline_stages > 1 || s->sequence_ranks > 1 || s->expert_ranks > 1)
    return tws_fail(err, TWS_UNSUPPORTED, "leave these options out; checkpoints of any number of ranks can be read",
                    "predict: predictions are made by one rank");
  TWS_TRY(tws_weights_check(&o->weights, s->model, "predict", err));
  if (!o->data)
    return tws_fail(err, TWS_USAGE, "docs/encoders.md says what a line of FILE.jsonl has",
                    "predict: no --data was given");
  return TWS_OK;
}

static tws_code run_predict(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  options o = *(options *)raw;
  tws_question_list questions = {0};
  tws_job *job = NULL;
  (void)argc, (void)argv;
  TWS_TRY(check_options(&o, err));
  const tws_output output = {.flag = "--out", .path = o.out};
  tws_inputs inputs = tws_inputs_of_job(&o.job);
  tws_inputs_add(&inputs, o.data);
  tws_inputs_add(&inputs, o.weights.init_from);
  TWS_TRY(tws_outputs_check(&output, 1, &inputs, o.force, err));
  tws_job_spec_generate(&o.job);
  tws_code code = tws_job_load(&o.job, &job, err);
  if (code == TWS_OK) code = predict(cli, &o, job, &questions, err);
  tws_questions_free(&questions);
  tws_job_destroy(job);
  return code;
}

static const tws_option table[] = {
    TWS_FORWARD_OPTIONS(options, job),
    TWS_WEIGHTS_OPTIONS(options, weights),
    TWS_STRING("data", 0, "FILE", options, data, "samples: lines with labels (.jsonl), or pictures"),
    TWS_STRING("out", 'o', "FILE", options, out, "write the predictions there (default: standard output)"),
    TWS_INTEGER("longest-answer", 0, "N", options, longest, 1, 1000000, "most tokens of an answer (default 30)"),
    TWS_FORCE_OPTION(options),
    TWS_OPTIONS_END};

static const options defaults = {.job = TWS_JOB_SPEC_DEFAULTS, .longest = 30};

const tws_verb tws_verb_predict = {
    .name = "predict",
    .summary = "classes, tags or answers of a trained model for the samples of a file",
    .usage = "-m MODEL --resume DIR | --init-from FILE --data FILE [options]",
    .examples =
        "  twinspeed predict -m bert.json --resume run --data dev.jsonl -o predictions.jsonl\n"
        "  twinspeed predict -m qa.json --resume run --data dev.jsonl -o predictions.json\n"
        "  twinspeed score --squad dev.jsonl --predictions predictions.json\n",
    .notes =
        "The data have the form of training data, labels included. A line of the result is {\"label\": ...}, "
        "{\"labels\":\n"
        "[...]} or {\"span\": [first, last]}, in the order of the file. If the samples are questions with contexts, "
        "of\n"
        "bytes or as `convert samples` writes them, the result is one object of answers by \"id\" (by the line's "
        "number "
        "where\n"
        "there is none): the\n"
        "span of the context with the largest sum of the scores of its ends, or \"\" if the first token has a larger\n"
        "sum and some question of the file has no answer.\n",
    .options = table,
    .options_bytes = sizeof(options),
    .defaults = &defaults,
    .run = run_predict,
};
