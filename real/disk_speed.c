/* Measures a disk with the same code that training uses. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "real/disk.h"

static tws_code time_transfer(tws_disk *disk, int writes, void *memory, uint64_t bytes, double *rate, tws_error *err) {
  const tws_disk_transfer transfer = {.writes = writes, .bytes = bytes, .memory = memory, .what = "a measurement"};
  uint64_t ticket;
  const double start = tws_clock_s();
  TWS_TRY(tws_disk_start(disk, &transfer, &ticket, err));
  TWS_TRY(tws_disk_wait(disk, ticket, err));
  *rate = (double)bytes / (tws_clock_s() - start);
  return TWS_OK;
}

/* The first write only gives the file its blocks. */
tws_code tws_disk_measure(const char *folder, const tws_aio *aio, uint64_t bytes, double *read, double *write,
                          int *direct, tws_error *err) {
  const tws_disk_setup setup = {.folder = folder, .aio = *aio};
  tws_disk *disk = NULL;
  double first;
  bytes = (bytes + TWS_DISK_ALIGNMENT - 1) / TWS_DISK_ALIGNMENT * TWS_DISK_ALIGNMENT;
  char *memory = aligned_alloc(TWS_DISK_ALIGNMENT, bytes);
  if (!memory) return tws_fail(err, TWS_MEMORY, NULL, "no memory to measure a disk with");
  for (uint64_t i = 0; i < bytes; i += 64) memory[i] = (char)(i * 2654435761u >> 24); /* nothing that can be packed */
  tws_code code = tws_disk_create(&setup, "measure", bytes, &disk, err);
  if (code == TWS_OK) code = time_transfer(disk, 1, memory, bytes, &first, err);
  if (code == TWS_OK) code = time_transfer(disk, 1, memory, bytes, write, err);
  if (code == TWS_OK) code = time_transfer(disk, 0, memory, bytes, read, err);
  if (code == TWS_OK) *direct = tws_disk_is_direct(disk);
  tws_disk_destroy(disk);
  free(memory);
  return code;
}
