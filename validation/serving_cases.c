#include "validation/serving_cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "job/cluster_name.h"
#include "job/modules.h"
#include "validation/case_fields.h"

int tws_served_is_list(const tws_json *json) {
  return cJSON_IsArray(json->root) && cJSON_HasObjectItem(cJSON_GetArrayItem(json->root, 0), "measure");
}

static tws_code lacks(tws_error *err, const char *what, const char *name) {
  return tws_fail(err, TWS_UNSUPPORTED, NULL, "%s%s%s", what, *name ? ": " : "", name);
}

/* ---- a row as a job ---- */

typedef struct served_row {
  const cJSON *row, *rules;
  int tensor, stages, narrow; /* narrow: 1: products have 8-bit inputs where the device has such */
  int64_t batch;
  const char *cluster, *dtype;
  tws_serve_request request;
} served_row;

static const char *text_of(const cJSON *object, const char *key) {
  const cJSON *text = cJSON_GetObjectItemCaseSensitive(object, key);
  return cJSON_IsString(text) ? text->valuestring : "";
}

static int degree(const cJSON *row, const char *key) {
  const int value = tws_case_int(row, "config", key);
  return value > 1 ? value : 1;
}

/* Finds the row of figures for the software of the case. A group may have figures of its own, as it may have run
 * another version than the name says. */
static tws_code read_software(served_row *r, tws_error *err) {
  const char *name = tws_case_text(r->row, "software", "name");
  const cJSON *groups = cJSON_GetObjectItemCaseSensitive(r->rules, "groups");
  const cJSON *own = cJSON_GetObjectItemCaseSensitive(groups, tws_case_text(r->row, NULL, "group"));
  const char *server = text_of(own, name);
  if (!*server) server = text_of(cJSON_GetObjectItemCaseSensitive(r->rules, "software"), name);
  if (!*server) return lacks(err, "no row of figures for the software", name);
  return tws_server_parse(server, &r->request.server, err);
}

/* Returns the texts at a time of a row: its batch, or where it has none, the number of requests that run all the time
 * (concurrency), each of which is replaced by another when it ends. 0: neither is stated. */
static int64_t texts_of(const cJSON *row) {
  const int64_t batch = tws_case_int(row, "config", "batch");
  return batch > 0 ? batch : tws_case_int(row, "config", "concurrency");
}

static tws_code read_row(served_row *r, tws_error *err) {
  const cJSON *row = r->row;
  const char *gpu = tws_case_text(row, "hardware", "gpu"), *type = tws_case_text(row, "config", "weight_dtype");
  const cJSON *weights = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(r->rules, "weights"), type);
  r->batch = texts_of(row);
  r->request.prompt = tws_case_int(row, "config", "input_tokens");
  r->request.output = tws_case_int(row, "config", "output_tokens");
  /* rates of decoding after a short prompt, and whether weights fit, hardly depend on the lengths */
  const char *kind = tws_case_text(row, "measure", "kind");
  const int short_texts = strcmp(kind, "decode_rate") == 0 || strcmp(kind, "fits") == 0;
  if (strcmp(kind, "memory") == 0) { /* of a server at its start: texts as long as its model may have them */
    const int longest = tws_case_int(row, "config", "max_model_len");
    r->batch = 1;
    r->request.prompt = r->request.output = longest > 1 ? longest / 2 : 1024;
    r->request.device_share = fmax(0, tws_case_number(row, "config", "gpu_memory_utilization"));
  }
  if (short_texts && r->request.prompt < 1) r->request.prompt = 16;
  if (short_texts && r->request.output < 1) r->request.output = 128;
  if (r->batch < 1) return lacks(err, "neither batch nor concurrency is stated", "");
  if (r->request.prompt < 1 || r->request.output < 1) return lacks(err, "the lengths of texts are not stated", "");
  if (*tws_case_text(row, "config", "offload")) return lacks(err, "weights or caches are offloaded", "");
  r->cluster = text_of(cJSON_GetObjectItemCaseSensitive(r->rules, "gpus"), gpu);
  if (!*r->cluster) return lacks(err, "no cluster of the device", gpu);
  if (!weights) return lacks(err, "no such type of weights", type);
  r->dtype = text_of(weights, "dtype");
  r->request.weight_codes = tws_case_int(weights, NULL, "bits");
  const char *cache = tws_case_text(row, "config", "kv_dtype");
  r->request.cache_bits = strcmp(cache, "fp8") == 0 || strcmp(cache, "int8") == 0 ? 8 : 0;
  r->narrow = tws_case_flag(weights, NULL, "narrow_products");
  r->tensor = degree(row, "tp");
  r->stages = degree(row, "pp");
  return read_software(r, err);
}

