/* Private to base/: the strict scan that runs before cJSON. It checks everything that cJSON does not, replaces comments
 * and trailing commas by blanks (so that every offset remains valid), and records the position of each value. */
#ifndef TWS_BASE_JSON_SCAN_H
#define TWS_BASE_JSON_SCAN_H

#include <stddef.h>
#include <stdint.h>
#include "base/status.h"

enum { TWS_JSON_DEPTH = 128, TWS_JSON_NUMBER_LENGTH = 63 };
#define TWS_JSON_SIZE ((size_t)64 << 20)

typedef struct tws_json_mark {
  int line, column; /* position of the value's key, or of the value if it has no key; both 1-based */
  int is_integer;   /* 1: the literal is an integer that fits 64 bits, and `integer` is set */
  int64_t integer;  /* the literal's exact value, which a double may not be able to represent */
} tws_json_mark;

typedef struct tws_json_marks { /* marks of all values, in document order (a container before its members) */
  tws_json_mark *items;
  size_t count, capacity;
} tws_json_marks;

/* Scans a JSON text, which must be followed by a zero byte: fails with TWS_INVALID if it is no valid JSON, replaces
 * comments and trailing commas in it by blanks, and stores the values' positions in *marks. The caller frees
 * marks->items, also after an error. */
tws_code tws_json_scan(char *text, size_t length, const char *name, tws_json_marks *marks, tws_error *err);

/* Returns JSON's spelling of a Python literal (True, False, None) for messages, or NULL if the text of `length` bytes
 * is no such literal. */
#define TWS_JSON_PYTHON ": it is Python's"
const char *tws_json_of_python(const char *text, size_t length);
/* Returns the length in bytes of an ellipsis ("..." or its single character) at the zero-terminated `text`, or 0 if
 * there is none. */
size_t tws_json_ellipsis(const char *text);
#define TWS_JSON_ELLIPSIS "an ellipsis stands here for what was left out"
#define TWS_JSON_ELLIPSIS_HINT "write what it stands for, or delete it"

#endif
