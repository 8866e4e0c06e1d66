/* ctest: engine */
/* The router compared with DeepSpeed's gating (tests/golden/moe_gating.json): capacities, choices, slots, weights, the
 * auxiliary loss and the counts. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "members.h"
#include "models/network/network.h"
#include "models/routing.h"
#include "real/real.h"
#include "suite.h"

const tws_backend_ops *tws_host_backend(void);

enum { MOST_TOKENS = 64, MOST_EXPERTS = 16, MOST_CHOICES = 4 };

static tws_error err;

/* The router's outputs for a case. */
typedef struct gating {
  int64_t tokens, experts, choices, capacity;
  float probabilities[MOST_TOKENS * MOST_EXPERTS], weights[MOST_TOKENS * MOST_CHOICES];
  int32_t routes[MOST_TOKENS * MOST_CHOICES], counts[MOST_EXPERTS * TWS_EXPERT_COUNTS];
  double metrics[2], routed[MOST_EXPERTS];
} gating;

static gating route(const cJSON *item, const tws_routing *routing, int64_t capacity) {
  const cJSON *logits = member(item, "logits"), *row, *x;
  float input[MOST_TOKENS * MOST_EXPERTS];
  gating g = {.tokens = cJSON_GetArraySize(logits), .capacity = capacity}; /* nothing is counted yet */
  int count = 0;
  cJSON_ArrayForEach(row, logits) cJSON_ArrayForEach(x, row) input[count++] = (float)x->valuedouble;
  g.experts = routing->experts;
  g.choices = routing->choices;
  ck_assert_int_eq(count, g.tokens * g.experts);
  const tws_work work = {.code = TWS_KERNEL_ROUTER,
                         .d = {g.tokens, g.experts, g.choices, capacity},
                         .f = {routing->keeps, routing->by_choice, routing->renormalizes, routing->sampled, 1}};
  const tws_arguments arguments = {{0, 0, routing->by_choice ? 1 : 1 / (double)g.choices, 1}};
  void *data[] = {input, g.probabilities, g.routes, g.weights, g.counts, g.metrics, g.routed};
  const tws_dtype types[] = {TWS_F32, TWS_F32, TWS_I32, TWS_F32, TWS_I32, TWS_F64, TWS_F64};
  tws_backend *backend = NULL;
  ck_assert(tws_host_backend()->create(0, 1, &backend, &err) == TWS_OK);
  ck_assert_msg(tws_host_backend()->run(backend, &work, &arguments, data, types, 7, TWS_STREAM_COMPUTE, &err) == TWS_OK,
                "%s", err.message);
  tws_host_backend()->destroy(backend);
  return g;
}

static int experts_of(const cJSON *item) {
  return cJSON_GetArraySize(member(item, "logits")->child);
}

static tws_routing routing_of(const cJSON *item, int choices, const char *policy) {
  tws_routing r = tws_routing_like_deepspeed(experts_of(item), choices, number(item, "capacity_factor"),
                                             integer(item, "min_capacity"), 0);
  if (!policy) return r;
  r.by_choice = 0; /* DeepSpeed's topkgating, also with two choices */
  r.renormalizes = 1;
  r.keeps = strcmp(policy, "probs") == 0 ? TWS_KEEPS_PROBABLE : TWS_KEEPS_FIRST;
  return r;
}

/* Compares the loss, the counts and every route; with `loose` only the number of kept routes per expert, because the
 * order of equal scores depends on DeepSpeed's library. */
static void compare_gating(const cJSON *item, const gating *g, int loose, const char *what) {
  const cJSON *indices = member(item, "indices"), *locations = member(item, "locations"),
              *gates = member(item, "gates");
  int kept[MOST_EXPERTS] = {0};
  ck_assert_msg(fabs(g->metrics[0] - number(item, "l_aux")) < 1e-6, "%s: l_aux %.8g, not %.8g", what, g->metrics[0],
                number(item, "l_aux"));
  for (int64_t e = 0; e < g->experts; e++)
    ck_assert_int_eq(g->counts[e * TWS_EXPERT_COUNTS + TWS_COUNT_ROUTED],
                     cJSON_GetArrayItem(member(item, "exp_counts"), (int)e)->valueint);
  for (int c = 0; c < g->choices; c++)
    for (int t = 0; t < g->tokens; t++) {
      const int32_t found = g->routes[t * g->choices + c];
      const int expert = cJSON_GetArrayItem(cJSON_GetArrayItem(indices, c), t)->valueint;
      const int place = cJSON_GetArrayItem(cJSON_GetArrayItem(locations, c), t)->valueint;
      const double gate = cJSON_GetArrayItem(cJSON_GetArrayItem(gates, c), t)->valuedouble;
      if (expert >= 0) kept[expert]++;
      if (loose) continue;
      ck_assert_msg(expert < 0 ? found < 0 : found == expert * g->capacity + place,
                    "%s: choice %d of token %d is %d, not place %d of expert %d", what, c, t, found, place, expert);
      ck_assert_msg(fabs((double)g->weights[t * g->choices + c] - gate) < 2e-6, "%s: weight of token %d", what, t);
    }
  for (int64_t e = 0; e < g->experts; e++)
    ck_assert_int_eq(g->counts[e * TWS_EXPERT_COUNTS + TWS_COUNT_FILLED], kept[e]);
}

