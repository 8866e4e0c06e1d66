// Routing of tokens to experts: the router, its gradient, and the copies of rows between tokens and slots. Experts are
// chosen for each token; then, for each expert, a block processes all its routes in order and decides which are kept
// and in which slots, so that nothing depends on timing.
#include "models/routing.h"
#include "real/cuda/kernels/common.cuh"

namespace {

struct Router {
  int64_t tokens, experts, choices, capacity, groups, kept_groups, shared, first_token;
  int keeps, by_choice, renormalizes, sampled, sigmoid;
  float scale;
  uint64_t seed;
  const float *hyper;
  const float *bias;                      // NULL: none
  float *probabilities, *weights, *sums;  // sums: NULL without a z-loss
  int32_t *routes, *counts;
  double *metrics, *routed;
  double auxiliary, share, counted, z;
};

Router router_of(const tws_cuda_call *call) {
  const int64_t *d = call->work->d;
  const double *f = call->work->f, *a = call->argument;
  Router r = {};
  r.tokens = d[0], r.experts = d[1], r.choices = d[2], r.capacity = d[3];
  r.keeps = (int)f[0], r.by_choice = f[1] != 0, r.renormalizes = f[2] != 0, r.sampled = (int)f[3];
  r.groups = d[4], r.kept_groups = d[5], r.shared = d[6], r.scale = (float)f[4],
  r.sigmoid = (call->work->flags & TWS_SIGMOID) != 0;
  r.seed = (uint64_t)a[0], r.first_token = (int64_t)a[1], r.auxiliary = a[2], r.share = a[3];
  r.counted = a[4], r.z = a[5];
  r.probabilities = out<float>(call, 1), r.routes = out<int32_t>(call, 2), r.weights = out<float>(call, 3);
  r.counts = out<int32_t>(call, 4), r.metrics = out<double>(call, 5);
  r.routed = out<double>(call, 6);
  int at = 7;
  if (r.keeps == TWS_KEEPS_RANDOM || r.sampled > 0) r.hyper = in<float>(call, at++);
  if (call->work->flags & TWS_BIAS) r.bias = in<float>(call, at++);
  if (call->work->flags & TWS_Z_LOSS) r.sums = out<float>(call, at);
  return r;
}

__device__ uint32_t random_word(const Router &r, int what, int64_t token, int64_t count, int64_t index) {
  uint32_t word[4];
  tws_philox_block(r.seed, tws_routing_stream(bits_of<uint32_t>(r.hyper[TWS_HYPER_STEP]), what),
                   tws_routing_block(r.first_token + token, count, index), word);
  return word[index % TWS_ROUTING_GROUP];
}

// ---- probabilities and choices: a warp for each token ----

// A score and its expert; larger() returns the larger of two, and of equal ones the one with the lower index; NaN is
// never larger.
struct Candidate {
  float x;
  int expert;  // -1: none
};

__device__ Candidate larger(Candidate a, Candidate b) {
  if (b.expert < 0) return a;
  if (a.expert < 0) return b;
  if (a.expert > b.expert) {
    const Candidate c = a;
    a = b, b = c;
  }
  return b.x > a.x ? b : a;
}

__device__ bool is_chosen(const int32_t *routes, int choices, int expert) {
  for (int c = 0; c < choices; ++c)
    if (routes[c] == tws_route_dropped(expert)) return true;
  return false;
}

template <typename T>
__device__ void softmax_row(const Router &r, const T *logits, float *p, float *log_sum, int lane) {
  float largest = -CUDART_INF_F, sum = 0;
  for (int e = lane; e < r.experts; e += WARP) largest = fmaxf(largest, to_float(logits[e]));
  for (int d = WARP / 2; d > 0; d /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, d));
  for (int e = lane; e < r.experts; e += WARP) sum += p[e] = expf(to_float(logits[e]) - largest);
  const float scale = 1.0F / warp_sum(sum);
  if (log_sum && lane == 0) *log_sum = largest - logf(scale);
  for (int e = lane; e < r.experts; e += WARP) p[e] *= scale;
}

template <typename T>
__device__ void sigmoid_row(const Router &r, const T *logits, float *p, int lane) {
  for (int e = lane; e < r.experts; e += WARP) p[e] = 1.0F / (1.0F + expf(-to_float(logits[e])));
}

