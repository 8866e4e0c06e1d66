#include "calibration/recorded.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "base/units.h"
#include "job/cluster_name.h"
#include "job/job.h"
#include "models/hardware/nccl_tests.h"

enum { MOST_LOG_BYTES = 16 << 20, UNIFORM_PASSES = 6 };

/* ---- the device ---- */

static int both_digits(char a, char b) {
  return isdigit((unsigned char)a) && isdigit((unsigned char)b);
}

/* Returns 1 if the name contains the word, ignoring case. A number in the word must be a whole number in the name: the
 * name "RTX A2000" does not contain the word "a2". */
static int has_word(const char *name, const char *word, size_t length) {
  for (const char *at = name; *at; at++) {
    size_t i = 0;
    while (i < length && tolower((unsigned char)at[i]) == word[i]) i++;
    const int cut = i == length && ((at > name && both_digits(at[-1], *at)) || both_digits(at[length - 1], at[length]));
    if (i == length && !cut) return 1;
  }
  return 0;
}

const char *tws_profile_of_device(const char *name) {
  static const char *const special[][2] = {{"H100 80GB HBM3", "h100-sxm"}, {"H100 PCIe", "h100-pcie"}};
  const char *best = NULL;
  size_t most = 0;
  for (size_t i = 0; i < sizeof special / sizeof *special; i++)
    if (strstr(name, special[i][0])) return special[i][1];
  for (const char *const *profile = tws_profile_builtin_names(); *profile; profile++) {
    size_t matched = 0;
    const char *word = *profile;
    while (word && *word) {
      const size_t length = strcspn(word, "-");
      matched = has_word(name, word, length) ? matched + length : 0;
      word = matched && word[length] ? word + length + 1 : NULL;
    }
    if (matched <= most || strstr(*profile, "-nccl")) continue;
    most = matched;
    best = *profile;
  }
  return best;
}

/* ---- the files ---- */

typedef struct inputs {
  tws_recording *recordings;
  int count;
  const tws_recorded_request *request;
} inputs;

static int is_trace(const tws_recording *r) {
  return r->format == TWS_RECORDING_KINETO || r->format == TWS_RECORDING_NSYS;
}

static tws_code read_all(inputs *in, tws_recorded_result *out, tws_error *err) {
  const tws_strings *files = in->request->files;
  for (int i = 0; i < files->count; i++) {
    tws_recording *r = &in->recordings[in->count++];
    TWS_TRY(tws_recording_read(files->item[i], r, err));
    out->left_out += r->left_out;
    out->traces += is_trace(r);
    out->tables += r->format == TWS_RECORDING_NCCL_TESTS;
    out->logs += !is_trace(r) && r->step_count > 0;
    if (*r->device) snprintf(out->device, sizeof out->device, "%s", r->device);
  }
  if (out->traces > 1)
    return tws_fail(err, TWS_USAGE, "give one trace at a time, with logs and tables of the same site",
                    "--from: more than one trace");
  if ((out->traces || out->logs) && !in->request->spec->model)
    return tws_fail(err, TWS_USAGE, "add -m MODEL, and the options of the job that was measured",
                    "--from: a trace or a log of steps needs the model that was trained");
  return TWS_OK;
}

/* Chooses the profile that is to be corrected: the one that --profile or --cluster names, or the built-in profile of
 * the recorded device. */
static tws_code choose_base(const tws_job_spec *spec, tws_recorded_result *out, tws_error *err) {
  const char *device = *out->device ? tws_profile_of_device(out->device) : NULL;
  if (spec->profile) {
    snprintf(out->base, sizeof out->base, "%s", spec->profile);
  } else if (spec->cluster) {
    tws_cluster cluster;
    TWS_TRY(tws_cluster_named(spec->cluster, &cluster, err));
    snprintf(out->base, sizeof out->base, "%s", cluster.profile);
  } else if (device) {
    snprintf(out->base, sizeof out->base, "%s", device);
  } else if (*out->device) {
    return tws_fail(err, TWS_USAGE, "add --profile NAME to start from; \"twinspeed convert list profiles\" prints all",
                    "--from: no built-in profile is of \"%.80s\"", out->device);
  } else if (out->traces || out->logs || out->tables) {
    return tws_fail(err, TWS_USAGE, "add --profile NAME, --cluster NAME, or a CSV of nvidia-smi",
                    "--from: no file says which device was measured");
  }
  return TWS_OK;
}

