/* Starts the ranks that measure, in one run for each number of ranks, and performs the measurements within a rank. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/json.h"
#include "base/system.h"
#include "base/units.h"
#include "calibration/calibration.h"
#include "calibration/cases.h"
#include "job/job.h"
#include "launch/launch.h"

int tws_calibration_on_gpu(const tws_calibration_request *request) {
  return request->device && strcmp(request->device, "cuda") == 0;
}

void tws_calibration_default_runs(tws_calibration_request *request) {
  const int gpu = tws_calibration_on_gpu(request), gpus = gpu ? tws_system_gpus(NULL) : 0, cores = request->cores;
  int64_t *runs = request->runs;
  int count = 0;
  runs[count++] = 1;
  for (int64_t n = 2; n <= gpus && count < TWS_CALIBRATION_RUNS; n *= 2) runs[count++] = n;
  for (int64_t n = 2; !gpu && n < cores && count < TWS_CALIBRATION_RUNS - 2; n *= 2) runs[count++] = n;
  if (!gpu && cores > 1) runs[count++] = cores;
  if (!gpu) runs[count++] = 2 * (int64_t)cores; /* more ranks than cores */
  request->run_count = count;
}

/* ---- the runs ---- */

enum { ARGUMENTS = 32 };

static tws_code launch_run(const tws_calibration_request *r, int64_t ranks, const char *part, tws_arena *arena,
                           tws_error *err) {
  const char *arguments[ARGUMENTS] = {"calibrate", "--part", part, "--cores", tws_arena_printf(arena, "%d", r->cores)};
  int count = 5, missing = 0;
  if (r->quick) arguments[count++] = "--quick";
  if (r->quiet) arguments[count++] = "--quiet";
  if (r->device) arguments[count++] = tws_arena_printf(arena, "--device=%s", r->device);
  if (r->largest > 0) arguments[count++] = tws_arena_printf(arena, "--largest=%.17g", r->largest);
  if (r->seconds > 0) arguments[count++] = tws_arena_printf(arena, "--seconds=%.6g", r->seconds / r->run_count);
  if (r->threads > 0) arguments[count++] = tws_arena_printf(arena, "--threads=%lld", (long long)r->threads);
  if (r->model) {
    arguments[count++] = tws_arena_printf(arena, "--model=%s", r->model);
    if (r->micro_batches) arguments[count++] = tws_arena_printf(arena, "--micro-batch=%s", r->micro_batches);
    if (r->dtype) arguments[count++] = tws_arena_printf(arena, "--dtype=%s", r->dtype);
    if (r->sequence > 0) arguments[count++] = tws_arena_printf(arena, "--seq=%lld", (long long)r->sequence);
  }
  for (int i = 0; i < count; i++) missing |= !arguments[i];
  if (missing) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  const tws_launch_options launch = {.ranks = (int)ranks,
                                     .threads = ranks == 1 ? r->cores : 1,
                                     .arguments = arguments,
                                     .argument_count = count,
                                     .deadline_s = r->deadline_s,
                                     .log = r->log};
  return tws_launch(&launch, err);
}

double tws_calibration_drift(const tws_measurements *m) {
  return m->reference_s > 0 ? (m->reference_max_s - m->reference_min_s) / m->reference_s : 0;
}

static tws_code combine_times(tws_measurements *times, int count, tws_measurements *out, tws_error *err) {
  const tws_measurements *runs[TWS_CALIBRATION_REPEATS];
  int quietest = 0;
  for (int i = 1; i < count; i++)
    if (tws_calibration_drift(&times[i]) < tws_calibration_drift(&times[quietest])) quietest = i;
  runs[0] = &times[quietest]; /* the first run's spreads are kept */
  for (int i = 0, at = 1; i < count; i++)
    if (i != quietest) runs[at++] = &times[i];
  TWS_TRY(tws_measurements_combine(runs, count, out, err));
  out->reference_s = runs[0]->reference_s;
  out->reference_min_s = runs[0]->reference_min_s;
  out->reference_max_s = runs[0]->reference_max_s;
  return TWS_OK;
}

