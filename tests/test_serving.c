/* ctest: engine */
/* Inference: prefill and decoding with a cache of keys and values. Families decode as the reference library computes
 * whole texts (tests/golden/decoders.json); the plans of all divisions verify; the state consists of weights and the
 * cache. */
#include "families.h"
#include "plan/serving.h"
#include "sanitized.h"
#include "suite.h"

enum { TEXTS = 2, LENGTH = 16, LETTERS = 32 };
static const int64_t prompts[TEXTS] = {1, 5}; /* number of tokens of each text that the prefill processes */

typedef struct served {
  tws_config *config;
  tws_serving serving;
  tws_plan *plan[TWS_SERVING_PROGRAMS];
  const tws_plan *programs[TWS_SERVING_PROGRAMS];
  hand_job job; /* the weights, and the executor that runs both programs */
  const int32_t *tokens[TEXTS];
  int64_t processed[TEXTS];
  float *scores;
} served;

static tws_plan_request request_of(const tws_network *network, const tws_config *config, int ranks) {
  tws_plan_request request = {.network = network, .config = config, .threads = 1};
  HAND_OK(tws_plan_topology(config, ranks, &request.topology, &err));
  return request;
}

static void serve_begin(served *s, const tws_network *network, const cJSON *family) {
  static const char *const keys =
      "{\"train_micro_batch_size_per_gpu\": 2, \"twinspeed\": {\"sequence_length\": 16, \"expert_capacity_factor\": "
      "0}}";
  memset(s, 0, sizeof *s);
  ck_assert_msg(resolve(keys, 1, network->hidden, &s->config) == TWS_OK, "%s", err.message);
  const tws_plan_request base = request_of(network, s->config, 1);
  HAND_OK(tws_serving_make(&base, (tws_serving_sizes){.prompt = 5, .text = LENGTH}, &s->serving, &err));
  HAND_OK(tws_serving_plans(&s->serving, 0, s->plan, &err));
  for (int i = 0; i < TWS_SERVING_PROGRAMS; i++) {
    s->programs[i] = s->plan[i];
    HAND_OK(tws_plan_verify(s->plan[i], &err));
  }
  HAND_OK(tws_host_backend()->create(0, 1, &s->job.backend, &err));
  const tws_executor_setup setup = {
      .programs = s->programs, .program_count = 2, .ops = tws_host_backend(), .backend = s->job.backend};
  HAND_OK(tws_executor_create(&setup, &s->job.executor, &err));
  s->job.train = s->plan[0];
  s->job.first = calloc(network->param_count + 1u, sizeof *s->job.first);
  for (uint32_t p = 0; p < network->param_count; p++)
    s->job.first[p + 1] = s->job.first[p] + (uint64_t)tws_param_numel(&network->params[p]);
  s->job.weights = calloc(s->job.first[network->param_count] + 1, sizeof *s->job.weights);
  const tensors t = tensors_of(network);
  fill(&s->job, &t, family);
  hand_move(&s->job, s->plan[0]->parameters, hand_entry_name(&s->job, s->plan[0]->parameters), s->job.weights, 1);
  hand_reset_running(&s->job);
  s->scores = calloc(s->plan[0]->buffers[s->plan[0]->scores].elements, sizeof *s->scores);
}

static void serve_end(served *s) {
  tws_executor_destroy(s->job.executor);
  tws_host_backend()->destroy(s->job.backend);
  tws_plan_destroy(s->plan[1]);
  tws_plan_destroy(s->plan[0]);
  tws_serving_close(&s->serving);
  tws_config_destroy(s->config);
  free(s->job.weights);
  free(s->job.first);
  free(s->scores);
}

