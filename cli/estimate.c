/* twinspeed estimate: predicts whether a job fits a cluster, what uses its memory, and how long its step takes. */
#include <string.h>
#include "autotune/remedy.h"
#include "base/json.h"
#include "base/units.h"
#include "cli/deepspeed_view.h"
#include "cli/export_view.h"
#include "cli/fit_view.h"
#include "cli/job_options.h"
#include "cli/job_view.h"
#include "cli/optimizers_view.h"
#include "cli/outputs.h"
#include "cli/remarks.h"
#include "cli/runtime_view.h"
#include "cli/serve_options.h"
#include "cli/serve_view.h"
#include "cli/stage_view.h"
#include "cli/lists.h"
#include "cli/verdict.h"
#include "compat/deepspeed_memory.h"
#include "job/measured.h"

typedef struct options {
  tws_job_spec job;
  const char *program;
  int zero2, zero3, fit, no_tight, force;
  double total_params, largest_layer_params, factor, within, tokens_per_second;
  int64_t gpus_per_node, nodes, steps;
  const char *export_as;
  const char *compat, *safetensors, *ledger_csv, *csv;
  tws_serve_options serving;
  tws_option_lists sweep;
} options;

/* ---- the formulas of DeepSpeed's estimators ---- */
static cJSON *formula_row(const tws_zero_memory *m, int offload, int offload_params, int zero_init, int stage) {
  cJSON *row = cJSON_CreateObject();
  cJSON_AddNumberToObject(row, "cpu_bytes", m->cpu_bytes);
  cJSON_AddNumberToObject(row, "gpu_bytes", m->gpu_bytes);
  cJSON_AddStringToObject(row, "offload_optimizer", offload ? "cpu" : "none");
  if (stage == 3) {
    cJSON_AddStringToObject(row, "offload_param", offload_params ? "cpu" : "none");
    cJSON_AddBoolToObject(row, "zero_init", zero_init);
  }
  return row;
}

static int is_03(const options *o) {
  return o->compat && strcmp(o->compat, "deepspeed-0.3") == 0;
}

static tws_code formulas_json(const options *o, double total, double largest, tws_error *err) {
  cJSON *root = cJSON_CreateObject();
  cJSON_AddStringToObject(root, "schema", "twinspeed-zero-memory-1");
  cJSON_AddNumberToObject(root, "zero_stage", o->zero3 ? 3 : 2);
  cJSON_AddNumberToObject(root, "parameters", total);
  if (o->zero3) cJSON_AddNumberToObject(root, "largest_layer_parameters", largest);
  cJSON_AddNumberToObject(root, "nodes", (double)o->nodes);
  cJSON_AddNumberToObject(root, "gpus_per_node", (double)o->gpus_per_node);
  cJSON_AddNumberToObject(root, "additional_buffer_factor", o->factor);
  cJSON *rows = cJSON_AddArrayToObject(root, "options");
  int gpus = (int)o->gpus_per_node, nodes = (int)o->nodes;
  for (int offload = 1; offload >= 0; offload--) {
    if (!o->zero3) {
      tws_zero_memory m = (is_03(o) ? tws_zero2_memory_03 : tws_zero2_memory)(total, gpus, nodes, offload, o->factor);
      cJSON_AddItemToArray(rows, formula_row(&m, offload, 0, 0, 2));
      continue;
    }
    for (int params = offload; params >= 0; params--)
      for (int init = 1; init >= 0; init--) {
        tws_zero_memory m = tws_zero3_memory(total, largest, gpus, nodes, offload, params, init, o->factor);
        cJSON_AddItemToArray(rows, formula_row(&m, offload, params, init, 3));
      }
  }
  return tws_out_json(root, err);
}

