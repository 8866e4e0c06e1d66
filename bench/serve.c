/* Predictions of inference on this machine against measurements: for 20 shapes, seconds to the first tokens and seconds
 * a token by a profile of `twinspeed calibrate`, and by generating with random weights. Measured are CPU seconds of the
 * process, which other processes change less than those of the clock; with one thread they are the seconds of an idle
 * machine. Each run generates several batches of texts, one after another. The first batch is not measured: as in a
 * server, whose memory has been touched by earlier requests, a prefill is measured from the last token of the batch
 * before it to its own first tokens. Lower quartiles of batches and tokens are compared, as calibration reports those
 * of its passes, because other load on the machine only ever adds. Rounds over all shapes run one after another, each in
 * a process of its own. The clock, the caches and the memory of a virtual machine change with the load of others on the
 * same processor, by a third within minutes, so that a profile is off by as much as they changed since it was measured:
 * with `calibrate` each round measures a profile just before its shapes. Of each round the ratio of predicted to
 * measured seconds is taken, and the median over the rounds is printed. */
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/process.h"
#include "bench/support.h"
#include "job/serving.h"
#include "real/real.h"

enum { MOST_ROUNDS = 32, MOST_TOKENS = 64, MOST_BATCH = 8, MOST_PROMPT = 512, MOST_BATCHES = 5 };

typedef struct shape {
  const char *dtype;
  const char *type; /* model_type */
  int hidden, layers, heads, kv_heads, inner, vocabulary;
  int batch, prompt, output;
} shape;

