/* twinspeed convert: converts text to token files, configurations to strict JSON, a model to its sizes, a checkpoint to
 * files of weights, and descriptions of nodes to clusters and profiles. */
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/json.h"
#include "base/units.h"
#include "checkpoint/deepspeed.h"
#include "checkpoint/export.h"
#include "checkpoint/folder.h"
#include "checkpoint/merge.h"
#include "cli/convert_cluster.h"
#include "cli/outputs.h"
#include "models/network/network.h"
#include "tokens/corpus.h"
#include "tokens/samples.h"

typedef struct options {
  int force;
  int64_t vocabulary_multiple;
  const char *tag;
  const char *tokenizer, *field, *eval; /* options of the conversion to token files */
  double eval_share;
  int megatron;
  const char *profile; /* name of the profile, for the conversion of a topology or of a log of nccl-tests */
  int64_t nodes, longest;
} options;

static tws_code check_output(const options *o, const char *from, const char *to, tws_error *err) {
  const tws_output output = {"convert", to, NULL};
  const tws_inputs inputs = {.count = from != NULL, .path = {from}};
  return tws_outputs_check(&output, 1, &inputs, o->force, err);
}

/* Returns the path of the second file of a Megatron data set; NULL: there is none. */
static const char *index_beside(const options *o, const char *to, char *path, size_t size) {
  const size_t length = to && o->megatron ? strlen(to) : 0;
  if (length < 5 || strcmp(to + length - 4, ".bin") != 0) return NULL;
  snprintf(path, size, "%.*s.idx", (int)(length - 4), to);
  return path;
}

static tws_code check_tokens(const options *o, const char *from, const char *to, tws_error *err) {
  char index[TWS_FOLDER_SIZE], eval_index[TWS_FOLDER_SIZE];
  const tws_output outputs[] = {{"convert", to, NULL},
                                {"--eval", o->eval, NULL},
                                {"--megatron", index_beside(o, to, index, sizeof index), NULL},
                                {"--megatron", index_beside(o, o->eval, eval_index, sizeof eval_index), NULL}};
  tws_inputs inputs = {.count = 1, .path = {from}};
  tws_inputs_add(&inputs, o->tokenizer);
  if (!o->eval && o->eval_share > 0)
    return tws_fail(err, TWS_USAGE, "give --eval OUT.bin too", "convert tokens: --eval-share without --eval");
  return tws_outputs_check(outputs, 4, &inputs, o->force, err);
}

static tws_code convert_samples(tws_cli *cli, const options *o, const char *from, const char *to, tws_error *err) {
  tws_samples_result r;
  tws_samples_request request = {.from = from, .to = to, .longest = o->longest};
  if (!o->tokenizer)
    return tws_fail(err, TWS_USAGE, "give --tokenizer FILE; texts of bytes need no conversion",
                    "convert samples: no tokenizer was given");
  TWS_TRY(check_output(o, from, to, err));
  TWS_TRY(tws_tokenizer_open(o->tokenizer, &request.tokenizer, err));
  const tws_code code = tws_samples_convert(&request, &r, err);
  tws_tokenizer_close(request.tokenizer);
  TWS_TRY(code);
  if (cli->json) {
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "schema", "twinspeed-samples-1");
    cJSON_AddStringToObject(root, "file", to);
    cJSON_AddNumberToObject(root, "samples", (double)r.samples);
    cJSON_AddNumberToObject(root, "truncated", (double)r.cut);
    cJSON_AddNumberToObject(root, "answers_lost", (double)r.lost);
    return tws_out_json(root, err);
  }
  tws_say(cli, "%s: %lld samples, %lld truncated, which lose %lld answers", to, (long long)r.samples, (long long)r.cut,
          (long long)r.lost);
  return TWS_OK;
}

