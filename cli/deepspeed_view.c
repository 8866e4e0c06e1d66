#include "cli/deepspeed_view.h"

#include "base/units.h"
#include "compat/deepspeed_memory.h"
#include "models/hardware/runtime.h"

static double states_of(const tws_ledger *ledger, tws_tier tier) {
  static const tws_category kinds[] = {TWS_CATEGORY_PARAMETER, TWS_CATEGORY_GATHERED, TWS_CATEGORY_GRADIENT,
                                       TWS_CATEGORY_MASTER, TWS_CATEGORY_MOMENT};
  double bytes = 0;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) bytes += (double)ledger->tier[tier].category[kinds[i]];
  return bytes;
}

tws_code tws_beside_deepspeed_find(const tws_job *job, const tws_ledger *ledger, double factor, int old,
                                   tws_beside_deepspeed *out, tws_error *err) {
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
  *out = (tws_beside_deepspeed){
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

tws_code tws_beside_deepspeed_print(const tws_cli *cli, const tws_beside_deepspeed *b, tws_error *err) {
  const struct {
    const char *name;
    double device, node, disk;
  } rows[] = {{"  DeepSpeed's formula: states", b->formula_device, b->formula_node, 0},
              {"  states of this plan", b->states_device, b->states_node, b->states_disk},
              {"  all of this plan", b->arena_device, b->arena_node, b->arena_disk},
              {tws_cell("  what %s needs", b->runtime), b->held_device, b->held_node, b->arena_disk}};
  const int columns = b->arena_disk > 0 ? 4 : 3;
  tws_table table;
  tws_table_init(&table, columns);
  const char *row[4] = {tws_cell("Beside DeepSpeed's ZeRO-%d", b->stage), "device", "host, a node", "disk, a rank"};
  tws_out("\n");
  tws_table_row(&table, row);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char device[32], node[32], disk[32];
    row[0] = rows[i].name;
    row[1] = tws_cell("%s", tws_format_bytes(rows[i].device, device, sizeof device));
    row[2] = tws_cell("%s", tws_format_bytes(rows[i].node, node, sizeof node));
    row[3] = i ? tws_cell("%s", tws_format_bytes(rows[i].disk, disk, sizeof disk)) : "not said";
    tws_table_row(&table, row);
  }
  return tws_table_print(cli, &table, err);
}

cJSON *tws_beside_deepspeed_json(const tws_beside_deepspeed *b) {
  cJSON *json = cJSON_CreateObject();
  const struct {
    const char *name;
    double bytes;
  } all[] = {{"gpu_bytes", b->formula_device},
             {"cpu_bytes", b->formula_node},
             {"plan_states_gpu_bytes", b->states_device},
             {"plan_states_cpu_bytes", b->states_node},
             {"plan_gpu_bytes", b->arena_device},
             {"plan_cpu_bytes", b->arena_node},
             {"plan_rank_disk_bytes", b->arena_disk},
             {"runtime_gpu_bytes", b->held_device},
             {"runtime_cpu_bytes", b->held_node}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) cJSON_AddNumberToObject(json, all[i].name, all[i].bytes);
  return json;
}
