#include "plan/heap.h"

#include <string.h>

#include "base/memory.h"

static void merge(tws_touched *into, const tws_touched *other) {
  for (int s = 0; s < TWS_STREAM_COUNT; s++) {
    if (other->position[s] > into->position[s]) into->position[s] = other->position[s];
  }
}

static void erase(tws_heap *heap, size_t first, size_t count) {
  memmove(heap->blocks + first, heap->blocks + first + count, (heap->count - first - count) * sizeof *heap->blocks);
  heap->count -= count;
}

/* The run of adjacent blocks that fits best: the smallest that is large enough. */
static int best_run(const tws_heap *heap, uint64_t bytes, size_t *first, size_t *last) {
  uint64_t best = UINT64_MAX;
  for (size_t i = 0; i < heap->count;) {
    size_t end = i;
    uint64_t size = heap->blocks[i].bytes;
    while (end + 1 < heap->count &&
           heap->blocks[end].offset + heap->blocks[end].bytes == heap->blocks[end + 1].offset) {
      size += heap->blocks[++end].bytes;
    }
    if (size >= bytes && size < best) {
      best = size;
      *first = i;
      *last = end;
      if (size == bytes) return 1;
    }
    i = end + 1;
  }
  return best != UINT64_MAX;
}

/* Extend the run that ends at the high-water mark, or start there. */
static uint64_t extend(tws_heap *heap, uint64_t bytes, tws_touched *touched) {
  uint64_t offset = heap->end;
  while (heap->count > 0) {
    tws_heap_block *block = &heap->blocks[heap->count - 1];
    if (block->offset + block->bytes != offset) break;
    offset = block->offset;
    merge(touched, &block->touched);
    heap->count--;
  }
  heap->end = offset + bytes;
  return offset;
}

uint64_t tws_heap_take(tws_heap *heap, uint64_t bytes, tws_touched *touched) {
  memset(touched, 0, sizeof *touched);
  size_t first = 0, last = 0;
  if (!best_run(heap, bytes, &first, &last)) return extend(heap, bytes, touched);
  uint64_t offset = heap->blocks[first].offset, left = bytes;
  size_t used = 0;
  for (size_t i = first; left > 0; i++) {
    tws_heap_block *block = &heap->blocks[i];
    merge(touched, &block->touched);
    if (block->bytes > left) {
      block->offset += left;
      block->bytes -= left;
      left = 0;
    } else {
      left -= block->bytes;
      used++;
    }
  }
  erase(heap, first, used);
  return offset;
}

int tws_heap_give(tws_heap *heap, uint64_t offset, uint64_t bytes, const tws_touched *touched) {
  if (tws_reserve(&heap->blocks, &heap->capacity, heap->count + 1, sizeof *heap->blocks)) return -1;
  size_t low = 0, high = heap->count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (heap->blocks[middle].offset < offset) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  memmove(heap->blocks + low + 1, heap->blocks + low, (heap->count - low) * sizeof *heap->blocks);
  heap->blocks[low] = (tws_heap_block){.offset = offset, .bytes = bytes, .touched = *touched};
  heap->count++;
  return 0;
}

void tws_heap_free(tws_heap *heap) {
  tws_free(heap->blocks);
  memset(heap, 0, sizeof *heap);
}
