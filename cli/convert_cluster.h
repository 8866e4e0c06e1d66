/* Converts descriptions of a cluster by other tools to Twinspeed's files. */
#ifndef TWS_CLI_CONVERT_CLUSTER_H
#define TWS_CLI_CONVERT_CLUSTER_H

#include "cli/cli.h"

/* Converts NCCL's XML or `nvidia-smi topo -m` to a cluster file. profile: NULL to take the profile from the
 * description. */
tws_code tws_convert_topology(tws_cli *cli, const char *from, const char *to, const char *profile, int nodes,
                              tws_error *err);
/* Adds the log `from` of nccl-tests to the hardware profile `profile`, a built-in name or a file, and writes the new
 * profile to `to`. */
tws_code tws_convert_nccl_tests(tws_cli *cli, const char *from, const char *to, const char *profile, tws_error *err);
/* Writes a built-in profile or cluster to a file; "-": to standard output. */
tws_code tws_convert_builtin(tws_cli *cli, int profile, const char *name, const char *to, tws_error *err);

/* Prints the built-in names of a kind, one per line. kind: "clusters", "profiles", "models", "architectures" or
 * "runtimes". */
tws_code tws_convert_list(tws_cli *cli, const char *kind, tws_error *err);

#endif
