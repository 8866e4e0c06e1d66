/* Averages over replicas by signs, with error feedback (Tang et al. 2021, "1-bit Adam"; Lu et al. 2022, "0/1 Adam").
 *
 * Each tensor is compressed separately. Padded to ranks x part elements, its average takes
 *
 *   SIGN_PACK     signs and scale of the tensor plus this rank's error of the last time ("worker error")
 *   all-to-all    part r of the signs goes to rank r; all-gather of the scales
 *   SIGN_AVERAGE  signs and scale of the mean of the received part plus its error of the last time ("server error")
 *   all-gather    of the signs of all parts, and of their scales
 *   SIGN_UNPACK   the average, equal on all ranks
 *
 * so that a rank sends two bits for each element, 1/16 of what an all-reduce of 16-bit numbers sends. One collective
 * has the tensors of all parameters as segments; DeepSpeed has one for each parameter, with the same arithmetic.
 *
 *   COMPRESSED    of OneBitAdam: the momentum is updated with the rank's own gradients, and averaged. Of ZeroOneAdam:
 *                 the gradients are averaged. Second moments are not updated
 *   LOCAL         the momentum and the weights are updated with the rank's own gradients; u sums up the changes
 *   MERGE         a LOCAL step, then the changes are removed again, averaged in the form of momenta, and applied
 *
 * Gradients of these programs are not reduced: each is the rank's own. Their squares are added over ranks, so that all
 * ranks clip and skip alike: by the root mean square of the norms of the ranks' gradients (DeepSpeed's ranks clip each
 * by its own norm). */
#include "plan/compressed.h"

#include "models/operator.h"
#include "plan/zero.h"

enum { SIGNS = 8 };

static const tws_optimizer_row *optimizer(const tws_lower *l) {
  return tws_optimizer_of(l->config->optimizer);
}

int tws_gradients_stay_local(const tws_lower *l) {
  return l->b.plan->program >= TWS_PROGRAM_COMPRESSED && l->b.plan->program <= TWS_PROGRAM_MERGE;
}

/* ---- the state ---- */

static uint32_t add_errors(tws_lower *l, const char *name, uint64_t elements) {
  const tws_state_entry entry = {.name = name,
                                 .dtype = TWS_F32,
                                 .category = TWS_CATEGORY_MOMENT,
                                 .role = TWS_ELEMENTS_NONE,
                                 .initial = TWS_INITIAL_ZERO,
                                 .elements = elements};
  return elements > 0 ? tws_builder_state(&l->b, &entry) : TWS_NONE;
}

uint64_t tws_compressed_part(uint64_t count, uint64_t ranks) {
  uint64_t unit = SIGNS * ranks;
  for (uint64_t two = 2; two <= SIGNS && ranks % two == 0; two *= 2) unit /= 2;
  return (count + unit * ranks - 1) / (unit * ranks) * unit;
}

void tws_compressed_add(tws_lower *l, const tws_zero_class *of, uint32_t param, uint64_t at, uint64_t count) {
  tws_compressed *c = &l->compressed;
  const uint64_t part = tws_compressed_part(count, (uint64_t)of->ranks);
  if (!c->tensors) c->tensors = tws_lower_memory(l, l->network->param_count, sizeof *c->tensors);
  if (count == 0 || l->b.failed != TWS_OK) return;
  c->tensors[c->count++] = (tws_compressed_tensor){.param = param,
                                                   .of = of,
                                                   .at = at,
                                                   .count = count,
                                                   .part = part,
                                                   .worker = c->worker_elements,
                                                   .server = c->server_elements};
  c->worker_elements += part * (uint64_t)of->ranks;
  c->server_elements += part;
}

/* Lists the tensors that are compressed, and the offsets of their errors: each parameter is a tensor. */
static void list_tensors(tws_lower *l) {
  const tws_zero *z = &l->zero;
  for (uint32_t k = 0; k < z->trained_count; k++) {
    const tws_zero_class *of = &z->classes[k];
    for (uint32_t i = of->first; i < of->end && of->ranks > 1; i++) {
      const uint32_t param = (uint32_t)z->order[i];
      tws_compressed_add(l, of, param, z->flat_offset[param], tws_zero_numel(l, param));
    }
  }
}

void tws_compressed_add_errors(tws_lower *l) {
  l->compressed.worker = add_errors(l, "worker errors", l->compressed.worker_elements);
  l->compressed.server = add_errors(l, "server errors", l->compressed.server_elements);
}

