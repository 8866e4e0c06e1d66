#include "job/measured.h"

#include <gsl/gsl_linalg.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/number.h"
#include "base/units.h"
#include "config/boxes.h"
#include "job/job.h"

#define TIME_DEVIATION 0.02 /* relative standard deviation of the time of a measured step */
#define LARGEST_LOG 3.0     /* largest logarithm of a factor, which is 20 */
/* GeForce cards reach up to this share of their published peaks, because their clocks are higher */
#define RATE_SLACK 1.1
enum { FITS = 8, COPIED_BYTES = 1 << 30 };

/* Deviations of sites from a profile, as logarithms; a site is slow or fast in all three together. Rates of products
 * are fitted by generation and year and vary least, links vary most. Of 20 runs on eight B200
 * (tests/golden/measured_b200.json) each in turn as the one measurement predicts the others within 4.9, 2.3 and 1.5 %
 * in three groups (without it 5.2, 10.3 and 2.9); the values were chosen on these runs. */
#define CORRELATION 0.7
static const double usual[TWS_SCALE_COUNT] = {
    [TWS_SCALE_PRODUCTS] = 0.08, [TWS_SCALE_MEMORY] = 0.15, [TWS_SCALE_LINKS] = 1.0};

/* ---- bounds ---- */

static double product_share(const tws_job *job) {
  const tws_dtype dtype = (tws_dtype)job->config->dtype;
  return tws_profile_product_rate(job->profile, 8192, 8192, 8192, dtype, 1, 1) /
         tws_profile_peak_flops(job->profile, dtype);
}

/* Writes the least logarithms of the factors: those at which products reach the peak, memory its bandwidth, and links
 * their nominal rates. The round figures of a host's profile bound nothing. */
static void find_bounds(const tws_job *job, double least[TWS_SCALE_COUNT]) {
  const double reached = tws_fabric_of(job->cluster.intra_fabric)->reached;
  for (int i = 0; i < TWS_SCALE_COUNT; i++) least[i] = -LARGEST_LOG;
  if (job->backend == TWS_BACKEND_HOST) return;
  least[TWS_SCALE_PRODUCTS] = fmin(0, log(product_share(job) / RATE_SLACK));
  least[TWS_SCALE_MEMORY] = fmin(0, log(tws_profile_bandwidth_share(job->profile)));
  least[TWS_SCALE_LINKS] = fmin(0, log(reached > 0 ? reached : 1));
}

/* ---- the fit ---- */

static tws_code predict(const tws_timed_job *steps, int count, const double x[TWS_SCALE_COUNT], double *log_s,
                        tws_error *err) {
  double factor[TWS_SCALE_COUNT];
  for (int i = 0; i < TWS_SCALE_COUNT; i++) factor[i] = exp(x[i]);
  for (int s = 0; s < count; s++) {
    tws_estimate estimate;
    tws_job_rescale_profile(steps[s].job, factor);
    TWS_TRY(tws_job_estimate(steps[s].job, &estimate, NULL, err));
    if (!(estimate.step_s > 0)) return tws_fail(err, TWS_INVALID, NULL, "--measured: the step takes no time");
    log_s[s] = log(estimate.step_s);
  }
  return TWS_OK;
}

/* Returns an element of the inverse of the covariance of the logarithms, u_i u_j (c + (1 - c) [i = j]). */
static double precision(int i, int j) {
  const double c = CORRELATION;
  const double shared = c / ((1 - c) * (1 + (TWS_SCALE_COUNT - 1) * c));
  return ((i == j ? 1 / (1 - c) : 0) - shared) / (usual[i] * usual[j]);
}

/* Solves (J'J / s^2 + P) y = J' r / s^2 over the factors that are not fixed, where P is the precision matrix of the
 * factors; y holds the fixed factors on entry. */
