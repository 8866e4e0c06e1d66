/* Weights of a Hugging Face model for a new training: every rank reads the elements that its own state contains.
 *
 * Upcycling (Komatsuzaki et al., 2023): if the file is of a model without experts, each expert starts with the weights
 * of that model's MLP, and routers are initialized at random. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/memory.h"
#include "checkpoint/read.h"
#include "models/network/huggingface.h"
#include "models/network/safetensors.h"
#include "real/init.h"
#include "real/split_masters.h"
#include "real/train_internal.h"

enum { CHUNK = 1 << 20 };

typedef struct weights_file {
  tws_training *t;
  tws_arena *arena;
  tws_safetensors *file;
  tws_hf_tensor *tensors; /* the tensors of all parameters, by parameter and row */
  const tws_safetensor **found;
  uint32_t *first; /* [parameter] index in `tensors` of the parameter's first tensor; one more entry ends the list */
  uint32_t count;
  int fd;
  uint32_t open; /* index of the file that is open; TWS_NONE: none */
  int upcycles;  /* 1: the file is of a model without experts */
  uint32_t held; /* index of the tensor in `bytes`, or TWS_NONE */
  void *bytes;   /* the data of that tensor */
  float *values, *converted;
} weights_file;

/* ---- check that the file is of this model ---- */

/* Finds a tensor by name. Files of a model without its head lack the first word of names. */
static const tws_safetensor *find_tensor(const tws_safetensors *file, const char *name) {
  const tws_safetensor *found = tws_safetensors_find(file, name);
  const char *dot = strchr(name, '.');
  return found || !dot ? found : tws_safetensors_find(file, dot + 1);
}

static void print_shape(char *to, size_t room, const int64_t *shape, int dims) {
  size_t length = 0;
  *to = 0;
  for (int i = 0; i < dims && length < room; i++)
    length += (size_t)snprintf(to + length, room - length, "%s%" PRId64, i ? " x " : "", shape[i]);
}

static tws_code wrong_shape(const weights_file *w, const tws_hf_tensor *tensor, const tws_safetensor *found,
                            const int64_t *shape, int dims, tws_error *err) {
  char have[96], wanted[96];
  print_shape(have, sizeof have, found->shape, found->dims < TWS_SAFETENSOR_DIMS ? found->dims : TWS_SAFETENSOR_DIMS);
  print_shape(wanted, sizeof wanted, shape, dims);
  return tws_fail(err, TWS_INVALID, "is it of the model that -m names?",
                  "%s: tensor %s has %s elements, and the model's %s", w->file->files[found->file], tensor->name, have,
                  wanted);
}

/* Returns 1 if a tensor is a router's: "...mlp.gate.weight". */
static int is_router(const tws_network *network, const tws_hf_tensor *tensor) {
  const char *at = strstr(tensor->name, ".gate.weight");
  return tws_network_has_experts(network) && at && at[strlen(".gate.weight")] == 0;
}

/* Finds the dense tensor from which an expert is initialized: for the expert's
 * "model.layers.0.mlp.experts.3.up_proj.weight", or Mixtral's "...block_sparse_moe.experts.3.w3.weight", it is
 * "model.layers.0.mlp.up_proj.weight". */
static const tws_safetensor *find_dense(weights_file *w, tws_hf_tensor *tensor) {
  static const char *const words[][2] = {{"w1.", "gate_proj."}, {"w2.", "down_proj."}, {"w3.", "up_proj."}};
  const tws_network *network = w->t->plan->network;
  const char *at = strstr(tensor->name, ".experts."), *word = at ? strchr(at + strlen(".experts."), '.') : NULL;
  if (!word || network->params[tensor->param].experts == 0) return NULL;
  int block = (int)(at - tensor->name);
  while (block > 0 && tensor->name[block - 1] != '.') block--; /* finds the end of the layer's name */
  const char *rest = word + 1, *dense = rest;
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (strncmp(rest, words[i][0], strlen(words[i][0])) == 0) {
      dense = words[i][1];
      rest += strlen(words[i][0]);
    }
  const char *name = dense == rest ? tws_arena_printf(w->arena, "%.*smlp.%s", block, tensor->name, rest)
                                   : tws_arena_printf(w->arena, "%.*smlp.%s%s", block, tensor->name, dense, rest);
  const tws_safetensor *found = name ? find_tensor(w->file, name) : NULL;
  if (found && tensor->dims == 2 && strcmp(network->architecture ? network->architecture : "", "gpt2") == 0)
    tensor->transposed = 1;
  return found;
}

