/* The backends of this build, by name. */
#include <stdio.h>
#include <string.h>

#include "real/cuda_loader.h"
#include "real/host/host.h"
#include "real/train_internal.h"

const tws_backend_ops *tws_real_backend(const char *name) {
  const tws_cuda_api *cuda = NULL;
  if (strcmp(name, "host") == 0) return tws_host_backend();
  if (strcmp(name, "cuda") == 0 && tws_cuda_load(&cuda, NULL) == TWS_OK) return cuda->backend;
  return NULL;
}

const char *tws_real_description(void) {
  static _Thread_local char text[192];
  char host[128];
  snprintf(text, sizeof text, "host (%s), %s", tws_host_describe(NULL, host, (int)sizeof host), tws_mpi_description());
  return text;
}
