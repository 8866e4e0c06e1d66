/* twinspeed profile: parameters, flops and time of every module, in the layout of DeepSpeed's flops profiler. The flops
 * come from the plan's operations; the time is predicted, or measured when a trace of `train` is given. */
#include <math.h>
#include <string.h>
#include "base/units.h"
#include "cli/common.h"
#include "cli/job_view.h"
#include "cli/module_tree.h"
#include "traces/timeline.h"

typedef struct options {
  tws_job_options job;
  const char *measured;
  int64_t top, depth;
} options;

/* What one rank of a pipeline stage does with one micro-batch; step: with the whole optimizer step. */
typedef struct stage_cost {
  int stage, rank;
  double params; /* this rank's part of the model, before ZeRO divides it */
  double flops, macs;
  double forward_s, backward_s, step_s;
} stage_cost;

typedef struct report {
  const options *o;
  const tws_job *job;
  stage_cost *stages;
  int stage_count, slowest;
  double iteration_s; /* the whole step, communication and waiting included */
  tws_timeline *measured;
  tws_module_tree *tree;
  const char *streams[TWS_STREAM_COUNT], *phases[TWS_PHASE_COUNT];
} report;

/* ---- measured durations ---- */

/* Of one rank: for each name of the timeline the mean seconds of its events, or -1. */
static tws_code rank_means(const tws_timeline *timeline, int rank, double **out, tws_error *err) {
  uint32_t count = timeline->name_count;
  double *means = tws_calloc(2 * (size_t)count + 1, sizeof *means), *events = means ? means + count : NULL;
  if (!means) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (size_t i = 0; i < timeline->event_count; i++) {
    const tws_event *event = &timeline->events[i];
    if (event->rank != rank) continue;
    means[event->name] += event->end_s - event->start_s;
    events[event->name]++;
  }
  for (uint32_t i = 0; i < count; i++) means[i] = events[i] > 0 ? means[i] / events[i] : -1;
  *out = means;
  return TWS_OK;
}

/* Durations of another model or another plan would go unnoticed: operations are found by their names. */
static tws_code check_belongs(const report *r, tws_error *err) {
  tws_fingerprint own;
  const tws_timeline *m = r->measured;
  const char *hint = "give the model, configuration and options that it was trained with";
  if (!*m->plan)
    return tws_fail(err, TWS_INVALID, "write it anew with `train --trace`",
                    "%s does not say of which model and plan it is", r->o->measured);
  TWS_TRY(tws_job_fingerprint(r->job, &own, err));
  if (strcmp(m->model, own.model) != 0)
    return tws_fail(err, TWS_INVALID, hint, "%s is a trace of another model (%s, this one is %s)", r->o->measured,
                    m->model, own.model);
  if (strcmp(m->plan, own.plan) != 0)
    return tws_fail(err, TWS_INVALID, hint, "%s is a trace of another plan of this model (%s, this one is %s)",
                    r->o->measured, m->plan, own.plan);
  return TWS_OK;
}

static tws_code read_measured(report *r, tws_error *err) {
  for (int i = 0; i < TWS_STREAM_COUNT; i++) r->streams[i] = tws_stream_name((tws_stream)i);
  for (int i = 0; i < TWS_PHASE_COUNT; i++) r->phases[i] = tws_phase_name((tws_phase)i);
  TWS_TRY(tws_timeline_read_chrome(r->o->measured, "measured", r->streams, TWS_STREAM_COUNT, r->phases, TWS_PHASE_COUNT,
                                   &r->measured, err));
  int ranks = 0;
  double first = INFINITY, last = 0;
  for (size_t i = 0; i < r->measured->event_count; i++) {
    const tws_event *event = &r->measured->events[i];
    if (event->rank >= ranks) ranks = event->rank + 1;
    first = fmin(first, event->start_s);
    last = fmax(last, event->end_s);
  }
  r->iteration_s = last - first;
  if (ranks == r->job->ranks) return check_belongs(r, err);
  return tws_fail(err, TWS_INVALID, "give the options that it was trained with",
                  "%s is a trace of %d rank%s, and the job has %d", r->o->measured, ranks, ranks > 1 ? "s" : "",
                  r->job->ranks);
}

