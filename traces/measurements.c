#include "traces/measurements.h"

#include <gsl/gsl_sort.h>
#include <gsl/gsl_statistics_double.h>
#include <math.h>
#include <string.h>

double tws_sample_median(double *values, size_t n) {
  gsl_sort(values, 1, n);
  return gsl_stats_median_from_sorted_data(values, 1, n);
}

double tws_sample_low(double *values, size_t n) {
  gsl_sort(values, 1, n);
  return gsl_stats_quantile_from_sorted_data(values, 1, n, 0.25);
}

double tws_sample_spread(double *values, size_t n) {
  double median = tws_sample_median(values, n);
  if (!(median > 0)) return 0;
  return (gsl_stats_quantile_from_sorted_data(values, 1, n, 0.75) -
          gsl_stats_quantile_from_sorted_data(values, 1, n, 0.25)) /
         median;
}

void tws_measurements_free(tws_measurements *m) {
  tws_free(m->kernels);
  tws_free(m->collectives);
  tws_free(m->messages);
  tws_free(m->notes);
  *m = (tws_measurements){0};
}

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, 0, "no memory for the measurements");
}

tws_code tws_measurements_add_kernel(tws_measurements *m, const tws_kernel_sample *sample, tws_error *err) {
  if (tws_reserve(&m->kernels, &m->kernel_capacity, m->kernel_count + 1, sizeof *m->kernels)) return no_memory(err);
  m->kernels[m->kernel_count++] = *sample;
  return TWS_OK;
}

tws_code tws_measurements_add_collective(tws_measurements *m, const tws_collective_sample *sample, tws_error *err) {
  if (tws_reserve(&m->collectives, &m->collective_capacity, m->collective_count + 1, sizeof *m->collectives))
    return no_memory(err);
  m->collectives[m->collective_count++] = *sample;
  return TWS_OK;
}

tws_code tws_measurements_add_message(tws_measurements *m, const tws_p2p_sample *sample, tws_error *err) {
  if (tws_reserve(&m->messages, &m->message_capacity, m->message_count + 1, sizeof *m->messages)) return no_memory(err);
  m->messages[m->message_count++] = *sample;
  return TWS_OK;
}

tws_code tws_measurements_add_note(tws_measurements *m, const char *key, const char *text, tws_error *err) {
  if (tws_reserve(&m->notes, &m->note_capacity, m->note_count + 1, sizeof *m->notes)) return no_memory(err);
  tws_measured_note *note = &m->notes[m->note_count++];
  snprintf(note->key, sizeof note->key, "%s", key);
  snprintf(note->text, sizeof note->text, "%s", text);
  return TWS_OK;
}

/* ---- file ---- */

static cJSON *kernel_json(const tws_kernel_sample *sample) {
  const tws_work *work = &sample->work;
  cJSON *json = cJSON_CreateObject();
  cJSON_AddStringToObject(json, "kernel", tws_kernel_name((tws_kernel)work->code));
  cJSON_AddStringToObject(json, "dtype", tws_dtype_name((tws_dtype)work->dtype));
  cJSON_AddStringToObject(json, "dtype2", tws_dtype_name((tws_dtype)work->dtype2));
  cJSON_AddNumberToObject(json, "flags", work->flags);
  cJSON *d = cJSON_AddArrayToObject(json, "d");
  for (int i = 0; i < TWS_WORK_DIMS; i++) cJSON_AddItemToArray(d, cJSON_CreateNumber((double)work->d[i]));
  cJSON_AddNumberToObject(json, "threads", sample->threads);
  cJSON_AddNumberToObject(json, "busy", sample->busy);
  if (sample->reread_bytes > 0) cJSON_AddNumberToObject(json, "reread_bytes", sample->reread_bytes);
  cJSON_AddNumberToObject(json, "seconds", sample->seconds);
  cJSON_AddNumberToObject(json, "spread", sample->spread);
  return json;
}

static void add_passes(const tws_pass_costs *passes, cJSON *json) {
  cJSON *object = cJSON_AddObjectToObject(json, "passes");
  cJSON_AddNumberToObject(object, "start_s", passes->start_s);
  cJSON_AddNumberToObject(object, "pass_s", passes->pass_s);
  cJSON *choices = cJSON_AddArrayToObject(object, "choices");
  for (int i = 0; i < passes->choice_count; i++) {
    cJSON *item = cJSON_CreateObject();
    cJSON_AddNumberToObject(item, "vocabulary", passes->choice[i].vocabulary);
    cJSON_AddNumberToObject(item, "seconds", passes->choice[i].seconds);
    cJSON_AddItemToArray(choices, item);
  }
}

