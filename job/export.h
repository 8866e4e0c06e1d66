/* A job as a configuration of other software, with the lines that launch it. */
#ifndef TWS_JOB_EXPORT_H
#define TWS_JOB_EXPORT_H

#include "job/job.h"

#define TWS_EXPORT_WORDS "deepspeed, megatron, torchtitan, accelerate or megatron-bridge"

typedef struct tws_export {
  tws_config_format format;
  tws_text file;   /* what the file has */
  tws_text launch; /* one line: torchrun, deepspeed or accelerate */
  tws_text sbatch; /* a script for Slurm's sbatch, which starts one launcher on each node by srun */
  tws_text left;   /* settings that the file does not hold: "sequence length 4096, recomputation full" */
} tws_export;

/* `path` is where the file will be. TWS_USAGE: no such format; TWS_UNSUPPORTED: the software cannot run the job, with
 * what it lacks; TWS_INVALID: its own rules refuse it. Free it in any case. */
tws_code tws_job_export(const tws_job *job, const char *format, const char *path, tws_export *out, tws_error *err);
void tws_export_free(tws_export *out);

#endif
