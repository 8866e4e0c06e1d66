/* Adafactor's update. A rank computes the sums of squares of the rows and columns of its part of each matrix, and the
 * ranks that partition the matrices all-reduce them, which is a few numbers for each matrix: no matrix is gathered.
 * All ranks then have the same second moments. The root mean square of a matrix's update is clipped, so it is
 * all-reduced as well; if ranks partition a matrix, its update is therefore computed twice instead of being stored. */
#include "plan/adafactor.h"

#include "plan/zero.h"

/* A tensor with second moments of its own: a vector, a matrix, or one of several matrices that are joined in a
 * parameter. */
typedef struct tensor {
  int64_t rows, columns; /* rows 0: a vector */
  uint64_t elements;
  uint64_t moments; /* offset of its second moments, rows + columns of them, in the state */
  uint64_t sums;    /* offset of their sums of squares in the buffer of a class */
  /* the part of the tensor that this rank updates: count: number of its elements, 0 if none; index of its first
   * element: first: in the tensor, at: in the flat order, kept: among the elements that the rank updates */
  uint64_t count, first, at, kept;
} tensor;

typedef struct tensor_list {
  tensor *all;
  uint32_t count;
  uint64_t moments; /* number of second moments of the tensors so far */
} tensor_list;

static int is_used(const tws_lower *l) {
  return tws_optimizer_of(l->config->optimizer)->factored;
}

/* Sets the part of a tensor that this rank updates; begin: index of the tensor's first element in its parameter. */
static void find_part(const tws_lower *l, const tws_zero_class *c, uint32_t param, uint64_t begin, tensor *t) {
  const tws_zero_part part = tws_zero_part_of(l, c, param);
  const uint64_t end = begin + t->elements, last = part.first + part.count;
  const uint64_t from = part.first > begin ? part.first : begin, to = last < end ? last : end;
  if (from >= to) return;
  t->count = to - from;
  t->first = from - begin;
  t->at = part.at + from - part.first;
  t->kept = part.kept + from - part.first;
}

/* Adds `rows` rows of a parameter, which are one tensor. */
static void add_tensor(const tws_lower *l, const tws_zero_class *c, uint32_t param, int64_t first_row, int64_t rows,
                       tensor_list *list) {
  const tws_param *p = &l->network->params[param];
  tensor t = {.rows = p->rows == 1 ? 0 : rows,
              .columns = p->columns,
              .elements = (uint64_t)(rows * p->columns),
              .moments = list->moments};
  if (rows == 0) return;
  if (c) find_part(l, c, param, (uint64_t)(first_row * p->columns), &t);
  list->moments += (uint64_t)(t.rows + t.columns);
  if (list->all) list->all[list->count] = t;
  list->count++;
}

/* Adds the tensors of a parameter: the parameter itself, or each of the tensors that are joined in it and that model
 * files store separately. c: the parameter's ZeRO class; NULL: the tensors are only counted. */
static void add_param(const tws_lower *l, const tws_zero_class *c, uint32_t param, tensor_list *list) {
  const tws_param *p = &l->network->params[param];
  const int64_t joined = p->fused[0] + p->fused[1] + p->fused[2];
  int64_t first = 0;
  if (joined != p->rows || p->groups > 0) {
    add_tensor(l, c, param, 0, p->rows, list);
    return;
  }
  for (int i = 0; i < 3; i++) {
    add_tensor(l, c, param, first, p->fused[i], list);
    first += p->fused[i];
  }
}

void tws_adafactor_begin(tws_lower *l) {
  const uint32_t count = l->network->param_count;
  tensor_list list = {0};
  if (!is_used(l)) return;
  l->moments.adafactor.first = tws_lower_memory(l, count, sizeof *l->moments.adafactor.first);
  if (!l->moments.adafactor.first) return;
  for (uint32_t p = 0; p < count; p++) { /* in an order that no division of ranks changes, since checkpoints have it */
    l->moments.adafactor.first[p] = list.moments;
    if (!l->network->params[p].frozen) add_param(l, NULL, p, &list);
  }
  const tws_state_entry entry = {.name = "factored second moments",
                                 .dtype = TWS_F32,
                                 .category = TWS_CATEGORY_MOMENT,
                                 .role = TWS_ELEMENTS_NONE,
                                 .initial = TWS_INITIAL_ZERO,
                                 .everywhere = 1,
                                 .checkpointed = 1,
                                 .elements = list.moments};
  l->moments.adafactor.tensors = list.count;
  if (list.moments > 0) l->moments.adafactor.moments = tws_builder_state(&l->b, &entry);
}

