#include "config/topology_import.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"

/* ---- NCCL's XML: elements are nested as the devices are, and attributes hold the figures ---- */

enum { MAX_DEPTH = 64, MAX_WORD = 64, MOST_NVLINKS = 1024, MOST_MEMORY_NODES = 4096, MOST_AFFINITIES = 64 };

typedef struct element {
  char name[MAX_WORD];
  int devices;                    /* number of GPUs inside this element */
  double pcie;                    /* element "pci": bytes/s of its link */
  int links, to_devices, targets; /* element "gpu": numbers of NVLinks; of NVLinks to other GPUs; of those GPUs */
} element;

typedef struct reader {
  tws_node_description *out;
  element stack[MAX_DEPTH];
  int depth;
  const char *attributes, *end; /* first and end position of the current tag's attributes */
  const char *bad_at;           /* the first tag with an invalid number; NULL: none */
  const char *bad_key;
  char bad[MAX_WORD];
  double bad_most;
} reader;

static int attribute(const reader *r, const char *key, char *value, size_t size) {
  const size_t length = strlen(key);
  value[0] = 0;
  for (const char *at = r->attributes; at < r->end; at++) {
    if (strncmp(at, key, length) != 0 || at[length] != '=' || at[length + 1] != '"' || !isspace((unsigned char)at[-1]))
      continue;
    const char *from = at + length + 2, *to = memchr(from, '"', (size_t)(r->end - from));
    if (!to || (size_t)(to - from) >= size) return 0;
    memcpy(value, from, (size_t)(to - from));
    value[to - from] = 0;
    return 1;
  }
  return 0;
}

static void remember(reader *r, const char *key, const char *value, double most) {
  if (r->bad_at) return;
  r->bad_at = r->attributes;
  r->bad_key = key;
  r->bad_most = most;
  snprintf(r->bad, sizeof r->bad, "%s", value);
}

/* Returns an attribute that is an integer from 0 to `most`, or 0 if it is absent. */
static int count(reader *r, const char *key, int most) {
  char value[MAX_WORD];
  int64_t whole = 0;
  double number = 0;
  if (attribute(r, key, value, sizeof value) &&
      (!tws_text_number(value, NULL, 0, most, &number) || !tws_whole_number(number, 0, most, &whole)))
    remember(r, key, value, most);
  return (int)whole;
}

/* Returns the number at the beginning of an attribute ("16.0 GT/s PCIe"), or 0 if there is none ("", "Unknown"). */
static double quantity(reader *r, const char *key, double most) {
  char value[MAX_WORD];
  const char *unit;
  double number = 0;
  if (!attribute(r, key, value, sizeof value) || !value[0] || strncmp(value, "Unknown", 7) == 0) return 0;
  if (!tws_text_number(value, &unit, 0, most, &number)) remember(r, key, value, most);
  return number;
}

/* Returns the bytes/s of one PCIe lane: 2.5 and 5 GT/s transmit 8 data bits in 10, higher rates 128 in 130. */
static double lane(double transfers) {
  return transfers * 1e9 / 8 * (transfers < 6 ? 0.8 : 128.0 / 130);
}

static void read_device(reader *r) {
  const int sm = count(r, "sm", 9999);
  if (sm > 0) r->out->sm = sm;
  r->out->devices++;
  for (int i = r->depth - 1, own = 1; i >= 0; i--) {
    if (strcmp(r->stack[i].name, "pci") != 0) continue;
    if (own && r->stack[i].pcie > 0) r->out->pcie_bandwidth = r->stack[i].pcie;
    own = 0;
    if (++r->stack[i].devices > r->out->sharers) r->out->sharers = r->stack[i].devices;
  }
}

static void read_link(reader *r) {
  char class[MAX_WORD];
  if (r->depth < 1 || strcmp(r->stack[r->depth - 1].name, "gpu") != 0) return;
  element *device = &r->stack[r->depth - 1];
  const int links = count(r, "count", MOST_NVLINKS);
  device->links += links;
  if (attribute(r, "tclass", class, sizeof class) && strncmp(class, "0x03", 4) == 0) {
    device->to_devices += links;
    device->targets++;
  }
}

