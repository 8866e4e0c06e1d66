#include "autotune/experiment.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fingerprint.h"
#include "base/json.h"
#include "base/number.h"
#include "base/system.h"
#include "estimators/flops_profile.h"
#include "launch/child.h"
#include "models/hardware/runtime.h"
#include "traces/measurements.h"

#define RECORD_SCHEMA "twinspeed-experiment-1"

static const char *const outcome_names[TWS_OUTCOMES] = {"none", "measured", "out_of_memory", "hung", "failed"};

const char *tws_outcome_name(tws_outcome outcome) {
  return outcome_names[outcome];
}

void tws_experiment_free(tws_experiment *experiment) {
  tws_free(experiment->step_s);
  tws_free(experiment->run_s);
  *experiment = (tws_experiment){0};
}

void tws_experiment_times(tws_experiment *e, double *median_s, double *spread_s) {
  *median_s = *spread_s = 0;
  if (e->count == 0) return;
  *median_s = tws_sample_median(e->step_s, e->count); /* sorts the steps in place, as the next line requires */
  *spread_s = e->step_s[e->count - 1 - e->count / 4] - e->step_s[e->count / 4];
}

static const char *kind_name(int kind) {
  return kind < TWS_KERNEL_COUNT ? tws_kernel_name((tws_kernel)kind)
                                 : tws_collective_name((tws_collective)(kind - TWS_KERNEL_COUNT));
}

static const char *path_of(const tws_experiment_setup *setup, const char *name, const char *file, char *path,
                           size_t size) {
  snprintf(path, size, "%.2048s/%.255s/%s", setup->results, name, file);
  return path;
}

/* ---- the record ---- */

/* Writes the fingerprint of a record's inputs: model and plan, data, and the measured steps. */
static tws_code key_of(const tws_experiment_setup *setup, const tws_job *job, char *key, size_t size, tws_error *err) {
  tws_fingerprint print;
  TWS_TRY(tws_job_fingerprint(job, &print, err));
  uint64_t hash = tws_fingerprint_text(TWS_FINGERPRINT_START, print.plan);
  hash = tws_fingerprint_text(tws_fingerprint_text(hash, print.configuration), setup->data);
  hash = tws_fingerprint_integer(tws_fingerprint_integer(hash, setup->first_step), setup->last_step);
  snprintf(key, size, "%016llx", (unsigned long long)tws_fingerprint_integer(hash, job->threads));
  return TWS_OK;
}

static void add_kinds(const tws_experiment *e, cJSON *root) {
  cJSON *phases = cJSON_AddObjectToObject(root, "phase_s"), *kinds = cJSON_AddObjectToObject(root, "kind_s");
  for (int i = 0; i < TWS_PHASE_COUNT; i++)
    if (e->phase_s[i] > 0) cJSON_AddNumberToObject(phases, tws_phase_name((tws_phase)i), e->phase_s[i]);
  for (int i = 0; i < TWS_EXPERIMENT_KINDS; i++)
    if (e->kind_s[i] > 0) cJSON_AddNumberToObject(kinds, kind_name(i), e->kind_s[i]);
}

static void add_numbers(cJSON *root, const char *key, const double *numbers, size_t count) {
  cJSON *list = cJSON_AddArrayToObject(root, key);
  for (size_t i = 0; i < count; i++) cJSON_AddItemToArray(list, cJSON_CreateNumber(numbers[i]));
}

static tws_code write_record(const tws_experiment_setup *setup, const tws_job *job, const char *name,
                             const tws_experiment *e, tws_error *err) {
  char key[20], path[4096];
  TWS_TRY(key_of(setup, job, key, sizeof key, err));
  cJSON *root = cJSON_CreateObject();
  cJSON_AddStringToObject(root, "schema", RECORD_SCHEMA);
  cJSON_AddStringToObject(root, "key", key);
  cJSON_AddStringToObject(root, "name", name);
  cJSON_AddStringToObject(root, "outcome", tws_outcome_name(e->outcome));
  if (*e->reason) cJSON_AddStringToObject(root, "reason", e->reason);
  cJSON_AddNumberToObject(root, "runs", e->runs);
  add_numbers(root, "step_s", e->step_s, e->count);
  add_numbers(root, "run_s", e->run_s, e->run_count);
  cJSON_AddNumberToObject(root, "rank_bytes", e->rank_bytes);
  cJSON_AddNumberToObject(root, "peak_rss_bytes", e->peak_rss_bytes);
  add_kinds(e, root);
  char *text = cJSON_Print(root);
  cJSON_Delete(root);
  if (!text) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  const tws_code code =
      tws_write_file(path_of(setup, name, "measured.json", path, sizeof path), text, strlen(text), err);
  cJSON_free(text);
  return code;
}

