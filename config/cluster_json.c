/* Writes clusters as files, and the JSON Schema of such files. */
#include <stdio.h>
#include <string.h>

#include "config/boxes.h"

static void add_positive(cJSON *object, const char *key, double value) {
  if (value > 0) cJSON_AddNumberToObject(object, key, value);
}

static void add_link(cJSON *root, const char *key, const tws_link *link, int fabric) {
  if (!(link->bandwidth > 0)) return;
  cJSON *object = cJSON_AddObjectToObject(root, key);
  if (fabric != TWS_FABRIC_NONE) cJSON_AddStringToObject(object, "class", tws_fabric_of(fabric)->word);
  cJSON_AddNumberToObject(object, "bandwidth", link->bandwidth);
  cJSON_AddNumberToObject(object, "latency_s", link->latency_s);
}

/* Adds the published nominal rates of a server model (dgx-h100, p4d.24xlarge, ...) and their sources. */
static void add_box(cJSON *root, const char *name) {
  const tws_box *box = tws_box_find(name, strcspn(name, ":"));
  char text[256];
  snprintf(text, sizeof text, "published figures of %.120s; link rates are nominal times what collectives reach",
           box->title);
  cJSON_AddStringToObject(root, "provenance", text);
  cJSON *figures = cJSON_AddObjectToObject(root, "figures");
  cJSON_AddStringToObject(figures, "title", box->title);
  if (*box->topology) cJSON_AddStringToObject(figures, "topology", box->topology);
  if (*box->nics) cJSON_AddStringToObject(figures, "nics", box->nics);
  if (*box->cpu) cJSON_AddStringToObject(figures, "cpu", box->cpu);
  cJSON_AddItemToObject(figures, "published", tws_figures_json(box->figures));
  cJSON_AddItemToObject(figures, "sources", tws_figures_sources_json(box->figures));
}

static void add_devices(cJSON *root, const tws_cluster *c) {
  cJSON_AddStringToObject(root, "profile", c->profile);
  cJSON_AddNumberToObject(root, "nodes", c->nodes);
  cJSON_AddNumberToObject(root, "devices_per_node", c->devices_per_node);
  cJSON_AddNumberToObject(root, "cores_per_node", c->cores_per_node);
  add_positive(root, "host_memory", c->host_memory_bytes);
  add_positive(root, "host_bandwidth", c->host_bandwidth);
  add_positive(root, "device_memory", c->device_memory_bytes);
  cJSON_AddNumberToObject(root, "numa_nodes", c->numa_nodes);
}

/* Adds the rates of copies: those of one link to the object "host_link", those of a node as "host_copies". */
static void add_copies(cJSON *root, const tws_cluster *c) {
  const tws_copy_rates *node = &c->node_copies;
  cJSON *link = cJSON_GetObjectItemCaseSensitive(root, "host_link");
  if (link && c->host_copies.to_device > 0)
    cJSON_SetNumberValue(cJSON_GetObjectItemCaseSensitive(link, "bandwidth"), c->host_copies.to_device);
  if (link) add_positive(link, "to_host", c->host_copies.to_host);
  if (link) add_positive(link, "both_ways", c->host_copies.both_ways);
  if (!(node->to_device > 0 || node->to_host > 0 || node->both_ways > 0)) return;
  cJSON *copies = cJSON_AddObjectToObject(root, "host_copies");
  add_positive(copies, "to_device", node->to_device);
  add_positive(copies, "to_host", node->to_host);
  add_positive(copies, "both_ways", node->both_ways);
}

static void add_links(cJSON *root, const tws_cluster *c) {
  add_link(root, "intra", &c->intra, c->intra_fabric);
  if (c->paired) cJSON_AddNumberToObject(root, "paired", 1);
  add_link(root, "inter", &c->inter, c->inter_fabric);
  cJSON_AddNumberToObject(root, "nics_per_node", c->nics_per_node);
  add_positive(root, "message_bandwidth", c->message_bandwidth);
  add_positive(root, "message_s", c->message_s);
  add_link(root, "host_link", &c->host_link, TWS_FABRIC_NONE);
  add_copies(root, c);
  cJSON_AddNumberToObject(root, "devices_per_host_link", c->devices_per_host_link);
  if (c->nccl) cJSON_AddStringToObject(root, "collectives", "nccl");
  if (c->leaf_nodes == 0) return;
  cJSON *leaf = cJSON_AddObjectToObject(root, "leaf");
  cJSON_AddNumberToObject(leaf, "nodes", c->leaf_nodes);
  cJSON_AddNumberToObject(leaf, "oversubscription", c->oversubscription);
}

cJSON *tws_cluster_to_json(const tws_cluster *c) {
  cJSON *root = cJSON_CreateObject();
  if (!root) return NULL;
  cJSON_AddStringToObject(root, "schema", "twinspeed-cluster-1");
  cJSON_AddStringToObject(root, "name", c->name);
  if (c->box) add_box(root, c->name);
  add_devices(root, c);
  add_links(root, c);
  if (c->disk_read > 0 || c->disk_write > 0 || c->disk_bytes > 0) {
    cJSON *disk = cJSON_AddObjectToObject(root, "disk");
    add_positive(disk, "read", c->disk_read);
    add_positive(disk, "write", c->disk_write);
    add_positive(disk, "size", c->disk_bytes);
  }
  add_positive(root, "samples_per_s", c->samples_per_s);
  add_positive(root, "price_per_device_hour", c->price_per_device_hour);
  return root;
}

/* ---- the schema ---- */