static void solve(const double jacobian[][TWS_SCALE_COUNT], const double *aim, int count,
                  const int fixed[TWS_SCALE_COUNT], double y[TWS_SCALE_COUNT]) {
  double matrix[TWS_SCALE_COUNT * TWS_SCALE_COUNT], right[TWS_SCALE_COUNT];
  const double weight = 1 / (TIME_DEVIATION * TIME_DEVIATION);
  for (int i = 0; i < TWS_SCALE_COUNT; i++) {
    right[i] = fixed[i] ? y[i] : 0;
    for (int j = 0; j < TWS_SCALE_COUNT; j++) {
      double sum = fixed[i] || fixed[j] ? i == j : precision(i, j);
      if (!fixed[i] && fixed[j]) right[i] -= precision(i, j) * y[j];
      for (int s = 0; s < count && !fixed[i] && !fixed[j]; s++) sum += weight * jacobian[s][i] * jacobian[s][j];
      matrix[i * TWS_SCALE_COUNT + j] = sum;
    }
    for (int s = 0; s < count && !fixed[i]; s++) {
      double rest = aim[s];
      for (int j = 0; j < TWS_SCALE_COUNT; j++) rest -= fixed[j] ? jacobian[s][j] * y[j] : 0;
      right[i] += weight * jacobian[s][i] * rest;
    }
  }
  gsl_matrix_view a = gsl_matrix_view_array(matrix, TWS_SCALE_COUNT, TWS_SCALE_COUNT);
  gsl_vector_view b = gsl_vector_view_array(right, TWS_SCALE_COUNT), x = gsl_vector_view_array(y, TWS_SCALE_COUNT);
  gsl_linalg_HH_solve(&a.matrix, &b.vector, &x.vector);
}

/* Makes one Gauss-Newton step within the bounds: factors that would leave the bounds are fixed at them, and the others
 * are solved again. */
static tws_code improve(const tws_timed_job *steps, int count, const double known[TWS_SCALE_COUNT],
                        const double least[TWS_SCALE_COUNT], double x[TWS_SCALE_COUNT], int bounded[TWS_SCALE_COUNT],
                        tws_error *err) {
  double now[TWS_MEASURED_STEPS], moved[TWS_MEASURED_STEPS], aim[TWS_MEASURED_STEPS], y[TWS_SCALE_COUNT];
  double jacobian[TWS_MEASURED_STEPS][TWS_SCALE_COUNT];
  int fixed[TWS_SCALE_COUNT];
  const double step = 0.02;
  TWS_TRY(predict(steps, count, x, now, err));
  for (int i = 0; i < TWS_SCALE_COUNT; i++) {
    fixed[i] = known[i] > 0;
    bounded[i] = 0;
    x[i] += step;
    TWS_TRY(predict(steps, count, x, moved, err));
    x[i] -= step;
    for (int s = 0; s < count; s++) jacobian[s][i] = (moved[s] - now[s]) / step;
  }
  for (int s = 0; s < count; s++) {
    aim[s] = log(steps[s].seconds) - now[s];
    for (int i = 0; i < TWS_SCALE_COUNT; i++) aim[s] += jacobian[s][i] * x[i];
  }
  memcpy(y, x, sizeof y);
  for (int pass = 0; pass < TWS_SCALE_COUNT; pass++) {
    int left = 0;
    solve(jacobian, aim, count, fixed, y);
    for (int i = 0; i < TWS_SCALE_COUNT; i++) {
      if (fixed[i] || (y[i] >= least[i] && y[i] <= LARGEST_LOG)) continue;
      bounded[i] = y[i] < least[i] ? 1 : -1;
      y[i] = y[i] < least[i] ? least[i] : LARGEST_LOG;
      fixed[i] = left = 1;
    }
    if (!left) break;
  }
  memcpy(x, y, sizeof y);
  return TWS_OK;
}

static tws_code check_fit(const tws_timed_job *steps, int count, const double *log_s, tws_error *err) {
  for (int s = 0; s < count; s++) {
    const double off = log_s[s] - log(steps[s].seconds);
    if (fabs(off) <= 0.1) continue;
    if (count > 1 && fabs(off) <= 0.5) continue; /* several steps may contradict each other */
    return tws_fail(
        err, TWS_INVALID,
        "check that the options, the cluster and the runtime are those of the measured step, and that it is "
        "of one step in seconds",
        off > 0 ? "a measured step of %.4g s is faster than physical: at the peaks of %s it takes %.4g s"
                : "a measured step of %.4g s is no measurement of %s, which takes %.4g s when it is 20 "
                  "times slower",
        steps[s].seconds, tws_profile_name(steps[s].job->profile), exp(log_s[s]));
  }
  return TWS_OK;
}

