/* Reads a file of measured runs, and the figures in it. */
#include "validation/cases.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/units.h"
#include "validation/case_fields.h"
#include "validation/case_rules.h"

const cJSON *tws_case_member(const cJSON *row, const char *section, const char *key) {
  const cJSON *object = section ? cJSON_GetObjectItemCaseSensitive(row, section) : row;
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
  return item && !cJSON_IsNull(item) ? item : NULL;
}

double tws_case_number(const cJSON *row, const char *section, const char *key) {
  const cJSON *item = tws_case_member(row, section, key);
  return cJSON_IsNumber(item) && fabs(item->valuedouble) <= 1e15 ? item->valuedouble : 0;
}

int tws_case_int(const cJSON *row, const char *section, const char *key) {
  const double number = tws_case_number(row, section, key);
  return number >= 0 && number <= 1e9 ? (int)number : 0;
}

const char *tws_case_text(const cJSON *row, const char *section, const char *key) {
  const cJSON *item = tws_case_member(row, section, key);
  return cJSON_IsString(item) ? item->valuestring : "";
}

int tws_case_flag(const cJSON *row, const char *section, const char *key) {
  return cJSON_IsTrue(tws_case_member(row, section, key));
}

/* Returns 1 if the row's time or memory may be scored: it is marked usable, or not marked at all. */
static int is_usable(const tws_case *one, const char *what) {
  const cJSON *item = tws_case_member(one->row, "usable", what);
  const int time = strcmp(what, "time") == 0;
  if (time && tws_case_fact_flag(one, "no_time")) return 0;
  return !item || cJSON_IsTrue(item);
}

static void read_memory(const cJSON *row, tws_case *one) {
  const char *kind = tws_case_text(row, "result", "mem_kind");
  const double exact = tws_case_number(row, "result", "mem_max_allocated_bytes");
  const double peak = tws_case_number(row, "result", "peak_mem_gb");
  const int smi = strstr(kind, "nvidia-smi") != NULL;
  /* nvidia-smi counts in MiB whatever unit a paper writes; a "GB" of another source is decimal */
  const double unit = smi || strstr(kind, "GiB") ? TWS_GIB : 1e9;
  const int reserved = strstr(kind, "reserved") || tws_case_fact_flag(one, "reads_reserved");
  one->counts = smi ? TWS_CASE_DEVICE : reserved ? TWS_CASE_RESERVED : TWS_CASE_ALLOCATED;
  one->of_last_stage = strstr(kind, "logging rank") != NULL; /* Megatron logs on its last rank */
  one->of_first_stage = tws_case_fact_flag(one, "watches_first_node");
  if (is_usable(one, "memory")) one->measured_bytes = exact > 0 ? exact : peak * unit;
}

/* Returns 1 if any figure was measured, so that the run did not run out of memory. */
static int was_measured(const cJSON *row) {
  static const char *const figures[] = {
      "iter_time_s",    "samples_per_s", "tokens_per_s",           "tokens_per_s_per_gpu",
      "tflops_per_gpu", "peak_mem_gb",   "mem_max_allocated_bytes"};
  for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
    if (tws_case_number(row, "result", figures[i]) > 0) return 1;
  return 0;
}

static void read_verdict(const cJSON *row, tws_case *one) {
  const cJSON *verdict = tws_case_member(row, "result", "oom");
  one->out_of_memory = cJSON_IsBool(verdict) ? cJSON_IsTrue(verdict)
                       /* a text such as "fragmentation": the run failed for lack of memory, too */
                       : cJSON_IsString(verdict) ? 1
                       : was_measured(row)       ? 0
                                                 : -1;
}

