/* Files of one network: its inputs, its losses and its graph. */
#include <string.h>

#include "models/kernel.h"
#include "models/network/described.h"

enum { LOSSES = TWS_LOSS_HEADS };

/* The description that is being read, with the losses and the names of the labels of a record, in their order. */
typedef struct described_file {
  tws_described d;
  tws_described_loss losses[LOSSES];
  int loss_count;     /* 0: the file has no key "losses" */
  tws_loss_kind only; /* the kind of the loss of a file without that key */
  const char *label[TWS_RECORD_LABELS];
} described_file;

/* ---- inputs ---- */

static tws_code read_picture(tws_described *d, const cJSON *item, int named, tws_error *err) {
  static const char *const known[] = {"name", "side", "channels", NULL};
  const tws_json *json = d->b->json;
  tws_described_input *input = &d->inputs[d->input_count];
  *input = (tws_described_input){.name = named ? NULL : "pictures", .item = item, .in_graph = TWS_NONE};
  if (!named) {
    TWS_TRY(tws_described_read_pictures(json, item, &input->side, &input->channels, err));
  } else {
    if (!cJSON_IsObject(item)) return tws_json_fail(json, item, err, tws_described_hint, "a picture is no object");
    TWS_TRY(tws_json_only(json, item, known, err));
    TWS_TRY(tws_json_string(json, item, "name", 1, NULL, &input->name, err));
    TWS_TRY(tws_json_int(json, item, "side", 1, 1, TWS_DESCRIBED_SIDE, 0, &input->side, err));
    TWS_TRY(tws_json_int(json, item, "channels", 1, 1, 1024, 0, &input->channels, err));
  }
  if (!*input->name || strlen(input->name) > 40 || strcmp(input->name, "input") == 0)
    return tws_json_fail(json, item, err, "a name of at most 40 letters", "\"%.40s\" is no name for an input",
                         input->name);
  for (int i = 0; i < d->input_count; i++)
    if (strcmp(d->inputs[i].name, input->name) == 0)
      return tws_json_fail(json, item, err, "every input has a name of its own", "two inputs have the name %s",
                           input->name);
  d->input_count++;
  return TWS_OK;
}

/* Reads one kind of pictures, or a list of those that a record has one after another. */
static tws_code read_pictures(tws_described *d, const cJSON *pictures, const cJSON *noise, tws_error *err) {
  const tws_json *json = d->b->json;
  const cJSON *item;
  if (!cJSON_IsArray(pictures)) {
    TWS_TRY(read_picture(d, pictures, 0, err));
  } else if (cJSON_GetArraySize(pictures) == 0 || cJSON_GetArraySize(pictures) > TWS_DESCRIBED_PICTURES) {
    return tws_json_fail(json, pictures, err, "[{\"name\": \"left\", \"side\": 32, \"channels\": 3}, ...]",
                         "\"pictures\" is no list of 1 to %d pictures", TWS_DESCRIBED_PICTURES);
  } else {
    cJSON_ArrayForEach(item, pictures) TWS_TRY(read_picture(d, item, 1, err));
  }
  d->of_pictures = 1;
  tws_described_begin_pictures(d->b->net, d->inputs[0].side, d->inputs[0].channels);
  for (int i = 0; i < d->input_count; i++) {
    const int64_t side = d->inputs[i].side;
    d->inputs[i].in_graph =
        tws_build_pictures(d->b, tws_build_name(d->b, "%s", d->inputs[i].name), side, side, d->inputs[i].channels);
  }
  if (!noise) return TWS_OK;
  tws_described_input *input = &d->inputs[d->input_count++];
  *input = (tws_described_input){.name = "noise", .item = noise};
  TWS_TRY(tws_described_read_pictures(json, noise, &input->side, &input->channels, err));
  for (int i = 0; i + 1 < d->input_count; i++)
    if (strcmp(d->inputs[i].name, input->name) == 0)
      return tws_json_fail(json, d->inputs[i].item, err, "another name", "noise is the name of the random numbers");
  input->in_graph = tws_build_pictures(d->b, "noise", input->side, input->side, input->channels);
  d->b->net->input[input->in_graph].content = TWS_INPUT_NOISE;
  return TWS_OK;
}

