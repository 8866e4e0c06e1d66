/* Token generation with a cache of keys and values: a prefill of a batch of prompts, then one program per token for all
 * texts of the batch that have not ended (plan/serving.h). Tensor ranks and pipeline stages run their parts of both
 * programs, and each replica has texts of its own; rank 0 receives the scores of the last stages of all replicas,
 * chooses the tokens and sends them to all. All ranks run the same number of programs, as experts and partitioned
 * weights are exchanged between replicas. Ranks compute on the host or on GPUs, on which the decode is recorded when it
 * runs for the second time and then started as a whole; tokens are chosen on the host. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/memory.h"
#include "base/random.h"
#include "plan/serving.h"
#include "real/forward_engine.h"
#include "real/sample.h"
#include "real/stopwatch.h"

enum { PREFILL, DECODE }; /* indices of the programs */

/* A text of the current batch. */
typedef struct text {
  int64_t prompt;    /* index of the prompt in the options; -1: none, because there are fewer texts than the batch has
                      * room for */
  int64_t processed; /* tokens whose keys and values are in the cache */
  int64_t generated;
  int32_t last; /* the token that was generated last */
  int ended;
  uint8_t *seen; /* [vocabulary] 1 for tokens of the text; NULL without a repetition penalty */
  int32_t *blocks; /* blocks of the cache that the text has, in order; NULL: the cache has no blocks */
  int64_t block_count;
} text;

typedef struct server {
  tws_training t;
  const tws_generate_options *options;
  tws_generate_result *result;
  tws_config config; /* the configuration of the options, for the whole batch */
  tws_serving serving;
  tws_plan *plan[TWS_SERVING_PROGRAMS];
  text *texts;            /* [replicas * batch] */
  int64_t batch, longest; /* texts of a replica's batch; tokens of the longest prompt */
  int replicas, replica;  /* number of replicas, and that of this rank, whose texts begin at replica * batch */
  int64_t columns;        /* scores of a token on one tensor rank, padding included */
  int tensor;             /* number of tensor ranks */
  float *scores;          /* on rank 0: [replica][tensor rank][text][token of that rank's part of the vocabulary] */
  float *one;             /* scores of one text */
  tws_candidate *room;
  int32_t *input; /* room for any input of a program */
  int64_t passes; /* number of programs that were run, which the launcher sees as steps */
  int32_t *unused; /* blocks of the cache that no text has */
  int64_t unused_count, pool, most_blocks; /* pool: blocks of the cache; most_blocks: those of the longest text */
} server;

/* Returns the number of texts of a batch of all replicas. */
static int64_t text_count(const server *s) {
  return s->batch * s->replicas;
}

/* Returns 1 if the model is an encoder-decoder: prompts are texts for the encoder, and the decoder begins with the
 * model's start token. */
static int has_sources(const tws_generate_options *o) {
  return o->plan.network->objective == TWS_OBJECTIVE_PAIRS;
}

/* Returns the number of tokens of a text that the prefill writes to the cache: all of the prompt or, if the text's
 * tokens are scored, only the first; of an encoder-decoder the start token. */
static int64_t prefilled(const tws_generate_options *o, int64_t prompt) {
  return o->scores || has_sources(o) ? 1 : o->prompts[prompt].count;
}

/* Returns the number of positions of a text in the cache: those of the prompt and of the generated tokens. */
static int64_t positions_of(const tws_generate_options *o, int64_t prompt) {
  const int64_t count = o->prompts[prompt].count;
  return o->scores ? count : has_sources(o) ? o->count : count + o->count;
}

/* Finds the number of blocks of the cache: the most that the texts of a batch of a replica need together. */
static void size_pool(server *s) {
  const tws_generate_options *o = s->options;
  for (int64_t first = 0; first < o->prompt_count; first += s->batch) {
    int64_t blocks = 0;
    for (int64_t i = first; i < first + s->batch && i < o->prompt_count; i++) {
      const int64_t each = tws_cache_blocks_of(positions_of(o, i), o->cache_block);
      blocks += each;
      if (each > s->most_blocks) s->most_blocks = each;
    }
    if (blocks > s->pool) s->pool = blocks;
  }
}

