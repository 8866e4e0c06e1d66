/* OneBitLamb (Li et al. 2021, "1-bit LAMB: communication Efficient Large-Scale Large-Batch Training with LAMB's
 * Convergence Speed"): three programs over one state.
 *
 *   TRAIN       Lamb with reduced gradients. Each parameter's trust ratio is averaged (LAMB_RATIOS)
 *   FREEZE      runs once after update freeze_step. Second moments and average ratios are fixed from then on. The
 *               second moments are copied to "fresh" ones, and each parameter gets the scale that brings its momentum
 *               to the size of all others, so that one number can be the size of all compressed elements
 *   COMPRESSED  each rank updates all momenta with its own gradients and scales them. Their average by signs is one
 *               tensor for all parameters, as in DeepSpeed. The gradients that lead to the average update the fresh
 *               second moments, whose ratio to the fixed ones is a parameter's factor for its fixed trust ratio
 *
 * Copies of a parameter on several ranks have to stay equal: a scale of signs may only depend on parameters that the
 * same ranks have. So tensor-parallel ranks compress split and replicated parameters separately, and pipeline stages
 * compress tied weights separately. Norms are of whole parameters: sums over all ranks that have parts of one. The
 * lists are equal on all ranks, so that a checkpoint resumes on others. */
#include "plan/onebit_lamb.h"

#include "models/operator.h"
#include "plan/compressed.h"
#include "plan/zero.h"

enum { FIGURES = 3 };

/* Bits of a set of parameters, which are stored by the same ranks: TIED: several pipeline stages have them (tied
 * weights); SPLIT: tensor parallelism splits them. */
enum { TIED = 1, SPLIT = 2, SETS = 4 };

static int set_of(const tws_lower *l, uint32_t param) {
  const int split = tws_placed_is_split((tws_placed)l->local.params[param].on[TWS_AXIS_MODEL]);
  return (l->pipeline.param_stages[param] ? TIED : 0) | (split ? SPLIT : 0);
}

double tws_onebit_lamb_share(const tws_lower *l, uint32_t param) {
  const int set = set_of(l, param);
  return 1.0 / ((set & TIED ? l->pipeline.param_stages[param] : 1) *
                (set & SPLIT ? 1 : l->sharding.position.ranks[TWS_AXIS_MODEL]));
}

/* ---- the state ---- */

static uint32_t add_list(tws_lower *l, const char *name) {
  const tws_state_entry entry = {.name = name,
                                 .dtype = TWS_F32,
                                 .category = TWS_CATEGORY_MOMENT,
                                 .role = TWS_ELEMENTS_NONE,
                                 .initial = TWS_INITIAL_ZERO,
                                 .everywhere = 1,
                                 .checkpointed = 1,
                                 .elements = l->network->param_count};
  return tws_builder_state(&l->b, &entry);
}

/* Ends a set of parameters, whose momenta begin at `first`, with its padding, and adds it as a tensor. In DeepSpeed the
 * padding is part of the tensor: what the signs leave there is compressed again in the next step. */
static void end_set(tws_lower *l, uint64_t first) {
  tws_onebit_lamb *lamb = &l->lamb;
  const tws_zero_class *of = l->zero.classes; /* any class will do, since all have the same ranks */
  const uint64_t count = lamb->elements - first, ranks = (uint64_t)of->ranks;
  if (ranks == 1 || count == 0) return;
  const uint64_t padded = tws_compressed_part(count, ranks) * ranks;
  lamb->padding[l->compressed.count] = padded - count;
  lamb->elements = first + padded;
  tws_compressed_add(l, of, TWS_NONE, first, padded);
}

