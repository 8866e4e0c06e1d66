#include "real/host/numa.h"

#include <stdio.h>
#include <string.h>

#include "base/number.h"

/* Reads the first line of a file of sysfs. Returns 1 if there is one. */
static int read_line(const char *sysfs, const char *name, char *line, int size) {
  char path[256];
  if ((size_t)snprintf(path, sizeof path, "%s/%s", sysfs ? sysfs : "/sys", name) >= sizeof path) return 0;
  FILE *file = fopen(path, "re");
  const int read = file && fgets(line, size, file) != NULL;
  if (file) fclose(file);
  return read;
}

/* Reads a list of numbers below `most` such as "0-3,8-11". Returns 0 if the text is no such list. */
static int read_list(const char *text, int most, tws_cpus *out) {
  const char *at = text;
  memset(out, 0, sizeof *out);
  while (*at != '\0' && *at != '\n') {
    int first, last;
    if (!tws_text_int(at, &at, 0, most - 1, &first)) return 0;
    last = first;
    if (*at == '-' && !tws_text_int(at + 1, &at, first, most - 1, &last)) return 0;
    for (int i = first; i <= last; i++) out->word[i / 64] |= UINT64_C(1) << i % 64;
    if (*at == ',') at++;
  }
  return 1;
}

/* Restricts a set to the allowed processors. Returns 1 if some are left. */
static int restrict_to(const tws_cpus *allowed, tws_cpus *set) {
  uint64_t any = 0;
  for (int w = 0; w < TWS_CPUS_WORDS; w++) any |= set->word[w] &= allowed->word[w];
  return any != 0;
}

void tws_numa_read(const char *sysfs, const tws_cpus *allowed, tws_numa_nodes *out) {
  char line[4096], name[64];
  tws_cpus online;
  memset(out, 0, sizeof *out);
  if (!read_line(sysfs, "devices/system/node/online", line, sizeof line)) return;
  if (!read_list(line, TWS_MOST_CPUS, &online)) return;
  for (int node = 0; node < TWS_MOST_CPUS && out->count < TWS_MOST_NUMA_NODES; node++) {
    if (!(online.word[node / 64] >> node % 64 & 1)) continue;
    tws_cpus *cpus = &out->cpus[out->count];
    snprintf(name, sizeof name, "devices/system/node/node%d/cpulist", node);
    if (!read_line(sysfs, name, line, sizeof line) || !read_list(line, TWS_MOST_CPUS, cpus)) continue;
    if (restrict_to(allowed, cpus)) out->number[out->count++] = node;
  }
}

int tws_numa_of_device(const char *sysfs, const char *bus) {
  char name[128], line[32];
  int node;
  snprintf(name, sizeof name, "bus/pci/devices/%s/numa_node", bus);
  if (!read_line(sysfs, name, line, sizeof line)) return -1;
  return tws_text_int(line, NULL, 0, TWS_MOST_CPUS - 1, &node) ? node : -1; /* Linux writes -1 for "unknown" */
}

int tws_numa_index(const tws_numa_nodes *nodes, int number) {
  for (int i = 0; i < nodes->count; i++)
    if (nodes->number[i] == number) return i;
  return -1;
}
