#include "base/checksum.h"

#include <lzma.h>

uint64_t tws_checksum(uint64_t checksum, const void *bytes, size_t count) {
  return lzma_crc64(bytes, count, checksum);
}
