/* Files of torch.save: any bytes, as a pickle and as an archive, give consistent values or one error. */
#include <stdlib.h>

#include "memory_file.h"
#include "models/network/safetensors.h"
#include "models/network/torch_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition) {
  if (!condition) abort();
}

static void check_value(const tws_pickle_value *value) {
  if (value->kind != TWS_PICKLE_TENSOR) return;
  require(value->storage->kind == TWS_PICKLE_STORAGE && value->count <= TWS_TORCH_DIMS);
  uint64_t elements = 1;
  for (uint32_t i = 0; i < value->count; i++) elements *= (uint64_t)value->shape[i];
  require(elements == value->elements);
  if (value->contiguous) require(value->first + elements <= (uint64_t)value->storage->integer);
}

static void try_pickle(const uint8_t *data, size_t size) {
  tws_arena *arena = tws_arena_create();
  tws_pickle out;
  tws_error err = {0};
  const tws_code code = tws_pickle_parse(data, size, "file", arena, &out, &err);
  require(code == TWS_OK || ((code == TWS_INVALID || code == TWS_UNSUPPORTED) && err.message[0]));
  if (code == TWS_OK) {
    check_value(out.root);
    for (uint32_t i = 0; i < out.root->count && out.root->kind != TWS_PICKLE_TENSOR; i++)
      check_value(out.root->items[i]);
    for (uint32_t i = 0; i < out.storage_count; i++) require(out.storages[i]->integer >= 0);
  }
  tws_arena_destroy(arena);
}

static void try_file(const uint8_t *data, size_t size) {
  char path[32];
  const int fd = memory_file(data, size, path);
  tws_safetensors *list = NULL;
  tws_archive *archive = NULL;
  tws_error err = {0};
  if (tws_archive_open(path, &archive, &err) == TWS_OK)
    for (uint32_t i = 0; i < archive->count; i++) {
      const tws_archive_entry *entry = &archive->entries[i];
      require(entry->begin <= size && entry->bytes <= size - entry->begin);
      require(tws_archive_find(archive, entry->name) == entry);
    }
  tws_archive_close(archive);
  const tws_code code = tws_safetensors_open(path, &list, &err);
  require(code == TWS_OK || ((code == TWS_INVALID || code == TWS_UNSUPPORTED) && err.message[0]));
  for (uint32_t i = 0; code == TWS_OK && i < list->count; i++)
    require(list->tensors[i].begin >= 0 && list->tensors[i].begin <= list->tensors[i].end &&
            (uint64_t)list->tensors[i].end <= size);
  tws_safetensors_close(list);
  close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  try_pickle(data, size);
  try_file(data, size);
  return 0;
}
