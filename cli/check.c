/* twinspeed check: checks configuration, model, cluster and plan, without running anything. */
#include <stdlib.h>
#include <string.h>
#include "base/units.h"
#include "cli/job_options.h"
#include "cli/job_view.h"
#include "cli/remarks.h"
#include "job/cluster_name.h"
#include "job/measured.h"
#include "job/notes.h"

typedef struct options {
  tws_job_spec job;
  const char *program;
  int print_schema, profile_schema, cluster_schema, all_keys;
  int64_t max_ranks;
} options;

static tws_code effective(const options *o, const tws_config *config, tws_text *text, tws_text *idle, int *count,
                          tws_error *err) {
  TWS_TRY(tws_config_print(config, o->all_keys, text, err));
  return tws_config_no_effect(config, idle, count, err);
}

/* Converts each line of a text to a JSON string. */
static void add_lines(cJSON *list, const tws_text *text) {
  for (const char *line = text->data; line && *line;) {
    const size_t length = strcspn(line, "\n");
    char *one = strndup(line, length);
    if (one) cJSON_AddItemToArray(list, cJSON_CreateString(one));
    free(one);
    line += length + (line[length] == '\n');
  }
}

static tws_code print_json(const tws_config *config, const tws_job *job, const tws_text *text, const tws_text *idle,
                           const tws_verification *seen, tws_error *err) {
  cJSON *root = job ? tws_job_json(job) : cJSON_CreateObject();
  cJSON_AddStringToObject(root, "schema", "twinspeed-check-1");
  cJSON_AddBoolToObject(root, "valid", 1);
  cJSON_AddItemToObject(root, "config", cJSON_Parse(text->data ? text->data : "{}"));
  add_lines(cJSON_AddArrayToObject(root, "no_effect"), idle);
  tws_text taken = {0};
  int count = 0;
  cJSON *array = cJSON_AddArrayToObject(root, "notes");
  if (tws_config_notes(config, &taken, &count, NULL) == TWS_OK) add_lines(array, &taken);
  tws_text_free(&taken);
  if (job) {
    tws_text notes = {0};
    if (tws_job_notes(job, &notes, NULL) == TWS_OK) add_lines(array, &notes);
    tws_text_free(&notes);
    cJSON *plan = cJSON_AddObjectToObject(root, "plan");
    cJSON_AddNumberToObject(plan, "ranks", seen->ranks);
    cJSON_AddNumberToObject(plan, "ranks_verified", seen->checked);
    cJSON_AddBoolToObject(plan, "verified_together", seen->together);
    cJSON_AddNumberToObject(plan, "replicas_verified", seen->replicas);
    cJSON_AddNumberToObject(plan, "operations", (double)seen->operations);
  }
  return tws_out_json(root, err);
}

static void print_coverage(const tws_verification *seen) {
  static const char what[] = "memory, order, collectives, messages, deadlock";
  char count[32];
  tws_text line = {0};
  tws_text_add(&line, "Plan     %s operations; ", tws_format_count((double)seen->operations, count, sizeof count));
  if (seen->ranks == 1)
    tws_text_add(&line, "one rank verified: memory, order");
  else if (seen->together)
    tws_text_add(&line, "all %d ranks verified together: %s", seen->ranks, what);
  else if (seen->replicas)
    tws_text_add(&line, "%d of %d ranks verified together (%d whole replica%s; --max-ranks takes more): %s",
                 seen->checked, seen->ranks, seen->replicas, seen->replicas > 1 ? "s" : "", what);
  else
    tws_text_add(&line, "%d of %d ranks verified together (one of each stage; --max-ranks takes more): %s",
                 seen->checked, seen->ranks, what);
  tws_out_wrapped(9, "%s", line.data ? line.data : "");
  tws_text_free(&line);
}

static tws_code print_text(const tws_cli *cli, const tws_config *config, const tws_job *job, tws_text *text,
                           const tws_text *idle, const tws_verification *seen, tws_error *err) {
  for (const char *line = idle->data; line && *line;) {
    const char *end = strchr(line, '\n');
    size_t length = end ? (size_t)(end - line) : strlen(line);
    tws_warn(cli, "%.*s", (int)length, line);
    line += length + (end != NULL);
  }
  tws_config_remark(cli, config);
  if (job) {
    tws_text notes = {0};
    tws_job_print(cli, job);
    if (tws_job_notes(job, &notes, NULL) == TWS_OK && notes.data)
      for (char *rest = notes.data, *line; (line = strsep(&rest, "\n"));)
        if (*line) tws_out_wrapped(6, "note: %s", line);
    tws_text_free(&notes);
    print_coverage(seen);
  }
  tws_out("Effective configuration:\n");
  return tws_out_text(text, err);
}

