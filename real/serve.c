/* Token generation with a cache of keys and values: a prefill of a batch of prompts, then one program per token for all
 * texts of the batch that have not ended (plan/serving.h). Tensor ranks and pipeline stages run their parts of both
 * programs, and each replica has texts of its own; rank 0 receives the scores of the last stages of all replicas,
 * chooses the tokens and sends them to all. All ranks run the same number of programs, as experts and partitioned
 * weights are exchanged between replicas. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/memory.h"
#include "base/random.h"
#include "plan/serving.h"
#include "real/sample.h"
#include "real/train_internal.h"

/* A text of the current batch. */
typedef struct text {
  int64_t prompt;    /* index of the prompt in the options; -1: none, because there are fewer texts than the batch has
                      * room for */
  int64_t processed; /* tokens whose keys and values are in the cache */
  int64_t generated;
  int32_t last; /* the token that was generated last */
  int ended;
  uint8_t *seen; /* [vocabulary] 1 for tokens of the text; NULL without a repetition penalty */
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
} server;

/* Returns the number of texts of a batch of all replicas. */
static int64_t text_count(const server *s) {
  return s->batch * s->replicas;
}

/* Returns the number of a prompt's tokens that the prefill processes: all of them or, if the text's tokens are scored,
 * only the first. */
static int64_t prefilled(const tws_generate_options *o, int64_t prompt) {
  return o->scores ? 1 : o->prompts[prompt].count;
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
                                   .cache_bits = o->cache_bits};
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
  s->input = tws_calloc(2 * (size_t)s->batch * (size_t)s->longest, sizeof *s->input);
  s->texts = tws_calloc(texts, sizeof *s->texts);
  int failed = !s->scores || !s->one || !s->room || !s->input || !s->texts;
  const double penalty = s->options->sampling.repetition;
  for (size_t i = 0; i < texts && !failed && penalty > 0 && penalty != 1; i++)
    failed = (s->texts[i].seen = tws_calloc(vocabulary, 1)) == NULL;
  return failed ? tws_fail(err, TWS_MEMORY, NULL, "out of memory") : TWS_OK;
}

static tws_code make_engine(server *s, tws_error *err) {
  tws_training *t = &s->t;
  TWS_TRY(t->ops->create(0, t->threads, &t->backend, err));
  const int busy = (long)t->world * t->threads > sysconf(_SC_NPROCESSORS_ONLN);
  TWS_TRY(tws_comm_create(NULL, t->plan->groups, t->plan->group_count, TWS_TRANSPORT_AUTO, busy, &t->comm, err));
  TWS_TRY(tws_share_cores(t, err));
  tws_executor_setup setup = {.programs = t->programs,
                              .program_count = TWS_SERVING_PROGRAMS,
                              .ops = t->ops,
                              .backend = t->backend,
                              .comm_ops = tws_mpi_comm_ops(),
                              .comm = t->comm,
                              .activity = s->options->activity,
                              .activity_bytes = s->options->activity_bytes};
  TWS_TRY(tws_training_disk(t, &setup.disk, err));
  TWS_TRY(tws_executor_create(&setup, &t->executor, err));
  for (int tier = 0; tier < TWS_TIER_COUNT; tier++)
    s->result->allocated_bytes += tws_executor_allocated(t->executor, (tws_tier)tier);
  return TWS_OK;
}

/* Fills s->input with an input of a program; `rows`: tokens of each text. */
static void fill_input(const server *s, tws_input_content content, int64_t rows) {
  memset(s->input, 0, (size_t)(2 * s->batch * rows) * sizeof *s->input);
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
        else if (count > 0)
          memcpy(s->input + b * rows, prompt->token, (size_t)count * sizeof *s->input);
        break;
      case TWS_INPUT_STARTS:
        s->input[b] = (int32_t)start;
        break;
      case TWS_INPUT_LENGTHS:
        s->input[b] = (int32_t)count;
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

/* Returns the CPU seconds of this process so far. */
static double cpu_s(void) {
  struct timespec now;
  return clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now) == 0 ? (double)now.tv_sec + 1e-9 * (double)now.tv_nsec : 0;
}

