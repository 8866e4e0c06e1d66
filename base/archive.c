#include "base/archive.h"

#include <errno.h>
#include <lzma.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"

enum { LOCAL = 0x04034b50, CENTRAL = 0x02014b50, END = 0x06054b50, END64 = 0x06064b50, LOCATOR64 = 0x07064b50 };
enum { LOCAL_BYTES = 30, CENTRAL_BYTES = 46, END_BYTES = 22, END64_BYTES = 56, LOCATOR64_BYTES = 20 };
enum { MOST_COMMENT = 65535, MOST_LIST = 1 << 28, BLOCK = 1 << 18 };

typedef struct list_place {
  uint64_t begin, bytes, entries;
} list_place;

static uint64_t number(const unsigned char *at, int bytes) {
  uint64_t value = 0;
  for (int i = bytes - 1; i >= 0; i--) value = value << 8 | at[i];
  return value;
}

static tws_code damaged(const char *path, tws_error *err, const char *what) {
  return tws_fail(err, TWS_INVALID, "the file is cut short or damaged", "%s: %s", path, what);
}

static tws_code no_memory(const char *path, tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "%s: out of memory for its list of entries", path);
}

int tws_archive_is(const char *path) {
  unsigned char start[4];
  int fd;
  const int is =
      tws_open_regular(path, &fd, NULL) == TWS_OK && pread(fd, start, 4, 0) == 4 && number(start, 4) == LOCAL;
  if (fd >= 0) close(fd);
  return is;
}