static tws_code run_formulas(tws_cli *cli, const options *o, tws_error *err) {
  if (o->zero2 && o->zero3)
    return tws_fail(err, TWS_USAGE, "give one of the two", "--zero2 and --zero3 exclude each other");
  double total = o->total_params, largest = o->largest_layer_params;
  if (o->job.model) {
    tws_network *network;
    TWS_TRY(tws_network_load(o->job.model, o->job.vocabulary_multiple, &network, err));
    if (total < 0) total = (double)tws_network_params(network, 0);
    if (largest < 0) largest = (double)tws_network_largest_layer(network);
    tws_network_destroy(network);
  }
  if (total < 0)
    return tws_fail(err, TWS_USAGE, "give --total-params N, or -m MODEL", "the number of parameters is missing");
  if (o->zero3 && largest < 0)
    return tws_fail(err, TWS_USAGE, "give --largest-layer-params N, or -m MODEL",
                    "the size of the largest layer is missing");
  if (cli->json) return formulas_json(o, total, largest, err);
  tws_text text = {0};
  if (o->zero3)
    tws_zero3_print(total, largest, (int)o->gpus_per_node, (int)o->nodes, o->factor, &text);
  else
    tws_zero2_print(total, (int)o->gpus_per_node, (int)o->nodes, o->factor, is_03(o), &text);
  if (!o->compat)
    tws_say(cli,
            "These formulas leave out activations, buckets and the libraries' memory; GB means GiB in the table. "
            "\"estimate -m MODEL -c FILE\" counts every byte.");
  return tws_out_text(&text, err);
}

static tws_code run_safetensors(tws_cli *cli, const options *o, tws_error *err) {
  tws_safetensors_counts counts;
  TWS_TRY(tws_safetensors_count(o->safetensors, &counts, err));
  if (cli->json) {
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "schema", "twinspeed-safetensors-1");
    cJSON_AddStringToObject(root, "file", o->safetensors);
    cJSON_AddNumberToObject(root, "tensors", (double)counts.tensors);
    cJSON_AddNumberToObject(root, "parameters", (double)counts.parameters);
    cJSON_AddNumberToObject(root, "bytes", (double)counts.bytes);
    return tws_out_json(root, err);
  }
  char count[32], bytes[32];
  tws_out("%s: %lld parameters (%s) in %lld tensors, %s of data\n", o->safetensors, (long long)counts.parameters,
          tws_format_count((double)counts.parameters, count, sizeof count), (long long)counts.tensors,
          tws_format_bytes((double)counts.bytes, bytes, sizeof bytes));
  return TWS_OK;
}

/* ---- the full estimate ---- */
static tws_code print_ledger(const tws_cli *cli, const tws_job *job, const tws_ledger *ledger, const tws_plan *plan,
                             tws_error *err) {
  int tiers[TWS_TIER_COUNT], count = 0;
  for (int t = 0; t < TWS_TIER_COUNT; t++)
    if (ledger->tier[t].arena_bytes || t == TWS_TIER_DEVICE) tiers[count++] = t;
  tws_table table;
  tws_table_init(&table, 1 + 2 * count);
  const char *row[1 + 2 * TWS_TIER_COUNT] = {"Memory of one rank at its peak"}, *name[TWS_TIER_COUNT];
  for (int i = 0; i < count; i++) {
    int plain = job->backend == TWS_BACKEND_HOST && tiers[i] == TWS_TIER_DEVICE;
    row[1 + 2 * i] = name[i] = plain ? "memory" : tws_tier_name((tws_tier)tiers[i]);
    row[2 + 2 * i] = "";
  }
  tws_table_row(&table, row);
  for (int c = 0; c < TWS_CATEGORY_COUNT; c++) {
    int used = 0;
    for (int i = 0; i < count; i++) used |= ledger->tier[tiers[i]].category[c] > 0;
    if (!used) continue;
    row[0] = tws_cell("  %s", tws_category_name((tws_category)c));
    for (int i = 0; i < count; i++) {
      const tws_ledger_tier *tier = &ledger->tier[tiers[i]];
      char bytes[32];
      row[1 + 2 * i] = tws_cell("%s", tws_format_bytes((double)tier->category[c], bytes, sizeof bytes));
      row[2 + 2 * i] =
          tws_cell("%.1f %%", tier->arena_bytes ? 100.0 * (double)tier->category[c] / (double)tier->arena_bytes : 0.0);
    }
    tws_table_row(&table, row);
  }
  for (int line = 0; line < 2; line++) {
    row[0] = line ? "arena: what the engine allocates" : "  alignment and gaps";
    for (int i = 0; i < count; i++) {
      const tws_ledger_tier *tier = &ledger->tier[tiers[i]];
      char bytes[32];
      double value = (double)(line ? tier->arena_bytes : tier->gaps);
      row[1 + 2 * i] = tws_cell("%s", tws_format_bytes(value, bytes, sizeof bytes));
      row[2 + 2 * i] = tier->arena_bytes ? tws_cell("%.1f %%", 100.0 * value / (double)tier->arena_bytes) : "";
    }
    tws_table_row(&table, row);
  }
  TWS_TRY(tws_table_print(cli, &table, err));
  for (int i = 0; i < count; i++) {
    char label[160];
    const tws_ledger_tier *tier = &ledger->tier[tiers[i]];
    if (tier->peak_op >= plan->op_count) continue;
    const uint32_t micro_batch = plan->ops[tier->peak_op].micro_batch;
    tws_out("peak of %s: %s, %s %u\n", name[i], tws_op_label(plan, tier->peak_op, label, sizeof label),
            micro_batch < plan->accumulation_steps ? "micro-batch" : "after micro-batch",
            micro_batch < plan->accumulation_steps ? micro_batch + 1 : micro_batch);
  }
  return TWS_OK;
}

