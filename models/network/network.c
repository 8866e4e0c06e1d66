#include "models/network/network.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include "models/kernel.h"
#include "models/network/build.h"
#include "models/network/onnx.h"

static const struct {
  const char *name, *model_type, *class_name, *prefix, *block;
  tws_code (*build)(tws_network_builder *b, tws_error *err);
} architectures[] = {
#define ARCHITECTURE(name, type, class_name, prefix, block) {#name, type, class_name, prefix, block, tws_build_##name},
#include "models/network/architectures.def"
};
enum { ARCHITECTURES = sizeof architectures / sizeof architectures[0] };

const char *tws_network_architecture_nth(int i) {
  int found = -1;
  for (int at = 0; i >= 0 && at < ARCHITECTURES; at++) {
    int before = 0;
    while (strcmp(architectures[before].model_type, architectures[at].model_type) != 0) before++;
    found += before == at;
    if (found == i) return architectures[at].model_type;
  }
  return NULL;
}

/* Writes the known model types into `hint`, those that differ least from `word` first, and returns `hint`. */
static const char *list_architectures(const char *word, char *hint, size_t size) {
  const char *types[ARCHITECTURES];
  size_t count = 0;
  for (const char *type; (type = tws_network_architecture_nth((int)count)) != NULL;) types[count++] = type;
  tws_names_hint(word, types, count, "known architectures:", "twinspeed convert list architectures", hint, size);
  return hint;
}

/* Returns the index of the row of architectures.def with this class, else of the first row with this model type; -1:
 * there is none. */
static int find_architecture(const char *type, const char *class_name) {
  int first = -1;
  for (int i = 0; i < ARCHITECTURES; i++) {
    if (type != NULL && strcmp(type, architectures[i].model_type) != 0) continue;
    if (class_name != NULL && strcmp(class_name, architectures[i].class_name) == 0) return i;
    if (type != NULL && first < 0) first = i;
  }
  return first;
}

/* Checks the class in the file. A model without a head gets the head with which it was pre-trained; an unknown head is
 * refused, because it would need another loss. */
static tws_code check_class(tws_network_builder *b, int chosen, const char *class_name, tws_error *err) {
  const char *modelled = architectures[chosen].class_name, *prefix = architectures[chosen].prefix;
  const size_t length = strlen(prefix);
  if (class_name == NULL || strcasecmp(class_name, modelled) == 0) return TWS_OK;
  if (strncasecmp(class_name, prefix, length) == 0 &&
      (strcmp(class_name + length, "Model") == 0 || strcmp(class_name + length, "TextModel") == 0)) {
    tws_text_add(&b->notes, "architectures names %.80s: modelled as %s, with its loss\n", class_name, modelled);
    return TWS_OK;
  }
  char hint[128];
  snprintf(hint, sizeof hint, "name %s, or leave architectures out, to train it with that loss", modelled);
  tws_json_fail(b->json, cJSON_GetObjectItemCaseSensitive(b->json->root, "architectures"), err, hint,
                "architectures names %.80s, which is not modelled", class_name);
  if (err != NULL) err->code = TWS_UNSUPPORTED;
  return TWS_UNSUPPORTED;
}

static tws_code choose_architecture(tws_network_builder *b, int *chosen, tws_error *err) {
  const tws_json *json = b->json;
  char hint[sizeof err->hint];
  if (!cJSON_IsObject(json->root)) {
    return tws_json_fail(json, json->root, err, "a model is described by a Hugging Face config.json",
                         "the document is not an object");
  }
  const char *type = NULL, *class_name = NULL;
  TWS_TRY(tws_json_string(json, json->root, "model_type", 0, NULL, &type, err));
  const cJSON *classes = cJSON_GetObjectItemCaseSensitive(json->root, "architectures");
  if (classes != NULL && !cJSON_IsNull(classes)) {
    const cJSON *item = cJSON_IsArray(classes) ? cJSON_GetArrayItem(classes, 0) : NULL;
    if (item == NULL || !cJSON_IsString(item)) {
      return tws_json_fail(json, classes, err, NULL, "\"architectures\" must be a list of class names");
    }
    class_name = item->valuestring;
  }
  if (type == NULL && class_name == NULL) {
    return tws_json_fail(json, json->root, err, list_architectures("", hint, sizeof hint),
                         "neither \"model_type\" nor \"architectures\" says which architecture this is");
  }
  *chosen = find_architecture(type, class_name);
  if (*chosen < 0) {
    const char *key = type != NULL ? "model_type" : "architectures", *word = type != NULL ? type : class_name;
    tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(json->root, key), err,
                  list_architectures(word, hint, sizeof hint), "architecture \"%.80s\" is not known", word);
    if (err != NULL) err->code = TWS_UNSUPPORTED;
    return TWS_UNSUPPORTED;
  }
  return check_class(b, *chosen, class_name, err);
}

