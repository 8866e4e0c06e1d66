#include "plan/history.h"

#include <string.h>

#include "base/memory.h"

static void merge(uint32_t *into, const uint32_t *other, uint32_t streams) {
  for (uint32_t k = 0; k < streams; k++) {
    if (other[k] > into[k]) into[k] = other[k];
  }
}

/* First range that ends after `address`. */
static size_t first_after(const tws_history *history, uint64_t address) {
  size_t low = 0, high = history->count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (history->ranges[middle].end <= address) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

void tws_history_require(const tws_history *history, uint64_t begin, uint64_t bytes, const uint32_t *touched,
                         uint32_t streams, uint32_t *needed) {
  const uint64_t end = begin + bytes;
  for (size_t i = first_after(history, begin); i < history->count && history->ranges[i].begin < end; i++)
    merge(needed, touched + (size_t)history->ranges[i].buffer * streams, streams);
}

int tws_history_record(tws_history *history, uint64_t begin, uint64_t bytes, uint32_t buffer) {
  const uint64_t end = begin + bytes;
  const size_t first = first_after(history, begin);
  size_t last = first, count = 0;
  tws_history_range fresh[3];
  while (last < history->count && history->ranges[last].begin < end) last++;
  if (last > first && history->ranges[first].begin < begin) {
    fresh[count] = history->ranges[first];
    fresh[count++].end = begin;
  }
  fresh[count++] = (tws_history_range){.begin = begin, .end = end, .buffer = buffer};
  if (last > first && history->ranges[last - 1].end > end) {
    fresh[count] = history->ranges[last - 1];
    fresh[count++].begin = end;
  }
  const size_t all = history->count - (last - first) + count;
  if (tws_reserve(&history->ranges, &history->capacity, all, sizeof *history->ranges)) return -1;
  if (all != history->count && last < history->count)
    memmove(history->ranges + first + count, history->ranges + last, (history->count - last) * sizeof *history->ranges);
  for (size_t i = 0; i < count; i++) history->ranges[first + i] = fresh[i];
  history->count = all;
  return 0;
}

void tws_history_free(tws_history *history) {
  tws_free(history->ranges);
  memset(history, 0, sizeof *history);
}