// Returns the score of a group of experts: its largest score, or for sigmoids the sum of its two largest.
__device__ float group_score(const Router &r, const float *x, int64_t group) {
  const int64_t each = r.experts / r.groups;
  float first = x[group * each], second = each > 1 ? -CUDART_INF_F : 0;
  for (int64_t e = group * each + 1; e < (group + 1) * each; ++e) {
    second = fmaxf(second, fminf(first, x[e]));
    first = fmaxf(first, x[e]);
  }
  return r.sigmoid ? first + second : first;
}

// Excludes the experts of all groups but the `kept_groups` with the largest scores; of groups with equal scores the
// first are kept.
__device__ void leave_groups_out(const Router &r, float *x, float *score, int lane) {
  const int64_t each = r.experts / r.groups;
  for (int64_t g = lane; g < r.groups; g += WARP) score[g] = group_score(r, x, g);
  __syncwarp();
  for (int64_t e = lane; e < r.experts; e += WARP) {
    const int64_t group = e / each;
    int before = 0;
    for (int64_t g = 0; g < r.groups; ++g) before += score[g] > score[group] || (score[g] == score[group] && g < group);
    if (before >= r.kept_groups) x[e] = -CUDART_INF_F;
  }
  __syncwarp();
}

// Chooses the experts of each token. Meanwhile the array of probabilities holds their scores: the logits, or, if a bias
// is added or sigmoids are compared by groups, the probabilities plus the bias.
template <typename T>
__global__ void choose(Router r, const T *all) {
  const int lane = (int)threadIdx.x % WARP, warps = (int)blockDim.x / WARP;
  const int64_t step = (int64_t)gridDim.x * warps;
  __shared__ float scores[BLOCK / WARP][TWS_ROUTING_GROUPS];
  for (int64_t t = (int64_t)blockIdx.x * warps + threadIdx.x / WARP; t < r.tokens; t += step) {
    const T *logits = all + t * r.experts;
    float *p = r.probabilities + t * r.experts;
    int32_t *routes = r.routes + t * r.choices;
    if (r.sigmoid && (r.groups > 0 || r.bias))
      sigmoid_row(r, logits, p, lane);
    else if (r.bias)
      softmax_row(r, logits, p, (float *)NULL, lane);
    else
      for (int e = lane; e < r.experts; e += WARP) p[e] = to_float(logits[e]);
    for (int e = lane; r.bias && e < r.experts; e += WARP) p[e] += r.bias[e];
    __syncwarp();
    if (r.groups > 0) leave_groups_out(r, p, scores[threadIdx.x / WARP], lane);
    for (int c = 0; c < r.choices; ++c) {
      const bool noisy = r.sampled > 0 && c + 1 >= r.sampled;
      Candidate best = {0, -1};
      for (int e = lane; e < r.experts; e += WARP) {
        if (is_chosen(routes, c, e)) continue;
        Candidate one = {p[e], e};
        if (noisy) {
          const uint32_t word = random_word(r, TWS_ROUTING_NOISE, t, r.experts, e);
          one.x -= logf(-logf(tws_routing_uniform(word)));
        }
        best = larger(best, one);
      }
      for (int d = WARP / 2; d > 0; d /= 2) {
        Candidate other;
        other.x = __shfl_xor_sync(0xffffffffU, best.x, d);
        other.expert = __shfl_xor_sync(0xffffffffU, best.expert, d);
        best = larger(best, other);
      }
      if (lane == best.expert % WARP) routes[c] = tws_route_dropped(best.expert);
      __syncwarp();
    }
    if (r.sigmoid)
      sigmoid_row(r, logits, p, lane);
    else
      softmax_row(r, logits, p, r.sums ? r.sums + t : (float *)NULL, lane);
    __syncwarp();
    for (int c = lane; c < r.choices; c += WARP) r.weights[t * r.choices + c] = p[-1 - routes[c]];
  }
}

// ---- slots: a block for each expert ----

// Returns the sort key of an expert's route: non-negative floats are ordered as their bits are.
__device__ uint32_t score_of(const Router &r, int64_t at) {
  if (r.keeps == TWS_KEEPS_RANDOM) return random_word(r, TWS_ROUTING_KEEPS, at / r.choices, r.choices, at % r.choices);
  return bits_of<uint32_t>(r.weights[at]);
}

