#include "job/cluster_name.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "config/boxes.h"
#include "models/hardware/devices.h"
#include "models/hardware/profile.h"

/* The assumed host of a single device: a workstation of 16 cores, with twice the device's memory and at least 64 GB, on
 * two channels of DDR5-5600. */
#define HOST_CORES 16
#define LEAST_HOST_MEMORY 64e9
#define HOST_BANDWIDTH 89.6e9
#define PCIE_4 31e9

static int is_profile(const char *spec, size_t length, char name[64]) {
  const char *const *names = tws_profile_builtin_names();
  while (*names && (strlen(*names) != length || memcmp(*names, spec, length) != 0)) names++;
  if (!*names || strcmp(*names, "host") == 0) return 0;
  snprintf(name, 64, "%s", *names);
  return 1;
}

static int is_cluster(const char *spec, size_t length) {
  const char *const *names = tws_cluster_builtin_names();
  while (*names && (strlen(*names) != length || memcmp(*names, spec, length) != 0)) names++;
  return *names != NULL;
}

static double link_of(const char *profile) {
  const tws_device *device = tws_device_find(profile);
  const double published = device ? tws_figure_value(device->figures, "pcie_uni_GBps") : NAN;
  return published > 0 ? published * 1e9 : PCIE_4;
}

static tws_code fill_node(const char *profile, tws_cluster *out, tws_error *err) {
  tws_profile *loaded;
  TWS_TRY(tws_profile_load(profile, &loaded, err));
  const double memory = tws_profile_memory_bytes(loaded);
  tws_profile_destroy(loaded);
  const double latency = tws_fabric_of(TWS_FABRIC_PCIE)->latency_s;
  *out = (tws_cluster){.nodes = 1,
                       .devices_per_node = 1,
                       .cores_per_node = HOST_CORES,
                       .host_memory_bytes = fmax(LEAST_HOST_MEMORY, ceil(2 * memory / 1e9) * 1e9),
                       .host_bandwidth = HOST_BANDWIDTH,
                       .numa_nodes = 1,
                       .host_link = {link_of(profile), latency},
                       .devices_per_host_link = 1,
                       .builtin = 1,
                       .lone_device = 1,
                       .assumed_nics = 1};
  snprintf(out->name, sizeof out->name, "%s", profile);
  snprintf(out->profile, sizeof out->profile, "%s", profile);
  return TWS_OK;
}

/* Fails with TWS_INVALID; the message lists the clusters and devices whose names differ least from the given one. */
static tws_code unknown_name(const char *spec, size_t length, tws_error *err) {
  enum { MOST = 512 };
  const char *words[MOST];
  char word[64], hint[sizeof err->hint];
  size_t count = 0;
  for (const char *const *name = tws_cluster_builtin_names(); *name && count < MOST; name++) words[count++] = *name;
  for (const char *const *name = tws_profile_builtin_names(); *name && count < MOST; name++)
    if (!is_cluster(*name, strlen(*name))) words[count++] = *name;
  snprintf(word, sizeof word, "%.*s", length > 60 ? 60 : (int)length, spec);
  tws_names_hint(word, words, count,
                 "give a cluster file, a built-in name or a device:", "twinspeed convert list clusters", hint,
                 sizeof hint);
  return tws_fail(err, TWS_INVALID, hint, "unknown cluster \"%.200s\"", spec);
}

/* Loads a file whose name looks like that of a cluster, as it has neither a folder nor the ending .json. Fails if there
 * is no such file. */
static tws_code load_or_refuse(const char *spec, size_t length, tws_cluster *out, tws_error *err) {
  char path[4096];
  struct stat status;
  if (!*spec || stat(spec, &status) != 0 || S_ISDIR(status.st_mode)) return unknown_name(spec, length, err);
  snprintf(path, sizeof path, "./%.4000s", spec);
  return tws_cluster_load(path, out, err);
}

tws_code tws_cluster_named(const char *spec, tws_cluster *out, tws_error *err) {
  char name[64];
  const size_t length = strcspn(spec, ":"), whole = strlen(spec);
  const int file = strchr(spec, '/') || (whole > 5 && strcmp(spec + whole - 5, ".json") == 0);
  if (file || strcmp(spec, "-") == 0 || is_cluster(spec, length)) return tws_cluster_load(spec, out, err);
  if (!is_profile(spec, length, name)) return load_or_refuse(spec, length, out, err);
  if (spec[length] && strcmp(spec + length, ":1") != 0 && strcmp(spec + length, ":1x1") != 0)
    return tws_fail(err, TWS_INVALID,
                    "name a box or an instance (\"twinspeed convert list clusters\" prints all), or give a file with "
                    "\"intra\" and \"inter\"",
                    "cluster \"%.200s\": %s names one device, and no profile states the links between several", spec,
                    name);
  return fill_node(name, out, err);
}
