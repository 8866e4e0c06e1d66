#include "autotune/remedy.h"

#include <stdio.h>
#include <string.h>

#include "autotune/space_changes.h"
#include "base/units.h"
#include "job/features.h"
#include "job/measured.h"

/* Figures of a changed job: needed bytes, and seconds per token. */
typedef struct trial {
  double need, token_s;
} trial;

static double token_seconds(const tws_estimate *estimate) {
  return estimate->tokens_per_s > 0 ? 1 / estimate->tokens_per_s : 0;
}

/* Returns 1 if the changed job uses features that its runtime does not have and that the given job does not use. */
static int lacks_more(const tws_job *job, const tws_job *given) {
  const int own = strcmp(tws_profile_runtime(job->profile)->name, "twinspeed") == 0;
  return !own && (tws_job_unsupported_features(job) & ~tws_job_unsupported_features(given)) != 0;
}

/* Returns 1 and writes the figures to *out if the job of a changed specification fits; returns 0 if it does not fit or
 * cannot be planned. */
static int fits_with(const tws_job_spec *spec, const tws_job *given, trial *out) {
  tws_job *job;
  tws_estimate estimate = {.step_s = 0};
  if (tws_measured_load(spec, &job, NULL) != TWS_OK) return 0;
  if (lacks_more(job, given)) {
    tws_job_destroy(job);
    return 0;
  }
  job->program = given->program;
  tws_ledger live;
  tws_fit fit = {0};
  if (tws_job_live(job, &live, NULL) == TWS_OK) fit = tws_job_fit(job, &live);
  if (fit.fits && tws_job_estimate(job, &estimate, NULL, NULL) == TWS_OK) fit = tws_job_fit(job, &estimate.ledger);
  tws_job_destroy(job);
  *out = (trial){fit.capacity.host ? fit.node_need : fit.device_need, token_seconds(&estimate)};
  return fit.fits;
}

/* Finds by bisection the largest micro batch that fits, given that a micro batch of 1 fits, and writes its flags. Only
 * divisors of the given micro batch are tried, since they keep the global batch; memory increases with the micro
 * batch. */
static void largest_micro(const tws_job_spec *given, const tws_change *c, const tws_job *job, trial *best, char *flags,
                          size_t size) {
  enum { MOST = 512 };
  int64_t micro = job->config->micro_batch_size, divisors[MOST];
  int count = 0, low = 0;
  for (int64_t d = 1; d < micro && d <= 1 << 20 && count < MOST; d++)
    if (micro % d == 0) divisors[count++] = d;
  for (int high = count; high - low > 1;) {
    const int middle = (low + high) / 2;
    tws_changed other;
    trial one;
    if (tws_change_apply(given, c, job, divisors[middle], &other) && fits_with(&other.spec, job, &one)) {
      low = middle;
      *best = one;
      snprintf(flags, size, "%s", other.flags);
    } else {
      high = middle;
    }
  }
}

/* Writes a comparison with the unchanged job on devices with enough memory: "30.5 GiB, 33 % slower". */
static void describe(const tws_job *job, const trial *with, int offloads, char *text, size_t size) {
  static const char *const what[] = {"the optimizer's states", "the optimizer's states and the parameters"};
  const char *moved = job->program == TWS_PROGRAM_EVALUATE ? "the parameters" : what[offloads == 2];
  char bytes[32];
  tws_estimate estimate;
  const int known = tws_job_estimate(job, &estimate, NULL, NULL) == TWS_OK && with->token_s > 0;
  const double before = known ? token_seconds(&estimate) : 0;
  const double slower = before > 0 ? 100 * (with->token_s / before - 1) : 0,
               faster = before > 0 ? 100 * (1 - with->token_s / before) : 0;
  int length = snprintf(text, size, "%s", tws_format_bytes(with->need, bytes, sizeof bytes));
  if (offloads) length += snprintf(text + length, size - (size_t)length, ", with %s on the host", moved);
  if (slower >= 0.5)
    snprintf(text + length, size - (size_t)length, ", %.0f %% slower", slower);
  else if (faster >= 0.5)
    snprintf(text + length, size - (size_t)length, ", %.0f %% faster", faster);
}

/* If float32 is only a default, which neither an option nor a file requests, and the job fits with bf16, writes this
 * remedy and returns 1; otherwise returns 0. */
static int fits_in_bf16(const tws_job_spec *given, const tws_job *job, char *text, size_t size) {
  tws_job_spec spec = *given;
  trial with;
  char rest[128];
  if (!job->assumed_dtype || job->config->dtype != TWS_F32) return 0;
  spec.dtype = "bf16";
  if (!fits_with(&spec, job, &with)) return 0;
  describe(job, &with, 0, rest, sizeof rest);
  snprintf(text, size, "it fits with --dtype bf16: %s", rest);
  return 1;
}

int tws_remedy_find(const tws_job_spec *given, tws_program program, char *text, size_t size) {
  tws_job *job;
  int found = 0;
  if (tws_measured_load(given, &job, NULL) == TWS_OK) {
    job->program = program;
    found = fits_in_bf16(given, job, text, size);
    const tws_change *c;
    for (size_t i = 0; !found && (c = tws_change_at(i)) != NULL; i++) {
      tws_changed with;
      trial one;
      char rest[128];
      found = tws_change_apply(given, c, job, 1, &with) && fits_with(&with.spec, job, &one);
      if (found && c->micro_one) largest_micro(given, c, job, &one, with.flags, sizeof with.flags);
      if (!found) continue;
      describe(job, &one, c->offload, rest, sizeof rest);
      snprintf(text, size, "it fits with%s: %s", with.flags, rest);
    }
    tws_job_destroy(job);
  }
  if (!found)
    snprintf(text, size,
             "no stage, recomputation, micro batch, tensor ranks or shorter sequence fits: use more or larger devices");
  return found;
}
