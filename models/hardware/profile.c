#include "models/hardware/profile.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "models/hardware/profile_internal.h"

static int find_name(const char *word, const char *(*name)(int), int count) {
  for (int i = 0; i < count; i++) {
    if (strcmp(word, name(i)) == 0) return i;
  }
  return -1;
}
const char *tws_narrow_name(int narrow) {
  return (const char *const[TWS_NARROW_COUNT]){"fp8", "fp4"}[narrow];
}

static const char *dtype_word(int i) {
  return tws_dtype_name((tws_dtype)i);
}
static const char *kernel_word(int i) {
  return tws_kernel_name((tws_kernel)i);
}
static const char *collective_word(int i) {
  return tws_collective_name((tws_collective)i);
}

/* Reads a member that must be a word of a fixed list, and sets *value to its index; `fallback` < 0: the member is
 * required. */
static tws_code read_word(const tws_json *json, const cJSON *object, const char *key, const char *(*name)(int),
                          int count, int fallback, int *value, tws_error *err) {
  const char *word = NULL;
  TWS_TRY(tws_json_string(json, object, key, fallback < 0, fallback < 0 ? NULL : name(fallback), &word, err));
  *value = find_name(word, name, count);
  if (*value >= 0) return TWS_OK;
  const char *words[TWS_KERNEL_COUNT];
  for (int i = 0; i < count; i++) words[i] = name(i);
  const char *close = tws_closest(word, words, (size_t)count);
  char hint[128] = "";
  if (close != NULL) snprintf(hint, sizeof hint, "did you mean \"%s\"?", close);
  return tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(object, key), err, hint, "\"%s\": unknown word \"%.60s\"",
                       key, word);
}

/* Reads an optional member that must be an array (or object); *item becomes NULL if the member is absent. example: what
 * is written in such a member, the hint of an error. */
static tws_code read_child(const tws_json *json, const cJSON *object, const char *key, int array, const char *example,
                           const cJSON **item, tws_error *err) {
  *item = cJSON_GetObjectItemCaseSensitive(object, key);
  if (*item == NULL || cJSON_IsNull(*item)) {
    *item = NULL;
    return TWS_OK;
  }
  if (array ? cJSON_IsArray(*item) : cJSON_IsObject(*item)) return TWS_OK;
  return tws_json_fail(json, *item, err, example, "\"%s\" must be %s", key, array ? "a list" : "an object");
}

/* Reads a number of a sample: at most `most`, and positive unless `zero_allowed` is 1. */
static tws_code read_cell(const tws_json *json, const cJSON *item, int zero_allowed, double most, double *value,
                          tws_error *err) {
  *value = cJSON_IsNumber(item) ? item->valuedouble : NAN;
  if (isfinite(*value) && *value <= most && (zero_allowed ? *value >= 0 : *value > 0)) return TWS_OK;
  return tws_json_fail(json, item, err, NULL, "a sample must hold %s numbers here, up to %g",
                       zero_allowed ? "non-negative" : "positive", most);
}

/* examples for hints */
#define CURVE_EXAMPLE(unit) "for example [[1024, 2e-6], [1048576, 1e-4]]: " unit " and seconds"
#define KERNEL_EXAMPLE "{\"kernel\": \"linear\", \"dtype\": \"bf16\", \"samples\": [[4096, 1024, 1024, 1e-4]]}"
#define COLLECTIVE_EXAMPLE "{\"collective\": \"all_reduce\", \"ranks\": 8, \"samples\": [[1048576, 1e-4]]}"
#define COPIES_EXAMPLE "{\"ranks\": 1, \"to_device\": 2.5e10, \"to_host\": 2.5e10}"
#define CORRECTIONS_EXAMPLE "for example {\"kernels\": {\"linear\": 1.1}}"

#define SAMPLE_MOST 1e18 /* the largest size and the most seconds of a sample of kernels, collectives and messages */

/* Reads a list [[size, seconds], ...] into a curve. size: the unit of the first number, for messages; most_s: the most
 * seconds of a sample. */
static tws_code read_curve(const tws_json *json, const cJSON *list, const char *size, double most_s,
                           tws_profile *profile, tws_curve *curve, tws_error *err) {
  int count = cJSON_GetArraySize(list), i = 0;
  if (count == 0) return tws_json_fail(json, list, err, NULL, "there are no samples");
  double(*points)[2] = tws_calloc((size_t)count, sizeof *points);
  if (points == NULL) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for a profile");
  tws_code code = TWS_OK;
  const cJSON *row = NULL;
  cJSON_ArrayForEach(row, list) {
    if (!cJSON_IsArray(row) || cJSON_GetArraySize(row) != 2) {
      code = tws_json_fail(json, row, err, NULL, "a sample must be [%s, seconds]", size);
    } else {
      code = read_cell(json, row->child, 0, SAMPLE_MOST, &points[i][0], err);
      if (code == TWS_OK) code = read_cell(json, row->child->next, 0, most_s, &points[i][1], err);
    }
    if (code != TWS_OK) break;
    i++;
  }
  if (code == TWS_OK) code = tws_curve_create(profile->arena, points, (size_t)count, curve, err);
  tws_free(points);
  return code;
}

