/* twinspeed simulate: simulates one training step in SimGrid, and prints how long it takes and where the time is spent;
 * optionally writes a timeline. */
#include <string.h>
#include "base/log.h"
#include "base/units.h"
#include "cli/job_options.h"
#include "cli/job_view.h"
#include "cli/comm_view.h"
#include "cli/outputs.h"
#include "cli/training_options.h"
#include "cli/remarks.h"
#include "cli/runtime_view.h"
#include "cli/stage_view.h"
#include "cli/lists.h"
#include "cli/verdict.h"
#include "emulation/disturb.h"
#include "job/measured.h"
#include "job/modules.h"
#include "job/simulate.h"
#include "traces/gzip.h"
#include "traces/timeline.h"

typedef struct options {
  tws_job_spec job;
  const char *program;
  const char *fidelity, *scenario, *trace, *csv, *comm_log, *comm_against;
  int print_plan, all_ranks, force;
  int64_t rank;
  tws_option_lists sweep;
} options;

enum { MOST_PLANS = 4096 };

typedef struct simulation {
  tws_fidelity fidelity;
  tws_timeline *timeline;
  tws_simulation of_job;
  tws_stage_estimate *stages; /* for each stage, the simulated rank with the most memory */
  tws_stage_balance balance;
  tws_estimate estimate;
  tws_perturbation *disturbance;
  tws_comm_layout layout;
  tws_comm_filter communication;
  tws_comm_log *run; /* the communication log of --comm-against; NULL: not given */
} simulation;

static tws_code print_plan(const tws_cli *cli, const options *o, const tws_job *job, tws_error *err) {
  tws_plan *plan;
  tws_text text = {0};
  if (o->rank >= job->ranks)
    return tws_fail(err, TWS_USAGE, NULL, "--rank %lld: the job has ranks 0 to %d", (long long)o->rank, job->ranks - 1);
  TWS_TRY(tws_job_plan(job, o->rank < 0 ? 0 : (int)o->rank, &plan, err));
  tws_code code = tws_plan_print(plan, cli->json, &text, err);
  tws_plan_destroy(plan);
  if (code == TWS_OK) return tws_out_text(&text, err);
  tws_text_free(&text);
  return code;
}

static tws_code simulate_job(const tws_cli *cli, const options *o, const tws_job *job, simulation *s, tws_error *err) {
  if (o->scenario) TWS_TRY(tws_perturbation_open(o->scenario, job, s->fidelity, &s->disturbance, err));
  const int every = o->all_ranks || job->backend == TWS_BACKEND_HOST; /* ranks of a host share its cores */
  tws_progress progress = tws_cli_progress(cli);
  tws_simulation_request request = {
      .fidelity = s->fidelity, .every_up_to = every ? job->ranks : 0, .most_plans = MOST_PLANS, .progress = &progress};
  TWS_TRY(tws_comm_layout_read(o->comm_log, job->config, &s->layout, err));
  TWS_TRY(tws_comm_filter_read(job->config, &s->communication, err));
  if (o->comm_against) TWS_TRY(tws_comm_read_run(o->comm_against, &s->run, err));
  if (s->layout != TWS_COMM_NONE || s->run) request.communication = &s->communication;
  if (s->disturbance) request.effects = tws_perturbation_effects(s->disturbance);
  TWS_TRY(tws_sim_load(&request.sim, err));
  s->stages = tws_calloc((size_t)tws_job_stages(job), sizeof *s->stages);
  if (o->trace || o->csv) request.timeline = s->timeline = tws_timeline_create("simulated");
  if (!s->stages || ((o->trace || o->csv) && !s->timeline)) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  TWS_TRY(tws_job_simulate(job, &request, &s->of_job, err));
  TWS_TRY(tws_simulation_stages(job, &s->of_job, s->stages, &s->balance, err));
  TWS_TRY(tws_job_estimate(job, &s->estimate, NULL, err));
  const tws_timeline *timeline = s->timeline;
  if (o->trace) TWS_TRY(tws_timeline_write_chrome(&timeline, 1, o->trace, err));
  if (o->csv) TWS_TRY(tws_timeline_write_csv(&timeline, 1, o->csv, err));
  return TWS_OK;
}