/* ---- one stage ---- */

/* The exchanges of tensor and sequence parallelism belong to modules; those of ZeRO run ahead on streams of their own.
 */
static int counts(const tws_op *op) {
  if (op->stream != TWS_STREAM_COMPUTE && op->stream != TWS_STREAM_EXCHANGE) return 0;
  return op->phase == TWS_PHASE_STEP || op->micro_batch == 0;
}

/* Adds the first micro-batch's operations and the step. Returns operations without a measurement. */
static int add_operations(report *r, const tws_plan *plan, const double *means, stage_cost *cost) {
  int unknown = 0;
  uint32_t known = r->measured ? r->measured->name_count : 0;
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const tws_op *op = &plan->ops[i];
    if (!counts(op)) continue;
    const tws_work *work = &plan->works[op->work];
    double seconds = means ? -1 : tws_plan_work_seconds(plan, op->work, &r->job->machine, 1);
    if (means) {
      char label[160];
      uint32_t name = tws_timeline_name(r->measured, tws_op_label(plan, i, label, sizeof label));
      if (name < known) seconds = means[name];
    }
    unknown += seconds < 0;
    seconds = fmax(seconds, 0);
    if (op->phase == TWS_PHASE_FORWARD) cost->forward_s += seconds;
    if (op->phase == TWS_PHASE_BACKWARD || op->phase == TWS_PHASE_RECOMPUTE) cost->backward_s += seconds;
    if (op->phase == TWS_PHASE_STEP) cost->step_s += seconds;
    if (op->phase != TWS_PHASE_FORWARD || op->module == TWS_NONE) continue;
    double flops = op->kind == TWS_OP_COMPUTE ? tws_work_flops(work) : 0;
    double macs = 0; /* of products; the bias is not one */
    if (flops > 0 && work->code == TWS_KERNEL_LINEAR)
      macs = (double)work->d[0] * (double)work->d[1] * (double)work->d[2];
    if (flops > 0 && work->code == TWS_KERNEL_ATTENTION) macs = flops / 2;
    cost->flops += flops;
    cost->macs += macs;
    tws_module_tree_add(r->tree, op->module, plan->stage, flops, macs, seconds);
  }
  return unknown;
}

static tws_code read_stage(report *r, int stage, int *unknown, tws_error *err) {
  stage_cost *cost = &r->stages[stage];
  tws_plan *plan;
  tws_stage_estimate held;
  double *means = NULL;
  cost->rank = tws_job_stage_rank(r->job, stage);
  TWS_TRY(tws_job_plan(r->job, cost->rank, &plan, err));
  tws_code code = tws_stage_read(plan, &held, err);
  if (code == TWS_OK && !r->tree) code = tws_module_tree_create(r->job->network, plan->slices, &r->tree, err);
  if (code == TWS_OK && r->measured) code = rank_means(r->measured, cost->rank, &means, err);
  if (code == TWS_OK) {
    cost->stage = plan->stage;
    cost->params = held.parameters;
    *unknown += add_operations(r, plan, means, cost);
  }
  tws_free(means);
  tws_plan_destroy(plan);
  return code;
}

static double pace(const stage_cost *cost) {
  return cost->forward_s + cost->backward_s;
}