void tws_compressed_begin(tws_lower *l) {
  tws_compressed *c = &l->compressed;
  c->worker = c->server = c->changes = TWS_NONE;
  if (optimizer(l)->phases == TWS_PHASES_ONE || optimizer(l)->phases == TWS_PHASES_SCALED || l->extent.parameters_only)
    return;
  list_tensors(l);
  if (l->b.failed != TWS_OK) return;
  tws_compressed_add_errors(l);
  if (optimizer(l)->phases != TWS_PHASES_INTERVALS) return;
  uint64_t owned = 0;
  for (uint32_t k = 0; k < l->zero.trained_count; k++) owned += l->zero.classes[k].partition;
  c->changes = add_errors(l, "local changes", owned);
}

/* ---- the average ---- */

/* Buffers with which the ranks of a ZeRO class average all its tensors once. */
typedef struct exchange {
  const tws_zero_class *of;
  uint64_t tensors;
  uint32_t group;
  int ranks;
  /* signs: of this rank's tensors; received for its part; of the average of its part; of the averages of all parts */
  uint32_t codes, received, averages, all;
  uint32_t scale[2], scales[2]; /* scales of tensors [0], of averages [1]: this rank's; those of all ranks */
} exchange;

static uint32_t room(tws_lower *l, const char *name, tws_dtype dtype, uint64_t elements) {
  return tws_builder_buffer(&l->b, name, TWS_CATEGORY_BUCKET, dtype, elements, TWS_LIFETIME_OPS);
}

/* Creates the buffers of an exchange of `elements` signs. */
static exchange make_exchange(tws_lower *l, const tws_zero_class *of, uint64_t tensors, uint64_t elements) {
  const uint64_t ranks = (uint64_t)of->ranks;
  exchange x = {.of = of, .tensors = tensors, .group = of->group, .ranks = of->ranks};
  x.codes = room(l, "signs", TWS_U8, elements / SIGNS);
  x.received = room(l, "received signs", TWS_U8, elements / SIGNS);
  x.averages = room(l, "signs of averages", TWS_U8, elements / SIGNS / ranks);
  x.all = room(l, "signs of all averages", TWS_U8, elements / SIGNS);
  for (int i = 0; i < 2; i++) {
    x.scale[i] = room(l, i ? "scales of averages" : "scales", TWS_F32, tensors);
    x.scales[i] = room(l, i ? "all scales of averages" : "all scales", TWS_F32, tensors * ranks);
  }
  return x;
}

static tws_work sign_work(tws_kernel kernel, const uint64_t *d, int count) {
  tws_work work = tws_kernel_work(kernel, TWS_F32, 0);
  for (int i = 0; i < count; i++) work.d[i] = (int64_t)d[i];
  return work;
}

static tws_operand scalars(const tws_lower *l) {
  return tws_read(l->b.plan->metrics, 0, TWS_METRIC_COUNT);
}

/* Emits the all-gather of scales. which: 0 of tensors, 1 of averages. */
static void gather_scales(tws_lower *l, const exchange *x, int which) {
  const tws_operand operands[2] = {tws_read(x->scale[which], 0, x->tensors),
                                   tws_write(x->scales[which], 0, x->tensors * (uint64_t)x->ranks)};
  tws_builder_collective(&l->b, TWS_STREAM_COMPUTE, TWS_COLLECTIVE_ALL_GATHER, x->group, TWS_F32,
                         operands[1].count * sizeof(float), 1, 0, operands, 2);
}

/* Emits a collective whose segments are the signs of one tensor each: sent from `from` (the part of a tensor, or with
 * whole 1 all parts), received in `to`. */
static void exchange_signs(tws_lower *l, const exchange *x, tws_collective collective, uint32_t from, int whole,
                           uint32_t to) {
  const tws_compressed *c = &l->compressed;
  tws_operand *operands = tws_calloc(2 * (size_t)x->tensors + 1, sizeof *operands);
  uint64_t bytes = 0;
  int n = 0;
  if (!operands) tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
  for (uint32_t i = 0; i < c->count && operands; i++) {
    const tws_compressed_tensor *t = &c->tensors[i];
    const uint64_t part = t->part / SIGNS, ranks = (uint64_t)x->ranks;
    if (t->of != x->of) continue;
    operands[n++] = whole ? tws_read(from, bytes, part * ranks) : tws_read(from, bytes / ranks, part);
    operands[n++] = tws_write(to, bytes, part * ranks);
    bytes += part * ranks;
  }
  if (operands)
    tws_builder_collective(&l->b, TWS_STREAM_COMPUTE, collective, x->group, TWS_U8, bytes, (uint32_t)x->tensors, 0,
                           operands, n);
  tws_free(operands);
}