/* ---- results ---- */

static void add_row(tws_table *table, const char *name, double seconds, double step_s) {
  char text[32];
  const char *cells[3] = {name, tws_cell("%s", tws_format_seconds(seconds, text, sizeof text)),
                          tws_cell("%.1f %%", step_s > 0 ? 100 * seconds / step_s : 0.0)};
  tws_table_row(table, cells);
}

static tws_code print_shares(const tws_cli *cli, const simulation *s, tws_error *err) {
  const tws_path_result *path = &s->of_job.result.path;
  const double step = s->of_job.result.step_s;
  tws_table table;
  tws_table_init(&table, 3);
  tws_table_row(&table, (const char *const[]){"Rank 0", "busy", "of step"});
  for (int p = 0; p < TWS_PHASE_COUNT; p++)
    if (path->phase_s[p] > 0)
      add_row(&table, tws_cell("computing, %s", tws_phase_name((tws_phase)p)), path->phase_s[p], step);
  for (int i = 0; i < TWS_STREAM_COUNT; i++)
    if (path->stream_busy_s[i] > 0)
      add_row(&table, tws_cell("stream %s", tws_stream_name((tws_stream)i)), path->stream_busy_s[i], step);
  for (int c = 0; c < TWS_COLLECTIVE_COUNT; c++)
    if (path->collective_s[c] > 0)
      add_row(&table, tws_cell("collective %s", tws_collective_name((tws_collective)c)), path->collective_s[c], step);
  for (int axis = 0; axis < TWS_REPORT_COUNT; axis++) {
    const char *name = tws_report_name(axis);
    if (path->axis_busy_s[axis] > 0)
      add_row(&table, tws_cell("communicating, %s", name), path->axis_busy_s[axis], step);
    if (path->axis_exposed_s[axis] > 0)
      add_row(&table, tws_cell("  not hidden, %s", name), path->axis_exposed_s[axis], step);
  }
  if (path->host_exposed_s > 0) add_row(&table, "  not hidden, the host's optimizer", path->host_exposed_s, step);
  if (path->copies_exposed_s > 0) add_row(&table, "  not hidden, copies of offloading", path->copies_exposed_s, step);
  if (path->disk_exposed_s > 0) add_row(&table, "  not hidden, the disk", path->disk_exposed_s, step);
  add_row(&table, "communication not hidden", s->of_job.result.exposed_s - path->bubble_s - tws_path_offloading(path),
          step);
  if (path->bubble_s > 0) add_row(&table, "waiting for other ranks", path->bubble_s, step);
  if (path->loading_s > 0) add_row(&table, "waiting for samples", path->loading_s, step);
  return tws_table_print(cli, &table, err);
}

