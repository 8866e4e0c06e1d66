/* twinspeed emulate: trains on a virtual cluster, with real losses and simulated time. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/units.h"
#include "checkpoint/folder.h"
#include "cli/comm_view.h"
#include "cli/emulate.h"
#include "cli/emulate_figure.h"
#include "cli/emulate_view.h"
#include "cli/job_options.h"
#include "cli/job_view.h"
#include "cli/outputs.h"
#include "cli/remarks.h"
#include "cli/step_view.h"
#include "cli/training_options.h"
#include "job/modules.h"
#include "job/simulate.h"
#include "traces/gzip.h"

typedef tws_emulate_options options;

typedef struct session {
  tws_cli *cli;
  const options *o;
  const tws_scenario *scenario; /* the scenario of failures; NULL: none */
  int64_t every;
  int heading;
  tws_progress progress; /* counts steps */
  FILE *csv;
  int csv_failed;
  cJSON *steps;
  tws_loss_curve curve;
  tws_comm_layout layout; /* of the communication log */
} session;

static void keep_step(session *s, const tws_step_report *r, double now_s) {
  cJSON *one = cJSON_CreateObject();
  cJSON_AddNumberToObject(one, "step", (double)r->step);
  if (!r->skipped) cJSON_AddNumberToObject(one, "loss", r->loss);
  if (r->evaluated) cJSON_AddNumberToObject(one, "eval_loss", r->eval_loss);
  cJSON_AddNumberToObject(one, "virtual_s", r->seconds);
  cJSON_AddNumberToObject(one, "at_s", now_s);
  if (r->is_timed) {
    cJSON_AddNumberToObject(one, "forward_s", r->phase.forward);
    cJSON_AddNumberToObject(one, "backward_s", r->phase.backward);
    cJSON_AddNumberToObject(one, "reduction_s", r->phase.reduction);
    cJSON_AddNumberToObject(one, "optimizer_s", r->phase.step);
  }
  cJSON_AddItemToArray(s->steps, one);
}

static void print_step(session *s, const tws_step_report *r) {
  if (r->step != 1 && r->step != s->o->run.steps && r->step % s->every != 0 && !r->evaluated) return;
  const int evaluates = s->o->run.eval_data != NULL;
  if (!s->heading)
    tws_out("%6s  %9s  %9s  %9s  %11s  %10s%s\n", "step", "loss", "lr", "grad norm", "virtual ms", "tokens/s",
            evaluates ? "  eval loss" : "");
  s->heading = 1;
  if (r->skipped)
    tws_out("%6" PRId64 "  skipped: overflow at loss scale %.15g", r->step, r->loss_scale);
  else
    tws_out("%6" PRId64 "  %9.5f  %9.3e  %9.4f  %11.3f  %10.0f", r->step, r->loss, r->lr, r->gradient_norm,
            r->seconds * 1e3, r->tokens_per_s);
  if (r->evaluated) tws_out("  %9.5f", r->eval_loss);
  tws_out("\n");
  if (r->is_timed) tws_print_phases(&r->phase);
}

static void show_step(void *user, const tws_step_report *r, double now_s) {
  session *s = user;
  tws_progress_update(&s->progress, (double)r->step);
  if (s->csv && fprintf(s->csv, "%" PRId64 ",%.9g,%.9g,%.9g,%.9g,%.1f,%d,%.9g\n", r->step, r->loss, r->lr,
                        r->gradient_norm, r->seconds, r->tokens_per_s, r->skipped, now_s) < 0)
    s->csv_failed = 1;
  if (s->o->figure && !r->skipped) tws_loss_curve_add(&s->curve, now_s, r->loss);
  if (s->cli->json)
    keep_step(s, r, now_s);
  else
    print_step(s, r);
}

static void show_calls(void *user, const tws_comm_record *record) {
  const session *s = user;
  tws_comm_print_calls(s->cli, record);
}

