#include "autotune/remedy.h"

#include <stdio.h>
#include <string.h>

#include "autotune/space_changes.h"
#include "base/units.h"

/* Would the job fit with this change? Anything that stands in the way of the answer counts as no. */
static int fits_with(const tws_job_spec *spec, tws_program program, double *need, double *step_s) {
  tws_job *job;
  tws_estimate estimate = {.step_s = 0};
  if (tws_job_load(spec, &job, NULL) != TWS_OK) return 0;
  job->program = program;
  tws_ledger live;
  tws_fit fit = {0};
  if (tws_job_live(job, &live, NULL) == TWS_OK) fit = tws_job_fit(job, &live);
  if (fit.fits && tws_job_estimate(job, &estimate, NULL, NULL) == TWS_OK) fit = tws_job_fit(job, &estimate.ledger);
  tws_job_destroy(job);
  *need = fit.capacity.host ? fit.node_need : fit.device_need;
  *step_s = estimate.step_s;
  return fit.fits;
}

/* A micro batch of 1 fits: so may a larger one. Of the divisors, which keep the global batch, the largest that does;
 * more need more, so the interval is halved. Gives what it needs, and its flags. */
static double largest_micro(const tws_job_spec *given, const tws_change *c, const tws_job *job, double need,
                            char *flags, size_t size) {
  enum { MOST = 512 };
  int64_t micro = job->config->micro_batch_size, divisors[MOST];
  int count = 0, low = 0;
  for (int64_t d = 1; d < micro && d <= 1 << 20 && count < MOST; d++)
    if (micro % d == 0) divisors[count++] = d;
  for (int high = count; high - low > 1;) {
    const int middle = (low + high) / 2;
    tws_changed other;
    double takes = 0, step_s;
    if (tws_change_apply(given, c, job, divisors[middle], &other) &&
        fits_with(&other.spec, job->program, &takes, &step_s)) {
      low = middle;
      need = takes;
      snprintf(flags, size, "%s", other.flags);
    } else {
      high = middle;
    }
  }
  return need;
}

/* bf16 in place of a float32 that nobody asked for. */
static int fits_in_bf16(const tws_job_spec *given, const tws_job *job, char *text, size_t size) {
  tws_job_spec spec = *given;
  char bytes[32];
  double need = 0, step_s;
  if (!job->assumed_dtype || job->config->dtype != TWS_F32) return 0;
  spec.dtype = "bf16";
  if (!fits_with(&spec, job->program, &need, &step_s)) return 0;
  snprintf(text, size, "it fits with --dtype bf16: %s", tws_format_bytes(need, bytes, sizeof bytes));
  return 1;
}

/* Than the same without offloading would be if it did fit. */
static void compare_offloaded(const tws_job_spec *given, const tws_change *c, const tws_job *job, double step_s,
                              char *text, size_t size) {
  static const char *const what[] = {"", "the optimizer's states", "the optimizer's states and the parameters"};
  tws_change same = *c;
  tws_changed without;
  double need, alone_s = 0;
  same.offload = 0;
  tws_change_apply(given, &same, job, 1, &without);
  fits_with(&without.spec, job->program, &need, &alone_s);
  text[0] = '\0';
  const char *moved = job->program == TWS_PROGRAM_EVALUATE ? "the parameters" : what[c->offload];
  if (alone_s > 0 && step_s > 0)
    snprintf(text, size, ", with %s on the host, %.0f %% slower", moved, 100 * (step_s / alone_s - 1));
}

int tws_remedy_find(const tws_job_spec *given, tws_program program, char *text, size_t size) {
  tws_job *job;
  int found = 0;
  if (tws_job_load(given, &job, NULL) == TWS_OK) {
    job->program = program;
    found = fits_in_bf16(given, job, text, size);
    const tws_change *c;
    for (size_t i = 0; !found && (c = tws_change_at(i)) != NULL; i++) {
      tws_changed with;
      char bytes[32], slower[128] = "";
      double need = 0, step_s = 0;
      found = tws_change_apply(given, c, job, 1, &with) && fits_with(&with.spec, program, &need, &step_s);
      if (found && c->offload) compare_offloaded(given, c, job, step_s, slower, sizeof slower);
      if (found && c->micro_one) need = largest_micro(given, c, job, need, with.flags, sizeof with.flags);
      if (found)
        snprintf(text, size, "it fits with%s: %s%s", with.flags, tws_format_bytes(need, bytes, sizeof bytes), slower);
    }
    tws_job_destroy(job);
  }
  if (!found)
    snprintf(text, size,
             "no stage, recomputation, micro batch, tensor ranks or shorter sequence fits: use more or larger devices");
  return found;
}
