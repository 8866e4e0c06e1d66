/* Numbers in texts: the one place where a text becomes a number. What is out of range, not finite, hexadecimal or no
 * number at all is refused, and *value is left as it was. */
#ifndef TWS_BASE_NUMBER_H
#define TWS_BASE_NUMBER_H

#include <stdint.h>

/* Decimal, at the beginning of `text` or after blanks, between low and high. Where end is NULL nothing but blanks may
 * follow; otherwise *end is what follows. 1: *value is set; 0. */
int tws_text_integer(const char *text, const char **end, int64_t low, int64_t high, int64_t *value);
int tws_text_number(const char *text, const char **end, double low, double high, double *value);
/* The same into an int. */
int tws_text_int(const char *text, const char **end, int low, int high, int *value);
/* As tws_text_number() of any range, but infinite where it is too large, for messages that say so. */
int tws_text_decimal(const char *text, const char **end, double *value);
/* 16 hexadecimal digits at most, without sign or "0x". */
int tws_text_hex(const char *text, const char **end, uint64_t *value);
/* A number that is whole and between low and high; nan and infinities are not. */
int tws_whole_number(double number, int64_t low, int64_t high, int64_t *value);

#endif
