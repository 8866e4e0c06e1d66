/* twinspeed calibrate: measures this machine into a hardware profile. The verb starts one measuring run for each number
 * of ranks (the same verb inside the ranks) and makes one profile of what they wrote. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>
#include "base/host_memory.h"
#include "base/json.h"
#include "base/units.h"
#include "cli/calibration.h"
#include "cli/common.h"
#include "launch/launch.h"
#include "cli/modules.h"
#include "cli/outputs.h"
#include "base/system.h"
#include "traces/measurements.h"

enum { MAX_RUNS = 16, MAX_LIST = 32 };

typedef struct options {
  const char *ranks, *out, *part, *model, *micro_batches, *dtype, *device;
  int64_t sequence, threads, cores;
  double seconds, largest;
  int quick, force;
} options;

static int on_gpu(const options *o) {
  return o->device && strcmp(o->device, "cuda") == 0;
}

/* ---- inside a rank ---- */

typedef struct work_list {
  tws_work *items;
  size_t count, capacity;
} work_list;

/* The works of a model's plans: its own shapes are then measured besides the standard ones. */
static tws_code add_plan_works(const options *o, int64_t micro_batch, const char *recompute, work_list *list,
                               tws_error *err) {
  tws_job_options job_options = TWS_JOB_DEFAULTS;
  job_options.model = o->model;
  job_options.micro_batch = micro_batch;
  job_options.sequence = o->sequence;
  job_options.dtype = o->dtype;
  job_options.recompute = recompute;
  job_options.accumulation = 2;
  job_options.ranks = 1;
  if (on_gpu(o)) job_options.cluster = "h200"; /* any single GPU: its figures are not used */
  tws_job job;
  TWS_TRY(tws_job_load(&job_options, &job, err));
  tws_plan *plan = NULL;
  tws_code code = tws_job_plan(&job, 0, &plan, err);
  if (code == TWS_OK && tws_reserve(&list->items, &list->capacity, list->count + plan->work_count, sizeof *list->items))
    code = tws_fail(err, TWS_MEMORY, NULL, "no memory for the model's kernels");
  for (uint32_t i = 0; code == TWS_OK && i < plan->work_count; i++)
    if (plan->works[i].kind == TWS_OP_COMPUTE) list->items[list->count++] = plan->works[i];
  tws_plan_destroy(plan);
  tws_job_release(&job);
  return code;
}

static tws_code model_works(const options *o, work_list *list, tws_error *err) {
  int64_t micro[MAX_LIST];
  int count = 0;
  if (!o->model) return TWS_OK;
  TWS_TRY(tws_parse_list(o->micro_batches ? o->micro_batches : "1", "--micro-batch", 1, 1 << 20, micro, MAX_LIST,
                         &count, err));
  for (int i = 0; i < count; i++) TWS_TRY(add_plan_works(o, micro[i], "none", list, err));
  return TWS_OK;
}

static tws_code measure(tws_cli *cli, const options *o, const work_list *works, tws_error *err) {
  const tws_real_api *api;
  TWS_TRY(tws_real_load(&api, err));
  char *arguments[] = {(char *)(uintptr_t)cli->program, NULL}, **argv = arguments;
  int argc = 1, rank, world;
  TWS_TRY(api->start(&argc, &argv, &rank, &world, err));
  tws_progress progress = tws_cli_progress(cli);
  tws_calibrate_options calibrate = {.out_path = o->part,
                                     .device = o->device,
                                     .quick = o->quick,
                                     .largest_bytes = (uint64_t)o->largest,
                                     .threads = (int)o->threads,
                                     .cores = (int)o->cores,
                                     .budget_s = o->seconds,
                                     .works = works->items,
                                     .work_count = (uint32_t)works->count,
                                     .log = &cli->log,
                                     .progress = rank == 0 ? &progress : NULL};
  tws_code code = api->calibrate(&calibrate, err);
  if (code == TWS_OK || world == 1) api->stop(); /* after an error the others may never come to MPI's end */
  return code;
}

