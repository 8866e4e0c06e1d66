/* Reads checkpoints of DeepSpeed. Sources of the names and the layout: DeepSpeed's documentation of ZeRO checkpoints,
 * and files that it has written (tests/golden/deepspeed). */
#include "checkpoint/deepspeed.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fingerprint.h"
#include "base/number.h"
#include "models/network/safetensors.h"
#include "models/network/torch_file.h"

enum { MOST_RANKS = 65536 };

typedef struct reader {
  const char *folder;
  tws_deepspeed *out;
  tws_arena *arena;
  char **optimizer; /* [rank] path of the rank's optimizer file; NULL: missing */
  int64_t optimizer_count, optimizer_room;
  tws_torch_file *model;  /* the module's file of rank 0 */
  tws_weight_run **parts; /* [rank][group] the rank's partition of the group's float32 master weights */
  uint64_t **said;        /* [rank][group] with ZeRO 1 and 2: hash, from the rank's file, of the names of the parameters
                           * in the partition; 0: the file does not list them */
  uint32_t groups;
  tws_weight_run *runs, *vector; /* runs: ranges of the parameter that is being assembled; vector: all ranks' partitions
                                  * of one parameter group, in the order of ranks */
  size_t run_count, run_room;
  const tws_pickle_value *alignment; /* with ZeRO 1 and 2: padding after each parameter; NULL: unknown */
  tws_torch_file *first_optimizer;   /* the file that contains `alignment` */
} reader;

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "no memory to read the checkpoint with");
}

static const char *in_folder(reader *r, const char *name) {
  return tws_arena_printf(r->arena, "%s/%s", r->folder, name);
}

/* ---- files ---- */

static int ends_with(const char *text, const char *end) {
  const size_t a = strlen(text), b = strlen(end);
  return a >= b && strcmp(text + a - b, end) == 0;
}

/* Parses a word and the number after it at *at, and moves *at past both. */
static int number_after(const char **at, const char *word, int most, int *value) {
  const size_t length = strlen(word);
  return strncmp(*at, word, length) == 0 && isdigit((unsigned char)(*at)[length]) &&
         tws_text_int(*at + length, at, 0, most, value);
}

/* Returns 1 if the name is that of an optimizer file, such as "zero_pp_rank_3_mp_rank_00_optim_states.pt", with or
 * without the prefix "bf16_" or "fp16_"; older releases wrote no underscore after the second number. Sets *rank and
 * *model_rank to the two numbers. */
static int is_optimizer(const char *name, int *rank, int *model_rank) {
  const char *at = strncmp(name, "bf16_", 5) == 0 || strncmp(name, "fp16_", 5) == 0 ? name + 5 : name;
  if (!number_after(&at, "zero_pp_rank_", 999999, rank) || !number_after(&at, "_mp_rank_", 9999, model_rank)) return 0;
  return strcmp(at + (*at == '_'), "optim_states.pt") == 0;
}

int tws_deepspeed_is(const char *folder) {
  DIR *directory = opendir(folder);
  struct dirent *entry;
  int is = 0;
  while (!is && directory && (entry = readdir(directory)))
    is = ends_with(entry->d_name, "_model_states.pt") || ends_with(entry->d_name, "-model_states.pt") ||
         ends_with(entry->d_name, "optim_states.pt");
  if (directory) closedir(directory);
  return is;
}

static tws_code refuse(const reader *r, const char *name, const char *what, tws_error *err) {
  return tws_fail(err, TWS_UNSUPPORTED, "export it with the framework that it was trained with", "%s/%s: %s", r->folder,
                  name, what);
}

static tws_code add_optimizer(reader *r, const char *name, int rank, tws_error *err) {
  if (rank >= MOST_RANKS) return refuse(r, name, "too many ranks", err);
  if (rank >= r->optimizer_room) {
    int64_t room = r->optimizer_room ? r->optimizer_room : 16;
    while (room <= rank) room *= 2;
    char **list = tws_realloc(r->optimizer, (size_t)room, sizeof *list);
    if (!list) return no_memory(err);
    memset(list + r->optimizer_room, 0, (size_t)(room - r->optimizer_room) * sizeof *list);
    r->optimizer = list;
    r->optimizer_room = room;
  }
  if (r->optimizer[rank])
    return tws_fail(err, TWS_INVALID, "remove what another run left there", "%s: two files of rank %d's optimizer",
                    r->folder, rank);
  r->optimizer[rank] = tws_arena_strdup(r->arena, name);
  r->optimizer_count++;
  return r->optimizer[rank] ? TWS_OK : no_memory(err);
}

