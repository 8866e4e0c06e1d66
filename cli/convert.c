/* twinspeed convert: text to token files, configurations to strict JSON, a model to its numbers, a
 * checkpoint to weights. */
#include <string.h>
#include "base/json.h"
#include "base/units.h"
#include "checkpoint/export.h"
#include "checkpoint/folder.h"
#include "cli/outputs.h"
#include "models/network/network.h"

typedef struct options {
  int force;
  int64_t vocabulary_multiple;
  const char *tag;
} options;

static tws_code check_output(const options *o, const char *from, const char *to, tws_error *err) {
  const tws_output output = {"convert", to, NULL};
  const tws_inputs inputs = {.count = 1, .path = {from}};
  return tws_outputs_check(&output, 1, &inputs, o->force, err);
}

/* llm.c's GPT-2 token file: 256 int32 of header (20240520, version 1, number of tokens), then uint16 tokens. A byte of
 * the text is a token. Numbers are little-endian, as everywhere where this program runs. */
static tws_code convert_tokens(tws_cli *cli, const options *o, const char *from, const char *to, tws_error *err) {
  char *text;
  size_t length;
  TWS_TRY(check_output(o, from, to, err));
  TWS_TRY(tws_read_file(from, INT32_MAX, &text, &length, err)); /* as many as the header can count */
  size_t bytes = 1024 + 2 * length;
  unsigned char *out = tws_calloc(bytes, 1);
  tws_code code = TWS_OK;
  uint32_t magic = 0;
  if (length >= 1024) memcpy(&magic, text, sizeof magic);
  if (length == 0) code = tws_fail(err, TWS_INVALID, NULL, "%s is empty", from);
  if (magic == 20240520 || magic == 20240801)
    code = tws_fail(err, TWS_INVALID, "train takes it as it is", "%s is a file of tokens already", from);
  if (code == TWS_OK && !out) code = tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  if (code == TWS_OK) {
    int32_t header[3] = {20240520, 1, (int32_t)length};
    memcpy(out, header, sizeof header);
    for (size_t i = 0; i < length; i++) out[1024 + 2 * i] = (unsigned char)text[i];
    code = tws_write_file(to, (const char *)out, bytes, err);
  }
  tws_free(out);
  tws_free(text);
  TWS_TRY(code);
  if (cli->json) {
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "schema", "twinspeed-tokens-1");
    cJSON_AddStringToObject(root, "file", to);
    cJSON_AddNumberToObject(root, "tokens", (double)length);
    cJSON_AddNumberToObject(root, "vocabulary", 256);
    return tws_out_json(root, err);
  }
  tws_say(cli, "%s: %lld tokens, vocabulary 256 (bytes)", to, (long long)length);
  return TWS_OK;
}

static tws_code convert_config(const options *o, const char *from, const char *to, tws_error *err) {
  tws_json *json;
  TWS_TRY(check_output(o, from, to, err));
  TWS_TRY(tws_json_read_hjson(from, &json, err));
  char *text = cJSON_Print(json->root);
  tws_code code = text ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  if (code == TWS_OK && to) {
    tws_text line = {0};
    tws_text_add(&line, "%s\n", text);
    if (code == TWS_OK) code = tws_write_file(to, line.data ? line.data : "", line.length, err);
    tws_text_free(&line);
  } else if (code == TWS_OK) {
    tws_out("%s\n", text);
  }
  cJSON_free(text);
  tws_json_destroy(json);
  return code;
}