static const char *known_flags(char *text, size_t size) {
  size_t length = (size_t)snprintf(text, size, "known:");
  for (int i = 0; i < TWS_KERNEL_FLAGS; i++) {
    const char *word = tws_kernel_flag_name(i);
    if (word != NULL && length < size)
      length += (size_t)snprintf(text + length, size - length, "%s %s", i > 0 ? "," : "", word);
  }
  return text;
}

static tws_code read_flags(const tws_json *json, const cJSON *object, uint32_t *flags, tws_error *err) {
  const cJSON *list = NULL, *item = NULL;
  *flags = 0;
  TWS_TRY(read_child(json, object, "flags", 1, "for example [\"bias\"]", &list, err));
  cJSON_ArrayForEach(item, list) {
    uint32_t flag = 0;
    for (int i = 0; i < TWS_KERNEL_FLAGS && cJSON_IsString(item); i++) {
      const char *word = tws_kernel_flag_name(i);
      if (word != NULL && strcmp(word, item->valuestring) == 0) flag = 1u << i;
    }
    if (flag == 0) {
      char known[256];
      return tws_json_fail(json, item, err, known_flags(known, sizeof known), "unknown kernel flag");
    }
    *flags |= flag;
  }
  return TWS_OK;
}

/* limits of a file's length, because the time of fits grows with the square of these numbers */
enum { MAX_ENTRIES = 16384, MAX_SAMPLES = 16384 };

/* Returns the family of an entry: the entries of one kernel, types, flags and number of threads; creates it if it does
 * not exist. The array has room for two families per entry. */
static tws_family *find_family(tws_profile *profile, const tws_family *entry) {
  for (size_t i = 0; i < profile->family_count; i++) {
    tws_family *f = &profile->families[i];
    if (f->work.code == entry->work.code && f->work.dtype == entry->work.dtype &&
        f->work.dtype2 == entry->work.dtype2 && f->work.flags == entry->work.flags && f->threads == entry->threads &&
        f->busy == entry->busy && f->few_rows == entry->few_rows &&
        !(f->reread_bytes < entry->reread_bytes || f->reread_bytes > entry->reread_bytes)) {
      return f;
    }
  }
  tws_family *made = &profile->families[profile->family_count++];
  *made = *entry;
  return made;
}

/* Appends a sample to a family. */
static tws_code add_sample(const tws_work *work, double seconds, tws_family *family, tws_error *err) {
  const size_t need = family->count + 1;
  if (tws_reserve(&family->points, &family->point_capacity, need, sizeof *family->points) != 0 ||
      tws_reserve(&family->shapes, &family->shape_capacity, need, sizeof *family->shapes) != 0)
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory for a profile");
  family->points[family->count][0] = tws_work_bytes(work);
  family->points[family->count][1] = seconds;
  tws_shape_of(work, &family->shapes[family->count++]);
  if (work->flags & TWS_ACCUMULATE) family->accumulates = 1;
  return TWS_OK;
}

/* Appends the samples of one entry to its families. */
static tws_code read_samples(const tws_json *json, const cJSON *list, uint32_t flags, tws_profile *profile,
                             tws_family *entry, tws_error *err) {
  const tws_operator *operator= tws_operator_of((tws_kernel)entry->work.code);
  const int dims = operator->dims;
  int least_sizes = dims; /* trailing dimensions that may be 0 may be omitted */
  while (least_sizes > 0 && operator->least[least_sizes - 1] == 0) least_sizes--;
  const cJSON *row = NULL;
  cJSON_ArrayForEach(row, list) {
    const int sizes = cJSON_IsArray(row) ? cJSON_GetArraySize(row) - 1 : -1;
    if (sizes > dims || sizes < least_sizes) {
      return tws_json_fail(json, row, err, NULL, "a sample of %s must be %d sizes and the seconds",
                           tws_kernel_name((tws_kernel)entry->work.code), dims);
    }
    tws_work work = entry->work;
    work.flags = flags | operator->measured_flags;
    const cJSON *cell = row->child;
    double seconds = 0;
    for (int d = 0; d < sizes; d++, cell = cell->next) {
      double size = 0;
      int least = operator->least[d];
      TWS_TRY(read_cell(json, cell, least == 0, SAMPLE_MOST, &size, err));
      work.d[d] = (int64_t)fmin(size, 1e15);
      if (work.d[d] < least) return tws_json_fail(json, cell, err, NULL, "a size must be at least 1");
    }
    TWS_TRY(read_cell(json, cell, 0, SAMPLE_MOST, &seconds, err));
    entry->few_rows = tws_has_few_rows(&work);
    if (entry->reread_bytes > 0 && work.d[0] > profile->reread_rows) profile->reread_rows = work.d[0];
    tws_family *family = find_family(profile, entry);
    if (family->count == MAX_SAMPLES)
      return tws_json_fail(json, list, err, NULL, "more than %d samples of one kernel", MAX_SAMPLES);
    TWS_TRY(add_sample(&work, seconds, family, err));
  }
  return TWS_OK;
}

