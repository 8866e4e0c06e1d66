/* Traces and measurements: any bytes give one error, or consistent events and samples. */
#include <string.h>

#include "plan/plan.h"
#include "tests/fuzz/memory_file.h"
#include "traces/compare.h"
#include "traces/measurements.h"
#include "traces/timeline.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition) {
  if (!condition) abort();
}

#define X(name, text) text,
static const char *const streams[] = {TWS_STREAMS(X)};
static const char *const phases[] = {TWS_PHASES(X)};
#undef X

static void use_trace(const char *path) {
  tws_timeline *timeline = NULL;
  tws_comparison *comparison = NULL;
  tws_error err = {0};
  const tws_code code =
      tws_timeline_read_chrome(path, "measured", streams, TWS_STREAM_COUNT, phases, TWS_PHASE_COUNT, &timeline, &err);
  require(code == TWS_OK ? timeline != NULL : code == TWS_INVALID && err.message[0]);
  if (code != TWS_OK) return;
  require(tws_timeline_check(timeline, &err) == TWS_OK);
  if (tws_timeline_compare(timeline, timeline, &comparison, &err) != TWS_OK) require(err.message[0] != 0);
  tws_comparison_destroy(comparison);
  tws_timeline_destroy(timeline);
}

static void use_measurements(const char *path) {
  tws_measurements m = {0};
  tws_error err = {0};
  const tws_code code = tws_measurements_read(path, &m, &err);
  require(code == TWS_OK || (code == TWS_INVALID && err.message[0]));
  for (size_t i = 0; code == TWS_OK && i < m.kernel_count; i++)
    require(m.kernels[i].seconds >= 0 && m.kernels[i].work.code < TWS_KERNEL_COUNT);
  for (size_t i = 0; code == TWS_OK && i < m.collective_count; i++)
    require(m.collectives[i].seconds >= 0 && m.collectives[i].ranks > 0);
  tws_measurements_free(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char path[32];
  const int fd = memory_file(data, size, path);
  use_trace(path);
  use_measurements(path);
  close(fd);
  return 0;
}
