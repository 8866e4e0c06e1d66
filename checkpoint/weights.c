#include "checkpoint/weights.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "checkpoint/folder.h"
#include "checkpoint/read.h"
#include "models/network/safetensors.h"
#include "models/network/torch_file.h"

enum { CHUNK = 1 << 19 }; /* elements */

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "no memory to write the weights with");
}

static int64_t weight_elements(const tws_weight *weight) {
  int64_t elements = 1;
  for (int i = 0; i < weight->dims; i++) elements *= weight->shape[i];
  return elements;
}

/* ---- writing ---- */

static void make_header(const tws_weights_request *r, tws_safetensors_header *header) {
  tws_safetensors_begin(header, "pt");
  for (uint32_t i = 0; i < r->count; i++)
    tws_safetensors_add(header, r->weights[i].name, r->weights[i].dtype, r->weights[i].shape, r->weights[i].dims);
  tws_safetensors_end(header);
}

/* Reads the written file's header again and verifies that it lists the weights with their shapes. */
static tws_code check_file(const tws_weights_request *r, const char *path, tws_export_result *result, tws_error *err) {
  tws_safetensors *list = NULL;
  TWS_TRY(tws_safetensors_open(path, &list, err));
  tws_code code = TWS_OK;
  for (uint32_t i = 0; i < r->count && code == TWS_OK; i++) {
    const tws_weight *weight = &r->weights[i];
    const tws_safetensor *found = tws_safetensors_find(list, weight->name);
    int same = found && found->dims == weight->dims && found->elements == weight_elements(weight);
    for (int k = 0; same && k < weight->dims && k < TWS_SAFETENSOR_DIMS; k++)
      same = found->shape[k] == weight->shape[k];
    if (!same)
      code = tws_fail(err, TWS_INTERNAL, NULL, "%s: tensor %s was not written as it should be", path, weight->name);
    result->parameters += weight_elements(weight);
  }
  result->tensors = list->count;
  if (code == TWS_OK && list->count != r->count)
    code = tws_fail(err, TWS_INTERNAL, NULL, "%s: it has %u tensors, not %u", path, list->count, r->count);
  tws_safetensors_close(list);
  return code;
}

static tws_code write_all(const tws_weights_request *r, const tws_text *header, const tws_new_file *file,
                          uint64_t *written, tws_error *err) {
  tws_output *output;
  uint64_t bytes = header->length;
  for (uint32_t i = 0; i < r->count; i++)
    bytes += (uint64_t)weight_elements(&r->weights[i]) * (uint64_t)tws_safetensors_bytes(r->weights[i].dtype);
  *written = bytes;
  TWS_TRY(tws_output_open(file, bytes, &output, err));
  tws_code code = tws_output_write(output, header->data, header->length, err);
  for (uint32_t i = 0; i < r->count && code == TWS_OK; i++) code = r->write(r->user, i, output, err);
  return tws_output_close(output, code, err);
}

/* Writes the weights and, unless the output is a pipe, which cannot be read again, verifies the file. */
static tws_code write_file(const tws_weights_request *r, const tws_new_file *file, tws_export_result *result,
                           tws_error *err) {
  char path[PATH_MAX + TWS_NAME_SIZE];
  tws_safetensors_header header;
  make_header(r, &header);
  tws_code code = header.text.failed ? no_memory(err) : write_all(r, &header.text, file, &result->bytes, err);
  tws_text_free(&header.text);
  if (code == TWS_OK && *tws_new_file_temporary(file, path, sizeof path)) return check_file(r, path, result, err);
  result->tensors = r->count;
  for (uint32_t i = 0; i < r->count; i++) result->parameters += weight_elements(&r->weights[i]);
  return code;
}

tws_code tws_weights_write(const tws_weights_request *request, const char *path, tws_export_result *result,
                           tws_error *err) {
  tws_new_file file;
  *result = (tws_export_result){0};
  TWS_TRY(tws_new_file_open(path, &file, err));
  return tws_new_file_close(&file, write_file(request, &file, result, err), err);
}

