/* CRC-64/XZ: polynomial ECMA-182, reflected, all ones before and after, computed by the library of `xz`. The
 * checksum of "123456789" is 995dc9bbdf1939fa. It detects every error burst of up to 64 bits, and any other error
 * with probability 1 - 2^-64. Several calls continue one checksum: start with 0. */
#ifndef TWS_BASE_CHECKSUM_H
#define TWS_BASE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

uint64_t tws_checksum(uint64_t checksum, const void *bytes, size_t count);

#endif
