/* The program that the suite `engine` starts once per rank: it trains through twinspeed.h.
 *
 *   ranks_library train FOLDER DATA STEPS MODEL:NAME...   for each job, whose configuration is FOLDER/NAME.json, trains
 *       two engines at once, one on the file DATA and one on the same samples from memory, which must agree to the last
 *       bit, evaluates, saves into FOLDER/NAME and FOLDER/NAME-memory, and resumes in the middle
 *   ranks_library state FOLDER DATA STEPS MODEL:NAME...   reads and sets parameters, gradients and optimizer states:
 *       what is read is what a checkpoint holds, what is set is what trains on, gradients are those of one rank, and
 *       steps in parts have the bits of whole ones
 *   ranks_library codes FOLDER DATA STEPS MODEL:NAME...   reads and sets optimizer states of 8 bits
 *
 * A rank that finds something wrong says so and ends with status 1, which ends the others. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/random.h"
#include "checkpoint/export.h"
#include "checkpoint/folder.h"
#include "checkpoint/read.h"
#include "library/twinspeed.h"

enum { SEQUENCE = 32, MOST_STEPS = 16, SAMPLES = 8 };
static int rank, ranks;
static const char *job_name = "";

static void fail(const char *what, const twinspeed_error *error) {
  fprintf(stderr, "rank %d, %s: %s: %s (%s)\n", rank, job_name, what, error ? error->message : "",
          error ? error->hint : "");
  _exit(1);
}

#define NEED(condition)                       \
  do {                                        \
    if (!(condition)) fail(#condition, NULL); \
  } while (0)
#define CALL(call)                                   \
  do {                                               \
    if ((call) != TWINSPEED_OK) fail(#call, &error); \
  } while (0)

static twinspeed_error error;

/* ---- jobs and batches ---- */

static twinspeed_job *open_job(const char *folder, const char *model, const char *name) {
  char path[512];
  twinspeed_options o;
  twinspeed_job *job;
  snprintf(path, sizeof path, "%s/%s.json", folder, name);
  twinspeed_options_init(&o);
  o.model = model;
  o.config = path;
  o.sequence_length = SEQUENCE;
  o.ranks = ranks;
  CALL(twinspeed_open(&o, &job, &error));
  return job;
}

static unsigned char *text;
static uint64_t samples;

static void read_text(const char *path) {
  FILE *file = fopen(path, "rb");
  text = malloc(1 << 20);
  NEED(file && text);
  samples = (fread(text, 1, 1 << 20, file) - 1) / SEQUENCE;
  fclose(file);
}

/* Writes the batch that step `step`, counted from 0, takes of the text, in the order of real/data.h. */
static void fill_batch(int64_t seed, int64_t step, int32_t tokens[SAMPLES][SEQUENCE + 1]) {
  for (int64_t i = 0; i < SAMPLES; i++) {
    const uint64_t at = (uint64_t)(step * SAMPLES + i);
    const uint64_t sample = tws_random_permute((uint64_t)seed + at / samples, samples, at % samples);
    for (int t = 0; t <= SEQUENCE; t++) tokens[i][t] = text[sample * SEQUENCE + (uint64_t)t];
  }
}

/* ---- train ---- */

static const char client_state[] = "{\"epoch\": 3, \"text\": \"caf\xc3\xa9 \\\"a\\\"\n\"}";

static twinspeed_engine *open_engine(twinspeed_job *job, const char *data) {
  twinspeed_engine_options o;
  twinspeed_engine *engine;
  twinspeed_engine_options_init(&o);
  o.data = data;
  CALL(twinspeed_engine_open(job, &o, &engine, &error));
  return engine;
}

