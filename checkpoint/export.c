#include "checkpoint/export.h"

#include <string.h>

#include "checkpoint/folder.h"
#include "checkpoint/read.h"

typedef struct exporter {
  tws_saved_reader reader;
  const tws_hf_tensor *tensors;
  uint32_t count, entry;
  float *chunk, *whole, *dealt; /* chunk: elements that are being read; whole: buffer for a tensor whose rows the file
                                 * stores in another order; dealt: the same tensor with its rows reordered */
  tws_output *to;
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

/* ---- writing ---- */

static tws_code read_rows(exporter *e, const tws_hf_tensor *tensor, uint64_t first, uint64_t count, float *to,
                          tws_error *err) {
  const tws_param_slice whole = tws_slice_of(&e->reader.index->params[tensor->param], NULL);
  const uint64_t before = (uint64_t)(tensor->first_row * tensor->columns);
  return tws_saved_read(&e->reader, e->entry, tensor->param, 0, &whole, before + first, count, TWS_F32, to, err);
}

static tws_code write_straight(exporter *e, const tws_hf_tensor *tensor, tws_error *err) {
  const uint64_t all = (uint64_t)elements_of(tensor);
  for (uint64_t done = 0, n; done < all; done += n) {
    size_t bytes;
    void *room;
    TWS_TRY(tws_output_room(e->to, &room, &bytes, err));
    n = all - done < bytes / sizeof(float) ? all - done : bytes / sizeof(float);
    TWS_TRY(read_rows(e, tensor, done, n, room, err));
    tws_output_take(e->to, n * sizeof(float));
  }
  return TWS_OK;
}

/* Writes a tensor whose rows the file stores in another order than the checkpoint. */
static tws_code write_dealt(exporter *e, const tws_hf_tensor *tensor, tws_error *err) {
  const int64_t columns = tensor->columns;
  TWS_TRY(read_rows(e, tensor, 0, (uint64_t)elements_of(tensor), e->whole, err));
  for (int64_t row = 0; row < tensor->rows; row++)
    memcpy(e->dealt + tws_hf_row(tensor, row) * columns, e->whole + row * columns, (size_t)columns * sizeof *e->whole);
  return tws_output_write(e->to, e->dealt, (size_t)elements_of(tensor) * sizeof *e->dealt, err);
}

enum { TILE_ROWS = 64, TILE = 16 };
typedef float four __attribute__((vector_size(16), aligned(4), may_alias));

/* Transposes TILE_ROWS x TILE elements in blocks of four by four. Each contiguous range of `to`, in which a column has
 * `rows` elements, is written once and completely. */
static void turn_tile(const float *from, int64_t columns, float *to, int64_t rows) {
  float tile[TILE][TILE_ROWS];
  for (int row = 0; row < TILE_ROWS; row += 4)
    for (int column = 0; column < TILE; column += 4) {
      const float *at = from + row * columns + column;
      const four a = *(const four *)at, b = *(const four *)(at + columns), c = *(const four *)(at + 2 * columns),
                 d = *(const four *)(at + 3 * columns);
      const four ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab2 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      const four cd = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd2 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
      *(four *)&tile[column][row] = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
      *(four *)&tile[column + 1][row] = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
      *(four *)&tile[column + 2][row] = __builtin_shufflevector(ab2, cd2, 0, 1, 4, 5);
      *(four *)&tile[column + 3][row] = __builtin_shufflevector(ab2, cd2, 2, 3, 6, 7);
    }
  for (int column = 0; column < TILE; column++) memcpy(to + column * rows, tile[column], sizeof tile[column]);
}

/* Transposes `count` columns of a row-major matrix: `to` is (count, rows). */
static void turn(const float *from, int64_t rows, int64_t columns, int64_t count, float *to) {
  const int64_t whole_rows = rows - rows % TILE_ROWS, whole = count - count % TILE;
  for (int64_t row = 0; row < whole_rows; row += TILE_ROWS)
    for (int64_t column = 0; column < whole; column += TILE)
      turn_tile(from + row * columns + column, columns, to + column * rows + row, rows);
  for (int64_t row = 0; row < rows; row++)
    for (int64_t column = row < whole_rows ? whole : 0; column < count; column++)
      to[column * rows + row] = from[row * columns + column];
}

/* Writes a tensor that is stored transposed. It processes at one time as many columns as fit into a cache, and
 * transposes them in tiles of a few rows. */
static tws_code write_transposed(exporter *e, const tws_hf_tensor *tensor, tws_error *err) {
  enum { CACHED = 1 << 17 };
  const int64_t rows = tensor->rows, columns = tensor->columns;
  const int64_t cached = CACHED / rows, most = cached > TILE ? cached - cached % TILE : TILE;
  TWS_TRY(read_rows(e, tensor, 0, (uint64_t)elements_of(tensor), e->whole, err));
  for (int64_t first = 0, n; first < columns; first += n) {
    size_t bytes;
    void *room;
    TWS_TRY(tws_output_room(e->to, &room, &bytes, err));
    const int64_t fit = (int64_t)(bytes / sizeof(float)) / rows;
    float *to = fit > 0 ? (float *)room : e->chunk;
    n = columns - first < most ? columns - first : most;
    if (fit > 0 && n > fit) n = fit;
    if (fit == 0) n = 1;
    turn(e->whole + first, rows, columns, n, to);
    const size_t made = (size_t)(n * rows) * sizeof(float);
    if (fit > 0)
      tws_output_take(e->to, made);
    else
      TWS_TRY(tws_output_write(e->to, to, made, err));
  }
  return TWS_OK;
}

static tws_code write_tensor(void *user, uint32_t i, tws_output *to, tws_error *err) {
  exporter *e = user;
  const tws_hf_tensor *tensor = &e->tensors[i];
  e->to = to;
  return tensor->groups > 1   ? write_dealt(e, tensor, err)
         : tensor->transposed ? write_transposed(e, tensor, err)
                              : write_straight(e, tensor, err);
}

static tws_weight *list_weights(const exporter *e, tws_arena *arena) {
  tws_weight *weights = tws_arena_alloc(arena, e->count + (size_t)1, sizeof *weights);
  for (uint32_t i = 0; weights && i < e->count; i++) {
    const tws_hf_tensor *tensor = &e->tensors[i];
    weights[i] = (tws_weight){.name = tensor->name, .dtype = "F32"};
    weights[i].dims = tws_hf_shape(tensor, weights[i].shape);
  }
  return weights;
}

static tws_code make_room(exporter *e, tws_error *err) {
  int64_t largest = 0, largest_dealt = 0, column = 1;
  for (uint32_t i = 0; i < e->count; i++) {
    const int64_t size = elements_of(&e->tensors[i]);
    if ((e->tensors[i].transposed || e->tensors[i].groups > 1) && size > largest) largest = size;
    if (e->tensors[i].groups > 1 && size > largest_dealt) largest_dealt = size;
    if (e->tensors[i].transposed && e->tensors[i].rows > column) column = e->tensors[i].rows;
  }
  e->chunk = tws_calloc((size_t)column, sizeof *e->chunk);
  e->whole = tws_calloc((size_t)largest + 1, sizeof *e->whole);
  e->dealt = tws_calloc((size_t)largest_dealt + 1, sizeof *e->dealt);
  return e->chunk && e->whole && e->dealt ? TWS_OK
                                          : tws_fail(err, TWS_MEMORY, NULL, "no memory to write the weights with");
}

/* Removes the frozen parameters from the list, as a checkpoint does not contain them, and renames the others as PEFT
 * does: it wraps the model in another module, so names begin with that module's name. */
static tws_code leave_trained(const tws_saved_index *x, tws_arena *arena, tws_hf_tensor *tensors, uint32_t *count,
                              tws_error *err) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < *count; i++) {
    if (x->params[tensors[i].param].frozen) continue;
    if (x->lora_r > 0) tensors[i].name = tws_arena_printf(arena, "base_model.model.%s", tensors[i].name);
    if (!tensors[i].name) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the names of adapters");
    tensors[kept++] = tensors[i];
  }
  *count = kept;
  return TWS_OK;
}

