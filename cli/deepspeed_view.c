#include "cli/deepspeed_view.h"

#include "base/units.h"

tws_code tws_deepspeed_comparison_print(const tws_cli *cli, const tws_deepspeed_comparison *b, tws_error *err) {
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
  const char *row[4] = {tws_cell("Compared with DeepSpeed's ZeRO-%d", b->stage), "device", "host, a node",
                        "disk, a rank"};
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

cJSON *tws_deepspeed_comparison_json(const tws_deepspeed_comparison *b) {
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
