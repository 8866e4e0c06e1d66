/* Hostfiles ("worker-0 slots=4") and the include and exclude filters of DeepSpeed's launcher: which hosts and devices
 * a job uses. Differs from it where its documentation does: a bare host in --include means all of its slots. */
#ifndef TWS_CLI_HOSTFILE_H
#define TWS_CLI_HOSTFILE_H

#include "base/memory.h"
#include "base/status.h"

enum { TWS_MAX_SLOTS = 256 };
typedef struct tws_host {
  const char *name;
  int count;                 /* devices used */
  short slot[TWS_MAX_SLOTS]; /* their numbers, ascending */
} tws_host;

typedef struct tws_hosts {
  tws_host *host; /* in the arena */
  int count;
} tws_hosts;

/* Lines that are blank or start with '#' are skipped; TWS_INVALID with file and line otherwise. */
tws_code tws_hostfile_parse(const char *text, const char *name, tws_arena *arena, tws_hosts *out, tws_error *err);
/* `include` or `exclude` ("host", "host:0,2", several joined by '@'; NULL or "": none) applied in place; order stays
 * the hostfile's, hosts left without devices are dropped. TWS_INVALID for both at once, unknown hosts or slots. */
tws_code tws_hosts_filter(tws_hosts *hosts, const char *include, const char *exclude, tws_error *err);
int tws_hosts_ranks(const tws_hosts *hosts);

#endif