tws_code tws_calibration_repeat(tws_measure measure, void *user, int most, const tws_log *log, tws_measurements *out,
                                tws_error *err) {
  tws_measurements times[TWS_CALIBRATION_REPEATS] = {0};
  tws_code code = TWS_OK;
  int count = 0;
  *out = (tws_measurements){0};
  for (int quiet = 0; code == TWS_OK && !quiet && count < most && count < TWS_CALIBRATION_REPEATS; count++) {
    code = measure(user, &times[count], err);
    const double drift = tws_calibration_drift(&times[count]);
    quiet = drift <= TWS_PROFILE_QUIET_DRIFT;
    if (code == TWS_OK && !quiet && count + 1 < most)
      tws_log_write(log, TWS_LOG_INFO, "the machine was not quiet (a repeated product drifted by %.0f %%): again",
                    100 * drift);
  }
  if (code == TWS_OK && count == 1) {
    *out = times[0];
    times[0] = (tws_measurements){0};
  } else if (code == TWS_OK) {
    code = combine_times(times, count, out, err);
  }
  for (int i = 0; i < count; i++) tws_measurements_free(&times[i]);
  return code;
}

static tws_code write_profile(const tws_measurements *results, int count, const char *path, tws_error *err) {
  tws_profile_builder *builder;
  TWS_TRY(tws_calibration_profile("this machine", results, count, NULL, &builder, err));
  const tws_code code = tws_profile_builder_write(builder, path, err);
  tws_profile_builder_destroy(builder);
  return code;
}

/* A thread of the launcher that writes a preliminary profile: whenever a rank on a GPU has written new measurements, it
 * builds the profile from them. */
typedef struct keeper {
  const char *part, *out;
  pthread_t thread;
  atomic_int ends;
  struct timespec seen; /* modification time of the file when it was read last */
} keeper;

static void keep_profile(keeper *k) {
  struct stat now;
  tws_measurements m;
  if (stat(k->part, &now) != 0 || memcmp(&now.st_mtim, &k->seen, sizeof k->seen) == 0) return;
  k->seen = now.st_mtim;
  if (tws_measurements_read(k->part, &m, NULL) == TWS_OK && m.kernel_count > 0) write_profile(&m, 1, k->out, NULL);
  tws_measurements_free(&m);
}

static void *keep_profiles(void *user) {
  keeper *k = user;
  const struct timespec pause = {0, 200000000};
  while (!atomic_load(&k->ends)) {
    nanosleep(&pause, NULL);
    keep_profile(k);
  }
  return NULL;
}

/* Starts the thread with all signals blocked: signals that end the ranks are to be handled by the launcher's thread
 * alone. */
static int start_keeping(keeper *k) {
  sigset_t before;
  tws_hold_signals(&before);
  const int started = pthread_create(&k->thread, NULL, keep_profiles, k) == 0;
  tws_release_signals(&before);
  return started;
}

static void stop_keeping(keeper *k) {
  atomic_store(&k->ends, 1);
  pthread_join(k->thread, NULL);
}

typedef struct one_run {
  const tws_calibration_request *request;
  const char *folder;
  int64_t ranks;
  const char *so_far; /* path of the preliminary profile of this run; NULL: none is written */
} one_run;

static tws_code measure_run(void *user, tws_measurements *out, tws_error *err) {
  one_run *run = user;
  char part[4200];
  snprintf(part, sizeof part, "%s/%lld.json", run->folder, (long long)run->ranks);
  tws_log_write(run->request->log, TWS_LOG_INFO, "measuring with %lld rank%s", (long long)run->ranks,
                run->ranks > 1 ? "s" : "");
  keeper keep = {.part = part, .out = run->so_far};
  const int watching = run->so_far && start_keeping(&keep);
  run->so_far = NULL; /* a repeated run must not overwrite it with fewer samples */
  tws_arena *arena = tws_arena_create();
  tws_code code =
      arena ? launch_run(run->request, run->ranks, part, arena, err) : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tws_arena_destroy(arena);
  if (watching) stop_keeping(&keep);
  if (code == TWS_OK) code = tws_measurements_read(part, out, err);
  tws_remove_file(part);
  return code;
}

/* Runs the measurements for each number of ranks. request->seconds is the time for all runs together; most of it is
 * used for kernels on one core and on all cores. */
static tws_code run_all(const tws_calibration_request *request, const char *folder, tws_measurements *results,
                        tws_error *err) {
  for (int i = 0; i < request->run_count; i++) {
    const char *out = tws_calibration_on_gpu(request) ? request->out : NULL;
    one_run run = {request, folder, request->runs[i], i == 0 ? out : NULL};
    TWS_TRY(tws_calibration_repeat(measure_run, &run, request->seconds > 0 ? 1 : TWS_CALIBRATION_REPEATS, request->log,
                                   &results[i], err));
    if (out) TWS_TRY(write_profile(results, i + 1, out, err));
  }
  return TWS_OK;
}