tws_code tws_measured_fit(const tws_timed_job *steps, int count, const double known[TWS_SCALE_COUNT],
                          tws_rescaling *out, tws_error *err) {
  double x[TWS_SCALE_COUNT], least[TWS_SCALE_COUNT], log_s[TWS_MEASURED_STEPS] = {0};
  *out = (tws_rescaling){.steps = count};
  for (int i = 0; i < TWS_SCALE_COUNT; i++) {
    x[i] = known[i] > 0 ? log(known[i]) : 0;
    out->rates += known[i] > 0;
  }
  if (count > 0) {
    tws_job_rescale_profile(steps[0].job, (const double[TWS_SCALE_COUNT]){1, 1, 1});
    find_bounds(steps[0].job, least);
    TWS_TRY(predict(steps, count, x, log_s, err));
    out->before_s = exp(log_s[0]);
    out->measured_s = steps[0].seconds;
  }
  for (int i = 0; i < FITS && count > 0; i++) {
    double before[TWS_SCALE_COUNT], most = 0;
    memcpy(before, x, sizeof before);
    TWS_TRY(improve(steps, count, known, least, x, out->bounded, err));
    for (int j = 0; j < TWS_SCALE_COUNT; j++) most = fmax(most, fabs(x[j] - before[j]));
    if (most < 1e-4) break;
  }
  for (int i = 0; i < TWS_SCALE_COUNT; i++) out->factor[i] = exp(x[i]);
  if (count == 0) return TWS_OK;
  TWS_TRY(predict(steps, count, x, log_s, err));
  out->after_s = exp(log_s[0]);
  return check_fit(steps, count, log_s, err);
}

/* ---- texts ---- */

static const struct {
  const char *word;
  size_t offset;
  int text;
} options[] = {{"seq", offsetof(tws_job_spec, sequence), 0},
               {"micro-batch", offsetof(tws_job_spec, micro_batch), 0},
               {"accumulation", offsetof(tws_job_spec, accumulation), 0},
               {"ranks", offsetof(tws_job_spec, ranks), 0},
               {"stage", offsetof(tws_job_spec, stage), 0},
               {"pp", offsetof(tws_job_spec, pipeline_stages), 0},
               {"tp", offsetof(tws_job_spec, tensor_ranks), 0},
               {"sp", offsetof(tws_job_spec, sequence_ranks), 0},
               {"ep", offsetof(tws_job_spec, expert_ranks), 0},
               {"virtual-stages", offsetof(tws_job_spec, virtual_stages), 0},
               {"recompute", offsetof(tws_job_spec, recompute), 1},
               {"dtype", offsetof(tws_job_spec, dtype), 1},
               {"model", offsetof(tws_job_spec, model), 1},
               {"config", offsetof(tws_job_spec, config), 1},
               {"cluster", offsetof(tws_job_spec, cluster), 1}};

#define FORMS "step=0.41,seq=2048,micro-batch=4 or product=650TFLOP/s or memory=2.5TB/s or all-gather=380GB/s"

/* Reads a number with one of these units; the unit "" is the base unit. */
static tws_code read_quantity(const char *text, const char *const *units, const double *each, int count, double *value,
                              tws_error *err) {
  const char *rest;
  if (tws_text_number(text, &rest, 1e-12, 1e30, value)) {
    rest += *rest == ' ';
    for (int i = 0; i < count; i++)
      if (strcmp(rest, units[i]) == 0) {
        *value *= each[i];
        return TWS_OK;
      }
  }
  return tws_fail(err, TWS_USAGE, "for example " FORMS, "--measured: \"%.60s\" is no positive number in %s", text,
                  units[1]);
}

static tws_code read_rate(const char *text, const char *unit, double *value, tws_error *err) {
  char names[8][16];
  const char *units[9] = {""};
  static const double each[] = {1, 1, 1e3, 1e6, 1e9, 1e12, 1e15};
  static const char prefix[] = "\0kMGTP";
  for (int i = 0; i < 6; i++) {
    snprintf(names[i], sizeof names[i], "%.1s%s", &prefix[i], unit);
    units[i + 1] = names[i];
  }
  return read_quantity(text, units, each, 7, value, err);
}

