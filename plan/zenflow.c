/* ZenFlow (Lan et al. 2025): the device updates a few columns of each matrix, and all vectors, in every step; the host
 * updates the other columns every few steps, with the mean of the gradients since its last update.
 *
 *   TRAIN    gradients stay on the device until the optimizer phase. Those of the device's columns are packed, their
 *            master weights and states are updated, and the weights are written back to the columns of the matrices.
 *            All gradients
 *            are copied to the host, where they are staged: the clipping coefficient is computed after the backward
 *            pass, so the next program accumulates them, multiplied by it, while the device runs the forward pass.
 *            The copies begin with the last parameters, whose gradients are complete first, and overlap with the
 *            backward pass.
 *
 *   APPLY    after the last step of an interval: the staged gradients are accumulated, then the host's update, as in
 *            offload.c, with a clipping coefficient of 1 / steps, which turns sums of gradients into their mean. Then
 *            the weights of the device's columns are written back, and the sums are reset.
 *
 *   SELECT   an APPLY followed by the selection of columns: those with the largest sums over the rows of a matrix of
 *            |sum of gradients|, added over all ranks that have a part of it, so that the selection does not depend on
 *            how it is partitioned. Where tensor parallelism splits a matrix by columns, the numbers of the selected
 *            columns are those of the whole matrix, and a rank's compact buffers have room for all of them, of which
 *            those that it does not store stay 0. Experts of a layer are one matrix.
 *
 *   SYNC     copies master weights and states of the device's columns to the host, and those of selected columns to the
 *            device: after SELECT, before a checkpoint, and when a training continues from one.
 *
 *   OVERLAP, OVERLAP_SELECT   with overlap_step, in place of the TRAIN after an interval: the host's part of the APPLY
 *            or SELECT runs on the host's cores during the passes of this step, from its sums, which are reset before
 *            the gradients of this step are added to them. The updated weights of a layer are copied to the device
 *            after the layer's backward pass, those of the last layers first; then the columns of the device are
 *            updated. So the weights of the other columns are one step late. The hyperparameters and the coefficient of
 *            the late update are entries of the state, as in delayed.c; a coefficient of 0 updates nothing.
 *
 * With update_interval "auto" the length of an interval is measured: every step adds up the absolute gradients of each
 * matrix, over all columns and over the selected ones, on the device and over all ranks. These sizes are entries of the
 * state, which the engine reads after the step to decide whether the interval ends (real/late_updates.c).
 *
 * The host's master weights and states of the device's columns are stale. The host updates them too, without effect,
 * since SYNC overwrites them before any operation reads them.
 *
 * Differences from DeepSpeed 0.19, on purpose: selected columns keep their float32 master weights and states (DeepSpeed
 * updates 16-bit weights and begins with states of 0); the optimizer may be any of config/optimizers.def; columns are
 * selected by the gradients of the whole matrix (DeepSpeed: of each owner's part) over a whole interval; a step has
 * gradient_accumulation_steps micro-batches. */
#include "plan/zenflow.h"

#include "plan/offload.h"
#include "plan/zero.h"

/* ---- parts of matrices and numbers of selected columns ---- */

static void place_piece(const tws_lower *l, tws_columns_segment *p) {
  const tws_zero_part part = tws_zero_part_of(l, &l->zero.classes[p->zero_class], p->param);
  if (part.count == 0) return;
  p->at = part.at;
  p->kept = part.kept;
  p->count = (int64_t)part.count;
  p->first = (int64_t)(part.first % (uint64_t)p->local);
  p->rows = (p->first + p->count + p->local - 1) / p->local;
}

/* Returns the segment of a parameter, without the part of this rank and the offsets. A matrix is that of the whole
 * network: its columns, of which tensor parallelism may give this rank only some. */
