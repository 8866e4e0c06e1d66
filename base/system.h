/* Properties of this machine's processors and of this process; memory is in base/host_memory.h. */
#ifndef TWS_BASE_SYSTEM_H
#define TWS_BASE_SYSTEM_H

#include <signal.h>
#include <stddef.h>

typedef struct tws_system {
  int cores_online;
  double cores_usable; /* bounded by the affinity mask and the cgroup's CPU quota */
  char processor[128]; /* model name */
} tws_system;

void tws_system_read(tws_system *system);
/* Limit of the control group on processes and threads. Returns 0 if there is none, or none is known. */
int tws_system_most_processes(double *most);
/* Number of NVIDIA GPUs that the driver's own library reports; *cuda_version is the driver's CUDA version (13000:
 * 13.0; may be NULL). */
int tws_system_gpus(int *cuda_version);
/* Block all signals around calls that may start threads (loading a library or a driver), so that those threads
 * inherit the blocked mask. A thread that received SIGCHLD, for which there is no handler, would discard it, and the
 * thread that reads it from a signalfd would not see it. */
void tws_hold_signals(sigset_t *before);
void tws_release_signals(const sigset_t *before);
/* Path of the running program. */
const char *tws_program_path(char *buffer, int size);

#endif