/* Runs a program over the texts that have not ended, and reads their scores. */
static tws_code run_program(server *s, int program, tws_error *err) {
  tws_training *t = &s->t;
  const tws_plan *plan = s->plan[program];
  const float hyper[TWS_HYPER_COUNT] = {0};
  const double began = tws_clock_s(), began_cpu = cpu_s();
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
  }
  TWS_TRY(read_scores(s, program, err));
  *(program == 0 ? &s->result->prefill_s : &s->result->decode_s) += tws_clock_s() - began;
  *(program == 0 ? &s->result->prefill_cpu_s : &s->result->decode_cpu_s) += cpu_s() - began_cpu;
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
  for (int64_t b = 0; b < text_count(s); b++) {
    text *x = &s->texts[b];
    uint8_t *seen = x->seen;
    const int there = first + b < s->options->prompt_count;
    *x = (text){.prompt = there ? first + b : -1, .ended = !there, .seen = seen};
    if (seen) memset(seen, 0, vocabulary);
    for (int64_t i = 0; seen && there && i < s->options->prompts[x->prompt].count; i++)
      seen[s->options->prompts[x->prompt].token[i]] = 1;
  }
}

static tws_code generate_batches(server *s, tws_error *err) {
  for (int64_t first = 0; first < s->options->prompt_count; first += text_count(s)) {
    int64_t open = 0;
    begin_batch(s, first);
    TWS_TRY(run_program(s, 0, err));
    TWS_TRY(next_tokens(s, &open, err));
    while (open > 0) {
      TWS_TRY(run_program(s, 1, err));
      TWS_TRY(next_tokens(s, &open, err));
    }
    s->result->batches++;
  }
  return TWS_OK;
}

/* Reports to the launcher what this rank does outside of programs: the launcher ends a job in which no report changes
 * for its deadline. */
static void begin_phase(const server *s, const char *what) {
  if (s->options->activity) snprintf(s->options->activity, s->options->activity_bytes, "%s", what);
}

static tws_code serve(server *s, tws_error *err) {
  const tws_generate_options *o = s->options;
  const int64_t together = o->batch > 0 && o->batch < o->prompt_count ? o->batch : o->prompt_count;
  s->replicas = tws_topology_size(&o->plan.topology, TWS_AXES_DATA);
  s->replica = tws_topology_index(&o->plan.topology, s->t.rank, TWS_AXES_DATA);
  s->batch = (together + s->replicas - 1) / s->replicas;
  for (int64_t i = 0; i < o->prompt_count; i++)
    if (o->prompts[i].count > s->longest) s->longest = o->prompts[i].count;
  begin_phase(s, "planning");
  TWS_TRY(build_programs(s, err));
  begin_phase(s, "opening the weights");
  TWS_TRY(tws_resume_open(&s->t, err));
  TWS_TRY(make_room(s, err));
  begin_phase(s, "allocating memory");
  TWS_TRY(make_engine(s, err));
  begin_phase(s, "reading the weights");
  TWS_TRY(tws_training_weights(&s->t, err));
  return generate_batches(s, err);
}

tws_code tws_real_serve(const tws_generate_options *options, tws_generate_result *result, tws_error *err) {
  const tws_train_options weights = {.plan = options->plan,
                                     .resume = options->resume,
                                     .tag = options->tag,
                                     .init_from = options->init_from,
                                     .log = options->log};
  server s = {.options = options,
              .result = result,
              .t = {.options = &weights,
                    .config = options->plan.config,
                    .rank = tws_mpi_rank(NULL),
                    .world = tws_mpi_world(NULL),
                    .threads = options->plan.threads > 0 ? options->plan.threads : 1,
                    .weights_only = 1,
                    .ops = tws_real_backend("host")}};
  const tws_code code = serve(&s, err);
  tws_plan_destroy(s.plan[1]); /* the second plan is destroyed before the first one, because the first one owns the
                                * state */
  tws_training_release(&s.t);
  tws_serving_close(&s.serving);
  for (int64_t b = 0; s.texts && b < text_count(&s); b++) tws_free(s.texts[b].seen);
  tws_free(s.texts);
  tws_free(s.scores);
  tws_free(s.one);
  tws_free(s.room);
  tws_free(s.input);
  return code;
}