static tws_code read_vocabulary(tws_network_builder *b, const char *architecture, int64_t multiple, tws_error *err) {
  tws_network *net = b->net;
  if (multiple < 0 || multiple > TWS_MAX_WIDTH) {
    return tws_fail(err, TWS_INVALID, "0 or 1 means no padding; 64 or 128 are common",
                    "vocabulary multiple %lld is outside 0 .. %d", (long long)multiple, TWS_MAX_WIDTH);
  }
  b->vocabulary_multiple = multiple;
  if (strcmp(architecture, "described") == 0) return TWS_OK; /* its builder reads its input */
  const cJSON *classes = cJSON_GetObjectItemCaseSensitive(b->json->root, "id2label");
  const int labels = cJSON_IsObject(classes) ? cJSON_GetArraySize(classes) : 2;
  if (strcmp(architecture, "vit") == 0) /* the head predicts classes */
    TWS_TRY(
        tws_build_size(b, "num_labels", NULL, 0, TWS_MAX_VOCABULARY, labels > 1 ? labels : 2, &net->vocabulary, err));
  else
    TWS_TRY(tws_build_size(b, "vocab_size", NULL, 1, TWS_MAX_VOCABULARY, 0, &net->vocabulary, err));
  if (multiple == 0) multiple = 1;
  net->padded_vocabulary = (net->vocabulary + multiple - 1) / multiple * multiple;
  return TWS_OK;
}

/* Reads the type in which the weights are stored: training uses this type unless the user chooses another. */
static tws_code read_dtype(tws_network_builder *b, tws_error *err) {
  static const char *const keys[] = {"dtype", "torch_dtype"};
  static const struct {
    const char *name;
    tws_dtype dtype;
  } types[] = {{"float32", TWS_F32}, {"bfloat16", TWS_BF16}, {"float16", TWS_F16}, {"auto", TWS_F32}};
  const char *text = NULL;
  for (int i = 0; i < 2 && text == NULL; i++)
    TWS_TRY(tws_json_string(b->json, b->json->root, keys[i], 0, NULL, &text, err));
  if (text == NULL) return TWS_OK;
  if (strncmp(text, "torch.", 6) == 0) text += 6;
  for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
    if (strcmp(types[i].name, text) == 0) {
      b->net->dtype = types[i].dtype;
      return TWS_OK;
    }
  tws_text_add(&b->notes, "the type %.40s is not one to train with: fp32 is assumed\n", text);
  return TWS_OK;
}

/* Returns 1 if the member has the form that bitsandbytes writes for a model quantized to 4 bits. */
static int is_nf4(const cJSON *item) {
  const cJSON *type = cJSON_GetObjectItemCaseSensitive(item, "bnb_4bit_quant_type");
  return strcmp(item->string, "quantization_config") == 0 && cJSON_IsString(type) &&
         strcmp(type->valuestring, "nf4") == 0 &&
         !cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(item, "load_in_4bit"));
}

static tws_code build(tws_network_builder *b, int64_t multiple, tws_error *err) {
  int chosen = -1;
  TWS_TRY(choose_architecture(b, &chosen, err));
  TWS_TRY(read_vocabulary(b, architectures[chosen].name, multiple, err));
  TWS_TRY(read_dtype(b, err));
  b->net->architecture = architectures[chosen].name;
  b->net->class_name = architectures[chosen].class_name;
  b->net->class_prefix = architectures[chosen].prefix;
  b->net->class_block = architectures[chosen].block;
  TWS_TRY(architectures[chosen].build(b, err));
  if (b->unknown != NULL && is_nf4(b->unknown)) {
    tws_json_fail(b->json, b->unknown, err,
                  "take quantization_config out of the file, and plan it with --set "
                  "twinspeed.frozen_quantization.type=nf4 and adapters (twinspeed.lora), or for inference with "
                  "--weights nf4",
                  "the file is of a checkpoint whose weights are quantized to nf4");
    if (err != NULL) err->code = TWS_UNSUPPORTED;
    return TWS_UNSUPPORTED;
  }
  if (b->unknown != NULL) {
    tws_json_fail(b->json, b->unknown, err, "if it changes nothing, take it out of the file",
                  "\"%.80s\" is not known for %s: what it changes would be left out", b->unknown->string,
                  architectures[chosen].model_type);
    if (err != NULL) err->code = TWS_UNSUPPORTED;
    return TWS_UNSUPPORTED;
  }
  b->net->notes = b->notes.data != NULL ? tws_arena_strdup(b->net->arena, b->notes.data) : "";
  if (b->failed || b->notes.failed || b->net->notes == NULL) {
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the model's graph");
  }
  if (b->too_large) {
    return tws_json_fail(b->json, b->json->root, err, "check the sizes: the largest models have about 2^41",
                         "the model has more than 2^50 parameters");
  }
  return TWS_OK;
}

