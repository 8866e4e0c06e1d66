#include "plan/history.h"

#include <string.h>

#include "base/memory.h"

typedef tws_history_place place;

static uint64_t begin_at(const tws_history *history, place at) {
  return history->leaves[at.leaf]->begin[at.slot];
}

static void move_begin(tws_history *history, place at, uint64_t begin) {
  history->leaves[at.leaf]->begin[at.slot] = begin;
  if (at.slot == 0) history->first[at.leaf] = begin;
}

static uint32_t *buffer_at(const tws_history *history, place at) {
  return &history->leaves[at.leaf]->buffer[at.slot];
}

static place search(const tws_history *history, uint64_t address) {
  size_t low = 0;
  for (size_t n = history->count; n > 1;) {
    const size_t half = n / 2;
    low = history->first[low + half] <= address ? low + half : low;
    n -= half;
  }
  const tws_history_leaf *leaf = history->leaves[low];
  uint32_t first = 0;
  for (uint32_t n = leaf->count; n > 1;) {
    const uint32_t half = n / 2;
    first = leaf->begin[first + half] <= address ? first + half : first;
    n -= half;
  }
  return (place){(uint32_t)low, first};
}

/* Returns the range that contains an address. A cached position (hint) is checked before it is used. */
static place range_of(tws_history *history, uint64_t address) {
  place *hint = &history->hint[(address * 0x9e3779b97f4a7c15u) >> 56];
  if (hint->leaf < history->count && hint->slot < history->leaves[hint->leaf]->count &&
      begin_at(history, *hint) == address)
    return *hint;
  return *hint = search(history, address);
}
_Static_assert(TWS_HISTORY_HINTS == 1 << 8, "eight bits of the hash");

/* Moves *at to the next range. Returns 1, or 0 if there is none. */
static int move_on(const tws_history *history, place *at) {
  if (++at->slot < history->leaves[at->leaf]->count) return 1;
  at->slot = 0;
  return ++at->leaf < history->count;
}

void tws_history_require(tws_history *history, uint64_t begin, uint64_t bytes, const uint32_t *touched,
                         uint32_t streams, uint32_t *needed) {
  if (history->count == 0) return;
  place at = range_of(history, begin);
  do {
    const uint32_t buffer = *buffer_at(history, at);
    if (buffer == TWS_NONE) continue;
    const uint32_t *places = touched + (size_t)buffer * streams;
    for (uint32_t k = 0; k < streams; k++)
      if (places[k] > needed[k]) needed[k] = places[k];
  } while (move_on(history, &at) && begin_at(history, at) < begin + bytes);
}

static int insert_leaf(tws_history *history, size_t at) {
  tws_history_leaf *leaf = NULL;
  if (tws_reserve(&history->leaves, &history->capacity, history->count + 1, sizeof(void *)) ||
      tws_reserve(&history->first, &history->first_capacity, history->count + 1, sizeof *history->first) ||
      !(leaf = tws_realloc(NULL, 1, sizeof *leaf)))
    return -1;
  memmove(history->leaves + at + 1, history->leaves + at, (history->count - at) * sizeof(void *));
  memmove(history->first + at + 1, history->first + at, (history->count - at) * sizeof *history->first);
  leaf->count = 0;
  history->leaves[at] = leaf;
  history->first[at] = 0;
  history->count++;
  return 0;
}

static void move_ranges(tws_history_leaf *to, uint32_t at, const tws_history_leaf *from, uint32_t first,
                        uint32_t count) {
  memmove(to->begin + at, from->begin + first, count * sizeof *to->begin);
  memmove(to->buffer + at, from->buffer + first, count * sizeof *to->buffer);
}

/* Inserts a range after the one at *at, and moves *at to the new one. */
static int insert_behind(tws_history *history, place *at, uint64_t begin, uint32_t buffer) {
  enum { HALF = TWS_HISTORY_LEAF / 2 };
  if (history->leaves[at->leaf]->count == TWS_HISTORY_LEAF) {
    if (insert_leaf(history, at->leaf + 1)) return -1;
    move_ranges(history->leaves[at->leaf + 1], 0, history->leaves[at->leaf], HALF, HALF);
    history->leaves[at->leaf]->count = history->leaves[at->leaf + 1]->count = HALF;
    history->first[at->leaf + 1] = history->leaves[at->leaf + 1]->begin[0];
    if (at->slot >= HALF) *at = (place){at->leaf + 1, at->slot - HALF};
  }
  tws_history_leaf *leaf = history->leaves[at->leaf];
  at->slot++;
  move_ranges(leaf, at->slot + 1, leaf, at->slot, leaf->count - at->slot);
  leaf->begin[at->slot] = begin;
  leaf->buffer[at->slot] = buffer;
  leaf->count++;
  return 0;
}

/* Removes a range, so that the previous range extends to the beginning of the next one. It must not be the first. */
static void remove_range(tws_history *history, place at) {
  tws_history_leaf *leaf = history->leaves[at.leaf];
  leaf->count--;
  move_ranges(leaf, at.slot, leaf, at.slot + 1, leaf->count - at.slot);
  if (at.slot == 0 && leaf->count > 0) history->first[at.leaf] = leaf->begin[0];
  if (leaf->count > 0) return;
  tws_free(leaf);
  history->count--;
  memmove(history->first + at.leaf, history->first + at.leaf + 1, (history->count - at.leaf) * sizeof *history->first);
  memmove(history->leaves + at.leaf, history->leaves + at.leaf + 1, (history->count - at.leaf) * sizeof(void *));
}

int tws_history_record(tws_history *history, uint64_t begin, uint64_t bytes, uint32_t buffer) {
  const uint64_t end = begin + bytes;
  if (history->count == 0) {
    if (insert_leaf(history, 0)) return -1;
    *history->leaves[0] = (tws_history_leaf){.count = 1, .buffer = {TWS_NONE}};
  }
  place at = range_of(history, begin);
  uint32_t before = *buffer_at(history, at); /* the buffer of the range that contains `end`, before this record */
  if (begin_at(history, at) == begin)
    *buffer_at(history, at) = buffer;
  else if (insert_behind(history, &at, begin, buffer))
    return -1;
  for (;;) {
    place next = at;
    const int more = move_on(history, &next);
    if (more && begin_at(history, next) <= end) {
      if (begin_at(history, next) == end) return 0;
      place behind = next;
      if (!move_on(history, &behind) || begin_at(history, behind) > end) {
        move_begin(history, next, end);
        return 0;
      }
      before = *buffer_at(history, next);
      remove_range(history, next);
      continue;
    }
    return insert_behind(history, &at, end, before);
  }
}

void tws_history_free(tws_history *history) {
  for (size_t i = 0; i < history->count; i++) tws_free(history->leaves[i]);
  tws_free(history->leaves);
  tws_free(history->first);
  memset(history, 0, sizeof *history);
}
