/* Token generation. With a cache of keys and values: real/serve.c. Without one, for each token the whole sequence goes
 * through the evaluation's forward pass, and the scores of its last token are read before the loss reuses their memory:
 * texts may be longer than the model's context, of which the last tokens are the context. Of an encoder-decoder the
 * prompt is the text for the encoder, and the sequence is that of the decoder, which begins with the model's start
 * token. One rank. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/memory.h"
#include "base/random.h"
#include "models/network/serving.h"
#include "plan/serving.h"
#include "real/objective.h"
#include "real/sample.h"
#include "real/scored_pass.h"

typedef struct generator {
  tws_scored_pass pass;
  const tws_generate_options *options;
  tws_generate_result *result;
  tws_config config;    /* the configuration of the options, with experts that drop no tokens */
  int64_t padded, last; /* padded: number of scores of a token; last: the token whose scores are wanted */
  int64_t length;       /* most tokens of the sequence whose next token is predicted */
  int32_t *source;      /* [sequence_length] an encoder-decoder's text for the encoder; NULL for other models */
  tws_candidate *room;
  int32_t *window, *targets, *positions; /* [length] inputs of the network */
  int32_t *documents;                    /* [length][2], as tws_documents_find() fills it */
  uint8_t *seen;                         /* [vocabulary] 1 for tokens of the text; NULL without a repetition penalty */
} generator;

/* Returns the most tokens of the decoder of an encoder-decoder. */
static int64_t decoded_tokens(const tws_config *c) {
  return c->target_length > 0 ? c->target_length : c->sequence_length;
}

static tws_code open_pass(generator *g, tws_error *err) {
  const tws_generate_options *o = g->options;
  tws_plan_request request = o->plan;
  if (request.network->objective != TWS_OBJECTIVE_NEXT_TOKEN && request.network->objective != TWS_OBJECTIVE_PAIRS)
    return tws_fail(err, TWS_UNSUPPORTED, "generate takes a model that predicts the next token",
                    "%s sees all tokens of a text at once", request.network->name);
  g->config = *request.config;
  tws_serving_drop_nothing(&g->config);
  request.config = &g->config;
  TWS_TRY(tws_scored_pass_open(&g->pass, &request, o->resume, o->tag, o->init_from, o->log, err));
  const int pairs = request.network->objective == TWS_OBJECTIVE_PAIRS;
  g->length = pairs ? decoded_tokens(&g->config) : g->pass.t.plan->sequence_length;
  g->padded = (int64_t)(g->pass.count / (uint64_t)g->length);
  for (int tier = 0; tier < TWS_TIER_COUNT; tier++) {
    g->result->predicted_bytes += tws_plan_bytes(g->pass.t.plan, (tws_tier)tier);
    g->result->allocated_bytes += tws_executor_allocated(g->pass.t.executor, (tws_tier)tier);
  }
  return TWS_OK;
}

static tws_code make_room(generator *g, tws_error *err) {
  const size_t length = (size_t)g->length, padded = (size_t)g->padded;
  TWS_TRY(tws_scored_pass_room(&g->pass, (uint64_t)g->padded, err));
  g->room = tws_calloc(padded, sizeof *g->room);
  g->window = tws_calloc(length, sizeof *g->window);
  g->targets = tws_calloc(length, sizeof *g->targets);
  g->positions = tws_calloc(length, sizeof *g->positions);
  g->documents = tws_calloc(length, 2 * sizeof *g->documents);
  const double penalty = g->options->sampling.repetition;
  const int penalizes = penalty > 0 && penalty != 1;
  if (penalizes) g->seen = tws_calloc(padded, 1);
  if (penalizes && !g->seen) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  const int pairs = g->pass.t.plan->network->objective == TWS_OBJECTIVE_PAIRS;
  if (pairs) g->source = tws_calloc((size_t)g->pass.t.plan->sequence_length, sizeof *g->source);
  if (pairs && !g->source) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  if (g->room && g->window && g->targets && g->positions && g->documents) return TWS_OK;
  return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
}