static tws_code read_family(const tws_json *json, const cJSON *item, tws_profile *profile, tws_error *err) {
  static const char *const known[] = {"kernel", "dtype",        "dtype2",  "flags", "threads",
                                      "busy",   "reread_bytes", "samples", NULL};
  if (!cJSON_IsObject(item))
    return tws_json_fail(json, item, err, "for example " KERNEL_EXAMPLE, "a kernel's entry must be an object");
  TWS_TRY(tws_json_only(json, item, known, err));
  int code = 0, dtype = 0, dtype2 = 0;
  int64_t threads = 1, busy = 1;
  uint32_t flags = 0;
  double reread_bytes = 0;
  TWS_TRY(read_word(json, item, "kernel", kernel_word, TWS_KERNEL_COUNT, -1, &code, err));
  TWS_TRY(read_word(json, item, "dtype", dtype_word, TWS_DTYPE_COUNT, TWS_F32, &dtype, err));
  TWS_TRY(read_word(json, item, "dtype2", dtype_word, TWS_DTYPE_COUNT, TWS_F32, &dtype2, err));
  TWS_TRY(tws_json_int(json, item, "threads", 0, 1, 65536, 1, &threads, err));
  TWS_TRY(tws_json_int(json, item, "busy", 0, 1, 65536, 1, &busy, err));
  TWS_TRY(tws_json_number(json, item, "reread_bytes", 0, 0, 1e18, 0, &reread_bytes, err));
  TWS_TRY(read_flags(json, item, &flags, err));
  const cJSON *list = NULL;
  TWS_TRY(read_child(json, item, "samples", 1,
                     "for example [[4096, 1024, 1024, 1e-4]]: sizes of the kernel and seconds", &list, err));
  if (list == NULL || list->child == NULL) {
    return tws_json_fail(json, item, err, "add \"samples\"", "a kernel's entry has no samples");
  }
  tws_family entry = {
      .work = {.code = (uint8_t)code, .dtype = (uint8_t)dtype, .dtype2 = (uint8_t)dtype2, .flags = flags},
      .threads = (int)threads,
      .busy = (int)busy,
      .reread_bytes = reread_bytes};
  profile->cold_bytes = fmax(profile->cold_bytes, 2 * reread_bytes);
  tws_shape shape;
  entry.is_surface = tws_shape_of(&entry.work, &shape);
  if (entry.is_surface) entry.work.flags &= TWS_GELU | TWS_FP8;
  return read_samples(json, list, flags, profile, &entry, err);
}

static tws_code finish_family(tws_profile *profile, tws_family *family, tws_error *err) {
  tws_code code =
      family->is_surface
          ? tws_surface_create(profile->arena, family->shapes, family->points, family->count, &family->surface, err)
          : tws_curve_create(profile->arena, family->points, family->count, &family->curve, err);
  tws_free(family->points);
  tws_free(family->shapes);
  family->points = NULL;
  family->shapes = NULL;
  return code;
}

static tws_code read_families(const tws_json *json, tws_profile *profile, tws_error *err) {
  const cJSON *list = NULL, *item = NULL;
  TWS_TRY(read_child(json, json->root, "kernels", 1, "for example [" KERNEL_EXAMPLE "]", &list, err));
  if (list == NULL) return TWS_OK;
  if (cJSON_GetArraySize(list) > MAX_ENTRIES) {
    return tws_json_fail(json, list, err, NULL, "more than %d entries", MAX_ENTRIES);
  }
  const size_t families = 2 * (size_t)cJSON_GetArraySize(list) + 1;
  profile->families = tws_arena_alloc(profile->arena, families, sizeof *profile->families);
  if (profile->families == NULL) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for a profile");
  cJSON_ArrayForEach(item, list) TWS_TRY(read_family(json, item, profile, err));
  for (size_t i = 0; i < profile->family_count; i++) TWS_TRY(finish_family(profile, &profile->families[i], err));
  return TWS_OK;
}

