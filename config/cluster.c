#include "config/cluster.h"

#include <ctype.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/host_memory.h"
#include "base/number.h"
#include "base/units.h"
#include "config/boxes.h"

enum { MAX_NODES = 65536, MAX_DEVICES = 1024, MAX_CORES = 65536 };

/* Published figures, in one direction.
 * NVLink per GPU: 2nd generation 6 x 25 GB/s, 3rd 12 x 25, 4th 18 x 25, 5th 18 x 50 (NVIDIA; collected in
 *   stas00/ml-engineering, network/README.md).
 * PCIe x16: 3rd generation 15.75 GB/s, 4th 31, 5th 63 (same source).
 * InfiniBand ports: EDR 100 Gbit/s, HDR 200, NDR 400; DGX-1 has 4, the others 8 for computing (NVIDIA's data sheets).
 * Latency of a ring's step with the Simple protocol, from NCCL's tuning constants (src/graph/tuning.cc): NVLink 3.4 us,
 *   network 14 us.
 * Messages: NCCL's proxy thread takes 1 us to post one to the network on an Intel CPU, 2 us on AMD (getNetOverhead()
 *   in the same file).
 * Cores and memory: NVIDIA's data sheets. Memory bandwidth: channels of both CPUs times their transfer rate, for the
 * CPUs
 *   that the data sheets name: E5-2698 v4 2 x 4 x 19.2 GB/s, 8168 2 x 6 x 21.3, EPYC 7742 2 x 8 x 25.6, 8480C 2 x 8 x
 *   38.4, 8570 2 x 8 x 44.8 (Intel, AMD). Local disks have no published sustained rate; a cluster file can give one. */
#define NVLINK(gb_per_s) \
  { (gb_per_s) * 1e9, 3.4e-6 }
#define NETWORK(gbit_per_s) \
  { (gbit_per_s) / 8.0 * 1e9, 14e-6 }
#define PCIE3 \
  { 15.75e9, 5.7e-6 }
#define PCIE4 \
  { 31e9, 5.7e-6 }
#define PCIE5 \
  { 63e9, 5.7e-6 }
#define C2C \
  { 450e9, 5.7e-6 }
#define INTEL 1e-6
#define AMD 2e-6
#define TB 1e12
#define GB 1e9
#define SYSTEM(name_, profile_, devices_, cores_, memory_, dram_, intra_, paired_, inter_, nics_, pcie_, message_) \
  {                                                                                                                \
    .name = name_, .profile = profile_, .nodes = 1, .devices_per_node = devices_, .cores_per_node = cores_,        \
    .host_memory_bytes = memory_, .host_bandwidth = dram_, .intra = intra_, .paired = paired_, .inter = inter_,    \
    .nics_per_node = nics_, .host_link = pcie_, .devices_per_host_link = 1, .numa_nodes = 1, .message_s = message_ \
  }

