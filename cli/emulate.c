/* twinspeed emulate: train for real on a virtual cluster, under the simulator's clock. */
#include <inttypes.h>
#include "base/units.h"
#include "cli/job_options.h"
#include "cli/job_view.h"
#include "cli/outputs.h"
#include "cli/remarks.h"
#include "emulation/emulate.h"
#include "job/modules.h"
#include "job/simulate.h"

typedef struct options {
  tws_job_spec job;
  const char *data, *fidelity, *trace, *csv;
  int64_t steps, every;
  int force, ignore_memory;
} options;

typedef struct session {
  tws_cli *cli;
  const options *o;
  int64_t every;
  int heading;
  tws_progress progress; /* in steps */
  FILE *csv;
  int csv_failed;
  cJSON *steps;
} session;

static void keep_step(session *s, const tws_step_report *r) {
  cJSON *one = cJSON_CreateObject();
  cJSON_AddNumberToObject(one, "step", (double)r->step);
  if (!r->skipped) cJSON_AddNumberToObject(one, "loss", r->loss);
  cJSON_AddNumberToObject(one, "virtual_s", r->seconds);
  cJSON_AddItemToArray(s->steps, one);
}

static void show_step(void *user, const tws_step_report *r) {
  session *s = user;
  tws_progress_update(&s->progress, (double)r->step);
  if (s->csv && fprintf(s->csv, "%" PRId64 ",%.9g,%.9g,%.9g,%.9g,%.1f,%d\n", r->step, r->loss, r->lr, r->gradient_norm,
                        r->seconds, r->tokens_per_s, r->skipped) < 0)
    s->csv_failed = 1;
  if (s->cli->json) {
    keep_step(s, r);
    return;
  }
  if (r->step != 1 && r->step != s->o->steps && r->step % s->every != 0) return;
  if (!s->heading)
    tws_out("%6s  %9s  %9s  %9s  %11s  %10s\n", "step", "loss", "lr", "grad norm", "virtual ms", "tokens/s");
  s->heading = 1;
  if (r->skipped)
    tws_out("%6" PRId64 "  skipped: overflow at loss scale %.15g\n", r->step, r->loss_scale);
  else
    tws_out("%6" PRId64 "  %9.5f  %9.3e  %9.4f  %11.3f  %10.0f\n", r->step, r->loss, r->lr, r->gradient_norm,
            r->seconds * 1e3, r->tokens_per_s);
}

static void print_end(const tws_job *job, const tws_emulation *r) {
  char median[32], virtual_time[32], wall[32], effects[32], bytes[32];
  tws_out("\nloss %.4f -> %.4f in %" PRId64 " steps; a virtual step takes %s (median), all of them %s\n", r->first_loss,
          r->last_loss, r->steps, tws_format_seconds(r->median_step_s, median, sizeof median),
          tws_format_seconds(r->virtual_s, virtual_time, sizeof virtual_time));
  tws_out("it took %s here, %s of it in kernels and copies; %s events\n",
          tws_format_seconds(r->wall_s, wall, sizeof wall), tws_format_seconds(r->effects_s, effects, sizeof effects),
          tws_thousands((int64_t)r->events));
  tws_out(
      "memory of %d rank%s: %s, %s\n", job->ranks, job->ranks > 1 ? "s" : "",
      tws_format_bytes((double)r->allocated_bytes, bytes, sizeof bytes),
      r->predicted_bytes == r->allocated_bytes ? "as predicted, to the byte" : "NOT as predicted: please report it");
}

static tws_code print_json(const tws_job *job, session *s, const tws_emulation *r, tws_error *err) {
  cJSON *root = tws_job_json(job);
  cJSON_AddStringToObject(root, "schema", "twinspeed-emulation-1");
  cJSON_AddNumberToObject(root, "first_loss", r->first_loss);
  cJSON_AddNumberToObject(root, "last_loss", r->last_loss);
  cJSON_AddNumberToObject(root, "skipped", (double)r->skipped);
  cJSON_AddNumberToObject(root, "median_step_s", r->median_step_s);
  cJSON_AddNumberToObject(root, "virtual_s", r->virtual_s);
  cJSON_AddNumberToObject(root, "wall_s", r->wall_s);
  cJSON_AddNumberToObject(root, "effects_s", r->effects_s);
  cJSON_AddNumberToObject(root, "events", (double)r->events);
  cJSON_AddNumberToObject(root, "predicted_bytes", (double)r->predicted_bytes);
  cJSON_AddNumberToObject(root, "allocated_bytes", (double)r->allocated_bytes);
  cJSON_AddItemToObject(root, "steps", s->steps);
  s->steps = NULL;
  return tws_out_json(root, err);
}

static tws_code open_csv(session *s, tws_error *err) {
  if (!s->o->csv) return TWS_OK;
  s->csv = fopen(s->o->csv, "w");
  if (s->csv && fprintf(s->csv, "step,loss,lr,gradient_norm,virtual_s,tokens_per_s,skipped\n") > 0) return TWS_OK;
  return tws_fail(err, TWS_IO, "is the folder there, and is there room on the disk?", "%s cannot be written",
                  s->o->csv);
}