static tws_code build_programs(server *s, tws_error *err) {
  const tws_generate_options *o = s->options;
  const int64_t prompt = o->scores ? 1 : s->longest;
  tws_plan_request request = o->plan;
  s->config = *o->plan.config;
  s->config.micro_batch_size = s->batch;
  s->config.train_batch_size = text_count(s);
  request.config = &s->config;
  const tws_serving_sizes sizes = {.prompt = prompt,
                                   .text = s->longest + (o->scores ? 0 : o->count),
                                   .weight_codes = o->weight_codes,
                                   .cache_bits = o->cache_bits,
                                   .cache_block = o->cache_block,
                                   .cache_blocks = s->pool};
  TWS_TRY(tws_serving_make(&request, sizes, &s->serving, err));
  TWS_TRY(tws_serving_plans(&s->serving, s->t.rank, s->plan, err));
  s->t.plan = s->plan[0];
  s->t.counters = &s->plan[0]->state->counters;
  for (int i = 0; i < TWS_SERVING_PROGRAMS; i++) s->t.programs[i] = s->plan[i];
  TWS_TRY(tws_ledger_of_programs(s->t.programs, TWS_SERVING_PROGRAMS, &s->t.ledger, err));
  for (int tier = 0; tier < TWS_TIER_COUNT; tier++) {
    const uint64_t first = tws_plan_bytes(s->plan[0], (tws_tier)tier),
                   second = tws_plan_bytes(s->plan[1], (tws_tier)tier);
    s->result->predicted_bytes += first > second ? first : second;
    s->result->cache_bytes += s->t.ledger.tier[tier].category[TWS_CATEGORY_CACHE];
  }
  return TWS_OK;
}

static tws_code make_room(server *s, tws_error *err) {
  const size_t texts = (size_t)text_count(s), vocabulary = (size_t)s->plan[0]->network->vocabulary;
  const size_t padded = (size_t)s->plan[0]->network->padded_vocabulary;
  s->tensor = s->plan[0]->position.ranks[TWS_AXIS_MODEL];
  s->columns = (int64_t)padded / s->tensor;
  s->scores = tws_calloc(texts * padded, sizeof *s->scores);
  s->one = tws_calloc(padded, sizeof *s->one);
  s->room = tws_calloc(padded, sizeof *s->room);
  const size_t each = (size_t)(2 * s->longest > s->most_blocks ? 2 * s->longest : s->most_blocks);
  s->input = tws_calloc((size_t)s->batch * each, sizeof *s->input);
  s->texts = tws_calloc(texts, sizeof *s->texts);
  int failed = !s->scores || !s->one || !s->room || !s->input || !s->texts;
  if (s->pool > 0) failed |= (s->unused = tws_calloc((size_t)s->pool, sizeof *s->unused)) == NULL;
  for (size_t i = 0; i < texts && !failed && s->pool > 0; i++)
    failed = (s->texts[i].blocks = tws_calloc((size_t)s->most_blocks, sizeof *s->texts[i].blocks)) == NULL;
  const double penalty = s->options->sampling.repetition;
  for (size_t i = 0; i < texts && !failed && penalty > 0 && penalty != 1; i++)
    failed = (s->texts[i].seen = tws_calloc(vocabulary, 1)) == NULL;
  return failed ? tws_fail(err, TWS_MEMORY, NULL, "out of memory") : TWS_OK;
}

/* Gives the texts of this replica the blocks of the cache that they need for the tokens of the next program, and takes
 * those of texts that have ended. */
static tws_code place_texts(server *s, tws_error *err) {
  for (int64_t b = 0; b < s->batch && s->pool > 0; b++) {
    text *x = &s->texts[s->replica * s->batch + b];
    const int64_t count = x->ended ? 0 : x->generated > 0 ? 1 : prefilled(s->options, x->prompt);
    const int64_t wanted = x->ended ? 0 : tws_cache_blocks_of(x->processed + count, s->options->cache_block);
    while (x->block_count > wanted) s->unused[s->unused_count++] = x->blocks[--x->block_count];
    while (x->block_count < wanted && s->unused_count > 0) x->blocks[x->block_count++] = s->unused[--s->unused_count];
    if (x->block_count < wanted) return tws_fail(err, TWS_INTERNAL, NULL, "the cache has too few blocks");
  }
  return TWS_OK;
}

/* Takes all blocks of the cache from their texts. Texts get blocks of low numbers first. */
static void take_blocks(server *s) {
  s->unused_count = s->pool;
  for (int64_t i = 0; i < s->pool; i++) s->unused[i] = (int32_t)(s->pool - 1 - i);
}

