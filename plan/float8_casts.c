/* Kernels that cast what they compute to 8-bit floating point. With delayed scaling (plan/float8.c) the scale of a
 * tensor is known before the tensor exists, so the kernel that computes it can write its codes, and raise its largest
 * absolute value, in place of 16-bit elements that a cast would read again. This holds if 8-bit products alone read the
 * tensor, in all passes of a micro-batch:
 *
 *   the output of a norm, of SwiGLU or GeGLU, or of GELU, exact GELU, ReLU or squared ReLU, if all modules that read it
 *   are 8-bit products. A value that is kept for a product that is recomputed has 16-bit elements, too, since that
 *   product casts the value again.
 *   the gradient of the input of an activation, if it is the output of an 8-bit product without a bias (whose gradient
 *   is the sum of 16-bit elements, which the cast QUANTIZE_SUM reads), and no other module reads that output.
 *
 * Activations write both layouts, from tiles. A norm processes rows, from which no tile can be transposed: it writes
 * row-major codes, of which another kernel makes the transposed ones. A norm then moves 3 bytes an element in place of
 * 6 (1 to write, 1 to read and 1 to write, in place of 2, 2 and 2). The results are those of separate kernels bit for
 * bit, since the output is rounded to 16 bits before it is cast.
 *
 * GELU is otherwise part of the kernel of the product before it. Forward, GELU's own kernel saves 2 bytes an element:
 * the product writes its result (2), GELU reads it (2) and writes codes (2), while a product with GELU writes its
 * result and GELU's output (4), which a cast reads (2) and writes (2). Backward, GELU's gradient stays part of the
 * product: it reads GELU's input (2) and writes the gradient (2), which a cast reads (2), sums for the bias and writes
 * (2). A kernel of its own would move as much: the product writes its result (2), the kernel reads it and GELU's input
 * (4) and writes codes (2). */
#include "plan/lower.h"

/* Returns 1 if the value exists whole, in this model chunk alone. */
static int is_whole(const tws_lower *l, uint32_t value) {
  const tws_chunk *chunk = l->pipeline.chunk;
  return l->float8.delayed && l->at.tiles <= 1 && !l->tiled[value] && l->config->mlp_tiles <= 1 &&
         l->config->attention_chunks <= 1 && value != chunk->in_value && value != chunk->out_value;
}

/* Returns the layouts in which 8-bit products read a value in this pass and later, TWS_ROWS and TWS_COLUMNS; 0: they
 * also read its 16-bit elements. */
static uint32_t layouts_read(const tws_lower *l, uint32_t value) {
  const tws_network *n = l->network;
  int trained = 0, again = 0;
  uint32_t left = l->float8.readers[value];
  for (uint32_t m = n->values[value].producer + 1; m < n->module_count && left > 0; m++) {
    if (n->modules[m].in[0] != value) continue;
    trained |= !tws_is_frozen(l, n->modules[m].param[0]);
    again |= l->float8.again[m];
    left--;
  }
  if (left > 0) return 0;
  if (l->b.phase == TWS_PHASE_RECOMPUTE) return (again ? TWS_ROWS : 0) | (trained ? TWS_COLUMNS : 0);
  if (l->kept[value] == TWS_KEPT_CHECKPOINT || (l->kept[value] == TWS_KEPT && again)) return 0;
  return TWS_ROWS | (trained && l->kept[value] == TWS_KEPT ? TWS_COLUMNS : 0);
}

/* Makes the buffers of a cast of `count` elements; `tensor`: index in tws_lower_float8.slot. */
static tws_codes make_codes(tws_lower *l, uint32_t value, uint32_t tensor, tws_dtype type, tws_category category,
                            tws_float8_cast *cast) {
  const uint64_t count = tws_value_elements(l, value);
  const char *name = l->network->values[value].name;
  tws_codes made = {TWS_NONE, TWS_NONE, TWS_NONE, TWS_NONE, l->b.phase != TWS_PHASE_FORWARD};
  uint32_t *const buffers[2] = {&made.rows, &made.columns};
  cast->amax = tws_float8_delayed(l, tensor, &cast->largest);
  cast->scale = tws_lower_scratch(l, "scale", TWS_F32, 1);
  made.scale = cast->scale.buffer;
  for (int i = 0; i < 2; i++) {
    if (!(cast->layouts & (i ? TWS_COLUMNS : TWS_ROWS))) continue;
    *buffers[i] = tws_builder_buffer(&l->b, name, category, type, count, 0);
    cast->codes[i] = tws_write(*buffers[i], 0, count);
  }
  return made;
}

int tws_float8_can_cast(const tws_lower *l, uint32_t value) {
  const tws_lower_float8 *f = &l->float8;
  return is_whole(l, value) && l->b.failed == TWS_OK && f->readers[value] > 0 && f->others[value] == 0 &&
         layouts_read(l, value) != 0;
}

int tws_float8_casts_output(tws_lower *l, uint32_t value, int rows_only, tws_float8_cast *cast) {
  if (!tws_float8_can_cast(l, value)) return 0;
  *cast = (tws_float8_cast){.layouts = layouts_read(l, value)};
  if (rows_only) cast->layouts = TWS_ROWS;
  tws_value_place(l, value, TWS_NONE);
  l->pipeline.context->codes[value] = make_codes(l, value, value, TWS_E4M3, TWS_CATEGORY_ACTIVATION, cast);
  return 1;
}

int tws_float8_casts_gradient(tws_lower *l, uint32_t value, tws_float8_cast *cast) {
  const tws_network *n = l->network;
  const uint32_t producer = n->values[value].producer;
  if (!is_whole(l, value) || l->b.failed != TWS_OK || producer == TWS_NONE || l->float8.readers[value] != 1) return 0;
  const tws_module *m = &n->modules[producer];
  if (!tws_is_float8(l, m) || m->param[1] != TWS_NONE || m->out[0] != value) return 0;
  *cast = (tws_float8_cast){.layouts = (l->needed[m->in[0]] ? TWS_ROWS : 0) |
                                       (tws_is_frozen(l, m->param[0]) ? 0 : (uint32_t)TWS_COLUMNS)};
  if (cast->layouts == 0) return 0;
  const uint32_t tensor = n->value_count + n->param_count + producer;
  l->pipeline.context->codes[n->value_count + value] =
      make_codes(l, value, tensor, TWS_E5M2, TWS_CATEGORY_ACTIVATION_GRADIENT, cast);
  return 1;
}

int tws_float8_append(const tws_float8_cast *cast, tws_work *work, tws_operand *operands, int count) {
  work->flags |= TWS_FP8 | cast->layouts;
  operands[count++] = cast->amax;
  operands[count++] = cast->scale;
  for (int i = 0; i < 2; i++)
    if (cast->layouts & (i ? TWS_COLUMNS : TWS_ROWS)) operands[count++] = cast->codes[i];
  operands[count++] = cast->largest;
  return count;
}
