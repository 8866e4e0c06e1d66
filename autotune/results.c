/* What the tuner found: tables, JSON and folders laid out as DeepSpeed's autotuner lays out its own. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "autotune/autotune.h"
#include "base/units.h"
#include "validation/evidence.h"

static const char *const experiment_files[] = {"exp.json", "ds_config.json", "metrics.json"};
enum { EXPERIMENT_FILES = 3 };

/* ---- JSON ---- */

static void add_number(cJSON *object, const char *key, double value) {
  cJSON_AddNumberToObject(object, key, value);
}

static cJSON *point_json(const tws_variant *point) {
  cJSON *json = cJSON_CreateObject();
  add_number(json, "zero_stage", point->stage);
  add_number(json, "micro_batch", (double)point->micro);
  add_number(json, "accumulation", (double)point->accumulation);
  cJSON_AddStringToObject(json, "recompute", tws_recompute_name(point->recompute));
  add_number(json, "ranks", point->ranks);
  if (point->threads > 0) add_number(json, "threads", point->threads);
  tws_variant_axes_json(point, json);
  return json;
}

static double tokens_of(const tws_tune_request *request) {
  return (double)tws_job_sequence(request->job);
}

static cJSON *candidate_json(const tws_tune_candidate *c, const tws_tune_request *request) {
  const double tokens_per_sample = tokens_of(request);
  const tws_evidence evidence = tws_evidence_of_variant(request->job, &c->variant);
  cJSON *json = point_json(&c->variant);
  cJSON_AddStringToObject(json, "name", c->name);
  add_number(json, "predicted_step_s", c->estimate.step_s);
  if (c->rough) cJSON_AddTrueToObject(json, "rough");
  if (c->variant.pipeline > 1)
    add_number(json, "bubble", c->simulated_s > 0 ? c->simulation.bubble : c->estimate.balance.bubble);
  if (c->simulated_s > 0) add_number(json, "simulated_step_s", c->simulated_s);
  if (c->measured_s > 0) {
    add_number(json, "measured_step_s", c->measured_s);
    add_number(json, "measured_spread_s", c->measured_spread_s);
  }
  add_number(json, "samples_per_s", tws_tune_throughput(c));
  add_number(json, "tokens_per_s", tws_tune_throughput(c) * tokens_per_sample);
  add_number(json, "rank_bytes", c->needed_bytes);
  add_number(json, "rank_limit_bytes", c->available_bytes);
  cJSON_AddItemToObject(json, "evidence", tws_evidence_json(&evidence));
  return json;
}

static tws_code take_json(cJSON *json, tws_text *out, tws_error *err) {
  char *text = cJSON_Print(json);
  cJSON_Delete(json);
  if (!text) return tws_fail(err, TWS_MEMORY, 0, "no memory for the result");
  tws_text_add(out, "%s\n", text);
  cJSON_free(text);
  return out->failed ? tws_fail(err, TWS_MEMORY, 0, "no memory for the result") : TWS_OK;
}

