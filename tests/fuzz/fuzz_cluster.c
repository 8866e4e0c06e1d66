/* Cluster files and names: any bytes give a cluster with consistent numbers, or one error. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "config/cluster.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(tws_code code, const tws_cluster *c, const tws_error *err) {
  if (code != TWS_OK) {
    if (code != TWS_INVALID || !err->message[0]) abort();
    return;
  }
  if (!memchr(c->name, 0, sizeof c->name) || !memchr(c->profile, 0, sizeof c->profile)) abort();
  if (c->nodes < 1 || c->devices_per_node < 1 || c->cores_per_node < 0 || c->nics_per_node < 0) abort();
  if (c->devices_per_node > 1 && !(c->intra.bandwidth > 0)) abort();
  if (c->nodes > 1 && !(c->inter.bandwidth > 0)) abort();
  const double figures[] = {c->host_memory_bytes,   c->device_memory_bytes, c->intra.bandwidth,
                            c->intra.latency_s,     c->inter.latency_s,     c->host_link.bandwidth,
                            c->host_link.latency_s, c->disk_read,           c->disk_write};
  for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
    if (!isfinite(figures[i]) || figures[i] < 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  tws_cluster cluster;
  tws_error err = {0};
  tws_json *json = NULL;
  if (tws_json_parse((const char *)data, size, "fuzz", &json, NULL) == TWS_OK)
    check(tws_cluster_from_json(json, &cluster, &err), &cluster, &err);
  tws_json_destroy(json);
  char name[64];
  if (size >= sizeof name || memchr(data, '/', size) || memchr(data, '.', size) || (size == 1 && data[0] == '-'))
    return 0;
  if (size) memcpy(name, data, size);
  name[size] = 0;
  err = (tws_error){0};
  check(tws_cluster_load(name, &cluster, &err), &cluster, &err);
  return 0;
}
