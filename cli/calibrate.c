/* twinspeed calibrate: measures this machine and writes a hardware profile. The subcommand starts one measuring run for
 * each number of ranks (the same subcommand in each rank) and merges their results into one profile. */
#include <string.h>
#include "base/failure.h"
#include "base/units.h"
#include "calibration/calibration.h"
#include "calibration/disk.h"
#include "cli/calibrate_from.h"
#include "cli/job_options.h"
#include "cli/outputs.h"
#include "cli/remarks.h"
#include "job/modules.h"
#include "launch/launch.h"

typedef struct options {
  const char *ranks, *out, *part, *model, *micro_batches, *dtype, *device, *disk, *into;
  int64_t sequence, threads, cores;
  double seconds, largest, disk_bytes, deadline_s;
  int quick, force;
  tws_calibrate_from from;
} options;

static tws_calibration_request request_of(const tws_cli *cli, const options *o) {
  return (tws_calibration_request){.cores = o->cores > 0 ? (int)o->cores : tws_launch_cores(),
                                   .quick = o->quick,
                                   .model = o->model,
                                   .micro_batches = o->micro_batches,
                                   .dtype = o->dtype,
                                   .sequence = o->sequence,
                                   .threads = o->threads,
                                   .seconds = o->seconds,
                                   .device = o->device,
                                   .largest = o->largest,
                                   .deadline_s = o->deadline_s,
                                   .out = o->out,
                                   .quiet = cli->quiet,
                                   .log = &cli->log};
}

/* Measures in one rank of a measuring run. */
static tws_code run_rank(tws_cli *cli, const options *o, tws_error *err) {
  const tws_real_api *real;
  tws_calibration_request request = request_of(cli, o);
  tws_progress progress = tws_cli_progress(cli);
  request.activity = tws_worker_activity(&request.activity_bytes);
  TWS_TRY(tws_real_load(&real, err));
  return tws_calibration_rank(&request, real, cli->program, o->part, &progress, err);
}

/* ---- the report ---- */

static tws_code print_device(const tws_cli *cli, const tws_profile *profile, tws_error *err) {
  static const int64_t shapes[][3] = {{4096, 2048, 2048}, {8192, 5120, 1280}, {16384, 8192, 8192}};
  tws_table table;
  tws_table_init(&table, 3);
  tws_table_row(&table, (const char *[]){"TFLOP/s of tokens x out x in", "bf16", "fp32"});
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    const int64_t *s = shapes[i];
    tws_table_row(
        &table,
        (const char *[]){tws_cell("%lld x %lld x %lld", (long long)s[0], (long long)s[1], (long long)s[2]),
                         tws_cell("%.0f", tws_profile_product_rate(profile, s[0], s[1], s[2], TWS_BF16, 1, 1) * 1e-12),
                         tws_cell("%.0f", tws_profile_product_rate(profile, s[0], s[1], s[2], TWS_F32, 1, 1) * 1e-12)});
  }
  return tws_table_print(cli, &table, err);
}

static tws_code print_host(const tws_cli *cli, const tws_profile *profile, tws_error *err) {
  tws_table table;
  tws_table_init(&table, 4);
  tws_table_row(&table, (const char *[]){"GFLOP/s of 512 x 768 x 768", "one rank", "all cores, a rank each",
                                         "one rank, all threads"});
  int cores = tws_profile_cores(profile);
  for (int dtype = TWS_F32; dtype <= TWS_BF16; dtype++)
    tws_table_row(
        &table,
        (const char *[]){
            tws_dtype_name((tws_dtype)dtype),
            tws_cell("%.0f", tws_profile_product_rate(profile, 512, 768, 768, (tws_dtype)dtype, 1, 1) * 1e-9),
            tws_cell("%.0f",
                     tws_profile_product_rate(profile, 512, 768, 768, (tws_dtype)dtype, 1, cores) * cores * 1e-9),
            tws_cell("%.0f", tws_profile_product_rate(profile, 512, 768, 768, (tws_dtype)dtype, cores, 1) * 1e-9)});
  return tws_table_print(cli, &table, err);
}

