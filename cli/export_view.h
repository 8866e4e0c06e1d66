/* --export FORMAT FILE: writes a job as a configuration of other software, and prints the command that launches it. */
#ifndef TWS_CLI_EXPORT_VIEW_H
#define TWS_CLI_EXPORT_VIEW_H

#include "cli/cli.h"
#include "job/export.h"

#define TWS_EXPORT_OPTION(type)                      \
  TWS_STRING("export", 0, "FORMAT", type, export_as, \
             "with FILE: write the job for " TWS_EXPORT_WORDS ", and FILE.sbatch for Slurm")

/* Checks the option and its file before the work starts. argc, argv: positional arguments of the subcommand. *path is
 * NULL if the option is not given. Fails with TWS_USAGE for a file without a format or the reverse, or if the file
 * exists. */
tws_code tws_export_file(const char *format, int argc, char **argv, int force, const char **path, tws_error *err);
/* Writes the configuration and its launch script, and prints their names and how the job is launched. */
tws_code tws_export_write(const tws_cli *cli, const tws_job *job, const char *format, const char *path, tws_error *err);

#endif
