/* Types of the rows of models/network/modules.def, and functions on these rows. */
#ifndef TWS_MODELS_NETWORK_MODULE_H
#define TWS_MODELS_NETWORK_MODULE_H

#include "models/kernel.h"
#include "models/network/network.h"

typedef enum tws_binding_source {
  TWS_BIND_END,
  TWS_BIND_NONE,
  TWS_BIND_IN,
  TWS_BIND_OUT,
  TWS_BIND_PARAM,
  TWS_BIND_INPUT,
  TWS_BIND_IN_OR_INPUT,
  TWS_BIND_TAKE,
  TWS_BIND_UPDATE,
  TWS_BIND_D_OUT,
  TWS_BIND_D_IN,
  TWS_BIND_D_IN_PLACE,
  TWS_BIND_D_IN_UPDATE,
  TWS_BIND_D_PARAM,
  TWS_BIND_WORKSPACE,
  TWS_BIND_RUNNING,
  TWS_BIND_RUNNING_UPDATE,
  TWS_BIND_HYPER,
  TWS_BIND_METRICS,
  TWS_BIND_SCALE
} tws_binding_source;

typedef struct tws_binding {
  uint8_t source, index;
} tws_binding;

/* The programs (training, evaluation) that contain a kernel. */
enum { TWS_IN_TRAINING = 1, TWS_IN_EVALUATION = 2, TWS_IN_ALL = 3 };

enum { TWS_BINDINGS = 20 };
typedef struct tws_module_kernel {
  uint8_t kernel, programs;          /* a tws_kernel; the programs TWS_IN_* */
  tws_binding binding[TWS_BINDINGS]; /* bindings of the kernel's operands in order, then TWS_BIND_END */
} tws_module_kernel;

typedef struct tws_module_row {
  const char *name, *summary;
  uint8_t cheap, pointwise;
  tws_module_kernel forward[TWS_MODULE_KERNELS], backward[TWS_MODULE_KERNELS]; /* end with one without operands */
} tws_module_row;

const tws_module_row *tws_module_row_of(tws_module_type type);

/* Returns a parameter of ROPE for sequences of this length: "dynamic" scaling uses another theta for sequences longer
 * than the original length (as Hugging Face's modeling_rope_utils computes it). */
double tws_module_rope(const tws_module *m, int64_t sequence, int parameter);

/* Returns the number of windows of a module with windows on one picture. */
int64_t tws_module_windows_of_picture(const tws_module *m);

/* The use that a module type makes of the memory of its values. */
typedef struct tws_module_memory {
  int8_t taken;        /* index of the input that output 0 overwrites in place, or -1 */
  uint8_t saved_count; /* number of values (inputs and outputs) that the gradient reads */
  tws_binding saved[TWS_MODULE_INS + TWS_MODULE_OUTS];
} tws_module_memory;
tws_module_memory tws_module_memory_of(tws_module_type type);

#endif
