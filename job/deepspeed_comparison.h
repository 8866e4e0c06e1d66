/* Compares DeepSpeed's memory formulas for a job with the memory of its plan. */
#ifndef TWS_JOB_DEEPSPEED_COMPARISON_H
#define TWS_JOB_DEEPSPEED_COMPARISON_H

#include "job/fit.h"

/* Bytes by the formula and of the plan; states: parameters (including gathered ones), gradients, master weights,
 * moments. device: of one device; node: host memory of all ranks of a node; disk: of one rank. */
typedef struct tws_deepspeed_comparison {
  int stage;
  double formula_device, formula_node;
  double states_device, states_node, states_disk;
  double arena_device, arena_node, arena_disk;
  const char *runtime; /* the verdict compares the memory that this runtime needs with the capacity */
  double held_device, held_node;
} tws_deepspeed_comparison;

/* ledger: of the rank that needs the most memory; factor: DeepSpeed's additional buffer factor; `old`: the formula of
 * DeepSpeed 0.3. TWS_USAGE: the job has neither ZeRO stage 2 nor 3. */
tws_code tws_deepspeed_compare(const tws_job *job, const tws_ledger *ledger, double factor, int old,
                               tws_deepspeed_comparison *out, tws_error *err);

#endif