static tws_columns_segment segment_of(const tws_lower *l, uint32_t param, uint32_t zero_class) {
  uint64_t in_weight;
  const uint32_t origin = tws_weight_tile_origin(l, param, &in_weight);
  const tws_param *whole = &l->b.plan->network->params[origin];
  const tws_param_slice *slice = l->local.slices ? &l->local.slices[origin] : NULL;
  const int matrix = whole->rows > 1;
  const int64_t columns = matrix ? whole->columns : 1, local = matrix ? l->network->params[param].columns : 1;
  return (tws_columns_segment){
      .param = param,
      .zero_class = zero_class,
      .columns = columns,
      .chosen = matrix ? (int64_t)(l->config->zenflow.topk_ratio * (double)columns) : 1,
      .local = local,
      .before = slice && local < columns ? slice->first_column : 0,
      .apart = tws_placed_is_split((tws_placed)l->local.params[param].on[TWS_AXIS_MODEL])};
}

/* The sizes of a matrix: its sums of |gradient| over all columns, and over the selected ones. Each sum has PARTS parts,
 * which the engine adds up: a device adds thousands of norms faster to several sums than to one. */
enum { SIZES = 2, PARTS = 32 };

/* Returns 1 for a matrix with selected and other columns, whose gradients can be compared. */
static int is_measured(const tws_columns_segment *p) {
  return p->chosen < p->columns;
}

static void list_pieces(tws_lower *l) {
  tws_columns *z = &l->columns;
  z->segments = tws_lower_memory(l, l->network->param_count, sizeof *z->segments);
  for (uint32_t k = 0; k < l->zero.trained_count && l->b.failed == TWS_OK; k++)
    for (uint32_t i = l->zero.classes[k].first; i < l->zero.classes[k].end; i++) {
      const uint32_t param = (uint32_t)l->zero.order[i];
      tws_columns_segment *p = &z->segments[z->count];
      *p = segment_of(l, param, k);
      if (p->chosen == 0) continue; /* too narrow a matrix to have selected columns: the host updates all of it */
      z->count++;
      p->list = z->listed;
      p->norms = z->normed;
      p->compact = z->compact_elements;
      p->sizes = z->sized;
      place_piece(l, p);
      if (is_measured(p)) z->sized += SIZES * PARTS;
      z->listed += (uint64_t)p->chosen;
      z->normed += (uint64_t)p->columns;
      z->compact_elements += (uint64_t)(p->rows * p->chosen);
    }
}

/* ---- the state ---- */

static uint32_t add_list(tws_lower *l, const char *name, int checkpointed) {
  const tws_state_entry entry = {.name = name,
                                 .dtype = TWS_I32,
                                 .category = TWS_CATEGORY_INPUT,
                                 .role = TWS_ELEMENTS_NONE,
                                 .initial = TWS_INITIAL_ZERO,
                                 .checkpointed = (uint8_t)checkpointed,
                                 .optional = 1,
                                 .everywhere = 1,
                                 .elements = l->columns.listed};
  return tws_builder_state(&l->b, &entry);
}

/* Adds the entries for intervals of measured length: the sizes of the last step's gradients, and what the engine keeps
 * about the interval. */
static void add_sizes(tws_lower *l) {
  tws_columns *z = &l->columns;
  z->sizes = TWS_NONE;
  if (!tws_zenflow_measures(l->config) || z->sized == 0) return;
  const tws_state_entry entry = {.name = TWS_ZENFLOW_SIZES,
                                 .dtype = TWS_F32,
                                 .category = TWS_CATEGORY_INPUT,
                                 .role = TWS_ELEMENTS_NONE,
                                 .initial = TWS_INITIAL_ZERO,
                                 .everywhere = 1,
                                 .elements = z->sized};
  z->sizes = tws_builder_state(&l->b, &entry);
  tws_delayed_scalar(l, TWS_ZENFLOW_INTERVAL, TWS_F64, TWS_INTERVAL_VALUES + z->sized / PARTS);
}

