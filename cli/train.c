/* twinspeed train: trains on this machine, and compares the predicted step with the measured ones. */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "base/failure.h"
#include "base/number.h"
#include "base/units.h"
#include "checkpoint/folder.h"
#include "cli/comm_view.h"
#include "cli/emulate.h"
#include "cli/flops_view.h"
#include "cli/job_options.h"
#include "cli/job_view.h"
#include "cli/launch_options.h"
#include "cli/live.h"
#include "cli/outputs.h"
#include "cli/remarks.h"
#include "cli/signals.h"
#include "cli/step_view.h"
#include "cli/training_options.h"
#include "job/fit.h"
#include "job/modules.h"
#include "launch/guard.h"
#include "launch/supervise.h"
#include "traces/gzip.h"

typedef struct options {
  tws_job_spec job;
  const char *data, *eval_data, *trace, *csv, *result, *save, *resume, *tag, *init_from, *json_lines, *prometheus,
      *comm_log, *trace_schedule, *progress;
  int64_t steps, every, eval_every, eval_steps, save_every, keep;
  double deadline_s, memory;
  tws_launch_flags flags;
  int64_t restarts;
  int force, ignore_memory, is_virtual;
  /* derived from the options */
  tws_supervised run; /* the current attempt */
  tws_guard guard;
} options;

typedef struct session {
  tws_cli *cli;
  options *o;
} session;

/* ---- checks before the training, and the decision to start ranks ---- */

static tws_code check_device(const options *o, const tws_job *job, tws_error *err) {
  const int nodes = o->run.launch.hosts ? o->run.launch.hosts->count : 1;
  if (job->backend == TWS_BACKEND_HOST && job->cluster.nodes != nodes)
    return tws_fail(err, TWS_INVALID,
                    o->run.launch.hosts
                        ? "let them agree, or leave out --cluster"
                        : "say where they are: --hostfile FILE; or train on this machine: --cluster host -n N",
                    "cluster %s has %d node%s, but the hosts are %d", job->cluster.name, job->cluster.nodes,
                    job->cluster.nodes > 1 ? "s" : "", nodes);
  return tws_job_check_engine(job, o->job.cluster != NULL, o->job.profile != NULL, err);
}

static tws_code check_memory(const tws_cli *cli, const tws_job *job, const options *o, tws_error *err) {
  tws_local_fit fit;
  char need[32], have[32];
  const int here = o->run.launch.hosts ? o->run.launch.hosts->host[0].count : job->ranks;
  TWS_TRY(tws_job_fit_here(job, here, o->eval_data != NULL, &fit, err));
  if (fit.need == 0.0) return TWS_OK;
  tws_format_bytes(fit.need, need, sizeof need);
  tws_format_bytes(fit.have, have, sizeof have);
  tws_say(cli, "memory: %s for %d rank%s, and this machine has %s left%s", need, here, here > 1 ? "s" : "", have,
          fit.limited ? " within its control group" : "");
  if (fit.fits || o->ignore_memory) return TWS_OK;
  return tws_fail(
      err, TWS_NO,
      "`twinspeed estimate` shows what fills it; a smaller micro batch, --recompute full or a higher --stage "
      "needs less; --ignore-memory starts it anyway",
      "training needs %s of memory and this machine has %s left", need, have);
}

/* ---- the ranks ---- */

enum { OWN_ARGUMENTS = 28, MAX_ARGUMENTS = 68 + TWS_MAX_STRINGS };