static tws_code add_file(reader *r, const char *name, tws_error *err) {
  int rank = 0, model_rank = 0;
  if (strncmp(name, "expp_rank_", 10) == 0 || (strncmp(name, "layer_", 6) == 0 && strstr(name, "_expert_")))
    return refuse(r, name, "experts, which zero_to_fp32 does not know either", err);
  if (strncmp(name, "layer_", 6) == 0 && ends_with(name, "model_states.pt"))
    return refuse(r, name, "a pipeline's layers, which zero_to_fp32 does not know either", err);
  if (is_optimizer(name, &rank, &model_rank)) {
    if (model_rank > 0) return refuse(r, name, "tensor parallelism, which zero_to_fp32 does not know either", err);
    return add_optimizer(r, name, rank, err);
  }
  const char *at = name;
  if (number_after(&at, "mp_rank_", 9999, &model_rank) && model_rank > 0)
    return refuse(r, name, "tensor parallelism, which zero_to_fp32 does not know either", err);
  return TWS_OK;
}

static tws_code list_files(reader *r, tws_error *err) {
  DIR *directory = opendir(r->folder);
  struct dirent *entry;
  if (!directory) return tws_fail(err, TWS_IO, NULL, "%s: %s", r->folder, strerror(errno));
  tws_code code = TWS_OK;
  while (code == TWS_OK && (entry = readdir(directory))) code = add_file(r, entry->d_name, err);
  closedir(directory);
  return code;
}

static tws_code missing(const reader *r, const char *file, const char *what, tws_error *err) {
  return tws_fail(err, TWS_INVALID, "is the file damaged, or from another version?", "%s/%s: it has no %s", r->folder,
                  file, what);
}

/* ---- tensors and shapes in pickles ---- */

static tws_code make_run(reader *r, tws_torch_file *file, const tws_pickle_value *tensor, const char *name,
                         tws_weight_run *run, tws_error *err) {
  int64_t at;
  TWS_TRY(tws_torch_place(file, tensor, name, &at, err));
  TWS_TRY(tws_torch_verify(file, tensor, err));
  *run = (tws_weight_run){.path = tws_arena_strdup(r->arena, file->archive->path),
                          .dtype = tws_arena_strdup(r->arena, tensor->storage->dtype),
                          .at = (uint64_t)at,
                          .elements = tensor->elements};
  return run->path && run->dtype ? TWS_OK : no_memory(err);
}

static tws_code read_shape(const tws_torch_file *file, const char *name, const tws_pickle_value *from, int64_t *shape,
                           uint64_t *elements, tws_error *err) {
  int good =
      from && (from->kind == TWS_PICKLE_TUPLE || from->kind == TWS_PICKLE_LIST) && from->count <= TWS_WEIGHT_DIMS;
  *elements = 1;
  for (uint32_t i = 0; good && i < from->count; i++)
    good = tws_pickle_integer(from->items[i], &shape[i]) && shape[i] >= 0 &&
           !__builtin_mul_overflow(*elements, (uint64_t)shape[i], elements) && *elements < UINT64_C(1) << 60;
  return good ? TWS_OK
              : tws_fail(err, TWS_INVALID, NULL, "%s: parameter \"%.200s\" has no shape", file->archive->path, name);
}

static int is_item(const tws_pickle_value *dict, uint32_t i, tws_pickle_kind kind) {
  return dict->items[i]->kind == TWS_PICKLE_TEXT && (int)kind == (int)dict->items[i + 1]->kind;
}

/* Adds a weight whose tensor in the module is stored whole, not partitioned. */
static tws_code add_whole(reader *r, const char *name, const tws_pickle_value *tensor, tws_error *err) {
  tws_weight_run run;
  TWS_TRY(make_run(r, r->model, tensor, name, &run, err));
  return tws_gathering_add(&r->out->weights, name, tensor->shape, tensor->count, &run, 1, err);
}