static tws_code print_report(const tws_cli *cli, const tws_profile *profile, const tws_measurements *results, int count,
                             tws_error *err) {
  tws_out_wrapped(2, "%s", tws_profile_provenance(profile));
  tws_out("\n");
  tws_table table;
  const int gpu = tws_profile_backend(profile) == TWS_BACKEND_CUDA;
  TWS_TRY(gpu ? print_device(cli, profile, err) : print_host(cli, profile, err));
  char rate[48];
  if (gpu) tws_out("\n");
  for (size_t i = 0; gpu && i < results[0].note_count; i++)
    tws_out_wrapped(2, "%s: %s", results[0].notes[i].key, results[0].notes[i].text);
  tws_out("\nmemory: %s to one rank\n\n", tws_format_rate(tws_profile_bandwidth(profile), "B/s", rate, sizeof rate));
  tws_table_init(&table, 4);
  tws_table_row(&table, (const char *[]){"collective", "ranks", "smallest", "GB/s of the largest"});
  for (int i = 0; i < count; i++)
    for (size_t j = 0; j < results[i].collective_count; j++) {
      const tws_collective_sample *s = &results[i].collectives[j];
      int last = j + 1 == results[i].collective_count || s[1].collective != s->collective;
      const tws_collective_sample *first = s;
      while (first > results[i].collectives && first[-1].collective == s->collective) first--;
      char latency[32];
      if (last)
        tws_table_row(&table,
                      (const char *[]){tws_collective_name(s->collective), tws_cell("%d", s->ranks),
                                       tws_cell("%s", tws_format_seconds(first->seconds, latency, sizeof latency)),
                                       tws_cell("%.2f", s->bytes / s->seconds * 1e-9)});
    }
  return tws_table_print(cli, &table, err);
}

static tws_code print_json(const tws_profile *profile, const options *o, const tws_measurements *results, int count,
                           double spread, tws_error *err) {
  cJSON *json = cJSON_CreateObject();
  cJSON_AddStringToObject(json, "schema", "twinspeed-calibration-1");
  cJSON_AddStringToObject(json, "profile", o->out);
  cJSON_AddStringToObject(json, "provenance", tws_profile_provenance(profile));
  cJSON_AddNumberToObject(json, "cores", tws_profile_cores(profile));
  if (results[0].device[0]) {
    cJSON_AddStringToObject(json, "device", results[0].device);
    cJSON_AddNumberToObject(json, "device_bytes", results[0].device_bytes);
    cJSON_AddNumberToObject(json, "overhead_bytes", tws_profile_overhead_bytes(profile));
    cJSON *notes = cJSON_AddObjectToObject(json, "notes");
    for (size_t i = 0; i < results[0].note_count; i++)
      cJSON_AddStringToObject(notes, results[0].notes[i].key, results[0].notes[i].text);
  }
  cJSON_AddNumberToObject(json, "median_spread", spread);
  cJSON_AddNumberToObject(json, "drift", tws_profile_drift(profile));
  cJSON_AddBoolToObject(json, "quiet", !tws_profile_is_noisy(profile));
  cJSON_AddNumberToObject(json, "peak_fp32_flops", tws_profile_peak_flops(profile, TWS_F32));
  cJSON_AddNumberToObject(json, "peak_bf16_flops", tws_profile_peak_flops(profile, TWS_BF16));
  cJSON_AddNumberToObject(json, "bandwidth_bytes_per_s", tws_profile_bandwidth(profile));
  cJSON *runs = cJSON_AddArrayToObject(json, "runs");
  for (int i = 0; i < count; i++) {
    cJSON *run = cJSON_CreateObject();
    cJSON_AddNumberToObject(run, "ranks", results[i].world);
    cJSON_AddNumberToObject(run, "seconds", results[i].elapsed_s);
    cJSON_AddNumberToObject(run, "kernels", (double)results[i].kernel_count);
    cJSON_AddNumberToObject(run, "collectives", (double)results[i].collective_count);
    cJSON_AddNumberToObject(run, "reference_s", results[i].reference_s);
    cJSON_AddNumberToObject(run, "reference_min_s", results[i].reference_min_s);
    cJSON_AddNumberToObject(run, "reference_max_s", results[i].reference_max_s);
    cJSON_AddItemToArray(runs, run);
  }
  return tws_out_json(json, err);
}

