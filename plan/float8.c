/* Matrix products of layers in 8-bit floating point, as Transformer Engine does them (twinspeed.matmul_dtype fp8): e4m3
 * for inputs and weights, e5m2 for gradients, one scale per tensor. A scale is computed from a largest absolute value
 * (amax): that which the tensor has now (current scaling, twinspeed.fp8_recipe tensorwise), or the largest of the last
 * steps (delayed scaling, the last paragraph). The 8-bit kernels sum along the rows of both operands, so the gradient
 * of a weight reads the transposed input and output gradient, and the gradient of an input reads the transposed weight.
 *
 * An input is cast once for all matrix products of a micro-batch that read it, row-major, and, unless it is recomputed,
 * also transposed: backward reads the transpose, and the 16-bit value is not kept. A gradient is cast once to both
 * layouts; if the layer has a bias, the cast also sums the 16-bit elements over the tokens, for the gradient of the
 * bias, so that no other operation reads them for it. A weight is cast before each product and the cast is not kept, so
 * that ZeRO, offloading and pipelines are not affected; its largest absolute value is computed once a step, for the
 * weight changes only after all products. Each tensor-parallel rank computes the scales of the operands that it
 * multiplies: shards have separate scales on each rank, replicated operands have equal scales.
 *
 * Delayed scaling: each tensor (the input of products, a weight, the gradient of an output) has a slot in three buffers
 * of the state. A cast reads its amax in one of them and raises the largest absolute value of this step's casts in
 * another, so that no operation reads the tensor before its cast. The last operation of a step, AMAX_HISTORY, puts
 * these values at the front of the history of each tensor and computes the next step's amax. Scales are constant within
 * a step: all micro-batches, and casts of a recomputed value, have the same. Ranks do not exchange these values. A
 * tensor without a history has the scale 1. Evaluations and inference use current scaling. Kernels that compute what
 * products alone read cast it themselves (float8_casts.c). */
#include "plan/float8.h"
#include "plan/lower.h"

enum { MULTIPLE = 16 }; /* rows of codes begin at multiples of 16 bytes */

int tws_float8_is_planned(const tws_config *config) {
  return config->matmul_dtype == TWS_MATMUL_FP8 && !config->casts_assumed;
}

static int fits(int64_t size) {
  return size > 0 && size % MULTIPLE == 0;
}

/* Returns the number of rows that one matrix product processes: all tokens, or the tokens of a tile or slice. */
static int64_t rows_at_once(const tws_lower *l, const tws_module *m) {
  return tws_module_rows(l, m) / (tws_lower_sliced(l, m) ? l->streams.slices : 1);
}

int tws_is_float8(const tws_lower *l, const tws_module *m) {
  if (!l->float8.on || m->type != TWS_MODULE_LINEAR || m->layer < 0) return 0;
  return fits(m->in_features) && fits(m->out_features) && fits(rows_at_once(l, m)) &&
         tws_module_weight_tiles(l, (uint32_t)(m - l->network->modules)) == 1;
}

/* Numbers the tensors of the stage's own modules that are cast. */
static void number_tensors(tws_lower *l) {
  tws_lower_float8 *f = &l->float8;
  const tws_network *n = l->network;
  for (int c = 0; c < l->pipeline.chunk_count; c++)
    for (uint32_t i = l->pipeline.chunks[c].first; i < l->pipeline.chunks[c].end; i++) {
      const tws_module *m = &n->modules[i];
      if (!tws_is_float8(l, m)) continue;
      uint32_t *const slots[] = {&f->slot[m->in[0]], &f->slot[n->value_count + m->param[0]],
                                 &f->slot[n->value_count + n->param_count + i]};
      for (int k = 0; k < 3; k++)
        if (*slots[k] == 0) *slots[k] = ++f->slots;
    }
}