static tws_code read_collectives(const tws_json *json, tws_profile *profile, tws_error *err) {
  static const char *const known[] = {"collective", "ranks", "samples", NULL};
  const cJSON *list = NULL, *item = NULL, *points = NULL;
  TWS_TRY(read_child(json, json->root, "p2p", 1, CURVE_EXAMPLE("bytes"), &points, err));
  if (points != NULL) TWS_TRY(read_curve(json, points, "bytes", SAMPLE_MOST, profile, &profile->p2p, err));
  TWS_TRY(read_child(json, json->root, "collectives", 1, "for example [" COLLECTIVE_EXAMPLE "]", &list, err));
  if (list == NULL) return TWS_OK;
  profile->collectives =
      tws_arena_alloc(profile->arena, (size_t)cJSON_GetArraySize(list) + 1, sizeof *profile->collectives);
  if (profile->collectives == NULL) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for a profile");
  cJSON_ArrayForEach(item, list) {
    if (!cJSON_IsObject(item))
      return tws_json_fail(json, item, err, "for example " COLLECTIVE_EXAMPLE,
                           "a collective's entry must be an object");
    TWS_TRY(tws_json_only(json, item, known, err));
    int collective = 0;
    int64_t ranks = 0;
    TWS_TRY(read_word(json, item, "collective", collective_word, TWS_COLLECTIVE_COUNT, -1, &collective, err));
    TWS_TRY(tws_json_int(json, item, "ranks", 1, 2, 1 << 20, 2, &ranks, err));
    TWS_TRY(read_child(json, item, "samples", 1, CURVE_EXAMPLE("bytes"), &points, err));
    if (points == NULL) return tws_json_fail(json, item, err, "add \"samples\"", "a collective's entry has no samples");
    tws_collective_table *table = &profile->collectives[profile->collective_count++];
    table->collective = (tws_collective)collective;
    table->ranks = (int)ranks;
    TWS_TRY(read_curve(json, points, "bytes", SAMPLE_MOST, profile, &table->curve, err));
  }
  return TWS_OK;
}

static tws_code read_factors(const tws_json *json, const cJSON *list, const char *(*word)(int), int count,
                             double *factors, tws_error *err) {
  const cJSON *item;
  if (list && !cJSON_IsObject(list))
    return tws_json_fail(json, list, err, CORRECTIONS_EXAMPLE, "corrections are objects of factors");
  cJSON_ArrayForEach(item, list) {
    int i = 0;
    while (i < count && strcmp(word(i), item->string) != 0) i++;
    if (i == count) return tws_json_fail(json, item, err, NULL, "\"%.60s\" is no operation", item->string);
    TWS_TRY(tws_json_number(json, list, item->string, 1, 1e-3, 1e3, 1, &factors[i], err));
  }
  return TWS_OK;
}

static tws_code read_corrections(const tws_json *json, tws_profile *profile, tws_error *err) {
  static const char *const known[] = {"kernels", "collectives", "messages", NULL};
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(json->root, "corrections");
  tws_profile_correction *own = &profile->own_correction;
  if (!item) return TWS_OK;
  if (!cJSON_IsObject(item))
    return tws_json_fail(json, item, err, CORRECTIONS_EXAMPLE, "\"corrections\" must be an object");
  TWS_TRY(tws_json_only(json, item, known, err));
  TWS_TRY(read_factors(json, cJSON_GetObjectItemCaseSensitive(item, "kernels"), kernel_word, TWS_KERNEL_COUNT,
                       own->kernel, err));
  TWS_TRY(read_factors(json, cJSON_GetObjectItemCaseSensitive(item, "collectives"), collective_word,
                       TWS_COLLECTIVE_COUNT, own->collective, err));
  TWS_TRY(tws_json_number(json, item, "messages", 0, 1e-3, 1e3, 0, &own->message, err));
  profile->correction = *own;
  return TWS_OK;
}

/* ---- plain figures ---- */

static tws_code read_peaks(const tws_json *json, tws_profile *profile, tws_error *err) {
  const cJSON *peaks = NULL, *item = NULL;
  TWS_TRY(read_child(json, json->root, "peak_flops", 0, "for example {\"fp32\": 5e10}", &peaks, err));
  if (peaks == NULL)
    return tws_json_fail(json, json->root, err, "for example {\"fp32\": 5e10}", "\"peak_flops\" is missing");
  cJSON_ArrayForEach(item, peaks) {
    const int narrow = find_name(item->string, tws_narrow_name, TWS_NARROW_COUNT);
    if (narrow >= 0) {
      TWS_TRY(tws_json_number(json, peaks, item->string, 1, 1, 1e18, 0, &profile->narrow_peak[narrow], err));
      continue;
    }
    int dtype = find_name(item->string, dtype_word, TWS_DTYPE_COUNT);
    if (dtype < 0) {
      return tws_json_fail(json, item, err, "known: fp32, bf16, fp16, fp64, fp8, fp4", "unknown type \"%.60s\"",
                           item->string);
    }
    TWS_TRY(tws_json_number(json, peaks, item->string, 1, 1, 1e18, 0, &profile->peak[dtype], err));
  }
  if (profile->peak[TWS_F32] > 0) return TWS_OK;
  return tws_json_fail(json, peaks, err, "other types fall back to it", "\"peak_flops\" has no fp32");
}