/* Fills s->input with an input of a program; `rows`: tokens of each text. */
static void fill_input(const server *s, tws_input_content content, int64_t rows) {
  const int64_t each = 2 * rows > s->most_blocks ? 2 * rows : s->most_blocks;
  memset(s->input, 0, (size_t)(s->batch * each) * sizeof *s->input);
  for (int64_t b = 0; b < s->batch; b++) {
    const text *x = &s->texts[s->replica * s->batch + b];
    const tws_prompt *prompt = x->prompt < 0 ? NULL : &s->options->prompts[x->prompt];
    const int64_t start = x->processed, count = x->ended           ? 0
                                                : x->generated > 0 ? 1
                                                : prompt           ? prefilled(s->options, x->prompt)
                                                                   : 0;
    switch (content) {
      case TWS_INPUT_TOKENS:
        if (x->generated > 0)
          s->input[b] = x->last;
        else if (has_sources(s->options))
          s->input[b] = (int32_t)s->plan[0]->network->start_token;
        else if (count > 0)
          memcpy(s->input + b * rows, prompt->token, (size_t)count * sizeof *s->input);
        break;
      case TWS_INPUT_SOURCE:
        if (prompt) memcpy(s->input + b * rows, prompt->token, (size_t)prompt->count * sizeof *s->input);
        break;
      case TWS_INPUT_STARTS:
        s->input[b] = (int32_t)start;
        break;
      case TWS_INPUT_LENGTHS: /* of an encoder-decoder those of the sources */
        s->input[b] = (int32_t)(!has_sources(s->options) ? count : prompt ? prompt->count : 0);
        break;
      case TWS_INPUT_BLOCKS:
        memcpy(s->input + b * s->most_blocks, x->blocks, (size_t)x->block_count * sizeof *s->input);
        break;
      case TWS_INPUT_COUNTS:
        s->input[b] = (int32_t)count;
        break;
      case TWS_INPUT_ENDS:
        s->input[b] = prompt ? (int32_t)prompt->count - 1 : 0;
        break;
      case TWS_INPUT_ROWS:
        s->input[b] = count > 0 ? (int32_t)(b * rows + count - 1) : -1;
        break;
      case TWS_INPUT_DOCUMENTS: /* the text began `start` tokens before the program's first one */
        for (int64_t i = b * rows; i < (b + 1) * rows; i++) {
          s->input[2 * i] = -(int32_t)start;
          s->input[2 * i + 1] = (int32_t)rows;
        }
        break;
      default: /* positions */
        for (int64_t i = 0; i < rows; i++) s->input[b * rows + i] = (int32_t)(start + i);
    }
  }
}

/* Reads the scores of the last stages of all replicas, on rank 0. */
static tws_code read_scores(server *s, int program, tws_error *err) {
  tws_training *t = &s->t;
  const tws_plan *plan = s->plan[program];
  const int has = plan->scores != TWS_NONE && plan->position.index[TWS_AXIS_MODEL] == 0;
  const uint64_t count = (uint64_t)s->batch * (uint64_t)s->columns * (uint64_t)s->tensor;
  if (has) TWS_TRY(tws_executor_get(t->executor, program, plan->scores, 0, s->scores, count, err));
  if (t->world == 1) return TWS_OK;
  unsigned char *all = NULL;
  uint64_t *offset = NULL;
  TWS_TRY(tws_comm_gather(t->comm, s->scores, has ? count * sizeof *s->scores : 0, &all, &offset, err));
  for (int r = 0; all && r < t->world; r++) {
    const int replica = tws_topology_index(&plan->topology, r, TWS_AXES_DATA);
    memcpy(s->scores + (uint64_t)replica * count, all + offset[r], offset[r + 1] - offset[r]);
  }
  tws_free(all);
  tws_free(offset);
  return TWS_OK;
}

