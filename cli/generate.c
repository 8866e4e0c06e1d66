/* twinspeed generate: continues a text with a trained model. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/json.h"
#include "base/number.h"
#include "cli/job_options.h"
#include "job/modules.h"
#include "launch/launch.h"
#include "tokens/tokenizer.h"

typedef struct options {
  tws_job_spec job;
  const char *resume, *tag, *init_from, *prompt, *prompt_file, *prompt_ids, *tokenizer;
  int64_t tokens, top_k;
  double temperature, top_p;
} options;

typedef tws_token_list tokens;

/* Appends the tokens of a text. Without a tokenizer, the tokens are its bytes. */
static tws_code add_text(tws_tokenizer *tokenizer, tokens *list, const char *text, size_t length, tws_error *err) {
  if (tokenizer) {
    const tws_code code = tws_tokenizer_encode(tokenizer, text, length, 1, list, err);
    return code == TWS_OK ? code : tws_fail_in(err, code, "the prompt");
  }
  for (size_t i = 0; i < length; i++) TWS_TRY(tws_token_add(list, (unsigned char)text[i], err));
  return TWS_OK;
}

/* Appends the tokens of a text such as "464, 2068 7586": numbers separated by commas or blanks. */
static tws_code add_ids(tokens *list, const char *text, tws_error *err) {
  for (const char *at = text; *at;) {
    const char *end;
    int64_t id;
    if (!tws_text_integer(at, &end, 0, INT32_MAX, &id))
      return tws_fail(err, TWS_USAGE, "for example --prompt-ids 464,2068,7586", "--prompt-ids: \"%.40s\" is no token",
                      at);
    TWS_TRY(tws_token_add(list, id, err));
    at = end + strspn(end, ", \t\n");
  }
  return TWS_OK;
}

static tws_code read_prompt(const options *o, tws_tokenizer *tokenizer, tokens *list, tws_error *err) {
  const int given = (o->prompt != NULL) + (o->prompt_file != NULL) + (o->prompt_ids != NULL);
  if (given != 1)
    return tws_fail(err, TWS_USAGE, "give one of --prompt TEXT, --prompt-file FILE and --prompt-ids IDS",
                    given ? "generate: several prompts were given" : "generate: no prompt was given");
  if (o->prompt) return add_text(tokenizer, list, o->prompt, strlen(o->prompt), err);
  if (o->prompt_ids) return add_ids(list, o->prompt_ids, err);
  char *text = NULL;
  size_t length = 0;
  TWS_TRY(tws_read_file(o->prompt_file, 0, &text, &length, err));
  tws_code code = add_text(tokenizer, list, text, length, err);
  tws_free(text);
  return code;
}

typedef struct printer {
  const tws_cli *cli;
  int ids;            /* 1: tokens are printed as numbers */
  const char *prompt; /* text that is printed before the first token; NULL: none is requested, or it was printed */
  tws_tokenizer *tokenizer;
  /* all generated tokens; with a tokenizer also the prompt's, since decoding a token depends on those before it */
  tokens all;
  size_t shown; /* number of bytes of the text that were printed */
  tokens made;
  cJSON *log_probabilities;
} printer;

/* Prints the new part of the decoded text. An incomplete UTF-8 character is held back. */
static tws_code print_text(printer *p, int last, tws_error *err) {
  static const char replacement[] = "\xef\xbf\xbd";
  char *text = NULL;
  size_t length = 0;
  TWS_TRY(tws_tokenizer_decode(p->tokenizer, p->all.id, p->all.count, 0, &text, &length, err));
  size_t whole = length;
  while (!last && whole >= 3 && memcmp(text + whole - 3, replacement, 3) == 0) whole -= 3;
  if (whole > p->shown) tws_out_bytes(text + p->shown, whole - p->shown);
  if (whole > p->shown) p->shown = whole;
  tws_free(text);
  return TWS_OK;
}

static void print_token(void *user, int32_t token, double log_probability) {
  printer *p = user;
  const char byte = (char)token;
  if (p->prompt) tws_out_bytes(p->prompt, strlen(p->prompt));
  p->prompt = NULL;
  if (p->cli->json) {
    tws_token_add(&p->made, token, NULL);
    cJSON_AddItemToArray(p->log_probabilities, cJSON_CreateNumber(log_probability));
  } else if (p->ids) {
    tws_out("%d\n", token);
  } else if (p->tokenizer) {
    tws_token_add(&p->all, token, NULL);
    print_text(p, 0, NULL); /* a decoding error is reported at the end */
  } else if (token < 256) {
    tws_out_bytes(&byte, 1);
  } else {
    tws_out("\xef\xbf\xbd"); /* a token that is no byte is printed as the replacement character */
  }
}

