/* Computes CRC-64/XZ with the library of `xz`: polynomial ECMA-182, reflected, all ones before and after. The checksum
 * of "123456789" is 995dc9bbdf1939fa. It detects every error burst of up to 64 bits, and any other error with
 * probability 1 - 2^-64. Several calls may continue one checksum; the first one receives 0. */
#ifndef TWS_BASE_CHECKSUM_H
#define TWS_BASE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

uint64_t tws_checksum(uint64_t checksum, const void *bytes, size_t count);

#endif
