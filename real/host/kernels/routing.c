/* Routing of tokens to experts: the router, its gradient, and copies of rows between tokens and slots. */
#include "base/memory.h"
#include "models/routing.h"
#include "real/host/kernels/kernels.h"

typedef struct router {
  const tws_host_call *call;
  int64_t tokens, experts, choices, capacity, first_token;
  int64_t groups, kept_groups, shared;
  int keeps, by_choice, renormalizes, sampled, sigmoid;
  float scale;
  uint64_t seed;
  uint32_t step; /* number of the step, as bits */
  const void *logits;
  const float *bias;                     /* NULL: there is no bias */
  float *probabilities, *weights, *sums; /* sums NULL: there is no z-loss */
  int32_t *routes, *counts;
} router;

static router router_of(const tws_host_call *call) {
  const int64_t *d = call->work->d;
  const double *f = call->work->f, *a = call->argument;
  router r = {.call = call,
              .tokens = d[0],
              .experts = d[1],
              .choices = d[2],
              .capacity = d[3],
              .groups = d[4],
              .kept_groups = d[5],
              .shared = d[6],
              .keeps = (int)f[0],
              .by_choice = f[1] != 0,
              .renormalizes = f[2] != 0,
              .sampled = (int)f[3],
              .scale = (float)f[4],
              .sigmoid = (call->work->flags & TWS_SIGMOID) != 0,
              .seed = (uint64_t)a[0],
              .first_token = (int64_t)a[1],
              .logits = call->operand[0],
              .probabilities = call->operand[1],
              .routes = call->operand[2],
              .weights = call->operand[3],
              .counts = call->operand[4]};
  int at = 7;
  if (r.keeps == TWS_KEEPS_RANDOM || r.sampled > 0)
    memcpy(&r.step, (const float *)call->operand[at++] + TWS_HYPER_STEP, sizeof r.step);
  if (call->work->flags & TWS_BIAS) r.bias = call->operand[at++];
  if (call->work->flags & TWS_Z_LOSS) r.sums = call->operand[at];
  return r;
}

static float noise(const router *r, int64_t token, int64_t expert) {
  uint32_t word[4];
  tws_philox_block(r->seed, tws_routing_stream(r->step, TWS_ROUTING_NOISE),
                   tws_routing_block(r->first_token + token, r->experts, expert), word);
  return -logf(-logf(tws_routing_uniform(word[expert % TWS_ROUTING_GROUP])));
}

static uint32_t random_score(const router *r, int64_t token, int64_t choice) {
  uint32_t word[4];
  tws_philox_block(r->seed, tws_routing_stream(r->step, TWS_ROUTING_KEEPS),
                   tws_routing_block(r->first_token + token, r->choices, choice), word);
  return word[choice % TWS_ROUTING_GROUP];
}

/* ---- probabilities and choices, token by token ---- */

static void softmax_row(const router *r, int64_t token) {
  float *p = r->probabilities + token * r->experts;
  vf top = v_set(-INFINITY), sum = v_zero();
  FOR_TYPE(r->call->dtype[0], T, EACH_VECTOR(e, n, 0, r->experts, {
             const vf x = v_get(T, r->logits, token * r->experts + e, n);
             v_put(TWS_F32, p, e, x, n);
             for (int i = 0; i < n; ++i) top[i] = x[i] > top[i] ? x[i] : top[i];
           }));
  const float largest = v_largest(top);
  EACH_VECTOR(e, n, 0, r->experts, {
    const vf x = v_exp(v_get(TWS_F32, p, e, n) - largest);
    v_put(TWS_F32, p, e, x, n);
    for (int i = 0; i < n; ++i) sum[i] += x[i];
  });
  const float scale = 1.0F / v_sum(sum);
  if (r->sums) r->sums[token] = largest - logf(scale);
  EACH_VECTOR(e, n, 0, r->experts, v_put(TWS_F32, p, e, v_get(TWS_F32, p, e, n) * scale, n));
}

