#include "checkpoint/shard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

/* A piece that is a part of a matrix whole is one; all others are lists. */
static int shape_of(const tws_piece *piece, int64_t shape[2]) {
  const tws_param_slice *s = &piece->slice;
  const int whole = piece->param != TWS_NONE && piece->count == tws_slice_count(s) && s->whole_columns > 1;
  shape[0] = whole ? s->rows[0] + s->rows[1] + s->rows[2] : (int64_t)piece->count;
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

static tws_code write_piece(int fd, const char *path, const tws_shard_request *r, const tws_piece *piece, void *block,
                            uint64_t *checksums, tws_error *err) {
  const size_t size = tws_dtype_bytes((tws_dtype)r->entries[piece->entry].dtype);
  const uint64_t most = TWS_CHECKPOINT_BLOCK / size;
  for (uint64_t done = 0; done < piece->count; done += most) {
    const uint64_t n = piece->count - done < most ? piece->count - done : most;
    TWS_TRY(r->source(r->user, piece, done, n, block, err));
    *checksums++ = tws_checksum(0, block, n * size);
    TWS_TRY(tws_write_all(fd, path, block, n * size, err));
  }
  return TWS_OK;
}

static tws_code write_data(int fd, const char *path, const tws_shard_request *r, tws_shard_written *w, tws_error *err) {
  void *block = tws_calloc(TWS_CHECKPOINT_BLOCK, 1);
  if (!block) return tws_fail(err, TWS_MEMORY, NULL, "no memory to write a checkpoint with");
  tws_code code = TWS_OK;
  uint64_t at = 0, checksums = 0;
  for (uint32_t i = 0; i < r->count && code == TWS_OK; i++) {
    w->at[i] = at;
    code = write_piece(fd, path, r, &r->pieces[i], block, w->checksums + checksums, err);
    at += bytes_of(r, &r->pieces[i]);
    checksums += tws_saved_blocks(bytes_of(r, &r->pieces[i]));
  }
  w->bytes = w->data + at;
  tws_free(block);
  if (code == TWS_OK && fsync(fd) != 0)
    code = tws_fail(err, TWS_IO, NULL, "%s: cannot write to the disk: %s", path, strerror(errno));
  return code;
}

static tws_code make_lists(const tws_shard_request *r, tws_arena *arena, tws_shard_written *w, tws_error *err) {
  w->checksum_count = 0;
  for (uint32_t i = 0; i < r->count; i++) w->checksum_count += tws_saved_blocks(bytes_of(r, &r->pieces[i]));
  w->at = tws_arena_alloc(arena, r->count + (size_t)1, sizeof *w->at);
  w->checksums = tws_arena_alloc(arena, w->checksum_count + 1, sizeof *w->checksums);
  return w->at && w->checksums ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "no memory to write a checkpoint with");
}

tws_code tws_shard_write(const char *path, const tws_shard_request *r, tws_arena *arena, tws_shard_written *w,
                         tws_error *err) {
  tws_safetensors_header made;
  TWS_TRY(make_lists(r, arena, w, err));
  make_header(r, &made);
  const tws_text header = made.text;
  if (header.failed) {
    tws_text_free(&made.text);
    return tws_fail(err, TWS_MEMORY, NULL, "no memory to write a checkpoint with");
  }
  w->data = header.length;
  w->header_checksum = tws_checksum(0, header.data, header.length);
  const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  tws_code code =
      fd >= 0 ? TWS_OK : tws_fail(err, TWS_IO, NULL, "%s: cannot create the file: %s", path, strerror(errno));
  if (code == TWS_OK) code = tws_write_all(fd, path, header.data, header.length, err);
  if (code == TWS_OK) code = write_data(fd, path, r, w, err);
  if (fd >= 0 && close(fd) != 0 && code == TWS_OK)
    code = tws_fail(err, TWS_IO, NULL, "%s: cannot write: %s", path, strerror(errno));
  tws_text_free(&made.text);
  return code;
}