static cJSON *ledger_json(const tws_ledger *ledger, const tws_plan *plan) {
  cJSON *tiers = cJSON_CreateObject();
  for (int t = 0; t < TWS_TIER_COUNT; t++) {
    const tws_ledger_tier *tier = &ledger->tier[t];
    if (!tier->arena_bytes && t != TWS_TIER_DEVICE) continue;
    cJSON *one = cJSON_AddObjectToObject(tiers, tws_tier_name((tws_tier)t));
    cJSON_AddNumberToObject(one, "arena_bytes", (double)tier->arena_bytes);
    cJSON_AddNumberToObject(one, "live_bytes", (double)tier->live_bytes);
    cJSON_AddNumberToObject(one, "gap_bytes", (double)tier->gaps);
    if (tier->allocator.needed > 0) cJSON_AddNumberToObject(one, "allocator_bytes", (double)tier->allocator.needed);
    char label[160];
    if (tier->peak_op < plan->op_count)
      cJSON_AddStringToObject(one, "peak_operation", tws_op_label(plan, tier->peak_op, label, sizeof label));
    cJSON *categories = cJSON_AddObjectToObject(one, "categories");
    for (int c = 0; c < TWS_CATEGORY_COUNT; c++)
      if (tier->category[c])
        cJSON_AddNumberToObject(categories, tws_category_name((tws_category)c), (double)tier->category[c]);
  }
  return tiers;
}

