#include "cli/comm_view.h"

#include <math.h>
#include <string.h>
#include "base/json.h"
#include "base/units.h"

tws_code tws_comm_layout_read(const char *name, const tws_config *config, tws_comm_layout *out, tws_error *err) {
  tws_comm_filter filter;
  *out = config->comms_logger.enabled ? TWS_COMM_DEEPSPEED : TWS_COMM_NONE;
  TWS_TRY(tws_comm_filter_read(config, &filter, err));
  if (!name) return TWS_OK;
  *out = strcmp(name, "nccl") == 0 ? TWS_COMM_NCCL : TWS_COMM_DEEPSPEED;
  if (strcmp(name, "nccl") == 0 || strcmp(name, "deepspeed") == 0) return TWS_OK;
  return tws_fail(err, TWS_USAGE, "use deepspeed or nccl", "--comm-log: unknown layout \"%.40s\"", name);
}

static const char *axis_text(const tws_comm_key *key) {
  return key->operation >= TWS_COMM_SEND ? "messages" : tws_axes_name(key->axes);
}

/* Returns 1 if a row is the first of its operation, axis, number of ranks and caller. */
static int is_heading(const tws_comm_log *log, size_t i) {
  if (i == 0) return 1;
  const tws_comm_key *a = &log->rows[i - 1].key, *b = &log->rows[i].key;
  return a->operation != b->operation || a->axes != b->axes || a->ranks != b->ranks ||
         strcmp(a->caller, b->caller) != 0;
}

static void print_heading(const tws_comm_key *key, const char *before) {
  tws_out("%s%s%s%s%s (%s, %u ranks)\n", before, tws_comm_name(key->operation),
          key->caller[0] ? " | [Caller Func: " : "", key->caller, key->caller[0] ? "]" : "", axis_text(key),
          key->ranks);
}

/* ---- DeepSpeed's layout (utils/comms_logging.py, log_all) ---- */

static void print_columns(const char *const columns[7]) {
  for (int c = 0; c < 7; c++) tws_out("%-20s", columns[c]);
  tws_out("\n");
}

static void print_deepspeed(tws_comm_log *log) {
  static const char *const columns[] = {"Comm. Op",        "Message Size",    "Count",           "Total Latency(ms)",
                                        "Avg Latency(ms)", "tput_avg (Gbps)", "busbw_avg (Gbps)"};
  char size[TWS_COMM_SIZE_TEXT];
  print_columns(columns);
  for (size_t i = 0; i < log->row_count; i++) {
    tws_comm_row *row = &log->rows[i];
    const uint64_t bytes = tws_comm_message_bytes(&row->key);
    const tws_comm_bandwidth of_1_s = tws_comm_deepspeed_gbps(row->key.operation, row->key.ranks, bytes, 1.0);
    if (is_heading(log, i)) print_heading(&row->key, "");
    tws_out("%-20s%-20s%-20.0f%-20.2f%-20.2f%-20.2f%-20.2f\n", "", tws_comm_size_text(bytes, size),
            nearbyint(row->count), 1e3 * row->latency_s,
            1e3 * tws_comm_trimmed_mean(row->latencies.s, row->latencies.count, 0),
            tws_comm_trimmed_mean(row->latencies.s, row->latencies.count, of_1_s.algorithm),
            of_1_s.bus > 0 ? tws_comm_trimmed_mean(row->latencies.s, row->latencies.count, of_1_s.bus) : 0);
  }
}

static void print_waiting(tws_comm_log *log) {
  static const char *const columns[] = {"Comm. Op",           "Message Size",        "Count",
                                        "Total comm lat(ms)", "Total straggler(ms)", "Avg comm lat(ms)",
                                        "Avg straggler(ms)"};
  char size[TWS_COMM_SIZE_TEXT];
  tws_out("_______________________________\nBreakdown with straggler effect\n-------------------------------\n");
  print_columns(columns);
  for (size_t i = 0; i < log->row_count; i++) {
    const tws_comm_row *row = &log->rows[i];
    const double waiting = row->latency_s - row->transfer_s, count = row->count > 0 ? row->count : 1;
    if (is_heading(log, i)) print_heading(&row->key, "");
    tws_out("%-20s%-20s%-20.0f%-20.2f%-20.2f%-20.2f%-20.2f\n", "",
            tws_comm_size_text(tws_comm_message_bytes(&row->key), size), nearbyint(row->count), 1e3 * row->transfer_s,
            1e3 * waiting, 1e3 * row->transfer_s / count, 1e3 * waiting / count);
  }
}