static void sigmoid_row(const router *r, int64_t token) {
  float *p = r->probabilities + token * r->experts;
  FOR_TYPE(r->call->dtype[0], T, EACH_VECTOR(e, n, 0, r->experts, {
             const vf x = v_get(T, r->logits, token * r->experts + e, n);
             v_put(TWS_F32, p, e, 1.0F / (1.0F + v_exp(-x)), n);
           }));
}

/* Returns the score of a group: its largest score or, for sigmoids, the sum of its two largest. */
static float group_score(const router *r, const float *x, int64_t group) {
  const int64_t each = r->experts / r->groups;
  float first = x[group * each], second = each > 1 ? -INFINITY : 0;
  for (int64_t e = group * each + 1; e < (group + 1) * each; ++e) {
    const float lower = x[e] > first ? first : x[e];
    if (x[e] > first) first = x[e];
    if (lower > second) second = lower;
  }
  return r->sigmoid ? first + second : first;
}

/* Returns 1 if no expert of the group can be chosen, because enough other groups have a higher score, or an equal score
 * and a lower index. */
static int is_left_out(const router *r, const float *score, int64_t group) {
  int64_t before = 0;
  for (int64_t g = 0; g < r->groups; ++g) before += score[g] > score[group] || (score[g] == score[group] && g < group);
  return before >= r->kept_groups;
}

static void leave_groups_out(const router *r, float *x) {
  const int64_t each = r->groups > 0 ? r->experts / r->groups : 0;
  float score[TWS_ROUTING_GROUPS];
  for (int64_t g = 0; g < r->groups; ++g) score[g] = group_score(r, x, g);
  for (int64_t g = 0; g < r->groups; ++g)
    for (int64_t e = g * each; e < (g + 1) * each && is_left_out(r, score, g); ++e) x[e] = -INFINITY;
}

static int is_chosen(const int32_t *routes, int64_t choices, int64_t expert) {
  for (int64_t c = 0; c < choices; ++c)
    if (routes[c] == tws_route_dropped(expert)) return 1;
  return 0;
}

/* Writes the chosen experts as routes, all marked as dropped. The array of probabilities temporarily holds their
 * scores: the logits, or, if a bias is added or sigmoids are compared by groups, the probabilities plus the bias. */
static void choose_experts(const router *r, int64_t token) {
  int32_t *routes = r->routes + token * r->choices;
  float *scores = r->probabilities + token * r->experts;
  if (r->sigmoid && (r->groups > 0 || r->bias))
    sigmoid_row(r, token);
  else if (r->bias)
    softmax_row(r, token);
  else
    FOR_TYPE(
        r->call->dtype[0], T,
        EACH_VECTOR(e, n, 0, r->experts, v_put(TWS_F32, scores, e, v_get(T, r->logits, token * r->experts + e, n), n)));
  for (int64_t e = 0; r->bias && e < r->experts; ++e) scores[e] += r->bias[e];
  leave_groups_out(r, scores);
  for (int64_t c = 0; c < r->choices; ++c) {
    const int noisy = r->sampled > 0 && c + 1 >= r->sampled;
    int64_t best = -1;
    float largest = 0;
    for (int64_t e = 0; e < r->experts; ++e) {
      const float x = scores[e] + (noisy ? noise(r, token, e) : 0);
      if ((best >= 0 && !(x > largest)) || is_chosen(routes, c, e)) continue;
      best = e;
      largest = x;
    }
    routes[c] = tws_route_dropped(best);
  }
}

static void choose_task(void *arg, int thread, int threads) {
  const router *r = arg;
  const host_range range = share(r->tokens, 1, thread, threads);
  for (int64_t t = range.begin; t < range.end; ++t) {
    choose_experts(r, t);
    if (r->sigmoid)
      sigmoid_row(r, t);
    else
      softmax_row(r, t);
    for (int64_t i = t * r->choices; i < (t + 1) * r->choices; ++i)
      r->weights[i] = r->probabilities[t * r->experts + (-1 - r->routes[i])];
  }
}

/* ---- slots, expert by expert ---- */

