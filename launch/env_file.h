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

/* Of the home folder, then of the working folder, whose lines are the stronger ones; DS_ENV_FILE is another name for
 * them, or a path. Blank lines and those that begin with '#' are skipped, blanks around names and values too.
 * TWS_INVALID with file and line: no name. All is in the arena. */
tws_code tws_env_file_read(tws_arena *arena, tws_env_file *out, tws_error *err);
/* The value that the files give to the variable whose first `length` letters these are; NULL: none. */
const char *tws_env_file_find(const tws_env_file *file, const char *name, size_t length);

#endif
