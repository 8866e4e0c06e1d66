/* Model configurations and hardware profiles: any bytes give a graph with consistent counts, or one error. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "models/hardware/profile.h"
#include "models/network/network.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use_network(const tws_json *json) {
  tws_network *network = NULL;
  tws_error err = {0};
  if (tws_network_from_json(json, 64, &network, &err) != TWS_OK) {
    if (network != NULL || err.code == TWS_OK || err.message[0] == 0) abort();
    return;
  }
  int64_t params = tws_network_params(network, 0);
  if (params < tws_network_largest_layer(network) || params < tws_network_params(network, 1)) abort();
  if (!(tws_network_flops_per_token(network, 1024, 0, 1) > 0)) abort();
  tws_text text = {0};
  tws_network_summary(network, &text);
  if (text.failed) abort();
  tws_text_free(&text);
  tws_network_destroy(network);
}

static void use_profile(const tws_json *json) {
  tws_profile *profile = NULL;
  tws_error err = {0};
  if (tws_profile_from_json(json, &profile, &err) != TWS_OK) {
    if (profile != NULL || err.code == TWS_OK || err.message[0] == 0) abort();
    return;
  }
  for (int kernel = 0; kernel < TWS_KERNEL_COUNT; kernel++) {
    const tws_work work = {.code = (uint8_t)kernel, .d = {64, 48, 32, 16, 8}};
    if (!(tws_kernel_seconds(profile, &work, 2, 3) >= 0)) abort();
  }
  tws_profile_destroy(profile);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  tws_json *json = NULL;
  if (tws_json_parse((const char *)data, size, "fuzz", &json, NULL) != TWS_OK) return 0;
  use_network(json);
  use_profile(json);
  tws_json_destroy(json);
  return 0;
}
