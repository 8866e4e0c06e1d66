/* ctest: engine sampled */
/* Families against the reference library: tests/golden/decoders.json, and encoder_decoders.json for those with an
 * encoder and a decoder, list the tensors of its files, and, with weights of a formula, its loss, the likelihood of
 * some tokens, its gradients and the losses of further steps; adapters.json has PEFT's values for some families with
 * adapters. tests/golden/parameter_counts.json has the sizes of published configurations. */
#include "families.h"
#include "models/network/adapt.h"
#include "models/network/build.h"
#include "models/network/huggingface.h"
#include "checkpoint/shard.h"
#include "models/zigzag.h"
#include "plan/state.h"
#include "sanitized.h"
#include "suite.h"
#include "thread_ranks.h"

enum {
  LETTERS = 32,
  LENGTH = 16,
  TEXTS = 2,
  TOKENS = LENGTH * TEXTS,
  MOST_NUMBERS = 512,
  MOST_STEPS = 20,
  TRAINED = TWS_SANITIZED ? 4 : MOST_STEPS
};

static tws_network *network_of(const cJSON *config) {
  return padded_network_of(config, 1);
}

/* Returns the network of a family, with its adapters. */
static tws_network *adapted_network(const cJSON *family) {
  tws_network *network = network_of(member(family, "config"));
  const cJSON *lora = cJSON_GetObjectItemCaseSensitive(family, "lora");
  if (!lora) return network;
  char *section = cJSON_PrintUnformatted(lora), text[512];
  tws_config *config = NULL;
  snprintf(text, sizeof text, "{\"train_micro_batch_size_per_gpu\": 1, \"twinspeed\": {\"lora\": %s}}", section);
  ck_assert_msg(resolve(text, 1, network->hidden, &config) == TWS_OK, "%s", err.message);
  HAND_OK(tws_network_adapt(network, config, &err));
  ck_assert_double_eq((double)tws_network_trained(network), number(family, "trained"));
  tws_config_destroy(config);
  cJSON_free(section);
  return network;
}

/* ---- texts ---- */

/* The values of each of the network's inputs for all samples, and the count of numbers per sample. */
typedef struct sample_inputs {
  int32_t values[TWS_NETWORK_INPUTS][MOST_NUMBERS]; /* or float32, of pictures */
  int each[TWS_NETWORK_INPUTS];
  uint32_t targets; /* the input that has them */
} sample_inputs;

/* Reads the inputs of a family. A decoder without listed inputs gets a text as its tokens, each next letter as the
 * target, and the positions of the tokens. */
static void read_inputs(const tws_network *network, const cJSON *family, const char *text, sample_inputs *x) {
  const cJSON *given = cJSON_GetObjectItemCaseSensitive(family, "inputs");
  x->targets = tws_network_input_of(network, TWS_INPUT_TARGETS);
  for (uint32_t i = 0; i < network->input_count; i++) {
    const cJSON *list = given ? member(given, network->input[i].name) : NULL;
    const int places = network->input[i].content == TWS_INPUT_POSITIONS;
    const int count = list ? cJSON_GetArraySize(list) : TOKENS;
    ck_assert_int_le(count, MOST_NUMBERS);
    x->each[i] = count / TEXTS;
    for (int k = 0; k < count; k++) {
      const float number = list ? (float)cJSON_GetArrayItem(list, k)->valuedouble : 0;
      x->values[i][k] = list ? cJSON_GetArrayItem(list, k)->valueint : text[k + (i == x->targets)] & (LETTERS - 1);
      if (places && !list) x->values[i][k] = k % LENGTH;
      if (network->input[i].content == TWS_INPUT_NUMBERS) memcpy(&x->values[i][k], &number, sizeof number);
    }
  }
}

/* Reads the inputs of a step: the step's range of the text. Where the text is too short, or the family lists its
 * inputs, all steps have the same inputs. */
static void read_step(const tws_network *network, const cJSON *family, const char *text, int step, sample_inputs *x) {
  const size_t first = (size_t)step * TOKENS;
  read_inputs(network, family, strlen(text) > first + TOKENS ? text + first : text, x);
}

static void set_inputs(hand_job *job, const sample_inputs *x) {
  for (uint32_t i = 0; i < job->train->network->input_count; i++) hand_input(job, i, x->values[i]);
}

/* ---- what is compared ---- */

static double sign(uint64_t element, uint64_t salt) {
  return (element * UINT64_C(2654435761) + (977 + salt) * 40503 + 12345) >> 8 & 1 ? 1 : -1;
}

