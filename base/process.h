/* Other programs: found on PATH, started with an argument vector, never through a shell. What one writes is read to its
 * end and kept within bounds, and one that exceeds its time is ended. */
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
  int cut;          /* it wrote more than most_bytes */
  tws_text output;  /* standard output; the caller frees it */
  char errors[512]; /* the last of standard error, line ends as blanks */
} tws_process_end;

/* Runs a program to its end. Its standard input is empty; it is killed when this process ends. TWS_ENVIRONMENT: it does
 * not start (`end` is empty then). An exit status that is not 0 and a time limit are no errors here: see `end`. */
tws_code tws_process_run(const tws_process *program, tws_process_end *end, tws_error *err);

/* Appends a word as a shell reads it: for commands that a person copies, and for those that a shell of another machine
 * gets. Quoted where it has other characters than those of names, so that it is the same word there. */
void tws_process_quote(tws_text *out, const char *word);

/* First line of what a program writes (as tws_process_run()), without its end; 0 when it fails or writes nothing. */
int tws_process_line(const tws_process *program, char *line, size_t size);

#endif