/* Lists the tensors that are compressed: one for each set of parameters that the same ranks have. */
static void list_sets(tws_lower *l) {
  const tws_zero *z = &l->zero;
  tws_onebit_lamb *lamb = &l->lamb;
  for (int set = 0; set < SETS && z->trained_count > 0; set++) {
    const uint64_t first = lamb->elements;
    for (uint32_t i = 0; i < z->classes[z->trained_count - 1].end; i++) {
      const uint32_t param = (uint32_t)z->order[i];
      if (set_of(l, param) != set) continue;
      lamb->place[param] = lamb->elements;
      lamb->elements += tws_zero_numel(l, param);
    }
    end_set(l, first);
  }
}

/* Adds the state entry of the padding and returns its buffer. The padding is 0 at first and, like the compression
 * errors, when a training resumes. */
static uint32_t add_padding(tws_lower *l) {
  uint64_t elements = 0;
  for (int set = 0; set < SETS; set++) elements += l->lamb.padding[set];
  const tws_state_entry entry = {.name = "padding of momenta",
                                 .dtype = TWS_F32,
                                 .category = TWS_CATEGORY_MOMENT,
                                 .role = TWS_ELEMENTS_NONE,
                                 .initial = TWS_INITIAL_ZERO,
                                 .elements = elements};
  return elements > 0 ? tws_builder_state(&l->b, &entry) : TWS_NONE;
}

void tws_onebit_lamb_begin(tws_lower *l) {
  tws_onebit_lamb *lamb = &l->lamb;
  lamb->on = tws_optimizer_of(l->config->optimizer)->phases == TWS_PHASES_SCALED && !l->extent.parameters_only;
  lamb->scaled = TWS_NONE;
  if (!lamb->on) return;
  lamb->place = tws_lower_memory(l, l->network->param_count, sizeof *lamb->place);
  if (l->b.failed != TWS_OK) return;
  for (uint32_t p = 0; p < l->network->param_count; p++) lamb->place[p] = UINT64_MAX;
  list_sets(l);
  uint64_t owned = 0;
  for (uint32_t k = 0; k < l->zero.trained_count; k++) owned += l->zero.classes[k].partition;
  const tws_state_entry fresh = {.name = "fresh second moments",
                                 .dtype = TWS_F32,
                                 .category = TWS_CATEGORY_MOMENT,
                                 .role = TWS_ELEMENTS_OWNED,
                                 .initial = TWS_INITIAL_ZERO,
                                 .checkpointed = 1,
                                 .elements = owned};
  lamb->fresh = tws_builder_state(&l->b, &fresh);
  lamb->ratios = add_list(l, "trust ratios");
  lamb->factors = add_list(l, "factors of trust ratios");
  lamb->scales = add_list(l, "momentum scales");
  lamb->kept = add_padding(l);
  tws_compressed_add_errors(l);
}

/* ---- operations ---- */

static tws_operand scalars(const tws_lower *l) {
  return tws_read(l->b.plan->metrics, 0, TWS_METRIC_COUNT);
}

static tws_operand hyper(const tws_lower *l, const tws_zero_class *of) {
  return tws_hyper_of(l->b.plan->hyper, of->param_group);
}

/* Emits a kernel without arguments. */
static void emit(tws_lower *l, const tws_work *work, const tws_operand *operands, int count) {
  tws_builder_compute(&l->b, TWS_STREAM_COMPUTE, work, operands, count);
}

static void emit_with(tws_lower *l, const tws_work *work, double argument, const tws_operand *operands, int count) {
  tws_builder_compute_with(&l->b, TWS_STREAM_COMPUTE, work, &(tws_arguments){{argument}}, operands, count);
}

static tws_work work_of(tws_kernel kernel, uint64_t count) {
  tws_work work = tws_kernel_work(kernel, TWS_F32, 0);
  work.d[0] = (int64_t)count;
  return work;
}

/* A parameter of the network on this rank. count is 0 if it belongs to another pipeline stage, or is not trained. */
typedef struct item {
  uint32_t param;
  const tws_zero_class *of;
  uint64_t at, count; /* range of its elements in the buffers of the elements that this rank updates */
} item;