static tws_code launch(const tws_cli *cli, const options *o, const tws_job *job, tws_error *err) {
  const char *arguments[MAX_ARGUMENTS];
  int count = 0;
  TWS_TRY(tws_job_spec_check_shared(&o->job, err));
  tws_job_spec spec = o->job;
  spec.ranks = job->ranks; /* decided here once, so that all ranks have the same number */
  spec.threads = job->threads;
  tws_arena *arena = tws_arena_create();
  if (!arena) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  arguments[count++] = "train";
  tws_code code = tws_job_spec_arguments(&spec, arena, arguments, MAX_ARGUMENTS - OWN_ARGUMENTS, &count, err);
  const struct {
    const char *name, *value;
  } texts[] = {{"--data", o->data},
               {"--eval-data", o->eval_data},
               {"--trace", o->trace},
               {"--csv", o->csv},
               {"--result", o->result},
               {"--save", o->save},
               {"--resume", o->resume},
               {"--tag", o->tag},
               {"--init-from", o->init_from},
               {"--json-lines", o->json_lines},
               {"--prometheus", o->prometheus},
               {"--trace-schedule", o->trace_schedule},
               {"--comm-log", o->comm_log}};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    if (texts[i].value) arguments[count++] = tws_arena_printf(arena, "%s=%s", texts[i].name, texts[i].value);
  arguments[count++] = tws_arena_printf(arena, "--steps=%" PRId64, o->steps);
  arguments[count++] = tws_arena_printf(arena, "--deadline=%.17g", o->deadline_s);
  if (o->eval_every) arguments[count++] = tws_arena_printf(arena, "--eval-every=%" PRId64, o->eval_every);
  if (o->eval_steps) arguments[count++] = tws_arena_printf(arena, "--eval-steps=%" PRId64, o->eval_steps);
  if (o->save_every) arguments[count++] = tws_arena_printf(arena, "--save-every=%" PRId64, o->save_every);
  if (o->keep) arguments[count++] = tws_arena_printf(arena, "--keep=%" PRId64, o->keep);
  if (o->memory > 0) arguments[count++] = tws_arena_printf(arena, "--memory=%.0f", o->memory);
  if (o->every) arguments[count++] = tws_arena_printf(arena, "--every=%" PRId64, o->every);
  tws_progress_mode mode;
  TWS_TRY(tws_progress_mode_read(cli, o->progress, 0, &mode, err));
  tws_progress_lines = mode == TWS_PROGRESS_LIVE; /* rank 0 draws the progress lines, on the same terminal */
  arguments[count++] = tws_arena_printf(arena, "--progress=%s", tws_progress_mode_name(mode));
  if (cli->json) arguments[count++] = "--json";
  if (cli->quiet) arguments[count++] = "--quiet";
  if (cli->verbose) arguments[count++] = "--verbose";
  for (int i = 0; i < count; i++)
    if (!arguments[i] && code == TWS_OK) code = tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tws_launch_options launch_options = o->run.launch;
  launch_options.ranks = job->ranks;
  launch_options.threads = job->threads;
  launch_options.arguments = arguments;
  launch_options.argument_count = count;
  launch_options.deadline_s = o->deadline_s;
  launch_options.ends_itself = o->save != NULL;
  launch_options.log = &cli->log;
  if (code == TWS_OK) code = tws_launch(&launch_options, err);
  tws_arena_destroy(arena);
  return code;
}

/* ---- one rank ---- */

typedef struct printer {
  tws_cli *cli;
  int64_t every, steps;
  int heading, evaluates, has_experts;
  const tws_network *network;
  tws_comm_layout layout; /* of the communication log */
  tws_code logged;        /* result of printing the communication log */
  tws_error log_error;
  tws_live live; /* progress */
} printer;

static void print_skipped(const tws_step_report *r) {
  tws_out("%6" PRId64 "  skipped: overflow at loss scale %.15g", r->step, r->loss_scale);
  if (r->next_scale < r->loss_scale)
    tws_out(" -> %.15g\n", r->next_scale);
  else
    tws_out(", which is kept\n");
}

/* Prints, for a model with several losses, the name of each, or its value in a report. */
static void print_losses(const tws_network *network, const tws_step_report *r) {
  if (tws_network_losses(network) < 2) return;
  for (uint32_t m = 0, h = 0; m < network->module_count; m++) {
    if (network->modules[m].type != TWS_MODULE_LOSS) continue;
    if (r)
      tws_out("  %13.5f", r->head_loss[h++]);
    else
      tws_out("  %13s", network->modules[m].name);
  }
}

static void print_row(printer *p, const tws_step_report *r) {
  if (r->skipped && !p->cli->json) {
    print_skipped(r);
    if (r->evaluated) tws_out("%6" PRId64 "  evaluation: loss %.5f\n", r->step, r->eval_loss);
    return;
  }
  if (p->cli->json || (r->step != 1 && r->step != p->steps && r->step % p->every != 0 && !r->evaluated)) return;
  if (!p->heading) {
    tws_out("%6s  %9s  %9s  %9s  %10s  %9s", "step", "loss", "lr", "grad norm", "tokens/s", "step ms");
    print_losses(p->network, NULL);
    tws_out("%s%s\n", p->has_experts ? "   aux loss  dropped  hottest" : "", p->evaluates ? "  eval loss" : "");
  }
  p->heading = 1;
  tws_out("%6" PRId64 "  %9.5f  %9.3e  %9.4f  %10.0f  %9.2f", r->step, r->loss, r->lr, r->gradient_norm,
          r->tokens_per_s, r->seconds * 1e3);
  print_losses(p->network, r);
  if (p->has_experts)
    tws_out("  %9.5f  %5.1f %%  %5.2f x", r->auxiliary_loss, 100 * r->dropped_share, r->hottest_share);
  if (r->evaluated) tws_out("  %9.5f", r->eval_loss);
  tws_out("\n");
  if (r->is_timed) tws_print_phases(&r->phase);
}