/* Compares products with a gradient, relative to the size of the gradient. */
static double worst_gradient;
static void compare_sums(const char *family, const char *name, const cJSON *want, const double *got, double size) {
  int i = 0;
  const cJSON *item;
  cJSON_ArrayForEach(item, want) {
    const double error = fabs(got[i] - item->valuedouble) / (size + 1e-4);
    ck_assert_msg(error < 1e-5, "%s, gradient of %s, product %d: %.9g, not %.9g", family, name, i, got[i],
                  item->valuedouble);
    worst_gradient = fmax(worst_gradient, error);
    i++;
  }
}

/* Returns the size that a gradient's errors are relative to. The gradient of a bias of keys, or of the ends of spans,
 * is mathematically 0 and holds only rounding errors: there it is the size of the weight's gradient, whose terms
 * cancel. */
static double size_to_compare(const cJSON *golden, const char *name, double size) {
  const double want = number(member(golden, name), "size");
  const size_t stem = strlen(name) - strlen("bias");
  char weight[200];
  if (strcmp(name + stem, "bias") != 0) return size;
  snprintf(weight, sizeof weight, "%.*sweight", (int)stem, name);
  const cJSON *of_weight = cJSON_GetObjectItemCaseSensitive(golden, weight);
  return of_weight && want < 1e-6 * number(of_weight, "size") ? number(of_weight, "size") : size;
}

static void compare_gradient(const char *family, const hand_job *job, const tws_hf_tensor *t, const cJSON *golden) {
  const cJSON *want = member(golden, t->name);
  const int vector = t->dims == 1;
  const int64_t file_rows = t->transposed ? t->columns : t->rows, file_columns = t->transposed ? t->rows : t->columns;
  const int64_t rows = vector ? 1 : file_rows, columns = vector ? file_rows : file_columns;
  double *of_row = calloc((size_t)rows, sizeof *of_row), *of_column = calloc((size_t)columns, sizeof *of_column),
         size = 0;
  int64_t *row_in = rows_by_file(t);
  for (int64_t i = 0; i < rows * columns; i++) {
    const int64_t row = vector ? i : i / columns, column = vector ? 0 : i % columns;
    const double g = job->gradients[job->first[t->param] + element_of(t, row_in, row, column)];
    of_row[i / columns] += g * sign((uint64_t)(i % columns), 1);
    of_column[i % columns] += g * sign((uint64_t)(i / columns), 2);
    size += g * g;
  }
  const double reference = size_to_compare(golden, t->name, sqrt(size));
  compare_sums(family, t->name, member(want, "rows"), of_row, reference);
  compare_sums(family, t->name, member(want, "columns"), of_column, reference);
  ck_assert_int_eq(cJSON_GetArraySize(member(want, "columns")), columns);
  ck_assert_msg(fabs(sqrt(size) - number(want, "size")) < 1e-5 * reference + 1e-8, "%s, gradient of %s: %.9g, not %.9g",
                family, t->name, sqrt(size), number(want, "size"));
  free(row_in);
  free(of_row);
  free(of_column);
}

/* For a network with a second loss: computes this loss alone, and then removes its targets, too, which gives 0. */
static void compare_next_sentence(hand_job *job, const cJSON *family, const sample_inputs *x) {
  static int32_t none[MOST_NUMBERS];
  const uint32_t classes = tws_network_input_of(job->train->network, TWS_INPUT_CLASSES);
  if (classes == TWS_NONE) return;
  const double want = number(family, "next_sentence_loss");
  memset(none, 0xff, sizeof none); /* -1 */
  hand_input(job, x->targets, none);
  const double got = hand_loss(job, job->weights, 0);
  ck_assert_msg(fabs(got / want - 1) < 1e-5, "the next sentence: %.9g, not %.9g", got, want);
  hand_input(job, classes, none);
  ck_assert_double_eq(hand_loss(job, job->weights, 0), 0);
}

/* Compares the likelihoods of single tokens: with all other targets ignored, the loss is that of the token. */
static void compare_likelihoods(hand_job *job, const char *family, const sample_inputs *x, const cJSON *golden) {
  const cJSON *point;
  int32_t targets[TOKENS];
  const int length = x->each[x->targets];
  cJSON_ArrayForEach(point, golden) {
    const int at = cJSON_GetArrayItem(point, 0)->valueint * length + cJSON_GetArrayItem(point, 1)->valueint;
    const double want = -cJSON_GetArrayItem(point, 3)->valuedouble;
    for (int i = 0; i < TOKENS; i++) targets[i] = i == at ? cJSON_GetArrayItem(point, 2)->valueint : -1;
    hand_input(job, x->targets, targets);
    const double got = hand_loss(job, job->weights, 0);
    ck_assert_msg(fabs(got / want - 1) < 1e-5, "%s, token %d: %.9g, not %.9g", family, at, got, want);
  }
}

