/* Matrix products of layers in 8-bit floating point, as Transformer Engine's current scaling does them
 * (twinspeed.matmul_dtype fp8): e4m3 for inputs and weights, e5m2 for gradients, one scale per tensor, computed from
 * the largest absolute value that the tensor has at that time. The 8-bit kernels sum along the rows of both operands,
 * so the gradient of a weight reads the transposed input and output gradient, and the gradient of an input reads the
 * transposed weight.
 *
 * An input is cast once for all matrix products of a micro-batch that read it, row-major, and, unless it is recomputed,
 * also transposed: backward reads the transpose, and the 16-bit value is not kept. A gradient is cast once to both
 * layouts. A weight is cast before each product and the cast is not kept, so that ZeRO, offloading and pipelines are
 * not affected; its largest absolute value is computed once a step, for the weight changes only after all products.
 * Each tensor-parallel rank computes the scales of the operands that it multiplies: shards have separate scales on each
 * rank, replicated operands have equal scales. */
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

static tws_operand largest_of(tws_lower *l, tws_operand x) {
  const tws_operand largest = tws_lower_scratch(l, "largest number", TWS_F32, 1);
  find_largest(l, x, largest);
  return tws_read(largest.buffer, 0, 1);
}

/* Returns the largest absolute value of a parameter, which the first product of the program that reads it computes. */
static tws_operand largest_of_weight(tws_lower *l, uint32_t param, tws_operand x) {
  tws_lower_float8 *f = &l->float8;
  if (f->largest == TWS_NONE)
    f->largest = tws_builder_buffer(&l->b, "largest weights", TWS_CATEGORY_WORKSPACE, TWS_F32, l->network->param_count,
                                    TWS_LIFETIME_OPS);
  if (!f->known[param] && l->b.failed == TWS_OK) {
    f->known[param] = 1;
    find_largest(l, x, tws_write(f->largest, param, 1));
  }
  return tws_read(f->largest, param, 1);
}

/* Casts x, whose largest absolute value is `amax`, to codes in one layout or two (TWS_ROWS, TWS_COLUMNS); out: an
 * operand for each layout. */
static tws_operand quantize(tws_lower *l, tws_operand x, int64_t width, tws_operand amax, tws_dtype type,
                            tws_category category, const char *name, uint32_t layouts, tws_operand out[2]) {
  tws_work work = tws_kernel_work(TWS_KERNEL_QUANTIZE, l->config->dtype, layouts);
  tws_operand operands[5] = {x, amax, tws_lower_scratch(l, "scale", TWS_F32, 1)};
  int n = 3;
  work.dtype2 = (uint8_t)type;
  work.d[0] = (int64_t)x.count / width;
  work.d[1] = width;
  for (int i = 0; i < 2; i++) {
    if (!(layouts & (i ? TWS_COLUMNS : TWS_ROWS))) continue;
    operands[n] = tws_write(tws_builder_buffer(&l->b, name, category, type, x.count, 0), 0, x.count);
    out[i] = tws_read(operands[n++].buffer, 0, x.count);
  }
  tws_lower_compute(l, &work, operands, n);
  return tws_read(operands[2].buffer, 0, 1);
}

/* Casts an operand for the next kernel alone: its codes are scratch memory. */
static tws_float8 cast_by(tws_lower *l, tws_operand x, int64_t width, tws_operand amax, tws_dtype type,
                          tws_category category, const char *name, uint32_t layouts) {
  tws_operand out[2] = {{0}};
  tws_float8 cast = {.scale = quantize(l, x, width, amax, type, category, name, layouts, out)};
  cast.rows = out[0];
  cast.columns = out[1];
  return cast;
}

/* Casts an operand, such as a tile, for the next kernel alone, after its largest absolute value was computed. */
static tws_float8 cast_once(tws_lower *l, tws_operand x, int64_t width, tws_dtype type, tws_category category,
                            const char *name, uint32_t layouts) {
  return cast_by(l, x, width, largest_of(l, x), type, category, name, layouts);
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
  if (!l->float8.on || !l->float8.read[value] || l->config->mlp_tiles > 1 || l->at.tiles > 1 ||
      l->sharding.position.ranks[TWS_AXIS_MODEL] > 1 || l->b.failed != TWS_OK)
    return 0;
  *operand = tws_lower_scratch(l, "largest number", TWS_F32, 1);
  l->pipeline.context->codes[value].amax = operand->buffer;
  return 1;
}

tws_float8 tws_float8_input(tws_lower *l, const tws_module *m) {
  const uint32_t value = m->in[0];
  const uint32_t wanted = wanted_layouts(l, m);
  const char *name = l->network->values[value].name;
  if (l->at.tiles > 1) {
    const uint32_t now = l->b.phase == TWS_PHASE_BACKWARD ? TWS_COLUMNS : TWS_ROWS;
    return cast_once(l, tws_value_read(l, value), m->in_features, TWS_E4M3, TWS_CATEGORY_ACTIVATION, name, now);
  }
  tws_codes *have = &l->pipeline.context->codes[value];
  if (have->recomputed != (l->b.phase != TWS_PHASE_FORWARD))
    have->rows = TWS_NONE; /* the row-major codes of another pass are not reused */
  have->recomputed = l->b.phase != TWS_PHASE_FORWARD;
  const uint32_t missing = (wanted & TWS_ROWS && have->rows == TWS_NONE ? TWS_ROWS : 0) |
                           (wanted & TWS_COLUMNS && have->columns == TWS_NONE ? TWS_COLUMNS : 0);
  const uint64_t count = tws_value_elements(l, value);
  if (missing && l->b.failed == TWS_OK) {
    tws_operand out[2] = {{0}};
    const tws_operand x = tws_value_read(l, value);
    if (have->amax == TWS_NONE) have->amax = largest_of(l, x).buffer;
    have->scale = quantize(l, x, m->in_features, tws_read(have->amax, 0, 1), TWS_E4M3, TWS_CATEGORY_ACTIVATION, name,
                           missing, out)
                      .buffer;
    if (missing & TWS_ROWS) have->rows = out[0].buffer;
    if (missing & TWS_COLUMNS) have->columns = out[1].buffer;
  }
  return (tws_float8){tws_read(have->rows, 0, count), tws_read(have->columns, 0, count), tws_read(have->scale, 0, 1)};
}

tws_float8 tws_float8_weight(tws_lower *l, const tws_module *m) {
  const int backward = l->b.phase == TWS_PHASE_BACKWARD;
  const tws_operand weight = tws_zero_param(l, m->param[0]);
  return cast_by(l, weight, m->in_features, largest_of_weight(l, m->param[0], weight), TWS_E4M3,
                 TWS_CATEGORY_WORKSPACE, "weight in 8 bits", backward ? TWS_COLUMNS : TWS_ROWS);
}

tws_float8 tws_float8_gradient(tws_lower *l, const tws_module *m, tws_operand dy) {
  const uint32_t layouts =
      (l->needed[m->in[0]] ? TWS_ROWS : 0) | (tws_is_frozen(l, m->param[0]) ? 0 : (uint32_t)TWS_COLUMNS);
  return cast_once(l, dy, m->out_features, TWS_E5M2, TWS_CATEGORY_ACTIVATION_GRADIENT,
                   l->network->values[m->out[0]].name, layouts);
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