void tws_zenflow_begin(tws_lower *l, uint64_t kept) {
  static const char *const names[1 + TWS_OPTIMIZER_STATES] = {
      "masters of columns", "state 1 of columns", "state 2 of columns", "state 3 of columns", "state 4 of columns"};
  tws_columns *z = &l->columns;
  z->on = l->config->zenflow.on && l->offload.optimizer;
  if (!z->on) return;
  list_pieces(l);
  z->accumulated = tws_offload_waiting_gradients(l, TWS_ZENFLOW_GRADIENTS, TWS_F32, kept);
  z->staged = tws_offload_waiting_gradients(l, TWS_ZENFLOW_STAGED, l->config->accumulation_dtype, kept);
  z->staged_metrics = tws_delayed_scalar(l, TWS_ZENFLOW_STAGED_METRICS, TWS_F64, TWS_METRIC_COUNT);
  z->late_norms = TWS_NONE;
  if (l->config->zenflow.overlap_step) tws_delayed_scalars(l, TWS_OVERLAPPED_HYPER, TWS_OVERLAPPED_METRICS);
  add_sizes(l);
  if (z->listed == 0) return;
  z->chosen = add_list(l, "chosen columns", 1);
  z->held = add_list(l, "columns on the device", 0);
  for (int kind = 0; kind <= l->b.plan->optimizer_states && z->compact_elements > 0; kind++) {
    const tws_state_entry entry = {.name = names[kind],
                                   .dtype = TWS_F32,
                                   .category = kind == 0 ? TWS_CATEGORY_MASTER : TWS_CATEGORY_MOMENT,
                                   .role = TWS_ELEMENTS_NONE,
                                   .initial = TWS_INITIAL_ZERO,
                                   .elements = z->compact_elements};
    z->compact[kind] = tws_builder_state(&l->b, &entry);
  }
}

/* ---- operations on all columns ---- */

static void clear(tws_lower *l, tws_stream stream, uint32_t buffer, uint64_t count) {
  tws_work work = tws_kernel_work(TWS_KERNEL_FILL, TWS_F32, 0);
  const tws_operand all = tws_write(buffer, 0, count);
  work.d[0] = (int64_t)count;
  if (count > 0 && l->b.failed == TWS_OK) tws_builder_compute(&l->b, stream, &work, &all, 1);
}

/* Returns the index of the first segment of the next ZeRO class. */
static uint32_t end_of_class(const tws_columns *z, uint32_t i) {
  uint32_t next = i + 1;
  while (next < z->count && z->segments[next].zero_class == z->segments[i].zero_class) next++;
  return next;
}

/* Returns the offset in the norms (sizes 0) or in the sizes at which segment i begins, or the end of all. */
static uint64_t offset_of(const tws_columns *z, uint32_t i, int sizes) {
  if (i == z->count) return sizes ? z->sized : z->normed;
  return sizes ? z->segments[i].sizes : z->segments[i].norms;
}

static void add_over(tws_lower *l, uint32_t group, uint32_t buffer, uint64_t first, uint64_t end) {
  const tws_operand all = tws_update(buffer, first, end - first);
  if (end > first && l->b.failed == TWS_OK)
    tws_builder_collective(&l->b, TWS_STREAM_COMPUTE, TWS_COLLECTIVE_ALL_REDUCE, group, TWS_F32,
                           all.count * sizeof(float), 1, 0, &all, 1);
}

/* Emits the sums of a float32 buffer of norms (sizes 0) or sizes over all ranks that have different parts of a matrix:
 * those that share its ZeRO class, those that have other experts, and, of matrices that tensor parallelism splits, the
 * tensor-parallel ranks. Of each ZeRO class these matrices come first. */