static int is_listed(const tws_pickle_value *list, const char *name) {
  for (uint32_t i = 0; list && list->kind == TWS_PICKLE_LIST && i < list->count; i++)
    if (list->items[i]->kind == TWS_PICKLE_TEXT && strcmp(list->items[i]->text, name) == 0) return 1;
  return 0;
}

/* Adds the weights of the module's buffers or, with `all`, of all of its tensors. */
static tws_code add_module(reader *r, int all, tws_error *err) {
  const tws_pickle_value *module = tws_pickle_get(r->model->pickle.root, "module");
  const tws_pickle_value *buffers = tws_pickle_get(r->model->pickle.root, "buffer_names");
  if (!module || module->kind != TWS_PICKLE_DICT) return missing(r, "*_model_states.pt", "module", err);
  for (uint32_t i = 0; i + 1 < module->count; i += 2)
    if (is_item(module, i, TWS_PICKLE_TENSOR) && (all || is_listed(buffers, module->items[i]->text)))
      TWS_TRY(add_whole(r, module->items[i]->text, module->items[i + 1], err));
  return TWS_OK;
}

/* ---- the float32 master weights of each rank ---- */

/* Returns a hash of the parameter names in a group's slice mappings. Nothing else in a file of ZeRO 1 and 2 identifies
 * the rank whose partition it contains. */
static uint64_t names_of_slices(const tws_pickle_value *mappings, uint32_t group) {
  uint64_t names = 0;
  if (!mappings || mappings->kind != TWS_PICKLE_LIST || group >= mappings->count) return 0;
  const tws_pickle_value *one = mappings->items[group];
  for (uint32_t i = 0; one->kind == TWS_PICKLE_DICT && i + 1 < one->count; i += 2)
    if (one->items[i]->kind == TWS_PICKLE_TEXT) names = tws_fingerprint_text(names, one->items[i]->text);
  return names;
}

static tws_code read_part(reader *r, int64_t rank, tws_torch_file *file, const tws_pickle_value *list,
                          const tws_pickle_value *mappings, tws_error *err) {
  const char *name = r->optimizer[rank];
  if (!list || list->kind != TWS_PICKLE_LIST) return missing(r, name, "float32 partitions", err);
  if (rank == 0) r->groups = list->count;
  r->parts[rank] = tws_arena_alloc(r->arena, list->count + (size_t)1, sizeof **r->parts);
  if (!r->parts[rank]) return no_memory(err);
  if (list->count != r->groups)
    return tws_fail(err, TWS_INVALID, "files of several runs?", "%s/%s: %u groups, and rank 0 has %u", r->folder, name,
                    list->count, r->groups);
  r->said[rank] = tws_arena_alloc(r->arena, list->count + (size_t)1, sizeof **r->said);
  if (!r->said[rank]) return no_memory(err);
  for (uint32_t g = 0; g < list->count; g++) {
    const tws_pickle_value *tensor = list->items[g];
    r->said[rank][g] = names_of_slices(mappings, g);
    if (tensor->kind != TWS_PICKLE_TENSOR || tws_safetensors_dtype(tensor->storage->dtype) < 0)
      return missing(r, name, "tensor of masters in each group", err);
    TWS_TRY(make_run(r, file, tensor, "of masters", &r->parts[rank][g], err));
  }
  return TWS_OK;
}

static tws_code read_world(reader *r, const tws_pickle_value *state, tws_error *err) {
  const tws_pickle_value *count = tws_pickle_get(state, "partition_count");
  int64_t world = 0;
  if (!tws_pickle_integer(count, &world))
    for (uint32_t i = 0; count && count->kind == TWS_PICKLE_LIST && i < count->count; i++) {
      int64_t one = 0;
      if (tws_pickle_integer(count->items[i], &one) && one > world) world = one;
    }
  if (!tws_pickle_integer(tws_pickle_get(state, "zero_stage"), &r->out->stage) || r->out->stage < 1 ||
      r->out->stage > 3)
    return missing(r, r->optimizer[0], "zero_stage of 1, 2 or 3", err);
  r->out->ranks = world;
  for (int64_t rank = 0; rank < world && rank < r->optimizer_count; rank++)
    if (!r->optimizer[rank])
      return tws_fail(err, TWS_INVALID, "gather the files of all nodes in one folder",
                      "%s: rank %lld's *_optim_states.pt is missing", r->folder, (long long)rank);
  if (world == r->optimizer_count && world > 0) return TWS_OK;
  return tws_fail(err, TWS_INVALID, "gather the files of all nodes in one folder, and of no other run",
                  "%s: %lld ranks saved it, and there are %lld files *_optim_states.pt", r->folder, (long long)world,
                  (long long)r->optimizer_count);
}