static tws_code write_profile(const tws_cli *cli, const options *o, const tws_measurements *results, int count,
                              tws_error *err) {
  double spread = 0;
  tws_profile_builder *builder;
  TWS_TRY(tws_calibration_profile("this machine", results, count, &spread, &builder, err));
  tws_code code = tws_profile_builder_write(builder, o->out, err);
  tws_profile_builder_destroy(builder);
  TWS_TRY(code);
  tws_profile *profile;
  TWS_TRY(tws_profile_load(o->out, &profile, err));
  code =
      cli->json ? print_json(profile, o, results, count, spread, err) : print_report(cli, profile, results, count, err);
  tws_noise_remark(cli, profile);
  tws_profile_destroy(profile);
  if (code == TWS_OK) tws_say(cli, "wrote %s: use it with --profile %s", o->out, o->out);
  return code;
}

/* ---- calibration of a disk ---- */

static tws_code print_disk_json(const tws_disk_calibration *c, const options *o, tws_error *err) {
  cJSON *json = cJSON_CreateObject();
  const tws_disk_trial *best = &c->trial[c->best];
  cJSON_AddStringToObject(json, "schema", "twinspeed-disk-1");
  cJSON_AddStringToObject(json, "folder", o->disk);
  cJSON_AddNumberToObject(json, "bytes", (double)c->bytes);
  cJSON_AddBoolToObject(json, "direct", c->direct);
  cJSON_AddItemToObject(json, "aio", tws_aio_json(&best->aio));
  cJSON *disk = cJSON_AddObjectToObject(json, "disk");
  cJSON_AddNumberToObject(disk, "read", best->read);
  cJSON_AddNumberToObject(disk, "write", best->write);
  cJSON *trials = cJSON_AddArrayToObject(json, "trials");
  for (int i = 0; i < c->count; i++) {
    cJSON *trial = tws_aio_json(&c->trial[i].aio);
    cJSON_AddNumberToObject(trial, "read", c->trial[i].read);
    cJSON_AddNumberToObject(trial, "write", c->trial[i].write);
    cJSON_AddItemToArray(trials, trial);
  }
  return tws_out_json(json, err);
}

static tws_code print_disk(const tws_cli *cli, const tws_disk_calibration *c, const options *o, tws_error *err) {
  const tws_disk_trial *best = &c->trial[c->best];
  char bytes[32];
  tws_table table;
  tws_out("%s: %s at a time%s\n\n", o->disk, tws_format_bytes((double)c->bytes, bytes, sizeof bytes),
          c->direct ? ", past the page cache" : "; its file system has no direct I/O: the page cache is in it");
  tws_table_init(&table, 5);
  tws_table_row(&table, (const char *[]){"block", "depth", "threads", "read", "write"});
  for (int i = 0; i < c->count; i++) {
    const tws_disk_trial *t = &c->trial[i];
    tws_table_row(&table,
                  (const char *[]){tws_cell("%lld KiB", (long long)(t->aio.block_size >> 10)),
                                   tws_cell("%lld", (long long)t->aio.queue_depth),
                                   tws_cell("%lld", (long long)t->aio.threads), tws_cell("%.0f MB/s", t->read * 1e-6),
                                   tws_cell("%.0f MB/s%s", t->write * 1e-6, i == c->best ? "  best" : "")});
  }
  TWS_TRY(tws_table_print(cli, &table, err));
  tws_out(
      "\nConfiguration: \"aio\": {\"block_size\": %lld, \"queue_depth\": %lld, \"intra_op_parallelism\": %lld}\n"
      "Cluster file:  \"disk\": {\"read\": %.4g, \"write\": %.4g}\n",
      (long long)best->aio.block_size, (long long)best->aio.queue_depth, (long long)best->aio.threads, best->read,
      best->write);
  return TWS_OK;
}

