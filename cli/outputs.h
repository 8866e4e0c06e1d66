/* Files that a verb will write, looked at before its work: a run of minutes must not end with "no such folder", take
 * the place of an earlier result, or destroy what it was asked to read. */
#ifndef TWS_CLI_OUTPUTS_H
#define TWS_CLI_OUTPUTS_H

#include "cli/cli.h"
#include "job/spec.h"

typedef struct tws_output {
  const char *flag; /* "--trace": how messages name it */
  const char *path; /* NULL: not asked for */
  /* NULL: a file. Otherwise a folder, made when it is not there, into which these files are written (NULL-terminated;
   * an empty list: the verb looks for results of its own). */
  const char *const *members;
} tws_output;

/* What the verb reads; paths may be NULL, names of built-in things or "-". */
enum { TWS_MAX_INPUTS = 16 };
typedef struct tws_inputs {
  int count;
  const char *path[TWS_MAX_INPUTS];
} tws_inputs;
void tws_inputs_add(tws_inputs *inputs, const char *path);
/* Model, configuration, cluster and profile of a job. */
tws_inputs tws_inputs_of_job(const tws_job_spec *spec);

/* Every output can be written, is no input and is named once; TWS_USAGE where a file is there and `force` is not given
 * or where two names meet, TWS_IO where the file system stands in the way. Devices and pipes are always written to. A
 * symbolic link is refused, and with `force` replaced itself (base/output_file.h).
 * Inside a rank nothing is looked at: the process that started it has. */
tws_code tws_outputs_check(const tws_output *outputs, int count, const tws_inputs *inputs, int force, tws_error *err);

/* The same where a run goes on with the first `continued` of them: these may be there. */
tws_code tws_outputs_check_continued(const tws_output *outputs, int count, int continued, const tws_inputs *inputs,
                                     int force, tws_error *err);

#define TWS_FORCE_OPTION(type) TWS_FLAG("force", 0, type, force, "overwrite existing files")

#endif