static const tws_cluster systems[] = {
    /* HPE SGI 8600 (Jean Zay): each pair of the four V100 is connected by two NVLinks, from which NCCL forms 12 rings;
     * there are 4 Omni-Path ports. */
    SYSTEM("quad-v100", "v100-32gb", 4, 40, 192 * GB, 281.6 * GB, NVLINK(150), 1, NETWORK(100), 4, PCIE3, INTEL),
    SYSTEM("dgx1-v100", "v100-32gb", 8, 40, 0.5 * TB, 153.6 * GB, NVLINK(150), 0, NETWORK(100), 4, PCIE3, INTEL),
    SYSTEM("dgx2-v100", "v100-32gb", 16, 48, 1.5 * TB, 256 * GB, NVLINK(150), 0, NETWORK(100), 8, PCIE3, INTEL),
    SYSTEM("dgx-a100", "a100-80gb", 8, 128, 2.0 * TB, 409.6 * GB, NVLINK(300), 0, NETWORK(200), 8, PCIE4, AMD),
    SYSTEM("dgx-a100-40gb", "a100-40gb", 8, 128, 1.0 * TB, 409.6 * GB, NVLINK(300), 0, NETWORK(200), 8, PCIE4, AMD),
    SYSTEM("dgx-h100", "h100-sxm", 8, 112, 2.0 * TB, 614.4 * GB, NVLINK(450), 0, NETWORK(400), 8, PCIE5, INTEL),
    SYSTEM("dgx-h200", "h200", 8, 112, 2.0 * TB, 614.4 * GB, NVLINK(450), 0, NETWORK(400), 8, PCIE5, INTEL),
    SYSTEM("dgx-b200", "b200", 8, 112, 2.0 * TB, 716.8 * GB, NVLINK(900), 0, NETWORK(400), 8, PCIE5, INTEL),
    /* Racks with one NVLink domain: 36 Grace CPUs with 72 cores and 480 GB at 512 GB/s each, two GPUs per CPU over 450
     * GB/s of NVLink-C2C, and one ConnectX-7 (or -8) per GPU (NVIDIA's data sheets). */
    SYSTEM("gb200-nvl72", "gb200", 72, 2592, 17.28 * TB, 18432 * GB, NVLINK(900), 0, NETWORK(400), 72, C2C, INTEL),
    SYSTEM("gb300-nvl72", "gb300", 72, 2592, 17.28 * TB, 18432 * GB, NVLINK(900), 0, NETWORK(800), 72, C2C, INTEL),
    /* Cloud instances, with the figures of their providers' pages: 4 and 32 EFA cards on AWS, 8 InfiniBand NICs on
     * Azure. */
    SYSTEM("aws-p4d", "a100-40gb", 8, 48, 1.152 * TB, 281.6 * GB, NVLINK(300), 0, NETWORK(100), 4, PCIE4, INTEL),
    SYSTEM("aws-p5", "h100-sxm", 8, 96, 2.0 * TB, 409.6 * GB, NVLINK(450), 0, NETWORK(100), 32, PCIE5, AMD),
    SYSTEM("azure-nd-a100", "a100-80gb", 8, 96, 1.7 * TB, 409.6 * GB, NVLINK(300), 0, NETWORK(200), 8, PCIE4, AMD),
    /* Clusters of a single device, with its share of the host of a node above. */
    SYSTEM("a100", "a100-80gb", 1, 16, 0.25 * TB, 51.2 * GB, NVLINK(300), 0, NETWORK(200), 1, PCIE4, AMD),
    SYSTEM("h100", "h100-sxm", 1, 14, 0.25 * TB, 76.8 * GB, NVLINK(450), 0, NETWORK(400), 1, PCIE5, INTEL),
    SYSTEM("h200", "h200", 1, 14, 0.25 * TB, 76.8 * GB, NVLINK(450), 0, NETWORK(400), 1, PCIE5, INTEL),
    /* Cores and memory are determined on this machine. The links are round figures for shared memory and a 10 Gbit/s
     * network; a calibrated profile has measured ones. */
    SYSTEM("host", "host", 1, 1, 0, 10 * GB, NVLINK(5), 0, NETWORK(10), 1, NVLINK(10), 0),
};
enum { SYSTEM_COUNT = sizeof systems / sizeof *systems };

/* Names of built-in clusters: those of this file; the names of server models and cloud instances (boxes.def) follow. */
static const char *const builtin_names[] = {"dgx1-v100", "dgx2-v100", "quad-v100",     "dgx-a100",    "dgx-a100-40gb",
                                            "dgx-h100",  "dgx-h200",  "dgx-b200",      "gb200-nvl72", "gb300-nvl72",
                                            "aws-p4d",   "aws-p5",    "azure-nd-a100", "a100",        "h100",
                                            "h200",      "host",
#define BOX(name, title, profile, intra, paired, nic, host, posts, topology, nics, cpu) name,
#define S(key, value, sources)
#define R(key, value)
#define D(key, value)
#define END
#include "config/boxes.def"
#undef BOX
#undef S
#undef R
#undef D
#undef END
                                            NULL};
enum { NAME_COUNT = sizeof builtin_names / sizeof *builtin_names - 1 };

const char *const *tws_cluster_builtin_names(void) {
  return builtin_names;
}