static double number_in(const cJSON *object, const char *key) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
  return cJSON_IsNumber(item) && isfinite(item->valuedouble) && item->valuedouble > 0 ? item->valuedouble : 0;
}

static tws_code add_to(double **list, size_t *count, size_t *capacity, double seconds, tws_error *err) {
  if (tws_reserve(list, capacity, *count + 1, sizeof **list) != 0)
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  (*list)[(*count)++] = seconds;
  return TWS_OK;
}

static tws_code read_numbers(const cJSON *root, const char *key, double **list, size_t *count, size_t *capacity,
                             tws_error *err) {
  const cJSON *one;
  cJSON_ArrayForEach(one, cJSON_GetObjectItemCaseSensitive(root, key)) {
    if (cJSON_IsNumber(one) && one->valuedouble > 0) TWS_TRY(add_to(list, count, capacity, one->valuedouble, err));
  }
  return TWS_OK;
}

static tws_code parse_record(const cJSON *root, const char *key, tws_experiment *e, tws_error *err) {
  const cJSON *word = cJSON_GetObjectItemCaseSensitive(root, "outcome");
  const cJSON *of = cJSON_GetObjectItemCaseSensitive(root, "key");
  const cJSON *reason = cJSON_GetObjectItemCaseSensitive(root, "reason");
  if (!cJSON_IsString(word) || !cJSON_IsString(of) || strcmp(of->valuestring, key) != 0) return TWS_OK;
  for (int i = 0; i < TWS_OUTCOMES; i++)
    if (strcmp(word->valuestring, outcome_names[i]) == 0) e->outcome = (tws_outcome)i;
  if (cJSON_IsString(reason)) snprintf(e->reason, sizeof e->reason, "%s", reason->valuestring);
  e->runs = (int)number_in(root, "runs");
  TWS_TRY(read_numbers(root, "step_s", &e->step_s, &e->count, &e->capacity, err));
  TWS_TRY(read_numbers(root, "run_s", &e->run_s, &e->run_count, &e->run_capacity, err));
  e->rank_bytes = number_in(root, "rank_bytes");
  e->peak_rss_bytes = number_in(root, "peak_rss_bytes");
  for (int i = 0; i < TWS_PHASE_COUNT; i++)
    e->phase_s[i] = number_in(cJSON_GetObjectItemCaseSensitive(root, "phase_s"), tws_phase_name((tws_phase)i));
  for (int i = 0; i < TWS_EXPERIMENT_KINDS; i++)
    e->kind_s[i] = number_in(cJSON_GetObjectItemCaseSensitive(root, "kind_s"), kind_name(i));
  if (e->outcome == TWS_OUTCOME_MEASURED && e->count == 0) e->outcome = TWS_OUTCOME_NONE;
  return TWS_OK;
}

tws_code tws_experiment_read(const tws_experiment_setup *setup, const tws_job *job, const char *name,
                             tws_experiment *experiment, tws_error *err) {
  char key[20], path[4096];
  tws_json *json;
  *experiment = (tws_experiment){0};
  if (access(path_of(setup, name, "measured.json", path, sizeof path), R_OK) != 0) return TWS_OK;
  TWS_TRY(key_of(setup, job, key, sizeof key, err));
  TWS_TRY(tws_json_read_regular(path, &json, err));
  const tws_code code = parse_record(json->root, key, experiment, err);
  tws_json_destroy(json);
  return code;
}

/* ---- the command ---- */

enum { ARGUMENTS = 24 };
typedef struct command {
  tws_arena *arena;
  const char *argv[ARGUMENTS];
  int count;
} command;

static void add(command *c, const char *name, const char *value) {
  if (value) c->argv[c->count++] = tws_arena_printf(c->arena, "%s=%s", name, value);
}

