#include "models/network/described.h"

/* ---- the input and the loss ---- */

static tws_code read_pictures(tws_described *d, const cJSON *pictures, tws_error *err) {
  tws_network *net = d->b->net;
  const tws_json *json = d->b->json;
  TWS_TRY(tws_described_read_pictures(json, pictures, &d->side, &d->channels, err));
  TWS_TRY(tws_json_int(json, json->root, "classes", 1, 2, TWS_MAX_VOCABULARY, 0, &net->vocabulary, err));
  tws_described_begin_pictures(net, d->side, d->channels);
  d->of_pictures = 1;
  d->input = tws_build_pictures(d->b, "pictures", d->side, d->side, d->channels);
  return TWS_OK;
}

static tws_code read_tokens(tws_described *d, const cJSON *tokens, tws_error *err) {
  static const char *const known[] = {"vocabulary", "positions", NULL};
  tws_network *net = d->b->net;
  const tws_json *json = d->b->json;
  const int64_t multiple = d->b->vocabulary_multiple > 1 ? d->b->vocabulary_multiple : 1;
  if (!cJSON_IsObject(tokens)) return tws_json_fail(json, tokens, err, tws_described_hint, "\"tokens\" is no object");
  TWS_TRY(tws_json_only(json, tokens, known, err));
  TWS_TRY(tws_json_int(json, tokens, "vocabulary", 1, 2, TWS_MAX_VOCABULARY, 0, &net->vocabulary, err));
  TWS_TRY(tws_json_int(json, tokens, "positions", 1, 1, TWS_MAX_WIDTH, 0, &net->positions, err));
  if (cJSON_HasObjectItem(json->root, "classes"))
    return tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(json->root, "classes"), err, "leave it out",
                         "a network of tokens predicts the next token, and has no \"classes\"");
  net->padded_vocabulary = (net->vocabulary + multiple - 1) / multiple * multiple;
  net->objective = TWS_OBJECTIVE_NEXT_TOKEN;
  return TWS_OK;
}

/* Reads what the last module's outputs are compared with and how. */
static tws_code read_loss(tws_described *d, tws_error *err) {
  const tws_json *json = d->b->json;
  TWS_TRY(tws_described_read_loss(json, json->root, TWS_LOSS_SOFTMAX, &d->loss, err));
  if (d->of_pictures || d->loss == TWS_LOSS_SOFTMAX) return TWS_OK;
  const cJSON *given = cJSON_GetObjectItemCaseSensitive(json->root, "loss");
  return tws_json_fail(json, given, err, "\"cross_entropy\" is the loss of the next token",
                       "a network of tokens has scores of exclusive tokens, and %s is for others", given->valuestring);
}

static tws_code read_root(tws_described *d, tws_error *err) {
  static const char *const known[] = {"model_type", "architectures", "name",        "input", "classes", "modules",
                                      "init_std",   "dtype",         "torch_dtype", "loss",  NULL};
  const tws_json *json = d->b->json;
  const cJSON *input = cJSON_GetObjectItemCaseSensitive(json->root, "input"),
              *pictures = cJSON_GetObjectItemCaseSensitive(input, "pictures"),
              *tokens = cJSON_GetObjectItemCaseSensitive(input, "tokens");
  TWS_TRY(tws_json_only(json, json->root, known, err));
  TWS_TRY(tws_json_number(json, json->root, "init_std", 0, 0, 100, 0, &d->std, err));
  if (!cJSON_IsObject(input) || cJSON_GetArraySize(input) != 1 || (!pictures && !tokens))
    return tws_json_fail(json, input ? input : json->root, err,
                         "\"input\": {\"pictures\": {\"side\": 32, \"channels\": 3}}, or {\"tokens\": "
                         "{\"vocabulary\": 256, \"positions\": 64}}",
                         "\"input\" has to say what the network reads");
  TWS_TRY(pictures ? read_pictures(d, pictures, err) : read_tokens(d, tokens, err));
  return read_loss(d, err);
}

tws_code tws_build_described(tws_network_builder *b, tws_error *err) {
  enum { MOST_GRAPH_MODULES = 16 }; /* that one described module becomes */
  tws_described d = {.b = b, .input = TWS_NONE, .given = TWS_NONE};
  const cJSON *list = cJSON_GetObjectItemCaseSensitive(b->json->root, "modules");
  int layers = 0;
  if (cJSON_HasObjectItem(b->json->root, "networks")) return tws_build_described_turns(b, err);
  TWS_TRY(read_root(&d, err));
  TWS_TRY(tws_described_read_list(&d, list, "", &layers, err));
  TWS_TRY(tws_build_reserve(b, (int64_t)d.count * MOST_GRAPH_MODULES + 1, err));
  d.modules[d.count - 1].layer = -2;
  TWS_TRY(tws_described_build(&d, err));
  TWS_TRY(tws_described_check_read(&d, err));
  TWS_TRY(tws_described_check_scores(&d, d.loss, err));
  b->net->layers = layers;
  for (int i = 0; i < d.count; i++) {
    const int64_t width = b->net->values[d.modules[i].value].per_row;
    if (i + 1 < d.count && b->net->hidden < width && b->net->values[d.modules[i].value].row_dims != 1)
      b->net->hidden = width;
  }
  if (b->net->hidden == 0) b->net->hidden = b->net->vocabulary;
  if (d.of_pictures) {
    const tws_dim samples[] = {{.kind = TWS_DIM_SAMPLES}};
    tws_build_input(b, "targets", TWS_INPUT_TARGETS, samples, 1);
  }
  const uint32_t scores = d.modules[d.count - 1].value;
  tws_build_loss(b, scores);
  tws_build_loss_kind(b, d.loss);
  if (d.loss != TWS_LOSS_SOFTMAX)
    b->net->modules[b->net->module_count - 1].in_features = b->net->values[scores].per_row;
  return TWS_OK;
}