static void show_failure(void *user, double at_s, const tws_error *failure, int ranks) {
  session *s = user;
  if (s->o->figure) tws_loss_curve_add(&s->curve, at_s, NAN); /* adds a gap to the curve */
  tws_warn(s->cli, "at %.6g virtual seconds: %s", at_s, failure->message);
  tws_warn(s->cli, "continuing with %d ranks", ranks);
}

static tws_code open_csv(session *s, tws_error *err) {
  if (!s->o->csv) return TWS_OK;
  int fd;
  TWS_TRY(tws_growing_file(s->o->csv, &fd, err));
  s->csv = fdopen(fd, "w");
  if (s->csv && fprintf(s->csv, "step,loss,lr,gradient_norm,virtual_s,tokens_per_s,skipped,at_s\n") > 0) return TWS_OK;
  return tws_fail(err, TWS_IO, "is the folder there, and is there room on the disk?", "%s cannot be written",
                  s->o->csv);
}

static tws_code close_csv(session *s, tws_error *err) {
  const int failed = s->csv && (fclose(s->csv) != 0 || s->csv_failed);
  s->csv = NULL;
  return failed ? tws_fail(err, TWS_IO, "is there room on the disk?", "%s could not be written", s->o->csv) : TWS_OK;
}

static tws_emulation_request request_of(session *s, tws_timeline *timeline) {
  const options *o = s->o;
  return (tws_emulation_request){.spec = &o->job,
                                 .data = o->run.data,
                                 .eval_data = o->run.eval_data,
                                 .steps = o->run.steps,
                                 .eval_every = o->run.eval_every,
                                 .eval_steps = o->run.eval_steps,
                                 .save = o->save,
                                 .resume = o->resume,
                                 .tag = o->tag,
                                 .init_from = o->init_from,
                                 .save_every = o->run.save_every,
                                 .keep = o->run.keep,
                                 .synchronous = o->run.synchronous,
                                 .restarts = o->run.restarts,
                                 .deadline_s = o->run.deadline_s,
                                 .start_s = o->run.start_s,
                                 .scenario = s->scenario,
                                 .order_seed = o->order_seed,
                                 .ignore_memory = o->ignore_memory,
                                 .timeline = timeline,
                                 .watching = {.lines_path = o->json_lines, .prometheus_path = o->prometheus},
                                 .logs_communication = s->layout != TWS_COMM_NONE,
                                 .on_calls = show_calls,
                                 .on_step = show_step,
                                 .on_failure = show_failure,
                                 .user = s,
                                 .log = &s->cli->log};
}

static tws_code print_all(session *s, const tws_job *job, const tws_emulation *r, const tws_error *failure,
                          tws_error *err) {
  const int failed = failure->code != TWS_OK;
  if (s->cli->json) {
    cJSON *steps = s->steps;
    s->steps = NULL;
    return tws_emulation_print_json(job, r, steps, failed ? failure : NULL, err);
  }
  if (r->communication) TWS_TRY(tws_comm_print(s->cli, r->communication, s->layout, err));
  if (r->steps > 0) tws_emulation_print(job, r);
  if (failed) tws_out("it ends: %s\n", failure->message);
  if (s->scenario)
    tws_out("as expected%s%s\n", s->scenario->description ? ": " : "",
            s->scenario->description ? s->scenario->description : "");
  return TWS_OK;
}

static tws_code draw_figure(const session *s, const tws_job *job, const tws_emulation *r, tws_error *err) {
  const options *o = s->o;
  char title[256], name[64];
  const char *about = s->scenario ? s->scenario->description : NULL;
  snprintf(name, sizeof name, "%d ranks, ZeRO-%d", job->ranks, job->config->zero.stage);
  snprintf(title, sizeof title, "%s", about ? about : job->cluster.name);
  TWS_TRY(tws_emulation_figure(r, &s->curve, name, &o->compared, title, o->figure, err));
  tws_say(s->cli, "figure: %s", o->figure);
  return TWS_OK;
}

