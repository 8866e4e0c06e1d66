/* Adds heads that classify a text (by one of its tokens) or each token, instead of scoring the vocabulary. The last
 * words of the class name in the file determine the head. */
#include <string.h>

#include "models/network/build.h"

enum { SPAN_ENDS = 2 };
static const tws_dim samples_alone[] = {{.kind = TWS_DIM_SAMPLES}};

int tws_build_is_class(const tws_network_builder *b, const char *ending) {
  const char *name = b->net->class_name;
  const size_t length = name ? strlen(name) : 0, end = strlen(ending);
  return length >= end && strcmp(name + length - end, ending) == 0;
}

/* Returns the training objective that the class named in the file has. */
static tws_objective objective_of(const tws_network_builder *b) {
  return tws_build_is_class(b, "ForSequenceClassification") ? TWS_OBJECTIVE_CLASSES
         : tws_build_is_class(b, "ForTokenClassification")  ? TWS_OBJECTIVE_TAGS
         : tws_build_is_class(b, "ForQuestionAnswering")    ? TWS_OBJECTIVE_SPANS
                                                            : TWS_OBJECTIVE_NEXT_TOKEN;
}

/* Refuses problem types for which Transformers uses another loss: regression and several classes per sample. */
static tws_code check_problem(tws_network_builder *b, tws_error *err) {
  static const char known[] = "single_label_classification";
  const char *problem = NULL;
  TWS_TRY(tws_json_string(b->json, b->json->root, "problem_type", 0, NULL, &problem, err));
  if (b->net->objective == TWS_OBJECTIVE_SPANS) return TWS_OK;
  const int scores = b->net->classes == 1 && b->net->objective == TWS_OBJECTIVE_CLASSES;
  if (scores && (problem == NULL || strcmp(problem, "regression") == 0)) {
    tws_text_add(&b->notes,
                 "one label is a score, as reward models have it: it is planned, and train has no loss of it\n");
    return TWS_OK;
  }
  if (problem == NULL || strcmp(problem, known) == 0) return TWS_OK;
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(b->json->root, "problem_type");
  tws_json_fail(b->json, item ? item : b->json->root, err,
                "supported are classes that exclude each other: single_label_classification, 2 labels or more",
                "a head for %.60s is not supported", problem);
  if (err != NULL) err->code = TWS_UNSUPPORTED;
  return TWS_UNSUPPORTED;
}

/* Returns the error for a span head with another number of scores than 2, which Transformers cannot split into starts
 * and ends. */
static tws_code wrong_ends(tws_network_builder *b, tws_error *err) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(b->json->root, "num_labels");
  return tws_json_fail(b->json, item ? item : cJSON_GetObjectItemCaseSensitive(b->json->root, "id2label"), err,
                       "leave it out: there are 2",
                       "a head for question answering has %lld labels, not the 2 of a span",
                       (long long)b->net->classes);
}

tws_code tws_build_read_classes(tws_network_builder *b, tws_error *err) {
  tws_network *net = b->net;
  const tws_objective objective = objective_of(b);
  const cJSON *names = cJSON_GetObjectItemCaseSensitive(b->json->root, "id2label"),
              *padding = cJSON_GetObjectItemCaseSensitive(b->json->root, "pad_token_id");
  const int labels = cJSON_IsObject(names) ? cJSON_GetArraySize(names) : 0;
  tws_build_known_keys(b, "num_labels");
  if (objective == TWS_OBJECTIVE_NEXT_TOKEN) return TWS_OK;
  net->objective = objective;
  net->tied = 0; /* the head has no weights of the vocabulary's size, so the embedding's weights are not tied */
  TWS_TRY(tws_build_size(b, "num_labels", NULL, 0, TWS_MAX_VOCABULARY, labels > 0 ? labels : 2, &net->classes, err));
  if (objective == TWS_OBJECTIVE_SPANS && net->classes != SPAN_ENDS) return wrong_ends(b, err);
  if (padding && !cJSON_IsNull(padding))
    TWS_TRY(tws_json_int(b->json, b->json->root, "pad_token_id", 0, 0, net->vocabulary - 1, 0, &net->pad_token, err));
  return check_problem(b, err);
}

uint32_t tws_build_sample_rows(tws_network_builder *b, const char *name, uint32_t x) {
  return tws_build_gather(b, -2, name, x, tws_build_input(b, "rows of classes", TWS_INPUT_ROWS, samples_alone, 1));
}

void tws_build_spans(tws_network_builder *b, const char *name, uint32_t x, double range, uint32_t lengths) {
  static const tws_dim rows[] = {
      {.kind = TWS_DIM_SAMPLES}, {.kind = TWS_DIM_FIXED, .size = SPAN_ENDS}, {.kind = TWS_DIM_SEQUENCE}};
  tws_network *net = b->net;
  x = tws_build_linear(b, -2, name, x, net->values[x].per_row, SPAN_ENDS, (float)range, 1, NULL, TWS_NONE);
  const uint32_t module = tws_build_module(b, TWS_MODULE_SPANS, -2, tws_build_name(b, "%s.spans", name));
  tws_module *m = &net->modules[module];
  m->in[0] = x;
  m->input[0] = lengths;
  m->in_features = SPAN_ENDS;
  m->out_features = 1;
  tws_build_input(b, "targets", TWS_INPUT_TARGETS, rows, 2);
  tws_build_loss(b, tws_build_value(b, module, 0, "y", rows, 3, 1, TWS_VALUE_ACTIVATION));
}

void tws_build_class_scores(tws_network_builder *b, const char *name, uint32_t x, double range, int bias) {
  tws_network *net = b->net;
  x = tws_build_linear(b, -2, name, x, net->values[x].per_row, net->classes, (float)range, bias, NULL, TWS_NONE);
  if (net->objective == TWS_OBJECTIVE_CLASSES) tws_build_input(b, "targets", TWS_INPUT_TARGETS, samples_alone, 1);
  tws_build_loss(b, x);
}
