/* The program that the suite `engine` starts once per rank: it trains through twinspeed.h.
 *
 *   ranks_library train FOLDER DATA STEPS MODEL:NAME...   for each job, whose configuration is FOLDER/NAME.json, trains
 *       two engines at once, one on the file DATA and one on the same samples from memory, which must agree to the last
 *       bit, evaluates, saves into FOLDER/NAME and FOLDER/NAME-memory, and resumes in the middle
 *
 * A rank that finds something wrong says so and ends with status 1, which ends the others. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/random.h"
#include "library/twinspeed.h"

enum { SEQUENCE = 32, MOST_STEPS = 16, SAMPLES = 8 };
static int rank, ranks;
static const char *job_name = "";

static void fail(const char *what, const twinspeed_error *error) {
  fprintf(stderr, "rank %d, %s: %s: %s (%s)\n", rank, job_name, what, error ? error->message : "",
          error ? error->hint : "");
  _exit(1);
}

#define NEED(condition) \
  do { \
    if (!(condition)) fail(#condition, NULL); \
  } while (0)
#define CALL(call) \
  do { \
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

/* The batch that step `step`, counted from 0, takes of the text: real/data.h says in which order. */
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
    else
      return 2;
  }
  free(text);
  twinspeed_ranks_stop();
  return 0;
}
