/* Conversion of text to numbers, which only this file does. Text that is out of range, not finite, hexadecimal or no
 * number at all is refused, and *value is left unchanged. */
#ifndef TWS_BASE_NUMBER_H
#define TWS_BASE_NUMBER_H

#include <stdint.h>

/* Read a decimal number between low and high at the beginning of `text`, after optional blanks. Where end is NULL
 * only blanks may follow; otherwise *end is set to the text that follows. Return 1 if *value is set, else 0. */
int tws_text_integer(const char *text, const char **end, int64_t low, int64_t high, int64_t *value);
int tws_text_number(const char *text, const char **end, double low, double high, double *value);
/* The same into an int. */
int tws_text_int(const char *text, const char **end, int low, int high, int *value);
/* As tws_text_number() without a range, but *value is infinite where the number is too large, so that messages can
 * say so. */
int tws_text_decimal(const char *text, const char **end, double *value);
/* Reads at most 16 hexadecimal digits, without sign or "0x". */
int tws_text_hex(const char *text, const char **end, uint64_t *value);
/* Converts a double that is integral and between low and high; NaN and infinities are refused. */
int tws_whole_number(double number, int64_t low, int64_t high, int64_t *value);

#endif