static tws_code print_result(const tws_cli *cli, const options *o, const tws_job *job, const simulation *s,
                             tws_error *err) {
  char step[32], longest[32], wall[32], interval[96];
  tws_job_print(cli, job);
  const tws_evidence evidence = tws_evidence_of_job(job, s->of_job.result.step_s);
  tws_evidence_interval_text(&evidence, s->of_job.result.step_s, interval, sizeof interval);
  tws_out("\n%sSimulated step%s   %s%s, %s tokens/s, MFU %.1f %%\n", tws_style(cli, TWS_BOLD),
          tws_style(cli, TWS_PLAIN_OUTPUT), tws_format_seconds(s->of_job.result.step_s, step, sizeof step), interval,
          tws_thousands((int64_t)(tws_estimate_tokens_per_s(&s->estimate, s->of_job.result.step_s) + 0.5)),
          100 * tws_estimate_mfu(&s->estimate, s->of_job.result.step_s));
  const double more = s->estimate.step_s > 0 ? s->of_job.result.step_s / s->estimate.step_s - 1 : 0;
  tws_format_seconds(s->estimate.step_s, longest, sizeof longest);
  if (more > -5e-4 && more < 5e-4)
    tws_out("  as long as the plan's longest path\n");
  else
    tws_out("  %+.1f %% against the longest path of %s\n", 100 * more, longest);
  tws_out("  collectives: %s; %s; %s events in %s\n\n", tws_fidelity_name(s->fidelity),
          s->of_job.plan_count == job->ranks ? tws_cell(job->ranks > 1 ? "all %d ranks" : "%d rank", job->ranks)
          : s->of_job.plan_count > 1
              ? tws_cell("%d ranks stand for %d, one for each stage", s->of_job.plan_count, job->ranks)
              : tws_cell("rank 0 stands for %d", job->ranks),
          tws_thousands((int64_t)s->of_job.result.events), tws_format_seconds(s->of_job.wall_s, wall, sizeof wall));
  if (tws_job_stages(job) > 1) {
    TWS_TRY(tws_stages_print(cli, s->stages, tws_job_stages(job), &s->balance, err));
    tws_out("\n");
  }
  TWS_TRY(print_shares(cli, s, err));
  if (s->of_job.communication && s->layout != TWS_COMM_NONE)
    TWS_TRY(tws_comm_print(cli, s->of_job.communication, s->layout, err));
  if (s->run) TWS_TRY(tws_comm_compare_print(cli, s->run, s->of_job.communication, err));
  tws_bottleneck_print(cli, &s->of_job.result.path);
  const tws_own_engine own = tws_own_engine_find(job, &o->job, o->program);
  const tws_fit fit = tws_job_fit(job, &s->estimate.ledger);
  tws_own_engine_print(&own, s->estimate.step_s, fit.device_need);
  tws_fit_warn(cli, &fit);
  tws_evidence_print(cli, &evidence);
  if (o->trace)
    tws_say(cli, "timeline written to %s: open it in https://ui.perfetto.dev or chrome://tracing", o->trace);
  return TWS_OK;
}

static cJSON *named_values(const char *(*name)(int), const double *values, int count) {
  cJSON *object = cJSON_CreateObject();
  for (int i = 0; i < count; i++)
    if (values[i] > 0) cJSON_AddNumberToObject(object, name(i), values[i]);
  return object;
}
static const char *phase_name(int i) {
  return tws_phase_name((tws_phase)i);
}
static const char *stream_name(int i) {
  return tws_stream_name((tws_stream)i);
}
static const char *collective_name(int i) {
  return tws_collective_name((tws_collective)i);
}
static const char *kernel_name(int i) {
  return tws_kernel_name((tws_kernel)i);
}