/* Finds the documents of the window; without packed documents (document_end_token -1, which is no token) the whole
 * window is one document. */
static tws_code put_documents(generator *g, tws_error *err) {
  tws_training *t = &g->pass.t;
  const uint32_t documents = tws_plan_input(t->plan, TWS_INPUT_DOCUMENTS),
                 positions = tws_plan_input(t->plan, TWS_INPUT_POSITIONS);
  const int64_t length = g->length;
  tws_documents_find(g->window, length, t->config->document_end_token, g->documents);
  for (int64_t i = 0; i < length; i++) g->positions[i] = (int32_t)i - g->documents[2 * i];
  if (documents != TWS_NONE)
    TWS_TRY(tws_executor_put(t->executor, 0, documents, 0, g->documents, 2 * (uint64_t)length, err));
  if (positions == TWS_NONE) return TWS_OK;
  return tws_executor_put(t->executor, 0, positions, 0, g->positions, (uint64_t)length, err);
}

static tws_code score_window(generator *g, int64_t number, tws_error *err) {
  tws_training *t = &g->pass.t;
  const tws_plan *plan = t->plan;
  const uint64_t length = (uint64_t)g->length;
  TWS_TRY(tws_executor_put(t->executor, 0, tws_plan_input(plan, TWS_INPUT_TOKENS), 0, g->window, length, err));
  TWS_TRY(tws_executor_put(t->executor, 0, tws_plan_input(plan, TWS_INPUT_TARGETS), 0, g->targets, length, err));
  TWS_TRY(put_documents(g, err));
  return tws_scored_pass_run(&g->pass, number, (uint64_t)(g->last * g->padded), err);
}

/* Gives the prompt to the encoder. */
static tws_code put_source(generator *g, const tws_prompt *prompt, tws_error *err) {
  tws_training *t = &g->pass.t;
  const int64_t most = t->plan->sequence_length;
  const int32_t count = (int32_t)prompt->count;
  if (prompt->count > most)
    return tws_fail(err, TWS_UNSUPPORTED, "give a shorter prompt, or a larger --seq",
                    "a prompt of %lld tokens exceeds the %lld that the encoder reads", (long long)prompt->count,
                    (long long)most);
  memset(g->source, 0, (size_t)most * sizeof *g->source);
  memcpy(g->source, prompt->token, (size_t)count * sizeof *g->source);
  const uint32_t source = tws_plan_input(t->plan, TWS_INPUT_SOURCE);
  TWS_TRY(tws_executor_put(t->executor, 0, source, 0, g->source, (uint64_t)most, err));
  return tws_executor_put(t->executor, 0, tws_plan_input(t->plan, TWS_INPUT_LENGTHS), 0, &count, 1, err);
}

/* Generates the tokens of one text. A sequence longer than the model's context is truncated to its last tokens. */
static tws_code generate_tokens(generator *g, int64_t number, tws_error *err) {
  const tws_generate_options *o = g->options;
  const tws_prompt *prompt = &o->prompts[number];
  const int64_t length = g->length;
  const int32_t vocabulary = (int32_t)g->pass.t.plan->network->vocabulary;
  int64_t held = 0;
  memset(g->window, 0, (size_t)length * sizeof *g->window);
  if (g->source) {
    TWS_TRY(put_source(g, prompt, err));
    g->window[held++] = (int32_t)g->pass.t.plan->network->start_token;
  }
  for (int64_t i = prompt->count > length ? prompt->count - length : 0; i < prompt->count && !g->source; i++)
    g->window[held++] = prompt->token[i];
  if (g->seen) memset(g->seen, 0, (size_t)g->padded);
  for (int64_t i = 0; g->seen && i < prompt->count; i++) g->seen[prompt->token[i]] = 1;
  for (int64_t n = 0; n < o->count; n++) {
    double log_probability = 0;
    g->last = held - 1;
    const double began = tws_clock_s();
    TWS_TRY(score_window(g, n + 1, err));
    g->result->decode_s += tws_clock_s() - began;
    g->result->forward_tokens += held;
    const double uniform = tws_random_uniform(o->seed + (uint64_t)number, UINT64_C(0x67656e6572617465), (uint64_t)n);
    const int32_t token =
        tws_sample(g->pass.values, vocabulary, &o->sampling, g->seen, uniform, g->room, &log_probability);
    if (!isfinite(log_probability))
      return tws_fail(err, TWS_INVALID, "are these the weights of this model?", "the model's scores are no numbers");
    g->result->generated_tokens++;
    if (g->seen) g->seen[token] = 1;
    if (o->on_token(o->user, number, token, log_probability)) break;
    if (held == length) memmove(g->window, g->window + 1, (size_t)--held * sizeof *g->window);
    g->window[held++] = token;
  }
  return TWS_OK;
}

