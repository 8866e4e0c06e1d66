/* Names of the modules of a network file. */
#include <stdio.h>
#include <string.h>

#include "models/network/described.h"

static int find_module(const tws_described *d, const char *name) {
  for (int i = d->count - 1; i >= 0; i--)
    if (strcmp(d->modules[i].name, name) == 0) return i;
  return TWS_DESCRIBED_INPUT;
}

int tws_described_named(const tws_described *d, const char *prefix, const char *name) {
  char full[256];
  snprintf(full, sizeof full, "%s%s", prefix, name);
  const int own = find_module(d, full);
  return own >= 0 ? own : find_module(d, name);
}