/* Returns the sort key of a route: non-negative floats compare as their bits do. */
static uint32_t score(const router *r, int64_t at) {
  uint32_t bits;
  if (r->keeps == TWS_KEEPS_RANDOM) return random_score(r, at / r->choices, at % r->choices);
  memcpy(&bits, &r->weights[at], sizeof bits);
  return bits;
}

static int64_t count_above(const router *r, int32_t mine, uint32_t least) {
  int64_t count = 0;
  for (int64_t i = 0; i < r->tokens * r->choices; ++i) count += r->routes[i] == mine && score(r, i) >= least;
  return count;
}

/* Returns the score of the last route that is kept, and sets *ties to the number of kept routes with exactly that
 * score. */
static uint32_t last_score(const router *r, int32_t mine, int64_t *ties) {
  uint32_t found = 0;
  for (uint32_t bit = 1U << 31; bit; bit >>= 1)
    if (count_above(r, mine, found | bit) >= r->capacity) found |= bit;
  *ties = r->capacity - (found == UINT32_MAX ? 0 : count_above(r, mine, found + 1));
  return found;
}

/* Fills the slots of an expert. Routes to other experts are marked so that they never compare equal. */
static void fill_slots(const router *r, int64_t expert) {
  const int32_t mine = tws_route_dropped(expert);
  int32_t *counts = r->counts + expert * TWS_EXPERT_COUNTS;
  int64_t routed = 0, first = 0, place = 0, ties = 0;
  for (int64_t t = 0; t < r->tokens; ++t)
    for (int64_t c = 0; c < r->choices; ++c) {
      routed += r->routes[t * r->choices + c] == mine;
      first += c == 0 && r->routes[t * r->choices + c] == mine;
    }
  const int selects = r->keeps != TWS_KEEPS_FIRST && routed > r->capacity;
  const uint32_t last = selects ? last_score(r, mine, &ties) : 0;
  const int64_t passes = r->by_choice ? r->choices : 1, step = r->by_choice ? r->choices : 1;
  for (int64_t pass = 0; pass < passes; ++pass)
    for (int64_t i = pass; i < r->tokens * r->choices && place < r->capacity; i += step) {
      if (r->routes[i] != mine) continue;
      const uint32_t s = selects ? score(r, i) : 0;
      if (selects && (s < last || (s == last && ties-- <= 0))) continue;
      r->routes[i] = (int32_t)(expert * r->capacity + place++);
    }
  counts[TWS_COUNT_FILLED] = (int32_t)place;
  counts[TWS_COUNT_ROUTED] = (int32_t)routed;
  counts[TWS_COUNT_BALANCED] = (int32_t)(r->by_choice ? first : routed);
}

/* Fills the slots of all experts in one pass, if the first routes to each expert are kept. */
static void fill_first(const router *r) {
  memset(r->counts, 0, sizeof *r->counts * (size_t)(r->experts * TWS_EXPERT_COUNTS));
  const int64_t outer = r->by_choice ? r->choices : r->tokens, inner = r->by_choice ? r->tokens : r->choices;
  for (int64_t i = 0; i < outer; ++i)
    for (int64_t j = 0; j < inner; ++j) {
      const int64_t choice = r->by_choice ? i : j;
      int32_t *route = &r->routes[(r->by_choice ? j : i) * r->choices + choice];
      const int32_t expert = -1 - *route;
      int32_t *counts = r->counts + expert * TWS_EXPERT_COUNTS;
      if (counts[TWS_COUNT_FILLED] < r->capacity) *route = (int32_t)(expert * r->capacity) + counts[TWS_COUNT_FILLED]++;
      counts[TWS_COUNT_ROUTED]++;
      counts[TWS_COUNT_BALANCED] += !r->by_choice || choice == 0;
    }
}