/* ---- traces ---- */

static void note_unknown(const tws_recorded_kernel *k, double seconds, tws_recorded_result *out) {
  int at = out->unknown_count;
  while (at > 0 && out->unknown[at - 1].seconds < seconds) at--;
  if (at == TWS_RECORDED_UNKNOWN) return;
  const int last = out->unknown_count < TWS_RECORDED_UNKNOWN ? out->unknown_count++ : TWS_RECORDED_UNKNOWN - 1;
  for (int i = last; i > at; i--) out->unknown[i] = out->unknown[i - 1];
  snprintf(out->unknown[at].name, sizeof out->unknown[at].name, "%.95s", k->name);
  out->unknown[at].seconds = seconds;
}

static tws_code sum_up(const tws_recording *r, int64_t asked, const char *path,
                       double collective_s[TWS_COLLECTIVE_COUNT + 1], tws_recorded_result *out, tws_error *err) {
  const double steps = asked > 0 ? (double)asked : (double)r->step_count;
  if (!(steps > 0))
    return tws_fail(err, TWS_USAGE,
                    "add --steps N; or mark steps: profiler.step() in PyTorch, nvtx.range_push(\"step\") for nsys",
                    "%s: the trace does not say how many steps it has", path);
  for (size_t i = 0; i < r->kernel_count; i++) {
    const tws_recorded_kernel *k = &r->kernels[i];
    const double seconds = k->seconds / steps / r->devices;
    const tws_part part = tws_part_of_recorded(k);
    out->kernel_s += seconds;
    if (part == TWS_PART_COUNT) {
      out->unattributed_s += seconds;
      note_unknown(k, seconds, out);
      continue;
    }
    out->part[part].calls += (double)k->calls / steps / r->devices;
    out->part[part].measured_s += seconds;
    if (part == TWS_PART_COMMUNICATION) collective_s[tws_collective_of_recorded(k->name)] += seconds;
  }
  out->kernels_on_device = r->on_device;
  out->measured_s = r->step_count ? tws_recording_step_s(r) : out->kernel_s;
  return TWS_OK;
}

/* Kinds of modules that share one correction factor. Other software divides memory-bound work into kernels differently,
 * so all memory-bound kinds form one group. */
typedef enum group { PRODUCTS, ATTENTION, OPTIMIZER, OTHERS, GROUPS } group;

static group group_of(tws_part part) {
  return part == TWS_PART_LINEAR      ? PRODUCTS
         : part == TWS_PART_ATTENTION ? ATTENTION
         : part == TWS_PART_OPTIMIZER ? OPTIMIZER
                                      : OTHERS;
}

static double within(double factor) {
  return fmin(fmax(factor, 1e-3), 1e3);
}

static void correct_kernels(const tws_path_result *path, const double collective_s[TWS_COLLECTIVE_COUNT + 1],
                            tws_recorded_result *out, tws_profile_correction *c) {
  double measured[GROUPS] = {0}, predicted[GROUPS] = {0};
  for (int k = 0; k < TWS_KERNEL_COUNT; k++) {
    const tws_part part = tws_part_of_kernel((tws_kernel)k);
    out->part[part].predicted_s += path->kernel_s[k];
    predicted[group_of(part)] += path->kernel_s[k];
  }
  for (int p = 0; p < TWS_PART_COMMUNICATION; p++) measured[group_of((tws_part)p)] += out->part[p].measured_s;
  measured[OTHERS] += out->unattributed_s;
  for (int g = 0; g < OTHERS; g++)
    if (!(predicted[g] > 0)) measured[OTHERS] += measured[g]; /* the plan does this work in kernels of other groups */
  for (int k = 0; k < TWS_KERNEL_COUNT; k++) {
    const group g = group_of(tws_part_of_kernel((tws_kernel)k));
    if (measured[g] > 0 && predicted[g] > 0) c->kernel[k] = within(measured[g] / predicted[g]);
  }
  for (int i = 0; i < TWS_COLLECTIVE_COUNT; i++) {
    out->part[TWS_PART_COMMUNICATION].predicted_s += path->collective_s[i];
    if (collective_s[i] > 0 && path->collective_s[i] > 0)
      c->collective[i] = within(collective_s[i] / path->collective_s[i]);
  }
}