/* Prints the prompt; with a tokenizer, in decoded form. */
static tws_code start_text(printer *p, const options *o, const tokens *prompt, tws_error *err) {
  if (!p->tokenizer || p->ids || p->cli->json) return TWS_OK;
  p->prompt = NULL;
  for (size_t i = 0; i < prompt->count; i++) TWS_TRY(tws_token_add(&p->all, prompt->id[i], err));
  if (o->prompt) return print_text(p, 0, err);
  char *text = NULL; /* a prompt from a file is not printed */
  TWS_TRY(tws_tokenizer_decode(p->tokenizer, p->all.id, p->all.count, 0, &text, &p->shown, err));
  tws_free(text);
  return TWS_OK;
}

static cJSON *id_list(const tokens *list) {
  cJSON *array = cJSON_CreateArray();
  for (size_t i = 0; i < list->count; i++) cJSON_AddItemToArray(array, cJSON_CreateNumber(list->id[i]));
  return array;
}

static tws_code check_vocabulary(const tws_job *job, const tws_tokenizer *tokenizer, tws_error *err) {
  if (!tokenizer || tws_tokenizer_vocabulary(tokenizer) <= job->network->vocabulary) return TWS_OK;
  return tws_fail(err, TWS_INVALID, "is it the model's tokenizer?",
                  "the tokenizer has %lld tokens, and the model's vocabulary %lld",
                  (long long)tws_tokenizer_vocabulary(tokenizer), (long long)job->network->vocabulary);
}

static tws_code add_generated_text(const printer *p, cJSON *root, tws_error *err) {
  char *text = NULL;
  size_t length;
  if (!p->tokenizer) return TWS_OK;
  TWS_TRY(tws_tokenizer_decode(p->tokenizer, p->made.id, p->made.count, 0, &text, &length, err));
  cJSON_AddStringToObject(root, "text", text);
  tws_free(text);
  return TWS_OK;
}

static tws_code generate(tws_cli *cli, const options *o, const tws_job *job, tws_tokenizer *tokenizer,
                         const tokens *prompt, tws_error *err) {
  const tws_real_api *api;
  printer p = {.cli = cli,
               .ids = o->prompt_ids != NULL,
               .prompt = cli->json ? NULL : o->prompt,
               .tokenizer = tokenizer,
               .log_probabilities = cJSON_CreateArray()};
  const tws_generate_options request = {
      .plan = tws_job_request(job, 0),
      .resume = o->resume,
      .tag = o->tag,
      .init_from = o->init_from,
      .prompt = prompt->id,
      .prompt_count = (int64_t)prompt->count,
      .count = o->tokens,
      .sampling = {.temperature = o->temperature, .top_k = o->top_k, .top_p = o->top_p},
      .seed = o->job.seed >= 0 ? (uint64_t)o->job.seed : 0,
      .on_token = print_token,
      .user = &p,
      .log = &cli->log};
  tws_launch_set_threads(job->threads);
  tws_code code = check_vocabulary(job, tokenizer, err);
  if (code == TWS_OK) code = start_text(&p, o, prompt, err);
  if (code == TWS_OK) code = tws_real_load(&api, err);
  if (code == TWS_OK) code = api->generate(&request, err);
  if (code == TWS_OK && cli->json) {
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "schema", "twinspeed-generation-1");
    cJSON_AddItemToObject(root, "prompt", id_list(prompt));
    cJSON_AddItemToObject(root, "tokens", id_list(&p.made));
    cJSON_AddItemToObject(root, "log_probabilities", p.log_probabilities);
    p.log_probabilities = NULL;
    code = add_generated_text(&p, root, err);
    if (code == TWS_OK)
      code = tws_out_json(root, err);
    else
      cJSON_Delete(root);
  } else if (code == TWS_OK && !p.ids) {
    if (tokenizer) code = print_text(&p, 1, err);
    tws_out("\n");
  }
  cJSON_Delete(p.log_probabilities);
  tws_token_free(&p.made);
  tws_token_free(&p.all);
  return code;
}

