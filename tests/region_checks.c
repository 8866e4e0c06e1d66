/* A faster check of memory accesses for the address sanitizer, linked where the host's kernels are. Vectors of the
 * kernels need not be aligned, and Clang lets __asan_loadN() and __asan_storeN() check such accesses: these functions
 * took three fifths of the time of small trainings. The linker's --wrap leads their calls to the functions here. A byte
 * of the sanitizer's shadow memory describes eight bytes, and is 0 if all of them may be accessed. If all shadow bytes
 * of an access are 0, the access is allowed; otherwise the sanitizer's own function decides, and reports. */
#include <stddef.h>
#include <stdint.h>

/* The sanitizer's functions. */
void __asan_get_shadow_mapping(size_t *scale, size_t *offset);
void __real___asan_loadN(uintptr_t at, size_t bytes);
void __real___asan_storeN(uintptr_t at, size_t bytes);
void __wrap___asan_loadN(uintptr_t at, size_t bytes);
void __wrap___asan_storeN(uintptr_t at, size_t bytes);

enum { MOST_BYTES = 64 }; /* of a vector */
#define UNCHECKED __attribute__((no_sanitize("address", "undefined")))

/* Returns 1 if all bytes may be accessed, and 0 if that is not certain. */
UNCHECKED static inline int is_allowed(uintptr_t at, size_t bytes) {
  static size_t scale, offset;
  unsigned char any = 0;
  if (bytes == 0 || bytes > MOST_BYTES) return 0;
  if (!offset) __asan_get_shadow_mapping(&scale, &offset);
  const unsigned char *shadow = (const unsigned char *)((at >> scale) + offset);
  const unsigned char *last = (const unsigned char *)(((at + bytes - 1) >> scale) + offset);
  for (; shadow <= last; shadow++) any |= *shadow;
  return any == 0;
}

UNCHECKED void __wrap___asan_loadN(uintptr_t at, size_t bytes) {
  if (!is_allowed(at, bytes)) __real___asan_loadN(at, bytes);
}

UNCHECKED void __wrap___asan_storeN(uintptr_t at, size_t bytes) {
  if (!is_allowed(at, bytes)) __real___asan_storeN(at, bytes);
}
