/* A checkpoint's index, and the headers of safetensors files: any bytes give a consistent list or one error. An index
 * is drawn without its last member, the checksum, which would be wrong in nearly all of them; the test appends the
 * right one. */
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "checkpoint/export.h"
#include "checkpoint/index.h"
#include "models/network/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition) {
  if (!condition) abort();
}

static void check_piece(const tws_saved_index *x, const tws_saved_piece *saved) {
  const tws_piece *p = &saved->piece;
  require(p->entry < x->entry_count && p->rank >= 0 && (uint32_t)p->rank < x->file_count && p->count > 0);
  const tws_saved_file *file = &x->files[p->rank];
  require(p->at + tws_saved_bytes(x, p) <= file->bytes - file->data);
  if (p->param == TWS_NONE) return;
  const tws_param *param = &x->params[p->param];
  const uint64_t all = (uint64_t)param->rows * (uint64_t)param->columns;
  require(p->param < x->param_count && p->first + p->count <= tws_slice_count(&p->slice));
  const uint64_t places[] = {p->first, p->first + p->count / 2, p->first + p->count - 1};
  for (int i = 0; i < 3; i++) {
    uint64_t run = 0;
    const uint64_t whole = tws_param_slice_whole(&p->slice, places[i], &run);
    require(whole < all && run > 0 && tws_slice_local(&p->slice, whole, &run) == places[i] && run > 0);
  }
}

static void check_index(const tws_saved_index *x) {
  tws_text text = {0};
  tws_saved_index *again = NULL;
  tws_hf_tensor *tensors = NULL;
  uint32_t count = 0;
  for (uint32_t i = 0; i < x->file_count; i++)
    require(x->files[i].name[0] && !strchr(x->files[i].name, '/') && x->files[i].data <= x->files[i].bytes);
  for (uint32_t i = 0; i < x->piece_count; i++) check_piece(x, &x->pieces[i]);
  if (tws_saved_names(x, x->arena, &tensors, &count, NULL) == TWS_OK)
    for (uint32_t i = 0; i < count; i++) require(tensors[i].rows > 0 && tensors[i].columns > 0 && tensors[i].name);
  tws_saved_write(x, &text);
  require(!text.failed && tws_saved_parse(text.data, text.length, "again", &again, NULL) == TWS_OK);
  require(again->piece_count == x->piece_count && again->counters.steps == x->counters.steps);
  tws_saved_close(again);
  tws_text_free(&text);
}

static void try_index(const uint8_t *data, size_t size) {
  tws_text text = {0};
  tws_saved_index *index = NULL;
  tws_error err = {0};
  tws_text_add_bytes(&text, (const char *)data, size);
  require(tws_saved_parse(text.data ? text.data : "", text.length, "as it is", &index, &err) == TWS_INVALID &&
          err.message[0]);
  tws_text_add(&text, ",\n\"checksum\":\"%016" PRIx64 "\"}\n", tws_checksum(0, data, size));
  const tws_code code = tws_saved_parse(text.data, text.length, "folder", &index, &err);
  require(code == TWS_OK || (code == TWS_INVALID && err.message[0]));
  if (code == TWS_OK) check_index(index);
  tws_saved_close(index);
  tws_text_free(&text);
}

static void try_header(const uint8_t *data, size_t size, int64_t of) {
  tws_safetensors *list = NULL;
  tws_error err = {0};
  const tws_code code = tws_safetensors_parse("file", data, size, of, &list, &err);
  require(code == TWS_OK || (code == TWS_INVALID && err.message[0]));
  for (uint32_t i = 0; code == TWS_OK && i < list->count; i++) {
    const tws_safetensor *tensor = &list->tensors[i];
    require(tensor->begin >= 8 && tensor->begin <= tensor->end && tensor->end <= of && tensor->elements >= 0);
    require(tws_safetensors_find(list, tensor->name) == tensor);
  }
  tws_safetensors_close(list);
}

/* Reads the bytes as a header to which the right length is prepended, and as a whole file: a random length would hardly
 * ever be right. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  uint8_t *file = malloc(size + 8);
  if (!file) return 0;
  for (int i = 0; i < 8; i++) file[i] = (uint8_t)((uint64_t)size >> 8 * i & 255);
  memcpy(file + 8, data, size);
  try_header(file, size + 8, (int64_t)size + 8);
  try_header(file, size + 8, (int64_t)size + 8 + 28);
  try_header(data, size, (int64_t)size);
  free(file);
  try_index(data, size);
  return 0;
}
