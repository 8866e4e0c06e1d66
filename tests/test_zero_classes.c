/* ctest: engine mpi */
/* Parameters of two classes: dense ones, whose gradients all ranks add up, and expert ones, which differ between ranks
 * along "expert", and whose gradients are added up along "expert-data" only. Every stage is verified, laid out, costed,
 * simulated, and executed on the host by one thread for each rank: gradients are the sums that ranks alone give. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "estimators/estimators.h"
#include "job_seconds.h"
#include "plan/hyper.h"
#include "real/executor.h"
#include "tests/suite.h"
#include "tests/thread_ranks.h"

const tws_backend_ops *tws_host_backend(void);

enum { WORLD = 4, EXPERTS = 2, VOCABULARY = 24, MOST_PARAMS = 64, MOST_ELEMENTS = 1 << 16 };

static tws_error err;

/* ---- jobs ---- */

static tws_network *make_network(void) {
  static const char text[] =
      "{\"model_type\": \"gpt2\", \"architectures\": [\"GPT2LMHeadModel\"], \"n_layer\": 2, \"n_head\": 2, \"n_embd\": "
      "12, "
      "\"n_positions\": 8, \"n_inner\": 20, \"vocab_size\": 24, \"activation_function\": \"gelu_new\", "
      "\"layer_norm_epsilon\": 1e-5}";
  tws_json *json;
  tws_network *network;
  ck_assert(tws_json_parse(text, sizeof text - 1, "model", &json, &err) == TWS_OK);
  ck_assert_msg(tws_network_from_json(json, 1, &network, &err) == TWS_OK, "%s", err.message);
  tws_json_destroy(json);
  ck_assert_int_le(network->param_count, MOST_PARAMS);
  return network;
}

/* Returns 1 for the experts' parameters: the products of the layers' MLPs. */
static int is_own(const tws_network *network, uint32_t param) {
  return strstr(network->params[param].name, ".mlp.") != NULL;
}

static tws_config make_config(int stage, int overlap, int scatter) {
  tws_config *base, c;
  ck_assert(tws_config_default(&base, &err) == TWS_OK);
  c = *base;
  tws_config_destroy(base);
  c.store = NULL;
  c.zero.stage = stage;
  c.zero.overlap_comm = overlap;
  c.zero.reduce_scatter = scatter;
  c.zero.multi_rank_bucket_allreduce = overlap;
  c.zero.round_robin_gradients = scatter;
  c.zero.reduce_bucket_size = 700;
  c.zero.prefetch_bucket_size = 300;
  c.zero.param_persistence_threshold = 20;
  c.zero.max_live_parameters = 5000;
  c.zero.sub_group_size = 900;
  c.micro_batch_size = 2;
  c.accumulation_steps = 2;
  c.sequence_length = 4;
  c.dtype = c.accumulation_dtype = TWS_F32;
  c.gradient_clipping = 0;
  return c;
}

static tws_plan *make_plan(const tws_network *network, const tws_config *config, const tws_topology *topology,
                           int rank) {
  const tws_plan_request request = {.network = network,
                                    .config = config,
                                    .topology = *topology,
                                    .rank = rank,
                                    .backend = TWS_BACKEND_HOST,
                                    .threads = 1};
  tws_plan *plan;
  ck_assert_msg(tws_plan_build(&request, &plan, &err) == TWS_OK, "%s", err.message);
  ck_assert_msg(tws_plan_verify(plan, &err) == TWS_OK, "stage %d: %s", config->zero.stage, err.message);
  return plan;
}

/* ---- execution ---- */

static float weight(const tws_network *network, uint32_t param, uint64_t element, int expert) {
  const int of = is_own(network, param) ? expert + 1 : 0;
  const double x = sin((double)(element * 7919 + param * 104729 + (uint64_t)of * 1299709));
  const int norm = network->params[param].init_std == 0 && network->params[param].init_value != 0;
  return (float)(norm ? 1 + 0.1 * x : 0.3 * x);
}

/* One rank's step. data: index of the samples that the rank gets. */
typedef struct rank_run {
  const tws_plan *plan;
  const tws_config *config;
  thread_world *world;
  int expert, data;
  float moments[MOST_ELEMENTS]; /* of what it updates */
  double metrics[TWS_METRIC_COUNT];
  tws_code code;
  tws_error err;
} rank_run;

