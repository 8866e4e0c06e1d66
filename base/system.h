/* What the operating system says about this machine's processors and this process; memory is in base/host_memory.h. */
#ifndef TWS_BASE_SYSTEM_H
#define TWS_BASE_SYSTEM_H

#include <signal.h>
#include <stddef.h>

typedef struct tws_system {
  int cores_online;
  double cores_usable; /* affinity and the cgroup's processor quota */
  char processor[128]; /* model name */
} tws_system;

void tws_system_read(tws_system *system);
/* What the control group allows in processes and threads; 0: no limit, or none is known. */
int tws_system_most_processes(double *most);
/* How many NVIDIA GPUs the driver's own library sees, and for which CUDA it is (13000: 13.0; NULL: not asked). */
int tws_system_gpus(int *cuda_version);
/* Around what may start threads of its own, a library that is loaded or a driver: they take no signals then. One that
 * took SIGCHLD, which nobody handles, would lose it for the thread that waits for it in a signalfd. */
void tws_hold_signals(sigset_t *before);
void tws_release_signals(const sigset_t *before);
/* Path of the running program. */
const char *tws_program_path(char *buffer, int size);

#endif
