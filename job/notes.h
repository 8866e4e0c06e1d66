/* Notes for the user on a job's model and its matrix products that may be unexpected, as sentences. */
#ifndef TWS_JOB_NOTES_H
#define TWS_JOB_NOTES_H

#include "job/job.h"

/* Adds a line to `out` for each note. Fails only with TWS_MEMORY. */
tws_code tws_job_notes(const tws_job *job, tws_text *out, tws_error *err);

#endif