/* ---- the layout of nccl-tests ---- */

static const char *reduction_of(int operation) {
  return operation == TWS_COLLECTIVE_ALL_REDUCE || operation == TWS_COLLECTIVE_REDUCE ||
                 operation == TWS_COLLECTIVE_REDUCE_SCATTER
             ? "sum"
             : "none";
}

static void print_nccl(tws_comm_log *log) {
  static const char *const types[] = {[TWS_F32] = "float", [TWS_F16] = "half", [TWS_BF16] = "bfloat16"};
  tws_out("#\n# time: median of the transfers, without waiting for other ranks\n");
  for (size_t i = 0; i < log->row_count; i++) {
    tws_comm_row *row = &log->rows[i];
    const tws_dtype dtype = (tws_dtype)row->key.dtype;
    const size_t width = tws_dtype_bytes(dtype);
    const double median = tws_comm_median(row->transfers.s, row->transfers.count);
    const tws_comm_bandwidth rate = tws_comm_nccl_gbs(row->key.operation, row->key.ranks, row->key.bytes, median);
    const char *type =
        (size_t)dtype < sizeof types / sizeof *types && types[dtype] ? types[dtype] : tws_dtype_name(dtype);
    if (is_heading(log, i)) {
      print_heading(&row->key, "#\n# ");
      tws_out("#%12s %14s %9s %7s %8s %10s %8s %8s\n", "size", "count", "type", "redop", "calls", "time", "algbw",
              "busbw");
      tws_out("#%12s %14s %9s %7s %8s %10s %8s %8s\n", "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)");
    }
    tws_out("%13.0f %14.0f %9s %7s %8.0f %10.2f %8.2f %8.2f\n", (double)row->key.bytes,
            (double)(row->key.bytes / (width ? width : 1)), type, reduction_of(row->key.operation),
            nearbyint(row->count), 1e6 * median, rate.algorithm, rate.bus);
  }
}

/* ---- ranks ---- */

enum { RANKS_PRINTED = 16 };

/* Returns 1 if the table has the rank: all of few ranks; of many the stragglers and those that others wait for most. */
static int is_printed(const tws_comm_log *log, int r) {
  int later = 0;
  if (log->rank_count <= RANKS_PRINTED || log->ranks[r].is_straggler) return 1;
  for (int i = 0; i < log->rank_count; i++) {
    const double other = log->ranks[i].waited_for_s, own = log->ranks[r].waited_for_s;
    later += other > own || (other == own && i < r);
  }
  return later < RANKS_PRINTED / 2;
}

static tws_code print_ranks(const tws_cli *cli, const tws_comm_log *log, tws_error *err) {
  char text[4][32];
  int stragglers = 0;
  tws_table table;
  if (log->rank_count < 2) return TWS_OK;
  tws_table_init(&table, 5);
  tws_table_row(&table, (const char *const[]){"Rank", "kernels", "waiting", "transfer", "others waited for it"});
  for (int r = 0; r < log->rank_count; r++) {
    const tws_comm_rank *rank = &log->ranks[r];
    if (!is_printed(log, r)) continue;
    const char *cells[5] = {tws_cell("%d", rank->rank), tws_cell("%.3f x", rank->factor),
                            tws_format_seconds(rank->waiting_s, text[0], sizeof text[0]),
                            tws_format_seconds(rank->transfer_s, text[1], sizeof text[1]),
                            tws_format_seconds(rank->waited_for_s, text[2], sizeof text[2])};
    tws_table_row(&table, cells);
  }
  tws_out("\n");
  TWS_TRY(tws_table_print(cli, &table, err));
  for (int r = 0; r < log->rank_count; r++) {
    const tws_comm_rank *rank = &log->ranks[r];
    if (!rank->is_straggler) continue;
    stragglers++;
    tws_out("straggler: rank %d, whose kernels take %.2f times the median of the ranks; others waited %s for it\n",
            rank->rank, rank->factor, tws_format_seconds(rank->waited_for_s, text[3], sizeof text[3]));
  }
  if (!stragglers) tws_out("no rank is a straggler: kernels take about as long on all ranks\n");
  return TWS_OK;
}

