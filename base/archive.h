/* Zip archives with stored (uncompressed) entries, as torch.save writes them: this file lists their entries and the
 * position of each entry's bytes. Format: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT (4.3), zip64
 * included. */
#ifndef TWS_BASE_ARCHIVE_H
#define TWS_BASE_ARCHIVE_H

#include <stddef.h>
#include <stdint.h>
#include "base/memory.h"
#include "base/status.h"

typedef struct tws_archive_entry {
  const char *name;
  uint64_t begin, bytes; /* position of the data in the file, and its size */
  uint32_t crc32;        /* as the archive's directory records it */
} tws_archive_entry;

typedef struct tws_archive {
  tws_arena *arena;
  const char *path;
  tws_archive_entry *entries; /* sorted by name; names are unique */
  uint32_t count;
  int fd;
} tws_archive;

/* Returns 1 if the file starts with the signature of a zip archive. */
int tws_archive_is(const char *path);
/* Reads the directory alone, no entry. TWS_INVALID: the file is no archive, is truncated, or has entries outside of
 * it; TWS_UNSUPPORTED: compressed, encrypted or split archives; TWS_IO. */
tws_code tws_archive_open(const char *path, tws_archive **out, tws_error *err);
void tws_archive_close(tws_archive *archive); /* NULL is allowed */
/* NULL: there is no such entry */
const tws_archive_entry *tws_archive_find(const tws_archive *archive, const char *name);
/* Reads `count` bytes that start at byte `at` of the file; fewer are an error (TWS_IO). */
tws_code tws_archive_read(const tws_archive *archive, uint64_t at, void *to, size_t count, tws_error *err);
/* Reads the entry and compares its checksum. TWS_INVALID: the entry is damaged. */
tws_code tws_archive_verify(const tws_archive *archive, const tws_archive_entry *entry, tws_error *err);

#endif
