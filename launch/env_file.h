/* Environment variables for ranks on other nodes: files ".deepspeed_env" with a line NAME=VALUE each, as DeepSpeed's
 * launcher reads them. */
#ifndef TWS_LAUNCH_ENV_FILE_H
#define TWS_LAUNCH_ENV_FILE_H

#include "base/memory.h"
#include "base/status.h"

typedef struct tws_env_file {
  const char **set; /* "NAME=VALUE"; names are unique */
  int count;
} tws_env_file;

/* Reads the file of the home folder, then that of the working folder, which overrides it; DS_ENV_FILE is another
 * name for both, or a path. Blank lines and those that begin with '#' are skipped, and blanks around names and
 * values removed. TWS_INVALID with file and line: no name. Everything is allocated in the arena. */
tws_code tws_env_file_read(tws_arena *arena, tws_env_file *out, tws_error *err);
/* The value that the files set for the variable whose name is the first `length` characters of `name`; NULL: none. */
const char *tws_env_file_find(const tws_env_file *file, const char *name, size_t length);

#endif