tws_code tws_comm_print(const tws_cli *cli, tws_comm_log *log, tws_comm_layout layout, tws_error *err) {
  tws_out("\n%sCommunication%s   %lld step%s, %d rank%s\n", tws_style(cli, TWS_BOLD), tws_style(cli, TWS_PLAIN_OUTPUT),
          (long long)log->steps, log->steps > 1 ? "s" : "", log->world, log->world > 1 ? "s" : "");
  if (log->row_count == 0) {
    tws_out("no operation of several ranks was logged\n");
    return TWS_OK;
  }
  if (layout == TWS_COMM_NCCL) {
    print_nccl(log);
  } else {
    print_deepspeed(log);
    print_waiting(log);
  }
  return print_ranks(cli, log, err);
}

void tws_comm_print_calls(const tws_cli *cli, const tws_comm_record *record) {
  char line[320];
  for (uint32_t call = 0; record->steps > 0 && call < record->call_count; call++) {
    tws_comm_call_text(record, record->steps - 1, call, line, sizeof line);
    if (cli->json)
      tws_say(cli, "%s", line);
    else
      tws_out("%s\n", line);
  }
}

/* ---- a run and its simulation ---- */

tws_code tws_comm_read_run(const char *path, tws_comm_log **out, tws_error *err) {
  tws_json *json;
  *out = NULL;
  TWS_TRY(tws_json_read(path, &json, err));
  const cJSON *log = cJSON_GetObjectItemCaseSensitive(json->root, "communication_log");
  const tws_code code = tws_comm_log_read_json(log, path, out, err);
  tws_json_destroy(json);
  return code;
}

/* A pair of rows with equal keys; NULL: the other log has no such row. */
typedef struct pair {
  tws_comm_row *run, *simulated;
} pair;

static tws_comm_row *find_row(const tws_comm_log *log, const tws_comm_key *key) {
  for (size_t i = 0; i < log->row_count; i++)
    if (memcmp(&log->rows[i].key, key, sizeof *key) == 0) return &log->rows[i];
  return NULL;
}

/* Calls `show` for each pair: the rows of the simulation, then those that only the run has. */
static void for_each_pair(tws_comm_log *run, tws_comm_log *simulated, void (*show)(void *user, const pair *p),
                          void *user) {
  for (size_t i = 0; i < simulated->row_count; i++) {
    const pair p = {find_row(run, &simulated->rows[i].key), &simulated->rows[i]};
    show(user, &p);
  }
  for (size_t i = 0; i < run->row_count; i++) {
    const pair p = {&run->rows[i], NULL};
    if (!find_row(simulated, &run->rows[i].key)) show(user, &p);
  }
}

typedef struct comparison {
  tws_table *table;
  cJSON *list;
  double steps; /* of the run */
  int unequal;  /* number of pairs whose counts differ */
} comparison;

/* The figures of a pair: calls in one step, median transfer in seconds, and bus bandwidth in GB/s. */
typedef struct figures {
  double count[2], transfer_s[2], bus[2];
  const tws_comm_key *key;
} figures;

