#include "base/memory.h"

#include <cjson/cJSON.h>
#include <stdint.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *resize_default(void *user, void *pointer, size_t bytes) {
  (void)user;
  if (bytes) return realloc(pointer, bytes);
  free(pointer);
  return NULL;
}

static tws_allocator current = {resize_default, NULL};

static void *cjson_malloc(size_t bytes) {
  return current.resize(current.user, NULL, bytes ? bytes : 1);
}

void tws_set_allocator(const tws_allocator *allocator) {
  static const tws_allocator standard = {resize_default, NULL};
  current = allocator ? *allocator : standard;
  cJSON_Hooks hooks = {cjson_malloc, tws_free};
  cJSON_InitHooks(allocator ? &hooks : NULL);
}

void *tws_realloc(void *pointer, size_t count, size_t bytes) {
  size_t total;
  if (__builtin_mul_overflow(count, bytes, &total)) return NULL;
  return current.resize(current.user, pointer, total ? total : 1);
}

void tws_keep_freed_memory(void) {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 32 << 20); /* 32 MiB is the highest threshold that mallopt() accepts */
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
#endif
}

void *tws_calloc(size_t count, size_t bytes) {
  size_t total;
  if (__builtin_mul_overflow(count, bytes, &total)) return NULL;
  if (!total) total = 1;
  if (current.resize == resize_default) return calloc(1, total); /* fresh pages need no clearing */
  void *pointer = current.resize(current.user, NULL, total);
  if (pointer) memset(pointer, 0, total);
  return pointer;
}

void tws_free(void *pointer) {
  if (pointer) current.resize(current.user, pointer, 0);
}

/* ---- arena ---- */

enum { ALIGNMENT = 16, FIRST_CHUNK = 4096, LARGEST_CHUNK = 1 << 20 };

typedef struct chunk {
  struct chunk *next;
  size_t size, used; /* capacity and used bytes, of the bytes that follow this header */
} chunk;

#define HEADER ((sizeof(chunk) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT)

struct tws_arena {
  chunk *head; /* the chunk from which memory is allocated at present */
  size_t next_size, handed_out;
};

tws_arena *tws_arena_create(void) {
  tws_arena *arena = tws_calloc(1, sizeof *arena);
  if (arena) arena->next_size = FIRST_CHUNK;
  return arena;
}

void tws_arena_destroy(tws_arena *arena) {
  if (!arena) return;
  for (chunk *c = arena->head; c;) {
    chunk *next = c->next;
    tws_free(c);
    c = next;
  }
  tws_free(arena);
}

static void *carve_from(chunk *c, size_t bytes) {
  void *result = (char *)c + HEADER + c->used;
  c->used += bytes;
  return result;
}

/* Allocates from the arena. Chunks are zeroed when they are created, except chunks that are created for a single
 * allocation with unset = 1. */
static void *allocate(tws_arena *arena, size_t count, size_t bytes, int unset) {
  size_t total;
  if (!arena || __builtin_mul_overflow(count, bytes, &total) || total > SIZE_MAX / 4) return NULL;
  total = (total + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  if (!total) total = ALIGNMENT;
  if (!arena->head || arena->head->size - arena->head->used < total) {
    /* 1: the allocation gets its own chunk, and later allocations continue to use the current one */
    int alone = total > arena->next_size / 2;
    size_t size = alone ? total : arena->next_size;
    chunk *fresh = alone && unset ? tws_realloc(NULL, 1, HEADER + size) : tws_calloc(1, HEADER + size);
    if (!fresh) return NULL;
    fresh->size = size;
    fresh->used = 0;
    if (alone && arena->head) {
      fresh->next = arena->head->next;
      arena->head->next = fresh;
      arena->handed_out += total;
      return carve_from(fresh, total);
    }
    fresh->next = arena->head;
    arena->head = fresh;
    if (!alone && arena->next_size < LARGEST_CHUNK) arena->next_size *= 2;
  }
  arena->handed_out += total;
  return carve_from(arena->head, total);
}

void *tws_arena_alloc(tws_arena *arena, size_t count, size_t bytes) {
  return allocate(arena, count, bytes, 0);
}

void *tws_arena_alloc_unset(tws_arena *arena, size_t count, size_t bytes) {
  return allocate(arena, count, bytes, 1);
}

char *tws_arena_strdup(tws_arena *arena, const char *text) {
  size_t length = strlen(text) + 1;
  char *copy = tws_arena_alloc(arena, length, 1);
  return copy ? memcpy(copy, text, length) : NULL;
}

char *tws_arena_printf(tws_arena *arena, const char *format, ...) {
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  int length = vsnprintf(NULL, 0, format, arguments);
  va_end(arguments);
  char *text = length < 0 ? NULL : tws_arena_alloc(arena, (size_t)length + 1, 1);
  if (text) vsnprintf(text, (size_t)length + 1, format, again);
  va_end(again);
  return text;
}

size_t tws_arena_bytes(const tws_arena *arena) {
  return arena ? arena->handed_out : 0;
}

/* ---- growable arrays and text ---- */

int tws_reserve(void *items, size_t *capacity, size_t need, size_t element_bytes) {
  if (need <= *capacity) return 0;
  size_t grown = *capacity > SIZE_MAX / 2 ? need : *capacity * 2;
  if (grown < 8) grown = 8;
  if (grown < need) grown = need;
  void *old;
  memcpy(&old, items, sizeof old);
  void *fresh = tws_realloc(old, grown, element_bytes);
  if (!fresh) return -1;
  memcpy(items, &fresh, sizeof fresh);
  *capacity = grown;
  return 0;
}

static int text_room(tws_text *text, size_t more) {
  if (text->failed) return -1;
  if (more >= SIZE_MAX - text->length || tws_reserve(&text->data, &text->capacity, text->length + more + 1, 1)) {
    text->failed = 1;
    return -1;
  }
  return 0;
}

void tws_text_add_bytes(tws_text *text, const char *bytes, size_t count) {
  if (text_room(text, count)) return;
  if (count) memcpy(text->data + text->length, bytes, count);
  text->length += count;
  text->data[text->length] = 0;
}

void tws_text_add(tws_text *text, const char *format, ...) {
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  int length = vsnprintf(NULL, 0, format, arguments);
  va_end(arguments);
  if (length < 0) text->failed = 1;
  if (length >= 0 && !text_room(text, (size_t)length)) {
    vsnprintf(text->data + text->length, (size_t)length + 1, format, again);
    text->length += (size_t)length;
  }
  va_end(again);
}

void tws_text_free(tws_text *text) {
  tws_free(text->data);
  *text = (tws_text){0};
}
