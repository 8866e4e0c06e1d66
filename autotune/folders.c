#include "autotune/folders.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "autotune/experiment.h"
#include "job/features.h"

enum { PATH_SIZE = 4096, LONGEST_FOLDER = 2048 };

static const char *const experiment_files[] = {"exp.json",   "ds_config.json", "metrics.json", "cmd.txt",
                                               "stdout.log", "stderr.log",     "measured.json"};
enum { EXPERIMENT_FILES = sizeof experiment_files / sizeof *experiment_files };

/* ---- files ---- */

tws_code tws_tune_write_json(cJSON *json, const char *path, tws_error *err) {
  char *text = json ? cJSON_Print(json) : NULL;
  cJSON_Delete(json);
  if (!text) return tws_fail(err, TWS_MEMORY, NULL, "no memory for %s", path);
  tws_text line = {0};
  tws_text_add(&line, "%s\n", text);
  cJSON_free(text);
  const tws_code code = line.failed ? tws_fail(err, TWS_MEMORY, NULL, "no memory for %s", path)
                                    : tws_write_file(path, line.data, line.length, err);
  tws_text_free(&line);
  return code;
}

cJSON *tws_tune_variant_json(const tws_variant *variant) {
  cJSON *json = cJSON_CreateObject();
  cJSON_AddNumberToObject(json, "zero_stage", variant->stage);
  cJSON_AddNumberToObject(json, "micro_batch", (double)variant->micro);
  cJSON_AddNumberToObject(json, "accumulation", (double)variant->accumulation);
  cJSON_AddStringToObject(json, "recompute", tws_recompute_name(variant->recompute));
  cJSON_AddNumberToObject(json, "ranks", variant->ranks);
  if (variant->threads > 0) cJSON_AddNumberToObject(json, "threads", variant->threads);
  tws_variant_axes_json(variant, json);
  return json;
}

/* Returns 1 if the searched runtime is DeepSpeed, which reads the configurations that searches write. */
static int is_deepspeeds(const tws_job *job) {
  return strstr(tws_runtime_family(tws_profile_runtime(job->profile), job->backend), "DeepSpeed") != NULL;
}

tws_code tws_tune_write_config(const tws_tune_request *request, const tws_variant *variant, const char *path,
                               tws_error *err) {
  tws_config *config;
  tws_text text = {0};
  TWS_TRY(tws_variant_config(request->job->config, request->job->network, variant, &config, err));
  tws_code code = tws_config_print_given(config, is_deepspeeds(request->job), &text, err);
  tws_config_destroy(config);
  if (code == TWS_OK && text.failed) code = tws_fail(err, TWS_MEMORY, NULL, "no memory for a configuration");
  if (code == TWS_OK) code = tws_write_file(path, text.data, text.length, err);
  tws_text_free(&text);
  return code;
}

tws_code tws_tune_write_command(const tws_tune_request *request, const tws_variant *variant,
                                const tws_tune_folders *folders, const char *config, const char *path, tws_error *err) {
  if (!folders->spec) return TWS_OK;
  const tws_experiment_setup setup = {.spec = folders->spec,
                                      .data = folders->data,
                                      .results = folders->results,
                                      .fidelity = request->sim ? tws_fidelity_name(request->fidelity) : NULL};
  tws_job *job = NULL;
  tws_text text = {0};
  tws_arena *arena = tws_arena_create();
  tws_code code = arena ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  if (code == TWS_OK) code = tws_job_derive(request->job, variant, &job, err);
  if (code == TWS_OK) code = tws_experiment_command(&setup, job, config, arena, &text, err);
  if (code == TWS_OK) code = tws_write_file(path, text.data, text.length, err);
  tws_text_free(&text);
  tws_job_destroy(job);
  tws_arena_destroy(arena);
  return code;
}

/* ---- earlier results ---- */

static int has_file(int folder, const char *name) {
  struct stat info;
  return fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW) == 0;
}

/* Opens a folder that the user named, and writes its descriptor to *fd. Returns the open list of its entries;
 * closedir() closes the list and the descriptor. NULL: the folder cannot be opened. */
static DIR *list_folder(const char *path, int *fd) {
  *fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *list = *fd >= 0 ? fdopendir(*fd) : NULL;
  if (!list && *fd >= 0) close(*fd);
  return list;
}

static void remove_experiment(int folder, const char *name) {
  const int experiment = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (experiment < 0) return;
  for (int i = 0; i < EXPERIMENT_FILES; i++) unlinkat(experiment, experiment_files[i], 0);
  close(experiment);
  unlinkat(folder, name, AT_REMOVEDIR); /* fails, and keeps the folder, if it contains other files */
}