static tws_code check_job(const options *o, tws_error *err) {
  const tws_job_spec *s = &o->job;
  if (s->ranks > 1 || s->pipeline_stages > 1 || s->tensor_ranks > 1 || s->sequence_ranks > 1)
    return tws_fail(err, TWS_UNSUPPORTED, "a checkpoint of any number of ranks can be read on one: leave out -n",
                    "generate: tokens are generated on one rank");
  if (!o->resume && !o->init_from)
    return tws_fail(err, TWS_USAGE, "--resume DIR of `train --save DIR`, or --init-from model.safetensors",
                    "generate: no weights were given");
  if (o->tag && !o->resume)
    return tws_fail(err, TWS_USAGE, "give --resume DIR too", "generate: --tag without --resume");
  return TWS_OK;
}

/* Generates text. If a configuration is given, it is that of the training: only its settings of the model are used, on
 * one rank. */
static tws_code run(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  options o = *(options *)raw;
  tokens prompt = {0};
  tws_job *job = NULL;
  (void)argc;
  (void)argv;
  TWS_TRY(check_job(&o, err));
  tws_job_spec_generate(&o.job);
  tws_tokenizer *tokenizer = NULL;
  tws_code code = o.tokenizer ? tws_tokenizer_open(o.tokenizer, &tokenizer, err) : TWS_OK;
  if (code == TWS_OK) code = read_prompt(&o, tokenizer, &prompt, err);
  if (code == TWS_OK) code = tws_job_load(&o.job, &job, err);
  if (code == TWS_OK) code = generate(cli, &o, job, tokenizer, &prompt, err);
  tws_job_destroy(job);
  tws_tokenizer_close(tokenizer);
  tws_token_free(&prompt);
  return code;
}

static const tws_option table[] = {
    TWS_JOB_OPTIONS(options, job),
    TWS_STRING("resume", 0, "DIR", options, resume, "weights of a checkpoint of any number of ranks"),
    TWS_STRING("tag", 0, "TAG", options, tag, "its name (default: the one that DIR/latest names)"),
    TWS_STRING("init-from", 0, "FILE", options, init_from, "weights of a Hugging Face model"),
    TWS_STRING("prompt", 'p', "TEXT", options, prompt,
               "text to continue; without --tokenizer its bytes are the tokens"),
    TWS_STRING("prompt-file", 0, "FILE", options, prompt_file, "likewise, from a file (\"-\": standard input)"),
    TWS_STRING("prompt-ids", 0, "IDS", options, prompt_ids, "prompt as token ids; prints token ids"),
    TWS_STRING("tokenizer", 0, "FILE", options, tokenizer, "a tokenizer.json: text to tokens and back"),
    TWS_INTEGER("tokens", 't', "N", options, tokens, 1, 1000000000, "how many to generate (default 100)"),
    TWS_NUMBER("temperature", 0, "T", options, temperature, 0, 1000,
               "divides the logits (default 1; 0: the most probable token)"),
    TWS_INTEGER("top-k", 0, "K", options, top_k, 1, 1000000000, "sample from the K most probable tokens"),
    TWS_NUMBER("top-p", 0, "P", options, top_p, 0, 1, "sample from the smallest set of tokens with this probability"),
    TWS_OPTIONS_END};

static const options defaults = {.job = TWS_JOB_SPEC_DEFAULTS, .tokens = 100, .temperature = 1, .top_p = 1};

const tws_verb tws_verb_generate = {
    .name = "generate",
    .summary = "continue a text with a trained model",
    .usage = "-m MODEL --resume DIR | --init-from FILE --prompt TEXT [options]",
    .examples =
        "  twinspeed generate -m config.json --resume run --prompt 'In the beginning ' --tokens 200 --temperature 0.8\n"
        "  twinspeed generate -m gpt2 --init-from model.safetensors --prompt-ids 464,2068,7586 --top-k 40 --seed 3 "
        "--json\n",
    .notes =
        "Every token is a forward pass over the whole sequence (--seq; default: the model's), with the\n"
        "last tokens as context. Equal seeds give equal tokens. Tokens are bytes, a tokenizer's, or\n"
        "numbers.\n",
    .options = table,
    .options_bytes = sizeof(options),
    .defaults = &defaults,
    .run = run};