/* Runs a program over the texts that have not ended, and reads their scores. */
static tws_code run_program(server *s, int program, tws_error *err) {
  tws_training *t = &s->t;
  const tws_plan *plan = s->plan[program];
  const float hyper[TWS_HYPER_COUNT] = {0};
  const tws_pass_clocks began = tws_pass_clocks_read();
  TWS_TRY(place_texts(s, err));
  for (uint32_t i = 0; i < plan->network->input_count; i++) {
    fill_input(s, plan->network->input[i].content, plan->sequence_length);
    TWS_TRY(tws_executor_put(t->executor, program, plan->input[i], 0, s->input, plan->buffers[plan->input[i]].elements,
                             err));
  }
  TWS_TRY(tws_executor_put(t->executor, program, plan->hyper, 0, hyper, TWS_HYPER_COUNT, err));
  TWS_TRY(tws_executor_zero(t->executor, program, plan->metrics, err));
  TWS_TRY(tws_executor_step(t->executor, program, ++s->passes, NULL, NULL, NULL, err));
  for (int64_t b = 0; b < text_count(s); b++) {
    text *x = &s->texts[b];
    if (x->ended) continue;
    const int64_t count = x->generated > 0 ? 1 : prefilled(s->options, x->prompt);
    x->processed += count;
    s->result->forward_tokens += count;
    if (program == PREFILL && has_sources(s->options))
      s->result->forward_tokens += s->options->prompts[x->prompt].count;
  }
  TWS_TRY(read_scores(s, program, err));
  const tws_pass_clocks ended = tws_pass_clocks_read();
  *(program == PREFILL ? &s->result->prefill_s : &s->result->decode_s) += ended.s - began.s;
  *(program == PREFILL ? &s->result->prefill_cpu_s : &s->result->decode_cpu_s) += ended.cpu_s - began.cpu_s;
  return TWS_OK;
}

/* Joins the columns of all tensor ranks of a text's scores. */
static const float *scores_of(const server *s, int64_t b) {
  const int64_t replica = b / s->batch, row = b % s->batch;
  for (int r = 0; r < s->tensor; r++)
    memcpy(s->one + r * s->columns, s->scores + ((replica * s->tensor + r) * s->batch + row) * s->columns,
           (size_t)s->columns * sizeof *s->one);
  return s->one;
}

/* Chooses the next token of a text from its scores; where given texts are scored, takes the next token of the given
 * text. Returns 1 if the token is the last one that the options allow for the text. */
static int choose_token(const server *s, text *x, const float *scores, double *log_probability) {
  const tws_generate_options *o = s->options;
  const int32_t vocabulary = (int32_t)s->plan[0]->network->vocabulary;
  if (o->scores) {
    const tws_prompt *prompt = &o->prompts[x->prompt];
    x->last = prompt->token[++x->generated];
    *log_probability = tws_log_probability(scores, vocabulary, x->last);
    return x->generated + 1 == prompt->count;
  }
  const double uniform =
      tws_random_uniform(o->seed + (uint64_t)x->prompt, UINT64_C(0x67656e6572617465), (uint64_t)x->generated);
  x->last = tws_sample(scores, vocabulary, &o->sampling, x->seen, uniform, s->room, log_probability);
  return ++x->generated == o->count;
}

/* Chooses the next token of each text from its scores, on rank 0. */
static tws_code choose_tokens(server *s, tws_error *err) {
  const tws_generate_options *o = s->options;
  for (int64_t b = 0; b < text_count(s); b++) {
    text *x = &s->texts[b];
    if (x->ended) continue;
    double log_probability = 0;
    const int last = choose_token(s, x, scores_of(s, b), &log_probability);
    if (!isfinite(log_probability))
      return tws_fail(err, TWS_INVALID, "are these the weights of this model?", "the model's scores are no numbers");
    s->result->generated_tokens += !o->scores;
    if (x->seen) x->seen[x->last] = 1;
    x->ended = o->on_token(o->user, x->prompt, x->last, log_probability) || last;
  }
  return TWS_OK;
}

/* Sends the tokens that rank 0 has chosen to all ranks. */
static tws_code share_tokens(server *s, tws_error *err) {
  const int first = s->t.rank == 0;
  uint64_t bytes = (uint64_t)text_count(s) * 2 * sizeof(int32_t);
  int32_t *chosen = first ? tws_calloc((size_t)text_count(s), 2 * sizeof *chosen) : NULL;
  void *data = chosen;
  if (first && !chosen) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (int64_t b = 0; first && b < text_count(s); b++)
    chosen[2 * b] = s->texts[b].last, chosen[2 * b + 1] = s->texts[b].ended;
  const tws_code code = tws_mpi_broadcast(NULL, &data, &bytes, err);
  for (int64_t b = 0; code == TWS_OK && !first && b < text_count(s); b++) {
    s->texts[b].last = ((const int32_t *)data)[2 * b];
    s->texts[b].generated += !s->texts[b].ended;
    s->texts[b].ended = ((const int32_t *)data)[2 * b + 1];
  }
  tws_free(data);
  return code;
}