double tws_cluster_port(const tws_cluster *cluster, int near) {
  const int others = cluster->devices_per_node - 1;
  const double whole = cluster->intra.bandwidth;
  return cluster->paired && near > 1 && near <= others ? whole * (near - 1) / others : whole;
}

double tws_cluster_copy_rate(const tws_cluster *cluster, int to_host) {
  const double known = to_host ? cluster->host_copies.to_host : cluster->host_copies.to_device;
  return known > 0 ? known : cluster->host_link.bandwidth;
}

double tws_cluster_crowding(const tws_cluster *cluster, double share) {
  return cluster->leaf_nodes > 0 && cluster->leaf_nodes < cluster->nodes ? fmax(1, share * cluster->oversubscription)
                                                                         : 1;
}

/* ---- this machine ---- */

static int usable_cores(void) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  long online = sysconf(_SC_NPROCESSORS_ONLN);
  return online < 1 ? 1 : online > MAX_CORES ? MAX_CORES : (int)online;
}

static void fill_host(tws_cluster *cluster) {
  cluster->cores_per_node = cluster->devices_per_node = usable_cores();
  if (cluster->devices_per_node > MAX_DEVICES) cluster->devices_per_node = MAX_DEVICES;
  cluster->host_memory_bytes = (double)tws_host_memory_read().total_bytes; /* at most the control groups' limit */
}

/* ---- names with a size: NAME[:NODES[xDEVICES]] ---- */

static int read_count(const char **text, int high, int *value) {
  return isdigit((unsigned char)**text) && tws_text_int(*text, text, 1, high, value);
}

static tws_code unknown_cluster(const char *spec, size_t length, tws_error *err) {
  char word[64], hint[sizeof err->hint];
  snprintf(word, sizeof word, "%.*s", length > 60 ? 60 : (int)length, spec);
  tws_names_hint(word, builtin_names, NAME_COUNT,
                 "give a cluster file or a built-in name:", "twinspeed convert list clusters", hint, sizeof hint);
  return tws_fail(err, TWS_INVALID, hint, "unknown cluster \"%.200s\"", spec);
}

/* Refuses several nodes of a server model or cloud instance whose published figures have no NICs: such a cluster needs
 * a file. */
static tws_code check_box(const tws_cluster *c, const char *spec, tws_error *err) {
  if (!c->box || c->nodes < 2 || (c->inter.bandwidth > 0 && c->nics_per_node > 0)) return TWS_OK;
  return tws_fail(err, TWS_INVALID,
                  "--cluster FILE with \"base\": \"NAME\", \"nics_per_node\": ..., \"inter\": {\"bandwidth\": ..., "
                  "\"latency_s\": ...}",
                  "cluster \"%.200s\": no link between its nodes is published", spec);
}

/* Reads the size of a built-in cluster from the text after the colon of `spec`. A system has the devices that are
 * published for it, of which a job may use fewer; the devices of a host are ranks, and their number is free. */
static tws_code read_size(const char *spec, const char *text, int host, tws_cluster *out, tws_error *err) {
  const int present = out->devices_per_node;
  const char *rest = text;
  int good = read_count(&rest, MAX_NODES, &out->nodes);
  if (good && *rest == 'x') {
    rest++;
    good = read_count(&rest, MAX_DEVICES, &out->devices_per_node);
  }
  if (!good || *rest)
    return tws_fail(err, TWS_INVALID, "write NAME:NODES or NAME:NODESxDEVICES, for example dgx-a100:4 or host:2x4",
                    "cluster \"%.200s\": \"%.80s\" is not a node count (1 to %d nodes, 1 to %d devices each)", spec,
                    text, MAX_NODES, MAX_DEVICES);
  if (host || out->devices_per_node <= present) return TWS_OK;
  return tws_fail(err, TWS_INVALID,
                  "use more nodes (NAME:NODES), or --cluster FILE with \"base\": \"NAME\", \"devices_per_node\" and "
                  "\"intra\": {\"bandwidth\": ..., \"latency_s\": ...}",
                  "cluster \"%.200s\": %d devices of a node, and a node has %d", spec, out->devices_per_node, present);
}

