/* Decoding on this machine, Llama 3.2 1B's shape with random weights in bfloat16: the bytes that a token reads over the
 * seconds that it takes, against the fastest of three loops that read as many bytes. 128 tokens after a prompt of 128;
 * rounds are interleaved and medians reported, as machines like this are shared. Times are given in seconds of the
 * clock and in CPU seconds of all threads, which depend less on other processes. */
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "bench/support.h"
#include "real/real.h"

enum { MOST_ROUNDS = 9, MOST_THREADS = 64, LOOPS = 3, PROMPT = 128, TOKENS = 128 };

static const char model[] =
    "{\"model_type\":\"llama\",\"vocab_size\":128256,\"hidden_size\":2048,\"intermediate_size\":8192,"
    "\"num_hidden_layers\":16,\"num_attention_heads\":32,\"num_key_value_heads\":8,\"head_dim\":64,"
    "\"max_position_embeddings\":131072,\"rope_theta\":500000.0,\"tie_word_embeddings\":true}";

static const tws_real_api *load(void) {
  const tws_real_api *(*get)(void);
  void *symbol = module_symbol(TWS_BUILD_DIR "/twinspeed_real.so", TWS_REAL_MODULE_SYMBOL);
  memcpy(&get, &symbol, sizeof get);
  return get();
}

/* ---- loops that read a buffer ---- */

typedef float vector __attribute__((vector_size(64)));
typedef struct share_of {
  const char *begin;
  size_t bytes; /* a multiple of 4096 */
  int loop;
  double sum;
} share_of;

static double sum_words(const uint64_t *words, size_t count) {
  uint64_t sum[4] = {0};
  for (size_t i = 0; i < count; i += 4)
    for (int k = 0; k < 4; k++) sum[k] += words[i + (size_t)k];
  return (double)(sum[0] + sum[1] + sum[2] + sum[3]);
}

/* Sums vectors of `streams` equal segments at a time. */
static double sum_vectors(const vector *vectors, size_t count, size_t streams) {
  vector sum[8] = {{0}};
  const size_t each = count / streams;
  if (streams == 1) {
    for (size_t i = 0; i < count; i += 8)
      for (size_t k = 0; k < 8; k++) sum[k] += vectors[i + k];
  } else {
    for (size_t i = 0; i < each; i++)
      for (size_t k = 0; k < 4; k++) sum[k] += vectors[k * each + i];
  }
  for (int k = 1; k < 8; k++) sum[0] += sum[k];
  return (double)sum[0][0];
}

static void *read_share(void *raw) {
  share_of *s = raw;
  const void *begin = s->begin;
  if (s->loop == 0) s->sum = sum_words(begin, s->bytes / 8);
  if (s->loop == 1) s->sum = sum_vectors(begin, s->bytes / 64, 1);
  if (s->loop == 2) s->sum = sum_vectors(begin, s->bytes / 64, 4);
  return NULL;
}

/* Seconds of the clock, and CPU seconds of all threads. */
typedef struct seconds {
  double clock, cpu;
} seconds;

/* Returns the seconds in which threads read the buffer, of two passes the shorter ones. */
static seconds read_seconds(const char *buffer, size_t bytes, int loop, int threads) {
  seconds best = {0, 0};
  for (int pass = 0; pass < 2; pass++) {
    pthread_t thread[MOST_THREADS];
    share_of shares[MOST_THREADS];
    const double began = tws_clock_s(), cpu = cpu_s();
    for (int t = 0; t < threads; t++) {
      const size_t each = bytes / (size_t)threads / 4096 * 4096;
      shares[t] = (share_of){.begin = buffer + each * (size_t)t, .bytes = each, .loop = loop};
      if (pthread_create(&thread[t], NULL, read_share, &shares[t]) != 0) exit(1);
    }
    for (int t = 0; t < threads; t++) pthread_join(thread[t], NULL);
    const seconds now = {tws_clock_s() - began, cpu_s() - cpu};
    if (pass == 0 || now.clock < best.clock) best.clock = now.clock;
    if (pass == 0 || now.cpu < best.cpu) best.cpu = now.cpu;
  }
  return best;
}

/* ---- decoding ---- */

/* CPU seconds of the process at the first token and at the last one. */
typedef struct span {
  double first, last;
} span;

static int on_token(void *user, int64_t prompt, int32_t token, double log_probability) {
  span *s = user;
  (void)prompt, (void)token, (void)log_probability;
  s->last = cpu_s();
  if (s->first == 0) s->first = s->last;
  return 0;
}