/* Checks that the engine has allocated exactly the ledger's bytes in each tier. */
static tws_code check_allocated(const tws_plan *plan, const tws_executor *x, tws_error *why) {
  tws_ledger ledger;
  TWS_TRY(tws_ledger_read(plan, &ledger, why));
  for (int tier = 0; tier < TWS_TIER_COUNT; tier++) {
    const uint64_t got = tws_executor_allocated(x, (tws_tier)tier), want = ledger.tier[tier].arena_bytes;
    if (got != want || (tier == TWS_TIER_DEVICE && got == 0))
      return tws_fail(why, TWS_INTERNAL, NULL, "tier %d has %llu bytes, the ledger says %llu", tier,
                      (unsigned long long)got, (unsigned long long)want);
  }
  return TWS_OK;
}

static double train_step(hand_job *job, int step) {
  float hyper[TWS_HYPER_COUNT];
  double metrics[TWS_METRIC_COUNT] = {0};
  tws_hyper_fill(job->config, step + 1, 1, hyper);
  hyper[TWS_HYPER_LR] = 1e-3f;
  for (uint32_t i = 0; i < job->train->network->input_count; i++)
    HAND_OK(tws_executor_put(job->executor, 0, job->train->input[i], 0, job->input[i],
                             job->train->buffers[job->train->input[i]].elements, &err));
  HAND_OK(tws_executor_put(job->executor, 0, job->train->hyper, 0, hyper, TWS_HYPER_COUNT, &err));
  HAND_OK(tws_executor_put(job->executor, 0, job->train->metrics, 0, metrics, TWS_METRIC_COUNT, &err));
  HAND_OK(tws_executor_step(job->executor, 0, step + 1, NULL, NULL, NULL, &err));
  HAND_OK(tws_executor_get(job->executor, 0, job->train->metrics, 0, metrics, TWS_METRIC_COUNT, &err));
  return metrics[TWS_METRIC_LOSS];
}

static int length_of(const cJSON *family, const char *key, int usual) {
  const cJSON *length = cJSON_GetObjectItemCaseSensitive(family, key);
  return length ? length->valueint : usual;
}
static int target_length(const cJSON *family) {
  return length_of(family, "target_length", 0);
}
static int sequence_length(const cJSON *family) {
  return length_of(family, "sequence_length", LENGTH);
}

static const char *config_text(const cJSON *family, double clipping, const char *recompute) {
  static char text[384];
  snprintf(text, sizeof text,
           "{\"train_micro_batch_size_per_gpu\": %d, \"gradient_clipping\": %g, \"optimizer\": {\"type\": \"AdamW\", "
           "\"params\": {\"lr\": 0.001, \"betas\": [0.9, 0.999], \"eps\": 1e-8, \"weight_decay\": 0}}, \"twinspeed\": "
           "{\"sequence_length\": %d, \"target_length\": %d, \"expert_capacity_factor\": 0, \"recompute\": \"%s\"}}",
           TEXTS, clipping, sequence_length(family), target_length(family), recompute);
  return text;
}

/* Asserts that frozen parameters have not changed by a bit, and that all others have. */
static void expect_frozen(hand_job *job) {
  const tws_network *network = job->train->network;
  const uint64_t total = job->first[network->param_count];
  float *now = calloc(total + 1, sizeof *now);
  hand_move(job, job->train->parameters, hand_entry_name(job, job->train->parameters), now, 0);
  for (uint32_t p = 0; p < network->param_count; p++) {
    const uint64_t first = job->first[p], bytes = (job->first[p + 1] - first) * sizeof *now;
    ck_assert_msg((memcmp(now + first, job->weights + first, bytes) == 0) == network->params[p].frozen, "%s",
                  network->params[p].name);
  }
  free(now);
}