static tws_code read_rank(reader *r, int64_t rank, tws_error *err) {
  tws_torch_file *file = NULL;
  const char *path = in_folder(r, r->optimizer[rank]);
  if (!path) return no_memory(err);
  TWS_TRY(tws_torch_open(path, &file, err));
  if (rank == 0) r->first_optimizer = file; /* the reader closes this file */
  const tws_pickle_value *state = tws_pickle_get(file->pickle.root, "optimizer_state_dict");
  tws_code code = state ? TWS_OK : missing(r, r->optimizer[rank], "optimizer_state_dict", err);
  if (code == TWS_OK && rank == 0) {
    r->alignment = tws_pickle_get(state, "param_alignment_paddings");
    code = read_world(r, state, err);
  }
  if (code == TWS_OK)
    code = read_part(r, rank, file,
                     tws_pickle_get(state, r->out->stage < 3 ? "single_partition_of_fp32_groups" : "fp32_flat_groups"),
                     r->out->stage < 3 ? tws_pickle_get(state, "param_slice_mappings") : NULL, err);
  if (rank > 0) tws_torch_close(file);
  return code;
}

static tws_code read_parts(reader *r, tws_error *err) {
  if (!r->optimizer[0])
    return tws_fail(err, TWS_INVALID, "gather the files of all nodes in one folder",
                    "%s: rank 0's *_optim_states.pt is missing", r->folder);
  r->parts = tws_arena_alloc(r->arena, (size_t)r->optimizer_count + 1, sizeof *r->parts);
  r->said = tws_arena_alloc(r->arena, (size_t)r->optimizer_count + 1, sizeof *r->said);
  if (!r->parts || !r->said) return no_memory(err);
  for (int64_t rank = 0; rank < r->optimizer_count; rank++) TWS_TRY(read_rank(r, rank, err));
  return TWS_OK;
}

/* ---- assembly of parameters from partitions ---- */

/* Appends elements [first, first + count) of the concatenation of the ranges `from` to r->runs, the ranges of the
 * parameter that is being assembled. */
static tws_code cut(reader *r, const tws_weight_run *from, uint64_t runs, uint64_t first, uint64_t count,
                    const char *name, tws_error *err) {
  uint64_t before = 0;
  for (uint64_t i = 0; i < runs && count > 0; before += from[i++].elements) {
    if (first >= before + from[i].elements) continue;
    const uint64_t skipped = first - before, left = from[i].elements - skipped, n = count < left ? count : left;
    if (tws_reserve(&r->runs, &r->run_room, r->run_count + 1, sizeof *r->runs)) return no_memory(err);
    r->runs[r->run_count] = from[i];
    r->runs[r->run_count].at += skipped * (uint64_t)tws_safetensors_bytes(from[i].dtype);
    r->runs[r->run_count++].elements = n;
    first += n;
    count -= n;
  }
  return count == 0 ? TWS_OK
                    : tws_fail(err, TWS_INVALID, "files of several runs?",
                               "%s: there are too few elements for parameter \"%.200s\"", r->folder, name);
}

static tws_code add_cut(reader *r, const char *name, const int64_t *shape, const tws_pickle_value *from,
                        tws_error *err) {
  const size_t count = r->run_count;
  r->run_count = 0;
  return tws_gathering_add(&r->out->weights, name, shape, from->count, r->runs, (uint32_t)count, err);
}

static const char *key_of(const tws_pickle_value *dict, uint32_t i) {
  return dict->items[i]->kind == TWS_PICKLE_TEXT ? dict->items[i]->text : "?";
}