static tws_code read_option(const char *word, char *value, tws_job_spec *spec, tws_error *err) {
  const char *words[sizeof options / sizeof *options];
  for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
    words[i] = options[i].word;
    if (strcmp(options[i].word, word) != 0) continue;
    char *field = (char *)spec + options[i].offset;
    if (options[i].text) {
      *(const char **)field = value;
      return TWS_OK;
    }
    return tws_parse_integer(value, "--measured", 0, 16777216, (int64_t *)field, err);
  }
  char hint[384];
  tws_names_hint(word, words, sizeof options / sizeof *options, "known:", NULL, hint, sizeof hint);
  return tws_fail(err, TWS_USAGE, hint, "--measured: unknown option \"%.40s\" of a step", word);
}

/* Reads step=SECONDS,OPTION=VALUE,... and loads the job of that step. `text` is changed and must outlive the spec's
 * use. */
static tws_code read_step(const tws_job_spec *base, char *text, tws_timed_job *step, tws_error *err) {
  static const char *const units[] = {"", "s", "ms", "us"};
  static const double each[] = {1, 1, 1e-3, 1e-6};
  tws_job_spec spec = *base;
  spec.measured.count = 0;
  char *rest = strchr(text, ',');
  if (rest) *rest++ = '\0';
  TWS_TRY(read_quantity(text, units, each, 4, &step->seconds, err));
  while (rest) {
    char *word = rest, *equals;
    rest = strchr(rest, ',');
    if (rest) *rest++ = '\0';
    equals = strchr(word, '=');
    if (!equals)
      return tws_fail(err, TWS_USAGE, "for example " FORMS, "--measured: \"%.60s\" is not OPTION=VALUE", word);
    *equals = '\0';
    TWS_TRY(read_option(word, equals + 1, &spec, err));
  }
  return tws_job_load(&spec, &step->job, err);
}

/* ---- rates ---- */

static tws_code too_fast(const char *what, double measured, double most, tws_error *err) {
  return tws_fail(err, TWS_INVALID, "check the unit, the type and the device",
                  "--measured: %s=%.4g is faster than physical: the published limit is %.4g", what, measured, most);
}

static tws_code of_product(const tws_job *job, double rate, double *factor, tws_error *err) {
  const tws_dtype dtype = (tws_dtype)job->config->dtype;
  const double most = tws_profile_peak_flops(job->profile, dtype) * RATE_SLACK;
  if (job->backend != TWS_BACKEND_HOST && rate > most) return too_fast("product", rate, most, err);
  *factor = tws_profile_product_rate(job->profile, 8192, 8192, 8192, dtype, 1, 1) / rate;
  return TWS_OK;
}

static tws_code of_memory(const tws_job *job, double rate, double *factor, tws_error *err) {
  const tws_work copy = {
      .code = TWS_KERNEL_ADD, .dtype = TWS_F32, .dtype2 = TWS_F32, .d = {COPIED_BYTES / sizeof(float)}};
  const double most = tws_profile_bandwidth(job->profile);
  if (job->backend != TWS_BACKEND_HOST && rate > most) return too_fast("memory", rate, most, err);
  *factor = tws_work_bytes(&copy) / tws_kernel_seconds(job->profile, &copy, 1, 1) / rate;
  return TWS_OK;
}

static tws_code of_all_gather(const tws_job *job, double rate, double *factor, tws_error *err) {
  const tws_cluster *c = &job->cluster;
  const int near = c->devices_per_node, ranks = near > 1 ? near : c->nodes;
  const double reached = tws_fabric_of(near > 1 ? c->intra_fabric : c->inter_fabric)->reached;
  if (ranks < 2)
    return tws_fail(err, TWS_USAGE, "leave it out, or give a cluster of several",
                    "--measured: all-gather needs a cluster of several devices, and %s has one", c->name);
  const double seconds =
      tws_collective_seconds(c, job->profile, TWS_COLLECTIVE_ALL_GATHER, ranks, near, COPIED_BYTES, 1);
  const double link = near > 1 ? c->intra.bandwidth : c->inter.bandwidth * c->nics_per_node;
  if (rate > 1.05 * link / (reached > 0 ? reached : 1)) return too_fast("all-gather", rate, link, err);
  *factor = (double)COPIED_BYTES * (ranks - 1) / ranks / seconds / rate;
  return TWS_OK;
}

