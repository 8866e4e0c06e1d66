/* Reads zip archives with stored (uncompressed) entries, as torch.save writes them: lists their entries and the offset
 * of each entry's bytes. Format: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT (4.3), zip64 included. */
#ifndef TWS_BASE_ARCHIVE_H
#define TWS_BASE_ARCHIVE_H

#include <stddef.h>
#include <stdint.h>
#include "base/memory.h"
#include "base/status.h"

typedef struct tws_archive_entry {
  const char *name;
  uint64_t begin, bytes; /* offset in the archive's file of the entry's first byte, and the entry's size in bytes */
  uint32_t crc32;        /* CRC-32 of the entry's bytes as the archive's directory records it */
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
/* Opens an archive and reads its directory, but no entry. Fails with TWS_INVALID if the file is no archive, is
 * truncated, or lists entries beyond its end; TWS_UNSUPPORTED for compressed, encrypted or split archives; TWS_IO if it
 * cannot be read. */
tws_code tws_archive_open(const char *path, tws_archive **out, tws_error *err);
void tws_archive_close(tws_archive *archive); /* NULL is allowed */
/* Returns the entry with that name, or NULL if there is none; the archive owns the entry. */
const tws_archive_entry *tws_archive_find(const tws_archive *archive, const char *name);
/* Reads exactly `count` bytes that start at byte `at` of the archive's file into `to`; fails with TWS_IO if the file
 * has fewer. */
tws_code tws_archive_read(const tws_archive *archive, uint64_t at, void *to, size_t count, tws_error *err);
/* Reads the entry and compares its CRC-32 with the recorded one; fails with TWS_INVALID if they differ. */
tws_code tws_archive_verify(const tws_archive *archive, const tws_archive_entry *entry, tws_error *err);

#endif