static void print_step(void *user, const tws_step_report *r) {
  printer *p = user;
  print_row(p, r);
  tws_live_step(&p->live, r);
}

static void print_result(void *user, const char *json) {
  const printer *p = user;
  if (p->cli->json) tws_out("%s\n", json);
}

static void keep_calls(void *user, const tws_comm_record *record) {
  const printer *p = user;
  tws_comm_print_calls(p->cli, record);
}

static void print_communication(void *user, tws_comm_log *log) {
  printer *p = user;
  if (!p->cli->json) p->logged = tws_comm_print(p->cli, log, p->layout, &p->log_error);
}

static uint64_t hear_news(void *user) {
  (void)user;
  return tws_worker_activity_count();
}

static void report_hang(void *user, const tws_error *err) {
  const printer *p = user;
  if (tws_worker_is())
    tws_worker_fail(err);
  else
    tws_print_error(p->cli, err);
}

static int should_end(void *user) {
  (void)user;
  return tws_asked_to_end() || tws_worker_asked_to_end();
}

static void print_end(const tws_job *job, const tws_train_result *r) {
  char step[32], predicted[32], allocated[32], largest[64] = "", most[32], rss[32];
  if (job->ranks > 1)
    snprintf(largest, sizeof largest, "; rank %d has the most, %s", r->largest_rank,
             tws_format_bytes((double)r->largest_bytes, most, sizeof most));
  char skipped[48] = "";
  if (r->skipped) snprintf(skipped, sizeof skipped, " (%" PRId64 " skipped)", r->skipped);
  char evaluated[48] = "";
  if (r->evaluated) snprintf(evaluated, sizeof evaluated, "; evaluation %.4f", r->last_eval_loss);
  tws_out("\nloss %.4f -> %.4f in %" PRId64 " steps%s%s; %.0f tokens/s, %s a step (median)\n", r->first_loss,
          r->last_loss, r->steps - r->first_step, skipped, evaluated, r->tokens_per_s,
          tws_format_seconds(r->median_step_s, step, sizeof step));
  if (r->ended) tws_out("asked to end, and saved at step %" PRId64 ": --resume continues from there\n", r->steps);
  tws_out_wrapped(
      2, "memory of %d rank%s: predicted %s, allocated %s (%s)%s; peak resident %s", job->ranks,
      job->ranks > 1 ? "s" : "", tws_format_bytes((double)r->job_predicted_bytes, predicted, sizeof predicted),
      tws_format_bytes((double)r->job_allocated_bytes, allocated, sizeof allocated),
      r->job_predicted_bytes == r->job_allocated_bytes ? "equal to the byte" : "NOT equal: please report it", largest,
      tws_format_bytes((double)r->job_peak_rss_bytes, rss, sizeof rss));
}

static void print_disk(const tws_disk_traffic *d, int64_t steps) {
  char read[32], written[32];
  if (!d->planned_read && !d->planned_written) return;
  const int equal = d->read == d->planned_read && d->written == d->planned_written;
  tws_out("disk: read %s and wrote %s in %" PRId64 " steps (%s)\n",
          tws_format_bytes((double)d->read, read, sizeof read),
          tws_format_bytes((double)d->written, written, sizeof written), steps,
          equal ? "as planned, to the byte" : "NOT as planned: please report it");
}

/* ---- the profiled step ---- */

/* Returns 1 if this run includes the profiled step. */
static int is_profiled(const tws_job *job, const tws_train_result *result) {
  const int64_t step = job->config->flops_profiler.profile_step;
  return job->config->flops_profiler.enabled && result->first_step < step && step <= result->steps;
}

static tws_code print_profile(const tws_cli *cli, const tws_job *job, const char *trace, tws_error *err) {
  const tws_flops_section *section = &job->config->flops_profiler;
  const tws_plan_request request = tws_job_request(job, 0);
  tws_measured_step measured = {0};
  tws_flops_profile profile = {0};
  tws_text text = {0};
  tws_code code = tws_measured_step_read(trace, &request, &measured, err);
  if (code == TWS_OK) code = tws_flops_profile_read(&request, &job->machine, &measured, &profile, err);
  const tws_flops_view view = {.job = job,
                               .profile = &profile,
                               .measured = 1,
                               .detailed = section->detailed,
                               .top = (int)section->top_modules,
                               .depth = (int)section->module_depth,
                               .step = section->profile_step};
  if (code == TWS_OK) tws_flops_print(&view, &text);
  if (code == TWS_OK && section->output_file && !text.failed)
    code = tws_write_file(section->output_file, text.data, text.length, err);
  else if (code == TWS_OK && !cli->json)
    code = tws_out_text(&text, err);
  tws_text_free(&text);
  tws_flops_profile_free(&profile);
  tws_measured_step_free(&measured);
  return code;
}