static void print_time(const tws_cli *cli, const tws_job *job, const tws_estimate *e, const tws_evidence *evidence) {
  char text[64], rate[64], interval[96];
  tws_evidence_interval_text(evidence, e->step_s, interval, sizeof interval);
  tws_out("\n%sTime of one step%s   %s%s%s, %s tokens/s\n", tws_style(cli, TWS_BOLD), tws_style(cli, TWS_PLAIN_OUTPUT),
          tws_format_seconds(e->step_s, text, sizeof text), interval, *interval ? ", longest path" : " (longest path)",
          tws_thousands((int64_t)(e->tokens_per_s + 0.5)));
  tws_out("  model flops: %s a step", tws_format_rate(e->model_flops, "FLOP", text, sizeof text));
  tws_out(", %s a rank, MFU %.1f %%\n",
          tws_format_rate(e->step_s > 0 ? e->model_flops / e->step_s / job->ranks : 0, "FLOP/s", rate, sizeof rate),
          100 * e->mfu);
  tws_text line = {0};
  tws_text_add(&line, "  computing:");
  for (int p = 0; p < TWS_PHASE_COUNT; p++)
    if (e->path.phase_s[p] > 0)
      tws_text_add(&line, " %s %s,", tws_phase_name((tws_phase)p),
                   tws_format_seconds(e->path.phase_s[p], text, sizeof text));
  tws_text_add(&line, " not hidden: communicating %s",
               tws_format_seconds(tws_path_communicating(&e->path), text, sizeof text));
  const struct {
    const char *what;
    double seconds;
  } offloaded[] = {{"the host's optimizer", e->path.host_exposed_s},
                   {"copies to and from the host", e->path.copies_exposed_s},
                   {"the disk", e->path.disk_exposed_s},
                   {"loading of samples", e->path.loading_s}};
  for (size_t i = 0; i < sizeof offloaded / sizeof *offloaded; i++)
    if (offloaded[i].seconds > 0)
      tws_text_add(&line, ", %s %s", offloaded[i].what, tws_format_seconds(offloaded[i].seconds, text, sizeof text));
  if (tws_job_stages(job) > 1)
    tws_text_add(&line, ", waiting for other stages %s (of the stage that waits least)",
                 tws_format_seconds(e->path.bubble_s, text, sizeof text));
  tws_out_wrapped(4, "%s", line.data ? line.data : "");
  tws_text_free(&line);
  const char *communicating =
      tws_job_stages(job) > 1 ? "  in collectives, with waiting for their last member:" : "  communicating:";
  for (int c = 0; c < TWS_COLLECTIVE_COUNT; c++)
    if (e->path.collective_s[c] > 0)
      tws_text_add(&line, "%s %s %s", line.length ? "," : communicating, tws_collective_name((tws_collective)c),
                   tws_format_seconds(e->path.collective_s[c], text, sizeof text));
  if (line.length) tws_out_wrapped(4, "%s", line.data);
  tws_text_free(&line);
  tws_axes_print(&e->path);
  if (e->loading_s > 0)
    tws_out("  loading the samples of a step takes %s%s\n", tws_format_seconds(e->loading_s, text, sizeof text),
            e->path.loading_s > 0 ? "" : ", overlapped with the previous step");
  tws_bottleneck_print(cli, &e->path);
}

static cJSON *time_json(const tws_estimate *e, const tws_evidence *evidence) {
  cJSON *time = cJSON_CreateObject();
  cJSON_AddNumberToObject(time, "step_s", e->step_s);
  tws_evidence_interval_json(evidence, e->step_s, time);
  cJSON_AddNumberToObject(time, "tokens_per_s", e->tokens_per_s);
  cJSON_AddNumberToObject(time, "model_flops", e->model_flops);
  cJSON_AddNumberToObject(time, "mfu", e->mfu);
  cJSON_AddNumberToObject(time, "exposed_s", e->path.exposed_s);
  cJSON_AddNumberToObject(time, "bubble_s", e->path.bubble_s);
  if (e->loading_s > 0) cJSON_AddNumberToObject(time, "loading_s", e->loading_s);
  if (e->path.loading_s > 0) cJSON_AddNumberToObject(time, "loading_exposed_s", e->path.loading_s);
  tws_balance_json(&e->balance, time);
  cJSON_AddItemToObject(time, "communication", tws_axes_json(&e->path));
  cJSON *phases = cJSON_AddObjectToObject(time, "compute_phase_s");
  for (int p = 0; p < TWS_PHASE_COUNT; p++)
    cJSON_AddNumberToObject(phases, tws_phase_name((tws_phase)p), e->path.phase_s[p]);
  cJSON *streams = cJSON_AddObjectToObject(time, "stream_busy_s");
  for (int s = 0; s < TWS_STREAM_COUNT; s++)
    cJSON_AddNumberToObject(streams, tws_stream_name((tws_stream)s), e->path.stream_busy_s[s]);
  cJSON *collectives = cJSON_AddObjectToObject(time, "collective_s");
  for (int c = 0; c < TWS_COLLECTIVE_COUNT; c++)
    if (e->path.collective_s[c] > 0)
      cJSON_AddNumberToObject(collectives, tws_collective_name((tws_collective)c), e->path.collective_s[c]);
  tws_bottleneck_json(&e->path, time);
  return time;
}