/* Assigns slots in packs, so that no route is dropped. All counts are complete before a slot is assigned. */
static tws_code fill_packs(const router *r, tws_error *err) {
  memset(r->counts, 0, sizeof *r->counts * (size_t)(r->experts * TWS_EXPERT_COUNTS));
  for (int64_t i = 0; i < r->tokens * r->choices; ++i) {
    int32_t *counts = r->counts + (-1 - r->routes[i]) * TWS_EXPERT_COUNTS;
    counts[TWS_COUNT_ROUTED]++;
    counts[TWS_COUNT_BALANCED] += !r->by_choice || i % r->choices == 0;
  }
  for (int64_t pack = 0; pack < r->experts; pack += r->shared) {
    int64_t rows = 0, most = pack;
    for (int64_t e = pack; e < pack + r->shared; ++e) {
      const int32_t *counts = r->counts + e * TWS_EXPERT_COUNTS;
      if (counts[TWS_COUNT_ROUTED] > r->counts[most * TWS_EXPERT_COUNTS + TWS_COUNT_ROUTED]) most = e;
      rows += counts[TWS_COUNT_ROUTED];
    }
    if (rows > r->shared * r->capacity)
      return tws_fail(err, TWS_RANK, "raise twinspeed.expert_bound, or balance the experts",
                      "experts %lld to %lld of this layer get %lld rows, expert %lld of them %d, and their buffer has "
                      "%lld",
                      (long long)pack, (long long)(pack + r->shared - 1), (long long)rows, (long long)most,
                      (int)r->counts[most * TWS_EXPERT_COUNTS + TWS_COUNT_ROUTED],
                      (long long)(r->shared * r->capacity));
    int64_t slot = pack * r->capacity;
    for (int64_t e = pack; e < pack + r->shared; ++e) { /* FILLED temporarily holds the index of the next slot */
      int32_t *counts = r->counts + e * TWS_EXPERT_COUNTS;
      counts[TWS_COUNT_FILLED] = (int32_t)slot;
      slot += counts[TWS_COUNT_ROUTED];
    }
  }
  for (int64_t i = 0; i < r->tokens * r->choices; ++i)
    r->routes[i] = r->counts[(-1 - r->routes[i]) * TWS_EXPERT_COUNTS + TWS_COUNT_FILLED]++;
  for (int64_t e = 0; e < r->experts; ++e)
    r->counts[e * TWS_EXPERT_COUNTS + TWS_COUNT_FILLED] = r->counts[e * TWS_EXPERT_COUNTS + TWS_COUNT_ROUTED];
  return TWS_OK;
}

static void fill_task(void *arg, int thread, int threads) {
  const router *r = arg;
  const host_range range = share(r->experts, 1, thread, threads);
  for (int64_t e = range.begin; e < range.end; ++e) fill_slots(r, e);
}

/* ---- weights and metrics ---- */

static void weigh_task(void *arg, int thread, int threads) {
  const router *r = arg;
  const host_range range = share(r->tokens, 1, thread, threads);
  for (int64_t t = range.begin; t < range.end; ++t) {
    const int32_t *routes = r->routes + t * r->choices;
    float *weights = r->weights + t * r->choices, sum = 0;
    for (int64_t c = 0; c < r->choices; ++c) {
      if (routes[c] < 0) weights[c] = 0;
      sum += weights[c];
    }
    const float divisor = !r->renormalizes ? 1 : sum > TWS_ROUTING_LEAST ? sum : TWS_ROUTING_LEAST;
    for (int64_t c = 0; c < r->choices; ++c) weights[c] = weights[c] / divisor * r->scale;
  }
}

static void count_in_metrics(const router *r) {
  double *metrics = r->call->operand[5], *routed = r->call->operand[6], balance = 0, dropped = 0, squares = 0;
  const double tokens = (double)r->tokens;
  for (int64_t first = 0; first < r->experts; first += LANES) {
    const int64_t some = r->experts - first < LANES ? r->experts - first : LANES;
    double sum[LANES] = {0};
    for (int64_t t = 0; t < r->tokens; ++t)
      for (int64_t i = 0; i < some; ++i) sum[i] += (double)r->probabilities[t * r->experts + first + i];
    for (int64_t i = 0; i < some; ++i) {
      const int32_t *counts = r->counts + (first + i) * TWS_EXPERT_COUNTS;
      balance += sum[i] / tokens * counts[TWS_COUNT_BALANCED] / tokens;
      dropped += counts[TWS_COUNT_ROUTED] - counts[TWS_COUNT_FILLED];
      routed[first + i] += r->call->argument[4] * counts[TWS_COUNT_ROUTED];
    }
  }
  for (int64_t t = 0; r->sums && t < r->tokens; ++t) squares += (double)r->sums[t] * (double)r->sums[t];
  metrics[0] += r->call->argument[2] * (double)r->experts * balance + r->call->argument[5] * squares / tokens;
  metrics[1] += r->call->argument[3] * dropped;
}