static tws_code check_prompt(const tws_generate_options *o, int64_t number, tws_error *err) {
  const int64_t vocabulary = o->plan.network->vocabulary;
  const tws_prompt *prompt = &o->prompts[number];
  char which[32] = "";
  if (o->prompt_count > 1) snprintf(which, sizeof which, " %lld", (long long)number + 1);
  if (o->scores && prompt->count < 2)
    return tws_fail(err, TWS_USAGE, "give texts of at least two tokens",
                    "the text%s has %lld tokens: of the first one there is no probability", which,
                    (long long)prompt->count);
  if (prompt->count < 1) return tws_fail(err, TWS_USAGE, "give at least one token", "the prompt%s is empty", which);
  for (int64_t i = 0; i < prompt->count; i++)
    if (prompt->token[i] < 0 || prompt->token[i] >= vocabulary)
      return tws_fail(err, TWS_INVALID, "is it the model that the tokens are of?",
                      "token %ld of the prompt%s is %d, and the vocabulary has %ld", (long)i + 1, which,
                      prompt->token[i], (long)vocabulary);
  return TWS_OK;
}

static tws_code generate(generator *g, tws_error *err) {
  TWS_TRY(open_pass(g, err));
  TWS_TRY(make_room(g, err));
  for (int64_t i = 0; i < g->options->prompt_count; i++) TWS_TRY(generate_tokens(g, i, err));
  g->result->batches = g->options->prompt_count;
  return TWS_OK;
}

/* Why texts are generated without a cache of keys and values, and what permits one. */
typedef struct uncached {
  char reason[256];
  const char *remedy; /* NULL: the model permits none */
} uncached;

/* Returns the remedy for texts that exceed the context: a larger one, unless it has all positions of the model. */
static const char *remedy_for_length(const tws_generate_options *o) {
  const tws_network *network = o->plan.network;
  const int larger =
      network->open_positions || network->positions == 0 || o->plan.config->sequence_length < network->positions;
  if (o->scores) return larger ? "use shorter texts, or a larger --seq" : "use shorter texts";
  return larger ? "use a shorter prompt, fewer --tokens, or a larger --seq" : "use a shorter prompt, or fewer --tokens";
}

/* Returns 1 if texts are generated with a cache of keys and values; otherwise fills *why. */
static int keeps_cache(const tws_generate_options *o, uncached *why) {
  const char *module, *reason = tws_network_unserved(o->plan.network, &module);
  int64_t longest = 0;
  for (int64_t i = 0; i < o->prompt_count; i++)
    if (o->prompts[i].count > longest) longest = o->prompts[i].count;
  const int64_t context = o->plan.config->sequence_length, text = longest + (o->scores ? 0 : o->count);
  *why = (uncached){.remedy = NULL};
  if (reason) {
    snprintf(why->reason, sizeof why->reason, "%.120s: %.120s", module, reason);
  } else if (!o->cache) {
    snprintf(why->reason, sizeof why->reason, "--no-cache was given");
    why->remedy = "leave out --no-cache";
  } else if (o->plan.network->objective == TWS_OBJECTIVE_PAIRS) {
    if (longest <= context && o->count <= decoded_tokens(o->plan.config)) return 1;
    snprintf(why->reason, sizeof why->reason,
             "prompts of up to %lld tokens exceed the encoder's %lld (--seq), or %lld tokens the decoder's %lld "
             "(twinspeed.target_length)",
             (long long)longest, (long long)context, (long long)o->count, (long long)decoded_tokens(o->plan.config));
    why->remedy = "use shorter prompts or a larger --seq, and fewer --tokens or a larger twinspeed.target_length";
  } else {
    if (text <= context) return 1;
    snprintf(why->reason, sizeof why->reason, "texts of up to %lld tokens exceed the context of %lld (--seq)",
             (long long)text, (long long)context);
    why->remedy = remedy_for_length(o);
  }
  return 0;
}