static tws_code run_and_report(session *s, const tws_job *job, tws_emulation_request *request, tws_error *err) {
  const options *o = s->o;
  tws_emulation result;
  const tws_timeline *written = request->timeline;
  tws_code code = tws_emulate(job, request, &result, err);
  const tws_error failure = code != TWS_OK && err ? *err : (tws_error){0};
  if (s->scenario) code = tws_expectations_judge(&s->scenario->expect, &result, code, s->o->save, err);
  if (code == TWS_OK && written) code = tws_emulation_write_trace(&result, written, o->trace, err);
  if (code == TWS_OK) code = close_csv(s, err);
  if (code == TWS_OK && o->figure) code = draw_figure(s, job, &result, err);
  if (code == TWS_OK) code = print_all(s, job, &result, &failure, err);
  if (code == TWS_OK && o->trace)
    tws_say(s->cli, "timeline of the last step written to %s: open it in https://ui.perfetto.dev or chrome://tracing",
            o->trace);
  tws_emulation_free(&result);
  return code;
}

static tws_code emulate_job(session *s, const tws_job *job, tws_error *err) {
  const options *o = s->o;
  tws_timeline *timeline = o->trace ? tws_timeline_create("emulated") : NULL;
  if (o->trace && !timeline) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tws_emulation_request request = request_of(s, timeline);
  if (o->trace_schedule) TWS_TRY(tws_trace_schedule_parse(o->trace_schedule, &request.trace_schedule, err));
  tws_code code = tws_fidelity_parse(o->run.fidelity, &request.fidelity, err);
  if (code == TWS_OK) code = tws_sharing_parse(o->share, &request.sharing, err);
  if (code == TWS_OK) code = tws_sim_load(&request.sim, err);
  if (code == TWS_OK) code = tws_real_load(&request.real, err);
  const tws_plan_request of_rank = tws_job_request(job, 0);
  char plots[512];
  request.watching.plots = tws_plots_path(plots, sizeof plots);
  request.watching.peak_flops = tws_peak_flops(&of_rank, &job->machine);
  if (code == TWS_OK) code = open_csv(s, err);
  if (code == TWS_OK) {
    if (s->cli->json) s->steps = cJSON_CreateArray();
    if (!s->cli->json) tws_job_print(s->cli, job);
    s->progress = tws_cli_progress(s->cli);
    tws_progress_begin(&s->progress, "emulating steps", (double)o->run.steps);
    code = run_and_report(s, job, &request, err);
  }
  tws_timeline_destroy(timeline);
  return code;
}

/* ---- checks ---- */

/* Returns the path of the figure's data file, "x.dat" for "x.svg" (traces/plot.h), which is checked as an output, too.
 * NULL: there is none. */
static const char *figure_data(const char *figure, char *path, size_t size) {
  if (!figure || tws_path_kind_of(figure) == TWS_PATH_STREAM) return NULL;
  const char *dot = strrchr(figure, '.'), *slash = strrchr(figure, '/');
  const int stem = dot && (!slash || dot > slash) ? (int)(dot - figure) : (int)strlen(figure);
  snprintf(path, size, "%.*s.dat", stem, figure);
  return path;
}