/* Fills an input of a program with the next tokens of the texts: their prompts (program 0), or one token each. */
static void fill_input(const served *s, int program, tws_input_content content, int32_t *to) {
  const int64_t rows = s->plan[program]->sequence_length;
  for (int64_t b = 0; b < TEXTS; b++) {
    const int64_t start = s->processed[b], count = program ? start < LENGTH : prompts[b];
    if (content == TWS_INPUT_STARTS) to[b] = (int32_t)start;
    if (content == TWS_INPUT_LENGTHS) to[b] = (int32_t)count;
    if (content == TWS_INPUT_ROWS) to[b] = (int32_t)(b * rows + count - 1);
    for (int64_t i = 0; i < rows; i++) {
      if (content == TWS_INPUT_TOKENS) to[b * rows + i] = i < count ? s->tokens[b][start + i] : 0;
      if (content == TWS_INPUT_POSITIONS) to[b * rows + i] = start + i < LENGTH ? (int32_t)(start + i) : 0;
      if (content == TWS_INPUT_DOCUMENTS) to[2 * (b * rows + i)] = -(int32_t)start, to[2 * (b * rows + i) + 1] = 1;
    }
  }
}

static void run_program(served *s, int program) {
  const tws_plan *plan = s->plan[program];
  const float hyper[TWS_HYPER_COUNT] = {0};
  int32_t values[512];
  for (uint32_t i = 0; i < plan->network->input_count; i++) {
    const uint64_t count = plan->buffers[plan->input[i]].elements;
    memset(values, 0, sizeof values);
    ck_assert_uint_le(count, 512);
    fill_input(s, program, plan->network->input[i].content, values);
    HAND_OK(tws_executor_put(s->job.executor, program, plan->input[i], 0, values, count, &err));
  }
  HAND_OK(tws_executor_put(s->job.executor, program, plan->hyper, 0, hyper, TWS_HYPER_COUNT, &err));
  HAND_OK(tws_executor_zero(s->job.executor, program, plan->metrics, &err));
  HAND_OK(tws_executor_step(s->job.executor, program, 1, NULL, NULL, NULL, &err));
  HAND_OK(tws_executor_get(s->job.executor, program, plan->scores, 0, s->scores, plan->buffers[plan->scores].elements,
                           &err));
  for (int b = 0; b < TEXTS; b++) s->processed[b] += program ? s->processed[b] < LENGTH : prompts[b];
}

/* Compares log probabilities of the next token of text b with the library's; returns the number of compared ones. */
static int compare_points(const served *s, const cJSON *family, int b) {
  const int64_t columns = (int64_t)s->plan[0]->buffers[s->plan[0]->scores].elements / TEXTS;
  const cJSON *point;
  int compared = 0;
  cJSON_ArrayForEach(point, member(family, "log_probabilities")) {
    if (cJSON_GetArrayItem(point, 0)->valueint != b || cJSON_GetArrayItem(point, 1)->valueint + 1 != s->processed[b])
      continue;
    const float *scores = s->scores + b * columns;
    double sum = 0;
    for (int i = 0; i < s->plan[0]->network->vocabulary; i++) sum += exp((double)scores[i]);
    const double got = (double)scores[cJSON_GetArrayItem(point, 2)->valueint] - log(sum);
    const double want = cJSON_GetArrayItem(point, 3)->valuedouble;
    ck_assert_msg(fabs(got - want) < 1e-5 * fabs(want), "%s, text %d, token %d: %.9g, not %.9g",
                  member(family, "name")->valuestring, b, (int)s->processed[b] - 1, got, want);
    compared++;
  }
  return compared;
}

/* Asserts that the engine has allocated the ledger's bytes, which are weights and cached keys and values, without any
 * training data. */
static void check_memory(const served *s, const tws_network *network) {
  tws_ledger ledger;
  uint64_t cached = 0;
  HAND_OK(tws_ledger_of_programs(s->programs, TWS_SERVING_PROGRAMS, &ledger, &err));
  for (uint32_t m = 0; m < network->module_count; m++) {
    const tws_module *a = &network->modules[m];
    const int64_t rows = a->window > 0 && a->window < LENGTH ? a->window : LENGTH;
    if (a->type != TWS_MODULE_ATTENTION) continue;
    /* of latent attention a token has a compressed row and the key that all heads share */
    const tws_module *made = &network->modules[network->values[a->in[0]].producer];
    const int64_t row = made->type == TWS_MODULE_LATENT ? made->latent->rank + made->latent->rope
                                                        : 2 * (int64_t)a->kv_heads * a->head_size;
    cached += (uint64_t)(4 * TEXTS * row * rows);
  }
  const tws_ledger_tier *tier = &ledger.tier[TWS_TIER_DEVICE];
  ck_assert_uint_eq(tier->arena_bytes, tws_executor_allocated(s->job.executor, TWS_TIER_DEVICE));
  ck_assert_uint_eq(tier->category[TWS_CATEGORY_CACHE], cached);
  ck_assert_uint_eq(
      tier->category[TWS_CATEGORY_MASTER] + tier->category[TWS_CATEGORY_MOMENT] + tier->category[TWS_CATEGORY_GRADIENT],
      0);
}