tws_code tws_float8_histories(tws_lower *l) {
  tws_lower_float8 *f = &l->float8;
  const tws_network *n = l->network;
  if (!f->on || l->config->fp8_recipe != TWS_FP8_DELAYED || l->extent.parameters_only ||
      tws_program_serves(l->b.plan->program))
    return TWS_OK;
  f->slot = tws_lower_memory(l, n->value_count + n->param_count + n->module_count, sizeof *f->slot);
  f->readers = tws_lower_memory(l, n->value_count, sizeof *f->readers);
  f->others = tws_lower_memory(l, n->value_count, sizeof *f->others);
  if (!f->slot || !f->readers || !f->others) return l->b.failed;
  for (uint32_t i = 0; i < n->module_count; i++) {
    const tws_module *m = &n->modules[i];
    for (int k = 0; k < TWS_MODULE_INS; k++)
      if (m->in[k] != TWS_NONE) f->readers[m->in[k]]++, f->others[m->in[k]] += tws_is_float8(l, m) ? 0 : 1;
  }
  number_tensors(l);
  if (f->slots == 0) f->slots = 1; /* a stage without 8-bit products: all ranks of a job have the same state entries */
  tws_state_entry entry = {.name = "largest numbers of this step",
                           .tier = TWS_TIER_DEVICE,
                           .dtype = TWS_F32,
                           .category = TWS_CATEGORY_WORKSPACE,
                           .role = TWS_ELEMENTS_NONE,
                           .initial = TWS_INITIAL_ZERO,
                           .optional = 1,
                           .magnitudes = 1,
                           .elements = f->slots};
  f->largest = tws_builder_state(&l->b, &entry);
  entry.checkpointed = 1;
  entry.name = "amax";
  f->amax = tws_builder_state(&l->b, &entry);
  entry.name = "amax history";
  entry.elements *= (uint64_t)l->config->fp8_amax_history_len;
  f->history = tws_builder_state(&l->b, &entry);
  f->delayed = tws_program_is_step(l->b.plan->program);
  if (!f->delayed) f->largest = TWS_NONE;
  return l->b.failed;
}

tws_code tws_float8_begin(tws_lower *l) {
  if (!tws_float8_is_planned(l->config)) return TWS_OK;
  if (l->config->dtype == TWS_F32)
    return tws_fail(l->b.err, TWS_INVALID, "set bf16.enabled, or leave out twinspeed.matmul_dtype",
                    "twinspeed.matmul_dtype fp8 is for layers of 16 bits, and these are float32");
  l->float8.on = 1;
  l->float8.largest = TWS_NONE;
  l->float8.again = tws_lower_memory(l, l->network->module_count, 1);
  l->float8.known = tws_lower_memory(l, l->network->param_count, 1);
  l->float8.read = tws_lower_memory(l, l->network->value_count, 1);
  if (!l->float8.again || !l->float8.known || !l->float8.read) return l->b.failed;
  int any = 0;
  for (uint32_t i = 0; i < l->network->module_count; i++) {
    const tws_module *m = &l->network->modules[i];
    if (tws_is_float8(l, m)) any = l->float8.read[m->in[0]] = 1;
  }
  if (any) return TWS_OK;
  return tws_fail(
      l->b.err, TWS_INVALID,
      "use sizes, and tokens of a micro-batch, that are multiples of 16, without twinspeed.linear_tile_size; or "
      "leave out twinspeed.matmul_dtype",
      "twinspeed.matmul_dtype is fp8, and no product of a layer has sizes on this rank that 8 bits allow");
}

void tws_float8_visits(tws_lower *l, const tws_visit_list *visits) {
  for (uint32_t i = 0; l->float8.on && i < visits->count; i++)
    if (visits->items[i].phase == TWS_PHASE_RECOMPUTE && visits->items[i].module != TWS_NONE)
      l->float8.again[visits->items[i].module] = 1;
}

/* ---- casts ---- */

static void find_largest(tws_lower *l, tws_operand x, tws_operand to) {
  tws_work work = tws_kernel_work(TWS_KERNEL_AMAX, l->config->dtype, 0);
  work.d[0] = (int64_t)x.count;
  const tws_operand operands[2] = {x, to};
  tws_lower_compute(l, &work, operands, 2);
}

/* Operands of a cast other than the tensor, its scale and its codes: the largest absolute value that determines the
 * scale; with delayed scaling the one that the cast updates (largest.count 0: it updates none); and the gradient of a
 * bias that the cast also computes (sums.count 0: none). */
