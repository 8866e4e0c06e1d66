/* The translation of an ONNX graph to the modules of a network file; private to models/network/onnx*.c.
 *
 * The nodes are visited once, in the order of the file. Each value is one of these:
 *  - a constant, which is computed at once (onnx_fold.h);
 *  - an activation: the output of a module that was added, or the network's input. Its elements may have another order
 *    than the module's: pictures are [samples, channels, height, width] in ONNX and have channels last here;
 *  - a function of one activation, element by element, made up of scalars and elementary functions (onnx_pointwise.c):
 *    it becomes a module when a node reads it that is not part of such a function;
 *  - a stage of attention (onnx_attention.c): a projection of an activation, scores, probabilities, or their products
 *    with values. The module is added with the linear layer that reads the last stage. */
#ifndef TWS_MODELS_NETWORK_ONNX_IMPORT_H
#define TWS_MODELS_NETWORK_ONNX_IMPORT_H

#include <cjson/cJSON.h>
#include "models/network/onnx_fold.h"

/* The order of an activation's elements. */
typedef enum tws_onnx_layout {
  TWS_ONNX_ROWS,        /* [samples, width]; more dimensions of length 1 may follow */
  TWS_ONNX_TOKENS,      /* [samples, tokens, width] or [samples x tokens, width] */
  TWS_ONNX_PIXELS,      /* [samples, channels, height, width] */
  TWS_ONNX_PIXELS_LAST, /* [samples, height, width, channels] */
  TWS_ONNX_IDS          /* the network's input of tokens */
} tws_onnx_layout;

typedef enum tws_onnx_kind {
  TWS_ONNX_UNKNOWN,
  TWS_ONNX_CONSTANT,
  TWS_ONNX_ACTIVATION,
  TWS_ONNX_FUNCTION,   /* of the activation with this module and layout */
  TWS_ONNX_PROJECTION, /* a linear layer of that activation, whose elements `view` has in another order */
  TWS_ONNX_SCORES,
  TWS_ONNX_PROBABILITIES,
  TWS_ONNX_CONTEXT /* sums of values, whose elements `view` has in another order */
} tws_onnx_kind;

enum { TWS_ONNX_SAMPLES = 10 };
/* The numbers at which functions are compared. */
extern const double tws_onnx_sample_points[TWS_ONNX_SAMPLES];

/* A linear layer: weights [out, in], row by row. `name`: of its module. */
typedef struct tws_onnx_linear {
  const char *name;
  const float *weight, *bias; /* bias: NULL: there is none */
  int64_t in, out;
} tws_onnx_linear;

/* Queries, keys or values: rows first .. first + width of a linear layer. */
typedef struct tws_onnx_part {
  const tws_onnx_linear *linear;
  int64_t first, width;
} tws_onnx_part;

typedef struct tws_onnx_attention {
  tws_onnx_part part[3]; /* queries, keys, values */
  int module;            /* the activation whose projections they are */
  int64_t tokens, heads, head;
  double scale;
  int masked; /* 0: no mask was added, 1: of later tokens */
} tws_onnx_attention;

typedef struct tws_onnx_value {
  const char *name;
  int producer;     /* index of the node; -1: an input or initializer */
  int readers;      /* number of nodes' inputs and of graph outputs that are this value */
  int first_reader; /* index of the first node that reads it, or -1 */
  tws_onnx_kind kind;
  const tws_onnx_tensor *constant;
  const tws_onnx_tensor *rows_of; /* a constant that is the first rows of this initializer, or NULL */
  int module;                     /* index of the module; -1: the network's input */
  tws_onnx_layout layout;
  int dims;
  int64_t shape[TWS_ONNX_DIMS];
  int64_t order[3];            /* ROWS: channels, height and width of the pictures that were flattened; 0: one order */
  double at[TWS_ONNX_SAMPLES]; /* FUNCTION: values at the sample points */
  const tws_onnx_linear *linear;       /* PROJECTION */
  double scale;                        /* PROJECTION: factor */
  const tws_onnx_attention *attention; /* SCORES, PROBABILITIES, CONTEXT */
  const tws_onnx_tensor *view; /* PROJECTION, CONTEXT: for each element its index in the rows of the linear layer, or in
                                * rows that join the heads */
  int epoch;                   /* of the arena that `view` is in */
} tws_onnx_value;

/* Initial values of a parameter, or of running statistics, row by row. */
typedef struct tws_onnx_weights {
  const char *name;
  const float *values;
  int64_t count;
} tws_onnx_weights;

typedef struct tws_onnx_import {
  tws_arena *arena;
  const tws_onnx_graph *graph;
  tws_onnx_folder folder;
  tws_onnx_value *values;
  int value_count;
  int *by_name;    /* indices of values, sorted by name */
  int **in, **out; /* [node] indices of values; -1: absent */
  uint8_t *done;   /* [node] 1: it was added together with an earlier node */
  cJSON *root, *modules;
  const char **module_names;
  int module_count, module_capacity;
  tws_onnx_weights *weights;
  int weight_count, weight_capacity;
  const tws_onnx_tensor **used; /* initializers of layers, in the order of used_by */
  const char **used_by;         /* names of linear layers with these weights; NULL: of other modules */
  int used_count, used_capacity;
  tws_text notes;
  int64_t batch;                /* samples in the file's shapes; 1 if the file leaves them open */
  int64_t tokens;               /* tokens of a sample in the file's shapes; 0: the input is numbers */
  int embedding;                /* index of the module that reads the input of tokens, or -1 */
  const tws_onnx_tensor *table; /* its table */
  float *positions;             /* its table of positions, or NULL */
  int64_t position_rows, width;
  tws_arena *scratch; /* has `view` of values */
  int epoch;
  const char *loss;
  int ended; /* 1: a module was added that only the loss may follow */
} tws_onnx_import;

