/* twinspeed profile: parameters, flops and time of every module, in the layout of DeepSpeed's flops profiler. The flops
 * come from the plan's operations; the time is predicted, or measured when a trace of `train` is given. */
#include <math.h>
#include <string.h>
#include "base/units.h"
#include "cli/job_options.h"
#include "cli/job_view.h"
#include "cli/remarks.h"
#include "estimators/flops_profile.h"

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

static double pace_of(const tws_stage_flops *cost) {
  return cost->forward_s + cost->backward_s;
}

/* ---- the report ---- */
/* "1.23 M": the profiler's rounding to two decimals, printed with %g. */
static const char *scaled(double value, const char *unit, int params) {
  static const struct {
    double size;
    const char *letter;
  } steps[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "K"}, {1, ""}, {1e-3, "m"}, {0, "u"}};
  size_t i = 0;
  while (value != 0 && value < steps[i].size) i++;
  if (value == 0) i = 4;
  double size = steps[i].size > 0 ? steps[i].size : 1e-6;
  const char *letter = params && i == 1 ? "B" : steps[i].letter;
  double rounded = round(value / size * 100) / 100;
  const char *space = *letter || *unit ? " " : "";
  return tws_cell("%g%s%s%s", rounded, space, letter, unit);
}

static void print_line(const char *label, const char *value) {
  tws_out("%-70s  %-8s\n", label, value);
}

static double backward_factor(const tws_job *job) {
  return job->config->recompute == TWS_RECOMPUTE_FULL ? 3 : 2;
}

static double samples_per_s(const report *r) {
  return (double)r->job->config->train_batch_size / r->profile.iteration_s;
}

static void print_sizes(const report *r) {
  const tws_job *job = r->job;
  int stages = r->profile.stage_count, tensor = tws_job_ranks_along(job, TWS_AXIS_MODEL),
      of_sequence = tws_job_ranks_along(job, TWS_AXIS_SEQUENCE);
  print_line("world size: ", tws_cell("%d", job->ranks));
  print_line("data parallel size: ", tws_cell("%d", tws_job_ranks_along(job, TWS_AXIS_DATA)));
  print_line(stages > 1 && tensor > 1
                 ? tws_cell("model parallel size = %d pipeline stages * %d tensor ranks: ", stages, tensor)
                 : "model parallel size: ",
             tws_cell("%d", stages * tensor));
  if (of_sequence > 1) print_line("sequence parallel size: ", tws_cell("%d", of_sequence));
  print_line("batch size per GPU: ", tws_cell("%lld", (long long)job->config->micro_batch_size));
}