static cJSON *tokens_json(const options *o, const char *to, const tws_corpus_result *r) {
  cJSON *root = cJSON_CreateObject();
  cJSON_AddStringToObject(root, "schema", "twinspeed-tokens-1");
  cJSON_AddStringToObject(root, "file", to);
  cJSON_AddNumberToObject(root, "tokens", (double)r->tokens);
  cJSON_AddNumberToObject(root, "vocabulary", (double)r->vocabulary);
  cJSON_AddNumberToObject(root, "documents", (double)r->documents);
  if (r->end >= 0) cJSON_AddNumberToObject(root, "end_of_text", (double)r->end);
  if (o->eval) cJSON_AddStringToObject(root, "eval_file", o->eval);
  if (o->eval) cJSON_AddNumberToObject(root, "eval_tokens", (double)r->eval_tokens);
  return root;
}

static tws_code convert_tokens(tws_cli *cli, const options *o, const char *from, const char *to, tws_error *err) {
  tws_tokenizer *tokenizer = NULL;
  tws_corpus_result r;
  char eval[64] = "", end[48] = "";
  TWS_TRY(check_tokens(o, from, to, err));
  if (o->tokenizer) TWS_TRY(tws_tokenizer_open(o->tokenizer, &tokenizer, err));
  const tws_corpus_request request = {.from = from,
                                      .to = to,
                                      .eval_to = o->eval,
                                      .eval_share = o->eval_share > 0 ? o->eval_share : 0.1,
                                      .field = o->field,
                                      .tokenizer = tokenizer,
                                      .megatron = o->megatron};
  const tws_code code = tws_corpus_convert(&request, &r, err);
  tws_tokenizer_close(tokenizer);
  TWS_TRY(code);
  if (cli->json) return tws_out_json(tokens_json(o, to, &r), err);
  if (o->eval) snprintf(eval, sizeof eval, ", and %lld for evaluation", (long long)r.eval_tokens);
  if (r.end >= 0) snprintf(end, sizeof end, ", token %lld after each", (long long)r.end);
  tws_say(cli, "%s: %lld tokens%s of %lld document%s%s, vocabulary %lld%s", to, (long long)r.tokens, eval,
          (long long)r.documents, r.documents == 1 ? "" : "s", end, (long long)r.vocabulary,
          o->tokenizer ? "" : " (bytes)");
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
  cJSON_AddNumberToObject(root, "training_flops_per_token",
                          tws_network_training_flops_per_token(n, tws_network_usual_sequence(n), 0, 0));
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

/* Prints the result of an export from a checkpoint, or with step -1 from files of weights. */
static tws_code tell_weights(tws_cli *cli, const char *from, const char *to, int64_t step, const char *note,
                             const tws_export_result *result, tws_error *err) {
  char count[32], bytes[32], at[32] = "";
  if (cli->json) {
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "schema", "twinspeed-weights-1");
    cJSON_AddStringToObject(root, "checkpoint", from);
    if (step >= 0) cJSON_AddNumberToObject(root, "step", (double)step);
    cJSON_AddStringToObject(root, "file", to);
    cJSON_AddNumberToObject(root, "tensors", (double)result->tensors);
    cJSON_AddNumberToObject(root, "parameters", (double)result->parameters);
    cJSON_AddNumberToObject(root, "bytes", (double)result->bytes);
    return tws_out_json(root, err);
  }
  if (step >= 0) snprintf(at, sizeof at, ", step %lld", (long long)step);
  tws_say(cli, "%s: %s parameters in %lld tensors of %s, %s%s%s", to,
          tws_format_count((double)result->parameters, count, sizeof count), (long long)result->tensors, from,
          tws_format_bytes((double)result->bytes, bytes, sizeof bytes), at, note);
  return TWS_OK;
}

static tws_code convert_deepspeed(tws_cli *cli, const char *path, const char *to, tws_error *err) {
  tws_deepspeed checkpoint;
  tws_export_result result;
  char note[96];
  TWS_TRY(tws_deepspeed_open(path, &checkpoint, err));
  tws_code code = tws_gathering_write(&checkpoint.weights, to, &result, err);
  const int64_t step = checkpoint.step;
  if (checkpoint.masters && checkpoint.ranks == 0)
    snprintf(note, sizeof note, "; DeepSpeed's, universal");
  else if (checkpoint.masters)
    snprintf(note, sizeof note, "; DeepSpeed's, ZeRO %lld, %lld rank%s", (long long)checkpoint.stage,
             (long long)checkpoint.ranks, checkpoint.ranks == 1 ? "" : "s");
  else
    snprintf(note, sizeof note, "; DeepSpeed's, the module's own weights (no ZeRO)");
  tws_deepspeed_close(&checkpoint);
  return code == TWS_OK ? tell_weights(cli, path, to, step, note, &result, err) : code;
}