static int is_experiment(int folder, const char *name) {
  const int experiment = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  const int is = experiment >= 0 && has_file(experiment, "exp.json");
  if (experiment >= 0) close(experiment);
  return is;
}

/* Counts the experiments of an earlier search, which are folders with a file exp.json; removes them if `remove` is 1.
 * Returns their number. */
static int earlier_results(const char *path, int remove) {
  int folder;
  DIR *list = list_folder(path, &folder);
  if (!list) return 0;
  int count = has_file(folder, "summary.txt") || has_file(folder, "ds_config_optimal.json");
  for (struct dirent *entry; (entry = readdir(list));) {
    if (entry->d_name[0] == '.' || !is_experiment(folder, entry->d_name)) continue;
    count++;
    if (remove) remove_experiment(folder, entry->d_name);
  }
  closedir(list);
  return count;
}

/* Removes the files EXPERIMENTS/<name>.json of an earlier search, which are recognized by the form of their names:
 * "z2_gas4_...". */
static void remove_descriptions(const char *path) {
  int folder;
  DIR *list = list_folder(path, &folder);
  if (!list) return;
  for (struct dirent *entry; (entry = readdir(list));) {
    const char *name = entry->d_name, *end = strstr(name, ".json");
    if (name[0] == 'z' && end && end[5] == '\0') unlinkat(folder, name, 0);
  }
  closedir(list);
}

/* Creates a folder. One that the user names may be a symbolic link; one that the search creates within it must not be,
 * since files would be written to the link's target. */
static tws_code make_folder(const char *path, int follow, tws_error *err) {
  struct stat info;
  if (mkdir(path, 0777) == 0) return TWS_OK;
  if (errno == EEXIST && (follow || (lstat(path, &info) == 0 && S_ISDIR(info.st_mode)))) return TWS_OK;
  return tws_fail(err, TWS_IO, "choose writable folders: --results DIR, --experiments DIR", "%s: %s", path,
                  strerror(errno));
}

/* Fails with TWS_INVALID if the name of the result folder is too long, and with TWS_USAGE if the folder has results of
 * an earlier search that must not be overwritten. */
static tws_code tune_folders_check(const tws_tune_folders *folders, tws_error *err) {
  if (strlen(folders->results) > LONGEST_FOLDER ||
      (folders->experiments && strlen(folders->experiments) > LONGEST_FOLDER))
    return tws_fail(err, TWS_INVALID, NULL, "the name of the result folder is too long");
  if (folders->earlier == TWS_EARLIER_REFUSE && earlier_results(folders->results, 0) > 0)
    return tws_fail(err, TWS_USAGE,
                    "--force overwrites them; --resume continues from them; --results DIR names another folder",
                    "%s: holds the results of an earlier search", folders->results);
  return TWS_OK;
}

tws_code tws_tune_folders_make(const tws_tune_folders *folders, tws_error *err) {
  TWS_TRY(tune_folders_check(folders, err));
  return make_folder(folders->results, 1, err);
}

tws_code tws_tune_folders_open(const tws_tune_folders *folders, tws_error *err) {
  TWS_TRY(tune_folders_check(folders, err));
  TWS_TRY(make_folder(folders->results, 1, err));
  if (folders->experiments) TWS_TRY(make_folder(folders->experiments, 1, err));
  if (folders->earlier == TWS_EARLIER_KEEP) return TWS_OK;
  earlier_results(folders->results, 1);
  if (folders->experiments) remove_descriptions(folders->experiments);
  return TWS_OK;
}

/* ---- experiments ---- */

/* Returns the metrics of an experiment: DeepSpeed's keys with its units (microseconds, samples/s), then Twinspeed's
 * own. */
