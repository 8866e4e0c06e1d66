#include "checkpoint/read.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/checksum.h"
#include "checkpoint/folder.h"

/* ---- types ---- */

static double element_of(tws_dtype dtype, const void *in, uint64_t i) {
  switch (dtype) {
    case TWS_F32:
      return (double)((const float *)in)[i];
    case TWS_BF16:
      return (double)tws_from_bf16(((const unsigned short *)in)[i]);
    case TWS_F16:
      return (double)tws_from_f16(((const unsigned short *)in)[i]);
    case TWS_F64:
      return ((const double *)in)[i];
    case TWS_I32:
      return ((const int32_t *)in)[i];
    default:
      return ((const unsigned char *)in)[i];
  }
}

static void set_element(tws_dtype dtype, void *out, uint64_t i, double value) {
  switch (dtype) {
    case TWS_F32:
      ((float *)out)[i] = (float)value;
      return;
    case TWS_BF16:
      ((unsigned short *)out)[i] = tws_to_bf16((float)value);
      return;
    case TWS_LOW16:
      ((unsigned short *)out)[i] = tws_low_half((float)value);
      return;
    case TWS_F16:
      ((unsigned short *)out)[i] = tws_to_f16((float)value);
      return;
    case TWS_F64:
      ((double *)out)[i] = value;
      return;
    case TWS_I32:
      ((int32_t *)out)[i] = (int32_t)value;
      return;
    default:
      ((unsigned char *)out)[i] = (unsigned char)value;
  }
}

void tws_convert_elements(tws_dtype from, const void *in, tws_dtype to, void *out, uint64_t count) {
  if (from == to) {
    memcpy(out, in, count * tws_dtype_bytes(from));
    return;
  }
  for (uint64_t i = 0; i < count; i++) set_element(to, out, i, element_of(from, in, i));
}

/* ---- blocks ---- */

static const tws_saved_piece *piece_at(const tws_saved_reader *r, uint32_t piece) {
  return &r->index->pieces[piece];
}

static const char *describe(const tws_saved_reader *r, uint32_t piece, char *text, size_t size) {
  const tws_saved_index *x = r->index;
  const tws_piece *p = &piece_at(r, piece)->piece;
  const tws_param *param = p->param == TWS_NONE ? NULL : &x->params[p->param];
  return tws_piece_name(p, param ? param->name : "", x->entries[p->entry].name, param ? param->rows : 0,
                        param ? param->columns : 0, text, size);
}

static tws_code damaged(const tws_saved_reader *r, tws_error *err, const char *what) {
  char others[160], hint[256];
  tws_folder_other_tags(r->index->path, others, sizeof others);
  snprintf(hint, sizeof hint, *others ? "resume from another one: --tag, of %s" : "resume from another checkpoint",
           others);
  return tws_fail(err, TWS_INVALID, hint, "%s", what);
}

