#include "real/data.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/json.h"
#include "base/memory.h"
#include "base/random.h"
#include "models/zigzag.h"
#include "real/pairs.h"

enum { HEADER_WORDS = 256, HEADER_BYTES = 4 * HEADER_WORDS };

static uint32_t word_at(const unsigned char *at, int bytes) {
  uint32_t value = at[0];
  if (bytes > 1) value |= (uint32_t)at[1] << 8;
  if (bytes > 2) value |= (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
  return value;
}

/* Reads bytes [offset, offset + length) of the file, all of them. A mapping would end the process with SIGBUS if
 * another process truncated the file meanwhile. */
static tws_code read_at(const tws_data *data, uint64_t offset, void *to, size_t length, tws_error *err) {
  for (size_t done = 0; done < length;) {
    ssize_t got = pread(data->fd, (char *)to + done, length - done, (off_t)(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return tws_fail(err, TWS_IO, NULL, "%s: cannot be read: %s", data->path, strerror(errno));
    struct stat now = {0};
    if (got == 0 && fstat(data->fd, &now) == 0)
      return tws_fail(err, TWS_IO, "training reads the file until it is done: leave it as it is, or train on a copy",
                      "%s: had %" PRIu64 " bytes when training began, and has %lld now", data->path, data->bytes,
                      (long long)now.st_size);
    if (got == 0) return tws_fail(err, TWS_IO, NULL, "%s: ends too early", data->path);
    done += (size_t)got;
  }
  return TWS_OK;
}

static tws_code open_file(const char *path, tws_data *data, tws_error *err) {
  struct stat info;
  data->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer must not block */
  if (data->fd < 0 || fstat(data->fd, &info) != 0)
    return tws_fail(err, TWS_IO, "--data takes a text file or an llm.c .bin file of tokens", "%s: %s", path,
                    strerror(errno));
  if (S_ISDIR(info.st_mode))
    return tws_fail(err, TWS_IO, "name one file; join several with cat", "%s: is a directory", path);
  if (!S_ISREG(info.st_mode))
    return tws_fail(err, TWS_IO, "data is read in random order: save it to a file first", "%s: not a regular file",
                    path);
  if (info.st_size == 0) return tws_fail(err, TWS_INVALID, NULL, "%s: the file is empty", path);
  data->bytes = (uint64_t)info.st_size;
  return TWS_OK;
}

static tws_code bad_index(const char *path, tws_error *err, const char *what) {
  return tws_fail(err, TWS_INVALID, "write both again, or rename the .idx file where .bin is none of Megatron's",
                  "%s: %s", path, what);
}

/* Reads the index file after its magic: version, type, the numbers of sequences and of document bounds, then the sizes
 * of the sequences, whose sum must match the file of tokens. */
static tws_code read_index(tws_data *data, FILE *file, const char *path, tws_error *err) {
  /* bytes of a token by type: uint8, int16, int32 and uint16; other types are refused */
  static const int bytes_of[] = {0, 1, 0, 2, 4, 0, 0, 0, 2};
  unsigned char head[25];
  uint64_t version, sequences, total = 0;
  if (fread(head, sizeof head, 1, file) != 1) return bad_index(path, err, "it is cut short");
  memcpy(&version, head, 8);
  memcpy(&sequences, head + 9, 8);
  if (version != 1) return bad_index(path, err, "its version is not 1");
  data->token_bytes = head[8] < sizeof bytes_of / sizeof *bytes_of ? bytes_of[head[8]] : 0;
  if (data->token_bytes == 0) return bad_index(path, err, "its tokens are not of type uint8, int16, uint16 or int32");
  for (uint64_t done = 0; done < sequences;) {
    int32_t sizes[4096];
    const uint64_t left = sequences - done;
    const size_t n = left < 4096 ? (size_t)left : 4096;
    if (fread(sizes, sizeof *sizes, n, file) != n) return bad_index(path, err, "it is cut short");
    for (size_t i = 0; i < n; i++) {
      if (sizes[i] < 0) return bad_index(path, err, "a sequence has a negative size");
      total += (uint64_t)sizes[i];
    }
    done += n;
  }
  if (total != data->bytes / (uint64_t)data->token_bytes || data->bytes % (uint64_t)data->token_bytes)
    return bad_index(path, err, "its sequences do not fill the file of tokens");
  data->count = total;
  data->first = 0;
  return TWS_OK;
}

/* Opens one of Megatron's data sets, which are two files: tokens alone in NAME.bin, and NAME.idx, which describes them.
 * *found: 0 if data->path is not such a NAME.bin. */
static tws_code read_megatron(tws_data *data, int *found, tws_error *err) {
  const size_t length = strlen(data->path);
  char path[PATH_MAX];
  unsigned char magic[9];
  *found = 0;
  if (length < 5 || length >= sizeof path || strcmp(data->path + length - 4, ".bin") != 0) return TWS_OK;
  snprintf(path, sizeof path, "%.*s.idx", (int)(length - 4), data->path);
  int fd;
  if (tws_open_regular(path, &fd, NULL) != TWS_OK) return TWS_OK;
  FILE *file = fdopen(fd, "rb");
  if (!file) {
    close(fd);
    return TWS_OK;
  }
  *found = fread(magic, sizeof magic, 1, file) == 1 && memcmp(magic, "MMIDIDX\0\0", 9) == 0;
  const tws_code code = *found ? read_index(data, file, path, err) : TWS_OK;
  fclose(file);
  return code;
}

static tws_code read_header(tws_data *data, tws_error *err) {
  static const struct {
    uint32_t magic, version;
    int token_bytes;
  } formats[] = {{20240520, 1, 2}, {20240801, 7, 4}};
  const char *path = data->path;
  unsigned char header[12] = {0};
  data->first = 0;
  data->token_bytes = 1;
  data->count = data->bytes;
  int found = 0;
  TWS_TRY(read_megatron(data, &found, err));
  if (found) return TWS_OK;
  if (data->bytes >= HEADER_BYTES) TWS_TRY(read_at(data, 0, header, sizeof header, err));
  const uint32_t magic = word_at(header, 4), version = word_at(header + 4, 4);
  for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
    if (magic != formats[i].magic) continue;
    if (version != formats[i].version)
      return tws_fail(err, TWS_INVALID, "write it again with llm.c's dev/data scripts",
                      "%s: token file of version %u; version %u is known", path, version, formats[i].version);
    data->token_bytes = formats[i].token_bytes;
    data->first = HEADER_BYTES;
    data->count = word_at(header + 8, 4);
    uint64_t held = (data->bytes - HEADER_BYTES) / (uint64_t)data->token_bytes;
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

static tws_code bad_token(const tws_data *data, uint64_t at, uint32_t token, tws_error *err) {
  return tws_fail(err, TWS_INVALID,
                  data->token_bytes == 1 ? "text is read as bytes: the model needs a vocabulary of 256 or more"
                                         : "was the file made with this model's tokenizer?",
                  "%s: token %" PRIu64 " is %u, the model's vocabulary has %" PRId64, data->path, at, token,
                  data->vocabulary);
}

static tws_code check_tokens(const tws_data *data, tws_error *err) {
  enum { BLOCK = 1 << 16 }; /* a multiple of all token sizes */
  const uint64_t limit = data->token_bytes == 1 ? 256 : data->token_bytes == 2 ? 65536 : (uint64_t)1 << 32;
  const uint64_t size = (uint64_t)data->token_bytes;
  if ((uint64_t)data->vocabulary >= limit) return TWS_OK;
  unsigned char *block = tws_calloc(BLOCK, 1);
  if (!block) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tws_code code = TWS_OK;
  for (uint64_t at = 0; code == TWS_OK && at < data->count; at += BLOCK / size) {
    uint64_t here = data->count - at < BLOCK / size ? data->count - at : BLOCK / size;
    code = read_at(data, data->first + at * size, block, (size_t)(here * size), err);
    for (uint64_t i = 0; code == TWS_OK && i < here; i++) {
      uint32_t token = word_at(block + i * size, data->token_bytes);
      if (token >= (uint64_t)data->vocabulary) code = bad_token(data, at + i, token, err);
    }
  }
  tws_free(block);
  return code;
}

static tws_code check_length(const char *path, const tws_data *data, int64_t train_batch, tws_error *err) {
  uint64_t sequence = (uint64_t)data->sequence, batch = (uint64_t)train_batch;
  if (data->samples >= batch) return TWS_OK;
  if (data->pairs)
    return tws_fail(err, TWS_INVALID, "use a longer file or a smaller batch",
                    "%s: %" PRIu64 " pairs, and a global batch has %" PRIu64, path, data->samples, batch);
  if (batch > (UINT64_MAX - 1) / sequence)
    return tws_fail(err, TWS_INVALID, NULL, "%s: the global batch is too large", path);
  return tws_fail(err, TWS_INVALID, "use a longer file, a smaller batch or shorter sequences",
                  "%s: %" PRIu64 " tokens, and one global batch of %" PRIu64 " sequences of %" PRIu64
                  " tokens needs %" PRIu64,
                  path, data->count, batch, sequence, batch * sequence + 1);
}

static tws_code open_data(const char *path, int64_t sequence, const tws_pairs_form *form, int64_t train_batch,
                          uint64_t seed, tws_data *data, tws_error *err) {
  const int64_t vocabulary = form->vocabulary;
  *data = (tws_data){.fd = -1, .path = path, .sequence = sequence, .vocabulary = vocabulary, .seed = seed};
  if (sequence < 1 || train_batch < 1 || vocabulary < 1)
    return tws_fail(err, TWS_INTERNAL, NULL, "%s: no sequence length, batch or vocabulary", path);
  data->row = tws_calloc((size_t)sequence + 1, 4);
  if (!data->row) return tws_fail(err, TWS_MEMORY, NULL, "%s: no memory for a sequence", path);
  tws_code code = open_file(path, data, err);
  if (code == TWS_OK && tws_pairs_is_file(path)) {
    code = tws_pairs_open(path, form, &data->pairs, err);
    if (code == TWS_OK) data->samples = tws_pairs_count(data->pairs), data->count = tws_pairs_tokens(data->pairs);
    if (code == TWS_OK) code = check_length(path, data, train_batch, err);
    if (code != TWS_OK) tws_data_close(data);
    return code;
  }
  if (code == TWS_OK) code = read_header(data, err);
  if (code == TWS_OK) data->samples = data->count > 0 ? (data->count - 1) / (uint64_t)sequence : 0;
  if (code == TWS_OK) code = check_length(path, data, train_batch, err);
  if (code == TWS_OK) code = check_tokens(data, err);
  if (code != TWS_OK) tws_data_close(data);
  return code;
}

tws_code tws_data_open(const char *path, int64_t sequence, int64_t vocabulary, int64_t train_batch, uint64_t seed,
                       tws_data *data, tws_error *err) {
  const tws_pairs_form pairs = {.kind = TWS_PAIRS_TARGETS, .vocabulary = vocabulary};
  return open_data(path, sequence, &pairs, train_batch, seed, data, err);
}

tws_code tws_data_open_labelled(const char *path, int64_t sequence, const tws_pairs_form *form, int64_t train_batch,
                                uint64_t seed, tws_data *data, tws_error *err) {
  if (tws_pairs_is_file(path)) return open_data(path, sequence, form, train_batch, seed, data, err);
  *data = (tws_data){.fd = -1, .path = path};
  return tws_fail(err, TWS_INVALID, "docs/encoders.md says what a line of FILE.jsonl has",
                  "%s: a classifier is trained on a file of lines with labels", path);
}

tws_code tws_data_open_memory(int64_t sequence, int64_t vocabulary, int64_t train_batch, uint64_t seed, tws_data *data,
                              tws_error *err) {
  *data = (tws_data){.fd = -1,
                     .path = "the batch",
                     .sequence = sequence,
                     .vocabulary = vocabulary,
                     .token_bytes = sizeof(int32_t),
                     .samples = (uint64_t)train_batch,
                     .count = (uint64_t)(train_batch * (sequence + 1)),
                     .seed = seed};
  data->row = tws_calloc((size_t)sequence + 1, sizeof(int32_t));
  return data->row ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "no memory for a sequence");
}

tws_code tws_data_set_batch(tws_data *data, const int32_t *tokens, const int32_t *targets, tws_error *err) {
  const uint64_t row = (uint64_t)data->sequence, limit = (uint64_t)data->vocabulary;
  for (uint64_t i = 0; i < data->count; i++)
    if ((uint32_t)tokens[i] >= limit)
      return tws_fail(err, TWS_INVALID, "was the text tokenized with this model's tokenizer?",
                      "the batch: token %" PRIu64 " of sample %" PRIu64 " is %" PRId32
                      ", and the model's vocabulary has %" PRId64,
                      i % (row + 1), i / (row + 1), tokens[i], data->vocabulary);
  for (uint64_t i = 0; targets && i < data->samples * row; i++)
    if (targets[i] >= 0 && (uint64_t)targets[i] >= limit)
      return tws_fail(err, TWS_INVALID, "a target is a token, or negative: then it does not count",
                      "the batch: target %" PRIu64 " of sample %" PRIu64 " is %" PRId32
                      ", and the model's vocabulary has %" PRId64,
                      i % row, i / row, targets[i], data->vocabulary);
  data->tokens = tokens;
  data->targets = targets;
  return TWS_OK;
}

void tws_data_close(tws_data *data) {
  if (data->row && data->fd >= 0) close(data->fd); /* if there is no `row`, the file was never opened */
  tws_free(data->row);
  tws_pairs_close(data->pairs);
  *data = (tws_data){0};
}

uint64_t tws_data_sample(const tws_data *data, int64_t train_batch, int64_t step, int64_t place) {
  if (data->tokens) return (uint64_t)place;
  uint64_t at = (uint64_t)(step * train_batch + place + data->offset);
  return tws_random_permute(data->seed + at / data->samples, data->samples, at % data->samples);
}

int64_t tws_data_tokens(const tws_data *data, const tws_batch_shape *shape) {
  return shape->accumulation * shape->micro_batch * (data->sequence / shape->parts);
}

/* Returns token `i` of the tokens that were read from token number `first` on. */
static tws_code token_read(const tws_data *data, uint64_t first, int64_t i, uint32_t *token, tws_error *err) {
  *token = word_at(data->row + i * data->token_bytes, data->token_bytes);
  if (*token < (uint64_t)data->vocabulary) return TWS_OK;
  return bad_token(data, first + (uint64_t)i, *token, err); /* the file has been changed since it was checked */
}

static tws_code read_tokens(const tws_data *data, uint64_t first, int64_t count, tws_error *err) {
  const uint64_t size = (uint64_t)data->token_bytes, sequence = (uint64_t)data->sequence;
  if (data->tokens) {
    const int32_t *from = data->tokens + first / sequence * (sequence + 1) + first % sequence;
    memcpy(data->row, from, (size_t)count * sizeof *from);
    return TWS_OK;
  }
  return read_at(data, data->first + first * size, data->row, (size_t)count * size, err);
}

tws_code tws_data_tokens_at(const tws_data *data, uint64_t first, int64_t count, int32_t *tokens, tws_error *err) {
  TWS_TRY(read_tokens(data, first, count, err));
  for (int64_t i = 0; i < count; i++) {
    uint32_t token;
    TWS_TRY(token_read(data, first, i, &token, err));
    tokens[i] = (int32_t)token;
  }
  return TWS_OK;
}

/* Returns the target of token number `at`, which is the token after it, `next`, unless the batch has targets of its
 * own. */
static int32_t target_of(const tws_data *data, const tws_batch_shape *shape, uint64_t at, uint32_t next) {
  if (data->targets) return data->targets[at] < 0 ? -1 : data->targets[at];
  return (int64_t)next == shape->ignored ? -1 : (int32_t)next;
}

tws_code tws_data_fill(const tws_data *data, const tws_batch_shape *shape, int64_t step, int32_t *ids, int32_t *targets,
                       tws_error *err) {
  const tws_token_ranges ranges =
      tws_token_ranges_of(data->sequence, shape->parts, shape->part, shape->halves, shape->chunks);
  const int64_t length = ranges.length;
  for (int64_t a = 0; a < shape->accumulation; a++)
    for (int64_t row = 0; row < shape->micro_batch; row++) {
      int64_t place = (a * shape->replicas + shape->replica) * shape->micro_batch + row;
      uint64_t first = tws_data_sample(data, shape->train_batch, step, place) * (uint64_t)data->sequence;
      first += (uint64_t)ranges.first;
      for (int run = 0; run < ranges.ranges; run++, first += (uint64_t)(length + ranges.gap)) {
        TWS_TRY(read_tokens(data, first, length + 1, err));
        for (int64_t t = 0; t <= length; t++) {
          uint32_t token;
          TWS_TRY(token_read(data, first, t, &token, err));
          if (t > 0) *targets++ = target_of(data, shape, first + (uint64_t)t - 1, token);
          if (t < length) *ids++ = (int32_t)token;
        }
      }
    }
  return TWS_OK;
}