static void compare_family(const cJSON *family, const char *text) {
  const char *name = member(family, "name")->valuestring;
  tws_network *network = adapted_network(family);
  const tensors t = tensors_of(network);
  sample_inputs x;
  hand_job job;
  read_inputs(network, family, text, &x);
  ck_assert_msg((double)tws_network_params(network, 0) == number(family, "parameters"), "%s has %g parameters", name,
                (double)tws_network_params(network, 0));
  ck_assert_msg((int)t.count == cJSON_GetArraySize(member(family, "tensors")), "%s has %d tensors", name, (int)t.count);
  hand_job_begin(&job, network, config_text(family, 0, "none"));
  fill(&job, &t, family);
  set_inputs(&job, &x);
  const double loss = hand_loss(&job, job.weights, 1);
  ck_assert_msg(fabs(loss / number(family, "loss") - 1) < 1e-5, "%s loses %.9g, not %.9g", name, loss,
                number(family, "loss"));
  for (uint32_t i = 0; i < t.count; i++) {
    const int trained = cJSON_HasObjectItem(member(family, "gradients"), t.list[i].name);
    ck_assert_msg(trained == !network->params[t.list[i].param].frozen, "%s, %s", name, t.list[i].name);
    if (trained) compare_gradient(name, &job, &t.list[i], member(family, "gradients"));
  }
  compare_next_sentence(&job, family, &x);
  compare_likelihoods(&job, name, &x, member(family, "log_probabilities"));
  hand_job_end(&job);
  hand_job_begin(&job, network, config_text(family, 1, "full"));
  fill(&job, &t, family);
  hand_move(&job, job.train->parameters, hand_entry_name(&job, job.train->parameters), job.weights, 1);
  for (int step = 0; step < TRAINED; step++) {
    read_step(network, family, text, step, &x);
    set_inputs(&job, &x);
    const double want = cJSON_GetArrayItem(member(family, "losses"), step)->valuedouble, got = train_step(&job, step);
    ck_assert_msg(fabs(got / want - 1) < 1e-5, "%s, step %d: loss %.9g, not %.9g", name, step + 1, got, want);
  }
  expect_frozen(&job);
  hand_job_end(&job);
  tws_network_destroy(network);
}

/* ---- divided over two ranks ---- */

enum { RANKS = 2, DIVIDED_STEPS = 3 };

static const struct division {
  const char *name, *keys;
  int samples;      /* of a micro-batch */
  const char *ours; /* in "twinspeed" */
} divisions[] = {
    {"stage 0", "\"zero_optimization\": {\"stage\": 0}", 1, ""},
    {"tensor", "\"tensor_parallel\": {\"autotp_size\": 2}", 2, ""},
    {"stage 1", "\"zero_optimization\": {\"stage\": 1}", 1, ""},
    {"sequence", "\"sequence_parallel_size\": 2", 2, ""},
    {"stage 2", "\"zero_optimization\": {\"stage\": 2}", 1, ""},
    {"pipeline", "\"pipeline\": {\"stages\": 2}, \"gradient_accumulation_steps\": 2", 1, ""},
    {"stage 3", "\"zero_optimization\": {\"stage\": 3}", 1, ""},
    {"ring", "\"sequence_parallel_size\": 2", 2, ", \"sequence_algorithm\": \"ring\""},
    {"tensor, tokens between", "\"tensor_parallel\": {\"autotp_size\": 2}", 2, ", \"tensor_sequence_parallel\": true"},
};
static int is_along_sequence(int d) {
  return strcmp(divisions[d].name, "sequence") == 0 || strcmp(divisions[d].name, "ring") == 0;
}
enum { DIVISIONS = sizeof divisions / sizeof *divisions };

typedef struct rank_run {
  const tws_plan *plan;
  const tws_config *config;
  const hand_job *weights;
  const sample_inputs *inputs; /* of each step */
  thread_world *world;
  double losses[DIVIDED_STEPS];
  tws_code code;
  tws_error err;
} rank_run;

/* Selects a rank's samples and tokens from the whole batch of an input with `each` numbers per sample, micro-batch
 * after micro-batch. Row numbers count from the first row of a micro-batch. */
static void own_tokens(const tws_plan *plan, int ring, const tws_network_input *input, int each, const int32_t *all,
                       int32_t *own) {
  const tws_position *at = &plan->position;
  const int rows = input->content == TWS_INPUT_ROWS, whole = input->dims == 1; /* of samples */
  const int ranks = whole ? 1 : at->ranks[TWS_AXIS_SEQUENCE], rank = whole ? 0 : at->index[TWS_AXIS_SEQUENCE];
  const int tokens = each / ranks, first = ring ? (int)tws_zigzag_first(each, ranks, rank) : tokens * rank;
  const int64_t gap = ring ? tws_zigzag_gap(each, ranks, rank) : 0;
  const int samples = TEXTS / at->ranks[TWS_AXIS_DATA], sample = samples * at->index[TWS_AXIS_DATA];
  for (int i = 0; i < samples * tokens; i++) {
    const int place = i / tokens % (int)plan->micro_batch_size, texts = plan->network->classes > 0;
    const int from = rows && !texts ? place : sample + i / tokens;
    own[i] = all[from * each + first + tws_zigzag_position(tokens, gap, i % tokens)] -
             (rows && texts ? (from - place) * LENGTH : 0);
  }
}