/* Builds the network from the sizes in the rules. */
static tws_code load_network(const served_row *r, tws_network **out, tws_error *err) {
  const char *name = tws_case_text(r->row, "model", "name");
  const cJSON *sizes = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(r->rules, "models"), name);
  tws_json *json = NULL;
  if (!sizes) return lacks(err, "no sizes of the model", name);
  char *text = cJSON_PrintUnformatted(sizes);
  if (!text) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for a published run");
  tws_code code = tws_json_parse(text, strlen(text), name, &json, err);
  if (code == TWS_OK) code = tws_network_from_json(json, r->tensor, out, err);
  tws_json_destroy(json);
  cJSON_free(text);
  return code;
}

static tws_code load_config(const served_row *r, tws_config **out, tws_error *err) {
  char text[512];
  tws_json *json = NULL;
  snprintf(text, sizeof text,
           "{\"train_micro_batch_size_per_gpu\":%lld,\"gradient_accumulation_steps\":%d,\"%s\":{\"enabled\":true},"
           "\"tensor_parallel\":{\"autotp_size\":%d},\"pipeline\":{\"stages\":%d},"
           "\"twinspeed\":{\"sequence_length\":%lld,\"expert_capacity_factor\":0,\"matmul_dtype\":\"%s\"}}",
           (long long)r->batch, 1, r->dtype, r->tensor, r->stages, (long long)(r->request.prompt + r->request.output),
           r->narrow ? "mxfp8" : "auto");
  TWS_TRY(tws_json_parse(text, strlen(text), "a published run", &json, err));
  const tws_code code = tws_config_from_json(json, out, err);
  tws_json_destroy(json);
  return code;
}

static tws_code load_machine(const served_row *r, tws_job_parts_given *parts, tws_error *err) {
  tws_cluster *c = &parts->cluster;
  TWS_TRY(tws_cluster_named(r->cluster, c, err));
  parts->ranks = r->tensor * r->stages;
  if (parts->ranks < c->devices_per_node) c->devices_per_node = parts->ranks;
  c->nodes = (parts->ranks + c->devices_per_node - 1) / c->devices_per_node;
  TWS_TRY(tws_profile_load(c->profile, &parts->profile, err));
  return tws_profile_set_server(parts->profile, r->request.server, err);
}

static tws_code load_job(served_row *r, tws_job **out, tws_error *err) {
  tws_job_parts_given parts = {0};
  tws_code code = load_network(r, &parts.network, err);
  if (code == TWS_OK && r->request.weight_codes > 0 && tws_network_has_experts(parts.network))
    code = lacks(err, "weights of experts have no few bits here", "");
  if (code == TWS_OK) code = load_machine(r, &parts, err);
  if (code == TWS_OK && r->narrow && tws_profile_set_matmul(parts.profile, TWS_MATMUL_MXFP8, NULL) != TWS_OK)
    r->narrow = 0;
  if (code == TWS_OK) code = load_config(r, &parts.config, err);
  if (code == TWS_OK) return tws_job_assemble(&parts, out, err);
  tws_network_destroy(parts.network);
  tws_config_destroy(parts.config);
  tws_profile_destroy(parts.profile);
  return code;
}

/* ---- what was measured ---- */

/* Returns the measured rate of generated tokens of all GPUs, which a row states in one of several members depending on
 * its "kind"; 0: none. *decoding: 1 if it
 * leaves out the prompts. */
static double measured_rate(const cJSON *row, int64_t batch, int64_t output, int *decoding) {
  const char *kind = tws_case_text(row, "measure", "kind");
  const double rate = tws_case_number(row, "result", "tokens_per_s_total"),
               token_s = tws_case_number(row, "result", "tpot_s"),
               whole_s = tws_case_number(row, "result", "latency_s");
  *decoding = strcmp(kind, "static_batch_e2e") != 0;
  if (!*decoding) return rate > 0 ? rate : whole_s > 0 ? (double)(batch * output) / whole_s : 0;
  if (strcmp(kind, "static_batch_phases") == 0) return token_s > 0 ? (double)batch / token_s : 0;
  if (strcmp(kind, "decode_rate") != 0) return 0;
  return rate > 0 ? rate : token_s > 0 ? (double)batch / token_s : 0;
}

/* Returns the meaning of the memory of a row: "device", of all that a device holds, "allocated", without context and
 * libraries, or "": it is not of this run's texts. Figures of keys and values need no rule. */
static const char *memory_kind(const served_row *r) {
  const cJSON *kinds = cJSON_GetObjectItemCaseSensitive(r->rules, "memory");
  return tws_case_number(r->row, "result", "memory_gb") > 0 ? text_of(kinds, tws_case_text(r->row, NULL, "group")) : "";
}

