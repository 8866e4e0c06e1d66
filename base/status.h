/* Status codes, and the error structure that carries them with a message.
 *
 * Every fallible function returns a tws_code and takes a `tws_error *` as its last argument (NULL is allowed: only
 * the code is reported then). The library never prints and never exits. */
#ifndef TWS_BASE_STATUS_H
#define TWS_BASE_STATUS_H

#include <stdarg.h>

/* Columns: name, exit code of the program, text. */
#define TWS_CODES(X)                                                     \
  X(OK, 0, "success")                                                    \
  X(NO, 1, "the answer is no (does not fit, tolerance exceeded)")        \
  X(USAGE, 2, "wrong usage")                                             \
  X(INVALID, 3, "invalid input")                                         \
  X(UNSUPPORTED, 3, "valid input that is not supported")                 \
  X(IO, 4, "file or system error")                                       \
  X(MEMORY, 4, "out of memory")                                          \
  X(ENVIRONMENT, 4, "something the program needs is missing")            \
  X(RANK, 5, "a rank failed")                                            \
  X(INTERNAL, 4, "internal inconsistency, please report it")             \
  X(INTERRUPTED, 130, "interrupted")                                     \
  X(TERMINATED, 143, "asked to end")                                     \
  X(HANG, 124, "no progress before the deadline")

typedef enum tws_code {
#define X(name, exit_code, text) TWS_##name,
  TWS_CODES(X)
#undef X
  TWS_CODE_COUNT
} tws_code;

typedef struct tws_error {
  tws_code code;
  char message[2048]; /* the problem(s), one per line, each with file:line:column and key, or with rank and operation */
  char hint[4096]; /* remedy for the problem; may be empty, or list all known names */
} tws_error;

const char *tws_code_name(tws_code code); /* such as "INVALID" */
const char *tws_code_text(tws_code code);
int tws_code_exit(tws_code code); /* the documented exit status of the program for this code */

/* Fills *err (if not NULL) and returns `code`, so that callers write `return tws_fail(err, TWS_INVALID, "hint", ...)`.
 * `hint` may be NULL. Text that is too long is truncated. */
tws_code tws_fail(tws_error *err, tws_code code, const char *hint, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Prepends "prefix: " to the message of an error that the caller returns to its own caller; returns err->code (or
 * `code` if err is NULL). */
tws_code tws_fail_in(tws_error *err, tws_code code, const char *format, ...) __attribute__((format(printf, 3, 4)));

#define TWS_TRY(expression)                    \
  do {                                         \
    tws_code tws_try_code_ = (expression);     \
    if (tws_try_code_ != TWS_OK) return tws_try_code_; \
  } while (0)

#endif