__device__ int count_above(const Router &r, int32_t mine, uint32_t least, int *scratch) {
  int count = 0;
  for (int64_t i = threadIdx.x; i < r.tokens * r.choices; i += blockDim.x)
    if (r.routes[i] == mine && score_of(r, i) >= least) ++count;
  return block_sum(count, scratch);
}

// Exclusive scan over the block: the number of threads before this one with `yes`; *all gets the total.
__device__ int threads_before(bool yes, int *scratch, int *all) {
  const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
  const unsigned votes = __ballot_sync(0xffffffffU, yes);
  __syncthreads();
  if (lane == 0) scratch[warp] = __popc(votes);
  __syncthreads();
  int before = __popc(votes & ((1U << lane) - 1U)), total = 0;
  for (int w = 0; w < (int)blockDim.x / WARP; ++w) {
    if (w < warp) before += scratch[w];
    total += scratch[w];
  }
  *all = total;
  return before;
}

// Runs before any slot is assigned: the slots of a pack's experts follow each other.
__global__ void count_routes(Router r) {
  __shared__ int scratch[BLOCK / WARP];
  const int64_t expert = blockIdx.x;
  int routed = 0;
  for (int64_t i = threadIdx.x; i < r.tokens * r.choices; i += blockDim.x)
    routed += r.routes[i] == tws_route_dropped(expert);
  routed = block_sum(routed, scratch);
  if (threadIdx.x == 0) r.counts[expert * TWS_EXPERT_COUNTS + TWS_COUNT_ROUTED] = routed;
}

// Assigns each expert's routes to slots. With packs an expert's slots begin after those of the previous experts in its
// pack, in the order of routes; routes that exceed the pack are dropped, which the engine reports as an error.
__global__ void fill_slots(Router r, double *mean) {
  __shared__ int scratch[BLOCK / WARP];
  __shared__ double sums[BLOCK / WARP];
  const int64_t expert = blockIdx.x, all = r.tokens * r.choices;
  const int32_t mine = tws_route_dropped(expert);
  const bool packs = r.shared > 0;
  const int64_t pack = packs ? expert - expert % r.shared : expert;
  int routed = 0, first = 0;
  int64_t ahead = 0;
  double sum = 0;
  for (int64_t i = threadIdx.x; i < all; i += blockDim.x)
    if (r.routes[i] == mine) ++routed, first += i % r.choices == 0;
  for (int64_t e = pack; e < expert; ++e) ahead += r.counts[e * TWS_EXPERT_COUNTS + TWS_COUNT_ROUTED];
  for (int64_t t = threadIdx.x; t < r.tokens; t += blockDim.x) sum += (double)r.probabilities[t * r.experts + expert];
  routed = block_sum(routed, scratch);
  first = block_sum(first, scratch);
  sum = block_sum(sum, sums);
  uint32_t last = 0;
  int ties = 0;
  const int64_t slots = packs ? r.shared * r.capacity - ahead : r.capacity, slot = pack * r.capacity + ahead;
  const bool selects = !packs && r.keeps != TWS_KEEPS_FIRST && routed > r.capacity;
  if (selects) {
    for (uint32_t bit = 1U << 31; bit; bit >>= 1)
      if (count_above(r, mine, last | bit, scratch) >= r.capacity) last |= bit;
    ties = (int)r.capacity - (last == 0xffffffffU ? 0 : count_above(r, mine, last + 1, scratch));
  }
  const int64_t passes = r.by_choice && !packs ? r.choices : 1, stride = passes, steps = all / stride;
  int64_t place = 0;
  for (int64_t pass = 0; pass < passes; ++pass)
    for (int64_t base = 0; base < steps && place < slots; base += blockDim.x) {
      const int64_t at = (base + threadIdx.x) * stride + pass;
      int some = 0;
      bool kept = base + threadIdx.x < steps && r.routes[at] == mine;
      if (selects) {
        const uint32_t score = kept ? score_of(r, at) : 0;
        const bool tied = kept && score == last;
        const int before = threads_before(tied, scratch, &some);
        kept = kept && (score > last || (tied && before < ties));
        ties -= some;
      }
      const int before = threads_before(kept, scratch, &some);
      if (kept && place + before < slots) r.routes[at] = (int32_t)(slot + place + before);
      place += some;
    }
  if (threadIdx.x != 0) return;
  int32_t *counts = r.counts + expert * TWS_EXPERT_COUNTS;
  counts[TWS_COUNT_FILLED] = (int32_t)(place < slots ? place : slots > 0 ? slots : 0);
  if (!packs) counts[TWS_COUNT_ROUTED] = routed;
  counts[TWS_COUNT_BALANCED] = r.by_choice ? first : routed;
  mean[expert] = sum / (double)r.tokens;
}