static figures read_pair(const comparison *c, const pair *p) {
  tws_comm_row *rows[] = {p->run, p->simulated};
  figures f = {.key = &(p->run ? p->run : p->simulated)->key};
  for (int i = 0; i < 2; i++) {
    if (!rows[i]) continue;
    f.count[i] = rows[i]->count / (i == 0 ? c->steps : 1);
    f.transfer_s[i] = tws_comm_median(rows[i]->transfers.s, rows[i]->transfers.count);
    f.bus[i] = tws_comm_nccl_gbs(f.key->operation, f.key->ranks, f.key->bytes, f.transfer_s[i]).bus;
  }
  return f;
}

static void add_table_row(void *user, const pair *p) {
  comparison *c = user;
  const figures f = read_pair(c, p);
  char size[TWS_COMM_SIZE_TEXT], transfer[2][32];
  c->unequal += fabs(f.count[0] - f.count[1]) > 1e-6;
  const char *cells[10] = {tws_comm_name(f.key->operation),
                           axis_text(f.key),
                           tws_cell("%u", f.key->ranks),
                           tws_comm_size_text(f.key->bytes, size),
                           tws_cell("%.6g", f.count[0]),
                           tws_cell("%.6g", f.count[1]),
                           p->run ? tws_format_seconds(f.transfer_s[0], transfer[0], sizeof transfer[0]) : "-",
                           p->simulated ? tws_format_seconds(f.transfer_s[1], transfer[1], sizeof transfer[1]) : "-",
                           tws_cell("%.2f / %.2f", f.bus[0], f.bus[1]),
                           f.bus[0] > 0 && f.bus[1] > 0 ? tws_cell("%.3f", f.bus[1] / f.bus[0]) : "-"};
  tws_table_row(c->table, cells);
}

tws_code tws_comm_compare_print(const tws_cli *cli, tws_comm_log *run, tws_comm_log *simulated, tws_error *err) {
  tws_table table;
  comparison c = {.table = &table, .steps = (double)run->steps};
  tws_table_init(&table, 10);
  tws_table_row(&table, (const char *const[]){"Operation", "axis", "ranks", "size", "calls: run", "simulated",
                                              "transfer: run", "simulated", "bus GB/s", "ratio"});
  for_each_pair(run, simulated, add_table_row, &c);
  tws_out("\n%sRun and simulation%s   calls of one step, median transfers without waiting\n", tws_style(cli, TWS_BOLD),
          tws_style(cli, TWS_PLAIN_OUTPUT));
  TWS_TRY(tws_table_print(cli, &table, err));
  if (c.unequal)
    tws_out("%d row%s: the run has another number of calls than its simulation, so it is of another job\n", c.unequal,
            c.unequal > 1 ? "s" : "");
  else
    tws_out("sizes and numbers of calls are equal\n");
  return TWS_OK;
}

static void add_json_row(void *user, const pair *p) {
  comparison *c = user;
  const figures f = read_pair(c, p);
  static const char *const names[] = {"run", "simulated"};
  cJSON *o = cJSON_CreateObject();
  cJSON_AddStringToObject(o, "operation", tws_comm_name(f.key->operation));
  cJSON_AddStringToObject(o, "axis", axis_text(f.key));
  cJSON_AddNumberToObject(o, "ranks", f.key->ranks);
  cJSON_AddNumberToObject(o, "bytes", (double)f.key->bytes);
  for (int i = 0; i < 2; i++) {
    cJSON *one = cJSON_AddObjectToObject(o, names[i]);
    cJSON_AddNumberToObject(one, "calls_of_a_step", f.count[i]);
    cJSON_AddNumberToObject(one, "median_transfer_s", f.transfer_s[i]);
    cJSON_AddNumberToObject(one, "bus_gb_per_s", f.bus[i]);
  }
  if (f.bus[0] > 0 && f.bus[1] > 0) cJSON_AddNumberToObject(o, "bus_ratio", f.bus[1] / f.bus[0]);
  cJSON_AddItemToArray(c->list, o);
}

cJSON *tws_comm_compare_json(tws_comm_log *run, tws_comm_log *simulated) {
  comparison c = {.list = cJSON_CreateArray(), .steps = (double)run->steps};
  for_each_pair(run, simulated, add_json_row, &c);
  return c.list;
}
