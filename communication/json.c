/* Writes the communication log as JSON, and reads it from the summary of a run. */
#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>
#include "base/memory.h"
#include "communication/comm_log.h"

static void add_bandwidths(cJSON *to, tws_comm_row *row) {
  const tws_comm_key *key = &row->key;
  const double median = tws_comm_median(row->transfers.s, row->transfers.count);
  const tws_comm_bandwidth nccl = tws_comm_nccl_gbs(key->operation, key->ranks, key->bytes, median);
  const tws_comm_bandwidth of_1_s =
      tws_comm_deepspeed_gbps(key->operation, key->ranks, tws_comm_message_bytes(key), 1.0);
  cJSON_AddNumberToObject(to, "median_transfer_s", median);
  cJSON_AddNumberToObject(to, "algorithm_gb_per_s", nccl.algorithm);
  cJSON_AddNumberToObject(to, "bus_gb_per_s", nccl.bus);
  cJSON_AddNumberToObject(to, "tput_avg_gbps",
                          tws_comm_trimmed_mean(row->latencies.s, row->latencies.count, of_1_s.algorithm));
  cJSON_AddNumberToObject(
      to, "busbw_avg_gbps",
      of_1_s.bus > 0 ? tws_comm_trimmed_mean(row->latencies.s, row->latencies.count, of_1_s.bus) : 0);
}

static cJSON *row_json(const tws_comm_log *log, tws_comm_row *row) {
  const tws_comm_key *key = &row->key;
  cJSON *o = cJSON_CreateObject(), *waiting;
  char size[TWS_COMM_SIZE_TEXT];
  cJSON_AddStringToObject(o, "operation", tws_comm_name(key->operation));
  cJSON_AddStringToObject(o, "axis", tws_axes_name(key->axes));
  cJSON_AddNumberToObject(o, "axes", key->axes);
  cJSON_AddNumberToObject(o, "ranks", key->ranks);
  cJSON_AddStringToObject(o, "dtype", tws_dtype_name((tws_dtype)key->dtype));
  if (key->caller[0]) cJSON_AddStringToObject(o, "caller", key->caller);
  cJSON_AddNumberToObject(o, "bytes", (double)key->bytes);
  cJSON_AddNumberToObject(o, "msg_size_bytes", (double)tws_comm_message_bytes(key));
  cJSON_AddStringToObject(o, "msg_size_str", tws_comm_size_text(tws_comm_message_bytes(key), size));
  cJSON_AddNumberToObject(o, "count", nearbyint(row->count));
  cJSON_AddNumberToObject(o, "total_latency_ms", 1e3 * row->latency_s);
  cJSON_AddNumberToObject(o, "avg_latency_ms", 1e3 * tws_comm_trimmed_mean(row->latencies.s, row->latencies.count, 0));
  cJSON_AddNumberToObject(o, "mean_latency_ms", row->count > 0 ? 1e3 * row->latency_s / row->count : 0);
  cJSON_AddNumberToObject(o, "min_latency_ms", 1e3 * row->min_s);
  cJSON_AddNumberToObject(o, "total_comm_ms", 1e3 * row->transfer_s);
  cJSON_AddNumberToObject(o, "total_straggler_ms", 1e3 * (row->latency_s - row->transfer_s));
  add_bandwidths(o, row);
  waiting = cJSON_AddArrayToObject(o, "waiting_ms");
  for (int r = 0; r < log->rank_count; r++) cJSON_AddItemToArray(waiting, cJSON_CreateNumber(1e3 * row->waiting_s[r]));
  return o;
}

cJSON *tws_comm_log_json(tws_comm_log *log) {
  cJSON *root = cJSON_CreateObject();
  cJSON_AddNumberToObject(root, "steps", (double)log->steps);
  cJSON_AddNumberToObject(root, "world_size", log->world);
  cJSON *rows = cJSON_AddArrayToObject(root, "operations");
  for (size_t i = 0; i < log->row_count; i++) cJSON_AddItemToArray(rows, row_json(log, &log->rows[i]));
  cJSON *ranks = cJSON_AddArrayToObject(root, "ranks"), *slow = cJSON_AddArrayToObject(root, "stragglers");
  for (int r = 0; r < log->rank_count; r++) {
    const tws_comm_rank *rank = &log->ranks[r];
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "rank", rank->rank);
    cJSON_AddNumberToObject(o, "computing_s", rank->computing_s);
    cJSON_AddNumberToObject(o, "factor", rank->factor);
    cJSON_AddNumberToObject(o, "waiting_s", rank->waiting_s);
    cJSON_AddNumberToObject(o, "transfer_s", rank->transfer_s);
    cJSON_AddNumberToObject(o, "waited_for_s", rank->waited_for_s);
    cJSON_AddItemToArray(ranks, o);
    if (rank->is_straggler) cJSON_AddItemToArray(slow, cJSON_CreateNumber(rank->rank));
  }
  return root;
}