static tws_code check_options(const options *o, tws_error *err) {
  char data[4200];
  const tws_output outputs[] = {
      {"--json-lines", o->json_lines, NULL}, {"--prometheus", o->prometheus, NULL},
      {"--trace", o->trace, NULL},           {"--csv", o->csv, NULL},
      {"--figure", o->figure, NULL},         {"--figure", figure_data(o->figure, data, sizeof data), NULL}};
  tws_trace_schedule schedule;
  tws_inputs inputs = tws_inputs_of_job(&o->job);
  TWS_TRY(tws_gzip_check(o->trace, err));
  if (o->trace_schedule && !o->trace)
    return tws_fail(err, TWS_USAGE, "give --trace FILE too", "emulate: --trace-schedule without --trace");
  if (o->trace_schedule) TWS_TRY(tws_trace_schedule_parse(o->trace_schedule, &schedule, err));
  if (!o->run.data)
    return tws_fail(err, TWS_USAGE, "give --data FILE: a text (its bytes are the tokens), or llm.c tokens (.bin)",
                    "emulate: no data was given");
  if (!o->run.eval_data && (o->run.eval_every || o->run.eval_steps))
    return tws_fail(err, TWS_USAGE, "give --eval-data FILE too", "emulate: %s without data to evaluate on",
                    o->run.eval_every ? "--eval-every" : "--eval-steps");
  if (!o->save && !o->scenario && (o->run.save_every || o->run.keep || o->run.restarts))
    return tws_fail(err, TWS_USAGE, "give --save DIR too", "emulate: %s without a folder to save to",
                    o->run.restarts     ? "--restarts"
                    : o->run.save_every ? "--save-every"
                                        : "--keep");
  if (!o->resume && o->tag) return tws_fail(err, TWS_USAGE, "give --resume DIR too", "emulate: --tag without --resume");
  tws_inputs_add(&inputs, o->run.data);
  tws_inputs_add(&inputs, o->run.eval_data);
  tws_inputs_add(&inputs, o->scenario);
  tws_inputs_add(&inputs, o->init_from);
  for (int i = 0; i < o->compared.count; i++) tws_inputs_add(&inputs, o->compared.item[i]);
  if (o->compared.count && !o->figure)
    return tws_fail(err, TWS_USAGE, "give --figure FILE too", "emulate: --compare without --figure");
  const int count = (int)(sizeof outputs / sizeof *outputs), continued = o->resume ? 2 : 0;
  TWS_TRY(tws_outputs_check_continued(outputs, count, continued, &inputs, o->force, err));
  return tws_outputs_check_save(o->save, o->resume, o->force, err);
}

static tws_code take_scenario(options *o, const tws_scenario *s, tws_error *err) {
  if (o->job.model || o->job.config || o->job.cluster || o->run.data)
    return tws_fail(err, TWS_USAGE, "leave out -m, -c, --cluster and --data",
                    "emulate: the scenario specifies the job");
  if (!s->job.model)
    return tws_fail(err, TWS_INVALID, "{\"job\": {\"model\": ...}}", "emulate: in the scenario there is no job");
  const char *fidelity = o->run.fidelity;
  o->job = s->job;
  o->run = s->run;
  if (fidelity) o->run.fidelity = fidelity;
  return TWS_OK;
}

/* Creates a temporary folder, which is removed at exit, for a scenario that saves if no folder is given. */
static tws_code make_folder(options *o, char *path, size_t size, tws_error *err) {
  *path = '\0';
  if (!o->scenario || o->save || !o->run.save_every) return TWS_OK;
  TWS_TRY(tws_temporary_folder(path, size, "scenario", err));
  o->save = path;
  return TWS_OK;
}

static tws_code run_loaded(tws_cli *cli, options *o, const tws_scenario *scenario, tws_error *err) {
  session s = {.cli = cli, .o = o, .scenario = scenario};
  char folder[256];
  tws_job *job;
  s.every = o->every > 0 ? o->every : o->run.steps > 40 ? (o->run.steps + 19) / 20 : 1;
  TWS_TRY(check_options(o, err));
  TWS_TRY(tws_job_load(&o->job, &job, err));
  tws_job_remarks(cli, o->job.model, job);
  tws_data_remark(cli, o->run.data, job->network);
  tws_code code = tws_comm_layout_read(o->comm_log, job->config, &s.layout, err);
  if (code == TWS_OK) code = make_folder(o, folder, sizeof folder, err);
  if (code == TWS_OK) code = emulate_job(&s, job, err);
  tws_temporary_remove(folder);
  if (s.csv) fclose(s.csv);
  cJSON_Delete(s.steps);
  tws_loss_curve_free(&s.curve);
  tws_job_destroy(job);
  return code;
}

tws_code tws_emulate_run(tws_cli *cli, tws_emulate_options *o, tws_error *err) {
  tws_scenario *scenario = NULL;
  if (o->scenario) TWS_TRY(tws_scenario_load(o->scenario, &scenario, err));
  tws_code code = scenario ? take_scenario(o, scenario, err) : TWS_OK;
  if (code == TWS_OK) code = run_loaded(cli, o, scenario, err);
  tws_scenario_destroy(scenario);
  return code;
}