static void add_job(command *c, const char *verb, const tws_experiment_setup *setup, const tws_job *job,
                    const char *config) {
  char program[4096], ranks[16];
  snprintf(ranks, sizeof ranks, "%d", job->ranks);
  c->argv[c->count++] = tws_arena_strdup(c->arena, tws_program_path(program, (int)sizeof program));
  c->argv[c->count++] = verb;
  add(c, "--model", setup->spec->model);
  add(c, "--config", config);
  add(c, "--cluster", setup->spec->cluster);
  add(c, "--profile", setup->spec->profile);
  add(c, "--ranks", ranks);
}

/* Adds options for the dtype and the sequence length, so that the command states them even if the configuration does
 * not. */
static void add_assumed(command *c, const tws_job *job) {
  char tokens[24];
  snprintf(tokens, sizeof tokens, "%lld", (long long)tws_job_sequence(job));
  add(c, "--dtype", tws_dtype_name(job->config->dtype));
  add(c, "--seq", tokens);
}

static tws_code finish_command(command *c, tws_error *err) {
  for (int i = 0; i < c->count; i++)
    if (!c->argv[i]) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  return TWS_OK;
}

/* Appends a word to `out`, quoted for a shell if necessary. */
static void quote(const char *word, tws_text *out) {
  const char *plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./=,:+@%";
  if (*word && word[strspn(word, plain)] == '\0') {
    tws_text_add(out, "%s", word);
    return;
  }
  tws_text_add(out, "'");
  for (; *word; word++) tws_text_add(out, *word == '\'' ? "'\\''" : "%c", *word);
  tws_text_add(out, "'");
}

static tws_code write_line(command *c, tws_text *out, tws_error *err) {
  TWS_TRY(finish_command(c, err));
  for (int i = 0; i < c->count; i++) {
    if (i > 0) tws_text_add(out, " ");
    quote(i == 0 ? "twinspeed" : c->argv[i], out);
  }
  tws_text_add(out, "\n");
  return out->failed ? tws_fail(err, TWS_MEMORY, NULL, "out of memory") : TWS_OK;
}

tws_code tws_experiment_command(const tws_experiment_setup *setup, const tws_job *job, const char *config,
                                tws_arena *arena, tws_text *out, tws_error *err) {
  const char *runtime = tws_profile_runtime(job->profile)->name;
  command train = {.arena = arena}, predict = {.arena = arena};
  add_job(&train, "train", setup, job, config);
  add(&train, "--data", setup->data ? setup->data : "DATA");
  add_assumed(&train, job);
  add_job(&predict, setup->fidelity ? "simulate" : "estimate", setup, job, config);
  add_assumed(&predict, job);
  add(&predict, "--runtime", runtime);
  add(&predict, "--collectives", setup->spec->collectives);
  add(&predict, "--allocator", setup->spec->allocator);
  if (setup->fidelity) add(&predict, "--fidelity", setup->fidelity);
  /* the tuner cannot run other runtimes */
  if (strcmp(runtime, "twinspeed") != 0) return write_line(&predict, out, err);
  TWS_TRY(write_line(&train, out, err));
  tws_text_add(out, "# predicted by: ");
  return write_line(&predict, out, err);
}

/* ---- outcomes ---- */

/* Writes the reason of a failure from the file of a run's output: the last error that twinspeed reported, else the last
 * non-empty line. */
static void read_reason(const char *path, char *reason, size_t size) {
  static const char own[] = "twinspeed: ";
  char *text, *rest = NULL;
  size_t length;
  *reason = '\0';
  if (tws_read_regular(path, 0, &text, &length, NULL) != TWS_OK) return;
  for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
    const int is_own = strncmp(line, own, sizeof own - 1) == 0;
    if (strncmp(line, "hint: ", 6) == 0 || line[strspn(line, " \t\r")] == '\0') continue;
    snprintf(reason, size, "%s", is_own ? line + sizeof own - 1 : line);
    if (is_own) break;
  }
  tws_free(text);
}

/* Returns the number of processes that the kernel has killed in this memory control group because its limit was
 * exceeded; 0 if it is not known. */
static int64_t killed_for_memory(void) {
  int64_t count = 0;
  char line[128];
  FILE *file = fopen("/sys/fs/cgroup/memory.events", "r");
  while (file && fgets(line, sizeof line, file))
    if (strncmp(line, "oom_kill ", 9) == 0 && tws_text_integer(line + 9, NULL, 0, INT64_MAX, &count)) break;
  if (file) fclose(file);
  return count;
}