/* Reads the classes of pictures: a number, or an object with a number for each label of a record. */
static tws_code read_classes(described_file *f, tws_error *err) {
  tws_network *net = f->d.b->net;
  const tws_json *json = f->d.b->json;
  const cJSON *given = cJSON_GetObjectItemCaseSensitive(json->root, "classes"), *item;
  if (!cJSON_IsObject(given))
    return tws_json_int(json, json->root, "classes", 1, 2, TWS_MAX_VOCABULARY, 0, &net->vocabulary, err);
  if (cJSON_GetArraySize(given) == 0 || cJSON_GetArraySize(given) > TWS_RECORD_LABELS)
    return tws_json_fail(json, given, err, "\"classes\": {\"coarse\": 20, \"fine\": 100}",
                         "\"classes\" has no 1 to %d labels", TWS_RECORD_LABELS);
  cJSON_ArrayForEach(item, given) {
    tws_record_labels *labels = &net->labels;
    f->label[labels->count] = item->string;
    TWS_TRY(tws_json_int(json, given, item->string, 1, 2, 256, 0, &labels->classes[labels->count], err));
    labels->count++;
  }
  net->vocabulary = net->labels.classes[0];
  return TWS_OK;
}

static tws_code read_tokens(tws_described *d, const cJSON *tokens, tws_error *err) {
  static const char *const known[] = {"vocabulary", "positions", NULL};
  static const char *const of_pictures[] = {"classes", "losses"};
  tws_network *net = d->b->net;
  const tws_json *json = d->b->json;
  const int64_t multiple = d->b->vocabulary_multiple > 1 ? d->b->vocabulary_multiple : 1;
  if (!cJSON_IsObject(tokens)) return tws_json_fail(json, tokens, err, tws_described_hint, "\"tokens\" is no object");
  TWS_TRY(tws_json_only(json, tokens, known, err));
  TWS_TRY(tws_json_int(json, tokens, "vocabulary", 1, 2, TWS_MAX_VOCABULARY, 0, &net->vocabulary, err));
  TWS_TRY(tws_json_int(json, tokens, "positions", 1, 1, TWS_MAX_WIDTH, 0, &net->positions, err));
  for (int i = 0; i < 2; i++)
    if (cJSON_HasObjectItem(json->root, of_pictures[i]))
      return tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(json->root, of_pictures[i]), err, "leave it out",
                           "a network of tokens predicts the next token, and has no \"%s\"", of_pictures[i]);
  net->padded_vocabulary = (net->vocabulary + multiple - 1) / multiple * multiple;
  net->objective = TWS_OBJECTIVE_NEXT_TOKEN;
  return TWS_OK;
}

/* ---- losses ---- */

/* Reads what the outputs of a network with one loss are compared with and how. */
static tws_code read_only_loss(described_file *f, tws_error *err) {
  const tws_json *json = f->d.b->json;
  const cJSON *given = cJSON_GetObjectItemCaseSensitive(json->root, "loss");
  TWS_TRY(tws_described_read_loss(json, json->root, TWS_LOSS_SOFTMAX, &f->only, err));
  if (f->d.of_pictures && f->d.b->net->labels.count > 1)
    return tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(json->root, "classes"), err,
                         "\"losses\": [{\"name\": \"fine\", \"of\": \"a module\", \"label\": \"fine\"}]",
                         "a record has several labels, and no \"losses\" say which of them is predicted");
  if (f->d.of_pictures || f->only == TWS_LOSS_SOFTMAX) return TWS_OK;
  return tws_json_fail(json, given, err, "\"cross_entropy\" is the loss of the next token",
                       "a network of tokens has scores of exclusive tokens, and %s is for others", given->valuestring);
}

/* Reads the name of the label with which a loss compares scores; without it the only label. */
static tws_code read_label(const described_file *f, tws_described_loss *loss, tws_error *err) {
  const tws_json *json = f->d.b->json;
  const cJSON *given = cJSON_GetObjectItemCaseSensitive(loss->item, "label");
  const int count = f->d.b->net->labels.count;
  const char *name;
  char hint[sizeof err->hint];
  TWS_TRY(tws_json_string(json, loss->item, "label", count > 1, NULL, &name, err));
  if (!name) return TWS_OK;
  for (loss->label = 0; loss->label < count; loss->label++)
    if (strcmp(f->label[loss->label], name) == 0) return TWS_OK;
  if (count == 0)
    return tws_json_fail(json, given, err,
                         "leave it out, or let \"classes\" name labels: {\"coarse\": 20, \"fine\": 100}",
                         "the labels of a record have no names here");
  tws_names_hint(name, f->label, (size_t)count, "labels:", NULL, hint, sizeof hint);
  return tws_json_fail(json, given, err, hint, "\"classes\" names no label \"%.60s\"", name);
}

