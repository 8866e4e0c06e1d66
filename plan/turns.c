/* Networks that are trained alternately (tws_network.turns). A step is one turn after another: the forward passes of
 * the turn, its backward passes, and the update of the parameters that it trains. Each turn is a chunk of modules
 * (pipeline.c); its backward pass may reach modules that an earlier turn ran forward, whose values are kept until then
 * (visits.c). Parameters of different turns are of different ZeRO classes; each optimizer phase reduces, updates and
 * gathers those of its turn (zero_classes.c, optimizer.c).
 *
 * The table below lists what is done once in a step or keeps copies of parameters beyond an optimizer phase, so that it
 * cannot be combined with turns. */
#include "plan/turns.h"

typedef struct conflict {
  int there;
  const char *what, *hint;
} conflict;

tws_code tws_turns_check(const tws_lower *l, tws_error *err) {
  const tws_config *c = l->config;
  const int *ranks = l->b.plan->position.ranks, stage = c->zero.stage;
  const conflict conflicts[] = {
      {c->accumulation_steps > 1, "gradient accumulation", "set gradient_accumulation_steps to 1"},
      {ranks[TWS_AXIS_PIPE] > 1, "a pipeline", "use data ranks and ZeRO instead of pipeline stages"},
      {ranks[TWS_AXIS_MODEL] > 1, "tensor ranks", "use data ranks and ZeRO instead of tensor ranks"},
      {ranks[TWS_AXIS_SEQUENCE] > 1, "sequence ranks", "use data ranks and ZeRO instead of sequence ranks"},
      {c->dtype == TWS_F16, "float16 and its loss scale", "train in bf16 or fp32"},
      {tws_config_offloads(c), "offloading", "leave zero_optimization.offload_optimizer and offload_param out"},
      {c->cpu_checkpointing, "activation checkpoints on the host", "leave cpu_checkpointing out"},
      {tws_optimizer_of(c->optimizer)->phases != TWS_PHASES_ONE, "optimizers that compress gradients",
       "use Adam or AdamW"},
      {tws_optimizer_of(c->optimizer)->factored, "Adafactor", "use Adam or AdamW"},
      {stage == 3 && tws_config_secondary_ranks(c) > 1, "a secondary partition of parameters",
       "leave zero_optimization.zero_hpz_partition_size out"},
      {stage == 3 && c->linear_tile_size > 0, "weights in tiles", "leave twinspeed.linear_tile_size out"},
      {tws_float8_is_planned(c), "8-bit matrix products", "leave twinspeed.matmul_dtype out"}};
  if (tws_turns(l) == 1) return TWS_OK;
  for (size_t i = 0; i < sizeof conflicts / sizeof *conflicts; i++)
    if (conflicts[i].there)
      return tws_fail(err, TWS_UNSUPPORTED, conflicts[i].hint,
                      "networks that are trained alternately do not go with %s", conflicts[i].what);
  return TWS_OK;
}