/* Chooses the trace file of the profiled step: the requested trace, or a temporary file that is removed. Ranks other
 * than the first write nothing. */
static tws_code choose_trace(const options *o, const tws_job *job, int rank, char *scratch, size_t size,
                             tws_train_options *request, tws_error *err) {
  if (!job->config->flops_profiler.enabled) return TWS_OK;
  request->trace_step = job->config->flops_profiler.profile_step;
  if (o->trace) return TWS_OK;
  snprintf(scratch, size, "not written by this rank");
  if (rank == 0) TWS_TRY(tws_temporary_file(scratch, size, "profile", err));
  request->trace_path = scratch;
  return TWS_OK;
}

/* Reads --trace-schedule. */
static tws_code read_schedule(const options *o, const tws_job *job, tws_trace_schedule *out, tws_error *err) {
  TWS_TRY(tws_gzip_check(o->trace, err));
  if (!o->trace_schedule) return TWS_OK;
  if (!o->trace) return tws_fail(err, TWS_USAGE, "give --trace FILE too", "train: --trace-schedule without --trace");
  if (job->config->flops_profiler.enabled)
    return tws_fail(err, TWS_USAGE, "leave out one of them",
                    "train: --trace-schedule, and flops_profiler traces its profile_step");
  return tws_trace_schedule_parse(o->trace_schedule, out, err);
}

static tws_code train(tws_cli *cli, const options *o, const tws_job *job, tws_error *err) {
  const tws_real_api *api;
  if (job->ranks > 1) cli->color_out = 0; /* ranks write to pseudo-terminals of the launcher, not to the user's */
  tws_launch_set_threads(job->threads);
  TWS_TRY(tws_real_load(&api, err));
  char *arguments[] = {(char *)(uintptr_t)cli->program, NULL}, **argv = arguments;
  int argc = 1, rank = 0, world = 1;
  TWS_TRY(api->start(&argc, &argv, &rank, &world, err));
  if (world != job->ranks)
    return tws_fail(err, TWS_ENVIRONMENT, "leave out -n: the job has as many ranks as were started",
                    "%d ranks were started and the job has %d", world, job->ranks);
  tws_fingerprint fingerprint;
  if (rank == 0) TWS_TRY(tws_job_fingerprint(job, &fingerprint, err));
  printer p = {.cli = cli,
               .every = tws_config_print_interval(job->config, o->every, o->steps),
               .steps = o->steps,
               .evaluates = o->eval_data != NULL,
               .has_experts = tws_network_has_experts(job->network),
               .network = job->network};
  tws_progress_mode mode;
  TWS_TRY(tws_progress_mode_read(cli, o->progress, job->ranks > 1, &mode, err));
  if (rank == 0) tws_live_open(job, mode, o->steps, &p.live);
  TWS_TRY(tws_comm_layout_read(o->comm_log, job->config, &p.layout, err));
  tws_train_options request = {.plan = tws_job_request(job, rank),
                               .data = o->data,
                               .steps = o->steps,
                               .eval_data = o->eval_data,
                               .eval_every = o->eval_every,
                               .eval_steps = o->eval_steps,
                               .save = o->save,
                               .save_every = o->save_every,
                               .keep = o->keep,
                               .resume = o->resume,
                               .tag = o->tag,
                               .init_from = o->init_from,
                               .should_end = o->save ? should_end : NULL,
                               .trace_path = o->trace,
                               .csv_path = o->csv,
                               .result_path = o->result,
                               .watching = {.lines_path = o->json_lines, .prometheus_path = o->prometheus},
                               .fingerprint = rank == 0 ? &fingerprint : NULL,
                               .deadline_s = o->deadline_s,
                               .device_limit = (uint64_t)o->memory,
                               .quiet = cli->quiet,
                               .on_step = print_step,
                               .logs_communication = p.layout != TWS_COMM_NONE,
                               .on_communication = print_communication,
                               .on_calls = keep_calls,
                               .on_result = cli->json ? print_result : NULL,
                               .news = hear_news,
                               .on_hang = report_hang,
                               .user = &p,
                               .log = &cli->log};
  char plots[512];
  request.watching.plots = tws_plots_path(plots, sizeof plots);
  request.watching.peak_flops = tws_peak_flops(&request.plan, &job->machine);
  request.activity = tws_worker_activity(&request.activity_bytes);
  if (o->guard.inside) {
    request.activity = o->guard.line;
    request.activity_bytes = o->guard.room;
  }
  tws_train_result result;
  char scratch[4096] = "";
  TWS_TRY(read_schedule(o, job, &request.trace_schedule, err));
  TWS_TRY(choose_trace(o, job, rank, scratch, sizeof scratch, &request, err));
  if (o->save && !tws_worker_is()) tws_listen_for_end();
  tws_code code = api->train(&request, &result, err);
  if (code == TWS_OK && p.logged != TWS_OK) {
    *err = p.log_error;
    code = p.logged;
  }
  if (code == TWS_OK && rank == 0 && !cli->json) {
    print_end(job, &result);
    print_disk(&result.disk, result.steps - result.first_step);
  }
  if (code == TWS_OK && rank == 0 && is_profiled(job, &result)) code = print_profile(cli, job, request.trace_path, err);
  if (rank == 0) tws_temporary_remove(scratch);
  if (code != TWS_OK) return code; /* the caller exits: stop() would wait for ranks that may be blocked */
  api->stop();
  return TWS_OK;
}