static tws_code fill(const rank_run *r, tws_executor *x, tws_error *why) {
  const tws_plan *plan = r->plan;
  static _Thread_local float values[MOST_ELEMENTS];
  float hyper[TWS_HYPER_COUNT];
  double zeros[TWS_METRIC_COUNT] = {0};
  int32_t ids[64], targets[64];
  for (uint32_t i = 0; i < plan->state->shard_count; i++) {
    const tws_shard *s = &plan->state->shards[i];
    for (uint64_t k = 0; k < s->count; k++) values[k] = weight(plan->network, s->param, s->param_first + k, r->expert);
    TWS_TRY(tws_executor_put(x, 0, plan->parameters, s->storage_offset, values, s->count, why));
  }
  const uint64_t tokens = plan->buffers[tws_plan_input(plan, TWS_INPUT_TOKENS)].elements;
  for (uint64_t i = 0; i < tokens; i++) {
    ids[i] = (int32_t)((i * 5 + (uint64_t)r->data * 11 + 3) % VOCABULARY);
    targets[i] = (int32_t)((i * 7 + (uint64_t)r->data * 13 + 1) % VOCABULARY);
  }
  tws_hyper_fill(r->config, 1, 1, hyper);
  TWS_TRY(tws_executor_put(x, 0, tws_plan_input(plan, TWS_INPUT_TOKENS), 0, ids, tokens, why));
  TWS_TRY(tws_executor_put(x, 0, tws_plan_input(plan, TWS_INPUT_TARGETS), 0, targets, tokens, why));
  TWS_TRY(tws_executor_put(x, 0, plan->hyper, 0, hyper, TWS_HYPER_COUNT, why));
  return tws_executor_put(x, 0, plan->metrics, 0, zeros, TWS_METRIC_COUNT, why);
}

static tws_code run_step(rank_run *r, tws_backend *backend, tws_error *why) {
  const tws_plan *plan = r->plan;
  tws_comm comm = {.world = r->world, .plan = plan};
  tws_executor *x = NULL;
  const tws_executor_setup setup = {.programs = &r->plan,
                                    .program_count = 1,
                                    .ops = tws_host_backend(),
                                    .backend = backend,
                                    .comm_ops = &thread_ranks_comm,
                                    .comm = &comm};
  TWS_TRY(tws_executor_create(&setup, &x, why));
  tws_code code = fill(r, x, why);
  if (code == TWS_OK) code = tws_executor_step(x, 0, 1, NULL, NULL, NULL, why);
  const uint32_t moments = plan->optimizer_state[0];
  if (code == TWS_OK) code = tws_executor_get(x, 0, moments, 0, r->moments, plan->buffers[moments].elements, why);
  if (code == TWS_OK) code = tws_executor_get(x, 0, plan->metrics, 0, r->metrics, TWS_METRIC_COUNT, why);
  tws_executor_destroy(x);
  return code;
}

static void *run_rank(void *raw) {
  rank_run *r = raw;
  tws_backend *backend = NULL;
  r->code = tws_host_backend()->create(0, 1, &backend, &r->err);
  if (r->code == TWS_OK) r->code = run_step(r, backend, &r->err);
  if (backend) tws_host_backend()->destroy(backend);
  return NULL;
}

static rank_run *run_ranks(tws_plan *const *plans, int count, const tws_config *config, const int *expert,
                           const int *data) {
  thread_world world = {.lock = PTHREAD_MUTEX_INITIALIZER};
  rank_run *runs = calloc((size_t)count, sizeof *runs);
  pthread_t threads[WORLD];
  for (int r = 0; r < count; r++) {
    runs[r].plan = plans[r];
    runs[r].config = config;
    runs[r].world = &world;
    runs[r].expert = expert[r];
    runs[r].data = data[r];
    ck_assert(pthread_create(&threads[r], NULL, run_rank, &runs[r]) == 0);
  }
  for (int r = 0; r < count; r++) pthread_join(threads[r], NULL);
  for (int r = 0; r < count; r++) ck_assert_msg(runs[r].code == TWS_OK, "rank %d: %s", r, runs[r].err.message);
  thread_world_end(&world);
  return runs;
}

/* ---- what must come out ---- */

typedef struct gradients {
  double *of[EXPERTS][MOST_PARAMS];
  double norm, loss;
} gradients;