static int has_cache_figure(const cJSON *row) {
  return tws_case_number(row, "result", "kv_cache_tokens") > 0 ||
         tws_case_number(row, "result", "kv_cache_gib_per_gpu") > 0;
}

static int has_memory(const served_row *r) {
  return *memory_kind(r) || has_cache_figure(r->row);
}

/* Compares the memory of a device, if the row has it. */
static void compare_memory(const served_row *r, const tws_serve_answer *a, tws_served_result *result) {
  const double gib = 1024.0 * 1024 * 1024;
  const tws_ledger_tier *tier = &a->ledger.tier[TWS_TIER_DEVICE];
  const char *kind = memory_kind(r);
  if (has_cache_figure(r->row) && a->cached_tokens > 0) {
    const double tokens = (double)(r->batch * (r->request.prompt + r->request.output));
    const double token = (double)tier->category[TWS_CATEGORY_CACHE] / tokens / gib;
    const double measured = tws_case_number(r->row, "result", "kv_cache_tokens");
    result->predicted_gib = a->cached_tokens * token;
    result->measured_gib = measured > 0 ? measured * token : tws_case_number(r->row, "result", "kv_cache_gib_per_gpu");
  } else if (*kind) {
    result->measured_gib = tws_case_number(r->row, "result", "memory_gb");
    result->predicted_gib = (strcmp(kind, "device") == 0 ? a->fit.device_need : (double)tier->arena_bytes) / gib;
  }
}

static tws_code predict(served_row *r, tws_served_result *result, tws_error *err) {
  int decoding = 0;
  tws_job *job;
  tws_serve_answer answer;
  const cJSON *failed = tws_case_member(r->row, "result", "oom");
  result->out_of_memory = cJSON_IsBool(failed) ? cJSON_IsTrue(failed) : -1;
  const int core = tws_case_flag(r->row, NULL, "core");
  if (!core && result->out_of_memory < 0 && !has_memory(r)) return lacks(err, "not a core row", "");
  TWS_TRY(read_row(r, err));
  result->measured = core ? measured_rate(r->row, r->batch, r->request.output, &decoding) : 0;
  if (!(result->measured > 0) && result->out_of_memory < 0 && !has_memory(r))
    return lacks(err, "no rate of a batch", tws_case_text(r->row, "measure", "kind"));
  if (result->measured > 0 && result->out_of_memory < 0) result->out_of_memory = 0;
  TWS_TRY(load_job(r, &job, err));
  const tws_code code = tws_job_serve(job, &r->request, &answer, err);
  tws_job_destroy(job);
  TWS_TRY(code);
  result->predicted_fits = answer.fit.fits;
  result->predicted = decoding ? answer.decoded_per_s : answer.tokens_per_s;
  compare_memory(r, &answer, result);
  return TWS_OK;
}

/* ---- figures ---- */

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static int is_timed(const tws_served_result *r) {
  return !r->skipped_because && r->measured > 0 && r->predicted > 0;
}

static double error_of(const tws_served_result *r) {
  return 100 * (r->predicted / r->measured - 1);
}

static double concordance_of(const tws_served_result *const *runs, int count) {
  double right = 0, pairs = 0;
  for (int i = 0; i < count; i++)
    for (int j = 0; j < i; j++) {
      const double measured = runs[i]->measured - runs[j]->measured,
                   predicted = runs[i]->predicted - runs[j]->predicted;
      if (measured == 0) continue;
      pairs++;
      right += predicted == 0 ? 0.5 : (measured > 0) == (predicted > 0);
    }
  return pairs > 0 ? right / pairs : NAN;
}