/* Compares a case with a mask of tokens (DeepSpeed's used_token): unmasked tokens are routed as if there were no
 * others, into as many slots as all tokens would have; only the loss still uses the probabilities and the number of all
 * tokens. Which routes of an expert are kept depends on the order of DeepSpeed's library, but their number does not. */
static void compare_used(const cJSON *item, const tws_routing *routing, int64_t capacity, const char *what) {
  cJSON *used = cJSON_Duplicate(item, 1);
  const gating all = route(item, routing, capacity);
  for (int t = (int)all.tokens; t-- > 0;)
    if (cJSON_GetArrayItem(member(item, "used_token"), t)->valueint == 0)
      cJSON_DeleteItemFromArray(cJSON_GetObjectItem(used, "logits"), t);
  const gating g = route(used, routing, capacity);
  const double tokens = (double)all.tokens;
  int kept[MOST_EXPERTS] = {0};
  double loss = 0;
  ck_assert_msg(g.tokens < all.tokens, "%s: nothing is masked", what);
  for (int64_t e = 0; e < g.experts; e++) {
    const int32_t routed = g.counts[e * TWS_EXPERT_COUNTS + TWS_COUNT_ROUTED];
    double probability = 0;
    for (int64_t t = 0; t < all.tokens; t++) probability += (double)all.probabilities[t * all.experts + e];
    loss += (double)g.experts * probability / tokens * routed / tokens;
    ck_assert_int_eq(routed, cJSON_GetArrayItem(member(item, "exp_counts"), (int)e)->valueint);
  }
  ck_assert_msg(fabs(loss - number(item, "l_aux")) < 1e-6, "%s: l_aux %.8g", what, loss);
  for (int t = 0; t < all.tokens; t++) {
    const int expert = cJSON_GetArrayItem(member(item, "indices")->child, t)->valueint;
    if (expert < 0) continue;
    const double gate = cJSON_GetArrayItem(member(item, "gates")->child, t)->valuedouble;
    ck_assert_msg(fabs((double)all.probabilities[t * all.experts + expert] - gate) < 2e-6, "%s: token %d", what, t);
    kept[expert]++;
  }
  for (int64_t e = 0; e < g.experts; e++) ck_assert_int_eq(g.counts[e * TWS_EXPERT_COUNTS + TWS_COUNT_FILLED], kept[e]);
  cJSON_Delete(used);
}

static int compare_cases(const tws_json *golden, const char *list, int choices) {
  const cJSON *item;
  int cases = 0;
  cJSON_ArrayForEach(item, member(golden->root, list)) {
    const int of = choices ? choices : integer(item, "k"), drops = is_true(item, "drop_tokens");
    const tws_routing r = routing_of(item, of, choices ? NULL : member(item, "drop_policy")->valuestring);
    const int64_t capacity = integer(item, "capacity"), tokens = cJSON_GetArraySize(member(item, "logits"));
    char what[64];
    snprintf(what, sizeof what, "%s, case %d", list, cases);
    if (drops) ck_assert_int_eq(tws_dims_count(&r.slots, 1, 1, tokens), capacity);
    cases++;
    if (cJSON_GetObjectItem(item, "used_token")) {
      compare_used(item, &r, capacity, what);
      continue;
    }
    const gating g = route(item, &r, capacity);
    if (!drops) ck_assert_double_eq(g.metrics[1], 0);
    compare_gating(item, &g, of == 1 && drops, what);
  }
  return cases;
}

START_TEST(gating_is_deepspeeds) {
  tws_json *golden = golden_file("moe_gating.json");
  const cJSON *item;
  cJSON_ArrayForEach(item, member(golden->root, "capacity")) {
    const tws_dim slots = {.kind = TWS_DIM_CAPACITY,
                           .parts = integer(item, "experts"),
                           .size = integer(item, "min_capacity"),
                           .factor = number(item, "capacity_factor")};
    ck_assert_int_eq(tws_dims_count(&slots, 1, 1, integer(item, "tokens")), integer(item, "capacity"));
  }
  ck_assert_int_eq(compare_cases(golden, "top1", 1), 19);
  ck_assert_int_eq(compare_cases(golden, "top2", 2), 18);
  ck_assert_int_eq(compare_cases(golden, "topk", 0), 54);
  tws_json_destroy(golden);
}
END_TEST

