#include "traces/gzip.h"

#include <string.h>
#ifdef TWS_HAVE_ZLIB
#include <zlib.h>
#endif

#include "base/json.h"

/* Returns 1 for a path that ends with ".gz". */
static int is_gzip(const char *path) {
  const size_t length = path ? strlen(path) : 0;
  return length > 3 && strcmp(path + length - 3, ".gz") == 0;
}

tws_code tws_gzip_check(const char *path, tws_error *err) {
#ifndef TWS_HAVE_ZLIB
  if (is_gzip(path))
    return tws_fail(err, TWS_UNSUPPORTED, "leave out .gz, or build with zlib", "%s: this build writes no gzip", path);
#endif
  (void)path, (void)err;
  return TWS_OK;
}

#ifdef TWS_HAVE_ZLIB
enum { BLOCK = 1 << 20, LEVEL = 4, GZIP = 16, MEMORY_LEVEL = 8 };

enum { OUTPUT = 1 << 14 };

/* Gives zlib the next part of data[length] from *at on, once it has used the last one, and room for its output. */
static void give_blocks(z_stream *z, const char *data, size_t length, size_t *at, unsigned char out[OUTPUT]) {
  if (z->avail_in == 0 && *at < length) {
    const size_t some = length - *at < BLOCK ? length - *at : BLOCK;
    z->next_in = (Bytef *)(uintptr_t)(data + *at);
    z->avail_in = (uInt)some;
    *at += some;
  }
  z->next_out = out;
  z->avail_out = OUTPUT;
}

static tws_code compress_text(const char *data, size_t length, tws_text *out) {
  z_stream z = {0};
  unsigned char block[OUTPUT];
  int status = deflateInit2(&z, LEVEL, Z_DEFLATED, MAX_WBITS + GZIP, MEMORY_LEVEL, Z_DEFAULT_STRATEGY);
  if (status != Z_OK) return TWS_MEMORY;
  for (size_t at = 0; status != Z_STREAM_END && !out->failed;) {
    give_blocks(&z, data, length, &at, block);
    status = deflate(&z, at == length ? Z_FINISH : Z_NO_FLUSH);
    if (status == Z_STREAM_ERROR) break;
    tws_text_add_bytes(out, (const char *)block, sizeof block - z.avail_out);
  }
  deflateEnd(&z);
  return status == Z_STREAM_END && !out->failed ? TWS_OK : TWS_MEMORY;
}

static tws_code expand_text(const char *path, const char *data, size_t length, tws_text *out, tws_error *err) {
  static const size_t most = (size_t)64 << 20; /* what base/json.h parses */
  z_stream z = {0};
  unsigned char block[OUTPUT];
  int status = inflateInit2(&z, MAX_WBITS + GZIP);
  if (status != Z_OK) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for %s", path);
  size_t at = 0;
  do {
    give_blocks(&z, data, length, &at, block);
    status = inflate(&z, Z_NO_FLUSH);
    tws_text_add_bytes(out, (const char *)block, sizeof block - z.avail_out);
  } while (status == Z_OK && out->length <= most && !out->failed);
  inflateEnd(&z);
  if (out->failed) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for %s", path);
  if (status == Z_STREAM_END) return TWS_OK;
  return tws_fail(err, TWS_INVALID, "write it once more, or unpack it with gzip -d",
                  out->length > most ? "%s is larger than 64 MiB unpacked" : "%s is a damaged gzip file", path);
}
#endif

tws_code tws_gzip_write(const char *path, const char *data, size_t length, tws_error *err) {
  if (!is_gzip(path)) return tws_write_file(path, data, length, err);
  TWS_TRY(tws_gzip_check(path, err));
#ifdef TWS_HAVE_ZLIB
  tws_text packed = {0};
  tws_code code = compress_text(data, length, &packed) == TWS_OK
                      ? tws_write_file(path, packed.data, packed.length, err)
                      : tws_fail(err, TWS_MEMORY, NULL, "out of memory while compressing %s", path);
  tws_text_free(&packed);
  return code;
#else
  return TWS_UNSUPPORTED;
#endif
}

tws_code tws_gzip_expand(const char *path, char **text, size_t *length, tws_error *err) {
  if (*length < 2 || (unsigned char)(*text)[0] != 0x1f || (unsigned char)(*text)[1] != 0x8b) return TWS_OK;
#ifdef TWS_HAVE_ZLIB
  tws_text out = {0};
  const tws_code code = expand_text(path, *text, *length, &out, err);
  if (code != TWS_OK) {
    tws_text_free(&out);
    return code;
  }
  tws_text_add_bytes(&out, "", 0);
  tws_free(*text);
  *text = out.data;
  *length = out.length;
  return TWS_OK;
#else
  return tws_fail(err, TWS_UNSUPPORTED, "unpack it with gzip -d, or build with zlib", "%s: this build reads no gzip",
                  path);
#endif
}