static double median_of(double *values, int count) {
  if (count == 0) return NAN;
  qsort(values, (size_t)count, sizeof *values, ascending);
  return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

static int is_among(const tws_served_result *r, const char *name, int half) {
  return (!name || strcmp(name, r->group) == 0) && (half < 0 || r->for_fitting == half);
}

/* Computes the figures of the runs of a group (NULL: all) and a half (-1: both). */
static tws_code sum_up(const tws_served_comparison *c, const char *name, int half, tws_served_group *g,
                       tws_error *err) {
  const tws_served_result **runs = tws_calloc((size_t)c->count + 1, sizeof *runs);
  double *errors = tws_calloc((size_t)c->count + 1, sizeof *errors);
  double *memory = tws_calloc((size_t)c->count + 1, sizeof *memory);
  const tws_code code =
      runs && errors && memory ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory for published runs");
  *g = (tws_served_group){.name = name, .bias = NAN, .concordance = NAN};
  for (int i = 0; code == TWS_OK && i < c->count; i++) {
    const tws_served_result *r = &c->results[i];
    if (!is_among(r, name, half)) continue;
    g->n++;
    g->skipped += r->skipped_because != NULL;
    if (r->skipped_because) continue;
    if (r->out_of_memory >= 0) *(r->predicted_fits != r->out_of_memory ? &g->verdicts_right : &g->verdicts_wrong) += 1;
    if (r->measured_gib > 0) memory[g->weighed++] = fabs(100 * (r->predicted_gib / r->measured_gib - 1));
    if (!is_timed(r)) continue;
    errors[g->timed] = fabs(error_of(r));
    g->bias = (g->timed ? g->bias : 0) + error_of(r);
    runs[g->timed++] = r;
  }
  if (code == TWS_OK) {
    g->median = median_of(errors, g->timed);
    g->memory = median_of(memory, g->weighed);
    if (g->timed > 0) g->bias /= g->timed;
    if (g->timed > 0) g->concordance = concordance_of(runs, g->timed);
  }
  tws_free(runs);
  tws_free(errors);
  tws_free(memory);
  return code;
}

static tws_code sum_up_all(tws_served_comparison *c, tws_error *err) {
  for (int i = 0; i < c->count; i++) {
    int known = 0;
    while (known < c->group_count && strcmp(c->groups[known].name, c->results[i].group) != 0) known++;
    if (known == c->group_count) c->groups[c->group_count++].name = c->results[i].group;
  }
  for (int g = 0; g < c->group_count; g++) TWS_TRY(sum_up(c, c->groups[g].name, -1, &c->groups[g], err));
  for (int half = 0; half < 2; half++) TWS_TRY(sum_up(c, NULL, half == 0, &c->halves[half], err));
  return TWS_OK;
}

/* ---- the comparison ---- */

static int is_wanted(const char *group, const char *const *groups, int count) {
  for (int i = 0; i < count; i++)
    if (strcmp(groups[i], group) == 0) return 1;
  return count == 0;
}

static tws_code load(const char *path, tws_served_comparison *c, tws_error *err) {
  char rules[4096];
  TWS_TRY(tws_json_read(path, &c->json, err));
  if (!tws_served_is_list(c->json))
    return tws_json_fail(c->json, c->json->root, err, "docs/inference.md has the schema",
                         "this is no list of runs of inference");
  if (!*tws_data_path("published/inference_sources.json", rules, (int)sizeof rules))
    return tws_fail(err, TWS_ENVIRONMENT, "install the program with make install",
                    "the names of published runs, published/inference_sources.json, are not there");
  TWS_TRY(tws_json_read(rules, &c->rules, err));
  const size_t rows = (size_t)cJSON_GetArraySize(c->json->root) + 1;
  c->arena = tws_arena_create();
  c->results = c->arena ? tws_arena_alloc(c->arena, rows, sizeof *c->results) : NULL;
  c->groups = c->results ? tws_arena_alloc(c->arena, rows, sizeof *c->groups) : NULL;
  return c->groups ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory for published runs");
}

tws_code tws_served_compare(const char *path, const char *const *groups, int group_count, tws_progress *progress,
                            tws_served_comparison *out, tws_error *err) {
  const cJSON *row;
  int done = 0;
  *out = (tws_served_comparison){.json = NULL};
  TWS_TRY(load(path, out, err));
  tws_progress_begin(progress, "published runs of inference", cJSON_GetArraySize(out->json->root));
  cJSON_ArrayForEach(row, out->json->root) {
    served_row r = {.row = row, .rules = out->rules->root};
    tws_served_result *result = &out->results[out->count];
    tws_error why = {0};
    tws_progress_update(progress, done++);
    *result = (tws_served_result){.id = tws_case_text(row, NULL, "id"), .group = tws_case_text(row, NULL, "group")};
    if (!*result->id || !*result->group)
      return tws_json_fail(out->json, row, err, "docs/inference.md has the schema", "a run needs \"id\" and \"group\"");
    if (!is_wanted(result->group, groups, group_count)) continue;
    result->for_fitting = tws_case_is_for_fitting(result->id);
    out->count++;
    const tws_code code = predict(&r, result, &why);
    if (code == TWS_MEMORY) return tws_fail(err, code, NULL, "%s", why.message);
    if (code == TWS_OK) continue;
    result->skipped_because = tws_arena_strdup(out->arena, why.message);
  }
  tws_progress_end(progress);
  return sum_up_all(out, err);
}

void tws_served_free(tws_served_comparison *comparison) {
  tws_json_destroy(comparison->json);
  tws_json_destroy(comparison->rules);
  tws_arena_destroy(comparison->arena);
  *comparison = (tws_served_comparison){.json = NULL};
}
