/* ctest: engine mpi */
/* Greedy generation of families of decoders as the reference library does it: tests/golden/greedy.json has, for
 * families of decoders.json with weights of a wider formula, the 64 most probable tokens after each of three prompts of
 * different lengths, and at some places the log probabilities of the five most probable ones. Texts are generated in
 * one batch, by ranks as threads of this process, and by the program, with and without a cache of keys and values. */
#include "answers.h"
#include "families.h"
#include "folder.h"
#include "plan/serving.h"
#include "sample.h"
#include "sanitized.h"
#include "suite.h"
#include "thread_ranks.h"

enum { TEXTS = 3, TOKENS = 64, LONGEST = 20, CAPACITY = LONGEST + TOKENS, MOST_RANKS = 4, VOCABULARY = 32 };
static const double WIDTH = 0.8; /* of the weights' formula */

/* A family of decoders with its weights, and the texts that the library generates. */
typedef struct family {
  const char *name;
  cJSON *config;
  tws_network *network;
  hand_job weights;
  const cJSON *tensors, *texts;
} family;

/* Returns the configuration of a family with some keys replaced: more positions for the texts, and caps of scores that
 * make tokens differ. */
static cJSON *config_of_family(const cJSON *golden, const cJSON *of) {
  cJSON *config = cJSON_Duplicate(member(of, "config"), 1);
  const cJSON *changed;
  cJSON_ArrayForEach(changed, cJSON_GetObjectItemCaseSensitive(golden, "config"))
      cJSON_ReplaceItemInObjectCaseSensitive(config, changed->string, cJSON_Duplicate(changed, 1));
  return config;
}

/* Returns the shapes of a family's tensors; those with positions differ from decoders.json. */
static cJSON *tensors_of_family(const cJSON *golden, const cJSON *of) {
  cJSON *all = cJSON_Duplicate(member(of, "tensors"), 1);
  const cJSON *changed;
  cJSON_ArrayForEach(changed, cJSON_GetObjectItemCaseSensitive(golden, "tensors"))
      cJSON_ReplaceItemInObjectCaseSensitive(all, changed->string, cJSON_Duplicate(changed, 1));
  return all;
}

static void family_begin(family *f, const cJSON *golden, const cJSON *families) {
  const cJSON *of;
  memset(f, 0, sizeof *f);
  f->name = member(golden, "name")->valuestring;
  cJSON_ArrayForEach(of, families) if (strcmp(member(of, "name")->valuestring, f->name) == 0) break;
  ck_assert_msg(of != NULL, "decoders.json has no family %s", f->name);
  f->config = config_of_family(golden, of);
  f->tensors = tensors_of_family(golden, of);
  f->texts = member(golden, "texts");
  tws_network *network = f->network = padded_network_of(f->config, 1);
  f->weights.first = calloc(network->param_count + 1u, sizeof *f->weights.first);
  for (uint32_t p = 0; p < network->param_count; p++)
    f->weights.first[p + 1] = f->weights.first[p] + (uint64_t)tws_param_numel(&network->params[p]);
  f->weights.weights = calloc(f->weights.first[network->param_count] + 1, sizeof *f->weights.weights);
  const tensors t = tensors_of(network);
  for (uint32_t i = 0; i < t.count; i++) fill_tensor(&f->weights, &t.list[i], f->tensors, WIDTH);
}

static void family_end(family *f) {
  free(f->weights.weights);
  free(f->weights.first);
  tws_network_destroy(f->network);
  cJSON_Delete((cJSON *)(uintptr_t)f->tensors);
  cJSON_Delete(f->config);
}

/* ---- ranks as threads ---- */

/* The texts so far, which the ranks share. Each rank's programs process their tokens; one rank chooses the next
 * token. */
typedef struct batch {
  const family *family;
  const char *division;
  thread_world world;
  pthread_barrier_t chosen;
  int32_t token[TEXTS][CAPACITY];
  int prompt[TEXTS];
  int64_t forward[MOST_RANKS]; /* number of tokens that a rank's programs have processed */
} batch;

typedef struct rank_run {
  batch *batch;
  const tws_plan *const *programs;
} rank_run;

static void need(tws_code code, const batch *b, const tws_error *why) {
  if (code == TWS_OK) return;
  fprintf(stderr, "%s, %s: %s\n", b->family->name, b->division, why->message);
  abort(); /* other ranks wait for this one */
}