/* Removes swap files of killed ranks. Files that another run has open stay. */
static void clear_swap_files(const tws_job *job) {
  const tws_real_api *api;
  const char *folder = tws_config_disk(job->config);
  if (folder && tws_real_load(&api, NULL) == TWS_OK) api->clear_swap_files(folder);
}

/* Returns " (pipe 2 x data 2 x model 2)", or "" if at most one axis has several ranks. */
static const char *format_axes(const tws_topology *topology, char *text, size_t size) {
  size_t length = 0;
  text[0] = '\0';
  for (int i = 0; topology->axes > 1 && i < topology->axes && length < size; i++)
    length += (size_t)snprintf(text + length, size - length, "%s%s %d%s", i ? " x " : " (",
                               tws_axis_name(topology->axis[i]), topology->dim[i], i + 1 == topology->axes ? ")" : "");
  return text;
}

/* Checks the output file that the configuration names. */
static tws_code check_profile(const options *o, const tws_job *job, tws_error *err) {
  const tws_flops_section *section = &job->config->flops_profiler;
  const tws_output output = {"flops_profiler.output_file", section->enabled ? section->output_file : NULL, NULL};
  tws_inputs inputs = tws_inputs_of_job(&o->job);
  tws_inputs_add(&inputs, o->data);
  return tws_outputs_check(&output, 1, &inputs, o->force, err);
}

static tws_code run_job(tws_cli *cli, const options *o, const tws_job *job, tws_error *err) {
  int rank, world;
  const int started = tws_started_by_other_launcher(&rank, &world);
  if (tws_rank_job_is_checked()) return train(cli, o, job, err);
  tws_comm_layout layout;
  tws_trace_schedule schedule;
  TWS_TRY(tws_comm_layout_read(o->comm_log, job->config, &layout, err));
  TWS_TRY(read_schedule(o, job, &schedule, err));
  char count[32], axes[128];
  TWS_TRY(check_profile(o, job, err));
  if (!started) TWS_TRY(check_device(o, job, err));
  tws_job_remarks(cli, o->job.model, job);
  tws_job_assumed_remark(cli, job, 1);
  tws_data_remark(cli, o->data, job->network);
  tws_job_remark(cli, job);
  tws_say(cli, "%s: %s parameters, ZeRO-%d, %s, %d rank%s%s x %d thread%s, batch of %" PRId64 " x %" PRId64 " tokens",
          job->network->name, tws_format_count((double)tws_network_params(job->network, 0), count, sizeof count),
          job->config->zero.stage, tws_dtype_name(job->config->dtype), job->ranks, job->ranks > 1 ? "s" : "",
          format_axes(&job->topology, axes, sizeof axes), job->threads, job->threads > 1 ? "s" : "",
          job->config->train_batch_size, job->config->sequence_length);
  if (!started) TWS_TRY(check_memory(cli, job, o, err));
  if (job->ranks == 1 || started) return train(cli, o, job, err);
  const tws_code code = launch(cli, o, job, err);
  clear_swap_files(job);
  return code;
}