static tws_code load_builtin(const char *spec, tws_cluster *out, tws_error *err) {
  const char *colon = strchr(spec, ':');
  size_t length = colon ? (size_t)(colon - spec) : strlen(spec);
  const tws_cluster *found = NULL;
  for (int i = 0; i < SYSTEM_COUNT; i++)
    if (strlen(systems[i].name) == length && memcmp(systems[i].name, spec, length) == 0) found = &systems[i];
  const tws_box *box = found ? NULL : tws_box_find(spec, length);
  if (!found && !box) return unknown_cluster(spec, length, err);
  if (box)
    tws_box_cluster(box, out);
  else
    *out = *found;
  out->builtin = out->assumed_nics = 1;
  out->box = box != NULL;
  const int host = found && strcmp(found->name, "host") == 0;
  if (host) fill_host(out);
  if (!colon) return TWS_OK;
  TWS_TRY(read_size(spec, colon + 1, host, out, err));
  snprintf(out->name, sizeof out->name, "%s", spec);
  return check_box(out, spec, err);
}

/* ---- cluster files ---- */

/* Reads a number, or a text with a unit (2.5e10, "25 GB/s", "512GiB"). The value must be 0, which means "not given", or
 * at least 1 byte (per second): smaller rates would give unbounded times. */
static tws_code read_quantity(const tws_json *json, const cJSON *object, const char *key, double *value,
                              tws_error *err) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
  if (!cJSON_IsString(item)) {
    TWS_TRY(tws_json_number(json, object, key, 0, 0, 1e30, *value, value, err));
    if (!(*value > 0 && *value < 1)) return TWS_OK;
    return tws_json_fail(json, item, err, "write bytes: 2.5e10, or \"25 GB/s\"", "\"%s\" is less than a byte: %g", key,
                         *value);
  }
  char text[64];
  snprintf(text, sizeof text, "%s", item->valuestring);
  char *per_second = strstr(text, "/s");
  if (per_second && !per_second[2]) *per_second = 0;
  tws_error why = {0};
  if (strlen(item->valuestring) < sizeof text && tws_parse_bytes(text, key, value, &why) == TWS_OK && *value <= 1e30 &&
      !(*value > 0 && *value < 1))
    return TWS_OK;
  return tws_json_fail(json, item, err, "write a number, or one with a unit: \"25 GB/s\", \"512GiB\"",
                       "\"%s\" is not a number of bytes: \"%.80s\"", key, item->valuestring);
}

/* Returns an object of the known keys, the hint of an error. */
static const char *object_hint(const char *const *known, char *text, size_t size) {
  size_t length = (size_t)snprintf(text, size, "write an object: {");
  for (int i = 0; known[i] && length < size; i++)
    length += (size_t)snprintf(text + length, size - length, "%s\"%s\": ...", i ? ", " : "", known[i]);
  if (length < size) snprintf(text + length, size - length, "}");
  return text;
}

static tws_code read_section(const tws_json *json, const cJSON *root, const char *key, const char *const *known,
                             const cJSON **out, tws_error *err) {
  *out = cJSON_GetObjectItemCaseSensitive(root, key);
  if (!*out || cJSON_IsNull(*out)) {
    *out = NULL;
    return TWS_OK;
  }
  char hint[256];
  if (!cJSON_IsObject(*out))
    return tws_json_fail(json, *out, err, object_hint(known, hint, sizeof hint), "\"%s\" must be an object", key);
  return tws_json_only(json, *out, known, err);
}

static tws_code read_class(const tws_json *json, const cJSON *link, int *fabric, tws_error *err) {
  const char *word, *words[TWS_FABRIC_COUNT];
  TWS_TRY(tws_json_string(json, link, "class", 0, NULL, &word, err));
  if (!word) return TWS_OK;
  *fabric = tws_fabric_find(word);
  if (*fabric != TWS_FABRIC_NONE) return TWS_OK;
  for (int i = 1; i < TWS_FABRIC_COUNT; i++) words[i - 1] = tws_fabric_of(i)->word;
  char hint[384];
  tws_names_hint(word, words, TWS_FABRIC_COUNT - 1, "known:", NULL, hint, sizeof hint);
  return tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(link, "class"), err, hint,
                       "\"class\": unknown word \"%.60s\"", word);
}