/* Emits a fill with zeros of a range of float32 numbers. */
static void clear(tws_lower *l, tws_operand range) {
  tws_work work = tws_kernel_work(TWS_KERNEL_FILL, TWS_F32, 0);
  work.d[0] = (int64_t)range.count;
  range.access = TWS_WRITE;
  tws_builder_compute(&l->b, TWS_STREAM_COMPUTE, &work, &range, 1);
}

static void pack(tws_lower *l, const tws_compressed_tensor *t, tws_operand from, const exchange *x, uint64_t index,
                 uint64_t at) {
  const uint64_t ranks = (uint64_t)x->ranks, d[] = {t->count, t->part, ranks};
  const tws_work work = sign_work(TWS_KERNEL_SIGN_PACK, d, 3);
  from.access = TWS_READ;
  if (!l->config->error_feedback) clear(l, tws_write(l->compressed.worker, t->worker, t->part * ranks));
  const tws_operand operands[5] = {from, tws_update(l->compressed.worker, t->worker, t->part * ranks), scalars(l),
                                   tws_write(x->codes, at / SIGNS, t->part * ranks / SIGNS),
                                   tws_write(x->scale[0], index, 1)};
  tws_builder_compute(&l->b, TWS_STREAM_COMPUTE, &work, operands, 5);
}

static void average(tws_lower *l, const tws_compressed_tensor *t, const exchange *x, uint64_t index, uint64_t at) {
  const uint64_t ranks = (uint64_t)x->ranks, d[] = {t->part, ranks, x->tensors};
  const tws_work work = sign_work(TWS_KERNEL_SIGN_AVERAGE, d, 3);
  if (!l->config->error_feedback) clear(l, tws_write(l->compressed.server, t->server, t->part));
  const tws_operand operands[6] = {
      tws_read(x->received, at / SIGNS, t->part * ranks / SIGNS),  tws_all(&l->b, x->scales[0], TWS_READ),
      tws_update(l->compressed.server, t->server, t->part),        scalars(l),
      tws_write(x->averages, at / ranks / SIGNS, t->part / SIGNS), tws_write(x->scale[1], index, 1)};
  tws_builder_compute_with(&l->b, TWS_STREAM_COMPUTE, &work, &(tws_arguments){{(double)index}}, operands, 6);
}

static void unpack(tws_lower *l, const tws_compressed_tensor *t, tws_operand to, const exchange *x, uint64_t index,
                   uint64_t at) {
  const uint64_t ranks = (uint64_t)x->ranks, d[] = {t->count, t->part, ranks, x->tensors};
  tws_work work = sign_work(TWS_KERNEL_SIGN_UNPACK, d, 4);
  if (to.access == TWS_READ_WRITE) work.flags = TWS_ACCUMULATE; /* a skipped step keeps it */
  const tws_operand operands[4] = {tws_read(x->all, at / SIGNS, t->part * ranks / SIGNS),
                                   tws_all(&l->b, x->scales[1], TWS_READ), scalars(l), to};
  tws_builder_compute_with(&l->b, TWS_STREAM_COMPUTE, &work, &(tws_arguments){{(double)index}}, operands, 4);
}

void tws_compressed_mask(tws_lower *l, uint32_t param, tws_operand average) {
  const int64_t reached = l->config->sequence_length;
  for (uint32_t m = 0; m < l->network->module_count && l->config->momentum_mask; m++) {
    const tws_module *module = &l->network->modules[m];
    if (module->type != TWS_MODULE_EMBEDDING || module->param[1] != param) continue;
    const tws_param *table = &l->network->params[param];
    const int64_t first = table->rows > reached ? reached * table->columns : 0;
    if (first == 0) return;
    clear(l, tws_write(average.buffer, average.offset + (uint64_t)first, average.count - (uint64_t)first));
    return;
  }
}