static tws_code check_outputs(const options *o, tws_error *err) {
  const tws_output outputs[] = {{"--json-lines", o->json_lines, NULL},
                                {"--prometheus", o->prometheus, NULL},
                                {"--csv", o->csv, NULL},
                                {"--trace", o->trace, NULL},
                                {"--result", o->result, NULL}};
  const int count = (int)(sizeof outputs / sizeof *outputs), continued = o->resume ? 2 : 0;
  tws_inputs inputs = tws_inputs_of_job(&o->job);
  tws_inputs_add(&inputs, o->data);
  tws_inputs_add(&inputs, o->eval_data);
  tws_inputs_add(&inputs, o->init_from);
  TWS_TRY(tws_outputs_check_continued(outputs, count, continued, &inputs, o->force, err));
  return tws_outputs_check_save(o->save, o->resume, o->force, err);
}

/* Checks the checkpoint options and chooses the checkpoint to resume, which the ranks receive by name. */
static tws_code check_checkpoints(options *o, char *tag, size_t size, tws_error *err) {
  char path[TWS_FOLDER_SIZE];
  if (!o->save && (o->save_every || o->keep))
    return tws_fail(err, TWS_USAGE, "give --save DIR too", "train: %s without a folder to save to",
                    o->save_every ? "--save-every" : "--keep");
  if (!o->save && o->restarts)
    return tws_fail(err, TWS_USAGE, "give --save DIR and --save-every N too", "train: --restarts without checkpoints");
  if (!o->resume && o->tag) return tws_fail(err, TWS_USAGE, "give --resume DIR too", "train: --tag without --resume");
  if (!o->resume || o->tag || tws_worker_is() || tws_rank_job_is_checked()) return TWS_OK;
  TWS_TRY(tws_folder_find(o->resume, NULL, path, sizeof path, err));
  const char *slash = strrchr(path, '/');
  if (strlen(path) <= strlen(o->resume)) return TWS_OK; /* the folder itself is a checkpoint */
  snprintf(tag, size, "%s", slash + 1);
  o->tag = o->run.found_tag = tag;
  return TWS_OK;
}

/* Reads torchrun's environment. On one machine the first process starts all ranks, and the other processes, for which
 * *idle is set, exit. */
static tws_code read_torchrun(tws_cli *cli, options *o, int *idle, tws_error *err) {
  const char *rank = getenv("LOCAL_RANK"), *world = getenv("WORLD_SIZE"), *here = getenv("LOCAL_WORLD_SIZE");
  *idle = 0;
  if (!rank || !world || !here || !getenv("TORCHELASTIC_RUN_ID")) return TWS_OK;
  int all, own, mine;
  if (!tws_text_int(rank, NULL, 0, INT32_MAX, &mine) || !tws_text_int(world, NULL, 1, INT32_MAX, &all) ||
      !tws_text_int(here, NULL, 1, INT32_MAX, &own))
    return tws_fail(err, TWS_ENVIRONMENT, "start it without torchrun",
                    "torchrun: LOCAL_RANK \"%.40s\", WORLD_SIZE "
                    "\"%.40s\" and LOCAL_WORLD_SIZE \"%.40s\" are not three numbers",
                    rank, world, here);
  if (all != own)
    return tws_fail(err, TWS_UNSUPPORTED, "run `twinspeed train --hostfile FILE` once, on one of the nodes",
                    "torchrun: %s of %s ranks are on this node, and several nodes need a hostfile", here, world);
  if (!o->job.ranks && !tws_launch_flags_given(&o->flags)) o->job.ranks = all;
  *idle = mine > 0;
  if (*idle) tws_say(cli, "torchrun's first process starts all ranks, and this one ends");
  return TWS_OK;
}

/* Sets CUDA_VISIBLE_DEVICES to the devices of this machine that --include and related options select, for all ranks. */
static void use_devices(const tws_host *host) {
  char devices[1024] = "";
  int n = 0;
  for (int i = 0; i < host->count && n < (int)sizeof devices; i++)
    n += snprintf(devices + n, sizeof devices - (size_t)n, "%s%d", i ? "," : "", host->slot[i]);
  setenv("CUDA_VISIBLE_DEVICES", devices, 1);
}

/* Determines the hosts of the ranks and their number. */
static tws_code place_ranks(const tws_cli *cli, options *o, tws_error *err) {
  int rank, world;
  if (tws_started_by_other_launcher(&rank, &world)) {
    if (tws_launch_flags_given(&o->flags) || o->flags.launcher)
      return tws_fail(err, TWS_USAGE, "leave out --hostfile and its like, or the launcher",
                      "train: ranks were started already, by mpirun or srun");
    if (!o->job.ranks) o->job.ranks = world;
    return TWS_OK;
  }
  if (tws_worker_is()) return TWS_OK;
  o->flags.elastic = o->restarts > 0;
  TWS_TRY(tws_launch_flags_read(&o->flags, o->job.ranks, o->run.arena, &o->run.hosts, &o->run.launch, err));
  if (!o->run.launch.hosts) return TWS_OK;
  tws_launch_flags_report(cli, &o->flags, o->job.ranks);
  const int chosen = tws_launch_flags_choose_devices(cli, &o->flags);
  if (chosen && o->run.hosts.count == 1 && tws_hosts_local(&o->run.hosts)) use_devices(o->run.hosts.host);
  o->run.job = o->job;
  TWS_TRY(tws_supervised_place(&o->run, err));
  o->job = o->run.job;
  return TWS_OK;
}

