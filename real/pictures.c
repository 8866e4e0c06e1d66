#include "real/pictures.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"

static int64_t record_bytes(const tws_picture *p) {
  return 1 + p->channels * p->side * p->side;
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

/* Checks the class of every record, which is its first byte. */
static tws_code check_classes(const tws_data *data, const tws_network *network, tws_error *err) {
  const uint64_t bytes = (uint64_t)record_bytes(&network->picture);
  for (uint64_t i = 0; i < data->samples; i++) {
    if (pread(data->fd, data->row, 1, (off_t)(i * bytes)) != 1)
      return tws_fail(err, TWS_IO, NULL, "%s: %s", data->path, strerror(errno));
    if (data->row[0] >= network->vocabulary)
      return tws_fail(err, TWS_INVALID, "is it a file of such pictures? num_labels says how many classes the model has",
                      "%s: picture %" PRIu64 " is of class %d, and the model has %" PRId64 " classes", data->path, i,
                      data->row[0], network->vocabulary);
  }
  return TWS_OK;
}

static tws_code open_file(tws_data *data, const tws_network *network, int64_t train_batch, tws_error *err) {
  const tws_picture *p = &network->picture;
  const int64_t bytes = record_bytes(p);
  struct stat info;
  data->fd = open(data->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (data->fd < 0 || fstat(data->fd, &info) != 0)
    return tws_fail(err, TWS_IO, "--data takes pictures as CIFAR-10 has them", "%s: %s", data->path, strerror(errno));
  if (!S_ISREG(info.st_mode) || info.st_size == 0 || info.st_size % bytes != 0)
    return tws_fail(err, TWS_INVALID,
                    "a record is a byte with the class, then a byte for each pixel, channel by channel",
                    "%s: it is no file of records of %" PRId64 " bytes, pictures of %" PRId64 " x %" PRId64
                    " pixels with %" PRId64 " channels",
                    data->path, bytes, p->side, p->side, p->channels);
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
  data->row = tws_calloc((size_t)record_bytes(&network->picture), 1);
  if (!data->row) return tws_fail(err, TWS_MEMORY, NULL, "%s: no memory for a picture", path);
  const tws_code code = open_file(data, network, train_batch, err);
  if (code != TWS_OK) tws_data_close(data);
  return code;
}

tws_code tws_pictures_read(const tws_data *data, const tws_picture *picture, uint64_t sample, float *patches,
                           int32_t *class_of, tws_error *err) {
  const int64_t side = picture->side, patch = picture->patch, across = side / patch;
  TWS_TRY(read_record(data, sample, record_bytes(picture), data->row, err));
  *class_of = data->row[0];
  for (int64_t at = 0; at < across * across; at++)
    for (int64_t c = 0; c < picture->channels; c++)
      for (int64_t y = 0; y < patch; y++)
        for (int64_t x = 0; x < patch; x++) {
          const int64_t row = at / across * patch + y, column = at % across * patch + x;
          *patches++ = (float)data->row[1 + (c * side + row) * side + column] / 127.5F - 1;
        }
  return TWS_OK;
}
