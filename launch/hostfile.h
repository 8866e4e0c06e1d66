/* Hostfiles ("worker-0 slots=4") and the include and exclude filters of DeepSpeed's launcher (0.19.8): they
 * determine the hosts and devices of a job. Where DeepSpeed's code differs from its documentation, the documentation
 * is followed: a bare host in --include means all of its slots. */
#ifndef TWS_LAUNCH_HOSTFILE_H
#define TWS_LAUNCH_HOSTFILE_H

#include <stdint.h>
#include "base/memory.h"
#include "base/status.h"

enum { TWS_MAX_SLOTS = 256, TWS_MAX_HOSTS = 4096 };
typedef struct tws_host {
  const char *name;
  int count;                 /* number of devices used */
  short slot[TWS_MAX_SLOTS]; /* device numbers, ascending */
} tws_host;

typedef struct tws_hosts {
  tws_host *host; /* in the arena */
  int count;
} tws_hosts;

/* Returns 1 for the name or address of a machine, perhaps with a user, that can be an argument of ssh, mpirun and
 * srun: letters, digits and . _ : @ -, not beginning with '-', 253 characters at most. Names are checked where they
 * are read. */
int tws_is_host_name(const char *name, size_t length);
/* Reads a hostfile; blank lines and those that start with '#' are skipped. TWS_INVALID with file and line for lines
 * that are no host, for bad names, and for more than TWS_MAX_HOSTS hosts. */
tws_code tws_hostfile_parse(const char *text, const char *name, tws_arena *arena, tws_hosts *out, tws_error *err);
/* Parses Slurm's description of an allocation: its hosts ("gpu[01-03,7],login") and the tasks of each ("4(x3),1";
 * NULL: one). */
tws_code tws_nodelist_parse(const char *nodelist, const char *tasks, tws_arena *arena, tws_hosts *out, tws_error *err);
/* Applies `include` or `exclude` ("host", "host:0,2", several joined by '@'; NULL or "": none) in place. The order
 * stays the hostfile's; hosts left without devices are dropped. TWS_INVALID for both at once, unknown hosts or
 * slots. */
tws_code tws_hosts_filter(tws_hosts *hosts, const char *include, const char *exclude, tws_error *err);
int tws_hosts_ranks(const tws_hosts *hosts);
/* Encodes the hosts as DeepSpeed's launcher does: URL-safe base64 of {"worker-0": [0, 1]}, in the arena; NULL: no
 * memory. */
const char *tws_hosts_world_info(const tws_hosts *hosts, tws_arena *arena);
/* Decodes a text of tws_hosts_world_info(). Fails with TWS_USAGE if it is no such text, or has no slot. */
tws_code tws_hosts_read_world_info(const char *text, tws_arena *arena, tws_hosts *out, tws_error *err);

/* Parses a number of nodes: "2" sets *least to 2 and *most to -1; "1:4" sets 1 and 4 and is accepted only if `elastic`
 * (jobs that can continue on fewer nodes). Fails with TWS_USAGE for other texts. */
tws_code tws_nodes_parse(const char *text, int elastic, int64_t *least, int64_t *most, tws_error *err);

/* The options that determine a command's hosts. Without a hostfile: this machine, with that number of ranks, or with
 * the devices that "localhost:0,2" in `include` names. */
typedef struct tws_hosts_request {
  const char *hostfile, *include, *exclude; /* paths and filters of the command line; NULL: not given */
  const char *nodelist, *tasks;             /* Slurm's description of the allocation, used in place of a hostfile:
                                             * "gpu[1-3,7]" and "4(x3),2"; NULL: not given */
  int64_t ranks, num_nodes, num_gpus;       /* numbers on the command line; 0: not given */
  int64_t devices;                          /* number of devices of this machine, for filters without a hostfile; 0:
                                             * unknown */
  int64_t most_nodes;                       /* > 0: the job uses as many of the hosts as exist, at least num_nodes and
                                             * at most this number */
} tws_hosts_request;
/* Determines the hosts of a job. Fails with TWS_USAGE for filters together with numbers, and for filters of other
 * machines without a hostfile; with TWS_INVALID if more hosts or slots are requested than exist. */
tws_code tws_hosts_find(const tws_hosts_request *request, tws_arena *arena, tws_hosts *hosts, tws_error *err);
int64_t tws_devices_here(void);              /* returns the number of NVIDIA devices that the driver lists; 0:
                                              * unknown */
int tws_hosts_local(const tws_hosts *hosts); /* returns 1 if all of the hosts are this machine */
/* Returns the host of a rank, and sets *slot to the index of the rank's slot on it. */
const tws_host *tws_hosts_of_rank(const tws_hosts *hosts, int rank, int *slot);

#endif