/* With as many slots per expert as tokens, or with shared slots for exactly the number of routes, no route is dropped,
 * whatever the logits, and no slot has two tokens. */
START_TEST(nothing_is_dropped_with_a_slot_for_each_route) {
  enum { TOKENS = 24, EXPERTS = 6, ROUNDS = 10000 };
  tws_backend *backend = NULL;
  ck_assert(tws_host_backend()->create(0, 1, &backend, &err) == TWS_OK);
  for (int round = 0; round < ROUNDS; round++) {
    gating g = {.tokens = 0};
    float logits[TOKENS * EXPERTS];
    const int choices = 1 + round % MOST_CHOICES;
    for (int i = 0; i < TOKENS * EXPERTS; i++)
      logits[i] = (float)(tws_random_normal(6, (uint64_t)round, (uint64_t)i) + (i % EXPERTS == 0 ? round % 7 : 0));
    const int packs = round % 3 > 0, most = packs ? TOKENS * choices : TOKENS * EXPERTS;
    const tws_work work = {.code = TWS_KERNEL_ROUTER,
                           .d = {TOKENS, EXPERTS, choices, most / EXPERTS, 0, 0, packs ? EXPERTS : 0},
                           .f = {round % 2, 0, 1, 0, 1}};
    void *data[] = {logits, g.probabilities, g.routes, g.weights, g.counts, g.metrics, g.routed};
    const tws_dtype types[] = {TWS_F32, TWS_F32, TWS_I32, TWS_F32, TWS_I32, TWS_F64, TWS_F64};
    const tws_arguments arguments = {{0, 0, 1, 1}};
    ck_assert(tws_host_backend()->run(backend, &work, &arguments, data, types, 7, TWS_STREAM_COMPUTE, &err) == TWS_OK);
    char taken[TOKENS * EXPERTS] = {0};
    for (int i = 0; i < TOKENS * choices; i++) {
      if (g.routes[i] < 0 || g.routes[i] >= most || taken[g.routes[i]]++)
        ck_abort_msg("round %d: route %d is slot %d", round, i, g.routes[i]);
    }
    if (g.metrics[1] != 0) ck_abort_msg("round %d: %g dropped", round, g.metrics[1]);
  }
  tws_host_backend()->destroy(backend);
}
END_TEST

/* The error names the experts of a pack whose rows do not suffice: two packs of three experts have rows for half of the
 * routes each, and all tokens choose one expert. */
START_TEST(a_pack_that_is_too_small_names_its_expert) {
  enum { TOKENS = 12, EXPERTS = 6 };
  tws_backend *backend = NULL;
  gating g = {.tokens = 0};
  float logits[TOKENS * EXPERTS] = {0};
  ck_assert(tws_host_backend()->create(0, 1, &backend, &err) == TWS_OK);
  for (int t = 0; t < TOKENS; t++) logits[t * EXPERTS + 4] = 1;
  const tws_work work = {.code = TWS_KERNEL_ROUTER, .d = {TOKENS, EXPERTS, 1, 2, 0, 0, 3}, .f = {0, 0, 1, 0, 1}};
  const tws_arguments arguments = {{0}};
  void *data[] = {logits, g.probabilities, g.routes, g.weights, g.counts, g.metrics, g.routed};
  const tws_dtype types[] = {TWS_F32, TWS_F32, TWS_I32, TWS_F32, TWS_I32, TWS_F64, TWS_F64};
  ck_assert(tws_host_backend()->run(backend, &work, &arguments, data, types, 7, TWS_STREAM_COMPUTE, &err) != TWS_OK);
  ck_assert_str_eq(err.message,
                   "router: experts 3 to 5 of this layer get 12 rows, expert 4 of them 12, and their buffer has 6");
  ck_assert(strstr(err.hint, "twinspeed.expert_bound") != NULL);
  tws_host_backend()->destroy(backend);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("moe");
  TCase *tests = tcase_create("moe");
  tcase_set_timeout(tests, 60);
  tcase_add_test(tests, gating_is_deepspeeds);
  tcase_add_test(tests, nothing_is_dropped_with_a_slot_for_each_route);
  tcase_add_test(tests, a_pack_that_is_too_small_names_its_expert);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