static tws_code print_json(const options *o, const tws_job *job, const simulation *s, tws_error *err) {
  const tws_path_result *path = &s->of_job.result.path;
  cJSON *root = tws_job_json(job);
  cJSON_AddStringToObject(root, "schema", "twinspeed-simulation-1");
  cJSON_AddStringToObject(root, "fidelity", tws_fidelity_name(s->fidelity));
  cJSON_AddNumberToObject(root, "simulated_ranks", s->of_job.plan_count);
  const tws_evidence evidence = tws_evidence_of_job(job, s->of_job.result.step_s);
  cJSON_AddNumberToObject(root, "step_s", s->of_job.result.step_s);
  tws_evidence_interval_json(&evidence, s->of_job.result.step_s, root);
  cJSON_AddNumberToObject(root, "longest_path_s", s->estimate.step_s);
  const tws_fit fit = tws_job_fit(job, &s->estimate.ledger);
  cJSON_AddItemToObject(root, "verdict", tws_fit_json(&fit));
  cJSON_AddNumberToObject(root, "tokens_per_s", tws_estimate_tokens_per_s(&s->estimate, s->of_job.result.step_s));
  cJSON_AddNumberToObject(root, "model_flops", s->estimate.model_flops);
  cJSON_AddNumberToObject(root, "mfu", tws_estimate_mfu(&s->estimate, s->of_job.result.step_s));
  cJSON_AddNumberToObject(root, "exposed_s", s->of_job.result.exposed_s);
  if (s->estimate.loading_s > 0) cJSON_AddNumberToObject(root, "loading_s", s->estimate.loading_s);
  if (path->loading_s > 0) cJSON_AddNumberToObject(root, "loading_exposed_s", path->loading_s);
  cJSON_AddNumberToObject(root, "bubble_s", path->bubble_s);
  tws_balance_json(&s->balance, root);
  cJSON_AddItemToObject(root, "communication", tws_axes_json(path));
  cJSON_AddItemToObject(root, "stages", tws_stages_json(s->stages, tws_job_stages(job)));
  cJSON_AddItemToObject(root, "compute_phase_s", named_values(phase_name, path->phase_s, TWS_PHASE_COUNT));
  cJSON_AddItemToObject(root, "stream_busy_s", named_values(stream_name, path->stream_busy_s, TWS_STREAM_COUNT));
  cJSON_AddItemToObject(root, "collective_s", named_values(collective_name, path->collective_s, TWS_COLLECTIVE_COUNT));
  cJSON_AddItemToObject(root, "kernel_s", named_values(kernel_name, path->kernel_s, TWS_KERNEL_COUNT));
  tws_bottleneck_json(path, root);
  if (s->of_job.communication)
    cJSON_AddItemToObject(root, "communication_log", tws_comm_log_json(s->of_job.communication));
  if (s->run) cJSON_AddItemToObject(root, "run_and_simulation", tws_comm_compare_json(s->run, s->of_job.communication));
  cJSON_AddItemToObject(root, "evidence", tws_evidence_json(&evidence));
  cJSON_AddNumberToObject(root, "events", (double)s->of_job.result.events);
  cJSON_AddNumberToObject(root, "wall_s", s->of_job.wall_s);
  const tws_own_engine own = tws_own_engine_find(job, &o->job, o->program);
  tws_own_engine_json(&own, root);
  return tws_out_json(root, err);
}

static tws_code check_outputs(const options *o, tws_error *err) {
  const int prints = o->csv && strcmp(o->csv, "-") == 0 && tws_lists_given(&o->sweep);
  const tws_output outputs[] = {{"--trace", o->trace, NULL}, {"--csv", prints ? NULL : o->csv, NULL}};
  tws_inputs inputs = tws_inputs_of_job(&o->job);
  tws_inputs_add(&inputs, o->scenario);
  tws_inputs_add(&inputs, o->comm_against);
  return tws_outputs_check(outputs, 2, &inputs, o->force, err);
}

static tws_code run_sweep(const tws_cli *cli, const options *o, tws_error *err) {
  tws_lists_request request = {.sweep = &o->sweep,
                               .options = o,
                               .options_bytes = sizeof *o,
                               .spec_offset = offsetof(options, job),
                               .program = o->program,
                               .csv = o->csv,
                               .all_ranks = o->all_ranks};
  if (o->print_plan || o->trace || o->scenario || o->comm_log || o->comm_against)
    return tws_fail(err, TWS_USAGE,
                    "leave out --print-plan, --trace, --scenario, --comm-log and --comm-against, or give single values",
                    "lists ask for a row for each job");
  TWS_TRY(tws_fidelity_parse(o->fidelity, &request.fidelity, err));
  TWS_TRY(check_outputs(o, err));
  TWS_TRY(tws_sim_load(&request.sim, err)); /* the simulator is loaded before the worker processes are forked, so that
                                             * they share it */
  return tws_lists_run(cli, &request, err);
}

