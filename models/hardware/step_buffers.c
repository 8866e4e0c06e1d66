#include "models/hardware/step_buffers.h"

static const tws_step_buffer buffers[] = {
#define STEP_BUFFER(software, what, bytes, moment, of, where) \
  {TWS_STEP_##software, what, bytes, TWS_MOMENT_##moment, TWS_STEP_##of, TWS_STEP_##where},
#include "models/hardware/step_buffers.def"
#undef STEP_BUFFER
};

const tws_step_buffer *tws_step_buffers(int *count) {
  *count = (int)(sizeof buffers / sizeof *buffers);
  return buffers;
}