static tws_code read_loss(described_file *f, const cJSON *item, tws_error *err) {
  static const char *const known[] = {"name", "of", "loss", "label", "weight", NULL};
  tws_described *d = &f->d;
  const tws_json *json = d->b->json;
  tws_described_loss *loss = &f->losses[f->loss_count];
  const char *of;
  *loss = (tws_described_loss){.item = item};
  if (!cJSON_IsObject(item)) return tws_json_fail(json, item, err, tws_described_hint, "a loss is an object");
  TWS_TRY(tws_json_only(json, item, known, err));
  TWS_TRY(tws_json_string(json, item, "name", 1, NULL, &loss->name, err));
  TWS_TRY(tws_json_string(json, item, "of", 1, NULL, &of, err));
  TWS_TRY(tws_described_read_loss(json, item, TWS_LOSS_SOFTMAX, &loss->kind, err));
  TWS_TRY(tws_described_read_weight(json, item, &loss->weight, err));
  TWS_TRY(read_label(f, loss, err));
  if (!*loss->name || strlen(loss->name) > 40 || strchr(loss->name, ','))
    return tws_json_fail(json, item, err, "a name of at most 40 letters, without commas",
                         "\"%.40s\" is no name for a loss", loss->name);
  for (int i = 0; i < f->loss_count; i++)
    if (strcmp(f->losses[i].name, loss->name) == 0)
      return tws_json_fail(json, item, err, "every loss has a name of its own", "two losses have the name %s",
                           loss->name);
  loss->of = tws_described_named(d, "", of);
  if (loss->of < 0)
    return tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(item, "of"), err, "\"of\" is the name of a module",
                         "the loss %s is of \"%.80s\", which is no module", loss->name, of);
  if (d->modules[loss->of].last_reader != loss->of)
    return tws_json_fail(json, item, err, "give the loss a last layer of its own",
                         "the loss %s overwrites the output of %s, which %s reads", loss->name, of,
                         d->modules[loss->of].last_reader < d->count ? d->modules[d->modules[loss->of].last_reader].name
                                                                     : "another loss");
  d->modules[loss->of].last_reader = d->count; /* after all modules */
  f->loss_count++;
  return TWS_OK;
}

/* Reads the list of several losses. The last module and every label have to be in one of them. */
static tws_code read_losses(described_file *f, const cJSON *list, tws_error *err) {
  tws_described *d = &f->d;
  const tws_json *json = d->b->json;
  const cJSON *item;
  if (cJSON_HasObjectItem(json->root, "loss"))
    return tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(json->root, "loss"), err,
                         "each of \"losses\" has a key \"loss\"", "the file has both \"loss\" and \"losses\"");
  if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) == 0 || cJSON_GetArraySize(list) > LOSSES)
    return tws_json_fail(json, list, err, "\"losses\": [{\"name\": \"main\", \"of\": \"fc\", \"weight\": 1}, ...]",
                         "\"losses\" is no list of 1 to %d losses", LOSSES);
  cJSON_ArrayForEach(item, list) TWS_TRY(read_loss(f, item, err));
  if (d->modules[d->count - 1].last_reader < d->count)
    return tws_json_fail(json, d->modules[d->count - 1].item, err,
                         "leave it out, or give one of \"losses\" its outputs", "no loss reads the output of %s",
                         d->modules[d->count - 1].name);
  return TWS_OK;
}

/* Returns the graph's input that has a label of each record. */
static uint32_t label_input(described_file *f, int label) {
  static const tws_dim samples[] = {{.kind = TWS_DIM_SAMPLES}};
  tws_network *net = f->d.b->net;
  for (uint32_t i = 0; i < net->input_count; i++)
    if (net->input[i].content == TWS_INPUT_TARGETS && net->input[i].value == label) return i;
  const char *name = net->labels.count > 1 ? tws_build_name(f->d.b, "%s", f->label[label]) : "targets";
  const uint32_t added = tws_build_input(f->d.b, name, TWS_INPUT_TARGETS, samples, 1);
  net->input[added].value = label;
  return added;
}