tws_code tws_tune_json(const tws_tune_result *result, const tws_tune_request *request, tws_text *out, tws_error *err) {
  cJSON *json = cJSON_CreateObject();
  cJSON_AddStringToObject(json, "schema", "twinspeed-tune-1");
  const double tokens = tokens_of(request);
  cJSON_AddStringToObject(json, "model", request->job->network->name);
  tws_fingerprint fingerprint = {0}; /* each candidate has a plan of its own */
  snprintf(fingerprint.model, sizeof fingerprint.model, "%016llx",
           (unsigned long long)tws_network_fingerprint(request->job->network));
  tws_fingerprint_json(&fingerprint, json);
  cJSON_AddStringToObject(json, "dtype", tws_dtype_name(request->job->config->dtype));
  add_number(json, "sequence_length", tokens);
  cJSON_AddStringToObject(json, "cluster", request->job->cluster.name);
  cJSON_AddStringToObject(json, "profile", tws_profile_name(request->job->profile));
  cJSON_AddStringToObject(json, "profile_provenance", tws_profile_provenance(request->job->profile));
  add_number(json, "points", result->count);
  add_number(json, "fits", result->fits);
  add_number(json, "simulated", result->simulated);
  add_number(json, "estimate_s", result->estimate_s);
  add_number(json, "simulate_s", result->simulate_s);
  cJSON *rejections = cJSON_AddArrayToObject(json, "rejections");
  for (int i = 0; i < result->rejection_count; i++) {
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "reason", result->rejections[i].reason);
    add_number(item, "count", result->rejections[i].count);
    cJSON_AddItemToArray(rejections, item);
  }
  cJSON *candidates = cJSON_AddArrayToObject(json, "candidates");
  for (int i = 0; i < result->fits; i++)
    cJSON_AddItemToArray(candidates, candidate_json(&result->candidates[i], request));
  if (result->fits > 0) {
    cJSON_AddItemToObject(json, "best", candidate_json(&result->candidates[0], request));
  } else if (result->smallest >= 0) {
    const tws_tune_candidate *c = &result->candidates[result->smallest];
    cJSON *smallest = candidate_json(c, request);
    add_number(smallest, "missing_bytes", c->needed_bytes - c->available_bytes);
    cJSON_AddItemToObject(json, "smallest", smallest);
  }
  return take_json(json, out, err);
}

/* ---- folders ---- */

static tws_code make_folder(const char *path, tws_error *err) {
  if (mkdir(path, 0777) == 0 || errno == EEXIST) return TWS_OK;
  return tws_fail(err, TWS_IO, "choose a folder that can be made: --results DIR", "%s: %s", path, strerror(errno));
}

static int file_exists(const char *folder, const char *name) {
  char path[4400];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return access(path, F_OK) == 0;
}

static void remove_experiment(const char *folder, const char *name) {
  char path[4400];
  for (int i = 0; i < EXPERIMENT_FILES; i++) {
    snprintf(path, sizeof path, "%s/%.255s/%s", folder, name, experiment_files[i]);
    unlink(path);
  }
  snprintf(path, sizeof path, "%s/%.255s", folder, name);
  rmdir(path); /* stays when somebody keeps other files in it */
}

/* Experiments of an earlier search: found by their exp.json. Returns how many; removes them with `force`. */
static int earlier_results(const char *folder, int force) {
  DIR *directory = opendir(folder);
  if (!directory) return 0;
  int count = file_exists(folder, "summary.txt") || file_exists(folder, "best.ds_config.json");
  for (struct dirent *entry; (entry = readdir(directory));) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%.255s", folder, entry->d_name);
    if (entry->d_name[0] == '.' || !file_exists(path, "exp.json")) continue;
    count++;
    if (force) remove_experiment(folder, entry->d_name);
  }
  closedir(directory);
  return count;
}

static tws_code write_json(const char *folder, const char *name, cJSON *json, tws_error *err) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  tws_text text = {0};
  tws_code code = take_json(json, &text, err);
  if (code == TWS_OK) code = tws_write_file(path, text.data, text.length, err);
  tws_text_free(&text);
  return code;
}

static tws_code config_text(const tws_tune_request *request, const tws_variant *point, tws_text *out, tws_error *err) {
  tws_config *config;
  TWS_TRY(tws_variant_config(request->job->config, request->job->network, point, &config, err));
  tws_code code = tws_config_print_given(config, out, err);
  tws_config_destroy(config);
  if (code == TWS_OK && out->failed) code = tws_fail(err, TWS_MEMORY, 0, "no memory for a configuration");
  return code;
}

