/* Child programs: found on PATH, started with an argument vector, never through a shell. A program's output is read
 * to its end and kept within bounds, and a program that exceeds its time limit is killed. */
#ifndef TWS_BASE_PROCESS_H
#define TWS_BASE_PROCESS_H

#include "base/memory.h"
#include "base/status.h"

/* Path of an executable file: `name` itself where it has a '/', else the first on PATH. NULL: there is none. */
const char *tws_process_find(const char *name, char *path, size_t size);

enum { TWS_PROCESS_FILES = 4 };
typedef struct tws_process {
  const char *const *arguments; /* ends with NULL; the first one is a path, or a name to be found on PATH */
  double limit_s;               /* > 0; after it the program and what it started are killed */
  size_t most_bytes;            /* of standard output that are kept; 0: 64 KiB */
  int with_errors;              /* 1: standard error is read as a part of standard output */
  int files[TWS_PROCESS_FILES]; /* become its descriptors 3, 4, ... */
  int file_count;
} tws_process;

typedef struct tws_process_end {
  int status; /* exit status; 128 + signal */
  int timed_out;
  int cut;          /* the output exceeded most_bytes and is truncated */
  tws_text output;  /* standard output; the caller frees it */
  char errors[512]; /* the last characters of standard error, line ends as blanks */
} tws_process_end;

/* Runs a program to its end. Its standard input is empty; it is killed when this process ends. TWS_ENVIRONMENT: it
 * cannot be started (`end` is empty then). A non-zero exit status and an exceeded time limit are no errors here:
 * `end` reports them. */
tws_code tws_process_run(const tws_process *program, tws_process_end *end, tws_error *err);

/* Appends a word, quoted for a shell where it has other characters than those of names, so that the shell reads the
 * same word: for commands that a person copies, and for those that are sent to the shell of another machine. */
void tws_process_quote(tws_text *out, const char *word);

/* Runs a program as tws_process_run() does and returns 1 with the first line of its output, without the line end; 0:
 * it failed or printed nothing. */
int tws_process_line(const tws_process *program, char *line, size_t size);

#endif