static tws_code read_link_of(const tws_json *json, const cJSON *object, tws_link *link, int *fabric, tws_error *err) {
  TWS_TRY(read_quantity(json, object, "bandwidth", &link->bandwidth, err));
  TWS_TRY(read_class(json, object, fabric, err));
  if (cJSON_GetObjectItemCaseSensitive(object, "class")) link->latency_s = tws_fabric_of(*fabric)->latency_s;
  return tws_json_number(json, object, "latency_s", 0, 0, 1e3, link->latency_s, &link->latency_s, err);
}

static tws_code read_link(const tws_json *json, const cJSON *root, const char *key, tws_link *link, int *fabric,
                          tws_error *err) {
  static const char *const known[] = {"bandwidth", "latency_s", "class", NULL};
  const cJSON *object;
  TWS_TRY(read_section(json, root, key, known, &object, err));
  return object ? read_link_of(json, object, link, fabric, err) : TWS_OK;
}

/* Reads "host_link", a link with the rates of its copies, and "host_copies", the rates of a node. */
static tws_code read_copies(const tws_json *json, const cJSON *root, tws_cluster *out, tws_error *err) {
  static const char *const of_link[] = {"bandwidth", "latency_s", "class", "to_host", "both_ways", NULL};
  static const char *const of_node[] = {"to_device", "to_host", "both_ways", NULL};
  const cJSON *link, *node;
  int fabric = TWS_FABRIC_NONE;
  TWS_TRY(read_section(json, root, "host_link", of_link, &link, err));
  TWS_TRY(read_section(json, root, "host_copies", of_node, &node, err));
  if (link) {
    TWS_TRY(read_link_of(json, link, &out->host_link, &fabric, err));
    TWS_TRY(read_quantity(json, link, "to_host", &out->host_copies.to_host, err));
    TWS_TRY(read_quantity(json, link, "both_ways", &out->host_copies.both_ways, err));
  }
  if (node) {
    TWS_TRY(read_quantity(json, node, "to_device", &out->node_copies.to_device, err));
    TWS_TRY(read_quantity(json, node, "to_host", &out->node_copies.to_host, err));
    TWS_TRY(read_quantity(json, node, "both_ways", &out->node_copies.both_ways, err));
  }
  out->copies_given = link || node;
  return TWS_OK;
}

static tws_code read_count_key(const tws_json *json, const cJSON *root, const char *key, int low, int high, int *value,
                               tws_error *err) {
  int64_t wide;
  TWS_TRY(tws_json_int(json, root, key, 0, low, high, *value, &wide, err));
  *value = (int)wide;
  return TWS_OK;
}

static tws_code copy_name(const tws_json *json, const cJSON *root, const char *key, char *to, size_t size,
                          tws_error *err) {
  const char *text;
  TWS_TRY(tws_json_string(json, root, key, 0, NULL, &text, err));
  if (!text) return TWS_OK;
  if (!*text || strlen(text) >= size)
    return tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(root, key), err, NULL,
                         "\"%s\" must have 1 to %zu characters", key, size - 1);
  snprintf(to, size, "%s", text);
  return TWS_OK;
}

/* Reads the key "profile". A profile that is a path is relative to the folder of the cluster file. */
static tws_code read_profile(const tws_json *json, const cJSON *root, tws_cluster *out, tws_error *err) {
  char given[sizeof out->profile] = "";
  TWS_TRY(copy_name(json, root, "profile", given, sizeof given, err));
  if (!given[0]) return TWS_OK;
  size_t length = strlen(given);
  int is_path = strchr(given, '/') || (length > 5 && strcmp(given + length - 5, ".json") == 0);
  const char *slash = strrchr(json->name, '/');
  int directory = is_path && given[0] != '/' && slash ? (int)(slash - json->name + 1) : 0;
  if ((size_t)directory + length >= sizeof out->profile)
    return tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(root, "profile"), err, NULL,
                         "the path of the profile is too long");
  memcpy(out->profile, json->name, (size_t)directory);
  memcpy(out->profile + directory, given, length + 1);
  return TWS_OK;
}

