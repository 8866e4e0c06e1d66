/* twinspeed profile: parameters, flops and time of every module, in the layout of DeepSpeed's flops profiler. The flops
 * come from the plan's operations; the time is predicted, or measured when a trace of `train` is given. */
#include <math.h>
#include <string.h>
#include "base/json.h"
#include "base/units.h"
#include "cli/common.h"
#include "cli/job_view.h"
#include "cli/module_tree.h"

typedef struct options {
  tws_job_options job;
  const char *measured;
  int64_t top, depth;
} options;

typedef struct totals {
  double forward_s, backward_s, step_s; /* of one micro-batch; step: of the whole optimizer step */
} totals;

/* ---- measured durations: label of an operation -> mean seconds ---- */
typedef struct measure {
  char label[160];
  double seconds;
  int64_t count;
} measure;
typedef struct measures {
  measure *item;
  size_t count, capacity;
} measures;

static measure *find_measure(measures *m, const char *label, int add) {
  for (size_t i = 0; i < m->count; i++)
    if (strcmp(m->item[i].label, label) == 0) return &m->item[i];
  if (!add || tws_reserve(&m->item, &m->capacity, m->count + 1, sizeof *m->item) != 0) return NULL;
  measure *item = &m->item[m->count++];
  memset(item, 0, sizeof *item);
  snprintf(item->label, sizeof item->label, "%s", label);
  return item;
}

/* Chrome trace: complete events ("ph": "X") with "dur" in microseconds. Only process rows that say "measured" count
 * when the file holds several sources. */
static tws_code read_trace(const char *path, measures *out, tws_error *err) {
  tws_json *json;
  TWS_TRY(tws_json_read(path, &json, err));
  const cJSON *events =
      cJSON_IsArray(json->root) ? json->root : cJSON_GetObjectItemCaseSensitive(json->root, "traceEvents");
  tws_code code = TWS_OK;
  if (!cJSON_IsArray(events))
    code = tws_json_fail(json, json->root, err, "give the file that `train --trace` wrote", "no traceEvents array");
  const cJSON *event;
  int measured_pid[64], pids = 0;
  cJSON_ArrayForEach(event, events) {
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(event, "name");
    const cJSON *pid = cJSON_GetObjectItemCaseSensitive(event, "pid");
    const cJSON *args = cJSON_GetObjectItemCaseSensitive(event, "args");
    const cJSON *title = cJSON_GetObjectItemCaseSensitive(args, "name");
    if (cJSON_IsString(name) && strcmp(name->valuestring, "process_name") == 0 && cJSON_IsString(title) &&
        cJSON_IsNumber(pid) && strstr(title->valuestring, "measured") && pids < 64)
      measured_pid[pids++] = pid->valueint;
  }
  cJSON_ArrayForEach(event, events) {
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(event, "name");
    const cJSON *duration = cJSON_GetObjectItemCaseSensitive(event, "dur");
    const cJSON *pid = cJSON_GetObjectItemCaseSensitive(event, "pid");
    int wanted = pids == 0;
    for (int i = 0; i < pids; i++) wanted |= cJSON_IsNumber(pid) && pid->valueint == measured_pid[i];
    if (!wanted || !cJSON_IsString(name) || !cJSON_IsNumber(duration)) continue;
    measure *item = find_measure(out, name->valuestring, 1);
    if (!item) {
      code = tws_fail(err, TWS_MEMORY, NULL, "out of memory");
      break;
    }
    item->seconds += duration->valuedouble * 1e-6;
    item->count++;
  }
  if (code == TWS_OK && out->count == 0)
    code = tws_fail(err, TWS_INVALID, "give the file that `train --trace` wrote", "%s: no measured events", path);
  tws_json_destroy(json);
  return code;
}

