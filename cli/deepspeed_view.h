/* DeepSpeed's memory formulas for a job beside what its plan has. */
#ifndef TWS_CLI_DEEPSPEED_VIEW_H
#define TWS_CLI_DEEPSPEED_VIEW_H

#include "cli/cli.h"
#include "job/fit.h"

/* Bytes by the formula and of the plan; states: parameters, also gathered, gradients, masters, moments. A node is the
 * host's memory of all its ranks; disk that of one rank. */
typedef struct tws_beside_deepspeed {
  int stage;
  double formula_device, formula_node;
  double states_device, states_node, states_disk;
  double arena_device, arena_node, arena_disk;
  const char *runtime; /* what it holds, with its own buffers: what the verdict is of */
  double held_device, held_node;
} tws_beside_deepspeed;

/* `old`: as DeepSpeed 0.3 had it. TWS_USAGE: the job has neither ZeRO stage 2 nor 3. */
tws_code tws_beside_deepspeed_find(const tws_job *job, const tws_ledger *ledger, double factor, int old,
                                   tws_beside_deepspeed *out, tws_error *err);
tws_code tws_beside_deepspeed_print(const tws_cli *cli, const tws_beside_deepspeed *b, tws_error *err);
cJSON *tws_beside_deepspeed_json(const tws_beside_deepspeed *b);

#endif