/* The figures of one GPU: in a pipeline, of the stage that sets the pace. */
static void print_summary(const report *r) {
  const tws_job *job = r->job;
  const tws_stage_flops *t = &r->profile.stages[r->profile.slowest];
  double backward = backward_factor(job), both = 1 + backward;
  double accumulation = (double)job->config->accumulation_steps;
  char where[32] = "";
  if (r->profile.stage_count > 1) snprintf(where, sizeof where, " of stage %d", t->stage);
  int shared =
      r->profile.stage_count * tws_job_ranks_along(job, TWS_AXIS_MODEL) * tws_job_ranks_along(job, TWS_AXIS_SEQUENCE) >
      1;
  tws_out(
      "\n-------------------------- Twinspeed Flops Profiler --------------------------\n"
      "Profile Summary, times %s:\nNotations:\n"
      "data parallel size (dp_size), model parallel size(mp_size),\n"
      "number of parameters (params), number of multiply-accumulate operations(MACs),\n"
      "number of floating-point operations (flops), floating-point operations per second (FLOPS),\n"
      "fwd latency (forward propagation latency), bwd latency (backward propagation latency),\n"
      "step (weights update latency), iter latency (the whole step, with communication and waiting)\n",
      r->o->measured ? "measured" : "predicted");
  if (r->profile.stage_count > 1)
    tws_out("GPUs of a pipeline differ: those of stage %d need the most time\n", t->stage);
  tws_out("\n");
  print_sizes(r);
  print_line(tws_cell("params per GPU%s: ", where), scaled(t->params, "", 1));
  print_line(shared ? "params of model: " : "params of model = params per GPU * mp_size: ",
             scaled((double)tws_network_params(job->network, 0), "", 1));
  print_line(tws_cell("fwd MACs per GPU%s: ", where), scaled(t->macs, "MACs", 0));
  print_line(tws_cell("fwd flops per GPU%s: ", where), scaled(t->flops, "", 0));
  print_line(
      shared ? "fwd flops of model, all GPUs of a replica: " : "fwd flops of model = fwd flops per GPU * mp_size: ",
      scaled(r->profile.replica_flops, "", 0));
  print_line("fwd latency: ", scaled(t->forward_s, "s", 0));
  print_line("fwd FLOPS per GPU = fwd flops per GPU / fwd latency: ", scaled(t->flops / t->forward_s, "FLOPS", 0));
  print_line("bwd latency: ", scaled(t->backward_s, "s", 0));
  print_line(tws_cell("bwd FLOPS per GPU = %g * fwd flops per GPU / bwd latency: ", backward),
             scaled(backward * t->flops / t->backward_s, "FLOPS", 0));
  print_line(tws_cell("fwd+bwd FLOPS per GPU = %g * fwd flops per GPU / (fwd+bwd latency): ", both),
             scaled(both * t->flops / pace_of(t), "FLOPS", 0));
  print_line("step latency: ", scaled(t->step_s, "s", 0));
  print_line(tws_cell("iter latency, %g accumulation step%s: ", accumulation, accumulation > 1 ? "s" : ""),
             scaled(r->profile.iteration_s, "s", 0));
  print_line(tws_cell("FLOPS per GPU = %g * fwd flops per GPU / iter latency: ", both * accumulation),
             scaled(both * accumulation * t->flops / r->profile.iteration_s, "FLOPS", 0));
  print_line("samples/second: ", tws_cell("%.2f", samples_per_s(r)));
}

static tws_code print_stages(const tws_cli *cli, const report *r, tws_error *err) {
  tws_table table;
  if (r->profile.stage_count < 2) return TWS_OK;
  tws_out("\n----------------------------- Stages of the pipeline, per GPU -----------------------------\n");
  tws_table_init(&table, 8);
  tws_table_row(&table, (const char *[]){"stage", "rank", "params", "fwd MACs", "fwd flops", "fwd latency",
                                         "bwd latency", "step latency"});
  for (int s = 0; s < r->profile.stage_count; s++) {
    const tws_stage_flops *c = &r->profile.stages[s];
    tws_table_row(&table,
                  (const char *[]){tws_cell("%d", c->stage), tws_cell("%d", c->rank), scaled(c->params, "", 1),
                                   scaled(c->macs, "MACs", 0), scaled(c->flops, "", 0), scaled(c->forward_s, "s", 0),
                                   scaled(c->backward_s, "s", 0), scaled(c->step_s, "s", 0)});
  }
  return tws_table_print(cli, &table, err);
}

typedef const char *(*amount)(const tws_module_class *c);
static const char *params_of(const tws_module_class *c) {
  return scaled((double)c->held, "", 1);
}
static const char *macs_of(const tws_module_class *c) {
  return scaled(c->macs, "MACs", 0);
}
static const char *latency_of(const tws_module_class *c) {
  return scaled(c->seconds, "s", 0);
}

static void print_top(const char *what, int kind, amount text, tws_module_class *classes, int count, int top) {
  tws_module_classes_sort(classes, count, kind);
  tws_out("    %-11s - {", what);
  for (int i = 0; i < count && i < top; i++) tws_out("%s'%s': '%s'", i ? ", " : "", classes[i].name, text(&classes[i]));
  tws_out("}\n");
}

static void print_aggregate(const tws_module_tree *tree, int top, int max_depth) {
  tws_out(
      "\n----------------------------- Aggregated Profile per GPU -----------------------------\n"
      "Top %d modules in terms of params, MACs or fwd latency at different model depths:\n",
      top);
  for (int depth = 0; depth < tree->depth && (max_depth < 0 || depth <= max_depth); depth++) {
    tws_module_class classes[TWS_MAX_CLASSES];
    int count = tws_module_tree_classes(tree, depth, classes);
    tws_out("depth %d:\n", depth);
    print_top("params", 0, params_of, classes, count, top);
    print_top("MACs", 1, macs_of, classes, count, top);
    print_top("fwd latency", 2, latency_of, classes, count, top);
  }
}

