/* Quantities with units: GiB is 2^30 bytes, GB is 10^9 bytes. */
#ifndef TWS_BASE_UNITS_H
#define TWS_BASE_UNITS_H

#include <stdint.h>
#include "base/status.h"

#define TWS_KIB 1024.0
#define TWS_MIB 1048576.0
#define TWS_GIB 1073741824.0

/* Format a quantity as readable text in the caller's buffer, and return the buffer: "1.23 GiB", "12.4 ms", "3.21
 * TFLOP/s", "1.5 B". */
const char *tws_format_bytes(double bytes, char *buffer, int size);
const char *tws_format_seconds(double seconds, char *buffer, int size);
const char *tws_format_rate(double per_second, const char *unit, char *buffer, int size);
const char *tws_format_count(double count, char *buffer, int size); /* such as 124.4 M, 1.56 B */
const char *tws_format_integer(int64_t value, char *buffer, int size); /* such as 3,386,880 */

/* Converts "40GiB", "40 GB", "512", "5e8" or "2851e6" to bytes or a plain number. Fails with TWS_USAGE, naming `what`,
 * for negative, overflowing or nan values and for trailing characters. */
tws_code tws_parse_bytes(const char *text, const char *what, double *bytes, tws_error *err);
tws_code tws_parse_number(const char *text, const char *what, double low, double high, double *value, tws_error *err);
tws_code tws_parse_integer(const char *text, const char *what, int64_t low, int64_t high, int64_t *value,
                           tws_error *err);
/* Parses a list such as "1,2,4" of distinct integers between low and high; fails with TWS_USAGE, naming `what`. */
tws_code tws_parse_list(const char *text, const char *what, int64_t low, int64_t high, int64_t *values, int capacity,
                        int *count, tws_error *err);
/* Returns the greatest common divisor of a and b; that of a and 0 is a. */
int64_t tws_common_divisor(int64_t a, int64_t b);

#endif
