#include "cli/flops_view.h"

#include <math.h>

#include "cli/cli.h"

/* ---- the report ---- */
/* Returns "1.23 M", rounded to two decimals as by DeepSpeed's profiler, and printed with %g. */
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

static void print_line(tws_text *out, const char *label, const char *value) {
  tws_text_add(out, "%-70s  %-8s\n", label, value);
}

static void print_sizes(const tws_flops_view *r, tws_text *out) {
  const tws_job *job = r->job;
  int stages = r->profile->stage_count, tensor = tws_job_ranks_along(job, TWS_AXIS_MODEL),
      of_sequence = tws_job_ranks_along(job, TWS_AXIS_SEQUENCE);
  print_line(out, "world size: ", tws_cell("%d", job->ranks));
  print_line(out, "data parallel size: ", tws_cell("%d", tws_job_ranks_along(job, TWS_AXIS_DATA)));
  print_line(out,
             stages > 1 && tensor > 1
                 ? tws_cell("model parallel size = %d pipeline stages * %d tensor ranks: ", stages, tensor)
                 : "model parallel size: ",
             tws_cell("%d", stages * tensor));
  if (of_sequence > 1) print_line(out, "sequence parallel size: ", tws_cell("%d", of_sequence));
  print_line(out, "batch size per GPU: ", tws_cell("%lld", (long long)job->config->micro_batch_size));
}

/* Prints the figures of one GPU; in a pipeline, those of a GPU of the slowest stage. */
static void print_summary(const tws_flops_view *r, tws_text *out) {
  const tws_job *job = r->job;
  const tws_stage_flops *t = &r->profile->stages[r->profile->slowest];
  const tws_flops_rates rates = tws_flops_rates_of(r->profile, job->config->accumulation_steps);
  const double backward = rates.backward_flops;
  double accumulation = (double)job->config->accumulation_steps;
  char where[32] = "", at[32] = "";
  if (r->step > 0) snprintf(at, sizeof at, " at step %lld", (long long)r->step);
  if (r->profile->stage_count > 1) snprintf(where, sizeof where, " of stage %d", t->stage);
  int shared =
      r->profile->stage_count * tws_job_ranks_along(job, TWS_AXIS_MODEL) * tws_job_ranks_along(job, TWS_AXIS_SEQUENCE) >
      1;
  tws_text_add(out,
               "\n-------------------------- Twinspeed Flops Profiler --------------------------\n"
               "Profile Summary%s, times %s:\nNotations:\n"
               "data parallel size (dp_size), model parallel size(mp_size),\n"
               "number of parameters (params), number of multiply-accumulate operations(MACs),\n"
               "number of floating-point operations (flops), floating-point operations per second (FLOPS),\n"
               "fwd latency (forward propagation latency), bwd latency (backward propagation latency),\n"
               "step (weights update latency), iter latency (the whole step, with communication and waiting)\n",
               at, r->measured ? "measured" : "predicted");
  if (r->profile->stage_count > 1)
    tws_text_add(out, "GPUs of a pipeline differ: those of stage %d need the most time\n", t->stage);
  tws_text_add(out, "\n");
  print_sizes(r, out);
  print_line(out, tws_cell("params per GPU%s: ", where), scaled(t->params, "", 1));
  print_line(out, shared ? "params of model: " : "params of model = params per GPU * mp_size: ",
             scaled((double)tws_network_params(job->network, 0), "", 1));
  print_line(out, tws_cell("fwd MACs per GPU%s: ", where), scaled(t->macs, "MACs", 0));
  print_line(out, tws_cell("fwd flops per GPU%s: ", where), scaled(t->flops, "", 0));
  print_line(
      out,
      shared ? "fwd flops of model, all GPUs of a replica: " : "fwd flops of model = fwd flops per GPU * mp_size: ",
      scaled(r->profile->replica_flops, "", 0));
  print_line(out, "fwd latency: ", scaled(t->forward_s, "s", 0));
  print_line(out, "fwd FLOPS per GPU = fwd flops per GPU / fwd latency: ", scaled(rates.forward_per_s, "FLOPS", 0));
  print_line(out, tws_cell("bwd flops per GPU%s: ", where), scaled(backward, "", 0));
  print_line(out, "bwd latency: ", scaled(t->backward_s, "s", 0));
  print_line(out, "bwd FLOPS per GPU = bwd flops per GPU / bwd latency: ", scaled(rates.backward_per_s, "FLOPS", 0));
  print_line(
      out, "fwd+bwd FLOPS per GPU = fwd+bwd flops per GPU / (fwd+bwd latency): ", scaled(rates.both_per_s, "FLOPS", 0));
  print_line(out, "step latency: ", scaled(t->step_s, "s", 0));
  print_line(out, tws_cell("iter latency, %g accumulation step%s: ", accumulation, accumulation > 1 ? "s" : ""),
             scaled(r->profile->iteration_s, "s", 0));
  print_line(out, tws_cell("FLOPS per GPU = %g * fwd+bwd flops per GPU / iter latency: ", accumulation),
             scaled(rates.step_per_s, "FLOPS", 0));
  print_line(out, "samples/second: ", tws_cell("%.2f", tws_job_samples_per_s(job, r->profile->iteration_s)));
  print_line(out, "MFU = fwd and bwd flops per GPU / (iter latency * dense peak): ",
             tws_cell("%.1f %%", 100 * r->profile->mfu));
  print_line(out, "HFU, with what is computed again: ", tws_cell("%.1f %%", 100 * r->profile->hfu));
}

