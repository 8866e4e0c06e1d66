/* A job as a configuration file of other software, with the command lines that launch that software. */
#ifndef TWS_JOB_EXPORT_H
#define TWS_JOB_EXPORT_H

#include "job/job.h"

#define TWS_EXPORT_WORDS "deepspeed, megatron, torchtitan, accelerate or megatron-bridge"

typedef struct tws_export {
  tws_config_format format;
  tws_text file;   /* contents of the file */
  tws_text launch; /* one command line that starts torchrun, deepspeed or accelerate */
  tws_text sbatch; /* a script for Slurm's sbatch, which starts one launcher on each node by srun */
  tws_text left;   /* settings of the job that the file cannot state: "sequence length 4096, recomputation full" */
} tws_export;

/* Fails with TWS_USAGE if there is no format of that name; callers check it before they plan a job. */
tws_code tws_export_check(const char *format, tws_error *err);
/* Exports a job in the format of that name. `path`: the path at which the caller writes the file, for the command
 * lines. Fails with TWS_USAGE if there is no such format, with TWS_UNSUPPORTED if the software cannot run the job (the
 * message has what it lacks), and with TWS_INVALID if the software's own rules refuse the job. tws_export_free() frees
 * *out, also after an error. */
tws_code tws_job_export(const tws_job *job, const char *format, const char *path, tws_export *out, tws_error *err);
void tws_export_free(tws_export *out);

#endif