/* Writes a file into the folder of the adapters. */
static tws_code write_beside(const options *o, const tws_saved_index *index, const char *to, const char *name,
                             void (*write)(const tws_saved_index *index, tws_text *out), tws_error *err) {
  char path[TWS_FOLDER_SIZE];
  tws_text text = {0};
  const char *slash = strrchr(to, '/');
  snprintf(path, sizeof path, "%.*s%s", slash ? (int)(slash + 1 - to) : 0, to, name);
  TWS_TRY(check_output(o, index->path, path, err));
  write(index, &text);
  tws_code code = text.failed ? tws_fail(err, TWS_MEMORY, NULL, "out of memory")
                              : tws_write_file(path, text.data, text.length, err);
  tws_text_free(&text);
  return code;
}

/* Writes the configuration file for PEFT, and the rounding of the base's quantized weights. */
static tws_code describe_adapter(const options *o, const tws_saved_index *index, const char *to, tws_error *err) {
  TWS_TRY(write_beside(o, index, to, "adapter_config.json", tws_adapter_config, err));
  return index->block > 0 ? write_beside(o, index, to, TWS_ROUNDING_FILE, tws_adapter_rounding, err) : TWS_OK;
}

static tws_code convert_merge(tws_cli *cli, const options *o, char **argv, tws_error *err) {
  tws_export_result result;
  TWS_TRY(check_output(o, argv[1], argv[3], err));
  TWS_TRY(tws_adapter_merge(argv[1], argv[2], argv[3], &result, err));
  return tell_weights(cli, argv[2], argv[3], -1, ", added to their base", &result, err);
}

static tws_code convert_saved(tws_cli *cli, const options *o, const char *path, const char *to, tws_error *err) {
  tws_saved_index *index = NULL;
  tws_export_result result;
  TWS_TRY(tws_saved_open(path, &index, err));
  const int64_t step = index->counters.steps;
  tws_code code = tws_saved_export(index, to, &result, err);
  if (code == TWS_OK && index->lora_r > 0) code = describe_adapter(o, index, to, err);
  tws_saved_close(index);
  return code == TWS_OK ? tell_weights(cli, path, to, step, "", &result, err) : code;
}

/* Converts a checkpoint. A running job with --keep may remove it while it is read; then the newest one is read
 * instead. */
static tws_code convert_newest(tws_cli *cli, const options *o, const char *from, const char *to, tws_error *err) {
  enum { TRIES = 20 };
  char path[TWS_FOLDER_SIZE], newer[TWS_TAG_SIZE];
  for (int i = 0;; i++) {
    TWS_TRY(tws_folder_find(from, o->tag, path, sizeof path, err));
    if (tws_deepspeed_is(path)) return convert_deepspeed(cli, path, to, err);
    const tws_code code = convert_saved(cli, o, path, to, err);
    if (code == TWS_OK || o->tag || i == TRIES) return code;
    (void)tws_folder_is_removed(path, newer, sizeof newer);
    if (!*newer) return code;
    tws_say(cli, "%s was replaced meanwhile by the job that saves there; %s is read", path, newer);
    if (err) *err = (tws_error){0};
  }
}

static tws_code convert_checkpoint(tws_cli *cli, const options *o, const char *from, const char *to, tws_error *err) {
  tws_export_result result;
  TWS_TRY(check_output(o, from, to, err));
  if (!o->tag && tws_deepspeed_is(from)) return convert_deepspeed(cli, from, to, err);
  if (!o->tag && tws_weights_is(from)) {
    TWS_TRY(tws_weights_convert(from, to, &result, err));
    return tell_weights(cli, from, to, -1, "", &result, err);
  }
  return convert_newest(cli, o, from, to, err);
}