/* ---- runs of other files ---- */

tws_code tws_gathering_add(tws_gathering *g, const char *name, const int64_t *shape, uint32_t dims,
                           const tws_weight_run *runs, uint32_t count, tws_error *err) {
  if (dims > TWS_WEIGHT_DIMS)
    return tws_fail(err, TWS_UNSUPPORTED, NULL, "tensor %.200s has %u dimensions", name, dims);
  if (tws_reserve(&g->gathered, &g->room, g->count + (size_t)1, sizeof *g->gathered)) return no_memory(err);
  tws_gathered *one = &g->gathered[g->count];
  *one = (tws_gathered){.weight = {.name = tws_arena_strdup(g->arena, name), .dims = (int)dims},
                        .runs = tws_arena_alloc(g->arena, count + (size_t)1, sizeof *one->runs),
                        .run_count = count};
  if (!one->weight.name || !one->runs) return no_memory(err);
  for (uint32_t i = 0; i < dims; i++) one->weight.shape[i] = shape[i];
  if (count > 0) memcpy(one->runs, runs, count * sizeof *runs);
  g->count++;
  return TWS_OK;
}

typedef struct gatherer {
  const tws_gathered *gathered;
  const char *path; /* path of the file that is open */
  int fd;
  void *chunk, *converted;
} gatherer;