static tws_code run_rank(tws_cli *cli, const options *o, tws_error *err) {
  work_list works = {0};
  tws_code code = model_works(o, &works, err);
  if (code == TWS_OK) code = measure(cli, o, &works, err);
  tws_free(works.items);
  return code;
}

/* ---- the runs ---- */

static tws_code choose_runs(const options *o, int cores, int64_t *runs, int *count, tws_error *err) {
  if (o->ranks) return tws_parse_list(o->ranks, "-n", 1, 4096, runs, MAX_RUNS, count, err);
  const int gpus = on_gpu(o) ? tws_system_gpus(NULL) : 0;
  *count = 0;
  runs[(*count)++] = 1;
  for (int64_t n = 2; n <= gpus && *count < MAX_RUNS; n *= 2) runs[(*count)++] = n;
  if (on_gpu(o)) return TWS_OK;
  for (int64_t n = 2; n < cores && *count < MAX_RUNS - 2; n *= 2) runs[(*count)++] = n;
  if (cores > 1) runs[(*count)++] = cores;
  runs[(*count)++] = 2 * (int64_t)cores; /* more ranks than cores */
  return TWS_OK;
}

static tws_code launch_run(const tws_cli *cli, const options *o, int64_t ranks, int cores, const char *part,
                           tws_error *err) {
  char sequence[32], seconds[32], threads[32], core_count[32], largest[32];
  const char *arguments[32] = {"calibrate", "--part", part};
  int count = 3;
  snprintf(core_count, sizeof core_count, "%d", cores);
  arguments[count++] = "--cores";
  arguments[count++] = core_count;
  if (o->quick) arguments[count++] = "--quick";
  if (cli->quiet) arguments[count++] = "--quiet";
  if (o->device) arguments[count++] = "--device", arguments[count++] = o->device;
  if (o->largest > 0) {
    snprintf(largest, sizeof largest, "%.17g", o->largest);
    arguments[count++] = "--largest";
    arguments[count++] = largest;
  }
  if (o->seconds > 0) {
    snprintf(seconds, sizeof seconds, "%.6g", o->seconds);
    arguments[count++] = "--seconds";
    arguments[count++] = seconds;
  }
  if (o->threads > 0) {
    snprintf(threads, sizeof threads, "%lld", (long long)o->threads);
    arguments[count++] = "--threads";
    arguments[count++] = threads;
  }
  if (o->model) {
    arguments[count++] = "--model";
    arguments[count++] = o->model;
    if (o->micro_batches) arguments[count++] = "--micro-batch", arguments[count++] = o->micro_batches;
    if (o->dtype) arguments[count++] = "--dtype", arguments[count++] = o->dtype;
    if (o->sequence > 0) {
      snprintf(sequence, sizeof sequence, "%lld", (long long)o->sequence);
      arguments[count++] = "--seq";
      arguments[count++] = sequence;
    }
  }
  tws_launch_options launch = {
      .ranks = (int)ranks, .threads = ranks == 1 ? cores : 1, .arguments = arguments, .argument_count = count};
  return tws_launch(&launch, err);
}

/* Seconds of all runs together are the user's; most of it goes to the kernels of one and of all cores. */
static tws_code run_all(const tws_cli *cli, const options *given, const tws_calibration_plan *plan, const char *folder,
                        tws_measurements *results, tws_error *err) {
  options o = *given;
  if (o.seconds > 0) o.seconds /= plan->run_count;
  for (int i = 0; i < plan->run_count; i++) {
    char part[4200];
    snprintf(part, sizeof part, "%s/%lld.json", folder, (long long)plan->runs[i]);
    tws_say(cli, "measuring with %lld rank%s", (long long)plan->runs[i], plan->runs[i] > 1 ? "s" : "");
    tws_code code = launch_run(cli, &o, plan->runs[i], plan->cores, part, err);
    if (code == TWS_OK) code = tws_measurements_read(part, &results[i], err);
    unlink(part);
    TWS_TRY(code);
  }
  return TWS_OK;
}

/* ---- the profile ---- */