static cJSON *to_json(const tws_measurements *m) {
  cJSON *json = cJSON_CreateObject();
  cJSON_AddStringToObject(json, "schema", "twinspeed-measurements-1");
  cJSON_AddNumberToObject(json, "world", m->world);
  cJSON_AddNumberToObject(json, "cores", m->cores);
  cJSON_AddNumberToObject(json, "elapsed_s", m->elapsed_s);
  if (m->device[0]) {
    cJSON_AddStringToObject(json, "device", m->device);
    cJSON_AddNumberToObject(json, "device_bytes", m->device_bytes);
    cJSON_AddBoolToObject(json, "shared_device", m->shared_device);
    cJSON_AddNumberToObject(json, "to_device", m->copies.to_device);
    cJSON_AddNumberToObject(json, "to_host", m->copies.to_host);
    cJSON_AddNumberToObject(json, "both_ways", m->copies.both_ways);
  }
  cJSON_AddNumberToObject(json, "overhead_bytes", m->overhead_bytes);
  cJSON_AddStringToObject(json, "description", m->description);
  cJSON_AddNumberToObject(json, "reference_min_s", m->reference_min_s);
  cJSON_AddNumberToObject(json, "reference_s", m->reference_s);
  cJSON_AddNumberToObject(json, "reference_max_s", m->reference_max_s);
  if (m->sustained_reference_s > 0) {
    cJSON_AddNumberToObject(json, "reference_flops", m->reference_flops);
    cJSON_AddNumberToObject(json, "sustained_reference_s", m->sustained_reference_s);
    cJSON_AddNumberToObject(json, "sustained_for_s", m->sustained_for_s);
  }
  if (m->passes.pass_s > 0) add_passes(&m->passes, json);
  cJSON *kernels = cJSON_AddArrayToObject(json, "kernels");
  for (size_t i = 0; i < m->kernel_count; i++) cJSON_AddItemToArray(kernels, kernel_json(&m->kernels[i]));
  cJSON *collectives = cJSON_AddArrayToObject(json, "collectives");
  for (size_t i = 0; i < m->collective_count; i++) {
    const tws_collective_sample *sample = &m->collectives[i];
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "collective", tws_collective_name(sample->collective));
    cJSON_AddNumberToObject(item, "ranks", sample->ranks);
    cJSON_AddNumberToObject(item, "bytes", sample->bytes);
    cJSON_AddNumberToObject(item, "seconds", sample->seconds);
    cJSON_AddNumberToObject(item, "spread", sample->spread);
    cJSON_AddItemToArray(collectives, item);
  }
  cJSON *messages = cJSON_AddArrayToObject(json, "messages");
  for (size_t i = 0; i < m->message_count; i++) {
    cJSON *item = cJSON_CreateObject();
    cJSON_AddNumberToObject(item, "bytes", m->messages[i].bytes);
    cJSON_AddNumberToObject(item, "seconds", m->messages[i].seconds);
    cJSON_AddItemToArray(messages, item);
  }
  cJSON *notes = cJSON_AddObjectToObject(json, "notes");
  for (size_t i = 0; i < m->note_count; i++) cJSON_AddStringToObject(notes, m->notes[i].key, m->notes[i].text);
  return json;
}

tws_code tws_measurements_write(const tws_measurements *m, const char *path, tws_error *err) {
  cJSON *json = to_json(m);
  char *text = cJSON_PrintUnformatted(json);
  cJSON_Delete(json);
  if (!text) return no_memory(err);
  tws_code code = tws_write_file(path, text, strlen(text), err);
  cJSON_free(text);
  return code;
}

static int find_name(const char *name, int count, const char *(*name_of)(int)) {
  for (int i = 0; i < count; i++)
    if (strcmp(name, name_of(i)) == 0) return i;
  return -1;
}
static const char *kernel_name(int i) {
  return tws_kernel_name((tws_kernel)i);
}
static const char *collective_name(int i) {
  return tws_collective_name((tws_collective)i);
}
static const char *dtype_name(int i) {
  return tws_dtype_name((tws_dtype)i);
}

static tws_code read_word(const tws_json *json, const cJSON *item, const char *key, int count,
                          const char *(*name_of)(int), int *value, tws_error *err) {
  const char *text;
  TWS_TRY(tws_json_string(json, item, key, 1, "", &text, err));
  *value = find_name(text, count, name_of);
  if (*value < 0)
    return tws_json_fail(json, item, err, "calibrate again with this version", "unknown %s \"%s\"", key, text);
  return TWS_OK;
}