tws_code tws_network_create(const char *name, tws_network **out, tws_error *err) {
  *out = NULL;
  tws_arena *arena = tws_arena_create();
  tws_network *net = arena != NULL ? tws_arena_alloc(arena, 1, sizeof *net) : NULL;
  if (net != NULL) *net = (tws_network){.arena = arena, .architecture = name, .notes = "", .logits = TWS_NONE};
  if (net != NULL) net->name = tws_arena_strdup(arena, name);
  if (net == NULL || net->name == NULL) {
    tws_arena_destroy(arena);
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the model's graph");
  }
  *out = net;
  return TWS_OK;
}

tws_code tws_network_from_json(const tws_json *json, int64_t vocabulary_multiple, tws_network **out, tws_error *err) {
  *out = NULL;
  tws_network *net = NULL;
  TWS_TRY(tws_network_create(json->name != NULL ? json->name : "model", &net, err));
  tws_network_builder b = {.net = net, .json = json};
  tws_code code = build(&b, vocabulary_multiple, err);
  tws_text_free(&b.notes);
  if (code != TWS_OK)
    tws_network_destroy(net);
  else
    *out = net;
  return code;
}

/* Fails for a name that is neither built in nor a file, and suggests similar names. */
static tws_code unknown_model(const char *spec, tws_error *err) {
  const char *const *names = tws_network_builtin_names();
  size_t count = 0;
  while (names[count] != NULL) count++;
  char hint[sizeof err->hint];
  tws_names_hint(spec, names, count,
                 "of others, give the config.json or its folder; built in:", "twinspeed convert list models", hint,
                 sizeof hint);
  return tws_fail(err, TWS_INVALID, hint, "\"%.200s\" is neither a built-in model nor a file", spec);
}

int tws_network_file_has_weights(const char *spec) {
  return tws_onnx_is_path(spec) && !tws_network_builtin(spec);
}

static tws_code load_onnx(const char *path, int64_t vocabulary_multiple, tws_network **out, tws_error *err) {
  tws_onnx_model *model;
  const tws_json *json;
  TWS_TRY(tws_onnx_read(path, &model, &json, err));
  tws_code code = tws_network_from_json(json, vocabulary_multiple, out, err);
  if (code == TWS_OK) code = tws_onnx_give_weights(model, *out, err);
  if (code != TWS_OK) {
    tws_network_destroy(*out);
    *out = NULL;
  }
  tws_onnx_close(model);
  return code;
}

tws_code tws_network_load(const char *spec, int64_t vocabulary_multiple, tws_network **out, tws_error *err) {
  *out = NULL;
  tws_json *json = NULL;
  const char *text = spec[0] == '{' ? spec : tws_network_builtin(spec);
  if (!text && access(spec, F_OK) != 0) { /* no file: the name may be that of the Hugging Face hub */
    const char *name = tws_network_builtin_of_hub(spec);
    if (name) return tws_network_load(name, vocabulary_multiple, out, err);
  }
  if (text != NULL) {
    TWS_TRY(tws_json_parse(text, strlen(text), text == spec ? "network" : spec, &json, err));
  } else {
    char path[4096];
    struct stat status;
    int folder = 0;
    if (strcmp(spec, "-") != 0) {
      if (stat(spec, &status) != 0) {
        const size_t size = strlen(spec); /* spec does not exist: it is a missing path or an unknown name */
        if (strchr(spec, '/') || tws_onnx_is_path(spec) || (size > 5 && strcmp(spec + size - 5, ".json") == 0))
          return tws_fail(err, TWS_IO,
                          spec[0] != '/' && spec[0] != '.' && strchr(spec, '/')
                              ? "of a model on the Hugging Face hub, "
                                "download its config.json first and give the path of that"
                              : NULL,
                          "cannot open %.400s: %s", spec, strerror(errno));
        return unknown_model(spec, err);
      }
      folder = S_ISDIR(status.st_mode);
      if (!folder && tws_onnx_is_path(spec)) return load_onnx(spec, vocabulary_multiple, out, err);
    }
    int length = snprintf(path, sizeof path, folder ? "%s/config.json" : "%s", spec);
    if (length < 0 || (size_t)length >= sizeof path)
      return tws_fail(err, TWS_INVALID, NULL, "the model's path is too long");
    if (folder && access(path, F_OK) != 0 && errno == ENOENT)
      return tws_fail(err, TWS_IO,
                      "a model's folder is what the Hugging Face hub gives: its config.json says the sizes",
                      "%.400s has no config.json", spec);
    TWS_TRY(folder ? tws_json_read_regular(path, &json, err) : tws_json_read(path, &json, err));
  }
  tws_code code = tws_network_from_json(json, vocabulary_multiple, out, err);
  tws_json_destroy(json);
  return code;
}