static void add_over_ranks(tws_lower *l, uint32_t buffer, int sizes) {
  const tws_columns *z = &l->columns;
  for (uint32_t i = 0, next, apart; i < z->count; i = next) {
    const tws_zero_class *c = &l->zero.classes[z->segments[i].zero_class];
    const tws_placement *placed = &l->local.params[z->segments[i].param];
    next = end_of_class(z, i);
    const uint64_t first = offset_of(z, i, sizes), end = offset_of(z, next, sizes);
    if (c->ranks > 1) add_over(l, c->group, buffer, first, end);
    for (int axis = 0; axis < TWS_AXIS_COUNT; axis++)
      if (placed->on[axis] == TWS_PLACED_EXPERTS && l->sharding.position.ranks[axis] > 1)
        add_over(l, tws_lower_group(l, 1u << axis), buffer, first, end);
    for (apart = i; apart < next && z->segments[apart].apart;) apart++;
    if (l->group[TWS_AXIS_MODEL] != TWS_NONE)
      add_over(l, l->group[TWS_AXIS_MODEL], buffer, first, offset_of(z, apart, sizes));
  }
}

/* ---- copies of columns ---- */

/* Emits a kernel that copies the selected columns from `range`, a range of a matrix, to a compact buffer (back 1: from
 * the buffer to the matrix). `lists`: buffer of the columns' indices, on the device or host on which the kernel
 * runs. */
static void move(tws_lower *l, const tws_columns_segment *p, tws_operand range, uint32_t lists, uint32_t compact,
                 int back) {
  if (l->b.failed != TWS_OK) return;
  const tws_plan *plan = l->b.plan;
  const int host = tws_offload_is_on_host(l, compact);
  const uint64_t elements = (uint64_t)(p->rows * p->chosen);
  tws_work work = tws_kernel_work(back ? TWS_KERNEL_SCATTER_COLUMNS : TWS_KERNEL_GATHER_COLUMNS,
                                  (tws_dtype)plan->buffers[compact].dtype, 0);
  const int64_t sizes[] = {p->count, p->local, p->chosen, p->rows};
  for (int i = 0; i < 4; i++) work.d[i] = sizes[i];
  range.access = back ? TWS_READ_WRITE : TWS_READ;
  const tws_operand packed = {compact, back ? TWS_READ : TWS_WRITE, p->compact, elements};
  const tws_operand operands[3] = {back ? packed : range, tws_read(lists, p->list, (uint64_t)p->chosen),
                                   back ? range : packed};
  tws_builder_compute_with(&l->b, host ? TWS_STREAM_HOST : TWS_STREAM_COMPUTE, &work,
                           &(tws_arguments){{(double)p->first, (double)p->before}}, operands, 3);
}

static uint32_t on_device(tws_lower *l, const char *name, tws_category category, tws_dtype dtype) {
  return tws_builder_buffer(&l->b, name, category, dtype, l->columns.compact_elements, TWS_LIFETIME_OPS);
}

/* Returns a buffer with the weights of the device's columns in the type of the computation. */
static uint32_t cast_weights(tws_lower *l) {
  const tws_columns *z = &l->columns;
  if (l->config->dtype == TWS_F32) return z->compact[0];
  const uint32_t weights = on_device(l, "weights of columns", TWS_CATEGORY_BUCKET, l->config->dtype);
  tws_work work = tws_kernel_work(TWS_KERNEL_CAST, TWS_F32, 0);
  work.dtype2 = (uint8_t)l->config->dtype;
  work.d[0] = (int64_t)z->compact_elements;
  const tws_operand operands[2] = {tws_read(z->compact[0], 0, z->compact_elements),
                                   tws_write(weights, 0, z->compact_elements)};
  tws_builder_compute(&l->b, TWS_STREAM_COMPUTE, &work, operands, 2);
  return weights;
}

/* Writes the weights of the device's columns to their positions in the parameters. */
static void put_weights(tws_lower *l, uint32_t weights) {
  const tws_columns *z = &l->columns;
  for (uint32_t i = 0; i < z->count; i++)
    if (z->segments[i].count > 0)
      move(l, &z->segments[i], tws_update(l->b.plan->parameters, z->segments[i].at, (uint64_t)z->segments[i].count),
           z->held, weights, 1);
}

