/* Names, message sizes and bandwidths in the communication log, as DeepSpeed and nccl-tests define them. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "communication/comm_log.h"
#include "models/collective.h"

/* ---- names ---- */

const char *tws_comm_name(int operation) {
  return operation == TWS_COMM_SEND      ? "send"
         : operation == TWS_COMM_RECEIVE ? "recv"
                                         : tws_collective_name((tws_collective)operation);
}

int tws_comm_find(const char *name) {
  static const struct {
    const char *name;
    int operation;
  } others[] = {{"all_reduce_coalesced", TWS_COLLECTIVE_ALL_REDUCE},
                {"inference_all_reduce", TWS_COLLECTIVE_ALL_REDUCE},
                {"all_gather_into_tensor", TWS_COLLECTIVE_ALL_GATHER},
                {"all_gather_base", TWS_COLLECTIVE_ALL_GATHER},
                {"all_gather_coalesced", TWS_COLLECTIVE_ALL_GATHER},
                {"reduce_scatter_tensor", TWS_COLLECTIVE_REDUCE_SCATTER},
                {"reduce_scatter_base", TWS_COLLECTIVE_REDUCE_SCATTER},
                {"all_to_all_single", TWS_COLLECTIVE_ALL_TO_ALL},
                {"isend", TWS_COMM_SEND},
                {"irecv", TWS_COMM_RECEIVE}};
  for (int i = 0; i < TWS_COMM_OPERATIONS; i++)
    if (strcmp(name, tws_comm_name(i)) == 0) return i;
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    if (strcmp(name, others[i].name) == 0) return others[i].operation;
  return -1;
}

tws_code tws_comm_filter_read(const tws_config *config, tws_comm_filter *out, tws_error *err) {
  const cJSON *list = config->comms_logger.prof_ops, *one;
  *out = (tws_comm_filter){.by_caller = config->comms_logger.debug};
  if (!config->comms_logger.enabled || config->comms_logger.prof_all) out->operations = (1u << TWS_COMM_OPERATIONS) - 1;
  for (one = cJSON_IsArray(list) ? list->child : list; one; one = cJSON_IsArray(list) ? one->next : NULL) {
    const int operation = cJSON_IsString(one) ? tws_comm_find(one->valuestring) : -1;
    if (operation < 0)
      return tws_fail(err, TWS_INVALID,
                      "all_reduce, reduce, all_gather, reduce_scatter, broadcast, all_to_all, shift, gather, scatter, "
                      "barrier, send, recv, or DeepSpeed's names of these",
                      "comms_logger.prof_ops: there is no operation \"%.60s\"",
                      cJSON_IsString(one) ? one->valuestring : "?");
    out->operations |= 1u << operation;
  }
  return TWS_OK;
}

/* ---- bandwidths ---- */

uint64_t tws_comm_message_bytes(const tws_comm_key *key) {
  const int operation = key->operation,
            divided = operation == TWS_COLLECTIVE_ALL_GATHER || operation == TWS_COLLECTIVE_REDUCE_SCATTER ||
                      operation == TWS_COLLECTIVE_GATHER || operation == TWS_COLLECTIVE_SCATTER;
  return divided && key->ranks > 0 ? key->bytes / key->ranks : key->bytes;
}

tws_comm_bandwidth tws_comm_deepspeed_gbps(int operation, uint32_t ranks, uint64_t message_bytes, double seconds) {
  const double n = ranks;
  double size = (double)message_bytes, bus = 1;
  if (!(seconds > 0)) return (tws_comm_bandwidth){0, 0};
  if (operation == TWS_COLLECTIVE_ALL_TO_ALL) bus = (n - 1) / n;
  if (operation == TWS_COLLECTIVE_ALL_GATHER || operation == TWS_COLLECTIVE_REDUCE_SCATTER) {
    size *= n;
    bus = (n - 1) / n;
  }
  if (operation == TWS_COLLECTIVE_ALL_REDUCE) { /* algorithm bandwidth 2 S/t, bus bandwidth 2 S/t (n - 1)/n */
    size *= 2;
    bus = (n - 1) / n;
  }
  const double gbps = size / seconds * 8 / 1e9;
  return (tws_comm_bandwidth){gbps, gbps * bus};
}

