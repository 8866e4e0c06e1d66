#include "checkpoint/export.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/folder.h"
#include "checkpoint/read.h"
#include "models/network/huggingface.h"
#include "models/network/safetensors.h"

enum { CHUNK = 1 << 20 }; /* elements */

typedef struct exporter {
  tws_saved_reader reader;
  const tws_hf_tensor *tensors;
  uint32_t count, entry;
  float *chunk, *whole, *dealt; /* whole: the largest that has another order; dealt: the same, of rows */
  int64_t chunk_room;           /* elements of chunk: CHUNK, or a column where one has more */
  int fd;
  const char *path; /* of the unfinished file */
} exporter;

uint32_t tws_saved_weights(const tws_saved_index *index) {
  uint32_t best = TWS_NONE;
  for (uint32_t i = 0; i < index->entry_count; i++)
    if (index->entries[i].initial == TWS_INITIAL_PARAMETER &&
        (best == TWS_NONE ||
         tws_dtype_bytes((tws_dtype)index->entries[i].dtype) > tws_dtype_bytes((tws_dtype)index->entries[best].dtype)))
      best = i;
  return best;
}

static int64_t elements_of(const tws_hf_tensor *tensor) {
  return tensor->rows * tensor->columns;
}

static int shape_of(const tws_hf_tensor *tensor, int64_t shape[2]) {
  shape[0] = tensor->transposed ? tensor->columns : tensor->rows;
  shape[1] = tensor->transposed ? tensor->rows : tensor->columns;
  return tensor->dims;
}

/* ---- writing ---- */

static void make_header(const exporter *e, tws_safetensors_header *out) {
  tws_safetensors_begin(out, "pt");
  for (uint32_t i = 0; i < e->count; i++) {
    int64_t shape[2];
    const int dims = shape_of(&e->tensors[i], shape);
    tws_safetensors_add(out, e->tensors[i].name, TWS_F32, shape, dims);
  }
  tws_safetensors_end(out);
}

static tws_code read_rows(exporter *e, const tws_hf_tensor *tensor, uint64_t first, uint64_t count, float *to,
                          tws_error *err) {
  const tws_param_slice whole = tws_slice_of(&e->reader.index->params[tensor->param], NULL);
  const uint64_t before = (uint64_t)(tensor->first_row * tensor->columns);
  return tws_saved_read(&e->reader, e->entry, tensor->param, 0, &whole, before + first, count, TWS_F32, to, err);
}

static tws_code write_straight(exporter *e, const tws_hf_tensor *tensor, tws_error *err) {
  const uint64_t all = (uint64_t)elements_of(tensor);
  for (uint64_t done = 0; done < all; done += CHUNK) {
    const uint64_t n = all - done < CHUNK ? all - done : CHUNK;
    TWS_TRY(read_rows(e, tensor, done, n, e->chunk, err));
    TWS_TRY(tws_write_all(e->fd, e->path, e->chunk, n * sizeof *e->chunk, err));
  }
  return TWS_OK;
}

/* Rows that the file has in another order. */
static tws_code write_dealt(exporter *e, const tws_hf_tensor *tensor, tws_error *err) {
  const int64_t columns = tensor->columns;
  TWS_TRY(read_rows(e, tensor, 0, (uint64_t)elements_of(tensor), e->whole, err));
  for (int64_t row = 0; row < tensor->rows; row++)
    memcpy(e->dealt + tws_hf_row(tensor, row) * columns, e->whole + row * columns, (size_t)columns * sizeof *e->whole);
  return tws_write_all(e->fd, e->path, e->dealt, (size_t)elements_of(tensor) * sizeof *e->dealt, err);
}

/* As many columns at a time as the chunk has room for; of those a few rows, which stay in the cache. */
static tws_code write_transposed(exporter *e, const tws_hf_tensor *tensor, tws_error *err) {
  enum { TILE = 16 };
  const int64_t rows = tensor->rows, columns = tensor->columns;
  const int64_t most = rows < e->chunk_room ? e->chunk_room / rows : 1;
  TWS_TRY(read_rows(e, tensor, 0, (uint64_t)elements_of(tensor), e->whole, err));
  for (int64_t first = 0; first < columns; first += most) {
    const int64_t n = columns - first < most ? columns - first : most;
    for (int64_t from = 0; from < rows; from += TILE)
      for (int64_t column = 0; column < n; column++)
        for (int64_t row = from; row < from + TILE && row < rows; row++)
          e->chunk[column * rows + row] = e->whole[row * columns + first + column];
    TWS_TRY(tws_write_all(e->fd, e->path, e->chunk, (size_t)(n * rows) * sizeof *e->chunk, err));
  }
  return TWS_OK;
}

static tws_code write_tensors(exporter *e, tws_error *err) {
  tws_safetensors_header header;
  make_header(e, &header);
  tws_code code = header.text.failed ? tws_fail(err, TWS_MEMORY, NULL, "no memory to write the weights with")
                                     : tws_write_all(e->fd, e->path, header.text.data, header.text.length, err);
  tws_text_free(&header.text);
  for (uint32_t i = 0; i < e->count && code == TWS_OK; i++)
    code = e->tensors[i].groups > 1   ? write_dealt(e, &e->tensors[i], err)
           : e->tensors[i].transposed ? write_transposed(e, &e->tensors[i], err)
                                      : write_straight(e, &e->tensors[i], err);
  if (code == TWS_OK && fsync(e->fd) != 0)
    code = tws_fail(err, TWS_IO, NULL, "%s: cannot write to the disk: %s", e->path, strerror(errno));
  return code;
}