static tws_code put_input(const rank_run *r, const sample_inputs *given, tws_executor *x, uint32_t input,
                          tws_error *why) {
  const uint32_t buffer = r->plan->input[input];
  int32_t own[MOST_NUMBERS];
  if (buffer == TWS_NONE) return TWS_OK; /* another stage's */
  own_tokens(r->plan, r->config->sequence_algorithm == TWS_SEQUENCE_RING, &r->plan->network->input[input],
             given->each[input], given->values[input], own);
  return tws_executor_put(x, 0, buffer, 0, own, r->plan->buffers[buffer].elements, why);
}

static tws_code rank_step(rank_run *r, tws_executor *x, int step, tws_error *why) {
  const tws_plan *plan = r->plan;
  float hyper[TWS_HYPER_COUNT];
  double metrics[TWS_METRIC_COUNT] = {0};
  tws_hyper_fill(r->config, step + 1, 1, hyper);
  for (uint32_t i = 0; i < plan->network->input_count; i++) TWS_TRY(put_input(r, &r->inputs[step], x, i, why));
  TWS_TRY(tws_executor_put(x, 0, plan->hyper, 0, hyper, TWS_HYPER_COUNT, why));
  TWS_TRY(tws_executor_put(x, 0, plan->metrics, 0, metrics, TWS_METRIC_COUNT, why));
  TWS_TRY(tws_executor_step(x, 0, step + 1, NULL, NULL, NULL, why));
  TWS_TRY(tws_executor_get(x, 0, plan->metrics, 0, metrics, TWS_METRIC_COUNT, why));
  r->losses[step] = metrics[TWS_METRIC_LOSS];
  return TWS_OK;
}

static void *run_rank(void *raw) {
  rank_run *r = raw;
  tws_backend *backend = NULL;
  tws_executor *x = NULL;
  tws_comm comm = {.world = r->world, .plan = r->plan};
  r->code = tws_host_backend()->create(0, 1, &backend, &r->err);
  const tws_executor_setup setup = {.programs = &r->plan,
                                    .program_count = 1,
                                    .ops = tws_host_backend(),
                                    .backend = backend,
                                    .comm_ops = &thread_ranks_comm,
                                    .comm = &comm};
  if (r->code == TWS_OK) r->code = tws_executor_create(&setup, &x, &r->err);
  if (r->code == TWS_OK) r->code = check_allocated(r->plan, x, &r->err);
  if (r->code == TWS_OK) r->code = put_rank_weights(r->weights, r->plan, x, &r->err);
  for (int step = 0; step < DIVIDED_STEPS && r->code == TWS_OK; step++) r->code = rank_step(r, x, step, &r->err);
  tws_executor_destroy(x);
  if (backend) tws_host_backend()->destroy(backend);
  return NULL;
}

static const char *division_text(const cJSON *family, int d) {
  static char text[704];
  snprintf(
      text, sizeof text,
      "{\"train_micro_batch_size_per_gpu\": %d, \"gradient_clipping\": 1, %s, \"optimizer\": {\"type\": \"AdamW\", "
      "\"params\": {\"lr\": 0.001, \"betas\": [0.9, 0.999], \"eps\": 1e-8, \"weight_decay\": 0}}, \"twinspeed\": "
      "{\"sequence_length\": %d, \"target_length\": %d, \"expert_capacity_factor\": 0%s}}",
      divisions[d].samples, divisions[d].keys, sequence_length(family), target_length(family), divisions[d].ours);
  return text;
}

/* Trains a division on ranks as threads and compares its losses. Returns 0 where the division is not legal for the
 * family, else 1. */