static tws_code match_tensor(weights_file *w, uint32_t i, tws_error *err) {
  tws_hf_tensor *tensor = &w->tensors[i];
  const tws_safetensor *found = find_tensor(w->file, tensor->name);
  if (!found) found = find_dense(w, tensor);
  w->upcycles |= found && !find_tensor(w->file, tensor->name);
  /* routers of an upcycled model keep their random values */
  if (!found && is_router(w->t->plan->network, tensor)) return TWS_OK;
  /* adapters that the file lacks keep their initial values */
  if (!found && strstr(tensor->name, ".lora_")) return TWS_OK;
  int64_t shape[4] = {0};
  const int dims = tws_hf_shape(tensor, shape);
  if (!found)
    return tws_fail(err, TWS_INVALID,
                    "is it of the model that -m names? a head of its own is tie_word_embeddings: false",
                    "%s: there is no tensor \"%s\"", w->t->options->init_from, tensor->name);
  if (found->dims != dims || memcmp(found->shape, shape, (size_t)dims * sizeof *shape) != 0)
    return wrong_shape(w, tensor, found, shape, dims, err);
  if (tws_safetensors_dtype(found->dtype) < 0)
    return tws_fail(err, TWS_UNSUPPORTED, "convert it to F32, BF16 or F16 first", "%s: tensor %s is of type %s",
                    w->file->files[found->file], tensor->name, found->dtype);
  w->found[i] = found;
  return TWS_OK;
}

static tws_code match_tensors(weights_file *w, tws_error *err) {
  const tws_network *network = w->t->plan->network;
  const tws_hf_request names = {.architecture = network->architecture ? network->architecture : "",
                                .params = network->params,
                                .param_count = network->param_count,
                                .vocabulary = network->vocabulary,
                                .padded_vocabulary = network->padded_vocabulary};
  TWS_TRY(tws_hf_tensors(&names, w->arena, &w->tensors, &w->count, err));
  w->found = tws_arena_alloc(w->arena, w->count + (size_t)1, sizeof *w->found);
  w->first = tws_arena_alloc(w->arena, network->param_count + (size_t)2, sizeof *w->first);
  if (!w->found || !w->first) return tws_fail(err, TWS_MEMORY, NULL, "no memory to read weights with");
  for (uint32_t i = 0; i < w->count; i++) {
    TWS_TRY(match_tensor(w, i, err));
    w->first[w->tensors[i].param + 1] = i + 1;
  }
  for (uint32_t i = 0; i < w->count && !w->upcycles; i++)
    if (!w->found[i] && !strstr(w->tensors[i].name, ".lora_"))
      return tws_fail(err, TWS_INVALID, "is it of the model that -m names?", "%s: there is no tensor \"%s\"",
                      w->t->options->init_from, w->tensors[i].name);
  return TWS_OK;
}

/* ---- reading ---- */

