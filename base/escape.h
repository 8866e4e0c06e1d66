/* Texts from outside on their way to a terminal: names of hosts and files, what ranks of other machines print. */
#ifndef TWS_BASE_ESCAPE_H
#define TWS_BASE_ESCAPE_H

#include <stddef.h>

#include "base/memory.h"

/* What a stream of bytes has left of a character that is not complete yet; zero at the beginning. */
typedef struct tws_escape {
  unsigned char part[4];
  int have;
  int json; /* 1, set by the caller: the text is JSON, and bytes that are no UTF-8 become U+FFFD */
} tws_escape;

/* Appends `bytes` to `out`. UTF-8 stays as it is. Control characters, of which a terminal could take commands (U+0000
 * to U+001F, U+007F to U+009F), become "\x1b" or, from U+007F on, "\u009b", except those in `kept` ("\n\t"); bytes that
 * are no UTF-8 become "\xff". A character whose bytes come in several calls is kept in `state` until it is complete. */
void tws_escape_add(tws_escape *state, const char *bytes, size_t count, const char *kept, tws_text *out);
/* What is left at the end of the stream. */
void tws_escape_end(tws_escape *state, tws_text *out);
/* A whole text. */
void tws_escape_text(const char *bytes, size_t count, const char *kept, tws_text *out);
/* 1: nothing but ASCII that tws_escape_text() would leave as it is. */
int tws_escape_is_plain(const char *bytes, size_t count, const char *kept);

#endif
