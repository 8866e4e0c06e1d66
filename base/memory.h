/* A replaceable allocator, arenas and growable arrays. The allocator is the only process-wide setting of the library;
 * set it before anything else is called (tests use it to make every allocation fail in turn). Functions that allocate
 * return NULL if memory is exhausted. */
#ifndef TWS_BASE_MEMORY_H
#define TWS_BASE_MEMORY_H

#include <stddef.h>
#include <stdarg.h>

typedef struct tws_allocator {
  void *(*resize)(void *user, void *pointer, size_t bytes); /* has the contract of realloc(); bytes 0 frees */
  void *user;
} tws_allocator;

void tws_set_allocator(const tws_allocator *allocator); /* NULL restores malloc */

/* Makes glibc keep freed memory (up to half a GiB) in the process instead of returning it to the system, because a
 * search builds and frees thousands of plans and would be dominated by page faults. Call it first in main(). */
void tws_keep_freed_memory(void);

void *tws_calloc(size_t count, size_t bytes); /* zeroed; checks count * bytes for overflow */
void *tws_realloc(void *pointer, size_t count, size_t bytes);
void tws_free(void *pointer);

/* An arena allocates zeroed memory, aligned to 16 bytes, all of which is freed when the arena is destroyed. */
typedef struct tws_arena tws_arena;
tws_arena *tws_arena_create(void);
void tws_arena_destroy(tws_arena *arena); /* NULL is allowed */
void *tws_arena_alloc(tws_arena *arena, size_t count, size_t bytes);
void *tws_arena_alloc_unset(tws_arena *arena, size_t count, size_t bytes); /* as tws_arena_alloc(), but not zeroed */
char *tws_arena_strdup(tws_arena *arena, const char *text);
char *tws_arena_printf(tws_arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3)));
size_t tws_arena_bytes(const tws_arena *arena); /* bytes allocated from the arena so far */

/* Makes room for `need` elements in a growable array, whose pointer and capacity in elements are *items and *capacity.
 * Returns 0, or -1 if memory is exhausted (the array is then unchanged). The capacity doubles when it grows. */
int tws_reserve(void *items /* T ** */, size_t *capacity, size_t need, size_t element_bytes);

/* A growable text. If memory is exhausted, its contents stay unchanged, and `failed` is set. */
typedef struct tws_text {
  char *data; /* zero-terminated once text was added; NULL before */
  size_t length, capacity;
  int failed;
} tws_text;
void tws_text_add(tws_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void tws_text_add_bytes(tws_text *text, const char *bytes, size_t count);
void tws_text_free(tws_text *text);

#endif