/* ---- the training step ---- */

static tws_operand gradients_of(const tws_lower *l, uint64_t at, uint64_t kept, uint64_t count) {
  return tws_read(l->b.plan->gradients, l->zero.flat_gradients ? at : kept, count);
}

static void update_columns(tws_lower *l) {
  const tws_columns *z = &l->columns;
  const tws_plan *plan = l->b.plan;
  tws_operand operands[TWS_OPTIMIZER_STATES + 5];
  const uint64_t count = z->compact_elements;
  int n = 0;
  if (count == 0 || l->b.failed != TWS_OK) return;
  const uint32_t gradients = on_device(l, "gradients of columns", TWS_CATEGORY_GRADIENT, l->config->accumulation_dtype);
  for (uint32_t i = 0; i < z->count; i++) {
    const tws_columns_segment *p = &z->segments[i];
    if (p->count > 0) move(l, p, gradients_of(l, p->at, p->kept, (uint64_t)p->count), z->held, gradients, 0);
  }
  const tws_work work = tws_lower_update_work(l, l->config->accumulation_dtype, count);
  for (int kind = 0; kind <= plan->optimizer_states; kind++) operands[n++] = tws_update(z->compact[kind], 0, count);
  operands[n++] = tws_read(gradients, 0, count);
  operands[n++] = tws_hyper_of(plan->hyper, 0);
  operands[n++] = tws_all(&l->b, plan->metrics, TWS_READ);
  /* the buffer gets the old weights first, since the update writes no weights if any gradient is not finite */
  const uint32_t weights = cast_weights(l);
  if (weights != z->compact[0]) operands[n++] = tws_write(weights, 0, count);
  tws_builder_compute(&l->b, TWS_STREAM_COMPUTE, &work, operands, n);
  put_weights(l, weights);
}

/* ---- sizes of gradients ---- */

/* Emits the parts of the sum of norms, from element `size` of the sizes on: part i is the sum of every PARTS-th norm
 * from norm i on, as if the norms were a matrix of PARTS columns. */
static void add_up(tws_lower *l, tws_operand norms, uint64_t size) {
  tws_work work = tws_kernel_work(TWS_KERNEL_COLUMN_NORMS, TWS_F32, 0);
  work.d[0] = (int64_t)norms.count;
  work.d[1] = PARTS;
  const tws_operand operands[2] = {norms, tws_write(l->columns.sizes, size, PARTS)};
  if (l->b.failed == TWS_OK)
    tws_builder_compute_with(&l->b, TWS_STREAM_COMPUTE, &work, &(tws_arguments){{0}}, operands, 2);
}

/* Emits the sizes of a matrix's gradients, over the elements that this rank updates: first the norms of its columns,
 * from these the norms of the selected ones, and of both the sums. */
static void measure_matrix(tws_lower *l, const tws_columns_segment *p, uint32_t norms, uint32_t selected) {
  const tws_columns *z = &l->columns;
  const uint64_t columns = (uint64_t)p->local, chosen = (uint64_t)p->chosen;
  if (l->b.failed != TWS_OK) return;
  tws_work work = tws_kernel_work(TWS_KERNEL_COLUMN_NORMS, l->config->accumulation_dtype, 0);
  work.d[0] = p->count;
  work.d[1] = p->local;
  const tws_operand all[2] = {gradients_of(l, p->at, p->kept, (uint64_t)p->count), tws_write(norms, p->norms, columns)};
  tws_builder_compute_with(&l->b, TWS_STREAM_COMPUTE, &work, &(tws_arguments){{(double)p->first}}, all, 2);
  add_up(l, tws_read(norms, p->norms, columns), p->sizes);
  const tws_columns_segment row = {.columns = p->columns,
                                   .chosen = p->chosen,
                                   .local = p->local,
                                   .before = p->before,
                                   .rows = 1,
                                   .count = p->local,
                                   .list = p->list,
                                   .compact = p->list};
  move(l, &row, tws_read(norms, p->norms, columns), z->held, selected, 0);
  add_up(l, tws_read(selected, p->list, chosen), p->sizes + PARTS);
}