#define QUANTITY(about) "{\"type\":[\"number\",\"string\"],\"minimum\":0,\"description\":\"" about "\"}"
#define COUNT(low, high, about) \
  "{\"type\":\"integer\",\"minimum\":" low ",\"maximum\":" high ",\"description\":\"" about "\"}"
#define NUMBER(low, high, about) \
  "{\"type\":\"number\",\"minimum\":" low ",\"maximum\":" high ",\"description\":\"" about "\"}"
#define TEXT(about) "{\"type\":\"string\",\"description\":\"" about "\"}"
#define LINK_WITH(about, more) \
  "{\"type\":\"object\",\"additionalProperties\":false,\"description\":\"" about                      \
  "\",\"properties\":{\"bandwidth\":" QUANTITY("bytes/s one way: 2.5e10, or \\\"25 GB/s\\\"") "," \
  "\"latency_s\":" NUMBER("0", "1000", "seconds of latency of one link") ",\"class\":{\"type\":\"string\"}" more "}}"
#define LINK(about) LINK_WITH(about, "")

static const char schema[] =
    "{\"$schema\":\"https://json-schema.org/draft/2020-12/schema\",\"title\":\"cluster of Twinspeed\","
    "\"type\":\"object\","
    "\"additionalProperties\":false,\"required\":[\"schema\"],\"properties\":{"
    "\"schema\":{\"type\":\"string\",\"enum\":[\"twinspeed-cluster-1\"]}"
    ",\"name\":" TEXT("name in answers")
    ",\"provenance\":" TEXT("one line: the source of the figures")
    ",\"figures\":{\"description\":\"published figures with their sources, for people\"}"
    ",\"base\":" TEXT("a built-in cluster that the other keys change: NAME[:NODES[xDEVICES]]")
    ",\"profile\":" TEXT("hardware profile: a built-in name, or a path relative to this file")
    ",\"nodes\":" COUNT("1", "65536", "nodes")
    ",\"devices_per_node\":" COUNT("1", "1024", "devices of a node")
    ",\"cores_per_node\":" COUNT("0", "65536", "cores of a node")
    ",\"host_memory\":" QUANTITY("bytes of a node, or \\\"512GiB\\\"")
    ",\"device_memory\":" QUANTITY("bytes of a device, in the place of the profile's")
    ",\"host_bandwidth\":" QUANTITY("bytes/s of a node's memory")
    ",\"numa_nodes\":" COUNT("1", "1024", "parts of a node with an equal part of its memory each")
    ",\"intra\":" LINK("a device's port to others of its node")
    ",\"paired\":" COUNT("0", "1", "1: no switch, each pair of devices has an equal part of a port")
    ",\"inter\":" LINK("one NIC")
    ",\"nics_per_node\":" COUNT("0", "1024", "NICs of a node")
    ",\"message_bandwidth\":" QUANTITY("bytes/s of one NIC in messages between two ranks")
    ",\"message_s\":" NUMBER("0", "1", "seconds between messages that a rank posts to other nodes")
    ",\"host_link\":" LINK_WITH("a device's link to the host",
      ",\"to_host\":" QUANTITY("bytes/s of copies to the host; absent: bandwidth")
      ",\"both_ways\":" QUANTITY("bytes/s of both directions together; absent: they do not share the link"))
    ",\"host_copies\":{\"type\":\"object\",\"additionalProperties\":false,\"description\":\"copies of all devices of a "
    "node together\",\"properties\":{"
    "\"to_device\":" QUANTITY("bytes/s; absent: no limit") ",\"to_host\":" QUANTITY("bytes/s; absent: no limit")
    ",\"both_ways\":" QUANTITY("bytes/s of both directions together; absent: no limit") "}}"
    ",\"devices_per_host_link\":" COUNT("1", "1024", "devices that share such a link")
    ",\"collectives\":{\"type\":\"string\",\"enum\":[\"rings\",\"nccl\"]}"
    ",\"leaf\":{\"type\":\"object\",\"additionalProperties\":false,\"required\":[\"nodes\",\"oversubscription\"],"
    "\"properties\":{\"nodes\":" COUNT("1", "65536", "nodes of a leaf switch") ",\"oversubscription\":"
    NUMBER("1", "1000", "what its NICs send over what leaves it") "}}"
    ",\"disk\":{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{"
    "\"read\":" QUANTITY("bytes/s of a node") ",\"write\":" QUANTITY("bytes/s of a node")
    ",\"size\":" QUANTITY("bytes of a node that offloading may take") "}}"
    ",\"samples_per_s\":" NUMBER("0", "1e12", "that the data loaders of a node deliver")
    ",\"price_per_device_hour\":" NUMBER("0", "1e9", "in whatever currency") "}}";

static int add_classes(cJSON *root, const char *link) {
  cJSON *at = cJSON_GetObjectItemCaseSensitive(root, "properties");
  at = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(at, link), "properties");
  cJSON *words = cJSON_AddArrayToObject(cJSON_GetObjectItemCaseSensitive(at, "class"), "enum");
  int good = words != NULL;
  for (int i = 1; i < TWS_FABRIC_COUNT && good; i++)
    good = cJSON_AddItemToArray(words, cJSON_CreateString(tws_fabric_of(i)->word));
  return good;
}

tws_code tws_cluster_print_schema(tws_text *out, tws_error *err) {
  cJSON *root = cJSON_Parse(schema);
  const int good = root && add_classes(root, "intra") && add_classes(root, "inter") && add_classes(root, "host_link");
  char *text = good ? cJSON_Print(root) : NULL;
  if (text) tws_text_add(out, "%s\n", text);
  cJSON_free(text);
  cJSON_Delete(root);
  return text && !out->failed ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory for a schema");
}