static tws_code read_kernel(const tws_json *json, const cJSON *item, tws_kernel_sample *sample, tws_error *err) {
  memset(sample, 0, sizeof *sample);
  int kernel, dtype, dtype2;
  int64_t flags, threads, busy;
  TWS_TRY(read_word(json, item, "kernel", TWS_KERNEL_COUNT, kernel_name, &kernel, err));
  TWS_TRY(read_word(json, item, "dtype", TWS_DTYPE_COUNT, dtype_name, &dtype, err));
  TWS_TRY(read_word(json, item, "dtype2", TWS_DTYPE_COUNT, dtype_name, &dtype2, err));
  TWS_TRY(tws_json_int(json, item, "flags", 1, 0, (1 << TWS_KERNEL_FLAGS) - 1, 0, &flags, err));
  TWS_TRY(tws_json_int(json, item, "threads", 1, 1, 65536, 1, &threads, err));
  TWS_TRY(tws_json_int(json, item, "busy", 1, 1, 65536, 1, &busy, err));
  TWS_TRY(tws_json_number(json, item, "reread_bytes", 0, 0, 1e18, 0, &sample->reread_bytes, err));
  TWS_TRY(tws_json_number(json, item, "seconds", 1, 0, 1e9, 0, &sample->seconds, err));
  TWS_TRY(tws_json_number(json, item, "spread", 0, 0, 1e9, 0, &sample->spread, err));
  const cJSON *d = cJSON_GetObjectItemCaseSensitive(item, "d");
  const int sizes = cJSON_IsArray(d) ? cJSON_GetArraySize(d) : 0; /* dimensions that the file does not list are 0 */
  if (sizes < 1 || sizes > TWS_WORK_DIMS)
    return tws_json_fail(json, item, err, 0, "a kernel sample needs \"d\" with 1 to %d numbers", TWS_WORK_DIMS);
  for (int i = 0; i < sizes; i++) {
    double value = cJSON_GetArrayItem(d, i)->valuedouble;
    if (!(fabs(value) < 1e15)) return tws_json_fail(json, item, err, 0, "\"d\" has a number that is no size");
    sample->work.d[i] = (int64_t)value;
  }
  sample->work.code = (uint8_t)kernel;
  sample->work.dtype = (uint8_t)dtype;
  sample->work.dtype2 = (uint8_t)dtype2;
  sample->work.flags = (uint32_t)flags;
  sample->threads = (int)threads;
  sample->busy = (int)busy;
  return TWS_OK;
}

static tws_code read_collective(const tws_json *json, const cJSON *item, tws_collective_sample *sample,
                                tws_error *err) {
  int collective;
  int64_t ranks;
  TWS_TRY(read_word(json, item, "collective", TWS_COLLECTIVE_COUNT, collective_name, &collective, err));
  TWS_TRY(tws_json_int(json, item, "ranks", 1, 1, 65536, 1, &ranks, err));
  TWS_TRY(tws_json_number(json, item, "bytes", 1, 0, 1e15, 0, &sample->bytes, err));
  TWS_TRY(tws_json_number(json, item, "seconds", 1, 0, 1e9, 0, &sample->seconds, err));
  TWS_TRY(tws_json_number(json, item, "spread", 0, 0, 1e9, 0, &sample->spread, err));
  sample->collective = (tws_collective)collective;
  sample->ranks = (int)ranks;
  return TWS_OK;
}

static tws_code read_samples(const tws_json *json, tws_measurements *m, tws_error *err) {
  const cJSON *item;
  cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(json->root, "kernels")) {
    tws_kernel_sample sample;
    TWS_TRY(read_kernel(json, item, &sample, err));
    TWS_TRY(tws_measurements_add_kernel(m, &sample, err));
  }
  cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(json->root, "collectives")) {
    tws_collective_sample sample;
    TWS_TRY(read_collective(json, item, &sample, err));
    TWS_TRY(tws_measurements_add_collective(m, &sample, err));
  }
  cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(json->root, "messages")) {
    tws_p2p_sample sample;
    TWS_TRY(tws_json_number(json, item, "bytes", 1, 0, 1e15, 0, &sample.bytes, err));
    TWS_TRY(tws_json_number(json, item, "seconds", 1, 0, 1e9, 0, &sample.seconds, err));
    TWS_TRY(tws_measurements_add_message(m, &sample, err));
  }
  cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(json->root, "notes")) {
    if (!cJSON_IsString(item)) return tws_json_fail(json, item, err, 0, "a note must be a text");
    TWS_TRY(tws_measurements_add_note(m, item->string, item->valuestring, err));
  }
  return TWS_OK;
}

