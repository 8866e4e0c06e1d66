/* Checks the files that a subcommand will write before its work starts: a run of minutes must not end with "no such
 * folder", replace an earlier result, or overwrite one of its inputs. */
#ifndef TWS_CLI_OUTPUTS_H
#define TWS_CLI_OUTPUTS_H

#include "cli/cli.h"
#include "job/spec.h"

typedef struct tws_output {
  const char *flag; /* the output's option, "--trace", for messages */
  const char *path; /* path of the output; NULL: it is not requested */
  /* NULL: `path` is a file. Otherwise it is a folder, created if it does not exist, for these files (NULL-terminated;
   * an empty list: the subcommand checks for earlier results itself). */
  const char *const *members;
} tws_output;

/* Files that the subcommand reads; paths may be NULL, names of built-in models and clusters, or "-". */
enum { TWS_MAX_INPUTS = 16 };
typedef struct tws_inputs {
  int count;
  const char *path[TWS_MAX_INPUTS];
} tws_inputs;
void tws_inputs_add(tws_inputs *inputs, const char *path);
/* Returns the paths of a job's model, configuration, cluster and profile. */
tws_inputs tws_inputs_of_job(const tws_job_spec *spec);

/* Checks that every output is writable, is not an input and is named once. TWS_USAGE: a file exists and `force` is not
 * given, or two outputs are the same file. TWS_IO: the file system prevents writing. Devices and pipes are always
 * writable. A symbolic link is refused; with `force` the link itself is replaced (base/output_file.h). In a rank
 * nothing is checked, since the parent process has checked already. */
tws_code tws_outputs_check(const tws_output *outputs, int count, const tws_inputs *inputs, int force, tws_error *err);

/* Checks the outputs of a run that continues an earlier one in the same way, but the first `continued` outputs may
 * exist. */
tws_code tws_outputs_check_continued(const tws_output *outputs, int count, int continued, const tws_inputs *inputs,
                                     int force, tws_error *err);

/* Checks the name of a file or folder that the subcommand writes and whose contents it checks itself; path NULL: the
 * option is not given. TWS_USAGE: the name is empty, or "-", by which users mean standard output. */
tws_code tws_outputs_check_name(const char *flag, const char *path, tws_error *err);

/* Checks the folder of --save: its name, and (TWS_USAGE) that it has no checkpoints unless `force` is given or it is
 * the folder `resume`, whose checkpoints the run continues. save, resume: NULL if they are not given. In a rank nothing
 * is checked, as by tws_outputs_check(). */
tws_code tws_outputs_check_save(const char *save, const char *resume, int force, tws_error *err);

#define TWS_FORCE_OPTION(type) TWS_FLAG("force", 0, type, force, "overwrite existing files")

#endif