static tws_code run_simulate(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  const options *o = raw;
  simulation s = {0};
  (void)argc;
  (void)argv;
  if (tws_lists_given(&o->sweep)) return run_sweep(cli, o, err);
  if (o->rank >= 0 && !o->print_plan)
    return tws_fail(err, TWS_USAGE, "add --print-plan", "--rank says whose plan is printed");
  if (o->print_plan && (o->trace || o->csv))
    return tws_fail(err, TWS_USAGE, "leave out --print-plan: only a simulation has a timeline",
                    "--print-plan simulates nothing that %s could be written of", o->trace ? "--trace" : "--csv");
  TWS_TRY(tws_fidelity_parse(o->fidelity, &s.fidelity, err));
  TWS_TRY(tws_gzip_check(o->trace, err));
  TWS_TRY(check_outputs(o, err));
  tws_job *job;
  TWS_TRY(tws_measured_load(&o->job, &job, err));
  tws_job_remarks(cli, o->job.model, job);
  tws_code code = tws_job_choose_program(job, o->program, err);
  if (code == TWS_OK) code = o->print_plan ? print_plan(cli, o, job, err) : simulate_job(cli, o, job, &s, err);
  if (code == TWS_OK && !o->print_plan)
    code = cli->json ? print_json(o, job, &s, err) : print_result(cli, o, job, &s, err);
  tws_timeline_destroy(s.timeline);
  tws_simulation_free(&s.of_job);
  tws_perturbation_close(s.disturbance);
  tws_comm_log_destroy(s.run);
  tws_free(s.stages);
  tws_job_destroy(job);
  return code;
}

static const tws_option table[] = {
    TWS_JOB_OPTIONS(options, job),
    TWS_RUNTIME_OPTION(options, job),
    TWS_MEASURED_OPTION(options, job),
    TWS_PROGRAM_OPTION(options),
    TWS_STRING("fidelity", 0, "LEVEL", options, fidelity, "collectives: analytic (default), flow, message or simgrid"),
    TWS_STRING("scenario", 0, "FILE", options, scenario,
               "inject its slow devices, jitter and slow links (docs/emulation.md)"),
    TWS_STRING("trace", 0, "FILE", options, trace, "timeline as a Chrome trace, for Perfetto (.gz: compressed)"),
    TWS_STRING("csv", 0, "FILE", options, csv, "timeline as CSV; with lists: a row for each job (\"-\": on stdout)"),
    TWS_COMM_LOG_OPTION(options),
    TWS_STRING("comm-against", 0, "FILE", options, comm_against,
               "compare the communication log with that of a run, from the summary that train wrote (--result)"),
    TWS_FORCE_OPTION(options),
    TWS_FLAG("all-ranks", 0, options, all_ranks, "simulate every device, not one representative of equal ones"),
    TWS_FLAG("print-plan", 0, options, print_plan, "print the plan of a rank instead, one operation per line"),
    TWS_INTEGER("rank", 0, "R", options, rank, 0, 65535, "with --print-plan: which rank (default 0)"),
    TWS_OPTIONS_END};

static const options defaults = {.job = TWS_JOB_SPEC_PLANNED, .rank = -1};

const tws_verb tws_verb_simulate = {
    .name = "simulate",
    .summary = "run one training step in simulation: time, contention, timeline",
    .usage = "-m MODEL [-c FILE] [--cluster NAME[:NODES[xDEVICES]]] [--fidelity LEVEL] [--trace FILE] [options]",
    .examples =
        "  twinspeed simulate -m gpt2-xl --stage 3 --cluster dgx-a100:8\n"
        "  twinspeed simulate -m llama-3-8b -c ds_config.json --cluster dgx-h100:4 --fidelity flow\n"
        "  twinspeed simulate -m gpt2 --stage 2 -n 4 --trace step.json\n"
        "  twinspeed simulate -m gpt2-xl --cluster dgx-a100 --stage 2,3 --micro-batch 1,2,4 --csv points.csv\n"
        "  twinspeed simulate -m gpt2 --stage 3 --cluster dgx-a100 --print-plan --rank 7\n",
    .notes =
        "analytic: a collective takes the time of its formula or measured table. flow: its bytes share links with\n"
        "all concurrent transfers. message: every step of its rings is a message. Costs come from the hardware\n"
        "profile; host ranks in excess of the cores share them.\n" TWS_LISTS_NOTES,
    .options = table,
    .options_bytes = sizeof(options),
    .swept = tws_listed_options,
    .sweep_offset = offsetof(options, sweep),
    .defaults = &defaults,
    .run = run_simulate,
};