static tws_code report_estimate(tws_cli *cli, const options *o, const tws_job *job, const tws_estimate *estimate,
                                const tws_stage_estimate *stages, const tws_plan *plan, tws_error *err) {
  const tws_estimate e = *estimate;
  tws_ledger ledger;
  TWS_TRY(tws_estimate_ledger(estimate, plan, job->config->accumulation_steps, &ledger, err));
  const tws_fit fit = tws_job_fit(job, &ledger);
  const tws_evidence evidence = tws_evidence_of_job(job, e.step_s);
  tws_deepspeed_comparison compared = {0};
  if (o->compat) TWS_TRY(tws_deepspeed_compare(job, &ledger, o->factor, is_03(o), &compared, err));
  tws_run_estimate run;
  const tws_plan_request request = tws_job_request(job, 0);
  if (o->steps > 0) TWS_TRY(tws_estimate_run(&request, &job->machine, o->steps, &run, err));
  const tws_own_engine own = tws_own_engine_find(job, &o->job, o->program);
  tws_other_runtime others[TWS_OTHER_RUNTIMES];
  tws_advice advice[TWS_ADVICES];
  const int advised = tws_advice_find(&o->job, job, estimate, fit.fits, plan->op_count, advice);
  const int other_count = tws_other_runtimes(job, &o->job, o->program, others);
  if (cli->json) {
    cJSON *root = tws_job_json(job);
    cJSON_AddStringToObject(root, "schema", "twinspeed-estimate-1");
    cJSON_AddItemToObject(root, "memory", ledger_json(&ledger, plan));
    cJSON_AddItemToObject(root, "verdict", tws_fit_json(&fit));
    cJSON_AddItemToObject(root, "time", time_json(&e, &evidence));
    tws_own_engine_json(&own, root);
    tws_advice_json(advice, advised, root);
    tws_other_runtimes_json(others, other_count, root);
    cJSON_AddItemToObject(root, "stages", tws_stages_json(stages, tws_job_stages(job)));
    cJSON_AddItemToObject(root, "evidence", tws_evidence_json(&evidence));
    if (o->compat) cJSON_AddItemToObject(root, "deepspeed", tws_deepspeed_comparison_json(&compared));
    if (o->steps > 0) cJSON_AddItemToObject(root, "training", tws_run_json(&run));
    TWS_TRY(tws_out_json(root, err));
  } else {
    tws_job_print(cli, job);
    tws_out("\n");
    TWS_TRY(tws_stages_print(cli, stages, tws_job_stages(job), &e.balance, err));
    if (tws_job_stages(job) > 1) tws_out("\nStage %d needs the most memory:\n", e.stage);
    TWS_TRY(print_ledger(cli, job, &ledger, plan, err));
    if (o->compat) TWS_TRY(tws_deepspeed_comparison_print(cli, &compared, err));
    if (o->compat) tws_out("\n");
    tws_fit_print(cli, &fit);
    print_time(cli, job, &e, &evidence);
    if (o->steps > 0) TWS_TRY(tws_run_print(cli, &run, err));
    tws_own_engine_print(&own, e.step_s, fit.device_need);
    tws_other_runtimes_print(others, other_count);
    tws_advice_print(cli, advice, advised);
    tws_evidence_print(cli, &evidence);
  }
  if (o->ledger_csv) {
    tws_text csv = {0};
    tws_code code = tws_ledger_csv(plan, TWS_TIER_DEVICE, &csv, err);
    if (code == TWS_OK) code = tws_write_file(o->ledger_csv, csv.data ? csv.data : "", csv.length, err);
    tws_text_free(&csv);
    TWS_TRY(code);
  }
  if (fit.tight && !o->no_tight)
    tws_warn(cli, "tight: peaks of %s were up to %.1f %% above what is predicted, which is more than the device has",
             fit.seen->of, 100 * (fit.seen->high - 1));
  if (fit.fits && !(fit.tight && o->no_tight)) return TWS_OK;
  char hint[256];
  tws_remedy_find(&o->job, job->program, hint, sizeof hint);
  return fit.tight ? tws_fit_refuse_tight(&fit, hint, err) : tws_fit_refuse(&fit, hint, err);
}