/* DeepSpeed's keys with its units (microseconds, samples/s), then ours. */
static cJSON *metrics_json(const tws_tune_candidate *c, const tws_tune_request *request) {
  cJSON *json = cJSON_CreateObject();
  const tws_path_result *path = &c->estimate.path;
  double seconds = c->simulated_s > 0 ? c->simulated_s : c->estimate.step_s, steps = (double)c->variant.accumulation;
  add_number(json, "rank", 0);
  add_number(json, "fwd", path->phase_s[TWS_PHASE_FORWARD] / steps * 1e6);
  add_number(json, "bwd", (path->phase_s[TWS_PHASE_BACKWARD] + path->phase_s[TWS_PHASE_RECOMPUTE]) / steps * 1e6);
  add_number(json, "step", path->phase_s[TWS_PHASE_STEP] / steps * 1e6);
  add_number(json, "latency", seconds * 1e6);
  add_number(json, "FLOPS_per_gpu", seconds > 0 ? c->estimate.model_flops / c->variant.ranks / seconds : 0);
  add_number(json, "throughput", tws_tune_throughput(c));
  cJSON_AddStringToObject(json, "source", c->simulated_s > 0 ? "simulated" : "estimated");
  add_number(json, "tokens_per_s", tws_tune_throughput(c) * tokens_of(request));
  add_number(json, "longest_path_s", c->estimate.step_s);
  if (c->simulated_s > 0) add_number(json, "simulated_s", c->simulated_s);
  add_number(json, "exposed_s", path->exposed_s);
  add_number(json, "rank_bytes", c->needed_bytes);
  add_number(json, "rank_limit_bytes", c->available_bytes);
  return json;
}

static tws_code write_experiment(const tws_tune_candidate *c, const tws_tune_request *request, const char *folder,
                                 int id, tws_error *err) {
  char path[4096], file[4200];
  snprintf(path, sizeof path, "%s/%s", folder, c->name);
  TWS_TRY(make_folder(path, err));
  tws_text text = {0};
  tws_code code = config_text(request, &c->variant, &text, err);
  snprintf(file, sizeof file, "%s/ds_config.json", path);
  if (code == TWS_OK) code = tws_write_file(file, text.data, text.length, err);
  cJSON *exp = cJSON_CreateObject();
  const tws_cluster *cluster = &request->job->cluster;
  int nodes = (c->variant.ranks + cluster->devices_per_node - 1) / cluster->devices_per_node;
  if (nodes > cluster->nodes) nodes = cluster->nodes; /* oversubscribed host */
  cJSON_AddStringToObject(exp, "name", c->name);
  add_number(exp, "exp_id", id);
  add_number(exp, "num_nodes", nodes);
  add_number(exp, "num_gpus", (double)((c->variant.ranks + nodes - 1) / nodes));
  cJSON_AddStringToObject(exp, "model", request->job->network->name);
  cJSON_AddStringToObject(exp, "result_dir", path);
  cJSON_AddStringToObject(exp, "ds_config_path", file);
  cJSON_AddItemToObject(exp, "ds_config", text.data ? cJSON_Parse(text.data) : NULL);
  cJSON_AddItemToObject(exp, "tuned", point_json(&c->variant));
  tws_text_free(&text);
  if (code != TWS_OK) {
    cJSON_Delete(exp);
    return code;
  }
  TWS_TRY(write_json(path, "exp.json", exp, err));
  return write_json(path, "metrics.json", metrics_json(c, request), err);
}

