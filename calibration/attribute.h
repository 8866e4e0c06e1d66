/* Attributes kernels and operators of other software to kinds of modules, by their names. */
#ifndef TWS_CALIBRATION_ATTRIBUTE_H
#define TWS_CALIBRATION_ATTRIBUTE_H

#include "models/kernel.h"
#include "traces/recording.h"

typedef enum tws_part {
  TWS_PART_LINEAR,
  TWS_PART_ATTENTION,
  TWS_PART_NORM,
  TWS_PART_ACTIVATION,
  TWS_PART_EMBEDDING,
  TWS_PART_LOSS,
  TWS_PART_EXPERTS, /* routing, and reordering of tokens for the experts */
  TWS_PART_ELEMENTWISE,
  TWS_PART_OPTIMIZER,
  TWS_PART_COMMUNICATION,
  TWS_PART_COUNT
} tws_part;
const char *tws_part_name(int part); /* "linear", "attention", ... */

/* Returns the kind of module to which a recorded kernel belongs; TWS_PART_COUNT: neither its name nor its caller's
 * determines it. */
tws_part tws_part_of_recorded(const tws_recorded_kernel *kernel);
tws_part tws_part_of_kernel(tws_kernel kernel);
/* Returns the tws_collective that a kernel of NCCL or RCCL performs, or TWS_COLLECTIVE_COUNT for the name of any other
 * kernel. */
int tws_collective_of_recorded(const char *name);

#endif