/* ---- operations ---- */

static tws_operand moments_of(const tws_lower *l, const tensor *t, uint32_t access) {
  return (tws_operand){l->moments.adafactor.moments, (uint8_t)access, t->moments, (uint64_t)(t->rows + t->columns)};
}

static tws_operand gradient_of(const tws_lower *l, const tensor *t) {
  return tws_read(l->b.plan->gradients, l->zero.flat_gradients ? t->at : t->kept, t->count);
}

static tws_operand metrics_of(const tws_lower *l) {
  return tws_read(l->b.plan->metrics, 0, TWS_METRIC_COUNT);
}

static tws_operand weights_of(const tws_lower *l, const tensor *t, uint32_t access) {
  const int master = l->b.plan->master != TWS_NONE;
  return (tws_operand){master ? l->b.plan->master : l->b.plan->parameters, (uint8_t)access, master ? t->kept : t->at,
                       t->count};
}

static tws_work matrix_work(const tws_lower *l, tws_kernel kernel, const tensor *t) {
  tws_work work = tws_kernel_work(kernel, l->config->accumulation_dtype, 0);
  work.d[0] = t->rows, work.d[1] = t->columns;
  if (kernel != TWS_KERNEL_FACTOR_MOMENTS) work.d[2] = (int64_t)t->count;
  return work;
}

static void find_sums(tws_lower *l, const tensor *t, uint32_t sums) {
  const tws_work work = matrix_work(l, TWS_KERNEL_FACTOR_SUMS, t);
  const tws_operand operands[3] = {gradient_of(l, t), metrics_of(l),
                                   tws_write(sums, t->sums, (uint64_t)(t->rows + t->columns))};
  tws_builder_compute_with(&l->b, TWS_STREAM_COMPUTE, &work, &(tws_arguments){{(double)t->first}}, operands, 3);
  if (t->count > 0) tws_builder_updates(&l->b, 0, t->kept, t->count);
}

static void find_moments(tws_lower *l, const tws_zero_class *c, const tensor *t, uint32_t sums) {
  tws_work work = matrix_work(l, TWS_KERNEL_FACTOR_MOMENTS, t);
  work.f[0] = l->config->beta2_decay;
  const tws_operand operands[4] = {moments_of(l, t, TWS_READ_WRITE),
                                   tws_read(sums, t->sums, (uint64_t)(t->rows + t->columns)),
                                   tws_hyper_of(l->b.plan->hyper, c->param_group), metrics_of(l)};
  tws_builder_compute(&l->b, TWS_STREAM_COMPUTE, &work, operands, 4);
}

/* Emits the kernel that computes the update (before the learning rate) of this rank's part of a tensor. Returns the
 * buffer to which the kernel writes it. */
static uint32_t find_change(tws_lower *l, const tws_zero_class *c, const tensor *t) {
  tws_work work = matrix_work(l, TWS_KERNEL_FACTOR_CHANGE, t);
  tws_config own;
  tws_config_of_param_group(l->config, c->param_group, &own);
  work.f[0] = own.epsilon;
  const uint32_t change =
      tws_builder_buffer(&l->b, "change of a tensor", TWS_CATEGORY_WORKSPACE, TWS_F32, t->count, TWS_LIFETIME_OPS);
  if (l->b.failed != TWS_OK) return change;
  const tws_operand operands[4] = {moments_of(l, t, TWS_READ), gradient_of(l, t), metrics_of(l),
                                   tws_write(change, 0, t->count)};
  tws_builder_compute_with(&l->b, TWS_STREAM_COMPUTE, &work, &(tws_arguments){{(double)t->first}}, operands, 4);
  return change;
}

/* Emits the kernel that computes what this rank's part of a tensor contributes to two means, and writes it to `norms`:
 * the mean squares of the weights and of their update. */
