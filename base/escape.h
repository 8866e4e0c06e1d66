/* Escapes text from outside (names of hosts and files, output of ranks on other machines) before it reaches a
 * terminal. */
#ifndef TWS_BASE_ESCAPE_H
#define TWS_BASE_ESCAPE_H

#include <stddef.h>

#include "base/memory.h"

/* State of a byte stream: the bytes of an incomplete UTF-8 character. Zero at the beginning. */
typedef struct tws_escape {
  unsigned char part[4];
  int have;
  int json; /* 1, set by the caller: the text is JSON, and bytes that are no UTF-8 become U+FFFD */
} tws_escape;

/* Appends `bytes` to `out`. UTF-8 stays as it is. Control characters, which a terminal could take as commands
 * (U+0000 to U+001F, U+007F to U+009F), become "\x1b" or, from U+007F on, "\u009b", except those in `kept` ("\n\t");
 * bytes that are no UTF-8 become "\xff". A character whose bytes come in several calls is kept in `state` until it
 * is complete. */
void tws_escape_add(tws_escape *state, const char *bytes, size_t count, const char *kept, tws_text *out);
/* Appends the bytes of a character that the stream left incomplete. */
void tws_escape_end(tws_escape *state, tws_text *out);
/* Escapes a whole text in one call. */
void tws_escape_text(const char *bytes, size_t count, const char *kept, tws_text *out);
/* Returns 1 if all characters are ASCII and tws_escape_text() would not change any. */
int tws_escape_is_plain(const char *bytes, size_t count, const char *kept);

#endif