void tws_compressed_average(tws_lower *l, const tws_zero_class *of, tws_compressed_source source,
                            tws_compressed_sink sink) {
  const tws_compressed *c = &l->compressed;
  uint64_t tensors = 0, elements = 0;
  for (uint32_t i = 0; i < c->count; i++) {
    if (c->tensors[i].of != of) continue;
    tensors++;
    elements += c->tensors[i].part * (uint64_t)of->ranks;
  }
  if (tensors == 0 || l->b.failed != TWS_OK) return;
  const exchange x = make_exchange(l, of, tensors, elements);
  for (int pass = 0; pass < 3 && l->b.failed == TWS_OK; pass++) {
    uint64_t index = 0, at = 0;
    for (uint32_t i = 0; i < c->count && l->b.failed == TWS_OK; i++) {
      const tws_compressed_tensor *t = &c->tensors[i];
      if (t->of != of) continue;
      if (pass == 0) pack(l, t, source(l, t), &x, index, at);
      if (pass == 1) average(l, t, &x, index, at);
      if (pass == 2) {
        const tws_operand to = sink ? tws_write(room(l, "average", TWS_F32, t->count), 0, t->count) : source(l, t);
        unpack(l, t, to, &x, index, at);
        if (t->param != TWS_NONE) tws_compressed_mask(l, t->param, to);
        if (sink) sink(l, t, to);
      }
      index++;
      at += t->part * (uint64_t)of->ranks;
    }
    if (pass == 2 || l->b.failed != TWS_OK) continue;
    if (pass == 0)
      exchange_signs(l, &x, TWS_COLLECTIVE_ALL_TO_ALL, x.codes, 1, x.received);
    else
      exchange_signs(l, &x, TWS_COLLECTIVE_ALL_GATHER, x.averages, 0, x.all);
    gather_scales(l, &x, pass);
  }
}

/* ---- updates of a ZeRO class: all its elements at once ---- */

/* Returns the operand of `count` elements of a state buffer from `at` on, an index in the flat order of parameters at
 * stage 0. */
static tws_operand of_state(uint32_t buffer, uint64_t at, uint64_t count, uint32_t access) {
  return (tws_operand){.buffer = buffer, .access = access, .offset = at, .count = count};
}

static tws_operand hyper(const tws_lower *l, const tws_zero_class *of) {
  return tws_hyper_of(l->b.plan->hyper, of->param_group);
}

/* Emits a kernel MOMENTUM that reads `gradients`, multiplies them by `factor`, which turns this rank's share of the
 * mean into its own gradient, and writes to `to`. adds: 1 updates the momentum there, 0 writes the gradient. */
static void momentum(tws_lower *l, const tws_zero_class *of, tws_operand gradients, tws_operand to, double factor,
                     int clips, int adds) {
  tws_work work = tws_kernel_work(TWS_KERNEL_MOMENTUM, (tws_dtype)l->b.plan->buffers[gradients.buffer].dtype,
                                  adds ? TWS_ACCUMULATE : 0);
  work.d[0] = (int64_t)to.count;
  gradients.access = TWS_READ;
  to.access = adds ? TWS_READ_WRITE : TWS_WRITE;
  const tws_operand operands[4] = {gradients, hyper(l, of), scalars(l), to};
  tws_builder_compute_with(&l->b, TWS_STREAM_COMPUTE, &work, &(tws_arguments){{factor, clips}}, operands, 4);
}

/* Returns the work of an update of all elements of a class. copies: 1 if it also writes 16-bit weights. */
static tws_work update_work(const tws_lower *l, const tws_zero_class *of, tws_kernel kernel, int copies) {
  tws_config own;
  tws_config_of_param_group(l->config, of->param_group, &own);
  tws_work work = tws_kernel_work(kernel, TWS_F32, 0);
  work.dtype2 = (uint8_t)(copies ? l->config->dtype : TWS_F32);
  work.d[0] = (int64_t)of->total;
  tws_work_set_parameter(&work, "epsilon", own.epsilon);
  tws_work_set_parameter(&work, "weight_decay", own.weight_decay);
  return work;
}

/* Returns 1 if weights have a 16-bit copy, and appends the copy as an operand. */
static int append_copy(const tws_lower *l, const tws_zero_class *of, tws_operand *operands, int *n) {
  const tws_plan *plan = l->b.plan;
  if (plan->master == TWS_NONE || plan->buffers[plan->master].dtype == l->config->dtype) return 0;
  operands[(*n)++] = of_state(plan->parameters, of->stored, of->total, TWS_WRITE);
  return 1;
}

static tws_operand weights(const tws_lower *l, const tws_zero_class *of) {
  const tws_plan *plan = l->b.plan;
  return plan->master != TWS_NONE ? of_state(plan->master, of->kept, of->total, TWS_READ_WRITE)
                                  : of_state(plan->parameters, of->stored, of->total, TWS_READ_WRITE);
}

/* Emits FROZEN_ADAM. local: 1 also sums up the changes; last: 0 if a later kernel writes the 16-bit weights. */
static void frozen_update(tws_lower *l, const tws_zero_class *of, int local, int last) {
  const tws_plan *plan = l->b.plan;
  tws_operand operands[7] = {weights(l, of), of_state(plan->optimizer_state[0], of->kept, of->total, TWS_READ),
                             of_state(plan->optimizer_state[1], of->kept, of->total, TWS_READ), hyper(l, of),
                             scalars(l)};
  int n = 5;
  if (local) operands[n++] = of_state(l->compressed.changes, of->kept, of->total, TWS_READ_WRITE);
  const int copies = last && append_copy(l, of, operands, &n);
  tws_work work = update_work(l, of, TWS_KERNEL_FROZEN_ADAM, copies);
  if (local) work.flags |= TWS_ACCUMULATE;
  tws_builder_compute(&l->b, TWS_STREAM_COMPUTE, &work, operands, n);
}