void tws_network_destroy(tws_network *network) {
  if (network != NULL) tws_arena_destroy(network->arena);
}

int tws_linear_scores_words(const tws_network *network, const tws_module *m) {
  return m->type == TWS_MODULE_LINEAR && m->layer == -2 && m->out_features == network->padded_vocabulary;
}

/* Returns the number of a parameter's elements that exist only because the vocabulary is padded. */
static int64_t padding_of(const tws_network *network, uint32_t index) {
  const tws_param *param = &network->params[index];
  const tws_module *m = &network->modules[param->module];
  const int64_t padding = network->padded_vocabulary - network->vocabulary;
  if (m->type == TWS_MODULE_EMBEDDING ? m->param[0] != index : !tws_linear_scores_words(network, m)) return 0;
  if (param->rows == network->padded_vocabulary) return padding * param->columns;
  return param->columns == network->padded_vocabulary ? padding : 0; /* a bias with one element per vocabulary score */
}

int64_t tws_network_params(const tws_network *network, int without_padding) {
  int64_t total = 0;
  for (uint32_t i = 0; i < network->param_count; i++)
    total += tws_param_numel(&network->params[i]) - (without_padding ? padding_of(network, i) : 0);
  return total;
}

int tws_network_has_experts(const tws_network *network) {
  for (uint32_t i = 0; i < network->param_count; i++)
    if (network->params[i].experts > 0) return 1;
  return 0;
}

int64_t tws_network_active_params(const tws_network *network, int without_padding) {
  int64_t total = tws_network_params(network, without_padding);
  for (uint32_t i = 0; i < network->param_count; i++) {
    const tws_param *p = &network->params[i];
    if (p->experts > 0)
      total -= tws_param_numel(p) / p->experts * (p->experts - network->modules[p->module].routing->choices);
  }
  return total;
}

static int64_t largest_part(const tws_param *param) {
  int64_t rows = 0;
  for (int i = 0; i < 3 && param->groups == 0; i++) rows = param->fused[i] > rows ? param->fused[i] : rows;
  if (rows == 0) return tws_param_numel(param) / (param->experts > 0 ? param->experts : 1);
  return param->rows == 1 ? rows : rows * param->columns; /* a fused bias is one row */
}

int64_t tws_network_largest_layer(const tws_network *network) {
  int64_t largest = 0;
  for (uint32_t i = 0; i < network->module_count; i++) {
    const tws_module *module = &network->modules[i];
    int64_t own = 0;
    for (int p = 0; p < TWS_MODULE_PARAMS; p++) {
      if (module->param[p] == TWS_NONE) continue;
      int64_t part = largest_part(&network->params[module->param[p]]);
      if (module->type == TWS_MODULE_EMBEDDING)
        own = part > own ? part : own;
      else
        own += part;
    }
    largest = own > largest ? own : largest;
  }
  return largest;
}

int tws_network_pictures(const tws_network *network) {
  int count = 0;
  for (uint32_t i = 0; i < network->input_count; i++) count += network->input[i].content == TWS_INPUT_NUMBERS;
  return count;
}

tws_picture tws_network_picture(const tws_network *network, int index) {
  int at = 0;
  for (uint32_t i = 0; i < network->input_count; i++) {
    const tws_network_input *in = &network->input[i];
    if (in->content == TWS_INPUT_NUMBERS && at++ == index && index > 0)
      return (tws_picture){.side = in->dim[1].size, .patch = 1, .channels = in->dim[3].size};
  }
  return network->picture;
}

uint32_t tws_network_losses(const tws_network *network) {
  uint32_t losses = 0;
  for (uint32_t m = 0; m < network->module_count; m++) losses += network->modules[m].type == TWS_MODULE_LOSS;
  return losses;
}

uint64_t tws_loss_slot(const tws_network *network, const tws_module *loss) {
  uint64_t slot = TWS_METRIC_HEADS;
  for (const tws_module *m = network->modules; m < loss; m++) slot += m->type == TWS_MODULE_LOSS ? 2 : 0;
  return slot;
}

int tws_module_scores_words(const tws_network *network, uint32_t m) {
  return network->classes == 0 && network->modules[m].in_features == network->vocabulary;
}

int64_t tws_network_usual_sequence(const tws_network *network) {
  enum { USUAL = 512 };
  return network->positions > 0 ? network->positions : USUAL;
}
