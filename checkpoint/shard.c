#include "checkpoint/shard.h"

#include <stdio.h>

#include "base/checksum.h"
#include "checkpoint/folder.h"
#include "models/network/safetensors.h"

const char *tws_shard_name(int rank, char *buffer, size_t size) {
  snprintf(buffer, size, "rank-%05d.safetensors", rank);
  return buffer;
}

static uint64_t bytes_of(const tws_shard_request *r, const tws_piece *piece) {
  return piece->count * tws_dtype_bytes((tws_dtype)r->entries[piece->entry].dtype);
}

/* Sets the shape of a piece's tensor and returns its number of dimensions: 2 if the piece has all elements of a slice
 * of a matrix, otherwise 1. */
static int shape_of(const tws_piece *piece, int64_t shape[2]) {
  const tws_param_slice *s = &piece->slice;
  const int whole = piece->param != TWS_NONE && piece->count == tws_slice_count(s) && s->whole_columns > 1;
  shape[0] = whole ? tws_param_slice_rows(s) : (int64_t)piece->count;
  shape[1] = s->columns;
  return whole ? 2 : 1;
}

static void make_header(const tws_shard_request *r, tws_safetensors_header *out) {
  char name[512];
  tws_safetensors_begin(out, "twinspeed");
  for (uint32_t i = 0; i < r->count; i++) {
    const tws_piece *piece = &r->pieces[i];
    const tws_state_entry *entry = &r->entries[piece->entry];
    const tws_param *param = piece->param == TWS_NONE ? NULL : &r->params[piece->param];
    int64_t shape[2];
    tws_piece_name(piece, param ? param->name : "", entry->name, param ? param->rows : 0, param ? param->columns : 0,
                   name, sizeof name);
    const int dims = shape_of(piece, shape);
    tws_safetensors_add(out, name, tws_safetensors_dtype_name((tws_dtype)entry->dtype), shape, dims);
  }
  tws_safetensors_end(out);
}

uint64_t tws_shard_bytes(const tws_shard_request *r) {
  uint64_t bytes = 1024;
  for (uint32_t i = 0; i < r->count; i++) bytes += 256 + bytes_of(r, &r->pieces[i]);
  return bytes;
}

typedef struct output {
  tws_shard_sink sink;
  void *user;
} output;

static uint64_t exponent_bits(tws_dtype dtype) {
  switch (dtype) {
    case TWS_F32:
      return UINT64_C(0x7f800000);
    case TWS_BF16:
      return UINT64_C(0x7f80);
    case TWS_F16:
      return UINT64_C(0x7c00);
    case TWS_F64:
      return UINT64_C(0x7ff0000000000000);
    default:
      return 0; /* integers and quantization codes cannot be NaN or infinite */
  }
}

/* Returns 1 if any element is NaN or infinite, which means that all bits of its exponent are 1. */
static int is_broken(tws_dtype dtype, const void *block, uint64_t count) {
  const uint64_t mask = exponent_bits(dtype);
  unsigned found = 0;
  if (mask == 0) return 0;
  if (tws_dtype_bytes(dtype) == 2)
    for (uint64_t i = 0; i < count; i++) found |= (((const uint16_t *)block)[i] & (unsigned)mask) == (unsigned)mask;
  else if (tws_dtype_bytes(dtype) == 4)
    for (uint64_t i = 0; i < count; i++) found |= (((const uint32_t *)block)[i] & (uint32_t)mask) == (uint32_t)mask;
  else
    for (uint64_t i = 0; i < count; i++) found |= (((const uint64_t *)block)[i] & mask) == mask;
  return found != 0;
}

/* Fails because the piece contains NaN or infinity: such a state is not saved, so that the previous checkpoint
 * stays. */