tws_code tws_archive_read(const tws_archive *a, uint64_t at, void *to, size_t count, tws_error *err) {
  for (size_t done = 0; done < count;) {
    const ssize_t n = pread(a->fd, (char *)to + done, count - done, (off_t)(at + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return tws_fail(err, TWS_IO, NULL, "%s: %s", a->path, n < 0 ? strerror(errno) : "it ends too early");
    done += (size_t)n;
  }
  return TWS_OK;
}

/* ---- finding the archive's directory: the zip file's last record points to it; only a comment may follow that record
 * ---- */

static tws_code read_end64(const tws_archive *a, uint64_t end, list_place *list, tws_error *err) {
  unsigned char text[END64_BYTES];
  if (end < LOCATOR64_BYTES) return damaged(a->path, err, "its end record has no valid position");
  TWS_TRY(tws_archive_read(a, end - LOCATOR64_BYTES, text, LOCATOR64_BYTES, err));
  const uint64_t at = number(text + 8, 8);
  if (number(text, 4) != LOCATOR64 || at > end || end - at < END64_BYTES)
    return damaged(a->path, err, "its end record has no valid position");
  TWS_TRY(tws_archive_read(a, at, text, END64_BYTES, err));
  if (number(text, 4) != END64) return damaged(a->path, err, "its end record has no valid position");
  *list = (list_place){.entries = number(text + 32, 8), .bytes = number(text + 40, 8), .begin = number(text + 48, 8)};
  return TWS_OK;
}

static tws_code find_list(const tws_archive *a, uint64_t size, list_place *list, tws_error *err) {
  const uint64_t tail = size < MOST_COMMENT + END_BYTES ? size : MOST_COMMENT + END_BYTES;
  unsigned char *text = tws_calloc((size_t)tail + 1, 1);
  if (!text) return no_memory(a->path, err);
  tws_code code = tws_archive_read(a, size - tail, text, (size_t)tail, err);
  int64_t at = code == TWS_OK ? (int64_t)tail - END_BYTES : -1;
  while (at >= 0 && !(number(text + at, 4) == END && number(text + at + 20, 2) == tail - (uint64_t)at - END_BYTES))
    at--;
  if (code == TWS_OK && at < 0) code = damaged(a->path, err, "it has no list of its entries at its end");
  if (code == TWS_OK) {
    const unsigned char *end = text + at;
    *list = (list_place){.entries = number(end + 10, 2), .bytes = number(end + 12, 4), .begin = number(end + 16, 4)};
    if (number(end + 4, 2) != 0 && number(end + 4, 2) != 0xffff)
      code = tws_fail(err, TWS_UNSUPPORTED, NULL, "%s: an archive in several files", a->path);
    else if (list->entries == 0xffff || list->bytes == 0xffffffff || list->begin == 0xffffffff)
      code = read_end64(a, size - tail + (uint64_t)at, list, err);
  }
  tws_free(text);
  if (code != TWS_OK) return code;
  if (list->bytes > MOST_LIST || list->begin > size || list->bytes > size - list->begin ||
      list->entries > list->bytes / CENTRAL_BYTES)
    return damaged(a->path, err, "its list of entries does not lie in it");
  return TWS_OK;
}

/* ---- entries ---- */

/* Reads the 64-bit values of the zip64 extra field. value[] are the entry's sizes and offset, in the order of the
 * format; the function replaces those whose 32-bit field is all ones. Returns 1, or 0 if the field is damaged. */
static int widen(const unsigned char *extra, size_t bytes, uint64_t *value[3]) {
  for (size_t at = 0; at + 4 <= bytes;) {
    const size_t length = (size_t)number(extra + at + 2, 2);
    const unsigned char *field = extra + at + 4;
    if (length > bytes - at - 4) return 0;
    if (number(extra + at, 2) == 1) {
      size_t used = 0;
      for (int i = 0; i < 3; i++) {
        if (*value[i] != 0xffffffff) continue;
        if (used + 8 > length) return 0;
        *value[i] = number(field + used, 8);
        used += 8;
      }
      return 1;
    }
    at += 4 + length;
  }
  for (int i = 0; i < 3; i++)
    if (*value[i] == 0xffffffff) return 0;
  return 1;
}

/* Finds the offset of the entry's data. The local header, which precedes the data, contains the name again, and its own
 * length, after which the data begin. */
static tws_code find_data(const tws_archive *a, tws_archive_entry *entry, uint64_t header, uint64_t limit,
                          tws_error *err) {
  unsigned char text[LOCAL_BYTES];
  char name[512];
  const size_t length = strlen(entry->name);
  if (header > limit || limit - header < LOCAL_BYTES) return damaged(a->path, err, "an entry does not lie in it");
  TWS_TRY(tws_archive_read(a, header, text, LOCAL_BYTES, err));
  entry->begin = header + LOCAL_BYTES + number(text + 26, 2) + number(text + 28, 2);
  if (number(text, 4) != LOCAL || number(text + 26, 2) != length || entry->begin > limit ||
      entry->bytes > limit - entry->begin)
    return tws_fail(err, TWS_INVALID, "the file is cut short or damaged", "%s: entry \"%s\" does not lie in it",
                    a->path, entry->name);
  TWS_TRY(tws_archive_read(a, header + LOCAL_BYTES, name, length, err));
  return memcmp(name, entry->name, length) == 0
             ? TWS_OK
             : tws_fail(err, TWS_INVALID, "the file is damaged", "%s: entry \"%s\" is another one where it begins",
                        a->path, entry->name);
}

static tws_code read_entry(tws_archive *a, const unsigned char *list, uint64_t left, uint64_t limit, uint64_t *used,
                           tws_error *err) {
  const size_t name = left < CENTRAL_BYTES ? 0 : (size_t)number(list + 28, 2);
  const size_t extra = left < CENTRAL_BYTES ? 0 : (size_t)number(list + 30, 2);
  *used = left < CENTRAL_BYTES ? 0 : CENTRAL_BYTES + name + extra + number(list + 32, 2);
  if (left < CENTRAL_BYTES || *used > left || number(list, 4) != CENTRAL || name == 0 || name > 500 ||
      memchr(list + CENTRAL_BYTES, '\0', name))
    return damaged(a->path, err, "its list of entries is damaged");
  tws_archive_entry *entry = &a->entries[a->count];
  uint64_t packed = number(list + 20, 4), bytes = number(list + 24, 4), header = number(list + 42, 4);
  uint64_t *wide[3] = {&bytes, &packed, &header};
  entry->name = tws_arena_printf(a->arena, "%.*s", (int)name, (const char *)list + CENTRAL_BYTES);
  if (!entry->name) return no_memory(a->path, err);
  if (!widen(list + CENTRAL_BYTES + name, extra, wide)) return damaged(a->path, err, "its list of entries is damaged");
  if (number(list + 10, 2) != 0 || (number(list + 8, 2) & 1) || packed != bytes)
    return tws_fail(err, TWS_UNSUPPORTED, "torch.save writes entries as they are: save it with that",
                    "%s: entry \"%s\" is compressed or encrypted", a->path, entry->name);
  entry->bytes = bytes;
  entry->crc32 = (uint32_t)number(list + 16, 4);
  a->count++;
  return find_data(a, entry, header, limit, err);
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const tws_archive_entry *)a)->name, ((const tws_archive_entry *)b)->name);
}

