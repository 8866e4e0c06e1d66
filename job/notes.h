/* What is remarkable about a job's model and its products, in sentences. */
#ifndef TWS_JOB_NOTES_H
#define TWS_JOB_NOTES_H

#include "job/job.h"

/* Adds a line for each note. TWS_MEMORY. */
tws_code tws_job_notes(const tws_job *job, tws_text *out, tws_error *err);

#endif
