#include "models/hardware/host_buffers.h"

static const tws_host_buffer buffers[] = {
#define HOST_BUFFER(software, what, bytes, of, pinned, unit) \
  {TWS_HOST_##software, what, bytes, TWS_HOST_##of, TWS_PINNED_##pinned, TWS_HOST_##unit},
#include "models/hardware/host_buffers.def"
#undef HOST_BUFFER
};

const tws_host_buffer *tws_host_buffers(int *count) {
  *count = (int)(sizeof buffers / sizeof *buffers);
  return buffers;
}