static tws_code run_emulate(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  (void)argc;
  (void)argv;
  return tws_emulate_run(cli, raw, err);
}

static const tws_option table[] = {
    TWS_JOB_OPTIONS(options, job),
    TWS_STRING("scenario", 0, "FILE", options, scenario,
               "file with job, cluster, events and expected results, in place of these options"),
    TWS_TRAINING_OPTIONS(options, run.),
    TWS_INTEGER("steps", 's', "N", options, run.steps, 1, 1000000000,
                "optimizer steps of the whole training, those before a checkpoint included (default 10)"),
    TWS_INTEGER("every", 0, "N", options, every, 1, 1000000000, "print every N-th step"),
    TWS_FLAG("synchronous-saves", 0, options, run.synchronous, "training waits until a checkpoint is written"),
    TWS_NUMBER("deadline", 0, "SECONDS", options, run.deadline_s, 0, 1e9,
               "virtual seconds without progress after which a rank counts as hung (default 1800; 0: never)"),
    TWS_NUMBER("start-time", 0, "SECONDS", options, run.start_s, 0, 1e9, "virtual seconds that a restart takes"),
    TWS_INTEGER("seed-order", 0, "SEED", options, order_seed, 0, 9007199254740992.0,
                "start independent operations in a random order: results must stay the same to the last bit"),
    TWS_STRING("fidelity", 0, "LEVEL", options, run.fidelity,
               "collectives: analytic (default), flow, message or simgrid"),
    TWS_STRING("trace", 0, "FILE", options, trace,
               "all ranks' last step as a Chrome trace, in virtual time (.gz: compressed)"),
    TWS_TRACE_SCHEDULE_OPTION(options),
    TWS_STRING("csv", 0, "FILE", options, csv, "one line a step"),
    TWS_STRING("figure", 0, "FILE", options, figure,
               "losses over virtual time, a breakdown of that time, and events, as .svg or .png (gnuplot)"),
    TWS_LIST("compare", 0, "FILE", options, compared,
             "also draw the losses of another run, from the file of its --csv"),
    TWS_STRING("share", 0, "WHEN", options, share,
               "share storage among ranks with equal data: on, off or auto, if memory is tight (default)"),
    TWS_FORCE_OPTION(options),
    TWS_FLAG("ignore-memory", 0, options, ignore_memory, "run although the virtual devices have too little memory"),
    TWS_OPTIONS_END};

const tws_emulate_options tws_emulate_defaults = {
    .job = TWS_JOB_SPEC_DEFAULTS, .run = {.steps = 10, .deadline_s = 1800.0}, .order_seed = -1};

const tws_verb tws_verb_emulate = {
    .name = "emulate",
    .summary = "trains on a virtual cluster: real losses, simulated time",
    .usage = "(-m MODEL --data FILE [-c FILE] [--cluster NAME[:NODES[xDEVICES]]] | --scenario FILE) [options]",
    .examples =
        "  twinspeed emulate -m config.json --stage 3 --cluster dgx-a100:8 --data text.txt --steps 50\n"
        "  twinspeed emulate -m config.json --pp 4 --accumulation 8 -n 4 --data text.txt --trace step.json\n"
        "  twinspeed emulate --scenario scenarios/faults/dead-node.json\n",
    .notes =
        "Every rank has its own memory and computes on this machine's cores when the simulated clock says so: losses\n"
        "are those of a training with the same ranks and threads, to the last bit, and times those of `simulate`.\n"
        "The model has to be small enough for all ranks to be trained here; checkpoints are written at the pace of\n"
        "the cluster's disks. A scenario's events slow devices, links and disks down, flip bits or let ranks and\n"
        "nodes die; what the job does about it is what `train` does. With expectations the exit code says whether\n"
        "they were met. scenarios/faults has one for each kind of event, docs/emulation.md all keys.\n",
    .options = table,
    .options_bytes = sizeof(options),
    .defaults = &tws_emulate_defaults,
    .run = run_emulate,
};
