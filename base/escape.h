/* Escapes text from outside (names of hosts and files, output of ranks on other machines) before it reaches a
 * terminal. */
#ifndef TWS_BASE_ESCAPE_H
#define TWS_BASE_ESCAPE_H

#include <stddef.h>

#include "base/memory.h"

/* State of a byte stream between calls: the bytes of a UTF-8 character that is still incomplete. All members are 0 at
 * the beginning. */
typedef struct tws_escape {
  unsigned char part[4];
  int have;
  int json; /* 1, set by the caller: the text is JSON, and bytes that are not valid UTF-8 become U+FFFD */
} tws_escape;

/* Appends `count` bytes to `out`. Valid UTF-8 is copied. Control characters, which a terminal could take as commands
 * (U+0000 to U+001F, U+007F to U+009F), become "\x1b" or, from U+007F on, "\u009b", except those in the string `kept`
 * (such as "\n\t"), which are copied. Bytes that are not valid UTF-8 become "\xff". If the bytes of one character are
 * passed in several calls, `state` stores them until the character is complete. */
void tws_escape_add(tws_escape *state, const char *bytes, size_t count, const char *kept, tws_text *out);
/* Appends, escaped, the bytes of a character that is incomplete at the end of the stream. */
void tws_escape_end(tws_escape *state, tws_text *out);
/* Escapes a complete text in one call; `kept` as in tws_escape_add(). */
void tws_escape_text(const char *bytes, size_t count, const char *kept, tws_text *out);
/* Returns 1 if all characters are ASCII and tws_escape_text() would not change any. */
int tws_escape_is_plain(const char *bytes, size_t count, const char *kept);

#endif
