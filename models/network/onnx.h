/* Reads ONNX files as network files (docs/networks.md); private to models/network. The nodes of the graph, in the order
 * of the file, become the modules of a network file, and its initializers their initial weights. */
#ifndef TWS_MODELS_NETWORK_ONNX_H
#define TWS_MODELS_NETWORK_ONNX_H

#include "models/network/network.h"

typedef struct tws_onnx_model tws_onnx_model;

/* Returns 1 if a path is that of an ONNX file: it ends with ".onnx". */
int tws_onnx_is_path(const char *path);
/* Reads a file. *json, which the model owns, is what a network file with these modules has. Fails with TWS_INVALID for
 * a malformed file and with TWS_UNSUPPORTED for what a network file cannot express, with the node and its operator. */
tws_code tws_onnx_read(const char *path, tws_onnx_model **model, const tws_json **json, tws_error *err);
tws_code tws_onnx_read_bytes(const char *bytes, size_t size, const char *path, tws_onnx_model **model,
                             const tws_json **json, tws_error *err);
/* Gives the parameters and running statistics of the network that was built from *json their initial values, which are
 * copied. */
tws_code tws_onnx_give_weights(const tws_onnx_model *model, tws_network *network, tws_error *err);
void tws_onnx_close(tws_onnx_model *model); /* NULL is allowed */

#endif
