#include "cli/convert_cluster.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/units.h"
#include "job/cluster_name.h"
#include "models/hardware/nccl_tests.h"
#include "models/hardware/node_import.h"
#include "models/hardware/profile.h"
#include "models/hardware/runtime.h"
#include "models/network/network.h"

enum { MOST_BYTES = 16 << 20 };

static tws_code write_json(cJSON *root, const char *to, tws_error *err) {
  char *text = root ? cJSON_Print(root) : NULL;
  tws_text line = {0};
  cJSON_Delete(root);
  if (!text) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tws_text_add(&line, "%s\n", text);
  cJSON_free(text);
  const tws_code code =
      line.failed ? tws_fail(err, TWS_MEMORY, NULL, "out of memory") : tws_write_file(to, line.data, line.length, err);
  tws_text_free(&line);
  return code;
}

static tws_code tell_topology(tws_cli *cli, const tws_node_description *n, const char *to, cJSON *root,
                              tws_error *err) {
  if (cli->json) return tws_out_json(cJSON_Duplicate(root, 1), err);
  const cJSON *profile = cJSON_GetObjectItemCaseSensitive(root, "profile");
  char link[32], nic[32];
  tws_say(cli, "%s: %d GPUs (%s), %d NVLinks each%s, %d NICs%s%s", to, n->devices, profile->valuestring, n->links,
          n->links == 0 ? " (PCIe)"
          : n->paired   ? " in equal parts to each other GPU"
                        : "",
          n->nics, n->nic_bandwidth > 0 ? " of " : "",
          n->nic_bandwidth > 0 ? tws_format_bytes(n->nic_bandwidth, nic, sizeof nic) : "");
  if (n->nics > 0 && !(n->nic_bandwidth > 0))
    tws_say(cli, "how fast its NICs are is not said: \"inter\" has what such systems are sold with, look at it");
  tws_format_bytes(n->pcie_bandwidth, link, sizeof link);
  if (n->pcie_bandwidth > 0) tws_say(cli, "PCIe: %s/s a GPU, shared by %d", link, n->sharers);
  return TWS_OK;
}

tws_code tws_convert_topology(tws_cli *cli, const char *from, const char *to, const char *profile, int nodes,
                              tws_error *err) {
  tws_node_description n;
  cJSON *root;
  TWS_TRY(tws_topology_import(from, profile, nodes, &n, &root, err));
  const tws_code told = tell_topology(cli, &n, to, root, err);
  if (told == TWS_OK) return write_json(root, to, err);
  cJSON_Delete(root);
  return told;
}

tws_code tws_convert_nccl_tests(tws_cli *cli, const char *from, const char *to, const char *profile, tws_error *err) {
  tws_nccl_log log;
  char *text, most[32];
  size_t length;
  cJSON *root;
  if (!profile)
    return tws_fail(err, TWS_USAGE, "add --profile, such as a100-80gb", "convert nccl-tests: into which profile?");
  TWS_TRY(tws_read_file(from, MOST_BYTES, &text, &length, err));
  const tws_code code = tws_nccl_tests_read(text, from, &log, err);
  tws_free(text);
  TWS_TRY(code);
  TWS_TRY(tws_nccl_tests_into(&log, from, profile, &root, err));
  if (cli->json) TWS_TRY(tws_out_json(cJSON_Duplicate(root, 1), err));
  tws_say(cli, "%s: %s with %s of %d ranks, %d sizes up to %s", to, profile, tws_collective_name(log.collective),
          log.ranks, log.count, tws_format_bytes(log.samples[log.count - 1][0], most, sizeof most));
  return write_json(root, to, err);
}

static tws_code cluster_text(const char *name, tws_text *out, tws_error *err) {
  tws_cluster cluster;
  TWS_TRY(tws_cluster_named(name, &cluster, err));
  if (!cluster.builtin)
    return tws_fail(err, TWS_USAGE, "give a built-in name, such as dgx-h100:4", "convert cluster: %s is a file already",
                    name);
  cJSON *root = tws_cluster_to_json(&cluster);
  char *text = root ? cJSON_Print(root) : NULL;
  if (text) tws_text_add(out, "%s\n", text);
  const int good = text && !out->failed;
  cJSON_free(text);
  cJSON_Delete(root);
  return good ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory for a cluster");
}

tws_code tws_convert_builtin(tws_cli *cli, int profile, const char *name, const char *to, tws_error *err) {
  tws_text text = {0};
  tws_code code = profile ? tws_profile_builtin_text(name, &text, err) : cluster_text(name, &text, err);
  const int prints = strcmp(to, "-") == 0;
  if (code == TWS_OK && (prints || cli->json)) tws_out_bytes(text.data, text.length);
  if (code == TWS_OK && !prints) code = tws_write_file(to, text.data, text.length, err);
  if (code == TWS_OK && !prints)
    tws_say(cli, "%s: the %s %s; --%s %s takes it", to, profile ? "profile" : "cluster", name,
            profile ? "profile" : "cluster", to);
  tws_text_free(&text);
  return code;
}

static int has_name(const char *const *names, const char *name) {
  while (*names && strcmp(*names, name) != 0) names++;
  return *names != NULL;
}

/* Returns name number i of a kind; NULL after the last. Devices are clusters too: a cluster of one node with one
 * device. */
static const char *name_of_kind(const char *kind, int i) {
  const char *const *clusters = tws_cluster_builtin_names(), *const *names = tws_profile_builtin_names();
  if (strcmp(kind, "architectures") == 0) return tws_network_architecture_nth(i);
  if (strcmp(kind, "models") == 0) return tws_network_builtin_names()[i];
  if (strcmp(kind, "runtimes") == 0) return tws_runtime_names()[i];
  if (strcmp(kind, "profiles") == 0) return names[i];
  for (const char *const *name = clusters; *name; name++)
    if (i-- == 0) return *name;
  for (; *names; names++)
    if (!has_name(clusters, *names) && i-- == 0) return *names;
  return NULL;
}

tws_code tws_convert_list(tws_cli *cli, const char *kind, tws_error *err) {
  static const char *const kinds[] = {"clusters", "profiles", "models", "architectures", "runtimes", NULL};
  if (!*kind)
    return tws_fail(err, TWS_USAGE, "twinspeed convert list clusters|profiles|models|architectures|runtimes",
                    "convert list: say which names");
  if (!has_name(kinds, kind))
    return tws_fail(err, TWS_USAGE, "twinspeed convert list clusters|profiles|models|architectures|runtimes",
                    "convert list: \"%.60s\" is no kind of name", kind);
  cJSON *root = cli->json ? cJSON_CreateObject() : NULL;
  cJSON_AddStringToObject(root, "schema", "twinspeed-names-1");
  cJSON *list = cJSON_AddArrayToObject(root, kind);
  const char *name;
  for (int i = 0; (name = name_of_kind(kind, i)) != NULL; i++) {
    if (cli->json)
      cJSON_AddItemToArray(list, cJSON_CreateString(name));
    else
      tws_out("%s\n", name);
  }
  return cli->json ? tws_out_json(root, err) : TWS_OK;
}
