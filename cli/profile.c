/* twinspeed profile: prints parameters, flops and time of every module, in the layout of DeepSpeed's flops profiler.
 * The flops are those of the plan's operations; the time is predicted, or measured if a trace of `train` is given. */
#include "cli/flops_view.h"
#include "cli/job_options.h"
#include "cli/job_view.h"
#include "cli/remarks.h"

typedef struct options {
  tws_job_spec job;
  const char *measured;
  int64_t top, depth;
} options;

typedef struct report {
  const options *o;
  const tws_job *job;
  tws_flops_profile profile;
} report;

/* Returns the view's settings; those without an option have the values of the configuration's section. */
static tws_flops_view view_of(const report *r) {
  const tws_flops_section *section = &r->job->config->flops_profiler;
  return (tws_flops_view){.job = r->job,
                          .profile = &r->profile,
                          .measured = r->o->measured != NULL,
                          .detailed = section->detailed,
                          .top = (int)(r->o->top ? r->o->top : section->top_modules),
                          .depth = (int)(r->o->depth >= 0 ? r->o->depth : section->module_depth)};
}

static cJSON *tree_json(const tws_module_tree *tree) {
  cJSON *list = cJSON_CreateArray();
  for (int i = 0; i < tree->count; i++) {
    const tws_module_node *n = &tree->nodes[i];
    cJSON *one = cJSON_CreateObject();
    cJSON_AddStringToObject(one, "name", n->path);
    cJSON_AddStringToObject(one, "type", n->type);
    cJSON_AddNumberToObject(one, "depth", n->depth);
    if (n->stage >= 0) cJSON_AddNumberToObject(one, "stage", n->stage);
    cJSON_AddNumberToObject(one, "parameters", (double)n->params);
    cJSON_AddNumberToObject(one, "parameters_per_gpu", (double)n->held);
    cJSON_AddNumberToObject(one, "macs", n->macs);
    cJSON_AddNumberToObject(one, "flops", n->flops);
    cJSON_AddNumberToObject(one, "forward_s", n->seconds);
    cJSON_AddNumberToObject(one, "backward_flops", n->backward_flops);
    cJSON_AddNumberToObject(one, "backward_s", n->backward_s);
    cJSON_AddItemToArray(list, one);
  }
  return list;
}

static void add_cost(cJSON *json, const tws_stage_flops *cost) {
  cJSON_AddNumberToObject(json, "parameters_per_gpu", cost->params);
  cJSON_AddNumberToObject(json, "macs", cost->macs);
  cJSON_AddNumberToObject(json, "flops", cost->flops);
  cJSON_AddNumberToObject(json, "backward_flops", cost->backward_flops);
  cJSON_AddNumberToObject(json, "recomputed_flops", cost->recomputed_flops);
  cJSON_AddNumberToObject(json, "forward_s", cost->forward_s);
  cJSON_AddNumberToObject(json, "backward_s", cost->backward_s);
  cJSON_AddNumberToObject(json, "step_s", cost->step_s);
}

static tws_code print_json(const report *r, tws_error *err) {
  cJSON *root = tws_job_json(r->job);
  cJSON_AddStringToObject(root, "schema", "twinspeed-profile-report-1");
  cJSON_AddStringToObject(root, "times", r->o->measured ? "measured" : "predicted");
  cJSON_AddNumberToObject(root, "slowest_stage", r->profile.stages[r->profile.slowest].stage);
  add_cost(root, &r->profile.stages[r->profile.slowest]);
  cJSON_AddNumberToObject(root, "replica_flops", r->profile.replica_flops);
  cJSON_AddNumberToObject(root, "iteration_s", r->profile.iteration_s);
  cJSON_AddNumberToObject(root, "samples_per_s", tws_job_samples_per_s(r->job, r->profile.iteration_s));
  cJSON_AddNumberToObject(root, "mfu", r->profile.mfu);
  cJSON_AddNumberToObject(root, "hfu", r->profile.hfu);
  cJSON *stages = cJSON_AddArrayToObject(root, "stages");
  for (int s = 0; s < r->profile.stage_count; s++) {
    cJSON *one = cJSON_CreateObject();
    cJSON_AddNumberToObject(one, "stage", r->profile.stages[s].stage);
    cJSON_AddNumberToObject(one, "rank", r->profile.stages[s].rank);
    add_cost(one, &r->profile.stages[s]);
    cJSON_AddItemToArray(stages, one);
  }
  cJSON_AddItemToObject(root, "modules", tree_json(r->profile.tree));
  return tws_out_json(root, err);
}

