#include "models/network/onnx_data.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/json.h"
#include "base/memory.h"
#include "base/number.h"

static uint64_t whole_number(const char *text, int *malformed) {
  int64_t value = 0;
  *malformed |= !tws_text_integer(text, NULL, 0, INT64_MAX, &value);
  return (uint64_t)value;
}

void tws_onnx_place_set(tws_onnx_place *place, const char *key, const char *value) {
  if (strcmp(key, "location") == 0) place->location = value;
  if (strcmp(key, "offset") == 0) place->offset = whole_number(value, &place->malformed);
  if (strcmp(key, "length") == 0) place->length = whole_number(value, &place->malformed);
}

static tws_code read_range(int fd, const char *file, uint64_t offset, uint64_t bytes, uint8_t *to, tws_error *err) {
  for (uint64_t at = 0; at < bytes;) {
    const uint64_t most = 1u << 30, rest = bytes - at;
    const ssize_t got = pread(fd, to + at, rest < most ? rest : most, (off_t)(offset + at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return tws_fail(err, TWS_IO, NULL, "cannot read %.400s: %s", file, strerror(errno));
    if (got == 0)
      return tws_fail(err, TWS_IO, "write the model again", "%.400s became shorter while it was read", file);
    at += (uint64_t)got;
  }
  return TWS_OK;
}

static tws_code read_file(int fd, const char *path, const char *file, const char *tensor, const tws_onnx_place *place,
                          uint64_t bytes, uint8_t **data, tws_error *err) {
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
    return tws_fail(err, TWS_INVALID, "export the model again",
                    "%.400s is no regular file, and %s keeps tensor %.200s in it", file, path, tensor);
  const uint64_t size = (uint64_t)info.st_size;
  if (place->offset > size || bytes > size - place->offset)
    return tws_fail(err, TWS_INVALID, "copy both files of one export",
                    "%s: tensor %.200s has %llu bytes from byte %llu of %.400s on, which has %llu", path, tensor,
                    (unsigned long long)bytes, (unsigned long long)place->offset, file, (unsigned long long)size);
  uint8_t *copy = tws_realloc(NULL, bytes > 0 ? bytes : 1, 1);
  if (!copy) return tws_fail(err, TWS_MEMORY, NULL, "%s: no memory for tensor %.200s", path, tensor);
  const tws_code code = read_range(fd, file, place->offset, bytes, copy, err);
  if (code == TWS_OK)
    *data = copy;
  else
    tws_free(copy);
  return code;
}

tws_code tws_onnx_read_place(const char *path, const char *tensor, const tws_onnx_place *place, uint64_t bytes,
                             uint8_t **data, tws_error *err) {
  const char *name = place->location, *slash = strrchr(path, '/');
  char file[4096];
  int fd;
  *data = NULL;
  if (!name || !*name || strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
    return tws_fail(err, TWS_INVALID, "keep the data in the folder of the model, as torch.onnx.export does",
                    "%s: tensor %.200s is in \"%.200s\", which is no name of a file in the model's folder", path,
                    tensor, name ? name : "");
  if (place->malformed || (place->length > 0 && place->length != bytes))
    return tws_fail(err, TWS_INVALID, "the file is damaged: write it again",
                    "%s: the range in \"%.200s\" is not that of the %llu bytes of tensor %.200s", path, name,
                    (unsigned long long)bytes, tensor);
  const int length = snprintf(file, sizeof file, "%.*s%s", slash ? (int)(slash - path) + 1 : 0, path, name);
  if (length < 0 || (size_t)length >= sizeof file) return tws_fail(err, TWS_INVALID, NULL, "%s: path too long", path);
  if (tws_open_regular(file, &fd, err) != TWS_OK)
    return tws_fail_in(err, err->code, "%s keeps tensor %.200s in another file", path, tensor);
  const tws_code code = read_file(fd, path, file, tensor, place, bytes, data, err);
  close(fd);
  return code;
}