static cJSON *metrics_json(const tws_tune_candidate *c, const tws_tune_request *request) {
  cJSON *json = cJSON_CreateObject();
  const tws_path_result *path = &c->estimate.path;
  const double predicted = c->simulated_s > 0 ? c->simulated_s : c->estimate.step_s;
  const double seconds = c->measured_s > 0 ? c->measured_s : predicted, steps = (double)c->variant.accumulation;
  cJSON_AddNumberToObject(json, "rank", 0);
  cJSON_AddNumberToObject(json, "fwd", path->phase_s[TWS_PHASE_FORWARD] / steps * 1e6);
  cJSON_AddNumberToObject(json, "bwd",
                          (path->phase_s[TWS_PHASE_BACKWARD] + path->phase_s[TWS_PHASE_RECOMPUTE]) / steps * 1e6);
  cJSON_AddNumberToObject(json, "step", path->phase_s[TWS_PHASE_STEP] / steps * 1e6);
  cJSON_AddNumberToObject(json, "latency", seconds * 1e6);
  cJSON_AddNumberToObject(json, "FLOPS_per_gpu",
                          seconds > 0 ? c->estimate.model_flops / c->variant.ranks / seconds : 0);
  cJSON_AddNumberToObject(json, "throughput", seconds > 0 ? c->samples / seconds : 0);
  cJSON_AddStringToObject(json, "source",
                          c->measured_s > 0    ? "measured"
                          : c->simulated_s > 0 ? "simulated"
                                               : "estimated");
  cJSON_AddNumberToObject(json, "tokens_per_s",
                          seconds > 0 ? c->samples / seconds * (double)tws_job_sequence(request->job) : 0);
  cJSON_AddNumberToObject(json, "longest_path_s", c->estimate.step_s);
  if (c->simulated_s > 0) cJSON_AddNumberToObject(json, "simulated_s", c->simulated_s);
  if (c->measured_s > 0) {
    cJSON_AddNumberToObject(json, "measured_s", c->measured_s);
    cJSON_AddNumberToObject(json, "measured_spread_s", c->measured_spread_s);
    cJSON_AddNumberToObject(json, "error", (predicted - c->measured_s) / c->measured_s);
  }
  cJSON_AddNumberToObject(json, "exposed_s", path->exposed_s);
  cJSON_AddNumberToObject(json, "rank_bytes", c->needed_bytes);
  cJSON_AddNumberToObject(json, "rank_limit_bytes", c->available_bytes);
  return json;
}

static cJSON *experiment_json(const tws_tune_candidate *c, const tws_tune_request *request, const char *folder,
                              const char *config, int id) {
  cJSON *exp = cJSON_CreateObject();
  const tws_cluster *cluster = &request->job->cluster;
  int nodes = (c->variant.ranks + cluster->devices_per_node - 1) / cluster->devices_per_node;
  if (nodes > cluster->nodes) nodes = cluster->nodes; /* more ranks than cores: they oversubscribe a host */
  cJSON_AddStringToObject(exp, "name", c->name);
  cJSON_AddNumberToObject(exp, "exp_id", id);
  cJSON_AddNumberToObject(exp, "num_nodes", nodes);
  cJSON_AddNumberToObject(exp, "num_gpus", (double)((c->variant.ranks + nodes - 1) / nodes));
  cJSON_AddStringToObject(exp, "model", request->job->network->name);
  cJSON_AddStringToObject(exp, "result_dir", folder);
  cJSON_AddStringToObject(exp, "ds_config_path", config);
  tws_json *json;
  if (tws_json_read_regular(config, &json, NULL) == TWS_OK) {
    cJSON_AddItemToObject(exp, "ds_config", cJSON_Duplicate(json->root, 1));
    tws_json_destroy(json);
  }
  cJSON_AddItemToObject(exp, "tuned", tws_tune_variant_json(&c->variant));
  return exp;
}

tws_code tws_tune_write_experiment(const tws_tune_candidate *c, const tws_tune_request *request,
                                   const tws_tune_folders *folders, int id, tws_error *err) {
  char folder[PATH_SIZE], config[PATH_SIZE + 32], path[PATH_SIZE + 32];
  snprintf(folder, sizeof folder, "%s/%s", folders->results, c->name);
  TWS_TRY(make_folder(folder, 0, err));
  snprintf(config, sizeof config, "%s/ds_config.json", folder);
  TWS_TRY(tws_tune_write_config(request, &c->variant, config, err));
  snprintf(path, sizeof path, "%s/cmd.txt", folder);
  TWS_TRY(tws_tune_write_command(request, &c->variant, folders, config, path, err));
  snprintf(path, sizeof path, "%s/exp.json", folder);
  TWS_TRY(tws_tune_write_json(experiment_json(c, request, folder, config, id), path, err));
  snprintf(path, sizeof path, "%s/%s.json", folders->experiments ? folders->experiments : "", c->name);
  if (folders->experiments) TWS_TRY(tws_tune_write_json(experiment_json(c, request, folder, config, id), path, err));
  snprintf(path, sizeof path, "%s/metrics.json", folder);
  return tws_tune_write_json(metrics_json(c, request), path, err);
}