static tws_code run(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  static const char *const kinds[] = {"tokens",   "samples",    "config",  "model",   "checkpoint", "merge",
                                      "topology", "nccl-tests", "profile", "cluster", "list"};
  const options *o = raw;
  const char *kind = argc > 0 ? argv[0] : "";
  const int samples = strcmp(kind, "samples") == 0;
  if (samples || strcmp(kind, "tokens") == 0) {
    if (argc != 3)
      return tws_fail(err, TWS_USAGE,
                      samples ? "twinspeed convert samples IN OUT.jsonl --tokenizer tokenizer.json"
                              : "twinspeed convert tokens TEXT OUT.bin",
                      "convert %s: two files", kind);
    return samples ? convert_samples(cli, o, argv[1], argv[2], err) : convert_tokens(cli, o, argv[1], argv[2], err);
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
  if (strcmp(kind, "merge") == 0) {
    if (argc != 4)
      return tws_fail(err, TWS_USAGE, "twinspeed convert merge BASE ADAPTER OUT.safetensors",
                      "convert merge: weights, an adapter's folder and a file");
    return convert_merge(cli, o, argv, err);
  }
  const int topology = strcmp(kind, "topology") == 0;
  if (topology || strcmp(kind, "nccl-tests") == 0) {
    if (argc != 3)
      return tws_fail(err, TWS_USAGE,
                      topology ? "twinspeed convert topology IN OUT.json"
                               : "twinspeed convert nccl-tests LOG OUT.json --profile NAME",
                      "convert %s: two files", kind);
    TWS_TRY(check_output(o, argv[1], argv[2], err));
    return topology ? tws_convert_topology(cli, argv[1], argv[2], o->profile, o->nodes > 0 ? (int)o->nodes : 1, err)
                    : tws_convert_nccl_tests(cli, argv[1], argv[2], o->profile, err);
  }
  const int profile = strcmp(kind, "profile") == 0;
  if (profile || strcmp(kind, "cluster") == 0) {
    if (argc != 3)
      return tws_fail(err, TWS_USAGE,
                      profile ? "twinspeed convert profile NAME OUT.json, \"-\" for standard output"
                              : "twinspeed convert cluster NAME[:NODES] OUT.json, \"-\" for standard output",
                      "convert %s: a name and a file", kind);
    TWS_TRY(check_output(o, NULL, strcmp(argv[2], "-") == 0 ? NULL : argv[2], err));
    return tws_convert_builtin(cli, profile, argv[1], argv[2], err);
  }
  if (strcmp(kind, "list") == 0) return tws_convert_list(cli, argc == 2 ? argv[1] : "", err);
  const char *close = tws_closest(kind, kinds, sizeof kinds / sizeof *kinds);
  char hint[128];
  snprintf(hint, sizeof hint,
           close && *kind ? "did you mean \"%s\"?"
                          : "twinspeed convert "
                            "tokens|samples|config|model|checkpoint|merge|topology|nccl-tests|profile|cluster|list ...",
           close);
  return tws_fail(
      err, TWS_USAGE, hint,
      "convert: say what: tokens, samples, config, model, checkpoint, merge, topology, nccl-tests, profile, cluster or "
      "list");
}

static const tws_option table[] = {
    TWS_FLAG("force", 'f', options, force, "overwrite existing files"),
    TWS_STRING("tokenizer", 0, "FILE", options, tokenizer,
               "tokens: a tokenizer.json (default: a byte is a token); samples: the model's"),
    TWS_INTEGER("seq", 0, "N", options, longest, 1, 1 << 20, "samples: truncate to this many tokens"),
    TWS_STRING("field", 0, "NAME", options, field,
               "tokens: member with the text in the lines of a .jsonl file (default: text)"),
    TWS_STRING("eval", 0, "OUT.bin", options, eval,
               "tokens: write a share of the documents to this file, for evaluation"),
    TWS_NUMBER("eval-share", 0, "SHARE", options, eval_share, 1e-6, 0.999999,
               "tokens: the share for --eval (default 0.1)"),
    TWS_FLAG("megatron", 0, options, megatron, "tokens: write OUT.bin and OUT.idx as Megatron does"),
    TWS_INTEGER("vocab-multiple", 0, "N", options, vocabulary_multiple, 1, 65536, "model: pad the vocabulary to this"),
    TWS_STRING("tag", 0, "TAG", options, tag, "checkpoint: its name (default: the one that DIR/latest names)"),
    TWS_STRING("profile", 0, "NAME", options, profile,
               "topology: profile of its GPUs; nccl-tests: profile that gets the table"),
    TWS_INTEGER("nodes", 0, "N", options, nodes, 1, 65536, "topology: number of such nodes (default 1)"),
    TWS_OPTIONS_END};

const tws_verb tws_verb_convert = {
    .name = "convert",
    .summary = "text to tokens, configuration to strict JSON, model to numbers, checkpoint to weights",
    .usage =
        "tokens TEXT OUT.bin | samples IN OUT.jsonl | config IN [OUT] | model MODEL | checkpoint DIR OUT.safetensors "
        "|\n"
        "                 merge BASE ADAPTER OUT.safetensors | topology IN OUT.json | nccl-tests LOG OUT.json |\n"
        "                 profile NAME OUT.json | cluster NAME[:NODES] OUT.json | list KIND",
    .examples =
        "  twinspeed convert tokens book.txt book.bin\n"
        "  twinspeed convert tokens pages.jsonl train.bin --tokenizer tokenizer.json --eval eval.bin --eval-share "
        "0.05\n"
        "  twinspeed convert samples dev-v2.0.json dev.jsonl --tokenizer tokenizer.json --seq 384\n"
        "  twinspeed convert config ds_config.json strict.json\n"
        "  twinspeed convert model config.json --json\n"
        "  twinspeed convert checkpoint run model.safetensors\n"
        "  twinspeed convert checkpoint pytorch_model.bin model.safetensors\n"
        "  twinspeed convert merge model.safetensors adapter merged.safetensors\n"
        "  twinspeed convert topology node.xml cluster.json --nodes 16\n"
        "  twinspeed convert nccl-tests all_reduce.log gpu.json --profile h100-sxm\n"
        "  twinspeed convert profile rtx-4090 mine.json\n"
        "  twinspeed convert cluster aws-p5.48xlarge:4 -\n",
    .notes =
        "tokens: a text, or JSON lines (.jsonl) with a document each, after which the tokenizer's end-of-text token\n"
        "is written. Without --tokenizer every byte is a token (vocabulary 256). Writes llm.c's token files, or\n"
        "Megatron's.\n"
        "samples: SQuAD's file, or lines of questions or of labelled texts, as lists of tokens for train and predict\n"
        "(docs/encoders.md).\n"
        "config: removes comments and trailing commas; duplicate keys and other faults are errors with their\n"
        "position.\n"
        "checkpoint: the weights of any checkpoint of `train --save` in float32 with Hugging Face's names and\n"
        "shapes; next to the model's config.json, from_pretrained() loads them. DIR may also be a checkpoint of\n"
        "DeepSpeed (ZeRO 0 to 3, with its module's names, as zero_to_fp32), or a pytorch_model.bin or its index. For\n"
        "a training with adapters (twinspeed.lora) it writes the adapters with PEFT's names, and next to them\n"
        "adapter_config.json.\n"
        "merge: adds adapters of PEFT or of Twinspeed to the weights of their base, in\n"
        "float32.\n"
        "topology: converts a node's NCCL_TOPO_DUMP_FILE (XML) or `nvidia-smi topo -m` to a cluster\n"
        "file.\n"
        "nccl-tests: converts a log of all_reduce_perf or a related program on one node to a table of a\n"
        "profile.\n"
        "profile, cluster: a built-in one as a file, with its published figures, their confidence and their sources,\n"
        "to read or to change (docs/hardware.md lists them). \"-\" prints it.\n"
        "list: the built-in clusters, profiles, models, architectures or runtimes, one name a line.\n",
    .options = table,
    .options_bytes = sizeof(options),
    .arguments_max = 4,
    .run = run,
};