/* Reads a NIC. Only the fastest NICs of the node are counted, since slower ones connect it to file systems and
 * users. */
static void read_nic(reader *r) {
  const double bandwidth = quantity(r, "speed", 1e9) * 1e6 / 8; /* the attribute is in Mbit/s */
  if (bandwidth > r->out->nic_bandwidth) {
    r->out->nic_bandwidth = bandwidth;
    r->out->nics = 0;
  }
  r->out->nics += bandwidth > 0 && bandwidth == r->out->nic_bandwidth;
}

static void open_element(reader *r, const char *name) {
  char word[MAX_WORD];
  element e = {.links = 0};
  snprintf(e.name, sizeof e.name, "%s", name);
  if (strcmp(name, "cpu") == 0) {
    r->out->processors++;
    r->out->amd |= attribute(r, "vendor", word, sizeof word) && strstr(word, "AMD") != NULL;
  }
  if (strcmp(name, "pci") == 0) e.pcie = lane(quantity(r, "link_speed", 1e4)) * quantity(r, "link_width", 64);
  if (strcmp(name, "gpu") == 0) read_device(r);
  if (strcmp(name, "nvlink") == 0) read_link(r);
  if (strcmp(name, "net") == 0) read_nic(r);
  if (r->depth < MAX_DEPTH) r->stack[r->depth++] = e;
}

static void close_element(reader *r) {
  if (r->depth < 1) return;
  const element *e = &r->stack[--r->depth];
  if (strcmp(e->name, "gpu") != 0 || e->links <= r->out->links) return;
  r->out->links = e->links;
  r->out->paired = e->to_devices == e->links && e->targets > 1 && e->links % e->targets == 0;
}

static const char *profile_of(int sm) {
  return sm == 70    ? "v100-32gb"
         : sm == 80  ? "a100-80gb"
         : sm == 90  ? "h100-sxm"
         : sm == 100 ? "b200"
         : sm == 103 ? "b300"
                     : "";
}

static void conclude(tws_node_description *out) {
  const char *profile = profile_of(out->sm);
  snprintf(out->profile, sizeof out->profile, "%s", profile);
  out->link_bandwidth = out->sm >= 100 ? 50e9 : 25e9; /* NVLink 5; 2 to 4 */
  if (out->processors < 1) out->processors = 1;
  if (out->sharers < 1 || out->sharers >= out->devices) out->sharers = 1;
}

static int line_of(const char *text, const char *at) {
  int line = 1;
  for (; text < at; text++) line += *text == '\n';
  return line;
}

static tws_code bad_number(const char *text, const char *name, const reader *r, tws_error *err) {
  return tws_fail(err, TWS_INVALID, "mend the number, or let NCCL write the file anew (NCCL_TOPO_DUMP_FILE=node.xml)",
                  "%s:%d: %s=\"%s\" is not a number from 0 to %g", name, line_of(text, r->bad_at), r->bad_key, r->bad,
                  r->bad_most);
}

static tws_code no_device(const char *name, tws_error *err) {
  return tws_fail(err, TWS_INVALID,
                  "NCCL_TOPO_DUMP_FILE=node.xml makes NCCL write one; or nvidia-smi topo -m > node.txt",
                  "%s describes no GPU", name);
}

static tws_code read_xml(const char *text, const char *name, tws_node_description *out, tws_error *err) {
  reader r = {.out = out};
  *out = (tws_node_description){.sm = 0};
  for (const char *at = strchr(text, '<'); at; at = strchr(at, '<')) {
    const char *end = strchr(at, '>');
    char word[MAX_WORD];
    size_t length = 0;
    if (!end) return tws_fail(err, TWS_INVALID, NULL, "%s ends inside an element", name);
    const int closes = at[1] == '/';
    for (at += 1 + closes; at < end && length + 1 < sizeof word && (isalnum((unsigned char)*at) || *at == '_'); at++)
      word[length++] = *at;
    word[length] = 0;
    r.attributes = at;
    r.end = end;
    if (closes)
      close_element(&r);
    else if (length > 0) {
      open_element(&r, word);
      if (end[-1] == '/') close_element(&r);
    }
    if (r.bad_at) return bad_number(text, name, &r, err);
    at = end;
  }
  if (out->devices < 1) return no_device(name, err);
  conclude(out);
  return TWS_OK;
}