static tws_code read_stages(const tws_cli *cli, report *r, tws_error *err) {
  int unknown = 0;
  r->stage_count = tws_job_stages(r->job);
  r->stages = tws_calloc((size_t)r->stage_count, sizeof *r->stages);
  if (!r->stages) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  if (r->o->measured) TWS_TRY(read_measured(r, err));
  for (int s = 0; s < r->stage_count; s++) {
    TWS_TRY(read_stage(r, s, &unknown, err));
    if (pace(&r->stages[s]) > pace(&r->stages[r->slowest])) r->slowest = s;
  }
  tws_module_tree_sum(r->tree);
  if (unknown)
    tws_warn(cli, "%d operations of these plans are not in %s; was it written with the same options?", unknown,
             r->o->measured);
  if (r->o->measured) return TWS_OK;
  tws_estimate estimate;
  tws_plan_request request = tws_job_request(r->job, 0);
  TWS_TRY(tws_estimate_step(&request, &r->job->machine, &estimate, err));
  r->iteration_s = estimate.step_s;
  return TWS_OK;
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

/* Of a replica: all its GPUs together. */
static double replica_flops(const report *r) {
  double flops = 0;
  for (int s = 0; s < r->stage_count; s++) flops += r->stages[s].flops;
  return flops * tws_job_ranks_along(r->job, TWS_AXIS_MODEL) * tws_job_ranks_along(r->job, TWS_AXIS_SEQUENCE);
}

static double samples_per_s(const report *r) {
  return (double)r->job->config->train_batch_size / r->iteration_s;
}

static void print_sizes(const report *r) {
  const tws_job *job = r->job;
  int stages = r->stage_count, tensor = tws_job_ranks_along(job, TWS_AXIS_MODEL),
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
  const stage_cost *t = &r->stages[r->slowest];
  double backward = backward_factor(job), both = 1 + backward;
  double accumulation = (double)job->config->accumulation_steps;
  char where[32] = "";
  if (r->stage_count > 1) snprintf(where, sizeof where, " of stage %d", t->stage);
  int shared = r->stage_count * tws_job_ranks_along(job, TWS_AXIS_MODEL) * tws_job_ranks_along(job, TWS_AXIS_SEQUENCE) > 1;
  tws_out(
      "\n-------------------------- Twinspeed Flops Profiler --------------------------\n"
      "Profile Summary, times %s:\nNotations:\n"
      "data parallel size (dp_size), model parallel size(mp_size),\n"
      "number of parameters (params), number of multiply-accumulate operations(MACs),\n"
      "number of floating-point operations (flops), floating-point operations per second (FLOPS),\n"
      "fwd latency (forward propagation latency), bwd latency (backward propagation latency),\n"
      "step (weights update latency), iter latency (the whole step, with communication and waiting)\n",
      r->o->measured ? "measured" : "predicted");
  if (r->stage_count > 1) tws_out("GPUs of a pipeline differ: those of stage %d need the most time\n", t->stage);
  tws_out("\n");
  print_sizes(r);
  print_line(tws_cell("params per GPU%s: ", where), scaled(t->params, "", 1));
  print_line(shared ? "params of model: " : "params of model = params per GPU * mp_size: ",
             scaled((double)tws_network_params(job->network, 0), "", 1));
  print_line(tws_cell("fwd MACs per GPU%s: ", where), scaled(t->macs, "MACs", 0));
  print_line(tws_cell("fwd flops per GPU%s: ", where), scaled(t->flops, "", 0));
  print_line(
      shared ? "fwd flops of model, all GPUs of a replica: " : "fwd flops of model = fwd flops per GPU * mp_size: ",
      scaled(replica_flops(r), "", 0));
  print_line("fwd latency: ", scaled(t->forward_s, "s", 0));
  print_line("fwd FLOPS per GPU = fwd flops per GPU / fwd latency: ", scaled(t->flops / t->forward_s, "FLOPS", 0));
  print_line("bwd latency: ", scaled(t->backward_s, "s", 0));
  print_line(tws_cell("bwd FLOPS per GPU = %g * fwd flops per GPU / bwd latency: ", backward),
             scaled(backward * t->flops / t->backward_s, "FLOPS", 0));
  print_line(tws_cell("fwd+bwd FLOPS per GPU = %g * fwd flops per GPU / (fwd+bwd latency): ", both),
             scaled(both * t->flops / pace(t), "FLOPS", 0));
  print_line("step latency: ", scaled(t->step_s, "s", 0));
  print_line(tws_cell("iter latency, %g accumulation step%s: ", accumulation, accumulation > 1 ? "s" : ""),
             scaled(r->iteration_s, "s", 0));
  print_line(tws_cell("FLOPS per GPU = %g * fwd flops per GPU / iter latency: ", both * accumulation),
             scaled(both * accumulation * t->flops / r->iteration_s, "FLOPS", 0));
  print_line("samples/second: ", tws_cell("%.2f", samples_per_s(r)));
}

static tws_code print_stages(const tws_cli *cli, const report *r, tws_error *err) {
  tws_table table;
  if (r->stage_count < 2) return TWS_OK;
  tws_out("\n----------------------------- Stages of the pipeline, per GPU -----------------------------\n");
  tws_table_init(&table, 8);
  tws_table_row(&table, (const char *[]){"stage", "rank", "params", "fwd MACs", "fwd flops", "fwd latency",
                                         "bwd latency", "step latency"});
  for (int s = 0; s < r->stage_count; s++) {
    const stage_cost *c = &r->stages[s];
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

static void add_cost(cJSON *json, const stage_cost *cost) {
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
  cJSON_AddNumberToObject(root, "slowest_stage", r->stages[r->slowest].stage);
  add_cost(root, &r->stages[r->slowest]);
  cJSON_AddNumberToObject(root, "replica_flops", replica_flops(r));
  cJSON_AddNumberToObject(root, "iteration_s", r->iteration_s);
  cJSON_AddNumberToObject(root, "samples_per_s", samples_per_s(r));
  cJSON *stages = cJSON_AddArrayToObject(root, "stages");
  for (int s = 0; s < r->stage_count; s++) {
    cJSON *one = cJSON_CreateObject();
    cJSON_AddNumberToObject(one, "stage", r->stages[s].stage);
    cJSON_AddNumberToObject(one, "rank", r->stages[s].rank);
    add_cost(one, &r->stages[s]);
    cJSON_AddItemToArray(stages, one);
  }
  cJSON_AddItemToObject(root, "modules", tree_json(r->tree));
  return tws_out_json(root, err);
}

static tws_code profile(const tws_cli *cli, report *r, tws_error *err) {
  TWS_TRY(read_stages(cli, r, err));
  if (cli->json) return print_json(r, err);
  print_summary(r);
  TWS_TRY(print_stages(cli, r, err));
  print_aggregate(r->tree, (int)r->o->top, (int)r->o->depth);
  print_detail(r->tree, r->stage_count > 1, (int)r->o->depth);
  return TWS_OK;
}

static tws_code run(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  const options *o = raw;
  (void)argc;
  (void)argv;
  tws_job job;
  TWS_TRY(tws_job_load(&o->job, &job, err));
  tws_job_remarks(cli, &o->job, &job);
  tws_job_remark(cli, &job);
  report r = {.o = o, .job = &job};
  tws_code code = profile(cli, &r, err);
  tws_module_tree_destroy(r.tree);
  tws_timeline_destroy(r.measured);
  tws_free(r.stages);
  tws_job_release(&job);
  return code;
}

static const tws_option table[] = {
    TWS_JOB_OPTIONS(options, job),
    TWS_STRING("measured", 0, "FILE", options, measured, "take times from a trace that `train --trace FILE` wrote"),
    TWS_INTEGER("top", 0, "K", options, top, 1, 100, "module classes listed at each depth (default 3)"),
    TWS_INTEGER("depth", 0, "N", options, depth, -1, 100, "deepest level shown (default: all)"), TWS_OPTIONS_END};

static const options defaults = {.job = TWS_JOB_DEFAULTS, .top = 3, .depth = -1};

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
    .run = run,
};
