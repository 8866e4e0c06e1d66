/* The memory of this machine that this process may use: the kernel's figures, bounded by the limits of the process's
 * memory control groups (cgroup versions 1 and 2), which containers and batch systems set. */
#ifndef TWS_BASE_HOST_MEMORY_H
#define TWS_BASE_HOST_MEMORY_H

#include <stdint.h>

#include "base/status.h"

typedef struct tws_host_memory {
  uint64_t total_bytes;     /* memory of the machine, or the control group's limit if that is less */
  uint64_t available_bytes; /* bytes this process can still allocate without swapping or exceeding the limit */
  int limited;              /* 1: a control group's limit is less than the machine's memory */
} tws_host_memory;

/* Returns the memory of this machine. All members are 0 if the kernel reports nothing. */
tws_host_memory tws_host_memory_read(void);
tws_host_memory tws_host_memory_read_under(const char *root); /* reads <root>/proc and <root>/sys; for tests */
/* Fails with TWS_ENVIRONMENT if a limit of the address space (ulimit -v) leaves less than the libraries in C++
 * (kernels, the simulator) need, which abort the process when an allocation fails. */
tws_code tws_host_check_limit(tws_error *err);
uint64_t tws_peak_rss_bytes(void); /* peak resident bytes of this process, touched shared pages included; 0: unknown */

#endif