// ---- weights and metrics ----

__global__ void weigh(Router r) {
  const int64_t step = (int64_t)gridDim.x * blockDim.x;
  for (int64_t t = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; t < r.tokens; t += step) {
    const int32_t *routes = r.routes + t * r.choices;
    float *weights = r.weights + t * r.choices, sum = 0;
    for (int c = 0; c < r.choices; ++c) {
      if (routes[c] < 0) weights[c] = 0;
      sum += weights[c];
    }
    const float divisor = !r.renormalizes ? 1.0F : sum > TWS_ROUTING_LEAST ? sum : TWS_ROUTING_LEAST;
    for (int c = 0; c < r.choices; ++c) weights[c] = weights[c] / divisor * r.scale;
  }
}

__global__ void count_in_metrics(Router r, const double *mean) {
  __shared__ double scratch[BLOCK / WARP];
  double balance = 0, dropped = 0;
  for (int64_t e = threadIdx.x; e < r.experts; e += blockDim.x) {
    const int32_t *counts = r.counts + e * TWS_EXPERT_COUNTS;
    r.routed[e] += r.counted * counts[TWS_COUNT_ROUTED];
    balance += mean[e] * counts[TWS_COUNT_BALANCED] / (double)r.tokens;
    dropped += counts[TWS_COUNT_ROUTED] - counts[TWS_COUNT_FILLED];
  }
  double squares = 0;
  for (int64_t t = threadIdx.x; r.sums && t < r.tokens; t += blockDim.x)
    squares += (double)r.sums[t] * (double)r.sums[t];
  balance = block_sum(balance, scratch);
  dropped = block_sum(dropped, scratch);
  squares = block_sum(squares, scratch);
  if (threadIdx.x != 0) return;
  r.metrics[0] += r.auxiliary * (double)r.experts * balance + r.z * squares / (double)r.tokens;
  r.metrics[1] += r.share * dropped;
}

tws_code check_choices(const tws_cuda_call *call, tws_error *err) {
  const int64_t *d = call->work->d;
  if (d[4] > 0 && (d[4] > TWS_ROUTING_GROUPS || d[1] % d[4] || d[5] < 1 || d[5] > d[4] || d[2] > d[1] / d[4] * d[5]))
    return tws_fail(err, TWS_INVALID, "let groups divide the experts, and keep groups of as many as a token chooses",
                    "%lld experts in %lld groups, of which %lld are kept", (long long)d[1], (long long)d[4],
                    (long long)d[5]);
  if (call->work->flags & TWS_SIGMOID && call->work->flags & TWS_Z_LOSS)
    return tws_fail(err, TWS_INVALID, "leave one of the two out", "the z-loss is of a softmax, not of sigmoids");
  if (d[6] > 0 && d[1] % d[6])
    return tws_fail(err, TWS_INVALID, NULL, "%lld of %lld experts share their slots", (long long)d[6], (long long)d[1]);
  if (d[2] <= d[1] && d[1] * d[3] <= INT32_MAX && (size_t)d[1] * sizeof(double) <= call->scratch_bytes) return TWS_OK;
  return tws_fail(err, TWS_INVALID, "choose fewer experts a token, or give them fewer slots",
                  "%lld of %lld experts of %lld slots", (long long)d[2], (long long)d[1], (long long)d[3]);
}

// ---- the router's gradient: a warp for each token ----

struct RouterGrad {
  int64_t tokens, experts, choices, capacity, shared;
  int renormalizes, sigmoid;
  float scale;
  const float *dweights, *probabilities, *hyper, *sums;
  const int32_t *routes, *counts;
  double auxiliary, z;
};

