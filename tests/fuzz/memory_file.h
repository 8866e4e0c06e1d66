/* An input as a file, for readers that take paths. */
#ifndef TWS_FUZZ_MEMORY_FILE_H
#define TWS_FUZZ_MEMORY_FILE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* The path is good until the descriptor that is returned is closed. */
static inline int memory_file(const uint8_t *data, size_t size, char path[32]) {
  const int fd = memfd_create("fuzz", 0);
  if (fd < 0 || (size && write(fd, data, size) != (ssize_t)size)) abort();
  snprintf(path, 32, "/proc/self/fd/%d", fd);
  return fd;
}

#endif
