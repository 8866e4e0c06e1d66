/* Child programs, which are found on PATH and started with an argument vector, never through a shell. All output of a
 * program is read, but only a bounded part is stored, and a program that exceeds its time limit is killed. */
#ifndef TWS_BASE_PROCESS_H
#define TWS_BASE_PROCESS_H

#include "base/memory.h"
#include "base/status.h"

/* Returns the path of an executable file: `name` itself if it has a '/', else the first match on PATH (written into
 * `path`); NULL if there is none. */
const char *tws_process_find(const char *name, char *path, size_t size);

enum { TWS_PROCESS_FILES = 4 };
typedef struct tws_process {
  const char *const *arguments; /* ends with NULL; the first one is a path, or a name that is searched on PATH */
  double limit_s;               /* time limit in seconds, > 0; the program and its child processes are then killed */
  size_t most_bytes;            /* bytes of standard output that are stored at most; 0: 64 KiB */
  int with_errors;              /* 1: standard error goes into `output` too */
  int files[TWS_PROCESS_FILES]; /* descriptors that the program receives as 3, 4, ... */
  int file_count;
} tws_process;

typedef struct tws_process_end {
  int status; /* exit status of the program, or 128 + signal */
  int timed_out;
  int cut;          /* 1: the output exceeded most_bytes and is truncated */
  tws_text output;  /* standard output; the caller frees it */
  char errors[512]; /* the last characters of standard error, with line ends replaced by blanks */
} tws_process_end;

/* Runs a program until it ends. Its standard input is empty; it is killed when this process ends. Fails with
 * TWS_ENVIRONMENT if the program cannot be started (`end` is empty then). A non-zero exit status and an exceeded time
 * limit are no errors of this function: `end` reports them. */
tws_code tws_process_run(const tws_process *program, tws_process_end *end, tws_error *err);

/* Appends a word, quoted for a shell if it contains characters that a shell interprets. Use it for commands that a
 * person copies, or that the shell of another machine executes. */
void tws_process_quote(tws_text *out, const char *word);

/* Runs a program as tws_process_run() does. Returns 1 and the first line of its output, without the line end, or 0 if
 * the program failed or printed nothing. */
int tws_process_line(const tws_process *program, char *line, size_t size);

#endif