static void multiply(tws_profile_correction *c, double factor) {
  for (int k = 0; k < TWS_KERNEL_COUNT; k++) c->kernel[k] = within((c->kernel[k] > 0 ? c->kernel[k] : 1) * factor);
  for (int i = 0; i < TWS_COLLECTIVE_COUNT; i++)
    c->collective[i] = within((c->collective[i] > 0 ? c->collective[i] : 1) * factor);
}

/* Estimates the step with the correction factors, and scales all factors by one number until the estimated step time
 * equals the measured one. */
static tws_code fit_step(tws_job *job, tws_profile_correction *c, tws_recorded_result *out, tws_error *err) {
  tws_estimate estimate;
  for (int i = 0; i < UNIFORM_PASSES; i++) {
    tws_job_correct_profile(job, c);
    TWS_TRY(tws_job_estimate(job, &estimate, NULL, err));
    out->after_s = estimate.step_s;
    const double off = out->measured_s / estimate.step_s;
    if (!(out->measured_s > 0) || fabs(off - 1) < 1e-3) break;
    multiply(c, off);
    out->uniform *= off;
  }
  for (int i = 0; i < TWS_COLLECTIVE_COUNT; i++)
    out->collective_factor[i] = c->collective[i] > 0 ? c->collective[i] / out->uniform : 1;
  if (!(out->measured_s > 0) || fabs(out->after_s / out->measured_s - 1) < 0.03) return TWS_OK;
  return tws_fail(
      err, TWS_INVALID,
      "check that model, batch, sequence length, runtime and cluster are those of the run, and give --steps "
      "where marks are of something else",
      "the trace's step of %.4g s is none of this job, which takes %.4g s with %s and %.4g s at the least or "
      "most that factors from 0.001 to 1000 allow",
      out->measured_s, out->before_s, out->base, out->after_s);
}

static tws_code use_trace(const inputs *in, int index, tws_job *job, tws_recorded_result *out, tws_error *err) {
  const tws_recording *r = &in->recordings[index];
  double collective_s[TWS_COLLECTIVE_COUNT + 1] = {0};
  tws_profile_correction correction = {.message = 0};
  tws_estimate estimate;
  TWS_TRY(sum_up(r, in->request->steps, in->request->files->item[index], collective_s, out, err));
  for (int i = 0; i < in->count; i++) /* a log of the same run has the step time without the profiler's overhead */
    if (!is_trace(&in->recordings[i]) && in->recordings[i].step_count)
      out->measured_s = tws_recording_step_s(&in->recordings[i]);
  TWS_TRY(tws_job_estimate(job, &estimate, NULL, err));
  out->before_s = estimate.step_s;
  const double count = in->request->steps > 0 ? (double)in->request->steps : (double)r->step_count;
  TWS_TRY(tws_products_by_size(r, count, job, out->product, &out->product_count, err));
  correct_kernels(&estimate.path, collective_s, out, &correction);
  return fit_step(job, &correction, out, err);
}

/* ---- step logs ---- */

/* Adds measured steps, in the form of --measured: the median of all rows with the same sequence length and micro-batch
 * size. */
static tws_code add_steps(const tws_recording *r, const tws_job_spec *base, tws_timed_job *steps, int *count,
                          tws_error *err) {
  for (size_t i = 0; i < r->step_count; i++) {
    const tws_recorded_step *first = &r->steps[i];
    tws_recording same = {0};
    tws_code code = TWS_OK;
    int seen = 0;
    for (size_t j = 0; j < i && !seen; j++)
      seen = r->steps[j].sequence == first->sequence && r->steps[j].micro_batch == first->micro_batch;
    if (seen) continue;
    for (size_t j = i; j < r->step_count && code == TWS_OK; j++)
      if (r->steps[j].sequence == first->sequence && r->steps[j].micro_batch == first->micro_batch)
        code = tws_recording_add_step(&same, r->steps[j].seconds, 0, 0, err);
    const double seconds = tws_recording_step_s(&same);
    tws_recording_free(&same);
    TWS_TRY(code);
    if (*count == TWS_MEASURED_STEPS)
      return tws_fail(err, TWS_INVALID, "keep the rows of fewer configurations",
                      "--from: logs have more than %d pairs of sequence length and micro batch", TWS_MEASURED_STEPS);
    tws_job_spec spec = *base;
    if (first->sequence) spec.sequence = first->sequence;
    if (first->micro_batch) spec.micro_batch = first->micro_batch;
    TWS_TRY(tws_job_load(&spec, &steps[*count].job, err));
    steps[(*count)++].seconds = seconds;
  }
  return TWS_OK;
}