static tws_code read_list(tws_archive *a, const list_place *place, tws_error *err) {
  unsigned char *list = tws_calloc((size_t)place->bytes + 1, 1);
  a->entries = tws_arena_alloc(a->arena, (size_t)place->entries + 1, sizeof *a->entries);
  tws_code code = list && a->entries ? TWS_OK : no_memory(a->path, err);
  if (code == TWS_OK) code = tws_archive_read(a, place->begin, list, (size_t)place->bytes, err);
  uint64_t at = 0, used = 0;
  for (uint64_t i = 0; i < place->entries && code == TWS_OK; i++, at += used)
    code = read_entry(a, list + at, place->bytes - at, place->begin, &used, err);
  tws_free(list);
  if (code != TWS_OK) return code;
  qsort(a->entries, a->count, sizeof *a->entries, by_name);
  for (uint32_t i = 1; i < a->count; i++)
    if (by_name(&a->entries[i - 1], &a->entries[i]) == 0)
      return tws_fail(err, TWS_INVALID, "the file is damaged", "%s: entry \"%s\" is there twice", a->path,
                      a->entries[i].name);
  return TWS_OK;
}

static tws_code open_archive(tws_archive *a, tws_error *err) {
  struct stat info;
  list_place list = {0};
  TWS_TRY(tws_open_regular(a->path, &a->fd, err));
  if (fstat(a->fd, &info) != 0) return tws_fail(err, TWS_IO, NULL, "%s: %s", a->path, strerror(errno));
  if (!S_ISREG(info.st_mode)) return tws_fail(err, TWS_INVALID, NULL, "%s: not a file", a->path);
  if (info.st_size < END_BYTES) return damaged(a->path, err, "too short for an archive");
  TWS_TRY(find_list(a, (uint64_t)info.st_size, &list, err));
  return read_list(a, &list, err);
}

tws_code tws_archive_open(const char *path, tws_archive **out, tws_error *err) {
  tws_arena *arena = tws_arena_create();
  tws_archive *a = arena ? tws_arena_alloc(arena, 1, sizeof *a) : NULL;
  *out = NULL;
  if (a) a->path = tws_arena_strdup(arena, path);
  if (!a || !a->path) {
    tws_arena_destroy(arena);
    return no_memory(path, err);
  }
  a->arena = arena;
  a->fd = -1;
  const tws_code code = open_archive(a, err);
  if (code == TWS_OK)
    *out = a;
  else
    tws_archive_close(a);
  return code;
}

void tws_archive_close(tws_archive *a) {
  if (!a) return;
  if (a->fd >= 0) close(a->fd);
  tws_arena_destroy(a->arena);
}

const tws_archive_entry *tws_archive_find(const tws_archive *a, const char *name) {
  const tws_archive_entry key = {.name = name};
  return a->count > 0 ? bsearch(&key, a->entries, a->count, sizeof key, by_name) : NULL;
}

tws_code tws_archive_verify(const tws_archive *a, const tws_archive_entry *entry, tws_error *err) {
  unsigned char *block = tws_calloc(BLOCK, 1);
  uint32_t crc = 0;
  tws_code code = block ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "%s: no memory to read it with", a->path);
  for (uint64_t done = 0; done < entry->bytes && code == TWS_OK;) {
    const uint64_t left = entry->bytes - done, n = left < BLOCK ? left : BLOCK;
    code = tws_archive_read(a, entry->begin + done, block, (size_t)n, err);
    crc = lzma_crc32(block, (size_t)n, crc);
    done += n;
  }
  tws_free(block);
  if (code == TWS_OK && crc != entry->crc32)
    code = tws_fail(err, TWS_INVALID, "take another copy; files saved without checksums are not read",
                    "%s: entry \"%s\" is damaged: its CRC-32 is %08x, and %08x was saved", a->path, entry->name, crc,
                    entry->crc32);
  return code;
}