static tws_code read_profile(const tws_cli *cli, report *r, tws_error *err) {
  const tws_plan_request request = tws_job_request(r->job, 0);
  tws_measured_step measured = {0};
  tws_code code = r->o->measured ? tws_measured_step_read(r->o->measured, &request, &measured, err) : TWS_OK;
  if (code == TWS_OK)
    code = tws_flops_profile_read(&request, &r->job->machine, r->o->measured ? &measured : NULL, &r->profile, err);
  tws_measured_step_free(&measured);
  if (code == TWS_OK && r->profile.unknown)
    tws_warn(cli, "%d operations of these plans are not in %s; was it written with the same options?",
             r->profile.unknown, r->o->measured);
  return code;
}

static tws_code profile(const tws_cli *cli, report *r, tws_error *err) {
  TWS_TRY(read_profile(cli, r, err));
  if (cli->json) return print_json(r, err);
  tws_text text = {0};
  const tws_flops_view view = view_of(r);
  tws_flops_print(&view, &text);
  /* says whether the times in the table above are predicted or measured, which its columns do not show */
  tws_job_assumed_remark(cli, r->job, r->o->measured != NULL);
  return tws_out_text(&text, err);
}

static tws_code run_profile(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  const options *o = raw;
  (void)argc;
  (void)argv;
  tws_job *job;
  TWS_TRY(tws_job_load(&o->job, &job, err));
  tws_job_remarks(cli, o->job.model, job);
  tws_job_remark(cli, job);
  report r = {.o = o, .job = job};
  tws_code code = profile(cli, &r, err);
  tws_flops_profile_free(&r.profile);
  tws_job_destroy(job);
  return code;
}

static const tws_option table[] = {
    TWS_JOB_OPTIONS(options, job),
    TWS_STRING("measured", 0, "FILE", options, measured, "take times from a trace that `train --trace FILE` wrote"),
    TWS_INTEGER("top", 0, "K", options, top, 1, 100,
                "module classes listed at each depth (default: flops_profiler.top_modules)"),
    TWS_INTEGER("depth", 0, "N", options, depth, -1, 100, "deepest level shown (default: flops_profiler.module_depth)"),
    TWS_OPTIONS_END};

static const options defaults = {.job = TWS_JOB_SPEC_DEFAULTS, .depth = -1};

const tws_verb tws_verb_profile = {
    .name = "profile",
    .summary = "parameters, flops and time of every module",
    .usage = "-m MODEL [-c FILE] [--cluster NAME[:NODES[xDEVICES]]] [options]",
    .examples =
        "  twinspeed profile -m gpt2 --micro-batch 4 --cluster dgx-a100\n"
        "  twinspeed profile -m config.json -c ds_config.json --measured trace.json\n",
    .notes =
        "A multiply-add is two flops. Products count as MACs; of causal attention only the computed half is counted.\n"
        "Times are of one micro-batch on one rank; those of a module include its collectives among tensor and\n"
        "sequence ranks, overlapped ones too. Parameters of a GPU are those before ZeRO partitions them. A pipeline\n"
        "is profiled on one rank of each stage.\n",
    .options = table,
    .options_bytes = sizeof(options),
    .defaults = &defaults,
    .run = run_profile,
};