#define WORDS "write \"rings\" or \"nccl\""

tws_code tws_cluster_collectives(const char *word, tws_cluster *cluster, tws_error *err) {
  cluster->nccl = strcmp(word, "nccl") == 0;
  if (cluster->nccl || strcmp(word, "rings") == 0) return TWS_OK;
  return tws_fail(err, TWS_USAGE, WORDS, "--collectives: unknown word \"%.60s\"", word);
}

static tws_code read_collectives(const tws_json *json, const cJSON *root, tws_cluster *out, tws_error *err) {
  const char *word;
  TWS_TRY(tws_json_string(json, root, "collectives", 0, NULL, &word, err));
  if (!word || tws_cluster_collectives(word, out, NULL) == TWS_OK) return TWS_OK;
  return tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(root, "collectives"), err, WORDS,
                       "\"collectives\": unknown word \"%.60s\"", word);
}

static tws_code read_leaf(const tws_json *json, const cJSON *root, tws_cluster *out, tws_error *err) {
  static const char *const known[] = {"nodes", "oversubscription", NULL};
  const cJSON *leaf;
  TWS_TRY(read_section(json, root, "leaf", known, &leaf, err));
  if (!leaf) return TWS_OK;
  int64_t nodes;
  TWS_TRY(tws_json_int(json, leaf, "nodes", 1, 1, MAX_NODES, 1, &nodes, err));
  out->leaf_nodes = (int)nodes;
  return tws_json_number(json, leaf, "oversubscription", 1, 1, 1e3, 1, &out->oversubscription, err);
}

static tws_code check_cluster(const tws_json *json, const cJSON *root, const tws_cluster *c, tws_error *err) {
  if (c->devices_per_node > 1 && !(c->intra.bandwidth > 0))
    return tws_json_fail(json, root, err, "give \"intra\": {\"bandwidth\": ..., \"latency_s\": ...}",
                         "%d devices a node, but no bandwidth between them", c->devices_per_node);
  if (c->nodes > 1 && (!(c->inter.bandwidth > 0) || c->nics_per_node < 1))
    return tws_json_fail(json, root, err,
                         "give \"inter\": {\"bandwidth\": ..., \"latency_s\": ...} and \"nics_per_node\"",
                         "%d nodes, but no network between them", c->nodes);
  return TWS_OK;
}

static tws_code read_nics(const tws_json *json, const cJSON *root, tws_cluster *c, tws_error *err) {
  c->builtin = c->box = 0;
  c->assumed_nics = !cJSON_GetObjectItemCaseSensitive(root, "nics_per_node");
  return read_count_key(json, root, "nics_per_node", 0, MAX_DEVICES, &c->nics_per_node, err);
}

static const char *const cluster_keys[] = {"schema",
                                           "name",
                                           "base",
                                           "profile",
                                           "nodes",
                                           "devices_per_node",
                                           "cores_per_node",
                                           "host_memory",
                                           "device_memory",
                                           "intra",
                                           "inter",
                                           "message_bandwidth",
                                           "message_s",
                                           "nics_per_node",
                                           "paired",
                                           "host_link",
                                           "disk",
                                           "host_bandwidth",
                                           "devices_per_host_link",
                                           "host_copies",
                                           "numa_nodes",
                                           "collectives",
                                           "leaf",
                                           "samples_per_s",
                                           "price_per_device_hour",
                                           "provenance",
                                           "figures",
                                           NULL};

