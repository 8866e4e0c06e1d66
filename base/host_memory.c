#include "base/host_memory.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "base/number.h"

static int to_bytes(const char *text, const char **rest, uint64_t *value) {
  double number; /* a limit of 2^63 or more means "no limit" */
  int64_t whole;
  if (tws_text_integer(text, rest, 0, INT64_MAX, &whole))
    *value = (uint64_t)whole;
  else if (tws_text_number(text, rest, 0, 0x1p64, &number))
    *value = number < 0x1p63 ? (uint64_t)number : (uint64_t)INT64_MAX;
  else
    return 0;
  return 1;
}

static int read_field(const char *path, const char *field, uint64_t *value) {
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  char line[256];
  const char *rest;
  size_t length = strlen(field);
  int found = 0;
  while (!found && fgets(line, sizeof line, file))
    found = strncmp(line, field, length) == 0 && to_bytes(line + length, &rest, value);
  fclose(file);
  return found;
}

/* Reads a file that holds one number; "max" means no limit. Returns 1 if *value is set, else 0. */
static int read_number(const char *folder, const char *name, uint64_t *value) {
  char path[1200];
  int length = snprintf(path, sizeof path, "%s/%s", folder, name);
  if (length < 0 || (size_t)length >= sizeof path) return 0;
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  char text[64];
  const char *rest;
  int found = fgets(text, sizeof text, file) && to_bytes(text, &rest, value);
  fclose(file);
  return found;
}

typedef struct group_files {
  const char *root, *limit, *usage, *inactive;
} group_files;

/* Applies the limits of the process's control group and of all groups above it. The lowest limit bounds the total; the
 * group with the least memory left bounds the available memory, because groups above are shared with other
 * processes. */
static void apply_groups(const char *root, const group_files *files, const char *group, tws_host_memory *memory) {
  char folder[1024], stat[1100];
  const uint64_t installed = memory->total_bytes;
  int top = snprintf(folder, sizeof folder, "%s%s", root, files->root);
  int length = snprintf(folder, sizeof folder, "%s%s%s", root, files->root, group);
  if (top < 0 || length < 0 || (size_t)length >= sizeof folder) return;
  for (;;) {
    uint64_t limit = 0, usage = 0, inactive = 0;
    if (read_number(folder, files->limit, &limit) && limit < installed) {
      if (limit < memory->total_bytes) memory->total_bytes = limit;
      memory->limited = 1;
      snprintf(stat, sizeof stat, "%s/memory.stat", folder);
      read_field(stat, files->inactive, &inactive); /* inactive page cache, which the kernel evicts first */
      uint64_t left = limit;
      if (read_number(folder, files->usage, &usage)) left = usage > limit + inactive ? 0 : limit + inactive - usage;
      if (left > limit) left = limit;
      if (left < memory->available_bytes) memory->available_bytes = left;
    }
    char *slash = strrchr(folder, '/');
    if (!slash || slash - folder < top) return;
    *slash = '\0';
  }
}

/* Returns 1 if "memory" is among the controllers of a cgroup hierarchy, a list separated by commas. */
static int has_memory(const char *controllers) {
  for (size_t length; *controllers; controllers += length + (controllers[length] == ',')) {
    length = strcspn(controllers, ",");
    if (length == 6 && strncmp(controllers, "memory", 6) == 0) return 1;
  }
  return 0;
}

tws_host_memory tws_host_memory_read(void) {
  return tws_host_memory_read_under("");
}

tws_host_memory tws_host_memory_read_under(const char *root) {
  static const group_files v1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                 "total_inactive_file "};
  static const group_files v2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "};
  tws_host_memory memory = {0};
  uint64_t kib = 0;
  char path[1024], line[1024];
  snprintf(path, sizeof path, "%s/proc/meminfo", root);
  if (read_field(path, "MemTotal:", &kib)) memory.total_bytes = kib * 1024;
  if (read_field(path, "MemAvailable:", &kib)) memory.available_bytes = kib * 1024;
  snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
  FILE *file = fopen(path, "r");
  while (file && fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = '\0';
    char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group) continue;
    *group++ = '\0';
    if (strcmp(group, "/") == 0) *group = '\0';
    if (has_memory(controllers + 1)) apply_groups(root, &v1, group, &memory);
    if (controllers[1] == '\0') apply_groups(root, &v2, group, &memory);
  }
  if (file) fclose(file);
  return memory;
}

tws_code tws_host_check_limit(tws_error *err) {
  const size_t room = (size_t)128 << 20; /* bytes; two threads of CPU kernels were measured to need 40 MiB */
  struct rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return TWS_OK;
  void *memory = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory != MAP_FAILED) {
    munmap(memory, room);
    return TWS_OK;
  }
  return tws_fail(
      err, TWS_ENVIRONMENT, "raise the limit (ulimit -v unlimited), or use fewer threads or a smaller job",
      "the limit of the address space, %llu KiB (ulimit -v), leaves less than the %zu MiB that libraries need",
      (unsigned long long)limit.rlim_cur >> 10, room >> 20);
}

uint64_t tws_peak_rss_bytes(void) {
  uint64_t kib = 0;
  return read_field("/proc/self/status", "VmHWM:", &kib) ? kib * 1024 : 0;
}
