#include "base/checksum.h"

#include <pthread.h>
#include <string.h>

/* tables[k][b]: what byte b does to the remainder k bytes further on, so that eight bytes go in one step. */
static uint64_t tables[8][256];

static void make_tables(void) {
  for (int byte = 0; byte < 256; byte++) {
    uint64_t value = (uint64_t)byte;
    for (int bit = 0; bit < 8; bit++) value = value & 1 ? value >> 1 ^ UINT64_C(0xc96c5795d7870f42) : value >> 1;
    tables[0][byte] = value;
  }
  for (int byte = 0; byte < 256; byte++)
    for (int k = 1; k < 8; k++) tables[k][byte] = tables[k - 1][byte] >> 8 ^ tables[0][tables[k - 1][byte] & 255];
}

uint64_t tws_checksum(uint64_t checksum, const void *bytes, size_t count) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  const unsigned char *at = bytes;
  pthread_once(&once, make_tables);
  uint64_t value = ~checksum;
  for (; count >= 8; count -= 8, at += 8) {
    uint64_t word; /* little-endian, as everywhere where this program runs */
    memcpy(&word, at, sizeof word);
    word ^= value;
    value = 0;
    for (int k = 0; k < 8; k++) value ^= tables[7 - k][word >> 8 * k & 255];
  }
  for (; count > 0; count--) value = tables[0][(value ^ *at++) & 255] ^ value >> 8;
  return ~value;
}