static int compare_division(const tws_network *network, const hand_job *weights, const cJSON *family, const char *text,
                            int d) {
  sample_inputs inputs[DIVIDED_STEPS];
  tws_config *config = NULL;
  tws_plan *plans[RANKS] = {NULL};
  pthread_t threads[RANKS];
  rank_run runs[RANKS];
  thread_world world = {.lock = PTHREAD_MUTEX_INITIALIZER, .arrived = PTHREAD_COND_INITIALIZER};
  for (int step = 0; step < DIVIDED_STEPS; step++) read_step(network, family, text, step, &inputs[step]);
  const tws_code resolved = resolve(division_text(family, d), RANKS, network->hidden, &config);
  if (resolved != TWS_OK && sequence_length(family) == 1) return 0; /* a sequence of one token cannot be divided */
  ck_assert_msg(resolved == TWS_OK, "%s", err.message);
  tws_plan_request request = {.network = network, .config = config, .threads = 1};
  HAND_OK(tws_plan_topology(config, RANKS, &request.topology, &err));
  for (int r = 0; r < RANKS; r++) {
    request.rank = r;
    if (tws_plan_build(&request, &plans[r], &err) == TWS_OK) continue;
    ck_assert_msg(strstr(err.message, "tensor parallelism") || strstr(err.message, "sequence parallelism") ||
                      strstr(err.message, "a ring of sequence-parallel ranks"),
                  "%s: %s", divisions[d].name, err.message);
    for (int k = 0; k < r; k++) tws_plan_destroy(plans[k]);
    tws_config_destroy(config);
    return 0;
  }
  HAND_OK(tws_plans_verify((const tws_plan *const *)plans, RANKS, &err));
  for (int r = 0; r < RANKS; r++) {
    runs[r] = (rank_run){.plan = plans[r], .config = config, .weights = weights, .inputs = inputs, .world = &world};
    ck_assert_int_eq(pthread_create(&threads[r], NULL, run_rank, &runs[r]), 0);
  }
  for (int r = 0; r < RANKS; r++) pthread_join(threads[r], NULL);
  for (int r = 0; r < RANKS; r++) ck_assert_msg(runs[r].code == TWS_OK, "rank %d: %s", r, runs[r].err.message);
  for (int step = 0; step < DIVIDED_STEPS; step++) {
    const double want = cJSON_GetArrayItem(member(family, "losses"), step)->valuedouble,
                 got = runs[RANKS - 1].losses[step];
    ck_assert_msg(fabs(got / want - 1) < 1e-5, "%s, %s, step %d: loss %.9g, not %.9g",
                  member(family, "name")->valuestring, divisions[d].name, step + 1, got, want);
  }
  thread_world_end(&world);
  for (int r = 0; r < RANKS; r++) tws_plan_destroy(plans[r]);
  tws_config_destroy(config);
  return 1;
}

/* Compares every division of every family in a file, and counts the legal ones in `done`. */
static void divide_families(const char *file, int *done) {
  tws_json *golden = golden_file(file);
  const cJSON *family;
  cJSON_ArrayForEach(family, member(golden->root, "families")) {
    tws_network *network = adapted_network(family);
    const tensors t = tensors_of(network);
    hand_job job;
    hand_job_begin(&job, network, config_text(family, 0, "none"));
    fill(&job, &t, family);
    for (int d = 0; d < DIVISIONS; d++)
      done[d] += compare_division(network, &job, family, member(golden->root, "text")->valuestring, d);
    hand_job_end(&job);
    tws_network_destroy(network);
  }
  tws_json_destroy(golden);
}

START_TEST(divided) {
  int done[DIVISIONS] = {0};
  divide_families("decoders.json", done);
  divide_families("adapters.json", done);
  for (int d = 0; d < DIVISIONS; d++) ck_assert_msg(done[d] > 5, "%s was legal %d times", divisions[d].name, done[d]);
}
END_TEST

/* Encoder-decoders are divided like decoders, except along the sequence, where their biases would have to be divided,
 * too. */
START_TEST(divided_pairs) {
  int done[DIVISIONS] = {0};
  divide_families("encoder_decoders.json", done);
  for (int d = 0; d < DIVISIONS; d++)
    ck_assert_msg((done[d] > 0) == !is_along_sequence(d), "%s was legal %d times", divisions[d].name, done[d]);
}
END_TEST

/* Networks of pictures are divided neither along the sequence nor in tokens between split layers. */
START_TEST(divided_pictures) {
  int done[DIVISIONS] = {0};
  divide_families("pictures.json", done);
  for (int d = 0; d < DIVISIONS; d++)
    ck_assert_msg((done[d] > 0) == (!is_along_sequence(d) && d != DIVISIONS - 1), "%s was legal %d times",
                  divisions[d].name, done[d]);
}
END_TEST

START_TEST(divided_encoders) {
  int done[DIVISIONS] = {0};
  divide_families("encoder_heads.json", done);
  for (int d = 0; d < DIVISIONS; d++) /* a ring divides no encoder: encoders see all tokens, or read one */
    ck_assert_msg((done[d] > 3) == (strcmp(divisions[d].name, "ring") != 0), "%s was legal %d times", divisions[d].name,
                  done[d]);
}
END_TEST

static void compare_families(const char *file) {
  tws_json *golden = golden_file(file);
  const cJSON *family;
  int count = 0;
  cJSON_ArrayForEach(family, member(golden->root, "families")) {
    compare_family(family, member(golden->root, "text")->valuestring);
    count++;
  }
  printf("%d families; products with gradients are off by at most %.2g\n", count, worst_gradient);
  tws_json_destroy(golden);
}

/* Trains on one rank and returns the losses in the form of a golden family. */
static cJSON *losses_alone(tws_network *network, hand_job *job, const char *text) {
  cJSON *family = cJSON_CreateObject(), *losses = cJSON_AddArrayToObject(family, "losses");
  sample_inputs x;
  cJSON_AddStringToObject(family, "name", network->architecture);
  hand_job_begin(job, network, config_text(family, 1, "full"));
  hand_move(job, job->train->parameters, hand_entry_name(job, job->train->parameters), job->weights, 1);
  for (int step = 0; step < DIVIDED_STEPS; step++) {
    read_step(network, family, text, step, &x);
    set_inputs(job, &x);
    cJSON_AddItemToArray(losses, cJSON_CreateNumber(train_step(job, step)));
  }
  return family;
}