static tws_code read_unfused(const tws_json *json, const cJSON *attention, tws_profile *profile, tws_error *err) {
  static const char *const known[] = {"forward_bytes", "backward_bytes", "recomputed", NULL};
  const cJSON *object = NULL;
  TWS_TRY(read_child(json, attention, "unfused", 0, "for example {\"forward_bytes\": 8, \"backward_bytes\": 9}",
                     &object, err));
  if (object == NULL) return TWS_OK;
  if (profile->multiprocessors == 0)
    return tws_json_fail(json, object, err, "give matmul.multiprocessors, or leave it out",
                         "\"unfused\" attention is costed on GPUs only");
  profile->attention_unfused = 1;
  TWS_TRY(tws_json_only(json, object, known, err));
  TWS_TRY(tws_json_number(json, object, "forward_bytes", 1, 0, 1000, 0, &profile->score_bytes[0], err));
  TWS_TRY(tws_json_number(json, object, "backward_bytes", 1, 0, 1000, 0, &profile->score_bytes[1], err));
  return tws_json_bool(json, object, "recomputed", 0, 0, &profile->scores_recomputed, err);
}

static tws_code read_added_bytes(const tws_json *json, tws_profile *profile, tws_error *err) {
  const cJSON *added = NULL, *item = NULL;
  TWS_TRY(read_child(json, json->root, "added_bytes", 0, "for example {\"norm_grad\": 13}", &added, err));
  cJSON_ArrayForEach(item, added) {
    int kernel = find_name(item->string, kernel_word, TWS_KERNEL_COUNT);
    if (kernel < 0) return tws_json_fail(json, item, err, NULL, "unknown kernel \"%.60s\"", item->string);
    TWS_TRY(tws_json_number(json, added, item->string, 1, 0, 1000, 0, &profile->added_bytes[kernel], err));
  }
  return TWS_OK;
}

static tws_code read_constants(const tws_json *json, tws_profile *profile, tws_error *err) {
  static const char *const matmul_known[] = {
      "efficiency", "fp8_efficiency", "fp4_efficiency", "tile_overhead_s", "multiprocessors", "misaligned", NULL};
  static const char *const attention_known[] = {"efficiency", "half_length", "backward", "unfused", NULL};
  const cJSON *root = json->root, *object = NULL;
  int64_t multiprocessors = 0;
  profile->matmul_efficiency = 0.8; /* the share that most devices reach (docs/profiles.md) */
  profile->misaligned = 1;
  profile->attention_efficiency = 0.4;
  profile->attention_backward = 1;
  TWS_TRY(read_child(json, root, "matmul", 0, "for example {\"efficiency\": 0.8}", &object, err));
  if (object != NULL) {
    TWS_TRY(tws_json_only(json, object, matmul_known, err));
    TWS_TRY(tws_json_number(json, object, "efficiency", 1, 1e-3, 1, 0, &profile->matmul_efficiency, err));
    TWS_TRY(tws_json_number(json, object, "fp8_efficiency", 0, 1e-3, 1, 0, &profile->fp8_efficiency, err));
    TWS_TRY(tws_json_number(json, object, "fp4_efficiency", 0, 1e-3, 1, profile->matmul_efficiency,
                            &profile->fp4_efficiency, err));
    TWS_TRY(tws_json_number(json, object, "tile_overhead_s", 0, 0, 1, 0, &profile->tile_overhead_s, err));
    TWS_TRY(tws_json_number(json, object, "misaligned", 0, 1e-3, 1, 1, &profile->misaligned, err));
    TWS_TRY(tws_json_int(json, object, "multiprocessors", 0, 0, 65536, 0, &multiprocessors, err));
  }
  profile->multiprocessors = (int)multiprocessors;
  TWS_TRY(read_child(json, root, "attention", 0, "for example {\"efficiency\": 0.4}", &object, err));
  if (object != NULL) {
    TWS_TRY(tws_json_only(json, object, attention_known, err));
    TWS_TRY(read_unfused(json, object, profile, err));
    int required = !profile->attention_unfused;
    TWS_TRY(tws_json_number(json, object, "efficiency", required, 1e-3, 1, 0.4, &profile->attention_efficiency, err));
    TWS_TRY(tws_json_number(json, object, "half_length", 0, 0, 1e9, 0, &profile->attention_half_length, err));
    TWS_TRY(tws_json_number(json, object, "backward", 0, 1e-3, 10, 1, &profile->attention_backward, err));
  }
  return TWS_OK;
}

static const char *rates_word(int i) {
  return (const char *const[]){"own", "measured", "data sheet"}[i];
}

