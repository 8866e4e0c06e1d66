#include "cli/trace_view.h"

#include "base/units.h"
#include "traces/key_averages.h"

static tws_code print_table(const tws_cli *cli, const tws_key_averages *all, int by_shape, tws_error *err) {
  tws_table table;
  char text[4][32], bytes[32];
  const char *const heading[] = {"Operation", "shape", "calls", "total", "share",  "mean",
                                 "least",     "most",  "moved", "GB/s",  "TFLOP/s"};
  enum { COLUMNS = sizeof heading / sizeof *heading };
  tws_table_init(&table, COLUMNS);
  tws_table_row(&table, heading);
  for (size_t i = 0; i < all->count; i++) {
    const tws_key_average *row = &all->rows[i];
    const double seconds = row->total_s, share = all->total_s > 0 ? 100 * seconds / all->total_s : 0;
    const char *cells[COLUMNS] = {row->name,
                                  by_shape ? row->shape : "",
                                  tws_cell("%lld", (long long)row->calls),
                                  tws_format_seconds(seconds, text[0], sizeof text[0]),
                                  tws_cell("%.1f %%", share),
                                  tws_format_seconds(seconds / (double)row->calls, text[1], sizeof text[1]),
                                  tws_format_seconds(row->least_s, text[2], sizeof text[2]),
                                  tws_format_seconds(row->most_s, text[3], sizeof text[3]),
                                  row->bytes > 0 ? tws_format_bytes(row->bytes, bytes, sizeof bytes) : "-",
                                  row->bytes > 0 && seconds > 0 ? tws_cell("%.2f", row->bytes / seconds / 1e9) : "-",
                                  row->flops > 0 && seconds > 0 ? tws_cell("%.4g", row->flops / seconds / 1e12) : "-"};
    tws_table_row(&table, cells);
  }
  tws_text same = {0};
  if (!by_shape) tws_table_compact(&table, COLUMNS, 0, &same); /* removes the empty column */
  tws_text_free(&same);
  return tws_table_print(cli, &table, err);
}

static tws_code print_json(const tws_key_averages *all, int by_shape, tws_error *err) {
  cJSON *root = cJSON_CreateObject(), *list;
  cJSON_AddStringToObject(root, "schema", "twinspeed-key-averages-1");
  cJSON_AddNumberToObject(root, "total_s", all->total_s);
  list = cJSON_AddArrayToObject(root, "operations");
  for (size_t i = 0; i < all->count; i++) {
    const tws_key_average *row = &all->rows[i];
    cJSON *one = cJSON_CreateObject();
    cJSON_AddStringToObject(one, "operation", row->name);
    if (by_shape) cJSON_AddStringToObject(one, "shape", row->shape);
    cJSON_AddNumberToObject(one, "calls", (double)row->calls);
    cJSON_AddNumberToObject(one, "total_s", row->total_s);
    cJSON_AddNumberToObject(one, "mean_s", row->total_s / (double)row->calls);
    cJSON_AddNumberToObject(one, "least_s", row->least_s);
    cJSON_AddNumberToObject(one, "most_s", row->most_s);
    cJSON_AddNumberToObject(one, "bytes", row->bytes);
    cJSON_AddNumberToObject(one, "flops", row->flops);
    cJSON_AddItemToArray(list, one);
  }
  return tws_out_json(root, err);
}

tws_code tws_key_averages_print(const tws_cli *cli, const char *path, int by_shape, tws_error *err) {
  tws_key_averages all;
  tws_code code = tws_key_averages_read(path, by_shape, &all, err);
  if (code == TWS_OK) code = cli->json ? print_json(&all, by_shape, err) : print_table(cli, &all, by_shape, err);
  tws_key_averages_free(&all);
  return code;
}