static tws_code run_disk(tws_cli *cli, const options *o, tws_error *err) {
  static tws_disk_calibration result;
  const tws_real_api *real;
  const tws_output output = {"--out", o->out, NULL};
  const tws_inputs inputs = {.count = 0};
  tws_progress progress = tws_cli_progress(cli);
  TWS_TRY(tws_outputs_check(&output, 1, &inputs, o->force, err));
  TWS_TRY(tws_outputs_check_name("--disk", o->disk, err));
  TWS_TRY(tws_outputs_check_name("--into", o->into, err));
  if (o->into) TWS_TRY(tws_disk_profile_check(o->into, err));
  TWS_TRY(tws_real_load(&real, err));
  const uint64_t bytes = o->disk_bytes > 0 ? (uint64_t)o->disk_bytes : (uint64_t)(o->quick ? 16 : 128) << 20;
  TWS_TRY(tws_calibrate_disk(real, o->disk, bytes, o->quick, &progress, &result, err));
  TWS_TRY(cli->json ? print_disk_json(&result, o, err) : print_disk(cli, &result, o, err));
  if (o->into) {
    TWS_TRY(tws_disk_into_profile(&result.trial[result.best], o->into, err));
    tws_say(cli, "the disk is in %s now: jobs with --profile %s have it, unless a cluster file says otherwise", o->into,
            o->into);
  }
  if (!o->out) return TWS_OK;
  TWS_TRY(tws_aio_write(&result.trial[result.best].aio, o->out, err));
  tws_say(cli, "wrote %s: its \"aio\" section belongs into a configuration", o->out);
  return TWS_OK;
}

/* Converts measurements of other software. The options that --from shares with measuring describe the job that was
 * measured. */
static tws_code run_from(const tws_cli *cli, const options *o, tws_error *err) {
  tws_calibrate_from from = o->from;
  if (o->disk || o->device || o->quick || o->seconds > 0)
    return tws_fail(err, TWS_USAGE, "leave out --disk, --device, --quick and --seconds",
                    "--from reads measurements, and measures nothing");
  from.out = o->out;
  from.force = o->force;
  from.job.model = o->model;
  from.job.dtype = o->dtype;
  from.job.sequence = o->sequence;
  from.job.threads = o->threads;
  if (o->ranks) TWS_TRY(tws_parse_integer(o->ranks, "-n", 1, 65536, &from.job.ranks, err));
  if (o->micro_batches)
    TWS_TRY(tws_parse_integer(o->micro_batches, "--micro-batch", 1, 1048576, &from.job.micro_batch, err));
  return tws_run_calibrate_from(cli, &from, err);
}

static tws_code run_calibrate(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  const options *o = raw;
  (void)argc;
  (void)argv;
  if (o->part) return run_rank(cli, o, err);
  if (o->from.files.count) return run_from(cli, o, err);
  if (o->disk) return run_disk(cli, o, err);
  if (o->into) return tws_fail(err, TWS_USAGE, "add --disk FOLDER", "--into: only a disk is measured into a profile");
  if (o->device && strcmp(o->device, "other") == 0)
    return tws_fail(err, TWS_UNSUPPORTED, "use host or cuda; `convert profile NAME out.json` has published figures",
                    "--device: no engine of this program runs on hardware of backend \"other\"");
  if (o->device && strcmp(o->device, "cuda") != 0 && strcmp(o->device, "host") != 0)
    return tws_fail(err, TWS_USAGE, "use host or cuda", "--device: unknown device \"%.40s\"", o->device);
  if (!o->out) return tws_fail(err, TWS_USAGE, "twinspeed calibrate -o host.json", "calibrate: give -o FILE");
  const tws_output output = {"--out", o->out, NULL};
  const tws_inputs inputs = {.count = o->model != NULL, .path = {o->model}};
  TWS_TRY(tws_outputs_check(&output, 1, &inputs, o->force, err));
  tws_calibration_request request = request_of(cli, o);
  tws_calibration_default_runs(&request);
  if (o->ranks)
    TWS_TRY(tws_parse_list(o->ranks, "-n", 1, 4096, request.runs, TWS_CALIBRATION_RUNS, &request.run_count, err));
  const int gpu = tws_calibration_on_gpu(&request);
  int within = 0;
  for (int i = 0; i < request.run_count; i++) within += gpu ? request.runs[i] == 1 : request.runs[i] <= request.cores;
  if (!within && gpu)
    return tws_fail(err, TWS_USAGE, "for example -n 1,2,4", "calibrate: a GPU's kernels are measured by a lone rank");
  if (!within)
    return tws_fail(err, TWS_USAGE, "for example -n 1,2,4",
                    "calibrate: kernels are measured with a core to each rank, and there are %d cores", request.cores);
  tws_measurements results[TWS_CALIBRATION_RUNS] = {0};
  tws_code code = tws_calibration_run(&request, results, err);
  if (code == TWS_OK) code = write_profile(cli, o, results, request.run_count, err);
  for (int i = 0; i < TWS_CALIBRATION_RUNS; i++) tws_measurements_free(&results[i]);
  return code;
}

