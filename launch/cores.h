/* Assignment of a node's cores to its ranks (DeepSpeed's --bind_cores_to_rank and --bind_core_list). */
#ifndef TWS_LAUNCH_CORES_H
#define TWS_LAUNCH_CORES_H

#include "base/status.h"

enum { TWS_MAX_CORES = 1024 }; /* of a cpu_set_t */
typedef struct tws_cores {
  short core[TWS_MAX_CORES]; /* ascending */
  int count;
} tws_cores;

/* Parses "0-3,8,10-11", ascending and each core once; NULL: all that this process may use. TWS_USAGE. */
tws_code tws_cores_parse(const char *text, tws_cores *out, tws_error *err);
/* Cores of one of `ranks` ranks of a node: count / ranks consecutive cores of the list; a remainder is unused.
 * TWS_INVALID: there are fewer cores than ranks. */
tws_code tws_cores_of_rank(const tws_cores *all, int rank, int ranks, tws_cores *out, tws_error *err);
/* Binds this process and its future children to these cores. TWS_ENVIRONMENT: the machine does not have them. */
tws_code tws_cores_bind(const tws_cores *cores, tws_error *err);

#endif