/* Chooses the next tokens. *open: the number of texts that have not ended. */
static tws_code next_tokens(server *s, int64_t *open, tws_error *err) {
  if (s->t.rank == 0) TWS_TRY(choose_tokens(s, err));
  if (s->t.world > 1) TWS_TRY(share_tokens(s, err));
  *open = 0;
  for (int64_t b = 0; b < text_count(s); b++) *open += !s->texts[b].ended;
  return TWS_OK;
}

/* Begins the texts of prompts from `first` on. */
static void begin_batch(server *s, int64_t first) {
  const size_t vocabulary = (size_t)s->plan[0]->network->vocabulary;
  if (s->pool > 0) take_blocks(s);
  for (int64_t b = 0; b < text_count(s); b++) {
    text *x = &s->texts[b];
    uint8_t *seen = x->seen;
    const int there = first + b < s->options->prompt_count;
    *x = (text){.prompt = there ? first + b : -1, .ended = !there, .seen = seen, .blocks = x->blocks};
    if (seen) memset(seen, 0, vocabulary);
    for (int64_t i = 0; seen && there && i < s->options->prompts[x->prompt].count; i++)
      seen[s->options->prompts[x->prompt].token[i]] = 1;
  }
}

static tws_code generate_batches(server *s, tws_error *err) {
  for (int64_t first = 0; first < s->options->prompt_count; first += text_count(s)) {
    int64_t open = 0;
    begin_batch(s, first);
    TWS_TRY(run_program(s, PREFILL, err));
    TWS_TRY(next_tokens(s, &open, err));
    while (open > 0) {
      TWS_TRY(run_program(s, DECODE, err));
      TWS_TRY(next_tokens(s, &open, err));
    }
    s->result->batches++;
  }
  return TWS_OK;
}

/* Allocates memory and reads the weights. What lacks memory is the cache and the weights, which a training's settings,
 * such as its micro batch, do not make smaller. */
static tws_code start(server *s, tws_error *err) {
  const tws_code code = tws_forward_start(&s->t, TWS_SERVING_PROGRAMS, DECODE, err);
  if (code == TWS_MEMORY && err && *err->hint)
    snprintf(err->hint, sizeof err->hint,
             "use fewer texts at a time (--batch), fewer --tokens, more ranks (--tp, --pp), --weights or --cache fp8");
  return code;
}

static tws_code serve(server *s, tws_error *err) {
  const tws_generate_options *o = s->options;
  const int64_t together = o->batch > 0 && o->batch < o->prompt_count ? o->batch : o->prompt_count;
  s->replicas = tws_topology_size(&o->plan.topology, TWS_AXES_DATA);
  s->replica = tws_topology_index(&o->plan.topology, s->t.rank, TWS_AXES_DATA);
  s->batch = (together + s->replicas - 1) / s->replicas;
  for (int64_t i = 0; i < o->prompt_count; i++)
    if (o->prompts[i].count > s->longest) s->longest = o->prompts[i].count;
  if (o->cache_block > 0) size_pool(s);
  if (o->activity) snprintf(o->activity, o->activity_bytes, "planning");
  TWS_TRY(build_programs(s, err));
  TWS_TRY(make_room(s, err));
  TWS_TRY(start(s, err));
  s->result->allocated_bytes = tws_forward_allocated(&s->t);
  return generate_batches(s, err);
}

tws_code tws_real_serve(const tws_generate_options *options, tws_generate_result *result, tws_error *err) {
  const tws_train_options weights = {.plan = options->plan,
                                     .resume = options->resume,
                                     .tag = options->tag,
                                     .init_from = options->init_from,
                                     .activity = options->activity,
                                     .activity_bytes = options->activity_bytes,
                                     .log = options->log};
  server s = {.options = options, .result = result};
  tws_code code = tws_forward_begin(&s.t, &weights, err);
  if (code == TWS_OK) code = serve(&s, err);
  tws_plan_destroy(s.plan[1]); /* before the first one, which owns the state, is released */
  tws_training_release(&s.t);
  tws_serving_close(&s.serving);
  for (int64_t b = 0; s.texts && b < text_count(&s); b++) {
    tws_free(s.texts[b].seen);
    tws_free(s.texts[b].blocks);
  }
  tws_free(s.unused);
  tws_free(s.texts);
  tws_free(s.scores);
  tws_free(s.one);
  tws_free(s.room);
  tws_free(s.input);
  return code;
}