/* DeepSpeed's summary: one row per space, then the global one. A space here is a stage. */
static void write_summary(const tws_tune_result *result, tws_text *out) {
  const tws_tune_candidate *best = result->fits > 0 ? &result->candidates[0] : 0;
  tws_text_add(out, "| %-12s | %15s | %15s | %-40s |\n", "tuning_space", "num_experiments", "best_metric_val",
               "best_exp_name");
  for (int stage = 0; stage <= 3; stage++) {
    const tws_tune_candidate *top = 0;
    int count = 0;
    for (int i = 0; i < result->fits; i++) {
      const tws_tune_candidate *c = &result->candidates[i];
      if (c->variant.stage != stage || (result->simulated > 0 && c->simulated_s <= 0)) continue;
      count++;
      if (!top || tws_tune_throughput(c) > tws_tune_throughput(top)) top = c;
    }
    if (top)
      tws_text_add(out, "| z%-11d | %15d | %15.6g | %-40s |\n", stage, count, tws_tune_throughput(top), top->name);
  }
  if (best)
    tws_text_add(out, "| %-12s | %15d | %15.6g | %-40s |\n", "global",
                 result->simulated > 0 ? result->simulated : result->fits, tws_tune_throughput(best), best->name);
  tws_text_add(out, "\nmetric: throughput (samples/s). %d points: %d fit, %d rejected.\n", result->count, result->fits,
               result->count - result->fits);
  for (int i = 0; i < result->rejection_count; i++)
    tws_text_add(out, "rejected %d: %s\n", result->rejections[i].count, result->rejections[i].reason);
}

static tws_code write_text(const char *folder, const char *name, tws_text *text, tws_code code, tws_error *err) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  if (code == TWS_OK && text->failed) code = tws_fail(err, TWS_MEMORY, 0, "no memory for %s", path);
  if (code == TWS_OK) code = tws_write_file(path, text->data, text->length, err);
  tws_text_free(text);
  return code;
}

tws_code tws_tune_folder_check(const char *folder, int force, tws_error *err) {
  if (strlen(folder) > 2048) return tws_fail(err, TWS_INVALID, 0, "the name of the result folder is too long");
  if (earlier_results(folder, 0) > 0 && !force)
    return tws_fail(err, TWS_USAGE, "--force overwrites them; --results DIR names another folder",
                    "%s: holds the results of an earlier search", folder);
  return TWS_OK;
}

tws_code tws_tune_write(const tws_tune_result *result, const tws_tune_request *request, const char *folder, int force,
                        tws_error *err) {
  TWS_TRY(tws_tune_folder_check(folder, force, err));
  TWS_TRY(make_folder(folder, err));
  earlier_results(folder, 1);
  for (int i = 0; i < result->fits; i++) {
    const tws_tune_candidate *c = &result->candidates[i];
    if (i > 0 && c->simulated_s <= 0) continue;
    TWS_TRY(write_experiment(c, request, folder, i, err));
  }
  tws_text text = {0};
  write_summary(result, &text);
  TWS_TRY(write_text(folder, "summary.txt", &text, TWS_OK, err));
  if (result->fits == 0) return TWS_OK;
  tws_text best = {0};
  tws_code code = config_text(request, &result->candidates[0].variant, &best, err);
  return write_text(folder, "best.ds_config.json", &best, code, err);
}

tws_code tws_tune_record(tws_tune_candidate *c, double step_s, double spread_s, const char *folder, tws_error *err) {
  c->measured_s = step_s;
  c->measured_spread_s = spread_s;
  if (!folder) return TWS_OK;
  char path[4096];
  snprintf(path, sizeof path, "%s/%s/metrics.json", folder, c->name);
  tws_json *json;
  TWS_TRY(tws_json_read(path, &json, err));
  cJSON *root = cJSON_Duplicate(json->root, 1);
  tws_json_destroy(json);
  if (!root) return tws_fail(err, TWS_MEMORY, 0, "no memory for %s", path);
  const char *keys[] = {"measured_s", "measured_spread_s", "measured_throughput", "error"};
  double values[] = {step_s, spread_s, step_s > 0 ? c->samples / step_s : 0,
                     step_s > 0 ? (c->samples / tws_tune_throughput(c) - step_s) / step_s : 0};
  for (int i = 0; i < 4; i++) {
    cJSON_DeleteItemFromObjectCaseSensitive(root, keys[i]);
    add_number(root, keys[i], values[i]);
  }
  tws_text text = {0};
  tws_code code = take_json(root, &text, err);
  if (code == TWS_OK) code = tws_write_file(path, text.data, text.length, err);
  tws_text_free(&text);
  return code;
}