/* Runs one attempt for the supervisor. */
static tws_code run_once(void *user, const tws_supervised *now, tws_error *err) {
  const session *s = user;
  options *o = s->o;
  tws_job *job;
  o->job = now->job;
  o->resume = now->resume;
  o->tag = now->tag;
  o->init_from = now->init_from;
  o->force |= now->force;
  TWS_TRY(tws_job_load(&o->job, &job, err));
  tws_code code = run_job(s->cli, o, job, err);
  tws_job_destroy(job);
  return code;
}

/* Returns 1 for a single rank in this process, which needs a separate process as watchdog; 0 if ranks are started, or
 * the configuration is still to be read from standard input and may have more ranks. */
static int needs_guard(const options *o) {
  int rank, world;
  if (o->deadline_s <= 0 || o->job.ranks > 1 || o->run.launch.hosts || tws_rank_job_is_checked()) return 0;
  if (tws_started_by_other_launcher(&rank, &world)) return 0;
  const char *input;
  return tws_job_spec_input(&o->job, &input, NULL) == TWS_OK && (!input || !isatty(STDIN_FILENO));
}

/* Exits with the status or the signal of the process that did the work. */
static void end_likewise(tws_cli *cli, const tws_guard *guard) {
  const struct rlimit none = {0, 0};
  cli->exit_code = guard->status;
  if (!guard->signal) return;
  setrlimit(RLIMIT_CORE, &none); /* the other process has dumped core already */
  signal(guard->signal, SIG_DFL);
  raise(guard->signal);
  cli->exit_code = 128 + guard->signal;
}

/* Trains under the supervisor, which restarts the job if ranks fail. */
static tws_code run_checked(tws_cli *cli, options *o, tws_error *err) {
  int idle;
  session s = {cli, o};
  TWS_TRY(read_torchrun(cli, o, &idle, err));
  if (idle) return TWS_OK;
  TWS_TRY(place_ranks(cli, o, err));
  if (needs_guard(o)) {
    tws_progress_mode mode;
    TWS_TRY(tws_progress_mode_read(cli, o->progress, 0, &mode, err));
    tws_progress_lines = mode == TWS_PROGRESS_LIVE; /* the process that trains draws the progress lines, on the same
                                                     * terminal */
    TWS_TRY(tws_guard_start(o->deadline_s, &o->guard, err));
    if (o->guard.inside) tws_progress_lines = 0;
    if (!o->guard.inside) {
      end_likewise(cli, &o->guard);
      return TWS_OK;
    }
  }
  o->run.job = o->job;
  o->run.save = o->save;
  o->run.resume = o->resume;
  o->run.tag = o->tag;
  o->run.init_from = o->init_from;
  o->run.restarts = o->restarts;
  return tws_supervise(&o->run, run_once, &s, &cli->log, err);
}

/* Trains on a virtual cluster under the simulator's clock. */
static tws_code train_virtually(tws_cli *cli, const options *o, tws_error *err) {
  tws_emulate_options e = tws_emulate_defaults;
  if (tws_launch_flags_given(&o->flags) || o->flags.launcher || o->result || o->memory > 0)
    return tws_fail(err, TWS_USAGE, "leave one of them out",
                    "--virtual starts no ranks elsewhere and takes no --result or --memory");
  e.job = o->job;
  e.run.data = o->data;
  e.run.eval_data = o->eval_data;
  e.trace = o->trace;
  e.csv = o->csv;
  e.json_lines = o->json_lines;
  e.prometheus = o->prometheus;
  e.comm_log = o->comm_log;
  e.trace_schedule = o->trace_schedule;
  e.save = o->save;
  e.resume = o->resume;
  e.tag = o->tag;
  e.init_from = o->init_from;
  e.run.steps = o->steps;
  e.every = o->every;
  e.run.eval_every = o->eval_every;
  e.run.eval_steps = o->eval_steps;
  e.run.save_every = o->save_every;
  e.run.keep = o->keep;
  e.run.restarts = o->restarts;
  e.run.deadline_s = o->deadline_s;
  e.force = o->force;
  e.ignore_memory = o->ignore_memory;
  return tws_emulate_run(cli, &e, err);
}

