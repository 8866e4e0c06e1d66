/* Elements of tensors that an ONNX file keeps in other files (TensorProto.external_data), as torch.onnx.export writes
 * them by default; private to models/network. */
#ifndef TWS_MODELS_NETWORK_ONNX_DATA_H
#define TWS_MODELS_NETWORK_ONNX_DATA_H

#include <stdint.h>
#include "base/status.h"

/* Where the elements are: a name in the folder of the ONNX file, and a range of bytes. length 0: as many as the tensor
 * has. */
typedef struct tws_onnx_place {
  const char *location; /* NULL: not given */
  uint64_t offset, length;
  int malformed; /* 1: offset or length is no number */
} tws_onnx_place;

/* Sets one entry of external_data: key "location", "offset" or "length"; other keys are ignored. */
void tws_onnx_place_set(tws_onnx_place *place, const char *key, const char *value);

/* Reads the elements of a tensor of `bytes` bytes. path: the ONNX file; tensor: its name, for messages. The caller
 * frees *data with tws_free(). A location with a slash is refused, because it could name any file. Fails with
 * TWS_INVALID if the place or the file does not fit the tensor, before memory is allocated, and with TWS_IO if the file
 * cannot be read. */
tws_code tws_onnx_read_place(const char *path, const char *tensor, const tws_onnx_place *place, uint64_t bytes,
                             uint8_t **data, tws_error *err);

#endif