/* Emits the sizes of the gradients of all measured matrices, over all ranks, for the engine. */
static void measure(tws_lower *l) {
  const tws_columns *z = &l->columns;
  if (z->sizes == TWS_NONE || l->b.failed != TWS_OK) return;
  const uint32_t norms =
      tws_builder_buffer(&l->b, "norms of gradients", TWS_CATEGORY_WORKSPACE, TWS_F32, z->normed, TWS_LIFETIME_OPS);
  const uint32_t selected = tws_builder_buffer(&l->b, "norms of selected columns", TWS_CATEGORY_WORKSPACE, TWS_F32,
                                               z->listed, TWS_LIFETIME_OPS);
  clear(l, TWS_STREAM_COMPUTE, z->sizes, z->sized); /* the sizes of matrices of which this rank updates nothing are 0 */
  for (uint32_t i = 0; i < z->count; i++)
    if (is_measured(&z->segments[i]) && z->segments[i].count > 0) measure_matrix(l, &z->segments[i], norms, selected);
  add_over_ranks(l, z->sizes, 1);
}

/* Calls `emit` for ranges of all gradients that this rank updates, the last ones first. at: index of the range's first
 * element in the flat order; kept: its index among the elements that the rank updates. */
static void each_range(tws_lower *l, void (*emit)(tws_lower *l, uint64_t at, uint64_t kept, uint64_t count)) {
  for (uint32_t k = l->zero.trained_count; k-- > 0;) {
    const tws_zero_class *c = &l->zero.classes[k];
    for (uint64_t left = c->partition; left > 0 && l->b.failed == TWS_OK;) {
      const uint64_t count = left < TWS_OFFLOAD_RANGE ? left : TWS_OFFLOAD_RANGE;
      left -= count;
      emit(l, tws_zero_kept_first(&l->zero, c) + left, c->kept + left, count);
    }
  }
}

static void stage_range(tws_lower *l, uint64_t at, uint64_t kept, uint64_t count) {
  tws_builder_copy(&l->b, TWS_STREAM_COPY_OUT, gradients_of(l, at, kept, count),
                   tws_write(l->columns.staged, kept, count));
}

/* Each copy waits for the last gradient of its range, and until the host has accumulated the gradients that were staged
 * before in that range. */
void tws_zenflow_stage(tws_lower *l) {
  if (l->columns.on) each_range(l, stage_range);
}

static void accumulate_range(tws_lower *l, uint64_t at, uint64_t kept, uint64_t count) {
  (void)at;
  const tws_columns *z = &l->columns;
  tws_work work = tws_kernel_work(TWS_KERNEL_ACCUMULATE_CLIPPED, l->config->accumulation_dtype, 0);
  work.dtype2 = TWS_F32;
  work.d[0] = (int64_t)count;
  const tws_operand operands[3] = {tws_read(z->staged, kept, count), tws_all(&l->b, z->staged_metrics, TWS_READ),
                                   tws_update(z->accumulated, kept, count)};
  tws_builder_compute(&l->b, TWS_STREAM_HOST, &work, operands, 3);
}

/* Emits host kernels that add the staged gradients of the previous step to the accumulated sums. */
static void accumulate_staged(tws_lower *l) {
  each_range(l, accumulate_range);
}

static void choose(tws_lower *l, uint32_t here);
static void bring_up_to_date(tws_lower *l);

void tws_zenflow_step(tws_lower *l) {
  if (tws_program_overlaps(l->b.plan->program)) tws_offload_store(l);
  measure(l);
  update_columns(l);
  if (l->columns.late_norms != TWS_NONE) {
    choose(l, l->columns.late_norms);
    bring_up_to_date(l);
  }
  tws_builder_copy(&l->b, TWS_STREAM_COPY_OUT, tws_read(l->b.plan->metrics, 0, TWS_METRIC_COUNT),
                   tws_write(l->columns.staged_metrics, 0, TWS_METRIC_COUNT));
}