static tws_code read_figures(const tws_json *json, tws_profile *profile, tws_error *err) {
  const cJSON *root = json->root;
  const char *name = NULL, *provenance = NULL, *backend = NULL;
  int64_t cores = 0;
  int rates = 0;
  TWS_TRY(tws_json_string(json, root, "name", 0, json->name, &name, err));
  TWS_TRY(tws_json_string(json, root, "provenance", 1, NULL, &provenance, err));
  TWS_TRY(tws_json_string(json, root, "backend", 1, NULL, &backend, err));
  profile->name = tws_arena_strdup(profile->arena, name);
  profile->provenance = tws_arena_strdup(profile->arena, provenance);
  if (profile->name == NULL || profile->provenance == NULL) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  profile->other = strcmp(backend, "other") == 0;
  if (strcmp(backend, "cuda") == 0 || profile->other)
    profile->backend = TWS_BACKEND_CUDA;
  else if (strcmp(backend, "host") == 0)
    profile->backend = TWS_BACKEND_HOST;
  else
    return tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(root, "backend"), err, "known: host, cuda, other",
                         "unknown backend \"%.60s\"", backend);
  TWS_TRY(tws_json_number(json, root, "memory_bytes", 1, 1, 1e18, 0, &profile->memory_bytes, err));
  TWS_TRY(tws_json_number(json, root, "overhead_bytes", 0, 0, 1e18, 0, &profile->overhead_bytes, err));
  TWS_TRY(tws_json_number(json, root, "spread", 0, 0, 1e9, 0, &profile->spread, err));
  TWS_TRY(tws_json_number(json, root, "drift", 0, 0, 1e9, 0, &profile->drift, err));
  TWS_TRY(tws_json_int(json, root, "cores", 0, 0, 1 << 20, 0, &cores, err));
  profile->cores = (int)cores;
  TWS_TRY(tws_json_bool(json, root, "serial_streams", 0, profile->backend == TWS_BACKEND_HOST, &profile->serial_streams,
                        err));
  TWS_TRY(read_word(json, root, "generation", tws_generation_name, TWS_GENERATION_COUNT, TWS_GENERATION_NONE,
                    &profile->generation, err));
  TWS_TRY(read_word(json, root, "rates", rates_word, TWS_RATES_DATA_SHEET + 1, TWS_RATES_OWN, &rates, err));
  profile->rates = (tws_rates)rates;
  TWS_TRY(tws_json_number(json, root, "bandwidth", 1, 1, 1e18, 0, &profile->bandwidth, err));
  TWS_TRY(tws_json_number(json, root, "node_bandwidth", 0, 0, 1e18, 0, &profile->node_bandwidth, err));
  TWS_TRY(tws_json_number(json, root, "bandwidth_efficiency", 0, 1e-3, 1, 1, &profile->bandwidth_efficiency, err));
  TWS_TRY(tws_json_number(json, root, "launch_s", 0, 0, 1, 0, &profile->launch_s, err));
  TWS_TRY(read_peaks(json, profile, err));
  return read_constants(json, profile, err);
}

static tws_code read_disk(const tws_json *json, tws_profile *profile, tws_error *err) {
  static const char *const known[] = {"read", "write", NULL};
  const cJSON *disk = NULL;
  TWS_TRY(read_child(json, json->root, "disk", 0, "for example {\"read\": 2e9, \"write\": 1e9}", &disk, err));
  if (!disk) return TWS_OK;
  TWS_TRY(tws_json_only(json, disk, known, err));
  TWS_TRY(tws_json_number(json, disk, "read", 1, 1, 1e18, 0, &profile->disk[0], err));
  return tws_json_number(json, disk, "write", 1, 1, 1e18, 0, &profile->disk[1], err);
}

/* Reads the rates of copies, which are stored for each number of ranks that copied at once. */
static tws_code read_copies(const tws_json *json, tws_profile *profile, tws_error *err) {
  static const char *const known[] = {"ranks", "to_device", "to_host", "both_ways", NULL};
  const cJSON *list = cJSON_GetObjectItemCaseSensitive(json->root, "host_copies"), *item;
  int64_t most = 1, ranks;
  if (!list || cJSON_IsNull(list)) return TWS_OK;
  if (!cJSON_IsArray(list))
    return tws_json_fail(json, list, err, "for example [" COPIES_EXAMPLE "]", "\"host_copies\" must be a list");
  cJSON_ArrayForEach(item, list) {
    tws_copy_rates rates;
    if (!cJSON_IsObject(item))
      return tws_json_fail(json, item, err, "for example " COPIES_EXAMPLE, "rates of copies must be an object");
    TWS_TRY(tws_json_only(json, item, known, err));
    TWS_TRY(tws_json_int(json, item, "ranks", 1, 1, 1 << 20, 1, &ranks, err));
    TWS_TRY(tws_json_number(json, item, "to_device", 0, 1, 1e18, 0, &rates.to_device, err));
    TWS_TRY(tws_json_number(json, item, "to_host", 0, 1, 1e18, 0, &rates.to_host, err));
    TWS_TRY(tws_json_number(json, item, "both_ways", 0, 1, 1e18, 0, &rates.both_ways, err));
    if (ranks > 1 && ranks < most) continue;
    profile->copies[ranks > 1] = rates;
    if (ranks > most) most = ranks;
  }
  return TWS_OK;
}

