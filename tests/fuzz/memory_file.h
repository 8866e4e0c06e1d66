/* Puts an input of the fuzzer into a file in memory, for readers that take paths. */
#ifndef TWS_FUZZ_MEMORY_FILE_H
#define TWS_FUZZ_MEMORY_FILE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* Writes the data to a file in memory and its path to `path`. Returns the file's descriptor; the path is valid until it
 * is closed. */
static inline int memory_file(const uint8_t *data, size_t size, char path[32]) {
  const int fd = memfd_create("fuzz", 0);
  if (fd < 0 || (size && write(fd, data, size) != (ssize_t)size)) abort();
  snprintf(path, 32, "/proc/self/fd/%d", fd);
  return fd;
}

#endif