typedef struct cast_operands {
  tws_operand amax, largest, sums;
} cast_operands;

static cast_operands largest_of(tws_lower *l, tws_operand x) {
  const tws_operand largest = tws_lower_scratch(l, "largest number", TWS_F32, 1);
  find_largest(l, x, largest);
  return (cast_operands){.amax = tws_read(largest.buffer, 0, 1)};
}

tws_operand tws_float8_delayed(const tws_lower *l, uint32_t tensor, tws_operand *largest) {
  const tws_lower_float8 *f = &l->float8;
  *largest = tws_update(f->largest, f->slot[tensor] - 1, 1);
  return tws_read(f->amax, f->slot[tensor] - 1, 1);
}

/* Returns the operands of a tensor with delayed scaling; `tensor`: index in tws_lower_float8.slot. */
static cast_operands delayed_amax(const tws_lower *l, uint32_t tensor, int updates) {
  tws_operand largest;
  cast_operands with = {.amax = tws_float8_delayed(l, tensor, &largest)};
  if (updates) with.largest = largest;
  return with;
}

/* Returns the largest absolute value of a parameter, which the first product of the program that reads it computes. */
static cast_operands largest_of_weight(tws_lower *l, uint32_t param, tws_operand x) {
  tws_lower_float8 *f = &l->float8;
  if (f->delayed) {
    const int first = !f->known[param];
    f->known[param] = 1;
    return delayed_amax(l, l->network->value_count + param, first);
  }
  if (f->largest == TWS_NONE)
    f->largest = tws_builder_buffer(&l->b, "largest weights", TWS_CATEGORY_WORKSPACE, TWS_F32, l->network->param_count,
                                    TWS_LIFETIME_OPS);
  if (!f->known[param] && l->b.failed == TWS_OK) {
    f->known[param] = 1;
    find_largest(l, x, tws_write(f->largest, param, 1));
  }
  return (cast_operands){.amax = tws_read(f->largest, param, 1)};
}

/* Casts x to codes in one layout or two (TWS_ROWS, TWS_COLUMNS); out: an operand for each layout. */
static tws_operand quantize(tws_lower *l, tws_operand x, int64_t width, cast_operands with, tws_dtype type,
                            tws_category category, const char *name, uint32_t layouts, tws_operand out[2]) {
  const int finds = with.largest.count > 0, sums = with.sums.count > 0;
  tws_work work = tws_kernel_work(sums ? TWS_KERNEL_QUANTIZE_SUM : TWS_KERNEL_QUANTIZE, l->config->dtype, layouts);
  tws_operand operands[7] = {x, with.amax, tws_lower_scratch(l, "scale", TWS_F32, 1)};
  int n = 3;
  if (finds) work.flags |= TWS_LARGEST;
  if (with.sums.access == TWS_READ_WRITE) work.flags |= TWS_ACCUMULATE;
  work.dtype2 = (uint8_t)(sums ? l->zero.grad_dtype : type);
  work.d[0] = (int64_t)x.count / width;
  work.d[1] = width;
  for (int i = 0; i < 2; i++) {
    if (!(layouts & (i ? TWS_COLUMNS : TWS_ROWS))) continue;
    operands[n] = tws_write(tws_builder_buffer(&l->b, name, category, type, x.count, 0), 0, x.count);
    out[i] = tws_read(operands[n++].buffer, 0, x.count);
  }
  if (finds) operands[n++] = with.largest;
  if (sums) operands[n++] = with.sums;
  tws_lower_compute(l, &work, operands, n);
  return tws_read(operands[2].buffer, 0, 1);
}

/* Casts an operand for the next kernel alone: its codes are scratch memory. */
static tws_float8 cast_by(tws_lower *l, tws_operand x, int64_t width, cast_operands with, tws_dtype type,
                          tws_category category, const char *name, uint32_t layouts) {
  tws_operand out[2] = {{0}};
  tws_float8 cast = {.scale = quantize(l, x, width, with, type, category, name, layouts, out)};
  cast.rows = out[0];
  cast.columns = out[1];
  return cast;
}