static tws_code run(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  options *o = raw;
  char tag[TWS_TAG_SIZE];
  (void)argc;
  (void)argv;
  if (o->is_virtual) return train_virtually(cli, o, err);
  if (!o->data)
    return tws_fail(err, TWS_USAGE, "give --data FILE: a text (its bytes are the tokens), or llm.c tokens (.bin)",
                    "train: no data was given");
  if (!o->eval_data && (o->eval_every || o->eval_steps))
    return tws_fail(err, TWS_USAGE, "give --eval-data FILE too", "train: %s without data to evaluate on",
                    o->eval_every ? "--eval-every" : "--eval-steps");
  TWS_TRY(check_checkpoints(o, tag, sizeof tag, err));
  TWS_TRY(check_outputs(o, err));
  o->run.arena = tws_arena_create();
  if (!o->run.arena) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  const tws_code code = run_checked(cli, o, err);
  tws_arena_destroy(o->run.arena);
  return code;
}

static const tws_option table[] = {
    TWS_JOB_OPTIONS(options, job),
    TWS_TRAINING_OPTIONS(options, ),
    TWS_INTEGER("steps", 's', "N", options, steps, 1, 1000000000,
                "optimizer steps of the whole training, those before a checkpoint included (default 100)"),
    TWS_INTEGER("every", 0, "N", options, every, 1, 1000000000, "print every N-th step"),
    TWS_STRING("progress", 0, "MODE", options, progress,
               "live (a few lines that refresh; default on a terminal), plain, or json (a line a step on stderr)"),
    TWS_STRING("csv", 0, "FILE", options, csv, "write a line for every step"),
    TWS_STRING("trace", 0, "FILE", options, trace,
               "write the last step, or flops_profiler.profile_step, as a Chrome trace, all ranks (.gz: compressed)"),
    TWS_TRACE_SCHEDULE_OPTION(options),
    TWS_STRING("result", 0, "FILE", options, result, "write the summary (what --json prints) to a file"),
    TWS_NUMBER("deadline", 0, "SECONDS", options, deadline_s, 0, 1e9,
               "exit with status 124 after this time without progress, from the start on (default 1800; 0: never)"),
    TWS_BYTES("memory", 0, "BYTES", options, memory, "device memory that a rank may use (default: all)"),
    TWS_LAUNCH_OPTIONS(options, flags),
    TWS_FLAG("virtual", 0, options, is_virtual, "on a virtual cluster in this process: the verb emulate"),
    TWS_FORCE_OPTION(options),
    TWS_FLAG("ignore-memory", 0, options, ignore_memory, "start although memory may not suffice"),
    TWS_OPTIONS_END};

static const options defaults = {
    .job = TWS_JOB_SPEC_DEFAULTS, .steps = 100, .deadline_s = TWS_FAILURE_DEADLINE_S, .run.failed_rank = -1};

const tws_verb tws_verb_train = {
    .name = "train",
    .summary = "trains on this machine or on several, with one or many ranks",
    .usage = "-m MODEL -c ds_config.json --data FILE [-n RANKS | --hostfile FILE] [options]",
    .examples =
        "  twinspeed train -m gpt2 -c ds_config.json --data book.txt -n 4 --steps 100\n"
        "  twinspeed train -m config.json --seq 64 --micro-batch 4 --stage 2 -n 2 --data book.txt \\\n"
        "      --csv steps.csv --trace step.json --result result.json\n"
        "  twinspeed train -m gpt2 -c ds_config.json --data book.txt --eval-data other.txt --eval-every 50 "
        "--eval-steps 8\n"
        "  twinspeed train -m gpt2 -c ds_config.json --data book.txt -n 4 --save run --save-every 50 --keep 2\n"
        "  twinspeed train -m gpt2 -c ds_config.json --data book.txt --hostfile hosts\n"
        "  twinspeed train -m gpt2 -c ds_config.json --data book.txt -n 2 --stage 3 --resume run --save run --steps "
        "200\n",
    .notes =
        "The ranks are processes that twinspeed starts itself through Open MPI, here or on the hosts of a hostfile; or "
        "it\n"
        "is started once per rank by mpirun or srun. A rank that fails, dies or hangs ends\n"
        "the whole job with one message: status 5, or 124 past the deadline. Ctrl-C ends all ranks. With --save, "
        "SIGTERM\n"
        "ends them after the step in progress, with a checkpoint and status 0; a second one ends them at once.\n",
    .options = table,
    .options_bytes = sizeof(options),
    .defaults = &defaults,
    .run = run};