static tws_outcome judge(const tws_child_end *end, int64_t killed, char *reason, size_t size) {
  char said[200];
  snprintf(said, sizeof said, "%.199s", reason);
  if (killed > 0) {
    snprintf(reason, size, "the kernel killed %ld process%s of the run: out of memory", killed, killed > 1 ? "es" : "");
    return TWS_OUTCOME_OUT_OF_MEMORY;
  }
  if (end->timed_out) {
    snprintf(reason, size, "still running after the limit of %.0f s%s%s", end->seconds, *said ? ": " : "", said);
    return TWS_OUTCOME_HUNG;
  }
  if (end->signal) {
    snprintf(reason, size, "ended by signal %d (%s)%s%s", end->signal, strsignal(end->signal), *said ? ": " : "", said);
    return TWS_OUTCOME_FAILED;
  }
  if (!*said) snprintf(reason, size, "exited with status %d without output", end->status);
  if (end->status == tws_code_exit(TWS_HANG)) return TWS_OUTCOME_HUNG;
  /* The engine exits with TWS_NO if a training would not fit; a rank whose allocation fails exits with a message about
   * memory. */
  const int of_memory =
      end->status == tws_code_exit(TWS_NO) || strstr(said, "cannot allocate") || strstr(said, "out of memory");
  return of_memory ? TWS_OUTCOME_OUT_OF_MEMORY : TWS_OUTCOME_FAILED;
}

static tws_code read_steps(const tws_experiment_setup *setup, const cJSON *root, tws_experiment *e, tws_error *err) {
  const cJSON *times = cJSON_GetObjectItemCaseSensitive(root, "step_s"), *rank, *tier;
  for (int64_t step = setup->first_step; step <= setup->last_step; step++) {
    const cJSON *one = cJSON_GetArrayItem(times, (int)step - 1);
    if (cJSON_IsNumber(one)) TWS_TRY(add_to(&e->step_s, &e->count, &e->capacity, one->valuedouble, err));
  }
  e->rank_bytes = e->peak_rss_bytes = 0;
  cJSON_ArrayForEach(rank, cJSON_GetObjectItemCaseSensitive(root, "memory")) {
    double bytes = 0;
    cJSON_ArrayForEach(tier, rank) {
      if (cJSON_IsObject(tier)) bytes += number_in(tier, "allocated_bytes");
    }
    e->rank_bytes = fmax(e->rank_bytes, bytes);
    e->peak_rss_bytes += number_in(rank, "peak_rss_bytes");
  }
  return TWS_OK;
}

static int kind_of(const char *label) {
  const char *word = tws_label_kind(label);
  for (int i = 0; i < TWS_EXPERIMENT_KINDS; i++)
    if (strcmp(word, kind_name(i)) == 0) return i;
  return -1;
}

/* Adds an event to the record. The seconds of a collective are those of the rank with the shortest time, which arrived
 * last and waited for no other rank. */
static void add_event(const tws_event *event, int kind, double seconds, double *least, tws_experiment *e, int ranks) {
  if (event->stream == TWS_STREAM_COMPUTE) e->phase_s[event->phase] += seconds / ranks;
  if (kind >= 0 && kind < TWS_KERNEL_COUNT) e->kind_s[kind] += seconds / ranks;
  if (kind >= TWS_KERNEL_COUNT && event->rank < ranks)
    least[(kind - TWS_KERNEL_COUNT) * ranks + event->rank] += seconds;
}

static tws_code read_trace(const char *path, const tws_job *job, tws_experiment *e, tws_error *err) {
  const tws_plan_request request = tws_job_request(job, 0);
  const int ranks = job->ranks;
  tws_measured_step step = {0};
  memset(e->phase_s, 0, sizeof e->phase_s);
  memset(e->kind_s, 0, sizeof e->kind_s);
  double *least = tws_calloc((size_t)ranks * TWS_COLLECTIVE_COUNT, sizeof *least);
  tws_code code = least ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  if (code == TWS_OK) code = tws_measured_step_read(path, &request, &step, err);
  for (size_t i = 0; code == TWS_OK && i < step.timeline->event_count; i++) {
    const tws_event *event = &step.timeline->events[i];
    add_event(event, kind_of(step.timeline->names[event->name]), event->end_s - event->start_s, least, e, ranks);
  }
  for (int c = 0; code == TWS_OK && c < TWS_COLLECTIVE_COUNT; c++)
    for (int r = 0; r < ranks; r++) {
      double *kept = &e->kind_s[TWS_KERNEL_COUNT + c];
      *kept = r == 0 ? least[c * ranks] : fmin(*kept, least[c * ranks + r]);
    }
  tws_measured_step_free(&step);
  tws_free(least);
  return code;
}