static void train_job(const char *folder, const char *data, int steps, const char *model, const char *name) {
  char saved[512], memory[512], tag[TWINSPEED_TAG_SIZE];
  int32_t tokens[SAMPLES][SEQUENCE + 1];
  const twinspeed_batch batch = {.tokens = tokens[0]};
  twinspeed_step step, other, losses[MOST_STEPS];
  const char *state;
  double loss, again;
  twinspeed_job *job = open_job(folder, model, name);
  twinspeed_engine *a = open_engine(job, data), *b = open_engine(job, NULL);
  snprintf(saved, sizeof saved, "%s/%s", folder, name);
  snprintf(memory, sizeof memory, "%s/%s-memory", folder, name);
  for (int s = 0; s < steps; s++) {
    fill_batch(1234, s, tokens);
    const double lr = twinspeed_learning_rate(a);
    CALL(twinspeed_train_batch(a, NULL, &step, &error));
    CALL(twinspeed_train_batch(b, &batch, &other, &error));
    NEED(step.loss == other.loss && step.gradient_norm == other.gradient_norm);
    NEED(step.step == s + 1 && step.learning_rate == lr && step.samples == SAMPLES * (s + 1));
    NEED(isfinite(step.loss) && step.loss > 1 && step.loss < 7 && step.seconds > 0 && step.memory_bytes[0] > 0);
    losses[s] = step;
    if (s == steps / 2) { /* an evaluation changes nothing */
      CALL(twinspeed_eval_batch(a, &batch, &loss, &error));
      CALL(twinspeed_eval_batch(a, &batch, &again, &error));
      NEED(loss == again && loss > 1 && loss < step.loss + 0.5);
    }
    if (s + 1 == steps / 2 || s + 1 == steps) CALL(twinspeed_save(a, saved, client_state, 0, tag, &error));
  }
  snprintf(tag, sizeof tag, "global_step%d", steps / 2);
  CALL(twinspeed_load(b, saved, tag, &state, &error));
  NEED(strcmp(state, client_state) == 0 && twinspeed_engine_steps(b) == steps / 2);
  for (int s = steps / 2; s < steps; s++) {
    fill_batch(1234, s, tokens);
    CALL(twinspeed_train_batch(b, &batch, &other, &error));
    NEED(other.loss == losses[s].loss && other.gradient_norm == losses[s].gradient_norm);
  }
  CALL(twinspeed_save(b, memory, NULL, 1, tag, &error));
  CALL(twinspeed_load(b, memory, NULL, &state, &error));
  NEED(*state == '\0' && twinspeed_engine_steps(b) == steps);
  twinspeed_engine_close(a);
  twinspeed_engine_close(b);
  twinspeed_close(job);
}

/* ---- state ---- */

static float *get(twinspeed_engine *engine, const twinspeed_parameter *p, const char *state) {
  float *values = malloc(p->elements * sizeof *values);
  NEED(values);
  CALL(twinspeed_get_full(engine, p->name, state, values, &error));
  return values;
}

/* Compares all states of two engines, or of an engine and a checkpoint. */
static void compare_states(twinspeed_engine *a, twinspeed_engine *b) {
  twinspeed_parameter p;
  for (int i = 0; twinspeed_parameter_describe(a, i, &p); i++)
    for (int s = 0; twinspeed_state_name(a, s); s++) {
      const char *state = twinspeed_state_name(a, s);
      if (strcmp(state, "gradient") == 0) continue;
      float *one = get(a, &p, state), *two = get(b, &p, state);
      if (memcmp(one, two, p.elements * sizeof *one) != 0) fail(p.name, NULL);
      free(one);
      free(two);
    }
}

static void compare_with_checkpoint(twinspeed_engine *engine, const char *folder, int experts_apart) {
  char path[TWS_FOLDER_SIZE];
  tws_error err = {0};
  tws_saved_index *index;
  tws_saved_reader reader;
  twinspeed_parameter p;
  NEED(tws_folder_find(folder, NULL, path, sizeof path, &err) == TWS_OK);
  NEED(tws_saved_open(path, &index, &err) == TWS_OK);
  NEED(tws_saved_reader_open(index, &reader, &err) == TWS_OK);
  for (int i = 0; twinspeed_parameter_describe(engine, i, &p) && !experts_apart; i++)
    for (int s = 0; twinspeed_state_name(engine, s); s++) {
      const char *state = twinspeed_state_name(engine, s);
      if (strcmp(state, "gradient") == 0) continue;
      const uint32_t entry = s == 0 ? tws_saved_weights(index) : tws_saved_entry_of(index, state);
      const uint32_t param = tws_saved_param_of(index, p.name);
      float *values = get(engine, &p, state), *saved = calloc(p.elements, sizeof *saved);
      NEED(entry != TWS_NONE && param != TWS_NONE && saved);
      const tws_param_slice whole = tws_slice_of(&index->params[param], NULL);
      NEED(tws_saved_read(&reader, entry, param, 0, &whole, 0, p.elements, TWS_F32, saved, &err) == TWS_OK);
      if (memcmp(values, saved, p.elements * sizeof *saved) != 0) fail(p.name, NULL);
      free(values);
      free(saved);
    }
  tws_saved_reader_close(&reader);
  tws_saved_close(index);
}

