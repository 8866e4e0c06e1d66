/* Compares DeepSpeed's memory formulas for a job with the memory of its plan. */
#ifndef TWS_JOB_DEEPSPEED_COMPARISON_H
#define TWS_JOB_DEEPSPEED_COMPARISON_H

#include "job/fit.h"

/* Bytes by DeepSpeed's formula (formula_...), and of the plan: its states, which are parameters (including gathered
 * ones), gradients, master weights and moments, and its arenas. ..._device: of one device; ..._node: host memory of all
 * ranks of a node; ..._disk: of one rank. */
typedef struct tws_deepspeed_comparison {
  int stage;
  double formula_device, formula_node;
  double states_device, states_node, states_disk;
  double arena_device, arena_node, arena_disk;
  const char *runtime; /* name of the job's runtime, which needs the held_... bytes to run the plan */
  double held_device, held_node;
} tws_deepspeed_comparison;

/* Compares the formula for the job with the plan. ledger: memory of the rank that needs the most; factor: DeepSpeed's
 * additional buffer factor; old: 1 for the formula of DeepSpeed 0.3. Fails with TWS_USAGE if the job has neither ZeRO
 * stage 2 nor 3. */
tws_code tws_deepspeed_compare(const tws_job *job, const tws_ledger *ledger, double factor, int old,
                               tws_deepspeed_comparison *out, tws_error *err);

#endif