/* Dropout drops the same numbers whatever the ranks and with recomputation; gradients are those of the remaining
 * numbers. */
START_TEST(dropout) {
#define SIZES "\"num_hidden_layers\":2,\"hidden_size\":16,\"num_attention_heads\":4,\"vocab_size\":32"
#define GPT_SIZES "\"n_layer\":2,\"n_embd\":16,\"n_head\":4,\"vocab_size\":32,\"n_positions\":32"
  static const char *const models[] = {
      "{\"model_type\":\"llama\"," SIZES ",\"intermediate_size\":24,\"attention_dropout\":0.2}",
      "{\"model_type\":\"gpt_neox\",\"rotary_pct\":0.5," SIZES
      ",\"intermediate_size\":24,\"attention_dropout\":0.1,\"hidden_dropout\":0.2}",
      "{\"model_type\":\"opt\"," SIZES ",\"ffn_dim\":24,\"attention_dropout\":0.1,\"dropout\":0.2}",
      "{\"model_type\":\"falcon\"," SIZES
      ",\"multi_query\":false,\"parallel_attn\":true,\"hidden_dropout\":0.2,"
      "\"attention_dropout\":0.1,\"alibi\":false}",
      "{\"model_type\":\"gptj\"," GPT_SIZES
      ",\"rotary_dim\":4,\"resid_pdrop\":0.1,\"embd_pdrop\":0.1,\"attn_pdrop\":0.1}",
  };
  const char *text = "the quick brown fox jumps over the lazy dog, then sleeps at noon";
  for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
    cJSON *config = cJSON_Parse(models[i]);
    tws_network *network = network_of(config);
    int dropping = 0;
    hand_job job, again;
    for (uint32_t m = 0; m < network->module_count; m++) dropping += network->modules[m].dropout > 0;
    ck_assert_msg(dropping == (i == 0 ? 2 : i == 2 ? 6 : i == 3 ? 4 : 7), "%s drops in %d places", models[i], dropping);
    cJSON *family = losses_alone(network, &job, text);
    sample_inputs x;
    read_inputs(network, family, text, &x);
    for (int d = 0; d < DIVISIONS; d++) compare_division(network, &job, family, text, d);
    hand_job_end(&job);
    hand_job_begin(&again, network, config_text(family, 0, "none"));
    set_inputs(&again, &x);
    /* weights larger than drawn ones: the gradients are then large against the loss's rounding errors */
    for (uint64_t w = 0; w < again.first[network->param_count]; w++)
      if (fabsf(again.weights[w]) < 0.5F) again.weights[w] *= 8;
    const double dropped = hand_loss(&again, again.weights, 1), whole = hand_loss(&again, again.weights, 0);
    ck_assert_msg(fabs(dropped - whole) > 1e-4, "%s: nothing is dropped", models[i]);
    hand_differentiate(&again, 0.02);
    hand_job_end(&again);
    cJSON_Delete(family);
    cJSON_Delete(config);
    tws_network_destroy(network);
  }
}
END_TEST

START_TEST(families) {
  compare_families("decoders.json");
}
END_TEST
START_TEST(adapters) {
  compare_families("adapters.json");
}
END_TEST
START_TEST(pairs) {
  compare_families("encoder_decoders.json");
}
END_TEST

START_TEST(encoders) {
  compare_families("encoder_heads.json");
}
END_TEST

START_TEST(pictures) {
  compare_families("pictures.json");
}
END_TEST

