/* The table of operators (models/operators.def): the contents of its rows, and functions that list the operands of a
 * work. */
#ifndef TWS_MODELS_OPERATOR_H
#define TWS_MODELS_OPERATOR_H

#include "models/kernel.h"

enum { TWS_OPERATOR_OPERANDS = 19 };

/* Read and write bits, equal to those of tws_access in plan/plan.h. */
typedef enum tws_operand_access {
  TWS_OPERAND_READ = 1,
  TWS_OPERAND_WRITE = 2,
  TWS_OPERAND_UPDATE = 3
} tws_operand_access;

typedef enum tws_operand_content {
  TWS_HOLDS_NUMBERS,   /* any numbers */
  TWS_HOLDS_NEAR_ONE,  /* numbers near 1: weights of a norm */
  TWS_HOLDS_POSITIVE,  /* positive numbers: second moments */
  TWS_HOLDS_IDS,       /* integers, most of them in [first, first + below) */
  TWS_HOLDS_TARGETS,   /* as IDS, and -1 */
  TWS_HOLDS_LENGTHS,   /* lengths of sequences in tokens: integers in [first, first + below) */
  TWS_HOLDS_DOCUMENTS, /* for each token the begin and end of its document; sequences have `below` tokens */
  TWS_HOLDS_ROUTES,    /* routes of tokens to experts: slots in [first, first + below) */
  TWS_HOLDS_COUNTS,    /* numbers of slots of an expert: integers in [first, first + below) */
  TWS_HOLDS_COLUMNS,   /* distinct integers in [first, first + below) in ascending order; zeros after them */
  TWS_HOLDS_STATS,     /* results of VOCABULARY_STATS of several ranks */
  TWS_HOLDS_DERIVED,   /* computed from other operands: statistics, forward outputs */
  TWS_HOLDS_HYPER,     /* hyperparameters, indexed by TWS_HYPER_* */
  TWS_HOLDS_METRICS,   /* metrics, indexed by TWS_METRIC_* */
  TWS_HOLDS_CODES,     /* any bytes */
  TWS_HOLDS_SCRATCH    /* scratch memory of tws_work_workspace() bytes; contents before and after do not matter */
} tws_operand_content;

/* The set of shapes for which `twinspeed calibrate` measures a kernel. */
typedef enum tws_calibrated {
  TWS_CALIBRATED_COUNT,     /* numbers of elements */
  TWS_CALIBRATED_PLANE,     /* tokens x width */
  TWS_CALIBRATED_LOSS,      /* tokens x vocabulary */
  TWS_CALIBRATED_LINEAR,    /* products of layers */
  TWS_CALIBRATED_ATTENTION, /* sequences and heads */
  TWS_CALIBRATED_EXCHANGE,  /* shapes of rearrangements of data that ranks exchange */
  TWS_CALIBRATED_PICTURE,   /* layers of a network on pictures */
  TWS_CALIBRATED_ONCE       /* a single shape */
} tws_calibrated;

/* One operand of a work. */
typedef struct tws_kernel_operand {
  const char *name;
  double elements; /* number of elements; 0 for scratch memory, whose bytes tws_work_workspace() returns */
  tws_dtype dtype;
  tws_operand_access access; /* an output to which the kernel adds has read and write access */
  tws_operand_content content;
  double first, below;  /* content IDS: the first id, and the number of ids */
  const char *in_place; /* names of inputs whose memory the output may overwrite, or NULL */
  int far;              /* 1: not accessed again for a whole micro-batch or step, so that caches lose it */
  int absent, adds;     /* used while the list is built */
  int moves_part;       /* 1: only a part is accessed: reads and writes differ from the number of elements */
  double reads, writes; /* compulsory reads and writes in elements */
} tws_kernel_operand;

/* Lists the operands of a work in order; returns their number, or 0 if the work is not a compute operation. arguments:
 * determine which ids are in a table; NULL if that does not matter. */
int tws_work_operands(const tws_work *work, const tws_arguments *arguments,
                      tws_kernel_operand list[TWS_OPERATOR_OPERANDS]);

/* An operand of a row of operators.def as text: its properties and expressions, independent of a work. */
typedef struct tws_operand_text {
  const char *name, *access, *dtype, *shape, *when, *adds_with, *reads, *writes, *content, *in_place;
  int far;
  uint32_t adds_flag; /* flag with which the kernel adds to the output; 0: never */
} tws_operand_text;

typedef struct tws_operator {
  signed char least[TWS_WORK_DIMS]; /* [dimension] smallest size for which the kernel has work to do */
  int dims, parameters, arguments;
  int updates_weights;
  int like; /* 1 + a tws_kernel whose measurements replace missing ones; 0: none */
  const char *identifier, *name, *summary, *flops;
  const char *dim[TWS_WORK_DIMS], *parameter[TWS_WORK_PARAMETERS]; /* names of tws_work.d[] and f[] */
  const char *argument[TWS_ARGUMENTS];
  tws_calibrated calibrated;
  /* flags without a name (tws_kernel_flag_name()) that all measured samples have: calibration sets them, and profiles
   * do not state them */
  uint32_t measured_flags;
  tws_operand_text operand[TWS_OPERATOR_OPERANDS + 1]; /* ends with an operand whose name is NULL */
} tws_operator;

const tws_operator *tws_operator_of(tws_kernel kernel);
/* Returns the work's parameter called `name`; 0 if the kernel has no such parameter. */
double tws_work_parameter(const tws_work *work, const char *name);
void tws_work_set_parameter(tws_work *work, const char *name, double value);
/* Returns the number of elements to which a profile's "added bytes" refer. */
double tws_work_elements(const tws_work *work);

#endif