/* Adds the first micro-batch's operations and the step to the tree. Returns operations without a measurement. */
static int add_operations(const tws_job *job, const tws_plan *plan, measures *real, tws_module_tree *tree,
                          totals *sum) {
  int unknown = 0;
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const tws_op *op = &plan->ops[i];
    if (op->stream != TWS_STREAM_COMPUTE || (op->phase != TWS_PHASE_STEP && op->micro_batch != 0)) continue;
    const tws_work *work = &plan->works[op->work];
    double seconds = tws_plan_work_seconds(plan, op->work, &job->machine, 1);
    if (real->count) {
      char label[160];
      const measure *item = find_measure(real, tws_op_label(plan, i, label, sizeof label), 0);
      seconds = item ? item->seconds / (double)item->count : 0;
      unknown += item == NULL;
    }
    if (op->phase == TWS_PHASE_FORWARD) sum->forward_s += seconds;
    if (op->phase == TWS_PHASE_BACKWARD || op->phase == TWS_PHASE_RECOMPUTE) sum->backward_s += seconds;
    if (op->phase == TWS_PHASE_STEP) sum->step_s += seconds;
    if (op->phase != TWS_PHASE_FORWARD || op->module == TWS_NONE || op->kind != TWS_OP_COMPUTE) continue;
    double flops = tws_work_flops(work);
    double macs = 0; /* of products; the bias is not one */
    if (work->code == TWS_KERNEL_LINEAR) macs = (double)work->d[0] * (double)work->d[1] * (double)work->d[2];
    if (work->code == TWS_KERNEL_ATTENTION) macs = flops / 2;
    tws_module_tree_add(tree, op->module, flops, macs, seconds);
  }
  return unknown;
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

static void print_summary(const tws_job *job, const tws_module_tree *tree, const totals *t, const char *source) {
  const tws_module_node *root = &tree->nodes[0];
  double recompute = job->config->recompute == TWS_RECOMPUTE_FULL ? 1 : 0;
  double backward_flops = (2 + recompute) * root->flops;
  double accumulation = (double)job->config->accumulation_steps;
  double iteration = accumulation * (t->forward_s + t->backward_s) + t->step_s;
  tws_out(
      "\n-------------------------- Twinspeed Flops Profiler --------------------------\n"
      "Profile Summary, times %s:\nNotations:\n"
      "data parallel size (dp_size), model parallel size(mp_size),\n"
      "number of parameters (params), number of multiply-accumulate operations(MACs),\n"
      "number of floating-point operations (flops), floating-point operations per second (FLOPS),\n"
      "fwd latency (forward propagation latency), bwd latency (backward propagation latency),\n"
      "step (weights update latency), iter latency (sum of fwd, bwd and step latency)\n\n",
      source);
  print_line("world size: ", tws_cell("%d", job->ranks));
  print_line("data parallel size: ", tws_cell("%d", job->ranks));
  print_line("model parallel size: ", "1");
  print_line("batch size per GPU: ", tws_cell("%lld", (long long)job->config->micro_batch_size));
  print_line("params per GPU: ", scaled((double)root->params, "", 1));
  print_line("params of model = params per GPU * mp_size: ", scaled((double)root->params, "", 1));
  print_line("fwd MACs per GPU: ", scaled(root->macs, "MACs", 0));
  print_line("fwd flops per GPU: ", scaled(root->flops, "", 0));
  print_line("fwd flops of model = fwd flops per GPU * mp_size: ", scaled(root->flops, "", 0));
  print_line("fwd latency: ", scaled(t->forward_s, "s", 0));
  print_line("fwd FLOPS per GPU = fwd flops per GPU / fwd latency: ", scaled(root->flops / t->forward_s, "FLOPS", 0));
  print_line("bwd latency: ", scaled(t->backward_s, "s", 0));
  print_line(tws_cell("bwd FLOPS per GPU = %g * fwd flops per GPU / bwd latency: ", 2 + recompute),
             scaled(backward_flops / t->backward_s, "FLOPS", 0));
  print_line(tws_cell("fwd+bwd FLOPS per GPU = %g * fwd flops per GPU / (fwd+bwd latency): ", 3 + recompute),
             scaled((3 + recompute) * root->flops / (t->forward_s + t->backward_s), "FLOPS", 0));
  print_line("step latency: ", scaled(t->step_s, "s", 0));
  print_line(tws_cell("iter latency, %g accumulation step%s: ", accumulation, accumulation > 1 ? "s" : ""),
             scaled(iteration, "s", 0));
  print_line(tws_cell("FLOPS per GPU = %g * fwd flops per GPU / iter latency: ", (3 + recompute) * accumulation),
             scaled((3 + recompute) * accumulation * root->flops / iteration, "FLOPS", 0));
  print_line("samples/second: ",
             tws_cell("%.2f", (double)job->config->micro_batch_size * accumulation * job->ranks / iteration));
}

