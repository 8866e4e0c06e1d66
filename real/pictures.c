#include "real/pictures.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"

static int64_t labels_of(const tws_network *network) {
  return network->labels.count > 0 ? network->labels.count : 1;
}

/* Returns the position in a record of this picture's first byte; with the number of pictures the size of a record. */
static int64_t first_byte(const tws_network *network, int index) {
  int64_t bytes = labels_of(network);
  for (int i = 0; i < index; i++) {
    const tws_picture p = tws_network_picture(network, i);
    bytes += p.channels * p.side * p.side;
  }
  return bytes;
}

static int64_t record_bytes(const tws_network *network) {
  return first_byte(network, tws_network_pictures(network));
}

static tws_code read_record(const tws_data *data, uint64_t sample, int64_t bytes, unsigned char *to, tws_error *err) {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t got = pread(data->fd, to + done, (size_t)(bytes - done), (off_t)(sample * (uint64_t)bytes) + done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      return tws_fail(err, TWS_IO, "training reads the file until it is done", "%s: %s", data->path,
                      got < 0 ? strerror(errno) : "it has become shorter");
    done += got;
  }
  return TWS_OK;
}

/* Checks the labels of every record, which are its first bytes. */
static tws_code check_classes(const tws_data *data, const tws_network *network, tws_error *err) {
  const uint64_t bytes = (uint64_t)record_bytes(network);
  const int64_t labels = labels_of(network);
  for (uint64_t i = 0; i < data->samples; i++) {
    if (pread(data->fd, data->row, (size_t)labels, (off_t)(i * bytes)) != labels)
      return tws_fail(err, TWS_IO, NULL, "%s: %s", data->path, strerror(errno));
    for (int64_t k = 0; k < labels; k++) {
      const int64_t classes = network->labels.count > 0 ? network->labels.classes[k] : network->vocabulary;
      char which[40] = "";
      if (labels > 1) snprintf(which, sizeof which, " by label %lld", (long long)k + 1);
      if (data->row[k] >= classes)
        return tws_fail(err, TWS_INVALID,
                        "is it a file of such pictures? num_labels says how many classes the model has",
                        "%s: picture %" PRIu64 " is of class %d%s, and the model has %" PRId64 " classes", data->path,
                        i, data->row[k], which, classes);
    }
  }
  return TWS_OK;
}

static tws_code wrong_size(const tws_data *data, const tws_network *network, tws_error *err) {
  const int pictures = tws_network_pictures(network);
  const long long labels = (long long)labels_of(network), bytes = (long long)record_bytes(network);
  const tws_picture *p = &network->picture;
  if (pictures == 1 && labels == 1)
    return tws_fail(err, TWS_INVALID,
                    "a record is a byte with the class, then a byte for each pixel, channel by channel",
                    "%s: it is no file of records of %lld bytes, pictures of %lld x %lld pixels with %lld channels",
                    data->path, bytes, (long long)p->side, (long long)p->side, (long long)p->channels);
  return tws_fail(err, TWS_INVALID,
                  "a record is a byte for each label, then for each picture a byte for each pixel, channel by channel",
                  "%s: it is no file of records of %lld bytes, which are %lld label%s and %d picture%s", data->path,
                  bytes, labels, labels > 1 ? "s" : "", pictures, pictures > 1 ? "s" : "");
}

static tws_code open_file(tws_data *data, const tws_network *network, int64_t train_batch, tws_error *err) {
  const int64_t bytes = record_bytes(network);
  struct stat info;
  data->fd = open(data->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (data->fd < 0 || fstat(data->fd, &info) != 0)
    return tws_fail(err, TWS_IO, "--data takes pictures as CIFAR-10 has them", "%s: %s", data->path, strerror(errno));
  if (!S_ISREG(info.st_mode) || info.st_size == 0 || info.st_size % bytes != 0) return wrong_size(data, network, err);
  data->bytes = (uint64_t)info.st_size;
  data->samples = data->count = data->bytes / (uint64_t)bytes;
  if (data->samples < (uint64_t)train_batch)
    return tws_fail(err, TWS_INVALID, "use a longer file or a smaller batch",
                    "%s: %" PRIu64 " pictures, and a global batch has %" PRId64, data->path, data->samples,
                    train_batch);
  return check_classes(data, network, err);
}

tws_code tws_pictures_open(const char *path, const tws_network *network, int64_t train_batch, uint64_t seed,
                           tws_data *data, tws_error *err) {
  *data = (tws_data){
      .fd = -1, .path = path, .sequence = 1, .token_bytes = 1, .vocabulary = network->vocabulary, .seed = seed};
  data->row = tws_calloc((size_t)record_bytes(network), 1);
  if (!data->row) return tws_fail(err, TWS_MEMORY, NULL, "%s: no memory for a picture", path);
  const tws_code code = open_file(data, network, train_batch, err);
  if (code != TWS_OK) tws_data_close(data);
  return code;
}

tws_code tws_pictures_read(const tws_data *data, const tws_network *network, uint64_t sample, tws_error *err) {
  return read_record(data, sample, record_bytes(network), data->row, err);
}

int32_t tws_pictures_label(const tws_data *data, int label) {
  return data->row[label];
}

void tws_pictures_patches(const tws_data *data, const tws_network *network, int index, float *patches) {
  const tws_picture p = tws_network_picture(network, index);
  const int64_t side = p.side, patch = p.patch, across = side / patch;
  const unsigned char *pixels = data->row + first_byte(network, index);
  for (int64_t at = 0; at < across * across; at++)
    for (int64_t c = 0; c < p.channels; c++)
      for (int64_t y = 0; y < patch; y++)
        for (int64_t x = 0; x < patch; x++) {
          const int64_t row = at / across * patch + y, column = at % across * patch + x;
          *patches++ = (float)pixels[(c * side + row) * side + column] / 127.5F - 1;
        }
}