tws_code tws_saved_names(const tws_saved_index *x, tws_arena *arena, tws_hf_tensor **tensors, uint32_t *count,
                         tws_error *err) {
  const tws_hf_request request = {.architecture = x->architecture,
                                  .params = x->params,
                                  .param_count = x->param_count,
                                  .vocabulary = x->vocabulary,
                                  .padded_vocabulary = x->padded_vocabulary};
  return tws_hf_tensors(&request, arena, tensors, count, err);
}

static tws_code list_tensors(const tws_saved_index *x, tws_arena *arena, exporter *e, tws_error *err) {
  tws_hf_tensor *tensors = NULL;
  e->entry = tws_saved_weights(x);
  if (e->entry == TWS_NONE) return tws_fail(err, TWS_INVALID, NULL, "%s: it has no parameters", x->path);
  for (uint32_t i = 0; i < x->piece_count; i++)
    if (x->pieces[i].piece.param != TWS_NONE && x->pieces[i].piece.copy > 0)
      return tws_fail(err, TWS_UNSUPPORTED, NULL, "%s: experts have no names in Hugging Face's files here yet",
                      x->path);
  TWS_TRY(tws_saved_names(x, arena, &tensors, &e->count, err));
  TWS_TRY(leave_trained(x, arena, tensors, &e->count, err));
  e->tensors = tensors;
  return TWS_OK;
}

tws_code tws_saved_export(const tws_saved_index *x, const char *path, tws_export_result *result, tws_error *err) {
  exporter e = {0};
  tws_arena *arena = tws_arena_create();
  *result = (tws_export_result){0};
  if (!arena) return tws_fail(err, TWS_MEMORY, NULL, "no memory to write the weights with");
  tws_code code = list_tensors(x, arena, &e, err);
  if (code == TWS_OK) code = tws_saved_reader_open(x, &e.reader, err);
  if (code == TWS_OK) {
    const tws_weights_request request = {list_weights(&e, arena), e.count, write_tensor, &e};
    code =
        request.weights ? make_room(&e, err) : tws_fail(err, TWS_MEMORY, NULL, "no memory to write the weights with");
    if (code == TWS_OK) code = tws_weights_write(&request, path, result, err);
    tws_saved_reader_close(&e.reader);
  }
  tws_free(e.chunk);
  tws_free(e.whole);
  tws_free(e.dealt);
  tws_arena_destroy(arena);
  return code;
}