/* Decodes a family and compares all likelihoods that the library states. Returns 1, or 0 for a family that cannot keep
 * a cache. */
static int decode_family(const cJSON *family, const char *text) {
  const char *module;
  int32_t tokens[TEXTS][LENGTH];
  int compared = 0;
  served s;
  tws_network *network = padded_network_of(member(family, "config"), 1);
  if (tws_network_unserved(network, &module)) {
    tws_network_destroy(network);
    return 0;
  }
  serve_begin(&s, network, family);
  for (int b = 0; b < TEXTS; b++) {
    for (int i = 0; i < LENGTH; i++) tokens[b][i] = text[b * LENGTH + i] & (LETTERS - 1);
    s.tokens[b] = tokens[b];
  }
  run_program(&s, 0);
  for (int b = 0; b < TEXTS; b++) compared += compare_points(&s, family, b);
  while (s.processed[0] < LENGTH) {
    const int64_t before = s.processed[1];
    run_program(&s, 1);
    compared += compare_points(&s, family, 0);
    if (s.processed[1] > before) compared += compare_points(&s, family, 1);
  }
  ck_assert_msg(compared >= 5, "%s: %d likelihoods were compared", member(family, "name")->valuestring, compared);
  check_memory(&s, network);
  serve_end(&s);
  tws_network_destroy(network);
  return 1;
}

START_TEST(families_decode_as_the_library_does) {
  tws_json *golden = golden_file("decoders.json");
  const cJSON *family;
  int decoded = 0, all = 0, number = 0;
  cJSON_ArrayForEach(family, member(golden->root, "families")) {
    if (TWS_SANITIZED && number++ % 4) continue;
    if (cJSON_HasObjectItem(family, "inputs") || cJSON_HasObjectItem(family, "sequence_length")) continue;
    all++;
    decoded += decode_family(family, member(golden->root, "text")->valuestring);
  }
  ck_assert_msg(decoded >= (TWS_SANITIZED ? 10 : 40), "%d of %d families", decoded, all);
  tws_json_destroy(golden);
}
END_TEST

/* ---- divisions ---- */

static const struct division {
  const char *name, *keys;
  int ranks, cuts; /* cuts: number of ranks that divide the cache of a text */
} divisions[] = {
    {"tensor", "\"tensor_parallel\": {\"autotp_size\": 2}", 2, 2},
    {"pipeline", "\"pipeline\": {\"stages\": 2}, \"gradient_accumulation_steps\": 2", 2, 2},
    {"tensor and pipeline", "\"tensor_parallel\": {\"autotp_size\": 2}, \"pipeline\": {\"stages\": 2}", 4, 4},
    {"data", "\"zero_optimization\": {\"stage\": 0}", 2, 1},
    {"stage 3", "\"zero_optimization\": {\"stage\": 3}", 2, 1},
    {"stage 3 on the host",
     "\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"cpu\"}, \"offload_optimizer\": "
     "{\"device\": \"cpu\"}}",
     2, 1}};

static uint64_t cached_bytes(const tws_plan *plan) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < plan->state->count; i++)
    if (plan->state->entries[i].category == TWS_CATEGORY_CACHE) bytes += plan->state->entries[i].bytes;
  return bytes;
}

/* The plans of both programs verify for each rank alone and for all together; the ranks of a replica divide the
 * cache. */
