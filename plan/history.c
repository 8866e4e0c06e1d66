#include "plan/history.h"

#include <string.h>

#include "base/memory.h"

static void merge(uint32_t *into, const uint32_t *other, uint32_t streams) {
  for (uint32_t k = 0; k < streams; k++) {
    if (other[k] > into[k]) into[k] = other[k];
  }
}

/* First range that ends after `address`. */
static size_t find(const tws_history *history, uint64_t address) {
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

static int insert(tws_history *history, size_t at, tws_history_range range) {
  if (tws_reserve(&history->ranges, &history->capacity, history->count + 1, sizeof range)) return -1;
  memmove(history->ranges + at + 1, history->ranges + at, (history->count - at) * sizeof range);
  history->ranges[at] = range;
  history->count++;
  return 0;
}

int tws_history_take(tws_history *history, uint64_t begin, uint64_t bytes, const uint32_t *touched, uint32_t streams,
                     uint32_t *wait) {
  uint64_t end = begin + bytes;
  size_t first = find(history, begin), last = first;
  memset(wait, 0, streams * sizeof *wait);
  for (; last < history->count && history->ranges[last].begin < end; last++) {
    merge(wait, touched + (size_t)history->ranges[last].buffer * streams, streams);
  }
  if (first == last) return 0;
  tws_history_range left = history->ranges[first], right = history->ranges[last - 1];
  size_t kept = first;
  if (left.begin < begin) {
    history->ranges[kept++].end = begin;
  }
  if (right.end > end) {
    right.begin = end;
    if (kept == last) return insert(history, kept, right); /* one range was cut in two */
    history->ranges[kept++] = right;
  }
  memmove(history->ranges + kept, history->ranges + last, (history->count - last) * sizeof *history->ranges);
  history->count -= last - kept;
  return 0;
}

int tws_history_give(tws_history *history, uint64_t begin, uint64_t bytes, uint32_t buffer) {
  tws_history_range range = {.begin = begin, .end = begin + bytes, .buffer = buffer};
  return insert(history, find(history, begin), range);
}

void tws_history_free(tws_history *history) {
  tws_free(history->ranges);
  memset(history, 0, sizeof *history);
}