static tws_code estimate_job(tws_cli *cli, const options *o, const tws_job *job, tws_error *err) {
  tws_plan *plan = NULL;
  tws_estimate result;
  tws_stage_estimate *stages = tws_calloc((size_t)tws_job_stages(job), sizeof *stages);
  tws_code code = stages ? tws_job_estimate(job, &result, stages, err)
                         : tws_fail(err, TWS_MEMORY, NULL, "no memory for the estimate");
  /* number of micro-batches of the plan that is shown: those of the estimate or, for the ledger as CSV, all */
  const int64_t shown = o->ledger_csv ? job->config->accumulation_steps : result.built;
  if (code == TWS_OK) code = tws_job_part_plan(job, tws_job_stage_rank(job, result.stage), shown, &plan, err);
  if (code == TWS_OK) code = report_estimate(cli, o, job, &result, stages, plan, err);
  tws_plan_destroy(plan);
  tws_free(stages);
  return code;
}

/* Sets the runtime that reads the configuration, for all kinds of GPUs that are tried. */
static tws_code choose_runtime(tws_job_spec *spec, tws_error *err) {
  tws_config *config;
  tws_runtime_choice choice;
  TWS_TRY(tws_job_spec_config(spec, &config, err));
  const tws_code code = tws_runtime_choose(spec, config, NULL, &choice, err);
  tws_config_destroy(config);
  if (code == TWS_OK && strcmp(choice.runtime->name, "twinspeed") != 0) spec->runtime = choice.runtime->name;
  return code;
}

static tws_code run_fit(tws_cli *cli, const options *o, tws_error *err) {
  tws_progress progress = tws_cli_progress(cli);
  if (o->program || o->ledger_csv || o->export_as)
    return tws_fail(err, TWS_USAGE, "leave out --program, --ledger-csv and --export",
                    "--fit asks about a training step alone");
  tws_job_spec spec = o->job;
  if (!spec.runtime && spec.config) TWS_TRY(choose_runtime(&spec, err));
  return tws_fit_answer(
      cli,
      &(tws_smallest_request){
          .spec = &spec, .within_s = o->within, .tokens_per_s = o->tokens_per_second, .progress = &progress},
      err);
}

/* Answers for each combination of the lists; serving: of inference, NULL: of training steps. */
static tws_code run_lists(const tws_cli *cli, const options *o, const tws_serve_request *serving, tws_error *err) {
  const tws_lists_request request = {.sweep = &o->sweep,
                                     .options = o,
                                     .options_bytes = sizeof *o,
                                     .spec_offset = offsetof(options, job),
                                     .program = o->program,
                                     .serving = serving,
                                     .csv = o->csv};
  return tws_lists_run(cli, &request, err);
}

static tws_code run_sweep(const tws_cli *cli, const options *o, tws_error *err) {
  if (o->zero2 || o->zero3 || o->safetensors || o->fit || o->within > 0 || o->tokens_per_second > 0 || o->ledger_csv ||
      o->compat || o->export_as)
    return tws_fail(err, TWS_USAGE,
                    "leave out --fit, --within, --tokens-per-second, --ledger-csv, --safetensors, --compat, "
                    "--zero2, --zero3 and --export",
                    "lists and --csv ask for a row for each job");
  return run_lists(cli, o, NULL, err);
}

/* Predicts inference, without the options of a training. */
static tws_code run_serve(tws_cli *cli, const options *o, tws_error *err) {
  static const char *const allowed[] = {
      TWS_SERVE_OPTION_NAMES, "ranks",        "stage",          "pp",  "tp",    "sp", "ep",
      "micro-batch",          "accumulation", "vocab-multiple", "csv", "force", NULL};
  tws_serve_request request;
  tws_text notes = {0};
  tws_job *job;
  tws_job_spec spec = o->job;
  TWS_TRY(tws_args_only(&tws_verb_estimate, o, allowed,
                        "the lengths are --prompt-tokens and --output-tokens, the runtime is --software",
                        "concerns a training, not --serve", err));
  TWS_TRY(tws_serve_options_read(&o->serving, &request, err));
  const tws_code code = tws_serve_spec(&spec, &request, &notes, err);
  if (code == TWS_OK) tws_notes_say(cli, &notes);
  tws_text_free(&notes);
  TWS_TRY(code);
  if (o->csv || tws_lists_given(&o->sweep)) return run_lists(cli, o, &request, err);
  TWS_TRY(tws_job_load(&spec, &job, err));
  request.finds_batch = 1;
  const tws_code answered = tws_serve_print(cli, job, &request, err);
  tws_job_destroy(job);
  return answered;
}