static tws_code check_choices(const tws_work *work, tws_error *err) {
  const int64_t groups = work->d[4], kept = work->d[5];
  if (groups > 0 && (groups > TWS_ROUTING_GROUPS || work->d[1] % groups || kept < 1 || kept > groups ||
                     work->d[2] > work->d[1] / groups * kept))
    return tws_fail(err, TWS_INVALID, "let groups divide the experts, and keep groups of as many as a token chooses",
                    "%lld experts in %lld groups, of which %lld are kept", (long long)work->d[1], (long long)groups,
                    (long long)kept);
  if (work->flags & TWS_SIGMOID && work->flags & TWS_Z_LOSS)
    return tws_fail(err, TWS_INVALID, "leave one of the two out", "the z-loss is of a softmax, not of sigmoids");
  if (work->d[6] > 0 && work->d[1] % work->d[6])
    return tws_fail(err, TWS_INVALID, NULL, "%lld of %lld experts share their slots", (long long)work->d[6],
                    (long long)work->d[1]);
  if (work->d[2] <= work->d[1] && work->d[1] * work->d[3] <= INT32_MAX) return TWS_OK;
  return tws_fail(err, TWS_INVALID, "choose fewer experts a token, or give them fewer slots",
                  "%lld of %lld experts of %lld slots", (long long)work->d[2], (long long)work->d[1],
                  (long long)work->d[3]);
}

HOST_KERNEL(router) {
  TWS_TRY(check_choices(call->work, err));
  router r = router_of(call);
  run_parallel(call, 32.0 * (double)(r.tokens * r.experts), choose_task, &r);
  if (r.shared > 0)
    TWS_TRY(fill_packs(&r, err));
  else if (r.keeps == TWS_KEEPS_FIRST)
    fill_first(&r);
  else
    run_parallel(call, 8.0 * (double)(r.tokens * r.choices * r.experts), fill_task, &r);
  run_parallel(call, 8.0 * (double)(r.tokens * r.choices), weigh_task, &r);
  count_in_metrics(&r);
  return TWS_OK;
}

/* ---- gradient of the router ---- */

/* Computes one row of the gradient. z: derivative of the z-loss with respect to the logarithm of the token's sum of
 * exponentials. */
static void router_grad_row(const tws_host_call *call, int64_t token, const float *balance, float z) {
  const int64_t experts = call->work->d[1], choices = call->work->d[2];
  const float *dweights = (const float *)call->operand[0] + token * choices;
  const float *p = (const float *)call->operand[1] + token * experts;
  int32_t chosen[TWS_ROUTING_CHOICES]; /* chosen experts; -1: the route was dropped */
  const int sigmoid = (call->work->flags & TWS_SIGMOID) != 0;
  float kept = 0, common = 0, scale = (float)call->work->f[4], mean = 0;
  for (int64_t c = 0; c < choices; ++c) {
    const int32_t route = ((const int32_t *)call->operand[2])[token * choices + c];
    chosen[c] = route < 0 ? -1 : (int32_t)tws_route_expert(call->operand[3], route, call->work->d[3], call->work->d[6]);
    if (chosen[c] >= 0) kept += p[chosen[c]];
  }
  /* gradient of weights that were divided by their sum; exactly 0 for a single weight, which is always 1 */
  if (call->work->f[2] != 0) {
    scale /= kept > TWS_ROUTING_LEAST ? kept : TWS_ROUTING_LEAST;
    for (int64_t c = 0; c < choices; ++c)
      if (chosen[c] >= 0 && kept > TWS_ROUTING_LEAST) common += dweights[c] * (p[chosen[c]] / kept);
  }
  for (int64_t e = 0; e < experts; ++e) mean += p[e] * balance[e];
  for (int64_t c = 0; c < choices; ++c)
    if (chosen[c] >= 0) mean += p[chosen[c]] * (dweights[c] - common) * scale;
  mean -= z; /* the z-loss adds z times each probability to the gradient */
  FOR_TYPE(call->dtype[4], T, EACH_VECTOR(e, n, 0, experts, {
             vf slope = v_get(TWS_F32, balance, e, n) - (sigmoid ? 0 : mean);
             for (int64_t c = 0; c < choices; ++c) {
               const int64_t at = chosen[c] >= 0 ? chosen[c] - e : -1;
               if (at >= 0 && at < n) slope[at] += (dweights[c] - common) * scale;
             }
             const vf score = v_get(TWS_F32, p, e, n);
             v_put(T, call->operand[4], token * experts + e, sigmoid ? score * (1.0F - score) * slope : score * slope,
                   n);
           }));
}