/* Trains a step in parts and returns the report. norm: the norm of the gradients that were read, or 0 if `half` is not
 * wanted; half 1: all gradients are halved before the optimizer. */
static twinspeed_step step_in_parts(twinspeed_engine *engine, const twinspeed_job_facts *facts,
                                    int32_t tokens[SAMPLES][SEQUENCE + 1], int half, double *norm) {
  const int64_t part = SAMPLES / facts->accumulation;
  twinspeed_step step;
  twinspeed_parameter p;
  double loss, mean = 0;
  for (int64_t m = 0; m < facts->accumulation; m++) {
    const twinspeed_batch batch = {.tokens = tokens[m * part]};
    NEED(twinspeed_is_gradient_accumulation_boundary(engine) == (m + 1 == facts->accumulation));
    CALL(twinspeed_forward(engine, &batch, &loss, &error));
    NEED(twinspeed_train_batch(engine, &batch, NULL, NULL) == TWINSPEED_USAGE);
    NEED(twinspeed_forward(engine, &batch, NULL, NULL) == TWINSPEED_USAGE);
    CALL(twinspeed_backward(engine, &error));
    mean += loss / (double)facts->accumulation;
    for (int i = 0; norm && m + 1 == facts->accumulation && twinspeed_parameter_describe(engine, i, &p); i++) {
      float *values = get(engine, &p, "gradient");
      for (uint64_t k = 0; k < p.elements; k++) {
        *norm += (double)values[k] * (double)values[k];
        values[k] /= 2;
      }
      if (half) CALL(twinspeed_set_full(engine, p.name, "gradient", 0, rank == 0 ? values : NULL, &error));
      free(values);
    }
    CALL(twinspeed_step_micro_batch(engine, &step, &error));
    NEED(m + 1 == facts->accumulation || step.step == 0);
  }
  NEED(fabs(mean - step.loss) < 1e-5 * step.loss);
  if (norm) *norm = sqrt(*norm);
  return step;
}

/* Writes the gradients of the first step on one rank; on other numbers of ranks compares the gradients with that
 * file. */
static void compare_gradients(const char *folder, const char *model, twinspeed_engine *engine) {
  char path[512];
  twinspeed_parameter p;
  snprintf(path, sizeof path, "%s/gradients-%s", folder, model);
  FILE *file = fopen(path, ranks == 1 ? "wb" : "rb");
  NEED(file);
  for (int i = 0; twinspeed_parameter_describe(engine, i, &p); i++) {
    float *values = get(engine, &p, "gradient"), *others = calloc(p.elements, sizeof *others);
    double largest = 0, difference = 0;
    NEED(others);
    if (ranks == 1) NEED(fwrite(values, sizeof *values, p.elements, file) == p.elements);
    if (ranks > 1) NEED(fread(others, sizeof *others, p.elements, file) == p.elements);
    for (uint64_t k = 0; ranks > 1 && k < p.elements; k++) {
      largest = fmax(largest, fabs((double)others[k]));
      difference = fmax(difference, fabs((double)others[k] - (double)values[k]));
    }
    if (difference > 1e-4 * largest) fail(p.name, NULL);
    free(values);
    free(others);
  }
  fclose(file);
}

/* Sets the weights and moments of an engine to those of another; training continues from the values that were set. */
static void copy_states(twinspeed_engine *from, twinspeed_engine *to) {
  twinspeed_parameter p;
  for (int i = 0; twinspeed_parameter_describe(from, i, &p); i++)
    for (int s = 0; twinspeed_state_name(from, s); s++) {
      const char *state = twinspeed_state_name(from, s);
      if (strcmp(state, "gradient") == 0) continue;
      float *values = get(from, &p, state);
      CALL(twinspeed_set_full(to, p.name, state, ranks - 1, rank == ranks - 1 ? values : NULL, &error));
      free(values);
    }
}

