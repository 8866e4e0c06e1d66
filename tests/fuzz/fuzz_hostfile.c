/* Hostfiles and filters: any bytes give hosts with devices in order, or one error. The first two lines of the input are
 * the texts of --include and --exclude. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "launch/hostfile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition) {
  if (!condition) abort();
}

static void check(tws_code code, const tws_hosts *hosts, const tws_error *err) {
  if (code != TWS_OK) {
    require((code == TWS_INVALID || code == TWS_USAGE) && err->message[0]);
    return;
  }
  int ranks = 0;
  for (int h = 0; h < hosts->count; h++) {
    const tws_host *host = &hosts->host[h];
    require(host->name && tws_is_host_name(host->name, strlen(host->name)) && host->count >= 0 && host->count <= TWS_MAX_SLOTS);
    for (int i = 0; i < host->count; i++)
      require(host->slot[i] >= 0 && host->slot[i] < TWS_MAX_SLOTS && (i == 0 || host->slot[i] > host->slot[i - 1]));
    for (int k = 0; k < h; k++) require(strcmp(host->name, hosts->host[k].name) != 0);
    ranks += host->count;
  }
  require(tws_hosts_ranks(hosts) == ranks);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = calloc(size + 3, 1);
  tws_arena *arena = tws_arena_create();
  tws_hosts hosts = {0};
  tws_error err = {0};
  if (!text || !arena) return 0;
  memcpy(text, data, size);
  char *include = text, *exclude = text + strcspn(text, "\n");
  if (*exclude) *exclude++ = '\0';
  char *lines = exclude + strcspn(exclude, "\n");
  if (*lines) *lines++ = '\0';
  tws_code code = tws_hostfile_parse(lines, "hosts", arena, &hosts, &err);
  check(code, &hosts, &err);
  if (code == TWS_OK) check(tws_hosts_filter(&hosts, include, exclude, &err), &hosts, &err);
  tws_arena_destroy(arena);
  free(text);
  return 0;
}