static void describe(tws_profile_builder *b, const tws_measurements *results, int count, const tws_system *system,
                     const tws_measured_limits *limits) {
  struct utsname os;
  char date[64] = "", line[512], text[128];
  time_t now = time(NULL);
  struct tm utc;
  if (gmtime_r(&now, &utc)) strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", &utc);
  if (uname(&os) != 0) snprintf(os.release, sizeof os.release, "unknown");
  double slowest = 0, drift = 0;
  for (int i = 0; i < count; i++) {
    slowest = fmax(slowest, results[i].elapsed_s);
    if (results[i].reference_s > 0)
      drift = fmax(drift, (results[i].reference_max_s - results[i].reference_min_s) / results[i].reference_s);
  }
  if (results[0].device[0])
    snprintf(line, sizeof line,
             "measured %s on %s; median spread of a sample %.1f %%, reference product drifted by %.0f %%", date,
             results[0].description, limits->spread * 100, drift * 100);
  else
    snprintf(line, sizeof line,
             "measured %s on %s, %d cores, Linux %.60s, %.200s; median spread of a sample %.1f %%, reference "
             "product drifted by %.0f %%",
             date, system->processor, results[0].cores, os.release, results[0].description, limits->spread * 100,
             drift * 100);
  tws_profile_builder_provenance(b, line);
  tws_profile_builder_detail(b, "cpu", system->processor);
  tws_profile_builder_detail(b, "kernel", os.release);
  tws_profile_builder_detail(b, "libraries", results[0].description);
  tws_profile_builder_detail(b, "date", date);
  for (size_t i = 0; i < results[0].note_count; i++)
    tws_profile_builder_detail(b, results[0].notes[i].key, results[0].notes[i].text);
  for (int i = 0; i < count; i++) {
    char key[48];
    const tws_measurements *m = &results[i];
    snprintf(key, sizeof key, "collectives of %d ranks", m->world);
    if (m->shared_device)
      tws_profile_builder_detail(b, key, "the ranks shared a GPU and talked over sockets: not representative");
    snprintf(key, sizeof key, "run with %d ranks", m->world);
    snprintf(text, sizeof text, "%.1f s; reference product %.3f ms (%.3f to %.3f)", m->elapsed_s, m->reference_s * 1e3,
             m->reference_min_s * 1e3, m->reference_max_s * 1e3);
    tws_profile_builder_detail(b, key, text);
  }
}

tws_code tws_calibration_profile(const char *name, const tws_measurements *results, int count, double *spread,
                                 tws_profile_builder **out, tws_error *err) {
  const int gpu = results[0].device[0] != '\0';
  tws_profile_builder *b =
      tws_profile_builder_create(gpu ? results[0].device : name, gpu ? TWS_BACKEND_CUDA : TWS_BACKEND_HOST);
  if (!b) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the profile");
  tws_measured_limits limits = {.least_bytes = gpu ? 5e8 : 0}; /* beyond the caches of GPUs */
  tws_code code = TWS_OK;
  for (int i = 0; i < count && code == TWS_OK; i++) code = tws_measurements_merge(&results[i], b, &limits, err);
  tws_measured_limits_finish(&limits, b);
  tws_system system;
  tws_system_read(&system);
  tws_host_memory memory = tws_host_memory_read();
  double overhead = 0;
  for (int i = 0; i < count; i++) overhead = fmax(overhead, results[i].overhead_bytes);
  tws_profile_builder_node(b, gpu ? 0 : results[0].cores, gpu ? results[0].device_bytes : (double)memory.total_bytes,
                           overhead);
  describe(b, results, count, &system, &limits);
  if (spread) *spread = limits.spread;
  if (code != TWS_OK) {
    tws_profile_builder_destroy(b);
    return code;
  }
  *out = b;
  return TWS_OK;
}

tws_code tws_calibration_run(const tws_cli *cli, const tws_calibration_plan *plan, tws_measurements *results,
                             tws_error *err) {
  char folder[4096];
  const char *temporary = getenv("TMPDIR");
  snprintf(folder, sizeof folder, "%.4000s/twinspeed-calibrate-XXXXXX", temporary && *temporary ? temporary : "/tmp");
  if (!mkdtemp(folder)) return tws_fail(err, TWS_IO, "set TMPDIR", "%s: %s", folder, strerror(errno));
  options o = {.quick = plan->quick,
               .model = plan->model,
               .micro_batches = plan->micro_batches,
               .dtype = plan->dtype,
               .sequence = plan->sequence,
               .threads = plan->threads,
               .seconds = plan->seconds,
               .device = plan->device,
               .largest = plan->largest};
  tws_code code = run_all(cli, &o, plan, folder, results, err);
  rmdir(folder);
  return code;
}

