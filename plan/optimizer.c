/* Lowers the optimizer phase: gradient norm, clipping, the update of the elements that this rank updates, and the
 * gathering of updated parameters. All scalars are in the plan's buffers of hyperparameters and metrics, so that no
 * operation needs a value from the host. */
#include <string.h>

#include "models/operator.h"
#include "plan/adafactor.h"
#include "plan/compressed.h"
#include "plan/eight_bit.h"
#include "plan/muon.h"
#include "plan/offload.h"
#include "plan/onebit_lamb.h"
#include "plan/turns.h"
#include "plan/zenflow.h"
#include "plan/zero.h"
#include "plan/zero_partition.h"

static void share_slots(tws_lower *l, uint32_t group, uint64_t first, uint64_t count) {
  if (group == TWS_NONE) return;
  tws_operand operand = tws_update(l->b.plan->metrics, first, count);
  tws_builder_collective(&l->b, TWS_STREAM_COMPUTE, TWS_COLLECTIVE_ALL_REDUCE, group, TWS_F64, count * sizeof(double),
                         1, 0, &operand, 1);
}

/* Emits the reductions of a network's several losses over a group. Among pipeline stages the counts of ignored targets
 * are reduced too, since only the last stage has them; among replicas they have been reduced before. In a turn, only
 * the turn's losses are reduced. */
static void share_heads(tws_lower *l, uint32_t group) {
  const tws_network *network = l->b.plan->network;
  const uint64_t losses = tws_network_losses(l->b.plan->network);
  if (losses < 2) return;
  if (group == l->group[TWS_AXIS_PIPE]) {
    share_slots(l, group, TWS_METRIC_HEADS, 2 * losses);
    return;
  }
  for (const tws_module *m = network->modules; m < network->modules + network->module_count; m++)
    if (m->type == TWS_MODULE_LOSS && (l->extent.evaluates || m->forward_turn == l->pipeline.turn))
      share_slots(l, group, tws_loss_slot(network, m), 1);
}

void tws_lower_count_targets(tws_lower *l) {
  if (tws_network_losses(l->b.plan->network) < 2) return;
  for (int c = 0; c < l->pipeline.chunk_count; c++)
    for (uint32_t i = l->pipeline.chunks[c].first; i < l->pipeline.chunks[c].end; i++) {
      const tws_module *m = &l->network->modules[i];
      const int constant = m->input[0] != TWS_NONE && l->network->input[m->input[0]].content == TWS_INPUT_CONSTANT;
      if (m->type != TWS_MODULE_LOSS || constant) continue; /* no constant target is ignored */
      const uint64_t slot = tws_loss_slot(l->network, m) + 1;
      tws_work work = tws_kernel_work(TWS_KERNEL_COUNT_IGNORED, TWS_F32, 0);
      const tws_operand operands[2] = {tws_all(&l->b, l->b.plan->input[m->input[0]], TWS_READ),
                                       tws_update(l->b.plan->metrics, slot, 1)};
      work.d[0] = (int64_t)operands[0].count;
      tws_builder_compute_with(&l->b, TWS_STREAM_COMPUTE, &work, &(tws_arguments){{tws_loss_weight(l, m)}}, operands,
                               2);
      if (l->zero.ranks > 1) share_slots(l, l->zero.group, slot, 1);
    }
}

/* Emits the reductions of metrics over a group: of the first `count` of loss, ignored tokens and sum of squares, in
 * this order; and of the counts of routers. */
static void share_among(tws_lower *l, uint32_t group, uint64_t count) {
  uint64_t experts;
  share_slots(l, group, TWS_METRIC_LOSS, count);
  share_heads(l, group);
  if (tws_routers(l->b.plan->network, TWS_NONE, &experts) > 0) share_slots(l, group, TWS_METRIC_AUXILIARY, 2 + experts);
}

/* Returns 1 if every data rank has the whole gradient after it was reduced, so that data ranks do not reduce sums of
 * squares. */
static int has_all_squares(const tws_lower *l) {
  return l->zero.stage == 0 && l->zero.trained_count == 1 && !tws_gradients_stay_local(l);
}

/* Reduces the metrics over all groups of ranks: loss, ignored tokens, sum of squares. */
static void share_metrics(tws_lower *l) {
  if (l->zero.ranks > 1) share_among(l, l->zero.group, has_all_squares(l) ? 2 : 3);
  share_among(l, l->group[TWS_AXIS_PIPE], 3);
  share_among(l, l->group[TWS_AXIS_MODEL], 3);
}

