/* Memory of this machine as this process may use it: the kernel's figures, bounded by the memory control groups
 * (versions 1 and 2) the process is in, as containers and batch systems set them. */
#ifndef TWS_BASE_HOST_MEMORY_H
#define TWS_BASE_HOST_MEMORY_H

#include <stdint.h>

#include "base/status.h"

typedef struct tws_host_memory {
  uint64_t total_bytes;     /* installed, or the group's limit if that is less */
  uint64_t available_bytes; /* can still be taken without swapping or meeting the limit */
  int limited;              /* 1: a control group sets the limit */
} tws_host_memory;

/* Zeros when the kernel tells nothing. */
tws_host_memory tws_host_memory_read(void);
tws_host_memory tws_host_memory_read_under(const char *root); /* <root>/proc and <root>/sys instead, for tests */
/* Libraries in C++ (kernels, the simulator) end the process where they get no memory: TWS_ENVIRONMENT while a limit of
 * the address space (ulimit -v) leaves less than they need. */
tws_code tws_host_check_limit(tws_error *err);
uint64_t tws_peak_rss_bytes(void); /* of this process, 0 when unknown; shared mappings that were touched count */

#endif
