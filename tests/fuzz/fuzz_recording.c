/* Recordings of other software: any bytes give one error, or consistent kernels and steps. */
#include <math.h>
#include <string.h>

#include "calibration/attribute.h"
#include "tests/fuzz/memory_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition) {
  if (!condition) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char path[32];
  tws_recording r;
  tws_error err = {0};
  const int fd = memory_file(data, size, path);
  const tws_code code = tws_recording_read(path, &r, &err);
  require(code == TWS_OK || ((code == TWS_INVALID || code == TWS_UNSUPPORTED) && err.message[0] && err.hint[0]));
  for (size_t i = 0; code == TWS_OK && i < r.kernel_count; i++) {
    require(r.kernels[i].seconds >= 0 && isfinite(r.kernels[i].seconds) && r.kernels[i].calls >= 0);
    require(tws_part_of_recorded(&r.kernels[i]) <= TWS_PART_COUNT);
  }
  for (size_t i = 0; code == TWS_OK && i < r.step_count; i++) require(r.steps[i].seconds > 0);
  require(code != TWS_OK || tws_recording_step_s(&r) >= 0);
  tws_recording_free(&r);
  close(fd);
  return 0;
}
