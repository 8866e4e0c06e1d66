/* CRC-64/XZ: polynomial ECMA-182, reflected, all ones before and after; what `xz` writes into its files, by its
 * library. "123456789" has 995dc9bbdf1939fa. It finds every error of up to 64 neighbouring bits, and any other but for
 * one in 2^64. Several calls continue one checksum: start with 0. */
#ifndef TWS_BASE_CHECKSUM_H
#define TWS_BASE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

uint64_t tws_checksum(uint64_t checksum, const void *bytes, size_t count);

#endif
