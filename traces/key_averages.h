/* Sums over the events of a Chrome trace by kind of operation, as the key_averages() of PyTorch's profiler. */
#ifndef TWS_TRACES_KEY_AVERAGES_H
#define TWS_TRACES_KEY_AVERAGES_H

#include <stddef.h>
#include <stdint.h>
#include "base/memory.h"
#include "base/status.h"

typedef struct tws_key_average {
  const char *name;  /* kind of operation: the last word of the events' names, "linear", "all_gather" */
  const char *shape; /* "" unless rows are divided by shape */
  int64_t calls;
  double total_s, least_s, most_s;
  double bytes, flops; /* sums over the events that have these arguments */
} tws_key_average;

typedef struct tws_key_averages {
  tws_arena *arena;
  tws_key_average *rows; /* the longest total first */
  size_t count, capacity;
  double total_s;
} tws_key_averages;

/* Reads the complete events (ph "X") of a trace of all ranks and steps, compressed or not. Fails with TWS_INVALID if
 * the file is no trace or has no such event. The caller frees *out, also after an error. */
tws_code tws_key_averages_read(const char *path, int by_shape, tws_key_averages *out, tws_error *err);
void tws_key_averages_free(tws_key_averages *averages);

#endif