static tws_network *load_model(void) {
  tws_error err = {0};
  tws_network *network;
  char path[] = "/tmp/twinspeed-bench-XXXXXX";
  const int file = mkstemp(path);
  if (file < 0 || write(file, model, strlen(model)) != (ssize_t)strlen(model)) exit(1);
  close(file);
  need(tws_network_load(path, 1, &network, &err), &err);
  unlink(path);
  return network;
}

static tws_generate_result generate(const tws_real_api *api, const tws_network *network, int threads, span *cpu) {
  tws_error err = {0};
  tws_config *config;
  int32_t tokens[PROMPT];
  need(tws_config_default(&config, &err), &err);
  need(tws_config_set(config, "train_micro_batch_size_per_gpu", "1", &err), &err);
  need(tws_config_set(config, "twinspeed.sequence_length", "256", &err), &err);
  need(tws_config_set(config, "bf16.enabled", "true", &err), &err);
  need(tws_config_resolve(config, 1, &(tws_auto_context){network->hidden}, &err), &err);
  for (int i = 0; i < PROMPT; i++) tokens[i] = (i * 7919 + 13) % 128256;
  const tws_prompt prompt = {tokens, PROMPT};
  tws_generate_options options = {
      .plan = {.network = network, .config = config, .backend = TWS_BACKEND_HOST, .threads = threads},
      .prompts = &prompt,
      .prompt_count = 1,
      .count = TOKENS,
      .cache = 1,
      .on_token = on_token,
      .user = cpu};
  tws_generate_result result;
  need(tws_plan_topology(config, 1, &options.plan.topology, &err), &err);
  need(api->generate(&options, &result, &err), &err);
  tws_config_destroy(config);
  return result;
}

int main(int argc, char **argv) {
  tws_error err = {0};
  int rank, world;
  const int rounds = argc > 1 ? argument_int(argv[1]) : 5, threads = argc > 2 ? argument_int(argv[2]) : 2;
  if (rounds < 1 || rounds > MOST_ROUNDS || threads < 1 || threads > MOST_THREADS) {
    fprintf(stderr, "usage: bench-decode [rounds, 1 to %d] [threads]\n", MOST_ROUNDS);
    return 2;
  }
  const tws_real_api *api = load();
  need(api->start(&argc, &argv, &rank, &world, &err), &err);
  tws_network *network = load_model();
  const size_t weights = 2 * (size_t)tws_network_params(network, 0);
  /* a token reads the weights, of tied embeddings once, and on average 192 cached positions */
  const double token_bytes = (double)weights + 2.0 * 2 * 16 * 8 * 64 * (PROMPT + TOKENS / 2);
  char *buffer = mmap(NULL, weights, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (buffer == MAP_FAILED) return 1;
  madvise(buffer, weights, MADV_HUGEPAGE);
  memset(buffer, 1, weights);
  double token_s[MOST_ROUNDS], token_cpu_s[MOST_ROUNDS], first_s[MOST_ROUNDS], ratio[MOST_ROUNDS],
      cpu_ratio[MOST_ROUNDS];
  printf("%s\n%d threads, %.2f GB of weights\n", api->description(), threads, (double)weights / 1e9);
  for (int round = 0; round < rounds; round++) {
    span cpu = {0, 0};
    seconds fastest = {INFINITY, INFINITY};
    const tws_generate_result result = generate(api, network, threads, &cpu);
    for (int loop = 0; loop < LOOPS; loop++) {
      const seconds now = read_seconds(buffer, weights, loop, threads);
      fastest = (seconds){fmin(fastest.clock, now.clock), fmin(fastest.cpu, now.cpu)};
    }
    const double more = token_bytes / (double)weights;
    token_s[round] = result.decode_s / (TOKENS - 1);
    token_cpu_s[round] = (cpu.last - cpu.first) / (TOKENS - 1);
    first_s[round] = result.prefill_s;
    ratio[round] = more * fastest.clock / token_s[round];
    cpu_ratio[round] = more * fastest.cpu / token_cpu_s[round];
    printf("round %d: first token %.3f s; a token %.2f ms, the loop %.2f, ratio %.3f; CPU %.2f ms, %.2f, ratio %.3f\n",
           round + 1, first_s[round], 1e3 * token_s[round], 1e3 * fastest.clock, ratio[round], 1e3 * token_cpu_s[round],
           1e3 * fastest.cpu, cpu_ratio[round]);
    fflush(stdout);
  }
  printf("medians: first token %.3f s, a token %.2f ms, ratio %.3f; CPU %.2f ms, ratio %.3f\n", median(first_s, rounds),
         1e3 * median(token_s, rounds), median(ratio, rounds), 1e3 * median(token_cpu_s, rounds),
         median(cpu_ratio, rounds));
  api->stop();
  return 0;
}