static item item_of(const tws_lower *l, uint32_t param) {
  const tws_zero *z = &l->zero;
  item t = {.param = param, .of = &z->classes[0]};
  if (l->lamb.place[param] == UINT64_MAX) return t;
  t.of = tws_zero_class_of(z, param);
  t.at = t.of->kept + z->flat_offset[param] - t.of->stored;
  t.count = tws_zero_numel(l, param);
  return t;
}

static tws_operand state_of(uint32_t buffer, const item *t, uint32_t access) {
  return (tws_operand){.buffer = buffer, .access = access, .offset = t->at, .count = t->count};
}

static tws_operand weights_of(const tws_lower *l, const item *t, uint32_t access) {
  const tws_plan *plan = l->b.plan;
  if (plan->master != TWS_NONE) return state_of(plan->master, t, access);
  return (tws_operand){.buffer = plan->parameters,
                       .access = access,
                       .offset = t->count ? l->zero.flat_offset[t->param] : 0,
                       .count = t->count};
}

static tws_operand scaled_of(const tws_lower *l, const item *t, uint32_t access) {
  return (tws_operand){
      .buffer = l->lamb.scaled, .access = access, .offset = t->count ? l->lamb.place[t->param] : 0, .count = t->count};
}

/* Emits an all-reduce over a group of ranks of a buffer with `each` numbers for each parameter. */
static void share_over(tws_lower *l, uint32_t group, uint32_t buffer, uint64_t each) {
  if (group == TWS_NONE || l->b.failed != TWS_OK) return;
  const tws_operand all = tws_update(buffer, 0, each * l->network->param_count);
  tws_builder_collective(&l->b, TWS_STREAM_COMPUTE, TWS_COLLECTIVE_ALL_REDUCE, group, TWS_F64,
                         all.count * sizeof(double), 1, 0, &all, 1);
}

static uint32_t list_buffer(tws_lower *l, const char *name, uint64_t each) {
  return tws_builder_buffer(&l->b, name, TWS_CATEGORY_INPUT, TWS_F64, each * l->network->param_count, TWS_LIFETIME_OPS);
}

void tws_onebit_lamb_follow(tws_lower *l, uint32_t norms) {
  const uint64_t count = l->network->param_count;
  share_over(l, l->group[TWS_AXIS_PIPE], norms, 2);
  tws_work work = work_of(TWS_KERNEL_LAMB_RATIOS, count);
  tws_work_set_parameter(&work, "max_coeff", l->config->max_coeff);
  tws_work_set_parameter(&work, "min_coeff", l->config->min_coeff);
  tws_work_set_parameter(&work, "coeff_beta", l->config->coeff_beta);
  const tws_operand operands[4] = {tws_read(norms, 0, 2 * count), hyper(l, &l->zero.classes[0]), scalars(l),
                                   tws_update(l->lamb.ratios, 0, count)};
  emit(l, &work, operands, 4);
}

/* Emits the kernel that updates a parameter's momentum with this rank's own gradient and scales it. Gradients were
 * divided by the number of ranks, by which the kernel multiplies them again. */
static void scale(tws_lower *l, const item *t) {
  const tws_plan *plan = l->b.plan;
  tws_work work = work_of(TWS_KERNEL_SCALED_MOMENTUM, t->count);
  work.dtype = plan->buffers[plan->gradients].dtype;
  const tws_operand operands[6] = {tws_read(plan->gradients, l->zero.flat_offset[t->param], t->count),
                                   state_of(plan->optimizer_state[0], t, TWS_READ),
                                   tws_read(l->lamb.scales, t->param, 1),
                                   hyper(l, t->of),
                                   scalars(l),
                                   scaled_of(l, t, TWS_WRITE)};
  emit_with(l, &work, t->of->ranks, operands, 6);
}

