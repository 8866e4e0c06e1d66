/* Units are always explicit: GiB is 2^30 bytes, GB is 10^9 bytes. */
#ifndef TWS_BASE_UNITS_H
#define TWS_BASE_UNITS_H

#include <stdint.h>
#include "base/status.h"

#define TWS_KIB 1024.0
#define TWS_MIB 1048576.0
#define TWS_GIB 1073741824.0

/* Format for people, into the caller's buffer (returned): "1.23 GiB", "12.4 ms", "3.21 TFLOP/s", "1.5 B". */
const char *tws_format_bytes(double bytes, char *buffer, int size);
const char *tws_format_seconds(double seconds, char *buffer, int size);
const char *tws_format_rate(double per_second, const char *unit, char *buffer, int size);
const char *tws_format_count(double count, char *buffer, int size); /* 124.4 M, 1.56 B */
const char *tws_format_integer(int64_t value, char *buffer, int size); /* 3,386,880 */

/* "40GiB", "40 GB", "512", "5e8", "2851e6" -> bytes or a plain number. Negative, overflowing, nan or trailing
 * garbage: TWS_USAGE, naming `what`. */
tws_code tws_parse_bytes(const char *text, const char *what, double *bytes, tws_error *err);
tws_code tws_parse_number(const char *text, const char *what, double low, double high, double *value, tws_error *err);
tws_code tws_parse_integer(const char *text, const char *what, int64_t low, int64_t high, int64_t *value,
                           tws_error *err);
/* "1,2,4": integers between low and high, without repetition. TWS_USAGE names `what`. */
tws_code tws_parse_list(const char *text, const char *what, int64_t low, int64_t high, int64_t *values, int capacity,
                        int *count, tws_error *err);
/* Greatest common divisor; that of a and 0 is a. */
int64_t tws_common_divisor(int64_t a, int64_t b);

#endif