tws_comm_bandwidth tws_comm_nccl_gbs(int operation, uint32_t ranks, uint64_t bytes, double seconds) {
  const double n = ranks;
  double bus = 1;
  if (!(seconds > 0)) return (tws_comm_bandwidth){0, 0};
  switch (operation) {
    case TWS_COLLECTIVE_ALL_REDUCE:
      bus = 2 * (n - 1) / n;
      break;
    case TWS_COLLECTIVE_ALL_GATHER:
    case TWS_COLLECTIVE_REDUCE_SCATTER:
    case TWS_COLLECTIVE_ALL_TO_ALL:
    case TWS_COLLECTIVE_GATHER:
    case TWS_COLLECTIVE_SCATTER:
      bus = (n - 1) / n;
      break;
    default:
      break;
  }
  const double gbs = (double)bytes / seconds / 1e9;
  return (tws_comm_bandwidth){gbs, gbs * bus};
}

const char *tws_comm_size_text(uint64_t bytes, char text[TWS_COMM_SIZE_TEXT]) {
  static const char *const units[] = {"B", "KB", "MB", "GB", "TB", "PB", "EB"};
  int unit = 0;
  uint64_t scale = 1;
  if (bytes == 0) {
    snprintf(text, TWS_COMM_SIZE_TEXT, "0B");
    return text;
  }
  for (; bytes / scale >= 1024; scale *= 1024) unit++;
  int length = snprintf(text, TWS_COMM_SIZE_TEXT, "%.2f", (double)bytes / (double)scale);
  if (text[length - 1] == '0') length--; /* Python prints a rounded number without a last 0 */
  snprintf(text + length, (size_t)(TWS_COMM_SIZE_TEXT - length), " %s", units[unit]);
  return text;
}

/* ---- averages ---- */

static int compare(const void *a, const void *b) {
  const float x = *(const float *)a, y = *(const float *)b;
  return (x > y) - (x < y);
}

double tws_comm_trimmed_mean(float *values, size_t count, double constant) {
  if (count == 0) return 0;
  qsort(values, count, sizeof *values, compare);
  const size_t cut = (size_t)nearbyint(0.1 * (double)count);
  double sum = 0;
  size_t used = 0;
  for (size_t i = cut; i + cut < count; i++) {
    if (constant > 0 && !(values[i] > 0)) continue;
    sum += constant > 0 ? constant / values[i] : values[i];
    used++;
  }
  return used ? sum / (double)used : 0;
}

double tws_comm_median(float *values, size_t count) {
  if (count == 0) return 0;
  qsort(values, count, sizeof *values, compare);
  return 0.5 * ((double)values[(count - 1) / 2] + (double)values[count / 2]);
}

int tws_comm_call_text(const tws_comm_record *record, uint32_t step, uint32_t call, char *text, size_t size) {
  const tws_comm_key *key = &record->calls[call].key;
  const double seconds = record->latency_s[(size_t)step * record->call_count + call];
  const uint64_t bytes = tws_comm_message_bytes(key);
  const tws_comm_bandwidth rate = tws_comm_deepspeed_gbps(key->operation, key->ranks, bytes, seconds);
  char size_text[TWS_COMM_SIZE_TEXT];
  return snprintf(
      text, size, "comm op: %s%s%s%s | time (ms): %.2f | msg size: %s | algbw (Gbps): %.2f | busbw (Gbps): %.2f",
      tws_comm_name(key->operation), key->caller[0] ? " | [Caller Func: " : "", key->caller, key->caller[0] ? "]" : "",
      1e3 * seconds, tws_comm_size_text(bytes, size_text), rate.algorithm, rate.bus);
}
