/* twinspeed generate: continues a text with a trained model. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/failure.h"
#include "base/json.h"
#include "base/number.h"
#include "cli/forward.h"
#include "cli/job_options.h"
#include "cli/remarks.h"
#include "job/fit.h"
#include "job/inference.h"
#include "launch/launch.h"
#include "models/quantized.h"
#include "tokens/tokenizer.h"
#include "traces/loss_curve.h"

typedef struct options {
  tws_job_spec job;
  tws_weights_options weights;
  const char *prompt, *prompt_file, *prompt_ids, *prompts, *tokenizer;
  tws_strings stop;
  int64_t tokens, top_k, batch, cache_block;
  double temperature, top_p, min_p, repetition, deadline_s;
  int no_cache, score;         /* score: the prompts' tokens are scored, and none are generated */
  const char *codes, *cache;   /* codes: type of the weights' codes; cache: "fp8"; NULL: none */
} options;

typedef tws_token_list tokens;

/* A prompt, and what is generated after it. */
typedef struct continuation {
  tokens prompt, made;
  cJSON *log_probabilities;
  int stopped; /* 1: it ended with one of the stop texts */
} continuation;

typedef struct texts {
  continuation *items;
  size_t count, capacity;
} texts;

static continuation *add_prompt(texts *list) {
  if (tws_reserve(&list->items, &list->capacity, list->count + 1, sizeof *list->items)) return NULL;
  list->items[list->count] = (continuation){.log_probabilities = cJSON_CreateArray()};
  return &list->items[list->count++];
}

static void free_texts(texts *list) {
  for (size_t i = 0; i < list->count; i++) {
    tws_token_free(&list->items[i].prompt);
    tws_token_free(&list->items[i].made);
    cJSON_Delete(list->items[i].log_probabilities);
  }
  tws_free(list->items);
}

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

/* Reads a prompt that is given as JSON: a text, a list of token ids, or an object with one of these as "prompt". */
static tws_code read_json_prompt(const tws_json *line, tws_tokenizer *tokenizer, tokens *list, tws_error *err) {
  const cJSON *value = line->root, *id;
  if (cJSON_IsObject(value)) {
    static const char *const known[] = {"prompt", NULL};
    TWS_TRY(tws_json_only(line, value, known, err));
    value = cJSON_GetObjectItemCaseSensitive(value, "prompt");
  }
  if (cJSON_IsString(value)) return add_text(tokenizer, list, value->valuestring, strlen(value->valuestring), err);
  if (!cJSON_IsArray(value))
    return tws_json_fail(line, value ? value : line->root, err,
                         "for example \"Once upon a time\", [464, 2068] or {\"prompt\": \"Once\"}",
                         "this is no prompt");
  cJSON_ArrayForEach(id, value) {
    int64_t number;
    if (!tws_json_integer(line, id, &number, NULL) || number < 0 || number > INT32_MAX)
      return tws_json_fail(line, id, err, "give numbers of tokens", "this is no token");
    TWS_TRY(tws_token_add(list, number, err));
  }
  return TWS_OK;
}

/* Reads a file with a prompt on each line that is not blank. */
static tws_code read_prompts(const char *path, tws_tokenizer *tokenizer, texts *list, tws_error *err) {
  char *all = NULL;
  size_t length = 0;
  int64_t number = 0;
  TWS_TRY(tws_read_file(path, 0, &all, &length, err));
  tws_code code = TWS_OK;
  for (char *at = all; code == TWS_OK && at < all + length;) {
    char *end = memchr(at, '\n', (size_t)(all + length - at)), name[256];
    if (!end) end = all + length;
    snprintf(name, sizeof name, "%.200s, line %lld", path, (long long)++number);
    if (strspn(at, " \t\r") < (size_t)(end - at)) {
      tws_json *line = NULL;
      continuation *next = add_prompt(list);
      code = next ? tws_json_parse(at, (size_t)(end - at), name, &line, err)
                  : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
      if (code == TWS_OK) code = read_json_prompt(line, tokenizer, &next->prompt, err);
      tws_json_destroy(line);
    }
    at = end + 1;
  }
  tws_free(all);
  if (code == TWS_OK && list->count == 0)
    code = tws_fail(err, TWS_INVALID, "write a JSON text or a list of tokens on each line", "%s has no prompts", path);
  return code;
}