/* Computes each rank's own gradient in a job of one rank with its samples and its experts, and adds these up by
 * hand. */
static void expect(const tws_network *network, const tws_topology *topology, gradients *g) {
  const tws_config config = make_config(0, 0, 0);
  const tws_axis axis = TWS_AXIS_DATA;
  const int one = 1;
  tws_topology alone;
  ck_assert(tws_topology_make(&alone, 1, &axis, &one, &err) == TWS_OK);
  for (int e = 0; e < EXPERTS; e++)
    for (uint32_t p = 0; p < network->param_count; p++)
      g->of[e][p] = calloc((size_t)tws_param_numel(&network->params[p]), sizeof(double));
  for (int r = 0; r < WORLD; r++) {
    const int expert = tws_topology_index(topology, r, TWS_AXES_EXPERT);
    tws_plan *plan = make_plan(network, &config, &alone, 0);
    rank_run *run = run_ranks(&plan, 1, &config, &expert, &r);
    for (uint32_t i = 0; i < plan->state->shard_count; i++) {
      const tws_shard *s = &plan->state->shards[i];
      for (int e = 0; e < EXPERTS; e++)
        for (uint64_t k = 0; k < s->count && (e == expert || !is_own(network, s->param)); k++)
          g->of[e][s->param][s->param_first + k] += (double)run->moments[s->owned_offset + k] / WORLD;
    }
    g->loss += run->metrics[TWS_METRIC_LOSS] / WORLD;
    free(run);
    tws_plan_destroy(plan);
  }
  for (int e = 0; e < EXPERTS; e++)
    for (uint32_t p = 0; p < network->param_count; p++)
      for (int64_t k = 0; k < tws_param_numel(&network->params[p]) && (e == 0 || is_own(network, p)); k++)
        g->norm += g->of[e][p][k] * g->of[e][p][k] * 100; /* the moments are a tenth of the gradients */
  g->norm = sqrt(g->norm);
}

/* Asserts that each element is updated by one of the ranks that hold it (at stage 0 by all), with the sum of their
 * gradients. */
static void check_moments(const tws_network *network, const tws_config *config, const rank_run *runs,
                          const gradients *g) {
  uint64_t updated = 0, elements = 0;
  for (uint32_t p = 0; p < network->param_count; p++)
    elements += (uint64_t)tws_param_numel(&network->params[p]) * (is_own(network, p) ? EXPERTS : 1);
  for (int r = 0; r < WORLD; r++) {
    const tws_state *state = runs[r].plan->state;
    for (uint32_t i = 0; i < state->shard_count; i++) {
      const tws_shard *s = &state->shards[i];
      if (s->owned_offset == TWS_NO_OFFSET) continue;
      for (uint64_t k = 0; k < s->count; k++) {
        const double is = runs[r].moments[s->owned_offset + k];
        const double should = g->of[runs[r].expert][s->param][s->param_first + k];
        ck_assert_msg(fabs(is - should) < 1e-7 + 1e-4 * fabs(should),
                      "stage %d, overlap %d, scatter %d, rank %d, %s[%d]: %g, not %g", config->zero.stage,
                      config->zero.overlap_comm, config->zero.reduce_scatter, r, network->params[s->param].name,
                      (int)(s->param_first + k), is, should);
      }
      updated += s->count;
    }
    ck_assert_double_eq_tol(runs[r].metrics[TWS_METRIC_NORM], g->norm, 1e-4 * g->norm);
    ck_assert_double_eq_tol(runs[r].metrics[TWS_METRIC_LOSS], g->loss, 1e-5 * g->loss);
  }
  const uint64_t dense_copies = WORLD, own_copies = WORLD / EXPERTS;
  if (config->zero.stage > 0) {
    ck_assert_uint_eq(updated, elements);
  } else {
    uint64_t all = 0;
    for (uint32_t p = 0; p < network->param_count; p++)
      all +=
          (uint64_t)tws_param_numel(&network->params[p]) * (is_own(network, p) ? own_copies * EXPERTS : dense_copies);
    ck_assert_uint_eq(updated, all);
  }
}

/* ---- every reader ---- */