static tws_code refuse_broken(const tws_shard_request *r, const tws_piece *piece, tws_error *err) {
  const char *name = piece->param == TWS_NONE ? "" : r->params[piece->param].name;
  return tws_fail(err, TWS_RANK,
                  "earlier checkpoints stay: resume from one with a lower learning rate, a larger "
                  "optimizer.params.eps, or clipped gradients",
                  "\"%.200s%s%.100s\" has values that are NaN or infinite, and is not saved", name, *name ? " " : "",
                  r->entries[piece->entry].name);
}

static tws_code write_piece(const output *out, const tws_shard_request *r, const tws_piece *piece, void *block,
                            uint64_t *checksums, tws_error *err) {
  const size_t size = tws_dtype_bytes((tws_dtype)r->entries[piece->entry].dtype);
  const uint64_t most = TWS_CHECKPOINT_BLOCK / size;
  for (uint64_t done = 0; done < piece->count; done += most) {
    const uint64_t n = piece->count - done < most ? piece->count - done : most;
    TWS_TRY(r->source(r->user, piece, done, n, block, err));
    if (is_broken((tws_dtype)r->entries[piece->entry].dtype, block, n)) return refuse_broken(r, piece, err);
    *checksums++ = tws_checksum(0, block, n * size);
    TWS_TRY(out->sink(out->user, block, n * size, err));
  }
  return TWS_OK;
}

static tws_code write_data(const output *out, const tws_shard_request *r, tws_shard_written *w, tws_error *err) {
  void *block = tws_calloc(TWS_CHECKPOINT_BLOCK, 1);
  if (!block) return tws_fail(err, TWS_MEMORY, NULL, "no memory to write a checkpoint with");
  tws_code code = TWS_OK;
  uint64_t at = 0, checksums = 0;
  for (uint32_t i = 0; i < r->count && code == TWS_OK; i++) {
    w->at[i] = at;
    code = write_piece(out, r, &r->pieces[i], block, w->checksums + checksums, err);
    at += bytes_of(r, &r->pieces[i]);
    checksums += tws_saved_blocks(bytes_of(r, &r->pieces[i]));
  }
  w->bytes = w->data + at;
  tws_free(block);
  return code;
}

static tws_code make_lists(const tws_shard_request *r, tws_arena *arena, tws_shard_written *w, tws_error *err) {
  w->checksum_count = 0;
  for (uint32_t i = 0; i < r->count; i++) w->checksum_count += tws_saved_blocks(bytes_of(r, &r->pieces[i]));
  w->at = tws_arena_alloc(arena, r->count + (size_t)1, sizeof *w->at);
  w->checksums = tws_arena_alloc(arena, w->checksum_count + 1, sizeof *w->checksums);
  return w->at && w->checksums ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "no memory to write a checkpoint with");
}

tws_code tws_shard_make(const tws_shard_request *r, tws_shard_sink sink, void *user, tws_arena *arena,
                        tws_shard_written *w, tws_error *err) {
  const output out = {sink, user};
  tws_safetensors_header made;
  TWS_TRY(make_lists(r, arena, w, err));
  make_header(r, &made);
  const tws_text header = made.text;
  w->data = header.length;
  tws_code code = header.failed ? tws_fail(err, TWS_MEMORY, NULL, "no memory to write a checkpoint with") : TWS_OK;
  if (code == TWS_OK) {
    w->header_checksum = tws_checksum(0, header.data, header.length);
    code = sink(user, header.data, header.length, err);
  }
  if (code == TWS_OK) code = write_data(&out, r, w, err);
  tws_text_free(&made.text);
  return code;
}

typedef struct file {
  const char *path;
  int fd;
} file;

static tws_code write_to_file(void *user, const void *bytes, size_t count, tws_error *err) {
  const file *to = user;
  return tws_write_all(to->fd, to->path, bytes, count, err);
}

tws_code tws_shard_write(const char *path, const tws_shard_request *r, tws_arena *arena, tws_shard_written *w,
                         tws_error *err) {
  file to = {path, -1};
  TWS_TRY(tws_file_begin(path, &to.fd, err));
  return tws_file_end(to.fd, path, tws_shard_make(r, write_to_file, &to, arena, w, err), err);
}
