#include "launch/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/number.h"

/* Reads a file of /proc, or its first `size` - 1 bytes, zero-terminated; returns its length. */
static size_t read_proc(pid_t pid, const char *name, char *text, size_t size) {
  char path[64];
  size_t length = 0;
  snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  while (fd >= 0 && length + 1 < size) {
    const ssize_t got = read(fd, text + length, size - 1 - length);
    if (got <= 0) break;
    length += (size_t)got;
  }
  if (fd >= 0) close(fd);
  text[length] = '\0';
  return length;
}

/* Returns the process ID that a name in /proc denotes, or 0. */
static pid_t pid_of(const char *name) {
  int pid;
  return tws_text_int(name, NULL, 1, INT32_MAX, &pid) ? (pid_t)pid : 0;
}

/* Parses /proc/PID/stat, "123 (any name) S 1 ...". ticks: user plus system time, words 14 and 15; may be NULL. */
static char read_stat(pid_t pid, pid_t *parent, unsigned long long *ticks) {
  enum { PARENT = 1, USER = 11, SYSTEM = 12 }; /* positions of these words after the state */
  char text[512];
  int64_t of[SYSTEM + 1] = {0};
  if (read_proc(pid, "stat", text, sizeof text) == 0) return 0;
  const char *end = strrchr(text, ')');
  if (!end || end[1] != ' ' || !end[2] || end[3] != ' ') return 0;
  const char *at = end + 4;
  for (int word = PARENT; word <= SYSTEM; word++, at += *at == ' ')
    if (!tws_text_integer(at, &at, INT64_MIN, INT64_MAX, &of[word])) return 0;
  if (parent) *parent = (pid_t)of[PARENT];
  if (ticks) *ticks = (unsigned long long)(of[USER] + of[SYSTEM]);
  return end[2];
}

char tws_process_state(pid_t pid, pid_t *parent) {
  return read_stat(pid, parent, NULL);
}

int tws_process_is_stopped(char state) {
  return state == 'T' || state == 't';
}

int tws_process_variable(pid_t pid, const char *name, char *value, size_t size) {
  enum { ENVIRONMENT = 1 << 20 };
  const size_t letters = strlen(name);
  char *text = tws_calloc(ENVIRONMENT, 1);
  int found = 0;
  if (!text) return 0;
  const size_t length = read_proc(pid, "environ", text, ENVIRONMENT);
  for (const char *at = text; !found && at < text + length; at += strlen(at) + 1) {
    found = strncmp(at, name, letters) == 0 && at[letters] == '=' && strlen(at + letters + 1) < size;
    if (found) snprintf(value, size, "%s", at + letters + 1);
  }
  tws_free(text);
  return found;
}

typedef struct process {
  pid_t pid, parent;
  unsigned long long ticks;
  int below; /* 1: the process is a descendant of the one that was asked for */
} process;

static int compare_processes(const void *a, const void *b) {
  const pid_t left = ((const process *)a)->pid, right = ((const process *)b)->pid;
  return (left > right) - (left < right);
}

/* Lists all processes with their IDs; returns their number. */
static int list_processes(process *all, int room) {
  DIR *folder = opendir("/proc");
  int count = 0;
  for (const struct dirent *entry; folder && count < room && (entry = readdir(folder)) != NULL;) {
    process *p = &all[count];
    p->pid = pid_of(entry->d_name);
    if (p->pid > 0 && read_stat(p->pid, &p->parent, &p->ticks)) count++;
  }
  if (folder) closedir(folder);
  qsort(all, (size_t)count, sizeof *all, compare_processes);
  return count;
}

static int is_listed(pid_t pid, const pid_t *list, int count) {
  int i = 0;
  while (i < count && list[i] != pid) i++;
  return i < count;
}

unsigned long long tws_process_descendant_ticks(pid_t root, const pid_t *apart, int count) {
  enum { MOST = 8192 };
  process *all = tws_calloc(MOST, sizeof *all);
  const int there = all ? list_processes(all, MOST) : 0;
  unsigned long long sum = 0;
  for (int found = 1; found;) { /* marks one generation of descendants after another */
    found = 0;
    for (int i = 0; i < there; i++) {
      const process key = {.pid = all[i].parent};
      if (all[i].below) continue;
      const process *parent = bsearch(&key, all, (size_t)there, sizeof *all, compare_processes);
      if (all[i].parent != root && !(parent && parent->below)) continue;
      all[i].below = found = 1;
      if (!is_listed(all[i].pid, apart, count)) sum += all[i].ticks;
    }
  }
  tws_free(all);
  return sum;
}

int tws_process_children(pid_t parent, pid_t *children, int room) {
  DIR *folder = opendir("/proc");
  int count = 0;
  for (const struct dirent *entry; folder && count < room && (entry = readdir(folder)) != NULL;) {
    pid_t of = 0;
    const pid_t pid = pid_of(entry->d_name);
    if (pid > 0 && tws_process_state(pid, &of) && of == parent) children[count++] = pid;
  }
  if (folder) closedir(folder);
  return count;
}
