#include "config/boxes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const tws_fabric_row fabrics[TWS_FABRIC_COUNT] = {
#define FABRIC(name, word, latency, reached, about) {word, latency, reached, about},
#include "config/fabrics.def"
#undef FABRIC
};

/* Seconds in which NCCL's proxy thread posts one message to the network on an Intel CPU; AMD: 2 us
 * (config/cluster.c). */
#define INTEL 1e-6
#define AMD 2e-6
static const tws_box boxes[] = {
#define BOX(name, title, profile, intra, paired, nic, host, posts, topology, nics, cpu)                   \
  {                                                                                                       \
    name, title, profile, TWS_FABRIC_##intra, TWS_FABRIC_##nic, paired, host, posts, topology, nics, cpu, \
        (const tws_figure[]) {
#define S(key, value, sources) {key, value, TWS_MARK_SOURCED, sources},
#define R(key, value) {key, value, TWS_MARK_RECALLED, ""},
#define D(key, value) {key, value, TWS_MARK_DERIVED, ""},
#define END                         \
  { NULL, 0, TWS_MARK_SOURCED, "" } \
  }                                 \
  }                                 \
  ,
#include "config/boxes.def"
#undef BOX
#undef S
#undef R
#undef D
#undef END
};
enum { BOXES = sizeof boxes / sizeof *boxes };

const tws_fabric_row *tws_fabric_of(int fabric) {
  return &fabrics[fabric >= 0 && fabric < TWS_FABRIC_COUNT ? fabric : TWS_FABRIC_NONE];
}

int tws_fabric_find(const char *word) {
  for (int i = 0; i < TWS_FABRIC_COUNT; i++)
    if (strcmp(fabrics[i].word, word) == 0) return i;
  return TWS_FABRIC_NONE;
}

const tws_box *tws_box_nth(int i) {
  return i >= 0 && i < BOXES ? &boxes[i] : NULL;
}

const tws_box *tws_box_find(const char *name, size_t length) {
  for (int i = 0; i < BOXES; i++)
    if (strlen(boxes[i].name) == length && memcmp(boxes[i].name, name, length) == 0) return &boxes[i];
  return NULL;
}

static double figure_or(const tws_box *box, const char *key, double otherwise) {
  const double value = tws_figure_value(box->figures, key);
  return isnan(value) ? otherwise : value;
}

void tws_box_cluster(const tws_box *box, tws_cluster *out) {
  const tws_fabric_row *intra = &fabrics[box->intra], *nic = &fabrics[box->nic];
  /* with NVLink bridges between pairs of cards, rings of more than two cards pass through PCIe, which limits them */
  const double nominal =
      box->intra == TWS_FABRIC_NVLINK_BRIDGE ? box->host_GBps : figure_or(box, "intra_uni_GBps_per_gpu", 0);
  *out = (tws_cluster){.nodes = 1,
                       .devices_per_node = (int)figure_or(box, "gpus", 1),
                       .cores_per_node = (int)figure_or(box, "cores", 0),
                       .host_memory_bytes = figure_or(box, "host_memory_gb", 0) * 1e9,
                       .disk_bytes = figure_or(box, "local_nvme_tb", 0) * 1e12,
                       .numa_nodes = 1,
                       .intra = {nominal * 1e9 * intra->reached, intra->latency_s},
                       .intra_fabric = box->intra,
                       .paired = box->paired,
                       .inter = {figure_or(box, "nic_gbps", 0) / 8 * 1e9 * nic->reached, nic->latency_s},
                       .inter_fabric = box->nic,
                       .nics_per_node = (int)figure_or(box, "nic_count", 0),
                       .host_link = {box->host_GBps * 1e9, box->host_GBps > 0 ? fabrics[TWS_FABRIC_PCIE].latency_s : 0},
                       .devices_per_host_link = 1,
                       .message_s = box->message_s};
  snprintf(out->name, sizeof out->name, "%s", box->name);
  snprintf(out->profile, sizeof out->profile, "%s", box->profile);
}
