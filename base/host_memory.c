#include "base/host_memory.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static int read_field(const char *path, const char *field, uint64_t *value) {
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  char line[256];
  size_t length = strlen(field);
  int found = 0;
  while (!found && fgets(line, sizeof line, file))
    found = strncmp(line, field, length) == 0 && sscanf(line + length, "%" SCNu64, value) == 1;
  fclose(file);
  return found;
}

/* One number in a file of its own; "max" means no limit. */
static int read_number(const char *folder, const char *name, uint64_t *value) {
  char path[1200];
  int length = snprintf(path, sizeof path, "%s/%s", folder, name);
  if (length < 0 || (size_t)length >= sizeof path) return 0;
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  int found = fscanf(file, "%" SCNu64, value) == 1;
  fclose(file);
  return found;
}

typedef struct group_files {
  const char *root, *limit, *usage, *inactive;
} group_files;

/* Every group from the process' own up to the root may have a limit; the tightest counts. */
static void apply_groups(const group_files *files, const char *group, tws_host_memory *memory) {
  char folder[1024], stat[1100];
  int length = snprintf(folder, sizeof folder, "%s%s", files->root, group);
  if (length < 0 || (size_t)length >= sizeof folder) return;
  for (;;) {
    uint64_t limit = 0, usage = 0, inactive = 0;
    if (read_number(folder, files->limit, &limit) && limit < memory->total_bytes) {
      memory->total_bytes = limit;
      memory->limited = 1;
      snprintf(stat, sizeof stat, "%s/memory.stat", folder);
      read_field(stat, files->inactive, &inactive); /* page cache that goes first */
      uint64_t left = limit;
      if (read_number(folder, files->usage, &usage)) left = usage > limit + inactive ? 0 : limit + inactive - usage;
      if (left > limit) left = limit;
      if (left < memory->available_bytes) memory->available_bytes = left;
    }
    char *slash = strrchr(folder, '/');
    if (!slash || (size_t)(slash - folder) < strlen(files->root)) return;
    *slash = '\0';
  }
}

tws_host_memory tws_host_memory_read(void) {
  static const group_files v1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                 "total_inactive_file "};
  static const group_files v2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "};
  tws_host_memory memory = {0};
  uint64_t kib = 0;
  if (read_field("/proc/meminfo", "MemTotal:", &kib)) memory.total_bytes = kib * 1024;
  if (read_field("/proc/meminfo", "MemAvailable:", &kib)) memory.available_bytes = kib * 1024;
  FILE *file = fopen("/proc/self/cgroup", "r");
  char line[1024];
  while (file && fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = '\0';
    char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!path) continue;
    *path++ = '\0';
    if (strcmp(path, "/") == 0) *path = '\0';
    if (strcmp(controllers + 1, "memory") == 0) apply_groups(&v1, path, &memory);
    if (controllers[1] == '\0') apply_groups(&v2, path, &memory);
  }
  if (file) fclose(file);
  return memory;
}

uint64_t tws_peak_rss_bytes(void) {
  uint64_t kib = 0;
  return read_field("/proc/self/status", "VmHWM:", &kib) ? kib * 1024 : 0;
}