/* Returns 1 if a parameter is split among tensor-parallel ranks. */
static int is_part(const tws_lower *l, uint32_t param) {
  return tws_placed_is_split((tws_placed)l->local.params[param].on[TWS_AXIS_MODEL]);
}

/* Returns the number of ranks that hold equal copies of a gradient: stages with a tied parameter, tensor-parallel
 * ranks, replicas at stage 0, groups that each have all partitions. Each rank counts 1 / copies of the squares. If
 * gradients stay local, replicas hold no copies. */
static int copies_of(const tws_lower *l, uint32_t param) {
  const int reduced = l->zero.stage == 0 && !has_all_squares(l) && !tws_gradients_stay_local(l);
  const int replicas = reduced ? tws_zero_class_of(&l->zero, param)->ranks : l->zero.groups.copies;
  return replicas * (l->pipeline.param_stages[param] ? l->pipeline.param_stages[param] : 1) *
         (!is_part(l, param) ? l->sharding.position.ranks[TWS_AXIS_MODEL] : 1);
}

static void add_squares_of(tws_lower *l, int copies, tws_operand gradients) {
  tws_work work = tws_kernel_work(TWS_KERNEL_SQUARED_NORM, l->config->accumulation_dtype, 0);
  work.d[0] = (int64_t)gradients.count;
  const int host = tws_offload_is_on_host(l, gradients.buffer);
  tws_operand norm[2] = {gradients, tws_update(host ? l->offload.metrics : l->b.plan->metrics, TWS_METRIC_SQUARES, 1)};
  /* A local gradient is divided by the number of ranks. Multiplied by ranks^2, its squares are those of the rank's own
   * gradient; divided by ranks, they are the rank's share of the mean over all ranks. */
  const double factor = tws_gradients_stay_local(l) ? l->zero.ranks : 1;
  tws_builder_compute_with(&l->b, host ? TWS_STREAM_HOST : TWS_STREAM_COMPUTE, &work,
                           &(tws_arguments){{factor / copies}}, norm, 2);
}

static void add_squares(tws_lower *l, int copies, uint64_t first, uint64_t count, int on_host) {
  tws_operand parts[2];
  if (l->b.failed != TWS_OK) return;
  int n = 1;
  if (l->zero.flat_gradients || !tws_offload_copies_buckets(l))
    parts[0] = tws_read(l->b.plan->gradients, first, count);
  else
    n = tws_offload_kept(l, first, count, parts);
  for (int i = 0; i < n; i++)
    if (tws_offload_is_on_host(l, parts[i].buffer) == on_host) add_squares_of(l, copies, parts[i]);
}

static void add_squares_on_device(tws_lower *l, int copies, uint64_t first, uint64_t count) {
  add_squares(l, copies, first, count, 0);
}

static void add_squares_on_host(tws_lower *l, int copies, uint64_t first, uint64_t count) {
  add_squares(l, copies, first, count, 1);
}

/* ---- the update of this rank's elements, in runs ----
 * A run is a range of adjacent elements of the flat order of parameters that one operation updates. */

typedef struct run {
  const tws_zero_class *of;
  uint64_t at, count; /* first element in the flat order, and number of elements */
  int64_t element;    /* number of the first element among the elements of all parameters of the whole network */
  uint32_t param;     /* parameter of the first element */
  uint64_t norms;     /* offset of the first parameter's two norms in the buffer of all norms: norms_at() */
} run;

/* As bitsandbytes, optimizers with states of 8 bits round weights to nearest. */
static int is_stochastic(const tws_config *config) {
  return tws_config_bf16_masters(config) && config->stochastic_rounding &&
         !tws_optimizer_of(config->optimizer)->eight_bits;
}

/* Returns the work of the kernel of an update rule (norms 0) or of its norms (norms 1), with its parameters, which are
 * configuration keys of the same names. */