static tws_code use_logs(const inputs *in, const tws_job_spec *spec, tws_job *job, tws_recorded_result *out,
                         tws_error *err) {
  static const double unknown[TWS_SCALE_COUNT] = {0};
  tws_timed_job steps[TWS_MEASURED_STEPS] = {{NULL, 0}};
  int count = 0;
  tws_code code = TWS_OK;
  for (int i = 0; i < in->count && code == TWS_OK; i++) code = add_steps(&in->recordings[i], spec, steps, &count, err);
  if (code == TWS_OK) code = tws_measured_fit(steps, count, unknown, &out->rescaling, err);
  for (int i = 0; i < count; i++) tws_job_destroy(steps[i].job);
  TWS_TRY(code);
  tws_job_rescale_profile(job, out->rescaling.factor);
  out->measured_s = out->rescaling.measured_s;
  out->before_s = out->rescaling.before_s;
  out->after_s = out->rescaling.after_s;
  return TWS_OK;
}

/* ---- the profile ---- */

static void set_text(cJSON *object, const char *key, const char *text) {
  cJSON_DeleteItemFromObjectCaseSensitive(object, key);
  cJSON_AddStringToObject(object, key, text);
}

static void describe(const inputs *in, const char *old, tws_recorded_result *out) {
  char line[1024], date[32] = "", step[64] = "", seconds[32], key[96], text[160];
  const time_t now = time(NULL);
  struct tm utc;
  if (gmtime_r(&now, &utc)) strftime(date, sizeof date, "%Y-%m-%d", &utc);
  if (out->measured_s > 0)
    snprintf(step, sizeof step, ", step %s", tws_format_seconds(out->measured_s, seconds, sizeof seconds));
  snprintf(line, sizeof line, "from %d file%s of measurements on %s%s; started from %.100s: %.700s", in->count,
           in->count > 1 ? "s" : "", date, step, out->base, old);
  set_text(out->profile, "provenance", line);
  cJSON *details = cJSON_GetObjectItemCaseSensitive(out->profile, "details");
  if (!details) details = cJSON_AddObjectToObject(out->profile, "details");
  for (int i = 0; i < in->count; i++) {
    const tws_recording *r = &in->recordings[i];
    snprintf(key, sizeof key, "measurement %d", i + 1);
    snprintf(text, sizeof text, "%s: %s, %zu steps, %zu kernels", in->request->files->item[i],
             tws_recording_format_name((int)r->format), r->step_count, r->kernel_count);
    set_text(details, key, text);
    if (r->clock_mhz > 0) {
      snprintf(text, sizeof text, "%.0f MHz, the median", r->clock_mhz);
      set_text(details, "clock of multiprocessors", text);
    }
    if (r->format == TWS_RECORDING_SMI && r->device_bytes > 0) { /* CUDA reports 0.99 of nvidia-smi's total */
      cJSON_DeleteItemFromObjectCaseSensitive(out->profile, "memory_bytes");
      cJSON_AddNumberToObject(out->profile, "memory_bytes", floor(0.99 * r->device_bytes));
    }
  }
  if (*out->device) set_text(details, "device", out->device);
}

static tws_code add_tables(const inputs *in, tws_recorded_result *out, tws_error *err) {
  for (int i = 0; i < in->count; i++) {
    const char *path = in->request->files->item[i];
    tws_nccl_log log;
    char *text;
    size_t length;
    if (in->recordings[i].format != TWS_RECORDING_NCCL_TESTS) continue;
    TWS_TRY(tws_read_regular(path, MOST_LOG_BYTES, &text, &length, err));
    const tws_code code = tws_nccl_tests_read(text, path, &log, err);
    tws_free(text);
    TWS_TRY(code);
    tws_nccl_tests_add(&log, "nccl-tests", path, out->profile);
  }
  return TWS_OK;
}

static int by_bytes(const void *left, const void *right) {
  const double *a = left, *b = right;
  return a[0] < b[0] ? -1 : a[0] > b[0];
}