/* ---- output of nvidia-smi topo -m: one row per device, with its cores and NUMA node at the end ---- */

/* Copies the next word of a line and returns 1, or returns 0 at the line's end. Escape sequences of terminals are
 * skipped. */
static int next_word(const char **at, char *word, size_t size) {
  size_t length = 0;
  for (;; (*at)++) {
    if (**at == 27) { /* an escape sequence: ESC [ ... letter */
      while (**at && **at != '\n' && !isalpha((unsigned char)**at)) (*at)++;
      if (!**at || **at == '\n') break;
      continue;
    }
    if (!**at || **at == '\n') break;
    if (isspace((unsigned char)**at)) {
      if (length > 0) break;
      continue;
    }
    if (length + 1 < size) word[length++] = **at;
  }
  word[length] = 0;
  return length > 0;
}

static int is_numbered(const char *word, const char *kind) {
  const size_t length = strlen(kind);
  return strncmp(word, kind, length) == 0 && isdigit((unsigned char)word[length]);
}

/* The matrix of nvidia-smi, whose columns are first the devices, then the NICs. */
typedef struct matrix {
  int devices, nics;
  int has_node;                             /* 1: a column has each device's NUMA node */
  int most_node;                            /* the highest number of a NUMA node */
  char affinity[MOST_AFFINITIES][MAX_WORD]; /* the distinct CPU affinities of the devices */
  int affinities;
  int sharers; /* number of devices at one PCIe switch: those with PIX to each other, or to the same NIC */
  int at_nic[MOST_AFFINITIES];
} matrix;

static int read_header(const char *line, matrix *m) {
  char word[MAX_WORD];
  int *devices = &m->devices, *nics = &m->nics;
  *m = (matrix){.devices = 0};
  while (next_word(&line, word, sizeof word)) {
    *devices += is_numbered(word, "GPU");
    *nics += is_numbered(word, "NIC") || is_numbered(word, "mlx");
    m->has_node |= strcmp(word, "NUMA") == 0;
    if (m->has_node) break;
  }
  return *devices > 0;
}

/* Records the CPU affinity of a device. Devices with equal affinities are assumed to be at one NUMA node. */
static void add_affinity(matrix *m, const char *cores) {
  for (int i = 0; i < m->affinities; i++)
    if (strcmp(m->affinity[i], cores) == 0) return;
  if (m->affinities < MOST_AFFINITIES) snprintf(m->affinity[m->affinities++], MAX_WORD, "%s", cores);
}

/* Reads one row; returns NULL, or the word that should be a number but is not. */
static const char *read_row(const char *line, matrix *m, tws_node_description *out, char word[MAX_WORD]) {
  const int devices = m->devices, nics = m->nics;
  int links = 0, most = 0, least = 1 << 20, sharers = 1;
  next_word(&line, word, MAX_WORD);
  for (int i = 0; i < devices + nics && next_word(&line, word, MAX_WORD); i++) {
    int each = 0;
    if (i >= devices && i - devices < MOST_AFFINITIES && strcmp(word, "PIX") == 0 &&
        ++m->at_nic[i - devices] > m->sharers)
      m->sharers = m->at_nic[i - devices];
    if (i >= devices || strcmp(word, "X") == 0) continue;
    sharers += strcmp(word, "PIX") == 0;
    if (is_numbered(word, "NV") && !tws_text_int(word + 2, NULL, 0, MOST_NVLINKS, &each)) return word;
    links += each;
    if (each > most) most = each;
    if (each < least) least = each;
  }
  /* most NVLinks that a device has; a larger sum counts the same links to a switch several times */
  enum { MOST_LINKS = 18 };
  const int switched = links > MOST_LINKS;
  const int own = switched ? most : links;
  if (own > out->links) {
    out->links = own;
    out->paired = !switched && devices > 2 && most == least;
  }
  if (sharers > m->sharers) m->sharers = sharers;
  int node;
  const char *rest; /* text after the first number, such as "-1" of "0-1", which lists several NUMA nodes */
  if (!next_word(&line, word, MAX_WORD)) return NULL;
  if (!m->has_node && isdigit((unsigned char)word[0])) add_affinity(m, word);
  if (!m->has_node || !next_word(&line, word, MAX_WORD) || !isdigit((unsigned char)word[0])) return NULL;
  if (!tws_text_int(word, &rest, 0, MOST_MEMORY_NODES, &node)) return word;
  if (node > m->most_node) m->most_node = node;
  return NULL;
}

