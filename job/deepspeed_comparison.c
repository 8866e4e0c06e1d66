#include "job/deepspeed_comparison.h"

#include "compat/deepspeed_memory.h"
#include "models/hardware/runtime.h"

static double states_of(const tws_ledger *ledger, tws_tier tier) {
  static const tws_category kinds[] = {TWS_CATEGORY_PARAMETER, TWS_CATEGORY_GATHERED, TWS_CATEGORY_GRADIENT,
                                       TWS_CATEGORY_MASTER, TWS_CATEGORY_MOMENT};
  double bytes = 0;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) bytes += (double)ledger->tier[tier].category[kinds[i]];
  return bytes;
}

tws_code tws_deepspeed_compare(const tws_job *job, const tws_ledger *ledger, double factor, int old,
                               tws_deepspeed_comparison *out, tws_error *err) {
  const tws_zero_config *z = &job->config->zero;
  const tws_fit fit = tws_job_fit(job, ledger);
  const int each = fit.capacity.ranks_per_node, nodes = (job->ranks + each - 1) / each;
  const double total = (double)tws_network_params(job->network, 0);
  if (z->stage < 2)
    return tws_fail(err, TWS_USAGE, "give --stage 2 or 3, or leave --compat out",
                    "--compat: DeepSpeed has formulas for ZeRO stages 2 and 3, and the job has stage %d", z->stage);
  const tws_zero_memory m = z->stage == 3
                                ? tws_zero3_memory(total, (double)tws_network_largest_layer(job->network), each, nodes,
                                                   z->offload_optimizer > 0, z->offload_param > 0,
                                                   !tws_profile_runtime(job->profile)->loads_whole, factor)
                            : old ? tws_zero2_memory_03(total, each, nodes, z->offload_optimizer > 0, factor)
                                  : tws_zero2_memory(total, each, nodes, z->offload_optimizer > 0, factor);
  *out = (tws_deepspeed_comparison){
      .stage = z->stage,
      .formula_device = m.gpu_bytes,
      .formula_node = m.cpu_bytes,
      .states_device = states_of(ledger, TWS_TIER_DEVICE),
      .states_node = each * (states_of(ledger, TWS_TIER_PINNED) + states_of(ledger, TWS_TIER_HOST)),
      .states_disk = states_of(ledger, TWS_TIER_DISK),
      .arena_device = (double)ledger->tier[TWS_TIER_DEVICE].arena_bytes,
      .arena_node =
          each * ((double)ledger->tier[TWS_TIER_PINNED].arena_bytes + (double)ledger->tier[TWS_TIER_HOST].arena_bytes),
      .arena_disk = (double)ledger->tier[TWS_TIER_DISK].arena_bytes,
      .runtime = tws_profile_runtime(job->profile)->name,
      .held_device = fit.device_need,
      .held_node = fit.node_need};
  return TWS_OK;
}