template <typename T>
__global__ void router_grad(RouterGrad g, T *dlogits) {
  const int lane = (int)threadIdx.x % WARP, warps = (int)blockDim.x / WARP;
  const int64_t step = (int64_t)gridDim.x * warps;
  const double loss_scale = g.hyper ? (double)g.hyper[TWS_HYPER_SCALE] : 1.0;
  const double weight = g.auxiliary * (double)g.experts / (double)g.tokens / (double)g.tokens * loss_scale;
  const float z = (float)(loss_scale * g.z * 2 / (double)g.tokens);
  for (int64_t t = (int64_t)blockIdx.x * warps + threadIdx.x / WARP; t < g.tokens; t += step) {
    const float *p = g.probabilities + t * g.experts, *dweights = g.dweights + t * g.choices;
    int chosen_by[TWS_ROUTING_CHOICES];  // experts; -1: dropped
    for (int c = 0; c < g.choices; ++c) {
      const int32_t route = g.routes[t * g.choices + c];
      chosen_by[c] = route < 0 ? -1 : (int)tws_route_expert(g.counts, route, g.capacity, g.shared);
    }
    float kept = 0, common = 0, scale = g.scale, mean = 0, chosen = 0;
    for (int c = 0; c < g.choices; ++c)
      if (chosen_by[c] >= 0) kept += p[chosen_by[c]];
    if (g.renormalizes) {  // the gradient of weights that were divided by their sum
      scale /= kept > TWS_ROUTING_LEAST ? kept : TWS_ROUTING_LEAST;
      for (int c = 0; c < g.choices; ++c)
        if (chosen_by[c] >= 0 && kept > TWS_ROUTING_LEAST) common += dweights[c] * (p[chosen_by[c]] / kept);
    }
    for (int c = 0; c < g.choices; ++c)
      if (chosen_by[c] >= 0) chosen += p[chosen_by[c]] * (dweights[c] - common) * scale;
    for (int e = lane; e < g.experts; e += WARP)
      mean += p[e] * (float)(weight * g.counts[e * TWS_EXPERT_COUNTS + TWS_COUNT_BALANCED]);
    mean = warp_sum(mean) + chosen - (g.sums ? z * g.sums[t] : 0.0F);
    for (int e = lane; e < g.experts; e += WARP) {
      float slope = (float)(weight * g.counts[e * TWS_EXPERT_COUNTS + TWS_COUNT_BALANCED]) - (g.sigmoid ? 0 : mean);
      for (int c = 0; c < g.choices; ++c)
        if (chosen_by[c] == e) slope += (dweights[c] - common) * scale;
      dlogits[t * g.experts + e] = from_float<T>(p[e] * slope * (g.sigmoid ? 1 - p[e] : 1));
    }
  }
}

// ---- rows ----

struct Rows {
  int64_t tokens, width, experts, choices, capacity, shared;
  const int32_t *routes, *counts;
};

// Returns true if no route fills the slot.
__device__ bool is_empty(const Rows &r, int64_t slot) {
  const int64_t shared = r.shared > 1 ? r.shared : 1, slots = shared * r.capacity, pack = slot / slots * shared;
  int64_t filled = 0;
  for (int64_t e = pack; e < pack + shared; ++e) filled += r.counts[e * TWS_EXPERT_COUNTS + TWS_COUNT_FILLED];
  return slot % slots >= filled;
}

Rows rows_of(const tws_cuda_call *call) {
  const int64_t *d = call->work->d;
  return {d[0], d[1], d[2], d[3], d[4], d[5], NULL, NULL};
}

template <int V, typename T>
__device__ void clear_row(const Rows &r, T *row) {
  const float zeros[V] = {};
  for (int64_t i = (int64_t)threadIdx.x * V; i < r.width; i += (int64_t)blockDim.x * V) store(row + i, zeros);
}

