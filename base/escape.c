#include "base/escape.h"

#include <string.h>

/* Returns the number of bytes of the UTF-8 character that begins with this byte, or 0 if no character begins with
 * it. */
static int length_of(unsigned char first) {
  return first < 0x80                    ? 1
         : first >= 0xc2 && first < 0xe0 ? 2
         : first >= 0xe0 && first < 0xf0 ? 3
         : first >= 0xf0 && first < 0xf5 ? 4
                                         : 0;
}

/* Returns 1 if `byte` may follow the `have` bytes in `part` as the next byte of a UTF-8 character. Overlong forms,
 * surrogates and code points above U+10FFFF are refused at the second byte. */
static int continues(const unsigned char *part, int have, unsigned char byte) {
  if ((byte & 0xc0) != 0x80) return 0;
  if (have > 1) return 1;
  return !((part[0] == 0xe0 && byte < 0xa0) || (part[0] == 0xed && byte > 0x9f) || (part[0] == 0xf0 && byte < 0x90) ||
           (part[0] == 0xf4 && byte > 0x8f));
}

static void add_stray(const tws_escape *state, unsigned char byte, tws_text *out) {
  if (state->json)
    tws_text_add(out, "\xef\xbf\xbd");
  else
    tws_text_add(out, "\\x%02x", byte);
}

void tws_escape_end(tws_escape *state, tws_text *out) {
  for (int i = 0; i < state->have; i++) add_stray(state, state->part[i], out);
  state->have = 0;
}

static void add_character(const unsigned char *c, int length, const char *kept, tws_text *out) {
  const int c1 = c[0] == 0x7f || (length == 2 && c[0] == 0xc2 && c[1] < 0xa0);
  if (c1)
    tws_text_add(out, "\\u%04x", c[length - 1]);
  else if (c[0] < 0x20 && !(c[0] && strchr(kept, c[0])))
    tws_text_add(out, "\\x%02x", c[0]);
  else
    tws_text_add_bytes(out, (const char *)c, (size_t)length);
}

void tws_escape_add(tws_escape *state, const char *bytes, size_t count, const char *kept, tws_text *out) {
  for (size_t i = 0; i < count; i++) {
    const unsigned char byte = (unsigned char)bytes[i];
    if (state->have && !continues(state->part, state->have, byte)) tws_escape_end(state, out);
    if (!state->have && length_of(byte) == 0) {
      add_stray(state, byte, out);
      continue;
    }
    state->part[state->have++] = byte;
    if (state->have < length_of(state->part[0])) continue;
    add_character(state->part, state->have, kept, out);
    state->have = 0;
  }
}

void tws_escape_text(const char *bytes, size_t count, const char *kept, tws_text *out) {
  tws_escape state = {0};
  tws_escape_add(&state, bytes, count, kept, out);
  tws_escape_end(&state, out);
}

int tws_escape_is_plain(const char *bytes, size_t count, const char *kept) {
  for (size_t i = 0; i < count; i++) {
    const unsigned char c = (unsigned char)bytes[i];
    if (c >= 0x7f || (c < 0x20 && !(c && strchr(kept, c)))) return 0;
  }
  return 1;
}