static tws_code read_device(const tws_json *json, tws_measurements *m, tws_error *err) {
  const char *device;
  TWS_TRY(tws_json_string(json, json->root, "device", 0, "", &device, err));
  TWS_TRY(tws_json_number(json, json->root, "device_bytes", 0, 0, 1e15, 0, &m->device_bytes, err));
  TWS_TRY(tws_json_bool(json, json->root, "shared_device", 0, 0, &m->shared_device, err));
  TWS_TRY(tws_json_number(json, json->root, "to_device", 0, 0, 1e18, 0, &m->copies.to_device, err));
  TWS_TRY(tws_json_number(json, json->root, "to_host", 0, 0, 1e18, 0, &m->copies.to_host, err));
  TWS_TRY(tws_json_number(json, json->root, "both_ways", 0, 0, 1e18, 0, &m->copies.both_ways, err));
  snprintf(m->device, sizeof m->device, "%s", device);
  return TWS_OK;
}

static tws_code read_passes(const tws_json *json, tws_pass_costs *passes, tws_error *err) {
  const cJSON *object = cJSON_GetObjectItemCaseSensitive(json->root, "passes"), *item;
  if (!object) return TWS_OK;
  TWS_TRY(tws_json_number(json, object, "start_s", 1, 0, TWS_PASS_MOST_S, 0, &passes->start_s, err));
  TWS_TRY(tws_json_number(json, object, "pass_s", 1, 0, TWS_PASS_MOST_S, 0, &passes->pass_s, err));
  cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(object, "choices")) {
    if (passes->choice_count == TWS_PASS_CHOICES)
      return tws_json_fail(json, item, err, NULL, "more than %d sizes of a vocabulary", TWS_PASS_CHOICES);
    const int i = passes->choice_count++;
    TWS_TRY(tws_json_number(json, item, "vocabulary", 1, 1, 1e15, 0, &passes->choice[i].vocabulary, err));
    TWS_TRY(tws_json_number(json, item, "seconds", 1, 0, TWS_PASS_MOST_S, 0, &passes->choice[i].seconds, err));
  }
  return TWS_OK;
}

static tws_code from_json(const tws_json *json, tws_measurements *m, tws_error *err) {
  const char *schema, *description;
  int64_t world, cores;
  TWS_TRY(tws_json_string(json, json->root, "schema", 1, "", &schema, err));
  if (strcmp(schema, "twinspeed-measurements-1") != 0)
    return tws_json_fail(json, json->root, err, 0, "not a measurements file: schema is \"%s\"", schema);
  TWS_TRY(tws_json_int(json, json->root, "world", 1, 1, 65536, 1, &world, err));
  TWS_TRY(tws_json_int(json, json->root, "cores", 1, 1, 65536, 1, &cores, err));
  TWS_TRY(tws_json_string(json, json->root, "description", 0, "", &description, err));
  TWS_TRY(tws_json_number(json, json->root, "elapsed_s", 0, 0, 1e9, 0, &m->elapsed_s, err));
  TWS_TRY(tws_json_number(json, json->root, "overhead_bytes", 0, 0, 1e15, 0, &m->overhead_bytes, err));
  TWS_TRY(tws_json_number(json, json->root, "reference_min_s", 0, 0, 1e9, 0, &m->reference_min_s, err));
  TWS_TRY(tws_json_number(json, json->root, "reference_s", 0, 0, 1e9, 0, &m->reference_s, err));
  TWS_TRY(tws_json_number(json, json->root, "reference_max_s", 0, 0, 1e9, 0, &m->reference_max_s, err));
  TWS_TRY(tws_json_number(json, json->root, "reference_flops", 0, 0, 1e18, 0, &m->reference_flops, err));
  TWS_TRY(tws_json_number(json, json->root, "sustained_reference_s", 0, 0, 1e9, 0, &m->sustained_reference_s, err));
  TWS_TRY(tws_json_number(json, json->root, "sustained_for_s", 0, 0, 1e9, 0, &m->sustained_for_s, err));
  TWS_TRY(read_device(json, m, err));
  TWS_TRY(read_passes(json, &m->passes, err));
  m->world = (int)world;
  m->cores = (int)cores;
  snprintf(m->description, sizeof m->description, "%s", description);
  return read_samples(json, m, err);
}

tws_code tws_measurements_read(const char *path, tws_measurements *m, tws_error *err) {
  *m = (tws_measurements){0};
  tws_json *json;
  TWS_TRY(tws_json_read(path, &json, err));
  tws_code code = from_json(json, m, err);
  tws_json_destroy(json);
  if (code != TWS_OK) tws_measurements_free(m);
  return code;
}

/* ---- several runs ---- */

enum { MAX_RUNS = 256 };