START_TEST(divisions_verify) {
  const struct division *d = &divisions[_i];
  enum { MOST = 4 };
  char keys[512];
  tws_config *config;
  tws_serving serving;
  tws_plan *plans[MOST][TWS_SERVING_PROGRAMS];
  tws_network *network = NULL;
  uint64_t cached = 0;
  HAND_OK(tws_network_load("tiny-llama", 1, &network, &err));
  snprintf(keys, sizeof keys, "{\"train_micro_batch_size_per_gpu\": 3, %s, \"twinspeed\": {\"sequence_length\": 24}}",
           d->keys);
  ck_assert_msg(resolve(keys, d->ranks, network->hidden, &config) == TWS_OK, "%s", err.message);
  const tws_plan_request base = request_of(network, config, d->ranks);
  const tws_serving_sizes sizes = {.prompt = 9, .text = 24};
  ck_assert_msg(tws_serving_make(&base, sizes, &serving, &err) == TWS_OK, "%s: %s", d->name, err.message);
  for (int r = 0; r < d->ranks; r++) {
    ck_assert_msg(tws_serving_plans(&serving, r, plans[r], &err) == TWS_OK, "%s: %s", d->name, err.message);
    cached += cached_bytes(plans[r][0]);
    for (uint32_t i = 0; i < plans[r][0]->state->count; i++) {
      const uint8_t category = plans[r][0]->state->entries[i].category;
      ck_assert(category == TWS_CATEGORY_PARAMETER || category == TWS_CATEGORY_CACHE);
    }
  }
  for (int p = 0; p < TWS_SERVING_PROGRAMS; p++) {
    const tws_plan *all[MOST];
    for (int r = 0; r < d->ranks; r++) {
      all[r] = plans[r][p];
      ck_assert_msg(tws_plan_verify(all[r], &err) == TWS_OK, "%s, rank %d: %s", d->name, r, err.message);
    }
    ck_assert_msg(tws_plans_verify(all, d->ranks, &err) == TWS_OK, "%s: %s", d->name, err.message);
  }
  const uint64_t text = 4 * 24 * 2 * (uint64_t)(network->layers * network->kv_heads * network->head_size);
  const uint64_t texts = 3 * (uint64_t)(d->ranks / d->cuts) * (uint64_t)config->accumulation_steps;
  ck_assert_msg(cached == texts * text, "%s: %llu bytes, not %llu", d->name, (unsigned long long)cached,
                (unsigned long long)(texts * text));
  for (int r = 0; r < d->ranks; r++) {
    tws_plan_destroy(plans[r][1]);
    tws_plan_destroy(plans[r][0]);
  }
  tws_serving_close(&serving);
  tws_config_destroy(config);
  tws_network_destroy(network);
}
END_TEST

static void not_served(const char *model, const char *keys, tws_serving_sizes sizes, const char *words) {
  tws_config *config;
  tws_serving serving;
  tws_network *network = NULL;
  HAND_OK(tws_network_load(model, 1, &network, &err));
  ck_assert_msg(resolve(keys, 2, network->hidden, &config) == TWS_OK, "%s", err.message);
  const tws_plan_request base = request_of(network, config, 2);
  ck_assert_int_ne(tws_serving_make(&base, sizes, &serving, &err), TWS_OK);
  ck_assert_msg(strstr(err.message, words) != NULL, "not \"%s\" but %s", words, err.message);
  tws_config_destroy(config);
  tws_network_destroy(network);
}

START_TEST(refusals) {
  static const char plain[] = "{\"train_micro_batch_size_per_gpu\": 1}";
  const tws_serving_sizes few = {.prompt = 4, .text = 8};
  not_served("tiny-gpt2", plain, (tws_serving_sizes){.prompt = 4, .text = 4}, "a text of 4 tokens with a prompt of 4");
  not_served("tiny-gpt2", plain, (tws_serving_sizes){.prompt = 4, .text = 1 << 20}, "exceeds the model's");
  not_served("tiny-llama", "{\"train_micro_batch_size_per_gpu\": 1, \"sequence_parallel_size\": 2}", few,
             "sequence parallelism");
}
END_TEST

int main(void) {
  Suite *suite = suite_create("serving");
  TCase *tests = tcase_create("serving");
  tcase_add_test(tests, families_decode_as_the_library_does);
  tcase_add_loop_test(tests, divisions_verify, 0, (int)(sizeof divisions / sizeof *divisions));
  tcase_add_test(tests, refusals);
  tcase_set_timeout(tests, 120);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
