#include "base/units.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/number.h"

/* Formats a value with three significant digits and the largest fitting prefix. */
static const char *scaled(double value, double step, const char *const *prefix, int count, const char *unit,
                          char *buffer, int size) {
  int at = 0;
  double shown = value;
  while (at + 1 < count && fabs(shown) >= step) {
    shown /= step;
    at++;
  }
  int digits = fabs(shown) >= 100 ? 1 : 2;
  if (at == 0 && shown == floor(shown)) digits = 0;
  snprintf(buffer, (size_t)size, "%.*f %s%s", digits, shown, prefix[at], unit);
  size_t length = strlen(buffer);
  if (length && buffer[length - 1] == ' ') buffer[length - 1] = 0;
  return buffer;
}

const char *tws_format_bytes(double bytes, char *buffer, int size) {
  static const char *const prefix[] = {"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"};
  return scaled(bytes, 1024.0, prefix, 7, "B", buffer, size);
}

const char *tws_format_rate(double per_second, const char *unit, char *buffer, int size) {
  static const char *const prefix[] = {"", "k", "M", "G", "T", "P", "E"};
  return scaled(per_second, 1000.0, prefix, 7, unit, buffer, size);
}

const char *tws_format_count(double count, char *buffer, int size) {
  static const char *const prefix[] = {"", "k", "M", "B", "T"};
  return scaled(count, 1000.0, prefix, 5, "", buffer, size);
}

const char *tws_format_integer(int64_t value, char *buffer, int size) {
  char digits[32];
  const int length = snprintf(digits, sizeof digits, "%lld", (long long)value);
  int n = 0;
  for (int i = 0; i < length && n + 2 < size; i++) {
    if (i > 0 && digits[i - 1] != '-' && (length - i) % 3 == 0) buffer[n++] = ',';
    buffer[n++] = digits[i];
  }
  if (size > 0) buffer[n] = 0;
  return buffer;
}

const char *tws_format_seconds(double seconds, char *buffer, int size) {
  static const struct {
    double below, scale;
    const char *unit;
  } steps[] = {{1e-6, 1e9, "ns"}, {1e-3, 1e6, "us"}, {1.0, 1e3, "ms"}, {120.0, 1.0, "s"}};
  double size_of = fabs(seconds);
  if (!isfinite(seconds)) {
    snprintf(buffer, (size_t)size, "%s", isnan(seconds) ? "unknown" : "never");
    return buffer;
  }
  if (seconds == 0) {
    snprintf(buffer, (size_t)size, "0 s");
    return buffer;
  }
  for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
    if (size_of >= steps[i].below) continue;
    double shown = seconds * steps[i].scale;
    snprintf(buffer, (size_t)size, "%.*f %s", fabs(shown) >= 100 ? 0 : fabs(shown) >= 10 ? 1 : 2, shown, steps[i].unit);
    return buffer;
  }
  double minutes = seconds / 60, hours = minutes / 60;
  if (fabs(hours) >= 48)
    snprintf(buffer, (size_t)size, "%.1f days", hours / 24);
  else if (fabs(minutes) >= 120)
    snprintf(buffer, (size_t)size, "%.*f h", fabs(hours) >= 10 ? 1 : 2, hours);
  else
    snprintf(buffer, (size_t)size, "%.*f min", fabs(minutes) >= 10 ? 1 : 2, minutes);
  return buffer;
}

static const char *skip_space(const char *text) {
  while (isspace((unsigned char)*text)) text++;
  return text;
}

tws_code tws_parse_number(const char *text, const char *what, double low, double high, double *value, tws_error *err) {
  const char *end = "";
  double parsed = 0;
  if (!tws_text_decimal(text, &end, &parsed) || *skip_space(end))
    return tws_fail(err, TWS_USAGE, "write a plain number such as 512 or 5e8", "%s: \"%.80s\" is not a number", what,
                    text);
  if (!isfinite(parsed)) return tws_fail(err, TWS_USAGE, NULL, "%s: \"%.80s\" is too large", what, text);
  if (parsed < low || parsed > high)
    return tws_fail(err, TWS_USAGE, NULL, "%s: %.80s is outside %g .. %g", what, text, low, high);
  *value = parsed;
  return TWS_OK;
}

tws_code tws_parse_integer(const char *text, const char *what, int64_t low, int64_t high, int64_t *value,
                           tws_error *err) {
  int64_t whole;
  /* Integers are parsed exactly; a double would round large ones. */
  if (!tws_text_integer(text, NULL, INT64_MIN, INT64_MAX, &whole)) {
    double number;
    TWS_TRY(tws_parse_number(text, what, -HUGE_VAL, HUGE_VAL, &number, err));
    if (number != floor(number))
      return tws_fail(err, TWS_USAGE, "write a whole number", "%s: %.80s is not an integer", what, text);
    if (number < -0x1p63 || number >= 0x1p63)
      return tws_fail(err, TWS_USAGE, NULL, "%s: %.80s does not fit 64 bits", what, text);
    whole = (int64_t)number;
  }
  if (whole < low || whole > high)
    return tws_fail(err, TWS_USAGE, NULL, "%s: %.80s is outside %lld .. %lld", what, text, (long long)low,
                    (long long)high);
  *value = whole;
  return TWS_OK;
}

tws_code tws_parse_bytes(const char *text, const char *what, double *bytes, tws_error *err) {
  static const struct {
    const char *name;
    double bytes;
  } units[] = {{"", 1},      {"B", 1},         {"kB", 1e3},      {"MB", 1e6},      {"GB", 1e9},     {"TB", 1e12},
               {"PB", 1e15}, {"KiB", TWS_KIB}, {"MiB", TWS_MIB}, {"GiB", TWS_GIB}, {"TiB", 0x1p40}, {"PiB", 0x1p50}};
  static const char hint[] = "units are explicit: GiB is 2^30 bytes, GB is 10^9; for example 40GiB, 512MB or 2851e6";
  const char *end = "";
  double number = 0;
  if (!tws_text_decimal(text, &end, &number))
    return tws_fail(err, TWS_USAGE, hint, "%s: \"%.80s\" is not a number of bytes", what, text);
  const char *unit = skip_space(end);
  size_t length = strlen(unit);
  while (length && isspace((unsigned char)unit[length - 1])) length--;
  for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
    if (strlen(units[i].name) != length || strncasecmp(unit, units[i].name, length) != 0) continue;
    double total = number * units[i].bytes;
    if (total < 0) return tws_fail(err, TWS_USAGE, NULL, "%s: %.80s is negative", what, text);
    if (!isfinite(total)) return tws_fail(err, TWS_USAGE, NULL, "%s: \"%.80s\" is too large", what, text);
    *bytes = total;
    return TWS_OK;
  }
  return tws_fail(err, TWS_USAGE, hint, "%s: unknown unit \"%.*s\" in \"%.80s\"", what, length > 40 ? 40 : (int)length,
                  unit, text);
}

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

int64_t tws_common_divisor(int64_t a, int64_t b) {
  while (b) {
    const int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}