/* ---- the host's update ---- */

static void begin_host(tws_lower *l) {
  l->b.phase = TWS_PHASE_STEP;
  l->b.module = TWS_NONE;
}

/* Emits the host's optimizer update of all elements of this rank, then overwrites the weights of the selected columns
 * by those that the device has updated. */
static void update_on_host(tws_lower *l) {
  tws_offload_squares_begin(l); /* creates the buffers of the scalars */
  tws_offload_scalars(l);
  tws_lower_update(l);
  if (l->columns.compact_elements > 0 && l->b.failed == TWS_OK) put_weights(l, cast_weights(l));
}

static void begin_anew(tws_lower *l) {
  if (l->b.failed == TWS_OK)
    clear(l, TWS_STREAM_HOST, l->columns.accumulated, l->b.plan->buffers[l->columns.accumulated].elements);
}

/* Emits host kernels that compute the norms of all columns of all matrices, over the rows that this rank updates.
 * Returns the buffer of the norms. */
static uint32_t find_norms(tws_lower *l) {
  const tws_columns *z = &l->columns;
  const uint32_t here = tws_offload_buffer(l, "norms on the host", TWS_CATEGORY_WORKSPACE, TWS_F32, z->normed);
  clear(l, TWS_STREAM_HOST, here, z->normed); /* the norms of columns of which this rank updates nothing are 0 */
  for (uint32_t i = 0; i < z->count; i++) {
    const tws_columns_segment *p = &z->segments[i];
    if (p->count == 0) continue;
    tws_work work = tws_kernel_work(TWS_KERNEL_COLUMN_NORMS, TWS_F32, 0);
    work.d[0] = p->count;
    work.d[1] = p->local;
    const tws_operand operands[2] = {tws_read(z->accumulated, p->kept, (uint64_t)p->count),
                                     tws_write(here, p->norms + (uint64_t)p->before, (uint64_t)p->local)};
    tws_builder_compute_with(&l->b, TWS_STREAM_HOST, &work, &(tws_arguments){{(double)p->first}}, operands, 2);
  }
  return here;
}

/* Copies the norms to the device and emits their sum over all ranks. Returns its buffer. */
static uint32_t share_norms(tws_lower *l, uint32_t here) {
  const tws_columns *z = &l->columns;
  const uint32_t norms =
      tws_builder_buffer(&l->b, "norms of columns", TWS_CATEGORY_WORKSPACE, TWS_F32, z->normed, TWS_LIFETIME_OPS);
  tws_builder_copy(&l->b, TWS_STREAM_COPY_IN, tws_read(here, 0, z->normed), tws_write(norms, 0, z->normed));
  add_over_ranks(l, norms, 0);
  return norms;
}

/* Emits the selection of columns by their norms, which are in the host buffer `here`. */
static void choose(tws_lower *l, uint32_t here) {
  const tws_columns *z = &l->columns;
  if (z->listed == 0 || l->b.failed != TWS_OK) return;
  const uint32_t norms = share_norms(l, here);
  for (uint32_t i = 0; i < z->count; i++) {
    const tws_columns_segment *p = &z->segments[i];
    tws_work work = tws_kernel_work(TWS_KERNEL_TOP_COLUMNS, TWS_F32, 0);
    work.d[0] = p->columns;
    work.d[1] = p->chosen;
    const tws_operand operands[2] = {tws_read(norms, p->norms, (uint64_t)p->columns),
                                     tws_write(z->chosen, p->list, (uint64_t)p->chosen)};
    tws_builder_compute(&l->b, TWS_STREAM_COMPUTE, &work, operands, 2);
  }
}