static const tws_option table[] = {
    TWS_STRING("out", 'o', "FILE", options, out, "profile to write"),
    TWS_STRING("ranks", 'n', "LIST", options, ranks,
               "numbers of ranks to measure (default: 1 to twice the cores, or to all GPUs)"),
    TWS_STRING("device", 0, "DEVICE", options, device, "host (default) or cuda: what is measured"),
    TWS_FLAG("quick", 0, options, quick, "a coarse grid in a few seconds"),
    TWS_NUMBER("seconds", 0, "S", options, seconds, 0.01, 3600, "approximate duration"),
    TWS_NUMBER("deadline", 0, "SECONDS", options, deadline_s, 0, 1e9,
               "exit with status 124 after this time without a measurement (default 1800; 0: never)"),
    TWS_STRING("model", 'm', "MODEL", options, model, "measure this model's own shapes, too"),
    TWS_STRING("micro-batch", 0, "LIST", options, micro_batches, "with --model: its micro batches (default 1)"),
    TWS_INTEGER("seq", 0, "TOKENS", options, sequence, 1, 16777216, "with --model: sequence length"),
    TWS_STRING("dtype", 0, "TYPE", options, dtype, "with --model: fp32, bf16 or fp16"),
    TWS_INTEGER("threads", 0, "N", options, threads, 1, 1024, "threads of a single rank (default: all cores)"),
    TWS_INTEGER("cores", 0, "N", options, cores, 1, 4096, "cores that the ranks share (default: those usable here)"),
    TWS_BYTES_BETWEEN("largest", 0, "BYTES", options, largest, 4096, 1e12, "leave out kernels with larger operands"),
    TWS_STRING("disk", 0, "FOLDER", options, disk,
               "measure the disk of this folder alone, and choose its \"aio\" section"),
    TWS_STRING("into", 0, "PROFILE", options, into, "with --disk: a profile's file that gets the disk's rates"),
    TWS_BYTES_BETWEEN("disk-bytes", 0, "BYTES", options, disk_bytes, 65536, 1e12,
                      "with --disk: of one transfer (128MiB)"),
    TWS_LIST("from", 0, "FILE", options, from.files,
             "make the profile of measurements: a trace, a step log, nccl-tests' output, nvidia-smi's CSV"),
    TWS_STRING("config", 'c', "FILE", options, from.job.config, "with --from: ds_config.json of the job"),
    TWS_STRING("cluster", 0, "NAME[:NODES[xDEVICES]]", options, from.job.cluster, "with --from: where the job ran"),
    TWS_STRING("profile", 0, "NAME", options, from.job.profile, "with --from: the profile to start from"),
    TWS_INTEGER("steps", 0, "N", options, from.steps, 1, 1000000, "with --from: steps of a trace that marks none"),
    TWS_INTEGER("stage", 0, "0..3", options, from.job.stage, 0, 3, "with --from: ZeRO stage"),
    TWS_INTEGER("accumulation", 0, "N", options, from.job.accumulation, 1, 1048576, "with --from: accumulation steps"),
    TWS_STRING("recompute", 0, "MODE", options, from.job.recompute, "with --from: none, selective or full"),
    TWS_AXIS_OPTIONS(options, from.job),
    TWS_RUNTIME_OPTION(options, from.job),
    TWS_LIST("set", 0, "KEY=VALUE", options, from.job.set, "with --from: set a configuration key"),
    TWS_FORCE_OPTION(options),
    TWS_STRING("part", 0, "FILE", options, part, "inside a rank: where this run's measurements go"),
    TWS_OPTIONS_END};