static tws_code read_prompt(const options *o, tws_tokenizer *tokenizer, texts *all, tws_error *err) {
  const int given = (o->prompt != NULL) + (o->prompt_file != NULL) + (o->prompt_ids != NULL) + (o->prompts != NULL);
  if (given != 1)
    return tws_fail(err, TWS_USAGE,
                    "give one of --prompt TEXT, --prompt-file FILE, --prompt-ids IDS and --prompts FILE",
                    given ? "generate: several prompts were given" : "generate: no prompt was given");
  if (o->prompts) return read_prompts(o->prompts, tokenizer, all, err);
  continuation *only = add_prompt(all);
  if (!only) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tokens *list = &only->prompt;
  if (o->prompt) return add_text(tokenizer, list, o->prompt, strlen(o->prompt), err);
  if (o->prompt_ids) return add_ids(list, o->prompt_ids, err);
  char *content = NULL;
  size_t length = 0;
  TWS_TRY(tws_read_file(o->prompt_file, 0, &content, &length, err));
  tws_code code = add_text(tokenizer, list, content, length, err);
  tws_free(content);
  return code;
}

typedef struct printer {
  const tws_cli *cli;
  const options *options;
  texts *texts;
  int ids;            /* 1: tokens are printed as numbers */
  const char *prompt; /* text that is printed before the first token; NULL: none is requested, or it was printed */
  tws_tokenizer *tokenizer;
  /* all generated tokens; with a tokenizer also the prompt's, since decoding a token depends on those before it */
  tokens all;
  size_t shown; /* number of bytes of the text that were printed */
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

/* Writes the text of generated tokens: decoded, or the tokens as bytes. */
static tws_code text_of(tws_tokenizer *tokenizer, const tokens *list, char **out, size_t *length, tws_error *err) {
  if (tokenizer) return tws_tokenizer_decode(tokenizer, list->id, list->count, 0, out, length, err);
  *length = list->count;
  *out = tws_calloc(list->count + 1, 1);
  if (!*out) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (size_t i = 0; i < list->count; i++) (*out)[i] = list->id[i] < 256 ? (char)list->id[i] : '?';
  return TWS_OK;
}

/* Returns 1 if the generated text contains one of the texts of --stop. */
static int has_stopped(const printer *p, const tokens *made) {
  char *content = NULL;
  size_t length = 0;
  int found = 0;
  if (p->options->stop.count == 0 || text_of(p->tokenizer, made, &content, &length, NULL) != TWS_OK) return 0;
  for (int i = 0; i < p->options->stop.count && !found; i++)
    found = memmem(content, length, p->options->stop.item[i], strlen(p->options->stop.item[i])) != NULL;
  tws_free(content);
  return found;
}

/* Prints a token of the only text as soon as it is chosen. */
static void print_token(printer *p, int32_t token) {
  const char byte = (char)token;
  if (p->prompt) tws_out_bytes(p->prompt, strlen(p->prompt));
  p->prompt = NULL;
  if (p->ids) {
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

static int on_token(void *user, int64_t number, int32_t token, double log_probability) {
  printer *p = user;
  continuation *x = &p->texts->items[number];
  tws_token_add(&x->made, token, NULL);
  cJSON_AddItemToArray(x->log_probabilities, cJSON_CreateNumber(log_probability));
  if (p->options->score) return 0;
  if (!p->cli->json && !p->options->prompts) print_token(p, token);
  return x->stopped = has_stopped(p, &x->made);
}

/* Prints the prompt; with a tokenizer, in decoded form. */
static tws_code start_text(printer *p, const options *o, tws_error *err) {
  const tokens *prompt = &p->texts->items[0].prompt;
  if (!p->tokenizer || p->ids || p->cli->json || o->prompts || o->score) return TWS_OK;
  p->prompt = NULL;
  for (size_t i = 0; i < prompt->count; i++) TWS_TRY(tws_token_add(&p->all, prompt->id[i], err));
  if (o->prompt) return print_text(p, 0, err);
  char *content = NULL; /* a prompt from a file is not printed */
  TWS_TRY(tws_tokenizer_decode(p->tokenizer, p->all.id, p->all.count, 0, &content, &p->shown, err));
  tws_free(content);
  return TWS_OK;
}

/* Ends the prompts of an encoder-decoder with the model's end token, as its training ends sources. */
static tws_code end_sources(const tws_job *job, texts *all, tws_error *err) {
  const tws_network *network = job->network;
  for (size_t i = 0; i < all->count && network->objective == TWS_OBJECTIVE_PAIRS; i++) {
    tokens *prompt = &all->items[i].prompt;
    if (prompt->count > 0 && prompt->id[prompt->count - 1] != network->end_token)
      TWS_TRY(tws_token_add(prompt, network->end_token, err));
  }
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

/* Adds a text's members to an object. */
static tws_code add_text_members(const printer *p, continuation *x, cJSON *object, tws_error *err) {
  cJSON_AddItemToObject(object, "prompt", id_list(&x->prompt));
  cJSON_AddItemToObject(object, "tokens", id_list(&x->made));
  cJSON_AddItemToObject(object, "log_probabilities", x->log_probabilities);
  x->log_probabilities = NULL;
  if (p->options->stop.count > 0) cJSON_AddBoolToObject(object, "stopped", x->stopped);
  char *content = NULL;
  size_t length;
  if (!p->tokenizer) return TWS_OK;
  TWS_TRY(tws_tokenizer_decode(p->tokenizer, x->made.id, x->made.count, 0, &content, &length, err));
  cJSON_AddStringToObject(object, "text", content);
  tws_free(content);
  return TWS_OK;
}

/* Finds the perplexity of the scored tokens of all texts, and returns their number. */
static int64_t score(const texts *all, double *perplexity) {
  double sum = 0;
  const cJSON *number;
  int64_t count = 0;
  for (size_t i = 0; i < all->count; i++) cJSON_ArrayForEach(number, all->items[i].log_probabilities) {
      sum += number->valuedouble;
      ++count;
    }
  *perplexity = tws_perplexity(sum, count);
  return count;
}

static void add_result_members(cJSON *root, const tws_generate_result *r) {
  cJSON_AddBoolToObject(root, "cache", r->cache_bytes > 0);
  cJSON_AddNumberToObject(root, "forward_tokens", (double)r->forward_tokens);
  cJSON_AddNumberToObject(root, "generated_tokens", (double)r->generated_tokens);
  cJSON_AddNumberToObject(root, "batches", (double)r->batches);
  cJSON_AddNumberToObject(root, "prefill_s", r->prefill_s);
  cJSON_AddNumberToObject(root, "decode_s", r->decode_s);
  if (r->cache_bytes > 0) cJSON_AddNumberToObject(root, "prefill_cpu_s", r->prefill_cpu_s);
  if (r->cache_bytes > 0) cJSON_AddNumberToObject(root, "decode_cpu_s", r->decode_cpu_s);
  cJSON_AddNumberToObject(root, "cache_bytes", (double)r->cache_bytes);
  cJSON_AddNumberToObject(root, "predicted_bytes", (double)r->predicted_bytes);
  cJSON_AddNumberToObject(root, "allocated_bytes", (double)r->allocated_bytes);
}

static tws_code print_json(const printer *p, const tws_generate_result *result, tws_error *err) {
  cJSON *root = cJSON_CreateObject(), *list = p->options->prompts ? cJSON_CreateArray() : NULL;
  tws_code code = TWS_OK;
  cJSON_AddStringToObject(root, "schema", "twinspeed-generation-1");
  if (p->options->score) {
    double perplexity;
    const int64_t count = score(p->texts, &perplexity);
    cJSON_AddNumberToObject(root, "perplexity", perplexity);
    cJSON_AddNumberToObject(root, "scored_tokens", (double)count);
  }
  if (list) cJSON_AddItemToObject(root, "texts", list);
  for (size_t i = 0; i < p->texts->count && code == TWS_OK; i++) {
    cJSON *object = list ? cJSON_CreateObject() : root;
    if (list) cJSON_AddItemToArray(list, object);
    code = add_text_members(p, &p->texts->items[i], object, err);
  }
  add_result_members(root, result);
  if (code == TWS_OK) return tws_out_json(root, err);
  cJSON_Delete(root);
  return code;
}

/* Prints the texts of a file of prompts, each as a JSON text or list of tokens on a line of its own. */
static tws_code print_texts(const printer *p, tws_error *err) {
  for (size_t i = 0; i < p->texts->count; i++) {
    char *content = NULL, *line;
    size_t length = 0;
    const tokens *made = &p->texts->items[i].made;
    if (p->tokenizer) TWS_TRY(text_of(p->tokenizer, made, &content, &length, err));
    cJSON *value = p->tokenizer ? cJSON_CreateString(content) : id_list(made);
    tws_free(content);
    line = cJSON_PrintUnformatted(value);
    cJSON_Delete(value);
    if (!line) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
    tws_out("%s\n", line);
    cJSON_free(line);
  }
  return TWS_OK;
}

static tws_code print_end(printer *p, const tws_generate_result *r, tws_error *err) {
  if (p->cli->json) return print_json(p, r, err);
  if (p->options->score) {
    double perplexity;
    const int64_t count = score(p->texts, &perplexity);
    tws_out("perplexity %.6g of %lld tokens\n", perplexity, (long long)count);
    return TWS_OK;
  }
  if (p->options->prompts) TWS_TRY(print_texts(p, err));
  if (!p->options->prompts && !p->ids) {
    if (p->tokenizer) TWS_TRY(print_text(p, 1, err));
    tws_out("\n");
  }
  const double decoded = (double)(r->generated_tokens - (r->cache_bytes > 0 ? (int64_t)p->texts->count : 0));
  if (r->cache_bytes > 0)
    tws_say(p->cli,
            "%lld tokens went through the model; prompts took %.3g s, other tokens %.3g ms each; %.1f MiB, of which "
            "%.1f MiB are keys and values",
            (long long)r->forward_tokens, r->prefill_s, decoded > 0 ? 1e3 * r->decode_s / decoded : 0,
            (double)r->allocated_bytes / 1048576, (double)r->cache_bytes / 1048576);
  return TWS_OK;
}

/* Generates on this rank. */
static tws_code generate_here(const tws_job *job, printer *p, const tws_generate_options *request, tws_error *err) {
  const tws_real_api *api;
  int rank = 0;
  tws_generate_result result;
  TWS_TRY(tws_forward_load(p->cli, job, &p->options->job, &api, &rank, err));
  TWS_TRY(api->generate(request, &result, err)); /* after an error, other ranks may wait for this one: no stop() */
  api->stop();
  return rank == 0 ? print_end(p, &result, err) : TWS_OK;
}

static tws_code generate(tws_cli *cli, const options *o, const tws_job *job, tws_tokenizer *tokenizer, texts *all,
                         tws_error *err) {
  printer p = {.cli = cli,
               .options = o,
               .texts = all,
               .ids = o->prompt_ids != NULL,
               .prompt = cli->json || o->score ? NULL : o->prompt,
               .tokenizer = tokenizer};
  TWS_TRY(end_sources(job, all, err));
  tws_prompt *prompts = tws_calloc(all->count, sizeof *prompts);
  if (!prompts) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (size_t i = 0; i < all->count; i++)
    prompts[i] = (tws_prompt){all->items[i].prompt.id, (int64_t)all->items[i].prompt.count};
  tws_generate_options request = {.plan = tws_job_request(job, tws_worker_rank()),
                                  .resume = o->weights.resume,
                                  .tag = o->weights.tag,
                                  .init_from = o->weights.init_from,
                                  .prompts = prompts,
                                  .prompt_count = (int64_t)all->count,
                                  .count = o->tokens,
                                  .batch = o->batch,
                                  .cache = !o->no_cache,
                                  .scores = o->score,
                                  .cache_bits = o->cache ? 8 : 0,
                                  .cache_block = o->cache_block,
                                  .weight_codes = o->codes ? tws_code_type_named(o->codes) : TWS_CODES_NONE,
                                  .sampling = {.temperature = o->temperature,
                                               .top_k = o->top_k,
                                               .top_p = o->top_p,
                                               .min_p = o->min_p,
                                               .repetition = o->repetition},
                                  .seed = o->job.seed >= 0 ? (uint64_t)o->job.seed : 0,
                                  .on_token = on_token,
                                  .user = &p,
                                  .log = &cli->log};
  request.activity = tws_worker_activity(&request.activity_bytes);
  tws_code code = check_vocabulary(job, tokenizer, err);
  if (code == TWS_OK && tws_worker_rank() == 0) code = start_text(&p, o, err);
  if (code == TWS_OK) code = generate_here(job, &p, &request, err);
  tws_token_free(&p.all);
  tws_free(prompts);
  return code;
}

static tws_code check_job(const options *o, tws_error *err) {
  const tws_job_spec *s = &o->job;
  const int64_t tensor = s->tensor_ranks > 0 ? s->tensor_ranks : 1;
  const int64_t stages = s->pipeline_stages > 0 ? s->pipeline_stages : 1;
  const int64_t experts = s->expert_ranks > 0 ? s->expert_ranks : 1;
  if (s->ranks > 0 && s->ranks % (tensor * stages * experts))
    return tws_fail(
        err, TWS_USAGE, "leave out -n",
        "generate: %lld ranks are not replicas of %lld tensor ranks x %lld stages, in groups of %lld expert "
        "ranks",
        (long long)s->ranks, (long long)tensor, (long long)stages, (long long)experts);
  TWS_TRY(tws_weights_check(&o->weights, o->job.model, "generate", err));
  for (int i = 0; i < o->stop.count; i++)
    if (!o->stop.item[i][0])
      return tws_fail(err, TWS_USAGE, "give a text, such as --stop '.'", "generate: an empty text stops at once");
  if (o->codes && tws_code_type_named(o->codes) == TWS_CODES_NONE)
    return tws_fail(err, TWS_USAGE, "--weights " TWS_CODE_TYPES, "generate: no type of weights is \"%.40s\"", o->codes);
  if (o->codes && o->weights.resume)
    return tws_fail(err, TWS_UNSUPPORTED, "twinspeed convert checkpoint DIR FILE, and --init-from FILE",
                    "generate: --weights with --resume: weights are quantized as a file of weights is read");
  if (o->top_p <= 0)
    return tws_fail(err, TWS_USAGE,
                    "give a number above 0 and at most 1; --temperature 0 selects the most probable token",
                    "generate: no set of tokens has the probability 0 (--top-p)");
  if (o->cache && strcmp(o->cache, "fp8") != 0)
    return tws_fail(err, TWS_USAGE, "--cache fp8, or leave it out", "generate: no type of a cache is \"%.40s\"",
                    o->cache);
  if (o->cache && o->no_cache)
    return tws_fail(err, TWS_USAGE, "leave out one of them", "generate: --cache with --no-cache");
  if (o->cache_block && o->no_cache)
    return tws_fail(err, TWS_USAGE, "leave out one of them", "generate: --cache-block with --no-cache");
  if (o->score && o->no_cache)
    return tws_fail(err, TWS_USAGE, "leave out --no-cache", "generate: --score needs a cache of keys and values");
  return TWS_OK;
}

/* Takes over the keys of DeepSpeed's inference configuration, and says which have no effect. */
static tws_code read_inference(const tws_cli *cli, options *o, tws_error *err) {
  tws_inference inference;
  tws_code code = tws_inference_read(&o->job, &inference, err);
  if (code == TWS_OK && inference.weight_codes && !o->codes) o->codes = tws_code_type_name(inference.weight_codes);
  if (code == TWS_OK && inference.most_tokens && !o->job.sequence) o->job.sequence = inference.most_tokens;
  if (code == TWS_OK && tws_worker_rank() == 0) tws_notes_say(cli, &inference.notes);
  tws_text_free(&inference.notes);
  return code;
}

/* Starts the ranks of a job, which run the same command with the options as they were given. */
static tws_code launch(const tws_cli *cli, const options *o, const tws_job_spec *asked, const tws_job *job,
                       tws_error *err) {
  enum { OWN = 40 + TWS_MAX_STRINGS, MOST = 64 + TWS_MAX_STRINGS + OWN };
  const char *arguments[MOST];
  int count = 0;
  tws_job_spec spec = *asked;
  spec.threads = job->threads;
  TWS_TRY(tws_job_spec_check_shared(asked, err));
  TWS_TRY(tws_job_check_engine(job, asked->cluster != NULL, asked->profile != NULL, err));
  tws_arena *arena = tws_arena_create();
  if (!arena) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  arguments[count++] = "generate";
  tws_code code = tws_job_spec_arguments(&spec, arena, arguments, MOST - OWN, &count, err);
  const struct {
    const char *name, *value;
  } given[] = {{"--resume", o->weights.resume},       {"--tag", o->weights.tag},
               {"--init-from", o->weights.init_from}, {"--prompt", o->prompt},
               {"--prompts", o->prompts},             {"--prompt-file", o->prompt_file},
               {"--prompt-ids", o->prompt_ids},       {"--weights", o->codes},
               {"--tokenizer", o->tokenizer},         {"--cache", o->cache}};
  for (size_t i = 0; i < sizeof given / sizeof *given; i++)
    if (given[i].value) arguments[count++] = tws_arena_printf(arena, "%s=%s", given[i].name, given[i].value);
  for (int i = 0; i < o->stop.count; i++) arguments[count++] = tws_arena_printf(arena, "--stop=%s", o->stop.item[i]);
  arguments[count++] = tws_arena_printf(arena, "--tokens=%lld", (long long)o->tokens);
  if (o->batch) arguments[count++] = tws_arena_printf(arena, "--batch=%lld", (long long)o->batch);
  if (o->cache_block) arguments[count++] = tws_arena_printf(arena, "--cache-block=%lld", (long long)o->cache_block);
  if (o->top_k) arguments[count++] = tws_arena_printf(arena, "--top-k=%lld", (long long)o->top_k);
  arguments[count++] = tws_arena_printf(arena, "--temperature=%.17g", o->temperature);
  arguments[count++] = tws_arena_printf(arena, "--top-p=%.17g", o->top_p);
  arguments[count++] = tws_arena_printf(arena, "--min-p=%.17g", o->min_p);
  arguments[count++] = tws_arena_printf(arena, "--repetition-penalty=%.17g", o->repetition);
  if (o->no_cache) arguments[count++] = "--no-cache";
  if (o->score) arguments[count++] = "--score";
  if (cli->json) arguments[count++] = "--json";
  if (cli->quiet) arguments[count++] = "--quiet";
  if (cli->verbose) arguments[count++] = "--verbose";
  for (int i = 0; i < count; i++)
    if (!arguments[i] && code == TWS_OK) code = tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  const tws_launch_options ranks = {.ranks = job->ranks,
                                    .threads = job->threads,
                                    .deadline_s = o->deadline_s,
                                    .arguments = arguments,
                                    .argument_count = count,
                                    .log = &cli->log};
  if (code == TWS_OK) code = tws_launch(&ranks, err);
  tws_arena_destroy(arena);
  return code;
}

/* Generates text. If a configuration is given, it is that of the training: only its settings of the model are used, on
 * one rank. */
static tws_code run(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  options o = *(options *)raw;
  texts all = {0};
  tws_job *job = NULL;
  (void)argc;
  (void)argv;
  TWS_TRY(check_job(&o, err));
  TWS_TRY(read_inference(cli, &o, err));
  const tws_job_spec given = o.job;
  tws_job_spec_generate(&o.job);
  tws_tokenizer *tokenizer = NULL;
  tws_code code = o.tokenizer ? tws_tokenizer_open(o.tokenizer, &tokenizer, err) : TWS_OK;
  if (code == TWS_OK) code = read_prompt(&o, tokenizer, &all, err);
  if (code == TWS_OK) code = tws_job_load(&o.job, &job, err);
  if (code == TWS_OK && job->ranks > 1 && !tws_worker_is())
    code = launch(cli, &o, &given, job, err);
  else if (code == TWS_OK)
    code = generate(cli, &o, job, tokenizer, &all, err);
  tws_job_destroy(job);
  tws_tokenizer_close(tokenizer);
  free_texts(&all);
  return code;
}

static const tws_option table[] = {
    TWS_FORWARD_OPTIONS(options, job),
    TWS_WEIGHTS_OPTIONS(options, weights),
    TWS_STRING("prompt", 'p', "TEXT", options, prompt,
               "text to continue; without --tokenizer its bytes are the tokens"),
    TWS_STRING("prompt-file", 0, "FILE", options, prompt_file, "likewise, from a file (\"-\": standard input)"),
    TWS_STRING("prompt-ids", 0, "IDS", options, prompt_ids, "prompt as token ids; prints token ids"),
    TWS_STRING("prompts", 0, "FILE", options, prompts,
               "a prompt on each line: a JSON text, or a list of token ids; prints as many lines"),
    TWS_INTEGER("batch", 0, "N", options, batch, 1, 65536, "prompts at a time (default: all of the file)"),
    TWS_STRING("tokenizer", 0, "FILE", options, tokenizer, "a tokenizer.json: text to tokens and back"),
    TWS_INTEGER("tokens", 't', "N", options, tokens, 1, 1000000000, "how many to generate (default 100)"),
    TWS_NUMBER("temperature", 0, "T", options, temperature, 0, 1000,
               "divides the logits (default 1; 0: the most probable token)"),
    TWS_INTEGER("top-k", 0, "K", options, top_k, 0, 1000000000,
                "sample from the K most probable tokens (default 0: all)"),
    TWS_NUMBER("top-p", 0, "P", options, top_p, 0, 1,
               "sample from the smallest set of tokens with this probability, above 0 (default 1: all)"),
    TWS_NUMBER("min-p", 0, "P", options, min_p, 0, 1,
               "sample from tokens with at least this share of the most probable one's probability (default 0: all)"),
    TWS_NUMBER("repetition-penalty", 0, "X", options, repetition, 0.01, 100,
               "divides positive logits of tokens that the text has, and multiplies negative ones (default 1)"),
    TWS_LIST("stop", 0, "TEXT", options, stop, "ends a text that contains TEXT; may be given several times"),
    TWS_STRING("weights", 0, "TYPE", options, codes,
               TWS_CODE_TYPES ": linear layers' weights in 8 or 4 bits, with a scale for 64 of a row"),
    TWS_STRING("cache", 0, "TYPE", options, cache, "fp8: keys and values in 8 bits"),
    TWS_INTEGER("cache-block", 0, "N", options, cache_block, 1, 16777216,
                "keys and values in blocks of N positions, of which a text has as many as it needs"),
    TWS_FLAG("no-cache", 0, options, no_cache, "compute each token from the whole text again"),
    TWS_NUMBER("deadline", 0, "SECONDS", options, deadline_s, 0, 1e9,
               "several ranks: end after SECONDS without progress (default 1800; 0: never)"),
    TWS_FLAG("score", 0, options, score,
             "generate nothing: print the perplexity of the prompts, each without its first token"),
    TWS_OPTIONS_END};

static const options defaults = {.job = TWS_JOB_SPEC_DEFAULTS,
                                 .tokens = 100,
                                 .temperature = 1,
                                 .top_p = 1,
                                 .repetition = 1,
                                 .deadline_s = TWS_FAILURE_DEADLINE_S};

const tws_verb tws_verb_generate = {
    .name = "generate",
    .summary = "continue a text with a trained model",
    .usage = "-m MODEL --resume DIR | --init-from FILE --prompt TEXT [options]",
    .examples =
        "  twinspeed generate -m config.json --resume run --prompt 'In the beginning ' --tokens 200 --temperature 0.8\n"
        "  twinspeed generate -m gpt2 --init-from model.safetensors --prompt-ids 464,2068,7586 --top-k 40 --seed 3 "
        "--json\n"
        "  twinspeed generate -m gpt2 --init-from model.safetensors --tokenizer tokenizer.json --prompts prompts.jsonl "
        "--batch 8 --stop '.'\n",
    .notes =
        "A pass over all prompts fills a cache of keys and values; then each token is a pass over one token\n"
        "of every text. Texts that exceed the context (--seq; default: the model's) have no cache: every\n"
        "token is a pass over the last tokens. Equal seeds give equal tokens; text N of a file has the seed\n"
        "--seed + N - 1. Tokens are bytes, a tokenizer's, or numbers.\n"
        "-n N alone is N tensor ranks; ranks that --tp, --pp, --ep and --stage 3 leave are replicas with texts\n"
        "of their own. --ep: replicas divide the experts; --stage 3: the weights (ZeRO-Inference), with\n"
        "zero_optimization.offload_param in -c or --set on the host or a disk.\n",
    .options = table,
    .options_bytes = sizeof(options),
    .defaults = &defaults,
    .run = run};