/* Reads the seconds between the kernels of a host's passes. */
static tws_code read_passes(const tws_json *json, tws_profile *profile, tws_error *err) {
  static const char *const known[] = {"start_s", "pass_s", "choice_s", NULL};
  const cJSON *passes = NULL, *choices = NULL;
  TWS_TRY(read_child(json, json->root, "passes", 0, "for example {\"start_s\": 1e-8, \"pass_s\": 2e-6}", &passes, err));
  if (!passes) return TWS_OK;
  TWS_TRY(tws_json_only(json, passes, known, err));
  TWS_TRY(tws_json_number(json, passes, "start_s", 0, 0, TWS_PASS_MOST_S, 0, &profile->start_s, err));
  TWS_TRY(tws_json_number(json, passes, "pass_s", 0, 0, TWS_PASS_MOST_S, 0, &profile->pass_s, err));
  TWS_TRY(read_child(json, passes, "choice_s", 1, CURVE_EXAMPLE("scores"), &choices, err));
  if (!choices) return TWS_OK;
  return read_curve(json, choices, "scores", TWS_PASS_MOST_S, profile, &profile->choice, err);
}

static tws_code read_profile(const tws_json *json, tws_profile *profile, tws_error *err) {
  static const char *const known[] = {"schema",
                                      "name",
                                      "provenance",
                                      "details",
                                      "rates",
                                      "device",
                                      "figures",
                                      "sources",
                                      "spread",
                                      "drift",
                                      "backend",
                                      "generation",
                                      "cores",
                                      "memory_bytes",
                                      "overhead_bytes",
                                      "serial_streams",
                                      "peak_flops",
                                      "bandwidth",
                                      "node_bandwidth",
                                      "bandwidth_efficiency",
                                      "launch_s",
                                      "matmul",
                                      "attention",
                                      "unfused",
                                      "added_bytes",
                                      "kernels",
                                      "collectives",
                                      "p2p",
                                      "disk",
                                      "host_copies",
                                      "passes",
                                      "corrections",
                                      NULL};
  if (!cJSON_IsObject(json->root))
    return tws_json_fail(json, json->root, err, "{\"schema\": \"twinspeed-profile-1\", ...}: docs/profiles.md",
                         "a profile must be an object");
  const char *schema = NULL;
  TWS_TRY(tws_json_string(json, json->root, "schema", 1, NULL, &schema, err));
  if (strcmp(schema, "twinspeed-profile-1") != 0) {
    return tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(json->root, "schema"), err,
                         "a profile says \"schema\": \"twinspeed-profile-1\"", "unknown schema \"%.60s\"", schema);
  }
  TWS_TRY(tws_json_only(json, json->root, known, err));
  const cJSON *details = NULL;
  /* texts for human readers, not interpreted */
  TWS_TRY(read_child(json, json->root, "details", 0, "for example {\"driver\": \"580.65\"}", &details, err));
  TWS_TRY(read_figures(json, profile, err));
  TWS_TRY(tws_json_bool(json, json->root, "unfused", 0, 0, &profile->unfused, err));
  TWS_TRY(read_added_bytes(json, profile, err));
  TWS_TRY(read_disk(json, profile, err));
  TWS_TRY(read_copies(json, profile, err));
  TWS_TRY(read_passes(json, profile, err));
  TWS_TRY(read_families(json, profile, err));
  TWS_TRY(read_corrections(json, profile, err));
  return read_collectives(json, profile, err);
}

tws_code tws_profile_from_json(const tws_json *json, tws_profile **out, tws_error *err) {
  *out = NULL;
  tws_arena *arena = tws_arena_create();
  tws_profile *profile = arena != NULL ? tws_arena_alloc(arena, 1, sizeof *profile) : NULL;
  if (profile == NULL) {
    tws_arena_destroy(arena);
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory for a profile");
  }
  profile->arena = arena;
  tws_code code = read_profile(json, profile, err);
  if (code != TWS_OK)
    tws_profile_destroy(profile);
  else
    *out = profile;
  return code;
}

tws_code tws_profile_load(const char *spec, tws_profile **out, tws_error *err) {
  *out = NULL;
  tws_json *json = NULL;
  tws_code code = tws_profile_open(spec, &json, err);
  if (code == TWS_IO && strchr(spec, '/') == NULL) return tws_profile_unknown(spec, " nor a readable file", err);
  TWS_TRY(code);
  code = tws_profile_from_json(json, out, err);
  tws_json_destroy(json);
  return code;
}