tws_code tws_calibration_run(const tws_calibration_request *request, tws_measurements *results, tws_error *err) {
  char folder[4096];
  TWS_TRY(tws_temporary_folder(folder, sizeof folder, "calibrate", err));
  tws_code code = run_all(request, folder, results, err);
  tws_temporary_remove(folder);
  return code;
}

/* ---- inside a rank ---- */

/* Returns a copy of the kernel invocation without members that do not change its time (process group, segments, loss
 * scale), so that invocations that differ only in these are measured once. */
static tws_work canonical(const tws_work *work) {
  tws_work copy = *work;
  copy.group = 0;
  copy.segments = 0;
  copy.flags &= ~(uint32_t)TWS_SCALED;
  return copy;
}

/* Adds the compute works of a model's plans, so that the model's shapes are measured in addition to the standard
 * ones. */
static tws_code add_plan_works(const tws_calibration_request *r, int64_t micro_batch, tws_case_list *list,
                               tws_error *err) {
  tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
  spec.model = r->model;
  spec.micro_batch = micro_batch;
  spec.sequence = r->sequence;
  spec.dtype = r->dtype;
  spec.recompute = "none";
  spec.accumulation = 2;
  spec.ranks = 1;
  /* Any cluster with GPUs can be named, because its hardware figures are not used. */
  if (tws_calibration_on_gpu(r)) spec.cluster = "h200";
  tws_job *job;
  TWS_TRY(tws_job_load(&spec, &job, err));
  tws_plan *plan = NULL;
  tws_code code = tws_job_plan(job, 0, &plan, err);
  for (uint32_t i = 0; code == TWS_OK && i < plan->work_count; i++) {
    const tws_work work = canonical(&plan->works[i]);
    if (work.kind == TWS_OP_COMPUTE) code = tws_case_add(list, &work, err);
  }
  tws_plan_destroy(plan);
  tws_job_destroy(job);
  return code;
}

static tws_code list_works(const tws_calibration_request *r, tws_case_list *list, tws_error *err) {
  enum { MOST = 32 };
  const tws_backend_kind backend = tws_calibration_on_gpu(r) ? TWS_BACKEND_CUDA : TWS_BACKEND_HOST;
  int64_t micro[MOST];
  int count = 0;
  if (r->model)
    TWS_TRY(tws_parse_list(r->micro_batches ? r->micro_batches : "1", "--micro-batch", 1, 1 << 20, micro, MOST, &count,
                           err));
  const int gpu = backend == TWS_BACKEND_CUDA;
  /* the model's own shapes are measured first */
  for (int i = 0; i < count && gpu; i++) TWS_TRY(add_plan_works(r, micro[i], list, err));
  const size_t asked = list->count;
  TWS_TRY(tws_case_standard(TWS_F32, backend, r->quick, list, err));
  TWS_TRY(tws_case_standard(TWS_BF16, backend, r->quick, list, err));
  for (int i = 0; i < count && !gpu; i++) TWS_TRY(add_plan_works(r, micro[i], list, err));
  return gpu ? tws_case_order(list, asked, err) : TWS_OK;
}

static tws_code measure_works(const tws_calibration_request *r, const tws_real_api *real, const tws_case_list *works,
                              const char *program, const char *path, tws_progress *progress, tws_error *err) {
  char *own[] = {(char *)(uintptr_t)program, NULL}, **argv = own;
  int argc = 1, rank, world;
  TWS_TRY(real->start(&argc, &argv, &rank, &world, err));
  const tws_calibrate_options options = {.out_path = path,
                                         .device = r->device,
                                         .quick = r->quick,
                                         .largest_bytes = (uint64_t)r->largest,
                                         .threads = (int)r->threads,
                                         .cores = r->cores,
                                         .budget_s = r->seconds,
                                         .works = works->items,
                                         .work_count = (uint32_t)works->count,
                                         .activity = r->activity,
                                         .activity_bytes = r->activity_bytes,
                                         .log = r->log,
                                         .progress = rank == 0 ? progress : NULL};
  tws_code code = real->calibrate(&options, err);
  if (code == TWS_OK || world == 1) real->stop(); /* after an error, stop() could wait for ever in MPI_Finalize */
  return code;
}

tws_code tws_calibration_rank(const tws_calibration_request *request, const tws_real_api *real, const char *program,
                              const char *path, tws_progress *progress, tws_error *err) {
  tws_case_list works = {0};
  tws_code code = list_works(request, &works, err);
  if (code == TWS_OK) code = measure_works(request, real, &works, program, path, progress, err);
  tws_free(works.items);
  return code;
}
