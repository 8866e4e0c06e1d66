/* Notes for the user on a job's model and its matrix products that may be unexpected, as sentences. */
#ifndef TWS_JOB_NOTES_H
#define TWS_JOB_NOTES_H

#include "job/job.h"

/* Adds a line to `out` for each key of the configuration that the job's runtime makes ineffective, as those of the
 * recipe of 8-bit products where the runtime's costs of products contain the casts. */
void tws_job_ignored(const tws_job *job, tws_text *out);
/* Adds a line to `out` for each note, those of tws_job_ignored() too. Fails only with TWS_MEMORY. */
tws_code tws_job_notes(const tws_job *job, tws_text *out, tws_error *err);

#endif