static void change_one(twinspeed_engine *engine) {
  twinspeed_parameter p;
  twinspeed_gathered *scope;
  uint64_t count, sum = 0;
  NEED(twinspeed_parameter_describe(engine, 0, &p));
  const char *const names[] = {p.name};
  CALL(twinspeed_gather(engine, names, 1, &scope, &error));
  float *values = twinspeed_gathered_values(scope, 0), kept = values[5];
  NEED(!twinspeed_gathered_values(scope, 1));
  if (rank == 0) values[5] = 0.5F;
  CALL(twinspeed_gathered_end(scope, 0, &error));
  values = get(engine, &p, "parameter");
  NEED(values[5] == 0.5F);
  free(values);
  float *moment = get(engine, &p, "exp_avg_sq"), *same = get(engine, &p, "second moments");
  NEED(memcmp(moment, same, p.elements * sizeof *same) == 0);
  free(moment);
  free(same);
  CALL(twinspeed_get_local(engine, p.name, "parameter", NULL, &count, &error));
  values = calloc(count + 1, sizeof *values);
  NEED(values);
  CALL(twinspeed_get_local(engine, p.name, "parameter", values, &count, &error));
  for (uint64_t k = 0; k < count; k++)
    if (values[k] == 0.5F) values[k] = kept, sum++;
  CALL(twinspeed_set_local(engine, p.name, "parameter", values, &error));
  free(values);
  values = get(engine, &p, "parameter");
  NEED(values[5] == kept && (ranks > 1 || sum == 1));
  free(values);
}

static void access_job(const char *folder, const char *model, const char *name) {
  char saved[512];
  int32_t tokens[SAMPLES][SEQUENCE + 1];
  const twinspeed_batch batch = {.tokens = tokens[0]};
  twinspeed_job_facts facts;
  twinspeed_step step, other;
  twinspeed_parameter p;
  double norm = 0, loss;
  twinspeed_job *job = open_job(folder, model, name);
  twinspeed_job_describe(job, &facts);
  twinspeed_engine *a = open_engine(job, NULL), *b = open_engine(job, NULL);
  const int in_parts = facts.stages == 1;
  NEED(twinspeed_parameter_describe(a, 0, &p));
  if (!in_parts) {
    NEED(twinspeed_forward(a, &batch, &loss, &error) == TWINSPEED_UNSUPPORTED);
    NEED(strstr(error.message, "only train_batch() is accessible in pipeline mode"));
  }
  for (int s = 0; s < 3; s++) {
    fill_batch(1234, s, tokens);
    CALL(twinspeed_train_batch(a, &batch, &step, &error));
    if (in_parts) {
      norm = 0;
      other = step_in_parts(b, &facts, tokens, 0, s == 0 ? &norm : NULL);
      NEED(step.loss == other.loss && step.gradient_norm == other.gradient_norm);
      NEED(s > 0 || fabs(norm - step.gradient_norm) < 1e-3 * step.gradient_norm);
    } else {
      CALL(twinspeed_train_batch(b, &batch, &other, &error));
    }
  }
  compare_states(a, b);
  snprintf(saved, sizeof saved, "%s/%s", folder, name);
  CALL(twinspeed_save(a, saved, NULL, 0, NULL, &error));
  compare_with_checkpoint(a, saved, p.elements == 0);
  fill_batch(1234, 7, tokens); /* another batch for one of the engines: now their states differ */
  CALL(twinspeed_train_batch(a, &batch, &step, &error));
  fill_batch(1234, 8, tokens);
  if (in_parts) {
    norm = 0;
    other = step_in_parts(b, &facts, tokens, 1, &norm);
    NEED(fabs(2 * other.gradient_norm - norm) < 1e-3 * norm);
  } else {
    CALL(twinspeed_train_batch(b, &batch, &other, &error));
  }
  copy_states(a, b);
  compare_states(a, b);
  change_one(b);
  CALL(twinspeed_train_batch(a, &batch, &step, &error));
  CALL(twinspeed_train_batch(b, &batch, &other, &error));
  NEED(step.loss == other.loss && step.gradient_norm == other.gradient_norm);
  compare_states(a, b);
  NEED(twinspeed_get_full(a, "nosuch", "parameter", NULL, &error) == TWINSPEED_USAGE);
  NEED(twinspeed_get_full(a, p.name, "gradient", NULL, &error) == TWINSPEED_USAGE ||
       error.status == TWINSPEED_UNSUPPORTED);
  NEED(twinspeed_get_full(a, p.name, "exp_avg_cubed", NULL, &error) == TWINSPEED_USAGE);
  NEED(strstr(error.hint, "second moments"));
  twinspeed_engine_close(a);
  twinspeed_engine_close(b);
  if (in_parts && strstr(name, "float")) { /* in float32 gradients can be compared between numbers of ranks */
    a = open_engine(job, NULL);
    fill_batch(1234, 0, tokens);
    for (int64_t m = 0; m < facts.accumulation; m++) {
      const twinspeed_batch part = {.tokens = tokens[m * SAMPLES / facts.accumulation]};
      CALL(twinspeed_forward(a, &part, NULL, &error));
      CALL(twinspeed_backward(a, &error));
      if (m + 1 < facts.accumulation) CALL(twinspeed_step_micro_batch(a, NULL, &error));
    }
    compare_gradients(folder, model, a);
    twinspeed_engine_close(a);
  }
  twinspeed_close(job);
}

