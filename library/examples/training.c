/* Trains a small model, saves it, reads one of its parameters, and resumes, on one rank or after mpirun -n RANKS. */
#include <stdio.h>
#include <stdlib.h>
#include <twinspeed.h>

enum { SEQUENCE = 32, SAMPLES = 8, STEPS = 6 };

static twinspeed_error error;

static void need(twinspeed_status status) {
  if (status == TWINSPEED_OK) return;
  fprintf(stderr, "%s: %s\n%s\n", twinspeed_status_name(status), error.message, error.hint);
  exit(1);
}

int main(int argc, char **argv) {
  int rank, ranks;
  int32_t tokens[SAMPLES][SEQUENCE + 1];
  const twinspeed_batch batch = {.tokens = tokens[0]};
  twinspeed_options options;
  twinspeed_job *job;
  twinspeed_engine *engine, *other;
  twinspeed_parameter first;
  twinspeed_step step;
  const char *state;
  need(twinspeed_ranks_start(&rank, &ranks, &error));
  twinspeed_options_init(&options);
  options.model = argc > 1 ? argv[1] : "tiny-gpt2";
  options.config = argc > 2 ? argv[2] : NULL;
  options.ranks = ranks;
  options.sequence_length = SEQUENCE;
  options.micro_batch = SAMPLES / ranks;
  need(twinspeed_open(&options, &job, &error));
  need(twinspeed_engine_open(job, NULL, &engine, &error));
  for (int s = 0; s < STEPS; s++) {
    for (int i = 0; i < SAMPLES; i++)
      for (int t = 0; t <= SEQUENCE; t++) tokens[i][t] = (i + t * (1 + i % 3)) % 100;
    need(twinspeed_train_batch(engine, &batch, &step, &error));
    if (rank == 0) printf("step %d: loss %.4f, gradient norm %.4f\n", (int)step.step, step.loss, step.gradient_norm);
    if (s == STEPS / 2) need(twinspeed_save(engine, "checkpoints", "{\"epoch\": 1}", 2, NULL, &error));
  }
  if (!twinspeed_parameter_describe(engine, 0, &first)) return 1;
  float *weights = malloc(first.elements * sizeof *weights);
  if (!weights) return 1;
  need(twinspeed_get_full(engine, first.name, "parameter", weights, &error));
  if (rank == 0)
    printf("%s: %lld x %lld, begins with %.6f\n", first.name, (long long)first.rows, (long long)first.columns,
           (double)weights[0]);
  free(weights);
  need(twinspeed_engine_open(job, NULL, &other, &error)); /* a second engine in this process, which resumes */
  need(twinspeed_load(other, "checkpoints", NULL, &state, &error));
  if (rank == 0) printf("resumed after step %d with %s\n", (int)twinspeed_engine_steps(other), state);
  while (twinspeed_engine_steps(other) < STEPS) need(twinspeed_train_batch(other, &batch, &step, &error));
  if (rank == 0) printf("step %d again: loss %.4f\n", (int)step.step, step.loss);
  twinspeed_engine_close(other);
  twinspeed_engine_close(engine);
  twinspeed_close(job);
  twinspeed_ranks_stop();
  return 0;
}