static tws_code build_losses(described_file *f, tws_error *err) {
  tws_described *d = &f->d;
  tws_network *net = d->b->net;
  for (int i = 0; i < f->loss_count; i++) {
    const tws_described_loss *loss = &f->losses[i];
    const int64_t classes = net->labels.count > 0 ? net->labels.classes[loss->label] : net->vocabulary;
    TWS_TRY(tws_described_check_scores(d, loss->of, classes, loss->kind, err));
    tws_described_build_loss(d->b, tws_build_name(d->b, "%s", loss->name), d->modules[loss->of].value,
                             label_input(f, loss->label), classes, loss->kind, loss->weight);
  }
  net->classes = net->vocabulary; /* tensor ranks do not split the scores of several losses */
  return TWS_OK;
}

static tws_code build_only_loss(described_file *f, tws_error *err) {
  tws_described *d = &f->d;
  tws_network *net = d->b->net;
  const uint32_t scores = d->modules[d->count - 1].value;
  TWS_TRY(tws_described_check_scores(d, d->count - 1, net->vocabulary, f->only, err));
  if (d->of_pictures) label_input(f, 0);
  tws_build_loss(d->b, scores);
  tws_build_loss_kind(d->b, f->only);
  if (f->only != TWS_LOSS_SOFTMAX) net->modules[net->module_count - 1].in_features = net->values[scores].per_row;
  return TWS_OK;
}

/* ---- the file ---- */

static tws_code read_root(described_file *f, tws_error *err) {
  static const char *const known[] = {"model_type", "architectures", "name",        "input", "classes", "modules",
                                      "init_std",   "dtype",         "torch_dtype", "loss",  "losses",  NULL};
  static const char *const inputs[] = {"pictures", "noise", NULL}, *const texts[] = {"tokens", NULL};
  tws_described *d = &f->d;
  const tws_json *json = d->b->json;
  const cJSON *input = cJSON_GetObjectItemCaseSensitive(json->root, "input"),
              *pictures = cJSON_GetObjectItemCaseSensitive(input, "pictures"),
              *tokens = cJSON_GetObjectItemCaseSensitive(input, "tokens");
  TWS_TRY(tws_json_only(json, json->root, known, err));
  TWS_TRY(tws_json_number(json, json->root, "init_std", 0, 0, 100, 0, &d->std, err));
  if (!cJSON_IsObject(input) || (!pictures && !tokens))
    return tws_json_fail(json, input ? input : json->root, err,
                         "\"input\": {\"pictures\": {\"side\": 32, \"channels\": 3}}, or {\"tokens\": "
                         "{\"vocabulary\": 256, \"positions\": 64}}",
                         "\"input\" has to say what the network reads");
  TWS_TRY(tws_json_only(json, input, pictures ? inputs : texts, err));
  if (!pictures) return read_tokens(d, tokens, err);
  TWS_TRY(read_classes(f, err));
  return read_pictures(d, pictures, cJSON_GetObjectItemCaseSensitive(input, "noise"), err);
}

/* Sets the width that memory and time of a layer are estimated by: the widest output that is not the last one's. */
static void find_width(const tws_described *d) {
  tws_network *net = d->b->net;
  for (int i = 0; i + 1 < d->count; i++) {
    const tws_value *value = &net->values[d->modules[i].value];
    if (net->hidden < value->per_row && value->row_dims != 1) net->hidden = value->per_row;
  }
  if (net->hidden == 0) net->hidden = net->vocabulary;
}

static tws_code build_file(described_file *f, tws_error *err) {
  enum { MOST_GRAPH_MODULES = 16 }; /* that one described module becomes */
  tws_described *d = &f->d;
  const tws_json *json = d->b->json;
  const cJSON *losses = cJSON_GetObjectItemCaseSensitive(json->root, "losses");
  int layers = 0;
  TWS_TRY(read_root(f, err));
  TWS_TRY(tws_described_read_list(d, cJSON_GetObjectItemCaseSensitive(json->root, "modules"), "", &layers, err));
  TWS_TRY(losses ? read_losses(f, losses, err) : read_only_loss(f, err));
  TWS_TRY(tws_build_reserve(d->b, (int64_t)d->count * MOST_GRAPH_MODULES + LOSSES, err));
  d->modules[d->count - 1].layer = -2;
  TWS_TRY(tws_described_build(d, err));
  TWS_TRY(tws_described_check_read(d, err));
  d->b->net->layers = layers;
  find_width(d);
  return losses ? build_losses(f, err) : build_only_loss(f, err);
}

tws_code tws_build_described(tws_network_builder *b, tws_error *err) {
  if (cJSON_HasObjectItem(b->json->root, "networks")) return tws_build_described_turns(b, err);
  described_file f = {.d = {.b = b, .given = TWS_NONE}};
  return build_file(&f, err);
}
