/* Zip archives whose entries are stored as they are, as torch.save writes them: what is in one, and where its bytes
 * lie. Format: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT (4.3), zip64 included. */
#ifndef TWS_BASE_ARCHIVE_H
#define TWS_BASE_ARCHIVE_H

#include <stddef.h>
#include <stdint.h>
#include "base/memory.h"
#include "base/status.h"

typedef struct tws_archive_entry {
  const char *name;
  uint64_t begin, bytes; /* of the file */
  uint32_t crc32;        /* that was written down */
} tws_archive_entry;

typedef struct tws_archive {
  tws_arena *arena;
  const char *path;
  tws_archive_entry *entries; /* by name; names are unique */
  uint32_t count;
  int fd;
} tws_archive;

/* 1: it begins as an archive does. */
int tws_archive_is(const char *path);
/* Only the list is read. TWS_INVALID: not an archive, cut short, or entries that do not lie in it; TWS_UNSUPPORTED:
 * compressed, encrypted or split. TWS_IO. */
tws_code tws_archive_open(const char *path, tws_archive **out, tws_error *err);
void tws_archive_close(tws_archive *archive);                                            /* NULL is allowed */
const tws_archive_entry *tws_archive_find(const tws_archive *archive, const char *name); /* NULL: none */
/* `count` bytes behind byte `at` of the file, all of them. TWS_IO. */
tws_code tws_archive_read(const tws_archive *archive, uint64_t at, void *to, size_t count, tws_error *err);
/* Reads the entry and compares its checksum. TWS_INVALID: damaged. */
tws_code tws_archive_verify(const tws_archive *archive, const tws_archive_entry *entry, tws_error *err);

#endif