// Copies tokens to the slots of their routes: a block below `routes` copies the row of one route; each following block
// clears one slot if no route fills it.
template <int V, typename T>
__global__ void dispatch(Rows r, const T *x, T *slots) {
  const int64_t routes = r.tokens * r.choices, all = routes + r.experts * r.capacity;
  for (int64_t b = blockIdx.x; b < all; b += gridDim.x) {
    if (b >= routes) {
      const int64_t slot = b - routes;
      if (is_empty(r, slot)) clear_row<V>(r, slots + slot * r.width);
    } else if (r.routes[b] >= 0) {
      const Pack<T, V> *from = reinterpret_cast<const Pack<T, V> *>(x + b / r.choices * r.width);
      Pack<T, V> *to = reinterpret_cast<Pack<T, V> *>(slots + r.routes[b] * r.width);
      for (int64_t i = threadIdx.x; i < r.width / V; i += blockDim.x) to[i] = from[i];
    }
  }
}

// Computes, for each token, the weighted sum of the slots of its routes; weights NULL: all weights are 1.
template <int V, typename T>
__global__ void gather(Rows r, const T *slots, const float *weights, T *y, int adds) {
  for (int64_t t = blockIdx.x; t < r.tokens; t += gridDim.x)
    for (int64_t i = (int64_t)threadIdx.x * V; i < r.width; i += (int64_t)blockDim.x * V) {
      float sum[V] = {}, row[V];
      if (adds) load(y + t * r.width + i, sum);
      for (int64_t c = t * r.choices; c < (t + 1) * r.choices; ++c) {
        if (r.routes[c] < 0) continue;
        const float weight = weights ? weights[c] : 1.0F;
        load(slots + r.routes[c] * r.width + i, row);
#pragma unroll
        for (int j = 0; j < V; ++j) sum[j] += row[j] * weight;
      }
      store(y + t * r.width + i, sum);
    }
}

template <int V, typename T>
__global__ void combine_grad(Rows r, const T *dy, const T *slots, const float *weights, T *dslots, float *dweights) {
  __shared__ float scratch[BLOCK / WARP];
  const int64_t routes = r.tokens * r.choices, all = routes + r.experts * r.capacity;
  for (int64_t b = blockIdx.x; b < all; b += gridDim.x) {
    if (b >= routes) {
      const int64_t slot = b - routes;
      if (is_empty(r, slot)) clear_row<V>(r, dslots + slot * r.width);
      continue;
    }
    const int64_t route = r.routes[b];
    float sum = 0;
    for (int64_t i = (int64_t)threadIdx.x * V; route >= 0 && i < r.width; i += (int64_t)blockDim.x * V) {
      float g[V], z[V];
      load(dy + b / r.choices * r.width + i, g);
      load(slots + route * r.width + i, z);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        sum += g[j] * z[j];
        g[j] *= weights[b];
      }
      store(dslots + route * r.width + i, g);
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) dweights[b] = sum;
  }
}

// Returns true if rows at all these addresses can be accessed in packs of 16 bytes.
template <typename T, typename... Addresses>
bool in_packs(int64_t width, Addresses... address) {
  return (packable<Width<T>::value>(address, width) && ...);
}

}  // namespace

tws_code tws_cuda_router(const tws_cuda_call *call, tws_error *err) {
  const Router r = router_of(call);
  double *mean = static_cast<double *>(call->scratch);
  TWS_TRY(check_choices(call, err));
  FOR_TYPE(call->dtype[0], T,
           LAUNCH(choose<T>, grid_for(call, r.tokens, BLOCK / WARP), BLOCK, 0, call, r, in<T>(call, 0)));
  TWS_TRY(launched(err));
  if (r.shared > 0) {
    LAUNCH(count_routes, (unsigned)r.experts, BLOCK, 0, call, r);
    TWS_TRY(launched(err));
  }
  LAUNCH(fill_slots, (unsigned)r.experts, BLOCK, 0, call, r, mean);
  TWS_TRY(launched(err));
  LAUNCH(weigh, grid_for(call, r.tokens, BLOCK), BLOCK, 0, call, r);
  TWS_TRY(launched(err));
  LAUNCH(count_in_metrics, 1, BLOCK, 0, call, r, mean);
  return launched(err);
}

