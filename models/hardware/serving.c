#include "models/hardware/serving.h"

#include <string.h>

#include "base/json.h"
#include "models/hardware/profile_internal.h"

#define GIB 1073741824.0
static const tws_server servers[] = {
#define SERVER(name_, about_, ...) {.name = name_, .about = about_, __VA_ARGS__},
#include "models/hardware/serving.def"
};
enum { SERVERS = sizeof servers / sizeof *servers };

const tws_server *tws_server_find(const char *name) {
  for (int i = 0; i < SERVERS; i++)
    if (strcmp(servers[i].name, name) == 0) return &servers[i];
  return NULL;
}

const char *const *tws_server_names(void) {
  static const char *const names[SERVERS + 1] = {
#define SERVER(name_, about_, ...) name_,
#include "models/hardware/serving.def"
  };
  return names;
}

tws_code tws_server_parse(const char *name, const tws_server **out, tws_error *err) {
  *out = name ? tws_server_find(name) : &servers[0];
  if (*out) return TWS_OK;
  char hint[256];
  tws_names_hint(name, tws_server_names(), SERVERS, "known software:", NULL, hint, sizeof hint);
  return tws_fail(err, TWS_USAGE, hint, "no software for inference is called \"%.60s\"", name);
}

tws_code tws_profile_set_server(tws_profile *profile, const tws_server *server, tws_error *err) {
  if (server == &servers[0]) return TWS_OK;
  if (profile->backend == TWS_BACKEND_HOST)
    return tws_fail(err, TWS_INVALID, "give a cluster of GPUs, or leave --software out",
                    "%s runs on GPUs, and profile %s is of a host", server->name, profile->name);
  if (server->launch_s > 0) profile->launch_s = server->launch_s;
  profile->host_op_s = server->host_op_s;
  if (server->memory_reached > 0 && profile->rates != TWS_RATES_MEASURED)
    profile->bandwidth_efficiency = server->memory_reached;
  if (server->products > 0 && profile->rates != TWS_RATES_MEASURED) profile->matmul_efficiency *= server->products;
  if (server->context_bytes > 0) profile->overhead_bytes = server->context_bytes;
  if (server->coded > 0) {
    tws_profile_correction correction = {.message = 0};
    correction.kernel[TWS_KERNEL_CODED_LINEAR] = server->coded;
    tws_profile_correct(profile, &correction);
  }
  if (server->exchange > 0) {
    double factor[TWS_SCALE_COUNT];
    memcpy(factor, profile->scale, sizeof factor);
    factor[TWS_SCALE_LINKS] = server->exchange;
    tws_profile_rescale(profile, factor);
  }
  return TWS_OK;
}