static void print_stages(const tws_flops_view *r, tws_text *out) {
  if (r->profile->stage_count < 2) return;
  tws_text_add(out, "\n----------------------------- Stages of the pipeline, per GPU -----------------------------\n");
  tws_text_add(out, "%-5s  %4s  %10s  %12s  %10s  %11s  %11s  %12s\n", "stage", "rank", "params", "fwd MACs",
               "fwd flops", "fwd latency", "bwd latency", "step latency");
  for (int s = 0; s < r->profile->stage_count; s++) {
    const tws_stage_flops *c = &r->profile->stages[s];
    tws_text_add(out, "%-5d  %4d  %10s  %12s  %10s  %11s  %11s  %12s\n", c->stage, c->rank, scaled(c->params, "", 1),
                 scaled(c->macs, "MACs", 0), scaled(c->flops, "", 0), scaled(c->forward_s, "s", 0),
                 scaled(c->backward_s, "s", 0), scaled(c->step_s, "s", 0));
  }
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

static void print_top(tws_text *out, const char *what, int kind, amount text, tws_module_class *classes, int count,
                      int top) {
  tws_module_classes_sort(classes, count, kind);
  tws_text_add(out, "    %-11s - {", what);
  for (int i = 0; i < count && i < top; i++)
    tws_text_add(out, "%s'%s': '%s'", i ? ", " : "", classes[i].name, text(&classes[i]));
  tws_text_add(out, "}\n");
}

static void print_aggregate(tws_text *out, const tws_module_tree *tree, int top, int max_depth) {
  tws_text_add(out,
               "\n----------------------------- Aggregated Profile per GPU -----------------------------\n"
               "Top %d modules in terms of params, MACs or fwd latency at different model depths:\n",
               top);
  for (int depth = 0; depth < tree->depth && (max_depth < 0 || depth <= max_depth); depth++) {
    tws_module_class classes[TWS_MAX_CLASSES];
    int count = tws_module_tree_classes(tree, depth, classes);
    tws_text_add(out, "depth %d:\n", depth);
    print_top(out, "params", 0, params_of, classes, count, top);
    print_top(out, "MACs", 1, macs_of, classes, count, top);
    print_top(out, "fwd latency", 2, latency_of, classes, count, top);
  }
}

static void print_detail(tws_text *out, const tws_module_tree *tree, int pipeline, int max_depth) {
  const tws_module_node *root = &tree->nodes[0];
  tws_text_add(
      out,
      "\n------------------------------ Detailed Profile per GPU ------------------------------\n"
      "Each module profile is listed after its name in the following order:\n"
      "params, percentage of total params, MACs, percentage of total MACs, fwd latency, percentage of total fwd "
      "latency, fwd FLOPS, bwd latency, bwd FLOPS%s\n\n",
      pipeline ? ", pipeline stage\nEach module has the figures of the GPU of its stage; sums over modules of several "
                 "stages are of one GPU of each"
               : "");
  for (int i = 0; i < tree->count; i++) {
    const tws_module_node *n = &tree->nodes[i];
    if (max_depth >= 0 && n->depth > max_depth) continue;
    tws_text_add(out, "%*s%s%s%s%s: %s, %.2f%% Params, %s, %.2f%% MACs, %s, %.2f%% latency, %s, %s, %s%s\n",
                 2 * n->depth, "", n->depth ? "(" : "", n->depth ? n->name : "", n->depth ? ") " : "", n->type,
                 scaled((double)n->held, "", 1), root->held ? 100.0 * (double)n->held / (double)root->held : 0,
                 scaled(n->macs, "MACs", 0), root->macs > 0 ? 100 * n->macs / root->macs : 0,
                 scaled(n->seconds, "s", 0), root->seconds > 0 ? 100 * n->seconds / root->seconds : 0,
                 scaled(n->seconds > 0 ? n->flops / n->seconds : 0, "FLOPS", 0), scaled(n->backward_s, "s", 0),
                 scaled(n->backward_s > 0 ? n->backward_flops / n->backward_s : 0, "FLOPS", 0),
                 pipeline && n->stage >= 0 ? tws_cell(", stage %d", n->stage) : "");
  }
  tws_text_add(out, "------------------------------------------------------------------------------\n");
}

void tws_flops_print(const tws_flops_view *view, tws_text *out) {
  print_summary(view, out);
  print_stages(view, out);
  print_aggregate(out, view->profile->tree, view->top, view->depth);
  if (view->detailed) print_detail(out, view->profile->tree, view->profile->stage_count > 1, view->depth);
}
