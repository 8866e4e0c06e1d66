#include "base/number.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

static const char *skip_blanks(const char *text) {
  while (isspace((unsigned char)*text)) text++;
  return text;
}

/* Returns 1 if the text begins with a decimal number; strtod() would also accept "nan", "inf" and "0x1p3". */
static int is_decimal(const char *text) {
  if (*text == '+' || *text == '-') text++;
  if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) return 0;
  return isdigit((unsigned char)*text) || (*text == '.' && isdigit((unsigned char)text[1]));
}

static int ends_well(const char *stop, const char **end) {
  if (!end) return *skip_blanks(stop) == '\0';
  *end = stop;
  return 1;
}

int tws_text_integer(const char *text, const char **end, int64_t low, int64_t high, int64_t *value) {
  const char *from = skip_blanks(text);
  char *stop;
  if (!isdigit((unsigned char)from[*from == '+' || *from == '-'])) return 0;
  errno = 0;
  const long long parsed = strtoll(from, &stop, 10);
  if (errno || parsed < low || parsed > high || !ends_well(stop, end)) return 0;
  *value = parsed;
  return 1;
}

int tws_text_decimal(const char *text, const char **end, double *value) {
  const char *from = skip_blanks(text);
  char *stop;
  if (!is_decimal(from)) return 0;
  const double parsed = strtod(from, &stop);
  if (!ends_well(stop, end)) return 0;
  *value = parsed;
  return 1;
}

int tws_text_number(const char *text, const char **end, double low, double high, double *value) {
  const char *stop;
  double parsed;
  if (!tws_text_decimal(text, &stop, &parsed) || !isfinite(parsed) || parsed < low || parsed > high) return 0;
  if (!ends_well(stop, end)) return 0;
  *value = parsed;
  return 1;
}

int tws_text_int(const char *text, const char **end, int low, int high, int *value) {
  int64_t wide;
  if (!tws_text_integer(text, end, low, high, &wide)) return 0;
  *value = (int)wide;
  return 1;
}

int tws_text_hex(const char *text, const char **end, uint64_t *value) {
  uint64_t parsed = 0;
  int digits = 0;
  for (; isxdigit((unsigned char)text[digits]); digits++) {
    const int c = tolower((unsigned char)text[digits]);
    if (digits == 16) return 0;
    parsed = parsed << 4 | (uint64_t)(isdigit(c) ? c - '0' : c - 'a' + 10);
  }
  if (!digits || !ends_well(text + digits, end)) return 0;
  *value = parsed;
  return 1;
}

int tws_whole_number(double number, int64_t low, int64_t high, int64_t *value) {
  if (!(number >= -0x1p63 && number < 0x1p63) || number != floor(number)) return 0;
  const int64_t whole = (int64_t)number;
  if (whole < low || whole > high) return 0;
  *value = whole;
  return 1;
}