typedef const char *(*amount)(const tws_module_class *c);
static const char *params_of(const tws_module_class *c) {
  return scaled((double)c->params, "", 1);
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

static void print_detail(const tws_module_tree *tree, int max_depth) {
  const tws_module_node *root = &tree->nodes[0];
  tws_out(
      "\n------------------------------ Detailed Profile per GPU ------------------------------\n"
      "Each module profile is listed after its name in the following order:\n"
      "params, percentage of total params, MACs, percentage of total MACs, fwd latency, percentage of total fwd "
      "latency, fwd FLOPS\n\n");
  for (int i = 0; i < tree->count; i++) {
    const tws_module_node *n = &tree->nodes[i];
    if (max_depth >= 0 && n->depth > max_depth) continue;
    tws_out("%*s%s%s%s%s: %s, %.2f%% Params, %s, %.2f%% MACs, %s, %.2f%% latency, %s\n", 2 * n->depth, "",
            n->depth ? "(" : "", n->depth ? n->name : "", n->depth ? ") " : "", n->type,
            scaled((double)n->params, "", 1), root->params ? 100.0 * (double)n->params / (double)root->params : 0,
            scaled(n->macs, "MACs", 0), root->macs > 0 ? 100 * n->macs / root->macs : 0, scaled(n->seconds, "s", 0),
            root->seconds > 0 ? 100 * n->seconds / root->seconds : 0,
            scaled(n->seconds > 0 ? n->flops / n->seconds : 0, "FLOPS", 0));
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
    cJSON_AddNumberToObject(one, "parameters", (double)n->params);
    cJSON_AddNumberToObject(one, "macs", n->macs);
    cJSON_AddNumberToObject(one, "flops", n->flops);
    cJSON_AddNumberToObject(one, "forward_s", n->seconds);
    cJSON_AddItemToArray(list, one);
  }
  return list;
}

static tws_code profile(tws_cli *cli, const options *o, const tws_job *job, const tws_plan *plan, measures *real,
                        tws_module_tree *tree, tws_error *err) {
  totals sum = {0};
  int unknown = add_operations(job, plan, real, tree, &sum);
  if (unknown)
    tws_warn(cli, "%d operations of this plan are not in %s; was it written with the same options?", unknown,
             o->measured);
  tws_module_tree_sum(tree);
  if (cli->json) {
    cJSON *root = tws_job_json(job);
    cJSON_AddStringToObject(root, "schema", "twinspeed-profile-report-1");
    cJSON_AddStringToObject(root, "times", o->measured ? "measured" : "predicted");
    cJSON_AddNumberToObject(root, "forward_s", sum.forward_s);
    cJSON_AddNumberToObject(root, "backward_s", sum.backward_s);
    cJSON_AddNumberToObject(root, "step_s", sum.step_s);
    cJSON_AddItemToObject(root, "modules", tree_json(tree));
    return tws_out_json(root, err);
  }
  print_summary(job, tree, &sum, o->measured ? "measured" : "predicted");
  print_aggregate(tree, (int)o->top, (int)o->depth);
  print_detail(tree, (int)o->depth);
  return TWS_OK;
}

static tws_code run(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  const options *o = raw;
  (void)argc;
  (void)argv;
  tws_job job;
  TWS_TRY(tws_job_load(&o->job, &job, err));
  tws_job_remark(cli, &job);
  measures real = {0};
  tws_plan *plan = NULL;
  tws_module_tree *tree = NULL;
  tws_code code = o->measured ? read_trace(o->measured, &real, err) : TWS_OK;
  if (code == TWS_OK) code = tws_job_plan(&job, 0, &plan, err);
  if (code == TWS_OK) code = tws_module_tree_create(job.network, &tree, err);
  if (code == TWS_OK) code = profile(cli, o, &job, plan, &real, tree, err);
  tws_module_tree_destroy(tree);
  tws_plan_destroy(plan);
  tws_free(real.item);
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
        "as the kernels do it. Times are of one micro-batch on one rank.\n",
    .options = table,
    .options_bytes = sizeof(options),
    .defaults = &defaults,
    .run = run,
};