static void find_norms(tws_lower *l, const tensor *t, uint32_t change, tws_operand norms) {
  tws_work work = tws_kernel_work(TWS_KERNEL_FACTOR_NORMS, TWS_F32, 0);
  work.d[0] = (int64_t)t->count;
  norms.access = TWS_WRITE;
  const tws_operand operands[3] = {weights_of(l, t, TWS_READ), tws_read(change, 0, t->count), norms};
  tws_builder_compute_with(&l->b, TWS_STREAM_COMPUTE, &work, &(tws_arguments){{1.0 / (double)t->elements}}, operands,
                           3);
}

static void update(tws_lower *l, const tws_zero_class *c, const tensor *t, uint32_t change, tws_operand norms) {
  tws_plan *plan = l->b.plan;
  tws_config own;
  tws_config_of_param_group(l->config, c->param_group, &own);
  tws_work work = tws_kernel_work(TWS_KERNEL_ADAFACTOR, TWS_F32, 0);
  work.d[0] = (int64_t)t->count;
  work.f[0] = own.weight_decay, work.f[1] = own.scale_epsilon, work.f[2] = own.rms_limit;
  work.dtype2 = (uint8_t)l->config->dtype;
  norms.access = TWS_READ;
  tws_operand operands[6] = {weights_of(l, t, TWS_READ_WRITE), tws_read(change, 0, t->count),
                             tws_hyper_of(plan->hyper, c->param_group), metrics_of(l), norms};
  int n = 5;
  if (l->config->dtype != TWS_F32) operands[n++] = tws_write(plan->parameters, t->at, t->count);
  tws_builder_compute(&l->b, TWS_STREAM_COMPUTE, &work, operands, n);
}

static void share(tws_lower *l, const tws_zero_class *c, uint32_t buffer, uint64_t elements) {
  const tws_operand all = tws_update(buffer, 0, elements);
  tws_builder_collective(&l->b, TWS_STREAM_COMPUTE, TWS_COLLECTIVE_ALL_REDUCE, c->group, TWS_F64,
                         elements * sizeof(double), 1, 0, &all, 1);
}

static uint32_t make_sums(tws_lower *l, const char *name, uint64_t elements) {
  return tws_builder_buffer(&l->b, name, TWS_CATEGORY_WORKSPACE, TWS_F64, elements, TWS_LIFETIME_OPS);
}

static void lower_class(tws_lower *l, const tws_zero_class *c, tensor_list *list) {
  const int parted = l->zero.stage > 0 && c->ranks > 1;
  uint64_t elements = 0;
  list->count = 0;
  for (uint32_t i = c->first; i < c->end; i++) {
    const uint32_t param = (uint32_t)l->zero.order[i];
    list->moments = l->moments.adafactor.first[param];
    if (tws_zero_numel(l, param)) add_param(l, c, param, list);
  }
  if (list->count == 0) return;
  for (uint32_t i = 0; i < list->count; i++) {
    list->all[i].sums = elements;
    elements += (uint64_t)(list->all[i].rows + list->all[i].columns);
  }
  const uint32_t sums = make_sums(l, "sums of squares of rows and columns", elements);
  const uint32_t norms = make_sums(l, "norms of tensors", 2 * (uint64_t)list->count);
  for (uint32_t i = 0; i < list->count && l->b.failed == TWS_OK; i++) find_sums(l, &list->all[i], sums);
  if (parted) share(l, c, sums, elements);
  for (uint32_t i = 0; i < list->count && l->b.failed == TWS_OK; i++) find_moments(l, c, &list->all[i], sums);
  for (int pass = parted ? 0 : 1; pass < 2; pass++) {
    for (uint32_t i = 0; i < list->count && l->b.failed == TWS_OK; i++) {
      const tensor *t = &list->all[i];
      const tws_operand own = tws_update(norms, 2 * (uint64_t)i, 2);
      const uint32_t change =
          t->count > 0 ? find_change(l, c, t) : l->moments.adafactor.moments; /* of which 0 elements are read */
      if (!parted || pass == 0) find_norms(l, t, change, own);
      if (pass == 1 && t->count > 0) update(l, c, t, change, own);
    }
    if (pass == 0) share(l, c, norms, 2 * (uint64_t)list->count);
  }
}

void tws_adafactor_lower(tws_lower *l) {
  tensor_list list = {.all = tws_lower_memory(l, l->moments.adafactor.tensors, sizeof *list.all)};
  if (!list.all) return;
  for (uint32_t k = 0; k < l->zero.trained_count; k++) lower_class(l, &l->zero.classes[k], &list);
}