static int32_t input_value(const batch *b, int program, int step, tws_input_content content, int text, int row) {
  const int rows = program ? 1 : LONGEST, start = program ? b->prompt[text] + step - 1 : 0;
  const int count = program ? 1 : b->prompt[text];
  switch (content) {
    case TWS_INPUT_STARTS:
      return start;
    case TWS_INPUT_LENGTHS:
      return count;
    case TWS_INPUT_ROWS:
      return text * rows + count - 1;
    case TWS_INPUT_TOKENS:
      return row < count ? b->token[text][start + row] : 0;
    default: /* positions */
      return start + row;
  }
}

static void put_inputs(const rank_run *r, tws_executor *x, int program, int step, tws_error *why) {
  const tws_plan *plan = r->programs[program];
  int32_t values[2 * TEXTS * LONGEST];
  for (uint32_t i = 0; i < plan->network->input_count; i++) {
    const tws_input_content content = plan->network->input[i].content;
    if (plan->input[i] == TWS_NONE) continue;
    const int count = (int)plan->buffers[plan->input[i]].elements, each = count / TEXTS;
    for (int k = 0; k < count; k++) {
      const int text = k / each, documents = content == TWS_INPUT_DOCUMENTS;
      values[k] = documents ? k % 2 ? 1 : -(program ? r->batch->prompt[text] + step - 1 : 0)
                            : input_value(r->batch, program, step, content, text, k % each);
    }
    need(tws_executor_put(x, program, plan->input[i], 0, values, (uint64_t)count, why), r->batch, why);
  }
}

static void check_likely(const batch *b, int text, int step, int token, double got, double right) {
  ck_assert_msg(fabs(got - right) < 1e-4, "%s, %s, text %d, token %d: log probability of %d is %.9g, not %.9g",
                b->family->name, b->division, text, step, token, got, right);
}

/* Compares the most probable token of a text with the library's, and where the file has them, its log probability and
 * those of the four next tokens. */
static void compare_token(batch *b, int text, int step, const float *scores, int columns) {
  const cJSON *golden = cJSON_GetArrayItem(b->family->texts, text);
  const cJSON *likely = member(golden, "log_probabilities");
  const int want = cJSON_GetArrayItem(member(golden, "tokens"), step)->valueint, points = cJSON_GetArraySize(likely);
  int best = 0;
  double sum = 0;
  float all[VOCABULARY];
  for (int i = 0; i < VOCABULARY; i++) {
    all[i] = scores[i / columns * TEXTS * columns + i % columns];
    if (all[i] > all[best]) best = i;
    sum += exp((double)all[i]);
  }
  ck_assert_msg(best == want, "%s, %s, text %d, token %d: %d, not %d", b->family->name, b->division, text, step, best,
                want);
  for (int p = 0; p < points; p++) {
    const cJSON *other;
    if (step != p * (TOKENS - 1) / (points - 1)) continue;
    check_likely(b, text, step, best, (double)all[best] - log(sum), cJSON_GetArrayItem(likely, p)->valuedouble);
    cJSON_ArrayForEach(other, cJSON_GetArrayItem(member(golden, "others"), p)) {
      const int token = cJSON_GetArrayItem(other, 0)->valueint;
      check_likely(b, text, step, token, (double)all[token] - log(sum), cJSON_GetArrayItem(other, 1)->valuedouble);
    }
  }
  b->token[text][b->prompt[text] + step] = best;
}

static void rank_step(const rank_run *r, tws_executor *x, int step, tws_error *why) {
  const int program = step > 0;
  const tws_plan *plan = r->programs[program];
  const float hyper[TWS_HYPER_COUNT] = {0};
  put_inputs(r, x, program, step, why);
  need(tws_executor_put(x, program, plan->hyper, 0, hyper, TWS_HYPER_COUNT, why), r->batch, why);
  need(tws_executor_zero(x, program, plan->metrics, why), r->batch, why);
  need(tws_executor_step(x, program, 1, NULL, NULL, NULL, why), r->batch, why);
  for (int t = 0; t < TEXTS; t++) r->batch->forward[plan->rank] += program ? 1 : r->batch->prompt[t];
  pthread_barrier_wait(&r->batch->chosen); /* all ranks have read the tokens */
  if (plan->scores != TWS_NONE && plan->position.index[TWS_AXIS_MODEL] == 0) {
    const int columns = VOCABULARY / plan->position.ranks[TWS_AXIS_MODEL];
    float scores[TEXTS * VOCABULARY];
    ck_assert_uint_eq(plan->buffers[plan->scores].elements, TEXTS * VOCABULARY);
    need(tws_executor_get(x, program, plan->scores, 0, scores, TEXTS * VOCABULARY, why), r->batch, why);
    for (int t = 0; t < TEXTS; t++) compare_token(r->batch, t, step, scores + t * columns, columns);
  }
  pthread_barrier_wait(&r->batch->chosen);
}