static cJSON *network_json(const tws_network *n) {
  cJSON *root = cJSON_CreateObject();
  cJSON_AddStringToObject(root, "schema", "twinspeed-model-1");
  cJSON_AddStringToObject(root, "name", n->name);
  cJSON_AddStringToObject(root, "architecture", n->architecture);
  const struct {
    const char *key;
    int64_t value;
  } rows[] = {{"parameters", tws_network_params(n, 0)},
              {"parameters_without_padding", tws_network_params(n, 1)},
              {"largest_layer_parameters", tws_network_largest_layer(n)},
              {"layers", n->layers},
              {"hidden", n->hidden},
              {"heads", n->heads},
              {"kv_heads", n->kv_heads},
              {"head_size", n->head_size},
              {"intermediate", n->intermediate},
              {"vocabulary", n->vocabulary},
              {"padded_vocabulary", n->padded_vocabulary},
              {"positions", n->positions}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
    cJSON_AddNumberToObject(root, rows[i].key, (double)rows[i].value);
  cJSON_AddBoolToObject(root, "tied_embeddings", n->tied);
  cJSON_AddNumberToObject(root, "training_flops_per_token", 3 * tws_network_flops_per_token(n, n->positions, 0));
  return root;
}

static tws_code convert_model(tws_cli *cli, const options *o, const char *from, tws_error *err) {
  tws_network *network;
  TWS_TRY(tws_network_load(from, o->vocabulary_multiple, &network, err));
  tws_code code = TWS_OK;
  cJSON *root = network_json(network);
  if (cli->json) {
    code = tws_out_json(root, err);
  } else {
    for (const cJSON *item = root ? root->child : NULL; item; item = item->next) {
      if (strcmp(item->string, "schema") == 0) continue;
      if (cJSON_IsString(item)) tws_out("%-28s %s\n", item->string, item->valuestring);
      if (cJSON_IsBool(item)) tws_out("%-28s %s\n", item->string, cJSON_IsTrue(item) ? "yes" : "no");
      if (cJSON_IsNumber(item)) tws_out("%-28s %.0f\n", item->string, item->valuedouble);
    }
    cJSON_Delete(root);
  }
  tws_network_destroy(network);
  return code;
}

static tws_code convert_checkpoint(tws_cli *cli, const options *o, const char *from, const char *to, tws_error *err) {
  char path[TWS_FOLDER_SIZE], count[32], bytes[32];
  tws_saved_index *index = NULL;
  tws_export_result result;
  TWS_TRY(check_output(o, from, to, err));
  TWS_TRY(tws_folder_find(from, o->tag, path, sizeof path, err));
  TWS_TRY(tws_saved_open(path, &index, err));
  const int64_t step = index->counters.steps;
  tws_code code = tws_saved_export(index, to, &result, err);
  tws_saved_close(index);
  TWS_TRY(code);
  if (cli->json) {
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "schema", "twinspeed-weights-1");
    cJSON_AddStringToObject(root, "checkpoint", path);
    cJSON_AddNumberToObject(root, "step", (double)step);
    cJSON_AddStringToObject(root, "file", to);
    cJSON_AddNumberToObject(root, "tensors", (double)result.tensors);
    cJSON_AddNumberToObject(root, "parameters", (double)result.parameters);
    cJSON_AddNumberToObject(root, "bytes", (double)result.bytes);
    return tws_out_json(root, err);
  }
  tws_say(cli, "%s: %s parameters in %lld tensors of %s, %s, step %lld", to,
          tws_format_count((double)result.parameters, count, sizeof count), (long long)result.tensors, path,
          tws_format_bytes((double)result.bytes, bytes, sizeof bytes), (long long)step);
  return TWS_OK;
}

static tws_code run(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  static const char *const kinds[] = {"tokens", "config", "model", "checkpoint"};
  const options *o = raw;
  const char *kind = argc > 0 ? argv[0] : "";
  if (strcmp(kind, "tokens") == 0) {
    if (argc != 3)
      return tws_fail(err, TWS_USAGE, "twinspeed convert tokens TEXT OUT.bin", "convert tokens: two files");
    return convert_tokens(cli, o, argv[1], argv[2], err);
  }
  if (strcmp(kind, "config") == 0) {
    if (argc < 2) return tws_fail(err, TWS_USAGE, "twinspeed convert config IN [OUT]", "convert config: no file");
    return convert_config(o, argv[1], argc > 2 ? argv[2] : NULL, err);
  }
  if (strcmp(kind, "model") == 0) {
    if (argc != 2) return tws_fail(err, TWS_USAGE, "twinspeed convert model MODEL", "convert model: one model");
    return convert_model(cli, o, argv[1], err);
  }
  if (strcmp(kind, "checkpoint") == 0) {
    if (argc != 3)
      return tws_fail(err, TWS_USAGE, "twinspeed convert checkpoint DIR OUT.safetensors",
                      "convert checkpoint: a folder and a file");
    return convert_checkpoint(cli, o, argv[1], argv[2], err);
  }
  const char *close = tws_closest(kind, kinds, 4);
  char hint[96];
  snprintf(hint, sizeof hint,
           close && *kind ? "did you mean \"%s\"?" : "twinspeed convert tokens|config|model|checkpoint ...", close);
  return tws_fail(err, TWS_USAGE, hint, "convert: say what: tokens, config, model or checkpoint");
}

static const tws_option table[] = {
    TWS_FLAG("force", 'f', options, force, "overwrite existing files"),
    TWS_INTEGER("vocab-multiple", 0, "N", options, vocabulary_multiple, 1, 65536, "model: pad the vocabulary to this"),
    TWS_STRING("tag", 0, "TAG", options, tag, "checkpoint: which (default: the one that DIR/latest names)"),
    TWS_OPTIONS_END};

const tws_verb tws_verb_convert = {
    .name = "convert",
    .summary = "text to tokens, configuration to strict JSON, model to numbers, checkpoint to weights",
    .usage = "tokens TEXT OUT.bin | config IN [OUT] | model MODEL | checkpoint DIR OUT.safetensors",
    .examples =
        "  twinspeed convert tokens book.txt book.bin\n"
        "  twinspeed convert config ds_config.json strict.json\n"
        "  twinspeed convert model config.json --json\n"
        "  twinspeed convert checkpoint run model.safetensors\n",
    .notes =
        "tokens: every byte is a token (vocabulary 256), in llm.c's file format: 256 int32 of header, then uint16.\n"
        "config: comments and trailing commas go; duplicate keys and other faults are errors with their place.\n"
        "checkpoint: the weights of a checkpoint of `train --save`, whatever divided it, in float32 with Hugging "
        "Face's\n"
        "names and shapes: beside the model's config.json, from_pretrained() loads it.\n",
    .options = table,
    .options_bytes = sizeof(options),
    .arguments_max = 3,
    .run = run,
};
