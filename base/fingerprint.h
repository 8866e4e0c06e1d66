/* FNV-1a hash over numbers and texts. It detects that two descriptions differ; it does not protect against forgery. */
#ifndef TWS_BASE_FINGERPRINT_H
#define TWS_BASE_FINGERPRINT_H

#include <stdint.h>
#include <string.h>

#define TWS_FINGERPRINT_START UINT64_C(0xcbf29ce484222325)

static inline uint64_t tws_fingerprint_bytes(uint64_t hash, const void *bytes, size_t count) {
  const unsigned char *at = bytes;
  for (size_t i = 0; i < count; i++) hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
  return hash;
}
static inline uint64_t tws_fingerprint_integer(uint64_t hash, int64_t value) {
  return tws_fingerprint_bytes(hash, &value, sizeof value);
}
static inline uint64_t tws_fingerprint_number(uint64_t hash, double value) {
  value += 0.0; /* -0 becomes 0, so that both have one hash */
  return tws_fingerprint_bytes(hash, &value, sizeof value);
}
static inline uint64_t tws_fingerprint_text(uint64_t hash,
                                            const char *text) { /* the terminating zero counts: "ab", "c" is not "a",
                                                                   "bc" */
  return text ? tws_fingerprint_bytes(hash, text, strlen(text) + 1) : tws_fingerprint_integer(hash, -1);
}

#endif