static tws_code read_matrix(const char *text, const char *name, tws_node_description *out, tws_error *err) {
  matrix m = {.devices = 0};
  *out = (tws_node_description){.sm = 0};
  for (const char *line = text; line; line = strchr(line, '\n')) {
    char word[MAX_WORD];
    const char *at = line += *line == '\n';
    if (!next_word(&at, word, sizeof word) || !is_numbered(word, "GPU")) continue;
    if (m.devices == 0) {
      if (!read_header(line, &m)) break;
      continue;
    }
    out->devices++;
    const char *bad = read_row(line, &m, out, word);
    if (bad)
      return tws_fail(err, TWS_INVALID, "nvidia-smi topo -m > node.txt writes it anew",
                      "%s:%d: \"%s\" has no number that a node can have", name, line_of(text, line), bad);
  }
  if (out->devices < 1) return no_device(name, err);
  out->nics = m.nics;
  out->processors = m.has_node ? m.most_node + 1 : m.affinities;
  out->sharers = m.sharers;
  out->sm = out->links == 6 ? 70 : out->links == 12 ? 80 : 0; /* 18 links: Hopper or Blackwell */
  conclude(out);
  return TWS_OK;
}

tws_code tws_topology_read(const char *text, const char *name, tws_node_description *out, tws_error *err) {
  return strstr(text, "<system") || strstr(text, "<cpu") ? read_xml(text, name, out, err)
                                                         : read_matrix(text, name, out, err);
}

/* ---- writing a cluster file ---- */

static void add_link(cJSON *root, const char *key, double bandwidth, double latency_s) {
  cJSON *link = cJSON_AddObjectToObject(root, key);
  cJSON_AddNumberToObject(link, "bandwidth", round(bandwidth));
  cJSON_AddNumberToObject(link, "latency_s", latency_s);
}

cJSON *tws_topology_cluster(const tws_node_description *n, const char *name, const char *profile, int nodes) {
  const double pcie = n->pcie_bandwidth > 0 ? n->pcie_bandwidth : n->sm >= 90 ? 63e9 : n->sm >= 80 ? 31e9 : 15.75e9;
  const double nic = n->nic_bandwidth > 0 ? n->nic_bandwidth : n->sm >= 90 ? 50e9 : n->sm >= 80 ? 25e9 : 12.5e9;
  cJSON *root = cJSON_CreateObject();
  cJSON_AddStringToObject(root, "schema", "twinspeed-cluster-1");
  cJSON_AddStringToObject(root, "name", name);
  cJSON_AddStringToObject(root, "profile", profile ? profile : n->profile);
  cJSON_AddNumberToObject(root, "nodes", nodes);
  cJSON_AddNumberToObject(root, "devices_per_node", n->devices);
  cJSON_AddNumberToObject(root, "numa_nodes", n->processors);
  if (n->links > 0)
    add_link(root, "intra", n->links * n->link_bandwidth, 3.4e-6); /* latency of NVLink as in config/cluster.c */
  else
    add_link(root, "intra", pcie, 5.7e-6);
  if (n->paired) cJSON_AddNumberToObject(root, "paired", 1);
  cJSON_AddNumberToObject(root, "nics_per_node", n->nics > 0 ? n->nics : 1);
  add_link(root, "inter", nic, 14e-6);
  add_link(root, "host_link", pcie, 5.7e-6);
  cJSON_AddNumberToObject(root, "devices_per_host_link", n->sharers);
  cJSON_AddNumberToObject(root, "message_s", n->amd ? 2e-6 : 1e-6);
  return root;
}