/* ---- and reading it again ---- */

static tws_code check_tensors(const exporter *e, tws_export_result *result, tws_error *err) {
  tws_safetensors *list = NULL;
  TWS_TRY(tws_safetensors_open(e->path, &list, err));
  tws_code code = TWS_OK;
  for (uint32_t i = 0; i < e->count && code == TWS_OK; i++) {
    const tws_safetensor *found = tws_safetensors_find(list, e->tensors[i].name);
    int64_t shape[2];
    const int dims = shape_of(&e->tensors[i], shape);
    if (!found || found->dims != dims || found->shape[0] != shape[0] || (dims > 1 && found->shape[1] != shape[1]))
      code = tws_fail(err, TWS_INTERNAL, NULL, "%s: tensor %s was not written as it should be", e->path,
                      e->tensors[i].name);
    result->parameters += elements_of(&e->tensors[i]);
  }
  result->tensors = list->count;
  if (code == TWS_OK && list->count != e->count)
    code = tws_fail(err, TWS_INTERNAL, NULL, "%s: it has %u tensors, not %u", e->path, list->count, e->count);
  tws_safetensors_close(list);
  return code;
}

static tws_code write_checked(exporter *e, tws_export_result *result, tws_error *err) {
  struct stat info;
  e->fd = open(e->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (e->fd < 0) return tws_fail(err, TWS_IO, NULL, "%s: cannot create the file: %s", e->path, strerror(errno));
  tws_code code = write_tensors(e, err);
  if (close(e->fd) != 0 && code == TWS_OK)
    code = tws_fail(err, TWS_IO, NULL, "%s: cannot write: %s", e->path, strerror(errno));
  if (code == TWS_OK) code = check_tensors(e, result, err);
  if (code == TWS_OK && stat(e->path, &info) == 0) result->bytes = (uint64_t)info.st_size;
  return code;
}

static tws_code make_room(exporter *e, tws_error *err) {
  int64_t largest = 0, largest_dealt = 0;
  e->chunk_room = CHUNK;
  for (uint32_t i = 0; i < e->count; i++) {
    const int64_t size = elements_of(&e->tensors[i]);
    if ((e->tensors[i].transposed || e->tensors[i].groups > 1) && size > largest) largest = size;
    if (e->tensors[i].groups > 1 && size > largest_dealt) largest_dealt = size;
    if (e->tensors[i].transposed && e->tensors[i].rows > e->chunk_room) e->chunk_room = e->tensors[i].rows;
  }
  e->chunk = tws_calloc((size_t)e->chunk_room, sizeof *e->chunk);
  e->whole = tws_calloc((size_t)largest + 1, sizeof *e->whole);
  e->dealt = tws_calloc((size_t)largest_dealt + 1, sizeof *e->dealt);
  return e->chunk && e->whole && e->dealt ? TWS_OK
                                          : tws_fail(err, TWS_MEMORY, NULL, "no memory to write the weights with");
}

static tws_code list_tensors(const tws_saved_index *x, tws_arena *arena, exporter *e, tws_error *err) {
  const tws_hf_request names = {.architecture = x->architecture,
                                .params = x->params,
                                .param_count = x->param_count,
                                .vocabulary = x->vocabulary,
                                .padded_vocabulary = x->padded_vocabulary};
  tws_hf_tensor *tensors = NULL;
  e->entry = tws_saved_weights(x);
  if (e->entry == TWS_NONE) return tws_fail(err, TWS_INVALID, NULL, "%s: it has no parameters", x->path);
  for (uint32_t i = 0; i < x->piece_count; i++)
    if (x->pieces[i].piece.param != TWS_NONE && x->pieces[i].piece.copy > 0)
      return tws_fail(err, TWS_UNSUPPORTED, NULL, "%s: experts have no names in Hugging Face's files here yet",
                      x->path);
  TWS_TRY(tws_hf_tensors(&names, arena, &tensors, &e->count, err));
  e->tensors = tensors;
  return TWS_OK;
}

tws_code tws_saved_export(const tws_saved_index *x, const char *path, tws_export_result *result, tws_error *err) {
  char temporary[TWS_FOLDER_SIZE];
  exporter e = {.fd = -1, .path = temporary};
  tws_arena *arena = tws_arena_create();
  *result = (tws_export_result){0};
  snprintf(temporary, sizeof temporary, "%.3900s.%ld.new", path, (long)getpid());
  if (!arena) return tws_fail(err, TWS_MEMORY, NULL, "no memory to write the weights with");
  tws_code code = list_tensors(x, arena, &e, err);
  if (code == TWS_OK) code = tws_saved_reader_open(x, &e.reader, err);
  if (code == TWS_OK) {
    code = make_room(&e, err);
    if (code == TWS_OK) code = write_checked(&e, result, err);
    if (code == TWS_OK && rename(temporary, path) != 0)
      code = tws_fail(err, TWS_IO, NULL, "%s: cannot write: %s", path, strerror(errno));
    if (code != TWS_OK) unlink(temporary);
    tws_saved_reader_close(&e.reader);
  }
  tws_free(e.chunk);
  tws_free(e.whole);
  tws_free(e.dealt);
  tws_arena_destroy(arena);
  return code;
}