static tws_code read_run(const tws_experiment_setup *setup, const tws_job *job, const char *result, const char *trace,
                         tws_experiment *e, tws_error *err) {
  tws_json *json;
  TWS_TRY(tws_json_read_regular(result, &json, err));
  const size_t before = e->count;
  tws_code code = read_steps(setup, json->root, e, err);
  tws_json_destroy(json);
  if (code == TWS_OK && e->count == before) code = tws_fail(err, TWS_INVALID, NULL, "%s has no steps", result);
  if (code == TWS_OK)
    code = add_to(&e->run_s, &e->run_count, &e->run_capacity, tws_sample_median(e->step_s + before, e->count - before),
                  err);
  if (code == TWS_OK) code = read_trace(trace, job, e, err);
  if (code == TWS_OK) e->runs++;
  return code;
}

/* ---- a run ---- */

/* Adds the options of a monitor. Each trial has a folder of its own within the monitor's folder, because its loss curve
 * is not part of another training. */
static void add_monitor(command *c, const char *section, const tws_monitor_section *values, const char *name) {
  if (values->enabled)
    add(c, "--set", tws_arena_printf(c->arena, "%s.job_name=%s/%s", section, values->job_name, name));
}

static tws_code start(const tws_experiment_setup *setup, const tws_job *job, const char *name, const char *result,
                      const char *trace, tws_child_end *end, tws_error *err) {
  char config[4096], output[4096], error[4096];
  command c = {.arena = tws_arena_create()};
  if (!c.arena) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  add_job(&c, "train", setup, job, path_of(setup, name, "ds_config.json", config, sizeof config));
  add(&c, "--data", setup->data ? setup->data : "DATA");
  add(&c, "--steps", tws_arena_printf(c.arena, "%lld", (long long)setup->last_step + 1));
  add(&c, "--result", result);
  add(&c, "--trace", trace);
  /* The engine's watchdog stops a run after half of its time limit without progress, and names the rank that hangs; the
   * limit of the whole run applies only if the watchdog fails. */
  add(&c, "--deadline", tws_arena_printf(c.arena, "%.17g", setup->limit_s / 2));
  add_monitor(&c, "tensorboard", &job->config->tensorboard, name);
  add_monitor(&c, "csv_monitor", &job->config->csv_monitor, name);
  c.argv[c.count++] = "--force";
  c.argv[c.count++] = "--quiet";
  const tws_child_request child = {.argv = c.argv,
                                   .output = path_of(setup, name, "stdout.log", output, sizeof output),
                                   .error = path_of(setup, name, "stderr.log", error, sizeof error),
                                   .limit_s = setup->limit_s};
  tws_code code = finish_command(&c, err);
  if (code == TWS_OK) code = tws_child_run(&child, end, err);
  tws_arena_destroy(c.arena);
  return code;
}

tws_code tws_experiment_run(const tws_experiment_setup *setup, const tws_job *job, const char *name, tws_experiment *e,
                            tws_error *err) {
  char result[4096], trace[4096], said[4096];
  tws_child_end end;
  path_of(setup, name, "result.json", result, sizeof result);
  path_of(setup, name, "trace.json", trace, sizeof trace);
  const long killed = killed_for_memory();
  TWS_TRY(start(setup, job, name, result, trace, &end, err));
  e->outcome = TWS_OUTCOME_MEASURED;
  *e->reason = '\0';
  if (end.status != 0 || end.timed_out) {
    read_reason(path_of(setup, name, "stderr.log", said, sizeof said), e->reason, sizeof e->reason);
    e->outcome = judge(&end, killed_for_memory() - killed, e->reason, sizeof e->reason);
  } else {
    tws_error why = {0};
    if (read_run(setup, job, result, trace, e, &why) != TWS_OK) {
      e->outcome = TWS_OUTCOME_FAILED;
      snprintf(e->reason, sizeof e->reason, "%.250s", why.message);
    }
  }
  tws_remove_file(result);
  tws_remove_file(trace); /* the trace is large, and its figures are in the record by now */
  return write_record(setup, job, name, e, err);
}