static tws_code check_all(tws_cli *cli, const options *o, const tws_job *job, const tws_config *config,
                          tws_error *err) {
  tws_verification seen = {0};
  tws_progress progress = tws_cli_progress(cli);
  if (job) TWS_TRY(tws_job_verify(job, o->max_ranks, &progress, &seen, err));
  tws_text text = {0}, idle = {0};
  int count = 0;
  tws_code code = effective(o, config, &text, &idle, &count, err);
  if (code == TWS_OK)
    code = cli->json ? print_json(config, job, &text, &idle, &seen, err)
                     : print_text(cli, config, job, &text, &idle, &seen, err);
  tws_text_free(&text);
  tws_text_free(&idle);
  return code;
}

static tws_code print_schema(tws_code (*print)(tws_text *out, tws_error *err), tws_error *err) {
  tws_text text = {0};
  const tws_code code = print(&text, err);
  return code == TWS_OK ? tws_out_text(&text, err) : (tws_text_free(&text), code);
}

static tws_code run_check(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  options *o = raw;
  if (o->print_schema) return print_schema(tws_config_print_schema, err);
  if (o->profile_schema) return print_schema(tws_profile_print_schema, err);
  if (o->cluster_schema) return print_schema(tws_cluster_print_schema, err);
  const char *input;
  if (argc > 0 && !o->job.config) o->job.config = argv[0];
  TWS_TRY(tws_job_spec_input(&o->job, &input, err));
  if (o->job.model) {
    tws_job *job;
    TWS_TRY(tws_measured_load(&o->job, &job, err));
    tws_model_remark(cli, o->job.model, job);
    tws_code code = tws_job_choose_program(job, o->program, err);
    if (code == TWS_OK) code = check_all(cli, o, job, job->config, err);
    tws_job_destroy(job);
    return code;
  }
  if (o->job.cluster) {
    tws_cluster cluster;
    TWS_TRY(tws_cluster_named(o->job.cluster, &cluster, err));
  }
  if (!o->job.config && !o->job.cluster)
    return tws_fail(err, TWS_USAGE, "give -c ds_config.json, -m MODEL, or both", "nothing to check was given");
  tws_config *config;
  TWS_TRY(tws_job_spec_config(&o->job, &config, err));
  tws_code code = tws_config_check(config, err);
  if (code == TWS_OK) code = check_all(cli, o, NULL, config, err);
  tws_config_destroy(config);
  return code;
}

static const tws_option table[] = {
    TWS_JOB_OPTIONS(options, job),
    TWS_RUNTIME_OPTION(options, job),
    TWS_MEASURED_OPTION(options, job),
    TWS_PROGRAM_OPTION(options),
    TWS_FLAG("print-schema", 0, options, print_schema, "print the JSON Schema of ds_config.json and stop"),
    TWS_FLAG("print-profile-schema", 0, options, profile_schema, "print the JSON Schema of profile files and stop"),
    TWS_FLAG("print-cluster-schema", 0, options, cluster_schema, "print the JSON Schema of cluster files and stop"),
    TWS_FLAG("all-keys", 0, options, all_keys, "effective configuration with every key, defaults too"),
    TWS_INTEGER("max-ranks", 0, "N", options, max_ranks, 1, 4096,
                "verify at most N ranks (default: as many as take a few seconds)"),
    TWS_OPTIONS_END};

static const options defaults = {.job = TWS_JOB_SPEC_PLANNED, .max_ranks = 0};

const tws_verb tws_verb_check = {
    .name = "check",
    .summary = "checks configuration, model, cluster and plan, without running",
    .usage = "[-m MODEL] [-c FILE] [--cluster NAME[:NODES[xDEVICES]]] [options]",
    .examples =
        "  twinspeed check -c ds_config.json\n"
        "  twinspeed check -m llama-3-8b -c ds_config.json --cluster dgx-h100:4\n"
        "  twinspeed check --print-schema > ds_config.schema.json\n"
        "  twinspeed check --print-cluster-schema > cluster.schema.json\n",
    .notes =
        "A misspelled key, a wrong type or an impossible combination is an error with file, line and\n"
        "column, and exit code 3. A key that is accepted but has no effect is a warning with the\n"
        "reason.\n"
        "With a model, the plans of the ranks are verified: every collective is entered by all members of its group\n"
        "in the same order, every message has a sender and a receiver, there is no deadlock, and no buffer is read\n"
        "before it is written or after its memory was reused. For large jobs some replicas are verified, or one rank\n"
        "of each stage; the output has their number.\n",
    .options = table,
    .options_bytes = sizeof(options),
    .defaults = &defaults,
    .arguments_max = 1,
    .run = run_check,
};
