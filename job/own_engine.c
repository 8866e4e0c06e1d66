#include "job/own_engine.h"

#include <string.h>

#include "job/features.h"

/* Loads and estimates the job under another runtime. Returns 1, or 0 if the job cannot be planned under it. */
static int estimate_under(const tws_job_spec *spec, const char *runtime, const char *program, double *step_s,
                          tws_fit *fit, tws_features *lacked) {
  tws_job_spec other = *spec;
  tws_estimate estimate;
  tws_job *job = NULL;
  tws_error none = {0};
  other.runtime = runtime;
  tws_code code = tws_job_load(&other, &job, &none);
  if (code == TWS_OK) code = tws_job_choose_program(job, program, &none);
  if (code == TWS_OK) *lacked = tws_job_unsupported_features(job);
  if (code == TWS_OK) code = tws_job_estimate(job, &estimate, NULL, &none);
  if (code == TWS_OK) {
    *step_s = estimate.step_s;
    *fit = tws_job_fit(job, &estimate.ledger);
  }
  tws_job_destroy(job);
  return code == TWS_OK;
}

tws_own_engine tws_own_engine_find(const tws_job *job, const tws_job_spec *spec, const char *program) {
  tws_own_engine own = {.known = 0};
  tws_fit fit;
  tws_features lacked;
  if (strcmp(tws_profile_runtime(job->profile)->name, "twinspeed") == 0) return own;
  own.known = estimate_under(spec, "twinspeed", program, &own.step_s, &fit, &lacked);
  if (own.known) own.device_bytes = fit.device_need;
  return own;
}

/* Returns the names of the runtimes that read the format of the job's configuration; reports show the first three that
 * differ from the job's own. */
static const char *const *readers_of(const tws_job *job) {
  static const char *const engines[] = {"deepspeed-flash", "transformers", "twinspeed", NULL};
  static const char *const megatrons[] = {"megatron", "nemo-2026", "twinspeed", NULL};
  static const char *const both[] = {"megatron-deepspeed", "megatron", "deepspeed-flash", "twinspeed", NULL};
  static const char *const titans[] = {"fsdp", "fsdp-compiled", "twinspeed", NULL};
  static const char *const any[] = {"megatron", "deepspeed-flash", "fsdp", NULL};
  const char *family = tws_runtime_family(tws_profile_runtime(job->profile), job->backend);
  const tws_config_format format = tws_config_format_of(job->config);
  if (format == TWS_FORMAT_MEGATRON_DEEPSPEED) return both;
  if (format == TWS_FORMAT_MEGATRON || format == TWS_FORMAT_BRIDGE) return megatrons;
  if (format == TWS_FORMAT_TORCHTITAN || format == TWS_FORMAT_ACCELERATE_FSDP) return titans;
  if (format != TWS_FORMAT_NONE || strstr(family, "DeepSpeed")) return engines;
  if (strncmp(family, "Megatron", 8) == 0) return megatrons;
  return strcmp(family, "torchtitan") == 0 ? titans : any;
}

int tws_other_runtimes(const tws_job *job, const tws_job_spec *spec, const char *program,
                       tws_other_runtime list[TWS_OTHER_RUNTIMES]) {
  const char *own = tws_profile_runtime(job->profile)->name;
  int count = 0;
  if (job->backend == TWS_BACKEND_HOST) return 0;
  for (const char *const *name = readers_of(job); *name && count < TWS_OTHER_RUNTIMES; name++) {
    tws_other_runtime *one = &list[count];
    tws_features lacked = 0;
    *one = (tws_other_runtime){.runtime = tws_runtime_find(*name)};
    if (!one->runtime || strcmp(*name, own) == 0) continue;
    count += estimate_under(spec, *name, program, &one->step_s, &one->fit, &lacked) && !lacked;
  }
  return count;
}