static tws_code run_estimate(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  const options *o = raw;
  const char *exported;
  TWS_TRY(tws_export_file(o->export_as, argc, argv, o->force, &exported, err));
  if (o->compat && strcmp(o->compat, "deepspeed") != 0 && !is_03(o))
    return tws_fail(err, TWS_USAGE, "use deepspeed or deepspeed-0.3", "--compat: unknown program \"%.40s\"", o->compat);
  const int fits = o->fit || o->within > 0 || o->tokens_per_second > 0;
  if (o->compat && !o->zero2 && !o->zero3 && (!o->job.model || o->safetensors || fits))
    return tws_fail(err, TWS_USAGE, "add --zero2 or --zero3, or -m MODEL", "--compat %s needs to know which table",
                    o->compat);
  const tws_output outputs[] = {{"--ledger-csv", o->ledger_csv, NULL},
                                {"--csv", o->csv && strcmp(o->csv, "-") == 0 ? NULL : o->csv, NULL}};
  const tws_inputs inputs = tws_inputs_of_job(&o->job);
  TWS_TRY(tws_outputs_check(outputs, 2, &inputs, o->force, err));
  if (o->serving.serve) return run_serve(cli, o, err);
  if (o->steps > 0 && (o->csv || tws_lists_given(&o->sweep) || o->zero2 || o->zero3 || o->safetensors || fits))
    return tws_fail(err, TWS_USAGE, "leave out --csv, lists, --fit, --zero2, --zero3 and --safetensors",
                    "--steps asks about one job");
  if (o->csv || tws_lists_given(&o->sweep)) return run_sweep(cli, o, err);
  if ((o->zero2 || o->zero3 || o->safetensors) && (o->export_as || o->ledger_csv))
    return tws_fail(err, TWS_USAGE, "leave out --export and --ledger-csv",
                    "--zero2, --zero3 and --safetensors plan no job");
  if (o->zero2 || o->zero3) return run_formulas(cli, o, err);
  if (o->safetensors) return run_safetensors(cli, o, err);
  if (fits) return run_fit(cli, o, err);
  TWS_TRY(tws_serve_options_refuse(&o->serving, err));
  tws_job *job;
  TWS_TRY(tws_measured_load(&o->job, &job, err));
  tws_job_remarks(cli, o->job.model, job);
  tws_code code = tws_job_choose_program(job, o->program, err);
  if (code == TWS_OK) code = estimate_job(cli, o, job, err);
  if (code == TWS_OK && exported) code = tws_export_write(cli, job, o->export_as, exported, err);
  tws_job_destroy(job);
  return code;
}

static const tws_option table[] = {
    TWS_JOB_OPTIONS(options, job),
    TWS_RUNTIME_OPTION(options, job),
    TWS_MEASURED_OPTION(options, job),
    TWS_PROGRAM_OPTION(options),
    TWS_INTEGER("steps", 0, "N", options, steps, 1, 1e12,
                "also the time and the sent bytes of a training of N steps, by the programs that its steps run"),
    TWS_STRING("ledger-csv", 0, "FILE", options, ledger_csv, "bytes alive after each operation, by category, as CSV"),
    TWS_STRING("csv", 0, "FILE", options, csv,
               "a row for each job, with lists for each combination (\"-\": on stdout)"),
    TWS_EXPORT_OPTION(options),
    TWS_FORCE_OPTION(options),
    TWS_FLAG("no-tight", 0, options, no_tight, "exit status 1 if the fit is tight"),
    TWS_FLAG("fit", 0, options, fit,
             "search the smallest number of GPUs of each kind (--cluster A,B: of these) and its settings"),
    TWS_NUMBER("within", 0, "SECONDS", options, within, 1e-6, 1e9, "--fit: upper limit of a step's time"),
    TWS_NUMBER("tokens-per-second", 0, "N", options, tokens_per_second, 1e-6, 1e15, "--fit: lower limit of the rate"),
    TWS_SERVE_OPTIONS(options, serving, "predict inference: texts at a time are --micro-batch of each replica"),
    TWS_STRING("safetensors", 0, "FILE", options, safetensors, "count parameters from a header, or an index .json"),
    TWS_FLAG("zero2", 0, options, zero2, "DeepSpeed's formulas for stage 2"),
    TWS_FLAG("zero3", 0, options, zero3, "DeepSpeed's formulas for stage 3"),
    TWS_NUMBER("total-params", 0, "N", options, total_params, 0, 1e15, "formulas: number of parameters"),
    TWS_NUMBER("largest-layer-params", 0, "N", options, largest_layer_params, 0, 1e15,
               "formulas: parameters of the largest layer"),
    TWS_INTEGER("gpus-per-node", 0, "N", options, gpus_per_node, 1, 1024, "formulas: devices of a node (default 1)"),
    TWS_INTEGER("nodes", 0, "N", options, nodes, 1, 65536, "formulas: nodes (default 1)"),
    TWS_NUMBER("factor", 0, "X", options, factor, 0, 100, "formulas: additional buffer factor (default 1.5)"),
    TWS_STRING(
        "compat", 0, "VERSION", options, compat,
        "DeepSpeed's table to the letter, or for a job next to its ledger: deepspeed, deepspeed-0.3 (its manual)"),
    TWS_OPTIONS_END};

