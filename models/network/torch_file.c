#include "models/network/torch_file.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "models/network/safetensors.h"

static const char pickle_name[] = "data.pkl";

static const tws_archive_entry *entry_of(const tws_torch_file *f, const char *folder, const char *name) {
  char path[512];
  const int length = snprintf(path, sizeof path, "%s%s%s", f->folder, folder, name);
  return length > 0 && (size_t)length < sizeof path ? tws_archive_find(f->archive, path) : NULL;
}

static int begins_with(const char *path, const unsigned char *start, size_t count) {
  unsigned char have[16];
  int fd;
  const int is = tws_open_regular(path, &fd, NULL) == TWS_OK && pread(fd, have, count, 0) == (ssize_t)count &&
                 memcmp(have, start, count) == 0;
  if (fd >= 0) close(fd);
  return is;
}

/* Returns 1 if the file begins with the pickled number that starts the format of PyTorch 1.5 and earlier. */
static int is_old(const char *path) {
  static const unsigned char start[] = {0x80, 2, 0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9};
  return begins_with(path, start, sizeof start);
}

int tws_torch_is(const char *path) {
  return tws_archive_is(path) || is_old(path);
}

static tws_code find_folder(tws_torch_file *f, tws_error *err) {
  const tws_archive *a = f->archive;
  for (uint32_t i = 0; i < a->count && !f->folder; i++) {
    const size_t length = strlen(a->entries[i].name), end = sizeof pickle_name - 1;
    if (length <= end || strcmp(a->entries[i].name + length - end, pickle_name) != 0 ||
        strcspn(a->entries[i].name, "/") != length - end - 1)
      continue;
    f->folder = tws_arena_printf(f->arena, "%.*s", (int)(length - end), a->entries[i].name);
    if (!f->folder) return tws_fail(err, TWS_MEMORY, NULL, "%s: out of memory", a->path);
  }
  if (!f->folder)
    return tws_fail(err, TWS_INVALID, NULL, "%s: an archive without data.pkl, which torch.save writes", a->path);
  if (entry_of(f, "", "constants.pkl"))
    return tws_fail(err, TWS_UNSUPPORTED, "save the model's state_dict()", "%s: a TorchScript model", a->path);
  return TWS_OK;
}

static tws_code check_order(const tws_torch_file *f, tws_error *err) {
  const tws_archive_entry *order = entry_of(f, "", "byteorder");
  char text[7] = "";
  if (!order) return TWS_OK; /* PyTorch before 2.1 */
  if (order->bytes < sizeof text) TWS_TRY(tws_archive_read(f->archive, order->begin, text, (size_t)order->bytes, err));
  return strcmp(text, "little") == 0 ? TWS_OK
                                     : tws_fail(err, TWS_UNSUPPORTED, "save it on a little-endian machine",
                                                "%s: its byte order is \"%s\"", f->archive->path, text);
}

static tws_code check_storages(const tws_torch_file *f, tws_error *err) {
  for (uint32_t i = 0; i < f->pickle.storage_count; i++) {
    const tws_pickle_value *storage = f->pickle.storages[i];
    const tws_archive_entry *entry = entry_of(f, "data/", storage->text);
    const uint64_t bytes = (uint64_t)storage->integer * (uint64_t)tws_safetensors_bytes(storage->dtype);
    if (!entry)
      return tws_fail(err, TWS_INVALID, "the file is damaged", "%s: storage \"%.40s\" is not there", f->archive->path,
                      storage->text);
    if (entry->bytes != bytes)
      return tws_fail(err, TWS_INVALID, "the file is damaged",
                      "%s: entry \"%s\" has %llu bytes, and its storage of %lld elements of %s %llu", f->archive->path,
                      entry->name, (unsigned long long)entry->bytes, (long long)storage->integer, storage->dtype,
                      (unsigned long long)bytes);
  }
  return TWS_OK;
}

static tws_code read_pickle(tws_torch_file *f, tws_error *err) {
  const tws_archive_entry *entry = entry_of(f, "", pickle_name);
  char name[4200];
  snprintf(name, sizeof name, "%s: %s", f->archive->path, pickle_name);
  if (entry->bytes > TWS_PICKLE_LIMIT)
    return tws_fail(err, TWS_UNSUPPORTED, NULL, "%s: more than %d MiB", name, TWS_PICKLE_LIMIT >> 20);
  TWS_TRY(tws_archive_verify(f->archive, entry, err));
  unsigned char *bytes = tws_calloc((size_t)entry->bytes + 1, 1);
  if (!bytes) return tws_fail(err, TWS_MEMORY, NULL, "%s: out of memory", name);
  tws_code code = tws_archive_read(f->archive, entry->begin, bytes, (size_t)entry->bytes, err);
  if (code == TWS_OK) code = tws_pickle_parse(bytes, (size_t)entry->bytes, name, f->arena, &f->pickle, err);
  tws_free(bytes);
  return code;
}

static tws_code open_file(tws_torch_file *f, const char *path, tws_error *err) {
  if (is_old(path))
    return tws_fail(err, TWS_UNSUPPORTED, "torch.save(torch.load(FILE), FILE) with a newer PyTorch writes today's",
                    "%s: the format of PyTorch before 1.6", path);
  TWS_TRY(tws_archive_open(path, &f->archive, err));
  f->verified = tws_arena_alloc(f->arena, f->archive->count + (size_t)1, 1);
  if (!f->verified) return tws_fail(err, TWS_MEMORY, NULL, "%s: out of memory", path);
  TWS_TRY(find_folder(f, err));
  TWS_TRY(check_order(f, err));
  TWS_TRY(read_pickle(f, err));
  return check_storages(f, err);
}

tws_code tws_torch_open(const char *path, tws_torch_file **out, tws_error *err) {
  tws_arena *arena = tws_arena_create();
  tws_torch_file *f = arena ? tws_arena_alloc(arena, 1, sizeof *f) : NULL;
  *out = NULL;
  if (!f) {
    tws_arena_destroy(arena);
    return tws_fail(err, TWS_MEMORY, NULL, "%s: out of memory", path);
  }
  f->arena = arena;
  const tws_code code = open_file(f, path, err);
  if (code == TWS_OK)
    *out = f;
  else
    tws_torch_close(f);
  return code;
}

void tws_torch_close(tws_torch_file *f) {
  if (!f) return;
  tws_archive_close(f->archive);
  tws_arena_destroy(f->arena);
}

tws_code tws_torch_place(const tws_torch_file *f, const tws_pickle_value *tensor, const char *name, int64_t *at,
                         tws_error *err) {
  const tws_pickle_value *storage = tensor->storage;
  if (!tensor->contiguous)
    return tws_fail(err, TWS_UNSUPPORTED, "save it after .contiguous()",
                    "%s: the elements of tensor %.200s do not lie one after another", f->archive->path, name);
  *at = (int64_t)(entry_of(f, "data/", storage->text)->begin +
                  tensor->first * (uint64_t)tws_safetensors_bytes(storage->dtype));
  return TWS_OK;
}

tws_code tws_torch_verify(tws_torch_file *f, const tws_pickle_value *tensor, tws_error *err) {
  const tws_archive_entry *entry = entry_of(f, "data/", tensor->storage->text);
  uint8_t *verified = &f->verified[entry - f->archive->entries];
  if (!*verified) TWS_TRY(tws_archive_verify(f->archive, entry, err));
  *verified = 1;
  return TWS_OK;
}