/* ---- reading ---- */

static double number(const cJSON *o, const char *name) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(o, name);
  return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

static int dtype_find(const char *name) {
  for (int d = 0; name && d < TWS_DTYPE_COUNT; d++)
    if (strcmp(name, tws_dtype_name((tws_dtype)d)) == 0) return d;
  return -1;
}

/* Reads one row that tws_comm_log_json() has written. Returns 1, or 0 if the object is no such row. */
static int read_row(const cJSON *o, tws_comm_row *row) {
  const char *operation = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, "operation"));
  const char *caller = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, "caller"));
  const int code = operation ? tws_comm_find(operation) : -1;
  const int dtype = dtype_find(cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, "dtype")));
  const double bytes = number(o, "bytes"), axes = number(o, "axes"), ranks = number(o, "ranks"),
               count = number(o, "count"), median = number(o, "median_transfer_s"),
               latency = number(o, "total_latency_ms"), transfer = number(o, "total_comm_ms"),
               min = number(o, "min_latency_ms");
  if (code < 0 || dtype < 0 || !(bytes >= 0 && bytes < 1e18) || !(axes >= 0 && axes < 4e9) ||
      !(ranks >= 1 && ranks < 1e9) || !(count >= 0) || !(median >= 0) || !(latency >= 0) || !(transfer >= 0) ||
      !(min >= 0))
    return 0;
  row->key = (tws_comm_key){.operation = (uint8_t)code,
                            .dtype = (uint8_t)dtype,
                            .bytes = (uint64_t)bytes,
                            .axes = (uint32_t)axes,
                            .ranks = (uint32_t)ranks};
  if (caller) strncpy(row->key.caller, caller, TWS_COMM_CALLER - 1);
  row->count = count;
  row->latency_s = 1e-3 * latency;
  row->transfer_s = 1e-3 * transfer;
  row->min_s = 1e-3 * min;
  row->transfers.s = tws_calloc(1, sizeof *row->transfers.s);
  if (!row->transfers.s) return 0;
  row->transfers.s[0] = (float)median; /* one sample, the median */
  row->transfers.count = 1;
  return 1;
}

tws_code tws_comm_log_read_json(const cJSON *json, const char *path, tws_comm_log **out, tws_error *err) {
  static const char hint[] =
      "give what `train --result FILE` or `--json` wrote of a run with comms_logger or --comm-log";
  const cJSON *rows = cJSON_GetObjectItemCaseSensitive(json, "operations"), *one;
  const double steps = number(json, "steps"), world = number(json, "world_size");
  *out = NULL;
  if (!cJSON_IsArray(rows) || !(steps >= 1) || !(world >= 1 && world < 1e9))
    return tws_fail(err, TWS_INVALID, hint, "%s has no communication log", path);
  TWS_TRY(tws_comm_log_create(0, (int)world, out, err));
  (*out)->steps = (int64_t)steps;
  cJSON_ArrayForEach(one, rows) {
    tws_comm_log *log = *out;
    tws_code code = TWS_OK;
    if (tws_reserve(&log->rows, &log->row_capacity, log->row_count + 1, sizeof *log->rows) != 0) {
      code = tws_fail(err, TWS_MEMORY, NULL, "out of memory for the communication log");
    } else {
      log->rows[log->row_count] = (tws_comm_row){.count = 0};
      if (!read_row(one, &log->rows[log->row_count]))
        code = tws_fail(err, TWS_INVALID, hint, "%s: row %zu of the communication log is not complete", path,
                        log->row_count);
      else
        log->row_count++;
    }
    if (code == TWS_OK) continue;
    tws_comm_log_destroy(log);
    *out = NULL;
    return code;
  }
  return TWS_OK;
}