/* Returns the largest absolute value of an input of products or of a gradient; x: the tensor, or a tile of it. */
static cast_operands amax_of(tws_lower *l, uint32_t tensor, tws_operand x) {
  return l->float8.delayed ? delayed_amax(l, tensor, 1) : largest_of(l, x);
}

/* Returns the layouts to cast to. Backward reads the transpose, which is cast now if neither the value nor the product
 * is recomputed. */
static uint32_t wanted_layouts(const tws_lower *l, const tws_module *m) {
  const int trained = !l->extent.evaluates && !tws_is_frozen(l, m->param[0]);
  const uint32_t module = (uint32_t)(m - l->network->modules);
  if (l->b.phase == TWS_PHASE_BACKWARD) return TWS_COLUMNS;
  if (l->b.phase == TWS_PHASE_RECOMPUTE) return TWS_ROWS | (trained ? TWS_COLUMNS : 0);
  return TWS_ROWS | (trained && l->kept[m->in[0]] != TWS_NOT_KEPT && !l->float8.again[module] ? TWS_COLUMNS : 0);
}

int tws_float8_largest(tws_lower *l, uint32_t value, tws_operand *operand) {
  /* tiles, and tokens that tensor-parallel ranks gather before the product, have largest values of their own */
  if (!l->float8.on || l->float8.delayed || !l->float8.read[value] || l->config->mlp_tiles > 1 || l->at.tiles > 1 ||
      l->sharding.position.ranks[TWS_AXIS_MODEL] > 1 || l->b.failed != TWS_OK)
    return 0;
  *operand = tws_lower_scratch(l, "largest number", TWS_F32, 1);
  l->pipeline.context->codes[value].amax = operand->buffer;
  return 1;
}

/* Makes the transposed codes of a value of its row-major ones, which takes fewer bytes than another cast. */
static void transpose_codes(tws_lower *l, tws_codes *codes, uint64_t count, int64_t width, const char *name) {
  tws_work work = tws_kernel_work(TWS_KERNEL_TRANSPOSE_CODES, l->config->dtype, 0);
  work.d[0] = (int64_t)count / width;
  work.d[1] = width;
  codes->columns = tws_builder_buffer(&l->b, name, TWS_CATEGORY_ACTIVATION, TWS_E4M3, count, 0);
  const tws_operand operands[2] = {tws_read(codes->rows, 0, count), tws_write(codes->columns, 0, count)};
  tws_lower_compute(l, &work, operands, 2);
}

tws_float8 tws_float8_input(tws_lower *l, const tws_module *m) {
  const uint32_t value = m->in[0];
  const uint32_t wanted = wanted_layouts(l, m);
  const char *name = l->network->values[value].name;
  if (l->at.tiles > 1) {
    const uint32_t now = l->b.phase == TWS_PHASE_BACKWARD ? TWS_COLUMNS : TWS_ROWS;
    const tws_operand tile = tws_value_read(l, value);
    return cast_by(l, tile, m->in_features, amax_of(l, value, tile), TWS_E4M3, TWS_CATEGORY_ACTIVATION, name, now);
  }
  tws_codes *have = &l->pipeline.context->codes[value];
  if (have->recomputed != (l->b.phase != TWS_PHASE_FORWARD))
    have->rows = TWS_NONE; /* the row-major codes of another pass are not reused */
  have->recomputed = l->b.phase != TWS_PHASE_FORWARD;
  const uint32_t missing = (wanted & TWS_ROWS && have->rows == TWS_NONE ? TWS_ROWS : 0) |
                           (wanted & TWS_COLUMNS && have->columns == TWS_NONE ? TWS_COLUMNS : 0);
  const uint64_t count = tws_value_elements(l, value);
  if (missing == TWS_COLUMNS && have->rows != TWS_NONE) {
    transpose_codes(l, have, count, m->in_features, name);
  } else if (missing && l->b.failed == TWS_OK) {
    tws_operand out[2] = {{0}};
    const tws_operand x = tws_value_read(l, value);
    cast_operands with;
    if (l->float8.delayed) {
      with = delayed_amax(l, value, 1);
    } else {
      if (have->amax == TWS_NONE) have->amax = largest_of(l, x).amax.buffer;
      with = (cast_operands){.amax = tws_read(have->amax, 0, 1)};
    }
    have->scale = quantize(l, x, m->in_features, with, TWS_E4M3, TWS_CATEGORY_ACTIVATION, name, missing, out).buffer;
    if (missing & TWS_ROWS) have->rows = out[0].buffer;
    if (missing & TWS_COLUMNS) have->columns = out[1].buffer;
  }
  return (tws_float8){tws_read(have->rows, 0, count), tws_read(have->columns, 0, count), tws_read(have->scale, 0, 1)};
}

