/* SHA-256 (FIPS 180-4) of a short text, for decisions that depend on a name and must be the same on every machine. The
 * implementation is not hardened for secrets. */
#ifndef TWS_BASE_SHA256_H
#define TWS_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

void tws_sha256(const void *bytes, size_t count, uint8_t digest[32]);

#endif