static void undo(tws_lower *l, const tws_zero_class *of) {
  const tws_plan *plan = l->b.plan;
  const tws_work work = update_work(l, of, TWS_KERNEL_LOCAL_UNDO, 0);
  const tws_operand operands[4] = {weights(l, of), of_state(l->compressed.changes, of->kept, of->total, TWS_READ_WRITE),
                                   of_state(plan->optimizer_state[1], of->kept, of->total, TWS_READ), scalars(l)};
  tws_builder_compute(&l->b, TWS_STREAM_COMPUTE, &work, operands, 4);
}

static void merge(tws_lower *l, const tws_zero_class *of) {
  const tws_plan *plan = l->b.plan;
  tws_operand operands[7] = {weights(l, of),
                             of_state(plan->optimizer_state[0], of->kept, of->total, TWS_READ_WRITE),
                             of_state(l->compressed.changes, of->kept, of->total, TWS_READ_WRITE),
                             of_state(plan->optimizer_state[1], of->kept, of->total, TWS_READ),
                             hyper(l, of),
                             scalars(l)};
  int n = 6;
  const int copies = append_copy(l, of, operands, &n);
  const tws_work work = update_work(l, of, TWS_KERNEL_LOCAL_MERGE, copies);
  tws_builder_compute(&l->b, TWS_STREAM_COMPUTE, &work, operands, n);
}

/* ---- tensors that are averaged, by program ---- */

static tws_operand momentum_of(tws_lower *l, const tws_compressed_tensor *t) {
  return of_state(l->b.plan->optimizer_state[0], t->of->kept + t->at - t->of->stored, t->count, TWS_READ_WRITE);
}

static tws_operand changes_of(tws_lower *l, const tws_compressed_tensor *t) {
  return of_state(l->compressed.changes, t->of->kept + t->at - t->of->stored, t->count, TWS_READ_WRITE);
}

/* Emits the kernel that computes the rank's own gradient of a tensor in float32, clipped, and returns its operand. */
static tws_operand gradient_of(tws_lower *l, const tws_compressed_tensor *t) {
  const tws_operand to = tws_write(room(l, "own gradient", TWS_F32, t->count), 0, t->count);
  momentum(l, t->of, tws_read(l->b.plan->gradients, t->at, t->count), to, t->of->ranks, 1, 0);
  return to;
}

static void use_gradient(tws_lower *l, const tws_compressed_tensor *t, tws_operand average) {
  momentum(l, t->of, average, momentum_of(l, t), 1, 0, 1);
}

static void update_class(tws_lower *l, const tws_zero_class *of) {
  const tws_program program = l->b.plan->program;
  const int local = program != TWS_PROGRAM_COMPRESSED, intervals = optimizer(l)->phases == TWS_PHASES_INTERVALS;
  const tws_operand m = of_state(l->b.plan->optimizer_state[0], of->kept, of->total, TWS_READ_WRITE);
  if (of->total == 0) return;
  if (!local && intervals && of->ranks > 1) {
    tws_compressed_average(l, of, gradient_of, use_gradient);
  } else {
    momentum(l, of, tws_read(l->b.plan->gradients, of->stored, of->total), m, of->ranks, 1, 1);
    if (!local && of->ranks > 1) tws_compressed_average(l, of, momentum_of, NULL);
  }
  frozen_update(l, of, local, program != TWS_PROGRAM_MERGE);
  if (program != TWS_PROGRAM_MERGE) return;
  undo(l, of);
  tws_compressed_average(l, of, changes_of, NULL);
  merge(l, of);
}

void tws_compressed_update(tws_lower *l) {
  for (uint32_t k = 0; k < l->zero.trained_count && l->b.failed == TWS_OK; k++) update_class(l, &l->zero.classes[k]);
}

void tws_compressed_freeze(tws_lower *l) {
  const uint32_t errors[2] = {l->compressed.worker, l->compressed.server};
  l->b.phase = TWS_PHASE_STEP;
  for (int i = 0; i < 2 && l->b.failed == TWS_OK; i++) {
    if (errors[i] == TWS_NONE) continue;
    clear(l, tws_all(&l->b, errors[i], TWS_WRITE));
  }
}
