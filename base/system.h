/* Properties of this machine's processors and of this process. Memory is reported by base/host_memory.h. */
#ifndef TWS_BASE_SYSTEM_H
#define TWS_BASE_SYSTEM_H

#include <signal.h>
#include <stddef.h>

typedef struct tws_system {
  int cores_online;
  double cores_usable; /* number of cores that the affinity mask and the cgroup's CPU quota allow */
  char processor[128]; /* model name of the processor */
} tws_system;

void tws_system_read(tws_system *system);
/* Sets *most to the control group's limit on the number of processes and threads. Returns 1, or 0 if no limit is
 * known. */
int tws_system_most_processes(double *most);
/* Returns the number of NVIDIA GPUs that the driver's library (libcuda) reports; *cuda_version is the driver's CUDA
 * version (13000 for 13.0; the pointer may be NULL). */
int tws_system_gpus(int *cuda_version);
/* Blocks all signals and stores the previous mask in *before. Use it around calls that may start threads (loading a
 * library or a driver), so that those threads inherit the blocked mask. Otherwise such a thread could receive SIGCHLD,
 * which has no handler and would be discarded, and the thread that reads signals from a signalfd would miss it. */
void tws_hold_signals(sigset_t *before);
void tws_release_signals(const sigset_t *before);
/* Sets environment variables, unless they are set, that make MPI start faster. mpirun and MPI_Init() of every rank have
 * hwloc read the machine's topology, of which they need cores and NUMA nodes; hwloc also reads the configuration of
 * each PCI device, and loads plugins for displays and OpenCL. Without these, starting four ranks takes two thirds of
 * the CPU time. */
void tws_mpi_skips_devices(void);
/* Removes the variables that tws_mpi_skips_devices() has set: other programs may need the devices. */
void tws_mpi_skipped_devices(void);
/* Returns the path of the running program, written into `buffer`. */
const char *tws_program_path(char *buffer, int size);

#endif