static int are_alike(const tws_measurements *a, const tws_measurements *b) {
  if (a->world != b->world || a->kernel_count != b->kernel_count || a->collective_count != b->collective_count ||
      a->message_count != b->message_count)
    return 0;
  for (size_t i = 0; i < a->kernel_count; i++) {
    const tws_kernel_sample *x = &a->kernels[i], *y = &b->kernels[i];
    const double more = x->reread_bytes - y->reread_bytes;
    if (memcmp(&x->work, &y->work, sizeof x->work) != 0 || x->threads != y->threads || x->busy != y->busy ||
        fabs(more) > 0)
      return 0;
  }
  return 1;
}

/* Takes the minimum of the runs for each sample, as other load on a machine only lengthens times. */
#define LEAST_OF(array, index)                                                 \
  do {                                                                         \
    for (int r = 0; r < count; r++) values[r] = runs[r]->array[index].seconds; \
    out->array[index].seconds = gsl_stats_min(values, 1, (size_t)count);       \
  } while (0)

static void combine_passes(const tws_measurements *const *runs, int count, tws_pass_costs *out) {
  *out = runs[0]->passes;
  for (int r = 1; r < count; r++) {
    const tws_pass_costs *other = &runs[r]->passes;
    out->start_s = fmin(out->start_s, other->start_s);
    out->pass_s = fmin(out->pass_s, other->pass_s);
    for (int i = 0; i < out->choice_count && i < other->choice_count; i++)
      out->choice[i].seconds = fmin(out->choice[i].seconds, other->choice[i].seconds);
  }
}

tws_code tws_measurements_combine(const tws_measurements *const *runs, int count, tws_measurements *out,
                                  tws_error *err) {
  double values[MAX_RUNS];
  *out = (tws_measurements){0};
  if (count < 1 || count > MAX_RUNS) return tws_fail(err, TWS_INVALID, 0, "%d runs cannot be combined", count);
  for (int r = 1; r < count; r++)
    if (!are_alike(runs[0], runs[r]))
      return tws_fail(err, TWS_INVALID, 0, "calibration runs measured different things");
  tws_code code = TWS_OK;
  for (size_t i = 0; i < runs[0]->kernel_count && code == TWS_OK; i++)
    code = tws_measurements_add_kernel(out, &runs[0]->kernels[i], err);
  for (size_t i = 0; i < runs[0]->collective_count && code == TWS_OK; i++)
    code = tws_measurements_add_collective(out, &runs[0]->collectives[i], err);
  for (size_t i = 0; i < runs[0]->message_count && code == TWS_OK; i++)
    code = tws_measurements_add_message(out, &runs[0]->messages[i], err);
  for (size_t i = 0; i < runs[0]->note_count && code == TWS_OK; i++)
    code = tws_measurements_add_note(out, runs[0]->notes[i].key, runs[0]->notes[i].text, err);
  if (code != TWS_OK) {
    tws_measurements_free(out);
    return code;
  }
  for (size_t i = 0; i < out->kernel_count; i++) LEAST_OF(kernels, i);
  for (size_t i = 0; i < out->collective_count; i++) LEAST_OF(collectives, i);
  for (size_t i = 0; i < out->message_count; i++) LEAST_OF(messages, i);
  out->world = runs[0]->world;
  out->cores = runs[0]->cores;
  out->overhead_bytes = runs[0]->overhead_bytes;
  memcpy(out->device, runs[0]->device, sizeof out->device);
  out->device_bytes = runs[0]->device_bytes;
  out->shared_device = runs[0]->shared_device;
  memcpy(out->description, runs[0]->description, sizeof out->description);
  out->reference_flops = runs[0]->reference_flops;
  out->sustained_reference_s = runs[0]->sustained_reference_s;
  out->sustained_for_s = runs[0]->sustained_for_s;
  out->reference_min_s = runs[0]->reference_min_s;
  for (int r = 0; r < count; r++) {
    out->elapsed_s += runs[r]->elapsed_s;
    out->copies.to_device = fmax(out->copies.to_device, runs[r]->copies.to_device);
    out->copies.to_host = fmax(out->copies.to_host, runs[r]->copies.to_host);
    out->copies.both_ways = fmax(out->copies.both_ways, runs[r]->copies.both_ways);
    out->reference_min_s = fmin(out->reference_min_s, runs[r]->reference_min_s);
    out->reference_max_s = fmax(out->reference_max_s, runs[r]->reference_max_s);
    values[r] = runs[r]->reference_s;
  }
  out->reference_s = tws_sample_median(values, (size_t)count);
  combine_passes(runs, count, &out->passes);
  return TWS_OK;
}