/* Moments of 8 bits are read as the numbers that their codes and scales mean, and set as the nearest ones: those of one
 * block differ from what was set by at most the width of the map's intervals, a part of the value in each decade. */
static void code_job(const char *folder, const char *model, const char *name) {
  static const char *const states[] = {"exp_avg", "exp_avg_sq"};
  int32_t tokens[SAMPLES][SEQUENCE + 1];
  const twinspeed_batch batch = {.tokens = tokens[0]};
  twinspeed_job *job = open_job(folder, model, name);
  twinspeed_engine *a = open_engine(job, NULL);
  twinspeed_parameter p;
  twinspeed_step step;
  NEED(strcmp(twinspeed_state_name(a, 2), "first moments") == 0 &&
       strcmp(twinspeed_state_name(a, 3), "second moments") == 0);
  NEED(!twinspeed_state_name(a, 4));
  for (int s = 0; s < 3; s++) {
    fill_batch(1234, s, tokens);
    CALL(twinspeed_train_batch(a, &batch, &step, &error));
  }
  for (int i = 0; twinspeed_parameter_describe(a, i, &p); i++)
    for (int s = 0; s < 2; s++) {
      float *values = get(a, &p, states[s]);
      double most = 0;
      for (uint64_t k = 0; k < p.elements; k++) {
        NEED(s == 0 || values[k] >= 0);
        values[k] *= 2;
        most = fmax(most, fabs((double)values[k]));
      }
      NEED(most > 0);
      CALL(twinspeed_set_full(a, p.name, states[s], 0, rank == 0 ? values : NULL, &error));
      float *again = get(a, &p, states[s]);
      for (uint64_t k = 0; k < p.elements; k++)
        NEED(fabs((double)again[k] - (double)values[k]) <= 0.5 * fabs((double)values[k]) + 1e-6 * most);
      for (uint64_t k = 0; k < p.elements; k++)
        if (fabs((double)values[k]) > 0.5 * most)
          NEED(fabs((double)again[k] - (double)values[k]) <= 0.01 * fabs((double)values[k]));
      free(values);
      free(again);
    }
  CALL(twinspeed_train_batch(a, &batch, &step, &error));
  NEED(isfinite(step.loss));
  twinspeed_engine_close(a);
  twinspeed_close(job);
}

int main(int argc, char **argv) {
  if (argc < 6) return 2;
  CALL(twinspeed_ranks_start(&rank, &ranks, &error));
  read_text(argv[3]);
  for (int i = 5; i < argc; i++) {
    char *model = argv[i], *name = strchr(argv[i], ':');
    NEED(name);
    *name++ = '\0';
    job_name = name;
    if (strcmp(argv[1], "train") == 0)
      train_job(argv[2], argv[3], atoi(argv[4]), model, name);
    else if (strcmp(argv[1], "state") == 0)
      access_job(argv[2], model, name);
    else if (strcmp(argv[1], "codes") == 0)
      code_job(argv[2], model, name);
    else
      return 2;
  }
  free(text);
  twinspeed_ranks_stop();
  return 0;
}
