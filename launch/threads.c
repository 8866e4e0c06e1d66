/* Cores of this machine, and threads of a rank. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "launch/launch.h"

int tws_launch_cores(void) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
  long online = sysconf(_SC_NPROCESSORS_ONLN);
  return online > 0 ? (int)online : 1;
}

int tws_launch_threads(int64_t configured, int ranks) {
  if (configured > 0) return (int)configured;
  int threads = tws_launch_cores() / (ranks > 0 ? ranks : 1);
  return threads > 0 ? threads : 1;
}

void tws_launch_set_threads(int threads) {
  char text[16];
  snprintf(text, sizeof text, "%d", threads);
  static const char *const names[] = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) setenv(names[i], text, 1);
  setenv("OMP_WAIT_POLICY", "passive", 0);
}