static const options defaults = {.job = TWS_JOB_SPEC_PLANNED,
                                 .total_params = -1,
                                 .largest_layer_params = -1,
                                 .factor = 1.5,
                                 .serving = TWS_SERVE_DEFAULTS,
                                 .gpus_per_node = 1,
                                 .nodes = 1};

const tws_verb tws_verb_estimate = {
    .name = "estimate",
    .summary = "memory and time of a training step, without running it",
    .usage = "-m MODEL [-c FILE] [--cluster NAME[:NODES[xDEVICES]]] [options]",
    .examples =
        "  twinspeed estimate -m gpt2-xl --stage 2 --cluster dgx-a100\n"
        "  twinspeed estimate -m llama-3-8b -c ds_config.json --cluster dgx-h100:4\n"
        "  twinspeed estimate -m config.json --stage 3 --micro-batch 4 --recompute full --cluster dgx1-v100:2 --json\n"
        "  twinspeed estimate -m llama-3-8b --cluster dgx-h100:4 --seq 2048,4096 --micro-batch 1,2,4 --stage 2,3 --csv "
        "points.csv\n"
        "  twinspeed estimate --fit -m llama-3-70b\n"
        "  twinspeed estimate --fit -m llama-3-8b -c ds_config.json --cluster dgx-a100,dgx-h100:16 --within 10\n"
        "  twinspeed estimate --serve -m llama-3-8b --cluster dgx-h100:1x2 --tp 2 --micro-batch 32 --dtype bf16 "
        "--software vllm\n"
        "  twinspeed estimate --safetensors model.safetensors\n"
        "  twinspeed estimate --zero3 --total-params 2851e6 --largest-layer-params 32e6 --gpus-per-node 8 --nodes 1 "
        "--compat deepspeed\n",
    .notes =
        "Memory is that of the plan that the engine executes: every byte of a rank belongs to a named\n"
        "buffer, and the arena is the engine's allocation. Time is the plan's longest path with the\n"
        "profile's costs. Exit code 1: it does not fit. A fit is tight if the interval of measured peaks of\n"
        "other runtimes, relative to predictions, exceeds the device: exit code 0 and a warning, or 1 with\n"
        "--no-tight.\n"
        "--fit keeps given settings (stage, recompute, micro batch, axes, batch of the configuration) and searches\n"
        "the others with the tuner, for each number of GPUs: fractions of a node, then whole nodes. Only fits that\n"
        "are not tight count.\n"
        "--serve: the first token of a batch after a pass over its prompts, then a pass for each token, whose costs "
        "are\n"
        "those in the middle of the output; memory with the cache of keys and values of whole texts.\n" TWS_LISTS_NOTES,
    .options = table,
    .options_bytes = sizeof(options),
    .swept = tws_listed_options,
    .sweep_offset = offsetof(options, sweep),
    .arguments_max = 1, /* the file of --export FORMAT FILE */
    .defaults = &defaults,
    .run = run_estimate,
};