static tws_work rule_work(const tws_config *config, tws_update_rule rule, int norms) {
  tws_work work = tws_kernel_work(TWS_KERNEL_COUNT, config->accumulation_dtype, 0);
  switch (rule) {
#define VALUES1(a) config->a
#define VALUES2(a, b) config->a, config->b
#define VALUES4(a, b, c, d) config->a, config->b, config->c, config->d
#define RULE(id, code_, n, parameters)              \
  case TWS_UPDATE_##id: {                           \
    const double values[] = {VALUES##n parameters}; \
    work.code = code_;                              \
    memcpy(work.f, values, sizeof values);          \
    break;                                          \
  }
#define UPDATE_RULE(id, name, summary, n, parameters, ...) RULE(id, TWS_KERNEL_##id, n, parameters)
#define TENSOR_UPDATE_RULE(id, name, summary, n, parameters, ...) \
  RULE(id, norms ? TWS_KERNEL_##id##_NORMS : TWS_KERNEL_##id, n, parameters)
#define FACTORED_RULE(id) case TWS_UPDATE_##id:
#include "config/optimizers.def"
    case TWS_UPDATE_COUNT:
      break;
  }
  return work;
}

static tws_work update_work(const tws_config *config, const run *r, int norms, tws_arguments *arguments) {
  tws_config own;
  const int group = r->of ? r->of->param_group : 0;
  tws_config_of_param_group(config, group, &own);
  tws_work work = rule_work(
      &own, tws_config_is_muon_group(config, group) ? TWS_UPDATE_MUON : tws_optimizer_of(config->optimizer)->rule,
      norms);
  if (!config->adam_w_mode && !tws_optimizer_of(config->optimizer)->decoupled) work.flags |= TWS_L2;
  if (tws_config_half_masters(config)) work.flags |= TWS_HALF_WEIGHTS;
  if (tws_config_split_masters(config)) work.flags |= TWS_SPLIT_WEIGHTS;
  if (tws_config_bf16_moments(config)) work.flags |= TWS_HALF_MOMENTS;
  work.dtype2 = (uint8_t)config->dtype;
  work.d[0] = (int64_t)r->count;
  if (!is_stochastic(config) || norms) return work;
  work.flags |= TWS_STOCHASTIC;
  *arguments = (tws_arguments){{(double)(config->seed & ((INT64_C(1) << 53) - 1)), (double)r->element}};
  return work;
}

tws_work tws_lower_update_work(const tws_lower *l, tws_dtype gradients, uint64_t count) {
  tws_arguments unused;
  tws_work work = update_work(l->config, &(run){.count = count}, 0, &unused);
  work.dtype = (uint8_t)gradients;
  return work;
}

/* Writes the first operands of the kernels that update a run of elements, which are weights, states, gradients and
 * scalars, and returns their number. */
static int run_operands(tws_lower *l, const run *r, uint32_t access, tws_operand *operands) {
  tws_plan *plan = l->b.plan;
  const uint64_t state = r->of->kept + r->at - tws_zero_kept_first(&l->zero, r->of);
  const int master = plan->master != TWS_NONE;
  int n = 0;
  operands[n++] = master ? tws_offload_state(l, 0, plan->master, state, r->count, access)
                         : (tws_operand){plan->parameters, access, r->at, r->count};
  for (int i = 0; i < plan->optimizer_states; i++)
    operands[n++] =
        tws_offload_state(l, 1 + i, plan->optimizer_state[i], state - l->moments.eight_bit.elements, r->count, access);
  const int on_host = tws_offload_updates(l, state);
  const int apart = l->offload.optimizer && l->offload.gradients != plan->gradients;
  if (apart && on_host)
    operands[n++] = tws_read(l->offload.gradients, state - l->offload.cut, r->count);
  else
    operands[n++] = tws_read(plan->gradients, l->zero.flat_gradients ? r->at : state, r->count);
  operands[n++] = tws_hyper_of(on_host ? l->offload.hyper : plan->hyper, r->of->param_group);
  operands[n++] = tws_all(&l->b, on_host ? l->offload.metrics : plan->metrics, TWS_READ);
  return n;
}

static void update(tws_lower *l, const run *r, uint32_t norms) {
  const tws_plan *plan = l->b.plan;
  tws_operand operands[TWS_OPTIMIZER_STATES + 6];
  tws_arguments arguments = {{0}};
  if (r->of->eight_bits) {
    tws_eight_bit_update(l, r->of, r->at, r->count);
    return;
  }
  tws_work work = update_work(l->config, r, 0, &arguments);
  int n = run_operands(l, r, TWS_READ_WRITE, operands);
  if (l->b.failed != TWS_OK) return;
  work.dtype = plan->buffers[operands[1 + plan->optimizer_states].buffer].dtype; /* type of the gradients */
  if (norms != TWS_NONE) operands[n++] = tws_read(norms, r->norms, 2);
  tws_operand updated = operands[0];
  const uint64_t first = r->of->kept + r->at - tws_zero_kept_first(&l->zero, r->of);
  const int on_host = tws_offload_updates(l, first);
  if (tws_config_split_masters(l->config))
    operands[n++] = updated = tws_update(plan->parameters, r->at, r->count);
  else if (plan->master != TWS_NONE && plan->buffers[plan->master].dtype != l->config->dtype)
    operands[n++] = updated = tws_offload_weights(l, r->at, r->count, on_host);
  tws_builder_compute_with(&l->b, on_host ? TWS_STREAM_HOST : TWS_STREAM_COMPUTE, &work,
                           is_stochastic(l->config) ? &arguments : NULL, operands, n);
  tws_builder_updates(&l->b, 1 + (uint32_t)plan->optimizer_states, first, r->count);
  tws_offload_updated(l, updated, r->at, r->count);
}

/* Emits the update of a part of a matrix by its orthogonalized momentum `change` (plan/muon.c). Muon has one state,
 * which the update does not change. */
static void update_matrix(tws_lower *l, const tws_zero_class *c, uint64_t at, tws_operand change) {
  const tws_plan *plan = l->b.plan;
  const run r = {.of = c, .at = at, .count = change.count};
  const uint64_t state = c->kept + at - tws_zero_kept_first(&l->zero, c);
  tws_work work = update_work(l->config, &r, 0, NULL);
  work.dtype = TWS_F32;
  const int master = plan->master != TWS_NONE;
  tws_operand operands[6] = {
      tws_update(master ? plan->master : plan->parameters, master ? state : at, change.count),
      tws_update(plan->optimizer_state[0], state, change.count),
      change,
      tws_hyper_of(plan->hyper, c->param_group),
      tws_read(plan->metrics, 0, TWS_METRIC_COUNT),
  };
  int n = 5;
  if (master && plan->buffers[plan->master].dtype != l->config->dtype)
    operands[n++] = tws_write(plan->parameters, at, change.count);
  tws_builder_compute(&l->b, TWS_STREAM_COMPUTE, &work, operands, n);
}

/* Returns the offset of the norms of the parameter at index i of tws_zero.order: twice that index; OneBitLamb's norms
 * are those of all parameters of the network, in its order. */
static uint64_t norms_at(const tws_lower *l, uint32_t i) {
  return 2 * (uint64_t)(l->lamb.on ? (uint32_t)l->zero.order[i] : i);
}

/* Emits the norms of the parameter to which a run of elements belongs. If several tensor-parallel ranks have a copy of
 * the parameter, each contributes 1 / copies of its norms; OneBitLamb's norms are summed over pipeline stages too. */
static void find_norms(tws_lower *l, const run *r, uint32_t norms) {
  const int copies = is_part(l, r->param) ? 1 : l->sharding.position.ranks[TWS_AXIS_MODEL];
  tws_operand operands[TWS_OPTIMIZER_STATES + 5];
  const tws_arguments share = {{l->lamb.on ? tws_onebit_lamb_share(l, r->param) : 1.0 / copies}};
  const tws_work work = update_work(l->config, r, 1, NULL);
  int n = run_operands(l, r, TWS_READ, operands);
  operands[n++] = tws_write(norms, r->norms, 2);
  tws_builder_compute_with(&l->b, TWS_STREAM_COMPUTE, &work, &share, operands, n);
}

/* Reduces norms over a group of ranks. */
static void share_norms(tws_lower *l, uint32_t group, tws_operand norms) {
  if (group == TWS_NONE || norms.count == 0) return;
  tws_builder_collective(&l->b, TWS_STREAM_COMPUTE, TWS_COLLECTIVE_ALL_REDUCE, group, TWS_F64,
                         norms.count * sizeof(double), 1, 0, &norms, 1);
}

/* Emits the kernels that compute the norms of all parameters (0 if this rank updates no element of one), and their
 * reductions: over the ranks that partition a parameter, and over its tensor-parallel ranks. Returns the buffer of the
 * norms. */
static uint32_t find_all_norms(tws_lower *l, const run *runs, int count) {
  const tws_zero *z = &l->zero;
  const uint32_t trained = z->classes[z->trained_count - 1].end;
  const uint64_t elements = 2 * (uint64_t)(l->lamb.on ? l->network->param_count : trained);
  const uint32_t norms = tws_builder_buffer(&l->b, "norms", TWS_CATEGORY_INPUT, TWS_F64, elements, TWS_LIFETIME_OPS);
  int next = 0;
  for (uint32_t k = 0; k < z->trained_count; k++) {
    const tws_zero_class *c = &z->classes[k];
    if (!tws_zero_has_turn(l, c)) continue;
    for (uint32_t i = c->first; i < c->end; i++) {
      run r = {.of = c, .at = tws_zero_kept_first(z, c), .param = (uint32_t)z->order[i], .norms = norms_at(l, i)};
      if (next < count && runs[next].norms == r.norms) r = runs[next++];
      find_norms(l, &r, norms);
    }
    if (z->stage > 0 && c->ranks > 1)
      share_norms(l, c->group, tws_update(norms, 2 * (uint64_t)c->first, 2 * (uint64_t)(c->end - c->first)));
  }
  for (uint32_t p = 0; l->lamb.on && p < l->network->param_count; p++)
    if (l->lamb.place[p] == UINT64_MAX) /* not here, or not trained */
      find_norms(l, &(run){.of = z->classes, .at = z->classes->stored, .param = p, .norms = 2 * (uint64_t)p}, norms);
  share_norms(l, l->group[TWS_AXIS_MODEL], tws_update(norms, 0, elements));
  if (l->lamb.on) tws_onebit_lamb_follow(l, norms);
  return norms;
}

/* Returns an array: for each position in the flat order of parameters, the index of its sub-group at stage 3; 0 at
 * other stages. */
static int *sub_groups(tws_lower *l) {
  const tws_zero *z = &l->zero;
  int n = (int)l->network->param_count;
  int *group_of = tws_arena_alloc(l->scratch, (size_t)n + 1, sizeof *group_of);
  int64_t *part = tws_arena_alloc(l->scratch, (size_t)n + 1, sizeof *part);
  if (!group_of || !part) {
    tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
    return NULL;
  }
  memset(group_of, 0, ((size_t)n + 1) * sizeof *group_of);
  if (z->stage != 3) return group_of;
  for (int i = 0; i < n; i++) part[i] = z->part[z->order[i]];
  tws_zero3_sub_groups(n, part, l->config->zero.sub_group_size, group_of);
  return group_of;
}

/* Returns the number, among the elements of all parameters of the whole network, of the first element that this rank
 * stores of `param`; before: number of elements of all earlier parameters. Copies on several ranks have equal numbers,
 * so that they get equal random bits for rounding; the parts of a parameter that expert and tensor parallelism split
 * are numbered one after another. */
static int64_t first_element(const tws_lower *l, uint32_t param, const int64_t *before) {
  const tws_zero *z = &l->zero;
  const tws_position *at = &l->sharding.position;
  uint64_t in_weight;
  const uint32_t origin = tws_weight_tile_origin(l, param, &in_weight);
  /* index of this rank's part among the parts into which expert and tensor parallelism split the parameter */
  int64_t cut = l->network->params[origin].own_along ? at->index[TWS_AXIS_EXPERT] : 0;
  if (is_part(l, param)) cut = cut * at->ranks[TWS_AXIS_MODEL] + at->index[TWS_AXIS_MODEL];
  const int64_t element = before[origin] + cut * tws_param_numel(&l->network->params[origin]) + (int64_t)in_weight;
  return z->stage == 3 ? element + z->part[param] * tws_zero_class_of(z, param)->index : element;
}

/* Returns 1 if Muon updates the parameters of a ZeRO class. */
static int is_muon_class(const tws_lower *l, const tws_zero_class *c) {
  return tws_config_is_muon_group(l->config, c->param_group);
}

/* Adds the runs of a ZeRO class to the list and returns its new length. A new run begins at a new sub-group, if the
 * elements' numbers are not consecutive (for the random bits of rounding), and at each parameter if the optimizer needs
 * whole parameters. Padding belongs to the last run. before: per parameter of the whole network, number of elements of
 * earlier parameters. */
static int add_runs(tws_lower *l, const tws_zero_class *c, const int *group_of, const int64_t *before, run *runs,
                    int count) {
  const tws_zero *z = &l->zero;
  const uint64_t begin = tws_zero_kept_first(z, c), end = begin + c->partition;
  const int by_tensor = tws_optimizer_of(l->config->optimizer)->by_tensor;
  const uint64_t most = l->offload.optimizer || l->offload.param_tier != TWS_TIER_DEVICE
                            ? (uint64_t)l->config->zero.sub_group_size
                            : UINT64_MAX;
  run r = {.of = c, .at = begin};
  int group = 0;
  for (uint32_t i = c->first; i < c->end; i++) {
    uint32_t p = (uint32_t)z->order[i];
    uint64_t start = z->flat_offset[p], next = i + 1 < c->end ? z->flat_offset[z->order[i + 1]] : c->stored + c->total;
    uint64_t from = start > begin ? start : begin, to = next < end ? next : end;
    if (from >= to) continue;
    int64_t element = first_element(l, p, before) + (int64_t)(from - start);
    /* a new run begins at `cut`, the first element that the host updates, since no kernel updates elements of the
     * device and of the host */
    const uint64_t cut = l->offload.cut, kept = c->kept + from - begin;
    int goes_on = group_of[i] == group && !(cut > 0 && kept >= cut && kept - r.count < cut) && !by_tensor &&
                  r.count + (to - from) <= most &&
                  (!is_stochastic(l->config) || element == r.element + (int64_t)r.count);
    if (!r.count || !goes_on) {
      if (r.count) runs[count++] = r;
      r = (run){.of = c, .at = from, .element = element, .param = p, .norms = norms_at(l, i)};
      group = group_of[i];
    }
    r.count += to - from;
  }
  r.count = end - r.at;
  if (r.count) runs[count++] = r;
  return count;
}

/* Lists the runs of all ZeRO classes in *list and returns their number; NULL *list: no memory. */
static int list_runs(tws_lower *l, run **list) {
  const tws_network *whole = l->b.plan->network;
  const int *group_of = sub_groups(l);
  int64_t *before = tws_arena_alloc(l->scratch, whole->param_count + 1u, sizeof *before);
  run *runs = *list = tws_arena_alloc(l->scratch, l->network->param_count + l->zero.class_count, sizeof *runs);
  int count = 0;
  if (!before || !runs) tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
  if (l->b.failed != TWS_OK) return 0;
  before[0] = 0;
  for (uint32_t p = 0; p < whole->param_count; p++) before[p + 1] = before[p] + tws_param_numel(&whole->params[p]);
  for (uint32_t k = 0; k < l->zero.trained_count; k++)
    if (tws_zero_has_turn(l, &l->zero.classes[k]) && !is_muon_class(l, &l->zero.classes[k]))
      count = add_runs(l, &l->zero.classes[k], group_of, before, runs, count);
  return count;
}

typedef struct run_list {
  const run *runs;
  int count, next; /* next: index of the first run with elements for which no update has been emitted */
} run_list;

/* Emits the updates of the elements [first, first + count) of those that the rank updates. The caller passes ranges in
 * ascending order. */
static void update_range(tws_lower *l, uint64_t first, uint64_t count, void *user) {
  run_list *list = user;
  for (; list->next < list->count; list->next++) {
    run part = list->runs[list->next];
    const uint64_t begin = part.of->kept + part.at - tws_zero_kept_first(&l->zero, part.of), end = begin + part.count;
    const uint64_t from = begin > first ? begin : first, to = end < first + count ? end : first + count;
    if (from < to) {
      part.at += from - begin;
      part.element += (int64_t)(from - begin);
      part.count = to - from;
      update(l, &part, TWS_NONE);
    }
    if (end > first + count) return;
  }
}

void tws_lower_update(tws_lower *l) {
  run *runs;
  uint32_t norms = TWS_NONE;
  if (tws_optimizer_of(l->config->optimizer)->factored) {
    tws_adafactor_lower(l);
    return;
  }
  const int count = list_runs(l, &runs);
  if (l->b.failed != TWS_OK) return;
  if (tws_optimizer_of(l->config->optimizer)->by_tensor) norms = find_all_norms(l, runs, count);
  if (tws_offload_has_ranges(l)) {
    run_list list = {.runs = runs, .count = count};
    tws_offload_stages(l, update_range, &list);
  } else {
    for (int i = 0; i < count; i++) update(l, &runs[i], norms);
  }
  for (uint32_t k = 0; k < l->zero.trained_count; k++)
    if (tws_zero_has_turn(l, &l->zero.classes[k]) && is_muon_class(l, &l->zero.classes[k]))
      tws_muon_lower(l, &l->zero.classes[k], update_matrix);
  tws_offload_end(l);
}

void tws_lower_gather_parameters(tws_lower *l) {
  const tws_zero *z = &l->zero;
  tws_plan *plan = l->b.plan;
  if (z->stage == 0 || z->stage == 3) return;
  for (uint32_t k = 0; k < z->trained_count; k++) {
    const tws_zero_class *c = &z->classes[k];
    if (c->ranks == 1 || c->aligned == 0 || !tws_zero_has_turn(l, c)) continue;
    tws_operand operands[2] = {tws_read(plan->parameters, tws_zero_kept_first(z, c), c->partition),
                               tws_write(plan->parameters, c->stored, c->aligned)};
    tws_builder_collective(&l->b, l->streams.gather, TWS_COLLECTIVE_ALL_GATHER, c->group, l->config->dtype,
                           c->aligned * tws_dtype_bytes(l->config->dtype), 1, 0, operands, 2);
  }
}

static void clip(tws_lower *l) {
  tws_work work = tws_kernel_work(TWS_KERNEL_CLIP, TWS_F32, 0);
  const uint64_t losses = tws_network_losses(l->b.plan->network);
  work.f[0] = l->config->gradient_clipping;
  work.f[1] = losses > 1 ? (double)losses : 0;
  tws_operand operands[2] = {tws_all(&l->b, l->b.plan->metrics, TWS_READ_WRITE)};
  tws_builder_compute(&l->b, TWS_STREAM_COMPUTE, &work, operands, tws_lower_scaled(l, &work, operands, 1));
}

/* Begins the sum of squares of another turn at 0. Networks that are trained alternately have several losses, each with
 * its own share of ignored targets, so that the common share remains 0. */
static void begin_squares(tws_lower *l) {
  if (l->pipeline.turn > 0)
    tws_builder_copy(&l->b, TWS_STREAM_COMPUTE, tws_read(l->b.plan->metrics, TWS_METRIC_IGNORED, 1),
                     tws_write(l->b.plan->metrics, TWS_METRIC_SQUARES, 1));
}

void tws_lower_step(tws_lower *l) {
  l->b.phase = TWS_PHASE_STEP;
  l->b.module = TWS_NONE;
  l->b.plan->optimizer_phases++;
  begin_squares(l);
  tws_zero_pad_gradients(l);
  tws_exchange_partial_gradients(l);
  tws_offload_rest_of_gradients(l);
  tws_zenflow_stage(l);
  tws_zero_kept_runs(l, copies_of, add_squares_on_device);
  if (!l->columns.on) tws_offload_squares_begin(l);
  tws_zero_kept_runs(l, copies_of, add_squares_on_host);
  tws_offload_squares_end(l);
  share_metrics(l);
  tws_router_balance(l);
  clip(l);
  if (!l->columns.on) tws_offload_scalars(l);
  if (tws_gradients_stay_local(l) && l->lamb.on) {
    tws_onebit_lamb_update(l);
  } else if (tws_gradients_stay_local(l)) {
    tws_compressed_update(l);
  } else if (l->columns.on) {
    tws_zenflow_step(l);
  } else if (l->offload.delayed.on) {
    tws_delayed_keep(l);
    tws_offload_store(l);
  } else {
    tws_lower_update(l);
  }
  tws_lower_gather_parameters(l);
  if (l->pipeline.turn + 1 == tws_turns(l)) tws_running_average(l);
}

void tws_lower_apply(tws_lower *l) {
  tws_delayed_update(l);
  l->b.phase = TWS_PHASE_STEP;
  tws_offload_store(l);
  tws_lower_gather_parameters(l);
  tws_delayed_clear(l);
}

/* Lowers the last operations of an evaluation: the reductions of the loss over all ranks, and CLIP. The CLIP kernel
 * turns the mean of the loss over all tokens into the mean over tokens that are not ignored; there are no gradients to
 * clip. */
void tws_lower_score(tws_lower *l) {
  l->b.phase = TWS_PHASE_STEP;
  l->b.module = TWS_NONE;
  if (l->zero.ranks > 1) share_among(l, l->zero.group, 2);
  share_among(l, l->group[TWS_AXIS_PIPE], 2);
  share_among(l, l->group[TWS_AXIS_MODEL], 2);
  clip(l);
}
