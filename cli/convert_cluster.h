/* What other tools say of a cluster, as files of this program. */
#ifndef TWS_CLI_CONVERT_CLUSTER_H
#define TWS_CLI_CONVERT_CLUSTER_H

#include "cli/cli.h"

/* NCCL's XML or `nvidia-smi topo -m`: a cluster file. profile: NULL for what the description says. */
tws_code tws_convert_topology(tws_cli *cli, const char *from, const char *to, const char *profile, int nodes,
                              tws_error *err);
/* A log of nccl-tests: a profile with its table. */
tws_code tws_convert_nccl_tests(tws_cli *cli, const char *from, const char *to, const char *profile, tws_error *err);
/* A built-in profile, or a cluster, as a file; "-": on standard output. */
tws_code tws_convert_builtin(tws_cli *cli, int profile, const char *name, const char *to, tws_error *err);

/* Names that are built in, one a line: kind is "clusters", "profiles", "models", "architectures" or "runtimes". */
tws_code tws_convert_list(tws_cli *cli, const char *kind, tws_error *err);

#endif