typedef struct router_grad_job {
  const tws_host_call *call;
  const float *balance; /* derivative of the auxiliary loss with respect to each probability */
  const float *sums;    /* NULL without a z-loss */
  float z;              /* twice the weight of the z-loss, divided by the number of tokens */
} router_grad_job;

static void router_grad_task(void *arg, int thread, int threads) {
  const router_grad_job *job = arg;
  const host_range range = share(job->call->work->d[0], 1, thread, threads);
  for (int64_t t = range.begin; t < range.end; ++t)
    router_grad_row(job->call, t, job->balance, job->sums ? job->z * job->sums[t] : 0);
}

HOST_KERNEL(router_grad) {
  TWS_TRY(check_choices(call->work, err));
  const int64_t tokens = call->work->d[0], experts = call->work->d[1];
  const int32_t *counts = call->operand[3];
  float few[256], *balance = experts <= 256 ? few : tws_calloc((size_t)experts, sizeof *balance);
  if (!balance) return tws_fail(err, TWS_MEMORY, NULL, "host backend: no memory");
  const int scaled = (call->work->flags & TWS_SCALED) != 0;
  const double scale = scaled ? (double)((const float *)call->operand[5])[TWS_HYPER_SCALE] : 1;
  const double weight = scale * call->argument[0] * (double)experts / (double)tokens / (double)tokens;
  for (int64_t e = 0; e < experts; ++e)
    balance[e] = (float)(weight * counts[e * TWS_EXPERT_COUNTS + TWS_COUNT_BALANCED]);
  router_grad_job job = {call, balance, call->work->flags & TWS_Z_LOSS ? call->operand[5 + scaled] : NULL,
                         (float)(scale * call->argument[1] * 2 / (double)tokens)};
  run_parallel(call, 16.0 * (double)(tokens * experts), router_grad_task, &job);
  if (balance != few) tws_free(balance);
  return TWS_OK;
}

/* ---- rows ---- */

VECTOR_INLINE size_t row_bytes(const tws_host_call *call) {
  return (size_t)call->work->d[1] * (call->dtype[0] == TWS_F32 ? 4U : 2U);
}

/* Clears the slots of some experts that no route fills; they follow the filled ones. */
static void clear_slots(const tws_host_call *call, void *slots, const int32_t *counts, host_range experts) {
  const int64_t capacity = call->work->d[4], width = call->work->d[1], shared = call->work->d[5];
  for (int64_t e = experts.begin; e < experts.end; ++e) {
    const int64_t left = tws_slots_left(counts, e, capacity, shared);
    const int64_t first =
        tws_first_slot(counts, e, capacity, shared) + counts[e * TWS_EXPERT_COUNTS + TWS_COUNT_FILLED];
    if (left > 0) memset(at_mutable(call->dtype[0], slots, first * width), 0, row_bytes(call) * (size_t)left);
  }
}