static void *run_rank(void *raw) {
  rank_run *r = raw;
  tws_backend *backend = NULL;
  tws_executor *x = NULL;
  tws_error why = {0};
  tws_comm comm = {.world = &r->batch->world, .plan = r->programs[0]};
  need(tws_host_backend()->create(0, 1, &backend, &why), r->batch, &why);
  const tws_executor_setup setup = {.programs = r->programs,
                                    .program_count = TWS_SERVING_PROGRAMS,
                                    .ops = tws_host_backend(),
                                    .backend = backend,
                                    .comm_ops = &thread_ranks_comm,
                                    .comm = &comm};
  need(tws_executor_create(&setup, &x, &why), r->batch, &why);
  need(put_rank_weights(&r->batch->family->weights, r->programs[0], x, &why), r->batch, &why);
  for (int step = 0; step < TOKENS; step++) rank_step(r, x, step, &why);
  tws_executor_destroy(x);
  tws_host_backend()->destroy(backend);
  return NULL;
}

static void batch_begin(batch *b, const family *f, const char *division, int ranks) {
  memset(b, 0, sizeof *b);
  b->family = f;
  b->division = division;
  b->world = (thread_world){.lock = PTHREAD_MUTEX_INITIALIZER, .arrived = PTHREAD_COND_INITIALIZER};
  pthread_barrier_init(&b->chosen, NULL, (unsigned)ranks);
  for (int t = 0; t < TEXTS; t++) {
    const cJSON *prompt = member(cJSON_GetArrayItem(f->texts, t), "prompt");
    b->prompt[t] = cJSON_GetArraySize(prompt);
    for (int i = 0; i < b->prompt[t]; i++) b->token[t][i] = cJSON_GetArrayItem(prompt, i)->valueint;
  }
}

/* Divisions of the ranks. keys: members of the configuration; own: members of its section "twinspeed"; experts 1: only
 * for models with experts; fewest: the least number of models that permit the division. */
static const struct division {
  const char *name, *keys, *own;
  int ranks, experts, fewest;
} divisions[] = {{"one rank", "", "", 1, 0, 100},
                 {"2 tensor ranks", ", \"tensor_parallel\": {\"autotp_size\": 2}", "", 2, 0, 90},
                 {"4 tensor ranks", ", \"tensor_parallel\": {\"autotp_size\": 4}", "", 4, 0, 50},
                 {"2 stages", ", \"pipeline\": {\"stages\": 2}", "", 2, 0, 100},
                 {"2 expert ranks", "", ", \"expert_parallel_size\": 2", 2, 1, 10},
                 {"2 expert ranks of 2 tensor ranks", ", \"tensor_parallel\": {\"autotp_size\": 2}",
                  ", \"expert_parallel_size\": 2", 4, 1, 8},
                 {"2 replicas that divide the weights", ", \"zero_optimization\": {\"stage\": 3}", "", 2, 0, 100},
                 {"2 replicas with weights on the host",
                  ", \"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"cpu\"}}", "", 2, 0, 100}};
enum { DIVISIONS = sizeof divisions / sizeof *divisions };

/* Generates the texts with a division of the ranks and compares them. Returns 0 where the model's sizes do not permit
 * the division, else 1. */