static tws_code close_csv(session *s, tws_error *err) {
  const int failed = s->csv && (fclose(s->csv) != 0 || s->csv_failed);
  s->csv = NULL;
  return failed ? tws_fail(err, TWS_IO, "is there room on the disk?", "%s could not be written", s->o->csv) : TWS_OK;
}

static tws_code emulate_job(session *s, const tws_job *job, tws_error *err) {
  const options *o = s->o;
  tws_emulation result;
  tws_emulation_request request = {.data = o->data,
                                   .steps = o->steps,
                                   .ignore_memory = o->ignore_memory,
                                   .on_step = show_step,
                                   .user = s,
                                   .log = &s->cli->log};
  TWS_TRY(tws_fidelity_parse(o->fidelity, &request.fidelity, err));
  TWS_TRY(tws_sim_load(&request.sim, err));
  TWS_TRY(tws_real_load(&request.real, err));
  TWS_TRY(open_csv(s, err));
  if (s->cli->json) s->steps = cJSON_CreateArray();
  tws_timeline *timeline = o->trace ? tws_timeline_create("emulated") : NULL;
  if (o->trace && !timeline) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  request.timeline = timeline;
  if (!s->cli->json) tws_job_print(s->cli, job);
  s->progress = tws_cli_progress(s->cli);
  tws_progress_begin(&s->progress, "emulating steps", (double)o->steps);
  tws_code code = tws_emulate(job, &request, &result, err);
  const tws_timeline *written = timeline;
  if (code == TWS_OK && o->trace) code = tws_timeline_write_chrome(&written, 1, o->trace, err);
  tws_timeline_destroy(timeline);
  if (code == TWS_OK) code = close_csv(s, err);
  if (code != TWS_OK) return code;
  if (s->cli->json) return print_json(job, s, &result, err);
  print_end(job, &result);
  if (o->trace)
    tws_say(s->cli, "timeline of the last step written to %s: open it in https://ui.perfetto.dev or chrome://tracing",
            o->trace);
  return TWS_OK;
}

static tws_code check_options(const options *o, tws_error *err) {
  const tws_output outputs[] = {{"--trace", o->trace, NULL}, {"--csv", o->csv, NULL}};
  tws_inputs inputs = tws_inputs_of_job(&o->job);
  if (!o->data)
    return tws_fail(err, TWS_USAGE, "give --data FILE: a text (its bytes are the tokens), or llm.c tokens (.bin)",
                    "emulate: no data was given");
  tws_inputs_add(&inputs, o->data);
  return tws_outputs_check(outputs, 2, &inputs, o->force, err);
}

static tws_code run_emulate(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  const options *o = raw;
  session s = {.cli = cli, .o = o, .every = o->every > 0 ? o->every : o->steps > 40 ? (o->steps + 19) / 20 : 1};
  tws_job *job;
  (void)argc;
  (void)argv;
  TWS_TRY(check_options(o, err));
  TWS_TRY(tws_job_load(&o->job, &job, err));
  tws_job_remarks(cli, o->job.model, job);
  tws_data_remark(cli, o->data, job->network);
  const tws_code code = emulate_job(&s, job, err);
  if (s.csv) fclose(s.csv);
  cJSON_Delete(s.steps);
  tws_job_destroy(job);
  return code;
}

static const tws_option table[] = {
    TWS_JOB_OPTIONS(options, job),
    TWS_STRING("data", 'd', "FILE", options, data, "text, or llm.c tokens (.bin)"),
    TWS_INTEGER("steps", 's', "N", options, steps, 1, 1000000000, "optimizer steps (default 10)"),
    TWS_INTEGER("every", 0, "N", options, every, 1, 1000000000, "print every N-th step"),
    TWS_STRING("fidelity", 0, "LEVEL", options, fidelity, "collectives: analytic (default), flow or message"),
    TWS_STRING("trace", 0, "FILE", options, trace, "all ranks' last step as a Chrome trace, in virtual time"),
    TWS_STRING("csv", 0, "FILE", options, csv, "one line a step"),
    TWS_FORCE_OPTION(options),
    TWS_FLAG("ignore-memory", 0, options, ignore_memory, "run although the virtual devices have too little memory"),
    TWS_OPTIONS_END};

static const options defaults = {.job = TWS_JOB_SPEC_DEFAULTS, .steps = 10};

const tws_verb tws_verb_emulate = {
    .name = "emulate",
    .summary = "train for real on a virtual cluster, under the simulator's clock",
    .usage = "-m MODEL --data FILE [-c FILE] [--cluster NAME[:NODES]] [--steps N] [options]",
    .examples =
        "  twinspeed emulate -m config.json --stage 3 --cluster dgx-a100:8 --data text.txt --steps 50\n"
        "  twinspeed emulate -m config.json --pp 4 --accumulation 8 -n 4 --data text.txt --trace step.json\n",
    .notes =
        "Every rank has its own memory and computes on this machine's cores when the simulated clock says so: losses\n"
        "are those of a training with the same ranks and threads, to the last bit, and times those of `simulate`.\n"
        "The model has to be small enough for all ranks to be trained here.\n",
    .options = table,
    .options_bytes = sizeof(options),
    .defaults = &defaults,
    .run = run_emulate,
};
