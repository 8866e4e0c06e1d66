#include "base/system.h"
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/number.h"

static int read_line(const char *path, char *line, size_t size) {
  FILE *file = fopen(path, "r");
  int got = file && fgets(line, (int)size, file) != NULL;
  if (file) fclose(file);
  return got;
}

/* Reads the value of a line "key: value" of a /proc file, without leading blanks. Returns 1 if there is such a line,
 * else 0. */
static int read_key(const char *path, const char *key, char *value, size_t size) {
  char line[512];
  FILE *file = fopen(path, "r");
  int found = 0;
  while (file && !found && fgets(line, sizeof line, file)) {
    const char *colon = strchr(line, ':');
    if (!colon || strncmp(line, key, strlen(key)) != 0) continue;
    colon += 1 + strspn(colon + 1, " \t");
    snprintf(value, size, "%.*s", (int)strcspn(colon, "\n"), colon);
    found = 1;
  }
  if (file) fclose(file);
  return found;
}

void tws_system_read(tws_system *s) {
  char text[256];
  memset(s, 0, sizeof *s);
  s->cores_online = (int)sysconf(_SC_NPROCESSORS_ONLN);
  s->cores_usable = s->cores_online;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) s->cores_usable = CPU_COUNT(&set);
  double quota, period;
  const char *rest;
  if (read_line("/sys/fs/cgroup/cpu.max", text, sizeof text) && tws_text_number(text, &rest, 0, 1e18, &quota) &&
      tws_text_number(rest, NULL, 1, 1e18, &period) && quota / period < s->cores_usable)
    s->cores_usable = quota / period;
  if (!read_key("/proc/cpuinfo", "model name", s->processor, sizeof s->processor))
    snprintf(s->processor, sizeof s->processor, "unknown processor");
}

int tws_system_most_processes(double *most) {
  static const char *const files[] = {"/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"}; /* cgroup 2; 1 */
  char text[64];
  for (size_t i = 0; i < sizeof files / sizeof *files; i++)
    if (read_line(files[i], text, sizeof text)) return tws_text_number(text, NULL, 0, 1e18, most);
  return 0;
}

void tws_hold_signals(sigset_t *before) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, before);
}

void tws_release_signals(const sigset_t *before) {
  pthread_sigmask(SIG_SETMASK, before, NULL);
}

static int count_gpus(int *cuda_version) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  int (*init)(unsigned) = NULL, (*count)(int *) = NULL, (*version)(int *) = NULL;
  void *address[3] = {NULL};
  if (driver) {
    address[0] = dlsym(driver, "cuInit");
    address[1] = dlsym(driver, "cuDeviceGetCount");
    address[2] = dlsym(driver, "cuDriverGetVersion");
  }
  memcpy(&init, &address[0], sizeof init);
  memcpy(&count, &address[1], sizeof count);
  memcpy(&version, &address[2], sizeof version);
  int gpus = 0;
  if (!init || !count || !version || init(0) != 0 || count(&gpus) != 0) return 0;
  if (cuda_version && version(cuda_version) != 0) *cuda_version = 0;
  return gpus;
}

int tws_system_gpus(int *cuda_version) {
  sigset_t before;
  tws_hold_signals(&before);
  const int gpus = count_gpus(cuda_version);
  tws_release_signals(&before);
  return gpus;
}

const char *tws_program_path(char *buffer, int size) {
  ssize_t length = readlink("/proc/self/exe", buffer, (size_t)size - 1);
  buffer[length > 0 ? length : 0] = '\0';
  return buffer;
}

/* ---- the start of MPI ---- */

static const struct {
  const char *name, *value;
} topology[] = {{"HWLOC_COMPONENTS", "-linux:pci,-linux:io"}, /* phases of the discovery that are left out */
                {"HWLOC_PLUGINS_PATH", "/dev/null"}};         /* no folder: there are no plugins */
enum { TOPOLOGY = sizeof topology / sizeof *topology };

void tws_mpi_skips_devices(void) {
  for (int i = 0; i < TOPOLOGY; i++) setenv(topology[i].name, topology[i].value, 0);
}

void tws_mpi_skipped_devices(void) {
  for (int i = 0; i < TOPOLOGY; i++) {
    const char *value = getenv(topology[i].name);
    if (value && strcmp(value, topology[i].value) == 0) unsetenv(topology[i].name);
  }
}
