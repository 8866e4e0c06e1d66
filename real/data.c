#include "real/data.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/random.h"

enum { HEADER_WORDS = 256, HEADER_BYTES = 4 * HEADER_WORDS };

static uint32_t token_at(const tws_data *data, uint64_t i) {
  const unsigned char *at = data->tokens + i * (uint64_t)data->token_bytes;
  uint32_t value = at[0];
  if (data->token_bytes > 1) value |= (uint32_t)at[1] << 8;
  if (data->token_bytes > 2) value |= (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
  return value;
}

static tws_code map_file(const char *path, tws_data *data, tws_error *err) {
  struct stat info;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &info) != 0) {
    int reason = errno;
    if (fd >= 0) close(fd);
    return tws_fail(err, TWS_IO, "--data takes a text file or an llm.c .bin file of tokens", "%s: %s", path,
                    strerror(reason));
  }
  tws_code code = TWS_OK;
  if (S_ISDIR(info.st_mode))
    code = tws_fail(err, TWS_IO, "name one file; join several with cat", "%s: is a directory", path);
  else if (!S_ISREG(info.st_mode))
    code =
        tws_fail(err, TWS_IO, "data is read in random order: save it to a file first", "%s: not a regular file", path);
  else if (info.st_size == 0)
    code = tws_fail(err, TWS_INVALID, NULL, "%s: the file is empty", path);
  if (code == TWS_OK) {
    data->map_bytes = (size_t)info.st_size;
    data->map = mmap(NULL, data->map_bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (data->map == MAP_FAILED) {
      data->map = NULL;
      code = tws_fail(err, TWS_IO, NULL, "%s: cannot be mapped: %s", path, strerror(errno));
    }
  }
  close(fd);
  return code;
}

static uint32_t header_word(const tws_data *data, int word) {
  tws_data view = {.tokens = data->map, .token_bytes = 4};
  return token_at(&view, (uint64_t)word);
}

static tws_code read_header(const char *path, tws_data *data, tws_error *err) {
  static const struct {
    uint32_t magic, version;
    int token_bytes;
  } formats[] = {{20240520, 1, 2}, {20240801, 7, 4}};
  data->tokens = data->map;
  data->token_bytes = 1;
  data->count = data->map_bytes;
  uint32_t magic = data->map_bytes >= HEADER_BYTES ? header_word(data, 0) : 0;
  for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
    if (magic != formats[i].magic) continue;
    if (header_word(data, 1) != formats[i].version)
      return tws_fail(err, TWS_INVALID, "write it again with llm.c's dev/data scripts",
                      "%s: token file of version %u; version %u is known", path, header_word(data, 1),
                      formats[i].version);
    data->token_bytes = formats[i].token_bytes;
    data->tokens = (const unsigned char *)data->map + HEADER_BYTES;
    data->count = header_word(data, 2);
    uint64_t held = (data->map_bytes - HEADER_BYTES) / (uint64_t)data->token_bytes;
    if (data->count > held)
      return tws_fail(err, TWS_INVALID, "the file is cut: write or download it again",
                      "%s: the header promises %" PRIu64 " tokens, the file holds %" PRIu64, path, data->count, held);
    return TWS_OK;
  }
  size_t length = strlen(path);
  if (length > 4 && strcmp(path + length - 4, ".bin") == 0)
    return tws_fail(err, TWS_INVALID, "llm.c token files begin with 20240520 (or 20240801); name text files otherwise",
                    "%s: not a token file (it begins with %u)", path, magic);
  return TWS_OK;
}

static tws_code check_tokens(const char *path, const tws_data *data, int64_t vocabulary, tws_error *err) {
  uint64_t limit = data->token_bytes == 1 ? 256 : data->token_bytes == 2 ? 65536 : (uint64_t)1 << 32;
  if ((uint64_t)vocabulary >= limit) return TWS_OK;
  for (uint64_t i = 0; i < data->count; i++)
    if (token_at(data, i) >= (uint64_t)vocabulary)
      return tws_fail(err, TWS_INVALID,
                      data->token_bytes == 1 ? "text is read as bytes: the model needs a vocabulary of 256 or more"
                                             : "was the file made with this model's tokenizer?",
                      "%s: token %" PRIu64 " is %u, the model's vocabulary has %" PRId64, path, i, token_at(data, i),
                      vocabulary);
  return TWS_OK;
}

static tws_code check_length(const char *path, const tws_data *data, int64_t train_batch, tws_error *err) {
  uint64_t sequence = (uint64_t)data->sequence, batch = (uint64_t)train_batch;
  if (data->samples >= batch) return TWS_OK;
  if (batch > (UINT64_MAX - 1) / sequence)
    return tws_fail(err, TWS_INVALID, NULL, "%s: the global batch is too large", path);
  return tws_fail(err, TWS_INVALID, "use a longer file, a smaller batch or shorter sequences",
                  "%s: %" PRIu64 " tokens, and one global batch of %" PRIu64 " sequences of %" PRIu64
                  " tokens needs %" PRIu64,
                  path, data->count, batch, sequence, batch * sequence + 1);
}

tws_code tws_data_open(const char *path, int64_t sequence, int64_t vocabulary, int64_t train_batch, uint64_t seed,
                       tws_data *data, tws_error *err) {
  *data = (tws_data){.sequence = sequence, .seed = seed};
  if (sequence < 1 || train_batch < 1 || vocabulary < 1)
    return tws_fail(err, TWS_INTERNAL, NULL, "%s: no sequence length, batch or vocabulary", path);
  tws_code code = map_file(path, data, err);
  if (code == TWS_OK) code = read_header(path, data, err);
  if (code == TWS_OK) data->samples = data->count > 0 ? (data->count - 1) / (uint64_t)sequence : 0;
  if (code == TWS_OK) code = check_length(path, data, train_batch, err);
  if (code == TWS_OK) code = check_tokens(path, data, vocabulary, err);
  if (code != TWS_OK) tws_data_close(data);
  return code;
}

void tws_data_close(tws_data *data) {
  if (data->map) munmap(data->map, data->map_bytes);
  *data = (tws_data){0};
}

uint64_t tws_data_sample(const tws_data *data, int64_t train_batch, int64_t step, int64_t place) {
  uint64_t at = (uint64_t)step * (uint64_t)train_batch + (uint64_t)place;
  return tws_random_permute(data->seed + at / data->samples, data->samples, at % data->samples);
}

int64_t tws_data_tokens(const tws_data *data, const tws_batch_shape *shape) {
  return shape->accumulation * shape->micro_batch * (data->sequence / shape->parts);
}

void tws_data_fill(const tws_data *data, const tws_batch_shape *shape, int64_t step, int32_t *ids, int32_t *targets) {
  int64_t length = data->sequence / shape->parts;
  for (int64_t a = 0; a < shape->accumulation; a++)
    for (int64_t row = 0; row < shape->micro_batch; row++) {
      int64_t place = (a * shape->replicas + shape->replica) * shape->micro_batch + row;
      uint64_t first = tws_data_sample(data, shape->train_batch, step, place) * (uint64_t)data->sequence;
      first += (uint64_t)(shape->part * length);
      for (int64_t t = 0; t < length; t++) {
        uint32_t target = token_at(data, first + (uint64_t)t + 1);
        *ids++ = (int32_t)token_at(data, first + (uint64_t)t);
        *targets++ = (int64_t)target == shape->ignored ? -1 : (int32_t)target;
      }
    }
}
