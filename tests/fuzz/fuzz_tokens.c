/* Token files: any bytes give one error, or samples whose tokens are below the vocabulary. */
#include <string.h>

#include "real/data.h"
#include "tests/fuzz/memory_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition) {
  if (!condition) abort();
}

static void read_steps(const tws_data *data, int64_t batch, int64_t vocabulary) {
  enum { TOKENS = 64 };
  int32_t ids[TOKENS], targets[TOKENS];
  const tws_batch_shape shape = {
      .train_batch = batch, .micro_batch = 1, .accumulation = batch, .replicas = 1, .parts = 1, .ignored = 3};
  tws_error err = {0};
  require(data->samples > 0 && data->count > 0 && tws_data_tokens(data, &shape) <= TOKENS);
  const int64_t steps[] = {0, 1, 1000000007};
  for (int s = 0; s < 3; s++) {
    const tws_code code = tws_data_fill(data, &shape, steps[s], ids, targets, &err);
    require(code == TWS_OK || (code == TWS_INVALID && err.message[0]));
    for (int64_t i = 0; code == TWS_OK && i < tws_data_tokens(data, &shape); i++)
      require(ids[i] >= 0 && ids[i] < vocabulary && targets[i] >= -1 && targets[i] < vocabulary && targets[i] != 3);
    for (int64_t place = 0; place < batch; place++)
      require(tws_data_sample(data, batch, steps[s], place) < data->samples);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  static const int64_t vocabularies[] = {2, 256, 70000};
  char path[32];
  const int fd = memory_file(bytes, size, path);
  for (int i = 0; i < 3; i++) {
    tws_data data = {0};
    tws_error err = {0};
    const int64_t sequence = 1 + (int64_t)(size % 7), batch = 1 + (int64_t)(size % 3);
    const tws_code code = tws_data_open(path, sequence, vocabularies[i], batch, size, &data, &err);
    require(code == TWS_OK || ((code == TWS_INVALID || code == TWS_IO) && err.message[0]));
    if (code == TWS_OK) read_steps(&data, batch, vocabularies[i]);
    tws_data_close(&data);
  }
  close(fd);
  return 0;
}