static uint32_t copy_list_out(tws_lower *l, uint32_t list) {
  const uint32_t here = tws_offload_buffer(l, "columns on the host", TWS_CATEGORY_INPUT, TWS_I32, l->columns.listed);
  tws_builder_copy(&l->b, TWS_STREAM_COPY_OUT, tws_read(list, 0, l->columns.listed),
                   tws_write(here, 0, l->columns.listed));
  return here;
}

/* Copies master weights (kind 0) and states of the listed columns from the device to the host (out 1), or back. */
static void exchange(tws_lower *l, uint32_t lists, int out) {
  const tws_columns *z = &l->columns;
  const tws_plan *plan = l->b.plan;
  for (int kind = 0; kind <= plan->optimizer_states && l->b.failed == TWS_OK; kind++) {
    const uint64_t count = z->compact_elements;
    const uint32_t there = kind == 0 ? plan->master : plan->optimizer_state[kind - 1];
    const uint32_t here =
        tws_offload_buffer(l, "states of columns", (tws_category)plan->buffers[there].category, TWS_F32, count);
    if (out)
      tws_builder_copy(&l->b, TWS_STREAM_COPY_OUT, tws_read(z->compact[kind], 0, count), tws_write(here, 0, count));
    for (uint32_t i = 0; i < z->count; i++)
      if (z->segments[i].count > 0)
        move(l, &z->segments[i], tws_update(there, z->segments[i].kept, (uint64_t)z->segments[i].count), lists, here,
             out);
    if (!out)
      tws_builder_copy(&l->b, TWS_STREAM_COPY_IN, tws_read(here, 0, count), tws_write(z->compact[kind], 0, count));
  }
}

static void bring_up_to_date(tws_lower *l) {
  const tws_columns *z = &l->columns;
  if (z->listed == 0 || l->b.failed != TWS_OK) return;
  if (z->compact_elements > 0) exchange(l, copy_list_out(l, z->held), 1);
  tws_builder_copy(&l->b, TWS_STREAM_COMPUTE, tws_read(z->chosen, 0, z->listed), tws_write(z->held, 0, z->listed));
  if (z->compact_elements > 0) exchange(l, copy_list_out(l, z->chosen), 0);
}

static void end_interval(tws_lower *l, int selects) {
  begin_host(l);
  accumulate_staged(l);
  /* marks that no gradients are staged: copies a metric that the engine has set to 0 to their clipping coefficient */
  if (l->b.failed == TWS_OK)
    tws_builder_copy(&l->b, TWS_STREAM_COPY_OUT, tws_read(l->b.plan->metrics, TWS_METRIC_LOSS, 1),
                     tws_write(l->columns.staged_metrics, TWS_METRIC_CLIP, 1));
  update_on_host(l);
  if (selects) {
    if (l->columns.listed > 0 && l->b.failed == TWS_OK) choose(l, find_norms(l));
    bring_up_to_date(l);
  }
  begin_anew(l);
  tws_lower_gather_parameters(l);
}

void tws_zenflow_apply(tws_lower *l) {
  end_interval(l, 0);
}

void tws_zenflow_select(tws_lower *l) {
  end_interval(l, 1);
}

void tws_zenflow_sync(tws_lower *l) {
  begin_host(l);
  bring_up_to_date(l);
}

void tws_zenflow_late(tws_lower *l) {
  const tws_program program = (tws_program)l->b.plan->program;
  if (!l->columns.on || l->extent.evaluates) return;
  const tws_phase phase = l->b.phase;
  l->b.phase = TWS_PHASE_STEP;
  accumulate_staged(l);
  if (tws_program_overlaps(program)) {
    tws_delayed_run(l, l->columns.accumulated);
    l->b.phase = TWS_PHASE_STEP;
    if (program == TWS_PROGRAM_OVERLAP_SELECT && l->columns.listed > 0 && l->b.failed == TWS_OK)
      l->columns.late_norms = find_norms(l);
    begin_anew(l);
  }
  l->b.plan->previous_step_ops = l->b.plan->op_count;
  l->b.phase = phase;
}