static tws_code read_bytes(weights_file *w, const tws_safetensor *found, int64_t offset, void *to, size_t count,
                           tws_error *err) {
  const char *path = w->file->files[found->file];
  if (w->open != found->file) {
    if (w->fd >= 0) close(w->fd);
    w->open = TWS_NONE;
    TWS_TRY(tws_open_regular(path, &w->fd, err));
    w->open = found->file;
  }
  for (size_t done = 0; done < count;) {
    const ssize_t n = pread(w->fd, (char *)to + done, count - done, (off_t)(found->begin + offset) + (off_t)done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return tws_fail(err, TWS_IO, NULL, "%s: %s", path, n < 0 ? strerror(errno) : "it ends too early");
    done += (size_t)n;
  }
  return TWS_OK;
}

/* Holds tensor i in memory. A tensor that is stored transposed is read whole: the elements of a row are far apart in
 * the file. */
static tws_code hold_tensor(weights_file *w, uint32_t i, tws_error *err) {
  const tws_safetensor *found = w->found[i];
  if (w->held == i) return TWS_OK;
  tws_free(w->bytes);
  w->held = TWS_NONE;
  w->bytes = tws_calloc((size_t)(found->end - found->begin) + 1, 1);
  if (!w->bytes) return tws_fail(err, TWS_MEMORY, NULL, "no memory to read tensor %s", found->name);
  TWS_TRY(read_bytes(w, found, 0, w->bytes, (size_t)(found->end - found->begin), err));
  w->held = i;
  return TWS_OK;
}

/* Reads a tensor whose rows have another order in the file. */
static tws_code read_dealt(weights_file *w, uint32_t i, uint64_t at, uint64_t count, float *to, tws_error *err) {
  const tws_hf_tensor *tensor = &w->tensors[i];
  const tws_dtype dtype = (tws_dtype)tws_safetensors_dtype(w->found[i]->dtype);
  const uint64_t columns = (uint64_t)tensor->columns;
  for (uint64_t done = 0; done < count;) {
    const uint64_t row = (at + done) / columns, column = (at + done) % columns;
    const uint64_t left = columns - column, run = left < count - done ? left : count - done;
    const uint64_t from = (uint64_t)tws_hf_row(tensor, (int64_t)row) * columns + column;
    TWS_TRY(read_bytes(w, w->found[i], (int64_t)(from * tws_dtype_bytes(dtype)), w->converted,
                       run * tws_dtype_bytes(dtype), err));
    tws_convert_elements(dtype, w->converted, TWS_F32, to + done, run);
    done += run;
  }
  return TWS_OK;
}

/* Reads elements [first, first + count) of the whole parameter, which are all in tensor i, and converts them to
 * float32. */
static tws_code read_run(weights_file *w, uint32_t i, uint64_t first, uint64_t count, float *to, tws_error *err) {
  const tws_hf_tensor *tensor = &w->tensors[i];
  const tws_dtype dtype = (tws_dtype)tws_safetensors_dtype(w->found[i]->dtype);
  const size_t size = tws_dtype_bytes(dtype);
  const uint64_t at = first - (uint64_t)(tensor->first_row * tensor->columns);
  if (tensor->groups > 1) return read_dealt(w, i, at, count, to, err);
  if (!tensor->transposed) {
    TWS_TRY(read_bytes(w, w->found[i], (int64_t)(at * size), w->converted, count * size, err));
    tws_convert_elements(dtype, w->converted, TWS_F32, to, count);
    return TWS_OK;
  }
  TWS_TRY(hold_tensor(w, i, err));
  const uint64_t columns = (uint64_t)tensor->columns, rows = (uint64_t)tensor->rows;
  for (uint64_t k = 0; k < count; k++) {
    const uint64_t row = (at + k) / columns, column = (at + k) % columns;
    tws_convert_elements(dtype, (const char *)w->bytes + (column * rows + row) * size, TWS_F32, to + k, 1);
  }
  return TWS_OK;
}

/* Reads the elements of a segment that the file contains: padded rows, and routers if the file has none, keep their
 * initial values. */
static tws_code read_elements(weights_file *w, const tws_piece *piece, uint64_t first, uint64_t count, tws_error *err) {
  for (uint64_t done = 0; done < count;) {
    uint64_t run, end = 0, whole = tws_param_slice_whole(&piece->slice, first + done, &run);
    uint32_t i = w->first[piece->param];
    if (run > count - done) run = count - done;
    for (; i < w->first[piece->param + 1]; i++) {
      end = (uint64_t)((w->tensors[i].first_row + w->tensors[i].rows) * w->tensors[i].columns);
      if (whole < end) break;
    }
    if (whole < end) {
      if (run > end - whole) run = end - whole;
      if (w->found[i]) TWS_TRY(read_run(w, i, whole, run, w->values + done, err));
    }
    done += run;
  }
  return TWS_OK;
}

static tws_code load_chunk(weights_file *w, uint32_t buffer, const tws_piece *piece, uint64_t done, uint64_t count,
                           tws_error *err) {
  tws_training *t = w->t;
  const tws_dtype dtype = (tws_dtype)t->plan->buffers[buffer].dtype;
  /* 1: the file lacks the parameter, or parts of it */
  const int lacks = w->upcycles || !w->found[w->first[piece->param]];
  if (lacks || t->plan->network->padded_vocabulary != t->plan->network->vocabulary) {
    const tws_dtype from = dtype == TWS_LOW16 ? TWS_F32 : dtype;
    TWS_TRY(tws_whole_get(t->executor, t->plan, buffer, piece->at + done, count, w->converted, err));
    tws_convert_elements(from, w->converted, TWS_F32, w->values, count);
  }
  TWS_TRY(read_elements(w, piece, piece->first + done, count, err));
  tws_convert_elements(TWS_F32, w->values, dtype, w->converted, count);
  return tws_executor_put(t->executor, TWS_PROGRAM_TRAIN, buffer, piece->at + done, w->converted, count, err);
}

/* Loads a quantized parameter. Rows that the file lacks are computed as initial values. */
static tws_code load_quantized(weights_file *w, const tws_shard *shard, tws_error *err) {
  const tws_plan *plan = w->t->plan;
  const tws_param *param = &plan->network->params[shard->param];
  const tws_param_slice *slice = plan->slices ? &plan->slices[shard->param] : NULL;
  const tws_piece piece = {.param = shard->param, .slice = tws_slice_of(param, slice), .first = shard->param_first};
  const uint64_t chunk = tws_quantized_chunk(plan, CHUNK);
  for (uint64_t done = 0, n; done < shard->count; done += n) {
    n = shard->count - done < chunk ? shard->count - done : chunk;
    tws_init_part(param, shard->param, (uint64_t)w->t->config->seed, slice, piece.first + done, n, w->values);
    TWS_TRY(read_elements(w, &piece, piece.first + done, n, err));
    TWS_TRY(tws_training_put_quantized(w->t, shard->storage_offset + done, w->values, n, err));
  }
  return TWS_OK;
}

static tws_code load_weights(weights_file *w, tws_error *err) {
  const tws_plan *plan = w->t->plan;
  tws_piece *held;
  uint32_t count;
  TWS_TRY(tws_pieces_of(plan, w->arena, &held, &count, err));
  for (uint32_t i = 0; i < count; i++) {
    const tws_state_entry *entry = &plan->state->entries[held[i].entry];
    if (held[i].param == TWS_NONE || entry->initial != TWS_INITIAL_PARAMETER) continue;
    const uint32_t buffer = tws_training_buffer(plan, plan->state->entries[held[i].held].name);
    for (uint64_t done = 0; done < held[i].count; done += CHUNK) {
      const uint64_t left = held[i].count - done;
      TWS_TRY(load_chunk(w, buffer, &held[i], done, left < CHUNK ? left : CHUNK, err));
    }
  }
  for (uint32_t i = 0; i < plan->state->shard_count; i++)
    if (tws_shard_is_quantized(plan, &plan->state->shards[i])) TWS_TRY(load_quantized(w, &plan->state->shards[i], err));
  return TWS_OK;
}

tws_code tws_init_from(tws_training *t, tws_error *err) {
  weights_file w = {.t = t, .fd = -1, .open = TWS_NONE, .held = TWS_NONE, .arena = tws_arena_create()};
  w.values = tws_calloc(CHUNK, sizeof *w.values);
  w.converted = tws_calloc(CHUNK, sizeof(double));
  tws_code code =
      w.arena && w.values && w.converted ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "no memory to read weights with");
  if (code == TWS_OK) code = tws_safetensors_open(t->options->init_from, &w.file, err);
  if (code == TWS_OK) code = match_tensors(&w, err);
  if (code == TWS_OK) code = load_weights(&w, err);
  if (w.fd >= 0) close(w.fd);
  tws_safetensors_close(w.file);
  tws_free(w.bytes);
  tws_free(w.values);
  tws_free(w.converted);
  tws_arena_destroy(w.arena);
  return code;
}