static int generate_divided(const family *f, const struct division *d) {
  char keys[512];
  tws_config *config;
  tws_serving serving;
  tws_plan *plans[MOST_RANKS][TWS_SERVING_PROGRAMS];
  const tws_plan *programs[MOST_RANKS][TWS_SERVING_PROGRAMS];
  pthread_t threads[MOST_RANKS];
  rank_run runs[MOST_RANKS];
  batch b;
  int processed = 0;
  snprintf(keys, sizeof keys,
           "{\"train_micro_batch_size_per_gpu\": %d%s, \"twinspeed\": {\"sequence_length\": %d, "
           "\"expert_capacity_factor\": 0%s}}",
           TEXTS, d->keys, CAPACITY, d->own);
  ck_assert_msg(resolve(keys, d->ranks, f->network->hidden, &config) == TWS_OK, "%s", err.message);
  tws_plan_request base = {.network = f->network, .config = config, .threads = 1};
  HAND_OK(tws_plan_topology(config, d->ranks, &base.topology, &err));
  HAND_OK(tws_serving_make(&base, (tws_serving_sizes){.prompt = LONGEST, .text = CAPACITY}, &serving, &err));
  for (int r = 0; r < d->ranks; r++) {
    if (tws_serving_plans(&serving, r, plans[r], &err) != TWS_OK) {
      ck_assert_msg(r == 0 && strstr(err.message, "tensor parallelism"), "%s: %s", f->name, err.message);
      tws_serving_close(&serving);
      tws_config_destroy(config);
      return 0;
    }
    for (int p = 0; p < TWS_SERVING_PROGRAMS; p++) programs[r][p] = plans[r][p];
  }
  batch_begin(&b, f, d->name, d->ranks);
  for (int t = 0; t < TEXTS; t++) processed += b.prompt[t] + TOKENS - 1;
  for (int r = 0; r < d->ranks; r++) {
    runs[r] = (rank_run){.batch = &b, .programs = programs[r]};
    ck_assert_int_eq(pthread_create(&threads[r], NULL, run_rank, &runs[r]), 0);
  }
  for (int r = 0; r < d->ranks; r++) pthread_join(threads[r], NULL);
  for (int r = 0; r < d->ranks; r++) {
    ck_assert_int_eq(b.forward[r], processed);
    tws_plan_destroy(plans[r][1]);
    tws_plan_destroy(plans[r][0]);
  }
  thread_world_end(&b.world);
  pthread_barrier_destroy(&b.chosen);
  tws_serving_close(&serving);
  tws_config_destroy(config);
  return 1;
}

START_TEST(ranks_generate_the_librarys_tokens) {
  const struct division *d = &divisions[_i];
  const int part = d->ranks == 1 ? 2 : 8;
  tws_json *greedy = golden_file("greedy.json"), *decoders = golden_file("decoders.json");
  const cJSON *golden;
  int done = 0;
  uint64_t number = 0;
  cJSON_ArrayForEach(golden, member(greedy->root, "families")) {
    family f;
    if (!takes_of(d->name, number++, (uint32_t)part) || (TWS_SANITIZED && number % 4)) continue;
    family_begin(&f, golden, member(decoders->root, "families"));
    if (!d->experts || tws_network_has_experts(f.network)) done += generate_divided(&f, d);
    family_end(&f);
  }
  if (takes_all() && !TWS_SANITIZED) ck_assert_msg(done >= d->fewest, "%s: %d families", d->name, done);
  tws_json_destroy(decoders);
  tws_json_destroy(greedy);
}
END_TEST

/* ---- by the program ---- */

/* Writes the family's weights as the library's file, in float32. */
static void write_weights(const family *f, const char *path) {
  const cJSON *shape, *size;
  tws_text header = {0};
  uint64_t index = 0, length = 0;
  cJSON_ArrayForEach(shape, f->tensors) {
    char *text = cJSON_PrintUnformatted(shape);
    uint64_t count = 1;
    cJSON_ArrayForEach(size, shape) count *= (uint64_t)size->valueint;
    tws_text_add(&header, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":%s,\"data_offsets\":[%llu,%llu]}", index++ ? "," : "{",
                 shape->string, text, (unsigned long long)length, (unsigned long long)(length + 4 * count));
    length += 4 * count;
    cJSON_free(text);
  }
  tws_text_add(&header, "}");
  const uint64_t bytes = header.length;
  FILE *file = fopen(path, "wb");
  ck_assert(fwrite(&bytes, 8, 1, file) == 1 && fwrite(header.data, header.length, 1, file) == 1);
  index = 0;
  cJSON_ArrayForEach(shape, f->tensors) {
    uint64_t count = 1;
    cJSON_ArrayForEach(size, shape) count *= (uint64_t)size->valueint;
    for (uint64_t i = 0; i < count; i++) {
      const float value = weight_of(shape->string, cJSON_GetArraySize(shape), i, index, WIDTH);
      ck_assert(fwrite(&value, sizeof value, 1, file) == 1);
    }
    index++;
  }
  fclose(file);
  tws_text_free(&header);
}