static tws_code read_one(const tws_job_spec *spec, const tws_job *job, char *text, tws_timed_job *steps, int *count,
                         double known[TWS_SCALE_COUNT], tws_error *err) {
  char *value = strchr(text, '=');
  double rate;
  if (!value) return tws_fail(err, TWS_USAGE, "for example " FORMS, "--measured: \"%.60s\" is no measurement", text);
  *value++ = '\0';
  if (strcmp(text, "step") == 0) {
    if (*count == TWS_MEASURED_STEPS)
      return tws_fail(err, TWS_USAGE, NULL, "--measured: more than %d steps", TWS_MEASURED_STEPS);
    TWS_TRY(read_step(spec, value, &steps[*count], err));
    (*count)++;
    return TWS_OK;
  }
  if (strcmp(text, "product") == 0) {
    TWS_TRY(read_rate(value, "FLOP/s", &rate, err));
    return of_product(job, rate, &known[TWS_SCALE_PRODUCTS], err);
  }
  if (strcmp(text, "memory") == 0) {
    TWS_TRY(read_rate(value, "B/s", &rate, err));
    return of_memory(job, rate, &known[TWS_SCALE_MEMORY], err);
  }
  if (strcmp(text, "all-gather") == 0) {
    TWS_TRY(read_rate(value, "B/s", &rate, err));
    return of_all_gather(job, rate, &known[TWS_SCALE_LINKS], err);
  }
  return tws_fail(err, TWS_USAGE, "for example " FORMS, "--measured: \"%.40s\" is no kind of measurement", text);
}

/* Reads the texts of spec->measured and fits the factors; job: a job that was loaded or opened from `spec`. Fails with
 * TWS_USAGE for texts that are no measurement. */
static tws_code read_measured(const tws_job_spec *spec, const tws_job *job, tws_rescaling *out, tws_error *err) {
  tws_timed_job steps[TWS_MEASURED_STEPS] = {{NULL, 0}};
  double known[TWS_SCALE_COUNT] = {0};
  char texts[TWS_MEASURED_STEPS * 2][512];
  int count = 0;
  tws_code code = TWS_OK;
  *out = (tws_rescaling){0};
  for (int i = 0; i < spec->measured.count && code == TWS_OK; i++) {
    if (i == TWS_MEASURED_STEPS * 2 || strlen(spec->measured.item[i]) >= sizeof *texts) {
      code = tws_fail(err, TWS_USAGE, NULL, "--measured: too many measurements, or a text of more than 511 bytes");
      break;
    }
    snprintf(texts[i], sizeof *texts, "%s", spec->measured.item[i]);
    code = read_one(spec, job, texts[i], steps, &count, known, err);
  }
  if (code == TWS_OK) code = tws_measured_fit(steps, count, known, out, err);
  for (int i = 0; i < count; i++) tws_job_destroy(steps[i].job);
  return code;
}

void tws_rescaling_text(const tws_rescaling *r, tws_text *out) {
  for (int i = 0; i < TWS_SCALE_COUNT; i++) {
    tws_text_add(out, "%s%s", i ? ", " : "", tws_scale_name(i));
    tws_text_add(out, i ? " %.3f" : " take %.3f times as long as the profile has them", r->factor[i]);
    if (r->bounded[i]) tws_text_add(out, r->bounded[i] > 0 ? " (no faster is physical)" : " (the slowest allowed)");
  }
}

static tws_code apply(const tws_job_spec *spec, tws_job **job, tws_error *err) {
  if (spec->measured.count == 0) return TWS_OK;
  const tws_code code = read_measured(spec, *job, &(*job)->rescaling, err);
  if (code == TWS_OK) {
    tws_job_rescale_profile(*job, (*job)->rescaling.factor);
    return TWS_OK;
  }
  tws_job_destroy(*job);
  *job = NULL;
  return code;
}

tws_code tws_measured_load(const tws_job_spec *spec, tws_job **out, tws_error *err) {
  TWS_TRY(tws_job_load(spec, out, err));
  return apply(spec, out, err);
}

tws_code tws_measured_open(const tws_job_spec *spec, tws_job **out, tws_error *err) {
  TWS_TRY(tws_job_open(spec, out, err));
  return apply(spec, out, err);
}