static void print_detail(const tws_module_tree *tree, int pipeline, int max_depth) {
  const tws_module_node *root = &tree->nodes[0];
  tws_out(
      "\n------------------------------ Detailed Profile per GPU ------------------------------\n"
      "Each module profile is listed after its name in the following order:\n"
      "params, percentage of total params, MACs, percentage of total MACs, fwd latency, percentage of total fwd "
      "latency, fwd FLOPS%s\n\n",
      pipeline ? ", pipeline stage\nEach module has the figures of the GPU of its stage; sums over modules of several "
                 "stages are of one GPU of each"
               : "");
  for (int i = 0; i < tree->count; i++) {
    const tws_module_node *n = &tree->nodes[i];
    if (max_depth >= 0 && n->depth > max_depth) continue;
    tws_out("%*s%s%s%s%s: %s, %.2f%% Params, %s, %.2f%% MACs, %s, %.2f%% latency, %s%s\n", 2 * n->depth, "",
            n->depth ? "(" : "", n->depth ? n->name : "", n->depth ? ") " : "", n->type, scaled((double)n->held, "", 1),
            root->held ? 100.0 * (double)n->held / (double)root->held : 0, scaled(n->macs, "MACs", 0),
            root->macs > 0 ? 100 * n->macs / root->macs : 0, scaled(n->seconds, "s", 0),
            root->seconds > 0 ? 100 * n->seconds / root->seconds : 0,
            scaled(n->seconds > 0 ? n->flops / n->seconds : 0, "FLOPS", 0),
            pipeline && n->stage >= 0 ? tws_cell(", stage %d", n->stage) : "");
  }
  tws_out("------------------------------------------------------------------------------\n");
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
    cJSON_AddItemToArray(list, one);
  }
  return list;
}

static void add_cost(cJSON *json, const tws_stage_flops *cost) {
  cJSON_AddNumberToObject(json, "parameters_per_gpu", cost->params);
  cJSON_AddNumberToObject(json, "macs", cost->macs);
  cJSON_AddNumberToObject(json, "flops", cost->flops);
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
  cJSON_AddNumberToObject(root, "samples_per_s", samples_per_s(r));
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
  print_summary(r);
  TWS_TRY(print_stages(cli, r, err));
  print_aggregate(r->profile.tree, (int)r->o->top, (int)r->o->depth);
  print_detail(r->profile.tree, r->profile.stage_count > 1, (int)r->o->depth);
  return TWS_OK;
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
    TWS_INTEGER("top", 0, "K", options, top, 1, 100, "module classes listed at each depth (default 3)"),
    TWS_INTEGER("depth", 0, "N", options, depth, -1, 100, "deepest level shown (default: all)"), TWS_OPTIONS_END};

static const options defaults = {.job = TWS_JOB_SPEC_DEFAULTS, .top = 3, .depth = -1};

const tws_verb tws_verb_profile = {
    .name = "profile",
    .summary = "parameters, flops and time of every module",
    .usage = "-m MODEL [-c FILE] [--cluster NAME[:NODES]] [options]",
    .examples =
        "  twinspeed profile -m gpt2 --micro-batch 4 --cluster dgx-a100\n"
        "  twinspeed profile -m config.json -c ds_config.json --measured trace.json\n",
    .notes =
        "A multiply-add is two flops. Products count as MACs; the causal half of attention is computed and counted\n"
        "as the kernels do it. Times are of one micro-batch on one rank; those of a module include its exchanges\n"
        "among tensor and sequence ranks, also what overlaps of them. Parameters of a GPU are those before ZeRO\n"
        "divides them. A pipeline is profiled on one rank of each stage.\n",
    .options = table,
    .options_bytes = sizeof(options),
    .defaults = &defaults,
    .run = run_profile,
};
