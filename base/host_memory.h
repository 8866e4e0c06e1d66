/* Memory of this machine as this process may use it: the kernel's figures, bounded by the limits of the memory
 * control groups (cgroup versions 1 and 2) of the process, as containers and batch systems set them. */
#ifndef TWS_BASE_HOST_MEMORY_H
#define TWS_BASE_HOST_MEMORY_H

#include <stdint.h>

#include "base/status.h"

typedef struct tws_host_memory {
  uint64_t total_bytes;     /* installed, or the group's limit if that is less */
  uint64_t available_bytes; /* can still be allocated without swapping or reaching the limit */
  int limited;              /* 1: a control group sets the limit */
} tws_host_memory;

/* All members are 0 where the kernel reports nothing. */
tws_host_memory tws_host_memory_read(void);
tws_host_memory tws_host_memory_read_under(const char *root); /* <root>/proc and <root>/sys instead, for tests */
/* TWS_ENVIRONMENT if a limit of the address space (ulimit -v) leaves less than the libraries in C++ (kernels, the
 * simulator) need: these abort the process when an allocation fails. */
tws_code tws_host_check_limit(tws_error *err);
uint64_t tws_peak_rss_bytes(void); /* of this process, 0 when unknown; shared mappings that were touched count */

#endif