static tws_code read_chunk(gatherer *g, const tws_weight_run *run, uint64_t at, size_t count, tws_error *err) {
  if (!g->path || strcmp(g->path, run->path) != 0) {
    if (g->fd >= 0) close(g->fd);
    g->path = NULL;
    TWS_TRY(tws_open_regular(run->path, &g->fd, err));
    g->path = run->path;
  }
  for (size_t done = 0; done < count;) {
    const ssize_t n = pread(g->fd, (char *)g->chunk + done, count - done, (off_t)(at + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return tws_fail(err, TWS_IO, NULL, "%s: %s", run->path, n < 0 ? strerror(errno) : "it ends too early");
    done += (size_t)n;
  }
  return TWS_OK;
}

static tws_code write_runs(void *user, uint32_t weight, tws_output *to, tws_error *err) {
  gatherer *g = user;
  const tws_gathered *one = &g->gathered[weight];
  for (uint32_t i = 0; i < one->run_count; i++) {
    const tws_weight_run *run = &one->runs[i];
    const int dtype = tws_safetensors_dtype(run->dtype);
    const size_t size = (size_t)tws_safetensors_bytes(run->dtype);
    for (uint64_t done = 0; done < run->elements; done += CHUNK) {
      const uint64_t left = run->elements - done, n = left < CHUNK ? left : CHUNK;
      TWS_TRY(read_chunk(g, run, run->at + done * size, n * size, err));
      if (dtype < 0 || dtype == TWS_F32) {
        TWS_TRY(tws_output_write(to, g->chunk, n * size, err));
      } else {
        tws_convert_elements((tws_dtype)dtype, g->chunk, TWS_F32, g->converted, n);
        TWS_TRY(tws_output_write(to, g->converted, n * sizeof(float), err));
      }
    }
  }
  return TWS_OK;
}

static int by_name(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static tws_code check_names(const tws_gathering *g, tws_error *err) {
  const char **names = tws_arena_alloc(g->arena, g->count + (size_t)1, sizeof *names);
  if (!names) return no_memory(err);
  for (uint32_t i = 0; i < g->count; i++) names[i] = g->gathered[i].weight.name;
  qsort(names, g->count, sizeof *names, by_name);
  for (uint32_t i = 1; i < g->count; i++)
    if (strcmp(names[i - 1], names[i]) == 0)
      return tws_fail(err, TWS_INVALID, NULL, "tensor %.200s is there twice", names[i]);
  return TWS_OK;
}

/* Sorts weights by the size of their elements, the largest first; weights with equal sizes keep their order. */
static tws_code sort(tws_gathering *g, tws_weight **weights, tws_gathered **sorted) {
  uint32_t count = 0;
  *weights = tws_arena_alloc(g->arena, g->count + (size_t)1, sizeof **weights);
  *sorted = tws_arena_alloc(g->arena, g->count + (size_t)1, sizeof **sorted);
  if (!*weights || !*sorted) return TWS_MEMORY;
  for (uint32_t i = 0; i < g->count; i++) {
    tws_gathered *one = &g->gathered[i];
    const char *dtype = one->run_count > 0 ? one->runs[0].dtype : "F32";
    one->weight.dtype = tws_safetensors_dtype(dtype) >= 0 ? "F32" : dtype;
  }
  for (int size = 8; size > 0; size /= 2)
    for (uint32_t i = 0; i < g->count; i++)
      if (tws_safetensors_bytes(g->gathered[i].weight.dtype) == size) (*sorted)[count++] = g->gathered[i];
  for (uint32_t i = 0; i < count; i++) (*weights)[i] = (*sorted)[i].weight;
  return TWS_OK;
}

tws_code tws_gathering_write(tws_gathering *g, const char *path, tws_export_result *result, tws_error *err) {
  gatherer open = {.fd = -1, .chunk = tws_calloc(CHUNK, 8), .converted = tws_calloc(CHUNK, sizeof(float))};
  tws_weight *weights = NULL;
  tws_gathered *sorted = NULL;
  tws_code code = open.chunk && open.converted && sort(g, &weights, &sorted) == TWS_OK ? TWS_OK : no_memory(err);
  if (code == TWS_OK) code = check_names(g, err);
  open.gathered = sorted;
  const tws_weights_request request = {weights, g->count, write_runs, &open};
  if (code == TWS_OK) code = tws_weights_write(&request, path, result, err);
  if (open.fd >= 0) close(open.fd);
  tws_free(open.chunk);
  tws_free(open.converted);
  return code;
}

/* ---- Hugging Face's files ---- */

static tws_code verify_torch_file(const char *path, tws_error *err) {
  tws_torch_file *file = NULL;
  TWS_TRY(tws_torch_open(path, &file, err));
  tws_code code = TWS_OK;
  for (uint32_t i = 0; i < file->archive->count && code == TWS_OK; i++)
    code = tws_archive_verify(file->archive, &file->archive->entries[i], err);
  tws_torch_close(file);
  return code;
}

int tws_weights_is(const char *path) {
  static const char *const names[] = {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                                      "pytorch_model.bin.index.json"};
  char file[TWS_FOLDER_SIZE];
  struct stat info;
  if (stat(path, &info) != 0) return 0;
  if (S_ISREG(info.st_mode)) return 1;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    snprintf(file, sizeof file, "%.3900s/%s", path, names[i]);
    if (access(file, F_OK) == 0) return 1;
  }
  return 0;
}

tws_code tws_weights_convert(const char *from, const char *path, tws_export_result *result, tws_error *err) {
  tws_gathering g = {.arena = tws_arena_create()};
  tws_safetensors *list = NULL;
  if (!g.arena) return no_memory(err);
  tws_code code = tws_safetensors_open(from, &list, err);
  for (uint32_t i = 0; code == TWS_OK && i < list->file_count; i++)
    if (tws_torch_is(list->files[i])) code = verify_torch_file(list->files[i], err);
  for (uint32_t i = 0; code == TWS_OK && i < list->count; i++) {
    const tws_safetensor *t = &list->tensors[i];
    if (t->dims > TWS_SAFETENSOR_DIMS) {
      code = tws_fail(err, TWS_UNSUPPORTED, NULL, "tensor %.200s has %d dimensions", t->name, t->dims);
      break;
    }
    const tws_weight_run run = {list->files[t->file], t->dtype, (uint64_t)t->begin, (uint64_t)t->elements};
    code = tws_gathering_add(&g, t->name, t->shape, (uint32_t)t->dims, &run, 1, err);
  }
  if (code == TWS_OK) code = tws_gathering_write(&g, path, result, err);
  tws_safetensors_close(list);
  tws_free(g.gathered);
  tws_arena_destroy(g.arena);
  return code;
}