static const shape shapes[] = {{"fp32", "llama", 64, 2, 4, 2, 192, 256, 1, 16, 16},
                               {"fp32", "llama", 256, 4, 4, 4, 1024, 1000, 1, 64, 16},
                               {"bf16", "llama", 256, 4, 4, 2, 1024, 1000, 4, 64, 16},
                               {"fp32", "llama", 512, 8, 8, 8, 1536, 8000, 1, 128, 16},
                               {"bf16", "llama", 512, 8, 8, 2, 1536, 8000, 2, 128, 16},
                               {"bf16", "llama", 768, 12, 12, 4, 2048, 32000, 1, 128, 16},
                               {"fp32", "llama", 768, 6, 12, 12, 3072, 32000, 1, 32, 16},
                               {"fp32", "llama", 1024, 4, 16, 8, 2816, 32000, 4, 64, 16},
                               {"bf16", "llama", 2048, 2, 32, 8, 8192, 32000, 1, 128, 16},
                               {"bf16", "llama", 1024, 8, 16, 4, 4096, 8000, 1, 512, 16},
                               {"fp32", "gpt2", 128, 4, 4, 4, 512, 1000, 1, 32, 16},
                               {"fp32", "gpt2", 384, 6, 6, 6, 1536, 5000, 2, 64, 16},
                               {"bf16", "gpt2", 768, 6, 12, 12, 3072, 50257, 1, 128, 16},
                               {"fp32", "gpt2", 768, 12, 12, 12, 3072, 50257, 1, 64, 16},
                               {"bf16", "gpt2", 1024, 6, 16, 16, 4096, 20000, 4, 32, 16},
                               {"fp32", "qwen2", 512, 6, 8, 2, 1408, 16000, 1, 256, 16},
                               {"bf16", "qwen2", 896, 6, 14, 2, 4864, 32000, 2, 64, 16},
                               {"fp32", "qwen2", 256, 8, 8, 4, 768, 4000, 4, 128, 16},
                               {"bf16", "mistral", 512, 4, 8, 4, 2048, 16000, 1, 256, 16},
                               {"fp32", "mistral", 1280, 3, 20, 4, 3456, 16000, 1, 32, 16}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* Predicted or measured seconds of a shape: of the pass over the prompts, and of a pass over one token of each. */
typedef struct times {
  double first_s, token_s;
} times;

static const tws_real_api *load(void) {
  const tws_real_api *(*get)(void);
  void *symbol = module_symbol(TWS_BUILD_DIR "/twinspeed_real.so", TWS_REAL_MODULE_SYMBOL);
  memcpy(&get, &symbol, sizeof get);
  return get();
}

/* Writes the model's configuration to a temporary file. */
static void write_model(const shape *s, char *path) {
  const int file = mkstemp(path);
  FILE *out = file < 0 ? NULL : fdopen(file, "w");
  if (!out) exit(1);
  if (strcmp(s->type, "gpt2") == 0)
    fprintf(out,
            "{\"model_type\":\"gpt2\",\"vocab_size\":%d,\"n_embd\":%d,\"n_layer\":%d,\"n_head\":%d,\"n_inner\":%d,"
            "\"n_positions\":1024}",
            s->vocabulary, s->hidden, s->layers, s->heads, s->inner);
  else
    fprintf(out,
            "{\"model_type\":\"%s\",\"vocab_size\":%d,\"hidden_size\":%d,\"num_hidden_layers\":%d,"
            "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"intermediate_size\":%d,"
            "\"max_position_embeddings\":1024,\"tie_word_embeddings\":true}",
            s->type, s->vocabulary, s->hidden, s->layers, s->heads, s->kv_heads, s->inner);
  fclose(out);
}

static tws_job *load_job(const shape *s, const char *profile, int threads) {
  tws_error err = {0};
  tws_job *job;
  char path[] = "/tmp/twinspeed-bench-XXXXXX";
  write_model(s, path);
  tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
  spec.model = path;
  spec.profile = profile;
  spec.dtype = s->dtype;
  spec.threads = threads;
  spec.sequence = s->prompt + s->output;
  tws_job_spec_generate(&spec);
  const tws_code code = tws_job_load(&spec, &job, &err);
  unlink(path);
  need(code, &err);
  return job;
}

static times predict(const shape *s, const tws_job *job) {
  tws_error err = {0};
  tws_serve_answer answer;
  tws_job batch = *job;
  tws_config config = *job->config;
  config.micro_batch_size = config.train_batch_size = s->batch;
  batch.config = &config;
  const tws_serve_request request = {.prompt = s->prompt, .output = s->output, .server = tws_server_find("twinspeed")};
  need(tws_job_serve(&batch, &request, &answer, &err), &err);
  return (times){answer.first_token_s, answer.token_s};
}

/* CPU seconds of the process at the last text's tokens. */
typedef struct stamps {
  int texts, count;
  double cpu[MOST_BATCHES * MOST_TOKENS];
} stamps;

static int on_token(void *user, int64_t prompt, int32_t token, double log_probability) {
  stamps *s = user;
  (void)token, (void)log_probability;
  if ((prompt + 1) % s->texts == 0 && s->count < MOST_BATCHES * MOST_TOKENS) s->cpu[s->count++] = cpu_s();
  return 0;
}

/* Returns the lower quartile. */
static double low(double *values, int count) {
  median(values, count); /* sorts them */
  return values[count / 4];
}

/* Prefills that take longer than SLOW_S vary less, so that fewer of them are measured. */
static times measure(const tws_real_api *api, const shape *s, const tws_job *job, times predicted) {
  static const double SLOW_S = 0.1;
  static int32_t tokens[MOST_PROMPT];
  static stamps at;
  const int batches = predicted.first_s > SLOW_S ? 2 : MOST_BATCHES;
  tws_error err = {0};
  tws_prompt prompts[MOST_BATCHES * MOST_BATCH];
  tws_generate_result result;
  double each[MOST_BATCHES * MOST_TOKENS], first[MOST_BATCHES];
  int count = 0;
  at = (stamps){.texts = s->batch};
  for (int i = 0; i < s->prompt; i++) tokens[i] = (i * 7919 + 13) % s->vocabulary;
  for (int i = 0; i < batches * s->batch; i++) prompts[i] = (tws_prompt){tokens, s->prompt};
  const tws_generate_options options = {.plan = tws_job_request(job, 0),
                                        .prompts = prompts,
                                        .prompt_count = batches * s->batch,
                                        .batch = s->batch,
                                        .count = s->output,
                                        .cache = 1,
                                        .on_token = on_token,
                                        .user = &at};
  need(api->generate(&options, &result, &err), &err);
  for (int b = 1; b < batches; b++) {
    const double *tokens_at = at.cpu + b * s->output;
    first[b - 1] = tokens_at[0] - tokens_at[-1];
    for (int i = 1; i < s->output; i++) each[count++] = tokens_at[i] - tokens_at[i - 1];
  }
  return (times){low(first, batches - 1), low(each, count)};
}

/* One round of one shape. */
typedef struct sample {
  times predicted, measured;
} sample;

enum { QUANTITIES = 2 };
static double quantity(const times *t, int k) {
  return k == 0 ? t->first_s : t->token_s;
}

/* Prints a row for each shape, of medians over the rounds; a ratio of predicted to measured seconds that is not within
 * 10 % of 1 has a star. */
static void print_results(const sample samples[SHAPES][MOST_ROUNDS], int rounds) {
  double errors[QUANTITIES][SHAPES];
  int within[QUANTITIES] = {0, 0}, rows = 0;
  printf("%2s %-8s %-5s %6s %6s %5s %6s   %29s   %29s\n", "", "", "", "", "", "", "", "first token, ms", "a token, ms");
  printf("%2s %-8s %-5s %6s %6s %5s %6s   %10s %10s %7s   %10s %10s %7s\n", "", "model", "type", "hidden", "layers",
         "texts", "prompt", "predicted", "measured", "ratio", "predicted", "measured", "ratio");
  for (int i = 0; i < SHAPES; i++) {
    const shape *s = &shapes[i];
    if (quantity(&samples[i][0].measured, 1) <= 0) continue;
    printf("%2d %-8s %-5s %6d %6d %5d %6d", i + 1, s->type, s->dtype, s->hidden, s->layers, s->batch, s->prompt);
    for (int k = 0; k < QUANTITIES; k++) {
      double predicted[MOST_ROUNDS], measured[MOST_ROUNDS], ratio[MOST_ROUNDS];
      for (int r = 0; r < rounds; r++) {
        predicted[r] = quantity(&samples[i][r].predicted, k);
        measured[r] = quantity(&samples[i][r].measured, k);
        ratio[r] = predicted[r] / measured[r];
      }
      const double middle = median(ratio, rounds);
      errors[k][rows] = fabs(middle - 1);
      within[k] += errors[k][rows] <= 0.1;
      printf("   %10.3f %10.3f %6.3f%s", 1e3 * median(predicted, rounds), 1e3 * median(measured, rounds), middle,
             errors[k][rows] <= 0.1 ? " " : "*");
    }
    printf("\n");
    rows++;
  }
  printf("within 10 %%: first token %d of %d, median error %.1f %%; a token %d of %d, median error %.1f %%\n",
         within[0], rows, 100 * median(errors[0], rows), within[1], rows, 100 * median(errors[1], rows));
}

/* Memory that the processes of the rounds share, and in which each writes its samples. */
typedef struct results {
  char description[256];
  sample samples[SHAPES][MOST_ROUNDS];
} results;

/* Predicts and measures all shapes, or the one of number `only`, in this process. */
static void take_samples(const char *profile, int threads, int only, int round, results *out) {
  static char name[] = "bench-serve";
  static char *arguments[] = {name, NULL};
  tws_error err = {0};
  int rank, world, count = 1;
  char **list = arguments;
  const tws_real_api *api = load();
  need(api->start(&count, &list, &rank, &world, &err), &err);
  snprintf(out->description, sizeof out->description, "%s", api->description());
  for (int i = 0; i < SHAPES; i++) {
    if (only && i + 1 != only) continue;
    tws_job *job = load_job(&shapes[i], profile, threads);
    const times predicted = predict(&shapes[i], job);
    out->samples[i][round] = (sample){predicted, measure(api, &shapes[i], job, predicted)};
    tws_job_destroy(job);
  }
  api->stop();
}

/* Returns 1 if the process ended without an error. */
static int succeeds(pid_t child) {
  int status;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

/* Returns 1 after `twinspeed calibrate` has written a profile. */
static int calibrate(const char *profile, int threads) {
  char number[16];
  snprintf(number, sizeof number, "%d", threads);
  const char *const arguments[] = {TWS_BUILD_DIR "/twinspeed",
                                   "calibrate",
                                   "--quiet",
                                   "-n",
                                   "1",
                                   "--threads",
                                   number,
                                   "-o",
                                   profile,
                                   "--force",
                                   NULL};
  const tws_process program = {.arguments = arguments, .limit_s = 1800};
  tws_process_end end;
  tws_error err = {0};
  need(tws_process_run(&program, &end, &err), &err);
  if (end.status != 0) fprintf(stderr, "bench-serve: twinspeed calibrate: %s\n", end.errors);
  tws_text_free(&end.output);
  return end.status == 0;
}

int main(int argc, char **argv) {
  char path[] = "/tmp/twinspeed-bench-XXXXXX";
  const char *given = argc > 1 ? argv[1] : NULL;
  const int rounds = argc > 2 ? argument_int(argv[2]) : 3, threads = argc > 3 ? argument_int(argv[3]) : 1;
  const int only = argc > 4 ? argument_int(argv[4]) : 0; /* one shape, for a profiler */
  if (!given || rounds < 1 || rounds > MOST_ROUNDS || threads < 1) {
    fprintf(stderr,
            "usage: bench-serve calibrate|PROFILE [rounds, 1 to %d] [threads]\ncalibrate: each round measures a new "
            "profile first\nPROFILE: a file of `twinspeed calibrate -n 1 --threads N -o FILE`\n",
            MOST_ROUNDS);
    return 2;
  }
  const int calibrates = strcmp(given, "calibrate") == 0;
  const int file = calibrates ? mkstemp(path) : -1;
  results *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED || (calibrates && file < 0)) exit(1);
  int done = 0;
  while (done < rounds && (!calibrates || calibrate(path, threads))) {
    const pid_t child = fork();
    if (child == 0) {
      take_samples(calibrates ? path : given, threads, only, done, shared);
      exit(0);
    }
    if (!succeeds(child)) break;
    done++;
  }
  if (calibrates) {
    close(file);
    unlink(path);
  }
  if (done < rounds)
    fprintf(stderr, "bench-serve: round %d failed\n", done + 1);
  else
    printf("%s\n%d threads, %d rounds\n", shared->description, threads, rounds);
  if (done == rounds) print_results(shared->samples, rounds);
  munmap(shared, sizeof *shared);
  return done < rounds;
}