static const options defaults = {.deadline_s = TWS_FAILURE_DEADLINE_S, .from = {.job = TWS_JOB_SPEC_DEFAULTS}};

const tws_verb tws_verb_calibrate = {
    .name = "calibrate",
    .summary = "measures this machine and writes a hardware profile",
    .usage = "-o FILE [options]",
    .examples =
        "  twinspeed calibrate -o host.json\n"
        "  twinspeed calibrate --quick -n 1,2,4 -o host.json\n"
        "  twinspeed calibrate -o host.json -m gpt2 --micro-batch 1,2,4 --seq 256\n"
        "  twinspeed calibrate --device cuda -o gpu.json\n"
        "  twinspeed calibrate --disk /local_nvme -o aio.json --into host.json\n"
        "  twinspeed calibrate --from trace.json.gz -m config.json --micro-batch 4 --seq 2048 --cluster dgx-a100 -o "
        "mine.json\n"
        "  twinspeed calibrate --from steps.csv --from all_reduce.log -m llama-3-8b --cluster dgx-h100 -o mine.json\n",
    .notes =
        "Every kernel is timed with operands that rotate through more memory than the caches hold, alone and with\n"
        "all cores busy; every collective for each number of ranks, also for more ranks than cores. Repetitions are\n"
        "spread over the whole run and lower quartiles are stored, because other load only adds time. A run in which\n"
        "a reference product drifted by more than 25 % is repeated, at most twice and not with --seconds; if the\n"
        "drift remains, the profile says so, and every verb that uses it prints a warning. Other shapes are\n"
        "interpolated.\n"
        "On a GPU (--device cuda) kernels are timed on the device, in CUDA graphs as in training, and medians are\n"
        "stored, with the costs of launches and copies (also both ways at once, of all ranks together, and with\n"
        "memory of each NUMA node of the host, of which the one near the device counts). The\n"
        "model's kernels and the most expensive ones are first,\n"
        "and -o FILE is written after some seconds and after each pass, so that a run that is stopped leaves a\n"
        "valid profile. With --seconds the first pass takes at most 70 % of them, and kernels after that are left\n"
        "out.\n"
        "A product runs for three seconds without pause, interleaved with sums bound by memory as in training, at\n"
        "the clocks of sustained load: if it is slower than in short measurements, compute-bound kernels of 16-bit\n"
        "types are scaled by the ratio; the profile's provenance has both rates. Several ranks measure NCCL, one GPU\n"
        "each.\n"
        "With --disk swap files are written and read with several block sizes, queue depths and threads; -o FILE is\n"
        "then a configuration with the best \"aio\" section, and the disk section of a cluster file is printed.\n"
        "--into PROFILE adds the rates to a profile, for estimates and simulations of jobs that offload to the\n"
        "disk.\n"
        "--from reads what other software measured (docs/calibration.md): traces of PyTorch's profiler, nsys's SQLite\n"
        "exports, TensorBoard's events, step logs (CSV, JSON lines, Megatron-LM, Hugging Face's Trainer), output of\n"
        "nccl-tests and rccl-tests, and nvidia-smi's CSV. Options of the job say what was run.\n",
    .options = table,
    .options_bytes = sizeof(options),
    .defaults = &defaults,
    .run = run_calibrate,
};
