/* Parts of the lowering state (plan/lower.h) that belong to matrix products in 8-bit floating point, and the functions
 * of float8.c and float8_casts.c. Internal to plan/. */
#ifndef TWS_PLAN_LOWER_FLOAT8_H
#define TWS_PLAN_LOWER_FLOAT8_H

#include "models/network/module.h"
#include "plan/builder.h"

struct tws_lower;
struct tws_visit_list;

/* Buffers with an activation or weight quantized to 8-bit floating point: its largest absolute value, its scale, and
 * the quantized elements in row-major and in transposed order. TWS_NONE: the buffer was not built. */
typedef struct tws_codes {
  uint32_t amax, scale, rows, columns;
  int recomputed; /* 1: backward recomputes the value and quantizes it again: its 8-bit copies are not kept */
} tws_codes;

/* Matrix products of layers in 8-bit floating point. */
typedef struct tws_lower_float8 {
  int on, delayed; /* delayed: 1: scales come from the values of earlier steps (twinspeed.fp8_recipe) */
  uint8_t *again;  /* per module: 1 if it is recomputed in backward */
  uint8_t *known;  /* per parameter: 1 if an operation has computed its largest absolute value in this program */
  uint8_t *read;   /* per value: 1 if a product in 8 bits reads it */
  /* per value: number of modules that read it, and how many of these are not products in 8 bits */
  uint32_t *readers, *others;
  /* buffer of largest absolute values: one per parameter, TWS_NONE before the first; delayed: this step's, by slot */
  uint32_t largest;
  /* delayed: 1 + slot of a tensor, for each value, then each parameter, then the gradient of each module's output */
  uint32_t *slot, slots, amax, history; /* amax, history: buffers in the state */
} tws_lower_float8;

/* The 8-bit codes of an operand of the module that is being lowered: in the row-major layout, in the transposed layout,
 * or in both, with their scale. */
typedef struct tws_float8 {
  tws_operand rows, columns, scale;
} tws_float8;

/* Returns 1 if casts are operations of the plan; 0: their cost is part of the products' cost, or there are none. */
int tws_float8_is_planned(const tws_config *config);
/* Fails with TWS_INVALID if no layer can have a matrix product in 8 bits. */
tws_code tws_float8_begin(struct tws_lower *l);
/* Adds the state of delayed scaling for the modules of this pipeline stage, which have to be known. */
tws_code tws_float8_histories(struct tws_lower *l);
/* Marks the modules that these visits recompute; called for each model chunk. */
void tws_float8_visits(struct tws_lower *l, const struct tws_visit_list *visits);
int tws_is_float8(const struct tws_lower *l, const tws_module *m);
/* If the kernel that writes a value is to find its largest absolute value, for a cast that follows, sets the kernel's
 * last operand and returns 1; called after the value's buffer was made. */
int tws_float8_largest(struct tws_lower *l, uint32_t value, tws_operand *operand);
tws_float8 tws_float8_input(struct tws_lower *l, const tws_module *m);
tws_float8 tws_float8_weight(struct tws_lower *l, const tws_module *m);
/* Casts the gradient of a layer's output, or returns the codes that the kernel that computed the gradient has written;
 * dy: the gradient, unless tws_float8_has_gradient() returns 1. bias: the parameter whose gradient the cast also
 * computes, or TWS_NONE, as for codes that are there already. */
tws_float8 tws_float8_gradient(struct tws_lower *l, const tws_module *m, tws_operand dy, uint32_t bias);
/* Returns 1 if the gradient of the layer's output exists as 8-bit codes alone. */
int tws_float8_has_gradient(const struct tws_lower *l, const tws_module *m);
void tws_float8_step(struct tws_lower *l); /* delayed scaling: emits the next step's scales */

/* The functions below, except the last, are defined in float8_casts.c. With delayed scaling a kernel can write the
 * codes of what it computes in place of 16 bits.
 *
 * A cast by the kernel that computes the tensor: its operands, and the layouts that it writes (TWS_ROWS,
 * TWS_COLUMNS). */
typedef struct tws_float8_cast {
  uint32_t layouts;
  tws_operand amax, scale, codes[2], largest; /* codes: row-major, transposed */
} tws_float8_cast;
/* Returns 1 if 8-bit products alone read the value in this pass, so that the kernel that computes it can cast it. */
int tws_float8_can_cast(const struct tws_lower *l, uint32_t value);
/* Return 1 if the kernel of the current visit is to cast its output `value`, or the gradient of its input `value`,
 * which then has no 16-bit elements; write the operands of the cast. rows_only: the kernel cannot write transposed
 * codes, which another kernel makes of the row-major ones. */
int tws_float8_casts_output(struct tws_lower *l, uint32_t value, int rows_only, tws_float8_cast *cast);
int tws_float8_casts_gradient(struct tws_lower *l, uint32_t value, tws_float8_cast *cast);
/* Appends the operands of the cast in the order of QUANTIZE's, sets the flags, and returns the new number of
 * operands. */
int tws_float8_append(const tws_float8_cast *cast, tws_work *work, tws_operand *operands, int count);
/* Returns the operands of a tensor with delayed scaling: its amax, and in *largest the one that a cast raises;
 * `tensor`: index in tws_lower_float8.slot. */
tws_operand tws_float8_delayed(const struct tws_lower *l, uint32_t tensor, tws_operand *largest);

#endif