/* ---- the report ---- */

static double product_rate(const tws_profile *profile, int64_t m, int64_t n, int64_t k, tws_dtype dtype, int threads,
                           int busy) {
  tws_work work = {.code = TWS_KERNEL_LINEAR, .dtype = (uint8_t)dtype, .dtype2 = (uint8_t)dtype, .d = {m, n, k}};
  return tws_work_flops(&work) / tws_kernel_seconds(profile, &work, threads, busy);
}

static tws_code print_device(const tws_cli *cli, const tws_profile *profile, tws_error *err) {
  static const int64_t shapes[][3] = {{4096, 2048, 2048}, {8192, 5120, 1280}, {16384, 8192, 8192}};
  tws_table table;
  tws_table_init(&table, 3);
  tws_table_row(&table, (const char *[]){"TFLOP/s of tokens x out x in", "bf16", "fp32"});
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    const int64_t *s = shapes[i];
    tws_table_row(&table,
                  (const char *[]){tws_cell("%lld x %lld x %lld", (long long)s[0], (long long)s[1], (long long)s[2]),
                                   tws_cell("%.0f", product_rate(profile, s[0], s[1], s[2], TWS_BF16, 1, 1) * 1e-12),
                                   tws_cell("%.0f", product_rate(profile, s[0], s[1], s[2], TWS_F32, 1, 1) * 1e-12)});
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
    tws_table_row(&table,
                  (const char *[]){
                      tws_dtype_name((tws_dtype)dtype),
                      tws_cell("%.0f", product_rate(profile, 512, 768, 768, (tws_dtype)dtype, 1, 1) * 1e-9),
                      tws_cell("%.0f", product_rate(profile, 512, 768, 768, (tws_dtype)dtype, 1, cores) * cores * 1e-9),
                      tws_cell("%.0f", product_rate(profile, 512, 768, 768, (tws_dtype)dtype, cores, 1) * 1e-9)});
  return tws_table_print(cli, &table, err);
}