typedef tws_code tws_onnx_handler(tws_onnx_import *x, int node, tws_error *err);

/* ---- onnx_import.c ---- */

/* Fail with TWS_UNSUPPORTED and with a message that names the node and its operator. */
tws_code tws_onnx_refuse(const tws_onnx_import *x, int node, tws_error *err, const char *hint, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
tws_code tws_onnx_no_memory(const tws_onnx_import *x, tws_error *err);

/* Return the value that a node reads or writes; NULL: absent. */
tws_onnx_value *tws_onnx_in(const tws_onnx_import *x, int node, int i);
tws_onnx_value *tws_onnx_out(const tws_onnx_import *x, int node, int i);
/* Returns the constant that a node reads, or NULL. */
const tws_onnx_tensor *tws_onnx_constant_in(const tws_onnx_import *x, int node, int i);
/* Returns the constant's only element; fails if there is not one. */
int tws_onnx_scalar(const tws_onnx_tensor *t, double *value);
/* Returns the only node that reads the value, or -1 if there are several or it is an output of the graph. */
int tws_onnx_only_reader(const tws_onnx_import *x, const tws_onnx_value *value);
int tws_onnx_is_output(const tws_onnx_import *x, const tws_onnx_value *value);

/* Adds a module of this type that reads `from` (NULL: it reads two, which the caller sets) and returns its object;
 * the module's name is the name wanted, changed if another module has it. *index: of the module. NULL: memory is
 * exhausted. */
cJSON *tws_onnx_add(tws_onnx_import *x, int node, const char *type, const char *wanted, const tws_onnx_value *from,
                    int *index);
/* Returns the name of the module that a layer's weight belongs to: that of the initializer without ".weight" (or
 * ".bias"), or the node's. */
const char *tws_onnx_layer_name(const tws_onnx_import *x, int node, const tws_onnx_tensor *weight,
                                const tws_onnx_tensor *bias);
/* Makes `to` an activation: the output of module `index`, with the form of `like`. */
void tws_onnx_set(tws_onnx_value *to, const tws_onnx_value *like, int index);
/* Makes `to` what `from` is, with its own name and readers. */
void tws_onnx_alias(tws_onnx_value *to, const tws_onnx_value *from);

/* Allocates initial values of the parameter "<module><suffix>". */
float *tws_onnx_give(tws_onnx_import *x, const char *module, const char *suffix, int64_t count);
/* Copies a vector of per-channel weights, in the order of the value's channels here. */
tws_code tws_onnx_give_vector(tws_onnx_import *x, int node, const char *module, const char *suffix,
                              const tws_onnx_tensor *vector, const tws_onnx_value *like, tws_error *err);
/* Records that a layer uses an initializer. Returns the name of the linear layer that used it before, "" if another
 * module did, or NULL if none did. */
const char *tws_onnx_use(tws_onnx_import *x, const tws_onnx_tensor *weight, const char *linear);
/* Returns the position here of element i of a row that pictures were flattened to, and i if there were none. */
int64_t tws_onnx_place(const tws_onnx_value *value, int64_t i);

/* ---- onnx_pointwise.c: functions, activations ---- */

/* Makes a function an activation by adding its module. Fails if no module computes it, and for values that are neither
 * functions nor activations. */
tws_code tws_onnx_settle(tws_onnx_import *x, int node, tws_onnx_value *value, tws_error *err);
tws_onnx_handler tws_onnx_activation, tws_onnx_arithmetic, tws_onnx_dropout, tws_onnx_last;

/* ---- onnx_attention.c ---- */

/* Returns 1 if the value, the output of a linear layer, leads to a product of two activations. */
int tws_onnx_leads_to_attention(const tws_onnx_import *x, const tws_onnx_value *value);
/* Makes `to` a projection of the activation `from`. */
tws_code tws_onnx_project(tws_onnx_import *x, int node, const tws_onnx_value *from, const tws_onnx_linear *linear,
                          tws_onnx_value *to, tws_error *err);
/* Adds the attention whose last stage is `context`, with this linear layer after it. */
tws_code tws_onnx_attend(tws_onnx_import *x, int node, const tws_onnx_value *context, const tws_onnx_linear *linear,
                         tws_onnx_value *to, tws_error *err);
/* Returns 1 if the value is a stage of attention. */
int tws_onnx_is_stage(const tws_onnx_value *value);
/* Translates a node that reads a stage of attention. */
tws_onnx_handler tws_onnx_stage;

/* ---- onnx_linear.c ---- */

tws_onnx_handler tws_onnx_gemm, tws_onnx_matmul;

/* ---- onnx_modules.c: the other nodes ---- */

/* Returns the handler of an operator whose input is an activation, or NULL. */
tws_onnx_handler *tws_onnx_handler_of(const char *op);
/* Writes the names of all operators into `hint`, those that differ least from `op` first. */
void tws_onnx_operators_hint(const char *op, char *hint, size_t size);

#endif