static tws_code read_case(const tws_cases *cases, const cJSON *row, tws_case *one, tws_error *err) {
  static const char *const sections[] = {"model", "parallel", "hardware", "result", "usable", NULL};
  if (!cJSON_IsObject(row)) return tws_json_fail(cases->json, row, err, NULL, "a run must be an object");
  TWS_TRY(tws_json_string(cases->json, row, "id", 1, NULL, &one->id, err));
  TWS_TRY(tws_json_string(cases->json, row, "group", 1, NULL, &one->group, err));
  for (int i = 0; sections[i]; i++) {
    const cJSON *item = tws_case_member(row, NULL, sections[i]);
    if (item && !cJSON_IsObject(item))
      return tws_json_fail(cases->json, item, err, NULL, "\"%s\" must be an object", sections[i]);
  }
  one->row = row;
  TWS_TRY(tws_case_find_facts(cases->rules, row, &one->facts, err));
  if (is_usable(one, "time")) one->measured_s = tws_case_number(row, "result", "iter_time_s");
  read_memory(row, one);
  read_verdict(row, one);
  return TWS_OK;
}

static tws_code read_cases(tws_cases *cases, tws_error *err) {
  const cJSON *row;
  if (!cJSON_IsArray(cases->json->root))
    return tws_json_fail(cases->json, cases->json->root, err, "docs/accuracy.md has the schema",
                         "a file of measured runs must be a list");
  if (cJSON_GetArraySize(cases->json->root) == 0)
    return tws_json_fail(cases->json, cases->json->root, err, "docs/accuracy.md has the schema",
                         "the list of measured runs is empty");
  cases->cases = tws_calloc((size_t)cJSON_GetArraySize(cases->json->root) + 1, sizeof *cases->cases);
  if (!cases->cases) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for measured runs");
  cJSON_ArrayForEach(row, cases->json->root) {
    tws_case *one = &cases->cases[cases->count];
    cases->count++; /* from here on tws_cases_destroy() frees the row's properties */
    TWS_TRY(read_case(cases, row, one, err));
    for (int i = 0; i + 1 < cases->count; i++)
      if (strcmp(cases->cases[i].id, one->id) == 0 && strcmp(cases->cases[i].group, one->group) == 0)
        return tws_json_fail(cases->json, row, err, NULL, "a second run \"%.80s\"", one->id);
  }
  return TWS_OK;
}

tws_code tws_cases_load(const char *path, tws_cases **out, tws_error *err) {
  *out = NULL;
  tws_cases *cases = tws_calloc(1, sizeof *cases);
  if (!cases) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for measured runs");
  tws_code code = tws_json_read(path, &cases->json, err);
  if (code == TWS_OK) code = tws_case_rules_load(&cases->rules, err);
  if (code == TWS_OK) code = read_cases(cases, err);
  if (code == TWS_OK)
    *out = cases;
  else
    tws_cases_destroy(cases);
  return code;
}

void tws_cases_destroy(tws_cases *cases) {
  if (!cases) return;
  for (int i = 0; i < cases->count; i++) cJSON_Delete(cases->cases[i].facts);
  tws_json_destroy(cases->rules);
  tws_json_destroy(cases->json);
  tws_free(cases->cases);
  tws_free(cases);
}

/* ---- seconds from rates ---- */

double tws_case_flops(const tws_network *network, double samples, double sequence, int recomputed) {
  const double h = (double)network->hidden, l = (double)network->layers, v = (double)network->padded_vocabulary;
  const double passes = recomputed ? 96 : 72, logits = recomputed ? 16 : 12;
  return passes * samples * sequence * l * h * h * (1 + sequence / (6 * h) + v / (logits * l * h));
}

double tws_case_step_s(const tws_case *one, const tws_job *job) {
  const cJSON *row = one->row;
  const double samples = (double)job->config->train_batch_size, sequence = (double)job->config->sequence_length;
  const double tokens = tws_case_number(row, "result", "tokens_per_s"),
               rate = tws_case_number(row, "result", "samples_per_s");
  const double each = tws_case_number(row, "result", "tokens_per_s_per_gpu");
  const double teraflops = tws_case_number(row, "result", "tflops_per_gpu");
  if (one->measured_s > 0) return one->measured_s;
  if (!is_usable(one, "time")) return 0;
  if (rate > 0) return samples / rate;
  if (tokens > 0) return samples * sequence / tokens;
  if (each > 0) return samples * sequence / each / job->ranks;
  if (teraflops > 0)
    return tws_case_flops(job->network, samples, sequence, tws_case_fact_flag(one, "counts_recomputation")) /
           teraflops / 1e12 / job->ranks;
  return 0;
}