void tws_profile_destroy(tws_profile *profile) {
  if (profile == NULL) return;
  for (size_t i = 0; i < profile->family_count; i++) {
    tws_curve_destroy(&profile->families[i].curve);
    tws_free(profile->families[i].points);
    tws_free(profile->families[i].shapes);
  }
  for (size_t i = 0; i < profile->collective_count; i++) tws_curve_destroy(&profile->collectives[i].curve);
  tws_curve_destroy(&profile->p2p);
  tws_curve_destroy(&profile->choice);
  tws_arena_destroy(profile->arena);
}

const char *tws_profile_name(const tws_profile *profile) {
  return profile->name;
}
const char *tws_profile_provenance(const tws_profile *profile) {
  return profile->provenance;
}

double tws_profile_spread(const tws_profile *profile) {
  return profile->spread;
}

double tws_profile_drift(const tws_profile *profile) {
  return profile->drift;
}

int tws_profile_is_noisy(const tws_profile *profile) {
  return profile->spread > TWS_PROFILE_QUIET_SPREAD || profile->drift > TWS_PROFILE_QUIET_DRIFT;
}
int tws_profile_generation(const tws_profile *profile) {
  return profile->generation;
}

int tws_profile_has_no_engine(const tws_profile *profile) {
  return profile->other;
}

tws_rates tws_profile_rates(const tws_profile *profile) {
  return profile->rates;
}

double tws_profile_product_share(const tws_profile *profile) {
  return profile->matmul_efficiency / (profile->multiprocessors > 0 ? tws_profile_tiled(256, 128, TWS_TILE_FEED) : 1);
}

tws_backend_kind tws_profile_backend(const tws_profile *profile) {
  return profile->backend;
}
double tws_profile_disk_read(const tws_profile *profile) {
  return profile->disk[0];
}

double tws_profile_disk_write(const tws_profile *profile) {
  return profile->disk[1];
}

tws_copy_rates tws_profile_copies(const tws_profile *profile, int node) {
  return profile->copies[node != 0];
}

double tws_profile_memory_bytes(const tws_profile *profile) {
  return profile->memory_bytes;
}
double tws_profile_bandwidth(const tws_profile *profile) {
  return profile->bandwidth;
}

double tws_profile_start_s(const tws_profile *profile) {
  return profile->start_s;
}

double tws_profile_pass_s(const tws_profile *profile, double texts, double vocabulary) {
  if (profile->choice.count == 0) return profile->pass_s;
  return profile->pass_s + texts * tws_curve_seconds(&profile->choice, vocabulary, 0);
}

double tws_profile_host_op_s(const tws_profile *profile) {
  return profile->host_op_s;
}
double tws_profile_overhead_bytes(const tws_profile *profile) {
  return profile->overhead_bytes;
}
int tws_profile_cores(const tws_profile *profile) {
  return profile->cores;
}
int tws_profile_serial_streams(const tws_profile *profile) {
  return profile->serial_streams;
}

tws_allocator_kind tws_profile_allocator(const tws_profile *profile) {
  return profile->backend == TWS_BACKEND_HOST || !profile->runtime ? TWS_ALLOCATOR_AHEAD : profile->allocator;
}

const char *tws_profile_allocator_name(const tws_profile *profile) {
  const tws_allocator_kind kind = tws_profile_allocator(profile);
  return kind == TWS_ALLOCATOR_AHEAD ? NULL : kind == TWS_ALLOCATOR_EXPANDABLE ? "expandable" : "fixed";
}

tws_code tws_profile_set_allocator(tws_profile *profile, const char *word, tws_error *err) {
  const int expandable = strcmp(word, "expandable") == 0;
  if (!expandable && strcmp(word, "fixed") != 0)
    return tws_fail(err, TWS_USAGE, "write \"fixed\" or \"expandable\"", "--allocator: unknown word \"%.60s\"", word);
  if (tws_profile_allocator(profile) == TWS_ALLOCATOR_AHEAD)
    return tws_fail(err, TWS_INVALID, "name PyTorch's software with --runtime, or leave --allocator out",
                    "--allocator %s: twinspeed's engine places buffers without an allocator", word);
  profile->allocator = expandable ? TWS_ALLOCATOR_EXPANDABLE : TWS_ALLOCATOR_SEGMENTS;
  return TWS_OK;
}

double tws_profile_peak_flops(const tws_profile *profile, tws_dtype dtype) {
  if ((unsigned)dtype < TWS_DTYPE_COUNT && profile->peak[dtype] > 0) return profile->peak[dtype];
  return profile->peak[TWS_F32]; /* 16-bit types without a peak of their own are computed in float32 */
}
