/* Helpers of the suites of monitors: a working folder, and readers of the files that monitors write, which check that
 * these consist of whole records with right checksums. */
#ifndef TESTS_MONITOR_FILES_H
#define TESTS_MONITOR_FILES_H

#include <check.h>
#include <lzma.h>
#include <unistd.h>

#include "base/archive.h"
#include "base/json.h"
#include "tests/folder.h"
#include "traces/event_record.h"

static tws_error err;
static char start[512]; /* the working folder of the suite */

#define PNG "\x89PNG\r\n\x1a\n"

static inline void begin_in_folder(void) {
  ck_assert_ptr_nonnull(getcwd(start, sizeof start));
  make_folder();
}

static inline void tidy_up(void) {
  ck_assert_int_eq(chdir(start), 0); /* without forks the next test runs in this process */
  remove_folder();
}

static inline char *slurp(const char *path, size_t *length) {
  char *text = NULL;
  size_t bytes;
  ck_assert_msg(tws_read_file(path, 0, &text, length ? length : &bytes, &err) == TWS_OK, "%s", err.message);
  return text;
}

static inline uint64_t little(const unsigned char *at, int bytes) {
  uint64_t value = 0;
  for (int i = bytes; i-- > 0;) value = value << 8 | at[i];
  return value;
}

static inline void check_sum(const unsigned char *bytes, size_t count) {
  const uint32_t crc = tws_crc32c(bytes, count);
  ck_assert_uint_eq(little(bytes + count, 4), (uint32_t)((crc >> 15 | crc << 17) + 0xa282ead8u));
}

/* Checks that a file consists of whole records with right checksums; returns their number. */
static inline int check_records(const char *path) {
  size_t length, at = 0;
  char *text = slurp(path, &length);
  const unsigned char *bytes = (const unsigned char *)text;
  int count = 0;
  for (; at < length; count++) {
    ck_assert_uint_ge(length - at, 16);
    const uint64_t size = little(bytes + at, 8);
    check_sum(bytes + at, 8);
    ck_assert_uint_ge(length - at - 16, size);
    check_sum(bytes + at + 12, size);
    at += 16 + size;
  }
  tws_free(text);
  return count;
}

/* Returns the path of the folder's event file number `number`, the oldest first; NULL: there are fewer. */
static inline const char *event_file(const char *path, int number) {
  static char found[512];
  char pattern[400], command[512];
  snprintf(pattern, sizeof pattern, "%s/events.out.tfevents.*", path);
  snprintf(command, sizeof command, "ls -tr %s 2>/dev/null | sed -n %dp", pattern, number + 1);
  FILE *list = popen(command, "r");
  *found = '\0';
  ck_assert_ptr_nonnull(list);
  if (fgets(found, sizeof found, list)) found[strcspn(found, "\n")] = '\0';
  pclose(list);
  return *found ? found : NULL;
}

/* Checks that a file consists of whole chunks with right checksums, those of liblzma; returns the number of records. */
static inline int check_chunks(const char *path) {
  enum { BLOCK = 32768, HEAD = 7, FULL = 1, LAST = 4 };
  size_t length, at = HEAD;
  char *text = slurp(path, &length);
  const unsigned char *bytes = (const unsigned char *)text;
  int count = 0, inside = 0;
  ck_assert(length > HEAD && memcmp(text, ":W&B\xe1\xbe\0", HEAD) == 0);
  while (at < length) {
    const size_t left = BLOCK - at % BLOCK;
    if (left < HEAD) {
      at += left;
      continue;
    }
    const size_t size = little(bytes + at + 4, 2);
    const int type = bytes[at + 6];
    ck_assert(size + HEAD <= left && at + HEAD + size <= length);
    ck_assert_uint_eq(lzma_crc32(bytes + at + HEAD, size, lzma_crc32(bytes + at + 6, 1, 0)), little(bytes + at, 4));
    ck_assert(inside ? type == 3 || type == LAST : type == FULL || type == 2);
    inside = type == 2 || type == 3;
    count += !inside;
    at += HEAD + size;
  }
  ck_assert(!inside);
  tws_free(text);
  return count;
}

/* Returns the only file in the folder whose name matches a shell pattern. */
static inline const char *found_file(const char *pattern) {
  static char found[512];
  char command[512];
  snprintf(command, sizeof command, "ls %s/%s", folder, pattern);
  FILE *list = popen(command, "r");
  ck_assert(list && fgets(found, sizeof found, list));
  found[strcspn(found, "\n")] = '\0';
  ck_assert(!fgets(command, sizeof command, list));
  pclose(list);
  return found;
}

/* Returns the text of an entry of an archive, whose checksum is compared. */
static inline char *entry_of(const char *path, const char *name) {
  tws_archive *archive;
  ck_assert_msg(tws_archive_open(path, &archive, &err) == TWS_OK, "%s", err.message);
  ck_assert_uint_eq(archive->count, 2);
  const tws_archive_entry *entry = tws_archive_find(archive, name);
  ck_assert_ptr_nonnull(entry);
  ck_assert_msg(tws_archive_verify(archive, entry, &err) == TWS_OK, "%s", err.message);
  char *text = tws_calloc(entry->bytes + 1, 1);
  ck_assert_int_eq(tws_archive_read(archive, entry->begin, text, entry->bytes, &err), TWS_OK);
  tws_archive_close(archive);
  return text;
}

static inline int count_in(const char *text, const char *what) {
  int count = 0;
  for (; (text = strstr(text, what)); text += strlen(what)) count++;
  return count;
}

/* Returns how often the bytes are in a file. */
static inline int count_bytes(const char *path, const char *what, size_t size) {
  size_t length;
  int count = 0;
  char *text = slurp(path, &length);
  for (size_t i = 0; i + size <= length; i++) count += memcmp(text + i, what, size) == 0;
  tws_free(text);
  return count;
}

#endif
