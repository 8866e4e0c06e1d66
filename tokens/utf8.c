#include <pthread.h>
#include <string.h>
#include <utf8proc.h>

#include "tokens/internal.h"

int tws_utf8_length(const char *at) {
  const unsigned char lead = (unsigned char)*at;
  return lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

/* Checks each byte by table 3-7 of the Unicode standard. An invalid sequence includes the bytes up to the first that
 * cannot continue it. */
int tws_utf8_read(const char *text, size_t left, int32_t *value, int *bad) {
  const unsigned char *at = (const unsigned char *)text;
  *bad = 1;
  if (at[0] < 0x80) {
    *value = at[0];
    return 1;
  }
  const int length = at[0] < 0xc2 ? 0 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : at[0] < 0xf5 ? 4 : 0;
  if (length == 0) return 0;
  int32_t c = at[0] & (0xff >> (length + 1));
  for (int i = 1; i < length; i++) {
    unsigned char low = 0x80, high = 0xbf;
    if (i == 1 && at[0] == 0xe0) low = 0xa0;
    if (i == 1 && at[0] == 0xed) high = 0x9f;
    if (i == 1 && at[0] == 0xf0) low = 0x90;
    if (i == 1 && at[0] == 0xf4) high = 0x8f;
    if ((size_t)i >= left || at[i] < low || at[i] > high) {
      *bad = i;
      return 0;
    }
    c = c << 6 | (at[i] & 0x3f);
  }
  *value = c;
  return length;
}

size_t tws_utf8_write(int32_t value, char to[4]) {
  return (size_t)utf8proc_encode_char(value, (utf8proc_uint8_t *)to);
}

size_t tws_utf8_check(const char *text, size_t length) {
  int32_t value;
  int bad;
  for (size_t i = 0; i < length;) {
    const int n = tws_utf8_read(text + i, length - i, &value, &bad);
    if (n == 0) return i;
    i += (size_t)n;
  }
  return SIZE_MAX;
}

void tws_utf8_repair(const char *text, size_t length, tws_text *out) {
  int32_t value;
  int bad;
  size_t done = 0;
  for (size_t i = 0; i < length;) {
    const int n = tws_utf8_read(text + i, length - i, &value, &bad);
    i += (size_t)(n ? n : bad);
    if (n) continue;
    tws_text_add_bytes(out, text + done, i - (size_t)bad - done);
    tws_text_add_bytes(out, "\xef\xbf\xbd", 3);
    done = i;
  }
  tws_text_add_bytes(out, text + done, length - done);
}

/* ---- character classes ---- */

int tws_is_space(int32_t c) {
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
         c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

int tws_is_punctuation(int32_t c) {
  if (c < 128) return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126);
  const utf8proc_category_t k = utf8proc_category(c);
  return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

int tws_is_numeric(int32_t c) {
  const utf8proc_category_t k = utf8proc_category(c);
  return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

int tws_is_mark(int32_t c) {
  const utf8proc_category_t k = utf8proc_category(c);
  return k >= UTF8PROC_CATEGORY_MN && k <= UTF8PROC_CATEGORY_ME;
}

/* ---- GPT-2's characters for bytes ---- */

static struct {
  char text[256][4];
  size_t length[256];
  int16_t byte[512];
} bytes;

static void make_bytes(void) {
  int32_t next = 256;
  memset(bytes.byte, -1, sizeof bytes.byte);
  for (int b = 0; b < 256; b++) {
    const int printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    const int32_t c = printable ? b : next++;
    bytes.length[b] = tws_utf8_write(c, bytes.text[b]);
    bytes.byte[c] = (int16_t)b;
  }
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

const char *tws_byte_character(unsigned char byte, size_t *length) {
  pthread_once(&once, make_bytes);
  *length = bytes.length[byte];
  return bytes.text[byte];
}

int tws_character_byte(int32_t c) {
  pthread_once(&once, make_bytes);
  return c >= 0 && c < 512 ? bytes.byte[c] : -1;
}