/* Returns the work of a kernel with the epsilon and the weight decay of the parameter's group. */
static tws_work group_work(const tws_lower *l, tws_kernel kernel, const item *t) {
  tws_config own;
  tws_config_of_param_group(l->config, t->of->param_group, &own);
  tws_work work = work_of(kernel, t->count);
  tws_work_set_parameter(&work, "epsilon", own.epsilon);
  tws_work_set_parameter(&work, "weight_decay", own.weight_decay);
  return work;
}

static void refresh(tws_lower *l, const item *t, uint32_t figures) {
  const tws_plan *plan = l->b.plan;
  const tws_work work = group_work(l, TWS_KERNEL_FRESH_MOMENTS, t);
  const tws_operand operands[9] = {scaled_of(l, t, TWS_READ),
                                   weights_of(l, t, TWS_READ),
                                   state_of(plan->optimizer_state[0], t, TWS_READ_WRITE),
                                   state_of(plan->optimizer_state[1], t, TWS_READ),
                                   state_of(l->lamb.fresh, t, TWS_READ_WRITE),
                                   tws_read(l->lamb.scales, t->param, 1),
                                   hyper(l, t->of),
                                   scalars(l),
                                   tws_write(figures, FIGURES * (uint64_t)t->param, FIGURES)};
  emit_with(l, &work, tws_onebit_lamb_share(l, t->param), operands, 9);
}

/* Emits the factors of all parameters from this rank's figures. If tensor-parallel ranks split a parameter, the figures
 * of all its parts are gathered first, since its factor depends on their sums and on the largest quotient. */
static void find_factors(tws_lower *l, uint32_t figures) {
  const uint64_t count = l->network->param_count, parts = (uint64_t)l->sharding.position.ranks[TWS_AXIS_MODEL];
  tws_operand all = tws_read(figures, 0, FIGURES * count);
  if (parts > 1) {
    const uint32_t gathered = list_buffer(l, "figures of all parts", FIGURES * parts);
    const tws_operand operands[2] = {all, tws_write(gathered, 0, FIGURES * count * parts)};
    tws_builder_collective(&l->b, TWS_STREAM_COMPUTE, TWS_COLLECTIVE_ALL_GATHER, l->group[TWS_AXIS_MODEL], TWS_F64,
                           operands[1].count * sizeof(double), 1, 0, operands, 2);
    all = tws_read(gathered, 0, operands[1].count);
  }
  tws_work work = work_of(TWS_KERNEL_LAMB_FACTORS, count);
  work.d[1] = (int64_t)parts;
  tws_work_set_parameter(&work, "factor_max", l->config->factor_max);
  tws_work_set_parameter(&work, "factor_min", l->config->factor_min);
  tws_work_set_parameter(&work, "factor_threshold", l->config->factor_threshold);
  const tws_operand operands[3] = {all, scalars(l), tws_update(l->lamb.factors, 0, count)};
  emit(l, &work, operands, 3);
}

static void update(tws_lower *l, const item *t) {
  const tws_plan *plan = l->b.plan;
  tws_work work = group_work(l, TWS_KERNEL_FROZEN_LAMB, t);
  tws_operand operands[8] = {weights_of(l, t, TWS_READ_WRITE),
                             state_of(plan->optimizer_state[0], t, TWS_READ),
                             state_of(plan->optimizer_state[1], t, TWS_READ),
                             tws_read(l->lamb.ratios, t->param, 1),
                             tws_read(l->lamb.factors, t->param, 1),
                             hyper(l, t->of),
                             scalars(l)};
  int n = 7;
  if (plan->master != TWS_NONE && plan->buffers[plan->master].dtype != l->config->dtype) {
    work.dtype2 = (uint8_t)l->config->dtype;
    operands[n++] = tws_write(plan->parameters, l->zero.flat_offset[t->param], t->count);
  }
  emit(l, &work, operands, n);
}