tws_float8 tws_float8_weight(tws_lower *l, const tws_module *m) {
  const int backward = l->b.phase == TWS_PHASE_BACKWARD;
  const tws_operand weight = tws_zero_param(l, m->param[0]);
  return cast_by(l, weight, m->in_features, largest_of_weight(l, m->param[0], weight), TWS_E4M3, TWS_CATEGORY_WORKSPACE,
                 "weight in 8 bits", backward ? TWS_COLUMNS : TWS_ROWS);
}

int tws_float8_has_gradient(const tws_lower *l, const tws_module *m) {
  return l->float8.delayed && l->pipeline.context->codes[l->network->value_count + m->out[0]].scale != TWS_NONE;
}

tws_float8 tws_float8_gradient(tws_lower *l, const tws_module *m, tws_operand dy, uint32_t bias) {
  if (tws_float8_has_gradient(l, m)) {
    tws_codes *const codes = &l->pipeline.context->codes[l->network->value_count + m->out[0]];
    const tws_codes have = *codes;
    const uint64_t count = tws_value_elements(l, m->out[0]);
    codes->scale = TWS_NONE;
    return (tws_float8){tws_read(have.rows, 0, count), tws_read(have.columns, 0, count), tws_read(have.scale, 0, 1)};
  }
  const uint32_t layouts =
      (l->needed[m->in[0]] ? TWS_ROWS : 0) | (tws_is_frozen(l, m->param[0]) ? 0 : (uint32_t)TWS_COLUMNS);
  const uint32_t tensor = l->network->value_count + l->network->param_count + (uint32_t)(m - l->network->modules);
  int accumulate;
  cast_operands with = amax_of(l, tensor, dy);
  if (bias != TWS_NONE) with.sums = tws_zero_gradient(l, bias, &accumulate);
  return cast_by(l, dy, m->out_features, with, TWS_E5M2, TWS_CATEGORY_ACTIVATION_GRADIENT,
                 l->network->values[m->out[0]].name, layouts);
}

void tws_float8_step(tws_lower *l) {
  const tws_lower_float8 *f = &l->float8;
  tws_work work = tws_kernel_work(TWS_KERNEL_AMAX_HISTORY, TWS_F32, 0);
  const uint64_t length = (uint64_t)l->config->fp8_amax_history_len;
  if (!f->delayed) return;
  work.d[0] = f->slots;
  work.d[1] = (int64_t)length;
  work.f[0] = (double)l->config->fp8_margin;
  const tws_operand operands[3] = {tws_update(f->largest, 0, f->slots), tws_update(f->history, 0, f->slots * length),
                                   tws_write(f->amax, 0, f->slots)};
  tws_builder_compute(&l->b, TWS_STREAM_COMPUTE, &work, operands, 3);
}

tws_float8_products tws_plan_float8_products(const tws_plan *plan) {
  tws_float8_products count = {0, 0};
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const tws_op *op = &plan->ops[i];
    const tws_work *work = &plan->works[op->work];
    if (op->kind != TWS_OP_COMPUTE || op->phase != TWS_PHASE_FORWARD || op->micro_batch > 0) continue;
    if (work->code != TWS_KERNEL_LINEAR && work->code != TWS_KERNEL_EXPERT_LINEAR) continue;
    count.all++;
    count.eight += (work->flags & TWS_FP8) != 0;
  }
  return count;
}
