/* Private to base/: the strict scan that runs before cJSON. It checks everything that cJSON is lax about, blanks
 * comments and trailing commas in place (so that every offset stays true), and records the position of each value. */
#ifndef TWS_BASE_JSON_SCAN_H
#define TWS_BASE_JSON_SCAN_H

#include <stddef.h>
#include <stdint.h>
#include "base/status.h"

enum { TWS_JSON_DEPTH = 128, TWS_JSON_NUMBER_LENGTH = 63 };
#define TWS_JSON_SIZE ((size_t)64 << 20)

typedef struct tws_json_mark {
  int line, column; /* 1-based; of the key where there is one */
  int is_integer;   /* the literal is an integer that fits 64 bits: */
  int64_t integer;  /* its exact value, which a double may not hold */
} tws_json_mark;

typedef struct tws_json_marks { /* one for each value, in document order (a container before its members) */
  tws_json_mark *items;
  size_t count, capacity;
} tws_json_marks;

/* text is modified and must be followed by a zero byte. The caller frees marks->items, also after an error. */
tws_code tws_json_scan(char *text, size_t length, const char *name, tws_json_marks *marks, tws_error *err);

/* JSON's spelling of a Python literal (True, False, None), for messages; NULL where the text of `length` bytes is
 * none. */
#define TWS_JSON_PYTHON ": it is Python's"
const char *tws_json_of_python(const char *text, size_t length);
/* Length in bytes of an ellipsis ("..." or its single character) at `text`, which is zero-terminated; 0: there is
 * none. */
size_t tws_json_ellipsis(const char *text);
#define TWS_JSON_ELLIPSIS "an ellipsis stands here for what was left out"
#define TWS_JSON_ELLIPSIS_HINT "write what it stands for, or delete it"

#endif