/* Options that would change the arithmetic of disentangled attention or of the layers after it are refused. */
START_TEST(refused_positions) {
#define DEBERTA                                                                                  \
  "{\"model_type\":\"%s\",\"num_hidden_layers\":1,\"hidden_size\":16,\"num_attention_heads\":4," \
  "\"intermediate_size\":24,\"vocab_size\":32,\"relative_attention\":true,"
  static const struct {
    int version;
    const char *keys, *says;
  } bad[] = {{2, "\"pos_att_type\":\"c2p|p2p\"}", "a kind that is not known"},
             {2, "\"pos_att_type\":[]}", "relative_attention without a pos_att_type"},
             {2, "\"pos_att_type\":[\"c2p\"],\"position_buckets\":8,\"max_relative_positions\":5}", "cannot be dealt"},
             {2, "\"pos_att_type\":\"c2p\",\"norm_rel_ebd\":\"rms\"}", "norm_rel_ebd is not known"},
             {2, "\"pos_att_type\":\"c2p|p2c|c2p\"}", "has the same kind twice"},
             {2, "\"pos_att_type\":\"c2p\",\"conv_kernel_size\":4}", "an even number of tokens"},
             {2, "\"pos_att_type\":\"c2p\",\"conv_kernel_size\":3,\"conv_groups\":2}", "groups of features"},
             {2, "\"pos_att_type\":\"c2p\",\"conv_kernel_size\":3,\"conv_act\":\"silu\"}", "conv_act \"silu\""},
             {1, "\"pos_att_type\":\"c2p\",\"conv_kernel_size\":3}", "\"conv_kernel_size\" is not known for deberta"},
             {1, "\"pos_att_type\":\"c2p\",\"position_buckets\":4}", "\"position_buckets\" is not known for deberta"},
             {1, "\"pos_att_type\":\"c2p\",\"share_att_key\":true}", "\"share_att_key\" is not known for deberta"},
             {1, "\"pos_att_type\":\"c2p\",\"norm_rel_ebd\":\"layer_norm\"}", "\"norm_rel_ebd\" is not known"},
             {2, "\"pos_att_type\":\"c2p\",\"embedding_size\":8}", "of another width than hidden_size"},
             {2, "\"pos_att_type\":\"c2p\",\"legacy\":false}", "\"legacy\": false is not supported"},
             {2, "\"pos_att_type\":\"c2p\",\"talking_head\":true}", "\"talking_head\" is not known"}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    char text[400];
    tws_json *json = NULL;
    tws_network *network = NULL;
    snprintf(text, sizeof text, DEBERTA "%s", bad[i].version == 1 ? "deberta" : "deberta-v2", bad[i].keys);
    HAND_OK(tws_json_parse(text, strlen(text), "config.json", &json, &err));
    ck_assert_int_ne(tws_network_from_json(json, 1, &network, &err), TWS_OK);
    ck_assert_msg(strstr(err.message, bad[i].says), "%s: %s", bad[i].keys, err.message);
    tws_json_destroy(json);
  }
}
END_TEST

/* If a published model is built in, the built-in one has as many parameters. */
static void compare_builtin(const cJSON *model, int *count) {
  const char *name = tws_network_builtin_of_hub(member(model, "name")->valuestring);
  tws_network *network;
  if (!name) return;
  HAND_OK(tws_network_load(name, 0, &network, &err));
  ck_assert_msg((double)tws_network_params(network, 0) == number(model, "parameters"), "%s: %.0f, not %.0f", name,
                (double)tws_network_params(network, 0), number(model, "parameters"));
  tws_network_destroy(network);
  ++*count;
}

/* Networks have the published parameter counts, also with a padded vocabulary, which adds only the padding. */
START_TEST(published_counts) {
  tws_json *golden = golden_file("parameter_counts.json");
  const cJSON *model;
  int builtin = 0;
  cJSON_ArrayForEach(model, member(golden->root, "models")) {
    tws_network *network = network_of(member(model, "config"));
    ck_assert_msg((double)tws_network_params(network, 0) == number(model, "parameters"), "%s: %.0f, not %.0f",
                  member(model, "name")->valuestring, (double)tws_network_params(network, 0),
                  number(model, "parameters"));
    ck_assert_msg(*network->notes == 0, "%s: %s", member(model, "name")->valuestring, network->notes);
    tws_network_destroy(network);
    network = padded_network_of(member(model, "config"), 1009);
    ck_assert_int_eq(network->padded_vocabulary % 1009, 0);
    ck_assert_msg((double)tws_network_params(network, 1) == number(model, "parameters"), "%s, padded: %.0f, not %.0f",
                  member(model, "name")->valuestring, (double)tws_network_params(network, 1),
                  number(model, "parameters"));
    tws_network_destroy(network);
    compare_builtin(model, &builtin);
  }
  ck_assert_int_ge(builtin, 45); /* the other built-in models are in the suite network */
  tws_json_destroy(golden);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("decoders");
  TCase *tests = tcase_create("decoders");
  tcase_add_test(tests, families);
  tcase_add_test(tests, divided);
  tcase_add_test(tests, adapters);
  tcase_add_test(tests, pairs);
  tcase_add_test(tests, divided_pairs);
  tcase_add_test(tests, encoders);
  tcase_add_test(tests, divided_encoders);
  tcase_add_test(tests, pictures);
  tcase_add_test(tests, divided_pictures);
  tcase_add_test(tests, dropout);
  tcase_add_test(tests, refused_positions);
  tcase_add_test(tests, published_counts);
  tcase_set_timeout(tests, 120);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
