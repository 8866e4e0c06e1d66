/* Notes on a job's model and its matrix products that a user may not expect, as sentences. */
#ifndef TWS_JOB_NOTES_H
#define TWS_JOB_NOTES_H

#include "job/job.h"

/* Adds a line for each note. TWS_MEMORY. */
tws_code tws_job_notes(const tws_job *job, tws_text *out, tws_error *err);

#endif