static int sums_along(const tws_plan *plan, tws_axes axes) {
  int found = 0;
  for (uint32_t op = 0; op < plan->op_count; op++) {
    const tws_work *work = &plan->works[plan->ops[op].work];
    found += plan->ops[op].kind == TWS_OP_COLLECTIVE && plan->groups[work->group].axes == axes;
  }
  return found;
}

static void check_stage(const tws_network *network, const tws_topology *topology, const tws_config *config,
                        const gradients *g) {
  tws_plan *plans[WORLD];
  int expert[WORLD], data[WORLD];
  for (int r = 0; r < WORLD; r++) {
    tws_ledger ledger;
    plans[r] = make_plan(network, config, topology, r);
    expert[r] = tws_topology_index(topology, r, TWS_AXES_EXPERT);
    data[r] = r;
    ck_assert(tws_ledger_read(plans[r], &ledger, &err) == TWS_OK);
    ck_assert_uint_ge(ledger.tier[TWS_TIER_DEVICE].arena_bytes, ledger.tier[TWS_TIER_DEVICE].live_bytes);
    ck_assert_int_gt(sums_along(plans[r], TWS_AXES_EXPERT_DATA), 0);
    ck_assert_int_eq(sums_along(plans[r], TWS_AXES_EXPERT), 0);
  }
  ck_assert_msg(tws_plans_verify((const tws_plan *const *)plans, WORLD, &err) == TWS_OK, "stage %d: %s",
                config->zero.stage, err.message);
  job_seconds((const tws_plan *const *)plans, WORLD);
  rank_run *runs = run_ranks(plans, WORLD, config, expert, data);
  check_moments(network, config, runs, g);
  free(runs);
  for (int r = 0; r < WORLD; r++) tws_plan_destroy(plans[r]);
}

START_TEST(two_classes) {
  tws_network *network = make_network();
  const tws_axis orders[2][2] = {{TWS_AXIS_EXPERT_DATA, TWS_AXIS_EXPERT}, {TWS_AXIS_EXPERT, TWS_AXIS_EXPERT_DATA}};
  const int dims[2] = {2, 2};
  for (uint32_t p = 0; p < network->param_count; p++)
    if (is_own(network, p)) network->params[p].own_along = TWS_AXES_EXPERT;
  tws_topology topology;
  gradients *g = calloc(1, sizeof *g);
  ck_assert(tws_topology_make(&topology, 2, orders[_i % 2], dims, &err) == TWS_OK);
  expect(network, &topology, g);
  ck_assert_double_gt(g->norm, 0);
  for (int how = 0; how < 4; how++) {
    const tws_config config = make_config(_i / 2, how & 1, how >> 1);
    check_stage(network, &topology, &config, g);
  }
  for (int e = 0; e < EXPERTS; e++)
    for (uint32_t p = 0; p < network->param_count; p++) free(g->of[e][p]);
  free(g);
  tws_network_destroy(network);
}
END_TEST

/* In a network without experts, ranks along the axes of experts share all parameters and are plain replicas. */
START_TEST(one_class_without_experts) {
  tws_network *network = make_network();
  const tws_axis parts[2] = {TWS_AXIS_EXPERT_DATA, TWS_AXIS_EXPERT}, whole = TWS_AXIS_DATA;
  const int dims[2] = {2, 2}, all = 4;
  const tws_config config = make_config(2, 1, 1);
  tws_topology divided, data;
  ck_assert(tws_topology_make(&divided, 2, parts, dims, &err) == TWS_OK);
  ck_assert(tws_topology_make(&data, 1, &whole, &all, &err) == TWS_OK);
  for (int r = 0; r < WORLD; r++) {
    tws_plan *a = make_plan(network, &config, &divided, r), *b = make_plan(network, &config, &data, r);
    tws_text text_a = {0}, text_b = {0};
    ck_assert(tws_plan_print(a, 1, &text_a, &err) == TWS_OK && tws_plan_print(b, 1, &text_b, &err) == TWS_OK);
    ck_assert_str_eq(text_a.data, text_b.data);
    tws_text_free(&text_a);
    tws_text_free(&text_b);
    tws_plan_destroy(a);
    tws_plan_destroy(b);
  }
  tws_network_destroy(network);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("zero classes");
  TCase *c = tcase_create("classes");
  tcase_add_loop_test(c, two_classes, 0, 8);
  tcase_add_test(c, one_class_without_experts);
  suite_add_tcase(suite, c);
  return run_suite(suite);
}