static uint64_t round_up(uint64_t count, uint64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

static tws_code wrong_sum(const reader *r, uint64_t there, uint64_t used, tws_error *err) {
  return tws_fail(err, TWS_INVALID, "files of several runs?",
                  "%s: there are %llu masters, and the parameters that they are of have %llu elements", r->folder,
                  (unsigned long long)there, (unsigned long long)used);
}

/* ---- ZeRO 1 and 2: a group's vector, partitioned among the ranks ---- */

/* Sets *gap to the padding, in elements, that follows parameter i of a group. */
static tws_code read_gap(const reader *r, uint32_t group, uint32_t i, int64_t *gap, tws_error *err) {
  const tws_pickle_value *all = r->alignment;
  *gap = 0;
  if (!all || all->kind == TWS_PICKLE_NONE) return TWS_OK;
  const tws_pickle_value *gaps = all->kind == TWS_PICKLE_LIST && group < all->count ? all->items[group] : NULL;
  if (gaps && gaps->kind == TWS_PICKLE_LIST && i < gaps->count && tws_pickle_integer(gaps->items[i], gap) &&
      *gap >= 0 && *gap < INT64_C(1) << 60)
    return TWS_OK;
  return missing(r, r->optimizer[0], "param_alignment_paddings of each parameter", err);
}

/* Compares the hash of parameter names in each rank's file with the hash expected for that rank. If it is the hash
 * expected for another rank, the files were swapped, and the function fails. Other differences are accepted, because
 * parameter names vary. */
static tws_code check_places(reader *r, uint32_t group, const uint64_t *expected, tws_error *err) {
  for (int64_t rank = 0; rank < r->out->ranks; rank++)
    for (int64_t other = 0; other < r->out->ranks; other++)
      if (r->said[rank][group] && r->said[rank][group] != expected[rank] && r->said[rank][group] == expected[other])
        return tws_fail(err, TWS_INVALID, "give the files the names that they were saved with",
                        "%s/%s: it has what rank %lld saved: files that changed places?", r->folder, r->optimizer[rank],
                        (long long)other);
  return TWS_OK;
}

/* Adds the name of a parameter, elements [first, first + count) of the group's vector, to the expected hashes of the
 * ranks whose partitions overlap it. */
static void expect_names(const reader *r, const char *name, uint64_t first, uint64_t count, uint64_t *expected) {
  uint64_t begin = 0;
  for (int64_t rank = 0; rank < r->out->ranks; begin += r->vector[rank++].elements)
    if (count > 0 && first < begin + r->vector[rank].elements && begin < first + count)
      expected[rank] = tws_fingerprint_text(expected[rank], name);
}

static tws_code add_group(reader *r, uint32_t group, const tws_pickle_value *shapes, tws_error *err) {
  uint64_t used = 0, there = 0;
  uint64_t *expected = tws_arena_alloc(r->arena, (size_t)r->out->ranks + 1, sizeof *expected);
  if (!expected) return no_memory(err);
  if (shapes->kind != TWS_PICKLE_DICT) return missing(r, "mp_rank_00_model_states.pt", "param_shapes", err);
  for (int64_t rank = 0; rank < r->out->ranks; rank++) {
    r->vector[rank] = r->parts[rank][group];
    there += r->vector[rank].elements;
  }
  for (uint32_t i = 0; i + 1 < shapes->count; i += 2) {
    const char *name = key_of(shapes, i);
    int64_t shape[TWS_WEIGHT_DIMS], gap;
    uint64_t elements;
    TWS_TRY(read_shape(r->model, name, shapes->items[i + 1], shape, &elements, err));
    TWS_TRY(read_gap(r, group, i / 2, &gap, err));
    expect_names(r, name, used, elements, expected);
    TWS_TRY(cut(r, r->vector, (uint64_t)r->out->ranks, used, elements, name, err));
    TWS_TRY(add_cut(r, name, shape, shapes->items[i + 1], err));
    used += elements + (uint64_t)gap;
  }
  const uint64_t multiple = 2 * (uint64_t)r->out->ranks;
  TWS_TRY(check_places(r, group, expected, err));
  return round_up(used, multiple) == round_up(there, multiple) ? TWS_OK : wrong_sum(r, there, used, err);
}

static tws_code add_groups(reader *r, const tws_pickle_value *groups, tws_error *err) {
  r->vector = tws_arena_alloc(r->arena, (size_t)r->out->ranks + 1, sizeof *r->vector);
  if (!r->vector) return no_memory(err);
  if (groups->count != r->groups)
    return tws_fail(err, TWS_INVALID, "files of several runs?", "%s: %u groups of parameters, and masters of %u",
                    r->folder, groups->count, r->groups);
  for (uint32_t g = 0; g < groups->count; g++) TWS_TRY(add_group(r, g, groups->items[g], err));
  return TWS_OK;
}

/* ---- ZeRO 3: each parameter is partitioned among the ranks; each rank's file has its own list of groups ---- */

/* Returns how many elements of a parameter a rank holds, when it is partitioned into equal shards of `part` elements,
 * the last of which are padded. */
static uint64_t share_of(uint64_t elements, uint64_t part, int64_t rank) {
  const uint64_t before = part * (uint64_t)rank;
  return before >= elements ? 0 : elements - before < part ? elements - before : part;
}

static tws_code add_parameters(reader *r, const tws_pickle_value *groups, tws_error *err) {
  const uint64_t ranks = (uint64_t)r->out->ranks;
  uint64_t used = 0, there = 0;
  for (uint32_t g = 0; g < r->groups; g++) there += r->parts[0][g].elements;
  for (uint32_t g = 0; g < groups->count; g++) {
    const tws_pickle_value *shapes = groups->items[g];
    if (shapes->kind != TWS_PICKLE_DICT) return missing(r, "*_model_states.pt", "param_shapes", err);
    for (uint32_t i = 0; i + 1 < shapes->count; i += 2) {
      const char *name = key_of(shapes, i);
      int64_t shape[TWS_WEIGHT_DIMS];
      uint64_t elements;
      TWS_TRY(read_shape(r->model, name, shapes->items[i + 1], shape, &elements, err));
      const uint64_t part = (elements + ranks - 1) / ranks;
      for (int64_t rank = 0; rank < r->out->ranks; rank++)
        TWS_TRY(cut(r, r->parts[rank], r->groups, used, share_of(elements, part, rank), name, err));
      TWS_TRY(add_cut(r, name, shape, shapes->items[i + 1], err));
      used += part;
    }
  }
  return used == there ? TWS_OK : wrong_sum(r, there, used, err);
}

/* ---- parameters that were not trained ---- */

static tws_code read_fragments(reader *r, int64_t rank, tws_torch_file *file, const tws_pickle_value *shapes,
                               tws_weight_run *to, tws_error *err) {
  const tws_pickle_value *fragments = tws_pickle_get(file->pickle.root, "frozen_param_fragments");
  for (uint32_t i = 0; i + 1 < shapes->count; i += 2) {
    const tws_pickle_value *tensor = tws_pickle_get(fragments, key_of(shapes, i));
    if (!tensor || tensor->kind != TWS_PICKLE_TENSOR) return missing(r, "*_model_states.pt", "frozen parameter", err);
    TWS_TRY(make_run(r, file, tensor, key_of(shapes, i), &to[i / 2 * (uint64_t)r->out->ranks + (uint64_t)rank], err));
  }
  return TWS_OK;
}

/* Adds the frozen parameters: rank 0 has them whole or, with ZeRO 3, each rank has a partition. */
static tws_code add_frozen(reader *r, tws_error *err) {
  const tws_pickle_value *shapes = tws_pickle_get(r->model->pickle.root, "frozen_param_shapes");
  const int64_t ranks = r->out->stage < 3 ? 1 : r->out->ranks;
  if (!shapes || shapes->kind != TWS_PICKLE_DICT || shapes->count == 0) return TWS_OK;
  tws_weight_run *all = tws_arena_alloc(r->arena, shapes->count * (size_t)r->out->ranks, sizeof *all);
  if (!all) return no_memory(err);
  TWS_TRY(read_fragments(r, 0, r->model, shapes, all, err));
  for (int64_t rank = 1; rank < ranks; rank++) {
    tws_torch_file *file = NULL;
    const char *path =
        tws_arena_printf(r->arena, "%s/zero_pp_rank_%lld_mp_rank_00_model_states.pt", r->folder, (long long)rank);
    if (!path) return no_memory(err);
    TWS_TRY(tws_torch_open(path, &file, err));
    const tws_code code = read_fragments(r, rank, file, shapes, all, err);
    tws_torch_close(file);
    if (code != TWS_OK) return code;
  }
  for (uint32_t i = 0; i + 1 < shapes->count; i += 2) {
    int64_t shape[TWS_WEIGHT_DIMS];
    uint64_t elements;
    TWS_TRY(read_shape(r->model, key_of(shapes, i), shapes->items[i + 1], shape, &elements, err));
    TWS_TRY(cut(r, all + i / 2 * (uint64_t)r->out->ranks, (uint64_t)ranks, 0, elements, key_of(shapes, i), err));
    TWS_TRY(add_cut(r, key_of(shapes, i), shape, shapes->items[i + 1], err));
  }
  return TWS_OK;
}

/* Adds weights for further names (aliases) of tensors that have been added already. */
static tws_code add_aliases(reader *r, tws_error *err) {
  const tws_pickle_value *shared = tws_pickle_get(r->model->pickle.root, "shared_params");
  tws_gathering *g = &r->out->weights;
  for (uint32_t i = 0; shared && shared->kind == TWS_PICKLE_DICT && i + 1 < shared->count; i += 2) {
    if (!is_item(shared, i, TWS_PICKLE_TEXT)) continue;
    for (uint32_t k = 0; k < g->count; k++) {
      if (strcmp(g->gathered[k].weight.name, shared->items[i + 1]->text) != 0) continue;
      const tws_gathered same = g->gathered[k];
      TWS_TRY(tws_gathering_add(g, shared->items[i]->text, same.weight.shape, (uint32_t)same.weight.dims, same.runs,
                                same.run_count, err));
      break;
    }
  }
  return TWS_OK;
}

/* ---- the whole checkpoint ---- */

static tws_code open_model(reader *r, tws_error *err) {
  const char *path =
      in_folder(r, r->out->stage == 3 ? "zero_pp_rank_0_mp_rank_00_model_states.pt" : "mp_rank_00_model_states.pt");
  if (!path) return no_memory(err);
  TWS_TRY(tws_torch_open(path, &r->model, err));
  if (!tws_pickle_integer(tws_pickle_get(r->model->pickle.root, "global_steps"), &r->out->step)) r->out->step = -1;
  return TWS_OK;
}

/* ---- universal checkpoints: a folder for each parameter, merged from all ranks ---- */

static int has_shares(const reader *r) {
  struct stat info;
  const char *path = tws_arena_printf(r->arena, "%s/zero", r->folder);
  return path && stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Adds a merged parameter. Its file contains a dictionary {"param": tensor, ...} or, if ZeRO 3 saved it, a tensor
 * without its shape; the shape is then taken from the module's file. */
static tws_code add_merged(reader *r, tws_torch_file *file, const char *name, tws_error *err) {
  const tws_pickle_value *root = file->pickle.root, *tensor = tws_pickle_get(root, "param"), *shape = NULL;
  const tws_pickle_value *groups = tws_pickle_get(r->model->pickle.root, "param_shapes");
  int64_t sizes[TWS_WEIGHT_DIMS];
  uint64_t elements;
  tws_weight_run run;
  const int bare = root->kind == TWS_PICKLE_TENSOR;
  if (bare) tensor = root;
  if (!tensor || tensor->kind != TWS_PICKLE_TENSOR) return missing(r, name, "tensor of masters", err);
  TWS_TRY(make_run(r, file, tensor, name, &run, err));
  for (uint32_t g = 0; bare && !shape && groups && groups->kind == TWS_PICKLE_LIST && g < groups->count; g++)
    shape = tws_pickle_get(groups->items[g], name);
  if (!bare) return tws_gathering_add(&r->out->weights, name, tensor->shape, tensor->count, &run, 1, err);
  TWS_TRY(read_shape(r->model, name, shape, sizes, &elements, err));
  if (elements != run.elements) return wrong_sum(r, run.elements, elements, err);
  return tws_gathering_add(&r->out->weights, name, sizes, shape->count, &run, 1, err);
}

/* Adds the parameter of one folder below zero/. Buffers and aliases (tied tensors) are skipped, since other functions
 * add them. */
static tws_code add_share(reader *r, const char *name, tws_error *err) {
  const tws_pickle_value *root = r->model->pickle.root;
  tws_torch_file *file = NULL;
  if (name[0] == '.' || is_listed(tws_pickle_get(root, "buffer_names"), name)) return TWS_OK;
  if (tws_pickle_get(tws_pickle_get(root, "shared_params"), name)) return TWS_OK;
  const char *path = tws_arena_printf(r->arena, "%s/zero/%s/fp32.pt", r->folder, name);
  struct stat info;
  if (!path) return no_memory(err);
  if (stat(path, &info) != 0) return TWS_OK; /* a folder without fp32.pt is skipped */
  TWS_TRY(tws_torch_open(path, &file, err));
  const tws_code code = add_merged(r, file, name, err);
  tws_torch_close(file);
  return code;
}

static tws_code add_shares(reader *r, tws_error *err) {
  struct dirent **names = NULL;
  const char *path = in_folder(r, "zero");
  const int count = path ? scandir(path, &names, NULL, alphasort) : -1;
  tws_code code = count > 0 ? TWS_OK : tws_fail(err, TWS_IO, NULL, "%s/zero: cannot be read", r->folder);
  for (int i = 0; i < count; i++) {
    if (code == TWS_OK) code = add_share(r, names[i]->d_name, err);
    free(names[i]);
  }
  free(names);
  return code;
}

static tws_code read_universal(reader *r, tws_error *err) {
  struct stat info;
  const char *path = in_folder(r, "mp_rank_00_model_states.pt");
  if (!path) return no_memory(err);
  r->out->stage = stat(path, &info) == 0 ? 2 : 3;
  r->out->masters = 1;
  TWS_TRY(open_model(r, err));
  const tws_pickle_value *frozen = tws_pickle_get(r->model->pickle.root, "frozen_param_shapes");
  if (r->out->stage == 3 && frozen && frozen->kind == TWS_PICKLE_DICT && frozen->count > 0)
    return refuse(r, "zero", "a universal checkpoint of ZeRO 3 does not have the parameters that were not trained",
                  err);
  const tws_pickle_value *module = tws_pickle_get(r->model->pickle.root, "module");
  /* With pipeline parallelism the file mp_rank_00_model_states.pt contains no module. */
  if (module && module->kind == TWS_PICKLE_DICT) TWS_TRY(add_module(r, 0, err));
  TWS_TRY(add_shares(r, err));
  return add_aliases(r, err);
}

static tws_code read_checkpoint(reader *r, tws_error *err) {
  if (has_shares(r)) return read_universal(r, err);
  TWS_TRY(list_files(r, err));
  if (r->optimizer_count > 0) TWS_TRY(read_parts(r, err));
  TWS_TRY(open_model(r, err));
  const tws_pickle_value *shapes = tws_pickle_get(r->model->pickle.root, "param_shapes");
  const int divided = shapes && shapes->kind == TWS_PICKLE_LIST;
  if (!divided && r->optimizer_count == 0) return add_module(r, 1, err);
  if (r->optimizer_count == 0)
    return tws_fail(err, TWS_INVALID, "gather the files of all nodes in one folder",
                    "%s: it was saved with ZeRO, and there is no file *_optim_states.pt with its masters", r->folder);
  if (!divided) return missing(r, "*_model_states.pt", "param_shapes", err);
  r->out->masters = 1;
  TWS_TRY(add_module(r, 0, err));
  TWS_TRY(add_frozen(r, err));
  TWS_TRY(r->out->stage == 3 ? add_parameters(r, shapes, err) : add_groups(r, shapes, err));
  return add_aliases(r, err);
}

tws_code tws_deepspeed_open(const char *folder, tws_deepspeed *out, tws_error *err) {
  *out = (tws_deepspeed){.step = -1, .weights = {.arena = tws_arena_create()}};
  reader r = {.folder = folder, .out = out, .arena = out->weights.arena};
  if (!r.arena) return no_memory(err);
  const tws_code code = read_checkpoint(&r, err);
  tws_torch_close(r.model);
  tws_torch_close(r.first_optimizer);
  tws_free(r.optimizer);
  tws_free(r.runs);
  if (code != TWS_OK) tws_deepspeed_close(out);
  return code;
}

void tws_deepspeed_close(tws_deepspeed *checkpoint) {
  tws_free(checkpoint->weights.gathered);
  tws_arena_destroy(checkpoint->weights.arena);
  *checkpoint = (tws_deepspeed){0};
}
