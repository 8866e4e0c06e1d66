/* Lists of integers on the command line. */
#include <string.h>
#include "base/units.h"
#include "cli/calibration.h"

tws_code tws_parse_list(const char *text, const char *what, int64_t low, int64_t high, int64_t *values, int capacity,
                        int *count, tws_error *err) {
  *count = 0;
  for (const char *at = text;; at++) {
    size_t length = strcspn(at, ",");
    char word[64];
    int64_t value;
    if (length >= sizeof word) return tws_fail(err, TWS_USAGE, "for example 1,2,4", "%s: %.40s is no list", what, text);
    memcpy(word, at, length);
    word[length] = '\0';
    TWS_TRY(tws_parse_integer(word, what, low, high, &value, err));
    int known = 0;
    for (int i = 0; i < *count; i++) known |= values[i] == value;
    if (!known && *count == capacity) return tws_fail(err, TWS_USAGE, NULL, "%s: more than %d values", what, capacity);
    if (!known) values[(*count)++] = value;
    at += length;
    if (*at == '\0') return TWS_OK;
  }
}
