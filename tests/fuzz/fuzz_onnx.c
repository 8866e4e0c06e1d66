/* ONNX files: any bytes give a network with a weight for each of its parameters, or one error. */
#include <stdlib.h>
#include <string.h>

#include "models/network/onnx.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition) {
  if (!condition) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  tws_onnx_model *model = NULL;
  const tws_json *json;
  tws_network *network = NULL;
  tws_error err = {0};
  tws_code code = tws_onnx_read_bytes((const char *)data, size, "fuzz", &model, &json, &err);
  if (code == TWS_OK) code = tws_network_from_json(json, 64, &network, &err);
  if (code == TWS_OK) code = tws_onnx_give_weights(model, network, &err);
  require(code == TWS_OK || ((code == TWS_INVALID || code == TWS_UNSUPPORTED) && err.message[0]));
  for (uint32_t p = 0; code == TWS_OK && p < network->param_count; p++) {
    float sum = 0;
    require(network->params[p].given != NULL);
    for (int64_t i = 0; i < tws_param_numel(&network->params[p]); i++) sum += network->params[p].given[i];
    (void)sum;
  }
  tws_network_destroy(network);
  tws_onnx_close(model);
  return 0;
}
