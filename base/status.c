#include "base/status.h"

#include <stdio.h>
#include <string.h>

static const struct {
  const char *name, *text;
  int exit_code;
} codes[TWS_CODE_COUNT] = {
#define X(name_, exit_code_, text_) [TWS_##name_] = {#name_, text_, exit_code_},
    TWS_CODES(X)
#undef X
};

static int is_known(tws_code code) {
  return (int)code >= 0 && code < TWS_CODE_COUNT;
}

const char *tws_code_name(tws_code code) {
  return is_known(code) ? codes[code].name : "UNKNOWN";
}
const char *tws_code_text(tws_code code) {
  return is_known(code) ? codes[code].text : "unknown status code";
}
int tws_code_exit(tws_code code) {
  return codes[is_known(code) ? code : TWS_INTERNAL].exit_code;
}

/* Copies as much of the text as fits, without cutting a UTF-8 sequence in half. */
static void copy_text(char *to, size_t size, const char *from) {
  size_t length = strlen(from);
  if (length >= size) {
    length = size - 1;
    while (length > 0 && ((unsigned char)from[length] & 0xc0u) == 0x80u) length--;
  }
  memmove(to, from, length);
  to[length] = 0;
}

tws_code tws_fail(tws_error *err, tws_code code, const char *hint, const char *format, ...) {
  if (!err) return code;
  /* The message is formatted in a separate buffer, because the arguments may point into *err. */
  char message[sizeof err->message + 4];
  va_list arguments;
  va_start(arguments, format);
  if (vsnprintf(message, sizeof message, format, arguments) < 0) message[0] = 0;
  va_end(arguments);
  copy_text(err->hint, sizeof err->hint, hint ? hint : "");
  copy_text(err->message, sizeof err->message, message);
  err->code = code;
  return code;
}

tws_code tws_fail_in(tws_error *err, tws_code code, const char *format, ...) {
  if (!err) return code;
  char message[2 * sizeof err->message];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(message, sizeof err->message, format, arguments);
  va_end(arguments);
  if (length < 0) return err->code;
  size_t used = strlen(message);
  snprintf(message + used, sizeof message - used, ": %s", err->message);
  copy_text(err->message, sizeof err->message, message);
  return err->code;
}
