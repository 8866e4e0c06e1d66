/* Parts of the lowering state (plan/lower.h) that belong to passes of the optimizer phase. Internal to plan/. */
#ifndef TWS_PLAN_LOWER_OPTIMIZER_H
#define TWS_PLAN_LOWER_OPTIMIZER_H

#include <stdint.h>

/* Adafactor's second moments, of rows and of columns (plan/adafactor.c). */
typedef struct tws_adafactor {
  uint64_t *first;  /* per parameter: offset of its first second moment */
  uint32_t moments; /* buffer in the state */
  uint32_t tensors; /* number of tensors that have second moments of their own */
} tws_adafactor;

/* States of 8 bits (plan/eight_bit.c), of the first and of the second moments. */
typedef struct tws_eight_bit {
  uint64_t elements;            /* elements that the rank updates with such states: the first of those it updates */
  uint32_t codes[2], scales[2]; /* buffers in the state */
} tws_eight_bit;

/* Moments that are not one float32 element for each of a parameter's. */
typedef struct tws_other_moments {
  tws_adafactor adafactor;
  tws_eight_bit eight_bit;
} tws_other_moments;

/* OneBitLamb's compressed steps (plan/onebit_lamb.c). Lists have an element for each parameter, equal on all ranks. */
typedef struct tws_onebit_lamb {
  int on;
  uint64_t *place;   /* per parameter: offset of its momentum in the buffer of scaled momenta; UINT64_MAX: not here */
  uint64_t elements; /* of that buffer, with padding */
  uint64_t padding[4]; /* per compressed tensor: number of elements of padding at its end */
  uint32_t scaled; /* buffer of the scaled momenta of this program; TWS_NONE: none yet */
  /* buffers in the state: second moments of averaged gradients, updated also after the optimizer's own are frozen;
   * and lists: averages of trust ratios, their factors, and scales by which momenta are multiplied before they are
   * compressed */
  uint32_t fresh, ratios, factors, scales;
  uint32_t kept; /* buffer in the state: the padding of all compressed tensors; TWS_NONE: there is none */
} tws_onebit_lamb;

#endif