static void dispatch_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const int64_t *d = call->work->d, width = d[1], choices = d[3];
  const int32_t *routes = call->operand[1];
  const host_range range = share(d[0], 1, thread, threads);
  for (int64_t i = range.begin * choices; i < range.end * choices; ++i)
    if (routes[i] >= 0)
      memcpy(at_mutable(call->dtype[0], call->operand[3], routes[i] * width),
             at(call->dtype[0], call->operand[0], i / choices * width), row_bytes(call));
  clear_slots(call, call->operand[3], call->operand[2], share(d[2], 1, thread, threads));
}
HOST_KERNEL(dispatch) {
  (void)err;
  run_parallel(call, tws_work_bytes(call->work), dispatch_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

/* Computes, for a token, the weighted sum of the slots of its routes; weights NULL: all weights are 1. */
static void gather_row(const tws_host_call *call, int64_t token, const int32_t *routes, const float *weights, void *to,
                       int adds) {
  const int64_t width = call->work->d[1], choices = call->work->d[3];
  FOR_TYPE(call->dtype[0], T, EACH_VECTOR(i, n, 0, width, {
             vf sum = adds ? v_get(T, to, token * width + i, n) : v_zero();
             for (int64_t c = 0; c < choices; ++c)
               if (routes[c] >= 0)
                 sum += v_get(T, call->operand[0], routes[c] * width + i, n) * (weights ? weights[c] : 1.0F);
             v_put(T, to, token * width + i, sum, n);
           }));
}

static void dispatch_grad_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const host_range range = share(call->work->d[0], 1, thread, threads);
  const int32_t *routes = call->operand[1];
  for (int64_t t = range.begin; t < range.end; ++t)
    gather_row(call, t, routes + t * call->work->d[3], NULL, call->operand[2],
               (call->work->flags & TWS_ACCUMULATE) != 0);
}
HOST_KERNEL(dispatch_grad) {
  (void)err;
  run_parallel(call, tws_work_bytes(call->work), dispatch_grad_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

static void combine_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const host_range range = share(call->work->d[0], 1, thread, threads);
  const int32_t *routes = call->operand[1];
  const float *weights = call->operand[2];
  for (int64_t t = range.begin; t < range.end; ++t)
    gather_row(call, t, routes + t * call->work->d[3], weights + t * call->work->d[3], call->operand[3], 0);
}
HOST_KERNEL(combine) {
  (void)err;
  run_parallel(call, tws_work_bytes(call->work), combine_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

/* Computes the gradient of a route's slot, and returns the gradient of its weight. */
static float scatter_row(const tws_host_call *call, int64_t token, int64_t slot, float weight) {
  const int64_t width = call->work->d[1];
  vf sum = v_zero();
  FOR_TYPE(call->dtype[0], T, EACH_VECTOR(i, n, 0, width, {
             const vf dy = v_get(T, call->operand[0], token * width + i, n);
             sum += dy * v_get(T, call->operand[1], slot * width + i, n);
             v_put(T, call->operand[5], slot * width + i, dy * weight, n);
           }));
  return v_sum(sum);
}

static void combine_grad_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const int64_t *d = call->work->d, choices = d[3];
  const int32_t *routes = call->operand[2];
  const float *weights = call->operand[3];
  float *dweights = call->operand[6];
  const host_range range = share(d[0], 1, thread, threads);
  for (int64_t i = range.begin * choices; i < range.end * choices; ++i)
    dweights[i] = routes[i] >= 0 ? scatter_row(call, i / choices, routes[i], weights[i]) : 0;
  clear_slots(call, call->operand[5], call->operand[4], share(d[2], 1, thread, threads));
}
HOST_KERNEL(combine_grad) {
  (void)err;
  run_parallel(call, tws_work_bytes(call->work), combine_grad_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

/* ---- biases ---- */

HOST_KERNEL(balance) {
  const int64_t experts = call->work->d[0];
  const float rate = (float)call->work->f[0];
  float *bias = call->operand[0];
  const double *routed = call->operand[1];
  double mean = 0;
  (void)err;
  for (int64_t e = 0; e < experts; ++e) mean += routed[e] / (double)experts;
  for (int64_t e = 0; e < experts; ++e) bias[e] += routed[e] < mean ? rate : routed[e] > mean ? -rate : 0;
  return TWS_OK;
}
