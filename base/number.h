/* Conversion of text to numbers; no other file of the project converts text to numbers. Text that is out of range, not
 * finite, hexadecimal or no number at all is refused, and *value is left unchanged. */
#ifndef TWS_BASE_NUMBER_H
#define TWS_BASE_NUMBER_H

#include <stdint.h>

/* Read a decimal number between low and high at the beginning of `text`, after optional blanks. If end is NULL, only
 * blanks may follow the number; otherwise *end is set to the text after it. Return 1 if *value is set, else 0. */
int tws_text_integer(const char *text, const char **end, int64_t low, int64_t high, int64_t *value);
int tws_text_number(const char *text, const char **end, double low, double high, double *value);
/* Does what tws_text_integer() does, for a value of type int. */
int tws_text_int(const char *text, const char **end, int low, int high, int *value);
/* Reads a number as tws_text_number() does, but without a range: *value is infinite if the number is too large, so that
 * the caller can report this. */
int tws_text_decimal(const char *text, const char **end, double *value);
/* Reads a number of at most 16 hexadecimal digits, without sign or "0x". Returns 1 if *value is set, else 0. */
int tws_text_hex(const char *text, const char **end, uint64_t *value);
/* Converts a double that is integral and between low and high; refuses NaN and infinities. Returns 1 if *value is set,
 * else 0. */
int tws_whole_number(double number, int64_t low, int64_t high, int64_t *value);

#endif