static tws_code read_exactly(const tws_saved_reader *r, uint64_t offset, void *to, size_t count, tws_error *err) {
  const char *name = r->index->files[r->file].name;
  if (r->fetch) return r->fetch(r->user, r->file, offset, to, count, err);
  for (size_t done = 0; done < count;) {
    const ssize_t n = pread(r->fd, (char *)to + done, count - done, (off_t)(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return tws_fail(err, TWS_IO, NULL, "%s/%s: cannot read: %s", r->index->path, name, strerror(errno));
    if (n == 0) return tws_fail(err, TWS_INVALID, NULL, "%s/%s: it ends too early", r->index->path, name);
    done += (size_t)n;
  }
  return TWS_OK;
}

/* Verifies the checksum of the open file's header, which differs if another file of the same size replaced the saved
 * one. */
static tws_code check_header(tws_saved_reader *r, tws_error *err) {
  if (r->checked[r->file]) return TWS_OK;
  const tws_saved_file *file = &r->index->files[r->file];
  char what[TWS_FOLDER_SIZE + 128];
  uint64_t checksum = 0;
  for (uint64_t at = 0; at < file->data; at += TWS_CHECKPOINT_BLOCK) {
    const uint64_t left = file->data - at, n = left < TWS_CHECKPOINT_BLOCK ? left : TWS_CHECKPOINT_BLOCK;
    TWS_TRY(read_exactly(r, at, r->block, (size_t)n, err));
    checksum = tws_checksum(checksum, r->block, (size_t)n);
  }
  r->checked[r->file] = checksum == file->header_checksum;
  if (r->checked[r->file]) return TWS_OK;
  snprintf(what, sizeof what, "%s/%s: its header is not the one that was saved: damaged, or another file",
           r->index->path, file->name);
  return damaged(r, err, what);
}

static tws_code open_file(tws_saved_reader *r, uint32_t file, tws_error *err) {
  char path[TWS_FOLDER_SIZE + 256];
  if (r->file == file) return TWS_OK;
  if (r->fd >= 0) close(r->fd);
  r->piece = r->file = TWS_NONE;
  snprintf(path, sizeof path, "%s/%s", r->index->path, r->index->files[file].name);
  if (!r->fetch) TWS_TRY(tws_saved_explain_missing(r->index->path, tws_open_regular(path, &r->fd, err), err));
  r->file = file;
  tws_code code = check_header(r, err);
  if (code != TWS_OK) r->file = TWS_NONE;
  return code;
}

static size_t block_bytes(const tws_saved_reader *r, uint32_t piece, uint32_t number) {
  const uint64_t begin = (uint64_t)number * TWS_CHECKPOINT_BLOCK;
  const uint64_t left = tws_saved_bytes(r->index, &piece_at(r, piece)->piece) - begin;
  return (size_t)(left < TWS_CHECKPOINT_BLOCK ? left : TWS_CHECKPOINT_BLOCK);
}

/* Reads a whole block and verifies its checksum. */
static tws_code read_block(tws_saved_reader *r, uint32_t piece, uint32_t number, void *to, tws_error *err) {
  const tws_saved_piece *saved = piece_at(r, piece);
  TWS_TRY(open_file(r, (uint32_t)saved->piece.rank, err));
  const tws_saved_file *file = &r->index->files[r->file];
  const uint64_t from = file->data + saved->piece.at + (uint64_t)number * TWS_CHECKPOINT_BLOCK;
  const size_t bytes = block_bytes(r, piece, number);
  TWS_TRY(read_exactly(r, from, to, bytes, err));
  if (tws_checksum(0, to, bytes) != saved->checksums[number]) {
    char name[400], what[TWS_FOLDER_SIZE + 640];
    snprintf(what, sizeof what, "%s/%s: tensor \"%s\" is damaged, in bytes %" PRIu64 " to %" PRIu64 " of the file",
             r->index->path, file->name, describe(r, piece, name, sizeof name), from, from + bytes);
    return damaged(r, err, what);
  }
  return TWS_OK;
}

static tws_code load_block(tws_saved_reader *r, uint32_t piece, uint32_t number, tws_error *err) {
  if (r->piece == piece && r->number == number) return TWS_OK;
  r->piece = TWS_NONE;
  TWS_TRY(read_block(r, piece, number, r->block, err));
  r->piece = piece;
  r->number = number;
  return TWS_OK;
}

tws_code tws_saved_reader_open(const tws_saved_index *index, tws_saved_reader *reader, tws_error *err) {
  *reader = (tws_saved_reader){.index = index, .piece = TWS_NONE, .file = TWS_NONE, .fd = -1};
  reader->block = tws_calloc(TWS_CHECKPOINT_BLOCK, 1);
  reader->checked = tws_calloc(index->file_count + (size_t)1, 1);
  if (reader->block && reader->checked) return TWS_OK;
  tws_saved_reader_close(reader);
  return tws_fail(err, TWS_MEMORY, NULL, "no memory to read a checkpoint with");
}

void tws_saved_reader_close(tws_saved_reader *reader) {
  if (reader->fd >= 0) close(reader->fd);
  tws_free(reader->block);
  tws_free(reader->checked);
}

/* ---- elements ---- */

typedef struct target {
  const tws_param_slice *slice; /* NULL: elements are numbered within the piece */
  uint64_t first, count;
  uint64_t limit; /* number of saved elements of the whole parameter */
  tws_dtype dtype;
  char *out;
} target;

/* Copies elements [from, from + count) of a piece to the target's elements from `to` on, converted to the target's
 * type. */
static tws_code copy_run(tws_saved_reader *r, uint32_t piece, uint64_t from, uint64_t count, const target *t,
                         uint64_t to, tws_error *err) {
  const tws_piece *p = &piece_at(r, piece)->piece;
  const tws_dtype dtype = (tws_dtype)r->index->entries[p->entry].dtype;
  const uint64_t size = tws_dtype_bytes(dtype), per_block = TWS_CHECKPOINT_BLOCK / size;
  while (count > 0) {
    const uint64_t in_block = from % per_block;
    uint64_t n = per_block - in_block;
    if (n > count) n = count;
    const uint32_t number = (uint32_t)(from / per_block);
    char *out = t->out + to * tws_dtype_bytes(t->dtype);
    if (dtype == t->dtype && in_block == 0 && n * size == block_bytes(r, piece, number)) {
      TWS_TRY(read_block(r, piece, number, out, err));
    } else {
      TWS_TRY(load_block(r, piece, number, err));
      tws_convert_elements(dtype, r->block + in_block * size, t->dtype, out, n);
    }
    from += n;
    to += n;
    count -= n;
  }
  return TWS_OK;
}

/* Copies the elements that are both in the piece and in the target, and adds their number to *covered. */
static tws_code copy_piece(tws_saved_reader *r, uint32_t piece, const target *t, uint64_t *covered, tws_error *err) {
  const tws_piece *p = &piece_at(r, piece)->piece;
  for (uint64_t done = 0; done < t->count;) {
    uint64_t run, there = 0;
    uint64_t whole = tws_param_slice_whole(t->slice, t->first + done, &run);
    if (run > t->count - done) run = t->count - done;
    for (uint64_t k = 0; k < run; k += there) {
      uint64_t local = tws_slice_local(&p->slice, whole + k, &there);
      if (there > run - k) there = run - k;
      if (local == UINT64_MAX || whole + k >= t->limit) continue;
      if (local < p->first) {
        if (there > p->first - local) there = p->first - local;
        continue;
      }
      if (local - p->first >= p->count) continue;
      if (there > p->first + p->count - local) there = p->first + p->count - local;
      TWS_TRY(copy_run(r, piece, local - p->first, there, t, done + k, err));
      *covered += there;
    }
    done += run;
  }
  return TWS_OK;
}

/* Returns how many of the target's elements the checkpoint contains. */
static uint64_t saved_elements(const target *t) {
  uint64_t saved = 0;
  for (uint64_t done = 0; done < t->count;) {
    uint64_t run;
    const uint64_t whole = tws_param_slice_whole(t->slice, t->first + done, &run);
    if (run > t->count - done) run = t->count - done;
    if (whole < t->limit) saved += t->limit - whole < run ? t->limit - whole : run;
    done += run;
  }
  return saved;
}

static uint32_t first_piece(const tws_saved_index *x, uint32_t entry, uint32_t param, int copy) {
  uint32_t low = 0, high = x->piece_count;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    const tws_piece *p = &x->pieces[middle].piece;
    const int before = p->entry != entry ? p->entry < entry : p->param != param ? p->param < param : p->copy < copy;
    if (before)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* Returns 0 if the piece certainly contains no element of the range from `begin` to `end` of the whole parameter, else
 * 1. */
static int may_have(const tws_piece *p, uint64_t begin, uint64_t end) {
  uint64_t run;
  const uint64_t low = tws_param_slice_whole(&p->slice, p->first, &run);
  const uint64_t high = tws_param_slice_whole(&p->slice, p->first + p->count - 1, &run);
  return low < end && begin <= high;
}

tws_code tws_saved_read(tws_saved_reader *r, uint32_t entry, uint32_t param, int copy, const tws_param_slice *slice,
                        uint64_t first, uint64_t count, tws_dtype dtype, void *out, tws_error *err) {
  const tws_saved_index *x = r->index;
  const tws_param *of = param == TWS_NONE ? NULL : &x->params[param];
  target t = {.slice = slice, .first = first, .count = count, .dtype = dtype, .out = out};
  uint64_t covered = 0, wanted = count, run, begin = 0, end = 0;
  if (count == 0) return TWS_OK;
  if (of) {
    t.limit = (uint64_t)of->rows * (uint64_t)of->columns;
    wanted = saved_elements(&t);
    begin = tws_param_slice_whole(slice, first, &run);
    end = tws_param_slice_whole(slice, first + count - 1, &run) + 1;
  }
  for (uint32_t i = first_piece(x, entry, param, copy); i < x->piece_count; i++) {
    const tws_piece *p = &x->pieces[i].piece;
    if (p->entry != entry || p->param != param || p->copy != copy) break;
    if (!of && first <= p->count && count <= p->count - first) {
      TWS_TRY(copy_run(r, i, first, count, &t, 0, err));
      covered = count;
    }
    if (of && may_have(p, begin, end)) TWS_TRY(copy_piece(r, i, &t, &covered, err));
  }
  if (covered == wanted) return TWS_OK;
  char what[TWS_FOLDER_SIZE + 640];
  snprintf(what, sizeof what, "%s: of tensor \"%.300s %s\" it has %" PRIu64 " of %" PRIu64 " elements", x->path,
           of ? of->name : "", x->entries[entry].name, covered, wanted);
  return damaged(r, err, what);
}

int tws_saved_has_slice(const tws_saved_index *x, uint32_t entry, uint32_t param, int copy,
                        const tws_param_slice *slice) {
  for (uint32_t i = first_piece(x, entry, param, copy); i < x->piece_count; i++) {
    const tws_piece *p = &x->pieces[i].piece;
    if (p->entry != entry || p->param != param || p->copy != copy) return 0;
    if (memcmp(&p->slice, slice, sizeof *slice) == 0) return 1;
  }
  return 0;
}

uint64_t tws_saved_own_elements(const tws_saved_index *x, uint32_t entry, int copy) {
  const uint32_t i = first_piece(x, entry, TWS_NONE, copy);
  const tws_piece *p = i < x->piece_count ? &x->pieces[i].piece : NULL;
  return p && p->entry == entry && p->param == TWS_NONE && p->copy == copy ? p->count : 0;
}

tws_code tws_saved_verify(tws_saved_reader *r, tws_error *err) {
  for (uint32_t i = 0; i < r->index->piece_count; i++) {
    const uint32_t blocks = tws_saved_blocks(tws_saved_bytes(r->index, &r->index->pieces[i].piece));
    for (uint32_t k = 0; k < blocks; k++) TWS_TRY(load_block(r, i, k, err));
  }
  return TWS_OK;
}