/* Fails if the ranks cannot divide the model, and says what they do not divide: an evaluation is divided as inference
 * is. */
static tws_code check_division(const tws_generate_options *o, tws_error *err) {
  tws_plan *plan = NULL;
  tws_config config = *o->plan.config;
  tws_plan_request request = o->plan;
  tws_serving_drop_nothing(&config);
  request.config = &config;
  request.program = TWS_PROGRAM_EVALUATE;
  request.parameters_only = 1;
  TWS_TRY(tws_plan_build(&request, &plan, err));
  tws_plan_destroy(plan);
  return TWS_OK;
}

/* Fails if the options need a cache of keys and values, which there is not. */
static tws_code check_uncached(const tws_generate_options *o, const uncached *why, tws_error *err) {
  char hint[192];
  if (o->weight_codes > 0) {
    snprintf(hint, sizeof hint, "%s%sleave out --weights", why->remedy ? why->remedy : "", why->remedy ? "; or " : "");
    return tws_fail(err, TWS_UNSUPPORTED, hint,
                    "weights of few bits (--weights) need a cache of keys and values, and there is none: %s",
                    why->reason);
  }
  if (o->scores)
    return tws_fail(err, TWS_UNSUPPORTED, why->remedy,
                    "texts are scored with a cache of keys and values, and there is none: %s", why->reason);
  if (tws_mpi_world(NULL) == 1) return TWS_OK;
  TWS_TRY(check_division(o, err));
  snprintf(hint, sizeof hint, "%s%suse one rank", why->remedy ? why->remedy : "", why->remedy ? "; or " : "");
  return tws_fail(err, TWS_UNSUPPORTED, hint,
                  "without a cache of keys and values tokens are generated on one rank, and there is none: %s",
                  why->reason);
}

static tws_code check_options(const tws_generate_options *o, tws_error *err) {
  const int world = tws_topology_world(&o->plan.topology);
  if (tws_mpi_world(NULL) != world)
    return tws_fail(err, TWS_ENVIRONMENT, "leave out -n", "%d ranks were started and the job has %d",
                    tws_mpi_world(NULL), world);
  for (int64_t i = 0; i < o->prompt_count; i++) TWS_TRY(check_prompt(o, i, err));
  return TWS_OK;
}

tws_code tws_real_generate(const tws_generate_options *options, tws_generate_result *result, tws_error *err) {
  *result = (tws_generate_result){0};
  TWS_TRY(check_options(options, err));
  if (options->scores && options->plan.network->objective == TWS_OBJECTIVE_PAIRS)
    return tws_fail(err, TWS_UNSUPPORTED, "leave out --score; `twinspeed train --eval-data` has the loss of pairs",
                    "the tokens of a prompt are read by the encoder and have no probabilities");
  uncached why;
  if (keeps_cache(options, &why)) return tws_real_serve(options, result, err);
  TWS_TRY(check_uncached(options, &why, err));
  if (options->cache) tws_log_write(options->log, TWS_LOG_INFO, "without a cache of keys and values: %s", why.reason);
  generator g = {.options = options, .result = result};
  const tws_code code = generate(&g, err);
  tws_scored_pass_close(&g.pass);
  tws_free(g.room);
  tws_free(g.window);
  tws_free(g.targets);
  tws_free(g.positions);
  tws_free(g.documents);
  tws_free(g.seen);
  tws_free(g.source);
  return code;
}