tws_code tws_cuda_router_grad(const tws_cuda_call *call, tws_error *err) {
  const int64_t *d = call->work->d;
  RouterGrad g = {};
  TWS_TRY(check_choices(call, err));
  g.tokens = d[0], g.experts = d[1], g.choices = d[2], g.capacity = d[3];
  g.scale = (float)call->work->f[4], g.sigmoid = (call->work->flags & TWS_SIGMOID) != 0;
  g.renormalizes = call->work->f[2] != 0, g.auxiliary = call->argument[0], g.z = call->argument[1], g.shared = d[6];
  g.dweights = in<float>(call, 0), g.probabilities = in<float>(call, 1);
  g.routes = in<int32_t>(call, 2), g.counts = in<int32_t>(call, 3);
  g.hyper = call->work->flags & TWS_SCALED ? in<float>(call, 5) : NULL;
  g.sums = call->work->flags & TWS_Z_LOSS ? in<float>(call, g.hyper ? 6 : 5) : NULL;
  FOR_TYPE(call->dtype[4], T,
           LAUNCH(router_grad<T>, grid_for(call, g.tokens, BLOCK / WARP), BLOCK, 0, call, g, out<T>(call, 4)));
  return launched(err);
}

tws_code tws_cuda_dispatch(const tws_cuda_call *call, tws_error *err) {
  Rows r = rows_of(call);
  r.routes = in<int32_t>(call, 1), r.counts = in<int32_t>(call, 2);
  const unsigned grid = grid_for(call, r.tokens * r.choices + r.experts * r.capacity, 1);
  FOR_TYPE(call->dtype[0], T, {
    const T *x = in<T>(call, 0);
    T *slots = out<T>(call, 3);
    if (in_packs<T>(r.width, x, slots))
      LAUNCH((dispatch<Width<T>::value, T>), grid, BLOCK, 0, call, r, x, slots);
    else
      LAUNCH((dispatch<1, T>), grid, BLOCK, 0, call, r, x, slots);
  });
  return launched(err);
}

namespace {

tws_code run_gather(const tws_cuda_call *call, const float *weights, int y_operand, tws_error *err) {
  Rows r = rows_of(call);
  r.routes = in<int32_t>(call, 1);
  const unsigned grid = grid_for(call, r.tokens, 1);
  const int adds = (call->work->flags & TWS_ACCUMULATE) != 0;
  FOR_TYPE(call->dtype[0], T, {
    const T *slots = in<T>(call, 0);
    T *y = out<T>(call, y_operand);
    if (in_packs<T>(r.width, slots, y))
      LAUNCH((gather<Width<T>::value, T>), grid, BLOCK, 0, call, r, slots, weights, y, adds);
    else
      LAUNCH((gather<1, T>), grid, BLOCK, 0, call, r, slots, weights, y, adds);
  });
  return launched(err);
}

}  // namespace

tws_code tws_cuda_dispatch_grad(const tws_cuda_call *call, tws_error *err) {
  return run_gather(call, NULL, 2, err);
}

tws_code tws_cuda_combine(const tws_cuda_call *call, tws_error *err) {
  return run_gather(call, in<float>(call, 2), 3, err);
}

tws_code tws_cuda_combine_grad(const tws_cuda_call *call, tws_error *err) {
  Rows r = rows_of(call);
  r.routes = in<int32_t>(call, 2), r.counts = in<int32_t>(call, 4);
  const float *weights = in<float>(call, 3);
  float *dweights = out<float>(call, 6);
  const unsigned grid = grid_for(call, r.tokens * r.choices + r.experts * r.capacity, 1);
  FOR_TYPE(call->dtype[0], T, {
    const T *dy = in<T>(call, 0), *slots = in<T>(call, 1);
    T *dslots = out<T>(call, 5);
    if (in_packs<T>(r.width, dy, slots, dslots))
      LAUNCH((combine_grad<Width<T>::value, T>), grid, BLOCK, 0, call, r, dy, slots, weights, dslots, dweights);
    else
      LAUNCH((combine_grad<1, T>), grid, BLOCK, 0, call, r, dy, slots, weights, dslots, dweights);
  });
  return launched(err);
}

// ---- gates ----