/* Runs `generate` for the prompts of a family; returns its answer. */
static cJSON *generated(const family *f, const char *how, int cached) {
  command_result r = twinspeed(
      "generate -m %s --init-from %s --prompts %s --tokens %d --seq %d --temperature 0 --threads 1 --json --quiet %s",
      in_folder("config.json"), in_folder("model.safetensors"), in_folder("prompts"), TOKENS, CAPACITY, how);
  ck_assert_msg(r.status == 0, "%s, %s: %s", f->name, how, r.err);
  cJSON *json = assert_json(&r, "twinspeed-generation-1");
  command_free(&r);
  ck_assert_msg(is_true(json, "cache") == cached, "%s, %s", f->name, how);
  return json;
}

/* Compares generated texts with the library's; with a cache each token but the last was processed once. */
static void compare_texts(const family *f, const cJSON *json, int cached) {
  double processed = 0;
  for (int t = 0; t < TEXTS; t++) {
    const cJSON *golden = cJSON_GetArrayItem(f->texts, t), *text = cJSON_GetArrayItem(member(json, "texts"), t);
    const cJSON *points = member(golden, "log_probabilities"), *likely = member(text, "log_probabilities");
    int tokens[TOKENS];
    const int count = cJSON_GetArraySize(points);
    for (int i = 0; i < TOKENS; i++) tokens[i] = cJSON_GetArrayItem(member(text, "tokens"), i)->valueint;
    same_list(member(golden, "tokens"), tokens, TOKENS, f->name);
    for (int p = 0; p < count; p++)
      ck_assert_double_eq_tol(cJSON_GetArrayItem(likely, p * (TOKENS - 1) / (count - 1))->valuedouble,
                              cJSON_GetArrayItem(points, p)->valuedouble, 1e-4);
    processed += cJSON_GetArraySize(member(golden, "prompt")) + TOKENS - 1;
  }
  if (cached) ck_assert_double_eq(number(json, "forward_tokens"), processed);
  if (cached) ck_assert_double_eq(number(json, "predicted_bytes"), number(json, "allocated_bytes"));
}

START_TEST(the_program_generates_the_librarys_tokens) {
  tws_json *greedy = golden_file("greedy.json"), *decoders = golden_file("decoders.json");
  const cJSON *golden;
  uint64_t index = 0;
  cJSON_ArrayForEach(golden, member(greedy->root, "families")) {
    family f;
    tws_text prompts = {0};
    if (!takes_of("program", index++, TWS_SANITIZED ? 40 : 20) || (TWS_SANITIZED && takes_all() && index % 40))
      continue;
    family_begin(&f, golden, member(decoders->root, "families"));
    for (int t = 0; t < TEXTS; t++) {
      char *line = cJSON_PrintUnformatted(member(cJSON_GetArrayItem(f.texts, t), "prompt"));
      tws_text_add(&prompts, "%s\n", line);
      cJSON_free(line);
    }
    char *config = cJSON_PrintUnformatted(f.config);
    write_text(in_folder("config.json"), config);
    write_text(in_folder("prompts"), prompts.data);
    write_weights(&f, in_folder("model.safetensors"));
    /* the last run divides the experts among two ranks, each with texts of its own */
    for (int how = 0; how < (tws_network_has_experts(f.network) ? 3 : 2); how++) {
      const int cached = how > 0;
      cJSON *json = generated(&f, how == 0 ? "--no-cache" : how == 1 ? "" : "--ep 2", cached);
      compare_texts(&f, json, cached);
      cJSON_Delete(json);
    }
    cJSON_free(config);
    tws_text_free(&prompts);
    family_end(&f);
  }
  tws_json_destroy(decoders);
  tws_json_destroy(greedy);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("greedy");
  TCase *tests = tcase_create("greedy");
  tcase_add_loop_test(tests, ranks_generate_the_librarys_tokens, 0, DIVISIONS);
  tcase_add_checked_fixture(tests, make_folder, remove_folder);
  tcase_add_test(tests, the_program_generates_the_librarys_tokens);
  tcase_set_timeout(tests, 240);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