static tws_operand scaled_set(tws_lower *l, const tws_compressed_tensor *t) {
  return tws_update(l->lamb.scaled, t->at, t->count);
}

/* Emits copies of the padding into the buffer of scaled momenta (into 1) or back. */
static void copy_padding(tws_lower *l, int into) {
  uint64_t at = 0;
  for (uint32_t i = 0; i < l->compressed.count; i++) {
    const tws_compressed_tensor *t = &l->compressed.tensors[i];
    const uint64_t count = l->lamb.padding[i], end = t->at + t->count;
    if (count == 0) continue;
    const tws_operand kept = tws_read(l->lamb.kept, at, count), scaled = tws_read(l->lamb.scaled, end - count, count);
    tws_operand to = into ? scaled : kept;
    to.access = TWS_WRITE;
    tws_builder_copy(&l->b, TWS_STREAM_COMPUTE, into ? kept : scaled, to);
    at += count;
  }
}

void tws_onebit_lamb_update(tws_lower *l) {
  const uint32_t count = l->network->param_count;
  if (l->b.failed != TWS_OK || l->lamb.elements == 0) return;
  l->lamb.scaled =
      tws_builder_buffer(&l->b, "scaled momenta", TWS_CATEGORY_BUCKET, TWS_F32, l->lamb.elements, TWS_LIFETIME_OPS);
  for (uint32_t p = 0; p < count; p++) {
    const item t = item_of(l, p);
    if (t.count > 0) scale(l, &t);
  }
  copy_padding(l, 1);
  tws_compressed_average(l, l->zero.classes, scaled_set, NULL);
  copy_padding(l, 0);
  const uint32_t figures = list_buffer(l, "figures of parameters", FIGURES);
  for (uint32_t p = 0; p < count; p++) {
    const item t = item_of(l, p);
    if (t.count > 0) tws_compressed_mask(l, p, scaled_of(l, &t, TWS_WRITE));
    refresh(l, &t, figures);
  }
  share_over(l, l->group[TWS_AXIS_PIPE], figures, FIGURES);
  find_factors(l, figures);
  for (uint32_t p = 0; p < count; p++) {
    const item t = item_of(l, p);
    if (t.count > 0) update(l, &t);
  }
}

void tws_onebit_lamb_freeze(tws_lower *l) {
  const tws_plan *plan = l->b.plan;
  const uint32_t count = l->network->param_count;
  l->b.phase = TWS_PHASE_STEP;
  const uint32_t squares = list_buffer(l, "mean squares", 1);
  for (uint32_t p = 0; p < count && l->b.failed == TWS_OK; p++) {
    const item t = item_of(l, p);
    const int parts = set_of(l, p) & SPLIT ? l->sharding.position.ranks[TWS_AXIS_MODEL] : 1;
    const int64_t numel = parts * tws_param_numel(&l->network->params[p]);
    const tws_work work = work_of(TWS_KERNEL_MEAN_SQUARE, t.count);
    const tws_operand operands[2] = {state_of(plan->optimizer_state[0], &t, TWS_READ), tws_write(squares, p, 1)};
    emit_with(l, &work, numel > 0 ? tws_onebit_lamb_share(l, p) / (double)numel : 0, operands, 2);
    if (t.count > 0)
      tws_builder_copy(&l->b, TWS_STREAM_COMPUTE, state_of(plan->optimizer_state[1], &t, TWS_READ),
                       state_of(l->lamb.fresh, &t, TWS_WRITE));
  }
  share_over(l, l->group[TWS_AXIS_PIPE], squares, 1);
  share_over(l, l->group[TWS_AXIS_MODEL], squares, 1);
  const tws_work work = work_of(TWS_KERNEL_MOMENTUM_SCALES, count);
  const tws_operand operands[3] = {tws_read(squares, 0, count), tws_write(l->lamb.scales, 0, count),
                                   tws_write(l->lamb.factors, 0, count)};
  emit(l, &work, operands, 3);
}
