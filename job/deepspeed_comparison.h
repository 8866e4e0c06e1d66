/* DeepSpeed's memory formulas for a job next to what its plan has. */
#ifndef TWS_JOB_DEEPSPEED_COMPARISON_H
#define TWS_JOB_DEEPSPEED_COMPARISON_H

#include "job/fit.h"

/* Bytes by the formula and of the plan; states: parameters, also gathered, gradients, masters, moments. A node is the
 * host's memory of all its ranks; disk that of one rank. */
typedef struct tws_deepspeed_comparison {
  int stage;
  double formula_device, formula_node;
  double states_device, states_node, states_disk;
  double arena_device, arena_node, arena_disk;
  const char *runtime; /* whose needs, with its own buffers, the verdict compares with the capacity */
  double held_device, held_node;
} tws_deepspeed_comparison;

/* The ledger is that of the fullest rank. factor: DeepSpeed's additional buffer factor; `old`: as DeepSpeed 0.3 had it.
 * TWS_USAGE: the job has neither ZeRO stage 2 nor 3. */
tws_code tws_deepspeed_compare(const tws_job *job, const tws_ledger *ledger, double factor, int old,
                               tws_deepspeed_comparison *out, tws_error *err);

#endif