tws_code tws_cluster_from_json(const tws_json *json, tws_cluster *out, tws_error *err) {
  static const char *const disk_keys[] = {"read", "write", "size", NULL};
  const cJSON *root = json->root, *disk;
  const char *schema, *base;
  if (!cJSON_IsObject(root))
    return tws_json_fail(json, root, err, "{\"schema\": \"twinspeed-cluster-1\", ...}: docs/cluster-keys.md",
                         "a cluster file holds one object");
  TWS_TRY(tws_json_string(json, root, "schema", 1, NULL, &schema, err));
  if (strcmp(schema, "twinspeed-cluster-1") != 0)
    return tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(root, "schema"), err, "\"twinspeed-cluster-1\" is read",
                         "unknown schema \"%.80s\"", schema);
  TWS_TRY(tws_json_only(json, root, cluster_keys, err));
  tws_cluster c = {.name = "cluster",
                   .profile = "host",
                   .nodes = 1,
                   .devices_per_node = 1,
                   .nics_per_node = 1,
                   .devices_per_host_link = 1,
                   .numa_nodes = 1};
  TWS_TRY(tws_json_string(json, root, "base", 0, NULL, &base, err));
  if (base && load_builtin(base, &c, err) != TWS_OK) {
    if (!err) return TWS_INVALID;
    char hint[sizeof err->hint];
    snprintf(hint, sizeof hint, "%s", err->hint);
    return tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(root, "base"), err, hint, "%s", err->message);
  }
  TWS_TRY(copy_name(json, root, "name", c.name, sizeof c.name, err));
  TWS_TRY(read_profile(json, root, &c, err));
  TWS_TRY(read_count_key(json, root, "nodes", 1, MAX_NODES, &c.nodes, err));
  TWS_TRY(read_count_key(json, root, "devices_per_node", 1, MAX_DEVICES, &c.devices_per_node, err));
  TWS_TRY(read_count_key(json, root, "cores_per_node", 0, MAX_CORES, &c.cores_per_node, err));
  TWS_TRY(read_nics(json, root, &c, err));
  TWS_TRY(read_count_key(json, root, "paired", 0, 1, &c.paired, err));
  TWS_TRY(read_quantity(json, root, "host_memory", &c.host_memory_bytes, err));
  TWS_TRY(read_quantity(json, root, "device_memory", &c.device_memory_bytes, err));
  TWS_TRY(read_quantity(json, root, "host_bandwidth", &c.host_bandwidth, err));
  TWS_TRY(read_quantity(json, root, "message_bandwidth", &c.message_bandwidth, err));
  TWS_TRY(tws_json_number(json, root, "message_s", 0, 0, 1, c.message_s, &c.message_s, err));
  TWS_TRY(read_link(json, root, "intra", &c.intra, &c.intra_fabric, err));
  TWS_TRY(read_link(json, root, "inter", &c.inter, &c.inter_fabric, err));
  TWS_TRY(read_copies(json, root, &c, err));
  TWS_TRY(read_count_key(json, root, "devices_per_host_link", 1, MAX_DEVICES, &c.devices_per_host_link, err));
  TWS_TRY(read_count_key(json, root, "numa_nodes", 1, MAX_DEVICES, &c.numa_nodes, err));
  TWS_TRY(tws_json_number(json, root, "samples_per_s", 0, 0, 1e12, c.samples_per_s, &c.samples_per_s, err));
  TWS_TRY(tws_json_number(json, root, "price_per_device_hour", 0, 0, 1e9, c.price_per_device_hour,
                          &c.price_per_device_hour, err));
  TWS_TRY(read_collectives(json, root, &c, err));
  TWS_TRY(read_leaf(json, root, &c, err));
  TWS_TRY(read_section(json, root, "disk", disk_keys, &disk, err));
  if (disk) {
    TWS_TRY(read_quantity(json, disk, "read", &c.disk_read, err));
    TWS_TRY(read_quantity(json, disk, "write", &c.disk_write, err));
    TWS_TRY(read_quantity(json, disk, "size", &c.disk_bytes, err));
  }
  TWS_TRY(check_cluster(json, root, &c, err));
  *out = c;
  return TWS_OK;
}

tws_code tws_cluster_load(const char *spec, tws_cluster *out, tws_error *err) {
  size_t length = strlen(spec);
  int is_file = strcmp(spec, "-") == 0 || strchr(spec, '/') || (length > 5 && strcmp(spec + length - 5, ".json") == 0);
  if (!is_file) return load_builtin(spec, out, err);
  tws_json *json;
  TWS_TRY(tws_json_read(spec, &json, err));
  tws_code code = tws_cluster_from_json(json, out, err);
  tws_json_destroy(json);
  return code;
}
