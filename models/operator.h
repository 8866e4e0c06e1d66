/* The table of operators (models/operators.def) as a program sees it: what stands in a row, and the operands that a
 * row gives for one work. */
#ifndef TWS_MODELS_OPERATOR_H
#define TWS_MODELS_OPERATOR_H

#include "models/kernel.h"

enum { TWS_OPERATOR_OPERANDS = 19 };

/* The bits of tws_access in plan/plan.h. */
typedef enum tws_operand_access {
  TWS_OPERAND_READ = 1,
  TWS_OPERAND_WRITE = 2,
  TWS_OPERAND_UPDATE = 3
} tws_operand_access;

typedef enum tws_operand_content {
  TWS_HOLDS_NUMBERS,   /* any */
  TWS_HOLDS_NEAR_ONE,  /* weights of a norm */
  TWS_HOLDS_POSITIVE,  /* second moments */
  TWS_HOLDS_IDS,       /* integers, most of them in [first, first + below) */
  TWS_HOLDS_TARGETS,   /* the same, and -1 */
  TWS_HOLDS_LENGTHS,   /* of sequences: integers in [first, first + below) */
  TWS_HOLDS_DOCUMENTS, /* of each token where its document begins and ends, in sequences of `below` tokens */
  TWS_HOLDS_ROUTES,    /* of tokens to experts: slots in [first, first + below) */
  TWS_HOLDS_COUNTS,    /* of an expert's slots: integers in [first, first + below) */
  TWS_HOLDS_COLUMNS,   /* different ones in ascending order: integers in [first, first + below), and 0 */
  TWS_HOLDS_STATS,     /* what VOCABULARY_STATS gives, of several ranks */
  TWS_HOLDS_DERIVED,   /* follows from other operands: statistics, forward outputs */
  TWS_HOLDS_HYPER,     /* by TWS_HYPER_* */
  TWS_HOLDS_METRICS,   /* by TWS_METRIC_* */
  TWS_HOLDS_CODES,     /* bytes: any */
  TWS_HOLDS_SCRATCH    /* of tws_work_workspace bytes; content does not matter before or after */
} tws_operand_content;

/* Which shapes `twinspeed calibrate` times. */
typedef enum tws_calibrated {
  TWS_CALIBRATED_COUNT,     /* elements */
  TWS_CALIBRATED_PLANE,     /* tokens x width */
  TWS_CALIBRATED_LOSS,      /* tokens x vocabulary */
  TWS_CALIBRATED_LINEAR,    /* products of layers */
  TWS_CALIBRATED_ATTENTION, /* sequences and heads */
  TWS_CALIBRATED_EXCHANGE,  /* what exchanges between ranks rearrange */
  TWS_CALIBRATED_PICTURE,   /* layers of a network on pictures */
  TWS_CALIBRATED_ONCE       /* nothing to vary */
} tws_calibrated;

/* One operand of a work. */
typedef struct tws_kernel_operand {
  const char *name;
  double elements; /* 0 of scratch memory: its bytes are tws_work_workspace's */
  tws_dtype dtype;
  tws_operand_access access; /* an output that is added to is an update */
  tws_operand_content content;
  double first, below;  /* of ids: the first of the table, and how many it has */
  const char *in_place; /* names of inputs whose memory it may have, or NULL */
  int far;              /* not touched for a whole micro-batch or step */
  int absent, adds;     /* inside the table */
  int moves_part;       /* reads and writes are given apart from the shape */
  double reads, writes; /* elements */
} tws_kernel_operand;

/* The operands that a work has, in order; returns how many, 0 when it is not a compute operation. arguments: say which
 * ids are in a table, NULL where that does not matter. */
int tws_work_operands(const tws_work *work, const tws_arguments *arguments,
                      tws_kernel_operand list[TWS_OPERATOR_OPERANDS]);

/* The part of a row that does not depend on the work: its expressions as text. */
typedef struct tws_operand_text {
  const char *name, *access, *dtype, *shape, *when, *adds_with, *reads, *writes, *content, *in_place;
  int far;
  uint32_t adds_flag; /* that of adds_with; 0: it cannot be added to */
} tws_operand_text;

typedef struct tws_operator {
  signed char least[TWS_WORK_DIMS]; /* the least dimension with which there is anything to do */
  int dims, parameters, arguments;
  int updates_weights;
  int like; /* 1 + the tws_kernel whose measurements stand in for missing ones; 0: none */
  const char *identifier, *name, *summary, *flops;
  const char *dim[TWS_WORK_DIMS], *parameter[TWS_WORK_PARAMETERS]; /* of tws_work.d[] and f[] */
  const char *argument[TWS_ARGUMENTS];
  tws_calibrated calibrated;
  tws_operand_text operand[TWS_OPERATOR_OPERANDS + 1]; /* ends with a name NULL */
} tws_operator;

const tws_operator *tws_operator_of(tws_kernel kernel);
/* The parameter of that name; 0 where the kernel has none. */
double tws_work_parameter(const tws_work *work, const char *name);
void tws_work_set_parameter(tws_work *work, const char *name, double value);
/* Returns the number of elements to which a profile's added bytes refer. */
double tws_work_elements(const tws_work *work);

#endif