/* Adds tables of collectives to the profile, from the collectives whose sizes the trace records, for groups within one
 * node. */
static tws_code add_sizes(const tws_recording *r, const char *path, int per_node, tws_recorded_result *out,
                          tws_error *err) {
  for (size_t i = 0; i < r->collective_count; i++) {
    const int kind = tws_collective_of_recorded(r->collectives[i].name), ranks = r->collectives[i].ranks;
    tws_nccl_log *log;
    int first = kind < TWS_COLLECTIVE_COUNT && ranks <= per_node;
    for (size_t j = 0; j < i && first; j++)
      first = r->collectives[j].ranks != ranks || tws_collective_of_recorded(r->collectives[j].name) != kind;
    if (!first) continue;
    log = tws_calloc(1, sizeof *log);
    if (!log) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for collectives");
    log->collective = (tws_collective)kind;
    log->ranks = ranks;
    for (size_t j = i; j < r->collective_count && log->count < TWS_NCCL_TESTS_ROWS; j++) {
      const tws_recorded_collective *c = &r->collectives[j];
      if (c->ranks != ranks || tws_collective_of_recorded(c->name) != kind) continue;
      log->samples[log->count][0] = c->bytes;
      log->samples[log->count++][1] = c->seconds / (double)c->calls / out->collective_factor[kind];
    }
    qsort(log->samples, (size_t)log->count, sizeof *log->samples, by_bytes);
    tws_nccl_tests_add(log, "a trace", path, out->profile);
    out->sizes += log->count;
    tws_free(log);
  }
  return TWS_OK;
}

/* Creates the JSON object of the new profile's file, with its corrections and its tables of collectives. */
static tws_code make_file(const inputs *in, const tws_profile *profile, int per_node, tws_recorded_result *out,
                          tws_error *err) {
  char old[512];
  TWS_TRY(tws_profile_corrected_json(out->base, profile, 0, &out->profile, err));
  snprintf(old, sizeof old, "%.500s", tws_profile_provenance(profile));
  cJSON *corrections = cJSON_GetObjectItemCaseSensitive(out->profile, "corrections");
  cJSON *kernels = cJSON_GetObjectItemCaseSensitive(corrections, "kernels");
  if (corrections && !cJSON_GetArraySize(kernels)) cJSON_DeleteItemFromObjectCaseSensitive(out->profile, "corrections");
  describe(in, old, out);
  for (int i = 0; i < in->count; i++)
    TWS_TRY(add_sizes(&in->recordings[i], in->request->files->item[i], per_node, out, err));
  return add_tables(in, out, err);
}

static tws_code make_profile(const inputs *in, tws_recorded_result *out, tws_error *err) {
  tws_job_spec spec = *in->request->spec;
  TWS_TRY(choose_base(&spec, out, err));
  spec.profile = out->base;
  if (!out->traces && !out->logs) {
    tws_profile *profile;
    TWS_TRY(tws_profile_load(out->base, &profile, err));
    const tws_code code = make_file(in, profile, 0, out, err);
    tws_profile_destroy(profile);
    return code;
  }
  tws_job *job;
  int trace = 0;
  while (trace < in->count && !is_trace(&in->recordings[trace])) trace++;
  TWS_TRY(tws_job_load(&spec, &job, err));
  tws_code code = out->traces ? use_trace(in, trace, job, out, err) : use_logs(in, &spec, job, out, err);
  if (code == TWS_OK) code = make_file(in, job->profile, job->cluster.devices_per_node, out, err);
  tws_job_destroy(job);
  return code;
}

tws_code tws_recorded_profile(const tws_recorded_request *request, tws_recorded_result *out, tws_error *err) {
  inputs in = {.request = request};
  *out = (tws_recorded_result){.uniform = 1};
  for (int i = 0; i < TWS_COLLECTIVE_COUNT; i++) out->collective_factor[i] = 1;
  in.recordings = tws_calloc((size_t)request->files->count + 1, sizeof *in.recordings);
  if (!in.recordings) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for recordings");
  tws_code code = read_all(&in, out, err);
  if (code == TWS_OK) code = make_profile(&in, out, err);
  for (int i = 0; i < in.count; i++) tws_recording_free(&in.recordings[i]);
  tws_free(in.recordings);
  return code;
}