static tws_code print_report(const tws_cli *cli, const tws_profile *profile, const tws_measurements *results, int count,
                             tws_error *err) {
  tws_out("%s\n\n", tws_profile_provenance(profile));
  tws_table table;
  const int gpu = tws_profile_backend(profile) == TWS_BACKEND_CUDA;
  TWS_TRY(gpu ? print_device(cli, profile, err) : print_host(cli, profile, err));
  char rate[48];
  for (size_t i = 0; gpu && i < results[0].note_count; i++)
    tws_out("%s%s: %s\n", i ? "" : "\n", results[0].notes[i].key, results[0].notes[i].text);
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

static tws_code finish(const tws_cli *cli, const options *o, const tws_measurements *results, int count,
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
  tws_profile_destroy(profile);
  if (code == TWS_OK) tws_say(cli, "wrote %s: use it with --profile %s", o->out, o->out);
  return code;
}

static tws_code run(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  const options *o = raw;
  (void)argc;
  (void)argv;
  if (o->part) return run_rank(cli, o, err);
  if (o->device && !on_gpu(o) && strcmp(o->device, "host") != 0)
    return tws_fail(err, TWS_USAGE, "use host or cuda", "--device: unknown device \"%.40s\"", o->device);
  if (!o->out) return tws_fail(err, TWS_USAGE, "twinspeed calibrate -o host.json", "calibrate: give -o FILE");
  const tws_output output = {"--out", o->out, NULL};
  const tws_inputs inputs = {.count = o->model != NULL, .path = {o->model}};
  TWS_TRY(tws_outputs_check(&output, 1, &inputs, o->force, err));
  tws_calibration_plan plan = {.cores = o->cores > 0 ? (int)o->cores : tws_launch_cores(),
                               .quick = o->quick,
                               .model = o->model,
                               .micro_batches = o->micro_batches,
                               .dtype = o->dtype,
                               .sequence = o->sequence,
                               .threads = o->threads,
                               .seconds = o->seconds,
                               .device = o->device,
                               .largest = o->largest};
  TWS_TRY(choose_runs(o, plan.cores, plan.runs, &plan.run_count, err));
  int within = 0;
  for (int i = 0; i < plan.run_count; i++) within += on_gpu(o) ? plan.runs[i] == 1 : plan.runs[i] <= plan.cores;
  if (!within && on_gpu(o))
    return tws_fail(err, TWS_USAGE, "for example -n 1,2,4", "calibrate: a GPU's kernels are measured by a lone rank");
  if (!within)
    return tws_fail(err, TWS_USAGE, "for example -n 1,2,4",
                    "calibrate: kernels are measured with a core to each rank, and there are %d cores", plan.cores);
  tws_measurements results[MAX_RUNS] = {0};
  tws_code code = tws_calibration_run(cli, &plan, results, err);
  if (code == TWS_OK) code = finish(cli, o, results, plan.run_count, err);
  for (int i = 0; i < MAX_RUNS; i++) tws_measurements_free(&results[i]);
  return code;
}

static const tws_option table[] = {
    TWS_STRING("out", 'o', "FILE", options, out, "profile to write"),
    TWS_STRING("ranks", 'n', "LIST", options, ranks,
               "numbers of ranks to measure (default: 1 to twice the cores, or to all GPUs)"),
    TWS_STRING("device", 0, "DEVICE", options, device, "host (default) or cuda: what is measured"),
    TWS_FLAG("quick", 0, options, quick, "a coarse grid in a few seconds"),
    TWS_NUMBER("seconds", 0, "S", options, seconds, 0.01, 3600, "measure for about so long"),
    TWS_STRING("model", 'm', "MODEL", options, model, "measure this model's own shapes, too"),
    TWS_STRING("micro-batch", 0, "LIST", options, micro_batches, "with --model: its micro batches (default 1)"),
    TWS_INTEGER("seq", 0, "TOKENS", options, sequence, 1, 16777216, "with --model: sequence length"),
    TWS_STRING("dtype", 0, "TYPE", options, dtype, "with --model: fp32, bf16 or fp16"),
    TWS_INTEGER("threads", 0, "N", options, threads, 1, 1024, "threads of a lone rank (default: all cores)"),
    TWS_INTEGER("cores", 0, "N", options, cores, 1, 4096, "cores that the ranks share (default: those usable here)"),
    TWS_NUMBER("largest", 0, "BYTES", options, largest, 4096, 1e12, "leave out kernels with larger operands"),
    TWS_FORCE_OPTION(options),
    TWS_STRING("part", 0, "FILE", options, part, "inside a rank: where this run's measurements go"),
    TWS_OPTIONS_END};

const tws_verb tws_verb_calibrate = {
    .name = "calibrate",
    .summary = "measures this machine into a hardware profile",
    .usage = "-o FILE [options]",
    .examples =
        "  twinspeed calibrate -o host.json\n"
        "  twinspeed calibrate --quick -n 1,2,4 -o host.json\n"
        "  twinspeed calibrate -o host.json -m gpt2 --micro-batch 1,2,4 --seq 256\n"
        "  twinspeed calibrate --device cuda -o gpu.json\n",
    .notes =
        "Every kernel is timed with operands that rotate through more memory than the caches hold, alone and with all\n"
        "cores busy; every collective for each number of ranks, beyond the number of cores too. Repetitions are "
        "spread\n"
        "over the whole run and lower quartiles are kept, because other load only adds. Kernels of shapes that were "
        "not measured are interpolated.\n"
        "On a GPU (--device cuda) kernels are timed on the device, recorded as training records them, and medians are\n"
        "kept; also what starting kernels and copying costs. Several ranks measure NCCL, a GPU to each.\n",
    .options = table,
    .options_bytes = sizeof(options),
    .run = run,
};