namespace {

struct Gates {
  int64_t rows, width, gates;
  float sign;
};

template <typename T>
__device__ float gate_share(const Gates &g, const T *gates, int64_t row) {
  float x = to_float(gates[row * g.gates]);
  if (g.gates > 1) x -= to_float(gates[row * g.gates + 1]);
  return 1.0F / (1.0F + expf(-g.sign * x));
}

// A block for each row.
template <int V, typename T>
__global__ void gate(Gates g, const T *x, const T *gates, T *y) {
  for (int64_t t = blockIdx.x; t < g.rows; t += gridDim.x) {
    const float share = gate_share(g, gates, t);
    for (int64_t i = (int64_t)threadIdx.x * V; i < g.width; i += (int64_t)blockDim.x * V) {
      float row[V];
      load(x + t * g.width + i, row);
#pragma unroll
      for (int j = 0; j < V; ++j) row[j] *= share;
      store(y + t * g.width + i, row);
    }
  }
}

template <int V, typename T>
__global__ void gate_grad(Gates g, const T *dy, const T *x, const T *gates, T *dx, T *dgates) {
  __shared__ float scratch[BLOCK / WARP];
  for (int64_t t = blockIdx.x; t < g.rows; t += gridDim.x) {
    const float share = gate_share(g, gates, t);
    float sum = 0;
    for (int64_t i = (int64_t)threadIdx.x * V; i < g.width; i += (int64_t)blockDim.x * V) {
      float row[V], slope[V];
      load(x + t * g.width + i, row);
      load(dy + t * g.width + i, slope);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        sum += row[j] * slope[j];
        slope[j] *= share;
      }
      store(dx + t * g.width + i, slope);
    }
    sum = block_sum(sum, scratch) * share * (1.0F - share) * g.sign;
    if (threadIdx.x < g.gates) dgates[t * g.gates + threadIdx.x] = from_float<T>(threadIdx.x ? -sum : sum);
  }
}

Gates gates_of(const tws_cuda_call *call) {
  const int64_t *d = call->work->d;
  return {d[0], d[1], d[2], call->work->f[0] != 0 ? -1.0F : 1.0F};
}

}  // namespace

tws_code tws_cuda_gate(const tws_cuda_call *call, tws_error *err) {
  const Gates g = gates_of(call);
  const unsigned grid = grid_for(call, g.rows, 1);
  FOR_TYPE(call->dtype[0], T, {
    const T *x = in<T>(call, 0);
    T *y = out<T>(call, 2);
    if (in_packs<T>(g.width, x, y))
      LAUNCH((gate<Width<T>::value, T>), grid, BLOCK, 0, call, g, x, in<T>(call, 1), y);
    else
      LAUNCH((gate<1, T>), grid, BLOCK, 0, call, g, x, in<T>(call, 1), y);
  });
  return launched(err);
}

tws_code tws_cuda_gate_grad(const tws_cuda_call *call, tws_error *err) {
  const Gates g = gates_of(call);
  const unsigned grid = grid_for(call, g.rows, 1);
  FOR_TYPE(call->dtype[0], T, {
    const T *dy = in<T>(call, 0), *x = in<T>(call, 1);
    T *dx = out<T>(call, 3);
    if (in_packs<T>(g.width, dy, x, dx))
      LAUNCH((gate_grad<Width<T>::value, T>), grid, BLOCK, 0, call, g, dy, x, in<T>(call, 2), dx, out<T>(call, 4));
    else
      LAUNCH((gate_grad<1, T>), grid, BLOCK, 0, call, g, dy, x, in<T>(call, 2), dx, out<T>(call, 4));
  });
  return launched(err);
}

// ---- biases of experts ----

namespace {

__global__ void balance(float *bias, const double *routed, int64_t experts, float rate) {
  __shared__ double scratch[BLOCK / WARP];
  double sum = 0;
  for (int64_t e = threadIdx.x; e < experts; e += blockDim.x) sum += routed[e];
  const double mean = block_sum(sum, scratch) / (double)experts;
  for (int64_t e = threadIdx.x; e < experts; e += blockDim.x)
    bias[e] += routed[e] < mean ? rate : routed[e] > mean ? -rate : 0.0F;
}

}  // namespace

tws_code tws_cuda_balance(const tws_cuda_call *call, tws_error *err) {
  LAUNCH(balance, 1, BLOCK, 0, call, out<float>(call, 0), in<double>(call, 1), call->work->d[0],
         (float)call->work->f[0]);
  return launched(err);
}
