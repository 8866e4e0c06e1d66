/* Results of the verbs: any bytes give one error, or entries of finite, positive figures; the same file twice gives the
 * same entries. */
#include <math.h>

#include "tests/fuzz/memory_file.h"
#include "validation/results.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition) {
  if (!condition) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char path[32];
  tws_results results = {0};
  const int fd = memory_file(data, size, path);
  for (int twice = 0; twice < 2; twice++) {
    tws_error err = {0};
    const size_t before = results.count;
    const tws_code code = tws_results_read(&results, path, &err);
    require(code == TWS_OK || ((code == TWS_INVALID || code == TWS_UNSUPPORTED) && err.message[0]));
    require(!twice || results.count == before);
  }
  for (size_t i = 0; i < results.count; i++) {
    const tws_result_entry *e = &results.entries[i];
    const double figures[] = {e->estimated_s, e->simulated_s,     e->measured_s,     e->low_s,
                              e->high_s,      e->predicted_bytes, e->allocated_bytes};
    for (size_t k = 0; k < sizeof figures / sizeof *figures; k++) require(isfinite(figures[k]) && figures[k] >= 0);
    require(e->micro > 0 && e->ranks > 0 && tws_result_predicted(e) >= 0 && e->file == path);
    require(tws_result_model(e->model) != NULL);
  }
  int pairs;
  require(tws_results_median_error(&results, &pairs) >= -1);
  tws_results_free(&results);
  close(fd);
  return 0;
}
